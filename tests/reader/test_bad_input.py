"""Input that cannot be used: one clear line that names it, exit code 2, never a traceback."""

from __future__ import annotations

import os
import subprocess

import pytest

import nsyspipe
from nsyspipe.errors import DamagedReportError, NotAReportError, OptionError, ReportNotFoundError
from nsyspipe.nsys.programs import find_nsys
from tests.build.tools import STEADY, edit, figures, refuse
from tests.build.trace import steady_rank
from tests.cli.tools import assert_refused, nsyspipe_run


@pytest.fixture
def report(tmp_path):
    return steady_rank(0).write(tmp_path / "a_0.sqlite")


# --- files that are no reports ------------------------------------------------------------------


@pytest.mark.parametrize("content", [b"", b"rank,step\n0,1\n", b"SQLite format 3", b"SQLite format 3\0", b"\0" * 4096])
def test_a_file_that_is_no_database_is_refused_by_name(tmp_path, content):
    path = tmp_path / "a_0.sqlite"
    path.write_bytes(content)
    error = refuse((NotAReportError, DamagedReportError), path)
    assert str(path) in str(error)
    assert ("empty" in str(error)) == (not content)


def test_a_missing_report_among_good_ones_is_the_one_that_is_named(report, tmp_path):
    error = refuse(ReportNotFoundError, [report, tmp_path / "no.sqlite"])
    assert str(tmp_path / "no.sqlite") in str(error)
    assert str(report) not in str(error)


def test_a_database_that_nsys_did_not_write_is_refused_with_what_it_holds(tmp_path):
    path = edit(tmp_path / "a.sqlite", "CREATE TABLE customers (id)", "CREATE TABLE orders (id)")
    error = refuse(NotAReportError, path)
    assert "Nsight Systems did not export" in str(error)
    assert "customers, orders" in error.found
    assert "(none)" in refuse(NotAReportError, edit(path, "DROP TABLE customers", "DROP TABLE orders")).found


@pytest.fixture
def without_nsys(monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    if find_nsys() is not None:
        pytest.skip("this machine has nsys in one of the usual places")


def test_a_raw_report_is_refused_with_the_command_that_exports_it(tmp_path, without_nsys):
    path = tmp_path / "a.nsys-rep"
    path.write_bytes(b"NSYS" * 100)
    error = refuse(NotAReportError, path)
    assert f"nsys export --type=sqlite {path}" in error.fix


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("train.py", "pass the reports of a capture"),
        ("mine.capture.json", "pass the .sqlite reports beside it"),
        ("mine.sqlite", "nsys export --type=sqlite"),
    ],
)
def test_a_file_that_is_no_report_is_refused_with_what_to_pass_instead(tmp_path, name, fix):
    (tmp_path / name).write_text("{}")
    assert refuse(NotAReportError, tmp_path / name).fix.startswith(fix)


def test_a_raw_report_beside_its_export_is_passed_over(report, tmp_path, without_nsys):
    (tmp_path / "a_0.nsys-rep").write_bytes(b"NSYS")
    assert figures(nsyspipe.load(tmp_path)) == STEADY
    (tmp_path / "a_1.nsys-rep").write_bytes(b"NSYS")
    assert "a_1.nsys-rep" in str(refuse(NotAReportError, tmp_path))


def test_an_empty_directory_is_refused_alone_and_among_others(report, tmp_path):
    folder = tmp_path / "empty"
    folder.mkdir()
    (folder / "notes.txt").write_text("no report")
    assert str(folder) in str(refuse(ReportNotFoundError, folder))
    assert str(folder) in str(refuse(ReportNotFoundError, [report, folder]))


def test_a_directory_in_a_list_stands_for_its_reports(report, tmp_path):
    (tmp_path / "more").mkdir()
    steady_rank(1).write(tmp_path / "more" / "a_1.sqlite")
    assert nsyspipe.load([report, tmp_path / "more"]).ranks["rank"].to_pylist() == [0, 1]


def test_a_directory_that_is_named_like_a_report_is_refused(report, tmp_path):
    (tmp_path / "x.sqlite").mkdir()
    assert "x.sqlite" in str(refuse(NotAReportError, tmp_path))


def test_a_glob_that_matches_nothing_is_refused(report, tmp_path):
    for pattern in ("b_*.sqlite", "[b-z]*", "no/where/*.sqlite", "**/b.sqlite", "a_?"):
        assert pattern in str(refuse(ReportNotFoundError, str(tmp_path / pattern)))


def test_what_can_be_no_file_name_is_refused(tmp_path):
    refuse(nsyspipe.NsyspipeError, tmp_path / ("x" * 300 + ".sqlite"))
    refuse(nsyspipe.NsyspipeError, "a\0b.sqlite")


@pytest.mark.slow
def test_a_pipe_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "a.sqlite")
    try:
        done = nsyspipe_run("analyze", tmp_path / "a.sqlite", timeout=30)
    except subprocess.TimeoutExpired:
        pytest.fail("the program waits for somebody to write into the pipe")
    assert_refused(done)


# --- the program --------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["no.sqlite"],
        ["empty.sqlite"],
        ["a_0.sqlite", "--step", "nothing"],
        ["a_0.sqlite", "--backward", "("],
        ["a_*", "-j", "2"],
    ],
)
def test_the_program_says_it_in_one_line_and_exits_with_2(report, tmp_path, words):
    (tmp_path / "empty.sqlite").touch()
    os.truncate(steady_rank(1).write(tmp_path / "a_1.sqlite"), 5000)  # in a worker
    assert_refused(nsyspipe_run("analyze", *words, cwd=tmp_path))


# --- options ------------------------------------------------------------------------------------


@pytest.mark.parametrize("option", ["step", "backward", "forward", "optimizer", "data", "comm_kernel"])
def test_a_bad_pattern_is_refused_with_its_option(report, option):
    error = refuse(OptionError, report, **{option: "("})
    assert str(error).startswith(f"--{option.replace('_', '-')} '('")
    assert "not a regular expression" in str(error)
    assert "at position 0" in str(error)


def test_every_kind_of_bad_pattern_is_refused(report):
    for pattern in ("[a", "*", "a{2,1}", "(?P<x", "\\", "a{99999999999999999999}"):
        assert "not a regular expression" in str(refuse(OptionError, report, step=pattern))


def test_a_pattern_that_python_may_read_otherwise_one_day_is_used_in_silence(report):
    # re.compile warns of a nested set; on stderr that would be a line that is not ours.
    assert nsyspipe.load(report, step="^[[s]tep").steps().num_rows == 4


def test_a_step_pattern_that_matches_nothing_lists_the_families(report):
    error = refuse(OptionError, report, step="nothing")
    assert "--step 'nothing'" in str(error)
    assert "'step #' (4)" in error.found
    assert "'backward' (4)" in error.found


@pytest.mark.parametrize("n", [3, 4, 10**18])
def test_skipping_all_steps_is_refused_with_what_there_is(report, n):
    error = refuse(OptionError, report, skip_first=n)
    assert "3 are complete" in str(error)
    assert "--skip-first 2" in error.fix
    assert nsyspipe.load(report, skip_first=2).skipped_steps == [0, 1]


def test_skip_first_takes_a_number_or_auto(report):
    for text in ("-1", "1.5", "first", "", "\N{SUPERSCRIPT TWO}", "1e3"):
        assert "--skip-first" in str(refuse(OptionError, report, skip_first=text))
