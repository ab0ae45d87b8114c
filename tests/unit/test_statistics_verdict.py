"""What a difference is called, by direction, size, and doubt."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from nsyspipe.statistics import difference_of_centres, verdict, why_inconclusive

NO_CHANGE, INCONCLUSIVE = "no change", "inconclusive"


def difference(baseline, candidate):
    sides = (np.array(side, np.float64) for side in (baseline, candidate))
    return difference_of_centres(*([side] for side in sides))


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
