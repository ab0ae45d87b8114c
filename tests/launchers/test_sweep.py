"""A sweep over numbers of GPUs: what it runs, how it goes on, what its table says."""

import csv
import json
import os
import re
import signal
import subprocess
import sys

import pytest

from tests.build.programs import put
from tests.launchers.fakes import LAUNCHERS, ended, wait_for
from tests.launchers.jobs import sweep

BASELINE = ("--cpu", "-o", "s", "--only", "^baseline$")


@pytest.mark.slow
def test_the_list_of_runs_is_that_of_the_gpus_that_are_there(machine, pinned):
    told = ""
    for n, words in ((5, ""), (1, ""), (0, "--cpu"), (0, "--cpu --only ^ddp-[0-9]gpu$|view")):
        machine.put_gpus(n or 1)
        answer = sweep(machine, "--list", *words.split())
        told += f"$ {n} GPUs: sweep.sh --list {words}\n{answer.err}{answer.out}"
    pinned("launchers/sweep_lists.txt", told)
    assert machine.files() == []


@pytest.mark.slow
def test_a_dry_run_prints_every_command_and_writes_nothing(machine):
    chosen = ("--cpu", "--only", "^ddp-2gpu(-view|-fp16)?$")
    answer = sweep(machine, *chosen, "--dry-run", "-o", "d", "--", "--lr", "1")
    printed = [line for line in answer.out.splitlines() if line.startswith("env ")]
    assert (answer.status, len(printed)) == (
        0,
        sweep(machine, *chosen, "--list").out.count("\n"),
    )
    assert all(re.search(r"--json d/ddp-[\w-]+\.train\.json --lr 1$", line) for line in printed)
    assert sum("--gradient-as-bucket-view --json d/ddp-2gpu-view." in line for line in printed) == 1
    assert machine.files() == []


@pytest.mark.slow
def test_the_commands_of_a_dry_run_have_what_a_run_sets_in_the_environment(machine):
    machine.put_gpus(2)
    bf16, shm = sweep(
        machine, "--dry-run", "-o", "d", "--only", "^ddp-2gpu-(shm|bf16)$"
    ).out.splitlines()
    assert ("NCCL_P2P_DISABLE=1 " in bf16, "NCCL_P2P_DISABLE=1 " in shm) == (False, True)


