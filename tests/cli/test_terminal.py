"""The summary as a person reads it: the verdict first, as wide as allowed, and nothing that drives the terminal."""

from __future__ import annotations

import re
import unicodedata

import pytest
from typer.testing import CliRunner

import nsyspipe
from nsyspipe.cli.app import app
from tests.build.tools import edit
from tests.build.trace import TraceBuilder, steady_rank
from tests.cli.tools import nsyspipe_here, nsyspipe_run, terminal_run

ESCAPE = "\x1b"
COLOUR = re.compile(r"\x1b\[(?:\d+;)*(?:3[0-8]|4[0-8]|9\d|10[0-7])(?:;\d+)*m")
RANK_ROW = re.compile(r" *\d+ +[\d.]+ ms ")
EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e\r\x08"


def summary(*arguments, columns=100):
    """Return the summary that a pipe gets, made in this process."""
    done = CliRunner().invoke(
        app, ["analyze", *map(str, arguments)], env={"COLUMNS": str(columns)}, catch_exceptions=False
    )
    assert (done.exit_code, done.stderr) == (0, "")
    return done.stdout


def control_characters(text):
    return {char for char in text if unicodedata.category(char) in ("Cc", "Cf") and char != "\n"}


# --- layout -------------------------------------------------------------------------------------


def test_the_summary_begins_with_the_verdict(steady):
    lines = summary(steady).splitlines()
    # All-reduce 60 of 1000 ns, 30 of them exposed and 30 under the backward kernel.
    assert lines[0] == "Communication is 6 % of step time, 3 % exposed; 50 % of it hides under backward."
    assert lines[1].startswith("steady | 2 ranks | NVIDIA H200 | 2 of 4 steps")


def test_the_summary_shows_the_run_then_each_rank_then_the_problems(steady):
    text = summary(steady)
    assert text.index("step time") < text.index("rank  ") < text.index("info")
    ranks = [line.split() for line in text.splitlines() if RANK_ROW.match(line)]
    assert [row[0] for row in ranks] == ["0", "1"]
    assert [float(row[1]) for row in ranks] == [0.001, 0.001]
    # Compute, exposed comm, exposed copies, idle; comm in all; hidden by compute, by backward; waits for others, they for it.
    assert [row[3::2] for row in ranks] == [["20.0", "3.0", "1.0", "76.0", "6.0", "50.0", "50.0", "0.0", "0"]] * 2


@pytest.mark.parametrize(
    ("columns", "what"), [(60, "steady"), (200, "long names"), (80, "long names"), (60, "no ranks"), (80, "problems")]
)
def test_the_summary_fits_the_terminal_and_never_exceeds_100_columns(tmp_path, columns, what):
    without = ("NVTX_EVENTS", "TARGET_INFO_SESSION_START_TIME", "TARGET_INFO_GPU") if what == "problems" else ()
    name = "a" * 120 if what == "long names" else "a"
    for rank in range(2):
        builder = TraceBuilder().range(0, 1, "x") if what == "no ranks" else steady_rank(rank)
        builder.write(tmp_path / f"{name}_{rank}.sqlite", without=without)
    lines = summary(tmp_path, columns=columns).splitlines()
    assert max(map(len, lines)) <= min(columns, 100)
    assert not any(line.endswith(" ") for line in lines)


@pytest.mark.parametrize(("columns", "n_left_out"), [(100, 0), (91, 2), (45, 6)])
def test_who_waits_is_shown_at_any_width_and_what_is_not_is_said(steady, columns, n_left_out):
    lines = summary(steady, columns=columns).splitlines()
    rows = [line.split() for line in lines if RANK_ROW.match(line)]
    assert {len(row) for row in rows} == {3 + 2 * (9 - n_left_out)}  # rank, step time; the shares
    assert {float(row[-2]) for row in rows} == {0}  # waits for others
    assert any(line.startswith("Left out, for want of width: ") for line in lines) == (n_left_out > 0)
    assert max(map(len, lines)) <= columns


def test_only_the_slowest_of_many_ranks_are_shown(tmp_path):
    for rank in range(20):
        steady_rank(rank, world_size=20).write(tmp_path / f"a_{rank}.sqlite")
    text = summary(tmp_path, "-j", 1)
    assert sum(RANK_ROW.match(line) is not None for line in text.splitlines()) == 16
    assert "16 of 20 ranks: " in text


