"""Units and names of figures; the same blocks on a terminal, in Markdown and on a page: nothing is lost."""

import re
import shlex
from functools import partial
from operator import itemgetter

import pytest
from rich.console import Console

from nsyspipe.model.figures import FIGURES
from nsyspipe.report import blocks as kinds, units
from nsyspipe.report.as_text import as_text
from nsyspipe.report.files import identity_of_page
from nsyspipe.report.html.page import Chart, blocks_page
from nsyspipe.report.markdown import as_markdown

COLUMNS = [
    kinds.Field("what", kind="name"),
    kinds.Field("step\ntime"),
    kinds.Field("verdict", kind="word", from_width=30),
    kinds.Field("note", kind="prose", from_width=80),
]
BLOCKS = [
    kinds.Sentence("It is so.", "bold"),
    kinds.Facts(["<b>run</b>", "2 ranks"], "Run"),
    kinds.Facts(["x"], "other", is_of_several=True),
    kinds.Troubles([("not comparable", "sizes", "", None)], is_close=True),
    kinds.Table(
        "Figures",
        COLUMNS,
        [["a|b", "1 ms", kinds.Word("improvement", "it is less"), "x_y"], ["c", "2 ms", "", ""]],
        "3 rest.",
        n_shown=1,
    ),
    kinds.Table("Kernels", COLUMNS, [], "none changed"),
    kinds.Heading("This rests on:", "dim"),
    kinds.Items(["--link shm"]),
    kinds.Sentence("More.", is_close=False),
    kinds.Troubles(
        [("warning", "clock is *off*", "rank 1", "--rank-map"), ("info", "b", "", None)], 1
    ),
    kinds.Notes(["Read it."]),
]


def text(width, blocks=BLOCKS):
    return as_text(blocks, Console(width=width)).splitlines()


def test_a_narrow_terminal_names_the_columns_it_leaves_out(pinned):
    page = as_markdown(BLOCKS, ["<!-- a -->"], "nsyspipe x")
    pinned(
        "blocks",
        **{f"text of width {width}": "\n".join(text(width)) for width in (60, 80)},
        markdown=page,
    )


def test_a_command_that_is_too_long_is_one_command_for_a_shell():
    command = 'nsyspipe analyze "a_*.sqlite" --html run.html'
    lines = text(40, [kinds.Commands("Next", [command, "nsyspipe explain idle"])])
    typed = "\n".join(lines).strip().removeprefix("Next: ").replace("\\\n", " ")
    assert [shlex.split(line) for line in typed.splitlines()] == [
        ["nsyspipe", "analyze", "a_*.sqlite", "--html", "run.html"],
        ["nsyspipe", "explain", "idle"],
    ]


@pytest.mark.parametrize(
    ("width", "line"),
    [
        (80, "kkkkkkkkkkkkkkkkkkkk-end  1 ms  improvement"),
        (35, "kkkkkkk..kkk-end  1 ms  improvement"),
        (29, "kkkkkkkkkkk..kkkkkk-end  1 ms"),
        (18, "kkkkk..k-end  1 ms"),
    ],
)
def test_names_are_cut_in_the_middle_and_columns_go_before_a_figure_is_cut(width, line):
    assert line in text(
        width, [kinds.Table("x", COLUMNS[:3], [["k" * 20 + "-end", "1 ms", "improvement"]])]
    )


def test_names_that_only_differ_in_their_middle_are_cut_behind_it():
    names = [
        *(f"gemm_f32_tile_{tile}_tn_1234567" for tile in ("64x32", "64x64", "32x64")),
        "copy" * 8,
    ]
    table = kinds.Table("x", COLUMNS[:3], [[name, "1 ms", "improvement"] for name in names])
    assert [line.split()[0] for line in text(38, [table]) if " ms" in line] == [
        "gemm_f32_..ile_64x3",
        "gemm_f32_..ile_64x6",
        "gemm_f32_..tile_32x",
        "copycopyc..copycopy",
    ]


def test_a_page_has_a_section_for_each_heading_and_table_and_all_rows(tmp_path, worded):
    page = blocks_page(BLOCKS, "x", ("nsyspipe-x", "3 ms"))
    worded(re.findall(r"<h[12][^>]*>(.*)</h[12]>", page))
    assert "&lt;b&gt;run&lt;/b&gt;" in page
    assert "<b>run</b>" not in page
    assert (
        '<b class="word" data-word="improvement">improvement</b><span class="word-why">it is '
        "less</span>"
    ) in page
    assert page.index(">not comparable<") < page.index("<h2")
    assert "2\xa0ms" in page  # no unit parts from its number
    # Without a chart nothing is said of charts.
    assert "Apache ECharts" not in page
    assert "Charts need" not in page
    path = tmp_path / "x.html"
    path.write_text(page, encoding="utf-8")
    assert identity_of_page(path, "nsyspipe-x") == "3 ms"


