"""The difference of two centres over training steps, and the ratio of two means, with intervals; and what a difference means.

Where nothing differs, at 95 % and 2 % as the least that counts, simulated steps (independent, AR(1)
up to r = 0.6, stalls, two levels that switch with a probability of 0.2 or more; 8 to 100 of them)
are called a regression in 2.5 % at most, and an improvement in 2.5 % at most. Steps that stick
together more are called so more often: tests/comparison/test_gate_simulation.py prints and bounds
them.
One capture against several that spread less is not bounded by anything (`Interval.is_borrowed`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import zip_longest
from typing import Literal, NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from nsyspipe.comparison.separation import Separation, separation_of
from nsyspipe.comparison.series import (
    Captures,
    MeanSeries,
    Series,
    critical_value,
    half_width,
    of_means,
    why_undecided,
)
from nsyspipe.model.figures import Better
from nsyspipe.model.table import Float64

MEDIAN = "median"
MEAN = "mean"
Verdict = Literal["regression", "improvement", "change", "no change", "inconclusive"]

_METHOD = (
    "Student t over AR(1) steps, the likelihood integrated over correlations of 0 to 0.97 "
    "(Zellner and Tiao 1964, "
    "Berger et al. 1999)"
)
_POOLED = f"{_METHOD}, at least as wide as by the pooled t"
_BETWEEN = f"{_POOLED} and Welch's t of the captures' centres"
_BORROWED = (
    f"{_POOLED} of the captures' centers, with the same spread between captures on both sides"
)
_SEPARATED = (
    "the steps of both sides do not mix, so Mann and Whitney's interval of all differences. "
    "Otherwise: "
)
_MOST = 0.97  # what a correlation is taken for before any step is seen: anything from 0 to here
# Steps of both sides up to which so many correlations tell likelihoods apart: the more steps, the
# narrower.
_FINENESS = ((160, 12), (800, 36), (math.inf, 108))
# What the error that is asked for is divided by, so that it holds at a correlation of 0.6 too: the
# root of so much per step of a side, to a third. Of fewer steps more correlations are left open,
# which is caution enough.
_CAUTION_PER_STEP = 0.275
_MOST_CAUTION = 3.0
# nobody captures more for one answer
_MOST_STEPS = 5000
_MOST_CAPTURES = 20
_ROUNDS = 7
_MARGIN = 0.95  # what more steps will show differs from what these show: aim a little higher


class Interval(Struct, frozen=True, eq=False, dict=True):
    """Half-widths around the difference of two centres; the same whichever side comes first."""

    sides: tuple[Captures, Captures]
    confidence: float
    added: float = 0.0  # what no spread shows
    longer: float = 1.0  # as if each capture went on to so many times its steps
    times: int = 1  # or there were so many times the captures, all like these

    @cached_property
    def half(self) -> float:
        """Half-width: of the steps by all correlations that they leave open, and not less than of the captures."""
        shared = max(self._within, self.half_between)
        return shared + (abs(self.sides[0].broken - self.sides[1].broken) + self.added)

    @property
    def half_between(self) -> float:
        """Half-width from the spread between captures alone; 0 if each side has one capture."""
        return self._between if self.has_between else 0.0

    @property
    def has_between(self) -> bool:
        """Whether the spread between captures is in: one side has several."""
        return max(self._counts) > 1

    @property
    def is_borrowed(self) -> bool:
        """Whether one side has several captures, and the other is taken to spread like it."""
        return min(self._counts) == 1 < max(self._counts)

    @property
    def is_beside_gap(self) -> bool:
        """Whether the centre of a capture may jump from one level of its steps to the other."""
        correlation = float(np.dot(*self._likely))
        return any(series.is_beside_gap(correlation) for side in self.sides for series in side.long)

    @cached_property
    def is_same(self) -> bool:
        """Whether both sides are the same steps: then nothing is left to chance."""
        pairs = zip_longest(*(side.series for side in self.sides))
        return all(a and b and np.array_equal(a.values, b.values) for a, b in pairs)

    @cached_property
    def _counts(self) -> list[int]:
        return [len(side.series) * self.times for side in self.sides]

    @property
    def _steps(self) -> float:
        return (self.sides[0].n + self.sides[1].n) * self.longer

    @cached_property
    def _likely(self) -> tuple[Float64, Float64]:
        """Correlations, and how likely each is by all steps of both sides: prior times likelihood."""
        r, prior = _prior(next(count for most, count in _FINENESS if self._steps <= most))
        varying = ([series for series in side.long if series.is_varying] for side in self.sides)
        one, other = (
            sum((series.likelihood(r, self.longer) for series in side), np.zeros(1))
            for side in varying
        )
        likely = np.log(prior) + self.times * (
            one + other
        )  # both sides first: swapped, they sum to exactly the same
        weights = np.exp(likely - likely.max())
        return r, weights / weights.sum()

    def _variances(self, times: int) -> tuple[Float64, Float64]:
        """Return the variance of the difference for each correlation, and its sum of squares over freedom."""
        one, other = (side.variances(self._likely[0], self.longer, times) for side in self.sides)
        return one[0] + other[0], one[1] + other[1]

    @cached_property
    def _within(self) -> float:
        """Half-width from the steps: where the tails of Welch's t, weighted over correlations, are the error, less caution."""
        if not any(series.is_varying for side in self.sides for series in side.long):
            return 0.0
        variance, squares = self._variances(self.times)
        freedom = np.ones_like(
            variance
        )  # of spreads too small to be squared nothing is known but that there are some
        np.divide(variance**2, squares, out=freedom, where=squares > 0)
        caution = math.sqrt(_CAUTION_PER_STEP * (self._steps / 2 * self.times))
        error = (1 - self.confidence) / min(max(caution, 1.0), _MOST_CAUTION)
        return half_width(self._likely[1], np.sqrt(variance), freedom, error)

    @cached_property
    def _between(self) -> float:
        """Half-width from the captures' centres: the wider of pooled t and Welch's."""
        # Pooled t is far too narrow where the side of fewer captures spreads more, Welch's where
        # two agree by chance. One capture shows no spread: only pooled t; of one on each side that
        # go on as several what their steps let expect.
        counts = self._counts
        times = self.times
        freedom = sum(counts) - 2
        t = critical_value(self.confidence, freedom)
        if max(counts) == times:
            return t * math.sqrt(float(self._likely[1] @ self._variances(1)[0]) / times)
        pooled = times * sum(side.squares_between for side in self.sides) / freedom
        half = t * math.sqrt(pooled * (1 / counts[0] + 1 / counts[1]))
        if min(counts) == times:
            return half
        (one, squares), (other, more) = (side.between for side in self.sides)
        variance = (one + other) / times
        if not variance:
            return half
        welch = max(variance**2 / ((squares + more) / times**3), 1.0)
        return max(half, critical_value(self.confidence, welch) * math.sqrt(variance))


