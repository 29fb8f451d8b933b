"""RNN, GRU and LSTM and all their gradients against PyTorch, in float64. An extra: skipped where PyTorch is absent."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.gradcheck import run, scalar, with_gradients
from tests.passes.gradients.test_recurrent import graph_of, operands

torch = pytest.importorskip("torch")

ORDER = {"RNN": [0], "GRU": [1, 0, 2], "LSTM": [0, 2, 3, 1]}
"""Where PyTorch's gates (r, z, n; i, f, g, o) are among ONNX's (z, r, h; i, o, f, c)."""


def by_torch(op: str, arrays: list[Any], backward: bool, both: bool, lens: list[int] | None) -> tuple[Any, list[Any]]:
    """A layer with these weights; its outputs in ONNX's layout, and the tensors to differentiate by."""
    x, w, r, bias, _, *states = arrays
    hidden = r.shape[2]
    leaves = [torch.tensor(a, requires_grad=True) for a in (x, w, r, bias, *states)]
    x, w, r, bias, *states = leaves
    layer = getattr(torch.nn, op)(w.shape[2], hidden, bidirectional=both, dtype=torch.float64)

    def gates(v: Any) -> Any:
        """In PyTorch's order."""
        return v.reshape(len(ORDER[op]), hidden, *v.shape[1:])[ORDER[op]].reshape(v.shape)

    given = {}
    for d in range(w.shape[0]):
        suffix = "_reverse" if d else ""
        given[f"weight_ih_l0{suffix}"], given[f"weight_hh_l0{suffix}"] = gates(w[d]), gates(r[d])
        given[f"bias_ih_l0{suffix}"], given[f"bias_hh_l0{suffix}"] = map(gates, bias[d].chunk(2))
    inner = x.flip(0) if backward else x
    if lens:
        inner = torch.nn.utils.rnn.pack_padded_sequence(inner, lens, enforce_sorted=False)
    initial = tuple(states) if op == "LSTM" else states[0]
    y, last = torch.func.functional_call(layer, given, (inner, initial))
    if lens:
        y, _ = torch.nn.utils.rnn.pad_packed_sequence(y, total_length=x.shape[0])
    y = y.flip(0) if backward else y
    y = y.reshape(*y.shape[:2], -1, hidden).transpose(1, 2)
    return [y, *(last if op == "LSTM" else (last,))], leaves


@pytest.mark.parametrize("op", ORDER)
@pytest.mark.parametrize(
    ("direction", "lens"),
    [
        ("forward", None),
        ("reverse", None),
        ("bidirectional", None),
        ("forward", [2, 5, 1]),
        ("bidirectional", [3, 1, 5]),
    ],
)
def test_agreement_with_torch(op: str, direction: str, lens: list[int] | None) -> None:
    arrays = operands(op, direction, "p", lens, sizes=(5, 3, 4, 3))
    attrs = {"direction": direction, **({"linear_before_reset": 1} if op == "GRU" else {})}
    graph, feeds = graph_of(op, attrs, arrays)
    expected, leaves = by_torch(op, arrays[:7], direction == "reverse", direction == "bidirectional", lens)
    for mine, value in zip(run(graph, feeds).values(), expected, strict=True):
        np.testing.assert_allclose(mine, value.detach().numpy(), rtol=1e-10, atol=1e-12)
    weighted = scalar(graph, list(graph.outputs), np.random.default_rng(3), square=True)
    xs = [x for x, a in feeds.items() if a.dtype == np.float64]
    found = run(with_gradients(weighted, "loss", xs), feeds)
    rng = np.random.default_rng(3)
    loss = 0
    for value in expected:
        weights = rng.uniform(0.5, 1.5, value.shape) * rng.choice([-1, 1], value.shape)
        loss = loss + (value * torch.tensor(weights) * (value + 0.7)).sum()
    loss.backward()
    for i, leaf in enumerate(leaves):
        np.testing.assert_allclose(found[f"d{i}"], leaf.grad.numpy(), rtol=1e-9, atol=1e-11)
