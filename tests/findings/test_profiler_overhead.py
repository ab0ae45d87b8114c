"""Rule profiler-overhead: the first step against the others, and the profiler's own work."""

from __future__ import annotations

import pytest

from nsyspipe.findings.profiler_overhead import profiler_overhead
from tests.findings.make import evidence, fired, silent, step, steps


def run(first, *others, skipped=True, n_ranks=1, **figures):
    """Return steps 0, 1, ... of these lengths; the first is left out of the figures unless told."""
    rows = [
        step(rank, number, wall=wall, in_summary=not (skipped and number == 0), **figures)
        for rank in range(n_ranks)
        for number, wall in enumerate((first, *others))
    ]
    return evidence(rows, skipped_steps=(0,) if skipped else ())


def test_a_long_first_step_is_a_warning_without_a_saving():
    # The median of 100, 100, 120, 120 is 110: 220 is twice that.
    found = fired(profiler_overhead, run(220, 100, 120, 100, 120))
    assert found.saving_ns_per_step is None
    assert found.title == "the first step takes 2 times the others, and is left out of the figures"
    assert found.evidence == {
        "overhead_ns_per_step": 0,
        "first_step_to_median_ratio": 2,
        "first_step_is_skipped": True,
    }


def test_a_first_step_that_counts_is_said_to():
    found = fired(profiler_overhead, run(300, 100, 100, skipped=False))
    assert found.title == "the first step takes 3 times the others"
    assert found.evidence["first_step_is_skipped"] is False
    assert found.evidence["first_step_to_median_ratio"] == 3  # not against itself


@pytest.mark.parametrize(("wait", "overhead", "is_shown"), [(55, 0, True), (25, 30, True), (54, 0, False)])
def test_the_start_of_the_capture_is_named_where_waiting_and_overhead_are_half_of_it(wait, overhead, is_shown):
    # 220 are 110 more than the median of the others.
    rows = [step(0, 0, wall=220, in_summary=False, wait=wait, exposed=wait)]
    rows[0]["overhead_ns"] = overhead
    rows += [step(0, number, wall=110) for number in range(1, 4)]
    title = fired(profiler_overhead, evidence(rows, skipped_steps=(0,))).title
    assert ("distorted by the start of the capture" in title) == is_shown


@pytest.mark.parametrize(("first", "fires"), [(150, True), (149, False)])
def test_it_takes_half_as_long_again(first, fires):
    (fired if fires else silent)(profiler_overhead, run(first, 100, 100, 100))


def test_a_first_step_like_some_others_is_no_distortion():
    # Gradient accumulation: every third step communicates and takes twice as long.
    silent(profiler_overhead, run(200, 100, 100, 200, 100, 100))


def test_the_slowest_rank_of_each_step_counts():
    rows = [step(0, 0, wall=100, in_summary=False), step(1, 0, wall=400, in_summary=False)]
    rows += [step(rank, 1, wall=200) for rank in range(2)]
    found = fired(profiler_overhead, evidence(rows, skipped_steps=(0,)))
    assert found.evidence["first_step_to_median_ratio"] == 2


def test_several_steps_may_be_left_out():
    rows = [step(0, number, wall=500 - 100 * number) for number in range(5)]
    for row in rows[:3]:
        row["in_summary"] = False
    found = fired(profiler_overhead, evidence(rows, skipped_steps=(0, 1, 2)))
    assert found.evidence["first_step_to_median_ratio"] == 500 / 150


@pytest.mark.parametrize(("overhead", "fires"), [(10, True), (9, False)])
def test_the_profilers_own_work_counts_from_1_percent(overhead, fires):
    (fired if fires else silent)(profiler_overhead, run(1000, 1000, overhead_ns=overhead))


def test_the_profilers_own_work_is_what_could_be_saved():
    # 30 and 50 in the figures' steps: 40 per step; what it did in the step left out is no matter.
    rows = [step(0, 0, overhead_ns=900, in_summary=False)]
    rows += [step(0, 1, overhead_ns=30), step(0, 2, overhead_ns=50)]
    found = fired(profiler_overhead, evidence(rows, skipped_steps=(0,)))
    assert found.saving_ns_per_step == 40
    assert found.title == "the profiler was busy during the steps"


@pytest.mark.parametrize(
    "given",
    [
        run(100, 100, 100, overhead_ns=None),
        run(500, skipped=False),
        run(0, 0, 0),
        evidence(steps(2)),
    ],
    ids=["not recorded", "one step", "windows without length", "one step, two ranks"],
)
def test_nothing_to_compare_is_nothing_to_say(given):
    silent(profiler_overhead, given)
