"""Objects in a process that is full of other things."""

import subprocess
import sys

import pytest

FULL = """
import ctypes

import numpy as np

from compiler.codegen.kernels.gemm_panels import make_gemm
from compiler.codegen.kernels.softmax import make_short_rows
from compiler.codegen.native import load

PAGE, NONE, PRIVATE, NORESERVE = 4096, 0, 0x22, 0x4000
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]

load([make_gemm("f64")])
pages = [libc.mmap(None, PAGE, NONE, PRIVATE, -1, 0) for _ in range(4096)]
wide = libc.mmap(None, 3 << 30, NONE, PRIVATE | NORESERVE, -1, 0)
for _ in range(30000):  # fill what is free above, but for single pages
    if libc.mmap(None, 2 * PAGE, NONE, PRIVATE, -1, 0) < wide:
        break
for page in pages[::2]:
    libc.munmap(page, PAGE)
load([make_gemm("f32"), make_short_rows("f32", True)])
print("loaded")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the numbers are of Linux")
def test_code_finds_its_constants_where_memory_is_in_pieces() -> None:
    """As between the libraries of two frameworks: room for constants here, for code only gigabytes away."""
    done = subprocess.run([sys.executable, "-c", FULL], capture_output=True, text=True, check=False)
    assert done.stdout == "loaded\n", done.stderr
