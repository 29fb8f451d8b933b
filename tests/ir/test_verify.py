"""The verifier: each invariant broken once, all problems at once, and no more work than the graph has nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from compiler.errors import VerifyError
from compiler.ir import infer
from compiler.ir.builder import Builder
from compiler.ir.graph import Graph, Node, Origin, Program
from compiler.ir.types import Tensor, TensorType
from compiler.ir.verify import verify

T = TensorType("f32", (2, 3))
ONES = Tensor(np.ones((2, 3), np.float32))


def parts() -> dict[str, Any]:
    """What a small graph is made of: a state, an If with two bodies, an update and an output."""

    def body(name: str, op: str) -> Graph:
        b = Builder(name)
        b.output("out", b.op(op, b.capture("c", T), name="r"))
        return b.build()

    bodies = {"then_branch": body("then", "Relu"), "else_branch": body("else", "Neg")}
    return {
        "name": "g",
        "types": {"x": T, "p": TensorType("bool"), "w": T, "k": T, "y": T, "z": T},
        "inputs": ("x", "p"),
        "states": {"w": ONES},
        "consts": {"k": ONES},
        "captures": (),
        "nodes": (
            Node("Add", ("x", "w"), ("y",), {}, (), Origin("add")),
            Node("If", ("p",), ("z",), bodies, ("y",), Origin("if")),
        ),
        "outputs": {"z": "z"},
        "updates": {"w": "y"},
    }


def test_a_sound_graph_passes() -> None:
    verify(Graph(**parts()))


def node(i: int, **changes: Any) -> Callable[[dict[str, Any]], None]:
    """Replace fields of the i-th node."""

    def change(p: dict[str, Any]) -> None:
        old = p["nodes"][i]
        fields = {name: getattr(old, name) for name in ("op", "inputs", "outputs", "attrs", "captures", "origin")}
        p["nodes"] = (*p["nodes"][:i], Node(**{**fields, **changes}), *p["nodes"][i + 1 :])

    return change


def field(name: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda p: p.update({name: value(p[name]) if callable(value) else value})


def in_body(change: Callable[[dict[str, Any]], None]) -> Callable[[dict[str, Any]], None]:
    """Change the graph in the If's then_branch."""

    def outer(p: dict[str, Any]) -> None:
        old = p["nodes"][1].attrs["then_branch"]
        fields = {name: getattr(old, name) for name in p}
        change(fields)
        bodies = {**p["nodes"][1].attrs, "then_branch": Graph(**fields)}
        node(1, attrs=bodies)(p)

    return outer


def add(**more: Any) -> Callable[[Any], Any]:
    return lambda mapping: {**mapping, **more}


def drop(name: str) -> Callable[[Any], Any]:
    return lambda mapping: {k: v for k, v in mapping.items() if k != name}


