"""Stages of the loop-nest IR as functions of a layer-4 program.

A stage that writes pictures becomes a loop over the cells of the level on which it runs, windows written out
as offsets; one that sums over pixels becomes a reduction into a local matrix that is zero before (under MPI,
what a reduction begins with would count once per process). Guards become zeros in the ghost layers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from meta500.backends.generated.affine import Affine
from meta500.backends.generated.exaslang.bodies import KNOWN, Body, stored_once, whole
from meta500.backends.generated.exaslang.names import Names
from meta500.backends.generated.exaslang.pictures import (
    Loop,
    Picture,
    Tensors,
    check_guards,
    columns,
    loop_of,
    offsets,
    refuse,
    tensors_of,
)
from meta500.backends.generated.exaslang.tree import (
    CLOSE,
    INT,
    OPEN,
    REAL,
    Assignment,
    Binary,
    Call,
    Comment,
    Communicate,
    Declaration,
    Element,
    Expression,
    Field,
    FieldAccess,
    FieldLoop,
    If,
    Integer,
    Layout,
    MatrixType,
    Name,
    Native,
    Number,
    Repeat,
    Statement,
)
from meta500.backends.generated.exaslang.variant import INNERMOST, Variant
from meta500.backends.generated.exaslang.windows import over_windows
from meta500.backends.generated.expressions import Access, Apply, Constant, walk
from meta500.backends.generated.ir import INPUT, MAX, SET, Axis, Program, Stage
from meta500.errors import UserError

FORWARD, LOSS, BACKWARD = "forward", "loss", "backward"
_LOSSES = ("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss", "MeanSquaredError")


@dataclass
class Translation:
    """The parts of a layer-4 program that follow from a network's stages.

    Attributes:
        tensors: as fields and variables.
        names: that are taken.
        top: the finest level.
        bottom: the coarsest level.
        ghost: width of the ghost layers.
        phases: statements of the forward pass, the loss and the backward pass.
    """

    tensors: Tensors
    names: Names
    top: int
    bottom: int
    ghost: int = 1
    phases: dict[str, list[Statement]] = field(default_factory=lambda: {FORWARD: [], LOSS: [], BACKWARD: []})

    def layouts(self, variant: Variant) -> list[Layout]:
        """One layout per matrix size and level."""
        found: dict[tuple[int, int, int], Layout] = {}
        for picture in self.tensors.pictures.values():
            key = (picture.images, picture.channels, picture.level)
            height, width = picture.size
            inner = (width // variant.blocks[0], height // variant.blocks[1])
            name = _layout(picture)
            held = columns(picture.channels) if picture.images == 1 else picture.channels
            found[key] = Layout(name, picture.level, picture.images, held, inner, self.ghost)
        return [found[key] for key in sorted(found)]

    def fields(self) -> list[Field]:
        """All fields."""
        return [Field(p.field, _layout(p), p.level) for p in self.tensors.pictures.values()]

    def variables(self) -> list[Declaration]:
        """Parameters, gradients and numbers, all zero."""
        return [
            matrix(a.variable, a.size) if a.shape else number(a.variable)
            for a in self.tensors.arrays.values()
        ]

    def inputs(self, program: Program) -> dict[str, Picture]:
        """The fields that are fed, by the program's input."""
        pictures = self.tensors.pictures
        return {n: pictures[n] for n, t in program.tensors.items() if t.role == INPUT and n in pictures}


def number(name: str, value: float = 0.0) -> Declaration:
    """The declaration of a number."""
    return Declaration(name, REAL, Number(value))


def matrix(name: str, size: int) -> Declaration:
    """The declaration of a matrix of one row, all zero."""
    return Declaration(name, MatrixType(1, columns(size)), Number(0.0))


