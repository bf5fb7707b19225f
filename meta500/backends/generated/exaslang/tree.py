"""The syntax tree of ExaSlang, layer 4, as far as networks need it: every node prints itself.

The printed text is parsed back to an equal tree by `parse`, and run as it is written by `execute`. Names,
loops and accesses follow the language as its generator accepts it: x is the fastest direction of an offset,
matrices have rows and columns, an access names its level.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal

REAL, INT, BOOL, STRING = "Real", "Int", "Bool", "String"
# Words of the language that can be no names.
RESERVED = frozenset(
    """
    Func Function return noinline FuncTemplate FunctionTemplate Inst Instantiate as Domain Layout Field
    Stencil StencilTemplate StencilField Set external from with tensN tens1 tens2 LatticeDomain blocks
    WaLBerlaVars RefinementSelection level levels repeat times count contraction break loop until while
    over fragments only on boundary where starting ending stepping reduction dup ghost inner
    sequentially novect precomm postcomm color if else and or Unit String Integer Int Real Float Double
    Dbl Flt Complex i j k Boolean Bool Array Vector RowVector ColumnVector RVector CVector Matrix T
    Tensor Tensor1 Tensor2 TensorN Vec2 Vec3 Vec4 current coarser finer coarsest finest to not but all
    fromFile communication None Node Cell Face_x Face_y Face_z Edge_Cell Edge_Node MatrixShape Diagonal
    Blockdiagonal Schur FieldCombination apply bc Neumann begin finish communicate communicating of
    upstream downstream advance active activeSlot currentSlot next nextSlot previous previousSlot solve
    locally jacobi relax solveMatSys steps Var Variable Val Value Expr Expression i0 i1 i2 x y z Globals
    LayoutTransformations transform concat rename into Operator default restriction prolongation
    Knowledge Equation center east west north south top bottom true false import print native max min
    sum exp log sqrt tanh fabs floor ceil pow PI global loss_function main element batch channel
    channel_in epoch step
    """.split()  # noqa: SIM905
)
# C++ braces around statements; the comment takes the semicolon that the generator adds.
OPEN, CLOSE = "{ //", "} //"


def real_text(value: float) -> str:
    """A number without an exponent, with all digits that make it what it is.

    Raises:
        ValueError: not a number, or infinite.
    """
    if not math.isfinite(value):
        raise ValueError(f"{value} can't be written as a number")
    text = format(Decimal(repr(float(value))), "f")
    return text if "." in text else f"{text}.0"


class Node:
    """Base of all nodes."""


class Expression(Node):
    """Has a value; ``str`` is its text."""


class Statement(Node):
    """Does something; ``lines`` is its text."""

    def lines(self) -> Iterator[str]:
        raise NotImplementedError


@dataclass(frozen=True)
class Integer(Expression):
    """A whole number."""

    value: int

    def __str__(self) -> str:
        return str(self.value) if self.value >= 0 else f"( {self.value} )"


@dataclass(frozen=True)
class Number(Expression):
    """A floating-point number."""

    value: float

    def __str__(self) -> str:
        text = real_text(self.value)
        return f"( {text} )" if text.startswith("-") else text


@dataclass(frozen=True)
class Text(Expression):
    """A string in double quotes."""

    value: str

    def __str__(self) -> str:
        return f'"{self.value}"'


@dataclass(frozen=True)
class Name(Expression):
    """A variable."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Element(Expression):
    """One element of a matrix variable."""

    matrix: str
    row: Expression
    column: Expression

    def __str__(self) -> str:
        return f"{self.matrix}[{self.row}][{self.column}]"


@dataclass(frozen=True)
class FieldAccess(Expression):
    """One element of the matrix in a field's cell, ``offset`` = (x, y) away from the loop's one.

    In a loop over a coarser level the offset (0, 0) is cell (2 i, 2 j) of the finer one; in a loop over a
    finer     level it is cell (i / 2, j / 2) of the coarser one.
    """

    field: str
    level: int
    row: Expression
    column: Expression
    offset: tuple[int, int] = (0, 0)

    def __str__(self) -> str:
        at = f"@[{self.offset[0]}, {self.offset[1]}]" if self.offset != (0, 0) else ""
        return f"{self.field}@{self.level}{at}[{self.row}][{self.column}]"


