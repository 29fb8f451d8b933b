"""The losses against the standard's formulas in double, and their gradient against its definition."""

import numpy as np
import pytest

import compiler.codegen.kernels.loss_grad  # noqa: F401
from tests.codegen.definition import check_definition
from tests.codegen.runner import Reported, run_op

FLOATS = [np.float32, np.float64]
RNG = np.random.default_rng(0)


def reference(log_prob, labels, weights, how, ignored):
    x = np.moveaxis(log_prob.astype(np.float64), 1, -1)
    valid = np.ones(labels.shape, bool) if ignored is None else labels != ignored
    safe = np.where(valid, labels, 0)
    w = np.ones(x.shape[-1]) if weights is None else weights.astype(np.float64)
    w = np.where(valid, w[safe], 0)
    loss = -np.take_along_axis(x, safe[..., None], -1)[..., 0] * w
    with np.errstate(invalid="ignore"):
        return {"none": loss, "sum": loss.sum(), "mean": loss.sum() / w.sum()}[how]


def log_softmax(x):
    z = x.astype(np.float64)
    z = z - z.max(1, keepdims=True)
    return z - np.log(np.exp(z).sum(1, keepdims=True))


CASES = [((5, 3), 0), ((64, 10), 1), ((3, 5, 2), 1), ((2, 4, 7, 11), 0), ((1, 3), 1), ((300, 40), 0)]


@pytest.mark.sweep(2)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("how", ["mean", "sum", "none"])
@pytest.mark.parametrize("ignored", [None, 1, -1, 255])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("shape", "narrow"), CASES)
def test_losses(dtype, how, ignored, weighted, shape, narrow):
    x = RNG.standard_normal(shape).astype(dtype)
    labels = RNG.integers(0, shape[1], (shape[0], *shape[2:])).astype(np.int32 if narrow else np.int64)
    if ignored is not None:
        labels.flat[::3] = ignored
    weights = RNG.uniform(0.5, 2, shape[1]).astype(dtype) if weighted else None
    operands = [x, labels, *([weights] if weighted else [])]
    attrs = {"reduction": how} | ({} if ignored is None else {"ignore_index": ignored})
    tolerance = {"rtol": 2e-6, "atol": 2e-6} if dtype == np.float32 else {"rtol": 1e-13, "atol": 1e-13}
    (got,) = run_op("NegativeLogLikelihoodLoss", *operands, **attrs)
    np.testing.assert_allclose(got, reference(x, labels, weights, how, ignored), **tolerance)
    want = reference(log_softmax(x), labels, weights, how, ignored)
    (got,) = run_op("SoftmaxCrossEntropyLoss", *operands, **attrs)
    np.testing.assert_allclose(got, want, **tolerance)
    got, log_prob = run_op("SoftmaxCrossEntropyLoss", *operands, outputs=2, **attrs)
    np.testing.assert_allclose(got, want, **tolerance)
    np.testing.assert_allclose(log_prob, log_softmax(x), **tolerance)


def test_large_batch():
    x = RNG.standard_normal((70000, 3)).astype(np.float32)
    labels = RNG.integers(0, 3, 70000)
    (got,) = run_op("SoftmaxCrossEntropyLoss", x, labels, ignore_index=2)
    np.testing.assert_allclose(got, reference(log_softmax(x), labels, None, "mean", 2), rtol=1e-6)


@pytest.mark.parametrize("op", ["NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"])
def test_all_ignored(op):
    x, labels = np.zeros((4, 3), np.float32), np.full(4, 7)
    assert np.isnan(run_op(op, x, labels, ignore_index=7)[0])
    assert run_op(op, x, labels, ignore_index=7, reduction="sum")[0] == 0


@pytest.mark.parametrize("op", ["NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"])
@pytest.mark.parametrize("bad", [-1, 3, 2**40])
@pytest.mark.parametrize("at", [0, 3])
def test_bad_label_is_reported(op, bad, at):
    x, labels = np.zeros((4, 3), np.float32), np.zeros(4, np.int64)
    labels[at] = bad
    with pytest.raises(Reported, match=rf"label out of range \[0, 3\).*: element {at}$"):
        run_op(op, x, labels, ignore_index=-2)
    labels[3] = bad
    for threads in (1, 5):
        with pytest.raises(Reported, match=rf": element {at}$"):  # the first one, whatever thread finds which
            run_op(op, x, labels, ignore_index=-2, threads=[threads])
    run_op(op, x, labels, ignore_index=bad)