@lru_cache(maxsize=8)
def _prior(count: int) -> tuple[Float64, Float64]:
    """Correlations and their weights before any step is seen: nodes of Gauss and Legendre."""
    nodes, parts = np.polynomial.legendre.leggauss(count)
    return _MOST * (nodes + 1) / 2, parts / 2


@dataclass(frozen=True)
class Difference:
    """Two medians or means over steps, candidate less baseline, and the interval of that; in the unit of the values."""

    statistic: str  # ``median`` or ``mean``: what baseline, candidate and delta are
    baseline: (
        float | None
    )  # that of the steps; of several captures the mean of theirs; None without a step
    candidate: float | None
    delta: float | None  # swapping the sides negates it, and mirrors low and high, exactly
    other_delta: float | None  # the difference of the other statistic
    low: float | None  # the interval; None if `undecided`
    high: float | None
    undecided: str | None  # why there is no interval, in words; None if there is one
    # What low and high come from; asked for what more steps or captures would give. If it
    # `is_borrowed`, one side has a single capture, whose spread between captures is taken from the
    # other side: if it spreads more than that, false alarms are many, and nothing here can show it.
    interval: Interval = field(compare=False)
    # Set if the end of the interval that is nearer to 0 comes from steps that do not overlap.
    separation: Separation | None = None

    @property
    def method(self) -> str:
        """How the interval came about, in words."""
        of_steps = self._method_of_steps
        return of_steps if self.separation is None else f"{_SEPARATED}{of_steps}"

    @property
    def _method_of_steps(self) -> str:
        return (
            _BORROWED
            if self.interval.is_borrowed
            else _BETWEEN
            if self.interval.has_between
            else _METHOD
        )

    def half(self, longer: float = 1.0, times: int = 1) -> float:
        """Return the half-width to expect of so many times the steps per capture, or of so many times the captures."""
        return replace(self.interval, longer=longer, times=times).half


