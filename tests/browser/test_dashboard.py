"""The page of a store in a browser: it answers on the first screen, and draws what can be compared."""

# ruff: noqa: RUF001 - the multiplication sign is what the page shows

from urllib.parse import unquote, urlparse

import pytest

from tests.browser.test_pages import OVERFLOW
from tests.golden.words import figures

MAIN = "chart-step_time_ns"
MOST_MS = 15_000
# Names of the series that are lines, and the runs of each.
LINES = """chart.getOption().series.filter(one => one.type === "line")
  .map(one => one.data.map(point => [point.run, point.value[1]]))"""


@pytest.fixture
def opened(written, open_page):
    return open_page(written("jobs"))


@pytest.fixture(scope="module")
def kept(written, keep_page):
    return keep_page(written("jobs"))


def words(page, selector):
    return page.locator(selector).inner_text().replace("\xa0", " ")


def order(page):
    return page.locator("#table tbody .id").all_inner_texts()


def test_the_first_screen_says_how_the_latest_run_and_each_series_stand(kept, screenshot, worded):
    page = kept.page
    assert {"113.0", "0.9"} <= figures(words(page, "h1"))
    assert "small-007" in words(page, "#subject")
    story = words(page, "#story")
    assert {"112.0", "100.0", "13"} <= figures(story)
    assert "nsyspipe diff STORE:small-006 STORE:small-007" in story
    for place in ("h1", "#story"):
        worded(words(page, place), place)
    series = [
        text.replace("\xa0", " ") for text in page.locator("#series button").all_inner_texts()
    ]
    small, large = map(figures, series)
    assert {"8", "113.0", "0.9"} <= small
    assert {"6", "50.00"} <= large
    worded(series, "#series")
    screenshot(page, "dashboard-jobs")


@pytest.mark.parametrize(("name", "n_runs"), [("one", 1), ("two", 2)])
def test_a_few_runs_are_a_table_without_a_chart(name, n_runs, written, open_page, worded):
    page = open_page(written(name)).page
    assert page.locator("figure, form, #table button").count() == 0
    assert page.locator("#table tbody tr").count() == n_runs
    worded(words(page, "main"))


def test_variants_are_ranked_not_taken_for_one_job(written, open_page, worded):
    page = open_page(written("study")).page
    # 90 ms is 12.5 % more than 80 ms; a half is rounded as JavaScript does.
    assert {"90.00", "13", "4"} <= figures(words(page, "h1"))
    assert "bucket25" in words(page, "#story")
    worded(words(page, "h1"), "h1")
    worded(words(page, "#story"), "#story")
    assert set(page.locator("#table .change").all_inner_texts()) == {"-"}
    page.evaluate("nsyspipe.board.data.runs.n_steps.fill(2); nsyspipe.board.select(3)")
    assert "3" in figures(words(page, "#story"))  # as compare says
    worded(words(page, "#story"), "two steps each")
    assert page.locator("#table .best:visible").count() == 0


def test_runs_whose_work_is_not_known_are_not_ranked(written, open_page):
    page = open_page(written("study")).page
    assert page.locator("#table .best:visible").count() == 1
    forget = "for (const one of nsyspipe.board.data.series) one.is_known = false"
    page.evaluate(f"() => {{ {forget}; nsyspipe.board.select(null); }}")
    assert page.locator("#table .best:visible").count() == 0
    assert "90.00" not in words(page, "#story")


def test_runs_of_another_world_size_are_not_joined(opened):
    opened.draw()
    sizes = "runs => [...new Set(runs.map(run => nsyspipe.words.group(run)))]"
    lines = opened.chart(LINES, MAIN)
    # The times of the other job are off the scale.
    assert [opened.page.evaluate(sizes, [run for run, _ in line]) for line in lines] == [
        ["4 × H200"]
    ]
    assert figures(words(opened.page, "#outside")) == {"1"}


def test_a_run_without_a_figure_is_a_gap_and_a_cross(opened, worded):
    opened.page.locator("#series button").nth(1).click()
    (line,) = opened.chart(LINES, MAIN)
    assert [value for _, value in line] == [50, 50, None, 50, 50, 50]
    crosses = (
        "chart.getOption().series.find(one => one.name === 'missing').data.map(point => point.run)"
    )
    assert opened.chart(crosses, MAIN) == [line[2][0]]
    assert opened.chart("chart.getOption().series[0].connectNulls ?? false", MAIN) is False
    page = opened.page
    page.locator("#table .pick").nth(order(page).index("large-002")).click()
    worded(words(page, "h1"))


def test_filters_narrow_everything_and_can_be_cleared(opened, worded):
    page = opened.page
    page.get_by_role("button", name="8", exact=True).click()
    assert words(page, "#n-shown") == "6 of 14 runs"
    assert "50.00" in figures(words(page, "h1"))
    worded(words(page, "h1"), "one series")
    assert len(order(page)) == 6
    page.get_by_role("button", name="small").first.click()
    worded(words(page, "h1"), "no run")
    assert words(page, "#n-shown") == "0 of 14 runs"
    page.locator("#clear").click()
    assert words(page, "#n-shown") == "14 runs"
    assert page.evaluate("document.activeElement.id") == "find"
    page.keyboard.type("SMALL-00")
    assert words(page, "#n-shown") == "8 of 14 runs"


def test_the_address_restores_filters_and_the_selected_run(opened):
    page = opened.page
    page.locator("[data-facet=label] .chip", has_text="large").click()
    page.locator("#table .pick").nth(order(page).index("large-004")).click()
    address = page.url.partition("#")[2]
    assert address == "label=large&run=large-004"
    page.locator("#clear").click()
    page.evaluate("address => { window.location.hash = address; }", address)
    opened.wait("document.getElementById('n-shown').textContent.startsWith('6 of 14')")
    assert "large-004" in words(page, "#subject")
    assert page.url.endswith(address)


