"""Runs the lowering of one node on guarded memory, without the planner.

    (y,) = run_op("Gemm", a, b, c, transA=1)                    # types inferred, every input at run time
    (y,) = run_op("ReduceSum", x, axes, constants=(1,))         # input 1 is known at compile time
    outputs = run_node(node, types, {"x": x, "label": label})   # a node of your own

Import the module that registers the lowering first. What is held of every call, for each number of threads: nothing
around a value, a Temp or a Scratch is written, inputs stay as they were, and all runs give the same bits. The bytes
behind every value, and all memory that nobody wrote yet, are NaNs, so what leaks from there shows. Items that go
together touch no more of a value than its `piece` tells.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from compiler.codegen.calls import (
    LOWERINGS,
    Arg,
    Call,
    Data,
    In,
    Listing,
    Number,
    Out,
    Scratch,
    Site,
    Status,
    Temp,
    Words,
)
from compiler.codegen.native import bits_of, native
from compiler.codegen.native.dispatch import Entry, Part
from compiler.codegen.native.guard import guarded
from compiler.ir.builder import Builder
from compiler.ir.graph import Attr, Node
from compiler.ir.types import AnyArray, Tensor, TensorType, numpy_dtype
from compiler.runtime.layout import ELEMENTS, refusal

THREADS = (1, 2, 3, 5)
GUARD = 256  # bytes around a piece of memory; reading up to 128 of those behind a value is allowed
_PATTERN = np.frombuffer(np.array([0x7FF8DEAD, 0x7FF8BEEF], "<u4").tobytes(), np.uint8)  # NaN as f32 and as f64
_functions: dict[str, Any] = {}


class Reported(Exception):
    """A check of the node failed: the message of its Status argument."""


class Memory:
    """`nbytes` of memory, aligned to 64 bytes and filled with NaNs, between guards that must not change."""

    def __init__(self, nbytes: int, what: str):
        self.nbytes, self.what = nbytes, what
        total = nbytes + 2 * GUARD + 64
        self._all = np.tile(_PATTERN, -(-total // 8))
        skip = -self._all.ctypes.data % 64
        self._all = self._all[skip : skip + nbytes + 2 * GUARD]
        self._before = self._all.copy()
        self.bytes = self._all[GUARD : GUARD + nbytes]
        self.address = self._all.ctypes.data + GUARD

    def reset(self, content: AnyArray | None = None) -> None:
        """Fill with NaNs or with an array."""
        self._all[:] = self._before
        if content is not None and self.nbytes:
            self.bytes[:] = np.ascontiguousarray(content).reshape(-1).view(np.uint8)

    def check(self) -> None:
        """AssertionError if something wrote outside."""
        for side, at in (("before", slice(0, GUARD)), ("behind", slice(GUARD + self.nbytes, None))):
            wrong = np.flatnonzero(self._all[at] != self._before[at])
            offset = wrong[:1] - (GUARD if side == "before" else 0)
            assert not wrong.size, f"{self.what}: {wrong.size} bytes written {side} it, the first at {offset[0]}"


class NodeRun:
    """A node's calls with memory for all they use; run it as often as wanted."""

    def __init__(
        self,
        node: Node,
        types: Mapping[str, TensorType],
        inputs: Mapping[str, AnyArray],
        constants: Mapping[str, AnyArray] | None = None,
        threads: int = max(THREADS),
    ):
        self.node, self.types, self.max_threads = node, types, threads
        known = {name: Tensor(a) for name, a in (constants or {}).items()}
        self.inputs: dict[str, AnyArray] = {**{k: t.array for k, t in known.items()}, **inputs}
        for name, array in self.inputs.items():
            want = types[name]
            assert (array.dtype, array.shape) == (numpy_dtype(want.dtype), want.shape), (
                f"{name} is {array.dtype}{array.shape}, not {want}"
            )
        self.calls: list[Call] = LOWERINGS[node.op](Site(node, types, known))
        self.messages: list[str] = []
        self.memory: dict[tuple[str, str], Memory] = {}
        self._keep: list[object] = []
        self._status = np.zeros(1, np.int64)
        for name in dict.fromkeys((*node.reads, *node.results)):
            self.memory["value", name] = Memory(types[name].nbytes, f"value {name}")
        for call in self.calls:
            for a in call.args:
                if isinstance(a, Temp):
                    m = self.memory.setdefault(("temp", a.key), Memory(a.nbytes, f"Temp {a.key}"))
                    assert m.nbytes == a.nbytes, (
                        f"Temp {a.key} has {m.nbytes} bytes in one call and {a.nbytes} in another"
                    )
                if isinstance(a, Scratch):
                    for t in range(threads):
                        self.memory.setdefault(
                            ("scratch", f"{a.nbytes}/{t}"), Memory(a.nbytes, f"Scratch of thread {t}")
                        )
                if isinstance(a, Status):
                    assert call.check, "only a call with check=True may have a Status"
                    self.messages.append(a.what)
        self._records = [[self._record(call, t) for t in range(threads)] for call in self.calls]
        self._entries = [self._entry(call) for call in self.calls]

    @staticmethod
    def _entry(call: Call) -> Any:
        entry = Entry(call.kernel)
        if entry.symbol not in _functions:
            _functions[entry.symbol] = native(entry)
        return _functions[entry.symbol]

    @staticmethod
    def _part(call: Call) -> Any:
        part = Part(call.kernel)
        if part.symbol not in _functions:
            _functions[part.symbol] = native(part)
        return _functions[part.symbol]

    def _words(self, a: Arg, thread: int, call: Call, position: int) -> list[int]:
        match a:
            case In(value, offset) | Out(value, offset):
                names = self.node.reads if isinstance(a, In) else self.node.results
                assert value in names or (isinstance(a, In) and value in self.node.results), (
                    f"{a} is none of the node's"
                )
                return [self.memory["value", value].address + offset]
            case Temp(key):
                return [self.memory["temp", key].address]
            case Scratch(nbytes):
                assert position == len(call.args) - 1, "Scratch must be the last argument"
                assert call.kernel.parameters[-1] == "scratch", "Scratch goes to a parameter called scratch"
                return [self.memory["scratch", f"{nbytes}/{thread}"].address, 0]
            case Words(values):
                table = np.array([*values, 0], np.int64)
                self._keep.append(table)
                return [table.ctypes.data]
            case Listing(items):
                table = np.array(
                    [*(w for item in items for w in self._words(item, thread, call, position)), 0], np.int64
                )
                self._keep.append(table)
                return [table.ctypes.data]
            case Data(tensor):
                m = Memory(tensor.type.nbytes, "Data")
                m.reset(tensor.array)
                self._keep.append(m)
                return [m.address]
            case Number(value):
                return [bits_of(value, "f64")]
            case Status(what, _):
                return [self._status.ctypes.data, (1 + self.messages.index(what)) * ELEMENTS]
            case int():
                return [int(a)]
        raise AssertionError(f"no argument: {a!r}")

    def _record(self, call: Call, thread: int) -> AnyArray:
        words = [call.n]
        for position, a in enumerate(call.args):
            words += self._words(a, thread, call, position)
        return np.array(words, np.int64)

    def reset(self) -> None:
        """Memory as before the first run."""
        for (kind, name), m in self.memory.items():
            m.reset(self.inputs.get(name) if kind == "value" else None)
        self._status[0] = 0

    def run(self, threads: int = 1, backwards: bool = False) -> None:
        """All calls, checks first; the threads' shares one after the other (or in opposite order)."""
        order = range(threads)[::-1] if backwards else range(threads)
        for checks in (True, False):
            for call, records, function in zip(self.calls, self._records, self._entries, strict=True):
                if call.check == checks:
                    for t in order:
                        function(records[t].ctypes.data, t, threads)
            if self._status[0]:
                number, element = refusal(int(self._status[0]))
                raise Reported(f"{self.messages[number]}: element {element}")

    def run_pieces(self) -> None:
        """Of each call some items that go together, while all of a value but their piece is NaNs."""
        self.reset()
        for call, records, function in zip(self.calls, self._records, self._entries, strict=True):
            items = [i for a in call.args for i in (a.items if isinstance(a, Listing) else (a,))]
            found = [a for a in items if isinstance(a, In | Out)]
            whole = {a.value for a in found if not a.piece}
            pieces = {a.value: (a.piece, isinstance(a, Out)) for a in found if a.value not in whole and not a.offset}
            before = {key: m.bytes.copy() for key, m in self.memory.items()} if pieces else {}
            function(records[0].ctypes.data, 0, 1)
            after = {v: self.memory["value", v].bytes.copy() for v in pieces}
            record = np.array([*records[0], call.together], np.int64)
            last = -(-call.n // call.together) - 1
            for group in sorted({0, last // 2, last}) if pieces and last >= 0 else ():
                for key, m in self.memory.items():
                    m.bytes[:] = before[key]
                for v, (piece, _) in pieces.items():
                    m = self.memory["value", v]
                    outside = np.ones(m.nbytes, bool)
                    outside[group * piece : (group + 1) * piece] = False
                    m.bytes[outside] = np.resize(_PATTERN, m.nbytes)[outside]
                self._part(call)(record.ctypes.data, group, 0)
                for v, (piece, written) in pieces.items():
                    m, mine = self.memory["value", v], slice(group * piece, (group + 1) * piece)
                    outside = np.ones(m.nbytes, bool)
                    outside[mine] = False
                    what = f"{call.kernel.name}, items of group {group}"
                    assert (m.bytes[outside] == np.resize(_PATTERN, m.nbytes)[outside]).all(), f"{what}: {v} beyond"
                    assert not written or (m.bytes[mine] == after[v][mine]).all(), f"{what}: {v} is another"
            for key, m in self.memory.items():
                m.bytes[:] = before.get(key, m.bytes)
            if pieces:
                function(records[0].ctypes.data, 0, 1)

    def run_checked(self) -> None:
        """As one thread, by kernels that test every access. AssertionError: the first bad one."""
        tables = [t for t in self._keep if isinstance(t, np.ndarray)]
        data = [m for m in self._keep if isinstance(m, Memory)]
        ranges = [(m.address, m.address + m.nbytes) for m in (*self.memory.values(), *data)]
        entries = self._entries
        with guarded(*ranges, *tables, self._status, *(r[0] for r in self._records)) as guard:
            self._entries = [self._entry(call) for call in self.calls]
            try:
                self.run()
            finally:
                self._entries = entries
        assert not guard.violations, guard.first

    def check(self) -> None:
        """AssertionError if guards or inputs changed."""
        for m in self.memory.values():
            m.check()
        for name, a in self.inputs.items():
            if name in self.node.reads:
                same = self.memory["value", name].bytes == np.ascontiguousarray(a).reshape(-1).view(np.uint8)
                assert same.all(), f"input {name} was overwritten"

    def outputs(self) -> list[Any]:
        """Copies of the outputs; None for an absent one."""
        return [self._output(v) if v else None for v in self.node.outputs]

    def _output(self, name: str) -> AnyArray:
        t = self.types[name]
        return self.memory["value", name].bytes.view(numpy_dtype(t.dtype)).reshape(t.shape).copy()


def run_node(
    node: Node,
    types: Mapping[str, TensorType],
    inputs: Mapping[str, AnyArray],
    constants: Mapping[str, AnyArray] | None = None,
    threads: Sequence[int] = THREADS,
) -> list[Any]:
    """Outputs of a node (None for an absent one), after the checks named above. Reported: a check of the node failed.

    types: of all operands and outputs. inputs: value name -> array; constants: those known at compile time.
    """
    run = NodeRun(node, types, inputs, constants, max(threads))
    first: list[Any] | None = None
    for i, count in enumerate(threads):
        run.reset()
        run.run(count, backwards=i % 2 == 1)
        run.check()
        got = run.outputs()
        if first is None:
            first = got
        for a, b in zip(first, got, strict=True):
            assert a is None or a.tobytes() == b.tobytes(), (
                f"{node.op}: {count} threads give other bits than {threads[0]}"
            )
    run.run_pieces()
    assert first is not None
    return first


def make_node(
    op: str, *inputs: AnyArray | None, outputs: int | Sequence[str] = 1, constants: Sequence[int] = (), **attrs: Attr
) -> tuple[Node, dict[str, TensorType], dict[str, AnyArray], dict[str, AnyArray]]:
    """(node, types, run-time inputs, constants) of an op on these arrays (None: absent; '' in outputs too)."""
    b = Builder()
    names: list[str] = []
    given: dict[str, AnyArray] = {}
    known: dict[str, AnyArray] = {}
    for i, a in enumerate(inputs):
        if a is None:
            names.append("")
        elif i in constants:
            names.append(b.const(a, f"in{i}"))
            known[names[-1]] = a
        else:
            names.append(b.input(f"in{i}", Tensor(a).type))
            given[names[-1]] = a
    hints = [f"out{i}" for i in range(outputs)] if isinstance(outputs, int) else list(outputs)
    b.add(op, names, attrs, hints)
    node = b.nodes[-1]
    return node, {v: b.type(v) for v in (*node.reads, *node.results)}, given, known


def run_op(
    op: str,
    *inputs: AnyArray | None,
    outputs: int | Sequence[str] = 1,
    constants: Sequence[int] = (),
    threads: Sequence[int] = THREADS,
    **attrs: Attr,
) -> list[Any]:
    """`run_node` of `make_node`."""
    node, types, given, known = make_node(op, *inputs, outputs=outputs, constants=constants, **attrs)
    return run_node(node, types, given, known, threads)
