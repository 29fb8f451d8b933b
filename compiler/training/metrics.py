"""What is measured on validation data after an epoch, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from compiler.errors import CompileError, InputError, RefusedError, checked_names, did_you_mean
from compiler.frontend import NeedsStatic, Source
from compiler.ir.graph import Graph
from compiler.ir.types import FLOATS, INTEGERS, TensorType
from compiler.runtime.memory import Array
from compiler.runtime.step import StepFunction
from compiler.specialize import as_typed
from compiler.training.data import Dataset
from compiler.training.measures import (
    Measure,
    accuracy,
    as_numbers,
    axis_of_output,
    check_indices,
    first_wrong,
    mean_error,
)
from compiler.training.samples import Samples, samples_of

WHAT = "the validation data"

LOSS, ACCURACY = "loss", "accuracy"

COMPARED: Mapping[str, Callable[[Graph, str, str, TensorType], Measure | str]] = {
    ACCURACY: accuracy,
    "mae": partial(mean_error, 1),
    "mse": partial(mean_error, 2),
}
"""Metrics of an output and a label."""


@dataclass(frozen=True)
class _Compared:
    """A metric that compares an output, by its public name, with an input, sample by sample.

    axis, label_axis: those of the samples.
    """

    name: str
    output: str
    label: str
    measure: Measure
    axis: int
    label_axis: int


@dataclass(frozen=True)
class _Scalar:
    """A metric that the graph computes: an output with one number for a batch."""

    name: str
    output: str


def losses_among(scalars: Sequence[str], source: Source, algorithm: int | None) -> list[str]:
    """Which of some outputs of a step, each one number of floating point, may be called its loss.

    The algorithm's own output of that name, else its first; of several algorithms, all their own. An output of
    inference is the loss only if it has that name, and there is one algorithm that has no outputs of its own.
    """
    if len(source.chosen(algorithm)) > 1:
        return [n for n in scalars if n not in source.inference_outputs]
    own = source.own_outputs(algorithm) or (LOSS,)
    found = [n for n in scalars if n in own]
    return [LOSS] if LOSS in found else found[:1]


class Metrics:
    """Measures over all samples of validation data, from one pass over it.

    A metric is "loss" (`losses_among`), "accuracy", "mae" or "mse" of an output and a label (`accuracy`, `mean_error`
    in `measures`), or the name of any output of inference or the algorithm that is one number. "accuracy" takes the
    first output for which there is a label that fits: the input `OUTPUT.label` or `OUTPUT.target`, or the only one that
    fits among the inputs of the algorithm alone. "accuracy:OUTPUT" names the output, "accuracy:OUTPUT:LABEL" the label
    as well, which may then be any input. By default: accuracy of integer labels, else mae, if there is a label, and
    "loss", if there is one. Outputs of the algorithm come from `StepFunction.evaluate`, so nothing changes. One number
    for a batch counts with its samples. Labels and indices out of range are found at once, not by the first call.

    names: what a call gives, in order. larger: those of which a larger value is the better one. data: the arrays.
    notes: what is measured in another way than one may think. InputError: all that is wrong with names or data.
    """

    def __init__(
        self,
        names: Sequence[str] | None,
        validation: Mapping[str, Any],
        *,
        step: StepFunction,
        source: Source,
        batch: int,
        algorithm: int | None,
        static: Mapping[str, Array],
        samples: Samples | None = None,
    ) -> None:
        self._step, self._source, self._algorithm = step, source, algorithm
        self._static = {n: as_typed(source, n, a) for n, a in static.items()}
        self.notes: list[str] = []
        inference = {n: t for n, t in source.inputs_of("infer", algorithm).items() if n not in static}
        idle = source.idle_inputs(algorithm)
        step_inputs = {n: t for n, t in source.inputs_of("step", algorithm).items() if n not in static}
        given = {n: t for n, t in step_inputs.items() if n in validation}
        samples = samples or samples_of(inference | step_inputs)
        self.data = Dataset(validation, inference | given, source.defaults, WHAT, samples.axes(inference | given))
        self._types = {n: (inference | given)[n] for n in self.data.names}
        self._inference = [n for n in self.data.names if n in inference]
        self._lacking = [n for n in step_inputs if n not in {*given, *idle, *source.defaults}]
        self._labels = [n for n in self.data.names if n not in inference and n in self.data.axes]
        self._batch, first, self._graph = self._first(batch)
        self._typed = {n: TensorType(t.dtype, first[n].shape) for n, t in self._types.items()}
        self._metrics = self._default() if names is None else self._named(names)
        self.names = tuple(m.name for m in self._metrics)
        self.larger = frozenset(m.name for m in self._metrics if m.name.split(":")[0] == ACCURACY)
        infers = set(source.inference_outputs)
        self._scalars = [m for m in self._metrics if isinstance(m, _Scalar)]
        self._compared = [m for m in self._metrics if isinstance(m, _Compared)]
        self._evaluates = any(m.output not in infers for m in self._metrics)
        self._outputs = tuple(dict.fromkeys(m.output for m in self._metrics))
        self._whole = bool(self._scalars) and not self._is_open(first)
        if self._whole and len(self.data) % batch:
            self._note_rest()
        run = self._graph.outputs if self._evaluates else self._source.inference_outputs
        check_indices(self.data, self._graph, [self._graph.outputs[n] for n in run])

    # --- what the model has --------------------------------------------------------------------------------
    def _first(self, batch: int) -> tuple[int, dict[str, Array], Graph]:
        """How many samples a call takes, the first of them, and the graph: no more than there are, if it can be."""
        if batch > len(self.data) and not self._is_fixed():
            whole = self.data.rows(slice(0, len(self.data)))
            try:
                return len(self.data), whole, self._at(whole)
            except CompileError:  # the size is in the shapes of a Reshape, say
                pass
        filled = self.data.rows(np.minimum(np.arange(batch), len(self.data) - 1))
        return batch, filled, self._at(filled)

    def _at(self, rows: Mapping[str, Array]) -> Graph:
        """The graph that is run, as imported, for arrays of these shapes."""
        dims: dict[str, int] = {}
        for name, t in self._types.items():
            have = rows[name].shape
            want = tuple(dims.setdefault(d, n) if isinstance(d, str) else d for d, n in zip(t.dims, have, strict=True))
            if want != have:
                size = [n for axis, n in enumerate(have) if axis != self.data.axes.get(name)]
                raise InputError(f"array {name!r} of {WHAT} has samples of shape {size}: the model takes {t}")
        role = "infer" if self._lacking else "evaluate"
        fed = [n for n in self._types if n in self._source.defaults]
        try:
            return self._source.graph(role, dims, self._static, self._algorithm, fed)
        except NeedsStatic as e:  # values that decide shapes: those of these samples
            if not set(e.inputs) <= set(rows):
                raise
            fixed = self._static | {n: as_typed(self._source, n, rows[n]) for n in e.inputs}
            return self._source.graph(role, dims, fixed, self._algorithm, [n for n in fed if n not in fixed])

    def _is_open(self, first: Mapping[str, Array]) -> bool:
        """Whether the samples that do not fill a batch can be run alone."""
        rest = len(self.data) % self._batch
        if rest == 0 or self._is_fixed():
            return rest == 0
        try:
            axes = self.data.axes
            self._at({n: _first(a, rest, axes[n]) if n in axes else a for n, a in first.items()})
        except CompileError:  # the size is in the shapes of a Reshape, say
            return False
        return True

    def _is_fixed(self) -> bool:
        """Whether the model has a number where samples are counted."""
        return any(isinstance(self._types[n].dims[axis], int) for n, axis in self.data.axes.items())

    def _note_rest(self) -> None:
        rest, names = len(self.data) % self._batch, ", ".join(repr(m.name) for m in self._scalars)
        if rest == len(self.data):
            raise InputError(
                f"{WHAT} has {rest} samples, which do not fill one batch of {self._batch}, the model's fixed size: "
                f"{names} cannot be measured, give more"
            )
        self.notes.append(
            f"the last {rest} of {len(self.data)} validation samples do not fill a batch of {self._batch}, the model's "
            f"fixed size: {names} leaves them out"
        )

    def _numbers(self) -> list[str]:
        """Outputs that are one number for a batch."""
        g = self._graph
        return [n for n, v in g.outputs.items() if g.type(v).size == 1 and g.type(v).dtype in FLOATS | INTEGERS]

    def _losses(self) -> list[str]:
        """What may be called the loss."""
        g = self._graph
        found = [n for n in self._numbers() if g.type(g.outputs[n]).dtype in FLOATS]
        return losses_among(found, self._source, self._algorithm)

    # --- choosing ------------------------------------------------------------------------------------------
    def _default(self) -> list[_Compared | _Scalar]:
        found: list[_Compared | _Scalar] = []
        reasons = []
        kinds = [ACCURACY, "mae"] if any(self._types[n].dtype in INTEGERS for n in self._labels) else ["mae"]
        for kind in kinds:
            try:
                metric = self._comparison(kind, kind)
            except InputError as e:
                reasons.append(str(e))
                continue
            if kind == ACCURACY and self._types[metric.label].dtype not in INTEGERS:
                continue  # numbers to be met, which only look like answers to yes-or-no questions
            if wrong := first_wrong(self.data, metric.label, metric.measure):
                reasons.append(f"metric {kind!r}: {wrong}")
                continue
            found.append(metric)
            break
        losses = self._losses()
        if len(losses) == 1:
            if not found and self._labels:
                self.notes.append(f"only the loss is measured: {reasons[0]}")
            found.append(_Scalar(LOSS, losses[0]))
        elif self._lacking and found:
            self.notes.append(f"the loss is not measured: {self._lacks()}")
        if not found:
            can = f"; its outputs can be named: {', '.join(map(repr, losses))}" if losses else ""
            lacks = [self._lacks()] if self._lacking else []
            raise InputError(f"no metric: {'; '.join([*reasons[:1], *lacks])}{can}")
        return found

    def _lacks(self) -> str:
        return f"{WHAT} has no array {', '.join(map(repr, self._lacking))}"

    def _named(self, names: Sequence[str]) -> list[_Compared | _Scalar]:
        names = checked_names("metrics", names)
        found: list[_Compared | _Scalar] = []
        problems = []
        for name in dict.fromkeys(names):
            try:
                found.append(self._metric(name))
            except InputError as e:
                problems.append(str(e))
        if problems:
            raise InputError("; ".join(problems))
        wrong = [(m, first_wrong(self.data, m.label, m.measure)) for m in found if isinstance(m, _Compared)]
        if problems := [f"metric {m.name!r}: {what}" for m, what in wrong if what]:
            raise InputError("; ".join(problems))
        return found

    def _metric(self, name: str) -> _Compared | _Scalar:
        outputs = self._graph.outputs
        if name == LOSS and (losses := self._losses()):
            if len(losses) == 1:
                return _Scalar(name, losses[0])
            several = ", ".join(map(repr, losses))
            raise InputError(f"metric 'loss': there are several algorithms, name one of their outputs: {several}")
        if name == LOSS and not self._lacking:
            raise InputError("metric 'loss': the algorithm has no output of floating point that is one number")
        if name != LOSS and name in self._numbers():
            return _Scalar(name, name)
        kind, _, rest = name.partition(":")
        if kind in COMPARED and (rest or name == kind):
            return self._comparison(name, kind, *(self._parts(name, rest) if rest else ()))
        if self._lacking and (name == LOSS or name in self._source.output_names(self._algorithm)):
            raise InputError(f"metric {name!r} is an output of the step: {self._lacks()}")
        if name in outputs:
            shape = list(self._graph.type(outputs[name]).shape)
            with_label = " or ".join(f"'{kind}:{name}'" for kind in COMPARED)
            raise InputError(
                f"metric {name!r}: that output has shape {shape} for {self._batch} samples, and a metric is one "
                f"number; {with_label} compares it with labels"
            )
        known = list(dict.fromkeys([*([LOSS] if self._losses() else []), *COMPARED, *self._numbers()]))
        there = ", ".join(map(repr, known))
        raise InputError(f"there is no metric {name!r}{did_you_mean(name, known)}: there are {there}")

    def _parts(self, name: str, rest: str) -> tuple[str, str]:
        """OUTPUT or OUTPUT:LABEL as the two names, which may have colons themselves; the label is '' if it has none."""
        outputs = self._compared_outputs()
        if rest in outputs:
            return rest, ""
        pairs = [(rest[:i], rest[i + 1 :]) for i, c in enumerate(rest) if c == ":"]
        for output, label in pairs:
            if output in outputs and label in self._types:
                return output, label
        for output, label in pairs:
            if output in outputs:
                near = did_you_mean(label, self._types) or f": it has {', '.join(map(repr, self._types))}"
                raise InputError(f"metric {name!r}: {WHAT} has no array {label!r}{near}")
        near = did_you_mean(rest, outputs) or f": there are {', '.join(map(repr, outputs)) or 'none'}"
        raise InputError(f"metric {name!r}: inference has no output {rest!r} of samples{near}")

    def _compared_outputs(self) -> list[str]:
        """Outputs of inference that have samples along an axis where inputs have them."""
        g = self._graph
        return [n for n in self._source.inference_outputs if n in g.outputs and self._sampled(g, g.outputs[n])]

    def _sampled(self, g: Graph, value: str) -> bool:
        return any(g.type(value).shape[axis : axis + 1] == (self._batch,) for axis in {0, *self.data.axes.values()})

    def _comparison(self, name: str, kind: str, output: str = "", label: str = "") -> _Compared:
        """The metric of these, or of the first output that a label fits. InputError: there is none, or several do."""
        labels = [label] if label else self._labels
        if label and label not in self.data.axes:
            raise InputError(f"metric {name!r}: input {label!r} is the same for all samples, so it labels none")
        if not labels:
            raise InputError(
                f"metric {name!r} needs a label, an input of the training algorithm alone: {WHAT} has none; "
                f"'{kind}:OUTPUT:INPUT' names any input"
            )
        outputs = [output] if output else self._compared_outputs()
        reasons = []
        for o in outputs:
            made = {t: self._measure(kind, o, t) for t in labels}
            fits = {t: m for t, m in made.items() if not isinstance(m, str)}
            own = [t for t in (f"{o}.label", f"{o}.target") if t in fits]
            chosen = own[:1] or list(fits)
            if len(chosen) > 1:
                names = ", ".join(f"'{kind}:{o}:{t}'" for t in chosen)
                raise InputError(f"metric {name!r}: several labels fit output {o!r}, name one: {names}")
            if chosen:
                measure, axis = fits[chosen[0]]
                return _Compared(name, o, chosen[0], measure, axis, self.data.axes[chosen[0]])
            shape = list(self._graph.type(self._graph.outputs[o]).shape)
            reasons += [
                f"output {o!r} of shape {shape} with label {t!r} of shape {list(self._typed[t].shape)}: {m}"
                for t, m in made.items()
            ]
        raise InputError(f"metric {name!r}: {'; '.join(reasons) or 'inference has no output of samples'}")

    def _measure(self, kind: str, output: str, label: str) -> tuple[Measure, int] | str:
        """The measure and the output's axis of samples, or why there is none."""
        value, t = self._graph.outputs[output], self._typed[label]
        measure, shape = COMPARED[kind](self._graph, value, label, t), self._graph.type(value).shape
        if isinstance(measure, str):
            return measure
        axis = axis_of_output(measure, shape, t.shape, self.data.axes[label])
        same = shape[axis : axis + 1] == (self._batch,)
        return (measure, axis) if same else "they have samples along different axes"

    # --- measuring -----------------------------------------------------------------------------------------
    def __call__(self) -> dict[str, float]:
        """Measure on the current state. NaN: of no label that counts."""
        total = dict.fromkeys(self.names, 0.0)
        count = dict.fromkeys(self.names, 0.0)
        for where, samples in self._batches():
            rows = self.data.rows(where)
            try:
                outputs = self._run(rows)
            except RefusedError as e:
                raise self.data.refused(e, where) from None
            if samples == self._batch or not self._whole:
                for s in self._scalars:
                    total[s.name] += float(self._number(outputs, s.output).reshape(())) * samples
                    count[s.name] += samples
            for m in self._compared:
                label = _first(as_numbers(rows[m.label], self._types[m.label].dtype), samples, m.label_axis)
                added, counted = m.measure(_first(self._number(outputs, m.output), samples, m.axis), label)
                total[m.name] += added
                count[m.name] += counted
        return {n: total[n] / count[n] if count[n] else float("nan") for n in self.names}

    def _batches(self) -> Iterator[tuple[Array | slice, int]]:
        """The samples in order. A batch that is not full is filled up with the last sample, unless scalars need it so.

        Then another size is compiled, if it can be.
        """
        for start in range(0, len(self.data), self._batch):
            samples = min(self._batch, len(self.data) - start)
            if samples == self._batch or (self._scalars and not self._whole):
                yield slice(start, start + samples), samples
            elif self._compared:
                yield np.minimum(np.arange(start, start + self._batch), len(self.data) - 1), samples

    def _run(self, rows: Mapping[str, Array]) -> dict[str, Array]:
        if self._evaluates:
            return self._step.evaluate(rows, fetch=self._outputs)
        return self._step.infer({n: rows[n] for n in self._inference})

    def _number(self, outputs: Mapping[str, Array], name: str) -> Array:
        return as_numbers(outputs[name], self._graph.type(self._graph.outputs[name]).dtype)


def _first(array: Array, samples: int, axis: int) -> Array:
    return array[(slice(None),) * axis + (slice(samples),)]
