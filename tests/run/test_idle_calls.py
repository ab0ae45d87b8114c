"""Idle time by API call: per step of the figures, in the table, the document, the finding and the summary."""

from __future__ import annotations

import json

import pytest

import nsyspipe
from nsyspipe.report.export import document
from tests.build.tools import nullable, run_of
from tests.build.trace import RUNTIME, TraceBuilder

SYNC, ALLOC = "cudaDeviceSynchronize", "cudaMalloc"


def rank(number, *blocked, world_size=2):
    """Return a rank whose step i, from 1000 i on, idles in the given (call, ns) of `blocked`, launched 10 before.

    Each step: kernel [0, 100), a call from 90 on that blocks until its time after 100, launch, kernel 10 later.
    """
    builder = TraceBuilder(pid=1000 + number).env(RANK=number, WORLD_SIZE=world_size).session(10**18).gpu()  # fmt: skip
    for step, (call, ns) in enumerate(blocked):
        at = 1000 * step
        builder.range(at - 10, at + 900, f"step {step}").kernel(at, at + 100, launch=at - 10)
        builder.launch(at + 90, api=f"{call}_v3020")
        builder.rows[RUNTIME][-1]["end"] = at + 100 + ns
        builder.kernel(at + 110 + ns, at + 1000, launch=at + 100 + ns)
    return builder


def calls(run):
    return [tuple(row.values()) for row in run.idle_calls().to_pylist()]


def test_only_steps_of_the_figures_count_as_a_mean_over_ranks_and_steps(tmp_path):
    # Step 0 is skipped, step 3 cut off. Each gap is 10 longer than the call: the launch's latency.
    first = rank(0, (ALLOC, 500), (SYNC, 100), (SYNC, 200), (ALLOC, 700))
    second = rank(1, (ALLOC, 500), (SYNC, 50), (ALLOC, 90), (ALLOC, 700))
    run = run_of(tmp_path, first, second)
    assert calls(run) == [(SYNC, (110 + 210 + 60) / 4), (ALLOC, 100 / 4)]
    expected = {"n_summary_steps": 2, "idle_blocked_ns_per_step": sum(ns for _, ns in calls(run))}
    assert run.summary().select([*expected]).to_pylist() == [expected]
    (found,) = [row for row in run.findings().to_pylist() if row["id"] == "sync-bound"]
    assert SYNC in found["title"]
    assert json.loads(found["evidence"])["idle_ns_per_step_by_call"] == dict(calls(run))
    assert found["saving_ns_per_step"] == (110 + 210) / 2  # of the rank with most
    assert document(run)["idle_calls"][0] == {"call": SYNC, "blocked_ns_per_step": 95}


def test_calls_with_equal_time_stand_in_order_of_the_alphabet_and_the_steps_that_are_chosen_decide(tmp_path):
    builder = rank(0, *((call, 90) for call in (ALLOC, ALLOC, SYNC, SYNC)), world_size=1)
    assert calls(run_of(tmp_path, builder)) == [(SYNC, 50), (ALLOC, 50)]
    assert calls(nsyspipe.load(tmp_path, skip_first=0)) == [(ALLOC, 200 / 3), (SYNC, 100 / 3)]


@pytest.mark.parametrize("unknown", [0, 1])
def test_without_the_ends_of_calls_on_one_rank_there_are_no_rows(tmp_path, unknown):
    builders = [rank(number, *[(SYNC, 100)] * 4) for number in range(2)]
    nullable(builders[unknown])
    del builders[unknown].schema[RUNTIME]["end"]
    run = run_of(tmp_path, *builders)
    assert (run.summary()["idle_blocked_ns_per_step"].to_pylist(), calls(run)) == ([None], [])


def test_a_run_without_ranks_has_no_rows(tmp_path):
    run = run_of(tmp_path, TraceBuilder().range(0, 1, "x"))
    assert run.idle_calls().num_rows == 0
    assert run.to_pandas("idle_calls").shape == (0, 2)
