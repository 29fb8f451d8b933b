"""expand_bodies: puts the definition in place of every node that has no kernel, in float32 where that is for halves."""

from __future__ import annotations

from collections.abc import Callable

from compiler.errors import Problem, UnsupportedError, VerifyError
from compiler.ir.bodies import expand, has_body
from compiler.ir.builder import Builder, where
from compiler.ir.graph import Graph, Node, Origin
from compiler.ir.infer import NotStatic
from compiler.ir.types import NARROW_FLOATS, TensorType, onnx_dtype
from compiler.passes.rewrite import Rewrite, with_bodies

HasKernel = Callable[[Node, tuple[TensorType | None, ...]], bool]
"""Whether code generation can compute a node by itself; the types are those of its inputs, None for an absent one."""

_HALF = frozenset({"f16", "bf16"})

_MAX_DEPTH = 32
"""Definitions within definitions; beyond, one contains itself."""


def expand_bodies(graph: Graph, has_kernel: HasKernel) -> Graph:
    """Replace nodes without kernel by their definitions, repeatedly, also in bodies.

    A node with operands of half precision and no kernel for them becomes one on float32, whose results are rounded.

    UnsupportedError lists all nodes that have neither kernel nor definition.
    """
    problems: dict[Problem, None] = {}
    graph = _expanded(graph, has_kernel, problems)
    if problems:
        raise UnsupportedError(problems)
    return graph


def _expanded(graph: Graph, has_kernel: HasKernel, problems: dict[Problem, None]) -> Graph:
    for _ in range(_MAX_DEPTH):
        changed = _one_level(graph, has_kernel, problems)
        if changed is None:
            return graph
        graph = changed
    raise AssertionError(f"a definition in {graph.name!r} contains itself")


def _one_level(graph: Graph, has_kernel: HasKernel, problems: dict[Problem, None]) -> Graph | None:
    """The graph with each node that needs it replaced by its definition; None if there is none."""
    if all(not node.bodies and has_kernel(node, _types(graph, node)) for node in graph.nodes):
        return None
    rewrite = Rewrite(graph)
    changed = False
    for old in graph.nodes:
        node = with_bodies(old, lambda body: _expanded(body, has_kernel, problems))
        changed |= node != old
        types = _types(graph, node)
        if not has_kernel(node, types):
            try:
                if _computes_wider(node, types, has_kernel):
                    _put_wider(rewrite, node)
                    changed = True
                    continue
                if has_body(node.op):
                    _put_definition(rewrite, node)
                    changed = True
                    continue
                problems[_without_kernel(node, types)] = None
            except VerifyError as e:
                problems.update(dict.fromkeys(e.problems))
            except NotStatic as e:
                remedy = f"make {', '.join(e.operands)} constant, or bind it by static=..."
                problems[Problem(str(e), where(node), remedy)] = None
        rewrite.keep(node)
    return rewrite.build() if changed else None


def _types(graph: Graph, node: Node) -> tuple[TensorType | None, ...]:
    return tuple(graph.type(v) if v else None for v in node.inputs)


def _narrow(op: str) -> frozenset[str]:
    """Types instead of which an op can take float32; definitions have their own way with floats of at most 8 bits."""
    return _HALF if has_body(op) else _HALF | NARROW_FLOATS


def _computes_wider(node: Node, types: tuple[TensorType | None, ...], has_kernel: HasKernel) -> bool:
    """Whether a node of half precision can run on float32 operands: better than a definition that rounds each value."""
    narrow = _narrow(node.op)
    wide = tuple(TensorType("f32", t.shape) if t is not None and t.dtype in narrow else t for t in types)
    return wide != types and not node.bodies and (has_body(node.op) or has_kernel(node, wide))


def _put_wider(rewrite: Rewrite, node: Node) -> None:
    b = rewrite.b
    b.origin = node.origin
    inputs = [_cast(b, v, "f32") if v and b.type(v).dtype in _narrow(node.op) else v for v in rewrite.operands(node)]
    values = b.add(node.op, inputs, node.attrs, [b.fresh(f"{v}.f32") if v else "" for v in node.outputs])
    narrow = [rewrite.graph.type(v).dtype if v else "" for v in node.outputs]
    rewrite.replace(node, [_cast(b, v, d) if v else "" for v, d in zip(values, narrow, strict=True)])


def _cast(b: Builder, v: str, dtype: str) -> str:
    return v if b.type(v).dtype == dtype else b.op("Cast", v, to=onnx_dtype(dtype))


def _put_definition(rewrite: Rewrite, node: Node) -> None:
    rewrite.b.origin = Origin(node.origin.node, node.origin.rule or f"definition of {node.op_type}")
    values = expand(rewrite.b, node, rewrite.operands(node))
    missing = [v for v, new in zip(node.outputs, values, strict=False) if v and not new]
    if missing or len(values) < len(node.outputs):
        raise VerifyError(Problem(f"the definition of {node.op} does not give all its outputs", where(node)))
    rewrite.replace(node, values)


def _without_kernel(node: Node, types: tuple[TensorType | None, ...]) -> Problem:
    shown = ", ".join(t.dtype if t else "-" for t in types)  # sizes play no part: the message is the same for all
    return Problem(
        f"operator {node.op}({shown}) is not supported",
        where(node),
        "replace it in the model by supported operators, or feed its result as an input",
    )
