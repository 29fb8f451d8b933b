"""Definitions of linear quantization, and of products of quantized tensors, in exact integers between the scalings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from compiler.ir.bodies import internal
from compiler.ir.builder import INTERNAL_OPS, Builder
from compiler.ir.graph import Attr
from compiler.ir.infer import InferenceError
from compiler.ir.types import NARROW_FLOATS, dtype_from_onnx, largest, limits, onnx_dtype

Attrs = Mapping[str, Attr]

CONVOLUTION = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")


def _cast(b: Builder, x: str, dtype: str) -> str:
    return x if b.type(x).dtype == dtype else b.op("Cast", x, to=onnx_dtype(dtype))


def _spread(b: Builder, scale: str, x: str, attrs: Attrs) -> str:
    """A scale or zero point as it broadcasts against x: of all of it, of each index of an axis, or of blocks."""
    shape, rank = b.shape(scale), len(b.shape(x))
    if not shape or (shape == (1,) and attrs.get("block_size", 0) == 0):
        return b.op("Reshape", scale, b.ints([])) if shape else scale
    axis = attrs.get("axis", 1) % rank
    if block := attrs.get("block_size", 0):
        return b.op("Gather", scale, b.ints(i // block for i in range(b.shape(x)[axis])), axis=axis)
    after = rank - axis - 1
    return b.op("Reshape", scale, b.ints([shape[0], *(1 for _ in range(after))])) if after else scale


def _type_of(attrs: Attrs, name: str, otherwise: str) -> str:
    code = attrs.get(name, 0)
    dtype = dtype_from_onnx(code) if code else otherwise
    if dtype is None:
        raise InferenceError(f"{name} is of a type that is not supported")
    return dtype


def _rounded(b: Builder, x: str, zero: str, dtype: str, saturate: int = 1) -> str:
    """X rounded to even, plus a zero point (maybe ''), in the range of a type of at most 16 bits."""
    if dtype in NARROW_FLOATS:
        wide = _cast(b, x, "f32")
        wide = b.op("Add", wide, _cast(b, zero, "f32")) if zero else wide
        return b.op("Cast", wide, to=onnx_dtype(dtype), saturate=saturate)
    wide = _cast(b, b.op("Round", x), "f32")  # holds all the integers that matter
    wide = b.op("Add", wide, _cast(b, zero, "f32")) if zero else wide
    return _cast(b, _limited(b, wide, dtype), dtype)


def _limited(b: Builder, wide: str, dtype: str) -> str:
    """Floats kept in the range of an integer type."""
    low, high = limits(dtype)
    return b.op("Clip", wide, b.scalar(low, wide), b.scalar(high, wide))


def quantize_linear(b: Builder, inputs: Sequence[str], attrs: Attrs) -> Sequence[str]:
    """QuantizeLinear(x, scale, zero?): x / scale + zero, rounded to even, in the range of the type."""
    x, scale, zero = (*inputs, "")[:3]
    dtype = b.type(zero).dtype if zero else _type_of(attrs, "output_dtype", "u8")
    precision = _type_of(attrs, "precision", b.type(scale).dtype)
    if precision not in ("f32", "f16", "bf16"):
        precision = "f32"  # of integers
    quotient = b.op("Div", _cast(b, x, precision), _spread(b, _cast(b, scale, precision), x, attrs))
    zero = _spread(b, _cast(b, zero, "f32"), x, attrs) if zero else ""  # nothing is gathered in less than 8 bits
    return [_rounded(b, quotient, zero, dtype, attrs.get("saturate", 1))]


def dequantize_linear(b: Builder, inputs: Sequence[str], attrs: Attrs) -> Sequence[str]:
    """DequantizeLinear(x, scale, zero?): (x - zero) scale, the difference in i32 or f32, the product in f32."""
    x, scale, zero = (*inputs, "")[:3]
    dtype = _type_of(attrs, "output_dtype", b.type(scale).dtype)
    between = "f32" if b.type(x).dtype in NARROW_FLOATS else "i32"
    wide = _cast(b, x, between)
    wide = b.op("Sub", wide, _spread(b, _cast(b, zero, between), x, attrs)) if zero else wide
    y = b.op("Mul", _cast(b, wide, "f32"), _spread(b, _cast(b, scale, "f32"), x, attrs))
    return [_cast(b, y, dtype)]


@internal("FakeQuantize")
def fake_quantize(b: Builder, inputs: Sequence[str], attrs: Attrs) -> Sequence[str]:
    """(x, scale, zero?) -> x quantized and back: the numbers of QuantizeLinear and DequantizeLinear, all as floats.

    Attributes: those of QuantizeLinear, and the type of the result, dequantized_dtype. The gradient looks through the
    rounding.
    """
    x, scale, zero = (*inputs, "")[:3]
    dtype = b.type(zero).dtype if zero else _type_of(attrs, "output_dtype", "u8")
    precision = _type_of(attrs, "precision", b.type(scale).dtype)
    if precision not in ("f32", "f16", "bf16"):
        precision = "f32"
    quotient = b.op("Div", _cast(b, x, precision), _spread(b, _cast(b, scale, precision), x, attrs))
    offset = _spread(b, _cast(b, zero, "f32"), x, attrs) if zero else ""
    if dtype in NARROW_FLOATS:
        wide = _cast(b, quotient, "f32")
        wide = b.op("Add", wide, offset) if zero else wide
        if attrs.get("saturate", 1):
            most = largest(dtype)
            wide = b.op("Clip", wide, b.scalar(-most, wide), b.scalar(most, wide))
        kept = _cast(b, _rounded(b, wide, "", dtype, attrs.get("saturate", 1)), "f32")  # Cast has the derivative 1
    else:
        wide = _cast(b, b.op("onnxc.RoundThrough", quotient), "f32")
        kept = _limited(b, b.op("Add", wide, offset) if zero else wide, dtype)
    y = b.op("Sub", kept, offset) if zero else kept
    y = b.op("Mul", y, _spread(b, _cast(b, scale, "f32"), x, attrs))
    return [_cast(b, y, _type_of(attrs, "dequantized_dtype", b.type(scale).dtype))]


@internal("RoundThrough")
def round_through(b: Builder, inputs: Sequence[str], attrs: Attrs) -> Sequence[str]:
    """Round, the gradient of which looks through the rounding."""
    return [b.op("Round", inputs[0])]


def _without_zero(b: Builder, x: str, zero: str, dtype: str, shape: Sequence[int] = ()) -> str:
    """X - zero in a wider type; a zero point of several elements is reshaped."""
    wide = _cast(b, x, dtype)
    if not zero:
        return wide
    return b.op("Sub", wide, b.op("Reshape", _cast(b, zero, dtype), b.ints(shape if b.type(zero).size > 1 else ())))


def _lined_up(b: Builder, v: str, matrix: str, of_rows: bool) -> Sequence[int]:
    """The shape of a scale or zero point of the rows of the first factor, or of the columns of the second."""
    shape = b.shape(v) if v else ()
    return (shape[0], 1) if len(shape) == 1 and of_rows and len(b.shape(matrix)) > 1 else shape


def matmul_integer(b: Builder, inputs: Sequence[str], attrs: Attrs) -> Sequence[str]:
    """MatMulInteger(a, b, zero of a?, zero of b?) in i32."""
    x, y, x_zero, y_zero = (*inputs, "", "")[:4]
    left = _without_zero(b, x, x_zero, "i32", _lined_up(b, x_zero, x, True))
    right = _without_zero(b, y, y_zero, "i32", _lined_up(b, y_zero, y, False))
    return [b.op("MatMul", left, right)]


def conv_integer(b: Builder, inputs: Sequence[str], attrs: Attrs) -> Sequence[str]:
    """ConvInteger(x, w, zero of x?, zero of w?): a Conv in f64, in which the sums are exact. Padding counts as zero."""
    x, w, x_zero, w_zero = (*inputs, "", "")[:4]
    channels = (b.shape(w)[0], *(1 for _ in b.shape(w)[1:]))
    operands = [_without_zero(b, x, x_zero, "f64"), _without_zero(b, w, w_zero, "f64", channels)]
    return [_cast(b, b.add("Conv", operands, {k: v for k, v in attrs.items() if k in CONVOLUTION})[0], "i32")]


def _requantized(b: Builder, total: str, scales: Sequence[str], zero: str) -> str:
    """An i32 sum times the scales of both factors over that of the result (f32, as they broadcast), as integers."""
    first, second, result = scales
    factor = b.op("Div", b.op("Mul", first, second), result)
    return _rounded(b, b.op("Mul", _cast(b, total, "f32"), factor), zero, b.type(zero).dtype)


def qlinear_matmul(b: Builder, inputs: Sequence[str], attrs: Attrs) -> Sequence[str]:
    """QLinearMatMul(a, scale, zero, b, scale, zero, scale of y, zero of y)."""
    x, x_scale, x_zero, y, y_scale, y_zero, scale, zero = inputs
    if b.type(x).is_float or b.type(y).is_float:
        left = _without_zero(b, x, x_zero, "f32", _lined_up(b, x_zero, x, True))
        right = _without_zero(b, y, y_zero, "f32", _lined_up(b, y_zero, y, False))
        total = b.op("MatMul", left, right)
    else:
        total = b.op("MatMulInteger", x, y, x_zero, y_zero)

    def fitted(v: str, matrix: str, of_rows: bool) -> str:
        shape = () if b.type(v).size == 1 else _lined_up(b, v, matrix, of_rows)
        return v if b.shape(v) == tuple(shape) else b.op("Reshape", v, b.ints(shape))

    scales = [fitted(x_scale, x, True), fitted(y_scale, y, False), fitted(scale, total, True)]
    return [_requantized(b, total, [_cast(b, v, "f32") for v in scales], fitted(zero, total, True))]


def qlinear_conv(b: Builder, inputs: Sequence[str], attrs: Attrs) -> Sequence[str]:
    """QLinearConv(x, scale, zero, w, scale, zero, scale of y, zero of y, bias?): the bias has the scale of x w."""
    x, x_scale, x_zero, w, w_scale, w_zero, scale, zero, bias = (*inputs, "")[:9]
    total = b.add("ConvInteger", [x, w, x_zero, w_zero], {k: v for k, v in attrs.items() if k in CONVOLUTION})[0]
    after = [1] * (len(b.shape(x)) - 2)

    def of_channels(v: str) -> str:
        return b.op("Reshape", v, b.ints([] if b.type(v).size == 1 else [b.type(v).size, *after]))

    if bias:
        total = b.op("Add", total, b.op("Reshape", bias, b.ints([b.type(bias).size, *after])))
    scales = [of_channels(_cast(b, v, "f32")) for v in (x_scale, w_scale, scale)]
    return [_requantized(b, total, scales, of_channels(zero))]


INTERNAL_OPS |= {
    "QuantizeLinear": quantize_linear,
    "DequantizeLinear": dequantize_linear,
    "MatMulInteger": matmul_integer,
    "ConvInteger": conv_integer,
    "QLinearMatMul": qlinear_matmul,
    "QLinearConv": qlinear_conv,
}
