"""Append-only construction of graphs: every node is typed as it is added."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from compiler.errors import Problem, VerifyError
from compiler.ir.control import NESTING, control_types
from compiler.ir.graph import Attr, Graph, Node, Origin
from compiler.ir.infer import InferenceError, NotStatic, infer, remembered
from compiler.ir.known import Known, Values
from compiler.ir.proto import INTERNAL_DOMAIN, OPTIONAL_FIRST, TRAINING_DOMAIN
from compiler.ir.types import AnyArray, Tensor, TensorType, numpy_dtype

BodyFunction = Callable[["Builder", Sequence[str], Mapping[str, Attr]], Sequence[str]]
"""Emits the definition of an op into a builder: (builder, inputs ('' if absent), attributes) -> outputs."""

INTERNAL_OPS: dict[str, BodyFunction] = {}
"""Ops of domain onnxc, and standard ops that ONNX defines badly or not at all: their definition by other ops."""

GRADIENT = f"{TRAINING_DOMAIN}.Gradient"

_SHOWN = 6
"""Operands that a message tells at most."""


class Builder:
    """Adds inputs, states, constants, then nodes in program order; `build()` freezes the result.

    Names that are taken get a number: a method that defines a value returns the name it really has. `origin` is the
    provenance given to nodes that are added without one.
    """

    def __init__(self, name: str = "graph"):
        self.name = name
        self.origin = Origin()
        self.max_trip: int | None = None
        """For reading: how often a Loop of unknown length runs at most."""
        self.points: set[str] = set()
        """For reading: constants that a derivative is taken by, and what depends on them: captured by nested graphs."""
        self._types: dict[str, TensorType] = {}
        self._inputs: list[str] = []
        self._captures: list[str] = []
        self._states: dict[str, Tensor] = {}
        self._consts: dict[str, Tensor] = {}
        self._by_value: dict[Tensor, str] = {}
        self._nodes: list[Node] = []
        self._producers: dict[str, Node] = {}
        self._outputs: dict[str, str] = {}
        self._updates: dict[str, str] = {}
        self._known = Known(self._types, self._consts, self._producers)
        self._next: dict[str, int] = {}
        self._reserved: set[str] = set()

    # --- names and facts ---------------------------------------------------------------------------------
    def fresh(self, hint: str = "v") -> str:
        """A name that is free: the hint, or the hint with a number."""
        name = hint = hint or "v"
        while name in self._types or name in self._reserved:
            self._next[hint] = self._next.get(hint, 0) + 1
            name = f"{hint}_{self._next[hint]}"
        return name

    def _hint(self, name: str) -> str:
        """A hint that takes no reserved name."""
        return self.fresh(name) if name in self._reserved else name

    def reserve(self, names: Iterable[str]) -> None:
        """Keep names free for values that are added under exactly these names later."""
        self._reserved.update(names)

    def type(self, value: str) -> TensorType:
        """Type of a value; KeyError if there is none of that name."""
        return self._types[value]

    def shape(self, value: str) -> tuple[int, ...]:
        """Shape of a value."""
        return self._types[value].shape

    def __contains__(self, value: str) -> bool:
        return value in self._types

    def producer(self, value: str) -> Node | None:
        """The node that computes a value; None for a source."""
        return self._producers.get(value)

    @property
    def nodes(self) -> Sequence[Node]:
        """The nodes so far."""
        return self._nodes

    def known(self, value: str) -> AnyArray | None:
        """The array of a value that follows from constants and shapes alone (see Known); else None."""
        return self._known(value)

    # --- sources -----------------------------------------------------------------------------------------
    def _define(self, name: str, t: TensorType) -> str:
        if name in self._types:
            name = self.fresh(name)
        self._reserved.discard(name)
        self._types[name] = t
        return name

    def input(self, name: str, t: TensorType) -> str:
        """A value fed by the caller."""
        self._inputs.append(name := self._define(name, t))
        return name

    def capture(self, name: str, t: TensorType) -> str:
        """A value of the enclosing graph; the node with this body passes it in `captures`, in the same order."""
        self._captures.append(name := self._define(name, t))
        return name

    def state(self, name: str, initial: Tensor | AnyArray) -> str:
        """A value kept from step to step."""
        tensor = initial if isinstance(initial, Tensor) else Tensor(initial)
        name = self._define(name, tensor.type)
        self._states[name] = tensor
        return name

    def const(self, value: Tensor | AnyArray | np.generic | float | int | bool, name: str = "") -> str:
        """A constant. Without a name, an equal one that was made without a name is reused (up to 1024 bytes)."""
        tensor = value if isinstance(value, Tensor) else Tensor(np.asarray(value))
        small = tensor.type.nbytes <= 1024
        given = bool(name)
        if not given and small and tensor in self._by_value:
            return self._by_value[tensor]
        name = self._define(name or self.fresh("c"), tensor.type)
        self._consts[name] = tensor
        if small and not given:
            self._by_value[tensor] = name
        return name

    def scalar(self, value: float | int | bool, like: str) -> str:
        """A rank-0 constant of another value's dtype."""
        return self.const(np.asarray(value, numpy_dtype(self._types[like].dtype)))

    def full(self, value: float | int | bool, t: TensorType) -> str:
        """A constant of one repeated element."""
        if t.nbytes <= 1024:
            return self.const(np.full(t.shape, value, numpy_dtype(t.dtype)))
        return self.op("ConstantOfShape", self.ints(t.shape), value=Tensor(np.full(1, value, numpy_dtype(t.dtype))))

    def ints(self, values: Iterable[int]) -> str:
        """A rank-1 int64 constant: axes, a shape, ..."""
        return self.const(np.array(list(values), np.int64))

    # --- nodes -------------------------------------------------------------------------------------------
    def op(self, op: str, *inputs: str, name: str = "", **attrs: Attr) -> str:
        """Add a node with one output; `name` is a hint for it. Attributes that are None are left out."""
        given = {k: v for k, v in attrs.items() if v is not None}
        return self.add(op, inputs, given, [self._hint(name or op.rpartition(".")[2])])[0]

    def add(
        self,
        op: str,
        inputs: Sequence[str],
        attrs: Mapping[str, Attr] | None = None,
        outputs: Sequence[str] | int = 1,
        captures: Sequence[str] = (),
        origin: Origin | None = None,
        types: Sequence[TensorType | None] | None = None,
    ) -> tuple[str, ...]:
        """Add a node; gives the names of its outputs, '' where `outputs` has ''.

        outputs: hints of names, or their number. types: of the outputs, if known; else they are inferred.
        VerifyError if the node cannot be typed; NotStatic if a shape depends on run-time values.
        """
        hints = [self._hint(op.rpartition(".")[2])] * outputs if isinstance(outputs, int) else list(outputs)
        inputs = list(inputs)
        least = OPTIONAL_FIRST.get(op, 0)
        while len(inputs) > least and not inputs[-1]:
            inputs.pop()
        inputs += [""] * (least - len(inputs))
        while len(hints) > 1 and not hints[-1]:
            hints.pop()
        node = Node(op, tuple(inputs), tuple(hints), attrs or {}, tuple(captures), origin or self.origin)
        return self._append(node, self.infer(node) if types is None else types)

    def _append(self, node: Node, types: Sequence[TensorType | None]) -> tuple[str, ...]:
        """Add a node whose outputs are hints; the same object if they are free, so that what it remembers lasts."""
        names = tuple(self._define(h, t) if h and t else "" for h, t in zip(node.outputs, types, strict=False))
        if names != node.outputs:
            node = Node(node.op, node.inputs, names, node.attrs, node.captures, node.origin)
        self._nodes.append(node)
        for v in node.results:
            self._producers[v] = node
        return names

    def infer(self, node: Node) -> tuple[TensorType | None, ...]:
        """Types of a node's outputs, its inputs being values of this builder. VerifyError, NotStatic."""
        missing = [v for v in node.reads if v not in self._types]
        if missing:
            raise VerifyError(Problem(f"{node.op} reads {missing[0]!r}, which nothing defines before", where(node)))
        try:
            return output_types(node, self._types, self._known)
        except InferenceError as e:
            raise VerifyError(Problem(f"{describe(node, self._types)}: {e}", where(node), e.remedy)) from e

    def copy(
        self, node: Node, names: dict[str, str], types: Mapping[str, TensorType] | Graph, origin: Origin | None = None
    ) -> tuple[str, ...]:
        """Add another graph's node, its operands renamed by `names`; the names of its outputs are recorded there."""
        of = types.types if isinstance(types, Graph) else types
        inputs = tuple([names.get(v, v) for v in node.inputs])
        captures = tuple([names.get(v, v) for v in node.captures])
        outputs = node.outputs
        while len(outputs) > 1 and not outputs[-1]:
            outputs = outputs[:-1]
        origin, made = origin or node.origin, node
        if (inputs, outputs, captures, origin) != (node.inputs, node.outputs, node.captures, node.origin):
            made = Node(node.op, inputs, outputs, node.attrs, captures, origin)
        added = self._append(made, [of[v] if v else None for v in outputs])
        for old, new in zip(outputs, added, strict=True):
            if old:
                names[old] = new
        return added

    def sources_of(self, graph: Graph, names: dict[str, str] | None = None) -> dict[str, str]:
        """Declare all inputs, captures, states and constants of a graph; old name -> name here."""
        names = {} if names is None else names
        for v in graph.inputs:
            names[v] = self.input(v, graph.type(v))
        for v in graph.captures:
            names[v] = self.capture(v, graph.type(v))
        for v, t in graph.states.items():
            names[v] = self.state(v, t)
        # a constant that a derivative is taken by stands for itself only, not for every equal number
        points = {v for node in graph.nodes if node.op == GRADIENT for v in node.inputs}
        for v, t in graph.consts.items():
            names[v] = self.const(t, v)
            if t.type.nbytes <= 1024 and v not in points:
                self._by_value.setdefault(t, names[v])
        return names

    def inline(self, graph: Graph, args: Mapping[str, str], origin: Origin | None = None) -> list[str]:
        """Add a copy of a graph's nodes, its inputs and captures replaced by `args`; gives its outputs in order."""
        names = dict(args)
        for v, t in graph.consts.items():
            names[v] = self.const(t) if t.type.nbytes <= 1024 else self.const(t, self.fresh(v))
        for node in graph.nodes:
            self.copy(node, names, graph, origin)
        return [names[v] for v in graph.outputs.values()]

    # --- bindings ----------------------------------------------------------------------------------------
    def output(self, public: str, value: str) -> None:
        """Give a value to the caller under a public name."""
        self._outputs[public] = value

    def update(self, state: str, value: str) -> None:
        """Let a state take a value after the step."""
        self._updates[state] = value

    def bind(self, graph: Graph, names: Mapping[str, str]) -> None:
        """The bindings of a graph whose values are called `names[old]` here."""
        for public, v in graph.outputs.items():
            self.output(public, names.get(v, v))
        for state, v in graph.updates.items():
            self.update(names.get(state, state), names.get(v, v))

    def build(self) -> Graph:
        """The graph so far."""
        return Graph(
            self.name,
            self._types,
            tuple(self._inputs),
            self._states,
            self._consts,
            tuple(self._captures),
            tuple(self._nodes),
            self._outputs,
            self._updates,
        )


