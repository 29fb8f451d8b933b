"""The kernel language: identity, pointers, inlined helpers, vectors, plain Python."""

import dis
import inspect
import re
import sys
from typing import Any

import numpy as np
import pytest

from compiler.codegen.native import (
    DTYPES,
    ITEMSIZE,
    Kernel,
    bits_of,
    convert,
    f32,
    f32_of_bits,
    f64,
    f64_of_bits,
    i64,
    identity,
    inline,
    int_add,
    int_div,
    int_floordiv,
    int_mod,
    int_mul,
    int_rem,
    int_shl,
    int_shr,
    int_sub,
    kernel,
    make_tile,
    maximum,
    minimum,
    native,
    optimized_ir,
    pointer,
    u8,
)
from compiler.codegen.native.dtypes import numpy_dtype
from compiler.errors import BuildError

ONE, ZERO = np.float32(1), np.float32(0)


def address(a: Any) -> int:
    return int(a.ctypes.data)


def make_copy(name: str) -> Kernel:
    at, size = pointer(name), ITEMSIZE[name]

    @kernel
    def copy(lo: int, hi: int, src: int, dst: int) -> None:
        s, d = at(src + size * lo, 0), at(dst + size * lo, 1)
        for i in range(hi - lo):
            d[i] = s[i]

    return copy


def make_binary(name: str, operation: Any) -> Kernel:
    at = pointer(name)

    @kernel
    def binary(lo: int, hi: int, a: int, b: int, c: int) -> None:
        x, y, z = at(a, 0), at(b, 1), at(c, 2)
        for i in range(hi - lo):
            z[i] = operation(x[i], y[i])

    return binary


def make_unary(source: str, target: str, operation: Any) -> Kernel:
    from_, to, s_size, d_size = pointer(source), pointer(target), ITEMSIZE[source], ITEMSIZE[target]

    @kernel
    def unary(lo: int, hi: int, src: int, dst: int) -> None:
        s, d = from_(src + s_size * lo, 0), to(dst + d_size * lo, 1)
        for i in range(hi - lo):
            d[i] = operation(s[i])

    return unary


@pytest.mark.parametrize("name", DTYPES)
def test_copy_moves_exactly_the_slice(name: str) -> None:
    x = np.arange(1, 70).astype(numpy_dtype(name))
    for lo, hi in ((0, 69), (3, 3), (5, 6), (1, 34), (2, 68)):
        y = np.zeros_like(x)
        native(make_copy(name))(lo, hi, address(x), address(y))
        expected = np.zeros_like(x)
        expected[lo:hi] = x[lo:hi]
        np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("name", ["f32", "f64", "i8", "i32", "u8"])
def test_simple_kernels_use_vectors(name: str) -> None:
    kind = {"f32": "float", "f64": "double"}.get(name, f"i{8 * ITEMSIZE[name]}")
    assert re.search(rf"store <\d+ x {kind}>", optimized_ir(make_copy(name)))


def test_symbol_follows_the_content() -> None:
    assert make_copy("f32").symbol == make_copy("f32").symbol
    assert make_copy("f32").symbol != make_copy("f64").symbol
    assert re.fullmatch(r"onnxc_copy_[0-9a-f]{16}", make_copy("f32").symbol)

    def scaled(factor: float, reassoc: bool = False) -> Kernel:
        def body(lo: int, hi: int, x: int) -> None:
            p = f64(x, 0)
            for i in range(hi - lo):
                p[i] = p[i] * factor

        return Kernel(body, reassoc=reassoc)

    assert scaled(2.0).symbol == scaled(2.0).symbol
    assert len({scaled(2.0).symbol, scaled(3.0).symbol, scaled(2.0, reassoc=True).symbol}) == 3


def test_symbol_follows_what_is_called() -> None:
    def caller(constant: Any, size: int, callee: Kernel) -> Kernel:
        tile = make_tile(size)

        @inline
        def helper(x: Any) -> Any:
            return x + constant

        @kernel
        def outer(lo: int, hi: int, x: int) -> None:
            p = f32(tile(), 0)
            p[0] = helper(p[1])
            callee(lo, hi, x, x)

        return outer

    base = caller(ONE, 16, make_copy("f32"))
    assert base.symbol == caller(np.float32(1), 16, make_copy("f32")).symbol
    others = [caller(ZERO, 16, make_copy("f32")), caller(ONE, 17, make_copy("f32")), caller(ONE, 16, make_copy("f64"))]
    assert len({base.symbol, *(k.symbol for k in others)}) == 4
    assert [k.name for k in base.closure()] == ["copy", "outer"]


