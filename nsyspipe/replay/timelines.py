"""The captured steps on each rank: windows, operations and collectives, in aligned ns."""

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from numpy.typing import NDArray

from nsyspipe.analysis.attribution import filled
from nsyspipe.analysis.intervals import places_in_runs
from nsyspipe.model.names import PHASES
from nsyspipe.model.table import Flags, Float64, Int64
from nsyspipe.model.typed_tables import (
    EventsTable,
    StepsTable,
)
from nsyspipe.run.run import Run

# Times before and after all times of a run. An operation whose launch was not recorded has the
# first as its launch.
BEFORE_ALL_NS = -(2**62)
AFTER_ALL_NS = 2**62
# The collectives of FSDP.
SHARD_COLLECTIVES = frozenset(("all_gather", "reduce_scatter"))
_PHASES = pa.array(PHASES, pa.string())
_NO_PHASE = -1
_NO_STEP = BEFORE_ALL_NS
_NO_SEQ = BEFORE_ALL_NS


class ReplayWindows(Struct, frozen=True):
    """The windows of the steps to replay, which are the same steps on every rank."""

    ranks: tuple[int, ...]
    steps: Int64
    # Where each window starts, and where the last one ends: a row more than steps, and a column
    # per rank.
    edges: Int64
    # By step: whether it is one of the steps used.
    is_used: Flags

    def step_times(self, edges: Float64 | None = None) -> Float64:
        """Return the step time of each step used, ns: its largest window over ranks.

        By default, the windows are the captured ones.
        """
        window_edges = self.edges if edges is None else edges
        windows_ns = np.diff(window_edges, axis=-2)
        largest_windows = windows_ns.max(axis=-1)
        step_times: Float64 = largest_windows[..., self.is_used]
        return step_times


class Collectives(Struct, frozen=True):
    """A rank's communication operations, in order of launch."""

    start: Int64
    end: Int64
    launch: Int64
    step: Int64
    seq: Int64
    phase: Int64
    stream: Int64
    kind: NDArray[np.object_]
    # Whether it is on the main stream, where the next operation waits for it without a marker.
    is_inline: Flags


class CollectiveUses(Struct, frozen=True):
    """The purpose of the collectives of the lowest rank, in order of launch."""

    # NaN where the message size is not known.
    n_bytes: Float64
    is_gradient: Flags
    role: NDArray[np.object_]
    # The collectives of one chain run one after the other.
    chain: Int64


class RankTimeline(Struct, frozen=True, dict=True):
    """The operations of one rank between the first and the last edge of its windows."""

    # The operations of the main stream (the one with most compute time), in order of start. If no
    # launch was recorded, `launch` is the latest launch before.
    start: Int64
    end: Int64
    launch: Int64
    step: Int64
    phase: Int64
    # The place in `names`.
    name: Int64
    names: tuple[str, ...]
    n_bytes: Int64
    is_copy: Flags
    is_compute: Flags
    n_without_launch: int
    # Compute kernels on communication streams that are not the main stream.
    n_comm_stream_kernels: int
    comm_stream_kernels_ns: int
    n_comm_outside_steps: int
    collectives: Collectives

    @cached_property
    def latest_launch(self) -> Int64:
        """The latest launch up to each operation."""
        return np.maximum.accumulate(self.launch)

    @cached_property
    def end_before(self) -> Int64:
        """The latest end of the operations before each operation.

        The last value is that of all operations, so there is one more than operations.
        """
        latest_end = np.maximum.accumulate(self.end)
        return np.append(BEFORE_ALL_NS, latest_end)

    @cached_property
    def end_of_copies(self) -> Int64:
        """The place after the sequence of copies that begins at each operation.

        That is the place of the next operation that is no copy, or the number of operations. For an
        operation that is no copy, it is its own place. Kernels that copy by their names count.
        """
        small_names = map(str.lower, self.names)
        has_copy_in_name = ["copy" in name for name in small_names]
        is_copy_name = np.array(has_copy_in_name, np.bool_)
        is_copy = self.is_copy | is_copy_name[self.name]
        place = np.arange(is_copy.size)
        place_of_others = np.where(is_copy, is_copy.size, place)
        # The next one has the least place from here on, so the minimum runs from the end.
        next_of_others_backwards = np.minimum.accumulate(place_of_others[::-1])
        return next_of_others_backwards[::-1]


