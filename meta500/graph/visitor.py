"""The root of all visitors over a graph's operations."""

from __future__ import annotations

from typing import Any

from meta500.errors import UnsupportedOperation
from meta500.graph.operation import Operation


def unsupported(op: Operation, backend: str, reason: str = "") -> UnsupportedOperation:
    """The error for an operation that ``backend`` does not run."""
    return UnsupportedOperation(
        node=op.name,
        op_type=op.op_type,
        domain=op.domain,
        since_version=op.since_version,
        backend=backend,
        reason=reason,
    )


class BaseVisitor:
    """Refuses every operation; the generated bases add one method per operator that calls this one."""

    backend = "this"

    def visit_operation(self, op: Operation, network: Any) -> Any:
        """Called for an operation without a method of its own.

        Raises:
            UnsupportedOperation: always, here; backends look the operation up in their rules.
        """
        raise unsupported(op, self.backend)
