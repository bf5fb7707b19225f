"""What is differentiated: stencils and the convolutions of the U-Net, with float64 references in numpy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from meta500.backends.generated.ir import Program
from meta500.backends.generated.stencil import stencil

COTANGENT = "cotangent"
INPUT_GRADIENT, WEIGHT_GRADIENT = "input gradient", "weight gradient"
Arrays = Mapping[str, np.ndarray]
# From the arrays in float64, cotangent included, to the gradient.
Reference = Callable[[Arrays], np.ndarray]


@dataclass(frozen=True)
class Subject:
    """One program, and the variable by which it is differentiated.

    Attributes:
        model: "stencil" or "unet-N".
        operator: "Stencil", "Conv" or "ConvTranspose".
        name: of the subject.
        phase: "input gradient" or "weight gradient".
        program: the forward loops.
        target: the tensor that is differentiated.
        variable: by which.
        arrays: float32, of all inputs and parameters and the cotangent.
        reference: the gradient in float64, not by generated code.
        terms: of the longest sum behind one element of the gradient.
    """

    model: str
    operator: str
    name: str
    phase: str
    program: Program
    target: str
    variable: str
    arrays: dict[str, np.ndarray]
    reference: Reference
    terms: int

    @property
    def shape(self) -> str:
        """Shapes of what the forward loops read, in words."""
        from meta500.benchmarks.protocol import shape_text

        return shape_text([a.shape for n, a in self.arrays.items() if n != COTANGENT])


# -- stencils ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StencilText:
    """A stencil as text.

    Attributes:
        name: for tables.
        text: the assignment to v; u is the field.
        rank: dimensions of the field.
        weights: shapes of the coefficients.
        offsets: for every weight its taps: index into the weight, and the offset from (i, j).
    """

    name: str
    text: str
    rank: int
    weights: dict[str, tuple[int, ...]]
    offsets: dict[str, list[tuple[tuple[int, ...], tuple[int, ...]]]]

    @property
    def linear(self) -> bool:
        """Whether it is a plain sum of weights times neighbours."""
        return self.name != BURGERS


BURGERS = "1-D Burgers step"


def _dense(weight: str, sizes: Sequence[int]) -> dict[str, list[tuple[tuple[int, ...], tuple[int, ...]]]]:
    taps = [tuple(int(n) for n in tap) for tap in np.ndindex(*sizes)]
    return {weight: [(t, tuple(n - s // 2 for n, s in zip(t, sizes, strict=True))) for t in taps]}


STENCILS = (
    StencilText("1-D 3-point", "v[i] = a[r] * u[i+r-1]", 1, {"a": (3,)}, _dense("a", (3,))),
    StencilText("1-D 5-point", "v[i] = a[r] * u[i+r-2]", 1, {"a": (5,)}, _dense("a", (5,))),
    StencilText(
        "2-D star",
        "v[i, j] = a[r] * u[i+r-1, j] + b[r] * u[i, j+r-1]",
        2,
        {"a": (3,), "b": (3,)},
        {"a": [((r,), (r - 1, 0)) for r in range(3)], "b": [((r,), (0, r - 1)) for r in range(3)]},
    ),
    StencilText("2-D 3x3", "v[i, j] = a[r, q] * u[i+r-1, j+q-1]", 2, {"a": (3, 3)}, _dense("a", (3, 3))),
    StencilText("2-D 5x5", "v[i, j] = a[r, q] * u[i+r-2, j+q-2]", 2, {"a": (5, 5)}, _dense("a", (5, 5))),
    # u - dt/dx u du + nu dt/dx^2 d2u: c and d are the coefficients of the differences.
    StencilText(
        BURGERS,
        "v[i] = u[i] + (c[r] * u[i] + d[r]) * u[i+r-1]",
        1,
        {"c": (3,), "d": (3,)},
        {"c": [((r,), (r - 1,)) for r in range(3)], "d": [((r,), (r - 1,)) for r in range(3)]},
    ),
)


def stencil_subject(text: StencilText, size: int, seed: int = 0) -> Subject:
    """A stencil on a field of ``size`` elements per dimension; v is 0 where taps would leave the field."""
    rng = np.random.default_rng(seed)
    field = (size,) * text.rank
    program = stencil(
        text.text, {"u": field, **text.weights}, parameters=list(text.weights), boundary="interior"
    )
    arrays = {"u": rng.standard_normal(field, dtype=np.float32)}
    for name, shape in text.weights.items():
        arrays[name] = rng.standard_normal(shape, dtype=np.float32)
    arrays[COTANGENT] = rng.standard_normal(field, dtype=np.float32)
    taps = sum(len(offsets) for offsets in text.offsets.values())

    def reference(given: Arrays) -> np.ndarray:
        return stencil_adjoint(text, given)

    return Subject(
        "stencil", "Stencil", text.name, INPUT_GRADIENT, program, "v", "u", arrays, reference, taps + 1
    )


def stencil_adjoint(text: StencilText, given: Arrays) -> np.ndarray:
    """The adjoint by numpy slices: every tap scatters what the interior of v gives it.

    Args:
        text: which stencil.
        given: u, the weights and the cotangent.
    """
    u, bar = given["u"], given[COTANGENT]
    reach = max(abs(n) for offsets in text.offsets.values() for _, offset in offsets for n in offset)
    gradient = np.zeros_like(u)

    def moved(offset: Sequence[int]) -> tuple[slice, ...]:
        ends = [(reach + o, n - reach + o) for o, n in zip(offset, u.shape, strict=True)]
        return tuple(slice(low, high) for low, high in ends)

    centre = moved((0,) * u.ndim)
    for name, offsets in text.offsets.items():
        for tap, offset in offsets:
            weight = given[name][tap]
            # c multiplies u[i] * u[i+s-1], every other weight u[i+s-1] alone.
            product = not text.linear and name == "c"
            gradient[moved(offset)] += weight * bar[centre] * (u[centre] if product else 1.0)
            if product:
                gradient[centre] += weight * bar[centre] * u[moved(offset)]
    if not text.linear:
        gradient[centre] += bar[centre]
    return gradient


# -- convolutions --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Convolution:
    """A convolution of the U-Net: channels in and out, taps, and the side of its square input."""

    operator: str
    channels: int
    filters: int
    kernel: int
    size: int

    @property
    def work(self) -> int:
        """Multiply-adds for one image, those with zeros of the padding included."""
        return self.channels * self.filters * (self.kernel * self.size) ** 2

    @property
    def name(self) -> str:
        """For tables."""
        kind = "up-convolution" if self.operator == "ConvTranspose" else "convolution"
        return f"{self.kernel}x{self.kernel} {kind}, {self.channels} to {self.filters} at {self.size}"


def convolutions(n: int, size: int) -> list[Convolution]:
    """The distinct convolutions of U-Net(n) on a square image, the largest pictures first."""
    from meta500.models import unet

    model = unet(n, batch=1, size=size)
    types = model.graph.types()
    found: dict[Convolution, None] = {}
    for op in model.graph.operations:
        if op.op_type not in ("Conv", "ConvTranspose"):
            continue
        x, w = types[op.X].shape, model.graph.initializers[op.W].shape  # type: ignore[attr-defined, union-attr]
        filters = w[0] if op.op_type == "Conv" else w[1]
        found[Convolution(op.op_type, int(x[1]), int(filters), int(w[2]), int(x[2]))] = None  # type: ignore[index, arg-type]
    return sorted(found, key=lambda c: (-c.size, c.operator, -c.kernel))


def convolution_subjects(one: Convolution, model: str, seed: int = 0) -> list[Subject]:
    """The input and the weight gradient of one convolution on a single image, padded as in the U-Net."""
    from meta500.backends.generated.lower import lower
    from meta500.graph import Builder, TensorType, ops
    from meta500.graph.passes import infer_types

    rng = np.random.default_rng(seed)
    up = one.operator == "ConvTranspose"
    channels, filters, kernel = one.channels, one.filters, one.kernel
    x = rng.standard_normal((1, channels, one.size, one.size), dtype=np.float32)
    shape = (channels, filters, kernel, kernel) if up else (filters, channels, kernel, kernel)
    scale = np.float32(1 / np.sqrt(channels * kernel * kernel))
    w = rng.standard_normal(shape, dtype=np.float32) * scale
    b = Builder(one.operator.lower())
    image = b.input("x", "float32", x.shape)
    weight = b.parameter("w", w)
    if up:
        result = b.add(ops.ConvTranspose, image, weight, strides=(kernel, kernel))
    else:
        result = b.add(ops.Conv, image, weight, pads=(kernel // 2,) * 4)
    b.output(result, "y")
    built = b.build()
    typed = infer_types(built, strict=False)
    output = typed.outputs["y"]
    assert isinstance(output, TensorType) and output.shape is not None
    bar = rng.standard_normal([int(n) for n in output.shape], dtype=np.float32)  # type: ignore[arg-type]
    program = lower(typed, ["y"], ["w"])
    arrays = {"x": x, "w": w, COTANGENT: bar}
    terms = {"x": filters * kernel * kernel, "w": int(np.prod(output.shape[2:]))}  # type: ignore[arg-type]
    subjects = []
    for variable, phase in (("x", INPUT_GRADIENT), ("w", WEIGHT_GRADIENT)):

        def reference(given: Arrays, variable: str = variable) -> np.ndarray:
            return _by_numpy_backend(built, variable, given)

        target = program.outputs["y"]
        subjects.append(
            Subject(
                model=model,
                operator=one.operator,
                name=one.name,
                phase=phase,
                program=program,
                target=target,
                variable=variable,
                arrays=arrays,
                reference=reference,
                terms=terms[variable],
            )
        )
    return subjects


def _by_numpy_backend(model: Any, variable: str, given: Arrays) -> np.ndarray:
    from meta500.backends.network import network

    with network(model, backend="numpy", precision="float64") as exact:
        exact.feed_tensor("w", given["w"])
        exact.inference_and_backprop({"x": given["x"]}, "y", wrt=[variable], cotangent=given[COTANGENT])
        (gradient,) = exact.fetch_tensors([f"grad/{variable}"])
    return np.asarray(gradient)
