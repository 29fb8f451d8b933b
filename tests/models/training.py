"""From an inference model to a training model."""

from collections.abc import Collection, Iterator, Mapping, Sequence

import onnx
from onnx import helper

from tests.models.algorithm import DOMAIN, Algorithm, Variable
from tests.models.losses import add_loss
from tests.models.optimizers import add_optimizer

# Float operands that say how to compute rather than what with: running statistics, bounds, scales, ratios.
_SETTINGS = {"BatchNormalization": {3, 4}, "Clip": {1, 2}, "Dropout": {1}, "Pad": {2}, "Pow": {1}, "Resize": {1, 2}}


def attach_training(
    model: onnx.ModelProto,
    *,
    loss: str = "cross_entropy",
    optimizer: str = "adam",
    lr: float = 1e-3,
    output: str | None = None,
    label: str = "label",
    trainable: Collection[str] | None = None,
    attributes: Mapping[str, float] | None = None,
    one_node: bool = True,
) -> onnx.ModelProto:
    """A training model whose inference is `model`; that one is left as it is.

    Args:
        model: The inference model, of any opset from 7 on; its version stays.
        loss: A name of `tests.models.losses`.
        optimizer: A name of `tests.models.optimizers`.
        lr: The learning rate, a constant in the algorithm.
        output: The output that the loss reads; the first one by default.
        label: Name of the input with the target.
        trainable: Names of initializers. By default all of the output's float type that it is computed from, but for
            scalars, running statistics, and other operands that are settings.
        attributes: Attributes of the optimizer other than its defaults here.
        one_node: One optimizer node for all variables, or one for each.

    The step's outputs are those of the model and the scalar `loss`. Gradients are named `{variable}.gradient`.
    Running statistics of a BatchNormalization in training mode are bound to its outputs, if they are initializers.
    """
    result = onnx.ModelProto()
    result.CopyFrom(model)
    opset = next(entry.version for entry in result.opset_import if entry.domain in ("", "ai.onnx"))
    source = next(value for value in result.graph.output if output in (None, value.name))
    dtype = source.type.tensor_type.elem_type
    algorithm = Algorithm(opset, dtype)
    add_loss(algorithm, loss, source.name, label, _dims(source))

    names = _trainable(result.graph, source.name, dtype) if trainable is None else set(trainable)
    initializers = {tensor.name: tensor for tensor in result.graph.initializer}
    variables = [Variable(name, dtype, tuple(tensor.dims)) for name, tensor in initializers.items() if name in names]
    if not variables:
        raise ValueError(f"{source.name} is computed from no weights: there is nothing to train")
    inputs = [value.name for value in result.graph.input if value.name not in initializers]
    _add_gradient(algorithm, variables, [*inputs, label])
    add_optimizer(algorithm, optimizer, variables, lr, dict(attributes or {}), one_node)
    for statistic, value in _running_statistics(result.graph, opset):
        if statistic not in initializers:
            continue  # a constant, as far as the model is concerned
        tensor = initializers[statistic]
        # The value need not be an output of the inference; through Identity it is one of the algorithm.
        next_value = algorithm.node("Identity", [value], f"{statistic}.next")
        algorithm.update(Variable(statistic, tensor.data_type, tuple(tensor.dims)), next_value)

    if all(entry.domain != DOMAIN for entry in result.opset_import):
        result.opset_import.append(helper.make_opsetid(DOMAIN, 1))
    result.ir_version = max(result.ir_version, 7)  # the first that knows training_info
    result.training_info.append(algorithm.training_info(optimizer))
    return result


def _add_gradient(algorithm: Algorithm, variables: Sequence[Variable], given: Sequence[str]) -> None:
    names = [variable.name for variable in variables]
    gradients = [f"{name}.gradient" for name in names]
    algorithm.nodes.append(
        helper.make_node(
            "Gradient", [*names, *given], gradients, "gradient", domain=DOMAIN, xs=names, zs=list(given), y="loss"
        )
    )
    # ONNX does not infer the types of its outputs.
    algorithm.values += [
        helper.make_tensor_value_info(gradient, variable.dtype, variable.shape)
        for gradient, variable in zip(gradients, variables, strict=True)
    ]


def _dims(value: onnx.ValueInfoProto) -> list[int | str]:
    return [dim.dim_value if dim.HasField("dim_value") else dim.dim_param for dim in value.type.tensor_type.shape.dim]


def _subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            yield attribute.g
        elif attribute.type == onnx.AttributeProto.GRAPHS:
            yield from attribute.graphs


def _operands(node: onnx.NodeProto) -> Iterator[str]:
    """Names that may carry a derivative to the node; from its bodies, every name there is (too many do no harm)."""
    settings = _SETTINGS.get(node.op_type, set())
    yield from (name for position, name in enumerate(node.input) if name and position not in settings)
    for graph in _subgraphs(node):
        yield from (value.name for value in graph.output)
        for inner in graph.node:
            yield from _operands(inner)


def _trainable(graph: onnx.GraphProto, output: str, dtype: int) -> set[str]:
    producers = {name: node for node in graph.node for name in node.output if name}
    reached, pending = set(), [output]
    while pending:
        name = pending.pop()
        if name not in reached:
            reached.add(name)
            if name in producers:
                pending.extend(_operands(producers[name]))
    return {
        tensor.name
        for tensor in graph.initializer
        if tensor.name in reached and tensor.data_type == dtype and len(tensor.dims) > 0
    }


def _running_statistics(graph: onnx.GraphProto, opset: int) -> Iterator[tuple[str, str]]:
    """The initializers that hold them, with the outputs that hold their next values."""
    for node in graph.node:
        if node.op_type != "BatchNormalization":
            continue
        training = any(attribute.name == "training_mode" and attribute.i for attribute in node.attribute)
        if training if opset >= 14 else len(node.output) > 1:
            yield from ((old, new) for old, new in zip(node.input[3:5], node.output[1:3], strict=False) if new)
