"""The ratio of means and its interval, with values worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from nsyspipe.comparison.statistics import difference_of_centres, ratio_of_means


def captures(*each):
    return [np.array(values, np.float64) for values in each]


def test_speedup_of_constant_steps_is_a_point():
    result = ratio_of_means(captures([200] * 3), captures([100] * 4))
    assert (result.ratio, result.low, result.high) == (2, 2, 2)


def test_speedup_of_three_steps_by_hand():
    # Of independent steps the error is sqrt(17e-4 / 3); steps alike by 0.97 have a far larger one.
    result = ratio_of_means(captures([198, 200, 202]), captures([96, 100, 104]))
    error = math.sqrt(17e-4 / 3)
    assert result.ratio == 2
    assert math.log(result.high / 2) > 3.1824 * error
    assert result.low * result.high == pytest.approx(4)


def test_speedup_of_a_run_over_itself_is_one():
    steps = [101.3, 99.9, 107.2, 98.1]
    result = ratio_of_means(captures(steps), captures(steps))
    assert (result.ratio, result.low, result.high) == (1, 1, 1)


def test_speedup_with_captures_by_hand():
    # Means 90 and 110 of mean 100: relative 0.9 and 1.1, squares 0.02; the same on the other side.
    # 0.04 / 2 x (1/2 + 1/2); t(2) = 4.302653.
    result = ratio_of_means(captures([90] * 3, [110] * 3), captures([45] * 3, [55] * 3))
    assert result.ratio == 2
    assert result.high == pytest.approx(2 * math.exp(4.302653 * math.sqrt(0.02)), rel=1e-6)


@pytest.mark.parametrize(
    ("reference", "run", "ratio", "reason"),
    [
        ([1, 2], [1, 1, 1], 1.5, "reference: 2 steps, needs 3"),
        ([], [1, 1, 1], None, "reference: 0 steps, needs 3"),
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
    assert difference_of_centres(captures(calm), captures(stalled)).high < 5
