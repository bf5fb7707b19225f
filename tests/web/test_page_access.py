"""Who can use the live page, and who cannot misuse it: keyboard, themes, hostile names, figures in words."""

# ruff: noqa: F811  (fixtures are imported, and are parameters then)
from __future__ import annotations

import re

import onnx

from tests.browser import chromium  # noqa: F401  (a fixture)
from tests.web.page import (  # noqa: F401  (two are fixtures)
    HOSTILE,
    card_of,
    fill,
    in_state,
    moves,
    onnx_file,
    ready,
    server,
    start,
    visit,
)


def test_the_keyboard_alone_is_enough(visit):
    page = visit()
    start(page, "ranked", epochs=1)  # the table is there as soon as a run has finished
    in_state(page, "ranked", "^finished$")
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
            stopping: [true, false].map((remaining_complete) =>
              text.remaining({ remaining: 12.2, remaining_complete, may_stop: true })),
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
    assert found["stopping"] == ["at most 13 s to go", ""]
    assert found["remaining"] == ["about 13 s to go", "at least 13 s to go", ""]
    assert found["up"][:3] == ["1", "2", "3"] and found["down"][:3] == ["3", "2", "1"]
    assert 400 < found["kept"] <= 520 and found["peak"] and found["gap"] and found["sorted"]
    assert found["ends"] == [0, 9999] and found["whole"] == 400
    assert found["escaped"] == "&lt;b&gt;&amp;amp;&lt;/b&gt;"


def test_values_without_a_place_are_counted_and_the_last_one_is_the_last(visit):
    """Of a long curve the newest point may not be kept; it is told apart."""
    found = visit().evaluate(
        """async () => {
          const { Curves } = await import("/static/curves.js");
          const curves = Object.create(Curves.prototype);
          Object.assign(curves, { data: new Map(), last: new Map(), label: (id) => `run ${id}`, redraw() {} });
          const loss = [[0, 0, 2], [1, 1, "NaN"], [2, 2, "Infinity"], [3, 3, 0], [4, 4, 1]];
          curves.replace("a", { series: { loss }, last: { loss: [6, 6, 0.5] } });
          curves.replace("b", { series: { loss: [[1, 1, 2]] } });
          const [samples, accuracy] = [["loss", "samples"], ["accuracy", "samples"]].map(([y, x]) => ({ y, x }));
          const words = () => curves.gaps({ ...samples, title: "Loss" }, ["a", "b"]);
          const plain = words();
          document.getElementById("log-loss").checked = true;
          const logarithmic = words();
          document.getElementById("log-x").checked = true;
          const both = words();
          const described = curves.described({ ...samples, title: "Loss" }, ["a", "b"]);
          curves.append("a", { series: { loss: [[7, 7, 0.4]] }, last: { loss: [7, 7, 0.4] } });
          return { plain, logarithmic, both, described, none: curves.gaps(accuracy, ["a", "b"]),
            later: curves.described({ ...samples, title: "Loss" }, ["a"]) };
        }"""
    )
    start = "Values that are not drawn. run a: 2 not finite (NaN or infinite)"
    assert found["plain"] == f"{start}."
    assert found["logarithmic"] == f"{start}, 1 not above 0, where a logarithmic axis has no place."
    assert found["both"] == f"{start}, 2 not above 0, where a logarithmic axis has no place."
    assert found["none"] == ""
    assert found["described"] == (
        "Loss. run a: training 0.5 after 6 samples; run b: training 2 after 1 samples"
    )
    assert found["later"] == "Loss. run a: training 0.4 after 7 samples"


def test_what_the_ranking_leaves_out_and_what_a_field_takes(visit):
    page = visit()
    found = page.evaluate(
        """async () => {
          const { Ranking } = await import("/static/ranking.js");
          return [[0, 1], [2, 1], [2, 3], [2, 0]].map(([finished, left_out]) =>
            Ranking.prototype.note.call({ found: { left_out } }, finished));
        }"""
    )
    assert found == [
        "No run has finished yet. One run is left out: it has not finished, or left no results.",
        "One run is left out: it has not finished, or left no results.",
        "3 runs are left out: they have not finished, or left no results.",
        "",
    ]
    page.click("#further > summary")
    page.fill("#target_accuracy", "1.5")
    page.click("#start")
    assert page.locator("#form-error").inner_text() == "Stop at accuracy: must be a number from 0 to 1."


def test_gaps_stand_below_their_plot(visit):
    page = visit()
    start(page, "with gaps")
    moves(page, "with gaps, training")
    page.check("#log-x")  # the curve begins after 0 samples, so nothing is lost yet
    assert page.locator("#loss-samples-gaps").is_hidden()
    page.evaluate("() => { Number.isFinite = (value) => value > 1e9; }")
    gaps = page.locator("#loss-samples-gaps").filter(has_text="with gaps: ")
    gaps.wait_for()
    assert "not finite" in gaps.inner_text() and page.locator("#loss-seconds-gaps").is_visible()
