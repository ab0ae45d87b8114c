"""What one side's steps say: a centre per capture, and how far it may be off by each correlation of neighbours; and Student's t."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property, lru_cache
from itertools import pairwise

import numpy as np
from msgspec import Struct

from nsyspipe.analysis.summary import levels_of, period_of
from nsyspipe.model.table import Flags, Float64

MIN_STEPS = 3  # a variance of two values is no estimate; definitions.md, section 7
TOO_FEW = f"and at least {MIN_STEPS} are needed"  # of a side that has fewer steps
# Steps further out than so many standard deviations count as that far: a stall says nothing about
# where the median is.
_REACH = 3.0
# standard deviation of a normal distribution over its median absolute deviation
_PER_DEVIATION = 1.482602218505602
# Half-width, in standard errors, of the band of ranks from which the density at the median is read.
# Correlated steps widen it, up to so many steps' own: one or two stalls of ten stay outside.
_BAND = 1.96
_WIDEST_OF = 10
# A median stands beside a gap if order statistics give more than this many times the variance of
# normal steps. Chosen by simulation: two levels that switch with a probability of 0.2 must not be
# called a change (test_gate_simulation.py).
_GAP = 3.0
_MEDIAN_COST = (
    math.pi / 2
)  # variance of a median over that of a mean, for independent normal values
_FURTHEST = 1000  # of a correlation of 0.97 the thousandth neighbour has none
# What comes by chance looks regular too, where it comes twice; unless it does so on both sides, so
# often is believed.
_SURE = 4
_TINY = 1e-300
# Of Student's t, which neither numpy nor the standard library has: places in a piece and their
# weights, closer together towards its upper end, where below 2 degrees of freedom the density has
# no derivative. Nine digits of the integral.
_GRADING = 4
_NODES, _PARTS = np.polynomial.legendre.leggauss(24)
_FROM_END = ((_NODES + 1) / 2) ** _GRADING
_WEIGHTS = _PARTS / 2 * _GRADING * ((_NODES + 1) / 2) ** (_GRADING - 1)
_PIECES = (0.0, 2.0, 7.0, math.inf)  # in units of t
_CLOSE_ENOUGH = 1e-9
_ROUNDS = 60


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
        apart = self.values - self.centre
        reach = _REACH * _PER_DEVIATION * float(np.median(np.abs(apart)))
        return np.clip(apart, -reach, reach)

    @property
    def is_varying(self) -> bool:
        """Whether steps differ."""
        return bool(self.values.min() < self.values.max())

    @cached_property
    def is_long(self) -> Flags:
        """Which steps are of the longer of two kinds; none where there are not two."""
        is_long = levels_of(self.values)
        return np.zeros(self.n, np.bool_) if is_long is None else is_long

    @cached_property
    def period(self) -> int:
        """The distance of steps of the rarer kind; 0 without a pattern that comes twice and more."""
        period = period_of(self.is_long) if self.is_long.any() else None
        return period if period and 2 * period <= self.n else 0

    @property
    def broken(self) -> float:
        """How far the centre is from that of whole periods."""
        return 0.0

    def squares(self, correlations: Float64, longer: float = 1.0) -> Float64:
        """Return (x - m)' R^-1 (x - m) of AR(1) steps, as if the capture had gone on to `longer` times its steps."""
        r = correlations
        x = self.deviations
        n = self.n * longer
        total = float(x.sum())
        ends = float(x[0] + x[-1])
        own = float(x @ x)
        beside = float(x[1:] @ x[:-1]) * longer
        inner = own * longer - float(x[0] ** 2 + x[-1] ** 2)
        whole = (own * longer - 2 * r * beside + r * r * inner) / (1 - r * r)
        towards = (total * longer - r * (total * longer - ends)) / (1 + r)
        return np.maximum(whole - towards**2 / _information(n, r), _TINY)

    def likelihood(self, correlations: Float64, longer: float = 1.0) -> Float64:
        """Return the logarithm of the likelihood of each correlation, mean and variance integrated out.

        |R|^-1/2 (1' R^-1 1)^-1/2 Q^-(n-1)/2, Q of `squares`, for the priors dm and ds/s; but for a constant, so that it
        does not depend on the unit of the values.
        """
        r = correlations
        n = self.n * longer
        squares = self.squares(correlations, longer)
        own = (
            (n - 1) * np.log(1 - r * r)
            + np.log(_information(n, r))
            + (n - 1) * np.log(squares / squares.max())
        )
        return np.asarray(-0.5 * own)

    def variances(self, correlations: Float64, longer: float = 1.0) -> Float64:
        """Return the variance of the centre for each correlation, by the spread that the steps then have."""
        return (self.squares(correlations, longer) / (self.n * longer - 1)) * self._cost(
            correlations, self.n * longer
        )

    def is_beside_gap(self, correlation: float) -> bool:
        """Whether the median may jump across a gap between two levels beside which it stands.

        Told by order statistics about 2 standard errors around it (Bonett and Price 2002), of the
        steps that n are worth.
        """
        if not self.is_varying:
            return False
        normal = _MEDIAN_COST * float(np.var(self.deviations, ddof=1))
        return (
            max(map(self._reach_of_ranks, (1.0, float(inflation(self.n, np.asarray(correlation))))))
            > _GAP * normal
        )

    def _cost(self, correlations: Float64, n: float) -> Float64:
        """Variance of the median of n normal AR(1) steps, over theirs: arcsin r^k in the place of r^k."""
        return np.asarray(_median_cost(n, tuple(correlations.tolist())))

    def _reach_of_ranks(self, inflated: float) -> float:
        """1 / (4 f^2) from the order statistics on the wider side of the median."""
        n = self.n
        effective = min(max(n / inflated, _WIDEST_OF), n)
        half = min(_BAND * 0.5 / math.sqrt(effective), 0.5 * (n - 1) / (n + 1))
        place = (0.5 + half) * (n + 1) - 1
        above = int(place)
        part = place - above
        further = min(above + 1, n - 1)
        ordered = np.sort(self.values - self.centre)
        high = float(ordered[above] * (1 - part) + ordered[further] * part)
        low = float(ordered[n - 1 - above] * (1 - part) + ordered[n - 1 - further] * part)
        return (max(high, -low) / (2 * half)) ** 2


