"""What outputs and labels of samples are worth: accuracy and mean errors, of whatever shapes fit.

Each is made for one output, a value of a graph as imported, and one label, an input of this type that the graph may
have; it then gives of a batch a sum and how many it is of.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from compiler.errors import InputError
from compiler.ir.builder import where
from compiler.ir.graph import Graph, Node
from compiler.ir.types import INTEGERS, TensorType, numpy_dtype
from compiler.runtime.layout import ML_DTYPES
from compiler.runtime.memory import Array
from compiler.training.data import Dataset

_ROWS = 4096  # labels that are looked at together

_LOSSES = frozenset({"SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"})

_PROBABILITIES = frozenset({"Sigmoid", "HardSigmoid", "Softmax"})
"""Operators that give numbers from 0 to 1, of which 0.5 is the middle; of logits that is 0."""

_MOVES = frozenset(
    {"Identity", "Cast", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Slice", "Gather", "Clip", "Split"}
)
"""Operators behind which numbers are what they were: only their places (or types, or bounds) are others."""

_KEEPS = frozenset({"Identity", "Cast", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose"})
"""Those of them that keep every number."""


def as_numbers(array: Array, dtype: str) -> Array:
    """An array of the runtime as numbers; those types that NumPy has not come as their bits."""
    return array.view(numpy_dtype(dtype)).astype(np.float64) if dtype in ML_DTYPES else array


class Measure(Protocol):
    """A sum over the samples of a batch, with how many it is of."""

    def __call__(self, output: Array, label: Array) -> tuple[float, float]:
        """(sum, count); the arrays are numbers of the shapes that it was made for."""
        ...

    @property
    def rule(self) -> str:
        """What a wrong label is not."""
        ...

    def wrong(self, labels: Array) -> Array:
        """Which labels are wrong."""
        ...


class _Free:
    """Of a measure for which no label is wrong."""

    rule = ""

    def wrong(self, labels: Array) -> Array:
        return np.zeros(labels.shape, bool)


# --- mean errors -----------------------------------------------------------------------------------------------------
def mean_error(power: int, g: Graph, output: str, label: str, t: TensorType) -> Measure | str:
    """Mean over all numbers of |output - label|^power; why not, if the two have different shapes.

    Axes of size 1 do not count, but for the first.
    """
    o = g.type(output)
    if o.dtype == "bool" or not _same(o.shape, t.shape):
        return "an error is between numbers of the same shape"
    return _Error(power)


@dataclass(frozen=True)
class _Error(_Free):
    power: int

    def __call__(self, output: Array, label: Array) -> tuple[float, float]:
        off = np.abs(output.reshape(label.shape).astype(np.float64) - label.astype(np.float64))
        return float((off**self.power).sum()), label.size


# --- accuracy --------------------------------------------------------------------------------------------------------
def accuracy(g: Graph, output: str, label: str, t: TensorType) -> Measure | str:
    """The share of right answers, or why there is none of these shapes.

    Class numbers [N, ...] (or with a 1 in place of the classes) against scores with the classes at axis 1 or last,
    told by the shape; where both fit, at axis 1 of four or more axes, else last. Not counted are labels below 0, and
    those that a loss of the graph ignores (`ignore_index`).

    One number for a yes-or-no question, against labels 0 and 1 of any type: yes is above 0.5 of probabilities (what
    comes from a Sigmoid or Softmax), above 0 of others. Where output and label are both [N, C]: as many such questions
    if a Sigmoid made the output, one of C classes if a Softmax did; of others it is not known.
    """
    o = g.type(output)
    axis = _class_axis(o.shape, t.shape) if t.dtype in INTEGERS else None
    if axis is not None:
        return _Classes(axis, o.shape[axis], frozenset(ignored(g, label)))
    if not _same(o.shape, t.shape):
        return "accuracy is of class numbers, shaped as the output without its classes, or of labels of its shape"
    axis = _usual_axis(o.rank)
    maker = _maker(g, output)
    if axis == 0 or o.shape[axis] == 1 or maker in ("Sigmoid", "HardSigmoid"):
        return _Questions(0.5 if maker in _PROBABILITIES else 0.0)
    if maker in ("Softmax", "LogSoftmax") and o.shape == t.shape:
        return _Distributions(axis)
    n = o.shape[axis]
    return (
        f"labels of the output's shape may be one of {n} classes, or {n} yes-or-no questions: give class numbers, or "
        "end the model with a Softmax or a Sigmoid"
    )


@dataclass(frozen=True)
class _Classes:
    axis: int
    classes: int
    ignored: frozenset[int]

    def __call__(self, output: Array, label: Array) -> tuple[float, float]:
        label = label.reshape(output.shape[: self.axis] + output.shape[self.axis + 1 :])
        counted = self._counted(label)
        return float(((output.argmax(self.axis) == label) & counted).sum()), float(counted.sum())

    def _counted(self, label: Array) -> Array:
        return np.asarray((label >= 0) & ~np.isin(label, list(self.ignored)))

    @property
    def rule(self) -> str:
        return f"none of {self.classes} classes, 0 to {self.classes - 1}"

    def wrong(self, labels: Array) -> Array:
        return np.asarray((labels >= self.classes) & self._counted(labels))


@dataclass(frozen=True)
class _Questions:
    middle: float

    def __call__(self, output: Array, label: Array) -> tuple[float, float]:
        return float(((output.reshape(label.shape) > self.middle) == (label != 0)).sum()), label.size

    rule = "neither 0 nor 1"

    def wrong(self, labels: Array) -> Array:
        return np.asarray((labels != 0) & (labels != 1))


@dataclass(frozen=True)
class _Distributions(_Free):
    axis: int

    def __call__(self, output: Array, label: Array) -> tuple[float, float]:
        right = output.argmax(self.axis) == label.argmax(self.axis)
        return float(right.sum()), right.size


def axis_of_output(measure: Measure, output: tuple[int, ...], label: tuple[int, ...], axis: int) -> int:
    """The axis of an output that is this axis of a label, for a measure that was made of the two shapes."""
    if isinstance(measure, _Classes):
        return axis + (len(output) > len(label) and axis >= measure.axis)
    if axis and label[axis] == 1:
        return output.index(1, 1) if 1 in output[1:] else len(output)
    counting = [i for i, n in enumerate(output) if i == 0 or n != 1]  # as `_same` compares them
    place = sum(1 for i, n in enumerate(label[:axis]) if i == 0 or n != 1)
    return counting[place] if place < len(counting) else axis


def _same(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    return a[:1] == b[:1] and [d for d in a[1:] if d != 1] == [d for d in b[1:] if d != 1]


def _usual_axis(rank: int) -> int:
    """Where classes usually are: as `make_training_model` has it. 0: nowhere."""
    return 1 if rank >= 4 else rank - 1


def _class_axis(output: tuple[int, ...], label: tuple[int, ...]) -> int | None:
    """The axis of the output that the label lacks, or where it has one element."""
    usual = _usual_axis(len(output))
    for axis in (usual, 1, len(output) - 1):
        if 0 < axis < len(output) and output[axis] > 1:
            before, behind = output[:axis], output[axis + 1 :]
            if label in (before + behind, (*before, 1, *behind)):
                return axis
    return None


# --- what the graph tells --------------------------------------------------------------------------------------------
def ignored(g: Graph, label: str) -> set[int]:
    """Class numbers that a loss of the graph leaves out: by `ignore_index`, or by Not(Equal(label, number))."""
    same = {label}
    negated = {node.inputs[0] for node in g.nodes if node.op == "Not"}
    found = set()
    for node in g.nodes:
        if node.op in _MOVES and node.input(0) in same:
            same.update(node.results)
        elif node.op in _LOSSES and node.input(1) in same:
            if (number := node.attr("ignore_index")) is not None:
                found.add(int(number))
        elif node.op == "Equal" and node.input(0) in same and node.outputs[0] in negated:
            constant = g.constant(node.input(1))
            if constant is not None and constant.size == 1:
                found.add(int(constant.item()))
    return found


@dataclass(frozen=True)
class Indices:
    """Numbers of an input that choose among `size` elements or classes: from low to size - 1, or `ignored`."""

    input: str
    low: int
    size: int
    ignored: int | None
    where: str

    @property
    def rule(self) -> str:
        """What a wrong one is not, and to which node that matters."""
        return f"out of range [{self.low}, {self.size}), in {self.where}"

    def wrong(self, numbers: Array) -> Array:
        """Which numbers a step would refuse."""
        wrong = (numbers < self.low) | (numbers >= self.size)
        return wrong if self.ignored is None else wrong & (numbers != self.ignored)


def indices(g: Graph, values: Iterable[str]) -> list[Indices]:
    """The inputs that are labels of a loss, or indices of a Gather, in what these values are computed from."""
    needed, found = set(values), []
    for node in reversed(g.nodes):
        if needed.isdisjoint(node.results):
            continue
        needed.update(node.reads)
        if node.op in _LOSSES:
            size, low, ignored = g.type(node.inputs[0]).shape[1], 0, node.attr("ignore_index")
        elif node.op in ("Gather", "GatherElements"):
            size, ignored = g.type(node.inputs[0]).shape[node.attr("axis", 0)], None
            low = -size
        else:
            continue
        value = node.inputs[1]
        while (maker := g.producer(value)) is not None and maker.op in _KEEPS:
            value = maker.inputs[0]
        if value in g.inputs and g.type(value).dtype in INTEGERS:
            found.append(Indices(value, low, size, ignored, where(node)))
    return found[::-1]


def check_indices(data: Dataset, g: Graph, values: Iterable[str]) -> None:
    """InputError: labels or indices in the data that a run which computes these values would refuse."""
    needed = [i for i in indices(g, values) if i.input in data.names]
    if problems := [what for i in needed if (what := first_wrong(data, i.input, i))]:
        raise InputError("; ".join(dict.fromkeys(problems)))


def first_wrong(data: Dataset, name: str, allowed: Measure | Indices) -> str:
    """The first number of an array that is wrong, which else would be found in the middle of training; or ''."""
    axis = data.axes.get(name, 0)
    for start, rows in data.parts(name, _ROWS):
        part = as_numbers(rows, data.inputs[name].dtype)
        if (wrong := allowed.wrong(part)).any():
            first = np.unravel_index(wrong.argmax(), wrong.shape)
            index = [int(i) + (start if k == axis else 0) for k, i in enumerate(first)] or ""
            return f"{name!r}{index} of {data.what} is {part[first]}, {allowed.rule}"
    return ""


def _maker(g: Graph, value: str) -> str:
    """The operator that made the numbers of a value, or ''."""
    node: Node | None = g.producer(value)
    while node is not None and node.op in _MOVES:
        node = g.producer(node.inputs[0])
    return node.op if node is not None else ""
