"""What holds for the interval of any steps: swapped, scaled, shifted, compared with themselves."""

import math
import re

import numpy as np
import pytest
from hypothesis import given, strategies as st

from nsyspipe.comparison.statistics import Judgement, difference_of_centres, ratio_of_means
from nsyspipe.comparison.student_t import critical_value, two_sided_tails

# Whole numbers of few sizes: ties, constants, stalls and grids come up by themselves.
VALUES = st.one_of(st.integers(0, 3), st.integers(95, 105), st.integers(1, 10**12))
CAPTURE = st.lists(VALUES, min_size=1, max_size=25).map(lambda x: np.array(x, np.float64))
SIDE = st.lists(CAPTURE, min_size=1, max_size=3)
ONE = CAPTURE.map(lambda x: [x])
ANY_SIDE = st.one_of(ONE, SIDE)


def bounds(result):
    return result.low, result.high


@given(ANY_SIDE, ANY_SIDE)
def test_swapping_the_sides_mirrors_everything_exactly(one, other):
    there, back = difference_of_centres(one, other), difference_of_centres(other, one)
    assert back.delta == -there.delta
    assert (back.baseline, back.candidate) == (there.candidate, there.baseline)
    if there.undecided is None:
        assert bounds(back) == (-there.high, -there.low)
    else:
        assert back.undecided is not None
        assert words(back, baseline="candidate", candidate="baseline") == words(there)


def words(result, **renamed):
    """Return the reason of each side that is undecided, by the name of the side."""
    side = "(baseline|candidate)"
    _, *pieces = re.split(rf"{side}(?: and {side})? ha(?:s|ve) ", result.undecided)
    clauses = zip(pieces[::3], pieces[1::3], pieces[2::3], strict=True)
    reasons = {
        renamed.get(name, name): why.removesuffix(", ")
        for first, second, why in clauses
        for name in (first, second)
        if name
    }
    assert reasons
    return reasons


@given(ANY_SIDE)
def test_a_side_against_itself_is_exactly_no_change(side):
    result = difference_of_centres(side, side)
    assert result.delta == 0
    assert Judgement(result, min_effect=0).verdict in {"no change", "inconclusive"}
    assert (Judgement(result, min_effect=0).verdict == "inconclusive") == (
        result.undecided is not None
    )
    ratio = ratio_of_means(side, side)
    assert ratio == (1, 1, 1) or ratio.low is None


@given(ANY_SIDE, ANY_SIDE, st.sampled_from([2.0**-40, 0.5, 2.0, 2.0**20]))
def test_another_unit_scales_everything_exactly(one, other, unit):
    # Powers of two: no rounding can differ.
    result = difference_of_centres(one, other)
    scaled = difference_of_centres([x * unit for x in one], [x * unit for x in other])
    assert scaled.delta == result.delta * unit
    if result.undecided is None:
        # Where steps do not differ at all the search ends at a number that is as good as 0, in any
        # unit.
        assert bounds(scaled) == pytest.approx(
            (result.low * unit, result.high * unit), rel=1e-15, abs=1e-100
        )


@given(ANY_SIDE, ANY_SIDE, st.integers(-(10**12), 10**12))
def test_a_shift_of_both_sides_changes_no_difference(one, other, shift):
    # A mean of several captures' medians may round differently after the shift.
    result = difference_of_centres(one, other)
    shifted = difference_of_centres([x + shift for x in one], [x + shift for x in other])
    assert shifted.delta == pytest.approx(result.delta, rel=1e-9, abs=1e-2)
    if len(one) == len(other) == 1:
        assert shifted.delta == result.delta
        # How far means are apart, or from those of whole periods, is rounded.
        if result.undecided is None and any(
            side.whole_period_offset or result.interval.extra_half_width
            for side in result.interval.sides
        ):
            assert bounds(shifted) == pytest.approx(bounds(result), rel=1e-9, abs=1e-2)
        else:
            assert bounds(shifted) == bounds(result)


@given(ANY_SIDE, ANY_SIDE)
def test_more_confidence_never_narrows_the_interval(one, other):
    low, high = (difference_of_centres(one, other, confidence=c) for c in (0.8, 0.99))
    if low.undecided is None:
        assert low.low <= low.delta <= low.high
        assert high.high - high.low >= (low.high - low.low) * (1 - 1e-12)


@given(ANY_SIDE, ANY_SIDE)
def test_a_speedup_turns_over_when_its_sides_are_swapped(one, other):
    there, back = ratio_of_means(one, other), ratio_of_means(other, one)
    if there.ratio:
        assert back.ratio == pytest.approx(1 / there.ratio)
    if there.low is not None:
        assert bounds(back) == pytest.approx((1 / there.high, 1 / there.low), rel=1e-9)
        assert there.low <= there.ratio <= there.high


NODES, PARTS = np.polynomial.legendre.leggauss(200)


@given(st.floats(0.5, 0.9999), st.floats(1, 400))
def test_a_quantile_has_its_own_tail(confidence, freedom):
    # With t = sqrt(f) tan a the density is cos(a)^(f - 1), over an integral that has a closed form.
    t = critical_value(confidence, freedom)
    half = math.atan(t / math.sqrt(freedom)) / 2
    inside = half * (np.cos(half * (NODES + 1)) ** (freedom - 1) @ PARTS)
    whole = math.exp(math.lgamma(freedom / 2) - math.lgamma(freedom / 2 + 0.5))
    assert inside / (whole * math.sqrt(math.pi) / 2) == pytest.approx(confidence, abs=1e-8)
    tails, _ = two_sided_tails(np.array([t]), np.array([freedom]))
    assert tails[0] == pytest.approx(1 - confidence, abs=1e-7)


@given(st.floats(0.6, 0.999), st.floats(1, 100), st.floats(1.01, 2))
def test_more_freedom_and_less_confidence_make_a_quantile_smaller(confidence, freedom, more):
    t = critical_value(confidence, freedom)
    assert critical_value(confidence, freedom * more) <= t
    assert critical_value(0.5 + (confidence - 0.5) / more, freedom) < t
