"""Matrix products and reductions."""

from __future__ import annotations

from collections.abc import Iterator

from compiler.ir.checks.base import NodeFacts, axes_of, bad_axes, broadcasts_to, precondition, shown, wrong_shape
from compiler.ir.equations import parse, sizes_of
from compiler.ir.infer import STATIC_OPERANDS
from compiler.ir.types import INTEGERS


@precondition("MatMul")
def _matmul(f: NodeFacts) -> Iterator[str]:
    a, b = f.shape(0), f.shape(1)
    if not a or not b:
        yield "a scalar is no matrix"
        return
    rows, columns = ((1, *a) if len(a) == 1 else a), ((*b, 1) if len(b) == 1 else b)
    if rows[-1] != columns[-2]:
        yield f"{rows[-1]} columns of {shown(a)} meet {columns[-2]} rows of {shown(b)}"
        return
    n = max(len(rows), len(columns)) - 2
    batches = list(
        zip([1] * (n + 2 - len(rows)) + list(rows[:-2]), [1] * (n + 2 - len(columns)) + list(columns[:-2]), strict=True)
    )
    if any(p != q and 1 not in (p, q) for p, q in batches):
        yield f"the batches of {shown(a)} and {shown(b)} cannot be broadcast"
        return
    ends = [*([rows[-2]] if len(a) > 1 else []), *([columns[-1]] if len(b) > 1 else [])]
    yield from wrong_shape(f, [*(q if p == 1 else p for p, q in batches), *ends])


@precondition("Gemm")
def _gemm(f: NodeFacts) -> Iterator[str]:
    a, b = f.shape(0), f.shape(1)
    if len(a) != 2 or len(b) != 2:
        yield f"{shown(a)} or {shown(b)} is no matrix"
        return
    m, k = reversed(a) if f.attr("transA") else a
    other, n = reversed(b) if f.attr("transB") else b
    if k != other:
        yield f"{k} columns meet {other} rows"
    if f.has(2) and not broadcasts_to(f.shape(2), (m, n)):
        yield f"C of shape {shown(f.shape(2))} cannot be broadcast to the product's [{m}, {n}]"
    yield from wrong_shape(f, [m, n])


_REDUCTIONS = tuple(op for op in STATIC_OPERANDS if op.startswith("Reduce"))


@precondition(*_REDUCTIONS)
def _reduce(f: NodeFacts) -> Iterator[str]:
    shape, axes = f.shape(0), f.ints(1) or []
    if problems := list(bad_axes(axes, len(shape))):
        yield from problems
        return
    if not axes and f.attr("noop_with_empty_axes"):
        yield from wrong_shape(f, shape)
        return
    gone = axes_of(axes, len(shape)) or list(range(len(shape)))
    if f.node.op == "ReduceMean" and f.type(0).dtype in INTEGERS and any(shape[a] == 0 for a in gone):
        yield "the mean of no integers is no integer"
    if f.attr("keepdims"):
        yield from wrong_shape(f, [1 if i in gone else d for i, d in enumerate(shape)])
    else:
        yield from wrong_shape(f, [d for i, d in enumerate(shape) if i not in gone])


@precondition("CumSum", "CumProd")
def _cumulate(f: NodeFacts) -> Iterator[str]:
    yield from bad_axes(f.ints(1) or [], len(f.shape(0)))


@precondition("Einsum")
def _einsum(f: NodeFacts) -> Iterator[str]:
    """An index stands for one size; onnx's inference takes the first it meets."""
    shapes = [f.shape(i) for i in range(len(f.ins))]
    try:
        equation = parse(f.attr("equation"), [len(s) for s in shapes])
        sizes = sizes_of(equation, shapes)
    except ValueError as e:
        yield str(e)
        return
    yield from wrong_shape(f, [sizes[i] for i in equation.output])
