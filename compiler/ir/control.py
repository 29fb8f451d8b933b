"""If, Loop and Scan: their types, what they demand, and how many times a Loop runs.

A body is a Graph in an attribute. Its inputs, by position, are what the operator hands in at each iteration; what it
reads of the graph around it are its captures. Types are static: a carried value keeps its type from the first
iteration to the last, and outputs that collect a row from each iteration need the number of iterations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from compiler.ir.evaluate import evaluate, is_random
from compiler.ir.graph import Graph, Node
from compiler.ir.infer import InferenceError, NotStatic, Types, remembered
from compiler.ir.known import Known, Values
from compiler.ir.types import AnyArray, TensorType

NESTING = frozenset({"If", "Loop", "Scan"})
"""Operators with bodies that the IR has."""

EVALUATIONS = 20_000
"""Nodes evaluated at compile time, at most, to find out when a Loop ends (about a second)."""


class ChangingType(InferenceError):
    """A carried value has another type after an iteration than before it."""


BRANCHES = ("then_branch", "else_branch")


@dataclass(frozen=True)
class Iterated:
    """A Loop or Scan taken apart.

    initial, sequences: operands, the first values of what is carried on, and (of a Scan) what is read slice by slice.
    state, elements: the inputs of the body that take these; new_state, rows: the values that it computes.
    final, stacked: the node's outputs, '' where absent. number, go, new_go: of a Loop, the body's inputs for the
    iteration's number and the condition, and the value that decides whether it goes on; '' for a Scan.
    Axes and directions (1: from the end) are those of the sequences and of the stacked outputs; axes count from 0.
    """

    body: Graph
    initial: tuple[str, ...]
    sequences: tuple[str, ...]
    state: tuple[str, ...]
    elements: tuple[str, ...]
    new_state: tuple[str, ...]
    rows: tuple[str, ...]
    final: tuple[str, ...]
    stacked: tuple[str, ...]
    sequence_axes: tuple[int, ...]
    sequence_reversed: tuple[int, ...]
    stacked_axes: tuple[int, ...]
    stacked_reversed: tuple[int, ...]
    number: str = ""
    go: str = ""
    new_go: str = ""


def iterated(node: Node) -> Iterated:
    """Take a Loop or Scan apart. InferenceError: the numbers of its operands, results and axes do not match."""
    body = node.attr("body")
    if not isinstance(body, Graph):
        raise InferenceError(f"{node.op} needs a body")
    if missing := [v for v in body.outputs.values() if v not in body.types]:
        raise InferenceError(f"the body gives {missing[0]!r}, which nothing defines")
    return _loop(node, body) if node.op == "Loop" else _scan(node, body)


def _loop(node: Node, body: Graph) -> Iterated:
    initial, results = node.inputs[2:], tuple(body.outputs.values())
    n = len(initial)
    _count("inputs of the body", len(body.inputs), 2 + n, "the iteration's number, the condition, the carried values")
    if len(results) < 1 + n:
        raise InferenceError(f"the body has {len(results)} outputs: the condition and {n} carried values are expected")
    rows = results[1 + n :]
    outputs = _outputs(node, n, len(rows))
    return Iterated(
        body, initial, (), body.inputs[2:], (), results[1 : 1 + n], rows, outputs[:n], outputs[n:],
        (), (), (0,) * len(rows), (0,) * len(rows), body.inputs[0], body.inputs[1], results[0],
    )  # fmt: skip


def _scan(node: Node, body: Graph) -> Iterated:
    scanned, results = node.attr("num_scan_inputs"), tuple(body.outputs.values())
    if not isinstance(scanned, int) or not 1 <= scanned <= len(node.inputs):
        raise InferenceError(f"num_scan_inputs is {scanned}, but there are {len(node.inputs)} inputs")
    n = len(node.inputs) - scanned
    _count("inputs of the body", len(body.inputs), len(node.inputs), "one for each input")
    if len(results) < n:
        raise InferenceError(f"the body has {len(results)} outputs: {n} carried values are expected")
    rows, elements = results[n:], body.inputs[n:]
    outputs = _outputs(node, n, len(rows))
    sequence_axes = _axes(node, "scan_input_axes", [body.types[v] for v in elements])
    stacked_axes = _axes(node, "scan_output_axes", [body.types[v] for v in rows])
    sequence_reversed = _directions(node, "scan_input_directions", scanned)
    stacked_reversed = _directions(node, "scan_output_directions", len(rows))
    return Iterated(
        body, node.inputs[:n], node.inputs[n:], body.inputs[:n], elements, results[:n], rows, outputs[:n], outputs[n:],
        sequence_axes, sequence_reversed, stacked_axes, stacked_reversed,
    )  # fmt: skip


def _count(what: str, found: int, expected: int, meaning: str) -> None:
    if found != expected:
        raise InferenceError(f"there are {found} {what}, where {expected} are expected: {meaning}")


def _outputs(node: Node, carried: int, rows: int) -> tuple[str, ...]:
    if len(node.outputs) > carried + rows:
        raise InferenceError(f"{node.op} has {len(node.outputs)} outputs, its body computes {carried + rows}")
    return node.outputs + ("",) * (carried + rows - len(node.outputs))


def _axes(node: Node, attribute: str, slices: Sequence[TensorType]) -> tuple[int, ...]:
    """The axes along which slices of these types lie in the whole tensors; 0 by default."""
    axes = node.attr(attribute) or (0,) * len(slices)
    _count(attribute, len(axes), len(slices), "one for each tensor")
    found = []
    for axis, t in zip(axes, slices, strict=True):
        if not -t.rank - 1 <= axis <= t.rank:
            raise InferenceError(f"axis {axis} in {attribute} is out of the range of rank {t.rank + 1}")
        found.append(axis if axis >= 0 else axis + t.rank + 1)
    return tuple(found)


def _directions(node: Node, attribute: str, count: int) -> tuple[int, ...]:
    directions = tuple(node.attr(attribute) or (0,) * count)
    _count(attribute, len(directions), count, "one for each tensor")
    if not set(directions) <= {0, 1}:
        raise InferenceError(f"{attribute} is {list(directions)}: a direction is 0 (forward) or 1 (reverse)")
    return directions


# --- types -------------------------------------------------------------------------------------------------
def control_types(node: Node, ins: Types, known: Values) -> Types:
    """Output types of an If, Loop or Scan on operands of these types. Raises InferenceError, NotStatic."""
    if node.op == "If":
        return _branch_types(node)
    if node.op == "Scan":
        return remembered(node, ins, lambda: _scan_types(node, ins))
    return _loop_types(node, ins, known)


def _branch_types(node: Node) -> Types:
    branches = [g for g in map(node.attr, BRANCHES) if isinstance(g, Graph)]
    if len(branches) != 2:
        raise InferenceError("If needs then_branch and else_branch")
    then, other = ([g.types.get(v) for v in g.outputs.values()] for g in branches)
    if len(then) != len(node.outputs) or len(other) != len(node.outputs):
        raise InferenceError(f"If has {len(node.outputs)} outputs, its branches {len(then)} and {len(other)}")
    for i, (a, b) in enumerate(zip(then, other, strict=True)):
        if a is None or b is None or a.dtype != b.dtype:
            raise InferenceError(f"output {i} is {a} in one branch and {b} in the other")
        if a.shape != b.shape:
            raise NotStatic(node, node.inputs[:1])
    return tuple(t if v else None for t, v in zip(then, node.outputs, strict=True))


def _loop_types(node: Node, ins: Types, known: Values) -> Types:
    parts = iterated(node)
    types = parts.body.types
    for name, t, dtype in (
        ("the trip count", ins[0] if ins else None, "i64"),
        ("the condition", ins[1] if len(ins) > 1 else None, "bool"),
        ("the body's input of the iteration's number", types[parts.number], "i64"),
        ("the body's input of the condition", types[parts.go], "bool"),
        ("the body's condition", types.get(parts.new_go), "bool"),
    ):
        if t is not None and (t.dtype != dtype or t.size != 1):
            raise InferenceError(f"{name} is {t}, not one {dtype}")
    _carried(parts, ins[2:])
    if not (node.inputs and node.inputs[0]) and trip_count(node, known) is None and always_goes_on(parts):
        raise InferenceError("the Loop never ends: it has no trip count, and its condition stays true")
    if not any(parts.stacked):
        return _results(node, parts, 0)
    count = trip_count(node, known)
    if count is None:
        raise NotStatic(node, tuple(deciders(node, known)))
    return _results(node, parts, count)


def _scan_types(node: Node, ins: Types) -> Types:
    parts = iterated(node)
    n = len(parts.initial)
    _carried(parts, ins[:n])
    return _results(node, parts, _length(parts, ins[n:]))


def _length(parts: Iterated, sequences: Types) -> int:
    """The number of a Scan's iterations: the extent of all sequences along their axes."""
    lengths: dict[int, int] = {}
    for i, (t, v, axis) in enumerate(zip(sequences, parts.elements, parts.sequence_axes, strict=True)):
        slice_ = parts.body.types[v]
        if t is None:
            raise InferenceError(f"scan input {i} is absent")
        if t.rank != slice_.rank + 1 or t.dtype != slice_.dtype or _without(t.shape, axis) != slice_.shape:
            raise InferenceError(f"scan input {i} is {t}, its slices along axis {axis} are not {slice_}")
        lengths.setdefault(t.shape[axis], i)
    if len(lengths) > 1:
        raise InferenceError(f"the scan inputs have different lengths: {', '.join(map(str, lengths))}")
    return next(iter(lengths))


