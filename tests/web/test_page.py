"""The live page in a real browser, served by ``meta500 serve``, with runs that really train."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import zipfile
from urllib.parse import urlsplit

import onnx
import pytest

from meta500 import models
from tests.browser import chromium  # noqa: F401  (a fixture)

httpx = pytest.importorskip("httpx", reason="the extra 'test' is not installed")
pytest.importorskip("starlette", reason="the extra 'web' is not installed")

URL = re.compile(r"http://127\.0\.0\.1:\d+/\S*")
SECONDS = 60
FOREVER = 100_000
# Names that would run, or change the page, if anything took them for HTML.
HOSTILE = "<img src=x onerror='window.hacked=1'><a href='javascript:window.hacked=1'>go</a> \u202ex"


class Server:
    """``meta500 serve`` in a process of its own, on a port that stays the same after `restart`."""

    def __init__(self, folder):
        self.folder, self.port = folder, 0
        self.restart()

    def restart(self):
        words = ["serve", "--port", str(self.port), "--runs", str(self.folder / "runs"), "--max-running", "3"]
        with open(self.folder / "errors", "ab") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "meta500", *words],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
        for line in self.process.stdout:
            if found := URL.search(line):
                self.url = found[0]
                self.port = urlsplit(self.url).port
                return
        raise AssertionError((self.folder / "errors").read_text())

    def stop_runs(self):
        """Stop what a test has left, which would keep the processors from the next one."""
        for run in httpx.get(f"{self.url}api/runs").json()["runs"]:
            if run["state"] in ("queued", "starting", "running"):
                httpx.post(f"{self.url}api/runs/{run['id']}/stop")

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()

    def close(self):
        """Ctrl-C, which stops the runs too."""
        self.process.send_signal(signal.SIGINT)
        self.process.communicate(timeout=SECONDS)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = Server(tmp_path_factory.mktemp("server"))
    yield server
    server.close()


@pytest.fixture
def visit(chromium, server):  # noqa: F811
    """``visit()`` is a new visitor's page, ready for use; afterwards none may have asked another host for
    anything, or have had an error that ``expected`` (a regular expression) does not match."""
    contexts, foreign, errors = [], [], []

    def visited(expected="$^", **settings):
        context = chromium.new_context(**settings)
        contexts.append(context)
        context.set_default_timeout(1000 * SECONDS)

        def elsewhere(route):
            foreign.append(route.request.url)
            route.abort()

        context.route(lambda url: not url.startswith(f"http://127.0.0.1:{server.port}/"), elsewhere)
        page = context.new_page()
        noted = lambda text: None if re.search(expected, text) else errors.append(text)  # noqa: E731
        page.on("console", lambda message: message.type == "error" and noted(message.text))
        page.on("pageerror", lambda error: noted(str(error)))
        page.goto(server.url)
        ready(page)
        return page

    yield visited
    for context in contexts:
        context.close()
    server.stop_runs()
    assert foreign == []
    assert errors == []


def ready(page):
    page.locator("#form[data-ready]").wait_for()
    page.locator("#connection[data-live=true]").wait_for()


def fill(page, label, *, model="mlp", backend="numpy", epochs=FOREVER):
    """Fill in the form; by default for a run that goes on until it is stopped."""
    page.select_option("#model", model)
    page.select_option("#backend", backend)
    page.fill("#epochs", str(epochs))
    if not page.is_visible("#label"):
        page.click("#further > summary")
    page.fill("#label", label)


def start(page, label, **settings):
    """Start a run; its card in the list."""
    fill(page, label, **settings)
    page.click("#start")
    card = card_of(page, label)
    card.wait_for()
    return card


def card_of(page, label):
    return page.locator("li.run").filter(has=page.get_by_role("heading", name=label, exact=True))


def in_state(page, label, pattern):
    """Wait until the run of this name is in a state."""
    state = card_of(page, label).locator(".state").filter(has_text=re.compile(pattern))
    state.wait_for()


def moves(page, label, plot="loss-samples", than=0):
    """Wait until the last curve of a run in a plot has more than so many points; how many it has."""
    count = """([plot, label]) => document.getElementById(plot).data
        ?.filter((trace) => trace.name.startsWith(label)).at(-1)?.x.length || 0"""
    page.wait_for_function(
        f"([plot, label, than]) => ({count})([plot, label]) > than", arg=[plot, label, than]
    )
    return page.evaluate(count, [plot, label])


def stop(page, label):
    card_of(page, label).get_by_role("button", name="Stop").click()
    in_state(page, label, "^stopped$")


def onnx_file(path, change=lambda proto: None):
    """An uploadable network, the MLP for digits."""
    proto = models.create("mlp", batch="N").to_proto()
    change(proto)
    path.write_bytes(proto.SerializeToString())
    return path


def test_an_uploaded_network_trains_to_its_end(visit, tmp_path):
    page = visit()
    page.set_input_files("#upload", onnx_file(tmp_path / "mine.onnx"))
    page.locator("#upload-state dl").wait_for()
    told = page.inner_text("#upload-state")
    assert "image" in told and "loss" in told and "Gemm" in told
    chosen = page.input_value("#model")
    assert chosen.startswith("upload:")
    start(page, "uploaded", model=chosen, epochs=2)
    in_state(page, "uploaded", "^finished$")
    moves(page, "uploaded, test", "accuracy-samples", than=1)
    row = page.locator("#ranking-table tbody tr").filter(has_text="uploaded")
    row.wait_for()
    assert "mine.onnx" in row.inner_text() and "%" in row.inner_text()
    with page.expect_download() as coming:
        card_of(page, "uploaded").get_by_role("link", name="Download").click()
    with zipfile.ZipFile(coming.value.path()) as archive:
        names = {name.rpartition("/")[2] for name in archive.namelist()}
        assert archive.testzip() is None
    assert {"run.json", "rows.csv"} <= names


def test_a_dropped_file_is_uploaded(visit, tmp_path):
    page = visit()
    data = list(onnx_file(tmp_path / "mine.onnx").read_bytes())
    page.evaluate(
        """data => {
          const dataTransfer = new DataTransfer();
          dataTransfer.items.add(new File([new Uint8Array(data)], "dropped.onnx"));
          document.querySelector("h1").dispatchEvent(new DragEvent("drop", { dataTransfer, bubbles: true }));
        }""",
        data,
    )
    page.locator("#upload-state dl").wait_for()
    assert page.locator("#model option:checked").inner_text() == "dropped.onnx"


def test_curves_move_until_the_run_is_stopped(visit):
    page = visit()
    start(page, "moving", model="digits_cnn")
    before = moves(page, "moving, training")
    after = moves(page, "moving, training", than=before + 2)
    assert "moving: training" in page.get_attribute("#loss-samples", "aria-label")
    card = card_of(page, "moving")
    assert 0 <= float(card.locator("progress").get_attribute("value")) < 1
    assert re.search(r"epoch \d+ of 100000", card.locator(".figures").inner_text())
    stop(page, "moving")
    assert card.get_by_role("button", name="Stop").count() == 0
    assert moves(page, "moving, training") >= after


def test_two_runs_differ_in_colour_dash_and_marker(visit):
    page = visit()
    start(page, "first of two")
    start(page, "second of two")
    for name in ("first of two", "second of two"):
        moves(page, f"{name}, training", "loss-seconds")
    traces = page.evaluate(
        "document.getElementById('loss-samples').data.map(t => [t.name, t.line.color, t.line.dash, t.marker.symbol])"
    )
    mine = [next(trace for trace in traces if name in trace[0]) for name in ("first of two", "second of two")]
    assert all(a != b for a, b in zip(*mine, strict=True))
    assert page.locator("#legend li").all_inner_texts()[-2:] == ["first of two", "second of two"]
    page.check("#log-loss")
    page.wait_for_function("() => document.getElementById('loss-samples').layout.yaxis.type === 'log'")
    card_of(page, "first of two").get_by_role("button", name="Hide").click()
    assert "first of two" not in page.locator("#legend").inner_text()
    colour = page.evaluate("document.getElementById('loss-samples').data.at(-1).line.color")
    assert colour == mine[1][1]
    stop(page, "first of two")
    stop(page, "second of two")


def test_a_bad_file_is_refused_beside_the_form(visit):
    page = visit(expected="status of 4(15|22)")
    page.set_input_files("#upload", {"name": "bad.onnx", "mimeType": "", "buffer": b"\x80\x04 no network"})
    error = page.get_by_role("alert").filter(has_text="ONNX")
    error.wait_for()
    assert page.evaluate("document.activeElement.id") == "form-error"
    assert page.locator("#upload-state").inner_text() == ""


def test_wrong_values_are_said_at_the_field_and_by_the_server(visit):
    page = visit(expected="status of 422")
    fill(page, "wrong", epochs=0)
    page.click("#start")
    error = page.locator("#form-error")
    assert error.inner_text() == "Epochs: must be a whole number of at least 1."
    assert page.evaluate("document.activeElement.id") == "epochs"
    assert page.get_attribute("#epochs", "aria-describedby") == "form-error"
    page.fill("#epochs", "1")
    page.fill("[id='model_options.hidden']", "[0]")
    page.click("#start")
    page.wait_for_function("() => document.activeElement.id === 'form-error'")
    assert error.is_visible() and "Epochs" not in error.inner_text()
    assert card_of(page, "wrong").count() == 0


def test_two_visitors_see_the_same(visit):
    one, other = visit(), visit()
    start(one, "seen by two")
    in_state(other, "seen by two", "^training$")
    card_of(other, "seen by two").get_by_role("button", name="Show").click()
    moves(other, "seen by two, training")
    card_of(other, "seen by two").get_by_role("button", name="Stop").click()
    in_state(one, "seen by two", "^stopped$")


def test_a_reload_brings_everything_back(visit):
    page = visit()
    start(page, "reloaded")
    before = moves(page, "reloaded, training")
    page.check("#log-x")
    page.reload()
    ready(page)
    moves(page, "reloaded, training", than=before)
    assert page.locator("#legend li").all_inner_texts()[-1] == "reloaded"
    assert page.is_checked("#log-x")
    assert page.input_value("#epochs") == str(FOREVER)
    assert page.input_value("#backend") == "numpy"
    stop(page, "reloaded")


def test_a_killed_server_comes_back_and_the_page_goes_on(visit, server):
    page = visit(expected="ERR_CONNECTION_REFUSED|ERR_INCOMPLETE_CHUNKED_ENCODING|ERR_CONNECTION_RESET")
    start(page, "survivor")
    before = moves(page, "survivor, training")
    server.kill()
    page.get_by_text("connection lost, trying again").wait_for()
    assert page.locator("#legend li").all_inner_texts()[-1] == "survivor"
    server.restart()
    page.locator("#connection[data-live=true]").wait_for()
    moves(page, "survivor, training", than=before)
    stop(page, "survivor")


def test_the_keyboard_alone_is_enough(visit):
    page = visit()
    fill(page, "typed")
    page.reload()  # what was filled in stays, and the keyboard begins at the top
    ready(page)

    def tab_to(selector, most=80):
        for _ in range(most):
            page.keyboard.press("Tab")
            if page.evaluate("selector => document.activeElement.matches(selector)", selector):
                outline = "getComputedStyle(document.activeElement).outlineStyle"
                assert selector.startswith("body") or page.evaluate(outline) != "none"
                return
        raise AssertionError(f"{selector} is not reached")

    tab_to(".skip")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "runs-title"
    page.keyboard.press("Shift+Tab")
    assert page.evaluate("document.activeElement.id") == "start"
    page.keyboard.press("Enter")
    card = card_of(page, "typed")
    card.wait_for()
    in_state(page, "typed", "^training$")
    # The newest run stands first, and its buttons come after one another.
    for name in ("Hide", "Stop", "Download", "Log"):
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == name
    page.keyboard.press("Enter")
    page.locator("dialog[open]").wait_for()
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.textContent") == "Log"
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Enter")
    in_state(page, "typed", "^stopped$")
    # The button is gone; what was focused must not be lost with it.
    assert page.evaluate("document.activeElement.textContent") == "Hide"
    tab_to("#metric")
    tab_to("#ranking-table button")
    page.keyboard.press("Enter")
    assert page.locator("th[aria-sort]").count() == 1
    tab_to("body, .skip", most=300)  # no trap: the end of the page leads out of it


CONTRASTS = """() => {
  const rgb = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((v) => v / 255)
    .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, k) => sum + v * [0.2126, 0.7152, 0.0722][k], 0);
  const behind = (element) => {
    for (let outer = element; outer; outer = outer.parentElement) {
      const colour = rgb(getComputedStyle(outer).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  const texts = [...document.querySelectorAll("body *")].filter((element) =>
    element.checkVisibility() && !element.disabled && (element.matches("input, select") ||
      [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim())));
  return texts.map((element) => {
    const colour = getComputedStyle(element)[element instanceof SVGElement ? "fill" : "color"];
    const [a, b] = [light(rgb(colour)), light(behind(element))];
    return [element.tagName, element.textContent.slice(0, 40), (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05)];
  });
}"""


def test_both_themes_are_readable(visit):
    page = visit(color_scheme="light", viewport={"width": 400, "height": 800})
    page.click("#further > summary")
    start(page, "seen in both")
    moves(page, "seen in both, training")
    light = checked_theme(page, paper=1.0, least=3.0)
    page.emulate_media(color_scheme="dark")
    page.wait_for_function(
        "light => document.getElementById('loss-samples').data.at(-1).line.color !== light", arg=light
    )
    dark = checked_theme(page, paper=0.0, least=3.8)
    assert dark != light


def checked_theme(page, paper, least):
    """Check the theme's contrasts; the colour of the last curve. ``paper`` is the luminance that the background is
    nearer to, and ``least`` the contrast to pure black or white that leaves 3 to the background."""
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(255, 255, 255)") == (paper == 1.0)
    measured = page.evaluate(CONTRASTS)
    assert len(measured) > 40
    assert [entry for entry in measured if entry[2] < 4.5] == []
    # Nothing is wider than a small telephone.
    assert page.evaluate("document.documentElement.scrollWidth") == 400
    # The curves' colours stand out from the paper.
    colours = page.evaluate(
        """async () => {
          const { style } = await import("/static/selection.js");
          return [...Array(6).keys()].map((place) => style(place).colour);
        }"""
    )
    assert len(set(colours)) == 6
    for colour in colours:
        found = luminance(colour)
        assert (max(found, paper) + 0.05) / (min(found, paper) + 0.05) > least, colour
    return page.evaluate("document.getElementById('loss-samples').data.at(-1).line.color")


def luminance(colour):
    values = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in values]
    return sum(a * b for a, b in zip(linear, (0.2126, 0.7152, 0.0722), strict=True))


def test_hostile_names_stay_text(visit, tmp_path):
    def change(proto):
        output = onnx.helper.make_tensor_value_info(HOSTILE, onnx.TensorProto.FLOAT, None)
        proto.graph.node.append(onnx.helper.make_node("Relu", ["logits"], [HOSTILE], name=HOSTILE))
        proto.graph.output.append(output)

    page = visit()
    data = onnx_file(tmp_path / "network", change).read_bytes()
    page.set_input_files("#upload", {"name": f"{HOSTILE}.onnx", "mimeType": "", "buffer": data})
    page.locator("#upload-state dl").wait_for()
    assert "<img src=x" in page.inner_text("#upload-state")
    fill(page, HOSTILE, model=page.input_value("#model"), epochs=1)
    page.click("#start")
    card = page.locator("li.run").first
    card.locator("h3").filter(has_text="<img src=x").wait_for()
    card.locator(".state").filter(has_text=re.compile("^finished$")).wait_for()
    moves(page, "&lt;img")
    page.locator("#ranking-table tbody tr").filter(has_text="<img src=x").wait_for()
    # The hover label of a curve holds the run's name.
    page.locator("#loss-samples").scroll_into_view_if_needed()
    page.evaluate(
        """() => {
          const { data } = document.getElementById("loss-samples");
          const curveNumber = data.findIndex((trace) => trace.name.startsWith("&lt;img"));
          Plotly.Fx.hover("loss-samples", [{ curveNumber, pointNumber: 3 }]);
        }"""
    )
    page.locator("#loss-samples .hoverlayer .name").filter(has_text="<img").wait_for()
    card.get_by_role("button", name="Log").click()
    page.locator("dialog[open]").wait_for()
    assert page.evaluate("window.hacked") is None
    assert page.locator("img, a[href^=javascript], script:not([src])").count() == 0
    assert page.locator("#plots a[href], #plots image").count() == 0


def test_figures_in_words_and_order(visit):
    found = visit().evaluate(
        """async () => {
          const text = await import("/static/text.js");
          const { order } = await import("/static/ranking.js");
          const { thin, escaped } = await import("/static/curves.js");
          const noise = [...Array(10000).keys()].map((k) => [k, k, k === 5000 ? NaN : Math.sin(k)]);
          noise[1234][2] = 99;
          const kept = thin(noise, 500);
          const values = [3, NaN, null, 1, 2];
          return {
            times: [0, 2e-7, 0.0123, 5, 125, 7300, null, "NaN"].map(text.duration),
            numbers: [null, "NaN", "-Infinity", 0, 0.12345, 1e9, 12].map((value) => text.number(value)),
            remaining: [[12.2, true], [12.2, false], [null, false]].map(([remaining, remaining_complete]) =>
              text.remaining({ remaining, remaining_complete })),
            up: [...values].sort((a, b) => order(a, b, false)).map(String),
            down: [...values].sort((a, b) => order(a, b, true)).map(String),
            kept: kept.length,
            peak: kept.some((point) => point[2] === 99),
            gap: kept.some((point) => Number.isNaN(point[2])),
            ends: [kept[0][0], kept.at(-1)[0]],
            sorted: kept.every((point, k) => !k || point[0] > kept[k - 1][0]),
            whole: thin(noise.slice(0, 400), 500).length,
            escaped: escaped("<b>&amp;</b>"),
          };
        }"""
    )
    assert found["times"] == ["0 s", "200 ns", "12.3 ms", "5 s", "2 min 05 s", "2 h 01 min", "–", "NaN"]
    assert found["numbers"] == ["–", "NaN", "-∞", "0", "0.123", "1.00e+9", "12"]
    assert found["remaining"] == ["about 13 s to go", "at least 13 s to go", ""]
    assert found["up"][:3] == ["1", "2", "3"] and found["down"][:3] == ["3", "2", "1"]
    assert 400 < found["kept"] <= 520 and found["peak"] and found["gap"] and found["sorted"]
    assert found["ends"] == [0, 9999] and found["whole"] == 400
    assert found["escaped"] == "&lt;b&gt;&amp;amp;&lt;/b&gt;"


def test_a_shown_run_that_is_gone_does_not_hinder(visit, server):
    page = visit(expected="status of 404")
    page.goto(f"http://127.0.0.1:{server.port}/#show=20200101T000000Z-00000000")
    page.reload()
    ready(page)
    page.wait_for_function("() => !location.hash.includes('20200101')")
    ready(page)
