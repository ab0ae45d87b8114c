"""Every page in a browser: it loads alone, draws every chart, fits, can be read by everybody, and takes names for text."""

import re

import pytest

from nsyspipe import compare, diff, load, whatif
from nsyspipe.comparison.side import Side
from nsyspipe.report.html.page import run_id_of_page
from tests.browser.accessible import find_violations
from tests.browser.chromium import DESKTOP, PHONE
from tests.browser.pages import MS, STORES
from tests.build.hostile import HOSTILE, HOSTILE_KERNELS
from tests.conftest import SAMPLES

WATERFALL, TIMELINES, BOARD = "chart-waterfall", "chart-timelines", "chart-scoreboard"
OF_A_RUN = ("chart-step-bars", "chart-timeline", "chart-step-columns", "chart-collectives")
# Which charts each page has.
PAGES = {
    **dict.fromkeys(("ddp-4gpu-shm", "ddp-2gpu-straggler", "steady", "hostile"), OF_A_RUN),
    # Without message sizes.
    "sampled": OF_A_RUN,
    "one-rank": OF_A_RUN[:-1],
    **dict.fromkeys(
        ("faster", "straggler", "other-world", "same", "hostile-diff"), (WATERFALL, TIMELINES)
    ),
    "host": (TIMELINES,),
    **dict.fromkeys(("board", "board-of-kinds", "board-of-one", "hostile-board"), (BOARD,)),
    **dict.fromkeys(("whatif", "doctor"), ()),
    **dict.fromkeys(STORES, ("chart-step_time_ns",)),
    **dict.fromkeys(("one", "two"), ()),
}
ACCESSIBLE = {
    "ddp-2gpu-straggler",
    "one-rank",
    "sampled",
    "hostile",
    "straggler",
    "hostile-diff",
    "host",
    "board-of-kinds",
    "hostile-board",
    "whatif",
    "doctor",
    "two",
    "jobs",
    "study",
    "hostile-store",
}
EXAMINED_TWICE = {"ddp-2gpu-straggler", "straggler", "board-of-kinds", "whatif", "doctor", "jobs"}
MOST_BYTES = 3_000_000
# Share of a canvas's pixels that are not empty.
PAINTED = """id => {
  const canvas = document.querySelector(`#${id} canvas`);
  const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d", { willReadFrequently: true });
  copy.drawImage(canvas, 0, 0);
  const { data } = copy.getImageData(0, 0, canvas.width, canvas.height);
  let painted = 0;
  for (let at = 3; at < data.length; at += 4) painted += data[at] > 0;
  return painted / (data.length / 4);
}"""
# What JupyterLab, nbconvert and VS Code say of tables in outputs.
NOTEBOOKS = """
.jp-RenderedHTMLCommon table, .rendered_html table { table-layout: fixed; border-collapse: collapse; margin: 0 auto 1em; font-size: 12px }
.jp-RenderedHTMLCommon :is(td, th, tr), .rendered_html :is(td, th, tr) { padding: .5em; white-space: normal; max-width: none; vertical-align: middle }
:not(.jp-RenderedMarkdown).jp-RenderedHTMLCommon :is(td, th, tr) { text-align: right }
.jp-RenderedHTMLCommon tbody tr:nth-child(odd), .rendered_html tbody tr:nth-child(odd) { background: #f5f5f5 }
.jp-RenderedHTMLCommon { overflow-x: auto; padding-right: 20px }
table, thead, tr, th, td, tbody { border: none !important; border-spacing: 0 }
"""
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
OPEN = "(all, open) => all.forEach(one => { one.open = open; })"


