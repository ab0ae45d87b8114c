"""The difference of medians of one capture a side, with values worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from nsyspipe.comparison.interval import two_sided_tails
from nsyspipe.comparison.statistics import Judgement, difference_of_centres

NO_CHANGE, INCONCLUSIVE = "no change", "inconclusive"


def captures(*each):
    return [np.array(values, np.float64) for values in each]


def difference(baseline, candidate, **options):
    return difference_of_centres(captures(baseline), captures(candidate), **options)


def test_the_half_width_is_where_the_weighted_tails_are_the_error():
    # Every correlation by brute force: likelihood and t from the inverse of the correlation matrix.
    rng = np.random.default_rng(4)
    sides = [100 + rng.standard_normal(7), 103 + 2 * rng.standard_normal(9)]
    found = difference_of_centres([sides[0]], [sides[1]], statistic="mean")
    nodes = np.polynomial.legendre.leggauss(12)
    grid = [(0.485 * (x + 1), 0.5 * w) for x, w in zip(*nodes, strict=True)]
    tails, total = 0.0, 0.0
    for r, prior in grid:
        weight, variance, squares = prior, 0.0, 0.0
        for x in sides:
            n, one = x.size, np.ones(x.size)
            matrix = r ** np.abs(np.subtract.outer(np.arange(n), np.arange(n)))
            inverse = np.linalg.inv(matrix)
            apart = x - (one @ inverse @ x) / (one @ inverse @ one)
            q = apart @ inverse @ apart
            weight *= np.linalg.det(matrix) ** -0.5 * (one @ inverse @ one) ** -0.5 * q ** (-(n - 1) / 2)
            own = q / (n - 1) * matrix.sum() / n**2
            variance += own
            squares += own**2 / (n - 1)
        half = found.high - found.delta
        freedom = np.array([variance**2 / squares])
        tails += weight * two_sided_tails(half / np.sqrt([variance]), freedom)[0][0]
        total += weight
    # 8 steps a side.
    assert tails / total == pytest.approx(0.05 / math.sqrt(0.275 * 8), rel=1e-6)
    assert "Zellner" in found.method


def test_constant_steps_give_a_point():
    result = difference([5, 5, 5], [6, 6, 6, 6])
    assert (result.delta, result.low, result.high) == (1, 1, 1)
    assert Judgement(result, least=0.02 * abs(result.baseline)).verdict == "regression"


def test_equal_constants_are_no_change():
    result = difference([5, 5, 5], [5, 5, 5, 5])
    assert (result.delta, result.low, result.high) == (0, 0, 0)
    assert Judgement(result, least=0).verdict == NO_CHANGE


def test_a_trend_against_itself_is_exactly_no_change():
    steps = np.linspace(100, 140, 12)
    result = difference(steps, steps)
    assert (result.delta, result.low, result.high) == (0, 0, 0)
    assert Judgement(result, least=0).verdict == NO_CHANGE


def test_two_trends_are_not_told_apart_by_a_narrow_interval():
    # The two medians differ by 6; the trend within each goes over 20.
    result = difference(np.linspace(100, 120, 12), np.linspace(106, 126, 12))
    assert result.delta == pytest.approx(6)
    assert result.low < -10
    assert result.high > 22
    assert Judgement(result, least=2).verdict == INCONCLUSIVE


def test_a_stall_does_not_hide_a_difference():
    base = [100, 101, 99, 100, 102, 98, 100, 101, 99, 100]
    result = difference([*base, 500], [value + 20 for value in [*base, 350]])
    assert result.delta == 20
    assert Judgement(result, least=0.02 * abs(result.baseline)).verdict == "regression"


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
    assert (result.low, result.high) == (None, None)
    assert Judgement(result, least=0.02).verdict == INCONCLUSIVE


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
