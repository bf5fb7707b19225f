"""The Runner: owns the loop over epochs and batches, fires the events and keeps the time apart."""

from __future__ import annotations

import inspect
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NoReturn

import numpy as np

from meta500.errors import UserError, choose
from meta500.metrics.events import Dispatcher, RunState, Ticker, combine
from meta500.metrics.position import Position, restore
from meta500.metrics.tickers.nan_abort import NanAbort
from meta500.metrics.tickers.summary import Summary, SummaryTicker

DEFAULT_BATCH_SIZE = 64
LOSS_REDUCTIONS = ("mean", "sum")
LOADING = ("workers", "kind", "prefetch", "augment", "seed")

Batch = Mapping[str, np.ndarray]


class Runner:
    """Trains ``network`` with ``optimizer`` and tests it after every epoch.

    The order of events is stated in `meta500.metrics.events`; they fire for every optimizer, native
    ones too, since the Runner calls nothing but ``optimizer.train``. Three clocks run apart: inside
    ``optimizer.train`` (the network synchronised before and after), inside the fetching of batches,
    and inside tickers, so that what measuring costs is itself known (``Summary.seconds``).

    Labels equal to the set's ``ignore`` count in no score; a loss output that is a mean is one over the other
    labels, and so it is weighted by their number when batches are combined.

    Args:
        network: the Network that is trained; ``loss`` and ``logits`` are names of its outputs.
        optimizer: anything with ``train(inputs, outputs) -> {name: array}``.
        train_set: a Dataset or other `Samples` (shuffled anew in every epoch, from ``seed``), a Sampler,
            a Loader, or any iterable of ``{input name: array}`` batches that can be walked once per epoch.
            The ``epoch(k)`` of a Sampler or Loader is asked for k = 0, 1, ...
        test_set: the same; `Samples` are walked in order, their short last batch included; of a Sampler or
            Loader epoch 0 is used every time. None: no test events, no accuracy.
        tickers: get the events in this order, after a SummaryTicker that the Runner adds unless one
            is among them. A NanAbort is added at the end unless one is among them or ``nan_abort``
            is False; losses that are not finite are counted in the Summary in any case.
        batch_size: for `Samples`. None: the network's fixed batch size if it has one, else 64.
        test_batch_size: None: as ``batch_size``.
        seed: of the shuffling.
        drop_last: leave out a short last training batch. None: only for a network with a fixed
            batch size, which cannot take it; its samples get their turn in other epochs. Test
            samples are never left out: see below.
        loss: name of the scalar loss output.
        logits: name of the class scores (N, C, ...) for the accuracy; None: no accuracy.
        label: name of the label input; None: the test (or training) set's own, else "label".
        loss_reduction: "mean" or "sum": how the loss output combines the samples of a batch.
        loading: how the batches of `Samples` are made, as keyword arguments of `meta500.datasets.Loader`:
            ``{"workers": 3, "kind": "process", "augment": ["flip"]}``. Test samples are not augmented. The
            workers end with ``run``; a Loader that was given is left to its owner. None: batches are made
            when they are asked for. Workers and augmentation are refused for other training sets, which
            would not get them: a Sampler has to be wrapped in a Loader instead.
        folder: a RunFolder for tickers that write files.

    Raises:
        UserError: an output name that the network lacks; a batch size other than the network's
            fixed one; a test set that the fixed batch size does not divide (the accuracy would be
            over fewer samples than the test set has); a bad argument.
            `run`: a training batch in which every label is ignored, which has no loss.
    """

    _least_samples = 1

    def __init__(
        self,
        network: Any,
        optimizer: Any,
        train_set: Any,
        test_set: Any = None,
        *,
        tickers: Sequence[Ticker] = (),
        batch_size: int | None = None,
        test_batch_size: int | None = None,
        seed: int = 0,
        drop_last: bool | None = None,
        loss: str = "loss",
        logits: str | None = "logits",
        label: str | None = None,
        loss_reduction: str = "mean",
        nan_abort: bool = True,
        loading: Mapping[str, Any] | None = None,
        folder: Any = None,
    ) -> None:
        self.network, self.optimizer, self.folder = network, optimizer, folder
        self._loading = _loading_options(loading, train_set)
        self._loaders: list[Any] = []
        self.loss, self.logits = choose("loss output", loss, network.outputs), logits
        if logits is not None and test_set is not None and logits not in network.outputs:
            raise UserError(
                f"the network has no output '{logits}' (it has: {', '.join(network.outputs)}); "
                "name the class "
                "scores with logits=..., or give logits=None to run without accuracy"
            )
        self.loss_reduction = choose("loss_reduction", loss_reduction, LOSS_REDUCTIONS)
        self.fixed_batch = fixed_batch_size(network, train_set)
        self.batch_size = self._batch_size("batch_size", batch_size)
        size = self.batch_size if test_batch_size is None else test_batch_size
        self.test_batch_size = self._batch_size("test_batch_size", size)
        self.train_set = self._training_sampler(train_set, seed, drop_last)
        self.test_set = None if test_set is None else self._test_sampler(test_set)
        self.label = label or _of_samples(test_set, "label") or _of_samples(train_set, "label") or "label"
        ignored = (_of_samples(data, "ignore") for data in (test_set, train_set))
        self.ignore: int | None = next((value for value in ignored if value is not None), None)
        self.tickers = _with_defaults(tickers, nan_abort)
        self._dispatcher = Dispatcher(self.tickers)
        self._train_outputs = self._wanted("train_outputs", [loss])
        test_outputs = [loss] if logits is None else [loss, logits]
        self._test_outputs = self._wanted("test_outputs", test_outputs)

    def run(self, epochs: int, *, first_epoch: int = 0, resume: Position | None = None) -> Summary:
        """Train for ``epochs`` epochs, numbered from ``first_epoch`` (samplers shuffle by that
        number).

        With ``resume`` the run goes on where an earlier one stood after an optimizer step: ``epochs``
        and ``first_epoch`` are those of the whole, and so are all counts and the Summary. Network and
        optimizer have to be as they were then; see `meta500.distributed.checkpoint`.

        Returns the Summary of this run; a later call goes on with the network as it is. NaN or a
        limit end the run early and are told by ``Summary.status`` and ``abort_reason``. Exceptions
        and Ctrl-C are raised again after ``after_run``; then the Summary is found in
        ``self.state.summary``.

        Raises:
            UserError: ``epochs`` below 1, ``first_epoch`` below 0, a set that gives no batches,
                batches that do not fit the network's fixed batch size, a loss that is no scalar, a
                position behind the last epoch.
        """
        for name, value, least in (("epochs", epochs, 1), ("first_epoch", first_epoch, 0)):
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
                raise UserError(f"{name} must be an integer of at least {least}, not {value!r}")
        _check_repeatable(self.train_set, epochs, "training set")
        _check_repeatable(self.test_set, epochs, "test set")
        if resume is not None and not first_epoch <= resume.epoch < first_epoch + epochs:
            raise UserError(
                f"the run to resume stands in epoch {resume.epoch}, outside of epochs {first_epoch} to "
                f"{first_epoch + epochs - 1}: ask for more epochs"
            )
        state = self.state = RunState(
            runner=self,
            network=self.network,
            optimizer=self.optimizer,
            summary=Summary(),
            epochs=int(epochs),
            first_epoch=int(first_epoch),
            epoch=int(first_epoch),
            folder=self.folder,
            train_batches=_length(self.train_set),
            test_batches=_length(self.test_set),
            started_ns=time.perf_counter_ns(),
        )
        failure: BaseException | None = None
        try:
            self._dispatcher.fire("before_run", state)
            self._epochs(state, resume)
        except BaseException as error:
            failure = self._failure(error)
            if isinstance(failure, KeyboardInterrupt):
                state.status, state.abort_reason = "interrupted", "interrupted (Ctrl-C)"
            else:
                state.status, state.abort_reason = "failed", f"{type(failure).__name__}: {failure}"
        state.error, state.stopped_ns = failure, time.perf_counter_ns()
        try:
            self._dispatcher.fire("after_run", state)
        except BaseException as error:
            if failure is None:
                state.summary.status, state.summary.abort_reason = (
                    "failed",
                    f"{type(error).__name__}: {error}",
                )
            failure = combine(failure, error)
        finally:
            for loader in self._loaders:
                loader.close()
        if failure is not None:
            raise failure
        return state.summary

    def loss_weight(self, samples: int) -> float:
        """What a batch's loss is multiplied with before it is summed and divided by the ``samples``."""
        return float(samples) if self.loss_reduction == "mean" else 1.0

    def _epochs(self, state: RunState, resume: Position | None) -> None:
        fire = self._dispatcher.fire
        first = state.first_epoch if resume is None else resume.epoch
        for epoch in range(first, state.first_epoch + state.epochs):
            state.epoch = epoch
            fire("before_epoch", state)
            if resume is not None and epoch == first:
                restore(state, resume)
            if self._train(state, skip=state.batch if resume is not None and epoch == first else 0):
                return
            if self.test_set is not None:
                self._test(state)
                self._end_test(state)
                fire("after_test_set", state)
            fire("after_epoch", state)
            if self.test_set is not None and self._aborts("abort_after_test_set", state):
                return
        state.status = "finished"

    def _train(self, state: RunState, skip: int = 0) -> bool:
        """One walk over the training set, without the first ``skip`` batches; True when a question
        ended the run."""
        fire = self._dispatcher.fire
        fire("before_training_set", state)
        state.batch = skip
        batches = _batches(self.train_set, state.epoch, skip)
        while (batch := self._fetch(batches, state, "training set")) is not None:
            state.data_ns += state.fetch_ns
            state.step += 1
            fire("before_optimizer_step", state)
            self.network.synchronize()
            begin = time.perf_counter_ns()
            state.outputs = self.optimizer.train(batch, outputs=self._train_outputs)
            self.network.synchronize()
            state.step_ns = time.perf_counter_ns() - begin
            state.train_ns += state.step_ns
            state.loss = self._step_loss(state)
            state.samples_seen += state.samples
            fire("after_optimizer_step", state)
            if self._aborts("abort_after_optimizer_step", state):
                return True
        fire("after_training_set", state)
        return False

    def _test(self, state: RunState) -> None:
        fire = self._dispatcher.fire
        fire("before_test_set", state)
        state.batch = 0
        batches = _batches(self.test_set, 0)
        while (batch := self._fetch(batches, state, "test set")) is not None:
            state.test_data_ns += state.fetch_ns
            fire("before_inference_step", state)
            self.network.synchronize()
            begin = time.perf_counter_ns()
            state.outputs = self.network.inference(batch, outputs=self._test_outputs)
            self.network.synchronize()
            state.step_ns = time.perf_counter_ns() - begin
            state.test_ns += state.step_ns
            fire("after_inference_step", state)

    # -- hooks for runs on several ranks -------------------------------------------------------------

    def _failure(self, error: BaseException) -> BaseException:
        """What the run ends with when ``error`` came up."""
        return error

    def _step_loss(self, state: RunState) -> float:
        """The loss of the step that was just made; may change ``state.samples`` to what it is over."""
        return self._scalar_loss(state.outputs or {})

    def _end_test(self, state: RunState) -> None:
        """Called after the last inference step, before ``after_test_set``."""

    def _no_batch(self, state: RunState, kind: str) -> None:
        """Called when the walk over a set gave nothing."""
        raise UserError(f"the {kind} gave no batch in epoch {state.epoch}")

    def _fetch(self, batches: Iterator[Batch], state: RunState, kind: str) -> Batch | None:
        """The next batch, checked and with its time in ``state.fetch_ns``; None at the end."""
        begin = time.perf_counter_ns()
        batch = next(batches, None)
        state.fetch_ns = time.perf_counter_ns() - begin
        if batch is None:
            if state.batch == 0:
                self._no_batch(state, kind)
            return None
        state.batch += 1
        state.inputs, state.outputs = batch, None
        state.samples = self._samples(batch, kind)
        state.counted = self._counted(batch, state.samples)
        if self.fixed_batch is not None and state.samples != self.fixed_batch:
            raise UserError(
                f"batch {state.batch} of the {kind} has {state.samples} samples, but the network "
                "takes exactly "
                f"{self.fixed_batch}: use drop_last=True in the sampler, or a network with a free "
                "batch size"
            )
        if kind == "training set":
            self._check_counted(state)
        return batch

    def _check_counted(self, state: RunState) -> None:
        """Refuse a training batch whose mean loss is over no label, and so NaN."""
        if state.samples and not state.counted:
            self._refuse_uncounted(state)

    def _refuse_uncounted(self, state: RunState) -> NoReturn:
        raise UserError(
            f"batch {state.batch} of epoch {state.epoch} has no label that counts (all are {self.ignore}): "
            "take larger batches, or leave out such samples"
        )

    def _samples(self, batch: Any, kind: str) -> int:
        if not isinstance(batch, Mapping) or not batch:
            raise UserError(
                f"the {kind} must give batches as {{input name: array}}, not {type(batch).__name__}"
            )
        first = batch[self.label] if self.label in batch else next(iter(batch.values()))
        shape = np.shape(first)
        if not shape or shape[0] < self._least_samples:
            raise UserError(f"the {kind} gave a batch without samples: its shape is {shape}")
        return int(shape[0])

    def _counted(self, batch: Batch, samples: int) -> int:
        """What a mean loss is over: the labels that are not ignored, or the samples if none can be."""
        if self.ignore is None or self.label not in batch or self.loss_reduction != "mean":
            return samples
        return int(np.count_nonzero(np.asarray(batch[self.label]) != self.ignore))

    def _scalar_loss(self, outputs: Mapping[str, np.ndarray]) -> float:
        if self.loss not in outputs:
            raise UserError(f"optimizer.train gave no '{self.loss}', only: {', '.join(outputs) or 'nothing'}")
        value = np.asarray(outputs[self.loss])
        if value.size != 1:
            raise UserError(f"the loss output '{self.loss}' must be a scalar; its shape is {value.shape}")
        return float(value.item())

    def _aborts(self, question: str, state: RunState) -> bool:
        abort = self._dispatcher.ask(question, state)
        if abort is None:
            return False
        state.status, state.abort_reason = "failed" if abort.failed else "stopped", abort.reason
        return True

    def _wanted(self, attribute: str, own: list[str]) -> list[str]:
        """The network outputs to fetch: the Runner's own and those of all tickers, each once."""
        names = dict.fromkeys(own)
        for ticker in self.tickers:
            for name in getattr(ticker, attribute):
                choose(
                    f"network output in {attribute} of {type(ticker).__name__}",
                    name,
                    self.network.outputs,
                )
                names[name] = None
        return list(names)

    def _batch_size(self, name: str, given: int | None) -> int:
        if given is None:
            return self.fixed_batch or DEFAULT_BATCH_SIZE
        if isinstance(given, bool) or not isinstance(given, int | np.integer) or given < 1:
            raise UserError(f"{name} must be an integer of at least 1, not {given!r}")
        if self.fixed_batch not in (None, given):
            raise UserError(f"{name} is {given}, but the network takes batches of exactly {self.fixed_batch}")
        return int(given)

    def _training_sampler(self, train_set: Any, seed: int, drop_last: bool | None) -> Any:
        from meta500.datasets import Samples, ShuffleSampler

        if not isinstance(train_set, Samples):
            return self._checked(train_set, "training set")
        fixed = self.fixed_batch is not None
        if fixed and drop_last is False and len(train_set) % self.batch_size:
            raise UserError(
                f"drop_last=False, but the training set's {len(train_set)} samples are no "
                "multiple of the "
                f"network's fixed batch size {self.fixed_batch}"
            )
        drop = fixed if drop_last is None else drop_last
        return self._loaded(ShuffleSampler(train_set, self.batch_size, seed=seed, drop_last=drop))

    def _test_sampler(self, test_set: Any) -> Any:
        from meta500.datasets import OrderedSampler, Samples

        if not isinstance(test_set, Samples):
            return self._checked(test_set, "test set")
        rest = len(test_set) % self.fixed_batch if self.fixed_batch else 0
        if rest:
            raise UserError(
                f"the test set has {len(test_set)} samples, no multiple of the network's fixed "
                "batch size "
                f"{self.fixed_batch}: its last {rest} could not be tested. Use a network with a "
                "free batch "
                f"size, {len(test_set) - rest} test samples, or an OrderedSampler with "
                "drop_last=True"
            )
        return self._loaded(OrderedSampler(test_set, self.test_batch_size), augment=())

    def _loaded(self, sampler: Any, **changed: Any) -> Any:
        """``sampler``, or a loader around it if one was asked for, which this run closes."""
        from meta500.datasets.loader import Loader

        options = {**self._loading, **changed}
        if not options.get("workers") and not options.get("augment"):
            return sampler
        loader = Loader(sampler, **options)
        self._loaders.append(loader)
        return loader

    def _checked(self, sampler: Any, kind: str) -> Any:
        """A sampler that fits the network's fixed batch size, as far as it tells beforehand."""
        from meta500.datasets import Sampler
        from meta500.datasets.loader import Loader

        if not isinstance(sampler, Iterable):
            raise UserError(
                f"the {kind} must be a Dataset, a Sampler, a Loader or an iterable of batches, not "
                f"{sampler!r}"
            )
        given = sampler
        sampler = sampler.sampler if isinstance(sampler, Loader) else sampler
        if self.fixed_batch is None or not isinstance(sampler, Sampler):
            return given
        if sampler.batch_size != self.fixed_batch:
            raise UserError(
                f"the {kind}'s sampler has batch_size {sampler.batch_size}, but the network takes "
                "batches of "
                f"exactly {self.fixed_batch}"
            )
        rest = sampler.samples_per_epoch % sampler.batch_size
        if rest and not sampler.drop_last:
            raise UserError(
                f"the {kind}'s sampler ends with a batch of {rest} samples, but the network takes "
                "batches of "
                f"exactly {self.fixed_batch}: use drop_last=True, or a network with a free batch "
                "size"
            )
        return given


