"""Runs an emitted program in the interpreter and compares it with the numpy backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from meta500.backends.generated.exaslang.execute import ProgramError, execute
from meta500.backends.generated.exaslang.parse import SyntaxFault, parse
from meta500.backends.generated.exaslang.variant import Variant
from meta500.benchmarks.generation.command import Prepared
from meta500.benchmarks.generation.config import Config
from meta500.benchmarks.generation.exaslang_files import Written
from meta500.benchmarks.generation.exaslang_reference import (
    Losses,
    batches,
    compare,
    conclude,
    print_losses,
    reference,
)
from meta500.errors import UserError

# Of float64, relative: sums in another order.
LIMIT = 1e-10


def check(prepared: Prepared, config: Config, variant: Variant, written: Written) -> None:
    """Compare losses and weights; the text that was written is what runs.

    Raises:
        UserError: they differ, or the program is faulty; the message says where.
    """
    try:
        found = interpreted(prepared, config, variant, written)
    except (ProgramError, SyntaxFault) as fault:
        raise UserError(f"the program is no layer-4 code that may be run: {fault}") from None
    worst, faults = compare(found, reference(prepared, config, variant, written, "float64"), LIMIT)
    print_losses(found)
    conclude(worst, faults, "float64")


def interpreted(prepared: Prepared, config: Config, variant: Variant, written: Written) -> Losses:
    """What the program, read back from its text, prints and saves."""
    (name,) = (n for n in written.files if n.endswith(".exa4"))
    tree = parse(written.files[name].decode())
    weights = np.frombuffer(written.files["weights.bin"], "<f8")
    saved = np.zeros_like(weights)
    orders = [
        list(batches(prepared.train, config, written.training.batches, written.batch, epoch))
        for epoch in range(written.training.epochs)
    ]
    held: list[Any] = []

    def load(_: str, offset: int, array: np.ndarray, count: int, total: int, block: Any) -> None:
        assert total == weights.size
        array[:count] = weights[offset : offset + count]

    def save(_: str, offset: int, array: np.ndarray, count: int, total: int, block: Any) -> None:
        saved[offset : offset + count] = array[:count]

    external: dict[str, Callable[..., Any]] = {
        "meta500_load": load,
        "meta500_save": save,
        "meta500_read": lambda block: None,
    }
    if written.training.validation:
        assert prepared.validation is not None
        held = list(batches(prepared.validation, config, written.training.validation, written.batch, None))

    columns, rows = variant.blocks

    def reader(key: str, validation: bool) -> Callable[..., Any]:
        def read(*given: Any, block: Any) -> np.ndarray:
            step, sample, channel, i0, i1, x, y = given[-7:]
            picture = (held if validation else orders[given[0]])[step][key][sample]
            picture = picture[channel] if picture.ndim == 3 else picture
            row = (y * rows).astype(int) * (picture.shape[0] // rows) + i1
            column = (x * columns).astype(int) * (picture.shape[1] // columns) + i0
            return picture[row, column].astype(np.float64)

        return read

    for number, key in enumerate(written.trained.inputs):
        external[f"meta500_training_{number}"] = reader(key, False)
        external[f"meta500_validation_{number}"] = reader(key, True)
    printed = execute(tree, variant.blocks, external)
    return Losses(
        [float(line[3]) for line in printed if "training_loss" in line],
        [float(line[3]) for line in printed if "validation_loss" in line],
        written.trained.parts(saved),
    )
