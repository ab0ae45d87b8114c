"""Jobs that are ended: by a time limit, by a signal, with their launcher; nothing is left running, and reports are kept."""

from __future__ import annotations

import os
import shutil
import signal
import time

import pytest

import nsyspipe
from tests.launchers.fakes import LAUNCHERS, ended, wait_for
from tests.launchers.jobs import LOOP_OVER, STUBBORN, WAITING, ddp, starting


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
    words = ("--timeout", "4") if text == WAITING else ("--linger", "1")
    answer = ddp(machine, *words, text=text)
    assert answer.status == 124
    said = "still running after 4 s" if text == WAITING else "it had not exited 1 s later"
    assert said in answer.err
    assert "found: reports of 2 of 2 ranks" in answer.err
    assert "ddp-2gpu_1.sqlite" in machine.files()


# The report is there while the program still runs, as with --capture-range-end=stop.
EARLY = '"$@" & cp "$reports/$RANK.sqlite" "$out.nsys-rep"; wait $!'


@pytest.mark.slow
@pytest.mark.parametrize("text", [WAITING, STUBBORN], ids=["waiting", "stubborn"])
def test_any_program_is_ended_so_long_after_its_reports_if_somebody_asks_for_it(machine, text):
    machine.put_nsys(EARLY)
    answer = ddp(machine, "--linger", "1", text=text, timeout=60)
    assert answer.status == 124
    assert answer.err.splitlines()[-4:] == [
        "error: train.py: it was still running 1 s after its reports were complete: ended it, as --linger asks",
        "  found: reports of 2 of 2 ranks: ddp-2gpu_0.nsys-rep, ddp-2gpu_1.nsys-rep",
        "  fix: complete reports need no new capture; leave --linger out to let it train on",
        f"what was captured: nsyspipe analyze '{machine.work}/ddp-2gpu_*.sqlite'",
    ]
    sidecar = machine.sidecar("ddp-2gpu")
    assert sidecar["ended_by"] == "linger"
    assert [(row["is_complete"], row["problem"]) for row in sidecar["ranks"]] == [(True, None)] * 2
    # The program ended by a signal, and that says nothing of the capture.
    assert {row["status"] for row in sidecar["ranks"]} == {137 if text == STUBBORN else 143}
    run = nsyspipe.load(machine.work)
    assert "capture-failed" not in run.problems["code"].to_pylist()


@pytest.mark.slow
def test_a_program_trains_on_after_its_capture_unless_somebody_asks_for_its_end(machine):
    machine.put_nsys(EARLY)
    # Linger's own default is shortened, so that it would be seen.
    plan = (LAUNCHERS.parent / "nsyspipe" / "capture" / "plan.py").read_text()
    assert "_LINGER_S = 120.0" in plan
    site = machine.root / "site"
    machine.put_python("")
    (site / "sitecustomize.py").write_text(
        "import sys\n"
        "if 'nsyspipe.capture.job' in sys.orig_argv:\n"
        "    import nsyspipe.capture.plan as plan\n"
        "    plan._LINGER_S = 0.5\n"
    )
    text = WAITING.replace("60", "4") + "print('trained on')"
    answer = ddp(machine, text=text)
    assert (answer.status, answer.out) == (0, "trained on\n" * 2), answer.err
    sidecar = machine.sidecar("ddp-2gpu")
    assert sidecar["ended_by"] is None
    # What says that it is over is ended all the same.
    answer = ddp(machine, "--force", text=LOOP_OVER)
    assert answer.status == 124
    assert "its training loop was over" in answer.err
    assert machine.sidecar("ddp-2gpu")["ended_by"] == "exit"


@pytest.mark.slow
def test_a_rank_whose_report_is_not_there_yet_keeps_the_others(machine):
    machine.put_nsys(
        '"$@" & [ $RANK = 1 ] || cp "$reports/$RANK.sqlite" "$out.nsys-rep"; wait $!; '
        'cp "$reports/$RANK.sqlite" "$out.nsys-rep"'
    )
    answer = ddp(machine, "--linger", "1", "--timeout", "6", text=WAITING)
    assert "it was still running after 6 s" in answer.err
    sidecar = machine.sidecar("ddp-2gpu")
    assert sidecar["ended_by"] == "timeout"
    # That of rank 1 was made when its program had been ended.
    assert [row["is_complete"] for row in sidecar["ranks"]] == [True, False]


@pytest.mark.slow
def test_a_report_that_still_grows_is_not_whole(machine):
    machine.put_nsys(
        '"$@" & for i in 1 2 3 4 5 6 7 8 9 10 11 12; do echo part >> "$out.nsys-rep"; sleep 0.5; done; '
        'cp "$reports/$RANK.sqlite" "$out.nsys-rep"; touch made; wait $!'
    )
    answer = ddp(machine, "--linger", "1", n=1, text=WAITING)
    assert answer.status == 124
    assert (machine.work / "made").exists()
    assert machine.sidecar("ddp-1gpu")["ranks"][0]["is_complete"]


