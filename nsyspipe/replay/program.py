"""The captured steps as a `Program`: where communication and the rest of the work wait for each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nsyspipe.analysis.intervals import IntervalSet, union
from nsyspipe.replay.timelines import NEVER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from nsyspipe.model.types import Flags, Float64, Int64
    from nsyspipe.replay.timelines import RankTimeline, Windows


# What a replay runs: markers in order, each with its place in every rank's work, and the collectives between them.


WINDOW, READY, JOIN = range(3)


@dataclass(frozen=True)
class Slowing:
    """How work beside communication is slower.

    Attributes
    ----------
    ratio
        c: it takes 1 + c times as long.
    delay_ns
        And each of its operations begins so much later.
    """

    ratio: float = 0.0
    delay_ns: float = 0.0

    def scaled(self, factor: float) -> Slowing:
        """Return one of another strength."""
        return Slowing(factor * self.ratio, factor * self.delay_ns)

    def blended(self, other: Slowing, share: float) -> Slowing:
        """Return one that is so much of another."""
        return Slowing(
            self.ratio + share * (other.ratio - self.ratio),
            self.delay_ns + share * (other.delay_ns - self.delay_ns),
        )

    def total(self, work_ns: float, n_operations: float) -> float:
        """Return by how much so much work takes longer, as a share of it."""
        return self.ratio + self.delay_ns * n_operations / max(work_ns, 1.0)


NOTHING = Slowing()


@dataclass(frozen=True)
class Program:
    """Markers of all ranks in one order, and the collectives that they begin and wait for.

    Attributes
    ----------
    kind
        Of each marker: `WINDOW`, the start of a window; `READY`, from here on a collective may begin;
        `JOIN`, what follows waits for the end of a collective.
    which
        Window or collective of each marker.
    work
        Row per marker, column per rank: how far the rank's own work has come there, ns: time less what
        it stood still for collectives.
    beside
        Of that, how long communication was under way on that rank.
    begun, begun_beside
        How many operations the rank's main stream had begun there, and how many of them beside communication.
    step
        Per collective: place of its step among the windows.
    lag_ns
        Row per collective, column per rank: from when it could have begun to its start.
    transfer_ns
        Likewise: from the last rank's start to the own end.
    n_bytes
        Per collective: message bytes; NaN where not known.
    chain
        Per collective: number of its stream; those of one stream follow one another.
    is_gradient
        Per collective: one of the gradients' all-reduces.
    begin_ns
        Per rank: start of the first window, aligned.
    late_beside_ns, longer_beside
        Per collective that was not captured: how much later it begins, and by which share of it it is longer, when the
        rank works at its begin. Nothing of those that were: their lags and transfers hold it.
    """

    kind: Int64
    which: Int64
    work: Float64
    beside: Float64
    begun: Float64
    begun_beside: Float64
    step: Int64
    lag_ns: Float64
    transfer_ns: Float64
    n_bytes: Float64
    chain: Int64
    is_gradient: NDArray[np.bool_]
    begin_ns: Float64
    late_beside_ns: Float64
    longer_beside: Float64

    def free_work(self, slowing: Slowing) -> Float64:
        """Return how far work had come at each marker had communication not slowed it."""
        lost = slowing.ratio * self.beside + slowing.delay_ns * self.begun_beside
        place = self.work - lost / (1 + slowing.ratio)
        return np.maximum.accumulate(place, axis=0)

    @property
    def n_ranks(self) -> int:
        """Ranks."""
        return int(self.begin_ns.size)

    @property
    def n_windows(self) -> int:
        """Windows."""
        return int(np.count_nonzero(self.kind == WINDOW)) - 1


# A rank stood still for a collective when it went on this soon after the end, after this much of nothing.
_SOON_NS, _STANDSTILL_NS = 50_000, 20_000


@dataclass(frozen=True)
class RankMarkers:
    """Where one rank and its collectives depend on each other; times aligned, ns.

    Attributes
    ----------
    ready
        Per collective: when the rank's own work allowed it.
    join
        Per collective: place among the operations of the first one that waits for it; their number for none.
    stalls
        When the rank did nothing but wait for a collective, or what is left out.
    beside
        When communication was under way and it did not.
    begun, begun_beside
        Starts of its operations, and of those that began beside communication; ascending.
    """

    ready: Int64
    join: Int64
    stalls: IntervalSet
    beside: IntervalSet
    begun: Int64
    begun_beside: Int64

    def places(self, times: Int64) -> tuple[Float64, Float64, Float64, Float64]:
        """Return how far work had come at some times: time, and operations begun; of either how much beside communication."""
        work = times - self.stalls.covered_until(times)
        found = (
            work,
            self.beside.covered_until(times),
            np.searchsorted(self.begun, times),
            np.searchsorted(self.begun_beside, times),
        )
        reached, beside, begun, begun_beside = (one.astype(np.float64) for one in found)
        return reached, beside, begun, begun_beside


@dataclass(frozen=True)
class Captured:
    """The captured steps, ready to be replayed.

    Attributes
    ----------
    burst
        Number of each collective's burst: those of one pass of one step, one after the other.
    """

    program: Program
    ranks: tuple[RankMarkers, ...]
    timelines: tuple[RankTimeline, ...]
    windows: Windows
    burst: Int64


def captured_program(
    timelines: Sequence[RankTimeline],
    windows: Windows,
    n_bytes: Float64,
    is_gradient: Flags,
    removed: Sequence[tuple[Int64, Int64]] | None = None,
) -> Captured:
    """Return the captured steps as a program.

    Parameters
    ----------
    timelines
        Of all ranks, with the same collectives in the same order.
    n_bytes, is_gradient
        Per collective.
    removed
        Per rank: starts and ends of work to leave out.

    Notes
    -----
    `READY` is the end of the last operation of the main stream launched before the collective, or its own launch
    if later. `JOIN` is the first operation of the main stream that was launched after it, and went on right after its
    end; without one, the first that was launched after the last collective of its burst and begins after its end:
    DDP waits for all of them after the backward pass.
    """
    first = timelines[0].collectives
    burst = _bursts(timelines[0])
    nothing = [(np.empty(0, np.int64),) * 2] * len(timelines)
    found = tuple(
        _rank_markers(one, burst, int(first_edge), *less)
        for one, first_edge, less in zip(
            timelines, windows.edges[0], removed or nothing, strict=True
        )
    )
    windows_begin = _begins(timelines, found, windows)
    starts = np.stack([one.collectives.start for one in timelines], axis=1)
    ends = np.stack([one.collectives.end for one in timelines], axis=1)
    ready = np.stack([one.ready for one in found], axis=1)
    chain = np.unique(first.stream, return_inverse=True)[1].reshape(-1)
    kind, which, *places = _ordered(timelines, found, windows_begin)
    program = Program(
        kind=kind,
        which=which,
        **dict(zip(("work", "beside", "begun", "begun_beside"), places, strict=True)),
        step=np.searchsorted(windows.steps, first.step),
        lag_ns=(starts - np.maximum(ready, _end_before(ends, chain))).astype(np.float64),
        transfer_ns=(ends - starts.max(axis=1, keepdims=True)).astype(np.float64),
        n_bytes=n_bytes,
        chain=chain,
        is_gradient=is_gradient,
        begin_ns=windows_begin[0].astype(np.float64),
        late_beside_ns=np.zeros(first.step.size),
        longer_beside=np.zeros(first.step.size),
    )
    return Captured(program, found, tuple(timelines), windows, burst)


def _bursts(rank: RankTimeline) -> Int64:
    """Return the number of each collective's burst: of one phase of one step, with no work of another launched between.

    Where micro-batches all-reduce each, forward lies between, and the backward pass waits for its own alone.
    """
    comm = rank.collectives
    order = np.argsort(rank.launch, kind="stable")
    n_before = np.searchsorted(rank.launch[order], comm.launch)
    is_other = np.zeros(max(comm.launch.size - 1, 0), np.bool_)
    for one in np.unique(comm.phase).tolist():  # a few
        n_others = np.append(0, np.cumsum(rank.phase[order] != one))[n_before]
        is_other |= (np.diff(n_others) > 0) & (comm.phase[1:] == one)
    begins = (np.diff(comm.step) != 0) | (np.diff(comm.phase) != 0) | is_other
    return np.append(0, np.cumsum(begins))[: comm.step.size]


def _end_before(ends: Int64, chain: Int64) -> Int64:
    """Return the end of the collective before each on its stream."""
    found = np.full(ends.shape, NEVER)
    for one in np.unique(chain).tolist():
        own = np.flatnonzero(chain == one)
        found[own[1:]] = ends[own[:-1]]
    return found


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
    free = np.append(NEVER, np.maximum.accumulate(rank.end))  # end of all before each
    waits = np.flatnonzero(join < rank.start.size)
    begin = np.maximum(free[join[waits]], comm.start[waits])
    finish = np.minimum(comm.end[waits], rank.start[join[waits]])
    own = begin < finish
    stalls = union(
        np.concatenate((begin[own], removed_starts)), np.concatenate((finish[own], removed_ends))
    )
    beside = union(comm.start, comm.end).without(stalls)
    is_beside = beside.counts_up_to(rank.start) > np.searchsorted(beside.ends, rank.start, "right")
    return RankMarkers(ready, join, stalls, beside, rank.start, rank.start[is_beside])


def _joins(rank: RankTimeline, burst: Int64) -> Int64:
    comm = rank.collectives
    free = np.append(NEVER, np.maximum.accumulate(rank.end))[: rank.start.size]
    # Operations stand in order of start, which is that of launch on one stream.
    launch = np.maximum.accumulate(rank.launch)
    after_own = np.searchsorted(launch, comm.launch, side="right")
    begun = np.searchsorted(rank.start, comm.end)
    at = np.minimum(np.maximum(after_own, begun), max(rank.start.size - 1, 0))
    if not rank.start.size:
        return np.zeros(comm.end.size, np.int64)
    stood_still = (
        (rank.start[at] >= comm.end)
        & (rank.start[at] < comm.end + _SOON_NS)
        & (free[at] + _STANDSTILL_NS < comm.end)
        & (rank.launch[at] + _STANDSTILL_NS < comm.end)
        & (at >= after_own)
    )
    last_launch = np.full(int(burst.max(initial=-1)) + 1, NEVER)
    np.maximum.at(last_launch, burst, comm.launch)
    after_all = np.searchsorted(launch, last_launch[burst], side="right")
    return np.where(stood_still, at, np.maximum(after_all, begun))


def _begins(
    timelines: Sequence[RankTimeline], found: Sequence[RankMarkers], windows: Windows
) -> Int64:
    """Return when the work of each window begins: of one that begins with a collective, when that could have."""
    edges = windows.edges.copy()
    for at, (rank, one) in enumerate(zip(timelines, found, strict=True)):
        order = np.argsort(rank.collectives.start, kind="stable")
        starts = rank.collectives.start[order]
        if not starts.size:
            continue
        place = np.minimum(np.searchsorted(starts, edges[:-1, at]), starts.size - 1)
        is_first = starts[place] == edges[:-1, at]
        edges[:-1, at] = np.where(is_first, one.ready[order[place]], edges[:-1, at])
    return edges


def _ordered(
    timelines: Sequence[RankTimeline], found: Sequence[RankMarkers], edges: Int64
) -> tuple[Int64, Int64, Float64, Float64, Float64, Float64]:
    """Put the markers of all ranks into the order in which the lowest rank launched what they stand before."""
    n_edges, n_collectives = edges.shape[0], found[0].ready.size
    kind = np.repeat([WINDOW, READY, JOIN], [n_edges, n_collectives, n_collectives])
    which = np.concatenate((np.arange(n_edges), *(np.arange(n_collectives),) * 2))
    columns = []
    for at, (rank, one) in enumerate(zip(timelines, found, strict=True)):
        free = np.append(NEVER, np.maximum.accumulate(rank.end))
        join_time = np.maximum(free[one.join], edges[0, at])
        # Of the operation that waits: work goes on from where it had stopped before it.
        join_time = np.where(one.join < rank.start.size, join_time, edges[-1, at])
        columns.append(one.places(np.concatenate((edges[:, at], one.ready, join_time))))
    work, beside, begun, begun_beside = (
        np.stack(column, axis=1) for column in zip(*columns, strict=True)
    )
    lead = timelines[0]
    launch = np.append(np.maximum.accumulate(lead.launch), -NEVER)
    anchor = np.concatenate(
        (_edge_anchors(lead, edges[:, 0], launch), lead.collectives.launch, launch[found[0].join])
    )
    # A window that begins with an operation that waits begins after the wait.
    rank_of_kind = np.array([1, 2, 0])[kind]
    order = np.lexsort((which, rank_of_kind, anchor))
    return (
        kind[order],
        which[order],
        work[order],
        beside[order],
        begun[order],
        begun_beside[order],
    )


def _edge_anchors(lead: RankTimeline, edges: Int64, launch: Int64) -> Int64:
    """Return the launch of what begins each window, an operation or a collective; after all others for the last edge."""
    place = np.searchsorted(lead.start, edges)
    anchors = launch[place]
    begin = np.append(lead.start, -NEVER)[place]
    comm = lead.collectives
    order = np.argsort(comm.start, kind="stable")
    at = np.searchsorted(comm.start[order], edges)
    is_inside = at < order.size
    first = order[np.minimum(at, max(order.size - 1, 0))]
    is_comm = is_inside & (comm.start[first] < begin)
    anchors[is_comm] = comm.launch[first[is_comm]]
    anchors[-1] = -NEVER
    return anchors
