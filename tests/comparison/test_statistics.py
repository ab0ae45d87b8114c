"""Student's t; the difference of medians and the ratio of means, of one capture a side and of several: worked out by hand.

What a difference is called, by its interval; what would settle it; uneven steps and patterns.
"""

import math
import re
from dataclasses import replace

import numpy as np
import pytest

from nsyspipe.analysis.summary import evenness
from nsyspipe.comparison.separation import Separation
from nsyspipe.comparison.statistics import Judgement, difference_of_centres, ratio_of_means
from nsyspipe.comparison.student_t import critical_value, two_sided_tails

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
            weight *= (
                np.linalg.det(matrix) ** -0.5 * (one @ inverse @ one) ** -0.5 * q ** (-(n - 1) / 2)
            )
            own = q / (n - 1) * matrix.sum() / n**2
            variance += own
            squares += own**2 / (n - 1)
        half = found.high - found.delta
        freedom = np.array([variance**2 / squares])
        tails += weight * two_sided_tails(half / np.sqrt([variance]), freedom)[0][0]
        total += weight
    assert tails / total == pytest.approx(0.05 / math.sqrt(0.275 * 8), rel=1e-6)  # 8 steps a side
    assert "Zellner" in found.method


@pytest.mark.parametrize(
    ("baseline", "candidate", "point"),
    [
        ([5] * 3, [6] * 4, 1),
        ([5] * 3, [5] * 4, 0),
        (np.linspace(100, 140, 12), np.linspace(100, 140, 12), 0),
    ],
    ids=["constant", "equal", "a trend against itself"],
)
def test_constant_and_equal_steps_give_a_point(baseline, candidate, point):
    result = difference(baseline, candidate)
    assert (result.delta, result.low, result.high) == (point, point, point)
    assert Judgement(result, min_effect=0).verdict == ("regression" if point else NO_CHANGE)


def test_two_trends_are_not_told_apart_by_a_narrow_interval():
    # The two medians differ by 6; the trend within each goes over 20.
    result = difference(np.linspace(100, 120, 12), np.linspace(106, 126, 12))
    assert result.delta == pytest.approx(6)
    assert result.low < -10
    assert result.high > 22
    assert Judgement(result, min_effect=2).verdict == INCONCLUSIVE


def test_a_stall_does_not_hide_a_difference():
    base = [100, 101, 99, 100, 102, 98, 100, 101, 99, 100]
    result = difference([*base, 500], [value + 20 for value in [*base, 350]])
    assert result.delta == 20
    assert Judgement(result, min_effect=0.02 * abs(result.baseline)).verdict == "regression"


@pytest.mark.parametrize(
    ("baseline", "candidate", "numbers"),
    [
        ([1], [1, 2, 3], ["1", "3"]),
        ([1, 2, 3], [1, 2], ["2", "3"]),
        ([], [1, 2, 3], ["0", "3"]),
        ([1], [1], ["1", "3"]),
        ([1], [1, 2], ["1", "3", "2", "3"]),
    ],
    ids=["1 and 3", "3 and 2", "0 and 3", "1 and 1", "1 and 2"],
)
def test_fewer_than_three_steps_are_undecided_with_the_reason(baseline, candidate, numbers, worded):
    result = difference(baseline, candidate)
    assert re.findall(r"\d+", result.undecided) == numbers
    worded(result.undecided)
    assert (result.low, result.high) == (None, None)
    assert Judgement(result, min_effect=0.02).verdict == INCONCLUSIVE
    undecided = difference([1], [1, 2, 3], names=("ddp", "fsdp")).undecided
    assert re.findall(r"\b(?:ddp|fsdp|\d+)\b", undecided) == ["ddp", "1", "3"]
    result = difference([], [1, 2, 3])
    assert (result.baseline, result.candidate, result.delta) == (None, 2, None)


@pytest.mark.parametrize("steps", [[1, math.nan, 3], [1, math.inf, 3], [[1, 2, 3]]])
def test_what_is_no_figure_per_step_is_refused(steps):
    with pytest.raises(ValueError, match="dimension"):
        difference(steps, [1, 1, 1])


