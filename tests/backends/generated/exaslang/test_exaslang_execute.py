"""The interpreter finds what is wrong with a program: it does what the generated C++ would do, or refuses."""

import dataclasses

import numpy as np
import pytest

from meta500.backends.generated.exaslang.execute import ProgramError, execute
from meta500.backends.generated.exaslang.parse import parse
from meta500.backends.generated.exaslang.tree import Communicate, Function, If, Program, Repeat
from meta500.backends.generated.exaslang.variant import Variant

FRAME = """
Domain global< [0, 0] to [1, 1] >

Layout Wide< Matrix<Real, 1, 2>, Cell >@{level} {{
  innerPoints     = [{columns}, {rows}]
  duplicateLayers = [0, 0]
  ghostLayers     = [1, 1] with communication
}}
Layout Wide< Matrix<Real, 1, 2>, Cell >@1 {{
  innerPoints     = [{half_columns}, {half_rows}]
  duplicateLayers = [0, 0]
  ghostLayers     = [1, 1] with communication
}}

Field u< global, Wide, None >@{level}
Field v< global, Wide, None >@{level}
Field coarse< global, Wide, None >@1

Globals {{
  Var total : Real = 0.0
  Var m : Matrix<Real, 1, 3> = 0.0
  Var n : Int = 0
}}

Function Extra@2 ( given : Int ) {{
  print ( "given", given )
}}

Function Application {{
  initGlobals ( )
  initDomain ( )
  initFieldsWithZero ( )
{body}
}}
"""


def run(body, blocks=(1, 1), size=(4, 4), external=None):
    """What a body prints, on pictures of ``size`` columns x rows."""
    columns, rows = size[0] // blocks[0], size[1] // blocks[1]
    text = FRAME.format(
        level=2, columns=columns, rows=rows, half_columns=columns // 2, half_rows=rows // 2, body=body
    )
    return execute(parse(text), blocks, external)


COUNT = """
  Var part : Real = {start}
  loop over u@2 with reduction ( + : part ) {{
    part += 1.0
  }}
  print ( "n", part )
"""


@pytest.mark.parametrize("blocks", [(1, 1), (2, 1), (2, 2)])
def test_a_reduction_of_zero_counts_the_cells_of_all_processes(blocks):
    assert run(COUNT.format(start="0.0"), blocks) == [["n", 16.0]]


@pytest.mark.parametrize(("blocks", "number"), [((1, 1), 21.0), ((2, 1), 26.0), ((2, 2), 36.0)])
def test_what_was_there_before_counts_once_per_process(blocks, number):
    assert run(COUNT.format(start="5.0"), blocks) == [["n", number]]


def test_matrices_are_reduced_whole():
    body = """
  loop over u@2 with reduction ( + : m ) {
    m[0][1] += 1.0
    if ( i0 < 2 ) {
      m[0][2] += 2.0
    }
  }
  print ( m[0][0], m[0][1], m[0][2] )
"""
    assert run(body) == [[0.0, 16.0, 16.0]]
    assert run(body, (1, 2)) == [[0.0, 16.0, 16.0]]
    assert run(body, (2, 1)) == [[0.0, 16.0, 32.0]]  # i0 begins anew in every block


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1 / 2", 0),
        ("( -7 ) / 2", -3),
        ("7 % 4", 3),
        ("1.0 / 2", 0.5),
        ("1 / 2.0", 0.5),
        ("7 - 2 - 1", 4),
        ("2 * 3 + 4", 10),
        ("2 + 3 * 4", 14),
        ("( 1 + 2 ) * 3", 9),
        ("max ( 1.0, 2.0 )", 2.0),
        ("( -( 2.0 + 1.0 ) )", -3.0),
    ],
)
def test_numbers(text, number):
    ((found,),) = run(f"  print ( {text} )")
    assert found == number and isinstance(found, int) == isinstance(number, int)


