"""An LSTM on a sequence: next year's number of sunspots, from the 22 years before.

`python -m examples.stories.sunspots [FOLDER]` trains on the years up to 1919 with a loop written out, and forecasts
each year from 1920 to 2008, against the number of the year before and against a linear autoregression.
"""

from pathlib import Path

import numpy as np
import onnx

import compiler
from examples.stories.common import folder, in_onnxruntime, network

DATA = Path(__file__).parents[1] / "data" / "sunspots.npz"
YEARS = 22  # two cycles of the sun
UNITS = 8


def forecaster() -> onnx.ModelProto:
    """The numbers of some years to that of the next year. ONNX's LSTM wants time as the first axis.

    Counts vary the more the greater they are; their square roots do not.
    """
    return network(
        f"""
        <ir_version: 10, opset_import: ["" : 21]>
        sunspots (float[N, {YEARS}] numbers) => (float[N, 1] forecast)
        <float[1, {4 * UNITS}, 1] "lstm.W", float[1, {4 * UNITS}, {UNITS}] "lstm.R", float[1, {8 * UNITS}] "lstm.B",
         float[{UNITS}, 1] "dense.weight", float[1] "dense.bias", float hundred,
         int64[1] first = {{0}}, int64[1] last = {{2}}>
        {{
            scaled = Div (numbers, hundred)
            roots = Sqrt (scaled)
            in_time = Transpose <perm: ints = [1, 0]> (roots)
            series = Unsqueeze (in_time, last)
            every, final = LSTM <hidden_size: int = {UNITS}> (series, "lstm.W", "lstm.R", "lstm.B")
            features = Squeeze (final, first)
            dense = Gemm (features, "dense.weight", "dense.bias")
            square = Mul (dense, dense)
            forecast = Mul (square, hundred)
        }}""",
        hundred=np.array(100.0),
    )


def windows() -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Numbers [N, YEARS] and the next number [N, 1]: what ends before 1920, and the rest."""
    with np.load(DATA) as file:
        years, numbers = file["years"], file["numbers"]
    before = np.lib.stride_tricks.sliding_window_view(numbers[:-1], YEARS)
    following, learned = numbers[YEARS:, np.newaxis], years[YEARS:] < 1920
    return (before[learned], following[learned]), (before[~learned], following[~learned])


def autoregression(before: np.ndarray, following: np.ndarray, later: np.ndarray, lags: int = 9) -> np.ndarray:
    """Forecasts by the linear function of the last years that fits best, of square roots as well."""

    def design(numbers: np.ndarray) -> np.ndarray:
        return np.column_stack([np.sqrt(numbers[:, -lags:]), np.ones(len(numbers))]).astype(np.float64)

    solution: np.ndarray = np.linalg.lstsq(design(before), np.sqrt(following), rcond=None)[0]
    forecast: np.ndarray = (design(later) @ solution) ** 2
    return forecast


def story(place: Path, steps: int = 200) -> dict[str, float]:
    """Tells the story; the root mean squared errors by name."""
    (before, following), (later, truth) = windows()
    training = compiler.make_training_model(
        forecaster(),
        loss="mse",
        optimizer="adam",
        lr=0.01,
        schedule={"name": "cosine", "total_steps": steps},
        clip_norm=1.0,
        initialize="xavier",
        seed=0,
    )
    step = compiler.compile(training, dims={"N": len(before)}, outputs=["loss"])
    step.initialize()
    for number in range(1, steps + 1):  # all windows at once: there are few, so more steps would learn them by heart
        loss = float(step(numbers=before, target=following)["loss"])
        if number in (1, steps // 8, steps // 2, steps):
            print(f"step {number:4}  error on the years up to 1919 {loss**0.5:6.2f}")
    path = place / "sunspots.onnx"
    step.export(path)

    forecasts = {
        "the year before": later[:, -1:],
        "autoregression": autoregression(before, following, later),
        "LSTM": in_onnxruntime(path, numbers=later),
    }
    found = {}
    print("\n1920 to 2008      root mean squared error")
    for name, forecast in forecasts.items():
        found[name] = float(((forecast - truth) ** 2).mean() ** 0.5)
        print(f"{name:<17} {found[name]:23.2f}")
    return found


if __name__ == "__main__":
    story(folder())
