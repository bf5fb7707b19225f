"""The errors that a user can cause, raised where the fault is and printed without a traceback."""

from __future__ import annotations

from collections.abc import Iterable

# More choices than these are not listed in a message.
_FEW = 40


class UserError(Exception):
    """Bad input: the message names the file, node, option or value and says what would be right."""


class UnsupportedOperation(UserError):
    """An operation that a backend does not run.

    Attributes: ``node`` (name of the node), ``op_type``, ``domain``, ``since_version`` (version of the
    operator's definition that the model uses), ``backend`` and ``reason``.
    """

    def __init__(
        self, *, node: str, op_type: str, domain: str, since_version: int, backend: str, reason: str = ""
    ) -> None:
        self.node, self.op_type, self.domain = node, op_type, domain
        self.since_version, self.backend, self.reason = since_version, backend, reason
        text = (
            f"node '{node}': operator {domain or 'ai.onnx'}.{op_type} (version {since_version}) "
            f"is not supported by the {backend} backend"
        )
        super().__init__(f"{text}: {reason}" if reason else text)


def choose(kind: str, name: str, choices: object) -> str:
    """Return ``name`` if it is one of ``choices`` (an iterable of str), else raise with the choices.

    Raises:
        UserError: names the unknown value, the nearest valid ones and all choices where they are few.
    """
    known = sorted(str(c) for c in choices)  # type: ignore[attr-defined]
    if name in known:
        return name
    near = nearest(str(name), known)
    if len(known) > _FEW:
        hint = f"; the nearest are: {', '.join(near)}" if near else ""
        raise UserError(f"unknown {kind} '{name}' among {len(known)}{hint}")
    hint = f" Did you mean '{near[0]}'?" if near else ""
    raise UserError(f"unknown {kind} '{name}'.{hint} Choose one of: {', '.join(known)}")


def nearest(name: str, known: Iterable[str], n: int = 5) -> list[str]:
    """The most similar of ``known`` whatever their case, the best first; empty where nothing is similar.

    What stands before the last dot may be left out: "Scaler" is near "ai.onnx.ml.Scaler".
    """
    import difflib

    lower: dict[str, list[str]] = {}
    for choice in known:
        for key in {choice.lower(), choice.lower().rpartition(".")[2]}:
            lower.setdefault(key, []).append(choice)
    found = difflib.get_close_matches(name.lower(), lower, n=n, cutoff=0.5)
    return list(dict.fromkeys(choice for key in found for choice in lower[key]))[:n]
