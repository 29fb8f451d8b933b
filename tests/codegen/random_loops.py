"""Random graphs of nested Loops, Scans and Ifs on vectors of three elements, for comparisons."""

from __future__ import annotations

import random

import numpy as np

from compiler.ir.builder import Builder
from compiler.ir.graph import Graph
from compiler.ir.types import TensorType

ROW, I64, BOOL = TensorType("f32", (3,)), TensorType("i64"), TensorType("bool")
DEEPEST = 2


def random_loops(seed: int) -> Graph:
    """Inputs: x0, x1, x2, f32[3], and n, i64[], of 2 or so; all results of two loops are outputs."""
    return _Maker(random.Random(seed)).graph()


class _Maker:
    def __init__(self, choices: random.Random):
        self.r = choices

    def graph(self) -> Graph:
        b = Builder("g")
        rows, numbers = [b.input(f"x{k}", ROW) for k in range(3)], [b.input("n", I64)]
        for _ in range(2):
            rows += self.loop(b, rows, numbers, 0)
        for k, v in enumerate(dict.fromkeys(rows[3:])):
            b.output(f"y{k}", v)
        return b.build()

    def value(self, b: Builder, rows: list[str], numbers: list[str], depth: int) -> str:
        """A new value; a nested loop or If every now and then."""
        x, y = self.r.choice(rows), self.r.choice(rows)
        match self.r.randrange(9):
            case 0:
                return b.op("Neg", x)
            case 1 | 2:
                return b.op("Mul", b.op("Add", x, y), b.const(np.float32(0.5)))
            case 3:
                return b.op("Softmax", x, axis=0)
            case 4 if numbers:
                return b.op("Add", x, b.op("Cast", self.r.choice(numbers), to=1))
            case 5 if depth < DEEPEST:
                return self.r.choice(self.loop(b, rows, numbers, depth))
            case 6 if depth < DEEPEST:
                return self.branch(b, rows, numbers, depth)
            case 7:
                whole = b.op("Concat", b.op("Softmax", x, axis=0), b.op("CumSum", y, b.const(np.array(0))), x, axis=0)
                return b.op("ReduceMean", b.op("Reshape", whole, b.ints((3, 3))), b.ints((0,)), keepdims=0)
        return b.op("CumSum", x, b.const(np.array(0)))

    def capture(self, b: Builder, outer: list[str], types: Builder) -> tuple[list[str], list[str]]:
        """Captures of a body: rows and numbers in it."""
        inner = [b.capture(f"captured {k}", types.type(v)) for k, v in enumerate(outer)]
        return [v for v in inner if b.type(v) == ROW], [v for v in inner if b.type(v) == I64]

    def outside(self, rows: list[str], numbers: list[str]) -> list[str]:
        return [*dict.fromkeys(self.r.choices(rows, k=2)), *numbers[:1]]

    def less(self, b: Builder, x: str, limit: float) -> str:
        return b.op("Less", b.op("ReduceSum", x, keepdims=0), b.const(np.float32(limit)))

    def branch(self, b: Builder, rows: list[str], numbers: list[str], depth: int) -> str:
        captures, bodies = self.outside(rows, numbers), {}
        condition = self.less(b, self.r.choice(rows), self.r.choice([-1, 0, 1]))
        for name in ("then_branch", "else_branch"):
            body = Builder(name)
            inner, own = self.capture(body, captures, b)
            for _ in range(self.r.randrange(3)):
                inner.append(self.value(body, inner, own, depth + 1))
            body.output("y", self.r.choice(inner))
            bodies[name] = body.build()
        return b.add("If", [condition], bodies, 1, captures)[0]

    def loop(self, b: Builder, rows: list[str], numbers: list[str], depth: int) -> list[str]:
        """Final values, and sums of what is stacked."""
        scans = self.r.random() < 0.5
        captures, body, length = self.outside(rows, numbers), Builder("body"), self.r.randrange(5)
        number, go = ("", "") if scans else (body.input("i", I64), body.input("go", BOOL))
        state = [body.input(f"s{k}", ROW) for k in range(self.r.randrange(1, 4))]
        slices = [body.input(f"e{k}", ROW) for k in range(self.r.randrange(1, 3) if scans else 0)]
        captured, own = self.capture(body, captures, b)
        inner, own = [*state, *slices, *captured], own + [number] * bool(number)
        for _ in range(self.r.randrange(1, 5)):
            inner.append(self.value(body, inner, own, depth + 1))
        ends = not scans and self.r.random() < 0.4
        if not scans:
            body.output("go", self.less(body, self.r.choice(inner), 1.5) if ends else go)
        stacked = [] if ends else self.r.choices(inner, k=self.r.randrange(3))
        for k, v in enumerate([*self.r.choices(inner, k=len(state)), *stacked]):
            body.output(f"y{k}", v)
        operands, outputs = self.r.choices(rows, k=len(state)), len(state) + len(stacked)
        axes = [0] * len(stacked)
        if scans:
            axes = [self.r.choice([0, 1, -1]) for _ in stacked]
            attrs = {
                "num_scan_inputs": len(slices),
                "scan_input_axes": [self.r.choice([0, 1, -1]) for _ in slices],
                "scan_input_directions": [self.r.randrange(2) for _ in slices],
                "scan_output_axes": axes,
                "scan_output_directions": [self.r.randrange(2) for _ in stacked],
            }
            operands += [self.sequence(b, rows, axis, length) for axis in attrs["scan_input_axes"]]
            found = b.add("Scan", operands, {"body": body.build(), **attrs}, outputs, captures)
        else:
            count = b.const(np.array(length)) if not ends or not numbers else self.r.choice(numbers)
            found = b.add("Loop", [count, "", *operands], {"body": body.build()}, outputs, captures)
        sums = [
            b.op("ReduceSum", v, b.ints([axis]), keepdims=0) for v, axis in zip(found[len(state) :], axes, strict=True)
        ]
        return [*found[: len(state)], *sums]

    def sequence(self, b: Builder, rows: list[str], axis: int, length: int) -> str:
        parts = [b.op("Unsqueeze", self.r.choice(rows), b.ints([axis])) for _ in range(max(length, 1))]
        whole = b.op("Concat", *parts, axis=axis)
        return whole if length else b.op("Slice", whole, b.ints([0]), b.ints([0]), b.ints([axis]))
