"""Getting the ModelProto out of what the user hands over: a path, the bytes of a file, or the message itself."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError, Message

from compiler.errors import ModelError, Problem
from compiler.frontend.walk import attribute_tensors, bodies

Model = onnx.ModelProto | bytes | str | os.PathLike[str]

_LIMIT = 2**31 - 1
_WITHOUT_TEXT = (
    onnx.AttributeProto.INT,
    onnx.AttributeProto.INTS,
    onnx.AttributeProto.FLOAT,
    onnx.AttributeProto.FLOATS,
    onnx.AttributeProto.STRING,  # these are bytes, decoded where they are read
    onnx.AttributeProto.STRINGS,
)
_EXPORT = "export the model again"
_BINARY = "convert it to the binary format: onnx.save(onnx.load(path), 'model.onnx')"


def read_model(model: Model) -> tuple[onnx.ModelProto, Path | None]:
    """The message, and the folder that its external data lies in: None unless a path was given.

    ModelError if there is no file, or none that holds a model.
    """
    if isinstance(model, onnx.ModelProto):
        return _with_graph(model, "the ModelProto"), None
    if isinstance(model, bytes | bytearray | memoryview):
        return _parse(bytes(model), "the bytes given"), None
    if not isinstance(model, str | os.PathLike):
        raise TypeError(f"a model is a path, bytes or an onnx.ModelProto, not {type(model).__name__}")
    path = Path(model)
    return _parse(_read_file(path), f"file {str(path)!r}"), path.resolve().parent


def files_of(path: str | os.PathLike[str]) -> list[Path]:
    """The file of a model and those of its external data, as it names them. ModelError."""
    model, folder = read_model(path)
    graphs = [g for t in model.training_info for g in (t.initialization, t.algorithm)]
    tensors = (t for g in (model.graph, *graphs, *model.functions) for t in _tensors(g))
    locations = {e.value for t in tensors for e in t.external_data if e.key == "location"}
    return [Path(path), *(Path(folder or "", location) for location in sorted(locations))]


def _tensors(graph: onnx.GraphProto | onnx.FunctionProto) -> Iterator[onnx.TensorProto]:
    """Every tensor of a graph or function, and of the graphs nested in it."""
    if isinstance(graph, onnx.GraphProto):
        yield from graph.initializer
        for s in graph.sparse_initializer:
            yield from (s.values, s.indices)
    for node in graph.node:
        yield from attribute_tensors(node)
        for _, g in bodies(node):
            yield from _tensors(g)


def _read_file(path: Path) -> bytes:
    where = f"file {str(path)!r}"
    try:
        if path.is_dir():
            raise ModelError(Problem("this is a folder, not a model", where, "give the path of the .onnx file in it"))
        if path.is_char_device() or path.is_block_device():  # it may have no end
            raise ModelError(Problem("this is a device, not a model", where, "give the path of an .onnx file"))
        size = path.stat().st_size
        if size > _LIMIT:
            what = f"the file has {size} bytes; one protobuf message has at most 2 GiB"
            raise ModelError(Problem(what, where, "save the model with external data (onnx.save_model)"))
        return path.read_bytes()
    except FileNotFoundError as e:
        raise ModelError(Problem(f"there is no file {str(path)!r}", remedy="check the path")) from e
    except (OSError, ValueError) as e:  # ValueError: a null byte in the path
        reason = (e.strerror if isinstance(e, OSError) else None) or str(e)
        raise ModelError(Problem(f"the file cannot be read: {reason}", where)) from e


def _parse(data: bytes, where: str) -> onnx.ModelProto:
    if not data:
        raise ModelError(Problem("there are no bytes: this is no model", where, _EXPORT))
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError as e:
        if _is_text(data[:4096]):
            raise ModelError(Problem("this is text, not a model in ONNX's binary format", where, _BINARY)) from e
        what = "this is no ONNX model, or its end is missing: it does not parse as a protobuf message"
        raise ModelError(Problem(what, where, f"check the size of the file, or {_EXPORT}")) from e
    return _with_graph(model, where)


def _is_text(head: bytes) -> bool:
    try:
        text = head.decode("utf-8")
    except UnicodeDecodeError as e:
        text = head[: e.start].decode("utf-8") if e.start > len(head) - 4 else "\0"
    return all(c.isprintable() or c in "\t\n\r\f" for c in text)


def _with_graph(model: onnx.ModelProto, where: str) -> onnx.ModelProto:
    if not model.HasField("graph"):
        raise ModelError(
            Problem("there is no graph in it: this is no ONNX model", where, "check that it is the right file")
        )
    bad = _bad_text(model)
    if bad is not None:
        raise ModelError(Problem(f"the text {bad!r} in it is not UTF-8: the file is damaged", where, _EXPORT))
    return model


def _bad_text(message: Message) -> bytes | None:
    """A string that is not valid text, which protobuf hands out as bytes; None if all are."""
    for field, value in message.ListFields():
        values = value if isinstance(value, Sequence) and not isinstance(value, str | bytes) else [value]
        if field.type == field.TYPE_STRING:
            found = next((v for v in values if isinstance(v, bytes)), None)
        elif field.type == field.TYPE_MESSAGE:
            found = next((bad for v in values if not _good_node(v) and (bad := _bad_text(v)) is not None), None)
        else:
            continue
        if found is not None:
            return found
    return None


def _good_node(message: Message) -> bool:
    """A quick answer for most nodes, of which there are many."""
    if not isinstance(message, onnx.NodeProto) or message.metadata_props:
        return False
    try:
        "".join((message.name, message.op_type, message.domain, message.overload, message.doc_string))
        "".join((*message.input, *message.output, *(a.name + a.ref_attr_name for a in message.attribute)))
    except TypeError:
        return False
    return all(a.type in _WITHOUT_TEXT for a in message.attribute)
