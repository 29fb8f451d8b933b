"""The rules of TrainingInfoProto (docs/IR.md and onnx.proto of ONNX), none of which any tool of ONNX checks.

Where the standard is silent or contradicts itself, this is what holds here:

* Two algorithms may both update a variable: they run in order (IR.md; a comment in onnx.proto forbids it).
* An algorithm sees the inference graph and itself, not the other algorithms: what several read, the inference graph
  must declare.
* Variables of two algorithms that have the same name are two variables, the second one called `algorithm/name`. Inputs
  of the same name are one input, so their types must agree.
* A variable may also be a graph input (its initializer being the default): it is a variable, not fed by the caller.
* One output may become the value of several variables, and an output may be an input or a variable's old value.
* An update must have the dtype and shape of the initializer.
* The initialization graph stands alone; it cannot read initializers of the model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Set
from typing import NamedTuple

import onnx
from onnx import StringStringEntryProto, TrainingInfoProto

from compiler.errors import did_you_mean
from compiler.frontend.operators import Operators
from compiler.frontend.report import Report
from compiler.frontend.structure import Scope, check_graph
from compiler.frontend.walk import defined, initializer_names
from compiler.frontend.weights import Tensors

OLDEST_IR = 7
"""The IR version that has training_info."""


class Bindings(NamedTuple):
    """What one TrainingInfoProto binds, without what is wrong: that is reported, and the rest can still be looked at.

    variables: the keys that are initializers. updates, initial: variable -> output of the algorithm, of initialization.
    """

    variables: tuple[str, ...]
    updates: dict[str, str]
    initial: dict[str, str]

    def without(self, names: Set[str]) -> Bindings:
        """The bindings of other variables than these."""
        updates, initial = ({k: v for k, v in d.items() if k not in names} for d in (self.updates, self.initial))
        return Bindings(tuple(v for v in self.variables if v not in names), updates, initial)


def check_training(model: onnx.ModelProto, tensors: Tensors, report: Report) -> list[Bindings]:
    """All violations in training_info, and the good bindings of each. The inference graph is checked elsewhere."""
    if not model.training_info:
        return []
    if model.ir_version < OLDEST_IR:
        what = f"a file of IR version {model.ir_version} has training_info, which exists since version {OLDEST_IR}"
        report.malformed(what, "ir_version", f"set ir_version to {OLDEST_IR} or more", stop=False)
    bindings = []
    for i, info in enumerate(model.training_info):
        where = f"training_info[{i}]"
        _check_algorithm(model, i, f"{where}.algorithm", tensors, report)
        initial = _check_initialization(model, info, where, tensors, report)
        updates = _check_update_binding(model, i, f"{where}.update_binding", report)
        # a variable with a bad value is one nevertheless
        keys = [b.key for b in (*info.update_binding, *info.initialization_binding)]
        dense = _dense(model, info)
        bindings.append(Bindings(tuple(dict.fromkeys(k for k in keys if k in dense)), updates, initial))
    _check_shared_inputs(model, report)
    return [b.without(report.ambiguous) for b in bindings]


def _check_algorithm(model: onnx.ModelProto, index: int, where: str, tensors: Tensors, report: Report) -> None:
    graph = model.graph
    names = {v: f"a value of node {n.name or v!r} of the inference graph" for n in graph.node for v in n.output if v}
    names |= {v: "" for v in report.undefined if v not in names}  # it is said once
    names |= dict.fromkeys(initializer_names(graph), "an initializer of the inference graph")
    names |= {v.name: "an input of the inference graph" for v in graph.input}
    hints = {
        v: f"it belongs to training_info[{i}].algorithm; declare what both read in the inference graph"
        for i, info in enumerate(model.training_info)
        for v in defined(info.algorithm)
        if i != index
    }
    operators = Operators(model, model.opset_import, tensors, report)
    check_graph(model.training_info[index].algorithm, Scope(names, hints), operators, where, report)


def _check_initialization(
    model: onnx.ModelProto, info: TrainingInfoProto, where: str, tensors: Tensors, report: Report
) -> dict[str, str]:
    """The bindings that are good."""
    graph = info.initialization
    at = f"{where}.initialization"
    for v in graph.input:
        report.malformed(f"the initialization graph has the input {v.name!r}", at, "it must have none", stop=False)
    hints = dict.fromkeys(defined(info.algorithm), "the initialization graph cannot see the algorithm's values")
    hints |= dict.fromkeys(defined(model.graph), "the initialization graph cannot see the model's values")
    check_graph(graph, Scope(hints=hints), Operators(model, model.opset_import, tensors, report), at, report)
    binding = f"{where}.initialization_binding"
    if info.initialization_binding and not graph.output:
        remedy = "add the graph, or remove the bindings"
        what = "there are bindings, but no initialization graph that has outputs"
        report.malformed(what, binding, remedy, stop=False)
        return {}
    good = _check_keys(model, info, info.initialization_binding, binding, report)
    outputs = {v.name for v in graph.output}
    for b in info.initialization_binding:
        if b.value not in outputs:
            good.pop(b.key, None)
            inside = b.value in set(defined(graph))
            remedy = "list it among the outputs of the initialization graph" if inside else "name one of its outputs"
            near = "" if inside else did_you_mean(b.value, sorted(outputs))
            what = f"{b.key!r} is bound to {b.value!r}, which is no output of initialization{near}"
            report.malformed(what, binding, remedy, stop=False)
    return good


def _check_update_binding(model: onnx.ModelProto, index: int, where: str, report: Report) -> dict[str, str]:
    """The bindings that are good."""
    info = model.training_info[index]
    good = _check_keys(model, info, info.update_binding, where, report)
    outputs = {v.name for v in (*info.algorithm.output, *model.graph.output)}
    inside = {*defined(info.algorithm), *defined(model.graph)}
    keys = {b.key for b in info.update_binding}
    for b in info.update_binding:
        if b.value not in outputs:
            good.pop(b.key, None)
            remedy = "list it among the outputs of the algorithm" if b.value in inside else "name one of its outputs"
            near = "" if b.value in inside or b.value in keys else did_you_mean(b.value, sorted(outputs))
            if b.value in keys:
                remedy = "key is the variable, value the output that it becomes: are they swapped?"
            what = f"{b.key!r} is bound to {b.value!r}, which is no output of the algorithm{near}"
            report.malformed(what, where, remedy, stop=False)
    return good


def _dense(model: onnx.ModelProto, info: TrainingInfoProto) -> set[str]:
    """What bindings may name: the initializers that can change."""
    return {t.name for t in (*model.graph.initializer, *info.algorithm.initializer)}


def _check_keys(
    model: onnx.ModelProto,
    info: TrainingInfoProto,
    bindings: Iterable[StringStringEntryProto],
    where: str,
    report: Report,
) -> dict[str, str]:
    """The bindings whose keys are good."""
    bindings = list(bindings)
    dense = _dense(model, info)
    sparse = {s.values.name for s in (*model.graph.sparse_initializer, *info.algorithm.sparse_initializer)}
    elsewhere = {t.name for other in model.training_info for t in other.algorithm.initializer}
    for key, n in Counter(b.key for b in bindings).items():
        if n > 1:
            report.malformed(f"{key!r} is bound {n} times", where, "bind each variable once", stop=False)
        if key in dense:
            continue
        remedy = "name an initializer of the inference graph or of this algorithm"
        if key in sparse:
            remedy = "make it a dense initializer: a sparse one is constant"
        elif key in elsewhere:
            remedy = "it is one of another algorithm: move it to the inference graph"
        near = "" if key in sparse or key in elsewhere else did_you_mean(key, sorted(dense))
        report.malformed(f"{key!r} is bound, but is no initializer{near}", where, remedy, stop=False)
    return {b.key: b.value for b in bindings if b.key in dense}


def _check_shared_inputs(model: onnx.ModelProto, report: Report) -> None:
    """Inputs of the same name in several algorithms are fed once."""
    seen: dict[str, tuple[int, bytes]] = {}
    for i, info in enumerate(model.training_info):
        for v in info.algorithm.input:
            kind = v.type.SerializeToString(deterministic=True)
            first, other = seen.setdefault(v.name, (i, kind))
            if kind != other:
                what = f"input {v.name!r} has another type than the input of that name of training_info[{first}]"
                remedy = "rename one of them, or give them one type"
                report.malformed(what, f"training_info[{i}].algorithm", remedy, stop=False)
                report.ambiguous.add(v.name)