class MeanSeries(Series, frozen=True, eq=False, dict=True):
    """The same of a mean: deviations are not cut, and no density is needed."""

    @cached_property
    def centre(self) -> float:
        """The mean, as the smallest value plus the mean of the rest above it: exact on equal values."""
        least = float(self.values.min())
        return least + float((self.values - least).mean())

    @cached_property
    def deviations(self) -> Float64:
        """Values less the mean; exactly the same of values that are shifted."""
        above = self.values - self.values.min()
        return np.asarray(above - float(above.mean()))

    def _cost(self, correlations: Float64, n: float) -> Float64:
        """Variance of the mean of n AR(1) steps, over theirs."""
        return np.asarray(inflation(n, correlations) / n)


class RegularSeries(MeanSeries, frozen=True, eq=False, dict=True):
    """The mean of steps with a `period`: deviations are from the mean of their kind, which takes a degree of freedom more."""

    @cached_property
    def _means(self) -> tuple[float, float]:
        return float(self.values[self.is_long].mean()), float(self.values[~self.is_long].mean())

    @cached_property
    def deviations(self) -> Float64:
        """Values less the mean of their kind."""
        own = np.where(self.is_long, *self._means)
        return np.asarray((self.values - own) * ((self.n - 1) / max(self.n - 2, 1)) ** 0.5)

    @cached_property
    def broken(self) -> float:
        """How far the mean is from that of whole periods."""
        long, short = self._means
        share = 1 / self.period
        whole = share if 2 * int(self.is_long.sum()) <= self.n else 1 - share
        return (float(self.is_long.mean()) - whole) * (long - short)


def inflation(n: float, correlation: Float64) -> Float64:
    """Return n over effective steps of AR(1) steps: 1 + 2 sum_k (1 - k/n) r^k, in closed form."""
    r = correlation
    return np.asarray((1 + r) / (1 - r) - 2 * r * (1 - r**n) / (n * (1 - r) ** 2))


def _information(n: float, r: Float64) -> Float64:
    """1' R^-1 1 of n AR(1) steps."""
    return (2 + (n - 2) * (1 - r)) / (1 + r)


@lru_cache(maxsize=256)
def _median_cost(n: float, correlations: tuple[float, ...]) -> Float64:
    apart = np.arange(1, min(math.ceil(n), _FURTHEST))
    return (
        _MEDIAN_COST + 2 * np.arcsin(np.asarray(correlations)[:, None] ** apart) @ (1 - apart / n)
    ) / n


