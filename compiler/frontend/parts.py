"""What a model consists of: its inference graph, and the algorithms of its training_info, each combined with it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx
from onnx import FunctionProto, GraphProto

from compiler.frontend.flatten import Flat, Functions, flatten
from compiler.frontend.functions import Key
from compiler.frontend.gradient import make_explicit
from compiler.frontend.report import Report
from compiler.frontend.weights import Tensors, Weight


@dataclass
class Algorithm:
    """One TrainingInfoProto.

    name: that of its graph, made unique. flat: inference and algorithm combined. states: what its keys, the variables
    that it binds, are called in the program. updates, initial_updates: key -> output that it takes, of `flat` and of
    `initial`. outputs: those of the algorithm graph.
    """

    name: str
    where: str
    flat: Flat
    initial: Flat
    outputs: list[str]
    updates: dict[str, str]
    initial_updates: dict[str, str]
    states: dict[str, str]

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


def read_parts(model: onnx.ModelProto, folder: Path | None, report: Report) -> Parts:
    """The parts of a model that has passed the structural checks."""
    tensors = Tensors(folder, report)
    opset = _opset(model.opset_import)
    functions = _functions(model, opset, report)
    bound = {b.key for info in model.training_info for b in (*info.update_binding, *info.initialization_binding)}
    inference_weights = read_weights(model.graph, tensors, "")
    taken = {*inference_weights, *(v.name for v in model.graph.input)}
    taken.update(v.name for info in model.training_info for v in info.algorithm.input)

    def flat(name: str, graphs: list[GraphProto], weights: Mapping[str, Weight]) -> Flat:
        return flatten(name, graphs, weights, bound, opset, functions, tensors, report)

    algorithms = []
    names = _names(model.training_info)
    for i, (info, name) in enumerate(zip(model.training_info, names, strict=True)):
        where = f"training_info[{i}]"
        own = read_weights(info.algorithm, tensors, where)
        updates = {b.key: b.value for b in info.update_binding}
        initial_updates = {b.key: b.value for b in info.initialization_binding}
        states: dict[str, str] = {}
        for key in dict.fromkeys((*updates, *initial_updates)):
            states[key] = key if key in inference_weights or key not in taken else _free(f"{name}/{key}", taken)
            taken.add(states[key])
        algorithms.append(
            Algorithm(
                name,
                where,
                flat(name, [model.graph, info.algorithm], inference_weights | own),
                flat(
                    f"{name} initialization", [info.initialization], read_weights(info.initialization, tensors, where)
                ),
                list(dict.fromkeys(v.name for v in info.algorithm.output)),
                updates,
                initial_updates,
                states,
            )
        )
    inference = flat(model.graph.name or "graph", [model.graph], inference_weights)
    tensors.finish()
    return Parts(inference, algorithms)


def read_weights(graph: GraphProto, tensors: Tensors, where: str) -> dict[str, Weight]:
    """The initializers of a graph by name, sparse ones as dense."""
    suffix = f" of {where}" if where else ""
    found = [(t.name, tensors.weight(t, f"initializer {t.name!r}{suffix}")) for t in graph.initializer]
    for s in graph.sparse_initializer:
        found.append((s.values.name, tensors.sparse(s, f"sparse initializer {s.values.name!r}{suffix}")))
    return {name: w for name, w in found if w is not None}


def _opset(imports: object) -> int:
    return next((o.version for o in imports if o.domain in ("", "ai.onnx")), 0)  # type: ignore[attr-defined]


def _functions(model: onnx.ModelProto, opset: int, report: Report) -> Functions:
    bodies: dict[Key, FunctionProto] = {}
    opsets: dict[Key, int] = {}
    for f in model.functions:
        key = f.domain, f.name, f.overload
        copy = FunctionProto()
        copy.CopyFrom(f)
        nodes = make_explicit(f.node, f.input, report, f"function {f.name!r}")
        del copy.node[:]
        copy.node.extend(nodes)
        bodies[key], opsets[key] = copy, _opset(f.opset_import) or opset
    return Functions(bodies, opsets)


def _names(infos: object) -> list[str]:
    """Names of the algorithms: those of their graphs, with the index where that is missing or there twice."""
    graphs = [info.algorithm.name for info in infos]  # type: ignore[attr-defined]
    return [
        name if name and graphs.count(name) == 1 else f"{name or 'algorithm'}[{i}]" for i, name in enumerate(graphs)
    ]


def _free(name: str, taken: set[str]) -> str:
    return name if name not in taken else next(n for i in range(len(taken) + 1) if (n := f"{name}_{i}") not in taken)
