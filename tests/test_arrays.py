"""Arrays of others: their memory is seen, not copied, whatever way they offer it; what cannot be seen is told."""

from __future__ import annotations

import array
import ctypes
from pathlib import Path
from typing import Any, ClassVar

import ml_dtypes
import numpy as np
import pytest

import compiler
from compiler.runtime.arguments import as_array
from compiler.runtime.arrays import as_plain
from tests.frontend.small import linear, make_model

Array = np.ndarray[Any, np.dtype[Any]]

NUMBERS = np.arange(12, dtype=np.float32).reshape(3, 4)


class Interface:
    """Only the array interface."""

    def __init__(self, a: Array):
        self._kept, self.__array_interface__ = a, a.__array_interface__


class Converts:
    """Only `__array__`, as many libraries have it."""

    def __init__(self, a: Array):
        self._kept = a

    def __array__(self, dtype: object = None, copy: bool | None = None) -> Array:
        return self._kept


class Dlpack:
    """Only DLPack, of some device."""

    def __init__(self, a: Array, device: int = 1):
        self._kept, self._device = a, device

    def __dlpack__(self, **options: Any) -> object:
        return self._kept.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device, 0


@pytest.mark.parametrize("offered", [Interface, Converts, Dlpack, memoryview, np.asarray])
@pytest.mark.parametrize(
    "numbers",
    [NUMBERS, NUMBERS[:, ::2], NUMBERS[::-1, ::-1], NUMBERS.T, NUMBERS[:0], NUMBERS[1, 2:3].reshape(())],
    ids=["whole", "every other", "backwards", "transposed", "empty", "scalar"],
)
def test_memory_is_shared(offered: Any, numbers: Array) -> None:
    found = as_array("x", offered(numbers), "f32")
    assert type(found) is np.ndarray
    np.testing.assert_array_equal(found, numbers)
    assert found.ctypes.data == numbers.ctypes.data or not numbers.size
    assert found.strides == numbers.strides or not numbers.size


def test_buffers_of_python() -> None:
    values = array.array("f", [1, 2, 3])
    found = as_plain("x", values)
    values[1] = 7
    assert found.tolist() == [1, 7, 3]
    assert as_array("x", (ctypes.c_int64 * 2)(5, 6), "i64").tolist() == [5, 6]
    assert as_array("x", bytearray(b"\x01\x02"), "u8").tolist() == [1, 2]


