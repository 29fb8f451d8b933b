"""Reading arrays without loading what is large, and taking them in the model's types."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import compiler
from compiler.frontend.types import InputType
from compiler.runtime.arrays import as_plain
from compiler.runtime.memory import Array
from compiler.training import Dataset, Trainer, read_arrays
from compiler.training.data import MAPPED
from tests.models import tiny
from tests.test_api import bits

RANDOM = np.random.default_rng(3)
DATA = {"x": RANDOM.normal(size=(20, 4)).astype(np.float32), "label": RANDOM.integers(0, 3, 20)}
LARGE = {
    "x": RANDOM.normal(size=(MAPPED // 16, 4)).astype(np.float32),
    "fortran": np.asfortranarray(RANDOM.normal(size=(MAPPED // 16, 4)).astype(np.float32)),
    "swapped": RANDOM.normal(size=(MAPPED // 16, 2)).astype(">f8"),
    "small": np.arange(5),
}


def is_mapped(a: Array) -> bool:
    base: Any = a
    while base is not None and not isinstance(base, np.memmap):
        base = getattr(base, "base", None)
    return base is not None


# --- files -----------------------------------------------------------------------------------------------------------
def test_what_is_large_is_mapped(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", **LARGE)
    found = read_arrays(tmp_path / "a.npz")
    assert {n: is_mapped(a) for n, a in found.items()} == {"x": True, "fortran": True, "swapped": True, "small": False}
    assert found["fortran"].flags.f_contiguous
    assert bits(found) == bits(LARGE)
    assert not found["x"].flags.writeable  # the file is not changed by accident


def test_what_is_compressed_is_read(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "a.npz", **LARGE)
    found = read_arrays(tmp_path / "a.npz")
    assert not any(map(is_mapped, found.values()))
    assert bits(found) == bits(LARGE)


def test_a_member_with_an_extra_field(tmp_path: Path) -> None:
    """The header at the member may be longer than the directory at the end tells."""
    np.save(tmp_path / "x.npy", LARGE["x"])
    info = zipfile.ZipInfo("x.npy")
    info.extra = b"\x99\x99\x05\x00hello"
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr(info, (tmp_path / "x.npy").read_bytes())
        archive.filelist[0].extra = b""  # of the directory only
    found = read_arrays(tmp_path / "a.npz")
    assert is_mapped(found["x"])
    assert bits(found) == bits({"x": LARGE["x"]})


def test_a_folder_of_files(tmp_path: Path) -> None:
    for name, a in LARGE.items():
        np.save(tmp_path / f"{name}.npy", a)
    (tmp_path / "README").write_text("other files do not matter")
    found = read_arrays(tmp_path)
    assert all(map(is_mapped, found.values()))
    assert bits(found) == bits(LARGE)


def test_files_that_hold_no_arrays(tmp_path: Path) -> None:
    def refused(message: str, path: Path) -> None:
        with pytest.raises(compiler.InputError, match=message):
            dict(read_arrays(path))

    file, folder = tmp_path / "a.npz", tmp_path / "folder"
    folder.mkdir()
    refused("there are no .npy files in the folder", folder)
    np.save(folder / "objects.npy", np.array([None]), allow_pickle=True)
    refused("'.*objects.npy' is no .npy file of a numeric array: it holds Python objects", folder)
    (folder / "objects.npy").write_bytes(b"\x93NUMPY")
    refused("'.*objects.npy' is no .npy file of a numeric array", folder)
    (folder / "objects.npy").write_bytes(b"garbage" * 5)
    refused("it is a file of another kind, or cut off; write it with numpy.save", folder)
    np.save(tmp_path / "one.npy", np.ones(3))
    refused("holds one array without a name: .* or give a folder of .npy files", tmp_path / "one.npy")
    refused("there is no file", file)
    np.savez(file)
    refused("there are no arrays in", file)
    np.savez(file, x=np.array([None]))
    refused("it holds Python objects", file)
    np.savez(file, **LARGE)
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    refused("is no .npz file of numeric arrays", file)
    second = whole.index(b"PK\x03\x04", 4)
    file.write_bytes(whole[:second] + bytes(4) + whole[second + 4 :])
    refused("is no .npz file of numeric arrays: array 'fortran': it is damaged", file)
    for size in (9, MAPPED):  # one is read, the other mapped
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("x.npy", b"x" * size)
        refused("is no .npz file of numeric arrays: array 'x': it is a file of another kind", file)
    for text, message in ((b"", "it is empty"), (b"hello", "it is a file of another kind")):
        file.write_bytes(text)
        refused(f"is no .npz file of numeric arrays: {message}; make one with numpy.savez", file)


def npy(header: bytes, version: int, values: bytes) -> bytes:
    """A file of one array, with whatever as its header."""
    return (
        b"\x93NUMPY" + bytes([version, 0]) + len(header).to_bytes(2 if version == 1 else 4, "little") + header + values
    )


PLAIN = b"{'descr': '<f4', 'fortran_order': False, 'shape': %s}"


@pytest.mark.parametrize(
    "header",
    [
        b"(" * 5000,
        b"[" * 4000 + b"]" * 4000,
        b"-" * 9000 + b"1",
        b"'''",
        b"\xff\xfe",
        b"\0",
        b"1" * 5000,
        b"  {",
        b"if x:\n    1\n  2",
        PLAIN % b"(99999999999999999999,)",
        PLAIN % b"(4611686018427387904, 9)",
        PLAIN % b"(10000000000000,)",
        PLAIN % b"(-3,)",
        b"{'descr': ('<f4', (9999999999,)), 'fortran_order': False, 'shape': (1,)}",
        b"{'descr': '', 'fortran_order': 2, 'shape': ()}",
    ],
)
@pytest.mark.filterwarnings("ignore")  # NumPy's, of headers that it reads in another way
def test_damaged_headers(header: bytes, tmp_path: Path) -> None:
    """Whatever Python's parser or NumPy raises of them: they are text, which may be any of a hostile file."""
    for version in (1, 2, 3):
        for size in (24, MAPPED):  # one is read, the other mapped
            (tmp_path / "x.npy").write_bytes(npy(header, version, bytes(size)))
            with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
                archive.write(tmp_path / "x.npy", "x.npy")
            for path in (tmp_path, tmp_path / "x.npz"):
                with pytest.raises(compiler.InputError, match=r"x\.np[yz]' is no \.np[yz] file of"):
                    read_arrays(path)["x"]


