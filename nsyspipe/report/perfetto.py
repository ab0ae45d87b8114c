"""A run as a Perfetto trace.

It has a track per rank on one clock, with the steps, lanes that are derived from them, and streams.
"""

import functools
import io
import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from msgspec.structs import replace

from nsyspipe.analysis.breakdown import exposed_comm
from nsyspipe.analysis.collectives import waited_until
from nsyspipe.analysis.intervals import IntervalSet, run_starts, union
from nsyspipe.analysis.kernels import GRAPH
from nsyspipe.errors import OutputError
from nsyspipe.model.names import ranges
from nsyspipe.model.options import OnProgress
from nsyspipe.model.schema import STEPS
from nsyspipe.model.table import Int64
from nsyspipe.report.formats import Steps
from nsyspipe.report.perfetto_packets import (
    FLOW,
    TraceWriter,
    Track,
    disjoint_lanes,
    nested_lanes,
    pb2,
    shown,
    slices,
)
from nsyspipe.report.run import left_out_note
from nsyspipe.report.units import bytes_text
from nsyspipe.run.run import Run, RunHeader
from nsyspipe.version import __version__

# Columns that a slice shows when it is selected.
_STEP_NOTES = [name for name in STEPS.names if name not in {"rank", "start_ns", "end_ns"}]
_RANGE_NOTES = ("step", "n_operations")
_OPERATION_NOTES = ("step", "phase", "launch_ns", "correlation_id", "bytes", "collective", "seq")
_COLLECTIVE_NOTES = (
    "comm_id",
    "datatype",
    "algorithm",
    "message_bytes",
    "n_ranks",
    "arrival_skew_ns",
    "wait_ns",
    "transfer_ns",
    "last_rank",
)
# The order of the tracks below the steps. Each may need more than one track.
_DEVICE_PHASES_PLACE = 0
_EXPOSED_PLACE = 1_000
_WAITING_PLACE = 2_000
_COMPUTE_PLACE = 3_000
_COMM_PLACE = 4_000
_HOST_PHASES_PLACE = 5_000
_CALLS_PLACE = 6_000
_RUN_ID_PREFIX = "nsyspipe run_id="
# About, of a slice and the call that launched it.
_BYTES_PER_KERNEL = 180
# A larger trace is hard to open.
_MAX_EASY_BYTES = 200_000_000
_NS_PER_S = 10**9
# More ranks are hard to compare at a glance.
_MAX_DEFAULT_RANKS = 8
# Bins of the counters: enough to show the shape of one step, and for a long run as many as a
# reader can distinguish.
_BINS_PER_STEP = 200
_MAX_BINS = 4_000
# A step has fewer than 2**24 collectives.
_SEQ_BITS = 24
# In place of an ID that was not recorded. It sorts after all IDs.
_NO_ID = np.iinfo(np.int64).max
# Of the first packet, which names the run.
_MAX_HEAD_BYTES = 1 << 16
# Field 1 of `Trace`: a packet.
_PACKET_TAG = b"\x0a"
# A program has some tens of streams, and each needs a track or several.
_MAX_STREAMS = 4096


