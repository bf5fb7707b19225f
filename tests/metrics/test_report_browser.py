"""The page of runs in a real browser: tables sort and filter, nothing of a name runs, nothing is loaded."""

import re

import pytest

from meta500.metrics.report.reports import Request, write_report
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
    page.wait_for_timeout(100)
    assert page.evaluate("window.hacked") is None
    assert sum("Content Security Policy" in error for error in page.errors) >= 2
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
