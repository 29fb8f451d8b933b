"""The inference model with trained values: what `step.export` writes."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

import onnx
from onnx import ModelProto, numpy_helper

from compiler.frontend.source import Source
from compiler.ir.types import AnyArray

INLINE_LIMIT = 2**31 - 2**24
"""Bytes up to which a model is one file: protobuf's limit, and room for what is no weight."""


def trained_model(source: Source, values: Mapping[str, AnyArray]) -> ModelProto:
    """A copy of a model without training_info, its initializers replaced by `values` where they have one."""
    model = ModelProto()
    model.CopyFrom(source.model)
    del model.training_info[:]
    for t in model.graph.initializer:
        weight = source.initializers.get(t.name)
        array = values.get(t.name)
        if array is None and weight is not None and t.data_location == onnx.TensorProto.EXTERNAL:
            array = weight.tensor.array  # the new file has no folder of external data yet
        if array is not None:
            doc = t.doc_string
            t.CopyFrom(numpy_helper.from_array(array, t.name))
            t.doc_string = doc
    return model


def save_model(model: ModelProto, path: str | os.PathLike[str]) -> None:
    """Write a model, whole or not at all; one too large for a single file puts its weights in `<name>.data` beside it."""
    path = Path(path)
    folder = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        part = folder / path.name
        if model.ByteSize() < INLINE_LIMIT:
            onnx.save(model, part)
        else:
            data = f"{path.name}.data"
            onnx.save(model, part, save_as_external_data=True, location=data)
            os.replace(folder / data, path.parent / data)
        os.replace(part, path)
    finally:
        for left in folder.iterdir():
            left.unlink()
        folder.rmdir()
