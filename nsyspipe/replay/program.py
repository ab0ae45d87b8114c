"""The captured steps: what each rank did, and a `Program` of it, where communication and other work wait for each other.

Times are aligned, ns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nsyspipe.analysis.intervals import IntervalSet, union
from nsyspipe.model.names import PHASES
from nsyspipe.replay.simulate import JOIN, READY, WINDOW, Program

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from nsyspipe.model.table import Flags, Float64, Int64
    from nsyspipe.run.run import Run

# The launch of what has none: before everything.
NEVER = -(2**62)
_COPY_NAME = "memcpy DtoD"
_PHASES, _NO_PHASE = pa.array(PHASES, pa.string()), -1
# A rank stood still for a collective when it went on this soon after the end, after this much of nothing.
_SOON_NS, _STANDSTILL_NS = 50_000, 20_000


@dataclass(frozen=True)
class Windows:
    """The windows to replay, the same steps on every rank."""

    ranks: tuple[int, ...]
    steps: Int64
    edges: Int64  # one more than steps, a column per rank: where each window starts, and the last one ends
    counts: Flags  # which of the steps count in the run's figures

    def step_times(self, edges: Float64 | None = None) -> Float64:
        """Return the largest window over ranks of each step that counts, ns."""
        found = self.edges if edges is None else edges
        longest: Float64 = np.diff(found, axis=-2).max(axis=-1)[..., self.counts]
        return longest


@dataclass(frozen=True)
class Collectives:
    """A rank's communication operations, in order of launch."""

    start: Int64
    end: Int64
    launch: Int64
    step: Int64
    seq: Int64
    phase: Int64
    stream: Int64
    kind: NDArray[np.object_]


@dataclass(frozen=True)
class RankTimeline:
    """What one rank did between the first and the last edge of its windows."""

    # The operations of the main stream, which has most compute time, in order of start; one without a launch has that of
    # the one before it.
    start: Int64
    end: Int64
    launch: Int64
    step: Int64
    phase: Int64
    name: Int64  # place in `names`
    names: tuple[str, ...]
    n_bytes: Int64
    is_copy: Flags
    is_compute: Flags
    n_without_launch: int
    n_hooked: int  # compute kernels on a stream of communication
    hooked_ns: int
    next_launch: int  # of what begins the window after the last one; `NEVER`: nothing does
    n_outside: int  # communication operations that belong to no step
    collectives: Collectives


def summary_windows(run: Run) -> Windows | None:
    """Return the windows from the first to the last summary step; None unless all ranks have them, complete and one after the other."""
    table = run.steps()
    ranks = tuple(run.ranks["rank"].to_pylist())
    chosen = table.filter(table["in_summary"])
    if not chosen.num_rows or not pc.all(chosen["is_complete"]).as_py():
        return None
    summary = np.unique(chosen["step"].to_numpy())
    all_steps = table["step"].to_numpy()
    held = table.filter((all_steps >= summary[0]) & (all_steps <= summary[-1]))
    rank, step = held["rank"].to_numpy(), held["step"].to_numpy()
    steps = np.unique(step)
    order = np.lexsort((step, rank))
    if not np.array_equal(rank[order], np.repeat(ranks, steps.size)):
        return None
    starts, ends = (held[name].to_numpy()[order].reshape(len(ranks), steps.size) for name in ("start_ns", "end_ns"))
    if not np.array_equal(ends[:, :-1], starts[:, 1:]):
        return None
    edges = np.concatenate((starts, ends[:, -1:]), axis=1).T
    return Windows(ranks, steps, edges, np.isin(steps, summary))


def rank_timelines(run: Run, windows: Windows) -> list[RankTimeline]:
    """Read what each rank did in the windows, in order of rank; a `DatasetError` if a run was saved without its operations."""
    known, last = run.steps()["step"].to_numpy(), int(windows.steps[-1])
    # The step after the last: what begins it tells why it did not begin earlier.
    span = int(windows.steps[0]), int(known[known > last].min(initial=known.max(initial=last)))
    found = {rank: events for rank, events, _ in run.operations(span)}
    return [_timeline(found[rank], *windows.edges[[0, -1], at]) for at, rank in enumerate(windows.ranks)]


