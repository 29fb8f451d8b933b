"""Whatever is done to a model: it is refused with an error of ours, or it works. Nothing else is raised."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import onnx
import pytest

from compiler.errors import CompileError
from compiler.frontend import load
from examples import gan
from tests.frontend.small import linear, make_model
from tests.models.loops import loops

NESTED = make_model(
    """g (bool c, float[2] x) => (float[2] y)
    {
      h = local.f(x)
      k = Constant<value_floats=[1.0, 2.0]>()
      z = Mul(h, k)
      y = If(c) <
        then_branch = a () => (float[2] p) { p = Abs(z) },
        else_branch = b () => (float[2] q) {
          r = Neg(h)
          q = ai.onnx.preview.training.Gradient<xs=["r"], zs=["x"], y="h">(r, x)
        }>
    }""",
    functions="""<domain: "local", opset_import: ["": 12]>
    f <al: float = 0.5> (a) => (b)
    { t = LeakyRelu<alpha: float = @al>(a) s = ReduceSum<axes=[0]>(t) b = Softmax<axis=0>(t) }""",
)
OLD = make_model(
    """g (float[2,3,4] x) => (float[1,2,12] y) <int64[2] to = {2, 12}>
    {
      a = Clip<min=0.0>(x)
      b = Reshape(a, to)
      c = Unsqueeze<axes=[0]>(b)
      d = Softmax<axis=1>(c)
      e = Pad<pads=[0,0,0,0,0,0]>(d)
      f = Upsample<scales=[1.0, 1.0, 1.0]>(e)
      y, mask = Dropout(f)
    }""",
    opset=8,
)
MODELS = {"linear": linear(), "nested": NESTED, "old": OLD, "gan": gan.build(), "loops": loops()}


def messages(message: Any) -> Iterator[Any]:
    """A protobuf message and all in it."""
    yield message
    for field, value in message.ListFields():
        if field.type == field.TYPE_MESSAGE:
            for inner in value if field.is_repeated else [value]:
                yield from messages(inner)


def mutate(model: onnx.ModelProto, rng: random.Random) -> None:
    """Remove, repeat or replace one field somewhere."""
    message = rng.choice([m for m in messages(model) if m.ListFields()])
    field, value = rng.choice(message.ListFields())
    names = ["", "nope", "x", "h", "y", "If", "Neg", "Gradient", "local", "ai.onnx.preview.training"]
    new: Any = {
        field.TYPE_STRING: rng.choice(names),
        field.TYPE_BYTES: rng.choice([b"", b"y", b"\xff", b"1234"]),
        field.TYPE_FLOAT: rng.choice([0.0, -1.0, float("nan"), 1e30]),
    }.get(field.type, rng.choice([0, -1, 1, 2, 7, 100, 2**31 - 1, -(2**31)]))
    with suppress(ValueError, TypeError):  # the field does not take this number
        if not field.is_repeated:
            if rng.random() < 0.3 or field.type == field.TYPE_MESSAGE:
                message.ClearField(field.name)
            else:
                setattr(message, field.name, new)
            return
        i = rng.randrange(len(value))
        if rng.random() < 0.3:
            del value[i]
        elif field.type == field.TYPE_MESSAGE:
            value.add().CopyFrom(value[i])
        else:
            value[i] = new


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", MODELS)
def test_mutations(name: str, seed: int) -> None:
    rng = random.Random(f"{name} {seed}")
    for _ in range(25):
        model = onnx.ModelProto()
        model.CopyFrom(MODELS[name])
        for _ in range(rng.randint(1, 3)):
            mutate(model, rng)
        with suppress(CompileError):
            source = load(model)
            source.program(dict.fromkeys(source.symbols, 3))


@pytest.mark.parametrize("name", MODELS)
def test_the_models_themselves_are_good(name: str) -> None:
    source = load(MODELS[name])
    source.program(dict.fromkeys(source.symbols, 3))


@pytest.mark.parametrize(
    "attributes",
    [{"axes": 1}, {"axes": [0.5]}, {"axes": "x"}, {"axes": [1], "keepdims": [1]}, {"axes": [1], "more": 1}],
)
def test_attributes_of_the_wrong_kind_do_not_reach_onnx(attributes: dict[str, Any]) -> None:
    """onnx.version_converter crashes the process when `axes` is a single integer."""
    node = onnx.helper.make_node("ReduceSum", ["x"], ["y"], "sum", **attributes)
    info = [onnx.helper.make_tensor_value_info(v, 1, [2, 3]) for v in "xy"]
    model = onnx.helper.make_model(
        onnx.helper.make_graph([node], "g", info[:1], info[1:]), opset_imports=[onnx.helper.make_opsetid("", 9)]
    )
    with pytest.raises(CompileError, match="in node 'sum'"):
        load(model)
