"""Names that are free in a graph, and the opset of a model."""

from __future__ import annotations

from onnx import GraphProto, ModelProto

from compiler.frontend.walk import all_nodes, bodies, defined


class Names:
    """Hands out names that nothing in some graphs has, their nested graphs included."""

    def __init__(self, *graphs: GraphProto):
        self._taken = {v for graph in graphs for v in defined(graph)}
        for node in (node for graph in graphs for node in all_nodes(graph)):
            self._taken.update(v for v in (*node.input, *node.output) if v)
            for _, body in bodies(node):
                self._taken.update(defined(body))
        self._last: dict[str, int] = {}

    def fresh(self, hint: str) -> str:
        """`hint`, or that with a number."""
        name = hint
        while name in self._taken:
            self._last[hint] = self._last.get(hint, 0) + 1
            name = f"{hint}_{self._last[hint]}"
        self._taken.add(name)
        return name

    def __contains__(self, name: str) -> bool:
        """Whether a name is taken."""
        return name in self._taken


def ai_onnx_version(model: ModelProto) -> int:
    """The version of ai.onnx that a model imports; 0 if none."""
    return next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 0)
