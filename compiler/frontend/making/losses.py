"""Losses as nodes of the algorithm. Each ends in one number.

Formulas and options are those of PyTorch's module of that name (its documentation), so that a run can be compared; what
differs is said at the function. `class_losses` has cross-entropy and nll, `own_loss` the user's, `ctc` that one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from onnx import TensorProto, helper

from compiler.errors import InputError
from compiler.frontend.making.emit import Algorithm
from compiler.frontend.making.loss_options import Loss

FLOATS = {TensorProto.FLOAT, TensorProto.DOUBLE}
"""What a loss is computed in."""


@dataclass(frozen=True)
class Read:
    """What a loss reads of an output.

    name: of the output. value: what is read, which may lie before the output's last operator. form: "plain", or, for
    losses of probabilities, "logits", "log" or "probabilities". dims, elem_type: its type. prefix: of the
    names of the inputs that the loss adds, where there are several losses.
    """

    name: str
    value: str
    form: str
    dims: Sequence[int | str | None]
    elem_type: int
    prefix: str = ""

    @property
    def rank(self) -> int:
        """The number of axes."""
        return len(self.dims)

    def axis(self, axis: int | None) -> int:
        """An axis that counts from the front. By default that of the classes. InputError: there is none."""
        if axis is None:
            axis = 1 if self.rank >= 4 else -1
        if not -self.rank <= axis < self.rank:
            raise InputError(f"axis {axis} is no axis of output {self.name!r}, which has {self.rank}")
        return axis % self.rank

    def size(self, axis: int, why: str) -> int:
        """A dim that must be a number. InputError: it is not known."""
        d = self.dims[axis]
        if not isinstance(d, int):
            raise InputError(
                f"the size of axis {axis} of output {self.name!r} is not known, but {why}: export it fixed"
            )
        return d


Emit = Callable[[Algorithm, Loss, Read, str, str | None], str]
"""Nodes of one loss from what it reads, its targets and, where it compares two outputs, the other one."""


def target_type(loss: Loss, read: Read) -> tuple[int, list[int | str | None]]:
    """Element type and dims of the targets."""
    dims = list(read.dims)
    if loss.name == "ctc":
        return TensorProto.INT64, [*dims[1 - loss.time_axis : 2 - loss.time_axis], None]
    if loss.name in ("cross_entropy", "nll") and not loss.soft_targets:
        del dims[read.axis(loss.axis)]
        return TensorProto.INT64, dims
    if loss.name == "cosine_embedding" and loss.other is not None:
        del dims[read.axis(-1 if loss.axis is None else loss.axis)]
    return read.elem_type, dims


def reduced(a: Algorithm, loss: Loss, each: str, hint: str = "loss") -> str:
    """One number from a loss for each element."""
    return a.reduce("ReduceMean" if loss.reduction == "mean" else "ReduceSum", each, hint)


def mse(a: Algorithm, loss: Loss, read: Read, target: str, other: str | None) -> str:
    """(x - t)^2."""
    error = a.node("Sub", [read.value, target], "error")
    return reduced(a, loss, a.node("Mul", [error, error], "squares"))


def l1(a: Algorithm, loss: Loss, read: Read, target: str, other: str | None) -> str:
    """|x - t|."""
    return reduced(a, loss, a.node("Abs", [a.node("Sub", [read.value, target], "error")], "distance"))


def huber(a: Algorithm, loss: Loss, read: Read, target: str, other: str | None) -> str:
    """e^2 / 2 up to the threshold d, d (e - d/2) beyond it, for e = |x - t|; smooth_l1 is that divided by d.

    With c = min(e, d) both are c (e - c/2), whose derivative is c.
    """
    limit = loss.beta if loss.name == "smooth_l1" else loss.delta
    distance = a.node("Abs", [a.node("Sub", [read.value, target], "error")], "distance")
    capped = a.node("Min", [distance, a.const(limit, "limit")], "capped")
    rest = a.node("Sub", [distance, a.node("Mul", [capped, a.const(0.5, "half")], "half_capped")], "rest")
    each = a.node("Mul", [capped, rest], "huber")
    if loss.name == "smooth_l1":
        each = a.node("Mul", [each, a.const(1 / limit, "scale")], "smooth_l1")
    return reduced(a, loss, each)


def bce(a: Algorithm, loss: Loss, read: Read, target: str, other: str | None) -> str:
    """Of logits x: t softplus(-x) + (1 - t) softplus(x). Of probabilities: with logarithms that are not below -100.

    Both softplus are exact for large |x|, where one of them minus x would cancel, and smooth at 0, where |x| is not.
    label_smoothing moves targets to t (1 - s) + s/2, as Keras does.
    """
    one = a.const(1.0, "one")
    if loss.label_smoothing:
        kept = a.node("Mul", [target, a.const(1 - loss.label_smoothing, "kept")], "kept_target")
        target = a.node("Add", [kept, a.const(loss.label_smoothing / 2, "spread")], "smooth_target")
    rest = a.node("Sub", [one, target], "negative")
    if read.form == "probabilities":
        complement = a.node("Sub", [one, read.value], "complement")
        costs = [a.node("Neg", [_log(a, v)], "cost") for v in (read.value, complement)]
    else:
        costs = [a.node("Softplus", [v], "cost") for v in (a.node("Neg", [read.value], "minus"), read.value)]
    positive = a.node("Mul", [target, costs[0]], "positive_cost")
    if loss.pos_weight is not None:
        positive = a.node("Mul", [positive, _broadcast(a, loss.pos_weight, read, "pos_weight")], "weighted_positive")
    each = a.node("Add", [positive, a.node("Mul", [rest, costs[1]], "negative_cost")], "bce")
    if loss.weight is not None:
        each = a.node("Mul", [each, _broadcast(a, loss.weight, read, "weight")], "weighted")
    return reduced(a, loss, each)


def _log(a: Algorithm, value: str) -> str:
    """log(max(p, e^-100)): PyTorch's bound, so that a probability of 0 costs 100."""
    smallest = max(float(np.exp(-100.0)), float(np.finfo(np.float32).tiny) if a.dtype == TensorProto.FLOAT else 0.0)
    return a.node("Log", [a.node("Max", [value, a.const(smallest, "smallest")], "bounded")], "log")


