"""The launchers with a real nsys, without a GPU: reports, what analyze finds in them, and every way a job can go wrong."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import tempfile
import time
from itertools import pairwise
from pathlib import Path

import pytest

from tests.launchers.fakes import ended, wait_for
from tests.with_nsys.launching import OWN, TINY, endpoint, steps_of

pytestmark = pytest.mark.nsys


def run(machine, launcher, *words, **options):
    return machine.run(launcher, "--cpu", *words, timeout=90, **options)


def own(machine, launcher, *words, n=10, step_s=0.01, ending=""):
    machine.put_program(OWN.format(n=n, step_s=step_s) + ending)
    return run(machine, launcher, "--program", "train.py", *words)


def test_two_ranks_are_captured_exported_and_analyzed(machine):
    answer = run(machine, "ddp.sh", "-n", "2", "-o", "a/run", *TINY, "--accumulate", "2")
    assert answer.status == 0, answer.err
    found = machine.analysis("a/run_*.sqlite")
    # The two steps of the warm-up are not captured.
    assert steps_of(found) == {0: [2, 3, 4, 5], 1: [2, 3, 4, 5]}
    assert all(row["backward_ns"] > 0 for row in found["host_steps"])
    assert found["run"]["world_size"] == 2
    sidecar = machine.sidecar("a/run")
    assert sidecar["phase_names"] == ["data", "forward", "backward", "optimizer"]
    assert sidecar["capture_range"] == "nvtx"
    assert {row["pid"] for row in found["host_steps"]} == {row["pid"] for row in sidecar["ranks"]}
    assert [(row["rank"], row["report"]) for row in sidecar["ranks"]] == [(0, "run_0"), (1, "run_1")]
    # A step of two passes; nothing else is in the reports.
    step = ["data", "forward", "backward", "forward", "backward", "optimizer"]
    for rank in (0, 1):
        expected = ["nsyspipe.capture", *(text for n in range(2, 6) for text in (f"step {n}", *step))]
        assert ranges(machine.work / "a" / f"run_{rank}.sqlite") == expected

    again = run(machine, "ddp.sh", "-n", "2", "-o", "a/run", *TINY)
    assert again.status == 2
    assert "an earlier capture of this name is there" in again.err


def ranges(report):
    query = (
        "SELECT coalesce(text, value) FROM NVTX_EVENTS LEFT JOIN StringIds ON id = textId"
        ' WHERE eventType IN (59, 60) AND "end" IS NOT NULL ORDER BY start'
    )
    with contextlib.closing(sqlite3.connect(f"file:{report}?mode=ro", uri=True)) as database:
        return [text for (text,) in database.execute(query)]


def test_one_of_two_ranks_unexported_is_analyzed(machine):
    answer = own(machine, "ddp.sh", "-n", "2", "-o", "run", "--ranks", "1", "--no-export")
    assert answer.status == 0, answer.err
    assert [name for name in machine.files() if name.startswith("run")] == ["run.capture.json", "run_1.nsys-rep"]
    assert steps_of(machine.analysis("run_1.nsys-rep")) == {1: [1, 2, 3]}
    assert "run_1.sqlite" not in machine.files()


def test_the_baseline_is_one_rank_also_where_a_long_temporary_directory_leaves_little_room_for_sockets(
    machine, tmp_path
):
    deep = tmp_path / ("d" * 60)
    deep.mkdir()
    machine.variables["TMPDIR"] = str(deep)
    answer = run(machine, "baseline.sh", *TINY, "--workers", "2")  # of a data loader
    assert answer.status == 0, answer.err
    assert "throughput: " in answer.out
    assert steps_of(machine.analysis("baseline_0.sqlite")) == {0: [2, 3, 4, 5]}
    assert not list(deep.glob("nsyspipe-*"))


@pytest.mark.parametrize("is_node_wide", [False, True])
def test_two_nodes_capture_together(machine, is_node_wide):
    words = ["--cpu", "--nnodes", "2", "--rdzv-endpoint", endpoint(), "-o", "run"]
    words += ["--node-wide"] if is_node_wide else []
    machine.put_program(OWN.format(n=10, step_s=0.01))
    words += ["--program", "train.py"]
    nodes = [machine.start("node.sh", "--node-rank", node, *words) for node in ("0", "1")]
    answers = [ended(node, timeout=90) for node in nodes]
    assert [answer.status for answer in answers] == [0, 0], answers[0].err + answers[1].err
    names = ["run_node0", "run_node1"] if is_node_wide else ["run_0", "run_1"]
    assert [name for name in machine.files() if name.startswith("run")] == [
        *("run.node0.capture.json", "run.node1.capture.json"),
        *(f"{name}.{suffix}" for name in names for suffix in ("nsys-rep", "sqlite")),
    ]
    assert steps_of(machine.analysis("run_*.sqlite")) == {0: [1, 2, 3], 1: [1, 2, 3]}


def test_a_crash_mid_capture_passes_its_status_on_and_keeps_what_was_captured(machine):
    answer = run(machine, "baseline.sh", *TINY, "--crash-at", "4", "--crash-rank", "0")
    assert answer.status == 1
    assert "demonstration: --crash-at 4: rank 0 fails on purpose" in answer.err
    assert "error: train_vit.py: rank 0 ended with status 1; its own message stands" in answer.err
    assert "found: reports of " in answer.err
    # Steps 2 and 3 were over when it failed in step 4.
    assert steps_of(machine.analysis("baseline_0.sqlite"))[0][:2] == [2, 3]


def test_a_program_that_hangs_at_its_end_is_ended_with_complete_reports(machine):
    answer = run(machine, "baseline.sh", "--linger", "3", *TINY, "--hang-at-exit")
    assert answer.status == 124
    assert "demonstration: --hang-at-exit: rank 0 never ends now" in answer.out
    assert "its training loop was over, but it had not exited 3 s later" in answer.err
    assert "found: reports of 1 of 1 ranks" in answer.err
    assert steps_of(machine.analysis("baseline_0.sqlite")) == {0: [2, 3, 4, 5]}


# Trains on after its capture, or hangs in its teardown: who looks on cannot tell.
GOES_ON = """
import time
from nsyspipe.capture import annotate, captured_steps, start_capture, stop_capture
{loop}
print("captured", flush=True)
time.sleep({rest_s})
print("over")
"""
LOOPS = {
    "captured_steps": "for item in captured_steps(range(6), warmup=1, steps=3): time.sleep(0.01)",
    # As a user's own calls of the profiler.
    "start and stop": "start_capture()\nfor n in range(4):\n    with annotate('step', n): time.sleep(0.01)\nstop_capture()",
}


@pytest.mark.parametrize(("launcher", "loop"), [("ddp.sh", "start and stop"), ("baseline.sh", "captured_steps")])
def test_any_program_is_ended_after_its_reports_if_somebody_asks_for_it(machine, loop, launcher):
    machine.put_program(GOES_ON.format(loop=LOOPS[loop], rest_s=300))
    n = ["-n", "2"] if launcher == "ddp.sh" else []
    answer = run(machine, launcher, *n, "-o", "run", "--program", "train.py", "--linger", "3")
    assert answer.status == 124, answer.err
    assert "it was still running 3 s after its reports were complete: ended it" in answer.err
    assert "over" not in answer.out
    steps = steps_of(machine.analysis("run_*.sqlite"))
    wanted = [1, 2, 3] if loop == "captured_steps" else [0, 1, 2, 3]
    assert steps == dict.fromkeys(range(len(n) or 1), wanted)
    sidecar = machine.sidecar("run")
    assert sidecar["ended_by"] == "linger"
    assert {(row["is_complete"], row["problem"]) for row in sidecar["ranks"]} == {(True, None)}
    assert "cut short" not in machine.nsyspipe("analyze", "run_*.sqlite")


@pytest.mark.parametrize("is_limited", [False, True])
def test_a_program_may_train_on_after_its_capture_and_its_end_does_not_make_that_cut_short(machine, is_limited):
    machine.put_program(GOES_ON.format(loop=LOOPS["captured_steps"], rest_s=300 if is_limited else 4))
    answer = run(machine, "baseline.sh", "--program", "train.py", *(["--timeout", "12"] if is_limited else []))
    assert answer.status == (124 if is_limited else 0), answer.err
    assert answer.out == "captured\n" + ("" if is_limited else "over\n")
    sidecar = machine.sidecar("baseline")
    assert (sidecar["ended_by"], sidecar["ranks"][0]["is_complete"]) == ("timeout" if is_limited else None, True)
    assert steps_of(machine.analysis("baseline_0.sqlite")) == {0: [1, 2, 3]}


def test_cuda_graphs_are_traced_by_node_as_this_nsys_knows(machine):
    machine.put_program("pass")
    words = ("--program", "train.py", "--dry-run")
    answer = machine.run("baseline.sh", *words, timeout=90)
    assert "--cuda-graph-trace=node" in answer.out
    answer = machine.run("baseline.sh", *words, "--cuda-graph-trace", "graph", timeout=90)
    assert "--cuda-graph-trace=graph" in answer.out
    # nsys takes the option where there is no GPU, too.
    program = ("--program", "train.py", "--capture-range", "none", "--trace", "cuda,nvtx")
    answer = run(machine, "baseline.sh", *program, "--no-export")
    assert answer.status == 0, answer.err
    assert "--cuda-graph-trace=node" in machine.sidecar("baseline")["command"]


def test_a_users_own_program_needs_three_lines(machine):
    ending = "import os; print(os.environ['A'])"
    words = ("-o", "it's mine/a", "--trace=nvtx", "--nsys-arg=--env-var=A=b")
    answer = own(machine, "baseline.sh", *words, ending=ending)
    assert (answer.status, answer.out) == (0, "b\n"), answer.err
    found = machine.analysis("it's mine/a_0.sqlite")
    assert steps_of(found) == {0: [1, 2, 3]}
    assert all(row["forward_ns"] >= 10_000_000 for row in found["host_steps"])


def test_a_program_that_never_begins_is_told_how(machine):
    machine.put_program("print('done')")
    answer = run(machine, "baseline.sh", "--program", "train.py")
    assert (answer.status, answer.out) == (3, "done\n")
    assert "it never began the NVTX range nsyspipe.capture" in answer.err
    assert machine.files() == []


def test_a_time_limit_in_mid_capture_keeps_the_report(machine):
    # Steps 1 and 2 of the three are over when step 3 begins to take a minute.
    answer = own(machine, "baseline.sh", "--timeout", "8", step_s="0.01 if item < 3 else 60")
    assert answer.status == 124
    assert "it was still running after 8 s" in answer.err
    assert "found: reports of 1 of 1 ranks: baseline_0.nsys-rep" in answer.err
    assert steps_of(machine.analysis("baseline_0.sqlite"))[0][:2] == [1, 2]
    assert "Traceback" not in answer.err.partition("error:")[2]


def test_ctrl_c_in_mid_capture_keeps_the_report_and_leaves_nothing(machine):
    machine.put_program(
        "import pathlib\n" + OWN.format(n=10, step_s="1 if item < 3 else 60")
        .replace("        time.sleep", "        item == 3 and pathlib.Path('up').touch(); time.sleep")
    )  # fmt: skip
    process = machine.start("ddp.sh", "--cpu", "-n", "2", "--program", "train.py")
    wait_for(machine.work / "up", timeout=40)
    time.sleep(2)  # what nsys has not taken from the program yet is lost, on a busy machine the last second or so
    os.killpg(process.pid, signal.SIGINT)
    answer = ended(process, timeout=60)
    assert answer.status == 130
    assert "found: reports of 2 of 2 ranks" in answer.err
    # Step 3 was cut off; nsys may write an end for it.
    found = steps_of(machine.analysis("ddp-2gpu_*.sqlite"))
    assert {rank: steps[0] for rank, steps in found.items()} == {0: 1, 1: 1}


def test_fewer_steps_than_asked_for_are_captured_and_told_also_from_another_file_system(machine):
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        machine.variables["TMPDIR"] = folder
        answer = own(machine, "baseline.sh", n=3)
        assert answer.status == 0, answer.err
        assert list(Path(folder).iterdir()) == []
    said = "2 of 3 steps were captured: its loop ended after 3 steps, the warm-up is 1"
    assert f"note: rank 0: {said}" in answer.err
    assert machine.sidecar("baseline")["ranks"][0]["problem"] == said
    assert steps_of(machine.analysis("baseline_0.sqlite")) == {0: [1, 2]}


def test_a_report_whose_place_was_taken_meanwhile_is_kept_beside_it(machine):
    taking = "import pathlib; pathlib.Path('baseline_0.nsys-rep').write_text('other')\n"
    machine.put_program(taking + OWN.format(n=10, step_s=0))
    answer = run(machine, "baseline.sh", "--program", "train.py")
    assert answer.status == 3
    (kept,) = machine.work.glob("baseline.kept-*_0.nsys-rep")
    assert f"which is kept: {kept.name}" in answer.err
    assert (machine.work / "baseline_0.nsys-rep").read_text() == "other"
    assert steps_of(machine.analysis(kept.name)) == {0: [1, 2, 3]}


def test_an_option_that_nsys_does_not_know_is_its_fault(machine):
    answer = own(machine, "baseline.sh", "--nsys-arg=--no-such-option")
    assert answer.status == 2
    assert "nsys failed before it started the program" in answer.err
    assert "no-such-option" in answer.err.partition("error:")[2]


SLEEPING_LOADER = """
import time
from nsyspipe.capture import annotate, start_capture, stop_capture
start_capture()
for number in range(30):
    time.sleep(0.05)
    with annotate(f"step {number}"):
        with annotate("forward"):
            time.sleep(0.01)
stop_capture()
"""


def test_what_passes_between_steps_outside_of_every_range_is_said_to_be_the_loaders(machine):
    machine.put_program(SLEEPING_LOADER)
    answer = run(machine, "baseline.sh", "--program", "train.py", "-o", "run")
    assert answer.status == 0, answer.err
    steps = machine.analysis("run_0.sqlite")["host_steps"]
    assert len(steps) == 30
    between = [after["host_start_ns"] - before["host_end_ns"] for before, after in pairwise(steps)]
    assert min(between) >= 50_000_000
    said = " ".join(machine.nsyspipe("analyze", "run_0.sqlite").split())
    assert "outside of every step: probably in the data loader." in said
