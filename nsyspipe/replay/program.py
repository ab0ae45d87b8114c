"""The captured steps: what each rank did (times aligned, ns), and a `StepProgram` of it, where communication and work wait for each other."""

import itertools
from collections import Counter
from collections.abc import Sequence
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from msgspec.structs import asdict
from numpy.typing import NDArray

from nsyspipe.analysis.attribution import filled
from nsyspipe.analysis.intervals import IntervalSet, places_in_runs, union
from nsyspipe.model.names import PHASES
from nsyspipe.model.table import Flags, Float64, Int64
from nsyspipe.replay.simulate import JOIN, READY, WINDOW, StepProgram, last_start
from nsyspipe.run.run import Run

NEVER = -(2**62)  # the launch of what has none: before everything
SIDES = frozenset(("all_gather", "reduce_scatter"))
_PHASES = pa.array(PHASES, pa.string())
_NO_PHASE = -1
# who stood still goes on so soon after the end, after so much of nothing
_SOON_NS = 50_000
_STANDSTILL_NS = 20_000


class Windows(Struct, frozen=True):
    """The windows to replay, the same steps on every rank."""

    ranks: tuple[int, ...]
    steps: Int64
    # one more than steps, a column per rank: where each window starts, and the last one ends
    edges: Int64
    counts: Flags  # which of the steps count in the run's figures

    def step_times(self, edges: Float64 | None = None) -> Float64:
        """Return the largest window over ranks of each step that counts, ns."""
        longest: Float64 = np.diff(self.edges if edges is None else edges, axis=-2).max(axis=-1)[
            ..., self.counts
        ]
        return longest


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
    is_inline: (
        Flags  # on the main stream, where the work after it waits for it as for any operation
    )


class Uses(Struct, frozen=True):
    """What the collectives of the lowest rank are for, in order of launch."""

    n_bytes: Float64  # NaN where not known
    is_gradient: Flags
    role: NDArray[np.object_]
    chain: Int64  # in one, each follows the one before it


class RankTimeline(Struct, frozen=True, dict=True):
    """What one rank did between the first and the last edge of its windows."""

    # The operations of the main stream (most compute time), in order of start; without a launch,
    # with that of the one before.
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
    n_hooked: int  # compute kernels on a stream of communication that is not the main one
    hooked_ns: int
    n_outside: int  # communication operations that belong to no step
    collectives: Collectives

    @cached_property
    def launched(self) -> Int64:
        """The latest launch up to each operation."""
        return np.maximum.accumulate(self.launch)

    @cached_property
    def free_until(self) -> Int64:
        """The end of all operations before each; of one more, of all."""
        return np.append(NEVER, np.maximum.accumulate(self.end))

    @cached_property
    def copies_until(self) -> Int64:
        """Where the copies in a row end that each operation is one of: its own place if it is none."""
        is_copy = (
            self.is_copy
            | np.array(["copy" in name.lower() for name in self.names], np.bool_)[self.name]
        )
        return np.minimum.accumulate(
            np.where(is_copy, is_copy.size, np.arange(is_copy.size))[::-1]
        )[::-1]


def summary_windows(run: Run) -> Windows | None:
    """Return the windows from the first to the last summary step; None unless all ranks have them, complete and one after the other.

    Of a run of several captures they are those of the capture with most summary steps: no step
    leads from one to the next.
    """
    table = run.steps()
    ranks = tuple(run.ranks["rank"].to_pylist())
    chosen = table.filter(table["in_summary"])
    if not chosen.num_rows or not pc.all(chosen["is_complete"]).as_py():
        return None
    summary = np.unique(chosen["step"].to_numpy())
    all_steps = table["step"].to_numpy()
    held = table.filter((all_steps >= summary[0]) & (all_steps <= summary[-1]))
    rank = held["rank"].to_numpy()
    step = held["step"].to_numpy()
    steps = np.unique(step)
    order = np.lexsort((step, rank))
    if not np.array_equal(rank[order], np.repeat(ranks, steps.size)):
        return None
    starts, ends = (
        held[name].to_numpy()[order].reshape(len(ranks), steps.size)
        for name in ("start_ns", "end_ns")
    )
    stretch = _longest_stretch(starts, ends, np.isin(steps, summary))
    if stretch is None:
        return None
    steps = steps[stretch]
    starts = starts[:, stretch]
    ends = ends[:, stretch]
    return Windows(
        ranks, steps, np.concatenate((starts, ends[:, -1:]), axis=1).T, np.isin(steps, summary)
    )


