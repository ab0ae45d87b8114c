"""Limits of the rules about hosts, just below and just above each. Times are ns, steps are of 1000 unless told."""

from nsyspipe.findings.host import input_bound, launch_bound, pageable_copy
from tests.findings.device_rules import COPIED, DATA, LAUNCH, idle
from tests.findings.make import evidence, step


def title_with_idle_time_in_turn(idle_of_rank_1):
    """Return the title of `input_bound` where rank 0 idles 300 in three steps, and rank 1 so much in a fourth.

    The other rank waits in each step.
    """
    rows = []
    for number in (1, 2, 3):
        rows += [step(0, number, idle_input_ns=300), step(1, number, exposed=300, wait=300)]
    rows.append(step(0, 4, exposed=idle_of_rank_1, wait=idle_of_rank_1))
    rows.append(step(1, 4, idle_input_ns=idle_of_rank_1))
    return input_bound(evidence(rows, phases=DATA)).title


def test_ranks_that_idle_in_turn_have_a_title_of_their_own():
    assert title_with_idle_time_in_turn(400) != title_with_idle_time_in_turn(100)


# 300 of 3 x 300 + 300 are a quarter.
def test_a_rank_with_a_quarter_of_the_idle_time_has_a_turn():
    assert title_with_idle_time_in_turn(300) == title_with_idle_time_in_turn(400)


# 299 of 3 x 300 + 299 are 24.9 %.
def test_a_rank_with_less_than_a_quarter_of_the_idle_time_has_no_turn():
    assert title_with_idle_time_in_turn(299) == title_with_idle_time_in_turn(100)


def launch_bound_with_pauses(pause_ns, *, phases=DATA):
    """Return what `launch_bound` finds where so much of 200 ns of idle time for launches lies in pauses."""
    return launch_bound(idle(LAUNCH, 200, idle_pause_ns=pause_ns, phases=phases))


def test_idle_time_in_pauses_has_an_action_of_its_own():
    assert launch_bound_with_pauses(200).action != launch_bound_with_pauses(0).action


# 100 of 200 are half.
def test_idle_time_of_which_half_lies_in_pauses_is_mostly_pauses():
    assert launch_bound_with_pauses(100).action == launch_bound_with_pauses(200).action


# 99 of 200 are 49.5 %.
def test_idle_time_of_which_less_than_half_lies_in_pauses_is_not():
    assert launch_bound_with_pauses(99).action == launch_bound_with_pauses(0).action


# 50 of 200 are a quarter.
def test_a_quarter_in_pauses_changes_the_advice():
    assert launch_bound_with_pauses(50).advice != launch_bound_with_pauses(0).advice


# 49 of 200 are 24.5 %.
def test_less_than_a_quarter_in_pauses_changes_no_advice():
    assert launch_bound_with_pauses(49).advice == launch_bound_with_pauses(0).advice


def advice_about_ranges_changes(pause_ns):
    """Tell whether the advice depends on a range for data where so much of 200 ns lies in pauses."""
    unmarked = launch_bound_with_pauses(pause_ns, phases=[])
    return unmarked.advice != launch_bound_with_pauses(pause_ns).advice


def test_a_quarter_in_pauses_asks_for_a_range_around_data_loading():
    assert advice_about_ranges_changes(50)


def test_less_than_a_quarter_in_pauses_asks_for_no_range():
    assert not advice_about_ranges_changes(49)


def has_pageable_copy(copies_ns):
    """Tell whether `pageable_copy` fires for exposed copies of so long, in a step of 100 000."""
    figures = COPIED | {"idle_made_by_copies_ns": 0, "exposed_blocking_copy_ns": copies_ns}
    return pageable_copy(evidence([step(wall=100_000, **figures)])) is not None


# 100 of 100 000 are 0.1 %.
def test_blocking_copies_of_a_thousandth_of_a_step_are_found():
    assert has_pageable_copy(100)


def test_blocking_copies_of_less_than_a_thousandth_are_not_found():
    assert not has_pageable_copy(99)
