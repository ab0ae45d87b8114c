"""How far the difference of two centres may be off, whatever the correlation of neighbouring steps.

Student's t distribution is here too, and what steps of two kinds that come regularly take off the spread.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

from nsyspipe.analysis.summary import levels_of, period_of
from nsyspipe.comparison.series import MeanSeries, inflation

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nsyspipe.comparison.series import Captures, Series
    from nsyspipe.model.types import Float64


# Quantiles of Student's t distribution, which neither numpy nor the standard library has.


_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(12)
# In units of t: pieces on which these give 9 digits of the integral, whatever the degrees of freedom.
_PIECES = (0.0, 2.0, 7.0, math.inf)

_TINY = 1e-300
_CLOSE = 1e-14
_STEPS = 100
# Beyond this the difference to the normal distribution is less than a part in 10^7.
_NORMAL_FROM = 1e8


def two_sided_tail(t: float, freedom: float) -> float:
    """Return P(|T| > t) for Student's t with `freedom` degrees of freedom (any real above 0).

    The regularised incomplete beta function I_x(freedom/2, 1/2) at x = freedom / (freedom + t^2).
    """
    square = t * t
    return _incomplete_beta(
        freedom / 2, 0.5, freedom / (freedom + square), square / (freedom + square)
    )


def two_sided_tails(t: Float64, freedom: Float64) -> tuple[Float64, Float64]:
    """Return P(|T| > t) of many t at once, each with its degrees of freedom, and the density of |T| there.

    With t = sqrt(freedom) tan a the density of T is cos(a)^(freedom - 1) da, but for a constant: integrated piecewise
    by Gauss and Legendre.
    """
    root = np.sqrt(freedom)
    at = np.arctan(t / root)
    below, whole = np.zeros_like(at), np.zeros_like(at)
    for low, high in pairwise(_PIECES):
        left, right = np.arctan(low / root), np.arctan(high / root)
        end = np.clip(at, left, right)
        below += _of_cosine(left, end, freedom)
        whole += _of_cosine(left, right, freedom)
    return 1 - below / whole, np.cos(at) ** (freedom + 1) / root / whole


def _of_cosine(low: Float64, high: Float64, freedom: Float64) -> Float64:
    width = (high - low) / 2
    angles = low[:, None] + width[:, None] * (_NODES + 1)
    found: Float64 = width * (np.cos(angles) ** (freedom[:, None] - 1) @ _WEIGHTS)
    return found


@lru_cache(maxsize=4096)
def critical_value(confidence: float, freedom: float) -> float:
    """Return t such that P(|T| <= t) is `confidence`: what a two-sided interval multiplies its error by.

    Parameters
    ----------
    confidence
        Between 0 and 1, both excluded.
    freedom
        Degrees of freedom, any real number of at least 1 (Welch's are not whole); infinity is the
        normal distribution.

    Raises
    ------
    ValueError
        Outside these ranges.

    Notes
    -----
    Newton's method on `two_sided_tail`, to 13 digits; checked against printed tables.

    Examples
    --------
    >>> round(critical_value(0.95, 10), 4)
    2.2281
    """
    if not (0 < confidence < 1 and freedom >= 1):
        msg = f"no Student t quantile for confidence {confidence!r}, {freedom!r} degrees of freedom"
        raise ValueError(msg)
    tail = 1 - confidence
    t = -NormalDist().inv_cdf(tail / 2)
    if freedom > _NORMAL_FROM:
        return t
    # The tail is convex and falls, and the normal quantile is too small: Newton climbs to the root.
    front = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)
    front -= math.log(freedom * math.pi) / 2
    for _ in range(_STEPS):
        slope = 2 * math.exp(front - (freedom + 1) / 2 * math.log1p(t * t / freedom))
        step = (two_sided_tail(t, freedom) - tail) / slope
        t += step
        if step <= _CLOSE * t:
            break
    return t


def _incomplete_beta(a: float, b: float, x: float, rest: float) -> float:
    """I_x(a, b); `rest` is 1 - x, given by the caller because subtracting would lose it near 1."""
    if x <= 0 or rest <= 0:
        return 0.0 if x <= 0 else 1.0
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log(rest)
    )
    if x < (a + 1) / (a + b + 2):
        return front * _fraction(a, b, x) / a
    return 1 - front * _fraction(b, a, rest) / b


def _fraction(a: float, b: float, x: float) -> float:
    """Return the continued fraction of the incomplete beta function by Lentz's method."""
    c, d = 1.0, 1 / _off_zero(1 - (a + b) * x / (a + 1))
    value = d
    for m in range(1, 10_000):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1 / _off_zero(1 + term * d)
            c = _off_zero(1 + term / c)
            value *= c * d
        if abs(c * d - 1) < 1e-15:  # noqa: PLR2004 - the last bits of a float
            break
    return value


def _off_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY


# What a correlation is taken for before any step is seen: anything from 0 to here.
_MOST = 0.97
# Steps of both sides up to which so many correlations tell likelihoods apart: the more steps, the narrower.
_FINENESS = ((160, 12), (800, 36), (math.inf, 108))
# What the error that is asked for is divided by, so that it holds at a correlation of 0.6 too: the root of so much per
# step of a side, to a third. Of fewer steps more correlations are left open, which is caution enough.
_CAUTION_PER_STEP, _MOST_CAUTION = 0.275, 3.0
_CLOSE_ENOUGH, _ROUNDS = 1e-9, 60


@dataclass(frozen=True, eq=False)
class Interval:
    """Half-widths around the difference of two centres; the same whichever side comes first.

    Attributes
    ----------
    longer
        As if each capture had so many times its steps, and went on like them.
    times_captures
        As if there were so many times the captures, each like these.
    """

    one: Captures
    other: Captures
    confidence: float
    longer: float = 1.0
    times_captures: int = 1

    def __post_init__(self) -> None:
        if not 0 < self.confidence < 1:
            msg = f"confidence must be between 0 and 1, not {self.confidence!r}"
            raise ValueError(msg)

    @cached_property
    def half(self) -> float:
        """Half-width: of the steps by all correlations that they leave open, and not less than of the captures."""
        return max(self._within, self._between)

    @property
    def has_between(self) -> bool:
        """Whether the spread between captures is in: one side has several."""
        return max(self._counts) > 1

    @property
    def is_borrowed(self) -> bool:
        """Whether one side has several captures, and the other is taken to spread like it."""
        return min(self._counts) == 1 < max(self._counts)

    @cached_property
    def correlation(self) -> float:
        """The mean correlation of neighbouring steps, by its likelihood."""
        return float(self._weights @ self._correlations)

    @property
    def is_beside_gap(self) -> bool:
        """Whether the centre of a capture may jump from one level of its steps to the other."""
        return any(
            series.is_beside_gap(float(inflation(series.n, np.asarray(self.correlation))))
            for side in (self.one, self.other)
            for series in side.long
        )

    @cached_property
    def is_same(self) -> bool:
        """Whether both sides are the same steps: then nothing is left to chance."""
        one, other = self.one.series, self.other.series
        return len(one) == len(other) and all(
            np.array_equal(a.values, b.values) for a, b in zip(one, other, strict=True)
        )

    @property
    def _is_certain(self) -> bool:
        return not (self.one.varying or self.other.varying)

    @cached_property
    def _correlations(self) -> Float64:
        return _prior(self._fineness)[0]

    @property
    def _fineness(self) -> int:
        n = (self.one.n + self.other.n) * self.longer
        return next(count for most, count in _FINENESS if n <= most)

    @property
    def _error(self) -> float:
        """What the tails may be: the error that is asked for, less caution."""
        n = (self.one.n + self.other.n) / 2 * self.longer * self.times_captures
        caution = math.sqrt(_CAUTION_PER_STEP * n)
        return (1 - self.confidence) / min(max(caution, 1.0), _MOST_CAUTION)

    @cached_property
    def _weights(self) -> Float64:
        """How likely each correlation is, of all steps of both sides: prior times likelihood."""
        correlations, prior = _prior(self._fineness)
        parts = [
            sum(
                (series.likelihood(correlations, self.longer) for series in side.varying),
                np.zeros(1),
            )
            for side in (self.one, self.other)
        ]
        # Both sides first: swapped, they sum to exactly the same.
        likely = np.log(prior) + self.times_captures * (parts[0] + parts[1])
        weights: Float64 = np.exp(likely - likely.max())
        weights /= weights.sum()
        return weights

    @cached_property
    def _counts(self) -> tuple[int, int]:
        return (
            len(self.one.series) * self.times_captures,
            len(self.other.series) * self.times_captures,
        )

    @cached_property
    def _within(self) -> float:
        """Half-width from the steps: where the tails of Welch's t, weighted over correlations, are the error."""
        if self._is_certain:
            return 0.0
        sides = [
            side.variances(self._correlations, self.longer, self.times_captures)
            for side in (self.one, self.other)
        ]
        variance = sides[0].variance + sides[1].variance
        square, parts = variance**2, sides[0].per_freedom + sides[1].per_freedom
        # Of spreads too small to be squared nothing is known but that there are some.
        freedom = np.ones_like(square)
        np.divide(square, parts, out=freedom, where=parts > 0)
        return _half_of(self._weights, np.sqrt(variance), freedom, self._error)

    @cached_property
    def _between(self) -> float:
        """Half-width from the captures' centres: the wider of pooled t and Welch's; 0 with one capture a side.

        Pooled t is far too narrow where the side of fewer captures spreads more, Welch's where two
        captures agree by chance. One capture shows no spread: there is only pooled t.
        """
        counts = self._counts
        freedom = sum(counts) - 2
        if max(len(self.one.series), len(self.other.series)) < 2:  # noqa: PLR2004 - one capture shows no spread
            return self._between_as_within if self.has_between else 0.0
        times = self.times_captures
        pooled = times * (self.one.squares_between + self.other.squares_between) / freedom
        error = math.sqrt(pooled * (1 / counts[0] + 1 / counts[1]))
        half = critical_value(self.confidence, freedom) * error
        if self.is_borrowed or min(len(self.one.series), len(self.other.series)) == 1:
            return half
        parts = [side.between for side in (self.one, self.other)]
        variance = (parts[0].variance + parts[1].variance) / times
        if not variance:
            return half
        squares = (parts[0].per_freedom + parts[1].per_freedom) / times**3
        welch = critical_value(self.confidence, max(variance**2 / squares, 1.0))
        return max(half, welch * math.sqrt(variance))

    @property
    def _between_as_within(self) -> float:
        """Half-width of captures that differ as much as their steps let expect: what is not known yet."""
        sides = [
            side.variances(self._correlations, self.longer, 1) for side in (self.one, self.other)
        ]
        variance = float(self._weights @ (sides[0].variance + sides[1].variance))
        return critical_value(self.confidence, sum(self._counts) - 2) * math.sqrt(
            variance / self.times_captures
        )


@lru_cache(maxsize=8)
def _prior(count: int) -> tuple[Float64, Float64]:
    """Correlations and their weights before any step is seen: nodes of Gauss and Legendre."""
    nodes, parts = np.polynomial.legendre.leggauss(count)
    return _MOST * (nodes + 1) / 2, parts / 2


def _half_of(weights: Float64, errors: Float64, freedom: Float64, error: float) -> float:
    """Return h with sum of weights P(|T| > h / errors) = error: Newton on the tail's logarithm, within brackets."""
    low, high = 0.0, math.inf
    half = 2 * float(weights @ errors)
    for _ in range(_ROUNDS):
        tails, densities = two_sided_tails(half / errors, freedom)
        tail, slope = float(weights @ tails), float(weights @ (densities / errors))
        low, high = (half, high) if tail > error else (low, half)
        step = tail * math.log(max(tail, _CLOSE_ENOUGH) / error) / slope if slope > 0 else math.inf
        wanted = half + step
        if abs(step) <= _CLOSE_ENOUGH * half:
            return wanted
        inside = (low + high) / 2 if math.isfinite(high) else 2 * half
        half = wanted if low < wanted < min(high, 4 * half) else inside
    return half


# Steps of two kinds that come regularly (every fifth one slow, two in turn): no chance is in which kind comes.


# What comes by chance looks regular too, where it comes twice; unless it does so on both sides, so often is believed.
_SURE = 4


@dataclass(frozen=True)
class MeanInterval:
    """The interval of the difference of two means, and what broken periods add to it."""

    interval: Interval
    broken: float

    @property
    def half(self) -> float:
        """Half-width."""
        return self.interval.half + self.broken


@dataclass(frozen=True, eq=False)
class _Regular(MeanSeries):
    """Steps whose kind is no chance: deviations are from the mean of their kind, which takes a degree of freedom more."""

    @cached_property
    def deviations(self) -> Float64:
        is_long = _kinds(self)
        own = np.where(is_long, self.values[is_long].mean(), self.values[~is_long].mean())
        apart: Float64 = (self.values - own) * ((self.n - 1) / max(self.n - 2, 1)) ** 0.5
        return apart

    @cached_property
    def broken(self) -> float:
        """How far the mean is from that of whole periods."""
        is_long = _kinds(self)
        long, short = float(self.values[is_long].mean()), float(self.values[~is_long].mean())
        share = 1 / _period(self)
        whole = share if 2 * int(is_long.sum()) <= self.n else 1 - share
        return (float(is_long.mean()) - whole) * (long - short)


def mean_interval(one: Captures, other: Captures, confidence: float) -> MeanInterval:
    """Return the interval of the difference of two means, other less one; regular patterns are no spread.

    A pattern counts where all captures of both sides have the same one, or where all of one side have
    it four times or more, and no capture of the other has two levels.
    """
    sides = [side.of_kind(MeanSeries) for side in (one, other)]
    found = [{_period(series) for series in side.series} for side in sides]
    is_shared = found[0] == found[1] and len(found[0]) == 1 and 0 not in found[0]
    regular = []
    for at, side in enumerate(sides):
        is_alone = len(found[at]) == 1 and min(found[at]) > 0 and all(map(_is_sure, side.series))
        is_even = all(levels_of(series.values) is None for series in sides[1 - at].series)
        regular.append(is_shared or (is_alone and is_even))
    sides = [
        side.of_kind(_Regular) if is_regular else side
        for side, is_regular in zip(sides, regular, strict=True)
    ]
    return MeanInterval(
        Interval(sides[0], sides[1], confidence), abs(_broken(sides[1]) - _broken(sides[0]))
    )


def _broken(side: Captures) -> float:
    parts = [series.broken for series in side.series if isinstance(series, _Regular)]
    return sum(parts) / len(parts) if parts else 0.0


def _kinds(series: Series) -> NDArray[np.bool_]:
    is_long = levels_of(series.values)
    return np.zeros(series.n, np.bool_) if is_long is None else is_long


def _period(series: Series) -> int:
    """Return the period of a capture's pattern; 0 without one that comes twice and more."""
    is_long = levels_of(series.values)
    period = None if is_long is None else period_of(is_long)
    return period if period and 2 * period <= series.n else 0


def _is_sure(series: Series) -> bool:
    is_long = _kinds(series)
    return min(int(is_long.sum()), int((~is_long).sum())) >= _SURE
