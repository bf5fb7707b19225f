"""Exclusive reads: whether two iterations of a parallel loop ever read the same element.

A loop whose iterations write elements of their own is parallel. Its adjoint writes where the loop read, so it
is parallel in the same form only if the reads were exclusive, too. For accesses with affine indices that is a
question about whole numbers: are there two iterations that differ in the parallel axis, lie within the bounds
and the guards, and have the same index? It is answered exactly, by halving ranges and narrowing them with
every equation, and a "no" comes with a witness that anybody can check.

What :func:`~.transposition.conflict` asks of an adjoint, dimension by dimension and for all axes at once, is
enough to choose a form; here the question is put for one loop at a time, for all reads of a tensor together.

Source: M. Förster, "Algorithmic Differentiation of Pragma-Defined Parallel Regions", 2014; J. Hückelheim and
P. Hovland, "Automatic Differentiation of Parallelised Convolutional Neural Networks: Lessons from Adjoint PDE
Solvers", 2017.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from meta500.backends.generated.affine import Affine, Guard
from meta500.backends.generated.expressions import Access, loads
from meta500.backends.generated.ir import Stage
from meta500.errors import UserError

EXCLUSIVE, SHARED, UNKNOWN = "exclusive", "not exclusive", "unknown"
# Ranges that are looked at before the answer is "unknown".
_BUDGET = 20_000
# Stands for a size that only the run knows.
_LARGE = 1 << 20


@dataclass(frozen=True)
class Reading:
    """An access that takes place in the iterations which its guards allow."""

    access: Access
    guards: tuple[Guard, ...] = ()


@dataclass(frozen=True)
class Witness:
    """Two iterations that touch the same element: values by axis, and the element's index."""

    first: tuple[tuple[str, int], ...]
    second: tuple[tuple[str, int], ...]
    element: tuple[int, ...]

    def __str__(self) -> str:
        def point(values: tuple[tuple[str, int], ...]) -> str:
            return ", ".join(f"{name}={value}" for name, value in values)

        return f"[{', '.join(map(str, self.element))}] in ({point(self.first)}) and ({point(self.second)})"


@dataclass(frozen=True)
class Exclusiveness:
    """What is known about the accesses of a loop to one tensor.

    Attributes:
        verdict: "exclusive", "not exclusive" or "unknown".
        witness: of "not exclusive".
        reason: of "unknown".
    """

    verdict: str
    witness: Witness | None = None
    reason: str = ""


def exclusive_read(
    stage: Stage, tensor: str, parallel: Sequence[str], unknown: Sequence[str] = ()
) -> Exclusiveness:
    """Whether iterations of a stage that differ in a parallel axis read different elements of a tensor.

    Loads that take no part in differentiation do not count: nothing is added to their adjoint.

    Args:
        stage: the loops.
        tensor: that is read.
        parallel: the axes that are run in parallel.
        unknown: axes whose size only the run knows; the stage's is taken for an example.

    Raises:
        UserError: the stage has no such axis, or does not read the tensor.
    """
    readings = [Reading(x.access, stage.guards) for x in loads(stage.value) if not x.held]
    if {axis.name for axis in stage.kept}.issuperset(parallel):
        # What a sum begins and ends with is read once per written element.
        ends = loads(stage.initial) + loads(stage.finish)
        readings += [Reading(x.access) for x in ends if not x.held]
    readings = [one for one in readings if one.access.tensor == tensor]
    if not readings:
        raise UserError(f"stage '{stage.name}' does not read '{tensor}' in a loop over {', '.join(parallel)}")
    return _of_stage(stage, readings, parallel, unknown)


def exclusive_write(stage: Stage, parallel: Sequence[str]) -> Exclusiveness:
    """Whether iterations of a stage that differ in a parallel axis write different elements.

    Raises:
        UserError: the stage has no such axis.
    """
    return _of_stage(stage, [Reading(stage.write, stage.guards)], parallel, ())