def _longest_stretch(starts: Int64, ends: Int64, counts: Flags) -> slice | None:
    """Return the steps that follow one another and hold most of those that count, from the first to the last of these.

    `starts` and `ends` have a row per rank. None where steps follow one another on some ranks only.
    """
    follows = ends[:, :-1] == starts[:, 1:]
    if (follows.any(axis=0) != follows.all(axis=0)).any():
        return None
    edges = [0, *(np.flatnonzero(~follows.all(axis=0)) + 1).tolist(), counts.size]
    stretches = [slice(first, last) for first, last in itertools.pairwise(edges)]
    longest = max(stretches, key=lambda one: int(np.count_nonzero(counts[one])))
    own = np.flatnonzero(counts[longest]) + longest.start
    return slice(int(own[0]), int(own[-1]) + 1)


def rank_timelines(run: Run, windows: Windows) -> list[RankTimeline]:
    """Read what each rank did in the windows, in order of rank; a `DatasetError` if a run was saved without its operations."""
    known = run.steps()["step"].to_numpy()
    last = int(windows.steps[-1])
    # The step after the last, too: what it copies before its first kernel is in the last window.
    span = int(windows.steps[0]), int(known[known > last].min(initial=known.max(initial=last)))
    found = {rank: events for rank, events, _ in run.operations(span)}
    return [
        _timeline(found[rank], windows.steps, *windows.edges[[0, -1], at])
        for at, rank in enumerate(windows.ranks)
    ]


def _timeline(events: pa.Table, steps: Int64, first: int, last: int) -> RankTimeline:
    columns = {
        "start": events["start_ns"].to_numpy(),
        "end": events["end_ns"].to_numpy(),
        "launch": filled(events["launch_ns"], NEVER),
        "step": filled(events["step"], NEVER),
        "phase": filled(pc.index_in(events["phase"], _PHASES), _NO_PHASE).astype(np.int64),
    }
    start = columns["start"]
    duration = events["dur_ns"].to_numpy()
    category = events["category"]
    is_comm, is_compute = (
        pc.equal(category, word).to_numpy(zero_copy_only=False) for word in ("comm", "compute")
    )
    places = np.stack([filled(events[name], -1) for name in ("device_id", "stream_id")])
    stream = np.unique(places, axis=1, return_inverse=True)[1].reshape(-1)
    inside = (start >= first) & (start < last)
    computing = is_compute & inside
    lengths = np.bincount(stream[computing], weights=duration[computing])
    main = int(np.argmax(lengths)) if lengths.size else -1
    # The nodes of a graph on one stream have one launch: told apart in order of start, a ns each.
    launch = columns["launch"].copy()
    on_main = np.flatnonzero(inside & (stream == main))
    launch[on_main] += np.where(launch[on_main] == NEVER, 0, places_in_runs(launch[on_main]))
    columns["launch"] = launch
    # In order of start, which is that of launch on one stream.
    rows = np.flatnonzero(inside & ~is_comm & (stream == main))
    codes = events["name"].combine_chunks().dictionary_encode()
    name = codes.indices.to_numpy()[rows]
    names = tuple(codes.dictionary.to_pylist())
    comm = np.flatnonzero(inside & is_comm)
    hooked = computing & np.isin(stream, stream[comm]) & (stream != main)
    own = {key: value[rows] for key, value in columns.items()}
    is_without = own["launch"] == NEVER
    own["launch"] = np.where(is_without, np.maximum.accumulate(own["launch"]), own["launch"])
    in_step = comm[np.isin(columns["step"][comm], steps)]
    by_launch = in_step[np.lexsort((start[in_step], columns["launch"][in_step]))]
    return RankTimeline(
        **own,
        name=name.astype(np.int64),
        names=names,
        n_bytes=filled(events["bytes"], 0)[rows],
        is_copy=np.array([one == "memcpy DtoD" for one in names], np.bool_)[name],
        is_compute=is_compute[rows],
        n_without_launch=int(np.count_nonzero(is_without)),
        n_hooked=int(np.count_nonzero(hooked)),
        hooked_ns=int(duration[hooked].sum()),
        n_outside=comm.size - in_step.size,
        collectives=Collectives(
            **{key: value[by_launch] for key, value in columns.items()},
            seq=filled(events["seq"], NEVER)[by_launch],
            stream=stream[by_launch],
            kind=np.asarray(events["collective"].take(pa.array(by_launch)).to_pylist(), object),
            is_inline=stream[by_launch] == main,
        ),
    )


