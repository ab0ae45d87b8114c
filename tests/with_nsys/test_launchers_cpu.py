"""The launchers with a real nsys, without a GPU: reports, what analyze finds in them, and every way a job can go wrong."""

import contextlib
import os
import re
import signal
import sqlite3
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

import pytest

import nsyspipe
from nsyspipe.analysis.summary import host_figures, longest_between
from nsyspipe.capture.outcome import cut_short_text
from nsyspipe.capture.rank import NOT_STARTED
from nsyspipe.capture.status import Program
from tests.build.programs import program
from tests.golden.words import figures
from tests.launchers.fakes import TORCHRUN, ended, wait_for
from tests.with_nsys.launching import OWN, TINY, steps_of

pytestmark = pytest.mark.nsys


def run(machine, launcher, *words, **options):
    return machine.run(launcher, "--cpu", *words, timeout=90, **options)


def own(machine, launcher, *words, n=10, step_s=0.01, ending=""):
    machine.put_program(OWN.format(n=n, step_s=step_s) + ending)
    return run(machine, launcher, "--program", "train.py", *words)


def test_two_ranks_that_hang_at_their_end_are_captured_exported_and_analyzed(machine, tmp_path):
    deep = tmp_path / ("d" * 60)
    deep.mkdir()
    machine.variables["TMPDIR"] = str(deep)
    # The workers are of a data loader, which makes sockets below its temporary directory. What
    # torch does while it is imported are thousands of calls of the operating system: not traced.
    words = ("-n", "2", "-o", "a/run", "--trace", "nvtx", "--linger", "2")
    program = ("--accumulate", "2", "--workers", "1", "--hang-at-exit")
    answer = run(machine, "ddp.sh", *words, *TINY, *program)
    assert answer.status == 124, answer.err
    assert answer.out.count("throughput: ") == 1
    assert "demonstration: --hang-at-exit: rank 0" in answer.out
    assert "2 s" in machine.refusal(answer)
    assert not list(deep.glob("nsyspipe-*"))
    found = machine.analysis("a/run_*.sqlite")
    # The two steps of the warm-up are not captured.
    assert steps_of(found) == {0: [2, 3, 4, 5], 1: [2, 3, 4, 5]}
    assert all(row["backward_ns"] > 0 for row in found["host_steps"])
    assert found["run"]["world_size"] == 2
    sidecar = machine.sidecar("a/run")
    assert (sidecar["ended_by"], sidecar["capture_range"]) == ("exit", "nvtx")
    assert sidecar["phase_names"] == ["data", "forward", "backward", "optimizer"]
    assert {row["pid"] for row in found["host_steps"]} == {row["pid"] for row in sidecar["ranks"]}
    assert [(row["rank"], row["report"], row["is_complete"]) for row in sidecar["ranks"]] == [
        (0, "run_0", True),
        (1, "run_1", True),
    ]
    # A step of two passes; nothing else is in the reports.
    step = ["data", "forward", "backward", "forward", "backward", "optimizer"]
    for rank in (0, 1):
        expected = [
            "nsyspipe.capture",
            *(text for n in range(2, 6) for text in (f"step {n}", *step)),
        ]
        assert ranges(machine.work / "a" / f"run_{rank}.sqlite") == expected, rank


def ranges(report):
    query = (
        "SELECT coalesce(text, value) FROM NVTX_EVENTS LEFT JOIN StringIds ON id = textId"
        ' WHERE eventType IN (59, 60) AND "end" IS NOT NULL ORDER BY start'
    )
    with contextlib.closing(sqlite3.connect(f"file:{report}?mode=ro", uri=True)) as database:
        return [text for (text,) in database.execute(query)]


def put_torchrun(machine):
    """Put a torchrun that starts ranks as the real one, and does not import torch first."""
    program(machine.root / "bin", "torchrun", "").write_text(TORCHRUN)
    python = program(machine.root / "bin", "python3", f'exec "{sys.executable}" "$@"')
    machine.variables["PYTHON"] = str(python)  # beside which launchers look for torchrun


def test_one_of_two_ranks_unexported_is_analyzed(machine):
    put_torchrun(machine)
    answer = own(machine, "ddp.sh", "-n", "2", "-o", "run", "--ranks", "1", "--no-export")
    assert answer.status == 0, answer.err
    assert [name for name in machine.files() if name.startswith("run")] == [
        "run.capture.json",
        "run_1.nsys-rep",
    ]
    assert steps_of(machine.analysis("run_1.nsys-rep")) == {1: [1, 2, 3]}
    assert "run_1.sqlite" not in machine.files()


def test_a_crash_mid_capture_passes_its_status_on_and_keeps_what_was_captured(machine):
    answer = own(machine, "baseline.sh", step_s="0.3 if item < 3 else 1 // 0")
    assert answer.status == 1
    assert "ZeroDivisionError" in answer.err
    assert re.search(r"^error: train\.py: rank 0 .*\b1\b", answer.err, re.MULTILINE)
    # Steps 1 and 2 were over when it failed in step 3.
    assert steps_of(machine.analysis("baseline_0.sqlite"))[0][:2] == [1, 2]


