"""recompute: the same operators on the same operands, within the limit, or an error that tells what is missing."""

from __future__ import annotations

import pickle
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compiler.codegen.footprint import footprint
from compiler.codegen.plan import make_plan
from compiler.errors import MemoryLimitError
from compiler.ir.builder import Builder
from compiler.ir.graph import Graph
from compiler.ir.types import TensorType
from compiler.ir.verify import verify
from compiler.passes import recompute as recompute_module
from compiler.passes.recompute import least, recompute, usage
from compiler.passes.repeating import RULE
from tests.codegen.graphs import Running

SQUARE = TensorType("f32", (64, 64))


def meaning(graph: Graph) -> dict[str, int]:
    """What outputs and updates are computed from, and how: equal for graphs that compute the same in the same way."""
    keys: dict[str, int] = {v: hash(("source", v)) for v in graph.sources}
    for node in graph.nodes:
        operands = tuple(keys.get(v) for v in node.inputs), tuple(keys[v] for v in node.captures)
        keys.update((v, hash((node.key, operands, i))) for i, v in enumerate(node.outputs) if v)
    return {name: keys[v] for name, v in (*graph.outputs.items(), *graph.updates.items())}


def repeats(graph: Graph) -> list[str]:
    return [node.op for node in graph.nodes if node.origin.rule == RULE]


