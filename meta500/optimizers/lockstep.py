"""Two optimizers side by side on the same batches: where and when do their parameters part?

Answers whether a reference optimizer equals a backend's own one, or one backend equals another:
after each step the difference of every parameter is measured, and written down before the next step
begins.
"""

from __future__ import annotations

import contextlib
import csv
import functools
import itertools
import math
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np

from meta500.errors import UserError
from meta500.optimizers.optimizer import Optimizer

if TYPE_CHECKING:
    from meta500.backends.network import Network

Batch = dict[str, np.ndarray]


@dataclass(frozen=True)
class Difference:
    """The difference of one parameter after ``step`` steps (0: before the first), in float64.

    ``l2`` and ``maximum`` are the norms of a − b, ``norm`` is the L2 norm of a. The losses are
    those of the step that led here, computed before its update; nan at step 0.
    """

    step: int
    parameter: str
    l2: float
    maximum: float
    norm: float
    loss_a: float
    loss_b: float


COLUMNS = tuple(column.name for column in fields(Difference))


@dataclass
class Trajectories:
    """What ``compare_optimizers`` saw: one row per step and parameter, steps 0 ... ``steps``."""

    a: str
    b: str
    rows: list[Difference] = field(default_factory=list)

    @property
    def parameters(self) -> list[str]:
        """Parameter names, in the order of the network."""
        return list(dict.fromkeys(row.parameter for row in self.rows))

    @property
    def steps(self) -> int:
        """Steps done."""
        return self.rows[-1].step if self.rows else 0

    def series(self, parameter: str, column: str = "l2") -> np.ndarray:
        """One column of one parameter over the steps, float64 of shape (steps + 1,).

        Raises:
            UserError: no such parameter or column.
        """
        if parameter not in self.parameters or column not in COLUMNS[2:]:
            raise UserError(
                f"no series '{column}' of parameter '{parameter}': parameters are "
                f"{self.parameters}, columns {list(COLUMNS[2:])}"
            )
        return np.array([getattr(row, column) for row in self.rows if row.parameter == parameter])

    def first_divergence(self, tolerance: float) -> Difference | None:
        """The first row whose l2 exceeds ``tolerance`` · norm or is not finite; None if none."""
        for row in self.rows:
            if not row.l2 <= tolerance * row.norm or not np.isfinite(row.l2):
                return row
        return None

    def to_frame(self) -> Any:
        """All rows as a pandas.DataFrame with the columns of ``Difference``."""
        import pandas as pd

        return pd.DataFrame([[getattr(row, c) for c in COLUMNS] for row in self.rows], columns=list(COLUMNS))


def compare_optimizers(
    a: Optimizer,
    b: Optimizer,
    dataset: Any,
    steps: int | None = None,
    path: str | os.PathLike[str] | None = None,
    *,
    batch_size: int = 32,
) -> Trajectories:
    """Train with ``a`` and ``b``, each on its own network, in lock-step on the same batches.

    First the parameters of a's network are copied into b's (rounded to b's dtype if that differs),
    so that all later difference comes from the steps.

    Args:
        dataset: a dataset (``batch(indices)`` and ``len``: batches of ``batch_size`` in order), a
            sampler (``epoch(k)``: epochs 0, 1, ...), or any iterable of batches (input name ->
            array).
        steps: steps to do; the data are gone through again as needed. None: once through the data.
        path: CSV file to write, with the columns of ``Difference``; each step is on disk before the
            next.

    Raises:
        UserError: both optimizers or networks are the same object, their parameters or step counts
            differ, the data are too few, or the file cannot be written.
    """
    if a is b or a.network is b.network:
        raise UserError("comparing two optimizers needs two optimizers, each on a network of its own")
    if a.step_count != b.step_count:
        raise UserError(
            f"the optimizers stand at different steps, a at {a.step_count} and b at "
            f"{b.step_count}: make both anew or load both states"
        )
    if steps is not None and (isinstance(steps, bool) or not isinstance(steps, int) or steps < 1):
        raise UserError(f"steps = {steps!r} is not valid: give a whole number at least 1")
    names = _same_parameters(a.network, b.network)
    for name in names:
        value, own = a.network.fetch_tensors([name])[0], b.network.fetch_tensors([name])[0]
        b.network.feed_tensor(name, value.astype(own.dtype))
    result = Trajectories(type(a).__name__, type(b).__name__)
    with contextlib.closing(_Table(path)) as table:
        record = functools.partial(_record, result, table, names, a, b)
        record(step=0, losses=(math.nan, math.nan))
        done = 0
        for batch in _batches(dataset, steps, batch_size):
            losses = (_loss(a, a.train(batch)), _loss(b, b.train(batch)))
            done += 1
            record(step=done, losses=losses)
    if done == 0 or (steps is not None and done < steps):
        asked = "at least 1" if steps is None else str(steps)
        raise UserError(f"the data gave {done} batches, {asked} needed: give a dataset or a list of batches")
    return result


