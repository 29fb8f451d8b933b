"""The training graph as one plain model: names and groups, onnx.checker, and the same numbers as the step itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import compiler
from compiler.codegen.export import bindings
from compiler.frontend.training_graph import as_training_model
from tests.frontend.small import LINEAR, STEP, UPDATES, linear, make_model, training_info
from tests.models import mlp, tiny
from tests.test_models import example
from tests.validate import compare, run_model

DOMAIN = "ai.onnx.preview.training"


def checked(model: onnx.ModelProto) -> onnx.ModelProto:
    """A model that onnx takes in all its checks, with distinct names of nodes."""
    assert not model.training_info
    onnx.checker.check_model(model, full_check=True)
    onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
    names = node_names(model)
    assert all(names)
    assert len(set(names)) == len(names)
    return model


def node_names(model: onnx.ModelProto) -> list[str]:
    return [n.name for n in model.graph.node]


def groups(model: onnx.ModelProto) -> dict[str, str]:
    """Value -> the group of the node that computes it."""
    return {v: n.name.partition("/")[0] for n in model.graph.node for v in n.output}


def convolution() -> onnx.ModelProto:
    """Inference with BatchNormalization, so that the algorithm has a copy of a part of it."""
    text = """<ir_version: 8, opset_import: ["": 17]>
    net (float[N,1,4,4] x) => (float[N,3] p)
    <float[2] scale = {1, 1}, float[2] bias = {0, 0}, float[2] mean = {0, 0}, float[2] var = {1, 1}>
    {
      c = Conv(x, k)
      n = BatchNormalization(c, scale, bias, mean, var)
      r = Relu(n)
      f = Flatten(r)
      logits = Gemm<transB = 1>(f, d)
      p = Softmax(logits)
    }"""
    model = onnx.parser.parse_model(text)
    rng = np.random.default_rng(0)
    for name, shape in {"k": (2, 1, 3, 3), "d": (3, 8)}.items():
        model.graph.initializer.append(numpy_helper.from_array(rng.normal(size=shape).astype(np.float32), name))
    for i, node in enumerate(model.graph.node):
        node.name = f"/net/{node.op_type}_{i}"
    return compiler.make_training_model(model, optimizer="sgd", momentum=0.9, average=0.5, clip_norm=1.0)


def branches() -> onnx.ModelProto:
    """Functions, a nested graph that reads outer values, and a Gradient before the node of its y."""
    main = """
    net (float[2] x) => (float[2] y) <float[2] w = {1, 2}, bool yes = {1}> {
      h = local.twice(w)
      y = If(yes) <
        then_branch = a () => (float[2] ya) { ya = Mul(h, x) },
        else_branch = b () => (float[2] yb) { yb = Neg(h) }
      >
    }"""
    algorithm = """
    step () => (float loss, float[2] w_next) {
      g = ai.onnx.preview.training.Gradient<xs=["w"], y="loss">(w)
      loss = ReduceSum<keepdims=0>(y)
      w_next = Sub(w, g)
    }"""
    function = """<domain: "local", opset_import: ["": 21]> twice (a) => (b) { b = Add(a, a) }"""
    return make_model(main, training_info(algorithm, {"w": "w_next"}), functions=function)


def clashing() -> onnx.ModelProto:
    """Two algorithms with the same names inside: one on w, then one that reads the new w, and an output bound to v."""
    main = """net (float[2] x) => (float[2] y, float[2] u) <float[2] w = {1, 2}, float[2] v = {3, 4}> {
      y = Mul(w, x)
      u = Add(v, x)
    }"""

    def algorithm(name: str, variable: str, rate: float, n: int, one: int, body: str) -> str:
        return f"""{name} (float[2] t) => (float loss, float[2] next, int64 n_next)
        <float rate = {{{rate}}}, int64 n = {{{n}}}, int64 one = {{{one}}}> {{
          {body}
          r = Mul(rate, d)
          next = Sub({variable}, r)
          n_next = Add(n, one)
        }}"""

    on_w = """
      e = Sub(y, t)
      s = Mul(e, e)
      loss = ReduceSum<keepdims=0>(s)
      d = ai.onnx.preview.training.Gradient<xs=["w"], y="loss">(w)"""
    on_v = """
      e = Mul(y, v)
      s = Mul(e, t)
      loss = ReduceSum<keepdims=0>(s)
      dw, dx = ai.onnx.preview.training.Gradient<xs=["v", "x"], y="loss">(v, x)
      d = Add(dw, dx)"""
    first = algorithm("first", "w", 0.1, 0, 1, on_w)
    second = algorithm("second", "v", 0.5, 7, 2, on_v)
    third = "third () => (float[2] again) { again = Neg(u) }"
    return make_model(
        main,
        training_info(first, {"w": "next", "n": "n_next"}),
        training_info(second, {"v": "next", "n": "n_next"}),
        training_info(third, {"w": "y"}),
    )


MODELS: dict[str, tuple[Callable[[], onnx.ModelProto], dict[str, int]]] = {
    "linear": (linear, {"N": 2}),
    "tiny": (tiny, {"N": 3}),
    "mlp": (mlp, {"N": 3}),
    "digits": (lambda: example("digits").build(), {"N": 2}),
    "gan": (lambda: example("gan").build(), {"N": 2}),
    "convolution": (convolution, {"N": 3}),
    "branches": (branches, {}),
    "clashing": (clashing, {}),
}


def feeds(model: onnx.ModelProto, dims: dict[str, int]) -> dict[str, Any]:
    """Inputs of a step: numbers for floats, class numbers for integers."""
    rng = np.random.default_rng(3)
    given = {t.name for t in model.graph.initializer}
    result: dict[str, Any] = {}
    for v in model.graph.input:
        if v.name not in given:
            t = v.type.tensor_type
            shape = [dims[d.dim_param] if d.dim_param else d.dim_value for d in t.shape.dim]
            drawn = rng.normal(size=shape) if t.elem_type == TensorProto.FLOAT else rng.integers(0, 3, shape)
            result[v.name] = np.asarray(drawn, helper.tensor_dtype_to_np_dtype(t.elem_type))
    return result


@pytest.mark.parametrize("name", MODELS)
def test_it_is_the_step(name: str) -> None:
    """Checked by onnx, as it is and expanded; stock onnxruntime computes with it what the lowered step computes."""
    make, dims = MODELS[name]
    model = make()
    plain = checked(compiler.training_graph(model))
    expanded = checked(compiler.training_graph(model, until="expand_gradients", dims=dims))
    assert {v.name for v in plain.graph.output} >= {*bindings(plain)[0].values(), *bindings(plain)[1].values()}
    assert {n.op_type for n in plain.graph.node} >= {"Gradient"}
    assert not {n.op_type for n in expanded.graph.node} & {"Gradient"}
    lowered = compiler.lower(model, "expand_gradients", dims=dims)
    arrays = feeds(plain, dims)
    found, wanted = (run_model(m, arrays) for m in (expanded, lowered))
    compare(wanted, found, rtol=1e-6)
    assert found.updates.keys() == wanted.updates.keys()
    compare(wanted.updates, {v: found.updates[v] for v in wanted.updates}, rtol=1e-6)


@pytest.mark.parametrize("name", MODELS)
def test_a_training_model_again(name: str) -> None:
    """With its updates as bindings it is a training model, of which nothing is wrong."""
    make, dims = MODELS[name]
    assert compiler.check(as_training_model(compiler.training_graph(make())), dims=dims) == ()


# --- groups ----------------------------------------------------------------------------------------------------------
def test_groups_of_a_model_written_by_hand() -> None:
    plain = compiler.training_graph(linear())
    assert node_names(plain) == [
        "forward/y", "loss/e", "loss/s", "loss/loss", "gradient/dw", "optimizer/d", "optimizer/w_next",
        "optimizer/n_next",
    ]  # fmt: skip
    assert bindings(plain) == ({"y": "y", "loss": "loss"}, UPDATES)
    expanded = compiler.training_graph(linear(), until="expand_gradients", dims={"N": 2})
    found = node_names(expanded)
    assert found[:4] == ["forward/y", "loss/e", "loss/s", "loss/loss"]
    assert found[-3:] == ["optimizer/d", "optimizer/w_next", "optimizer/n_next"]
    assert "gradient/y/Gemm" in found
    assert all(v.startswith("gradient/") for v in found[4:-3])


def test_groups_of_a_made_model() -> None:
    plain = compiler.training_graph(convolution())
    group = groups(plain)
    assert group["c"] == "forward"  # both read it
    assert group["n"] == group["logits"] == group["p"] == "inference"
    assert group["loss"] == "loss"
    assert group["k.gradient"] == group["gradient_norm"] == "gradient"
    assert group["k.next"] == "optimizer"
    assert group["k.average.next"] == "average"
    assert "forward/net/Conv_0" in node_names(plain)
    copies = [n for n in plain.graph.node if n.op_type == "BatchNormalization"]
    assert [n.name.partition("/")[0] for n in copies] == ["inference", "forward"]
    expanded = compiler.training_graph(convolution(), until="expand_gradients", dims={"N": 3})
    assert any(v.startswith("gradient/net/Conv_0/") for v in node_names(expanded))
    assert {v.partition("/")[0] for v in node_names(expanded)} <= {*group.values(), "step"}


def test_a_metric_and_a_penalty_belong_to_the_loss() -> None:
    algorithm = """step (float[N,1] t) => (float total, float[3,1] w_next, float worst) <float rate = {0.1}> {
      e = Sub(y, t)
      s = Mul(e, e)
      loss = ReduceMean<keepdims=0>(s)
      dx = ai.onnx.preview.training.Gradient<xs=["x"], zs=["w"], y="loss">(x, w)
      size = ReduceSumSquare<keepdims=0>(dx)
      total = Add(loss, size)
      dw = ai.onnx.preview.training.Gradient<xs=["w"], y="total">(w)
      d = Mul(rate, dw)
      w_next = Sub(w, d)
      a = Abs(e)
      worst = ReduceMax<keepdims=0>(a)
    }"""
    plain = checked(compiler.training_graph(make_model(LINEAR, training_info(algorithm, {"w": "w_next"}))))
    group = groups(plain)
    assert group["dx"] == group["dw"] == "gradient"
    assert {group[v] for v in ("size", "total", "a", "worst")} == {"loss"}
    assert group["d"] == group["w_next"] == "optimizer"
    types = {v.name: v.type.tensor_type for v in plain.graph.value_info}
    assert [d.dim_param or d.dim_value for d in types["dx"].shape.dim] == ["N", 3]
    assert [d.dim_value for d in types["dw"].shape.dim] == [3, 1]


# --- several algorithms ----------------------------------------------------------------------------------------------
def test_later_algorithms_read_new_values() -> None:
    plain = checked(compiler.training_graph(clashing()))
    outputs, updates = bindings(plain)
    assert list(outputs) == list(outputs.values()) == ["y", "u", "first/loss", "second/loss", "again"]
    assert updates == {"w": "third/y", "n": "first/n_next", "v": "second/next", "second/n": "second/n_next"}
    producer = {v: n for n in plain.graph.node for v in n.output}
    assert list(producer["second/w"].input) == ["first/next"]
    assert list(producer["second/y"].input) == ["second/w", "x"]
    assert producer["second/y"].name == "forward/second/y"
    assert producer["second/loss"].name == "loss/second/loss"
    gradient = next(n for n in plain.graph.node if n.name == "gradient/second/dw")
    named = {a.name: [s.decode() for s in (*a.strings, a.s) if s] for a in gradient.attribute}
    assert named == {"xs": ["v", "x"], "zs": ["second/w"], "y": ["second/loss"]}
    assert list(gradient.input) == ["v", "x", "second/w"]
    assert {t.name for t in plain.graph.initializer} >= {"n", "second/n", "first/rate", "second/rate"}
    assert [v.name for v in plain.graph.input] == ["x", "t"]


def test_one_of_several_algorithms() -> None:
    plain = checked(compiler.training_graph(clashing(), 1))
    assert bindings(plain) == ({"y": "y", "u": "u", "loss": "loss"}, {"v": "next", "second/n": "n_next"})
    assert "loss/loss" in node_names(plain)
    with pytest.raises(compiler.InputError, match="there is no algorithm 3: the model has 3"):
        compiler.training_graph(clashing(), 3)


# --- what it is made from --------------------------------------------------------------------------------------------
def test_names_of_nodes_may_be_missing_or_there_twice() -> None:
    model = linear()
    for node in model.training_info[0].algorithm.node:
        node.name = "node" if node.op_type == "Mul" else ""
    names = node_names(checked(compiler.training_graph(model)))
    assert names[1:4] == ["loss/e", "loss/node", "loss/loss"]
    assert names[5] == "optimizer/node"
    model.graph.node[0].name = model.training_info[0].algorithm.node[0].name = "loss/node"
    assert node_names(checked(compiler.training_graph(model)))[:3] == ["forward/loss/node", "loss/node", "loss/node_2"]


def test_the_domain_of_others_and_undeclared_types() -> None:
    """pytorch-pfn-extras writes Gradient in the domain ai.onnx.preview."""
    model = linear()
    algorithm = model.training_info[0].algorithm
    for node in algorithm.node:
        if node.op_type == "Gradient":
            node.domain = "ai.onnx.preview"
    model.opset_import[1].domain = "ai.onnx.preview"
    del algorithm.value_info[:]
    plain = checked(compiler.training_graph(model))
    assert {n.domain for n in plain.graph.node if n.op_type == "Gradient"} == {DOMAIN}


def test_weights_in_other_files_come_along(tmp_path: Path) -> None:
    model = linear()
    algorithm = model.training_info[0].algorithm
    (tmp_path / "weights").write_bytes(b"".join(np.float32(v).tobytes() for v in (4, 5, 6, 0.25)))
    places = [(model.graph.initializer[0], 0, 12), (algorithm.initializer[0], 12, 4)]
    for t, offset, length in places:
        for field in ("raw_data", "float_data"):
            t.ClearField(field)
        t.data_location = TensorProto.EXTERNAL
        for key, value in {"location": "weights", "offset": offset, "length": length}.items():
            t.external_data.add(key=key, value=str(value))
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    plain = checked(compiler.training_graph(path))
    values = {t.name: numpy_helper.to_array(t) for t in plain.graph.initializer}
    assert values["w"].tolist() == [[4], [5], [6]]
    assert values["rate"] == 0.25
    assert model.training_info, "the model that was given stays as it is"


def test_what_is_refused() -> None:
    with pytest.raises(compiler.InputError, match="the model has no training_info, and so no training graph"):
        compiler.training_graph(make_model(LINEAR))
    with pytest.raises(compiler.InputError, match="dims is of no use without a pass"):
        compiler.training_graph(linear(), dims={"N": 2})
    with pytest.raises(compiler.InputError, match="there is no pass 'expand_gradient'"):
        compiler.training_graph(linear(), until="expand_gradient", dims={"N": 2})
    with pytest.raises(compiler.NeedsDims):
        compiler.training_graph(linear(), until="expand_gradients")
    with pytest.raises(compiler.ModelError, match="'nope'"):
        compiler.training_graph(make_model(LINEAR, training_info(STEP, {"w": "nope"})))


def test_onnxruntime_runs_the_expanded_graph_as_it_is() -> None:
    """With nothing of onnxc around it: the default values of the variables are the weights."""
    model = compiler.training_graph(linear(), until="expand_gradients", dims={"N": 2})
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    x, t = np.eye(2, 3, dtype=np.float32), np.zeros((2, 1), np.float32)
    loss, w_next = session.run(["loss", "w_next"], {"x": x, "t": t})
    assert loss == 2.5
    np.testing.assert_allclose(np.asarray(w_next), [[0.9], [1.8], [3]], rtol=1e-6)
