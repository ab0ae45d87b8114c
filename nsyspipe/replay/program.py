"""The captured steps as a `StepProgram`: where communication and work wait for each other."""

import itertools
from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import asdict

from nsyspipe.analysis.intervals import IntervalSet, places_in_runs, union
from nsyspipe.model.table import Flags, Float64, Int64
from nsyspipe.replay.simulate import JOIN, READY, WINDOW, StepProgram, last_start
from nsyspipe.replay.timelines import (
    AFTER_ALL_NS,
    BEFORE_ALL_NS,
    CollectiveUses,
    RankTimeline,
    ReplayWindows,
)

# An operation has waited for a collective if it starts so soon after the end of the collective, and
# if the stream was idle for so long before that end.
_MAX_START_AFTER_END_NS = 50_000
_MIN_STALL_NS = 20_000


class RemovedWork(NamedTuple):
    """Where work of a rank starts and ends that is left out of a program."""

    starts: Int64
    ends: Int64


_NOTHING_REMOVED = RemovedWork(np.empty(0, np.int64), np.empty(0, np.int64))


class RankMarkers(Struct, frozen=True):
    """Where one rank and its collectives wait for each other, in aligned ns."""

    # By collective: when the work of the rank allowed it to start.
    ready: Int64
    # By collective: the place of the first operation that waits for it, or the number of operations
    # if none does.
    join: Int64
    # When the rank only waited for a collective, and removed work.
    stalls: IntervalSet
    # When communication was active and the rank did not stall.
    concurrent: IntervalSet
    # The starts of the rank's operations, and of those that started in `concurrent`.
    starts: Int64
    concurrent_starts: Int64

    def measure_progress(self, times: Int64) -> Float64:
        """Return the progress of the rank at some times: the rows of `StepProgram.progress`."""
        work_ns = times - self.stalls.covered_until(times)
        concurrent_work_ns = self.concurrent.covered_until(times)
        n_started = np.searchsorted(self.starts, times)
        n_started_concurrently = np.searchsorted(self.concurrent_starts, times)
        rows = (work_ns, concurrent_work_ns, n_started, n_started_concurrently)
        return np.stack(rows).astype(np.float64)


class CapturedSteps(Struct, frozen=True, dict=True):
    """The captured steps, ready to be simulated."""

    program: StepProgram
    ranks: tuple[RankMarkers, ...]
    timelines: tuple[RankTimeline, ...]
    windows: ReplayWindows
    # By collective: the number of its burst. A burst has the collectives of one phase of one step
    # that are launched without work of another phase in between.
    burst: Int64
    uses: CollectiveUses

    @property
    def steps(self) -> range:
        """The places of the steps among the windows."""
        return range(self.windows.steps.size)

    @cached_property
    def gradients_by_step(self) -> list[Int64]:
        """The gradient all-reduces of each step, by the step's place among the windows."""
        program = self.program
        all_reduces = np.flatnonzero(program.is_gradient)
        order = np.argsort(program.step[all_reduces], kind="stable")
        by_step = all_reduces[order]
        first_of_steps = np.searchsorted(program.step[by_step], self.steps[1:])
        return np.split(by_step, first_of_steps)


