"""Definitions of the ops of domain onnxc, by family; importing this package registers them."""

from compiler.ir.definitions import backward, normalization, onnx_optimizers, optimizers, random

__all__ = ["backward", "normalization", "onnx_optimizers", "optimizers", "random"]
