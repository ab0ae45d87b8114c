"""The page of a scoreboard in a browser: it draws every run, says who is fastest, and fits."""

from __future__ import annotations

import pytest

from nsyspipe.api import compare
from nsyspipe.report.scoreboard import scoreboard_page
from tests.browser.chromium import DESKTOP, PHONE
from tests.browser.test_run_page import OVERFLOW, PAINTED
from tests.build.hostile import HOSTILE
from tests.build.scoreboard_runs import scoreboard_runs

BOARDS = ("one-kind", "kinds", "alone", "hostile")
CHART = "chart-scoreboard"
ATTACKED = "window.attacked"


@pytest.fixture(scope="session")
def written(tmp_path_factory):
    """Return a function that writes the page of one of the boards above, once."""
    folder = tmp_path_factory.mktemp("scoreboards")
    runs = scoreboard_runs(folder)
    labels = {
        "one-kind": {"ddp": "slow", "bucket25": "fast", "again": "again"},
        "kinds": {name: name for name in runs},
        "alone": {"slow": "slow"},
        "hostile": {name: list(runs)[at % len(runs)] for at, name in enumerate(HOSTILE)},
    }

    def page_of(name):
        path = folder / f"{name}.html"
        if not path.exists():
            board = compare({label: runs[run] for label, run in labels[name].items()})
            path.write_text(scoreboard_page(board), encoding="utf-8", errors="replace")
        return path

    return page_of


@pytest.mark.parametrize("name", BOARDS)
def test_a_page_loads_alone_and_draws_its_chart(name, written, open_page):
    opened = open_page(written(name))
    assert opened.page.evaluate(PAINTED, CHART) > 0.01
    assert opened.page.evaluate(ATTACKED) is None


@pytest.mark.parametrize("size", [DESKTOP, PHONE])
@pytest.mark.parametrize("name", BOARDS)
def test_nothing_is_wider_than_the_window(name, size, written, open_page, screenshot):
    page = open_page(written(name), size=size).page
    assert page.evaluate(OVERFLOW) == 0
    screenshot(page, f"scoreboard-{name}-{size[0]}", full_page=True)


def test_the_first_screen_says_who_is_fastest(written, open_page):
    page = open_page(written("one-kind")).page
    heading = page.locator("h1").inner_text().replace("\xa0", " ")
    assert heading.startswith("bucket25 is the fastest of 3 runs: 1.30x of ddp")
    assert page.locator(f"#{CHART}").bounding_box()["y"] < DESKTOP[1] / 2


def test_bars_and_speedups_stand_in_one_row_or_below_each_other(written, open_page):
    tops = "chart.getOption().grid.map(one => one.top)"
    wide = open_page(written("one-kind")).chart(tops, CHART)
    narrow = open_page(written("one-kind"), size=PHONE).chart(tops, CHART)
    assert wide[0] == wide[1]
    assert narrow[0] < narrow[1]


def test_a_bar_tells_parts_and_interval(written, open_page):
    opened = open_page(written("one-kind"))
    # The second run, inside its bar.
    x, y = opened.chart("chart.convertToPixel({gridIndex: 0}, [20e6, 1])", CHART)
    opened.page.mouse.move(*opened.point(CHART, x, y))
    said = opened.tooltip()
    assert "bucket25" in said
    assert "101.0 ms" in said
    assert "exposed communication" in said
    assert "improvement" in said


def test_colours_change_with_the_theme(written, open_page, screenshot):
    opened = open_page(written("kinds"), dark=True)
    screenshot(opened.page, "scoreboard-kinds-dark", full_page=True)
    colour = "chart.getOption().series[0].itemStyle.color"
    dark = opened.chart(colour, CHART)
    opened.page.click("button.theme")
    assert opened.chart(colour, CHART) != dark


@pytest.mark.parametrize("name", ["kinds", "hostile"])
def test_it_is_accessible(name, written, open_page, check_accessible):
    check_accessible(open_page(written(name)).page)


def test_without_scripts_the_table_has_the_figures(written, open_page):
    page = open_page(written("one-kind"), java_script_enabled=False).page
    assert "1.297x" in page.locator("main").inner_text()
