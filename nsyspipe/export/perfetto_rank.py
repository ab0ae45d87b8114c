"""The tracks of one rank: its steps with all that is measured in them, and its streams."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nsyspipe.export import perfetto_derived as derived
from nsyspipe.export.perfetto_collectives import CollectiveDetails
from nsyspipe.export.perfetto_slices import (
    Slices,
    disjoint_lanes,
    nested_lanes,
    same_text,
    values_of,
)
from nsyspipe.export.perfetto_streams import Operations
from nsyspipe.export.perfetto_writer import Track

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from nsyspipe.export.perfetto_writer import TraceWriter
    from nsyspipe.intervals import IntervalSet

    Int64 = NDArray[np.int64]

__all__ = ["RankTracks", "process_track"]

_STEP_NOTES = (
    "step",
    "wall_ns",
    "compute_ns",
    "comm_ns",
    "exposed_comm_ns",
    "exposed_memory_ns",
    "idle_ns",
    "overlap_compute_ns",
    "overlap_backward_ns",
    "wait_ns",
    "transfer_ns",
    "n_collectives",
    "message_bytes",
    "is_complete",
    "in_summary",
)
_RANGE_NOTES = ("step", "n_operations")
# Tracks below the steps, from top to bottom; each may need more than one.
_DEVICE_PHASES, _EXPOSED, _WAITING, _COMPUTE, _COMM, _HOST = range(0, 6_000, 1_000)


def process_track(rank: Mapping[str, object], place: int) -> Track:
    """Describe the track of a rank.

    Processes of several hosts may have the same id, so the one in the trace is the rank's place from 1.

    Parameters
    ----------
    rank
        A row of `schema.RANKS`.
    place
        The rank's place in ascending order.
    """
    parts = (f"rank {rank['rank']}", rank["gpu_name"], rank["host"])
    about = (
        f"report {rank['report']}, process {rank['pid']}, devices {rank['device_ids']}; report time "
        f"+ {rank['clock_shift_ns']} ns = aligned time, of which clock offset {rank['clock_offset_ns']} ns"
    )
    name = " · ".join(str(part) for part in parts if part is not None)
    return Track(name, place=place, about=about, process=place + 1)


@dataclass(frozen=True)
class RankTracks:
    """Writes what stands below the track of a rank.

    Attributes
    ----------
    parent, process
        The number of that track, and its process's id.
    steps
        Rows of `schema.STEPS` of this rank that are shown, in order of start.
    step_names
        What to call them.
    collectives
        All rows of this rank, as `perfetto_collectives.with_last_rank` gives them.
    edges
        Of the counters' bins.
    """

    writer: TraceWriter
    parent: int
    process: int | None
    steps: pa.Table
    step_names: pa.ChunkedArray
    collectives: pa.Table
    edges: Int64

    def write(self, events: pa.Table, ranges: pa.Table) -> None:
        """Write all tracks.

        Parameters
        ----------
        events, ranges
            `schema.EVENTS` and `schema.PHASE_RANGES` of this rank.
        """
        about = "windows on the device: from a step's first kernel to the next step's first"
        group = self.writer.write_slices(Track("steps", self.parent, about=about), self._windows())
        self._write_ranges(group, ranges)
        self._write_derived(group, events)
        operations = Operations(events, CollectiveDetails(self.collectives))
        place = 0
        for name, lanes in operations.lanes():
            thread = Track(name, self.parent, place, process=self.process, is_thread=True)
            for track, rows in _numbered(thread, lanes):
                self.writer.write_slices(track, operations.slices(rows))
            place += len(lanes)

    def _windows(self) -> Slices:
        starts, ends = _times(self.steps, "start_ns", "end_ns")
        notes = {name: values_of(self.steps[name]) for name in _STEP_NOTES}
        names = values_of(self.step_names)
        return Slices(starts, ends, names, same_text("step", starts.size), notes)

    def _write_ranges(self, group: int, ranges: pa.Table) -> None:
        """Write the ranges of the host, and from where to where the device ran what was launched in phases."""
        step_names = pc.binary_join_element_wise("step", ranges["step"].cast(pa.string()), " ")
        names = values_of(pc.coalesce(ranges["phase"], step_names))
        notes = {name: values_of(ranges[name]) for name in _RANGE_NOTES}
        starts, ends = _times(ranges, "start_ns", "end_ns")
        is_phase = values_of(ranges["phase"]).is_known
        host = Slices(starts, ends, names, same_text("host", starts.size), notes)
        lanes = nested_lanes(starts, ends, is_phase.astype(np.int64))
        self._write_lanes(Track("phases on host", group, _HOST), host, lanes)

        first, last = (values_of(ranges[name]) for name in ("device_start_ns", "device_end_ns"))
        rows = np.flatnonzero(is_phase & first.is_known & last.is_known)
        category = same_text("phase", starts.size)
        device = Slices(first.numbers, last.numbers, names, category, notes)
        lanes = [rows[lane] for lane in disjoint_lanes(device.starts[rows], device.ends[rows])]
        about = "from the start of the first operation launched in it to the end of the last"
        self._write_lanes(Track("phases on device", group, _DEVICE_PHASES, about), device, lanes)

    def _write_lanes(self, track: Track, slices: Slices, lanes: list[Int64]) -> None:
        for lane, rows in _numbered(track, lanes):
            self.writer.write_slices(lane, slices.take(rows))

    def _write_derived(self, group: int, events: pa.Table) -> None:
        """Write exposed communication, waiting and the counters, each where it is known.

        A track without slices is a true zero; what was not recorded has no track.
        """
        compute, comm = (derived.busy_time(events, category) for category in ("compute", "comm"))
        inside = derived.windows(self.steps, "exposed_comm_ns")
        if len(inside):
            about = "communication beside no computation"
            track = Track("exposed communication", group, _EXPOSED, about)
            self._write_times(track, derived.exposed_time(compute, comm, inside))
        inside = derived.windows(self.steps, "wait_ns")
        if len(inside):
            about = "communication before the last rank of the collective was there"
            track = Track("waiting in communication", group, _WAITING, about)
            self._write_times(track, derived.waiting_time(self.collectives, inside))
        self._write_busy(Track("compute busy", group, _COMPUTE), compute, "compute_ns")
        self._write_busy(Track("communication busy", group, _COMM), comm, "comm_ns")

    def _write_times(self, track: Track, times: IntervalSet) -> None:
        (starts,) = _times(self.steps, "start_ns")
        at = np.searchsorted(starts, times.starts, side="right") - 1
        notes = {"step": values_of(self.steps["step"]).take(at)}
        names, category = (same_text(text, len(times)) for text in (track.name, "derived"))
        self.writer.write_slices(track, Slices(times.starts, times.ends, names, category, notes))

    def _write_busy(self, track: Track, busy: IntervalSet, figure: str) -> None:
        inside = derived.windows(self.steps, figure)
        if len(inside):
            about = f"share of each {self.edges[1] - self.edges[0]} ns"
            times, percents = derived.busy_percent(busy, inside, self.edges)
            self.writer.write_counter(replace(track, about=about, unit="%"), times, percents)


def _times(table: pa.Table, *names: str) -> tuple[Int64, ...]:
    return tuple(table[name].to_numpy() for name in names)


def _numbered(track: Track, lanes: list[Int64]) -> list[tuple[Track, Int64]]:
    """Return a track for each lane: the first has its own name, further ones a number behind it."""
    return [
        (
            replace(
                track,
                name=f"{track.name} ({number + 1})" if number else track.name,
                place=track.place + number,
            ),
            rows,
        )
        for number, rows in enumerate(lanes)
    ]
