"""From the flat graphs of a model to a `Program`: the step of one or several algorithms, inference, initialization."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from onnx import ValueInfoProto

from compiler.frontend.build import Binding, Reading
from compiler.frontend.parts import Algorithm, Parts
from compiler.frontend.report import Report
from compiler.frontend.types import allows, declared_type
from compiler.frontend.weights import Weight
from compiler.ir.builder import Builder
from compiler.ir.graph import Graph, Program
from compiler.ir.types import TensorType


class ProgramBuilder:
    """Builds the graphs for one choice of algorithms and one binding. Problems go to the report.

    readings: one for each graph, which tell about static inputs that are missing.
    """

    def __init__(self, parts: Parts, algorithms: Sequence[Algorithm], binding: Binding, report: Report):
        self._parts, self._algorithms, self._binding, self._report = parts, algorithms, binding, report
        self.states: dict[str, Weight] = {}
        for a in algorithms:
            self.states.update((state, a.weight(key)) for key, state in a.states.items())
        self.readings: list[Reading] = []

    def build(self) -> Program:
        """All graphs. They are only good if there is nothing in the report."""
        if not self._algorithms:
            return Program(self._plain())
        return Program(self._step(), self._infer(), self._initialize())

    def graph(self, role: str) -> Graph:
        """One of them; that of a model without algorithms is its step and its inference. KeyError: there is none."""
        if role == "initialize":
            found = self._initialize()
            if found is None:
                raise KeyError(role)
            return found
        if not self._algorithms:
            return self._plain()
        if role == "evaluate":
            return self._step(updating=False)
        return {"step": self._step, "infer": self._infer}[role]()

    def _reading(self, name: str) -> tuple[Builder, Reading]:
        b = Builder(name)
        reading = Reading(b, self._binding, self._report)
        self.readings.append(reading)
        return b, reading

    def _plain(self) -> Graph:
        flat = self._parts.inference
        b, reading = self._reading(flat.name)
        reading.declare([flat], [{}])
        names = reading.add(flat, {})
        for out in flat.outputs:
            if out in names:
                reading.output(out, names[out], flat.outputs[out])
        return b.build()

    def _variables(self, a: Algorithm) -> dict[str, str]:
        """Initializers of a combined graph that are states: their names there -> those of the states."""
        shared = self._parts.inference.weights
        names = {v: a.states.get(v, v if v in shared else "") for v in a.flat.weights}
        return {v: state for v, state in names.items() if state in self.states}

    def _step(self, updating: bool = True) -> Graph:
        """The algorithms one after the other. A later one is a copy of its combined graph on the updated variables.

        updating: else all are on the variables as they are, and the values that these would take are bound to nothing.
        """
        b, reading = self._reading(self._parts.inference.name)
        b.reserve(self.states)
        variables = [self._variables(a) for a in self._algorithms]
        reading.declare([a.flat for a in self._algorithms], variables)
        current = {state: b.state(state, w.tensor) for state, w in self.states.items()}
        values: dict[tuple[int | None, str], str] = {}
        updated: dict[str, str] = {}
        for i, (a, own) in enumerate(zip(self._algorithms, variables, strict=True)):
            if i:  # what an earlier algorithm assigned is a variable again, not the value that it was computed as
                for state in updated:
                    current[state] = b.op("Identity", current[state], name=f"{state}.assigned")
                reading.assigned = frozenset(current[state] for state in updated)
            names = reading.add(a.flat, {v: current[state] for v, state in own.items()})
            if i == 0:
                values.update(((None, v), names[v]) for v in self._parts.inference.outputs if v in names)
            bound = set(a.updates.values())
            values.update(((i, v), names[v]) for v in a.outputs if v in names and v not in bound)
            where = f"{a.where}.update_binding"
            new = {
                a.states[key]: names[v]
                for key, v in a.updates.items()
                if v in names and self._fits(b.type(names[v]), a.states[key], a.declared[v], where)
            }
            if updating:
                current, updated = current | new, updated | new
        for (k, v), public in self._public(values).items():
            declared = self._algorithms[k or 0].flat.outputs.get(v)
            reading.output(public, values[k, v], declared)
        for state, v in updated.items():
            b.update(state, v)
        return b.build()

    def _public(self, values: Mapping[tuple[int | None, str], str]) -> dict[tuple[int | None, str], str]:
        """The names under which outputs are returned; an output that is one of inference as well is returned once."""
        outputs = [(i, v) for i, v in values if i is None or values.get((None, v)) != values[i, v]]
        count = Counter(v for _, v in outputs)
        return {(i, v): v if i is None or count[v] == 1 else f"{self._algorithms[i].name}/{v}" for i, v in outputs}

    def _infer(self) -> Graph:
        flat = self._parts.inference
        b, reading = self._reading(flat.name)
        states = {v: w for v, w in self.states.items() if v in flat.weights}
        b.reserve(states)
        reading.declare([flat], [states])
        names = reading.add(flat, {v: b.state(v, w.tensor) for v, w in states.items()})
        for out in flat.outputs:
            if out in names:
                reading.output(out, names[out], flat.outputs[out])
        return b.build()

    def _initialize(self) -> Graph | None:
        """All initialization graphs in one; where two set the same variable, the later one counts."""
        if not any(a.initial_updates for a in self._algorithms):
            return None
        b, reading = self._reading("initialize")
        targets = dict.fromkeys(a.states[key] for a in self._algorithms for key in a.initial_updates)
        b.reserve(targets)
        for state in targets:
            b.state(state, self.states[state].tensor)
        for a in self._algorithms:
            names = reading.add(a.initial, {})
            for key, v in a.initial_updates.items():
                where = f"{a.where}.initialization_binding"
                if v in names and self._fits(b.type(names[v]), a.states[key], a.initial_declared[v], where):
                    b.update(a.states[key], names[v])
        return b.build()

    def _fits(self, have: TensorType, state: str, declared: ValueInfoProto, where: str) -> bool:
        """Whether a value has the type of the variable that it becomes, and is declared so if it is declared."""
        need = self.states[state].type
        if have != need:
            what = f"variable {state!r} is {need}, but gets the value {declared.name!r}, which is {have}"
            self._report.malformed(what, where, "an update has the dtype and shape of the initializer")
        elif not allows(declared, need):
            what = f"output {declared.name!r} is declared {declared_type(declared)}, but is bound to {state!r}, {need}"
            self._report.malformed(what, where, "declare its true type")
        return have == need