def test_a_whole_variable_keeps_whole_numbers():
    assert run("  n = 3.7\n  print ( n )") == [[3]]


def test_levels_and_offsets():
    """A cell of the coarse level is at (2 i, 2 j) of the fine one; offsets are in columns, then rows."""
    body = """
  loop over u@2 {
    u@2[0][0] = i0 + 10.0 * i1
  }
  loop over coarse@1 {
    coarse@1[0][0] = u@2@[1, 0][0][0]
    coarse@1[0][1] = u@2@[0, 1][0][0]
  }
  Var a : Real = 0.0
  loop over coarse@1 with reduction ( + : a ) {
    if ( i0 == 1 && i1 == 0 ) {
      a += 100.0 * coarse@1[0][0] + coarse@1[0][1]
    }
  }
  print ( a )
"""
    assert run(body) == [[312.0]]  # 3 right of 2; 12 below it


NEIGHBOURS = """
  loop over u@2 {{
    u@2[0][0] = 1.0
  }}
  {communicate}
  Var a : Real = 0.0
  loop over u@2 with reduction ( + : a ) {{
    a += u@2@[1, 0][0][0] + u@2@[0, -1][0][0] + u@2@[1, 1][0][0]
  }}
  print ( a )
"""


def test_ghost_layers_are_zero_outside_and_the_neighbours_inside():
    whole = run(NEIGHBOURS.format(communicate="communicate ghost of u@2"))
    assert whole == [[12.0 + 12.0 + 9.0]]
    assert run(NEIGHBOURS.format(communicate="")) == whole
    for blocks in ((2, 1), (1, 2), (2, 2), (4, 4)):
        assert run(NEIGHBOURS.format(communicate="communicate ghost of u@2"), blocks) == whole
    assert run(NEIGHBOURS.format(communicate=""), (2, 2)) == [[8.0 + 8.0 + 4.0]]


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ("  Var a : Int = 0\n  Var a : Int = 0", "'a' is declared twice"),
        ("  n = unknown", "no variable 'unknown'"),
        ("  unknown = 1", "no variable 'unknown'"),
        ("  Unknown@2 ( )", "no function Unknown@2"),
        ("  Extra@1 ( 1 )", "no function Extra@1"),
        ("  n = unknown ( 1 )", "no function 'unknown'"),
        ("  n = m[0][3]", "column 3 of 3"),
        ("  n = m[1][0]", "column 0 of 3"),
        ("  m[0][3] = 1.0", "column 3 of 3"),
        ("  m[0][( -1 )] = 1.0", "column -1 of 3"),
        ("  Var a : Matrix<Real, 1, 1> = 0.0", "makes a number of it"),
        ("  total = u@2[0][0]", "outside of a loop"),
        ("  total = vf_cellCenter_x", "outside of a loop"),
        ("  loop over w@2 {\n  }", "no field w@2"),
        ("  communicate ghost of w@2", "no field w@2"),
        ("  loop over u@2 {\n    u@2@[0, 0][1][0] = 1.0\n  }", r"element \[1\]\[0\] of 1 x 2"),
        ("  loop over u@2 {\n    u@2[0][2] = 1.0\n  }", r"element \[0\]\[2\] of 1 x 2"),
        ("  loop over u@2 {\n    v@2[0][0] = u@2@[2, 0][0][0]\n  }", "beyond the ghost layers"),
        ("  loop over u@2 {\n    v@2[0][0] = u@2@[0, -2][0][0]\n  }", "beyond the ghost layers"),
        ("  loop over u@2 {\n    u@2[0][0] = u@2@[1, 0][0][0]\n  }", "beside the cell"),
        ("  loop over u@2 {\n    u@2[0][0] = 1.0\n    v@2[0][0] = u@2@[0, 1][0][1]\n  }", "beside the cell"),
        ("  loop over u@2 {\n    coarse@1[0][0] = 1.0\n  }", "in a loop on level 2"),
        ("  loop over u@2 {\n    loop over u@2 {\n    }\n  }", "a loop over cells in a loop over cells"),
        ("  loop over u@2 {\n    total += u@2[0][0]\n  }", "every cell writes it"),
        ("  loop over u@2 {\n    m[0][0] = u@2[0][0]\n  }", "every cell writes it"),
        ("  loop over u@2 with reduction ( + : total ) {\n    total = 1.0\n  }", "is reduced by"),
        ("  loop over u@2 with reduction ( + : total ) {\n    total -= 1.0\n  }", "is reduced by"),
        ("  loop over u@2 {\n    u@2@[1, 0][0][0] = 1.0\n  }", "beside the cell"),
    ],
)
def test_what_the_generated_code_would_not_do(body, fault):
    with pytest.raises(ProgramError, match=fault):
        run(body)


