"""compiler.build and compiler.load: the same bits as the JIT, from Python and from C; the library; names."""

import ctypes
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import compiler
from compiler.codegen import library
from compiler.runtime.artifact import read_manifest
from tests.artifact_models import (
    HOSTILE,
    TYPES,
    Xorshift,
    compile_c,
    fnv,
    inference_only,
    named,
    output_of,
    swapped,
)
from tests.test_models import EXAMPLES

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")

BATCH = 32
Arrays = dict[str, np.ndarray]


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the digits, their model, and `artifact`."""
    folder = tmp_path_factory.mktemp("digits")
    subprocess.run([sys.executable, EXAMPLES / "digits.py", folder, "--npy"], check=True)
    compiler.build(folder / "digits.onnx", folder / "artifact", dims={"N": BATCH}, name="digits", threads=2)
    return folder


def batches(folder: Path, count: int) -> list[Arrays]:
    with np.load(folder / "train.npz") as file:
        return [{n: file[n][BATCH * i : BATCH * (i + 1)] for n in ("images", "labels")} for i in range(count)]


def same(a: Arrays, b: Arrays) -> bool:
    return list(a) == list(b) and all(a[n].tobytes() == b[n].tobytes() and a[n].shape == b[n].shape for n in a)


# --- the same as the JIT ---------------------------------------------------------------------------------------------
def test_same_bits_as_jit(digits: Path, tmp_path: Path) -> None:
    jit = compiler.compile(digits / "digits.onnx", dims={"N": BATCH})
    aot, two = (compiler.load(digits / "artifact", threads=n) for n in (1, 2))
    everybody = (jit, aot, two)
    assert same(dict(aot.state), dict(jit.state))
    for step in everybody:
        step.initialize(7)
    assert same(dict(aot.state), dict(jit.state))
    for feeds in batches(digits, 3):
        outputs = [step(feeds, fetch=["loss"]) for step in everybody]
        assert same(outputs[1], outputs[0])
        assert same(outputs[2], outputs[0])
    for step in everybody[1:]:
        assert same(dict(step.state), dict(jit.state))
    assert same(aot.infer(images=feeds["images"]), jit.infer(images=feeds["images"]))

    aot.save(tmp_path / "state")
    later = compiler.load(digits / "artifact")
    later.load(tmp_path / "state")
    for step in (jit, later):
        step(batches(digits, 4)[3])
    assert same(dict(later.state), dict(jit.state))
    assert not same(dict(later.state), dict(aot.state))


def test_c_program_trains_to_the_same_bits(digits: Path, tmp_path: Path) -> None:
    program = compile_c(EXAMPLES / "digits.c", digits / "artifact", "digits", scratch=tmp_path)
    text = output_of(program, digits / "artifact", digits, "1", "3")

    jit = compiler.compile(digits / "digits.onnx", dims={"N": BATCH})
    jit.initialize(3)
    with np.load(digits / "train.npz") as file:
        images, labels = file["images"], file["labels"]
    order = list(range(len(labels)))
    Xorshift(88172645463325252 + 3).shuffle(order)
    losses = []
    for i in range(len(order) // BATCH):
        rows = order[i * BATCH : (i + 1) * BATCH]
        losses.append(float(jit(images=images[rows], labels=labels[rows])["loss"]))
    assert f"loss {np.mean(losses):.6f}" in text
    assert f"checksum {fnv(list(jit.state.values())):016x}" in text

    trained = compiler.load(digits / "artifact")
    trained.load(digits / "trained.safetensors")  # written by C
    assert same(dict(trained.state), dict(jit.state))
    trained.save(tmp_path / "python.safetensors")
    assert (tmp_path / "python.safetensors").read_bytes() == (digits / "trained.safetensors").read_bytes()


def test_export(digits: Path, tmp_path: Path) -> None:
    jit = compiler.compile(digits / "digits.onnx", dims={"N": BATCH})
    aot = compiler.load(digits / "artifact")
    for step in (jit, aot):
        step(batches(digits, 1)[0])
        step.export(tmp_path / f"{step is jit}.onnx")
    assert onnx.load(tmp_path / "True.onnx") == onnx.load(tmp_path / "False.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "False.onnx", providers=["CPUExecutionProvider"])
    images = batches(digits, 1)[0]["images"]
    np.testing.assert_allclose(
        session.run(None, {"images": images})[0], aot.infer(images=images)["logits"], rtol=1e-4, atol=1e-5
    )


@pytest.mark.filterwarnings("ignore:the model has no initialization graph")
def test_model_without_state(tmp_path: Path) -> None:
    compiler.build(inference_only(), tmp_path / "a", dims={"N": 2})
    step = compiler.load(tmp_path / "a")
    x = np.arange(8.0).reshape(2, 4)
    for run in (step, step.infer):
        np.testing.assert_array_equal(run(x=x)["y"], x + np.arange(4.0))
    step.initialize(1)
    step.save(tmp_path / "nothing")
    step.load(tmp_path / "nothing")
    program = compile_c(
        """
        #include "onnxc.h"
        #include <stdio.h>
        int main(int n, char **paths) {
            onnxc_model *m = onnxc_create(NULL);
            (void)n;
            for (int i = 0; i < ONNXC_STEP_INPUT_x_COUNT; i++) onnxc_step_input_x(m)[i] = i;
            printf("%d ", onnxc_load(m, paths[1]));
            printf("%d ", onnxc_save(m, paths[2]));
            printf("%d ", onnxc_step(m));
            printf("%g\\n", onnxc_step_output_y(m)[7]);
            onnxc_destroy(m);
            return 0;
        }
        """,
        tmp_path / "a", "onnxc", scratch=tmp_path,
    )  # fmt: skip
    assert output_of(program, tmp_path / "nothing", tmp_path / "again") == "0 0 0 10\n"
    assert (tmp_path / "again").read_bytes() == (tmp_path / "nothing").read_bytes()


def test_every_element_type(tmp_path: Path) -> None:
    model = swapped()
    compiler.build(model, tmp_path / "a", name="types")
    step, jit = compiler.load(tmp_path / "a"), compiler.compile(model)
    assert same(dict(step.state), dict(jit.state))
    before = {n: a.copy() for n, a in step.state.items()}
    assert same(step(), jit())
    assert same(dict(step.state), dict(jit.state))
    assert all(same({"": step.state[f"{t}.a"]}, {"": before[f"{t}.b"]}) for t in TYPES)
    assert same(step.infer(), jit.infer())
    for s, name in ((step, "aot"), (jit, "jit")):
        s.export(tmp_path / f"{name}.onnx")
        s.save(tmp_path / name)
    assert onnx.load(tmp_path / "aot.onnx") == onnx.load(tmp_path / "jit.onnx")
    lines = "".join(
        f'printf("%g ", (double)types_state_{t}_a(m)[3]);\n' for t in TYPES if t not in ("float16", "bfloat16")
    )
    program = compile_c(
        f"""
        #include "types.h"
        #include <stdio.h>
        int main(int n, char **paths) {{
            types_model *m = types_create(NULL);
            if (n < 3 || types_load(m, paths[1]) != 0 || types_step(m) != 0 || types_save(m, paths[2]) != 0) return 1;
            {lines}
            types_destroy(m);
            return 0;
        }}
        """,
        tmp_path / "a", "types", scratch=tmp_path,
    )  # fmt: skip
    printed = output_of(program, tmp_path / "a" / "weights.safetensors", tmp_path / "c").split()
    assert [float(p) for p in printed] == [
        float(step.state[f"{t}.a"][1, 1]) for t in TYPES if t not in ("float16", "bfloat16")
    ]
    assert (tmp_path / "c").read_bytes() == (tmp_path / "aot").read_bytes() == (tmp_path / "jit").read_bytes()


# --- the library -----------------------------------------------------------------------------------------------------
def test_library_needs_libc_and_libm_only(digits: Path) -> None:
    file = digits / "artifact" / library.library_file("digits")
    symbols = subprocess.run(["nm", "-D", file], check=True, capture_output=True, text=True).stdout.split("\n")
    exported = sorted(line.split()[-1] for line in symbols if " T " in line)
    assert exported == sorted(library.exports("digits"))
    assert [line for line in symbols if line and " T " not in line and " U " not in line] == []
    needed = [line.split()[-1].split("@") for line in symbols if " U " in line]
    assert {version[0].split("_")[0] for _, *version in needed} == {"GLIBC"}
    known = [ctypes.CDLL(name) for name in ("libc.so.6", "libm.so.6")]
    assert [name for name, *_ in needed if not any(hasattr(lib, name) for lib in known)] == []


def test_loader_imports_no_compiler(digits: Path, tmp_path: Path) -> None:
    program = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"onnx", "numba", "llvmlite", "networkx", "google", "click", "rich"}:
            raise ImportError(f"{name} must not be imported")
sys.meta_path.insert(0, Refuse())
import numpy as np
import compiler
step = compiler.load(sys.argv[1])
step.initialize(1)
images, labels = np.zeros((32, 1, 8, 8), np.float32), np.zeros(32, np.int64)
step(images=images, labels=labels)
step.infer(images=images)
step.export(sys.argv[2])
step.save(sys.argv[2] + ".state")
assert "Conv" in step.graph and "def step" in step.source
own = {name for name in sys.modules if name.startswith("compiler.")}
assert all(name.startswith(("compiler.runtime", "compiler.errors")) for name in own), own
"""
    command = [sys.executable, "-c", program, str(digits / "artifact"), str(tmp_path / "out.onnx")]
    subprocess.run(command, check=True, cwd=EXAMPLES.parent, env={**os.environ, "PYTHONPATH": str(EXAMPLES.parent)})


