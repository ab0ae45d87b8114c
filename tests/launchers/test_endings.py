"""How captured jobs end, well and badly, with a fake nsys and torchrun: what is said, what is left, which status."""

from __future__ import annotations

import os
import signal
import time

import pytest

from nsyspipe.programs import find_nsys
from tests.launchers.fakes import ended, wait_for

# Says where it is, and goes on until it is told to end.
WAITING = """
import os, pathlib, time
pathlib.Path("up_" + os.environ.get("RANK", "0")).touch()
time.sleep(60)
"""
# As WAITING, but ends only when it is killed.
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + WAITING
# As the training program says it, once its loop is over.
LOOP_OVER = """
import json, os, pathlib, time
path = pathlib.Path(os.environ["NSYSPIPE_STATUS_DIR"], f"ranges_{os.environ.get('RANK', 0)}.json")
path.write_text(json.dumps({"loop_ended": True}))
time.sleep(60)
"""
CRASHING = """
import os, sys, time
if os.environ["RANK"] == "1":
    sys.exit(41)
time.sleep(60)
"""


def ddp(machine, *words, n=2, text="pass", **options):
    machine.put_program(text)
    return machine.run("ddp.sh", "--cpu", "-n", str(n), "--program", "train.py", *words, **options)


def starting(machine, *words, text=WAITING, n=2):
    """Start a job and return once its ranks have."""
    machine.put_program(text)
    process = machine.start("ddp.sh", "--cpu", "-n", str(n), "--program", "train.py", *words)
    for rank in range(n):
        wait_for(machine.work / f"up_{rank}")
    return process


def test_a_job_that_ends_well_leaves_reports_exports_and_a_sidecar(machine):
    answer = ddp(machine, "-o", "a/b/run")
    assert answer.status == 0, answer.err
    assert sorted(path.name for path in (machine.work / "a" / "b").iterdir()) == [
        *("run.capture.json", "run_0.nsys-rep", "run_0.sqlite", "run_1.nsys-rep", "run_1.sqlite"),
    ]
    sidecar = machine.sidecar("a/b/run")
    assert (sidecar["world_size"], sidecar["trace"]) == (2, ["nvtx", "osrt"])
    assert (sidecar["nsys_version"], sidecar["capture_range"]) == ("2024.2.3.38", "nvtx")
    told = [(row["rank"], row["report"], row["status"]) for row in sidecar["ranks"]]
    assert told == [(0, "run_0", 0), (1, "run_1", 0)]
    assert f"nsyspipe analyze '{machine.work}/a/b/run_*.sqlite'" in answer.err


def test_what_the_program_prints_goes_where_it_belongs(machine):
    answer = ddp(machine, n=1, text="import sys; print('out'); print('err', file=sys.stderr)")
    assert answer.out == "out\n"
    assert "err\n" in answer.err


def test_without_export_only_reports_are_left(machine):
    answer = ddp(machine, "--no-export")
    assert answer.status == 0
    assert machine.files() == [
        "ddp-2gpu.capture.json",
        "ddp-2gpu_0.nsys-rep",
        "ddp-2gpu_1.nsys-rep",
    ]
    assert "ddp-2gpu_*.nsys-rep" in answer.err


def test_only_chosen_ranks_are_captured_and_all_run(machine):
    machine.put_nsys("echo captured $RANK; " + 'touch "captured_$RANK"; "$@"; : > "$out.nsys-rep"')
    answer = ddp(machine, "--ranks", "0-1,3", "--no-export", n=4, text="print('ran')")
    assert answer.status == 0, answer.err
    assert answer.out == "ran\n" * 4
    assert [name for name in machine.files() if name.startswith("captured")] == [
        *("captured_0", "captured_1", "captured_3")
    ]
    rows = {row["rank"]: row["report"] for row in machine.sidecar("ddp-4gpu")["ranks"]}
    assert rows == {0: "ddp-4gpu_0", 1: "ddp-4gpu_1", 2: None, 3: "ddp-4gpu_3"}


@pytest.mark.parametrize("ranks", ["2", "0,7", "1-3"])
def test_ranks_that_the_job_does_not_have_are_refused(machine, ranks):
    answer = ddp(machine, "--ranks", ranks)
    assert answer.status == 2
    assert "--ranks: there is no rank" in answer.err
    assert "this job's are 0 to 1" in answer.err
    assert machine.files() == []


@pytest.mark.parametrize("ranks", ["3-1", "0-99999999999"])
def test_ranges_of_ranks_that_make_no_sense_are_refused(machine, ranks):
    assert ddp(machine, "--ranks", ranks).status == 2
    assert machine.files() == []


