"""A built run whose every figure is worked out by hand, in every export version."""

from __future__ import annotations

import pytest

from tests.build.tools import STEADY, figures, run_of
from tests.build.trace import schemas, steady_rank


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return run_of(tmp_path_factory.mktemp("steady"), steady_rank(0), steady_rank(1))


def test_run_figures_are_pooled_over_ranks_and_summary_steps(run):
    # Step 0 is skipped, 3 is cut off; both ranks start together; 100 ns idle lie between two steps' ranges.
    idle = {"input": 100.0, "launch": 650.0, "blocked": 0.0, "dependency": 10.0, "unknown": 0.0}
    assert run.summary().to_pylist() == [
        {
            "n_steps": 4, "n_summary_steps": 2, "step_time_ns": 1000.0, "throughput_steps_per_s": 1e6,
            "comm_share": 0.06, "exposed_comm_share": 0.03, "overlap_ratio": 0.5, "backward_overlap_ratio": 0.5,
            "idle_share": 0.76, "compute_share": 0.2, "exposed_memory_share": 0.01, "dtod_ns_per_step": 10.0,
            "dtod_bytes_per_step": 64.0, "collectives_per_step": 1.0, "wait_share": 0.0, "transfer_share": 0.06,
            # No payload says sizes.
            "message_bytes_per_step": None, "algbw_bytes_per_s": None, "busbw_bytes_per_s": None,
            **{f"idle_{cause}_ns_per_step": ns for cause, ns in idle.items()},
        }
    ]  # fmt: skip
    assert run.skipped_steps == [0]


def test_each_step_of_a_rank_is_the_hand_computed_one_and_the_last_ends_with_its_last_operation(run):
    row = run.breakdown().to_pylist()[0]
    assert {name: row[name] for name in STEADY} == STEADY
    # The least time from launch to start is 90: forward, launched at 10, starts at 100. The copy
    # was launched long before the 10 ns without work that it ends; the next step's forward was not
    # while 350 to 1100 went by, and no call blocked the host; of that it was in no range and in no call
    # from 900, where the step's range ends, to 1000.
    idle = {"input": 100, "between_steps": 100, "launch": 650, "pause": 0, "blocked": 0, "dependency": 10, "unknown": 0}
    expected = {f"idle_{cause}_ns": ns for cause, ns in idle.items()} | {"idle_ns": 760, "idle_share": 0.76}
    assert {name: row[name] for name in row if name.startswith("idle_")} == expected
    last = run.steps().to_pylist()[3]
    names = ("step", "start_ns", "end_ns", "is_complete", "in_summary")
    assert [last[name] for name in names] == [3, 3100, 3350, False, False]


def test_times_are_aligned_by_the_ends_of_three_collectives_else_by_session_start(run, tmp_path):
    # Rank 1's session starts 1 ns later; all four collectives end 1 ns later on it, so its clock is ahead by that.
    short = run_of(tmp_path, *(steady_rank(at, n_steps=2) for at in (0, 1)))
    for found, starts in ((run, [100, 100]), (short, [100, 101])):
        assert [row["start_ns"] for row in found.steps().to_pylist() if row["step"] == 0] == starts


def test_phases_hold_what_was_launched_inside_them_by_any_thread(run):
    rows = {(row["rank"], row["step"], row["phase"]): row for row in run.phases().to_pylist()}
    # On the device [200, 330) and the copy [340, 350), which ends the 10 ns without work.
    assert rows[0, 1, "backward"] == {
        "rank": 0, "step": 1, "phase": "backward", "host_ns": 100, "n_kernels": 2, "compute_ns": 100, "comm_ns": 60,
        "exposed_comm_ns": 30, "device_ns": 140, "idle_ns": 10,
    }  # fmt: skip
    forward = rows[0, 1, "forward"]
    # Its gap is that which the next step's forward ends.
    assert (forward["compute_ns"], forward["host_ns"], forward["idle_ns"]) == (100, 45, 750)
    assert rows[0, 3, "forward"]["idle_ns"] == 0


@pytest.mark.parametrize("version", list(schemas()))
def test_every_export_version_gives_the_same_figures(tmp_path, version):
    run = run_of(tmp_path, *(steady_rank(rank, version=version) for rank in range(2)))
    assert figures(run) == STEADY
    assert run.ranks["rank"].to_pylist() == [0, 1]
    # Where the environment was not exported, the file name tells the rank.
    has_environment = "META_DATA_CAPTURE" in schemas()[version]
    assert set(run.ranks["rank_source"].to_pylist()) == {"env:RANK" if has_environment else "file_name"}
    assert run.ranks["gpu_name"].to_pylist() == ["NVIDIA H200"] * 2


def test_an_export_with_all_tables_gives_the_same_figures_as_a_lazy_one(tmp_path):
    builders = (steady_rank(rank).meta(EXPORT_PARAM_LAZY="false") for rank in range(2))
    assert figures(run_of(tmp_path, *builders, lazy=False)) == STEADY
