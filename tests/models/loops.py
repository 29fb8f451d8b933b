"""A model with every kind of loop: a Scan backwards over columns, a Loop with a run-time end in an If, nested ones."""

from __future__ import annotations

import onnx
from onnx import parser

_TEXT = """<ir_version: 10, opset_import: ["": 21]>
loops (float[4,3] x, int64 n, int64[2] k)
   => (float[3] total, float[3,4] sums, float[3] grown, float[3] nested, float[2,3] rows)
{
  zero = Constant<value = float[3] {0.0, 0.0, 0.0}>()
  one = Constant<value_int = 1>()
  true = Constant<value = bool {1}>()
  transposed = Transpose(x)
  total, sums = Scan(zero, transposed) <
    num_scan_inputs = 1, scan_input_axes = [1], scan_input_directions = [1], scan_output_axes = [1],
    scan_output_directions = [1], body = add (float[3] s, float[3] e) => (float[3] t, float[3] r) {
      t = Add(s, e)
      r = Tanh(t)
  }>
  positive = Greater(n, one)
  grown = If(positive) <
    then_branch = grow () => (float[3] g) {
      g = Loop(n, true, total) <body = twice (int64 i, bool c, float[3] v) => (bool go, float[3] w) {
        w = Add(v, v)
        most = ReduceMax<keepdims=0>(w)
        limit = Constant<value = float {100.0}>()
        go = Less(most, limit)
      }>
    },
    else_branch = keep () => (float[3] h) { h = Neg(total) }
  >
  two = Constant<value_int = 2>()
  nested, rows = Loop(two, true, total) <
    body = outer (int64 i, bool c, float[3] v) => (bool go, float[3] w, float[3] picked) {
      go = Identity(c)
      w = Scan(v, x) <num_scan_inputs = 1, body = inner (float[3] a, float[3] e) => (float[3] b) {
        f = Mul(e, grown)
        b = Sub(f, a)
      }>
      at = Gather(k, i)
      picked = Gather(x, at)
    }
  >
}
"""


def loops() -> onnx.ModelProto:
    """Inputs: x, n decides how often a Loop runs, k: rows of x. Nothing is updated."""
    return parser.parse_model(_TEXT)
