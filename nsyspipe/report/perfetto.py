"""A run as a Perfetto trace: a process track per rank on one clock, with steps, what is derived of them, and streams."""

import functools
import io
import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

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
from nsyspipe.run.rank_names import RankNames
from nsyspipe.run.run import Run, RunHeader
from nsyspipe.version import __version__

# What is told of each slice.
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
# Tracks below the steps, from top to bottom; each may need more than one.
_DEVICE_PHASES, _EXPOSED, _WAITING, _COMPUTE, _COMM, _HOST, _CALLS = range(0, 7_000, 1_000)
_HEAD = "nsyspipe run_id="
# Bytes of a slice and its call, about; and from how many on a trace is hard to open.
_BYTES_PER_KERNEL = 180
_LARGE_BYTES = 200_000_000
_NS_PER_S = 10**9
_MOST_RANKS = 8  # that one can look at side by side
# So many bins show the shape of one step; of a long run they are as many as one can tell apart.
_BINS_PER_STEP = 200
_MOST_BINS = 4_000
_SEQ_BITS = 24  # collectives of a step are fewer
_NOT_KNOWN = np.iinfo(np.int64).max  # stands after all ids
_LONGEST_HEAD = 1 << 16  # of the first packet, which names the run
_TAG = b"\x0a"  # field 1 of Trace: a packet


