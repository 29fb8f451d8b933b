"""Kernels that only call others: lowered here, without Numba, which takes milliseconds for each call.

The language is that of an emitted step, a small part of Python: `T = i64(table, 0)`; calls of kernels on words, which
are parameters, numbers, `T[k]`, `i64(word, 0)[k]`, `u8(word, 0)[k]` and sums of words; `if word != 0:` with `else`;
`while word != 0:`; `for name in share(word, word, word):`; `pass` and `return`.
"""

import ast
from collections.abc import Mapping
from typing import Any

from compiler.codegen.native.dispatch import Entry, share
from compiler.codegen.native.kernel import Kernel
from compiler.codegen.native.memory import i64, u8
from compiler.errors import BuildError

LONG = 100
"""Lines from which on a sequence is compiled without optimization: there is little to gain in it, and much to read."""

_ELEMENTS: dict[Any, str] = {i64: "i64", u8: "i8"}


class Sequence(Kernel):
    """A kernel from source in the language above."""

    text: str
    namespace: Mapping[str, Any]

    @classmethod
    def from_source(cls, name: str, text: str, namespace: Mapping[str, Any], *, reassoc: bool = False) -> "Sequence":
        """As of `Kernel`."""
        made = super().from_source(name, text, namespace, reassoc=reassoc)
        assert isinstance(made, Sequence)
        made.text, made.namespace = text, namespace
        made.effort = 0 if text.count("\n") >= LONG else Kernel.effort
        return made

    @property
    def calls(self) -> tuple[Kernel, ...]:
        """The kernels it calls, itself or by entries: those are a part of it, near to where they are called."""
        return tuple(q for k in super().calls for q in (k.calls if isinstance(k, Entry) else (k,)))

    def ir(self) -> str:
        """LLVM IR text, for any target. BuildError: the source says something else than it may."""
        return _Lowering(self).text()

    def __reduce_ex__(self, protocol: Any) -> Any:
        names = set(self.function.__code__.co_names)
        return Sequence.from_source, (self.name, self.text, {k: v for k, v in self.namespace.items() if k in names})


