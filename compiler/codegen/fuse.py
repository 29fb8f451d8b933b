"""Loops over elementwise nodes: the source of the kernel that computes a group of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import product
from math import prod
from typing import Any

import numpy as np

from compiler.codegen import native
from compiler.codegen.calls import Arg, Call, In, Out, contiguous
from compiler.codegen.elementwise import ELEMENTWISE, Formula, encoding, is_elementwise, wrap
from compiler.codegen.native import ITEMSIZE, Inline, Kernel, convert, inline, pointer
from compiler.codegen.native.convert import sticky
from compiler.codegen.native.inline import function_from
from compiler.codegen.native.math import (
    erf,
    exp,
    expm1,
    log,
    log1p,
    maximum,
    minimum,
    sigmoid,
    softplus,
    tanh,
)
from compiler.codegen.native.narrow import NARROW_FLOATS, ROUND_MODES, decoder, encoder
from compiler.codegen.native.power import power
from compiler.codegen.native.selection import select
from compiler.codegen.native.trig import cos, sin, tan
from compiler.ir.graph import Graph, Node
from compiler.ir.types import Tensor, TensorType

BUFFERS = 24
"""Numbers that tell a kernel's buffers apart; only one node alone may have more operands."""


@dataclass
class Group:
    """Elementwise nodes of one iteration shape that become one loop, in program order."""

    nodes: list[Node]
    shape: tuple[int, ...]
    inputs: list[str] = field(default_factory=list)
    """Values read from outside, each once; scalar constants excepted, which become part of the code."""
    outputs: list[str] = field(default_factory=list)
    """Values that someone outside reads."""

    at: int = 0
    """The number of the node in whose place in the program it runs."""


def is_fusable(graph: Graph, node: Node) -> bool:
    """Whether a node is elementwise, and so becomes part of a loop."""
    return is_elementwise(node, [graph.type(v).dtype if v else "" for v in node.inputs])


def inline_constant(consts: Mapping[str, Tensor], value: str) -> Any:
    """The numpy scalar of a constant of one element, which becomes a literal of the kernel; else None."""
    tensor = consts.get(value)
    return tensor.array.reshape(-1)[0] if tensor is not None and tensor.type.size == 1 else None


# --- the loop --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Loop:
    """Collapsed iteration space of a group: extents, and the strides of each operand (0: it stays where it is)."""

    extents: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]


def collapse(shape: tuple[int, ...], operands: Sequence[tuple[int, ...]]) -> Loop:
    """Merge neighbouring axes that are one for every operand, given their strides. Axes of extent 1 vanish."""
    extents: list[int] = []
    steps: list[tuple[int, ...]] = []
    for axis, n in enumerate(shape):
        if n == 1:
            continue
        own = tuple(s[axis] for s in operands)
        if steps and all(before == n * s for before, s in zip(steps[-1], own, strict=True)):
            extents[-1] *= n
            steps[-1] = own
        else:
            extents.append(n)
            steps.append(own)
    if not extents:
        extents, steps = [1], [(1,) * len(operands)]
    return Loop(tuple(extents), tuple(zip(*steps, strict=True)) if operands else ())


def broadcast_strides(t: TensorType, strides: Sequence[int], rank: int) -> tuple[int, ...]:
    """Strides of an operand in an iteration space of this rank: 0 along the axes that it is broadcast along."""
    own = tuple(0 if n == 1 else s for n, s in zip(t.shape, strides, strict=True))
    return (0,) * (rank - t.rank) + own


def fused_call(
    group: Group,
    types: Mapping[str, TensorType],
    consts: Mapping[str, Tensor],
    inplace: Mapping[str, str],
    strides: Mapping[str, Sequence[int]],
) -> Call:
    """The call that computes a group. inplace: output -> the input whose memory it takes over.

    strides: of values that are no dense tensors.
    """
    taken = {v: out for out, v in inplace.items()}
    separate = [v for v in group.outputs if v not in inplace]
    operands = [*group.inputs, *separate]
    rank = len(group.shape)
    given = [broadcast_strides(types[v], strides.get(v) or contiguous(types[v].shape), rank) for v in operands]
    loop = collapse(group.shape, given)
    pitched = tuple(v in strides for v in operands)
    text, constants = _source(group, types, consts, loop, operands, inplace, pitched)
    kernel = kernel_from(name_of(group.nodes), text, constants)
    flat = len(loop.extents) == 1
    rows = loop.extents[0] if flat else prod(loop.extents[:-1])
    inner = () if flat else loop.extents[1:]
    pitches = [s for p, own in zip(pitched, loop.strides, strict=True) if p for s in own[:-1]]
    pointers: list[Arg] = []
    for v, own, p in zip(operands, loop.strides, pitched, strict=True):
        # an item is an element, or a row of the last axis
        piece = (1 if flat else loop.extents[-1]) * ITEMSIZE[types[v].dtype] if all(own) and not p else 0
        written = taken.get(v, v if v in separate else "")
        pointers.append(Out(written, 0, piece) if written else In(v, 0, piece))
    return Call(kernel, rows, (*inner, *pitches, *pointers))


