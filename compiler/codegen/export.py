"""A graph as plain ONNX: what any runtime can run, and the oracle of the tests.

States become inputs, whose defaults are the initial values, and outputs. Internal ops become model-local functions of
standard operators, one for each distinct use. The metadata of the model says what belongs together:

    onnxc.outputs   JSON object: public name of an output -> output of the model (they differ only if a name is taken)
    onnxc.updates   JSON object: state (an input of the model) -> output of the model that is its next value
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, ValueInfoProto, helper

from compiler.codegen.export_opset import lowest_opset
from compiler.ir.bodies import body_graph
from compiler.ir.builder import GRADIENT, INTERNAL_OPS
from compiler.ir.graph import Graph, Node
from compiler.ir.proto import INTERNAL_DOMAIN, OUTPUTS, UPDATES, node_to_proto, tensor_to_proto, type_to_proto
from compiler.ir.types import Tensor, TensorType

IR_VERSION = 10
"""At least this: nodes have metadata, which holds their provenance."""

OLDEST_OPSET = 7
"""At least this: what ONNX Runtime supports."""


def export(graph: Graph, name: str | None = None) -> ModelProto:
    """The graph, as it is after any pass, as an ONNX model. Values keep their names.

    Gradient nodes that are left get the standard's form, with names in attributes; no runtime runs these.
    """
    exporter = _Exporter()
    proto, outputs, updates = exporter.main(graph)
    proto.name = name or graph.name
    opset_ids = [helper.make_opsetid(domain, version) for domain, version in exporter.opsets.items()]
    if exporter.functions:
        opset_ids.append(helper.make_opsetid(INTERNAL_DOMAIN, 1))
    for function in exporter.functions.values():
        function.opset_import.extend(opset_ids)
    model = helper.make_model(
        proto,
        opset_imports=opset_ids,
        ir_version=max(IR_VERSION, helper.find_min_ir_version_for(opset_ids, ignore_unknown=True)),
        functions=list(exporter.functions.values()),
        producer_name="onnxc",
    )
    helper.set_model_props(model, {OUTPUTS: json.dumps(outputs), UPDATES: json.dumps(updates)})
    return model


def bindings(model: ModelProto) -> tuple[dict[str, str], dict[str, str]]:
    """(public name -> output, state -> output) of an exported model."""
    props = {p.key: p.value for p in model.metadata_props}
    return json.loads(props[OUTPUTS]), json.loads(props[UPDATES])


class _Names:
    """ONNX names of the values of one graph. Nested graphs see the outer names, and may not use them again."""

    def __init__(self, outer: _Names | None = None):
        self.taken: set[str] = set() if outer is None else outer.taken
        self.of: dict[str, str] = {"": ""}

    def fresh(self, hint: str) -> str:
        name, i = hint, 0
        while not name or name in self.taken:
            i += 1
            name = f"{hint}_{i}"
        self.taken.add(name)
        return name

    def define(self, value: str) -> str:
        self.of[value] = self.fresh(value)
        return self.of[value]

    def all(self, values: Iterable[str]) -> list[str]:
        return [self.of[v] for v in values]


class _Exporter:
    """What the parts of one model share: its functions, callees first, and the opsets it needs."""

    def __init__(self) -> None:
        self.functions: dict[bytes, FunctionProto] = {}
        self.opsets: dict[str, int] = {"": OLDEST_OPSET}
        self._counts: dict[str, int] = {}
        self._uses: dict[object, FunctionProto] = {}

    def main(self, graph: Graph) -> tuple[GraphProto, dict[str, str], dict[str, str]]:
        """The graph with its public outputs and updates: their names in the model."""
        names = _Names()
        sources = [*graph.inputs, *graph.captures, *graph.states]
        for v in sources:
            names.define(v)
        outputs = {public: self._output_name(names, graph, public, v) for public, v in graph.outputs.items()}
        for v in graph.types:
            if v not in names.of:
                names.define(v)
        nodes = self.nodes(graph, names)
        shown: dict[str, str] = {}
        for public, v in graph.outputs.items():
            if names.of[v] != outputs[public]:
                nodes.append(self._copy(names.of[v], outputs[public]))
            shown.setdefault(v, outputs[public])
        updates: dict[str, str] = {}
        for state, v in graph.updates.items():
            if v not in shown:
                shown[v] = names.of[v]
                if graph.producer(v) is None:
                    shown[v] = names.fresh(f"{state}.next")
                    nodes.append(self._copy(names.of[v], shown[v]))
            updates[state] = shown[v]
        types = {name: graph.type(v) for v, name in shown.items()}
        types |= {outputs[public]: graph.type(v) for public, v in graph.outputs.items()}
        return (
            helper.make_graph(
                nodes,
                graph.name,
                [_info(names.of[v], graph.type(v)) for v in sources],
                [_info(name, t) for name, t in types.items()],
                [tensor_to_proto(t, names.of[v]) for v, t in (*graph.states.items(), *graph.consts.items())],
            ),
            outputs,
            updates,
        )

    def _output_name(self, names: _Names, graph: Graph, public: str, value: str) -> str:
        """The public name, unless an input or state has it."""
        if public == value and graph.producer(value) is not None:
            return names.define(value)
        return names.fresh(public)

    # --- nodes -------------------------------------------------------------------------------------------
    def nodes(self, graph: Graph, names: _Names) -> list[NodeProto]:
        """The nodes of a graph whose values all have names."""
        return [self._node(graph, node, names) for node in graph.nodes]

    def _node(self, graph: Graph, node: Node, names: _Names) -> NodeProto:
        inputs, outputs = names.all(node.inputs), names.all(node.outputs)
        if node.op == GRADIENT:
            proto = self._gradient(node, inputs, outputs)
        elif node.op in INTERNAL_OPS:
            function = self._function(graph, node)
            proto = NodeProto(op_type=function.name, domain=INTERNAL_DOMAIN)
            proto.input.extend(v for v in inputs if v)
            proto.output.extend(v for v in outputs if v)
        else:
            bodies = [helper.make_attribute(k, self._body(g, node, names)) for k, g in node.bodies.items()]
            proto = node_to_proto(Node(node.op, tuple(inputs), tuple(outputs), node.attrs), bodies)
            ins, outs = ([graph.type(v) if v else None for v in side] for side in (node.inputs, node.outputs))
            self._need(node.domain, lowest_opset(node, ins, outs))
        proto.name = next(iter(names.all(node.results)), "")
        for key, value in (("onnxc.node", node.origin.node), ("onnxc.rule", node.origin.rule)):
            if value:
                proto.metadata_props.add(key=key, value=value)
        return proto

    def _need(self, domain: str, version: int) -> None:
        self.opsets[domain] = max(version, self.opsets.get(domain, 1))

    def _copy(self, source: str, target: str) -> NodeProto:
        return helper.make_node("Identity", [source], [target], name=target)

    def _gradient(self, node: Node, inputs: Sequence[str], outputs: Sequence[str]) -> NodeProto:
        n, m = node.attr("xs", 0), node.attr("zs", 0)
        named, at = inputs[1 : 1 + n + m], inputs[1 + n + m :]
        self._need(node.domain, 1)
        attrs = {"y": inputs[0], "xs": named[:n], **({"zs": named[n:]} if m else {})}
        proto = NodeProto(op_type=node.op_type, domain=node.domain, input=at, output=outputs)
        proto.attribute.extend(helper.make_attribute(k, v) for k, v in attrs.items())
        return proto

    def _body(self, body: Graph, node: Node, outer: _Names) -> GraphProto:
        """A nested graph: captures are outer names, its own values get names that nothing around has."""
        names = _Names(outer)
        names.of.update(zip(body.captures, outer.all(node.captures), strict=True))
        inputs = [_info(names.define(v), body.type(v)) for v in body.inputs]
        for v in body.types:
            if v not in names.of:
                names.define(v)
        consts = [_constant(t, names.of[v]) for v, t in body.consts.items()]
        nodes = consts + self.nodes(body, names)
        outputs: list[ValueInfoProto] = []
        for v in body.outputs.values():
            name = names.of[v]
            if body.producer(v) is None or any(o.name == name for o in outputs):
                name = names.fresh(f"{v}.out")
                nodes.append(self._copy(names.of[v], name))
            outputs.append(_info(name, body.type(v)))
        return helper.make_graph(nodes, body.name, inputs, outputs)

    # --- functions ---------------------------------------------------------------------------------------
    def _function(self, graph: Graph, node: Node) -> FunctionProto:
        """The definition of an internal op for these types and attributes as a function; equal ones are one."""
        types = tuple(graph.type(v) if v else None for v in node.inputs)
        use = (node.op, tuple(node.attrs.items()), types, tuple(map(bool, node.outputs)))
        if use not in self._uses:
            self._uses[use] = self._define(node, types)
        return self._uses[use]

    def _define(self, node: Node, types: Sequence[TensorType | None]) -> FunctionProto:
        body = body_graph(node, types)
        names = _Names()
        inputs = [names.define(v) for v in body.inputs]
        for v in body.types:
            if v not in names.of:
                names.define(v)
        nodes = [_constant(t, names.of[v]) for v, t in body.consts.items()] + self.nodes(body, names)
        outputs: list[str] = []
        for i, v in enumerate(node.outputs):
            if v:
                result = body.outputs[f"out{i}"]
                name = names.of[result]
                if body.producer(result) is None or name in outputs:
                    name = names.fresh(f"out{i}")
                    nodes.append(self._copy(names.of[result], name))
                outputs.append(name)
        for proto in nodes:
            del proto.metadata_props[:]
        function = FunctionProto(domain=INTERNAL_DOMAIN, input=inputs, output=outputs, node=nodes)
        key = node.op.encode() + b"\0" + function.SerializeToString(deterministic=True)
        if key not in self.functions:
            count = self._counts[node.op_type] = self._counts.get(node.op_type, 0) + 1
            function.name = node.op_type if count == 1 else f"{node.op_type}_{count}"
            function.doc_string = _described(node)
            self.functions[key] = function
        return self.functions[key]


def _info(name: str, t: TensorType) -> ValueInfoProto:
    return helper.make_value_info(name, type_to_proto(t))


def _constant(tensor: Tensor, name: str) -> NodeProto:
    return helper.make_node("Constant", [], [name], name=name, value=tensor_to_proto(tensor, name))


def _described(node: Node) -> str:
    """Operator and attributes, for people."""
    attrs = ", ".join(f"{k}={v!r}" for k, v in node.attrs.items())
    return f"{node.op} {{{attrs}}}"