# Several captures on a side: what they spread by.
def test_captures_without_steps_are_left_out_and_two_short_ones_decide_nothing(worded):
    assert difference_of_centres(captures([], [1, 2, 3]), captures([4, 5, 6])) == difference(
        [1, 2, 3], [4, 5, 6]
    )
    short = difference_of_centres(captures([9, 9], [10, 10]), captures([1, 2, 3]))
    worded(short.undecided)


TWO_APART = ([10] * 3, [12] * 3)
SPREAD = [
    # Medians 10 and 12, 20 and 22: squares 2 + 2 over 2 degrees of freedom; error sqrt(2 (1/2 +
    # 1/2)).
    (TWO_APART, ([20] * 3, [22] * 4), 10, 4.302653 * math.sqrt(2)),
    # Squares 2 over 1 degree of freedom; error sqrt(2 (1/2 + 1)).
    (TWO_APART, ([31] * 3,), 20, 12.706205 * math.sqrt(3)),
    # Welch: 2 / 2 + 0 / 3 = 1 with 1 degree of freedom; pooled were 3.182 x 0.745.
    (TWO_APART, ([20] * 3,) * 3, 9, 12.706205),
    # Three captures of one step: squares 2 + 2 over 4; error sqrt(1 (1/3 + 1/3)).
    (([9], [10], [11]), ([19], [20], [21]), 10, 2.776445 * math.sqrt(2 / 3)),
]


@pytest.mark.parametrize(
    ("baseline", "candidate", "delta", "half"),
    SPREAD,
    ids=["two and two", "two and one", "two and three", "three and three"],
)
def test_the_spread_between_captures_is_in_the_interval(baseline, candidate, delta, half, worded):
    result = difference_of_centres(captures(*baseline), captures(*candidate))
    assert result.delta == delta
    assert (result.low, result.high) == pytest.approx((delta - half, delta + half), rel=1e-6)
    assert result.interval.has_between
    assert result.interval.is_borrowed == (len(candidate) == 1)
    worded(result.method)


def test_captures_that_agree_by_chance_do_not_narrow_the_steps_own_interval():
    steps = [100, 104, 96, 101, 99, 103, 97, 100]
    one = difference(steps, [value + 3 for value in steps])
    several = difference_of_centres(captures(steps, steps), captures([v + 3 for v in steps]))
    assert one.low < several.low < 0
    assert several.high > 6


# The ratio of means.
@pytest.mark.parametrize(
    ("reference", "run", "half"),
    [
        (([200] * 3,), ([100] * 4,), 0),
        # Means 90 and 110 of mean 100: relative 0.9 and 1.1, squares 0.02; the same on the other
        # side. 0.04 / 2 x (1/2 + 1/2); t(2) = 4.302653.
        (([90] * 3, [110] * 3), ([45] * 3, [55] * 3), 4.302653 * math.sqrt(0.02)),
        # Of independent steps the error is sqrt(17e-4 / 3), t = 3.1824; steps alike by 0.97 have a
        # far larger one.
        (([198, 200, 202],), ([96, 100, 104],), None),
    ],
)
def test_speedup_by_hand(reference, run, half):
    result = ratio_of_means(captures(*reference), captures(*run))
    assert result.ratio == 2
    assert result.low * result.high == pytest.approx(4)
    if half is None:
        assert math.log(result.high / 2) > 3.1824 * math.sqrt(17e-4 / 3)
    else:
        assert math.log(result.high / 2) == pytest.approx(half, rel=1e-6)


@pytest.mark.parametrize(("reference", "ratio"), [([1, 2], 1.5), ([], None), ([0, 0, 0], None)])
def test_a_speedup_of_too_few_steps_or_of_no_time_has_no_interval(reference, ratio):
    assert ratio_of_means(captures(reference), captures([1, 1, 1])) == (ratio, None, None)


def test_a_stall_widens_the_interval_of_means_and_not_that_of_medians():
    calm = [100.0, 101, 99, 100, 102, 98, 100, 101, 99, 100]
    stalled = [*calm[:5], 500.0, *calm[5:]]
    means = [ratio_of_means(captures(calm), captures(steps)) for steps in (calm[::-1], stalled)]
    assert means[1].high / means[1].low > 1.5 * means[0].high / means[0].low
    assert difference_of_centres(captures(calm), captures(stalled)).high < 5


