"""Fixtures of browser tests: the browser, pages of runs, differences, scoreboards and stores written once, screenshots."""

import os
from pathlib import Path

import pytest

from tests.browser.chromium import DESKTOP, Opened, chromium_path, watch
from tests.browser.pages import page_of


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


def _opening(browser):
    """Yield a function that opens a page; what it complained about fails the test when it ends."""
    contexts, pages = [], []

    def opened(path, *, size=DESKTOP, dark=False, **options):
        width, height = size
        scheme = "dark" if dark else "light"
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme, **options
        )
        contexts.append(context)
        found = watch(Opened(context.new_page(), path))
        pages.append(found)
        found.page.goto(path.as_uri())
        if options.get("java_script_enabled", True):
            found.page.wait_for_selector("html[data-ready=true]", state="attached", timeout=20_000)
        return found

    yield opened
    complaints = [line for page in pages for line in page.complaints]
    asked = [url for page in pages for url in page.requests if url != page.path.as_uri()]
    for context in contexts:
        context.close()
    assert not complaints
    assert not asked


@pytest.fixture
def open_page(browser):
    yield from _opening(browser)


@pytest.fixture(scope="module")
def keep_page(browser):  # for all tests of a file, which leave it as they found it
    yield from _opening(browser)


@pytest.fixture
def screenshot():  # under NSYSPIPE_SCREENSHOTS, if that is set: it is for people
    folder = os.environ.get("NSYSPIPE_SCREENSHOTS")

    def keep(page, name, **options):
        if folder:
            page.screenshot(path=Path(folder) / f"{name}.png", **options)

    return keep


@pytest.fixture
def check_accessible():
    from axe_playwright_python.sync_playwright import Axe  # noqa: PLC0415 - likewise

    def check(page):
        found = Axe().run(page).response["violations"]
        assert not found, [
            (one["id"], [node["html"][:200] for node in one["nodes"][:4]]) for one in found
        ]

    return check


@pytest.fixture(scope="session")
def written(tmp_path_factory, real):
    folder = tmp_path_factory.mktemp("pages")

    def path_of(name):
        path = folder / f"{name}.html"
        if not path.exists():
            (folder / f"{name}.d").mkdir()
            path.write_text(
                page_of(name, folder / f"{name}.d", real), encoding="utf-8", errors="replace"
            )
        return path

    return path_of
