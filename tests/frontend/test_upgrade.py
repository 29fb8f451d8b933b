"""Upgraded nodes mean what they meant: onnxruntime runs the old file, onnx.reference the graph made of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper

from compiler.errors import UnsupportedError
from compiler.frontend import load
from compiler.ir.interpret import interpret
from compiler.ir.types import AnyArray
from compiler.ir.verify import verify
from tests.frontend.small import make_model, training_info
from tests.frontend.upgrade_cases import CASES, Case, X, p, x


def opsets(case: Case) -> list[int]:
    """Where the schema changes, and just before that."""
    schemas = onnx.defs.get_all_schemas_with_history()
    starts = sorted({s.since_version for s in schemas if s.name == case.op and not s.domain})
    return sorted({v for v in (*starts, case.first, case.last) if max(case.first, starts[0]) <= v <= case.last})


def model_of(case: Case, opset: int) -> tuple[onnx.ModelProto, dict[str, AnyArray]]:
    names = ["" if a is None else f"i{k}" for k, a in enumerate(case.inputs)]
    arrays = {n: np.asarray(a) for n, a in zip(names, case.inputs, strict=True) if a is not None}
    consts = [f"i{k}" for k in case.consts]
    outs = [f"o{k}" for k in range(case.outputs)]
    nodes = [helper.make_node(case.op, names, outs, "the node", **case.attrs)]
    if case.rank_unknown:  # a Reshape by a shape that inference does not follow
        nodes.insert(0, helper.make_node("Reshape", ["i0", "shape"], ["reshaped"]))
        nodes[1].input[0] = "reshaped"
        arrays["shape"] = np.array(arrays["i0"].shape, np.int64)
    graph = helper.make_graph(
        nodes,
        "one",
        [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for n, a in arrays.items()
            if n not in consts
        ],
        [onnx.ValueInfoProto(name=o) for o in outs],
        [numpy_helper.from_array(arrays[n], n) for n in consts],
    )
    feeds = {n: a for n, a in arrays.items() if n not in consts}
    ir = helper.find_min_ir_version_for([helper.make_opsetid("", opset)], ignore_unknown=True)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=max(ir, 4)), feeds


def old_result(model: onnx.ModelProto, feeds: dict[str, AnyArray]) -> list[AnyArray] | None:
    """What onnxruntime computes; None if it has no kernel for that."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    try:
        session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except ort.capi.onnxruntime_pybind11_state.NotImplemented:
        return None
    return list(session.run(None, feeds))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_meaning_survives(case: Case) -> None:
    compared = 0
    for opset in opsets(case):
        model, feeds = model_of(case, opset)
        expected = old_result(model, feeds) if case.expected is None else case.expected
        static = {"shape": feeds["shape"]} if "shape" in feeds else {}
        program = load(model).program(static=static)
        verify(program)
        values = interpret(program.step, {n: a for n, a in feeds.items() if n not in static})
        if expected is None:
            continue
        compared += 1
        for out, want in zip(program.step.outputs.values(), expected, strict=True):
            assert values[out].dtype == want.dtype, f"opset {opset}"
            np.testing.assert_allclose(values[out], want, 1e-4, 1e-5, err_msg=f"opset {opset}")
    assert compared


