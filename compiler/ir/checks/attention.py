"""Attention and its relatives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from compiler.ir.checks.base import NodeFacts, axes_of, broadcasts_to, precondition, shown, wrong_shape


def _heads(f: NodeFacts, i: int, name: str) -> list[int] | None:
    """[batch, heads, n, size] of operand i; None if its last axis is not made of that many heads."""
    shape = list(f.shape(i))
    if len(shape) == 4:
        return shape
    count = f.attr(name)
    if not count or count < 1 or shape[2] % count:
        return None
    return [shape[0], count, shape[1], shape[2] // count]


def _expected(f: NodeFacts, i: int, what: str, shape: Sequence[int]) -> Iterator[str]:
    if f.has(i) and f.shape(i) != tuple(shape):
        yield f"{what} has the shape {shown(f.shape(i))}, where {shown(shape)} is expected"


@precondition("Attention")
def _attention(f: NodeFacts) -> Iterator[str]:
    ranks = {len(f.shape(i)) for i in range(3)}
    if ranks not in ({3}, {4}):
        yield f"q, k and v have the shapes {', '.join(shown(f.shape(i)) for i in range(3))}: all must have 3 axes, or 4"
        return
    q, k, v = (_heads(f, i, name) for i, name in enumerate(("q_num_heads", "kv_num_heads", "kv_num_heads")))
    if q is None or k is None or v is None:
        counts = f"q_num_heads {f.attr('q_num_heads')} and kv_num_heads {f.attr('kv_num_heads')}"
        yield f"{counts} do not divide the last axes"
        return
    past = f.shape(4)[2] if f.has(4) and len(f.shape(4)) == 4 else 0
    if f.has(4) != f.has(5):
        yield "past_key and past_value come together"
        return
    if f.has(6) and f.has(4):
        yield "nonpad_kv_seqlen is for a cache outside of the node, past_key for one inside"
    if not 0 < k[1] <= q[1] or q[1] % k[1] or k[:3] != v[:3] or q[0] != k[0] or q[3] != k[3]:
        yield f"queries {shown(q)}, keys {shown(k)} and values {shown(v)} do not fit each other"
        return
    yield from _expected(f, 4, "past_key", [k[0], k[1], past, k[3]])
    yield from _expected(f, 5, "past_value", [v[0], v[1], past, v[3]])
    yield from _expected(f, 6, "nonpad_kv_seqlen", [q[0]])
    total = past + k[2]
    valid = f.ints(6)
    if valid and not 0 <= min(valid) <= max(valid) <= total:
        yield f"nonpad_kv_seqlen from {min(valid)} to {max(valid)} is not within {total} keys"
    if f.has(3):
        mask = f.shape(3)
        if not mask or mask[-1] > total or not broadcasts_to(mask[:-1], q[:3]):
            yield f"the mask {shown(mask)} cannot be broadcast to {shown([*q[:3], total])}"
    for side in ("left", "right"):
        if f.attr(f"{side}_window_size") < -1:
            yield f"{side}_window_size is {f.attr(f'{side}_window_size')}, where -1 (unbounded) is the least"
    if q[3] == 0 or f.attr("scale") == 0 or (f.attr("scale") or 1) < 0 or f.attr("softcap") < 0:
        yield "the scale must be positive, softcap not negative, and the heads not empty"
    y = [q[0], q[1], q[2], v[3]] if ranks == {4} else [q[0], q[2], q[1] * v[3]]
    yield from wrong_shape(f, y)
    for i, shape in ((1, [*k[:2], total, k[3]]), (2, [*v[:2], total, v[3]]), (3, [*q[:3], total])):
        yield from wrong_shape(f, shape, i)


@precondition("RotaryEmbedding")
def _rotary_embedding(f: NodeFacts) -> Iterator[str]:
    x = f.shape(0)
    heads = _heads(f, 0, "num_heads") if len(x) in (3, 4) else None
    if heads is None:
        yield f"{shown(x)} with num_heads {f.attr('num_heads')} is not [batch, heads, n, size], nor these packed"
        return
    batch, _, n, size = heads
    turned = f.attr("rotary_embedding_dim") or size
    if not 0 < turned <= size or turned % 2:
        yield f"{turned} of the {size} elements of a head cannot be rotated: that takes pairs"
        return
    for i, name in ((1, "cos_cache"), (2, "sin_cache")):
        if f.has(3):
            fits = len(f.shape(i)) == 2 and f.shape(i)[1] == turned // 2
        else:
            fits = f.shape(i) == (batch, n, turned // 2)
        if not fits:
            yield f"the {name} {shown(f.shape(i))} does not fit {n} positions of {turned // 2} pairs"
    yield from _expected(f, 3, "position_ids", [batch, n])
    positions, rows = f.known(3), f.shape(1)[0]
    if f.has(3) and f.shape(1) != f.shape(2):
        yield f"the caches {shown(f.shape(1))} and {shown(f.shape(2))} differ in shape"
    if positions is not None and positions.size and not 0 <= int(positions.min()) <= int(positions.max()) < rows:
        yield f"position_ids are not within the {rows} rows of the caches"


@precondition("CausalConvWithState")
def _causal_conv(f: NodeFacts) -> Iterator[str]:
    x, w = f.shape(0), f.shape(1)
    if len(x) != 3 or len(w) != 3 or w[0] != x[1] or w[1] != 1 or w[2] < 1:
        yield f"weights {shown(w)} do not fit the input {shown(x)}: [channels, 1, k] and [batch, channels, n]"
        return
    yield from _expected(f, 2, "the bias", [x[1]])
    yield from _expected(f, 3, "the past state", [x[0], x[1], w[2] - 1])
    yield from wrong_shape(f, x)
    yield from wrong_shape(f, [x[0], x[1], w[2] - 1], 1)


@precondition("LinearAttention")
def _linear_attention(f: NodeFacts) -> Iterator[str]:
    q, k, v = (f.shape(i) for i in range(3))
    queries, heads = f.attr("q_num_heads") or 0, f.attr("kv_num_heads") or 0
    if not len(q) == len(k) == len(v) == 3 or q[:2] != k[:2] or q[:2] != v[:2]:
        yield f"queries {shown(q)}, keys {shown(k)} and values {shown(v)} are not [batch, n, ..] with equal batch and n"
        return
    if queries < 1 or heads < 1 or q[2] % queries or k[2] % heads or v[2] % heads or queries % heads:
        yield f"{queries} heads of queries, {heads} of keys do not divide {shown(q)}, {shown(k)} and {shown(v)}"
        return
    size, width = k[2] // heads, v[2] // heads
    if q[2] // queries != size:
        yield f"the heads of queries have {q[2] // queries} elements, those of keys {size}"
    yield from _expected(f, 3, "the past state", [q[0], heads, size, width])
    rule = f.attr("update_rule")
    for i, name, rules, widths in (
        (4, "decay", ("gated", "gated_delta"), (heads * size, heads)),
        (5, "beta", ("delta", "gated_delta"), (heads, 1)),
    ):
        if f.has(i) and (f.shape(i)[:2] != q[:2] or len(f.shape(i)) != 3 or f.shape(i)[2] not in widths):
            yield f"{name} has the shape {shown(f.shape(i))}, where {shown([*q[:2], widths[0]])} is expected"
        if rule in rules and not f.has(i):
            yield f"the update rule {rule!r} needs {name}"
    yield from wrong_shape(f, [*q[:2], queries * width])
    yield from wrong_shape(f, [q[0], heads, size, width], 1)


@precondition("TensorScatter")
def _tensor_scatter(f: NodeFacts) -> Iterator[str]:
    past, update, rank = f.shape(0), f.shape(1), len(f.shape(0))
    axis = axes_of([f.attr("axis")], rank)[0]
    if not 1 <= axis < rank:
        yield f"axis {f.attr('axis')} of {shown(past)} is the batch, or no axis"
        return
    fits = len(update) == rank and all(a == b for d, (a, b) in enumerate(zip(past, update, strict=True)) if d != axis)
    if not fits or update[axis] > past[axis]:
        yield f"the update {shown(update)} does not fit into axis {axis} of the cache {shown(past)}"
        return
    yield from _expected(f, 2, "write_indices", [past[0]])
    starts = f.known(2)
    if starts is not None and starts.size and f.shape(2) == (past[0],):
        low, high = int(starts.min()), int(starts.max())
        if low < 0 or (f.attr("mode") == "linear" and high + update[axis] > past[axis]):
            yield f"write_indices from {low} to {high} put {update[axis]} elements outside of {past[axis]}"
    yield from wrong_shape(f, past)
