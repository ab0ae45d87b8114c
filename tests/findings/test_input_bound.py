"""Rule input-bound: the GPU idles while the host gets the next batch."""

from __future__ import annotations

import pytest

from nsyspipe.findings.input_bound import input_bound
from tests.findings.make import evidence, fired, silent, step, steps


def waiting(*by_rank, **more):
    """Return ranks that idle so long for input; the others wait for the one that idles most."""
    most = max((idle or 0 for idle in by_rank), default=0)
    waits = [most - (idle or 0) for idle in by_rank]
    return evidence(
        [
            step(rank, idle_input_ns=idle, exposed=wait, wait=wait, **more)
            for rank, (idle, wait) in enumerate(zip(by_rank, waits, strict=True))
        ]
    )


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
        "idle_between_steps_ns_per_step": 0,
    }


@pytest.mark.parametrize(("idle", "fires"), [(20, True), (19, False)])
def test_it_needs_2_percent_of_step_time(idle, fires):
    (fired if fires else silent)(input_bound, waiting(idle))


@pytest.mark.parametrize("by_rank", [(0, 20, 500), (20, 300), (0, 0, 0, 900), (40, 0, 40)])
def test_the_rank_that_the_others_wait_for_decides(by_rank):
    found = fired(input_bound, waiting(*by_rank))
    assert found.saving_ns_per_step == max(by_rank)
    assert found.evidence["rank"] == by_rank.index(max(by_rank))
    assert found.evidence["judged_idle_input_ns_per_step"] == max(by_rank)


def test_a_rank_that_waits_longer_for_others_than_they_for_it_is_not_asked():
    # Rank 0 idles 300 for input, and still waits 100 for rank 1, which computes.
    rows = [step(0, idle_input_ns=300, exposed=100, wait=100), step(1)]
    silent(input_bound, evidence(rows))


def test_who_is_waited_for_may_change_by_step():
    # In step 1 rank 0 idles 200 and rank 1 waits, in step 2 the other way round: 200 each.
    rows = [step(0, 1, idle_input_ns=200), step(1, 1, exposed=200, wait=200)]
    rows += [step(0, 2, exposed=200, wait=200), step(1, 2, idle_input_ns=200)]
    assert fired(input_bound, evidence(rows)).saving_ns_per_step == 200


def test_no_rank_gets_faster_than_its_own_work():
    # Rank 0 idles 300 of 1000, and waits for nobody; rank 1 idles 100, and waits 150: 250 at most.
    rows = [step(0, idle_input_ns=300), step(1, idle_input_ns=100, exposed=150, wait=150)]
    assert fired(input_bound, evidence(rows)).saving_ns_per_step == 250


def test_where_waiting_is_not_known_the_middle_rank_decides_and_the_one_with_most_bounds_it():
    rows = [step(rank, idle_input_ns=idle, wait_ns=None) for rank, idle in enumerate((0, 20, 500))]
    found = fired(input_bound, evidence(rows))
    assert (found.saving_ns_per_step, found.evidence["rank"]) == (500, None)


def test_waiting_that_another_cause_made_stays():
    # Rank 0 idles 50 for input and computes 250 more than rank 1, which waits 300: 50 of them for that input.
    rows = [step(0, idle_input_ns=50), step(1, exposed=300, wait=300)]
    assert fired(input_bound, evidence(rows)).saving_ns_per_step == 50


def test_no_rank_waits_for_its_own_input():
    # Rank 0 idles 300 and waits 200, rank 1 idles 100 and waits 250, rank 2 neither: 1000 - 300 - 100 of rank 0,
    # 1000 - 100 - 250 of rank 1 and 1000 - 100 of rank 2, which alone takes as long as before but for nothing.
    rows = [
        step(0, idle_input_ns=300, exposed=200, wait=200),
        step(1, idle_input_ns=100, exposed=250, wait=250),
        step(2, idle_input_ns=60, wall=700),
    ]
    assert fired(input_bound, evidence(rows)).saving_ns_per_step == 350


def test_where_ranks_are_missing_nobody_is_known_to_be_waited_for():
    rows = [step(0, idle_input_ns=300), step(1, idle_input_ns=100, exposed=200, wait=200)]
    found = fired(input_bound, evidence(rows, world_size=3))
    assert (found.saving_ns_per_step, found.evidence["rank"]) == (300, None)


@pytest.mark.parametrize(("between", "is_probable"), [(200, True), (150, False), (0, False)])
def test_between_steps_it_is_probably_the_loader(between, is_probable):
    found = fired(input_bound, evidence([step(idle_input_ns=300, idle_between_steps_ns=between)]))
    assert ("probably waits for the data loader" in found.title) == is_probable
    assert ("probably the data loader" in found.action) == is_probable


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
