"""The C text around a library: its reader of safetensors under sanitizers, its CPU test, its identifiers."""

import itertools
import json
import random
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from compiler.codegen.library import _stored
from compiler.codegen.library_cpu import FEATURES, architecture, required, target
from compiler.codegen.library_names import Identifiers, identifier, literal
from compiler.codegen.library_tables import Contents, Graph, code, header
from compiler.codegen.native import Target
from compiler.runtime.checkpoint import save_state
from compiler.runtime.layout import STATE, Layout, Message, Slot
from tests.artifact_models import HOSTILE, STRICT, output_of

needs_cc = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")

STATES = (
    Slot("w", "f32", (2, 3), STATE, 0),
    Slot("count", "i64", (), STATE, 192),
    Slot('ünï "☃"', "bool", (5,), STATE, 384),
    Slot("none", "f64", (0, 4), STATE, 576),
    Slot("__metadata__", "u8", (1,), STATE, 768),
)
ARRAYS = {
    "w": np.arange(6, dtype=np.float32).reshape(2, 3),
    "count": np.array(-7),
    'ünï "☃"': np.array([True, False, True, True, False]),
    "none": np.zeros((0, 4)),
    "__metadata__": np.array([9], np.uint8),
}

MAIN = """
#include "model.c"
const unsigned char no_constants[64] = {0};
void no_code(int64_t table, int64_t thread, int64_t threads) { (void)table; (void)thread; (void)threads; }
void no_pool(int64_t block) { (void)block; }

/* load FILE...: a code for each. cpu: each feature and whether this CPU has it. save FILE: of what was loaded last. */
int main(int count, char **arguments) {
    toy_model *m = toy_create(NULL);
    if (count > 1 && strcmp(arguments[1], "cpu") == 0) {
#if defined(__x86_64__)
        for (size_t i = 0; i < FEATURES; i++)
            printf("%s %d\\n", features[i].name, has(&features[i]) && keeps(features[i].registers));
#endif
    } else {
        m = m != NULL ? m : toy_create(NULL);
        for (int i = 1; i < count; i++) {
            if (strcmp(arguments[i], "save") == 0) {
                printf("saved %d\\n", toy_save(m, arguments[i + 1]));
                break;
            }
            unsigned char before[1024], *state = toy_data(m, TOY_STATES, 0);
            memcpy(before, state, 777);
            int code = toy_load(m, arguments[i]);
            printf("%d %s\\n", code, memcmp(before, state, 777) == 0 ? "same" : "changed");
        }
    }
    toy_destroy(m);
    return 0;
}
"""


def contents(weights: Path, features: tuple = ()) -> Contents:
    stored, order, head = _stored(weights, STATES)
    messages = (Message("bad", "", "", "nowhere"),)
    layout = Layout((), (), STATES, 64, 960, 64, 0, messages, 1, (0,), (0,), brief=False)
    graphs = [Graph("step", layout, "no_code", "no_constants")]
    return Contents("toy", "toy", "0", "test", graphs, STATES, stored, head, order, features, ("no_code", "no_pool"))


def harness(folder: Path, features: tuple = ()) -> Path:
    """A program around the C text of a library without kernels, with sanitizers where the compiler has them."""
    save_state(folder / "weights", ARRAYS)
    c = contents(folder / "weights", features)
    (folder / "toy.h").write_text(header(c), encoding="ascii")
    (folder / "model.c").write_text(code(c), encoding="utf-8")
    (folder / "main.c").write_text(MAIN)
    command = ["cc", *STRICT, "-g", str(folder / "main.c"), "-o", str(folder / "program")]
    sanitizers = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    if subprocess.run([*command, *sanitizers], capture_output=True).returncode != 0:
        subprocess.run(command, check=True)
    return folder / "program"


@needs_cc
def test_reads_and_writes_what_python_writes(tmp_path: Path) -> None:
    program = harness(tmp_path)
    assert output_of(program, tmp_path / "weights", "save", tmp_path / "copy") == "0 changed\nsaved 0\n"
    assert (tmp_path / "copy").read_bytes() == (tmp_path / "weights").read_bytes()
    assert output_of(program, "save", tmp_path / "no" / "such" / "folder") == "saved -1\n"
    assert not list(tmp_path.glob("*.part"))


def file_of(header: object, data: bytes) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


