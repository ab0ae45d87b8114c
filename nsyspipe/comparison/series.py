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
# A step that is further away from the median counts as if it were this many standard deviations
# away: a stall does not tell where the median is.
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
    """Sums over steps, in their order."""

    values: float
    squares: float
    products_of_neighbours: float
    # Of the first and the last step alone.
    end_values: float
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
        """Values less the median, cut off at 3 robust standard deviations on either side."""
        deviations = self.values - self.centre
        median_absolute_deviation = float(np.median(np.abs(deviations)))
        robust_deviation = _STANDARD_PER_MEDIAN_DEVIATION * median_absolute_deviation
        limit = MAX_STANDARD_DEVIATIONS * robust_deviation
        return np.clip(deviations, -limit, limit)

    @property
    def is_varying(self) -> bool:
        """Whether steps differ."""
        return bool(self.values.min() < self.values.max())

    @cached_property
    def is_long(self) -> Flags:
        """Whether each step is of the longer of two kinds; no step if there are not two kinds."""
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
        """The number of steps from one step of the rarer kind to the next, if it is regular.

        The kinds are long and short steps. 0 if there are not two kinds, if the distance is not
        regular, or if there are fewer steps than two such distances.
        """
        if not self.is_long.any():
            return 0
        period = period_of(self.is_long)
        if period is None or 2 * period > self.n:
            return 0
        return period

    @property
    def whole_period_offset(self) -> float:
        """How far the centre is from that of whole periods; 0 without a period."""
        return 0.0

    def squares(self, correlations: Float64, steps_factor: float = 1.0) -> Float64:
        """Return the generalised sum of squares of AR(1) steps, for each correlation r.

        It is (x - m)' R^-1 (x - m), with the deviations x of the steps, the matrix R of their
        correlations, and the most likely mean m. The result is that of a capture with
        `steps_factor` times the steps, all like these.
        """
        r = correlations
        n = self.n * steps_factor
        sums = self._sums
        total = sums.values * steps_factor
        squares = sums.squares * steps_factor
        products_of_neighbours = sums.products_of_neighbours * steps_factor
        # Without the first and the last step, which have one neighbour each.
        inner_total = total - sums.end_values
        inner_squares = squares - sums.end_squares
        # x' R^-1 x times 1 - r^2.
        scaled_around_zero = squares - 2 * r * products_of_neighbours + r * r * inner_squares
        around_zero = scaled_around_zero / (1 - r * r)
        # 1' R^-1 x. The squares around m are less than those around 0: by the square of this, over
        # 1' R^-1 1.
        projection = (total - r * inner_total) / (1 + r)
        less_by = projection**2 / _information(n, r)
        around_mean = around_zero - less_by
        # The logarithm of the result is taken, so the result must not be 0.
        return np.maximum(around_mean, _SMALLEST_SQUARES)

    @cached_property
    def _sums(self) -> _Sums:
        """Sums of the deviations."""
        deviations = self.deviations
        first = deviations[0]
        last = deviations[-1]
        # Each step but the first, times the step before it.
        products_of_neighbours = deviations[1:] @ deviations[:-1]
        return _Sums(
            values=float(deviations.sum()),
            squares=float(deviations @ deviations),
            products_of_neighbours=float(products_of_neighbours),
            end_values=float(first + last),
            end_squares=float(first**2 + last**2),
        )

    def log_likelihood(self, correlations: Float64, steps_factor: float = 1.0) -> Float64:
        """Return the logarithm of the likelihood of each correlation, up to a constant.

        Mean m and standard deviation s of the steps are integrated out, with the usual priors: even
        for m, and even for log s. The likelihood is then |R|^-1/2 (1' R^-1 1)^-1/2 Q^-(n-1)/2, with
        the correlations R of the steps, and Q of `squares`. Q is divided by its maximum, so that
        the result does not depend on the unit of the values.
        """
        r = correlations
        n = self.n * steps_factor
        squares = self.squares(correlations, steps_factor)
        relative_squares = squares / squares.max()
        # The determinant |R| of AR(1) steps is (1 - r^2)^(n - 1).
        log_determinant = (n - 1) * np.log(1 - r * r)
        log_information = np.log(_information(n, r))
        log_spread = (n - 1) * np.log(relative_squares)
        return np.asarray(-0.5 * (log_determinant + log_information + log_spread))

    def centre_variances(self, correlations: Float64, steps_factor: float = 1.0) -> Float64:
        """Return the variance of the centre for each correlation, by the spread of the steps."""
        n = self.n * steps_factor
        squares = self.squares(correlations, steps_factor)
        step_variances = squares / (n - 1)
        return step_variances * self._centre_over_step_variance(correlations, n)

    def is_beside_gap(self, correlation: float) -> bool:
        """Tell whether the median stands beside a gap between two levels, and may jump across it.

        Then the values about 2 standard errors around the median are far apart (Bonett and Price
        2002), and give the median a much larger variance than normal steps would. This is tried
        twice: as if all steps were independent, and with the smaller number of independent steps
        that correlated steps are worth.
        """
        if not self.is_varying:
            return False
        step_variance = float(np.var(self.deviations, ddof=1))
        normal_variance = _MEDIAN_COST * step_variance
        inflation = float(variance_inflation(self.n, np.asarray(correlation)))
        variance_if_independent = self._variance_by_ranks(inflation=1.0)
        variance_if_correlated = self._variance_by_ranks(inflation=inflation)
        larger_variance = max(variance_if_independent, variance_if_correlated)
        return larger_variance > MAX_VARIANCE_OVER_NORMAL * normal_variance

    def _centre_over_step_variance(self, correlations: Float64, n: float) -> Float64:
        """Return the variance of the median of n normal AR(1) steps, over that of a step."""
        return np.asarray(_median_over_step_variance(n, tuple(correlations.tolist())))

    def _variance_by_ranks(self, inflation: float) -> float:
        """Return n times the variance of the median, from the values around the median.

        The result is 1 / (4 f^2), with the density f of values at the median. The density comes
        from a band on one side of the median, where the values are further apart. The fewer
        independent steps the n steps are worth, the wider is the band. `inflation` is n over their
        number.
        """
        n = self.n
        independent_steps = max(n / inflation, _MIN_EFFECTIVE_STEPS)
        effective_steps = min(independent_steps, n)
        # Half-widths of bands around the median, as shares of all steps. The standard error of such
        # a share is 0.5 / sqrt(n). A wider band than the widest one would leave the steps.
        wanted_half_band = _BAND_IN_STANDARD_ERRORS * 0.5 / math.sqrt(effective_steps)
        widest_half_band = 0.5 * (n - 1) / (n + 1)
        half_band = min(wanted_half_band, widest_half_band)
        # The ranks 1 to n are the shares 1 / (n + 1) to n / (n + 1) of all steps. Indices count
        # from 0.
        index = (0.5 + half_band) * (n + 1) - 1
        ascending = np.sort(self.values - self.centre)
        descending = ascending[::-1]
        above_median = _value_between(ascending, index)
        below_median = -_value_between(descending, index)
        width = max(above_median, below_median)
        # The density is half_band / width, so this is 1 / (2 f).
        half_inverse_density = width / (2 * half_band)
        return half_inverse_density**2


