"""Writes a training model for handwritten digits, and the digits: `python examples/digits.py [OUTDIR] [--npy]`.

`digits.onnx` is a LeNet-style network in the standard training form. Its parts, by ONNX's names:

* `graph`, the inference: images -> logits;
* `training_info.algorithm`, one training step: the loss, its gradient, one Adam update of every weight, and a counter;
* `training_info.update_binding`: which output becomes the next value of which variable, once the step is done;
* `training_info.initialization` and its binding: new random weights, everything else back to zero.

`train.npz` and `test.npz` hold the real images (see data/README.md), one array for each input of the step.
"""

import math
import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

# Version 21 of the operators is old enough for every runtime of today to load the trained model.
OPSETS = [helper.make_opsetid("", 21), helper.make_opsetid("ai.onnx.preview.training", 1)]
IR_VERSION = 10

# Weights are [out, in, height, width] for a convolution and [in, out] for a dense layer.
# Pooling makes 4x4 pixels of the image's 8x8.
WEIGHTS: dict[str, tuple[int, ...]] = {
    "conv1.weight": (16, 1, 3, 3),
    "conv2.weight": (32, 16, 3, 3),
    "dense.weight": (32 * 4 * 4, 10),
}
BIASES: dict[str, tuple[int, ...]] = {"conv1.bias": (16,), "conv2.bias": (32,), "dense.bias": (10,)}
VARIABLES = WEIGHTS | BIASES

LEARNING_RATE = 0.002


def he_scale(shape: tuple[int, ...]) -> float:
    """Standard deviation that keeps the size of activations through a layer with Relu (He et al., 2015)."""
    fan_in = math.prod(shape[1:]) if len(shape) == 4 else shape[0]
    return math.sqrt(2 / fan_in)


def inference() -> onnx.GraphProto:
    """The network, images to logits. It runs on its own, and the training step builds on its tensors."""
    random = np.random.default_rng(0)
    values = {name: random.normal(0, he_scale(shape), shape) for name, shape in WEIGHTS.items()}
    values |= {name: np.zeros(shape) for name, shape in BIASES.items()}
    return helper.make_graph(
        [
            helper.make_node("Conv", ["images", "conv1.weight", "conv1.bias"], ["conv1"], "conv1", pads=[1, 1, 1, 1]),
            helper.make_node("Relu", ["conv1"], ["relu1"], "relu1"),
            helper.make_node("Conv", ["relu1", "conv2.weight", "conv2.bias"], ["conv2"], "conv2", pads=[1, 1, 1, 1]),
            helper.make_node("Relu", ["conv2"], ["relu2"], "relu2"),
            helper.make_node("MaxPool", ["relu2"], ["pool"], "pool", kernel_shape=[2, 2], strides=[2, 2]),
            helper.make_node("Flatten", ["pool"], ["features"], "flatten"),
            helper.make_node("Gemm", ["features", "dense.weight", "dense.bias"], ["logits"], "dense"),
        ],
        "digits",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, ["N", 1, 8, 8])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["N", 10])],
        [numpy_helper.from_array(values[name].astype(np.float32), name) for name in VARIABLES],
    )


def algorithm() -> onnx.GraphProto:
    """One training step. It goes on where the inference graph ends, and may use any of its tensors by name."""
    state = [numpy_helper.from_array(np.array(0, np.int64), "iteration")]
    state += [
        numpy_helper.from_array(np.zeros(shape, np.float32), f"{name}.{average}")
        for name, shape in VARIABLES.items()
        for average in ("mean", "square")
    ]
    constants = [
        numpy_helper.from_array(np.array(LEARNING_RATE, np.float32), "learning_rate"),
        numpy_helper.from_array(np.array(1, np.int64), "one"),
    ]

    def each(suffix: str) -> list[str]:
        """One name for each variable."""
        return [f"{name}{suffix}" for name in VARIABLES]

    nodes = [
        helper.make_node("SoftmaxCrossEntropyLoss", ["logits", "labels"], ["loss"], "loss"),
        # xs: with respect to what; zs: what else y depends on. The inputs are the values of both, in this order.
        helper.make_node(
            "Gradient",
            [*VARIABLES, "images", "labels"],
            each(".gradient"),
            "gradient",
            domain="ai.onnx.preview.training",
            xs=list(VARIABLES),
            zs=["images", "labels"],
            y="loss",
        ),
        # Adam corrects the bias of its averages by the number of this step, 1 for the first: so count before it.
        helper.make_node("Add", ["iteration", "one"], ["iteration.next"], "count"),
        # Inputs and outputs are grouped by what they are: all variables, all gradients, ...
        helper.make_node(
            "Adam",
            ["learning_rate", "iteration.next", *each(""), *each(".gradient"), *each(".mean"), *each(".square")],
            [*each(".next"), *each(".mean.next"), *each(".square.next")],
            "adam",
            domain="ai.onnx.preview.training",
            alpha=0.9,
            beta=0.999,
            epsilon=1e-7,
        ),
    ]
    # The loss is for the user, the rest for the bindings.
    outputs = [
        helper.make_tensor_value_info("loss", TensorProto.FLOAT, []),
        helper.make_tensor_value_info("iteration.next", TensorProto.INT64, []),
    ]
    outputs += [
        helper.make_tensor_value_info(f"{name}{kind}.next", TensorProto.FLOAT, shape)
        for name, shape in VARIABLES.items()
        for kind in ("", ".mean", ".square")
    ]
    return helper.make_graph(
        nodes,
        "training_step",
        [helper.make_tensor_value_info("labels", TensorProto.INT64, ["N"])],
        outputs,
        state + constants,
    )


