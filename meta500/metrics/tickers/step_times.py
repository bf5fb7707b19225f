"""Raw times of every step, as result rows with intervals."""

from __future__ import annotations

from typing import Any

from meta500.errors import UserError, choose
from meta500.metrics.events import RunState, Ticker
from meta500.metrics.rows import KINDS, Row
from meta500.metrics.statistics import median_interval
from meta500.metrics.tickers.rows import row_fields

PHASES = ("training_step", "inference", "fetch")


class StepTimesTicker(Ticker):
    """Keep the seconds of every optimizer step, inference step and fetching of a training batch.

    At the end ``rows`` holds for each of the phases "training_step", "inference" and "fetch" a row
    "time" with the median, its interval and the raw samples, and a row "first_call". The first call
    (which may compile) and ``warmup`` further ones are not among the samples, and neither are
    batches of another size than the first one, such as a short last one. A phase without any sample
    left has its "first_call" only. The rows are appended to the RunFolder ``folder``, else to the
    Runner's, if there is one.

    Args:
        what: fields of the rows, as in `RowsTicker`.
    """

    def __init__(self, folder: Any = None, *, warmup: int = 1, confidence: float = 0.95, **what: Any) -> None:
        if warmup < 0:
            raise UserError(f"warmup must be at least 0, not {warmup}")
        for name in what:
            choose("field of result rows", name, KINDS)
        self.folder, self.warmup, self.confidence, self.what = folder, warmup, confidence, what
        self.rows: list[Row] = []
        self._calls: dict[str, list[tuple[int, float]]] = {}

    def before_run(self, state: RunState) -> None:
        self.rows = []
        self._calls = {phase: [] for phase in PHASES}

    def after_optimizer_step(self, state: RunState) -> None:
        self._calls["training_step"].append((state.samples, state.step_seconds))
        self._calls["fetch"].append((state.samples, state.fetch_ns * 1e-9))

    def after_inference_step(self, state: RunState) -> None:
        self._calls["inference"].append((state.samples, state.step_seconds))

    def after_run(self, state: RunState) -> None:
        fields = row_fields(state, self.what)
        for phase, calls in self._calls.items():
            if calls:
                self.rows += self._phase_rows(fields, phase, calls)
        target = self.folder or state.folder
        if target is not None:
            target.extend(self.rows)

    def _phase_rows(self, fields: dict[str, Any], phase: str, calls: list[tuple[int, float]]) -> list[Row]:
        batch, first = calls[0]
        whole = [seconds for samples, seconds in calls[1:] if samples == batch]
        left_out = len(calls) - 1 - len(whole)
        note = f"{left_out} calls with another batch size than {batch} left out" if left_out else ""
        samples = tuple(whole[self.warmup :])
        own = {"phase": phase, "batch": batch, "unit": "s", "protocol": "in_training", "note": note}
        fields = {**fields, **own}
        rows = [Row(quantity="first_call", value=first, warmup=0, repeats=1, **fields)]
        if samples:
            middle = median_interval(samples, self.confidence)
            interval = {"value": middle.value, "low": middle.low, "high": middle.high}
            counts = {"warmup": self.warmup, "repeats": len(samples)}
            times: dict[str, Any] = {
                "samples": samples,
                "confidence": middle.confidence,
                **interval,
                **counts,
            }
            rows.insert(0, Row(quantity="time", **times, **fields))
        return rows