def durations_ns(timeline: RankTimeline, rows: Int64) -> Float64:
    """Return the durations of some operations of a rank."""
    durations = timeline.end - timeline.start
    return durations[rows].astype(np.float64)


class _StepGrid(NamedTuple):
    """The windows of consecutive steps: a row per rank, a column per step."""

    steps: Int64
    starts: Int64
    ends: Int64


def summary_windows(run: Run) -> ReplayWindows | None:
    """Return the windows of all steps from the first to the last step used.

    These include steps between them that are not used. If a run has several captures, these are the
    windows of the capture with the most steps used, because no step leads from one capture to the
    next. Return None if a step used is not complete, if a rank lacks a step of another rank, or if
    captures differ between ranks.
    """
    steps = run.steps()
    used_rows = steps.filter(steps["in_summary"])
    are_complete = pc.all(used_rows["is_complete"]).as_py()
    if not used_rows.num_rows or not are_complete:
        return None
    used_steps = np.unique(used_rows["step"].to_numpy())
    step = steps["step"].to_numpy()
    is_from_first = step >= used_steps[0]
    is_to_last = step <= used_steps[-1]
    between = steps.filter(is_from_first & is_to_last)
    ranks = tuple(run.ranks["rank"].to_pylist())
    grid = _step_grid(between, ranks)
    if grid is None:
        return None
    is_used = np.isin(grid.steps, used_steps)
    stretch = _longest_stretch(grid, is_used)
    if stretch is None:
        return None
    edges = _edges_of_stretch(grid, stretch)
    return ReplayWindows(ranks, grid.steps[stretch], edges, is_used[stretch])


def _edges_of_stretch(grid: _StepGrid, stretch: slice) -> Int64:
    """Return `ReplayWindows.edges` of consecutive steps."""
    starts = grid.starts[:, stretch]
    ends = grid.ends[:, stretch]
    last_end = ends[:, -1:]
    edges_of_ranks = np.concatenate((starts, last_end), axis=1)
    return edges_of_ranks.T


def _step_grid(steps: StepsTable, ranks: Sequence[int]) -> _StepGrid | None:
    """Arrange rows of steps by rank and step. Return None if a rank lacks a step of another rank.

    `ranks` are sorted.
    """
    rank = steps["rank"].to_numpy()
    step = steps["step"].to_numpy()
    distinct_steps = np.unique(step)
    n_steps = distinct_steps.size
    # The most important key is the last one.
    order = np.lexsort((step, rank))
    rank_of_cells = np.repeat(ranks, n_steps)
    has_row_per_cell = np.array_equal(rank[order], rank_of_cells)
    if not has_row_per_cell:
        return None
    shape = (len(ranks), n_steps)
    start = steps["start_ns"].to_numpy()
    end = steps["end_ns"].to_numpy()
    starts = start[order].reshape(shape)
    ends = end[order].reshape(shape)
    return _StepGrid(distinct_steps, starts, ends)


def _longest_stretch(grid: _StepGrid, is_used: Flags) -> slice | None:
    """Return the longest stretch of consecutive steps: the one with the most steps used.

    The result goes from the first to the last step used of the stretch. Steps are consecutive if
    one ends where the next one starts. Return None if two steps are consecutive on some ranks only.
    """
    next_starts = grid.starts[:, 1:]
    is_consecutive = grid.ends[:, :-1] == next_starts
    is_on_any_rank = is_consecutive.any(axis=0)
    is_on_all_ranks = is_consecutive.all(axis=0)
    if not np.array_equal(is_on_any_rank, is_on_all_ranks):
        return None
    breaks = np.flatnonzero(~is_on_all_ranks) + 1
    stretches = _stretches(breaks.tolist(), is_used.size)
    n_used = [np.count_nonzero(is_used[stretch]) for stretch in stretches]
    number_of_longest = int(np.argmax(n_used))
    longest = stretches[number_of_longest]
    used_places = np.flatnonzero(is_used[longest]) + longest.start
    first_used = int(used_places[0])
    last_used = int(used_places[-1])
    return slice(first_used, last_used + 1)


