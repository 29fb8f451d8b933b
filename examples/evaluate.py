"""Accuracy of a classifier in ONNX Runtime: `python examples/evaluate.py MODEL DATA [--at-least ACCURACY]`.

MODEL has one input and its first output holds the scores; DATA is an .npz file with that input and `labels`.
Nothing of onnxc is used: what it trained is an ordinary model.
"""

import argparse
import sys

import numpy as np
import onnxruntime


def accuracy(model: str, data: str) -> float:
    """Share of the rows of `data` for which the highest score is that of the label."""
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    with np.load(data) as file:
        scores = session.run(None, {name: file[name]})[0]
        return float(np.mean(scores.argmax(axis=1) == file["labels"]))


def main() -> int:
    """Prints the accuracy; 1 when it is lower than asked for."""
    parser = argparse.ArgumentParser(description="Accuracy of a classifier in ONNX Runtime.")
    parser.add_argument("model")
    parser.add_argument("data")
    parser.add_argument("--at-least", type=float, default=0.0, metavar="ACCURACY", help="fail below this, from 0 to 1")
    arguments = parser.parse_args()
    result = accuracy(arguments.model, arguments.data)
    print(f"{arguments.model}: accuracy {result:.2%} on {arguments.data} in onnxruntime {onnxruntime.__version__}")
    if result < arguments.at_least:
        print(f"error: accuracy {result:.2%}, expected at least {arguments.at_least:.2%}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
