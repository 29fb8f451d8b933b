"""`Loss`: which loss on which output, with its options, as the user says it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import wraps
from typing import Any, TypeVar

import numpy as np
import onnx

from compiler.errors import CompileError, InputError, ModelError, checked_flag, checked_integer, did_you_mean, shown
from compiler.frontend.attempts import accepted
from compiler.frontend.files import Model
from compiler.frontend.making.arguments import LARGEST, SMALLEST, checked_number, checked_text
from compiler.frontend.source import read
from compiler.frontend.trained import trained_model

CLASSES = frozenset({"cross_entropy", "nll"})
"""Losses whose targets are numbers of classes (or, of cross-entropy, their probabilities)."""

_ALIASES = {
    "cross_entropy": (
        "categoricalcrossentropy",
        "sparsecategoricalcrossentropy",
        "softmaxcrossentropy",
        "logloss",
        "ce",
    ),
    "nll": ("negativeloglikelihood",),
    "mse": ("meansquarederror", "l2", "squarederror"),
    "l1": ("mae", "meanabsoluteerror", "absoluteerror"),
    "huber": (),
    "smooth_l1": (),
    "bce": ("binarycrossentropy", "bcewithlogits", "sigmoidcrossentropy"),
    "kl": ("kldiv", "kldivergence", "kullbackleibler", "kullbackleiblerdivergence"),
    "cosine_embedding": ("cosine", "cosinesimilarity"),
    "ctc": (),
}

KINDS = tuple(_ALIASES)
"""Names of the losses."""

_COMMON = {"reduction", "target"}
_OPTIONS: dict[str, set[str]] = {
    "cross_entropy": {"weight", "label_smoothing", "ignore_index", "axis", "from_logits", "soft_targets"},
    "nll": {"weight", "ignore_index", "axis"},
    "mse": set(),
    "l1": set(),
    "huber": {"delta"},
    "smooth_l1": {"beta"},
    "bce": {"weight", "pos_weight", "label_smoothing", "from_logits"},
    "kl": {"axis", "from_logits"},
    "cosine_embedding": {"axis", "margin", "other"},
    "ctc": {"blank", "time_axis", "from_logits", "zero_infinity"},
    "": set(),  # the user's own
}


_L = TypeVar("_L")


def _options_of(name: str) -> list[str]:
    """The options of a loss by its canonical name."""
    return sorted(_OPTIONS[name] | _COMMON)


def _integer(what: str, value: Any) -> int:
    try:
        return checked_integer(what, value, -(2**63), 2**63 - 1)
    except InputError:
        raise InputError(f"{what} must be an integer (of 64 bits), not {shown(value)}") from None


def _numbers(what: str, value: Any) -> Any:
    """One finite number or several, as Python's. InputError."""
    try:
        array = np.asarray(value)
    except ValueError:  # lists of different lengths
        array = np.zeros(0)
    if array.dtype.kind not in "iuf" or not array.size or not (abs(array.astype(np.float64)) <= LARGEST).all():
        raise InputError(f"{what} must be finite numbers, not {shown(value)}")
    return array.tolist()


def _name(what: str, value: Any) -> str:
    return checked_text(what, value, "a name")


def _threshold(what: str, value: Any) -> float:
    return checked_number(what, value, "a number greater than 0", lambda x: x >= SMALLEST)


def _share(what: str, value: Any) -> float:
    return checked_number(what, value, "a number from 0 to 1", lambda x: 0 <= x <= 1)


_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "label_smoothing": _share,
    "margin": checked_number,
    **dict.fromkeys(("delta", "beta"), _threshold),
    **dict.fromkeys(("ignore_index", "axis", "blank", "time_axis"), _integer),
    **dict.fromkeys(("weight", "pos_weight"), _numbers),
    **dict.fromkeys(("soft_targets", "from_logits", "zero_infinity"), checked_flag),
    **dict.fromkeys(("reduction", "other", "target"), _name),
}
"""Each option as the losses want it, or an InputError that names it."""


def _refusing_unknown(cls: type[_L]) -> type[_L]:
    """`Loss` that refuses what no loss has as an option, where Python would speak of `__init__()`."""
    made: Any = cls
    construct = made.__init__

    @wraps(construct)
    def checked(self: _L, *args: Any, **options: Any) -> None:
        known = [f.name for f in fields(made)][1 if args else 0 :]
        if unknown := [name for name in options if name not in known]:
            kind = args[0] if args else options.get("kind")
            named = _canonical(kind) if isinstance(kind, str) else None
            own = () if named is None else _options_of(named[0])
            has = f"{kind} has {', '.join(own)}" if own else f"there are {', '.join(n for n in known if n != 'kind')}"
            what = ", ".join(f"{name!r}{did_you_mean(name, own or known)}" for name in unknown)
            raise InputError(f"a loss has no option {what}: {has}")
        construct(self, *args, **options)

    made.__init__ = checked
    return cls


