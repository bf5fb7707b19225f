"""Draws the house: rooms on floors, and the imports between them as they stand in the source.

``python docs/images/house.py`` writes house.svg beside this file. A room that imports one that it may not
import ends it with the modules that do.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path

ROOT = Path(__file__).parents[2]
PICTURE = Path(__file__).with_suffix(".svg")
PACKAGE = "meta500"


@dataclass(frozen=True)
class Room:
    """A room: its floor (0 is the cellar), the columns that it takes, its subject, what it may import."""

    name: str
    floor: int
    column: int
    columns: int
    subject: tuple[str, ...]
    may: tuple[str, ...]


BELOW_STUDIES = (
    "errors",
    "graph",
    "datasets",
    "models",
    "backends",
    "custom",
    "optimizers",
    "metrics",
    "distributed",
)
HOUSE = (
    Room("errors", 0, 0, 4, ("the errors that a user can cause",), ()),
    Room(
        "graph",
        1,
        0,
        3,
        ("the network as data: typed operations, parser, writer, builder, passes",),
        ("errors",),
    ),
    Room("datasets", 1, 3, 1, ("samples, samplers,", "loaders, formats"), ("errors",)),
    Room("models", 2, 0, 1, ("networks by name,", "and from PyTorch"), ("errors", "graph")),
    Room(
        "backends",
        2,
        1,
        2,
        ("the contract of networks, and one folder per backend:", "numpy, torch, generated, onnxruntime"),
        ("errors", "graph"),
    ),
    Room(
        "custom", 3, 1, 1, ("operators of the user,", "from Python or C++"), ("errors", "graph", "backends")
    ),
    Room("optimizers", 3, 2, 1, ("the ladder of optimizers,", "schedules"), ("errors", "backends")),
    Room(
        "metrics",
        3,
        3,
        1,
        ("Runner, tickers, clocks,", "statistics, rows, plots"),
        ("errors", "datasets", "backends", "optimizers"),
    ),
    Room(
        "distributed",
        4,
        2,
        2,
        ("communication, schemes, launching,", "faults, checkpoints"),
        ("errors", "graph", "datasets", "backends", "optimizers", "metrics"),
    ),
    Room(
        "benchmarks",
        5,
        0,
        4,
        ("what a user runs: operators, networks, training, scaling, recipes, studies",),
        BELOW_STUDIES,
    ),
    Room("cli", 7, 0, 4, ("one verb per file",), (*BELOW_STUDIES, "benchmarks", "web")),
    Room(
        "web",
        6,
        2,
        2,
        ("the live page: its server,", "and what the browser runs"),
        (*BELOW_STUDIES, "benchmarks"),
    ),
)
BACKENDS_ON_HOST = "numpy"  # the backend that others may import, as their declared host fallback


def imports(package: Path) -> dict[tuple[str, str], list[str]]:
    """Which rooms import which, with the modules that do; lazy imports and those of types count."""
    found: dict[tuple[str, str], list[str]] = {}
    for module, target in _module_imports(package):
        room, other = module.parts[0].removesuffix(".py"), target[0]
        if other != room and not room.startswith("__") and other != "__version__":
            modules = found.setdefault((room, other), [])
            if str(module) not in modules:
                modules.append(str(module))
    return found


def between_backends(package: Path) -> dict[tuple[str, str], list[str]]:
    """The same for the folders of the backends: none may import another's but numpy's."""
    folders = {path.name for path in (package / "backends").iterdir() if path.is_dir()}
    found: dict[tuple[str, str], list[str]] = {}
    for module, target in _module_imports(package):
        if len(module.parts) > 2 and module.parts[0] == "backends" and target[0] == "backends":
            folder, other = module.parts[1], target[1] if len(target) > 1 else ""
            if other in folders - {folder, BACKENDS_ON_HOST}:
                found.setdefault((folder, other), []).append(str(module))
    return found


def _module_imports(package: Path) -> Iterator[tuple[Path, tuple[str, ...]]]:
    for path in sorted(package.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level:
                raise SystemExit(f"{path}: a relative import; write it from {PACKAGE} on")
            elif isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            else:
                continue
            for name in names:
                parts = name.split(".")
                if parts[0] == PACKAGE and len(parts) > 1:
                    yield path.relative_to(package), tuple(parts[1:])


def violations(found: Mapping[tuple[str, str], list[str]], house: tuple[Room, ...] = HOUSE) -> list[str]:
    """What contradicts the plan of the house, one line each."""
    may = {room.name: room.may for room in house}
    lines = []
    for (room, other), modules in sorted(found.items()):
        if room not in may or other not in may:
            unknown = room if room not in may else other
            lines.append(f"'{unknown}' is no room of the house ({modules[0]} imports {other})")
        elif other not in may[room]:
            lines.append(f"{room} may not import {other}: {', '.join(modules)}")
    return lines


def plan_faults(house: tuple[Room, ...] = HOUSE) -> list[str]:
    """Permissions of the plan that lead upwards, or that go round in a circle on one floor."""
    floors = {room.name: room.floor for room in house}
    rooms = {room.name: room for room in house}
    lines = [f"{r.name} above {o}" for r in house for o in r.may if floors[o] > r.floor]
    sideways = [(r.name, o) for r in house for o in r.may if floors[o] == r.floor]
    return lines + [f"{a} and {b} import each other" for a, b in sideways if a in rooms[b].may]


def essential(edges: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """The edges that no way over other edges replaces (the transitive reduction)."""
    after: dict[str, set[str]] = {}
    for a, b in edges:
        after.setdefault(a, set()).add(b)

    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        pending = list(after.get(start, ()))
        while pending:
            room = pending.pop()
            if room not in seen:
                seen.add(room)
                pending += after.get(room, ())
        return seen

    return {(a, b) for a, b in edges if not any(b in reached(c) for c in after[a] - {b})}


WIDTH, COLUMN, GUTTER, GAP, LEFT, TOP = 1000, 220, 14, 40, 39, 92
STYLE = """
  .paper { fill: #ffffff } .wall { fill: none; stroke: #8a93a6; stroke-width: 2 }
  .roof { fill: #dfe5f2; stroke: #8a93a6; stroke-width: 2 }
  .room { fill: #eef1f8; stroke: #5c6b8a; stroke-width: 1.2 }
  text { fill: #1d2433; font-family: system-ui, -apple-system, "Segoe UI", Roboto, sans-serif }
  .name { font-size: 17px; font-weight: 600 } .subject { font-size: 13px }
  .floor { font-size: 13px; fill: #5c6b8a }
  .imports { font-size: 12px; fill: #3c5a99 } .title { font-size: 18px; font-weight: 600 }
  .arrow { fill: none; stroke: #3c5a99; stroke-width: 1.6 } .head { fill: #3c5a99 }
  @media (prefers-color-scheme: dark) {
    .paper { fill: #1e222b } .wall { stroke: #7d879c } .room { fill: #2a303d; stroke: #8b98b5 }
    .roof { fill: #2f3748; stroke: #7d879c } text { fill: #e6e9f0 } .floor { fill: #a3aec4 }
    .imports { fill: #a9c1f5 } .arrow { stroke: #a9c1f5 } .head { fill: #a9c1f5 }
  }
"""


@dataclass(frozen=True)
class _Box:
    """Where a room is drawn."""

    left: int
    right: int
    top: int
    bottom: int


def draw(found: Mapping[tuple[str, str], list[str]], house: tuple[Room, ...] = HOUSE) -> str:
    """The SVG text: rooms with what they import, arrows for the imports that no other way replaces."""
    names = {name for edge in found for name in edge}
    rooms = {room.name: room for room in house if room.name in names}
    boxes = _boxes(rooms, house, found)
    bottom = max(box.bottom for box in boxes.values()) + 16
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom + 14}" role="img" '
        'aria-labelledby="title description">',
        '<title id="title">The rooms of meta500 and the imports between them</title>',
        f'<desc id="description">{escape(_description(found, rooms))}</desc>',
        f"<style>{STYLE}</style>",
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
        'orient="auto"><path class="head" d="M0 0L8 4L0 8z"/></marker></defs>',
        f'<rect class="paper" width="{WIDTH}" height="{bottom + 14}" rx="12"/>',
        f'<path class="roof" d="M{WIDTH / 2:g} 12L{WIDTH - 12} {TOP - 18}H12z"/>',
        f'<text class="title" x="{WIDTH / 2:g}" y="{TOP - 32}" text-anchor="middle">{PACKAGE}</text>',
        f'<rect class="wall" x="22" y="{TOP - 18}" width="{WIDTH - 44}" height="{bottom - TOP + 18}"/>',
    ]
    lines += [_arrow(boxes[a], boxes[b]) for a, b in sorted(essential(set(found)))]
    for room in rooms.values():
        lines += _room(room, boxes[room.name], _imported(room, found))
    return "\n".join([*lines, "</svg>", ""])


def _imported(room: Room, found: Mapping[tuple[str, str], list[str]]) -> list[str]:
    """What is written into a room; that it knows the errors goes without saying."""
    return sorted(b for a, b in found if a == room.name and b != "errors")


def _boxes(
    rooms: Mapping[str, Room], house: tuple[Room, ...], found: Mapping[tuple[str, str], list[str]]
) -> dict[str, _Box]:
    """Floors from the roof down, each as high as its fullest room.

    A room takes the place of a planned neighbour that is not there.
    """
    boxes, top = {}, TOP
    for floor in sorted({room.floor for room in rooms.values()}, reverse=True):
        here = [room for room in rooms.values() if room.floor == floor]
        height = max(34 + 17 * (len(room.subject) + bool(_imported(room, found))) for room in here)
        for room in here:
            end = room.column + room.columns
            right = [other for other in house if other.floor == floor and other.column >= end]
            if right and all(other.name not in rooms for other in right):
                end = max(other.column + other.columns for other in right)
            left = LEFT + room.column * (COLUMN + GUTTER)
            boxes[room.name] = _Box(left, LEFT + (end - 1) * (COLUMN + GUTTER) + COLUMN, top, top + height)
        top += height + GAP
    return boxes


def _room(room: Room, box: _Box, imported: list[str]) -> list[str]:
    x, y = box.left + 12, box.top + 24
    texts = [("subject", line) for line in room.subject]
    texts += [("imports", f"imports {', '.join(imported)}")] if imported else []
    return [
        f'<rect class="room" x="{box.left}" y="{box.top}" width="{box.right - box.left}" '
        f'height="{box.bottom - box.top}" rx="5"/>',
        f'<text class="name" x="{x}" y="{y}">{room.name}</text>',
        f'<text class="floor" x="{box.right - 12}" y="{y}" text-anchor="end">{_floor(room.floor)}</text>',
        *(
            f'<text class="{kind}" x="{x}" y="{y + 20 + 17 * i}">{escape(line)}</text>'
            for i, (kind, line) in enumerate(texts)
        ),
    ]


def _floor(floor: int) -> str:
    return "foundation" if floor == 0 else f"floor {floor - 1}"


def _arrow(a: _Box, b: _Box) -> str:
    """From the lower edge of ``a`` to the upper edge of ``b``, straight where one stands above the other."""
    low, high = max(a.left, b.left), min(a.right, b.right)
    start, end = a.bottom, b.top - 2
    if high > low:
        line = f"M{(low + high) / 2:g} {start}V{end}"
    else:
        x, to = (a.left + 30, b.right - 30) if a.left > b.left else (a.right - 30, b.left + 30)
        middle = f"{(start + end) / 2:g}"
        line = f"M{x} {start}C{x} {middle} {to} {middle} {to} {end}"
    return f'<path class="arrow" marker-end="url(#head)" d="{line}"/>'


def _description(found: Mapping[tuple[str, str], list[str]], rooms: Mapping[str, Room]) -> str:
    parts = []
    for room in sorted(rooms.values(), key=lambda room: -room.floor):
        imported = sorted(b for a, b in found if a == room.name)
        parts.append(f"{_floor(room.floor)}: {room.name} imports {', '.join(imported) or 'nothing'}.")
    return " ".join(parts)


def main() -> None:
    """Check the source against the plan and write the picture."""
    package = ROOT / PACKAGE
    found = imports(package)
    faults = plan_faults() + violations(found)
    faults += [
        f"backends/{a} imports backends/{b}: {', '.join(m)}"
        for (a, b), m in between_backends(package).items()
    ]
    if faults:
        sys.exit("\n".join(faults))
    PICTURE.write_text(draw(found), encoding="utf-8")


if __name__ == "__main__":
    main()