def test_header_is_strict_c_and_cpp(digits: Path, tmp_path: Path) -> None:
    text = '#include "digits.h"\n#include "digits.h"\nint main(void) { return digits_message(0) == 0; }\n'
    output_of(compile_c(text, digits / "artifact", "digits", scratch=tmp_path))
    if shutil.which("c++") is None:
        pytest.skip("no C++ compiler")
    (tmp_path / "main.cc").write_text(text)
    for standard in ("c++98", "c++20"):
        command = [
            "c++",
            f"-std={standard}",
            "-Wall",
            "-Wextra",
            "-Werror",
            f"-I{digits / 'artifact'}",
            "-fsyntax-only",
        ]
        subprocess.run([*command, str(tmp_path / "main.cc")], check=True)


def test_refusal_of_a_label_in_c(digits: Path, tmp_path: Path) -> None:
    program = compile_c(
        """
        #include "digits.h"
        #include <stdio.h>
        #include <stdlib.h>
        #include <string.h>
        int main(int n, char **paths) {
            size_t size = digits_memory_bytes();
            char *memory = malloc(size + 1);
            digits_model *m = digits_create(memory + 1); /* any address will do */
            if (n < 2 || digits_load(m, paths[1]) != 0) return 1;
            float before = digits_state_conv1_weight(m)[0];
            memset(digits_step_input_images(m), 0, DIGITS_STEP_INPUT_images_COUNT * sizeof(float));
            for (int i = 0; i < DIGITS_STEP_INPUT_labels_COUNT; i++) digits_step_input_labels(m)[i] = 10;
            int code = digits_step(m);
            printf("%d|%s|%d %d\\n", code, digits_message(code), before == digits_state_conv1_weight(m)[0],
                   (int)*digits_state_iteration(m));
            for (int i = 0; i < DIGITS_STEP_INPUT_labels_COUNT; i++) digits_step_input_labels(m)[i] = 9;
            code = digits_step(m);
            printf("%d %d\\n", code, (int)*digits_state_iteration(m));
            digits_destroy(m);
            free(memory);
            return 0;
        }
        """,
        digits / "artifact", "digits", scratch=tmp_path,
    )  # fmt: skip
    first, second, _ = output_of(program, digits / "artifact" / "weights.safetensors").split("\n")
    step = compiler.load(digits / "artifact")
    with pytest.raises(compiler.InputError) as error:
        step(images=np.zeros((BATCH, 1, 8, 8), np.float32), labels=np.full(BATCH, 10))
    code, message, rest = first.split("|")
    assert int(code) > 0
    assert message.startswith("label out of range [0, 10) among the values of 'labels'")
    assert "'labels'[0] is 10: label out of range [0, 10)" in str(error.value)
    assert (rest, second) == ("1 0", "0 1")


