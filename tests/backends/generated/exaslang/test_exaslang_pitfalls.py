"""What the generator takes wrongly is in no program: the pitfalls, on the trees and texts of all variants."""

import re
from collections import Counter

import pytest

from meta500.backends.generated.exaslang.bodies import stored_once
from meta500.backends.generated.exaslang.files import Platform, knowledge, platform, settings
from meta500.backends.generated.exaslang.names import Names
from meta500.backends.generated.exaslang.parse import parse
from meta500.backends.generated.exaslang.tree import (
    CLOSE,
    INT,
    OPEN,
    REAL,
    RESERVED,
    Assignment,
    Binary,
    Call,
    Declaration,
    Element,
    FieldAccess,
    FieldLoop,
    If,
    Integer,
    MatrixType,
    Name,
    Native,
    Negative,
    Number,
    Repeat,
    walk,
)
from meta500.backends.generated.exaslang.variant import Variant

NETWORKS = ("two_layers_max", "unet", "residual", "numbers")
# Every network in every variant is slow: two of them are enough to see every kind of statement.
SLOW_NETWORKS = ("unet", "residual")
CASES = [
    pytest.param(
        (name, pixels, parallel),
        marks=[pytest.mark.slow] if name in SLOW_NETWORKS else [],
        id=f"{name} {pixels} {parallel}",
    )
    for name in NETWORKS
    for pixels in ("outermost", "innermost")
    for parallel in ("serial", "openmp", "mpi 2x2", "mpi 2x2 without a halo", "hybrid", "cuda")
]


@pytest.fixture(scope="module", params=CASES)
def case(request, variants, subject, program):
    """A program with its variant, read back from the text."""
    name, pixels, parallel = request.param
    variant = variants[f"{parallel}, {pixels}"]
    trained = program(subject(name), variant, "adam")
    tree = parse(str(trained.tree))
    assert tree == trained.tree
    return trained, tree, variant


def statements(tree):
    return [node for f in tree.functions for s in f.body for node in walk(s)]


def bodies(tree):
    """All blocks of statements."""
    found = [f.body for f in tree.functions]
    for node in statements(tree):
        if isinstance(node, Repeat | FieldLoop):
            found.append(node.body)
        elif isinstance(node, If):
            found += [node.body, node.otherwise]
    return found


def test_reductions_begin_with_zero(case):
    _, tree, _ = case
    loops = 0
    for body in bodies(tree):
        for number, statement in enumerate(body):
            if isinstance(statement, FieldLoop) and statement.reduction:
                loops += 1
                operator, name = statement.reduction
                assert operator == "+"
                before = body[number - 1]
                assert isinstance(before, Declaration) and before.name == name
                assert before.initial == Number(0.0)
                # It is a variable of its own, which is added to something else afterwards.
                assert name not in {v.name for v in tree.variables}
    assert loops >= 4


def compound(statement):
    """Terms over fields, deeper than an access, that the generator could take for common ones."""
    found = []
    for node in walk(statement):
        arithmetic = isinstance(node, Binary) and node.operator in "+-*/"
        if (arithmetic or isinstance(node, Negative | Call)) and any(
            isinstance(inner, FieldAccess) for inner in walk(node)
        ):
            found.append(str(node))
    return found


def test_no_term_over_a_field_stands_twice_in_a_body(case):
    _, tree, _ = case
    for loop in (node for node in statements(tree) if isinstance(node, FieldLoop)):
        for body in (loop.body, *(n.body for n in walk(loop) if isinstance(n, Repeat))):
            straight = [s for s in body if isinstance(s, Assignment | Declaration)]
            counts = Counter(term for s in straight for term in compound(s))
            written = {
                s.target.field
                for s in straight
                if isinstance(s, Assignment) and isinstance(s.target, FieldAccess)
            }
            declared = {s.name for s in straight if isinstance(s, Declaration)}
            for term, count in counts.items():
                names = set(re.findall(r"[A-Za-z_]\w*", term))
                assert count == 1 or names & (written | declared), term


def test_losses_are_divided_by_all_pixels(case):
    trained, tree, variant = case
    body = str("\n".join(line for f in tree.functions if f.name == "LossFunction" for line in f.lines()))
    (layout, *_) = [x for x in tree.layouts if x.level == trained.translation.top]
    pixels = layout.inner[0] * layout.inner[1] * variant.processes
    images = layout.rows
    (picture, *_) = trained.inputs.values()
    assert (pixels, images) == (picture.size[0] * picture.size[1], picture.images)
    numbers = {float(n) for n in re.findall(r"\d+\.\d+", body)}
    channels = {p.channels for p in trained.translation.tensors.pictures.values()}
    counts = {pixels * images * c for c in {1} | channels}
    assert any(abs(n - count) < 1e-9 or abs(n * count - 1) < 1e-9 for n in numbers for count in counts), body


