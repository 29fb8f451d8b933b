"""RNN, GRU and LSTM: their definition against ONNX Runtime, their gradients against finite differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
import pytest
from onnx import helper

from compiler.ir.bodies import body_graph
from compiler.ir.builder import GRADIENT, Builder
from compiler.ir.definitions.recurrent import ACTIVATION_DEFAULTS, FAMILIES
from compiler.ir.graph import Graph, Node
from compiler.ir.types import TensorType, dtype_of
from compiler.passes.dce import dce
from compiler.passes.gradients import expand_gradients
from tests.gradcheck import check_off_kinks, run, with_gradients

Array = npt.NDArray[Any]
Operands = list[Array | None]

SPELLED = {
    name.lower(): name
    for name in (
        *("Affine", "Elu", "HardSigmoid", "LeakyRelu", "Relu", "ScaledTanh"),
        *("Sigmoid", "Softplus", "Softsign", "Tanh", "ThresholdedRelu"),
    )
}


def operands(
    op: str,
    direction: str = "forward",
    absent: str = "",
    lens: list[int] | None = None,
    sizes: tuple[int, int, int, int] = (4, 3, 2, 3),
    seed: int = 0,
    dtype: type = np.float64,
) -> Operands:
    """Random operands; `absent`: letters of those left out (b, h, c, p); sizes: T, N, I, H."""
    rng = np.random.default_rng(seed)
    (t, n, i, h), d, g = sizes, 1 + (direction == "bidirectional"), FAMILIES[op].gates
    shapes = {"x": (t, n, i), "w": (d, g * h, i), "r": (d, g * h, h), "b": (d, 2 * g * h), "l": None, "h": (d, n, h)}
    if op == "LSTM":
        shapes |= {"c": (d, n, h), "p": (d, 3 * h)}
    arrays: Operands = []
    for letter, shape in shapes.items():
        array = rng.normal(size=shape).astype(dtype) if shape else None
        arrays.append(np.array(lens, np.int32) if letter == "l" and lens else None if letter in absent else array)
    return arrays


def graph_of(op: str, attrs: dict[str, Any], arrays: Operands) -> tuple[Graph, dict[str, Array]]:
    b = Builder()
    feeds = {f"in{i}": a for i, a in enumerate(arrays) if a is not None}
    names = [b.input(f"in{i}", TensorType(dtype_of(a), a.shape)) if a is not None else "" for i, a in enumerate(arrays)]
    outputs = 1 + FAMILIES[op].states
    for i, v in enumerate(b.add(op, names, {"hidden_size": arrays[2].shape[2], **attrs}, outputs)):
        b.output(f"out{i}", v)
    return b.build(), feeds


# --- forward -----------------------------------------------------------------------------------------------
def by_runtime(op: str, attrs: dict[str, Any], arrays: Operands) -> list[Array]:
    names = [f"in{i}" if a is not None else "" for i, a in enumerate(arrays)]
    outputs = [f"out{i}" for i in range(1 + FAMILIES[op].states)]
    node = helper.make_node(op, names, outputs, hidden_size=arrays[2].shape[2], **attrs)
    feeds = {v: a for v, a in zip(names, arrays, strict=True) if a is not None}
    inputs = [
        helper.make_tensor_value_info(v, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for v, a in feeds.items()
    ]
    infos = [helper.make_tensor_value_info(v, 1, None) for v in outputs]
    graph = helper.make_graph([node], "g", inputs, infos)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    return onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)


def random_form(op: str, seed: int) -> tuple[dict[str, Any], Operands]:
    """Any combination of directions, absent operands, lengths, activations with their parameters, and flags."""
    rng = np.random.default_rng(seed)
    direction = str(rng.choice(["forward", "reverse", "bidirectional"]))
    d = 1 + (direction == "bidirectional")
    attrs: dict[str, Any] = {"direction": direction}
    if rng.random() < 0.6:
        chosen = [str(a) for a in rng.choice(sorted(SPELLED), len(FAMILIES[op].activations) * d)]
        attrs["activations"] = [SPELLED[a] for a in chosen]
        # defaults: where ONNX has no operator of the name, or the runtime another default, the values are given
        if {"affine", "scaledtanh", "thresholdedrelu"}.intersection(chosen) or rng.random() < 0.5:
            for i, name in enumerate(("activation_alpha", "activation_beta")):
                if count := sum(len(ACTIVATION_DEFAULTS[a]) > i for a in chosen):
                    attrs[name] = [float(v) for v in rng.uniform(0.1, 0.9, count)]
    if rng.random() < 0.3:
        attrs["clip"] = float(rng.uniform(0.3, 1))
    flags = {"GRU": "linear_before_reset", "LSTM": "input_forget"}
    if op in flags and rng.random() < 0.5:
        attrs[flags[op]] = 1
    t, n, i, h = (int(v) for v in rng.integers(1, 5, 4))
    lens = [int(v) for v in rng.integers(0, t + 1, n)] if rng.random() < 0.5 else None
    absent = "".join(letter for letter in "bhcp" if rng.random() < 0.5)
    arrays = operands(op, direction, absent, lens, (t, n, i, h), seed, np.float32)
    return attrs, [a * np.float32(0.5) if a is not None and a.dtype == np.float32 else a for a in arrays]  # no overflow


@pytest.mark.parametrize("op", FAMILIES)
def test_every_form_is_what_onnxruntime_computes(op: str) -> None:
    for seed in range(40):
        attrs, arrays = random_form(op, seed)
        graph, feeds = graph_of(op, attrs, arrays)
        found = list(run(graph, feeds).values())
        for mine, theirs in zip(found, by_runtime(op, attrs, arrays), strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=2e-4, atol=2e-5, err_msg=f"{attrs}, lengths {arrays[4]}")


@pytest.mark.parametrize("op", FAMILIES)
def test_batch_first_is_a_transposition(op: str) -> None:
    arrays = operands(op, "bidirectional", lens=[4, 1, 2])
    graph, feeds = graph_of(op, {"direction": "bidirectional"}, arrays)
    expected = list(run(graph, feeds).values())
    swapped = [a if a is None or i not in (0, 5, 6) else a.swapaxes(0, 1) for i, a in enumerate(arrays)]
    graph, feeds = graph_of(op, {"direction": "bidirectional", "layout": 1}, swapped)
    y, *last = run(graph, feeds).values()
    np.testing.assert_array_equal(y, expected[0].transpose(2, 0, 1, 3))
    for mine, other in zip(last, expected[1:], strict=True):
        np.testing.assert_array_equal(mine, other.swapaxes(0, 1))


def test_lengths_outside_of_the_sequence_are_those_of_its_ends() -> None:
    arrays = operands("LSTM", lens=[9, -3, 2])
    graph, feeds = graph_of("LSTM", {}, arrays)
    found = run(graph, feeds)
    graph, feeds = graph_of("LSTM", {}, [*arrays[:4], np.array([4, 0, 2], np.int32), *arrays[5:]])
    for name, expected in run(graph, feeds).items():
        np.testing.assert_array_equal(found[name], expected)


def test_hidden_size_may_be_absent_and_names_of_activations_are_in_any_case() -> None:
    b = Builder()
    arrays = operands("RNN", absent="bh")[:3]
    names = [b.input(f"in{i}", TensorType("f64", a.shape)) for i, a in enumerate(arrays)]
    b.output("y", b.op("RNN", *names, activations=("TANH",)))
    graph, feeds = graph_of("RNN", {}, arrays)
    feeds = {f"in{i}": a for i, a in enumerate(arrays)}
    np.testing.assert_array_equal(run(b.build(), feeds)["y"], run(graph, feeds)["out0"])


def test_a_sequence_of_no_steps() -> None:
    arrays = operands("GRU", sizes=(0, 2, 3, 4))
    graph, feeds = graph_of("GRU", {}, arrays)
    found = run(graph, feeds)
    assert found["out0"].shape == (0, 1, 2, 4)
    np.testing.assert_array_equal(found["out1"], arrays[5])


def test_each_direction_is_one_loop_with_one_product() -> None:
    """A long sequence makes no more nodes than a short one."""
    node = Node("LSTM", ("x", "w", "r"), ("y", "h", "c"), {"direction": "bidirectional", "hidden_size": 3})
    counts = set()
    for t in (2, 500):
        arrays = operands("LSTM", "bidirectional", sizes=(t, 2, 3, 3))[:3]
        graph = dce(body_graph(node, [TensorType("f64", a.shape) for a in arrays]))
        bodies = [n.attrs["body"] for n in graph.nodes if n.op == "Scan"]
        assert [[n.op for n in body.nodes].count("Gemm") for body in bodies] == [1, 1]
        counts.add(len(graph.nodes))
    assert len(counts) == 1


# --- gradients ---------------------------------------------------------------------------------------------
SOFT = ["Softsign", "Softplus", "ScaledTanh", "HardSigmoid", "Affine", "Elu"]

FORMS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    # name: operator, attributes, arguments of `operands`
    "RNN": ("RNN", {}, {}),
    "RNN, both ways, lengths": ("RNN", {"activations": ["Tanh", "Softsign"]}, {"lens": [4, 2, 0]}),
    "RNN, clip": ("RNN", {"clip": 0.8, "activations": ["Affine"], "activation_alpha": [0.5]}, {}),
    "GRU": ("GRU", {}, {}),
    "GRU, no bias nor state": ("GRU", {}, {"absent": "bh"}),
    "GRU, linear before reset": ("GRU", {"linear_before_reset": 1}, {}),
    "GRU, linear before reset, both ways, lengths": (
        "GRU",
        {"linear_before_reset": 1, "direction": "bidirectional"},
        {"lens": [1, 4, 3]},
    ),
    "GRU, reverse, activations": (
        "GRU",
        {"direction": "reverse", "activations": ["HardSigmoid", "LeakyRelu"], "activation_alpha": [0.3, 0.2]},
        {},
    ),
    "LSTM": ("LSTM", {}, {"absent": "p"}),
    "LSTM, only the input and weights": ("LSTM", {}, {"absent": "bhcp"}),
    "LSTM, peepholes, reverse": ("LSTM", {"direction": "reverse"}, {}),
    "LSTM, peepholes, both ways, lengths": ("LSTM", {"direction": "bidirectional"}, {"lens": [3, 0, 4]}),
    "LSTM, coupled gates, clip": ("LSTM", {"input_forget": 1, "clip": 1.5}, {}),
    "LSTM, activations": (
        "LSTM",
        {
            "direction": "bidirectional",
            "activations": SOFT,
            "activation_alpha": [0.7, 0.3, 0.8, 0.5],
            "activation_beta": [0.9, 0.4, 0.1],
        },
        {"absent": "p"},
    ),
    "LSTM, batch first": ("LSTM", {"layout": 1}, {"sizes": (2, 4, 3, 2), "absent": "hcp"}),
    "LSTM, one step": ("LSTM", {}, {"sizes": (1, 1, 1, 1)}),
}


def form(name: str) -> tuple[Graph, dict[str, Array]]:
    op, attrs, given = FORMS[name]
    attrs = {"direction": "bidirectional", **attrs} if "both ways" in name else attrs
    return graph_of(op, attrs, operands(op, attrs.get("direction", "forward"), **given))


@pytest.mark.parametrize("name", FORMS)
def test_gradients(name: str) -> None:
    """With respect to X, W, R, B, the initial states and P, through all outputs."""
    graph, feeds = form(name)
    check_off_kinks(graph, feeds, [k for k, a in feeds.items() if a.dtype == np.float64], order=1)


@pytest.mark.parametrize("name", ["RNN", "GRU, linear before reset", "LSTM, peepholes, both ways, lengths"])
def test_second_order(name: str) -> None:
    graph, feeds = form(name)
    check_off_kinks(graph, feeds, [k for k, a in feeds.items() if a.dtype == np.float64], order=2)


@pytest.mark.parametrize(("output", "absent"), [("out0", ()), ("out1", ()), ("out2", ("in7",))])
def test_gradients_of_one_output(output: str, absent: tuple[str, ...]) -> None:
    graph, feeds = form("LSTM, peepholes, reverse")
    check_off_kinks(graph, feeds, [k for k in feeds if k not in absent], [output], order=1)


def test_a_gradient_at_another_batch_size() -> None:
    """The layer is evaluated again there."""
    arrays = operands("GRU", absent="bh")[:3]
    b = Builder()
    x, w, r = (b.input(k, TensorType("f64", a.shape)) for k, a in zip("xwr", arrays, strict=True))
    other = b.input("other", TensorType("f64", (4, 5, 2)))
    y = b.add("GRU", [x, w, r], {"hidden_size": 3}, 1)[0]
    loss = b.op("ReduceSum", y, keepdims=0)
    for public, v in zip(("dx", "dw"), b.add(GRADIENT, [loss, x, w, other, w], {"xs": 2, "zs": 0}, 2), strict=True):
        b.output(public, v)
    x5 = np.random.default_rng(4).normal(size=(4, 5, 2))
    feeds = dict(zip("xwr", arrays, strict=True), other=x5)
    found = run(expand_gradients(b.build()), feeds)
    graph, feeds = graph_of("GRU", {}, [x5, *arrays[1:]])
    there = Builder()
    names = there.sources_of(graph)
    for node in graph.nodes:
        there.copy(node, names, graph)
    there.output("loss", there.op("ReduceSum", names[graph.outputs["out0"]], keepdims=0))
    expected = run(with_gradients(there.build(), "loss", ["in0", "in1"]), feeds)
    np.testing.assert_allclose(found["dx"], expected["d0"], rtol=1e-12)
    np.testing.assert_allclose(found["dw"], expected["d1"], rtol=1e-12)


def test_padding_has_no_gradient() -> None:
    graph, feeds = form("GRU, linear before reset, both ways, lengths")
    d = run(with_gradients(graph, "out0", ["in0"]), feeds)["d0"]
    for n, length in enumerate(feeds["in4"]):
        assert d[:length, n].all()
        assert not d[length:, n].any()
