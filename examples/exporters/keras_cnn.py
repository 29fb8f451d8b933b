"""A network of Keras, by tf2onnx: `python -m examples.exporters.keras_cnn [FOLDER]`."""

import sys
from pathlib import Path

import keras
import tensorflow as tf
import tf2onnx
from keras import layers

import compiler
from examples.exporters.common import digits, train


def network() -> keras.Model:
    """A small convolutional network, with images [N, height, width, channels] as Keras has them."""
    keras.utils.set_random_seed(0)
    net = keras.Sequential(
        [
            keras.Input((8, 8, 1), name="images"),
            layers.Conv2D(16, 3, padding="same", activation="relu"),
            layers.BatchNormalization(),
            layers.MaxPooling2D(),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.Flatten(),
            layers.Dense(10, activation="softmax", name="scores"),
        ]
    )
    net.output_names = ["scores"]  # tf2onnx asks a Sequential for these
    return net


def main(folder: Path) -> None:
    """Export, make a training model, train and compare."""
    folder.mkdir(parents=True, exist_ok=True)
    images, labels = digits()
    path = folder / "keras.onnx"
    signature = [tf.TensorSpec((None, 8, 8, 1), tf.float32, name="images")]
    tf2onnx.convert.from_keras(network(), input_signature=signature, opset=17, output_path=str(path))
    training = compiler.make_training_model(path, target="labels", optimizer="adam", lr=0.002)
    train(training, {"images": images[..., None], "labels": labels}, folder / "trained.onnx")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
