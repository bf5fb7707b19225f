"""The errors that a user can cause, raised where the fault is and printed without a traceback."""

from __future__ import annotations


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
        UserError: names the unknown value, the nearest valid ones and all choices.
    """
    import difflib

    known = sorted(str(c) for c in choices)  # type: ignore[attr-defined]
    if name in known:
        return name
    near = difflib.get_close_matches(str(name), known, n=1)
    hint = f" Did you mean '{near[0]}'?" if near else ""
    raise UserError(f"unknown {kind} '{name}'.{hint} Choose one of: {', '.join(known)}")
