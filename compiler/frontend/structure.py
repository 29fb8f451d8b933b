"""The rules of ONNX that need no types: names, order, imports, functions. Nothing behind this looks at a broken graph.

ONNX's own checker stops at the first problem and never looks at training_info.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass, field

import onnx
from onnx import FunctionProto, GraphProto, NodeProto

from compiler.errors import did_you_mean
from compiler.frontend.functions import recursive
from compiler.frontend.operators import Operators, check_imports
from compiler.frontend.report import Report
from compiler.frontend.types import check_body_input, check_input
from compiler.frontend.walk import bodies, defined, initializer_names, node_name, where_node
from compiler.frontend.weights import Tensors

MAIN = "the inference graph"
"""Where something is that is in no other graph."""

OLDEST_IR = 3
"""The IR version that has opset_import."""


@dataclass
class Scope:
    """Names that exist at a point: name -> what it is, for messages; '' for one that is missing, and reported.

    hints: why a name is missing, where that is known. outer: names that may be defined again, those around a nested
    graph. function, nested: whether this is the body of a function, or a nested graph.
    """

    names: dict[str, str] = field(default_factory=dict)
    hints: Mapping[str, str] = field(default_factory=dict)
    outer: Set[str] = frozenset()
    function: bool = False
    nested: bool = False

    def inner(self) -> Scope:
        """The scope of a graph nested here."""
        return Scope(dict(self.names), self.hints, set(self.names), self.function, nested=True)

    def define(self, name: str, what: str, where: str, report: Report) -> None:
        """A name gets a meaning; reported if it has one."""
        if not name:
            report.malformed(f"{what} has no name", where or MAIN, "give it one")
        elif (other := self.names.get(name)) and name not in self.outer:
            stop = self.function or self.nested
            twice = f"the name {name!r} is defined twice: as {other} and as {what}"
            report.malformed(twice, where or MAIN, "rename one of them", stop)
            if not stop:
                report.ambiguous.add(name)
        else:
            self.names[name] = what
            self.outer = self.outer - {name} if name in self.outer else self.outer


def check_structure(model: onnx.ModelProto, tensors: Tensors, report: Report) -> None:
    """Everything but training_info."""
    _check_versions(model, report)
    check_imports(model.opset_import, "", report)
    operators = Operators(model, model.opset_import, tensors, report)
    hints = {
        v: f"it belongs to training_info[{i}].algorithm, which the inference graph cannot see"
        for i, info in enumerate(model.training_info)
        for v in defined(info.algorithm)
    }
    check_graph(model.graph, Scope(hints=hints), operators, "", report)
    _check_functions(model, tensors, report)


def _check_versions(model: onnx.ModelProto, report: Report) -> None:
    version = model.ir_version
    if version > onnx.IR_VERSION:
        what = f"the file is of IR version {version}; the installed onnx reads up to {onnx.IR_VERSION}"
        report.unsupported(what, "ir_version", "install a newer onnx, or export the model for an older one")
    elif version < OLDEST_IR:
        what = f"the file is of IR version {version}" if model.HasField("ir_version") else "the IR version is missing"
        report.malformed(what, "ir_version", f"files from version {OLDEST_IR} on can be read: export the model again")


def check_graph(
    graph: GraphProto, scope: Scope, operators: Operators, where: str, report: Report, *, nested: bool = False
) -> None:
    """A graph and those nested in it. scope: what is visible from outside; it grows by what the graph defines."""
    for i, v in enumerate(graph.input):
        scope.define(v.name, "an input" if v.name else f"input {i}", where, report)
        (check_body_input if nested else check_input)(v, where or MAIN, report)
    with_default = {v.name for v in graph.input}
    for name in initializer_names(graph):
        if name in with_default:
            with_default.remove(name)  # a default value; a second one is an error
        else:
            scope.define(name, "an initializer", where, report)
    check_nodes(graph.node, scope, operators, where, report)
    for v, n in Counter(v.name for v in graph.output).items():
        if n > 1:
            report.malformed(f"{n} outputs are called {v!r}", where or MAIN, "give each output its own name")
        if not v:
            report.malformed("an output has no name", where or MAIN, "name the value that it returns, or remove it")
        elif v not in scope.names:
            _report_no_output(v, scope, where or MAIN, report)


def check_nodes(nodes: Collection[NodeProto], scope: Scope, operators: Operators, where: str, report: Report) -> None:
    """Nodes in order: what they read exists before, what they define does not."""
    later = Counter(v for node in nodes for v in node.output if v)
    for node in nodes:
        at = where_node(node, where)
        operators.check(node, at)
        for v in dict.fromkeys(v for v in node.input if v and v not in scope.names):
            _report_missing(v, node, later, scope, at, report)
            scope.names[v] = ""  # it is said once
        for _, g in bodies(node):
            check_graph(g, scope.inner(), operators, f"a graph of {at}", report, nested=True)
            for t in g.initializer:
                operators.tensors.weight(t, f"initializer {t.name!r} of a graph of {at}")
            if g.sparse_initializer:
                report.unsupported("a nested graph has sparse initializers", at, "make them dense")
                report.stop = True
        for v in node.output:
            if v:
                scope.define(v, f"an output of node {node_name(node)!r}", at, report)


def _report_missing(v: str, node: NodeProto, later: Mapping[str, int], scope: Scope, at: str, report: Report) -> None:
    if v in node.output:
        report.malformed(f"the node reads its own output {v!r}", at, "rename the output, or read another value")
    elif later.get(v):
        report.malformed(f"{v!r} is read before a later node computes it", at, "sort the nodes, and break any cycle")
    else:
        hint = (
            f": {scope.hints[v]}"
            if v in scope.hints
            else did_you_mean(v, (k for k, what in scope.names.items() if what))
        )
        remedy = "" if v in scope.hints else "declare it as an input or initializer, or read another value"
        # When functions are inlined, it could be taken for another value of that name.
        report.malformed(f"{v!r} is read, but nothing defines it{hint}", at, remedy, stop=scope.function)
        if not scope.function:
            report.undefined.add(v)


def _report_no_output(v: str, scope: Scope, where: str, report: Report, stop: bool = False) -> None:
    what = f"nothing computes the output {v!r}{did_you_mean(v, scope.names)}"
    report.malformed(what, where, "name a value of this graph, or remove the output", stop=stop)


def _check_functions(model: onnx.ModelProto, tensors: Tensors, report: Report) -> None:
    keys = Counter((f.domain, f.name, f.overload) for f in model.functions)
    for (domain, name, _), n in keys.items():
        if n > 1:
            report.malformed(
                f"there are {n} functions {name!r} of domain {domain!r}", "functions", "remove one of them"
            )
    functions = {(f.domain, f.name, f.overload): f for f in model.functions}
    for key in recursive(functions):
        report.malformed("the function calls itself", f"function {key[1]!r}", "functions must not be recursive")
    for f in functions.values():
        _check_function(model, f, tensors, report)


def _check_function(model: onnx.ModelProto, f: FunctionProto, tensors: Tensors, report: Report) -> None:
    where = f"function {f.name!r}"
    imports = f.opset_import or model.opset_import
    check_imports(imports, where, report)
    operators = Operators(model, imports, tensors, report)
    scope = Scope(function=True)
    for v in f.input:
        scope.define(v, "an input", where, report)
    check_nodes(f.node, scope, operators, where, report)
    for v in f.output:
        if v not in scope.names:
            _report_no_output(v, scope, where, report, stop=True)
