"""Artifacts that cannot be used, folders that must not be overwritten, calls that do not fit: what is said."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

import compiler
from compiler.codegen import library, library_artifact
from compiler.codegen.library_cpu import Feature
from compiler.runtime.artifact import MANIFEST, Manifest, read_manifest
from tests.artifact_models import compile_c, inference_only, named, output_of

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    """The artifact of a small model."""
    compiler.build(named(("w", "v")), tmp_path / "artifact", name="small")
    return tmp_path / "artifact"


# --- calls that do not fit -------------------------------------------------------------------------------------------
def test_wrong_calls(artifact: Path) -> None:
    step = compiler.load(artifact)
    x = np.ones(3, np.float32)
    step({"in put": x}, fetch=["total"])
    for feeds, fetch, words in [
        ({"in put": np.ones(4, np.float32)}, (), "shape"),
        ({"in put": np.ones(3)}, (), "float64"),
        ({}, (), "missing input"),
        ({"in put": x, "b": x}, (), "unknown input 'b'"),
        ({"in put": x}, ("m0",), "'m0'; compiler.compile can fetch any value"),
    ]:
        with pytest.raises(compiler.InputError, match=words):
            step(feeds, fetch=fetch)
    with pytest.raises(compiler.InputError, match="threads"):
        compiler.load(artifact, threads=2)
    with pytest.raises(compiler.ArtifactError, match="has no evaluation, only step, infer: save the state, load it"):
        step.evaluate({"in put": x})


# --- folders that do not fit -----------------------------------------------------------------------------------------
def test_every_damaged_file_is_refused(artifact: Path) -> None:
    for path in sorted(artifact.iterdir()):
        data = path.read_bytes()
        middle = len(data) // 2
        for bad in (data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :], data[:-1], b"", None):
            path.unlink()
            if bad is not None:
                path.write_bytes(bad)
            with pytest.raises(compiler.ArtifactError, match=path.name):
                compiler.load(artifact)
            path.write_bytes(data)
    compiler.load(artifact)


@pytest.mark.parametrize("folder", ["nowhere", "empty", "file"])
def test_no_artifact(folder: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    with pytest.raises(compiler.ArtifactError, match=f"{folder}' is no artifact"):
        compiler.load(tmp_path / folder)


def changed(artifact: Path, **fields: object) -> None:
    """Rewrite the manifest as a build on another machine would."""
    text = (artifact / MANIFEST).read_text()
    manifest = Manifest(**{**vars(Manifest.from_json(text)), **fields})
    (artifact / MANIFEST).write_text(manifest.to_json())


def test_other_machine(artifact: Path) -> None:
    changed(artifact, machine="plan9 vax")
    with pytest.raises(compiler.ArtifactError, match="is for plan9 vax, this machine is"):
        compiler.load(artifact)


def test_other_format(artifact: Path) -> None:
    fields = json.loads((artifact / MANIFEST).read_text())
    fields["format"] = "onnxc artifact 99"
    (artifact / MANIFEST).write_text(json.dumps(fields))
    with pytest.raises(compiler.ArtifactError, match=r"99.*build it again"):
        compiler.load(artifact)


def test_other_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = Feature("imaginary", 0x7FFFFFFF, 0, 0, 0)
    for module in (library, library_artifact):
        monkeypatch.setattr(module, "required", lambda target: (missing,))
    compiler.build(named(("w",)), tmp_path / "a", name="small")
    with pytest.raises(compiler.ArtifactError, match="a CPU with imaginary"):
        compiler.load(tmp_path / "a")
    text = """
        #include "small.h"
        #include <stdio.h>
        int main(void) { puts(small_create(NULL) == NULL ? small_unsupported() : "runs"); return 0; }
        """
    assert output_of(compile_c(text, tmp_path / "a", "small", scratch=tmp_path)) == "imaginary\n"


def test_portable_cpu(tmp_path: Path) -> None:
    with pytest.raises(compiler.InputError, match="cpu must be one of 'host'"):
        compiler.build(named(("w",)), tmp_path / "a", cpu="i386")
    if os.uname().machine != "x86_64":
        pytest.skip("levels of x86-64")
    compiler.build(named(("w",)), tmp_path / "a", cpu="x86-64-v2")
    assert "sse4.2" in read_manifest(tmp_path / "a").features
    assert "avx" not in read_manifest(tmp_path / "a").features
    step = compiler.load(tmp_path / "a")
    np.testing.assert_array_equal(step({"in put": np.ones(3, np.float32)})["total"], np.ones(3))
    compiler.build(named(("w",)), tmp_path / "b", cpu="x86-64-v4")
    if "avx512vl" not in Path("/proc/cpuinfo").read_text():
        with pytest.raises(compiler.ArtifactError, match=r"avx512.*x86-64-v4.*cpu="):
            compiler.load(tmp_path / "b")


LEVELS = {"x86-64": "mr=6, nr=8", "x86-64-v3": "mr=6, nr=16", "x86-64-v4": "mr=8, nr=32"}


@pytest.mark.parametrize("cpu", LEVELS)
def test_kernels_are_those_of_the_cpu_that_is_built_for(cpu: str, tmp_path: Path) -> None:
    """Whatever this machine is, and whatever was made for it before."""
    if os.uname().machine != "x86_64":
        pytest.skip("levels of x86-64")
    rng = np.random.default_rng(0)
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        product (float[64,96] x) => (float[64,80] y) <float[96,80] w> { y = MatMul(x, w) }"""
    )
    w = rng.standard_normal((96, 80), dtype=np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(w, "w"))
    training = compiler.make_training_model(model, loss="mse", batch=None)
    feeds = {"x": rng.standard_normal((64, 96), dtype=np.float32), "target": np.zeros((64, 80), np.float32)}
    here = compiler.compile(training)(feeds)
    compiler.build(training, tmp_path / "a", cpu=cpu)
    products = [line for line in (tmp_path / "a" / "step.py").read_text().splitlines() if "make_gemm," in line]
    assert products
    assert all(LEVELS[cpu] in line for line in products)
    try:
        step = compiler.load(tmp_path / "a")
    except compiler.ArtifactError:
        pytest.skip(f"this machine is no {cpu}")
    np.testing.assert_allclose(step(feeds)["loss"], here["loss"], rtol=1e-6)


