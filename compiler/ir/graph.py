"""The graph: values on a networkx DiGraph, nodes shared by their outputs, bindings for outputs and updates."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple

import networkx as nx
import numpy as np

from compiler.ir.types import AnyArray, Tensor, TensorType

# int, float, str, tuples of these (empty: a list of any kind), Tensor, Graph. The verifier checks them.
Attr = Any


class Origin(NamedTuple):
    """Where a node comes from: the name of the ONNX node, and for a derived node the rule or pass that made it."""

    node: str = ""
    rule: str = ""

    def __str__(self) -> str:
        return " by ".join(part for part in (self.node, self.rule) if part)


def _canonical(value: Attr) -> Attr:
    """One spelling of each attribute value: ints, tuples, and floats of ONNX's precision, which is float32."""
    if isinstance(value, (str, Tensor, Graph)) or type(value) is int:
        return value
    if isinstance(value, (list, tuple, np.ndarray)):
        return tuple(_canonical(v) for v in value)
    if isinstance(value, (bool, np.bool_, np.integer)):
        return int(value)
    if isinstance(value, (float, np.floating)):
        with np.errstate(over="ignore"):
            rounded = float(np.float32(value))
        return math.nan if math.isnan(rounded) else rounded  # one object: a node with it equals its copy
    raise TypeError(f"an attribute cannot be a {type(value).__name__}")


def _bits(value: Attr) -> object:
    """An attribute value to compare by its bits: 0.0 is not -0.0, nor 1.0 the integer 1, though Python says so."""
    if isinstance(value, float):
        return float, value, math.copysign(1.0, value)
    return tuple(map(_bits, value)) if isinstance(value, tuple) else value


@dataclass(frozen=True, eq=False)
class Node:
    """One operator application. Names of values; '' is an absent optional input or output, and keeps its slot.

    `op` is the ONNX operator name, with its domain before the last dot unless that is ai.onnx: `Conv`,
    `onnxc.GatherGrad`, `ai.onnx.preview.training.Adam`. A node with bodies (Graph-valued attributes) reads outer
    values through `captures`: every body declares as many captures, in that order.
    """

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: Mapping[str, Attr] = field(default_factory=dict)
    captures: tuple[str, ...] = ()
    origin: Origin = field(default_factory=Origin)

    def __post_init__(self) -> None:
        if not isinstance(self.attrs, MappingProxyType):  # else they come from another node
            attrs = {name: _canonical(value) for name, value in sorted(self.attrs.items())}
            object.__setattr__(self, "attrs", MappingProxyType(attrs))

    @property
    def domain(self) -> str:
        """The operator's domain; empty for ai.onnx."""
        return self.op.rpartition(".")[0]

    @property
    def op_type(self) -> str:
        """The operator's name in its domain."""
        return self.op.rpartition(".")[2]

    @cached_property
    def key(self) -> tuple[object, ...]:
        """Operator and attributes, to compare and hash: equal for nodes that compute the same from equal operands."""
        return self.op, tuple((name, _bits(value)) for name, value in self.attrs.items())

    @property
    def reads(self) -> tuple[str, ...]:
        """All values read, inputs before captures, absent ones left out."""
        all_read = self.inputs + self.captures
        return tuple([v for v in all_read if v]) if "" in all_read else all_read

    @property
    def results(self) -> tuple[str, ...]:
        """All values defined: the outputs that are present."""
        return tuple([v for v in self.outputs if v]) if "" in self.outputs else self.outputs

    @cached_property
    def bodies(self) -> dict[str, Graph]:
        """The nested graphs, by attribute."""
        return {name: a for name, a in self.attrs.items() if isinstance(a, Graph)}

    def attr(self, name: str, default: Attr = None) -> Attr:
        """The attribute, or `default`."""
        return self.attrs.get(name, default)

    def input(self, i: int) -> str:
        """Name of the i-th input; '' if it is absent."""
        return self.inputs[i] if i < len(self.inputs) else ""

    def output(self, i: int) -> str:
        """Name of the i-th output; '' if it is absent."""
        return self.outputs[i] if i < len(self.outputs) else ""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Node):
            return NotImplemented
        return self is other or (
            (self.inputs, self.outputs, self.captures) == (other.inputs, other.outputs, other.captures)
            and self.key == other.key
            and self.origin == other.origin
        )

    def __hash__(self) -> int:
        return hash((self.key, self.inputs, self.outputs, self.captures))

    def __reduce__(self) -> tuple[Any, ...]:
        return Node, (self.op, self.inputs, self.outputs, dict(self.attrs), self.captures, self.origin)


