"""Gradient rules by operator family; importing them fills `RULES`."""

from compiler.passes.gradients.rules import (
    algebra,
    attention,
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
    "attention",
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
