"""Using the pages of differences and scoreboards: pointing, zooming, the theme, a narrow screen."""

from __future__ import annotations

import pytest

from tests.browser.chromium import PHONE
from tests.browser.pages import MS

WATERFALL, TIMELINES, BOARD = "chart-waterfall", "chart-timelines", "chart-scoreboard"


@pytest.fixture(scope="module")
def kept(written, keep_page):
    opened = keep_page(written("faster"))
    opened.draw()
    return opened


def test_pointing_at_a_part_shows_it_to_the_nanosecond(kept):
    kept.show(WATERFALL)
    # Each bar is in a row of its own.
    for row, said in ((1, ("compute", "101 000 000 ns", "71 000 000 ns", "-30 000 000 ns")), (0, ("131 000 000 ns",))):
        y = kept.chart(f"chart.convertToPixel({{yAxisIndex: 0}}, {row})", WATERFALL)
        kept.page.mouse.move(*kept.point(WATERFALL, 300, y))
        kept.page.wait_for_timeout(100)
        text = kept.tooltip()
        assert [one for one in said if one not in text] == []


def test_both_timelines_have_titles_one_axis_and_one_zoom(kept):
    opened, page = kept, kept.page
    opened.show(TIMELINES)
    titles = page.locator(f"#{TIMELINES} .side-title").all_inner_texts()
    assert [title.partition(":")[0] for title in titles] == ["baseline", "candidate"]
    assert opened.chart("chart.getOption().xAxis.length", TIMELINES) == 1
    page.locator(f"#{TIMELINES} [data-zoom-by=in]").click()
    assert opened.zoom(TIMELINES) == pytest.approx((18.75, 81.25))
    # Titles stay where they are, one above each side, also when the chart is drawn again.
    page.locator("button.theme").click()
    assert page.locator(f"#{TIMELINES} .side-title").all_inner_texts() == titles
    page.locator("button.theme").click()
    page.locator(f"#{TIMELINES} [data-zoom-by=reset]").click()


def test_titles_stand_above_the_lanes_of_their_side(written, open_page):
    opened = open_page(written("straggler"))
    opened.draw()
    opened.show(TIMELINES)
    # The layout in the order from top to bottom: a title, then its lanes.
    tops = opened.page.locator(f"#{TIMELINES} .lanes > div").evaluate_all(
        "all => all.map(one => [one.getBoundingClientRect().top, one.className])"
    )
    order = [name for _, name in sorted(tops)]
    assert order.count("side-title") == 2
    assert order[0] == "side-title"
    assert order.index("side-title", 1) == len(order) // 2


def test_pointing_at_a_bar_says_whose_it_is(kept):
    opened = kept
    opened.show(TIMELINES)
    bar = opened.page.evaluate("""() => nsyspipe.timeline.layout(nsyspipe.data("timelines"), false).rows
      .filter(row => row.lane === "compute").map(row => row.top)""")
    x = opened.chart(f"chart.convertToPixel({{xAxisIndex: 0}}, {20 * MS})", TIMELINES)
    opened.page.mouse.move(*opened.point(TIMELINES, x, bar[1] + 12))
    text = opened.tooltip()
    assert [one for one in ("rank 0 of the candidate: compute", "sgemm", "71 000 000 ns") if one not in text] == []


def test_a_scoreboard_tells_parts_and_intervals_in_a_row_or_below_each_other_in_the_theme(written, open_page):
    tops = "chart.getOption().grid.map(one => one.top)"
    opened = open_page(written("board"), dark=True)
    wide = opened.chart(tops, BOARD)
    # The second run, inside its bar.
    x, y = opened.chart("chart.convertToPixel({gridIndex: 0}, [20e6, 1])", BOARD)
    opened.page.mouse.move(*opened.point(BOARD, x, y))
    said = opened.tooltip()
    assert [one for one in ("bucket25", "101.0 ms", "exposed communication", "improvement") if one not in said] == []
    colour = "chart.getOption().series[0].itemStyle.color"
    dark = opened.chart(colour, BOARD)
    opened.page.click("button.theme")
    assert opened.chart(colour, BOARD) != dark
    narrow = open_page(written("board"), size=PHONE).chart(tops, BOARD)
    assert wide[0] == wide[1]
    assert narrow[0] < narrow[1]
