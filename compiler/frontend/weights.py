"""Initializers: their types now, their bytes when they are needed. Nothing in a file is believed before it is checked.

External data is mapped read-only, not copied, and only from regular files inside the model's folder.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable
from functools import cached_property
from math import prod
from pathlib import Path

import numpy as np
import numpy.typing as npt
from onnx import NodeProto, SparseTensorProto, TensorProto

from compiler.errors import ModelError, Problem
from compiler.frontend.report import Report
from compiler.frontend.walk import attribute_tensors, bodies
from compiler.ir.proto import element_type_name, tensor_from_proto, tensor_to_proto
from compiler.ir.types import (
    NARROW,
    AnyArray,
    Tensor,
    TensorType,
    dtype_from_onnx,
    numpy_dtype,
    onnx_dtype,
    packed_nbytes,
)

_LIMIT = 2**40
"""Elements that no tensor has: a larger product of dims is a malformed file."""

_DENSE_LIMIT = 2**28
"""Elements up to which a sparse tensor is made dense: a small file must not ask for any amount of memory."""

# The typed field that holds the elements of each element type, where raw_data does not.
_FIELDS: dict[str, str] = {"f32": "float_data", "f64": "double_data", "i64": "int64_data"}
_FIELDS |= {"u32": "uint64_data", "u64": "uint64_data"}
_OTHER_FIELD = "int32_data"


class Weight:
    """An initializer. `type` is known without reading its bytes; `tensor` reads (and keeps) them."""

    def __init__(self, name: str, tensor_type: TensorType, load: Callable[[], Tensor]):
        self.name, self.type = name, tensor_type
        self._load = load

    @cached_property
    def tensor(self) -> Tensor:
        """ModelError if the bytes turn out to be malformed."""
        return self._load()

    def __repr__(self) -> str:
        return f"Weight({self.name!r}: {self.type})"


class Tensors:
    """Reads the tensors of one model. folder: where external data may lie; None if the model came without one."""

    def __init__(self, folder: Path | None, report: Report):
        self._folder = folder
        self._report = report
        self._files: dict[Path, npt.NDArray[np.uint8]] = {}
        self._homeless: list[str] = []

    def weight(self, t: TensorProto, where: str) -> Weight | None:
        """A tensor, checked as far as possible without its bytes; None, with a report, if it is no good."""
        found = self._type(t.data_type, t.dims, where)
        if found is None:
            return None
        external = t.data_location == TensorProto.EXTERNAL
        if t.HasField("segment"):
            self._report.unsupported("a tensor in segments is not supported", where, "save it in one piece")
            self._report.stop = True
            return None
        if external:
            data = self._external(t, found, where)
            return None if data is None else Weight(t.name, found, lambda: Tensor(data))
        if not self._has_all_data(t, found, where):
            return None
        return Weight(t.name, found, lambda: _load(t, where))

    def sparse(self, s: SparseTensorProto, where: str) -> Weight | None:
        """A sparse initializer, as the dense tensor that it means."""
        found = self._type(s.values.data_type, s.dims, where)
        if found is not None and found.size > _DENSE_LIMIT:
            what = f"a sparse tensor {found} is too large to be made dense"
            self._report.unsupported(what, where, f"at most {_DENSE_LIMIT} elements are")
            self._report.stop = True
            return None
        values, indices = self.weight(s.values, where), self.weight(s.indices, where)
        if found is None or values is None or indices is None:
            return None
        count = values.type.size
        if (
            values.type.rank != 1
            or indices.type.dtype != "i64"
            or indices.type.shape not in ((count,), (count, len(found.shape)))
        ):
            what = f"a sparse tensor {found} has values {values.type} and indices {indices.type}"
            self._report.malformed(what, where, "give n values, and n or n x rank int64 indices")
            return None
        return Weight(s.values.name, found, lambda: _densify(found, values.tensor.array, indices.tensor.array, where))

    def embed(self, nodes: Iterable[NodeProto]) -> None:
        """Put external data into the messages, for tensors that stay in nodes: attributes, and nested initializers."""
        for node in nodes:
            for t in attribute_tensors(node):
                self._embed(t)
            for _, g in bodies(node):
                for t in g.initializer:
                    self._embed(t)
                self.embed(g.node)

    def _embed(self, t: TensorProto) -> None:
        if t.data_location == TensorProto.EXTERNAL and (w := self.weight(t, f"tensor {t.name!r}")) is not None:
            t.raw_data = tensor_to_proto(w.tensor).raw_data
            del t.external_data[:]
            t.data_location = TensorProto.DEFAULT

    def finish(self) -> None:
        """Report what is wrong with many tensors in the same way, once."""
        if self._homeless:
            names = ", ".join(self._homeless[:3]) + (", ..." if len(self._homeless) > 3 else "")
            what = (
                f"{len(self._homeless)} tensors have their data in other files, and there is no folder to find them in"
            )
            remedy = "pass the model's path, or call onnx.load_external_data_for_model(model, folder) first"
            self._report.malformed(what, names, remedy)

    def _type(self, elem_type: int, dims: object, where: str) -> TensorType | None:
        shape = tuple(int(d) for d in dims)  # type: ignore[attr-defined]
        dtype = dtype_from_onnx(elem_type)
        if any(d < 0 for d in shape) or prod(shape) > _LIMIT:
            self._report.malformed(
                f"a tensor has the dims {list(shape)}", where, "no tensor has: export the model again"
            )
        elif elem_type == TensorProto.UNDEFINED:
            self._report.malformed("a tensor has no element type", where, "set data_type, or export the model again")
        elif dtype is None:
            what = f"tensors of {element_type_name(elem_type)} are not supported"
            self._report.unsupported(what, where, "cast them to a numeric type that numpy has")
            self._report.stop = True
        else:
            return TensorType(dtype, shape)
        return None

    def _has_all_data(self, t: TensorProto, found: TensorType, where: str) -> bool:
        if t.HasField("raw_data"):
            have, need, unit = len(t.raw_data), packed_nbytes(found.dtype, found.size), "bytes"
        elif found.dtype in NARROW:
            have, need, unit = len(t.int32_data), packed_nbytes(found.dtype, found.size), "elements"
        else:
            have, need, unit = len(getattr(t, _FIELDS.get(found.dtype, _OTHER_FIELD))), found.size, "elements"
        if have != need:
            what = f"a tensor {found} needs {need} {unit}, but its data has {have}"
            self._report.malformed(what, where, "correct its dims or its data, or export the model again")
        return have == need

    def _external(self, t: TensorProto, found: TensorType, where: str) -> AnyArray | None:
        """A view of the bytes in a file beside the model."""
        if self._folder is None:
            self._homeless.append(repr(t.name))
            return None
        entries = {e.key: e.value for e in t.external_data}
        try:
            path = _inside(self._folder, entries.get("location", ""))
            offset, length = (_number(entries, key) for key in ("offset", "length"))
            data = self._map(path)
        except ValueError as e:
            self._report.malformed(f"external data: {e}", where, "put the file of the data into the model's folder")
            return None
        offset = offset or 0
        length = data.size - offset if length is None else length
        if offset + length > data.size or length < 0:
            what = f"external data: bytes {offset} to {offset + length} are not in {path.name!r}, which has {data.size}"
            self._report.malformed(what, where, "copy the file again")
        elif length != (need := packed_nbytes(found.dtype, found.size)):
            what = f"external data: a tensor {found} needs {need} bytes, not {length}"
            self._report.malformed(what, where, "save the model and its data again")
        elif length < found.nbytes:
            return _unpacked(data[offset : offset + length].tobytes(), found)
        else:
            dtype = numpy_dtype(found.dtype)
            dtype = dtype.newbyteorder("<") if dtype.isbuiltin == 1 else dtype  # ml_dtypes has one order only
            view: AnyArray = data[offset : offset + length].view(dtype).reshape(found.shape)
            return view if view.flags.aligned else view.copy()
        return None

    def _map(self, path: Path) -> npt.NDArray[np.uint8]:
        """The whole file, mapped read-only. ValueError if it is no readable regular file."""
        if path not in self._files:
            try:
                # O_NONBLOCK: opening a named pipe must not wait for a writer
                with open(path, "rb", opener=lambda p, flags: os.open(p, flags | os.O_NONBLOCK)) as file:
                    status = os.fstat(file.fileno())
                    if not stat.S_ISREG(status.st_mode):
                        raise ValueError(f"{path.name!r} is no regular file")
                    empty = status.st_size == 0  # which cannot be mapped
                    self._files[path] = np.empty(0, np.uint8) if empty else np.memmap(file, np.uint8, "r")
            except OSError as e:
                raise ValueError(f"the file {path.name!r} cannot be read: {e.strerror}") from e
        return self._files[path]


def _unpacked(data: bytes, found: TensorType) -> AnyArray:
    """Elements of less than 8 bits, which a file packs."""
    return tensor_from_proto(TensorProto(data_type=onnx_dtype(found.dtype), dims=found.shape, raw_data=data)).array


def _inside(folder: Path, location: str) -> Path:
    """The file that a tensor names, if that is inside the folder, links resolved. ValueError."""
    if not location:
        raise ValueError("the location is missing")
    pure = Path(location)
    if pure.is_absolute() or ".." in pure.parts or "\\" in location or "\0" in location:
        raise ValueError(f"the location {location!r} is not a relative path inside the model's folder")
    path = (folder / pure).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise ValueError(f"the location {location!r} leads outside of the model's folder")
    return path


def _number(entries: dict[str, str], key: str) -> int | None:
    text = entries.get(key)
    if text is None or text == "":
        return None
    if not (text.isascii() and text.isdigit()) or len(text) > 18:
        raise ValueError(f"{key} {text!r} is no number of bytes")
    return int(text)


def _load(t: TensorProto, where: str) -> Tensor:
    try:
        return tensor_from_proto(t)
    except ValueError as e:
        raise ModelError(Problem(str(e), where)) from e


def _densify(found: TensorType, values: AnyArray, indices: AnyArray, where: str) -> Tensor:
    dense = np.zeros(found.shape, values.dtype)
    flat = indices.astype(np.int64)
    if flat.ndim == 2:
        if not ((flat >= 0) & (flat < np.array(found.shape))).all():
            raise ModelError(Problem(f"a sparse tensor {found} has indices outside of its dims", where))
        flat = np.ravel_multi_index(tuple(flat.T), found.shape) if flat.size else flat.reshape(-1)
    if flat.size and not (flat.min() >= 0 and flat.max() < found.size):
        raise ModelError(Problem(f"a sparse tensor {found} has indices outside of its dims", where))
    dense.reshape(-1)[flat] = values
    return Tensor(dense)
