"""Elementwise ops as scalar formulas: Python expressions that Numba types, one per op."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from compiler.ir.graph import Attr, Node
from compiler.ir.proto import default
from compiler.ir.types import NARROW, NARROW_FLOATS
from compiler.runtime.layout import NUMPY

FLOAT = frozenset({"f32", "f64", "f16", "bf16"})
INT = frozenset({"i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64"})
NUMBER = FLOAT | INT
ANY = NUMBER | {"bool"}

COMPUTED = {"f16": "f32", "bf16": "f32"}
"""Element types whose values are computed in another one, and rounded after every op."""


@dataclass
class Formula:
    """What a formula sees: expressions of its operands, element types, attributes, and typed constants."""

    node: Node
    args: list[str]
    """One expression per input ('' if absent)."""
    types: list[str]
    """Element type of each input ('' if absent)."""
    result: str
    """Element type of the output."""
    constants: dict[str, Any] = field(default_factory=dict)
    """Names of constants used in expressions -> values; shared by a whole kernel."""

    def attr(self, name: str) -> Attr:
        """An attribute, or the schema's default."""
        return self.node.attr(name, default(self.node.op, name))

    def const(self, value: float | int | bool, dtype: str | None = None) -> str:
        """A constant of an element type (the first operand's by default) as an expression."""
        d = dtype or self.types[0]
        # an element of ml_dtypes is its byte
        bits: Any = np.asarray(value).view(NUMPY[d])[()] if d in NARROW else value
        typed = np.dtype(NUMPY[COMPUTED.get(d, d)]).type(bits)
        for name, known in self.constants.items():
            if type(known) is type(typed) and known.tobytes() == typed.tobytes():
                return name
        name = f"c{len(self.constants)}"
        self.constants[name] = typed
        return name

    def each(self, form: str) -> str:
        """`form` with {0}, {1}, .. for operands and {one}, {zero}, {half} for constants of the first operand's type."""
        return form.format(*self.args, **{k: self.const(v) for k, v in _NAMED.items() if f"{{{k}}}" in form})


_NAMED: dict[str, float] = {"zero": 0, "one": 1, "half": 0.5, "two": 2}

Rule = Callable[[Formula], str]


@dataclass(frozen=True)
class Elementwise:
    """An elementwise op: its formula, and the element types of its first float-or-number operand it takes."""

    rule: Rule
    accepts: frozenset[str]


ELEMENTWISE: dict[str, Elementwise] = {}


def elementwise(accepts: frozenset[str], *ops: str) -> Callable[[Rule], Rule]:
    """Register the formula of ops, and the element types that it takes."""

    def register(rule: Rule) -> Rule:
        ELEMENTWISE.update((op, Elementwise(rule, accepts)) for op in ops)
        return rule

    return register


def _form(form: str) -> Rule:
    return lambda f: f.each(form)


def _simple(accepts: frozenset[str], **forms: str) -> None:
    for op, form in forms.items():
        ELEMENTWISE[op] = Elementwise(_form(form), accepts)


_simple(
    FLOAT,
    Exp="exp({0})", Log="log({0})", Sqrt="sqrt({0})", Reciprocal="{one} / {0}", Tanh="tanh({0})", Erf="erf({0})",
    Sigmoid="sigmoid({0})", Sin="sin({0})", Cos="cos({0})", Tan="tan({0})", Asin="asin({0})", Acos="acos({0})",
    Atan="atan({0})", Sinh="sinh({0})", Cosh="cosh({0})", Asinh="asinh({0})", Acosh="acosh({0})", Atanh="atanh({0})",
    Floor="floor({0})", Ceil="ceil({0})", Round="rint({0})", IsNaN="{0} != {0}", Softsign="{0} / ({one} + abs({0}))",
    Softplus="softplus({0})",
    Mish="{0} * tanh(softplus({0}))",
)  # fmt: skip
_simple(NUMBER, Relu="maximum({0}, {zero})")
_simple(NUMBER, Less="{0} < {1}", Greater="{0} > {1}", LessOrEqual="{0} <= {1}", GreaterOrEqual="{0} >= {1}")
_simple(ANY, Equal="{0} == {1}", Where="select({0}, {1}, {2})")
_simple(frozenset({"bool"}), And="{0} & {1}", Or="{0} | {1}", Xor="{0} ^ {1}", Not="not {0}")
_simple(INT, BitwiseAnd="int_and({0}, {1})", BitwiseOr="int_or({0}, {1})", BitwiseXor="int_xor({0}, {1})")
_simple(INT, BitwiseNot="~{0}")