def _of_stage(
    stage: Stage, readings: Sequence[Reading], parallel: Sequence[str], unknown: Sequence[str]
) -> Exclusiveness:
    sizes: dict[str, int | None] = {name: size for name, size in stage.sizes.items()}
    for name in (*parallel, *unknown):
        if name not in sizes:
            raise UserError(f"stage '{stage.name}' has no axis '{name}'; its axes are {', '.join(sizes)}")
    return exclusive(readings, sizes | dict.fromkeys(unknown), parallel)


def exclusive(
    readings: Sequence[Reading], sizes: Mapping[str, int | None], parallel: Sequence[str]
) -> Exclusiveness:
    """Whether iterations that differ in a parallel axis touch different elements.

    Args:
        readings: all accesses to one tensor.
        sizes: of all axes; None where only the run knows it.
        parallel: axes.

    Returns:
        With sizes that only the run knows: "not exclusive" if the smallest ones (1) show it, "exclusive" if
        2^20 iterations do not change it, else "unknown".
    """
    open_axes = [name for name, size in sizes.items() if size is None]
    least = _known({**sizes, **dict.fromkeys(open_axes, 1)}, readings, parallel)
    if not open_axes or least.verdict != EXCLUSIVE:
        return least
    most = _known({**sizes, **dict.fromkeys(open_axes, _LARGE)}, readings, parallel)
    if most.verdict == EXCLUSIVE:
        return most
    names = ", ".join(open_axes)
    return Exclusiveness(UNKNOWN, reason=f"depends on the size of {names}, which only the run knows")


def _known(
    sizes: Mapping[str, int | None], readings: Sequence[Reading], parallel: Sequence[str]
) -> Exclusiveness:
    whole = {name: size for name, size in sizes.items() if size is not None}
    budget = [_BUDGET]
    for number, one in enumerate(readings):
        for other in readings[number:]:
            for axis in parallel:
                # Two times the same access: which iteration is called the first does not matter.
                for sign in (1,) if one == other else (1, -1):
                    found = _meeting(one, other, whole, axis, sign, budget)
                    if found is not None:
                        return Exclusiveness(SHARED, found)
                    if budget[0] <= 0:
                        reason = f"{one.access} was not decided within {_BUDGET} ranges"
                        return Exclusiveness(UNKNOWN, reason=reason)
    return Exclusiveness(EXCLUSIVE)


# -- whole numbers -------------------------------------------------------------------------------------------

# The second iteration is y, the first one y + z. A variable is ("y", axis) or ("z", axis).
_Variable = tuple[str, str]
_Range = tuple[int, int]


@dataclass(frozen=True)
class _Condition:
    """low <= sum of coefficient * variable <= high."""

    terms: tuple[tuple[_Variable, int], ...]
    low: int
    high: int


def _meeting(
    one: Reading, other: Reading, sizes: Mapping[str, int], axis: str, sign: int, budget: list[int]
) -> Witness | None:
    """Two iterations, the first of which is behind (sign 1) or before (-1) the second along an axis, that
    meet; None if there are none."""
    used = {axis, *one.access.axes, *other.access.axes}
    used |= {name for guard in (*one.guards, *other.guards) for name in guard.index.axes}
    ranges: dict[_Variable, _Range] = {}
    conditions = []
    for name in sorted(used):
        last = sizes[name] - 1
        ranges["z", name] = (-last, last)
        ranges["y", name] = (0, last)
        conditions.append(_Condition(((("y", name), 1), (("z", name), 1)), 0, last))
    low, high = ranges["z", axis]
    ranges["z", axis] = (max(low, 1), high) if sign > 0 else (low, min(high, -1))
    for a, b in zip(one.access.indices, other.access.indices, strict=True):
        constant = a.constant - b.constant
        terms = _sum(_terms(a, "y"), _terms(a, "z"), _terms(b, "y", -1))
        conditions.append(_Condition(terms, -constant, -constant))
    for guard in one.guards:
        terms = _sum(_terms(guard.index, "y"), _terms(guard.index, "z"))
        conditions.append(_between(terms, guard))
    conditions += [_between(_sum(_terms(guard.index, "y")), guard) for guard in other.guards]
    found = _solution(ranges, conditions, budget)
    if found is None:
        return None
    second = {name: found.get(("y", name), 0) for name in sizes}
    first = {name: second[name] + found.get(("z", name), 0) for name in sizes}
    element = tuple(i.constant + sum(c * second[a] for a, c in i.terms) for i in other.access.indices)
    return Witness(tuple(first.items()), tuple(second.items()), element)