def test_a_run_off_the_scale_has_a_mark_at_its_edge(kept):
    marks = """(() => { const { series, yAxis } = chart.getOption();
      const { data } = series.find(one => one.name === "outside");
      return data.map(({ run, value }) => [run, value[1] === yAxis[0].min]); })()"""
    large = kept.page.evaluate(
        "nsyspipe.board.data.runs.label.flatMap((label, at) => label === 'large' ? [at] : [])"
    )
    timed = [
        run
        for run in large
        if kept.page.evaluate("run => nsyspipe.board.value('step_time_ns', run)", run)
    ]
    # 50 ms where the scale is that of 100 to 113; the one without a step time has its cross.
    assert kept.chart(marks, MAIN) == [[run, True] for run in timed]
    assert len(timed) == 5


def test_a_run_is_selected_in_the_table_by_keyboard(opened, worded):
    page = opened.page
    page.locator("#table .pick").nth(order(page).index("small-004")).focus()
    page.keyboard.press("Enter")
    assert "small-004" in words(page, "#subject")
    assert {"112.0", "12"} <= figures(words(page, "h1"))
    worded(words(page, "h1"))
    assert page.locator("#table .is-shown .id").inner_text() == "small-004"
    page.locator("#table .pick").first.focus()
    page.keyboard.press("Enter")
    assert words(page, "#subject").startswith("Latest run")
    assert page.url.partition("#")[2] == ""


def test_a_click_in_the_chart_selects_the_nearest_run(opened):
    page = opened.page
    place = page.evaluate(
        "(({ id, time }) => time[id.indexOf('small-002')])(nsyspipe.board.data.runs)"
    )
    x, y = opened.chart(
        f"chart.convertToPixel({{xAxisIndex: 0, yAxisIndex: 0}}, [{place}, 100])", MAIN
    )
    at = opened.point(MAIN, x + 3, y - 40)
    page.mouse.move(*at)
    text = opened.tooltip()
    said = ("small-002", "3 Mar 2026 04:30", "100.0 ms", "Exposed communication", "single-bucket")
    assert [one for one in said if one not in text] == []
    page.mouse.click(*at)
    assert "small-002" in words(page, "#subject")


def test_columns_are_sorted_by_keyboard_and_what_is_not_recorded_stands_last(opened):
    page = opened.page
    assert order(page)[0] == "small-007"
    page.get_by_role("button", name="step time").focus()
    for way, first in (("ascending", "large"), ("descending", "small-007")):
        page.keyboard.press("Enter")
        assert page.locator("th[aria-sort]").get_attribute("aria-sort") == way, way
        assert order(page)[0].startswith(first), way
        assert order(page)[-1] == "large-002", way


def test_the_best_run_of_each_series_is_marked_and_links_to_its_page(kept, written):
    marked = kept.page.locator("#table .best:visible").evaluate_all(
        "all => all.map(one => one.closest('tr').querySelector('.id').textContent)"
    )
    assert sorted(marked) == ["large-000", "small-000"]
    target = kept.page.locator("#subject a").evaluate("one => one.href")
    assert unquote(urlparse(target).path) == str(
        written("jobs").parent / "pages" / "small 007.html"
    )
    assert kept.page.locator("#table a").count() == 1


def test_a_run_of_unknown_time_is_counted_and_not_in_the_chart(written, open_page, worded):
    opened = open_page(written("study"))
    assert figures(words(opened.page, "#n-shown")) == {"4", "1"}
    worded(words(opened.page, "#n-shown"))
    opened.draw()
    (line,) = opened.chart(LINES, MAIN)
    assert len(line) == 3
    # Variants are points without a line.
    assert opened.chart("chart.getOption().series[0].lineStyle.width", MAIN) == 0


def test_500_runs_load_and_can_be_cut_to_the_newest(written, open_page, screenshot):
    opened = open_page(written("many"))
    # 1.2 s on an idle machine; 2 s are asked for. This is for what grows with the square of runs,
    # not for how busy the machine is.
    assert opened.page.evaluate("performance.now()") < MOST_MS
    page = opened.page
    screenshot(page, "dashboard-many")
    assert words(page, "#n-rows") == "100 of 500 runs."
    page.locator("#all-rows").click()
    assert len(order(page)) == 500
    page.locator("[data-newest='30']").click()
    assert words(page, "#n-shown") == "30 of 500 runs"
    # Older than the rows of the page: made of its data, with the same words.
    page.locator("#clear").click()
    page.fill("#find", "gpt-000")
    assert [text.strip() for text in page.locator("#table tbody td").all_inner_texts()] == [
        "gpt\ngpt-000",
        "600.0 ms",
        "-",
        "1 Mar 2026 04:30",
        "4 × H200",
        "10",
        "1.667 steps/s",
        "20.0%",
        "10.0%",
        "50.0%",
        "50.0%",
        "5.0%",
        "2.0%",
        "none",
    ]


def test_on_paper_there_are_no_controls_and_the_table_fits(written, open_page, screenshot):
    opened = open_page(written("jobs"), size=(720, 1000), is_dark=True)
    page = opened.page
    page.emulate_media(media="print")
    opened.wait("document.documentElement.dataset.theme === 'light'")
    assert not page.locator("#filters").is_visible()
    assert page.evaluate(OVERFLOW) == 0
    table = page.locator("#table").bounding_box()
    assert table["x"] + table["width"] <= 720
    # Chromium repeats a header on every sheet unless there are boxes such as buttons in it.
    assert (
        page.locator("#table thead button").first.evaluate("one => getComputedStyle(one).display")
        == "contents"
    )
    screenshot(page, "dashboard-print", full_page=True)
