"""What one capture's steps say: a centre, how far it may be off, and how alike neighbouring steps are."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    FloatArray = NDArray[np.float64]

__all__ = ["MIN_STEPS", "MeanSeries", "Series", "cosine_count", "inflation"]

# A variance of two values is no estimate; definitions.md, section 7.
MIN_STEPS = 3
# Steps further out than so many standard deviations count as that far: a stall says nothing about
# where the median is.
_REACH = 2.0
# The standard deviation of a normal distribution in units of its median absolute deviation.
_PER_DEVIATION = 1.482602218505602
# Half-width, in standard errors, of the band of ranks from which the density at the median is read.
_BAND = 1.96
# Correlated steps widen that, up to so many steps' own: one or two stalls of ten stay outside.
_WIDEST_OF = 10
# The order statistics of normal steps rarely say more than so many times the normal variance.
_GAP = 8.0
# More make the long-run variance hardly surer, and long runs slow.
_MOST_COSINES = 32
# Variance of a median over that of a mean, for normal values.
_MEDIAN_COST = math.pi / 2


@dataclass(frozen=True, eq=False)
class Series:
    """The values of one capture's steps in step order, and a centre of them.

    The long-run variance is taken from `deviations`, the autocorrelation from ranks; `variance`,
    `long_run_ratio`, and `neighbours` need two steps at least.
    """

    values: FloatArray

    @property
    def n(self) -> int:
        """Number of steps."""
        return int(self.values.size)

    @cached_property
    def centre(self) -> float:
        """The median."""
        return float(np.median(self.values))

    @cached_property
    def deviations(self) -> FloatArray:
        """Values less the median, cut at 2 robust standard deviations, then centred."""
        apart = self.values - self.centre
        reach = _REACH * _PER_DEVIATION * float(np.median(np.abs(apart)))
        cut: FloatArray = np.clip(apart, -reach, reach)
        return cut - float(cut.mean())

    @cached_property
    def variance(self) -> float:
        """Of the deviations, with n - 1."""
        return float(self.deviations @ self.deviations) / (self.n - 1)

    @cached_property
    def normal_scale(self) -> float:
        """Variance of the median of independent normal values, times n: pi/2 times the variance."""
        return _MEDIAN_COST * self.variance

    @cached_property
    def scale(self) -> float:
        """Variance of the median if steps were independent, times n: 1 / (4 f^2), f the density there.

        The larger of what normal values of this spread would have, and what the order statistics
        around the median say (Bonett and Price 2002): values on a grid, or flat around the median.
        """
        return max(self.least_scale, self._order_statistics(1.0)[0])

    @cached_property
    def least_scale(self) -> float:
        """The same, of normal values unless the median stands beside a gap."""
        return self.scale_at(1.0)

    def scale_at(self, inflated: float) -> float:
        """Return that of steps whose mean varies `inflated` times as much as that of independent ones.

        Between two modes f is small whatever the spread, and the median jumps across. Then the
        side of the median that reaches further counts, so that the interval covers the other mode.
        The longer steps stay in a mode, the further from half its share of them may be by chance.
        """
        wider = max(self._order_statistics(1.0)[1], self._order_statistics(inflated)[1])
        return wider if wider > _GAP * self.normal_scale else self.normal_scale

    @property
    def is_varying(self) -> bool:
        """Whether steps differ."""
        return bool(self.values.min() < self.values.max())

    def _order_statistics(self, inflated: float) -> tuple[float, float]:
        """1 / (4 f^2) from the order statistics about 2 standard errors around the median, and on its wider side."""
        n = self.n
        effective = min(max(n / inflated, _WIDEST_OF), n)
        half = min(_BAND * 0.5 / math.sqrt(effective), 0.5 * (n - 1) / (n + 1))
        place = (0.5 + half) * (n + 1) - 1
        above = int(place)
        part = place - above
        further = min(above + 1, n - 1)
        ordered = self._ordered
        high = float(ordered[above] * (1 - part) + ordered[further] * part)
        low = float(ordered[n - 1 - above] * (1 - part) + ordered[n - 1 - further] * part)
        wider = max(high, -low)
        return ((high - low) / (4 * half)) ** 2, (wider / (2 * half)) ** 2

    @cached_property
    def _ordered(self) -> FloatArray:
        return np.sort(self.values - self.centre)

    def long_run_ratio(self, cosines: int) -> float:
        """Long-run variance over variance: 1 if steps are independent, (1 + r)/(1 - r) for AR(1).

        The long-run variance is the mean of the squared first `cosines` cosine transforms,
        sqrt(2/n) sum x_t cos(pi j (t - 1/2)/n): equal-weighted cosine estimator of Lazarus,
        Lewis, Stock and Watson (2018). A slow trend is in the first of them, and widens.
        """
        if not self.variance:
            return 1.0
        transforms = _cosines(self.n, cosines) @ self.deviations
        return float(transforms @ transforms) / cosines / self.variance

    @cached_property
    def neighbours(self) -> float:
        """First autocorrelation of the steps' ranks, equal steps sharing theirs; 0 if there is no spread.

        Of ranks (Bartels 1982), since a stall has one like any step, and two levels have two.
        """
        _, place, counts = np.unique(self.values, return_inverse=True, return_counts=True)
        ranks = (np.cumsum(counts) - (counts + self.n) / 2)[place]
        squares = float(ranks @ ranks)
        return float(ranks[1:] @ ranks[:-1]) / squares if squares else 0.0


class MeanSeries(Series):
    """The same of a mean: deviations are not cut, and no density is needed."""

    @cached_property
    def centre(self) -> float:
        """The mean, taken as the smallest value plus the mean of the rest above it: exact on equal values."""
        least = float(self.values.min())
        return least + float((self.values - least).mean())

    @cached_property
    def deviations(self) -> FloatArray:
        """Values less the mean."""
        return self.values - self.centre

    @cached_property
    def normal_scale(self) -> float:
        """Variance of the mean of independent values, times n."""
        return self.variance

    @cached_property
    def scale(self) -> float:
        """The same: a mean asks for no density."""
        return self.variance

    @cached_property
    def least_scale(self) -> float:
        """The same."""
        return self.variance

    def scale_at(self, inflated: float) -> float:  # noqa: ARG002 - a mean has no rank
        """Return the same whatever the correlation."""
        return self.variance


def cosine_count(n: int) -> int:
    """Return how many cosines the long-run variance rests on: 0.4 n^(2/3), from 2 to 32. Its degrees of freedom."""
    return min(max(2, round(float(0.4 * n ** (2 / 3)))), _MOST_COSINES)


def inflation(n: int, correlation: float) -> float:
    """Return the variance of the mean of n AR(1) steps over that of independent ones: n / effective steps.

    1 + 2 sum_k (1 - k/n) r^k, in closed form.
    """
    r = correlation
    return (1 + r) / (1 - r) - 2 * r * (1 - r**n) / (n * (1 - r) ** 2)


@lru_cache(maxsize=64)
def _cosines(n: int, count: int) -> FloatArray:
    times = (np.arange(n) + 0.5) / n
    waves: FloatArray = np.cos(np.pi * np.outer(np.arange(1, count + 1), times))
    return waves * math.sqrt(2 / n)
