"""How threads share sums: by elements, by terms with private copies, or with atomic additions; and long rows."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

import meta500
from meta500.backends.generated.adjoint import differentiate, without_dead_stages
from meta500.backends.generated.interpret import run
from meta500.backends.generated.library import Executable, build
from meta500.backends.generated.lower import lower
from meta500.backends.generated.nests import ADD, DOT, LONGEST_ROW, MAP, ROW, STRIP, Nest
from meta500.backends.generated.schedule import Options, Schedule, schedule
from meta500.backends.generated.stencil import stencil
from meta500.backends.targets import native_target
from meta500.errors import UserError
from meta500.graph import Builder, ops
from meta500.graph.passes import infer_types

LONG = LONGEST_ROW + 905
TWO = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two processors")


def planned(program: Any, threads: int, private_sums: bool = True, register_blocks: bool = True) -> Schedule:
    target = native_target()
    sizes = (target.vector_bytes, target.registers)
    return schedule(
        program,
        Options("double", threads, *sizes, private_sums=private_sums, register_blocks=register_blocks),
    )


def backward(program: Any, target: str, variable: str, method: str) -> Any:
    found = differentiate(program, target, [variable], cotangent="bar", method=method)
    found.outputs = {}
    return without_dead_stages(found, list(found.gradients.values()))


def scatter(method: str) -> Any:
    program = stencil("v[i] = a[r] * u[i+r-1]", {"u": (LONG,), "a": (3,)}, parameters=["a"])
    return backward(program, "v", "u", method)


def weights(method: str) -> Any:
    """The weight gradient of a convolution of one image: long sums over pixels, few elements."""
    b = Builder("conv")
    x = b.input("x", "float64", (1, 2, 24, 20))
    b.output(b.add(ops.Conv, x, b.parameter("w", np.ones((3, 2, 3, 3))), pads=(1, 1, 1, 1)), "y")
    typed = infer_types(b.build(), strict=False)
    program = lower(typed, ["y"], ["w"])
    return backward(program, program.outputs["y"], "w", method)


def nest_of(plan: Schedule, gradient: str) -> Any:
    """The nest of the last kernel that writes the gradient."""
    kernels = [k for step in plan.steps for k in step.kernels if k.stage.write.tensor == gradient]
    return kernels[-1].nest


def check(program: Any, plan: Schedule) -> None:
    """The compiled program does what the interpreted one does, twice."""
    rng = np.random.default_rng(0)
    manifest = build(plan, native_target(), "", "")
    arrays = {name: np.full(shape, np.nan) for name, shape, _ in manifest.external}
    for name, tensor in program.tensors.items():
        if tensor.role in ("input", "parameter"):
            arrays[name][...] = rng.standard_normal(tensor.shape)
    wanted = run(program, arrays)
    executable = Executable(manifest, lambda: plan)
    for threads in range(plan.options.threads, 0, -1):
        executable.use_threads(threads)
        executable.run(arrays)
        for name in program.gradients.values():
            np.testing.assert_allclose(arrays[name], wanted[name], rtol=1e-11, atol=1e-11)
    executable.close()


def test_threads_share_the_field_of_a_scatter_and_not_its_taps() -> None:
    private = nest_of(planned(scatter("reduction"), 2), "grad/u")
    assert (private.form, private.split.name, private.strip) == (ADD, "i", STRIP)
    assert private.private and not private.atomic
    atomic = nest_of(planned(scatter("atomics"), 2), "grad/u")
    assert atomic.atomic and atomic.split.name == "i" and "atomic additions" in str(atomic)
    alone = nest_of(planned(scatter("atomics"), 1), "grad/u")
    assert not alone.atomic and not alone.private
    gather = nest_of(planned(scatter("gather"), 2), "grad/u")
    assert (gather.form, gather.strip, gather.split) == (ROW, STRIP, gather.vector)
    assert "in strips of" in str(gather)


def test_a_row_stands_against_short_sums_only_without_jumps() -> None:
    """Filters of a convolution of small pictures: their weights lie a whole filter apart."""
    b = Builder("conv")
    x = b.input("x", "float64", (2, 32, 2, 2))
    b.output(b.add(ops.Conv, x, b.parameter("w", np.ones((32, 32, 3, 3))), pads=(1, 1, 1, 1)), "y")
    program = lower(infer_types(b.build(), strict=False), ["y"], ["w"])
    nest = nest_of(planned(program, 1), program.outputs["y"])
    assert (nest.form, nest.vector.name) == (DOT, "q")
    # Of the step of a Burgers equation two coefficients change along the taps, and the field nowhere jumps.
    text = "v[i] = u[i] + (c[r] * u[i] + d[r]) * u[i+r-1]"
    sizes = {"u": (LONG,), "c": (3,), "d": (3,)}
    burgers = backward(stencil(text, sizes, parameters=["c", "d"]), "v", "u", "gather")
    nests = [k.nest for step in planned(burgers, 1).steps for k in step.kernels if k.stage.reduced]
    assert nests and {nest.form for nest in nests} == {ROW}


def test_without_register_blocks_every_sum_is_a_plain_loop() -> None:
    for threads, method in ((1, "gather"), (2, "gather"), (2, "reduction")):
        program = weights(method)
        assert not isinstance(nest_of(planned(program, threads), "grad/w"), Nest)
        nest = nest_of(planned(program, threads, register_blocks=False), "grad/w")
        assert isinstance(nest, Nest) and nest.form == DOT


def test_a_map_over_one_long_axis_is_shared() -> None:
    fill = planned(scatter("atomics"), 2).steps[0].kernels[0].nest
    assert isinstance(fill, Nest) and fill.form == MAP and fill.split == fill.vector
    short = stencil("v[i] = 2 * u[i]", {"u": (100,)})
    assert planned(short, 2).steps[0].kernels[0].nest.split is None


def test_a_sum_over_pixels_is_shared_as_asked() -> None:
    atomic = nest_of(planned(weights("atomics"), 2), "grad/w")
    assert atomic.atomic and atomic.split.name in {axis.name for axis in atomic.stage.reduced}
    assert planned(weights("reduction"), 2).partial_bytes >= 3 * 2 * 9 * 8
    own = planned(weights("gather"), 2, private_sums=False)
    assert own.partial_bytes == 0
    nest = nest_of(own, "grad/w")
    assert nest.split.name in {axis.name for axis in nest.stage.kept}
    # By itself the backend takes the copies, which keep sums in registers.
    assert planned(weights("gather"), 2).partial_bytes > 0


@TWO
@pytest.mark.parametrize(
    ("program", "method", "private_sums"),
    [
        (scatter, "gather", True),
        (scatter, "reduction", True),
        pytest.param(scatter, "atomics", True, marks=pytest.mark.slow),
        pytest.param(weights, "gather", False, marks=pytest.mark.slow),
        (weights, "reduction", True),
        (weights, "atomics", True),
    ],
)
def test_compiled(program, method, private_sums) -> None:
    made = program(method)
    check(made, planned(made, 2, private_sums))


@TWO
@pytest.mark.parametrize("operator", ["sum", "max"])
def test_long_rows_of_sums_and_maxima(operator) -> None:
    """Winners of maxima and their gradients lie in strips, too."""
    rng = np.random.default_rng(1)
    b = Builder("rows")
    x = b.input("x", "float64", (1, 1, 40, LONG))
    if operator == "sum":
        y = b.add(ops.ReduceMean, x, b.constant(np.array([2])), keepdims=0)
    else:
        y = b.add(ops.MaxPool, x, kernel_shape=(40, 1))
    b.output(b.add(ops.ReduceSum, b.add(ops.Mul, y, y), keepdims=0, outputs=["loss"]))
    model, fed = b.build(), {"x": rng.standard_normal((1, 1, 40, LONG))}
    found = []
    for options in ({"backend": "numpy"}, {"backend": "generated", "threads": 2}):
        with meta500.network(model, **options) as net:
            loss = net.inference_and_backprop(fed, wrt=["x"])["loss"]
            (gradient,) = net.fetch_tensors(["grad/x"])
            found.append((np.array(loss), np.array(gradient)))
    for wanted, result in zip(*found, strict=True):
        np.testing.assert_allclose(result, wanted, rtol=1e-10, atol=1e-12)


@TWO
def test_more_threads_than_it_was_made_for_are_refused() -> None:
    made = scatter("gather")
    plan = planned(made, 2)
    executable = Executable(build(plan, native_target(), "", ""), lambda: plan)
    for count in (0, 3):
        with pytest.raises(UserError, match=f"made for 2 threads.*not with {count}"):
            executable.use_threads(count)
    executable.close()
