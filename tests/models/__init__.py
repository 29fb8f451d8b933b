"""Training models for tests, built with onnx alone, so that no part of the compiler can vouch for itself.

The public models of others are in `tests.models.zoo`.
"""

from tests.models.networks import lenet, lenet_inference, mlp, mlp_inference, tiny
from tests.models.training import attach_training

__all__ = [
    "attach_training",
    "lenet",
    "lenet_inference",
    "mlp",
    "mlp_inference",
    "tiny",
]