# What a difference is called.
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
    assert (
        Judgement(difference([100] * 4, [candidate] * 4), min_effect=2, better=better).verdict
        == expected
    )


# What no interval excludes is not shown to be nothing; no regression passes, whatever else it is.
@pytest.mark.parametrize(
    ("delta", "half", "said", "passes"),
    [
        (0.0, 1.9, NO_CHANGE, True),
        (0.0, 2.1, INCONCLUSIVE, False),
        (-1.0, 2.5, INCONCLUSIVE, True),
        (1.0, 0.5, NO_CHANGE, True),
        (1.9, 0.5, INCONCLUSIVE, False),
        (3.0, 2.5, "regression", False),
        (3.0, 3.5, INCONCLUSIVE, False),
        (-3.0, 2.5, "improvement", True),
    ],
)
def test_no_change_needs_all_of_the_interval_and_the_gate_its_worse_end(delta, half, said, passes):
    found = replace(difference([100] * 3, [100 + delta] * 3), low=delta - half, high=delta + half)
    assert Judgement(found, min_effect=2).verdict == said
    assert Judgement(found, min_effect=2, better="lower").is_worse_excluded == passes
    mirrored = replace(found, delta=-delta, other_delta=-delta, low=-found.high, high=-found.low)
    assert Judgement(mirrored, min_effect=2, better="higher").is_worse_excluded == passes


def test_mean_and_median_that_point_in_opposite_directions_decide_nothing():
    point = difference([100] * 3, [95] * 3)
    assert Judgement(replace(point, other_delta=1.0), min_effect=2).verdict == INCONCLUSIVE
    assert not Judgement(
        replace(point, other_delta=1.0), min_effect=2, better="lower"
    ).is_worse_excluded
    assert (
        Judgement(replace(difference([100] * 3, [99.9] * 3), other_delta=0.1), min_effect=2).verdict
        == NO_CHANGE
    )


def test_what_is_said_to_settle_it_does():
    noise = 4 * np.random.default_rng(1).standard_normal((2, 10))
    found = difference(*(100 + noise - np.median(noise, axis=1, keepdims=True)))
    assert Judgement(found, min_effect=2).verdict == INCONCLUSIVE
    steps, captures = Judgement(found, min_effect=2).estimate_needed()
    assert found.half(steps / 10) < 2
    assert found.half(1.0, captures) < 2
    assert found.half(0.8 * steps / 10) > 1.9
    # What no number of steps settles has none.
    found = replace(difference([100, 101, 99, 100], [102, 103, 101, 102]), delta=2 - 1e-9)
    assert Judgement(replace(found, other_delta=found.delta), min_effect=2).estimate_needed() == (
        None,
        None,
    )


@pytest.mark.parametrize("n", [8, 10, 16])
def test_levels_in_turn_that_vanish_are_an_improvement(n):
    rng = np.random.default_rng(n)
    before = np.where(np.arange(n) % 2, 1400.0, 132.0) + rng.standard_normal(n)
    after = 146 + rng.standard_normal(n)
    assert evenness(before).is_uneven
    assert (
        Judgement(difference(before, after, statistic="mean"), min_effect=15).verdict
        == "improvement"
    )
    assert ratio_of_means([before], [after]).low > 3
    assert ratio_of_means([after], [before]).high < 1 / 3


@pytest.mark.parametrize("noise", [0.2, 1.0])
def test_every_fifth_step_slow_hides_no_change_of_all(noise):
    rng = np.random.default_rng(5)
    steps = np.where(np.arange(10) % 5 == 4, 110.0, 100.0)
    found = difference(
        steps + noise * rng.standard_normal(10), 1.1 * steps + noise * rng.standard_normal(10)
    )
    assert Judgement(found, min_effect=2).verdict == "regression"