def kernel_from(name: str, text: str, constants: Mapping[str, Any]) -> Kernel:
    """The kernel of a generated text, the same one for the same text and constants."""
    return _kernel(name, text, _hashable(constants))


def inline_from(name: str, text: str, constants: Mapping[str, Any]) -> Inline[..., Any]:
    """The function for kernels of a generated text, the same one for the same text and constants."""
    return _inline(name, text, _hashable(constants))


_Constants = tuple[tuple[str, str, bytes], ...]


def _hashable(constants: Mapping[str, Any]) -> _Constants:
    return tuple((k, v.dtype.str, v.tobytes()) for k, v in constants.items())


def _names(constants: _Constants) -> dict[str, Any]:
    return {**_NAMESPACE, **{k: np.frombuffer(data, dtype)[0] for k, dtype, data in constants}}


@lru_cache(maxsize=4096)
def _kernel(name: str, text: str, constants: _Constants) -> Kernel:
    """One kernel per source: nodes, steps and models that compute the same share it."""
    return Kernel.from_source(name, text, _names(constants))


@lru_cache(maxsize=4096)
def _inline(name: str, text: str, constants: _Constants) -> Inline[..., Any]:
    return inline(function_from(name, text, _names(constants)))


@inline
def float_mod(x: Any, y: Any) -> Any:
    """Remainder with the sign of the divisor, as numpy.mod."""
    r = np.fmod(x, y)
    return r + y if (r != 0) & ((r < 0) != (y < 0)) else r


_NAMESPACE: dict[str, Any] = {
    **{f"p_{dtype}": pointer(dtype) for dtype in ITEMSIZE},
    **{f"to_{dtype}": convert(dtype) for dtype in ITEMSIZE if dtype not in NARROW_FLOATS},
    **{
        encoding(dtype, saturate, mode): encoder(dtype, saturate, mode if dtype == "f8e8m0" else "up")
        for dtype, saturate, mode in product(NARROW_FLOATS, (True, False), ROUND_MODES)
    },
    "sticky": sticky,
    **{f"from_{dtype}": decoder(dtype) for dtype in NARROW_FLOATS},
    **{name: getattr(np, name) for name in ("sqrt", "sinh", "cosh", "floor", "ceil", "rint", "fmod")},
    **{short: getattr(np, f"arc{short[1:]}") for short in ("asin", "acos", "atan", "asinh", "acosh", "atanh")},
    "exp": exp,
    "expm1": expm1,
    "log": log,
    "log1p": log1p,
    "tanh": tanh,
    "sigmoid": sigmoid,
    "softplus": softplus,
    "erf": erf,
    "maximum": maximum,
    "minimum": minimum,
    "select": select,
    **{name: getattr(native, name) for name in native.__all__ if name.startswith("int_")},
    "sin": sin,
    "cos": cos,
    "tan": tan,
    "pow": power,
    "float_mod": float_mod,
}
"""What formulas may call. sqrt and floor are instructions, what is NumPy's (of float64, everything) is libm's."""


def name_of(nodes: Sequence[Node], what: str = "loop") -> str:
    """A readable name of at most 40 characters, the same for the same ops."""
    ops = [n.op_type.lower() for n in nodes]
    shown = f"{what}_{'_'.join(ops)}"
    return shown if len(shown) <= 40 else f"{what}_{'_'.join(ops[:3])[:30]}_and_{len(ops) - 3}"


