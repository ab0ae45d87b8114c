"""Pages made of blocks in a browser: they load alone, draw every chart, fit, and can be used without a mouse or scripts."""

from __future__ import annotations

import re

import pytest

import nsyspipe
from nsyspipe.api import compare, diff
from nsyspipe.comparison.difference import Side
from nsyspipe.comparison.gate import gate
from nsyspipe.report.html.difference_page import difference_page
from nsyspipe.report.scoreboard import scoreboard_page
from tests.browser.chromium import DESKTOP, PHONE
from tests.browser.test_run_page import OVERFLOW, PAINTED
from tests.build.ddp_run import Ddp
from tests.build.hostile import HOSTILE, HOSTILE_KERNELS, hostile_log, write_hostile_run
from tests.build.plain_steps import plain_run
from tests.build.scoreboard_runs import scoreboard_runs
from tests.build.trace import TraceBuilder
from tests.cli.tools import nsyspipe_here

MS = 10**6
WATERFALL, TIMELINES, BOARD = "chart-waterfall", "chart-timelines", "chart-scoreboard"
# Which charts each page has.
PAGES = {
    **dict.fromkeys(("faster", "straggler", "other-world", "same", "hostile"), (WATERFALL, TIMELINES)),
    "host": (TIMELINES,),
    **dict.fromkeys(("board", "board-of-kinds", "board-of-one", "hostile-board"), (BOARD,)),
    "whatif": (),
    "doctor": (),
}
MOST_BYTES = 3_000_000


def steps(compute, comm):
    return [((compute + number % 3) * MS, comm * MS, 4 * MS, 6 * MS) for number in range(12)]


def faster(folder, _):
    slow = plain_run(folder / "slow", [steps(90, 20), steps(100, 20)])
    return diff(slow, plain_run(folder / "fast", [steps(70, 10), steps(60, 10)], kernel="sgemm"))


def straggler(_, real):
    return diff(*(str(real / f"ddp-2gpu-{name}_[0-9].sqlite") for name in ("straggler", "bucket100")))  # fmt: skip


def other_world(_, real):
    return diff(str(real / "ddp-2gpu_[0-9].sqlite"), str(real / "fsdp-4gpu_[0-9].sqlite"))


def same(folder, _):
    run = plain_run(folder / "same", [steps(90, 20)])
    return diff(run, Side("again", (run,)))


def hostile(folder, _):
    label = '<script>window.attacked=9</script>"><img src=x onerror=alert(9)>'
    (folder / "hostile").mkdir()
    run = nsyspipe.load(
        write_hostile_run(folder / "hostile"),
        nccl_log=hostile_log(folder / "hostile" / "nccl.log"),
        run_id="\"><script>alert('id')</script>",
        jobs=1,
    )
    plain = plain_run(folder / "plain", [steps(90, 20)] * 2, kernel=HOSTILE_KERNELS[0])
    return diff(Side(label, (plain,)), Side(label * 4, (run,)), force=True)


def host(folder, _):
    """Compare with a run that has host steps only: neither waterfall nor its timeline."""
    builder = TraceBuilder(pid=1).env(RANK=0, WORLD_SIZE=1).session(10**18)
    for step in range(4):
        builder.range(1000 * step, 1000 * step + 900, f"step {step}")
    empty = nsyspipe.load(builder.write(folder / "host.sqlite"), jobs=1)
    return diff(plain_run(folder / "device", [steps(90, 20)]), empty)


LABELS = {
    "board": {"ddp": "slow", "bucket25": "fast", "again": "again"},
    "board-of-kinds": None,
    "board-of-one": {"slow": "slow"},
    "hostile-board": HOSTILE,
}


def board(folder, labels):
    runs = scoreboard_runs(folder)
    if labels is HOSTILE:
        labels = {name: list(runs)[at % len(runs)] for at, name in enumerate(HOSTILE)}
    return compare({label: runs[run] for label, run in (labels or dict(zip(runs, runs, strict=True))).items()})


