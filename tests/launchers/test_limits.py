"""Jobs that are ended by a signal or with their launcher: nothing is left running, and reports are kept."""

from __future__ import annotations

import os
import shutil
import signal
import time

import pytest

from nsyspipe.capture import plan
from tests.launchers.fakes import ended, wait_for
from tests.launchers.jobs import EARLY, HANGS, LOOP_OVER, STUBBORN, WAITING, ddp, starting


@pytest.mark.slow
def test_an_unprofiled_job_does_not_wait_for_what_its_program_left_in_the_background(machine):
    text = """
import subprocess
print(subprocess.Popen(["sleep", "20"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).pid)
"""
    answer = ddp(machine, "--no-profile", n=1, text=text, timeout=15)  # less than that takes
    os.kill(int(answer.out), signal.SIGKILL)
    assert answer.status == 0


@pytest.mark.slow
def test_a_program_trains_on_after_its_capture_unless_somebody_asks_for_its_end(machine):
    machine.put_nsys(EARLY)
    assert plan._LINGER_S == 120  # its own default is shortened, so that it would be seen
    machine.put_patience("nsyspipe.capture.plan", _LINGER_S=0.5)
    text = WAITING.replace("60", "4") + "print('trained on')"
    answer = ddp(machine, text=text)
    assert (answer.status, answer.out) == (0, "trained on\n" * 2), answer.err
    assert machine.sidecar("ddp-2gpu")["ended_by"] is None
    # What says that it is over is ended all the same.
    answer = ddp(machine, "--force", text=LOOP_OVER)
    assert answer.status == 124
    assert "its training loop was over" in answer.err
    assert machine.sidecar("ddp-2gpu")["ended_by"] == "exit"


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
    machine.put_nsys(HANGS)
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
    machine.put_nsys(export=f'touch {machine.root}/exporting; echo half > "$out"; sleep 60')
    machine.put_program("pass")
    process = machine.start("ddp.sh", "--cpu", "--program", "train.py")
    wait_for(machine.root / "exporting")
    os.kill(process.pid, signal.SIGTERM)
    answer = ended(process)
    assert answer.status == 143
    assert "error: interrupted by SIGTERM" in answer.err
    assert "nsyspipe convert" in answer.err
    assert "Traceback" not in answer.err
    assert machine.files() == ["ddp-1gpu.capture.json", "ddp-1gpu_0.nsys-rep"]


@pytest.mark.slow
def test_nohup_is_respected(machine):
    nohup = {"preexec_fn": lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)}
    process = starting(machine, text=WAITING.replace("60", "1"), n=1, **nohup)
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
    process = starting(machine, n=1, launcher=launcher)
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
    name = str(machine.root / "bin" / "torchrun")
    (torchrun,) = [pid for pid, command in machine._running().items() if command.split()[2:3] == [name]]
    begin = time.monotonic()
    os.kill(torchrun, signal.SIGKILL)
    answer = ended(process)
    assert time.monotonic() - begin < 20
    assert answer.status == 143
    assert "found: reports of 2 of 2 ranks" in answer.err


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