@_refusing_unknown
@dataclass(frozen=True)
class Loss:
    """A loss with its options; the names and meanings are PyTorch's, where it has them.

    kind: a name (`cross_entropy`, `nll`, `mse`, `l1`, `huber`, `smooth_l1`, `bce`, `kl`, `cosine_embedding`, `ctc`, or
    what PyTorch and Keras call them), or the loss itself as a FunctionProto or a model: a ModelProto, a path, or the
    bytes of a file, which is read here, with what it has in other files of its folder.
    weight: of cross_entropy and nll, one number for each class; of bce, what broadcasts to the output.
    label_smoothing: from 0 to 1. ignore_index: class number of positions that do not count. soft_targets: the targets
    are probabilities of all classes. reduction: "mean" or "sum". axis: that of the classes (or of vectors); by default
    1 for 4 or more axes, as in images, else the last. from_logits: whether the output is logits; by default what it
    comes from says: a Softmax, LogSoftmax or Sigmoid at its end is looked through, behind a Reshape or the like what
    they give is probabilities, anything else is logits.
    delta, beta: where huber and smooth_l1 turn linear. pos_weight: of the positive class in bce. margin, other: of
    cosine_embedding; `other` is the output that is compared (targets are then 1 and -1). blank: the class of ctc that
    is none. time_axis: of its output, 0 as in PyTorch, or 1. zero_infinity: whether a list that ctc has not enough time
    for counts as 0 instead of infinity. target: name of the input for the targets. InputError: options that the loss
    does not have.
    """

    kind: Model | onnx.FunctionProto | onnx.GraphProto
    weight: Sequence[float] | None = None
    label_smoothing: float = 0.0
    ignore_index: int | None = None
    soft_targets: bool = False
    reduction: str = "mean"
    axis: int | None = None
    from_logits: bool | None = None
    delta: float = 1.0
    beta: float = 1.0
    pos_weight: Sequence[float] | float | None = None
    margin: float = 0.0
    other: str | None = None
    blank: int = 0
    time_axis: int = 0
    zero_infinity: bool = False
    target: str | None = None

    def __post_init__(self) -> None:
        said = self.kind
        if isinstance(said, str) and (named := _canonical(said)) is not None:
            name, implied = named
            object.__setattr__(self, "kind", name)
            for option, value in implied.items():
                if option == "from_logits" and self.from_logits is not None and not self.from_logits:
                    raise InputError(f"{said} takes logits, but from_logits is False: the loss is called {name}")
                if getattr(self, option) is None or getattr(self, option) is False:
                    object.__setattr__(self, option, value)
        elif isinstance(said, str | os.PathLike | bytes | bytearray | memoryview):
            object.__setattr__(self, "kind", _read(said))
        elif not isinstance(said, onnx.FunctionProto | onnx.ModelProto | onnx.GraphProto):
            raise InputError(f"a loss is a name, a FunctionProto or a model, not {type(said).__name__}")
        allowed = _options_of(self.name)
        for f in fields(self):
            if f.name != "kind" and f.name not in allowed and not _same(getattr(self, f.name), f.default):
                has = ", ".join(allowed)
                raise InputError(f"the loss {self.name or 'of your own'} has no option {f.name}: it has {has}")
        self._check_values()

    @property
    def name(self) -> str:
        """The canonical name; empty for the user's own loss."""
        return self.kind if isinstance(self.kind, str) else ""

    def _check_values(self) -> None:
        wrong = []
        for f in fields(self):
            if f.name in _CHECKS and getattr(self, f.name) is not f.default:
                try:
                    object.__setattr__(self, f.name, _CHECKS[f.name](f.name, getattr(self, f.name)))
                except InputError as e:
                    wrong.append(str(e))
        if wrong:
            raise InputError("; ".join(wrong))
        aliases = {"sumoverbatchsize": "mean", "batchmean": "mean", "mean": "mean", "sum": "sum"}
        reduction = aliases.get(_plain(self.reduction))
        if reduction is None:
            raise InputError(f"reduction must be 'mean' or 'sum', not {shown(self.reduction)}: a step has one loss")
        object.__setattr__(self, "reduction", reduction)
        if self.soft_targets and self.ignore_index is not None:
            raise InputError("ignore_index is a class number: it has no meaning with soft_targets")


