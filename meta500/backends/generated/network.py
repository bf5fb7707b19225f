"""Networks as C++ that is generated, compiled and loaded for exactly these shapes."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from meta500.backends.array_network import ArrayNetwork
from meta500.backends.checks import check_cotangent
from meta500.backends.generated import mpi
from meta500.backends.generated.adjoint import METHODS
from meta500.backends.generated.exchange import BUCKET_BYTES, order_of_use
from meta500.backends.generated.forms import (
    COTANGENT,
    Form,
    external,
    joined,
    shapes_of,
    stages_of,
    with_shapes,
)
from meta500.backends.generated.fusion import fused
from meta500.backends.generated.ir import RANDOM, REAL, Program
from meta500.backends.generated.library import Executable, build
from meta500.backends.generated.lower import BACKEND, lower, rules
from meta500.backends.generated.manifest import Manifest, known, network_digest, program_key, remember
from meta500.backends.generated.packing import Packing
from meta500.backends.generated.ranks import MEAN, Ranks, has_no_samples, network_facts, stand_ins
from meta500.backends.generated.schedule import Options, Schedule, schedule
from meta500.backends.network import GRADIENT_PREFIX, NATIVE, UNSUPPORTED, NodeCoverage
from meta500.backends.targets import target as find_target
from meta500.errors import UserError, choose
from meta500.graph import AllReduce, HaloExchange, Model, Operation, TensorType, ValueType
from meta500.graph.passes import infer_types, training_form
from meta500.graph.types import is_floating

_REALS = {"float32": "float", "float64": "double"}
COMPILER, EXASTENCILS = "compiler", "exastencils"


class GeneratedNetwork(ArrayNetwork):
    """A network as generated C++; see :class:`meta500.backends.network.Network`.

    Args:
        model: the network; its floating-point values are all float32 or all float64.
        precision: "float32" or "float64".
        threads: OpenMP threads; default: the processors that this process may use.
        seed: of dropout masks.
        adjoint: how additions that may collide are done in backward: "auto", "gather", "reduction" or
            "atomics".
        target: the processor: "native", "avx2", "x86-64" or "aarch64".
        profile: measure the time in every kernel; see :meth:`Executable.seconds`.
        winograd: use forms with fewer products for 3 x 3 taps in float32; their error is at most four times
            that of the direct form.
        toolchain: "compiler" (C++ of ours) or "exastencils" (layer-4 code, C++ by ExaStencils; see
            docs/exastencils.md): networks of pictures, without native optimizers.
        communicator: an mpi4py communicator: native optimizers average the gradients over its ranks, each
            begun inside the step as soon as it is complete. Making the network is then collective.
        reduce_gradients: with a communicator, gradients of :meth:`inference_and_backprop` are those of the
            mean loss over the samples of all ranks; else those of this rank.
        bucket_bytes: gradients of neighbouring layers join until they have so many bytes; 1: each on its own.
        loss_reduction: of the loss over the samples of a batch, "mean" or "sum": decides how gradients of
            several ranks combine.
    """

    backend = BACKEND

    def __init__(
        self,
        model: Model,
        *,
        precision: str | None = None,
        threads: int | None = None,
        seed: int = 0,
        adjoint: str = "auto",
        target: str = "native",
        profile: bool = False,
        winograd: bool = True,
        toolchain: str = COMPILER,
        communicator: Any = None,
        reduce_gradients: bool = False,
        bucket_bytes: int = BUCKET_BYTES,
        loss_reduction: str = MEAN,
    ) -> None:
        self.profile, self.winograd = profile, winograd
        self.toolchain = choose("toolchain", toolchain, (COMPILER, EXASTENCILS))
        if communicator is not None and self.toolchain != COMPILER:
            raise UserError(f"toolchain '{self.toolchain}' does not take a communicator; use '{COMPILER}'")
        self.ranks = Ranks.of(communicator, reduce_gradients, bucket_bytes, loss_reduction)
        self.adjoint = choose("method of adjoints", adjoint, METHODS)
        self.target = find_target(target)
        if precision is not None:
            choose("precision of the generated backend", precision, _REALS)
        super().__init__(model, precision=precision, threads=threads, seed=seed)
        self._tensors: dict[str, np.ndarray] = {}
        self._last: dict[str, np.ndarray] = {}
        self._runs = 0
        self._last_exchange: Form | None = None
        self._rebuild()
        if self.ranks.reduce_gradients:
            self.join_ranks({})

    @classmethod
    def node_coverage(
        cls, op: Operation, types: Mapping[str, ValueType | None] | None = None
    ) -> NodeCoverage:
        common = (op.name, op.op_type, op.domain, op.since_version)
        if rules().find(op) is not None or op.op_type == "Constant":
            return NodeCoverage(*common, NATIVE)
        return NodeCoverage(*common, UNSUPPORTED, f"no lowering rule for version {op.since_version}")

    @property
    def options(self) -> dict[str, Any]:
        found = {**super().options, "target": self.target.name, "winograd": self.winograd}
        if self.adjoint != "auto":
            found["adjoint"] = self.adjoint
        if self.toolchain != COMPILER:
            found["toolchain"] = self.toolchain
        if self.ranks.size > 1:
            found["ranks"] = self.ranks.size
        return found

    def _check_coverage(self) -> None:
        # A network that was lowered before has no unsupported node; looking at every rule takes time.
        self._digest = network_digest(self.model, self.model.parameters)
        try:
            self._lowered = program_key(self._digest, self.target, "lowered")
        except UserError:
            self._lowered = ""  # there is no compiler: said when there is something to compile
        if not self._lowered or not known(self._lowered):
            super()._check_coverage()

    def _rebuild(self) -> None:
        for executable in getattr(self, "_executables", {}).values():
            executable.close()
        self._executables: dict[Form, Executable] = {}
        self._buffers: dict[str, np.ndarray] = {}
        self._forms = {False: (self.model, {}), True: training_form(self.model)}
        for form, _ in self._forms.values():
            for name, array in form.graph.initializers.items():
                self._tensors.setdefault(name, array)
        self.real = self._real_type()
        # What was 0 when the network was made decides its code; training changes values later.
        self._with_zeros = tuple(n for n in self._parameters if _has_zero(self._tensors[n]))
        self._pack()
        # Lowering now refuses what can't be generated before anything is fed.
        static = all(isinstance(t, TensorType) and t.static for t in self.model.inputs.values())
        if static and not (self._lowered and known(self._lowered)):
            for training in (False, True):
                model = infer_types(self._forms[training][0], strict=False)
                lower(model, list(self.model.outputs), external(model, self._parameters))
            if self._lowered:
                remember(self._lowered)

    def _real_type(self) -> np.dtype:
        found = set()
        graph = self.model.graph
        # Scales are float32 in every network.
        scales = {
            getattr(op, "scales", None) for op in graph.operations if op.op_type in ("Resize", "Upsample")
        }
        for name, value in graph.types().items():
            if name in scales:
                continue
            dtype = getattr(value, "dtype", None)
            if dtype is not None and is_floating(dtype):
                found.add(dtype.name)
        if len(found) > 1 or not found <= set(_REALS):
            names = ", ".join(sorted(found))
            raise UserError(
                f"the network has values of type {names}; generated code is all float32 or all float64: "
                "choose it with precision='float32' or 'float64'"
            )
        return np.dtype(found.pop() if found else "float32")

    def _pack(self) -> None:
        """Lay all parameters out in one array; ``self._tensors`` has views of it."""
        names = list(self._parameters)
        if self.ranks.communicator is not None:
            names = order_of_use(self._forms[True][0].graph, names)
        shapes = {name: self._tensors[name].shape for name in names}
        self.packing = Packing.of(shapes)
        self.packed = aligned_zeros(self.packing.size, self.real)
        for name in self._parameters:
            view = self.view(self.packed, name)
            view[...] = self._tensors[name]
            self._tensors[name] = view

    def view(self, array: np.ndarray, name: str) -> np.ndarray:
        """The part of a packed array that belongs to one parameter."""
        begin, shape = self.packing.offsets[name], self.packing.shapes[name]
        return array[begin : begin + math.prod(shape)].reshape(shape)

    # -- running -----------------------------------------------------------------------------------

    def inference(
        self, inputs: Mapping[str, Any], outputs: Sequence[str] | None = None
    ) -> dict[str, np.ndarray]:
        wanted = self._select_outputs(inputs, outputs)
        arrays = self._feed(inputs)
        form = Form(wanted, shapes_of(arrays))
        return self._run(form, arrays)

    def inference_and_backprop(
        self,
        inputs: Mapping[str, Any],
        loss: str = "loss",
        outputs: Sequence[str] | None = None,
        wrt: Sequence[str] | None = None,
        cotangent: np.ndarray | None = None,
    ) -> dict[str, np.ndarray]:
        self._check_loss(inputs, loss, cotangent is None)
        wanted = self._select_outputs(inputs, outputs)
        wanted = wanted if loss in wanted else (*wanted, loss)
        variables = self._check_wrt(wrt)
        exchange = self.ranks.bytes_if_asked
        arrays, idle = self._feed_some(inputs, exchange)
        form, updates = self._forms[True]
        chosen = self._updates(updates, form, inputs)
        if exchange and cotangent is not None:
            raise UserError(
                "reduce_gradients=True averages the gradients of a loss; it takes no cotangent of one rank"
            )
        key = Form(
            wanted,
            shapes_of(arrays),
            loss,
            variables,
            cotangent is not None,
            tuple(chosen.items()),
            exchange=exchange,
        )
        if cotangent is not None:
            arrays[COTANGENT] = self._cotangent(loss, cotangent, arrays)
        return self._run(key, arrays, idle=idle)

    def train_step(
        self,
        inputs: Mapping[str, Any],
        loss: str,
        outputs: Sequence[str] | None,
        optimizer: str,
        state: dict[str, np.ndarray],
    ) -> dict[str, np.ndarray]:
        """Forward, backward and the update of an optimizer in one call.

        Args:
            inputs, loss, outputs: as for :meth:`inference_and_backprop`. With several ranks the first
                dimension of the inputs may be 0 on some: they take part without a pass, and give out a loss
                that is NaN.
            optimizer: a name of :data:`updates.UPDATES`.
            state: its slots (packed arrays) and settings (numbers) by tensor name.
        """
        self._check_loss(inputs, loss)
        wanted = self._select_outputs(inputs, outputs)
        wanted = wanted if loss in wanted else (*wanted, loss)
        exchange = self.ranks.bytes_if_training
        arrays, idle = self._feed_some(inputs, exchange)
        form, updates = self._forms[True]
        chosen = self._updates(updates, form, inputs)
        key = Form(
            wanted,
            shapes_of(arrays),
            loss,
            tuple(self._parameters),
            False,
            tuple(chosen.items()),
            optimizer,
            exchange,
        )
        return self._run(key, arrays, state, idle)

    def _cotangent(self, loss: str, cotangent: np.ndarray, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        model = with_shapes(self._forms[True][0], {n: a.shape for n, a in arrays.items()})
        shape = getattr(model.outputs[loss], "shape", None)
        check_cotangent(loss, self.real, shape or (), cotangent)
        return np.asarray(cotangent, self.real, order="C")

    def _feed_some(self, inputs: Mapping[str, Any], exchange: int) -> tuple[dict[str, np.ndarray], bool]:
        """The inputs as arrays, and whether they stand in for a batch without samples."""
        if exchange:
            arrays = {name: self._as_input(name, value) for name, value in inputs.items()}
            if has_no_samples(arrays):
                before = self._last_exchange.shapes if self._last_exchange is not None else ()
                return stand_ins(arrays, before), True
        return self._feed(inputs), False

    def _feed(self, inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
        arrays = {name: np.asarray(self._as_input(name, value), order="C") for name, value in inputs.items()}
        for name, array in arrays.items():
            if array.size == 0:
                raise UserError(
                    f"input '{name}' has shape {list(array.shape)}: generated code needs elements"
                )
        self._check_shapes({name: array.shape for name, array in arrays.items()})
        return arrays

    def _run(
        self,
        form: Form,
        fed: dict[str, np.ndarray],
        state: Mapping[str, np.ndarray] | None = None,
        idle: bool = False,
    ) -> dict[str, np.ndarray]:
        executable = self.executable(form)
        manifest = executable.manifest
        arrays: dict[str, np.ndarray] = {}
        self._last = {}
        for name, shape, kind in manifest.external:
            if name in fed:
                arrays[name] = fed[name]
            elif name == RANDOM:
                arrays[name] = np.array([self.seed, self._runs], np.int64)
            elif state and name in state:
                arrays[name] = state[name]
            elif name == manifest.parameters:
                arrays[name] = self.packed
            elif name in manifest.constants:
                arrays[name] = self._constant(manifest, name, kind)
            elif name in self._tensors:
                arrays[name] = self._contiguous(name)
            else:
                arrays[name] = self._buffer(name, shape, self._dtype(kind))
        if form.exchange:
            self._last_exchange = form
            executable.share(self.ranks, idle)
        executable.run(arrays)
        self._runs += 1
        found = {name: arrays[manifest.outputs[name]] for name in form.outputs}
        if idle:
            found = {form.loss: np.full((), np.nan, self.real)}
        self._last = {name: fed[name] for name in fed if name != COTANGENT} | found
        for name, tensor in manifest.gradients.items():
            array = arrays[tensor]
            packed_gradients = tensor == manifest.packed_gradients
            self._last[GRADIENT_PREFIX + name] = self.view(array, name) if packed_gradients else array
        for statistic, _ in form.updates:
            self._tensors[statistic] = np.array(arrays[manifest.updates[statistic]])
        return found

    def _dtype(self, kind: str) -> np.dtype:
        return self.real if kind == REAL else np.dtype(kind)

    def _contiguous(self, name: str) -> np.ndarray:
        array = self._tensors[name]
        if not array.flags.c_contiguous or array.dtype.byteorder == ">":
            array = self._tensors[name] = np.asarray(array, array.dtype.newbyteorder("="), order="C")
        return array

    def _constant(self, manifest: Manifest, name: str, kind: str) -> np.ndarray:
        array = manifest.constants[name]
        dtype = self._dtype(kind)
        if array.dtype != dtype or not array.flags.c_contiguous:
            array = manifest.constants[name] = np.asarray(array, dtype, order="C")
        return array

    def _buffer(self, name: str, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """An array for a result: the one of the last run if nobody else holds it any more."""
        array = self._buffers.pop(name, None)
        # Two references: this variable and the argument of getrefcount.
        if array is None or array.shape != shape or array.dtype != dtype or sys.getrefcount(array) > 2:
            array = np.empty(shape, dtype)
        self._buffers[name] = array
        return array

    # -- generating --------------------------------------------------------------------------------

    def executable(self, form: Form) -> Executable:
        """The executable of a form, compiled now if need be.

        Raises:
            UserError: the compiler fails, or memory does not suffice.
            UnsupportedOperation: a node that cannot be generated.
        """
        if form not in self._executables:
            options = self._schedule_options()
            key = program_key(
                self._digest,
                self.target,
                form,
                options,
                self.adjoint,
                self._with_zeros,
                self._toolchain(form),
            )
            manifest = Manifest.load(key)
            if manifest is None:
                manifest = self._built(form)
                manifest.save(key)
            self._executables[form] = Executable(
                manifest, lambda: self.planned(form)[0], self.ranks.communicator
            )
        return self._executables[form]

    @property
    def _collective(self) -> bool:
        """Whether the network is that of a block and exchanges messages with others between its layers."""
        return any(isinstance(op, HaloExchange | AllReduce) for op in self.model.graph.operations)

    def _toolchain(self, form: Form) -> str:
        """The name of the toolchain, with what tells one generator, and one MPI library, from another."""
        if self.toolchain == COMPILER:
            uses = form.exchange or self._collective
            return f"{self.toolchain} {mpi.mpi_library().identity}" if uses else self.toolchain
        from meta500.backends.generated.exaslang.generator import identity

        return f"{self.toolchain} {identity()}"

    def _built(self, form: Form) -> Manifest:
        if self.toolchain == EXASTENCILS:
            return self._through_exastencils(form)
        plan, parameters, gradients = self.planned(form)
        library = mpi.mpi_library() if form.exchange or self._collective else None
        return build(plan, self.target, parameters, gradients, library)

    def _through_exastencils(self, form: Form) -> Manifest:
        from meta500.backends.generated.exaslang import library

        if self._collective:
            raise UserError("toolchain 'exastencils' has no messages between blocks; use 'compiler'")
        if form.optimizer or form.cotangent:
            raise UserError(
                "toolchain 'exastencils' runs losses and gradients: take a reference optimizer, "
                "meta500.optimizers, and no cotangent"
            )
        options = self._schedule_options()
        stages = fused(self.stages(form))
        return library.build(
            stages, self.packing, options.real, options.threads, self.target, bool(form.variables)
        )

    def planned(self, form: Form) -> tuple[Schedule, str, str]:
        """The schedule of a form, and the names of its packed parameters and gradients ("" for none)."""
        program, parameters, gradients = self.program(form)
        return schedule(program, self._schedule_options()), parameters, gradients

    def needs(self, outputs: Sequence[str]) -> frozenset[str]:
        """The inputs that outputs depend on."""
        return frozenset().union(*(self._needs.get(name, frozenset()) for name in outputs))

    def _schedule_options(self) -> Options:
        threads = self.threads if self.threads is not None else len(os.sched_getaffinity(0))
        return Options(
            _REALS[self.real.name],
            threads,
            self.target.vector_bytes,
            self.target.registers,
            self.profile,
            winograd=self.winograd,
        )

    def program(self, form: Form) -> tuple[Program, str, str]:
        """The fused stages of a form, and the names of its packed parameters and gradients ("" for none)."""
        return joined(self.stages(form), form, self.packing, self._with_zeros, self.real.itemsize)

    def stages(self, form: Form) -> Program:
        """The stages of a form, forward and backward, before anything is joined."""
        return stages_of(form, self._forms[bool(form.loss)][0], self._parameters, self.adjoint)

    # -- tensors -----------------------------------------------------------------------------------

    def assign(self, name: str, tensor: Any) -> None:
        tensor = self._replacement(name, tensor)
        if name in self.packing.offsets:
            if tensor is not self._tensors[name]:
                self._tensors[name][...] = tensor
            return
        self._tensors[name] = tensor
        baked = any(name in e.manifest.baked for e in self._executables.values())
        if baked or name not in external(self.model, self._parameters):
            # Its value may be part of the generated code.
            graph = self.model.graph
            initializers = {**graph.initializers, name: tensor}
            self.model = self.model.with_graph(replace(graph, initializers=initializers))
            self._check_coverage()  # its digest is another one now
            self._rebuild()

    def join_ranks(self, facts: Mapping[str, Any]) -> None:
        """Take the parameters of rank 0; collective where there are several ranks.

        Args:
            facts: further ones that all ranks must have in common, by name.

        Raises:
            UserError: on all ranks, if they do not have the same network or facts.
        """
        if self.ranks.size > 1:
            shared = network_facts(self._forms[True][0].graph, self.packing.shapes, self.real)
            if self._collective:
                # Blocks of an image at its border have other operations and shares than those inside.
                own = ("operations", "fixed tensor")
                shared = {name: fact for name, fact in shared.items() if not name.startswith(own)}
            self.ranks.join(self.packed, {**shared, **facts})

    def timeline(self) -> list[tuple[str, str, int, int, int]]:
        """Times of the last step that reduced over ranks: lane, name, begin, end and bytes.

        The form is that of ``meta500.distributed.Timeline.extend``; begin and end are nanoseconds of
        ``time.perf_counter_ns``. Lanes: "compute", kernels of thread 0, in regions of images those of its
        last one; "communication", reductions of gradients and statistics; "agreement", the small ones beside
        them; "waiting", thread 0 when only reductions are left; "regions".
        """
        form = self._last_exchange
        return self._executables[form].spans() if form in self._executables else []

    def random_state(self) -> dict[str, Any]:
        # Masks follow from the seed and the number of the run.
        return {"backend": self.backend, "seed": self.seed, "runs": self._runs}

    def restore_random_state(self, state: Mapping[str, Any]) -> None:
        if state.get("backend") != self.backend:
            super().restore_random_state(state)
            return
        self.seed, self._runs = int(state["seed"]), int(state["runs"])

    def native_optimizer(self, name: str, loss: str = "loss", **hyperparameters: Any) -> Any:
        self._check_open()
        from meta500.backends.generated.optimizers import create

        return create(self, name, loss, hyperparameters)

    def close(self) -> None:
        super().close()
        for executable in self._executables.values():
            executable.close()
        self._tensors, self._last, self._executables, self._buffers = {}, {}, {}, {}
        self.ranks.close()


def _has_zero(array: np.ndarray) -> bool:
    """Whether a bias has an element that is exactly 0; larger tensors are no biases."""
    return array.ndim == 1 and not array.all()


def aligned_zeros(size: int, dtype: np.dtype) -> np.ndarray:
    """Zeros that begin at a multiple of 64 bytes."""
    raw = np.zeros(size * dtype.itemsize + 64, np.uint8)
    begin = -raw.ctypes.data % 64
    return raw[begin : begin + size * dtype.itemsize].view(dtype)
