"""How far the difference of two centres may be off: the interval, and what could make it wider."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from nsyspipe.statistics.series import MIN_STEPS
from nsyspipe.statistics.student_t import critical_value

if TYPE_CHECKING:
    from nsyspipe.statistics.captures import Captures, Spread

__all__ = ["Interval"]

# What the autocorrelation is taken for before any step is seen, and how many steps that counts for.
_PRIOR_CORRELATION, _PRIOR_STEPS = 0.5, 20
# How many cosines see a trend, or a level that moves once, undiluted.
_SLOW_COSINES = 3
# Beyond it a series says nothing about its own spread.
_MOST_CORRELATION = 0.98
# A decision must hold at a fifth of the allowed error too, were the steps as correlated as they may be.
_CAUTION = 5


@dataclass(frozen=True, eq=False)
class Interval:
    """Half-widths around the difference of two centres; the same whichever side comes first."""

    one: Captures
    other: Captures
    confidence: float

    def __post_init__(self) -> None:
        if not 0 < self.confidence < 1:
            msg = f"confidence must be between 0 and 1, not {self.confidence!r}"
            raise ValueError(msg)

    @cached_property
    def usual(self) -> float:
        """Half-width at the asked confidence, with the long-run variance that the steps show."""
        own = self._half(self.one.spread(), self.other.spread(), confidence=self.confidence)
        return max(own, self._between)

    @cached_property
    def cautious(self) -> float:
        """Half-width at a fifth of the error and the highest correlation that the steps leave open."""
        slow = (side.spread(_SLOW_COSINES) for side in (self.one, self.other))
        highest, seen = self._highest_correlation, self.correlation
        alike = (side.spread_at(highest, seen) for side in (self.one, self.other))
        return max(
            self.usual,
            self._half(*slow, confidence=self.confidence),
            self._half(*alike, confidence=1 - (1 - self.confidence) / _CAUTION),
        )

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
        """First autocorrelation of the steps of both sides, from 0 to 0.98.

        The mean of the captures' estimates, weighted by their steps. An estimate from n steps is
        too low by (1 + 3 r) / n (Marriott and Pope, Kendall 1954).
        """
        count = len(self.one.varying) + len(self.other.varying)
        if not count:
            return 0.0
        total = _steps(self.one, self.other)
        seen = (self.one.neighbours + self.other.neighbours) / total
        n = total / count
        unbiased = (n * seen + 1) / max(n - 3, MIN_STEPS)
        return min(max(unbiased, 0.0), _MOST_CORRELATION)

    @cached_property
    def effective_steps(self) -> float:
        """How many independent steps the smaller side is worth at that correlation."""
        return min(side.effective_steps(self.correlation) for side in (self.one, self.other))

    def doubt(self, delta: float) -> str | None:
        """Say in words why this difference of the centres cannot be decided; None if it can.

        Because the two half-widths disagree on it; or because neither finds it and the steps are
        worth too few independent ones to say that there is nothing. Equal sides leave no doubt.
        """
        if abs(delta) > self.cautious or _equal(self.one, self.other):
            return None
        steps = min(self.one.n, self.other.n)
        if self.effective_steps < MIN_STEPS:
            return f"{steps} steps are too few for their autocorrelation ({self.correlation:.2g})"
        if abs(delta) <= self.usual:
            return None
        highest = self._highest_correlation
        return f"{steps} steps are too few: autocorrelation up to {highest:.2g} could explain this"

    @cached_property
    def _highest_correlation(self) -> float:
        """One standard error above what the correlation is likely to be: drawn up to the prior where steps are few."""
        steps = _steps(self.one, self.other) + _PRIOR_STEPS
        drawn = self.correlation + (_PRIOR_CORRELATION - self.correlation) * _PRIOR_STEPS / steps
        likely = max(self.correlation, drawn)
        return min(likely + math.sqrt((1 - likely**2) / steps), _MOST_CORRELATION)

    @cached_property
    def _counts(self) -> tuple[int, int]:
        return len(self.one.series), len(self.other.series)

    @cached_property
    def _between(self) -> float:
        """Half-width from the captures' centres: the wider of pooled t and Welch's; 0 with one capture a side.

        Pooled t is far too narrow where the side of fewer captures spreads more, Welch's where two
        captures agree by chance. One capture shows no spread: there is only pooled t.
        """
        freedom = sum(self._counts) - 2
        if not self.has_between:
            return 0.0
        pooled = (self.one.squares_between + self.other.squares_between) / freedom
        error = math.sqrt(pooled * (1 / self._counts[0] + 1 / self._counts[1]))
        half = critical_value(self.confidence, freedom) * error
        if self.is_borrowed:
            return half
        own = self._half(self.one.between, self.other.between, confidence=self.confidence)
        return max(half, own)

    @staticmethod
    def _half(one: Spread, other: Spread, *, confidence: float) -> float:
        """Half-width of Welch's interval."""
        variance = one.variance + other.variance
        if not variance:
            return 0.0
        squares = one.per_freedom + other.per_freedom
        freedom = max(variance**2 / squares, 1.0) if squares else 1.0
        return critical_value(confidence, freedom) * math.sqrt(variance)


def _equal(one: Captures, other: Captures) -> bool:
    """Whether both sides are the same steps: then nothing is left to chance."""
    return len(one.series) == len(other.series) and all(
        np.array_equal(a.values, b.values) for a, b in zip(one.series, other.series, strict=True)
    )


def _steps(*sides: Captures) -> int:
    return sum(series.n for side in sides for series in side.varying)