# --- names -----------------------------------------------------------------------------------------------------------
def test_hostile_names(tmp_path: Path) -> None:
    compiler.build(named(), tmp_path / "a", name="odd")
    step, jit = compiler.load(tmp_path / "a"), compiler.compile(named())
    feeds = {"in put": np.float32([1, 2, 3])}
    assert same(step(feeds), jit(feeds))
    assert list(step.state) == list(HOSTILE)
    assert same(dict(step.state), dict(jit.state))
    step.export(tmp_path / "a.onnx")
    step.save(tmp_path / "state")

    text = (tmp_path / "a" / "odd.h").read_text(encoding="ascii")
    assert "return 1" in text
    assert "return 1" not in re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    program = compile_c(
        """
        #include "odd.h"
        #include <stdio.h>
        int main(int n, char **paths) {
            odd_model *m = odd_create(NULL);
            if (n < 3 || odd_load(m, paths[1]) != 0) return 1;
            for (int i = 0; i < ODD_STEP_INPUT_in_put_COUNT; i++) odd_step_input_in_put(m)[i] = i + 1;
            if (odd_step(m) != 0 || odd_save(m, paths[2]) != 0) return 1;
            for (size_t i = 0; i < odd_count(ODD_STATES); i++) {
                int found = odd_find(ODD_STATES, odd_info(ODD_STATES, i)->name);
                if (found != (int)i) return 2;
            }
            printf("%g\\n", odd_state_a_b_0_2(m)[0]);
            odd_destroy(m);
            return 0;
        }
        """,
        tmp_path / "a", "odd", scratch=tmp_path,
    )  # fmt: skip
    out = output_of(program, tmp_path / "a" / "weights.safetensors", tmp_path / "c")
    assert float(out) == step.state["a.b.0"][0]
    assert (tmp_path / "c").read_bytes() == (tmp_path / "state").read_bytes()
    names = [s.name for s in read_manifest(tmp_path / "a").states]
    assert names == list(HOSTILE)


