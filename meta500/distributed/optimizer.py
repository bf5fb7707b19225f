"""The base of all distributed optimizers: an optimizer around an optimizer.

A scheme says when ranks talk and what they exchange; the base optimizer says what a gradient does to a
parameter. Swapping one scheme for another is one line::

    optimizer = ConsistentDecentralized(Momentum(network))
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, TypedDict

import array_api_compat
import numpy as np

from meta500.backends import optimizer_state as saved
from meta500.backends.hyperparameters import Rate, describe_rate
from meta500.backends.optimizer import Optimizer
from meta500.distributed import buckets
from meta500.distributed.communication import BUCKET_BYTES, CommunicationNetwork
from meta500.distributed.equality import check_equal
from meta500.distributed.timeline import COMPUTE, STEP
from meta500.errors import UserError, choose
from meta500.graph.passes import training_form
from meta500.metrics.rows import Row
from meta500.optimizers.optimizer import ThreeStepOptimizer

Array = Any
LOSS_REDUCTIONS = ("mean", "sum")
# Slots of a saved state that belong to the scheme and not to the base optimizer begin with this.
SCHEME = "scheme."


class Common(TypedDict, total=False):
    """The options of every scheme; see `DistributedOptimizer`."""

    broadcast: bool
    loss_reduction: str
    batch_input: str | None


class DistributedOptimizer(Optimizer):
    """One step of ``optimizer`` on every rank, and what the ranks exchange around it.

    It is an :class:`Optimizer` itself: ``network``, ``loss``, ``learning_rate``, ``rate``, ``step_count`` and
    ``state`` are those of the base optimizer. Making one is collective: the ranks compare parameter names,
    shapes, dtypes and the base optimizer's settings, then all take the parameters of the root.

    Args:
        optimizer: a three-step optimizer of this rank's network.
        communication: how the ranks talk; default: all ranks of MPI.COMM_WORLD.
        broadcast: take over the root's parameters and running statistics.
        loss_reduction: "mean" or "sum": how the loss combines the samples of a batch. Gradients of a mean are
            averaged with the ranks' numbers of samples as weights; gradients of a sum are added.
        batch_input: network input whose first dimension counts the samples; None where all inputs agree.

    Attributes:
        synchronous: all ranks step together; a class attribute.
        consistent: all replicas are equal after every step; a class attribute.
        compressible: gradients are exchanged so that `CommunicationNetwork` can compress them; a class
            attribute.
        before_exchange: called by synchronous schemes between the pass and the exchange as
            ``before_exchange(loss, samples)``; a number that it returns becomes the loss that ``train`` gives
            out. The loss of a rank without samples is NaN.
        global_samples: the samples of all ranks in the running step, if ``before_exchange`` found them out
            and set it; saves asking once more. None otherwise.

    Raises:
        UserError: on all ranks, naming the rank that differs from the root and in what; or an optimizer that
            does not have three steps, or a communication that compresses where the scheme cannot.
    """

    synchronous: ClassVar[bool] = True
    consistent: bool = True
    compressible: ClassVar[bool] = False

    def __init__(
        self,
        optimizer: ThreeStepOptimizer,
        communication: CommunicationNetwork | None = None,
        *,
        broadcast: bool = True,
        loss_reduction: str = "mean",
        batch_input: str | None = None,
    ) -> None:
        self.base = self._checked_base(optimizer)
        self.loss_reduction = choose("loss_reduction", loss_reduction, LOSS_REDUCTIONS)
        self.batch_input = batch_input
        self.before_exchange: Callable[[float, int], float | None] | None = None
        self.global_samples: int | None = None
        self._network = optimizer.network
        self._parameters = {}
        self.samples_seen = 0
        # Only few optimizers change parameters before the pass; the others need no copies of them.
        hook = getattr(type(optimizer), "prepare_param", ThreeStepOptimizer.prepare_param)
        self.prepares = hook is not ThreeStepOptimizer.prepare_param
        model = getattr(self._network, "model", None)
        self.statistics: list[str] = [] if model is None else sorted(training_form(model)[1])
        first = next(iter(self._network.get_params()), None)
        self.xp = np if first is None else array_api_compat.array_namespace(self._network.native(first))
        self.communication = CommunicationNetwork() if communication is None else communication
        if self.communication.compression is not None and not self.compressible:
            raise UserError(
                f"{type(self).__name__} does not exchange gradients that could be compressed: use "
                "ConsistentDecentralized, or a communication without compression"
            )
        check_equal(self.communication, self._settings())
        if broadcast and self.communication.size > 1:
            self.take_from_root([*self.network.get_params(), *self.statistics])

    def _checked_base(self, optimizer: Any) -> Any:
        if not isinstance(optimizer, ThreeStepOptimizer):
            raise UserError(
                f"{type(self).__name__} wraps a reference optimizer (meta500.optimizers), which has three "
                f"steps; {type(optimizer).__name__} has not"
            )
        return optimizer

    # -- the base optimizer's attributes ---------------------------------------------------------------

    @property
    def learning_rate(self) -> Rate:  # type: ignore[override]
        """The base optimizer's learning rate or schedule."""
        return self.base.learning_rate

    @learning_rate.setter
    def learning_rate(self, value: Rate) -> None:
        self.base.learning_rate = value

    @property
    def rate(self) -> float:  # type: ignore[override]
        """The learning rate of the running step."""
        return self.base.rate

    @property
    def loss(self) -> str:  # type: ignore[override]
        """Name of the output that is minimised."""
        return self.base.loss

    @property
    def step_count(self) -> int:  # type: ignore[override]
        """Steps of this rank that are completed."""
        return self.base.step_count

    @step_count.setter
    def step_count(self, value: int) -> None:
        self.base.step_count = value

    @property
    def state(self) -> dict[str, dict[str, Array]]:  # type: ignore[override]
        """The base optimizer's state on this rank."""
        return self.base.state

    @property
    def scalars(self) -> dict[str, float]:  # type: ignore[override]
        """The base optimizer's scalars on this rank."""
        return self.base.scalars

    @property
    def kind(self) -> str:
        return f"{type(self).__name__}({self.base.kind})"

    def hyper_parameters(self) -> dict[str, Any]:
        return self.base.hyper_parameters()

    def set_hyper_parameters(self, values: Mapping[str, Any]) -> None:
        self.base.set_hyper_parameters(values)

    # -- saved state -----------------------------------------------------------------------------------

    def scheme_state(self) -> tuple[dict[str, dict[str, Array]], dict[str, float]]:
        """What the scheme itself has to keep, in the form of ``collect_state`` (hook)."""
        return {}, {}

    def restore_scheme_state(self, arrays: dict[str, dict[str, Array]], scalars: dict[str, float]) -> None:
        """Take over what ``scheme_state`` gave (hook)."""
        return

    def collect_state(self) -> tuple[dict[str, dict[str, Array]], dict[str, float]]:
        """The base optimizer's state, and the scheme's under names that begin with "scheme."."""
        arrays, scalars = self.base.collect_state()
        own_arrays, own_scalars = self.scheme_state()
        # The weight of this rank's running statistics in `finish`.
        own_scalars = {**own_scalars, "samples_seen": float(self.samples_seen)}
        arrays = {name: dict(slots) for name, slots in arrays.items()}
        for name, slots in own_arrays.items():
            arrays.setdefault(name, {}).update({SCHEME + slot: value for slot, value in slots.items()})
        return arrays, {**scalars, **{SCHEME + key: value for key, value in own_scalars.items()}}

    def restore_state(self, arrays: dict[str, dict[str, Array]], scalars: dict[str, float]) -> None:
        def part(values: Mapping[str, Any], own: bool) -> dict[str, Any]:
            chosen = {key: value for key, value in values.items() if key.startswith(SCHEME) == own}
            return {key.removeprefix(SCHEME): value for key, value in chosen.items()}

        def slots(own: bool) -> dict[str, dict[str, Array]]:
            found = {name: part(values, own) for name, values in arrays.items()}
            return {name: values for name, values in found.items() if values}

        self.samples_seen = int(scalars.get(SCHEME + "samples_seen", 0))
        self.base._parameters = self._parameters
        self.base.restore_state(slots(False), part(scalars, False))
        self.restore_scheme_state(slots(True), part(scalars, True))

    # -- the step --------------------------------------------------------------------------------------

    def train(
        self, inputs: dict[str, np.ndarray], outputs: Sequence[str] | None = None
    ) -> dict[str, np.ndarray]:
        """One step on this rank's batch; see :meth:`Optimizer.train`.

        A batch of 0 samples (arrays of length 0) takes part in the exchange with weight 0 and without a pass;
        then only the loss is returned: NaN, or the number that ``before_exchange`` gave.

        Raises:
            UserError: inputs that disagree about the number of samples, or no sample on any rank.
        """
        with self.span(STEP, f"step {self.step_count + 1}"):
            return self._step(inputs, outputs)

    def _step(self, inputs: Mapping[str, Any], outputs: Sequence[str] | None) -> dict[str, np.ndarray]:
        samples = self.samples(inputs)
        self.global_samples = None
        originals: dict[str, Array] = {}
        try:
            self.before_pass(originals)
            with self.span(COMPUTE, "pass"):
                result = self.local_pass(inputs, samples, outputs)
            if self.synchronous and self.before_exchange is not None:
                agreed = self.before_exchange(float(np.asarray(result[self.loss]).item()), samples)
                if agreed is not None:
                    result[self.loss] = np.full_like(result[self.loss], agreed)
        except BaseException:
            for name, value in originals.items():
                self.network.assign(name, value)
            raise
        self.samples_seen += samples
        self.exchange(samples, originals)
        return result

    def before_pass(self, originals: dict[str, Array]) -> None:
        """The base optimizer's first two steps; copies of what it replaces go to ``originals``."""
        self.base.begin_step()
        if self.prepares:
            # Networks may keep parameters at one place, so that the arrays replaced are no record of them.
            kept = self.copies(self.parameters())
            replaced: dict[str, Array] = {}
            self.base.prepare(replaced)
            originals.update({name: kept[name] for name in replaced})

    def local_pass(
        self, inputs: Mapping[str, Any], samples: int, outputs: Sequence[str] | None
    ) -> dict[str, np.ndarray]:
        """This rank's forward and backward pass; without samples only a loss that is NaN."""
        if samples == 0:
            return {self.loss: np.full((), np.nan)}
        return self.network.inference_and_backprop(inputs, loss=self.loss, outputs=self.wanted(outputs))

    @abstractmethod
    def exchange(self, samples: int, originals: Mapping[str, Array]) -> None:
        """Exchange, update and count the step, after a pass over ``samples`` samples.

        ``originals`` are the parameters that prepared ones replaced.
        """

    # -- for the schemes -------------------------------------------------------------------------------

    def update(self, gradients: Mapping[str, Array]) -> None:
        """The base optimizer's update of this rank's network."""
        with self.span(COMPUTE, "update"):
            self.base.update(gradients)

    def span(self, lane: str, name: str) -> AbstractContextManager[None]:
        """Record the time of a block in the communication's timeline, if it has one."""
        timeline = self.communication.timeline
        return nullcontext() if timeline is None else timeline.span(lane, name)

    def samples(self, inputs: Mapping[str, Any]) -> int:
        """Samples in a batch: the length of its arrays."""
        if self.batch_input is not None:
            choose("batch_input", self.batch_input, inputs)
            inputs = {self.batch_input: inputs[self.batch_input]}
        shapes = {name: getattr(value, "shape", None) or np.shape(value) for name, value in inputs.items()}
        lengths = {int(shape[0]) for shape in shapes.values() if len(shape)}
        if len(lengths) != 1:
            text = ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())
            raise UserError(
                f"{type(self).__name__}: the inputs ({text}) do not say how many samples there are; "
                "name the one that counts them with batch_input=..."
            )
        return lengths.pop()

    def gradients(self, samples: int) -> dict[str, Array]:
        """The native gradients of the last pass by parameter name; zeros where there was none."""
        if samples:
            return {name: self.network.native(gradient) for name, gradient in self.network.gradient()}
        return {name: self.xp.zeros_like(self.network.native(name)) for name in self.network.get_params()}

    def parameters(self) -> dict[str, Array]:
        """The network's native parameters by name."""
        return {name: self.network.native(name) for name in self.network.get_params()}

    def running_statistics(self) -> dict[str, Array]:
        """The native tensors that training changes without a gradient, by name."""
        return {name: self.network.native(name) for name in self.statistics}

    def assign_all(self, tensors: Mapping[str, Array]) -> None:
        """Give the network new parameters or statistics."""
        for name, tensor in tensors.items():
            self.network.assign(name, tensor)

    def take_from_root(self, names: Iterable[str]) -> None:
        """Broadcast the root's tensors; the other ranks' networks take them over."""
        tensors = {name: self.network.native(name) for name in names}
        received = self.communication.sync_all_with_root_many(tensors)
        if not self.communication.is_root:
            self.assign_all(received)

    def copies(self, tensors: Mapping[str, Array]) -> dict[str, Array]:
        """New native arrays with the same values."""
        return {name: self.xp.asarray(value, copy=True) for name, value in tensors.items()}

    def total_samples(self, samples: int) -> int:
        """The samples of all ranks in this step.

        Raises:
            UserError: there are none on any rank.
        """
        total = samples if self.communication.size == 1 else self.global_samples
        if total is None:
            total = int(self.communication.sync_all(np.array([float(samples)]), op="sum")[0])
        if total == 0:
            raise UserError(f"{type(self).__name__}: no rank has a sample in step {self.step_count + 1}")
        return total

    def average_exactly(self, tensors: Mapping[str, Array], weight: float | None) -> dict[str, Array]:
        """The weighted mean over ranks, never compressed; None: equal weights.

        Compression is for gradients, whose errors are fed back; parameters and statistics would lose what is
        not sent.
        """
        network = self.communication
        pending = buckets.start(
            network, "sync_all_many", True, tensors, "mean", weight, None, BUCKET_BYTES, False
        )
        return pending.wait()

    def skip_step(self) -> None:
        """Count a step without an update, so that schedules run alike on all ranks."""
        self.base.step_count += 1

    # -- the end, and what was measured ----------------------------------------------------------------

    def model_parameters(self) -> dict[str, Array]:
        """The parameters that stand for the whole training, equal on all ranks, as new arrays (collective).

        Those of any rank for consistent schemes; else the mean over ranks, or the server's. They are not
        assigned to the network.
        """
        if self.consistent or self.communication.size == 1:
            return self.copies(self.parameters())
        return self.average_exactly(self.parameters(), None)

    def finish(self) -> None:
        """End the training, or a part of it (collective): every replica gets ``model_parameters``.

        To be called by all ranks, at least for schemes that are not consistent; asynchronous ones serve the
        others until all have called it. A step after it goes on from these parameters.
        """
        if not self.consistent:
            self.assign_all(self.model_parameters())
            self._mean_statistics()

    def _mean_statistics(self) -> None:
        """Average the running statistics, with the samples that each rank has seen as weights."""
        if not self.statistics or self.communication.size == 1:
            return
        seen = float(self.samples_seen)
        if self.communication.sync_all(np.array([seen]), op="sum")[0]:
            self.assign_all(self.average_exactly(self.running_statistics(), seen))

    def rows(self, **what: Any) -> list[Row]:
        """Rows of level 3 about what the scheme measured on this rank (hook); ``what`` fills their fields."""
        return []

    def _settings(self) -> dict[str, Any]:
        """What must be equal on all ranks, with the words that name it."""
        settings: dict[str, Any] = {"the scheme": type(self).__name__, "the optimizer": self.base.kind}
        for key, value in self.base.hyper_parameters().items():
            settings[f"the optimizer's {key}"] = describe_rate(value) if callable(value) else value
        settings["the compression"] = self.communication.compression
        settings["the loss_reduction"] = self.loss_reduction
        for name in self.network.get_params():
            described = saved.describe(self.network.native(name))
            settings[f"parameter '{name}'"] = f"{described['dtype']}{described['shape']}"
        return settings
