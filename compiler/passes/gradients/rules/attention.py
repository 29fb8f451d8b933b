"""onnxc.Attention."""

from __future__ import annotations

from compiler.passes.gradients.rule import Call, gradient
from compiler.passes.gradients.value import Value


@gradient("onnxc.Attention", saves=(1,), by_body=(3,))
def attention(r: Call) -> None:
    """By q, k and v; that by the bias is left to the definition.

    lse has a gradient only where gradients are differentiated again: of a row's logits it is the row's weights.
    """
    q, k, v = r.x(0), r.x(1), r.x(2)
    dy, dlse = r.dys(0), r.dys(1)
    scale = r.node.attr("scale", 1.0)
    bias = r.node.input(3)
    if dy is not None:
        inputs = [dy.name, q.name, k.name, v.name, bias, r.y(0).name, r.y(1).name]
        for i, d in enumerate(r.b.add("onnxc.AttentionGrad", inputs, {"scale": scale}, 3)):
            r.give(i, Value(r.b, d))
    if dlse is not None:
        swapped = [*range(k.rank - 2), k.rank - 1, k.rank - 2]
        logits = q.op("MatMul", k.transpose(swapped)) * scale
        if bias:
            logits = logits + Value(r.b, bias)
        column = [*r.y(1).shape, 1]
        by_score = (logits - r.y(1).reshape(column)).op("Exp") * dlse.reshape(column) * scale
        r.give(0, lambda: by_score.op("MatMul", k))
        r.give(1, lambda: by_score.transpose(swapped).op("MatMul", q))
