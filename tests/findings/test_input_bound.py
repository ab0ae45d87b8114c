"""Rule input-bound: the GPU idles while the host gets the next batch."""

from __future__ import annotations

import pytest

from nsyspipe.findings.input_bound import input_bound
from tests.findings.make import evidence, fired, silent, step, steps


def waiting(*by_rank, **more):
    return evidence([step(rank, idle_input_ns=idle, **more) for rank, idle in enumerate(by_rank)])


def test_idle_time_of_the_data_phase_is_the_saving():
    found = fired(input_bound, waiting(300, idle_launch_ns=50, idle_blocked_ns=10))
    assert found.saving_ns_per_step == 300
    assert found.evidence == {
        "idle_ns_per_step": 360,
        "idle_input_ns_per_step": 300,
        "idle_launch_ns_per_step": 50,
        "idle_blocked_ns_per_step": 10,
        "idle_dependency_ns_per_step": 0,
        "idle_unknown_ns_per_step": 0,
    }


@pytest.mark.parametrize(("idle", "fires"), [(20, True), (19, False)])
def test_it_needs_2_percent_of_step_time(idle, fires):
    (fired if fires else silent)(input_bound, waiting(idle))


@pytest.mark.parametrize(
    ("by_rank", "saving"),
    [((0, 20, 500), 500), ((20, 300), 300), ((0, 20, 60, 900), 900), ((40, 0, 40), 40)],
    ids=["the middle of three", "the lower of two", "the lower middle of four", "sorted first"],
)
def test_the_rank_in_the_middle_decides_and_the_one_with_most_bounds_the_saving(by_rank, saving):
    assert fired(input_bound, waiting(*by_rank)).saving_ns_per_step == saving


@pytest.mark.parametrize("by_rank", [(0, 19, 500), (19, 300), (0, 19, 60, 900)])
def test_less_than_2_percent_on_the_rank_in_the_middle_is_no_finding(by_rank):
    silent(input_bound, waiting(*by_rank))


@pytest.mark.parametrize("by_rank", [(0, 900), (0, 0, 900), (900, 0, 0, 0)])
def test_one_slow_loader_is_a_straggler_and_no_slow_input(by_rank):
    silent(input_bound, waiting(*by_rank))


def test_steps_of_a_rank_are_averaged_before_ranks_are_compared():
    # Rank 0: (0 + 200) / 2 = 100, rank 1: (110 + 110) / 2 = 110.
    rows = [step(0, 1), step(0, 2, idle_input_ns=200)]
    rows += [step(1, number, idle_input_ns=110) for number in (1, 2)]
    assert fired(input_bound, evidence(rows)).saving_ns_per_step == 110


@pytest.mark.parametrize(
    "given",
    [
        waiting(None),
        waiting(300, None),
        evidence(steps(1, idle_launch_ns=500)),
        evidence([step(wall=0)]),
    ],
    ids=["not recorded", "not recorded on one rank", "launches are late", "no time"],
)
def test_idle_time_of_other_or_unknown_cause_is_no_input(given):
    silent(input_bound, given)