# --- colour -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_pipe_gets_no_escape_codes(steady, tmp_path):
    assert ESCAPE not in nsyspipe_here("analyze", steady, TERM="xterm-256color").stdout
    assert ESCAPE not in nsyspipe_here("analyze", tmp_path / "no.sqlite", TERM="xterm-256color").stderr
    assert ESCAPE not in nsyspipe_here("schema", TERM="xterm-256color").stdout


@pytest.mark.slow
def test_a_terminal_gets_the_same_words_as_a_pipe(steady):
    code, shown = terminal_run("analyze", steady, "--no-progress", columns=80)
    assert code == 0
    words = [line.rstrip() for line in re.sub(r"\x1b\[[0-9;]*m", "", shown).splitlines()]
    assert words == nsyspipe_here("analyze", steady, COLUMNS="80").stdout.splitlines()


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["analyze", "{}"], ["analyze", "no.sqlite"]])
def test_no_color_is_respected_on_a_terminal(steady, arguments):
    _, shown = terminal_run(*(one.format(steady) for one in arguments), NO_COLOR="1")
    assert not COLOUR.search(shown), COLOUR.findall(shown)


@pytest.mark.slow
def test_a_dumb_terminal_gets_plain_text(steady):
    _, shown = terminal_run("analyze", steady, TERM="dumb")
    assert ESCAPE not in shown


@pytest.mark.slow
def test_progress_is_drawn_on_a_terminal_only_and_can_be_turned_off(steady):
    shown = terminal_run("analyze", steady)[1]
    assert "reading reports" in shown
    assert "exporting" not in shown  # they are exports already
    assert "reading reports" not in terminal_run("analyze", steady, "--no-progress")[1]
    assert terminal_run("analyze", steady, "-q") == (0, "")


# --- names from traces --------------------------------------------------------------------------


@pytest.mark.slow
def test_control_characters_in_names_never_reach_the_terminal(tmp_path):
    builder = steady_rank(0).host(f"node{EVIL}")
    for row in builder.rows["StringIds"]:
        row["value"] = row["value"].replace("step", f"st{EVIL}ep").replace("forward", f"{EVIL}forward")
    builder.rows["TARGET_INFO_GPU"][0]["name"] = f"H200{EVIL}"
    builder.write(tmp_path / "a_0.sqlite")
    for options in (["--label", f"mine{EVIL}"], ["--step", "nothing"]):
        done = nsyspipe_here("analyze", tmp_path, *options)
        assert done.stdout or done.returncode == 2
        assert control_characters(done.stdout + done.stderr) == set(), options


@pytest.mark.slow
def test_control_characters_of_a_foreign_database_never_reach_the_terminal(tmp_path):
    path = edit(tmp_path / "a.sqlite", f'CREATE TABLE "a{EVIL}b" ("c{EVIL}" INT)')
    _, shown = terminal_run("analyze", path, "--no-progress", TERM="dumb", NO_COLOR="1")
    assert "\x1b]0;" not in shown
    assert "\x07" not in shown


@pytest.mark.slow
@pytest.mark.parametrize("exists", [True, False])
def test_control_characters_in_a_file_name_never_reach_the_terminal(tmp_path, exists):
    path = tmp_path / f"a{EVIL}\nb.sqlite"
    if exists:
        path.touch()
    code, shown = terminal_run("analyze", path, "--no-progress", TERM="dumb", NO_COLOR="1")
    assert code == 2
    assert "\x1b]0;" not in shown
    assert "\x07" not in shown
    assert sum(not line.startswith("  ") for line in shown.splitlines()) == 1


@pytest.mark.slow
def test_a_file_name_that_is_no_utf8_is_shown_somehow(tmp_path):
    path = steady_rank(0).write(tmp_path / "caf\udce9_0.sqlite")
    assert nsyspipe.load(path).ranks.num_rows == 1
    for options in ([], ["--step", "nothing"]):
        done = nsyspipe_here("analyze", path, *options)
        assert done.returncode == (2 if "--step" in options else 0), done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_terminal_that_knows_few_letters_still_gets_the_summary(tmp_path):
    steady_rank(0).write(tmp_path / "a_0.sqlite")
    done = nsyspipe_run("analyze", tmp_path, "--label", "\N{SNOWMAN}", PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Communication is ")
