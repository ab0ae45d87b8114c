"""What the devices ran of what each host range launched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nsyspipe.attribution import NEVER, Slices

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Int64 = NDArray[np.int64]

__all__ = ["LaunchedIn", "launched_in"]


@dataclass(frozen=True)
class LaunchedIn:
    """One value per host range.

    Attributes
    ----------
    counts
        Operations launched inside.
    starts, ends
        First start and last end of those, report time, ns; meaningless without any.
    """

    counts: Int64
    starts: Int64
    ends: Int64


def launched_in(starts: Int64, ends: Int64, *operations: tuple[Int64, Int64, Int64]) -> LaunchedIn:
    """Measure what ranges launched.

    Parameters
    ----------
    starts, ends
        The ranges, host time, ns; any order.
    operations
        Launch (sorted, `attribution.NEVER` for none), start and end of operations, one tuple per sort of them.
    """
    found = LaunchedIn(
        np.zeros(starts.size, np.int64),
        np.full(starts.size, NEVER),
        np.full(starts.size, -NEVER),
    )
    for launch, begin, finish in operations:
        slices = Slices(np.searchsorted(launch, starts), np.searchsorted(launch, ends))
        some = np.flatnonzero(slices.counts)
        if not some.size:
            continue
        own = Slices(slices.first[some], slices.last[some])
        found.counts[some] += own.counts
        found.starts[some] = np.minimum(found.starts[some], own.minimum(begin))
        found.ends[some] = np.maximum(found.ends[some], own.maximum(finish))
    return found
