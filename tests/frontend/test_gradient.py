"""Gradient's names become operands: scopes, order, substitution, functions, and everything that is refused."""

from __future__ import annotations

import onnx
import pytest
from onnx import helper

from compiler.errors import CompileError
from compiler.frontend import load
from compiler.ir.builder import GRADIENT
from compiler.ir.graph import Graph, Node
from tests.frontend.small import make_model

Y = "s = Mul(x, w) y = ReduceSum<keepdims=0>(s)"
"""Nodes: y = sum(x w)."""


def model(
    nodes: str, outputs: str = "float[3] d", inputs: str = "float[3] x, float[3] w", functions: str = ""
) -> onnx.ModelProto:
    return make_model(f"g ({inputs}) => ({outputs}) {{ {nodes} }}", functions=functions)


def gradient(
    x: str = "x, w",
    out: str = "d",
    y: str = "y",
    xs: str = '"x"',
    zs: str = '"w"',
    domain: str = "ai.onnx.preview.training",
) -> str:
    return f'{out} = {domain}.Gradient<xs=[{xs}], zs=[{zs}], y="{y}">({x}) '


def gradients(g: Graph) -> list[Node]:
    return [n for n in g.nodes if n.op == GRADIENT]


def problems(m: onnx.ModelProto) -> list[str]:
    with pytest.raises(CompileError) as e:
        load(m).program()
    return [str(p) for p in e.value.problems]


def test_names_become_operands() -> None:
    (node,) = gradients(load(model(Y + gradient())).program().step)
    assert node.inputs == ("y", "x", "w", "x", "w")
    assert dict(node.attrs) == {"xs": 1, "zs": 1}


def test_the_alias_domain() -> None:
    m = model(Y + gradient(domain="ai.onnx.preview"))
    del m.opset_import[1]
    m.opset_import.append(helper.make_opsetid("ai.onnx.preview", 1))
    assert gradients(load(m).program().step)[0].inputs == ("y", "x", "w", "x", "w")


def test_y_may_be_computed_after_the_gradient() -> None:
    g = load(model(gradient() + Y)).program().step
    assert [n.op for n in g.nodes] == ["Mul", "ReduceSum", GRADIENT]


def test_a_chain_of_gradients_in_the_wrong_order() -> None:
    nodes = (
        gradient(out="d3", y="d2")
        + gradient(out="d2", y="d1")
        + gradient(out="d1")
        + "q = Mul(x, x) s = Mul(q, x) y = Mul(s, w)"
    )
    g = load(model(nodes, "float[3] d3")).program().step
    assert [n.inputs[0] for n in gradients(g)] == ["y", "d1", "d2"]


def test_y_that_depends_on_its_own_gradient_is_refused() -> None:
    assert (
        "computed from the Gradient's own outputs"
        in problems(model(gradient() + "s = Mul(d, w) y = ReduceSum<keepdims=0>(s)"))[0]
    )


@pytest.mark.parametrize("outputs", [["", "d"], ["d", ""], ["d"]])
def test_absent_outputs(outputs: list[str]) -> None:
    m = model(Y)
    domain = "ai.onnx.preview.training"
    m.graph.node.append(helper.make_node("Gradient", ["x", "w"], outputs, domain=domain, xs=["x", "w"], y="y"))
    (node,) = gradients(load(m).program().step)
    assert node.outputs == tuple(outputs if outputs[-1] else outputs[:-1])
    assert node.attrs["xs"] == 2


def test_another_point_and_another_batch() -> None:
    nodes = Y + gradient(x="x2, w")
    m = make_model(f"g (float[3] x, float[3] w, float[3] x2) => (float[3] d) {{ {nodes} }}")
    assert gradients(load(m).program().step)[0].inputs == ("y", "x", "w", "x2", "w")
    nodes = "s = MatMul(x, w) y = ReduceSum<keepdims=0>(s)" + gradient(x="w, x2", xs='"w"', zs='"x"')
    m = make_model(f"g (float[N,3] x, float[3,1] w, float[M,3] x2) => (float[3,1] d) {{ {nodes} }}")
    g = load(m).program({"N": 4, "M": 7}).step
    assert str(g.type("d")) == "f32[3,1]"
    nodes = "s = MatMul(x, w) y = ReduceSum<keepdims=0>(s)" + gradient(x="x2, w")
    m = make_model(f"g (float[N,3] x, float[3,1] w, float[M,3] x2) => (float[M,3] d) {{ {nodes} }}")
    assert str(load(m).program({"N": 4, "M": 7}).step.type("d")) == "f32[7,3]"


def test_intermediate_xs() -> None:
    nodes = "h = Exp(x) y = Mul(h, w)" + gradient(x="h, w", xs='"h"')
    assert gradients(load(model(nodes)).program().step)[0].inputs == ("y", "h", "w", "h", "w")


def test_inside_an_if() -> None:
    nodes = (
        Y
        + """d = If(c) <
      then_branch = a () => (float[3] p) { p = ai.onnx.preview.training.Gradient<xs=["x"], zs=["w"], y="y">(x, w) },
      else_branch = b () => (float[3] q) { u = Exp(x) v = ReduceSum<keepdims=0>(u)
        q = ai.onnx.preview.training.Gradient<xs=["x"], y="v">(x) }>"""
    )
    g = load(model(nodes, inputs="float[3] x, float[3] w, bool c")).program().step
    (node,) = [n for n in g.nodes if n.op == "If"]
    assert "y" in node.captures
    (inner,) = gradients(node.attrs["else_branch"])
    assert inner.inputs == ("v", "x", "x")