def test_read_only_mapped_and_swapped(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", NUMBERS)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    assert np.shares_memory(as_array("x", mapped, "f32"), mapped)
    swapped = NUMBERS.astype(">f4")
    assert np.shares_memory(as_array("x", swapped, "f32"), swapped)
    step = compiler.compile(linear(), dims={"N": 3})
    t = np.zeros((3, 1), np.float32)
    wanted = step.infer(x=NUMBERS[:, :3])["y"]
    strange: list[Any] = [mapped[:, :3], swapped[:, :3], np.asfortranarray(NUMBERS)[:, :3], Dlpack(NUMBERS[:, :3])]
    for x in strange:
        np.testing.assert_array_equal(step.infer(x=x)["y"], wanted)
    step(x=Dlpack(NUMBERS[:, :3]), t=Interface(t))
    step.state["w"] = np.array([[1], [2], [3]], ">f4")
    assert step.state["w"].ravel().tolist() == [1, 2, 3]


def test_swapped_values_that_decide_shapes() -> None:
    """1 backwards is another number with the same bytes: the two must not be taken for one another."""
    step = compiler.compile(make_model("m (float[4] x, int64[k] s) => (float[a, b] y) { y = Reshape(x, s) }"))
    x = np.arange(4, dtype=np.float32)
    shapes = [np.array([1, 4]), np.array([2, 2], ">i8"), np.array([1, 4], ">i8"), np.array([2, 2])]
    assert [step(x=x, s=s)["y"].shape for s in shapes] == [(1, 4), (2, 2), (1, 4), (2, 2)]
    with pytest.raises(compiler.CompileError):  # these bytes as they are mean 2**56 and 2**58
        step(x=x, s=np.array([1, 4], ">i8").view("<i8"))


# --- types that NumPy lacks ------------------------------------------------------------------------------------------
class Exported:
    """A tensor of DLPack as other libraries export it, made here by hand; NumPy refuses it as PyTorch's bfloat16."""

    def __init__(self, bits: Array, code: int, n: int, strides: bool = True):
        self.bits, self.freed = bits, 0
        self._shape = (ctypes.c_int64 * bits.ndim)(*bits.shape)
        self._strides = (ctypes.c_int64 * bits.ndim)(*(s // bits.itemsize for s in bits.strides))
        self._fields = (code, n, strides)

    def __array__(self, *args: object, **options: object) -> Array:
        raise TypeError("Got unsupported ScalarType")

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def __dlpack__(self) -> object:
        code, n, strided = self._fields
        head = np.zeros(48, np.uint8)  # DLTensor, whose fields C aligns so
        head[0:8].view(np.uint64)[:] = self.bits.ctypes.data - 2
        head[8:12].view(np.int32)[:] = 1
        head[16:20].view(np.int32)[:] = self.bits.ndim
        head[20:22] = code, n
        head[22:24].view(np.uint16)[:] = 1
        head[24:32].view(np.uint64)[:] = ctypes.addressof(self._shape)
        head[32:40].view(np.uint64)[:] = ctypes.addressof(self._strides) if strided else 0
        head[40:48].view(np.uint64)[:] = 2
        self._head = head
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        capsule: object = new(head.ctypes.data, b"dltensor", None)
        return capsule


BF16 = np.array([[1.5, -2.0, 3.0], [0.25, 5.0, -0.0]], np.float32).astype(ml_dtypes.bfloat16)


@pytest.mark.parametrize(
    "bits", [BF16, BF16[:, ::2], BF16.T, BF16[:0]], ids=["whole", "strided", "transposed", "empty"]
)
def test_bfloat16_by_dlpack(bits: Array) -> None:
    given = Exported(bits.view(np.uint16), 4, 16)
    found = as_plain("x", given)
    assert found.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(found.view(np.uint16), bits.view(np.uint16))
    assert found.ctypes.data == bits.ctypes.data or not bits.size
    assert not found.flags.writeable or not bits.size
    np.testing.assert_array_equal(as_array("x", given, "bf16"), bits.view(np.uint16))
    with pytest.raises(compiler.InputError, match="x is bfloat16, the model takes float32: convert it"):
        as_array("x", given, "f32")


def test_float8_by_dlpack() -> None:
    bits = np.array([0x38, 0xC0], np.uint8)
    for code, name in ((10, "float8_e4m3fn"), (12, "float8_e5m2")):
        found = as_plain("x", Exported(bits, code, 8, strides=False))
        assert found.dtype == np.dtype(name)
        assert found.view(np.uint8).tolist() == bits.tolist()
    assert as_array("x", Exported(bits, 10, 8), "f8e4m3fn").tolist() == bits.tolist()


def test_the_capsule_lives_as_long_as_the_view() -> None:
    class Counted(Exported):
        def __dlpack__(self) -> object:
            capsule = super().__dlpack__()
            kept.append(capsule)
            return capsule

    kept: list[object] = []
    found = as_plain("x", Counted(BF16.view(np.uint16), 4, 16))
    base: Any = found
    while isinstance(base, np.ndarray):
        base = base.base
    assert base._capsule is kept[0]


# --- what cannot be seen ---------------------------------------------------------------------------------------------
class Tracked(Interface):
    requires_grad = True


class OnDevice:
    """As arrays of Numba on a GPU."""

    __cuda_array_interface__: ClassVar = {"shape": (1,)}


class Broken:
    def __array__(self, *args: object, **options: object) -> Array:
        raise ValueError("the file is closed")

    def __dlpack__(self) -> object:
        raise AssertionError("not asked, as NumPy's way says what is wrong")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (Tracked(NUMBERS), r"x is a tensor that requires grad, .*: give it with .detach\(\)"),
        (Dlpack(NUMBERS, 2), r"x is in the memory of a device \(CUDA\): copy it to the CPU first, as with .cpu\(\)"),
        (Dlpack(NUMBERS, 8), r"x is in the memory of a device \(Metal\)"),
        (Dlpack(NUMBERS, 77), r"x is in the memory of a device \(number 77 of DLPack\)"),
        (OnDevice(), r"x is in the memory of a device \(CUDA\)"),
        (Broken(), "x is no array: the file is closed"),
        (Exported(BF16.view(np.uint16), 99, 16), "x is no array: Got unsupported ScalarType"),
        (np.ma.masked_array(NUMBERS), "x is a masked array"),
        ([[1, 2], [3]], "x is no array: "),
        (Dlpack(NUMBERS.astype(np.float64)), "x is float64, the model takes float32: convert it"),
    ],
)
def test_what_is_told(value: Any, message: str) -> None:
    with pytest.raises(compiler.InputError, match=message):
        as_array("x", value, "f32")


@pytest.mark.parametrize("device", [1, 3, 13])
def test_memory_that_a_device_shares_with_the_host(device: int) -> None:
    assert np.shares_memory(as_array("x", Dlpack(NUMBERS, device), "f32"), NUMBERS)
