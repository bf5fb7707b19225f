"""A real Chromium for tests of pages: ``from tests.browser import chromium`` makes the fixture known.

`python tests/browser.py` prints where it is found, or says why there is none and ends with 1.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find_chromium() -> str:
    """The executable: META500_CHROMIUM, Playwright's own, that of ``make browser``, or one on PATH.

    Raises:
        LookupError: there is none, and why.
    """
    named = os.environ.get("META500_CHROMIUM")
    if named:
        if not os.access(named, os.X_OK):
            raise LookupError(f"META500_CHROMIUM={named} is no program")
        return named
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        raise LookupError("the package playwright is not installed (extra 'test')") from None
    with sync_playwright() as playwright:
        own = playwright.chromium.executable_path
    unpacked = Path(sys.prefix) / "chromium" / "chromium"
    for found in (own, str(unpacked), *(shutil.which(name) for name in NAMES)):
        if found and os.access(found, os.X_OK):
            return found
    raise LookupError("no Chromium: run 'make browser', or let META500_CHROMIUM name one")


@pytest.fixture(scope="module")
def chromium():
    """A Playwright browser, for one module: it keeps an event loop running, which other tests may not expect."""
    try:
        path = find_chromium()
    except LookupError as error:
        pytest.skip(str(error))
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path)
        yield browser
        browser.close()


if __name__ == "__main__":
    try:
        print(find_chromium())
    except LookupError as reason:
        sys.exit(str(reason))
