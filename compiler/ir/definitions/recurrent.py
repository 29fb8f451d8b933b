"""RNN, GRU and LSTM, defined by a Scan over time for each direction.

What does not depend on the state, X W' + bias, is one product for all times outside of the loop. A reverse direction
scans from the end. Sequences shorter than the others are masks: outside of a sequence its state stays as it is and Y
is 0, so that a reverse direction starts at the end of each sequence. Where the standard's text leaves a doubt, this is
what ONNX Runtime computes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from compiler.ir.builder import INTERNAL_OPS, Builder
from compiler.ir.definitions.checked import confined
from compiler.ir.graph import Attr
from compiler.ir.proto import default
from compiler.ir.types import TensorType, numpy_dtype

Attrs = Mapping[str, Attr]

Activation = Callable[[Builder, str], str]

ACTIVATION_DEFAULTS: dict[str, tuple[float, ...]] = {
    "affine": (1.0, 0.0),
    "elu": (1.0,),
    "hardsigmoid": (0.2, 0.5),
    "leakyrelu": (0.01,),
    "relu": (),
    "scaledtanh": (1.0, 1.0),
    "sigmoid": (),
    "softplus": (),
    "softsign": (),
    "tanh": (),
    "thresholdedrelu": (1.0,),
}
"""Activation functions, by their names in small letters: the defaults of those of alpha and beta that they have."""


@dataclass(frozen=True)
class Family:
    """What tells the three operators apart. gates: rows of H in W and R; states: carried from time to time."""

    op: str
    gates: int
    activations: tuple[str, ...]
    states: int


FAMILIES = {
    f.op: f
    for f in (
        Family("RNN", 1, ("Tanh",), 1),
        Family("GRU", 3, ("Sigmoid", "Tanh"), 1),
        Family("LSTM", 4, ("Sigmoid", "Tanh", "Tanh"), 2),
    )
}


def activation_names(family: Family, attrs: Attrs, directions: int) -> tuple[str, ...]:
    """The activation functions of all directions, in small letters."""
    given = attrs.get("activations")
    return tuple(name.lower() for name in given) if given else tuple(map(str.lower, family.activations)) * directions


def _activations(family: Family, attrs: Attrs, directions: int) -> list[Activation]:
    """The functions of all directions, in order; alphas and betas go to those that have them, in the same order."""
    alphas, betas = iter(attrs.get("activation_alpha", ())), iter(attrs.get("activation_beta", ()))
    clip, names = attrs.get("clip", 0.0), activation_names(family, attrs, directions)
    of_cell = {2, 5} if family.op == "LSTM" else set[int]()  # the cell passes on as it is
    return [_activation(name, alphas, betas, 0.0 if i in of_cell else clip) for i, name in enumerate(names)]


def _activation(name: str, alphas: Iterator[float], betas: Iterator[float], clip: float) -> Activation:
    values = [next(given, preset) for given, preset in zip((alphas, betas), ACTIVATION_DEFAULTS[name], strict=False)]
    apply = _FUNCTIONS[name]

    def activation(b: Builder, x: str) -> str:
        if clip > 0:
            x = b.op("Clip", x, b.scalar(-clip, x), b.scalar(clip, x))
        return apply(b, x, *values)

    return activation


def _affine(b: Builder, x: str, alpha: float, beta: float) -> str:
    return b.op("Add", b.op("Mul", x, b.scalar(alpha, x)), b.scalar(beta, x))


def _scaled_tanh(b: Builder, x: str, alpha: float, beta: float) -> str:
    return b.op("Mul", b.op("Tanh", b.op("Mul", x, b.scalar(beta, x))), b.scalar(alpha, x))


def _thresholded_relu(b: Builder, x: str, alpha: float) -> str:
    return b.op("Where", b.op("GreaterOrEqual", x, b.scalar(alpha, x)), x, b.scalar(0, x))


_FUNCTIONS: dict[str, Callable[..., str]] = {
    "affine": _affine,
    "elu": lambda b, x, alpha: b.op("Elu", x, alpha=alpha),
    "hardsigmoid": lambda b, x, alpha, beta: b.op("HardSigmoid", x, alpha=alpha, beta=beta),
    "leakyrelu": lambda b, x, alpha: b.op("LeakyRelu", x, alpha=alpha),
    "relu": lambda b, x: b.op("Relu", x),
    "scaledtanh": _scaled_tanh,
    "sigmoid": lambda b, x: b.op("Sigmoid", x),
    "softplus": lambda b, x: b.op("Softplus", x),
    "softsign": lambda b, x: b.op("Softsign", x),
    "tanh": lambda b, x: b.op("Tanh", x),
    "thresholdedrelu": _thresholded_relu,
}


# --- one direction -----------------------------------------------------------------------------------------
@dataclass
class Direction:
    """The operands of one direction: the input [T,N,I], its weights, and how to iterate.

    w: [G H, I]; r: [G H, H]; wb, rb: [G H], p: [3 H], or '' where absent. initial: the first states, each [N,H].
    mask: [T,N,1], which times belong to a sequence, or ''.
    """

    b: Builder
    x: str
    w: str
    r: str
    wb: str
    rb: str
    p: str
    initial: Sequence[str]
    mask: str
    backward: bool
    activations: Sequence[Activation]
    attrs: Attrs

    @property
    def hidden(self) -> int:
        """H."""
        return self.b.shape(self.r)[1]

    def rows(self, v: str, *gates: int) -> list[str]:
        """A weight or bias, split along axis 0 into parts of so many gates each; '' stays."""
        if not v or len(gates) == 1:
            return [v] * len(gates)
        return list(self.b.add("Split", [v, self.b.ints(g * self.hidden for g in gates)], {"axis": 0}, len(gates)))

    def project(self, w: str, *biases: str) -> str:
        """X W' + biases for all times, [T,N,rows of W]."""
        b = self.b
        t, n, size = b.shape(self.x)
        flat = b.op("Reshape", self.x, b.ints([t * n, size]), allowzero=1 if 0 in (t, n, size) else None)
        present = [v for v in biases if v]
        bias = b.op("Add", *present) if len(present) == 2 else "".join(present)
        product = b.op("Gemm", flat, w, *([bias] if bias else []), transB=1)
        rows = b.shape(w)[0]
        return b.op("Reshape", product, b.ints([t, n, rows]), allowzero=1 if 0 in (t, n, rows) else None)

    def scan(self, projected: Sequence[str], captured: Sequence[str], cell: Cell) -> list[str]:
        """Iterate a cell: the output at each time [T,N,H], then the last states."""
        b = self.b
        body = Builder("cell")
        states = [body.input(name, b.type(v)) for name, v in zip("hc", self.initial, strict=False)]
        sequences = [*projected, *([self.mask] if self.mask else [])]
        slices = [body.input("x", TensorType(b.type(v).dtype, b.shape(v)[1:])) for v in sequences]
        captures = [v for v in captured if v]
        inner = iter([body.capture("w", b.type(v)) for v in captures])
        new = cell(body, states, slices[: len(projected)], [next(inner) if v else "" for v in captured])
        y = new[0]
        if self.mask:
            inside = slices[-1]
            y = body.op("Where", inside, y, body.scalar(0, y))
            new = [body.op("Where", inside, s, old) for s, old in zip(new, states, strict=True)]
        else:
            y = body.op("Identity", y)
        for i, v in enumerate((*new, y)):
            body.output(f"out{i}", v)
        attrs = {"body": body.build(), "num_scan_inputs": len(sequences)}
        if self.backward:
            attrs |= {"scan_input_directions": (1,) * len(sequences), "scan_output_directions": (1,)}
        *last, ys = b.add("Scan", [*self.initial, *sequences], attrs, len(new) + 1, captures)
        return [ys, *last]


