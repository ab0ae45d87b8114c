"""A sweep that goes on where it stopped, mixes nothing up, and ends when it is asked to."""

from __future__ import annotations

import os
import signal

import pytest

from tests.launchers.fakes import ended, wait_for
from tests.launchers.sweeping import sweep


@pytest.mark.slow
def test_a_run_that_fails_does_not_stop_the_others_and_is_made_again(lab):
    (lab.work / "broken").write_text("view")
    words = ("--cpu", "-o", "study", "--only", "^ddp-2gpu(-view|-static)?$", "--", "--lr", "1")
    answer = sweep(lab, *words)
    assert answer.status == 1
    assert "== ddp-2gpu-view: failed with status 9; the sweep goes on" in answer.err
    assert "error: 1 of 3 runs failed: ddp-2gpu-view" in answer.err
    assert sorted(path.stem for path in (lab.work / "study").glob("*.done")) == [
        *("ddp-2gpu", "ddp-2gpu-static"),
    ]
    (lab.work / "broken").unlink()
    (lab.work / "log").unlink()
    again = sweep(lab, *words)
    assert again.status == 0, again.err
    assert "== ddp-2gpu: done before" in again.err
    ran = (lab.work / "log").read_text().splitlines()
    assert sorted(ran) == [
        f"{rank} - --gradient-as-bucket-view --json study/ddp-2gpu-view.train.json --lr 1"
        for rank in (0, 1)
    ]


@pytest.mark.slow
def test_runs_with_other_options_are_not_mixed(lab):
    words = ("--cpu", "-o", "study", "--only", "^baseline$")
    assert sweep(lab, *words, "--", "--lr", "1").status == 0
    answer = sweep(lab, *words, "--", "--lr", "2")
    assert answer.status == 2
    assert "error: study/baseline: was done with other options" in answer.err
    assert "--lr 1" in answer.err


@pytest.mark.slow
@pytest.mark.parametrize("other", ["--trace", "--nsys", "NCCL_P2P_LEVEL", "GPU"])
def test_nor_are_those_of_another_trace_nsys_or_machine(lab, other):
    words = ("-o", "study", "--only", "^baseline-unprofiled$")
    lab.put_gpus(1)
    assert sweep(lab, *words).status == 0
    if other == "--trace":
        words += ("--trace", "nvtx")
    elif other == "--nsys":
        words += ("--nsys", str(lab.put_nsys(name="nsys2")))
    elif other == "GPU":
        smi = lab.root / "bin" / "nvidia-smi"
        smi.write_text(smi.read_text().replace("H200", "H100"))
    else:
        lab.variables[other] = "LOC"
    answer = sweep(lab, *words)
    assert answer.status == 2
    assert "was done with other options or GPUs" in answer.err


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["baseline_0.sqlite", "baseline.capture.json", "baseline.train.json"]
)
def test_files_that_are_not_the_sweeps_stay(lab, name):
    mine = lab.work / "s" / name
    mine.parent.mkdir()
    mine.write_text("mine")
    for _ in range(2):  # a second time neither
        answer = sweep(lab, "--cpu", "-o", "s", "--only", "^baseline$")
        assert answer.status == 1
        assert "error: s/baseline: has files that are not of this sweep" in answer.err
        assert [path.name for path in mine.parent.glob("baseline*")] == [name]
        assert mine.read_text() == "mine"


@pytest.mark.slow
def test_a_run_that_was_cut_short_is_made_again_over_what_it_left(lab):
    folder = lab.work / "s"
    folder.mkdir()
    for name in ("baseline.begun", "baseline_0.sqlite", "baseline_0.nsys-rep"):
        (folder / name).write_text("")
    assert sweep(lab, "--cpu", "-o", "s", "--only", "^baseline$").status == 0
    assert (folder / "baseline_0.sqlite").stat().st_size
    assert (folder / "baseline.done").exists()


# --- ended by others ---------------------------------------------------------------------------

WAITING = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (open("asked", "a").write("x"), sys.exit(1)))
open("up", "w").close()
time.sleep(60)
"""


def started(lab, *words):
    """Start a sweep, and return it when its training program runs."""
    (lab.root / "launchers" / "train_vit.py").write_text(WAITING)
    process = lab.start("sweep.sh", "--cpu", "-o", "s", *words, folder=lab.root / "launchers")
    wait_for(lab.work / "up")
    return process


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("whole_group", [False, True])  # as a terminal's Ctrl-C, or to it alone
def test_a_sweep_that_is_ended_ends_what_it_runs_and_says_how_to_go_on(lab, sent, whole_group):
    process = started(lab, "--only", "^baseline")
    (os.killpg if whole_group else os.kill)(process.pid, sent)
    answer = ended(process)  # that nothing is left running, the fixture sees
    assert answer.status == 128 + sent
    assert answer.err.count("== ") == 1
    assert f"sweep ended by {sent.name}: 0 of 2 runs in s are done" in answer.err
    assert "sweep.sh --cpu -o s --only" in answer.err.splitlines()[-1]
    assert sorted(path.name for path in (lab.work / "s").glob("*.[bd]*")) == ["baseline.begun"]


@pytest.mark.slow
def test_an_ended_sweep_goes_on(lab):
    train = (lab.root / "launchers" / "train_vit.py").read_text()
    process = started(lab, "--only", "^baseline$")
    os.kill(process.pid, signal.SIGTERM)
    ended(process)
    (lab.root / "launchers" / "train_vit.py").write_text(train)
    assert sweep(lab, "--cpu", "-o", "s", "--only", "^baseline$").status == 0
    assert (lab.work / "s" / "baseline.done").exists()


@pytest.mark.slow
def test_a_sweep_that_is_ended_while_it_analyzes_ends_the_analysis(lab):
    python = lab.root / "bin" / "python3"
    real = python.read_text()
    assert sweep(lab, "--cpu", "-o", "s", "--only", "^baseline$").status == 0
    (lab.work / "s" / "baseline.analysis.json").unlink()
    hang = 'case "$*" in *"nsyspipe analyze "*) touch up; sleep 60; exit 0;; esac'
    lines = real.splitlines()
    python.write_text("\n".join([*lines[:-1], hang, lines[-1], ""]))
    process = lab.start(
        "sweep.sh",
        "-o",
        "s",
        "--analyze-only",
        "--only",
        "^baseline$",
        folder=lab.root / "launchers",
    )
    wait_for(lab.work / "up")
    os.kill(process.pid, signal.SIGTERM)
    answer = ended(process)
    assert answer.status == 143
    assert "1 of 1 runs in s are done" in answer.err
