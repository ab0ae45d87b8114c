"""What one capture's steps say: a centre, and how far it may be off for each correlation of neighbouring steps."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    FloatArray = NDArray[np.float64]

__all__ = ["MIN_STEPS", "MeanSeries", "Series", "inflation"]

# A variance of two values is no estimate; definitions.md, section 7.
MIN_STEPS = 3
# Steps further out than so many standard deviations count as that far: a stall says nothing about
# where the median is.
_REACH = 3.0
# The standard deviation of a normal distribution in units of its median absolute deviation.
_PER_DEVIATION = 1.482602218505602
# Half-width, in standard errors, of the band of ranks from which the density at the median is read.
_BAND = 1.96
# Correlated steps widen that, up to so many steps' own: one or two stalls of ten stay outside.
_WIDEST_OF = 10
# The order statistics of normal steps rarely say more than so many times the normal variance.
_GAP = 8.0
# Variance of a median over that of a mean, for independent normal values.
_MEDIAN_COST = math.pi / 2
# Of a correlation of 0.97 the thousandth neighbour has none.
_FURTHEST = 1000
_TINY = 1e-300


@dataclass(frozen=True, eq=False)
class Series:
    """The values of one capture's steps in step order, and their median.

    `squares`, `likelihood` and `variances` take correlations as an array, and need two steps at least.
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
        """Values less the median, cut at 3 robust standard deviations."""
        apart = self.values - self.centre
        reach = _REACH * _PER_DEVIATION * float(np.median(np.abs(apart)))
        cut: FloatArray = np.clip(apart, -reach, reach)
        return cut

    @property
    def is_varying(self) -> bool:
        """Whether steps differ."""
        return bool(self.values.min() < self.values.max())

    def squares(self, correlations: FloatArray, longer: float = 1.0) -> FloatArray:
        """Return the generalised sum of squares around the mean, (x - m)' R^-1 (x - m), of AR(1) steps.

        Parameters
        ----------
        longer
            As if the capture had gone on like this, to so many times its steps.
        """
        r, x, n = correlations, self.deviations, self.n * longer
        total, ends = float(x.sum()), float(x[0] + x[-1])
        own = float(x @ x)
        beside = float(x[1:] @ x[:-1]) * longer
        inner = own * longer - float(x[0] ** 2 + x[-1] ** 2)
        whole = (own * longer - 2 * r * beside + r * r * inner) / (1 - r * r)
        towards = (total * longer - r * (total * longer - ends)) / (1 + r)
        found: FloatArray = np.maximum(whole - towards**2 / _information(n, r), _TINY)
        return found

    def likelihood(self, correlations: FloatArray, longer: float = 1.0) -> FloatArray:
        """Return the logarithm of the likelihood of each correlation, mean and variance integrated out.

        |R|^-1/2 (1' R^-1 1)^-1/2 Q^-(n-1)/2, Q of `squares`, for the priors dm and ds/s; but for a constant, so that it
        does not depend on the unit of the values.
        """
        r, n = correlations, self.n * longer
        squares = self.squares(r, longer)
        found: FloatArray = -0.5 * (
            (n - 1) * np.log(1 - r * r)
            + np.log(_information(n, r))
            + (n - 1) * np.log(squares / squares.max())
        )
        return found

    def variances(self, correlations: FloatArray, longer: float = 1.0) -> FloatArray:
        """Return the variance of the centre for each correlation, by the spread that the steps then have."""
        spread = self.squares(correlations, longer) / (self.n * longer - 1)
        found: FloatArray = spread * self._cost(correlations, self.n * longer)
        return found

    def is_beside_gap(self, inflated: float) -> bool:
        """Whether the median stands beside a gap, so that it may jump across: between two levels.

        Told by the order statistics about 2 standard errors around the median (Bonett and Price 2002), of the steps
        that n are worth.
        """
        if not self.is_varying:
            return False
        cut = self.deviations - self.deviations.mean()
        normal = _MEDIAN_COST * float(cut @ cut) / (self.n - 1)
        wider = max(self._reach_of_ranks(1.0), self._reach_of_ranks(inflated))
        return wider > _GAP * normal

    def _cost(self, correlations: FloatArray, n: float) -> FloatArray:
        """Variance of the median of n normal AR(1) steps, over theirs: arcsin r^k in the place of r^k."""
        return _median_cost(n, tuple(correlations.tolist()))

    def _reach_of_ranks(self, inflated: float) -> float:
        """1 / (4 f^2) from the order statistics on the wider side of the median."""
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
        return (max(high, -low) / (2 * half)) ** 2

    @cached_property
    def _ordered(self) -> FloatArray:
        return np.sort(self.values - self.centre)


class MeanSeries(Series):
    """The same of a mean: deviations are not cut, and no density is needed."""

    @cached_property
    def centre(self) -> float:
        """The mean, taken as the smallest value plus the mean of the rest above it: exact on equal values."""
        least = float(self.values.min())
        return least + float((self.values - least).mean())

    @cached_property
    def deviations(self) -> FloatArray:
        """Values less the mean; exactly the same of values that are shifted."""
        above = self.values - self.values.min()
        found: FloatArray = above - float(above.mean())
        return found

    def is_beside_gap(self, inflated: float) -> bool:  # noqa: ARG002 - a mean does not jump
        """Return False."""
        return False

    def _cost(self, correlations: FloatArray, n: float) -> FloatArray:
        """Variance of the mean of n AR(1) steps, over theirs."""
        found: FloatArray = inflation(n, correlations) / n
        return found


def inflation(n: float, correlation: FloatArray) -> FloatArray:
    """Return the variance of the mean of n AR(1) steps over that of independent ones: n / effective steps.

    1 + 2 sum_k (1 - k/n) r^k, in closed form.
    """
    r = correlation
    found: FloatArray = (1 + r) / (1 - r) - 2 * r * (1 - r**n) / (n * (1 - r) ** 2)
    return found


def _information(n: float, r: FloatArray) -> FloatArray:
    """1' R^-1 1 of n AR(1) steps."""
    found: FloatArray = (2 + (n - 2) * (1 - r)) / (1 + r)
    return found


@lru_cache(maxsize=256)
def _median_cost(n: float, correlations: tuple[float, ...]) -> FloatArray:
    apart = np.arange(1, min(math.ceil(n), _FURTHEST))
    alike = np.arcsin(np.asarray(correlations)[:, None] ** apart)
    found: FloatArray = (_MEDIAN_COST + 2 * alike @ (1 - apart / n)) / n
    return found
