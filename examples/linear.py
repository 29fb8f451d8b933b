"""Writes linear.onnx, linear regression with everything written out: `python examples/linear.py [OUTDIR]`.

Without OUTDIR it goes into a new temporary folder; the path is printed.

The smallest training model of practical use: y = x W + b, half the mean squared error, gradient descent in plain
arithmetic. It shows what the training form leaves to the author:

* the loss and the update are ordinary operators, only Gradient is special;
* the learning rate is an input with a default value: a step may be given another one;
* a variable changes only by its binding (name of the variable, name of the output), after the whole step is done,
  so `loss` and `b.next` are those of the old `W`;
* the iteration counter is a variable like any other, and the initialization sets it back.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FEATURES = 3


def build() -> onnx.ModelProto:
    """The training model: `x` f32[N,3] -> `y` f32[N,1]; a step takes `target` f32[N,1] as well and gives `loss`."""
    inference = helper.make_graph(
        [helper.make_node("MatMul", ["x", "W"], ["xW"]), helper.make_node("Add", ["xW", "b"], ["y"])],
        "linear",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", FEATURES])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 1])],
        [
            numpy_helper.from_array(np.zeros((FEATURES, 1), np.float32), "W"),
            numpy_helper.from_array(np.zeros(1, np.float32), "b"),
        ],
    )
    algorithm = helper.make_graph(
        [
            helper.make_node("Sub", ["y", "target"], ["error"]),
            helper.make_node("Mul", ["error", "error"], ["squares"]),
            helper.make_node("ReduceMean", ["squares"], ["mean"], keepdims=0),
            helper.make_node("Mul", ["half", "mean"], ["loss"]),
            helper.make_node(
                "Gradient",
                ["W", "b", "x", "target"],
                ["W.gradient", "b.gradient"],
                domain="ai.onnx.preview.training",
                xs=["W", "b"],
                zs=["x", "target"],
                y="loss",
            ),
            helper.make_node("Mul", ["learning_rate", "W.gradient"], ["W.change"]),
            helper.make_node("Sub", ["W", "W.change"], ["W.next"]),
            helper.make_node("Mul", ["learning_rate", "b.gradient"], ["b.change"]),
            helper.make_node("Sub", ["b", "b.change"], ["b.next"]),
            helper.make_node("Add", ["iteration", "one"], ["iteration.next"]),
        ],
        "gradient_descent",
        [
            helper.make_tensor_value_info("target", TensorProto.FLOAT, ["N", 1]),
            helper.make_tensor_value_info("learning_rate", TensorProto.FLOAT, []),
        ],
        [
            helper.make_tensor_value_info("loss", TensorProto.FLOAT, []),
            helper.make_tensor_value_info("W.next", TensorProto.FLOAT, [FEATURES, 1]),
            helper.make_tensor_value_info("b.next", TensorProto.FLOAT, [1]),
            helper.make_tensor_value_info("iteration.next", TensorProto.INT64, []),
        ],
        [
            numpy_helper.from_array(np.array(0.1, np.float32), "learning_rate"),  # also an input: the default
            numpy_helper.from_array(np.array(0.5, np.float32), "half"),
            numpy_helper.from_array(np.array(0, np.int64), "iteration"),
            numpy_helper.from_array(np.array(1, np.int64), "one"),
        ],
    )
    initialization = helper.make_graph(
        [
            helper.make_node("RandomUniform", [], ["W.start"], shape=[FEATURES, 1], low=-1.0, high=1.0),
            helper.make_node("Constant", [], ["b.start"], value_floats=[0.0]),
            helper.make_node("Constant", [], ["iteration.start"], value_int=0),
        ],
        "start",
        [],
        [
            helper.make_tensor_value_info("W.start", TensorProto.FLOAT, [FEATURES, 1]),
            helper.make_tensor_value_info("b.start", TensorProto.FLOAT, [1]),
            helper.make_tensor_value_info("iteration.start", TensorProto.INT64, []),
        ],
    )
    model = helper.make_model(
        inference,
        opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid("ai.onnx.preview.training", 1)],
        ir_version=10,
        producer_name="onnxc examples",
    )
    variables = ["W", "b", "iteration"]
    model.training_info.append(
        helper.make_training_info(
            algorithm,
            [(name, f"{name}.next") for name in variables],
            initialization,
            [(name, f"{name}.start") for name in variables],
        )
    )
    return model


def main() -> None:
    """Writes linear.onnx into the folder that the command line names, or else a new one."""
    path = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="onnxc-")) / "linear.onnx"
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(build(), path)
    print(path)


if __name__ == "__main__":
    main()
