"""How far the difference of two centres may be off, whatever the correlation of neighbouring steps."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

import numpy as np

from nsyspipe.statistics.series import inflation
from nsyspipe.statistics.student_t import critical_value, two_sided_tails

if TYPE_CHECKING:
    from nsyspipe.statistics.captures import Captures
    from nsyspipe.statistics.series import FloatArray

__all__ = ["Interval"]

# What a correlation is taken for before any step is seen: anything from 0 to here.
_MOST = 0.97
# Steps of both sides up to which so many correlations tell likelihoods apart: the more steps, the narrower.
_FINENESS = ((160, 12), (800, 36), (math.inf, 108))
# What the error that is asked for is divided by, so that it holds at a correlation of 0.6 too: the root of so much per
# step of a side, to a third. Of fewer steps more correlations are left open, which is caution enough.
_CAUTION_PER_STEP, _MOST_CAUTION = 0.275, 3.0
_CLOSE, _ROUNDS = 1e-9, 60


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
    def _correlations(self) -> FloatArray:
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
    def _weights(self) -> FloatArray:
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
        weights: FloatArray = np.exp(likely - likely.max())
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
def _prior(count: int) -> tuple[FloatArray, FloatArray]:
    """Correlations and their weights before any step is seen: nodes of Gauss and Legendre."""
    nodes, parts = np.polynomial.legendre.leggauss(count)
    return _MOST * (nodes + 1) / 2, parts / 2


def _half_of(weights: FloatArray, errors: FloatArray, freedom: FloatArray, error: float) -> float:
    """Return h with sum of weights P(|T| > h / errors) = error: Newton on the tail's logarithm, within brackets."""
    low, high = 0.0, math.inf
    half = 2 * float(weights @ errors)
    for _ in range(_ROUNDS):
        tails, densities = two_sided_tails(half / errors, freedom)
        tail, slope = float(weights @ tails), float(weights @ (densities / errors))
        low, high = (half, high) if tail > error else (low, half)
        step = tail * math.log(max(tail, _CLOSE) / error) / slope if slope > 0 else math.inf
        wanted = half + step
        if abs(step) <= _CLOSE * half:
            return wanted
        inside = (low + high) / 2 if math.isfinite(high) else 2 * half
        half = wanted if low < wanted < min(high, 4 * half) else inside
    return half
