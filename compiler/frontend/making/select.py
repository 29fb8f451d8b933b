"""Which tensors train.

By default weights: tensors of floating point that a network learns, by what reads them. `_WEIGHTS` lists operands that
are weights of their operator. Of Add and Mul a constant is a weight if the other operand comes from weights: what is
done to inputs before the first weight is preprocessing. Not weights are settings (bounds, ratios, running statistics),
single numbers that are multiplied, masks (`_is_mask`), and what fills an operand that was not asked for (`_is_filler`).
A tensor may reach its use through a Reshape, ..., and as a state of a Loop that no iteration changes, which is how
tf2onnx hands weights to a loop.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from compiler.errors import InputError, did_you_mean
from compiler.frontend.making.arguments import checked_texts
from compiler.frontend.making.facts import Facts, attribute, constant_of
from compiler.frontend.walk import all_nodes, bodies, defined
from compiler.ir.proto import element_type_name
from compiler.ir.types import AnyArray

_WEIGHTS: dict[str, set[int]] = {
    "Conv": {1, 2},
    "ConvTranspose": {1, 2},
    "DeformConv": {1, 3},
    "Gemm": {0, 1, 2},
    "MatMul": {0, 1},
    "BatchNormalization": {1, 2},
    "InstanceNormalization": {1, 2},
    "LayerNormalization": {1, 2},
    "GroupNormalization": {1, 2},
    "RMSNormalization": {1},
    "LSTM": {1, 2, 3, 7},
    "GRU": {1, 2, 3},
    "RNN": {1, 2, 3},
    "PRelu": {1},
    "Gather": {0},
    "GatherND": {0},
    "GatherElements": {0},
    "Einsum": set(range(16)),
}
_VIEWS = {"Identity", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Cast", "Slice", "Split", "Expand"}
_VIEWS |= {"CastLike", "QuantizeLinear", "DequantizeLinear"}
_FILLED = {f"{kind}Normalization": {1: 1, 2: 0} for kind in ("Batch", "Group", "Instance", "Layer", "RMS")}
"""Normalizations, and the numbers that exporters fill their operands with where a layer has no weights."""

_PRODUCTS = {"MatMul", "Conv", "ConvTranspose", "Gemm", "Einsum"}

_TAKEN_AWAY = -1e4
"""What a mask adds at most where it takes away."""

TRAINABLE = {TensorProto.FLOAT, TensorProto.DOUBLE}
"""Element types that the standard's optimizers have."""

_FLOATS = TRAINABLE | {TensorProto.FLOAT16, TensorProto.BFLOAT16}

DENSE = "a sparse initializer does not train, as its update is dense: store it as a dense initializer"
"""What to do about sparse weights."""

Patterns = str | Sequence[str]
"""One glob pattern, or several."""