def difference_of_centres(
    baseline: Sequence[Float64],
    candidate: Sequence[Float64],
    *,
    confidence: float = 0.95,
    statistic: str = MEDIAN,
    names: tuple[str, str] = ("baseline", "candidate"),
) -> Difference:
    """Return the difference of the medians (or means) over steps, candidate less baseline, with its interval.

    Neighbouring steps are alike by a correlation r that few steps cannot tell. Given r, the centre
    of AR(1) steps has a t distribution; r has the likelihood that is left when mean and variance
    are integrated out, of all steps of both sides, times a prior that is even from 0 to 0.97. The
    half-width h is where the tails beyond it, P(|T| > h / sqrt(V1(r) + V2(r))) with Welch's degrees
    of freedom, weighted over r, are the error that was asked for, divided by sqrt(0.275 n) of n
    steps a side (from 1 to 3): then false alarms are as few at r = 0.6, which so few steps hardly
    tell from 0. Of the fewest steps the prior alone, which they leave standing, is caution enough.
    V(r) = s(r)^2 c(r) / n with s(r)^2 the generalised sum of squares over n - 1; of a mean c = 1 +
    2 sum (1 - k/n) r^k, of a median pi/2 + 2 sum (1 - k/n) arcsin r^k, the steps further out than 3
    robust standard deviations counted as that far.

    Where the median stands beside a gap, it may jump from one level of the steps to the other, and
    no spread says so: then h is that of the means and how far the two differences are apart. A
    regular pattern (every fifth step slow, `of_means`) is no spread of the means; levels that come
    by chance are.

    With several captures on a side the interval is not narrower than two-sample t intervals of the
    captures' centres: pooled, s sqrt(1/k1 + 1/k2) with k1 + k2 - 2 degrees of freedom, and Welch's,
    sqrt(s1^2/k1 + s2^2/k2) with Satterthwaite's, at least 1. With one capture on a side there is
    only the former, with the spread of the other side (`Interval.is_borrowed`).

    Each side's captures are arrays of finite per-step values in step order. Fewer than 3 steps are
    undecided, said of the sides by their `names`; equal sides give exactly 0. Values that are not
    finite are a ValueError.

    Notes
    -----
    A. Zellner, G. Tiao: Bayesian analysis of the regression model with autocorrelated errors, J.
    American Statistical Association 59 (1964), the likelihood of r and the t given r. J. Berger, B.
    Liseo, R. Wolpert: integrated likelihood methods for eliminating nuisance parameters,
    Statistical Science 14 (1999). J. Gastwirth, H. Rubin: the behavior of robust estimators on
    dependent data, Annals of Statistics 3 (1975), the median of autocorrelated steps. D. Bonett, R.
    Price: a linear function of medians, Psychological Methods 7 (2002), gaps by order statistics.
    The prior's end, that divisor and the gap's factor are ours, chosen by simulation.
    """
    kinds: tuple[type[Series], type[Series]] = (Series, MeanSeries)
    kind, other_kind = kinds if statistic == MEDIAN else kinds[::-1]
    one = Captures.of(baseline, kind)
    other = Captures.of(candidate, kind)
    delta = other.centre - one.centre
    other_delta = other.of_kind(other_kind).centre - one.of_kind(other_kind).centre
    undecided = why_undecided(one, other, names)
    interval = Interval((one, other), confidence)
    half = math.nan if undecided else 0.0
    if not undecided and not interval.is_same:
        if statistic == MEAN:
            interval = Interval(of_means(one, other), confidence)
        elif interval.is_beside_gap:
            interval = Interval(of_means(one, other), confidence, added=abs(delta - other_delta))
        half = interval.half
    ends = Ends(delta - half, delta + half, None)
    if not undecided and ends.low <= 0 <= ends.high:
        ends = _without_zero_if_separated(delta, half, interval)
    low, high = (None, None) if undecided else (ends.low, ends.high)
    found = (one.centre, other.centre, delta, other_delta)
    before, after, apart, other_apart = (None if math.isnan(value) else value for value in found)
    return Difference(
        statistic,
        before,
        after,
        apart,
        other_apart,
        low,
        high,
        undecided,
        interval,
        ends.separation,
    )


class Ends(NamedTuple):
    """The ends of an interval, and the separation that one of them comes from, if any."""

    low: float
    high: float
    separation: Separation | None


def _without_zero_if_separated(delta: float, half: float, interval: Interval) -> Ends:
    """Return the ends delta -/+ half, but without 0 between them if the steps of the two sides do not overlap.

    The end nearer to 0 becomes the gap between the sides, the other is at most the largest
    difference of two steps. With several captures on a side, the spread between their centres must
    leave out 0 as well, and the nearer end goes at least as far towards 0 as that spread.
    """
    separation = separation_of(*interval.sides, interval.confidence)
    half_between = interval.half_between
    size = abs(delta)
    if separation is None or size <= half_between:
        return Ends(delta - half, delta + half, None)
    near_end = min(separation.gap, size - half_between)
    far_end = max(size, min(separation.largest, size + half))
    if delta > 0:
        return Ends(near_end, far_end, separation)
    return Ends(-far_end, -near_end, separation)


class Speedup(NamedTuple):
    """Mean of the reference over mean of the run, above 1 if the run is faster, and its interval; None where there is none."""

    ratio: float | None
    low: float | None
    high: float | None


