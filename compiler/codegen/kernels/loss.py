"""NegativeLogLikelihoodLoss and SoftmaxCrossEntropyLoss.

Log-probabilities are [N, C, D]: samples, classes, and all further axes as one. Labels are checked before the step
writes anything; the kernels here stay inside their memory whatever a label is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from compiler.codegen.calls import Arg, Call, In, Out, Site, Status, Temp, Words, lowers
from compiler.codegen.kernels.common import read_only
from compiler.codegen.kernels.reduce import reduce_calls
from compiler.codegen.kernels.softmax import softmax_calls
from compiler.codegen.native import ITEMSIZE, Kernel, atomic_max, dtype, i64, kernel, per_target, pointer


@dataclass(frozen=True)
class Labels:
    """What the kernels know of labels: their memory, dtype and number, the classes, and which label is ignored."""

    source: In
    dtype: str
    count: int
    classes: int
    ignored: int | None

    @property
    def words(self) -> Words:
        """Classes; whether a label is ignored, and which."""
        return Words((self.classes, int(self.ignored is not None), self.ignored or 0))


def labels_of(site: Site, i: int, classes: int) -> Labels:
    """The i-th input as labels, with the node's ignore_index."""
    t = site.type(i)
    return Labels(site.read(i), t.dtype, t.size, classes, site.node.attr("ignore_index"))


@per_target
def make_check(label: str) -> Kernel:
    """Report the first label that is neither in [0, classes) nor ignored."""
    ptr, size = pointer(label), ITEMSIZE[label]

    @kernel
    def check_labels(lo: int, hi: int, labels: int, meta: int, status: int, code: int) -> None:
        m, p = i64(meta, 1), ptr(labels + size * lo, 0)
        classes, ignoring, ignored = m[0], m[1], m[2]
        wrong = hi
        for i in range(hi - lo):
            c: Any = np.int64(p[i])
            if (c < 0 or c >= classes) and not (ignoring and c == ignored):
                wrong = min(wrong, lo + i)
        if wrong < hi:
            atomic_max(status, code - wrong)

    return check_labels


@per_target
def make_weights(name: str, label: str) -> Kernel:
    """dst[i]: the weight of label i; 0 if it is ignored, 1 if there are no weights (address 0)."""
    ptr, index = pointer(name), pointer(label)
    size, label_size = ITEMSIZE[name], ITEMSIZE[label]
    zero, one = dtype(name).value(0), dtype(name).value(1)

    @kernel
    def label_weights(lo: int, hi: int, labels: int, weights: int, weighted: int, dst: int, meta: int) -> None:
        m, p, w = i64(meta, 1), index(labels + label_size * lo, 0), ptr(weights, 2)
        classes, ignoring, ignored = m[0], m[1], m[2]
        d = ptr(dst + size * lo, 3)
        for i in range(hi - lo):
            c: Any = np.int64(p[i])
            if ignoring and c == ignored:
                d[i] = zero
            elif weighted:
                d[i] = w[min(max(c, 0), classes - 1)]
            else:
                d[i] = one

    return label_weights


@per_target
def make_pick(name: str, label: str) -> Kernel:
    """dst[n, d] = -weight * x[n, label, d]; 0 where the label is ignored. The range counts (n, d)."""
    ptr, index = pointer(name), pointer(label)
    size, label_size = ITEMSIZE[name], ITEMSIZE[label]
    zero, one = dtype(name).value(0), dtype(name).value(1)

    @kernel
    def pick_loss(
        lo: int, hi: int, src: int, labels: int, weights: int, weighted: int, dst: int, meta: int, inner: int
    ) -> None:
        m, x, w = i64(meta, 1), ptr(src, 0), ptr(weights, 3)
        classes, ignoring, ignored = m[0], m[1], m[2]
        p, y = index(labels + label_size * lo, 2), ptr(dst + size * lo, 4)
        step = classes if inner == 1 else 1  # of x, from a label to the next of a run
        i = 0
        while i < hi - lo:
            n, d = (lo + i) // inner, (lo + i) % inner
            end = hi - lo if inner == 1 else min(hi - lo, i + inner - d)
            at = n * classes * inner + d - i * step
            for j in range(i, end):
                c: Any = np.int64(p[j])
                if ignoring and c == ignored:
                    y[j] = zero
                else:
                    c = min(max(c, 0), classes - 1)
                    y[j] = -x[at + j * step + c * inner] * (w[c] if weighted else one)
            i = end

    return pick_loss


