"""What a difference is called, by its interval; what would settle it; uneven steps and patterns."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from nsyspipe.analysis.summary import evenness
from nsyspipe.comparison.statistics import Judgement, difference_of_centres, ratio_of_means

NO_CHANGE, INCONCLUSIVE = "no change", "inconclusive"


def difference(baseline, candidate, **options):
    sides = (np.array(side, np.float64) for side in (baseline, candidate))
    return difference_of_centres(*([side] for side in sides), **options)


@pytest.mark.parametrize(
    ("candidate", "better", "expected"),
    [
        (102, "lower", "regression"),
        (98, "lower", "improvement"),
        (102, "higher", "improvement"),
        (98, "higher", "regression"),
        (102, "neither", "change"),
        (101, "lower", NO_CHANGE),
        (100, "lower", NO_CHANGE),
    ],
)
def test_verdict_by_direction_and_size(candidate, better, expected):
    assert Judgement(difference([100] * 4, [candidate] * 4), least=2, better=better).verdict == expected


@pytest.mark.parametrize(
    ("delta", "half", "said", "passes"),
    [
        (0.0, 1.9, NO_CHANGE, True),
        (0.0, 2.1, INCONCLUSIVE, False),  # what no interval excludes is not shown to be nothing
        (-1.0, 2.5, INCONCLUSIVE, True),  # no regression, whatever else it is
        (1.0, 0.5, NO_CHANGE, True),
        (1.9, 0.5, INCONCLUSIVE, False),
        (3.0, 2.5, "regression", False),
        (3.0, 3.5, INCONCLUSIVE, False),
        (-3.0, 2.5, "improvement", True),
    ],
)
def test_no_change_needs_all_of_the_interval_and_the_gate_its_worse_end(delta, half, said, passes):
    point = difference([100] * 3, [100 + delta] * 3)
    found = replace(point, low=delta - half, high=delta + half)
    assert Judgement(found, least=2).verdict == said
    assert Judgement(found, least=2, better="lower").is_worse_excluded == passes
    mirrored = replace(found, delta=-delta, other_delta=-delta, low=-found.high, high=-found.low)
    assert Judgement(mirrored, least=2, better="higher").is_worse_excluded == passes


def test_mean_and_median_that_point_in_opposite_directions_decide_nothing():
    point = difference([100] * 3, [95] * 3)
    assert Judgement(replace(point, other_delta=1.0), least=2).verdict == INCONCLUSIVE
    assert not Judgement(replace(point, other_delta=1.0), least=2, better="lower").is_worse_excluded
    small = difference([100] * 3, [99.9] * 3)
    assert Judgement(replace(small, other_delta=0.1), least=2).verdict == NO_CHANGE


def test_what_is_said_to_settle_it_does():
    noise = 4 * np.random.default_rng(1).standard_normal((2, 10))
    found = difference(*(100 + noise - np.median(noise, axis=1, keepdims=True)))
    assert Judgement(found, least=2).verdict == INCONCLUSIVE
    settled = Judgement(found, least=2).settled()
    assert found.half(settled.steps / 10) < 2
    assert found.half(1.0, settled.captures) < 2
    assert found.half(0.8 * settled.steps / 10) > 1.9


def test_what_no_number_of_steps_settles_has_no_number():
    found = replace(difference([100, 101, 99, 100], [102, 103, 101, 102]), delta=2 - 1e-9)
    settled = Judgement(replace(found, other_delta=found.delta), least=2).settled()
    assert (settled.steps, settled.captures) == (None, None)


@pytest.mark.parametrize("n", [8, 10, 16])
def test_levels_in_turn_that_vanish_are_an_improvement(n):
    rng = np.random.default_rng(n)
    before = np.where(np.arange(n) % 2, 1400.0, 132.0) + rng.standard_normal(n)
    after = 146 + rng.standard_normal(n)
    assert evenness(before).is_uneven
    assert Judgement(difference(before, after, statistic="mean"), least=15).verdict == "improvement"
    speed = ratio_of_means([before], [after])
    assert speed.low > 3
    assert ratio_of_means([after], [before]).high < 1 / 3


@pytest.mark.parametrize("noise", [0.2, 1.0])
def test_every_fifth_step_slow_hides_no_change_of_all(noise):
    rng = np.random.default_rng(5)
    steps = np.where(np.arange(10) % 5 == 4, 110.0, 100.0)
    found = difference(steps + noise * rng.standard_normal(10), 1.1 * steps + noise * rng.standard_normal(10))
    assert Judgement(found, least=2).verdict == "regression"


def test_uneven_steps_say_their_pattern():
    one = evenness(np.array([132.0, 1400.0] * 5))
    assert (one.mean, one.median, one.is_uneven, one.is_median_nobodys) == (766, 766, True, True)
    assert (one.levels, one.n_long, one.period) == ((132.0, 1400.0), 5, 2)
    fifth = evenness(np.array([100.0, 100, 100, 100, 300] * 3))
    assert (fifth.is_uneven, fifth.period, fifth.n_long) == (True, 5, 3)
    by_chance = evenness(np.array([100.0, 300, 300, 100, 300, 100, 100, 100]))
    assert (by_chance.levels, by_chance.period) == ((100.0, 300.0), None)
    even = evenness(100 + np.random.default_rng(1).standard_normal(12))
    assert (even.is_uneven, even.is_median_nobodys) == (False, False)


def test_a_run_is_uneven_beyond_ten_per_cent():
    assert not evenness(np.array([90.0] * 9 + [180.0])).is_uneven  # mean 99, median 90: 9.1 %
    assert evenness(np.array([90.0] * 9 + [200.0])).is_uneven  # mean 101, median 90: 10.9 %
    assert evenness(np.array([50.0, 60, 95, 100, 105, 140, 150])).is_uneven  # 3 of 7 near the median