# --- writing ---------------------------------------------------------------------------------------------------------
def test_build_again_replaces_and_is_loaded(artifact: Path) -> None:
    x = {"in put": np.ones(3, np.float32)}
    old = compiler.load(artifact)
    compiler.build(named(("w", "v", "u"), 3.0), artifact, name="small")
    new = compiler.load(artifact)
    old(x)
    new(x)
    np.testing.assert_array_equal(old.state["v"], np.full(3, 2 * 0.5 + 1))
    np.testing.assert_array_equal(new.state["v"], np.full(3, 2 * 3.0 + 1))
    assert [p.name for p in artifact.parent.iterdir()] == [artifact.name]


def spoil_file(folder: Path) -> None:
    folder.write_text("mine")


def spoil_folder(folder: Path) -> None:
    folder.mkdir()
    (folder / "thesis.txt").write_text("mine")


def spoil_artifact(folder: Path) -> None:
    compiler.build(named(("w",)), folder)
    (folder / "checkpoint.safetensors").write_text("mine")


@pytest.mark.parametrize("spoil", [spoil_file, spoil_folder, spoil_artifact])
def test_nothing_else_is_overwritten(spoil: Callable[[Path], None], tmp_path: Path) -> None:
    folder = tmp_path / "a"
    spoil(folder)
    before = sorted(p.relative_to(tmp_path) for p in tmp_path.rglob("*"))
    with pytest.raises(compiler.BuildError, match=r"is a file|is no artifact|'checkpoint.safetensors'"):
        compiler.build(named(("w",)), folder)
    assert sorted(p.relative_to(tmp_path) for p in tmp_path.rglob("*")) == before


def test_empty_folder_is_filled(tmp_path: Path) -> None:
    compiler.build(named(("w",)), tmp_path)
    compiler.load(tmp_path)


def test_no_compiler_leaves_nothing(tmp_path: Path) -> None:
    for cc, words in [("no-such-cc", "no C compiler 'no-such-cc'"), ("", "no C compiler"), ("false", "cannot compile")]:
        with pytest.raises(compiler.BuildError, match=words):
            compiler.build(named(("w",)), tmp_path / "a", cc=cc)
    assert list(tmp_path.iterdir()) == []


def test_open_dims_are_refused(tmp_path: Path) -> None:
    with pytest.raises(compiler.CompileError, match="dim 'N' is not known"):
        compiler.build(inference_only(), tmp_path / "a")
    assert list(tmp_path.iterdir()) == []
