"""The inputs of onnx's own node tests as graphs in float64."""

from __future__ import annotations

import functools
import importlib.util
import pkgutil
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from unittest import mock

import numpy as np
import numpy.typing as npt
import onnx
import onnx.backend.test.case.node as official
from onnx import numpy_helper

import compiler.ir.definitions  # noqa: F401  (ops that are defined here)
from compiler.ir.bodies import _function, expand
from compiler.ir.builder import Builder
from compiler.ir.graph import Graph, Node
from compiler.ir.infer import STATIC_OPERANDS
from compiler.ir.proto import CANONICAL_OPSET, attrs_from_node
from compiler.ir.reading import read_nodes
from compiler.ir.types import TensorType, dtype_of

Array = npt.NDArray[np.generic]

FLOATS = (np.float16, np.float32, np.float64)

LARGE = 9
"""Spatial dimensions of pools are cut down to this, from those of a picture."""

DOMAIN = {"Asin": (-0.9, 0.9), "Acos": (-0.9, 0.9), "Atanh": (-0.9, 0.9), "Acosh": (1.1, np.inf)}
"""op -> bounds to which inputs are clipped after they were jittered."""

UNCHANGED = ("Attention", "Compress", "Einsum", "ReduceMax", "ReduceMin")
"""Ops of which a newer version only takes more types, or has more attributes."""


@dataclass
class Case:
    """A graph with the outputs of one node, and arrays for its inputs, of which xs are floating-point."""

    name: str
    graph: Graph
    feeds: dict[str, Array]
    xs: list[str]


@dataclass
class NodeTest:
    name: str
    node: onnx.NodeProto
    inputs: list[object]
    opset: int


def takes_double(op: str) -> bool:
    """Whether an operator has an input that may be in float64."""
    return any("tensor(double)" in i.types for i in onnx.defs.get_schema(op, CANONICAL_OPSET, "").inputs)


def wide_function(node: Node, types: Sequence[TensorType | None]) -> onnx.FunctionProto:
    """ONNX's definition of an operator that takes no float64, with float64 where it has float32 inside."""
    function = _function(node, types)
    _widen(function.node)
    return function


def _widen(nodes: Iterable[onnx.NodeProto]) -> None:
    narrow, wide = onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE
    for node in nodes:
        if node.op_type == "ConstantOfShape" and not node.attribute:
            node.attribute.append(onnx.helper.make_attribute("value", numpy_helper.from_array(np.zeros(1))))
        for a in node.attribute:
            if node.op_type == "Cast" and a.i == narrow:
                a.i = wide
            if a.t.data_type == narrow:
                a.t.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(a.t).astype(np.float64)))
            _widen(a.g.node)
            for v in (*a.g.input, *a.g.output):
                if v.type.tensor_type.elem_type == narrow:
                    v.type.tensor_type.elem_type = wide


@functools.cache
def node_tests(op: str) -> Sequence[NodeTest]:
    """Official cases of an op, from a private copy of onnx's module for it.

    The expected results are not computed: for pools that takes many seconds.
    """
    found: list[NodeTest] = []

    def expect(node_op: onnx.NodeProto, inputs: Sequence[object], outputs: object, name: str, **kwargs: object) -> None:
        if node_op.op_type == op and node_op.domain in ("", "ai.onnx"):
            opsets = kwargs.get("opset_imports") or [onnx.helper.make_opsetid("", CANONICAL_OPSET)]
            found.append(NodeTest(name, node_op, list(inputs), opsets[0].version))

    def no_result(*args: object, **kwargs: object) -> Array:
        return np.zeros(1, np.float32)

    names = {m.name.replace("_", ""): m.name for m in pkgutil.iter_modules(official.__path__)}
    spec = importlib.util.find_spec(f"{official.__name__}.{names[op.lower()]}")
    assert spec is not None
    assert spec.loader is not None
    with (
        warnings.catch_warnings(),
        np.errstate(all="ignore"),
        mock.patch.object(official, "expect", expect),
        mock.patch("onnx.reference.ops.op_pool_common.pool", no_result),
    ):
        warnings.simplefilter("ignore")
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
    return found


def cases_of(op: str, jitter: float) -> Iterator[Case]:
    """The official cases of an op that have floating-point inputs, in float64, moved by up to `jitter`."""
    rng = np.random.default_rng(0)
    for test in node_tests(op):
        case = read(test, rng, jitter)
        if case is not None:
            yield case


def read(test: NodeTest, rng: np.random.Generator, jitter: float) -> Case | None:
    """A case in float64; None if it has no floating-point inputs, or is of an older version of the op."""
    node = test.node
    versions = [onnx.defs.get_schema(node.op_type, v).since_version for v in (test.opset, CANONICAL_OPSET)]
    if versions[0] != versions[1] and node.op_type not in UNCHANGED:
        return None
    b = Builder(test.name)
    names: dict[str, str] = {}
    feeds: dict[str, Array] = {}
    xs = []
    present = [v for v in node.input if v]
    static = [node.input[i] for i in STATIC_OPERANDS.get(node.op_type, ()) if i < len(node.input)]
    for v, given in zip(present, test.inputs, strict=True):
        array = numpy_helper.to_array(given) if isinstance(given, onnx.TensorProto) else given
        if not isinstance(array, np.ndarray | np.generic):
            return None
        array = np.asarray(array)
        if array.dtype.kind not in "fiub":
            return None
        if v in static:
            names[v] = b.const(array, v)
            continue
        if array.dtype in FLOATS:
            array = array.astype(np.float64)
            array = np.asarray(array + jitter * rng.uniform(-1, 1, array.shape))
            if node.op_type in DOMAIN:
                array = array.clip(*DOMAIN[node.op_type])
            if "Pool" in node.op_type:
                array = array[(slice(None), slice(None), *(slice(LARGE) for _ in array.shape[2:]))]
            xs.append(v)
        names[v] = b.input(v, TensorType(dtype_of(array), array.shape))
        feeds[names[v]] = array
    if not xs:
        return None
    if takes_double(node.op_type):
        read_nodes(b, [node], names)
    else:  # what it is made of does
        inputs = tuple(names[v] if v else "" for v in node.input)
        call = Node(node.op_type, inputs, tuple(node.output), attrs_from_node(node))
        with mock.patch("compiler.ir.bodies._function", wide_function):
            names.update(zip(node.output, expand(b, call, call.inputs), strict=False))
    for out in node.output:
        if out:
            b.output(out, names[out])
    return Case(test.name, b.build(), feeds, xs)