def perfetto(
    run: Run,
    file: BinaryIO,
    steps: Steps = None,
    on_progress: OnProgress | None = None,
    *,
    ranks: Iterable[int] | None = None,
) -> None:
    r"""Write a run as a Perfetto trace, of all steps or from one to another.

    `ranks` are those of `traced_ranks` unless you choose some.

    The track of each rank has a group ``steps`` with its steps on the GPU. Derived lanes stand
    below it, clipped to the steps: exposed communication (``M \ C``), wait time (W) and busy time
    within a step sum exactly to the metric of the step. A lane without slices means zero. What was
    not recorded has no lane.

    After this group, each stream has a thread with all of its operations. CUDA graphs that were
    captured as a whole have a thread of their own, because what ran in them is not known.
    Operations that overlap on a stream are on further threads. Arrows link the ranks of each
    matched collective, in order of arrival.

    All times are aligned times. If the clock of a rank starts before 0, all are shifted by whole
    seconds (``time_shift_ns`` of the first track). Every slice has its aligned start as a note
    (``start_ns``). Memory holds the columns of one rank and the packets of some thousand slices.
    Writing takes about 5 us per operation.
    """
    chosen_ranks = traced_ranks(run) if ranks is None else [*ranks]
    shown_steps = _steps_between(run.steps(), steps)
    writer = _start_trace(file, run, shown_steps)
    edges = bin_edges(shown_steps)
    collectives = _with_last_rank(run.collectives())
    process_tracks = _process_tracks(run)

    def report_progress(n_ranks: float) -> None:
        if on_progress:
            on_progress(round(100 * n_ranks / max(len(chosen_ranks), 1)), 100)

    report_progress(0)
    for n_done, (rank, events, phases) in enumerate(run.operations(steps, chosen_ranks)):
        rank_steps = _rows_of_rank(shown_steps, rank)
        step_names = "whole capture" if run.is_capture else _step_names(rank_steps)
        rank_collectives = _rows_of_rank(collectives, rank)
        tracks = _RankTracks(writer, process_tracks[rank], rank_steps, edges)
        for n_operations in tracks.write(events, phases, rank_collectives, step_names):
            report_progress(n_done + n_operations / max(events.num_rows, 1))
        report_progress(n_done + 1)


def _start_trace(file: BinaryIO, run: Run, steps: pa.Table) -> TraceWriter:
    """Write the track of the run, which comes first, and return what writes the others."""
    shift_ns = _shift_ns(run)
    writer = TraceWriter(file, shift_ns)
    run_track = Track(f"{_RUN_ID_PREFIX}{run.header.run_id}")
    writer.write_slices(run_track, _run_slice(run.header, steps, shift_ns))
    writer.write_order()
    return writer


def _steps_between(rows: pa.Table, steps: Steps) -> pa.Table:
    if steps is None:
        return rows
    first, last = steps
    return rows.filter((pc.field("step") >= first) & (pc.field("step") <= last))


def _shift_ns(run: Run) -> int:
    """Return the whole seconds, in ns, after which the clock of no rank starts before 0."""
    earliest_ns = pc.min(run.ranks["clock_shift_ns"]).as_py() or 0
    earliest_s = earliest_ns // _NS_PER_S
    return max(-earliest_s, 0) * _NS_PER_S


def _rows_of_rank(table: pa.Table, rank: int) -> pa.Table:
    return table.filter(pc.equal(table["rank"], rank))


def traced_ranks(run: Run) -> list[int]:
    """Return the ranks of a trace by default: all if they are few, or those that differ most."""
    return run.telling_ranks(_MAX_DEFAULT_RANKS)


def left_out(run: Run) -> str | None:
    """Return which ranks `traced_ranks` are, and how to have the others. None if they are all."""
    ranks = run.ranks["rank"].to_pylist()
    shown_ranks = left_out_note(len(traced_ranks(run)), len(ranks)).rstrip(".")
    if not shown_ranks:
        return None
    option = f"--perfetto-ranks {','.join(ranges(ranks))}"
    return f"note: the trace has {shown_ranks} (all ranks: {option})"


def large_trace(run: Run, ranks: Collection[int]) -> str | None:
    """Return a hint if the trace of all steps would be hard to open. None if it is small.

    Its size is estimated from the number of kernels.
    """
    rows = [row for row in run.ranks.to_pylist() if row["rank"] in ranks]
    n_bytes = _BYTES_PER_KERNEL * sum(row["n_kernels"] or 0 for row in rows)
    if n_bytes <= _MAX_EASY_BYTES:
        return None
    return (
        f"note: the trace of all steps takes about {bytes_text(n_bytes)}, use --perfetto-steps "
        "FROM:TO for fewer steps"
    )


def _run_slice(header: RunHeader, steps: pa.Table, shift_ns: int) -> pa.Table:
    """Return a slice over all steps, with notes about the run."""
    notes = {
        "run_id": shown(header.run_id),
        "captured_at_utc": header.captured_at_utc,
        "nsyspipe": __version__,
        "n_ranks": header.n_ranks,
        "world_size": header.world_size,
        "time_shift_ns": shift_ns,
    }
    known_notes = pa.table({name: [value] for name, value in notes.items() if value is not None})
    start_ns = pc.min(steps["start_ns"]).as_py() or 0
    end_ns = pc.max(steps["end_ns"]).as_py() or 0
    starts = np.array([start_ns])
    ends = np.array([end_ns])
    return slices(starts, ends, shown(header.label), "run", known_notes)