def captured_program(
    timelines: Sequence[RankTimeline],
    windows: ReplayWindows,
    uses: CollectiveUses,
    removed: Sequence[RemovedWork] = (),
) -> CapturedSteps:
    """Return the captured steps of all ranks as a program.

    Ranks have the same collectives in the same order. `removed` is work to leave out, for each
    rank.

    - `READY` is the end of the last operation of the main stream that was launched before the
      collective, or the launch of the collective if that is later.
    - `JOIN` is the first operation launched after the collective, if it started right after the
      collective's end. Otherwise `JOIN` is the first operation that was launched after the last
      collective of the burst and started after the end: DDP waits for all collectives after the
      backward pass.
    - A collective on the main stream is between the operations around it.
    """
    burst = _number_bursts(timelines[0])
    joins = _joins_of_ranks(timelines, burst, uses.is_gradient)
    first_edges = windows.edges[0].tolist()
    removed_of_ranks = removed or [_NOTHING_REMOVED] * len(timelines)
    rank_inputs = zip(timelines, joins, first_edges, removed_of_ranks, strict=True)
    markers = tuple(itertools.starmap(_rank_markers, rank_inputs))
    begins = _window_begins(timelines, markers, windows)
    ordered_markers = _order_markers(timelines, markers, begins)
    times = _collective_times(timelines, markers, uses.chain)
    step = timelines[0].collectives.step
    nothing_added = np.zeros(step.size)
    program = StepProgram(
        **ordered_markers._asdict(),
        **asdict(uses),
        **times._asdict(),
        step=np.searchsorted(windows.steps, step),
        begin_ns=begins.time[0].astype(np.float64),
        late_during_work_ns=nothing_added,
        longer_during_work=nothing_added,
    )
    return CapturedSteps(program, markers, tuple(timelines), windows, burst=burst, uses=uses)


class _CollectiveTimes(NamedTuple):
    """The columns of a `StepProgram` about the time of the collectives."""

    lag_ns: Float64
    transfer_ns: Float64
    group: Int64


def _collective_times(
    timelines: Sequence[RankTimeline], markers: Sequence[RankMarkers], chain: Int64
) -> _CollectiveTimes:
    """Return how long each collective waited to start, and how long its transfer took."""
    collectives = [timeline.collectives for timeline in timelines]
    starts = np.stack([comm.start for comm in collectives], axis=1)
    ends = np.stack([comm.end for comm in collectives], axis=1)
    group = np.stack([comm.seq for comm in collectives], axis=1)
    ready = np.stack([rank.ready for rank in markers], axis=1)
    could_start = np.maximum(ready, _previous_ends(ends, chain))
    lag_ns = (starts - could_start).astype(np.float64)
    return _CollectiveTimes(lag_ns, ends - _last_starts(starts, group), group)


def _previous_ends(ends: Int64, chain: Int64) -> Int64:
    """Return the end of the previous collective in the chain of each collective, by rank."""
    previous = np.full(ends.shape, BEFORE_ALL_NS)
    for number in np.unique(chain).tolist():
        members = np.flatnonzero(chain == number)
        previous[members[1:]] = ends[members[:-1]]
    return previous


def _last_starts(starts: Int64, group: Int64) -> Float64:
    """Return the last start of each collective over the ranks of each rank's group."""
    last = np.empty(starts.shape)
    rows = zip(group, starts.astype(np.float64), strict=True)
    for collective, (group_of_ranks, start_of_ranks) in enumerate(rows):
        last[collective] = last_start(group_of_ranks, start_of_ranks)
    return last


def _number_bursts(rank: RankTimeline) -> Int64:
    """Return the number of the burst of each collective, see `CapturedSteps.burst`."""
    comm = rank.collectives
    order = np.argsort(rank.launch, kind="stable")
    n_before = np.searchsorted(rank.launch[order], comm.launch)
    has_work_between = np.zeros(max(comm.launch.size - 1, 0), np.bool_)
    for phase in np.unique(comm.phase).tolist():
        n_of_other_phases = np.cumsum(rank.phase[order] != phase)
        n_of_other_phases_before = np.append(0, n_of_other_phases)[n_before]
        has_more = np.diff(n_of_other_phases_before) > 0
        has_work_between |= has_more & (comm.phase[1:] == phase)
    is_first = has_work_between | (np.diff(comm.step) != 0) | (np.diff(comm.phase) != 0)
    return np.append(0, np.cumsum(is_first))[: comm.step.size]


