"""What is measured, and what came out of it: plain data that passes between processes as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from meta500.benchmarks.training import Setup
from meta500.distributed.model.microbenchmark import Measurements
from meta500.distributed.model.prediction import SCALINGS
from meta500.distributed.model.schemes import SCHEMES
from meta500.errors import UserError, choose


@dataclass(frozen=True)
class Effort:
    """How long is measured.

    Attributes:
        rounds: over all steps; message_rounds: over messages and collectives.
        seconds: of one segment of steps.
        largest_message: bytes.
        patience: seconds that measurements which other programs disturbed are repeated for.
    """

    rounds: int
    seconds: float
    message_rounds: int
    largest_message: int
    patience: float


QUICK = Effort(rounds=3, seconds=0.05, message_rounds=2, largest_message=4**10, patience=5.0)
NORMAL = Effort(rounds=15, seconds=0.1, message_rounds=8, largest_message=4**12, patience=120.0)
EFFORTS = {"quick": QUICK, "normal": NORMAL}


@dataclass(frozen=True)
class Job:
    """One scaling study.

    Attributes:
        setup: network, data, backend and optimizer; its ``batch_size`` is that of one rank for weak scaling
            and
            of all ranks together for strong scaling.
        schemes: names of `meta500.distributed.registry`.
        counts: rank counts that are measured, 1 among them.
        scalings: "weak", "strong".
        options: of the schemes, by scheme.
        threads: of every rank.
        effort: key of `EFFORTS`.
    """

    setup: Setup
    schemes: tuple[str, ...]
    counts: tuple[int, ...]
    scalings: tuple[str, ...] = SCALINGS
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    threads: int = 1
    effort: str = "normal"

    def __post_init__(self) -> None:
        from meta500.distributed import registry

        for scheme in self.schemes:
            choose("scheme", scheme, [name for name in registry.names() if name in SCHEMES])
            known = registry.options(scheme)
            for option in self.options.get(scheme, {}):
                choose(f"option of scheme '{scheme}'", option, known)
        for scaling in self.scalings:
            choose("scaling", scaling, SCALINGS)
        choose("effort", self.effort, EFFORTS)
        if not self.schemes or not self.scalings or not self.counts:
            raise UserError("a scaling study needs at least one scheme, one scaling and one rank count")
        if min(self.counts) < 1 or self.threads < 1:
            raise UserError(f"rank counts {list(self.counts)} and threads {self.threads} must be at least 1")
        if "strong" in self.scalings and max(self.counts) > self.setup.batch_size:
            raise UserError(
                f"strong scaling: a batch of {self.setup.batch_size} cannot be divided among "
                f"{max(self.counts)} ranks; give a larger --batch-size or fewer --ranks"
            )

    def local_batch(self, scaling: str, ranks: int, rank: int) -> int:
        """Samples of one rank per step; with strong scaling they differ by one at most."""
        whole = self.setup.batch_size
        if scaling == "weak":
            return whole
        return whole // ranks + (1 if rank < whole % ranks else 0)

    def batches(self) -> list[int]:
        """All local batches that come up, rising."""
        found = {
            self.local_batch(scaling, ranks, rank)
            for scaling in self.scalings
            for ranks in self.counts
            for rank in range(ranks)
        }
        if "strong" in self.scalings:
            # For predictions on more ranks than are measured.
            found |= {max(1, self.setup.batch_size // 8), 1}
        return sorted(found)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Job:
        """The counterpart of `to_dict`."""
        setup = dict(values["setup"])
        for name in ("metrics", "augment"):
            setup[name] = tuple(setup[name])
        for name in ("model_options", "dataset_options", "backend_options", "hyperparameters"):
            setup[name] = {k: tuple(v) if isinstance(v, list) else v for k, v in setup[name].items()}
        rest: dict[str, Any] = {name: tuple(values[name]) for name in ("schemes", "counts", "scalings")}
        rest |= {name: values[name] for name in ("options", "threads", "effort")}
        return cls(setup=Setup(**setup), **rest)


Step = tuple[str, str, int]


@dataclass
class Outcome:
    """What the ranks measured; seconds, one entry per round that counts (see `least_disturbed`).

    Attributes:
        cores: of the node of rank 0; nodes: their number; ranks_per_node: of a full node.
        parameters, statistics: name, shape and element type of the network's tensors.
        network: of the micro-benchmark.
        passes: forward and backward pass of one rank alone, by local batch.
        updates: the update rule of one rank alone.
        busy: pass and update while ``busy_ranks`` ranks compute, relative to one alone.
        slicing: two ranks on one core, relative to twice one alone; empty where it cannot be bound.
        turns: seconds by which two ranks on one core are slower when they wait for each other after every
            step.
        spread: single passes of one rank alone over their round's median.
        steps: a training step, by (scheme, scaling, ranks): the slowest rank's for synchronous schemes, the
            mean pace of all for the others.
        disturbance: share of the cores that other programs used, by sample that was kept.
        volumes: bytes that the busiest rank hands to the interface per step, by the same keys.
    """

    cores: int
    nodes: int
    ranks_per_node: int
    parameters: list[tuple[str, tuple[int, ...], str]]
    statistics: list[tuple[str, tuple[int, ...], str]]
    network: Measurements = field(default_factory=Measurements)
    passes: dict[int, list[float]] = field(default_factory=dict)
    updates: list[float] = field(default_factory=list)
    busy: list[float] = field(default_factory=list)
    busy_ranks: int = 1
    slicing: list[float] = field(default_factory=list)
    turns: list[float] = field(default_factory=list)
    spread: list[float] = field(default_factory=list)
    steps: dict[Step, list[float]] = field(default_factory=dict)
    volumes: dict[Step, float] = field(default_factory=dict)
    disturbance: list[float] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        plain = {
            name: getattr(self, name)
            for name in ("cores", "nodes", "ranks_per_node", "parameters", "statistics", "updates", "busy")
        }
        return {
            **plain,
            "busy_ranks": self.busy_ranks,
            "slicing": self.slicing,
            "turns": self.turns,
            "spread": self.spread,
            "disturbance": self.disturbance,
            "network": self.network.to_dict(),
            "passes": [[batch, samples] for batch, samples in self.passes.items()],
            "steps": [[*key, samples] for key, samples in self.steps.items()],
            "volumes": [[*key, volume] for key, volume in self.volumes.items()],
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Outcome:
        """The counterpart of `to_dict`."""
        rest = dict(values)
        for name in ("parameters", "statistics"):
            rest[name] = [(n, tuple(shape), dtype) for n, shape, dtype in values[name]]
        rest["network"] = Measurements.from_dict(values["network"])
        rest["passes"] = {int(batch): list(samples) for batch, samples in values["passes"]}
        rest["steps"] = {(a, b, int(p)): list(samples) for a, b, p, samples in values["steps"]}
        rest["volumes"] = {(a, b, int(p)): volume for a, b, p, volume in values["volumes"]}
        return cls(**rest)
