"""Rule sync-bound: the GPU runs dry because its host waits for it."""

from __future__ import annotations

import pytest

from nsyspipe.findings.sync_bound import sync_bound
from tests.findings.make import LONGEST_ACTION, evidence, fired, silent, step


def blocked(*by_rank, calls=None):
    most = max(idle or 0 for idle in by_rank)
    rows = [
        step(rank, idle_blocked_ns=idle, exposed=most - (idle or 0), wait=most - (idle or 0))
        for rank, idle in enumerate(by_rank)
    ]
    return evidence(rows, blocked_ns_by_call={"cudaMalloc": 90} if calls is None else calls)


def test_the_call_that_blocked_longest_is_named():
    calls = {"cudaStreamSynchronize": 175.0, "cudaMemcpy": 30.0}  # as sorted, mean of both ranks
    found = fired(sync_bound, blocked(200, 210, calls=calls))
    assert found.saving_ns_per_step == 210  # of the rank that the other waits for
    assert found.title == "the GPU idles because the host was blocked in cudaStreamSynchronize"
    assert found.action == "keep cudaStreamSynchronize out of the step"
    assert found.evidence == {
        "idle_ns_per_step": 205,
        "idle_input_ns_per_step": 0,
        "idle_launch_ns_per_step": 0,
        "idle_blocked_ns_per_step": 205,
        "idle_dependency_ns_per_step": 0,
        "idle_unknown_ns_per_step": 0,
        "rank": 1,
        "judged_idle_blocked_ns_per_step": 210,
        "idle_ns_per_step_by_call": calls,
    }


@pytest.mark.parametrize(("idle", "fires"), [(20, True), (19, False)])
def test_it_needs_2_percent_of_step_time(idle, fires):
    (fired if fires else silent)(sync_bound, blocked(idle))


@pytest.mark.parametrize("by_rank", [(20, 500, 600), (20, 500), (0, 900)])
def test_the_rank_that_the_others_wait_for_decides(by_rank):
    assert fired(sync_bound, blocked(*by_rank)).saving_ns_per_step == max(by_rank)


def test_five_calls_are_shown():
    calls = {f"cudaFree{number}": 100 - number for number in range(9)}
    found = fired(sync_bound, blocked(300, calls=calls))
    assert list(found.evidence["idle_ns_per_step_by_call"]) == [f"cudaFree{number}" for number in range(5)]


def test_without_names_it_is_some_call():
    assert fired(sync_bound, blocked(300, calls={})).action == ("keep a synchronising call out of the step")


def test_a_long_name_is_cut():
    found = fired(sync_bound, blocked(300, calls={"cudaMalloc" + "x" * 500: 300}))
    assert len(found.action) == LONGEST_ACTION


@pytest.mark.parametrize("by_rank", [(None,), (300, None)])
def test_what_is_not_known_is_no_finding(by_rank):
    silent(sync_bound, blocked(*by_rank))