def _same_parameters(a: Network, b: Network) -> list[str]:
    """The parameter names of both networks. Raises UserError if names or shapes differ."""
    names, others = list(a.get_params()), list(b.get_params())
    if set(names) != set(others):
        raise UserError(
            "the two networks have different parameters: only in a: "
            f"{sorted(set(names) - set(others))}, only in b: {sorted(set(others) - set(names))}"
        )
    for name in names:
        left, right = (tuple(network.native(name).shape) for network in (a, b))
        if left != right:
            raise UserError(f"parameter '{name}' has shape {left} in a and {right} in b: they must be equal")
    return names


def _loss(optimizer: Optimizer, outputs: dict[str, np.ndarray]) -> float:
    return float(np.asarray(outputs[optimizer.loss]).item())


class _Table:
    """The CSV file, flushed after each step; without a path nothing is written."""

    def __init__(self, path: str | os.PathLike[str] | None) -> None:
        self.path = path
        self.stream: TextIO | None = None
        if path is not None:
            with self.reported():
                self.stream = open(path, "w", encoding="utf-8", newline="")  # noqa: SIM115
            self.write([COLUMNS])

    def write(self, rows: Iterable[Iterable[Any]]) -> None:
        """Add rows. Raises UserError naming the file if that fails."""
        if self.stream is not None:
            with self.reported():
                csv.writer(self.stream, lineterminator="\n").writerows(rows)
                self.stream.flush()

    def close(self) -> None:
        """Close the file. Raises UserError naming it if that fails."""
        if self.stream is not None:
            with self.reported():
                self.stream.close()

    @contextlib.contextmanager
    def reported(self) -> Iterator[None]:
        """Turn an error of the file system into one that names the file."""
        try:
            yield
        except OSError as error:
            reason = error.strerror or error
            raise UserError(f"cannot write '{os.fspath(self.path or '')}': {reason}") from error


def _record(
    result: Trajectories,
    table: _Table,
    names: list[str],
    a: Optimizer,
    b: Optimizer,
    *,
    step: int,
    losses: tuple[float, float],
) -> None:
    """Measure all parameters after a step; into the result and the file."""
    rows = []
    for name in names:
        left = a.network.fetch_tensors([name])[0].astype(np.float64)
        right = b.network.fetch_tensors([name])[0].astype(np.float64)
        with np.errstate(invalid="ignore", over="ignore"):  # values that diverged give nan or inf
            difference = np.abs(left - right)
            largest = float(difference.max(initial=0.0))
            l2, norm = float(np.linalg.norm(difference)), float(np.linalg.norm(left))
        rows.append(Difference(step, name, l2, largest, norm, *losses))
    result.rows.extend(rows)
    table.write([getattr(row, column) for column in COLUMNS] for row in rows)


def _batches(dataset: Any, steps: int | None, batch_size: int) -> Iterator[Batch]:
    """The first ``steps`` batches, going through the data as often as needed; None: once."""
    if steps is None:
        yield from _epoch(dataset, 0, batch_size)
        return
    left = steps
    for number in itertools.count():
        before = left
        for batch in itertools.islice(_epoch(dataset, number, batch_size), left):
            yield batch
            left -= 1
        # An epoch without batches: an iterator that is used up, or no data at all.
        if left in (0, before):
            return


def _epoch(dataset: Any, number: int, batch_size: int) -> Iterable[Batch]:
    if hasattr(dataset, "epoch"):
        return dataset.epoch(number)
    if hasattr(dataset, "batch"):
        size = len(dataset)
        return (
            dataset.batch(np.arange(start, min(start + batch_size, size)))
            for start in range(0, size, batch_size)
        )
    return dataset
