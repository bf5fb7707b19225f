"""Random tensors for any network's inputs: nothing to learn, for measuring time and memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from meta500.datasets.arguments import integer, stream
from meta500.datasets.dataset import Dataset
from meta500.errors import UserError

DEFAULT_INPUTS: Mapping[str, Any] = MappingProxyType(
    {"image": ((256, 1, 8, 8), "float32"), "label": ((256,), "int64")}
)
_TENSOR_STREAM = 5
_TRAIN, _TEST = 0, 1


def synthetic(
    inputs: Mapping[str, Any] | None = None,
    *,
    classes: int | Mapping[str, int] = 10,
    label: str | None = "label",
    samples: int | None = None,
    test_samples: int | None = None,
    seed: int = 0,
) -> tuple[Dataset, Dataset]:
    """Random tensors as (train, test), drawn independently of each other.

    Floating-point inputs are standard normal, integers uniform in [0, classes), bools fair coins.
    The values of an input depend on the seed and on its own name, shape, dtype and classes only.

    Args:
        inputs: network input to ``(shape, dtype)``, the batch axis first, or to anything with
            ``.shape`` and ``.dtype``, e.g. ``{"image": ((8, 3, 512, 512), "float32"), "label":
            ((8, 512, 512), "int64")}``; None is `DEFAULT_INPUTS`, shaped as the digits set.
        classes: number of values of the integer inputs, for all or by input name.
        label: the input that holds the truth, or None where there is none.
        samples: length of the training set, instead of the batch axis given in the shapes.
        test_samples: length of the test set; None makes it as long as the training set.
        seed: the same seed gives the same tensors.

    Raises:
        UserError: a shape that is not concrete, an unusable dtype, unequal batch axes, an integer
            input without a number of classes, or with more than its dtype holds.
    """
    given = DEFAULT_INPUTS if inputs is None else inputs
    specs = {name: _shape_and_dtype(name, spec, samples) for name, spec in given.items()}
    lengths = {name: shape[0] for name, (shape, _) in specs.items()}
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"'{name}' {n}" for name, n in lengths.items())
        raise UserError(f"synthetic inputs with unequal batch axes: {listed}")
    tested = None if test_samples is None else integer("test_samples", test_samples, minimum=1)
    train = _draw(specs, classes, label, seed, _TRAIN)
    if tested is not None:
        specs = {name: ((tested, *shape[1:]), dtype) for name, (shape, dtype) in specs.items()}
    return train, _draw(specs, classes, label, seed, _TEST)


def _draw(
    specs: Mapping[str, tuple[tuple[int, ...], np.dtype]],
    classes: int | Mapping[str, int],
    label: str | None,
    seed: int,
    part: int,
) -> Dataset:
    arrays = {}
    for name, (shape, dtype) in specs.items():
        random = stream(seed, _TENSOR_STREAM, part, *name.encode())
        arrays[name] = _tensor(random, name, shape, dtype, classes)
        arrays[name].flags.writeable = False
    is_class = label in arrays and np.issubdtype(arrays[label].dtype, np.integer)
    count = _class_count(label, classes) if label is not None and is_class else 0
    return Dataset(
        name="synthetic",
        inputs=arrays,
        label=label,
        classes=tuple(map(str, range(count))) if count else None,
        licence="generated, no licence needed",
        default_loss="cross_entropy" if count else "mse",
    )


def _tensor(
    random: np.random.Generator,
    name: str,
    shape: tuple[int, ...],
    dtype: np.dtype,
    classes: int | Mapping[str, int],
) -> np.ndarray:
    if np.issubdtype(dtype, np.integer):
        count = _class_count(name, classes)
        if count - 1 > np.iinfo(dtype).max:
            raise UserError(f"synthetic input '{name}': {dtype} does not hold {count} classes")
        return random.integers(count, size=shape, dtype=dtype)
    if dtype == np.bool_:
        return random.integers(2, size=shape, dtype=np.bool_)
    if dtype == np.float64:
        return random.standard_normal(shape)
    return random.standard_normal(shape, dtype=np.float32).astype(dtype, copy=False)


def _class_count(name: str, classes: int | Mapping[str, int]) -> int:
    if isinstance(classes, Mapping):
        if name not in classes:
            raise UserError(
                f"synthetic input '{name}' is integer: give its number of values in classes, "
                f"which names {', '.join(classes) or 'nothing'}"
            )
        return integer(f"classes of '{name}'", classes[name], minimum=1)
    return integer("classes", classes, minimum=1)


def _shape_and_dtype(name: str, spec: Any, samples: int | None) -> tuple[tuple[int, ...], np.dtype]:
    if hasattr(spec, "shape") and hasattr(spec, "dtype"):
        shape, dtype = spec.shape, spec.dtype
    elif isinstance(spec, Sequence) and not isinstance(spec, str) and len(spec) == 2:
        shape, dtype = spec
    else:
        raise UserError(f"synthetic input '{name}' must be (shape, dtype), not {spec!r}")
    if not isinstance(shape, Sequence) or isinstance(shape, str) or len(shape) == 0:
        raise UserError(
            f"synthetic input '{name}': shape must be a tuple with the batch axis first, not {shape!r}"
        )
    batch = shape[0] if samples is None else samples
    axes = [integer(f"synthetic input '{name}': axis 0 of its shape (or samples)", batch, minimum=1)]
    for axis, size in enumerate(shape[1:], start=1):
        axes.append(integer(f"synthetic input '{name}': axis {axis} of its shape", size, minimum=1))
    try:
        kind = np.dtype(dtype)
    except TypeError:
        kind = None
    if kind is None or not (kind.kind in "iub" or kind in (np.float16, np.float32, np.float64)):
        raise UserError(
            f"synthetic input '{name}': dtype must be float16, float32, float64, an integer type "
            f"or bool, not {dtype!r}"
        )
    return tuple(axes), kind
