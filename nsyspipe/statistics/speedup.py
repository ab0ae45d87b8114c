"""How much faster one run is than another: the ratio of two means over steps, with its interval."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nsyspipe.statistics.captures import Captures, why_undecided
from nsyspipe.statistics.difference import method_words
from nsyspipe.statistics.interval import Interval
from nsyspipe.statistics.pattern import mean_interval
from nsyspipe.statistics.series import MeanSeries

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsyspipe.statistics.series import FloatArray

__all__ = ["Speedup", "ratio_of_means"]


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
    reference: Sequence[FloatArray], run: Sequence[FloatArray], *, confidence: float = 0.95
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
