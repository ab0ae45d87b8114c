"""Several captures on a side: what they spread by, worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from nsyspipe.comparison.statistics import Judgement, difference_of_centres


def captures(*each):
    return [np.array(values, np.float64) for values in each]


def difference(baseline, candidate):
    return difference_of_centres(captures(baseline), captures(candidate))


def test_captures_without_steps_are_left_out():
    with_empty = difference_of_centres(captures([], [1, 2, 3]), captures([4, 5, 6]))
    assert with_empty == difference([1, 2, 3], [4, 5, 6])


def test_the_spread_between_captures_is_in_the_interval():
    # Medians 10 and 12, 20 and 22: squares 2 + 2 over 2 degrees of freedom; t = 4.302653;
    # error sqrt(2 (1/2 + 1/2)).
    result = difference_of_centres(captures([10] * 3, [12] * 3), captures([20] * 3, [22] * 4), confidence=0.95)
    half = 4.302653 * math.sqrt(2)
    assert (result.baseline, result.candidate, result.delta) == (11, 21, 10)
    assert (result.low, result.high) == pytest.approx((10 - half, 10 + half), rel=1e-6)
    assert result.interval.has_between
    assert not result.interval.is_borrowed
    assert result.method.endswith("not less than pooled and Welch's t of captures")


def test_one_capture_borrows_the_spread_of_the_other_side():
    # Squares 2 over 1 degree of freedom, t = 12.706205; error sqrt(2 (1/2 + 1)).
    result = difference_of_centres(captures([10] * 3, [12] * 3), captures([31] * 3))
    half = 12.706205 * math.sqrt(3)
    assert (result.low, result.high) == pytest.approx((20 - half, 20 + half), rel=1e-6)
    assert result.interval.is_borrowed
    assert "the side of one capture taken to spread between captures like the other" in result.method
    assert Judgement(result, least=0.02 * abs(result.baseline)).verdict == "inconclusive"


def test_a_few_captures_that_spread_more_than_many_are_not_pooled_with_them():
    # Welch: 2 / 2 + 0 / 3 = 1 with 1 degree of freedom, t = 12.706205; pooled were 3.182 x 0.745.
    result = difference_of_centres(captures([10] * 3, [12] * 3), captures([20] * 3, [20] * 3, [20] * 3))
    assert (result.low, result.high) == pytest.approx((9 - 12.706205, 9 + 12.706205), rel=1e-6)


def test_captures_that_agree_by_chance_do_not_narrow_the_steps_own_interval():
    steps = [100, 104, 96, 101, 99, 103, 97, 100]
    one = difference(steps, [value + 3 for value in steps])
    several = difference_of_centres(captures(steps, steps), captures([v + 3 for v in steps]))
    assert one.low < several.low < 0
    assert several.high > 6


def test_captures_of_one_step_decide_when_there_are_three():
    # Squares 2 + 2 over 4; t = 2.776445; error sqrt(1 (1/3 + 1/3)).
    result = difference_of_centres(captures([9], [10], [11]), captures([19], [20], [21]))
    half = 2.776445 * math.sqrt(2 / 3)
    assert (result.low, result.high) == pytest.approx((10 - half, 10 + half), rel=1e-6)


def test_two_short_captures_do_not_decide():
    result = difference_of_centres(captures([9, 9], [10, 10]), captures([1, 2, 3]))
    assert result.undecided == "baseline: no capture of 3 steps"
