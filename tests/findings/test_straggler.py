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
        "held_up_ns_per_step_by_rank": {"1": 50},
        "n_steps_held_up_by_rank": {"1": 4},
        "lateness_ns_per_step": 50,
        "n_steps_held_up": 4,
        "n_steps_with_collectives": 4,
        "n_arrived_last": 4,
        "wait_caused_ns": 200,
    }


def test_what_the_others_wait_in_each_collective_adds_up():
    # The second bucket is waited for by 90 as well: 190, and the largest delay of the step is 100.
    rows = collective(1, (0, 100), 400) + collective(1, (400, 490), 800, seq=1)
    found = fired(straggler, evidence(steps(2, exposed=800), rows))
    assert (found.saving_ns_per_step, found.evidence["wait_caused_ns"]) == (190, 190)
    assert found.evidence["lateness_ns_per_step"] == 100


def test_nobody_waits_longer_than_its_own_operation():
    # Rank 0 leaves at 60 (a broadcast) although rank 1 comes at 100: it waited 60.
    rows = collective(1, (0, 100), 400)
    rows[1]["held_up_ns"] = 60
    assert fired(straggler, evidence(steps(2, exposed=400), rows)).saving_ns_per_step == 60


def test_a_step_is_not_held_up_for_longer_than_what_is_beside_compute():
    # Two communicators side by side, each waits 700 of a step of 1000, of which 100 are compute.
    rows = collective(1, (0, 700), 900) + collective(1, (0, 700), 900, seq=1, comm_id="b")
    assert fired(straggler, evidence(steps(2, exposed=900), rows)).saving_ns_per_step == 900


def test_what_a_late_rank_computes_more_than_the_others_may_go():
    # Rank 1 computes 900 where rank 0 computes 300 and waits for 600.
    rows = collective(1, (300, 900), 1000)
    given = evidence([step(0, exposed=700, wait=600), step(1, exposed=100)], rows)
    assert fired(straggler, given).saving_ns_per_step == 600


def test_stages_of_a_pipeline_wait_by_design():
    silent(straggler, run([500] * 4, kind="send_recv"))


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


def test_ranks_that_are_late_in_turn_are_all_named_and_the_bound_is_theirs_together():
    # Rank 1 is late by 90 in three of four steps, rank 0 by 80 in one: 350 / 4.
    found = fired(straggler, run([90, -80, 90, 90]))
    assert found.saving_ns_per_step == 87.5
    assert found.evidence["held_up_ns_per_step_by_rank"] == {"1": 67.5, "0": 20}
    assert found.evidence["n_steps_held_up_by_rank"] == {"1": 3, "0": 1}
    assert found.title == (
        "the others wait for ranks 1 (77 % of it, in 3 of 4 steps) and 0 (23 % of it, in 1 of 4 steps)"
    )
    assert found.action == "ranks 1 and 0 make the others wait"


@pytest.mark.parametrize(("behind", "is_named"), [(25, True), (24, False)])
def test_who_is_late_behind_the_last_is_named_too(behind, is_named):
    # Of four ranks one comes 100 late, and once it is mended the others wait for the one before it: a quarter of that.
    rows = [row for number in range(1, 4) for row in collective(number, (0, behind, 0, 100), 300)]
    found = fired(straggler, evidence(steps(4, 1, 2, 3, exposed=300), rows))
    assert found.saving_ns_per_step == 100
    assert found.evidence["held_up_ns_per_step_by_rank"] == {"3": 100}
    assert found.evidence.get("late_behind_ns_per_step_by_rank") == ({"1": 25} if is_named else None)
    assert found.title == "the others wait for rank 3" + (", and then for 1" if is_named else "")
    assert found.action == ("ranks 3 and 1 make the others wait" if is_named else "rank 3 makes the others wait")


def test_two_ranks_late_in_one_step_are_both_named():
    # Rank 1 comes 100 late to the first collective, rank 0 120 late to the second: 220 in each step.
    rows = []
    for number in range(1, 4):
        rows += collective(number, (0, 100), 300)
        rows += collective(number, (520, 400), 700, seq=1)
    found = fired(straggler, evidence(steps(2, 1, 2, 3, exposed=700), rows))
    assert found.saving_ns_per_step == 220
    assert found.evidence["held_up_ns_per_step_by_rank"] == {"0": 120, "1": 100}