def _same(a: Any, b: Any) -> bool:
    return a is b or (isinstance(a, str | int | float | np.generic) and bool(a == b))


def _plain(name: str) -> str:
    return re.sub(r"[\W_]", "", name).lower()


def _canonical(name: str) -> tuple[str, dict[str, Any]] | None:
    """The name of a loss that PyTorch, Keras or we call `name`, and the options that it implies; None for a path."""
    if os.path.basename(name) != name or name.lower().endswith(".onnx"):
        return None
    plain = _plain(name)
    if plain not in (_plain(k) for k in KINDS):
        plain = plain.removesuffix("loss")
    for kind, aliases in _ALIASES.items():
        if plain == _plain(kind) or plain in aliases:
            implied: dict[str, Any] = {}
            if plain == "categoricalcrossentropy":
                implied = {"soft_targets": True}
            elif plain in ("bcewithlogits", "softmaxcrossentropy", "sigmoidcrossentropy"):
                implied = {"from_logits": True}
            return kind, implied
    return None


def _read(kind: str | os.PathLike[str] | bytes) -> onnx.ModelProto:
    """The user's own loss from a file, with all its data in it. InputError: there is none, or it is no good."""
    path = None if isinstance(kind, bytes | bytearray | memoryview) else os.fspath(kind)
    try:
        source, report = read(kind)
    except ModelError as e:
        reason = e.problems[0].what
        if path is None:
            raise InputError(f"the bytes given as a loss are no model: {reason}") from e
        near = did_you_mean(path, KINDS) or f": there are {', '.join(KINDS)}"
        asked = repr(path) if os.path.exists(path) else shown(path)  # of a file all is told: it may be a long path
        raise InputError(f"there is no loss {asked}{near}; nor is it the path of a model: {reason}") from e
    try:
        return trained_model(accepted(source, report), {})
    except CompileError as e:
        what = "the loss" if path is None else f"the loss {path!r}"
        raise InputError("; ".join(f"{what}: {p}" for p in e.problems)) from e


AnyLoss = Model | Loss | onnx.FunctionProto | onnx.GraphProto
"""What a user may give as one loss."""


def as_losses(
    loss: AnyLoss | Mapping[str, AnyLoss],
    outputs: Sequence[str],
    output: str | None,
    target: str | Mapping[str, str] | None,
) -> dict[str, Loss]:
    """The losses by the output that each is on. outputs: of the model. InputError: an output that does not exist."""
    if isinstance(loss, Mapping):
        if output is not None:
            raise InputError("output= is for one loss; with several, the keys of loss= are the outputs")
        if not loss:
            raise InputError("loss={} has no loss in it: give {output: loss}")
        chosen = {name: _one(value) for name, value in loss.items()}
    else:
        if output is None and not outputs:
            raise InputError("the model has no outputs, so there is nothing to put a loss on")
        chosen = {outputs[0] if output is None else checked_text("output", output, "a name"): _one(loss)}
    for name in chosen:
        checked_text("output", name, "the name of an output")
    for name in [*chosen, *(c.other for c in chosen.values() if c.other is not None)]:
        if name not in outputs:
            near = did_you_mean(name, outputs) or f": there are {', '.join(map(repr, outputs))}"
            raise InputError(f"the model has no output {name!r}{near}")
    if target is not None and not isinstance(target, Mapping):
        checked_text("target", target, "the name of an input, or a mapping of outputs to names")
        if len(chosen) > 1:
            raise InputError("target= is one name, but there are several losses: give one for each output")
        target = dict.fromkeys(chosen, target)
    targets = target or {}
    for name, given in targets.items():
        if name not in chosen:
            raise InputError(f"target= names {shown(name)}, which has no loss{did_you_mean(name, chosen)}")
        checked_text(f"target: what is for {name!r}", given, "the name of an input")
        if chosen[name].target not in (None, given):
            raise InputError(f"the target of {name!r} is {chosen[name].target!r} by its Loss, but {given!r} by target=")
    return {name: c if name not in targets else replace(c, target=targets[name]) for name, c in chosen.items()}


def _one(loss: AnyLoss) -> Loss:
    return loss if isinstance(loss, Loss) else Loss(loss)
