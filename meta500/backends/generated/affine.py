"""Affine index expressions over named loop axes, and the ranges that they take."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Affine:
    """``constant`` plus the sum of coefficient * axis; ``terms`` is sorted by axis, without zeros."""

    terms: tuple[tuple[str, int], ...] = ()
    constant: int = 0

    @staticmethod
    def of(terms: Mapping[str, int], constant: int = 0) -> Affine:
        """The expression with these coefficients."""
        return Affine(tuple(sorted((a, c) for a, c in terms.items() if c)), constant)

    @staticmethod
    def axis(name: str, coefficient: int = 1, constant: int = 0) -> Affine:
        """coefficient * name + constant."""
        return Affine.of({name: coefficient}, constant)

    def __add__(self, other: Affine | int) -> Affine:
        if isinstance(other, int):
            return Affine(self.terms, self.constant + other)
        terms = dict(self.terms)
        for name, coefficient in other.terms:
            terms[name] = terms.get(name, 0) + coefficient
        return Affine.of(terms, self.constant + other.constant)

    def __sub__(self, other: Affine | int) -> Affine:
        return self + (other * -1)

    def __mul__(self, factor: int) -> Affine:
        return Affine.of({a: c * factor for a, c in self.terms}, self.constant * factor)

    def divided(self, divisor: int) -> Affine:
        """The exact quotient.

        Raises:
            ValueError: a coefficient is no multiple of ``divisor``.
        """
        numbers = [c for _, c in self.terms] + [self.constant]
        if any(number % divisor for number in numbers):
            raise ValueError(f"{self} is not divisible by {divisor}")
        return Affine(tuple((a, c // divisor) for a, c in self.terms), self.constant // divisor)

    @property
    def axes(self) -> tuple[str, ...]:
        """Names of the axes with a coefficient other than 0."""
        return tuple(name for name, _ in self.terms)

    def coefficient(self, name: str) -> int:
        """The factor of one axis, 0 where it does not occur."""
        return dict(self.terms).get(name, 0)

    @property
    def is_axis(self) -> bool:
        """Whether it is one axis and nothing else."""
        return len(self.terms) == 1 and self.terms[0][1] == 1 and self.constant == 0

    def substitute(self, values: Mapping[str, Affine]) -> Affine:
        """With axes replaced by expressions."""
        if not any(name in values for name, _ in self.terms):
            return self
        result = Affine((), self.constant)
        for name, coefficient in self.terms:
            result = result + values.get(name, Affine.axis(name)) * coefficient
        return result

    def bounds(self, sizes: Mapping[str, int]) -> tuple[int, int]:
        """Smallest and largest value while every axis runs from 0 to its size - 1."""
        low = high = self.constant
        for name, coefficient in self.terms:
            reach = coefficient * (sizes[name] - 1)
            low, high = low + min(reach, 0), high + max(reach, 0)
        return low, high

    def __str__(self) -> str:
        text = ""
        for name, coefficient in self.terms:
            sign = "-" if coefficient < 0 else "+" if text else ""
            factor = "" if abs(coefficient) == 1 else f"{abs(coefficient)}*"
            text += f"{sign}{factor}{name}"
        if self.constant or not text:
            text += f"{self.constant:+d}" if text else str(self.constant)
        return text


def affine(value: Affine | str | int) -> Affine:
    """An axis name or a number as an expression."""
    if isinstance(value, Affine):
        return value
    return Affine.axis(value) if isinstance(value, str) else Affine((), value)


def indices(values: Iterable[Affine | str | int]) -> tuple[Affine, ...]:
    """A tuple of index expressions."""
    return tuple(affine(value) for value in values)


@dataclass(frozen=True)
class Guard:
    """The condition ``low <= index < high``."""

    index: Affine
    low: int
    high: int

    def always(self, sizes: Mapping[str, int]) -> bool:
        """Whether it holds for all values of the axes."""
        low, high = self.index.bounds(sizes)
        return self.low <= low and high < self.high

    def never(self, sizes: Mapping[str, int]) -> bool:
        """Whether it holds for none."""
        low, high = self.index.bounds(sizes)
        return high < self.low or low >= self.high

    def substitute(self, values: Mapping[str, Affine]) -> Guard:
        """With axes replaced by expressions."""
        return Guard(self.index.substitute(values), self.low, self.high)

    def __str__(self) -> str:
        return f"{self.low} <= {self.index} < {self.high}"


def injective(index: Affine, sizes: Mapping[str, int]) -> bool:
    """Whether different values of its axes always give different values (a mixed-radix number)."""
    reach = 0
    for name, coefficient in sorted(index.terms, key=lambda term: abs(term[1])):
        if sizes[name] == 1:
            continue
        if abs(coefficient) <= reach:
            return False
        reach += abs(coefficient) * (sizes[name] - 1)
    return True
