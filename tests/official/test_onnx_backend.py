"""ONNX's own test suite through `compiler.backend`, all but the categories in `excluded`: the forward contract."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import onnx
import onnx.backend.test
import pytest
from onnx import ModelProto, TensorProto
from onnx.backend.test.loader import load_model_tests

import compiler
from tests.covering import in_few_words
from tests.official.excluded import REASONS, reason

TRAINING = frozenset(
    """
    test_adagrad test_adagrad_multiple test_adam test_adam_multiple test_momentum test_momentum_multiple
    test_nesterov_momentum test_gradient_of_add test_gradient_of_add_and_mul
    """.split()  # noqa: SIM905  (a table, not a list of strings)
)
"""The official tests of the training domain."""

KINDS = ("node", "real", "simple", "pytorch-converted", "pytorch-operator")


def _models() -> dict[str, ModelProto]:
    """Name of every official case -> its model."""
    models: dict[str, ModelProto] = {}
    data = Path(onnx.backend.test.__file__).parent / "data"
    for kind in KINDS:
        for case in load_model_tests(kind=kind):
            folder = (
                Path(case.model_dir) / "model.onnx" if case.model_dir else data / "light" / Path(str(case.url)).name
            )
            models[f"{case.name}_cpu"] = case.model or onnx.load(folder)
    return models


MODELS = _models()
WHY = {name: why for name, model in MODELS.items() if (why := reason(model))}


def _tolerances() -> dict[str, dict[str, float]]:
    """Two units in the last place for results in float16: the suite's own 1e-3 is about one.

    For inverse DFTs, what the expected values hold of the noise of numpy's transform in single precision: 1.9e-7 where
    the exact value is 0, and the suite's tolerance is 1e-7.
    """
    half = {"rtol": 2.0**-9}
    return {
        name.removesuffix("_cpu"): {"atol": 1e-6} if name.startswith("test_dft_inverse") else half
        for name, model in MODELS.items()
        if name.startswith("test_dft_inverse")
        or any(o.type.tensor_type.elem_type == TensorProto.FLOAT16 for o in model.graph.output)
    }


NETWORKS = ("bvlc_alexnet", "inception_v1", "inception_v2", "vgg19", "zfnet512")
"""Five of the suite's nine: the others have their operators, and forms of their own."""


def _again() -> set[str]:
    """Cases of which others show the same, for `make test-all`.

    Of an operator with many cases, those of whose forms, by the words of their names, others have each. With the
    operator's definition in its place, or CastLike for Cast: all but the first of each definition. Each computes what
    another case does, of operators that have cases of their own.
    """
    groups: defaultdict[tuple[object, ...], list[str]] = defaultdict(list)
    for name, model in MODELS.items():
        case, expanded, version = name.partition("_expanded")
        plain = f"{case}_cpu" if expanded else name.replace("castlike", "cast")
        twin = plain != name and plain in MODELS
        ops = [n.op_type for n in (MODELS[plain] if expanded and twin else model).graph.node]
        groups[(twin, version, *ops)].append(name)
    again = {f"test_{name}_cpu" for name in NETWORKS}
    for (twin, *_), names in groups.items():
        again |= {*names} - ({names[0]} if twin else in_few_words(names))
    return again - {f"{name}_cpu" for name in TRAINING}


AGAIN = _again()

suite = onnx.backend.test.BackendTest(compiler.backend, __name__, test_kwargs=_tolerances())
cases = suite.enable_report().test_cases
for case in cases.values():  # what is not ours to run would show as thousands of skipped tests
    for name in [n for n in vars(case) if n.startswith("test_") and (n in WHY or n not in MODELS)]:
        delattr(case, name)
    for name in AGAIN & vars(case).keys():
        pytest.mark.exhaustive(vars(case)[name])
globals().update(cases)


@pytest.fixture(autouse=True, scope="session")
def _models_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The suite copies its larger models to a folder, by default in the user's home."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(os.environ, "ONNX_HOME", str(tmp_path_factory.mktemp("onnx")))
        yield


def test_everything_else_is_there() -> None:
    """The training tests, and every case without a reason, are collected."""
    collected = {name for case in cases.values() for name in vars(case) if name.startswith("test_")}
    assert {f"{n}_cpu" for n in TRAINING} <= collected
    assert collected == MODELS.keys() - WHY.keys()
    assert len(collected) > 1700


def test_reasons_are_needed_and_few() -> None:
    counts = Counter(WHY.values())
    assert counts.keys() == REASONS.keys()
    assert sum(counts.values()) < len(MODELS) / 7
