"""Gradient rules by operator family; importing them fills `RULES`."""

from compiler.passes.gradients.rules import (
    algebra,
    control,
    convolution,
    elementwise,
    indexing,
    loss,
    matmul,
    movement,
    normalization,
    pooling,
    reduction,
    unary,
)

__all__ = [
    "algebra",
    "control",
    "convolution",
    "elementwise",
    "indexing",
    "loss",
    "matmul",
    "movement",
    "normalization",
    "pooling",
    "reduction",
    "unary",
]
