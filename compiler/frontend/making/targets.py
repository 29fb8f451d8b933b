"""The inputs of the step that losses compare with: new ones, inputs of the model, or one that several losses share."""

from __future__ import annotations

from collections.abc import Sequence

from compiler.errors import InputError
from compiler.frontend.making.emit import Algorithm, Dims
from compiler.frontend.making.facts import Facts
from compiler.frontend.making.loss_options import CLASSES, Loss
from compiler.frontend.making.losses import Read, target_type
from compiler.ir.proto import element_type_name


class Targets:
    """Finds or makes them for one training model."""

    def __init__(self, a: Algorithm, facts: Facts):
        self._a, self._facts = a, facts
        self._made: dict[str, tuple[str, int, Dims | None]] = {}

    def of(self, loss: Loss, read: Read) -> str:
        """The value with the targets of a loss. InputError: the name that the user gave cannot be that."""
        elem_type, dims = target_type(loss, read)
        name = "label" if loss.name in CLASSES and not loss.soft_targets else "target"
        if loss.target is not None:
            return self.named(loss.target, read.name, elem_type, dims)
        return self._a.input(f"{read.prefix}{name}", elem_type, _with_symbols(name, dims))

    def own(self, name: str, output: str, elem_type: int, dims: Dims | None) -> str:
        """A new input that the user's own loss on an output calls by this name. InputError: the name is taken."""
        if name in self._made:
            other = self._made[name][0]
            raise InputError(
                f"the losses of {other!r} and {output!r} both have an input {name!r}: target={{{other!r}: {name!r}, "
                f"{output!r}: {name!r}}} makes it one, and other names make two"
            )
        if name in self._a.names:
            raise InputError(
                f"your loss has an input {name!r}, but the model has a value of this name: call it otherwise in your "
                "loss, or give the input a name by target="
            )
        return self.named(name, output, elem_type, dims)

    def named(self, name: str, output: str, elem_type: int, dims: Dims | None) -> str:
        """The value with the targets of an output that has this name, an input of the model or of another loss.

        InputError: it is something else, or of another type.
        """
        dims = _with_symbols(name, dims)
        if name in self._facts.inputs:
            given = self._facts.dims(name)
            if elem_type != self._facts.elem_type(name) or not _fit(given, dims):
                raise InputError(
                    f"target: the model's input {name!r} is {_described(self._facts.elem_type(name), given)}, but the "
                    f"targets of {output!r} are {_described(elem_type, dims)}: give the name of another input, or a "
                    "new one"
                )
            return name
        if name in self._made:
            other, *made = self._made[name]
            if made != [elem_type, dims]:
                raise InputError(
                    f"target: {name!r} cannot be one input for two losses: the targets of {other!r} are "
                    f"{_described(self._made[name][1], self._made[name][2])}, those of {output!r} "
                    f"{_described(elem_type, dims)}: give each a name of its own"
                )
            return name
        if name in self._a.names:
            raise InputError(f"target: the model has a value {name!r} already, give another name")
        self._made[name] = output, elem_type, dims
        return self._a.input(name, elem_type, dims)


def _with_symbols(name: str, dims: Dims | None) -> Dims | None:
    """Dims with symbols of their own where none is known: one that inference made up is none of the model."""
    if dims is None:
        return None
    return [f"{name}_{i}" if d is None or str(d).startswith("unk__") else d for i, d in enumerate(dims)]


def _fit(given: Sequence[int | str | None] | None, dims: Dims | None) -> bool:
    """Whether dims may be the same: sizes that are known are."""
    if given is None or dims is None:
        return True
    known = ((d, e) for d, e in zip(given, dims, strict=False) if isinstance(d, int) and isinstance(e, int))
    return len(given) == len(dims) and all(d == e for d, e in known)


def _described(elem_type: int, dims: Dims | None) -> str:
    shape = "..." if dims is None else ", ".join("?" if d is None else str(d) for d in dims)
    return f"{element_type_name(elem_type)}[{shape}]"