def _timeline(events: pa.Table, first: int, last: int) -> RankTimeline:
    columns = {
        "start": events["start_ns"].to_numpy(),
        "end": events["end_ns"].to_numpy(),
        "launch": _filled(events["launch_ns"], NEVER),
        "step": _filled(events["step"], NEVER),
        "phase": _filled(pc.index_in(events["phase"], _PHASES), _NO_PHASE).astype(np.int64),
    }
    start, duration = columns["start"], events["dur_ns"].to_numpy()
    category = events["category"]
    is_comm, is_compute = (pc.equal(category, word).to_numpy(zero_copy_only=False) for word in ("comm", "compute"))
    places = np.stack([_filled(events[name], -1) for name in ("device_id", "stream_id")])
    stream = np.unique(places, axis=1, return_inverse=True)[1].reshape(-1)
    inside = (start >= first) & (start < last)
    computing = is_compute & inside
    lengths = np.bincount(stream[computing], weights=duration[computing])
    main = int(np.argmax(lengths)) if lengths.size else -1
    # In order of start, which is that of launch on one stream.
    rows = np.flatnonzero(inside & ~is_comm & (stream == main))
    codes = events["name"].combine_chunks().dictionary_encode()
    name, names = codes.indices.to_numpy()[rows], tuple(codes.dictionary.to_pylist())
    comm = np.flatnonzero(inside & is_comm)
    hooked = computing & np.isin(stream, stream[comm])
    after = np.flatnonzero((start >= last) & (is_comm | is_compute))
    own = {key: value[rows] for key, value in columns.items()}
    is_without = own["launch"] == NEVER
    own["launch"] = np.where(is_without, np.maximum.accumulate(own["launch"]), own["launch"])
    in_step = comm[columns["step"][comm] != NEVER]
    by_launch = in_step[np.lexsort((start[in_step], columns["launch"][in_step]))]
    return RankTimeline(
        **own,
        name=name.astype(np.int64),
        names=names,
        n_bytes=_filled(events["bytes"], 0)[rows],
        is_copy=np.array([one == _COPY_NAME for one in names], np.bool_)[name],
        is_compute=is_compute[rows],
        n_without_launch=int(np.count_nonzero(is_without)),
        n_hooked=int(np.count_nonzero(hooked)),
        hooked_ns=int(duration[hooked].sum()),
        next_launch=int(columns["launch"][after[np.argmin(start[after])]]) if after.size else NEVER,
        n_outside=comm.size - in_step.size,
        collectives=Collectives(
            **{key: value[by_launch] for key, value in columns.items()},
            seq=_filled(events["seq"], NEVER)[by_launch],
            stream=stream[by_launch],
            kind=np.asarray(events["collective"].take(pa.array(by_launch)).to_pylist(), object),
        ),
    )


def _filled(column: pa.ChunkedArray, value: int) -> Int64:
    filled: Int64 = (pc.fill_null(column, value) if column.null_count else column).to_numpy()
    return filled


@dataclass(frozen=True)
class RankMarkers:
    """Where one rank and its collectives depend on each other; times aligned, ns."""

    ready: Int64  # per collective: when the rank's own work allowed it
    join: Int64  # per collective: place of the first operation that waits for it; their number for none
    stalls: IntervalSet  # when the rank did nothing but wait for a collective, or what is left out
    beside: IntervalSet  # when communication was under way and it did not
    begun: Int64  # starts of its operations, ascending
    begun_beside: Int64  # and of those that began beside communication

    def places(self, times: Int64) -> Float64:
        """Return how far the rank had come at some times, in the four rows of `Program.places`."""
        spans = times - self.stalls.covered_until(times), self.beside.covered_until(times)
        counts = (np.searchsorted(starts, times) for starts in (self.begun, self.begun_beside))
        return np.stack([*spans, *counts]).astype(np.float64)


@dataclass(frozen=True)
class Captured:
    """The captured steps, ready to be replayed."""

    program: Program
    ranks: tuple[RankMarkers, ...]
    timelines: tuple[RankTimeline, ...]
    windows: Windows
    burst: Int64  # number of each collective's burst: those of one pass of one step, one after the other

    @property
    def steps(self) -> range:
        """Places of the steps among the windows."""
        return range(self.windows.steps.size)


