"""A scoreboard in words: sentences, terminal, Markdown."""

from __future__ import annotations

import pytest
from rich.console import Console

import nsyspipe
from nsyspipe.api import compare
from nsyspipe.comparison.difference import Side
from nsyspipe.report.scoreboard import scoreboard_markdown, scoreboard_text
from nsyspipe.report.scoreboard_words import doubts, headlines, notes, speedup_text, troubles
from tests.build.hostile import HOSTILE
from tests.build.scoreboard_runs import scoreboard_runs
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
    return scoreboard_text(board, Console(width=width))


def test_the_fastest_and_its_speedup_come_first(board):
    # 131 / 101 = 1.297
    (said,) = headlines(board("slow", "fast", "again"))
    assert said.startswith("fast is the fastest of 3 runs: 1.30x of slow (1.2")
    assert text(board("slow", "fast", "again")).startswith(f"{said}\n")


def test_when_the_reference_is_the_fastest_the_next_is_named(board):
    # 101 / 131 = 0.771
    (said,) = headlines(board("fast", "slow"))
    assert said.startswith("fast is the fastest of 2 runs: slow is 0.77x of it (0.7")


def test_a_tie_is_called_one(board):
    assert headlines(board("slow", "again")) == ["slow is the fastest of 2 runs, level with again in step time."]


def test_who_is_not_told_apart_is_neither_level_nor_slower(board):
    (said,) = headlines(board("slow", "again", "short"))
    assert said == (
        "Which of 3 runs is fastest is open: slow has the shortest mean step time, not told apart from short by these "
        "steps, level with again in step time."
    )
    (said,) = headlines(board("slow", "fast", "short"))
    assert said.startswith("Which of 3 runs is fastest is open: fast is 1.30x of slow (1.2")
    assert said.endswith("not told apart from short by these steps.")


def test_an_undecided_run_may_be_faster_where_the_best_is_no_change(board):
    (said,) = headlines(board("slow", "fast", "short", min_effect_pct=50))
    assert said.startswith("Whether any run of 3 runs is faster than slow is open: fast is 1.30x of slow")
    assert said.endswith("no change; short not told apart from it by these steps.")


def test_less_than_what_counts_is_not_faster(board):
    (said,) = headlines(board("slow", "fast", min_effect_pct=50))
    assert said.startswith("No run of 2 runs is faster than slow by what counts: fast is 1.30x of slow")


def test_each_kind_of_several_runs_has_a_sentence_the_largest_kind_first(board):
    said = headlines(board("wide", "slow", "wider", "fast", "again"))
    assert said[0].startswith("fast is the fastest on 2 ranks, NVIDIA H200: 1.30x of slow")
    assert said[1].startswith("wider is the fastest on 3 ranks, NVIDIA H200: 1.09x of wide")
    assert len(said) == 2


def test_runs_of_which_no_two_can_be_compared_say_so(board):
    assert headlines(board("slow", "wide")) == ["No two of 2 runs can be compared: they differ in world size."]


def test_one_run_has_nothing_to_be_compared_with(board):
    assert headlines(board("slow")) == ["slow is the only run: there is nothing to compare it with."]


def test_a_reference_with_too_few_steps_decides_nothing(board, empty):
    assert headlines(board("short", "fast")) == ["Which of 2 runs is fastest cannot be said: short: 2 steps, needs 3."]
    found = compare({"none": empty, "none too": empty})
    assert headlines(found) == ["Which of 2 runs is fastest cannot be said: none has no step times."]


def test_one_capture_against_several_says_whose_spread_it_takes(runs):
    two = Side("two", (runs["slow"], runs["again"]))
    (said,) = notes(compare([two, Side("fast", (runs["fast"],))]))[1:]
    assert said == (
        "fast has one capture: against a run of several, the spread between captures is taken from that run."
    )


def test_a_run_that_is_not_decided_says_why(board):
    assert doubts(board("slow", "short", "fast")) == ["not decided: short (short: 2 steps, needs 3)"]


def test_what_does_not_block_is_told_of_the_runs_that_it_concerns(board):
    said = doubts(board("slow", "wide", force=True))
    assert said[0] == "world size: slow 2; wide 3"


def test_notes_say_what_a_step_of_more_ranks_means_where_there_are_some(board, runs):
    assert not any("scaling efficiency" in one for one in notes(board("slow", "fast")))
    assert any("scaling efficiency" in one for one in notes(board("slow", "wide")))
    several = compare([Side("a", (runs["slow"], runs["again"])), Side("b", (runs["fast"],))])
    assert not any("One capture" in one for one in notes(several))


def test_problems_of_several_runs_are_told_once(empty):
    found = troubles(compare({"a": empty, "b": empty}))
    assert found[0][2] == "a and b"
    assert "no step has a window on every rank" in found[0][1]


@pytest.mark.parametrize("value", [None, 1.0, 12.3456])
def test_a_speedup_has_three_digits(value):
    assert speedup_text(value) == {None: "-", 1.0: "1.000x", 12.3456: "12.346x"}[value]


@pytest.mark.parametrize("width", [40, 60, 80, 100, 200])
def test_no_line_is_wider_than_the_terminal_and_no_figure_is_cut(board, width):
    said = text(board("slow", "fast", "wide", "wider", "short"), width)
    assert max(map(len, said.splitlines())) <= min(width, 100)
    assert "\N{HORIZONTAL ELLIPSIS}" not in said
    assert "1.297x" in said
    assert " fast " in said


def test_long_names_keep_both_ends(runs):
    names = [f"ddp-8gpu-{'x' * 90}-{end}" for end in ("first", "second")]
    said = text(compare(dict(zip(names, (runs["slow"], runs["fast"]), strict=True))))
    assert "ddp-8gpu-xx" in said
    assert "x-second " in said
    assert max(map(len, said.splitlines())) <= 100


def test_columns_of_a_kind_stand_under_what_they_have_in_common(board):
    lines = text(board("slow", "wide", "fast")).splitlines()
    at = lines.index("2 ranks, NVIDIA H200")
    assert [line.split()[0] for line in lines[at : at + 5]] == ["2", "slow", "fast", "3", "wide"]
    assert "over the" in lines[at - 2]


@pytest.mark.parametrize("name", HOSTILE)
def test_names_cannot_write_to_the_terminal_or_into_the_page(runs, name):
    found = compare({name: runs["slow"], "[red]b[/red]": runs["fast"], "=1+1|`": runs["again"]})
    said = text(found)
    assert all(char.isprintable() or char == "\n" for char in said)
    assert "[red]b[/red]" in said
    page = scoreboard_markdown(found)
    assert page.startswith("<!-- nsyspipe:compare -->")
    assert "<script" not in page
    assert "\\[red\\]b" in page
    assert "=1+1&#124;\\`" in page


def test_markdown_has_a_table_a_kind_and_one_of_what_time_goes_to(board):
    page = scoreboard_markdown(board("slow", "wide", "fast"))
    assert "### 2 ranks, NVIDIA H200" in page
    assert page.count("\n| --: ") == 3
    # With units that do not part from their figures.
    assert "| fast | 12 | 101.0\N{NO-BREAK SPACE}ms | 9.901\N{NO-BREAK SPACE}steps/s | 1.297x |" in page  # fmt: skip
    assert page == scoreboard_markdown(board("slow", "wide", "fast"))
