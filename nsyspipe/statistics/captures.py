"""One side of a comparison: one or several captures of the same configuration."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from nsyspipe.statistics.series import MIN_STEPS, Series

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsyspipe.statistics.series import FloatArray

__all__ = ["Captures", "Spread", "Spreads", "why_undecided"]


class Spread(NamedTuple):
    """A variance, and the sum of squares over degrees of freedom that Welch's formula adds up."""

    variance: float
    per_freedom: float


class Spreads(NamedTuple):
    """The same for several correlations."""

    variance: FloatArray
    per_freedom: FloatArray


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

    def of_kind(self, kind: type[Series]) -> Captures:
        """Return the same steps with another centre."""
        return Captures(tuple(kind(series.values) for series in self.series))

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

    def variances(self, correlations: FloatArray, longer: float, times: int) -> Spreads:
        """Return the variance of the centre for each correlation of neighbouring steps.

        Parameters
        ----------
        longer, times
            As if each capture had so many times its steps, and there were so many times the captures.
        """
        share = 1 / max(len(self.long), 1)
        variance = np.zeros_like(correlations)
        per_freedom = np.zeros_like(correlations)
        for series in self.long:
            own = series.variances(correlations, longer) * share**2 / times
            variance += own
            per_freedom += own**2 / (series.n * longer - 1) / times
        return Spreads(variance, per_freedom)

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
