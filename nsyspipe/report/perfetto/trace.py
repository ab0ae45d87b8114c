"""A run as a Perfetto trace: a process track per rank on one clock, with steps, derived tracks and streams."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nsyspipe.report.perfetto import tracks as derived
from nsyspipe.report.perfetto.packets import (
    Packets,
    Slices,
    TraceWriter,
    Track,
    Values,
    disjoint_lanes,
    nested_lanes,
    same_text,
    shown,
    values_of,
)
from nsyspipe.report.perfetto.tracks import CollectiveDetails, Operations, bin_edges, with_last_rank
from nsyspipe.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from nsyspipe.analysis.intervals import IntervalSet
    from nsyspipe.model.types import Int64
    from nsyspipe.run.run import Run, RunHeader


_STEP_NOTES = (
    "step", "wall_ns", "compute_ns", "comm_ns", "exposed_comm_ns", "exposed_memory_ns", "idle_ns",
    "overlap_compute_ns", "overlap_backward_ns", "wait_ns", "transfer_ns", "n_collectives", "message_bytes",
    "is_complete", "in_summary",
)  # fmt: skip
_RANGE_NOTES = ("step", "n_operations")
# Tracks below the steps, from top to bottom; each may need more than one.
_DEVICE_PHASES, _EXPOSED, _WAITING, _COMPUTE, _COMM, _HOST = range(0, 6_000, 1_000)


def process_track(rank: Mapping[str, object], place: int) -> Track:
    """Describe the track of a rank.

    Processes of several hosts may have the same id, so the one in the trace is the rank's place from 1.
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
    """Writes what stands below the track of a rank."""

    writer: TraceWriter
    # the number of that track, and its process's id
    parent: int
    process: int | None
    steps: pa.Table  # rows of `schema.STEPS` of this rank that are shown, in order of start
    step_names: pa.ChunkedArray  # what to call them
    collectives: pa.Table  # all rows of this rank, as `tracks.with_last_rank` gives them
    edges: Int64  # of the counters' bins

    def write(self, events: pa.Table, ranges: pa.Table) -> None:
        """Write all tracks."""
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


_HEAD = "nsyspipe run_id="
_NS_PER_S = 10**9


