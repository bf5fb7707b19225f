"""The live page in a real browser, served by ``meta500 serve``, with runs that really train."""

# ruff: noqa: F811  (fixtures are imported, and are parameters then)
from __future__ import annotations

import re
import zipfile

from tests.browser import chromium  # noqa: F401  (a fixture)
from tests.web.page import (  # noqa: F401  (two are fixtures)
    FOREVER,
    card_of,
    fill,
    in_state,
    moves,
    onnx_file,
    ready,
    server,
    start,
    stop,
    visit,
)


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


def test_a_shown_run_that_is_gone_does_not_hinder(visit, server):
    page = visit(expected="status of 404")
    page.goto(f"http://127.0.0.1:{server.port}/#show=20200101T000000Z-00000000")
    page.reload()
    ready(page)
    page.wait_for_function("() => !location.hash.includes('20200101')")
    ready(page)