@dataclass(frozen=True)
class Candidate:
    """A tensor that may train: an initializer, or the value of a Constant or ConstantOfShape node."""

    name: str
    elem_type: int
    shape: tuple[int, ...]
    read: Callable[[], AnyArray]
    node: NodeProto | None = None

    @property
    def size(self) -> int:
        """The number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))


def candidates(facts: Facts) -> dict[str, Candidate]:
    """All tensors of floating point that have axes, by name."""
    found = {}
    for t in facts.initializers.values():
        if t.data_type in _FLOATS:
            found[t.name] = Candidate(t.name, t.data_type, tuple(t.dims), partial(numpy_helper.to_array, t))
    for node in facts.model.graph.node:
        made = _made_by(node, facts)
        if made is not None:
            found[made.name] = made
    return found


def sparse_weights(facts: Facts, freeze: Sequence[str] = ()) -> list[str]:
    """Initializers of floating point in sparse form, but those that a pattern freezes."""
    names = [name for name, elem_type in facts.sparse.items() if elem_type in _FLOATS]
    return [name for name in names if not any(fnmatch.fnmatchcase(name, pattern) for pattern in freeze)]


def _made_by(node: NodeProto, facts: Facts) -> Candidate | None:
    if node.op_type == "Constant":
        array = constant_of(node)
    elif node.op_type == "ConstantOfShape":
        shape = facts.constant(node.input[0])
        value = attribute(node, "value")
        fill = numpy_helper.to_array(value) if isinstance(value, TensorProto) else np.zeros(1, np.float32)
        array = None if shape is None else np.broadcast_to(fill.reshape(()), tuple(int(d) for d in shape))
    else:
        return None
    if array is None or not node.output:
        return None
    elem_type = helper.np_dtype_to_tensor_dtype(array.dtype)
    if elem_type not in _FLOATS:
        return None
    return Candidate(node.output[0], elem_type, array.shape, lambda: np.ascontiguousarray(array), node)


def weights(facts: Facts, known: Mapping[str, Candidate]) -> dict[str, Candidate]:
    """The candidates that are weights, in the order of the file."""
    search = _Search(facts, known)
    return {name: c for name, c in known.items() if name in search.found}


def fillers(facts: Facts, known: Mapping[str, Candidate]) -> list[str]:
    """The candidates that are no weights only because exporters write such where there are none."""
    search = _Search(facts, known)
    return [name for name in known if name in search.filling - search.found]


class _Search:
    """Looks at all nodes in order. found: the names of the weights; filling: those of what fills an operand."""

    def __init__(self, facts: Facts, known: Mapping[str, Candidate]):
        self.facts, self.known = facts, known
        self.found: set[str] = set()
        self.filling: set[str] = set()
        self.doubtful: set[str] = set()  # weights if there are no others
        self.origin = {name: name for name in known}  # value -> the candidate that it is a view of
        self.learned: set[str] = set()  # values that come from weights
        self.varying = set(facts.inputs)  # values that come from inputs
        self.recurrent = _recurrent(facts)
        for node in all_nodes(facts.model.graph):
            self.visit(node)
        if all(known[name].node is not None for name in self.found):  # a file that has all weights in nodes
            self.found |= {name for name in self.filling if known[name].node is not None}
        self.found = self.found or self.doubtful  # a model of elementwise arithmetic only

    def visit(self, node: NodeProto) -> None:
        origin, operands = self.origin, [v for v in node.input if v]
        if node.op_type in _VIEWS and operands and operands[0] in origin:
            origin.update((v, origin[operands[0]]) for v in node.output if v)
            return
        if node.op_type == "Loop":
            kept = {inner: origin[v] for v, inner in _kept_states(node) if v in origin}
            origin.update(kept)
            self.varying.update(v for _, body in bodies(node) for v in defined(body) if v not in kept)
        for position, v in enumerate(node.input):
            if v in origin:
                tensor = self.known[origin[v]]
                if self.is_weight(node, position, tensor):
                    (self.filling if _is_filler(node, position, tensor) else self.found).add(tensor.name)
        if any(v in self.learned or origin.get(v) in self.found for v in operands):
            self.learned.update(node.output)
        if any(v in self.varying for v in operands):
            self.varying.update(node.output)

    def is_weight(self, node: NodeProto, position: int, tensor: Candidate) -> bool:
        """Whether this operand, which is a view of the tensor, is a weight of the node."""
        if not tensor.shape or tensor.elem_type not in TRAINABLE:
            return False
        if node.op_type == "Concat":  # a class token, or a part of a recurrent layer's weights, which exporters join
            return (tensor.node is None and node.output[0] in self.recurrent) or _is_token(tensor)
        if node.op_type in _WEIGHTS:
            return position in _WEIGHTS[node.op_type]
        if node.op_type not in ("Add", "Mul") or _is_mask(tensor.read(), node.op_type):
            return False
        other = node.input[1 - position]
        source = self.facts.producer.get(other)
        is_bias = node.op_type == "Add" and source is not None and source.op_type in _PRODUCTS
        if tensor.size == 1 and not is_bias:
            return False
        if other in self.varying and other not in self.learned:
            self.doubtful.add(tensor.name)
        return other in self.learned and other in self.varying


def _recurrent(facts: Facts) -> set[str]:
    """The values that become weights of recurrent layers."""
    found: set[str] = set()
    for node in reversed(list(all_nodes(facts.model.graph))):
        if node.op_type in ("RNN", "GRU", "LSTM"):
            found.update(v for i, v in enumerate(node.input) if i in _WEIGHTS[node.op_type] and v)
        elif not found.isdisjoint(node.output):
            found.update(node.input if node.op_type == "Concat" else node.input[:1] if node.op_type in _VIEWS else [])
    return found


def _is_filler(node: NodeProto, position: int, tensor: Candidate) -> bool:
    """Whether a weight looks like what exporters write where a layer has none.

    PyTorch's write normalizations without weights, and the one within a GroupNorm, with a scale of 1 and a bias of 0:
    as nodes, or as `val_` and a number, where parameters have names of their own; and a slope that is no parameter as
    a node.
    """
    if node.op_type == "PRelu":
        return tensor.node is not None and tensor.size == 1
    number = _FILLED.get(node.op_type, {}).get(position)
    named = tensor.node is not None or re.fullmatch(r"val_\d+", tensor.name) is not None
    return named and number is not None and bool((tensor.read() == number).all())


def _kept_states(loop: NodeProto) -> Iterator[tuple[str, str]]:
    """The states of a Loop that it gives on as they are: operand, and what its body calls it."""
    (body,) = (body for _, body in bodies(loop))
    same = {node.output[0]: node.input[0] for node in body.node if node.op_type == "Identity"}
    for operand, state, after in zip(loop.input[2:], body.input[2:], body.output[1:], strict=False):
        result = after.name
        while result in same:
            result = same[result]
        if result == state.name:
            yield operand, state.name


def _is_mask(array: AnyArray, op: str) -> bool:
    """Whether numbers that are added leave some as they are and take others away, or those multiplied pick some.

    Attention adds -inf, the lowest number of the type, or -10000, and 0 elsewhere.
    """
    if not np.isfinite(array).all():
        return True
    if op == "Mul":
        return bool(np.isin(array, (0, 1)).all() and (array != array.flat[0]).any())
    return bool(((array == 0) | np.less_equal(array, _TAKEN_AWAY)).all() and (array != 0).any())


def _is_token(tensor: Candidate) -> bool:
    array = tensor.read()
    return tensor.size > 1 and bool((array != array.flat[0]).any())


def filling(names: Sequence[str]) -> str:
    """What to say about `fillers`."""
    does, of, more, it = ("does", "it looks", "", "it") if len(names) == 1 else ("do", "they look", ", ...", "them")
    return (
        f"{_some(names)} {does} not train: {of} like what exporters write where a layer has no weights; "
        f"train=['*', {names[0]!r}{more}] trains {it} as well"
    )


def listed(option: str, patterns: Patterns) -> tuple[str, ...]:
    """The patterns of an option, one by one. InputError: they are something else."""
    return checked_texts(option, patterns, "a glob pattern of names, or a list of such")


def choose(
    facts: Facts,
    known: Mapping[str, Candidate],
    sources: Iterable[str],
    train: Patterns | None,
    freeze: Patterns | None,
) -> list[Candidate]:
    """The tensors that train. sources: what the losses read.

    A pattern selects among the weights; a full name may also be that of another tensor of floating point. InputError:
    a pattern that matches nothing, a name that cannot train, or nothing left.
    """
    train, freeze = (p if p is None else listed(n, p) for n, p in (("train", train), ("freeze", freeze)))
    default = weights(facts, known)
    reached = facts.upstream(sources)
    chosen = {name for name in default if name in reached}
    if train is not None:
        for name in train:
            if name in known:
                _check_trainable(known[name], name in reached)
        chosen = _matched("train", train, default, known, facts.sparse) & reached
    if freeze is not None:
        filled = {name: known[name] for name in fillers(facts, known)}
        chosen -= _matched("freeze", freeze, default | filled, known, facts.sparse)
    result = [c for name, c in known.items() if name in chosen]
    if not result:
        raise InputError(_nothing(default, known, train, freeze, sparse_weights(facts)))
    return result


def _check_trainable(tensor: Candidate, reached: bool) -> None:
    if tensor.elem_type not in TRAINABLE:
        kind = element_type_name(tensor.elem_type)
        raise InputError(f"train: {tensor.name!r} is {kind}, in which updates are lost: convert the model to float32")
    if not reached:
        raise InputError(
            f"train: {tensor.name!r} has no influence on the loss: leave it out, or add a loss that it has"
        )


def _nothing(
    default: Mapping[str, Candidate],
    known: Mapping[str, Candidate],
    train: Sequence[str] | None,
    freeze: Sequence[str] | None,
    sparse: Sequence[str],
) -> str:
    if train is not None or freeze is not None:
        given = [
            f"{n}={', '.join(map(repr, p)) or '[]'}" for n, p in (("train", train), ("freeze", freeze)) if p is not None
        ]
        leave = "leaves" if len(given) == 1 else "leave"
        return f"every parameter is frozen: {' and '.join(given)} {leave} none of {_some(default)}"
    narrow = [c.name for c in known.values() if c.elem_type not in TRAINABLE and c.shape]
    if narrow:
        return f"the weights are in half precision, in which updates are lost ({_some(narrow)}): convert to float32"
    if sparse:
        return f"there is nothing to train but {_some(sparse)}: {DENSE}"
    if default:
        return f"no weight has influence on the loss: there are {_some(default)}"
    return "the model has no weights of floating point, so there is nothing to train"


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    return ", ".join(map(repr, listed[:5])) + (f", ... ({len(listed)} in all)" if len(listed) > 5 else "") or "none"


def _matched(
    option: str,
    patterns: Sequence[str],
    default: Mapping[str, Candidate],
    known: Mapping[str, Candidate],
    sparse: Iterable[str],
) -> set[str]:
    found = set()
    for pattern in patterns:
        matched = {pattern} & set(known) or set(fnmatch.filter(default, pattern))
        if not matched and (names := fnmatch.filter(sparse, pattern)):
            if option == "train":
                raise InputError(f"train: {_some(names)}: {DENSE}")
            continue
        if not matched:
            near = did_you_mean(pattern, known) or f": there are {_some(default)}"
            raise InputError(f"{option}: no weight matches {pattern!r}{near}")
        found |= matched
    return found


def lift(model: ModelProto, tensors: Iterable[Candidate]) -> None:
    """Make initializers of candidates that are values of nodes; in place."""
    moved = {c.name: c for c in tensors if c.node is not None}
    if not moved:
        return
    kept = [node for node in model.graph.node if not (node.output and node.output[0] in moved)]
    del model.graph.node[:]
    model.graph.node.extend(kept)
    model.graph.initializer.extend(numpy_helper.from_array(c.read(), name) for name, c in moved.items())
