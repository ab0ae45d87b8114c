"""The pages of a what-if and of doctor in a browser: words and tables, which fit, without a chart."""

from __future__ import annotations

import pytest

from tests.browser.chromium import DESKTOP, PHONE
from tests.browser.test_run_page import OVERFLOW
from tests.build.ddp_run import Ddp
from tests.cli.tools import nsyspipe_here


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Return a function that writes the page of a command, once."""
    folder = tmp_path_factory.mktemp("blocks")
    reports = folder / "ddp"
    reports.mkdir()
    Ddp().write(reports)

    def page_of(command):
        path = folder / f"{command}.html"
        if not path.exists():
            assert nsyspipe_here(command, reports, "--html", path).returncode == 0
        return path

    return page_of


@pytest.mark.parametrize(
    ("command", "heading", "row"),
    [("whatif", "Largest single change: ", "gradients as bf16"), ("doctor", "These ", "one clock")],
)
def test_a_page_says_what_the_terminal_does_and_fits(
    command, heading, row, written, open_page, check_accessible, screenshot
):
    for size in (DESKTOP, PHONE):
        page = open_page(written(command), size=size).page
        assert page.locator("h1").inner_text().startswith(heading)
        assert row in page.locator("table").first.inner_text()
        assert page.evaluate(OVERFLOW) == 0
        screenshot(page, f"{command}-{size[0]}", full_page=True)
    check_accessible(page)
