"""Runs a layer-4 program as it is written, in numpy and float64: a check without the generator.

Every block is a process of its own with its own fields and variables. Processes meet where the program
communicates: ghost layers and reductions. Whole numbers divide like C++'s; a reduction under MPI adds up what
every process holds, what the variable held before included; ghost layers are zero where nothing was
communicated. Meant for small networks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from meta500.backends.generated.exaslang.tree import (
    CLOSE,
    INT,
    OPEN,
    Assignment,
    Binary,
    Call,
    Comment,
    Communicate,
    Declaration,
    Element,
    Evaluate,
    Expression,
    FieldAccess,
    FieldLoop,
    If,
    Integer,
    MatrixType,
    Name,
    Native,
    Negative,
    Number,
    Print,
    Program,
    Repeat,
    Statement,
    Text,
    walk,
)

_IGNORED = frozenset(
    ("initDomain", "initGeometry", "startTimer", "stopTimer", "printAllTimers", "destroyGlobals")
)
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "exp": np.exp, "log": np.log, "sqrt": np.sqrt, "tanh": np.tanh, "fabs": np.abs, "max": np.maximum,
    "min": np.minimum, "floor": np.floor, "ceil": np.ceil, "pow": np.power,
}  # fmt: skip


class ProgramError(Exception):
    """The program does what the language does not allow."""


@dataclass
class _Process:
    """A block with its fields and variables."""

    at: tuple[int, int]
    fields: dict[tuple[str, int], np.ndarray] = field(default_factory=dict)
    variables: dict[str, Any] = field(default_factory=dict)


@dataclass
class _Frame:
    """Where a statement runs: names of the function's own, and the cells of a loop."""

    own: dict[str, Any]
    cells: tuple[int, tuple[int, int]] | None = None
    mask: Any = None
    reduced: str = ""
    sums: dict[int, float] = field(default_factory=dict)


# What a process waits for.
_Event = tuple[str, Any, Any]
_Run = Generator[_Event, Any, None]


def execute(
    program: Program,
    blocks: tuple[int, int] = (1, 1),
    external: Mapping[str, Callable[..., Any]] | None = None,
) -> list[list[Any]]:
    """Run a program from its function ``Application`` on.

    Args:
        program: the tree.
        blocks: columns and rows of processes.
        external: C++ functions by name; they are given numbers, arrays over cells, and matrices (1-D arrays,
            to be filled or read), and the columns and rows of the process's block as keyword ``block``.

    Returns:
        What was printed: the arguments of every call.

    Raises:
        ProgramError: an unknown name or function, a data race between cells, processes that do not meet.
    """
    processes = [_Process((x, y)) for y in range(blocks[1]) for x in range(blocks[0])]
    printed: list[list[Any]] = []
    machines = [_Machine(program, process, blocks, external or {}, printed) for process in processes]
    runs = [machine.call("Application", None, ()) for machine in machines]
    pending: list[_Event | None] = [next(run, None) for run in runs]
    while any(event is not None for event in pending):
        answers = _meet(pending, processes, program, blocks)
        pending = [_resume(run, answer) for run, answer in zip(runs, answers, strict=True)]
    return printed


def _resume(run: _Run, answer: Any) -> _Event | None:
    try:
        return run.send(answer)
    except StopIteration:
        return None


def _meet(
    pending: Sequence[_Event | None], processes: Sequence[_Process], program: Program, blocks: tuple[int, int]
) -> list[Any]:
    first = pending[0]
    if first is None or any(event is None or event[:2] != first[:2] for event in pending):
        raise ProgramError(f"processes do not meet: {pending}")
    kind, what, _ = first
    if kind == "reduce":
        values = [event[2] for event in pending if event is not None]
        total = sum(values[1:], values[0] * 1)
        return [np.array(total) if isinstance(total, np.ndarray) else total for _ in processes]
    _exchange(what, processes, program, blocks)
    return [None] * len(processes)


def _exchange(
    what: tuple[str, int], processes: Sequence[_Process], program: Program, blocks: tuple[int, int]
) -> None:
    """Ghost layers inside of the domain become the neighbours' cells."""
    layout = _layout(program, *what)
    ghost, (columns, rows) = layout.ghost, layout.inner
    shape = processes[0].fields[what].shape[:2]
    whole = np.zeros((*shape, rows * blocks[1] + 2 * ghost, columns * blocks[0] + 2 * ghost))
    for process in processes:
        x, y = process.at[0] * columns + ghost, process.at[1] * rows + ghost
        inner = process.fields[what][:, :, ghost : ghost + rows, ghost : ghost + columns]
        whole[:, :, y : y + rows, x : x + columns] = inner
    for process in processes:
        x, y = process.at[0] * columns, process.at[1] * rows
        part = whole[:, :, y : y + rows + 2 * ghost, x : x + columns + 2 * ghost]
        old = process.fields[what]
        # Beyond the domain nothing is communicated.
        kept = np.zeros(part.shape[2:], bool)
        kept[:ghost] |= process.at[1] == 0
        kept[ghost + rows :] |= process.at[1] == blocks[1] - 1
        kept[:, :ghost] |= process.at[0] == 0
        kept[:, ghost + columns :] |= process.at[0] == blocks[0] - 1
        process.fields[what] = np.where(kept, old, part)


