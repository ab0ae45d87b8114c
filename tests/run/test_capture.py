"""A capture without steps: its shares and totals are known, and nothing of a step is."""

from __future__ import annotations

import json

import pytest

import nsyspipe
from nsyspipe.report.export import document_text
from tests.build.tools import codes, problem_of, run_of
from tests.build.trace import NVTX, TraceBuilder, steady_rank


def steady_run(folder, **options):
    return run_of(folder, *(steady_rank(rank) for rank in range(2)), **options)


@pytest.fixture(scope="module")
def captured(tmp_path_factory):
    """Return a run whose steps are declined."""
    return steady_run(tmp_path_factory.mktemp("captured"), step="none")


def test_shares_are_pooled_over_the_capture_and_what_is_of_a_step_is_null(tmp_path, captured):
    for run in (captured, steady_run(tmp_path, without=(NVTX,), step="none")):
        found = json.loads(document_text(run))
        assert found["run"]["steps_from"] == "capture"
        steps = [(row["rank"], row["step"], row["is_complete"], row["in_summary"]) for row in found["steps"]]
        assert steps == [(0, 0, False, True), (1, 0, False, True)]
        summary = found["summary"]
        assert (summary["n_steps"], summary["n_summary_steps"]) == (0, 0)
        # Four times 200 ns of compute and 60 of communication, from 100 to 3350.
        shares = summary["compute_share"], summary["comm_share"], summary["wait_share"]
        assert shares == (800 / 3250, 240 / 3250, 0)
        of_a_step = {name for name in summary if name.endswith("_per_step")} | {
            "step_time_ns",
            "throughput_steps_per_s",
        }
        assert {summary[name] for name in of_a_step} == {row["lateness_ns"] for row in found["stragglers"]} == {None}
        assert (found["findings"], "no-steps" in [row["code"] for row in found["problems"]]) == ([], True)


def test_it_cannot_be_replayed(captured):  # outputs: tests/golden/frozen/report/run/without-steps.txt
    assert {one.refused for one in nsyspipe.whatif(captured).scenarios} == {
        "the run has no steps, it is a capture as a whole: name the steps with --step REGEX"
    }


def test_two_captures_compare_their_shares_without_an_interval_and_a_capture_and_steps_cannot(tmp_path, captured):
    rows = {row["metric"]: row for row in nsyspipe.diff(captured, captured).metrics.to_pylist()}
    share, time = rows["idle_share"], rows["step_time"]
    assert (share["baseline"], share["delta"]) == (captured.summary()["idle_share"][0].as_py(), 0)
    assert (share["ci_low"], share["n_baseline"], share["verdict"]) == (None, 0, "inconclusive")
    why = "both: a capture without steps"
    assert (time["baseline"], time["verdict"], time["why"]) == (None, "inconclusive", why)
    found = nsyspipe.diff(captured, steady_run(tmp_path))
    assert (found.is_comparable, "steps-from" in found.comparability["check"].to_pylist()) == (False, True)
    row = nsyspipe.compare([captured]).table.to_pylist()[0]
    assert (row["n_summary_steps"], row["step_time_ns"], row["comm_share"]) == (0, None, 240 / 3250)


def test_copies_of_unified_memory_lack_no_launch(tmp_path):
    builder = TraceBuilder().env(RANK=0, WORLD_SIZE=1).kernel(0, 9, launch=0)
    for kind in (11, 12, 13, 14):
        builder.copy(10 * kind, 10 * kind + 5, kind)
    assert "launch-missing" not in codes(run_of(tmp_path, builder))
    row = problem_of(run_of(tmp_path, builder.copy(200, 205, 1)), "launch-missing")
    assert row["message"].startswith("1 of 2 operations")


@pytest.mark.parametrize("is_told", [True, False])
def test_memsets_without_an_operation_are_none_if_the_export_says_that_it_is_whole(tmp_path, is_told):
    builder = TraceBuilder().env(RANK=0, WORLD_SIZE=1).kernel(0, 9, launch=0)
    builder.launch(3, api="cudaMemsetAsync_v3020")
    if is_told:
        builder.meta(EXPORT_PARAM_LAZY="true", EXPORT_PARAM_TABLES_TO_EXPORT="")
    run = run_of(tmp_path, builder)
    assert run.summary()["idle_share"].to_pylist() == [0.0 if is_told else None]
    assert ("memset-calls-only" in codes(run), "no-memset" in codes(run)) == (is_told, not is_told)
