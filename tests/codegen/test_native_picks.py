"""Every second element, natively and as plain Python."""

from __future__ import annotations

import numpy as np
import pytest

from compiler.codegen.native import kernel, native
from compiler.codegen.native.picks import PICKED, make_every_other


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_every_other(size: int, plain: bool) -> None:
    pick, n = make_every_other(size), PICKED // size

    @kernel
    def call(lo: int, hi: int, src: int, dst: int) -> None:
        pick(src, dst)

    source, found = np.arange(2 * n - 1).astype(f"u{size}"), np.zeros(n + 2, f"u{size}")
    (call if plain else native(call))(0, 1, source.ctypes.data, found.ctypes.data)
    assert found.tolist() == [*range(0, 2 * n, 2), 0, 0]
