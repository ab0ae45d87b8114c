"""The center of the steps of one side, and its error with correlated steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from nsyspipe.analysis.summary import levels_of, period_of
from nsyspipe.model.table import Flags, Float64

# A variance of two values is not an estimate (definitions.md, section 7).
MIN_STEPS = 3
# Stands behind the number of steps of a side that has fewer.
TOO_FEW = f"and at least {MIN_STEPS} are needed"
# Steps that are further away from the median count as this many standard deviations away: a stall
# does not tell where the median is.
MAX_STANDARD_DEVIATIONS = 3.0
# Standard deviation of a normal distribution over its median absolute deviation.
_STANDARD_PER_MEDIAN_DEVIATION = 1.482602218505602
# Half-width, in standard errors, of the band of ranks from which the density at the median is read.
_BAND_IN_STANDARD_ERRORS = 1.96
# Correlated steps widen the band, but not beyond that of this many independent steps. One or two
# stalls of ten steps stay outside.
_MIN_EFFECTIVE_STEPS = 10
# A median stands beside a gap if order statistics give more than this many times the variance of
# normal steps. Chosen by simulation: two levels that switch with a probability of 0.2 must not be
# called a change (test_gate_simulation.py).
MAX_VARIANCE_OVER_NORMAL = 3.0
# Variance of a median over that of a mean, for independent normal values.
_MEDIAN_COST = math.pi / 2
# Neighbours that are further apart have no correlation left, even at 0.97 per step.
_MAX_STEPS_APART = 1000
# A pattern of one side alone counts if each kind of step comes this often: chance looks regular
# too.
MIN_STEPS_OF_EACH_KIND = 4
_SMALLEST_SQUARES = 1e-300


class _Sums(NamedTuple):
    """Sums of values in step order."""

    values: float
    squares: float
    # Of the products of neighbours.
    lagged: float
    # Of the first and the last value alone, and of their squares.
    ends: float
    end_squares: float


class Series(Struct, frozen=True, eq=False, dict=True):
    """The values of one capture's steps in step order, and their median."""

    values: Float64

    @cached_property
    def n(self) -> int:
        """Number of steps."""
        return int(self.values.size)

    @cached_property
    def centre(self) -> float:
        """The median."""
        return float(np.median(self.values))

    @cached_property
    def deviations(self) -> Float64:
        """Values less the median, cut at 3 robust standard deviations."""
        deviations = self.values - self.centre
        sizes = np.abs(deviations)
        median_deviation = float(np.median(sizes))
        limit = MAX_STANDARD_DEVIATIONS * _STANDARD_PER_MEDIAN_DEVIATION * median_deviation
        return np.clip(deviations, -limit, limit)

    @property
    def is_varying(self) -> bool:
        """Whether steps differ."""
        shortest = self.values.min()
        return bool(shortest < self.values.max())

    @cached_property
    def is_long(self) -> Flags:
        """Which steps are of the longer of two kinds; none if there are not two kinds."""
        is_long = levels_of(self.values)
        if is_long is None:
            return np.zeros(self.n, np.bool_)
        return is_long

    @cached_property
    def n_long(self) -> int:
        """Number of steps of the longer of two kinds."""
        return int(self.is_long.sum())

    @cached_property
    def period(self) -> int:
        """The distance of steps of the rarer kind; 0 if no pattern comes at least twice."""
        period = None
        if self.is_long.any():
            period = period_of(self.is_long)
        if period is None or 2 * period > self.n:
            return 0
        return period

    @property
    def whole_period_offset(self) -> float:
        """How far the centre is from that of whole periods."""
        return 0.0

    def squares(self, correlations: Float64, steps_factor: float = 1.0) -> Float64:
        """Return (x - m)' R^-1 (x - m) of AR(1) steps for each correlation.

        The result is that of a capture with `steps_factor` times the steps, all like these.
        """
        r = correlations
        n = self.n * steps_factor
        sums = self._sums
        total = sums.values * steps_factor
        squares = sums.squares * steps_factor
        lagged = sums.lagged * steps_factor
        inner_squares = squares - sums.end_squares
        innovations = squares - 2 * r * lagged + r * r * inner_squares
        around_zero = innovations / (1 - r * r)
        inner_total = total - sums.ends
        projection = (total - r * inner_total) / (1 + r)
        of_mean = projection**2 / _information(n, r)
        return np.maximum(around_zero - of_mean, _SMALLEST_SQUARES)

    @cached_property
    def _sums(self) -> _Sums:
        """Sums of the deviations."""
        x = self.deviations
        first = x[0]
        last = x[-1]
        end_squares = first**2 + last**2
        return _Sums(
            values=float(x.sum()),
            squares=float(x @ x),
            lagged=float(x[1:] @ x[:-1]),
            ends=float(first + last),
            end_squares=float(end_squares),
        )

    def log_likelihood(self, correlations: Float64, steps_factor: float = 1.0) -> Float64:
        """Return the logarithm of the likelihood of each correlation.

        Mean and variance are integrated out: |R|^-1/2 (1' R^-1 1)^-1/2 Q^-(n-1)/2, with Q of
        `squares`, for the priors dm and ds/s. A constant is left out, so that the result does not
        depend on the unit of the values.
        """
        r = correlations
        n = self.n * steps_factor
        squares = self.squares(correlations, steps_factor)
        relative_squares = squares / squares.max()
        determinant = (n - 1) * np.log(1 - r * r)
        information = np.log(_information(n, r))
        spread = (n - 1) * np.log(relative_squares)
        return np.asarray(-0.5 * (determinant + information + spread))

    def centre_variances(self, correlations: Float64, steps_factor: float = 1.0) -> Float64:
        """Return the variance of the centre for each correlation, by the spread of the steps."""
        n = self.n * steps_factor
        squares = self.squares(correlations, steps_factor)
        step_variances = squares / (n - 1)
        return step_variances * self._cost(correlations, n)

    def is_beside_gap(self, correlation: float) -> bool:
        """Whether the median stands beside a gap between two levels, and may jump across it.

        Order statistics about 2 standard errors around the median tell it (Bonett and Price 2002),
        with the number of independent steps that correlated steps are worth.
        """
        if not self.is_varying:
            return False
        step_variance = float(np.var(self.deviations, ddof=1))
        normal_variance = _MEDIAN_COST * step_variance
        inflation = float(variance_inflation(self.n, np.asarray(correlation)))
        variance = self._variance_by_ranks(1.0)
        inflated_variance = self._variance_by_ranks(inflation)
        larger = max(variance, inflated_variance)
        return larger > MAX_VARIANCE_OVER_NORMAL * normal_variance

    def _cost(self, correlations: Float64, n: float) -> Float64:
        """Return the variance of the median of n normal AR(1) steps, over that of a step.

        It has arcsin r^k in the place of r^k.
        """
        cost = _median_cost(n, tuple(correlations.tolist()))
        return np.asarray(cost)

    def _variance_by_ranks(self, inflation: float) -> float:
        """Return 1 / (4 f^2), from the order statistics on the wider side of the median."""
        n = self.n
        independent_steps = max(n / inflation, _MIN_EFFECTIVE_STEPS)
        effective_steps = min(independent_steps, n)
        band = _BAND_IN_STANDARD_ERRORS * 0.5 / math.sqrt(effective_steps)
        widest_band = 0.5 * (n - 1) / (n + 1)
        half_band = min(band, widest_band)
        rank = (0.5 + half_band) * (n + 1) - 1
        ordered = np.sort(self.values - self.centre)
        high = _value_at_rank(ordered, rank)
        low = _value_at_rank(ordered[::-1], rank)
        wider = max(high, -low)
        half_inverse_density = wider / (2 * half_band)
        return half_inverse_density**2


