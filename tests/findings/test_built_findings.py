"""Findings of small built reports, from the SQLite rows to the saving; every number is worked out by hand."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

import nsyspipe
from tests.build.tools import edit
from tests.build.trace import MEMCPY, RUNTIME, TraceBuilder
from tests.conftest import SAMPLES
from tests.findings.make import findings

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
    ids = {"globalTid": builder.global_tid(), "correlationId": builder.launch(None), "nameId": builder.string(name)}
    return builder.add(RUNTIME, start=start, end=end, **ids)


def load(folder, *builders):
    for number, builder in enumerate(builders):
        builder.write(folder / f"built_{number}.sqlite")
    return nsyspipe.load(folder, jobs=1)


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
    expected = {"": 800, "input_": 600, "between_steps_": 100, "launch_": 200}
    expected |= dict.fromkeys(("blocked_", "dependency_", "unknown_"), 0)
    figures = {f"idle_{name}ns_per_step": value for name, value in expected.items()}
    assert findings(run)["input-bound"]["evidence"] == figures


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
def test_many_small_all_reduces_are_too_many_buckets(tmp_path):
    # 20 of 15 ns, one after the other, from 500 on, all exposed: 300 of 1000.
    builders = [rank(number, 2) for number in range(2)]
    for builder in builders:
        for at in STARTS:
            builder.range(at + 81, at + 90, "backward")
            builder.kernel(at + 300, at + 500, launch=at + 82)
            for start in range(500, 900, 20):
                builder.nccl(
                    at + start, at + start + 15, launch=at + 85, name="ncclDevKernel_AllReduce_Sum_f32_RING_LL"
                )
    found = findings(load(tmp_path, *builders))
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
    figures = {"first_step_to_median_ratio": 2, "first_step_is_skipped": True}
    assert found["evidence"] == {"overhead_ns_per_step": None} | figures


# --- a loop that waits for its next batch outside every range: the loader is named, whatever the device's clock says
MS, US = 1_000_000, 1_000
CAUSES = [f"idle_{cause}_ns" for cause in ("input", "launch", "blocked", "dependency", "unknown")]


def report(path, *, shift=0, sleep=50 * MS, kernel=380 * US, has_calls=False, text=None):
    """Write 30 steps of 20 kernels, launched 400 us apart, each after so much sleep outside every range.

    The device runs each kernel 6 us after its launch, and is on a clock that is `shift` later. Where it keeps up each
    step ends with a wait for it. In the middle of the sleep are ten launches, 200 us apart, if `has_calls`, or a range.
    """
    builder = TraceBuilder().env(RANK=0, WORLD_SIZE=1).session(10**18).gpu()
    builder.meta(EXPORT_SCHEMA_VERSION="3.11.1", EXPORT_PRODUCT_VERSION="2024.2.3")
    builder.range(9 * MS, 30 * (sleep + 10 * MS) + 20 * MS, "epoch 0")
    at, busy = 10 * MS, 0
    for step in range(30):
        if has_calls:
            for number in range(10):
                builder.launch(at + sleep // 2 + number * 200 * US, api="cudaEventQuery_v3020")
        if text:
            builder.range(at + 10 * MS, at + 30 * MS, text)
        at += sleep
        builder.range(at, at + 10 * MS, f"step {step}")
        for number in range(20):
            launch = at + 20 * US + number * 400 * US
            start = max(busy, launch + 6 * US)
            busy = start + kernel
            builder.kernel(start + shift, busy + shift, launch=launch)
        if kernel < 400 * US:
            builder.launch(at + 7700 * US, api="cudaDeviceSynchronize_v3020")
            builder.rows[RUNTIME][-1]["end"] = busy + 4 * US
        at += 10 * MS
    return nsyspipe.load(builder.write(path / f"{shift}{has_calls}{text}_0.sqlite"), jobs=1)


def causes(run):
    return run.steps().select(["step", "idle_between_steps_ns", *CAUSES]).to_pylist()


def test_the_loader_is_named(tmp_path):
    run = report(tmp_path)
    found = findings(run)
    assert next(iter(found)) == "input-bound"
    assert "launch-bound" not in found
    assert "probably waits for the data loader" in found["input-bound"]["title"]
    assert found["input-bound"]["saving_ns_per_step"] == 50 * MS
    assert {row["idle_between_steps_ns"] for row in causes(run)[:-1]} == {50 * MS}
    # Clocks that agree are not spoken of.
    assert not [code for code in run.problems["code"].to_pylist() if "clock" in code]


def test_a_busy_device_waits_for_no_loader_and_what_the_loop_launches_between_is_none(tmp_path):
    run = report(tmp_path, kernel=4 * MS)
    assert findings(run) == {}
    assert {row["idle_input_ns"] for row in causes(run)} == {0}
    # 25 ms, 10 calls of 1 ns each 200 us apart, then 25 ms less 1.8 ms: the longest stretch is the first.
    run = report(tmp_path, has_calls=True)
    assert {row["idle_between_steps_ns"] for row in causes(run)[1:-1]} == {25 * MS}
    assert findings(run)["input-bound"]["saving_ns_per_step"] == 25 * MS


@pytest.mark.parametrize(("text", "inputs"), [("validate", 20 * MS), ("get batch", 40 * MS)])
def test_a_range_between_steps_is_what_it_says(tmp_path, text, inputs):
    # 10 ms quiet, 20 ms in the range, 20 ms quiet.
    rows = causes(report(tmp_path, text=text))[1:-1]
    assert {(row["idle_between_steps_ns"], row["idle_input_ns"]) for row in rows} == {(20 * MS, inputs)}


# --- the device's clock ----------------------------------------------------------------------
@pytest.mark.parametrize("shift", [325 * MS, 823 * MS, -156 * MS])
def test_a_device_on_another_clock_idles_for_the_same_causes(tmp_path, shift):
    run, usual = report(tmp_path, shift=shift), report(tmp_path)
    assert causes(run) == causes(usual)
    (told,) = [row for row in run.problems.to_pylist() if row["code"] == "device-clock-apart"]
    # Its least time from launch to start, 6 us, is taken for 5; a wait returns 4 us after the end.
    assert f"{(shift + US) / US:+,.0f} us" in told["message"]
    assert list(findings(run)) == list(findings(usual))


@pytest.mark.slow
def test_a_deep_queue_is_no_shift_of_the_clock(tmp_path):
    for rank in range(4):
        path = tmp_path / f"deep_{rank}.sqlite"
        path.write_bytes((SAMPLES / f"ddp-4gpu-before_{rank}.sqlite").read_bytes())
        with closing(sqlite3.connect(path)) as database:
            database.execute(f"DELETE FROM {MEMCPY}")
            database.commit()
    run = nsyspipe.load(tmp_path / "deep_?.sqlite", jobs=1)
    assert "device-clock-apart" not in run.problems["code"].to_pylist()
