"""Any score of the test set as a ticker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain, zip_longest
from typing import Any

import numpy as np

from meta500.errors import UserError
from meta500.metrics.events import RunState, Ticker
from meta500.metrics.scores import Score, score


class MetricTicker(Ticker):
    """Score the test set of every epoch; the value lands in ``EpochSummary.scores[name]``.

    Args:
        metric: a name ("top5", "iou", "dice", "rmse", "mae", ...), a `Score`, or a function
            ``(prediction, target) -> number``. A Score accumulates batch by batch. A plain function
            is called once per test set on all predictions and targets joined along the first axis,
            since the mean of its values over batches would in general be another number; this keeps
            them in memory. A Score that ignores no label ignores that of the test set where its target
            is the Runner's label; a plain function gets all labels.
        output: the network output that is scored; None: the Runner's ``logits``.
        target: the input that holds the truth; None: the Runner's ``label``.
        name: None: the score's, or the function's.

    Raises:
        UserError: unknown metric name; no output to score; the target is not in the batch.
    """

    def __init__(
        self,
        metric: str | Score | Callable[[np.ndarray, np.ndarray], float],
        *,
        output: str | None = None,
        target: str | None = None,
        name: str | None = None,
    ) -> None:
        self.metric = score(metric) if isinstance(metric, str) else metric
        if isinstance(self.metric, type) or not (isinstance(self.metric, Score) or callable(self.metric)):
            raise UserError(f"a metric is a name, a Score object or a function, not {metric!r}")
        self.output, self.target = output, target
        own = getattr(self.metric, "name", None) or getattr(self.metric, "__name__", None)
        self.name: str = name or own or type(self.metric).__name__
        self.unit = self.metric.unit if isinstance(self.metric, Score) else "1"
        self.test_outputs = () if output is None else (output,)
        self._follows_set = isinstance(self.metric, Score) and getattr(self.metric, "ignore", 0) is None
        self._kept: list[tuple[np.ndarray, np.ndarray]] = []

    def before_test_set(self, state: RunState) -> None:
        self._kept = []
        if isinstance(self.metric, Score):
            if self._follows_set:
                runner = state.runner
                # What means "ignored" in the label is an ordinary value of another target.
                own = self.target in (None, runner.label)
                self.metric.ignore = runner.ignore if own else None  # type: ignore[attr-defined]
            self.metric.reset()

    def after_inference_step(self, state: RunState) -> None:
        output = self.output or state.runner.logits
        target = self.target or state.runner.label
        outputs, inputs = state.outputs or {}, state.inputs or {}
        if output is None:
            raise UserError(f"metric '{self.name}': say which network output it scores: output=...")
        if target not in inputs:
            raise UserError(
                f"metric '{self.name}': the test set has no '{target}', only: {', '.join(inputs)}"
            )
        prediction, truth = np.asarray(outputs[output]), np.asarray(inputs[target])
        if isinstance(self.metric, Score):
            self.metric.update(prediction, truth)
        else:
            self._kept.append((prediction.copy(), truth.copy()))

    def join_ranks(self, state: RunState, gather: Callable[[Any], list[Any]]) -> None:
        if isinstance(self.metric, Score):
            scores = gather(self.metric)
            self.metric.reset()
            for score_of_rank in scores:
                self.metric.merge(score_of_rank)
        else:
            self._kept = interleaved(gather(self._kept))

    def after_test_set(self, state: RunState) -> None:
        if isinstance(self.metric, Score):
            value = float(self.metric.value())
        else:
            predictions, targets = zip(*self._kept, strict=True)
            value = float(self.metric(np.concatenate(predictions), np.concatenate(targets)))
            self._kept = []
        scores = state.summary.current.scores  # type: ignore[union-attr]
        if self.name in scores:
            raise UserError(f"two metric tickers are called '{self.name}': give one another name=...")
        scores[self.name] = value


def interleaved(parts: Sequence[Sequence[Any]]) -> list[Any]:
    """Batches that were dealt to ranks in turns, in their serial order again."""
    missing = object()
    return [
        batch for batch in chain.from_iterable(zip_longest(*parts, fillvalue=missing)) if batch is not missing
    ]