# --- what the table cannot show --------------------------------------------------------------------------
def one_node(op: str, inputs: dict[str, AnyArray], outputs: list[str], opset: int, **attrs: Any) -> onnx.ModelProto:
    graph = helper.make_graph(
        [helper.make_node(op, list(inputs), outputs, "the node", **attrs)],
        "one",
        [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for n, a in inputs.items()
        ],
        [onnx.ValueInfoProto(name=o) for o in outputs if o],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


@pytest.mark.parametrize("opset", [7, 8, 9, 13])
def test_batch_normalization_in_training(opset: int) -> None:
    """Below opset 14 its outputs say so: Y, running mean and variance, and those of the batch."""
    feeds = {"x": x(4, 3, 2), "scale": p(3), "b": x(3), "mean": x(3), "var": p(3)}
    model = one_node("BatchNormalization", feeds, ["y", "m", "v", "sm", "sv"], opset, momentum=0.75, epsilon=1e-3)
    step = load(model).program().step
    values = interpret(step, feeds)
    got = {k: values[v] for k, v in step.outputs.items()}
    mean, var = feeds["x"].mean((0, 2)), feeds["x"].var((0, 2))
    column = (slice(None), None)
    y = (feeds["x"] - mean[column]) / np.sqrt(var + 1e-3)[column] * feeds["scale"][column] + feeds["b"][column]
    want = {
        "y": y,
        "m": 0.75 * feeds["mean"] + 0.25 * mean,
        "v": 0.75 * feeds["var"] + 0.25 * var,
        "sm": mean,
        "sv": var,
    }
    for name, array in want.items():
        np.testing.assert_allclose(got[name], array, 1e-4, 1e-5, err_msg=name)
    step = load(one_node("BatchNormalization", feeds, ["y", "m", "v", "", ""], opset)).program().step
    assert [n.attr("training_mode") for n in step.nodes] == [1]


def test_what_cannot_be_upgraded_is_told_for_each_node() -> None:
    model = one_node("BatchNormalization", {"x": X, "s": x(3, 4, 5), "b": X, "m": X, "v": X}, ["y"], 8, spatial=0)
    model.graph.node.append(helper.make_node("BatchNormalization", list("xsbmv"), ["z"], "another", spatial=0))
    model.graph.node.append(helper.make_node("Upsample", ["x"], ["w"], "fine", scales=[1.0, 1.0, 2.0, 2.0]))
    with pytest.raises(UnsupportedError) as e:
        load(model)
    assert len(e.value.problems) == 2
    for problem, name in zip(e.value.problems, ("the node", "another"), strict=True):
        assert "BatchNormalization of opset 8 cannot be upgraded to opset 28" in problem.what
        assert problem.where == f"node {name!r}"


def test_nodes_in_branches_are_upgraded() -> None:
    model = make_model(
        """g (bool c, float[2,3] x) => (float[2,1] y) {
          y = If(c) <then_branch = a () => (float[2,1] p) { p = ReduceMean<axes=[1]>(x) },
            else_branch = b () => (float[2,1] q) { r = Clip<min=0.0>(x) s = Softmax<axis=0>(r)
              q = ReduceSum<axes=[-1]>(s) }>
        }""",
        opset=9,
    )
    step = load(model).program().step
    data = x(2, 3)
    e = np.exp(np.maximum(data, 0))
    for c, want in ((True, data.mean(1, keepdims=True)), (False, (e / e.sum()).sum(1, keepdims=True))):
        np.testing.assert_allclose(interpret(step, {"c": np.array(c), "x": data})["y"], want, 1e-5)


def test_a_training_model_of_an_old_opset() -> None:
    """Gradient and Adam pass through, and so do their names."""
    step = """s (int64[N] t) => (float loss, float[2,3] w_next, float[2,3] m_next, float[2,3] v_next)
    <float rate = {0.1}, int64 n = {1}, float[2,3] m = {0,0,0,0,0,0}, float[2,3] v = {0,0,0,0,0,0}>
    { loss = SoftmaxCrossEntropyLoss(y, t)
      g = ai.onnx.preview.training.Gradient<xs=["w"], zs=["x", "t"], y="loss">(w, x, t)
      h = Clip(g)
      w_next, m_next, v_next = ai.onnx.preview.training.Adam(rate, n, w, h, m, v) }"""
    main = "g (float[N,2] x) => (float[N,3] y) <float[2,3] w = {0,1,2,3,4,5}> { y = MatMul(x, w) }"
    info = training_info(step, {"w": "w_next", "m": "m_next", "v": "v_next"})
    old, new = (load(make_model(main, info, opset=opset)).program({"N": 2}).step for opset in (12, 26))
    assert old == new
    assert [n.op_type for n in old.nodes] == ["MatMul", "SoftmaxCrossEntropyLoss", "Gradient", "Clip", "Adam"]


def test_weights_do_not_pass_through_the_converter(monkeypatch: pytest.MonkeyPatch) -> None:
    largest = 0
    convert = onnx.version_converter.convert_version

    def observe(model: onnx.ModelProto, version: int) -> onnx.ModelProto:
        nonlocal largest
        largest = max(largest, model.ByteSize())
        return convert(model, version)

    monkeypatch.setattr(onnx.version_converter, "convert_version", observe)
    big = numpy_helper.from_array(x(1000, 1000), "w")
    model = one_node("Gemm", {"x": x(2, 1000), "w": x(1000, 1000), "b": x(1000)}, ["y"], 7)
    model.graph.initializer.append(big)
    load(model)
    assert 0 < largest < 2000
