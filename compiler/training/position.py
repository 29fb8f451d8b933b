"""Where training stands, what it trains, and both in a checkpoint beside the state."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from hashlib import blake2b
from typing import Any

import numpy as np
import onnx

from compiler.errors import StateError
from compiler.runtime.checkpoint import Saved, read_state, save_state
from compiler.runtime.memory import Array

_POSITION, _WHAT = "position", "training"

NO_ROW = -1
"""In place of the mark of a row: of an epoch that no `Run` wrote."""

Identity = Mapping[str, Any]
"""What must be equal for a run to go on with the same bits: values that JSON has, by what they are called."""


@dataclass
class Position:
    """Where training stands.

    epoch: epochs done, with their validation. samples: those done of the epoch that runs. step: steps done in all.
    total: sum of the losses of this epoch, each times the samples of its step; None without a loss. nan_step: the first
    step of this epoch whose loss was not finite. seconds: that this epoch took so far. monitor, larger: the
    value that decides which model is the best one (see `Run`), and whether its largest is the best. first: epochs done
    before the run began. best, best_loss, best_epoch: the best one so far, the validation loss with it, and its epoch,
    0 if there is none. rows: of each epoch the mark of its row in a log.
    """

    epoch: int = 0
    samples: int = 0
    step: int = 0
    total: float | None = None
    nan_step: int | None = None
    seconds: float = 0.0
    monitor: str | None = None
    larger: bool = False
    first: int = 0
    best: float | None = None
    best_loss: float | None = None
    best_epoch: int = 0
    rows: list[int] = field(default_factory=list)


def save_checkpoint(
    path: str | os.PathLike[str], state: Mapping[str, Array], position: Position, identity: Identity
) -> None:
    """Write state and position to one file, whole or not at all. OSError as the file system gives it."""
    save_state(path, state, {_POSITION: json.dumps(asdict(position)), _WHAT: json.dumps(identity)})


def load_checkpoint(
    path: str | os.PathLike[str], state: Mapping[str, Array], identity: Identity, samples: int, batch: int
) -> Position:
    """Overwrite the state by that of a checkpoint, and give its position; nothing is changed by an error.

    samples: of an epoch. batch: those of a step. StateError: no checkpoint, a damaged one, or one of another training:
    it tells every difference.
    """
    saved, position = _read(path, identity, samples, batch)
    saved.put(state)
    return position


def check_checkpoint(
    path: str | os.PathLike[str], state: Mapping[str, Array], identity: Identity, samples: int, batch: int
) -> Position:
    """The position of a checkpoint. StateError as `load_checkpoint` raises it. Nothing is overwritten."""
    saved, position = _read(path, identity, samples, batch)
    saved.put({n: np.empty_like(a) for n, a in state.items()})
    return position


def _read(path: str | os.PathLike[str], identity: Identity, samples: int, batch: int) -> tuple[Saved, Position]:
    name = os.fspath(path)
    saved = read_state(path)
    if _POSITION not in saved.texts or _WHAT not in saved.texts:
        raise StateError(
            f"{name!r} holds a state, but not where a training stands: read it with step.load, or give the checkpoint "
            "of a run"
        )
    if not saved.checked:
        raise StateError(f"{name!r} has no checksum: it is damaged, or of another version of onnxc; begin the run anew")
    try:
        position, then = Position(**json.loads(saved.texts[_POSITION])), json.loads(saved.texts[_WHAT])
        if not isinstance(then, Mapping):
            raise TypeError("it does not tell of which training")
        problems = differences(then, identity)
        if not problems and (wrong := _wrong(position, samples, batch)):
            raise ValueError(wrong)
    except (ValueError, TypeError) as e:
        raise StateError(f"{name!r} is a damaged checkpoint, or of another version of onnxc: {e}") from e
    if problems:
        raise StateError(f"{name!r} is a checkpoint of another training: {'; '.join(problems)}")
    return saved, position


def _wrong(p: Position, samples: int, batch: int) -> str:
    """Why no training of so many samples in an epoch stands there, or ''. TypeError: what is no number."""
    whole = -(-samples // batch)
    begun = p.samples > 0
    rules = {
        "epoch": _counts(p.epoch),
        "samples": _counts(p.samples) and p.samples <= samples and (p.samples % batch == 0 or p.samples == samples),
        "step": _counts(p.step) and p.step == p.epoch * whole + -(-p.samples // batch),
        "total": p.total is None or (begun and isinstance(p.total, float)),
        "nan_step": p.nan_step is None or (begun and _counts(p.nan_step) and p.epoch * whole < p.nan_step <= p.step),
        "seconds": isinstance(p.seconds, float) and 0 <= p.seconds < math.inf,
        "monitor": p.monitor is None or isinstance(p.monitor, str),
        "larger": isinstance(p.larger, bool),
        "first": _counts(p.first) and p.first <= p.epoch,
        "best": _is_value(p.best),
        "best_loss": _is_value(p.best_loss) and (p.best is not None or p.best_loss is None),
        "best_epoch": _counts(p.best_epoch) and p.best_epoch <= p.epoch and (p.best_epoch > 0) == (p.best is not None),
        "rows": isinstance(p.rows, list) and len(p.rows) <= p.epoch and all(r == NO_ROW or _counts(r) for r in p.rows),
    }
    assert rules.keys() == {f.name for f in fields(Position)}
    return next((f"{name} cannot be {getattr(p, name)!r}" for name, fits in rules.items() if not fits), "")


def _is_value(value: object) -> bool:
    return value is None or (isinstance(value, float) and math.isfinite(value))


def _counts(value: object) -> bool:
    return type(value) is int and value >= 0


def hashed(about: str, digest: str) -> Identity:
    """A thing that is too large to be told: a description, and a hash of its contents."""
    return {"about": about, "hash": digest}


def differences(then: Identity, now: Identity) -> list[str]:
    """What is not as it was, each in a few words."""
    found = []
    for what in dict.fromkeys((*then, *now)):
        old, new = then.get(what), now.get(what)
        if old == new:
            continue
        was, now_is = _said(old), _said(new)
        found.append(f"{what}: other contents" if was == now_is else f"{what} was {was}, now it is {now_is}")
    return found


def _said(value: Any) -> str:
    if isinstance(value, Mapping) and "about" in value:
        return str(value["about"])
    return "none" if value in (None, "", {}) else "on" if value is True else "off" if value is False else str(value)


def hash_of_model(model: onnx.ModelProto) -> str:
    """Of all that a model computes and starts from, but for tensors in other files.

    Piece by piece, as a message of more than 2 GB cannot be written at once.
    """
    digest = blake2b(digest_size=16)
    graph = model.graph
    for parts in (model.opset_import, model.functions, model.training_info, graph.node, graph.input, graph.output):
        for part in parts:
            digest.update(part.SerializeToString(deterministic=True))
        digest.update(b"|")
    for tensor in (*graph.initializer, *graph.sparse_initializer):
        digest.update(tensor.SerializeToString(deterministic=True))
    return digest.hexdigest()


def hash_of_arrays(arrays: Mapping[str, Array]) -> str:
    """Of all elements."""
    digest = blake2b(digest_size=16)
    for name, a in sorted(arrays.items()):
        digest.update(repr((name, a.dtype.name, a.shape)).encode() + a.tobytes())
    return digest.hexdigest()
