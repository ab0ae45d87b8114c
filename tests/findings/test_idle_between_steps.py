"""A loop that waits for its next batch outside every range: the loader is named, whatever the device's clock says."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

import nsyspipe
from tests.build.trace import MEMCPY, RUNTIME, TraceBuilder
from tests.conftest import SAMPLES

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


def findings(run):
    return {row["id"]: row for row in run.findings().to_pylist()}


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


@pytest.mark.parametrize(
    ("text", "between", "inputs"), [("validate", 20 * MS, 20 * MS), ("get batch", 20 * MS, 40 * MS)]
)
def test_a_range_between_steps_is_what_it_says(tmp_path, text, between, inputs):
    # 10 ms quiet, 20 ms in the range, 20 ms quiet.
    rows = causes(report(tmp_path, text=text))[1:-1]
    assert {row["idle_between_steps_ns"] for row in rows} == {between}
    assert {row["idle_input_ns"] for row in rows} == {inputs}


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
