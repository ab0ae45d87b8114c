"""A built run whose every figure is worked out by hand, in every export version."""

from __future__ import annotations

import pytest

import nsyspipe
from tests.build.tools import STEADY
from tests.build.trace import schemas, steady_rank


def test_every_figure_of_a_complete_step_is_the_hand_computed_one(steady):
    run = nsyspipe.load(steady)
    row = run.breakdown().to_pylist()[0]
    assert {name: row[name] for name in STEADY} == STEADY


def test_run_figures_are_pooled_over_ranks_and_summary_steps(steady):
    run = nsyspipe.load(steady)
    assert run.summary().to_pylist() == [
        {
            "n_steps": 4,
            "n_summary_steps": 2,  # 0 is skipped, 3 is cut off
            "step_time_ns": 1000.0,
            "throughput_steps_per_s": 1e6,
            "comm_share": 0.06,
            "exposed_comm_share": 0.03,
            "overlap_ratio": 0.5,
            "backward_overlap_ratio": 0.5,
            "idle_share": 0.76,
            "compute_share": 0.2,
            "exposed_memory_share": 0.01,
            "dtod_ns_per_step": 10.0,
            "dtod_bytes_per_step": 64.0,
            "collectives_per_step": 1.0,
            "wait_share": 0.0,  # both ranks start together
            "transfer_share": 0.06,
            "idle_input_ns_per_step": 100.0,  # between two steps' ranges
            "idle_launch_ns_per_step": 650.0,
            "idle_blocked_ns_per_step": 0.0,
            "idle_dependency_ns_per_step": 10.0,
            "idle_unknown_ns_per_step": 0.0,
            "message_bytes_per_step": None,  # no payload says them
            "algbw_bytes_per_s": None,
            "busbw_bytes_per_s": None,
        }
    ]
    assert run.skipped_steps == [0]


def test_the_last_window_ends_with_its_last_operation_and_is_incomplete(steady):
    last = nsyspipe.load(steady).steps().to_pylist()[3]
    assert (last["step"], last["start_ns"], last["end_ns"]) == (3, 3100, 3350)
    assert not last["is_complete"]
    assert not last["in_summary"]


def test_idle_time_is_explained_by_the_launch_that_ends_each_gap(steady):
    row = nsyspipe.load(steady).breakdown().to_pylist()[0]
    # The least time from launch to start is 90: forward, launched at 10, starts at 100. The copy
    # was launched long before the 10 ns without work that it ends; the next step's forward was not
    # while 350 to 1100 went by, and no call blocked the host; of that it was in no range and in no call
    # from 900, where the step's range ends, to 1000.
    assert {name: row[name] for name in row if name.startswith("idle_")} == {
        "idle_ns": 760,
        "idle_input_ns": 100,
        "idle_between_steps_ns": 100,
        "idle_launch_ns": 650,
        "idle_pause_ns": 0,
        "idle_blocked_ns": 0,
        "idle_dependency_ns": 10,
        "idle_unknown_ns": 0,
        "idle_share": 0.76,
    }


def first_starts(run):
    return {row["rank"]: row["start_ns"] for row in run.steps().to_pylist() if row["step"] == 0}


def test_times_are_aligned_by_session_start_where_few_collectives_match(tmp_path):
    for rank in range(2):  # rank 1's session starts 1 ns later
        steady_rank(rank, n_steps=2).write(tmp_path / f"a_{rank}.sqlite")
    assert first_starts(nsyspipe.load(tmp_path)) == {0: 100, 1: 101}


def test_times_are_aligned_by_the_ends_of_collectives_where_three_match(steady):
    # All four end 1 ns later on rank 1, so its clock is ahead by that.
    assert first_starts(nsyspipe.load(steady)) == {0: 100, 1: 100}


def test_phases_hold_what_was_launched_inside_them_by_any_thread(steady):
    rows = {(row["rank"], row["step"], row["phase"]): row for row in nsyspipe.load(steady).phases().to_pylist()}
    # On the device [200, 330) and the copy [340, 350), which ends the 10 ns without work.
    assert rows[0, 1, "backward"] == {
        "rank": 0, "step": 1, "phase": "backward", "host_ns": 100, "n_kernels": 2, "compute_ns": 100, "comm_ns": 60,
        "exposed_comm_ns": 30, "device_ns": 140, "idle_ns": 10,
    }  # fmt: skip
    assert rows[0, 1, "forward"]["compute_ns"] == 100
    assert rows[0, 1, "forward"]["host_ns"] == 45
    assert rows[0, 1, "forward"]["idle_ns"] == 750  # which the next step's forward ends
    assert rows[0, 3, "forward"]["idle_ns"] == 0


@pytest.mark.parametrize("version", list(schemas()))
def test_every_export_version_gives_the_same_figures(tmp_path, version):
    for rank in range(2):
        steady_rank(rank, version=version).write(tmp_path / f"steady_{rank}.sqlite")
    run = nsyspipe.load(tmp_path)
    row = run.breakdown().to_pylist()[0]
    assert {name: row[name] for name in STEADY} == STEADY
    assert run.ranks["rank"].to_pylist() == [0, 1]
    # Where the environment was not exported, the file name tells the rank.
    has_environment = "META_DATA_CAPTURE" in schemas()[version]
    assert set(run.ranks["rank_source"].to_pylist()) == {"env:RANK" if has_environment else "file_name"}
    assert run.ranks["gpu_name"].to_pylist() == ["NVIDIA H200"] * 2


def test_an_export_with_all_tables_gives_the_same_figures_as_a_lazy_one(tmp_path):
    for rank in range(2):
        steady_rank(rank).meta(EXPORT_PARAM_LAZY="false").write(tmp_path / f"a_{rank}.sqlite", lazy=False)
    row = nsyspipe.load(tmp_path).breakdown().to_pylist()[0]
    assert {name: row[name] for name in STEADY} == STEADY