# Trains on after its capture, or hangs in its teardown: who looks on cannot tell. Rank 1 calls the
# profiler itself, and waits for its loader between its steps.
GOES_ON = """
import os, time
from nsyspipe.capture import annotate, captured_steps, start_capture, stop_capture
if os.environ.get("RANK", "0") == "0":
    for item in captured_steps(range(6), warmup=1, steps=3):
        with annotate("forward"): time.sleep(0.01)
else:
    start_capture()
    for n in range(30):
        time.sleep(0.05)
        with annotate("step", n), annotate("forward"): time.sleep(0.01)
    stop_capture()
print("captured", flush=True)
time.sleep({rest_s})
print("over", os.environ.get("A"))
"""


def test_any_program_is_ended_after_its_reports_if_somebody_asks_for_it(machine):
    put_torchrun(machine)
    machine.put_program(GOES_ON.format(rest_s=300))
    answer = run(
        machine, "ddp.sh", "-n", "2", "-o", "run", "--program", "train.py", "--linger", "2"
    )
    assert answer.status == 124, answer.err
    assert "2 s" in machine.refusal(answer)
    assert "over" not in answer.out
    found = machine.analysis("run_*.sqlite")
    assert steps_of(found) == {0: [1, 2, 3], 1: [*range(30)]}
    sidecar = machine.sidecar("run")
    assert sidecar["ended_by"] == "linger"
    assert {(row["is_complete"], row["problem"]) for row in sidecar["ranks"]} == {(True, None)}
    assert "capture-failed" not in [problem["code"] for problem in found["problems"]]
    # The time between steps is attributed to the loader.
    steps = [row for row in found["host_steps"] if row["rank"] == 1]
    between_ns = [
        after["host_start_ns"] - before["host_end_ns"] for before, after in pairwise(steps)
    ]
    assert min(between_ns) >= 50_000_000
    captured = nsyspipe.load(machine.work / "run_1.sqlite", jobs=1)
    assert longest_between(host_figures(captured.host_steps())).between_ns >= 50_000_000


def test_a_users_own_program_needs_three_lines_and_may_train_on_after_its_capture(machine):
    words = ("-o", "it's mine/a", "--trace=cuda,nvtx", "--nsys-arg=--env-var=A=b")
    machine.put_program(GOES_ON.format(rest_s=3))
    answer = run(machine, "baseline.sh", "--program", "train.py", *words)
    assert (answer.status, answer.out) == (0, "captured\nover b\n"), answer.err
    sidecar = machine.sidecar("it's mine/a")
    # nsys takes the option where there is no GPU, too.
    assert "--cuda-graph-trace=node" in sidecar["command"]
    assert (sidecar["ended_by"], sidecar["ranks"][0]["is_complete"]) == (None, True)
    found = machine.analysis("it's mine/a_0.sqlite")
    assert steps_of(found) == {0: [1, 2, 3]}
    assert all(row["forward_ns"] >= 10_000_000 for row in found["host_steps"])


def test_a_program_that_never_begins_is_told_how(machine):
    machine.put_program("print('done')")
    answer = run(machine, "baseline.sh", "--program", "train.py")
    assert (answer.status, answer.out) == (3, "done\n")
    assert "nsyspipe.capture" in machine.refusal(answer)
    assert machine.files() == []


def test_a_time_limit_in_mid_capture_keeps_the_report(machine):
    # Steps 1 and 2 of the three are over when step 3 begins to take a minute.
    answer = own(machine, "baseline.sh", "--timeout", "8", step_s="0.01 if item < 3 else 60")
    assert answer.status == 124
    assert machine.sidecar("baseline")["ended_by"] == "timeout"
    refusal = machine.refusal(answer)
    assert {"8", "1"} <= figures(refusal)
    assert "baseline_0.nsys-rep" in refusal
    assert steps_of(machine.analysis("baseline_0.sqlite"))[0][:2] == [1, 2]
    assert "Traceback" not in answer.err.partition("error:")[2]


def test_ctrl_c_in_mid_capture_keeps_the_report_and_leaves_nothing(machine):
    machine.put_program(
        "import pathlib\n"
        + OWN.format(n=10, step_s="1 if item < 3 else 60").replace(
            "        time.sleep", "        item == 3 and pathlib.Path('up').touch(); time.sleep"
        )
    )
    process = machine.start("ddp.sh", "--cpu", "-n", "2", "--program", "train.py")
    wait_for(machine.work / "up", timeout=40)
    time.sleep(
        2
        # what nsys has not taken from the program yet is lost, on a busy machine the last second or so
    )
    os.killpg(process.pid, signal.SIGINT)
    answer = ended(process, timeout=60)
    assert answer.status == 130
    assert [rank["report"] for rank in machine.sidecar("ddp-2gpu")["ranks"]] == [
        "ddp-2gpu_0",
        "ddp-2gpu_1",
    ]
    # Step 3 was cut off; nsys may write an end for it.
    assert {
        rank: steps[0] for rank, steps in steps_of(machine.analysis("ddp-2gpu_*.sqlite")).items()
    } == {0: 1, 1: 1}


def test_fewer_steps_than_asked_for_are_captured_and_reported(machine):
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        machine.variables["TMPDIR"] = folder
        answer = own(machine, "baseline.sh", n=3)
        assert answer.status == 0, answer.err
        assert list(Path(folder).iterdir()) == []
    problem = cut_short_text(
        Program(n_steps=3, n_captured_steps=2, warmup=1, steps_asked=3, epoch_steps=3)
    )
    assert f"note: rank 0: {problem}" in answer.err
    assert machine.sidecar("baseline")["ranks"][0]["problem"] == problem
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
    assert NOT_STARTED in answer.err
    assert "no-such-option" in answer.err.partition("error:")[2]
