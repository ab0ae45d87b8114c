"""The copies that DDP makes from its buckets to the gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nsyspipe.replay.markers import Captured
    from nsyspipe.replay.timelines import RankTimeline

    Int64 = NDArray[np.int64]
    Float = NDArray[np.float64]

__all__ = ["GradientCopies", "gradient_copies"]

_MOST_COPIES = 20_000


@dataclass(frozen=True)
class GradientCopies:
    """The copies of one step and rank from the buckets to the gradients, in that order.

    Attributes
    ----------
    rows
        Places among the rank's operations.
    n_bytes
        Of each; of a copy that is a kernel, what its length says.
    """

    rows: Int64
    n_bytes: Float


def gradient_copies(captured: Captured, step: int, rank: int) -> GradientCopies:
    """Find the copies that DDP makes without bucket view: those that follow the wait for the collectives.

    They are the copies in a row, device to device or kernels named so, from the first copy that waits for a collective
    of each burst of the step on.
    """
    program, timeline = captured.program, captured.timelines[rank]
    own = np.flatnonzero((program.step == step) & program.is_gradient)
    joins = captured.ranks[rank].join[own]
    bursts = captured.burst[own]
    found = [_row(timeline, joins[bursts == one]) for one in np.unique(bursts).tolist()]
    rows = np.unique(np.concatenate(found)) if found else np.empty(0, np.int64)
    if not rows.size:
        return GradientCopies(rows, np.empty(0))
    is_copy = timeline.is_copy[rows]
    lengths = (timeline.end - timeline.start)[rows].astype(np.float64)
    n_bytes = timeline.n_bytes[rows].astype(np.float64)
    per_ns = n_bytes[is_copy].sum() / max(lengths[is_copy].sum(), 1.0)
    return GradientCopies(rows, np.where(is_copy, n_bytes, lengths * per_ns))


def _row(timeline: RankTimeline, joins: Int64) -> Int64:
    """Return the copies in a row that follow the waits for one burst; none where there are kernels alone."""
    nothing = np.empty(0, np.int64)
    waiting = np.unique(joins)
    waiting = waiting[waiting < timeline.start.size]
    waiting = waiting[timeline.is_copy[waiting]]
    if not waiting.size:
        return nothing
    first = int(waiting[0])
    rows = np.arange(first, min(first + _MOST_COPIES, timeline.start.size))
    is_named_so = np.array(["copy" in name.lower() for name in timeline.names], np.bool_)
    stops = np.flatnonzero(~(timeline.is_copy[rows] | is_named_so[timeline.name[rows]]))
    return rows[: int(stops[0])] if stops.size else rows
