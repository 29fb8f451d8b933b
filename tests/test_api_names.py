"""Names that mean something to Python, C, JSON or a file system, from compiling to the exported model."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import compiler
from compiler.ir.parse import parse
from tests.test_api import bits

NAMES = (
    'x"); import os #',
    "a/b:0",
    "ünï ☃ 名",
    "\\",
    "line\nbreak\r\t",
    '"""',
    "'''",
    "{0} {x!r} %s %n",
    "__import__('os').system('touch onnxc-executed')",
    "def",
    "table",
    "self",
    "feeds",
    "fetch",
    "T",
    "share",
    "barrier",
    "w.next",
    "[red]bold[/red]",
    "\x1b[31m\x07\x7f",
    "\u202eevil",
    " ",
    "0",
    "-1.5",
    "sha256:00",
    "f32[2]",
    "graph",
    "}",
    "# comment",
    "x" * 2000,
    "../../etc/passwd",
    "nul\0byte",
    "__metadata__",
)


def hostile() -> onnx.ModelProto:
    """Every name is, in turn, an input, a variable, an output of inference and one of the step.

    y_k = x_k * w_k; w_k becomes w_k - dloss/dw_k, loss the sum of everything.
    """
    n = len(NAMES)
    inputs, variables, outputs = (
        [NAMES[(k + shift) % n] + tail for k in range(n)] for shift, tail in enumerate(("", "_w", "_y"))
    )
    nodes = [helper.make_node("Mul", [x, w], [y], name=y) for x, w, y in zip(inputs, variables, outputs, strict=True)]
    graph = helper.make_graph(
        nodes,
        'graph"); import os #',
        [helper.make_tensor_value_info(v, TensorProto.FLOAT, ['N"\n']) for v in inputs],
        [helper.make_tensor_value_info(v, TensorProto.FLOAT, ['N"\n']) for v in outputs],
        [numpy_helper.from_array(np.array([k + 1], np.float32), v) for k, v in enumerate(variables)],
    )
    steps = [helper.make_node("Sum", outputs, ["sum"]), helper.make_node("ReduceSum", ["sum"], ["loss\n#"], keepdims=0)]
    gradients = [f"{v}'" for v in variables]
    steps.append(
        helper.make_node(
            "Gradient", [*variables, *inputs], gradients, domain="ai.onnx.preview.training", xs=variables, zs=inputs,
            y="loss\n#",
        )
    )  # fmt: skip
    steps += [helper.make_node("Sub", [v, g], [f"{v}+"]) for v, g in zip(variables, gradients, strict=True)]
    algorithm = helper.make_graph(
        steps,
        'step\n"',
        [],
        [helper.make_tensor_value_info("loss\n#", TensorProto.FLOAT, [])]
        + [helper.make_tensor_value_info(f"{v}+", TensorProto.FLOAT, [1]) for v in variables],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("ai.onnx.preview.training", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    model.training_info.append(helper.make_training_info(algorithm, [(v, f"{v}+") for v in variables], None, None))
    return model


def test_the_whole_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # where a name that is executed would leave a file
    model = hostile()
    path = tmp_path / "host\nile.onnx"
    onnx.save(model, path)
    assert compiler.check(path) == ()
    step = compiler.compile(path, dims={'N"\n': 3})
    rng = np.random.default_rng(0)
    feeds = {v.name: rng.normal(size=3).astype(np.float32) for v in model.graph.input}
    start = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    assert list(step.state) == list(start)
    out = step(feeds)
    y = {
        v.name: feeds[x] * start[w]
        for v, (x, w) in zip(model.graph.output, zip(feeds, start, strict=True), strict=True)
    }
    assert list(out) == [*y, "loss\n#"]
    for name, value in y.items():
        np.testing.assert_allclose(out[name], value, rtol=1e-6)
    for (w, old), x in zip(start.items(), feeds.values(), strict=True):
        np.testing.assert_allclose(step.state[w], old - x.sum(), rtol=1e-5, atol=1e-5)
    # keywords are strings like any others, but for one
    assert list(step({"fetch": feeds.pop("fetch")}, **feeds)) == list(out)
    feeds = {v.name: np.ones(3, np.float32) for v in model.graph.input}
    with pytest.raises(compiler.InputError, match=r"not ndarray; an input of that name goes into a mapping: \{'fetch'"):
        step(**feeds)
    gradient = f"{NAMES[1]}_w'"
    assert gradient in step(feeds, fetch=[gradient])

    # source and IR are text that means the same again
    found = list(ast.walk(ast.parse(step.source)))
    assert not [n for n in found if isinstance(n, ast.Import | ast.ImportFrom)]
    assert {"os", "__import__"}.isdisjoint(n.id for n in found if isinstance(n, ast.Name))
    text = compiler.api.dump(step.graph)
    tensors = {t.digest: t for t in (*step.graph.states.values(), *step.graph.consts.values())}
    assert parse(text, tensors) == step.graph
    assert all(line.isprintable() for line in text.splitlines())
    assert all(line.isprintable() for line in step.source.splitlines())

    step.save(tmp_path / "state")
    other = compiler.compile(path, dims={'N"\n': 3})
    other.load(tmp_path / "state")
    assert bits(other(feeds)) == bits(step(feeds))

    step.export(tmp_path / "trained.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "trained.onnx", providers=["CPUExecutionProvider"])
    for a, b in zip(session.run(None, feeds), step.infer(feeds).values(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)

    lowered = compiler.lower(path, dims={'N"\n': 3})
    onnx.checker.check_model(lowered)
    session = onnxruntime.InferenceSession(lowered.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    values = dict(zip(names, session.run(None, feeds), strict=True))
    np.testing.assert_allclose(values["loss\n#"], sum(3 * (k + 1) for k in range(len(NAMES))), rtol=1e-6)
    assert not Path("onnxc-executed").exists()


def test_errors_show_names_on_one_line(tmp_path: Path) -> None:
    model = hostile()
    step = compiler.compile(model)
    for feeds in ({}, {"other\n": 1}, {v.name: np.zeros(2) for v in model.graph.input}):
        with pytest.raises(compiler.InputError) as e:
            step(feeds)
        assert str(e.value).isprintable()
    model.graph.node[0].op_type = 'No\n"thing'
    model.graph.node[4].input[0] = "nowhere\x1b[31m"
    onnx.save(model, tmp_path / "bad.onnx")
    done = subprocess.run(
        [sys.executable, "-m", "compiler", "check", tmp_path / "bad.onnx"],
        capture_output=True, text=True, cwd=Path(__file__).parents[1], timeout=60,
    )  # fmt: skip
    assert done.returncode == 1
    assert all(line.startswith("error: ") and line.isprintable() for line in done.stderr.splitlines()), done.stderr


def test_the_empty_name() -> None:
    """In ONNX it stands for a value that is left out."""

    def model(x: str, w: str, y: str) -> onnx.ModelProto:
        graph = helper.make_graph(
            [helper.make_node("Mul", [x, w], [y])],
            "",
            [helper.make_tensor_value_info(x, TensorProto.FLOAT, [3])],
            [helper.make_tensor_value_info(y, TensorProto.FLOAT, [3])],
            [numpy_helper.from_array(np.ones(3, np.float32), w)],
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)

    assert compiler.compile(model("x", "w", "y"))(x=np.ones(3, np.float32)).keys() == {"y"}
    for names in (("", "w", "y"), ("x", "", "y"), ("x", "w", "")):
        with pytest.raises(compiler.CompileError, match="name"):
            compiler.compile(model(*names))


def test_names_of_hidden_states_in_the_model() -> None:
    seed, step_name = "onnxc.seed", "onnxc.step"
    graph = helper.make_graph(
        [
            helper.make_node("RandomUniformLike", [seed], ["r"]),
            helper.make_node("Add", [seed, "r"], [step_name]),
            helper.make_node("Neg", [step_name], [f"{step_name}.next"]),
        ],
        "g",
        [helper.make_tensor_value_info(seed, TensorProto.FLOAT, [3])],
        [helper.make_tensor_value_info(v, TensorProto.FLOAT, [3]) for v in (step_name, f"{step_name}.next")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    with pytest.raises(compiler.ModelError) as e:
        compiler.compile(model)
    assert str(e.value).splitlines() == [
        f"'{n}' is a name that onnxc keeps for itself, rename it" for n in (seed, step_name)
    ]
    model.graph.node[0].op_type = "Neg"  # nothing is drawn: they are names like any others
    x = np.arange(3, dtype=np.float32)
    np.testing.assert_array_equal(compiler.compile(model)({seed: x})[step_name], 0)
