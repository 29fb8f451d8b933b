"""The geometry of convolutions and pools along each spatial axis: strides, dilations, and pads made explicit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from compiler.ir.graph import Node

SAME = ("SAME_UPPER", "SAME_LOWER")


@dataclass(frozen=True)
class Window:
    """One spatial axis. Tap k of output element o reads the input at `o * stride - before + k * dilation`.

    For ConvTranspose the input and the output change places in that sentence: `size` is the input's extent, `out` the
    output's, and input element i adds to the output at `i * stride - before + k * dilation`.
    """

    size: int
    kernel: int
    stride: int
    dilation: int
    before: int
    after: int
    out: int

    @property
    def extent(self) -> int:
        """Elements from the first to the last tap."""
        return (self.kernel - 1) * self.dilation + 1

    def start(self, o: int) -> int:
        """Where the first tap of output element `o` falls; negative in the padding."""
        return o * self.stride - self.before

    def touches_input(self) -> bool:
        """Whether every window has at least one tap inside the input."""
        if self.out == 0:
            return True
        if self.before >= self.extent or self.start(self.out - 1) >= self.size:
            return False
        if self.size >= self.dilation:  # then the taps of a window that overlaps the input cannot straddle it
            return True
        for o in range(-(-self.before // self.stride)):  # the windows that begin in the padding
            inside = self.start(o) % self.dilation  # the first tap at or behind the input's first element
            if o < self.out and not inside < min(self.size, self.start(o) + self.extent):
                return False
        return True


def _attr(node: Node, name: str, count: int) -> tuple[int, ...]:
    given: tuple[int, ...] | None = node.attr(name)
    return given if given is not None else (0 if name == "pads" else 1,) * count


def windows(node: Node, spatial: Sequence[int], kernel: Sequence[int]) -> tuple[Window, ...]:
    """Of a Conv or pool node, for an input with these spatial dimensions.

    Formulas: the ONNX documentation of Conv-22 and MaxPool-22; windows that would start in the padding behind the
    input, which ceil_mode might add, are left out. A kernel larger than the padded input gives `out` below 1.
    """
    n = len(spatial)
    strides, dilations, pads = _attr(node, "strides", n), _attr(node, "dilations", n), _attr(node, "pads", 2 * n)
    auto = node.attr("auto_pad", "NOTSET")
    result = []
    for i, (size, k, s, d) in enumerate(zip(spatial, kernel, strides, dilations, strict=True)):
        before, after, extent = pads[i], pads[n + i], (k - 1) * d + 1
        if auto in SAME:
            out = -(-size // s)
            total = max((out - 1) * s + extent - size, 0)
            before = total // 2 if auto == "SAME_UPPER" else total - total // 2
            after = total - before
        else:
            if auto == "VALID":
                before = after = 0
            free = size + before + after - extent
            out = free // s + 1
            if node.attr("ceil_mode", 0) and free >= 0 and free % s:
                out += out * s < size + before
        result.append(Window(size, k, s, d, before, after, out))
    return tuple(result)


def transposed_windows(node: Node, spatial: Sequence[int], kernel: Sequence[int]) -> tuple[Window, ...]:
    """Of a ConvTranspose node, for an input with these spatial dimensions; formulas: ConvTranspose-22.

    `before` and `after` are cut off the output. Where `output_shape` asks for more than the kernel reaches, the rest is
    added at the end: `after` is negative.
    """
    n = len(spatial)
    strides, dilations, pads = _attr(node, "strides", n), _attr(node, "dilations", n), _attr(node, "pads", 2 * n)
    extra = node.attr("output_padding", (0,) * n)
    auto, wanted = node.attr("auto_pad", "NOTSET"), node.attr("output_shape")
    result = []
    for i, (size, k, s, d) in enumerate(zip(spatial, kernel, strides, dilations, strict=True)):
        full = s * (size - 1) + extra[i] + (k - 1) * d + 1
        before, after = (0, 0) if auto == "VALID" else (pads[i], pads[n + i])
        if wanted is not None or auto in SAME:
            out = wanted[i] if wanted is not None else size * s
            total = full - out
            before = max(total // 2 if auto == "SAME_UPPER" else total - total // 2, 0)
            after = total - before
        result.append(Window(size, k, s, d, before, after, full - before - after))
    return tuple(result)
