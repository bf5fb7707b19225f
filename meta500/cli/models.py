"""``meta500 models``: the networks, what they cost, and their options."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

FIGURES = ("parameters", "FLOPs", "activations")
COUNTED = (
    "FLOPs: 2 per multiply-add of convolutions and matrix products, one forward pass, one image; biases, "
    "activations, normalisation, pools and the loss not counted. Activations: bytes of every value that an "
    "operation of the forward pass writes, in float32, one image."
)


def models(
    name: Annotated[
        str | None, typer.Argument(help="A network. [default: list all]", show_default=False)
    ] = None,
    model_option: Annotated[list[str] | None, typer.Option(help="Option of the network, key=value.")] = None,
    nodes: Annotated[bool, typer.Option("--nodes", help="One line per node, not per operator.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """List the networks with parameters, operations and memory; or show one in detail."""
    from meta500 import models as networks
    from meta500.benchmarks.options import pairs
    from meta500.errors import UserError

    if name is None:
        if model_option or nodes:
            given = "--model-option" if model_option else "--nodes"
            raise UserError(f"{given} is for one network: meta500 models NAME {given} ...")
        found = [_summary(each, {}) for each in networks.names()]
        if as_json:
            typer.echo(json.dumps({"counted": COUNTED, "models": found}, indent=2))
        else:
            show_all(found)
        return
    detail = _detail(name, pairs("--model-option", model_option))
    if as_json:
        typer.echo(json.dumps({"counted": COUNTED, **detail}, indent=2))
    else:
        _show_one(detail, nodes)


def _summary(name: str, chosen: dict[str, Any]) -> dict[str, Any]:
    """The figures of one network, per image."""
    from meta500.models.costs import costs_per_image

    return _totals(name, costs_per_image(name, **chosen))


def _detail(name: str, chosen: dict[str, Any]) -> dict[str, Any]:
    """Everything about one network: per image, but inputs and outputs for its batch."""
    import dataclasses

    from meta500 import models as networks
    from meta500.models.costs import costs_per_image, outline

    model, found = outline(name, **chosen), costs_per_image(name, **chosen)
    return {
        **_totals(name, found),
        "options": {**networks.options(name), **chosen},
        "inputs": {key: str(value) for key, value in model.inputs.items()},
        "outputs": {key: str(value) for key, value in model.outputs.items()},
        "operators": [
            {
                "operator": operator,
                "nodes": count,
                "parameters": part.parameters,
                "multiply_adds": part.multiply_adds,
                "activation_bytes": part.activation_bytes,
            }
            for operator, (count, part) in found.operators().items()
        ],
        "nodes": [dataclasses.asdict(node) for node in found.nodes],
    }


def _totals(name: str, found: Any) -> dict[str, Any]:
    from meta500 import models as networks

    return {
        "name": name,
        "title": networks.title(name),
        "image": list(found.image),
        "parameters": found.parameters,
        "multiply_adds": found.multiply_adds,
        "flops": found.flops,
        "activation_bytes": found.activation_bytes,
    }


def show_all(found: list[dict[str, Any]]) -> None:
    """Print the table of all networks."""
    from meta500.benchmarks.tables import console, table_of

    table = table_of("Networks at their default options", ["name"], ["image", *FIGURES])
    for entry in found:
        table.add_row(entry["name"], _shape(entry["image"]), *_figures(entry))
    screen = console()
    screen.print(table)
    screen.print(COUNTED)
    screen.print("One network in detail: meta500 models NAME [--model-option key=value]", markup=False)


def _show_one(detail: dict[str, Any], nodes: bool) -> None:
    from meta500.benchmarks.tables import console, table_of

    screen = console()
    screen.print(f"{detail['name']}: {detail['title']}", markup=False)
    for kind in ("inputs", "outputs"):
        screen.print(f"{kind}: " + ", ".join(f"{k} {v}" for k, v in detail[kind].items()), markup=False)
    screen.print("options: " + ", ".join(f"{k}={v}" for k, v in detail["options"].items()), markup=False)
    if nodes:
        table = table_of("Nodes, one image", ["node", "operator"], ["result", *FIGURES])
        for entry in detail["nodes"]:
            table.add_row(entry["name"], entry["operator"], _shape(entry["shape"]), *_figures(entry))
    else:
        table = table_of("Operators, one image", ["operator"], ["nodes", *FIGURES])
        for entry in detail["operators"]:
            table.add_row(entry["operator"], str(entry["nodes"]), *_figures(entry))
    table.add_section()
    table.add_row("all", *[""] * (2 if nodes else 1), *_figures(detail))
    screen.print(table)
    screen.print(COUNTED)


def _shape(shape: list[int]) -> str:
    return " x ".join(map(str, shape)) or "scalar"


def _figures(entry: dict[str, Any]) -> tuple[str, str, str]:
    """Parameters, operations and bytes as text; a dash for no parameters and no operations."""
    parameters, flops, size = entry["parameters"], 2 * entry["multiply_adds"], entry["activation_bytes"]
    scale, unit = next((s for s in ((1e9, "G"), (1e6, "M")) if flops >= s[0]), (1e3, "k"))
    amount, prefix = next((s for s in ((2**20, "Mi"), (2**10, "Ki")) if size >= s[0]), (1, ""))
    return (
        f"{parameters:,}" if parameters else "-",
        f"{flops / scale:.2f} {unit}" if flops else "-",
        f"{size / amount:,.2f} {prefix}B" if prefix else f"{size} B",
    )