def _process_tracks(run: Run) -> dict[int, Track]:
    """Return the track of each rank.

    Processes of several hosts may have the same ID, so that of a track is its place, from 1.
    """
    reports = {*run.header.reports}
    tracks = {}
    for place, row in enumerate(run.ranks.to_pylist()):
        parts = (f"rank {run.rank_names.name(row['rank'])}", row["gpu_name"], row["host"])
        name = " · ".join(part for part in parts if part is not None)
        about = _about_rank(row, reports)
        tracks[row["rank"]] = Track(name, place=place, about=about, process=place + 1)
    return tracks


def _about_rank(row: Mapping[str, object], reports: Collection[str]) -> str:
    """Return where a row of `ranks` comes from, and how its clock was aligned.

    `reports` are those of the run. A rank of several captures has several reports, and its time is
    that of the first.
    """
    n_reports = len({*str(row["report"]).split(",")} & {*reports})
    report_time = "time of the first" if n_reports > 1 else "report time"
    source = "report {report}, process {pid}, GPUs {device_ids}".format_map(row)
    clock = f"{report_time} + {row['clock_shift_ns']} ns = aligned time"
    if row["clock_offset_ns"] is not None:
        clock += f" (clock offset {row['clock_offset_ns']} ns included)"
    return f"{source}, {clock}"


def _step_names(table: pa.Table) -> pa.ChunkedArray:
    return pc.binary_join_element_wise("step", table["step"].cast(pa.string()), " ")


def _times(table: pa.Table, *names: str) -> tuple[Int64, ...]:
    return tuple(table[name].to_numpy() for name in names)