@pytest.fixture(scope="session")
def written(tmp_path_factory, real):
    """Return a function that writes one of the pages above, once."""
    folder = tmp_path_factory.mktemp("pages")

    def page_of(name):
        path = folder / f"{name}.html"
        if path.exists():
            return path
        (folder / f"{name}.d").mkdir()
        if name in LABELS:
            path.write_text(
                scoreboard_page(board(folder / f"{name}.d", LABELS[name])), encoding="utf-8", errors="replace"
            )
        elif PAGES[name]:
            found = globals()[name.replace("-", "_")](folder / f"{name}.d", real)
            path.write_text(difference_page(found, gate(found, "regression")), encoding="utf-8")
        else:
            Ddp().write(folder / f"{name}.d")
            assert nsyspipe_here(name, folder / f"{name}.d", "--html", path).returncode == 0
        return path

    return page_of


@pytest.mark.parametrize("name", PAGES)
def test_a_page_loads_alone_draws_every_chart_and_fits(name, written, open_page, check_accessible, screenshot):
    # Requests, console and policy are checked when `open_page` ends. A phone is light, a desktop dark.
    assert written(name).stat().st_size < MOST_BYTES
    for size in (PHONE, DESKTOP):
        opened = open_page(written(name), size=size, dark=size is DESKTOP)
        opened.draw()
        page = opened.page
        figures = page.locator("figure[data-chart]").evaluate_all("all => all.map(one => one.id)")
        assert tuple(figures) == PAGES[name]
        for figure in figures:
            assert opened.chart("chart.getOption().series.length", figure) > 0
            assert page.evaluate(PAINTED, figure) > 0.01
        page.locator("details").evaluate_all("all => all.forEach(one => { one.open = true; })")
        assert page.evaluate(OVERFLOW) == 0
        boxes = "all => all.filter(one => one.scrollWidth > one.clientWidth && one.tabIndex < 0).length"
        assert page.locator(".scroll").evaluate_all(boxes) == 0
        screenshot(page, f"{name}-{size[0]}", full_page=True)
        if name in ("straggler", "hostile", "host", "board-of-kinds", "hostile-board", "whatif", "doctor"):
            check_accessible(page)


@pytest.mark.parametrize(
    ("name", "heading", "chart"),
    [
        ("faster", "Improvement: step time 131.0 ms -> 91.00 ms (-30.5 %), 95 % interval", WATERFALL),
        ("board", "bucket25 is the fastest of 3 runs: 1.30x of ddp", BOARD),
        ("whatif", "Largest single change: ", None),
        ("doctor", "These ", None),
    ],
)
def test_the_verdict_and_where_it_comes_from_are_on_the_first_screen(name, heading, chart, written, open_page):
    page = open_page(written(name)).page
    assert page.locator("h1").inner_text().replace("\xa0", " ").startswith(heading)
    if chart:
        box = page.locator(f"#{chart} .chart-area").bounding_box()
        assert box["y"] + box["height"] <= DESKTOP[1]


def test_pointing_at_a_part_shows_it_to_the_nanosecond(written, open_page):
    opened = open_page(written("faster"))
    opened.draw()
    opened.show(WATERFALL)
    # The second of the bars, each in a row of its own.
    y = opened.chart("chart.convertToPixel({yAxisIndex: 0}, 1)", WATERFALL)
    opened.page.mouse.move(*opened.point(WATERFALL, 300, y))
    text = opened.tooltip()
    assert text.startswith("compute")
    for figure in ("101 000 000 ns", "71 000 000 ns", "-30 000 000 ns"):
        assert figure in text
    y = opened.chart("chart.convertToPixel({yAxisIndex: 0}, 0)", WATERFALL)
    opened.page.mouse.move(*opened.point(WATERFALL, 300, y))
    opened.page.wait_for_timeout(100)
    assert "131 000 000 ns" in opened.tooltip()


