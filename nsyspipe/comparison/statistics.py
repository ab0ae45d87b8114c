"""The difference of two centres over training steps, and the ratio of two means, with intervals.

Autocorrelated steps do not fool them. Where nothing differs, at 95 % and 2 % as the least that counts, simulated AR(1)
steps (r up to 0.6, 8 to 100 of them) are called different in 1.2 % at most. Others are more often: AR(0.9) in 3 to 10 % of
10 to 30 steps, and steps that stay at each of two levels for ten in the mean in up to 15 %:
tests/comparison/test_gate_simulation.py prints and bounds them. One capture against several that spread less is not
bounded by anything (`Difference.borrowed_spread`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from nsyspipe.comparison.interval import Interval, mean_interval
from nsyspipe.comparison.series import Captures, MeanSeries, Series, why_undecided

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsyspipe.model.types import Float64


MEDIAN, MEAN = "median", "mean"
_METHOD = (
    "Student t over AR(1) steps, the likelihood integrated over correlations of 0 to 0.97 (Zellner and Tiao 1964, "
    "Berger et al. 1999)"
)
_BETWEEN = f"{_METHOD}; not less than pooled and Welch's t of captures"
_BORROWED = (
    f"{_METHOD}; not less than pooled t of captures, the side of one capture taken to spread "
    "between captures like the other side"
)


@dataclass(frozen=True)
class Difference:
    """Two medians or means over steps, candidate less baseline, and the interval of that; in the unit of the values.

    Attributes
    ----------
    statistic
        ``median`` or ``mean``: what baseline, candidate and delta are.
    baseline, candidate
        That of the steps; of several captures the mean of theirs; None without a step.
    delta
        candidate - baseline; swapping the sides negates it, and mirrors low and high, exactly.
    other_delta
        The difference of the other statistic.
    low, high
        The interval; None if `undecided`.
    n_baseline, n_candidate
        Steps, of all captures together.
    undecided
        Why there is no interval, in words; None if there is one.
    between_captures
        Whether the spread between captures of one configuration is in the interval.
    borrowed_spread
        Whether one side has a single capture, whose spread between captures is taken from the other
        side. If it spreads more than that, false alarms are many, and nothing here can show it.
    interval
        What low and high come from; asked for what more steps or captures would give.
    added
        What else is in low and high: how far mean and median differ beside a gap, and broken periods.
    """

    statistic: str
    baseline: float | None
    candidate: float | None
    delta: float | None
    other_delta: float | None
    low: float | None
    high: float | None
    n_baseline: int
    n_candidate: int
    confidence: float
    method: str
    undecided: str | None
    between_captures: bool
    borrowed_spread: bool
    interval: Interval = field(compare=False)
    added: float

    def half(self, longer: float = 1.0, times_captures: int = 1) -> float:
        """Return the half-width to expect of captures with so many times the steps, or of so many times the captures."""
        again = replace(self.interval, longer=longer, times_captures=times_captures)
        return again.half + self.added


def difference_of_centres(
    baseline: Sequence[Float64],
    candidate: Sequence[Float64],
    *,
    confidence: float = 0.95,
    statistic: str = MEDIAN,
    names: tuple[str, str] = ("baseline", "candidate"),
) -> Difference:
    """Return the difference of the medians (or means) over steps, candidate less baseline, with its interval.

    Neighbouring steps are alike by a correlation r that few steps cannot tell. Given r, the centre of AR(1) steps has a
    t distribution; r has the likelihood that is left when mean and variance are integrated out, of all steps of both
    sides, times a prior that is even from 0 to 0.97. The half-width h is where the tails beyond it,
    P(|T| > h / sqrt(V1(r) + V2(r))) with Welch's degrees of freedom, weighted over r, are the error that was asked for,
    divided by sqrt(0.275 n) of n steps a side (from 1 to 3): then false alarms are as few at r = 0.6, which so few
    steps hardly tell from 0. Of the fewest steps the prior alone, which they leave standing, is caution enough.
    V(r) = s(r)^2 c(r) / n with s(r)^2 the generalised sum of squares over n - 1; of a mean c = 1 + 2 sum (1 - k/n) r^k,
    of a median pi/2 + 2 sum (1 - k/n) arcsin r^k, the steps further out than 3 robust standard deviations
    counted as that far.

    Where the median stands beside a gap, it may jump from one level of the steps to the other, and no spread says
    so: then h is that of the means and how far the two differences are apart. A regular pattern (every fifth step
    slow, `mean_interval`) is no spread of the means; levels that come by chance are.

    With several captures on a side the interval is not narrower than two-sample t intervals of the
    captures' centres: pooled, s sqrt(1/k1 + 1/k2) with k1 + k2 - 2 degrees of freedom, and Welch's,
    sqrt(s1^2/k1 + s2^2/k2) with Satterthwaite's, at least 1. With one capture on a side there is
    only the former, with the spread of the other side (`borrowed_spread`).

    Parameters
    ----------
    baseline, candidate
        For each capture of the configuration its per-step values in step order, finite, any unit.
    confidence
        Of the interval, between 0 and 1.
    statistic
        ``median`` or ``mean``.
    names
        What `undecided` calls the sides.

    Returns
    -------
    Difference
        Undecided if a side has fewer than 3 steps. Equal sides give exactly 0.

    Raises
    ------
    ValueError
        For values that are not finite, or a confidence outside 0 to 1.

    Notes
    -----
    A. Zellner, G. Tiao: Bayesian analysis of the regression model with autocorrelated errors, J. American Statistical
    Association 59 (1964), the likelihood of r and the t given r. J. Berger, B. Liseo, R. Wolpert: integrated
    likelihood methods for eliminating nuisance parameters, Statistical Science 14 (1999). J. Gastwirth, H. Rubin: the
    behavior of robust estimators on dependent data, Annals of Statistics 3 (1975), the median of autocorrelated steps.
    D. Bonett, R. Price: a linear function of medians, Psychological Methods 7 (2002), gaps by order statistics. The
    prior's end, that divisor and the gap's factor are ours, chosen by simulation. No random numbers; false alarms,
    coverage and power are measured in tests/comparison/test_gate_simulation.py.

    Examples
    --------
    >>> import numpy as np
    >>> steps = np.array([10.0, 10.5, 10.2, 9.9, 10.1])
    >>> result = difference_of_centres([steps], [steps + 5])
    >>> result.delta, result.low > 0
    (5.0, True)
    """
    kinds: tuple[type[Series], type[Series]] = (Series, MeanSeries)
    kind, other_kind = kinds if statistic == MEDIAN else kinds[::-1]
    one, other = Captures.of(baseline, kind), Captures.of(candidate, kind)
    delta = other.centre - one.centre
    other_delta = other.of_kind(other_kind).centre - one.of_kind(other_kind).centre
    undecided = why_undecided(one, other, names)
    interval = Interval(one, other, confidence)
    added = 0.0
    if not (undecided or interval.is_same) and (statistic == MEAN or interval.is_beside_gap):
        means = mean_interval(one, other, confidence)
        interval = means.interval
        added = means.broken + (abs(delta - other_delta) if statistic == MEDIAN else 0.0)
    half = math.nan if undecided else 0.0 if interval.is_same else interval.half + added
    return Difference(
        statistic=statistic,
        baseline=_known(one.centre),
        candidate=_known(other.centre),
        delta=_known(delta),
        other_delta=_known(other_delta),
        low=None if undecided else delta - half,
        high=None if undecided else delta + half,
        n_baseline=one.n,
        n_candidate=other.n,
        confidence=confidence,
        method=method_words(interval),
        undecided=undecided,
        between_captures=interval.has_between,
        borrowed_spread=interval.is_borrowed,
        interval=interval,
        added=added,
    )


def method_words(interval: Interval) -> str:
    """Return how an interval came about, in words."""
    if interval.is_borrowed:
        return _BORROWED
    return _BETWEEN if interval.has_between else _METHOD


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


# How much faster one run is than another: the ratio of two means over steps, with its interval.


@dataclass(frozen=True)
class Speedup:
    """Mean of the reference over mean of the run: above 1 the run is faster.

    Attributes
    ----------
    ratio
        None without steps, or where a mean is not above 0.
    low, high
        The interval; None if `undecided`.
    undecided
        Why there is no interval, in words.
    between_captures, borrowed_spread
        As in `Difference`.
    """

    ratio: float | None
    low: float | None
    high: float | None
    n_reference: int
    n_run: int
    confidence: float
    method: str
    undecided: str | None
    between_captures: bool
    borrowed_spread: bool


def ratio_of_means(
    reference: Sequence[Float64], run: Sequence[Float64], *, confidence: float = 0.95
) -> Speedup:
    """Return mean(reference) / mean(run) over steps, with its interval.

    The interval is that of the difference of the logarithms, by the delta method: each side's
    values are divided by its mean, then as in `difference_of_centres` of means, and
    exp(log ratio -/+ half-width). Several captures: mean of their means.

    Parameters
    ----------
    reference, run
        For each capture its step times in step order, finite, one unit.
    confidence
        Of the interval, between 0 and 1.

    Returns
    -------
    Speedup
        A run against itself is exactly 1. Undecided if a side has fewer than 3 steps, or a mean is
        not above 0.

    Raises
    ------
    ValueError
        For values that are not finite, or a confidence outside 0 to 1.
    """
    one, other = Captures.of(reference, MeanSeries), Captures.of(run, MeanSeries)
    is_positive = one.centre > 0 and other.centre > 0
    ratio = one.centre / other.centre if is_positive else None
    undecided = why_undecided(one, other, ("reference", "run"))
    if not undecided and not is_positive:
        undecided = "a mean is not above 0"
    is_same = Interval(one, other, confidence).is_same
    if is_positive:
        one, other = one.scaled(1 / one.centre), other.scaled(1 / other.centre)
    means = mean_interval(one, other, confidence)
    interval = means.interval
    half = 0.0 if is_same else means.half if ratio is not None and not undecided else math.nan
    return Speedup(
        ratio=ratio,
        low=None if undecided or ratio is None else ratio * math.exp(-half),
        high=None if undecided or ratio is None else ratio * math.exp(half),
        n_reference=one.n,
        n_run=other.n,
        confidence=confidence,
        method=method_words(interval),
        undecided=undecided,
        between_captures=interval.has_between,
        borrowed_spread=interval.is_borrowed,
    )
