"""The same blocks on a terminal, in Markdown and on a page: nothing is lost, and names stay names."""

from __future__ import annotations

import re

import pytest
from rich.console import Console

from nsyspipe.report import blocks as kinds
from nsyspipe.report.as_text import as_text
from nsyspipe.report.files import identity_of_page
from nsyspipe.report.html.page import Chart, blocks_page
from nsyspipe.report.markdown import as_markdown, marked_as, marker

COLUMNS = [
    kinds.Field("what", kind="name"), kinds.Field("step\ntime"), kinds.Field("verdict", kind="word", from_width=30), kinds.Field("note", kind="prose", from_width=80),
]  # fmt: skip
BLOCKS = [
    kinds.Sentence("It is so.", "bold"),
    kinds.Facts(["<b>run</b>", "2 ranks"], "Run"),
    kinds.Facts(["x"], "other", is_of_several=True),
    kinds.Troubles([("not comparable", "sizes", "", None)], is_close=True),
    kinds.Table("Figures", COLUMNS, [["a|b", "1 ms", kinds.Word("improvement", "it is less"), "x_y"], ["c", "2 ms", "", ""]], "3 rest.", n_shown=1),
    kinds.Table("Kernels", COLUMNS, [], "none changed"),
    kinds.Heading("This rests on:", "dim"), kinds.Items(["--link shm"]), kinds.Sentence("More.", is_close=False),
    kinds.Troubles([("warning", "clock is *off*", "rank 1", "--rank-map"), ("info", "b", "", None)], 1),
    kinds.Notes(["Read it."]),
]  # fmt: skip


def text(width, blocks=BLOCKS):
    return as_text(blocks, Console(width=width)).splitlines()


def test_they_stand_apart_and_a_narrow_terminal_says_which_columns_it_goes_without(pinned):
    page = as_markdown(BLOCKS, ["<!-- a -->"], "nsyspipe x")
    pinned("blocks", **{f"text of width {width}": "\n".join(text(width)) for width in (60, 80)}, markdown=page)


@pytest.mark.parametrize(("width", "line"), [
    (80, "kkkkkkkkkkkkkkkkkkkk-end  1 ms  improvement"),
    (35, "kkkkkkk..kkk-end  1 ms  improvement"), (29, "kkkkkkkkkkk..kkkkkk-end  1 ms"), (18, "kkkkk..k-end  1 ms"),
])  # fmt: skip
def test_names_are_cut_in_the_middle_and_columns_go_before_a_figure_is_cut(width, line):
    table = kinds.Table("x", COLUMNS[:3], [["k" * 20 + "-end", "1 ms", "improvement"]])
    assert line in text(width, [table])


def test_a_page_has_a_section_for_each_heading_and_table_and_all_rows(tmp_path):
    page = blocks_page(BLOCKS, "x", ("nsyspipe-x", "id"))
    headings = ["It is so.", "Figures", "Kernels", "This rests on", "Problems", "How to read it"]
    assert re.findall(r"<h[12][^>]*>(.*)</h[12]>", page) == headings
    assert "&lt;b&gt;run&lt;/b&gt;" in page
    assert "<b>run</b>" not in page
    assert '<b class="word" data-word="improvement">improvement</b><span class="word-why">it is less</span>' in page
    assert page.index(">not comparable<") < page.index("<h2")
    assert "2 ms" in page
    # Without a chart nothing is said of charts.
    assert "Apache ECharts" not in page
    assert "Charts need" not in page
    path = tmp_path / "x.html"
    path.write_text(page, encoding="utf-8")
    assert identity_of_page(path, "nsyspipe-x") == "id"


def test_a_chart_brings_its_data_its_table_and_what_draws_it():
    table = kinds.Table("As table", COLUMNS, [])
    chart = Chart("waterfall", "Time", "Bars", 100, [1, 2], table, "It falls.", [("idle", "idle")])
    page = blocks_page([BLOCKS[0], chart], "x", ("nsyspipe-x", "id"))
    assert '<script type="application/json" id="data-waterfall">[1,2]</script>' in page
    parts = ("Charts by Apache ECharts", "Charts need JavaScript", "It falls.", "Show as table", 'data-category="idle"')
    assert [part for part in parts if part not in page] == []


def test_bars_and_intervals_of_a_track_are_placed_around_the_middle_and_cut_at_its_ends():
    track = kinds.Track(0.5, 0.25, 0.75, 0.1)
    assert (track.bar, track.whisker, track.beyond) == ((50, 25), (62.5, 25), None)
    assert track.no_change == pytest.approx((45, 10))
    assert (kinds.Track(-0.5).bar, kinds.Track(-0.5).whisker) == ((25, 25), None)
    assert kinds.Track(3.0, 0.5, 7.0).whisker == (75, 25)
    assert (kinds.Track(3.0).bar, kinds.Track(3.0).beyond) == ((50, 50), "right")
    assert (kinds.Track(-3.0).bar, kinds.Track(-3.0).beyond) == ((0, 50), "left")
    assert kinds.Track(1.0).beyond is None


def test_a_file_says_whose_it_is_and_no_id_ends_its_comment(tmp_path):
    path = tmp_path / "x.md"
    for name in ("a", "--> <b>", "a--b", "\udcff"):
        path.write_text("\n".join(marker("whatif", "run_id", name)), encoding="utf-8")
        assert path.read_text(encoding="utf-8").count("-->") == 2
        assert marked_as(path, "whatif", "run_id") == name
        assert marked_as(path, "analyze", "run_id") is None


def test_what_was_not_recorded_is_a_dash_and_has_no_bar():
    rows = [{"a": 4_000_000}, {"a": None}, {"a": 1_000_000}]
    field = kinds.barred(rows, "time", lambda row: row["a"], "idle")
    shares = [getattr(field.cell(row), "share", None) for row in rows]
    assert shares == [1.0, None, 0.25]
    assert kinds.of("a")(rows[1]) == "-"
