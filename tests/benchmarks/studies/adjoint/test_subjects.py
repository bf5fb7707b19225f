"""Adjoints of the study's subjects: every form against references that share nothing with it."""

from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meta500.backends.generated.interpret import run
from meta500.backends.generated.nests import Nest
from meta500.benchmarks.studies.adjoint.forms import (
    FORMS,
    PARALLEL,
    NothingToProtect,
    adjoint_program,
    compiled,
    planned,
    predicted_private_bytes,
)
from meta500.benchmarks.studies.adjoint.subjects import (
    BURGERS,
    COTANGENT,
    STENCILS,
    Convolution,
    StencilText,
    _dense,
    convolution_subjects,
    convolutions,
    stencil_adjoint,
    stencil_subject,
)
from meta500.metrics.norms import compare, tolerance

FEW = min(2, len(os.sched_getaffinity(0)))
NEED_TWO = pytest.mark.skipif(FEW == 1, reason="parallel forms begin with two threads")


def exact(subject) -> dict[str, np.ndarray]:
    return {name: array.astype(np.float64) for name, array in subject.arrays.items()}


@pytest.mark.parametrize("text", STENCILS, ids=lambda text: text.name)
def test_references_are_transposes_of_the_forward_stencil(text) -> None:
    """<v_bar, J du> = <J' v_bar, du>, with J du from differences of the interpreted forward loops."""
    subject = stencil_subject(text, 9)
    arrays = exact(subject)
    rng = np.random.default_rng(3)
    step = rng.standard_normal(arrays["u"].shape)

    def forward(shift: float) -> np.ndarray:
        return run(subject.program, {**arrays, "u": arrays["u"] + shift * step})["v"]

    # Central differences are exact for what is at most quadratic.
    tangent = (forward(0.5) - forward(-0.5)).ravel()
    gradient = stencil_adjoint(text, arrays)
    assert np.vdot(arrays[COTANGENT], tangent) == pytest.approx(np.vdot(gradient, step), rel=1e-10)


@pytest.mark.parametrize("method", ["gather", "reduction", "atomics"])
@pytest.mark.parametrize("text", STENCILS, ids=lambda text: text.name)
def test_the_loops_mean_the_reference(text, method) -> None:
    subject = stencil_subject(text, 11)
    arrays = exact(subject)
    program = adjoint_program(subject, method)
    found = run(program, arrays)[program.gradients["u"]]
    np.testing.assert_allclose(found, stencil_adjoint(text, arrays), rtol=1e-12, atol=1e-12)


@st.composite
def dense_stencils(draw) -> tuple[StencilText, int]:
    """Dense stencils of odd reach in one and two dimensions, on fields with a few strips and odd edges."""
    rank = draw(st.sampled_from((1, 2)))
    reach = draw(st.integers(1, 3)) if rank == 1 else draw(st.integers(1, 2))
    sizes = (2 * reach + 1,) * rank
    indices = ["ij"[d] + "+" + "rq"[d] + f"-{reach}" for d in range(rank)]
    axes, taps = ", ".join("ij"[:rank]), ", ".join("rq"[:rank])
    text = f"v[{axes}] = a[{taps}] * u[{', '.join(indices)}]"
    size = draw(st.sampled_from((4097, 5000, 9001))) if rank == 1 else draw(st.integers(9, 40))
    return StencilText("random", text, rank, {"a": sizes}, _dense("a", sizes)), size


@NEED_TWO
@given(given_=dense_stencils(), form=st.sampled_from(FORMS), threads=st.integers(1, 2))
@settings(max_examples=5, derandomize=True, database=None, deadline=None)
def test_compiled_forms_of_random_stencils(given_, form, threads) -> None:
    text, size = given_
    subject = stencil_subject(text, size, seed=size)
    code = compiled(subject, form, FEW)
    try:
        if form in PARALLEL:
            code.use_threads(threads)
        wanted = subject.reference(exact(subject))
        for _ in range(2):  # what the first run leaves in memory must not count
            norms = compare(code.run(), wanted)
            assert norms.within(tolerance(np.float32, subject.terms)), (form, norms)
    finally:
        code.close()


FAST = ((BURGERS, "reduction"), ("x", "atomics"), ("w", "gather"), ("w", "atomics"))


