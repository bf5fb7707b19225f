"""Expressions of a stage's body: loads, constants and functions, with their derivatives."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from meta500.backends.generated.affine import Affine


@dataclass(frozen=True)
class Access:
    """One element of a tensor, by an affine index per dimension."""

    tensor: str
    indices: tuple[Affine, ...]

    def substitute(self, values: Mapping[str, Affine]) -> Access:
        """With axes replaced by expressions."""
        return replace(self, indices=tuple(index.substitute(values) for index in self.indices))

    @property
    def axes(self) -> set[str]:
        """All axes in its indices."""
        return {name for index in self.indices for name in index.axes}

    def __str__(self) -> str:
        return f"{self.tensor}[{', '.join(map(str, self.indices))}]"


class Expr:
    """Base of all expressions."""


@dataclass(frozen=True)
class Constant(Expr):
    """A number."""

    value: float

    def __str__(self) -> str:
        return f"{self.value:g}"


@dataclass(frozen=True)
class Load(Expr):
    """The value of a tensor's element; ``held`` takes no part in differentiation.

    A load is held where the sum of its contributions to the derivative is zero by construction, such as the
    maximum that softmax subtracts, or a mean inside of a variance.
    """

    access: Access
    held: bool = False

    def __str__(self) -> str:
        return str(self.access)


@dataclass(frozen=True)
class Index(Expr):
    """The value of an index expression, as a number."""

    index: Affine

    def __str__(self) -> str:
        return f"({self.index})"


@dataclass(frozen=True)
class Result(Expr):
    """Inside of a stage's ``finish``: what was accumulated."""

    def __str__(self) -> str:
        return "acc"


@dataclass(frozen=True)
class Apply(Expr):
    """A function of expressions; the names are in :data:`FUNCTIONS`."""

    function: str
    arguments: tuple[Expr, ...]

    def __str__(self) -> str:
        symbol = _SYMBOLS.get(self.function)
        if symbol and len(self.arguments) == 2:
            return f"({self.arguments[0]} {symbol} {self.arguments[1]})"
        return f"{self.function}({', '.join(map(str, self.arguments))})"


_SYMBOLS = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "div": "/",
    "less": "<",
    "greater": ">",
    "less_equal": "<=",
    "greater_equal": ">=",
    "equal": "==",
}
ZERO, ONE = Constant(0.0), Constant(1.0)


def add(a: Expr, b: Expr) -> Expr:
    """a + b."""
    if a == ZERO:
        return b
    return a if b == ZERO else Apply("add", (a, b))


def sub(a: Expr, b: Expr) -> Expr:
    """a - b."""
    if b == ZERO:
        return a
    return neg(b) if a == ZERO else Apply("sub", (a, b))


def mul(a: Expr, b: Expr) -> Expr:
    """a * b; the factors 0 and 1 vanish, and where a condition makes one factor 0 the product is 0."""
    if ZERO in (a, b):
        return ZERO
    if a == ONE:
        return b
    if b == ONE:
        return a
    if isinstance(a, Constant) and isinstance(b, Constant):
        return Constant(a.value * b.value)
    for mask, other in ((a, b), (b, a)):
        # Not a product: 0 times infinity would be NaN.
        if isinstance(mask, Apply) and mask.function == "select" and ZERO in mask.arguments[1:]:
            condition, yes, no = mask.arguments
            return select(condition, mul(yes, other), mul(no, other))
    return Apply("mul", (a, b))


def div(a: Expr, b: Expr) -> Expr:
    """a / b."""
    if a == ZERO or b == ONE:
        return a
    return Apply("div", (a, b))


def neg(a: Expr) -> Expr:
    """-a."""
    if isinstance(a, Constant):
        return Constant(-a.value)
    return Apply("neg", (a,))


def call(function: str, *arguments: Expr) -> Expr:
    """``function`` of ``arguments``."""
    return Apply(function, arguments)


def select(condition: Expr, a: Expr, b: Expr) -> Expr:
    """``a`` where the condition holds, else ``b``."""
    return a if a == b else Apply("select", (condition, a, b))


def walk(expr: Expr) -> Iterator[Expr]:
    """The expression and everything in it."""
    yield expr
    if isinstance(expr, Apply):
        for argument in expr.arguments:
            yield from walk(argument)


