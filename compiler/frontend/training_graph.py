"""The training graph: what a TrainingInfoProto means, written out as one plain graph for viewers and checkers.

The standard defines a step as the concatenation of the inference graph with an algorithm, where no tool shows it. Here
it is a model of its own: variables are its initializers, and the metadata says which output is the next value of which
(as in what `lower` writes). The names of nodes begin with the part of the step that they belong to, `GROUPS`.

Several algorithms run one after the other: what a later one reads of the inference graph on variables that are new by
then is there again, and where a variable's new value comes in there is an Identity, at which its Gradients end.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping

import onnx
from onnx import AttributeProto, ModelProto, NodeProto, TensorProto, TypeProto, helper

from compiler.errors import InputError
from compiler.frontend.gradient import is_gradient
from compiler.frontend.names import Names
from compiler.frontend.node_groups import algorithm_groups, make_unique, names_of, strings_of, titled
from compiler.frontend.parts import Algorithm
from compiler.frontend.shape_inference import for_inference
from compiler.frontend.source import Source
from compiler.frontend.trained import trained_model
from compiler.frontend.walk import bodies, defined, initializer_names, reads
from compiler.ir.proto import OUTPUTS, TRAINING_DOMAIN, UPDATES, tensor_to_proto


def written_out(source: Source, algorithm: int | None = None) -> ModelProto:
    """The step of one algorithm, or of all in order, as a plain model; Gradient nodes are those of the standard.

    InputError: the model has no training_info, or no such algorithm.
    """
    chosen = source.chosen(algorithm)
    if not chosen:
        raise InputError("the model has no training_info, and so no training graph: make-training writes one")
    return _Concatenation(source, chosen).run()


def as_training_model(graph: ModelProto) -> ModelProto:
    """A training graph with its updates as the bindings of one TrainingInfoProto: it runs as the first model does."""
    model = ModelProto()
    model.CopyFrom(graph)
    info = model.training_info.add()
    info.algorithm.name = graph.graph.name
    updates = next(json.loads(p.value) for p in graph.metadata_props if p.key == UPDATES)
    info.update_binding.extend(onnx.StringStringEntryProto(key=key, value=value) for key, value in updates.items())
    return model


class _Concatenation:
    """The plain model in the making."""

    def __init__(self, source: Source, chosen: list[Algorithm]):
        self._source, self._chosen = source, chosen
        infos = zip(source.chosen(None), source.model.training_info, strict=True)
        self._infos = {a.where: info.algorithm for a, info in infos}
        self._model = trained_model(source, {})
        self._graph = self._model.graph
        self._inference = list(self._graph.node)
        algorithms = [self._infos[a.where] for a in chosen]
        self._names = Names(self._graph, *algorithms)
        for state in {s for a in chosen for key, s in a.states.items() if key != s}:
            self._names.fresh(state)
        self._shared = {*initializer_names(self._graph)}
        shared = {v.name for g in algorithms for v in g.input}
        self._own = Counter(v for g in algorithms for v in set(defined(g)) - shared)
        self._updates: dict[str, str] = {}
        self._outputs = {v.name: v.name for v in self._graph.output}

    def run(self) -> ModelProto:
        """The finished model."""
        graph = self._graph
        self._name_inference()
        for i, a in enumerate(self._chosen):
            self._add(a, self._assigned(a) if i else {}, f"{a.name}/" if len(self._chosen) > 1 else "")
        make_unique(graph.node)
        _describe(self._model)
        if TRAINING_DOMAIN not in {o.domain for o in self._model.opset_import}:  # it may be there by another name
            self._model.opset_import.append(helper.make_opsetid(TRAINING_DOMAIN, 1))
        props = {p.key: p.value for p in self._model.metadata_props}
        props |= {OUTPUTS: json.dumps(self._outputs), UPDATES: json.dumps(self._updates)}
        helper.set_model_props(self._model, props)
        return self._model

    def _name_inference(self) -> None:
        """Group the nodes of the inference graph: some of them only its outputs need, and no algorithm."""
        wanted = {v for a in self._chosen for n in self._infos[a.where].node for v in names_of(n)}
        wanted |= {v for a in self._chosen for v in a.updates.values()}
        needed = {id(n) for n in _upstream(self._inference, wanted)}
        for node in self._inference:
            node.name = titled("forward" if id(node) in needed else "inference", node)

    def _assigned(self, a: Algorithm) -> dict[str, str]:
        """Names in an algorithm's combined graph whose values are others after the updates so far, with new names.

        Adds what computes these values.
        """
        algorithm = self._infos[a.where]
        wanted = {v for n in algorithm.node for v in names_of(n)} | set(a.updates.values()) | set(a.outputs)
        needed = _upstream(self._inference, wanted)
        read = wanted | {v for n in needed for v in reads(n)}
        renamed: dict[str, str] = {}
        for key in [v for v in a.flat.weights if v in read and self._state(a, v) in self._updates]:
            renamed[key] = self._names.fresh(f"{a.name}/{key}")
            new = helper.make_node("Identity", [self._updates[self._state(a, key)]], [renamed[key]])
            new.name = f"forward/{a.name}/{key}"
            self._graph.node.append(new)
        for node in needed:
            if not renamed.keys().isdisjoint(reads(node)):
                renamed |= {v: self._names.fresh(f"{a.name}/{v}") for v in node.output if v}
                copy = _renamed(node, renamed)
                copy.name = node.name.replace("/", f"/{a.name}/", 1)
                self._graph.node.append(copy)
        return renamed

    def _state(self, a: Algorithm, name: str) -> str:
        """What an initializer of a combined graph is called as a state."""
        return a.states.get(name, name if name in self._shared else "")

    def _add(self, a: Algorithm, renamed: dict[str, str], prefix: str) -> None:
        """Add an algorithm, on values of the inference graph that have other names."""
        algorithm, graph = self._infos[a.where], self._graph
        assigned = [renamed[v] for v in renamed if v in a.flat.weights]
        renamed |= {key: state for key, state in a.states.items() if key != state}
        for v in defined(algorithm):
            if self._own[v] > 1 and v not in a.states:
                renamed[v] = self._names.fresh(f"{a.name}/{v}")
        self._add_values(a, renamed)
        groups = algorithm_groups(algorithm.node, a.updates.values())
        for node, group in zip(algorithm.node, groups, strict=True):
            copy = _renamed(node, renamed)
            if is_gradient(copy):
                copy.domain = TRAINING_DOMAIN
                _cut_at(copy, assigned)
            copy.name = titled(group, node, prefix)
            graph.node.append(copy)
        shown, bound = {v.name for v in graph.output}, set(a.updates.values())
        for v in [*algorithm.output, *(v for v in graph.output if v.name in bound)]:
            name = renamed.get(v.name, v.name)
            if name not in shown:
                shown.add(name)
                graph.output.add().CopyFrom(v)
                graph.output[-1].name = name
            if v.name not in bound and name not in self._outputs.values():
                self._outputs[v.name if name == v.name else f"{a.name}/{v.name}"] = name
        self._updates |= {a.states[key]: renamed.get(v, v) for key, v in a.updates.items()}

    def _add_values(self, a: Algorithm, renamed: Mapping[str, str]) -> None:
        """Inputs, initializers and types of values."""
        algorithm, graph = self._infos[a.where], self._graph
        there = {v.name for v in graph.input}
        for v in algorithm.input:
            if (name := renamed.get(v.name, v.name)) not in there:
                graph.input.add().CopyFrom(v)
                graph.input[-1].name = name
        there = set(initializer_names(graph))
        for t in algorithm.initializer:
            if (name := renamed.get(t.name, t.name)) not in there:
                external = t.data_location == TensorProto.EXTERNAL
                graph.initializer.add().CopyFrom(tensor_to_proto(a.flat.weights[t.name].tensor) if external else t)
                graph.initializer[-1].name = name
        for s in algorithm.sparse_initializer:
            if (name := renamed.get(s.values.name, s.values.name)) not in there:
                graph.sparse_initializer.add().CopyFrom(s)
                graph.sparse_initializer[-1].values.name = name
        for v in algorithm.value_info:
            graph.value_info.add().CopyFrom(v)
            graph.value_info[-1].name = renamed.get(v.name, v.name)


def _upstream(nodes: Iterable[NodeProto], values: Iterable[str]) -> list[NodeProto]:
    """The nodes that some values are computed by, in order."""
    wanted, found = set(values), []
    for node in reversed(list(nodes)):
        if not wanted.isdisjoint(node.output):
            wanted |= names_of(node)
            found.append(node)
    return found[::-1]


def _renamed(node: NodeProto, names: Mapping[str, str]) -> NodeProto:
    """A copy of a node that reads, defines, and names in Gradients, other values."""
    copy = NodeProto()
    copy.CopyFrom(node)
    _rename(copy, names)
    return copy


def _rename(node: NodeProto, names: Mapping[str, str]) -> None:
    for field in (node.input, node.output):
        field[:] = [names.get(v, v) for v in field]
    if is_gradient(node):
        for a in node.attribute:
            if a.type == AttributeProto.STRING:
                a.s = names.get(a.s.decode(), a.s.decode()).encode()
            a.strings[:] = [names.get(s.decode(), s.decode()).encode() for s in a.strings]
    for _, g in bodies(node):
        own = set(defined(g))
        inner = {v: new for v, new in names.items() if v not in own}
        for n in g.node:
            _rename(n, inner)
        for v in g.output:
            v.name = inner.get(v.name, v.name)


def _cut_at(node: NodeProto, values: Iterable[str]) -> None:
    """Let a Gradient end at further values: they become zs."""
    attributes = {a.name: a for a in node.attribute}
    named = {s.decode() for a in attributes.values() for s in a.strings}
    more = [v for v in values if v not in named]
    if not more:
        return
    if "zs" not in attributes:
        node.attribute.append(AttributeProto(name="zs", type=AttributeProto.STRINGS))
        attributes["zs"] = node.attribute[-1]
    attributes["zs"].strings.extend(v.encode() for v in more)
    node.input.extend(more)


def _describe(model: ModelProto) -> None:
    """Add the types of all values that can be inferred; a gradient has that of its tensor, which onnx cannot tell."""
    graph = model.graph
    bare = for_inference(model)
    bare.graph.value_info.extend(graph.value_info)
    types = _inferred(bare)
    gradients = [
        (v, x) for n in graph.node if is_gradient(n) for x, v in zip(strings_of(n, "xs"), n.output, strict=False) if v
    ]
    while new := [(v, types[x]) for v, x in gradients if v not in types and x in types]:
        bare.graph.value_info.extend(helper.make_value_info(v, t) for v, t in new)
        types |= _inferred(bare) | dict(new)
    for v in graph.output:
        if not v.type.WhichOneof("value") and v.name in types:
            v.type.CopyFrom(types[v.name])
    told = {*initializer_names(graph), *(v.name for v in (*graph.input, *graph.output, *graph.value_info))}
    results = [v for n in graph.node for v in n.output if v in types and v not in told]
    graph.value_info.extend(helper.make_value_info(v, types[v]) for v in results)


def _inferred(model: ModelProto) -> dict[str, TypeProto]:
    """Types of the values of a graph, as far as inference gets."""
    try:
        graph = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    except (onnx.shape_inference.InferenceError, RuntimeError, ValueError):
        graph = model.graph
    tensors = {t.name: helper.make_tensor_type_proto(t.data_type, t.dims) for t in graph.initializer}
    return tensors | {v.name: v.type for v in (*graph.input, *graph.value_info)}