@pytest.mark.parametrize("name", PAGES)
def test_a_page_loads_alone_draws_every_chart_fits_and_is_accessible(
    name, written, open_page, screenshot
):
    # Requests, console and policy are checked when `open_page` ends. A phone is light, a desktop
    # dark.
    assert written(name).stat().st_size < MOST_BYTES
    opened = open_page(written(name), size=PHONE)
    page = opened.page
    for size in (PHONE, DESKTOP):
        if size is DESKTOP:
            page.emulate_media(color_scheme="dark")
            opened.resize(*size)
            page.locator("details").evaluate_all(OPEN, arg=False)
        opened.draw()
        figures = page.locator("figure[data-chart]").evaluate_all("all => all.map(one => one.id)")
        assert {*figures} == {*PAGES[name]}, size
        for figure in figures:
            assert opened.chart("chart.getOption().series.length", figure) > 0, figure
            assert page.evaluate(PAINTED, figure) > (0.001 if name in STORES else 0.01), figure
        page.locator("details").evaluate_all(OPEN, arg=True)
        opened.wait(f"{OVERFLOW} === 0")
        # What is wider scrolls in its own box, which the keyboard reaches.
        boxes = (
            "all => all.filter(one => one.scrollWidth > one.clientWidth && one.tabIndex < 0).length"
        )
        assert page.locator(".scroll").evaluate_all(boxes) == 0, size
        screenshot(page, f"{name}-{size[0]}", full_page=True)
        # Of each kind of page one is examined in both sizes and colours; it takes seconds.
        if name not in ACCESSIBLE or (size is PHONE and name not in EXAMINED_TWICE):
            continue
        if name in STORES and PAGES[name]:
            page.locator("#series button").first.click()
        elif name != "one-rank":  # definitions are long, and the same on every page
            page.locator("details.definition").evaluate_all(OPEN, arg=False)
        assert find_violations(page) == [], size


# What the heading of a page has to name, and what is on the first screen besides.
FIRST_SCREENS = {
    "ddp-4gpu-shm": (
        ["NCCL_P2P_DISABLE"],
        (
            ".answer-effect",
            ".facts",
            ".tiles",
            ".opportunities li >> nth=1",
            ".bars",
            "#chart-step-bars .chart-area",
        ),
    ),
    "faster": (["131", "91", "30.5"], (f"#{WATERFALL} .chart-area",)),
    "board": (["bucket25", "1.30x", "ddp"], (f"#{BOARD} .chart-area",)),
    "whatif": (["ms"], (".tiles", ".stacks tr:has(.stack) >> nth=2")),
    "doctor": (["2"], ()),
    "jobs": (
        ["113.0 ms", "0.9"],
        ("#story", "#chart-step_time_ns .chart-area", "#series li >> nth=1"),
    ),
}


@pytest.mark.parametrize("name", FIRST_SCREENS)
def test_the_verdict_and_where_it_comes_from_are_on_the_first_screen(
    name, written, open_page, worded
):
    named, seen = FIRST_SCREENS[name]
    page = open_page(written(name)).page
    heading = page.locator("h1").inner_text().replace("\xa0", " ")
    assert [text for text in named if text not in heading] == []
    worded(heading)
    for selector in ("h1", *seen):
        box = page.locator(selector).first.bounding_box()
        assert box["y"] + box["height"] <= DESKTOP[1], selector


@pytest.mark.parametrize(
    ("name", "charts", "says"),
    [
        ("ddp-4gpu-shm", ("chart-step-bars",), ""),
        ("faster", (WATERFALL, TIMELINES), ""),
        ("board", (), "-22.9%"),
        ("jobs", (), "14 runs in jobs"),
    ],
)
def test_without_scripts_the_words_and_tables_are_there(
    name, charts, says, written, open_without_scripts
):
    page = open_without_scripts(written(name)).page
    said = page.locator("body").inner_text().replace("\xa0", " ")
    assert "Charts need JavaScript" in said
    assert says in said
    for chart in charts:
        page.locator(f"#{chart} summary").click()
        assert page.locator(f"#{chart} table").is_visible(), chart
    assert page.locator(".track-area .interval").first.is_visible() or name != "faster"
    assert page.locator("#table tbody .id").count() == (14 if name == "jobs" else 0)


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("faster", "compute"),
        ("doctor", "steps"),
        ("board", "bucket25"),
        ("ddp-4gpu-shm", "backward"),
    ],
)
def test_an_address_marks_the_row_of_that_name_in_every_page(name, row, written, open_page):
    opened = open_page(written(name))
    opened.page.evaluate("row => { window.location.hash = `row=${row}`; }", row)
    opened.wait("document.querySelectorAll('.is-linked').length > 0")
    cells = "all => all.map(one => [...one.cells].slice(0, 2).map(cell => cell.textContent.trim()))"
    assert all(
        row in first_two for first_two in opened.page.locator(".is-linked").evaluate_all(cells)
    )