def there_and_back(layers: int, op: str = "Relu") -> Graph:
    """As a training step: values of the way there are read on the way back, in reverse order."""
    b = Builder()
    x, w = b.input("x", SQUARE), b.state("w", np.eye(64, dtype=np.float32))
    kept = []
    for _ in range(layers):
        before = b.op("MatMul", x, w)
        x = b.op(op, before)
        kept.append((before, x))
    for before, after in reversed(kept):
        x = b.op("MatMul", b.op("Mul", x, before), b.op("MatMul", after, w))
    b.output("y", x)
    b.update("w", b.op("Sub", w, x))
    return b.build()


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Random graphs of large and small values, with a state that changes; late nodes often read early values."""
    r = random.Random(draw(st.integers(0, 10**9)))
    b = Builder()
    large = [b.input("x", SQUARE), b.state("w", np.eye(64, dtype=np.float32))]
    rows = [b.input("row", TensorType("f32", (64,)))]
    for _ in range(draw(st.integers(5, 25))):
        v, other = r.choice(large[-4:]), r.choice(large)
        match r.randrange(9):
            case 0:
                large.append(b.op(r.choice(["Relu", "Exp", "Gelu", "Neg"]), v))
            case 1:
                large.append(b.op(r.choice(["Add", "Mul"]), v, other))
            case 2:
                large.append(b.op("MatMul", v, other))
            case 3:
                large.append(b.op("Softmax", v))
            case 4:
                large.append(b.op("Add", v, r.choice(rows)))
            case 5:
                rows.append(b.op("ReduceSum", v, b.ints([0]), keepdims=0))
            case 6:
                flat = b.op("Reshape", v, b.ints([4096]))
                large.append(b.op("Reshape", b.op("Relu", flat), b.ints([64, 64])))
            case 7:  # halves that are computed where the whole has them
                upper, lower = b.add("Split", [b.op("MatMul", v, other)], {"axis": 0, "num_outputs": 2}, ["a", "b"])
                upper, lower = b.op("Softmax", upper), b.op("Softmax", lower)
                large.append(b.op("Concat", upper, lower, axis=0))
                rows.append(b.op("ReduceSum", r.choice([upper, lower]), b.ints([0]), keepdims=0))
            case _:
                large.append(b.op("Transpose", other, perm=[1, 0]))
    b.output("y", large[-1])
    b.output("row_", rows[-1])
    b.update("w", r.choice(large))
    return b.build()


@settings(max_examples=30)
@given(graphs(), st.floats(0, 1))
def test_any_limit_that_can_be_reached_is_reached(graph: Graph, part: float) -> None:
    total, lowest = footprint(graph).total, least(graph, footprint)
    assert lowest <= total
    limit = round(lowest + part * (total - lowest))
    changed = recompute(graph, limit, footprint)
    verify(changed)
    assert footprint(changed).total <= limit
    assert meaning(changed) == meaning(graph)
    assert (changed is graph) == (limit >= total)
    with pytest.raises(MemoryLimitError) as caught:
        recompute(graph, lowest - 1, footprint)
    assert (caught.value.needed, caught.value.limit) == (lowest, lowest - 1)


@given(graphs())
def test_the_lives_of_values_explain_the_arena(graph: Graph) -> None:
    plan = make_plan(graph)
    found = footprint(graph)
    assert found.total == plan.layout.memory.total
    assert usage(found).max() < plan.layout.arena_bytes
    units = len(plan.schedule.units)
    assert all(0 <= start < end <= units for _, _, start, end in found.lives)


def test_where_the_search_for_a_limit_gets_stuck_the_one_for_the_least_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As with a U-Net of 3 levels, where some limits were refused above others that were reached."""
    graph, lower = there_and_back(6), recompute_module._Search.lower
    lowest, total = least(graph, footprint), footprint(graph).total
    monkeypatch.setattr(recompute_module._Search, "lower", lambda self, limit: limit == 0 and lower(self, limit))
    for limit in (lowest, (lowest + total) // 2, total - 1):
        assert footprint(recompute(graph, limit, footprint)).total <= limit


def test_cheap_operators_first() -> None:
    graph = there_and_back(6, "Gelu")
    total = footprint(graph).total
    some = recompute(graph, total - 3 * 16384, footprint)
    assert {"Gelu"} == set(repeats(some))
    fewest = recompute(graph, least(graph, footprint), footprint)
    assert "MatMul" in repeats(fewest)


def test_no_more_is_computed_again_than_is_needed() -> None:
    graph = there_and_back(8)
    total = footprint(graph).total
    counts = [len(repeats(recompute(graph, limit, footprint))) for limit in (total, total - 1, total - 50_000)]
    assert counts[0] == 0
    assert 1 <= counts[1] <= 2
    assert counts[1] < counts[2]


def test_what_is_computed_again_runs_just_before_its_reader_in_one_loop_with_it() -> None:
    b = Builder()
    x = b.input("x", SQUARE)
    m = b.op("MatMul", x, x)
    early = b.op("Exp", m)
    v = b.op("MatMul", early, m)
    for _ in range(3):
        v = b.op("Softmax", b.op("MatMul", v, m))
    b.output("y", b.op("Mul", v, early))
    graph = b.build()
    changed = recompute(graph, footprint(graph).total - 1, footprint)
    assert repeats(changed) == ["Exp"]
    units = make_plan(changed).schedule.units
    assert [n.op for n in units[-1].nodes] == ["Exp", "Mul"]


@pytest.mark.parametrize("threads", [1, 2])
def test_bits_of_results_and_states(threads: int) -> None:
    graph = there_and_back(5, "Tanh")
    changed = recompute(graph, least(graph, footprint), footprint)
    assert repeats(changed)
    x = np.random.default_rng(0).standard_normal((64, 64), np.float32)
    runs = [Running(g, threads) for g in (graph, changed)]
    assert runs[1].code.layout.memory.total < runs[0].code.layout.memory.total
    for _ in range(2):
        outputs = [run({"x": x})["y"].tobytes() for run in runs]
        assert outputs[0] == outputs[1]
        assert runs[0].state["w"].tobytes() == runs[1].state["w"].tobytes()


def test_checks_and_loops_run_once() -> None:
    b = Builder()
    x, i = b.input("x", SQUARE), b.input("i", TensorType("i64", (64,)))
    taken = b.op("Gather", x, i)  # tests its indices
    v = b.op("MatMul", taken, x)
    for _ in range(4):
        v = b.op("MatMul", b.op("Softmax", v), x)
    b.output("y", b.op("Mul", v, taken))
    graph = b.build()
    assert least(graph, footprint) == footprint(graph).total


def test_the_error_tells_all_and_can_be_pickled() -> None:
    graph = there_and_back(4)
    with pytest.raises(MemoryLimitError) as caught:
        recompute(graph, 1000, footprint)
    e = caught.value
    assert f"the step needs at least {e.needed} bytes, the limit is 1000: {e.needed - 1000} bytes over" in str(e)
    assert "(16512 bytes)" in str(e)
    copy = pickle.loads(pickle.dumps(e))
    assert (str(copy), copy.needed, copy.limit) == (str(e), e.needed, 1000)


def test_what_has_parts_is_computed_again_with_them() -> None:
    """Readers of a part read it in the second result; else the first one would be kept for them."""
    b = Builder()
    x = b.input("x", SQUARE)
    m = b.op("MatMul", x, x)
    upper, lower = (b.op("Softmax", v) for v in b.add("Split", [m], {"axis": 0, "num_outputs": 2}, ["a", "b"]))
    early = b.op("Concat", upper, lower, axis=0)
    v = b.op("MatMul", early, m)
    for _ in range(3):
        v = b.op("Softmax", b.op("MatMul", v, m))
    v = b.op("MatMul", v, early)
    b.output("y", b.op("MatMul", v, b.op("Concat", lower, upper, axis=0)))
    graph = b.build()
    changed = recompute(graph, footprint(graph).total - 1, footprint)
    verify(changed)
    assert meaning(changed) == meaning(graph)
    assert {"Concat", "Softmax"} <= set(repeats(changed))


def test_what_is_not_yet_whole_is_not_computed_again() -> None:
    """The memory of a Concat is in use from its first part on, which is read before there is a second one."""
    b = Builder()
    x = b.input("x", SQUARE)
    early = b.op("Softmax", b.op("MatMul", x, x))
    v = b.op("MatMul", early, x)
    for _ in range(3):  # the peak, which lasts until the first part is read again
        v = b.op("MatMul", v, x)
    late = b.op("Softmax", b.op("MatMul", v, early))
    whole = b.op("Concat", early, late, axis=0)
    b.output("y", b.op("MatMul", whole, x))
    graph = b.build()
    found = footprint(graph)
    start = next(start for value, _, start, _ in found.lives if value == whole)
    assert start < int(usage(found).argmax()) < found.position[whole]
    assert least(graph, footprint) == found.total