@pytest.mark.slow
def test_an_earlier_capture_stays_unless_forced(machine):
    assert ddp(machine).status == 0
    before = (machine.work / "ddp-2gpu_0.sqlite").stat().st_mtime_ns
    answer = ddp(machine)
    assert answer.status == 2
    assert "an earlier capture of this name is there" in answer.err
    assert "--force" in answer.err
    assert (machine.work / "ddp-2gpu_0.sqlite").stat().st_mtime_ns == before
    assert ddp(machine, "--force").status == 0
    assert (machine.work / "ddp-2gpu_0.sqlite").stat().st_mtime_ns > before


def test_force_removes_all_ranks_of_this_name_and_nothing_else(machine):
    own = ["run_0.nsys-rep", "run_7.sqlite", "run_7.qdstrm", "run_node0.nsys-rep", "run.topo.txt"]
    own += ["run.nccl.host.77.log", "run.node1.capture.json"]
    others = ["run-view_0.nsys-rep", "run_0_0.sqlite", "run_0.capture.json", "run_x.sqlite"]
    others += ["run.txt", "run.nccl.txt", "run_0.nsys-rep.bak", "rerun_0.sqlite", "run"]
    for name in own + others:
        (machine.work / name).write_text("old")
    assert ddp(machine, "-o", "run", "--force", "--no-export", n=1).status == 0
    assert machine.files() == sorted([*others, "run.capture.json", "run_0.nsys-rep"])
    assert all((machine.work / name).read_text() == "old" for name in others)


def test_the_status_of_the_program_is_passed_on(machine):
    machine.put_program("raise SystemExit(7)")
    answer = machine.run("baseline.sh", "--cpu", "--program", "train.py")
    assert answer.status == 7
    assert "train.py: rank 0 ended with status 7" in answer.err
    assert "baseline_0.sqlite" in machine.files()


def test_of_several_ranks_the_one_that_failed_first_is_named(machine):
    answer = ddp(machine, text=CRASHING)
    assert answer.status == 41
    assert "train.py: rank 1 ended with status 41; its own message stands above" in answer.err
    assert "found: reports of 2 of 2 ranks" in answer.err
    assert "rank 0" not in answer.err


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGKILL", "SIGABRT"])
def test_a_program_that_a_signal_ended_is_said_to(machine, name):
    machine.put_program(f"import os, signal; os.kill(os.getpid(), signal.{name})")
    answer = machine.run("baseline.sh", "--cpu", "--program", "train.py")
    assert answer.status == 128 + signal.Signals[name]
    assert f"rank 0 was ended by {name}" in answer.err


def test_a_program_that_never_begins_the_capture_is_told_how(machine):
    machine.put_nsys('"$@"')
    answer = ddp(machine)
    assert answer.status == 3
    assert "it never began the NVTX range nsyspipe.capture" in answer.err
    assert "captured_steps" in answer.err
    assert machine.files() == []


def test_a_partial_set_of_reports_names_the_ranks_that_lack_one(machine):
    machine.put_nsys('"$@"; [ $RANK = 1 ] || cp "$reports/$RANK.sqlite" "$out.nsys-rep"')
    answer = ddp(machine, n=3)
    assert answer.status == 3
    assert "the set of reports is partial" in answer.err
    assert "found: reports of 2 of 3 ranks" in answer.err
    assert "rank 1: nothing was captured" in answer.err
    assert "ddp-3gpu_2.sqlite" in machine.files()


def test_an_nsys_that_fails_before_the_program_is_blamed_itself(machine):
    machine.put_nsys("echo 'unrecognised option --foo' ; echo bye; exit 1")
    answer = ddp(machine)
    assert answer.status == 2
    assert "nsys failed before it started the program" in answer.err
    assert "mend the program" not in answer.err
    assert "fix: check --trace and --nsys-arg" in answer.err


def test_an_nsys_that_cannot_write_its_report_says_why(machine):
    machine.put_nsys("echo Failed to create it: No space left; "
                     '"$@"; : > "$TMPDIR/nsys-report-1.nsys-rep"; echo Generated:')  # fmt: skip
    answer = ddp(machine, n=1)
    assert answer.status == 3
    assert "nsys could not write its report: Failed to create it: No space left" in answer.err


def test_a_capture_that_nsys_did_not_turn_into_a_report_is_kept(machine):
    machine.put_nsys('"$@"; echo raw > "$TMPDIR/x.qdstrm"')
    answer = ddp(machine, n=1)
    assert answer.status == 3
    assert "which is kept: ddp-1gpu_0.qdstrm" in answer.err
    assert (machine.work / "ddp-1gpu_0.qdstrm").read_text() == "raw\n"


