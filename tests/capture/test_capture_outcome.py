"""What is said of a job that has ended, and its status."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nsyspipe.capture.outcome import End, judge
from nsyspipe.capture.status import Program, RankRecord

WELL = End(0)
EMPTY = "nothing was captured"


def rank(number, *, status=0, report=True, problem=None, ended_at=1.0, pid=100, is_captured=True):
    return RankRecord(
        rank=number,
        local_rank=number,
        pid=pid,
        nsys_group=90,
        is_captured=is_captured,
        report=f"/data/run_{number}" if report else None,
        status=status,
        problem=problem,
        ended_at=ended_at,
    )


def verdict(records, expected=(0, 1), end=WELL, capture_range="cudaProfilerApi", programs=None):
    return judge(records, expected, end, program="train.py", capture_range=capture_range, programs=programs)


def said(found):
    return "\n".join(found.lines)


def test_all_reports_of_a_job_that_ended_well_need_no_words():
    found = verdict([rank(0), rank(1)])
    assert (found.status, found.lines) == (0, ())


def test_ranks_that_were_not_chosen_need_no_report():
    assert verdict([rank(0), rank(1, report=False, is_captured=False)], expected=(0,)).status == 0


def test_the_rank_that_failed_first_is_the_one_to_look_at():
    # torchrun ends rank 0 because rank 1 failed, half a second earlier.
    found = verdict([rank(0, status=143, ended_at=9.5), rank(1, status=1, ended_at=9.0)], end=End(1))
    assert found.status == 1
    assert said(found) == (
        "error: train.py: rank 1 ended with status 1; its own message stands above\n"
        "  found: reports of 2 of 2 ranks: run_0.nsys-rep, run_1.nsys-rep\n"
        "  fix: mend the program, then capture again with --force"
    )


@pytest.mark.parametrize(
    ("status", "words"), [(139, "by SIGSEGV"), (137, "by SIGKILL"), (128 + 99, "by signal 99"), (128, "status 128")]
)
def test_a_signal_is_named(status, words):
    assert words in said(verdict([rank(0, status=status)], expected=(0,), end=End(1)))


def test_of_a_signal_the_program_has_left_no_message():
    for status, perhaps in ((137, ", perhaps because memory ran out"), (139, "")):
        first = verdict([rank(0, status=status)], expected=(0,), end=End(1)).lines[0]
        name = {137: "SIGKILL", 139: "SIGSEGV"}[status]
        assert first == f"error: train.py: rank 0 was ended by {name}{perhaps}"


def test_force_is_advised_only_where_there_is_something_to_replace():
    found = verdict([rank(0, status=1, report=False)], expected=(0,), end=End(1))
    assert found.lines[-1] == "  fix: mend the program, then capture again"
    found = verdict([rank(0, report=False, problem="broken")], expected=(0,))
    assert found.lines[-1] == "  fix: capture again"


def test_one_report_of_several_ranks_is_named_once():
    both = [replace(rank(number), report="/data/run_node0") for number in (0, 1)]
    found = verdict(both, end=End(130, "interrupt"))
    assert said(found).endswith("found: reports of 2 of 2 ranks: run_node0.nsys-rep")


def test_an_nsys_and_agent_that_missed_each_other_are_to_be_started_again():
    problem = "nsys failed before it started the program: Connection to Agent lost: End of file"
    found = verdict([rank(0, status=1, pid=None, problem=problem, report=False)], expected=(0,), end=End(1))
    assert found.lines[-1].startswith("  fix: start it again")


def test_a_loop_that_is_shorter_than_its_warm_up_is_told_so():
    records = [rank(0, report=False, problem=EMPTY)]
    loops = {0: Program(n_steps=8, n_captured_steps=0, warmup=10, steps_asked=20)}
    found = verdict(records, expected=(0,), programs=loops)
    assert found.lines == (
        "error: train.py: it ended well, but nothing was captured: its loop ended after 8 steps, the warm-up is 10",
        "  fix: captured_steps(loader, warmup=2, steps=6), or more steps",
    )
    # One step is warm enough for nothing: it is captured itself.
    loops = {0: Program(n_steps=1, n_captured_steps=0, warmup=10, steps_asked=20)}
    fix = verdict(records, expected=(0,), programs=loops).lines[-1]
    assert "warmup=0, steps=1)" in fix


def test_captured_steps_that_nsys_never_heard_of_are_told_so():
    loops = {0: Program(n_steps=30, n_captured_steps=20, warmup=10, steps_asked=20)}
    found = verdict([rank(0, report=False, problem=EMPTY)], expected=(0,), programs=loops)
    assert "20 of its steps were to be, but nsys did not hear of it" in said(found)
    assert 'pip install "nvtx<0.2.12"' in said(found)


def test_fewer_steps_than_asked_for_are_a_note():
    loops = {
        0: Program(n_steps=30, n_captured_steps=20, warmup=10, steps_asked=20),
        1: Program(n_steps=16, n_captured_steps=6, warmup=10, steps_asked=20),
    }
    found = verdict([rank(0), rank(1)], programs=loops)
    assert (found.status, found.lines) == (
        0,
        (("note: rank 1: 6 of 20 steps were captured: its loop ended after 16 steps, the warm-up is 10"),),
    )


def test_an_nsys_that_never_started_the_program_is_blamed():
    problem = "nsys failed before it started the program: no such option"
    records = [rank(0, status=1, pid=None, problem=problem, report=False)]
    found = verdict(records, expected=(0,), end=End(1))
    assert found.status == 2
    assert f"error: rank 0: {problem}" in said(found)
    assert "--nsys-arg" in said(found)


def test_a_command_that_failed_before_any_rank_is_blamed_itself():
    found = verdict([], end=End(1))
    assert found.status == 1
    assert "the job's command ended with status 1" in said(found)


@pytest.mark.parametrize(
    ("end", "words"),
    [
        (End(None, "timeout", 60.0), "it was still running after 60 s"),
        (End(None, "exit", 5.0), "its training loop was over, but it had not exited 5 s later"),
    ],
)
def test_a_time_limit_goes_before_the_status_that_it_caused(end, words):
    found = verdict([rank(0, status=143), rank(1, status=None, report=False)], end=end)
    assert found.status == 124
    assert words in said(found)
    assert "reports of 1 of 2 ranks" in said(found)


def test_an_interrupt_has_the_status_of_its_signal():
    found = verdict([rank(0, status=130)], end=End(130, "interrupt"))
    assert (found.status, found.lines[0]) == (130, "error: interrupted")
    found = verdict([rank(0, status=143)], end=End(143, "interrupt"))
    assert (found.status, found.lines[0]) == (143, "error: interrupted by SIGTERM")


def test_a_torchrun_that_had_to_be_ended_is_a_note_if_all_reports_are_there():
    found = verdict([rank(0), rank(1)], end=End(None, "command", 660.0))
    assert found.status == 0
    assert said(found).startswith("note: all ranks were over, but the job's command")
    assert "had not ended 660 s later: ended it" in said(found)


@pytest.mark.parametrize(
    ("capture_range", "words"),
    [
        ("cudaProfilerApi", "it never called cudaProfilerStart on a GPU"),
        ("nvtx", "it never began the NVTX range nsyspipe.capture"),
        ("none", "nsys wrote no report"),
    ],
)
def test_a_program_that_never_begins_is_shown_the_lines(capture_range, words):
    records = [rank(number, report=False, problem=EMPTY) for number in (0, 1)]
    found = verdict(records, capture_range=capture_range)
    assert found.status == 3
    assert words in said(found)
    assert "captured_steps" in said(found)


def test_a_partial_set_tells_each_reason():
    records = [rank(0), rank(1, report=False, problem=EMPTY)]
    found = verdict(records, expected=(0, 1, 2))
    assert found.status == 3
    assert "found: reports of 1 of 3 ranks: run_0.nsys-rep" in said(found)
    assert "  rank 1: nothing was captured\n  rank 2: no report\n" in said(found)


def test_ranks_that_never_came_are_not_said_to_lack_a_start():
    found = verdict([], expected=(0, 1))
    assert found.status == 3
    assert "cudaProfilerStart" not in said(found)
    assert "rank 0: no report" in said(found)


def test_of_many_ranks_a_few_are_named():
    found = verdict([rank(number) for number in range(10)], expected=range(20))
    assert "run_5.nsys-rep, … 4 more" in said(found)
    assert "  rank 15: no report\n  … 4 more" in said(found)
    assert "rank 16" not in said(found)