def test_of_many_late_ranks_the_line_tells_the_number():
    rows = []
    for number in range(4):
        rows += collective(number + 1, [100 if rank == number else 0 for rank in range(5)], 500)
    found = fired(straggler, evidence(steps(5, 1, 2, 3, 4, exposed=500), rows))
    assert found.action == "4 ranks in turn make the others wait"


def test_a_delay_within_clock_error_holds_nobody_up():
    silent(straggler, run([50] * 4, is_late_significant=False))


def test_where_ranks_rarely_meet_the_steps_count_in_which_they_do():
    # Gradient accumulation: ranks meet in 3 of 12 steps, 200 late each: 600 / 12 = 50 per step.
    rows = [row for number in (4, 8, 12) for row in collective(number, (0, 200), 500)]
    found = fired(straggler, evidence(steps(2, *range(1, 13), exposed=300), rows))
    assert found.saving_ns_per_step == 50
    assert found.evidence["n_steps_held_up"] == found.evidence["n_steps_with_collectives"] == 3


def test_the_first_waits_for_the_last_whoever_comes_between():
    # Ranks 1 and 2 start 400 and 440 after rank 0, which waits 440.
    rows = [row for number in range(1, 4) for row in collective(number, (0, 400, 440), 800)]
    given = evidence(steps(3, 1, 2, 3, exposed=800), rows)
    found = fired(straggler, given)
    assert (found.evidence["rank"], found.saving_ns_per_step) == (2, 440)


# --- phases ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("known", [("host_ns",), ("device_ns", "idle_ns"), ("idle_ns", "device_ns")])  # fmt: skip
def test_a_phase_may_be_longer_on_the_device_or_idle_or_where_neither_is_known_on_the_host(known):
    # Rank 1 against the mean of ranks 0 and 2: 90 - (10 + 30) / 2 = 70.
    phases = [
        phase("data", rank, 1, **(dict.fromkeys(known, 0) | {known[0]: own})) for rank, own in enumerate((10, 90, 30))
    ]
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


def on_device(spent, idle_input=0):
    """Return a finding about rank 1, of which each phase spends so much idle; rank 0 spends 10 in each."""
    phases = [
        phase(name, rank, 1, host_ns=1000 * (name == "backward"), device_ns=0, idle_ns=own)
        for name, late in spent.items()
        for rank, own in enumerate((10, late))
    ]
    wait = sum(spent.values())
    rows = [step(0, exposed=wait, wait=wait), step(1, idle_input_ns=idle_input)]
    return fired(straggler, evidence(rows, collective(1, (0, wait), 900), phases=phases)).evidence


@pytest.mark.parametrize(
    ("spent", "idle_input", "blamed"),
    [
        ({"forward": 200, "backward": 30}, 0, "forward"),
        ({"forward": 130, "backward": 120}, 0, None),
        ({"forward": 200, "data": 20}, 180, "data"),
        ({"forward": 200, "data": 20}, 90, None),
    ],
    ids=["most of it", "half of it", "the host was loading data", "half of it loading data"],
)
def test_a_phase_is_blamed_for_more_than_60_percent_by_one_measure(spent, idle_input, blamed):
    assert on_device(spent, idle_input)["phase"] == blamed


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
    rows = [row | {"rank": rank} for row, rank in zip(collective(1, (0, 100), 500), (0, last), strict=True)]
    phases = [phase("optimizer", 0, host_ns=0), phase("optimizer", last, host_ns=9)]
    given = evidence([step(rank, exposed=300) for rank in (0, last)], rows, phases=phases)
    assert fired(straggler, given).evidence["rank"] == last


def test_the_step_in_which_the_capture_began_is_no_evidence():
    late = collective(0, (0, 900), 1000)
    lone = steps(2, 0, exposed=900)
    assert not_judged(straggler, evidence(lone, late)).startswith("the only step")