def ratio_of_means(
    reference: Sequence[Float64], run: Sequence[Float64], *, confidence: float = 0.95
) -> Speedup:
    """Return mean(reference) / mean(run) over steps, with its interval.

    It is that of the difference of the logarithms, by the delta method: each side's values are
    divided by its mean, then as in `difference_of_centres` of means, and exp(log ratio -/+
    half-width). A run against itself is exactly 1. Undecided if a side has fewer than 3 steps, or a
    mean is not above 0.
    """
    one = Captures.of(reference, MeanSeries)
    other = Captures.of(run, MeanSeries)
    is_same = Interval((one, other), confidence).is_same
    ratio = one.centre / other.centre if one.centre > 0 and other.centre > 0 else None
    if ratio is None or one.too_few or other.too_few:
        return Speedup(ratio, None, None)
    scaled = (
        [series.values * (1 / side.centre) for series in side.series] for side in (one, other)
    )
    half = 0.0 if is_same else Interval(of_means(*map(Captures.of, scaled)), confidence).half
    return Speedup(ratio, ratio * math.exp(-half), ratio * math.exp(half))


class Judgement(Struct, frozen=True, dict=True):
    """A difference and what it means: what counts is a |delta| of `least`, in the unit of the values."""

    difference: Difference
    least: float
    better: Better = "lower"

    @cached_property
    def verdict(self) -> Verdict:
        """What it is called: "regression", "improvement" or "change" if 0 is excluded and |delta| is at least `least`.

        "no change" if the whole interval lies within +/- `least`; else "inconclusive". So it is
        where mean and median differ in sign, whatever the interval says, if one of them is at least
        `least`: signs of two differences that are both too small to count say nothing. It is
        inconclusive too if the steps do not overlap, the interval rests on that, and the gap
        between the sides is below `least`.
        """
        delta = self.difference.delta
        low = self.difference.low
        high = self.difference.high
        if (
            delta is None
            or low is None
            or high is None
            or self._is_opposed
            or self._is_gap_too_small
        ):
            return "inconclusive"
        if not low <= 0 <= high and abs(delta) >= self.least:
            if self.better == "neither":
                return "change"
            return "improvement" if (delta < 0) == (self.better == "lower") else "regression"
        return "no change" if -self.least <= low and high <= self.least else "inconclusive"

    @property
    def why(self) -> str | None:
        """Why it is inconclusive, in words; None if it is not."""
        if self.difference.undecided or self.verdict != "inconclusive":
            return self.difference.undecided
        return (
            "mean and median differ in sign"
            if self._is_opposed
            else "part of the confidence interval exceeds the minimum effect, and part does not"
        )

    @property
    def is_worse_excluded(self) -> bool:
        """Whether the worse end of the interval lies below what counts: no regression, whatever else it is."""
        low = self.difference.low
        high = self.difference.high
        if low is None or high is None or self._is_opposed:
            return False
        worse = {"lower": high, "higher": -low, "neither": max(high, -low)}[self.better]
        return worse < self.least or low == high == 0

    @property
    def _is_gap_too_small(self) -> bool:
        separation = self.difference.separation
        return separation is not None and separation.gap < self.least

    @property
    def _is_opposed(self) -> bool:
        delta = self.difference.delta
        other = self.difference.other_delta
        if delta is None or other is None:
            return False
        return delta * other < 0 and max(abs(delta), abs(other)) >= self.least

    def settled(self, *, one_sided: bool = False) -> tuple[int | None, int | None]:
        """Return about how many steps per capture, or captures on each side, would settle it, were the rest like these.

        None where nothing anybody captures is enough. If `one_sided`, it is enough to know that
        there is no regression.
        """
        delta = self.difference.delta
        half = self.difference.half
        is_open = self.verdict == "inconclusive" and not (one_sided and self.is_worse_excluded)
        if not is_open or delta is None or self.difference.low is None or self._is_opposed:
            return None, None
        worse = {"lower": delta, "higher": -delta, "neither": abs(delta)}[self.better]
        away = worse if one_sided else abs(delta)
        wanted = _MARGIN * (away if away >= self.least else self.least - away)
        if wanted <= 0:
            return None, None
        sides = [side.series for side in self.difference.interval.sides]
        n = max(series.n for side in sides for series in side)
        count = max(map(len, sides))
        steps = None
        if count == 1 and half(_MOST_STEPS / n) < wanted:
            low = 1.0
            high = _MOST_STEPS / n
            for _ in range(_ROUNDS):
                middle = math.sqrt(low * high)
                low, high = (low, middle) if half(middle) < wanted else (middle, high)
            steps = math.ceil(n * high)
        most = max(_MOST_CAPTURES // count, 1)
        times = next((times for times in range(2, most + 1) if half(1.0, times) < wanted), None)
        return steps, None if times is None else times * count
