"""Which products and sums become one instruction, decided before LLVM sees them.

LLVM would decide that last, when it selects instructions, and by what is around them then: in vectors for AVX-512 it
makes `a * b + (c if test else 0)` a sum under a mask, for a single element a fused one. The bits of an element would
depend on how many there are beside it. `llvm.fmuladd` means the same wherever LLVM moves it: one rounding where the
target has such an instruction, else two.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from llvmlite import ir
from numba.core import cgutils


def contract(module: Any) -> None:
    """Fuse each product of an llvmlite module with the sum that alone uses it, and let LLVM fuse nothing more.

    Both must have the flag `contract`, which is gone afterwards.
    """
    for function in tuple(module.functions):
        _fuse(function)
        for i in _instructions(function):
            if "contract" in i.flags:
                i.flags.remove("contract")
            if isinstance(i, ir.CallInstr):
                i.fastmath.discard("contract")


def _instructions(function: Any) -> Iterator[Any]:
    return (i for block in function.blocks for i in block.instructions)


def _operands(i: Any) -> list[Any]:
    return [value for value, _ in i.incomings] if isinstance(i, ir.PhiInstr) else list(i.operands)


def _fuse(function: Any) -> None:
    uses = Counter(id(v) for i in _instructions(function) for v in _operands(i))
    single = {
        id(i): i for i in _instructions(function) if i.opname == "fmul" and "contract" in i.flags and uses[id(i)] == 1
    }
    fused: dict[int, tuple[Any, Any]] = {}
    for block in function.blocks if single else ():
        found: list[Any] = []
        for i in block.instructions:
            product = next((v for v in i.operands if id(v) in single), None) if i.opname in ("fadd", "fsub") else None
            if product is None or "contract" not in i.flags:
                found.append(i)
                continue
            del single[id(product)]
            made = _fused(i, product, list(i.operands).index(product))
            found += made
            fused[id(i)] = i, made[-1]
            fused[id(product)] = product, None
        block.instructions = [i for i in found if id(i) not in fused]
    for i in _instructions(function) if fused else ():
        for v in _operands(i):
            if id(v) in fused:
                i.replace_usage(*fused[id(v)])


def _fused(i: Any, product: Any, at: int) -> list[Any]:
    """The instructions for a sum or difference i whose operand `at` is a product."""
    made: list[Any] = []

    def negative(value: Any) -> Any:
        made.append(ir.Instruction(i.parent, i.type, "fneg", (value,)))
        return made[-1]

    (x, y), z = product.operands, i.operands[1 - at]
    if i.opname == "fsub":
        x, z = (x, negative(z)) if at == 0 else (negative(x), z)
    element = getattr(i.type, "element", i.type)
    name = f"v{i.type.count}" if isinstance(i.type, ir.VectorType) else ""
    bits = {ir.HalfType(): 16, ir.FloatType(): 32, ir.DoubleType(): 64}[element]
    kind = ir.FunctionType(i.type, [i.type] * 3)
    f = cgutils.get_or_insert_function(i.module, kind, f"llvm.fmuladd.{name}f{bits}")
    made.append(ir.CallInstr(i.parent, f, (x, y, z), fastmath=[flag for flag in i.flags if flag != "contract"]))
    return made
