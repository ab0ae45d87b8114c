"""Allocations in steps: what their rule says where calls were not recorded, and on built reports."""

import pytest
from hypothesis import given, settings, strategies as st

from nsyspipe.findings.judge import judge
from nsyspipe.findings.memory import recurring_ranks
from tests.build.tools import run_of
from tests.build.trace import RUNTIME, steady_rank
from tests.findings.make import evidence, findings, step
from tests.findings.memory_rules import allocating


def test_ranks_on_which_calls_recur_are_told_with_their_steps():
    rows = []
    for number in (1, 2, 3):
        rows += [step(0, number, n_allocs=1), step(1, number, n_frees=number - 1), step(2, number)]
    assert recurring_ranks(evidence(rows), "n_allocs", "n_frees") == {0: 3, 1: 2}


def recurs(n_calls):
    """Tell by plain counting whether steps behind the first have calls in half of all and of the later half."""
    with_calls = [place for place, number in enumerate(n_calls) if number > 0]
    half = len(n_calls) // 2
    of_later_half = [place for place in with_calls if place >= half]
    return (
        len(with_calls) >= 2
        and 2 * len(with_calls) >= len(n_calls)
        and 2 * len(of_later_half) >= len(n_calls) - half
    )


COUNTS = st.lists(st.integers(0, 2), min_size=1, max_size=9)


@pytest.mark.slow
@given(st.lists(COUNTS, min_size=1, max_size=3))
@settings(max_examples=100, deadline=None)
def test_recurring_ranks_equal_counting_the_steps_of_each(n_calls_of_ranks):
    rows = []
    for rank, n_calls in enumerate(n_calls_of_ranks):
        rows += [step(rank, at, n_allocs=number) for at, number in enumerate(n_calls, start=1)]
    expected = {
        rank: sum(number > 0 for number in n_calls)
        for rank, n_calls in enumerate(n_calls_of_ranks)
        if recurs(n_calls)
    }
    assert recurring_ranks(evidence(rows), "n_allocs", "n_frees") == expected


def test_without_recorded_calls_the_rule_is_not_judged():
    rows, problems = judge(allocating(None, None))
    assert "alloc-in-step" not in rows["id"].to_pylist()
    skipped = [one.skipped_check for one in problems if one.skipped_check]
    assert "alloc-in-step" in {name for check in skipped for name in check.rules}


def freeing_rank(n_steps=5, *, steps=(0, 1, 2, 3, 4), result=0, rank=0, world_size=1):
    """Return a rank whose steps free and allocate memory at 400, after their last launch.

    The device idles from 350 of a step to 1100. The calls take 200 and 100 of that.
    """
    builder = steady_rank(rank, n_steps, world_size=world_size)
    for number in steps:
        at = 1000 * number
        builder.memory_call(at + 400, at + 600, "cudaFree_v3020", n_bytes=4096)
        builder.memory_call(at + 600, at + 700, n_bytes=8192, result=result)
    return builder


@pytest.fixture
def found(tmp_path):
    return findings(run_of(tmp_path, freeing_rank()))


def test_a_run_that_frees_and_allocates_in_each_step_has_the_finding(found):
    assert found["alloc-in-step"]["evidence"]["n_frees_per_step"] == 1.0
    assert found["alloc-in-step"]["evidence"]["n_steps_with_allocs_by_rank"] == {"0": 4}


def test_the_finding_has_the_bytes(found):
    assert found["alloc-in-step"]["evidence"]["alloc_bytes_per_step"] == 8192
    assert found["alloc-in-step"]["evidence"]["freed_bytes_per_step"] == 4096


# The device idles 750 of 1000 for late launches, 300 of them in the calls.
def test_the_saving_is_the_idle_time_that_the_calls_made(found):
    assert found["alloc-in-step"]["evidence"]["exposed_alloc_ns_per_step"] == 300
    assert found["alloc-in-step"]["saving_ns_per_step"] == 300


def test_the_calls_have_one_finding(found):
    assert "sync-bound" not in found


def test_a_failed_allocation_is_told(tmp_path):
    found = findings(run_of(tmp_path, freeing_rank(result=2)))
    assert found["alloc-in-step"]["evidence"]["n_failed_allocs_per_step"] == 1.0


def test_calls_of_the_first_step_alone_are_a_warm_up(tmp_path):
    run = run_of(tmp_path, freeing_rank(steps=(0,)), skip_first=0)
    assert run.breakdown()["n_frees"].to_pylist()[0] == 1
    assert "alloc-in-step" not in findings(run)


def test_calls_that_end_after_a_few_steps_are_a_warm_up(tmp_path):
    assert "alloc-in-step" not in findings(run_of(tmp_path, freeing_rank(8, steps=(0, 1, 2, 3))))


def test_calls_that_no_device_idles_for_are_no_finding(tmp_path):
    builder = freeing_rank()
    for number in range(5):
        # The device computes until the next step begins.
        builder.kernel(1000 * number + 350, 1000 * number + 1100, launch=1000 * number + 95)
    assert "alloc-in-step" not in findings(run_of(tmp_path, builder))


def test_a_run_without_the_table_of_calls_has_no_finding(tmp_path):
    run = run_of(tmp_path, freeing_rank(), without=(RUNTIME,))
    assert "alloc-in-step" not in findings(run)
    names = {name for check in run.skipped_checks for name in check.rules}
    assert "alloc-in-step" in names
