"""Malformed nodes of linear algebra, signal processing, attention and quantization: each must be refused, and why."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from compiler.errors import VerifyError
from compiler.ir.verify import verify
from tests.ir.malformed import F, i64
from tests.ir.test_malformed import graph_of

Q, K = "f32[2,3,4,8]", "f32[2,3,6,8]"
PACKED = ["f32[2,4,24]", "f32[2,6,24]", "f32[2,6,24]"]
HEADS = {"q_num_heads": 3, "kv_num_heads": 3}
LINEAR = {"q_num_heads": 2, "kv_num_heads": 2}
ONE_U8, ONE_F = np.uint8(0), F(0.5)

CORPUS: dict[str, list[tuple[Any, ...]]] = {
    # op: (operands, attributes, what the message says[, number of outputs])
    "Einsum": [
        (["f32[2,3]", "f32[3]"], {"equation": "ij->i"}, "does not match the operands"),
        (["f32[2,3]"], {"equation": "ijk->i"}, "does not match the equation indices (3)"),
        (["f32[2,3]"], {"equation": "i->i"}, "does not match the equation indices (1)"),
        (["f32[2,3]"], {"equation": "i,->i"}, "does not match"),
        (["f32[2,3]"], {"equation": "ij->ik"}, "label missing from the inputs"),
        (["f32[2,3]"], {"equation": "ij->ii"}, "repeats an index"),
        (["f32[2,3]"], {"equation": "i1->i"}, "malformed"),
        (["f32[2,3]"], {"equation": "i...j...->i"}, "malformed"),
        (["f32[2,3]", "f32[4,3]"], {"equation": "...j,...j->..."}, "the ellipsis stands for 2 and for 4"),
    ],
    "Det": [(["f32[3]"], {}, "rank"), (["f32[2,3,4]"], {}, "mismatch")],
    "DFT": [
        (["f32[2,8,3]"], {}, "1 (real) or 2 (complex)"),
        (["f32[2,8,1]", None, np.array(2)], {}, "axis attribute value 2 is invalid"),
        (["f32[2,8,1]", None, np.array(-4)], {}, "axis"),
        (["f32[2,8,1]", np.array(0)], {}, "0 elements"),
        (["f32[2,8,1]", np.array([4, 4])], {}, "must be a scalar"),
        (["f32[2,8,2]"], {"onesided": 1}, "one-sided DFT requires real input"),
        (["f32[2,8,1]", "i64[]"], {}, "run-time values: 'in1'"),
    ],
    "STFT": [
        (["f32[2,16]", np.array(4), None, np.array(8)], {}, "[batch, length, 1 or 2]"),
        (["f32[2,16,1]", np.array(0), None, np.array(8)], {}, "every 0"),
        (["f32[2,16,1]", np.array(4), None, np.array(17)], {}, "frames of 17"),
        (["f32[2,16,1]", np.array(4), "f32[9]", np.array(8)], {}, "must match the frame_length"),
        (["f32[2,16,2]", np.array(4), None, np.array(8)], {}, "onesided is for real signals"),
    ],
    "HannWindow": [(["i64[]"], {}, "run-time values"), ([np.array(-1)], {}, "must be greater than 0")],
    "MelWeightMatrix": [
        ([np.array(4), np.array(16), np.array(8000), F(0), F(5000)], {}, "half the sample rate"),
        ([np.array(4), np.array(16), np.array(8000), F(300), F(200)], {}, "not in order"),
    ],
    "Attention": [
        ([Q, K, "f32[2,6,24]"], {}, "Attention"),
        ([*PACKED], {}, "q_num_heads"),
        ([*PACKED], {"q_num_heads": 5, "kv_num_heads": 3}, "do not divide"),
        ([Q, "f32[2,2,6,8]", "f32[2,2,6,8]"], {}, "do not fit each other"),
        ([Q, K, "f32[2,3,5,8]"], {}, "do not fit each other"),
        ([Q, "f32[2,3,6,7]", K], {}, "do not fit each other"),
        ([Q, K, K, "f32[4,7]"], {}, "mask [4, 7]"),
        ([Q, K, K, "f32[5,6]"], {}, "mask [5, 6]"),
        ([Q, K, K, None, "f32[2,3,2,8]"], {}, "provided together", 3),
        ([Q, K, K, None, "f32[2,3,2,8]", "f32[2,3,5,8]"], {}, "past_value has the shape", 3),
        ([Q, K, K, None, None, None, "i64[3]"], {}, "nonpad_kv_seqlen has the shape [3]"),
        ([Q, K, K, None, None, None, np.array([6, 7])], {}, "from 6 to 7 is not within 6 keys"),
        ([Q, K, K], {"left_window_size": -2}, "-1 or nonnegative"),
        ([Q, K, K], {"softcap": -1.0}, "softcap not negative"),
        ([Q, K, K], {"qk_matmul_output_mode": 4}, "not one of 0, 1, 2, 3"),
        ([Q, K, K], {"is_causal": 2}, "not 0 or 1"),
    ],
    "RotaryEmbedding": [
        (["f32[2,4,24]", "f32[2,4,4]", "f32[2,4,4]"], {}, "num_heads"),
        (["f32[2,3,4,8]", "f32[2,4,3]", "f32[2,4,4]"], {}, "cos_cache"),
        (["f32[2,3,4,8]", "f32[9,4]", "f32[9,4]", "i64[2,5]"], {}, "position_ids has the shape"),
        (["f32[2,3,4,8]", "f32[9,4]", "f32[9,4]", np.full((2, 4), 9)], {}, "within the 9 rows"),
        (["f32[2,3,4,8]", "f32[2,4,4]", "f32[2,4,4]"], {"rotary_embedding_dim": 5}, "pairs"),
    ],
    "CausalConvWithState": [
        (["f32[2,3,8]", "f32[4,1,2]"], {}, "mismatch", 2),
        (["f32[2,3,8]", "f32[3,1,2]", "f32[4]"], {}, "mismatch", 2),
        (["f32[2,3,8]", "f32[3,1,3]", None, "f32[2,3,3]"], {}, "mismatch", 2),
        (["f32[2,3,8]", "f32[3,1,3]"], {"activation": "relu"}, "unsupported activation", 2),
    ],
    "LinearAttention": [
        (["f32[2,4,8]", "f32[2,5,8]", "f32[2,4,8]"], {**LINEAR, "update_rule": "linear"}, "mismatch", 2),
        (["f32[2,4,8]", "f32[2,4,8]", "f32[2,4,7]"], {**LINEAR, "update_rule": "linear"}, "divisible by", 2),
        (["f32[2,4,8]", "f32[2,4,8]", "f32[2,4,8]"], {**LINEAR, "update_rule": "gated"}, "requires decay", 2),
        (["f32[2,4,8]", "f32[2,4,8]", "f32[2,4,8]"], {**LINEAR, "update_rule": "other"}, "must be one of", 2),
    ],
    "TensorScatter": [
        (["f32[2,3,4]", "f32[2,3,1]"], {"axis": 0}, "axis 0 is out of range"),
        (["f32[2,3,4]", "f32[2,4,4]"], {}, "does not fit into axis 1"),
        (["f32[2,3,4]", "f32[2,1,4]", "i64[3]"], {}, "mismatch"),
        (["f32[2,3,4]", "f32[2,2,4]", i64(0, 2)], {}, "outside of 3"),
        (["f32[2,3,4]", "f32[2,2,4]"], {"mode": "ring"}, "not one of linear"),
    ],
    "Compress": [
        (["f32[2,3]", "bool[2]"], {"axis": 0}, "run-time values: 'in1'"),
        (["f32[2,3]", np.array([True])], {"axis": 2}, "axis"),
        (["f32[2,3]", np.array([[True]])], {"axis": 0}, "rank 1"),
    ],
    "NonZero": [(["f32[2,3]"], {}, "run-time values: 'in0'")],
    "Unique": [(["f32[2,3]"], {}, "run-time values: 'in0'"), ([np.eye(2)], {"axis": 2}, "axis")],
    "BitCast": [(["f32[2]"], {"to": 11}, "bit"), (["f32[2]"], {"to": 8}, "")],
    "QuantizeLinear": [
        (["f32[2,3]", "f32[2]", "u8[3]"], {"axis": 0}, "differ in shape"),
        (["f32[2,3]", "f32[2]"], {}, "does not fit axis 1"),
        (["f32[2,3]", "f32[2,3]"], {"block_size": 2}, "with blocks of 2"),
        (["f32[2,3]", "f32[3]"], {"axis": 2}, "axis 2"),
    ],
    "ConvInteger": [
        (["u8[1,2,4,4]", "u8[3,1,2,2]"], {}, "channels"),
        (["u8[1,2,4,4]", "u8[3,2,5,5]"], {}, ""),
        (["u8[1,2,4,4]", "u8[3,2,2,2]", "u8[2]"], {}, "one element"),
        (["u8[1,2,4,4]", "u8[3,2,2,2]", None, "u8[2]"], {}, "one element or 3"),
    ],
    "MatMulInteger": [
        (["u8[2,3]", "u8[4,5]"], {}, ""),
        (["u8[2,3]", "u8[3,5]", "u8[3]"], {}, "the rows"),
        (["u8[2,3]", "u8[3,5]", None, "u8[2]"], {}, "the columns"),
    ],
    "QLinearMatMul": [
        (["u8[2,3]", ONE_F, ONE_U8, "u8[3,5]", "f32[2]", "u8[2]", ONE_F, ONE_U8], {}, "the columns"),
        (["u8[2,3]", ONE_F, ONE_U8, "u8[3,5]", "f32[5]", ONE_U8, ONE_F, ONE_U8], {}, "differ in shape"),
    ],
    "QLinearConv": [
        (["u8[1,2,4]", ONE_F, ONE_U8, "u8[3,2,2]", "f32[2]", "u8[2]", ONE_F, ONE_U8], {}, "one element or 3"),
        (["u8[1,2,4]", "f32[2]", ONE_U8, "u8[3,2,2]", ONE_F, ONE_U8, ONE_F, ONE_U8], {}, "one element"),
        (["u8[1,2,4]", ONE_F, ONE_U8, "u8[3,1,2]", ONE_F, ONE_U8, ONE_F, ONE_U8], {}, "channels"),
        (["u8[1,2,4]", ONE_F, ONE_U8, "u8[3,2,2]", ONE_F, ONE_U8, ONE_F, ONE_U8, "i32[2]"], {}, "bias"),
    ],
}


@pytest.mark.parametrize(("op", "case"), [(op, i) for op, cases in CORPUS.items() for i in range(len(cases))])
def test_malformed(op: str, case: int) -> None:
    operands, attrs, message, *outputs = CORPUS[op][case]
    graph, _accepted = graph_of(op, operands, attrs, *outputs)
    with pytest.raises(VerifyError) as e:
        verify(graph)
    problems = e.value.problems
    assert any(message in p.what for p in problems), [p.what for p in problems]
    assert all(p.where and op in p.what for p in problems)