def _rank_markers(
    rank: RankTimeline, join: Int64, first_edge: int, removed: RemovedWork
) -> RankMarkers:
    """Return where the rank and its collectives wait for each other. `join` is by collective."""
    comm = rank.collectives
    ready = _ready_times(rank, first_edge)
    joined = np.flatnonzero(join < rank.start.size)
    # A collective that could not start yet did not delay the work.
    stall_start = np.maximum(rank.end_before[join], ready)[joined]
    stall_end = np.minimum(comm.end[joined], rank.start[join[joined]])
    is_stall = stall_start < stall_end
    stalls = union(
        np.concatenate((stall_start[is_stall], removed.starts)),
        np.concatenate((stall_end[is_stall], removed.ends)),
    )
    concurrent = union(comm.start, comm.end).without(stalls)
    return RankMarkers(
        ready=ready,
        join=join,
        stalls=stalls,
        concurrent=concurrent,
        starts=rank.start,
        concurrent_starts=rank.start[concurrent.contains(rank.start)],
    )


def _ready_times(rank: RankTimeline, first_edge: int) -> Int64:
    """Return when the work of the rank allowed each collective to start."""
    comm = rank.collectives
    launch = np.concatenate((rank.launch, comm.launch[comm.is_inline]))
    end = np.concatenate((rank.end, comm.end[comm.is_inline]))
    order = np.argsort(launch, kind="stable")
    end_before = np.append(BEFORE_ALL_NS, np.maximum.accumulate(end[order]))
    n_launched_before = np.searchsorted(launch[order], comm.launch)
    ready = np.maximum(end_before[n_launched_before], comm.launch)
    # A collective that started before such an operation ended does not depend on it.
    ready = np.maximum(ready, first_edge)
    ready_before_start: Int64 = np.minimum(ready, comm.start)
    return ready_before_start


class _Joins(NamedTuple):
    """What waits for each collective on one rank."""

    # The place of the operation that waits for it, or the number of operations if none does.
    operation: Int64
    # The place of the first operation that was launched after it.
    next_launched: Int64
    # Whether the capture shows that the operation has waited.
    has_waited: Flags


class _UsualWaiter(NamedTuple):
    """The operation that usually waits for a collective."""

    # Its distance from the first operation that was launched after the collective.
    distance: int
    name: str


def _joins_of_ranks(
    timelines: Sequence[RankTimeline], burst: Int64, is_gradient: Flags
) -> list[Int64]:
    """Return the place of the operation that waits for each collective, by rank.

    If no operation is seen to wait for a collective (other than of gradients), it is the operation
    that waits for the same collective in other steps and on other ranks.
    """
    joins = [_find_joins(timeline, burst) for timeline in timelines]
    step = timelines[0].collectives.step
    place_in_step = np.arange(step.size) - np.searchsorted(step, step)
    for place in np.unique(place_in_step[~is_gradient]).tolist():
        is_same_collective = ~is_gradient & (place_in_step == place)
        waiter = _usual_waiter(timelines, joins, is_same_collective)
        if waiter is not None:
            joins = [
                _assume_waiter(timeline, rank_joins, is_same_collective, waiter)
                for timeline, rank_joins in zip(timelines, joins, strict=True)
            ]
    return [rank_joins.operation for rank_joins in joins]


def _usual_waiter(
    timelines: Sequence[RankTimeline], joins: Sequence[_Joins], is_same_collective: Flags
) -> _UsualWaiter | None:
    """Return the operation that most often waits for a collective.

    Return None if no operation is seen to wait for it.
    """
    counts: Counter[_UsualWaiter] = Counter()
    for timeline, rank_joins in zip(timelines, joins, strict=True):
        is_seen = is_same_collective & rank_joins.has_waited
        operations = rank_joins.operation[is_seen]
        distances = operations - rank_joins.next_launched[is_seen]
        names = (timeline.names[name] for name in timeline.name[operations].tolist())
        counts.update(map(_UsualWaiter, distances.tolist(), names))
    if not counts:
        return None
    ((waiter, _),) = counts.most_common(1)
    return waiter