def kl(a: Algorithm, loss: Loss, read: Read, target: str, other: str | None) -> str:
    """Sum over the classes of t (log t - log p); t is a distribution, and 0 log 0 is 0.

    "mean" is over all positions but the classes: PyTorch's "batchmean" of [N, C], and Keras' mean.
    """
    axis = read.axis(loss.axis)
    log = log_probabilities(a, read, axis)
    tiny = np.finfo(helper.tensor_dtype_to_np_dtype(a.dtype)).tiny
    positive = a.node("Max", [target, a.const(tiny, "tiny")], "positive_target")
    gap = a.node("Sub", [a.node("Log", [positive], "log_target"), log], "gap")
    each = a.reduce("ReduceSum", a.node("Mul", [target, gap], "divergence"), "kl", [axis])
    return reduced(a, loss, each)


def log_probabilities(a: Algorithm, read: Read, axis: int) -> str:
    """The logarithm of the probabilities that an output means."""
    match read.form:
        case "log":
            return read.value
        case "probabilities":
            return _log(a, read.value)
    return log_softmax(a, read.value, axis, read.rank)


def log_softmax(a: Algorithm, value: str, axis: int, rank: int) -> str:
    """LogSoftmax over one axis; below opset 13, where it is over all from an axis on, behind a Transpose."""
    if a.opset >= 13 or axis == rank - 1:
        return a.node("LogSoftmax", [value], "log_probabilities", axis=axis)
    order = [i for i in range(rank) if i != axis] + [axis]
    moved = a.node("Transpose", [value], "classes_last", perm=order)
    log = a.node("LogSoftmax", [moved], "log_probabilities", axis=rank - 1)
    return a.node("Transpose", [log], "log_probabilities", perm=[order.index(i) for i in range(rank)])


def cosine_embedding(a: Algorithm, loss: Loss, read: Read, target: str, other: str | None) -> str:
    """1 - cos(x, t); with another output o, 1 - cos(x, o) where t is 1, max(0, cos(x, o) - margin) where it is -1.

    cos is x.o / sqrt((x.x + 1e-12) (o.o + 1e-12)), as PyTorch has it.
    """
    axis = read.axis(-1 if loss.axis is None else loss.axis)
    pair = [read.value, target if other is None else other]

    def dot(operands: Sequence[str], hint: str) -> str:
        return a.reduce("ReduceSum", a.node("Mul", operands, f"{hint}.product"), hint, [axis])

    epsilon = a.const(1e-12, "epsilon")
    squares = [a.node("Add", [dot([v, v], "square"), epsilon], "positive_square") for v in pair]
    length = a.node("Sqrt", [a.node("Mul", squares, "squared_length")], "length")
    cosine = a.node("Div", [dot(pair, "dot"), length], "cosine")
    one = a.const(1.0, "one")
    near = a.node("Sub", [one, cosine], "near_cost")
    if other is None:
        return reduced(a, loss, near)
    far = a.node("Relu", [a.node("Sub", [cosine, a.const(loss.margin, "margin")], "excess")], "far_cost")
    halved = a.node("Mul", [a.node("Add", [target, one], "sign"), a.const(0.5, "half")], "is_near")
    rest = a.node("Sub", [one, halved], "is_far")
    each = a.node("Add", [a.node("Mul", [halved, near], "near"), a.node("Mul", [rest, far], "far")], "cosine_loss")
    return reduced(a, loss, each)


def _broadcast(a: Algorithm, value: Sequence[float] | float, read: Read, option: str) -> str:
    """A constant that broadcasts to the output. InputError: it does not."""
    array = np.asarray(value, np.float64)
    have = array.shape
    dims = list(read.dims)[len(read.dims) - len(have) :]
    if len(have) > read.rank or any(h != 1 and isinstance(d, int) and h != d for h, d in zip(have, dims, strict=False)):
        raise InputError(f"{option} has the shape {list(have)}, which does not broadcast to output {read.name!r}")
    if not np.isfinite(array).all():
        raise InputError(f"{option} must be finite numbers")
    return a.const(array, option)


EMITTERS: dict[str, Emit] = {
    "mse": mse,
    "l1": l1,
    "huber": huber,
    "smooth_l1": huber,
    "bce": bce,
    "kl": kl,
    "cosine_embedding": cosine_embedding,
}
"""The losses of this module by name."""
