"""The same blocks on a terminal, in Markdown and on a page: nothing is lost, and names stay names."""

from __future__ import annotations

import re

from rich.console import Console

from nsyspipe.report.as_text import as_text
from nsyspipe.report.blocks import (
    Column,
    Facts,
    Heading,
    Items,
    Sentence,
    Table,
    Troubles,
    barred,
    of,
)
from nsyspipe.report.files import identity_of_page
from nsyspipe.report.html.page import blocks_page
from nsyspipe.report.markdown import as_markdown, marked_as, marker

COLUMNS = [Column("what", "text"), Column("time"), Column("note", "prose", from_width=80)]
BLOCKS = [
    Sentence("It is so.", "bold"),
    Facts(["<b>run</b>", "2 ranks"], "Run"),
    Table("Figures", COLUMNS, [["a|b", "1 ms", "x_y"]], "Left out: 3."),
    Heading("This rests on:", "dim"),
    Items(["--link shm"]),
    Sentence("More.", is_close=False),
    Troubles([("warning", "clock is *off*", "rank 1", "--rank-map")], "  "),
]


def text(width):
    return as_text(BLOCKS, Console(width=width)).splitlines()


def test_on_a_terminal_they_stand_apart_and_a_narrow_one_does_without_some_columns():
    assert text(60) == [
        "It is so.",
        "<b>run</b> | 2 ranks",
        "",
        "what  time",
        "a|b   1 ms",
        "Left out: 3.",
        "",
        "This rests on:",
        "- --link shm",
        "",
        "More.",
        "",
        "warning: clock is *off* (rank 1)",
        "  fix: --rank-map",
    ]
    assert text(80)[3:5] == ["what  time  note", "a|b   1 ms  x_y"]


def test_in_markdown_every_column_is_there_and_no_name_is_markup():
    lines = as_markdown(BLOCKS, ["<!-- a -->"], "nsyspipe x").splitlines()
    assert [line for line in lines if line][:-1] == [
        "<!-- a -->",
        "**It is so.**",
        "Run: &lt;b&gt;run&lt;/b&gt;, 2 ranks",
        "| what | time | note |",
        "| --- | --: | --- |",
        "| a&#124;b | 1\N{NO-BREAK SPACE}ms | `x_y` |",
        "Left out: 3.",
        "### This rests on",
        "- `--link` shm",
        "More.",
        "- **warning** (rank 1): clock is \\*off\\*. Fix: `--rank-map`.",
    ]
    # What stands right below a table would be a row of it.
    assert lines[lines.index("Left out: 3.") - 1] == ""


def test_a_page_has_a_section_for_each_heading_and_table(tmp_path):
    page = blocks_page(BLOCKS, "x", ("nsyspipe-x", "id"))
    assert re.findall(r"<h[12][^>]*>(.*)</h[12]>", page) == [
        "It is so.",
        "Figures",
        "This rests on",
        "Problems",
    ]
    assert "&lt;b&gt;run&lt;/b&gt;" in page
    assert "<b>run</b>" not in page
    path = tmp_path / "x.html"
    path.write_text(page, encoding="utf-8")
    assert identity_of_page(path, "nsyspipe-x") == "id"


def test_a_file_says_whose_it_is_and_no_id_ends_its_comment(tmp_path):
    path = tmp_path / "x.md"
    for name in ("a", "--> <b>", "a--b", "\udcff"):
        path.write_text("\n".join(marker("whatif", "run_id", name)), encoding="utf-8")
        assert path.read_text(encoding="utf-8").count("-->") == 2
        assert marked_as(path, "whatif", "run_id") == name
        assert marked_as(path, "analyze", "run_id") is None


def test_what_was_not_recorded_is_a_dash_and_has_no_bar():
    rows = [{"a": 4_000_000}, {"a": None}, {"a": 1_000_000}]
    field = barred(rows, "time", lambda row: row["a"], "idle")
    shares = [getattr(field.cell(row), "share", None) for row in rows]
    assert shares == [1.0, None, 0.25]
    assert of("a")(rows[1]) == "-"