def test_a_phone_shows_each_change_with_its_bar_and_its_saving(written, open_page):
    page = open_page(written("whatif"), size=PHONE).page
    rows = page.locator(".stacks tr:has(.stack)")
    assert rows.count() >= 2
    for row in rows.all():
        label, bar = (row.locator(selector).bounding_box() for selector in ("th", ".stack"))
        assert bar["y"] >= label["y"] + label["height"] - 1, row
        assert bar["width"] > 0.8 * PHONE[0], row
        ends = row.locator("td").evaluate_all(
            "all => all.map(one => one.getBoundingClientRect().right)"
        )
        assert max(ends) <= PHONE[0], row


def test_a_table_that_is_wider_than_a_phone_fades_until_its_end(written, open_page):
    opened = open_page(written("board"), size=PHONE)
    fade = (
        "getComputedStyle(document.querySelector('#runs .scroll')).getPropertyValue('--more-right')"
    )
    assert opened.page.evaluate(fade) == "32px"
    opened.page.locator("#runs .scroll").evaluate("one => { one.scrollLeft = one.scrollWidth; }")
    opened.wait(f"{fade} === '0px'")


@pytest.mark.parametrize(
    ("said", "is_dark"),
    [
        ('class="vscode-dark"', True),
        ('class="vscode-light"', False),
        ('data-jp-theme-light="false"', True),
        ("", True),
    ],
)
def test_a_notebook_s_card_is_as_dark_as_its_notebook(said, is_dark, blank_page, steady_run):
    # Against what the browser prefers, which is followed where the notebook says nothing and the
    # page it is in does.
    blank_page.emulate_media(color_scheme="light" if said and is_dark else "dark")
    meta = "" if said else '<meta name="color-scheme" content="light dark">'
    blank_page.set_content(f"<!doctype html>{meta}<body {said}>{steady_run._repr_html_()}")
    card = blank_page.locator(".nsyspipe")
    ground = card.evaluate("one => getComputedStyle(one).backgroundColor")
    assert ground == ("rgb(15, 18, 23)" if is_dark else "rgb(255, 255, 255)")


def test_a_notebook_s_own_rules_do_not_reach_into_a_card(blank_page):
    run = load(SAMPLES.glob("ddp-4gpu-before_[01].sqlite"), jobs=1, skip_first=7)
    label = "a-rather-long-label_of_a-run"
    page = blank_page
    for answer in (
        run,
        diff(Side(label, (run,)), run),
        compare({label: run, "b": run}),
        whatif(run),
    ):
        body = f"<body class='jp-RenderedHTMLCommon'>{answer._repr_html_()}"
        page.set_content(f"<!doctype html><style>{NOTEBOOKS}</style>{body}")
        for width, scheme in ((400, "light"), (1280, "dark")):
            page.set_viewport_size({"width": width, "height": 900})
            page.emulate_media(color_scheme=scheme)
            cells = page.locator(".bars :is(th, td)").evaluate_all(
                "all => all.map(one => [one.innerText, one.clientWidth, one.scrollWidth, "
                "one.getBoundingClientRect().right])"
            )
            assert len(cells) > 3, width
            assert [
                one
                for one in cells
                if one[1] < (30 if one[0] else 80) or one[2] > one[1] or one[3] > width
            ] == [], width
            of_each = "all => all.map(one => getComputedStyle(one).backgroundColor)"
            grounds = page.locator(".nsyspipe tr").evaluate_all(of_each)
            assert {*grounds} == {"rgba(0, 0, 0, 0)"}, width
            name = page.locator(".figures:has(th:text-is('what to change')) td:first-child")
            assert all(
                one["x"] + one["width"] <= width for one in (at.bounding_box() for at in name.all())
            ), width


