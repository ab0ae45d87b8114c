"""How far the clocks of reports are apart, told by collectives, which end on all ranks at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Int64 = NDArray[np.int64]

__all__ = ["ALIGNING", "ClockOffset", "clock_offsets", "floor_median"]

# Collectives that no rank leaves before all have arrived.
ALIGNING = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")

_ENOUGH = 3
# Makes the median of absolute deviations an estimate of the standard deviation.
_MAD_SCALE = 1.4826


@dataclass(frozen=True)
class ClockOffset:
    """The correction of one report's clock.

    Attributes
    ----------
    offset_ns
        Subtracted from its times; 0 unless it exceeds the error.
    error_ns
        Spread of the differences it rests on; None when there are fewer than three.
    """

    offset_ns: int
    error_ns: int | None


def clock_offsets(
    matched: Sequence[Int64],
    ends: Int64,
    report: Int64,
    n_reports: int,
    *,
    is_one_clock: bool = False,
) -> list[ClockOffset]:
    """Return each report's offset: the median of (own end - median end over ranks).

    Parameters
    ----------
    matched
        Matrices of operations, one collective per row, as `matching.match` gives them; only
        collectives of `ALIGNING`.
    ends, report
        End of each operation (ns, on the clocks as they are) and the report it comes from.
    is_one_clock
        Whether one report holds all ranks: they share its clock.

    Returns
    -------
    list of ClockOffset
        One per report. The error is 1.4826 times the median absolute deviation, to the nearest ns.
        On one clock offset and error are 0.
    """
    if is_one_clock:
        return [ClockOffset(0, 0)] * n_reports
    differences, owner = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for rows in matched:
        own_end = ends[rows]
        middle = floor_median(np.sort(own_end, axis=1))
        differences.append((own_end - middle[:, np.newaxis]).ravel())
        owner.append(report[rows].ravel())
    difference, of_report = np.concatenate(differences), np.concatenate(owner)
    return [_offset(np.sort(difference[of_report == number])) for number in range(n_reports)]


def _offset(differences: Int64) -> ClockOffset:
    if differences.size < _ENOUGH:
        return ClockOffset(0, None)
    offset = int(floor_median(differences))
    spread = int(floor_median(np.sort(np.abs(differences - offset))))
    error = round(_MAD_SCALE * spread)
    return ClockOffset(offset if abs(offset) > error else 0, error)


def floor_median(ordered: Int64) -> Int64:
    """Return the median along the last axis of sorted values; of an even number the mean, floored."""
    size = ordered.shape[-1]
    low, high = ordered[..., (size - 1) // 2], ordered[..., size // 2]
    median: Int64 = low + (high - low) // 2
    return median