@NEED_TWO
@pytest.mark.parametrize(
    ("name", "form"),
    [
        pytest.param(name, form, marks=[] if (name, form) in FAST else [pytest.mark.slow])
        for name in (BURGERS, "x", "w")
        for form in FORMS
    ],
)
def test_compiled_forms_of_burgers_and_of_a_convolution(name, form) -> None:
    (burgers,) = [text for text in STENCILS if text.name == BURGERS]
    gradients = convolution_subjects(Convolution("Conv", 2, 3, 3, 12), "unet-0")
    for subject in (stencil_subject(burgers, 5000), *gradients):
        if name in (subject.name, subject.variable):
            wanted = subject.reference(exact(subject))
            code = compiled(subject, form, FEW)
            norms = compare(code.run(), wanted)
            assert norms.within(tolerance(np.float32, subject.terms)), (
                subject.name,
                subject.phase,
                form,
                norms,
            )
            code.close()


@NEED_TWO
def test_where_reads_are_exclusive_there_is_nothing_to_protect() -> None:
    """A 2x2 up-convolution of stride 2: no two pixels read or write the same element."""
    by_input, by_weight = convolution_subjects(Convolution("ConvTranspose", 2, 2, 2, 12), "unet-0")
    for form in ("reduction", "atomics"):
        with pytest.raises(NothingToProtect, match="exclusive over i, j"):
            planned(by_input, form, 2)
        assert planned(by_weight, form, 2)
    assert predicted_private_bytes(by_input, 2) == 0


@NEED_TWO
@pytest.mark.parametrize(
    "shape", [("Conv", 16, 16, 3, 32), ("Conv", 24, 24, 1, 32), ("ConvTranspose", 8, 8, 2, 16)]
)
def test_forms_differ_in_nothing_but_their_form(shape) -> None:
    """Sums in the same kind of loop, along the same kind of axis: none is blocked in registers, none is not."""
    for subject in convolution_subjects(Convolution(*shape), "unet-0"):
        kinds = set()
        for form in FORMS:
            try:
                steps = planned(subject, form, 2).schedule.steps
            except NothingToProtect:
                continue
            nests = [kernel.nest for step in steps for kernel in step.kernels]
            assert {type(nest) for nest in nests} == {Nest}, form
            assert {step.kind for step in steps} == {"whole"}
            sums = [nest for nest in nests if nest.stage.reduced]
            kinds.add(tuple((nest.form, nest.vector.size) for nest in sums))
        assert len(kinds) == 1 and kinds != {()}


@NEED_TWO
def test_private_copies_are_as_large_as_predicted() -> None:
    """One copy per thread of what is summed, in whole lines of 64 bytes."""
    lines = lambda count: -(-4 * count // 64) * 64  # noqa: E731
    sizes = {1: 5001, 2: 37}
    for text in STENCILS:
        subject = stencil_subject(text, sizes[text.rank])
        copies = 2 if text.name == "2-D star" else 1
        elements = sizes[text.rank] ** text.rank
        for threads in (2, 3):
            predicted = predicted_private_bytes(subject, threads)
            assert predicted == threads * copies * lines(elements)
            assert planned(subject, "reduction", threads).private_bytes == predicted
        for form in ("gather", "atomics", "serial scatter", "serial gather"):
            assert planned(subject, form, 2).private_bytes == 0
    by_input, by_weight = convolution_subjects(Convolution("Conv", 2, 3, 3, 12), "unet-0")
    assert predicted_private_bytes(by_input, 2) == 2 * lines(2 * 12 * 12)
    assert predicted_private_bytes(by_weight, 2) == 2 * lines(3 * 2 * 9)
    for subject in (by_input, by_weight):
        assert planned(subject, "reduction", 2).private_bytes == predicted_private_bytes(subject, 2)


def test_the_printed_code_keeps_the_forms_apart() -> None:
    from meta500.backends.generated import cpp

    subject = stencil_subject(STENCILS[0], 5000)
    texts = {form: "\n".join(cpp.sources(planned(subject, form, 2).schedule).values()) for form in FORMS}
    assert {form for form, text in texts.items() if "omp atomic" in text} == {"atomics"}
    assert {form for form, text in texts.items() if "_merge(" in text} == {"reduction"}
    for form in ("serial scatter", "serial gather"):
        assert "constexpr int threads = 1;" in texts[form]
    # The threads share the field, not its three taps.
    for form in PARALLEL:
        assert "5000" in texts[form] and "split" in texts[form] and "split -" not in texts[form]


def test_the_convolutions_of_the_unet() -> None:
    found = convolutions(0, 32)
    assert found[0].size == 32 and len(found) == len(set(found))
    kinds = {(one.operator, one.kernel) for one in found}
    assert kinds == {("Conv", 3), ("Conv", 1), ("ConvTranspose", 2)}
    assert Convolution("Conv", 3, 1, 3, 32) in found and Convolution("Conv", 2, 3, 1, 32) in found
    # 18 convolutions of 3x3 and four transposed ones; those with equal shapes count once.
    assert {one.size for one in found if one.operator == "ConvTranspose"} == {2, 4, 8, 16}