def _assume_waiter(
    timeline: RankTimeline, joins: _Joins, is_same_collective: Flags, waiter: _UsualWaiter
) -> _Joins:
    """Let the usual operation wait for a rank's collectives if none is seen to wait for them."""
    comm = timeline.collectives
    last_operation = timeline.start.size - 1
    operation = np.minimum(joins.next_launched + waiter.distance, last_operation)
    has_name = np.array([name == waiter.name for name in timeline.names], np.bool_)
    is_same_operation = has_name[timeline.name[operation]] & (timeline.step[operation] == comm.step)
    is_unknown = is_same_collective & ~joins.has_waited & ~comm.is_inline
    first_after_end = np.searchsorted(timeline.start, comm.end)
    assumed = np.maximum(operation, first_after_end)
    return joins._replace(
        operation=np.where(is_same_operation & is_unknown, assumed, joins.operation)
    )


def _find_joins(rank: RankTimeline, burst: Int64) -> _Joins:
    """Find the operation of a rank that waits for each collective."""
    comm = rank.collectives
    if not rank.start.size:
        no_operation = np.zeros(comm.end.size, np.int64)
        return _Joins(no_operation, no_operation, no_operation > 0)
    next_launched = np.searchsorted(rank.latest_launch, comm.launch, side="right")
    first_after_end = np.searchsorted(rank.start, comm.end)
    candidate = np.maximum(next_launched, first_after_end)
    candidate = np.minimum(candidate, rank.start.size - 1)
    has_stalled = _has_stalled(rank, candidate) & (candidate >= next_launched)
    last_launch = np.full(int(burst.max(initial=-1)) + 1, BEFORE_ALL_NS)
    np.maximum.at(last_launch, burst, comm.launch)
    next_after_burst = np.searchsorted(rank.latest_launch, last_launch[burst], side="right")
    after_burst = np.maximum(next_after_burst, first_after_end)
    operation = np.where(has_stalled, candidate, after_burst)
    next_in_line = np.searchsorted(rank.start, comm.start)
    return _Joins(
        operation=np.where(comm.is_inline, next_in_line, operation),
        next_launched=next_launched,
        has_waited=has_stalled & ~comm.is_inline,
    )


def _has_stalled(rank: RankTimeline, operation: Int64) -> Flags:
    """Tell whether each operation started right after its collective, and after an idle time."""
    comm = rank.collectives
    start = rank.start[operation]
    inline_ends = np.maximum.accumulate(comm.end[comm.is_inline])
    n_inline_before = np.searchsorted(comm.start[comm.is_inline], start)
    inline_end_before = np.append(BEFORE_ALL_NS, inline_ends)[n_inline_before]
    idle_since = np.maximum(rank.end_before[operation], inline_end_before)
    is_soon = (start >= comm.end) & (start < comm.end + _MAX_START_AFTER_END_NS)
    is_after_idle_time = idle_since + _MIN_STALL_NS < comm.end
    is_launched_in_time = rank.launch[operation] + _MIN_STALL_NS < comm.end
    has_stalled: Flags = is_soon & is_after_idle_time & is_launched_in_time
    return has_stalled


class _WindowBegins(NamedTuple):
    """Where the work of each window begins, with a row for the last edge, and a column per rank."""

    time: Int64
    # The latest launch up to the operation that begins the window.
    launch: Int64


def _window_begins(
    timelines: Sequence[RankTimeline], markers: Sequence[RankMarkers], windows: ReplayWindows
) -> _WindowBegins:
    """Return where the work of each window begins.

    If a collective begins the window, the work begins when the collective could have started.
    """
    time = windows.edges.copy()
    launch = np.full(windows.edges.shape, AFTER_ALL_NS)
    for rank, (timeline, rank_markers) in enumerate(zip(timelines, markers, strict=True)):
        comm = timeline.collectives
        edge = windows.edges[:-1, rank]
        starts = np.concatenate((comm.start, timeline.start, [AFTER_ALL_NS]))
        launches = np.concatenate((comm.launch, timeline.latest_launch, [AFTER_ALL_NS]))
        order = np.argsort(starts, kind="stable")
        first = order[np.searchsorted(starts[order], edge)]
        launch[:-1, rank] = launches[first]
        is_collective = (first < comm.start.size) & (starts[first] == edge)
        time[:-1, rank][is_collective] = rank_markers.ready[first[is_collective]]
    return _WindowBegins(time, np.maximum.accumulate(launch))