@pytest.mark.parametrize("name", ["", "1a", "a-b", "a b", "_a", "a__b", "a_", "é", "a;b", "pthread"])
def test_bad_prefix(name: str, tmp_path: Path) -> None:
    with pytest.raises(compiler.InputError, match="name"):
        compiler.build(named(("w",)), tmp_path / "a", name=name)
    assert not (tmp_path / "a").exists()


def test_two_models_in_one_program(tmp_path: Path) -> None:
    for name, factor in (("one", 0.5), ("two", 2.0)):
        compiler.build(named(("w",), factor), tmp_path / name, name=name)
    text = """
        #include "one.h"
        #include "two.h"
        #include <stdio.h>
        int main(void) {
            one_model *a = one_create(NULL);
            two_model *b = two_create(NULL);
            one_state_w(a)[0] = 8; two_state_w(b)[0] = 8;
            printf("%d %d", one_step(a), two_step(b)); /* in any order */
            printf(" %g %g\\n", one_state_w(a)[0], two_state_w(b)[0]);
            one_destroy(a); two_destroy(b);
            return 0;
        }
        """
    more = [f"-I{tmp_path / 'two'}", f"-L{tmp_path / 'two'}", f"-Wl,-rpath,{tmp_path / 'two'}", "-Wl,--no-as-needed"]
    program = compile_c(text, tmp_path / "one", "one", *more, "-ltwo", scratch=tmp_path)
    assert output_of(program) == "0 0 4 16\n"
