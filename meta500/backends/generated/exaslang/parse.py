"""Reads layer-4 text, as far as `tree` prints it, back to the tree."""

from __future__ import annotations

import re
from typing import NamedTuple

from meta500.backends.generated.exaslang.tree import (
    PRECEDENCE,
    Assignment,
    Binary,
    Call,
    Comment,
    Communicate,
    Declaration,
    Element,
    Evaluate,
    Expression,
    Field,
    FieldAccess,
    FieldLoop,
    Function,
    If,
    Integer,
    Layout,
    MatrixType,
    Name,
    Native,
    Negative,
    Number,
    Print,
    Program,
    Repeat,
    Statement,
    Text,
)

_TOKENS = re.compile(
    r"(?P<space>[ \t\r]+)|(?P<line>\n)|(?P<comment>//[^\n]*)|(?P<real>\d+\.\d+)|(?P<whole>\d+)"
    r"|(?P<name>[A-Za-z_]\w*)|(?P<text>\"[^\"\n]*\")|(?P<code>'[^'\n]*')"
    r"|(?P<sign>&&|\|\||==|!=|<=|>=|\+=|-=|\*=|/=|[-+*/%<>=@\[\](){},:])"
)


class SyntaxFault(ValueError):
    """The text is no layer-4 code of ours; the message names the line."""


class _Token(NamedTuple):
    kind: str
    text: str
    line: int


def parse(text: str) -> Program:
    """The tree of a program.

    Raises:
        SyntaxFault: with the number of the line.
    """
    return _Parser(_tokens(text)).program()


def _tokens(text: str) -> list[_Token]:
    found, at, line = [], 0, 1
    while at < len(text):
        match = _TOKENS.match(text, at)
        if match is None:
            raise SyntaxFault(f"line {line}: {text[at : at + 20]!r}")
        kind = str(match.lastgroup)
        if kind == "line":
            line += 1
        elif kind != "space":
            found.append(_Token(kind, match.group(), line))
        at = match.end()
    return [*found, _Token("end", "", line)]