class _MarkerKeys(NamedTuple):
    """The values by which markers are ordered, the most important one first."""

    # The number of collectives that become ready before the marker.
    n_ready: Int64
    # The number of windows that begin before the marker, after that collective.
    n_windows: Int64
    # The number of `JOIN` markers before the marker, after that window.
    n_joins: Int64
    # The window or the collective of the marker.
    subject: Int64


class _RankWaits(NamedTuple):
    """Where one rank waits for each collective."""

    keys: _MarkerKeys
    time: Int64


class _OrderedMarkers(NamedTuple):
    """The columns of markers of a `StepProgram`."""

    kind: Int64
    subject: Int64
    is_passed: Flags
    progress: Float64


def _order_markers(
    timelines: Sequence[RankTimeline], markers: Sequence[RankMarkers], begins: _WindowBegins
) -> _OrderedMarkers:
    """Put the markers of all ranks into one order.

    It is the order of the collectives, and between them that of the launches of each rank.
    """
    window_keys = _window_keys(timelines[0], begins)
    ready_keys = _ready_keys(timelines[0])
    waits = [
        _rank_waits(timeline, rank_markers, begins, window_keys.n_ready, rank)
        for rank, (timeline, rank_markers) in enumerate(zip(timelines, markers, strict=True))
    ]
    joins = _distinct_joins(waits)
    keys = np.concatenate((np.stack(window_keys), np.stack(ready_keys), joins.keys), axis=1)
    order = np.lexsort(keys[::-1])
    is_passed = []
    progress = []
    for rank, rank_markers in enumerate(markers):
        passes = _rank_passes(rank_markers, begins.time[:, rank], waits[rank].time, joins, rank)
        is_rank_passed = passes.is_passed[order]
        is_passed.append(is_rank_passed)
        progress.append(_progress_at_markers(rank_markers, passes.time[order], is_rank_passed))
    n_joins = joins.keys.shape[1]
    n_markers = (window_keys.subject.size, ready_keys.subject.size, n_joins)
    return _OrderedMarkers(
        kind=np.repeat([WINDOW, READY, JOIN], n_markers)[order],
        subject=_MarkerKeys(*keys).subject[order],
        is_passed=np.stack(is_passed, axis=1),
        progress=np.stack(progress, axis=2),
    )


class _DistinctJoins(NamedTuple):
    """The `JOIN` markers. Ranks that wait for a collective at different places have one each."""

    # The rows are those of `_MarkerKeys`.
    keys: Int64
    # By rank and collective: the number of the `JOIN`.
    of_ranks: Int64


def _distinct_joins(waits: Sequence[_RankWaits]) -> _DistinctJoins:
    all_waits = np.concatenate([np.stack(rank_waits.keys) for rank_waits in waits], axis=1)
    keys, join_of_wait = np.unique(all_waits, axis=1, return_inverse=True)
    return _DistinctJoins(keys, join_of_wait.reshape(len(waits), -1))


class _RankPasses(NamedTuple):
    """Which markers a rank passes, and when: first the windows, then `READY`, then `JOIN`."""

    is_passed: Flags
    time: Int64


def _rank_passes(
    markers: RankMarkers, window_time: Int64, wait_time: Int64, joins: _DistinctJoins, rank: int
) -> _RankPasses:
    """Return when a rank passes the markers. It passes all windows and `READY` markers."""
    n_joins = joins.keys.shape[1]
    rank_joins = joins.of_ranks[rank]
    join_time = np.zeros(n_joins, np.int64)
    join_time[rank_joins] = wait_time
    is_join_passed = np.zeros(n_joins, np.bool_)
    is_join_passed[rank_joins] = True
    n_others = window_time.size + markers.ready.size
    is_passed = np.concatenate((np.ones(n_others, np.bool_), is_join_passed))
    return _RankPasses(is_passed, time=np.concatenate((window_time, markers.ready, join_time)))


