"""What a Level 0 run is to do: backends, cases or shapes, element types, and how long they are measured."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from meta500.backends.network import backend_class
from meta500.benchmarks.operators.accuracy import CONVERTED, data_type
from meta500.benchmarks.operators.cases import SUITES, Case, cases
from meta500.benchmarks.protocol import Protocol
from meta500.errors import UserError, choose

BACKENDS = ("numpy", "torch")
DTYPES = ("float16", "float32", "float64")

# How long the calls of one case are measured: short, since there are many; at least 11 rounds.
PROTOCOL = Protocol(warmup=2, min_repeats=11, min_seconds=0.02, max_seconds=20.0)
QUICK_PROTOCOL = Protocol(warmup=1, min_repeats=7, min_seconds=0.005, max_seconds=5.0)


@dataclass(frozen=True)
class Plan:
    """What to run.

    Attributes:
        operators, patterns: choose cases; patterns are names with shell wildcards.
        suites: of :data:`meta500.benchmarks.operators.cases.SUITES`.
        backends: names; the first is the baseline of the ratios.
        dtypes: of "float16", "float32", "float64"; empty: the cases' own types.
        threads: of every library.
        time: measure times; None: where operators, cases or a sweep are named.
        gradients: check gradients and, with times, time forward plus backward.
        sweep: "deepbench-conv" or "deepbench-gemm" instead of suites; ``sets`` of it.
        budget: seconds for one shape of a sweep.
        seed: of random data.
        quick: one case of each operator (or ten shapes of a sweep), and fewer repetitions.
        custom: Python files of custom operators, whose examples are the cases instead of suites.
    """

    operators: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    suites: tuple[str, ...] = ()
    backends: tuple[str, ...] = BACKENDS
    dtypes: tuple[str, ...] = ()
    threads: int = 1
    time: bool | None = None
    gradients: bool = False
    sweep: str | None = None
    sets: tuple[str, ...] = ()
    budget: float = 10.0
    seed: int = 0
    quick: bool = False
    custom: tuple[str, ...] = ()

    @property
    def protocol(self) -> Protocol:
        """How long the calls of one case are measured."""
        return QUICK_PROTOCOL if self.quick else PROTOCOL

    @property
    def timed(self) -> bool:
        """Whether times are measured."""
        if self.time is not None:
            return self.time
        return bool(self.operators or self.patterns or self.sweep or self.custom)

    def check(self) -> None:
        """Raises UserError for what cannot be run: unknown names, options that exclude each other."""
        processors = os.cpu_count() or 1
        if not 1 <= self.threads <= processors:
            raise UserError(
                f"--threads must be from 1 to {processors}, the processors here; got {self.threads}"
            )
        if not self.backends:
            raise UserError("--backend: name at least one backend")
        for backend in self.backends:
            backend_class(backend)
        if len(set(self.backends)) < len(self.backends):
            raise UserError(f"--backend: a backend is named twice: {', '.join(self.backends)}")
        for dtype in self.dtypes:
            choose("dtype", dtype, DTYPES)
        for suite in self.suites:
            choose("suite", suite, SUITES)
        if not self.budget > 0:
            raise UserError(f"--budget must be a positive number of seconds, got {self.budget:g}")
        if self.custom and (self.suites or self.sweep):
            raise UserError("--custom has cases of its own; leave out --suite and --sweep")
        if self.sweep is None:
            if self.sets:
                raise UserError("--set chooses from a sweep; give --sweep too")
            return
        from meta500.benchmarks.operators.sweeps import SWEEPS

        choose("sweep", self.sweep, SWEEPS)
        if self.operators or self.suites:
            what = "operators" if self.operators else "--suite"
            raise UserError(f"--sweep has shapes of its own; leave out {what}, or choose shapes by --cases")


def chosen_cases(plan: Plan) -> list[Case]:
    """The cases that a plan names.

    Raises:
        UserError: an unknown suite, operator, or a pattern that no case matches; names what is near.
    """
    suites = ("custom",) if plan.custom else plan.suites or ("node",)
    if plan.custom:
        from meta500.benchmarks.operators.custom import example_cases

        found = example_cases(plan.custom, plan.operators, plan.seed)
    elif not plan.operators:
        found = [case for suite in suites for case in cases(suite)]
    else:
        found = []
        refusals = []
        for operator in plan.operators:
            have = []
            for suite in suites:
                try:
                    have += cases(suite, [operator])
                except UserError as refusal:
                    refusals.append(refusal)
            if not have:
                raise refusals[0]
            found += have
        found = list(dict.fromkeys(found))
    if not plan.patterns:
        return _one_of_each(found) if plan.quick else found
    patterns = [pattern.removeprefix("test_") for pattern in plan.patterns]
    for pattern in patterns:
        if not any(fnmatch.fnmatchcase(case.name, pattern) for case in found):
            import difflib

            near = difflib.get_close_matches(pattern, [case.name for case in found], n=5, cutoff=0.3)
            hint = f"; near are: {', '.join(near)}" if near else ""
            raise UserError(f"no case matches '{pattern}' among {len(found)} of {', '.join(suites)}{hint}")
    return [case for case in found if any(fnmatch.fnmatchcase(case.name, p) for p in patterns)]


def _one_of_each(found: Sequence[Case]) -> list[Case]:
    """The first case of each operator, one that is not written out as a function if there is one."""
    chosen: dict[str, Case] = {}
    for case in sorted(found, key=lambda case: case.expanded):
        chosen.setdefault(case.operator or case.name, case)
    return [case for case in found if case in chosen.values()]


def chosen_shapes(plan: Plan) -> list[Any]:
    """The shapes of the plan's sweep (:class:`~meta500.benchmarks.operators.sweeps.Problem`).

    Raises:
        UserError: a pattern or set that no shape matches.
    """
    from meta500.benchmarks.operators.sweeps import problems, smallest

    found = problems(str(plan.sweep), plan.patterns or None, plan.sets or None)
    return smallest(found) if plan.quick and not plan.patterns else found


def check_dtypes(plan: Plan, work: Sequence[Any]) -> None:
    """Raises UserError when a type applies to none of the cases."""
    if not plan.dtypes or plan.sweep:
        return
    if any(own_type(case) in CONVERTED for case in work):
        return
    names = ", ".join(dict.fromkeys(case.operator or case.name for case in work[:5]))
    raise UserError(
        f"--dtype {plan.dtypes[0]} does not apply: no chosen case has floating-point data ({names}); "
        "leave it out to run them in their own types"
    )


def own_type(case: Case) -> str:
    """The floating-point type of a case's expected outputs or inputs; another type if it has none."""
    inputs, expected = case.data()[0]
    return data_type(expected, inputs)