def fixed_batch_size(network: Any, data: Any = None) -> int | None:
    """The batch size that the network's input shapes demand; None when their first dimension is
    free.

    Only inputs that ``data`` (`Samples`, or a Sampler or Loader of some) feeds are looked at, all if it does
    not say: a network may have further inputs without a batch dimension.

    Raises:
        UserError: inputs that demand different batch sizes.
    """
    fed = _of_samples(data, "shapes") or network.inputs
    sizes = {
        name: int(shape[0])
        for name, kind in network.inputs.items()
        # A type, or its shape, may be unknown; a symbolic or unknown dimension is no int.
        if name in fed and (shape := getattr(kind, "shape", None)) and isinstance(shape[0], int | np.integer)
    }
    if len(set(sizes.values())) > 1:
        listed = ", ".join(f"'{name}' {size}" for name, size in sizes.items())
        raise UserError(f"the network's inputs have different first dimensions: {listed}")
    return next(iter(sizes.values()), None)


def _with_defaults(tickers: Sequence[Ticker], nan_abort: bool) -> list[Ticker]:
    if isinstance(tickers, Ticker):
        raise UserError("tickers must be a sequence: write tickers=[...]")
    given = list(tickers)
    summaries = [t for t in given if isinstance(t, SummaryTicker)] or [SummaryTicker()]
    if len(summaries) > 1:
        raise UserError(f"{len(summaries)} SummaryTickers were given; each would count every step again")
    rest = [t for t in given if t is not summaries[0]]
    if nan_abort and not any(isinstance(t, NanAbort) for t in rest):
        rest.append(NanAbort())
    return [*summaries, *rest]


