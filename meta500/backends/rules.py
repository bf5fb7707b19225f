"""Tables of operator rules: small functions keyed by (domain, operator, since-version).

A rule is a forward function whose positional parameters are the operator's inputs in ONNX order and whose
keyword-only parameters are its attributes under their ONNX names. A backend without automatic
differentiation adds the vector-Jacobian product right beside it with ``@forward.vjp``.

An attribute that is a graph arrives as a callable: ``body(*inputs)`` runs the subgraph and returns the tuple
of its outputs; ``body.graph`` is the :class:`meta500.graph.Graph`. On numpy a vector-Jacobian product finds
the same callable in ``call.attributes``, where ``body.pullback(k, cotangents)`` takes cotangents back through
its k-th run. Sequences are lists, an optional without a value is None.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

INJECTED = ("n_outputs", "since_version", "node_label", "rng", "saved")

# The ``threads`` option of the network that is running on the host; None outside of one and without a limit.
running_threads: ContextVar[int | None] = ContextVar("running_threads", default=None)


@dataclass
class Call:
    """One execution of a rule, as its vector-Jacobian product sees it.

    ``inputs`` and ``outputs`` hold arrays (None where an optional one is missing), ``attributes`` every
    keyword that the forward received, ``needs`` whether the gradient of each input is wanted, ``saved``
    what the forward left behind.
    """

    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    attributes: dict[str, Any]
    needs: tuple[bool, ...]
    saved: dict[str, Any] = field(default_factory=dict)


class Rule:
    """A forward function with what the visitor must know to call it.

    ``note`` is said beside the coverage of the rule's nodes. ``host_when(op, types)``, for backends with a
    host fallback, says why a node runs there although there is this rule; empty where it doesn't.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.backward: Callable[..., Sequence[Any]] | None = None
        self.note = ""
        self.host_when: Callable[[Any, Mapping[str, Any]], str] | None = None
        parameters = inspect.signature(function).parameters.values()
        keywords = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
        self.injected = frozenset(k for k in keywords if k in INJECTED)
        self.attributes = frozenset(k for k in keywords if k not in INJECTED)
        self.positional = tuple(
            p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        )
        self.variadic = any(p.kind is p.VAR_POSITIONAL for p in parameters)
        self.__doc__ = function.__doc__
        self.__name__ = function.__name__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def vjp(self, function: Callable[..., Sequence[Any]]) -> Callable[..., Sequence[Any]]:
        """Register ``function(call, *cotangents) -> gradients`` as this rule's backward."""
        self.backward = function
        return function


@dataclass(frozen=True)
class Entry:
    """A rule under one operator: the schema versions it covers and the inputs it wants on the host."""

    domain: str
    op_type: str
    since: int
    until: int | None
    host: tuple[str, ...]
    rule: Rule

    @property
    def host_positions(self) -> tuple[int, ...]:
        """Indices of the inputs that the rule takes as Python values."""
        return tuple(self.rule.positional.index(name) for name in self.host)


class RuleTable:
    """All rules of one backend; threads may look rules up while another registers some."""

    def __init__(self, backend: str) -> None:
        self.backend = backend
        self._entries: dict[tuple[str, str], tuple[Entry, ...]] = {}
        self._registering = threading.Lock()

    def rule(
        self,
        op_type: str,
        since: int = 1,
        *,
        until: int | None = None,
        domain: str = "",
        host: Sequence[str] = (),
    ) -> Callable[[Callable[..., Any] | Rule], Rule]:
        """Register the decorated function for ``op_type``.

        It covers the schema versions from ``since`` to ``until``, or, without ``until``, up to the next
        version that has an entry of its own. ``host`` names inputs that arrive as Python values.

        Raises:
            ValueError: the same (operator, since) is registered twice, or ``host`` names no input.
        """

        def register(function: Callable[..., Any] | Rule) -> Rule:
            rule = function if isinstance(function, Rule) else Rule(function)
            unknown = [name for name in host if name not in rule.positional]
            if unknown:
                raise ValueError(f"{op_type}: host names {unknown} are no inputs of {rule.__name__}")
            entry = Entry(domain, op_type, since, until, tuple(host), rule)
            with self._registering:
                entries = self._entries.get((domain, op_type), ())
                if any(other.since == since for other in entries):
                    raise ValueError(f"{self.backend}: {op_type} version {since} is registered twice")
                # A new tuple at once: whoever looks a rule up meanwhile sees the old entries or the new ones.
                self._entries[domain, op_type] = tuple(sorted((*entries, entry), key=lambda e: e.since))
            return rule

        return register

    def find(self, domain: str, op_type: str, since_version: int) -> Entry | None:
        """The entry that covers this version of the operator, or None."""
        found = None
        for entry in self._entries.get((domain, op_type), ()):
            if entry.since <= since_version:
                found = entry
        if found is None or (found.until is not None and since_version > found.until):
            return None
        return found

    def remove(self, domain: str, op_type: str) -> None:
        """Forget all versions of an operator."""
        self._entries.pop((domain, op_type), None)

    def __iter__(self) -> Iterator[Entry]:
        for key in sorted(self._entries):
            yield from self._entries[key]


_LOADED: dict[str, RuleTable] = {}
_WAITING: dict[str, list[Callable[[RuleTable], None]]] = {}
_LOADING = threading.Lock()


def when_loaded(backend: str, add: Callable[[RuleTable], None]) -> None:
    """Call ``add`` with the rules of a backend once they are imported, now if they are.

    For rules from outside of the backend's folder: making them must not import the backend.
    """
    with _LOADING:
        table = _LOADED.get(backend)
        if table is None:
            _WAITING.setdefault(backend, []).append(add)
    if table is not None:
        add(table)


def loaded(table: RuleTable) -> None:
    """Say that the rules of a backend's folder are imported, so that others can be added to them."""
    with _LOADING:
        _LOADED[table.backend] = table
        waiting = _WAITING.pop(table.backend, [])
    for add in waiting:
        add(table)
