"""The parts of the site that are made when it is built, and what its pages refer to."""

import importlib
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([ROOT / "README.md", *DOCS.rglob("*.md")])


def hook(name):
    """A module of docs/hooks."""
    path = DOCS / "hooks" / f"{name}.py"
    specification = importlib.util.spec_from_file_location(f"docs_hooks_{name}", path)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


command_line = hook("command_line")
self_contained = hook("self_contained")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_to_files_lead_somewhere(page):
    text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    targets = re.findall(r"\]\(([^)\s]+)\)", text)
    for target in targets:
        if not re.match(r"[a-z]+:|#", target):
            assert (page.parent / target.partition("#")[0]).exists(), f"{page.name}: {target}"


def test_every_page_is_in_the_navigation():
    configuration = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    named = set(re.findall(r"[\w/-]+\.md", configuration.partition("\nnav:")[2]))
    there = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")} | {command_line.PAGE}
    assert named == there


class TestCommandLine:
    """The page of all verbs."""

    page = command_line.command_line_page()

    def verbs(self):
        import typer

        from meta500.cli.application import application

        return typer.main.get_command(application).commands

    def test_all_verbs_and_options_are_there(self):
        for name, verb in self.verbs().items():
            for each in getattr(verb, "commands", {"": verb}).values():
                path = f"meta500 {name}" if each is verb else f"meta500 {name} {each.name}"
                section = self.page.partition(f"# {path}\n")[2].partition("\n## ")[0].partition("\n### ")[0]
                assert section, path
                for parameter in each.params:
                    options = [*parameter.opts, *parameter.secondary_opts]
                    if (
                        parameter.param_type_name == "option"
                        and not parameter.hidden
                        and "--help" not in options
                    ):
                        assert any(option in section for option in options), f"{path} {options}"

    def test_tables_have_two_cells_in_every_line(self):
        for line in self.page.splitlines():
            if line.startswith("|"):
                assert len(re.findall(r"(?<!\\)\|", re.sub(r"`[^`]*`", "", line))) == 3, line

    def test_brackets_are_no_links(self):
        assert re.search(r"\\\[default: ", self.page)
        rest = re.sub(r"`[^`]*`|```.*?```", "", self.page, flags=re.DOTALL)
        assert not re.search(r"(?<!\\)\[default", rest)


class TestSelfContained:
    """What a browser would load from elsewhere."""

    @pytest.mark.parametrize(
        "text",
        [
            '<script src="https://cdn.example/x.js"></script>',
            '<link rel="stylesheet" href="//fonts.example/css">',
            '<link rel="preconnect" href="https://fonts.example">',
            '<img src="a.png" srcset="a.png 1x, https://e.example/b.png 2x">',
            '<div style="background: url(http://e.example/x.png)"></div>',
            '<style>@import "https://e.example/x.css";</style>',
            '<svg><use href="https://e.example/x.svg#a"/></svg>',
            '<iframe src="HTTPS://e.example"></iframe>',
        ],
    )
    def test_found(self, tmp_path, text):
        (tmp_path / "page.html").write_text(f"<p>{text}</p>")
        (found,) = self_contained.external(tmp_path)
        assert found.startswith("page.html: ")

    @pytest.mark.parametrize(
        "text",
        [
            '<a href="https://elsewhere.example">a link</a>',
            '<link rel="canonical" href="https://here.example/">',
            '<img src="images/a.png"><script src="../a.js"></script>',
            '<img src="data:image/png;base64,AA//BB==">',
            "<p>url(https://in.text)</p>",
        ],
    )
    def test_allowed(self, tmp_path, text):
        (tmp_path / "page.html").write_text(text)
        assert self_contained.external(tmp_path) == []

    def test_style_sheets_are_read(self, tmp_path):
        (tmp_path / "a.css").write_text(
            "p { background: url('https://e.example/x.png') } q { mask: url(data:x) }"
        )
        assert self_contained.external(tmp_path) == ["a.css: https://e.example/x.png"]


@pytest.fixture
def markdown():
    """The function that rewrites docstrings."""
    pytest.importorskip("griffe", reason="the extra 'docs' is not installed")
    return hook("docstrings").markdown


class TestDocstrings:
    """Sphinx's signs in docstrings become Markdown."""

    def test_roles(self, markdown):
        assert markdown("See :class:`Row` and :meth:`~a.b.c`.") == "See `Row` and `a.b.c`."

    def test_blocks(self, markdown):
        text = "As in::\n\n    if x:\n        y()\n\nAfter."
        assert markdown(text) == "As in:\n\n```python\nif x:\n    y()\n```\n\nAfter."

    def test_blocks_without_a_sentence(self, markdown):
        assert markdown("First.\n\n::\n\n    x = 1\n") == "First.\n\n```python\nx = 1\n```\n\n"

    def test_lists_under_headers(self, markdown):
        text = "One row.\n\nWho ran it:\n    backend: a name,\n        or two\n    threads, ranks: counts\nnote: free"
        assert markdown(text) == (
            "One row.\n\n\n**Who ran it**\n\n- **backend**: a name,\n  or two\n- **threads, ranks**: counts\n- **note**: free"
        )

    def test_lists_without_a_header(self, markdown):
        text = "Distances:\n\nl1: sum.\nl2: root\n    of squares.\n\nraw: not an item"
        assert (
            markdown(text)
            == "Distances:\n\n\n- **l1**: sum.\n- **l2**: root\n  of squares.\n\nraw: not an item"
        )

    def test_sections_stay(self, markdown):
        text = "Do.\n\nArgs:\n    a: one.\n    b: two.\n\nRaises:\n    UserError: bad.\n"
        assert markdown(text) == text

    def test_slices_and_types_stay(self, markdown):
        assert markdown("x[::2] and a::b") == "x[::2] and a::b"


REFERENCE = ("graph", "datasets", "models", "optimizers", "metrics", "distributed")
# Generated classes, visitors of single domains, and small types that their users do not make themselves.
UNLISTED = {
    "graph": {
        "Attribute",
        "MlVisitor",
        "OnnxVisitor",
        "PreviewVisitor",
        "TrainingVisitor",
        "ValueType",
        "ops",
    },
    "optimizers": {"Flag", "LearningRate", "Real", "Optimizer", "GraphOptimizer", "schedules", "Schedule"}
    | {"create_schedule", "schedule_names"},
    "metrics": {"plots", "tickers"},
}


@pytest.mark.parametrize("room", REFERENCE)
def test_public_names_have_a_reference(room):
    page = (DOCS / "reference" / f"{room}.md").read_text(encoding="utf-8")
    if "members" not in page and room != "models":
        assert f"::: meta500.{room}" in page  # all names
        return
    words = set(re.findall(r"\w+", page))
    missing = set(importlib.import_module(f"meta500.{room}").__all__) - words - UNLISTED.get(room, set())
    assert not missing


@pytest.mark.slow
def test_the_site_builds_strictly(tmp_path):
    pytest.importorskip("mkdocs", reason="the extra 'docs' is not installed")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    assert self_contained.external(tmp_path / "site") == []
    assert (tmp_path / "site" / "tutorials" / "your-backend.html").is_file()
