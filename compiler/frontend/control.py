"""If, Loop and Scan in a file: do the nested graphs fit the node; and the Scan of opset 8, which had batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import onnx
from onnx import AttributeProto, GraphProto, NodeProto, ValueInfoProto, helper

from compiler.frontend.report import Report
from compiler.frontend.walk import bodies

LAST_BATCHED_SCAN = 8
"""The last opset whose Scan took batches, and the lengths of their sequences."""

_BODIES = {"If": {"then_branch", "else_branch"}, "Loop": {"body"}, "Scan": {"body"}}


def check_nesting(node: NodeProto, opset: int, at: str, report: Report) -> None:
    """Report an If, Loop or Scan whose nested graphs do not have the inputs and outputs that it needs."""
    nested, wanted = dict(bodies(node)), _BODIES[node.op_type]
    kinds = onnx.defs.get_schema(node.op_type, opset, "").attributes
    for a in node.attribute:
        have = AttributeProto.AttributeType.Name(a.type)
        if a.name in kinds and have != (need := str(kinds[a.name].type).rpartition(".")[2]):
            report.malformed(f"attribute {a.name!r} of {node.op_type} is of kind {have}, not {need}", at)
            return
    if set(nested) != wanted:
        report.malformed(f"{node.op_type} needs the attribute {' and '.join(sorted(wanted))}, and no other graph", at)
    elif node.op_type == "If":
        _check_if(node, nested, at, report)
    else:
        _check_repeated(node, nested["body"], opset, at, report)


def _check_if(node: NodeProto, branches: Mapping[str, GraphProto], at: str, report: Report) -> None:
    if len(node.input) != 1 or not node.input[0]:
        report.malformed(f"If has {len(node.input)} inputs; it needs one, the condition", at)
    if len(node.attribute) != 2:
        report.malformed("If needs the attributes then_branch and else_branch, and no other", at)
    for name, g in branches.items():
        if g.input:
            report.malformed(f"{name} of If has inputs", at, "read values of the outer graph by their names")
        if len(g.output) != len(node.output):
            report.malformed(f"If has {len(node.output)} outputs, but its {name} {len(g.output)}", at)


def _check_repeated(node: NodeProto, body: GraphProto, opset: int, at: str, report: Report) -> None:
    """A Loop or Scan: as many operands, inputs and outputs as belong together."""
    op, given = node.op_type, list(node.input)
    batched = op == "Scan" and opset <= LAST_BATCHED_SCAN
    if batched and given and given.pop(0):
        what = "Scan of opset 8 with the input sequence_lens is not supported"
        report.unsupported(what, at, "mask the ends of the sequences, and export with opset 9 or later")
    number = next((a for a in node.attribute if a.name == "num_scan_inputs"), None)
    if number is not None and number.ref_attr_name:
        return  # the call of the function around says it: then the IR looks at the numbers
    scanned = number.i if number is not None else 0
    if op == "Scan" and not 1 <= scanned <= len(given):
        report.malformed(f"num_scan_inputs is {scanned}, of {len(given)} inputs", at)
        return
    first = 2 if op == "Loop" else 0
    if len(given) < first or "" in given[first:]:
        report.malformed(f"an input of {op} is absent", at, "only the trip count and the condition of a Loop may be")
        return
    if len(body.input) != len(given):
        what = f"the body of {op} has {len(body.input)} inputs, but {op} gives it {len(given)}"
        report.malformed(what, at, "give the body an input for each operand")
    carried = len(given) - scanned - first
    least, results = (1 if op == "Loop" else 0) + carried, len(body.output) - (1 if op == "Loop" else 0)
    if len(body.output) < least:
        report.malformed(f"the body of {op} has {len(body.output)} outputs, but needs at least {least}", at)
    elif len(node.output) > results:
        report.malformed(f"{op} has {len(node.output)} outputs, but its body gives {results}", at)
    defaults = {t.name for t in body.initializer} & {v.name for v in body.input}
    for v in sorted(defaults):
        report.malformed(f"the input {v!r} of the body of {op} has a default value", at, "remove the initializer")


def scan_by_batch(node: NodeProto, fresh: Callable[[str], str]) -> NodeProto:
    """A Scan of opset 8 without sequence_lens as a Scan over the batch, axis 0, of a Scan along the sequences.

    All operands and results of the old one have the batch as their first axis, the sequences have time as the second.
    """
    attrs = {a.name: a for a in node.attribute}
    given = list(node.input[1:])
    inner_inputs = [fresh(f"{v}/of one") for v in given]
    inner_outputs = [fresh(f"{v}/of one") if v else "" for v in node.output]
    inner = helper.make_node("Scan", inner_inputs, inner_outputs, node.name, num_scan_inputs=attrs["num_scan_inputs"].i)
    inner.attribute.append(attrs["body"])
    if "directions" in attrs:
        inner.attribute.append(_ints("scan_input_directions", list(attrs["directions"].ints)))
    kept = [i for i, v in enumerate(inner_outputs) if v]
    one = GraphProto(name="one of the batch", node=[inner])
    one.input.extend(ValueInfoProto(name=v) for v in inner_inputs)
    one.output.extend(ValueInfoProto(name=inner_outputs[i]) for i in kept)
    outer = helper.make_node("Scan", given, [node.output[i] for i in kept], node.name, num_scan_inputs=len(given))
    outer.attribute.append(AttributeProto(name="body", type=AttributeProto.GRAPH, g=one))
    return outer


def _ints(name: str, values: list[int]) -> AttributeProto:
    return AttributeProto(name=name, type=AttributeProto.INTS, ints=values)
