"""The forward comparison: each backend through the whole network, and every node alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from meta500.benchmarks.differential.judge import Judge, attempt, is_random
from meta500.benchmarks.differential.report import (
    ALONE,
    AMPLIFIED,
    DIFFERS,
    FAILED,
    FOLLOWS,
    FORWARD,
    NOT_REACHED,
    RANDOM,
    REFUSED,
    SAME,
    WHOLE,
)
from meta500.benchmarks.differential.sides import part, reads
from meta500.benchmarks.differential.tolerances import epsilon, length
from meta500.graph import Operation, TensorType

Results = dict[str, Any]


class Forward:
    """Runs the network on both sides in segments and compares the values.

    A segment ends before a node that a side does not run or that draws random numbers (its values then come
    from one side for both), and where the values of a segment would take more than ``memory`` bytes.

    ``values`` are those of the two sides by name, ``alone`` the results of every node alone with the values
    of the first, ``terms`` the terms of the longest chain of sums behind a value and ``eps`` the coarsest
    machine epsilon on the way to it; ``whole`` says whether the network ran as one on both sides.
    """

    def __init__(self, judge: Judge, inputs: Mapping[str, Any], memory: int) -> None:
        self.judge, self.memory = judge, memory
        self.values: tuple[Results, Results] = (dict(inputs), dict(inputs))
        for known in self.values:
            known.update(judge.model.graph.initializers)
            known.update(judge.model.graph.sparse_initializers)
        self.inputs = dict(inputs)
        self.alone: dict[str, tuple[Results, Results]] = {}
        self.terms: dict[str, int] = {}
        self.eps: dict[str, float] = {}
        self.tainted: set[str] = set()
        self.whole = True
        self._pending: list[Operation] = []

    def run(self) -> None:
        """Compare everything; findings go to the judge's report."""
        bytes_pending = 0
        operations, types = self.judge.model.graph.operations, self.judge.model.graph.types()
        for op in operations:
            reasons = [side.refuses(op, types) for side in self.judge.sides]
            if any(reasons) or is_random(self.judge.model, op, self.inputs):
                self._flush()
                self.whole = False
                self._single(op, reasons)
                bytes_pending = 0
                continue
            self._pending.append(op)
            bytes_pending += self._size(op)
            if bytes_pending > self.memory:
                self._flush()
                bytes_pending = 0
                self.whole = self.whole and op is operations[-1]
        self._flush()

    def _flush(self) -> None:
        """Run the pending nodes as one network per side, or one by one if that fails."""
        pending, self._pending = self._pending, []
        ready, made = [], set(self.values[0])
        for op in pending:
            if all(name in made for name in reads(op)):
                ready.append(op)
                made.update(name for name in op.results if name)
            else:
                self._not_reached(op)
        if not ready:
            return
        found = [attempt(self._run, i, ready) for i in (0, 1)]
        if any(results is None for results, _, _ in found):
            self.whole = False
            for op in ready:
                self._single(op, ["", ""])
            return
        for known, (results, _, _) in zip(self.values, found, strict=True):
            known.update(results)
        for op in ready:
            self._compare(op)

    def _run(self, index: int, operations: Sequence[Operation]) -> Results:
        """Values of all results of ``operations`` on one side, from that side's values."""
        values = self.values[index]
        model = part(self.judge.model, operations, values)
        return self.judge.sides[index].forward(model, values, tuple(model.outputs))

    def _single(self, op: Operation, reasons: Sequence[str]) -> None:
        """Run one node with each side's own values; where a side cannot, the other's results go on."""
        if not all(name in self.values[0] for name in reads(op)):
            self._not_reached(op)
            return
        random = is_random(self.judge.model, op, self.values[0])
        found: list[tuple[Any, str, bool]] = []
        for index in (0, 1):
            if reasons[index]:
                found.append((None, reasons[index], False))
            elif random and any(results is not None for results, _, _ in found):
                found.append((None, "", False))
            else:
                found.append(attempt(self._run, index, [op]))
        for (results, reason, internal), which in zip(found, self.judge.sides, strict=True):
            if results is None and reason:
                verdict = FAILED if internal else REFUSED
                self._note(op, verdict, f"{which.label}: {reason}")
        given = [results for results, _, _ in found if results is not None]
        if not given:
            return
        for known, (results, _, _) in zip(self.values, found, strict=True):
            known.update(given[0] if results is None else results)
        if len(given) == 2:
            self._compare(op)
            return
        if random:
            self._note(
                op,
                RANDOM,
                f"the values of {self.judge.sides[0 if found[0][0] is not None else 1].label} go on",
            )
        self._lengths(op, given[0])
        self.alone[op.name] = (given[0], given[0])

    def _compare(self, op: Operation) -> None:
        judge, names = self.judge, [name for name in op.results if name]
        model = part(judge.model, [op], self.values[0])
        runs = [attempt(side.forward, model, self.values[0], names) for side in judge.sides]
        whole = tuple({name: known[name] for name in names} for known in self.values)
        for (results, reason, internal), side in zip(runs, judge.sides, strict=True):
            if results is None:
                self._note(op, FAILED if internal else REFUSED, f"{side.label}, run alone: {reason}", ALONE)
        alone = tuple(
            results if results is not None else w for (results, _, _), w in zip(runs, whole, strict=True)
        )
        self.alone[op.name] = (alone[0], alone[1])
        terms = self._lengths(op, whole[0])
        operands = {name: self.values[0][name] for name in reads(op)}
        follows = any(name in self.tainted for name in reads(op))
        for name in names:
            agree, numbers = judge.compare(
                (alone[0][name], alone[1][name]),
                terms,
                inputs=operands,
                wide=self._wide(op, name),
            )
            judge.add(op, name, FORWARD, ALONE, SAME if agree else DIFFERS, **numbers)
            if not agree:
                self.tainted.add(name)
            ours = self._consistent(op, name, 0, alone[0][name], terms)
            together, numbers = judge.compare(
                (whole[0][name], whole[1][name]), self.terms[name], self.eps[name]
            )
            if not together and agree and ours:
                ours = self._consistent(op, name, 1, None, terms)
            if not ours:
                self.tainted.add(name)
            elif together:
                judge.add(op, name, FORWARD, WHOLE, SAME, **numbers)
            else:
                known = not agree or follows
                judge.add(op, name, FORWARD, WHOLE, FOLLOWS if known else AMPLIFIED, **numbers)
        if follows or any(name in self.tainted for name in names):
            self.tainted.update(names)

    def _consistent(self, op: Operation, name: str, index: int, alone: Any, terms: int) -> bool:
        """Whether a side computes in the network what it computes for the node alone."""
        judge, values = self.judge, self.values[index]
        side = judge.sides[index]
        if alone is None:
            results, _, _ = attempt(side.forward, part(judge.model, [op], values), values, [name])
            if results is None:
                return True
            alone = results[name]
        operands = {n: values[n] for n in reads(op)}
        agree, numbers = judge.compare(
            (values[name], alone), terms, inputs=operands, wide=self._wide(op, name, index)
        )
        if not agree:
            note = f"{side.label} computes another value inside the network than for the node alone"
            numbers["note"] = "; ".join(filter(None, (numbers["note"], note)))
            judge.add(op, name, FORWARD, WHOLE, DIFFERS, side=index, **numbers)
        return agree

    def _wide(self, op: Operation, name: str, only: int | None = None) -> Any:
        """The node in float64 on both sides (or twice on one), as functions of its inputs."""

        def function(index: int) -> Any:
            side = self.judge.sides[index if only is None else only]

            def run(inputs: Mapping[str, Any]) -> Any:
                model = part(self.judge.model, [op], inputs)
                return side.forward(model, inputs, [name], precision="float64")[name]

            return run

        return function(0), function(1)

    def _lengths(self, op: Operation, results: Results) -> int:
        values = self.values[0]
        own = length(op, [values.get(name) for name in op.operands if name], list(results.values()))
        before = max((self.terms.get(name, 0) for name in reads(op)), default=0)
        eps = max((self.eps.get(name, 0.0) for name in reads(op)), default=0.0)
        for name, value in results.items():
            self.terms[name] = before + own
            self.eps[name] = max(eps, epsilon(value))
        return own

    def _size(self, op: Operation) -> int:
        graph = self.judge.model.graph
        total = 0
        for name in op.results:
            known = graph.value_types.get(name) or graph.outputs.get(name)
            if isinstance(known, TensorType) and known.shape is not None and known.dtype is not None:
                # Symbolic dimensions are counted as the inputs have them.
                sizes = [d if isinstance(d, int) else self._symbols().get(d, 1) for d in known.shape]
                total += int(np.prod(sizes, dtype=np.float64)) * known.dtype.itemsize
        return total

    def _symbols(self) -> dict[Any, int]:
        found: dict[Any, int] = {}
        for name, known in self.judge.model.graph.inputs.items():
            shape = getattr(known, "shape", None) or ()
            actual = np.shape(self.inputs[name]) if isinstance(self.inputs.get(name), np.ndarray) else ()
            found.update((d, n) for d, n in zip(shape, actual, strict=False) if isinstance(d, str))
        return found

    def _note(self, op: Operation, verdict: str, text: str, way: str = WHOLE) -> None:
        self.judge.add(op, ", ".join(filter(None, op.results)), FORWARD, way, verdict, note=text)

    def _not_reached(self, op: Operation) -> None:
        missing = [name for name in reads(op) if name not in self.values[0]]
        self._note(op, NOT_REACHED, f"{', '.join(missing)} could not be computed")