class _RankTracks(Struct, frozen=True):
    """Writes the track of a rank and the tracks below it."""

    writer: TraceWriter
    track: Track
    # The rows of `schema.STEPS` of this rank that are shown, in order of start.
    steps: pa.Table
    # Of the bins of the counters, ns.
    edges: Int64

    def write(
        self,
        events: pa.Table,
        ranges: pa.Table,
        collectives: pa.Table,
        step_names: pa.ChunkedArray | str,
    ) -> Iterator[int]:
        """Write all tracks, and yield how many operations are written so far.

        `collectives` are the rows of `_with_last_rank` of this rank.
        """
        parent = self.writer.write_track(self.track)
        about = (
            "windows on the GPU: from the first kernel of a step to the first kernel of the next "
            "step"
        )
        starts, ends = _times(self.steps, "start_ns", "end_ns")
        step_slices = slices(starts, ends, step_names, "step", self.steps.select(_STEP_NOTES))
        group = self.writer.write_slices(Track("steps", parent, about=about), step_slices)
        self._write_host_ranges(group, ranges)
        self._write_device_phases(group, ranges)
        self._write_launches(group, events)
        self._write_derived(group, events, collectives)
        yield from self._write_streams(parent, events, collectives)

    def _write_streams(self, parent: int, events: pa.Table, collectives: pa.Table) -> Iterator[int]:
        """Write the operations, a thread or several for each stream, and yield how many."""
        operations = _operation_slices(events, collectives)
        place = 0
        n_written = 0
        for stream in _streams(events):
            track = Track(stream.name, parent, place, process=self.track.process, is_thread=True)
            self._write_lanes(track, operations, stream.lanes)
            place += len(stream.lanes)
            n_written += sum(lane.size for lane in stream.lanes)
            yield n_written

    def _write_lanes(self, track: Track, table: pa.Table, lanes: Iterable[Int64]) -> None:
        """Write slices on as many tracks as they need: the rows of each lane on one."""
        for index, rows in enumerate(lanes):
            name = f"{track.name} ({index + 1})" if index else track.name
            lane_track = replace(track, name=name, place=track.place + index)
            self.writer.write_slices(lane_track, table.take(pa.array(rows)))

    def _write_host_ranges(self, group: int, ranges: pa.Table) -> None:
        """Write the ranges of steps and phases on the CPU. A step holds its phases."""
        starts, ends = _times(ranges, "start_ns", "end_ns")
        is_phase = pc.is_valid(ranges["phase"])
        lanes = nested_lanes(starts, ends, is_phase.cast(pa.int64()).to_numpy())
        track = Track("phases on host", group, _HOST_PHASES_PLACE)
        notes = ranges.select(_RANGE_NOTES)
        self._write_lanes(track, slices(starts, ends, _range_names(ranges), "host", notes), lanes)

    def _write_device_phases(self, group: int, ranges: pa.Table) -> None:
        """Write the operations of each phase as one slice, if it has some."""
        is_phase = pc.is_valid(ranges["phase"])
        has_operations = pc.is_valid(ranges["device_start_ns"])
        phases = ranges.filter(pc.and_(is_phase, has_operations))
        starts, ends = _times(phases, "device_start_ns", "device_end_ns")
        about = (
            "from the start of the first operation launched in it to the end of the last. Data "
            "copies of a step run before its first kernel"
        )
        track = Track("phases on GPU", group, _DEVICE_PHASES_PLACE, about)
        notes = phases.select(_RANGE_NOTES)
        phase_slices = slices(starts, ends, _range_names(phases), "phase", notes)
        self._write_lanes(track, phase_slices, disjoint_lanes(starts, ends))

    def _write_launches(self, group: int, events: pa.Table) -> None:
        """Write when the CPU called what launches operations.

        How long a call took is not recorded with the operations. All operations of a graph have
        one launch.
        """
        launched = events.filter(pc.is_valid(events["launch_ns"])).sort_by("launch_ns")
        (launch_ns,) = _times(launched, "launch_ns")
        calls = launched.take(pa.array(run_starts(launch_ns)))
        if not calls.num_rows:
            return
        (call_ns,) = _times(calls, "launch_ns")
        about = "when each call that launches something began, by what it launched"
        track = Track("CUDA calls on host", group, _CALLS_PLACE, about)
        notes = calls.select(["correlation_id"])
        self.writer.write_slices(track, slices(call_ns, call_ns, calls["name"], "call", notes))

    def _write_derived(self, group: int, events: pa.Table, collectives: pa.Table) -> None:
        """Write what is derived from the operations, inside the steps in which it is known."""
        compute = _busy_time(events, "compute")
        comm = _busy_time(events, "comm")
        steps_with_exposed = _steps_with(self.steps, "exposed_comm_ns")
        if len(steps_with_exposed):
            about = "communication during which no compute kernel runs"
            track = Track("exposed communication", group, _EXPOSED_PLACE, about)
            self._write_times(track, exposed_comm(comm.intersect(steps_with_exposed), compute))
        steps_with_wait = _steps_with(self.steps, "wait_ns")
        if len(steps_with_wait):
            about = "communication before the last rank of the collective was there"
            track = Track("waiting in communication", group, _WAITING_PLACE, about)
            self._write_times(track, _waiting_time(collectives, steps_with_wait))
        compute_track = Track("compute busy", group, _COMPUTE_PLACE, unit="%")
        self._write_counter(compute_track, compute, _steps_with(self.steps, "compute_ns"))
        comm_track = Track("communication busy", group, _COMM_PLACE, unit="%")
        self._write_counter(comm_track, comm, _steps_with(self.steps, "comm_ns"))

    def _write_counter(self, track: Track, busy: IntervalSet, steps: IntervalSet) -> None:
        """Write how busy the rank is in each bin, inside some steps."""
        if len(steps):
            times, percents = busy_percent(busy, steps, self.edges)
            bin_ns = self.edges[1] - self.edges[0]
            counter = replace(track, about=f"share of each {bin_ns} ns")
            self.writer.write_counter(counter, times, percents)

    def _write_times(self, track: Track, times: IntervalSet) -> None:
        """Write times as slices, with the step in which each starts."""
        step_starts = self.steps["start_ns"].to_numpy()
        step_indices = np.searchsorted(step_starts, times.starts, side="right") - 1
        notes = self.steps.select(["step"]).take(pa.array(step_indices))
        time_slices = slices(times.starts, times.ends, track.name, "derived", notes)
        self.writer.write_slices(track, time_slices)


