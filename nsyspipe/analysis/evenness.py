"""Whether one number can stand for a run's steps: mean, median, and the pattern where steps are of two kinds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from nsyspipe.model.types import Flags, Float64


# definitions.md, section 4.
_NEAR = 0.1
_HALF = 0.5
# Two levels: the gap between them is so many times the spread within; fewer where they come regularly.
_GAP, _REGULAR_GAP = 4.0, 2.5
_LEAST_OF_A_LEVEL = 2


@dataclass(frozen=True)
class Evenness:
    """How alike a run's steps are, in the unit of the values."""

    n_steps: int  # how many steps there are
    # over steps
    mean: float
    median: float
    # |mean - median| is more than 10 % of the mean, or fewer than half of the steps are within 10 % of the median
    is_uneven: bool
    is_median_nobodys: bool  # whether no step is within 10 % of the median
    # medians of the shorter and of the longer steps, where they are of two kinds; None else
    levels: tuple[float, float] | None
    n_long: int | None  # how many are longer; None without levels
    # every so many steps comes one of the rarer kind; None where they come irregularly
    period: int | None


def evenness(values: Float64) -> Evenness | None:
    """Judge the steps of one capture, in step order; None without a step."""
    if not values.size:
        return None
    mean, median = float(values.mean()), float(np.median(values))
    near = np.abs(values - median) <= _NEAR * abs(median)
    is_uneven = abs(mean - median) > _NEAR * abs(mean) or float(near.mean()) < _HALF
    is_long = levels_of(values)
    if is_long is not None and period_of(is_long) is None and levels_of(values, _GAP) is None:
        is_long = None
    levels = None
    if is_long is not None:
        levels = float(np.median(values[~is_long])), float(np.median(values[is_long]))
    return Evenness(
        n_steps=int(values.size),
        mean=mean,
        median=median,
        is_uneven=is_uneven,
        is_median_nobodys=not bool(near.any()),
        levels=levels,
        n_long=None if is_long is None else int(is_long.sum()),
        period=None if is_long is None else period_of(is_long),
    )


def levels_of(values: Float64, times: float = _REGULAR_GAP) -> Flags | None:
    """Return which steps are of the longer kind; None where there are not two."""
    ordered = np.sort(values)
    if ordered.size < 2 * _LEAST_OF_A_LEVEL:
        return None
    apart = np.diff(ordered)[_LEAST_OF_A_LEVEL - 1 : ordered.size - _LEAST_OF_A_LEVEL]
    at = int(np.argmax(apart)) + _LEAST_OF_A_LEVEL
    low, high = ordered[:at], ordered[at:]
    spread = np.sqrt((low.var() * low.size + high.var() * high.size) / ordered.size)
    gap = float(high[0] - low[-1])
    if gap <= times * spread:
        return None
    found: Flags = values >= high[0]
    return found


def period_of(is_long: Flags) -> int | None:
    """Return the distance of the steps of the rarer kind if it is always the same, from end to end."""
    rarer = is_long if 2 * int(is_long.sum()) <= is_long.size else ~is_long
    at = np.flatnonzero(rarer)
    apart = np.unique(np.diff(at))
    if apart.size != 1:
        return None
    period = int(apart[0])
    is_whole = period > 1 and at[0] < period and at[-1] + period >= is_long.size
    return period if is_whole else None
