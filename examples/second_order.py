"""Writes second_order.onnx, a gradient of a gradient: `python examples/second_order.py [OUTDIR]`.

The linear model of the Gradient operator's documentation, with its names and the squared error as its loss::

    W --> Gemm --> Y --> Loss --> O
           ^              ^
           X              L

The first Gradient gives dO/dX and dO/dW, the second one differentiates dO/dW again. That is no number but has the shape
of W: what is differentiated is the sum of its elements. With n rows,

    O           = sum((X W - L)^2) / n
    dO/dW       = 2/n X' (X W - L)
    d2O/dW2     = 2/n X' X 1                          (1: ones, in the shape of W)
    d(dO/dW)/dX = 2/n ((X W - L) 1' + X 1 W')

There is no training_info: Gradient may stand in any graph.
"""

import sys
from pathlib import Path

import onnx
from onnx import TensorProto, helper

ROWS, COLUMNS = 4, 3


def build() -> onnx.ModelProto:
    """The model: X f32[4,3], W f32[3,1], L f32[4,1] -> O, dO/dX, dO/dW, d(dO/dW)/dX, d2O/dW2."""

    def gradient(y: str, outputs: list[str]) -> onnx.NodeProto:
        """The partial derivatives of `y` with respect to X and W, where it depends on L as well."""
        return helper.make_node(
            "Gradient", ["X", "W", "L"], outputs, domain="ai.onnx.preview.training", xs=["X", "W"], zs=["L"], y=y
        )

    shape_x, shape_w, shape_l = [ROWS, COLUMNS], [COLUMNS, 1], [ROWS, 1]
    graph = helper.make_graph(
        [
            helper.make_node("Gemm", ["X", "W"], ["Y"]),
            helper.make_node("Sub", ["Y", "L"], ["error"]),
            helper.make_node("Mul", ["error", "error"], ["squares"]),
            helper.make_node("ReduceMean", ["squares"], ["O"], keepdims=0),
            gradient("O", ["dO/dX", "dO/dW"]),
            gradient("dO/dW", ["d(dO/dW)/dX", "d2O/dW2"]),
        ],
        "second_order",
        [
            helper.make_tensor_value_info("X", TensorProto.FLOAT, shape_x),
            helper.make_tensor_value_info("W", TensorProto.FLOAT, shape_w),
            helper.make_tensor_value_info("L", TensorProto.FLOAT, shape_l),
        ],
        [
            helper.make_tensor_value_info("O", TensorProto.FLOAT, []),
            helper.make_tensor_value_info("dO/dX", TensorProto.FLOAT, shape_x),
            helper.make_tensor_value_info("dO/dW", TensorProto.FLOAT, shape_w),
            helper.make_tensor_value_info("d(dO/dW)/dX", TensorProto.FLOAT, shape_x),
            helper.make_tensor_value_info("d2O/dW2", TensorProto.FLOAT, shape_w),
        ],
    )
    return helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid("ai.onnx.preview.training", 1)],
        ir_version=10,
        producer_name="onnxc examples",
    )


def main() -> None:
    """Writes second_order.onnx into the folder that the command line names."""
    path = Path(sys.argv[1] if len(sys.argv) > 1 else ".") / "second_order.onnx"
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(build(), path)
    print(path)


if __name__ == "__main__":
    main()