class Captures(Struct, frozen=True, eq=False, dict=True):
    """One side of a comparison: the per-step values of each capture of one configuration, as `Series`."""

    series: tuple[Series, ...]

    @classmethod
    def of(cls, captures: Sequence[Float64], kind: type[Series] = Series) -> Captures:
        """Take one array per capture, in step order and finite; captures without a step are left out."""
        arrays = [np.asarray(values, np.float64) for values in captures]
        if any(values.ndim != 1 or not np.isfinite(values).all() for values in arrays):
            raise ValueError("per-step values must be finite and in one dimension")
        return cls(tuple(kind(values) for values in arrays if values.size))

    def of_kind(self, kind: type[Series]) -> Captures:
        """Return the same steps with another centre."""
        return Captures(tuple(kind(series.values) for series in self.series))

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
    def too_few(self) -> str | None:
        """Say why nothing can be decided from this side; None with three steps in one capture, or three captures."""
        if self.n < MIN_STEPS:
            return f"only {self.n} step{'s' * (self.n != 1)}, {TOO_FEW}"
        return (
            f"no capture of {MIN_STEPS} steps"
            if not self.long and len(self.series) < MIN_STEPS
            else None
        )

    @property
    def broken(self) -> float:
        """How far the mean is from that of whole periods."""
        return sum(series.broken for series in self.series) / len(self.series)

    def variances(
        self, correlations: Float64, longer: float, times: int
    ) -> tuple[Float64, Float64]:
        """Return the variance of the centre for each correlation, and what Welch's formula sums: squares over freedom."""
        share = 1 / max(len(self.long), 1)
        variance = np.zeros_like(correlations)
        squares = np.zeros_like(correlations)
        for series in self.long:
            own = series.variances(correlations, longer) * share**2 / times
            variance += own
            squares += own**2 / (series.n * longer - 1) / times
        return variance, squares

    @cached_property
    def squares_between(self) -> float:
        """Sum of squares of the captures' centres around their mean."""
        return math.fsum((series.centre - self.centre) ** 2 for series in self.series)

    @cached_property
    def between(self) -> tuple[float, float]:
        """The same as `variances` from the captures' centres; needs two captures at least."""
        count = len(self.series)
        variance = self.squares_between / (count - 1) / count
        return variance, variance**2 / (count - 1)


def why_undecided(one: Captures, other: Captures, names: tuple[str, str]) -> str | None:
    """Say which sides have too few steps to decide anything, and how few; None if both have enough."""
    if one.too_few == other.too_few:
        return one.too_few and f"{names[0]} and {names[1]} have {one.too_few}"
    return ", ".join(
        f"{name} has {why}"
        for name, why in zip(names, (one.too_few, other.too_few), strict=True)
        if why
    )


def of_means(one: Captures, other: Captures) -> tuple[Captures, Captures]:
    """Return both sides with means as their centres; regular patterns are no spread.

    A pattern counts where all captures of both sides have the same one, or where all of one side
    have it four times or more, and no capture of the other has two levels.
    """
    sides = one.of_kind(MeanSeries), other.of_kind(MeanSeries)
    periods = [{series.period for series in side.series} for side in sides]

    def is_regular(at: int) -> bool:
        if len(periods[at]) != 1 or 0 in periods[at]:
            return False
        is_sure = all(
            _SURE <= int(series.is_long.sum()) <= series.n - _SURE for series in sides[at].series
        )
        is_alone = not any(series.is_long.any() for series in sides[1 - at].series)
        return periods[0] == periods[1] or (is_sure and is_alone)

    before, after = (
        side.of_kind(RegularSeries) if is_regular(at) else side for at, side in enumerate(sides)
    )
    return before, after


def two_sided_tails(t: Float64, freedom: Float64) -> tuple[Float64, Float64]:
    """Return P(|T| > t) of many t at once, each with its degrees of freedom, and the density of |T| there.

    With t = sqrt(freedom) tan a the density of T is cos(a)^(freedom - 1) da, but for a constant:
    integrated by Gauss and Legendre, piece by piece.
    """

    def of_cosine(low: Float64, high: Float64) -> Float64:
        width = high - low
        angles = high[:, None] - width[:, None] * _FROM_END
        return width * (np.cos(angles) ** (freedom[:, None] - 1) @ _WEIGHTS)

    root = np.sqrt(freedom)
    at = np.arctan(t / root)
    below = np.zeros_like(at)
    whole = np.zeros_like(at)
    for low, high in pairwise(_PIECES):
        left = np.arctan(low / root)
        right = np.arctan(high / root)
        below += of_cosine(left, np.clip(at, left, right))
        whole += of_cosine(left, right)
    return 1 - below / whole, np.cos(at) ** (freedom + 1) / root / whole


def half_width(weights: Float64, errors: Float64, freedom: Float64, error: float) -> float:
    """Return h with sum of weights P(|T| > h / errors) = error: Newton on the tail's logarithm, within brackets."""
    low = 0.0
    high = math.inf
    half = 2 * float(weights @ errors)
    for _ in range(_ROUNDS):
        tails, densities = two_sided_tails(half / errors, freedom)
        tail = float(weights @ tails)
        slope = float(weights @ (densities / errors))
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

    Degrees of freedom are of captures: few, at least 1, and not whole (Welch).
    """
    one = np.ones(1)
    return half_width(one, one, freedom * one, 1 - confidence)
