"""Expressions of the IR as statements: conditions become branches, what occurs twice is stored first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from meta500.backends.generated.affine import Affine
from meta500.backends.generated.exaslang.tree import (
    REAL,
    Assignment,
    Binary,
    Call,
    Declaration,
    Element,
    Expression,
    FieldAccess,
    If,
    Integer,
    Name,
    Negative,
    Number,
    Statement,
    walk,
)
from meta500.backends.generated.expressions import Apply, Constant, Expr, Index, Load, Result

_OPERATORS = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "less": "<", "greater": ">", "less_equal": "<=",
    "greater_equal": ">=", "equal": "==",
}  # fmt: skip
_COMPARISONS = frozenset(("less", "greater", "less_equal", "greater_equal", "equal"))
_CALLS = {
    "exp": "exp", "exp_nonpositive": "exp", "log": "log", "sqrt": "sqrt", "tanh": "tanh", "abs": "fabs",
    "maximum": "max", "minimum": "min", "floor": "floor", "ceil": "ceil",
}  # fmt: skip
KNOWN = frozenset(_OPERATORS) | frozenset(_CALLS) | {"neg", "relu", "sigmoid", "select"}


class Body:
    """Statements of one cell in the making.

    Attributes:
        statements: so far.
    """

    def __init__(
        self,
        load: Callable[[Load], Expression],
        index: Callable[[Affine], Expression],
        local: Callable[[str], str],
    ) -> None:
        """
        Args:
            load: the expression of a load.
            index: that of an index.
            local: a name for a variable of the body.
        """
        self.statements: list[Statement] = []
        self._load, self._index, self._local = load, index, local

    def value(self, expr: Expr, result: Expression | None = None) -> Expression:
        """An expression; conditions in it are decided in statements before.

        Raises:
            KeyError: a function that the language lacks.
        """
        match expr:
            case Constant(number):
                return Number(number)
            case Load():
                return self._load(expr)
            case Index(index):
                return self._index(index)
            case Result():
                assert result is not None
                return result
            case Apply("select", (condition, yes, no)):
                return self._chosen(condition, yes, no, result)
            case Apply("relu", (argument,)):
                return Call("max", (self.value(argument, result), Number(0.0)))
            case Apply("neg", (argument,)):
                return Negative(self.value(argument, result))
            case Apply("sigmoid", (argument,)):
                power = Call("exp", (Negative(self.value(argument, result)),))
                return Binary("/", Number(1.0), Binary("+", Number(1.0), power))
            case Apply(function, arguments):
                values = tuple(self.value(a, result) for a in arguments)
                if function in _OPERATORS:
                    return Binary(_OPERATORS[function], *values)
                return Call(_CALLS[function], values)
        raise KeyError(type(expr).__name__)

    def _chosen(self, condition: Expr, yes: Expr, no: Expr, result: Expression | None) -> Name:
        """A variable with one of two values.

        Both are computed; a branch without "else" and without branches inside of it chooses. The generator's
        vectorised loops blend an "else" by the wrong mask.
        """
        test, chosen = self.value(condition, result), self.value(yes, result)
        other, name = self.value(no, result), self._local("chosen")
        self.statements.append(Declaration(name, REAL, other))
        self.statements.append(If(test, (Assignment(Name(name), chosen),)))
        return Name(name)

    def assign(self, target: Expression, value: Expr, result: Expression | None = None) -> None:
        """``target`` becomes ``value``."""
        self.statements.append(Assignment(target, self.value(value, result)))


def whole(index: Affine, counters: Mapping[str, str]) -> Expression:
    """An index as an expression of counters."""
    total: Expression | None = None
    for axis, step in index.terms:
        name: Expression = Name(counters.get(axis, axis))
        term = name if step == 1 else Binary("*", Integer(step), name)
        total = term if total is None else Binary("+", total, term)
    if total is None:
        return Integer(index.constant)
    return Binary("+", total, Integer(index.constant)) if index.constant else total


def stored_once(body: Sequence[Statement], local: Callable[[str], str]) -> tuple[Statement, ...]:
    """Straight statements in which no compound term over a field stands twice.

    The generator's elimination of common terms emits invalid C++ for terms that are indexed by a counter.
    Terms over fields or variables that the statements write stay where they are.
    """
    statements = list(body)
    changed = {_target(s.target) for s in _all(statements) if isinstance(s, Assignment)}
    declared = {s.name for s in _all(statements) if isinstance(s, Declaration)}
    while True:
        counts = Counter(
            term for s in statements for term in _terms(s) if not _names(term) & (changed | declared)
        )
        repeated = [term for term, count in counts.items() if count > 1]
        if not repeated:
            return tuple(statements)
        term = max(repeated, key=lambda t: (len(str(t)), str(t)))
        name = local("term")
        first = next(i for i, s in enumerate(statements) if term in _terms(s))
        statements = [_replaced(s, term, Name(name)) for s in statements]
        statements.insert(first, Declaration(name, REAL, term))


def _all(body: Sequence[Statement]) -> list[Statement]:
    return [n for s in body for n in walk(s) if isinstance(n, Statement)]


def _target(target: Expression) -> str:
    match target:
        case FieldAccess(field):
            return field
        case Element(matrix):
            return matrix
        case Name(name):
            return name
    raise TypeError(target)


def _terms(statement: Statement) -> list[Expression]:
    """Compound terms over fields; conditions are looked into, but not moved."""
    return [
        node
        for node in walk(statement)
        if (isinstance(node, Negative | Call) or (isinstance(node, Binary) and node.operator in "+-*/"))
        and any(isinstance(n, FieldAccess) for n in walk(node))
    ]


def _names(term: Expression) -> set[str]:
    return {_target(n) for n in walk(term) if isinstance(n, FieldAccess | Element | Name)}


def _replaced(node: Any, term: Expression, name: Name) -> Any:
    """A node with a term replaced, wherever it stands but in a target."""
    if node == term:
        return name
    if isinstance(node, tuple):
        return tuple(_replaced(n, term, name) for n in node)
    if isinstance(node, Assignment):
        return Assignment(node.target, _replaced(node.value, term, name), node.operator)
    if isinstance(node, Binary | Call | Negative | Declaration | If | FieldAccess | Element):
        changes = {f.name: _replaced(getattr(node, f.name), term, name) for f in fields(node)}
        return replace(node, **changes)
    return node