def captured_program(
    timelines: Sequence[RankTimeline],
    windows: Windows,
    n_bytes: Float64,
    is_gradient: Flags,
    removed: Sequence[tuple[Int64, Int64]] | None = None,
) -> Captured:
    """Return the captured steps of all ranks, which have the same collectives in the same order, as a program.

    `READY` is the end of the last operation of the main stream launched before the collective, or its own launch if later.
    `JOIN` is the first launched after it that went on right after its end; without one, the first launched after the last
    collective of its burst that begins after its end: DDP waits for all of them after the backward pass. `removed` are
    starts and ends of work to leave out, for each rank.
    """
    first = timelines[0].collectives
    burst = _bursts(timelines[0])
    less = removed or [(np.empty(0, np.int64),) * 2] * len(timelines)
    of_ranks = zip(timelines, windows.edges[0].tolist(), less, strict=True)
    found = tuple(_rank_markers(rank, burst, first_edge, *gone) for rank, first_edge, gone in of_ranks)
    edges = _begins(timelines, found, windows)
    starts = np.stack([one.collectives.start for one in timelines], axis=1)
    ends = np.stack([one.collectives.end for one in timelines], axis=1)
    ready = np.stack([one.ready for one in found], axis=1)
    chain = np.unique(first.stream, return_inverse=True)[1].reshape(-1)
    before = np.full(ends.shape, NEVER)  # the end of the collective before each on its stream
    for one in np.unique(chain).tolist():
        own = np.flatnonzero(chain == one)
        before[own[1:]] = ends[own[:-1]]
    kind, which, places = _ordered(timelines, found, edges)
    program = Program(
        kind=kind,
        which=which,
        places=places,
        step=np.searchsorted(windows.steps, first.step),
        lag_ns=(starts - np.maximum(ready, before)).astype(np.float64),
        transfer_ns=(ends - starts.max(axis=1, keepdims=True)).astype(np.float64),
        n_bytes=n_bytes,
        chain=chain,
        is_gradient=is_gradient,
        begin_ns=edges[0].astype(np.float64),
        late_beside_ns=np.zeros(first.step.size),
        longer_beside=np.zeros(first.step.size),
    )
    return Captured(program, found, tuple(timelines), windows, burst)


def _bursts(rank: RankTimeline) -> Int64:
    """Return the number of each collective's burst: of one phase of one step, with no work of another launched between."""
    comm = rank.collectives
    order = np.argsort(rank.launch, kind="stable")
    n_before = np.searchsorted(rank.launch[order], comm.launch)
    is_other = np.zeros(max(comm.launch.size - 1, 0), np.bool_)
    for one in np.unique(comm.phase).tolist():  # a few
        n_others = np.append(0, np.cumsum(rank.phase[order] != one))[n_before]
        is_other |= (np.diff(n_others) > 0) & (comm.phase[1:] == one)
    begins = (np.diff(comm.step) != 0) | (np.diff(comm.phase) != 0) | is_other
    return np.append(0, np.cumsum(begins))[: comm.step.size]


def free_until(rank: RankTimeline) -> Int64:
    """Return the end of all operations before each; of one more, of all."""
    return np.append(NEVER, np.maximum.accumulate(rank.end))


def _rank_markers(
    rank: RankTimeline, burst: Int64, first_edge: int, removed_starts: Int64, removed_ends: Int64
) -> RankMarkers:
    comm = rank.collectives
    order = np.argsort(rank.launch, kind="stable")
    n_before = np.searchsorted(rank.launch[order], comm.launch)
    reached = np.append(NEVER, np.maximum.accumulate(rank.end[order]))
    ready = np.maximum(np.maximum(reached[n_before], comm.launch), first_edge)
    # What began earlier did not depend on that operation after all.
    ready = np.minimum(ready, comm.start)
    join = _joins(rank, burst)
    waits = np.flatnonzero(join < rank.start.size)
    begin = np.maximum(free_until(rank)[join[waits]], comm.start[waits])
    finish = np.minimum(comm.end[waits], rank.start[join[waits]])
    own = begin < finish
    stalls = union(np.concatenate((begin[own], removed_starts)), np.concatenate((finish[own], removed_ends)))
    beside = union(comm.start, comm.end).without(stalls)
    is_beside = beside.counts_up_to(rank.start) > np.searchsorted(beside.ends, rank.start, "right")
    return RankMarkers(ready, join, stalls, beside, rank.start, rank.start[is_beside])


