"""IR text: `parse(dump(g), tensors_of(g)) == g`, exact bits, and errors with a line instead of tracebacks."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compiler.errors import CompileError, ParseError, VerifyError
from compiler.ir.builder import Builder
from compiler.ir.graph import Graph, Node, Program
from compiler.ir.literals import elements_text, float_text
from compiler.ir.text import dump, node_text, parse, parse_program, tensors_of
from compiler.ir.types import NARROW, Tensor, TensorType, numpy_dtype, onnx_dtype
from tests.ir.strategies import graphs, tensors


@settings(max_examples=60)
@given(graphs())
def test_round_trip(g: Graph) -> None:
    text = dump(g)
    assert all(line.isprintable() for line in text.split("\n"))
    again = parse(text, tensors_of(g), check=False)
    assert again == g
    assert list(again.types) == [*g.sources, *(v for n in g.nodes for v in n.results)]
    assert dump(again) == text
    assert all(f"{node_text(node, g, '  ')}\n" in text for node in g.nodes if not node.bodies)


def test_long_nodes_take_several_lines() -> None:
    b = Builder("g")
    names = [b.input(f"an_input_{i}", TensorType("f32", (8, 16))) for i in range(30)]
    parts = b.add("Split", [b.op("Sum", *names)], {"axis": 1, "num_outputs": 16}, [f"part_{i}" for i in range(16)])
    for i, part in enumerate(parts):
        b.output(f"y{i}", part)
    text = dump(b.build())
    assert max(map(len, text.splitlines())) <= 120
    assert parse(text) == b.build()
    node = "y: f32[1],{0}z: f32[1] ={0}Split(x,{0}_){0}{{axis=0,{0}num_outputs=2}}{0}@ s"
    assert parse(G.format(node.format("\n\n  # a comment\n"))) == parse(G.format(node.format(" ")))


@settings(max_examples=100)
@given(tensors())
def test_constants_keep_their_bits(t: Tensor) -> None:
    b = Builder("g")
    b.const(t, "c")
    (again,) = parse(dump(b.build()), tensors_of(b.build()), check=False).consts.values()
    assert again == t


@pytest.mark.parametrize(
    ("value", "dtype", "text"),
    [
        (0.1, "f32", "0.1"),
        (100.0, "f32", "100.0"),
        (-0.0, "f64", "-0.0"),
        (1e-7, "f32", "1e-07"),
        (float("nan"), "f32", "nan"),
        (-float("nan"), "f64", "-nan"),
        (-float("inf"), "f16", "-inf"),
        (0.1, "f64", "0.1"),
        (1 / 3, "f64", "0.3333333333333333"),
        (1 / 3, "f32", "0.33333334"),
        (3.140625, "bf16", "3.14"),
        (-447.0, "f8e4m3fn", "-448.0"),
        (2.0**-16, "f8e5m2", "1.52587890625e-05"),
        (-0.0, "f4e2m1", "-0.0"),
        (2.0**64, "f8e8m0", "2e+19"),
    ],
)
def test_floats_are_as_short_as_can_be(value: float, dtype: str, text: str) -> None:
    assert float_text(value, dtype) == text


def test_payloads_of_nan_are_written_as_bits() -> None:
    assert elements_text(Tensor(np.array([0x7FC00001], np.uint32).view(np.float32))) == "[0x7fc00001]"


@pytest.mark.parametrize("dtype", sorted(NARROW))
def test_every_narrow_element_can_be_written(dtype: str) -> None:
    bits = np.arange(256 if dtype.startswith("f8") else 2 ** int(dtype[1])).astype(np.uint8)
    b = Builder("g")
    for i in range(0, bits.size, 16):
        b.output(
            f"y{i}", b.op("Cast", b.const(bits[i : i + 16].view(numpy_dtype(dtype)), f"c{i}"), to=onnx_dtype("f32"))
        )
    graph = b.build()
    assert parse(dump(graph)) == graph


@pytest.mark.parametrize(
    ("element", "dtype"), [("8", "i4"), ("-1", "u2"), ("nan", "f4e2m1"), ("inf", "f8e4m3fn"), ("0x100", "f8e5m2")]
)
def test_what_a_narrow_type_has_not(element: str, dtype: str) -> None:
    with pytest.raises(ParseError, match=f"is no element of type {dtype}"):
        parse(G.format(f"const c: {dtype}[1] = [{element}]"))


def test_float_attributes_have_the_precision_of_onnx() -> None:
    """0.9 from Python and 0.9 from a file are one attribute."""
    assert Node("LeakyRelu", ("x",), ("y",), {"alpha": 0.9}) == Node(
        "LeakyRelu", ("x",), ("y",), {"alpha": np.float32(0.9)}
    )
    assert Node("A", (), ("y",), {"a": [1, np.int64(2)]}).attr("a") == (1, 2)
    with pytest.raises(TypeError):
        Node("A", (), ("y",), {"a": object()})


def test_program() -> None:
    step, infer = Builder("train"), Builder("predict")
    weights = Tensor(np.arange(20, dtype=np.float32))
    for b in (step, infer):
        w = b.state("w", weights)
        b.output("y", b.op("Relu", w))
    step.update("w", step.op("Neg", "w"))
    program = Program(step.build(), infer.build())
    text = dump(program)
    assert text.startswith("step graph train {")
    assert "\ninfer graph predict {" in text
    assert parse_program(text, tensors_of(program)) == program
    with pytest.raises(ParseError, match="after the end of the graph"):
        parse(dump(step.build()) + dump(infer.build()), tensors_of(program))
    with pytest.raises(ParseError, match="no step graph"):
        parse_program("infer " + dump(infer.build()), tensors_of(program))
    with pytest.raises(ParseError, match="at most once"):
        parse_program(text + text, tensors_of(program))


G = "graph g {{\n  input x: f32[2]\n  {}\n}}\n"


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ("", 1, "end of the text where a graph begins"),
        ("grph g {}", 1, "`grph` where a graph begins"),
        ("graph g {\n  input x: f32[2]\n", 3, "end of the text"),
        (G.format("y: f32[2] = Relu(x"), 3, "between operands"),
        (G.format("y: f32[2] = Relu(x) z: f32[2] = Relu(x)"), 3, "end of a statement"),
        (G.format("y: f31[2] = Relu(x)"), 3, "in place of an element type"),
        (G.format("y: f32[a] = Relu(x)"), 3, "in place of a dimension"),
        (G.format("y: f32[-1] = Relu(x)"), 3, "in place of a dimension"),
        (G.format("y: f32[99999999999999999999] = Relu(x)"), 3, "in place of a dimension"),
        (G.format("y = Relu(x)"), 3, "after the name of a value"),
        (G.format("x: f32[2] = Relu(x)"), 3, "second definition of 'x'"),
        (G.format("y: f32[2], y: f32[2] = Relu(x)"), 3, "second definition of 'y'"),
        (G.format('"": f32[2] = Relu(x)'), 3, "empty name"),
        (G.format('"y: f32[2] = Relu(x)'), 3, "a string without an end"),
        (G.format('"\\q": f32[2] = Relu(x)'), 3, "no JSON string"),
        (G.format('"\\ud800": f32[2] = Relu(x)'), 3, "half of a surrogate pair"),
        (G.format("y; f32[2] = Relu(x)"), 3, "the character ';'"),
        (G.format("y: f32[2] = Relu(x) {a=1, a=2}"), 3, "second attribute 'a'"),
        (G.format("y: f32[2] = Relu(x) {a=[[1]]}"), 3, "no number, string or flat list"),
        (G.format("y: f32[2] = Relu(x) {a=true}"), 3, "no number, string or flat list"),
        (G.format("y: f32[2] = Relu(x) {a=0x1}"), 3, "as an attribute"),
        (G.format("y: f32[2] = Relu(x) {a=9223372036854775808}"), 3, "out of the range of int64"),
        (G.format("y: f32[2] = Relu(x) {a=1 b=2}"), 3, "after the attribute 'a'"),
        (G.format("const c: f32[2] = [1]"), 3, "a list of 1 in place of a list of 2"),
        (G.format("const c: f32[2] = 1"), 3, "one element in place of a list of 2"),
        (G.format("const c: f32[] = [1]"), 3, "a list where an element is expected"),
        (G.format("const c: f32[0] = [1]"), 3, "write []"),
        (G.format("const c: u8[] = 256"), 3, "256 is no element of type u8"),
        (G.format("const c: i32[] = 1.5"), 3, "1.5 is no element of type i32"),
        (G.format("const c: f32[] = true"), 3, "true is no element of type f32"),
        (G.format("const c: bool[] = 1"), 3, "1 is no element of type bool"),
        (G.format("const c: f32[] = 0x100000000"), 3, "no element of type f32"),
        (G.format("const c: f32[] = x"), 3, "in place of a number"),
        (G.format("const c: f32[40] = sha256:0123456789abcdef"), 3, "no tensor sha256:0123456789abcdef is given"),
        (G.format("output y = x\n  output y = x"), 4, "second output 'y'"),
        (G.format("output y"), 3, "after the name of an output"),
        (G.format("const c: f32[] = " + "[" * 100), 3, "nested more than"),
        ("graph g {\n" + "a: f32[] = If(a) {b=graph b {\n" * 100, 65, "nested more than"),
        (G.format("const c: i32[] = " + "9" * 5000), 3, "digits"),
    ],
)
def test_what_cannot_be_parsed(text: str, line: int, what: str) -> None:
    with pytest.raises(ParseError) as e:
        parse(text)
    (problem,) = e.value.problems
    assert what in problem.what + problem.remedy
    assert problem.where == f"line {line}"


@settings(max_examples=60)
@given(st.data())
def test_damaged_text_gives_an_error_or_a_graph(data: st.DataObject) -> None:
    """Whatever a text is, there is no other exception than ours."""
    text = dump(data.draw(graphs()))
    at = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(at, min(len(text), at + 8)))
    piece = data.draw(
        st.one_of(
            st.sampled_from(["", "{", "}", '"', "[", ",", "\n", "0x", "nan", "graph", "=", ":"]), st.text(max_size=3)
        )
    )
    with contextlib.suppress(CompileError):
        parse(text[:at] + piece + text[end:])


def test_types_in_the_text_are_not_trusted() -> None:
    with pytest.raises(VerifyError, match=r"declared f32\[3\], but computes f32\[2\]"):
        parse(G.format("y: f32[3] = Relu(x)"))
    big = Tensor(np.zeros(20, np.float32))
    text = G.format(f"const c: f32[21] = sha256:{big.digest[:16]}")
    with pytest.raises(ParseError, match=r"is f32\[20\], not f32\[21\]"):
        parse(text, {big.digest: big})


def test_the_text_is_what_a_person_wants_to_read() -> None:
    b = Builder("mlp")
    x, w = b.input("x", TensorType("f32", (64, 784))), b.state("w", np.zeros((784, 10), np.float32))
    z = b.op("MatMul", x, w, name="z")
    b.update(w, b.op("Sub", w, b.op("Mul", w, b.const(np.float32(0.1), "lr"), name="step"), name="w.next"))
    b.output("logits", z)
    digest = b.build().states["w"].digest[:16]
    assert dump(b.build()) == (
        "graph mlp {\n"
        "  input x: f32[64,784]\n"
        f"  state w: f32[784,10] = sha256:{digest}\n"
        "  const lr: f32[] = 0.1\n"
        "  z: f32[64,10] = MatMul(x, w)\n"
        "  step: f32[784,10] = Mul(w, lr)\n"
        "  w.next: f32[784,10] = Sub(w, step)\n"
        "  output logits = z\n"
        "  update w = w.next\n"
        "}\n"
    )
