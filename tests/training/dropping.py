"""A small model whose steps draw random numbers and keep statistics, with data for it: all that a resumed run needs."""

from __future__ import annotations

import numpy as np
import onnx

from compiler.runtime.memory import Array
from tests.frontend.small import make_model, training_info
from tests.test_training_standard import TRAINED, TRAINING


def dropping() -> tuple[onnx.ModelProto, dict[str, Array]]:
    """BatchNormalization and Dropout behind a product, and 20 samples."""
    updates = {"w": "w_next", "mean": "mean_next", "var": "var_next", "n": "n_next"}
    rng = np.random.default_rng(1)
    data = {"x": rng.normal(size=(20, 3)).astype(np.float32), "t": rng.normal(size=(20, 2)).astype(np.float32)}
    return make_model(TRAINED, training_info(TRAINING, updates)), data
