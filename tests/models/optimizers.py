"""Optimizers by name: updates of variables from `{variable}.gradient`.

`momentum`, `nesterov`, `adagrad` and `adam` are ONNX's nodes; `sgd`, `momentum_written` and `adam_written` are
arithmetic, the latter two with the meaning of the node of that name. `learning_rate` is a constant of the algorithm.
"""

from collections.abc import Callable, Sequence
from typing import Any

from onnx import helper

from tests.models.algorithm import DOMAIN, Algorithm, Variable

Attributes = dict[str, float]
COUNTER = "iteration"

# What each node keeps beside the variable, and the attributes it has here; Adam's are those of PyTorch but for epsilon,
# which ONNX adds before it corrects the bias.
_KEPT = {"Momentum": ["momentum"], "Adagrad": ["squares"], "Adam": ["mean", "square"]}
_MOMENTUM: Attributes = {"alpha": 0.9, "beta": 1.0, "norm_coefficient": 0.0}
_ADAM: Attributes = {"alpha": 0.9, "beta": 0.999, "epsilon": 1e-8}


def _next(name: str) -> str:
    return f"{name}.next"


def _keep(algorithm: Algorithm, variable: Variable, kind: str) -> Variable:
    """A new variable beside another, of its type, that starts at zero."""
    kept = Variable(f"{variable.name}.{kind}", variable.dtype, variable.shape)
    algorithm.tensor(kept.name, kept.zeros(), kept.dtype)
    algorithm.update(kept, _next(kept.name))
    return kept


def _node(algorithm: Algorithm, variables: Sequence[Variable], op: str, time: str, **attributes: Any) -> None:
    """One node of the training domain for all the variables."""
    kept = [[_keep(algorithm, variable, kind) for variable in variables] for kind in _KEPT[op]]
    gradients = [f"{variable.name}.gradient" for variable in variables]
    state = [variable.name for group in [list(variables), *kept] for variable in group]
    count = len(variables)
    algorithm.nodes.append(
        helper.make_node(
            op,
            ["learning_rate", time, *state[:count], *gradients, *state[count:]],
            [_next(name) for name in state],
            f"{op}.{variables[0].name}",
            domain=DOMAIN,
            **attributes,
        )
    )
    for variable in variables:
        algorithm.update(variable, _next(variable.name))


def _sgd(algorithm: Algorithm, variables: Sequence[Variable], attributes: Attributes) -> None:
    for variable in variables:
        name = variable.name
        change = algorithm.node("Mul", ["learning_rate", f"{name}.gradient"], f"{name}.change")
        algorithm.update(variable, algorithm.node("Sub", [name, change], _next(name)))


def _momentum(algorithm: Algorithm, variables: Sequence[Variable], attributes: Attributes) -> None:
    _node(algorithm, variables, "Momentum", algorithm.counter(COUNTER)[0], mode="standard", **_MOMENTUM | attributes)


def _nesterov(algorithm: Algorithm, variables: Sequence[Variable], attributes: Attributes) -> None:
    _node(algorithm, variables, "Momentum", algorithm.counter(COUNTER)[0], mode="nesterov", **_MOMENTUM | attributes)


def _adagrad(algorithm: Algorithm, variables: Sequence[Variable], attributes: Attributes) -> None:
    _node(algorithm, variables, "Adagrad", algorithm.counter(COUNTER)[0], **attributes)


def _adam(algorithm: Algorithm, variables: Sequence[Variable], attributes: Attributes) -> None:
    # T = 0 would mean no correction: the first step is number 1.
    _node(algorithm, variables, "Adam", algorithm.counter(COUNTER)[1], **_ADAM | attributes)


def _momentum_written(algorithm: Algorithm, variables: Sequence[Variable], attributes: Attributes) -> None:
    decay = algorithm.tensor("momentum.decay", (_MOMENTUM | attributes)["alpha"])
    for variable in variables:
        name, kept = variable.name, _keep(algorithm, variable, "momentum").name
        decayed = algorithm.node("Mul", [decay, kept], f"{kept}.decayed")
        algorithm.node("Add", [decayed, f"{name}.gradient"], _next(kept))
        change = algorithm.node("Mul", ["learning_rate", _next(kept)], f"{name}.change")
        algorithm.update(variable, algorithm.node("Sub", [name, change], _next(name)))


def _adam_written(algorithm: Algorithm, variables: Sequence[Variable], attributes: Attributes) -> None:
    values = _ADAM | attributes
    node, tensor = algorithm.node, algorithm.tensor
    one, epsilon = tensor("adam.one", 1.0), tensor("adam.epsilon", values["epsilon"])
    decays = {"mean": tensor("adam.mean", values["alpha"]), "square": tensor("adam.square", values["beta"])}
    rests = {kind: node("Sub", [one, decay], f"{decay}.rest") for kind, decay in decays.items()}
    time = node("Cast", [algorithm.counter(COUNTER)[1]], "adam.time", to=algorithm.dtype)
    powers = {kind: node("Pow", [decay, time], f"{decay}.power") for kind, decay in decays.items()}
    corrections = {kind: node("Sub", [one, power], f"{power}.rest") for kind, power in powers.items()}
    root = node("Sqrt", [corrections["square"]], "adam.root")
    scaled = node("Mul", ["learning_rate", root], "adam.scaled")
    rate = node("Div", [scaled, corrections["mean"]], "adam.rate")
    for variable in variables:
        name, gradient = variable.name, f"{variable.name}.gradient"
        news = {"mean": gradient, "square": node("Mul", [gradient, gradient], f"{gradient}.squared")}
        for kind, new in news.items():
            kept = _keep(algorithm, variable, kind).name
            old_part = node("Mul", [decays[kind], kept], f"{kept}.old")
            new_part = node("Mul", [rests[kind], new], f"{kept}.new")
            node("Add", [old_part, new_part], _next(kept))
        root = node("Sqrt", [_next(f"{name}.square")], f"{name}.root")
        divisor = node("Add", [root, epsilon], f"{name}.divisor")
        scaled = node("Mul", [rate, _next(f"{name}.mean")], f"{name}.scaled")
        change = node("Div", [scaled, divisor], f"{name}.change")
        algorithm.update(variable, node("Sub", [name, change], _next(name)))


OPTIMIZERS: dict[str, Callable[[Algorithm, Sequence[Variable], Attributes], None]] = {
    "sgd": _sgd,
    "momentum": _momentum,
    "nesterov": _nesterov,
    "adagrad": _adagrad,
    "adam": _adam,
    "momentum_written": _momentum_written,
    "adam_written": _adam_written,
}


def add_optimizer(
    algorithm: Algorithm,
    optimizer: str,
    variables: Sequence[Variable],
    learning_rate: float,
    attributes: Attributes,
    one_node: bool,
) -> None:
    """Adds the updates of the variables, with one node for all of them or one for each."""
    algorithm.tensor("learning_rate", learning_rate)
    groups = [variables] if one_node or optimizer.endswith("_written") else [[variable] for variable in variables]
    for group in groups:
        OPTIMIZERS[optimizer](algorithm, group, attributes)