def whole(expression, integers):
    """Whether C++ would take an expression for a whole number."""
    match expression:
        case Integer():
            return True
        case Name(name):
            return name in integers
        case Binary(operator, left, right) if operator in "+-*/%":
            return whole(left, integers) and whole(right, integers)
        case Negative(value):
            return whole(value, integers)
    return False


def test_whole_numbers_are_not_divided(case):
    _, tree, _ = case
    integers = {
        n.name for n in (*statements(tree), *tree.variables) if isinstance(n, Declaration) and n.type == INT
    }
    integers |= {"i0", "i1"} | {p for f in tree.functions for p in f.parameters}
    assert not integers & {v.name for v in tree.variables}
    for node in statements(tree):
        if isinstance(node, Binary) and node.operator in "/%":
            assert not (whole(node.left, integers) and whole(node.right, integers)), str(node)
        if isinstance(node, Assignment) and node.operator == "/=":
            assert not whole(node.target, integers)


def test_no_scope_declares_a_name_twice(case):
    _, tree, _ = case

    def check(body, counters):
        scopes = [set()]
        for statement in body:
            if statement == Native(OPEN):
                scopes.append(set())
            elif statement == Native(CLOSE):
                scopes.pop()
            elif isinstance(statement, Declaration):
                assert statement.name not in scopes[-1], statement
                scopes[-1].add(statement.name)
            elif isinstance(statement, Repeat | FieldLoop):
                if isinstance(statement, Repeat):
                    assert any(statement.counter in scope for scope in [*scopes, counters]), statement.counter
                check(statement.body, counters.union(*scopes))
            elif isinstance(statement, If):
                check(statement.body, counters.union(*scopes))
                check(statement.otherwise, counters.union(*scopes))
        assert len(scopes) == 1

    for function in tree.functions:
        check(function.body, set(function.parameters))
    names = [v.name for v in tree.variables]
    assert len(set(names)) == len(names)


def test_names_are_no_words_of_the_language(case):
    _, tree, _ = case
    ours = {v.name for v in tree.variables} | {f.name for f in tree.fields}
    assert not ours & RESERVED
    local = {n.name for n in statements(tree) if isinstance(n, Declaration)}
    counters = {"batch", "channel", "channel_in", "element", "epoch", "step"}
    assert not (local - counters) & RESERVED
    # What is local hides nothing of the network.
    assert not ours & (local | counters | {p for f in tree.functions for p in f.parameters})
    assert all(re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name) for name in ours | local)


def test_reserved_words_get_other_names():
    names = Names()
    given = [names.new(word) for word in sorted(RESERVED)]
    assert len({g.lower() for g in given}) == len(given)
    assert not {g.lower() for g in given} & {word.lower() for word in RESERVED}


def test_no_matrix_has_one_element(case):
    _, tree, _ = case
    kinds = [n.type for n in (*statements(tree), *tree.variables) if isinstance(n, Declaration)]
    matrices = [k for k in kinds if isinstance(k, MatrixType)]
    assert matrices and all(k.rows * k.columns > 1 for k in matrices)
    assert all(layout.rows * layout.columns > 1 for layout in tree.layouts)
    assert "Matrix<Real, 1, 1>" not in str(tree)


def test_matrices_begin_with_a_number(case):
    _, tree, _ = case
    for node in (*statements(tree), *tree.variables):
        if isinstance(node, Declaration) and isinstance(node.type, MatrixType):
            assert node.initial == Number(0.0)
    # A field never stands without its element.
    fields = {f.name for f in tree.fields}
    assert not any(isinstance(node, Name) and node.name in fields for node in statements(tree))


def test_val_is_not_used(case):
    """A Val is pasted at every use, it holds nothing."""
    _, tree, _ = case
    assert not any(isinstance(n, Declaration) and n.constant for n in (*statements(tree), *tree.variables))


def test_reduced_matrices_are_small(case):
    _, tree, variant = case
    most = 9 if variant.parallel == "cuda" else 4096
    kinds = {n.name: n.type for n in statements(tree) if isinstance(n, Declaration)}
    sizes = []
    for node in statements(tree):
        if isinstance(node, FieldLoop) and node.reduction:
            kind = kinds[node.reduction[1]]
            sizes.append(kind.rows * kind.columns if isinstance(kind, MatrixType) else 1)
    assert sizes and max(sizes) <= most


