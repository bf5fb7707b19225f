"""Derives the backward stages of a program from its forward stages.

For a stage ``y[f] += e(x[g], ...)`` and the gradient dy of y, every load of x contributes
``dx[g] += dy[f] * de/dx[g]`` over the same iterations. Where different iterations add to the same element of
dx, exclusive-access analysis decides how that is done: by gathering after a change of variables (the adjoint
of a stencil is the transposed stencil), by a reduction, or by atomic additions. Nothing here knows of
operators: that the adjoint of a convolution is a convolution follows from the indices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from meta500.backends.generated.affine import Affine
from meta500.backends.generated.expressions import (
    ONE,
    ZERO,
    Access,
    Constant,
    Expr,
    Index,
    Load,
    call,
    derivative,
    loads,
    mul,
    rewrite,
    select,
)
from meta500.backends.generated.ir import (
    ATOMICS,
    GATHER,
    GRADIENT,
    INPUT,
    MAX,
    REAL,
    REDUCTION,
    SET,
    SUM,
    VALUE,
    Axis,
    Program,
    Stage,
    Tensor,
)
from meta500.backends.generated.transposition import conflict, covers, gathered
from meta500.errors import UserError, choose

AUTO = "auto"
METHODS = (AUTO, GATHER, REDUCTION, ATOMICS)
PREFIX = "grad/"


def differentiate(
    program: Program,
    target: str,
    variables: Sequence[str],
    *,
    cotangent: str | None = None,
    method: str = AUTO,
) -> Program:
    """The program followed by the stages that compute gradients.

    Args:
        program: forward stages.
        target: the tensor that is differentiated.
        variables: tensors to differentiate by; their gradients are listed in ``gradients`` of the result.
        cotangent: name of an input of the target's shape, which is added if there is none; the gradients are
            those of the sum of cotangent * target. Without it the target has one element.
        method: "auto", or "gather", "reduction" or "atomics" for all additions that may collide.

    Raises:
        UserError: an unknown method, "gather" where it is impossible, or a target that is no scalar.
    """
    choose("method of adjoints", method, METHODS)
    for name in (target, *variables):
        if name not in program.tensors:
            raise UserError(f"program '{program.name}' has no tensor '{name}'")
    result = replace(
        program,
        tensors=dict(program.tensors),
        stages=list(program.stages),
        gradients={},
        outputs=dict(program.outputs),
    )
    if cotangent is None and program.tensors[target].size != 1:
        raise UserError(
            f"'{target}' has shape {list(program.tensors[target].shape)}; "
            "without a cotangent only a scalar can be differentiated"
        )
    if cotangent is not None and cotangent not in result.tensors:
        result.tensors[cotangent] = Tensor(cotangent, program.tensors[target].shape, role=INPUT)
    sweep = _Sweep(result, _active(program, target, variables), method)
    sweep.bars[target] = ONE if cotangent is None else cotangent
    for stage in reversed(program.stages):
        sweep.visit(stage)
    for name in variables:
        bar = sweep.bars.get(name)
        if not isinstance(bar, str):
            bar = sweep.filled(name, ZERO if bar is None else bar)
        result.gradients[name] = bar
    return result


def _active(program: Program, target: str, variables: Sequence[str]) -> set[str]:
    """Tensors that depend on a variable and on which the target depends."""
    forward = set(variables)
    for stage in program.stages:
        reads = {load.access.tensor for load in stage.loads() if not load.held}
        if reads & forward:
            forward.add(stage.write.tensor)
    backward = {target}
    for stage in reversed(program.stages):
        if stage.write.tensor in backward:
            backward |= {load.access.tensor for load in stage.loads() if not load.held}
    return {name for name in forward & backward if program.tensors[name].dtype == REAL}


@dataclass
class _Sweep:
    """One pass over the forward stages from the last to the first."""

    program: Program
    active: set[str]
    method: str
    # The gradient of a tensor: the tensor that holds it, or a number that all its elements have.
    bars: dict[str, str | Constant] = field(default_factory=dict)
    # Where the ties of a maximum are counted, by stage.
    counted: dict[str, str] = field(default_factory=dict)
    # Tensors that hold more than what one stage wrote.
    summed: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.summed = {stage.write.tensor for stage in self.program.stages if stage.onto}

    def visit(self, stage: Stage) -> None:
        """Add the adjoint stages of one forward stage."""
        bar = self.bars.get(stage.write.tensor)
        if bar is None or stage.write.tensor not in self.active:
            return
        if stage.message is not None:
            self.exchanged_back(stage, bar)
            return
        if stage.finish is not None:
            raise ValueError(f"stage {stage.name} is differentiated after it was fused")
        upstream: Expr = bar if isinstance(bar, Constant) else Load(Access(bar, stage.write.indices))
        for load in loads(stage.value):
            if load.held or load.access.tensor not in self.active:
                continue
            if stage.combine == MAX:
                value = self.of_maximum(stage, upstream, load)
            else:
                slope = derivative(stage.value, load)
                if stage.write.tensor not in self.summed:
                    slope = _through_result(slope, stage)
                value = mul(upstream, slope)
            if value != ZERO:
                self.contribute(stage, load.access, value, stage.axes, stage.guards)
        for load in loads(stage.initial):
            if load.held or load.access.tensor not in self.active:
                continue
            assert stage.initial is not None
            value = mul(upstream, derivative(stage.initial, load))
            if value != ZERO:
                self.contribute(stage, load.access, value, stage.kept, ())

    def exchanged_back(self, stage: Stage, bar: str | Constant) -> None:
        """The transposed messages, which change the gradient in place."""
        assert stage.message is not None
        tensor = self.program.tensors[stage.write.tensor]
        if isinstance(bar, Constant):
            bar = self.filled(tensor.name, bar)
        elif self.program.tensors[bar].role == INPUT:
            given = Load(Access(bar, stage.write.indices))
            bar = self.new(tensor)
            name = self.program.unique_stage(f"{bar}.copy")
            write = replace(stage.write, tensor=bar)
            origin = f"gradient of {tensor.name}"
            self.program.stages.append(Stage(name, origin, stage.axes, write, given, SET))
        here = replace(stage.write, tensor=bar)
        self.program.stages.append(
            replace(
                stage,
                name=self.program.unique_stage(f"{stage.name}.d_{tensor.name}"),
                origin=f"adjoint of {stage.origin}",
                write=here,
                value=Load(here),
                message=stage.message.adjoint,
            )
        )

    def of_maximum(self, stage: Stage, upstream: Expr, load: Load) -> Expr:
        """The gradient goes to the iteration that won, or in equal parts to all that reach the maximum."""
        slope = derivative(stage.value, load)
        if stage.winner is not None:
            place, number = stage.winner
            return select(call("equal", Load(place), Index(number)), mul(upstream, slope), ZERO)
        won = call("equal", stage.value, Load(stage.write))
        share = call("div", upstream, Load(self.ties(stage, won)))
        return select(won, mul(share, slope), ZERO)

    def ties(self, stage: Stage, won: Expr) -> Access:
        """Where it is counted how many iterations of a maximum reach it."""
        if stage.name not in self.counted:
            tensor = self.program.tensors[stage.write.tensor]
            self.counted[stage.name] = name = self.program.unique(f"{tensor.name}.ties")
            self.program.tensors[name] = replace(tensor, name=name, role=VALUE)
            self.program.stages.append(
                replace(
                    stage,
                    name=self.program.unique_stage(name),
                    origin=f"ties of {stage.origin}",
                    write=replace(stage.write, tensor=name),
                    value=select(won, ONE, ZERO),
                    combine=SUM,
                    initial=None,
                )
            )
        return replace(stage.write, tensor=self.counted[stage.name])

    def contribute(
        self, stage: Stage, access: Access, value: Expr, axes: tuple[Axis, ...], guards: tuple
    ) -> None:
        """Add ``value`` to the gradient at ``access`` for all iterations."""
        tensor = self.program.tensors[access.tensor]
        bar = self.bars.get(tensor.name)
        if isinstance(bar, Constant):
            bar = self.filled(tensor.name, bar)
        defined = bar is not None
        if bar is None:
            bar = self.new(tensor)
        raw = Stage(
            name=f"{stage.name}.d_{tensor.name}",
            origin=f"adjoint of {stage.origin} by {tensor.name}",
            axes=axes,
            write=Access(bar, access.indices),
            value=value,
            combine=SUM,
            guards=guards,
        ).simplified()
        pieces = self.judged(raw, tensor.shape)
        complete = covers(pieces, tensor.shape) and pieces[0].method == GATHER
        if not defined and not complete:
            self.fill(bar, tensor, ZERO)
        onto = defined or not complete
        for piece in pieces:
            name = self.program.unique_stage(piece.name)
            self.program.stages.append(replace(piece, name=name, onto=onto).simplified())

    def judged(self, raw: Stage, shape: tuple[int, ...]) -> list[Stage]:
        """The contribution in the form that exclusive-access analysis (or the user) chooses."""
        trouble = conflict(raw, shape)
        shared = ", ".join(axis.name for axis in raw.reduced)
        if trouble is None:
            own = ", ".join(axis.name for axis in raw.kept) or "nothing"
            verdict = f"reads were exclusive over {own}"
            if shared:
                verdict += f"; shared over {shared}: each element sums over them"
            if self.method in (REDUCTION, ATOMICS) and shared:
                return [replace(raw, method=self.method, verdict=f"{verdict} (forced)")]
            return [replace(raw, method=GATHER, verdict=verdict)]
        if self.method in (REDUCTION, ATOMICS):
            return [replace(raw, method=self.method, verdict=f"{trouble.reason} (forced)")]
        pieces = gathered(raw, shape)
        if pieces is None:
            if self.method == GATHER:
                raise UserError(f"{raw.origin}: cannot gather, {trouble.reason}; use reduction or atomics")
            verdict = f"{trouble.reason}, which cannot be solved for one axis"
            return [replace(raw, method=ATOMICS, verdict=verdict)]
        phases = f" in {len(pieces)} phases" if len(pieces) > 1 else ""
        verdict = f"{trouble.reason}; transposed{phases}, every element collects its own sum"
        return [replace(piece, method=GATHER, verdict=verdict) for piece in pieces]

    def new(self, tensor: Tensor) -> str:
        name = self.program.unique(PREFIX + tensor.name)
        self.program.tensors[name] = replace(tensor, name=name, role=GRADIENT)
        self.bars[tensor.name] = name
        return name

    def fill(self, name: str, tensor: Tensor, value: Constant) -> None:
        axes = tuple(Axis(f"d{i}", size) for i, size in enumerate(tensor.shape))
        write = Access(name, tuple(Affine.axis(axis.name) for axis in axes))
        stage = self.program.unique_stage(f"{name}.fill")
        self.program.stages.append(Stage(stage, f"gradient of {tensor.name}", axes, write, value, SET))

    def filled(self, variable: str, value: Constant) -> str:
        """The gradient of ``variable`` as a tensor with one value everywhere."""
        tensor = self.program.tensors[variable]
        name = self.new(tensor)
        self.fill(name, tensor, value)
        return name


def _through_result(expr: Expr, stage: Stage) -> Expr:
    """Read what the forward stage wrote instead of computing it again."""
    if stage.combine != SET or isinstance(stage.value, Load | Constant):
        return expr
    written = Load(stage.write)
    return rewrite(expr, lambda e: written if e == stage.value else None)


def without_dead_stages(program: Program, wanted: Sequence[str]) -> Program:
    """Only the stages (and winners of maxima) on which the wanted tensors depend."""
    needed = set(wanted)
    kept: list[Stage] = []
    for stage in reversed(program.stages):
        if not needed.intersection(stage.writes()):
            continue
        if stage.winner is not None and stage.winner[0].tensor not in needed:
            stage = replace(stage, winner=None)
        needed |= {load.access.tensor for load in stage.loads()}
        kept.append(stage)
    kept.reverse()
    used = {name for stage in kept for name in (*stage.reads(), *stage.writes())} | needed
    tensors = {n: t for n, t in program.tensors.items() if n in used or t.role == INPUT}
    constants = {n: c for n, c in program.constants.items() if n in tensors}
    return replace(program, stages=kept, tensors=tensors, constants=constants)
