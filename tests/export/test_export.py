"""Export to plain ONNX: names, bindings, nested graphs, functions, opsets; onnxruntime and onnx.reference run it."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from compiler.codegen.export import bindings, export
from compiler.codegen.export_opset import lowest_opset
from compiler.frontend import load
from compiler.ir.builder import GRADIENT, Builder
from compiler.ir.graph import Graph, Node, Origin
from compiler.ir.text import parse
from compiler.ir.types import TensorType
from tests.models import networks
from tests.validate import run

EVALUATORS = ["ort", "reference"]
F = TensorType("f32", (2,))
X = np.array([1.0, 2.0], np.float32)


def names(values: object) -> list[str]:
    return [v.name for v in values]  # type: ignore[attr-defined]


@pytest.mark.parametrize("evaluator", EVALUATORS)
def test_states_are_inputs_with_defaults_and_outputs(evaluator: str) -> None:
    b = Builder("swap")
    x = b.input("x", F)
    u, v, w = (b.state(n, np.full(2, i, np.float32)) for i, n in enumerate("uvw", 1))
    total = b.op("Add", u, x, name="w.next")
    b.output("shown", total)
    for state, value in ((u, v), (v, u), (w, total)):
        b.update(state, value)
    graph = b.build()
    model = export(graph)
    onnx.checker.check_model(model, full_check=True)
    assert names(model.graph.input) == ["x", "u", "v", "w"]
    assert names(model.graph.initializer) == ["u", "v", "w"]
    outputs, updates = bindings(model)
    assert outputs == {"shown": "shown"}
    assert updates == {"u": "u.next", "v": "v.next", "w": "shown"}
    found = run(graph, {"x": X}, evaluator=evaluator)
    np.testing.assert_array_equal(found["shown"], X + 1)
    np.testing.assert_array_equal(found.updates["u"], [2, 2])
    np.testing.assert_array_equal(found.updates["v"], [1, 1])
    again = run(graph, {"x": X}, found.updates, evaluator=evaluator)
    np.testing.assert_array_equal(again["shown"], X + 2)


@pytest.mark.parametrize("evaluator", EVALUATORS)
def test_names_that_clash(evaluator: str) -> None:
    """Outputs called like inputs, like other values, like states' next values; one value under two names."""
    b = Builder("clash")
    x = b.input("x", F)
    w = b.state("w", np.zeros(2, np.float32))
    b.input("w.next", F)
    y = b.op("Neg", x, name="y")
    z = b.op("Neg", y, name="z")
    for public, value in (("x", y), ("y", z), ("same", z), ("z", x), ("w", w)):
        b.output(public, value)
    b.update(w, x)
    graph = b.build()
    model = export(graph)
    onnx.checker.check_model(model, full_check=True)
    defined = [*names(model.graph.input), *(o for n in model.graph.node for o in n.output)]
    assert len(set(defined)) == len(defined)
    found = run(graph, {"x": X, "w.next": X}, evaluator=evaluator)
    expected = {"x": -X, "y": X, "same": X, "z": X, "w": 0 * X}
    assert list(found) == list(expected)
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)
    np.testing.assert_array_equal(found.updates["w"], X)


def test_odd_names() -> None:
    b = Builder('x"); import os #')
    x = b.input("a/b:0", F)
    b.output("größe \n", b.op("Relu", x, name='x"); import os #'))
    found = run(b.build(), {"a/b:0": X})
    np.testing.assert_array_equal(found["größe \n"], X)


NESTED = """
graph nested {
  input x: f32[2]
  input outer: bool[]
  input inner: bool[]
  const k: f32[] = 3.0
  y: f32[2] = Mul(x, k)
  z: f32[2], copy: f32[2] = If(outer) capture(y, inner) {
    then_branch=graph yes {
      capture a: f32[2]
      capture i: bool[]
      const k: f32[2] = [10.0, 20.0]
      x: f32[2] = Add(a, k)
      r: f32[2] = If(i) capture(x, a) {
        then_branch=graph yes {
          capture x: f32[2]
          capture a: f32[2]
          y: f32[2] = Sub(x, a)
          output y = y
        },
        else_branch=graph no {
          capture x: f32[2]
          capture a: f32[2]
          output a = a
        }
      }
      output r = r
      output again = r
    },
    else_branch=graph no {
      capture a: f32[2]
      capture i: bool[]
      const r: f32[2] = [5.0, 6.0]
      output a = a
      output r = r
    }
  }
  output z = z
  output copy = copy
}
"""


