"""Loop and Scan in files: structure, old opsets, what decides how often they run, and the remedies."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import parser

import compiler
from compiler.errors import CompileError, InputError
from compiler.frontend import NeedsStatic, load
from compiler.ir.graph import Graph
from compiler.ir.interpret import interpret
from tests.frontend.small import make_model, training_info
from tests.models.loops import loops

X = np.float32([[1, -2, 3], [0.5, 0.25, -1], [2, 2, 2], [-1, 0, 1]])


def ort(model: onnx.ModelProto, feeds: dict[str, Any]) -> dict[str, np.ndarray]:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return dict(zip([o.name for o in model.graph.output], session.run(None, feeds), strict=True))


def imported(model: onnx.ModelProto, **static: Any) -> Graph:
    return load(model).program(static={k: np.asarray(v) for k, v in static.items()}).step


def values(graph: Graph, feeds: dict[str, Any]) -> dict[str, np.ndarray]:
    found = interpret(graph, {v: np.asarray(feeds[v]) for v in graph.inputs})
    return {name: found[v] for name, v in graph.outputs.items()}


def same(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray], rtol: float = 1e-5) -> None:
    assert found.keys() == wanted.keys()
    for name, a in wanted.items():
        assert found[name].shape == a.shape, name
        np.testing.assert_allclose(found[name], a, rtol=rtol, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("n", [0, 1, 2, 9])
def test_all_kinds_of_loops(n: int) -> None:
    feeds = {"x": X, "n": np.array(n), "k": np.array([3, 1])}
    model = loops()
    same(values(imported(model), feeds), ort(model, feeds))
    assert {"Scan", "Loop", "If"} == {node.op for node in imported(model).nodes if node.bodies}


SCAN = """g (float[3] s, float[4,3] x) => (float[3] y, float[4,3] z)
{ y, z = Scan(s, x) <num_scan_inputs = 1, body = b (float[3] a, float[3] e) => (float[3] t, float[3] r) {
  t = Add(a, e) r = Neg(t) }> }"""


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("Scan(s, x)", "Scan(x)", "the body of Scan has 2 inputs, but Scan gives it 1"),
        ("num_scan_inputs = 1", "num_scan_inputs = 3", "num_scan_inputs is 3, of 2 inputs"),
        ("num_scan_inputs = 1, ", "", "num_scan_inputs is 0, of 2 inputs"),
        ("num_scan_inputs = 1", "num_scan_inputs = 1.0", "'num_scan_inputs' of Scan is of kind FLOAT, not INT"),
        ("inputs = 1,", "inputs = 1, scan_input_axes = 1,", "'scan_input_axes' of Scan is of kind INT, not INTS"),
        ("inputs = 1,", "inputs = 1, scan_input_axes = [0, 0],", "2 scan_input_axes, where 1 are expected"),
        ("inputs = 1,", "inputs = 1, scan_input_axes = [2],", r"Scan along axis 2 of f32\[4,3\]"),
        ("inputs = 1,", "inputs = 1, length = 4,", "no attribute 'length'"),
        ("y, z = Scan", "y, z, u = Scan", "Scan has 3 outputs, but its body gives 2"),
        ("(float[3] t, float[3] r) {", "(float[3] t) {", "Scan has 2 outputs, but its body gives 1"),
        ("e) => (float[3] t, float[3] r)", "e) => ()", "the body of Scan has 0 outputs, but needs at least 1"),
        ("float[3] e)", "float[3] e) <float[3] e = {1, 2, 3}>", "input 'e' of the body of Scan has a default value"),
        ("float[3] e)", "seq(float[3]) e)", "input 'e' is a sequence, not a tensor"),
        ("float[3] e)", "string[3] e)", "input 'e' has elements of type STRING"),
        ("body = b (float[3] a", "body = b (float[2] a", ""),  # the declared type is not used
        ("Add(a, e)", "Concat<axis=0>(a, e)", r"carried value 0 is f32\[3\] before an iteration and f32\[6\] after it"),
        ("Add(a, e)", "Add(a, q)", "'q' is read, but nothing defines it"),
    ],
)  # fmt: skip
def test_structure(old: str, new: str, message: str) -> None:
    assert old in SCAN
    text = SCAN.replace(old, new).replace("<float[3] e = {1, 2, 3}>", "")
    model = make_model(text)
    if "default" in message:
        body = model.graph.node[0].attribute[1].g
        body.initializer.append(onnx.numpy_helper.from_array(np.float32([1, 2, 3]), "e"))
    if not message:
        same(values(imported(model), {"s": X[0], "x": X}), values(imported(make_model(SCAN)), {"s": X[0], "x": X}))
        return
    with pytest.raises(CompileError, match=message):
        load(model).program()


def test_bodies_are_upgraded() -> None:
    """ReduceSum had an attribute, Softmax another meaning, Clip and Squeeze attributes."""
    text = """g (float[2,3] s, float[4,2,3] x) => (float[2,3] y, float[4,2] z)
    { y, z = Scan(s, x) <num_scan_inputs = 1, body = b (float[2,3] a, float[2,3] e) => (float[2,3] t, float[2] r) {
      u = Add(a, e) t = Clip<min=-1.0, max=1.5>(u) m = Softmax(t) v = ReduceSum<axes=[1]>(m)
      r = Squeeze<axes=[1]>(v) }> }"""
    model = make_model(text, opset=10, ir=5)
    feeds = {"s": X[:2], "x": np.stack([X[:2], X[1:3], X[2:], -X[:2]])}
    same(values(imported(model), feeds), ort(model, feeds))


def test_scan_of_opset_8_has_batches() -> None:
    text = """g (float[B,3] s, float[B,4,3] x) => (float[B,3] y, float[B,4,3] z)
    { y, z = Scan("", s, x) <num_scan_inputs = 1, directions = [1], body = b (float[3] a, float[3] e)
      => (float[3] t, float[3] r) { t = Add(a, e) r = Neg(t) }> }"""
    model = make_model(text.replace('"", ', "").replace("B", "2"), opset=8, ir=4)
    model.graph.node[0].input.insert(0, "")
    s, x = X[:2], np.stack([X, 2 * X + 1])
    z = -(s[:, None] + np.cumsum(x[:, ::-1], 1))
    same(values(imported(model), {"s": s, "x": x}), {"y": -z[:, -1], "z": z})
    model.graph.input.append(onnx.helper.make_tensor_value_info("lengths", onnx.TensorProto.INT64, [2]))
    model.graph.node[0].input[0] = "lengths"
    with pytest.raises(CompileError, match=r"sequence_lens is not supported.*mask the ends"):
        load(model)


def test_calls_of_functions_in_and_around_bodies() -> None:
    model = make_model(
        "g (float[3] s, float[4,3] x) => (float[3] y) { y = local.sum<k = 2.0, n = 1>(s, x) }",
        functions="""
        <domain: "local", opset_import: ["": 11, "local": 1]> sum <k, n> (a, b) => (c)
        { c = Scan(a, b) <num_scan_inputs: int = @n, body = f (float[3] v, float[3] e) => (float[3] w) {
            q = Constant<value_float: float = @k>() m = local.scaled(e, q) w = Add(v, m) w2 = Mul(a, q) }> }
        <domain: "local", opset_import: ["": 21]> scaled (a, k) => (c) { d = Mul(a, k) c = Neg(d) }""",
    )
    same(values(imported(model), {"s": X[0], "x": X}), {"y": X[0] - 2 * X.sum(0)}, 1e-6)


GROWING = """g (float[3] v, int64 n) => (float[m] y, float[n,1] z)
{ true = Constant<value = bool {1}>()
  y, z = Loop(n, true, v) <body = b (int64 i, bool c, float[k] a) => (bool go, float[l] t, float[1] r) {
    go = Identity(c) one = Constant<value_int = 1>() next = Add(i, one)
    z = Constant<value_ints = [0]>() from = Reshape(i, z1) to = Reshape(next, z1)
    r = Slice(a, from, to) t = Concat<axis=0>(a, r) }> z1 = Constant<value_ints = [1]>() }"""


def growing() -> onnx.ModelProto:
    text = GROWING.replace("z = Constant<value_ints = [0]>() ", "").replace(" z1 = Constant<value_ints = [1]>()", "")
    return make_model(text.replace("{ true", "{ z1 = Constant<value_ints = [1]>() true"))


def test_types_that_change_are_unrolled() -> None:
    """A carried value that grows, and a slice at the iteration's number: the trip count decides the types."""
    feeds = {"v": X[0], "n": np.array(4)}
    same(values(imported(growing(), n=4), feeds), ort(growing(), feeds))
    with pytest.raises(NeedsStatic, match=r"static=\{'n': array\}") as e:
        imported(growing())
    assert list(e.value.inputs) == ["n"]


