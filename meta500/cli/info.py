"""``meta500 info``: what is here to measure with, and on what machine."""

from __future__ import annotations

from typing import Annotated

import typer


def info(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Show the machine, versions, backends, models, datasets and optimizers."""
    import json

    import meta500
    from meta500 import datasets, models, optimizers
    from meta500.backends.network import backend_names
    from meta500.metrics.machine import environment

    found = {
        "meta500": meta500.__version__,
        "backends": backend_names(),
        "models": list(models.names()),
        "datasets": list(datasets.names()),
        "optimizers": list(optimizers.names()),
        "environment": environment(),
    }
    if as_json:
        typer.echo(json.dumps(found, indent=2, default=str))
        return
    for key, value in found.items():
        if isinstance(value, dict):
            typer.echo(f"{key}:")
            for name, entry in _flat(value):
                typer.echo(f"  {name}: {entry}")
        else:
            typer.echo(f"{key}: {', '.join(value) if isinstance(value, list) else value}")


def _flat(values: dict[str, object], prefix: str = "") -> list[tuple[str, object]]:
    lines: list[tuple[str, object]] = []
    for name, value in values.items():
        if isinstance(value, dict):
            lines += _flat(value, f"{prefix}{name}.")
        elif value not in (None, "", []):
            lines.append((f"{prefix}{name}", value))
    return lines
