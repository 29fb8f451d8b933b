"""The text of a step: complete for a reader, and each kernel under the name it is called by."""

from __future__ import annotations

import ast
import re

import numpy as np

from compiler.codegen.emit import PIECE, emit
from compiler.codegen.plan import make_plan
from compiler.ir.builder import Builder
from compiler.ir.graph import Graph
from compiler.ir.types import TensorType


def source(g: Graph) -> str:
    return emit(make_plan(g)).source


def network() -> Graph:
    """Two products, two sums by kernels of one name, a label to check, a constant in a loop."""
    b = Builder("network")
    x, label = b.input("x", TensorType("f32", (4, 3))), b.input("label", TensorType("i64", (4,)))
    w, v = b.input("w", TensorType("f32", (3, 5))), b.input("v", TensorType("f64", (3, 5)))
    y = b.op("Relu", b.op("MatMul", x, w))
    b.output("loss", b.op("SoftmaxCrossEntropyLoss", y, label))
    b.output("sum", b.op("ReduceSum", y, b.ints([1])))
    b.output("mean", b.op("ReduceMean", y, b.ints([1])))
    b.output("z", b.op("MatMul", b.op("Cast", x, to=11), v))
    return b.build()


def test_every_kernel_that_is_called_is_shown_once() -> None:
    text = source(network())
    called = re.findall(r"^ +(\w+)\((?:table \+ \d+|table), thread, threads\)$", text, re.MULTILINE)
    defined = [f.name for f in ast.parse(text).body if isinstance(f, ast.FunctionDef)]
    told = re.findall(r"^# (\w+)\(lo, hi, .*\)\n#     of compiler\.codegen\.kernels\.", text, re.MULTILINE)
    assert sorted([*defined, *told]) == sorted({*called, "step"})
    assert {"reduce_rows", "reduce_rows_2"} <= set(defined)
    assert {"small_gemm", "small_gemm_2"} <= set(told)
    assert {f for f in defined if f.startswith("part")} == {"part0", "part1"}
    assert "pass" not in text.split()
    assert "# c0 = 0.0\ndef loop_relu" in text


def test_functions_of_many_strips_are_cut() -> None:
    """LLVM's time grows faster than the length of a function."""
    b = Builder("deep")
    y, w = b.input("x", TensorType("f32", (1024, 64))), b.input("w", TensorType("f32", (64, 64)))
    for _ in range(PIECE):
        y = b.op("Relu", b.op("MatMul", y, w))
    b.output("y", y)
    functions = re.split(r"^def ", source(b.build()), flags=re.MULTILINE)
    called = [len(re.findall(r"_part\(table", f)) for f in functions if f.startswith("part")]
    assert sum(called) > 1.2 * PIECE
    assert max(called) < 1.2 * PIECE


def test_long_nodes_are_comments_of_several_lines() -> None:
    b = Builder("long")
    names = [b.input(f"a_rather_long_name_{i}", TensorType("f32", (2,))) for i in range(20)]
    b.output("y", b.op("Sum", *names, name="y"))
    lines = [line for line in source(b.build()).splitlines() if line.startswith("    #")]
    assert lines[0].startswith("    # y: f32[2] = Sum(a_rather_long_name_0, ")
    assert lines[-1].endswith("a_rather_long_name_19)")
    assert len(lines) > 3
    assert max(map(len, lines)) <= 120


def test_empty_branches() -> None:
    then, other = Builder("then"), Builder("other")
    x = TensorType("f32", (2,))
    then.output("y", then.op("Neg", then.capture("x", x)))
    other.capture("x", x)
    other.output("y", other.const(np.zeros(2, np.float32)))
    b = Builder("g")
    b.input("x", x)
    condition = b.input("condition", TensorType("bool", ()))
    (y,) = b.add(
        "If", [condition], {"then_branch": then.build(), "else_branch": other.build()}, outputs=["y"], captures=["x"]
    )
    b.output("y", y)
    text = source(b.build())
    compile(text, "source", "exec")
    assert "if u8(" in text
    assert "pass" not in text.split()
