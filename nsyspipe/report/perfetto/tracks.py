"""What stands below a rank in a trace: collectives, exposed communication, waiting, how busy devices are, operations."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nsyspipe.analysis.breakdown import exposed_comm
from nsyspipe.analysis.collectives import waited_until
from nsyspipe.analysis.intervals import IntervalSet, run_starts, union
from nsyspipe.report.perfetto.packets import Slices, Values, disjoint_lanes, values_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nsyspipe.model.types import Int64


_NOTES = (
    "comm_id", "datatype", "algorithm", "message_bytes", "n_ranks", "arrival_skew_ns", "wait_ns", "transfer_ns",
    "last_rank",
)  # fmt: skip
# Collectives of a step are fewer than this.
_SEQ_BITS = 24
_NOBODY = -1


def with_last_rank(collectives: pa.Table) -> pa.Table:
    """Add which rank the others waited for: null where nobody came last alone, or nothing is matched."""
    key = flow_ids(collectives["step"].to_numpy(), collectives["seq"].to_numpy())
    late = pc.greater(pc.fill_null(collectives["late_by_ns"], 0), 0)
    is_late = late.to_numpy() if len(late) else np.zeros(0, np.bool_)
    distinct, place = np.unique(key, return_inverse=True)
    last = np.full(distinct.size, _NOBODY)
    last[place[is_late]] = collectives["rank"].to_numpy()[is_late]
    found = last[place]
    is_matched = collectives["is_matched"].to_numpy() if found.size else np.zeros(0, np.bool_)
    unknown = (found == _NOBODY) | ~is_matched
    return collectives.append_column("last_rank", pa.array(found, pa.int64(), mask=unknown))


def flow_ids(step: Int64, seq: Int64) -> Int64:
    """Return the number of the arrows that link the ranks of a collective, as its 64 bits.

    Of one run they differ, as long as steps differ by less than 2**40.
    """
    found: Int64 = (step << _SEQ_BITS) + seq + 1
    return found


class CollectiveDetails:
    """The collectives of one rank, to be looked up by step and place in it."""

    def __init__(self, collectives: pa.Table) -> None:
        key = flow_ids(collectives["step"].to_numpy(), collectives["seq"].to_numpy())
        self._order = np.argsort(key, kind="stable")
        self._keys = key[self._order]
        self._notes = {name: values_of(collectives[name]) for name in _NOTES}
        is_matched = collectives["is_matched"].to_numpy()
        self._flows = Values(key, is_matched)

    def rows_of(self, step: Values, seq: Values) -> Int64:
        """Return the row of each operation; -1 where it has none."""
        found = np.full(step.numbers.size, -1)
        asked = np.flatnonzero(step.is_known & seq.is_known)
        if not asked.size or not self._keys.size:
            return found
        key = flow_ids(step.numbers[asked], seq.numbers[asked])
        at = np.minimum(np.searchsorted(self._keys, key), self._keys.size - 1)
        hit = self._keys[at] == key
        found[asked[hit]] = self._order[at[hit]]
        return found

    def notes(self, rows: Int64) -> dict[str, Values]:
        """Return what is told of each operation."""
        return {name: values.take(rows) for name, values in self._notes.items()}

    def flows(self, rows: Int64) -> Values:
        """Return the flow of each operation; unknown where it is not matched."""
        return self._flows.take(rows)


# So many bins show the shape of one step; of a long run they are as many as one can tell apart.
_BINS_PER_STEP = 200
_MOST_BINS = 4_000


def windows(steps: pa.Table, figure: str) -> IntervalSet:
    """Return the time of one rank's windows in which a figure is known; windows that touch are one."""
    known = steps.filter(pc.is_valid(steps[figure]))
    return union(known["start_ns"].to_numpy(), known["end_ns"].to_numpy())


def busy_time(events: pa.Table, category: str) -> IntervalSet:
    """Return the union of one rank's operations of a category, aligned time."""
    rows = events.filter(pc.equal(events["category"], category))
    return union(rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy())


def exposed_time(compute: IntervalSet, comm: IntervalSet, inside: IntervalSet) -> IntervalSet:
    r"""Return ``(M \ C) n windows``: its length in a window is the step's ``exposed_comm_ns``."""
    return exposed_comm(comm.intersect(inside), compute)


def waiting_time(collectives: pa.Table, inside: IntervalSet) -> IntervalSet:
    """Return ``W n windows``, W = the union of [own start, min(last start, own end)).

    Its length in a window is the step's ``wait_ns``.
    """
    matched = collectives.filter(collectives["is_matched"])
    matched = matched.filter(pc.is_valid(matched["wait_ns"]))
    starts, ends, waits = (matched[name].to_numpy() for name in ("start_ns", "end_ns", "wait_ns"))
    return union(starts, waited_until(starts, ends, waits)).intersect(inside)


def bin_edges(steps: pa.Table) -> Int64:
    """Return the edges of the counters' bins, the same for all ranks, ns.

    Bins are equally long, a 200th of the mean window or longer: at most 4000 cover all windows.

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


_STREAM_NOTES = ("step", "phase", "launch_ns", "correlation_id", "bytes", "collective", "seq")
_NOT_KNOWN = np.iinfo(np.int64).max  # stands after all ids


class Operations:
    """The operations of one rank, to be drawn."""

    def __init__(self, events: pa.Table, details: CollectiveDetails) -> None:
        self._starts: Int64 = events["start_ns"].to_numpy()
        self._ends: Int64 = events["end_ns"].to_numpy()
        self._device, self._stream = (
            pc.fill_null(events[name], _NOT_KNOWN).to_numpy() for name in ("device_id", "stream_id")
        )
        self._names = values_of(events["name"])
        self._category = values_of(events["category"])
        self._notes = {name: values_of(events[name]) for name in _STREAM_NOTES}
        self._details = details
        self._collective = details.rows_of(self._notes["step"], self._notes["seq"])

    def lanes(self) -> Iterator[tuple[str, list[Int64]]]:
        """Yield each stream in order of (device, stream): its name, and the rows of each of its tracks.

        On a track operations stand in order of (start, end, correlation id) and none overlaps another.
        """
        order = np.lexsort((self._stream, self._device))
        edges = np.union1d(*(run_starts(ids[order]) for ids in (self._device, self._stream)))
        for found in np.split(order, edges[1:]) if order.size else ():
            rows = np.sort(found)
            ties = self._notes["correlation_id"].numbers[rows]
            lanes = disjoint_lanes(self._starts[rows], self._ends[rows], ties)
            device, stream = self._device[rows[0]], self._stream[rows[0]]
            yield (
                f"{_named('device', device)} {_named('stream', stream)}",
                [rows[lane] for lane in lanes],
            )

    def slices(self, rows: Int64) -> Slices:
        """Return some operations; communication tells of its collective and is linked to the other ranks."""
        notes = {name: values.take(rows) for name, values in self._notes.items()}
        flows = None
        collective = self._collective[rows]
        if (collective >= 0).any():
            flows = self._details.flows(collective)
            notes |= self._details.notes(collective)
        names, category = self._names.take(rows), self._category.take(rows)
        return Slices(self._starts[rows], self._ends[rows], names, category, notes, flows)


def _named(kind: str, number: int) -> str:
    return f"unknown {kind}" if number == _NOT_KNOWN else f"{kind} {number}"