def test_an_export_that_fails_keeps_the_reports_and_says_so(machine):
    machine.put_nsys(export="echo Error: broken >&2; exit 5")
    answer = ddp(machine)
    assert answer.status == 3
    assert "nsys export fails with status 5" in answer.err
    assert machine.files() == [
        "ddp-2gpu.capture.json",
        "ddp-2gpu_0.nsys-rep",
        "ddp-2gpu_1.nsys-rep",
    ]
    assert "ddp-2gpu_*.nsys-rep" in answer.err
    assert "ddp-2gpu_*.sqlite" not in answer.err


def test_a_torchrun_that_fails_before_the_ranks_is_said_to(machine):
    (machine.root / "bin" / "torchrun.broken").touch()
    answer = ddp(machine)
    assert answer.status == 1
    assert "fake torchrun: cannot connect" in answer.err
    assert "the job's command ended with status 1; its own message stands above" in answer.err


@pytest.mark.skipif(
    find_nsys(search_path="/nowhere") is not None, reason="an nsys is in a usual place"
)
def test_without_nsys_one_message_says_what_to_do(machine):
    (machine.root / "bin" / "nsys").unlink()
    answer = ddp(machine)
    assert answer.status == 2
    assert answer.err.splitlines()[0].startswith("error: nsys: is not on PATH")
    assert "fix: install Nsight Systems" in answer.err
    assert machine.files() == []


def test_without_nsys_a_job_runs_unprofiled(machine):
    (machine.root / "bin" / "nsys").unlink()
    answer = ddp(machine, "--no-profile", text="print('ran')")
    assert (answer.status, answer.out) == (0, "ran\nran\n")
    assert machine.files() == []


@pytest.mark.slow
def test_an_unprofiled_job_does_not_wait_for_what_its_program_left_in_the_background(machine):
    text = """
import subprocess
print(subprocess.Popen(["sleep", "20"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).pid)
"""
    begin = time.monotonic()
    answer = ddp(machine, "--no-profile", n=1, text=text, timeout=15)
    os.kill(int(answer.out), signal.SIGKILL)
    assert answer.status == 0
    assert time.monotonic() - begin < 10


@pytest.mark.slow
@pytest.mark.parametrize("text", [WAITING, LOOP_OVER])
def test_a_time_limit_ends_the_job_and_keeps_its_reports(machine, text):
    words = ("--timeout", "1") if text == WAITING else ("--linger", "1")
    answer = ddp(machine, *words, text=text)
    assert answer.status == 124
    said = "still running after 1 s" if text == WAITING else "it had not exited 1 s later"
    assert said in answer.err
    assert "found: reports of 2 of 2 ranks" in answer.err
    assert "ddp-2gpu_1.sqlite" in machine.files()


@pytest.mark.slow
def test_an_nsys_that_hangs_after_the_program_is_ended(machine):
    machine.put_nsys(
        '"$@"; [ $RANK = 0 ] && cp "$reports/$RANK.sqlite" "$out.nsys-rep" || sleep 60'
    )
    answer = ddp(machine, "--exit-timeout", "1")
    assert answer.status == 3
    assert "rank 1: nsys had not ended 1 s after the program: ended it" in answer.err
    assert "ddp-2gpu_0.sqlite" in machine.files()


@pytest.mark.slow
def test_an_nsys_that_hangs_and_ignores_its_end_is_killed(machine):
    machine.put_nsys("trap '' TERM INT HUP; \"$@\"; sleep 60; sleep 60")
    answer = ddp(machine, "--exit-timeout", "1", n=1)
    assert answer.status == 3
    assert "nsys had not ended" in answer.err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_an_interrupted_job_ends_keeps_its_reports_and_leaves_nothing_running(machine, number):
    process = starting(machine)
    os.kill(process.pid, number)
    answer = ended(process)
    assert answer.status == 130
    assert "error: interrupted\n  found: reports of 2 of 2 ranks" in answer.err
    assert "Traceback" not in answer.err
    assert "ddp-2gpu_1.sqlite" in machine.files()


@pytest.mark.slow
def test_a_second_interrupt_does_not_wait(machine):
    machine.put_nsys("trap '' TERM INT HUP; \"$@\"; sleep 60; sleep 60")
    process = starting(machine, text=STUBBORN)
    os.kill(process.pid, signal.SIGINT)
    time.sleep(0.5)
    os.kill(process.pid, signal.SIGINT)
    begin = time.monotonic()
    answer = ended(process, timeout=40)
    assert answer.status == 130
    assert time.monotonic() - begin < 15
    assert "Traceback" not in answer.err


