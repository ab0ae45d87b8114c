"""Differences of real captures: what is known of them by looking at each alone."""

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


@pytest.fixture(scope="module")
def change(runs):
    return diff(runs["before"], runs["after"])


@pytest.fixture(scope="module")
def store(runs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("store")
    for run in runs.values():
        save(run, folder)
    return folder


def rows(table, key):
    return {row[key]: row for row in table.to_pylist()}


def test_smaller_buckets_take_an_eleventh_off_the_step(change, runs):
    assert change.verdict == "improvement"
    row = rows(change.metrics, "metric")["step_time"]
    for side, name in (("baseline", "before"), ("candidate", "after")):
        assert row[side] == runs[name].summary()["step_time_ns"][0].as_py()
    assert -12 < row["delta_pct"] < -10
    assert row["ci_low"] < row["delta"] < row["ci_high"] < 0


def test_nearly_all_of_it_is_exposed_communication_and_compute_pays_some_back(change):
    parts = rows(change.step_time_parts, "part")
    total = change.mean_step_time[2]
    assert sum(part["delta_ns"] for part in parts.values()) == total
    assert 0.95 < parts["exposed_comm"]["delta_ns"] / total < 1.05
    assert parts["compute"]["delta_ns"] > 0
    causes = change.idle_causes.to_pylist()
    assert sum(row["delta_ns"] for row in causes) == parts["idle"]["delta_ns"]


def test_what_changed_around_it_is_the_buckets_and_the_copies_into_them(change):
    changes = {row["what"]: row for row in change.changes.to_pylist()}
    buckets = changes["collectives per step"]
    assert (buckets["baseline_value"], buckets["candidate_value"]) == (1, 37)
    assert changes["gradient copies per step"]["candidate_value"] == 0
    assert change.comparability.num_rows == 0
    # The kernels are the same ones, but for their times: communication slows some of them down.
    assert set(change.kernels["status"].to_pylist()) == {"changed", "same"}


def test_kernels_of_one_step_add_up_to_its_compute_and_communication(change, runs):
    for side, name in (("baseline", "before"), ("candidate", "after")):
        steps = runs[name].breakdown()
        for is_comm, column in ((True, "comm_ns"), (False, "compute_ns")):
            total = sum(
                row[f"{side}_ns_per_step"]
                for row in change.kernels.to_pylist()
                if row["name"].startswith("nccl") == is_comm
            )
            mean = sum(steps[column].to_pylist()) / steps.num_rows
            assert total == pytest.approx(mean, rel=0.02)


def test_a_real_run_does_not_differ_from_itself(runs):
    found = diff(runs["before"], runs["before"])
    assert set(found.metrics["delta"].to_pylist()) <= {0.0, None}
    recorded = [row for row in found.metrics.to_pylist() if row["baseline"] is not None]
    assert {row["verdict"] for row in recorded} == {"no change"}
    assert found.mean_step_time[2] == 0
    assert found.changes.num_rows == 0


def test_swapped_sides_negate_every_difference(change, runs):
    back = diff(runs["after"], runs["before"])
    for name, key in (("metrics", "metric"), ("step_time_parts", "part"), ("idle_causes", "cause")):
        turned = rows(getattr(back, name), key)
        for place, row in rows(getattr(change, name), key).items():
            other = turned[place]
            for column in ("delta", "delta_ns"):
                if row.get(column) is not None:
                    assert row[column] == -other[column]
            if row.get("ci_low") is not None:
                assert (row["ci_low"], row["ci_high"]) == (-other["ci_high"], -other["ci_low"])
    assert back.verdict == "regression"


@pytest.mark.slow
def test_reports_and_the_saved_runs_give_the_same_json(change, runs, store):
    ids = [runs[name].header.run_id for name in ("before", "after")]
    saved = diff(*(store / "runs" / f"run_id={run_id}" for run_id in ids))
    assert difference_document(saved) == difference_document(change)


def test_one_step_is_too_few_and_more_are_asked_for(captures):
    found = diff(captures.run("ddp-4gpu"), captures.run("ddp-4gpu-shm"))
    assert found.verdict == "inconclusive"
    row = rows(found.metrics, "metric")["step_time"]
    assert (row["n_baseline"], row["n_candidate"]) == (1, 1)
    assert row["why"].endswith("1 step, needs 3")
    assert verdict_text(found).endswith("1 step, needs 3; capture more steps")
    assert (row["ci_low"], row["ci_high"]) == (None, None)
    assert row["delta"] > 0
    assert "few-steps" in found.comparability["check"].to_pylist()


def test_other_world_sizes_are_not_compared(captures):
    found = diff(captures.run("ddp-4gpu"), captures.run("ddp-2gpu"))
    assert not found.is_comparable
    assert set(found.metrics["verdict"].to_pylist()) == {"inconclusive"}


@pytest.mark.slow
def test_two_captures_of_one_side_put_their_spread_into_the_interval(runs):
    both = Side("both", (runs["before"], runs["after"]))
    found = diff(both, runs["after"])
    row = rows(found.metrics, "metric")["step_time"]
    # 645 and 572 ms are no one configuration: with such a spread nothing can be said of 36 ms.
    assert row["ci_low"] < 0 < row["ci_high"]
    assert found.has_spread_between_captures
