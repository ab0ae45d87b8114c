"""Communication of one step reduced to bars: when it runs, where no compute runs beside it, where it waits."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.compute as pc

from nsyspipe.intervals import union
from nsyspipe.metrics.bars import (
    NO_SEQ,
    Bars,
    Pieces,
    coded,
    joined,
    painted_pieces,
    pieces_outside,
    times,
)

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["comm_lanes"]


def comm_lanes(
    events: pa.Table,
    waiting: pa.Table,
    window: tuple[int, int],
    max_bars: int,
    *,
    is_wait_known: bool,
) -> dict[str, tuple[Bars, pa.Array]]:
    """Return the lanes ``comm``, ``exposed`` and ``wait`` of one rank, each as bars and the texts of their names.

    All sums are taken from the operations, before any bars are joined.

    Parameters
    ----------
    events
        `schema.EVENTS` of the rank.
    waiting
        Of its matched rows of `schema.COLLECTIVES` at least ``start_ns``, ``end_ns``, ``wait_ns``, ``collective``,
        ``seq``.
    window
        What all is clipped to.
    max_bars
        Most bars of a lane.
    is_wait_known
        Whether the step has a ``wait_ns``; without it the bars of ``comm`` have none.
    """
    comm, names = _comm(events, window)
    compute = events.filter(pc.equal(events["category"], "compute"))
    exposed = pieces_outside(comm, union(*times(compute)))
    waits, wait_names = _waits(waiting, window)
    bars = joined(comm, max_bars)
    waited = union(waits.starts, waits.ends).intersect(union(comm.starts, comm.ends))
    # All communication between start and end of a bar is its own: bars of comm do not overlap.
    bars = replace(
        bars,
        exposed_ns=union(exposed.starts, exposed.ends).lengths(bars.starts, bars.ends),
        wait_ns=waited.lengths(bars.starts, bars.ends) if is_wait_known else None,
    )
    return {
        "comm": (bars, names),
        "exposed": (joined(exposed, max_bars), names),
        "wait": (joined(waits, max_bars), wait_names),
    }


def _comm(events: pa.Table, window: tuple[int, int]) -> tuple[Pieces, pa.Array]:
    own = events.filter(pc.equal(events["category"], "comm"))
    codes, words = coded(own["collective"])
    seqs = pc.fill_null(own["seq"], NO_SEQ).to_numpy()
    return painted_pieces(*times(own), codes, seqs, window), words


def _waits(waiting: pa.Table, window: tuple[int, int]) -> tuple[Pieces, pa.Array]:
    starts, ends = times(waiting)
    until = np.minimum(ends, starts + waiting["wait_ns"].to_numpy())
    codes, words = coded(waiting["collective"])
    return painted_pieces(starts, until, codes, waiting["seq"].to_numpy(), window), words
