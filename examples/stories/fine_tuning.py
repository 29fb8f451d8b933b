"""Fine-tuning: a network that knows the digits 0 to 4 learns 5 to 9 with frozen convolutions and a new last layer.

`python -m examples.stories.fine_tuning [FOLDER]` compares it with training everything from scratch, on all images
and on a few of each digit.
"""

import time
from pathlib import Path

import numpy as np
import onnx

import compiler
from examples.digits import data
from examples.stories.common import folder, in_onnxruntime, network

Arrays = dict[str, np.ndarray]


def digits() -> onnx.ModelProto:
    """Images of 8 x 8 pixels to scores of five digits."""
    return network("""
        <ir_version: 10, opset_import: ["" : 21]>
        digits (float[N, 1, 8, 8] images) => (float[N, 5] logits)
        <float[16, 1, 3, 3] "conv1.weight", float[16] "conv1.bias",
         float[32, 16, 3, 3] "conv2.weight", float[32] "conv2.bias",
         float[512, 5] "head.weight", float[5] "head.bias">
        {
            conv1 = Conv <pads: ints = [1, 1, 1, 1]> (images, "conv1.weight", "conv1.bias")
            relu1 = Relu (conv1)
            conv2 = Conv <pads: ints = [1, 1, 1, 1]> (relu1, "conv2.weight", "conv2.bias")
            relu2 = Relu (conv2)
            pool = MaxPool <kernel_shape: ints = [2, 2], strides: ints = [2, 2]> (relu2)
            features = Flatten (pool)
            logits = Gemm (features, "head.weight", "head.bias")
        }""")


def with_new_head(path: Path) -> onnx.ModelProto:
    """A trained model with a last layer that knows nothing yet: the same one, as zeros."""
    model = onnx.load(path)
    for tensor in model.graph.initializer:
        if tensor.name.startswith("head."):
            tensor.CopyFrom(onnx.numpy_helper.from_array(np.zeros(tensor.dims, np.float32), tensor.name))
    return model


def some(arrays: Arrays, first: int, each: int, draw: int = 0) -> Arrays:
    """`each` images of each of five digits, by chance; `first` is class 0."""
    labels = arrays["labels"] - first
    order = np.random.default_rng(draw).permutation(len(labels))
    rows = np.concatenate([order[labels[order] == k][:each] for k in range(5)])
    return {"images": arrays["images"][rows], "labels": labels[rows]}


def fit(training: onnx.ModelProto, arrays: Arrays, path: Path, epochs: int, *, initialize: bool) -> float:
    """Trains and exports to `path`. Milliseconds of an epoch, without the first one, which compiles the step."""
    trainer = compiler.Trainer(training, arrays, batch=25, initialize=initialize)
    run = trainer.run(epochs)
    next(run)
    start = time.process_time()
    for _ in run:
        pass
    milliseconds = (time.process_time() - start) / (epochs - 1) * 1000
    trainer.step.export(path)
    return milliseconds


def accuracy(path: Path, arrays: Arrays) -> float:
    """Of an exported model, in stock onnxruntime."""
    scores = in_onnxruntime(path, images=arrays["images"])
    return float((scores.argmax(1) == arrays["labels"]).mean())


def story(place: Path, epochs: int = 30, draws: int = 5) -> dict[str, float]:
    """Tells the story; the accuracies by name. draws: how often images are drawn and trained on, for the mean."""
    train, test = data()
    path = place / "digits-0-to-4.onnx"
    from_scratch = compiler.make_training_model(digits(), target="labels", lr=0.002, initialize="kaiming")
    fit(from_scratch, some(train, 0, 140), path, epochs, initialize=True)
    found = {"0 to 4": accuracy(path, some(test, 0, 100))}
    print(f"digits 0 to 4, from scratch: accuracy {found['0 to 4']:.2%}")

    head = compiler.make_training_model(with_new_head(path), target="labels", freeze="conv*", lr=0.005)
    unseen = some(test, 5, 100)
    print("\ndigits 5 to 9           images  accuracy  ms per epoch")
    for each in (140, 20, 5):
        for name, training in (("new head", head), ("from scratch", from_scratch)):
            path, right = place / f"{name} {each}.onnx".replace(" ", "-"), []
            for draw in range(draws):
                images = some(train, 5, each, draw)
                milliseconds = fit(training, images, path, epochs, initialize=training is from_scratch)
                right.append(accuracy(path, unseen))
            found[f"{name}, {each} of each"] = mean = float(np.mean(right))
            print(f"{name:<20} {5 * each:>9}    {mean:6.2%}  {milliseconds:12.1f}")
    return found


if __name__ == "__main__":
    story(folder())