def test_variables_end_with_their_scope():
    body = """
  native ( '{ //' )
  Var a : Int = 1
  native ( '} //' )
  native ( '{ //' )
  Var a : Int = 2
  native ( '} //' )
"""
    assert run(body) == []
    with pytest.raises(ProgramError, match="no variable 'a'"):
        run(body + "  n = a")


def test_the_innermost_variable_is_seen():
    body = """
  Var a : Int = 1
  if ( a == 1 ) {
    Var a : Int = 2
    print ( a )
  }
  print ( a )
  Extra@2 ( 7 )
"""
    assert run(body) == [[2], [1], ["given", 7]]


def test_processes_must_meet():
    body = "  if ( where ( 0 ) == 0 ) {\n    communicate ghost of u@2\n  }"
    with pytest.raises(ProgramError, match="do not meet"):
        run(body, (2, 1), external={"where": lambda _, block: block[0]})


def test_only_the_first_process_prints():
    assert run('  print ( "once" )', (2, 2)) == [["once"]]


def test_matrices_are_given_to_functions_whole():
    seen = []

    def fill(array, number, block):
        seen.append((block, number))
        array[:] = (1.0, 2.0, 3.0)

    assert run("  fill ( m, 5 )\n  print ( m[0][2] )", (2, 1), external={"fill": fill}) == [[3.0]]
    assert seen == [((0, 0), 5), ((1, 0), 5)]


def without(node, kind):
    """A tree without the statements of a kind."""
    if isinstance(node, tuple):
        return tuple(without(n, kind) for n in node if not isinstance(n, kind))
    if isinstance(node, Program | Function | Repeat | If):
        fields = {f.name: without(getattr(node, f.name), kind) for f in dataclasses.fields(node)}
        return dataclasses.replace(node, **fields)
    return node


@pytest.mark.parametrize("pixels", ["outermost", "innermost"])
def test_a_missing_communication_changes_the_loss(pixels, subject, program, interpreted):
    one = subject("convolutions")
    trained = program(one, Variant(pixels, "mpi", blocks=(2, 2), double=True), epochs=1)
    right = interpreted(trained.tree, trained, one, (2, 2)).losses
    wrong = interpreted(without(trained.tree, Communicate), trained, one, (2, 2)).losses
    assert abs(right[0] - wrong[0]) > 1e-3


def test_every_communication_is_needed(subject, program, interpreted):
    """Without any one of them, losses or weights are others."""
    one = subject("convolutions")
    trained = program(one, Variant(parallel="mpi", blocks=(2, 1), double=True), epochs=1)
    right = interpreted(trained.tree, trained, one, (2, 1))
    lines = str(trained.tree).splitlines(keepends=True)
    places = [i for i, line in enumerate(lines) if "communicate ghost" in line]
    assert len(places) >= 3
    for place in places:
        tree = parse("".join(lines[:place] + lines[place + 1 :]))
        found = interpreted(tree, trained, one, (2, 1))
        assert any(np.abs(found.weights[n] - a).max() > 1e-8 for n, a in right.weights.items()), lines[place]