class RankMarkers(Struct, frozen=True):
    """Where one rank and its collectives depend on each other; times aligned, ns."""

    ready: Int64  # per collective: when the rank's own work allowed it
    # per collective: place of the first operation that waits for it; their number for none
    join: Int64
    stalls: IntervalSet  # when the rank did nothing but wait for a collective, or what is left out
    beside: IntervalSet  # when communication was under way and it did not
    begun: Int64  # starts of its operations, ascending
    begun_beside: Int64  # and of those that began beside communication

    def places(self, times: Int64) -> Float64:
        """Return how far the rank had come at some times, in the four rows of `StepProgram.places`."""
        spans = times - self.stalls.covered_until(times), self.beside.covered_until(times)
        counts = (np.searchsorted(starts, times) for starts in (self.begun, self.begun_beside))
        return np.stack([*spans, *counts]).astype(np.float64)


class Captured(Struct, frozen=True, dict=True):
    """The captured steps, ready to be replayed."""

    program: StepProgram
    ranks: tuple[RankMarkers, ...]
    timelines: tuple[RankTimeline, ...]
    windows: Windows
    # number of each collective's burst: those of one pass of one step, one after the other
    burst: Int64
    uses: Uses

    @property
    def steps(self) -> range:
        """Places of the steps among the windows."""
        return range(self.windows.steps.size)

    @cached_property
    def gradients_by_step(self) -> list[Int64]:
        """The all-reduces of gradients of each step, by its place among the windows."""
        own = np.flatnonzero(self.program.is_gradient)
        own = own[np.argsort(self.program.step[own], kind="stable")]
        return np.split(own, np.searchsorted(self.program.step[own], self.steps[1:]))


def captured_program(
    timelines: Sequence[RankTimeline],
    windows: Windows,
    uses: Uses,
    removed: Sequence[tuple[Int64, Int64]] = (),
) -> Captured:
    """Return the captured steps of all ranks, which have the same collectives in the same order, as a program.

    `READY` is the end of the last operation of the main stream launched before the collective, or
    its own launch if later. `JOIN` is the first launched after it that went on right after its end;
    without one, the first launched after the last collective of its burst that begins after its
    end: DDP waits for all of them after the backward pass. What is in line with the work stands
    between the operations around it. `removed` are starts and ends of work to leave out, for each
    rank.
    """
    first = timelines[0].collectives
    burst = _bursts(timelines[0])
    less = removed or [(np.empty(0, np.int64),) * 2] * len(timelines)
    joins = _joins_of_ranks(timelines, burst, uses.is_gradient)
    of_ranks = zip(timelines, joins, windows.edges[0].tolist(), less, strict=True)
    found = tuple(_rank_markers(rank, join, edge, gone) for rank, join, edge, gone in of_ranks)
    edges, anchors = _begins(timelines, found, windows)
    columns = (
        [getattr(timeline.collectives, name) for timeline in timelines]
        for name in ("start", "end", "seq")
    )
    starts, ends, group = (np.stack(column, axis=1) for column in columns)
    ready = np.stack([one.ready for one in found], axis=1)
    before = np.full(ends.shape, NEVER)  # the end of the collective before each in its chain
    for own in (np.flatnonzero(uses.chain == one) for one in np.unique(uses.chain).tolist()):
        before[own[1:]] = ends[own[:-1]]
    last = np.empty(ends.shape)  # of all ranks alike where all are one group
    for at, one in enumerate(zip(group, starts.astype(np.float64), strict=True)):
        last[at] = last_start(*one)
    still = np.zeros(first.step.size)
    program = StepProgram(
        *_ordered(timelines, found, edges, anchors),
        step=np.searchsorted(windows.steps, first.step),
        lag_ns=(starts - np.maximum(ready, before)).astype(np.float64),
        transfer_ns=ends - last,
        **asdict(uses),
        group=group,
        begin_ns=edges[0].astype(np.float64),
        late_during_work_ns=still,
        longer_during_work=still,
    )
    return Captured(program, found, tuple(timelines), windows, burst, uses)


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