def test_the_paper_of_a_difference_is_light_and_a_few_sheets(written, open_page, screenshot):
    opened = open_page(written("straggler"), is_dark=True)
    page = opened.page
    assert 2 <= len(re.findall(rb"/Type\s*/Page\b", page.pdf(format="A4"))) <= 8
    page.emulate_media(media="print", color_scheme="dark")
    opened.wait("nsyspipe.charts.size >= 2")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    screenshot(page, "straggler-print", full_page=True)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("hostile", ["<script>window.attacked=9</script>", HOSTILE[3]]),
        ("hostile-diff", ["<script>window.attacked=9</script>", HOSTILE[3]]),
        ("hostile-board", ["<script>window.attacked=1", HOSTILE[3]]),
        ("hostile-store", [HOSTILE[0], HOSTILE[5]]),
    ],
)
def test_nothing_of_a_name_runs_and_no_name_adds_elements(name, says, written, open_page):
    opened = open_page(written(name))
    opened.draw()
    page = opened.page
    page.locator("details").evaluate_all(OPEN, arg=True)
    for button in page.locator("#series button.series").all():
        button.click()
        assert page.locator("#subject strong").inner_text(), button
    if name in STORES:
        page.mouse.move(*opened.point("chart-step_time_ns", 400, 150))
    page.wait_for_timeout(200)
    assert page.evaluate("window.attacked") is None
    assert opened.dialogs == []
    assert page.locator("body img, body iframe, body object, body link").count() == 0
    assert page.locator("body form").count() == (name in STORES)  # its filters
    assert (
        page.locator("script").count()
        == 2 + page.locator("script[type='application/json']").count()
    )
    assert page.locator("[onload], [onerror], [onfocus], [onclick]").count() == 0
    shown = page.locator("main").inner_text()
    assert [one for one in says if one not in shown] == []


@pytest.fixture(scope="module")
def hostile(written, keep_page):
    opened = keep_page(written("hostile"))
    opened.draw()
    opened.page.locator("details").evaluate_all(OPEN, arg=True)
    return opened


def test_names_are_shown_as_they_are(hostile, written):
    page = hostile.page
    assert "<script>window.attacked=9</script>" in page.locator(".facts").inner_text()
    provenance = page.locator("#about-this-run").inner_text()
    for name in (
        f"host {HOSTILE[0]}",
        f"GPU {HOSTILE[1]}",
        HOSTILE[3],
        "<img src=x onerror=alert(7)>_0.sqlite",
    ):
        assert name in provenance, name
    kernels = page.locator("#kernels tbody").inner_text()
    for name in HOSTILE_KERNELS:
        assert name in kernels, name
    # A setting of an NCCL log whose name or value is on no list is left out.
    assert HOSTILE[1] not in page.locator("#communication").inner_text()
    text = page.locator("body").inner_text()
    assert not set(text) & set("\x00\x07\x1b\x7f\u202e\u202c\u200b\u2028\u2029")
    assert "\ufffdesrever\ufffd zero\ufffdwidth" in text
    assert run_id_of_page(written("hostile")) == "\"><script>alert('id')</script>"


def test_tooltips_show_names_as_text(hostile):
    assert hostile.page.evaluate(
        """names => names.map(name => {
      const tip = nsyspipe.tooltip({ title: name, name, rows: [{ label: name, value: name }] });
      document.body.append(tip);
      const found = [tip.querySelector(".tip-name").textContent, tip.querySelectorAll("script, img, svg").length];
      tip.remove();
      return found;
    })""",
        list(HOSTILE),
    ) == [[name, 0] for name in HOSTILE]


def test_a_bar_with_a_hostile_name_is_pointed_at(hostile):
    hostile.show("chart-timeline")
    x, top, name = hostile.page.evaluate("""() => {
      const data = nsyspipe.data("timeline"), { start, length, name } = data.ranks[0].lanes.compute;
      const x = nsyspipe.charts.get("chart-timeline").convertToPixel({ xAxisIndex: 0 }, start[1] + length[1] / 2);
      return [x, nsyspipe.timeline.layout(data, false).rows.find(row => row.lane === "compute").top, data.names[name[1]]];
    }""")
    assert name.startswith("<img src=x")
    hostile.page.mouse.move(*hostile.point("chart-timeline", x, top + 15))
    assert name in hostile.tooltip()
    assert hostile.page.evaluate("window.attacked") is None


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_picture_of_the_readme(open_page, screenshot, scheme):
    """``NSYSPIPE_SCREENSHOTS=docs/images pytest -m browser -k picture_of -n 0`` takes it anew."""
    dark = scheme == "dark"
    opened = open_page(SAMPLES / "ddp-4gpu-before.html", size=(1280, 780), is_dark=dark)
    opened.draw()
    screenshot(opened.page, f"page-{scheme}")
    assert (
        opened.page.screenshot()[16:24]
        == (SAMPLES.parent / f"docs/images/page-{scheme}.png").read_bytes()[16:24]
    )