def _either(floating: str, integer: str) -> Rule:
    """Numba's operators leave integer overflow undefined; `int_add` and its relatives wrap."""
    return lambda f: f.each(floating if f.result in FLOAT else integer)


ELEMENTWISE |= {
    "Add": Elementwise(_either("{0} + {1}", "int_add({0}, {1})"), NUMBER),
    "Sub": Elementwise(_either("{0} - {1}", "int_sub({0}, {1})"), NUMBER),
    "Mul": Elementwise(_either("{0} * {1}", "int_mul({0}, {1})"), NUMBER),
    "Neg": Elementwise(_either("-{0}", "int_sub({zero}, {0})"), NUMBER),
}


@elementwise(NUMBER, "Div")
def _div(f: Formula) -> str:
    return f.each("{0} / {1}" if f.result in FLOAT else "int_div({0}, {1})")


@elementwise(NUMBER, "Mod")
def _mod(f: Formula) -> str:
    if f.result in FLOAT:
        return f.each("fmod({0}, {1})" if f.attr("fmod") else "float_mod({0}, {1})")
    return f.each("int_rem({0}, {1})" if f.attr("fmod") else "int_mod({0}, {1})")


@elementwise(INT, "BitShift")
def _shift(f: Formula) -> str:
    return f.each("int_shl({0}, {1})" if f.attr("direction") == "LEFT" else "int_shr({0}, {1})")


@elementwise(NUMBER, "Abs")
def _abs(f: Formula) -> str:
    if f.result in FLOAT:
        return f.each("abs({0})")
    return f.each("{0}" if f.result.startswith("u") else "select({0} >= {zero}, {0}, int_sub({zero}, {0}))")


@elementwise(NUMBER, "Sign")
def _sign(f: Formula) -> str:
    if f.result in FLOAT:  # a NaN stays one
        return f.each("select({0} > {zero}, {one}, select({0} < {zero}, -{one}, {0} * {zero}))")
    minus = f.const(-1) if not f.result.startswith("u") else f.const(0)
    return f.each("select({0} > {zero}, {one}, select({0} < {zero}, " + minus + ", {zero}))")


@elementwise(FLOAT | INT, "Pow")
def _pow(f: Formula) -> str:
    base, exponent = f.args[0], f.args[1]
    known = f.constants.get(exponent)
    if f.result in FLOAT:
        forms = {2: "{0} * {0}", 1: "{0}", 3: "{0} * {0} * {0}", 0.5: "sqrt({0})", -1: "{one} / {0}", 0: "{one}"}
        if known is not None and float(known) in forms and float(known) != 0.5:  # pow(-inf, 0.5) is inf, sqrt is nan
            return f.each(forms[float(known)])
        return f"pow({base}, to_{COMPUTED.get(f.result, f.result)}({exponent}))"
    if f.types[1] in FLOAT:
        return f"pow(to_f64({base}), to_f64({exponent}))"
    return f"{base} ** {exponent}"


def _fold(form: str) -> Rule:
    def rule(f: Formula) -> str:
        result, *rest = f.args
        for other in rest:
            result = wrap(form.format(result, other), f.result)
        return result

    return rule


elementwise(NUMBER, "Max")(_fold("maximum({0}, {1})"))
elementwise(NUMBER, "Min")(_fold("minimum({0}, {1})"))
elementwise(FLOAT, "Sum")(_fold("{0} + {1}"))


@elementwise(FLOAT, "Mean")
def _mean(f: Formula) -> str:
    return f"({_fold('{0} + {1}')(f)}) / {f.const(len(f.args))}"


@elementwise(NUMBER, "Clip")
def _clip(f: Formula) -> str:
    low, high = ([*f.args, "", ""])[1:3]
    result = f.args[0]
    if low:
        result = f"maximum({result}, {low})"
    return f"minimum({result}, {high})" if high else result


@elementwise(ANY | NARROW, "Cast", "CastLike")
def _cast(f: Formula) -> str:
    if f.result == f.types[0]:
        return f.args[0]
    x = f"from_{f.types[0]}({f.args[0]})" if f.types[0] in NARROW_FLOATS else f.args[0]
    if f.result not in NARROW_FLOATS:
        return f"to_{f.result}({x})"
    return f"{encoding(f.result, bool(f.attr('saturate')), str(f.attr('round_mode')))}(sticky({x}))"


