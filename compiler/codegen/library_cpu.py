"""CPUs that a library can be built for, and the instruction sets that its code may then use."""

from __future__ import annotations

from typing import NamedTuple

from compiler.codegen.native import Target
from compiler.errors import InputError, checked_string


class Feature(NamedTuple):
    """Where the CPUID instruction tells of an instruction set.

    name: LLVM's. register: 0 to 3, of eax ebx ecx edx. state: bits of XCR0, the registers that the operating system
    must keep for it.
    """

    name: str
    leaf: int
    subleaf: int
    register: int
    bit: int
    state: int = 0


_EBX, _ECX, _EDX, _EAX = 1, 2, 3, 0
_AVX, _AVX512 = 0x6, 0xE6
_EXTENDED = 0x80000001

# Intel's Software Developer's Manual, volume 2, CPUID, and AMD's Programmer's Manual, volume 3, appendix E. Only what
# a compiler uses unasked: instructions for operating systems, encryption or hints do not matter here.
FEATURES = tuple(
    Feature(*row)
    for row in (
        ("sse3", 1, 0, _ECX, 0),
        ("ssse3", 1, 0, _ECX, 9),
        ("fma", 1, 0, _ECX, 12, _AVX),
        ("cx16", 1, 0, _ECX, 13),
        ("sse4.1", 1, 0, _ECX, 19),
        ("sse4.2", 1, 0, _ECX, 20),
        ("movbe", 1, 0, _ECX, 22),
        ("popcnt", 1, 0, _ECX, 23),
        ("avx", 1, 0, _ECX, 28, _AVX),
        ("f16c", 1, 0, _ECX, 29, _AVX),
        ("bmi", 7, 0, _EBX, 3),
        ("avx2", 7, 0, _EBX, 5, _AVX),
        ("bmi2", 7, 0, _EBX, 8),
        ("avx512f", 7, 0, _EBX, 16, _AVX512),
        ("avx512dq", 7, 0, _EBX, 17, _AVX512),
        ("adx", 7, 0, _EBX, 19),
        ("avx512ifma", 7, 0, _EBX, 21, _AVX512),
        ("avx512cd", 7, 0, _EBX, 28, _AVX512),
        ("avx512bw", 7, 0, _EBX, 30, _AVX512),
        ("avx512vl", 7, 0, _EBX, 31, _AVX512),
        ("avx512vbmi", 7, 0, _ECX, 1, _AVX512),
        ("avx512vbmi2", 7, 0, _ECX, 6, _AVX512),
        ("gfni", 7, 0, _ECX, 8),
        ("avx512vnni", 7, 0, _ECX, 11, _AVX512),
        ("avx512bitalg", 7, 0, _ECX, 12, _AVX512),
        ("avx512vpopcntdq", 7, 0, _ECX, 14, _AVX512),
        ("avx512fp16", 7, 0, _EDX, 23, _AVX512),
        ("avxvnni", 7, 1, _EAX, 4, _AVX),
        ("avx512bf16", 7, 1, _EAX, 5, _AVX512),
        ("avxifma", 7, 1, _EAX, 23, _AVX),
        ("avxvnniint8", 7, 1, _EDX, 4, _AVX),
        ("avxneconvert", 7, 1, _EDX, 5, _AVX),
        ("avxvnniint16", 7, 1, _EDX, 10, _AVX),
        ("lzcnt", _EXTENDED, 0, _ECX, 5),
        ("sse4a", _EXTENDED, 0, _ECX, 6),
        ("xop", _EXTENDED, 0, _ECX, 11, _AVX),
        ("fma4", _EXTENDED, 0, _ECX, 16, _AVX),
        ("tbm", _EXTENDED, 0, _ECX, 21),
    )
)

# The levels of the x86-64 psABI supplement; each includes those before it.
_LEVELS = {
    "x86-64": "",
    "x86-64-v2": "cx16 popcnt sse3 ssse3 sse4.1 sse4.2",
    "x86-64-v3": "avx avx2 bmi bmi2 f16c fma lzcnt movbe",
    "x86-64-v4": "avx512f avx512bw avx512cd avx512dq avx512vl",
}


def target(cpu: str) -> Target:
    """The target that a user names: "host", this machine, or a level of x86-64. InputError: another name."""
    host = Target.host()
    known = ["host", *(_LEVELS if architecture(host) == "x86_64" else ())]
    if checked_string("cpu", cpu) not in known:
        raise InputError(f"cpu must be one of {', '.join(map(repr, known))} on this machine, not {cpu!r}")
    return host if cpu == "host" else Target(cpu, "", host.triple)


def architecture(t: Target) -> str:
    """The first part of the triple."""
    return t.triple.split("-")[0]


def required(t: Target) -> tuple[Feature, ...]:
    """What a CPU must have to run code for a target. Of other architectures than x86-64 nothing is known."""
    if architecture(t) != "x86_64":
        return ()
    have = {name[1:] for name in t.features.split(",") if name.startswith("+")}
    if t.cpu in _LEVELS:
        levels = list(_LEVELS)
        have |= {name for level in levels[: levels.index(t.cpu) + 1] for name in _LEVELS[level].split()}
    return tuple(f for f in FEATURES if f.name in have)
