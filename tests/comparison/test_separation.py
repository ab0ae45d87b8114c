"""Steps that do not overlap: from when on that is evidence, and which interval it gives; worked out by hand."""

import numpy as np
import pytest

from nsyspipe.comparison.separation import Separation, separation_of
from nsyspipe.comparison.series import Captures
from nsyspipe.comparison.statistics import Judgement, difference_of_centres


def side(*captures):
    return Captures.of([np.array(values, np.float64) for values in captures])


def spread_over(start, end, n):
    return np.linspace(start, end, n)


def separation(before, after, confidence=0.95):
    return separation_of(side(before), side(after), confidence)


# As measured: 8 steps a side without overlap, 24 % apart, slower and more spread out from step to
# step.
BEFORE = [25.5, 26.9, 25.8, 27.3, 26.2, 26.6, 25.9, 26.4]
AFTER = [29.8, 31.0, 34.9, 32.5, 33.6, 30.4, 34.2, 32.9]


def difference(before, after, **options):
    return difference_of_centres([np.array(before)], [np.array(after)], **options)


def test_the_ends_are_the_smallest_and_largest_difference_of_steps():
    found = separation([1, 2, 3, 2, 1, 2, 3, 2], [5, 6, 7, 6, 5, 6, 7, 6])
    assert found == Separation(low=2, high=6)


def test_a_faster_candidate_has_ends_below_zero():
    found = separation([5, 6, 7, 6, 5, 6, 7, 6], [1, 2, 3, 2, 1, 2, 3, 2])
    assert (found.low, found.high, found.gap, found.largest) == (-6, -2, 2, 6)


@pytest.mark.parametrize(("last", "is_separated"), [(3.999, True), (4.0, False)])
def test_a_common_value_is_an_overlap(last, is_separated):
    before = [1, 2, 3, 2, 1, 2, 3, last]
    assert (separation(before, [4, 5, 6, 5, 4, 5, 6, 5]) is not None) == is_separated


@pytest.mark.parametrize(("n", "is_separated"), [(4, False), (5, True)])
def test_five_steps_of_each_side_are_needed(n, is_separated):
    found = separation(spread_over(1, 2, n), spread_over(10, 11, 9))
    assert (found is not None) == is_separated


@pytest.mark.parametrize(
    ("n", "least_gap"),
    [(5, 0.5), (6, 0.25), (7, 0.25)],
)
@pytest.mark.parametrize(("surplus", "is_separated"), [(-0.01, False), (0.01, True)])
def test_few_steps_need_a_gap_of_a_part_of_their_range(n, least_gap, surplus, is_separated):
    start = 2 + least_gap + surplus
    found = separation(spread_over(1, 2, n), spread_over(start, start + 0.5, n))
    assert (found is not None) == is_separated


def test_eight_steps_need_no_gap_beyond_their_range():
    assert separation(spread_over(1, 2, 8), spread_over(2.01, 3, 8)) is not None


@pytest.mark.parametrize(("confidence", "is_separated"), [(0.95, True), (0.951, False)])
def test_more_confidence_than_95_per_cent_is_not_given(confidence, is_separated):
    assert (separation(BEFORE, AFTER, confidence) is not None) == is_separated


@pytest.mark.parametrize(("start", "is_separated"), [(119.9, False), (120.1, True)])
def test_a_switch_as_large_as_the_gap_explains_it(start, is_separated):
    # The baseline has two levels of 100 and 110 in stretches: a switch of 10.
    baseline = [100, 100, 100, 100, 110, 110, 110, 110]
    candidate = [start + step for step in (0, 1, 2, 1, 0, 1, 2, 1)]
    assert (separation(baseline, candidate) is not None) == is_separated


def test_eight_steps_apart_by_a_quarter_are_a_regression():
    assert Judgement(difference(BEFORE, AFTER), min_effect=0.02 * 26.3).verdict == "regression"


def test_the_interval_of_a_trend_begins_at_the_gap():
    found = difference(sorted(BEFORE), sorted(AFTER))
    assert found.separation is not None
    assert found.low == pytest.approx(29.8 - 27.3)


def test_the_interval_ends_at_the_largest_difference_at_most():
    found = difference(sorted(BEFORE), sorted(AFTER))
    assert found.delta < found.high <= 34.9 - 25.5


def test_a_gap_below_what_counts_is_not_a_change():
    before = [100, 101, 102, 103, 104, 105, 106, 107]
    after = [108, 110, 112, 114, 116, 118, 120, 122]
    found = difference(before, after)
    judgement = Judgement(found, min_effect=2.0)
    assert (found.low, judgement.verdict) == (1, "inconclusive")


def test_captures_that_spread_as_much_as_the_sides_are_apart_decide_nothing():
    before = [np.array([100.0, 101, 100, 101]), np.array([110.0, 111, 110, 111])]
    after = [np.array([112.0, 113, 112, 113]), np.array([122.0, 123, 122, 123])]
    found = difference_of_centres(before, after)
    assert found.low <= 0 <= found.high
