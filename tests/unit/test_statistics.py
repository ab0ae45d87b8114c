"""The difference of medians, its verdict, and the speed-up, with values worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from nsyspipe.statistics import (
    difference_of_medians,
    ratio_of_means,
    verdict,
    why_inconclusive,
)

NO_CHANGE, INCONCLUSIVE = "no change", "inconclusive"


def captures(*each):
    return [np.array(values, np.float64) for values in each]


def difference(baseline, candidate, **options):
    return difference_of_medians(captures(baseline), captures(candidate), **options)


def test_three_steps_a_side_by_hand():
    # Each side: scale 4 (order statistics), ratio 1, n 3: variance 4/3; together 8/3 with
    # (8/3)^2 / (2 (4/3)^2 / 2) = 4 degrees of freedom, t = 2.776445.
    result = difference([1, 2, 3], [101, 102, 103])
    half = 2.776445 * math.sqrt(8 / 3)
    assert (result.baseline, result.candidate, result.delta) == (2, 102, 100)
    assert (result.low, result.high) == pytest.approx((100 - half, 100 + half), rel=1e-6)
    assert (result.n_baseline, result.n_candidate) == (3, 3)
    assert result.undecided is None
    assert result.doubt is None
    assert not result.between_captures
    assert "Lazarus" in result.method


def test_constant_steps_give_a_point():
    result = difference([5, 5, 5], [6, 6, 6, 6])
    assert (result.delta, result.low, result.high) == (1, 1, 1)
    assert verdict(result, min_effect=0.02) == "regression"


def test_equal_constants_are_no_change():
    result = difference([5, 5, 5], [5, 5, 5, 5])
    assert (result.delta, result.low, result.high) == (0, 0, 0)
    assert verdict(result, min_effect=0) == NO_CHANGE


def test_a_trend_against_itself_is_exactly_no_change():
    steps = np.linspace(100, 140, 12)
    result = difference(steps, steps)
    assert (result.delta, result.doubt) == (0, None)
    assert verdict(result, min_effect=0) == NO_CHANGE


def test_two_trends_are_not_told_apart_by_a_narrow_interval():
    # The two medians differ by 6; the trend within each goes over 20.
    result = difference(np.linspace(100, 120, 12), np.linspace(106, 126, 12))
    assert result.delta == pytest.approx(6)
    assert result.low < -10
    assert result.high > 22
    assert result.doubt == "12 steps are too few for their autocorrelation (0.98)"
    assert verdict(result, min_effect=0.02) == INCONCLUSIVE


def test_a_difference_that_autocorrelation_could_explain_is_in_doubt():
    # About 2.5 of its own standard errors: found by the steps as they are, not with caution.
    base = [100, 103, 98, 101, 97, 102, 99, 104, 96, 100]
    result = difference(base, [value + 4.5 for value in base[::-1]])
    assert result.doubt.startswith("10 steps are too few: autocorrelation up to 0.")
    assert result.low < 0 < result.delta
    assert verdict(result, min_effect=0.02) == INCONCLUSIVE
    assert verdict(result, min_effect=0.05) == NO_CHANGE


def test_a_stall_does_not_hide_a_difference():
    base = [100, 101, 99, 100, 102, 98, 100, 101, 99, 100]
    result = difference([*base, 500], [value + 20 for value in [*base, 350]])
    assert result.delta == 20
    assert verdict(result, min_effect=0.02) == "regression"


@pytest.mark.parametrize(
    ("baseline", "candidate", "reason"),
    [
        ([1], [1, 2, 3], "1 step, needs 3"),
        ([1, 2, 3], [1, 2], "2 steps, needs 3"),
        ([], [1, 2, 3], "0 steps, needs 3"),
    ],
)
def test_fewer_than_three_steps_are_undecided_with_the_reason(baseline, candidate, reason):
    result = difference(baseline, candidate)
    assert result.undecided == reason
    assert (result.low, result.high, result.effective_steps) == (None, None, None)
    assert verdict(result, min_effect=0.02) == INCONCLUSIVE
    assert why_inconclusive(result, min_effect=0.02) == reason


def test_a_side_without_steps_has_no_median():
    result = difference([], [1, 2, 3])
    assert (result.baseline, result.candidate, result.delta) == (None, 2, None)


def test_captures_without_steps_are_left_out():
    with_empty = difference_of_medians(captures([], [1, 2, 3]), captures([4, 5, 6]))
    assert with_empty == difference([1, 2, 3], [4, 5, 6])


def test_the_spread_between_captures_is_in_the_interval():
    # Medians 10 and 12, 20 and 22: squares 2 + 2 over 2 degrees of freedom; t = 4.302653;
    # error sqrt(2 (1/2 + 1/2)).
    result = difference_of_medians(
        captures([10] * 3, [12] * 3), captures([20] * 3, [22] * 4), confidence=0.95
    )
    half = 4.302653 * math.sqrt(2)
    assert (result.baseline, result.candidate, result.delta) == (11, 21, 10)
    assert (result.low, result.high) == pytest.approx((10 - half, 10 + half), rel=1e-6)
    assert (result.n_baseline, result.n_candidate) == (6, 7)
    assert result.between_captures
    assert "captures" in result.method


def test_one_capture_borrows_the_spread_of_the_other_side():
    # Squares 2 over 1 degree of freedom, t = 12.706205; error sqrt(2 (1/2 + 1)).
    result = difference_of_medians(captures([10] * 3, [12] * 3), captures([31] * 3))
    half = 12.706205 * math.sqrt(3)
    assert (result.low, result.high) == pytest.approx((20 - half, 20 + half), rel=1e-6)
    assert result.between_captures
    assert verdict(result, min_effect=0.02) == NO_CHANGE


def test_captures_that_agree_by_chance_do_not_narrow_the_steps_own_interval():
    steps = [100, 104, 96, 101, 99, 103, 97, 100]
    one = difference(steps, [value + 3 for value in steps])
    several = difference_of_medians(captures(steps, steps), captures([v + 3 for v in steps]))
    assert one.low < several.low < 0
    assert several.high > 6


def test_captures_of_one_step_decide_when_there_are_three():
    # Squares 2 + 2 over 4; t = 2.776445; error sqrt(1 (1/3 + 1/3)).
    result = difference_of_medians(captures([9], [10], [11]), captures([19], [20], [21]))
    half = 2.776445 * math.sqrt(2 / 3)
    assert (result.low, result.high) == pytest.approx((10 - half, 10 + half), rel=1e-6)


def test_two_short_captures_do_not_decide():
    result = difference_of_medians(captures([9, 9], [10, 10]), captures([1, 2, 3]))
    assert result.undecided == "no capture of 3 steps"


@pytest.mark.parametrize("bad", [[1, math.nan, 3], [1, math.inf, 3], [[1, 2, 3]]])
def test_values_that_are_no_figures_per_step_are_refused(bad):
    with pytest.raises(ValueError, match="finite and in one dimension"):
        difference(bad, [1, 2, 3])


@pytest.mark.parametrize("confidence", [0, 1, 95, math.nan])
def test_a_confidence_outside_its_range_is_refused(confidence):
    with pytest.raises(ValueError, match="confidence must be between 0 and 1"):
        difference([1, 1, 1], [1, 1, 1], confidence=confidence)


@pytest.mark.parametrize(
    ("candidate", "better", "expected"),
    [
        (102, "lower", "regression"),
        (98, "lower", "improvement"),
        (102, "higher", "improvement"),
        (98, "higher", "regression"),
        (102, "neither", "change"),
        (98, "neither", "change"),
        (101, "lower", NO_CHANGE),
        (101, "neither", NO_CHANGE),
        (100, "lower", NO_CHANGE),
    ],
)
def test_verdict_by_direction_and_size(candidate, better, expected):
    result = difference([100] * 4, [candidate] * 4)
    assert verdict(result, min_effect=0.02, better=better) == expected


def test_anything_above_a_baseline_of_zero_is_large():
    assert verdict(difference([0] * 3, [1e-9] * 3), min_effect=0.5) == "regression"
    assert verdict(difference([0] * 3, [0] * 3), min_effect=0.5) == NO_CHANGE


def test_an_interval_that_ends_at_zero_is_no_change():
    point = difference([100] * 3, [110] * 3)
    assert verdict(replace(point, low=0.0, high=20.0), min_effect=0.02) == NO_CHANGE


@pytest.mark.parametrize(
    ("delta", "half", "effective", "expected"),
    [
        # The answer hangs on the autocorrelation.
        (3.0, 5.0, 6.0, INCONCLUSIVE),
        # It does not: the difference is below the minimum effect either way.
        (1.0, 5.0, 6.0, NO_CHANGE),
        # Too few effective steps to say that nothing is there,
        (1.0, 5.0, 2.5, INCONCLUSIVE),
        # unless all of the interval is below the minimum effect.
        (0.5, 1.4, 2.5, NO_CHANGE),
    ],
)
def test_doubt_is_inconclusive_only_where_the_answer_hangs_on_it(delta, half, effective, expected):
    doubted = replace(
        difference([100] * 3, [100 + delta] * 3),
        low=delta - half,
        high=delta + half,
        doubt="9 steps are too few for their autocorrelation (0.5)",
        effective_steps=effective,
    )
    assert verdict(doubted, min_effect=0.02) == expected
    reason = why_inconclusive(doubted, min_effect=0.02)
    assert reason == (doubted.doubt if expected == INCONCLUSIVE else None)


def test_speedup_of_constant_steps_is_a_point():
    result = ratio_of_means(captures([200] * 3), captures([100] * 4))
    assert (result.ratio, result.low, result.high) == (2, 2, 2)
    assert (result.n_reference, result.n_run) == (3, 4)


def test_speedup_of_three_steps_by_hand():
    # Relative variances (1/100)^2 / 3 and (4/100)^2 / 3, two degrees of freedom each:
    # (1 + 16)^2 / ((1 + 256) / 2) = 2.2490.
    result = ratio_of_means(captures([198, 200, 202]), captures([96, 100, 104]))
    error = math.sqrt(17e-4 / 3)
    # Between t(2) = 4.3027 and t(3) = 3.1824.
    assert result.ratio == 2
    assert 3.1824 < math.log(result.high / 2) / error < 4.3027
    assert result.low * result.high == pytest.approx(4)


def test_speedup_of_a_run_over_itself_is_one():
    steps = [101.3, 99.9, 107.2, 98.1]
    result = ratio_of_means(captures(steps), captures(steps))
    assert result.ratio == 1
    assert result.low < 1 < result.high
    assert result.doubt is None


def test_speedup_with_captures_by_hand():
    # Means 90 and 110 of mean 100: relative 0.9 and 1.1, squares 0.02; the same on the other side.
    # 0.04 / 2 x (1/2 + 1/2); t(2) = 4.302653.
    result = ratio_of_means(captures([90] * 3, [110] * 3), captures([45] * 3, [55] * 3))
    assert result.ratio == 2
    assert result.high == pytest.approx(2 * math.exp(4.302653 * math.sqrt(0.02)), rel=1e-6)
    assert result.between_captures


@pytest.mark.parametrize(
    ("reference", "run", "ratio", "reason"),
    [
        ([1, 2], [1, 1, 1], 1.5, "2 steps, needs 3"),
        ([], [1, 1, 1], None, "0 steps, needs 3"),
        ([0, 0, 0], [1, 1, 1], None, "a mean is not above 0"),
    ],
)
def test_speedup_that_cannot_be_told_says_why(reference, run, ratio, reason):
    result = ratio_of_means(captures(reference), captures(run))
    assert (result.ratio, result.undecided) == (ratio, reason)
    assert (result.low, result.high) == (None, None)


def test_a_stall_widens_the_interval_of_means_and_not_that_of_medians():
    calm = [100.0, 101, 99, 100, 102, 98, 100, 101, 99, 100]
    stalled = [*calm[:5], 500.0, *calm[5:]]
    means = [ratio_of_means(captures(calm), captures(steps)) for steps in (calm[::-1], stalled)]
    assert means[1].high / means[1].low > 1.5 * means[0].high / means[0].low
    assert difference(calm, stalled).high < 5