def test_a_chart_brings_its_data_its_table_and_what_draws_it():
    table = kinds.Table("As table", COLUMNS, [])
    chart = Chart("waterfall", "Time", "Bars", 100, [1, 2], table, "It falls.", [("idle", "idle")])
    page = blocks_page([BLOCKS[0], chart], "x", ("nsyspipe-x", "3 ms"))
    assert '<script type="application/json" id="data-waterfall">[1,2]</script>' in page
    parts = (
        "Charts by Apache ECharts",
        "Charts need JavaScript",
        "It falls.",
        "Show as table",
        'data-category="idle"',
    )
    assert [part for part in parts if part not in page] == []


def test_bars_of_a_track_are_centered_and_cut_at_its_ends():
    def drawn(*track):
        table = kinds.Table("x", [kinds.Field("y", kind="track")], [[kinds.Track(*track)]])
        page = blocks_page([table], "x", ("nsyspipe-x", ""))
        return re.findall(r'<i class="(?!zero)([\w-]+)" (?:style="left:|data-end=")(\S+?)"', page)

    bar, half = ("bar-of", "50.00%;width:25.00%"), ("bar-of", "50.00%;width:50.00%")
    assert drawn(0.5, 0.25, 0.75, 0.1) == [
        ("band", "45.00%;width:10.00%"),
        bar,
        ("interval", "62.50%;width:25.00%"),
    ]
    assert (drawn(-0.5), drawn(1.0)) == ([("bar-of", "25.00%;width:25.00%")], [half])
    assert drawn(3.0, 0.5, 7.0) == [half, ("interval", "75.00%;width:25.00%"), ("beyond", "right")]
    assert drawn(-3.0) == [("bar-of", "0.00%;width:50.00%"), ("beyond", "left")]
    assert drawn(0.5, -7.0, 7.0) == [
        bar,
        ("interval", "0.00%;width:100.00%"),
        ("beyond", "left"),
        ("beyond", "right"),
    ]


def test_what_was_not_recorded_is_a_dash_and_has_no_bar():
    rows = [{"a": 4_000_000}, {"a": None}, {"a": 1_000_000}]
    field = kinds.barred(rows, "time", lambda row: row["a"], "idle")
    assert [getattr(field.cell(row), "share", None) for row in rows] == [1.0, None, 0.25]
    ratios = kinds.barred(
        rows,
        "share",
        lambda row: row["a"] and row["a"] / 10_000_000,
        "hidden",
        write=units.percent_text,
    )
    assert [getattr(ratios.cell(row), "share", None) for row in rows] == [
        0.4,
        None,
        0.1,
    ]  # of 100 %
    assert kinds.of("a")(rows[1]) == "-"


MS = 10**6
TEXTS = {
    units.ms_text: {
        0: "0 ms",
        1_234_567: "1.235 ms",
        12_340_000: "12.34 ms",
        123_400_000: "123.4 ms",
        99_990_000: "99.99 ms",
        100_000_000: "100.0 ms",
        10_000_000: "10.00 ms",
        500_000.5: "0.5000 ms",
        999: "<0.001 ms",
        1000: "0.001000 ms",
        -1: ">-0.001 ms",
        -999: ">-0.001 ms",
        -1000: "-0.001000 ms",
        99_996_000: "100.0 ms",
        12_345_600_000: "12346 ms",
    },
    units.percent_text: {
        0: "0.0%",
        0.1234: "12.3%",
        1: "100.0%",
        0.0004: "<0.1%",
        0.0006: "0.1%",
        1.5: "150.0%",
        -0.0004: ">-0.1%",
        -0.02: "-2.0%",
    },
    partial(units.percent_text, n_decimals=1): {-0.0: "0.0%"},
    partial(units.percent_text, n_decimals=0): {0.126: "13%", 0.004: "<1%"},
    partial(units.percent_text, n_decimals=2): {0.00004: "<0.01%"},
    units.bytes_text: {
        0: "0 B",
        999: "999 B",
        1000: "1.00 kB",
        1024: "1.02 kB",
        1_500_000: "1.50 MB",
        999_999: "1.00 MB",
        1_700_000_000: "1.70 GB",
        2.5e12: "2.50 TB",
        5e15: "5000.00 TB",
    },
    units.rate_text: {
        1.5512: "1.551 steps/s",
        12.0: "12.00 steps/s",
        0.0123: "0.01230 steps/s",
        1234.5: "1234 steps/s",
    },
    units.count_text: {0: "0", 12.0: "12", 12.5: "12.50", 1 / 3: "0.3333", 1234567: "1234567"},
    # A difference has a sign, and a unit in which it is seen; of ratios points.
    partial(units.delta_text, "ns"): {
        -72.88 * MS: "-72.88 ms",
        1.5 * MS: "+1.500 ms",
        0.0: "0 ms",
        -20.0: "-20 ns",
        0.25: "+0.25 ns",
        12_345.0: "+0.01235 ms",
        -100_000.0: "-0.1000 ms",
    },
    partial(units.delta_text, "ratio"): {
        -0.021: "-2.1 pp",
        0.0: "0.0 pp",
        0.0004: "+0.04 pp",
        -0.000000004: "-4e-07 pp",
    },
    partial(units.delta_text, "bytes"): {-1.23e9: "-1.23 GB", 0.3: "+0.3 B"},
    partial(units.delta_text, "bytes/s"): {-20.0: "-2e-08 GB/s"},
    partial(units.delta_text, "count"): {36.0: "+36"},
    partial(units.delta_text, "1/s"): {0.25: "+0.2500 steps/s"},
    units.signed: {-11.3: "-11.3", 0.04: "+0.04", -0.0006: "-0.001", -0.0: "0.0"},
    # As many digits as tell it from what counts.
    partial(units.signed, distinct_from=2.0): {2.04: "+2.04", 2.0: "+2.0", -1.996: "-1.996"},
}


