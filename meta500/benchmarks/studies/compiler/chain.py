"""A network as a chain: its layers in order, cut into segments, some of them compiled, with marks in between.

All of it works on the fx graph of :func:`meta500.backends.torch.module.torch_module`. A layer is a node that
computes something; the layers are in the graph's topological order. A segment is a group of consecutive
layers. A region is a group of consecutive segments that is compiled as one function; what it takes and gives
are the values that cross its ends, so branches that run past it stay outside. Interpreted layers are called
by the generated Python code of the whole, exactly as in the module itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from meta500.errors import UserError

Action = Callable[[], object]
COMPUTING = ("call_module", "call_function", "call_method")


@dataclass(frozen=True)
class Region:
    """Layers ``begin`` to ``end`` (not included) that are run by one function.

    ``function``, a Python function, takes the values that they need from before them and returns a tuple of
    those that are needed behind them, both in the order of the graph.
    """

    begin: int
    end: int
    function: Callable[..., tuple[torch.Tensor, ...]]


def layers_of(module: fx.GraphModule) -> list[fx.Node]:
    """The nodes that compute something, in topological order."""
    return [node for node in module.graph.nodes if node.op in COMPUTING]


def live(module: fx.GraphModule, end: int, begin: int = 0) -> list[fx.Node]:
    """The layers from ``begin`` to ``end`` (not included) whose results are needed at or behind ``end``."""
    layers = layers_of(module)
    before = {*layers[:end], *(node for node in module.graph.nodes if node.op not in (*COMPUTING, "output"))}
    return [node for node in layers[begin:end] if any(user not in before for user in node.users)]


def part(module: fx.GraphModule, begin: int, end: int) -> tuple[fx.GraphModule, list[fx.Node]]:
    """Layers ``begin`` to ``end`` (not included) as a module of their own, sharing parameters.

    Returns:
        The module, whose forward takes the returned nodes' values and returns a tuple of those of
        :func:`live`.

    Raises:
        UserError: no layer lies between ``begin`` and ``end``.
    """
    chosen, inputs = _chosen(module, begin, end)
    graph, values = fx.Graph(), {}
    for node in inputs:
        values[node] = graph.placeholder(node.name)
    for layer in chosen:
        _copy(graph, layer, values)
    graph.output(tuple(values[node] for node in live(module, end, begin)))
    return fx.GraphModule(module, graph, class_name="Part").eval(), inputs


def assembled(
    module: fx.GraphModule,
    regions: Sequence[Region] = (),
    *,
    end: int | None = None,
    before: Action | None = None,
    after: Mapping[int, Action] | None = None,
) -> fx.GraphModule:
    """The network with some regions run by functions, and with marks.

    Args:
        module: the network.
        regions: disjoint, in order; layers outside of them are interpreted.
        end: stop behind this many layers, keeping all values that later ones need; None: the whole network.
        before: called before the first layer.
        after: called behind the layer that is the key's, counted from 1; it must be no inner one of a region.

    Returns:
        A module with the inputs of ``module``; its result is that of ``module`` or, with ``end``, the tuple
        of the values of :func:`live`.

    Raises:
        UserError: regions that overlap, or a mark or an end inside of a region.
    """
    layers = layers_of(module)
    last = len(layers) if end is None else end
    after = dict(after or {})
    graph, values = fx.Graph(), {}
    for node in module.graph.nodes:
        if node.op == "placeholder":
            values[node] = graph.node_copy(node)
    if before is not None:
        graph.call_function(before)
    starts = {region.begin: region for region in regions}
    position = 0
    while position < last:
        region = starts.pop(position, None)
        if region is None:
            _copy(graph, layers[position], values)
            position += 1
        else:
            _call(graph, module, region, values)
            position = region.end
        if position in after:
            graph.call_function(after.pop(position))
    if position != last or starts or after:
        raise UserError(f"regions or marks do not fit into {last} layers: {[*starts, *after]}, at {position}")
    if end is None:
        output = next(node for node in module.graph.nodes if node.op == "output")
        graph.output(fx.map_arg(output.args[0], lambda node: _value(graph, node, values)))
    else:
        graph.output(tuple(values[node] for node in live(module, last)))
    return fx.GraphModule(module, graph, class_name="Assembled").eval()


def even_borders(seconds: Sequence[float], count: int) -> tuple[int, ...]:
    """Where to cut layers into ``count`` segments of about the same time.

    Args:
        seconds: of each layer.
        count: of segments; at most as many as layers.

    Returns:
        The count + 1 borders, from 0 to the number of layers, strictly increasing: border k is the one at
        which the time so far is nearest to k / count of all, that leaves a layer for each segment.
    """
    count = max(1, min(count, len(seconds)))
    so_far = [0.0]
    for value in seconds:
        so_far.append(so_far[-1] + value)
    borders = [0]
    for k in range(1, count):
        places = range(borders[-1] + 1, len(seconds) - (count - k) + 1)
        borders.append(min(places, key=lambda place: abs(so_far[place] - so_far[-1] * k / count)))
    return (*borders, len(seconds))


def _chosen(module: fx.GraphModule, begin: int, end: int) -> tuple[list[fx.Node], list[fx.Node]]:
    """The layers of a part, and the nodes before them that they read."""
    layers = layers_of(module)
    if not 0 <= begin < end <= len(layers):
        raise UserError(f"layers {begin} to {end} of {len(layers)} are no part of the network")
    chosen = layers[begin:end]
    needed = {node for layer in chosen for node in layer.all_input_nodes} - set(chosen)
    return chosen, [node for node in module.graph.nodes if node in needed and node.op != "get_attr"]


def _call(graph: fx.Graph, module: fx.GraphModule, region: Region, values: dict[fx.Node, fx.Node]) -> None:
    _, inputs = _chosen(module, region.begin, region.end)
    called = graph.call_function(region.function, tuple(values[node] for node in inputs))
    for place, node in enumerate(live(module, region.end, region.begin)):
        values[node] = graph.call_function(_item, (called, place))


def _item(values: tuple[Any, ...], place: int) -> Any:
    return values[place]


def _copy(graph: fx.Graph, node: fx.Node, values: dict[fx.Node, fx.Node]) -> None:
    values[node] = graph.node_copy(node, lambda used: _value(graph, used, values))


def _value(graph: fx.Graph, node: fx.Node, values: dict[fx.Node, fx.Node]) -> fx.Node:
    """The copy of a node; a parameter is read where it is used."""
    if node.op == "get_attr" and node not in values:
        values[node] = graph.node_copy(node)
    return values[node]