def _value_between(ordered: Float64, index: float) -> float:
    """Return the value at an index that need not be whole: between those of two neighbours."""
    lower = int(index)
    upper_share = index - lower
    # The last value has none above it. There the upper share is 0.
    upper = min(lower + 1, ordered.size - 1)
    lower_value = float(ordered[lower])
    upper_value = float(ordered[upper])
    return lower_value * (1 - upper_share) + upper_value * upper_share


class MeanSeries(Series, frozen=True, eq=False, dict=True):
    """The values of one capture's steps in step order, and their mean."""

    @cached_property
    def centre(self) -> float:
        """The mean. The smallest value is added last, so that equal values have an exact mean."""
        smallest = float(self.values.min())
        above_smallest = self.values - smallest
        return smallest + float(above_smallest.mean())

    @cached_property
    def deviations(self) -> Float64:
        """Values less the mean, not cut off.

        The smallest value is subtracted first, so that a shift of all values changes nothing.
        """
        above_smallest = self.values - self.values.min()
        mean = float(above_smallest.mean())
        return np.asarray(above_smallest - mean)

    def _centre_over_step_variance(self, correlations: Float64, n: float) -> Float64:
        """Return the variance of the mean of n AR(1) steps, over that of a step."""
        return np.asarray(variance_inflation(n, correlations) / n)