def _value_at_rank(ordered: Float64, rank: float) -> float:
    """Return a value between those of two ranks, counted from 0."""
    lower = int(rank)
    share = rank - lower
    upper = min(lower + 1, ordered.size - 1)
    lower_value = float(ordered[lower])
    upper_value = float(ordered[upper])
    return lower_value * (1 - share) + upper_value * share


class MeanSeries(Series, frozen=True, eq=False, dict=True):
    """The same with a mean: deviations are not cut, and no density is needed."""

    @cached_property
    def centre(self) -> float:
        """The mean. The smallest value is added last, which is exact on equal values."""
        smallest = float(self.values.min())
        above_smallest = self.values - smallest
        return smallest + float(above_smallest.mean())

    @cached_property
    def deviations(self) -> Float64:
        """Values less the mean; exactly the same if the values are shifted."""
        above_smallest = self.values - self.values.min()
        mean = float(above_smallest.mean())
        return np.asarray(above_smallest - mean)

    def _cost(self, correlations: Float64, n: float) -> Float64:
        """Return the variance of the mean of n AR(1) steps, over that of a step."""
        return np.asarray(variance_inflation(n, correlations) / n)


class RegularSeries(MeanSeries, frozen=True, eq=False, dict=True):
    """The mean of steps with a `period`.

    Deviations are from the mean of each kind of step, which takes one more degree of freedom.
    """

    @cached_property
    def _means(self) -> tuple[float, float]:
        """Means of the long and of the short steps."""
        long_steps = self.values[self.is_long]
        short_steps = self.values[~self.is_long]
        return float(long_steps.mean()), float(short_steps.mean())

    @cached_property
    def deviations(self) -> Float64:
        """Values less the mean of their kind."""
        kind_means = np.where(self.is_long, *self._means)
        freedom = max(self.n - 2, 1)
        lost_freedom = ((self.n - 1) / freedom) ** 0.5
        deviations = self.values - kind_means
        return np.asarray(deviations * lost_freedom)

    @cached_property
    def whole_period_offset(self) -> float:
        """How far the mean is from that of whole periods."""
        long_mean, short_mean = self._means
        rare_share = 1 / self.period
        are_long_rare = 2 * self.n_long <= self.n
        long_share = rare_share if are_long_rare else 1 - rare_share
        excess_share = float(self.is_long.mean()) - long_share
        return excess_share * (long_mean - short_mean)


