"""A scoreboard: its sentences, the terminal, Markdown and page, JSON and CSV, and how a file is known to be of the same runs."""

from __future__ import annotations

import csv
import io
import json
import re

import pytest
from rich.console import Console

import nsyspipe
from nsyspipe.api import compare
from nsyspipe.comparison.difference import Side
from nsyspipe.report.as_text import as_text
from nsyspipe.report.html.page import LIBRARY, read_asset
from nsyspipe.report.scoreboard import (
    doubts,
    headlines,
    identity_of,
    notes,
    scoreboard_blocks,
    scoreboard_csv,
    scoreboard_document,
    scoreboard_formats,
    scoreboard_page,
    troubles,
)
from nsyspipe.store.write import save
from tests.build.hostile import HOSTILE
from tests.build.scoreboard_runs import MS, scoreboard_runs
from tests.build.trace import TraceBuilder


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return scoreboard_runs(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def empty(tmp_path_factory):
    folder = tmp_path_factory.mktemp("empty")
    TraceBuilder().range(0, 10, "step 1").write(folder / "empty_0.sqlite")
    return nsyspipe.load(folder, jobs=1)


@pytest.fixture
def board(runs):
    return lambda *names, **options: compare({name: runs[name] for name in names}, **options)


def text(board, width=100):
    return as_text(scoreboard_blocks(board), Console(width=width))


def markdown(board):
    return scoreboard_formats(board)["markdown"].text()


# The steps of slow and again take 131 ms, of fast 101: 131 / 101 = 1.297, 101 / 131 = 0.771. Short has two steps only.
@pytest.mark.parametrize(
    ("names", "options", "beginnings", "end"),
    [
        ("slow fast again", {}, ["fast is the fastest of 3 runs: 1.30x of slow (1.2"], ""),
        # Of the others the next is named where the reference is the fastest.
        ("fast slow", {}, ["fast is the fastest of 2 runs: slow is 0.77x of it (0.7"], ""),
        ("slow again", {}, ["slow is the fastest of 2 runs, level with again in step time."], ""),
        # Who is not told apart is neither level nor slower.
        ("slow again short", {}, ["Which of 3 runs is fastest is open: slow has the shortest mean step time, not told apart from short"],
         "by these steps, level with again in step time."),
        ("slow fast short", {}, ["Which of 3 runs is fastest is open: fast is 1.30x of slow (1.2"], "not told apart from short by these steps."),
        # An undecided run may be faster where the best is no change.
        ("slow fast short", {"min_effect_pct": 50}, ["Whether any run of 3 runs is faster than slow is open: fast is 1.30x of slow"],
         "no change; short not told apart from it by these steps."),
        ("slow fast", {"min_effect_pct": 50}, ["No run of 2 runs is faster than slow by what counts: fast is 1.30x of slow"], ""),
        # Each kind of several runs has a sentence, the largest first.
        ("wide slow wider fast again", {}, ["fast is the fastest on 2 ranks, NVIDIA H200: 1.30x of slow",
         "wider is the fastest on 3 ranks, NVIDIA H200: 1.09x of wide"], ""),
        ("slow wide", {}, ["No two of 2 runs can be compared: they differ in world size."], ""),
        ("slow", {}, ["slow is the only run: there is nothing to compare it with."], ""),
        ("short fast", {}, ["Which of 2 runs is fastest cannot be said: short: 2 steps, needs 3."], ""),
    ],
)  # fmt: skip
def test_who_is_fastest_and_how_sure_that_is(board, names, options, beginnings, end):
    found = board(*names.split(), **options)
    sentences = headlines(found)
    assert [sentence[: len(start)] for sentence, start in zip(sentences, beginnings, strict=True)] == beginnings
    assert sentences[-1].endswith(end)
    assert " ".join(text(found).split()).startswith(sentences[0])
    assert f"\n**{sentences[0][:8]}" in markdown(found)


def test_runs_without_steps_decide_nothing_and_say_why_once(empty):
    found = compare({"none": empty, "none too": empty})
    assert headlines(found) == ["Which of 2 runs is fastest cannot be said: none has no step times."]
    assert troubles(found)[0][2] == "none and none too"
    assert "no step has a window on every rank" in troubles(found)[0][1]


def test_one_capture_against_several_says_whose_spread_it_takes(runs):
    two = Side("two", (runs["slow"], runs["again"]))
    (said,) = notes(compare([two, Side("fast", (runs["fast"],))]))[1:]
    assert said == (
        "fast has one capture: against a run of several, the spread between captures is taken from that run."
    )


def test_what_is_not_decided_or_does_not_block_is_told_of_the_runs_that_it_concerns(board):
    assert doubts(board("slow", "short", "fast")) == ["not decided: short (short: 2 steps, needs 3)"]
    assert doubts(board("slow", "wide", force=True))[0] == "world size: slow 2; wide 3"


def test_notes_say_what_a_step_of_more_ranks_means_where_there_are_some(board, runs):
    assert not any("scaling efficiency" in one for one in notes(board("slow", "fast")))
    assert any("scaling efficiency" in one for one in notes(board("slow", "wide")))
    several = compare([Side("a", (runs["slow"], runs["again"])), Side("b", (runs["fast"],))])
    assert not any("One capture" in one for one in notes(several))


@pytest.mark.parametrize("width", [40, 60, 80, 100, 200])
def test_no_line_is_wider_than_the_terminal_and_no_figure_is_cut(board, width):
    said = text(board("slow", "fast", "wide", "wider", "short"), width)
    assert max(map(len, said.splitlines())) <= min(width, 100)
    assert "\N{HORIZONTAL ELLIPSIS}" not in said
    assert "1.297x" in said
    assert "\nfast " in said


def test_long_names_keep_both_ends(runs):
    names = [f"ddp-8gpu-{'x' * 90}-{end}" for end in ("first", "second")]
    said = text(compare(dict(zip(names, (runs["slow"], runs["fast"]), strict=True))))
    assert "ddp-8gpu-xx" in said
    assert "x-second " in said
    assert max(map(len, said.splitlines())) <= 100


def test_each_kind_has_a_table_under_what_its_runs_have_in_common(board):
    found = board("slow", "wide", "fast")
    lines = text(found).splitlines()
    for at, names in (
        (lines.index("2 ranks, NVIDIA H200"), ["slow", "fast"]),
        (lines.index("3 ranks, NVIDIA H200"), ["wide"]),
    ):
        assert [line.split()[0] for line in lines[at + 3 : at + 3 + len(names)]] == names
    assert "over the" in text(found)
    page = markdown(found)
    assert page == markdown(board("slow", "wide", "fast"))
    assert "### 2 ranks, NVIDIA H200" in page
    assert page.count("\n| --- | --: ") == 3
    # With units that do not part from their figures.
    assert "| fast | 12 | 101.0\N{NO-BREAK SPACE}ms | 9.901 | 1.297x |" in page


@pytest.mark.parametrize("name", HOSTILE)
def test_names_stay_text_in_all_formats(runs, name):
    found = compare({name: runs["slow"], "[red]b[/red]": runs["fast"], "=1+1|`": runs["again"]})
    shown = text(found)
    assert all(char.isprintable() or char == "\n" for char in shown)
    assert "[red]b[/red]" in shown
    page = markdown(found)
    assert page.startswith("<!-- nsyspipe:compare -->")
    assert "<script" not in page
    assert "\\[red\\]b" in page
    assert "=1+1&#124;\\`" in page
    found = compare({name: runs["slow"], "</script><img src=x>": runs["fast"]})
    harmless = page_of(compare({"a": runs["slow"], "b": runs["fast"]}))
    tags = re.compile(r"<(?:script|img)\b")
    assert len(tags.findall(page_of(found))) == len(tags.findall(harmless))
    assert "&lt;/script&gt;&lt;img src=x&gt;" in page_of(found)


def page_of(board):
    return scoreboard_page(board).replace(read_asset(LIBRARY), "")


def data_of(board):
    found = re.search(r'<script type="application/json" id="data-scoreboard">(.*?)</script>', page_of(board))
    return json.loads(found[1])


@pytest.mark.slow
def test_saved_runs_give_the_same_page(runs, tmp_path):
    for name, run in runs.items():
        save(run, tmp_path / name)
    saved = compare({name: tmp_path / name for name in runs})
    assert scoreboard_page(saved) == scoreboard_page(compare(runs))


def test_every_section_is_there_once_and_nothing_is_fetched(runs):
    page = page_of(compare({name: runs[name] for name in ("slow", "fast", "short", "wide")}))
    assert re.findall(r"<h2[^>]*>(.*)</h2>", page) == [
        "Time and speed", "2 ranks, NVIDIA H200", "3 ranks, NVIDIA H200", "What steps go to", "Problems", "How to read it",
        "How figures are made",
    ]  # fmt: skip
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert not re.findall(r'(?:src|href)="(?!#|data:)[^"]*"', page)
    assert ">Problems</h2>" not in page_of(compare([runs["slow"], runs["fast"]]))


def test_the_chart_has_parts_intervals_and_headings(runs):
    rows = data_of(compare({name: runs[name] for name in ("slow", "fast", "short", "wide")}))["rows"]
    assert [row.get("heading") or row["label"] for row in rows] == [
        "2 ranks, NVIDIA H200", "slow", "fast", "short", "3 ranks, NVIDIA H200", "wide"
    ]  # fmt: skip
    fast, short = rows[2], rows[3]
    assert fast["parts"] == {"compute": 71 * MS, "exposed": 20 * MS, "copies": 4 * MS, "idle": 6 * MS}  # fmt: skip
    assert (fast["wall"], fast["is_best"], fast["verdict"]) == (101 * MS, True, "improvement")
    assert fast["speedup"] == pytest.approx(131 / 101)
    assert fast["low"] < fast["speedup"] < fast["high"]
    assert (short["low"], short["why"]) == (None, "short: 2 steps, needs 3")


def test_runs_of_one_kind_have_no_headings(runs):
    board = compare({name: runs[name] for name in ("slow", "fast")})
    data = data_of(board)
    assert [row["label"] for row in data["rows"]] == ["slow", "fast"]
    assert data["over"] == "over slow"


# The contract's keys of a run.
KEYS = {
    "label", "step_time_ns", "throughput_steps_per_s", "speedup", "speedup_low", "speedup_high", "comm_share",
    "exposed_comm_share", "overlap_ratio", "backward_overlap_ratio", "dtod_ns_per_step", "wait_share",
    "message_bytes_per_step", "verdict",
}  # fmt: skip


def test_the_document_is_that_of_the_contract(board, runs):
    board = board("slow", "fast")
    found = json.loads(scoreboard_formats(board)["json"].text())
    assert {"schema_version", "tool_version", "problems", "runs"} <= set(found)
    assert all(set(run) >= KEYS for run in found["runs"])
    second = found["runs"][1]
    assert (second["label"], second["step_time_ns"], second["verdict"]) == ("fast", 101 * MS, "improvement")  # fmt: skip
    assert second["captures"] == [runs["fast"].header.run_id]
    assert found["kinds"] == [
        {"peer": "slow", "labels": ["slow", "fast"], "best": "fast", "level_with": [], "not_told_from": []}
    ]


def test_csv_has_a_row_a_run_in_base_units_and_nothing_where_null(board):
    first, second = csv.DictReader(io.StringIO(scoreboard_csv(board("slow", "fast"))))
    assert float(second["step_time_ns"]) == 101 * MS
    assert float(second["speedup"]) == pytest.approx(131 / 101)
    assert (first["verdict"], first["why"], first["message_bytes_per_step"]) == ("reference", "", "")


@pytest.mark.parametrize("name", ["=1+1", "+1", "-1", "@SUM(A1)", "=cmd|' /C calc'!A0"])
def test_a_name_is_no_formula_of_a_spreadsheet(runs, name):
    found = compare({name: runs["slow"], 'a,"b"': runs["fast"]})
    rows = list(csv.DictReader(io.StringIO(scoreboard_csv(found))))
    assert [row["label"] for row in rows] == [f"'{name}", 'a,"b"']
    assert rows[1]["peer"] == f"'{name}"


def test_control_characters_of_a_name_are_shown_not_kept(runs):
    text = scoreboard_csv(compare({"a\tb\n\x1b[2J": runs["slow"]}))
    assert text.count("\n") == 2
    assert "a\N{REPLACEMENT CHARACTER}b" in text


def test_files_are_known_by_their_runs_whatever_the_order(board, runs, tmp_path):
    for name, chosen in scoreboard_formats(board("slow", "fast")).items():
        (tmp_path / name).write_text(chosen.text(), encoding="utf-8")
    turned = compare({"x": runs["fast"], "y": runs["slow"]})
    other = compare({"x": runs["fast"], "y": runs["again"]})
    for found, is_same in ((board("slow", "fast"), True), (turned, True), (other, False)):
        for name, chosen in scoreboard_formats(found).items():
            assert (chosen.identity_of(tmp_path / name) == identity_of(found)) == is_same


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"runs": [{}]}', "run_ids\n", "\0", "a,b\n1", '{"runs": 1}'])
def test_no_other_file_is_taken_for_one(board, tmp_path, content):
    path = tmp_path / "other"
    path.write_text(content)
    for chosen in scoreboard_formats(board("slow", "fast")).values():
        assert chosen.identity_of(path) is None
        assert chosen.identity_of(tmp_path / "missing") is None


def test_several_captures_are_listed(runs):
    found = compare([Side("both", (runs["slow"], runs["again"])), runs["fast"]])
    document = scoreboard_document(found)
    assert document["runs"][0]["captures"] == [runs[one].header.run_id for one in ("slow", "again")]
    assert identity_of(found) != identity_of(compare([runs["slow"], runs["again"], runs["fast"]]))
