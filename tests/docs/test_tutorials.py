"""Every block and every command of the tutorials runs, in the order of its page, and prints what the page says."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import meta500
from meta500.backends.network import UNSUPPORTED, backend_names

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
sys.path.insert(0, str(Path(__file__).parent))
import tutorial  # noqa: E402

# What may be left out of the tests: installing, and jobs for a batch system.
NOT_RUN = ("pip install ", "git clone ", "make install", "cd ", ". ", "sbatch ", "#")


def run_page(page, folder, *arguments):
    """Run a page in ``folder``, with `meta500` and `python` being those of this checkout."""
    programs = folder / "bin"
    programs.mkdir()
    for name, command in (("meta500", "-m meta500"), ("python", "")):
        program = programs / name
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" {command} "$@"\n')
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
    place = folder / "work"
    place.mkdir()
    environment = {
        **os.environ,
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "COLUMNS": "120",
        "MPLBACKEND": "Agg",
    }
    return subprocess.run(
        [sys.executable, tutorial.__file__, str(page), *arguments],
        cwd=place,
        env=environment,
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )


def test_the_tutorials_are_there():
    names = {page.stem for page in PAGES}
    assert names == {
        *("index", "first-run", "your-network", "your-operator", "your-optimizer"),
        *("your-backend", "distributed", "studies"),
    }
    assert all(
        any(b.language in ("python", "sh") for b in tutorial.blocks(p)) for p in PAGES if p.stem != "index"
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_page(page, tmp_path):
    done = run_page(page, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [p for p in PAGES if any(block.slow for block in tutorial.blocks(p))], ids=lambda page: page.stem
)
def test_page_with_its_slow_blocks(page, tmp_path):
    done = run_page(page, tmp_path, "slow")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_only_installing_is_left_out(page):
    for block in tutorial.blocks(page):
        if block.left_out:
            lines = [line for line in block.text.splitlines() if line]
            assert all(line.startswith(NOT_RUN) for line in lines), f"{page.name}:{block.line}"


def test_the_backend_of_the_page_has_60_lines_at_most_and_trains(tmp_path, monkeypatch):
    page = ROOT / "docs" / "tutorials" / "your-backend.md"
    (block,) = (b for b in tutorial.blocks(page) if b.title == "small_backend.py")
    assert len(block.text.splitlines()) <= 60
    (tmp_path / "small_backend.py").write_text(block.text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("meta500.backends.network._BACKENDS", dict(meta500.backends.network._BACKENDS))
    import small_backend  # noqa: F401 - registers the backend

    assert "small" in backend_names()
    model = meta500.models.mlp(batch="N", seed=3, dtype="float64")
    rng = np.random.default_rng(0)
    batches = [
        {"image": rng.standard_normal((7, 1, 8, 8)), "label": rng.integers(0, 10, 7)} for _ in range(10)
    ]
    losses, gradients = {}, {}
    for backend in ("small", "numpy"):
        with meta500.network(model, backend=backend) as network:
            optimizer = meta500.optimizers.Adam(network, learning_rate=1e-2)
            losses[backend] = [float(optimizer.train(batch)["loss"]) for batch in batches]
            gradients[backend] = network.fetch_tensors([g for _, g in network.gradient()])
    np.testing.assert_allclose(losses["small"], losses["numpy"], rtol=1e-9)
    for ours, reference in zip(gradients["small"], gradients["numpy"], strict=True):
        np.testing.assert_allclose(ours, reference, rtol=1e-9, atol=1e-12)
    cnn = meta500.coverage(meta500.models.digits_cnn(), "small")
    assert {node.op_type for node in cnn if node.how == UNSUPPORTED} >= {"Conv", "MaxPool"}
    with pytest.raises(meta500.UnsupportedOperation, match="Conv"):
        meta500.network(meta500.models.digits_cnn(), backend="small")


class TestBlocks:
    """The reading of pages."""

    def page(self, tmp_path, text):
        path = tmp_path / "page.md"
        path.write_text(text)
        return path

    def test_fences_titles_and_comments(self, tmp_path):
        text = 'Text\n\n<!-- slow -->\n```sh\ntrue\n```\n\n```python title="a.py"\nx = 1\n\n```\n'
        first, second = tutorial.blocks(self.page(tmp_path, text))
        assert (first.language, first.text, first.line, first.slow) == ("sh", "true\n", 5, True)
        assert (second.title, second.text, second.line, second.comment) == ("a.py", "x = 1\n\n", 9, "")

    @pytest.mark.parametrize(
        ("comment", "codes"), [("exit 0 or 1", (0, 1)), ("exit 2", (2,)), ("slow", (0,))]
    )
    def test_exit_codes(self, tmp_path, comment, codes):
        (block,) = tutorial.blocks(self.page(tmp_path, f"<!-- {comment} -->\n```sh\ntrue\n```\n"))
        assert block.exit_codes == codes

    @pytest.mark.parametrize(
        "text",
        [
            "```\nx\n```\n",
            "```bash\nx\n```\n",
            "```cpp\nx\n```\n",
            "```sh\nx\n",
            "<!-- slwo -->\n```sh\nx\n```\n",
        ],
        ids=["no language", "unknown language", "no file", "not closed", "unknown comment"],
    )
    def test_refused(self, tmp_path, text):
        with pytest.raises(ValueError, match="page.md"):
            tutorial.blocks(self.page(tmp_path, text))

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("```sh\nfalse\n```\n", "page.md:2: exit code 1"),
            ("```python\nprint(1)\n```\n\n```text\ntwo\n```\n", "page.md:6: not printed: ['two']"),
            ("```python\n\n1 / 0\n```\n", 'File "page.md:2", line 3'),
            ("<!-- exit 3 -->\n```sh\ntrue\n```\n", "exit code 0"),
        ],
        ids=["command", "output", "Python", "exit code"],
    )
    def test_what_is_wrong_fails(self, tmp_path, text, message):
        done = run_page(self.page(tmp_path, text), tmp_path)
        assert done.returncode == 1
        assert message in done.stderr

    def test_numbers_stand_for_numbers(self):
        assert tutorial.missing_lines("loss 0.5,  12 steps\n...\n", "loss 1.25e-03, 7 steps\nmore") == []
        assert tutorial.missing_lines("loss 0.5\ngone", "loss: 0.5") == ["loss 0.5", "gone"]
