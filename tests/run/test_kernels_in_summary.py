"""What kernels take in the steps that the figures rest on, of real captures: event by event."""

from __future__ import annotations

import collections

import pytest

import nsyspipe
from nsyspipe.api import diff


@pytest.fixture(scope="module")
def runs(real):
    """Return a sharded run, whose ranks all gather in both passes, and one that reduces gradients."""
    return {name: nsyspipe.load(real / f"{name}-4gpu_*.sqlite", jobs=1) for name in ("fsdp", "ddp")}


def by_counting(run):
    """Return number and time by (rank, phase, name) of the kernels that start in a summary step."""
    windows = collections.defaultdict(list)
    for row in run.breakdown().to_pylist():
        windows[row["rank"]].append((row["start_ns"], row["end_ns"]))
    found = collections.defaultdict(lambda: [0, 0])
    for rank, events, _ in run.operations():
        for row in events.to_pylist():
            if row["category"] != "memory" and any(start <= row["start_ns"] < end for start, end in windows[rank]):
                cost = found[rank, row["phase"], row["name"]]
                cost[0] += 1
                cost[1] += row["end_ns"] - row["start_ns"]
    return {key: tuple(cost) for key, cost in found.items()}


@pytest.fixture(scope="module")
def counted(runs):
    return {name: by_counting(run) for name, run in runs.items()}


@pytest.mark.slow
def test_number_and_time_are_those_of_the_events(runs, counted):
    for name, run in runs.items():
        found = {
            (row["rank"], row["phase"], row["name"]): (row["n_in_summary"], row["in_summary_ns"])
            for row in run.kernels().to_pylist()
        }
        assert {key: cost for key, cost in found.items() if cost != (0, 0)} == counted[name]
        # There are others: in the step that is skipped and in the one that is cut off.
        assert all(row["n_kernels"] > row["n_in_summary"] for row in run.kernels().to_pylist())


@pytest.mark.slow
def test_a_difference_has_each_kernel_per_rank_and_step_exactly(runs, counted):
    change = diff(runs["fsdp"], runs["ddp"], force=True)
    rows = {(row["phase"], row["name"]): row for row in change.kernels.to_pylist()}
    for side, name in (("baseline", "fsdp"), ("candidate", "ddp")):
        sums = collections.defaultdict(lambda: [0, 0])
        for (_, *key), cost in counted[name].items():
            for at in (0, 1):
                sums[tuple(key)][at] += cost[at]
        n_rows = runs[name].breakdown().num_rows
        assert set(sums) == {key for key, row in rows.items() if row[f"{side}_n_per_step"]}
        for key, (number, ns) in sums.items():
            assert rows[key][f"{side}_ns_per_step"] == ns / n_rows
            assert rows[key][f"{side}_n_per_step"] == number / n_rows
            assert rows[key][f"{side}_mean_ns"] == ns / number
