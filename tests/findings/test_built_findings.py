"""Findings of small built reports, from the SQLite rows to the saving; every number is worked out by hand."""

from __future__ import annotations

import json

import pytest

import nsyspipe
from tests.build.tools import edit
from tests.build.trace import RUNTIME, TraceBuilder

_OVERHEAD = (
    "CREATE TABLE PROFILER_OVERHEAD (start INTEGER NOT NULL, end INTEGER NOT NULL, globalTid INTEGER, "
    "nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL)"
)
# Step i begins at 1000 i + 100 on the device, with a kernel that was launched 20 before: the latency.
STARTS = (0, 1000, 2000, 3000)


def rank(number=0, n_ranks=1, *, starts=STARTS, lead=0):
    """Return a rank whose steps hold nothing but their first kernel, [100, 300); their ranges begin `lead` early."""
    builder = TraceBuilder(pid=1000 + number).session(10**18).gpu()
    builder.env(RANK=number, WORLD_SIZE=n_ranks)
    for step, at in enumerate(starts):
        builder.range(at - lead, at + 900 - lead, f"step {step}")
        builder.kernel(at + 100, at + 300, launch=at + 80)
    return builder


def blocking_call(builder, start, end, name):
    return builder.add(
        RUNTIME,
        start=start,
        end=end,
        globalTid=builder.global_tid(),
        correlationId=builder.launch(None),
        nameId=builder.string(name),
    )


def load(folder, *builders):
    for number, builder in enumerate(builders):
        builder.write(folder / f"built_{number}.sqlite")
    return nsyspipe.load(folder, jobs=1)


def findings(run):
    """Return the findings by id, in their order, each with its evidence read."""
    return {row["id"]: row | {"evidence": json.loads(row["evidence"])} for row in run.findings().to_pylist()}


def savings(run):
    return {name: row["saving_ns_per_step"] for name, row in findings(run).items()}


# --- idle time ------------------------------------------------------------------------------------


def test_a_gpu_that_waits_for_its_batch_is_input_bound(tmp_path):
    # Idle from 300 to 1100, when the next step's kernel starts (launched at 1080, it could not sooner).
    # The host is in the data phase from 560 to 1060 of that: 500, and from 450, where the step's range ends,
    # to 550, where the next begins, in none: 100; the other 200 are for launches.
    builder = rank(lead=450)
    for at in STARTS:
        builder.range(at - 440, at + 60, "data")
    run = load(tmp_path, builder)
    assert savings(run) == {"input-bound": 600, "launch-bound": 200}
    assert findings(run)["input-bound"]["evidence"] == {
        "idle_ns_per_step": 800,
        "idle_input_ns_per_step": 600,
        "idle_between_steps_ns_per_step": 100,
        "idle_launch_ns_per_step": 200,
        "idle_blocked_ns_per_step": 0,
        "idle_dependency_ns_per_step": 0,
        "idle_unknown_ns_per_step": 0,
    }


@pytest.mark.parametrize("has_data", [True, False])
def test_a_gpu_that_runs_short_kernels_is_launch_bound(tmp_path, has_data):
    # After [100, 300) six kernels of 50, each launched while the one before runs: gaps of 50 before
    # each, [300, 350) and so on, and from 900 to the next step's start at 1100: half of that between
    # the steps' ranges.
    builder = rank()
    for at in STARTS:
        if has_data:
            builder.range(at + 110, at + 120, "data")
        for start in range(350, 950, 100):
            builder.kernel(at + start, at + start + 50, launch=at + start - 20)
    found = findings(load(tmp_path, builder))
    assert list(found) == ["launch-bound", "input-bound"]
    assert found["launch-bound"]["saving_ns_per_step"] == 6 * 50 + 100
    assert found["input-bound"]["saving_ns_per_step"] == 100
    assert ("load data" in found["launch-bound"]["action"]) == (not has_data)


def test_the_call_that_lets_the_gpu_run_dry_is_named(tmp_path):
    # The host waits until the first kernel ends at 300, then launches another at 400, [420, 520): the
    # gap [300, 420) is the synchronisation's. Of [520, 1100) cudaMalloc holds the host for 60, and from 900
    # to 1000 it is between two steps' ranges.
    builder = rank()
    for at in STARTS:
        blocking_call(builder, at + 105, at + 310, "cudaStreamSynchronize_v3020")
        builder.kernel(at + 420, at + 520, launch=at + 400)
        blocking_call(builder, at + 700, at + 760, "cudaMalloc_v3020")
    run = load(tmp_path, builder)
    assert savings(run) == {"launch-bound": 420, "sync-bound": 180, "input-bound": 100}
    found = findings(run)["sync-bound"]
    assert found["action"] == "keep cudaStreamSynchronize out of the step"
    assert found["evidence"]["idle_ns_per_step_by_call"] == {"cudaStreamSynchronize": 120, "cudaMalloc": 60}


# --- communication --------------------------------------------------------------------------------


def ranks_with_all_reduces(n, length=15, kind="ncclDevKernel_AllReduce_Sum_f32_RING_LL"):
    """Return two ranks that reduce `n` times per step, one after the other, from 500 on."""
    found = [rank(number, 2) for number in range(2)]
    for builder in found:
        for at in STARTS:
            builder.kernel(at + 300, at + 500, launch=at + 82)
            for start in range(500, 500 + 20 * n, 20):
                builder.nccl(at + start, at + start + length, launch=at + 85, name=kind)
    return found


def test_many_small_all_reduces_are_too_many_buckets(tmp_path):
    # 20 of 15 ns, all exposed: 300 of 1000.
    found = findings(load(tmp_path, *ranks_with_all_reduces(20)))
    assert {"comm-bound", "too-many-buckets"} <= set(found)
    assert "single-bucket" not in found
    assert found["too-many-buckets"]["saving_ns_per_step"] == 300
    assert found["too-many-buckets"]["evidence"]["all_reduces_per_step"] == 20
    assert found["too-many-buckets"]["evidence"]["median_transfer_ns"] == 15


# --- the capture itself ---------------------------------------------------------------------------


def test_the_profilers_own_work_is_measured_in_the_steps_that_count(tmp_path):
    # Step 1's window is [1100, 2100): 100 of it, and 60 of step 2's. Step 0 is left out.
    load(tmp_path, rank())
    rows = ((1150, 1250), (2090, 2100), (2100, 2150), (150, 900))
    inserts = [f"INSERT INTO PROFILER_OVERHEAD VALUES ({start}, {end}, NULL, 1, 0)" for start, end in rows]
    edit(tmp_path / "built_0.sqlite", _OVERHEAD, *inserts)
    found = findings(nsyspipe.load(tmp_path, jobs=1))["profiler-overhead"]
    assert found["saving_ns_per_step"] == (100 + 10 + 50) / 2
    assert found["title"] == "the profiler was busy during the steps"


def test_a_first_step_that_the_capture_stretched_is_told(tmp_path):
    # Windows of 2000, 1000, 1000; the last one is cut.
    run = load(tmp_path, rank(starts=(0, 2000, 3000, 4000)))
    found = findings(run)["profiler-overhead"]
    assert found["saving_ns_per_step"] is None
    assert found["severity"] == "low"
    assert found["evidence"] == {
        "overhead_ns_per_step": None,
        "first_step_to_median_ratio": 2,
        "first_step_is_skipped": True,
    }