@pytest.mark.parametrize("kind", ["folder", "archive"])
def test_what_the_model_does_not_take_may_be_damaged(tmp_path: Path, kind: str) -> None:
    for name, a in DATA.items():
        np.save(tmp_path / f"{name}.npy", a)
    (tmp_path / "junk.npy").write_bytes(b"garbage")
    path = tmp_path
    if kind == "archive":
        path = tmp_path / "a.npz"
        with zipfile.ZipFile(path, "w") as archive:
            for file in tmp_path.glob("*.npy"):
                archive.write(file, file.name)
    trainer = Trainer(tiny(), read_arrays(path))
    assert trainer.unused == ["junk"]
    assert len(list(trainer.run(1))) == 1
    with pytest.raises(compiler.InputError, match=r"junk.* it is a file of another kind"):
        read_arrays(path)["junk"]


# --- types -----------------------------------------------------------------------------------------------------------
def dataset(dtype: str, array: Any) -> Dataset:
    return Dataset({"a": array}, {"a": InputType(dtype, ("N",))}, (), "the data")


def test_nothing_is_copied() -> None:
    x = RANDOM.normal(size=20).astype(np.float32)
    rows = dataset("f32", x).rows(slice(4, 9))["a"]
    assert np.shares_memory(rows, x)
    assert type(rows) is np.ndarray


@pytest.mark.parametrize(
    ("dtype", "array"),
    [
        ("f32", np.array([1, 255], np.uint8)),
        ("f32", np.array([True, False])),
        ("f32", np.array([1.5, np.nan, np.inf, -0.0], np.float16)),
        ("f32", np.array([1.5, np.nan, -np.inf, -0.0])),
        ("f32", np.array([1.5, 2], ">f4")),
        ("f32", np.array([2**24, -(2**24)])),
        ("f64", np.array([2**53, -(2**53)])),
        ("f16", np.array([2048, -2048])),
        ("f64", np.array([2**24 + 1], np.int32)),
        ("i32", np.array([2**31 - 1, -(2**31)])),
        ("i64", np.array([2**63 - 1], np.uint64)),
        ("u8", np.array([0, 255])),
        ("i4", np.array([-8, 7])),
        ("bf16", np.array([1.5, 1 / 3], np.float32)),
        ("bf16", np.array([1.5, 0.25], ml_dtypes.bfloat16)),
    ],
)
def test_types_whose_values_are_held(dtype: str, array: Array) -> None:
    rows = dataset(dtype, array).rows(np.arange(len(array))[::-1])["a"][::-1]
    if dtype == "bf16":  # files have no such type, so others are rounded
        rows, array = rows.view(ml_dtypes.bfloat16), array.astype(ml_dtypes.bfloat16)
    assert rows.dtype.name == {"f16": "float16", "f32": "float32", "f64": "float64", "i32": "int32", "i64": "int64",
                               "u8": "uint8", "i4": "int8", "bf16": "bfloat16"}[dtype]  # fmt: skip
    np.testing.assert_array_equal(rows, array)