class _Parser:
    def __init__(self, tokens: list[_Token]) -> None:
        self.tokens, self.at = tokens, 0

    @property
    def next(self) -> _Token:
        return self.tokens[self.at]

    def ahead(self, *texts: str) -> bool:
        return all(self.tokens[min(self.at + i, len(self.tokens) - 1)].text == t for i, t in enumerate(texts))

    def take(self, text: str = "", kind: str = "") -> str:
        token = self.next
        if (text and token.text != text) or (kind and token.kind != kind):
            raise SyntaxFault(f"line {token.line}: {text or kind} expected, not '{token.text}'")
        self.at += 1
        return token.text

    def words(self, text: str) -> None:
        for word in text.split():
            self.take(word)

    def accept(self, text: str) -> bool:
        if not self.ahead(text):
            return False
        self.at += 1
        return True

    def whole(self) -> int:
        sign = -1 if self.accept("-") else 1
        return sign * int(self.take(kind="whole"))

    def name(self) -> str:
        return self.take(kind="name")

    # -- the file ---------------------------------------------------------------------------------

    def program(self) -> Program:
        self.words("Domain global < [ 0 , 0 ] to")
        domain = self.pair()
        self.take(">")
        layouts, fields, functions = [], [], []
        variables: list[Declaration] = []
        while self.next.kind != "end":
            word = self.take(kind="name")
            if word == "Layout":
                layouts.append(self.layout())
            elif word == "Field":
                fields.append(self.field())
            elif word == "Globals":
                for statement in self.block():
                    if not isinstance(statement, Declaration):
                        raise SyntaxFault(f"line {self.next.line}: globals are declarations")
                    variables.append(statement)
            elif word == "Function":
                functions.append(self.function())
            else:
                raise SyntaxFault(f"line {self.next.line}: '{word}'")
        return Program(tuple(layouts), tuple(fields), tuple(variables), tuple(functions), domain)

    def pair(self) -> tuple[int, int]:
        self.take("[")
        first = self.whole()
        self.take(",")
        second = self.whole()
        self.take("]")
        return first, second

    def layout(self) -> Layout:
        name = self.name()
        self.take("<")
        kind = self.type()
        assert isinstance(kind, MatrixType)
        self.words(", Cell > @")
        level = self.whole()
        self.words("{ innerPoints =")
        inner = self.pair()
        self.words("duplicateLayers =")
        self.pair()
        self.words("ghostLayers =")
        ghost, _ = self.pair()
        self.words("with communication }")
        return Layout(name, level, kind.rows, kind.columns, inner, ghost)

    def field(self) -> Field:
        name = self.name()
        self.words("< global ,")
        layout = self.name()
        self.words(", None > @")
        return Field(name, layout, self.whole())

    def type(self) -> str | MatrixType:
        name = self.name()
        if name != "Matrix":
            return name
        self.take("<")
        element = self.name()
        self.take(",")
        rows = self.whole()
        self.take(",")
        columns = self.whole()
        self.take(">")
        return MatrixType(rows, columns, element)

    def function(self) -> Function:
        name, level, parameters = self.name(), None, []
        if self.accept("@"):
            level = self.whole()
        if self.accept("("):
            while not self.accept(")"):
                parameters.append(self.name())
                self.words(": Int")
                self.accept(",")
        return Function(name, level, self.block(), tuple(parameters))

    # -- statements -------------------------------------------------------------------------------

    def block(self) -> tuple[Statement, ...]:
        self.take("{")
        found = []
        while not self.accept("}"):
            found.append(self.statement())
        return tuple(found)

    def statement(self) -> Statement:
        token = self.next
        if token.kind == "comment":
            self.at += 1
            return Comment(token.text[2:].strip())
        if self.ahead("Var") or self.ahead("Val"):
            constant = self.take() == "Val"
            name = self.name()
            self.take(":")
            kind = self.type()
            self.take("=")
            return Declaration(name, kind, self.expression(), constant)
        if self.accept("communicate"):
            self.words("ghost of")
            name = self.name()
            self.take("@")
            return Communicate(name, self.whole())
        if self.accept("repeat"):
            count = self.whole()
            self.words("times count")
            counter = self.name()
            return Repeat(count, counter, self.block())
        if self.accept("loop"):
            return self.loop()
        if self.accept("if"):
            self.take("(")
            condition = self.expression()
            self.take(")")
            body = self.block()
            return If(condition, body, self.block() if self.accept("else") else ())
        if self.accept("print"):
            return Print(self.arguments())
        if self.accept("native"):
            self.take("(")
            code = self.take(kind="code")[1:-1]
            self.take(")")
            return Native(code)
        target = self.primary()
        if isinstance(target, Call):
            return Evaluate(target)
        operator = self.take(kind="sign")
        if operator not in ("=", "+=", "-=", "*=", "/="):
            raise SyntaxFault(f"line {token.line}: '{operator}' assigns nothing")
        return Assignment(target, self.expression(), operator)

    def loop(self) -> FieldLoop:
        self.take("over")
        name = self.name()
        self.take("@")
        level = self.whole()
        sequential = self.accept("sequentially")
        reduction = None
        if self.accept("with"):
            self.words("reduction (")
            operator = self.take(kind="sign")
            self.take(":")
            reduction = (operator, self.name())
            self.take(")")
        return FieldLoop(name, level, self.block(), reduction, sequential)

    # -- expressions ------------------------------------------------------------------------------

    def expression(self, lowest: int = 1) -> Expression:
        left = self.primary()
        while self.next.kind == "sign" and PRECEDENCE.get(self.next.text, 0) >= lowest:
            operator = self.take()
            left = Binary(operator, left, self.expression(PRECEDENCE[operator] + 1))
        return left

    def primary(self) -> Expression:
        token = self.next
        if token.kind == "real":
            self.at += 1
            return Number(float(token.text))
        if token.kind == "whole":
            return Integer(self.whole())
        if token.kind == "text":
            self.at += 1
            return Text(token.text[1:-1])
        if self.accept("("):
            inner = self.negative() if self.accept("-") else self.expression()
            self.take(")")
            return inner
        if token.kind != "name":
            raise SyntaxFault(f"line {token.line}: an expression expected, not '{token.text}'")
        return self.named()

    def negative(self) -> Expression:
        if self.next.kind == "real":
            return Number(-float(self.take()))
        if self.next.kind == "whole":
            return Integer(-int(self.take()))
        return Negative(self.primary())

    def named(self) -> Expression:
        name, level, offset = self.name(), None, (0, 0)
        if self.accept("@"):
            level = self.whole()
            if self.accept("@"):
                offset = self.pair()
        if self.ahead("("):
            return Call(name, self.arguments(), level)
        if not self.ahead("["):
            if level is not None:
                raise SyntaxFault(f"line {self.next.line}: '{name}@{level}' without an element")
            return Name(name)
        row, column = self.element(), self.element()
        if level is None:
            return Element(name, row, column)
        return FieldAccess(name, level, row, column, offset)

    def element(self) -> Expression:
        self.take("[")
        inside = self.expression()
        self.take("]")
        return inside

    def arguments(self) -> tuple[Expression, ...]:
        self.take("(")
        found = []
        while not self.accept(")"):
            found.append(self.expression())
            self.accept(",")
        return tuple(found)
