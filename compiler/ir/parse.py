"""IR text -> Graph. The types in the text are read, then checked by the verifier: nothing in a text is trusted."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple, NoReturn

from compiler.errors import ParseError, Problem
from compiler.ir.builder import Builder
from compiler.ir.dump import DIGITS
from compiler.ir.graph import Attr, Graph, Origin, Program
from compiler.ir.literals import ABSENT, BARE, WORDS, Nested, tensor_from
from compiler.ir.types import DTYPES, Tensor, TensorType
from compiler.ir.verify import verify

ROLES = ("step", "infer", "initialize")
MAX_DEPTH = 64
"""Of lists and of nested graphs: bounds the recursion of the parser."""

_TOKEN = re.compile(
    r"""(?P<space>[ \t\r]+|\#[^\n]*) | (?P<newline>\n)
    | (?P<string>"(?:[^"\\\n]|\\.)*")
    | (?P<digest>sha256:[0-9a-f]+)
    | (?P<number>0x[0-9a-f]+|-?[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?|-inf|-nan)
    | (?P<name>BARE)
    | (?P<mark>[{}()\[\]=,:@])""".replace("BARE", BARE.pattern),
    re.VERBOSE,
)


class Token(NamedTuple):
    """kind: newline, string, digest, number, name, mark or end; line: from 1."""

    kind: str
    text: str
    line: int


def parse(text: str, tensors: Mapping[str, Tensor] | None = None, check: bool = True) -> Graph:
    """The graph of a text that `dump` wrote or a person did. tensors: digest -> Tensor, for `sha256:` constants.

    Raises ParseError with the line; VerifyError if the graph breaks an invariant (`check=False` leaves that out).
    """
    parser = _Parser(text, tensors or {})
    parser.newlines()
    graph = parser.graph()
    parser.newlines()
    if parser.peek.kind != "end":
        parser.fail(f"{parser.shown} after the end of the graph", "a program of several graphs is for parse_program")
    if check:
        verify(graph)
    return graph


def parse_program(text: str, tensors: Mapping[str, Tensor] | None = None) -> Program:
    """The program of a text with several graphs, each behind its role: `step graph main {`. Errors as in `parse`."""
    parser = _Parser(text, tensors or {})
    graphs: dict[str, Graph] = {}
    parser.newlines()
    while parser.peek.kind != "end":
        role = parser.name("a role")
        if role not in ROLES or role in graphs:
            parser.fail(f"{role!r} in place of a role", f"write each of {', '.join(ROLES)} at most once", back=1)
        graphs[role] = parser.graph()
        parser.newlines()
    if "step" not in graphs:
        parser.fail("the program has no step graph", "write `step graph <name> { ... }`")
    program = Program(graphs["step"], graphs.get("infer"), graphs.get("initialize"))
    verify(program)
    return program


class _Parser:
    """Recursive descent over the tokens of a text."""

    def __init__(self, text: str, tensors: Mapping[str, Tensor]):
        self._tokens = _tokens(text)
        self._at = 0
        self._depth = 0
        self._tensors = {digest[:DIGITS]: (digest, t) for digest, t in tensors.items()}

    # --- tokens ------------------------------------------------------------------------------------------
    @property
    def peek(self) -> Token:
        return self._tokens[self._at]

    def ahead(self, n: int) -> Token:
        return self._tokens[min(self._at + n, len(self._tokens) - 1)]

    def next(self) -> Token:
        token = self._tokens[self._at]
        self._at += token.kind != "end"
        return token

    def fail(self, what: str, remedy: str = "", back: int = 0) -> NoReturn:
        raise ParseError(Problem(what, f"line {self._tokens[max(self._at - back, 0)].line}", remedy))

    @property
    def shown(self) -> str:
        """The next token for messages."""
        names = {"end": "the end of the text", "newline": "the end of the line"}
        return names.get(self.peek.kind, f"`{self.peek.text}`")

    def accept(self, text: str) -> bool:
        found = self.peek.text == text and self.peek.kind in ("mark", "name")
        self._at += found
        return found

    def expect(self, text: str, after: str) -> None:
        if not self.accept(text):
            self.fail(f"{self.shown} {after}", f"write `{text}` there")

    def newlines(self) -> None:
        while self.peek.kind == "newline":
            self._at += 1

    def goes_on(self, mark: str) -> bool:
        """Whether the statement goes on with this mark, here or in a next line; then that is the next token."""
        n = 0
        while self.ahead(n).kind == "newline":
            n += 1
        found = self.ahead(n).text == mark
        self._at += n if found else 0
        return found

    def end_of_line(self) -> None:
        if self.peek.kind not in ("newline", "end") and self.peek.text != "}":
            self.fail(f"{self.shown} at the end of a statement", "begin a new line after each statement")

    def name(self, what: str) -> str:
        token = self.next()
        if token.kind == "name":
            return token.text
        if token.kind == "string":
            return self.unquoted(token)
        self._at -= token.kind != "end"
        self.fail(f"{self.shown} in place of {what}", "quote names with special characters: JSON strings")

    def unquoted(self, token: Token) -> str:
        try:
            text = str(json.loads(token.text))
            text.encode()
        except UnicodeEncodeError:
            self.fail(
                f"{token.text} has half of a surrogate pair", "write both halves, or the character itself", back=1
            )
        except ValueError:
            self.fail(f"{token.text} is no JSON string", "check its backslashes", back=1)
        return text

    def deeper(self) -> None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            self.fail(f"nested more than {MAX_DEPTH} deep", "write it less deeply nested")

    # --- graphs ------------------------------------------------------------------------------------------
    def graph(self) -> Graph:
        self.expect("graph", "where a graph begins")
        b = Builder(self.name("the name of a graph"))
        bindings: tuple[dict[str, str], dict[str, str]] = ({}, {})
        self.expect("{", "after the name of a graph")
        self.deeper()
        self.newlines()
        while not self.accept("}"):
            self.statement(b, *bindings)
            self.end_of_line()
            self.newlines()
        self._depth -= 1
        for public, v in bindings[0].items():
            b.output(public, v)
        for state, v in bindings[1].items():
            b.update(state, v)
        return b.build()

    def statement(self, b: Builder, outputs: dict[str, str], updates: dict[str, str]) -> None:
        word = self.peek.text if self.peek.kind == "name" and self.ahead(1).kind in ("name", "string") else ""
        if word in ("input", "capture", "state", "const"):
            self.next()
            name = self.new_name(b)
            self.expect(":", "after the name of a value")
            t = self.type()
            if word == "input":
                b.input(name, t)
            elif word == "capture":
                b.capture(name, t)
            else:
                self.expect("=", f"after the type of a {word}")
                if word == "state":
                    b.state(name, self.tensor(t))
                else:
                    b.const(self.tensor(t), name)
        elif word in ("output", "update"):
            self.next()
            bindings, name = (outputs if word == "output" else updates), self.name(f"the name of an {word}")
            if name in bindings:
                self.fail(f"a second {word} {name!r}", "give each name once", back=1)
            self.expect("=", f"after the name of an {word}")
            bindings[name] = self.name("a value")
        else:
            self.node(b)

    def new_name(self, b: Builder) -> str:
        name = self.name("the name of a value")
        if name in b:
            self.fail(f"a second definition of {name!r}", "give each value its own name", back=1)
        if not name:
            self.fail("a value with an empty name", "name it", back=1)
        return name

    def node(self, b: Builder) -> None:
        names: list[str] = []
        types: list[TensorType | None] = []
        if self.accept("("):
            self.expect(")", "in place of a list of no results")
        else:
            self.definition(b, names, types)
            while self.accept(","):
                self.newlines()
                self.definition(b, names, types)
        self.expect("=", "after the types of a node's results")
        self.newlines()
        op = self.name("an operator")
        inputs = self.operands(f"after the operator {op}")
        captures: list[str] = []
        if self.peek.text == "capture" and self.accept("capture"):
            captures = self.operands("after capture")
        attrs = self.attributes() if self.goes_on("{") else {}
        origin = self.origin() if self.goes_on("@") and self.accept("@") else Origin()
        b.add(op, inputs, attrs, names, captures, origin, types)

    def definition(self, b: Builder, names: list[str], types: list[TensorType | None]) -> None:
        if self.accept(ABSENT):
            names.append("")
            types.append(None)
            return
        name = self.new_name(b)
        if name in names:
            self.fail(f"a second definition of {name!r}", "give each value its own name", back=1)
        self.expect(":", "after the name of a value")
        names.append(name)
        types.append(self.type())

    def operands(self, after: str) -> list[str]:
        self.expect("(", after)
        values: list[str] = []
        while not self.accept(")"):
            if values:
                self.expect(",", "between operands")
                self.newlines()
            absent = self.peek.kind == "name" and self.peek.text == ABSENT
            name = self.name("an operand")
            values.append("" if absent else name)
        return values

    def origin(self) -> Origin:
        node = "" if self.peek.kind == "name" and self.peek.text == "by" else self.name("the name of a node")
        if not self.accept("by"):
            return Origin(node)
        words = [self.name("the name of a rule")]
        while self.peek.kind == "name":
            words.append(self.next().text)
        return Origin(node, " ".join(words))

    # --- types and values --------------------------------------------------------------------------------
    def type(self) -> TensorType:
        dtype = self.next()
        if dtype.kind != "name" or dtype.text not in DTYPES:
            self._at -= dtype.kind != "end"
            self.fail(f"{self.shown} in place of an element type", f"write one of {' '.join(DTYPES)}")
        self.expect("[", "after the element type")
        shape: list[int] = []
        while not self.accept("]"):
            if shape:
                self.expect(",", "between dimensions")
            dim = self.peek.text
            if self.peek.kind != "number" or not dim.isdigit() or len(dim) > 18:
                self.fail(f"{self.shown} in place of a dimension", "write a number of elements")
            self.next()
            shape.append(int(dim))
        return TensorType(dtype.text, tuple(shape))

    def tensor(self, t: TensorType) -> Tensor:
        if self.peek.kind == "digest":
            wanted = self.next().text.removeprefix("sha256:")
            digest, found = self._tensors.get(wanted[:DIGITS], ("", None))
            if found is None or not digest.startswith(wanted):
                self.fail(f"no tensor sha256:{wanted} is given", "hand in the tensors of the dumped graph", back=1)
            if found.type != t:
                self.fail(f"the tensor sha256:{wanted} is {found.type}, not {t}", "correct the type", back=1)
            return found
        try:
            return tensor_from(self.list_or(self.element), t)
        except ValueError as e:
            self.fail(str(e), "correct the type or the elements", back=1)

    def list_or(self, element: Callable[[], Nested]) -> Nested:
        if not self.accept("["):
            return element()
        self.deeper()
        items: list[Nested] = []
        while not self.accept("]"):
            if items:
                self.expect(",", "between elements")
            items.append(self.list_or(element))
        self._depth -= 1
        return items

    def element(self) -> Nested:
        token = self.next()
        if token.kind == "name" and token.text in WORDS:
            return WORDS[token.text]
        if token.kind != "number":
            self._at -= token.kind != "end"
            self.fail(f"{self.shown} in place of a number", "write a number, true, false, inf or nan")
        if "0x" in token.text:
            return token.text
        if token.text.lstrip("-").isdigit():
            if len(token.text) > 400:
                self.fail("a number of more than 400 digits", "write a float", back=1)
            return int(token.text)
        return float(token.text)

    def attributes(self) -> dict[str, Attr]:
        self.expect("{", "before attributes")
        attrs: dict[str, Attr] = {}
        self.newlines()
        while not self.accept("}"):
            name = self.name("the name of an attribute")
            if name in attrs:
                self.fail(f"a second attribute {name!r}", "give each attribute once", back=1)
            self.expect("=", "after the name of an attribute")
            attrs[name] = self.attribute(name)
            if not self.accept(",") and self.peek.kind != "newline" and self.peek.text != "}":
                self.fail(f"{self.shown} after the attribute {name!r}", "write `,` between attributes")
            self.newlines()
        return attrs

    def attribute(self, name: str) -> Attr:
        token = self.peek
        if token.kind == "name" and token.text == "graph":
            return self.graph()
        if token.kind == "name" and token.text in DTYPES:
            return self.tensor(self.type())
        value = self.list_or(self.attribute_element)
        flat = value if isinstance(value, list) else [value]
        if any(isinstance(v, (bool, list)) for v in flat):
            self.fail(
                f"the attribute {name!r} is no number, string or flat list", "write a tensor as f32[2] [1.0, 2.0]"
            )
        if any(isinstance(v, int) and not -(2**63) <= v < 2**63 for v in flat):
            self.fail(f"the attribute {name!r} is out of the range of int64", "write a smaller number")
        return tuple(flat) if isinstance(value, list) else value

    def attribute_element(self) -> Nested:
        if self.peek.kind == "string":
            return self.unquoted(self.next())
        value = self.element()
        if isinstance(value, str):
            self.fail(f"the bits {value} as an attribute", "write a decimal number", back=1)
        return value


def _tokens(text: str) -> list[Token]:
    tokens: list[Token] = []
    at, line = 0, 1
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            what = f"the character {text[at]!r}" if text[at] != '"' else "a string without an end"
            raise ParseError(
                Problem(f"{what} is not understood", f"line {line}", "names with it are written in quotes")
            )
        kind = str(match.lastgroup)
        if kind != "space":
            tokens.append(Token(kind, match.group(), line))
        line += kind == "newline"
        at = match.end()
    tokens.append(Token("end", "", line))
    return tokens