@pytest.mark.slow
def test_of_ranks_that_are_not_captured_none_waits_for_a_report(machine):
    machine.put_nsys(EARLY)
    answer = ddp(machine, "--linger", "1", "--ranks", "1", text=WAITING)
    assert answer.status == 124
    assert "found: reports of 1 of 1 ranks" in answer.err
    rows = machine.sidecar("ddp-2gpu")["ranks"]
    assert [row["is_complete"] for row in rows] == [None, True]


@pytest.mark.slow
def test_a_node_captured_as_a_whole_lingers_too(machine):
    machine.put_nsys('"$@" & cp "$reports/0.sqlite" "$out.nsys-rep"; wait $!')
    machine.put_program(WAITING)
    words = ["--cpu", "--nnodes", "2", "-n", "2", "--rdzv-endpoint", "h:1", "-o", "run", "--linger", "1"]
    answer = machine.run("node.sh", *words, "--program=train.py", "--node-rank=1", "--node-wide")
    assert answer.status == 124, answer.err
    sidecar = machine.sidecar("run.node1")
    assert sidecar["ended_by"] == "linger"
    assert [row["is_complete"] for row in sidecar["ranks"]] == [True, True]


@pytest.mark.slow
def test_an_nsys_that_hangs_after_the_program_is_ended(machine):
    machine.put_nsys('"$@"; [ $RANK = 0 ] && cp "$reports/$RANK.sqlite" "$out.nsys-rep" || sleep 60')
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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGQUIT])  # TERM and HUP: tests/capture/test_capture_job.py
def test_an_interrupted_job_ends_keeps_its_reports_and_leaves_nothing_running(machine, number):
    process = starting(machine)
    os.kill(process.pid, number)
    answer = ended(process)
    assert answer.status == 128 + number
    by = "" if number == signal.SIGINT else f" by {signal.Signals(number).name}"
    assert f"error: interrupted{by}\n  found: reports of 2 of 2 ranks" in answer.err
    assert answer.err.splitlines()[-1].startswith("what was captured: nsyspipe analyze ")
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
    assert answer.status == 143
    assert "error: interrupted by SIGTERM" in answer.err
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


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["ddp.sh", "baseline.sh"])
def test_what_a_killed_launcher_ran_ends_with_it(machine, launcher):
    machine.put_program(WAITING)
    process = machine.start(launcher, "--cpu", "--program", "train.py")
    wait_for(machine.work / "up_0")
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=20)
    deadline = time.monotonic() + 20
    while machine.left_behind() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert machine.left_behind() == {}
    # Its nsys has ended too, with a report.
    assert [name for name in machine.files() if name.endswith("_0.nsys-rep")]
    for folder in machine.temporary.glob("nsyspipe-*"):
        shutil.rmtree(folder)


@pytest.mark.slow
def test_ranks_whose_torchrun_was_killed_end(machine):
    process = starting(machine)
    (torchrun,) = [
        pid
        for pid, command in machine._running().items()
        if command.split()[2:3] == [str(machine.root / "bin" / "torchrun")]
    ]
    begin = time.monotonic()
    os.kill(torchrun, signal.SIGKILL)
    answer = ended(process)
    assert time.monotonic() - begin < 20
    assert answer.status == 143
    assert "found: reports of 2 of 2 ranks" in answer.err


@pytest.mark.slow
def test_an_agent_that_an_nsys_leaves_behind_is_ended(machine):
    machine.put_nsys("setsid sleep 55 & echo 'unrecognised option'; exit 1")
    begin = time.monotonic()
    answer = ddp(machine, n=1, timeout=25)
    assert answer.status == 2
    assert time.monotonic() - begin < 20


@pytest.mark.slow
def test_of_what_is_left_after_a_program_only_nsys_is_ended(machine):
    shutil.copy("/bin/sleep", machine.root / "bin" / "nsys-copy")
    machine.put_nsys(f'setsid {machine.root}/bin/nsys-copy 56 & "$@"; cp "$reports/0.sqlite" "$out.nsys-rep"')
    text = """
import subprocess
print(subprocess.Popen(["sleep", "57"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True).pid)
"""
    answer = ddp(machine, n=1, text=text, timeout=25)
    assert answer.status == 0, answer.err
    left = machine.left_behind()
    os.kill(int(answer.out), signal.SIGKILL)
    assert list(left) == [int(answer.out)]


@pytest.mark.slow
def test_an_nsys_that_has_missed_its_agent_is_started_once_more(machine):
    missed = "echo 'Connection to Agent lost: End of file'; exit 1"
    machine.put_nsys(f'[ -e again ] || {{ touch again; {missed}; }}; "$@"; cp "$reports/0.sqlite" "$out.nsys-rep"')
    answer = ddp(machine, n=1, text="print('ran')")
    assert (answer.status, answer.out) == (0, "ran\n"), answer.err
    machine.put_nsys(missed)
    answer = ddp(machine, "--force", n=1)
    assert answer.status == 2
    assert "  fix: start it again" in answer.err