def _source(
    group: Group,
    types: Mapping[str, TensorType],
    consts: Mapping[str, Tensor],
    loop: Loop,
    operands: Sequence[str],
    inplace: Mapping[str, str],
    pitched: Sequence[bool],
) -> tuple[str, dict[str, Any]]:
    """Python text of the kernel, and the constants that it names. pitched: operands whose strides are arguments."""
    depth = len(loop.extents)
    names = [f"x{i}" for i in range(len(group.inputs))] + [f"y{i}" for i in range(len(operands) - len(group.inputs))]
    of = dict(zip(operands, names, strict=True))
    pitches = [f"{x}s{k}" for x, p in zip(names, pitched, strict=True) if p for k in range(depth - 1)]
    parameters = ["lo", "hi", *(f"n{k}" for k in range(1, depth)), *pitches, *names]
    head = [f"def {name_of(group.nodes)}({', '.join(parameters)}):"]
    outer, row, inner = [], [], []
    buffers = _buffers([k >= len(group.inputs) or v in inplace.values() for k, v in enumerate(operands)])
    for i, v in enumerate(operands):
        runs, x, dtype, k = tuple(map(bool, loop.strides[i])), names[i], types[v].dtype, buffers[i]
        size = ITEMSIZE[dtype]
        if not any(runs):
            outer.append(f"{x}v = p_{dtype}({x}, {k})[0]")
        elif depth == 1:
            outer.append(f"{x}p = p_{dtype}({x} + {size} * lo, {k})")
        else:
            place = _pitched(x, runs) if pitched[i] else _offset(runs)
            row.append(f"{x}p = p_{dtype}({x} + {size} * ({place}), {k})")
            if not runs[-1]:
                row.append(f"{x}v = {x}p[0]")
        if i < len(group.inputs) and runs[-1]:
            inner.append(f"{x}v = {x}p[j]")
    body, constants = formulas(group, types, consts, of)
    inner += body
    for v in group.outputs:
        x = of[inplace.get(v, v)]
        steps = loop.strides[operands.index(inplace.get(v, v))]
        inner.append(
            f"{x}p[j] = {local_name(group, v)}"
            if any(steps)
            else f"p_{types[v].dtype}({x}, 0)[0] = {local_name(group, v)}"
        )
    if depth == 1:
        lines = [*outer, "for j in range(hi - lo):", *(f"    {line}" for line in inner)]
    else:
        decode = ["q = lo + r"]
        for k in range(depth - 2, 0, -1):
            decode += [f"i{k} = q % n{k}", f"q = q // n{k}"]
        rows = [*decode, "i0 = q", *row, f"for j in range(n{depth - 1}):", *(f"    {line}" for line in inner)]
        lines = [*outer, "for r in range(hi - lo):", *(f"    {line}" for line in rows)]
    return "\n".join([*head, *(f"    {line}" for line in lines)]) + "\n", constants


def _buffers(written: Sequence[bool]) -> list[int]:
    """A buffer number for each operand. Of those beyond the numbers that there are, the ones only read share one."""
    if len(written) <= BUFFERS:
        return list(range(len(written)))
    taken = iter(range(BUFFERS - 1))
    first = {i: next(taken) for i, w in enumerate(written) if w}
    return [first[i] if w else next(taken, BUFFERS - 1) for i, w in enumerate(written)]


def _offset(runs: tuple[bool, ...]) -> str:
    """Elements from an operand's start to the current row: its own row-major strides, over the axes it runs along."""
    if all(runs):
        return f"(lo + r) * n{len(runs) - 1}"
    terms = []
    for axis in range(len(runs) - 1):
        if runs[axis]:
            later = [f"n{k}" for k in range(axis + 1, len(runs)) if runs[k]]
            terms.append(" * ".join([f"i{axis}", *later]))
    return " + ".join(terms) or "0"


def _pitched(x: str, runs: tuple[bool, ...]) -> str:
    """The same for an operand that is no dense tensor: by strides that the kernel gets."""
    return " + ".join(f"i{k} * {x}s{k}" for k in range(len(runs) - 1) if runs[k]) or "0"


def local_name(group: Group, value: str) -> str:
    """The variable that `formulas` gives a result of a group."""
    return f"t{next(i for i, n in enumerate(group.nodes) if n.outputs[0] == value)}"


def formulas(
    group: Group, types: Mapping[str, TensorType], consts: Mapping[str, Tensor], of: Mapping[str, str]
) -> tuple[list[str], dict[str, Any]]:
    """One assignment per node; operands are earlier assignments, loaded values or constants."""
    constants: dict[str, Any] = {}
    local = {n.outputs[0]: f"t{i}" for i, n in enumerate(group.nodes)}
    lines = []
    for i, node in enumerate(group.nodes):
        dtypes = [types[v].dtype if v else "" for v in node.inputs]
        formula = Formula(node, [], dtypes, types[node.outputs[0]].dtype, constants)
        for v in node.inputs:
            literal = inline_constant(consts, v) if v else None
            if not v:
                formula.args.append("")
            elif v in local:
                formula.args.append(local[v])
            elif literal is not None:
                formula.args.append(formula.const(literal, types[v].dtype))
            else:
                formula.args.append(f"{of[v]}v")
        lines.append(f"t{i} = {wrap(ELEMENTWISE[node.op].rule(formula), formula.result)}")
    return lines, constants