class Graph:
    """An immutable dataflow graph. Make one with `Builder`; passes make new ones.

    `digraph` has a node per value (attributes: `type`, and `node` = the defining Node or None) and an edge from each
    value read to each value computed from it. Program order is `nodes`, in which a value is defined before it is read.

    inputs, captures: names of values, in order. states: name -> initial Tensor; consts: name -> Tensor.
    outputs: public name -> value. updates: state -> value that it takes after the step (a parallel assignment).
    """

    def __init__(
        self,
        name: str,
        types: Mapping[str, TensorType],
        inputs: tuple[str, ...],
        states: Mapping[str, Tensor],
        consts: Mapping[str, Tensor],
        captures: tuple[str, ...],
        nodes: tuple[Node, ...],
        outputs: Mapping[str, str],
        updates: Mapping[str, str],
    ):
        self.name = name
        self.inputs, self.captures, self.nodes = inputs, captures, nodes
        self.states, self.consts = MappingProxyType(dict(states)), MappingProxyType(dict(consts))
        self.outputs, self.updates = MappingProxyType(dict(outputs)), MappingProxyType(dict(updates))
        self.types: Mapping[str, TensorType] = MappingProxyType(dict(types))

    @cached_property
    def digraph(self) -> nx.DiGraph[str]:
        """The networkx view. All values exist before the first edge, so that iteration is in program order."""
        g: nx.DiGraph[str] = nx.DiGraph(name=self.name)
        producers = self._producers
        g.add_nodes_from((v, {"type": t, "node": producers.get(v)}) for v, t in self.types.items())
        g.add_edges_from((r, v) for node in self.nodes for r in dict.fromkeys(node.reads) for v in node.results)
        nx.freeze(g)  # in place
        return g

    @cached_property
    def _producers(self) -> dict[str, Node]:
        return {v: node for node in self.nodes for v in node.results}

    @cached_property
    def _readers(self) -> dict[str, list[Node]]:
        readers: dict[str, list[Node]] = {}
        for node in self.nodes:
            for v in dict.fromkeys(node.reads):
                readers.setdefault(v, []).append(node)
        return readers

    def type(self, value: str) -> TensorType:
        """Type of a value; KeyError if there is none of that name."""
        return self.types[value]

    def producer(self, value: str) -> Node | None:
        """The node that computes a value; None for an input, state, constant or capture."""
        return self._producers.get(value)

    def readers(self, value: str) -> tuple[Node, ...]:
        """The nodes that read a value, in program order (bindings are not nodes)."""
        return tuple(self._readers.get(value, ()))

    def constant(self, value: str) -> AnyArray | None:
        """The array of a constant; None for any other value."""
        tensor = self.consts.get(value)
        return None if tensor is None else tensor.array

    @property
    def sources(self) -> Iterator[str]:
        """Values that no node computes, in order: inputs, captures, states, constants."""
        yield from (*self.inputs, *self.captures, *self.states, *self.consts)

    @property
    def results(self) -> tuple[str, ...]:
        """Values that bindings need, each once."""
        return tuple(dict.fromkeys((*self.outputs.values(), *self.updates.values())))

    def _key(self) -> tuple[object, ...]:
        return (
            self.name,
            self.inputs,
            self.captures,
            dict(self.states),
            dict(self.consts),
            self.nodes,
            list(self.outputs.items()),
            list(self.updates.items()),
            dict(self.types),
        )

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Graph) and self._key() == other._key())

    def __hash__(self) -> int:
        return hash((self.name, self.inputs, self.captures, self.nodes, tuple(self.outputs.items())))

    def __repr__(self) -> str:
        return f"<Graph {self.name}: {len(self.nodes)} nodes>"


@dataclass(frozen=True)
class Program:
    """The graphs of one model, which share their states by name.

    step: one training iteration (or plain inference if nothing is updated). infer: the inference graph on the same
    states. initialize: the graph whose updates (re)set states; None if the model has none.
    """

    step: Graph
    infer: Graph | None = None
    initialize: Graph | None = None

    def graphs(self) -> dict[str, Graph]:
        """The graphs that exist, by role."""
        roles = {"step": self.step, "infer": self.infer, "initialize": self.initialize}
        return {role: g for role, g in roles.items() if g is not None}
