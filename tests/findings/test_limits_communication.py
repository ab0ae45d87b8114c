"""Limits of the rules about communication, just below and just above each. Times are ns, steps are of 1000."""

import pytest

from nsyspipe.findings.communication import comm_bound, comm_slows_compute
from tests.findings.comm_rules import beside_waits
from tests.findings.make import evidence, kernel, phase, step, steps


def action_with_comm_on_compute_stream(stream_ns):
    """Return what `comm_bound` advises where so much of 300 ns runs on the compute stream."""
    return comm_bound(evidence(steps(2, exposed=300, comm_on_compute_stream_ns=stream_ns))).action


def test_all_communication_on_the_compute_stream_has_an_action_of_its_own():
    assert action_with_comm_on_compute_stream(300) != action_with_comm_on_compute_stream(0)


# 200 of 300 are two thirds.
def test_two_thirds_on_the_compute_stream_count_as_all():
    assert action_with_comm_on_compute_stream(200) == action_with_comm_on_compute_stream(300)


# 199 of 300 are 66.3 %.
def test_less_than_two_thirds_on_the_compute_stream_count_as_none():
    assert action_with_comm_on_compute_stream(199) == action_with_comm_on_compute_stream(0)


def title_with_comm_of_backward(backward_ns):
    """Return the title of `comm_bound` where backward launched so much of 300 exposed ns, and no phase the rest."""
    of_backward = [phase("backward", exposed_comm_ns=backward_ns)]
    return comm_bound(evidence([step(exposed=300)], phases=of_backward)).title


def test_a_phase_that_launched_all_exposed_communication_is_named():
    assert title_with_comm_of_backward(300) != title_with_comm_of_backward(0)


# 200 of 300 are two thirds.
def test_a_phase_with_two_thirds_of_exposed_communication_is_named():
    assert title_with_comm_of_backward(200) == title_with_comm_of_backward(300)


# 199 of 300 are 66.3 %.
def test_a_phase_with_less_than_two_thirds_is_not_named():
    assert title_with_comm_of_backward(199) == title_with_comm_of_backward(0)


def fix_with_wait(wait_ns):
    """Return what brings the slowdown where so much of 200 ns of communication is waiting."""
    return comm_slows_compute(beside_waits(wait_ns)).fix


def test_a_run_that_only_waits_has_a_fix_of_its_own():
    assert fix_with_wait(200) != fix_with_wait(0)


# 100 of 200 are half.
def test_half_of_communication_is_mostly_waiting():
    assert fix_with_wait(100) == fix_with_wait(200)


# 99 of 200 are 49.5 %.
def test_less_than_half_of_communication_is_not_mostly_waiting():
    assert fix_with_wait(99) == fix_with_wait(0)


def fix_with_compared_kernels(n_kernels):
    """Return what brings the slowdown where so many kernels can be compared, 500 of 40 500 ns."""
    kernels = [
        kernel("gemm", n_kernels, 500, 147),
        kernel("other", 0, 0, 0) | {"overlapped_ns": 40_000},
    ]
    return comm_slows_compute(evidence(steps(2, hidden=200), kernels=kernels)).fix


def test_few_compared_kernels_have_a_fix_of_their_own():
    assert fix_with_compared_kernels(10) != fix_with_compared_kernels(50)


def test_30_compared_kernels_are_enough_for_one_fix():
    assert fix_with_compared_kernels(30) == fix_with_compared_kernels(50)


def test_29_compared_kernels_are_too_few_for_that_fix():
    assert fix_with_compared_kernels(29) == fix_with_compared_kernels(10)


def saving_of_ranks_that_hide(*hidden_ns_of_rank_1):
    """Return the saving where rank 0 hides 226 in each step and rank 1 so much, and kernels take twice as long.

    Hidden communication slows compute by half of its time, so rank 0 is slowed by 113.
    """
    rows = [step(0, number, hidden=226) for number, _ in enumerate(hidden_ns_of_rank_1, start=1)]
    rows += [step(1, number, hidden=ns) for number, ns in enumerate(hidden_ns_of_rank_1, start=1)]
    return comm_slows_compute(
        evidence(rows, kernels=[kernel("gemm", 30, 2000, 1000)])
    ).saving_ns_per_step


# Rank 1 is slowed by 112, so the step gets no shorter than by 112: 1 less than 113.
def test_a_bound_that_is_lower_by_1_ns_replaces_the_larger_one():
    assert saving_of_ranks_that_hide(224) == 112


# Rank 1 is slowed by 112 in nine steps of ten and by 112.5 in one: by 112.05, which is 0.95 less.
def test_a_bound_that_is_lower_by_less_than_1_ns_does_not_count():
    assert saving_of_ranks_that_hide(*[224] * 9, 225) == 113


def figures_with_slowdown(slowed_ns):
    """Return the figures where 1000 ns of kernels take so long beside communication, and 200 are hidden."""
    found = comm_slows_compute(
        evidence(steps(2, hidden=200), kernels=[kernel("gemm", 30, slowed_ns, 1000)])
    )
    return found.evidence


# A slowdown of 0.75 is at most 1.3 x 0.75 = 0.975.
def test_a_slowdown_below_the_largest_believed_stays():
    ratio = figures_with_slowdown(1750)["slowdown_at_most_ratio"]
    assert ratio == pytest.approx(0.975)


# A slowdown of 0.8 were at most 1.3 x 0.8 = 1.04.
def test_a_slowdown_above_the_largest_believed_counts_as_that():
    assert figures_with_slowdown(1800)["slowdown_at_most_ratio"] == 1


# 200 x 0.975 / 1.975.
def test_a_bound_takes_a_slowdown_below_the_largest_believed():
    parts = figures_with_slowdown(1750)["saving_ns_per_step_by_part"]
    assert parts["slowed_compute"] == pytest.approx(200 * 0.975 / 1.975)


# 200 x 1 / 2, not 200 x 1.04 / 2.04.
def test_a_bound_takes_no_slowdown_above_the_largest_believed():
    parts = figures_with_slowdown(1800)["saving_ns_per_step_by_part"]
    assert parts["slowed_compute"] == pytest.approx(100)