@pytest.mark.sweep(2)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("how", ["mean", "sum", "none"])
@pytest.mark.parametrize("ignored", [None, 1, -1])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("shape", "narrow"), CASES[:4])
def test_gradient(dtype, how, ignored, weighted, shape, narrow):
    labels = RNG.integers(0, shape[1], (shape[0], *shape[2:])).astype(np.int32 if narrow else np.int64)
    if ignored is not None:
        labels.flat[::3] = ignored
    dy = RNG.standard_normal(labels.shape if how == "none" else ()).astype(dtype)
    weights = [RNG.uniform(0.5, 2, shape[1]).astype(dtype)] if weighted else []
    attrs = {"reduction": how, "classes": shape[1]} | ({} if ignored is None else {"ignore_index": ignored})
    check_definition("onnxc.NegativeLogLikelihoodLossGrad", dy, labels, *weights, rtol=1e-6, **attrs)


SCORES = [((37, 3), False), ((5, 100), True), ((700, 2), False), ((3, 1), True)]
SCORES_OF_POSITIONS = [
    ((2, 3, 5, 7), False),  # fewer classes than planes that are taken together
    ((2, 4, 1, 1500), True),  # runs of positions, the last one short
    ((3, 21, 1030), False),  # runs of positions and of classes
    ((2, 400, 300), True),  # planes together, with some left over
    ((2, 4000, 5), False),  # the same, in more than one unit of work
    ((3, 1, 6), True),
]


@pytest.mark.sweep(2)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("how", ["mean", "sum", "none"])
@pytest.mark.parametrize("ignored", [None, 1, -1])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("shape", "narrow"), [*SCORES, *SCORES_OF_POSITIONS])
def test_gradient_by_scores(dtype, how, ignored, weighted, shape, narrow):
    labels = RNG.integers(0, shape[1], (shape[0], *shape[2:])).astype(np.int32 if narrow else np.int64)
    if ignored is not None:
        labels.flat[::3] = ignored
    dy = RNG.standard_normal(labels.shape if how == "none" else ()).astype(dtype)
    log_prob = log_softmax(4 * RNG.standard_normal(shape)).astype(dtype)
    weights = [RNG.uniform(0.5, 2, shape[1]).astype(dtype)] if weighted else []
    attrs = {"reduction": how} | ({} if ignored is None else {"ignore_index": ignored})
    check_definition("onnxc.SoftmaxCrossEntropyLossGrad", dy, log_prob, labels, *weights, **attrs)


@pytest.mark.parametrize("shape", [(4,), (4, 1), (1, 4), (1, 2, 2)])
@pytest.mark.parametrize("bad", [-5, 3, 2**32 + 1, -(2**32)])
def test_gradient_by_scores_of_labels_out_of_range(shape, bad):
    log_prob = log_softmax(RNG.standard_normal((shape[0], 3, *shape[1:]))).astype(np.float32)
    labels = np.array([0, bad, bad, 2])
    (got,) = check_definition(
        "onnxc.SoftmaxCrossEntropyLossGrad",
        np.float32(2).reshape(()),
        log_prob,
        labels.reshape(shape),
        reduction="sum",
    )
    rows = np.moveaxis(got, 1, -1).reshape(4, 3)
    assert not rows[1:3].any()
    assert rows[[0, 3]].all()


@pytest.mark.parametrize("shape", [(4, 3), (4, 3, 2)])
def test_gradient_by_scores_where_all_is_ignored(shape):
    log_prob = log_softmax(RNG.standard_normal(shape)).astype(np.float32)
    labels = np.full((shape[0], *shape[2:]), 7)
    attrs = {"reduction": "mean", "ignore_index": 7}
    (got,) = check_definition("onnxc.SoftmaxCrossEntropyLossGrad", np.float32(2).reshape(()), log_prob, labels, **attrs)
    assert not got.any()


def test_gradient_of_labels_out_of_range():
    labels = np.array([0, -5, 3, 2])
    for shape in ((4,), (4, 1), (1, 4)):
        check_definition(
            "onnxc.NegativeLogLikelihoodLossGrad",
            np.float32(2).reshape(()),
            labels.reshape(shape),
            reduction="sum",
            classes=3,
        )
