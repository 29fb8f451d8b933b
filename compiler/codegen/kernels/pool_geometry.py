"""The shape of a pool as its kernels read it: three spatial axes, and tables of where taps and windows fall."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from compiler.codegen.calls import Site, Words
from compiler.codegen.kernels.common import NO_AXIS, in_space
from compiler.ir.windows import Window, windows

# Words of the meta table, by name. Triples are of axes d, h, w.
SIZE, OUT, KERNEL, STRIDE, BEFORE, DILATION, INDEX = 0, 3, 6, 9, 12, 15, 18
TAPS = 21
"""From here: for each tap along w, the output range [first, last) in which it is inside, and the input of `first`.

Then the numbers of elements along d, along h and along w that each output divides by.
"""


@dataclass(frozen=True)
class Geometry:
    """A pool of `planes` planes: the windows along d, h and w (missing ones in front are trivial)."""

    planes: int
    axes: tuple[Window, Window, Window]
    column_major: bool = False
    count_pads: bool = False

    @property
    def inputs(self) -> int:
        """Elements of a plane."""
        return prod(a.size for a in self.axes)

    @property
    def outputs(self) -> int:
        """Elements of a plane of the output."""
        return prod(a.out for a in self.axes)

    @property
    def pairs(self) -> bool:
        """Windows of 2 x 2 that tile the plane without pads."""
        return self.axes[0] == NO_AXIS and all(
            (a.kernel, a.stride, a.dilation, a.before) == (2, 2, 1, 0) and 2 * a.out <= a.size for a in self.axes[1:]
        )

    @property
    def words(self) -> Words:
        """The meta table."""
        a = self.axes
        d, h, w = (x.size for x in a)
        table = [d, h, w, *(x.out for x in a), *(x.kernel for x in a), *(x.stride for x in a)]
        table += [*(x.before for x in a), *(x.dilation for x in a)]
        table += (1, d, d * h) if self.column_major else (h * w, w, 1)
        for k in range(a[2].kernel):
            inside = [o for o in range(a[2].out) if 0 <= a[2].start(o) + k * a[2].dilation < w]
            first, last = (inside[0], inside[-1] + 1) if inside else (0, 0)
            table += (first, last, a[2].start(first) + k * a[2].dilation if inside else 0)
        for x in a:
            table += [self._count(x, o) for o in range(x.out)]
        return Words(tuple(table))

    def _count(self, a: Window, o: int) -> int:
        low, high = (-a.before, a.size + a.after) if self.count_pads else (0, a.size)
        return sum(low <= a.start(o) + k * a.dilation < high for k in range(a.kernel))


def geometry(site: Site, shape: Sequence[int]) -> Geometry:
    """Of a pool node whose pooled input (or the gradient by it) is of this shape."""
    found = windows(site.node, shape[2:], site.attr("kernel_shape"))
    return Geometry(
        shape[0] * shape[1],
        in_space(site, found),
        bool(site.attr("storage_order", 0)),
        bool(site.attr("count_include_pad", 0)),
    )
