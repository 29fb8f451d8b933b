"""Training over arrays: epochs of shuffled batches, metrics, checkpoints, a log. What `onnxc train` does, unprinted."""

from compiler.training.curve import check_plot, draw_curve
from compiler.training.data import Dataset, read_arrays
from compiler.training.log import read_log
from compiler.training.position import Position
from compiler.training.run import Run
from compiler.training.trainer import Epoch, Progress, Trainer

__all__ = [
    "Dataset",
    "Epoch",
    "Position",
    "Progress",
    "Run",
    "Trainer",
    "check_plot",
    "draw_curve",
    "read_arrays",
    "read_log",
]
