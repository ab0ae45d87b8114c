"""A run as a Perfetto trace.

It has a track per rank on one clock, with the steps, lanes that are derived from them, and streams.
"""

import functools
import io
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from msgspec.structs import replace

from nsyspipe.analysis.counters import Series
from nsyspipe.analysis.intervals import IntervalSet, run_starts, union
from nsyspipe.analysis.kernels import GRAPH
from nsyspipe.errors import OutputError
from nsyspipe.model.figures import CLOCK_LABEL, COUNTERS
from nsyspipe.model.names import ranges
from nsyspipe.model.options import OnProgress
from nsyspipe.model.table import Int64
from nsyspipe.model.typed_tables import (
    CollectivesTable,
    EventsColumn,
    EventsTable,
    PhaseRangesColumn,
    PhaseRangesTable,
    StepsTable,
)
from nsyspipe.report.derived_lanes import (
    EXPOSED,
    WAITING,
    busy_time,
    exposed_comm_in_steps,
    names_of_steps,
    rows_of_rank,
    steps_with,
    times_of,
    waiting_in_steps,
)
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
_RANGE_NOTES: tuple[PhaseRangesColumn, ...] = ("step", "n_operations")
_OPERATION_NOTES: tuple[EventsColumn, ...] = (
    "step",
    "phase",
    "launch_ns",
    "correlation_id",
    "bytes",
    "collective",
    "seq",
)
_COLLECTIVE_NOTES = (
    "comm_id",
    "datatype",
    "algorithm",
    "nccl_algorithm",
    "nccl_protocol",
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
    """Write a run as a Perfetto trace, of all steps or from a first to a last step.

    `steps` are the numbers of the first and the last step, or None for all. By default, `ranks` are
    those of `traced_ranks`.

    The track of each rank has a group ``steps`` with its steps on the GPU. Lanes that are derived
    from the operations stand below it: exposed communication, wait time and busy time. They are
    clipped to the steps, and within a step they sum exactly to the metric of the step. A lane
    without slices means zero. What was not recorded has no lane.

    After this group, each stream has a thread with all of its operations. CUDA graphs that were
    captured as a whole have a thread of their own, because what ran in them is not known.
    Operations that overlap on a stream are on further threads. Hardware counters of the GPU of a
    rank are a group of their own, with all of their samples. Arrows link the ranks of each matched
    collective, in order of arrival.

    All times are aligned times. If the clock of a rank starts before 0, all times are shifted by
    whole seconds (``time_shift_ns`` of the first track). Every slice has its aligned start as a
    note (``start_ns``). Memory holds the columns of one rank and the packets of some thousand
    slices. Writing takes about 5 us per operation.
    """
    chosen_ranks = traced_ranks(run) if ranks is None else [*ranks]
    shown_steps = _steps_between(run.steps(), steps)
    writer = _start_trace(file, run, shown_steps)
    edges_of_bins = bin_edges(shown_steps)
    collectives = _with_last_rank(run.collectives())
    process_tracks = _process_tracks(run)

    report_progress = _progress_in_ranks(on_progress, len(chosen_ranks))
    report_progress(0)
    for n_ranks_done, (rank, events, phases) in enumerate(run.operations(steps, chosen_ranks)):
        rank_steps = rows_of_rank(shown_steps, rank)
        tracks = _RankTracks(
            writer=writer,
            track=process_tracks[rank],
            steps=rank_steps,
            edges=edges_of_bins,
            counters=_samples_between(run.counter_samples(rank), rank_steps, steps),
            is_capture=run.is_capture,
        )
        rank_collectives = rows_of_rank(collectives, rank)
        for n_written in tracks.write(events, phases, rank_collectives):
            # A number is yielded after each stream, so a rank without operations yields none.
            report_progress(n_ranks_done + n_written / events.num_rows)
        report_progress(n_ranks_done + 1)


def _progress_in_ranks(on_progress: OnProgress | None, n_ranks: int) -> Callable[[float], None]:
    """Return a function that gets how many ranks are done, and reports this in percent.

    Its argument may have a fraction: the part of the next rank that is done.
    """

    def report_progress(n_ranks_done: float) -> None:
        if on_progress:
            percent = round(100 * n_ranks_done / max(n_ranks, 1))
            on_progress(percent, 100)

    return report_progress


def _start_trace(file: BinaryIO, run: Run, steps: StepsTable) -> TraceWriter:
    """Write the track of the run, which comes first, and return what writes the others."""
    shift_ns = _shift_ns(run)
    writer = TraceWriter(file, shift_ns)
    run_track = Track(f"{_RUN_ID_PREFIX}{run.header.run_id}")
    run_slice = _run_slice(run.header, steps, shift_ns)
    writer.write_slices(run_track, run_slice)
    writer.write_order()
    return writer


def _steps_between(steps: pa.Table, chosen: Steps) -> pa.Table:
    """Return the rows from the first to the last chosen step, both included. None chooses all."""
    if chosen is None:
        return steps
    first_step, last_step = chosen
    step = pc.field("step")
    is_chosen = (step >= first_step) & (step <= last_step)
    return steps.filter(is_chosen)


def _samples_between(
    counters: Mapping[str, Series], rank_steps: StepsTable, steps: Steps
) -> dict[str, Series]:
    """Return the samples of each counter in the time of some steps of a rank.

    The value of a sample holds until the next sample. So the last sample at or before the start of
    these steps belongs to them. If no steps were chosen (`steps` is None), return all samples.
    """
    if steps is None:
        return dict(counters)
    if not rank_steps.num_rows:
        return {}
    start_ns = pc.min(rank_steps["start_ns"]).as_py()
    end_ns = pc.max(rank_steps["end_ns"]).as_py()
    shown_counters = {}
    for name, series in counters.items():
        n_up_to_start = np.searchsorted(series.times, start_ns, side="right")
        n_before_end = np.searchsorted(series.times, end_ns)
        # The last sample up to the start, or the first one of all if the samples begin later.
        first_sample = max(n_up_to_start - 1, 0)
        in_steps = slice(first_sample, n_before_end)
        shown_counters[name] = Series(series.times[in_steps], series.values[in_steps])
    return shown_counters


def _shift_ns(run: Run) -> int:
    """Return how far all times are shifted, so that no clock of a rank starts before 0.

    The shift is a whole number of seconds, in ns. It is 0 if no clock starts before 0.
    """
    # The shift of a clock is the aligned time at which the clock reads 0.
    clock_starts = run.ranks["clock_shift_ns"]
    earliest_ns = pc.min(clock_starts).as_py() or 0
    if earliest_ns >= 0:
        return 0
    # Rounded down, away from 0.
    earliest_s = earliest_ns // _NS_PER_S
    return -earliest_s * _NS_PER_S


def traced_ranks(run: Run) -> list[int]:
    """Return the ranks of a trace by default: all if they are few, or those that differ most."""
    return run.telling_ranks(_MAX_DEFAULT_RANKS)


def left_out(run: Run) -> str | None:
    """Return a note about which ranks `traced_ranks` leaves out, and how to trace them too.

    None if it leaves out no rank.
    """
    ranks = run.ranks["rank"].to_pylist()
    n_traced = len(traced_ranks(run))
    if n_traced == len(ranks):
        return None
    which_ranks = left_out_note(n_traced, len(ranks)).rstrip(".")
    all_ranks = ",".join(ranges(ranks))
    option = f"--perfetto-ranks {all_ranks}"
    return f"note: the trace has {which_ranks} (all ranks: {option})"


def large_trace(run: Run, ranks: Collection[int]) -> str | None:
    """Return a hint if the trace of all steps would be hard to open. None if it is small.

    Its size is estimated from the number of kernels.
    """
    rows = [row for row in run.ranks.to_pylist() if row["rank"] in ranks]
    n_kernels = sum(row["n_kernels"] or 0 for row in rows)
    n_bytes = _BYTES_PER_KERNEL * n_kernels
    if n_bytes <= _MAX_EASY_BYTES:
        return None
    size = bytes_text(n_bytes)
    option = "--perfetto-steps FROM:TO"
    return f"note: the trace of all steps takes about {size}, use {option} for fewer steps"


def without_samples(run: Run, ranks: Collection[int]) -> str | None:
    """Return why a trace of these ranks lacks hardware counters that nsys recorded.

    None if the trace has the samples of all ranks that have counters, or if nsys recorded none.
    """
    counted_ranks = {*run.counters()["rank"].to_pylist()}
    for rank in counted_ranks.intersection(ranks):
        if not run.counter_samples(rank):
            return (
                "note: the trace has no tracks of hardware counters, because a saved run has only "
                "their means (a trace of the reports has these tracks)"
            )
    return None


def _run_slice(header: RunHeader, steps: StepsTable, shift_ns: int) -> pa.Table:
    """Return a slice over all steps, with notes about the run.

    Its times are aligned times. `shift_ns` is a note: the writer shifts all times by it.
    """
    notes = {
        "run_id": shown(header.run_id),
        "captured_at_utc": header.captured_at_utc,
        "nsyspipe": __version__,
        "n_ranks": header.n_ranks,
        "world_size": header.world_size,
        "time_shift_ns": shift_ns,
    }
    known_notes = {name: [value] for name, value in notes.items() if value is not None}
    # Without steps, both are None, and the slice is empty.
    start_ns = pc.min(steps["start_ns"]).as_py()
    end_ns = pc.max(steps["end_ns"]).as_py()
    starts = np.array([start_ns or 0])
    ends = np.array([end_ns or 0])
    label = shown(header.label)
    return slices(starts, ends, label, category="run", notes=pa.table(known_notes))


def _process_tracks(run: Run) -> dict[int, Track]:
    """Return the track of each rank, in order of the rows of `Run.ranks`.

    Perfetto needs one ID per process. Processes of two hosts may have the same ID, so tracks are
    numbered from 1 instead.
    """
    reports = {*run.header.reports}
    tracks = {}
    rows = run.ranks.to_pylist()
    for place, row in enumerate(rows):
        rank = row["rank"]
        rank_name = run.rank_names.name(rank)
        parts = (f"rank {rank_name}", row["gpu_name"], row["host"])
        name = " · ".join(part for part in parts if part is not None)
        about = _about_rank(row, reports)
        tracks[rank] = Track(name, place=place, about=about, process=place + 1)
    return tracks


def _about_rank(row: Mapping[str, object], reports: Collection[str]) -> str:
    """Return where a row of `ranks` comes from, and how its clock was aligned.

    `reports` are those of the run. A rank of several captures has several reports, joined by
    commas. The clock of such a rank is that of its first report.
    """
    # A comma may also be a part of the name of one report. Only real names of reports count.
    names_between_commas = {*str(row["report"]).split(",")}
    reports_of_rank = names_between_commas & {*reports}
    has_several_reports = len(reports_of_rank) > 1
    report_time = "time of the first" if has_several_reports else "report time"
    source = "report {report}, process {pid}, GPUs {device_ids}".format_map(row)
    shift_ns = row["clock_shift_ns"]
    clock = f"{report_time} + {shift_ns} ns = aligned time"
    if row["clock_offset_ns"] is not None:
        clock += f" (clock offset {row['clock_offset_ns']} ns included)"
    return f"{source}, {clock}"


class _RankTracks(Struct, frozen=True):
    """Writes the track of a rank and the tracks below it."""

    writer: TraceWriter
    track: Track
    # The rows of `schema.STEPS` of this rank that are shown, in order of start.
    steps: StepsTable
    # Of the bins in which the rank is busy to some extent, ns.
    edges: Int64
    # The samples of the hardware counters of its GPU, by name.
    counters: dict[str, Series]
    # Whether the run is a capture without steps. Its one "step" is the whole capture.
    is_capture: bool

    def write(
        self, events: EventsTable, ranges: PhaseRangesTable, collectives: CollectivesTable
    ) -> Iterator[int]:
        """Write all tracks. After each stream, yield how many operations are written so far.

        `collectives` are the rows of `_with_last_rank` of this rank.
        """
        step_names = "whole capture" if self.is_capture else names_of_steps(self.steps)
        parent = self.writer.write_track(self.track)
        about = (
            "windows on the GPU: from the first kernel of a step to the first kernel of the next "
            "step"
        )
        starts, ends = times_of(self.steps, "start_ns", "end_ns")
        notes = self.steps.drop_columns(["rank", "start_ns", "end_ns"])
        step_slices = slices(starts, ends, step_names, category="step", notes=notes)
        track = Track("steps", parent=parent, about=about)
        group = self.writer.write_slices(track, step_slices)
        self._write_host_ranges(group, ranges)
        self._write_device_phases(group, ranges)
        self._write_launches(group, events)
        self._write_derived(group, events, collectives)
        self._write_counters(parent)
        yield from self._write_streams(parent, events, collectives)

    def _write_counters(self, parent: int) -> None:
        """Write a track for each hardware counter: all of its samples, as they are."""
        if not self.counters:
            return
        about = "samples of nsys, with the lag of their report: a value holds until the next one"
        group = self.writer.write_track(Track("hardware counters", parent=parent, about=about))
        for place, (name, series) in enumerate(self.counters.items()):
            label, unit = _named_counter(name)
            gaps = _gaps_text(series)
            track = Track(f"{label} ({unit})", parent=group, place=place, about=gaps, unit=unit)
            self.writer.write_counter(track, series.times, series.values)

    def _write_streams(
        self, parent: int, events: EventsTable, collectives: CollectivesTable
    ) -> Iterator[int]:
        """Write the operations, on one thread or several for each stream.

        After each stream, yield how many operations of the rank are written so far.
        """
        operations = _operation_slices(events, collectives)
        place = 0
        n_written = 0
        for stream in _streams(events):
            n_lanes = len(stream.lanes)
            process = self.track.process
            track = Track(stream.name, parent=parent, place=place, process=process, is_thread=True)
            self._write_lanes(track, operations, stream.lanes)
            place += n_lanes
            n_written += sum(lane.size for lane in stream.lanes)
            yield n_written

    def _write_lanes(self, track: Track, table: pa.Table, lanes: Iterable[Int64]) -> None:
        """Write the slices of a table, the rows of each lane on a track of its own.

        The first track has the name of `track`, and the next ones ``NAME (2)``, ``NAME (3)``.
        """
        for n_before, rows_of_lane in enumerate(lanes):
            name = f"{track.name} ({n_before + 1})" if n_before else track.name
            place = track.place + n_before
            lane_track = replace(track, name=name, place=place)
            lane_slices = table.take(pa.array(rows_of_lane))
            self.writer.write_slices(lane_track, lane_slices)

    def _write_host_ranges(self, group: int, ranges: PhaseRangesTable) -> None:
        """Write the ranges of steps and phases on the CPU. A step holds its phases."""
        starts, ends = times_of(ranges, "start_ns", "end_ns")
        is_phase = pc.is_valid(ranges["phase"])
        # 0 for steps, and 1 for phases, so that a step holds a phase with the same range.
        depth = is_phase.cast(pa.int64())
        lanes = nested_lanes(starts, ends, depth.to_numpy())
        track = Track("phases on host", parent=group, place=_HOST_PHASES_PLACE)
        notes = ranges.select(_RANGE_NOTES)
        host_slices = slices(starts, ends, _range_names(ranges), category="host", notes=notes)
        self._write_lanes(track, host_slices, lanes)

    def _write_device_phases(self, group: int, ranges: PhaseRangesTable) -> None:
        """Write a slice for each phase that has operations, from their first start to their end."""
        is_phase = pc.is_valid(ranges["phase"])
        has_operations = pc.is_valid(ranges["device_start_ns"])
        has_slice = pc.and_(is_phase, has_operations)
        phases = ranges.filter(has_slice)
        starts, ends = times_of(phases, "device_start_ns", "device_end_ns")
        about = (
            "from the start of the first operation launched in it to the end of the last. Data "
            "copies of a step run before its first kernel"
        )
        track = Track("phases on GPU", parent=group, place=_DEVICE_PHASES_PLACE, about=about)
        notes = phases.select(_RANGE_NOTES)
        names = _range_names(phases)
        phase_slices = slices(starts, ends, names, category="phase", notes=notes)
        lanes = disjoint_lanes(starts, ends)
        self._write_lanes(track, phase_slices, lanes)

    def _write_launches(self, group: int, events: EventsTable) -> None:
        """Write when the CPU made each call that launches operations, in order of time.

        How long a call took is not recorded with the operations, so its slice has no length. All
        operations of a graph have one launch, and its slice is named after the first of them.
        """
        has_launch = pc.is_valid(events["launch_ns"])
        launched = events.filter(has_launch).sort_by("launch_ns")
        # Operations that one call launched have the same time.
        (launch_ns,) = times_of(launched, "launch_ns")
        first_row_of_each_call = run_starts(launch_ns)
        calls = launched.take(pa.array(first_row_of_each_call))
        if not calls.num_rows:
            return
        (call_starts,) = times_of(calls, "launch_ns")
        about = "when each call that launches something began, by what it launched"
        track = Track("CUDA calls on host", parent=group, place=_CALLS_PLACE, about=about)
        notes = calls.select(["correlation_id"])
        call_slices = slices(call_starts, call_starts, calls["name"], category="call", notes=notes)
        self.writer.write_slices(track, call_slices)

    def _write_derived(
        self, group: int, events: EventsTable, collectives: CollectivesTable
    ) -> None:
        """Write what is derived from the operations, inside the steps in which it is known."""
        exposed = exposed_comm_in_steps(self.steps, events)
        if exposed is not None:
            about = "communication during which no compute kernel runs"
            track = Track(EXPOSED, parent=group, place=_EXPOSED_PLACE, about=about)
            self._write_times(track, exposed)
        waiting = waiting_in_steps(self.steps, collectives)
        if waiting is not None:
            about = "communication before the last rank of the collective was there"
            track = Track(WAITING, parent=group, place=_WAITING_PLACE, about=about)
            self._write_times(track, waiting)
        compute = busy_time(events, "compute")
        comm = busy_time(events, "comm")
        compute_track = Track("compute busy", parent=group, place=_COMPUTE_PLACE, unit="%")
        steps_with_compute = steps_with(self.steps, "compute_ns")
        self._write_counter(compute_track, compute, steps_with_compute)
        comm_track = Track("communication busy", parent=group, place=_COMM_PLACE, unit="%")
        steps_with_comm = steps_with(self.steps, "comm_ns")
        self._write_counter(comm_track, comm, steps_with_comm)

    def _write_counter(self, track: Track, busy: IntervalSet, steps: IntervalSet) -> None:
        """Write how busy the rank is in each bin, inside some steps. Without steps, no track."""
        if len(steps):
            times, percents = busy_percent(busy, steps, self.edges)
            # All bins have the width of the first, except that between two captures.
            first_edge, second_edge = self.edges[:2]
            bin_ns = second_edge - first_edge
            counter = replace(track, about=f"share of each {bin_ns} ns")
            self.writer.write_counter(counter, times, percents)

    def _write_times(self, track: Track, times: IntervalSet) -> None:
        """Write times as slices, with the step in which each starts."""
        step_starts = self.steps["start_ns"].to_numpy()
        # Times are inside steps, so at least one step has started.
        n_steps_started = np.searchsorted(step_starts, times.starts, side="right")
        latest_started_row = n_steps_started - 1
        numbers = self.steps.select(["step"])
        notes = numbers.take(pa.array(latest_started_row))
        time_slices = slices(times.starts, times.ends, track.name, category="derived", notes=notes)
        self.writer.write_slices(track, time_slices)


class _NamedCounter(NamedTuple):
    """What a hardware counter counts, and its unit."""

    label: str
    unit: str


def _named_counter(name: str) -> _NamedCounter:
    if name in COUNTERS:
        return _NamedCounter(COUNTERS[name].label, "%")
    return _NamedCounter(CLOCK_LABEL, "MHz")


def _gaps_text(series: Series) -> str | None:
    """Return how long all gaps between samples are together. None without gaps.

    Perfetto draws the last value before a gap there, although nothing was sampled.
    """
    if not series.times.size:
        return None
    # A value holds until the next sample. Before a gap, it holds only for a period of sampling. The
    # last sample has no next one.
    to_next_sample_ns = np.diff(series.times)
    held_until_next_ns = series.held_ns[:-1]
    unsampled_ns = int((to_next_sample_ns - held_until_next_ns).sum())
    if not unsampled_ns:
        return None
    return f"nothing was sampled for {unsampled_ns} ns: the last value before a gap is drawn there"


def _range_names(ranges: PhaseRangesTable) -> pa.ChunkedArray:
    """Return the name of the phase of each range. A range without a phase is named by its step."""
    step_names = names_of_steps(ranges)
    return pc.coalesce(ranges["phase"], step_names)


def bin_edges(steps: StepsTable) -> Int64:
    """Return the edges of the bins of the counters, ns. Empty without steps.

    Bin i is from edge i to edge i + 1. The edges are the same for all ranks. The time with steps is
    one range per capture, and all bins in it have the same width. Between two captures, where no
    rank has a step, there is one more bin, of any width.
    """
    if not steps.num_rows:
        return np.empty(0, np.int64)
    starts, ends = times_of(steps, "start_ns", "end_ns")
    captures = union(starts, ends)
    are_all_steps_empty = not captures.starts.size
    if are_all_steps_empty:
        # One edge makes no bin.
        return starts[:1]
    lengths_ns = captures.ends - captures.starts
    n_steps = pc.count_distinct(steps["step"]).as_py()
    width_ns = _bin_width_ns(int(lengths_ns.sum()), n_steps)
    edges_of_captures = []
    for start, end in zip(captures.starts.tolist(), captures.ends.tolist(), strict=True):
        # The last edge is the first at or after the end.
        edges_of_captures.append(np.arange(start, end + width_ns, width_ns, dtype=np.int64))
    # The last bin of a capture may reach into the next capture, and is cut off there.
    cut_edges = []
    for capture_edges, next_edges in itertools.pairwise(edges_of_captures):
        is_before_next = capture_edges < next_edges[0]
        cut_edges.append(capture_edges[is_before_next])
    return np.concatenate([*cut_edges, edges_of_captures[-1]])


def _bin_width_ns(captured_ns: int, n_steps: int) -> int:
    """Return the width of each bin, rounded up to whole ns."""
    n_bins = min(_BINS_PER_STEP * n_steps, _MAX_BINS)
    n_full_ns, remainder_ns = divmod(captured_ns, n_bins)
    return n_full_ns + 1 if remainder_ns else n_full_ns


def busy_percent(busy: IntervalSet, steps: IntervalSet, edges: Int64) -> tuple[Int64, Int64]:
    """Return how busy a rank is in each bin, as times and values in whole percent.

    Each value holds from its time to the next time. Bins of equal value are merged. The last value
    is 0, at the end of the bin of the last step. Time outside `steps` does not count, so a value is
    the busy share of the part of the bin that is inside of steps.
    """
    # The first edge at or after the end of the steps ends their last bin.
    index_of_last_edge = np.searchsorted(edges, steps.ends[-1])
    used_edges = edges[: index_of_last_edge + 1]
    bin_starts = used_edges[:-1]
    bin_ends = used_edges[1:]
    step_ns_in_bin = steps.lengths(bin_starts, bin_ends)
    busy_in_steps = busy.intersect(steps)
    busy_ns_in_bin = busy_in_steps.lengths(bin_starts, bin_ends)
    # In integers, `100 * busy / step` is rounded to the nearest percent by
    # `(200 * busy + step) // (2 * step)`. The maximum makes a bin outside of steps 0 % busy.
    divisor_ns = np.maximum(2 * step_ns_in_bin, 1)
    percent_of_bin = (200 * busy_ns_in_bin + step_ns_in_bin) // divisor_ns
    percent_from_edge = np.append(percent_of_bin, 0)
    first_of_each_value = run_starts(percent_from_edge)
    return used_edges[first_of_each_value], percent_from_edge[first_of_each_value]


def _flow_ids(table: pa.Table) -> pa.Array:
    """Return the ID of the collective of each row, which is the ID of the arrows between its ranks.

    The ID holds the step and the number of the collective in the step. It is the same on all ranks,
    and unique in any 2**40 steps. Null for a row without a collective.
    """
    step_bits = pc.shift_left(table["step"], _SEQ_BITS)
    # From 1, so that no ID is 0.
    numbers_in_step = pc.add(table["seq"], 1)
    return pc.add(step_bits, numbers_in_step).combine_chunks()


def _with_last_rank(collectives: CollectivesTable) -> pa.Table:
    """Add the column ``last_rank``: the rank that the others waited for.

    `collectives` has a row per collective and rank. Null if no rank was last alone, or if the
    collective is not matched.
    """
    # Only the rank that comes last alone is later than all others.
    is_last_rank = pc.greater(collectives["late_by_ns"], 0)
    last_arrivals = collectives.filter(is_last_rank)
    # For each row, the index of the last arrival of the same collective, or null.
    last_arrival_of_row = pc.index_in(_flow_ids(collectives), value_set=_flow_ids(last_arrivals))
    last_rank_of_row = last_arrivals["rank"].take(last_arrival_of_row)
    last_rank_if_matched = pc.if_else(collectives["is_matched"], last_rank_of_row, None)
    return collectives.append_column("last_rank", last_rank_if_matched)


def _operation_slices(events: EventsTable, collectives: pa.Table) -> pa.Table:
    """Return the operations of a rank as slices, with the columns of their collectives as notes.

    `events` has a row per operation of the rank, and `collectives` a row per collective of it.
    """
    id_of_collective = _flow_ids(collectives)
    # Only matched collectives have arrows.
    flow_of_collective = pc.if_else(collectives["is_matched"], id_of_collective, None)
    notes_of_collectives = collectives.select(_COLLECTIVE_NOTES)
    with_flows = notes_of_collectives.append_column(FLOW, flow_of_collective)
    # For each operation, the row of its collective. Null for an operation without a collective, so
    # that its notes about a collective are null too.
    collective_of_operation = pc.index_in(
        _flow_ids(events), value_set=id_of_collective, skip_nulls=True
    )
    collective_notes = with_flows.take(collective_of_operation)
    operation_notes = events.select(_OPERATION_NOTES)
    columns = [*operation_notes.columns, *collective_notes.columns]
    names = [*_OPERATION_NOTES, *collective_notes.column_names]
    notes = pa.table(columns, names=names)
    starts, ends = times_of(events, "start_ns", "end_ns")
    # What runs in a graph is not known to be compute.
    is_graph = pc.equal(events["name"], GRAPH)
    category = pc.if_else(is_graph, "graph", events["category"])
    return slices(starts, ends, events["name"], category=category, notes=notes)


class _Stream(NamedTuple):
    """The operations of a stream, or its CUDA graphs."""

    name: str
    # The rows of each track, in order of (start, end, correlation ID).
    lanes: list[Int64]


def _streams(events: EventsTable) -> Iterator[_Stream]:
    """Yield each stream of a rank, in order of (device, stream); its CUDA graphs come after it."""
    devices = _ids(events["device_id"])
    streams = _ids(events["stream_id"])
    correlation_ids = _ids(events["correlation_id"])
    is_named_graph = pc.equal(events["name"], GRAPH)
    is_graph = is_named_graph.cast(pa.int64()).to_numpy()
    is_known_comm = pc.equal(events["category"], "comm")
    is_comm = pc.fill_null(is_known_comm, fill_value=False).to_numpy()
    starts, ends = times_of(events, "start_ns", "end_ns")
    for rows in _rows_of_streams(devices, streams, is_graph):
        # All rows have the same device and stream. Either all or none of them are graphs.
        first_row = rows[0]
        name = _stream_name(devices[first_row], streams[first_row])
        if is_comm[rows].any():
            name += " (NCCL)"
        elif is_graph[first_row]:
            name += " (CUDA graphs as a whole)"
        lanes_in_stream = disjoint_lanes(starts[rows], ends[rows], correlation_ids[rows])
        # From indices into `rows` to rows of `events`.
        lanes = [rows[indices] for indices in lanes_in_stream]
        yield _Stream(name, lanes)


def _ids(column: pa.ChunkedArray) -> Int64:
    """Return a column of IDs with `_NO_ID` in place of null."""
    ids = pc.fill_null(column, _NO_ID)
    return cast("Int64", ids.to_numpy())


def _rows_of_streams(devices: Int64, streams: Int64, is_graph: Int64) -> Iterator[Int64]:
    """Yield the rows of each stream, ascending, in order of (device, stream, graph or not).

    Operations and graphs of one stream are yielded apart. Nothing is yielded without rows.
    """
    sorted_rows = np.lexsort((is_graph, streams, devices))
    columns = (devices, streams, is_graph)
    # A stream begins where any of the three columns changes.
    changes = [run_starts(column[sorted_rows]) for column in columns]
    stream_starts = functools.reduce(np.union1d, changes)
    n_streams = stream_starts.size
    if n_streams > _MAX_STREAMS:
        problem = f"would have {n_streams} streams of one rank, more than {_MAX_STREAMS}"
        fix = "fewer steps (--perfetto-steps), or another report"
        raise OutputError("the trace for Perfetto", problem, fix=fix)
    if sorted_rows.size:
        # The first stream starts at 0, where nothing is to be split.
        for rows in np.split(sorted_rows, stream_starts[1:]):
            yield np.sort(rows)


def _stream_name(device: int, stream: int) -> str:
    device_name = _numbered("GPU", device)
    stream_name = _numbered("stream", stream)
    return f"{device_name} {stream_name}"


def _numbered(noun: str, number: int) -> str:
    is_known = number != _NO_ID
    return f"{noun} {number}" if is_known else f"unknown {noun}"


def run_id_of_trace(path: Path) -> str | None:
    """Return the ID of the run of a trace, from its first packet. None for any other file."""
    from google.protobuf.message import DecodeError
    from google.protobuf.proto import parse_length_prefixed

    try:
        with path.open("rb") as file:
            tag = file.read(len(_PACKET_TAG))
            if tag != _PACKET_TAG:
                return None
            head = io.BytesIO(file.read(_MAX_HEAD_BYTES))
        packet = parse_length_prefixed(pb2().TracePacket, head)
    except (OSError, ValueError, DecodeError):
        return None
    name: str = packet.track_descriptor.name if packet else ""
    if not name.startswith(_RUN_ID_PREFIX):
        return None
    return name.removeprefix(_RUN_ID_PREFIX)