def loads(expr: Expr | None) -> list[Load]:
    """All loads in an expression, each once, in order."""
    if expr is None:
        return []
    return list(dict.fromkeys(e for e in walk(expr) if isinstance(e, Load)))


def rewrite(expr: Expr, change: Callable[[Expr], Expr | None]) -> Expr:
    """The expression with parts replaced; ``change`` returns None for what stays."""
    changed = change(expr)
    if changed is not None:
        return changed
    if isinstance(expr, Apply):
        arguments = tuple(rewrite(a, change) for a in expr.arguments)
        return expr if arguments == expr.arguments else Apply(expr.function, arguments)
    return expr


def substitute(expr: Expr, values: Mapping[str, Affine]) -> Expr:
    """The expression with axes replaced by index expressions."""

    def change(e: Expr) -> Expr | None:
        if isinstance(e, Load):
            return Load(e.access.substitute(values), e.held)
        return Index(e.index.substitute(values)) if isinstance(e, Index) else None

    return rewrite(expr, change)


def _select_greater(a: Expr, b: Expr) -> Expr:
    return select(Apply("greater", (a, b)), ONE, ZERO)


def _share(better: str, a: Expr, b: Expr) -> Expr:
    """1 where ``a`` is the extreme one, half of it for each of two equal ones."""
    return select(call(better, a, b), ONE, select(call("equal", a, b), Constant(0.5), ZERO))


# For every function the partial derivatives by its arguments, as functions of (result, arguments).
# None stands for no derivative (conditions, steps).
_TWO_OVER_SQRT_PI = Constant(2 / math.sqrt(math.pi))
DERIVATIVES: dict[str, Callable[[Expr, tuple[Expr, ...]], tuple[Expr | None, ...]]] = {
    "add": lambda y, a: (ONE, ONE),
    "sub": lambda y, a: (ONE, Constant(-1.0)),
    "mul": lambda y, a: (a[1], a[0]),
    "div": lambda y, a: (div(ONE, a[1]), neg(div(y, a[1]))),
    "neg": lambda y, a: (Constant(-1.0),),
    "exp": lambda y, a: (y,),
    "exp_nonpositive": lambda y, a: (y,),
    "log": lambda y, a: (div(ONE, a[0]),),
    "sqrt": lambda y, a: (div(Constant(0.5), y),),
    "tanh": lambda y, a: (sub(ONE, mul(y, y)),),
    "sigmoid": lambda y, a: (mul(y, sub(ONE, y)),),
    "softplus": lambda y, a: (call("sigmoid", a[0]),),
    "erf": lambda y, a: (mul(_TWO_OVER_SQRT_PI, call("exp", neg(mul(a[0], a[0])))),),
    "relu": lambda y, a: (_select_greater(y, ZERO),),
    "abs": lambda y, a: (call("sign", a[0]),),
    "sign": lambda y, a: (None,),
    "floor": lambda y, a: (None,),
    "ceil": lambda y, a: (None,),
    "maximum": lambda y, a: (_share("greater", a[0], a[1]), _share("greater", a[1], a[0])),
    "minimum": lambda y, a: (_share("less", a[0], a[1]), _share("less", a[1], a[0])),
    "select": lambda y, a: (None, select(a[0], ONE, ZERO), select(a[0], ZERO, ONE)),
    "uniform": lambda y, a: (None,) * len(a),
    **{
        name: lambda y, a: (None, None)
        for name in ("less", "greater", "less_equal", "greater_equal", "equal")
    },
}
FUNCTIONS = frozenset(DERIVATIVES)


def derivative(expr: Expr, load: Load) -> Expr:
    """The partial derivative by one load; other loads, of the same tensor too, are constants.

    Raises:
        KeyError: a function without a derivative rule.
    """
    if expr == load:
        return ONE
    if not isinstance(expr, Apply):
        return ZERO
    total: Expr = ZERO
    partials: tuple[Expr | None, ...] | None = None
    for position, argument in enumerate(expr.arguments):
        inner = derivative(argument, load)
        if inner == ZERO:
            continue
        if partials is None:
            partials = DERIVATIVES[expr.function](expr, expr.arguments)
        partial = partials[position]
        if partial is not None:
            total = add(total, mul(partial, inner))
    return total
