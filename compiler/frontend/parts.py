"""What a model consists of: its inference graph, and the algorithms of its training_info, each combined with it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import count

from onnx import FunctionProto, GraphProto, ModelProto, OperatorSetIdProto, ValueInfoProto

from compiler.frontend.flatten import Flat, Functions, flatten
from compiler.frontend.functions import Key
from compiler.frontend.gradient import make_explicit
from compiler.frontend.report import Report
from compiler.frontend.training import Bindings
from compiler.frontend.walk import reads
from compiler.frontend.weights import Tensors, Weight


@dataclass
class Algorithm:
    """One TrainingInfoProto.

    name: that of its graph, made unique. flat: inference and algorithm combined. states: what its keys, the variables
    that it binds, are called in the program. updates, initial_updates: key -> output that it takes, of `flat` and of
    `initial`. outputs: those of the algorithm graph. declared, initial_declared: what the file says of the outputs that
    may be bound.
    """

    name: str
    where: str
    flat: Flat
    initial: Flat
    outputs: list[str]
    updates: dict[str, str]
    initial_updates: dict[str, str]
    states: dict[str, str]
    declared: dict[str, ValueInfoProto]
    initial_declared: dict[str, ValueInfoProto]

    def weight(self, key: str) -> Weight:
        """The initializer of a variable."""
        return self.flat.weights[key]


@dataclass
class Parts:
    """A whole model. inference: the main graph alone."""

    inference: Flat
    algorithms: list[Algorithm]

    def flats(self) -> Iterator[Flat]:
        """The graphs that a step is made of."""
        yield from (a.flat for a in self.algorithms) if self.algorithms else (self.inference,)

    def needed(self, algorithms: Iterable[Algorithm]) -> set[str]:
        """The values that the outputs of a step depend on, but for those that variables are bound to."""
        outputs = set(self.inference.outputs)
        wanted = [(a.flat, outputs.union(set(a.outputs) - set(a.updates.values()))) for a in algorithms]
        found: set[str] = set()
        for flat, values in wanted or [(self.inference, outputs)]:
            for node in reversed(flat.nodes):
                if not values.isdisjoint(node.output):
                    values.update(reads(node))
            found |= values
        return found


Weights = Mapping[str, Weight]


class Initializers:
    """All initializers of a model: of the main graph, of each algorithm, of each initialization graph."""

    def __init__(self, model: ModelProto, tensors: Tensors):
        self.main = _read_weights(model.graph, tensors, "")
        infos = list(enumerate(model.training_info))
        self.algorithms = [_read_weights(info.algorithm, tensors, f"training_info[{i}]") for i, info in infos]
        self.initializations = [
            _read_weights(info.initialization, tensors, f"training_info[{i}].initialization") for i, info in infos
        ]
        tensors.finish()


def _read_weights(graph: GraphProto, tensors: Tensors, where: str) -> Weights:
    """The initializers of a graph by name, sparse ones as dense; those that are no good are reported and left out."""
    suffix = f" of {where}" if where else ""
    found = [(t.name, tensors.weight(t, f"initializer {t.name!r}{suffix}")) for t in graph.initializer]
    for s in graph.sparse_initializer:
        found.append((s.values.name, tensors.sparse(s, f"sparse initializer {s.values.name!r}{suffix}")))
    return {name: w for name, w in found if w is not None}


def read_parts(
    model: ModelProto, initializers: Initializers, bindings: Sequence[Bindings], tensors: Tensors, report: Report
) -> Parts:
    """The parts of a model that has passed the structural checks. bindings: the good ones of each TrainingInfoProto."""
    opset = _opset(model.opset_import)
    functions = _functions(model, opset, tensors, report)
    bound = {v for b in bindings for v in b.variables}

    def flat(name: str, graphs: list[GraphProto], weights: Weights) -> Flat:
        return flatten(name, graphs, weights, bound, opset, functions, tensors, report)

    algorithms = []
    for i, (info, name, states) in enumerate(zip(model.training_info, *_names(model, bindings), strict=True)):
        combined = {**initializers.main, **initializers.algorithms[i]}
        algorithms.append(
            Algorithm(
                name,
                f"training_info[{i}]",
                flat(name, [model.graph, info.algorithm], combined),
                flat(f"{name} initialization", [info.initialization], initializers.initializations[i]),
                list(dict.fromkeys(v.name for v in info.algorithm.output)),
                bindings[i].updates,
                bindings[i].initial,
                states,
                {v.name: v for g in (model.graph, info.algorithm) for v in g.output},
                {v.name: v for v in info.initialization.output},
            )
        )
    return Parts(flat(model.graph.name or "graph", [model.graph], initializers.main), algorithms)


def _opset(imports: Iterable[OperatorSetIdProto]) -> int:
    """The version of ai.onnx; 0 if it is not imported, as nothing uses it then."""
    return next((o.version for o in imports if o.domain in ("", "ai.onnx")), 0)


def _functions(model: ModelProto, opset: int, tensors: Tensors, report: Report) -> Functions:
    bodies: dict[Key, FunctionProto] = {}
    opsets: dict[Key, int] = {}
    for f in model.functions:
        key = f.domain, f.name, f.overload
        copy = FunctionProto()
        copy.CopyFrom(f)
        nodes = make_explicit(f.node, f.input, report, f"function {f.name!r}")
        del copy.node[:]
        copy.node.extend(nodes)
        tensors.embed(copy.node)
        bodies[key], opsets[key] = copy, _opset(f.opset_import) or opset
    return Functions(bodies, opsets)


def _names(model: ModelProto, bindings: Sequence[Bindings]) -> tuple[list[str], list[dict[str, str]]]:
    """For each algorithm, its name, and what the variables that it binds are called in programs.

    An algorithm is called like its graph, with its index where that is missing or there twice. A variable keeps its
    name, unless an input or a variable of another algorithm has it.
    """
    infos = model.training_info
    titles = [info.algorithm.name for info in infos]
    names = [
        name if name and titles.count(name) == 1 else f"{name or 'algorithm'}[{i}]" for i, name in enumerate(titles)
    ]
    shared = {t.name for t in model.graph.initializer}
    taken = {v.name for g in (model.graph, *(info.algorithm for info in infos)) for v in g.input}
    all_states = []
    for info, name, bound in zip(infos, names, bindings, strict=True):
        own_inputs = {v.name for v in info.algorithm.input}
        states: dict[str, str] = {}
        for key in bound.variables:
            others = taken - own_inputs if key in own_inputs else taken
            states[key] = key if key in shared or key not in others else _free(f"{name}/{key}", taken | shared)
        taken.update(states.values())
        all_states.append(states)
    return names, all_states


def _free(name: str, taken: Set[str]) -> str:
    return name if name not in taken else next(n for i in count(1) if (n := f"{name}_{i}") not in taken)
