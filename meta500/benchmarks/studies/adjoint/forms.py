"""The forms of an adjoint: the loops that the generated backend makes of it, compiled, on numpy arrays."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from meta500.backends.generated.adjoint import differentiate, without_dead_stages
from meta500.backends.generated.fusion import fused
from meta500.backends.generated.ir import ATOMICS, GATHER, REDUCTION, Program
from meta500.backends.generated.library import Executable, build
from meta500.backends.generated.nests import Nest
from meta500.backends.generated.schedule import Options, Schedule, schedule
from meta500.backends.targets import Target, native_target
from meta500.benchmarks.studies.adjoint.subjects import COTANGENT, Subject
from meta500.errors import UnsupportedOperation

SERIAL_SCATTER, SERIAL_GATHER = "serial scatter", "serial gather"
SERIAL = (SERIAL_SCATTER, SERIAL_GATHER)
PARALLEL = (GATHER, REDUCTION, ATOMICS)
FORMS = (*SERIAL, *PARALLEL)
# The loops of the serial scatter are those of the atomic form; one thread needs no protection.
_METHODS = {SERIAL_SCATTER: ATOMICS, SERIAL_GATHER: GATHER}
_REAL_BYTES = 4
_ALIGNMENT = 64


class NothingToProtect(Exception):
    """No two threads would write the same element, so that this form is the gather; the message says why."""


@dataclass(frozen=True)
class Planned:
    """An adjoint with its loops decided."""

    form: str
    program: Program
    schedule: Schedule

    @property
    def gradient(self) -> str:
        """The tensor that holds the gradient."""
        (name,) = self.program.gradients.values()
        return name

    @property
    def private_bytes(self) -> int:
        """Bytes of private copies of all threads."""
        return self.schedule.partial_bytes * self.schedule.options.threads


def adjoint_program(subject: Subject, method: str) -> Program:
    """The backward loops alone, by one method; no form of any loop is decided in another place."""
    program = differentiate(
        subject.program, subject.target, [subject.variable], cotangent=COTANGENT, method=method
    )
    program = without_dead_stages(replace(program, outputs={}), list(program.gradients.values()))
    return fused(program)


def planned(subject: Subject, form: str, threads: int, target: Target | None = None) -> Planned:
    """The loops of one form.

    Args:
        subject: what is differentiated.
        form: of :data:`FORMS`.
        threads: of the parallel forms, at least 2.
        target: the processor; default: this machine's.

    Raises:
        UserError: the adjoint cannot be gathered.
        NothingToProtect: the form "reduction" has no private copy, or "atomics" no atomic addition.
    """
    target = target or native_target()
    program = adjoint_program(subject, _METHODS.get(form, form))
    options = Options(
        "float",
        1 if form in SERIAL else threads,
        target.vector_bytes,
        target.registers,
        # The same products in every form, and no form but some in register blocks.
        winograd=False,
        register_blocks=False,
        private_sums=form != GATHER,
    )
    found = Planned(form, program, schedule(program, options))
    atomic = any(
        isinstance(kernel.nest, Nest) and kernel.nest.atomic
        for step in found.schedule.steps
        for kernel in step.kernels
    )
    if (form == REDUCTION and not found.schedule.partial_bytes) or (form == ATOMICS and not atomic):
        stages = [stage.verdict for stage in program.stages if stage.verdict]
        raise NothingToProtect("; ".join(dict.fromkeys(stages)) or "no element has two writers")
    return found


def predicted_private_bytes(subject: Subject, threads: int) -> int:
    """Bytes of private copies that follow from the loops: per thread what each shared sum writes."""
    from meta500.backends.generated.transposition import conflict

    program = adjoint_program(subject, REDUCTION)
    total = 0
    for stage in program.stages:
        tensor = program.tensors[stage.write.tensor]
        longest = max((axis.size for axis in stage.kept), default=1)
        terms = max((axis.size for axis in stage.reduced), default=0)
        if stage.method == REDUCTION and (conflict(stage, tensor.shape) is not None or terms > longest):
            total += -(-tensor.size * _REAL_BYTES // _ALIGNMENT) * _ALIGNMENT
    return total * threads


class Compiled:
    """A form that can be run.

    Args:
        subject: what is differentiated.
        plan: its loops.

    Raises:
        UserError: the compiler is missing or fails, or memory does not suffice.
    """

    def __init__(self, subject: Subject, plan: Planned) -> None:
        self.plan = plan
        manifest = build(plan.schedule, native_target(), "", "")
        self.executable = Executable(manifest, lambda: plan.schedule)
        self.arrays = {}
        for name, shape, _ in manifest.external:
            given = subject.arrays.get(name)
            # What nobody writes must not look like a result.
            self.arrays[name] = np.full(shape, np.nan, np.float32) if given is None else given
        if plan.gradient not in self.arrays:
            raise UnsupportedOperation(
                node=subject.name, op_type=subject.operator, domain="", since_version=0, backend="generated",
                reason=f"the gradient by {subject.variable} is not handed out",
            )  # fmt: skip

    def use_threads(self, count: int) -> None:
        """Let the coming runs use so many threads."""
        self.executable.use_threads(count)

    def run(self) -> np.ndarray:
        """The gradient; the same array every time."""
        self.executable.run(self.arrays)
        return self.arrays[self.plan.gradient]

    def close(self) -> None:
        """Free its memory."""
        self.executable.close()


def compiled(subject: Subject, form: str, threads: int) -> Compiled:
    """A form, compiled; see :func:`planned` and :class:`Compiled`."""
    return Compiled(subject, planned(subject, form, threads))
