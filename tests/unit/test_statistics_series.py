"""What one capture's steps say, worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from nsyspipe.statistics.series import MeanSeries, Series, cosine_count, inflation


def series(*values, kind=Series):
    return kind(np.array(values, np.float64))


def test_a_stall_counts_as_two_robust_deviations():
    # Median 3, deviations 2 1 0 1 97, their median 1: cut at 2 x 1.4826 = 2.9652.
    stalled = series(1, 2, 3, 4, 100)
    mean = (-2 - 1 + 0 + 1 + 2.965204437011204) / 5
    expected = np.array([-2, -1, 0, 1, 2.965204437011204]) - mean
    assert stalled.centre == 3
    assert stalled.deviations == pytest.approx(expected)


def test_variance_scale_and_neighbours_of_three_steps():
    # Deviations -1 0 1: variance 2 / 2; neighbours (-1)(0) + (0)(1) = 0.
    steps = series(1, 2, 3)
    assert steps.variance == pytest.approx(1)
    assert steps.normal_scale == pytest.approx(math.pi / 2)
    assert steps.neighbours == 0
    # Both transforms that three steps have hold all squares: 2 / 2 over the variance 1.
    assert steps.long_run_ratio(2) == pytest.approx(1)


def test_neighbours_of_alternating_steps_are_opposite():
    # -1 1 -1 1: three products of -1 over four squares.
    assert series(1, 3, 1, 3).neighbours == pytest.approx(-0.75)


def test_the_order_statistics_set_the_scale_where_they_reach_further():
    # Half-width of the band of ranks 0.5 x 2/4 = 0.25: ranks 1 and 3, values 1 and 3.
    # 1 / (4 f^2) with 1 / f = (3 - 1) / 0.5 = 4: 16 / 4.
    assert series(1, 2, 3).scale == pytest.approx(4)
    assert series(1, 2, 3).least_scale == pytest.approx(math.pi / 2)


def test_beside_a_gap_the_wider_side_sets_the_scale():
    # Nine steps, band 0.98 / 3 = 0.32667: place 0.82667 x 10 - 1 = 7.26667; both low and high lie in
    # a mode. Median 10, so the wider side reaches from 10 to 0: 1 / f = 10 / 0.32667.
    two_modes = series(0, 10, 0, 10, 0, 10, 0, 10, 10)
    expected = (10 / (2 * 0.98 / 3)) ** 2
    # All deviations are 10 or 0, their median 0: nothing is left of the spread but the gap.
    assert two_modes.variance == 0
    assert two_modes.least_scale == pytest.approx(expected)
    assert two_modes.scale == pytest.approx(expected)
    assert two_modes.long_run_ratio(2) == 1


def test_correlated_steps_look_for_a_gap_further_from_the_median():
    # Twenty steps, four of them in the other mode: 0.98 / sqrt(20) reaches ranks 5.9 and 15.1 of 20,
    # both in this one; as ten steps, 0.98 / sqrt(10), it reaches rank 4.0. No further, whatever they are.
    stays = series(*[0] * 4, *[10] * 16)
    assert (stays.centre, stays.scale_at(1.0)) == (10, 0)
    expected = (10 / (2 * 0.98 / math.sqrt(10))) ** 2
    assert stays.scale_at(2.0) == pytest.approx(expected)
    assert stays.scale_at(9.0) == pytest.approx(expected)


def test_of_few_steps_the_outermost_is_never_taken_for_a_mode():
    stalled = series(*range(10), 500)
    assert stalled.scale_at(5.0) == stalled.scale_at(1.0) == stalled.normal_scale


def test_a_stall_is_a_step_like_any_other_to_its_neighbours():
    # Ranks -2 .. 2: (2 + 0 + 0 + 2) / 10.
    assert series(1, 2, 3, 4, 100).neighbours == pytest.approx(0.4)


def test_equal_steps_share_their_rank():
    # Ranks 1.5 1.5 3, less 2: (0.25 - 0.5) / 1.5.
    assert series(1, 1, 2).neighbours == pytest.approx(-1 / 6)


def test_equal_steps_have_no_spread_at_all():
    same = series(0.1, 0.1, 0.1, 0.1)
    assert (same.variance, same.scale, same.least_scale, same.neighbours) == (0, 0, 0, 0)
    assert not same.is_varying


def test_a_trend_is_in_the_first_cosine():
    # A straight line has nearly all its squares there: the ratio is about (n - 1) / cosines.
    line = series(*range(100))
    assert 30 < line.long_run_ratio(3) <= 33
    assert 10 < line.long_run_ratio(9) <= 11


def test_the_mean_cuts_nothing():
    steps = series(1, 2, 3, 4, 100, kind=MeanSeries)
    assert steps.centre == 22
    assert steps.deviations == pytest.approx([-21, -20, -19, -18, 78])
    # Squares 441, 400, 361, 324 and 6084, over 4.
    assert steps.scale == steps.normal_scale == steps.least_scale == pytest.approx(1902.5)


def test_a_mean_of_equal_values_is_that_value():
    assert series(0.1, 0.1, 0.1, kind=MeanSeries).centre == 0.1


@pytest.mark.parametrize(
    ("n", "count"), [(3, 2), (10, 2), (20, 3), (30, 4), (100, 9), (10_000, 32)]
)
def test_cosines_grow_slowly_with_the_steps(n, count):
    # 0.4 x 30^(2/3) = 3.86; 0.4 x 100^(2/3) = 8.62.
    assert cosine_count(n) == count


@pytest.mark.parametrize(
    ("n", "r", "expected"),
    [
        (1, 0.7, 1.0),
        (5, 0.0, 1.0),
        # 1 + 2 (2/3 x 0.5 + 1/3 x 0.25)
        (3, 0.5, 11 / 6),
        # 1 + 2 x 1/2 x 0.8
        (2, 0.8, 1.8),
    ],
)
def test_inflation_of_the_variance_by_correlation(n, r, expected):
    assert inflation(n, r) == pytest.approx(expected)