FUNCTION = """<domain: "local", opset_import: ["": 21, "ai.onnx.preview.training": 1]>
slope (a, b) => (r)
{
  s = Mul(a, b)
  y = ReduceSum<keepdims=0>(s)
  r = ai.onnx.preview.training.Gradient<xs=["a"], zs=["b"], y="y">(a, b)
}"""


def test_inside_a_function() -> None:
    m = model("y = Exp(x) p = local.slope(y, w) d = local.slope(p, x)", functions=FUNCTION)
    first, second = gradients(load(m).program().step)
    assert first.inputs[1:] == ("y", "w", "y", "w")
    assert second.inputs[1:] == ("p", "x", "p", "x")
    assert first.inputs[0] != second.inputs[0]
    assert first.origin.node == "p/r"


def test_gradient_through_a_function_call() -> None:
    functions = """<domain: "local", opset_import: ["": 21]> square (a) => (b) { b = Mul(a, a) }"""
    m = model("s = local.square(x) y = Mul(s, w)" + gradient(), functions=functions)
    g = load(m).program().step
    assert [n.op for n in g.nodes] == ["Mul", "Mul", GRADIENT]
    assert gradients(g)[0].inputs[0] == "y"


REFUSED = {
    "y that does not exist": (Y + gradient(y="z"), "Gradient names the tensor 'z' in y, which does not exist here"),
    "xs that do not exist": (Y + gradient(xs='"z"'), "Gradient names the tensor 'z' in xs"),
    "zs that do not exist": (Y + gradient(zs='"z"'), "Gradient names the tensor 'z' in zs"),
    "too few inputs": (Y + gradient(x="x"), "Gradient has 1 inputs, but 1 xs and 1 zs"),
    "too many inputs": (Y + gradient(x="x, w, w"), "Gradient has 3 inputs, but 1 xs and 1 zs"),
    "too many outputs": (Y + gradient(out="d, e"), "Gradient has 2 outputs, but 1 xs"),
    "a name in xs and zs": (Y + gradient(zs='"x"'), "Gradient names 'x' more than once"),
    "no xs": (Y + 'd = ai.onnx.preview.training.Gradient<y="y">(x)', "Gradient needs the attribute 'xs'"),
    "no y": (Y + 'd = ai.onnx.preview.training.Gradient<xs=["x"]>(x)', "Gradient needs the attribute 'y'"),
    "y of several names": (
        Y + 'd = ai.onnx.preview.training.Gradient<xs=["x"], y=["y"]>(x)',
        "attribute 'y' of Gradient must be a string",
    ),
    "an unknown attribute": (
        Y + 'd = ai.onnx.preview.training.Gradient<xs=["x"], y="y", seed=1>(x)',
        "Gradient has no attribute 'seed'",
    ),
    "dependent tensors": (
        "h = Exp(x) y = Mul(h, x)" + gradient(x="h, x", xs='"h"', zs='"x"'),
        "Gradient names 'h' in xs or zs together with 'x', from which it is computed",
    ),
    "integer y": ("y = Cast<to=7>(x)" + gradient(), "Gradient differentiates 'y', which is i64[3]"),
    "integer xs": (
        "i = Cast<to=7>(x) h = Cast<to=1>(i) y = Mul(h, w)" + gradient(x="i, w", xs='"i"'),
        "Gradient differentiates with respect to 'i', which is i64[3]",
    ),
    "a point of another dtype": (
        "p = Cast<to=11>(x)" + Y + gradient(x="p, w"),
        "Gradient gets 'p', a f64[3], as the value of 'x', a f32[3]",
    ),
    "a point of another rank": (
        "p = Reshape(x, k) k2 = Identity(k)" + Y + gradient(x="p, w"),
        "Gradient gets 'p', a f32[3,1], as the value of 'x', a f32[3]",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    nodes, words = REFUSED[name]
    m = make_model(f"g (float[3] x, float[3] w) => (float[3] d) <int64[2] k = {{3, 1}}> {{ {nodes} }}")
    found = problems(m)
    assert words in found[0], found


def test_refusals_are_told_at_once() -> None:
    nodes = Y + gradient(out="a", y="no") + gradient(out="b", xs='"no"') + gradient(out="c", x="x") + gradient()
    found = problems(model(nodes, "float[3] a, float[3] b, float[3] c, float[3] d"))
    assert len(found) == 3


def test_names_without_connection_are_independent() -> None:
    """h and x have an input in common, but neither is computed from the other alone."""
    nodes = "h = Mul(x, w) y = Mul(h, x)" + gradient(x="h, x", xs='"h"', zs='"x"')
    assert gradients(load(model(nodes)).program().step)


def test_hostile_names() -> None:
    names = ['x"); import os #', "a/b:0", "naïve 名", "w\n"]
    nodes = [
        helper.make_node("Mul", names[:2], [names[2]], "mul"),
        helper.make_node(
            "Gradient", names[:2], [names[3], ""], 'g"', domain="ai.onnx.preview.training", xs=names[:2], y=names[2]
        ),
    ]
    inputs = [helper.make_tensor_value_info(n, 1, [3]) for n in names[:2]]
    m = helper.make_model(
        helper.make_graph(nodes, "", inputs, [helper.make_tensor_value_info(names[3], 1, [3])]),
        opset_imports=[helper.make_opsetid("", 13), helper.make_opsetid("ai.onnx.preview.training", 1)],
    )
    m.ir_version = 10
    g = load(m).program().step
    assert list(g.outputs) == [names[3]]
    assert gradients(g)[0].inputs == (names[2], *names[:2], *names[:2])
