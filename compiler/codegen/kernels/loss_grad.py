"""Gradients of NegativeLogLikelihoodLoss and SoftmaxCrossEntropyLoss.

Everything is [N, C, D], as in `loss`. Labels out of range get no gradient; a step with such labels is refused anyway.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from compiler.codegen.calls import Arg, Call, Data, In, Site, lowers
from compiler.codegen.kernels.loss import Labels, labels_of, total_weight
from compiler.codegen.native import ITEMSIZE, Kernel, dtype, i32, i64, inline, kernel, make_tile, per_target, pointer
from compiler.codegen.native.math import exp
from compiler.codegen.native.selection import select
from compiler.ir.types import Tensor, numpy_dtype

FEW, TOGETHER = 64, 1024
"""Classes that are few for a row of their own, and about how many elements are then taken together."""

RUNS = 16
"""Runs of TOGETHER elements that share what was looked up for their positions."""


@inline
def counts(c: Any, classes: Any, ignoring: Any, ignored: Any) -> Any:
    """Whether a label is a class that is not ignored."""
    return 0 <= c < classes and not (ignoring and c == ignored)


@per_target
def make_gradient_rows(name: str, label: str) -> Kernel:
    """Rows of classes: zeros, and the share of its sample at the label. Arguments as for `make_gradient_planes`."""
    ptr, index = pointer(name), pointer(label)
    size, label_size = ITEMSIZE[name], ITEMSIZE[label]
    zero, one = dtype(name).value(0), dtype(name).value(1)

    @kernel
    def label_gradient_rows(
        lo: int, hi: int, dy: int, step: int, labels: int, weights: int, weighted: int, total: int, dst: int, meta: int
    ) -> None:
        m, g, w, whole = i64(meta, 5), ptr(dy, 0), ptr(weights, 2), ptr(total, 3)[0]
        classes, ignoring, ignored = m[0], m[1], m[2]
        p = index(labels + label_size * lo, 1)
        for r in range(hi - lo):
            y = ptr(dst + size * (lo + r) * classes, 4)
            for i in range(classes):
                y[i] = zero
            c: Any = np.int64(p[r])
            if counts(c, classes, ignoring, ignored):
                y[c] = -g[(lo + r) * step] / whole * (w[c] if weighted else one)

    return label_gradient_rows


@per_target
def make_gradient_planes(name: str, label: str) -> Kernel:
    """Planes (n, c) of `inner` elements: -dy / total * weight where the label is c, else 0.

    step: 0 if dy is a scalar, 1 if it has the shape of the labels. meta: as `Labels.words`.
    """
    ptr, index = pointer(name), pointer(label)
    size, label_size = ITEMSIZE[name], ITEMSIZE[label]
    zero, one = dtype(name).value(0), dtype(name).value(1)

    @kernel
    def label_gradient_planes(
        lo: int,
        hi: int,
        dy: int,
        step: int,
        labels: int,
        weights: int,
        weighted: int,
        total: int,
        dst: int,
        meta: int,
        inner: int,
    ) -> None:
        m, w, whole = i64(meta, 5), ptr(weights, 2), ptr(total, 3)[0]
        classes, ignoring, ignored = m[0], m[1], m[2]
        for u in range(hi - lo):
            n, c = (lo + u) // classes, (lo + u) % classes
            p, g = index(labels + label_size * n * inner, 1), ptr(dy + size * n * inner * step, 0)
            y = ptr(dst + size * (lo + u) * inner, 4)
            factor = w[c] if weighted else one
            if ignoring and c == ignored:
                for i in range(inner):
                    y[i] = zero
            elif step:
                for i in range(inner):
                    y[i] = -g[i] / whole * factor if p[i] == c else zero
            else:
                share = -g[0] / whole * factor
                for i in range(inner):
                    y[i] = share if p[i] == c else zero

    return label_gradient_planes


@lowers("onnxc.NegativeLogLikelihoodLossGrad")
def negative_log_likelihood_loss_grad(site: Site) -> list[Call]:
    """Inputs dy, labels, weights?; attributes reduction, ignore_index, classes. Labels out of range get nothing."""
    out = site.out()
    if not out.size:
        return []
    name, inner = out.dtype, prod(out.shape[2:])
    labels = labels_of(site, 1, out.shape[1])
    calls, args = _shares(site, labels, site.read(2) if site.has(2) else None, name)
    args += (site.write(), labels.words)
    if inner == 1:
        return [*calls, Call(make_gradient_rows(name, labels.dtype), out.shape[0], args)]
    planes = Call(make_gradient_planes(name, labels.dtype), out.shape[0] * out.shape[1], (*args, inner))
    return [*calls, planes]


def _number(name: str, value: int) -> Data:
    return Data(Tensor(np.array(value, numpy_dtype(name))))


def _shares(site: Site, labels: Labels, weights: In | None, name: str) -> tuple[list[Call], tuple[Arg, ...]]:
    """Arguments that give the share of each sample in the loss, from dy on, and calls that come first."""
    how = site.attr("reduction", "mean")
    calls: list[Call] = []
    total: Arg = _number(name, labels.count if how == "mean" else 1)
    if how == "mean" and (weights is not None or labels.ignored is not None):
        calls, total = total_weight(labels, weights, name)
    dy = site.read(0)
    return calls, (dy, int(how == "none"), labels.source, weights or dy, int(weights is not None), total)


@per_target
def make_score_gradient(name: str, label: str) -> Kernel:
    """Rows of classes: share * (exp(log_prob) - 1 at the label). Arguments as for `make_gradient_planes`, and log_prob.

    Rows of few classes would leave most lanes of a vector empty: their exponentials are taken many rows at a time.
    """
    ptr, index = pointer(name), pointer(label)
    size, label_size = ITEMSIZE[name], ITEMSIZE[label]
    zero, one = dtype(name).value(0), dtype(name).value(1)

    @kernel
    def score_gradient(
        lo: int,
        hi: int,
        dy: int,
        step: int,
        labels: int,
        weights: int,
        weighted: int,
        total: int,
        log_prob: int,
        dst: int,
        meta: int,
    ) -> None:
        m, g, w, whole = i64(meta, 5), ptr(dy, 0), ptr(weights, 2), ptr(total, 3)[0]
        classes, ignoring, ignored = m[0], m[1], m[2]
        few = classes < FEW
        group = max(1, TOGETHER // classes)
        for first in range(lo, hi, group):
            at, rows = size * first * classes, min(group, hi - first)
            p = index(labels + label_size * first, 1)
            if few:
                x, y = ptr(log_prob + at, 6), ptr(dst + at, 4)
                for i in range(rows * classes):
                    y[i] = exp(x[i])
            for r in range(rows):
                c: Any = np.int64(p[r])
                share, hit = zero, counts(c, classes, ignoring, ignored)
                if hit:
                    share = -g[(first + r) * step] / whole * (w[c] if weighted else one)
                x, y = ptr(log_prob + at + size * r * classes, 6), ptr(dst + at + size * r * classes, 4)
                if few:
                    for i in range(classes):
                        y[i] = -(y[i] * share)
                else:
                    for i in range(classes):
                        y[i] = -(exp(x[i]) * share)
                if hit:
                    y[c] += share

    return score_gradient


@per_target
def make_score_gradient_planes(name: str, label: str) -> Kernel:
    """Planes (n, c) of `inner` positions: share * ([c is the label] - exp(log_prob)). Else as `make_score_gradient`.

    A unit of work is `planes` neighbouring classes of a sample at up to TOGETHER positions, for which it looks up label
    and share once. Small planes are taken many at a time, with as many copies of labels and shares side by side; a copy
    counts classes from its own plane on, so that one comparison serves all.
    """
    ptr, index = pointer(name), pointer(label)
    size, label_size = ITEMSIZE[name], ITEMSIZE[label]
    zero = dtype(name).value(0)
    shares, classes_left = make_tile(TOGETHER, name), make_tile(TOGETHER, "i32")

    @kernel
    def score_gradient_planes(
        lo: int,
        hi: int,
        dy: int,
        step: int,
        labels: int,
        weights: int,
        weighted: int,
        total: int,
        log_prob: int,
        dst: int,
        meta: int,
        inner: int,
        planes: int,
    ) -> None:
        m, w, whole = i64(meta, 5), ptr(weights, 2), ptr(total, 3)[0]
        classes, ignoring, ignored = m[0], m[1], m[2]
        share, left = ptr(shares(), 7), i32(classes_left(), 8)
        blocks, chunks = (inner + TOGETHER - 1) // TOGETHER, (classes + planes - 1) // planes
        copies = min(max(1, TOGETHER // inner), planes)
        same = -ptr(dy, 0)[0] / whole
        for u in range(lo, hi):
            n, first, at = u // blocks // chunks, u // blocks % chunks * planes, u % blocks * TOGETHER
            count, positions = min(planes, classes - first), min(TOGETHER, inner - at)
            p = index(labels + label_size * (n * inner + at), 1)
            g = ptr(dy + size * (n * inner + at) * step, 0)
            for i in range(positions):
                c: Any = np.int64(p[i])
                left[i] = select(first <= c < first + count, np.int32(c - first), np.int32(-1))
                share[i] = select(counts(c, classes, ignoring, ignored), -g[i] / whole if step else same, zero)
            if weighted:
                for i in range(positions):
                    c = np.int64(p[i])
                    if counts(c, classes, ignoring, ignored):
                        share[i] *= w[c]
            for i in range(positions, copies * positions):
                share[i] = share[i - positions]
                left[i] = left[i - positions] - np.int32(1)
            for k in range(0, count, copies):
                here = size * ((n * classes + first + k) * inner + at)
                x, y = ptr(log_prob + here, 6), ptr(dst + here, 4)
                c32 = np.int32(k)
                for i in range(min(copies, count - k) * positions):
                    y[i] = select(left[i] == c32, share[i], zero) - exp(x[i]) * share[i]

    return score_gradient_planes


@lowers("onnxc.SoftmaxCrossEntropyLossGrad")
def softmax_cross_entropy_loss_grad(site: Site) -> list[Call]:
    """Inputs dy, log_prob [N, C, d..], labels, weights?; attributes reduction, ignore_index."""
    out = site.out()
    if not out.size:
        return []
    n, classes, inner = out.shape[0], out.shape[1], prod(out.shape[2:])
    labels = labels_of(site, 2, classes)
    calls, args = _shares(site, labels, site.read(3) if site.has(3) else None, out.dtype)
    piece = classes * ITEMSIZE[out.dtype] if inner == 1 else 0
    args += (site.read(1, piece=piece), site.write(piece=piece), labels.words)
    if inner == 1:
        return [*calls, Call(make_score_gradient(out.dtype, labels.dtype), n, args)]
    planes = min(classes, RUNS * max(1, TOGETHER // inner))
    units = n * -(-classes // planes) * -(-inner // TOGETHER)
    return [*calls, Call(make_score_gradient_planes(out.dtype, labels.dtype), units, (*args, inner, planes))]