@pytest.mark.slow
def test_the_whole_sweep_analyzes_its_runs_compares_them_and_prints_a_table(answering_lab):
    lab = answering_lab
    lab.put_plan("")  # the analyses need what is installed
    answer = sweep(
        lab, "--cpu", "-o", "-study", "--only", "^baseline", "--repeat", "2", timeout=240
    )
    assert answer.status == 0, answer.err
    folder = lab.work / "-study"
    compared = (folder / "compare.txt").read_text()
    assert answer.out.startswith(f"{compared}\nrun ")
    lines = answer.out[len(compared) + 1 :].splitlines()
    names = ["baseline", "baseline-again2", "baseline-unprofiled", "baseline-unprofiled-again2"]
    assert [line.split()[0] for line in lines[:5]] == ["run", *names]
    assert "capturing baseline cost 0.0% of its throughput" in lines
    written = {path.name for path in folder.iterdir()}
    assert {
        "baseline.html",
        "baseline-again2.analysis.json",
        "compare.html",
        "runs",
        "table.csv",
    } <= written
    assert "baseline-unprofiled.analysis.json" not in written
    with (folder / "compare.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    # Two equal runs are two captures of one.
    assert [(row["label"], row["n_captures"]) for row in rows] == [("baseline", "2")]


@pytest.mark.slow
def test_analyze_only_takes_what_another_machine_has_left(lab):
    for run in ("ddp-8gpu", "ddp-8gpu-view", "ddp-2gpu"):
        put(lab.work, f"study/{run}.train.json", json.dumps({"world_size": 8}))
    answer = sweep(lab, "-o", "study", "--analyze-only")
    assert answer.status == 0, answer.err
    assert [line.split()[0] for line in answer.out.splitlines()[1:4]] == [
        "ddp-2gpu",
        "ddp-8gpu",
        "ddp-8gpu-view",
    ]


@pytest.mark.slow
def test_a_run_that_fails_does_not_stop_the_others_and_is_made_again(lab, worded):
    lab.put_plan()
    (lab.work / "broken").write_text("baseline.train")
    words = ("--cpu", "-o", "study", "--only", "^baseline", "--", "--lr", "1")
    answer = sweep(lab, *words)
    assert answer.status == 1
    said = [line for line in answer.err.splitlines() if line.startswith(("== ", "error: "))]
    worded(said, "failed")
    assert [path.stem for path in (lab.work / "study").glob("*.done")] == ["baseline-unprofiled"]
    (lab.work / "broken").unlink()
    (lab.work / "log").unlink()
    again = sweep(lab, *words)
    assert again.status == 0, again.err
    worded([line for line in again.err.splitlines() if line.startswith("== ")], "again")
    assert (lab.work / "log").read_text() == "- - --json study/baseline.train.json --lr 1\n"


@pytest.mark.slow
def test_runs_with_other_options_another_trace_nsys_or_machine_are_not_mixed(lab, worded):
    words = ("-o", "study", "--only", "^baseline-unprofiled$")
    lab.put_gpus(1)
    assert sweep(lab, *words, "--", "--lr", "1").status == 0
    smi = lab.root / "bin" / "nvidia-smi"
    h200 = smi.read_text()
    options = {
        "--trace": ("--trace", "nvtx"),
        "--nsys": ("--nsys", str(lab.put_nsys(name="nsys2"))),
    }
    for other in ("--lr", *options, "NCCL_P2P_LEVEL", "GPU"):
        lab.variables = {other: "LOC"} if other.startswith("NCCL") else {}
        smi.write_text(h200.replace("H200", "H100") if other == "GPU" else h200)
        answer = sweep(
            lab, *words, *options.get(other, ()), "--", "--lr", "2" if other == "--lr" else "1"
        )
        assert answer.status == 2, other
        assert "error: study/baseline-unprofiled: " in answer.err, other
        assert "--lr 1" in answer.err, other
        worded(lab.refusal(answer), other)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["baseline_0.sqlite", "baseline.train.json"])
def test_files_that_are_not_the_sweeps_stay(lab, worded, name):
    mine = lab.work / "s" / name
    put(lab.work, f"s/{name}", "mine")
    for time in ("the first time", "again"):
        answer = sweep(lab, *BASELINE)
        assert answer.status == 1, time
        assert "error: s/baseline: " in answer.err, time
        worded(lab.refusal(answer).partition("\nnote: ")[0], time)
        assert [path.name for path in mine.parent.glob("baseline*")] == [name], time
        assert mine.read_text() == "mine", time