def _layout(program: Program, name: str, level: int) -> Any:
    declared = next((f for f in program.fields if f.name == name and f.level == level), None)
    if declared is None:
        raise ProgramError(f"no field {name}@{level}")
    return next(x for x in program.layouts if x.name == declared.layout and x.level == level)


class _Machine:
    """One process running the program."""

    def __init__(
        self,
        program: Program,
        process: _Process,
        blocks: tuple[int, int],
        external: Mapping[str, Callable[..., Any]],
        printed: list[list[Any]],
    ) -> None:
        self.program, self.process, self.blocks = program, process, blocks
        self.external, self.printed = external, printed
        self.functions = {(f.name, f.level): f for f in program.functions}

    # -- functions and statements -----------------------------------------------------------------

    def call(self, name: str, level: int | None, arguments: tuple[Any, ...]) -> _Run:
        function = self.functions.get((name, level))
        if function is None:
            raise ProgramError(f"no function {name}" + (f"@{level}" if level is not None else ""))
        frame = _Frame(dict(zip(function.parameters, arguments, strict=True)))
        yield from self.run(function.body, frame)

    def run(self, body: Sequence[Statement], frame: _Frame) -> _Run:
        hidden = dict(frame.own)
        # Braces of C++ are scopes, too.
        scopes: list[set[str]] = [set()]
        for statement in body:
            if statement == Native(OPEN):
                scopes.append(set())
            elif statement == Native(CLOSE):
                _leave(scopes.pop(), hidden, frame)
            elif isinstance(statement, Declaration):
                if statement.name in scopes[-1]:
                    raise ProgramError(f"'{statement.name}' is declared twice in one scope")
                scopes[-1].add(statement.name)
            yield from self.statement(statement, frame)
        _leave(scopes[0], hidden, frame)

    def statement(self, statement: Statement, frame: _Frame) -> _Run:
        match statement:
            case Comment() | Native():
                return
            case Declaration(name, kind, initial):
                frame.own[name] = self.declared(kind, self.value(initial, frame))
            case Assignment():
                self.assign(statement, frame)
            case Print(arguments):
                if self.process.at == (0, 0):
                    self.printed.append([self.value(a, frame) for a in arguments])
            case Communicate(name, level):
                yield ("ghost", (name, level), None)
            case Repeat(count, counter, body):
                for number in range(count):
                    self.store(Name(counter), number, frame)
                    yield from self.run(body, frame)
                self.store(Name(counter), count, frame)
            case If(condition, body, otherwise):
                yield from self.branch(condition, body, otherwise, frame)
            case FieldLoop():
                yield from self.over_cells(statement, frame)
            case Evaluate(call):
                yield from self.evaluate(call, frame)
            case _:
                raise ProgramError(f"statement {statement}")

    def declared(self, kind: str | MatrixType, value: Any) -> Any:
        if isinstance(kind, MatrixType):
            if kind.rows * kind.columns < 2:
                raise ProgramError(f"{kind}: the generator makes a number of it")
            matrix = np.zeros(kind.rows * kind.columns)
            matrix[:] = value
            return matrix
        if kind == INT:
            return value
        return value * 1.0

    def evaluate(self, call: Call, frame: _Frame) -> _Run:
        name = call.function
        if name == "initGlobals":
            for variable in self.program.variables:
                start = self.value(variable.initial, _Frame({}))
                self.process.variables[variable.name] = self.declared(variable.type, start)
        elif name == "initFieldsWithZero":
            for one in self.program.fields:
                layout = _layout(self.program, one.name, one.level)
                if layout.rows * layout.columns < 2:
                    raise ProgramError(f"{one.name}: the generator makes numbers of its matrices")
                shape = (layout.inner[1] + 2 * layout.ghost, layout.inner[0] + 2 * layout.ghost)
                self.process.fields[one.name, one.level] = np.zeros((layout.rows, layout.columns, *shape))
        elif name in self.external:
            arguments = [self.value(a, frame) for a in call.arguments]
            self.external[name](*arguments, block=self.process.at)
        elif name not in _IGNORED:
            yield from self.call(name, call.level, tuple(self.value(a, frame) for a in call.arguments))

    def branch(
        self, condition: Expression, body: Sequence[Statement], otherwise: Sequence[Statement], frame: _Frame
    ) -> _Run:
        test = self.value(condition, frame)
        if not isinstance(test, np.ndarray) or test.ndim == 0:
            yield from self.run(body if test else otherwise, frame)
            return
        outer = frame.mask
        for part, sense in ((body, test), (otherwise, ~test)):
            frame.mask = sense if outer is None else outer & sense
            yield from self.run(part, frame)
        frame.mask = outer

    def over_cells(self, loop: FieldLoop, frame: _Frame) -> _Run:
        if frame.cells is not None:
            raise ProgramError("a loop over cells in a loop over cells")
        _check_races(loop)
        _check_branches(loop)
        layout = _layout(self.program, loop.field, loop.level)
        frame.cells = (loop.level, (layout.inner[1], layout.inner[0]))
        frame.reduced = loop.reduction[1] if loop.reduction else ""
        yield from self.run(loop.body, frame)
        frame.cells, frame.mask, frame.reduced = None, None, ""
        if loop.reduction and self.blocks != (1, 1):
            name = Name(loop.reduction[1])
            self.store(name, (yield ("reduce", loop.reduction[1], self.value(name, frame))), frame)

    # -- values -----------------------------------------------------------------------------------

    def assign(self, statement: Assignment, frame: _Frame) -> None:
        value, target = self.value(statement.value, frame), statement.target
        operator = statement.operator[:-1]
        name = target.matrix if isinstance(target, Element) else getattr(target, "name", "")
        if frame.cells is not None and name == frame.reduced and name:
            if operator != "+":
                raise ProgramError(f"'{name}' is reduced by +, not by {statement.operator}")
            shape = frame.cells[1]
            cells = np.broadcast_to(value, shape)
            added = float(cells.sum() if frame.mask is None else cells[frame.mask].sum())
            mask, frame.mask = frame.mask, None
            self.store(target, self.value(target, frame) + added, frame)
            frame.mask = mask
            return
        if operator:
            value = self.operate(operator, self.value(target, frame), value)
        self.store(target, value, frame)

    def store(self, target: Expression, value: Any, frame: _Frame) -> None:
        match target:
            case FieldAccess():
                self.write(target, value, frame)
            case Element(matrix, row, column):
                array = self.lookup(matrix, frame)
                if int(self.value(row, frame)):
                    raise ProgramError(f"{target}: a matrix of one row")
                if isinstance(value, np.ndarray) and value.ndim:
                    raise ProgramError(f"{target}: every cell writes it")
                at = int(self.value(column, frame))
                if not 0 <= at < len(array):
                    raise ProgramError(f"{target}: column {at} of {len(array)}")
                array[at] = value
            case Name(name):
                where = frame.own if name in frame.own else self.process.variables
                if name not in where:
                    raise ProgramError(f"no variable '{name}'")
                old = where[name]
                if isinstance(old, np.ndarray) and old.ndim == 1 and frame.cells is None:
                    old[:] = value
                    return
                whole = isinstance(old, int) and not isinstance(value, np.ndarray)
                if where is not frame.own and frame.cells is not None and isinstance(value, np.ndarray):
                    raise ProgramError(f"'{name}': every cell writes it")
                new = int(value) if whole else value
                where[name] = new if frame.mask is None else np.where(frame.mask, new, old)
            case _:
                raise ProgramError(f"{target} can't be written")

    def lookup(self, name: str, frame: _Frame) -> Any:
        if name in frame.own:
            return frame.own[name]
        if name in self.process.variables:
            return self.process.variables[name]
        raise ProgramError(f"no variable '{name}'")

    def region(self, access: FieldAccess, frame: _Frame) -> tuple[np.ndarray, Any]:
        """The array of a cell's matrix element, and the part of it that the cells of the loop mean."""
        if frame.cells is None:
            raise ProgramError(f"{access} outside of a loop over cells")
        level, (rows, columns) = frame.cells
        layout = _layout(self.program, access.field, access.level)
        array = self.process.fields[access.field, access.level]
        row, column = int(self.value(access.row, frame)), int(self.value(access.column, frame))
        if not (0 <= row < layout.rows and 0 <= column < layout.columns):
            raise ProgramError(f"{access}: element [{row}][{column}] of {layout.rows} x {layout.columns}")
        (x, y), ghost = access.offset, layout.ghost
        if access.level == level:
            if max(abs(x), abs(y)) > ghost:
                raise ProgramError(f"{access} reaches beyond the ghost layers")
            part = (slice(ghost + y, ghost + y + rows), slice(ghost + x, ghost + x + columns))
        elif access.level == level + 1:
            part = (
                slice(ghost + y, ghost + y + 2 * rows - 1, 2),
                slice(ghost + x, ghost + x + 2 * columns - 1, 2),
            )
        else:
            raise ProgramError(f"{access} in a loop on level {level}")
        return array[row, column], part

    def write(self, access: FieldAccess, value: Any, frame: _Frame) -> None:
        array, part = self.region(access, frame)
        array[part] = value if frame.mask is None else np.where(frame.mask, value, array[part])

    def value(self, expression: Expression, frame: _Frame) -> Any:
        match expression:
            case Integer(number) | Number(number) | Text(number):
                return number
            case Name("vf_cellCenter_x" | "vf_cellCenter_y" | "i0" | "i1" as name):
                return self.place(name, frame)
            case Name(name):
                return self.lookup(name, frame)
            case Element(matrix, row, column):
                array = self.lookup(matrix, frame)
                at = int(self.value(column, frame))
                if int(self.value(row, frame)) or not 0 <= at < len(array):
                    raise ProgramError(f"{expression}: column {at} of {len(array)}")
                return float(array[at])
            case FieldAccess():
                array, part = self.region(expression, frame)
                return array[part].copy()
            case Negative(inner):
                return -self.value(inner, frame)
            case Binary(operator, left, right):
                return self.operate(operator, self.value(left, frame), self.value(right, frame))
            case Call(name, arguments):
                values = [self.value(a, frame) for a in arguments]
                if name in _FUNCTIONS:
                    return _FUNCTIONS[name](*values)
                if name in self.external:
                    return self.external[name](*values, block=self.process.at)
                raise ProgramError(f"no function '{name}' with a value")
        raise ProgramError(f"expression {expression}")

    def place(self, name: str, frame: _Frame) -> np.ndarray:
        """The index of every cell in its block, or its position in the domain from 0 to 1.

        Positions are those of the generator, for which a block of level L has 2^L cells in every direction.
        """
        if frame.cells is None:
            raise ProgramError(f"{name} outside of a loop over cells")
        level, (rows, columns) = frame.cells
        direction = 0 if name in ("i0", "vf_cellCenter_x") else 1
        cells = np.arange((columns, rows)[direction])
        if name.startswith("vf"):
            position = self.process.at[direction] + (cells + 0.5) / 2**level
            cells = position / self.blocks[direction]
        return np.broadcast_to(cells if direction == 0 else cells[:, None], (rows, columns))

    def operate(self, operator: str, left: Any, right: Any) -> Any:
        whole = isinstance(left, int) and isinstance(right, int)
        match operator:
            case "+":
                return left + right
            case "-":
                return left - right
            case "*":
                return left * right
            case "/":
                return math.trunc(left / right) if whole else left / right
            case "%":
                return int(math.fmod(left, right)) if whole else np.fmod(left, right)
            case "<":
                return left < right
            case ">":
                return left > right
            case "<=":
                return left <= right
            case ">=":
                return left >= right
            case "==":
                return left == right
            case "!=":
                return left != right
            case "&&":
                return left & right
            case "||":
                return left | right
        raise ProgramError(f"operator {operator}")


