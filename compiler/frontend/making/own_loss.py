"""The user's own loss: an ONNX function or graph, whose nodes become part of the algorithm.

An input that is called like an output of the model is that output (in training form), one like an input that input. If
there is none like an output, the first of the rest is the output that the loss is on. All others become inputs of the
step: with the type that a graph declares or that the function's value_info has, else with that of the output. The one
output is the loss.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import onnx
from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, ValueInfoProto
from onnx.inliner import inline_local_functions

from compiler.errors import InputError
from compiler.frontend.functions import instantiate
from compiler.frontend.making.emit import Algorithm, dims_of
from compiler.frontend.making.loss_options import Loss
from compiler.frontend.making.losses import Read
from compiler.frontend.walk import all_nodes


def own_inputs(loss: Loss, name: str, outputs: Sequence[str]) -> list[str]:
    """The outputs of the model that a loss of the user's reads. name: of the one it is on."""
    formals = _formals(loss)
    named = [v for v in formals if v in outputs]
    return named or [name]


def add_own_loss(a: Algorithm, loss: Loss, read: Read, outputs: Mapping[str, str], inputs: Collection[str]) -> str:
    """Nodes of a loss of the user's. outputs, inputs: of the model; output -> value. InputError: it cannot be used."""
    function, types = _function(loss)
    if len(function.output) != 1:
        raise InputError(f"your loss has {len(function.output)} outputs: it must have one, the loss")
    _check_operators(a, function)
    given = {v: outputs[v] for v in function.input if v in outputs}
    others = [v for v in function.input if v not in inputs]
    if not given:
        if not others:
            raise InputError("your loss has no input for an output of the model: it must read one")
        given = {others[0]: read.value}
    given |= {v: v for v in function.input if v in inputs and v not in given}
    call = NodeProto(op_type=function.name, domain=function.domain)
    for v in function.input:
        call.input.append(given[v] if v in given else _target(a, loss, read, v, types))
    result = a.names.fresh("loss")
    call.output.append(result)
    for node in instantiate(function, call, "own", a.names.fresh):
        a.add(node)
    return result


def _formals(loss: Loss) -> list[str]:
    kind = loss.kind.graph if isinstance(loss.kind, ModelProto) else loss.kind
    if isinstance(kind, GraphProto):
        fixed = {t.name for t in kind.initializer}
        return [v.name for v in kind.input if v.name not in fixed]
    assert isinstance(kind, FunctionProto)
    return list(kind.input)


def _function(loss: Loss) -> tuple[FunctionProto, dict[str, ValueInfoProto]]:
    """The loss as a function, its initializers being Constant nodes, and the declared types of its inputs."""
    kind = loss.kind
    if isinstance(kind, FunctionProto):
        return kind, {v.name: v for v in kind.value_info}
    imports: list[OperatorSetIdProto] = []
    if isinstance(kind, ModelProto):
        if kind.functions:
            kind = inline_local_functions(kind)
        imports = list(kind.opset_import)
        kind = kind.graph
    assert isinstance(kind, GraphProto)
    function = FunctionProto(name=kind.name or "loss", domain="own")
    function.input.extend(_formals(loss))
    function.output.extend(v.name for v in kind.output)
    function.opset_import.extend(imports)
    for t in kind.initializer:
        function.node.append(onnx.helper.make_node("Constant", [], [t.name], value=t))
    function.node.extend(kind.node)
    return function, {v.name: v for v in kind.input}


def _target(a: Algorithm, loss: Loss, read: Read, name: str, types: Mapping[str, ValueInfoProto]) -> str:
    declared = types.get(name)
    if declared is None:
        return a.input(loss.target or name, read.elem_type, read.dims)
    return a.input(loss.target or name, declared.type.tensor_type.elem_type, dims_of(declared))


def _check_operators(a: Algorithm, function: FunctionProto) -> None:
    """The operators must mean the same at the model's opset, which is the only one the algorithm can have."""
    version = next((o.version for o in function.opset_import if o.domain in ("", "ai.onnx")), a.opset)
    for node in all_nodes(function):
        if node.domain not in ("", "ai.onnx"):
            raise InputError(f"your loss uses {node.domain}.{node.op_type}: it may use operators of ai.onnx only")
        try:
            same = _since(node.op_type, version) == _since(node.op_type, a.opset)
        except onnx.defs.SchemaError as e:
            raise InputError(f"your loss uses {node.op_type}, which opset {a.opset} of the model does not have") from e
        if not same:
            raise InputError(
                f"your loss uses {node.op_type} of opset {version}, which is another one at opset {a.opset}: write it "
                "for the model's opset"
            )


def _since(op: str, opset: int) -> int:
    return int(onnx.defs.get_schema(op, opset, "").since_version)