def initialization() -> tuple[onnx.GraphProto, list[tuple[str, str]]]:
    """The graph that draws a new start, and its binding: which output each variable gets."""
    nodes, outputs, binding = [], [], []
    for name, shape in VARIABLES.items():
        start = zeros = f"{name}.zeros"
        value = numpy_helper.from_array(np.zeros(shape, np.float32))
        nodes.append(helper.make_node("Constant", [], [zeros], value=value))
        outputs.append(helper.make_tensor_value_info(zeros, TensorProto.FLOAT, shape))
        if name in WEIGHTS:
            start = f"{name}.draw"
            nodes.append(helper.make_node("RandomNormal", [], [start], shape=shape, scale=he_scale(shape)))
            outputs.append(helper.make_tensor_value_info(start, TensorProto.FLOAT, shape))
        binding += [(name, start), (f"{name}.mean", zeros), (f"{name}.square", zeros)]
    nodes.append(helper.make_node("Constant", [], ["iteration.zero"], value_int=0))
    outputs.append(helper.make_tensor_value_info("iteration.zero", TensorProto.INT64, []))
    binding.append(("iteration", "iteration.zero"))
    return helper.make_graph(nodes, "initialization", [], outputs), binding


def build() -> onnx.ModelProto:
    """The training model."""
    step = algorithm()
    update_binding = [(output.name.removesuffix(".next"), output.name) for output in step.output[1:]]
    start, initialization_binding = initialization()
    model = helper.make_model(inference(), opset_imports=OPSETS, ir_version=IR_VERSION, producer_name="onnxc examples")
    model.training_info.append(helper.make_training_info(step, update_binding, start, initialization_binding))
    return model


def data() -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Training and test set: images f32[N,1,8,8] from 0 to 1 and labels i64[N]. Every seventh image is for testing."""
    with np.load(Path(__file__).parent / "data" / "digits.npz") as file:
        images = file["images"].astype(np.float32)[:, np.newaxis] / 16
        labels = file["labels"].astype(np.int64)
    test = np.arange(len(labels)) % 7 == 3
    return (
        {"images": images[~test], "labels": labels[~test]},
        {"images": images[test], "labels": labels[test]},
    )


def main() -> None:
    """Writes digits.onnx, train.npz and test.npz into the folder that the command line names.

    With --npy each array also goes into a file of its own, as train_images.npy, which a C program reads easily.
    """
    arguments = [a for a in sys.argv[1:] if a != "--npy"]
    folder = Path(arguments[0] if arguments else ".")
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(build(), folder / "digits.onnx")
    train, test = data()
    np.savez_compressed(folder / "train.npz", images=train["images"], labels=train["labels"])
    np.savez_compressed(folder / "test.npz", images=test["images"], labels=test["labels"])
    if "--npy" in sys.argv:
        for part, arrays in (("train", train), ("test", test)):
            for name, array in arrays.items():
                np.save(folder / f"{part}_{name}.npy", np.ascontiguousarray(array))
    print(f"{folder}: digits.onnx, train.npz ({len(train['labels'])} images), test.npz ({len(test['labels'])} images)")


if __name__ == "__main__":
    main()