def _carried(parts: Iterated, initial: Types) -> None:
    for i, (t, into, out) in enumerate(zip(initial, parts.state, parts.new_state, strict=True)):
        inner, result = parts.body.types[into], parts.body.types.get(out)
        if t != inner:
            raise InferenceError(f"carried value {i} begins as {t}, but the body takes {inner}")
        if result != inner:
            what = f"carried value {i} is {inner} before an iteration and {result} after it"
            raise ChangingType(f"{what}: it must keep its type")


def _results(node: Node, parts: Iterated, count: int) -> Types:
    types = parts.body.types
    found: list[TensorType | None] = [types[v] for v in parts.new_state]
    for v, axis in zip(parts.rows, parts.stacked_axes, strict=True):
        shape = types[v].shape
        found.append(TensorType(types[v].dtype, (*shape[:axis], count, *shape[axis:])))
    return tuple(t if v else None for t, v in zip(found, node.outputs, strict=False))


def _without(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return shape[:axis] + shape[axis + 1 :]


# --- how often a Loop runs ---------------------------------------------------------------------------------
def scan_length(node: Node, types: Callable[[str], TensorType]) -> int:
    """The number of iterations of a Scan whose operands have these types."""
    parts = iterated(node)
    return _length(parts, tuple(map(types, parts.sequences)))


def trip_count(node: Node, known: Callable[[str], AnyArray | None]) -> int | None:
    """How many times a Loop runs; None if that is decided at run time. known: operands' values at compile time."""
    parts = iterated(node)
    limit, first = (node.input(i) for i in (0, 1))
    most = known(limit) if limit else None
    begins = known(first) if first else np.array(True)
    if (most is not None and most.item() <= 0) or (begins is not None and not begins.all()):
        return 0
    if begins is None or (limit and most is None):
        return None
    if always_goes_on(parts):
        return None if most is None else int(most.item())
    return _simulated(node, parts, None if most is None else int(most.item()), known)


def always_goes_on(parts: Iterated) -> bool:
    """Whether the condition that a Loop's body computes is the one it was given, or true."""
    body, v = parts.body, parts.new_go
    while (node := body.producer(v)) is not None and node.op == "Identity":
        v = node.inputs[0]
    if v == parts.go:
        return True
    value = _body_known(body)(v)
    return value is not None and bool(value.all())


def _body_known(body: Graph) -> Known:
    return Known(body.types, body.consts, {v: n for n in body.nodes for v in n.results})


def condition_slice(parts: Iterated) -> tuple[list[Node], list[str]]:
    """The nodes of a Loop's body that decide when it ends, over all iterations, and the body's sources they read."""
    new = dict(zip(parts.state, parts.new_state, strict=True)) | {parts.go: parts.new_go}
    needed: set[str] = set()
    pending = [parts.new_go]
    while pending:
        v = pending.pop()
        if v in needed:
            continue
        needed.add(v)
        producer = parts.body.producer(v)
        pending += producer.reads if producer is not None else [new[v]] if v in new else []
    nodes = [n for n in parts.body.nodes if needed.intersection(n.results)]
    return nodes, [v for v in (*parts.body.inputs, *parts.body.captures) if v in needed]


def _outer(node: Node, parts: Iterated) -> dict[str, str]:
    """Sources of a Loop's body -> what the node gives them at the first iteration."""
    return dict(zip((*parts.state, *parts.body.captures), (*parts.initial, *node.captures), strict=True))


def deciders(node: Node, known: Callable[[str], AnyArray | None]) -> list[str]:
    """The operands and captures of a Loop, not known at compile time, that decide how often it runs."""
    parts = iterated(node)
    outer = _outer(node, parts)
    sources = [] if always_goes_on(parts) else [outer[v] for v in condition_slice(parts)[1] if v in outer]
    return [v for v in dict.fromkeys((node.input(0), node.input(1), *sources)) if v and known(v) is None]


def _simulated(node: Node, parts: Iterated, limit: int | None, known: Callable[[str], AnyArray | None]) -> int | None:
    """Run what decides the end of a Loop; None if that is not known at compile time, or takes too long."""
    nodes, sources = condition_slice(parts)
    outer = _outer(node, parts)
    if any(n.domain or n.bodies or is_random(n) for n in nodes):
        return None
    state: dict[str, AnyArray] = {v: t.array for v, t in parts.body.consts.items()}
    for v in sources:
        if v in outer:
            value = known(outer[v])
            if value is None:
                return None
            state[v] = value
    number = parts.body.types[parts.number]
    state[parts.go] = np.ones(parts.body.types[parts.go].shape, np.bool_)
    key = (limit, *((v, state[v].dtype.str, state[v].shape, state[v].tobytes()) for v in sources if v in outer))

    def run() -> int | None:
        count = 0
        while limit is None or count < limit:
            if (count + 1) * len(nodes) > EVALUATIONS:
                return None
            values = {**state, parts.number: np.full(number.shape, count, np.int64)}
            for n in nodes:
                results = evaluate(n, [values[v] if v else None for v in n.inputs])
                values.update((v, a) for v, a in zip(n.outputs, results, strict=True) if v and a is not None)
            count += 1
            state[parts.go] = values[parts.new_go]
            state.update({v: values[new] for v, new in zip(parts.state, parts.new_state, strict=True) if new in values})
            if not state[parts.go].all():
                return count
        return limit

    return _counted((node.key, key), run)


_counts: dict[object, int | None] = {}


def _counted(key: object, run: Callable[[], int | None]) -> int | None:
    """`run()`, remembered; None if the reference implementation fails: the value is just not known."""
    if key not in _counts:
        if len(_counts) > 10_000:
            _counts.clear()
        try:
            with np.errstate(all="ignore"):
                _counts[key] = run()
        except Exception:  # noqa: BLE001 - the reference implementation raises anything
            _counts[key] = None
    return _counts[key]
