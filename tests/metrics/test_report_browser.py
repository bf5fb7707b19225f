"""The page of runs in a real browser: tables sort and filter, nothing of a name runs, nothing is loaded."""

import io
import random
import re
import unicodedata

import pytest
from pypdf import PdfReader

from meta500.metrics.report.figures import PageFigure
from meta500.metrics.report.reports import Request, write_report
from meta500.metrics.report.run_page import RunPage, Shown, page_text
from meta500.metrics.report.sources import Source
from meta500.metrics.report.tables import Cell, Column, DataTable
from meta500.metrics.rows import Row
from tests.browser import chromium  # noqa: F401  a fixture
from tests.metrics.report_rows import HOSTILE, hostile_rows, make_run, measured_rows, timed, training_rows


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Addresses of a page of one run, and of one with hostile names."""
    root = tmp_path_factory.mktemp("pages")
    runs = {"good": measured_rows() + training_rows(), "<img src=x onerror=window.hacked=9>": hostile_rows()}
    addresses = []
    for number, (name, rows) in enumerate(runs.items()):
        run = make_run(root / name, rows, cpu=HOSTILE[number])
        write_report(Request([str(run)], root / str(number), title=HOSTILE[number]))
        addresses.append((root / str(number) / "report.html").as_uri())
    return addresses


@pytest.fixture
def open_page(chromium):  # noqa: F811
    """Opens an address in a window of its own; the page has the lists ``errors`` and ``asked``."""
    contexts = []

    def opened(address, **options):
        contexts.append(chromium.new_context(**options))
        page = contexts[-1].new_page()
        page.errors, page.asked = [], []
        page.on("pageerror", lambda error: page.errors.append(str(error)))
        page.on("console", lambda entry: page.errors.append(entry.text) if entry.type == "error" else None)
        page.on("request", lambda request: page.asked.append(request.url))
        page.goto(address)
        return page

    yield opened
    for context in contexts:
        context.close()


def show_all(page):
    """Scrolls through the page, so that all figures are drawn."""
    for figure in page.locator("figure").all():
        figure.scroll_into_view_if_needed()
    page.wait_for_function(
        "() => document.querySelectorAll('figure.drawn .main-svg').length >= "
        "document.querySelectorAll('figure .interactive').length"
    )


def squeezed(text):
    """The text without blanks and line ends, and with ligatures as letters."""
    return "".join(unicodedata.normalize("NFKC", text).split())


def column(page, table, place):
    return page.locator(f"#{table} tbody tr:not([hidden]) td:nth-child({place})").all_inner_texts()


def test_heads_sort_by_click_and_by_key(pages, open_page, tmp_path):
    rows = [timed(t, level=1, model=f"net {n}", phase="inference", backend="torch") for n, t in
            ((1, 2e-3), (2, 10e-3), (3, 1e-3))]  # fmt: skip
    run = make_run(tmp_path / "run", rows)
    report = write_report(Request([str(run)], tmp_path / "out"))
    [key] = [key for key in report.tables if "inference" in key and "time" in key]
    page = open_page((tmp_path / "out" / "report.html").as_uri())
    table = page.locator(f"#table-{key}")
    heads = table.locator("th").all_inner_texts()
    place = next(n for n, head in enumerate(heads) if head.startswith("torch"))
    head = table.locator("th").nth(place)
    as_written = column(page, f"table-{key}", 1)
    assert as_written == ["net 1", "net 2", "net 3"] and head.get_attribute("aria-sort") == "none"
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "ascending"
    assert column(page, f"table-{key}", 1) == ["net 3", "net 1", "net 2"]
    head.locator("button").focus()
    page.keyboard.press("Enter")
    assert head.get_attribute("aria-sort") == "descending"
    assert column(page, f"table-{key}", 1) == ["net 2", "net 1", "net 3"]
    page.keyboard.press("Space")
    assert head.get_attribute("aria-sort") == "none" and column(page, f"table-{key}", 1) == as_written
    assert page.errors == []


def test_numbers_that_are_not_finite_sort_and_what_is_no_number_stands_last(open_page, tmp_path):
    numbers = [3.0, float("nan"), float("inf"), None, -1e-7, -float("inf"), 20.0]
    lines = tuple((Cell(str(x)), Cell("" if x is None else str(x).replace("nan", "NaN"), x)) for x in numbers)
    table = DataTable("odd", "Odd", (Column("name"), Column("number", numeric=True)), lines)
    rows = tuple(
        Row(level=1, model=name, quantity="time", unit="s", value=x, verdict="failed" if x is None else "ok")
        for name, x in zip(("inf", "b", "nan", "constructor", "a", "B", "10"), numbers, strict=True)
    )
    (tmp_path / "page.html").write_text(
        page_text(RunPage("Odd", [Source("one", tmp_path, rows, None, "")], tables=[table])), encoding="utf-8"
    )
    page = open_page((tmp_path / "page.html").as_uri())
    head = page.locator("#table-odd th button").nth(1)
    head.click()
    up = ["-inf", "-1e-07", "3.0", "20.0", "inf"]
    assert column(page, "table-odd", 1) == [*up, "nan", "None"]
    head.click()
    assert column(page, "table-odd", 1) == [*up[::-1], "nan", "None"]
    page.get_by_role("button", name="Show the rows as a table").click()
    heads = page.locator("#explorer th")
    heads.first.wait_for()
    names = heads.all_inner_texts()
    place = names.index("value") + 1
    heads.nth(place - 1).locator("button").click()
    assert column(page, "explorer", place) == [*up, "nan", ""]
    heads.nth(place - 1).locator("button").click()
    assert column(page, "explorer", place) == [*up[::-1], "nan", ""]
    # In a column of words they are words.
    place = names.index("model") + 1
    heads.nth(place - 1).locator("button").click()
    assert column(page, "explorer", place) == ["10", "a", "b", "B", "constructor", "inf", "nan"]
    assert page.errors == []


def test_scattered_rows_of_a_figure_are_found_in_each_source(open_page, tmp_path):
    chance = random.Random(0)
    sources = [
        Source(name, tmp_path, tuple(timed(1.0, level=1, model=f"{name}{n}") for n in range(500)), None, "")
        for name in ("a", "b", "c")
    ]
    places = {id(row): (s, n) for s, source in enumerate(sources) for n, row in enumerate(source.rows)}
    # The first source has no rows in the figure.
    chosen = [row for source in sources[1:] for row in chance.sample(source.rows, 60)]
    figure = PageFigure("some", "Some", "Some", "Some", "Some rows.", rows=chosen, draw=lambda: None)
    shown = [Shown(figure, b"<svg xmlns='http://www.w3.org/2000/svg'/>", "")]
    (tmp_path / "page.html").write_text(page_text(RunPage("", sources, figures=shown, rows=places)))
    page = open_page((tmp_path / "page.html").as_uri())
    page.locator("a.rows").click()
    page.locator("#explorer tbody tr").first.wait_for()
    assert page.locator("#explorer output").inner_text() == "120 of 1,500 rows"
    place = page.locator("#explorer th").all_inner_texts().index("model") + 1
    assert sorted(column(page, "explorer", place)) == sorted(row.model for row in chosen)
    page.get_by_role("button", name="Show all rows").click()
    assert page.locator("#explorer output").inner_text().startswith("1,500 rows")
    assert page.errors == []


def test_a_filter_hides_lines_and_counts_them(pages, open_page):
    page = open_page(pages[0])
    box = page.get_by_label("Filter: Runs")
    status = page.locator("#tables output").first
    assert status.inner_text() == "1 line"
    box.fill("nothing of the kind")
    assert status.inner_text() == "0 of 1 line"
    box.fill("")
    assert status.inner_text() == "1 line"


def test_figures_are_drawn_and_their_rows_shown(pages, open_page):
    page = open_page(pages[0])
    show_all(page)
    figure = page.locator("#figure-loss-samples")
    widths = [figure.locator(part).bounding_box()["width"] for part in (".interactive", ".main-svg >> nth=0")]
    assert widths[0] > 700 and abs(widths[0] - widths[1]) <= 2
    assert not figure.locator("img").is_visible()
    figure.get_by_role("button", name="Static figure").click()
    assert figure.locator("img").is_visible() and not figure.locator(".interactive").is_visible()
    figure.locator("a.rows").click()
    page.locator("#explorer tbody tr").first.wait_for()
    assert page.locator("#explorer tbody tr").count() == 1
    assert "Training loss over samples seen" in page.locator("#only-figure").inner_text()
    total = len(measured_rows() + training_rows())
    assert page.locator("#explorer output").inner_text() == f"1 of {total} rows"
    page.get_by_role("button", name="Show all rows").click()
    assert page.locator("#explorer output").inner_text() == f"{total} rows"
    page.get_by_label("Filter: Rows").fill("numpy wrong")
    assert page.locator("#explorer output").inner_text() == f"2 of {total} rows"
    assert page.errors == []


def test_nothing_of_hostile_names_runs_and_nothing_is_loaded(pages, open_page):
    for address in pages:
        page = open_page(address)
        show_all(page)
        for point in page.locator("figure .interactive").all()[:6]:
            point.hover()
        page.get_by_role("button", name="Show the rows as a table").click()
        page.locator("#explorer tbody tr").first.wait_for()
        assert page.evaluate("window.hacked") is None
        assert (
            page.evaluate("document.querySelectorAll('img[src=x], figure svg image[href^=http]').length") == 0
        )
        assert [url for url in page.asked if not url.startswith(("data:", "blob:"))] == [address]
        assert page.errors == []
    shown = page.locator("#explorer").inner_text()
    assert HOSTILE[0] in shown and HOSTILE[1] in shown


def test_the_policy_stops_what_is_not_ours(pages, open_page):
    page = open_page(pages[0])
    page.evaluate(
        "() => { const made = document.createElement('script'); made.textContent = 'window.hacked = 1';"
        " document.body.append(made); fetch('https://example.invalid/').catch(() => {}); }"
    )
    while sum("Content Security Policy" in error for error in page.errors) < 2:
        page.wait_for_event("console", timeout=10_000)
    assert page.evaluate("window.hacked") is None
    assert [url for url in page.asked if url.startswith("http")] == []


def test_the_rows_are_downloaded_as_plain_csv(pages, open_page):
    page = open_page(pages[0])
    with page.expect_download() as download:
        page.locator("a.file").click()
    text = download.value.path().read_text(encoding="utf-8")
    assert download.value.suggested_filename == "good.csv"
    assert text.startswith("schema,run_id,") and text.count("\n") == 1 + len(
        measured_rows() + training_rows()
    )


def test_without_scripts_there_are_static_figures_and_all_tables(pages, open_page):
    page = open_page(pages[0], java_script_enabled=False)
    figures = page.locator("figure").count()
    assert figures > 5 and page.locator("figure img:visible").count() == figures
    assert page.locator("#tables table:visible").count() > 3


def test_narrow_and_dark_pages_do_not_scroll_sideways(pages, open_page):
    for address in pages:
        page = open_page(address, viewport={"width": 400, "height": 800}, color_scheme="dark")
        show_all(page)
        assert page.evaluate("document.documentElement.scrollWidth") == 400
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(22, 24, 27)"
        assert page.errors == []


def test_print_has_all_tables_and_static_figures_only(pages, open_page, tmp_path):
    page = open_page(pages[0])
    show_all(page)
    page.emulate_media(media="print")
    figures = page.locator("figure").count()
    assert page.locator("figure img:visible").count() == figures
    assert page.locator(".interactive:visible, .filter:visible, #explorer:visible").count() == 0
    assert page.locator("#tables table:visible").count() == page.locator("#tables table").count()
    page.set_viewport_size({"width": 700, "height": 1000})
    # As wide as the paper between its margins, no table is wider than it.
    too_wide = page.evaluate(
        "() => [...document.querySelectorAll('#tables table, #environment table')]"
        ".filter((t) => t.getBoundingClientRect().right > 701).map((t) => t.caption.textContent)"
    )
    assert too_wide == []
    # Chromium repeats no head of a table that has the box of a button in it.
    displays = "() => [...document.querySelectorAll('th button')].map((b) => getComputedStyle(b).display)"
    assert set(page.evaluate(displays)) == {"contents"}
    data = page.pdf(prefer_css_page_size=True)
    assert data.startswith(b"%PDF")
    sizes = {
        tuple(map(round, map(float, box.split()))) for box in re.findall(rb"/MediaBox \[([^\]]*)\]", data)
    }
    assert (0, 0, 595, 842) in sizes and sizes <= {(0, 0, 595, 842), (0, 0, 842, 595)}
    # Lines of a text may be broken, and letters joined by the font.
    printed = squeezed("".join(sheet.extract_text() for sheet in PdfReader(io.BytesIO(data)).pages))
    captions = page.locator("figcaption, #tables caption, #environment caption").all_inner_texts()
    assert len(captions) >= figures + 5
    assert [text for text in captions if squeezed(text.splitlines()[0]) not in printed] == []
