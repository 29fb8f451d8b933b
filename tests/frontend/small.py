"""Small models in ONNX's text format, which has no training_info: that is added here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx
from onnx import helper, parser

GRADIENT = "ai.onnx.preview.training.Gradient"

LINEAR = "linear (float[N,3] x) => (float[N,1] y) <float[3,1] w = {1, 2, 3}> { y = MatMul(x, w) }"
"""Inference: y = x w."""

STEP = """step (float[N,1] t) => (float loss, float[3,1] w_next, int64 n_next)
<float rate = {0.1}, int64 n = {0}, int64 one = {1}>
{
  e = Sub(y, t)
  s = Mul(e, e)
  loss = ReduceMean<keepdims=0>(s)
  dw = ai.onnx.preview.training.Gradient<xs=["w"], zs=["x", "t"], y="loss">(w, x, t)
  d = Mul(rate, dw)
  w_next = Sub(w, d)
  n_next = Add(n, one)
}"""
"""An algorithm for it: one step of gradient descent, and a counter."""

UPDATES = {"w": "w_next", "n": "n_next"}

INITIALIZATION = """start () => (float[3,1] w0, int64 n0)
{
  w0 = RandomNormal<shape=[3,1]>()
  n0 = Constant<value_int=0>()
}"""
STARTS = {"w": "w0", "n": "n0"}


def training_info(
    algorithm: str,
    updates: Mapping[str, str] | Sequence[tuple[str, str]],
    initialization: str | None = None,
    starts: Mapping[str, str] | Sequence[tuple[str, str]] = (),
) -> onnx.TrainingInfoProto:
    pairs = [list(b.items()) if isinstance(b, Mapping) else list(b) for b in (updates, starts)]
    graph = parser.parse_graph(initialization) if initialization else None
    return helper.make_training_info(parser.parse_graph(algorithm), pairs[0], graph, pairs[1] or None)


def make_model(
    main: str, *infos: onnx.TrainingInfoProto, opset: int = 21, ir: int = 10, functions: str = ""
) -> onnx.ModelProto:
    """A model around a graph. functions: in text, each with its header."""
    header = f'<ir_version: {ir}, opset_import: ["": {opset}, "ai.onnx.preview.training": 1, "local": 1]>'
    model = parser.parse_model(f"{header}\n{main}\n{functions}")
    model.training_info.extend(infos)
    return model


def linear() -> onnx.ModelProto:
    """A correct training model."""
    return make_model(LINEAR, training_info(STEP, UPDATES, INITIALIZATION, STARTS))
