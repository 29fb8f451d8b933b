"""Writes gan.onnx, two networks that train each other: `python examples/gan.py [OUTDIR]`.

A generator turns noise into points of the plane; a discriminator tells them from the real points it is shown. Each has
a TrainingInfoProto of its own. One training iteration runs both in order, and the second sees what the first changed:

0. `discriminator` updates the discriminator's weights on `real` and on the generator's `sample`;
1. `generator` updates the generator's weights against the discriminator as it is *then*.

In each, the other side is frozen, by saying what the loss depends on: the discriminator's loss on `sample` as such, not
on the weights behind it; the generator's loss on the discriminator's weights, as constants.

Both networks are in the inference graph, because a variable that both algorithms read must be declared there.
"""

import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

NOISE, HIDDEN, POINT = 4, 16, 2
GENERATOR = {"g1.weight": (NOISE, HIDDEN), "g1.bias": (HIDDEN,), "g2.weight": (HIDDEN, POINT), "g2.bias": (POINT,)}
DISCRIMINATOR = {"d1.weight": (POINT, HIDDEN), "d1.bias": (HIDDEN,), "d2.weight": (HIDDEN, 1), "d2.bias": (1,)}
LEARNING_RATE = 0.05


def generate() -> list[onnx.NodeProto]:
    """Nodes of the generator: `noise` -> `sample`."""
    return [
        helper.make_node("Gemm", ["noise", "g1.weight", "g1.bias"], ["g1"], "g1"),
        helper.make_node("Tanh", ["g1"], ["g1.active"], "g1.active"),
        helper.make_node("Gemm", ["g1.active", "g2.weight", "g2.bias"], ["sample"], "g2"),
    ]


def discriminate(points: str, score: str) -> list[onnx.NodeProto]:
    """Nodes of the discriminator: points -> score, above zero for real ones. Every copy has the same weights."""
    return [
        helper.make_node("Gemm", [points, "d1.weight", "d1.bias"], [f"{score}.d1"], f"{score}.d1"),
        helper.make_node("LeakyRelu", [f"{score}.d1"], [f"{score}.active"], f"{score}.active", alpha=0.2),
        helper.make_node("Gemm", [f"{score}.active", "d2.weight", "d2.bias"], [score], f"{score}.d2"),
    ]


def badness(score: str, real: bool, loss: str) -> list[onnx.NodeProto]:
    """Mean of -log(p) for points that should count as real, else of -log(1 - p), where p is sigmoid(score)."""
    # -log(sigmoid(s)) = softplus(-s), and -log(1 - sigmoid(s)) = softplus(s).
    nodes = [helper.make_node("Neg", [score], [f"{loss}.score"], f"{loss}.score")] if real else []
    wrong = f"{loss}.score" if real else score
    return [
        *nodes,
        helper.make_node("Softplus", [wrong], [f"{loss}.each"], f"{loss}.each"),
        helper.make_node("ReduceMean", [f"{loss}.each"], [loss], loss, keepdims=0),
    ]


def inference() -> onnx.GraphProto:
    """Both networks: `noise` f32[N,4] -> `sample` f32[N,2] and its `score` f32[N,1]."""
    random = np.random.default_rng(0)
    weights = {
        name: random.normal(0, shape[0] ** -0.5, shape) if len(shape) == 2 else np.zeros(shape)
        for name, shape in (GENERATOR | DISCRIMINATOR).items()
    }
    return helper.make_graph(
        generate() + discriminate("sample", "score"),
        "gan",
        [helper.make_tensor_value_info("noise", TensorProto.FLOAT, ["N", NOISE])],
        [
            helper.make_tensor_value_info("sample", TensorProto.FLOAT, ["N", POINT]),
            helper.make_tensor_value_info("score", TensorProto.FLOAT, ["N", 1]),
        ],
        [numpy_helper.from_array(value.astype(np.float32), name) for name, value in weights.items()],
    )


def player(
    name: str,
    loss: list[onnx.NodeProto],
    own: dict[str, tuple[int, ...]],
    given: list[str],
    inputs: list[onnx.ValueInfoProto],
) -> onnx.TrainingInfoProto:
    """One side: descends the gradient of `{name}.loss` in its `own` variables, with what is `given` held still."""
    nodes = [
        *loss,
        helper.make_node(
            "Gradient",
            [*own, *given],
            [f"{variable}.gradient" for variable in own],
            "gradient",
            domain="ai.onnx.preview.training",
            xs=list(own),
            zs=given,
            y=f"{name}.loss",
        ),
    ]
    for variable in own:
        nodes += [
            helper.make_node("Mul", ["learning_rate", f"{variable}.gradient"], [f"{variable}.change"]),
            helper.make_node("Sub", [variable, f"{variable}.change"], [f"{variable}.next"]),
        ]
    graph = helper.make_graph(
        nodes,
        name,
        inputs,
        [
            helper.make_tensor_value_info(f"{name}.loss", TensorProto.FLOAT, []),
            *(helper.make_tensor_value_info(f"{key}.next", TensorProto.FLOAT, shape) for key, shape in own.items()),
        ],
        [numpy_helper.from_array(np.array(LEARNING_RATE, np.float32), "learning_rate")],
    )
    return helper.make_training_info(graph, [(key, f"{key}.next") for key in own], None, None)


def build() -> onnx.ModelProto:
    """The training model. A step takes `noise` and `real` f32[N,2] and gives both losses."""
    model = helper.make_model(
        inference(),
        opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid("ai.onnx.preview.training", 1)],
        ir_version=10,
        producer_name="onnxc examples",
    )
    tell_apart = [
        *discriminate("real", "real.score"),
        *badness("real.score", True, "miss"),
        *badness("score", False, "false_alarm"),
        helper.make_node("Add", ["miss", "false_alarm"], ["discriminator.loss"], "discriminator.loss"),
    ]
    real = helper.make_tensor_value_info("real", TensorProto.FLOAT, ["N", POINT])
    model.training_info.append(player("discriminator", tell_apart, DISCRIMINATOR, ["real", "sample"], [real]))
    convince = badness("score", True, "generator.loss")
    model.training_info.append(player("generator", convince, GENERATOR, ["noise", *DISCRIMINATOR], []))
    return model


def main() -> None:
    """Writes gan.onnx into the folder that the command line names."""
    path = Path(sys.argv[1] if len(sys.argv) > 1 else ".") / "gan.onnx"
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(build(), path)
    print(path)


if __name__ == "__main__":
    main()
