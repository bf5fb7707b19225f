"""Reads the text of a stencil, with errors that point at the place."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence

from meta500.backends.generated.affine import Affine
from meta500.backends.generated.expressions import (
    Access,
    Apply,
    Constant,
    Expr,
    Index,
    Load,
    add,
    call,
    div,
    mul,
    neg,
    select,
    sub,
    walk,
)
from meta500.backends.generated.operators.arithmetic import raised
from meta500.errors import UserError, nearest

_OPERATORS = {ast.Add: add, ast.Sub: sub, ast.Mult: mul, ast.Div: div}
_COMPARISONS = {
    ast.Lt: "less",
    ast.Gt: "greater",
    ast.LtE: "less_equal",
    ast.GtE: "greater_equal",
    ast.Eq: "equal",
}
_ONE_ARGUMENT = (
    "abs", "ceil", "erf", "exp", "floor", "log", "relu", "sigmoid", "sign", "softplus", "sqrt", "tanh",
)  # fmt: skip
_TWO_ARGUMENTS = {"max": "maximum", "min": "minimum"}
_LARGEST_POWER = 16


class Text:
    """The parts of one assignment.

    Attributes:
        text: as it was given.
        target, target_node: the element that is written.
        value: the right-hand side.
        axes: names of all axes on the right-hand side, with the first place of each.

    Raises:
        UserError: it is no such assignment; the message has the column.
    """

    def __init__(
        self, text: str, constants: Mapping[str, float], shapes: Mapping[str, Sequence[int]]
    ) -> None:
        self.text = text.strip()
        self.constants, self.shapes = constants, shapes
        self.axes: dict[str, ast.expr] = {}
        try:
            body = ast.parse(self.text).body
        except SyntaxError as error:
            raise UserError(f"stencil '{self.text}', column {error.offset}: {error.msg}") from None
        if len(body) != 1 or not isinstance(body[0], ast.Assign) or len(body[0].targets) != 1:
            raise UserError(f"stencil '{self.text}': expected one assignment, such as v[i] = u[i-1] + u[i+1]")
        assignment = body[0]
        self.target_node = assignment.targets[0]
        self._find_axes(assignment.value)
        self.target = self._written(self.target_node)
        self.value = self._value(assignment.value)

    def wrong(self, reason: str, node: ast.expr) -> UserError:
        """The error for a place in the text."""
        return UserError(f"stencil '{self.text}', column {node.col_offset + 1}: {reason}")

    @staticmethod
    def axes_of(expr: Expr) -> set[str]:
        """Axes in the indices of an expression."""
        found: set[str] = set()
        for part in walk(expr):
            if isinstance(part, Load):
                found |= part.access.axes
            elif isinstance(part, Index):
                found |= set(part.index.axes)
        return found

    def _find_axes(self, node: ast.expr) -> None:
        for part in ast.walk(node):
            if isinstance(part, ast.Subscript):
                for name in ast.walk(part.slice):
                    if isinstance(name, ast.Name):
                        self.axes.setdefault(name.id, name)

    def _written(self, node: ast.expr) -> Access:
        if isinstance(node, ast.Name):
            return Access(node.id, ())
        if not isinstance(node, ast.Subscript) or not isinstance(node.value, ast.Name):
            raise self.wrong("the left-hand side is an element, such as v[i, j]", node)
        found = [self._index(part) for part in _parts(node.slice)]
        names = [index.axes[0] for index in found if index.is_axis]
        if len(names) != len(found) or len(set(names)) != len(names):
            raise self.wrong("indices on the left-hand side are different axes, such as v[i, j]", node)
        return Access(node.value.id, tuple(found))

    def _index(self, node: ast.expr) -> Affine:
        """An index: whole multiples of axes."""
        if isinstance(node, ast.Constant) and type(node.value) is int:
            return Affine((), node.value)
        if isinstance(node, ast.Name):
            if node.id in self.shapes:
                raise self.wrong(f"'{node.id}' is a tensor; indices are axes and whole numbers", node)
            return Affine.axis(node.id)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return self._index(node.operand) * -1
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
            left, right = self._index(node.left), self._index(node.right)
            return left + right if isinstance(node.op, ast.Add) else left - right
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            left, right = self._index(node.left), self._index(node.right)
            if left.terms and right.terms:
                raise self.wrong("a product of axes is no affine index", node)
            return left * right.constant if left.terms else right * left.constant
        raise self.wrong("an index is made of axes, whole numbers, +, - and *", node)

    def _value(self, node: ast.expr) -> Expr:
        if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
            return Constant(float(node.value))
        if isinstance(node, ast.Name):
            return self._name(node)
        if isinstance(node, ast.Subscript):
            if not isinstance(node.value, ast.Name):
                raise self.wrong("only tensors have elements", node)
            found = tuple(self._index(part) for part in _parts(node.slice))
            return self._load(node.value, found)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
            inner = self._value(node.operand)
            return neg(inner) if isinstance(node.op, ast.USub) else inner
        if isinstance(node, ast.BinOp):
            return self._operation(node)
        if isinstance(node, ast.Call):
            return self._call(node)
        raise self.wrong(f"{ast.unparse(node)} is no expression of a stencil", node)

    def _name(self, node: ast.Name) -> Expr:
        if node.id in self.constants:
            return Constant(float(self.constants[node.id]))
        if node.id in self.axes and node.id not in self.shapes:
            return Index(Affine.axis(node.id))
        return self._load(node, ())

    def _load(self, node: ast.Name, found: tuple[Affine, ...]) -> Expr:
        if node.id not in self.shapes:
            near = nearest(node.id, [*self.shapes, *self.constants])
            hint = f"; did you mean '{near[0]}'?" if near else ""
            raise self.wrong(f"'{node.id}' has no shape and is no constant{hint}", node)
        shape = self.shapes[node.id]
        if len(shape) != len(found):
            raise self.wrong(f"'{node.id}' has shape {list(shape)}, not {len(found)} dimensions", node)
        if min(shape, default=1) < 1:
            raise self.wrong(f"'{node.id}' has shape {list(shape)}, which has no elements", node)
        assigned = self.target_node.value if isinstance(self.target_node, ast.Subscript) else self.target_node
        if isinstance(assigned, ast.Name) and assigned.id == node.id:
            raise self.wrong(f"'{node.id}' is read and written; give the result a name of its own", node)
        return Load(Access(node.id, found))

    def _operation(self, node: ast.BinOp) -> Expr:
        if isinstance(node.op, ast.Pow):
            exponent = self._value(node.right)
            if not isinstance(exponent, Constant) or exponent.value != int(exponent.value):
                raise self.wrong("an exponent is a whole number", node.right)
            if abs(exponent.value) > _LARGEST_POWER:
                raise self.wrong(f"exponents go up to {_LARGEST_POWER}", node.right)
            return raised(self._value(node.left), exponent.value)
        function = _OPERATORS.get(type(node.op))
        if function is None:
            raise self.wrong("choose +, -, *, / or **", node)
        return function(self._value(node.left), self._value(node.right))

    def _call(self, node: ast.Call) -> Expr:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if node.keywords:
            raise self.wrong("functions take no keywords", node)
        if name == "where" and len(node.args) == 3:
            return select(self._condition(node.args[0]), *(self._value(a) for a in node.args[1:]))
        arguments = tuple(self._value(a) for a in node.args)
        if name in _ONE_ARGUMENT and len(arguments) == 1:
            return call(name, *arguments)
        if name in _TWO_ARGUMENTS and len(arguments) == 2:
            return Apply(_TWO_ARGUMENTS[name], arguments)
        known = ", ".join([*_ONE_ARGUMENT, "max(a, b)", "min(a, b)", "where(a < b, c, d)"])
        raise self.wrong(f"{ast.unparse(node)} is no function of a stencil; there are {known}", node)

    def _condition(self, node: ast.expr) -> Expr:
        if not isinstance(node, ast.Compare) or len(node.ops) != 1 or type(node.ops[0]) not in _COMPARISONS:
            raise self.wrong("a condition is one comparison with <, >, <=, >= or ==", node)
        return call(_COMPARISONS[type(node.ops[0])], self._value(node.left), self._value(node.comparators[0]))


def _parts(node: ast.expr) -> list[ast.expr]:
    return list(node.elts) if isinstance(node, ast.Tuple) else [node]
