"""Losses. Class weights are differentiated through the bodies of the losses."""

from __future__ import annotations

from compiler.passes.gradients.rule import Call, gradient
from compiler.passes.gradients.rules.reduction import log_softmax_gradient
from compiler.passes.gradients.value import Value


def _of_log_prob(r: Call, dy: Value, classes: int) -> Value:
    """The gradient by log-probabilities of the loss with the attributes, labels and weights of this node."""
    operands = [r.x(1)] + ([r.x(2)] if r.has(2) else [])
    ignored = r.node.attr("ignore_index")
    return dy.op(
        "onnxc.NegativeLogLikelihoodLossGrad",
        *operands,
        reduction=r.node.attr("reduction", "mean"),
        ignore_index=ignored,
        classes=classes,
    )


def _of_scores(r: Call, dy: Value) -> Value:
    """The gradient by scores: all in one node, as its parts are long and mostly zeros."""
    operands = [r.y(1), r.x(1)] + ([r.x(2)] if r.has(2) else [])
    attrs = {"reduction": r.node.attr("reduction", "mean"), "ignore_index": r.node.attr("ignore_index")}
    return dy.op("onnxc.SoftmaxCrossEntropyLossGrad", *operands, **attrs)


@gradient("NegativeLogLikelihoodLoss", by_body=(2,))
def negative_log_likelihood_loss(r: Call) -> None:
    """Minus the weight, at each label."""
    r.give(0, lambda: _of_log_prob(r, r.dy, r.x().shape[1]))


@gradient("SoftmaxCrossEntropyLoss", saves=(1,), by_body=(2,))
def softmax_cross_entropy_loss(r: Call) -> None:
    """Through the log-probabilities, which may have a gradient of their own."""
    loss, direct = r.dys(0), r.dys(1)
    if loss is not None and direct is None:
        r.give(0, lambda: _of_scores(r, loss))
        return
    if loss is not None:
        through = _of_log_prob(r, loss, r.x().shape[1])
        direct = through if direct is None else direct + through
    if direct is not None:
        r.give(0, log_softmax_gradient(direct, r.y(1), 1))


@gradient("onnxc.NegativeLogLikelihoodLossGrad", by_body=(2,))
def negative_log_likelihood_loss_grad(r: Call) -> None:
    """Linear in dy: its adjoint is the loss itself."""
    operands = [r.x(1)] + ([r.x(2)] if r.has(2) else [])
    attrs = {"reduction": r.node.attr("reduction", "mean"), "ignore_index": r.node.attr("ignore_index")}
    r.give(0, lambda: r.dy.op("NegativeLogLikelihoodLoss", *operands, **attrs))