Cell = Callable[[Builder, Sequence[str], Sequence[str], Sequence[str]], list[str]]
"""One step: (body, states, slices of the projections, captured values) -> new states; the first one is the output."""


def _rnn(d: Direction) -> list[str]:
    """Ht = f(Xt W' + Ht-1 R' + Wb + Rb)."""
    (f,) = d.activations

    def cell(b: Builder, states: Sequence[str], slices: Sequence[str], weights: Sequence[str]) -> list[str]:
        return [f(b, b.op("Gemm", states[0], weights[0], slices[0], transB=1))]

    return d.scan([d.project(d.w, d.wb, d.rb)], [d.r], cell)


def _gru(d: Direction) -> list[str]:
    """Update z, reset r and hidden gate; r is applied before the hidden product, or after it (linear_before_reset)."""
    f, g = d.activations
    late = bool(d.attrs.get("linear_before_reset", 0))
    (w_zr, w_h), (wb_zr, wb_h), (rb_zr, rb_h) = (d.rows(v, 2, 1) for v in (d.w, d.wb, d.rb))
    x_zr = d.project(w_zr, wb_zr, rb_zr)
    x_h = d.project(w_h, wb_h, *([] if late else [rb_h]))

    def cell(b: Builder, states: Sequence[str], slices: Sequence[str], weights: Sequence[str]) -> list[str]:
        (h,), (xt_zr, xt_h), (r_zr, r_h, bias) = states, slices, weights
        z, r = (
            f(b, v) for v in b.add("Split", [b.op("Gemm", h, r_zr, xt_zr, transB=1)], {"axis": 1, "num_outputs": 2}, 2)
        )
        if late:
            product = b.op("Gemm", h, r_h, *([bias] if bias else []), transB=1)
            hidden = g(b, b.op("Add", xt_h, b.op("Mul", r, product)))
        else:
            hidden = g(b, b.op("Gemm", b.op("Mul", r, h), r_h, xt_h, transB=1))
        return [b.op("Add", b.op("Mul", b.op("Sub", b.scalar(1, z), z), hidden), b.op("Mul", z, h))]

    return d.scan([x_zr, x_h], [*d.rows(d.r, 2, 1), rb_h if late else ""], cell)


