"""Time of one training step against PyTorch: `python -m benchmarks.step_time` (see --help).

Both train the same network from the same weights on the same batch with Adam, and their first losses must agree before
anything is timed. They take turns in rounds, so that whatever else the machine does meets both; a round's value is the
median of its steps. The table shows the median over the rounds, and of the rounds' ratios.
"""

import argparse
import importlib
import importlib.util
import json
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

import compiler
from tests.models import lenet, mlp, tiny

LEARNING_RATE = 1e-3
WARM_UP = 5  # untimed steps at the start of a round: threads wake, caches fill


@dataclass(frozen=True)
class Workload:
    """A network, as a function that builds its training model, and the shape of a batch."""

    build: Callable[..., onnx.ModelProto]
    shape: tuple[int, ...]
    classes: int


WORKLOADS = {
    "tiny": Workload(tiny, (16, 4), 3),
    "mlp": Workload(mlp, (64, 784), 10),
    "lenet": Workload(lenet, (64, 1, 28, 28), 10),
}

Array = npt.NDArray[Any]
Step = Callable[[], float]


@dataclass(frozen=True)
class Result:
    """One line of the table; times in milliseconds, but `ready` (until the first step was done) in seconds."""

    workload: str
    threads: int
    ready: float
    onnxc: float
    torch: float | None
    ratio: float | None


def onnxc_step(model: onnx.ModelProto, x: Array, label: Array, threads: int) -> Step:
    """The step of onnxc."""
    step = compiler.compile(model, dims={"N": len(x)}, threads=threads)
    return lambda: float(step(x=x, label=label)["loss"])


def round_median(step: Step, seconds: float) -> float:
    """Median time of the steps that fit into so many seconds (at least three), in milliseconds."""
    for _ in range(WARM_UP):
        step()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 3:
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e3


def measure(name: str, threads: int, rounds: int, seconds: float, torch_step: Callable[..., Step] | None) -> Result:
    """Times one workload. Raises RuntimeError if the two do not compute the same."""
    workload = WORKLOADS[name]
    random = np.random.default_rng(0)
    x = random.random(workload.shape, np.float32)
    label = random.integers(0, workload.classes, workload.shape[0])
    model = workload.build(optimizer="adam", lr=LEARNING_RATE)

    start = time.perf_counter()
    steps = [onnxc_step(model, x, label, threads)]
    losses = [[steps[0]()]]
    ready = time.perf_counter() - start
    if torch_step is not None:
        steps.append(torch_step(name, model, x, label, threads, LEARNING_RATE))
        losses.append([steps[1]()])
    for values, step in zip(losses, steps, strict=True):
        values += [step() for _ in range(3)]
    if not np.allclose(losses[0], losses[-1], rtol=1e-3):
        raise RuntimeError(f"{name}: the losses of onnxc are {losses[0]}, those of PyTorch {losses[-1]}")

    medians = [[round_median(step, seconds) for step in steps] for _ in range(rounds)]
    ours = statistics.median(times[0] for times in medians)
    if torch_step is None:
        return Result(name, threads, ready, ours, None, None)
    theirs = statistics.median(times[1] for times in medians)
    ratio = statistics.median(times[1] / times[0] for times in medians)
    return Result(name, threads, ready, ours, theirs, ratio)


def main() -> None:
    """Measures, prints the table, and writes it as JSON."""
    parser = argparse.ArgumentParser(description="Time of one training step against PyTorch.")
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.3, help="length of one round")
    parser.add_argument("--json", type=Path, default=Path(__file__).parent / "results" / "step_time.json")
    arguments = parser.parse_args()

    peer: Any = None
    if importlib.util.find_spec("torch") is None:
        print("PyTorch is not installed (pip install -e '.[bench]'): only onnxc is measured.\n")
    else:
        peer = importlib.import_module("benchmarks.torch_step")

    print(f"{'workload':10}{'threads':>8}{'ready s':>10}{'onnxc ms':>12}{'torch ms':>12}{'torch/onnxc':>14}")
    results: list[Result] = []
    for name in arguments.workloads:
        for threads in arguments.threads:
            result = measure(name, threads, arguments.rounds, arguments.seconds, peer and peer.torch_step)
            results.append(result)
            theirs, ratio = ("-", "-") if result.torch is None else (f"{result.torch:.4f}", f"{result.ratio:.2f}")
            print(f"{name:10}{threads:8}{result.ready:10.2f}{result.onnxc:12.4f}{theirs:>12}{ratio:>14}", flush=True)

    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    report = {
        "machine": platform.machine(),
        "python": platform.python_version(),
        "torch": peer and peer.VERSION,
        "results": [asdict(result) for result in results],
    }
    arguments.json.write_text(json.dumps(report, indent=2) + "\n")
    print(f"\n{arguments.json}")


if __name__ == "__main__":
    main()
