"""Convolutions and pools: channels, groups, and windows that lie inside the padded input."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from compiler.ir.checks.base import NodeFacts, precondition, shown, wrong_shape
from compiler.ir.windows import SAME, Window, transposed_windows, windows


def window_lists(f: NodeFacts, n: int) -> Iterator[str]:
    """Lengths and signs of the attributes with an entry for each of n spatial axes."""
    lengths = {"kernel_shape": n, "strides": n, "dilations": n, "pads": 2 * n, "output_padding": n, "output_shape": n}
    for name, length in lengths.items():
        values = f.node.attr(name)
        if values is None:
            continue
        least = 0 if name in ("pads", "output_padding") else 1
        if len(values) != length:
            yield f"attribute {name!r} is {shown(values)}, where {length} numbers are expected"
        elif min(values, default=least) < least:
            yield f"attribute {name!r} is {shown(values)}: {min(values)} is too small"
    auto = f.attr("auto_pad") or "NOTSET"  # some ops have none
    if auto != "NOTSET" and any(f.node.attr("pads", ())):
        yield f"pads are given together with auto_pad {auto}: only one of them can count"
    elif auto in SAME and f.node.attr("pads") is not None:
        yield f"pads of 0 are given together with auto_pad {auto}: remove one of them"


def _kernel(f: NodeFacts) -> tuple[tuple[int, ...], list[str]]:
    """Spatial shape of the weights, and what is wrong with kernel_shape."""
    kernel = f.shape(1)[2:]
    problems = [f"the weights {shown(f.shape(1))} have an empty kernel"] if 0 in kernel else []
    if len(kernel) != len(f.shape(0)) - 2:
        problems.append(f"the weights {shown(f.shape(1))} and the input {shown(f.shape(0))} differ in rank")
    if f.node.attr("kernel_shape", kernel) != kernel:
        problems.append(f"kernel_shape is {shown(f.attr('kernel_shape'))}, but the weights have {shown(kernel)}")
    return kernel, problems


def _fit(axes: Sequence[Window]) -> Iterator[str]:
    for i, w in enumerate(axes):
        if w.out < 1 <= w.size:
            padded = w.size + w.before + w.after
            yield f"a kernel extent of {w.extent} exceeds the {padded} elements of spatial axis {i}, padding included"
        elif w.size < 1:
            yield f"spatial axis {i} is empty"


@precondition("Conv")
def _conv(f: NodeFacts) -> Iterator[str]:
    x, w, group = f.shape(0), f.shape(1), f.attr("group")
    if len(x) < 3:
        yield f"the input {shown(x)} has no spatial axis"
        return
    kernel, problems = _kernel(f)
    problems += window_lists(f, len(x) - 2)
    if group < 1 or x[1] != w[1] * group or x[1] == 0:
        problems.append(
            f"the weights take {w[1]} channels in each of {group} groups, but the input has {x[1]} channels"
        )
    elif w[0] % group or w[0] == 0:
        problems.append(f"{w[0]} output channels cannot be divided into {group} groups")
    if f.has(2) and f.shape(2) != (w[0],):
        problems.append(f"the bias has the shape {shown(f.shape(2))}, where [{w[0]}] is expected")
    if not problems:
        axes = windows(f.node, x[2:], kernel)
        problems += [*_fit(axes), *wrong_shape(f, [x[0], w[0], *(a.out for a in axes)])]
    yield from problems


@precondition("ConvTranspose")
def _conv_transpose(f: NodeFacts) -> Iterator[str]:
    x, w, group = f.shape(0), f.shape(1), f.attr("group")
    if len(x) < 3:
        yield f"the input {shown(x)} has no spatial axis"
        return
    kernel, problems = _kernel(f)
    problems += window_lists(f, len(x) - 2)
    if group < 1 or x[1] != w[0] or x[1] % group or x[1] == 0 or w[1] == 0:
        problems.append(f"the weights take {w[0]} channels in {group} groups, but the input has {x[1]} channels")
    if f.has(2) and f.shape(2) != (w[1] * group,):
        problems.append(f"the bias has the shape {shown(f.shape(2))}, where [{w[1] * group}] is expected")
    if problems:
        yield from problems
        return
    extra = f.node.attr("output_padding", (0,) * len(kernel))
    if any(extra) and f.attr("auto_pad") != "NOTSET":
        yield f"output_padding is given together with auto_pad {f.attr('auto_pad')}"
    axes = transposed_windows(f.node, x[2:], kernel)
    for i, (a, e) in enumerate(zip(axes, extra, strict=True)):
        if e >= max(a.stride, a.dilation):
            yield f"output_padding {e} on spatial axis {i} is not below its stride {a.stride} or dilation {a.dilation}"
        if a.size < 1 or a.out < 1:
            yield f"spatial axis {i} of {a.size} elements gives an output of {a.out}"
        elif a.after <= -a.stride or (a.after < 0 and f.attr("auto_pad") in SAME):
            reach = a.out + a.before + a.after
            yield f"the output of {a.out} on spatial axis {i} is more than the kernel reaches, {reach}"
    yield from wrong_shape(f, [x[0], w[1] * group, *(a.out for a in axes)])


@precondition("MaxPool", "AveragePool", "LpPool")
def _pool(f: NodeFacts) -> Iterator[str]:
    x = f.shape(0)
    if len(x) < 3:
        yield f"the input {shown(x)} has no spatial axis"
        return
    if problems := list(window_lists(f, len(x) - 2)):
        yield from problems
        return
    axes = windows(f.node, x[2:], f.attr("kernel_shape"))
    if problems := list(_fit(axes)):
        yield from problems
        return
    for i, a in enumerate(axes):
        if not a.touches_input():
            yield f"a window on spatial axis {i} lies wholly in the padding"
        if f.attr("auto_pad") == "VALID" and f.attr("ceil_mode") and a.out != -(-(a.size - a.extent + 1) // a.stride):
            # the documentation of the ops gives a formula that onnx's inference and onnxruntime do not follow
            yield f"auto_pad VALID with ceil_mode is ambiguous on spatial axis {i}: write pads instead"
    if f.node.op == "LpPool" and f.attr("p") < 1:
        yield f"p is {f.attr('p')}"
    for i in range(len(f.outs)):
        yield from wrong_shape(f, [*x[:2], *(a.out for a in axes)], i)


@precondition("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def _global_pool(f: NodeFacts) -> Iterator[str]:
    x = f.shape(0)
    if len(x) < 3 or 0 in x[2:]:
        yield f"the input {shown(x)} has no spatial elements"
        return
    if f.node.op == "GlobalLpPool" and f.attr("p") < 1:
        yield f"p is {f.attr('p')}"
    yield from wrong_shape(f, [*x[:2], *(1 for _ in x[2:])])


@precondition("MaxUnpool")
def _max_unpool(f: NodeFacts) -> Iterator[str]:
    x = f.shape(0)
    if len(x) < 3 or f.shape(1) != x:
        yield f"the indices {shown(f.shape(1))} and the input {shown(x)} differ in shape"
        return
    if problems := list(window_lists(f, len(x) - 2)):
        yield from problems
        return
    asked = f.ints(2)
    if asked is not None and (len(asked) != len(x) or asked[:2] != list(x[:2]) or min(asked) < 0):
        yield f"the output shape {shown(asked)} does not fit the input {shown(x)}"
        return
    n, kernel = len(x) - 2, f.attr("kernel_shape")
    strides, pads = f.node.attr("strides", (1,) * n), f.node.attr("pads", (0,) * (2 * n))
    inner = [
        (d - 1) * s - pads[i] - pads[n + i] + kernel[i] for i, (d, s) in enumerate(zip(x[2:], strides, strict=True))
    ]
    if min(inner) < 0 or (0 in inner and f.type(0).size):
        yield f"the input {shown(x)} would be unpooled to the extents {shown(inner)}"
    indices = f.ints(1)
    if indices and not 0 <= min(indices) <= max(indices) < prod([*x[:2], *inner]):
        yield f"indices from {min(indices)} to {max(indices)} are not within the unpooled extents {shown(inner)}"
    yield from wrong_shape(f, asked if asked is not None else [*x[:2], *inner])
