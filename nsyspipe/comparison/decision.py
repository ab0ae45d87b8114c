"""What a difference means: a regression, an improvement, no change, or nothing that can be said yet."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from nsyspipe.comparison.statistics import Difference


Verdict = Literal["regression", "improvement", "change", "no change", "inconclusive"]
Better = Literal["lower", "higher", "neither"]

# Nobody captures more for one answer.
_MOST_STEPS, _MOST_CAPTURES = 5000, 20
_ROUNDS = 7
# What more steps will show differs from what these show: aim a little higher.
_MARGIN = 0.95


@dataclass(frozen=True)
class Settled:
    """What would settle an inconclusive difference, were the rest like these steps.

    Attributes
    ----------
    steps
        Steps per capture; None where no number that anybody captures is enough.
    captures
        Captures on each side, of as many steps as these have; None likewise.
    is_fewer_by_captures
        Whether the captures take fewer steps in all.
    """

    steps: int | None
    captures: int | None
    is_fewer_by_captures: bool


def least_effect(difference: Difference, *, min_effect: float, of_zero: float = 0.0) -> float:
    """Return the smallest |delta| that counts: `min_effect` of the baseline, `of_zero` of a baseline of 0."""
    return min_effect * abs(difference.baseline) if difference.baseline else of_zero


def verdict(difference: Difference, *, least: float, better: Better = "lower") -> Verdict:
    """Judge a difference.

    Parameters
    ----------
    difference
        Of `difference_of_centres`.
    least
        The smallest |delta| that counts, in the unit of the values.
    better
        Which direction is an improvement; with "neither" a difference is a "change".

    Returns
    -------
    str
        "regression", "improvement" or "change" if the interval excludes 0 and |delta| is at least `least`;
        "no change" if the whole interval lies within +/- `least`; else "inconclusive". So it is where mean and median
        differ in sign, whatever the interval says, if one of them is at least `least`: signs of two differences that
        are both too small to count say nothing.
    """
    delta, low, high = difference.delta, difference.low, difference.high
    if delta is None or low is None or high is None or is_opposed(difference, least=least):
        return "inconclusive"
    if not low <= 0 <= high and abs(delta) >= least:
        if better == "neither":
            return "change"
        return "improvement" if (delta < 0) == (better == "lower") else "regression"
    return "no change" if -least <= low and high <= least else "inconclusive"


def is_opposed(difference: Difference, *, least: float) -> bool:
    """Whether mean and median differ in sign, and one of them by as much as counts."""
    delta, other = difference.delta, difference.other_delta
    if delta is None or other is None:
        return False
    return delta * other < 0 and max(abs(delta), abs(other)) >= least


def is_worse_excluded(difference: Difference, *, least: float, better: Better) -> bool:
    """Whether the worse end of the interval lies below what counts: no regression, whatever else it is."""
    low, high = difference.low, difference.high
    if low is None or high is None or is_opposed(difference, least=least):
        return False
    worse = {"lower": high, "higher": -low, "neither": max(high, -low)}[better]
    return worse < least or low == high == 0


def settled_by(
    difference: Difference, *, least: float, better: Better = "neither", one_sided: bool = False
) -> Settled | None:
    """Say about how many more steps or captures would settle an inconclusive difference, if delta stays what it is.

    The half-width is computed again of captures that go on as these do, and of more captures like these.

    Parameters
    ----------
    one_sided
        Whether it is enough to know that there is no regression.

    Returns
    -------
    Settled
        None where there is no interval, or mean and median point in opposite directions.
    """
    delta = difference.delta
    if delta is None or difference.low is None or is_opposed(difference, least=least):
        return None
    worse = {"lower": delta, "higher": -delta, "neither": abs(delta)}[better]
    away = worse if one_sided else abs(delta)
    wanted = _MARGIN * (away if away >= least else least - away)
    series = (*difference.interval.one.series, *difference.interval.other.series)
    n = max(one.n for one in series)
    count = max(len(difference.interval.one.series), len(difference.interval.other.series))
    longer = _longer(difference, wanted, _MOST_STEPS / n) if count == 1 else None
    steps = None if longer is None else math.ceil(n * longer)
    times = next(
        (one for one in range(2, max(_MOST_CAPTURES // count, 1) + 1) if difference.half(1.0, one) < wanted),
        None,
    ) if wanted > 0 else None  # fmt: skip
    captures = None if times is None else times * count
    is_fewer = captures is not None and (steps is None or captures * n < steps)
    return Settled(steps, captures, is_fewer)


def _longer(difference: Difference, wanted: float, most: float) -> float | None:
    """Return how many times the steps give a half-width; None where `most` times do not."""
    if wanted <= 0 or difference.half(most) >= wanted:
        return None
    low, high = 1.0, most
    for _ in range(_ROUNDS):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if difference.half(middle) < wanted else (middle, high)
    return high
