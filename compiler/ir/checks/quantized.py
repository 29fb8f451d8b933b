"""Products of quantized tensors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from compiler.ir.checks.base import PRECONDITIONS, NodeFacts, precondition, shown
from compiler.ir.graph import Node


def _convolution(f: NodeFacts, operands: Sequence[int]) -> Iterator[str]:
    """What Conv demands of the operands at these positions: x, w and maybe the bias."""
    present = [i for i in operands if f.has(i)]
    node = Node("Conv", tuple(f.node.inputs[i] for i in present), f.node.outputs, f.node.attrs)
    conv = replace(f, node=node, ins=tuple(f.type(i) for i in present))
    for rule in PRECONDITIONS["Conv"]:
        yield from rule(conv)


def _single(f: NodeFacts, operands: Sequence[int]) -> Iterator[str]:
    for i in operands:
        if f.has(i) and (f.type(i).size != 1 or len(f.shape(i)) > 1):
            yield f"operand {i} must have one element, but has the type {f.type(i)}"


def _of_channels(f: NodeFacts, operands: Sequence[int], channels: int) -> Iterator[str]:
    for i in operands:
        if f.has(i) and (len(f.shape(i)) > 1 or f.type(i).size not in (1, channels)):
            yield f"operand {i} has the type {f.type(i)}, where one element or {channels} are expected"


@precondition("ConvInteger")
def _conv_integer(f: NodeFacts) -> Iterator[str]:
    if len(f.shape(1)) < 3:
        yield f"the weights {shown(f.shape(1))} have no spatial axis"
        return
    yield from _convolution(f, (0, 1))
    yield from _single(f, (2,))
    yield from _of_channels(f, (3,), f.shape(1)[0])


@precondition("QLinearConv")
def _qlinear_conv(f: NodeFacts) -> Iterator[str]:
    if len(f.shape(3)) < 3:
        yield f"the weights {shown(f.shape(3))} have no spatial axis"
        return
    yield from _convolution(f, (0, 3, 8))
    yield from _single(f, (1, 2, 6, 7))
    yield from _of_channels(f, (4, 5), f.shape(3)[0])


def _fits(f: NodeFacts, i: int, matrix: tuple[int, ...], rows: bool) -> Iterator[str]:
    """A scale or zero point: one element, one a row (column), or of the matrix's shape but for the other axis."""
    shape, n = f.shape(i), matrix[-2 if rows and len(matrix) > 1 else -1]
    whole = (*matrix[:-1], 1) if rows else (*matrix[:-2], 1, matrix[-1])
    if f.type(i).size != 1 and shape not in ((n,), whole):
        side = "rows" if rows else "columns"
        yield f"operand {i} has the shape {shown(shape)}, where one element or {n}, the {side}, are expected"


@precondition("MatMulInteger")
def _matmul_integer(f: NodeFacts) -> Iterator[str]:
    problems = [p for rule in PRECONDITIONS["MatMul"] for p in rule(f)]
    yield from problems
    if not problems:
        for i, matrix, rows in ((2, 0, True), (3, 1, False)):
            if f.has(i):
                yield from _fits(f, i, f.shape(matrix), rows)


@precondition("QLinearMatMul")
def _qlinear_matmul(f: NodeFacts) -> Iterator[str]:
    product = replace(f, ins=(f.ins[0], f.ins[3]))
    problems = [p for rule in PRECONDITIONS["MatMul"] for p in rule(product)]
    yield from problems
    if not problems:
        result = f.out() or ()
        for i, matrix, rows in ((1, f.shape(0), True), (4, f.shape(3), False), (6, result, True)):
            if f.shape(i) != f.shape(i + 1):
                yield f"operands {i} and {i + 1}, a scale and its zero point, differ in shape"
            if matrix:
                yield from _fits(f, i, matrix, rows)
            elif f.type(i).size != 1:
                yield f"operand {i} has the shape {shown(f.shape(i))}, where one element is expected"
