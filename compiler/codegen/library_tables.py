"""The C text of a library: the templates library.h and library*.c with a model's own arrays, memory and graphs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from compiler.codegen.library_cpu import Feature
from compiler.codegen.library_names import Identifiers, escaped, literal, literal_of_bytes
from compiler.runtime.layout import ELEMENTS, NUMPY, SEED, STEP, Layout, Slot

ROLES = ("step", "infer", "initialize")
"""Graphs of a model, by their numbers in the C interface."""

_C = {"float32": "float", "float64": "double", "bool": "uint8_t"}
_HERE = Path(__file__).parent


@dataclass(frozen=True)
class Graph:
    """One graph of a library: what it is, its memory, and the symbols of its code and of its constants."""

    role: str
    layout: Layout
    symbol: str
    constants: str


@dataclass(frozen=True)
class Stored:
    """How a safetensors file holds a state."""

    name: str
    dtype: str


@dataclass(frozen=True)
class Contents:
    """What the text is made of.

    name: prefix of all C names. title: of the model. version: of onnxc. target: described for people. graphs: the step
    is the first. states: all of them; stored: for each of them; header: of the file that holds them, which onnxc_save
    repeats; order: their indices in the order of its data. pool: symbols of the two functions of the worker pool.
    """

    name: str
    title: str
    version: str
    target: str
    graphs: Sequence[Graph]
    states: Sequence[Slot]
    stored: Sequence[Stored]
    header: bytes
    order: Sequence[int]
    features: Sequence[Feature]
    pool: tuple[str, str]


@dataclass(frozen=True)
class _Group:
    """Arrays that the interface lists together; each has a macro and a function that start with `prefix`."""

    prefix: str
    graph: int
    slots: Sequence[Slot]

    @property
    def name(self) -> str:
        return f"{self.prefix.upper()}S"


def _groups(c: Contents) -> list[_Group]:
    groups = [_Group("state", 0, c.states)]
    of_role = {g.role: (i, g.layout) for i, g in enumerate(c.graphs)}
    for role in ROLES[:2]:
        i, layout = of_role.get(role, (0, None))
        groups.append(_Group(f"{role}_input", i, layout.inputs if layout else ()))
        groups.append(_Group(f"{role}_output", i, layout.outputs if layout else ()))
    return groups


def _template(file: str, name: str) -> str:
    """A file beside this one, with the prefix of its names replaced."""
    text = (_HERE / file).read_text(encoding="utf-8")
    text = re.sub(r"\bonnxc(?=_|\.h)", name, text)
    return re.sub(r"\bONNXC_", f"{name.upper()}_", text)


def _words(header: str) -> set[str]:
    """All identifiers of a header, without its comments."""
    return set(re.findall(r"\w+", re.sub(r"/\*.*?\*/", "", header, flags=re.DOTALL)))


def exports(name: str, infers: bool = True) -> list[str]:
    """The functions that a library of this name exports."""
    text = re.sub(r"/\*.*?\*/", "", _template("library.h", name), flags=re.DOTALL)
    found = list(dict.fromkeys(re.findall(rf"\b{name}_\w+(?=\()", text)))
    return found if infers else [f for f in found if f != f"{name}_infer"]


# --- the header ------------------------------------------------------------------------------------------------------
def header(c: Contents) -> str:
    """The C header."""
    parts = {
        "TITLE": escaped(c.title),
        "VERSION": c.version,
        "TARGET": c.target,
        "HAS_INFER": str(int(any(g.role == "infer" for g in c.graphs))),
        "ARRAYS": "\n".join(_accessors(c)),
    }
    return re.sub(r"@([A-Z_]+)@", lambda m: parts[m[1]], _template("library.h", c.name))


def _accessors(c: Contents) -> list[str]:
    """For each array its index, its size and a function that gives its address."""
    names = Identifiers(_words(_template("library.h", c.name)))
    lines = []
    for group in _groups(c):
        if group.slots:
            lines += [f"/* --- {group.name.replace('_', ' ').lower()}: index, number of elements, address --- */", ""]
        for i, s in enumerate(group.slots):
            index, count, function = names.take(s.name, *_names(c.name, group.prefix))
            kind = ("const " if group.prefix.endswith("output") else "") + c_type(s.dtype)
            lines += [
                f"/* {escaped(s.name)}: {s.dtype}[{','.join(map(str, s.shape))}] */",
                f"#define {index} {i}",
                f"#define {count} {_count(s)}",
                f"static inline {kind} *{function}({c.name}_model *model) {{",
                f"    return ({kind} *){c.name}_data(model, {c.name.upper()}_{group.name}, {index});",
                "}",
                "",
            ]
    return lines


def _names(name: str, prefix: str) -> tuple[str, str, str]:
    """Patterns of the three names of an array."""
    upper = f"{name}_{prefix}".upper()
    return f"{upper}_{{}}", f"{upper}_{{}}_COUNT", f"{name}_{prefix}_{{}}"


def c_type(dtype: str) -> str:
    """The C type of an element; f16, bf16 and floats of at most 8 bits are their bits."""
    numpy = NUMPY["u16" if dtype == "f16" else dtype]
    return _C.get(numpy, f"{numpy}_t")


def _count(s: Slot) -> int:
    return s.nbytes // s.numpy.itemsize


# --- the code --------------------------------------------------------------------------------------------------------
def code(c: Contents) -> str:
    """The C source."""
    tables = [*_numbers(c), *_messages(c), *_graphs(c), *_arrays(c), *_file(c), *_features(c)]
    interface, *parts = (_template(f"{file}.c", c.name) for file in ("library", "library_state", "library_cpu"))
    return "\n".join([interface.replace("@TABLES@", "\n".join(tables)), *parts])


def _numbers(c: Contents) -> list[str]:
    index = {g.role: i for i, g in enumerate(c.graphs)}
    states = {s.name: i for i, s in enumerate(c.states)}
    return [
        f"#define GRAPHS {len(c.graphs)}",
        f"enum {{ {', '.join(f'{role.upper()} = {index.get(role, -1)}' for role in ROLES)} }};",
        f"enum {{ SEED_STATE = {states.get(SEED, -1)}, STEP_STATE = {states.get(STEP, -1)} }};",
        f"static const size_t STATE_BYTES = {max(g.layout.state_bytes for g in c.graphs)};",
        f"static const size_t STATES = {len(c.states)};",
        f"static const int64_t ELEMENTS = {ELEMENTS};",
        "",
    ]


def _messages(c: Contents) -> list[str]:
    texts = [str(m) for g in c.graphs for m in g.layout.messages]
    lines = [f"enum {{ MESSAGES = {len(texts)} }};", "static const char *const messages[] = {"]
    return [*lines, *(f"    {literal(m)}," for m in texts), "    NULL,", "};", ""]


def _graphs(c: Contents) -> list[str]:
    lines, rows, first = [], [], 0
    for g in c.graphs:
        a = g.layout
        lines += [
            f"extern void {g.symbol}(int64_t table, int64_t thread, int64_t threads);",
            f"extern const unsigned char {g.constants}[];",
            *_array("static const signed char", f"{g.role}_blocks", a.table_blocks),
            *_array("static const int64_t", f"{g.role}_values", map(_int64, a.table_values)),
            "",
        ]
        rows.append(
            f"    {{{g.symbol}, {g.constants}, {a.arena_bytes}, {len(a.table_values)}, "
            f"{g.role}_blocks, {g.role}_values, {a.status}, {first}}},"
        )
        first += len(a.messages)
    worker, run = c.pool
    return [
        *lines,
        "static const struct graph graphs[GRAPHS] = {",
        *rows,
        "};",
        "",
        f"extern void {worker}(int64_t block, int64_t thread, int64_t patience);",
        f"extern void {run}(int64_t block);",
        f"#define POOL_WORKER {worker}",
        f"#define POOL_RUN {run}",
        "",
    ]


def _int64(n: int) -> str:
    return "INT64_MIN" if n == -(2**63) else f"INT64_C({n})" if abs(n) >= 2**31 else str(n)


def _array(kind: str, name: str, items: Iterable[object]) -> list[str]:
    """An array of numbers, as many as fit to a line."""
    lines, line = [f"{kind} {name}[] = {{"], "   "
    for item in items:
        if len(line) > 100:
            lines.append(line)
            line = "   "
        line += f" {item},"
    return [*lines, line, "};"]


def _arrays(c: Contents) -> list[str]:
    lines, rows = [], []
    for group in _groups(c):
        if not group.slots:
            rows.append("    {NULL, 0, 0},")
            continue
        lines.append(f"static const struct slot {group.prefix}s[] = {{")
        for i, s in enumerate(group.slots):
            shape = ", ".join(map(str, s.shape)) or "0"
            what = f"{literal(s.name)}, {literal(s.dtype)}, {_count(s)}, {s.nbytes}, {len(s.shape)}"
            file = "NULL, 0, NULL"
            if group.prefix == "state":
                stored = c.stored[i]
                file = f"{literal(stored.name)}, {len(stored.name.encode())}, {literal(stored.dtype)}"
            lines.append(f"    {{{{{what}, (const int64_t[]){{{shape}}}}}, {s.block}, {s.offset}, {file}}},")
        lines += ["};", ""]
        rows.append(f"    {{{group.prefix}s, {len(group.slots)}, {group.graph}}},")
    if not c.states:
        lines += ["static const struct slot *const states = NULL;", ""]
    return [*lines, "/* in the order of the enum */", "static const struct group groups[] = {", *rows, "};", ""]


def _file(c: Contents) -> list[str]:
    return [
        f"enum {{ HEADER_BYTES = {len(c.header)} }};",
        "static const char file_header[] =",
        f"{literal_of_bytes(c.header)};",
        *_array("static const size_t", "file_order", c.order or (0,)),
        "",
    ]


def _features(c: Contents) -> list[str]:
    rows = [
        f"    {{{literal(f.name)}, {f.leaf}u, {f.subleaf}u, {f.register}, {f.bit}, {f.state}u}}," for f in c.features
    ]
    return [
        "#if defined(__x86_64__)",
        f"static const size_t FEATURES = {len(rows)};",
        "static const struct feature features[] = {",
        *(rows or ["    {NULL, 0u, 0u, 0, 0, 0u},"]),
        "};",
        "#endif",
    ]


def constants(files: Mapping[str, str]) -> str:
    """Assembly (to be preprocessed) that takes files into the library as read-only data: symbol -> file name."""
    lines = [
        "#ifdef __APPLE__",
        "#define SYMBOL(name) _##name",
        "#define HIDE(name) .private_extern _##name",
        "    .section __TEXT,__const",
        "#else",
        "#define SYMBOL(name) name",
        "#define HIDE(name) .hidden name",
        '    .section .note.GNU-stack,"",%progbits',
        "    .section .rodata",
        "#endif",
    ]
    for symbol, file in files.items():
        lines += ["    .balign 64", f"    .globl SYMBOL({symbol})", f"    HIDE({symbol})", f"SYMBOL({symbol}):"]
        lines.append(f'    .incbin "{file}"')
    return "\n".join(lines) + "\n"
