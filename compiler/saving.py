"""Writing ONNX models to files."""

from __future__ import annotations

import os
from pathlib import Path

import onnx

from compiler.runtime.files import replacing

INLINE_LIMIT = 2**31 - 2**24
"""Bytes up to which a model is one file: protobuf's limit, and room for what is no weight."""


def save_model(model: onnx.ModelProto, path: str | os.PathLike[str]) -> None:
    """Write a model, whole or not at all; one too large for a single file puts its weights in `<name>.data` beside it.

    OSError as the file system gives it. The message stays as it is.
    """
    if model.ByteSize() < INLINE_LIMIT:
        with replacing(path) as part:
            part.write_bytes(model.SerializeToString())
        return
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    path = Path(os.path.realpath(path))
    with replacing(path) as part, replacing(path.with_name(f"{path.name}.data")) as data:
        onnx.external_data_helper.convert_model_to_external_data(copy, location=data.name)
        onnx.external_data_helper.write_external_data_tensors(copy, str(data.parent))
        for t in copy.graph.initializer:
            for entry in t.external_data:
                if entry.key == "location":
                    entry.value = f"{path.name}.data"
        part.write_bytes(copy.SerializeToString())