ENDING = """g (float[3] x, int64 n) => (float[3] y, float[R,3] rows)
{ true = Constant<value = bool {1}>() two = Constant<value = float {2.0}>() most = Constant<value = float {100.0}>()
  y, rows = Loop(n, true, x) <body = b (int64 i, bool c, float[3] v) => (bool go, float[3] w, float[3] r) {
    w = Mul(v, two) s = ReduceSum<keepdims=0>(w) go = Less(s, most) r = Neg(w) }> }"""


def test_rows_of_a_loop_that_ends_at_run_time() -> None:
    model, x = make_model(ENDING), np.ones(3, np.float32)
    with pytest.raises(NeedsStatic, match=r"an output shape of Loop .* or bound the Loop: max_trip=") as e:
        imported(model)
    assert list(e.value.inputs) == ["n", "x"]
    found = values(imported(model, n=20, x=x), {})
    same(found, ort(model, {"x": x, "n": np.array(20)}))
    assert len(found["rows"]) == 6
    problems = compiler.check(model)
    assert len(problems) == 1
    assert "max_trip" in problems[0].remedy
    assert not compiler.check(model, max_trip=8)


def test_max_trip_bounds_a_loop() -> None:
    step, x = compiler.compile(make_model(ENDING), max_trip=8), np.ones(3, np.float32)
    for n, count in ((0, 0), (2, 2), (8, 6), (2**40, 6)):
        found = step(x=x, n=np.array(n))
        np.testing.assert_array_equal(found["y"], x * 2**count)
        np.testing.assert_array_equal(found["rows"][:, 0], [-(2 ** (k + 1)) if k < count else 0 for k in range(8)])
    with pytest.raises(InputError, match=r"more than 8 iterations, .*: raise it.*nothing was updated"):
        step(x=x / 1000, n=np.array(2**40))
    np.testing.assert_array_equal(step(x=x, n=np.array(2))["y"], x * 4)
    for wrong in (0, -1, 2**31, "8"):
        with pytest.raises(InputError, match="max_trip must be an integer from 1 to"):
            compiler.compile(make_model(ENDING), max_trip=wrong)


