"""Writing a Perfetto trace: track after track, batch after batch."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from nsyspipe.report.perfetto.packets import Packets, Values, shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from nsyspipe.model.types import Int64
    from nsyspipe.report.perfetto.packets import Slices


# Slices whose packets are held before they are written.
_BATCH = 16_384
# A thread's id must be no process's.
_FIRST_THREAD = 1_000_000


@dataclass(frozen=True)
class Track:
    """How a track is described.

    Attributes
    ----------
    parent
        Number of the track it stands under; None at the top.
    place
        Order among its siblings.
    about
        Longer text, shown on demand.
    process, is_thread
        The process's id, for a track that stands for it or for a thread of it.
    unit
        Of a counter; None for a track of slices.
    """

    name: str
    parent: int | None = None
    place: int = 0
    about: str | None = None
    process: int | None = None
    is_thread: bool = False
    unit: str | None = None


class TraceWriter:
    """Writes tracks one after the other; of their packets it holds one batch at most.

    Every track is a packet sequence of its own, with its own interned names. Its number is both its
    uuid and the id of its sequence.
    """

    def __init__(self, file: BinaryIO, shift_ns: int) -> None:
        self._file = file
        self._shift_ns = shift_ns
        self._n_tracks = 0
        self._packets = Packets()

    def write_order(self) -> None:
        """Let processes and threads stand in the order of their tracks, not of their names or ids."""
        kinds = self._packets.protos.TrackDescriptor
        root = {
            "uuid": 0,
            "process_ordering": kinds.PROCESS_ORDERING_EXPLICIT,
            "thread_ordering": kinds.THREAD_ORDERING_EXPLICIT,
        }
        self._file.write(self._packets.plain(track_descriptor=root))

    def write_track(self, track: Track) -> int:
        """Describe a track that has no slices of its own, and return its number."""
        self._n_tracks += 1
        number, name = self._n_tracks, shown(track.name)
        found: dict[str, object] = {"uuid": number, "sibling_order_rank": track.place}
        if track.parent is not None:
            found["parent_uuid"] = track.parent
        if track.about is not None:
            found["description"] = shown(track.about)
        if track.is_thread:
            thread = _FIRST_THREAD + number
            found["thread"] = {"pid": track.process, "tid": thread, "thread_name": name}
        elif track.process is not None:
            found["process"] = {"pid": track.process, "process_name": name}
        else:
            found["name"] = name
            found["child_ordering"] = self._packets.protos.TrackDescriptor.EXPLICIT
        if track.unit is not None:
            found["counter"] = {"unit_name": track.unit}
        self._file.write(self._packets.plain(track_descriptor=found))
        return number

    def write_slices(self, track: Track, slices: Slices) -> int:
        """Write a track with its slices and return its number; each slice tells its aligned start too."""
        number = self.write_track(track)
        slices = slices.compact()
        start = Values(slices.starts, np.ones(len(slices), np.bool_))
        names, coded = self._packets.interned(slices, {"start_ns": start, **slices.notes})
        self._file.write(self._packets.first(number, **names))
        self._write_events(number, slices, coded)
        return number

    def write_counter(self, track: Track, times: Int64, values: Int64) -> int:
        """Write a counter and return its track's number: the value from each time on, times in order."""
        number = self.write_track(track)
        self._file.write(self._packets.first(number))
        message, packet = self._packets.event(number, self._packets.protos.TrackEvent.TYPE_COUNTER)
        event = packet.track_event
        packets = []
        for time, value in zip(self._trace_time(times), values.tolist(), strict=True):
            packet.timestamp, event.counter_value = time, value
            packets.append(message.SerializeToString())
        self._file.write(b"".join(packets))
        return number

    def _trace_time(self, times: Int64) -> list[int]:
        found: list[int] = np.maximum(times + self._shift_ns, 0).tolist()
        return found

    def _write_events(self, number: int, slices: Slices, notes: Sequence[Values]) -> None:
        """Write begins and ends in order of time: what ends when another begins ends first."""
        kind = self._packets.protos.TrackEvent.TYPE_SLICE_END
        ending, end_packet = self._packets.event(number, kind)
        pens, pen_of = self._packets.pens(number, slices, notes)
        open_ends: list[int] = []
        for at in range(0, len(slices), _BATCH):
            rows = slice(at, at + _BATCH)
            packets = []
            for start, end, pen, name, values, flow in zip(
                self._trace_time(slices.starts[rows]),
                self._trace_time(slices.ends[rows]),
                pen_of[rows].tolist(),
                (slices.names.numbers[rows] + 1).tolist(),
                zip(*(column.numbers[rows].tolist() for column in notes), strict=True),
                _unsigned(slices.flows, rows),
                strict=False,  # no flows are zeros without end
            ):
                while open_ends and open_ends[-1] <= start:
                    end_packet.timestamp = open_ends.pop()
                    packets.append(ending.SerializeToString())
                packets.append(pens[pen].begin(start, name, flow, values))
                open_ends.append(end)
            self._file.write(b"".join(packets))
        while open_ends:
            end_packet.timestamp = open_ends.pop()
            self._file.write(ending.SerializeToString())


def _unsigned(flows: Values | None, rows: slice) -> Iterable[int]:
    """Return flow ids as the unsigned integers that the trace counts them by."""
    return itertools.repeat(0) if flows is None else flows.numbers[rows].view(np.uint64).tolist()
