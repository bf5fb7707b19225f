"""The house of the architecture page is the one that the source builds, and nobody imports upwards."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "docs" / "images" / "house.py"


def load(path):
    specification = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(specification)
    sys.modules[path.stem] = module
    specification.loader.exec_module(module)
    return module


house = load(SCRIPT)
FOUND = house.imports(ROOT / "meta500")


def package(folder, files):
    """A package with files that hold the given texts."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_no_room_imports_what_it_may_not():
    assert house.violations(FOUND) == []


def test_no_backend_imports_another_but_numpy():
    assert house.between_backends(ROOT / "meta500") == {}


def test_the_plan_leads_downwards():
    assert house.plan_faults() == []


def test_every_room_of_the_source_is_in_the_house():
    rooms = {path.name for path in (ROOT / "meta500").iterdir() if (path / "__init__.py").is_file()}
    assert rooms <= {room.name for room in house.HOUSE}


def test_the_picture_is_up_to_date():
    drawn = house.draw(FOUND)
    assert house.PICTURE.read_text(encoding="utf-8") == drawn, "run: python docs/images/house.py"


def test_the_table_says_what_the_source_imports():
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (?:foundation|\d) \| `(\w+)/?` \|.*\| ([^|]+) \|$", text, re.MULTILINE)
    said = {room: set(re.findall(r"`(\w+)`", imports)) for room, imports in rows if "all of" not in imports}
    assert len(said) >= 9
    for room, imports in said.items():
        assert imports == {other for name, other in FOUND if name == room} - {"errors"}, room


@pytest.mark.parametrize(
    "line",
    [
        "from meta500.metrics.rows import Row",
        "import meta500.metrics",
        "from meta500 import metrics",
        "def f():\n    from meta500.metrics import rows",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from meta500.metrics import Row",
    ],
    ids=["from", "import", "package", "lazy", "types"],
)
def test_an_import_upwards_is_found(tmp_path, line):
    found = house.imports(package(tmp_path, {"graph/model.py": line}))
    assert house.violations(found) == [f"graph may not import metrics: {Path('graph/model.py')}"]


def test_a_room_that_is_not_planned_is_found(tmp_path):
    found = house.imports(package(tmp_path, {"attic/box.py": "from meta500.graph import Model"}))
    assert house.violations(found) == [
        f"'attic' is no room of the house ({Path('attic/box.py')} imports graph)"
    ]


def test_backends_that_import_each_other_are_found(tmp_path):
    files = {
        "backends/torch/network.py": "from meta500.backends.generated import library\n"
        "from meta500.backends.numpy.plan import Plan\nfrom meta500.backends.network import Network\n",
        "backends/generated/library.py": "",
        "backends/numpy/plan.py": "",
    }
    found = house.between_backends(package(tmp_path, files))
    assert list(found) == [("torch", "generated")]


def test_a_plan_with_a_way_upwards_is_found():
    rooms = (
        house.Room("low", 0, 0, 1, ("",), ("high",)),
        house.Room("high", 1, 0, 1, ("",), ("left",)),
        house.Room("left", 1, 1, 1, ("",), ("high",)),
    )
    assert house.plan_faults(rooms) == [
        "low above high",
        "high and left import each other",
        "left and high import each other",
    ]


def test_only_arrows_that_say_something_are_drawn():
    edges = {("c", "b"), ("b", "a"), ("c", "a"), ("d", "a"), ("d", "c")}
    assert house.essential(edges) == {("c", "b"), ("b", "a"), ("d", "c")}


def test_all_arrows_lead_down():
    for start, end in re.findall(r'class="arrow"[^>]* d="M[\d.]+ (\d+)[^"]*?(\d+)"/>', house.draw(FOUND)):
        assert int(start) < int(end)


def test_names_are_escaped():
    rooms = (
        house.Room("graph", 0, 0, 4, ("a < b & c",), ()),
        house.Room("models", 1, 0, 4, ("",), ("graph",)),
    )
    assert "a &lt; b &amp; c" in house.draw({("models", "graph"): ["x"]}, rooms)
