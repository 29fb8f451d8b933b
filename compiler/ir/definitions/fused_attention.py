"""Attention as one op, and its gradient: what the passes make of products around a Softmax (see fuse_attention).

The definitions hold the matrix of scores; the kernels never do. They keep one number for each of its rows: the
logarithm of the sum of the exponentials, from which the backward pass finds the weights again (the method of Dao et
al., FlashAttention, 2022, arXiv:2205.14135).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from compiler.ir.bodies import internal
from compiler.ir.builder import Builder
from compiler.ir.graph import Attr
from compiler.ir.infer import InferenceError

Attrs = Mapping[str, Attr]


def _swapped(b: Builder, x: str) -> str:
    """The transpose of each matrix."""
    rank = len(b.shape(x))
    return b.op("Transpose", x, perm=(*range(rank - 2), rank - 1, rank - 2))


def _logits(b: Builder, q: str, k: str, v: str, bias: str, attrs: Attrs) -> str:
    """What the softmax is taken of, [.., T, S]. InferenceError: these operands do not go together."""
    shapes = [b.shape(x) for x in (q, k, v)]
    if min(map(len, shapes)) < 2 or len({s[:-2] for s in shapes}) > 1 or shapes[1][-2] != shapes[2][-2]:
        raise InferenceError(f"q, k, v of shapes {', '.join(str(list(s)) for s in shapes)} do not go together")
    if not shapes[1][-2]:
        raise InferenceError("there are no keys")
    product = b.op("MatMul", q, _swapped(b, k))
    scale = float(attrs.get("scale", 1.0))
    logits = b.op("Mul", product, b.scalar(scale, q)) if scale != 1 else product
    if bias:
        logits = b.op("Add", logits, bias)
        if b.type(logits) != b.type(product):
            raise InferenceError(f"a bias of shape {list(b.shape(bias))} for scores {list(b.shape(product))}")
    return logits


def without_scores(b: Builder, q: str, k: str, v: str, bias: str, scale: float, zeros: bool) -> str:
    """Result y of `onnxc.Attention`. bias: '' for none. A scale that float32 has not goes into q, if that is wider."""
    if b.type(q).dtype == "f64" and float(np.float32(scale)) != scale:
        q, scale = b.op("Mul", q, b.scalar(scale, q)), 1.0
    operands = [q, k, v, bias] if bias else [q, k, v]
    return b.op("onnxc.Attention", *operands, scale=scale if scale != 1 else None, zeros=1 if zeros else None)


@internal("Attention")
def attention(b: Builder, inputs: Sequence[str], attrs: Attrs) -> Sequence[str]:
    """(q [..,T,d], k [..,S,d], v [..,S,e], bias?) -> y [..,T,e] = Softmax(scale q k' + bias) v, lse [..,T].

    lse: the logarithm of the sum of the exponentials of each row. The bias broadcasts to [..,T,S]. Attributes: scale,
    by default 1; zeros: 1 if rows whose logits are all -inf give zeros (and an lse of inf), by default they give NaN,
    as those of Softmax do.
    """
    q, k, v, bias = (*inputs, "")[:4]
    logits, column, hidden = _logits(b, q, k, v, bias, attrs), b.ints([-1]), ""
    if attrs.get("zeros", 0):
        hidden = b.op("Equal", b.op("ReduceMax", logits, column, keepdims=1), b.scalar(-np.inf, q))
        logits = b.op("Where", hidden, b.scalar(0, q), logits)
    weights, lse = b.op("Softmax", logits, axis=-1), b.op("ReduceLogSumExp", logits, column, keepdims=1)
    if hidden:
        weights, lse = b.op("Where", hidden, b.scalar(0, q), weights), b.op("Where", hidden, b.scalar(np.inf, q), lse)
    return [b.op("MatMul", weights, v), b.op("Squeeze", lse, column)]


@internal("AttentionGrad")
def attention_grad(b: Builder, inputs: Sequence[str], attrs: Attrs) -> Sequence[str]:
    """(dy, q, k, v, bias or '', y, lse) -> gradients of q, k and v for `y, lse = onnxc.Attention(q, k, v, bias)`."""
    dy, q, k, v, bias, y, lse = inputs
    column, rows = b.ints([-1]), b.shape(q)[:-1]
    if (b.shape(dy), b.shape(y), b.shape(lse)) != (*((*rows, b.shape(v)[-1]),) * 2, rows):
        shapes = ", ".join(str(list(b.shape(x))) for x in (dy, y, lse))
        raise InferenceError(
            f"dy, y and lse of shapes {shapes} for queries {list(b.shape(q))}, values {list(b.shape(v))}"
        )
    weights = b.op("Exp", b.op("Sub", _logits(b, q, k, v, bias, attrs), b.op("Unsqueeze", lse, column)))
    by_weight = b.op("MatMul", dy, _swapped(b, v))
    mean = b.op("ReduceSum", b.op("Mul", dy, y), column, keepdims=1)  # of the row's derivatives, by weight
    by_logit = b.op("Mul", weights, b.op("Sub", by_weight, mean))
    scale = float(attrs.get("scale", 1.0))
    by_score = b.op("Mul", by_logit, b.scalar(scale, q)) if scale != 1 else by_logit
    dq, dk = b.op("MatMul", by_score, k), b.op("MatMul", _swapped(b, by_score), q)
    return [dq, dk, b.op("MatMul", _swapped(b, weights), dy)]
