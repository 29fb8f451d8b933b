"""JAX: the networks as functions of their weights by name, images as [N, H, W, C], one jitted step with Adam."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
import numpy.typing as npt
from jax import lax
from jax import numpy as jnp

from benchmarks.peers import Case, Made

VERSION = str(jax.__version__)

Weights = Mapping[str, Any]
Statistics = dict[str, Any]
"""Running means and variances by name; a network writes the next ones into it while it is traced."""
Network = Callable[[Weights, Statistics, Any], Any]


def _dense(p: Weights, name: str, x: Any) -> Any:
    return x @ p[f"{name}.weight"].T + p[f"{name}.bias"]


def _dense_last(p: Weights, name: str, x: Any) -> Any:
    return x @ p[f"{name}.weight_t"] + p[f"{name}.bias"]


def _conv(p: Weights, name: str, x: Any, stride: int = 1, groups: int = 1) -> Any:
    kernel = p[f"{name}.weight"]
    pad = [(kernel.shape[0] // 2,) * 2] * 2
    layout = ("NHWC", "HWIO", "NHWC")
    y = lax.conv_general_dilated(x, kernel, (stride,) * 2, pad, dimension_numbers=layout, feature_group_count=groups)
    return y + p[f"{name}.bias"] if f"{name}.bias" in p else y


def _up(p: Weights, name: str, x: Any) -> Any:
    """Transposed 2x2 convolution of stride 2: every pixel makes four, so it is one product."""
    n, h, w, _ = x.shape
    y = jnp.einsum("nhwc,coij->nhiwjo", x, p[f"{name}.weight"])
    return y.reshape(n, 2 * h, 2 * w, -1) + p[f"{name}.bias"]


def _pool(x: Any) -> Any:
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def _batch_norm(p: Weights, s: Statistics, name: str, x: Any) -> Any:
    mean = x.mean((0, 1, 2))
    variance = jnp.maximum((x * x).mean((0, 1, 2)) - mean * mean, 0)  # as flax has it: one pass over x
    for key, value in (("running_mean", mean), ("running_var", variance)):
        s[f"{name}.{key}"] = 0.9 * s[f"{name}.{key}"] + 0.1 * lax.stop_gradient(value)
    return (x - mean) * (lax.rsqrt(variance + 1e-5) * p[f"{name}.weight"]) + p[f"{name}.bias"]


def _layer_norm(p: Weights, name: str, x: Any) -> Any:
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(variance + 1e-5) * p[f"{name}.weight"] + p[f"{name}.bias"]


def _tiny(p: Weights, s: Statistics, x: Any) -> Any:
    return _dense(p, "fc2", jnp.tanh(_dense(p, "fc1", x)))


def _mlp(p: Weights, s: Statistics, x: Any) -> Any:
    return _dense(p, "fc3", jax.nn.relu(_dense(p, "fc2", jax.nn.relu(_dense(p, "fc1", x)))))


def _lenet(p: Weights, s: Statistics, x: Any) -> Any:
    x = _pool(jax.nn.relu(_conv(p, "conv1", x)))
    x = _pool(jax.nn.relu(_conv(p, "conv2", x)))
    return _dense(p, "fc2", jax.nn.relu(_dense(p, "fc1", x.reshape(len(x), -1))))


def _residual(p: Weights, s: Statistics, name: str, x: Any, stride: int) -> Any:
    y = jax.nn.relu(_batch_norm(p, s, f"{name}.bn1", _conv(p, f"{name}.conv1", x, stride)))
    y = _batch_norm(p, s, f"{name}.bn2", _conv(p, f"{name}.conv2", y))
    if stride != 1:
        x = _batch_norm(p, s, f"{name}.bn3", _conv(p, f"{name}.shortcut", x, stride))
    return jax.nn.relu(y + x)


def _separable(p: Weights, s: Statistics, name: str, x: Any, stride: int) -> Any:
    x = jax.nn.relu(_batch_norm(p, s, f"{name}.bn1", _conv(p, f"{name}.depth", x, stride, groups=x.shape[-1])))
    return jax.nn.relu(_batch_norm(p, s, f"{name}.bn2", _conv(p, f"{name}.point", x)))


def _pyramid(block: Callable[..., Any], strides: tuple[int, ...]) -> Network:
    def network(p: Weights, s: Statistics, x: Any) -> Any:
        x = jax.nn.relu(_batch_norm(p, s, "bn", _conv(p, "stem", x)))
        for number, stride in enumerate(strides):
            x = block(p, s, f"blocks.{number}", x, stride)
        return _dense(p, "fc", x.mean((1, 2)))

    return network


def _double(p: Weights, name: str, x: Any) -> Any:
    return jax.nn.relu(_conv(p, f"{name}.conv2", jax.nn.relu(_conv(p, f"{name}.conv1", x))))


def _unet(p: Weights, s: Statistics, x: Any) -> Any:
    high = _double(p, "down1", x)
    middle = _double(p, "down2", _pool(high))
    x = _double(p, "bottom", _pool(middle))
    x = _double(p, "merge2", jnp.concatenate([middle, _up(p, "up2", x)], -1))
    x = _double(p, "merge1", jnp.concatenate([high, _up(p, "up1", x)], -1))
    return _conv(p, "head", x).reshape(-1, 4)  # one row for each pixel, as the labels have it


def _transformer(heads: int, layers: int) -> Network:
    def network(p: Weights, s: Statistics, x: Any) -> Any:
        x = p["embedding.weight"][x] + p["positions"]
        batch, tokens, width = x.shape
        causal = jnp.tril(jnp.ones((tokens, tokens), bool))
        for number in range(layers):
            name = f"blocks.{number}"
            parts = _dense_last(p, f"{name}.qkv", _layer_norm(p, f"{name}.norm1", x))
            parts = parts.reshape(batch, tokens, 3, heads, width // heads)
            query, key, value = parts.transpose(2, 0, 3, 1, 4)
            scores = (query @ key.swapaxes(-1, -2)) / math.sqrt(width // heads)
            mixed = jax.nn.softmax(jnp.where(causal, scores, -jnp.inf)) @ value
            x = x + _dense_last(p, f"{name}.projection", mixed.transpose(0, 2, 1, 3).reshape(batch, tokens, width))
            y = _dense_last(p, f"{name}.up", _layer_norm(p, f"{name}.norm2", x))
            x = x + _dense_last(p, f"{name}.down", jax.nn.gelu(y, approximate=False))
        return _dense_last(p, "head", _layer_norm(p, "norm", x)).reshape(batch * tokens, -1)

    return network


def _lstm(p: Weights, s: Statistics, x: Any) -> Any:
    size = 128
    of_inputs = x.swapaxes(0, 1) @ p["lstm.W"][0].T + p["lstm.B"][0, : 4 * size] + p["lstm.B"][0, 4 * size :]

    def cell(carry: tuple[Any, Any], of_input: Any) -> tuple[tuple[Any, Any], None]:
        h, c = carry
        i, o, f, g = jnp.split(of_input + h @ p["lstm.R"][0].T, 4, -1)  # ONNX's order
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        return (jax.nn.sigmoid(o) * jnp.tanh(c), c), None

    zeros = jnp.zeros((len(x), size))
    (h, _), _ = lax.scan(cell, (zeros, zeros), of_inputs)
    return _dense(p, "fc", h)


NETWORKS: dict[str, Network] = {
    "tiny": _tiny,
    "mlp": _mlp,
    "lenet": _lenet,
    "resnet8": _pyramid(_residual, (1, 2, 2)),
    "depthwise": _pyramid(_separable, (1, 2, 1, 2, 1)),
    "unet": _unet,
    "gpt": _transformer(heads=4, layers=2),
    "wide": _transformer(heads=8, layers=1),
    "lstm": _lstm,
}


def _laid_out(workload: str, name: str, value: npt.NDArray[Any]) -> Any:
    """A weight in the layout for images [N, H, W, C]."""
    if value.ndim == 4 and not name.startswith("up"):
        value = value.transpose(2, 3, 1, 0)  # OIHW -> HWIO
    elif workload == "lenet" and name == "fc1.weight":  # it reads the flattened image
        value = value.reshape(-1, 64, 7, 7).transpose(0, 2, 3, 1).reshape(len(value), -1)
    return jnp.asarray(np.ascontiguousarray(value))


def _adam(lr: float, p: Weights, moments: tuple[Weights, Weights], count: Any, g: Weights) -> tuple[Any, Any]:
    """The next weights and moments."""
    tree = jax.tree_util.tree_map
    first = tree(lambda m, d: 0.9 * m + 0.1 * d, moments[0], g)
    second = tree(lambda v, d: 0.999 * v + 0.001 * d * d, moments[1], g)
    rate, root = lr / (1 - 0.9**count), jnp.sqrt(1 - 0.999**count)
    p = tree(lambda w, m, v: w - rate * m / (jnp.sqrt(v) / root + 1e-8), p, first, second)
    return p, (first, second)


def make_step(case: Case) -> Made:
    """The step; weights, moments and statistics are given away to it, so that it can write over them."""
    network = NETWORKS[case.name]
    weights = {name: _laid_out(case.name, name, value) for name, value in case.weights().items()}
    p = {name: weights[name] for name in case.trainable}
    s = {name: value for name, value in weights.items() if "running_" in name}
    x, label = case.batch()
    inputs = jnp.asarray(x.transpose(0, 2, 3, 1) if x.ndim == 4 else x)
    labels = jnp.asarray(label.reshape(-1))

    def loss_of(p: Weights, s: Statistics, x: Any, label: Any) -> tuple[Any, Statistics]:
        s = dict(s)
        logits = network(p, s, x)
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), label[:, None], 1).mean(), s

    @functools.partial(jax.jit, donate_argnums=(0,))
    def train(state: tuple[Any, ...], x: Any, label: Any) -> tuple[tuple[Any, ...], Any]:
        p, moments, s, count = state
        (loss, s), g = jax.value_and_grad(loss_of, has_aux=True)(p, s, x, label)
        p, moments = _adam(case.learning_rate, p, moments, count, g)
        return (p, moments, s, count + 1), loss

    zeros = tuple({name: jnp.zeros_like(value) for name, value in p.items()} for _ in range(2))
    state: tuple[Any, ...] = (p, zeros, s, jnp.float32(1))

    def step() -> float:
        nonlocal state
        state, loss = train(state, inputs, labels)
        return float(jax.block_until_ready((state, loss))[1])

    return Made(step)