def test_gradient_of_a_bounded_loop() -> None:
    """y = x 2^k w^k with k decided by the data: dy/dw = k y/w."""
    text = """g (float[3] x, float[3] w) => (float[3] y, float[3] dw, float[3] dx)
    { true = Constant<value = bool {1}>() most = Constant<value = float {100.0}>()
      y = Loop("", true, x) <body = b (int64 i, bool c, float[3] v) => (bool go, float[3] t) {
        u = Add(v, v) t = Mul(u, w) s = ReduceSum<keepdims=0>(t) go = Less(s, most) }>
      dw, dx = ai.onnx.preview.training.Gradient<xs=["w", "x"], y="y">(w, x) }"""
    model = make_model(text.replace('"", ', "true, "))
    model.graph.node[2].input[0] = ""
    assert "max_trip" in str(compiler.check(model)[0])
    step = compiler.compile(model, max_trip=20)
    for scale in (1, 0.1, 50):
        x, w = np.float32([1, 2, 3]) * scale, np.float32([1, 1.5, 0.5])
        k = next(k for k in range(1, 20) if (x * (2 * w) ** k).sum() >= 100)
        found = step(x=x, w=w)
        np.testing.assert_allclose(found["y"], x * (2 * w) ** k, rtol=1e-5)
        np.testing.assert_allclose(found["dw"], k * found["y"] / w, rtol=1e-5)
        np.testing.assert_allclose(found["dx"], found["y"] / x, rtol=1e-5)


