"""Values that follow from constants and shapes alone: they decide shapes, and the verifier checks them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from compiler.ir.evaluate import evaluate, is_random
from compiler.ir.graph import Node
from compiler.ir.types import AnyArray, Tensor, TensorType, numpy_dtype

Values = Callable[[str], AnyArray | None]
"""value -> its array if that is known at compile time, else None."""

KNOWN_LIMIT = 1024
"""Elements up to which a value is computed ahead: a bigger one decides no shape, and would slow inference down."""


class Known:
    """value -> its array if that is known at compile time, else None; computed when asked for, then kept.

    The three mappings may grow afterwards: a value must be defined in them before it is asked for.
    """

    def __init__(
        self, types: Mapping[str, TensorType], consts: Mapping[str, Tensor], producers: Mapping[str, Node]
    ) -> None:
        self._types, self._consts, self._producers = types, consts, producers
        self._found: dict[str, AnyArray | None] = {}

    def __call__(self, value: str) -> AnyArray | None:
        """The array of a constant (of any size) or of a derived value (up to KNOWN_LIMIT elements)."""
        if value in self._consts:
            return self._consts[value].array
        pending = [value]  # a stack instead of recursion: a chain of small nodes may be very long
        while pending:
            v = pending[-1]
            if v in self._found:
                pending.pop()
                continue
            operands = self._operands(v)
            if operands is None or any(self._found.get(u, u) is None for u in operands):
                self._found[v] = None
            elif missing := [u for u in operands if u not in self._found]:
                pending.extend(missing)
            else:
                self._compute(self._producers[v], v)
        return self._found[value]

    def _operands(self, value: str) -> list[str] | None:
        """What has to be known before `value` can be computed; None if it cannot be."""
        node = self._producers.get(value)
        if node is None or node.domain or node.bodies or is_random(node) or self._types[value].size > KNOWN_LIMIT:
            return None
        if node.op in ("Shape", "Size"):
            return []
        operands = []
        for v in node.inputs:
            if v in self._consts and v not in self._found:
                tensor = self._consts[v]
                self._found[v] = tensor.array if tensor.type.size <= KNOWN_LIMIT else None
            if v:
                operands.append(v)
        return operands

    def _compute(self, node: Node, value: str) -> None:
        if node.op == "Shape":
            shape = np.array(self._types[node.inputs[0]].shape, np.int64)
            self._found[value] = shape[node.attr("start", 0) : node.attr("end", len(shape))]
            return
        if node.op == "Size":
            self._found[value] = np.array(self._types[node.inputs[0]].size, np.int64)
            return
        try:
            with np.errstate(all="ignore"):
                results = evaluate(node, [self._found[v] if v else None for v in node.inputs])
        except Exception:  # noqa: BLE001 - the reference implementation raises anything: then the value is just not known
            results = (None,) * len(node.outputs)
        for name, a in zip(node.outputs, results, strict=True):
            t = self._types[name] if name else None
            if t is not None:
                fits = a is not None and a.shape == t.shape
                self._found[name] = a.astype(numpy_dtype(t.dtype), copy=False) if a is not None and fits else None
