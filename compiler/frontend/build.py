"""From a flat graph to the IR: nodes get static types. What fails is reported, and what depends on it passed over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from onnx import NodeProto

from compiler.errors import Problem, UnsupportedError, VerifyError
from compiler.frontend.flatten import Flat
from compiler.frontend.gradient import check_point, cut_at, is_gradient, named_by
from compiler.frontend.operators import is_readable
from compiler.frontend.report import Report
from compiler.frontend.walk import reads, where_node
from compiler.ir.builder import Builder, applied
from compiler.ir.control import NESTING
from compiler.ir.infer import NotStatic, dtype_problems
from compiler.ir.proto import TRAINING_DOMAIN, op_name
from compiler.ir.reading import read_node
from compiler.ir.types import Tensor


class Binding:
    """What a call of `Source.program` binds.

    dims: symbol -> size. static: inputs that become constants. fed: inputs with a default value that stay inputs.
    max_trip: how often a Loop of unknown length runs at most.
    """

    def __init__(self, dims: Mapping[str, int], static: Mapping[str, Tensor], fed: Set[str], max_trip: int | None):
        self.dims, self.static, self.fed, self.max_trip = dims, static, fed, max_trip

    def is_input(self, flat: Flat, name: str) -> bool:
        """Whether this graph input is one of the program (and no constant)."""
        return name not in self.static and (name not in flat.weights or name in self.fed)


class Reading:
    """Adds flat graphs to one builder, whose inputs they share by name.

    needs: the inputs whose values would have to be known at compile time; waiting: what waits for them. All that is
    really wrong goes to the report.
    """

    def __init__(self, b: Builder, binding: Binding, report: Report):
        self._b, self._binding, self._report = b, binding, report
        b.max_trip = binding.max_trip
        self._inputs: dict[str, None] = {}
        self.needs: dict[str, None] = {}
        self.waiting: list[Problem] = []
        self.assigned: Set[str] = frozenset()
        """Values that an earlier algorithm assigned to variables: for what comes, they are computed from nothing."""

    def declare(self, flats: Sequence[Flat], variables: Sequence[Mapping[str, object]]) -> None:
        """Declare the inputs of all graphs, and keep the names of the first graph's values for them."""
        b, binding = self._b, self._binding
        for flat, own in zip(flats, variables, strict=True):
            for v, t in flat.inputs.items():
                if v not in own and v not in self._inputs and binding.is_input(flat, v):
                    b.input(v, t.bind(binding.dims))
                    self._inputs[v] = None
        for flat in flats[:1]:
            b.reserve([*flat.weights, *(v for node in flat.nodes for v in node.output if v)])

    def add(self, flat: Flat, variables: Mapping[str, str]) -> dict[str, str]:
        """Add a graph; ONNX name -> value in the builder, for all that could be read.

        variables: value of each variable, by its name in this graph.
        """
        b, binding = self._b, self._binding
        names: dict[str, str] = {}
        for v in dict.fromkeys((*flat.inputs, *flat.weights)):
            if v in variables:
                names[v] = variables[v]
            elif v in flat.inputs and v in binding.static:
                names[v] = b.const(binding.static[v], v)
            elif v in flat.inputs and v in self._inputs:
                names[v] = v
            elif v in flat.weights:  # else it is an input of an initialization graph, which was reported
                names[v] = b.const(flat.weights[v].tensor, v)
        wanted = {v for node in flat.nodes if is_gradient(node) for v in named_by(node)}
        b.points.update(names[v] for v in wanted.intersection(names))
        for node in flat.nodes:
            # A node that depends on one that failed, or on an unknown operator, is passed over: that was reported.
            if not is_readable(node):
                continue
            if all(v in names for v in reads(node)):
                self._add(node, names)
            else:
                self._look_at(node, names)
            b.points.update(names[v] for v in node.output if v in wanted and v in names)
        return names

    def output(self, public: str, value: str, declared: str | None) -> None:
        """Bind an output, whose dtype must be the declared one. Declared shapes are often stale, and are not used."""
        have = self._b.type(value)
        if declared not in (None, have.dtype):
            self._report.malformed(
                f"output {public!r} is declared {declared}, but is {have}",
                f"the outputs of {self._b.name!r}",
                "declare its true type",
            )
        self._b.output(public, value)

    def _add(self, node: NodeProto, names: dict[str, str]) -> None:
        if is_gradient(node):
            node = cut_at(node, [v for v, value in names.items() if value in self.assigned])
            if not check_point(node, names, self._b, self._report, self.assigned):
                return
        local = names
        if node.domain == TRAINING_DOMAIN and not is_gradient(node):
            local = self._with_scalars(node, {v: names[v] for v in node.input if v})
        try:
            read_node(self._b, node, local)
        except NotStatic as e:
            self._not_static(node, e, names)
        except (VerifyError, UnsupportedError) as e:
            self._report.add(e)
        names.update((v, local[v]) for v in node.output if v in local)

    def _look_at(self, node: NodeProto, names: Mapping[str, str]) -> None:
        """Report what is wrong with the dtypes of a node whatever those of its operands are that do not exist."""
        if is_gradient(node) or node.op_type in NESTING:
            return
        op, b = op_name(node.domain, node.op_type), self._b
        types = [b.type(names[v]) if v in names else None for v in node.input]
        for what in dtype_problems(op, types):
            self._report.add(VerifyError(Problem(f"{applied(op, node.input, types)}: {what}", where_node(node))))

    def _with_scalars(self, node: NodeProto, names: Mapping[str, str]) -> dict[str, str]:
        """The names for an optimizer node: rate and count as scalars, which exporters write as lists of one number."""
        b, local = self._b, dict(names)
        for v in node.input[:2]:
            if v and v not in node.input[2:] and b.type(names[v]).shape == (1,):
                local[v] = b.op("Reshape", names[v], b.ints([]), name=f"{names[v]}.scalar")
        return local

    def _not_static(self, node: NodeProto, e: NotStatic, names: Mapping[str, str]) -> None:
        # operands of a node inside a nested graph are not in this builder: then all that the outer node reads counts
        operands = [v for v in e.operands if v in self._b] or [names[v] for v in reads(node)]
        roots = _roots(self._b, operands)
        what = f"an output shape of {e.node.op} depends on values that are computed at run time"
        others = [repr(v) for v in roots if v not in self._inputs]
        if roots and not others:
            self.needs.update(dict.fromkeys(roots))
            given = ", ".join(f"{v!r}: array" for v in roots)
            remedy = f"bind what decides it: static={{{given}}}"
            if e.node.op == "Loop":
                remedy += ", or bound the Loop: max_trip=..."
            self.waiting.append(Problem(what, where_node(node), remedy))
        else:
            source = f" (from {', '.join(others)})" if others else ""
            remedy = "bound the Loop: max_trip=..." if e.node.op == "Loop" else "make the shape constant"
            self._report.unsupported(what + source, where_node(node), remedy)


def _roots(b: Builder, values: Sequence[str]) -> list[str]:
    """What the unknown ones of these values are computed from: inputs, states, results of nodes without inputs."""
    roots: dict[str, None] = {}
    seen: set[str] = set()
    stack = list(reversed(values))
    while stack:
        v = stack.pop()
        if v in seen or b.known(v) is not None:
            continue
        seen.add(v)
        node = b.producer(v)
        if node is None or not node.reads:
            roots[v] = None
        else:
            stack.extend(reversed(node.reads))
    return list(roots)