def encoding(dtype: str, saturate: bool, mode: str) -> str:
    """Name of the formula that gives the code of a float32 in a type of at most 8 bits."""
    return f"to_{dtype}{'' if saturate else '_open'}{f'_{mode}' if dtype == 'f8e8m0' else ''}"


@elementwise(FLOAT, "LeakyRelu")
def _leaky_relu(f: Formula) -> str:
    return f.each("select({0} >= {zero}, {0}, " + f.const(f.attr("alpha")) + " * {0})")


@elementwise(NUMBER, "PRelu")
def _prelu(f: Formula) -> str:
    return f.each("select({0} >= {zero}, {0}, {1} * {0})")


@elementwise(FLOAT, "Elu")
def _elu(f: Formula) -> str:
    return f.each("select({0} >= {zero}, {0}, " + f.const(f.attr("alpha")) + " * expm1({0}))")


@elementwise(FLOAT, "Selu")
def _selu(f: Formula) -> str:
    gamma, alpha = f.const(f.attr("gamma")), f.const(f.attr("alpha"))
    return f.each(f"{gamma} * select({{0}} >= {{zero}}, {{0}}, {alpha} * expm1({{0}}))")


@elementwise(FLOAT, "Celu")
def _celu(f: Formula) -> str:
    alpha = f.const(f.attr("alpha"))
    return f.each(f"select({{0}} >= {{zero}}, {{0}}, {alpha} * expm1({{0}} / {alpha}))")


@elementwise(FLOAT, "ThresholdedRelu")
def _thresholded_relu(f: Formula) -> str:
    return f.each("select({0} > " + f.const(f.attr("alpha")) + ", {0}, {zero})")


@elementwise(FLOAT, "HardSigmoid")
def _hard_sigmoid(f: Formula) -> str:
    alpha, beta = f.const(f.attr("alpha")), f.const(f.attr("beta"))
    return f.each(f"maximum(minimum({alpha} * {{0}} + {beta}, {{one}}), {{zero}})")


@elementwise(FLOAT, "HardSwish")
def _hard_swish(f: Formula) -> str:  # 1/6 as in the attribute of ONNX's definition, in float32
    return f.each("{0} * maximum(minimum({0} * " + f.const(float(np.float32(1 / 6))) + " + {half}, {one}), {zero})")


@elementwise(FLOAT, "Swish")
def _swish(f: Formula) -> str:
    return f.each("{0} * sigmoid(" + f.const(f.attr("alpha")) + " * {0})")


@elementwise(NUMBER, "Shrink")
def _shrink(f: Formula) -> str:
    lambd, bias = f.const(f.attr("lambd")), f.const(f.attr("bias"))
    return f.each(f"select({{0}} < -{lambd}, {{0}} + {bias}, select({{0}} > {lambd}, {{0}} - {bias}, {{zero}}))")


@elementwise(FLOAT, "Gelu")
def _gelu(f: Formula) -> str:
    if f.attr("approximate") == "tanh":  # ONNX Gelu: sqrt(2/pi) and 0.044715 as in its text
        inner = f"{f.const(float(np.sqrt(2 / np.pi)))} * ({{0}} + {f.const(0.044715)} * {{0}} * {{0}} * {{0}})"
        return f.each("{half} * {0} * ({one} + tanh(" + inner + "))")
    return f.each("{half} * {0} * ({one} + erf({0} * " + f.const(float(np.sqrt(0.5))) + "))")


@elementwise(FLOAT, "IsInf")
def _is_inf(f: Formula) -> str:
    tests = [f"{f.args[0]} == {f.const(np.inf)}"] if f.attr("detect_positive") else []
    tests += [f"{f.args[0]} == {f.const(-np.inf)}"] if f.attr("detect_negative") else []
    return " or ".join(tests) or f"({f.args[0]} != {f.args[0]}) & ({f.args[0]} == {f.args[0]})"


def wrap(expression: str, dtype: str) -> str:
    """The expression as a value of an element type: Numba computes small integers in 64 bits, half floats in f32."""
    return f"to_{dtype}({expression})" if dtype in INT or dtype in COMPUTED else expression


def is_elementwise(node: Node, types: list[str]) -> bool:
    """Whether there is a formula for the node with operands of these element types."""
    rule = ELEMENTWISE.get(node.op)
    if rule is None:
        return False
    tested = types[1] if node.op == "Where" else types[0]
    return all(t in ANY or t in rule.accepts for t in types if t) and tested in rule.accepts