@needs_cc
def test_any_valid_spelling_is_read(tmp_path: Path) -> None:
    program = harness(tmp_path)
    whole = (tmp_path / "weights").read_bytes()
    size = int.from_bytes(whole[:8], "little")
    entries, data = json.loads(whole[8 : 8 + size]), whole[8 + size :]
    backwards = {name: dict(reversed(e.items())) for name, e in reversed(entries.items())}
    escaped = "".join(f"\\u{ord(c):04x}" for c in "count")
    spellings = {
        "indented": json.dumps(entries, indent=3).encode() + b"  \n\t ",
        "backwards": json.dumps(backwards).encode(),
        "utf8": json.dumps(entries, ensure_ascii=False).encode(),
        "escaped": json.dumps(entries).replace('"count"', f'"{escaped}"').encode(),
        "no metadata": json.dumps({n: e for n, e in entries.items() if n != "__metadata__"}).encode(),
    }
    for name, text in spellings.items():
        (tmp_path / "file").write_bytes(file_of(text, data))
        copied = output_of(program, tmp_path / "file", "save", tmp_path / "copy")
        assert copied == "0 changed\nsaved 0\n", name
        assert (tmp_path / "copy").read_bytes() == whole, name


@needs_cc
def test_other_state_is_refused(tmp_path: Path) -> None:
    program = harness(tmp_path)
    files = []
    for change in (
        {"more": np.zeros(3)},
        {"w": np.zeros((3, 2), np.float32)},
        {"w": np.zeros(6, np.float32)},
        {"w": np.zeros((2, 3), np.int32)},
        {"count": np.zeros(1, np.int64)},
        {"count": None},
    ):
        files.append(tmp_path / f"other{len(files)}")
        save_state(files[-1], {n: a for n, a in {**ARRAYS, **change}.items() if a is not None})
    assert output_of(program, *files).split("\n") == ["-3 same"] * len(files) + [""]


@needs_cc
def test_malformed_files_are_refused(tmp_path: Path) -> None:
    """Every cut, and many random changes: whatever it is, the reader stays in its memory (the sanitizers see to it),
    and what is refused changes nothing."""
    program = harness(tmp_path)
    whole = (tmp_path / "weights").read_bytes()
    size = int.from_bytes(whole[:8], "little")
    header, rest = whole[8 : 8 + size], whole[8 + size :]
    rng = random.Random(0)
    cases = [whole[:n] for n in range(len(whole))]
    cases += [n.to_bytes(8, "little") + whole[8:] for n in (0, size - 1, size + 1, 10**8, 2**63, 2**64 - 1)]
    for _ in range(1500):
        text = bytearray(header)
        for _ in range(rng.choice((1, 1, 2, 5))):
            at = rng.randrange(len(text))
            text[at : at + rng.choice((0, 1, 1, 3))] = rng.choice(
                (b"", b'"', b"\\", b"{", b"}", b"[", b"9" * 30, b",", b"\\ud800", b"\\u00", b"\0", b"\xff", b"1", b":")
            )
        cases.append(file_of(bytes(text), rest))
    files = []
    for i, data in enumerate(cases):
        files.append(tmp_path / f"case{i}")
        files[-1].write_bytes(data)
    lines = [line for k in range(0, len(files), 500) for line in output_of(program, *files[k : k + 500]).splitlines()]
    assert len(lines) == len(cases)
    codes = [int(line.split()[0]) for line in lines]
    assert set(codes[: len(whole)]) == {-2}, "a file that is cut short"
    assert set(codes) <= {0, -2, -3}
    assert all(line.endswith("same") for line, n in zip(lines, codes, strict=True) if n != 0)
    assert codes.count(0) < len(codes) / 4


@needs_cc
def test_cpuid_agrees_with_llvm(tmp_path: Path) -> None:
    host = Target.host()
    if architecture(host) != "x86_64":
        pytest.skip("CPUID is of x86-64")
    lines = output_of(harness(tmp_path, FEATURES), "cpu").split()
    found = dict(zip(lines[::2], map(int, lines[1::2]), strict=True))
    told = dict.fromkeys((f.name for f in FEATURES), 0) | {
        f[1:]: int(f[0] == "+") for f in host.features.split(",") if f[1:] in found
    }
    assert found == told


def test_required_features() -> None:
    if architecture(Target.host()) != "x86_64":
        assert required(Target.host()) == ()
        return
    names = [{f.name for f in required(target(f"x86-64{level}"))} for level in ("", "-v2", "-v3", "-v4")]
    assert names[0] == set()
    assert all(a < b for a, b in itertools.pairwise(names))
    assert len(names[3]) == 6 + 8 + 5


def test_identifiers_never_meet() -> None:
    names = Identifiers({"S_taken"})
    patterns = ("S_{}", "S_{}_COUNT", "s_{}")
    found = [i for n in (*HOSTILE, "a", "a.COUNT", "a_COUNT", "taken", "", "é", "A") for i in names.take(n, *patterns)]
    assert len(set(found)) == len(found)
    assert all(i.isascii() and i.isidentifier() and "__" not in i and len(i) <= 63 for i in found)
    assert identifier("conv1.weight") == "conv1_weight"


def test_literals_are_plain() -> None:
    text = "".join(map(chr, range(256))) + "☃*/??/"
    quoted = literal(text)
    assert quoted.isascii()
    assert quoted.isprintable()
    assert not set(quoted[1:-1]) & set('"?*')
    assert eval("b" + quoted) == text.encode()  # Python's octal escapes are C's
