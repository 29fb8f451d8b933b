"""Choices between values: what they mean, and that they are stored whole."""

from __future__ import annotations

import numpy as np
import pytest

from compiler.codegen.kernels.pool import make_max
from compiler.codegen.native import Kernel, assembly, native, pointer
from compiler.codegen.native.math import maximum
from compiler.codegen.native.selection import frozen, select
from compiler.codegen.native.target import Target

AVX2 = Target("x86-64-v3", "", "x86_64-unknown-linux-gnu")


def over_itself(form: str) -> Kernel:
    text = "def over_itself(lo, hi, x):\n    p = ptr(x + 4 * lo, 0)\n    for i in range(hi - lo):\n"
    text += f"        p[i] = {form}\n"
    names = {"ptr": pointer("f32"), "maximum": maximum, "select": select, "frozen": frozen, "zero": np.float32(0)}
    return Kernel.from_source("over_itself", text, names)


@pytest.mark.parametrize("form", ["maximum(p[i], zero)", "select(p[i] > zero, p[i], zero)"])
def test_a_result_over_its_operand(form: str) -> None:
    x = np.array([-1.5, 0.0, 2.0, np.nan, np.inf, -np.inf, 1e-40, -3.0, 7.0], np.float32)
    want = np.where(x > 0, x, np.float32(0))
    if "maximum" in form:
        want[3] = np.nan
    native(over_itself(form))(0, x.size, x.ctypes.data)
    np.testing.assert_array_equal(x, want)


@pytest.mark.parametrize("form", ["maximum(p[i], zero)", "select(p[i] > zero, p[i], zero)"])
def test_it_is_stored_whole(form: str) -> None:
    text = assembly(over_itself(form), AVX2)
    assert "%ymm" in text
    assert "maskmov" not in text


def test_maxima_are_stored_whole() -> None:
    text = assembly(make_max("f32"), AVX2)
    assert "%ymm" in text
    assert "maskmov" not in text