def elements(picture: Picture, statement: Statement) -> FieldLoop:
    """A loop on the host over all elements of a field; ``statement`` has the counters batch and channel."""
    channels = (Declaration("channel", INT, Integer(0)), Repeat(picture.channels, "channel", (statement,)))
    body = (Declaration("batch", INT, Integer(0)), Repeat(picture.images, "batch", channels))
    return FieldLoop(picture.field, picture.level, body, sequential=True)


def _layout(picture: Picture) -> str:
    return f"Layout_{picture.images}_{picture.channels}"


def translate(program: Program, variant: Variant, faults: bool = False) -> Translation:
    """The parts of a program of stages.

    Args:
        program: stages in order, parameters not packed.
        variant: what runs it.
        faults: whether faults of the data, such as labels that are no class, are counted.

    Raises:
        UserError: what layer-4 code can't express, with the name of the node; blocks that do not fit.
    """
    if not faults:
        stages = [stage for stage in program.stages if stage.write.tensor not in program.faults]
        program = replace(program, stages=stages, faults={})
    names = Names()
    tensors = tensors_of(program, names, variant.blocks)
    levels = sorted(tensors.levels.values())
    result = Translation(tensors, names, levels[-1], levels[0])
    _check_blocks(tensors, variant)
    fresh: dict[str, bool] = {}
    for stage in program.stages:
        _check_functions(stage)
        stage = over_windows(stage, tensors.pictures)
        check_guards(stage, program, tensors)
        translated = _Stage(stage, program, result, variant)
        phase = result.phases[_phase(stage)]
        phase.append(Comment(stage.origin or stage.name))
        for name, reach in translated.reaches().items():
            result.ghost = max(result.ghost, reach)
            if variant.halo and not fresh.get(name):
                picture = tensors.pictures[name]
                phase.append(Communicate(picture.field, picture.level))
                fresh[name] = True
        phase.extend(translated.statements())
        for name in stage.writes():
            fresh[name] = False
    across, down = variant.blocks
    smallest = min(min(height // down, width // across) for height, width in tensors.levels)
    if result.ghost > smallest:
        raise _too_small(result.ghost, smallest, variant)
    return result


def _phase(stage: Stage) -> str:
    if stage.method:
        return BACKWARD
    return LOSS if any(f"{name} " in f"{stage.origin} " for name in _LOSSES) else FORWARD


def _check_functions(stage: Stage) -> None:
    for expr in (stage.value, stage.initial, stage.finish):
        for node in walk(expr) if expr is not None else ():
            if isinstance(node, Apply) and node.function not in KNOWN:
                raise refuse(stage, f"the function {node.function}")
            if isinstance(node, Constant) and not math.isfinite(node.value):
                raise refuse(stage, f"the number {node.value}")


def _check_blocks(tensors: Tensors, variant: Variant) -> None:
    for height, width in tensors.levels:
        if width % variant.blocks[0] or height % variant.blocks[1]:
            raise UserError(
                f"pictures of {height} x {width} pixels can't be cut into {variant.blocks[0]} x "
                f"{variant.blocks[1]} equal blocks (columns x rows)"
            )


def _too_small(ghost: int, smallest: int, variant: Variant) -> UserError:
    return UserError(
        f"windows reach {ghost} pixels, more than the blocks of the coarsest level have: {smallest} pixels "
        f"in one direction, with {' x '.join(map(str, variant.blocks))} blocks (columns x rows)"
    )


class _Stage:
    """One stage on its way into statements."""

    def __init__(self, stage: Stage, program: Program, result: Translation, variant: Variant) -> None:
        self.stage, self.result, self.variant = stage, result, variant
        self.tensors = result.tensors
        self.loop = loop_of(stage, self.tensors)
        self.counters = _counters(self.loop)
        self._locals: dict[str, int] = {}

    # -- parts ------------------------------------------------------------------------------------

    def local(self, base: str) -> str:
        self._locals[base] = self._locals.get(base, 0) + 1
        return f"{base}_{self._locals[base]}"

    def reaches(self) -> dict[str, int]:
        """Pictures that are read beside the cell of the loop, and how far."""
        found: dict[str, int] = {}
        for load in self.stage.loads():
            if load.access.tensor not in self.tensors.pictures:
                continue
            if self.tensors.pictures[load.access.tensor].level != self.loop.level:
                continue
            for point in self.loop.points(self.loop.taps):
                far = max(map(abs, offsets(self.stage, self.loop, load.access, self.tensors, point)))
                if far:
                    found[load.access.tensor] = max(found.get(load.access.tensor, 0), far)
        return found

    def body(self, point: dict[str, Affine]) -> Body:
        return Body(
            lambda load: self.element(load.access, point),
            lambda index: whole(index.substitute(point), self.counters),
            self.local,
        )

    def element(self, access: Access, point: dict[str, Affine]) -> Expression:
        """What an access is at one position of the taps."""
        counted = [index.substitute(point) for index in access.indices]
        if access.tensor in self.tensors.pictures:
            picture = self.tensors.pictures[access.tensor]
            at = offsets(self.stage, self.loop, access, self.tensors, point)
            if access == self.stage.write and picture.level == self.loop.level and at != (0, 0):
                raise refuse(self.stage, f"it writes beside its pixel, {access}")
            channel = whole(counted[1], self.counters) if len(counted) == 4 else Integer(0)
            return FieldAccess(picture.field, picture.level, whole(counted[0], self.counters), channel, at)
        array = self.tensors.arrays[access.tensor]
        if not array.shape:
            return Name(array.variable)
        pixels = {axis.name for axis in self.loop.base}
        if any(pixels & set(index.substitute(point).axes) for index in access.indices):
            raise refuse(self.stage, f"'{access.tensor}' has a number for every pixel, and is no picture")
        column = whole(array.at(access).substitute(point), self.counters)
        return Element(array.variable, Integer(0), column)

    def over_cells(
        self, body: Sequence[Statement], reduction: tuple[str, str] | None = None, shared: bool = False
    ) -> FieldLoop:
        """A loop over the cells of the stage's level; ``shared`` in a parallel region."""
        own = [
            p for n, p in self.tensors.pictures.items() if n in (*self.stage.writes(), *self.stage.reads())
        ]
        field = next(p.field for p in (*own, *self.tensors.pictures.values()) if p.level == self.loop.level)
        return FieldLoop(field, self.loop.level, tuple(body), reduction, shared)

    def _shared(self, body: Sequence[Statement]) -> list[Statement]:
        """A loop whose iterations the threads of a region share, without waiting at its end."""
        if not self.variant.shared_regions:
            return [self.over_cells(body)]
        # Its own pragma would begin a second region.
        return [Native("#pragma omp for schedule(static) nowait //"), self.over_cells(body, shared=True)]

    def _region(self, body: Sequence[Statement]) -> list[Statement]:
        """A parallel region around loops over images and channels; its counters belong to every thread."""
        if not self.variant.shared_regions:
            return list(body)
        pragma = f"#pragma omp parallel num_threads({self.variant.threads}) //"
        return [Native(pragma), Native(OPEN), *body, Native(CLOSE)]

    def repeats(self, axes: Sequence[Axis], body: Sequence[Statement]) -> list[Statement]:
        """Loops over some axes, the first one outside."""
        statements = list(body)
        for axis in reversed(axes):
            counter = self.counters[axis.name]
            statements = [
                Declaration(counter, INT, Integer(0)),
                Repeat(axis.size, counter, tuple(statements)),
            ]
        return statements

    # -- statements -------------------------------------------------------------------------------

    def statements(self) -> list[Statement]:
        if self.stage.write.tensor not in self.tensors.pictures:
            return self._reduction()
        if self.variant.pixels == INNERMOST:
            return self._pixels_innermost()
        return self._pixels_outermost()

    def _ordered(self) -> tuple[Axis, ...]:
        """Counters of what is written: images outside, then channels."""
        return tuple(sorted(self.loop.counters, key=lambda a: a.name not in self.loop.images))

    def _written_points(self) -> list[dict[str, Affine]]:
        kept = self.stage.write.axes
        return list(self.loop.points([a for a in self.loop.taps if a.name in kept]))

    def _summed_points(self) -> list[dict[str, Affine]]:
        kept = self.stage.write.axes
        return list(self.loop.points([a for a in self.loop.taps if a.name not in kept]))

    def _pixels_outermost(self) -> list[Statement]:
        inner = self._set() if self.stage.combine == SET else self._accumulated()
        return [self.over_cells(self.repeats(self._ordered(), inner))]

    def _set(self) -> list[Statement]:
        statements: list[Statement] = []
        for point in self._written_points():
            body = self.body(point)
            body.assign(self.element(self.stage.write, point), self.stage.value)
            statements += body.statements
        return list(stored_once(statements, self.local))

    def _accumulated(self) -> list[Statement]:
        """Sums or maxima in local variables, one per position that is written."""
        stage, statements, totals = self.stage, [], []
        summed = self._summed_points()
        for written in self._written_points():
            name = self.local("sum" if stage.combine != MAX else "largest")
            totals.append((written, Name(name)))
            statements += self._begin(written, name, summed[0])
        inner: list[Statement] = []
        for written, total in totals:
            inner += self._step(written, total, summed)
        statements += self.repeats(self.loop.sums, stored_once(inner, self.local))
        for written, total in totals:
            statements += self._end(written, total)
        return statements

    def _begin(self, written: dict[str, Affine], name: str, first: dict[str, Affine]) -> list[Statement]:
        stage, body = self.stage, self.body(written)
        if stage.combine == MAX:
            zero = {axis.name: Affine() for axis in self.loop.sums}
            body = self.body({**written, **first, **zero})
            start = body.value(stage.value)
        elif stage.onto:
            start = self.element(stage.write, written)
        elif stage.initial is not None:
            start = body.value(stage.initial)
        else:
            start = Number(0.0)
        statements = [*body.statements, Declaration(name, REAL, start)]
        if stage.winner:
            statements.append(Declaration(f"{name}_at", REAL, Number(0.0)))
        return statements

    def _step(
        self, written: dict[str, Affine], total: Name, summed: list[dict[str, Affine]]
    ) -> list[Statement]:
        stage = self.stage
        if stage.combine == MAX:
            return self._larger(written, total, summed)
        statements: list[Statement] = []
        terms: Expression | None = None
        for point in summed:
            body = self.body({**written, **point})
            term = body.value(stage.value)
            statements += body.statements
            terms = term if terms is None else Binary("+", terms, term)
        assert terms is not None
        return [*statements, Assignment(total, terms, "+=")]

    def _larger(
        self, written: dict[str, Affine], total: Name, summed: list[dict[str, Affine]]
    ) -> list[Statement]:
        stage, statements = self.stage, []
        for number, point in enumerate(summed):
            if number == 0 and not self.loop.sums:
                continue
            body = self.body({**written, **point})
            value = body.value(stage.value)
            statements += body.statements
            if stage.winner is None:
                statements.append(Assignment(total, Call("max", (total, value))))
                continue
            at = whole(stage.winner[1].substitute({**written, **point}), self.counters)
            statements.append(
                If(
                    Binary(">", value, total),
                    (Assignment(total, value), Assignment(Name(f"{total.name}_at"), at)),
                )
            )
        return statements

    def _end(self, written: dict[str, Affine], total: Name) -> list[Statement]:
        stage, body = self.stage, self.body(written)
        target = self.element(stage.write, written)
        if stage.finish is None:
            body.statements.append(Assignment(target, total))
        else:
            body.assign(target, stage.finish, total)
        if stage.winner is not None:
            body.statements.append(
                Assignment(self.element(stage.winner[0], written), Name(f"{total.name}_at"))
            )
        return list(stored_once(body.statements, self.local))

    def _pixels_innermost(self) -> list[Statement]:
        stage = self.stage
        if stage.combine == SET:
            return self._region(self.repeats(self._ordered(), self._shared(self._set())))
        if not self.loop.sums or stage.winner is not None:
            return self._region(self.repeats(self._ordered(), self._shared(self._accumulated())))
        first, later = self._partial(True), self._partial(False)
        loops: list[Statement]
        if stage.onto:
            loops = self._shared(later)
        else:
            begins: Expression | None = None
            for axis in self.loop.sums:
                test = Binary("==", Name(self.counters[axis.name]), Integer(0))
                begins = test if begins is None else Binary("&&", begins, test)
            assert begins is not None
            loops = [If(begins, tuple(self._shared(first)), tuple(self._shared(later)))]
        body = self.repeats(self.loop.sums, loops)
        if stage.finish is not None:
            ends: list[Statement] = []
            for written in self._written_points():
                one = self.body(written)
                target = self.element(stage.write, written)
                one.assign(target, stage.finish, target)
                ends += one.statements
            body += self._shared(stored_once(ends, self.local))
        return self._region(self.repeats(self._ordered(), body))

    def _partial(self, first: bool) -> tuple[Statement, ...]:
        """One channel's part of a sum or maximum, added in the field itself."""
        stage, statements = self.stage, []
        for written in self._written_points():
            target = self.element(stage.write, written)
            parts: list[Expression] = []
            for point in self._summed_points():
                body = self.body({**written, **point})
                parts.append(body.value(stage.value))
                statements += body.statements
            joined = parts[0]
            for part in parts[1:]:
                joined = Call("max", (joined, part)) if stage.combine == MAX else Binary("+", joined, part)
            if stage.combine == MAX:
                value = joined if first else Call("max", (target, joined))
                statements.append(Assignment(target, value))
            elif not first:
                statements.append(Assignment(target, joined, "+="))
            else:
                if stage.initial is not None:
                    body = self.body(written)
                    start = body.value(stage.initial)
                    statements += body.statements
                    joined = Binary("+", joined, start)
                statements.append(Assignment(target, joined))
        return stored_once(statements, self.local)

    # -- sums over pixels -------------------------------------------------------------------------

    def _reduction(self) -> list[Statement]:
        stage = self.stage
        if stage.combine == MAX or stage.initial is not None or stage.finish is not None or stage.winner:
            raise refuse(stage, "a reduction over pixels that is no plain sum")
        array = self.tensors.arrays[stage.write.tensor]
        if {axis.name for axis in self.loop.base} & set(stage.write.axes):
            raise refuse(stage, f"'{stage.write.tensor}' has a number for every pixel, and is no picture")
        if not array.shape:
            return self._scalar(array.variable)
        # What the local matrix holds: all of the result, or as many of its last axes as are allowed.
        counters = sorted(self.loop.counters, key=lambda a: -self._step_of(a))
        taps = [a for a in self.loop.taps if a.name in stage.write.axes]
        outside: list[Axis] = []
        if self.variant.pixels == INNERMOST:
            outside, counters = counters, []
        while counters and math.prod(a.size for a in (*counters, *taps)) > self.variant.largest_sum:
            outside.append(counters.pop(0))
        part = self.result.names.own(f"{array.variable}_part")
        strides, size = _strides([*counters, *taps])
        position = Affine.of(strides)
        statements: list[Statement] = []
        for written in self._written_points():
            for summed in self._summed_points():
                body = self.body({**written, **summed})
                value = body.value(stage.value)
                at = whole(position.substitute(written), self.counters)
                statements += [
                    *body.statements,
                    Assignment(Element(part, Integer(0), at), value, "+="),
                ]
        inside = [*self._images(), *counters, *[a for a in self.loop.sums if a not in self._images()]]
        cells: list[Statement]
        if self.variant.pixels == INNERMOST:
            # One loop over the pixels per image, too.
            outside, inside = [*inside, *outside], []
        cells = self.repeats(inside, stored_once(statements, self.local))
        # What is left of the index when the axes of the local matrix are taken away.
        inner = {axis.name: Affine() for axis in (*counters, *taps)}
        flat = array.at(stage.write)
        assert all(flat.coefficient(name) == step for name, step in strides.items())
        column = Binary("+", whole(flat.substitute(inner), self.counters), Name("element"))
        target: Expression = Name("element") if not flat.substitute(inner).terms else column
        add = Assignment(
            Element(array.variable, Integer(0), target), Element(part, Integer(0), Name("element")), "+="
        )
        body_: list[Statement] = [
            matrix(part, size),
            self.over_cells(cells, ("+", part)),
            Declaration("element", INT, Integer(0)),
            Repeat(size, "element", (add,)),
        ]
        found: list[Statement] = []
        if not stage.onto:
            found.append(Assignment(Name(array.variable), Number(0.0)))
        return found + self.repeats(outside, body_)

    def _images(self) -> list[Axis]:
        return [a for a in self.loop.sums if a.name in self.loop.images]

    def _step_of(self, axis: Axis) -> int:
        array = self.tensors.arrays[self.stage.write.tensor]
        return array.at(self.stage.write).coefficient(axis.name)

    def _scalar(self, variable: str) -> list[Statement]:
        """A number that is summed up over all pixels."""
        stage = self.stage
        part = self.result.names.own(f"{variable}_part")
        statements: list[Statement] = []
        for point in self._summed_points():
            body = self.body(point)
            value = body.value(stage.value)
            statements += [*body.statements, Assignment(Name(part), value, "+=")]
        inner = stored_once(statements, self.local)
        added = Assignment(Name(variable), Name(part), "+=")
        found: list[Statement] = [] if stage.onto else [Assignment(Name(variable), Number(0.0))]
        outside = self.loop.sums if self.variant.pixels == INNERMOST else ()
        inside = () if self.variant.pixels == INNERMOST else self.loop.sums
        cells = self.over_cells(self.repeats(inside, inner), ("+", part))
        return found + self.repeats(outside, [number(part), cells, added])


def declared_once(body: Sequence[Statement], known: frozenset[str] = frozenset()) -> tuple[Statement, ...]:
    """Statements in which no scope declares a counter twice: C++ refuses sibling declarations of one name."""
    statements: list[Statement] = []
    around = known
    for statement in body:
        if statement == Native(OPEN):
            around = known
        elif statement == Native(CLOSE):
            known = around
        if isinstance(statement, Declaration):
            if statement.name in known and statement.type == INT:
                continue
            known |= {statement.name}
        elif isinstance(statement, Repeat | FieldLoop):
            statement = replace(statement, body=declared_once(statement.body))
        elif isinstance(statement, If):
            statement = If(
                statement.condition, declared_once(statement.body), declared_once(statement.otherwise)
            )
        statements.append(statement)
    return tuple(statements)


def _strides(axes: Sequence[Axis]) -> tuple[dict[str, int], int]:
    found, step = {}, 1
    for axis in reversed(axes):
        found[axis.name] = step
        step *= axis.size
    return found, step


def _counters(loop: Loop) -> dict[str, str]:
    """Names of the counters: of images, of channels that are written and of those that are summed over."""
    found: dict[str, str] = {}
    for axis in (*loop.counters, *loop.sums):
        base = "batch" if axis.name in loop.images else "channel" if axis in loop.counters else "channel_in"
        taken = sum(
            name == base or (name.startswith(f"{base}_") and name[len(base) + 1 :].isdigit())
            for name in found.values()
        )
        found[axis.name] = f"{base}_{taken + 1}" if taken else base
    return found
