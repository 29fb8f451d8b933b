"""Definition of Attention: as ONNX's own, but its derivatives stay finite where rows are masked, wholly or not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np

from compiler.ir.builder import INTERNAL_OPS, Builder
from compiler.ir.definitions.checked import confined
from compiler.ir.definitions.fused_attention import without_scores
from compiler.ir.graph import Attr
from compiler.ir.infer import InferenceError
from compiler.ir.proto import default
from compiler.ir.types import TensorType, dtype_from_onnx, numpy_dtype, onnx_dtype

Attrs = Mapping[str, Attr]


def _cast(b: Builder, x: str, dtype: str) -> str:
    return x if b.type(x).dtype == dtype else b.op("Cast", x, to=onnx_dtype(dtype))


def _reshape(b: Builder, x: str, *shape: int) -> str:
    if b.shape(x) == shape:
        return x
    return b.op("Reshape", x, b.ints(shape), allowzero=1 if 0 in shape else None)


def _heads(b: Builder, x: str, count: Attr) -> str:
    """[batch, heads, n, size], also of [batch, n, heads size]."""
    if len(b.shape(x)) == 4:
        return x
    batch, n, width = b.shape(x)
    if not count or width % count:
        raise InferenceError(f"the last axis of {list(b.shape(x))} is not made of {count} heads")
    return b.op("Transpose", _reshape(b, x, batch, n, count, width // count), perm=(0, 2, 1, 3))


@dataclass(frozen=True)
class _Operands:
    """Queries, keys and values by heads, keys and values with the past before them; mask and numbers of valid keys.

    past: keys from before. flat: whether the heads are side by side in the model, [batch, n, heads size].
    """

    q: str
    k: str
    v: str
    given: str
    valid: str
    past: int
    flat: bool

    def result(self, b: Builder, y: str) -> str:
        """The result [batch, heads, queries, size] as the model wants it."""
        batch, heads, queries, size = b.shape(y)
        return _reshape(b, b.op("Transpose", y, perm=(0, 2, 1, 3)), batch, queries, heads * size) if self.flat else y


def _operands(b: Builder, inputs: Sequence[str], attrs: Attrs) -> _Operands:
    q, k, v, given, past_key, past_value, valid = (*inputs, "", "", "", "")[:7]
    flat = len(b.shape(q)) == 3
    q, k, v = (_heads(b, x, attrs.get(a)) for x, a in ((q, "q_num_heads"), (k, "kv_num_heads"), (v, "kv_num_heads")))
    past = 0
    if past_key:
        past = b.shape(past_key)[2]
        k, v = b.op("Concat", past_key, k, axis=2), b.op("Concat", past_value, v, axis=2)
    heads, groups = b.shape(q)[1], b.shape(k)[1]
    if not groups or heads % groups:
        raise InferenceError(f"{heads} heads of queries cannot share {groups} heads of keys")
    return _Operands(q, k, v, given, valid, past, flat)


def _scale(attrs: Attrs, size: int) -> float:
    return float(attrs.get("scale") or 1 / sqrt(size))


def _precision(attrs: Attrs, dtype: str) -> str:
    """The element type of the softmax, by default that of the queries."""
    code = attrs.get("softmax_precision", 0)
    return (dtype_from_onnx(code) if code else None) or dtype


@dataclass(frozen=True)
class _Mask:
    """Which keys a query sees, and what is added to their scores.

    allowed: booleans that broadcast to [batch, heads, queries, keys], '' for all. alive: which queries see any key at
    all, [.., queries, 1]; '' for all. added: '' for nothing.
    """

    allowed: str
    alive: str
    added: str


def _positions(b: Builder, queries: int, keys: int, past: int, valid: str, attrs: Attrs) -> str:
    """What is_causal, the windows and the numbers of valid keys [batch] (maybe '') allow; '' if all."""
    causal = bool(attrs.get("is_causal", 0))
    left, right = (int(attrs.get(f"{side}_window_size", -1)) for side in ("left", "right"))
    right = min(right, 0) if causal and right >= 0 else 0 if causal else right
    j, i = np.arange(keys), np.arange(queries)[:, None] + past
    if not valid:
        inside = np.ones((queries, keys), bool)
        inside &= (j <= i + right) if right >= 0 else True
        inside &= (j >= i - left) if left >= 0 else True
        return "" if inside.all() else b.const(inside)
    valid = confined(b, _cast(b, valid, "i64"), keys, "nonpad_kv_seqlen")
    count = _reshape(b, valid, -1, 1, 1, 1) if len(b.shape(valid)) == 1 else ""
    if not count:
        raise InferenceError("the numbers of valid keys are no list")
    allowed = b.op("Less", b.const(j), count)
    ahead = b.op("Sub", b.const(j - i), b.op("Sub", count, b.const(np.int64(queries))))  # how far in front of the query
    if right >= 0:
        allowed = b.op("And", allowed, b.op("LessOrEqual", ahead, b.const(np.int64(right))))
    if left >= 0:
        allowed = b.op("And", allowed, b.op("GreaterOrEqual", ahead, b.const(np.int64(-left))))
    return allowed


def _padded(b: Builder, mask: str, keys: int) -> str:
    """A mask that is too short hides the last keys."""
    *outer, n = b.shape(mask)
    if n >= keys or (n == 1 and keys == 1):
        return mask
    t = TensorType(b.type(mask).dtype, (*outer, keys - n))
    return b.op("Concat", mask, b.full(False if t.dtype == "bool" else -np.inf, t), axis=-1)


def _mask(b: Builder, given: str, positions: str, keys: int, dtype: str) -> _Mask:
    allowed, added = [positions] if positions else [], ""
    if given:
        if b.type(given).dtype != "bool":
            given = _cast(b, given, dtype)
        given = _padded(b, given, keys)
        if b.type(given).dtype == "bool":
            allowed.append(given)
        else:
            added = given
            allowed.append(b.op("Greater", given, b.scalar(-np.inf, given)))
    if not allowed:
        return _Mask("", "", "")
    both = allowed[0] if len(allowed) == 1 else b.op("And", *allowed)
    known = b.known(both)
    if known is not None and not added and bool(known.any(-1).all()):
        return _Mask(both, "", "")
    seen = b.op("ReduceMax", _cast(b, both, "u8"), b.ints([-1]), keepdims=1)
    return _Mask(both, _cast(b, seen, "bool"), added)


def attention(b: Builder, inputs: Sequence[str], attrs: Attrs) -> Sequence[str]:
    """Attention(q, k, v, mask?, past key?, past value?, valid keys?) -> y, present key, present value, scores.

    Groups of query heads that share a head of keys are rows of one matrix. A masked score is replaced, not added to:
    nothing is multiplied by infinity, and a query that sees no key gives zeros, with derivatives of zero.
    """
    o = _operands(b, inputs, attrs)
    (batch, heads, queries, size), (_, groups, keys, _) = b.shape(o.q), b.shape(o.k)
    rows = heads // groups * queries
    q, k, v, dtype = o.q, o.k, o.v, b.type(o.q).dtype

    scaled = b.op("Mul", q, b.scalar(_scale(attrs, size), q))
    raw = b.op("MatMul", _reshape(b, scaled, batch, groups, rows, size), b.op("Transpose", k, perm=(0, 1, 3, 2)))
    raw = scores = _reshape(b, raw, batch, heads, queries, keys)
    if cap := float(attrs.get("softcap", 0.0)):
        scores = b.op("Mul", b.op("Tanh", b.op("Div", raw, b.scalar(cap, raw))), b.scalar(cap, raw))
    capped = scores

    mask = _mask(b, o.given, _positions(b, queries, keys, o.past, o.valid, attrs), keys, dtype)
    scores = b.op("Add", scores, mask.added) if mask.added else scores
    hidden = b.scalar(-np.inf, scores)
    biased = b.op("Where", mask.allowed, scores, hidden) if mask.allowed else scores
    # a row of nothing but -inf would be NaN: of a query that sees no key all scores are 0, and its results are dropped
    logits = biased
    if mask.alive:
        fill = b.op("Where", mask.alive, hidden, b.scalar(0, scores))
        logits = b.op("Where", mask.allowed, scores, fill)
    shares = b.op("Softmax", _cast(b, logits, _precision(attrs, dtype)), axis=-1)
    if mask.alive:
        shares = b.op("Where", mask.alive, shares, b.scalar(0, shares))
    shares = _cast(b, shares, dtype)

    y = b.op("MatMul", _reshape(b, shares, batch, groups, rows, keys), _cast(b, v, dtype))
    y = o.result(b, _reshape(b, y, batch, heads, queries, b.shape(v)[3]))
    mode = attrs.get("qk_matmul_output_mode", default("Attention", "qk_matmul_output_mode"))
    return [y, k, v, (raw, capped, biased, shares)[mode]]


def fused(b: Builder, inputs: Sequence[str], attrs: Attrs) -> Sequence[str] | None:
    """The first three results of Attention by `onnxc.Attention`; None if that has no means for these attributes.

    The mask becomes a bias of 0 and -inf, of the mask's shape. Keys and values that heads share are repeated.
    """
    dtype = b.type(inputs[0]).dtype
    if attrs.get("softcap", 0.0) or _precision(attrs, dtype) != dtype or b.type(inputs[2]).dtype != dtype:
        return None
    o = _operands(b, inputs, attrs)
    (_, heads, queries, size), keys = b.shape(o.q), b.shape(o.k)[2]
    k, v = (_repeated(b, x, heads) for x in (o.k, o.v))
    mask = _mask(b, o.given, _positions(b, queries, keys, o.past, o.valid, attrs), keys, dtype)
    bias = ""
    if mask.allowed:
        known = b.known(mask.allowed)
        if known is not None and not mask.added:
            bias = b.const(np.where(known, 0, -np.inf).astype(numpy_dtype(dtype)))
        else:
            bias = b.op("Where", mask.allowed, mask.added or b.scalar(0, o.q), b.scalar(-np.inf, o.q))
    y = without_scores(b, o.q, k, v, bias, _scale(attrs, size), bool(mask.alive))
    return [o.result(b, y), o.k, o.v]


def _repeated(b: Builder, x: str, heads: int) -> str:
    """Heads of keys or values, each as often as heads of queries share it."""
    batch, groups, keys, size = b.shape(x)
    if groups == heads:
        return x
    each = b.op("Expand", _reshape(b, x, batch, groups, 1, keys, size), b.ints((1, 1, heads // groups, 1, 1)))
    return _reshape(b, each, batch, heads, keys, size)


INTERNAL_OPS["Attention"] = attention