WAITING = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (open("asked", "a").write("x"), sys.exit(1)))
open("up", "w").close()
time.sleep(60)
"""


@pytest.mark.slow
# To it alone, or to the whole group, as a terminal's Ctrl-C.
@pytest.mark.parametrize(
    ("sent", "whole_group"),
    [
        (signal.SIGINT, True),
        (signal.SIGINT, False),
        (signal.SIGTERM, False),
        (signal.SIGHUP, True),
    ],
)
def test_a_sweep_that_is_ended_ends_what_it_runs_and_says_how_to_go_on(
    lab, worded, sent, whole_group
):
    lab.put_plan()
    program = lab.root / "launchers" / "train_vit.py"
    train = program.read_text()
    program.write_text(WAITING)
    process = lab.start(
        "sweep.sh", "--cpu", "-o", "s", "--only", "^baseline", folder=program.parent
    )
    wait_for(lab.work / "up")
    (os.killpg if whole_group else os.kill)(process.pid, sent)
    answer = ended(process)  # that nothing is left running, the fixture sees
    assert answer.status == 128 + sent
    assert answer.err.count("== ") == 1
    last = answer.err.splitlines()[-2:]
    assert "sweep.sh --cpu -o s --only" in last[-1]
    worded(lab.without_places("\n".join(last)))
    assert sorted(path.name for path in (lab.work / "s").glob("*.[bd]*")) == ["baseline.begun"]
    if sent == signal.SIGTERM:
        program.write_text(train)
        for name in (
            "baseline_0.sqlite",
            "baseline_0.nsys-rep",
        ):  # what a run that was killed leaves is replaced
            put(lab.work / "s", name, "")
        assert sweep(lab, *BASELINE).status == 0
        assert (lab.work / "s" / "baseline.done").exists()
        assert (lab.work / "s" / "baseline_0.sqlite").stat().st_size


@pytest.mark.slow
def test_a_sweep_that_is_ended_while_it_analyzes_ends_the_analysis(lab):
    lab.put_plan()
    assert sweep(lab, *BASELINE).status == 0  # without site packages it analyzes nothing
    assert not (lab.work / "s" / "baseline.analysis.json").exists()
    lab.put_python("")
    hang = '#!/bin/sh\ncase "$*" in *"nsyspipe analyze "*) touch up; sleep 60; exit 0;; esac'
    python = lab.root / "bin" / "python3"
    python.write_text(python.read_text().replace("#!/bin/sh", hang))
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
    assert "1 of 1 " in answer.err


def table(folder, *runs):
    command = [sys.executable, LAUNCHERS / "sweep_table.py", folder, *runs]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    return done.stdout, done.stderr


def put_results(folder, run, **results):
    for kind, content in results.items():
        put(folder, f"{run}.{kind}.json", json.dumps(content))


def test_the_table_shows_scaling_shares_and_what_capturing_cost(tmp_path, pinned, worded):
    shown, note = table(tmp_path, "a", "b")
    assert shown == ""
    worded(note.rstrip("\n"))
    put_results(
        tmp_path,
        "baseline",
        train={"world_size": 1, "images_per_s": 100.0, "median_step_ns": 2_500_000},
    )
    # 150 of 2 x 100 images/s; the step is the analysis's where there is one.
    train = {"world_size": 2, "images_per_s": 150.0, "median_step_ns": 9_000_000}
    summary = {
        "step_time_ns": 8_000_000,
        "comm_share": 0.5,
        "exposed_comm_share": 0.125,
        "backward_overlap_ratio": 0.75,
        "wait_share": 0,
        "dtod_ns_per_step": 500_000,
    }
    links = [{"kind": kind} for kind in ("P2P", "P2P", None, "NET")]
    put_results(
        tmp_path,
        "ddp-2gpu",
        train=train,
        analysis={"run": {"n_ranks": 2}, "summary": summary, "links": links},
    )
    put_results(tmp_path, "a", train={"images_per_s": 95.0})
    put_results(tmp_path, "a-unprofiled", train={"images_per_s": 100.0})
    shown, _ = table(tmp_path, "baseline", "ddp-2gpu", "never-made", "a", "a-unprofiled")
    pinned(
        "launchers/sweep_table.txt",
        (shown + (tmp_path / "table.csv").read_text()).replace(str(tmp_path), "FOLDER"),
    )


DAMAGED = [
    *("", "{", "[]", "null", '{"summary": null, "links": null, "run": []}'),
    '{"summary": {"step_time_ns": "fast", "comm_share": NaN}, "links": ["x", {"kind": 3}]}',
    '{"world_size": "two", "images_per_s": true, "median_step_ns": null}',
    '{"world_size": 0, "run": {"n_ranks": null}}',
]


def test_damaged_results_are_dashes_not_errors(tmp_path):
    put_results(tmp_path, "good", train={"world_size": 1})
    bad = [f"bad{at}" for at in range(len(DAMAGED))]
    for name, content in zip(bad, DAMAGED, strict=True):
        for kind in ("train", "analysis"):
            put(tmp_path, f"{name}.{kind}.json", content)
    table(tmp_path, "baseline", "good", *bad, *(f"{name}-unprofiled" for name in bad))
    with (tmp_path / "table.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["run"] for row in rows] == [
        "good",
        *bad[4:],
    ]  # the first four are no results at all
    assert all(set(list(row.values())[2:]) == {"-"} for row in rows)
