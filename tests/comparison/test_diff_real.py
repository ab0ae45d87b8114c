"""Differences of real captures: what holds of them whatever the goldens say."""

from __future__ import annotations

import pytest

from nsyspipe.api import diff
from nsyspipe.comparison.difference import Side
from nsyspipe.report.difference import difference_document, verdict_text
from nsyspipe.store.write import save


@pytest.fixture(scope="module")
def runs(captures):
    """Return the sample runs: one all-reduce after the backward pass, then buckets of 25 MB."""
    return {name: captures.run(f"ddp-4gpu-{name}") for name in ("before", "after")}


def row_of(change, metric="step_time"):
    return next(row for row in change.metrics.to_pylist() if row["metric"] == metric)


def test_kernels_of_one_step_add_up_to_its_compute_and_communication(runs):
    kernels = diff(runs["before"], runs["after"]).kernels.to_pylist()
    for side, name in (("baseline", "before"), ("candidate", "after")):
        steps = runs[name].breakdown()
        for is_comm, column in ((True, "comm_ns"), (False, "compute_ns")):
            total = sum(row[f"{side}_ns_per_step"] for row in kernels if row["name"].startswith("nccl") == is_comm)
            assert total == pytest.approx(sum(steps[column].to_pylist()) / steps.num_rows, rel=0.02)


@pytest.mark.slow
def test_reports_and_the_saved_runs_give_the_same_json(runs, tmp_path):
    for run in runs.values():
        save(run, tmp_path)
    saved = diff(*(tmp_path / "runs" / f"run_id={run.header.run_id}" for run in runs.values()))
    assert difference_document(saved) == difference_document(diff(*runs.values()))


def test_one_step_is_too_few_and_more_are_asked_for(captures):
    found = diff(captures.run("ddp-4gpu"), captures.run("ddp-4gpu-shm"))
    row = row_of(found)
    assert (row["n_baseline"], row["n_candidate"], row["ci_low"], row["ci_high"]) == (1, 1, None, None)
    assert (row["verdict"], row["delta"] > 0) == ("inconclusive", True)
    assert verdict_text(found).endswith("1 step, needs 3; capture more steps")


@pytest.mark.slow
def test_two_captures_of_one_side_put_their_spread_into_the_interval(runs):
    found = diff(Side("both", tuple(runs.values())), runs["after"])
    row = row_of(found)
    # 645 and 572 ms are no one configuration: with such a spread nothing can be said of 36 ms.
    assert row["ci_low"] < 0 < row["ci_high"]
    assert found.has_spread_between_captures