def test_global_names_are_those_of_the_instructions() -> None:
    """As `dis` tells them, for all functions of the native layer, operands beyond a byte among them."""
    crowded = compile("".join(f"import sys as v{i}\n" for i in range(300)) + "v299.v0 = v1 + v280\n", "", "exec")
    codes = [crowded, compile("def f():\n    global v0\n" + "".join(f"    v{i}\n" for i in range(300)), "", "exec")]
    modules = [m for n, m in sys.modules.items() if n.startswith("compiler.codegen.native.")]
    codes += [f.__code__ for m in modules for f in vars(m).values() if inspect.isfunction(f)]
    assert len(codes) > 100
    while codes:
        c = codes.pop()
        codes += [k for k in c.co_consts if inspect.iscode(k)]
        read = {i.argval for i in dis.get_instructions(c) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
        assert identity.global_names(c) == tuple(n for n in c.co_names if n in read)


def test_a_value_of_unknown_effect_is_refused() -> None:
    strange = object.__new__(type("Strange", (), {}))

    @kernel
    def uses(lo: int, hi: int) -> None:
        strange.anything()

    with pytest.raises(TypeError, match=r"'strange' in .*uses is a Strange"):
        _ = uses.symbol


def test_from_source() -> None:
    text = "def twice(lo, hi, x):\n    p = f32(x, 0)\n    for i in range(lo, hi):\n        p[i] = p[i] + p[i]\n"
    k = Kernel.from_source("twice", text, {"f32": f32})
    x = np.arange(4, dtype=np.float32)
    native(k)(1, 3, address(x))
    np.testing.assert_array_equal(x, [0, 2, 4, 3])
    assert k.symbol == Kernel.from_source("twice", text, {"f32": f32}).symbol
    assert k.symbol != Kernel.from_source("twice", text.replace("p[i] + p", "p[i] * p"), {"f32": f32}).symbol
    with pytest.raises(ValueError, match="no function other"):
        Kernel.from_source("other", text, {"f32": f32})


def test_kernels_call_each_other_by_symbol() -> None:
    inner = make_copy("f32")

    @kernel
    def outer(lo: int, hi: int, a: int, b: int, c: int) -> None:
        inner(lo, hi, a, b)
        inner(lo, hi, b, c)

    a, b, c = (np.full(9, v, np.float32) for v in (1, 2, 3))
    native(outer)(0, 8, address(a), address(b), address(c))
    assert c.tolist() == [1] * 8 + [3]
    assert len(re.findall(rf"call \w+ @{inner.symbol}\(", optimized_ir(outer))) == 2


def test_scalars_travel_as_bits() -> None:
    @kernel
    def scalars(lo: int, hi: int, a: int, b: int, out: int) -> None:
        p = f64(out, 0)
        p[0], p[1] = f32_of_bits(a), f64_of_bits(b)

    out = np.zeros(2)
    native(scalars)(0, 1, bits_of(-0.1, "f32"), bits_of(-0.1, "f64"), address(out))
    assert out.tolist() == [float(np.float32(-0.1)), -0.1]


def test_booleans_and_narrow_floats() -> None:
    x = np.array([0, 1, 7, 255], np.uint8)
    y = np.zeros(4, np.uint8)
    native(make_unary("bool", "u8", convert("u8")))(0, 4, address(x), address(y))
    assert y.tolist() == [0, 1, 1, 1]
    values = np.array([1, 1 + 2**-9, 1 + 3 * 2**-9, np.nan, np.inf, -1e-40, 3.4e38], np.float32)
    half = np.zeros(7, np.float16)
    native(make_copy_between("f32", "f16"))(0, 7, address(values), address(half))
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(half, values.astype(np.float16))
    narrow, back = np.zeros(7, np.uint16), np.zeros(7, np.float32)
    native(make_copy_between("f32", "bf16"))(0, 7, address(values), address(narrow))
    native(make_copy_between("bf16", "f32"))(0, 7, address(narrow), address(back))
    assert back[:3].tolist() == [1, 1, 1 + 2**-7]  # ties to even
    assert np.isnan(back[3])
    assert back[6] == np.inf


def make_copy_between(source: str, target: str) -> Kernel:
    return make_unary(source, target, inline(lambda x: x))


@pytest.mark.sweep(1)
@pytest.mark.parametrize("target", ["f32", "f64", "f16", "bf16", "i8", "i32", "i64", "u8", "u32", "u64", "bool"])
@pytest.mark.parametrize("source", ["f32", "f64", "f16", "i8", "i64", "u8", "u64", "bool"])
def test_convert_is_the_same_compiled_and_plain(source: str, target: str) -> None:
    values = [
        0,
        1,
        2.5,
        -3.7,
        1e9,
        -1e9,
        3e38,
        -1e20,
        np.nan,
        np.inf,
        -np.inf,
        0.1,
        100,
        200,
        65519.9,
        1 + 2**-8 + 2**-30,
    ]
    with np.errstate(all="ignore"):
        x = np.array(values).astype(numpy_dtype(source))
    compiled, plain = (np.zeros(len(x), numpy_dtype(target)) for _ in range(2))
    k = make_unary(source, target, convert(target))
    native(k)(0, len(x), address(x), address(compiled))
    k(0, len(x), address(x), address(plain))
    assert compiled.tobytes() == plain.tobytes()


def test_convert_saturates() -> None:
    x = np.array([np.nan, np.inf, -np.inf, 300, -1, 2.9, -2.9])
    y = np.zeros(7, np.uint8)
    native(make_unary("f64", "u8", convert("u8")))(0, 7, address(x), address(y))
    assert y.tolist() == [0, 255, 0, 255, 0, 2, 0]


@pytest.mark.parametrize("name", ["i8", "i32", "i64", "u8", "u64"])
def test_integer_arithmetic_is_defined_everywhere(name: str) -> None:
    kind = numpy_dtype(name)
    info = np.iinfo(kind)
    values = np.array([0, 1, 2, 3, 7, 100, info.max, info.min, *([-1, -2, -7] if info.min else [])], kind)
    x, y = (np.ascontiguousarray(v.ravel()) for v in np.meshgrid(values, values))
    for f in (int_add, int_sub, int_mul, int_div, int_rem, int_floordiv, int_mod, int_shl, int_shr):
        compiled, plain = np.zeros_like(x), np.zeros_like(x)
        k = make_binary(name, f)
        native(k)(0, len(x), address(x), address(y), address(compiled))
        k(0, len(x), address(x), address(y), address(plain))
        np.testing.assert_array_equal(compiled, plain, err_msg=f.__name__)
    c, r = (np.zeros(3, np.int64) for _ in range(2))
    a, b = np.array([-7, 7, -(2**63)]), np.array([2, -2, -1])
    native(make_binary("i64", int_div))(0, 3, address(a), address(b), address(c))
    native(make_binary("i64", int_mod))(0, 3, address(a), address(b), address(r))
    assert (c.tolist(), r.tolist()) == ([-3, -3, -(2**63)], [1, -1, 0])


def test_maximum_and_minimum_show_nan() -> None:
    x, y = np.array([np.nan, 1, 2, -np.inf], np.float32), np.array([1, np.nan, 3, 5], np.float32)
    for f, expected in ((maximum, np.maximum), (minimum, np.minimum)):
        z = np.zeros(4, np.float32)
        native(make_binary("f32", f))(0, 4, address(x), address(y), address(z))
        np.testing.assert_array_equal(z, expected(x, y))


def test_reassociation_only_where_asked() -> None:
    def total(lo: int, hi: int, x: int, out: int) -> None:
        p, q = f32(x, 0), f32(out, 1)
        s = ZERO
        for i in range(hi - lo):
            s += p[i]
        q[0] = s

    assert "x float>" not in optimized_ir(Kernel(total))
    assert "x float>" in optimized_ir(Kernel(total, reassoc=True))


def test_what_cannot_be_compiled_is_named() -> None:
    @kernel
    def raises(lo: int, hi: int) -> None:
        if lo > hi:
            raise ValueError

    @kernel
    def wrong(lo: int, hi: int, x: int) -> None:
        f32(x, lo)[0] = ONE

    with pytest.raises(BuildError, match="raises"):
        native(raises)
    with pytest.raises(BuildError, match="kernel wrong does not compile"):
        native(wrong)


def test_plain_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONNXC_PLAIN", "1")
    tile = make_tile(4, "i64")

    @kernel
    def plain(lo: int, hi: int, src: int, dst: int) -> None:
        t, s, d = i64(tile(), 0), u8(src, 1), f32(dst, 2)
        for i in range(hi - lo):
            t[i] = s[i]
            d[i] = t[i] + ONE

    k = native(plain)
    assert k is plain
    x, y = np.array([1, 255, 3], np.uint8), np.zeros(3, np.float32)
    k(0, 3, address(x), address(y))
    assert y.tolist() == [2, 256, 4]