def _stretches(breaks: list[int], n_steps: int) -> list[slice]:
    """Return the consecutive steps before, between and after breaks."""
    firsts = [0, *breaks]
    ends = [*breaks, n_steps]
    return list(map(slice, firsts, ends))


def rank_timelines(run: Run, windows: ReplayWindows) -> list[RankTimeline]:
    """Read the operations of each rank in the windows, in order of rank.

    Raise a `DatasetError` if the run was saved without its operations.
    """
    known_steps = run.steps()["step"].to_numpy()
    first_step = int(windows.steps[0])
    last_step = int(windows.steps[-1])
    # Also read the step after the last, if there is one. Its copies before its first kernel are in
    # the last window.
    later_steps = known_steps[known_steps > last_step]
    last_read_step = int(later_steps.min()) if later_steps.size else last_step
    operations = run.operations((first_step, last_read_step))
    events_of_ranks = {rank: events for rank, events, _ in operations}
    timelines = []
    for column, rank in enumerate(windows.ranks):
        first_edge, last_edge = windows.edges[[0, -1], column]
        events = _Events(events_of_ranks[rank], first_edge, last_edge)
        timelines.append(_rank_timeline(events, windows.steps))
    return timelines


class _Events:
    """The columns of a rank's events, as arrays, and which of the events are in the windows.

    The windows of the rank go from the first to the last edge.
    """

    def __init__(self, table: EventsTable, first_edge: int, last_edge: int) -> None:
        self.table = table
        self.start: Int64 = table["start_ns"].to_numpy()
        self.end: Int64 = table["end_ns"].to_numpy()
        self.duration: Int64 = table["dur_ns"].to_numpy()
        self.step = filled(table["step"], _NO_STEP)
        phase = pc.index_in(table["phase"], _PHASES)
        known_phase = filled(phase, _NO_PHASE)
        self.phase: Int64 = known_phase.astype(np.int64)
        self.stream = self._number_streams()
        is_from_first_edge = self.start >= first_edge
        is_before_last_edge = self.start < last_edge
        self.is_inside: Flags = is_from_first_edge & is_before_last_edge
        self.is_comm = self._has_category("comm")
        is_compute = self._has_category("compute")
        self.is_inside_compute = is_compute & self.is_inside
        self.main_stream = self._find_main_stream()
        self.launch = self._distinct_launches()

    def columns(self, rows: Int64) -> dict[str, Int64]:
        """Return the columns that `RankTimeline` and `Collectives` have in common."""
        start = self.start[rows]
        end = self.end[rows]
        launch = self.launch[rows]
        step = self.step[rows]
        phase = self.phase[rows]
        return {"start": start, "end": end, "launch": launch, "step": step, "phase": phase}

    def _number_streams(self) -> Int64:
        """Return the number of each event's stream. Streams of several devices differ."""
        device = filled(self.table["device_id"], -1)
        stream = filled(self.table["stream_id"], -1)
        stream_of_device = np.stack((device, stream))
        _, numbers = np.unique(stream_of_device, axis=1, return_inverse=True)
        return numbers.reshape(-1)

    def _has_category(self, category: str) -> Flags:
        has_category = pc.equal(self.table["category"], category)
        flags: Flags = has_category.to_numpy(zero_copy_only=False)
        return flags

    def _find_main_stream(self) -> int:
        """Return the stream with the most compute time; -1 without compute kernels."""
        is_compute = self.is_inside_compute
        streams = self.stream[is_compute]
        durations_ns = self.duration[is_compute]
        compute_ns = np.bincount(streams, weights=durations_ns)
        return int(np.argmax(compute_ns)) if compute_ns.size else -1

    def _distinct_launches(self) -> Int64:
        """Return the launches, `BEFORE_ALL_NS` where none was recorded.

        The nodes of a CUDA graph have one launch. On the main stream, each node is launched 1 ns
        after the node before it, in order of start. So launches show the order of operations.
        """
        known_launch = filled(self.table["launch_ns"], BEFORE_ALL_NS)
        launch = known_launch.copy()
        is_on_main_stream = self.stream == self.main_stream
        on_main_stream = np.flatnonzero(self.is_inside & is_on_main_stream)
        main_launch = launch[on_main_stream]
        is_recorded = main_launch != BEFORE_ALL_NS
        # An operation with a launch of its own has the place 0.
        place_in_graph = places_in_runs(main_launch)
        launch[on_main_stream] += np.where(is_recorded, place_in_graph, 0)
        return launch