class RegularSeries(MeanSeries, frozen=True, eq=False, dict=True):
    """The mean of steps of two kinds, long and short ones, of which one comes with a `period`."""

    @cached_property
    def _means_of_kinds(self) -> tuple[float, float]:
        """Means of the long and of the short steps."""
        is_short = ~self.is_long
        long_mean = self.values[self.is_long].mean()
        short_mean = self.values[is_short].mean()
        return float(long_mean), float(short_mean)

    @cached_property
    def deviations(self) -> Float64:
        """Values less the mean of their kind, slightly enlarged.

        Two means leave n - 2 degrees of freedom. But all users of deviations divide by n - 1, as
        after one mean. The enlargement makes up for this.
        """
        long_mean, short_mean = self._means_of_kinds
        mean_of_kind = np.where(self.is_long, long_mean, short_mean)
        freedom = max(self.n - 2, 1)
        enlargement = ((self.n - 1) / freedom) ** 0.5
        deviations = self.values - mean_of_kind
        return np.asarray(deviations * enlargement)

    @cached_property
    def whole_period_offset(self) -> float:
        """How far the mean of all steps is from the mean of whole periods.

        The last period may be incomplete, so that one kind of step has more than its share.
        """
        long_mean, short_mean = self._means_of_kinds
        # A period has one step of the rarer kind.
        rare_share = 1 / self.period
        are_long_rare = 2 * self.n_long <= self.n
        long_share_of_period = rare_share if are_long_rare else 1 - rare_share
        long_share_of_steps = float(self.is_long.mean())
        excess_share = long_share_of_steps - long_share_of_period
        return excess_share * (long_mean - short_mean)


def variance_inflation(n: float, correlation: Float64) -> Float64:
    """Return n over the number of independent steps that n AR(1) steps are worth.

    It is 1 + 2 sum_k (1 - k/n) r^k, in closed form.
    """
    r = correlation
    inflation_of_endless_steps = (1 + r) / (1 - r)
    beyond_the_end = 2 * r * (1 - r**n) / (n * (1 - r) ** 2)
    return np.asarray(inflation_of_endless_steps - beyond_the_end)


def _information(n: float, r: Float64) -> Float64:
    """Return 1' R^-1 1: the sum of the inverse of the correlations R of n AR(1) steps.

    Over the variance of a step, it is how exactly the steps tell their mean.
    """
    return (2 + (n - 2) * (1 - r)) / (1 + r)


@lru_cache(maxsize=256)
def _median_over_step_variance(n: float, correlations: tuple[float, ...]) -> Float64:
    """Return the variance of the median of n normal AR(1) steps, over that of a step.

    For each correlation r it is (pi/2 + 2 sum_k (1 - k/n) arcsin r^k) / n, over the distances k
    between two steps. Steps that are very far apart are left out.
    """
    n_distances = min(math.ceil(n), _MAX_STEPS_APART)
    distances = np.arange(1, n_distances)
    # A row per correlation, a column per distance.
    powers = np.asarray(correlations)[:, np.newaxis] ** distances
    terms = 2 * np.arcsin(powers)
    shares_of_pairs = 1 - distances / n
    return (_MEDIAN_COST + terms @ shares_of_pairs) / n


