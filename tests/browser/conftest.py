"""Fixtures of browser tests: the browser, pages of runs written once, screenshots."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nsyspipe import load
from nsyspipe.report.html.run_page import run_page
from tests.browser.chromium import DESKTOP, Opened, chromium_path, watch
from tests.build.hostile import hostile_log, write_hostile_run
from tests.build.trace import steady_rank

LOGS = Path(__file__).parents[1] / "real" / "logs"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark everything here: it needs a browser."""
    here = Path(__file__).parent
    for item in items:
        if here in Path(item.fspath).parents:
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
        context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme, **options)
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
    """Return a function that opens a page for one test."""
    yield from _opening(browser)


@pytest.fixture(scope="module")
def keep_page(browser):
    """Return a function that opens a page for all tests of a file, which leave it as they found it."""
    yield from _opening(browser)


@pytest.fixture(scope="session")
def written(tmp_path_factory, real):
    """Return a function that writes the page of a run, once: by the name of a real run, or ``steady``, ``hostile``."""
    folder = tmp_path_factory.mktemp("pages")
    runs = {
        "steady": lambda: load(_steady(folder)),
        "one-rank": lambda: load(real / "baseline.sqlite"),
        "hostile": lambda: _hostile(folder),
    }

    def page_of(name):
        path = folder / f"{name}.html"
        if not path.exists():
            run = runs[name]() if name in runs else _real(real, name)
            path.write_text(run_page(run), encoding="utf-8")
        return path

    return page_of


def _steady(folder):
    return [steady_rank(rank, n_steps=20).write(folder / f"steady_{rank}.sqlite") for rank in range(2)]  # fmt: skip


def _real(real, name):
    """Open a real run with what lies beside it: NCCL's log and the topology of its machine."""
    gpus = name.split("-")[1]
    return load(
        sorted(real.glob(f"{name}_[0-9].sqlite")),
        nccl_log=sorted(LOGS.glob(f"{name}.nccl.log")),
        topology=LOGS / f"topo-{gpus}.txt",
    )


def _hostile(folder):
    reports = folder / "hostile reports"
    reports.mkdir()
    return load(
        write_hostile_run(reports),
        nccl_log=hostile_log(reports / "nccl.log"),
        label='<script>window.attacked=9</script>"><img src=x onerror=alert(9)>',
        run_id="\"><script>alert('id')</script>",
    )


@pytest.fixture
def screenshot(request, tmp_path):
    """Return a function that keeps a screenshot: under NSYSPIPE_SCREENSHOTS, else with the test's files."""
    folder = Path(os.environ.get("NSYSPIPE_SCREENSHOTS", tmp_path))
    folder.mkdir(parents=True, exist_ok=True)

    def keep(page, name, **options):
        page.screenshot(path=folder / f"{name}.png", **options)

    return keep


@pytest.fixture
def check_accessible():
    """Return a function that asserts that axe-core finds nothing serious."""
    from axe_playwright_python.sync_playwright import Axe  # noqa: PLC0415 - likewise

    def check(page):
        found = Axe().run(page).response["violations"]
        grave = [one for one in found if one["impact"] in ("serious", "critical")]
        assert not grave, [(one["id"], [node["html"][:200] for node in one["nodes"][:4]]) for one in grave]

    return check
