"""`Loss`: which loss on which output, with its options, as the user says it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import wraps
from typing import Any, TypeVar

import numpy as np
import onnx

from compiler.errors import InputError, did_you_mean

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
    "ctc": {"blank", "time_axis", "from_logits"},
    "": set(),  # the user's own
}


_L = TypeVar("_L")


def _options_of(name: str) -> list[str]:
    """The options of a loss by its canonical name."""
    return sorted(_OPTIONS[name] | _COMMON)


def _is_number(value: Any) -> bool:
    real = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    return real and math.isfinite(value)


def _is_integer(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _are_numbers(value: Any) -> bool:
    try:
        return np.asarray(value).dtype.kind in "iuf"
    except ValueError:  # lists of different lengths
        return False


_TYPES: dict[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(("label_smoothing", "delta", "beta", "margin"), (_is_number, "a number")),
    **dict.fromkeys(("ignore_index", "axis", "blank", "time_axis"), (_is_integer, "an integer")),
    **dict.fromkeys(("weight", "pos_weight"), (_are_numbers, "numbers")),
    **dict.fromkeys(("soft_targets", "from_logits"), (lambda v: isinstance(v, bool | np.bool_), "true or false")),
    **dict.fromkeys(("reduction", "other", "target"), (lambda v: isinstance(v, str) and v != "", "a name")),
}
"""What a value of an option is, and how that is called."""


def _refusing_unknown(cls: type[_L]) -> type[_L]:
    """`Loss` that refuses what no loss has as an option, where Python would speak of `__init__()`."""
    made: Any = cls
    construct = made.__init__

    @wraps(construct)
    def checked(self: _L, *args: Any, **options: Any) -> None:
        known = [f.name for f in fields(made)]
        if unknown := [name for name in options if name not in known]:
            kind = options.get("kind", next(iter(args), None))
            own = _options_of(_canonical(kind)[0]) if isinstance(kind, str) else ()
            has = f"{kind} has {', '.join(own)}" if own else f"there are {', '.join(known[1:])}"
            what = ", ".join(f"{name!r}{did_you_mean(name, known)}" for name in unknown)
            raise InputError(f"a loss has no option {what}: {has}")
        construct(self, *args, **options)

    made.__init__ = checked
    return cls


@_refusing_unknown
@dataclass(frozen=True)
class Loss:
    """A loss with its options; the names and meanings are PyTorch's, where it has them.

    kind: a name (`cross_entropy`, `nll`, `mse`, `l1`, `huber`, `smooth_l1`, `bce`, `kl`, `cosine_embedding`, `ctc`, or
    what PyTorch and Keras call them), or the loss itself as a FunctionProto or as a model.
    weight: of cross_entropy and nll, one number for each class; of bce, what broadcasts to the output.
    label_smoothing: from 0 to 1. ignore_index: class number of positions that do not count. soft_targets: the targets
    are probabilities of all classes. reduction: "mean" or "sum". axis: that of the classes (or of vectors); by default
    1 for 4 or more axes, as in images, else the last. from_logits: whether the output is logits; by default what it
    comes from says: a Softmax, LogSoftmax or Sigmoid at its end is looked through, behind a Reshape or the like what
    they give is probabilities, anything else is logits.
    delta, beta: where huber and smooth_l1 turn linear. pos_weight: of the positive class in bce. margin, other: of
    cosine_embedding; `other` is the output that is compared (targets are then 1 and -1). blank: the class of ctc that
    is none. time_axis: of its output, 0 as in PyTorch, or 1. target: name of the input for the targets. InputError:
    options that the loss does not have.
    """

    kind: str | onnx.FunctionProto | onnx.ModelProto | onnx.GraphProto
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
    target: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.kind, str):
            name, implied = _canonical(self.kind)
            object.__setattr__(self, "kind", name)
            for option, value in implied.items():
                if getattr(self, option) is None or getattr(self, option) is False:
                    object.__setattr__(self, option, value)
        elif not isinstance(self.kind, onnx.FunctionProto | onnx.ModelProto | onnx.GraphProto):
            raise InputError(f"a loss is a name, a FunctionProto or a model, not {type(self.kind).__name__}")
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
        given = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) is not f.default}
        wrong = [
            f"{n} must be {_TYPES[n][1]}, not {v!r}" for n, v in given.items() if n in _TYPES and not _TYPES[n][0](v)
        ]
        if wrong:
            raise InputError("; ".join(wrong))
        aliases = {"sumoverbatchsize": "mean", "batchmean": "mean"}
        reduction = aliases.get(_plain(self.reduction), self.reduction)
        if reduction not in ("mean", "sum"):
            raise InputError(f"reduction must be 'mean' or 'sum', not {self.reduction!r}: a step has one loss")
        object.__setattr__(self, "reduction", reduction)
        if not 0 <= self.label_smoothing <= 1:
            raise InputError(f"label_smoothing must be from 0 to 1, not {self.label_smoothing!r}")
        for option in ("delta", "beta"):
            if not getattr(self, option) > 0:
                raise InputError(f"{option} must be greater than 0, not {getattr(self, option)!r}")
        if self.soft_targets and self.ignore_index is not None:
            raise InputError("ignore_index is a class number: it has no meaning with soft_targets")


def _same(a: Any, b: Any) -> bool:
    return a is b or (not isinstance(a, Sequence | np.ndarray) and bool(a == b)) or (isinstance(a, str) and a == b)


def _plain(name: str) -> str:
    return re.sub(r"[\W_]", "", name).lower()


def _canonical(name: str) -> tuple[str, dict[str, Any]]:
    """The name of a loss that PyTorch, Keras or we call `name`, and the options that this name implies."""
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
    near = did_you_mean(name, KINDS) or f": there are {', '.join(KINDS)}, or your own as a FunctionProto or a model"
    raise InputError(f"there is no loss {name!r}{near}")


AnyLoss = str | Loss | onnx.FunctionProto | onnx.ModelProto | onnx.GraphProto
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
        chosen = {output or outputs[0]: _one(loss)}
    for name in [*chosen, *(c.other for c in chosen.values() if c.other is not None)]:
        if name not in outputs:
            near = did_you_mean(name, outputs) or f": there are {', '.join(map(repr, outputs))}"
            raise InputError(f"the model has no output {name!r}{near}")
    if isinstance(target, Mapping):
        for name in target:
            if name not in chosen:
                raise InputError(f"target= names {name!r}, which has no loss{did_you_mean(name, chosen)}")
        return {name: replace(c, target=target.get(name, c.target)) for name, c in chosen.items()}
    if target is not None and len(chosen) > 1:
        raise InputError("target= is one name, but there are several losses: give {output: name}")
    return {name: c if target is None else replace(c, target=target) for name, c in chosen.items()}


def _one(loss: AnyLoss) -> Loss:
    return loss if isinstance(loss, Loss) else Loss(loss)