def _lstm(d: Direction) -> list[str]:
    """Gates i, o, f and the cell's candidate; peepholes see the old cell, at the output gate the new one."""
    f, g, h = d.activations
    coupled = bool(d.attrs.get("input_forget", 0))

    def cell(b: Builder, states: Sequence[str], slices: Sequence[str], weights: Sequence[str]) -> list[str]:
        (hidden, old), (r, p_i, p_o, p_f) = states, weights
        gates = b.op("Gemm", hidden, r, slices[0], transB=1)
        i, o, forget, candidate = b.add("Split", [gates], {"axis": 1, "num_outputs": 4}, 4)

        def seeing(gate: str, peephole: str, c: str) -> str:
            return b.op("Add", gate, b.op("Mul", c, peephole)) if peephole else gate

        i = f(b, seeing(i, p_i, old))
        forget = b.op("Sub", b.scalar(1, i), i) if coupled else f(b, seeing(forget, p_f, old))
        c = b.op("Add", b.op("Mul", forget, old), b.op("Mul", i, g(b, candidate)))
        return [b.op("Mul", f(b, seeing(o, p_o, c)), h(b, c)), c]

    return d.scan([d.project(d.w, d.wb, d.rb)], [d.r, *d.rows(d.p, 1, 1, 1)], cell)


_CELLS: dict[str, Callable[[Direction], list[str]]] = {"RNN": _rnn, "GRU": _gru, "LSTM": _lstm}


# --- the operators -----------------------------------------------------------------------------------------
def _definition(family: Family) -> Callable[[Builder, Sequence[str], Attrs], Sequence[str]]:
    def body(b: Builder, inputs: Sequence[str], attrs: Attrs) -> Sequence[str]:
        return _recurrent(b, family, [*inputs, *[""] * (8 - len(inputs))], attrs)

    body.__doc__ = f"{family.op} in all its forms: (X, W, R, B, sequence_lens, initial_h, ...) -> Y, Y_h, ..."
    return body


