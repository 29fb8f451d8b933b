"""How rules are written: `@gradient("Mul") def mul(r): ...` on a `Call`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from compiler.errors import Problem
from compiler.ir.builder import Builder
from compiler.ir.graph import Attr, Node
from compiler.ir.proto import default
from compiler.ir.types import AnyArray
from compiler.passes.gradients.value import Value


class NoRule(Exception):
    """A rule that cannot handle this node; the argument says why. problems: those of nodes inside of it, if any."""

    def __init__(self, why: str, remedy: str = "", problems: Sequence[Problem] = ()):
        super().__init__(why)
        self.remedy, self.problems = remedy, problems


def operands(node: Node) -> tuple[str, ...]:
    """All that a node can have gradients of, by position: its inputs, then its captures."""
    return (*node.inputs, *node.captures)


@dataclass
class Call:
    """One node to differentiate: its operands, its results, and the gradients that have arrived for them.

    A rule calls `give(i, ...)` for each input; what nobody wants is not computed. The driver sums over axes along
    which the input was broadcast (and broadcasts a gradient that is smaller than its input). points: the values that
    Gradient nodes of the graph name. Captures count as inputs that follow the others (see `operands`). widened: a node
    that computes what this one does and more, which the rule has added and reads; it takes this one's place.
    """

    b: Builder
    node: Node
    gradients: Sequence[Value | None]
    wanted: frozenset[int]
    points: frozenset[str] = frozenset()
    given: list[tuple[int, Value]] = field(default_factory=list)
    widened: Node | None = None

    @property
    def dy(self) -> Value:
        """The gradient of output 0, the only one for most ops."""
        dy = self.gradients[0]
        assert dy is not None, self.node
        return dy

    def dys(self, i: int) -> Value | None:
        """The gradient of output i; None if nothing depends on it."""
        return self.gradients[i] if i < len(self.gradients) else None

    def x(self, i: int = 0) -> Value:
        """Input i, which must be present."""
        assert self.has(i), self.node
        return Value(self.b, self.node.inputs[i])

    @property
    def xs(self) -> list[Value]:
        """All inputs of a variadic node."""
        return [Value(self.b, v) for v in self.node.inputs]

    def has(self, i: int) -> bool:
        """Whether input i is present."""
        return bool(self.node.input(i))

    def y(self, i: int = 0) -> Value:
        """Output i of the forward node; it must be present (see `saves` of `gradient`)."""
        assert self.node.output(i), self.node
        return Value(self.b, self.node.outputs[i])

    def attr(self, name: str) -> Attr:
        """An attribute, by default the schema's default."""
        return self.node.attr(name, default(self.node.op, name))

    def known(self, i: int) -> AnyArray | None:
        """The compile-time value of input i; None if it is absent. NoRule if it is not known."""
        if not self.has(i):
            return None
        array = self.b.known(self.node.inputs[i])
        if array is None:
            self.refuse(f"input {i} is not known at compile time")
        return array

    def constant(self, i: int) -> AnyArray | None:
        """The array in input i if it is a constant for derivatives of every order: no Gradient node names it."""
        v = self.node.input(i)
        return None if v in self.points or self.b.producer(v) is not None else self.b.known(v)

    def ints(self, i: int) -> list[int] | None:
        """The compile-time integers in input i; None if it is absent."""
        array = self.known(i)
        return None if array is None else [int(n) for n in array.reshape(-1)]

    def wants(self, i: int) -> bool:
        """Whether a gradient of input i is needed."""
        return i in self.wanted

    def give(self, i: int, value: Value | Callable[[], Value]) -> None:
        """Contribute to the gradient of input i; a function is called only if it is needed."""
        if i in self.wanted:
            self.given.append((i, value if isinstance(value, Value) else value()))

    def zeros(self, shape: Sequence[int], like: Value) -> Value:
        """Zeros of a shape and of the dtype of `like`."""
        return Value(self.b, self.b.full(0, type(like.type)(like.dtype, tuple(shape))))

    def const(self, array: AnyArray) -> Value:
        """A constant."""
        return Value(self.b, self.b.const(array))

    def add(self, op: str, inputs: Sequence[Value], outputs: int, **attrs: Attr) -> list[Value]:
        """A node of several outputs."""
        given = {k: v for k, v in attrs.items() if v is not None}
        return [Value(self.b, v) for v in self.b.add(op, [v.name for v in inputs], given, outputs)]

    def refuse(self, why: str, remedy: str = "") -> NoReturn:
        """Say that there is no rule for this node as it is."""
        raise NoRule(why, remedy)


Rule = Callable[[Call], None]

Saves = Callable[[Builder, Node], Sequence[int]]

Form = Callable[[Builder, Node], Sequence[str] | None]
"""Adds nodes that compute what a node does in a form that the rule can handle: their results; None if it is in it."""


@dataclass(frozen=True)
class Entry:
    """A rule; the forward outputs it reads; which wanted inputs it leaves to the op's body; the form it needs."""

    rule: Rule
    saves: Saves
    by_body: frozenset[int]
    form: Form


RULES: dict[str, Entry] = {}
"""op -> its gradient rule."""


def gradient(
    *ops: str, saves: Saves | Sequence[int] = (), by_body: Sequence[int] = (), form: Form = lambda b, node: None
) -> Callable[[Rule], Rule]:
    """Register a rule for some ops.

    saves: the outputs, optional in ONNX, that the rule reads (or a function of the node that tells); the driver adds
    those that the forward node lacks. by_body: inputs that the rule does not handle: if one of them is wanted, the
    node is replaced by its body, and that is differentiated. form: gives nodes in place of one that the rule cannot
    handle as it is.
    """

    def register(rule: Rule) -> Rule:
        entry = Entry(rule, saves if callable(saves) else lambda b, node: saves, frozenset(by_body), form)
        RULES.update((op, entry) for op in ops)
        return rule

    return register
