"""The committed outputs of the sample runs are what the program prints today."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.conftest import SAMPLES

RUNS = ("ddp-4gpu-before", "ddp-4gpu-after")


def analyze(run: str, *options: str) -> str:
    command = [
        sys.executable,
        "-m",
        "nsyspipe",
        "analyze",
        f"sample_reports/{run}_*.sqlite",
        *options,
    ]
    environment = os.environ | {"COLUMNS": "100", "NO_COLOR": "1"}
    done = subprocess.run(
        command,
        cwd=SAMPLES.parent,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize(("suffix", "options"), [("txt", ()), ("json", ("--json", "-"))])
def test_sample_output_is_made_again_as_it_was(run, suffix, options, request):
    output = analyze(run, *options)
    expected = SAMPLES / f"{run}.{suffix}"
    if request.config.getoption("--update-golden"):
        expected.write_text(output, encoding="utf-8")
    assert output == expected.read_text(encoding="utf-8")


@pytest.mark.parametrize("run", RUNS)
def test_sample_figures_follow_from_its_rows(run):
    found = json.loads((SAMPLES / f"{run}.json").read_text(encoding="utf-8"))
    rows = [row for row in found["steps"] if row["in_summary"]]
    wall = sum(row["wall_ns"] for row in rows)
    assert len(rows) == 4 * found["summary"]["n_summary_steps"]
    assert found["summary"]["comm_share"] == sum(row["comm_ns"] for row in rows) / wall
    assert (
        found["summary"]["exposed_comm_share"] == sum(row["exposed_comm_ns"] for row in rows) / wall
    )
    slowest = {}
    for row in rows:
        slowest[row["step"]] = max(slowest.get(row["step"], 0), row["wall_ns"])
    assert found["summary"]["throughput_steps_per_s"] == 1e9 * len(slowest) / sum(slowest.values())


def test_samples_stay_small():
    assert sum(path.stat().st_size for path in SAMPLES.rglob("*")) <= 30e6
