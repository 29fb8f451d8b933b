"""Loop and Scan: their types, what is refused, how many iterations there are, and what they mean."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import onnxruntime
import pytest

from compiler.codegen.export import export
from compiler.errors import VerifyError
from compiler.ir.builder import Builder
from compiler.ir.control import deciders, iterated, trip_count
from compiler.ir.graph import Attr, Graph
from compiler.ir.infer import NotStatic
from compiler.ir.interpret import interpret
from compiler.ir.text import dump, parse, tensors_of
from compiler.ir.types import TensorType
from compiler.ir.verify import verify
from compiler.passes.dce import dce
from compiler.passes.fold import fold_constants
from compiler.passes.pipeline import passes, run

F32, I64, BOOL = TensorType("f32"), TensorType("i64"), TensorType("bool")
ROW, PAIR = TensorType("f32", (3,)), TensorType("f32", (2,))


def scan_body() -> Graph:
    """(s[3], x[3], y[2]) -> s*w + x; then its negative, and the sum of y; w is captured."""
    b = Builder("body")
    s, x, y = b.input("s", ROW), b.input("x", ROW), b.input("y", PAIR)
    new = b.op("Add", b.op("Mul", s, b.capture("w", ROW)), x, name="new")
    for v in (new, b.op("Neg", new), b.op("ReduceSum", y)):
        b.output(v, v)
    return b.build()


def loop_body(condition: str = "same", rows: bool = True) -> Graph:
    """(i, c, v[3]) -> v*2 while the condition holds; as a row as well, with the iteration's number."""
    b = Builder("body")
    i, c, v = b.input("i", I64), b.input("c", BOOL), b.input("v", ROW)
    new = b.op("Mul", v, b.scalar(2.0, v))
    go = {
        "same": lambda: b.op("Identity", c),
        "true": lambda: b.const(np.array(True)),
        "number": lambda: b.op("Less", i, b.const(np.array(4))),
        "data": lambda: b.op("Less", b.op("ReduceSum", new, keepdims=0), b.scalar(100.0, new)),
    }[condition]()
    b.output("go", go)
    for v in (new, *((new, i) if rows else ())):
        b.output(f"o{len(b.build().outputs)}", v)
    return b.build()


def scan(attrs: dict[str, Attr] | None = None, x: TensorType | None = None, y: TensorType | None = None) -> Graph:
    b = Builder("g")
    operands = [
        b.input("s", ROW),
        b.input("x", x or TensorType("f32", (4, 3))),
        b.input("y", y or TensorType("f32", (2, 4))),
    ]
    given = {"body": scan_body(), "num_scan_inputs": 2, "scan_input_axes": [0, -1], **(attrs or {})}
    for v in b.add("Scan", operands, given, ["f", "r", "q"], [b.input("w", ROW)]):
        b.output(v, v)
    return b.build()


def loop(body: Graph, most: object = 3, condition: object = None, outputs: int = 3) -> Graph:
    """most, condition: "input", None (absent), or the value."""
    b = Builder("g")

    def operand(given: object, name: str, t: TensorType) -> str:
        return "" if given is None else b.input(name, t) if given == "input" else b.const(np.array(given), name)

    operands = [operand(most, "m", I64), operand(condition, "c", BOOL), b.input("v", ROW)]
    for v in b.add("Loop", operands, {"body": body}, outputs):
        b.output(v, v)
    return b.build()