def _rank_markers(
    rank: RankTimeline, join: Int64, first_edge: int, removed: tuple[Int64, Int64]
) -> RankMarkers:
    comm = rank.collectives
    launch = np.concatenate((rank.launch, comm.launch[comm.is_inline]))
    order = np.argsort(launch, kind="stable")
    reached = np.append(
        NEVER, np.maximum.accumulate(np.concatenate((rank.end, comm.end[comm.is_inline]))[order])
    )
    ready = np.maximum(
        np.maximum(reached[np.searchsorted(launch[order], comm.launch)], comm.launch), first_edge
    )
    ready = np.minimum(
        ready, comm.start
    )  # what began earlier did not depend on that operation after all
    waits = np.flatnonzero(join < rank.start.size)
    begin = np.maximum(rank.free_until[join], ready)[
        waits
    ]  # a collective that could not begin yet kept nobody waiting
    finish = np.minimum(comm.end[waits], rank.start[join[waits]])
    own = begin < finish
    stalls = union(
        *(np.concatenate(pair) for pair in zip((begin[own], finish[own]), removed, strict=True))
    )
    beside = union(comm.start, comm.end).without(stalls)
    return RankMarkers(
        ready, join, stalls, beside, rank.start, rank.start[beside.contains(rank.start)]
    )


def _joins_of_ranks(
    timelines: Sequence[RankTimeline], burst: Int64, is_gradient: Flags
) -> list[Int64]:
    """Return the places of the operations that wait; of others than gradients, that nobody saw wait here, as in other steps and on other ranks."""
    seen = [_joins(rank, burst) for rank in timelines]
    step = timelines[0].collectives.step
    place = np.arange(step.size) - np.searchsorted(step, step)
    for one in np.unique(place[~is_gradient]).tolist():
        own = ~is_gradient & (place == one)
        shown: Counter[tuple[int, str]] = Counter()
        for rank, (join, after, waited) in zip(timelines, seen, strict=True):
            at = join[own & waited]
            names = (rank.names[name] for name in rank.name[at].tolist())
            shown.update(zip((at - after[own & waited]).tolist(), names, strict=True))
        if shown:
            ((usual, word), _), *_ = shown.most_common(1)
            for rank, (join, after, waited) in zip(timelines, seen, strict=True):
                comm = rank.collectives
                at = np.minimum(after + usual, rank.start.size - 1)
                is_same = np.array([name == word for name in rank.names], np.bool_)[rank.name[at]]
                is_same &= own & ~waited & ~comm.is_inline & (rank.step[at] == comm.step)
                join[:] = np.where(
                    is_same, np.maximum(at, np.searchsorted(rank.start, comm.end)), join
                )
    return [join for join, _, _ in seen]


def _joins(rank: RankTimeline, burst: Int64) -> tuple[Int64, Int64, Flags]:
    """Return for each collective the place of the operation that waits, of the first that could, and whether it was seen to."""
    comm = rank.collectives
    n = rank.start.size
    if not n:
        nothing = np.zeros(comm.end.size, np.int64)
        return nothing, nothing, nothing > 0
    launch = (
        rank.launched
    )  # operations stand in order of start, which is that of launch on one stream
    after_own = np.searchsorted(launch, comm.launch, side="right")
    begun = np.searchsorted(rank.start, comm.end)
    at = np.minimum(np.maximum(after_own, begun), n - 1)
    inline_ends = np.append(NEVER, np.maximum.accumulate(comm.end[comm.is_inline]))
    free = np.maximum(
        rank.free_until[at],
        inline_ends[np.searchsorted(comm.start[comm.is_inline], rank.start[at])],
    )
    stood_still = (
        (rank.start[at] >= comm.end)
        & (rank.start[at] < comm.end + _SOON_NS)
        & (free + _STANDSTILL_NS < comm.end)
        & (rank.launch[at] + _STANDSTILL_NS < comm.end)
        & (at >= after_own)
    )
    last_launch = np.full(int(burst.max(initial=-1)) + 1, NEVER)
    np.maximum.at(last_launch, burst, comm.launch)
    join = np.where(
        stood_still,
        at,
        np.maximum(np.searchsorted(launch, last_launch[burst], side="right"), begun),
    )
    join = np.where(comm.is_inline, np.searchsorted(rank.start, comm.start), join)
    return join, after_own, stood_still & ~comm.is_inline


