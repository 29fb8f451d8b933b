"""What code generation can run: asked by passes, which then expand the rest into it."""

from __future__ import annotations

from collections.abc import Sequence

import compiler.codegen.kernels  # noqa: F401  (fills LOWERINGS)
from compiler.codegen.calls import LOWERINGS
from compiler.codegen.elementwise import is_elementwise
from compiler.codegen.units import VIEWS
from compiler.ir.control import NESTING
from compiler.ir.definitions.bit_cast import is_view
from compiler.ir.definitions.optimizers import STEPS
from compiler.ir.graph import Node
from compiler.ir.types import TensorType, dtype_from_onnx

WIDE = frozenset(
    {"AveragePool", "Conv", "ConvTranspose", "CumProd", "CumSum", "Gemm", "GlobalAveragePool", "GlobalLpPool"}
    | {"LayerNormalization", "LpPool", "MatMul", "NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"}
    | {
        "onnxc.AddProduct",
        "onnxc.Attention",
        "onnxc.AttentionGrad",
        "onnxc.AveragePoolGrad",
        "onnxc.BatchNorm",
        "onnxc.BatchNormGrad",
        "onnxc.ConvWeightGrad",
    }
    | {"onnxc.LayerNormGrad", "onnxc.NegativeLogLikelihoodLossGrad", "onnxc.SgdRows"}
    | {"onnxc.SoftmaxCrossEntropyLossGrad"}
)
"""Ops whose kernels compute in the type that is stored, and so have none for half precision."""

HALF = frozenset({"f16", "bf16"})


def has_kernel(node: Node, types: Sequence[TensorType | None]) -> bool:
    """Whether a node with operands of these types runs as it is (the nodes in its bodies apart)."""
    if node.op in WIDE and any(t is not None and t.dtype in HALF for t in types):
        return False
    if node.op == "BitCast" and types[0] is not None:
        return is_view(types[0].dtype, dtype_from_onnx(node.attr("to")) or "")
    if node.op in VIEWS or node.op in STEPS or node.op in LOWERINGS or node.op in NESTING:
        return True
    return is_elementwise(node, [t.dtype if t else "" for t in types])
