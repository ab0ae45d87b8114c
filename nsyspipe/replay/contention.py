"""By how much communication slows the work beside it: as measured in the capture, and what is seen elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.compute as pc

from nsyspipe.intervals import union
from nsyspipe.metrics.slowdown import compared_share

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from nsyspipe.replay.markers import Captured, RankMarkers
    from nsyspipe.replay.timelines import RankTimeline

    Int64 = NDArray[np.int64]
    Float = NDArray[np.float64]

__all__ = ["Compared", "Contention", "compared_kernels", "measured_contention"]

_ENOUGH_GAPS = 100
# What is longer is a pause and no launch to launch.
_LONGEST_GAP_NS = 100_000


@dataclass(frozen=True)
class Compared:
    """The kernels beside communication that have equal ones without it (`metrics.slowdown`), of all ranks.

    Attributes
    ----------
    slowdown
        c of them together; None where there are none.
    share
        Their share of all kernel time beside communication.
    """

    slowdown: float | None
    share: float


@dataclass(frozen=True)
class Contention:
    """What the capture says of work beside communication.

    Attributes
    ----------
    compared
        Kernels with equal ones without communication.
    delay_ns
        How much later an operation begins after the one before it than without communication; None where too few did.
    free_gap_ns
        That time without communication.
    covered_share
        Share of all work that was beside communication.
    covered_ns, n_covered
        That work, and the operations that it began.
    """

    compared: Compared
    delay_ns: float | None
    free_gap_ns: float
    covered_share: float
    covered_ns: float
    n_covered: float


def compared_kernels(kernels: pa.Table) -> Compared:
    """Return what `schema.KERNEL_COSTS` says of all kernels together, the same that the finding says."""
    slowed, free = (pc.sum(kernels[name]).as_py() or 0 for name in ("slowed_ns", "free_ns"))
    return Compared(slowed / free - 1, compared_share(kernels)) if free else Compared(None, 0.0)


def measured_contention(captured: Captured, compared: Compared) -> Contention:
    """Add to the compared kernels how much later operations begin beside communication.

    Of operations of the main stream that were launched before the one before them ended and that wait for no
    collective: mean time since that end, beside communication less without.
    """
    pairs = list(zip(captured.timelines, captured.ranks, strict=True))
    gaps = [_gaps(*one) for one in pairs]
    free, beside = (np.concatenate([one[at] for one in gaps]) for at in (0, 1))
    work, covered, _, n_covered = (
        sum(one) for one in zip(*(_worked(*one) for one in pairs), strict=True)
    )
    is_enough = min(free.size, beside.size) >= _ENOUGH_GAPS
    return Contention(
        compared=compared,
        delay_ns=float(beside.mean() - free.mean()) if is_enough else None,
        free_gap_ns=float(free.mean()) if free.size else 0.0,
        covered_share=covered / max(work, 1.0),
        covered_ns=covered,
        n_covered=n_covered,
    )


def _worked(rank: RankTimeline, markers: RankMarkers) -> tuple[float, float, float, float]:
    """Return work, and how much of it beside communication, from the rank's first operation to its last."""
    if not rank.start.size:
        return 0.0, 0.0, 0.0, 0.0
    edges = markers.places(np.array([rank.start[0], rank.end.max()]))
    work, covered, begun, begun_beside = (float(one[1] - one[0]) for one in edges)
    return work, covered, begun, begun_beside


def _gaps(rank: RankTimeline, markers: RankMarkers) -> tuple[Float, Float]:
    """Return the times between operations of the main stream, without communication and beside it."""
    if rank.start.size <= 1:
        return np.empty(0), np.empty(0)
    busy = union(rank.collectives.start, rank.collectives.end)
    before = np.maximum.accumulate(rank.end)[:-1]
    start = rank.start[1:]
    gap = start - before
    waits = np.zeros(rank.start.size + 1, np.bool_)
    waits[markers.join] = True
    own = (rank.launch[1:] < before) & (gap >= 0) & (gap < _LONGEST_GAP_NS) & ~waits[1:-1]
    covered = busy.lengths(before - 1, start)
    length = gap + 1
    is_free, is_beside = own & (covered == 0), own & (covered == length)
    return gap[is_free].astype(np.float64), gap[is_beside].astype(np.float64)
