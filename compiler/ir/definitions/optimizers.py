"""The optimizer steps: ops that take variables one step further, many variables a node.

A step's operands are scalars (rank 0, of the variables' dtype), then the tensors of n variables grouped by role as in
ONNX's optimizers: X1..Xn, G1..Gn, ...; its results are grouped in the same way. Hyper-parameters are operands, not
attributes: one kernel serves every setting, and a learning rate may be computed by the model.

Every step is elementwise: `element` is its whole definition, for the op's body as for the loop of a kernel. The last
scalar of each is a boolean, `due`: if it is there and false, all results are the old values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from compiler.ir.bodies import internal
from compiler.ir.builder import Builder
from compiler.ir.graph import Attr, Node
from compiler.ir.infer import InferenceError

Element = Callable[[Builder, Sequence[str], Sequence[str]], Sequence[str]]
"""(builder, scalars ('' if absent), one variable's tensors by role) -> its results by role, by elementwise nodes."""


@dataclass(frozen=True)
class Step:
    """An optimizer step: its operands and results by name, its formula.

    scalars: names of the scalar operands; those in `optional` may be absent, which leaves their term out.
    roles: names of the tensors of a variable. results: those roles that the step renews. All are of X's type.
    """

    op: str
    scalars: tuple[str, ...]
    optional: frozenset[str]
    roles: tuple[str, ...]
    results: tuple[str, ...]
    element: Element

    def variables(self, node: Node) -> int:
        """How many variables a node takes a step with."""
        return (len(node.inputs) - len(self.scalars)) // len(self.roles)

    def tensors(self, values: Sequence[str], i: int) -> list[str]:
        """The tensors of the i-th variable, by role, among a node's inputs."""
        tensors = values[len(self.scalars) :]
        n = len(tensors) // len(self.roles)
        return [tensors[role * n + i] for role in range(len(self.roles))]

    def body(self, b: Builder, inputs: Sequence[str], attrs: Mapping[str, Attr]) -> Sequence[str]:
        """The definition: the formula for one variable after the other."""
        n, rest = divmod(len(inputs) - len(self.scalars), len(self.roles))
        if n < 1 or rest:
            raise InferenceError(
                f"{self.op} takes {len(self.scalars)} scalars, then {len(self.roles)} tensors a variable"
            )
        scalars = inputs[: len(self.scalars)]
        variables = [self.tensors(inputs, i) for i in range(n)]
        self._check(b, scalars, variables)
        steps = [self.element(b, scalars, tensors) for tensors in variables]
        return [step[role] for role in range(len(self.results)) for step in steps]

    def _check(self, b: Builder, scalars: Sequence[str], variables: Sequence[Sequence[str]]) -> None:
        dtype = b.type(variables[0][0]).dtype
        for name, v in zip(self.scalars, scalars, strict=True):
            if not v and name not in self.optional:
                raise InferenceError(f"{self.op} needs its operand {name}")
            needed = scalar_dtype(name, dtype)
            if v and (b.shape(v) or b.type(v).dtype != needed):
                raise InferenceError(f"{self.op} of {dtype} with {name} of type {b.type(v)}, not {needed}[]")
        for tensors in variables:
            types = [b.type(v) if v else None for v in tensors]
            if len(set(types)) > 1 or types[0] is None or types[0].dtype != dtype:
                raise InferenceError(f"{self.op} of tensors that differ: {', '.join(map(str, types))}")


STEPS: dict[str, Step] = {}
"""The optimizer steps by the name of their op."""

DUE = "due"
"""The scalar that tells whether the variables take the step."""


def scalar_dtype(name: str, dtype: str) -> str:
    """The element type of a scalar operand of a step for variables of `dtype`."""
    return "bool" if name == DUE else dtype


def _step(name: str, scalars: str, roles: str, results: str) -> Callable[[Element], Element]:
    """Register a step: names separated by blanks, `?` after an optional scalar."""

    def register(element: Element) -> Element:
        names = [*scalars.split(), f"{DUE}?"]
        renewed = [roles.split().index(role) for role in results.split()]

        def gated(b: Builder, scalars: Sequence[str], tensors: Sequence[str]) -> Sequence[str]:
            *own, due = scalars
            new = element(b, own, tensors)
            return [b.op("Where", due, v, tensors[role]) for v, role in zip(new, renewed, strict=True)] if due else new

        step = Step(
            f"onnxc.{name}",
            tuple(n.rstrip("?") for n in names),
            frozenset(n.rstrip("?") for n in names if n.endswith("?")),
            tuple(roles.split()),
            tuple(results.split()),
            gated,
        )
        STEPS[step.op] = step
        internal(name)(step.body)
        return element

    return register


def _decayed(b: Builder, g: str, decay: str, x: str, scale: str = "") -> str:
    """Gradient of the loss, scaled (clipped by norm), with weight decay: scale*G + decay*X."""
    g = b.op("Mul", scale, g, name="g") if scale else g
    return b.op("Add", b.op("Mul", decay, x), g, name="g") if decay else g


def _root(b: Builder, h: str, inside: str, epsilon: str) -> str:
    """sqrt(H + inside) + epsilon."""
    root = b.op("Sqrt", b.op("Add", h, inside) if inside else h, name="root")
    return b.op("Add", root, epsilon, name="root") if epsilon else root


def _moved(b: Builder, x: str, shrink: str, *moves: str) -> str:
    """X - shrink*X - each of the moves."""
    for move in (*([b.op("Mul", shrink, x)] if shrink else []), *moves):
        x = b.op("Sub", x, move, name="x")
    return x


@_step("SgdStep", "rate decay? shrink?", "X G", "X")
def sgd(b: Builder, scalars: Sequence[str], tensors: Sequence[str]) -> Sequence[str]:
    """X' = X - shrink*X - rate*(G + decay*X)."""
    (rate, decay, shrink), (x, g) = scalars, tensors
    return [_moved(b, x, shrink, b.op("Mul", rate, _decayed(b, g, decay, x)))]


@internal("SgdRows")
def sgd_rows(b: Builder, inputs: Sequence[str], attrs: Mapping[str, Attr]) -> Sequence[str]:
    """(rate, X, dy, indices) -> X - rate*G, where G is the gradient of X for `y = Gather(X, indices)` along axis 0."""
    rate, x, dy, indices = inputs
    g = b.op("onnxc.GatherGrad", dy, indices, axis=0, shape=b.shape(x))
    return [b.op("onnxc.SgdStep", rate, "", "", "", x, g)]


@_step("MomentumStep", "alpha beta rate direct? decay? shrink?", "X G V", "X V")
def momentum(b: Builder, scalars: Sequence[str], tensors: Sequence[str]) -> Sequence[str]:
    """V' = alpha*V + beta*g; X' = X - shrink*X - direct*g - rate*V', where g = G + decay*X.

    ONNX's Momentum in mode standard has rate = R; nesterov has direct = R and rate = R*alpha.
    """
    (alpha, beta, rate, direct, decay, shrink), (x, g, v) = scalars, tensors
    g = _decayed(b, g, decay, x)
    v = b.op("Add", b.op("Mul", alpha, v), b.op("Mul", beta, g), name="v")
    return [_moved(b, x, shrink, *([b.op("Mul", direct, g)] if direct else []), b.op("Mul", rate, v)), v]


@_step("AdagradStep", "rate epsilon? inside? decay? shrink? scale?", "X G H", "X H")
def adagrad(b: Builder, scalars: Sequence[str], tensors: Sequence[str]) -> Sequence[str]:
    """H' = H + g*g; X' = X - shrink*X - rate*g / (sqrt(H' + inside) + epsilon), g = scale*G + decay*X."""
    (rate, epsilon, inside, decay, shrink, scale), (x, g, h) = scalars, tensors
    g = _decayed(b, g, decay, x, scale)
    h = b.op("Add", h, b.op("Mul", g, g), name="h")
    return [_moved(b, x, shrink, b.op("Div", b.op("Mul", rate, g), _root(b, h, inside, epsilon))), h]


@_step("RmsPropStep", "rate epsilon? inside? beta gain decay? shrink? scale?", "X G H", "X H")
def rmsprop(b: Builder, scalars: Sequence[str], tensors: Sequence[str]) -> Sequence[str]:
    """H' = beta*H + gain*g*g; X' = X - shrink*X - rate*g / (sqrt(H' + inside) + epsilon), g = scale*G + decay*X."""
    (rate, epsilon, inside, beta, gain, decay, shrink, scale), (x, g, h) = scalars, tensors
    g = _decayed(b, g, decay, x, scale)
    h = b.op("Add", b.op("Mul", beta, h), b.op("Mul", gain, b.op("Mul", g, g)), name="h")
    return [_moved(b, x, shrink, b.op("Div", b.op("Mul", rate, g), _root(b, h, inside, epsilon))), h]


@_step("AdamStep", "rate epsilon? inside? alpha gain_v beta gain_h decay? shrink? keep? scale?", "X G V H", "X V H")
def adam(b: Builder, scalars: Sequence[str], tensors: Sequence[str]) -> Sequence[str]:
    """V' = alpha*V + gain_v*g; H' = beta*H + gain_h*g*g, where g = scale*G + decay*X.

    X' = keep * (X - shrink*X - rate*V' / (sqrt(H' + inside) + epsilon)). Correction of the bias is in rate and epsilon:
    rate = R*sqrt(1 - beta^T)/(1 - alpha^T); where epsilon is added to the corrected root, epsilon*sqrt(1 - beta^T).
    """
    (rate, epsilon, inside, alpha, gain_v, beta, gain_h, decay, shrink, keep, scale), (x, g, v, h) = scalars, tensors
    g = _decayed(b, g, decay, x, scale)
    v = b.op("Add", b.op("Mul", alpha, v), b.op("Mul", gain_v, g), name="v")
    h = b.op("Add", b.op("Mul", beta, h), b.op("Mul", gain_h, b.op("Mul", g, g)), name="h")
    x = _moved(b, x, shrink, b.op("Div", b.op("Mul", rate, v), _root(b, h, inside, epsilon)))
    return [b.op("Mul", keep, x, name="x") if keep else x, v, h]


@_step("LionStep", "rate alpha gain_v beta gain_g shrink?", "X G V", "X V")
def lion(b: Builder, scalars: Sequence[str], tensors: Sequence[str]) -> Sequence[str]:
    """X' = X - shrink*X - rate*sign(alpha*V + gain_v*G); V' = beta*V + gain_g*G.

    Chen et al., Symbolic Discovery of Optimization Algorithms (2023), algorithm 2, where gain_v = 1 - alpha and
    gain_g = 1 - beta.
    """
    (rate, alpha, gain_v, beta, gain_g, shrink), (x, g, v) = scalars, tensors
    look = b.op("Add", b.op("Mul", alpha, v), b.op("Mul", gain_v, g), name="look")
    v = b.op("Add", b.op("Mul", beta, v), b.op("Mul", gain_g, g), name="v")
    return [_moved(b, x, shrink, b.op("Mul", rate, b.op("Sign", look))), v]