def perfetto(
    run: Run,
    file: BinaryIO,
    steps: Steps = None,
    on_progress: OnProgress | None = None,
    *,
    ranks: Iterable[int] | None = None,
) -> None:
    r"""Write a run as a Perfetto trace, of all steps or from one to another, of some ranks or of `traced_ranks`.

    Below the track of each rank stand ``steps``, its windows on the device, and what is derived of
    them, clipped to them: exposed (``M \ C``), waiting (W) and busy time in a window sum to the
    figure of its step exactly. A track without slices is a true zero; what was not recorded has no
    track. Then a thread for each (device, stream) with all operations, and one for its CUDA graphs
    that were captured as a whole, since what runs in them is not known; what overlaps on a stream
    stands on further threads. Arrows link the ranks of each matched collective in order of arrival.
    Times are aligned times; where some rank's clock starts before 0 they are shifted by whole
    seconds (``time_shift_ns`` of the first track). Every slice tells its aligned start as
    ``start_ns``. Holds the columns of one rank and the packets of some thousand slices, and costs
    about 5 us per operation.
    """
    windows = run.steps()
    if steps is not None:
        windows = windows.filter((pc.field("step") >= steps[0]) & (pc.field("step") <= steps[1]))
    # The whole seconds that bring the start of every rank's clock to 0 or later.
    shift = -min((pc.min(run.ranks["clock_shift_ns"]).as_py() or 0) // _NS_PER_S, 0) * _NS_PER_S
    writer = TraceWriter(file, shift)
    writer.write_slices(
        Track(f"{_HEAD}{run.header.run_id}"), _run_slice(run.header, windows, shift)
    )
    writer.write_order()
    edges = bin_edges(windows)
    collectives = _with_last_rank(run.collectives())
    rows = {row["rank"]: (place, row) for place, row in enumerate(run.ranks.to_pylist())}
    chosen = traced_ranks(run) if ranks is None else [*ranks]

    def told(n_ranks: float) -> None:
        if on_progress:
            on_progress(round(100 * n_ranks / max(len(chosen), 1)), 100)

    told(0)
    for n_done, (rank, events, of_phases) in enumerate(run.operations(steps, chosen)):
        row_of_rank = rows[rank]
        shown_steps = windows.filter(pc.equal(windows["rank"], rank))
        of_rank = collectives.filter(pc.equal(collectives["rank"], rank))
        names = "whole capture" if run.is_capture else _step_names(shown_steps)
        track = _process_track(*row_of_rank, run.rank_names, run.header.reports)
        tracks = _RankTracks(writer, track, shown_steps, edges)
        for n_operations in tracks.write(events, of_phases, of_rank, names):
            told(n_done + n_operations / max(events.num_rows, 1))
        told(n_done + 1)


def traced_ranks(run: Run) -> list[int]:
    """Return the ranks of a trace that nobody asked some of: all of a few, of more those that differ most."""
    return run.telling_ranks(_MOST_RANKS)


def left_out(run: Run) -> str | None:
    """Return which ranks `traced_ranks` are, and how to have the others; None if they are all."""
    n_shown = len(traced_ranks(run))
    ranks = run.ranks["rank"].to_pylist()
    which = left_out_note(n_shown, len(ranks)).rstrip(".")
    return (
        f"note: the trace has {which} (all ranks: --perfetto-ranks {','.join(ranges(ranks))})"
        if which
        else None
    )


def large_trace(run: Run, ranks: Collection[int]) -> str | None:
    """Return a hint where the trace of all steps, judged by the ranks' kernels, would be too large to open with ease."""
    size = _BYTES_PER_KERNEL * sum(
        row["n_kernels"] or 0 for row in run.ranks.to_pylist() if row["rank"] in {*ranks}
    )
    hint = (
        f"note: the trace of all steps takes about {bytes_text(size)}, use --perfetto-steps "
        "FROM:TO for fewer steps"
    )
    return hint if size > _LARGE_BYTES else None


def _run_slice(header: RunHeader, steps: pa.Table, shift: int) -> pa.Table:
    notes = {
        "run_id": shown(header.run_id),
        "captured_at_utc": header.captured_at_utc,
        "nsyspipe": __version__,
        "n_ranks": header.n_ranks,
        "world_size": header.world_size,
        "time_shift_ns": shift,
    }
    table = pa.table({name: [value] for name, value in notes.items() if value is not None})
    first = pc.min(steps["start_ns"]).as_py() or 0
    last = pc.max(steps["end_ns"]).as_py() or 0
    return slices(np.array([first]), np.array([last]), shown(header.label), "run", table)


def _process_track(
    place: int, rank: Mapping[str, object], names: RankNames, reports: Collection[str]
) -> Track:
    """Describe the track of a rank. Its process in the trace is its place from 1: those of several hosts may be alike.

    `reports` are those of the run. A rank of several captures has several, and its time is that of
    the first.
    """
    is_of_several = len({*str(rank["report"]).split(",")} & {*reports}) > 1
    time_name = "time of the first" if is_of_several else "report time"
    parts = (f"rank {names.name(int(str(rank['rank'])))}", rank["gpu_name"], rank["host"])
    about = "report {report}, process {pid}, GPUs {device_ids}, "
    about += f"{time_name} + {{clock_shift_ns}} ns = aligned time"
    about += (
        "" if rank["clock_offset_ns"] is None else " (clock offset {clock_offset_ns} ns included)"
    )
    name = " · ".join(str(part) for part in parts if part is not None)
    return Track(name, place=place, about=about.format_map(rank), process=place + 1)


def _step_names(table: pa.Table) -> pa.ChunkedArray:
    return pc.binary_join_element_wise("step", table["step"].cast(pa.string()), " ")


def _times(table: pa.Table, *names: str) -> tuple[Int64, ...]:
    return tuple(table[name].to_numpy() for name in names)


class _RankTracks(Struct, frozen=True):
    """Writes the track of a rank and what stands below it."""

    writer: TraceWriter
    track: Track
    steps: pa.Table  # rows of `schema.STEPS` of this rank that are shown, in order of start
    edges: Int64  # of the counters' bins

    def write(
        self,
        events: pa.Table,
        ranges: pa.Table,
        collectives: pa.Table,
        step_names: pa.ChunkedArray | str,
    ) -> Iterator[int]:
        """Write all tracks, with this rank's rows of `_with_last_rank`, and yield how many operations are written so far."""
        parent = self.writer.write_track(self.track)
        about = (
            "windows on the GPU: from the first kernel of a step to the first kernel of the next "
            "step"
        )
        starts, ends = _times(self.steps, "start_ns", "end_ns")
        windows = slices(starts, ends, step_names, "step", self.steps.select(_STEP_NOTES))
        group = self.writer.write_slices(Track("steps", parent, about=about), windows)
        self._write_ranges(group, ranges)
        self._write_launches(group, events)
        self._write_derived(group, events, collectives)
        operations = _operations(events, collectives)
        place = n_written = 0
        for name, lanes in _streams(events):
            self._write_lanes(
                Track(name, parent, place, process=self.track.process, is_thread=True),
                operations,
                lanes,
            )
            place += len(lanes)
            n_written += sum(lane.size for lane in lanes)
            yield n_written

    def _write_lanes(self, track: Track, table: pa.Table, lanes: Iterable[Int64]) -> None:
        for at, rows in enumerate(lanes):
            name = f"{track.name} ({at + 1})" if at else track.name
            self.writer.write_slices(
                replace(track, name=name, place=track.place + at), table.take(pa.array(rows))
            )

    def _write_ranges(self, group: int, ranges: pa.Table) -> None:
        names = pc.coalesce(ranges["phase"], _step_names(ranges))
        notes = ranges.select(_RANGE_NOTES)
        starts, ends = _times(ranges, "start_ns", "end_ns")
        is_phase = pc.is_valid(ranges["phase"])
        lanes = nested_lanes(starts, ends, is_phase.cast(pa.int64()).to_numpy())
        self._write_lanes(
            Track("phases on host", group, _HOST), slices(starts, ends, names, "host", notes), lanes
        )
        device = ranges.append_column("name", names).filter(
            pc.and_(is_phase, pc.is_valid(ranges["device_start_ns"]))
        )
        starts, ends = _times(device, "device_start_ns", "device_end_ns")
        about = (
            "from the start of the first operation launched in it to the end of the last. Data "
            "copies of a step run before its first kernel"
        )
        phases = slices(starts, ends, device["name"], "phase", device.select(_RANGE_NOTES))
        self._write_lanes(
            Track("phases on GPU", group, _DEVICE_PHASES, about),
            phases,
            disjoint_lanes(starts, ends),
        )

    def _write_launches(self, group: int, events: pa.Table) -> None:
        """Write when the host called what launches operations; how long a call took is not among the operations."""
        launched = events.filter(pc.is_valid(events["launch_ns"])).sort_by("launch_ns")
        calls = launched.take(
            pa.array(run_starts(*_times(launched, "launch_ns")))
        )  # a graph's have one launch
        if calls.num_rows:
            (times,) = _times(calls, "launch_ns")
            about = "when each call that launches something began, by what it launched"
            table = slices(times, times, calls["name"], "call", calls.select(["correlation_id"]))
            self.writer.write_slices(Track("CUDA calls on host", group, _CALLS, about), table)

    def _write_derived(self, group: int, events: pa.Table, collectives: pa.Table) -> None:
        of_kinds = (
            events.filter(pc.equal(events["category"], kind)) for kind in ("compute", "comm")
        )
        compute, comm = (union(*_times(own, "start_ns", "end_ns")) for own in of_kinds)
        inside = _windows(self.steps, "exposed_comm_ns")
        if len(inside):
            track = Track(
                "exposed communication",
                group,
                _EXPOSED,
                "communication during which no compute kernel runs",
            )
            self._write_times(track, exposed_comm(comm.intersect(inside), compute))
        inside = _windows(self.steps, "wait_ns")
        if len(inside):
            about = "communication before the last rank of the collective was there"
            track = Track("waiting in communication", group, _WAITING, about)
            self._write_times(track, _waiting_time(collectives, inside))
        counters = (
            ("compute busy", _COMPUTE, compute, "compute_ns"),
            ("communication busy", _COMM, comm, "comm_ns"),
        )
        for name, place, busy, figure in counters:
            inside = _windows(self.steps, figure)
            if len(inside):
                about = f"share of each {self.edges[1] - self.edges[0]} ns"
                track = Track(name, group, place, about, unit="%")
                self.writer.write_counter(track, *busy_percent(busy, inside, self.edges))

    def _write_times(self, track: Track, times: IntervalSet) -> None:
        at = np.searchsorted(self.steps["start_ns"].to_numpy(), times.starts, side="right") - 1
        notes = self.steps.select(["step"]).take(pa.array(at))
        self.writer.write_slices(
            track, slices(times.starts, times.ends, track.name, "derived", notes)
        )


def _windows(steps: pa.Table, figure: str) -> IntervalSet:
    """Return the time of one rank's windows in which a figure is known; windows that touch are one."""
    return union(*_times(steps.filter(pc.is_valid(steps[figure])), "start_ns", "end_ns"))


def _waiting_time(collectives: pa.Table, inside: IntervalSet) -> IntervalSet:
    """Return ``W n windows``, W = the union of [own start, min(last start, own end)); its length in one is ``wait_ns``."""
    matched = collectives.filter(
        pc.and_(collectives["is_matched"], pc.is_valid(collectives["wait_ns"]))
    )
    starts, ends, waits = _times(matched, "start_ns", "end_ns", "wait_ns")
    return union(starts, waited_until(starts, ends, waits)).intersect(inside)


def bin_edges(steps: pa.Table) -> Int64:
    """Return the edges of the counters' bins, equally long and the same for all ranks, ns; none without windows.

    Between two captures, where no rank has a window, there is one bin more, of any length.
    """
    if not steps.num_rows:
        return np.empty(0, np.int64)
    starts, ends = _times(steps, "start_ns", "end_ns")
    stretches = union(starts, ends)
    if not stretches.starts.size:  # no window has a length
        return starts[:1]
    n_most = min(_BINS_PER_STEP * pc.count_distinct(steps["step"]).as_py(), _MOST_BINS)
    width = max(-(-int((stretches.ends - stretches.starts).sum()) // n_most), 1)
    pairs = zip(stretches.starts.tolist(), stretches.ends.tolist(), strict=True)
    edges = [np.arange(first, last + width, width, dtype=np.int64) for first, last in pairs]
    # The last bin of a capture may reach into the next one.
    cut = [own[own < after[0]] for own, after in itertools.pairwise(edges)]
    return np.concatenate([*cut, edges[-1]])


def busy_percent(busy: IntervalSet, inside: IntervalSet, edges: Int64) -> tuple[Int64, Int64]:
    """Return how busy a rank is in each bin, in whole percent, and from when on; equal values once, 0 at the end."""
    edges = edges[: np.searchsorted(edges, inside.ends[-1]) + 1]
    starts = edges[:-1]
    ends = edges[1:]
    length = inside.lengths(starts, ends)
    covered = busy.intersect(inside).lengths(starts, ends)
    percent = np.append((200 * covered + length) // np.maximum(2 * length, 1), 0)
    is_new = np.append(True, percent[1:] != percent[:-1])
    return edges[is_new], percent[is_new]


def _flow_ids(table: pa.Table) -> pa.Array:
    """Return the number of the arrows that link a collective's ranks: another one in all steps within 2**40."""
    return pc.add(pc.shift_left(table["step"], _SEQ_BITS), pc.add(table["seq"], 1)).combine_chunks()


def _with_last_rank(collectives: pa.Table) -> pa.Table:
    """Add which rank the others waited for: null where nobody came last alone, or nothing is matched."""
    late = collectives.filter(pc.greater(collectives["late_by_ns"], 0))
    last = late["rank"].take(pc.index_in(_flow_ids(collectives), value_set=_flow_ids(late)))
    return collectives.append_column("last_rank", pc.if_else(collectives["is_matched"], last, None))


def _operations(events: pa.Table, collectives: pa.Table) -> pa.Table:
    ids = _flow_ids(collectives)
    found = collectives.select(_COLLECTIVE_NOTES).append_column(
        FLOW, pc.if_else(collectives["is_matched"], ids, None)
    )
    found = found.take(pc.index_in(_flow_ids(events), value_set=ids, skip_nulls=True))
    columns = [*events.select(_OPERATION_NOTES).columns, *found.columns]
    notes = pa.table(columns, names=[*_OPERATION_NOTES, *found.column_names])
    starts, ends = _times(events, "start_ns", "end_ns")
    category = pc.if_else(
        pc.equal(events["name"], GRAPH), "graph", events["category"]
    )  # not known to be compute
    return slices(starts, ends, events["name"], category, notes)


_MOST_STREAMS = 4096  # a program has some tens; each is a track, or several


def _streams(events: pa.Table) -> Iterator[tuple[str, list[Int64]]]:
    """Yield each stream in order of (device, stream): its name, and the rows of its tracks in order of (start, end, id)."""
    names = ("device_id", "stream_id", "correlation_id")
    devices, streams, ids = (pc.fill_null(events[name], _NOT_KNOWN).to_numpy() for name in names)
    starts, ends = _times(events, "start_ns", "end_ns")
    is_graph = pc.equal(events["name"], GRAPH).cast(pa.int64()).to_numpy()
    order = np.lexsort((is_graph, streams, devices))
    edges = functools.reduce(
        np.union1d, (run_starts(numbers[order]) for numbers in (devices, streams, is_graph))
    )
    if edges.size > _MOST_STREAMS:
        what = f"would have {edges.size} streams of one rank, more than {_MOST_STREAMS}"
        raise OutputError(
            "the trace for Perfetto", what, fix="fewer steps (--perfetto-steps), or another report"
        )
    for of_stream in np.split(order, edges[1:]) if order.size else ():
        rows = np.sort(of_stream)
        lanes = disjoint_lanes(starts[rows], ends[rows], ids[rows])
        numbers = {"GPU": devices[rows[0]], "stream": streams[rows[0]]}
        parts = (
            f"unknown {kind}" if n == _NOT_KNOWN else f"{kind} {n}" for kind, n in numbers.items()
        )
        has_comm = pc.any(pc.equal(events["category"].take(pa.array(rows)), "comm")).as_py()
        holds = " (NCCL)" if has_comm else " (CUDA graphs as a whole)" if is_graph[rows[0]] else ""
        yield " ".join(parts) + holds, [rows[lane] for lane in lanes]


def run_id_of_trace(path: Path) -> str | None:
    """Return the id of the run that a trace was written of; None for any other file. Reads its first packet only."""
    from google.protobuf.message import DecodeError
    from google.protobuf.proto import parse_length_prefixed

    try:
        with path.open("rb") as file:
            is_packet = file.read(len(_TAG)) == _TAG
            head = io.BytesIO(file.read(_LONGEST_HEAD))
        packet = parse_length_prefixed(pb2().TracePacket, head) if is_packet else None
    except (OSError, ValueError, DecodeError):
        return None
    name: str = packet.track_descriptor.name if packet else ""
    return name.removeprefix(_HEAD) if name.startswith(_HEAD) else None