def test_uneven_steps_say_their_pattern():
    one = evenness(np.array([132.0, 1400.0] * 5))
    assert (one.mean, one.median, one.is_uneven, one.is_median_nobodys) == (
        766,
        766,
        True,
        True,
    )
    assert (one.levels, one.n_long, one.period) == ((132.0, 1400.0), 5, 2)
    fifth = evenness(np.array([100.0, 100, 100, 100, 300] * 3))
    assert (fifth.is_uneven, fifth.period, fifth.n_long) == (True, 5, 3)
    by_chance = evenness(np.array([100.0, 300, 300, 100, 300, 100, 100, 100]))
    assert (by_chance.levels, by_chance.period) == ((100.0, 300.0), None)
    even = evenness(100 + np.random.default_rng(1).standard_normal(12))
    assert (even.is_uneven, even.is_median_nobodys) == (False, False)
    assert not evenness(np.array([90.0] * 9 + [180.0])).is_uneven  # mean 99, median 90: 9.1 %
    assert evenness(np.array([90.0] * 9 + [200.0])).is_uneven  # mean 101, median 90: 10.9 %
    assert evenness(
        np.array([50.0, 60, 95, 100, 105, 140, 150])
    ).is_uneven  # 3 of 7 near the median


# Student's t against printed tables and the two cases that have a closed form.

# NIST/SEMATECH e-Handbook of Statistical Methods, 1.3.6.7.2: upper critical values, two-sided here.
TABLE = [
    (1, 0.95, 12.706),
    (1, 0.99, 63.657),
    (2, 0.90, 2.920),
    (2, 0.95, 4.303),
    (3, 0.95, 3.182),
    (4, 0.95, 2.776),
    (4, 0.99, 4.604),
    (5, 0.95, 2.571),
    (9, 0.99, 3.250),
    (10, 0.95, 2.228),
    (18, 0.95, 2.101),
    (30, 0.95, 2.042),
    (30, 0.998, 3.385),
    (60, 0.99, 2.660),
    (100, 0.95, 1.984),
]


@pytest.mark.parametrize(("freedom", "confidence", "value"), TABLE)
def test_quantiles_and_the_tails_beyond_them_are_those_of_the_printed_table(
    freedom, confidence, value
):
    assert critical_value(confidence, freedom) == pytest.approx(value, abs=5.1e-4)
    tails, densities = two_sided_tails(np.array([value]), np.array([float(freedom)]))
    assert tails[0] == pytest.approx(
        1 - confidence, abs=6e-4 * densities[0]
    )  # printed to half a thousandth


@pytest.mark.parametrize("confidence", [0.5, 0.8, 0.95, 0.99, 0.9999, 1 - 1e-6])
def test_one_and_two_degrees_of_freedom_have_closed_forms(confidence):
    # One: Cauchy, tan(pi c / 2). Two: c = t / sqrt(2 + t^2).
    assert critical_value(confidence, 1) == pytest.approx(math.tan(math.pi * confidence / 2), 1e-9)
    assert critical_value(confidence, 2) == pytest.approx(
        confidence * math.sqrt(2 / (1 - confidence**2)), 1e-9
    )
    for t in (0.0, 1e-9, 0.3, 1.0, 5.0, 1e6):
        tails, _ = two_sided_tails(np.array([t, t]), np.array([1.0, 2.0]))
        assert tails == pytest.approx(
            [1 - 2 / math.pi * math.atan(t), 1 - t / math.sqrt(2 + t * t)], abs=1e-12
        ), t


# The smallest difference of two steps is 0.4, or 1.4. The largest is 1.2, or 2.2.
@pytest.mark.parametrize(("apart", "said"), [(0.4, NO_CHANGE), (1.4, INCONCLUSIVE)])
def test_of_steps_that_do_not_overlap_a_small_gap_shows_no_change_that_counts(apart, said):
    steps = [100 + 0.1 * (number % 5) for number in range(40)]
    found = difference(steps, [value + 0.4 + apart for value in steps])
    separated = replace(
        found, low=apart, high=apart + 0.8, separation=Separation(low=apart, high=apart + 0.8)
    )
    assert Judgement(separated, min_effect=2).verdict == said
