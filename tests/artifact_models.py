"""Models and C programs for the tests of artifacts."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

HOSTILE = (
    "w",
    'x"); import os #',
    "a/b:0",
    "a.b.0",
    "A.B.0",
    "*/ int evil(void) { return 1; } /*",
    "ünï ☃",
    "??/",
    "line\nbreak\\",
    "%s%n",
    "__metadata__",
    "input_images",
    "x" * 300,
    "x" * 300 + "y",
)
"""Names of variables that must not mean anything to C, to a comment, to JSON or to a file system."""


def named(names: Sequence[str] = HOSTILE, factor: float = 0.5) -> onnx.ModelProto:
    """A model with a variable f32[3] of each name: a step multiplies the k-th by `factor` and adds k; `total` is the
    sum of the old values times the input `in put`."""
    start = [numpy_helper.from_array(np.full(3, k + 1, np.float32), n) for k, n in enumerate(names)]
    inference = helper.make_graph(
        [helper.make_node("Sum", [*names], ["all"]), helper.make_node("Mul", ["all", "in put"], ["total"])],
        "named */",
        [helper.make_tensor_value_info("in put", TensorProto.FLOAT, [3])],
        [helper.make_tensor_value_info("total", TensorProto.FLOAT, [3])],
        start,
    )
    nodes, constants = [], [numpy_helper.from_array(np.array(factor, np.float32), "factor")]
    for k, n in enumerate(names):
        constants.append(numpy_helper.from_array(np.array(k, np.float32), f"k{k}"))
        nodes.append(helper.make_node("Mul", [n, "factor"], [f"m{k}"]))
        nodes.append(helper.make_node("Add", [f"m{k}", f"k{k}"], [f"n{k}"]))
    outputs = [helper.make_tensor_value_info(f"n{k}", TensorProto.FLOAT, [3]) for k in range(len(names))]
    algorithm = helper.make_graph(nodes, "step", [], outputs, constants)
    model = helper.make_model(inference, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    update = [(n, f"n{k}") for k, n in enumerate(names)]
    model.training_info.append(helper.make_training_info(algorithm, update, None, None))
    return model


TYPES = (
    "float", "double", "float16", "bfloat16", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "bool",
)  # fmt: skip


def swapped() -> onnx.ModelProto:
    """For each element type two variables [2, 2], which a step swaps; inference gives the first of each."""
    start, outputs, update = [], [], []
    for k, t in enumerate(TYPES):
        number = TensorProto.DataType.Value(t.upper())
        for which in "ab":
            values = (
                np.full((2, 2), (k + (which == "b")) % 2) if t == "bool" else np.full((2, 2), k + 100 * (which == "b"))
            )
            array = values.astype(helper.tensor_dtype_to_np_dtype(number))
            start.append(numpy_helper.from_array(array, f"{t}.{which}"))
        outputs.append(helper.make_tensor_value_info(f"{t}.out", number, [2, 2]))
        update += [(f"{t}.a", f"{t}.b"), (f"{t}.b", f"{t}.a")]
    nodes = [helper.make_node("Identity", [f"{t}.a"], [f"{t}.out"]) for t in TYPES]
    inference = helper.make_graph(nodes, "swapped", [], outputs, start)
    model = helper.make_model(inference, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    renamed = [(v, f"{new}.next") for v, new in update]
    moves = [helper.make_node("Identity", [new], [f"{new}.next"]) for _, new in update]
    shapes = [
        helper.make_tensor_value_info(f"{t}.{w}.next", TensorProto.DataType.Value(t.upper()), [2, 2])
        for t in TYPES
        for w in "ab"
    ]
    algorithm = helper.make_graph(moves, "swap", [], shapes)
    model.training_info.append(helper.make_training_info(algorithm, renamed, None, None))
    return model


def inference_only() -> onnx.ModelProto:
    """y = x + the constant 0 1 2 3, without any state."""
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "c"], ["y"])],
        "plain",
        [helper.make_tensor_value_info("x", TensorProto.DOUBLE, ["N", 4])],
        [helper.make_tensor_value_info("y", TensorProto.DOUBLE, ["N", 4])],
        [numpy_helper.from_array(np.arange(4.0), "c")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


STRICT = ["-std=c99", "-O1", "-Wall", "-Wextra", "-Werror", "-pedantic", "-Wno-overlength-strings"]


def compile_c(source: str | Path, folder: Path, name: str, *options: str, scratch: Path) -> Path:
    """A program from C text or a C file, linked with the library of an artifact."""
    if isinstance(source, str):
        path = scratch / "main.c"
        path.write_text(source, encoding="utf-8")
        source = path
    program = scratch / "program"
    command = ["cc", *STRICT, f"-I{folder}", *options, str(source), "-o", str(program), f"-L{folder}", f"-l{name}"]
    subprocess.run([*command, f"-Wl,-rpath,{folder}"], check=True, env={**os.environ, "LC_ALL": "C"})
    return program


def output_of(program: Path, *arguments: str | Path) -> str:
    """What a program prints; it must succeed."""
    done = subprocess.run([str(program), *map(str, arguments)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{done.returncode}: {done.stdout}{done.stderr}"
    return done.stdout


def fnv(arrays: Sequence[np.ndarray]) -> int:
    """The checksum of examples/digits.c."""
    value = 14695981039346656037
    for byte in b"".join(a.tobytes() for a in arrays):
        value = (value ^ byte) * 1099511628211 % 2**64
    return value


class Xorshift:
    """The random numbers of examples/digits.c."""

    def __init__(self, state: int) -> None:
        self.state = state

    def __call__(self) -> int:
        x = self.state
        x ^= x << 13 & (2**64 - 1)
        x ^= x >> 7
        x ^= x << 17 & (2**64 - 1)
        self.state = x
        return x

    def shuffle(self, order: list[int]) -> None:
        """As the C program does it."""
        for i in range(len(order) - 1, 0, -1):
            j = self() % (i + 1)
            order[i], order[j] = order[j], order[i]
