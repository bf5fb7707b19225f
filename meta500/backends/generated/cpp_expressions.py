"""Expressions and addresses as C++ text."""

from __future__ import annotations

import math
from collections.abc import Mapping

from meta500.backends.generated.affine import Affine, Guard
from meta500.backends.generated.expressions import (
    Access,
    Apply,
    Constant,
    Expr,
    Index,
    Load,
    Result,
    loads,
    walk,
)
from meta500.backends.generated.layout import Place

INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
COMPARISONS = {"less": "<", "greater": ">", "less_equal": "<=", "greater_equal": ">=", "equal": "=="}
CALLS = {
    "exp": "exp",
    "exp_nonpositive": "exp_nonpositive",
    "log": "log",
    "sqrt": "sqrt",
    "tanh": "tanh",
    "sigmoid": "sigmoid",
    "softplus": "softplus",
    "erf": "erf",
    "relu": "relu",
    "abs": "abs",
    "sign": "sign",
    "floor": "floor",
    "ceil": "ceil",
    "maximum": "maximum",
    "minimum": "minimum",
}
REAL, INTEGER, BOOL = "real", "integer", "bool"


def number(value: float) -> str:
    """A floating-point literal of the program's type."""
    if math.isnan(value):
        return "real(NAN)"
    if value in (float("inf"), float("-inf")):
        return "real(INFINITY)" if value > 0 else "real(-INFINITY)"
    text = repr(float(value))
    return f"real({text})"


def index(value: Affine) -> str:
    """An index expression."""
    parts: list[str] = []
    for name, coefficient in value.terms:
        factor = "" if abs(coefficient) == 1 else f"{abs(coefficient)} * "
        sign = "- " if coefficient < 0 else "+ " if parts else ""
        parts.append(f"{sign}{factor}{name}")
    if value.constant or not parts:
        sign = "- " if value.constant < 0 else "+ " if parts else ""
        parts.append(f"{sign}{abs(value.constant)}")
    text = " ".join(parts)
    return "-" + text[2:] if text.startswith("- ") else text


def condition(guard: Guard, sizes: Mapping[str, int]) -> str:
    """A guard as a condition, without the half that always holds."""
    low, high = guard.index.bounds(sizes)
    parts: list[str] = []
    if low < guard.low:
        parts.append(f"{index(guard.index)} >= {guard.low}")
    if high >= guard.high:
        parts.append(f"{index(guard.index)} < {guard.high}")
    return " && ".join(parts) or "true"


class Printer:
    """Prints expressions of one stage.

    Args:
        places: strides of the tensors.
        names: the pointer of every tensor.
    """

    def __init__(self, places: Mapping[str, Place], names: Mapping[str, str]) -> None:
        self.places, self.names = places, names
        # Names of elements that were loaded into variables.
        self.loaded: dict[Access, str] = {}

    def declare(self, expr: Expr | None, prefix: str = "v") -> list[str]:
        """Declarations of variables for the elements that a conditional expression loads.

        A load inside of a condition becomes a masked one, which costs time, and which g++ 12 mixes up where
        neighbouring elements have different masks.
        """
        lines = []
        if expr is not None and any(isinstance(e, Apply) and e.function == "select" for e in walk(expr)):
            for load in loads(expr):
                if load.access not in self.loaded:
                    name = f"{prefix}{len(self.loaded)}"
                    lines.append(f"const auto {name} = {self.element(load.access)};")
                    self.loaded[load.access] = name
        return lines

    def element(self, access: Access) -> str:
        """An element of a tensor."""
        return f"{self.names[access.tensor]}[{index(self.places[access.tensor].address(access))}]"

    def real(self, expr: Expr, result: str = "") -> str:
        """``expr`` as a floating-point number."""
        text, kind = self.typed(expr, result)
        return text if kind == REAL else f"real({text})"

    def typed(self, expr: Expr, result: str = "") -> tuple[str, str]:
        """``expr`` with its kind: real, integer or bool."""
        if isinstance(expr, Constant):
            return number(expr.value), REAL
        if isinstance(expr, Result):
            return result, REAL
        if isinstance(expr, Index):
            return f"({index(expr.index)})", INTEGER
        if isinstance(expr, Load):
            place = self.places.get(expr.access.tensor)
            # What has no place lives in a variable, as a floating-point number.
            kind = "real" if place is None else place.c_type
            name = self.loaded.get(expr.access) or self.element(expr.access)
            return name, {"real": REAL, "std::uint8_t": BOOL}.get(kind, INTEGER)
        assert isinstance(expr, Apply)
        return self._apply(expr, result)

    def _apply(self, expr: Apply, result: str) -> tuple[str, str]:
        name, arguments = expr.function, expr.arguments
        if name in COMPARISONS:
            return self._comparison(name, arguments, result), BOOL
        if name == "select":
            flag, kind = self.typed(arguments[0], result)
            if kind != BOOL:
                flag = f"({flag} != 0)"
            a, b = self.real(arguments[1], result), self.real(arguments[2], result)
            return f"({flag} ? {a} : {b})", REAL
        if name == "uniform":
            index, seed, run = (f"std::uint64_t({self.typed(a, result)[0]})" for a in arguments)
            return f"meta500::uniform<real>({seed}, {run}, {index})", REAL
        texts = [self.real(a, result) for a in arguments]
        if name in INFIX:
            return f"({texts[0]} {INFIX[name]} {texts[1]})", REAL
        if name == "neg":
            return f"(-{texts[0]})", REAL
        return f"meta500::{CALLS[name]}({', '.join(texts)})", REAL

    def _comparison(self, name: str, arguments: tuple[Expr, ...], result: str) -> str:
        """Integers are compared with whole numbers as integers."""
        kinds = [INTEGER if self._whole(a) else self.typed(a, result)[1] for a in arguments]
        if INTEGER in [self.typed(a, result)[1] for a in arguments] and all(k == INTEGER for k in kinds):
            texts = [
                str(int(a.value)) if isinstance(a, Constant) else self.typed(a, result)[0] for a in arguments
            ]
        else:
            texts = [self.real(a, result) for a in arguments]
        return f"({texts[0]} {COMPARISONS[name]} {texts[1]})"

    @staticmethod
    def _whole(expr: Expr) -> bool:
        return isinstance(expr, Constant) and float(expr.value).is_integer()