BROKEN = {
    "defined twice": (node(1, outputs=("y",)), "'y' is defined more than once"),
    "source twice": (field("inputs", ("x", "p", "w")), "'w' is defined more than once"),
    "undefined operand": (node(0, inputs=("x", "nothing")), "'nothing' is read"),
    "read before definition": (lambda p: p.update(nodes=p["nodes"][::-1]), "'y' is read, but nothing before"),
    "reads itself": (node(0, inputs=("x", "y")), "'y' is read, but nothing before"),
    "value without type": (field("types", drop("y")), "'y' has no type"),
    "read without type": (
        lambda p: (field("types", drop("x"))(p), node(0, op="Neg", inputs=("x",))(p)),
        "'x' has no type",
    ),
    "type without value": (field("types", add(q=T)), "'q' has a type, but nothing defines it"),
    "empty name": (field("inputs", ("x", "p", "")), "a value has an empty name"),
    "negative dimension": (field("types", add(x=TensorType("f32", (-1,)))), "which is none"),
    "too large": (field("types", add(x=TensorType("f32", (2**41,)))), "too large"),
    "too large, but empty": (field("types", add(x=TensorType("f32", (0, 2**41)))), "too large"),
    "wrong type": (field("types", add(y=TensorType("f32", (3, 2)))), "is declared f32[3,2], but computes f32[2,3]"),
    "wrong dtype": (field("types", add(y=TensorType("f64", (2, 3)))), "is declared f64[2,3]"),
    "constant of another type": (field("consts", {"k": Tensor(np.ones(3))}), "its tensor is f64[3]"),
    "state of another type": (field("states", {"w": Tensor(np.ones(3))}), "its tensor is f64[3]"),
    "output of nothing": (field("outputs", {"o": "nothing"}), "output 'o' is 'nothing', which nothing defines"),
    "update of no state": (field("updates", {"x": "y"}), "the update of 'x' is of no state"),
    "update by nothing": (field("updates", {"w": "nothing"}), "is 'nothing', which nothing defines"),
    "update of another type": (field("updates", {"w": "p"}), "a f32[2,3], is 'p', a bool[]"),
    "unknown operator": (node(0, op="Ad"), "no operator 'Ad'"),
    "too few operands": (node(0, inputs=("x",)), "1 inputs where 2 are expected"),
    "too many operands": (node(0, inputs=("x", "x", "x")), "3 inputs where 2 are expected"),
    "too many results": (node(0, outputs=("y", "")), "2 outputs where 1 are expected"),
    "result twice": (node(0, op="TopK", inputs=("x", "k"), outputs=("y", "y")), "'y' is defined more than once"),
    "no result": (node(1, outputs=("",)), "If computes nothing"),
    "absent operand": (node(0, inputs=("x", "")), "is required"),
    "unknown attribute": (node(0, attrs={"axis": 1}), "no attribute 'axis'"),
    "wrong kind": (node(0, op="LeakyRelu", inputs=("x",), attrs={"alpha": 1}), "not of the kind FLOAT"),
    "graph as attribute": (node(0, attrs={"axis": parts()["nodes"][1].attrs["then_branch"]}), "no attribute 'axis'"),
    "missing attribute": (node(0, op="Concat"), "'axis' is required"),
    "precondition": (node(0, op="Gather", inputs=("x", "k")), "indices is f32, where i32 or i64 is expected"),
    "captures without body": (node(0, captures=("x",)), "without nested graphs captures"),
    "missing body": (lambda p: node(1, attrs=drop("else_branch")(p["nodes"][1].attrs))(p), "'else_branch' is required"),
    "too few captures": (node(1, captures=()), "captures f32[2,3], the node gives it nothing"),
    "captures of another type": (node(1, captures=("p",)), "captures f32[2,3], the node gives it bool[]"),
    "condition of another type": (node(1, inputs=("x",)), "not one bool"),
    "body that reads outside": (in_body(lambda p: node(0, inputs=("y",))(p)), "'y' is read"),
    "body with an input": (in_body(field("captures", ())), "captures nothing"),
    "body with a wrong type": (in_body(field("types", add(r=TensorType("f32")))), "is declared f32[]"),
    "body with other outputs": (in_body(field("outputs", {})), "1 outputs, its branches 0 and 1"),
    "body with an undefined output": (in_body(field("outputs", {"out": "q"})), "'q', which nothing defines"),
    "body with a state": (
        in_body(lambda p: p.update(states={"s": ONES}, types={**p["types"], "s": T})),
        "has the state",
    ),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_broken(broken: str) -> None:
    change, message = BROKEN[broken]
    p = parts()
    verify(Graph(**p))  # nodes that were right are remembered: that hides nothing
    change(p)
    with pytest.raises(VerifyError) as e:
        verify(Graph(**p))
    assert any(message in problem.what for problem in e.value.problems), [str(q) for q in e.value.problems]


def test_what_is_remembered_of_nodes_is_not_about_values_or_names() -> None:
    def graph(axis: int, outputs: tuple[str, ...]) -> Graph:
        axes = Tensor(np.array([axis]))
        nodes = (
            Node("Unsqueeze", ("x", "axes"), ("u",)),
            Node("Dropout", ("x",), outputs),
        )
        types = {"x": T, "axes": axes.type, "u": TensorType("f32", (1, 2, 3)), "y": T, "m": TensorType("bool", (2, 3))}
        return Graph("g", types, ("x",), {}, {"axes": axes}, (), nodes, {}, {})

    verify(graph(0, ("y", "m")))
    with pytest.raises(VerifyError, match=r"declared f32\[1,2,3\], but computes f32\[2,1,3\]"):
        verify(graph(1, ("y", "m")))
    with pytest.raises(VerifyError, match="'y' is defined more than once"):
        verify(graph(0, ("y", "y")))


def test_all_problems_are_listed_with_their_place() -> None:
    p = parts()
    node(0, op="Ad")(p)
    in_body(lambda q: node(0, op="Re", origin=Origin("deep", "rule"))(q))(p)
    field("outputs", {"o": "nothing"})(p)
    with pytest.raises(VerifyError) as e:
        verify(Graph(**p))
    assert [q.where for q in e.value.problems] == ["node 'add'", "node 'if' / then_branch / node 'deep by rule'", ""]


def test_programs() -> None:
    g = Graph(**parts())
    verify(Program(g))
    other = {
        **parts(),
        "states": {"w": Tensor(np.ones(3))},
        "types": {**parts()["types"], "w": TensorType("f64", (3,))},
    }
    with pytest.raises(VerifyError, match=r"state 'w' is f64\[3\] here and f32\[2,3\] in another graph"):
        verify(Program(g, Graph(**{**other, "nodes": (), "outputs": {}, "updates": {}})))
    with pytest.raises(VerifyError, match="inference updates states"):
        verify(Program(g, g))
    with pytest.raises(VerifyError, match="initialization has the input 'x'"):
        verify(Program(g, None, g))
    with pytest.raises(VerifyError, match="no graph is around this one"):
        verify(Program(g.nodes[1].attrs["then_branch"]))


def test_definitions_of_internal_operators_are_verified() -> None:
    """A precondition of a node in the definition is one of the operator."""
    b = Builder()
    dy, x = b.input("dy", TensorType("f32", (2, 6, 4, 4))), b.input("x", TensorType("f32", (2, 3, 6, 6)))
    attrs = {"kernel_shape": (3, 3), "strides": (1, 1), "dilations": (1, 1), "pads": (0, 0, 0, 0)}
    (dw,) = b.add("onnxc.ConvWeightGrad", [dy, x], attrs, ["dw"])
    b.output("dw", dw)
    verify(b.build())
    wrong = Builder()
    for v in (dy, x):
        wrong.input(v, b.type(v))
    (dw,) = wrong.add("onnxc.ConvWeightGrad", [dy, x], {**attrs, "pads": (-1, 0, 0, 0)}, ["dw"], types=[b.type(dw)])
    with pytest.raises(VerifyError, match="pads"):
        verify(wrong.build())


def chain(n: int) -> Graph:
    """A graph of n small nodes, of which the types repeat, and n more that compute a shape."""
    b = Builder("chain")
    x, shape = b.input("x", TensorType("f32", (64, 10))), b.ints([64, 10])
    one = b.ints([1, 1])
    for i in range(n):
        x = b.op("Add" if i % 2 else "Mul", x, x)
        shape = b.op("Max", b.op("Mul", shape, one), one)
    b.output("x", b.op("Reshape", x, shape))
    return b.build()


def test_types_know_their_element_types() -> None:
    with pytest.raises(ValueError, match="no element type"):
        TensorType("f8", (2, 3))


def test_work_is_linear(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inference runs once for each kind of node, and long chains of shape arithmetic need no recursion."""
    calls = []
    run = infer._run
    monkeypatch.setattr(infer, "_run", lambda *args: calls.append(args) or run(*args))
    infer._memo.clear()
    g = chain(3_333)
    assert len(g.nodes) == 10_000
    verify(g)
    assert len(calls) < 10
    calls.clear()
    verify(g)
    assert not calls
