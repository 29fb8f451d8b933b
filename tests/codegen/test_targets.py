"""Kernels for machines that are not this one: their own tiles, in registers."""

import re
from collections.abc import Callable

import pytest

from compiler.codegen.kernels.conv import make_conv
from compiler.codegen.kernels.conv_weight import make_conv_weight
from compiler.codegen.kernels.gemm_dots import make_dot_gemm
from compiler.codegen.kernels.gemm_few import make_few_gemm
from compiler.codegen.kernels.gemm_panels import make_gemm
from compiler.codegen.native import Kernel, Target, assembly, building, tile_for

LINUX = "x86_64-unknown-linux-gnu"
TARGETS = {
    "avx512": (Target("x86-64-v4", "", LINUX), "zmm", r"\bvfn?madd\w*ps"),
    "avx2": (Target("x86-64-v3", "", LINUX), "ymm", r"\bvfn?madd\w*ps"),
    "neon": (Target("neoverse-n1", "", "aarch64-unknown-linux-gnu"), ".4s", r"\bfmla"),
}


def innermost_loops(text: str) -> list[list[str]]:
    """Lines from a label to a branch back to it, with no other such loop within."""
    lines = text.splitlines()
    labels = {found[1]: i for i, line in enumerate(lines) if (found := re.match(r"(\.L\w+):", line))}
    ends = [(labels[found[1]], i) for i, line in enumerate(lines) if (found := re.search(r"(\.L\w+)$", line))
            and found[1] in labels and labels[found[1]] < i]  # fmt: skip
    inner = [(a, b) for a, b in ends if not any((c, d) != (a, b) and a <= c and d <= b for c, d in ends)]
    return [lines[a : b + 1] for a, b in inner]


def make_weight_gradient(dtype: str) -> Kernel:
    return make_conv_weight(dtype, tile_for(dtype))


def make_strips(dtype: str) -> Kernel:
    return make_few_gemm(dtype, tile_for(dtype), True)


def products_of_loops(text: str, register: str, fma: str) -> list[tuple[int, int]]:
    """Of each innermost loop the multiply-adds, and the vectors that it keeps on the stack."""
    found = []
    for loop in innermost_loops(text):
        products = [line for line in loop if re.search(fma, line) and register in line]
        spilled = [line for line in loop if register in line and ("(%rsp" in line or "[sp" in line)]
        found.append((len(products), len(spilled)))
    return found


@pytest.mark.parametrize("unit", TARGETS)
@pytest.mark.parametrize("make", [make_gemm, make_conv, make_weight_gradient, make_strips])
def test_products_are_made_of_the_targets_tile(unit: str, make: Callable[[str], Kernel]) -> None:
    target, register, fma = TARGETS[unit]
    with building(target):
        kernel, tile = make("f32"), tile_for("f32")
        found = products_of_loops(assembly(kernel), register, fma)
    assert (tile.mr * tile.nv, 0) in found
    assert not any(spilled for products, spilled in found if products)


@pytest.mark.parametrize("unit", TARGETS)
@pytest.mark.parametrize("columns", [1, 2, 4])
def test_scalar_products_stay_in_registers(unit: str, columns: int) -> None:
    target, register, fma = TARGETS[unit]
    with building(target):
        found = products_of_loops(assembly(make_dot_gemm("f32", columns)), register, fma)
    assert (8, 0) in found


def test_kernels_are_made_once_for_each_vector_unit() -> None:
    made = {}
    for unit, (target, _, _) in TARGETS.items():
        with building(target):
            made[unit] = make_gemm("f32")
            assert make_gemm("f32") is made[unit]
    assert len({k.symbol for k in made.values()}) == len(TARGETS)
    assert make_gemm("f32") is made.get(Target.host().vectors, make_gemm("f32"))
    assert Target.current() == Target.host()
