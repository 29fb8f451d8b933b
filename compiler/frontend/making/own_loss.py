"""The user's own loss: an ONNX function or graph, whose nodes become part of the algorithm.

An input that is called like an output of the model is that output (in training form), one like an input that input. If
there is none like an output, the first of the rest is the output that the loss is on. All others become inputs of the
step: with the type that a graph declares or that the function's value_info has, else with that of the output. Where
the loss declares an output [N, 10] as [N, C], its C is 10 in these types as well. The one output is the loss: one
number, which may have axes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import onnx
from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto, ValueInfoProto
from onnx.inliner import inline_local_functions

from compiler.errors import InputError, did_you_mean
from compiler.frontend.functions import instantiate
from compiler.frontend.making.emit import Algorithm, Dims, dims_of
from compiler.frontend.making.facts import Facts
from compiler.frontend.making.loss_options import Loss
from compiler.frontend.making.losses import Read
from compiler.frontend.making.targets import Targets
from compiler.frontend.walk import all_nodes, reads
from compiler.ir.proto import element_type_name

_FLOATS = {TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16}


def own_inputs(loss: Loss, name: str, outputs: Sequence[str]) -> list[str]:
    """The outputs of the model that a loss of the user's reads. name: of the one it is on."""
    formals = _formals(loss)
    named = [v for v in formals if v in outputs]
    return named or [name]


def add_own_loss(
    a: Algorithm, facts: Facts, loss: Loss, read: Read, outputs: Mapping[str, str], targets: Targets
) -> str:
    """Nodes of a loss of the user's; a scalar of the training float.

    facts: of the model. outputs: its outputs -> their values. InputError: the loss cannot be used.
    """
    function, types = _function(loss)
    _check(a, function)
    given = {v: outputs[v] for v in function.input if v in outputs}
    others = [v for v in function.input if v not in facts.inputs]
    if not given:
        if not others:
            raise InputError("your loss has no input for an output of the model: it must read one")
        given = {others[0]: read.value}
    values = list(given.values())
    given |= {v: v for v in function.input if v in facts.inputs and v not in given}
    rest = [v for v in function.input if v not in given]
    if loss.target is not None and len(rest) != 1:
        raise InputError(
            f"target={loss.target!r} is one name, but your loss has {len(rest)} inputs to be named"
            f"{': ' if rest else ''}{', '.join(map(repr, rest))}: leave it out, and call them in your loss what they "
            "are to be called"
        )
    known: dict[str, Dims | None] = {v: facts.dims(v) for v in function.input if v in facts.inputs or v in outputs}
    if not known.keys() & outputs.keys():
        known[others[0]] = read.dims
    symbols = _symbols(types, known)
    for v in rest:
        given[v] = _target(loss, read, v, types.get(v), targets, symbols)
    call = NodeProto(op_type=function.name, domain=function.domain)
    call.input.extend(given[v] for v in function.input)
    result = a.names.fresh("own/loss")
    call.output.append(result)
    for node in instantiate(function, call, "own", a.names.fresh):
        a.add(node)
    return _scalar(a, Facts(a.behind(facts.model)), result, values)


def _scalar(a: Algorithm, facts: Facts, result: str, read: Collection[str]) -> str:
    """The result as a scalar of the training float. facts: of all nodes. read: what of the model the loss is from."""
    elem_type, dims = facts.elem_type(result), facts.dims(result)
    if elem_type not in _FLOATS | {TensorProto.UNDEFINED}:
        kind = element_type_name(elem_type)
        raise InputError(f"your loss is {kind}, which has no gradient: compute it in floating point")
    if dims is not None and any(d != 1 for d in dims):
        shape = ", ".join("?" if d is None or str(d).startswith("unk__") else str(d) for d in dims)
        raise InputError(
            f"your loss has the shape [{shape}], but a loss is one number: end it with ReduceMean or ReduceSum, "
            "keepdims = 0"
        )
    if not _has_slope(facts, result, read):
        raise InputError(
            "your loss does not depend on an output of the model by anything that has a gradient, so nothing would "
            "train: compute it from the output, by operators of floating point"
        )
    if elem_type not in (a.dtype, TensorProto.UNDEFINED):
        result = a.node("Cast", [result], "own/loss_cast", to=a.dtype)
    if dims == []:
        return a.node("Identity", [result], "loss")
    # of unknown rank: if it has more numbers, Reshape tells it
    return a.node("Reshape", [result, a.const(np.zeros(0), "scalar", TensorProto.INT64)], "loss")


def _has_slope(facts: Facts, result: str, read: Collection[str]) -> bool:
    """Whether a value is computed from others by values of floating point alone."""
    seen: set[str] = set()
    stack = [result]
    while stack:
        v = stack.pop()
        if v in seen or facts.elem_type(v) not in _FLOATS | {TensorProto.UNDEFINED}:
            continue
        if v in read:
            return True
        seen.add(v)
        stack.extend(reads(facts.producer[v]) if v in facts.producer else ())
    return False


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


def _symbols(types: Mapping[str, ValueInfoProto], known: Mapping[str, Dims | None]) -> dict[str, int | str]:
    """What symbols in declared types are in the model. known: dims of inputs of the loss that are its values."""
    symbols: dict[str, int | str] = {}
    for v, dims in known.items():
        declared = dims_of(types[v]) if v in types else None
        if dims is None or declared is None or len(dims) != len(declared):
            continue
        for said, d in zip(declared, dims, strict=True):
            if isinstance(said, str) and d is not None:
                symbols.setdefault(said, d)
    return symbols


def _target(
    loss: Loss,
    read: Read,
    name: str,
    declared: ValueInfoProto | None,
    targets: Targets,
    symbols: Mapping[str, int | str],
) -> str:
    """An input of the step. symbols: what those of the declared type are in the model."""
    elem_type = read.elem_type
    dims: Dims | None = read.dims
    if declared is not None and declared.HasField("type"):
        if not declared.type.HasField("tensor_type"):
            raise InputError(f"input {name!r} of your loss is no tensor: a step takes tensors only")
        elem_type, dims = declared.type.tensor_type.elem_type or elem_type, dims_of(declared)
        dims = None if dims is None else [symbols.get(d, d) if isinstance(d, str) else d for d in dims]
    if loss.target is None:
        return targets.own(name, read.name, elem_type, dims)
    return targets.named(loss.target, read.name, elem_type, dims)


def _check(a: Algorithm, function: FunctionProto) -> None:
    """InputError: the function is not one loss, or its operators mean another thing at the opset of the model."""
    if len(function.output) != 1:
        raise InputError(f"your loss has {len(function.output)} outputs: it must have one, the loss")
    if function.attribute:
        names = ", ".join(map(repr, function.attribute))
        raise InputError(f"your loss has attributes without a value, {names}: give them defaults (attribute_proto)")
    defined = set(function.input)
    for node in function.node:
        if missing := [v for v in reads(node) if v not in defined]:
            raise InputError(
                f"your loss reads {missing[0]!r}, which nothing in it defines{did_you_mean(missing[0], defined)}: make "
                "it one of its inputs"
            )
        defined.update(node.output)
    if function.output[0] not in defined:
        raise InputError(f"no node of your loss makes its output {function.output[0]!r}")
    _check_operators(a, function)


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
