"""The difference of two centers and the ratio of two means, with intervals; and what they mean.

Simulated steps (independent, AR(1) up to r = 0.6, stalls, two levels that switch with a probability
of 0.2 or more; 8 to 100 of them) of sides that do not differ are called a regression in at most
2.5 % of cases, and an improvement in at most 2.5 %, at a confidence of 95 % and a minimum effect of
2 %. Steps with a stronger correlation are called so more often:
tests/comparison/test_gate_simulation.py prints how often, and limits it. Nothing limits it for one
capture against several that spread less (`Interval.is_borrowed`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Literal, NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from nsyspipe.comparison.separation import Separation, separation_of
from nsyspipe.comparison.series import (
    Captures,
    CentreVariance,
    MeanSeries,
    Series,
    centre_by_means,
    why_undecided,
)
from nsyspipe.comparison.student_t import critical_value, half_width
from nsyspipe.model.figures import Better
from nsyspipe.model.table import Float64

MEDIAN = "median"
MEAN = "mean"
Verdict = Literal["regression", "improvement", "change", "no change", "inconclusive"]

_METHOD = (
    "Student t with AR(1) errors, averaged over correlations of neighboring steps from 0 to 0.97, "
    "each weighted by its likelihood (Zellner and Tiao 1964, Berger et al. 1999)"
)
_POOLED = f"{_METHOD}, at least as wide as by the pooled t"
_BETWEEN = f"{_POOLED} and Welch's t of the captures' centres"
_BORROWED = (
    f"{_POOLED} of the captures' centers, with the same variation between captures on both sides"
)
_SEPARATED = (
    "the steps of both sides do not mix, so Mann and Whitney's interval of all differences. "
    "Otherwise: "
)
# Before any step is seen, every correlation from 0 to here is as likely.
MAX_CORRELATION = 0.97
# Steps of both sides up to which this many correlations are enough: likelihoods of more steps are
# narrower.
_N_CORRELATIONS_BY_MAX_STEPS = ((160, 12), (800, 36), (math.inf, 108))
# The error is divided by the root of this much per step of a side, at most by MAX_CAUTION, so that
# it holds at a correlation of 0.6 too. Fewer steps leave more correlations open, which is caution
# enough.
CAUTION_PER_STEP = 0.275
MAX_CAUTION = 3.0
# Nobody captures more for one answer.
MAX_STEPS_TO_SETTLE = 5000
MAX_CAPTURES_TO_SETTLE = 20
_N_BISECTIONS = 7
# More steps will not show exactly what these show, so that a little less than the limit is aimed
# at.
SETTLE_MARGIN = 0.95


class _WeightedCorrelations(NamedTuple):
    """Correlations of neighbouring steps, and how likely each is."""

    correlations: Float64
    weights: Float64


@lru_cache(maxsize=8)
def _prior_of_correlations(n_correlations: int) -> _WeightedCorrelations:
    """Return correlations and their weights before any step is seen.

    All correlations up to the largest are as likely. A sum over the weighted correlations stands
    for the integral over all of them, by Gauss and Legendre's formula.
    """
    # The formula has its places from -1 to 1, and weights that sum to 2.
    places, weights = np.polynomial.legendre.leggauss(n_correlations)
    places_from_0_to_1 = (places + 1) / 2
    return _WeightedCorrelations(MAX_CORRELATION * places_from_0_to_1, weights / 2)


class Interval(Struct, frozen=True, eq=False, dict=True):
    """Half-widths around the difference of two centres; the same whichever side comes first."""

    sides: tuple[Captures, Captures]
    confidence: float
    # What no spread shows, in the unit of the values.
    extra_half_width: float = 0.0
    # The half-widths are what to expect of this many times the steps per capture, all like these.
    steps_factor: float = 1.0
    # Also, they are what to expect of this many times the captures.
    captures_factor: int = 1

    @cached_property
    def half(self) -> float:
        """Half-width: the larger one of the steps' and the captures', and what neither shows."""
        half_by_spread = max(self._half_within, self.half_between)
        before, after = self.sides
        period_offset = abs(before.whole_period_offset - after.whole_period_offset)
        return half_by_spread + (period_offset + self.extra_half_width)

    @property
    def half_between(self) -> float:
        """Half-width from the spread between captures alone; 0 if each side has one capture."""
        if not self.has_between:
            return 0.0
        return self._half_between

    @property
    def has_between(self) -> bool:
        """Whether a side has several captures, so that the spread between captures is included."""
        return max(self._n_captures) > 1

    @property
    def is_borrowed(self) -> bool:
        """Whether one side has several captures, and the other is assumed to spread like it."""
        return self.has_between and min(self._n_captures) == 1

    @property
    def is_beside_gap(self) -> bool:
        """Whether the centre of a capture may jump from one level of its steps to the other."""
        correlations, weights = self.weighted_correlations
        mean_correlation = float(correlations @ weights)
        return any(series.is_beside_gap(mean_correlation) for series in self._long_series)

    @cached_property
    def is_same(self) -> bool:
        """Whether both sides are the same steps, so that nothing is left to chance."""
        before, after = self.sides
        if len(before.series) != len(after.series):
            return False
        pairs = zip(before.series, after.series, strict=True)
        return all(np.array_equal(old.values, new.values) for old, new in pairs)

    @property
    def _long_series(self) -> tuple[Series, ...]:
        """The captures of both sides that have enough steps to show their own spread."""
        before, after = self.sides
        return (*before.long_series, *after.long_series)

    @cached_property
    def _n_captures(self) -> list[int]:
        """Numbers of captures of both sides, times the factor."""
        factor = self.captures_factor
        return [factor * len(side.series) for side in self.sides]

    @property
    def _n_steps(self) -> float:
        """Number of steps of both sides together, times the factor of steps."""
        before, after = self.sides
        return (before.n + after.n) * self.steps_factor

    @cached_property
    def weighted_correlations(self) -> _WeightedCorrelations:
        """Correlations, and how likely each is by all steps of both sides."""
        n_steps = self._n_steps
        limits = _N_CORRELATIONS_BY_MAX_STEPS
        n_correlations = next(number for max_steps, number in limits if n_steps <= max_steps)
        correlations, prior_weights = _prior_of_correlations(n_correlations)
        before, after = (self._log_likelihood(side, correlations) for side in self.sides)
        # Both sides are summed first: swapped, they sum to exactly the same.
        log_likelihood = before + after
        log_weights = np.log(prior_weights) + self.captures_factor * log_likelihood
        # Less the largest one, so that exp does not make all of them 0.
        weights = np.exp(log_weights - log_weights.max())
        return _WeightedCorrelations(correlations, weights / weights.sum())

    def _log_likelihood(self, side: Captures, correlations: Float64) -> Float64:
        """Return the logarithm of the likelihood of each correlation, by the steps of a side.

        Captures are independent, so their logarithms are summed. Equal steps tell nothing.
        """
        total = np.zeros(1)
        for series in side.long_series:
            if series.is_varying:
                total = total + series.log_likelihood(correlations, self.steps_factor)
        return total

    def _variance_of_difference(self, captures_factor: int) -> CentreVariance:
        """Return the variance of the difference of both centres, by the spread of the steps.

        It has a value for each correlation, and is for `captures_factor` times the captures.
        """
        correlations = self.weighted_correlations.correlations
        steps_factor = self.steps_factor
        before, after = (
            side.centre_variance(correlations, steps_factor, captures_factor) for side in self.sides
        )
        variance = before.variance + after.variance
        squares = before.squares_over_freedom + after.squares_over_freedom
        return CentreVariance(variance, squares)

    @cached_property
    def _half_within(self) -> float:
        """Half-width from the spread of the steps; 0 if the steps of each capture are equal.

        At this half-width, the tails of Welch's t are the cautious error, as a mean over the
        weighted correlations.
        """
        if not any(series.is_varying for series in self._long_series):
            return 0.0
        variance, squares = self._variance_of_difference(self.captures_factor)
        # Spreads that are too small to be squared have one degree of freedom.
        freedom = np.ones_like(variance)
        np.divide(variance**2, squares, out=freedom, where=squares > 0)
        weights = self.weighted_correlations.weights
        standard_errors = np.sqrt(variance)
        return half_width(weights, standard_errors, freedom, self._cautious_error)

    @property
    def _cautious_error(self) -> float:
        """The error that was asked for, divided by the caution that correlated steps need.

        The caution grows with the number of steps, from 1 to the largest caution.
        """
        mean_steps_of_side = self._n_steps / 2 * self.captures_factor
        caution = math.sqrt(CAUTION_PER_STEP * mean_steps_of_side)
        divisor = min(max(caution, 1.0), MAX_CAUTION)
        asked_error = 1 - self.confidence
        return asked_error / divisor

    @cached_property
    def _half_between(self) -> float:
        """Half-width from the captures' centres: the wider one of pooled t and Welch's.

        Pooled t is far too narrow if the side with fewer captures spreads more. Welch's t is far
        too narrow if two captures agree by chance.

        A side with one capture shows no spread between captures. If only one side has a single
        capture, only pooled t is left. If both sides have a single capture, the spread of the steps
        tells what half-width to expect of more captures.
        """
        freedom = sum(self._n_captures) - 2
        t = critical_value(self.confidence, freedom)
        # The captures that exist, without the factor.
        n_real_captures = [len(side.series) for side in self.sides]
        has_one_each = max(n_real_captures) == 1
        if has_one_each:
            variances = self._variance_of_difference(captures_factor=1).variance
            mean_variance = float(self.weighted_correlations.weights @ variances)
            return t * math.sqrt(mean_variance / self.captures_factor)
        pooled_variance = self._pooled_variance(freedom)
        half_pooled = t * math.sqrt(pooled_variance)
        has_one_on_a_side = min(n_real_captures) == 1
        if has_one_on_a_side:
            return half_pooled
        return max(half_pooled, self._half_by_welch())

    def _pooled_variance(self, freedom: int) -> float:
        """Return the variance of the difference, by the spread between captures of both sides."""
        squares = sum(side.squares_between for side in self.sides)
        variance_of_capture = self.captures_factor * squares / freedom
        n_before, n_after = self._n_captures
        return variance_of_capture * (1 / n_before + 1 / n_after)

    def _half_by_welch(self) -> float:
        """Return the half-width by Welch's t of the captures' centres; 0 if they are equal."""
        before, after = self.sides
        variance_of_real_captures = before.variance_between + after.variance_between
        variance = variance_of_real_captures / self.captures_factor
        if not variance:
            return 0.0
        squares_before = before.variance_between**2 / before.freedom_between
        squares_after = after.variance_between**2 / after.freedom_between
        # With the factor, the squared variances fall by its square, and the freedom grows by the
        # factor itself. So the squares over freedom fall by its cube.
        squares = (squares_before + squares_after) / self.captures_factor**3
        freedom = max(variance**2 / squares, 1.0)
        t = critical_value(self.confidence, freedom)
        return t * math.sqrt(variance)


@dataclass(frozen=True)
class Difference:
    """Two medians or means over steps, candidate less baseline, and the interval of the difference.

    All numbers have the unit of the values. Swapping the sides negates the difference, and mirrors
    low and high, exactly.
    """

    # ``median`` or ``mean``: what baseline, candidate and delta are.
    statistic: str
    # Of several captures the mean of their medians or means. None without a step.
    baseline: float | None
    candidate: float | None
    delta: float | None
    # The difference of the means if the statistic is the median, and of the medians otherwise.
    other_delta: float | None
    # The ends of the interval; None if `undecided`.
    low: float | None
    high: float | None
    # Why there is no interval, in words; None if there is one.
    undecided: str | None
    # What low and high come from. It also tells what more steps or captures would give. If the
    # interval `is_borrowed`, one side has a single capture, and is assumed to spread between
    # captures like the other side. If such a side spreads more, there are many false alarms, and
    # nothing here can show this.
    interval: Interval = field(compare=False)
    # Set if the end of the interval that is nearer to 0 comes from steps that do not overlap.
    separation: Separation | None = None

    @property
    def method(self) -> str:
        """How the interval was computed, in words."""
        method_of_steps = self._method_of_steps
        if self.separation is None:
            return method_of_steps
        return f"{_SEPARATED}{method_of_steps}"

    @property
    def _method_of_steps(self) -> str:
        if self.interval.is_borrowed:
            return _BORROWED
        return _BETWEEN if self.interval.has_between else _METHOD

    def half(self, steps_factor: float = 1.0, captures_factor: int = 1) -> float:
        """Return the half-width to expect of more steps per capture, or of more captures."""
        interval = replace(
            self.interval, steps_factor=steps_factor, captures_factor=captures_factor
        )
        return interval.half


def difference_of_centres(
    baseline: Sequence[Float64],
    candidate: Sequence[Float64],
    *,
    confidence: float = 0.95,
    statistic: str = MEDIAN,
    names: tuple[str, str] = ("baseline", "candidate"),
) -> Difference:
    """Return the difference of the medians (or means) over steps, with its interval.

    Each side's captures are arrays of finite per-step values in step order. With fewer than 3 steps
    the result is undecided, and says so of the sides by their `names`. Equal sides give exactly 0.
    Values that are not finite are a ValueError.

    Neighbouring steps have a correlation r that few steps do not show. Given r, the centre of AR(1)
    steps has a t distribution. The weight of each r is the likelihood that is left when mean and
    variance are integrated out, of all steps of both sides, times a prior that is even from 0 to
    0.97. A half-width h has the tails P(|T| > h / sqrt(V1(r) + V2(r))), with Welch's degrees of
    freedom, as a mean weighted over r. The result is the h whose tails are the allowed error. This
    is the error that was asked for, over sqrt(0.275 n), where n is the number of steps of a side.
    The divisor is at least 1 and at most 3. With this divisor, false alarms are as rare at r = 0.6,
    which so few steps hardly distinguish from 0. With the fewest steps, the even prior alone is
    caution enough.

    V(r) is s(r)^2 c(r) / n, and s(r)^2 is the generalised sum of squares over n - 1. For a mean,
    c = 1 + 2 sum (1 - k/n) r^k. For a median, c = pi/2 + 2 sum (1 - k/n) arcsin r^k, and steps that
    are further away than 3 robust standard deviations count as that far.

    A median that stands beside a gap may jump from one level of the steps to the other, and no
    spread shows it. Then h is that of the means, plus the distance of the two differences. A
    regular pattern, such as every fifth step slow, is not spread of the means
    (`series.centre_by_means`). Levels that come by chance are.

    With several captures on a side, the interval is not narrower than two-sample t intervals of the
    captures' centres: pooled, s sqrt(1/k1 + 1/k2) with k1 + k2 - 2 degrees of freedom, and Welch's,
    sqrt(s1^2/k1 + s2^2/k2) with Satterthwaite's, at least 1. With one capture on a side there is
    only the former, with the spread of the other side (`Interval.is_borrowed`).

    Notes
    -----
    A. Zellner, G. Tiao: Bayesian analysis of the regression model with autocorrelated errors, J.
    American Statistical Association 59 (1964): the likelihood of r and the t given r. J. Berger, B.
    Liseo, R. Wolpert: integrated likelihood methods for eliminating nuisance parameters,
    Statistical Science 14 (1999). J. Gastwirth, H. Rubin: the behavior of robust estimators on
    dependent data, Annals of Statistics 3 (1975): the median of autocorrelated steps. D. Bonett, R.
    Price: a linear function of medians, Psychological Methods 7 (2002): gaps by order statistics.
    The end of the prior, the divisor and the factor of the gap are ours, chosen by simulation.
    """
    is_median = statistic == MEDIAN
    kind = Series if is_median else MeanSeries
    other_kind = MeanSeries if is_median else Series
    before = Captures.of(baseline, kind)
    after = Captures.of(candidate, kind)
    # NaN if a side has no step.
    delta = after.centre - before.centre
    other_before = before.of_kind(other_kind)
    other_after = after.of_kind(other_kind)
    other_delta = other_after.centre - other_before.centre
    undecided = why_undecided(before, after, names)
    interval = Interval((before, after), confidence)
    ends = _NO_ENDS
    if not undecided:
        delta_of_statistics = abs(delta - other_delta)
        interval = _fit_interval(interval, statistic, delta_of_statistics)
        ends = _ends_of(delta, interval)
    return Difference(
        statistic=statistic,
        baseline=_none_for_nan(before.centre),
        candidate=_none_for_nan(after.centre),
        delta=_none_for_nan(delta),
        other_delta=_none_for_nan(other_delta),
        low=ends.low,
        high=ends.high,
        undecided=undecided,
        interval=interval,
        separation=ends.separation,
    )


def _none_for_nan(value: float) -> float | None:
    return None if math.isnan(value) else value


def _fit_interval(interval: Interval, statistic: str, delta_of_statistics: float) -> Interval:
    """Return the interval that fits the statistic, and the steps.

    Means have the interval of means, and medians usually have that of medians. If a median stands
    beside a gap, it has the interval of means, which is made wider by `delta_of_statistics`: how
    far the difference of the medians is from that of the means.
    """
    if interval.is_same:
        return interval
    if statistic == MEAN:
        return replace(interval, sides=centre_by_means(*interval.sides))
    if interval.is_beside_gap:
        by_means = centre_by_means(*interval.sides)
        return replace(interval, sides=by_means, extra_half_width=delta_of_statistics)
    return interval


class Ends(NamedTuple):
    """The ends of an interval, and the separation that one of them comes from, if any."""

    low: float | None
    high: float | None
    separation: Separation | None


_NO_ENDS = Ends(None, None, None)


def _ends_of(delta: float, interval: Interval) -> Ends:
    """Return the ends of the interval: delta -/+ the half-width, with one exception.

    If 0 lies between these ends, but the sides are separate, the ends come from the separation. The
    sides are separate if their steps do not overlap, and the spread between captures excludes 0.
    """
    half = 0.0 if interval.is_same else interval.half
    low = delta - half
    high = delta + half
    is_zero_inside = low <= 0 <= high
    if is_zero_inside:
        separation = separation_of(*interval.sides, interval.confidence)
        if separation is not None and abs(delta) > interval.half_between:
            return _ends_by_separation(delta, half, interval.half_between, separation)
    return Ends(low, high, separation=None)


def _ends_by_separation(
    delta: float, half: float, half_between: float, separation: Separation
) -> Ends:
    """Return the ends of an interval on the side of delta, without 0 between them.

    The end nearer to 0 is the gap between the sides, or delta less `half_between` if that is nearer
    to 0. The end further from 0 is the largest difference of two steps, but at most delta plus the
    half-width, and at least delta. For a delta below 0, both ends are mirrored.
    """
    size = abs(delta)
    near_size = min(separation.gap, size - half_between)
    far_size = max(min(separation.largest, size + half), size)
    if delta > 0:
        return Ends(near_size, far_size, separation)
    return Ends(-far_size, -near_size, separation)


class Speedup(NamedTuple):
    """Mean of the reference over mean of the run, and the interval of this ratio.

    The ratio is above 1 if the run is faster, and None if a mean is not above 0. The ends are None
    if there is no interval.
    """

    ratio: float | None
    low: float | None
    high: float | None


def ratio_of_means(
    reference: Sequence[Float64], run: Sequence[Float64], *, confidence: float = 0.95
) -> Speedup:
    """Return mean(reference) / mean(run) over steps, with its interval.

    The interval is that of the difference of the logarithms, by the delta method: each side's
    values are divided by its mean, then compared as in `difference_of_centres` of means, and the
    ends are exp(log ratio -/+ half-width). A run against itself is exactly 1. There is no interval
    if a side has fewer than 3 steps.
    """
    before = Captures.of(reference, MeanSeries)
    after = Captures.of(run, MeanSeries)
    has_ratio = before.centre > 0 and after.centre > 0
    ratio = before.centre / after.centre if has_ratio else None
    if ratio is None or before.why_too_few or after.why_too_few:
        return Speedup(ratio, low=None, high=None)
    if Interval((before, after), confidence).is_same:
        half = 0.0
    else:
        sides = centre_by_means(_over_centre(before), _over_centre(after))
        half = Interval(sides, confidence).half
    low = ratio * math.exp(-half)
    high = ratio * math.exp(half)
    return Speedup(ratio, low, high)


def _over_centre(side: Captures) -> Captures:
    """Return a side with its values divided by its centre."""
    factor = 1 / side.centre
    values_of_captures = [series.values * factor for series in side.series]
    return Captures.of(values_of_captures)


class Needed(NamedTuple):
    """About how many steps per capture, or captures on each side, would settle a verdict.

    None if the verdict is settled, or if no number that anybody captures is enough.
    """

    steps: int | None
    captures: int | None


_NOTHING_NEEDED = Needed(None, None)


class Judgement(Struct, frozen=True, dict=True):
    """A difference and what it means."""

    difference: Difference
    # The smallest |delta| that counts, in the unit of the values.
    min_effect: float
    better: Better = "lower"

    @cached_property
    def verdict(self) -> Verdict:
        """What the difference is called.

        "regression", "improvement" or "change" if the interval excludes 0 and |delta| is at least
        the minimum effect. "no change" if the whole interval is within the minimum effect. Else
        "inconclusive".

        The verdict is "inconclusive" whatever the interval is if the differences of means and of
        medians have opposite signs, and one of them is at least the minimum effect. (If both are
        smaller, their signs do not matter.)

        An interval may rest on steps that do not overlap. If the gap between the sides is below the
        minimum effect, the interval shows no change that counts. It can still be "no change".
        """
        delta = self.difference.delta
        low = self.difference.low
        high = self.difference.high
        if delta is None or low is None or high is None:
            return "inconclusive"
        if self._is_opposed:
            return "inconclusive"
        is_zero_excluded = not low <= 0 <= high
        is_change_shown = is_zero_excluded and not self._is_gap_too_small
        if is_change_shown and abs(delta) >= self.min_effect:
            return self._name_of_change(delta)
        is_within_effect = -self.min_effect <= low and high <= self.min_effect
        return "no change" if is_within_effect else "inconclusive"

    def _name_of_change(self, delta: float) -> Verdict:
        """Return the name of a difference that is large enough to count."""
        if self.better == "neither":
            return "change"
        is_lower_better = self.better == "lower"
        is_better = (delta < 0) == is_lower_better
        return "improvement" if is_better else "regression"

    @property
    def why(self) -> str | None:
        """Why the verdict is inconclusive, in words; None if the verdict is another one."""
        if self.verdict != "inconclusive":
            return None
        if self.difference.undecided:
            return self.difference.undecided
        if self._is_opposed:
            return "mean and median differ in sign"
        return "part of the confidence interval exceeds the minimum effect, and part does not"

    @property
    def is_worse_excluded(self) -> bool:
        """Whether a regression is excluded: at worst, the change is below the minimum effect.

        Two sides with the same steps exclude a regression even if the minimum effect is 0.
        """
        low = self.difference.low
        high = self.difference.high
        if low is None or high is None or self._is_opposed:
            return False
        # By how much the metric got worse at most. Without a better direction, a change in either
        # direction is worse.
        largest_either_way = max(high, -low)
        worst_by_better = {"lower": high, "higher": -low, "neither": largest_either_way}
        is_exactly_zero = low == high == 0
        return worst_by_better[self.better] < self.min_effect or is_exactly_zero

    @property
    def _is_gap_too_small(self) -> bool:
        """Whether the interval comes from sides that do not overlap, with a gap that is small."""
        separation = self.difference.separation
        if separation is None:
            return False
        return separation.gap < self.min_effect

    @property
    def _is_opposed(self) -> bool:
        """Whether the differences of means and of medians have opposite signs.

        At least one of them has to be the minimum effect or more. Otherwise signs do not matter.
        """
        delta = self.difference.delta
        other_delta = self.difference.other_delta
        if delta is None or other_delta is None:
            return False
        larger = max(abs(delta), abs(other_delta))
        return delta * other_delta < 0 and larger >= self.min_effect

    def estimate_needed(self, *, one_sided: bool = False) -> Needed:
        """Return about how many steps, or captures, would settle the verdict.

        Further steps and captures are assumed to be like these. If `one_sided`, it is enough to
        know that there is no regression.
        """
        target_half = self._target_half_width(one_sided=one_sided)
        if target_half is None or target_half <= 0:
            return _NOTHING_NEEDED
        n_steps = self._needed_steps(target_half)
        n_captures = self._needed_captures(target_half)
        return Needed(n_steps, n_captures)

    def _target_half_width(self, *, one_sided: bool) -> float | None:
        """Return the half-width below which the verdict is settled.

        None if the verdict is settled, or if no half-width would settle it. If `one_sided`, the
        verdict is settled as soon as a regression is certain or excluded.
        """
        delta = self.difference.delta
        if delta is None or self.difference.low is None or self._is_opposed:
            return None
        if self.verdict != "inconclusive" or (one_sided and self.is_worse_excluded):
            return None
        if one_sided:
            # By how much the metric got worse; below 0 if it got better.
            size = {"lower": delta, "higher": -delta, "neither": abs(delta)}[self.better]
        else:
            size = abs(delta)
        # The interval of a change that counts has to exclude 0. That of a smaller change has to
        # stay within the minimum effect.
        distance = size if size >= self.min_effect else self.min_effect - size
        return SETTLE_MARGIN * distance

    def _needed_steps(self, target_half: float) -> int | None:
        """Return about how many steps per capture are enough.

        None if a side has several captures, or if nobody captures so many steps.
        """
        before, after = self.difference.interval.sides
        all_series = (*before.series, *after.series)
        n_steps = max(series.n for series in all_series)
        half_width_of = self.difference.half
        # The factor of steps that is needed lies between these two.
        too_small_factor = 1.0
        sufficient_factor = MAX_STEPS_TO_SETTLE / n_steps
        if self._n_captures > 1 or half_width_of(sufficient_factor) >= target_half:
            return None
        for _ in range(_N_BISECTIONS):
            middle_factor = math.sqrt(too_small_factor * sufficient_factor)
            if half_width_of(middle_factor) < target_half:
                sufficient_factor = middle_factor
            else:
                too_small_factor = middle_factor
        return math.ceil(n_steps * sufficient_factor)

    def _needed_captures(self, target_half: float) -> int | None:
        """Return about how many captures of each side are enough.

        None if nobody captures so many.
        """
        max_factor = MAX_CAPTURES_TO_SETTLE // self._n_captures
        for factor in range(2, max_factor + 1):
            if self.difference.half(captures_factor=factor) < target_half:
                return factor * self._n_captures
        return None

    @property
    def _n_captures(self) -> int:
        """Number of captures of the side that has more of them."""
        sides = self.difference.interval.sides
        return max(len(side.series) for side in sides)