class _Lowering:
    def __init__(self, kernel: Sequence) -> None:
        self.kernel = kernel
        self.lines: list[str] = []
        self.words = {p: f"%{p}" for p in kernel.parameters}
        self.arrays: dict[str, tuple[str, str]] = {}  # name -> address, element
        self.declared: dict[str, int] = {}
        self.entries: dict[str, Entry] = {}
        self.count = 0

    def text(self) -> str:
        (function,) = ast.parse(self.kernel.text).body
        assert isinstance(function, ast.FunctionDef)
        self.block(function.body)
        declared = [f"declare void @{symbol}({', '.join(['i64'] * n)})" for symbol, n in self.declared.items()]
        parameters = ", ".join(f"i64 %{p}" for p in self.kernel.parameters)
        head = f"define void @{self.kernel.symbol}({parameters}) {{\nentry:"
        inner = [entry.ir(inner=True) for entry in self.entries.values()]
        return "\n".join([*declared, *inner, head, *self.lines, "  ret void", "}"]) + "\n"

    def value(self, line: str) -> str:
        """Name of the result of an instruction."""
        self.count += 1
        self.lines.append(f"  %v{self.count} = {line}")
        return f"%v{self.count}"

    def block(self, statements: list[ast.stmt]) -> None:
        for s in statements:
            self.statement(s)

    def statement(self, s: ast.stmt) -> None:
        match s:
            case ast.Pass():
                pass
            case ast.Return(value=None):
                self.lines.append("  ret void")
                self.label("unreached")
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call() as call):
                self.arrays[name] = self.array(call)
            case ast.Expr(value=ast.Call(func=ast.Name(id=name), args=args)):
                self.call(self.kernel.function.__globals__.get(name), args, s)
            case ast.If(test=ast.Compare(left=left, ops=[ast.NotEq()], comparators=[ast.Constant(value=0)])):
                self.branch(self.word(left), s)
            case ast.While(
                test=ast.Compare(left=left, ops=[ast.NotEq()], comparators=[ast.Constant(value=0)]), orelse=[]
            ):
                self.loop(left, s.body)
            case ast.For(
                target=ast.Name(id=name),
                iter=ast.Call(func=ast.Name(id=callee), args=[n, thread, threads]),
                orelse=[],
            ) if self.kernel.function.__globals__.get(callee) is share:
                self.blocks(name, [self.word(e) for e in (n, thread, threads)], s.body)
            case _:
                raise self.foreign(s)

    def call(self, callee: Any, args: list[ast.expr], s: ast.stmt) -> None:
        if not isinstance(callee, Kernel) or len(args) != callee.nargs:
            raise self.foreign(s)
        words = ", ".join([f"i64 {self.word(a)}" for a in args])
        outer = callee
        if isinstance(callee, Entry):
            self.entries[callee.symbol], outer = callee, callee.kernel
        self.declared[outer.symbol] = outer.nargs
        self.lines.append(f"  call void @{callee.symbol}({words})")

    def branch(self, word: str, s: ast.If) -> None:
        test = self.value(f"icmp ne i64 {word}, 0")
        self.count += 1
        then, other, end = (f"{kind}{self.count}" for kind in ("then", "else", "end"))
        self.lines.append(f"  br i1 {test}, label %{then}, label %{other}")
        for label, body in ((then, s.body), (other, s.orelse)):
            self.lines.append(f"{label}:")
            self.block(body)
            self.lines.append(f"  br label %{end}")
        self.lines.append(f"{end}:")

    def loop(self, left: ast.expr, body: list[ast.stmt]) -> None:
        self.count += 1
        test, run, end = (f"{kind}{self.count}" for kind in ("while", "run", "end"))
        self.lines += [f"  br label %{test}", f"{test}:"]
        going = self.value(f"icmp ne i64 {self.word(left)}, 0")
        self.lines += [f"  br i1 {going}, label %{run}, label %{end}", f"{run}:"]
        self.block(body)
        self.lines += [f"  br label %{test}", f"{end}:"]

    def blocks(self, name: str, words: list[str], body: list[ast.stmt]) -> None:
        n, thread, threads = words
        ends = (thread, self.value(f"add i64 {thread}, 1"))
        first, last = (self.value(f"sdiv i64 {self.value(f'mul i64 {n}, {end}')}, {threads}") for end in ends)
        self.count += 1
        before, test, run, end = (f"{kind}{self.count}" for kind in ("before", "for", "run", "end"))
        at = self.words[name] = f"%{name}{self.count}"
        self.lines += [f"  br label %{before}", f"{before}:", f"  br label %{test}", f"{test}:"]
        self.lines.append(f"  {at} = phi i64 [ {first}, %{before} ], [ {at}.next, %{run}.end ]")
        going = self.value(f"icmp slt i64 {at}, {last}")
        self.lines += [f"  br i1 {going}, label %{run}, label %{end}", f"{run}:"]
        self.block(body)
        self.lines += [f"  br label %{run}.end", f"{run}.end:", f"  {at}.next = add i64 {at}, 1"]
        self.lines += [f"  br label %{test}", f"{end}:"]
        del self.words[name]

    def label(self, kind: str) -> None:
        self.count += 1
        self.lines.append(f"{kind}{self.count}:")

    def array(self, e: ast.expr) -> tuple[str, str]:
        match e:
            case ast.Name(id=name) if name in self.arrays:
                return self.arrays[name]
            case ast.Call(func=ast.Name(id=name), args=[address, ast.Constant()]):
                element = _ELEMENTS.get(self.kernel.function.__globals__.get(name))
                if element is not None:
                    return self.value(f"inttoptr i64 {self.word(address)} to ptr"), element
        raise self.foreign(e)

    def word(self, e: ast.expr) -> str:
        """An expression's value: an i64, or a number."""
        match e:
            case ast.Constant(value=int(number)):
                return str(number)
            case ast.Name(id=name) if name in self.words:
                return self.words[name]
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return self.value(f"add i64 {self.word(left)}, {self.word(right)}")
            case ast.Subscript(value=array, slice=index):
                address, element = self.array(array)
                at = self.value(f"getelementptr {element}, ptr {address}, i64 {self.word(index)}")
                loaded = self.value(f"load {element}, ptr {at}")
                return loaded if element == "i64" else self.value(f"zext {element} {loaded} to i64")
        raise self.foreign(e)

    def foreign(self, what: ast.AST) -> BuildError:
        return BuildError(f"{ast.unparse(what)} in {self.kernel.name} is more than a sequence of kernels may say")
