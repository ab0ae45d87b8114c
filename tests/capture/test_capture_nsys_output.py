"""What an nsys has left: a report of its own, somebody else's of that name, or a capture that must not be lost."""

from __future__ import annotations

import os
import time

import pytest

from nsyspipe.capture.rank import NOTHING, Captured, NsysOutput, is_missed_agent, last_words, output_of, report_there


@pytest.fixture
def place(tmp_path):
    (tmp_path / "tmp" / "nvidia").mkdir(parents=True)
    (tmp_path / "log").write_text("starting\nFailed to create 'run_0.nsys-rep': File exists\nbye\n")
    return tmp_path


def came_of(place, *, earlier=None):
    return NsysOutput(str(place / "run_0"), place / "tmp", place / "log", earlier=earlier).captured()


@pytest.mark.parametrize("is_noted", [True, False])
def test_a_file_that_was_there_or_is_older_than_this_nsys_is_not(place, is_noted):
    path = place / "run_0.nsys-rep"
    path.write_text("old")
    if not is_noted:  # moved there meanwhile
        os.utime(path, ns=(0, time.time_ns() - 3600 * 10**9))
    earlier = report_there(str(place / "run_0")) if is_noted else None
    assert came_of(place, earlier=earlier) == Captured(problem=NOTHING)


SAID = "Failed to create 'run_0.nsys-rep': File exists"
LEFT = [
    # What is in the report's place, what is left where nsys works, the problem, and what is kept beside it.
    ("mine", {}, None, {}),
    ("mine", {"report1.nsys-rep": "mine"}, None, {}),  # on its way from another file system: a copy
    ("other's", {"a.nsys-rep": "a", "b.nsys-rep": "b"},
     f"nsys could not write its report, which is kept: run.kept-P_0.nsys-rep, run.kept-P-1_0.nsys-rep: {SAID}",
     {"run.kept-P_0.nsys-rep": "a", "run.kept-P-1_0.nsys-rep": "b"}),
    (None, {"x.qdstrm": "mine"}, "nsys did not make a report of its capture, which is kept: run_0.qdstrm", {"run_0.qdstrm": "mine"}),
    (None, {"report1.nsys-rep": ""}, f"nsys could not write its report: {SAID}", {}),  # no capture
]  # fmt: skip


@pytest.mark.parametrize(("there", "left", "problem", "kept"), LEFT)
def test_a_new_file_is_the_report_and_what_is_left_is_kept_beside_it(place, there, left, problem, kept):
    if there:
        (place / "run_0.nsys-rep").write_text(there)
    for name, text in left.items():
        (place / "tmp" / "nvidia" / name).write_text(text)
    came = came_of(place)
    mark = f"kept-{os.getpid()}"
    assert came.report == (None if problem else str(place / "run_0"))
    assert (came.problem or "").replace(mark, "kept-P") == (problem or "")
    names = {path.name.replace(mark, "kept-P"): path.read_text() for path in place.glob("run*")}
    assert names == kept | ({"run_0.nsys-rep": there} if there else {})


def test_a_name_that_is_taken_is_not_and_a_capture_that_cannot_be_moved_stays_and_is_named(place):
    (place / "run_0.qdstrm").write_text("first")
    left = place / "tmp" / "nvidia" / "x.qdstrm"
    left.write_text("second")
    assert came_of(place).problem.endswith(f"which is kept: run.kept-{os.getpid()}_0.qdstrm")
    assert (place / "run_0.qdstrm").read_text() == "first"
    left.write_text("mine")
    came = NsysOutput(str(place / "no" / "run_0"), place / "tmp", place / "log").captured()
    assert f"it is still in {left.parent}" in came.problem
    assert left.read_text() == "mine"


def test_the_output_has_this_process_s_rank_and_an_agent_that_was_missed_is_known_by_what_nsys_says(place, monkeypatch):
    monkeypatch.setenv("RANK", "3")
    assert output_of(["nsys", "profile", "--output=a/run_%q{RANK}"]) == "a/run_3"
    assert output_of(["nsys", "profile"]) is None
    (place / "log").write_text("[1/2]\nException: Connection to Agent lost: End of file\n")
    assert last_words(place / "log") == ": Exception: Connection to Agent lost: End of file"
    assert is_missed_agent(last_words(place / "log"))
    assert not is_missed_agent(": unrecognised option")
