"""How far the difference of two centres may be off, whatever the correlation of neighbouring steps."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

from nsyspipe.comparison.series import MeanSeries, RegularSeries, inflation

if TYPE_CHECKING:
    from nsyspipe.comparison.series import Captures
    from nsyspipe.model.types import Float64


# Student's t distribution, which neither numpy nor the standard library has.


_NODES, _PARTS = np.polynomial.legendre.leggauss(12)
# In units of t: pieces on which these give 9 digits of the integral from 3 degrees of freedom on, and 4 below 2.
_PIECES = (0.0, 2.0, 7.0, math.inf)
_CLOSE_ENOUGH, _ROUNDS = 1e-9, 60
# Of a series: where its terms are less than the last bit of a float, by the logarithm; and close enough for a quantile.
_DIGITS, _CLOSE = 40.0, 1e-14


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
    found: Float64 = width * (np.cos(angles) ** (freedom[:, None] - 1) @ _PARTS)
    return found


def _half_width(weights: Float64, errors: Float64, freedom: Float64, error: float) -> float:
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


@lru_cache(maxsize=4096)
def critical_value(confidence: float, freedom: float) -> float:
    """Return t such that P(|T| <= t) is `confidence`: what a two-sided interval multiplies its error by.

    Degrees of freedom are of captures: few, at least 1, and not whole (Welch). The tail is I_x(freedom/2, 1/2) at
    x = freedom / (freedom + t^2), a power series in x. It is convex and falls, and the normal quantile is too small:
    Newton climbs to the root.

    Examples
    --------
    >>> round(critical_value(0.95, 10), 4)
    2.2281
    """
    tail, half = 1 - confidence, freedom / 2
    t = -NormalDist().inv_cdf(tail / 2)
    front = math.exp(math.lgamma(half + 0.5) - math.lgamma(half)) / math.sqrt(math.pi)
    for _ in range(_ROUNDS):
        x = freedom / (freedom + t * t)
        n = np.arange(1, math.ceil(_DIGITS / -math.log(x)))
        series = 1 + float(np.cumprod(x * (half + n - 0.5) / (half + n)).sum())
        found = front / half * x**half * math.sqrt(1 - x) * series
        slope = 2 * front / math.sqrt(freedom) * x ** (half + 0.5)
        step = (found - tail) / slope
        t += step
        if step <= _CLOSE * t:
            break
    return t


# What a correlation is taken for before any step is seen: anything from 0 to here.
_MOST = 0.97
# Steps of both sides up to which so many correlations tell likelihoods apart: the more steps, the narrower.
_FINENESS = ((160, 12), (800, 36), (math.inf, 108))
# What the error that is asked for is divided by, so that it holds at a correlation of 0.6 too: the root of so much per
# step of a side, to a third. Of fewer steps more correlations are left open, which is caution enough.
_CAUTION_PER_STEP, _MOST_CAUTION = 0.275, 3.0


@dataclass(frozen=True, eq=False)
class Interval:
    """Half-widths around the difference of two centres; the same whichever side comes first.

    `added` is what comes to it that no spread shows. It is as if each capture went on to so many times its steps
    (`longer`), or there were so many `times` the captures, all like these.
    """

    sides: tuple[Captures, Captures]
    confidence: float
    added: float = 0.0
    longer: float = 1.0
    times: int = 1

    def __post_init__(self) -> None:
        if not 0 < self.confidence < 1:
            msg = f"confidence must be between 0 and 1, not {self.confidence!r}"
            raise ValueError(msg)

    @cached_property
    def half(self) -> float:
        """Half-width: of the steps by all correlations that they leave open, and not less than of the captures."""
        return max(self._within, self._between) + self.added

    @property
    def has_between(self) -> bool:
        """Whether the spread between captures is in: one side has several."""
        return max(self._counts) > 1

    @property
    def is_borrowed(self) -> bool:
        """Whether one side has several captures, and the other is taken to spread like it."""
        return min(self._counts) == 1 < max(self._counts)

    @property
    def is_beside_gap(self) -> bool:
        """Whether the centre of a capture may jump from one level of its steps to the other."""
        correlation = np.asarray(float(self._weights @ self._prior[0]))
        return any(
            series.is_beside_gap(float(inflation(series.n, correlation))) for side in self.sides for series in side.long
        )

    @cached_property
    def is_same(self) -> bool:
        """Whether both sides are the same steps: then nothing is left to chance."""
        one, other = (side.series for side in self.sides)
        return len(one) == len(other) and all(
            np.array_equal(a.values, b.values) for a, b in zip(one, other, strict=True)
        )

    @cached_property
    def _counts(self) -> list[int]:
        return [len(side.series) * self.times for side in self.sides]

    @property
    def _steps(self) -> float:
        return (self.sides[0].n + self.sides[1].n) * self.longer

    @property
    def _prior(self) -> tuple[Float64, Float64]:
        return _prior(next(count for most, count in _FINENESS if self._steps <= most))

    @property
    def _error(self) -> float:
        """What the tails may be: the error that is asked for, less caution."""
        caution = math.sqrt(_CAUTION_PER_STEP * (self._steps / 2 * self.times))
        return (1 - self.confidence) / min(max(caution, 1.0), _MOST_CAUTION)

    @cached_property
    def _weights(self) -> Float64:
        """How likely each correlation is, of all steps of both sides: prior times likelihood."""
        correlations, prior = self._prior
        parts = [
            sum((one.likelihood(correlations, self.longer) for one in side.varying), np.zeros(1)) for side in self.sides
        ]
        # Both sides first: swapped, they sum to exactly the same.
        likely = np.log(prior) + self.times * (parts[0] + parts[1])
        weights: Float64 = np.exp(likely - likely.max())
        weights /= weights.sum()
        return weights

    def _variances(self, times: int) -> tuple[Float64, Float64]:
        """Return the variance of the difference for each correlation, and its sum of squares over freedom."""
        one, other = (side.variances(self._prior[0], self.longer, times) for side in self.sides)
        return one[0] + other[0], one[1] + other[1]

    @cached_property
    def _within(self) -> float:
        """Half-width from the steps: where the tails of Welch's t, weighted over correlations, are the error."""
        if not any(side.varying for side in self.sides):
            return 0.0
        variance, squares = self._variances(self.times)
        # Of spreads too small to be squared nothing is known but that there are some.
        freedom = np.ones_like(variance)
        np.divide(variance**2, squares, out=freedom, where=squares > 0)
        return _half_width(self._weights, np.sqrt(variance), freedom, self._error)

    @cached_property
    def _between(self) -> float:
        """Half-width from the captures' centres: the wider of pooled t and Welch's; 0 with one capture a side.

        Pooled t is far too narrow where the side of fewer captures spreads more, Welch's where two
        captures agree by chance. One capture shows no spread: there is only pooled t, and of one on each side that go on
        as several as much as their steps let expect.
        """
        counts, times = self._counts, self.times
        if not self.has_between:
            return 0.0
        freedom = sum(counts) - 2
        t = critical_value(self.confidence, freedom)
        if max(counts) == times:
            return t * math.sqrt(float(self._weights @ self._variances(1)[0]) / times)
        pooled = times * sum(side.squares_between for side in self.sides) / freedom
        half = t * math.sqrt(pooled * (1 / counts[0] + 1 / counts[1]))
        if min(counts) == times:
            return half
        (one, squares), (other, more) = (side.between for side in self.sides)
        variance = (one + other) / times
        if not variance:
            return half
        welch = max(variance**2 / ((squares + more) / times**3), 1.0)
        return max(half, critical_value(self.confidence, welch) * math.sqrt(variance))


@lru_cache(maxsize=8)
def _prior(count: int) -> tuple[Float64, Float64]:
    """Correlations and their weights before any step is seen: nodes of Gauss and Legendre."""
    nodes, parts = np.polynomial.legendre.leggauss(count)
    return _MOST * (nodes + 1) / 2, parts / 2


def mean_interval(one: Captures, other: Captures, confidence: float) -> Interval:
    """Return the interval of the difference of two means; regular patterns are no spread, but broken periods are added.

    A pattern counts where all captures of both sides have the same one, or where all of one side have
    it four times or more, and no capture of the other has two levels.
    """
    sides = (one.of_kind(MeanSeries), other.of_kind(MeanSeries))
    periods = [{series.period for series in side.series} for side in sides]
    has_one = [len(found) == 1 and 0 not in found for found in periods]
    is_shared = has_one[0] and periods[0] == periods[1]
    before, after = (
        side.of_kind(RegularSeries)
        if is_shared
        or (
            has_one[at]
            and all(series.is_sure for series in side.series)
            and not any(series.is_long.any() for series in sides[1 - at].series)
        )
        else side
        for at, side in enumerate(sides)
    )
    return Interval((before, after), confidence, added=abs(after.broken - before.broken))
