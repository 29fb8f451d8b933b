"""Gradient rules by operator family; importing them fills `RULES`."""

from compiler.passes.gradients.rules import (
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