def _loading_options(loading: Any, train_set: Any) -> dict[str, Any]:
    """``loading`` as keyword arguments of a Loader, if it is of use for ``train_set``.

    Raises:
        UserError: no mapping, an unknown option or kind, or options that no batch would be made with.
    """
    from meta500.datasets import Samples
    from meta500.datasets.loader import KINDS, Loader

    if loading is None:
        return {}
    if not isinstance(loading, Mapping):
        raise UserError(
            f'loading must be a mapping of a Loader\'s options, such as {{"workers": 2}}, not {loading!r}'
        )
    for key in loading:
        choose("loading option", key, LOADING)
    if "kind" in loading:
        choose("kind of workers", loading["kind"], KINDS)
    wanted = [key for key in ("workers", "augment") if loading.get(key)]
    if wanted and not isinstance(train_set, Samples):
        hint = "give them to that Loader" if isinstance(train_set, Loader) else "wrap the sampler in a Loader"
        raise UserError(
            f"loading: {' and '.join(wanted)} would have no effect, since the training set is no Dataset "
            f"but a {type(train_set).__name__}: {hint}"
        )
    return dict(loading)


def _batches(source: Any, epoch: int, skip: int = 0) -> Iterator[Batch]:
    """The batches of ``source`` from number ``skip`` on; what is skipped is not read where that can be."""
    from meta500.datasets import Sampler
    from meta500.datasets.loader import Loader

    if not callable(getattr(source, "epoch", None)):
        return islice(source, skip, None)
    if skip and isinstance(source, Sampler) and type(source).epoch is Sampler.epoch:
        source = Loader(source)
    if skip and "first" in inspect.signature(source.epoch).parameters:
        return iter(source.epoch(epoch, first=skip))
    return islice(source.epoch(epoch), skip, None)


def _check_repeatable(source: Any, epochs: int, kind: str) -> None:
    """Refuse a generator for several epochs: from the second one on it would silently be empty."""
    once = isinstance(source, Iterator) and not callable(getattr(source, "epoch", None))
    if once and epochs > 1:
        raise UserError(
            f"the {kind} is an iterator that can be walked only once, but {epochs} epochs are "
            "asked for: "
            "give a Dataset, a Sampler, a Loader or a list of batches"
        )


def _length(source: Any) -> int | None:
    return len(source) if hasattr(source, "__len__") else None


def _of_samples(data: Any, attribute: str) -> Any:
    """An attribute of `Samples`, or of those behind a sampler or loader; None for other kinds of batches."""
    return getattr(getattr(data, "dataset", data), attribute, None)
