"""Fourier transforms, windows, determinants."""

from __future__ import annotations

from collections.abc import Iterator

from compiler.ir.checks.base import MAX_ELEMENTS, NodeFacts, axes_of, precondition, shown, wrong_shape


@precondition("Det")
def _det(f: NodeFacts) -> Iterator[str]:
    x = f.shape(0)
    if len(x) < 2 or x[-1] != x[-2]:
        yield f"{shown(x)} is no batch of square matrices"
        return
    yield from wrong_shape(f, x[:-2])


@precondition("DFT")
def _dft(f: NodeFacts) -> Iterator[str]:
    x, rank = f.shape(0), len(f.shape(0))
    axis = (f.ints(2) or [-2])[0]
    inverse, onesided = f.attr("inverse"), f.attr("onesided")
    if rank < 2 or x[-1] not in (1, 2):
        yield f"the last axis of {shown(x)} must be 1 (real) or 2 (complex)"
        return
    if not -rank <= axis < rank or axes_of([axis], rank)[0] == rank - 1:
        yield f"axis {axis} of {shown(x)} is none that can be transformed: the last one holds real and imaginary parts"
        return
    at = axes_of([axis], rank)[0]
    n = (f.ints(1) or [2 * (x[at] - 1) if inverse and onesided else x[at]])[0]
    if not 1 <= n <= MAX_ELEMENTS:
        yield f"a transform of {n} elements is impossible"
        return
    if onesided and x[-1] != (2 if inverse else 1):
        yield f"onesided is for real signals: {shown(x)} must be {'complex' if inverse else 'real'}"
        return
    count = n // 2 + 1 if onesided and not inverse else n
    yield from wrong_shape(f, [*x[:at], count, *x[at + 1 : -1], 1 if onesided and inverse else 2])


@precondition("STFT")
def _stft(f: NodeFacts) -> Iterator[str]:
    x, (step,) = f.shape(0), f.ints(1) or [0]
    if len(x) != 3 or x[-1] not in (1, 2):
        yield f"the signal has the shape {shown(x)}, not [batch, length, 1 or 2]"
        return
    if f.has(2) and len(f.shape(2)) != 1:
        yield f"the window has the shape {shown(f.shape(2))}, which is no list"
        return
    window = f.shape(2)[0] if f.has(2) else None
    size = (f.ints(3) or [x[1] if window is None else window])[0]
    if window is not None and window != size:
        yield f"the window has {window} elements, the frames have {size}"
    elif not 1 <= size <= x[1] or step < 1:
        yield f"there are no frames of {size} elements every {step} in a signal of {x[1]}"
    elif f.attr("onesided") and x[-1] == 2:
        yield f"onesided is for real signals, but {shown(x)} is complex"
    else:
        bins = size // 2 + 1 if f.attr("onesided") else size
        yield from wrong_shape(f, [x[0], (x[1] - size) // step + 1, bins, 2])


@precondition("BlackmanWindow", "HammingWindow", "HannWindow")
def _window(f: NodeFacts) -> Iterator[str]:
    size = f.ints(0) or []
    if len(size) != 1 or not 0 <= size[0] <= MAX_ELEMENTS:
        yield f"a window of {shown(size)} elements is impossible"
        return
    yield from wrong_shape(f, size)


@precondition("MelWeightMatrix")
def _mel_weight_matrix(f: NodeFacts) -> Iterator[str]:
    values = [v.reshape(-1).tolist() for i in range(5) if (v := f.known(i)) is not None]
    if [len(v) for v in values] != [1] * 5:
        yield "every operand must be one number"
        return
    bins, length, rate, low, high = (v[0] for v in values)
    if bins < 1 or length < 1 or rate < 1:
        yield f"{bins} filters on a transform of {length} elements at {rate} samples a second are impossible"
    elif not 0 <= low <= high <= rate / 2:
        yield f"the edges {low} and {high} are not in order within [0, {rate / 2}], half the sample rate"
    else:
        yield from wrong_shape(f, [length // 2 + 1, bins])
