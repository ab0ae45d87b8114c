"""One side of a comparison: one or several captures of the same configuration."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from nsyspipe.statistics.series import MIN_STEPS, Series, cosine_count, inflation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsyspipe.statistics.series import FloatArray

__all__ = ["Captures", "Spread", "why_undecided"]


class Spread(NamedTuple):
    """A variance, and the sum of squares over degrees of freedom that Welch's formula adds up."""

    variance: float
    per_freedom: float


@dataclass(frozen=True, eq=False)
class Captures:
    """The per-step values of each capture of one configuration, as `Series`."""

    series: tuple[Series, ...]

    @classmethod
    def of(cls, captures: Sequence[FloatArray], kind: type[Series] = Series) -> Captures:
        """Take one array per capture, in step order; captures without a step are left out.

        Raises
        ------
        ValueError
            If a value is not finite, or an array has more than one dimension.
        """
        arrays = [np.asarray(values, np.float64) for values in captures]
        if any(values.ndim != 1 or not np.isfinite(values).all() for values in arrays):
            msg = "per-step values must be finite and in one dimension"
            raise ValueError(msg)
        return cls(tuple(kind(values) for values in arrays if values.size))

    def scaled(self, factor: float) -> Captures:
        """Return the same steps in another unit."""
        return Captures(tuple(type(series)(series.values * factor) for series in self.series))

    @cached_property
    def n(self) -> int:
        """Steps of all captures together."""
        return sum(series.n for series in self.series)

    @cached_property
    def centre(self) -> float:
        """The mean of the captures' centres; of one capture its centre, exactly. NaN without steps."""
        if not self.series:
            return math.nan
        first = self.series[0].centre
        return first + math.fsum(series.centre - first for series in self.series) / len(self.series)

    @cached_property
    def long(self) -> tuple[Series, ...]:
        """The captures that have enough steps to tell their own spread."""
        return tuple(series for series in self.series if series.n >= MIN_STEPS)

    @cached_property
    def varying(self) -> tuple[Series, ...]:
        """Of these, the ones whose steps differ."""
        return tuple(series for series in self.long if series.is_varying)

    @cached_property
    def too_few(self) -> str | None:
        """Say why nothing can be decided from this side, in words; None if something can.

        Three steps are enough, in one capture; so are three captures of any length.
        """
        if self.n < MIN_STEPS:
            return f"{_count(self.n, 'step')}, needs {MIN_STEPS}"
        if not self.long and len(self.series) < MIN_STEPS:
            return f"no capture of {MIN_STEPS} steps"
        return None

    def spread(self, most_cosines: int | None = None) -> Spread:
        """Variance of the centre from each capture's own steps, with its long-run variance.

        With few cosines it is less certain, and sees slower changes.
        """
        parts = []
        for series in self.long:
            cosines = min(cosine_count(series.n), most_cosines or series.n)
            ratio = series.long_run_ratio(cosines)
            parts.append((series.scale * ratio / series.n, cosines))
        return self._added(parts)

    def spread_at(self, correlation: float, seen: float) -> Spread:
        """Variance of the centre if steps were AR(1) with this correlation.

        The variance of the steps is taken up by (n - 1) / (n - g), g = `inflation`: correlated
        steps stay near each other, so a short series shows too little of its spread. A gap beside
        the median is sought as far as the correlation `seen` moves it.
        """
        parts = []
        for series in self.long:
            n, g = series.n, inflation(series.n, correlation)
            parts.append((series.scale_at(inflation(n, seen)) * (n - 1) / (n - g) * g / n, n - 1))
        return self._added(parts)

    def effective_steps(self, correlation: float) -> float:
        """How many independent steps these are worth."""
        return sum(series.n / inflation(series.n, correlation) for series in self.series)

    @cached_property
    def neighbours(self) -> float:
        """Sum of the first autocorrelations of the captures, each times its steps."""
        return math.fsum(series.n * series.neighbours for series in self.varying)

    @cached_property
    def squares_between(self) -> float:
        """Sum of squares of the captures' centres around their mean."""
        return math.fsum((series.centre - self.centre) ** 2 for series in self.series)

    @cached_property
    def between(self) -> Spread:
        """Variance of the centre from the captures' centres; needs two captures at least."""
        count = len(self.series)
        variance = self.squares_between / (count - 1) / count
        return Spread(variance, variance**2 / (count - 1))

    def _added(self, parts: list[tuple[float, int]]) -> Spread:
        """Add up to the variance of a mean of captures."""
        share = 1 / max(len(parts), 1) ** 2
        return Spread(
            share * math.fsum(variance for variance, _ in parts),
            share * share * math.fsum(variance**2 / freedom for variance, freedom in parts),
        )


def why_undecided(one: Captures, other: Captures, names: tuple[str, str]) -> str | None:
    """Say which sides have too few steps to decide anything, and how few; None if both have enough."""
    lacking = [
        (name, side.too_few) for name, side in zip(names, (one, other), strict=True) if side.too_few
    ]
    if len(lacking) > 1 and one.too_few == other.too_few:
        return f"{names[0]} and {names[1]}: {one.too_few}"
    return "; ".join(f"{name}: {why}" for name, why in lacking) or None


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"