def _leave(declared: set[str], hidden: Mapping[str, Any], frame: _Frame) -> None:
    """Forget the variables of a scope; those that they hid are seen again."""
    for name in declared:
        frame.own.pop(name, None)
        if name in hidden:
            frame.own[name] = hidden[name]


def _check_branches(loop: FieldLoop) -> None:
    """Whether branches are as vectorised loops take them: without an else, and without branches inside."""
    for node in (n for statement in loop.body for n in walk(statement)):
        if isinstance(node, If) and (
            node.otherwise or any(isinstance(n, If) for s in node.body for n in walk(s))
        ):
            raise ProgramError(
                f"a branch of a loop over cells has an else, or branches: if ( {node.condition} )"
            )


def _check_races(loop: FieldLoop) -> None:
    """Whether a cell reads beside itself what other cells of the loop write."""
    nodes = [node for statement in loop.body for node in walk(statement)]
    written = {
        (n.target.field, n.target.level): n.target.offset
        for n in nodes
        if isinstance(n, Assignment) and isinstance(n.target, FieldAccess)
    }
    for node in nodes:
        if (
            isinstance(node, FieldAccess)
            and (node.field, node.level) in written
            and node.level == loop.level
            and node.offset != (0, 0)
        ):
            raise ProgramError(f"{node} is read beside the cell in the loop that writes it")
