"""If, Loop and Scan.

The gradient of an If is an If on the same condition, whose branches compute their branch again and differentiate it.
The gradient of a Loop or Scan is a Scan from the last iteration to the first (`compiler.passes.gradients.iteration`).
"""

from __future__ import annotations

from collections.abc import Sequence

from compiler.ir.bounded import complete
from compiler.ir.builder import Builder
from compiler.ir.control import BRANCHES, iterated, scan_length, trip_count
from compiler.ir.graph import Graph, Node
from compiler.passes.gradients.iteration import differentiate
from compiler.passes.gradients.nested import Pulled, ancestors, pulled
from compiler.passes.gradients.rule import Call, gradient
from compiler.passes.gradients.value import Value

MOST_ITERATIONS = 1_000_000
"""A Loop that ends by its condition is differentiated up to its trip count; one beyond this is meant as no limit."""


# --- If ----------------------------------------------------------------------------------------------------
@gradient("If")
def branches(r: Call) -> None:
    """By what the branches capture: each branch's own gradient, 0 where it does not use a value."""
    node, first = r.node, len(r.node.inputs)
    seeded = [i for i, dy in enumerate(r.gradients) if dy is not None]
    wanted = [k for k in range(len(node.captures)) if r.wants(first + k)]
    bodies: list[Graph] = [node.attrs[name] for name in BRANCHES]
    both = [pulled(body, seeded, [body.captures[k] for k in wanted]) for body in bodies]
    used = [k for k in wanted if any(body.captures[k] in p.gradients for body, p in zip(bodies, both, strict=True))]
    if not used:
        return
    attrs = {
        name: _gradient_branch(body, p, [body.captures[k] for k in used])
        for name, body, p in zip(BRANCHES, bodies, both, strict=True)
    }
    arriving = [dy.name for dy in r.gradients if dy is not None]
    for k, v in zip(used, r.b.add("If", node.inputs, attrs, len(used), [*node.captures, *arriving]), strict=True):
        r.give(first + k, Value(r.b, v))


def _gradient_branch(body: Graph, p: Pulled, xs: Sequence[str]) -> Graph:
    """A branch that captures what `body` does, then the gradients of the If's outputs, and gives those of xs."""
    b = Builder(f"{body.name}.gradient")
    names = {v: b.capture(v, p.graph.type(v)) for v in (*body.captures, *p.seeds.values())}
    names.update((v, b.const(t, v)) for v, t in p.graph.consts.items())
    for node in ancestors(p.graph, [p.gradients[x] for x in xs if x in p.gradients]):
        b.copy(node, names, p.graph)
    for i, x in enumerate(xs):
        d = names[p.gradients[x]] if x in p.gradients else b.full(0, b.type(names[x]).slope)
        b.output(f"d{i}", b.op("Identity", d) if b.producer(d) is None else d)
    return b.build()


# --- Loop and Scan -----------------------------------------------------------------------------------------
def _complete(b: Builder, node: Node) -> Sequence[str] | None:
    """A Loop that ends by its condition as one that makes all iterations, but computes nothing beyond the end."""
    if node.op != "Loop" or trip_count(node, b.known) is not None:
        return None
    limit = b.known(node.inputs[0]) if node.inputs[0] else None
    if limit is None or limit.item() > MOST_ITERATIONS:
        return None
    new = complete(b, node, int(limit.item()))
    return [new[v] if v else "" for v in node.outputs]


@gradient("Loop", "Scan", form=_complete)
def iteration(r: Call) -> None:
    """By the initial values, what is scanned, and what the body captures."""
    count = trip_count(r.node, r.b.known) if r.node.op == "Loop" else scan_length(r.node, r.b.type)
    if count is None:
        limit = r.node.inputs[0]
        other = (
            f", or make {limit!r}, its trip count, constant (static=...)" if limit and r.b.known(limit) is None else ""
        )
        remedy = f"bound the Loop: max_trip=...{other}; its condition may still end it before"
        r.refuse("the number of its iterations is not bounded at compile time", remedy)
    differentiate(r, iterated(r.node), count)


@gradient("onnxc.Checked")
def checked(r: Call) -> None:
    """Of a value that is passed on, and stays checked in the forward computation."""
    r.give(0, r.dy)