def _rank_timeline(events: _Events, steps: Int64) -> RankTimeline:
    """Return the timeline of a rank.

    It has the operations of the main stream, without communication, and the collectives of `steps`
    on all streams.
    """
    is_on_main_stream = events.stream == events.main_stream
    rows = np.flatnonzero(events.is_inside & ~events.is_comm & is_on_main_stream)
    columns = _operation_columns(events, rows)
    launch = events.launch[rows]
    n_without_launch = int(np.count_nonzero(launch == BEFORE_ALL_NS))
    encoded_names = events.table["name"].combine_chunks().dictionary_encode()
    distinct_names = tuple(encoded_names.dictionary.to_pylist())
    is_copy_name = np.array(distinct_names, object) == "memcpy DtoD"
    name_code = encoded_names.indices.to_numpy()[rows].astype(np.int64)
    comm_rows = np.flatnonzero(events.is_inside & events.is_comm)
    is_in_steps = np.isin(events.step[comm_rows], steps)
    comm_in_steps = comm_rows[is_in_steps]
    n_comm_outside_steps = comm_rows.size - comm_in_steps.size
    comm_stream_kernel_ns = _comm_stream_kernel_times(events, comm_rows)
    collectives = _collectives(events, comm_in_steps)
    return RankTimeline(
        **columns,
        name=name_code,
        names=distinct_names,
        is_copy=is_copy_name[name_code],
        is_compute=events.is_inside_compute[rows],
        n_without_launch=n_without_launch,
        n_comm_stream_kernels=comm_stream_kernel_ns.size,
        comm_stream_kernels_ns=int(comm_stream_kernel_ns.sum()),
        n_comm_outside_steps=n_comm_outside_steps,
        collectives=collectives,
    )


def _operation_columns(events: _Events, rows: Int64) -> dict[str, Int64]:
    """Return the columns of operations. A launch that was not recorded is the latest one before."""
    columns = events.columns(rows)
    launch = columns["launch"]
    latest_launch = np.maximum.accumulate(launch)
    is_without_launch = launch == BEFORE_ALL_NS
    columns["launch"] = np.where(is_without_launch, latest_launch, launch)
    n_bytes = filled(events.table["bytes"], 0)
    columns["n_bytes"] = n_bytes[rows]
    return columns


def _comm_stream_kernel_times(events: _Events, comm_rows: Int64) -> Int64:
    """Return the durations of the compute kernels on communication streams, ns.

    The main stream does not count, even if it has communication.
    """
    comm_streams = events.stream[comm_rows]
    is_comm_stream = np.isin(events.stream, comm_streams)
    is_beside_main = events.stream != events.main_stream
    is_side_kernel = events.is_inside_compute & is_comm_stream & is_beside_main
    times: Int64 = events.duration[is_side_kernel]
    return times


def _collectives(events: _Events, rows: Int64) -> Collectives:
    """Return the communication operations in some rows of the events, in order of launch."""
    start = events.start[rows]
    launch = events.launch[rows]
    order = np.lexsort((start, launch))
    by_launch = rows[order]
    kinds = events.table["collective"].take(pa.array(by_launch))
    kind = np.asarray(kinds.to_pylist(), object)
    stream = events.stream[by_launch]
    seq = filled(events.table["seq"], _NO_SEQ)
    is_inline = stream == events.main_stream
    return Collectives(
        **events.columns(by_launch),
        seq=seq[by_launch],
        stream=stream,
        kind=kind,
        is_inline=is_inline,
    )
