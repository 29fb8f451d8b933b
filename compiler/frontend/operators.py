"""Which operators a model uses: do they exist at the opset it imports, and can onnxc read them?"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

import onnx
from onnx import NodeProto, OperatorSetIdProto

from compiler.errors import did_you_mean
from compiler.frontend.control import check_nesting
from compiler.frontend.functions import key_of
from compiler.frontend.gradient import GRADIENT_DOMAINS, is_gradient
from compiler.frontend.report import Report
from compiler.frontend.upgrade import OLDEST_OPSET
from compiler.frontend.walk import attribute_tensors, bodies
from compiler.frontend.weights import Tensors
from compiler.ir.control import NESTING
from compiler.ir.proto import OPSETS, TRAINING_DOMAIN, op_name, schema

_ML_REMEDIES = {
    ("ai.onnx.ml", "ZipMap"): "convert the model without it (skl2onnx: options={'zipmap': False}), so that the "
    "probabilities are a tensor",
}
"""For operators of which one knows what wrote them."""


def domain_of(name: str) -> str:
    """'ai.onnx' is another name of ''."""
    return "" if name == "ai.onnx" else name


def check_imports(imports: Iterable[OperatorSetIdProto], where: str, report: Report) -> None:
    """Versions of the opsets that a model or function imports."""
    at = f"opset_import of {where}" if where else "opset_import"
    versions: dict[str, int] = {}
    for o in imports:
        domain, shown = domain_of(o.domain), o.domain or "ai.onnx"
        if versions.setdefault(domain, o.version) != o.version:
            report.malformed(
                f"{shown} is imported as version {versions[domain]} and {o.version}", at, "keep one of them"
            )
        elif o.version < 1:
            report.stop = True
            newest = OPSETS.get(domain, 1)
            remedy = f"import the version that the model is written for, at most {newest}"
            report.malformed(f"{shown} version {o.version} does not exist", at, remedy)
        elif o.version > (newest := OPSETS.get(domain, o.version)):
            report.stop = True
            what = f"{shown} version {o.version} is not known: versions up to {newest} can be read"
            remedy = "export the model for an older opset, or install a newer onnxc"
            report.unsupported(what, at, f"import version {newest}" if domain == TRAINING_DOMAIN else remedy)


def is_readable(node: NodeProto) -> bool:
    """Whether a node at the canonical opset can be read: if not, `Operators.check` has reported it."""
    domain = domain_of(node.domain)
    known = schema(op_name(domain, node.op_type)) is not None
    return known and _nests_well(node) and _is_numeric(node.op_type, OPSETS[domain], domain)


def _nests_well(node: NodeProto) -> bool:
    return node.op_type in NESTING or not any(True for _ in bodies(node))


@cache
def _is_numeric(op: str, version: int, domain: str) -> bool:
    """Whether the first output may be a tensor of numbers."""
    s = onnx.defs.get_schema(op, version, domain)
    return not s.outputs or any(t.startswith("tensor(") and t != "tensor(string)" for t in s.outputs[0].types)


@cache
def _changed(op: str, version: int) -> bool:
    """Whether an operator of an opset before the oldest that is upgraded has another form in that one."""
    now = onnx.defs.get_schema(op, OLDEST_OPSET, "") if onnx.defs.has(op, OLDEST_OPSET, "") else None
    return now is None or now.since_version > version


class Operators:
    """Checks the nodes of a graph or function by the opsets that it imports."""

    def __init__(self, model: onnx.ModelProto, imports: Iterable[OperatorSetIdProto], tensors: Tensors, report: Report):
        self.tensors = tensors
        self._functions = {(f.domain, f.name, f.overload) for f in model.functions}
        self._versions = {domain_of(o.domain): o.version for o in imports}
        self._report = report

    def check(self, node: NodeProto, at: str) -> None:
        """Report a node whose operator is not imported, not known, or not supported, or whose tensors are malformed."""
        domain = domain_of(node.domain)
        for t in attribute_tensors(node):
            self.tensors.weight(t, at)
        if domain == TRAINING_DOMAIN and node.op_type == "GraphCall":
            what = "GraphCall is of ONNX 1.7, whose training graphs were not joined with the inference graph"
            remedy = "use the inference graph's tensors by name instead (ONNX 1.8 and later)"
            self._report.unsupported(what, at, remedy)
            return
        if not self._is_imported(domain):
            shown = domain or "ai.onnx"
            newest = f" with version {OPSETS[domain]}" if domain == TRAINING_DOMAIN else ""
            remedy = f"add the domain {shown!r}{newest} to opset_import"
            what = f"{node.op_type} is of domain {shown!r}, which is not imported"
            self._report.malformed(what, at, remedy, stop=domain not in OPSETS or domain == "")
        elif key_of(node) not in self._functions and not is_gradient(node):
            self._check_known(node, domain, at)

    def _is_imported(self, domain: str) -> bool:
        if domain in GRADIENT_DOMAINS:
            return any(d in self._versions for d in GRADIENT_DOMAINS)
        return domain in self._versions

    def _check_known(self, node: NodeProto, domain: str, at: str) -> None:
        op, report = node.op_type, self._report
        if domain not in OPSETS:
            what = f"operator {op} of domain {domain!r} is not known"
            remedy = "define it as a model-local function of standard operators, or remove it"
            report.unsupported(what, at, _ML_REMEDIES.get((domain, op), remedy))
            return
        version = min(self._versions[domain], OPSETS[domain])
        if version < 1:
            return  # reported with the imports
        if not onnx.defs.has(op, version, domain):
            newest = onnx.defs.has(op, OPSETS[domain], domain)
            what = f"there is no operator {op!r} in {domain or 'ai.onnx'} version {version}"
            names = (s.name for s in onnx.defs.get_all_schemas() if s.domain == domain) if not newest else ()
            what += did_you_mean(op, names)
            report.malformed(what, at, "import a newer opset" if newest else "check its name and domain", stop=False)
            return
        if domain == "" and version < OLDEST_OPSET and _changed(op, version):
            report.stop = True  # the nodes must not be taken for those of a later opset
            what = f"{op} of ai.onnx version {version} is too old: versions from {OLDEST_OPSET} on can be read"
            report.unsupported(what, at, "upgrade the model with onnx.version_converter, or export it again")
        elif not _nests_well(node):
            report.unsupported(f"operator {op} is not supported", at, "unroll it, or compute its result outside")
        elif not _is_numeric(op, version, domain):
            report.unsupported(f"operator {op} computes no numeric tensor", at, "compute its result outside")
        elif domain == "" and op in NESTING:
            check_nesting(node, version, at, report)
        elif (
            domain == "" and op == "Constant" and not (len(node.output) == len(node.attribute) == 1 and node.output[0])
        ):
            report.malformed("a Constant needs one attribute, its value, and one output", at, "give it these")
