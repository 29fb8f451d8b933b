"""Sums over steps: what gradient accumulation adds a product to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from compiler.ir.bodies import internal
from compiler.ir.builder import Builder
from compiler.ir.graph import Attr
from compiler.ir.infer import InferenceError
from compiler.ir.types import numpy_dtype


@internal("AddProduct")
def add_product(b: Builder, inputs: Sequence[str], attrs: Mapping[str, Attr]) -> Sequence[str]:
    """AddProduct(A, B, C, anew): Gemm(A, B, C), or Gemm(A, B) if the boolean `anew`. C has the type of the result."""
    left, right, total, anew = inputs
    if b.type(anew).size != 1 or b.type(anew).dtype != "bool":
        raise InferenceError(f"AddProduct with `anew` of type {b.type(anew)}, which is no boolean")
    zero = b.const(np.zeros((), numpy_dtype(b.type(total).dtype)))
    kept = b.op("Where", b.op("Reshape", anew, b.ints([])) if b.shape(anew) else anew, zero, total)
    result = b.add("Gemm", [left, right, kept], dict(attrs), ["sum"])[0]
    if b.type(result) != b.type(total):
        raise InferenceError(f"AddProduct of a product of type {b.type(result)} and a sum of type {b.type(total)}")
    return [result]
