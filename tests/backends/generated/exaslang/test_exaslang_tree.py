"""Every node prints itself, and what it prints is read back to the same node."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meta500.backends.generated.exaslang.parse import SyntaxFault, parse
from meta500.backends.generated.exaslang.tree import (
    PRECEDENCE,
    RESERVED,
    Assignment,
    Binary,
    Call,
    Comment,
    Communicate,
    Declaration,
    Element,
    Evaluate,
    Field,
    FieldAccess,
    FieldLoop,
    Function,
    If,
    Integer,
    Layout,
    MatrixType,
    Name,
    Native,
    Negative,
    Number,
    Print,
    Program,
    Repeat,
    Text,
    real_text,
)

NAMES = st.from_regex(r"[A-Za-z][A-Za-z0-9_]{0,8}", fullmatch=True).filter(lambda n: n not in RESERVED)
LEVELS = st.integers(0, 12)
WHOLE = st.integers(-(2**31) + 1, 2**31 - 1).map(Integer)
REALS = st.floats(allow_nan=False, allow_infinity=False).map(Number)
PLAIN = st.text("abcdefgh XYZ0123_.,;:+-*/(){}[]<>=@", max_size=12)


def expressions():
    leaves = st.one_of(WHOLE, REALS, NAMES.map(Name), st.builds(Text, PLAIN))
    offsets = st.tuples(st.integers(-3, 3), st.integers(-3, 3))

    def larger(inner):
        return st.one_of(
            st.builds(Binary, st.sampled_from(sorted(PRECEDENCE)), inner, inner),
            # Minus a number is a number.
            inner.filter(lambda e: not isinstance(e, Integer | Number)).map(Negative),
            st.builds(Element, NAMES, inner, inner),
            st.builds(FieldAccess, NAMES, LEVELS, inner, inner, offsets),
            st.builds(Call, NAMES, st.lists(inner, max_size=3).map(tuple), st.none() | LEVELS),
        )

    return st.recursive(leaves, larger, max_leaves=12)


EXPRESSIONS = expressions()
TYPES = st.one_of(
    st.sampled_from(["Real", "Int", "Bool", "String"]),
    st.builds(MatrixType, st.integers(1, 99), st.integers(1, 99)),
)
TARGETS = st.one_of(
    NAMES.map(Name),
    st.builds(Element, NAMES, EXPRESSIONS, EXPRESSIONS),
    st.builds(FieldAccess, NAMES, LEVELS, EXPRESSIONS, EXPRESSIONS),
)


def statements():
    leaves = st.one_of(
        st.builds(Declaration, NAMES, TYPES, EXPRESSIONS, st.booleans()),
        st.builds(Assignment, TARGETS, EXPRESSIONS, st.sampled_from(["=", "+=", "-=", "*=", "/="])),
        st.builds(Call, NAMES, st.lists(EXPRESSIONS, max_size=2).map(tuple), st.none() | LEVELS).map(
            Evaluate
        ),
        st.lists(EXPRESSIONS, max_size=3).map(tuple).map(Print),
        st.builds(Native, PLAIN),
        st.builds(Comment, st.text(max_size=12)),
        st.builds(Communicate, NAMES, LEVELS),
    )

    def larger(inner):
        bodies = st.lists(inner, max_size=3).map(tuple)
        reductions = st.none() | st.tuples(st.just("+"), NAMES)
        return st.one_of(
            st.builds(Repeat, st.integers(0, 999), NAMES, bodies),
            st.builds(FieldLoop, NAMES, LEVELS, bodies, reductions, st.booleans()),
            st.builds(If, EXPRESSIONS, bodies, bodies),
        )

    return st.recursive(leaves, larger, max_leaves=6)


LAYOUTS = st.builds(
    Layout,
    NAMES,
    LEVELS,
    st.integers(1, 9),
    st.integers(1, 9),
    st.tuples(st.integers(1, 99), st.integers(1, 99)),
    st.integers(0, 3),
)
FUNCTIONS = st.builds(
    Function,
    NAMES,
    st.none() | LEVELS,
    st.lists(statements(), max_size=3).map(tuple),
    st.lists(NAMES, max_size=2).map(tuple),
)
PROGRAMS = st.builds(
    Program,
    st.lists(LAYOUTS, max_size=2).map(tuple),
    st.lists(st.builds(Field, NAMES, NAMES, LEVELS), max_size=2).map(tuple),
    st.lists(st.builds(Declaration, NAMES, TYPES, EXPRESSIONS, st.booleans()), max_size=2).map(tuple),
    st.lists(FUNCTIONS, max_size=2).map(tuple),
)


def one(expression):
    """A program around one expression."""
    return Program(functions=(Function("f", 1, (Assignment(Name("a"), expression),)),))


@settings(max_examples=300, deadline=None)
@given(EXPRESSIONS)
def test_expressions_are_read_back(expression):
    program = one(expression)
    assert parse(str(program)) == program


@settings(max_examples=80, deadline=None)
@given(PROGRAMS)
def test_programs_are_read_back(program):
    text = str(program)
    assert parse(text) == program
    assert all(line.isascii() and line == line.rstrip("\n") for line in text.splitlines())


@pytest.mark.parametrize("pixels", ["outermost", "innermost"])
@pytest.mark.parametrize("parallel", ["serial", "openmp", "mpi 2x2", "cuda"])
def test_the_programs_of_networks_are_read_back(parallel, pixels, subject, program, variants):
    """All others are, too, before they run."""
    tree = program(subject("unet"), variants[f"{parallel}, {pixels}"], "adamw").tree
    assert parse(str(tree)) == tree


@settings(max_examples=300, deadline=None)
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_keep_their_value_and_have_a_point_and_no_exponent(value):
    text = real_text(value)
    assert float(text) == value and "." in text and "e" not in text.lower()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_what_is_no_number_is_no_text(value):
    with pytest.raises(ValueError, match="nan|inf"):
        real_text(value)


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        (Binary("*", Binary("+", Name("a"), Integer(1)), Name("b")), "( a + 1 ) * b"),
        (Binary("-", Name("a"), Binary("-", Name("b"), Name("c"))), "a - ( b - c )"),
        (Binary("-", Binary("-", Name("a"), Name("b")), Name("c")), "a - b - c"),
        (Binary("/", Name("a"), Binary("*", Name("b"), Name("c"))), "a / ( b * c )"),
        (Negative(Binary("*", Name("a"), Name("b"))), "( -( a * b ) )"),
        (Binary("*", Number(-0.5), Integer(-2)), "( -0.5 ) * ( -2 )"),
        (Number(1e-8), "0.00000001"),
        (Number(3.0), "3.0"),
        (Call("exp", (Name("a"),)), "exp ( a )"),
        (Call("Forward", (), 3), "Forward@3 ( )"),
        (FieldAccess("u", 3, Integer(0), Name("c"), (1, -1)), "u@3@[1, -1][0][c]"),
        (FieldAccess("u", 3, Integer(0), Name("c")), "u@3[0][c]"),
        (Element("w", Integer(0), Binary("+", Name("c"), Integer(1))), "w[0][c + 1]"),
    ],
)
def test_what_is_printed(expression, text):
    assert str(expression) == text


def test_what_statements_print():
    loop = FieldLoop("u", 3, (Assignment(Name("s"), Number(1.0), "+="),), ("+", "s"), True)
    text = "\n".join(
        line
        for statement in (
            Declaration("a", MatrixType(1, 2), Number(0.0)),
            Repeat(3, "c", (Communicate("u", 3),)),
            If(Binary("==", Name("c"), Integer(0)), (loop,), (Native("int n = 0"),)),
            Print((Text("loss"), Name("s"))),
        )
        for line in statement.lines()
    )
    assert text == (
        "Var a : Matrix<Real, 1, 2> = 0.0\n"
        "repeat 3 times count c {\n  communicate ghost of u@3\n}\n"
        "if ( c == 0 ) {\n"
        "  loop over u@3 sequentially with reduction ( + : s ) {\n    s += 1.0\n  }\n"
        "} else {\n  native ( 'int n = 0' )\n}\n"
        'print ( "loss", s )'
    )


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("Domain global< [0, 0] to [1, 1] >\nFunction f@1 {\n  a = \n}", 4),
        ("Domain global< [0, 0] to [1, 1] >\nFunction f@1 {\n  a = u@1\n}", 4),
        ("Domain global< [0, 0] to [1, 1] >\nFunction f@1 {\n  a ? 1\n}", 3),
        ("Domain global< [0, 0] to [1, 1] >\nFunction f@1 {\n  repeat n times count i { }\n}", 3),
        ("Domain global< [0, 0] to [1, 1] >\nFunction f@1 {\n  a < 1\n}", 3),
        ("Domain global< [0, 0] to [1, 1] >\nGlobals {\n  a = 1\n}", 4),
        ("Domain global< [0, 0] to [1, 1] >\nSomething { }", 2),
        ("Domain global< [0, 0] to [1, 1] >\nFunction f@1 {\n  a = 1\n", 4),
        ("", 1),
    ],
)
def test_faults_of_the_text_name_the_line(text, line):
    with pytest.raises(SyntaxFault, match=f"line {line}:"):
        parse(text)