def _terms(index: Affine, kind: str, factor: int = 1) -> dict[_Variable, int]:
    return {(kind, name): factor * coefficient for name, coefficient in index.terms}


def _sum(*parts: Mapping[_Variable, int]) -> tuple[tuple[_Variable, int], ...]:
    total: dict[_Variable, int] = {}
    for part in parts:
        for variable, coefficient in part.items():
            total[variable] = total.get(variable, 0) + coefficient
    return tuple((variable, coefficient) for variable, coefficient in total.items() if coefficient)


def _between(terms: tuple[tuple[_Variable, int], ...], guard: Guard) -> _Condition:
    return _Condition(terms, guard.low - guard.index.constant, guard.high - 1 - guard.index.constant)


def _solution(
    ranges: dict[_Variable, _Range], conditions: Sequence[_Condition], budget: list[int]
) -> dict[_Variable, int] | None:
    """Values that satisfy all conditions; None if there are none, or the budget is used up."""
    waiting = [ranges]
    while waiting and budget[0] > 0:
        budget[0] -= 1
        narrowed = _narrowed(waiting.pop(), conditions)
        if narrowed is None:
            continue
        free = [variable for variable, (low, high) in narrowed.items() if low < high]
        if not free:
            return {variable: low for variable, (low, _) in narrowed.items()}
        # Distances first: where they are settled, places follow.
        chosen = max(free, key=lambda v: (v[0] == "z", narrowed[v][0] - narrowed[v][1]))
        halves = _halves(*narrowed[chosen])
        waiting += [{**narrowed, chosen: half} for half in reversed(halves)]
    return None


def _halves(low: int, high: int) -> tuple[_Range, _Range]:
    """The number nearest to 0 and its surroundings first: meetings are found among neighbours."""
    if low > 0 or high < 0:
        near = low if low > 0 else high
        rest = (low + 1, high) if low > 0 else (low, high - 1)
        if high - low < 4:
            return (near, near), rest
    middle = (low + high) // 2
    first, second = (low, middle), (middle + 1, high)
    return (first, second) if abs(first[0] + first[1]) <= abs(second[0] + second[1]) else (second, first)


def _narrowed(
    ranges: dict[_Variable, _Range], conditions: Sequence[_Condition]
) -> dict[_Variable, _Range] | None:
    """Ranges without values that one condition excludes; None if nothing is left."""
    ranges = dict(ranges)
    if any(low > high for low, high in ranges.values()):
        return None
    changed = True
    while changed:
        changed = False
        for condition in conditions:
            low = high = 0
            for variable, c in condition.terms:
                a, b = ranges[variable]
                low, high = low + min(c * a, c * b), high + max(c * a, c * b)
            if low > condition.high or high < condition.low or _indivisible(condition, ranges):
                return None
            for variable, c in condition.terms:
                a, b = ranges[variable]
                others_low, others_high = low - min(c * a, c * b), high - max(c * a, c * b)
                # others + c * v lies between the ends.
                least, most = condition.low - others_high, condition.high - others_low
                if c < 0:
                    least, most = most, least
                new = (max(a, -(-least // c)), min(b, most // c))
                if new[0] > new[1]:
                    return None
                if new != (a, b):
                    ranges[variable], changed = new, True
                    low = others_low + min(c * new[0], c * new[1])
                    high = others_high + max(c * new[0], c * new[1])
    return ranges


def _indivisible(condition: _Condition, ranges: Mapping[_Variable, _Range]) -> bool:
    """Whether no multiple of the common divisor of what is still free lies between the ends."""
    fixed, divisor = 0, 0
    for variable, c in condition.terms:
        low, high = ranges[variable]
        if low == high:
            fixed += c * low
        else:
            divisor = math.gcd(divisor, c)
    if divisor < 2:
        return False
    low, high = condition.low - fixed, condition.high - fixed
    return -(-low // divisor) * divisor > high
