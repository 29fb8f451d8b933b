"""The inference model with trained values: what `step.export` writes."""

from __future__ import annotations

from collections.abc import Mapping

from onnx import ModelProto, TensorProto, numpy_helper

from compiler.frontend.averages import forget_averages
from compiler.frontend.source import Source
from compiler.frontend.weights import Weight
from compiler.ir.types import AnyArray, numpy_dtype


def trained_model(source: Source, values: Mapping[str, AnyArray]) -> ModelProto:
    """A copy of a model without training_info, its initializers replaced by `values` where they have one.

    values: bf16 as its bits or as it is. The model stands alone: what lay in other files is in it.
    """
    model = ModelProto()
    model.CopyFrom(source.model)
    del model.training_info[:]
    forget_averages(model)
    graph = model.graph
    for t in graph.initializer:
        weight = source.initializers.get(t.name)
        if weight is not None and (t.name in values or t.data_location == TensorProto.EXTERNAL):
            doc = t.doc_string
            t.CopyFrom(_proto(t.name, weight, values))
            t.doc_string = doc
    source.tensors.embed(graph.node)
    for f in model.functions:
        source.tensors.embed(f.node)
    return model


def _proto(name: str, weight: Weight, values: Mapping[str, AnyArray]) -> TensorProto:
    array = values[name].view(numpy_dtype(weight.type.dtype)) if name in values else weight.tensor.array
    return numpy_helper.from_array(array, name)