def perfetto(
    run: Run,
    file: BinaryIO,
    *,
    steps: tuple[int, int] | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> None:
    """Write a run as a Perfetto trace; see `write_trace`."""
    table = run.steps()
    if steps is not None:
        first, last = steps
        number = table["step"]
        table = table.filter(pc.and_(pc.greater_equal(number, first), pc.less_equal(number, last)))
    write_trace(
        file,
        header=run.header,
        ranks=run.ranks,
        steps=table,
        step_family=run.step_family,
        collectives=run.collectives(),
        operations=_counted(run, steps, on_progress),
    )


def _counted(
    run: Run, steps: tuple[int, int] | None, on_progress: Callable[[int, int], None] | None
) -> Iterator[tuple[int, pa.Table, pa.Table]]:
    n_ranks = run.ranks.num_rows
    for n_done, found in enumerate(run.operations(steps), start=1):
        if on_progress:
            on_progress(n_done, n_ranks)
        yield found


def write_trace(
    file: BinaryIO,
    *,
    header: RunHeader,
    ranks: pa.Table,
    steps: pa.Table,
    step_family: str | None,
    collectives: pa.Table,
    operations: Iterable[tuple[int, pa.Table, pa.Table]],
) -> None:
    r"""Write tables of a run as a Perfetto trace.

    Below the track of each rank, ranks in order, stand

    - ``steps``: the windows on the device. Below them ``phases on device``, ``exposed communication`` (``M \ C``),
      ``waiting in communication`` (W), ``compute busy`` and ``communication busy`` (percent of each bin, see
      `tracks.bin_edges`), ``phases on host``. Exposed, waiting and busy are clipped to the windows: what
      lies in a window sums to the figure of its step exactly. A track without slices is a true zero; what was not
      recorded has no track.
    - a thread for each (device, stream) with all operations. What overlaps on a stream stands on further threads.

    Arrows link the ranks of each matched collective in order of arrival. Times are aligned times; where some rank's
    clock starts before 0 they are shifted by whole seconds (``time_shift_ns`` of the first track). Every slice tells
    its aligned start as ``start_ns``.

    Notes
    -----
    Holds the columns of one rank and the packets of some thousand slices. Costs about 5 us per operation.
    """
    shift = _shift(ranks)
    writer = TraceWriter(file, shift)
    writer.write_slices(Track(f"{_HEAD}{header.run_id}"), _run_slice(header, steps, shift))
    writer.write_order()
    edges, collectives = bin_edges(steps), with_last_rank(collectives)
    rows = {row["rank"]: (place, row) for place, row in enumerate(ranks.to_pylist())}
    for rank, events, ranges in operations:
        place, row = rows[rank]
        track = process_track(row, place)
        shown_steps = steps.filter(pc.equal(steps["rank"], rank))
        RankTracks(
            writer=writer,
            parent=writer.write_track(track),
            process=track.process,
            steps=shown_steps,
            step_names=_names(shown_steps["step"], step_family),
            collectives=collectives.filter(pc.equal(collectives["rank"], rank)),
            edges=edges,
        ).write(events, ranges)


def run_id_of_trace(path: Path) -> str | None:
    """Return the id of the run that a trace was written of; None for any other file. Reads its first packet only."""
    try:
        with path.open("rb") as file:
            name = _track_name_at_head(file)
    except OSError:
        return None
    return name.removeprefix(_HEAD) if name is not None and name.startswith(_HEAD) else None


# The first packet names the run, which takes a line at most.
_LONGEST_HEAD = 1 << 16
_TAG = b"\x0a"  # field 1 of Trace: a packet
_LOW_BITS, _N_LOW_BITS, _MOST_BYTES = 0x7F, 7, 3


def _track_name_at_head(file: BinaryIO) -> str | None:
    """Return the name of the track that a trace's first packet describes; None if the file begins otherwise."""
    from google.protobuf.message import DecodeError

    size = _size(file) if file.read(1) == _TAG else None
    if size is None or size > _LONGEST_HEAD:
        return None
    try:
        packet = Packets().protos.TracePacket.FromString(file.read(size))
    except DecodeError:
        return None
    name: str = packet.track_descriptor.name
    return name or None


def _size(file: BinaryIO) -> int | None:
    """Read the size of a message: seven bits a byte, the lowest first; None where it has no end."""
    size = 0
    for place in range(_MOST_BYTES):
        byte = int.from_bytes(file.read(1) or b"\xff")
        size |= (byte & _LOW_BITS) << (_N_LOW_BITS * place)
        if byte <= _LOW_BITS:
            return size
    return None


def _names(steps: pa.ChunkedArray, family: str | None) -> pa.ChunkedArray:
    numbers = steps.cast(pa.string())
    if family is None:
        return pc.if_else(pc.is_valid(numbers), "whole capture", numbers)
    return pc.binary_join_element_wise("step", numbers, " ")


def _shift(ranks: pa.Table) -> int:
    """Return the whole seconds, in ns, that bring the start of every rank's clock to 0 or later."""
    earliest = pc.min(ranks["clock_shift_ns"]).as_py() or 0
    return -min(earliest // _NS_PER_S, 0) * _NS_PER_S


def _run_slice(header: RunHeader, steps: pa.Table, shift: int) -> Slices:
    """Return one slice over all windows that tells what the trace is of."""
    first, last = pc.min(steps["start_ns"]).as_py() or 0, pc.max(steps["end_ns"]).as_py() or 0
    texts = {
        "run_id": header.run_id,
        "captured_at_utc": header.captured_at_utc,
        "nsyspipe": __version__,
    }
    numbers = {"n_ranks": header.n_ranks, "world_size": header.world_size, "time_shift_ns": shift}
    notes = {name: same_text(shown(text), 1) for name, text in texts.items() if text is not None}
    notes |= {
        name: Values(np.array([number]), np.ones(1, np.bool_)) for name, number in numbers.items() if number is not None
    }
    label, category = same_text(shown(header.label), 1), same_text("run", 1)
    return Slices(np.array([first]), np.array([last]), label, category, notes)