def test_types() -> None:
    g = scan({"scan_output_axes": [1, -1]})
    assert [str(g.type(v)) for v in "frq"] == ["f32[3]", "f32[3,4]", "f32[1,4]"]
    g = loop(loop_body())
    assert [str(t) for t in map(g.type, g.outputs.values())] == ["f32[3]", "f32[3,3]", "i64[3]"]
    for graph in (g, scan()):
        verify(graph)
        assert parse(dump(graph), tensors_of(graph)) == graph


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: scan({"num_scan_inputs": 4}), "num_scan_inputs is 4, but there are 3 inputs"),
        (lambda: scan({"num_scan_inputs": 0}), "num_scan_inputs is 0"),
        (lambda: scan({"scan_input_axes": [0]}), "1 scan_input_axes, where 2 are expected"),
        (lambda: scan({"scan_input_axes": [0, 2]}), "axis 2 in scan_input_axes is out of the range of rank 2"),
        (lambda: scan({"scan_output_axes": [0, -3]}), "axis -3 in scan_output_axes is out of the range of rank 2"),
        (lambda: scan({"scan_input_directions": [0, 2]}), "direction is 0 .* or 1"),
        (lambda: scan({"scan_output_directions": [1]}), "1 scan_output_directions, where 2 are expected"),
        (lambda: scan(x=TensorType("f32", (4, 4))), r"scan input 0 is f32\[4,4\], its slices .* are not f32\[3\]"),
        (lambda: scan(y=TensorType("f32", (2, 5))), "different lengths: 4, 5"),
        (lambda: scan({"body": loop_body()}), "a body|3 inputs|carried value 0"),
        (lambda: loop(loop_body(), most=2.0), "the trip count is f64\\[\\], not one i64"),
        (lambda: loop(loop_body(), condition=[True, True]), r"the condition is bool\[2\], not one bool"),
        (lambda: loop(scan_body(), outputs=2), "the body's input of the iteration's number"),
        (lambda: loop(loop_body(), outputs=4), "Loop has 4 outputs, its body computes 3"),
        (lambda: loop(loop_body(), most=None), "never ends"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(make: Callable[[], Graph], message: str) -> None:
    with pytest.raises(VerifyError, match=message):
        make()


def test_carried_values_keep_their_type() -> None:
    b = Builder("body")
    b.input("i", I64)
    c, v = b.input("c", BOOL), b.input("v", ROW)
    b.output("c", c)
    b.output("longer", b.op("Concat", v, v, axis=0))
    with pytest.raises(VerifyError, match=r"carried value 0 is f32\[3\] before an iteration and f32\[6\] after it"):
        loop(b.build(), outputs=1)


def test_verify_looks_at_captures_and_into_bodies() -> None:
    text = dump(scan()).replace("capture(w)", "capture(s, w)")
    with pytest.raises(VerifyError, match=r"body captures f32\[3\], the node gives it f32\[3\], f32\[3\]"):
        verify(parse(text))
    text = dump(scan()).replace("Neg: f32[3] = Neg(new)", "Neg: f32[3] = Neg(new) {axis=1}")
    with pytest.raises(VerifyError, match=r"no attribute 'axis', in .* / body / the node that computes 'Neg'"):
        verify(parse(text))


@pytest.mark.parametrize(
    ("condition", "most", "first", "count", "deciding"),
    [
        ("same", 3, None, 3, []),
        ("same", 3, False, 0, []),
        ("same", -1, "input", 0, []),
        ("true", 7, True, 7, []),
        ("number", None, None, 5, []),
        ("number", 2, None, 2, []),
        ("number", 100, True, 5, []),
        ("same", "input", None, None, ["m"]),
        ("same", 3, "input", None, ["c"]),
        ("data", 9, None, None, ["v"]),
        ("data", "input", "input", None, ["m", "c", "v"]),
    ],
)
def test_number_of_iterations(
    condition: str, most: object, first: object, count: int | None, deciding: list[str]
) -> None:
    g = loop(loop_body(condition, rows=False), most, first, outputs=1)
    (node,) = g.nodes

    assert trip_count(node, g.constant) == count
    if count is None:
        assert deciders(node, g.constant) == deciding
        with pytest.raises(NotStatic) as e:
            loop(loop_body(condition), most, first)
        assert list(e.value.operands) == deciding
    else:
        wide = loop(loop_body(condition), most, first)
        assert wide.type(list(wide.outputs.values())[1]).shape == (count, 3)
        (fixed,) = fold_constants(wide).nodes
        assert (trip_count(fixed, fold_constants(wide).constant), fixed.inputs[1]) == (count, "")
        assert iterated(fixed).new_go == iterated(fixed).go


FEEDS = {
    "s": np.float32([1, -2, 3]), "x": np.float32(np.arange(12).reshape(4, 3)) / 7, "w": np.float32([0.5, 1, -1]),
    "y": np.float32(np.arange(8).reshape(2, 4)), "v": np.float32([1, 2, 4]), "m": np.array(3), "c": np.array(True),
}  # fmt: skip


@pytest.mark.parametrize(
    "graph",
    [
        scan(),
        scan({"scan_input_axes": [-2, 1], "scan_input_directions": [0, 1], "scan_output_directions": [1, 0]}),
        scan({"scan_input_directions": [1, 1], "scan_output_axes": [1, 0]}),
        loop(loop_body()),
        loop(loop_body("number"), None),
        loop(loop_body("data", rows=False), "input", "input", outputs=1),
        loop(loop_body("data", rows=False), None, outputs=1),
        loop(loop_body(), 0),
    ],
)
def test_meaning_is_that_of_onnxruntime(graph: Graph) -> None:
    """Also after the passes, which end with other nodes."""
    feeds = {v: FEEDS[v] for v in graph.inputs}
    model = export(graph)
    onnx.checker.check_model(model, full_check=True)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    wanted = dict(zip([o.name for o in model.graph.output], session.run(None, feeds), strict=True))
    for g in (graph, run(graph, passes(lambda node, types: True))):
        values = interpret(g, feeds)
        for name, v in g.outputs.items():
            assert values[v].shape == wanted[name].shape
            np.testing.assert_allclose(values[v], wanted[name], rtol=1e-6)


def test_dce_removes_what_nobody_needs() -> None:
    b = Builder("body")
    states = [b.input(f"s{i}", ROW) for i in range(3)]
    x, y = b.input("x", ROW), b.input("y", ROW)
    new = [b.op("Add", states[0], states[1]), b.op("Mul", states[1], x), b.op("Neg", states[2])]
    for i, v in enumerate([*new, b.op("Mul", y, b.capture("w", ROW)), new[0]]):
        b.output(f"o{i}", v)
    outer = Builder("g")
    initial = [outer.input(f"i{i}", ROW) for i in range(3)]
    sequences = [outer.input(v, TensorType("f32", (4, 3))) for v in ("xs", "ys")]
    attrs = {"body": b.build(), "num_scan_inputs": 2, "scan_output_directions": [0, 1]}
    outputs = outer.add("Scan", [*initial, *sequences], attrs, 5, [outer.input("w", ROW)])
    outer.output("rows", outputs[4])
    g = dce(outer.build())
    verify(g)
    (node,) = g.nodes
    assert node.inputs == ("i0", "i1", "xs")  # the first state needs the second; the third, ys and w are gone
    assert not node.captures
    assert node.outputs == (outputs[0], outputs[1], outputs[4])
    assert node.attr("scan_output_directions") == (1,)


def test_a_loop_of_constants_is_folded() -> None:
    b = Builder("g")
    v = b.const(np.float32([1, 2, 4]))
    results = b.add("Loop", [b.const(np.array(3)), "", v], {"body": loop_body()}, 3)
    for name, result in zip("yrn", results, strict=True):
        b.output(name, result)
    g = fold_constants(b.build())
    assert not g.nodes
    np.testing.assert_array_equal(g.constant(g.outputs["y"]), [8, 16, 32])
    np.testing.assert_array_equal(g.constant(g.outputs["n"]), [0, 1, 2])