def output_types(node: Node, types: Mapping[str, TensorType], known: Values) -> tuple[TensorType | None, ...]:
    """Type of each output of a node; None for an absent one.

    types: of the values it reads, at least. Raises InferenceError, NotStatic.
    """
    ins = [types[v] if v else None for v in node.inputs]
    if node.op == GRADIENT:
        return _gradient_types(node, ins)
    if node.op in NESTING:
        return control_types(node, tuple(ins), known)
    if node.domain == INTERNAL_DOMAIN:
        return remembered(node, ins, lambda: _internal_types(node, ins))
    return infer(node, ins, lambda i: known(node.inputs[i]))


def _gradient_types(node: Node, ins: Sequence[TensorType | None]) -> tuple[TensorType | None, ...]:
    """Gradient(y, xs.., zs.., at..): output i is of the type of the value at i, which may be another batch than x i."""
    n, m = node.attr("xs", 0), node.attr("zs", 0)
    at = ins[1 + n + m : 1 + n + m + n]
    if len(at) < len(node.outputs):
        raise InferenceError(f"Gradient has {len(node.outputs)} outputs, but values for {len(at)} xs")
    return tuple(t if v else None for t, v in zip(at, node.outputs, strict=False))


def _internal_types(node: Node, ins: Sequence[TensorType | None]) -> tuple[TensorType | None, ...]:
    """What the definition of an internal op computes."""
    body = INTERNAL_OPS.get(node.op)
    if body is None:
        raise InferenceError(f"there is no internal operator {node.op}")
    scratch = Builder()
    inputs = [scratch.input(f"in{i}", t) if t else "" for i, t in enumerate(ins)]
    try:
        results = body(scratch, inputs, node.attrs)
    except NotStatic:
        raise
    except (LookupError, TypeError, ValueError, ArithmeticError, AssertionError) as e:
        raise InferenceError(f"its definition does not take these operands and attributes ({e!r})") from e
    if len(results) < len(node.outputs):
        raise InferenceError(f"{node.op} has {len(results)} outputs, not {len(node.outputs)}")
    return tuple(scratch.type(r) if v else None for r, v in zip(results, node.outputs, strict=False))


def describe(node: Node, types: Mapping[str, TensorType]) -> str:
    """A node with its operands and their types, for messages: `Conv('x': f32[1,3,8,8], 'w': f32[4,3,3,3])`."""
    return applied(node.op, node.inputs, [types.get(v) for v in node.inputs])


def applied(op: str, operands: Sequence[str], types: Sequence[TensorType | None]) -> str:
    """The text of `describe`. types: None where it is not known. Of many operands, only the first are told."""
    shown = [f"{v!r}: {t or '?'}" if v else "-" for v, t in zip(operands, types, strict=True)]
    if len(shown) > _SHOWN:
        shown[_SHOWN - 1 :] = [f"... {len(shown)} operands"]
    return f"{op}({', '.join(shown)})"


def where(node: Node) -> str:
    """A node for messages: its ONNX name, or else what it computes."""
    if node.origin.node:
        return f"node {str(node.origin)!r}"
    return f"the node that computes {next(iter(node.results), '?')!r}"