def _range_names(ranges: pa.Table) -> pa.ChunkedArray:
    """Return the phase of each range; the step if it has no phase."""
    return pc.coalesce(ranges["phase"], _step_names(ranges))


def _busy_time(events: pa.Table, category: str) -> IntervalSet:
    """Return the time in which operations of a category run."""
    operations = events.filter(pc.equal(events["category"], category))
    return union(*_times(operations, "start_ns", "end_ns"))


def _steps_with(steps: pa.Table, metric: str) -> IntervalSet:
    """Return the time of the steps of one rank in which a metric is known.

    Steps that touch are one interval.
    """
    known = steps.filter(pc.is_valid(steps[metric]))
    return union(*_times(known, "start_ns", "end_ns"))


def _waiting_time(collectives: pa.Table, steps: IntervalSet) -> IntervalSet:
    """Return the wait time of one rank inside its steps.

    It is the union of the times from its start of a collective to the start of the last rank, or to
    its own end if that is earlier. The length inside a step is ``wait_ns``.
    """
    has_wait = pc.and_(collectives["is_matched"], pc.is_valid(collectives["wait_ns"]))
    starts, ends, wait_ns = _times(collectives.filter(has_wait), "start_ns", "end_ns", "wait_ns")
    return union(starts, waited_until(starts, ends, wait_ns)).intersect(steps)