def variance_inflation(n: float, correlation: Float64) -> Float64:
    """Return n over the number of independent steps that n AR(1) steps are worth.

    It is 1 + 2 sum_k (1 - k/n) r^k, in closed form.
    """
    r = correlation
    of_endless_steps = (1 + r) / (1 - r)
    missing_powers = 2 * r * (1 - r**n)
    beyond_the_end = missing_powers / (n * (1 - r) ** 2)
    return np.asarray(of_endless_steps - beyond_the_end)


def _information(n: float, r: Float64) -> Float64:
    """Return 1' R^-1 1 of n AR(1) steps."""
    return (2 + (n - 2) * (1 - r)) / (1 + r)


@lru_cache(maxsize=256)
def _median_cost(n: float, correlations: tuple[float, ...]) -> Float64:
    steps_apart = np.arange(1, min(math.ceil(n), _MAX_STEPS_APART))
    powers = np.asarray(correlations)[:, None] ** steps_apart
    doubled = 2 * np.arcsin(powers)
    shares_of_pairs = 1 - steps_apart / n
    return (_MEDIAN_COST + doubled @ shares_of_pairs) / n


class CentreVariance(NamedTuple):
    """The variance of a centre, or of a difference of two, for each correlation."""

    variance: Float64
    # What Welch's formula sums.
    squares_over_freedom: Float64