@dataclass(frozen=True)
class Binary(Expression):
    """``left operator right`` in parentheses; operators + - * / % and comparisons, && and ||."""

    operator: str
    left: Expression
    right: Expression

    def __str__(self) -> str:
        own = PRECEDENCE[self.operator]
        left, right = str(self.left), str(self.right)
        if _precedence(self.left) < own:
            left = f"( {left} )"
        # Operators of one rank are read from the left.
        if _precedence(self.right) <= own:
            right = f"( {right} )"
        return f"{left} {self.operator} {right}"


# The higher, the tighter.
PRECEDENCE = {
    "||": 1, "&&": 2, "==": 3, "!=": 3, "<": 4, ">": 4, "<=": 4, ">=": 4, "+": 5, "-": 5, "*": 6, "/": 6,
    "%": 6,
}  # fmt: skip
_ATOM = 9


def _precedence(expression: Expression) -> int:
    return PRECEDENCE[expression.operator] if isinstance(expression, Binary) else _ATOM


@dataclass(frozen=True)
class Negative(Expression):
    """Minus an expression."""

    value: Expression

    def __str__(self) -> str:
        text = str(self.value)
        return f"( -( {text} ) )" if isinstance(self.value, Binary) else f"( -{text} )"


@dataclass(frozen=True)
class Call(Expression):
    """A function of expressions: of the language, of the program (with a level), or of C++."""

    function: str
    arguments: tuple[Expression, ...] = ()
    level: int | None = None

    def __str__(self) -> str:
        at = "" if self.level is None else f"@{self.level}"
        given = ", ".join(map(str, self.arguments))
        return f"{self.function}{at} ( {given} )" if given else f"{self.function}{at} ( )"


@dataclass(frozen=True)
class MatrixType:
    """The type of a matrix."""

    rows: int
    columns: int
    element: str = REAL

    def __str__(self) -> str:
        return f"Matrix<{self.element}, {self.rows}, {self.columns}>"


# -- statements -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Declaration(Statement):
    """A variable (``Var``) or constant (``Val``)."""

    name: str
    type: str | MatrixType
    initial: Expression
    constant: bool = False

    def lines(self) -> Iterator[str]:
        yield f"{'Val' if self.constant else 'Var'} {self.name} : {self.type} = {self.initial}"


@dataclass(frozen=True)
class Assignment(Statement):
    """``target operator value``, with = += -= *= or /=."""

    target: Expression
    value: Expression
    operator: str = "="

    def lines(self) -> Iterator[str]:
        yield f"{self.target} {self.operator} {self.value}"


@dataclass(frozen=True)
class Evaluate(Statement):
    """A call for what it does."""

    call: Call

    def lines(self) -> Iterator[str]:
        yield str(self.call)


@dataclass(frozen=True)
class Print(Statement):
    """Prints its arguments on the first process."""

    arguments: tuple[Expression, ...]

    def lines(self) -> Iterator[str]:
        yield f"print ( {', '.join(map(str, self.arguments))} )"


@dataclass(frozen=True)
class Native(Statement):
    """A piece of C++."""

    code: str

    def lines(self) -> Iterator[str]:
        yield f"native ( '{self.code}' )"


@dataclass(frozen=True)
class Comment(Statement):
    """A line for readers: printable ASCII, single spaces."""

    text: str

    def __post_init__(self) -> None:
        plain = "".join(c if c.isprintable() else " " for c in self.text).encode("ascii", "replace").decode()
        object.__setattr__(self, "text", " ".join(plain.split()))

    def lines(self) -> Iterator[str]:
        yield f"// {self.text}"


@dataclass(frozen=True)
class Communicate(Statement):
    """Fills the ghost layers of a field from the neighbouring blocks."""

    field: str
    level: int

    def lines(self) -> Iterator[str]:
        yield f"communicate ghost of {self.field}@{self.level}"


@dataclass(frozen=True)
class Repeat(Statement):
    """``count`` iterations with a counter, which is declared before."""

    count: int
    counter: str
    body: tuple[Statement, ...]

    def lines(self) -> Iterator[str]:
        yield f"repeat {self.count} times count {self.counter} {{"
        yield from _inside(self.body)
        yield "}"


