"""Ends a run at the first loss that is NaN or infinite, and keeps what tells why."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from meta500.errors import UserError
from meta500.metrics.events import Abort, Answer, RunState, Ticker


class NanAbort(Ticker):
    """Abort, as a failure, at the first loss that is not finite, in training or in the test set.

    After a training step that gave such a loss, ``gradients`` holds the gradients of that step by
    parameter name, ``inputs`` its batch and ``parameters`` the parameters after it. They are also
    written to ``path`` (an .npz file with entries "gradients/NAME", "inputs/NAME",
    "parameters/NAME"): by default "nan-step-N.npz" in the run folder, with "-2", "-3" ... if
    another run left one there; nowhere if the run has no folder.
    ``saved`` is the file written.

    The message names the step and the parameters with gradients that are not finite.
    """

    def __init__(self, path: str | Path | None = None) -> None:
        self.path = path
        self._clear()

    def _clear(self) -> None:
        self.gradients: dict[str, np.ndarray] = {}
        self.parameters: dict[str, np.ndarray] = {}
        self.inputs: dict[str, np.ndarray] = {}
        self.saved: Path | None = None

    def before_run(self, state: RunState) -> None:
        self._clear()

    def abort_after_optimizer_step(self, state: RunState) -> Answer:
        loss = state.loss
        if loss is None or math.isfinite(loss):
            return None
        place = f"epoch {state.epoch}, after {state.samples_seen} samples"
        message = f"loss is {loss} in step {state.step} ({place})"
        self.inputs = {name: np.array(value) for name, value in (state.inputs or {}).items()}
        parts = [message, self._fetch(state.network), self._save(state)]
        return Abort("; ".join(part for part in parts if part), failed=True)

    def abort_after_test_set(self, state: RunState) -> Answer:
        loss = state.summary.epochs[-1].test_loss
        if loss is None or math.isfinite(loss):
            return None
        return Abort(f"test loss is {loss} after epoch {state.epoch} (step {state.step})", failed=True)

    def _fetch(self, network: Any) -> str:
        """Take gradients and parameters out of the network; returns what to say about them."""
        self.parameters = dict(_fetched(network, {name: name for name in network.get_params()}))
        wanted = dict(network.gradient())
        self.gradients = dict(_fetched(network, wanted))
        # A native optimizer may have freed them, and a parameter may have none: the NaN comes
        # first.
        missing = [name for name in wanted if name not in self.gradients]
        if not self.gradients:
            return "the gradients are not kept by the network" if wanted else ""
        broken = [
            f"{name} ({np.count_nonzero(~np.isfinite(value))} of {value.size})"
            for name, value in self.gradients.items()
            if not np.isfinite(value).all()
        ]
        some = f" ({len(missing)} of {len(wanted)} parameters have none)" if missing else ""
        if not broken:
            return f"all gradients are finite{some}"
        more = f" and {len(broken) - 5} more" if len(broken) > 5 else ""
        return f"gradients that are not finite: {', '.join(broken[:5])}{more}{some}"

    def _save(self, state: RunState) -> str:
        if self.path is not None:
            target = Path(self.path)
        elif state.folder is not None:
            folder = Path(state.folder.path)
            names = (f"nan-step-{state.step}{again}.npz" for again in ("", *range(-2, -1000, -1)))
            target = next(path for name in names if not (path := folder / name).exists())
        else:
            return ""
        groups = {"gradients": self.gradients, "inputs": self.inputs, "parameters": self.parameters}
        arrays = {
            f"{group}/{name}": array for group, named in groups.items() for name, array in named.items()
        }
        try:
            # A file object, since numpy would add .npz to a name without it and leave another file.
            with target.open("wb") as file:
                np.savez(file, **arrays)  # type: ignore[arg-type]
        except OSError as error:
            return f"they could not be saved to {target}: {error.strerror or error}"
        self.saved = target
        return f"gradients, parameters and inputs are in {target}"


def _fetched(network: Any, names: Mapping[str, str]) -> Iterator[tuple[str, np.ndarray]]:
    """Pairs of key and array for the tensors that the network still has."""
    for key, tensor in names.items():
        try:
            yield key, network.fetch_tensors([tensor])[0]
        except (UserError, LookupError):
            continue
