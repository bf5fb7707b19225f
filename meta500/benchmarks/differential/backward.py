"""The backward comparison: every node's vector-Jacobian product alone, and the gradients of the network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from meta500.benchmarks.differential.forward import Forward
from meta500.benchmarks.differential.judge import Judge, attempt, is_random
from meta500.benchmarks.differential.report import (
    ALONE,
    AMPLIFIED,
    BACKWARD,
    DIFFERS,
    FAILED,
    FOLLOWS,
    NOT_REACHED,
    RANDOM,
    REFUSED,
    SAME,
    WHOLE,
)
from meta500.benchmarks.differential.sides import is_float, part, reads
from meta500.benchmarks.differential.tolerances import epsilon, gradient_length, length
from meta500.errors import UserError
from meta500.graph import Operation

Gradients = dict[str, np.ndarray]


class Backward:
    """Goes through the nodes in reverse order with the cotangents that each side gives its values."""

    def __init__(self, judge: Judge, forward: Forward, cotangents: Mapping[str, np.ndarray]) -> None:
        for name, cotangent in cotangents.items():
            value = forward.values[0].get(name)
            if value is None or not is_float(value) or np.shape(value) != np.shape(cotangent):
                raise UserError(f"the cotangent of '{name}' must have the form of a floating-point output")
        self.judge, self.forward = judge, forward
        self.seeds = {name: np.asarray(c) for name, c in cotangents.items()}
        self.cotangents: tuple[Gradients, Gradients] = (dict(self.seeds), dict(self.seeds))
        self.active, hidden = self._reached()
        # Gradients go through sequences only in the whole network: those of what leads there are partial.
        self.partial = self._leading_to(hidden)
        self.terms = {name: forward.terms.get(name, 1) for name in cotangents}
        self.eps = {name: forward.eps.get(name, 0.0) for name in cotangents}
        self.tainted = set(forward.tainted)
        # Where both sides went on with their own values and gradients, the whole gradients are comparable.
        self.complete = True

    def run(self) -> None:
        """Compare everything; findings go to the judge's report."""
        operations = self.judge.model.graph.operations
        for op in reversed(operations):
            self._node(op)
        targets = [
            n for n in (*self.judge.model.graph.inputs, *self.judge.model.parameters) if n in self.active
        ]
        for name in targets:
            self._whole(None, name)
        if self.forward.whole and self.complete:
            self._network([name for name in targets if name not in self.partial])
        if self.partial:
            self._through_sequences([name for name in targets if name in self.partial])

    def _reached(self) -> tuple[set[str], set[str]]:
        """Tensors and sequences that a parameter or floating-point input changes."""
        model, values = self.judge.model, self.forward.values[0]
        active, hidden = set(model.parameters), set()
        active |= {name for name in model.graph.inputs if is_float(values.get(name))}
        for op in model.graph.operations:
            if any(name in active or name in hidden for name in reads(op)):
                results = [name for name in op.results if name and name in values]
                active |= {name for name in results if is_float(values[name])}
                hidden |= {name for name in results if isinstance(values[name], list)}
        return active, hidden

    def _leading_to(self, hidden: set[str]) -> set[str]:
        found = set(hidden)
        for op in reversed(self.judge.model.graph.operations):
            if any(name in found for name in op.results):
                found.update(reads(op))
        return found

    def _node(self, op: Operation) -> None:
        judge, ours = self.judge, self.cotangents[0]
        given = {name: ours[name] for name in op.results if name in ours}
        wrt = [name for name in reads(op) if name in self.active]
        for name in given:
            self._whole(op, name)
        if not given or not wrt:
            return
        values = self.forward.values[0]
        if not all(name in values for name in reads(op)):
            self._note(op, NOT_REACHED, "a value is missing")
            self.complete = False
            return
        if is_random(judge.model, op, values):
            self._random(op, given, wrt)
            return
        judge.cotangents[op.name] = given
        model = part(judge.model, [op], values)
        found = [attempt(side.vjp, model, values, given, wrt) for side in judge.sides]
        for (_, reason, internal), side in zip(found, judge.sides, strict=True):
            if reason:
                self._note(op, FAILED if internal else REFUSED, f"{side.label}: {reason}")
                self.complete = False
        gradients = [results for results, _, _ in found if results is not None]
        if not gradients:
            return
        differs = False
        if len(gradients) == 2:
            results = [values.get(name) for name in op.results if name]
            forward_terms = length(op, [values.get(name) for name in op.operands if name], results)
            for name in wrt:
                terms = gradient_length(forward_terms, results, gradients[0][name].size)
                operands = {n: values[n] for n in reads(op)} | {
                    f"{n} (cotangent)": c for n, c in given.items()
                }
                agree, numbers = judge.compare(
                    (gradients[0][name], gradients[1][name]),
                    terms,
                    inputs=operands,
                    wide=self._wide(op, name, tuple(given)),
                )
                judge.add(op, f"grad/{name}", BACKWARD, ALONE, SAME if agree else DIFFERS, **numbers)
                differs = differs or not agree
        self._go_on(op, wrt, gradients, differs)

    def _go_on(self, op: Operation, wrt: Sequence[str], found: list[Gradients], differs: bool) -> None:
        """Add a node's gradients to those of its operands, on each side its own."""
        results = [name for name in op.results if name]
        values = self.forward.values[0]
        shapes = [values.get(name) for name in op.operands if name]
        own = length(op, shapes, [values.get(name) for name in results])
        before = max((self.terms.get(name, 0) for name in results), default=0)
        eps = max((self.eps.get(name, 0.0) for name in results), default=0.0)
        follows = differs or any(name in self.tainted for name in (*results, *reads(op)))
        pair = [found[0], found[0] if len(found) == 1 else self._theirs(op, wrt, found[1])]
        for name in wrt:
            terms = gradient_length(own, [values.get(r) for r in results], found[0][name].size)
            self.terms[name] = max(self.terms.get(name, 0), before + terms)
            self.eps[name] = max(self.eps.get(name, 0.0), eps, epsilon(found[0][name]))
            if follows:
                self.tainted.add(name)
            for total, gradients in zip(self.cotangents, pair, strict=True):
                total[name] = total[name] + gradients[name] if name in total else gradients[name]

    def _theirs(self, op: Operation, wrt: Sequence[str], fallback: Gradients) -> Gradients:
        """The gradients of the second side from its own values and cotangents."""
        values, totals = self.forward.values[1], self.cotangents[1]
        given = {name: totals[name] for name in op.results if name in totals}
        model = part(self.judge.model, [op], values)
        found, _, _ = attempt(self.judge.sides[1].vjp, model, values, given, wrt)
        return fallback if found is None else found

    def _random(self, op: Operation, given: Gradients, wrt: Sequence[str]) -> None:
        """The gradients of the first side that gives some, for both."""
        self._note(op, RANDOM, "not compared; a gradient of other random numbers goes on")
        self.complete = False
        values = self.forward.values[0]
        model = part(self.judge.model, [op], values)
        for side in self.judge.sides:
            found, _, _ = attempt(side.vjp, model, values, given, wrt)
            if found is not None:
                self._go_on(op, wrt, [found], False)
                return

    def _whole(self, op: Operation | None, name: str) -> None:
        """Compare the gradients that both sides have for a value."""
        pair = tuple(total.get(name) for total in self.cotangents)
        if name in self.seeds or name in self.partial or pair[0] is None or pair[1] is None:
            return
        agree, numbers = self.judge.compare(pair, max(self.terms.get(name, 1), 1), self.eps.get(name, 0.0))
        verdict = SAME if agree else FOLLOWS if name in self.tainted else AMPLIFIED
        self.judge.add(op or self._reader(name), f"grad/{name}", BACKWARD, WHOLE, verdict, **numbers)

    def _network(self, targets: Sequence[str]) -> None:
        """Compare the gradients that each side computes in one run of the whole network."""
        judge, forward = self.judge, self.forward
        model, wrt = part(judge.model, judge.model.graph.operations, forward.values[0]), []
        for name in targets:
            if name in model.graph.inputs or name in model.parameters:
                wrt.append(name)
        seeds = {name: c for name, c in self.seeds.items() if name in model.outputs}
        if not wrt or not seeds:
            return
        for index, side in enumerate(judge.sides):
            found, reason, internal = attempt(side.vjp, model, forward.inputs, seeds, wrt)
            if found is None:
                verdict = FAILED if internal else REFUSED
                judge.add(None, ", ".join(seeds), BACKWARD, WHOLE, verdict, note=f"{side.label}: {reason}")
                continue
            for name in wrt:
                expected = self.cotangents[index].get(name)
                if expected is None:
                    expected = np.zeros_like(found[name])
                terms, eps = max(self.terms.get(name, 1), 1), self.eps.get(name, 0.0)
                agree, numbers = judge.compare((found[name], expected), terms, eps)
                if not agree:
                    note = f"{side.label} computes another gradient in the network than from node to node"
                    numbers["note"] = "; ".join(filter(None, (numbers["note"], note)))
                    judge.add(
                        self._reader(name), f"grad/{name}", BACKWARD, WHOLE, DIFFERS, side=index, **numbers
                    )

    def _through_sequences(self, targets: Sequence[str]) -> None:
        """Compare gradients of the whole network, where they cannot be followed from node to node."""
        judge, forward = self.judge, self.forward
        operations = judge.model.graph.operations
        last = next((op for op in reversed(operations) if any(n in self.partial for n in reads(op))), None)
        seeds = {name: c for name, c in self.seeds.items() if name in judge.model.graph.outputs}
        if last is None or not targets or not seeds:
            return
        if not forward.whole:
            self._note(last, NOT_REACHED, "gradients through sequences need the whole network on both sides")
            return
        model = part(judge.model, operations, forward.values[0])
        found = [attempt(side.vjp, model, forward.inputs, seeds, targets) for side in judge.sides]
        for (_, reason, internal), side in zip(found, judge.sides, strict=True):
            if reason:
                self._note(last, FAILED if internal else REFUSED, f"{side.label}: {reason}")
        first, second = (results for results, _, _ in found)
        if first is None or second is None:
            return
        for name in targets:
            terms = max((*forward.terms.values(), *self.terms.values(), 1))
            eps = max((*forward.eps.values(), 0.0))
            agree, numbers = judge.compare((first[name], second[name]), terms, eps)
            verdict = SAME if agree else DIFFERS if judge.report.same else FOLLOWS
            if not agree:
                note = "through sequences, compared for the whole network only"
                numbers["note"] = "; ".join(filter(None, (numbers["note"], note)))
            judge.add(last, f"grad/{name}", BACKWARD, WHOLE, verdict, **numbers)

    def _reader(self, name: str) -> Operation | None:
        readers = [op for op in self.judge.model.graph.operations if name in reads(op)]
        return readers[-1] if readers else None

    def _wide(self, op: Operation, target: str, outputs: Sequence[str]) -> Any:
        """The vector-Jacobian product in float64 on both sides, as functions of inputs and cotangents."""

        def function(index: int) -> Any:
            side = self.judge.sides[index]

            def run(inputs: Mapping[str, Any]) -> Any:
                given = {name: inputs[f"{name} (cotangent)"] for name in outputs}
                model = part(self.judge.model, [op], inputs)
                return side.vjp(model, inputs, given, [target], precision="float64")[target]

            return run

        return function(0), function(1)

    def _note(self, op: Operation, verdict: str, text: str) -> None:
        self.judge.add(op, ", ".join(filter(None, op.results)), BACKWARD, ALONE, verdict, note=text)
