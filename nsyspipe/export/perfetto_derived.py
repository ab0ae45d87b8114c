"""The derived tracks of one rank: exposed communication, waiting, and how busy its devices are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow.compute as pc

from nsyspipe.intervals import IntervalSet, union

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    Int64 = NDArray[np.int64]

__all__ = ["bin_edges", "busy_percent", "busy_time", "exposed_time", "waiting_time", "windows"]

# So many bins show the shape of one step; of a long run they are as many as one can tell apart.
_BINS_PER_STEP = 200
_MOST_BINS = 4_000


def windows(steps: pa.Table, figure: str) -> IntervalSet:
    """Return the time of one rank's windows in which a figure is known; windows that touch are one.

    Parameters
    ----------
    steps
        Rows of `schema.STEPS` of one rank.
    figure
        A column of it.
    """
    known = steps.filter(pc.is_valid(steps[figure]))
    return union(known["start_ns"].to_numpy(), known["end_ns"].to_numpy())


def busy_time(events: pa.Table, category: str) -> IntervalSet:
    """Return the union of one rank's operations of a category, aligned time."""
    rows = events.filter(pc.equal(events["category"], category))
    return union(rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy())


def exposed_time(compute: IntervalSet, comm: IntervalSet, inside: IntervalSet) -> IntervalSet:
    r"""Return ``(M \ C) n windows``: its length in a window is the step's ``exposed_comm_ns``."""
    return comm.intersect(inside).intersect(compute.complement())


def waiting_time(collectives: pa.Table, inside: IntervalSet) -> IntervalSet:
    """Return ``W n windows``, W = the union of [own start, min(last start, own end)).

    Its length in a window is the step's ``wait_ns``.

    Parameters
    ----------
    collectives
        Rows of `schema.COLLECTIVES` of one rank, of all steps: one may reach into the next window.
    """
    matched = collectives.filter(collectives["is_matched"])
    matched = matched.filter(pc.is_valid(matched["wait_ns"]))
    starts = matched["start_ns"].to_numpy()
    last_starts = starts + matched["wait_ns"].to_numpy()
    waits = union(starts, np.minimum(last_starts, matched["end_ns"].to_numpy()))
    return waits.intersect(inside)


def bin_edges(steps: pa.Table) -> Int64:
    """Return the edges of the counters' bins, the same for all ranks, ns.

    Bins are equally long, a 200th of the mean window or longer: at most 4000 cover all windows.

    Parameters
    ----------
    steps
        Rows of `schema.STEPS` of all ranks.

    Returns
    -------
    numpy.ndarray
        One more than bins; empty without windows.
    """
    if not steps.num_rows:
        return np.empty(0, np.int64)
    first, last = pc.min(steps["start_ns"]).as_py(), pc.max(steps["end_ns"]).as_py()
    n_steps = pc.count_distinct(steps["step"]).as_py()
    n_most = min(_BINS_PER_STEP * n_steps, _MOST_BINS)
    width = max(-(-(last - first) // n_most), 1)
    n_bins = -(-(last - first) // width)
    edges: Int64 = first + width * np.arange(n_bins + 1, dtype=np.int64)
    return edges


def busy_percent(busy: IntervalSet, inside: IntervalSet, edges: Int64) -> tuple[Int64, Int64]:
    """Return how busy a rank is in each bin, without repeating equal values.

    Parameters
    ----------
    busy
        When it is busy.
    inside
        Its windows: a bin counts as far as it lies in them, and 0 stands where none does.
    edges
        As `bin_edges` gives them.

    Returns
    -------
    times, percents
        From each time on that value holds; percent to the nearest whole one. The last one is 0.
    """
    if not len(inside):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    edges = edges[: np.searchsorted(edges, inside.ends[-1]) + 1]
    starts, ends = edges[:-1], edges[1:]
    length = inside.lengths(starts, ends)
    covered = busy.intersect(inside).lengths(starts, ends)
    percent = (200 * covered + length) // np.maximum(2 * length, 1)
    percent, times = np.append(percent, 0), edges
    is_new = np.ones(times.size, np.bool_)
    is_new[1:] = percent[1:] != percent[:-1]
    return times[is_new], percent[is_new]
