"""Losses by name. Each reads the model's output and a target of its own, and ends in the scalar `loss`.

| name            | output                | target                       | loss                              |
|-----------------|-----------------------|------------------------------|-----------------------------------|
| `cross_entropy` | logits [..., C]       | class numbers i64[...]       | mean of -log softmax(output)[t]   |
| `nll`           | log probabilities     | class numbers i64[...]       | mean of -output[t]                |
| `log_loss`      | probabilities         | class numbers i64[...]       | mean of -log output[t]            |
| `mse`           | any                   | like the output              | mean of (output - t)^2            |
| `bce`           | logits                | like the output, 0 to 1      | mean of softplus(output) - output t |

Classes are the last axis.
"""

from collections.abc import Callable, Sequence

from onnx import TensorProto, helper

from tests.models.algorithm import Algorithm

Dims = Sequence[int | str]
Loss = Callable[[Algorithm, str, str, Dims], str]


def _cross_entropy(algorithm: Algorithm, output: str, target: str, dims: Dims) -> str:
    if algorithm.opset < 12:
        return _pick(algorithm, algorithm.node("LogSoftmax", [output], "loss.log", axis=len(dims) - 1), target, dims)
    rows, classes = _as_rows(algorithm, output, target, dims)
    return algorithm.node("SoftmaxCrossEntropyLoss", [rows, classes], "loss")


def _nll(algorithm: Algorithm, output: str, target: str, dims: Dims) -> str:
    if algorithm.opset < 12:
        return _pick(algorithm, output, target, dims)
    rows, classes = _as_rows(algorithm, output, target, dims)
    return algorithm.node("NegativeLogLikelihoodLoss", [rows, classes], "loss")


def _log_loss(algorithm: Algorithm, output: str, target: str, dims: Dims) -> str:
    return _nll(algorithm, algorithm.node("Log", [output], "loss.log"), target, dims)


def _mse(algorithm: Algorithm, output: str, target: str, dims: Dims) -> str:
    error = algorithm.node("Sub", [output, target], "loss.error")
    squares = algorithm.node("Mul", [error, error], "loss.squares")
    return algorithm.node("ReduceMean", [squares], "loss", keepdims=0)


def _bce(algorithm: Algorithm, output: str, target: str, dims: Dims) -> str:
    softplus = algorithm.node("Softplus", [output], "loss.softplus")
    product = algorithm.node("Mul", [output, target], "loss.product")
    each = algorithm.node("Sub", [softplus, product], "loss.each")
    return algorithm.node("ReduceMean", [each], "loss", keepdims=0)


def _as_rows(algorithm: Algorithm, output: str, target: str, dims: Dims) -> tuple[str, str]:
    """ONNX's losses have the classes on axis 1: more than two axes become rows."""
    if len(dims) == 2:
        return output, target
    rows = algorithm.tensor("loss.rows.shape", [-1, dims[-1]], TensorProto.INT64)
    flat = algorithm.tensor("loss.flat.shape", [-1], TensorProto.INT64)
    return algorithm.node("Reshape", [output, rows], "loss.rows"), algorithm.node(
        "Reshape", [target, flat], "loss.flat"
    )


def _pick(algorithm: Algorithm, log_probabilities: str, target: str, dims: Dims) -> str:
    """Minus the mean of log_probabilities[..., target], in operators that opset 7 has; there is no loss before 12."""
    assert isinstance(dims[-1], int)
    classes = algorithm.tensor("loss.classes", range(dims[-1]), TensorProto.INT64)
    column = algorithm.node("Unsqueeze", [target], "loss.column", axes=[len(dims) - 1])
    chosen = algorithm.node("Equal", [column, classes], "loss.chosen")
    mask = algorithm.node("Cast", [chosen], "loss.mask", to=algorithm.dtype)
    masked = algorithm.node("Mul", [log_probabilities, mask], "loss.masked")
    each = algorithm.node("ReduceSum", [masked], "loss.each", axes=[len(dims) - 1], keepdims=0)
    return algorithm.node("Neg", [algorithm.node("ReduceMean", [each], "loss.mean", keepdims=0)], "loss")


LOSSES: dict[str, Loss] = {
    "cross_entropy": _cross_entropy,
    "nll": _nll,
    "log_loss": _log_loss,
    "mse": _mse,
    "bce": _bce,
}
CLASS_LOSSES = frozenset({"cross_entropy", "nll", "log_loss"})


def add_loss(algorithm: Algorithm, loss: str, output: str, target: str, dims: Dims) -> None:
    """Adds the target as an input, the nodes of the loss, and the output `loss`; `dims` are those of the output."""
    of_classes = loss in CLASS_LOSSES
    algorithm.inputs.append(
        helper.make_tensor_value_info(
            target, TensorProto.INT64 if of_classes else algorithm.dtype, dims[:-1] if of_classes else dims
        )
    )
    LOSSES[loss](algorithm, output, target, dims)
    algorithm.outputs.append(helper.make_tensor_value_info("loss", algorithm.dtype, []))
