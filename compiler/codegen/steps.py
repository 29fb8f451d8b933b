"""Optimizer steps: one loop over the elements of all variables of a node, made from the step's formula."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from compiler.codegen.calls import Arg, Call, In, Listing, Out
from compiler.codegen.fuse import Group, formulas, kernel_from
from compiler.codegen.native import ITEMSIZE, Kernel
from compiler.ir.builder import Builder
from compiler.ir.definitions.optimizers import DUE, STEPS, Step, scalar_dtype
from compiler.ir.graph import Node
from compiler.ir.types import TensorType


def renewed(node: Node) -> list[tuple[str, str]]:
    """(result, operand that it is the new value of) for every tensor that a step node renews."""
    step = STEPS[node.op]
    n = step.variables(node)
    old = [step.tensors(node.inputs, i)[step.roles.index(role)] for role in step.results for i in range(n)]
    return [(new, v) for new, v in zip(node.outputs, old, strict=True) if new]


def step_call(node: Node, types: Mapping[str, TensorType], inplace: bool) -> Call:
    """The call that computes a step node. inplace: every result lies where its operand does."""
    step = STEPS[node.op]
    n, scalars = step.variables(node), node.inputs[: len(step.scalars)]
    dtype = types[node.inputs[len(step.scalars)]].dtype
    present = tuple(bool(v) for v in scalars)
    rows: list[In | Out | int] = []
    total = 0
    for i in range(n):
        tensors = step.tensors(node.inputs, i)
        size = types[tensors[0]].size
        total += size
        results = dict(zip(step.results, [node.outputs[r * n + i] for r in range(len(step.results))], strict=True))
        rows.append(size)
        piece = ITEMSIZE[dtype] if n == 1 else 0
        for role, v in zip(step.roles, tensors, strict=True):
            taken = inplace and role in results
            rows.append(Out(results[role], piece=piece) if taken else In(v, piece=piece))
        rows += [Out(v, piece=piece) for v in results.values() if not inplace]
    args: list[Arg] = [Listing(tuple(rows)), n, *(In(v) for v in scalars if v)]
    return Call(_kernel(step, dtype, present, inplace), total, tuple(args))


@cache
def _kernel(step: Step, dtype: str, present: tuple[bool, ...], inplace: bool) -> Kernel:
    """The loop for a step's formula: over variables, whose sizes and addresses are rows of words, and elements."""
    b = Builder()
    scalars = [
        b.input(name, TensorType(scalar_dtype(name, dtype))) if p else ""
        for name, p in zip(step.scalars, present, strict=True)
    ]
    tensors = [b.input(f"{role}_", TensorType(dtype, (2,))) for role in step.roles]
    results = list(step.element(b, scalars, tensors))
    graph = b.build()
    group = Group(list(graph.nodes), (2,))
    size = ITEMSIZE[dtype]
    given = [v for v in scalars if v]
    names = {v: f"s{i}" for i, v in enumerate(given)} | {v: f"x{i}" for i, v in enumerate(tensors)}
    body, constants = formulas(group, graph.types, graph.consts, names)
    local = {n.outputs[0]: f"t{i}" for i, n in enumerate(group.nodes)}
    outs = [f"x{step.roles.index(role)}" if inplace else f"y{i}" for i, role in enumerate(step.results)]
    width = 1 + len(tensors) + (0 if inplace else len(results))
    name = step.op.rpartition(".")[2].removesuffix("Step").lower() + "_step"
    lines = [f"def {name}(lo, hi, rows, count{''.join(f', s{i}' for i in range(len(given)))}):"]
    lines += [f"    s{i}v = p_{b.type(v).dtype}(s{i}, {i + 1})[0]" for i, v in enumerate(given)]
    # old values that stay where they are take no work
    skips = inplace and present[step.scalars.index(DUE)]
    variables = f"count if {names[scalars[-1]]}v else 0" if skips else "count"
    lines += ["    row = p_i64(rows, 0)", "    first = 0", f"    for q in range({variables}):"]
    lines += [f"        n = row[{width} * q]", "        a = max(lo - first, 0)", "        b = min(hi - first, n)"]
    pointers = [f"x{i}" for i in range(len(tensors))] + ([] if inplace else [f"y{i}" for i in range(len(results))])
    for k, p in enumerate(pointers):
        lines.append(f"        {p}p = p_{dtype}(row[{width} * q + {k + 1}] + {size} * a, {len(given) + 1 + k})")
    lines.append("        for j in range(b - a):")
    lines += [f"            x{i}v = x{i}p[j]" for i in range(len(tensors))]
    lines += [f"            {line}" for line in body]
    lines += [
        f"            {out}p[j] = {local.get(v, f'{names.get(v)}v')}" for out, v in zip(outs, results, strict=True)
    ]
    lines.append("        first += n")
    return kernel_from(name, "\n".join(lines) + "\n", constants)