def _recurrent(b: Builder, family: Family, inputs: Sequence[str], attrs: Attrs) -> list[str]:
    x, w, r, bias, lens, *states, p = inputs
    states = states[: family.states]
    way = attrs.get("direction", default(family.op, "direction"))
    batch_first = bool(attrs.get("layout", 0))
    directions, hidden = b.shape(w)[0], b.shape(r)[2]
    if batch_first:
        x = b.op("Transpose", x, perm=(1, 0, 2))
    length, batch, _ = b.shape(x)
    per = _each(b, directions)
    zeros = b.full(0, TensorType(b.type(x).dtype, (batch, hidden)))
    axis = 1 if batch_first else 0
    initial = [[zeros] * directions if not v else per(v, axis, (batch, hidden)) for v in states]
    biases = per(bias, 0, (2 * family.gates * hidden,))
    weights, products, peepholes = (per(v, 0, b.shape(v)[1:] if v else ()) for v in (w, r, p))
    lens = confined(b, lens, length, "sequence_lens")
    column = b.op("Reshape", lens, b.ints([batch, 1]), allowzero=None if batch else 1) if lens else ""
    mask = _mask(b, column, length) if lens else ""
    functions = _activations(family, attrs, directions)
    n = len(family.activations)
    results: list[list[str]] = []
    for i in range(directions):
        half = b.ints([family.gates * hidden] * 2)
        wb, rb = b.add("Split", [biases[i], half], {"axis": 0}, 2) if bias else ("", "")
        begin = [v[i] for v in initial]
        backward = way == "reverse" or i == 1
        d = Direction(
            b,
            x,
            weights[i],
            products[i],
            wb,
            rb,
            peepholes[i],
            begin,
            mask,
            backward,
            functions[n * i : n * i + n],
            attrs,
        )
        y, *last = _CELLS[family.op](d)
        results.append([y, *(_of_sequences(b, v, column) for v in last)])
    joined = [_joined(b, [r[k] for r in results], axis if k else 1) for k in range(1 + family.states)]
    return [b.op("Transpose", joined[0], perm=(2, 0, 1, 3)) if batch_first else joined[0], *joined[1:]]


def _each(b: Builder, directions: int) -> Callable[[str, int, Sequence[int]], list[str]]:
    """Splits an operand of all directions into those of each, of a given shape; '' stays."""

    def split(v: str, axis: int, shape: Sequence[int]) -> list[str]:
        if not v:
            return [""] * directions
        parts = [v] if directions == 1 else b.add("Split", [v], {"axis": axis, "num_outputs": directions}, directions)
        return [b.op("Reshape", part, b.ints(shape), allowzero=1 if 0 in shape else None) for part in parts]

    return split


def _joined(b: Builder, parts: Sequence[str], axis: int) -> str:
    """The results of all directions along a new axis."""
    whole = [b.op("Unsqueeze", v, b.ints([axis])) for v in parts]
    return whole[0] if len(whole) == 1 else b.op("Concat", *whole, axis=axis)


def _mask(b: Builder, lens: str, length: int) -> str:
    """Which times are within each sequence, [T,N,1], from the lengths [N,1]; one beyond T counts as T."""
    times = np.arange(length, dtype=numpy_dtype(b.type(lens).dtype)).reshape(length, 1, 1)
    return b.op("Less", b.const(times), lens)


def _of_sequences(b: Builder, last: str, lens: str) -> str:
    """The last state [N,H]; 0 for an empty sequence, which has none."""
    return b.op("Where", b.op("Greater", lens, b.scalar(0, lens)), last, b.scalar(0, last)) if lens else last


INTERNAL_OPS.update({op: _definition(family) for op, family in FAMILIES.items()})
