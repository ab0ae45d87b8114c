"""The difference of medians of one capture a side, with values worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from nsyspipe.statistics import difference_of_centres, verdict

NO_CHANGE, INCONCLUSIVE = "no change", "inconclusive"


def captures(*each):
    return [np.array(values, np.float64) for values in each]


def difference(baseline, candidate, **options):
    return difference_of_centres(captures(baseline), captures(candidate), **options)


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
    assert verdict(result, least=0.02 * abs(result.baseline)) == "regression"


def test_equal_constants_are_no_change():
    result = difference([5, 5, 5], [5, 5, 5, 5])
    assert (result.delta, result.low, result.high) == (0, 0, 0)
    assert verdict(result, least=0) == NO_CHANGE


def test_a_trend_against_itself_is_exactly_no_change():
    steps = np.linspace(100, 140, 12)
    result = difference(steps, steps)
    assert (result.delta, result.doubt) == (0, None)
    assert verdict(result, least=0) == NO_CHANGE


def test_two_trends_are_not_told_apart_by_a_narrow_interval():
    # The two medians differ by 6; the trend within each goes over 20.
    result = difference(np.linspace(100, 120, 12), np.linspace(106, 126, 12))
    assert result.delta == pytest.approx(6)
    assert result.low < -10
    assert result.high > 22
    assert result.doubt == "12 steps are too few for their autocorrelation (0.98)"
    assert verdict(result, least=0.02 * abs(result.baseline)) == INCONCLUSIVE


def test_a_difference_that_autocorrelation_could_explain_is_in_doubt():
    # About 2.5 of its own standard errors: found by the steps as they are, not with caution.
    base = [100, 103, 98, 101, 97, 102, 99, 104, 96, 100]
    result = difference(base, [value + 4.5 for value in base[::-1]])
    assert result.doubt.startswith("10 steps are too few: autocorrelation up to 0.")
    assert result.low < 0 < result.delta
    assert verdict(result, least=0.02 * abs(result.baseline)) == INCONCLUSIVE
    assert verdict(result, least=0.05 * abs(result.baseline)) == NO_CHANGE


def test_a_stall_does_not_hide_a_difference():
    base = [100, 101, 99, 100, 102, 98, 100, 101, 99, 100]
    result = difference([*base, 500], [value + 20 for value in [*base, 350]])
    assert result.delta == 20
    assert verdict(result, least=0.02 * abs(result.baseline)) == "regression"


@pytest.mark.parametrize(
    ("baseline", "candidate", "reason"),
    [
        ([1], [1, 2, 3], "baseline: 1 step, needs 3"),
        ([1, 2, 3], [1, 2], "candidate: 2 steps, needs 3"),
        ([], [1, 2, 3], "baseline: 0 steps, needs 3"),
        ([1], [1], "baseline and candidate: 1 step, needs 3"),
        ([1], [1, 2], "baseline: 1 step, needs 3; candidate: 2 steps, needs 3"),
    ],
)
def test_fewer_than_three_steps_are_undecided_with_the_reason(baseline, candidate, reason):
    result = difference(baseline, candidate)
    assert result.undecided == reason
    assert (result.low, result.high, result.effective_steps) == (None, None, None)
    assert verdict(result, least=0.02 * abs(result.baseline)) == INCONCLUSIVE
    assert why_inconclusive(result, min_effect=0.02) == reason


def test_the_sides_are_called_by_the_names_given():
    result = difference([1], [1, 2, 3], names=("ddp", "fsdp"))
    assert result.undecided == "ddp: 1 step, needs 3"


def test_a_side_without_steps_has_no_median():
    result = difference([], [1, 2, 3])
    assert (result.baseline, result.candidate, result.delta) == (None, 2, None)


@pytest.mark.parametrize("bad", [[1, math.nan, 3], [1, math.inf, 3], [[1, 2, 3]]])
def test_values_that_are_no_figures_per_step_are_refused(bad):
    with pytest.raises(ValueError, match="finite and in one dimension"):
        difference(bad, [1, 2, 3])


@pytest.mark.parametrize("confidence", [0, 1, 95, math.nan])
def test_a_confidence_outside_its_range_is_refused(confidence):
    with pytest.raises(ValueError, match="confidence must be between 0 and 1"):
        difference([1, 1, 1], [1, 1, 1], confidence=confidence)
