"""Steps of two kinds that come regularly (every fifth one slow, two in turn): no chance is in which kind comes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from nsyspipe.statistics.evenness import levels_of, period_of
from nsyspipe.statistics.interval import Interval
from nsyspipe.statistics.series import MeanSeries

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nsyspipe.statistics.captures import Captures
    from nsyspipe.statistics.series import FloatArray, Series

__all__ = ["MeanInterval", "mean_interval"]

# What comes by chance looks regular too, where it comes twice; unless it does so on both sides, so often is believed.
_SURE = 4


@dataclass(frozen=True)
class MeanInterval:
    """The interval of the difference of two means, and what broken periods add to it."""

    interval: Interval
    broken: float

    @property
    def half(self) -> float:
        """Half-width."""
        return self.interval.half + self.broken


@dataclass(frozen=True, eq=False)
class _Regular(MeanSeries):
    """Steps whose kind is no chance: deviations are from the mean of their kind, which takes a degree of freedom more."""

    @cached_property
    def deviations(self) -> FloatArray:
        is_long = _kinds(self)
        own = np.where(is_long, self.values[is_long].mean(), self.values[~is_long].mean())
        apart: FloatArray = (self.values - own) * ((self.n - 1) / max(self.n - 2, 1)) ** 0.5
        return apart

    @cached_property
    def broken(self) -> float:
        """How far the mean is from that of whole periods."""
        is_long = _kinds(self)
        long, short = float(self.values[is_long].mean()), float(self.values[~is_long].mean())
        share = 1 / _period(self)
        whole = share if 2 * int(is_long.sum()) <= self.n else 1 - share
        return (float(is_long.mean()) - whole) * (long - short)


def mean_interval(one: Captures, other: Captures, confidence: float) -> MeanInterval:
    """Return the interval of the difference of two means, other less one; regular patterns are no spread.

    A pattern counts where all captures of both sides have the same one, or where all of one side have
    it four times or more, and no capture of the other has two levels.
    """
    sides = [side.of_kind(MeanSeries) for side in (one, other)]
    found = [{_period(series) for series in side.series} for side in sides]
    is_shared = found[0] == found[1] and len(found[0]) == 1 and 0 not in found[0]
    regular = []
    for at, side in enumerate(sides):
        is_alone = len(found[at]) == 1 and min(found[at]) > 0 and all(map(_is_sure, side.series))
        is_even = all(levels_of(series.values) is None for series in sides[1 - at].series)
        regular.append(is_shared or (is_alone and is_even))
    sides = [
        side.of_kind(_Regular) if is_regular else side
        for side, is_regular in zip(sides, regular, strict=True)
    ]
    return MeanInterval(
        Interval(sides[0], sides[1], confidence), abs(_broken(sides[1]) - _broken(sides[0]))
    )


def _broken(side: Captures) -> float:
    parts = [series.broken for series in side.series if isinstance(series, _Regular)]
    return sum(parts) / len(parts) if parts else 0.0


def _kinds(series: Series) -> NDArray[np.bool_]:
    is_long = levels_of(series.values)
    return np.zeros(series.n, np.bool_) if is_long is None else is_long


def _period(series: Series) -> int:
    """Return the period of a capture's pattern; 0 without one that comes twice and more."""
    is_long = levels_of(series.values)
    period = None if is_long is None else period_of(is_long)
    return period if period and 2 * period <= series.n else 0


def _is_sure(series: Series) -> bool:
    is_long = _kinds(series)
    return min(int(is_long.sum()), int((~is_long).sum())) >= _SURE