def test_both_timelines_have_titles_one_axis_and_one_zoom(written, open_page):
    opened = open_page(written("faster"))
    opened.draw()
    opened.show(TIMELINES)
    page = opened.page
    titles = page.locator(f"#{TIMELINES} .side-title").all_inner_texts()
    assert [title.partition(":")[0] for title in titles] == ["baseline", "candidate"]
    assert opened.chart("chart.getOption().xAxis.length", TIMELINES) == 1
    page.locator(f"#{TIMELINES} [data-zoom-by=in]").click()
    assert opened.zoom(TIMELINES) == pytest.approx((18.75, 81.25))
    # Titles stay where they are, one above each side, also when the chart is drawn again.
    page.locator("button.theme").click()
    assert page.locator(f"#{TIMELINES} .side-title").all_inner_texts() == titles


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


def test_pointing_at_a_bar_says_whose_it_is(written, open_page):
    opened = open_page(written("faster"))
    opened.draw()
    opened.show(TIMELINES)
    bar = opened.page.evaluate("""() => nsyspipe.timeline.layout(nsyspipe.data("timelines"), false).rows
      .filter(row => row.lane === "compute").map(row => row.top)""")
    x = opened.chart(f"chart.convertToPixel({{xAxisIndex: 0}}, {20 * MS})", TIMELINES)
    opened.page.mouse.move(*opened.point(TIMELINES, x, bar[1] + 12))
    text = opened.tooltip()
    assert "rank 0 of the candidate: compute" in text
    assert "sgemm" in text
    assert "71 000 000 ns" in text


def test_bars_and_speedups_stand_in_one_row_or_below_each_other(written, open_page):
    tops = "chart.getOption().grid.map(one => one.top)"
    wide = open_page(written("board")).chart(tops, BOARD)
    narrow = open_page(written("board"), size=PHONE).chart(tops, BOARD)
    assert wide[0] == wide[1]
    assert narrow[0] < narrow[1]


def test_a_bar_tells_parts_and_interval(written, open_page):
    opened = open_page(written("board"))
    # The second run, inside its bar.
    x, y = opened.chart("chart.convertToPixel({gridIndex: 0}, [20e6, 1])", BOARD)
    opened.page.mouse.move(*opened.point(BOARD, x, y))
    said = opened.tooltip()
    assert "bucket25" in said
    assert "101.0 ms" in said
    assert "exposed communication" in said
    assert "improvement" in said


def test_colours_change_with_the_theme(written, open_page):
    opened = open_page(written("board-of-kinds"), dark=True)
    colour = "chart.getOption().series[0].itemStyle.color"
    dark = opened.chart(colour, BOARD)
    opened.page.click("button.theme")
    assert opened.chart(colour, BOARD) != dark


@pytest.mark.parametrize("name", ["hostile", "hostile-board"])
def test_names_add_no_elements_and_run_nothing(name, written, open_page):
    opened = open_page(written(name))
    opened.draw()
    page = opened.page
    page.locator("details").evaluate_all("all => all.forEach(one => { one.open = true; })")
    page.wait_for_timeout(200)
    assert page.evaluate("window.attacked") is None
    assert opened.dialogs == []
    assert page.locator("body img, body iframe, body object, body form, body link").count() == 0
    assert page.locator("script").count() == 2 + page.locator("script[type='application/json']").count()
    assert HOSTILE[3] in page.locator("main").inner_text()
    assert "<script>window.attacked=" in page.locator("main").inner_text()


def test_without_scripts_the_words_and_tables_are_there(written, open_page):
    page = open_page(written("faster"), java_script_enabled=False).page
    assert "Charts need JavaScript" in page.locator("body").inner_text()
    for chart in (WATERFALL, TIMELINES):
        page.locator(f"#{chart} summary").click()
        assert page.locator(f"#{chart} table").is_visible()
    assert page.locator(".track-area .interval").first.is_visible()
    page = open_page(written("board"), java_script_enabled=False).page
    assert "1.297x" in page.locator("main").inner_text()


def test_paper_is_light_and_a_few_sheets(written, open_page, screenshot):
    opened = open_page(written("straggler"), dark=True)
    page = opened.page
    page.emulate_media(media="print", color_scheme="dark")
    opened.wait("nsyspipe.charts.size === 2")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    screenshot(page, "difference-print", full_page=True)
    page.emulate_media(media="screen", color_scheme="dark")
    sheets = len(re.findall(rb"/Type\s*/Page\b", page.pdf(format="A4")))
    assert 2 <= sheets <= 8