def test_training_through_a_loop() -> None:
    """A Loop that captures parameters and ends by the data, with Dropout in it; n may differ from step to step."""
    algorithm = """step (float[N,4] t) => (float loss, float[4,4] w_next) <float rate = {0.3}>
    { e = Sub(y, t) s = Mul(e, e) loss = ReduceMean<keepdims=0>(s)
      dw = ai.onnx.preview.training.Gradient<xs=["w"], zs=["x", "t"], y="loss">(w, x, t)
      d = Mul(rate, dw) w_next = Sub(w, d) }"""
    model = make_model(
        """net (float[N,4] x, int64 n) => (float[N,4] y)
        { true = Constant<value = bool {1}>() most = Constant<value = float {50.0}>()
          y = Loop(n, true, x) <body = f (int64 i, bool c, float[N,4] h) => (bool go, float[N,4] k) {
            p = MatMul(h, w) a = Tanh(p) r = Constant<value = float {0.1}>() k = Dropout(a, r, c)
            s = ReduceSum<keepdims=0>(k) go = Less(s, most) }> }""",
        training_info(algorithm, {"w": "w_next"}),
    )
    rng = np.random.default_rng(0)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(rng.normal(size=(4, 4)) / 2), "w"))
    x = np.float32(rng.normal(size=(8, 4)))
    feeds, losses = {"x": x, "t": np.tanh(x[:, ::-1] / 3)}, []
    for threads in (1, 2):
        step = compiler.compile(model, max_trip=6, threads=threads)
        losses.append([float(step(n=np.array(n), **feeds)["loss"]) for n in [3] * 30 + [5] * 30])
    assert losses[0] == losses[1]
    assert losses[0][29] < losses[0][0] / 2
    assert np.mean(losses[0][55:]) < losses[0][30] * 0.8
    assert step.infer(x=x, n=np.array(0))["y"].tolist() == x.tolist()


def test_derivatives_by_constants_that_bodies_read() -> None:
    """w is a constant of the graph: a body must capture it, or it would not depend on it."""
    text = """g (float[4,3] x) => (float[3] dw, float[3] dv) <float[3] w = {1, 2, 3}, float[3] v = {1, 1, 1}>
    { zero = Constant<value = float[3] {0.0, 0.0, 0.0}>() u = Neg(v)
      y = Scan(zero, x) <num_scan_inputs = 1, body = b (float[3] a, float[3] e) => (float[3] t) {
        p = Mul(e, w) q = Mul(p, u) t = Add(a, q) }>
      dw, dv = ai.onnx.preview.training.Gradient<xs=["w", "v"], y="y">(w, v) }"""
    found = compiler.compile(make_model(text))(x=X)
    np.testing.assert_allclose(found["dw"], -X.sum(0), rtol=1e-6)
    np.testing.assert_allclose(found["dv"], -X.sum(0) * [1, 2, 3], rtol=1e-6)


def test_each_iteration_draws_anew() -> None:
    text = """g (float[4,3] x) => (float[4,300] z, float[4,300] f)
    { count, z = Scan(x0, x) <num_scan_inputs = 1, body = b (int64 i, float[3] e) => (int64 j, float[300] r) {
        j = Identity(i) r = RandomUniform<shape=[300]>() }>
      four = Constant<value_int = 4>() true = Constant<value = bool {1}>()
      f = Loop(four, true) <body = c (int64 i, bool c) => (bool go, float[300] r) {
        go = Identity(c) r = RandomUniform<shape=[300], seed=1.0>() }> }"""
    model = make_model(text.replace("{ count", "{ x0 = Constant<value_int = 0>() count"))
    step = compiler.compile(model)
    drawn = [step(x=X) for _ in range(2)]
    rows = np.concatenate([d[v] for d in drawn for v in "zf"])
    assert rows.shape == (16, 300)
    assert len(np.unique(rows)) > 0.99 * rows.size
    assert abs(np.corrcoef(rows) - np.eye(16)).max() < 0.3


def test_what_a_call_binds() -> None:
    """Rows whose number an input decides: another value is another specialization."""
    text = """g (float[3] x, int64 n) => (float[3] y, float[R,3] rows)
    { true = Constant<value = bool {1}>()
      y, rows = Loop(n, true, x) <body = b (int64 i, bool c, float[3] v) => (bool go, float[3] w, float[3] r) {
        go = Identity(c) w = Add(v, v) r = Neg(w) }> }"""
    model = make_model(text)
    step = compiler.compile(model)
    for n in (3, 1, 0):
        feeds = {"x": X[0], "n": np.array(n)}
        same(step(feeds), ort(model, feeds))


def test_loops_of_sequences_are_refused() -> None:
    model = parser.parse_model(
        """<ir_version: 10, opset_import: ["": 21]> g (float[3] x, int64 n, bool c) => (seq(float[3]) y) {
        e = SequenceEmpty()
        y = Loop(n, c, e) <body = b (int64 i, bool d, seq(float[3]) s) => (bool go, seq(float[3]) t) {
          go = Identity(d) t = SequenceInsert(s, x) }> }"""
    )
    with pytest.raises(CompileError, match=r"(?s)SequenceEmpty.*'s' is a sequence"):
        load(model)
