"""The operations of one rank as slices: a track for each stream, more where operations overlap on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow.compute as pc

from nsyspipe.export.perfetto_slices import Slices, disjoint_lanes, values_of
from nsyspipe.value_runs import run_starts

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from numpy.typing import NDArray

    from nsyspipe.export.perfetto_collectives import CollectiveDetails

    Int64 = NDArray[np.int64]

__all__ = ["Operations"]

_NOTES = ("step", "phase", "launch_ns", "correlation_id", "bytes", "collective", "seq")
_NOT_KNOWN = np.iinfo(np.int64).max  # stands after all ids


class Operations:
    """The operations of one rank, to be drawn.

    Parameters
    ----------
    events
        `schema.EVENTS` of the rank.
    details
        What is known of its collectives.
    """

    def __init__(self, events: pa.Table, details: CollectiveDetails) -> None:
        self._starts: Int64 = events["start_ns"].to_numpy()
        self._ends: Int64 = events["end_ns"].to_numpy()
        self._device, self._stream = (
            pc.fill_null(events[name], _NOT_KNOWN).to_numpy() for name in ("device_id", "stream_id")
        )
        self._names = values_of(events["name"])
        self._category = values_of(events["category"])
        self._notes = {name: values_of(events[name]) for name in _NOTES}
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