@dataclass(frozen=True)
class FieldLoop(Statement):
    """A loop over the cells of a field.

    Attributes:
        field, level: whose cells.
        body: for every cell.
        reduction: operator and variable of a reduction over the cells; None for none.
        sequential: by one thread, on the host.
    """

    field: str
    level: int
    body: tuple[Statement, ...]
    reduction: tuple[str, str] | None = None
    sequential: bool = False

    def lines(self) -> Iterator[str]:
        how = " sequentially" if self.sequential else ""
        if self.reduction:
            how += f" with reduction ( {self.reduction[0]} : {self.reduction[1]} )"
        yield f"loop over {self.field}@{self.level}{how} {{"
        yield from _inside(self.body)
        yield "}"


@dataclass(frozen=True)
class If(Statement):
    """A condition with what happens, and what happens otherwise."""

    condition: Expression
    body: tuple[Statement, ...]
    otherwise: tuple[Statement, ...] = ()

    def lines(self) -> Iterator[str]:
        yield f"if ( {self.condition} ) {{"
        yield from _inside(self.body)
        if self.otherwise:
            yield "} else {"
            yield from _inside(self.otherwise)
        yield "}"


def _inside(body: Sequence[Statement]) -> Iterator[str]:
    for statement in body:
        for line in statement.lines():
            yield f"  {line}"


# -- the program ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Layout(Node):
    """Size and ghost layers of the fields of a level."""

    name: str
    level: int
    rows: int
    columns: int
    inner: tuple[int, int]
    ghost: int

    def lines(self) -> Iterator[str]:
        yield f"Layout {self.name}< {MatrixType(self.rows, self.columns)}, Cell >@{self.level} {{"
        yield f"  innerPoints     = [{self.inner[0]}, {self.inner[1]}]"
        yield "  duplicateLayers = [0, 0]"
        yield f"  ghostLayers     = [{self.ghost}, {self.ghost}] with communication"
        yield "}"


@dataclass(frozen=True)
class Field(Node):
    """A matrix per cell, on one level."""

    name: str
    layout: str
    level: int

    def __str__(self) -> str:
        return f"Field {self.name}< global, {self.layout}, None >@{self.level}"


@dataclass(frozen=True)
class Function(Node):
    """A function of statements.

    Attributes:
        name: of the function.
        level: on which it runs; None for the application.
        body: its statements.
        parameters: names of its whole-number arguments.
    """

    name: str
    level: int | None
    body: tuple[Statement, ...]
    parameters: tuple[str, ...] = ()

    def lines(self) -> Iterator[str]:
        at = "" if self.level is None else f"@{self.level}"
        given = f" ( {', '.join(f'{p} : Int' for p in self.parameters)} )" if self.parameters else ""
        yield f"Function {self.name}{at}{given} {{"
        yield from _inside(self.body)
        yield "}"


@dataclass(frozen=True)
class Program(Node):
    """A whole layer-4 file."""

    layouts: tuple[Layout, ...] = ()
    fields: tuple[Field, ...] = ()
    variables: tuple[Declaration, ...] = ()
    functions: tuple[Function, ...] = ()
    domain: tuple[int, int] = field(default=(1, 1))

    def lines(self) -> Iterator[str]:
        yield f"Domain global< [0, 0] to [{self.domain[0]}, {self.domain[1]}] >"
        for layout in self.layouts:
            yield ""
            yield from layout.lines()
        yield ""
        yield from map(str, self.fields)
        yield ""
        yield "Globals {"
        yield from _inside(self.variables)
        yield "}"
        for function in self.functions:
            yield ""
            yield from function.lines()

    def __str__(self) -> str:
        return "\n".join(self.lines()) + "\n"

    def function(self, name: str) -> Function:
        """The function of that name."""
        return next(f for f in self.functions if f.name == name)


def walk(node: Statement | Expression) -> Iterator[Statement | Expression]:
    """A node and everything in it."""
    yield node
    for child in _children(node):
        yield from walk(child)


def _children(node: Statement | Expression) -> list[Statement | Expression]:
    match node:
        case Element(_, row, column) | FieldAccess(_, _, row, column):
            return [row, column]
        case Binary(_, left, right):
            return [left, right]
        case Negative(value):
            return [value]
        case Call(_, arguments) | Print(arguments):
            return list(arguments)
        case Declaration(_, _, initial):
            return [initial]
        case Assignment(target, value):
            return [target, value]
        case Evaluate(call):
            return [call]
        case Repeat(_, _, body) | FieldLoop(_, _, body):
            return list(body)
        case If(condition, body, otherwise):
            return [condition, *body, *otherwise]
    return []
