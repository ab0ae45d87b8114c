"""The sweep: which runs it makes, and what it makes of them."""

from __future__ import annotations

import csv
import json
import re

import pytest

from tests.launchers.sweeping import sweep


def names(answer):
    assert answer.status == 0, answer.err
    return [line.split()[0] for line in answer.out.splitlines()]


def test_on_four_gpus_each_option_is_changed_alone_on_four(machine):
    machine.put_gpus(5)
    assert names(sweep(machine, "--list")) == [
        *("baseline", "baseline-unprofiled", "ddp-1gpu", "ddp-2gpu", "ddp-4gpu"),
        *("ddp-4gpu-unprofiled", "ddp-4gpu-onebucket", "ddp-4gpu-bucket5", "ddp-4gpu-bucket100"),
        *("ddp-4gpu-view", "ddp-4gpu-static", "ddp-4gpu-bf16", "ddp-4gpu-powersgd"),
        *("ddp-4gpu-accumulate4", "fsdp-4gpu", "ddp-4gpu-shm", "ddp-4gpu-shm-onebucket"),
        "ddp-4gpu-shm-bf16",
    ]
    assert machine.files() == []


def test_one_gpu_has_nothing_to_exchange(machine):
    machine.put_gpus(1)
    assert names(sweep(machine, "--list")) == ["baseline", "baseline-unprofiled", "ddp-1gpu"]


def test_without_gpus_only_what_gloo_can_do_is_run(machine):
    found = names(sweep(machine, "--cpu", "--list"))
    assert "ddp-2gpu-fp16" in found
    assert not [name for name in found if re.search("bf16|powersgd|shm|fsdp", name)]


def test_only_takes_a_regular_expression(machine):
    assert names(sweep(machine, "--cpu", "--list", "--only", "^ddp-[0-9]gpu$|view")) == [
        *("ddp-1gpu", "ddp-2gpu", "ddp-2gpu-view"),
    ]


@pytest.mark.slow
def test_a_dry_run_prints_every_command_and_writes_nothing(machine):
    answer = sweep(machine, "--cpu", "--dry-run", "-o", "d", "--only", "^ddp", "--", "--lr", "1")
    assert answer.status == 0
    printed = [line for line in answer.err.splitlines() if line.startswith("env ")]
    assert len(printed) == len(names(sweep(machine, "--cpu", "--list", "--only", "^ddp")))
    assert all(re.search(r"--json d/ddp-[\w-]+\.train\.json --lr 1$", line) for line in printed)
    assert machine.files() == []


@pytest.mark.slow
def test_the_whole_sweep_analyzes_its_runs_and_prints_a_table(lab):
    answer = sweep(lab, "--cpu", "-o", "-study", "--only", "^baseline|^ddp-1gpu$", "--repeat", "2")
    assert answer.status == 0, answer.err
    table = answer.out[answer.out.rindex("\nrun  ") + 1 :]  # behind the comparison
    lines = table.splitlines()
    assert [line.split()[0] for line in lines[:7]] == [
        *("run", "baseline", "baseline-again2", "baseline-unprofiled"),
        *("baseline-unprofiled-again2", "ddp-1gpu", "ddp-1gpu-again2"),
    ]
    assert "capturing baseline cost 0.0% of its throughput" in lines
    written = {path.name for path in (lab.work / "-study").iterdir()}
    assert {"baseline.html", "ddp-1gpu.analysis.json", "runs", "table.csv"} <= written
    assert "baseline-unprofiled.analysis.json" not in written


@pytest.mark.slow
def test_the_comparison_of_runs_is_shown_before_the_table_and_kept(lab):
    answer = sweep(lab, "--cpu", "-o", "s", "--only", "^baseline$|^ddp-1gpu$", "--repeat", "2")
    assert answer.status == 0, answer.err
    compared = (lab.work / "s" / "compare.txt").read_text()
    assert answer.out.startswith(f"{compared}\nrun ")
    with (lab.work / "s" / "compare.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    # Two equal runs are two captures of one.
    assert [(row["label"], row["n_captures"]) for row in rows] == [
        ("baseline", "2"),
        ("ddp-1gpu", "2"),
    ]
    assert (lab.work / "s" / "compare.html").exists()


@pytest.mark.slow
def test_analyze_only_takes_what_another_machine_has_left(lab):
    folder = lab.work / "study"
    folder.mkdir()
    for run in ("ddp-8gpu", "ddp-8gpu-view", "ddp-2gpu"):
        (folder / f"{run}.train.json").write_text(json.dumps({"world_size": 8}))
    answer = sweep(lab, "-o", "study", "--analyze-only")
    assert answer.status == 0, answer.err
    assert [line.split()[0] for line in answer.out.splitlines()[1:4]] == [
        *("ddp-2gpu", "ddp-8gpu", "ddp-8gpu-view"),
    ]