@pytest.mark.slow
def test_an_interrupted_export_leaves_nothing_half_written(machine):
    machine.put_nsys(export='touch exporting; echo half > "$out"; sleep 60')
    machine.put_program("pass")
    process = machine.start("ddp.sh", "--cpu", "--program", "train.py")
    deadline = time.monotonic() + 15
    while not list(machine.work.rglob("exporting")) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGTERM)
    answer = ended(process)
    assert answer.status == 130
    assert "error: interrupted" in answer.err
    assert "nsyspipe convert" in answer.err
    assert "Traceback" not in answer.err
    assert machine.files() == ["ddp-1gpu.capture.json", "ddp-1gpu_0.nsys-rep"]


@pytest.mark.slow
def test_nohup_is_respected(machine):
    machine.put_program(WAITING.replace("60", "1"))
    process = machine.start(
        "ddp.sh", "--cpu", "--program", "train.py",
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    )  # fmt: skip
    wait_for(machine.work / "up_0")
    os.kill(process.pid, signal.SIGHUP)
    assert ended(process).status == 0


@pytest.mark.slow
def test_a_rank_whose_supervisor_was_killed_is_cleaned_up(machine):
    process = starting(machine, text=STUBBORN)
    supervisors = machine.pids("nsyspipe.capture.rank")
    assert len(supervisors) == 2
    for pid in supervisors:
        os.kill(pid, signal.SIGKILL)
    time.sleep(0.5)
    os.kill(process.pid, signal.SIGINT)
    os.kill(process.pid, signal.SIGINT)
    assert ended(process, timeout=40).status == 130


def test_stale_ranks_of_a_job_around_do_not_make_the_baseline_one(machine):
    machine.variables |= {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "3"}
    machine.put_program("import os; print(os.environ.get('RANK'))")
    answer = machine.run("baseline.sh", "--cpu", "--program", "train.py")
    assert (answer.status, answer.out) == (0, "None\n")
    assert machine.sidecar("baseline")["ranks"][0]["rank"] == 0


@pytest.mark.slow
def test_two_nodes_share_a_directory_and_keep_to_their_own(machine):
    machine.put_program("pass")
    words = ["--cpu", "--nnodes", "2", "-n", "2", "--rdzv-endpoint", "h:1", "-o", "run"]
    words += ["--program", "train.py"]
    for node in ("0", "1"):
        assert machine.run("node.sh", *words, "--node-rank", node).status == 0
    assert [name for name in machine.files() if not name.endswith("sqlite")] == [
        *("run.node0.capture.json", "run.node1.capture.json"),
        *(f"run_{rank}.nsys-rep" for rank in range(4)),
    ]
    before = (machine.work / "run_0.nsys-rep").stat().st_ino
    assert machine.run("node.sh", *words, "--node-rank", "1").status == 2
    assert machine.run("node.sh", *words, "--node-rank", "1", "--force").status == 0
    assert (machine.work / "run_0.nsys-rep").stat().st_ino == before


def test_a_node_wide_capture_leaves_one_report_for_its_ranks(machine):
    machine.put_program("pass")
    words = ["--cpu", "--nnodes", "2", "-n", "2", "--rdzv-endpoint", "h:1", "-o", "run"]
    answer = machine.run("node.sh", *words, "--program=train.py", "--node-rank=1", "--node-wide")
    assert answer.status == 0, answer.err
    assert machine.files() == ["run.node1.capture.json", "run_node1.nsys-rep", "run_node1.sqlite"]
    rows = [(row["rank"], row["report"]) for row in machine.sidecar("run.node1")["ranks"]]
    assert rows == [(2, "run_node1"), (3, "run_node1")]


def test_a_report_that_was_there_is_not_taken_for_this_jobs(machine):
    # A rendezvous that deals out the ranks: nobody knows before which files a node will write.
    machine.put_nsys('[ -e "$out.nsys-rep" ] || exit 9; "$@"')
    (machine.work / "run_0.nsys-rep").write_text("old")
    machine.put_program("pass")
    words = ["--cpu", "--nnodes=2", "--node-rank=0", "--rdzv-endpoint=h:1", "--rdzv-backend=c10d"]
    answer = machine.run("node.sh", *words, "-o", "run", "--program", "train.py")
    assert answer.status == 3
    assert machine.files() == ["run_0.nsys-rep"]