def test_comparisons_are_no_operands(case):
    """The generator's grammar has no arithmetic of conditions."""
    _, tree, _ = case
    conditions = {"<", ">", "<=", ">=", "==", "!=", "&&", "||"}
    for node in statements(tree):
        if isinstance(node, Binary) and node.operator not in {"&&", "||"}:
            for side in (node.left, node.right):
                assert not (isinstance(side, Binary) and side.operator in conditions), str(node)
        if isinstance(node, Call):
            assert not any(isinstance(a, Binary) and a.operator in conditions for a in node.arguments)
            # The generator prints an initialiser list, whose elements have one type.
            if node.function in ("max", "min"):
                assert not any(isinstance(a, Integer) for a in node.arguments)


def test_strings_have_no_second_kind_of_quote(case):
    _, tree, _ = case
    assert all(line.count("'") in (0, 2) for line in str(tree).splitlines() if "native" in line)
    assert not any('"' in line and "'" in line for line in str(tree).splitlines())


def test_the_loops_of_a_parallel_region(case):
    """Behind its own pragma every loop is sequential; reductions and communication stand outside of regions."""
    _, tree, variant = case
    regions = 0

    def check(body, inside):
        nonlocal regions
        for number, statement in enumerate(body):
            before = body[number - 1] if number else None
            if statement == Native(OPEN):
                assert not inside
                assert before == Native(f"#pragma omp parallel num_threads({variant.threads}) //")
                inside, regions = True, regions + 1
            elif statement == Native(CLOSE):
                assert inside
                inside = False
            elif isinstance(statement, FieldLoop):
                shares = before == Native("#pragma omp for schedule(static) nowait //")
                assert shares == inside
                if inside:
                    assert statement.sequential and statement.reduction is None
            elif isinstance(statement, Repeat):
                check(statement.body, inside)
            elif isinstance(statement, If):
                check(statement.body, inside)
                check(statement.otherwise, inside)
            elif inside:
                # Anything else would happen once per thread.
                assert isinstance(statement, Native) or (
                    isinstance(statement, Declaration) and statement.type == INT
                )

    for function in tree.functions:
        check(function.body, False)
    assert (regions > 0) == (variant.openmp and variant.pixels == "innermost")
    assert ("#pragma" in str(tree)) == (regions > 0)


def test_cells_write_only_variables_of_their_own(case):
    """Variables declared outside of a loop over cells are shared by the threads: they are read, or reduced."""
    _, tree, _ = case
    for loop in (node for node in statements(tree) if isinstance(node, FieldLoop)):
        own = {n.name for n in walk(loop) if isinstance(n, Declaration)}
        reduced = {loop.reduction[1]} if loop.reduction else set()
        for node in walk(loop):
            if isinstance(node, Repeat):
                assert node.counter in own
            if isinstance(node, Assignment) and isinstance(node.target, Name):
                assert node.target.name in own | reduced
            if isinstance(node, Assignment) and isinstance(node.target, Element):
                assert node.target.matrix in reduced


def test_communication_only_where_there_are_halos(case):
    _, tree, variant = case
    beside = any(isinstance(n, FieldAccess) and min(n.offset) < 0 for n in statements(tree))
    assert ("communicate ghost of" in str(tree)) == (variant.halo and beside)


def test_the_loops_of_a_region_need_not_wait_for_each_other(case):
    """With nowait a thread sees only what it has written itself: the same cells, by the same loop."""
    _, tree, _ = case
    for function in tree.functions:
        starts = [i for i, s in enumerate(function.body) if s == Native(OPEN)]
        ends = [i for i, s in enumerate(function.body) if s == Native(CLOSE)]
        for start, end in zip(starts, ends, strict=True):
            nodes = [node for s in function.body[start:end] for node in walk(s)]
            assert len({node.level for node in nodes if isinstance(node, FieldLoop)}) == 1
            targets = [
                n.target for n in nodes if isinstance(n, Assignment) and isinstance(n.target, FieldAccess)
            ]
            written = {(t.field, t.level) for t in targets}
            cells = {(t.field, t.level, t.offset) for t in targets}
            for node in nodes:
                if isinstance(node, FieldAccess) and (node.field, node.level) in written:
                    assert (node.field, node.level, node.offset) in cells


def test_the_domain_has_one_square_per_block(case):
    """Positions from 0 to 1, of which the C++ header makes the block."""
    _, tree, _ = case
    assert tree.domain == (1, 1)


# -- weights and sizes ----------------------------------------------------------------------------