@pytest.mark.parametrize(
    ("write", "value", "text"),
    [(write, value, text) for write, texts in TEXTS.items() for value, text in texts.items()],
)
def test_a_value_has_its_unit_and_as_many_digits_as_tell_it(write, value, text):
    assert write(value) == text


@pytest.mark.parametrize(
    ("times", "unit", "texts"),
    [
        # Four digits for the longest; what rounds to nothing is not nothing, and nothing is.
        (
            [445.4e6, 4_032_000.0, 7836.0, 0.0, None],
            "",
            ["445.4 ms", "4.0 ms", "<0.1 ms", "0 ms", "-"],
        ),
        # What is compared with the columns beside it is in milliseconds, and only what would be all
        # zeros is not.
        ([7836.0, 29_100.0], "", ["0.0078 ms", "0.0291 ms"]),
        ([7836.0, 910.0], "", ["7.836 us", "0.910 us"]),
        ([6069e6, 999e6], "", ["6.069 s", "0.999 s"]),
        ([60.0, 1.5], "", ["60 ns", "2 ns"]),
        ([0.0, None], "", ["0 ms", "-"]),
        ([None], "", ["-"]),
        ([6069e6, 999e6, None, 0.0, 7.0], "ms", ["6069", "999", "-", "0", "<1"]),
    ],
)
def test_the_times_of_a_column_have_one_unit(times, unit, texts):
    assert units.in_one_unit([units.ms_text(ns) for ns in times], unit) == texts
    rows = [{"time": ns} for ns in times]
    column = kinds.table_of(
        "Times", rows, [kinds.barred(rows, "time", itemgetter("time"), "accent", unit=unit)]
    )
    assert [kinds.words_of(cell) for (cell,) in column.rows] == texts


def test_differences_keep_their_signs_and_other_columns_are_left_alone():
    assert units.in_one_unit([units.delta_text("ns", ns) for ns in (7.305e6, -255.9)]) == [
        "+7.305 ms",
        "-0.0003 ms",
    ]
    mixed = [units.ms_text(445.4e6), "17.0%", units.rate_text(6.261)]
    assert units.in_one_unit(mixed) == mixed
    assert units.in_one_unit([units.rate_text(10.73), units.rate_text(6.261), "-"], "steps/s") == [
        "10.73",
        "6.26",
        "-",
    ]
    shares = [units.with_share(units.ms_text(ns), 0.8) for ns in (101.9e6, 598_500, None)]
    assert units.in_one_unit(shares) == ["101.9 ms (80.0%)", "0.6 ms (80.0%)", "-"]


UNITS = sorted({figure.unit for figure in FIGURES.values()})


@pytest.mark.parametrize(
    "write",
    [
        units.percent_text,
        partial(units.delta_text, "ns"),
        *(partial(units.value_text, unit) for unit in UNITS),
    ],
)
def test_what_was_not_recorded_is_a_dash_and_never_0(write):
    assert write(None) == units.absent == "-"
    assert write(0) != units.absent