class Captures(Struct, frozen=True, eq=False, dict=True):
    """One side of a comparison: the per-step values of each capture of one configuration."""

    series: tuple[Series, ...]

    @classmethod
    def of(cls, captures: Sequence[Float64], kind: type[Series] = Series) -> Captures:
        """Return captures of one array each, in step order and finite.

        Captures without a step are left out.
        """
        arrays = [np.asarray(values, np.float64) for values in captures]
        for values in arrays:
            if values.ndim != 1 or not np.isfinite(values).all():
                raise ValueError("per-step values must be finite and in one dimension")
        series = [kind(values) for values in arrays if values.size]
        return cls(tuple(series))

    def of_kind(self, kind: type[Series]) -> Captures:
        """Return the same steps with another centre."""
        all_series = [kind(series.values) for series in self.series]
        return Captures(tuple(all_series))

    @cached_property
    def n(self) -> int:
        """Number of steps of all captures together."""
        return sum(series.n for series in self.series)

    @cached_property
    def centre(self) -> float:
        """The mean of the captures' centres, exact for a single capture; NaN without any."""
        if not self.series:
            return math.nan
        centres = [series.centre for series in self.series]
        first = centres[0]
        above_first = math.fsum(centre - first for centre in centres)
        return first + above_first / len(centres)

    @cached_property
    def long_series(self) -> tuple[Series, ...]:
        """The captures that have enough steps to show their own spread."""
        return tuple(series for series in self.series if series.n >= MIN_STEPS)

    @cached_property
    def why_too_few(self) -> str | None:
        """Why nothing can be decided from this side.

        None with three steps in one capture, or with three captures.
        """
        if self.n < MIN_STEPS:
            steps = "step" if self.n == 1 else "steps"
            return f"only {self.n} {steps}, {TOO_FEW}"
        has_spread = self.long_series or len(self.series) >= MIN_STEPS
        return None if has_spread else f"no capture of {MIN_STEPS} steps"

    @property
    def whole_period_offset(self) -> float:
        """How far the mean is from that of whole periods."""
        offsets = [series.whole_period_offset for series in self.series]
        return sum(offsets) / len(offsets)

    def centre_variance(
        self, correlations: Float64, steps_factor: float, captures_factor: int
    ) -> CentreVariance:
        """Return the variance of the centre for each correlation.

        The factors are as in `statistics.Interval`.
        """
        share = 1 / max(len(self.long_series), 1)
        variance = np.zeros_like(correlations)
        squares = np.zeros_like(correlations)
        for series in self.long_series:
            of_series = series.centre_variances(correlations, steps_factor)
            contribution = of_series * share**2 / captures_factor
            freedom = series.n * steps_factor - 1
            squares_over_freedom = contribution**2 / freedom
            variance += contribution
            squares += squares_over_freedom / captures_factor
        return CentreVariance(variance, squares)

    @cached_property
    def squares_between(self) -> float:
        """Sum of squares of the captures' centres around their mean."""
        deviations = [series.centre - self.centre for series in self.series]
        return math.fsum(deviation**2 for deviation in deviations)

    @property
    def freedom_between(self) -> int:
        """Degrees of freedom of the spread between captures."""
        return len(self.series) - 1

    @cached_property
    def variance_between(self) -> float:
        """The variance of the centre from the captures' centres; needs two captures at least."""
        capture_variance = self.squares_between / self.freedom_between
        return capture_variance / len(self.series)


def why_undecided(baseline: Captures, candidate: Captures, names: tuple[str, str]) -> str | None:
    """Return which sides have too few steps to decide anything; None if both have enough."""
    why_before = baseline.why_too_few
    why_after = candidate.why_too_few
    if why_before is None and why_after is None:
        return None
    if why_before == why_after:
        return f"{' and '.join(names)} have {why_before}"
    named_whys = zip(names, (why_before, why_after), strict=True)
    lacks = [f"{name} has {why}" for name, why in named_whys if why]
    return ", ".join(lacks)


def centre_by_means(baseline: Captures, candidate: Captures) -> tuple[Captures, Captures]:
    """Return both sides with means as their centres; regular patterns are not spread.

    A pattern counts if all captures of both sides have the same one. It also counts if all captures
    of one side have it four times or more, and no capture of the other side has two levels.
    """
    before = baseline.of_kind(MeanSeries)
    after = candidate.of_kind(MeanSeries)
    kind_before = RegularSeries if _is_regular(before, after) else MeanSeries
    kind_after = RegularSeries if _is_regular(after, before) else MeanSeries
    return baseline.of_kind(kind_before), candidate.of_kind(kind_after)


def _is_regular(side: Captures, opposite: Captures) -> bool:
    """Tell whether the pattern of a side counts, beside the opposite side."""
    periods = {series.period for series in side.series}
    opposite_periods = {series.period for series in opposite.series}
    if len(periods) != 1 or 0 in periods:
        return False
    if periods == opposite_periods:
        return True
    if any(series.n_long for series in opposite.series):
        return False
    return all(map(_has_sure_pattern, side.series))


def _has_sure_pattern(series: Series) -> bool:
    n_short = series.n - series.n_long
    return min(series.n_long, n_short) >= MIN_STEPS_OF_EACH_KIND