class CentreVariance(NamedTuple):
    """The variance of a centre, or of a difference of two, for each correlation."""

    variance: Float64
    # Squared variances of independent captures, each over its degrees of freedom, as a sum. Welch's
    # formula divides by it.
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
        """Return the same steps as series of another kind, which has another centre."""
        series_of_kind = [kind(series.values) for series in self.series]
        return Captures(tuple(series_of_kind))

    @cached_property
    def n(self) -> int:
        """Number of steps of all captures together."""
        return sum(series.n for series in self.series)

    @cached_property
    def centre(self) -> float:
        """The mean of the captures' centres; NaN without any.

        The first centre is added last, so that the mean of equal centres is exactly this centre.
        """
        if not self.series:
            return math.nan
        centres = [series.centre for series in self.series]
        first = centres[0]
        sum_above_first = math.fsum(centre - first for centre in centres)
        return first + sum_above_first / len(centres)

    @cached_property
    def long_series(self) -> tuple[Series, ...]:
        """The captures that have enough steps to show their own spread."""
        long_series = [series for series in self.series if series.n >= MIN_STEPS]
        return tuple(long_series)

    @cached_property
    def why_too_few(self) -> str | None:
        """Why nothing can be decided from this side; None if something can be decided.

        The side has to show a spread: by three steps in one capture, or by three captures.
        """
        if self.n < MIN_STEPS:
            steps = "step" if self.n == 1 else "steps"
            return f"only {self.n} {steps}, {TOO_FEW}"
        # Three captures show a spread, as three steps do.
        has_spread = self.long_series or len(self.series) >= MIN_STEPS
        return None if has_spread else f"no capture of {MIN_STEPS} steps"

    @property
    def whole_period_offset(self) -> float:
        """How far the mean is from that of whole periods, as a mean over captures."""
        offsets = [series.whole_period_offset for series in self.series]
        return sum(offsets) / len(offsets)

    def centre_variance(
        self, correlations: Float64, steps_factor: float, captures_factor: int
    ) -> CentreVariance:
        """Return the variance of the side's centre for each correlation, by the spread of steps.

        The centre is taken as the mean of those captures that have enough steps. The result is for
        `steps_factor` times the steps per capture, and `captures_factor` times the captures. It is
        0 if no capture has enough steps.
        """
        # Of a mean over captures, each capture adds this share.
        share = 1 / max(len(self.long_series), 1)
        variance = np.zeros_like(correlations)
        squares = np.zeros_like(correlations)
        for series in self.long_series:
            capture_variance = series.centre_variances(correlations, steps_factor)
            contribution = capture_variance * share**2 / captures_factor
            freedom = series.n * steps_factor - 1
            squares_over_freedom = contribution**2 / freedom
            variance += contribution
            # The contribution is that of `captures_factor` captures. Their squares sum to the
            # square of the whole over the factor.
            squares += squares_over_freedom / captures_factor
        return CentreVariance(variance, squares)

    @cached_property
    def squares_between(self) -> float:
        """Sum of squares of the captures' centres around their mean."""
        centre = self.centre
        deviations = [series.centre - centre for series in self.series]
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
    texts = [f"{name} has {why}" for name, why in named_whys if why]
    return ", ".join(texts)


def centre_by_means(baseline: Captures, candidate: Captures) -> tuple[Captures, Captures]:
    """Return both sides with means as their centres.

    The captures of a side are `RegularSeries` if their regular pattern counts, so that the pattern
    is not taken for spread. A pattern counts if all captures of both sides have the same one. It
    also counts if all captures of one side have it four times or more, and no capture of the other
    side has two levels.
    """
    kind_before = RegularSeries if _does_pattern_count(baseline, candidate) else MeanSeries
    kind_after = RegularSeries if _does_pattern_count(candidate, baseline) else MeanSeries
    return baseline.of_kind(kind_before), candidate.of_kind(kind_after)


def _does_pattern_count(side: Captures, opposite: Captures) -> bool:
    """Tell whether a side has a regular pattern that counts (`centre_by_means`).

    All captures of the side need the same period. In the opposite side, either all captures have
    this period too, or no capture has two levels, and the pattern is sure.
    """
    periods = {series.period for series in side.series}
    has_common_period = len(periods) == 1 and 0 not in periods
    if not has_common_period:
        return False
    opposite_periods = {series.period for series in opposite.series}
    if periods == opposite_periods:
        return True
    does_opposite_have_levels = any(series.n_long for series in opposite.series)
    if does_opposite_have_levels:
        return False
    return all(map(_has_sure_pattern, side.series))


def _has_sure_pattern(series: Series) -> bool:
    """Tell whether both kinds of steps come so often that chance hardly made the pattern."""
    n_short = series.n - series.n_long
    return min(series.n_long, n_short) >= MIN_STEPS_OF_EACH_KIND
