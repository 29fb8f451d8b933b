"""A network of PyTorch, by both of its exporters: `python -m examples.exporters.pytorch [FOLDER]`."""

import sys
from pathlib import Path

import onnx
import torch
from torch import nn

import compiler
from examples.exporters.common import digits, train


def network() -> nn.Module:
    """A small convolutional network with BatchNormalization and Dropout."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(0.25),
        nn.Linear(32 * 4 * 4, 10),
    )


def export(net: nn.Module, images: torch.Tensor, path: Path, dynamo: bool) -> None:
    """Write the network as it is in PyTorch: nothing folded, nothing merged, Dropout kept."""
    if dynamo:
        torch.onnx.export(
            net.train(),
            (images,),
            path,
            input_names=["images"],
            output_names=["scores"],
            dynamic_shapes=({0: "N"},),
            optimize=False,
            verbose=False,
        )
    else:
        torch.onnx.export(
            net,
            (images,),
            path,
            dynamo=False,
            input_names=["images"],
            output_names=["scores"],
            dynamic_axes={"images": {0: "N"}, "scores": {0: "N"}},
            training=torch.onnx.TrainingMode.TRAINING,
            do_constant_folding=False,
        )


def trained(training: onnx.ModelProto) -> list[str]:
    """What the gradients are taken of."""
    (gradient,) = [node for node in training.training_info[0].algorithm.node if node.op_type == "Gradient"]
    return [v.removesuffix(".gradient") for v in gradient.output]


def main(folder: Path) -> None:
    """Export, make a training model, train and compare, once for each exporter."""
    folder.mkdir(parents=True, exist_ok=True)
    images, labels = digits()
    images = images[:, None]
    for dynamo in (True, False):
        path = folder / ("dynamo.onnx" if dynamo else "script.onnx")
        export(network(), torch.from_numpy(images[:2]), path, dynamo)
        training = compiler.make_training_model(path, target="labels", optimizer="adam", lr=0.002)
        print(path.name, "trains", ", ".join(trained(training)))
        train(training, {"images": images, "labels": labels}, folder / "trained.onnx")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