@per_target
def make_divide(name: str) -> Kernel:
    """Dst = a / b, one element."""
    ptr = pointer(name)

    @kernel
    def divide(lo: int, hi: int, a: int, b: int, dst: int) -> None:
        ptr(dst, 2)[0] = ptr(a, 0)[0] / ptr(b, 1)[0]

    return divide


def _weights(labels: Labels, weights: In | None, name: str, dst: Temp) -> Call:
    read: tuple[Arg, ...] = (weights or labels.source, int(weights is not None))
    return Call(make_weights(name, labels.dtype), labels.count, (labels.source, *read, dst, labels.words))


def total_weight(labels: Labels, weights: In | None, name: str) -> tuple[list[Call], Temp]:
    """Calls that sum the weights of all labels, and where the sum is then."""
    size = ITEMSIZE[name]
    each, total = Temp("weights", size * labels.count), Temp("total weight", size)
    calls = [_weights(labels, weights, name, each)] if labels.count else []
    calls += reduce_calls("Sum", (labels.count,), frozenset({0}), read_only(each), name, total, name)
    return calls, read_only(total)


def loss_calls(
    name: str, shape: tuple[int, ...], log_prob: In | Temp, labels: Labels, weights: In | None, how: str, dst: Out
) -> list[Call]:
    """The loss of log-probabilities of this shape."""
    inner, size = prod(shape[2:]), ITEMSIZE[name]
    each: Out | Temp = dst if how == "none" else Temp("losses", size * labels.count)
    read: tuple[Arg, ...] = (weights or log_prob, int(weights is not None))
    calls = []
    if labels.count:
        rows = replace(log_prob, piece=shape[1] * size) if inner == 1 and isinstance(log_prob, In) else log_prob
        check = (labels.source, labels.words, Status(f"label out of range [0, {labels.classes})", labels.source.value))
        calls = [
            Call(make_check(labels.dtype), labels.count, check, check=True),
            Call(
                make_pick(name, labels.dtype),
                labels.count,
                (rows, labels.source, *read, each, labels.words, inner),
            ),
        ]
    if not isinstance(each, Temp):
        return calls
    everything, losses = frozenset({0}), read_only(each)
    if how == "sum":
        return calls + reduce_calls("Sum", (labels.count,), everything, losses, name, dst, name)
    if weights is None and labels.ignored is None:
        return calls + reduce_calls("Mean", (labels.count,), everything, losses, name, dst, name)
    loss = Temp("loss", size)
    calls += reduce_calls("Sum", (labels.count,), everything, losses, name, loss, name)
    more, total = total_weight(labels, weights, name)
    return [*calls, *more, Call(make_divide(name), 1, (read_only(loss), total, dst))]


@lowers("NegativeLogLikelihoodLoss")
def negative_log_likelihood_loss(site: Site) -> list[Call]:
    """Inputs log-probabilities [N, C, d..], labels [N, d..], weights [C]?; attributes reduction, ignore_index."""
    t = site.type(0)
    weights = site.read(2) if site.has(2) else None
    labels = labels_of(site, 1, t.shape[1])
    return loss_calls(t.dtype, t.shape, site.read(0), labels, weights, site.attr("reduction"), site.write())


@lowers("SoftmaxCrossEntropyLoss")
def softmax_cross_entropy_loss(site: Site) -> list[Call]:
    """The same on scores, through their log-softmax: the second output, or scratch if that is absent."""
    t = site.type(0)
    weights = site.read(2) if site.has(2) else None
    labels = labels_of(site, 1, t.shape[1])
    name = site.node.output(1)
    log_prob: Out | Temp = Out(name) if name else Temp("log_prob", t.nbytes)
    calls = softmax_calls(t, 1, True, site.read(0), log_prob)
    source = In(name) if isinstance(log_prob, Out) else read_only(log_prob)
    if not site.node.output(0):
        return calls
    return calls + loss_calls(t.dtype, t.shape, source, labels, weights, site.attr("reduction"), site.write())