def _progress_at_markers(markers: RankMarkers, time: Int64, is_passed: Flags) -> Float64:
    """Return the progress of a rank at each marker, or at its own marker before."""
    progress = markers.measure_progress(time[is_passed])
    last_passed = np.maximum(np.cumsum(is_passed) - 1, 0)
    return progress[:, last_passed]


def _window_keys(first_rank: RankTimeline, begins: _WindowBegins) -> _MarkerKeys:
    windows = np.arange(begins.time.shape[0])
    return _MarkerKeys(
        n_ready=np.searchsorted(first_rank.collectives.launch, begins.launch[:, 0]),
        n_windows=windows,
        n_joins=np.full_like(windows, AFTER_ALL_NS),
        subject=windows,
    )


def _ready_keys(first_rank: RankTimeline) -> _MarkerKeys:
    collectives = np.arange(first_rank.collectives.step.size)
    after_all = np.full_like(collectives, AFTER_ALL_NS)
    return _MarkerKeys(
        n_ready=collectives, n_windows=after_all, n_joins=after_all, subject=collectives
    )


def _rank_waits(
    timeline: RankTimeline,
    markers: RankMarkers,
    begins: _WindowBegins,
    windows_n_ready: Int64,
    rank: int,
) -> _RankWaits:
    """Return where a rank waits for each collective.

    `windows_n_ready` is the number of collectives that become ready before each window.
    """
    comm = timeline.collectives
    first_edge, last_edge = begins.time[[0, -1], rank]
    # The work goes on from where it had stopped before the operation that waits.
    stopped = np.maximum(timeline.end_before[markers.join], markers.ready)
    goes_on = np.maximum(stopped, first_edge)
    is_joined = markers.join < timeline.start.size
    launches = np.append(timeline.latest_launch, AFTER_ALL_NS)
    launch = np.where(comm.is_inline, comm.launch, launches[markers.join])
    # The wait is also after collectives that started before earlier launches were done.
    n_launched_before = np.searchsorted(comm.launch, launch)
    n_ready_before = np.searchsorted(np.maximum.accumulate(markers.ready), goes_on)
    collectives = np.arange(comm.launch.size)
    n_ready = np.maximum(n_launched_before, n_ready_before)
    n_ready = np.where(comm.is_inline, collectives + 1, n_ready)
    n_windows = _n_windows_before(n_ready, launch, windows_n_ready, begins.launch[:, rank])
    n_joins = _places_among_equals(n_ready, n_windows, launch, n_edges=windows_n_ready.size)
    keys = _MarkerKeys(n_ready, n_windows, n_joins, collectives)
    return _RankWaits(keys, time=np.where(is_joined, goes_on, last_edge))


def _n_windows_before(
    n_ready: Int64, launch: Int64, windows_n_ready: Int64, windows_launch: Int64
) -> Int64:
    """Return how many windows begin before each wait, and after the collective before it.

    A window that begins with an operation that waits begins after the wait.
    """
    first_window = np.searchsorted(windows_n_ready, n_ready)
    end_window = np.searchsorted(windows_n_ready, n_ready, side="right")
    n_launched_before = np.searchsorted(windows_launch, launch)
    return np.clip(n_launched_before, first_window, end_window)


def _places_among_equals(n_ready: Int64, n_windows: Int64, launch: Int64, *, n_edges: int) -> Int64:
    """Return the place of each wait among those after the same collective and window, by launch."""
    order = np.lexsort((launch, n_windows, n_ready))
    slot = n_ready * (n_edges + 1) + n_windows
    place = np.empty_like(order)
    place[order] = places_in_runs(slot[order])
    return place