@pytest.mark.parametrize(
    ("dtype", "array", "message"),
    [
        ("f32", np.array([0.5, 0.1]), r"is float64: the model takes float32, which would round 0\.1; .*'float32'"),
        ("f32", np.array([1e300]), "is float64: the model takes float32, which would round 1e[+]300"),
        ("f32", np.array([5, 2**24 + 1]), "is int64: the model takes float32, which would round 16777217"),
        ("f32", np.array([-(2**31)], np.int32), "which would round -2147483648"),
        ("f64", np.array([2**60]), "is int64: the model takes float64, which would round"),
        ("f16", np.array([1e5], np.float32), "which would round 100000"),
        ("i32", np.array([0, 2**31]), "is int64: the model takes int32, which cannot hold 2147483648"),
        ("u8", np.array([-1]), "which cannot hold -1"),
        ("i64", np.array([2**63], np.uint64), "which cannot hold 9223372036854775808"),
        ("i64", np.array([1.0]), "is float64: the model takes int64, which cannot hold its values"),
        ("bool", np.array([0, 1]), "is int64: the model takes bool, which cannot hold its values"),
        ("f32", np.array([1j]), "is complex128: the model takes float32"),
        ("f32", np.array(["a"]), "is <U1: the model takes float32"),
        ("f32", np.array([None]), "is object: the model takes float32"),
        ("i4", np.array([8]), "the model takes int4, which cannot hold its values"),
        ("bf16", np.array([1e300]), "the model takes bfloat16, which cannot hold its values"),
        ("f8e4m3fn", np.array([1.0]), "the model takes float8_e4m3fn, which cannot hold its values"),
    ],
)  # fmt: skip
def test_types_that_lose_values(dtype: str, array: Array, message: str) -> None:
    with pytest.raises(compiler.InputError, match=f"array 'a' of the data .*{message}"):
        dataset(dtype, array)


def test_every_value_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """In pieces, so that a mapped array is never in memory as a whole."""
    monkeypatch.setattr("compiler.training.data._CHUNK", 64)
    a = np.zeros(100, np.int64)
    dataset("i32", a)
    a[99] = 2**40
    with pytest.raises(compiler.InputError, match="cannot hold 1099511627776"):
        dataset("i32", a)


def test_converted_data_trains_the_same() -> None:
    data = {"x": (DATA["x"] * 10).astype(np.int8), "label": DATA["label"].astype(np.uint8)}
    same = {"x": data["x"].astype(np.float32), "label": DATA["label"]}
    one, two = Trainer(tiny(), data), Trainer(tiny(), same)
    assert [e.loss for e in one.run(1)] == [e.loss for e in two.run(1)]
    assert bits(one.step.state) == bits(two.step.state)


# --- array-likes -----------------------------------------------------------------------------------------------------
class OnlyDlpack:
    """What has its memory to offer by DLPack alone."""

    def __init__(self, array: Array):
        self._array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()


class OnlyInterface:
    def __init__(self, array: Array):
        self._array = array
        self.__array_interface__ = array.__array_interface__


@pytest.mark.parametrize("kind", [np.asarray, OnlyDlpack, OnlyInterface, memoryview])
def test_memory_of_others_is_taken(kind: Any) -> None:
    x = DATA["x"].copy()
    assert np.shares_memory(as_plain("x", kind(x)), x)
    trainer = Trainer(tiny(), {"x": kind(x), "label": DATA["label"].tolist()}, batch=8)
    same = Trainer(tiny(), DATA, batch=8)
    assert [e.loss for e in trainer.run(1)] == [e.loss for e in same.run(1)]


def test_what_is_no_array() -> None:
    class Refuses:
        def __array__(self, *args: Any, **options: Any) -> Any:
            raise RuntimeError("it is on another device")

    for value, message in (
        (Refuses(), "array 'x' of the data is no array: it is on another device"),
        ([[1, 2], [3]], "array 'x' of the data is no array"),
        (np.ma.masked_array(DATA["x"]), "array 'x' of the data is a masked array"),
        (DATA["x"][0], r"array 'x' of the data has shape \[4\]: the model takes f32\[N,4\]"),
        (DATA["x"][:7], "the data has arrays of different numbers of samples: {'x': 7, 'label': 20}"),
        (DATA["x"][:0], "no samples in the data"),
    ):
        with pytest.raises(compiler.InputError, match=message):
            Trainer(tiny(), {**DATA, "x": value})


def test_a_missing_array_is_named() -> None:
    with pytest.raises(compiler.InputError) as found:
        Trainer(tiny(), {"x": DATA["x"], "labels": DATA["label"]})
    assert str(found.value) == "the data has no array 'label' (did you mean 'labels'?): it has 'x', 'labels'"
    with pytest.raises(compiler.InputError, match="the data has no array 'x', 'label': it has none"):
        Trainer(tiny(), {})
    with pytest.raises(compiler.InputError, match="the validation data has no array 'x': it has 'label'"):
        Trainer(tiny(), DATA, {"label": DATA["label"]})


def test_fingerprints_tell_data_apart() -> None:
    a = RANDOM.normal(size=1000).astype(np.float32)
    whole = dataset("f32", a).fingerprint()
    assert dataset("f32", a.astype(np.float64)).fingerprint() == whole  # the model sees the same
    assert dataset("f32", a[:999]).fingerprint() != whole
    for i in (0, 999):
        b = a.copy()
        b[i] += 1
        assert dataset("f32", b).fingerprint() != whole
