"""An autoencoder: the digits through eight numbers, and back.

`python -m examples.stories.autoencoder [FOLDER]` trains it with its own input as target, and compares it with
what eight principal components keep: the best that a linear autoencoder can do.
"""

from pathlib import Path

import numpy as np
import onnx

import compiler
from examples.digits import data
from examples.stories.common import folder, in_onnxruntime, network

CODE = 8


def autoencoder() -> onnx.ModelProto:
    """Images to images, from 0 to 1, and to the code in between."""
    return network(f"""
        <ir_version: 10, opset_import: ["" : 21]>
        autoencoder (float[N, 1, 8, 8] images) => (float[N, 1, 8, 8] restored, float[N, {CODE}] code)
        <float[64, 128] "enter.weight", float[128] "enter.bias",
         float[128, {CODE}] "code.weight", float[{CODE}] "code.bias",
         float[{CODE}, 128] "leave.weight", float[128] "leave.bias",
         float[128, 64] "last.weight", float[64] "last.bias",
         int64[4] image_shape = {{-1, 1, 8, 8}}>
        {{
            pixels = Flatten (images)
            enter = Gemm (pixels, "enter.weight", "enter.bias")
            entered = Relu (enter)
            code = Gemm (entered, "code.weight", "code.bias")
            leave = Gemm (code, "leave.weight", "leave.bias")
            left = Relu (leave)
            last = Gemm (left, "last.weight", "last.bias")
            ink = Sigmoid (last)
            restored = Reshape (ink, image_shape)
        }}""")


def principal_components(train: np.ndarray, test: np.ndarray) -> np.ndarray:
    """The images of the test set from their first components, those of the training set."""
    pixels, mean = test.reshape(len(test), -1), train.reshape(len(train), -1).mean(0)
    components = np.linalg.svd(train.reshape(len(train), -1) - mean, full_matrices=False)[2][:CODE]
    restored: np.ndarray = (pixels - mean) @ components.T @ components + mean
    return restored.reshape(test.shape)


def show(*images: np.ndarray) -> None:
    """Prints images of 8 x 8 pixels side by side."""
    shades = np.array(list(" .:-=+*#%@"))
    for row in range(8):
        line = (image[0, row] for image in images)
        print("   ".join("".join(shades[(r.clip(0, 1) * 9).round().astype(int)].repeat(2)) for r in line).rstrip())


def story(place: Path, epochs: int = 60) -> dict[str, float]:
    """Tells the story; the mean squared errors by name."""
    train, test = (arrays["images"] for arrays in data())
    training = compiler.make_training_model(
        autoencoder(), loss="mse", target="images", optimizer="adam", lr=0.003, initialize="kaiming", seed=0
    )
    trainer = compiler.Trainer(training, {"images": train[:1536]}, batch=64, initialize=True)
    for epoch in trainer.run(epochs):
        if epoch.number in (1, epochs // 4, epochs // 2, epochs):
            print(f"epoch {epoch.number:3}  loss {epoch.loss:.5f}")
    path = place / "autoencoder.onnx"
    trainer.step.export(path)

    restored = {
        "the mean image": np.broadcast_to(train.mean(0), test.shape),
        f"{CODE} principal components": principal_components(train, test),
        "autoencoder": in_onnxruntime(path, images=test),
    }
    found = {name: float(((images - test) ** 2).mean()) for name, images in restored.items()}
    print(f"\n{len(test)} other images          mean squared error")
    for name, error in found.items():
        print(f"{name:<24} {error:19.5f}")
    print("\nthree of them, and what came back:")
    show(*test[:3], *restored["autoencoder"][:3])
    return found


if __name__ == "__main__":
    story(folder())
