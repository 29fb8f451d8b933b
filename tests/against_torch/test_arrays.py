"""Tensors of PyTorch as inputs and as state: seen, not copied; of each type; what PyTorch refuses is told."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import compiler
from compiler.runtime.arguments import as_array
from compiler.runtime.arrays import as_plain
from tests.frontend.small import linear, make_model

torch = pytest.importorskip("torch")

TYPES = {
    "f32": torch.float32, "f64": torch.float64, "f16": torch.float16, "bf16": torch.bfloat16, "i8": torch.int8,
    "i32": torch.int32, "i64": torch.int64, "u8": torch.uint8, "u16": torch.uint16, "bool": torch.bool,
    "f8e4m3fn": torch.float8_e4m3fn, "f8e5m2": torch.float8_e5m2, "f8e4m3fnuz": torch.float8_e4m3fnuz,
    "f8e5m2fnuz": torch.float8_e5m2fnuz, "f8e8m0": torch.float8_e8m0fnu,
}  # fmt: skip


@pytest.mark.parametrize("dtype", TYPES)
def test_memory_is_shared(dtype: str) -> None:
    t = torch.tensor([[1, 0, 2], [4, 1, 8]]).to(TYPES[dtype])
    for part in (t, t[:, ::2], t.T):
        found = as_array("x", part, dtype)
        assert found.ctypes.data == part.data_ptr()
        same = (
            part.view(torch.uint8) if part.element_size() == 1 else part.view(torch.int16) if dtype == "bf16" else part
        )
        np.testing.assert_array_equal(found.view(same.numpy().dtype), same.numpy())
    assert as_array("x", t[:0], dtype).shape == (0, 3)
    assert as_array("x", t[1, 2], dtype).shape == ()


def test_the_memory_outlives_the_tensor() -> None:
    found = as_plain("x", torch.full((1000,), 1.5, dtype=torch.bfloat16))
    others = [torch.zeros(1000, dtype=torch.bfloat16) for _ in range(100)]  # these would get it
    assert (found.astype(np.float32) == 1.5).all()
    assert len(others) == 100


def test_a_step_on_tensors() -> None:
    step, same = (compiler.compile(linear(), dims={"N": 2}) for _ in range(2))
    x, t = torch.arange(6, dtype=torch.float32).reshape(2, 3), torch.ones(2, 1)
    assert step(x=x, t=t)["loss"] == same(x=x.numpy(), t=t.numpy())["loss"]
    step.state["w"] = torch.tensor([[1.0], [2.0], [3.0]])
    assert step.infer(x=x.flip(1).T.contiguous().T)["y"].ravel().tolist() == [2 + 2 + 0, 5 + 8 + 9]
    assert torch.from_numpy(step.state["w"]).shape == (3, 1)


def test_bfloat16_in_and_out() -> None:
    step = compiler.compile(make_model("m (bfloat16[3] x) => (bfloat16[3] y) { y = Add(x, x) }"))
    x = torch.tensor([1.5, -2.0, 0.1], dtype=torch.bfloat16)
    found = torch.from_numpy(step(x=x)["y"]).view(torch.bfloat16)
    assert torch.equal(found, x + x)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (lambda: torch.ones(2, requires_grad=True), r"x is a tensor that requires grad, .*: give it with .detach\(\)"),
        (lambda: torch.nn.Linear(2, 2).weight, r"x is a tensor that requires grad"),
        (lambda: torch.ones(2).to_sparse(), r"x is no array: .*to_dense\(\)"),
        (lambda: torch.ones(2, device="meta"), "x is no array: .*meta"),
        (lambda: torch.ones(2, dtype=torch.float64), r"x is float64, the model takes float32: convert it"),
        (lambda: torch.ones(2, dtype=torch.bfloat16), "x is bfloat16, the model takes float32: convert it"),
        (lambda: torch.ones(2, dtype=torch.complex64), "x is complex64, the model takes float32"),
    ],
)
def test_what_is_told(value: Any, message: str) -> None:
    with pytest.raises(compiler.InputError, match=message):
        as_array("x", value(), "f32")
