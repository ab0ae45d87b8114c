"""What an nsys has left: a report of its own, somebody else's of that name, or a capture that must not be lost."""

from __future__ import annotations

import os
import time

import pytest

from nsyspipe.capture.rank import NOTHING, Captured, NsysOutput, is_missed_agent, last_words, output_of, report_there

HOUR_NS = 3600 * 10**9


@pytest.fixture
def place(tmp_path):
    """Where nsys works, below where its report belongs."""
    (tmp_path / "tmp" / "nvidia").mkdir(parents=True)
    (tmp_path / "log").write_text("starting\nFailed to create 'run_0.nsys-rep': File exists\nbye\n")
    return tmp_path


def came_of(place, *, earlier=None):
    return NsysOutput(str(place / "run_0"), place / "tmp", place / "log", earlier=earlier).captured()


def leave(place, name="report1.nsys-rep", text="mine"):
    (place / "tmp" / "nvidia" / name).write_text(text)


def test_a_new_file_is_the_report_and_a_copy_of_it_is_no_other_one(place):
    (place / "run_0.nsys-rep").write_text("mine")
    assert came_of(place) == Captured(report=str(place / "run_0"))
    leave(place)
    assert came_of(place).report == str(place / "run_0")


@pytest.mark.parametrize("is_noted", [True, False])
def test_a_file_that_was_there_or_is_older_than_this_nsys_is_not(place, is_noted):
    path = place / "run_0.nsys-rep"
    path.write_text("old")
    if not is_noted:  # moved there meanwhile
        os.utime(path, ns=(0, time.time_ns() - HOUR_NS))
    earlier = report_there(str(place / "run_0")) if is_noted else None
    assert came_of(place, earlier=earlier) == Captured(problem=NOTHING)


def test_reports_left_where_nsys_works_are_moved_beside_what_took_their_place(place):
    (place / "run_0.nsys-rep").write_text("other's")
    leave(place, "a.nsys-rep", "a")
    leave(place, "b.nsys-rep", "b")
    came = came_of(place)
    stem = f"run.kept-{os.getpid()}"
    assert came.report is None
    assert came.problem == (
        f"nsys could not write its report, which is kept: {stem}_0.nsys-rep, {stem}-1_0.nsys-rep: "
        "Failed to create 'run_0.nsys-rep': File exists"
    )
    names = {path.name: path.read_text() for path in place.glob("run*")}
    assert names == {"run_0.nsys-rep": "other's", f"{stem}_0.nsys-rep": "a", f"{stem}-1_0.nsys-rep": "b"}


def test_a_stream_that_was_not_made_a_report_is_kept_under_a_free_name(place):
    leave(place, "x.qdstrm")
    assert came_of(place).problem.endswith("which is kept: run_0.qdstrm")
    leave(place, "x.qdstrm", "second")
    assert came_of(place).problem.endswith(f"which is kept: run.kept-{os.getpid()}_0.qdstrm")
    assert (place / "run_0.qdstrm").read_text() == "mine"


def test_a_capture_that_cannot_be_moved_stays_and_is_named(place):
    leave(place)
    came = NsysOutput(str(place / "no" / "run_0"), place / "tmp", place / "log").captured()
    assert f"it is still in {place / 'tmp' / 'nvidia'}" in came.problem
    assert (place / "tmp" / "nvidia" / "report1.nsys-rep").read_text() == "mine"


def test_an_empty_file_is_no_capture(place):
    leave(place, text="")
    assert came_of(place).problem.startswith("nsys could not write its report: Failed to create")
    assert not list(place.glob("run_0*"))


def test_the_output_has_the_rank_of_this_process(monkeypatch):
    monkeypatch.setenv("RANK", "3")
    assert output_of(["nsys", "profile", "--output=a/run_%q{RANK}"]) == "a/run_3"
    assert output_of(["nsys", "profile"]) is None


def test_an_agent_that_was_missed_is_known_by_what_nsys_says(place):
    (place / "log").write_text("[1/2]\nException: Connection to Agent lost: End of file\n")
    assert last_words(place / "log") == ": Exception: Connection to Agent lost: End of file"
    assert is_missed_agent(last_words(place / "log"))
    assert not is_missed_agent(": unrecognised option")