@pytest.mark.parametrize("pixels", ["outermost", "innermost"])
def test_weights_are_no_part_of_the_text(pixels, draft, with_data, program):
    """Twice the channels, four times the weights: the same lines."""
    texts = []
    for channels in (4, 8, 16):
        d = draft("wide", 1, (3, 8, 8))
        x = d.conv(d.relu(d.conv(d.image, channels, "a")), channels, "b")
        one = with_data(d.finish(d.conv(x, 3, "c", kernel=1)))
        texts.append(str(program(one, Variant(pixels, double=True), "adam").tree))
        for array in one.weights().values():
            assert not any(repr(float(abs(w))) in texts[-1] for w in array.ravel()[:5])
    assert len({len(text.splitlines()) for text in texts}) == 1
    assert len(texts[2]) < 1.02 * len(texts[0])


def test_terms_are_stored_where_they_stand_twice():
    u = FieldAccess("u", 2, Integer(0), Name("c"))
    double = Binary("*", u, Number(2.0))
    body = (
        Assignment(Name("a"), Binary("+", double, Number(1.0))),
        Assignment(Name("b"), Binary("-", double, Name("k"))),
    )
    stored = stored_once(body, lambda base: f"{base}_1")
    assert stored == (
        Declaration("term_1", REAL, double),
        Assignment(Name("a"), Binary("+", Name("term_1"), Number(1.0))),
        Assignment(Name("b"), Binary("-", Name("term_1"), Name("k"))),
    )
    # Not where the field changes in between.
    changing = (body[0], Assignment(u, Number(0.0)), body[1])
    assert stored_once(changing, lambda base: f"{base}_1") == changing


# -- files beside the code ------------------------------------------------------------------------


def keys(text):
    found = [line.split("=", 1) for line in text.splitlines() if "+=" not in line]
    names = [key.strip() for key, _ in found]
    assert len(set(names)) == len(names)
    return {key.strip(): value.strip() for key, value in found}


def test_what_defaults_to_true_is_set(variants):
    for variant in variants.values():
        found = keys(knowledge(variant, (1, 3)))
        assert found["mpi_enabled"] == str(variant.mpi).lower()
        assert found["omp_parallelizeLoopOverFragments"] == "false"
        assert (
            found["omp_enabled"] == found["omp_parallelizeLoopOverDimensions"] == str(variant.openmp).lower()
        )
        assert found["domain_rect_numFragsPerBlock_x"] == found["domain_rect_numFragsPerBlock_y"] == "1"
        assert not any("numFragments" in key for key in found)
        assert (found["domain_rect_numBlocks_x"], found["domain_rect_numBlocks_y"]) == tuple(
            map(str, variant.blocks)
        )
        assert int(found["mpi_numThreads"]) == variant.processes
        assert int(found["omp_numThreads"]) == variant.threads
        assert (found["minLevel"], found["maxLevel"]) == ("1", "3")
        assert ("cuda_enabled" in found) == (variant.parallel == "cuda")
        assert not any(key.startswith("opt_") for key in found)


@pytest.mark.parametrize("parallel", ["serial", "cuda"])
def test_the_flags_of_the_thesis(parallel):
    found = keys(knowledge(Variant(parallel=parallel, optimize=True), (0, 2)))
    for key in ("opt_vectorize", "opt_useAddressPrecalc", "opt_conventionalCSE", "data_alignFieldPointers"):
        assert found[key] == "true"
    assert found.get("cuda_usePinnedHostMemory") == ("false" if parallel == "cuda" else None)


@pytest.mark.parametrize("double", [True, False])
def test_precision(double):
    assert keys(knowledge(Variant(double=double), (0, 2)))["useDblPrecision"] == str(double).lower()


def test_the_platform_is_named(variants):
    for variant in variants.values():
        found = keys(platform(variant, Platform(simd="AVX512")))
        assert found["targetOS"] == '"Linux"' and found["simd_instructionSet"] == '"AVX512"'
        assert found["targetHardware"] == ('"GPU"' if variant.parallel == "cuda" else '"CPU"')
        assert ("hw_cuda_capability" in found) == (variant.parallel == "cuda")


def test_settings_name_the_files():
    found = keys(settings("net"))
    assert found["l4file"] == '"net.exa4"' and found["outputPath"] == '"generated/"'
    assert 'additionalIncludes += { "meta500_data.h" }' in settings("net")


def test_positions_stay_in_their_block(draft, with_data, program):
    """The generator takes a block of level L for 2^L cells wide: levels are fine enough for every size."""
    for size, blocks in (((4, 4), (1, 1)), ((6, 12), (1, 1)), ((12, 4), (2, 2)), ((4, 20), (5, 1))):
        d = draft("sizes", 1, (1, *size))
        model = d.finish(d.conv(d.image, 3, "a"))
        parallel = "serial" if blocks == (1, 1) else "mpi"
        tree = program(with_data(model), Variant(parallel=parallel, blocks=blocks, double=True)).tree
        assert all(max(layout.inner) <= 2**layout.level for layout in tree.layouts)