@pytest.fixture(scope="module")
def kept(written, keep_page):
    opened = keep_page(written("faster"))
    opened.draw()
    return opened


def test_pointing_at_a_part_shows_it_to_the_nanosecond(kept):
    kept.show(WATERFALL)
    # Each bar is in a row of its own.
    for row, said in (
        (1, ("compute", "101 000 000 ns", "71 000 000 ns", "-30 000 000 ns")),
        (0, ("131 000 000 ns",)),
    ):
        y = kept.chart(f"chart.convertToPixel({{yAxisIndex: 0}}, {row})", WATERFALL)
        kept.page.mouse.move(*kept.point(WATERFALL, 300, y))
        kept.page.wait_for_timeout(100)
        text = kept.tooltip()
        assert [one for one in said if one not in text] == [], row


@pytest.mark.parametrize(
    ("delta", "said"),
    [(-20_000, "-0.02 ms"), (60_000, "+0.1 ms"), (49, "+0.00005 ms"), (0, "0 ms")],
)
def test_a_change_of_a_part_has_its_sign_however_small(delta, said, kept):
    text = kept.page.evaluate(
        """delta => {
          const [whole, part] = [{ name: "baseline", delta: null, end: 148e6 }, { name: "idle", delta, end: 1e6 }];
          const option = nsyspipe.builders.waterfall({ bars: [whole, part], from: 0 }, nsyspipe.palette(), { width: 900 });
          return option.tooltip.formatter([{ dataIndex: 1 }]).innerText;
        }""",
        delta,
    )
    assert f"change{said}" in text


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
    # From top to bottom: a title, then the lanes of its side.
    names = (
        "all => all.sort((one, other) => one.getBoundingClientRect().top - "
        "other.getBoundingClientRect().top).map(one => one.className)"
    )
    order = page.locator(f"#{TIMELINES} .lanes > div").evaluate_all(names)
    assert [at for at, name in enumerate(order) if name == "side-title"] == [0, len(order) // 2]


def test_pointing_at_a_bar_says_whose_it_is(kept):
    opened = kept
    opened.show(TIMELINES)
    bar = opened.page.evaluate("""() => nsyspipe.timeline.layout(nsyspipe.data("timelines"), false).rows
      .filter(row => row.lane === "compute").map(row => row.top)""")
    x = opened.chart(f"chart.convertToPixel({{xAxisIndex: 0}}, {20 * MS})", TIMELINES)
    opened.page.mouse.move(*opened.point(TIMELINES, x, bar[1] + 12))
    text = opened.tooltip()
    assert [
        one
        for one in ("rank 0 of the candidate: compute", "sgemm", "71 000 000 ns")
        if one not in text
    ] == []


def test_a_scoreboard_shows_parts_and_intervals_in_the_theme(written, open_page):
    tops = "chart.getOption().grid.map(one => one.top)"
    opened = open_page(written("board"), is_dark=True)
    wide = opened.chart(tops, BOARD)
    x, y = opened.chart(
        "chart.convertToPixel({gridIndex: 0}, [20e6, 1])", BOARD
    )  # the second run, inside its bar
    opened.page.mouse.move(*opened.point(BOARD, x, y))
    said = opened.tooltip()
    assert [
        one
        for one in ("bucket25", "101.0 ms", "exposed communication", "improvement")
        if one not in said
    ] == []
    colour = "chart.getOption().series[0].itemStyle.color"
    dark = opened.chart(colour, BOARD)
    opened.page.click("button.theme")
    assert opened.chart(colour, BOARD) != dark
    opened.resize(*PHONE)
    narrow = opened.chart(tops, BOARD)
    assert wide[0] == wide[1]
    assert narrow[0] < narrow[1]
