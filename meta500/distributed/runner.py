"""The Runner on several ranks: one loop on all of them, one run."""

from __future__ import annotations

import math
import signal
import threading
from collections.abc import Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from meta500.distributed import faults
from meta500.distributed.agreement import Agreed, Agreement, LostRank, RankFault
from meta500.distributed.samplers import DealtSampler, DistributedSampler
from meta500.errors import UserError
from meta500.metrics.events import Abort, RunState, Ticker
from meta500.metrics.position import Position
from meta500.metrics.rows import Row
from meta500.metrics.runner import Runner
from meta500.metrics.statistics import median_interval
from meta500.metrics.tickers.nan_abort import NanAbort
from meta500.metrics.tickers.summary import Summary

# Seconds to wait for ranks that may be in the middle of a step, beside some times the longest step so far.
PATIENCE = 10.0


class DistributedRunner(Runner):
    """A Runner on every rank of ``communication``; all ranks give the same Summary.

    - **Data.** A Dataset, or other `Samples`, is shuffled in global batches of N * ``batch_size`` samples, of
      which every rank takes its slice (`DistributedSampler`). A Sampler, alone or in a Loader, is taken for
      the global one and sliced too; every rank has its own workers, for its slices only. Any other iterable
      is this rank's own part; all ranks must give as many batches.
    - **Losses** of synchronous schemes are those of the global batch, and ``state.samples`` counts it; those
      of asynchronous schemes are this rank's own. Where the set ignores a label, the loss is the mean over
      the labels of all ranks that count; a rank's gradient is a mean over its own, and gradients are averaged
      by the ranks' numbers of samples: the labels of a rank that has fewer of them weigh a little more than
      on one process. A rank whose part of a batch has no label that counts ends the run.
    - **Tests.** Whole batches of the test set go to the ranks in turns; loss, accuracy and scores are exact
      over all samples. Schemes whose replicas differ are tested with the parameters that they declare to be
      the model (`DistributedOptimizer.model_parameters`).
    - **Limits.** A question that any rank answers with yes ends the run on all.
    - **Tickers** that print or write (``root_only``) are left out on all ranks but the root, and so is the
      run folder.
    - **Faults.** What one rank raises, a loss that is not finite, and data that ends early on some ranks end
      the run on all ranks with the same `RankFault`. Ctrl-C is agreed on too.

    ``run`` adds rows of level 3 to the folder: step times of every rank, the seconds that it waited for each
    of its batches ("data_time", their sum as the value), and its communication.

    Args:
        communication: None: the optimizer's.
        partition: give every rank its own samples; False: all ranks get the same samples, each with its part
            of every image (`meta500.distributed.spatial`), and ``batch_size`` is that of the step.
        what: fields of the rows per rank, such as ``model``.
        **options: as for `meta500.metrics.Runner`, which has the other arguments too; ``batch_size`` is that
            of one rank.
    """

    _least_samples = 0

    def __init__(
        self,
        network: Any,
        optimizer: Any,
        train_set: Any,
        test_set: Any = None,
        *,
        communication: Any = None,
        partition: bool = True,
        tickers: Sequence[Ticker] = (),
        nan_abort: bool = True,
        folder: Any = None,
        what: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self.communication = optimizer.communication if communication is None else communication
        self.agreement = Agreement.of(self.communication)
        self.partition = partition
        self._times_seen = 1 if partition else self.communication.size
        self.synchronous = bool(getattr(optimizer, "synchronous", True))
        self._finite = nan_abort
        self._what = dict(what or {})
        root = self.communication.is_root
        if isinstance(tickers, Ticker):
            raise UserError("tickers must be a sequence: write tickers=[...]")
        kept = [t for t in tickers if (root or not t.root_only) and not isinstance(t, NanAbort)]
        super().__init__(
            network,
            optimizer,
            train_set,
            test_set,
            tickers=kept,
            nan_abort=False,
            folder=folder if root else None,
            **options,
        )
        self._agreed: Agreed | None = None
        self._labels = 0
        self._steps: list[float] = []
        self._waits: list[float] = []
        self._apart = self._told = False
        self._training = False
        self._wish: str | None = None

    def run(self, epochs: int, *, first_epoch: int = 0, resume: Position | None = None) -> Summary:
        """As `Runner.run`, on all ranks together (collective).

        Raises:
            RankFault: on all ranks, for what happened on one.
        """
        self._steps, self._waits, self._apart, self._wish, self._told = [], [], False, None, False
        self.agreement.interrupted = self.agreement.all_interrupted = False
        hooked = self.synchronous and hasattr(self.optimizer, "before_exchange")
        if hooked:
            self.optimizer.before_exchange = self._before_exchange
        listeners = self._dispatcher.listeners
        asked = np.array(
            [float(bool(listeners[q])) for q in ("abort_after_optimizer_step", "abort_after_test_set")]
        )
        # A question that nobody listens to on any rank needs no agreement.
        found = self.communication.sync_all(asked, op="max")
        self._asked = {"abort_after_optimizer_step": bool(found[0]), "abort_after_test_set": bool(found[1])}
        try:
            with self._agreed_interrupts():
                summary = super().run(epochs, first_epoch=first_epoch, resume=resume)
            if not self.synchronous:
                # Ranks may still serve others until all have come to the end.
                self.optimizer.finish()
            return summary
        except BaseException:
            # Not agreed on (a ticker's after_run): the other ranks are elsewhere, and `guard` ends them.
            self._apart = self._apart or not self._told
            raise
        finally:
            if hooked:
                self.optimizer.before_exchange = None
            if not self._apart and hasattr(self, "state"):
                self._write_rank_rows()

    # -- data ------------------------------------------------------------------------------------------

    def _training_sampler(self, train_set: Any, seed: int, drop_last: bool | None) -> Any:
        from meta500.datasets import Sampler, Samples, ShuffleSampler
        from meta500.datasets.loader import Loader

        if not self.partition:
            return super()._training_sampler(train_set, seed, drop_last)
        ranks = self.communication.size
        loader = train_set if isinstance(train_set, Loader) else None
        if loader is not None:
            train_set = loader.sampler
        if isinstance(train_set, Samples):
            drop = self.fixed_batch is not None if drop_last is None else drop_last
            size = self.batch_size * ranks
            rest = len(train_set) % size
            if self.fixed_batch is not None and not drop and rest:
                raise UserError(
                    f"drop_last=False, but the training set's {len(train_set)} samples are no multiple of "
                    "the "
                    f"{size} samples that {ranks} ranks with the fixed batch size {self.fixed_batch} take"
                )
            sampler = ShuffleSampler(train_set, size, seed=seed, drop_last=drop)
            return self._loaded(DistributedSampler(sampler, self.communication.rank, ranks))
        if isinstance(train_set, Sampler):
            size = train_set.batch_size
            if self.fixed_batch is not None and size != self.fixed_batch * ranks:
                raise UserError(
                    f"the training set's sampler has batch_size {size}; {ranks} ranks with the network's "
                    "fixed "
                    f"batch size {self.fixed_batch} need {self.fixed_batch * ranks}"
                )
            return self._over(loader, DistributedSampler(train_set, self.communication.rank, ranks))
        return self._checked(train_set if loader is None else loader, "training set")

    def _test_sampler(self, test_set: Any) -> Any:
        from meta500.datasets import Sampler
        from meta500.datasets.loader import Loader

        sampler = super()._test_sampler(test_set)
        loader = sampler if isinstance(sampler, Loader) else None
        inner = sampler if loader is None else loader.sampler
        if isinstance(inner, Sampler) and self.partition:
            return self._over(loader, DealtSampler(inner, self.communication.rank, self.communication.size))
        return sampler

    def _over(self, loader: Any, sampler: Any) -> Any:
        """``sampler``, in a loader as ``loader`` if there is one; this run closes it."""
        if loader is None:
            return sampler
        own = loader.over(sampler)
        self._loaders.append(own)
        return own

    def _fetch(self, batches: Any, state: RunState, kind: str) -> Any:
        if self._training and not self.synchronous and self.agreement.interrupted:
            raise KeyboardInterrupt
        batch = super()._fetch(batches, state, kind)
        if not self._training:
            return batch
        if batch is None:
            self.agreement.ended(f"its data ended after batch {state.batch} of epoch {state.epoch}")
            if not self.synchronous:
                self._wish = self.agreement.question(self._wish)
        else:
            faults.report_step(state.step + 1)
            self._agreed = None
            if self.synchronous and not self._meets_in_step():
                # Before a step that cannot be left half-way: does everyone have a batch?
                self._labels = self.agreement.step(0.0, state.counted, 0.0).samples
                if not self.partition and not self._labels:
                    self._refuse_uncounted(state)
        return batch

    def _check_counted(self, state: RunState) -> None:
        # Ranks that share images have one loss over all their blocks.
        if self.partition:
            super()._check_counted(state)

    def _no_batch(self, state: RunState, kind: str) -> None:
        # A small test set may have fewer batches than there are ranks.
        if self._training:
            super()._no_batch(state, kind)

    def _samples(self, batch: Any, kind: str) -> int:
        from meta500.datasets.loader import Loader

        samples = super()._samples(batch, kind)
        sampler = self.train_set.sampler if isinstance(self.train_set, Loader) else self.train_set
        if samples == 0 and not isinstance(sampler, DistributedSampler):
            raise UserError(f"the {kind} gave a batch without samples")
        return samples

    # -- steps -----------------------------------------------------------------------------------------

    def _meets_in_step(self) -> bool:
        """Whether ranks need not meet before a pass, since they only meet after it."""
        return self.synchronous and self.partition and hasattr(self.optimizer, "before_exchange")

    def _before_exchange(self, loss: float, samples: int) -> float:
        self._agreed = self._agree_on_loss(loss, samples)
        # Saves the optimizer asking once more.
        self.optimizer.global_samples = self._agreed.samples
        return self._mean(self._agreed)

    def _agree_on_loss(self, loss: float, samples: int) -> Agreed:
        step = self.state.step
        weight = self.loss_weight(self.state.counted if self._counts_labels() else samples)
        where = f" in step {step}"
        agreed = self.agreement.step(loss, samples, weight, finite=self._finite, where=where)
        if self._counts_labels() and self._meets_in_step():
            # Gradients go by samples, the loss by the labels that count: both sums are needed.
            self._labels = self.agreement.step(0.0, self.state.counted, 0.0).samples
        return agreed

    def _counts_labels(self) -> bool:
        """Whether the loss of the global batch is a mean over other numbers than those of samples."""
        return self.partition and self.ignore is not None and self.loss_reduction == "mean"

    def _mean(self, agreed: Agreed) -> float:
        count = self._labels if self._counts_labels() else agreed.samples
        if self.loss_reduction == "mean" and count:
            return agreed.loss / count
        return agreed.loss / self._times_seen

    def _step_loss(self, state: RunState) -> float:
        self._steps.append(state.step_seconds)
        self._waits.append(state.fetch_ns * 1e-9)
        if not self.synchronous:
            loss = self._scalar_loss(state.outputs or {}) if state.samples else math.nan
            if state.samples and self._finite and not math.isfinite(loss):
                raise UserError(f"the loss is {loss} in step {state.step}")
            return loss
        if self._agreed is None:
            # A native optimizer: its exchange is over, and it knows this rank's loss.
            loss = self._scalar_loss(state.outputs or {}) if state.samples else math.nan
            self._agreed = self._agree_on_loss(loss, state.samples)
        agreed, self._agreed = self._agreed, None
        state.samples = state.counted = agreed.samples // self._times_seen
        if self._counts_labels():
            state.counted = self._labels
        return self._mean(agreed)

    def _train(self, state: RunState, skip: int = 0) -> bool:
        self._training = True
        try:
            ended = super()._train(state, skip)
        finally:
            self._training = False
        if self._wish is not None:
            state.status, state.abort_reason = "stopped", self._wish
        return ended or self._wish is not None

    def _aborts(self, question: str, state: RunState) -> bool:
        if not self._asked[question]:
            return False
        abort = self._dispatcher.ask(question, state)
        if self._training and not self.synchronous:
            return self._ends_alone(abort, state)
        reason, failed = self.agreement.answers(
            None if abort is None else abort.reason, abort is not None and abort.failed
        )
        if reason is None:
            return False
        state.status, state.abort_reason = "failed" if failed else "stopped", reason
        return True

    def _ends_alone(self, abort: Abort | None, state: RunState) -> bool:
        """Whether this rank of an asynchronous scheme stops here; then all stop when their epochs end."""
        if abort is None:
            return False
        self.agreement.ended(f"stopped: {abort.reason}")
        self._wish = self.agreement.question(abort.reason)
        return True

    # -- tests -----------------------------------------------------------------------------------------

    def _test(self, state: RunState) -> None:
        with self._model_parameters():
            super()._test(state)

    def _end_test(self, state: RunState) -> None:
        for ticker in self.tickers:
            ticker.join_ranks(state, self._gather)
        if state.summary.current is not None:
            state.summary.current.test_samples //= self._times_seen

    def _gather(self, part: Any) -> list[Any]:
        found = self.communication.gather_objects(part)
        return self.communication.broadcast_object(found)  # type: ignore[no-any-return]

    @contextmanager
    def _model_parameters(self) -> Any:
        """The parameters that stand for the whole training, for as long as they are needed."""
        optimizer = self.optimizer
        if getattr(optimizer, "consistent", True) or not hasattr(optimizer, "model_parameters"):
            yield
            return
        network = self.network
        # Networks may keep parameters in one place: these arrays would change with the assignments below.
        own = optimizer.copies(optimizer.parameters())
        statistics = optimizer.copies(optimizer.running_statistics())
        model = optimizer.model_parameters()
        if statistics and self.communication.size > 1:
            model = {**model, **self.communication.sync_all_many(statistics)}
        for name, tensor in model.items():
            network.assign(name, tensor)
        try:
            yield
        finally:
            for name, tensor in {**own, **statistics}.items():
                network.assign(name, tensor)

    # -- faults ----------------------------------------------------------------------------------------

    def _failure(self, error: BaseException) -> BaseException:
        self._told = True
        if isinstance(error, RankFault):
            self._apart = isinstance(error, LostRank)
            return error
        if isinstance(error, KeyboardInterrupt) and self.agreement.all_interrupted:
            return error
        patience = PATIENCE + 5 * max(self._steps, default=0.0)
        fault = self.agreement.failed(error, patience)
        if fault is None:
            self._apart = True
            return error
        if isinstance(error, KeyboardInterrupt):
            return error
        fault.__cause__ = error
        return fault

    @contextmanager
    def _agreed_interrupts(self) -> Any:
        """Ctrl-C is noted and agreed on at the next meeting, so that all ranks end after the same step.

        A second one interrupts at once.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.getsignal(signal.SIGINT)

        def note(number: int, frame: Any) -> None:
            if self.agreement.interrupted:
                raise KeyboardInterrupt
            self.agreement.interrupted = True

        signal.signal(signal.SIGINT, note)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    # -- rows of every rank ----------------------------------------------------------------------------

    def _write_rank_rows(self) -> None:
        """Gather rows of all ranks and append them to the root's folder (collective)."""
        rows = self._rank_rows()
        gathered = self.communication.gather_objects(rows)
        if gathered is not None and self.folder is not None:
            self.folder.extend(row for part in gathered for row in part)

    def _rank_rows(self) -> list[Row]:
        from meta500.metrics.tickers.rows import row_fields

        communication = self.communication
        fields = {**row_fields(self.state, self._what), "level": 3, "ranks": communication.size}
        note = f"rank {communication.rank}"
        rows = []
        if self._steps:
            first, *rest = self._steps
            protocol = " with ".join(filter(None, ("in_training", fields["protocol"])))
            step = {**fields, "phase": "training_step", "protocol": protocol, "note": note, "unit": "s"}
            rows.append(Row(**{**step, "quantity": "first_call", "value": first}))
            if rest:
                middle = median_interval(rest)
                rows.append(
                    Row(
                        **{
                            **step,
                            "quantity": "time",
                            "value": middle.value,
                            "low": middle.low,
                            "high": middle.high,
                            "confidence": middle.confidence,
                            "samples": tuple(rest),
                            "repeats": len(rest),
                        }
                    )
                )
            waits = tuple(self._waits)
            rows.append(Row(**{**step, "quantity": "data_time", "value": sum(waits), "samples": waits}))
        if not self.synchronous and communication.rank:
            losses = tuple(self.state.summary.losses)
            if losses:
                own = {**fields, "phase": "training_step", "note": note, "quantity": "loss", "unit": "1"}
                rows.append(Row(**{**own, "value": float(np.median(losses)), "samples": losses}))
        rows += communication.counters.rows(communication.rank, **{**fields, "ranks": communication.size})
        if hasattr(self.optimizer, "rows"):
            rows += self.optimizer.rows(**fields)
        return rows
