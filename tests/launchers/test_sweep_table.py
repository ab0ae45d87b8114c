"""The table of a sweep: what it shows of whatever the runs have left."""

from __future__ import annotations

import csv
import json
import subprocess
import sys

import pytest

from tests.launchers.fakes import LAUNCHERS


def table(folder, *runs):
    done = subprocess.run(
        [sys.executable, LAUNCHERS / "sweep_table.py", folder, *runs],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done


def put(folder, run, train=None, analysis=None):
    for kind, content in (("train", train), ("analysis", analysis)):
        if content is not None:
            (folder / f"{run}.{kind}.json").write_text(json.dumps(content))


def rows(folder):
    with (folder / "table.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_the_table_shows_scaling_and_shares(tmp_path):
    put(tmp_path, "baseline", {"world_size": 1, "images_per_s": 100.0, "median_step_ns": 2_500_000})
    put(
        tmp_path,
        "ddp-2gpu",
        {"world_size": 2, "images_per_s": 150.0, "median_step_ns": 9_000_000},
        {
            "run": {"n_ranks": 2},
            "summary": {
                "step_time_ns": 8_000_000, "comm_share": 0.5, "exposed_comm_share": 0.125,
                "backward_overlap_ratio": 0.75, "wait_share": 0, "dtod_ns_per_step": 500_000,
            },
            "links": [{"kind": "P2P"}, {"kind": "P2P"}, {"kind": None}, {"kind": "NET"}],
        },
    )  # fmt: skip
    shown = table(tmp_path, "baseline", "ddp-2gpu", "never-made").stdout
    alone, both = rows(tmp_path)
    assert alone["step"] == "2.5 ms"
    assert alone["scaling"] == "100%"
    assert (alone["comm"], alone["copies"], alone["link"]) == ("-", "-", "-")
    # 150 of 2 x 100 images/s; the step is the analysis's where there is one.
    assert list(both.values()) == [
        *("ddp-2gpu", "2", "8.0 ms", "150", "75%", "50.0%", "12.5%", "75.0%", "0.0%", "0.50 ms"),
        "NET, P2P",
    ]
    assert shown.splitlines()[1].split() == ["baseline", "1", "2.5", "ms", "100", "100%", *"------"]


def test_the_table_says_what_capturing_cost(tmp_path):
    put(tmp_path, "a", {"images_per_s": 95.0})
    put(tmp_path, "a-unprofiled", {"images_per_s": 100.0})
    shown = table(tmp_path, "a", "a-unprofiled").stdout
    assert "capturing a cost 5.0% of its throughput" in shown


def test_nothing_to_compare_is_said(tmp_path):
    done = table(tmp_path, "a", "b")
    assert done.stdout == ""
    assert done.stderr == "no run has left anything to compare\n"


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "null",
        '{"summary": null, "links": null, "run": []}',
        '{"summary": {"step_time_ns": "fast", "comm_share": NaN}, "links": ["x", {"kind": 3}]}',
        '{"world_size": "two", "images_per_s": true, "median_step_ns": null}',
        '{"world_size": 0, "run": {"n_ranks": null}}',
    ],
)
def test_damaged_results_are_dashes_not_errors(tmp_path, content):
    put(tmp_path, "good", {"world_size": 1})
    for kind in ("train", "analysis"):
        (tmp_path / f"bad.{kind}.json").write_text(content)
    table(tmp_path, "baseline", "good", "bad", "bad-unprofiled")
    for row in rows(tmp_path):
        assert set(list(row.values())[2:]) == {"-"}
