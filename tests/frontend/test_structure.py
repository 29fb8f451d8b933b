"""Names, order, imports and operators: what is wrong is told at once, what is merely strange works."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from compiler.errors import CompileError, ModelError
from compiler.frontend import check, load
from compiler.ir.interpret import interpret
from tests.frontend.small import make_model


def model(nodes: list[onnx.NodeProto], **more: object) -> onnx.ModelProto:
    """x f32[2] -> y, through these nodes."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])],
        [numpy_helper.from_array(np.ones(2, np.float32), "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10, **more)


def node(op: str, inputs: list[str], outputs: list[str], name: str = "", **attrs: object) -> onnx.NodeProto:
    return helper.make_node(op, inputs, outputs, name or outputs[0], **attrs)


def problems(m: onnx.ModelProto) -> list[str]:
    with pytest.raises(CompileError) as e:
        load(m).program()
    return [str(p) for p in e.value.problems]


Y = node("Add", ["x", "w"], ["y"])

ENDLESS = helper.make_graph(
    [],
    "b",
    [
        helper.make_tensor_value_info("i", TensorProto.INT64, []),
        helper.make_tensor_value_info("c", TensorProto.BOOL, []),
    ],
    [],
)

BAD: dict[str, tuple[list[onnx.NodeProto], str]] = {
    "a dangling input": (
        [node("Add", ["x", "z"], ["y"])],
        "'z' is read, but nothing defines it, in node 'y'",
    ),
    "wrong order": (
        [node("Neg", ["h"], ["y"]), node("Neg", ["x"], ["h"])],
        "'h' is read before a later node computes it, in node 'y'",
    ),
    "a cycle": (
        [node("Add", ["x", "b"], ["a"]), node("Neg", ["a"], ["b"]), node("Neg", ["a"], ["y"])],
        "'b' is read before a later node",
    ),
    "a node that reads itself": (
        [node("Add", ["x", "y"], ["y"])],
        "the node reads its own output 'y'",
    ),
    "a name defined by two nodes": (
        [Y, node("Neg", ["x"], ["y"], "again")],
        "the name 'y' is defined twice: as an output of node 'y'",
    ),
    "a name defined twice by one node": (
        [node("Split", ["x"], ["y", "y"], num_outputs=2)],
        "the name 'y' is defined twice",
    ),
    "an output called like an input": (
        [Y, node("Neg", ["w"], ["x"])],
        "the name 'x' is defined twice: as an input and",
    ),
    "an output called like an initializer": (
        [Y, node("Neg", ["x"], ["w"])],
        "the name 'w' is defined twice: as an initializer and",
    ),
    "an output that nothing computes": ([node("Neg", ["x"], ["z"])], "nothing computes the output 'y'"),
    "an unknown operator": (
        [node("Frobnicate", ["x"], ["y"])],
        "there is no operator 'Frobnicate' in ai.onnx version 21",
    ),
    "an unknown domain": (
        [node("Gelu", ["x"], ["y"], domain="com.microsoft")],
        "Gelu is of domain 'com.microsoft', which is not imported",
    ),
    "an operator of a later opset": ([node("Swish", ["x"], ["y"])], "import a newer opset"),
    "a sequence": (
        [Y, node("SequenceConstruct", ["x"], ["s"])],
        "operator SequenceConstruct computes no numeric tensor",
    ),
    "a loop without a condition": (
        [Y, node("Loop", ["", ""], ["z"], body=ENDLESS)],
        "the body of Loop has 0 outputs, but needs at least 1, in node 'z'",
    ),
    "a wrong shape": ([node("Add", ["x", "w3"], ["y"])], "'w3'"),
    "an unknown attribute": ([node("Neg", ["x"], ["y"], speed=2)], "Neg has no attribute 'speed'"),
    "too many inputs": ([node("Neg", ["x", "w"], ["y"])], "node 'y'"),
    "a missing attribute": ([node("Concat", ["x", "w"], ["y"])], "node 'y'"),
    "a string constant": ([Y, node("Constant", [], ["c"], value_string="a")], "node 'c'"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad(name: str) -> None:
    nodes, words = BAD[name]
    found = problems(model(nodes))
    assert len(found) == 1, found
    assert words in found[0]
    assert [str(p) for p in check(model(nodes))] == found


def test_all_problems_at_once() -> None:
    nodes = [
        node("Add", ["x", "missing"], ["a"]),
        node("Nonsense", ["x"], ["b"]),
        node("Neg", ["a"], ["a"], "again"),
        node("Relu", ["missing"], ["c"]),  # not told again
        node("Abs", ["gone"], ["d"]),
    ]
    found = problems(model(nodes))
    assert len(found) == 5
    for words in (
        "'missing'",
        "'Nonsense'",
        "defined twice",
        "'gone'",
        "nothing computes the output 'y'",
    ):
        assert sum(words in f for f in found) == 1, words


def test_nodes_behind_a_failed_one_are_not_reported() -> None:
    nodes = [
        node("Reshape", ["x", "w"], ["a"]),  # a shape must be int64
        node("Neg", ["a"], ["b"]),
        node("Concat", ["x", "w"], ["c"], axis=5),
        node("Add", ["b", "c"], ["y"]),
    ]
    found = problems(model(nodes))
    assert len(found) == 2
    assert "node 'a'" in found[0]
    assert "node 'c'" in found[1]


def test_unknown_operators_and_bad_nodes_are_checked_together() -> None:
    nodes = [
        node("Gelu", ["x"], ["a"], domain="com.microsoft"),
        node("Fused", ["a"], ["b"], domain="com.microsoft"),
        node("Concat", ["x", "w"], ["c"], axis=5),
        node("Add", ["b", "c"], ["y"]),
    ]
    m = model(nodes)
    m.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    found = [str(p) for p in check(m)]
    assert len(found) == 3
    assert (
        "operator Gelu of domain 'com.microsoft' is not known, in node 'a', define it as a model-local function"
        in found[0]
    )
    assert "node 'c'" in found[2]
    with pytest.raises(ModelError) as e:
        load(m)
    assert [str(p) for p in e.value.problems] == found


def test_graph_level_names() -> None:
    m = model([Y])
    m.graph.input.append(m.graph.input[0])
    m.graph.initializer.append(m.graph.initializer[0])
    m.graph.output.append(m.graph.output[0])
    m.graph.output.append(onnx.ValueInfoProto(name=""))
    m.graph.input.append(onnx.ValueInfoProto(name="untyped"))
    m.graph.input.append(helper.make_tensor_value_info("", TensorProto.FLOAT, [1]))
    found = problems(m)
    for words in (
        "the name 'x' is defined twice: as an input and as an input",
        "the name 'w' is defined twice: as an initializer and as an initializer",
        "2 outputs are called 'y'",
        "an output has no name",
        "input 'untyped' has no type",
        "input 3 has no name",
    ):
        assert sum(words in f for f in found) == 1, words
    assert len(found) == 6


@pytest.mark.parametrize(
    ("info", "words"),
    [
        (helper.make_tensor_value_info("i", TensorProto.STRING, [1]), "elements of type STRING"),
        (helper.make_tensor_value_info("i", TensorProto.FLOAT, None), "no shape, so its rank is unknown"),
        (helper.make_tensor_value_info("i", TensorProto.FLOAT, [-1]), "a negative dim"),
        (helper.make_tensor_sequence_value_info("i", TensorProto.FLOAT, [1]), "is a sequence, not a tensor"),
        (helper.make_sparse_tensor_value_info("i", TensorProto.FLOAT, [1]), "is a sparse_tensor, not a tensor"),
        (helper.make_tensor_value_info("i", TensorProto.UNDEFINED, [1]), "has no element type"),
    ],
)
def test_inputs(info: onnx.ValueInfoProto, words: str) -> None:
    m = model([Y])
    m.graph.input.append(info)
    (found,) = problems(m)
    assert words in found


def test_imports() -> None:
    m = model([Y])
    m.opset_import.append(helper.make_opsetid("ai.onnx", 20))
    assert "ai.onnx is imported as version 21 and 20" in problems(m)[0]
    m.opset_import[1].version = 21
    load(m)
    m = model([Y])
    del m.opset_import[:]
    assert "Add is of domain 'ai.onnx', which is not imported" in problems(m)[0]
    m.opset_import.append(helper.make_opsetid("ai.onnx", 21))
    load(m)


def test_declared_output_dtype_is_checked() -> None:
    m = model([Y])
    m.graph.output[0].type.tensor_type.elem_type = TensorProto.DOUBLE
    assert "output 'y' is declared f64, but is f32[2]" in problems(m)[0]
    m = model([Y])
    m.graph.output[0].type.tensor_type.shape.dim[0].dim_value = 17  # stale shapes are common
    assert load(m).program().step.type("y").shape == (2,)


HOSTILE = ['x"); import os #', "a/b:0", "naïve 名前 \u202e", "new\nline", " ", "__class__", "0", "x" * 500]


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names(name: str) -> None:
    """As names of an input, a weight, nodes, values and an output."""
    m = model([node("Add", [name, name + "w"], [name + "h"], name), node("Neg", [name + "h"], [name + "y"], name)])
    m.graph.name = name
    m.graph.input[0].name = name
    m.graph.initializer[0].name = name + "w"
    m.graph.output[0].name = name + "y"
    m.graph.input[0].type.tensor_type.shape.dim[0].dim_param = name
    assert not check(m)
    source = load(m)
    assert source.symbols == (name,)
    program = source.program({name: 2})
    x = np.array([1, 2], np.float32)
    values = interpret(program.step, {name: x})
    np.testing.assert_array_equal(values[program.step.outputs[name + "y"]], -(x + 1))


def test_old_opset_with_names_that_the_converter_makes() -> None:
    """onnx.version_converter calls its constants _v_4 and so on."""
    m = make_model(
        """g (float[2,3] x) => (float[2] y) {
          _v_4 = Neg(x)
          _v_6 = Unsqueeze<axes=[0]>(_v_4)
          _v_5 = Squeeze<axes=[0]>(_v_6)
          y = ReduceSum<axes=[0], keepdims=0>(_v_5)
        }""",
        opset=9,
    )
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    step = load(m).program().step
    np.testing.assert_array_equal(interpret(step, {"x": x})[step.outputs["y"]], -x.sum(0))


def test_nested_names() -> None:
    m = make_model(
        """g (bool c, float[2] x) => (float[2] y) {
          y = If(c) <then_branch = a () => (float[2] p) { p = Neg(z) },
            else_branch = b () => (float[2] q) { r = Neg(x) }>
        }"""
    )
    found = problems(m)
    assert len(found) == 2
    assert "'z' is read, but nothing defines it, in node 'p' of a graph of node 'y'" in found[0]
    assert "nothing computes the output 'q', in a graph of node 'y'" in found[1]


def test_both_branches_may_use_one_name_and_hide_an_outer_one() -> None:
    m = make_model(
        """g (bool c, float[2] x) => (float[2] y) {
          h = Neg(x)
          y = If(c) <then_branch = a () => (float[2] p) { p = Abs(x) },
            else_branch = b () => (float[2] p) { p = Neg(h) }>
        }"""
    )
    step = load(m).program().step
    x = np.array([1, -2], np.float32)
    np.testing.assert_array_equal(interpret(step, {"x": x, "c": np.array(True)})["y"], [1, 2])
    np.testing.assert_array_equal(interpret(step, {"x": x, "c": np.array(False)})["y"], x)


# --- functions -------------------------------------------------------------------------------------------
TWICE = """<domain: "local", opset_import: ["": 21]>
twice <k: float = 2.0, other: float = 1.0> (a, b) => (r)
{
  k = Constant<value_float: float = @k>()
  s = Mul(a, k)
  r = Add(s, b)
}"""


def test_functions_are_inlined() -> None:
    m = make_model(
        "g (float[2] x, float[2] k) => (float[2] y) { s = local.twice(x, k) y = local.twice<k=3.0>(s, k) }",
        functions=TWICE,
    )
    step = load(m).program().step
    assert [n.op for n in step.nodes] == ["Mul", "Add", "Mul", "Add"]
    x, k = np.array([1, 2], np.float32), np.array([5, 7], np.float32)
    np.testing.assert_array_equal(interpret(step, {"x": x, "k": k})["y"], (2 * x + k) * 3 + k)
    assert step.nodes[0].origin.node == "s/s"


def test_functions_in_functions_and_in_branches() -> None:
    functions = (
        TWICE
        + """
<domain: "local", opset_import: ["": 21, "local": 1]>
pick (c, a) => (r)
{
  r = If(c) <then_branch = t () => (u) { u = local.twice<k=4.0>(a, a) },
    else_branch = e () => (u) { v = Neg(a) u = local.twice(v, a) }>
}"""
    )
    m = make_model("g (bool c, float[2] u) => (float[2] y) { v = Neg(u) y = local.pick(c, v) }", functions=functions)
    step = load(m).program().step
    u = np.array([1, 2], np.float32)
    np.testing.assert_array_equal(interpret(step, {"u": u, "c": np.array(True)})["y"], -5 * u)
    np.testing.assert_array_equal(interpret(step, {"u": u, "c": np.array(False)})["y"], u)


def test_a_function_of_another_opset() -> None:
    functions = """<domain: "local", opset_import: ["": 12]>
normal (a) => (r) { m = ReduceMean<axes=[1]>(a) s = Softmax<axis=1>(a) r = Sub(s, m) }"""
    for opset in (9, 17, 23):
        m = make_model(
            "g (float[2,3,4] x) => (float[2,3,4] y) { y = local.normal(x) }", functions=functions, opset=opset
        )
        step = load(m).program().step
        x = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)
        e = np.exp(x - x.max((1, 2), keepdims=True))
        want = e / e.sum((1, 2), keepdims=True) - x.mean(1, keepdims=True)
        np.testing.assert_allclose(interpret(step, {"x": x})[step.outputs["y"]], want, 1e-5, 1e-6)


def test_optional_inputs_and_outputs_of_functions() -> None:
    functions = """<domain: "local", opset_import: ["": 21]>
limit (a, lo, hi) => (r, low) { r = Clip(a, lo, hi) low = Identity(a) }"""
    m = make_model("g (float[2] x, float hi) => (float[2] y) { y = local.limit(x, , hi) }", functions=functions)
    step = load(m).program().step
    values = interpret(step, {"x": np.array([1, 5], np.float32), "hi": np.array(3, np.float32)})
    np.testing.assert_array_equal(values["y"], [1, 3])


def test_a_function_that_returns_its_input() -> None:
    functions = """<domain: "local", opset_import: ["": 21]> same (a) => (a) { b = Neg(a) }"""
    m = make_model("g (float[2] x) => (float[2] y) { y = local.same(x) }", functions=functions)
    step = load(m).program().step
    x = np.array([1, 5], np.float32)
    np.testing.assert_array_equal(interpret(step, {"x": x})["y"], x)


def test_bad_functions() -> None:
    functions = """
<domain: "local", opset_import: ["": 21, "local": 1]> a (x) => (y) { y = local.b(x) }
<domain: "local", opset_import: ["": 21, "local": 1]> b (x) => (y) { y = local.a(x) }
<domain: "local", opset_import: ["": 21]> c (x) => (y) { z = Neg(w) }
<domain: "local", opset_import: ["": 99]> d (x) => (y) { y = Nonsense(x) }
<domain: "local", opset_import: ["": 21]> e (x) => (y) { y = ai.onnx.preview.training.Gradient<xs=["q"], y="y">(x) }"""
    m = make_model("g (float[2] x) => (float[2] y) { y = local.a(x) }", functions=functions)
    found = "\n".join(problems(m))
    for words in (
        "the function calls itself, in function 'a'",
        "the function calls itself, in function 'b'",
        "'w' is read, but nothing defines it, in node 'z' of function 'c'",
        "nothing computes the output 'y', in function 'c'",
        "ai.onnx version 99 is not known",
        "there is no operator 'Nonsense'",
        "Gradient names the tensor 'q' in xs, which does not exist here, in node 'y' of function 'e'",
        "Gradient is of domain 'ai.onnx.preview.training', which is not imported",
    ):
        assert words in found, words


def test_a_malformed_model_is_a_model_error() -> None:
    with pytest.raises(ModelError):
        load(model([Y, Y]))
