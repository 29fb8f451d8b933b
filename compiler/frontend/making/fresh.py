"""The initialization graph: fresh weights, from random numbers of ONNX.

Kaiming: He et al., Delving Deep into Rectifiers, 2015, for ReLU. Xavier: Glorot and Bengio, Understanding the
difficulty of training deep feedforward neural networks, 2010. Only weights of two axes and more are drawn; scales of
normalizations start at 1, everything else (biases) at 0, and states of the optimizer and running statistics at the
values that the file has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod, sqrt
from typing import Any

import numpy as np
from onnx import GraphProto, TensorProto, helper, numpy_helper

from compiler.errors import InputError, did_you_mean, shown
from compiler.frontend.making.facts import Facts, int_attribute
from compiler.frontend.making.select import Candidate

INITIALIZATIONS = (
    "kaiming_uniform",
    "kaiming_normal",
    "xavier_uniform",
    "xavier_normal",
    "normal",
    "uniform",
    "zeros",
)
_ALIASES = {"kaiming": "kaiming_uniform", "he": "kaiming_uniform", "he_normal": "kaiming_normal"}
_ALIASES |= {"he_uniform": "kaiming_uniform", "xavier": "xavier_uniform", "glorot": "xavier_uniform"}
_ALIASES |= {"glorot_uniform": "xavier_uniform", "glorot_normal": "xavier_normal", "zero": "zeros"}

NORMAL_STD, UNIFORM_BOUND = 0.02, 0.05
"""Of "normal" and "uniform"."""

_SEEDS = 2**24
"""How many seeds float32 tells apart."""

_SCALES = {
    "BatchNormalization": 1,
    "InstanceNormalization": 1,
    "LayerNormalization": 1,
    "GroupNormalization": 1,
    "RMSNormalization": 1,
}


def canonical(name: str) -> str:
    """The name of an initialization. InputError: there is none."""
    known = _ALIASES.get(name.lower(), name.lower()) if isinstance(name, str) else None
    if known is None or known not in INITIALIZATIONS:
        near = did_you_mean(name, [*INITIALIZATIONS, *_ALIASES]) or f": there are {', '.join(INITIALIZATIONS)}"
        raise InputError(f"initialize: there is no {shown(name)}{near}")
    return known


def add_initialization(
    facts: Facts,
    parameters: Sequence[Candidate],
    others: Mapping[str, TensorProto],
    name: str,
    seed: int | None,
) -> tuple[GraphProto, list[tuple[str, str]]]:
    """The graph, and its bindings. others: further variables, which get their first values again.

    seed: of the random numbers; None leaves them to who runs it (`step.initialize(seed=...)`). The attribute of ONNX
    is a float, so that only its last 24 bits count, and each parameter has another.
    """
    kind = canonical(name)
    graph = GraphProto(name="initialization")
    bindings = []
    for index, p in enumerate(parameters):
        value = f"{p.name}.initial"
        fans = _fans(facts, p)
        _draw(graph, value, p, kind if fans else "", fans, None if seed is None else (seed + index) % _SEEDS, facts)
        bindings.append((p.name, value))
    for key, tensor in others.items():
        value = f"{key}.initial"
        _constant(graph, value, numpy_helper.to_array(tensor))
        bindings.append((key, value))
    types = {p.name: (p.elem_type, p.shape) for p in parameters}
    types |= {key: (t.data_type, tuple(t.dims)) for key, t in others.items()}
    graph.output.extend(helper.make_tensor_value_info(v, *types[key]) for key, v in bindings)
    return graph, bindings


def _draw(
    graph: GraphProto,
    value: str,
    p: Candidate,
    kind: str,
    fans: tuple[int, int] | None,
    seed: int | None,
    facts: Facts,
) -> None:
    dtype = helper.tensor_dtype_to_np_dtype(p.elem_type)
    if not kind or kind == "zeros" or fans is None:
        fill = 1 if not fans and _is_scale(facts, p.name) else 0
        _constant(graph, value, np.full(p.shape, fill, dtype))
        return
    fan_in, fan_out = fans
    deviation = {
        "kaiming_uniform": sqrt(2 / fan_in),
        "kaiming_normal": sqrt(2 / fan_in),
        "xavier_uniform": sqrt(2 / (fan_in + fan_out)),
        "xavier_normal": sqrt(2 / (fan_in + fan_out)),
        "normal": NORMAL_STD,
        "uniform": UNIFORM_BOUND / sqrt(3),
    }[kind]
    attributes: dict[str, Any] = {"dtype": p.elem_type, "shape": p.shape} | (
        {} if seed is None else {"seed": float(seed)}
    )
    if kind.endswith("normal"):
        node = helper.make_node("RandomNormal", [], [value], value, mean=0.0, scale=deviation, **attributes)
    else:
        bound = deviation * sqrt(3)
        node = helper.make_node("RandomUniform", [], [value], value, low=-bound, high=bound, **attributes)
    graph.node.append(node)


def _constant(graph: GraphProto, value: str, array: np.ndarray) -> None:
    graph.node.append(helper.make_node("Constant", [], [value], value, value=numpy_helper.from_array(array)))


def _is_scale(facts: Facts, name: str) -> bool:
    return any(_SCALES.get(node.op_type) == position for node, position in facts.readers[name])


def _fans(facts: Facts, p: Candidate) -> tuple[int, int] | None:
    """How many inputs an output has and how many outputs an input; None for what is not drawn."""
    if len(p.shape) < 2 or p.size <= 1 or not all(p.shape):
        return None
    node, position = next(iter(facts.readers[p.name]), (None, 0))
    op = node.op_type if node is not None else ""
    window = prod(p.shape[2:])
    match op:
        case "ConvTranspose":
            assert node is not None
            return p.shape[0] * window // int_attribute(node, "group", 1), p.shape[1] * window
        case "MatMul":
            rows, columns = (p.shape[-2], p.shape[-1]) if position == 1 else (p.shape[-1], p.shape[-2])
            return rows, columns
        case "Gemm":
            assert node is not None
            if position == 2:
                return None
            turned = bool(int_attribute(node, "transB" if position == 1 else "transA", 0))
            rows, columns = p.shape if (position == 1) != turned else p.shape[::-1]
            return rows, columns
        case "LSTM" | "GRU" | "RNN":
            return (p.shape[-1], p.shape[-2]) if position in (1, 2) else None
        case "Add" | "Mul":
            return None
    return p.shape[1] * window, p.shape[0] * window
