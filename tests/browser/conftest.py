"""Fixtures of browser tests: the browser, pages of runs, differences, scoreboards and stores written once, screenshots."""

import os
from pathlib import Path

import pytest

from tests.browser.chromium import Tabs, chromium_path
from tests.browser.pages import page_of
from tests.conftest import filled_once


def pytest_itemcollected(item):
    item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="session")
def browser():
    executable = chromium_path()
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - collecting needs no browser

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def tabs(browser):
    return Tabs(browser, run_scripts=True)


@pytest.fixture(scope="session")
def tabs_without_scripts(browser):
    return Tabs(browser, run_scripts=False)


def _opening(tabs, session):
    """Yield a function that opens a page; what it complained about fails the test when it ends."""
    taken, pages = [], []

    def opened(path, **wishes):
        tab = tabs.take()
        taken.append(tab)
        shown = tab.show(path, **wishes)
        pages.append(shown)
        if tabs.run_scripts:
            shown.page.wait_for_selector("html[data-ready=true]", state="attached", timeout=20_000)
        return shown

    yield opened
    complaints = [line for page in pages for line in page.complaints]
    asked = [url for page in pages for url in page.requests if url != page.path.as_uri()]
    # A test that failed may have left a key or a button of the mouse pressed.
    is_sound = not session.testsfailed
    for tab in taken:
        if is_sound:
            tabs.give_back(tab)
        else:
            tab.close()
    assert not complaints
    assert not asked


@pytest.fixture
def open_page(tabs, request):
    yield from _opening(tabs, request.session)


@pytest.fixture
def open_without_scripts(tabs_without_scripts, request):
    yield from _opening(tabs_without_scripts, request.session)


@pytest.fixture(scope="module")
def keep_page(tabs, request):  # for all tests of a file, which leave it as they found it
    yield from _opening(tabs, request.session)


@pytest.fixture
def blank_page(tabs):
    """Return an empty page, for what is no file."""
    tab = tabs.take()
    yield tab.page
    tabs.give_back(tab)


@pytest.fixture
def screenshot():  # under NSYSPIPE_SCREENSHOTS, if that is set: it is for people
    folder = os.environ.get("NSYSPIPE_SCREENSHOTS")

    def keep(page, name, **options):
        if folder:
            page.wait_for_timeout(1000)  # until all is drawn
            page.screenshot(path=Path(folder) / f"{name}.png", **options)

    return keep


@pytest.fixture(scope="session")
def written(tmp_path_factory, real):
    """Return a function that gives the path of a page by its name; one process of a test run writes it."""

    def path_of(name):
        def write(folder):
            inputs = folder / "inputs"
            inputs.mkdir()
            text = page_of(name, inputs, real)
            (folder / f"{name}.html").write_text(text, encoding="utf-8", errors="replace")

        return filled_once(tmp_path_factory, f"page-{name}", write) / f"{name}.html"

    return path_of