def _begins(
    timelines: Sequence[RankTimeline], found: Sequence[RankMarkers], windows: Windows
) -> tuple[Int64, Int64]:
    """Return when the work of each window begins, of one that begins with a collective when that could have; and the launch of what begins it."""
    edges = windows.edges.copy()
    anchors = np.full(windows.edges.shape, -NEVER)
    for at, (rank, one) in enumerate(zip(timelines, found, strict=True)):
        comm = rank.collectives
        begin = windows.edges[:-1, at]
        start = np.concatenate((comm.start, rank.start, [-NEVER]))
        order = np.argsort(start, kind="stable")
        first = order[np.searchsorted(start[order], begin)]
        anchors[:-1, at] = np.concatenate((comm.launch, rank.launched, [-NEVER]))[first]
        is_comm = (first < comm.start.size) & (start[first] == begin)
        edges[:-1, at][is_comm] = one.ready[first[is_comm]]
    return edges, np.maximum.accumulate(anchors)


def _ordered(
    timelines: Sequence[RankTimeline], found: Sequence[RankMarkers], edges: Int64, anchors: Int64
) -> tuple[Int64, Int64, Flags, Float64]:
    """Put the markers into one order, of the collectives and between them of each rank's own launches: kind, which, who passes it, places."""
    windows = np.arange(edges.shape[0])
    collectives = np.arange(found[0].ready.size)
    last = -NEVER
    # A marker's place: behind how many collectives, how many windows, how many waits; then what it
    # is of.
    slots = np.searchsorted(timelines[0].collectives.launch, anchors[:, 0])
    of_all = np.stack(
        (np.append(slots, collectives), np.append(windows, np.full_like(collectives, last)))
    )
    of_all = np.stack((*of_all, np.full(of_all.shape[1], last), np.append(windows, collectives)))
    of_joins = []
    times = []
    for at, (rank, one) in enumerate(zip(timelines, found, strict=True)):
        comm = rank.collectives
        # Of the operation that waits: work goes on from where it had stopped before it.
        time = np.maximum(np.maximum(rank.free_until[one.join], one.ready), edges[0, at])
        times.append(np.where(one.join < rank.start.size, time, edges[-1, at]))
        launch = np.append(rank.launched, last)[one.join]
        launch = np.where(comm.is_inline, comm.launch, launch)
        # Behind those too that began without waiting for what was launched before them.
        slot = np.maximum(
            np.searchsorted(comm.launch, launch),
            np.searchsorted(np.maximum.accumulate(one.ready), time),
        )
        slot = np.where(comm.is_inline, collectives + 1, slot)
        # A window that begins with an operation that waits begins after the wait.
        bounds = np.searchsorted(slots, slot), np.searchsorted(slots, slot, side="right")
        behind = np.clip(np.searchsorted(anchors[:, at], launch), *bounds)
        order = np.lexsort((collectives, launch, behind, slot))
        place = np.empty_like(order)
        place[order] = places_in_runs((slot * (windows.size + 1) + behind)[order])
        of_joins.append(np.stack((slot, behind, place, collectives)))
    # Where ranks wait for a collective at different places, each of these is a `JOIN` of its own.
    joins, of_ranks = np.unique(np.concatenate(of_joins, axis=1), axis=1, return_inverse=True)
    sizes = windows.size, collectives.size, joins.shape[1]
    key = np.concatenate((of_all, joins), axis=1)
    order = np.lexsort(key[::-1])
    passes = np.ones((order.size, len(timelines)), np.bool_)
    passes[sum(sizes[:2]) :] = False
    columns = []
    for at, rows in enumerate(of_ranks.reshape(len(timelines), -1) + sum(sizes[:2])):
        passes[rows, at] = True
        reached = np.concatenate((edges[:, at], found[at].ready, np.zeros_like(joins[0])))
        reached[rows] = times[at]
        is_passed = passes[order, at]
        # Past a marker of others it has come as far as at its own one before.
        columns.append(
            found[at].places(reached[order[is_passed]])[:, np.maximum(np.cumsum(is_passed) - 1, 0)]
        )
    return (
        np.repeat([WINDOW, READY, JOIN], sizes)[order],
        key[3][order],
        passes[order],
        np.stack(columns, axis=2),
    )