@pytest.mark.parametrize("evaluator", EVALUATORS)
def test_nested_graphs(evaluator: str) -> None:
    """Inner names hide nothing: captures are outer names, the rest is renamed."""
    graph = parse(NESTED)
    model = export(graph)
    onnx.checker.check_model(model, full_check=True)
    for outer, inner, z, copy in (
        (True, True, [10, 20], [10, 20]),
        (True, False, [3, 6], [3, 6]),
        (False, False, [3, 6], [5, 6]),
    ):
        found = run(graph, {"x": X, "outer": np.array(outer), "inner": np.array(inner)}, evaluator=evaluator)
        np.testing.assert_array_equal(found["z"], z)
        np.testing.assert_array_equal(found["copy"], copy)


def test_functions_are_shared_and_ordered() -> None:
    """One function for each distinct use, callees first; absent operands are left out."""
    b = Builder("functions")
    seed, step = b.state("seed", np.array(1, np.int64)), b.state("step", np.array(2, np.int64))
    for draw in (0, 1):
        b.output(f"a{draw}", b.add("onnxc.RandomBits", [seed, step], {"draw": draw, "shape": (4,)}, 2)[0])
    rate = b.input("rate", TensorType("f32"))
    for i in range(2):
        x, g = b.input(f"x{i}", F), b.input(f"g{i}", F)
        b.output(f"s{i}", b.op("onnxc.SgdStep", rate, "", "", "", x, g))
    model = export(b.build())
    onnx.checker.check_model(model)
    assert [f.name for f in model.functions].count("SgdStep") == 1
    defined: set[str] = set()
    for f in model.functions:
        assert all(n.op_type in defined for n in f.node if n.domain == "onnxc")
        defined.add(f.name)
    (call, _) = [n for n in model.graph.node if n.op_type == "SgdStep"]
    assert list(call.input) == ["rate", "x0", "g0"]


def test_provenance() -> None:
    b = Builder()
    (y,) = b.add("Relu", [b.input("x", F)], outputs=["y"], origin=Origin("layer", "some rule"))
    b.output("y", y)
    (node,) = export(b.build()).graph.node
    assert node.name == "y"
    assert {p.key: p.value for p in node.metadata_props} == {"onnxc.node": "layer", "onnxc.rule": "some rule"}


def test_gradient_nodes_get_the_standard_form() -> None:
    b = Builder()
    x, w, other = (b.input(n, F) for n in ("x", "w", "other"))
    y = b.op("Mul", x, w, name="y")
    b.output("loss", y)
    b.output("d", b.add(GRADIENT, [y, w, x, w, other], {"xs": 1, "zs": 1}, ["d"])[0])
    model = export(b.build())
    node = model.graph.node[1]
    attrs = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    assert (node.domain, node.op_type) == ("ai.onnx.preview.training", "Gradient")
    assert attrs == {"y": b"y", "xs": [b"w"], "zs": [b"x"]}
    assert list(node.input) == ["w", "other"]
    read = load(model).program().step
    assert [n.op for n in read.nodes][:2] == ["Mul", GRADIENT]


def exported_training_model_reads_again() -> Graph:
    return load(export(load(networks.tiny()).program({"N": 2}).step)).program().step


def test_what_was_imported_reads_again() -> None:
    """The import stage as ONNX is an ordinary model with Gradient nodes."""
    assert any(n.op == GRADIENT for n in exported_training_model_reads_again().nodes)


@pytest.mark.parametrize(
    ("op", "types", "attrs", "opset"),
    [
        ("Relu", [F], {}, 6),
        ("Relu", [TensorType("i32", (2,))], {}, 14),
        ("Relu", [TensorType("bf16", (2,))], {}, 13),
        ("Add", [F, F], {}, 7),
        ("Add", [TensorType("u8"), TensorType("u8")], {}, 14),
        ("BitShift", [TensorType("u32"), TensorType("u32")], {"direction": "LEFT"}, 11),
        ("BitShift", [TensorType("i32"), TensorType("i32")], {"direction": "LEFT"}, 28),
        ("Cast", [F], {"to": TensorProto.DOUBLE}, 13),
        ("Softmax", [F], {}, 13),
        ("Transpose", [F], {"perm": (0,)}, 1),
        ("ReduceSum", [F, TensorType("i64", (1,))], {}, 13),
        ("MaxPool", [TensorType("f32", (1, 1, 4, 4))], {"kernel_shape": (2, 2)}, 12),
        ("MaxPool", [TensorType("f32", (1, 1, 4, 4))], {"kernel_shape": (2, 2), "ceil_mode": 1}, 22),
    ],
)
def test_lowest_opset(op: str, types: list[TensorType], attrs: dict[str, object], opset: int) -> None:
    node = Node(op, tuple(f"i{i}" for i in range(len(types))), ("o",), attrs)
    out = TensorType("f64", types[0].shape) if op == "Cast" else types[0]
    # the version may be lower only if the operator's text is the same there
    assert lowest_opset(node, types, [out]) == opset
