"""Training form of BatchNormalization and Dropout.

Inference and training share the inference graph's nodes, but a BatchNormalization says by an attribute which form it
has (the standard has no answer to that). So the model keeps, or gets, the inference form of both, and the algorithm has
a copy of the nodes from there on in training form, which reads the same initializers. Running statistics are variables.

A BatchNormalization whose scale and bias are frozen stays in inference form in both, and so do those inside of loops.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from typing import Any

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto

from compiler.errors import InputError, Problem, UnsupportedError
from compiler.frontend.making.arguments import checked_choice
from compiler.frontend.making.emit import Algorithm
from compiler.frontend.making.facts import Facts, attribute, int_attribute, nodes_between
from compiler.frontend.walk import all_nodes, bodies, defined, node_name, reads, where_node

BATCH_NORM = ("auto", "train", "frozen")
"""What `batch_norm` may be."""


def to_inference(model: ModelProto) -> list[str]:
    """Turn training forms into inference forms, in place; the outputs of the model that are gone with it."""
    facts = Facts(model)
    gone: set[str] = set()
    freed: set[str] = set()
    for node in model.graph.node:
        if node.op_type == "BatchNormalization" and node.domain in ("", "ai.onnx"):
            gone.update(v for v in node.output[1:] if v)
            del node.output[1:]
            kept = [a for a in node.attribute if a.name != "training_mode"]
            del node.attribute[:]
            node.attribute.extend(kept)
        elif node.op_type == "Dropout" and len(node.input) > 2 and facts.constant(node.input[2]) is not None:
            freed.update(node.input[2:])
            del node.input[2:]
    if read := sorted({v for node in model.graph.node for v in reads(node)} & gone):
        what = f"the model computes with {read[0]!r}, a statistic of a BatchNormalization in training form"
        raise UnsupportedError(Problem(what, "the graph", "export the model in evaluation mode"))
    _drop_constants(model.graph, freed)
    lost = [v.name for v in model.graph.output if v.name in gone]
    kept_outputs = [v for v in model.graph.output if v.name not in gone]
    del model.graph.output[:]
    model.graph.output.extend(kept_outputs)
    return lost


def _drop_constants(graph: GraphProto, values: Set[str]) -> None:
    """Remove Constant nodes of these values that nothing reads any more: onnxruntime warns of them."""
    unread = values - {v for node in graph.node for v in reads(node)} - {v.name for v in graph.output}
    kept = [node for node in graph.node if node.op_type != "Constant" or not unread & set(node.output)]
    del graph.node[:]
    graph.node.extend(kept)


def switched(facts: Facts, sources: Iterable[str], training: Set[str], batch_norm: str) -> list[NodeProto]:
    """The nodes that training has in another form. training: tensors that train. InputError: a wrong batch_norm."""
    checked_choice("batch_norm", batch_norm, BATCH_NORM)
    nested = in_bodies(facts, sources)
    if batch_norm == "train" and (inner := [node for node in nested if node.op_type == "BatchNormalization"]):
        raise InputError(
            f"batch_norm='train': a BatchNormalization in the body of a node cannot update its running statistics: "
            f"{', '.join(repr(node_name(node)) for node in inner)}: give batch_norm='auto', with which it keeps its "
            "inference form, or export the model without control flow"
        )
    found = []
    for node in nodes_between(facts, facts.upstream(sources)):
        if node.op_type == "BatchNormalization":
            learns = any(facts.upstream([v]) & training for v in node.input[1:3])
            spatial = int_attribute(node, "spatial", 1) == 1
            if batch_norm == "train" or (batch_norm == "auto" and learns and spatial):
                found.append(node)
        elif node.op_type == "Dropout" and len(node.input) < 3 and _ratio(node, facts) != 0:
            found.append(node)
    return found


def in_bodies(facts: Facts, sources: Iterable[str]) -> list[NodeProto]:
    """Nodes inside of If, Loop and Scan that would have a training form, but keep that of inference."""
    nodes = [
        node
        for outer in nodes_between(facts, facts.upstream(sources))
        for _, body in bodies(outer)
        for node in all_nodes(body)
    ]
    kinds = ("BatchNormalization", "Dropout")
    return [node for node in nodes if node.op_type in kinds and node.domain in ("", "ai.onnx")]


def notes_on_modes(facts: Facts, sources: Iterable[str], training: Set[str], batch_norm: str) -> list[str]:
    """What training form nodes in bodies do not get. training: tensors that train."""
    notes = []
    for node in in_bodies(facts, sources):
        kept = f"{node.op_type} {node_name(node)!r} is in the body of a node, where it keeps its inference form"
        if node.op_type == "Dropout" and len(node.input) < 3 and _ratio(node, facts) != 0:
            notes.append(f"{kept}: it drops nothing")
        elif (
            node.op_type == "BatchNormalization"
            and batch_norm == "auto"
            and not int_attribute(node, "training_mode", 0)
            and facts.upstream(node.input[1:3]) & training
        ):
            notes.append(f"{kept}: its running statistics are not updated")
    return notes


def notes_on_single_samples(facts: Facts, changed: Iterable[NodeProto]) -> list[str]:
    """What becomes of BatchNormalizations in training form that see one number of each channel. changed: the nodes."""
    notes = []
    for node in changed:
        dims = facts.dims(node.input[0])
        if node.op_type == "BatchNormalization" and dims and all(d == 1 for d in [*dims[:1], *dims[2:]]):
            notes.append(
                f"BatchNormalization {node_name(node)!r} sees one number of each channel, which is its own mean: it "
                "gives its bias, and nothing before it trains: export a symbolic batch, or give batch_norm='frozen'"
            )
    return notes


def statistics(nodes: Iterable[NodeProto], known: Set[str]) -> list[str]:
    """The running statistics of some nodes. UnsupportedError: one is computed, so that it cannot be a variable."""
    found: dict[str, None] = {}
    for node in nodes:
        if node.op_type == "BatchNormalization":
            for v in node.input[3:5]:
                if v not in known:
                    what = f"the running statistic {v!r} is no constant of the model, so training cannot update it"
                    raise UnsupportedError(Problem(what, where_node(node), "freeze it with batch_norm='frozen'"))
                found[v] = None
    return list(found)


def _ratio(node: NodeProto, facts: Facts) -> float | None:
    """Of a Dropout; None if it is not known."""
    if facts.opset < 12:
        ratio = attribute(node, "ratio", 0.5)
        return float(ratio) if isinstance(ratio, float) else 0.5
    if len(node.input) < 2 or not node.input[1]:
        return 0.5
    value = facts.constant(node.input[1])
    return None if value is None else float(value.reshape(()))


def training_copy(a: Algorithm, facts: Facts, sources: Iterable[str], changed: Iterable[NodeProto]) -> dict[str, str]:
    """Copies in the algorithm of what depends on the changed nodes: value of the inference graph -> of training.

    Running statistics are bound to their next values.
    """
    names: dict[str, str] = {}
    current: dict[str, str] = {}
    forms = {node.output[0] for node in changed}
    for node in nodes_between(facts, facts.upstream(sources)):
        if node.output[0] in forms:
            form = _batch_normalization if node.op_type == "BatchNormalization" else _dropout
            form(a, node, facts, names, current)
        elif any(v in names for v in reads(node)):
            _copy(a, node, names)
    for statistic, value in current.items():
        a.update(statistic, value)
    return names


def _copy(a: Algorithm, node: NodeProto, names: dict[str, str]) -> None:
    """A node with what it reads renamed, also where nested graphs read it."""
    copy = NodeProto()
    copy.CopyFrom(node)
    copy.name = node_name(node)
    _rename(copy, names)
    for _, body in bodies(copy):
        _rename_body(body, names)
    fresh = [a.names.fresh(f"{v}.train") if v else "" for v in node.output]
    names.update((old, new) for old, new in zip(node.output, fresh, strict=True) if old)
    del copy.output[:]
    copy.output.extend(fresh)
    a.add(copy)


def _rename(node: NodeProto, names: Mapping[str, str]) -> None:
    renamed = [names.get(v, v) for v in node.input]
    del node.input[:]
    node.input.extend(renamed)


def _rename_body(body: GraphProto, names: Mapping[str, str]) -> None:
    hidden = set(defined(body))
    outer = {old: new for old, new in names.items() if old not in hidden}
    for node in body.node:
        _rename(node, outer)
        for _, inner in bodies(node):
            _rename_body(inner, outer)
    for output in body.output:
        output.name = outer.get(output.name, output.name)


def _batch_normalization(
    a: Algorithm, node: NodeProto, facts: Facts, names: dict[str, str], current: dict[str, str]
) -> None:
    """A second use of the same statistics goes on from the first."""
    inputs = [names.get(v, v) for v in node.input]
    inputs[3:5] = [current.get(v, v) for v in node.input[3:5]]
    attributes: dict[str, Any] = {n: v for n in ("epsilon", "momentum") if (v := attribute(node, n)) is not None}
    hints = [f"{node.output[0]}.train", *(f"{v}.next" for v in node.input[3:5])]
    if facts.opset >= 14:
        outputs = a.nodes_of("BatchNormalization", inputs, hints, training_mode=1, **attributes)
    else:  # five outputs are what says that it is training
        hints += [f"{node.output[0]}.batch_mean", f"{node.output[0]}.batch_var"]
        outputs = a.nodes_of("BatchNormalization", inputs, hints, **attributes)
    names[node.output[0]] = outputs[0]
    current.update(zip(node.input[3:5], outputs[1:3], strict=True))


def _dropout(a: Algorithm, node: NodeProto, facts: Facts, names: dict[str, str], current: dict[str, str]) -> None:
    value = names.get(node.input[0], node.input[0])
    hints = [f"{v}.train" if v else "" for v in node.output]
    if facts.opset >= 12:
        ratio = node.input[1] if len(node.input) > 1 else ""
        yes = a.const(np.array(True), "training", TensorProto.BOOL)
        seed: dict[str, Any] = {n: v for n in ("seed",) if (v := attribute(node, n)) is not None}
        outputs = a.nodes_of("Dropout", [value, ratio, yes], hints, **seed)
    else:
        ratio_number = _ratio(node, facts) or 0.0
        draw = a.node("RandomUniformLike", [value], f"{node.output[0]}.draw", dtype=a.dtype)
        below = a.node("Less", [draw, a.const(ratio_number, "ratio")], f"{node.output[0]}.is_dropped")
        kept = a.node(
            "Cast", [a.node("Not", [below], f"{node.output[0]}.is_kept")], f"{node.output[0]}.kept", to=a.dtype
        )
        scaled = a.node("Mul", [value, a.const(1 / (1 - ratio_number), "scale")], f"{node.output[0]}.scaled")
        outputs = [a.node("Mul", [scaled, kept], hints[0])]
        if len(node.output) > 1 and node.output[1]:
            mask = kept if facts.opset < 10 else a.node("Not", [below], hints[1])
            outputs.append(mask)
    names.update((old, new) for old, new in zip(node.output, outputs, strict=False) if old)
