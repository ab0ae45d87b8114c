"""Rule straggler: one rank alone holds the others up, step after step."""

from __future__ import annotations

import pytest

from nsyspipe.findings.straggler import straggler
from tests.findings.make import (
    collective,
    evidence,
    fired,
    not_judged,
    phase,
    silent,
    step,
    steps,
    unmatched,
)


def run(late, n_ranks=2, *, phases=(), **more):
    """Return a run where rank 1 starts the all-reduce of each step so many ns after all others; negative: before rank 0."""
    rows = []
    for number, by in enumerate(late, start=1):
        starts = [max(-by, 0), max(by, 0), *(0 for _ in range(n_ranks - 2))]
        rows += collective(number, starts, 500, **more)
    numbers = range(1, len(late) + 1)
    return evidence(steps(n_ranks, *numbers, exposed=300), rows, phases=phases)


def test_the_rank_that_holds_up_every_step_is_named_with_its_phase():
    # 50, 40, 40, 70 of 1000: 200 over four steps. It takes 30 longer in forward on the host.
    phases = [phase("forward", rank, 1, host_ns=100 + 30 * rank) for rank in range(2)]
    phases += [phase("backward", rank, 1, host_ns=200 + 5 * rank) for rank in range(2)]
    found = fired(straggler, run([50, 40, 40, 70], phases=phases))
    assert found.action == "rank 1 makes the others wait, mostly in forward"
    assert found.title == "the others wait for rank 1, mostly in forward"
    assert found.saving_ns_per_step == 50
    assert found.evidence == {
        "rank": 1,
        "phase": "forward",
        "phase_excess_ns_per_step": 30,
        "lateness_ns_per_step": 50,
        "n_steps_held_up": 4,
        "n_steps_with_collectives": 4,
        "n_arrived_last": 4,
        "wait_caused_ns": 200,
    }


def test_a_delay_that_many_buckets_see_counts_once():
    # The second bucket is late by 90 as well; the largest delay of the step is the step's.
    rows = collective(1, (0, 100), 400) + collective(1, (400, 490), 800, seq=1)
    found = fired(straggler, evidence(steps(2, exposed=800), rows))
    assert (found.saving_ns_per_step, found.evidence["wait_caused_ns"]) == (100, 190)


# --- thresholds -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("late", "fires"),
    [
        ([30, 30, 30], True),
        ([30, 30, 29], False),
        ([100, 100], True),
        ([100, 99], False),
        ([100], True),
        ([99], False),
        ([60, 60, 0, 0], False),
        ([60, 60, 60, 0], True),
        ([900, 0, 0, 0], False),
    ],
    ids=[
        "3 %",
        "less than 3 %",
        "10 % of two steps",
        "less than that",
        "10 % of one step",
        "less of one step",
        "half of the steps",
        "most steps",
        "one step only",
    ],
)
def test_it_needs_most_steps_and_3_percent_or_10_of_few(late, fires):
    (fired if fires else silent)(straggler, run(late))


def test_ranks_that_take_turns_are_no_stragglers():
    silent(straggler, run([90, -90, 90, -90]))


def test_a_delay_within_clock_error_holds_nobody_up():
    silent(straggler, run([50] * 4, is_late_significant=False))


def test_where_ranks_rarely_meet_the_steps_count_in_which_they_do():
    # Gradient accumulation: ranks meet in 3 of 12 steps, 200 late each: 600 / 12 = 50 per step.
    rows = [row for number in (4, 8, 12) for row in collective(number, (0, 200), 500)]
    found = fired(straggler, evidence(steps(2, *range(1, 13), exposed=300), rows))
    assert found.saving_ns_per_step == 50
    assert found.evidence["n_steps_held_up"] == found.evidence["n_steps_with_collectives"] == 3


def test_of_two_late_ranks_only_the_last_counts():
    # Ranks 1 and 2 start 400 and 440 after rank 0: the others could start 40 sooner, not 440.
    rows = [row for number in range(1, 4) for row in collective(number, (0, 400, 440), 800)]
    given = evidence(steps(3, 1, 2, 3, exposed=800), rows)
    found = fired(straggler, given)
    assert (found.evidence["rank"], found.saving_ns_per_step) == (2, 40)


# --- phases ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("figure", ["host_ns", "device_ns", "idle_ns"])
def test_a_phase_may_be_longer_on_host_or_device_or_idle(figure):
    # Rank 1 against the mean of ranks 0 and 2: 90 - (10 + 30) / 2 = 70.
    phases = [phase("data", rank, 1, **{figure: own}) for rank, own in enumerate((10, 90, 30))]
    found = fired(straggler, run([100], 3, phases=phases))
    assert (found.evidence["phase"], found.evidence["phase_excess_ns_per_step"]) == ("data", 70)
    assert "data" in found.advice


@pytest.mark.parametrize(
    "phases",
    [
        [],
        [phase("forward", 1, 1, host_ns=500)],
        [phase("forward", rank, 1, host_ns=500 - rank) for rank in range(2)],
        [phase("forward", rank, 2, host_ns=500 * rank) for rank in range(2)],
    ],
    ids=["not marked", "only on the straggler", "shorter", "in another step"],
)
def test_without_a_longer_phase_none_is_blamed(phases):
    found = fired(straggler, run([100], phases=phases))
    assert found.action == "rank 1 makes the others wait"
    assert (found.evidence["phase"], found.evidence["phase_excess_ns_per_step"]) == (None, None)


# --- what it does not look at ---------------------------------------------------------------------


def test_waiting_that_is_not_known_cannot_be_judged():
    rows = unmatched(collective(1, (0, 100), 500))
    given = evidence(steps(2, exposed=300, wait_ns=None), rows)
    assert not_judged(straggler, given) == "waiting is not known"


@pytest.mark.parametrize(
    "given",
    [
        evidence(steps(1, exposed=300), collective(1, (0,), 300)),
        evidence(steps(2)),
        evidence(steps(2, comm_ns=None)),
        run([0, 0, 0]),
    ],
    ids=["one rank", "no communication", "not recorded", "together"],
)
def test_who_waits_for_nobody_has_no_straggler(given):
    silent(straggler, given)


def test_a_world_of_many_ranks_still_fits_the_line():
    last = 1_048_575
    rows = [
        row | {"rank": rank}
        for row, rank in zip(collective(1, (0, 100), 500), (0, last), strict=True)
    ]
    phases = [phase("optimizer", 0, host_ns=0), phase("optimizer", last, host_ns=9)]
    given = evidence([step(rank, exposed=300) for rank in (0, last)], rows, phases=phases)
    assert fired(straggler, given).evidence["rank"] == last


def test_the_step_in_which_the_capture_began_is_no_evidence():
    late = collective(0, (0, 900), 1000)
    lone = steps(2, 0, exposed=900)
    assert not_judged(straggler, evidence(lone, late)).startswith("the only step")
