"""The data-parallel step of our schemes against PyTorch's DistributedDataParallel, in one MPI run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from meta500.backends.network import network
from meta500.benchmarks.networks import TRAINING, columns_of
from meta500.benchmarks.protocol import Emit, label, ratio_row, version
from meta500.benchmarks.subjects import Subject, prepared
from meta500.distributed import CommunicationNetwork
from meta500.errors import UserError, choose
from meta500.metrics.clocks import Timing, interleave
from meta500.metrics.rows import Row

Action = Callable[[], float]
# Our optimizers: name -> their class in torch.optim with its arguments, as plain PyTorch spells it.
RULES: dict[str, tuple[str, dict[str, Any]]] = {
    "sgd": ("SGD", {}),
    "momentum": ("SGD", {"momentum": 0.9}),
    "adam": ("Adam", {}),
}
BASELINE = "DDP"
LOCAL = "no exchange"
# Of the loss after one step, relative: float32 sums in other orders.
TOLERANCE = 1e-3


def measure_data_parallel(
    model: str,
    options: Mapping[str, Any],
    communication: CommunicationNetwork,
    emit: Emit,
    *,
    optimizer: str = "adam",
    learning_rate: float = 1e-3,
    rounds: int = 25,
    warmup: int = 2,
    threads: int = 1,
    variants: Sequence[str] | None = None,
) -> list[Row]:
    """Measure one training step of every variant, interleaved; collective.

    All variants begin with the same weights, and every rank has a batch of its own. Ranks meet at a barrier
    before each step; a sample is the time of the slowest rank. The first rows are those of plain PyTorch: its
    own module in DistributedDataParallel (gloo) with its defaults and ``torch.optim``, from numpy input to
    the loss as a number.

    Args:
        model, options: of :func:`meta500.models.create`; ``batch`` is that of one rank.
        communication: the ranks.
        emit: receives the rows, on the root.
        optimizer: "sgd", "momentum" or "adam".
        learning_rate: of all.
        rounds, warmup: samples of each variant, and calls before them.
        threads: of each rank.
        variants: names out of :func:`variant_names`; default: all.

    Returns:
        The rows, on every rank: "time", "first_call" and the "ratio" to DistributedDataParallel.

    Raises:
        UserError: an unknown name, or variants that do not train alike.
    """
    import torch

    choose("optimizer", optimizer, RULES)
    chosen = list(variant_names() if variants is None else variants)
    for name in chosen:
        choose("variant", name, _VARIANTS)
    torch.set_num_threads(threads)
    subject = prepared(model, dict(options))
    # Other samples on every rank, the same weights.
    subject = replace(subject, inputs=prepared(model, dict(options), seed=communication.rank).inputs)
    case = Case(subject, communication, optimizer, learning_rate, threads)
    losses: dict[str, list[float]] = {name: [] for name in chosen}

    def recorded(name: str, action: Action) -> Action:
        def step() -> float:
            losses[name].append(action())
            return losses[name][-1]

        return step

    with case.running(chosen) as actions:
        timings = interleave(
            {name: recorded(name, action) for name, action in actions.items()},
            warmup=warmup,
            min_repeats=rounds,
            min_seconds=0.0,
            max_seconds=1e6,
            setup=communication.barrier,
        )
    _raise_failures(timings)
    _check_alike(losses, communication)
    return _rows(case, {name: _slowest(timing, communication) for name, timing in timings.items()}, emit)


def variant_names() -> list[str]:
    """Names of what can be measured, the baseline first."""
    return list(_VARIANTS)


class Case:
    """What all variants of one measurement share."""

    def __init__(
        self, subject: Subject, communication: CommunicationNetwork, optimizer: str, rate: float, threads: int
    ) -> None:
        self.subject, self.communication = subject, communication
        self.optimizer, self.rate, self.threads = optimizer, rate, threads
        self.closing: list[Callable[[], object]] = []

    @contextmanager
    def running(self, names: Sequence[str]) -> Iterator[dict[str, Action]]:
        """The steps of the variants; at the normal end all ranks close what they opened."""
        import torch

        from meta500.distributed import torch_group

        group = torch_group.acquire(self.communication, torch_group.backend_for(torch.device("cpu")))
        self.closing.append(group.release)
        yield {name: _VARIANTS[name][1](self) for name in names}
        self.communication.barrier()
        while self.closing:
            self.closing.pop()()

    def plain(self, wrap: Callable[[Any], Any]) -> Action:
        """A step in plain PyTorch as a user writes it."""
        import torch
        from torch.nn import functional

        from meta500.benchmarks.plain_torch import plain_module

        subject = self.subject
        module = plain_module(subject.name, subject.model, **subject.options).train()
        wrapped = wrap(module)
        rule, fixed = RULES[self.optimizer]
        optimizer = getattr(torch.optim, rule)(wrapped.parameters(), lr=self.rate, **fixed)
        image, target = subject.inputs["image"], subject.inputs["label"]

        def step() -> float:
            x, y = torch.from_numpy(image), torch.from_numpy(target)
            optimizer.zero_grad()
            loss = functional.cross_entropy(wrapped(x), y)
            loss.backward()
            optimizer.step()
            return float(loss.item())

        return step

    def scheme(self, name: str, backend: str, native: bool) -> Action:
        """A step of one of our schemes."""
        from meta500.distributed.registry import create
        from meta500.optimizers import create as reference

        net = network(self.subject.model, backend=backend, threads=self.threads)
        self.closing.append(net.close)
        if native:
            base = net.native_optimizer(self.optimizer, learning_rate=self.rate)
        else:
            base = reference(self.optimizer, net, learning_rate=self.rate)
        scheme = create(name, base, self.communication)
        self.closing.append(scheme.finish)
        return lambda: float(scheme.train(self.subject.inputs, outputs=["loss"])["loss"])

    def generated_native(self) -> Action:
        """A step of generated code that averages its gradients itself, through MPI calls inside of it."""
        options = {"threads": self.threads, "communicator": self.communication.comm}
        net = network(self.subject.model, backend="generated", **options)
        self.closing.append(net.close)
        optimizer = net.native_optimizer(self.optimizer, learning_rate=self.rate)
        return lambda: float(optimizer.train(self.subject.inputs, outputs=["loss"])["loss"])


def _parallel(**options: Any) -> Callable[[Any], Any]:
    def wrap(module: Any) -> Any:
        from torch.nn.parallel import DistributedDataParallel

        return DistributedDataParallel(module, **options)

    return wrap


PLAIN = {"backend": "plain PyTorch"}
OURS = {"backend": "torch"}
GENERATED = {"backend": "generated"}
# Name -> (columns of its rows, its step).
_VARIANTS: dict[str, tuple[dict[str, str], Callable[[Case], Action]]] = {
    BASELINE: ({**PLAIN, "mode": "DDP"}, lambda case: case.plain(_parallel())),
    "DDP with bucket views": (
        {**PLAIN, "mode": "DDP, bucket views"},
        lambda case: case.plain(_parallel(gradient_as_bucket_view=True)),
    ),
    "ddp": ({**OURS, "mode": "ddp, native"}, lambda case: case.scheme("ddp", "torch", True)),
    "native": (
        {**OURS, "mode": "consistent-decentralized, native"},
        lambda case: case.scheme("consistent-decentralized", "torch", True),
    ),
    "reference": (
        {**OURS, "mode": "consistent-decentralized, reference"},
        lambda case: case.scheme("consistent-decentralized", "torch", False),
    ),
    "generated": (
        {**GENERATED, "mode": "consistent-decentralized, reference"},
        lambda case: case.scheme("consistent-decentralized", "generated", False),
    ),
    "generated native": (
        {**GENERATED, "mode": "communicator, native"},
        lambda case: case.generated_native(),
    ),
    LOCAL: ({**PLAIN, "mode": LOCAL}, lambda case: case.plain(lambda module: module)),
}


def _raise_failures(timings: Mapping[str, Timing]) -> None:
    for timing in timings.values():
        if timing.failure is not None:
            raise timing.failure


def _check_alike(losses: Mapping[str, Sequence[float]], communication: CommunicationNetwork) -> None:
    """The losses before and after the first step, averaged over ranks, agree.

    Raises:
        UserError: names the variant that trains otherwise.
    """
    names = [name for name in losses if name != LOCAL]
    begin = communication.sync_all(np.array([losses[name][:2] for name in names]))
    for name, found in zip(names[1:], begin[1:], strict=True):
        if not np.allclose(found, begin[0], rtol=TOLERANCE, atol=0):
            raise UserError(
                f"variant '{name}' has the losses {found.tolist()}, '{names[0]}' {begin[0].tolist()}: "
                "they do not train alike"
            )


def _slowest(timing: Timing, communication: CommunicationNetwork) -> Timing:
    """Every sample as long as on the slowest rank."""

    def slowest(values: Sequence[float]) -> tuple[float, ...]:
        return tuple(communication.sync_all(np.array(values), op="max").tolist())

    assert timing.first_call is not None
    return replace(
        timing,
        first_call=slowest([timing.first_call])[0],
        warmup=slowest(timing.warmup) if timing.warmup else (),
        samples=slowest(timing.samples),
    )


def _rows(case: Case, timings: Mapping[str, Timing], emit: Emit) -> list[Row]:
    what = {
        **columns_of(case.subject, TRAINING),
        "level": 3,
        "batch": case.subject.batch * case.communication.size,
        "optimizer": case.optimizer,
        "threads": case.threads,
        "ranks": case.communication.size,
        "device": "cpu",
        "protocol": "interleaved, slowest rank",
    }
    rows = []
    columns = {}
    for name, timing in timings.items():
        columns[name] = {**what, **_VARIANTS[name][0]}
        package = "generated" if columns[name]["backend"] == "generated" else "torch"
        columns[name]["version"] = version(package)
        rows += timing.rows(**columns[name])
    baseline = next(iter(timings))
    for name in timings:
        if name != baseline:
            ratio = ratio_row(timings[name], timings[baseline], label(columns[baseline]), **columns[name])
            rows += [ratio] if ratio is not None else []
    if case.communication.is_root:
        for row in rows:
            emit(row)
    return rows