def _joins(rank: RankTimeline, burst: Int64) -> Int64:
    comm, n = rank.collectives, rank.start.size
    if not n:
        return np.zeros(comm.end.size, np.int64)
    # Operations stand in order of start, which is that of launch on one stream.
    launch = np.maximum.accumulate(rank.launch)
    after_own = np.searchsorted(launch, comm.launch, side="right")
    begun = np.searchsorted(rank.start, comm.end)
    at = np.minimum(np.maximum(after_own, begun), n - 1)
    stood_still = (
        (rank.start[at] >= comm.end)
        & (rank.start[at] < comm.end + _SOON_NS)
        & (free_until(rank)[at] + _STANDSTILL_NS < comm.end)
        & (rank.launch[at] + _STANDSTILL_NS < comm.end)
        & (at >= after_own)
    )
    last_launch = np.full(int(burst.max(initial=-1)) + 1, NEVER)
    np.maximum.at(last_launch, burst, comm.launch)
    after_all = np.searchsorted(launch, last_launch[burst], side="right")
    return np.where(stood_still, at, np.maximum(after_all, begun))


def _begins(timelines: Sequence[RankTimeline], found: Sequence[RankMarkers], windows: Windows) -> Int64:
    """Return when the work of each window begins: of one that begins with a collective, when that could have."""
    edges = windows.edges.copy()
    for at, (rank, one) in enumerate(zip(timelines, found, strict=True)):
        first, begin = _next_collective(rank, edges[:-1, at])
        is_first = begin == edges[:-1, at]
        edges[:-1, at][is_first] = one.ready[first[is_first]]
    return edges


def _next_collective(rank: RankTimeline, times: Int64) -> tuple[Int64, Int64]:
    """Return the first collective that starts at or after each time, and that start; the last possible for none."""
    order = np.argsort(rank.collectives.start, kind="stable")
    starts = np.append(rank.collectives.start[order], -NEVER)
    at = np.searchsorted(starts, times)
    return np.append(order, 0)[at], starts[at]


def _ordered(
    timelines: Sequence[RankTimeline], found: Sequence[RankMarkers], edges: Int64
) -> tuple[Int64, Int64, Float64]:
    """Put the markers of all ranks into the order in which the lowest rank launched what they stand before."""
    n_edges, n_collectives = edges.shape[0], found[0].ready.size
    kind = np.repeat([WINDOW, READY, JOIN], [n_edges, n_collectives, n_collectives])
    which = np.concatenate((np.arange(n_edges), *(np.arange(n_collectives),) * 2))
    columns = []
    for at, (rank, one) in enumerate(zip(timelines, found, strict=True)):
        join_time = np.maximum(free_until(rank)[one.join], edges[0, at])
        # Of the operation that waits: work goes on from where it had stopped before it.
        join_time = np.where(one.join < rank.start.size, join_time, edges[-1, at])
        columns.append(one.places(np.concatenate((edges[:, at], one.ready, join_time))))
    lead = timelines[0]
    launch = np.append(np.maximum.accumulate(lead.launch), -NEVER)
    anchor = np.concatenate((_edge_anchors(lead, edges[:, 0], launch), lead.collectives.launch, launch[found[0].join]))
    # A window that begins with an operation that waits begins after the wait.
    rank_of_kind = np.array([1, 2, 0])[kind]
    order = np.lexsort((which, rank_of_kind, anchor))
    return kind[order], which[order], np.stack(columns, axis=2)[:, order]


def _edge_anchors(lead: RankTimeline, edges: Int64, launch: Int64) -> Int64:
    """Return the launch of what begins each window, an operation or a collective; after all others for the last edge."""
    place = np.searchsorted(lead.start, edges)
    anchors = launch[place]
    first, begin = _next_collective(lead, edges)
    is_comm = begin < np.append(lead.start, -NEVER)[place]
    anchors[is_comm] = lead.collectives.launch[first[is_comm]]
    anchors[-1] = -NEVER
    return anchors