def bin_edges(steps: pa.Table) -> Int64:
    """Return the edges of the bins of the counters, ns. Empty without steps.

    They are the same for all ranks, and have the same distance. Between two captures, where no rank
    has a step, there is one more bin, of any length.
    """
    if not steps.num_rows:
        return np.empty(0, np.int64)
    starts, ends = _times(steps, "start_ns", "end_ns")
    captures = union(starts, ends)
    # No step has a length.
    if not captures.starts.size:
        return starts[:1]
    n_bins = min(_BINS_PER_STEP * pc.count_distinct(steps["step"]).as_py(), _MAX_BINS)
    captured_ns = int((captures.ends - captures.starts).sum())
    width_ns = max(-(-captured_ns // n_bins), 1)
    spans = zip(captures.starts.tolist(), captures.ends.tolist(), strict=True)
    edges = [np.arange(start, end + width_ns, width_ns, dtype=np.int64) for start, end in spans]
    # The last bin of a capture may reach into the next capture, and is cut off there.
    cut_edges = [
        capture_edges[capture_edges < next_edges[0]]
        for capture_edges, next_edges in itertools.pairwise(edges)
    ]
    return np.concatenate([*cut_edges, edges[-1]])


def busy_percent(busy: IntervalSet, steps: IntervalSet, edges: Int64) -> tuple[Int64, Int64]:
    """Return times, and how busy a rank is from each of them on, in whole percent.

    Time outside `steps` does not count. Equal values follow each other once, and the last is 0.
    """
    edges = edges[: np.searchsorted(edges, steps.ends[-1]) + 1]
    bin_starts = edges[:-1]
    bin_ends = edges[1:]
    bin_ns = steps.lengths(bin_starts, bin_ends)
    busy_ns = busy.intersect(steps).lengths(bin_starts, bin_ends)
    # Rounded to the nearest percent, in integers.
    bin_percent = (200 * busy_ns + bin_ns) // np.maximum(2 * bin_ns, 1)
    percent = np.append(bin_percent, 0)
    is_new = np.append(True, percent[1:] != percent[:-1])
    return edges[is_new], percent[is_new]


def _flow_ids(table: pa.Table) -> pa.Array:
    """Return the ID of the arrows that link the ranks of each collective.

    It is the same on all ranks, and unique in any 2**40 steps.
    """
    shifted_steps = pc.shift_left(table["step"], _SEQ_BITS)
    return pc.add(shifted_steps, pc.add(table["seq"], 1)).combine_chunks()


def _with_last_rank(collectives: pa.Table) -> pa.Table:
    """Add the rank that the others waited for.

    Null if no rank was last alone, or if the collective is not matched.
    """
    late = collectives.filter(pc.greater(collectives["late_by_ns"], 0))
    late_rows = pc.index_in(_flow_ids(collectives), value_set=_flow_ids(late))
    last_rank = late["rank"].take(late_rows)
    return collectives.append_column(
        "last_rank", pc.if_else(collectives["is_matched"], last_rank, None)
    )


def _operation_slices(events: pa.Table, collectives: pa.Table) -> pa.Table:
    """Return the operations of a rank as slices, with the columns of their collectives as notes."""
    ids = _flow_ids(collectives)
    flows = pc.if_else(collectives["is_matched"], ids, None)
    collective_notes = collectives.select(_COLLECTIVE_NOTES).append_column(FLOW, flows)
    rows = pc.index_in(_flow_ids(events), value_set=ids, skip_nulls=True)
    collective_notes = collective_notes.take(rows)
    columns = [*events.select(_OPERATION_NOTES).columns, *collective_notes.columns]
    notes = pa.table(columns, names=[*_OPERATION_NOTES, *collective_notes.column_names])
    starts, ends = _times(events, "start_ns", "end_ns")
    # What runs in a graph is not known to be compute.
    category = pc.if_else(pc.equal(events["name"], GRAPH), "graph", events["category"])
    return slices(starts, ends, events["name"], category, notes)


class _Stream(NamedTuple):
    """The operations of a stream, or its CUDA graphs."""

    name: str
    # The rows of each track, in order of (start, end, correlation ID).
    lanes: list[Int64]


def _streams(events: pa.Table) -> Iterator[_Stream]:
    """Yield each stream of a rank, in order of (device, stream); its CUDA graphs come after it."""
    names = ("device_id", "stream_id", "correlation_id")
    devices, streams, ids = (pc.fill_null(events[name], _NO_ID).to_numpy() for name in names)
    is_graph = pc.equal(events["name"], GRAPH).cast(pa.int64()).to_numpy()
    is_comm = pc.fill_null(pc.equal(events["category"], "comm"), fill_value=False).to_numpy()
    starts, ends = _times(events, "start_ns", "end_ns")
    for rows in _rows_of_streams(devices, streams, is_graph):
        first = rows[0]
        name = f"{_numbered('GPU', devices[first])} {_numbered('stream', streams[first])}"
        if is_comm[rows].any():
            name += " (NCCL)"
        elif is_graph[first]:
            name += " (CUDA graphs as a whole)"
        lanes = disjoint_lanes(starts[rows], ends[rows], ids[rows])
        yield _Stream(name, [rows[lane] for lane in lanes])


def _rows_of_streams(devices: Int64, streams: Int64, is_graph: Int64) -> Iterator[Int64]:
    """Yield the rows of each stream, ascending, in order of (device, stream, graph or not)."""
    order = np.lexsort((is_graph, streams, devices))
    boundaries = functools.reduce(
        np.union1d, (run_starts(numbers[order]) for numbers in (devices, streams, is_graph))
    )
    if boundaries.size > _MAX_STREAMS:
        problem = f"would have {boundaries.size} streams of one rank, more than {_MAX_STREAMS}"
        fix = "fewer steps (--perfetto-steps), or another report"
        raise OutputError("the trace for Perfetto", problem, fix=fix)
    if order.size:
        for rows in np.split(order, boundaries[1:]):
            yield np.sort(rows)


def _numbered(noun: str, number: int) -> str:
    return f"unknown {noun}" if number == _NO_ID else f"{noun} {number}"


def run_id_of_trace(path: Path) -> str | None:
    """Return the ID of the run of a trace, from its first packet. None for any other file."""
    from google.protobuf.message import DecodeError
    from google.protobuf.proto import parse_length_prefixed

    try:
        with path.open("rb") as file:
            if file.read(len(_PACKET_TAG)) != _PACKET_TAG:
                return None
            head = io.BytesIO(file.read(_MAX_HEAD_BYTES))
        packet = parse_length_prefixed(pb2().TracePacket, head)
    except (OSError, ValueError, DecodeError):
        return None
    name: str = packet.track_descriptor.name if packet else ""
    return name.removeprefix(_RUN_ID_PREFIX) if name.startswith(_RUN_ID_PREFIX) else None
