"""The captured steps as a `StepProgram`: where communication and work wait for each other."""

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import asdict

from nsyspipe.analysis.intervals import IntervalSet, places_in_runs, union
from nsyspipe.model.table import Flags, Float64, Int64
from nsyspipe.replay.simulate import JOIN, READY, WINDOW, StepProgram, largest_of_group
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
    # When the rank only waited for a collective, and when work ran that is left out.
    stalls: IntervalSet
    # When communication was active and the rank did not stall.
    concurrent: IntervalSet
    # The starts of the rank's operations, and of those that started in `concurrent`.
    starts: Int64
    concurrent_starts: Int64

    def measure_progress(self, times: Int64) -> Float64:
        """Return the progress of the rank at some times: the rows of `StepProgram.progress`."""
        stalled_ns = self.stalls.covered_until(times)
        work_ns = times - stalled_ns
        concurrent_work_ns = self.concurrent.covered_until(times)
        n_started = np.searchsorted(self.starts, times)
        n_started_concurrently = np.searchsorted(self.concurrent_starts, times)
        rows = (work_ns, concurrent_work_ns, n_started, n_started_concurrently)
        progress = np.stack(rows)
        return progress.astype(np.float64)


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
        n_steps = self.windows.steps.size
        return range(n_steps)

    @cached_property
    def gradients_by_step(self) -> list[Int64]:
        """The gradient all-reduces of each step.

        A step is its place among the windows, here and in `StepProgram.step`.
        """
        program = self.program
        all_reduces = np.flatnonzero(program.is_gradient)
        step_of_all_reduces = program.step[all_reduces]
        by_step = np.argsort(step_of_all_reduces, kind="stable")
        later_steps = self.steps[1:]
        first_of_later_steps = np.searchsorted(step_of_all_reduces[by_step], later_steps)
        return np.split(all_reduces[by_step], first_of_later_steps)


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
    - `JOIN` is the first operation launched after the collective, if this operation started right
      after the collective's end. Otherwise the work is assumed to wait after the backward pass, as
      with DDP. Then `JOIN` is the first operation that was launched after the burst of the
      collective (`CapturedSteps.burst`) and started after the collective's end.
    - A collective on the main stream starts after the operation before it, and the operation after
      it waits for its end.
    """
    first_rank = timelines[0]
    burst = _number_bursts(first_rank)
    joins = _joins_of_ranks(timelines, burst, uses.is_gradient)
    markers = _markers_of_ranks(timelines, joins, windows, removed)
    begins = _window_begins(timelines, markers, windows)
    ordered_markers = _order_markers(timelines, markers, begins)
    times = _collective_times(timelines, markers, uses.chain)
    step = first_rank.collectives.step
    begin_ns = begins.time[0].astype(np.float64)
    nothing_added = np.zeros(step.size)
    program = StepProgram(
        **ordered_markers._asdict(),
        **asdict(uses),
        **times._asdict(),
        step=np.searchsorted(windows.steps, step),
        begin_ns=begin_ns,
        late_during_work_ns=nothing_added,
        longer_during_work=nothing_added,
    )
    return CapturedSteps(program, markers, tuple(timelines), windows, burst=burst, uses=uses)


def _markers_of_ranks(
    timelines: Sequence[RankTimeline],
    joins: Sequence[Int64],
    windows: ReplayWindows,
    removed: Sequence[RemovedWork],
) -> tuple[RankMarkers, ...]:
    """Return where each rank and its collectives wait for each other. `joins` is by rank."""
    first_edges = windows.edges[0].tolist()
    removed_of_ranks = removed or [_NOTHING_REMOVED] * len(timelines)
    ranks = zip(timelines, joins, first_edges, removed_of_ranks, strict=True)
    markers = [
        _rank_markers(timeline, join, first_edge, removed_work)
        for timeline, join, first_edge, removed_work in ranks
    ]
    return tuple(markers)


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
    starts = _in_columns(comm.start for comm in collectives)
    ends = _in_columns(comm.end for comm in collectives)
    # At each place, the ranks with the same `seq` take part in the same collective.
    group = _in_columns(comm.seq for comm in collectives)
    ready = _in_columns(rank.ready for rank in markers)
    previous_ends = _previous_ends(ends, chain)
    could_start = np.maximum(ready, previous_ends)
    lag_ns = (starts - could_start).astype(np.float64)
    transfer_ns = ends - _last_starts(starts, group)
    return _CollectiveTimes(lag_ns, transfer_ns, group)


def _in_columns(values_of_ranks: Iterable[Int64]) -> Int64:
    """Return the values of the collectives with a column per rank."""
    return np.stack(list(values_of_ranks), axis=1)


def _previous_ends(ends: Int64, chain: Int64) -> Int64:
    """Return the end of the previous collective in the chain of each collective, by rank."""
    previous_ends = np.full(ends.shape, BEFORE_ALL_NS)
    chains = np.unique(chain)
    for number in chains.tolist():
        members = np.flatnonzero(chain == number)
        followers = members[1:]
        predecessors = members[:-1]
        previous_ends[followers] = ends[predecessors]
    return previous_ends


def _last_starts(starts: Int64, group: Int64) -> Float64:
    """Return for each collective and rank the last start of a rank of its group."""
    last_starts = np.empty(starts.shape)
    start_ns = starts.astype(np.float64)
    collectives = zip(group, start_ns, strict=True)
    for collective, (group_of_ranks, start_of_ranks) in enumerate(collectives):
        last_starts[collective] = largest_of_group(group_of_ranks, start_of_ranks)
    return last_starts


def _number_bursts(rank: RankTimeline) -> Int64:
    """Return the number of the burst of each collective, see `CapturedSteps.burst`."""
    comm = rank.collectives
    has_new_step = np.diff(comm.step) != 0
    has_new_phase = np.diff(comm.phase) != 0
    begins_burst = _has_work_between(rank) | has_new_step | has_new_phase
    burst = np.append(0, np.cumsum(begins_burst))
    # Without collectives, there is no first burst either.
    return burst[: comm.step.size]


def _has_work_between(rank: RankTimeline) -> Flags:
    """Tell whether work was launched between a collective and the previous one.

    Only work of other phases than that of the collective counts. There is no row for the first
    collective.
    """
    comm = rank.collectives
    by_launch = np.argsort(rank.launch, kind="stable")
    launch = rank.launch[by_launch]
    phase_of_launch = rank.phase[by_launch]
    n_launched_before = np.searchsorted(launch, comm.launch)
    n_pairs = max(comm.launch.size - 1, 0)
    has_work_between = np.zeros(n_pairs, np.bool_)
    phases = np.unique(comm.phase)
    for phase in phases.tolist():
        # The number of operations of other phases among the first n launches, for each n from 0.
        n_others_among_first = np.append(0, np.cumsum(phase_of_launch != phase))
        n_others_before = n_others_among_first[n_launched_before]
        has_others_between = np.diff(n_others_before) > 0
        is_in_phase = comm.phase[1:] == phase
        has_work_between |= has_others_between & is_in_phase
    return has_work_between


def _rank_markers(
    rank: RankTimeline, join: Int64, first_edge: int, removed: RemovedWork
) -> RankMarkers:
    """Return where the rank and its collectives wait for each other. `join` is by collective."""
    comm = rank.collectives
    ready = _ready_times(rank, first_edge)
    stalls = _stalls(rank, join, ready, removed)
    active = union(comm.start, comm.end)
    concurrent = active.without(stalls)
    is_concurrent = concurrent.contains(rank.start)
    return RankMarkers(
        ready=ready,
        join=join,
        stalls=stalls,
        concurrent=concurrent,
        starts=rank.start,
        concurrent_starts=rank.start[is_concurrent],
    )


def _stalls(rank: RankTimeline, join: Int64, ready: Int64, removed: RemovedWork) -> IntervalSet:
    """Return when the rank only waited for a collective, and when removed work ran.

    `join` and `ready` are by collective, as in `RankMarkers`.
    """
    comm = rank.collectives
    is_joined = join < rank.start.size
    joined = np.flatnonzero(is_joined)
    waiting_operation = join[joined]
    end_before = rank.end_before[waiting_operation]
    # A collective that could not start yet did not delay the work.
    stall_start = np.maximum(end_before, ready[joined])
    # The wait ends with the collective, or when the operation starts if that is earlier.
    stall_end = np.minimum(comm.end[joined], rank.start[waiting_operation])
    is_stall = stall_start < stall_end
    starts = np.concatenate((stall_start[is_stall], removed.starts))
    ends = np.concatenate((stall_end[is_stall], removed.ends))
    return union(starts, ends)


def _ready_times(rank: RankTimeline, first_edge: int) -> Int64:
    """Return when the work of the rank allowed each collective to start, from the first edge on.

    The work includes collectives of the main stream.
    """
    comm = rank.collectives
    inline_launch = comm.launch[comm.is_inline]
    inline_end = comm.end[comm.is_inline]
    launch = np.concatenate((rank.launch, inline_launch))
    end = np.concatenate((rank.end, inline_end))
    by_launch = np.argsort(launch, kind="stable")
    latest_end = np.maximum.accumulate(end[by_launch])
    # The latest end among the first n launches, for each n from 0.
    end_of_first = np.append(BEFORE_ALL_NS, latest_end)
    n_launched_before = np.searchsorted(launch[by_launch], comm.launch)
    work_end = end_of_first[n_launched_before]
    # A collective can start when it is launched, and the work that was launched before it is done.
    could_start = np.maximum(work_end, comm.launch)
    could_start_in_windows = np.maximum(could_start, first_edge)
    # A collective that started before an operation ended did not depend on that operation.
    ready: Int64 = np.minimum(could_start_in_windows, comm.start)
    return ready


class _Joins(NamedTuple):
    """What waits for each collective on one rank. The fields are by collective."""

    # The place of the operation that waits for the collective, or the number of operations if none
    # does.
    operation: Int64
    # The place of the first operation that was launched after the collective.
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

    If no operation is seen to wait for a collective, the operation that usually waits for the same
    collective in other steps and on other ranks is assumed to wait. For gradients nothing is
    assumed.
    """
    joins = [_find_joins(timeline, burst) for timeline in timelines]
    step = timelines[0].collectives.step
    # By collective: the place of the first collective that has the same step.
    first_of_step = np.searchsorted(step, step)
    # The same collective has the same place in each step.
    place_in_step = np.arange(step.size) - first_of_step
    places = np.unique(place_in_step[~is_gradient])
    for place in places.tolist():
        is_at_place = place_in_step == place
        is_same_collective = ~is_gradient & is_at_place
        joins = _with_usual_waiter(timelines, joins, is_same_collective)
    return [rank_joins.operation for rank_joins in joins]


def _with_usual_waiter(
    timelines: Sequence[RankTimeline], joins: list[_Joins], is_same_collective: Flags
) -> list[_Joins]:
    """Return the joins of all ranks, with the usual waiter of one collective where none was seen.

    `is_same_collective` is true for this one collective in every step.
    """
    waiter = _usual_waiter(timelines, joins, is_same_collective)
    if waiter is None:
        return joins
    ranks = zip(timelines, joins, strict=True)
    return [
        _assume_waiter(timeline, rank_joins, is_same_collective, waiter)
        for timeline, rank_joins in ranks
    ]


def _usual_waiter(
    timelines: Sequence[RankTimeline], joins: Sequence[_Joins], is_same_collective: Flags
) -> _UsualWaiter | None:
    """Return the operation that most often waits for one collective, over all steps and ranks.

    `is_same_collective` is true for this collective in every step. Return None if no operation is
    seen to wait for the collective.
    """
    counts: Counter[_UsualWaiter] = Counter()
    ranks = zip(timelines, joins, strict=True)
    for timeline, rank_joins in ranks:
        is_seen = is_same_collective & rank_joins.has_waited
        operations = rank_joins.operation[is_seen]
        distances = operations - rank_joins.next_launched[is_seen]
        name_codes = timeline.name[operations].tolist()
        names = [timeline.names[code] for code in name_codes]
        waiters = map(_UsualWaiter, distances.tolist(), names)
        counts.update(waiters)
    if not counts:
        return None
    waiter, _ = counts.most_common(1)[0]
    return waiter


def _assume_waiter(
    timeline: RankTimeline, joins: _Joins, is_same_collective: Flags, waiter: _UsualWaiter
) -> _Joins:
    """Return the joins of a rank, with the usual waiter of one collective where none was seen.

    The operation at the usual distance must have the usual name and be in the step of the
    collective. Otherwise the join stays.
    """
    comm = timeline.collectives
    last_operation = timeline.start.size - 1
    at_usual_distance = joins.next_launched + waiter.distance
    usual_operation = np.minimum(at_usual_distance, last_operation)
    is_usual_name = np.array(timeline.names, object) == waiter.name
    code_of_name = timeline.name[usual_operation]
    has_usual_name = is_usual_name[code_of_name]
    is_in_step = timeline.step[usual_operation] == comm.step
    is_unseen = is_same_collective & ~joins.has_waited & ~comm.is_inline
    is_assumed = has_usual_name & is_in_step & is_unseen
    # If the usual operation started before the collective ended, a later one has to wait.
    first_after_end = np.searchsorted(timeline.start, comm.end)
    assumed_operation = np.maximum(usual_operation, first_after_end)
    operation = np.where(is_assumed, assumed_operation, joins.operation)
    return joins._replace(operation=operation)


def _find_joins(rank: RankTimeline, burst: Int64) -> _Joins:
    """Find the operation of a rank that waits for each collective.

    The candidate is the first operation that was launched after the collective and started after
    the collective's end. It is the result if the capture shows that it waited. Otherwise the result
    is the first operation that was launched after the burst of the collective and started after the
    collective's end.

    A collective of the main stream has no candidate: the operation that started next waits for it.
    """
    comm = rank.collectives
    n_operations = rank.start.size
    if not n_operations:
        # The number of operations, here 0, means that none waits.
        none_waits = np.zeros(comm.end.size, np.int64)
        has_waited = np.zeros(comm.end.size, np.bool_)
        return _Joins(operation=none_waits, next_launched=none_waits, has_waited=has_waited)
    next_launched = np.searchsorted(rank.latest_launch, comm.launch, side="right")
    first_after_end = np.searchsorted(rank.start, comm.end)
    after_both = np.maximum(next_launched, first_after_end)
    candidate = np.minimum(after_both, n_operations - 1)
    # At the end of the windows, no operation may have been launched after the collective.
    is_launched_after = candidate >= next_launched
    has_candidate_waited = _has_stalled(rank, candidate) & is_launched_after
    next_after_burst = _next_after_burst(rank, burst)
    after_burst = np.maximum(next_after_burst, first_after_end)
    concurrent_waiter = np.where(has_candidate_waited, candidate, after_burst)
    next_started = np.searchsorted(rank.start, comm.start)
    waiter = np.where(comm.is_inline, next_started, concurrent_waiter)
    has_waited = has_candidate_waited & ~comm.is_inline
    return _Joins(waiter, next_launched, has_waited)


def _next_after_burst(rank: RankTimeline, burst: Int64) -> Int64:
    """Return the place of the first operation that was launched after each collective's burst."""
    last_burst = int(burst.max(initial=-1))
    last_launch = np.full(last_burst + 1, BEFORE_ALL_NS)
    np.maximum.at(last_launch, burst, rank.collectives.launch)
    last_launch_of_burst = last_launch[burst]
    return np.searchsorted(rank.latest_launch, last_launch_of_burst, side="right")


def _has_stalled(rank: RankTimeline, operation: Int64) -> Flags:
    """Tell whether the operation at each place is seen to have waited for the collective there.

    It has if it started right after the end of the collective, and the stream was idle before that
    end, although the operation had been launched.
    """
    comm = rank.collectives
    start = rank.start[operation]
    is_after_end = start >= comm.end
    is_soon = start < comm.end + _MAX_START_AFTER_END_NS
    is_right_after_end = is_after_end & is_soon
    idle_since = _idle_since(rank, operation)
    is_after_idle_time = idle_since + _MIN_STALL_NS < comm.end
    launch = rank.launch[operation]
    is_launched_in_time = launch + _MIN_STALL_NS < comm.end
    has_stalled: Flags = is_right_after_end & is_after_idle_time & is_launched_in_time
    return has_stalled


def _idle_since(rank: RankTimeline, operation: Int64) -> Int64:
    """Return the end of what the main stream ran before some operations.

    That may be another operation or a collective of the main stream.
    """
    comm = rank.collectives
    start = rank.start[operation]
    inline_starts = comm.start[comm.is_inline]
    inline_ends = comm.end[comm.is_inline]
    latest_inline_end = np.maximum.accumulate(inline_ends)
    # The latest end of the first n inline collectives, for each n from 0.
    end_of_first_inline = np.append(BEFORE_ALL_NS, latest_inline_end)
    n_inline_before = np.searchsorted(inline_starts, start)
    inline_end_before = end_of_first_inline[n_inline_before]
    end_before = rank.end_before[operation]
    idle_since: Int64 = np.maximum(end_before, inline_end_before)
    return idle_since


class _WindowBegins(NamedTuple):
    """When the work of each window begins, and the launches until then, for one or all ranks.

    If there is a row more than windows, it is for the last edge. Of all ranks, there is a column
    per rank.
    """

    time: Int64
    # The latest launch up to the operation that begins the window.
    launch: Int64


def _window_begins(
    timelines: Sequence[RankTimeline], markers: Sequence[RankMarkers], windows: ReplayWindows
) -> _WindowBegins:
    """Return where the work of each window begins on each rank, see `_rank_begins`.

    No window begins at the last edge. Its row has the time of the edge, and a launch after all
    others.
    """
    time = windows.edges.copy()
    launch = np.full(windows.edges.shape, AFTER_ALL_NS)
    ranks = zip(timelines, markers, strict=True)
    for rank, (timeline, rank_markers) in enumerate(ranks):
        edges = windows.edges[:-1, rank]
        begins = _rank_begins(timeline, rank_markers, edges)
        time[:-1, rank] = begins.time
        launch[:-1, rank] = begins.launch
    # The order of markers is found by binary search, so launches must not fall from row to row.
    latest_launch = np.maximum.accumulate(launch, axis=0)
    return _WindowBegins(time, latest_launch)


def _rank_begins(timeline: RankTimeline, markers: RankMarkers, edges: Int64) -> _WindowBegins:
    """Return when the work of each window of a rank begins, and the launch of its first event.

    `edges` has the start of each window. The first event of a window is the first collective or
    operation that starts at its edge or later. The work begins at the edge, with one exception: if
    a collective starts exactly at the edge, the work begins when the collective could have started.
    """
    comm = timeline.collectives
    # The events are the collectives, then the operations. A last one starts after all windows, and
    # is the first event of windows in which nothing starts.
    starts = np.concatenate((comm.start, timeline.start, [AFTER_ALL_NS]))
    launches = np.concatenate((comm.launch, timeline.latest_launch, [AFTER_ALL_NS]))
    by_start = np.argsort(starts, kind="stable")
    n_started_before_edge = np.searchsorted(starts[by_start], edges)
    first_event = by_start[n_started_before_edge]
    is_collective = first_event < comm.start.size
    starts_at_edge = starts[first_event] == edges
    does_collective_begin = is_collective & starts_at_edge
    collective = first_event[does_collective_begin]
    time = edges.copy()
    time[does_collective_begin] = markers.ready[collective]
    return _WindowBegins(time, launches[first_event])


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
    """Put the markers of all ranks into one order, by `_MarkerKeys`.

    Collectives stand in their order, and other markers between them by the launches of each rank.
    """
    window_keys = _window_keys(timelines[0], begins)
    ready_keys = _ready_keys(timelines[0])
    waits = _waits_of_ranks(timelines, markers, begins, window_keys)
    joins = _distinct_joins(waits)
    # A row per key, and a column per marker: first the windows, then `READY`, then `JOIN`.
    keys_of_kinds = (np.stack(window_keys), np.stack(ready_keys), joins.keys)
    keys = np.concatenate(keys_of_kinds, axis=1)
    n_markers_of_kinds = [kind_keys.shape[1] for kind_keys in keys_of_kinds]
    kind = np.repeat([WINDOW, READY, JOIN], n_markers_of_kinds)
    # The most important key of `lexsort` is the last one.
    order = np.lexsort(keys[::-1])
    # The markers of the passes have the same order as the columns of the keys.
    passes = _passes_of_ranks(markers, begins, waits, joins)
    is_passed = np.stack([rank_passes.is_passed for rank_passes in passes], axis=1)
    progress = _progress_of_ranks(markers, passes, order)
    subject = _MarkerKeys(*keys).subject[order]
    return _OrderedMarkers(kind[order], subject, is_passed[order], progress)


def _waits_of_ranks(
    timelines: Sequence[RankTimeline],
    markers: Sequence[RankMarkers],
    begins: _WindowBegins,
    window_keys: _MarkerKeys,
) -> list[_RankWaits]:
    """Return where each rank waits for each collective."""
    waits = []
    ranks = zip(timelines, markers, strict=True)
    for rank, (timeline, rank_markers) in enumerate(ranks):
        time = begins.time[:, rank]
        launch = begins.launch[:, rank]
        rank_begins = _WindowBegins(time, launch)
        rank_waits = _rank_waits(timeline, rank_markers, rank_begins, window_keys.n_ready)
        waits.append(rank_waits)
    return waits


class _DistinctJoins(NamedTuple):
    """The `JOIN` markers. Ranks that wait for a collective at different places have one each."""

    # The rows are those of `_MarkerKeys`.
    keys: Int64
    # By rank and collective: the number of the `JOIN`.
    of_ranks: Int64


def _distinct_joins(waits: Sequence[_RankWaits]) -> _DistinctJoins:
    """Return one `JOIN` for all ranks that wait for a collective at the same place.

    Waits with equal keys are at the same place.
    """
    keys_of_ranks = [np.stack(rank_waits.keys) for rank_waits in waits]
    all_keys = np.concatenate(keys_of_ranks, axis=1)
    keys, join_of_wait = np.unique(all_keys, axis=1, return_inverse=True)
    of_ranks = join_of_wait.reshape(len(waits), -1)
    return _DistinctJoins(keys, of_ranks)


class _RankPasses(NamedTuple):
    """Which markers a rank passes, and when: first the windows, then `READY`, then `JOIN`."""

    is_passed: Flags
    time: Int64


def _passes_of_ranks(
    markers: Sequence[RankMarkers],
    begins: _WindowBegins,
    waits: Sequence[_RankWaits],
    joins: _DistinctJoins,
) -> list[_RankPasses]:
    """Return which markers each rank passes, and when.

    A rank passes all windows, all `READY` markers, and its own `JOIN` of each collective. The
    markers stand in this order of kinds.
    """
    n_joins = joins.keys.shape[1]
    passes = []
    ranks = zip(markers, begins.time.T, waits, joins.of_ranks, strict=True)
    for rank_markers, window_time, rank_waits, rank_joins in ranks:
        join_passes = _join_passes(rank_joins, rank_waits.time, n_joins)
        n_others = window_time.size + rank_markers.ready.size
        is_other_passed = np.ones(n_others, np.bool_)
        is_passed = np.concatenate((is_other_passed, join_passes.is_passed))
        time = np.concatenate((window_time, rank_markers.ready, join_passes.time))
        passes.append(_RankPasses(is_passed, time))
    return passes


def _join_passes(rank_joins: Int64, wait_time: Int64, n_joins: int) -> _RankPasses:
    """Return which `JOIN` markers a rank passes, and when."""
    time = np.zeros(n_joins, np.int64)
    time[rank_joins] = wait_time
    is_passed = np.zeros(n_joins, np.bool_)
    is_passed[rank_joins] = True
    return _RankPasses(is_passed, time)


def _progress_of_ranks(
    markers: Sequence[RankMarkers], passes: Sequence[_RankPasses], order: Int64
) -> Float64:
    """Return the rows of `StepProgram.progress` at the ordered markers."""
    progress = []
    ranks = zip(markers, passes, strict=True)
    for rank_markers, rank_passes in ranks:
        time = rank_passes.time[order]
        is_passed = rank_passes.is_passed[order]
        rank_progress = _progress_at_markers(rank_markers, time, is_passed)
        progress.append(rank_progress)
    return np.stack(progress, axis=2)


def _progress_at_markers(markers: RankMarkers, time: Int64, is_passed: Flags) -> Float64:
    """Return the progress of a rank at each marker.

    At a marker that the rank does not pass, the progress is that of the last marker that it passed.
    Before its first one, the progress is that of the first one.
    """
    progress_at_passed = markers.measure_progress(time[is_passed])
    n_passed = np.cumsum(is_passed)
    last_passed = np.maximum(n_passed - 1, 0)
    return progress_at_passed[:, last_passed]


def _window_keys(first_rank: RankTimeline, begins: _WindowBegins) -> _MarkerKeys:
    """Return the keys of the windows, and of the last edge.

    A collective becomes ready before a window if the first rank launched the collective before the
    first event of the window.
    """
    n_edges = begins.time.shape[0]
    windows = np.arange(n_edges)
    launch = first_rank.collectives.launch
    launch_of_windows = begins.launch[:, 0]
    n_ready = np.searchsorted(launch, launch_of_windows)
    # A window stands after all `JOIN` markers that have the same `n_ready` and `n_windows`.
    after_all = np.full_like(windows, AFTER_ALL_NS)
    return _MarkerKeys(n_ready, n_windows=windows, n_joins=after_all, subject=windows)


def _ready_keys(first_rank: RankTimeline) -> _MarkerKeys:
    """Return the keys of the `READY` markers."""
    n_collectives = first_rank.collectives.step.size
    collectives = np.arange(n_collectives)
    # A `READY` marker stands after all windows and `JOIN` markers that have the same `n_ready`.
    after_all = np.full_like(collectives, AFTER_ALL_NS)
    return _MarkerKeys(
        n_ready=collectives, n_windows=after_all, n_joins=after_all, subject=collectives
    )


def _rank_waits(
    timeline: RankTimeline,
    markers: RankMarkers,
    begins: _WindowBegins,
    n_ready_of_windows: Int64,
) -> _RankWaits:
    """Return where a rank waits for each collective. `begins` are those of this rank.

    `n_ready_of_windows` is the number of collectives that become ready before each window. If
    nothing waits for a collective, the rank waits at the last edge.
    """
    comm = timeline.collectives
    first_edge, last_edge = begins.time[[0, -1]]
    # As in `_stalls`: the work stops when its last operation before the wait has ended.
    end_before = timeline.end_before[markers.join]
    stall_start = np.maximum(end_before, markers.ready)
    wait_start = np.maximum(stall_start, first_edge)
    # A join is the number of operations if none waits. Its launch is after all others.
    launch_of_operations = np.append(timeline.latest_launch, AFTER_ALL_NS)
    launch_of_join = launch_of_operations[markers.join]
    launch = np.where(comm.is_inline, comm.launch, launch_of_join)
    n_ready = _n_ready_before(timeline, markers, launch, wait_start)
    n_windows = _n_windows_before(n_ready, launch, n_ready_of_windows, begins.launch)
    n_joins = _places_among_equals(n_ready, n_windows, launch, n_edges=n_ready_of_windows.size)
    collectives = np.arange(comm.launch.size)
    keys = _MarkerKeys(n_ready, n_windows, n_joins, collectives)
    is_joined = markers.join < timeline.start.size
    return _RankWaits(keys, time=np.where(is_joined, wait_start, last_edge))


def _n_ready_before(
    timeline: RankTimeline, markers: RankMarkers, launch: Int64, wait_start: Int64
) -> Int64:
    """Return how many collectives stand before the wait for each collective.

    The result, `launch` and `wait_start` have an entry per collective. An operation waits for the
    collective: it was launched at `launch`, and its wait starts at `wait_start`. Other collectives
    stand before this wait if they were launched before the operation, or if they were ready before
    the wait started. If a collective runs on the main stream (`is_inline`), its wait follows it
    directly. So it and all earlier collectives stand before the wait.
    """
    comm = timeline.collectives
    n_launched_before = np.searchsorted(comm.launch, launch)
    latest_ready = np.maximum.accumulate(markers.ready)
    n_ready_before = np.searchsorted(latest_ready, wait_start)
    n_before = np.maximum(n_launched_before, n_ready_before)
    n_with_collective_itself = np.arange(comm.launch.size) + 1
    return np.where(comm.is_inline, n_with_collective_itself, n_before)


def _n_windows_before(
    n_ready: Int64, launch: Int64, n_ready_of_windows: Int64, launch_of_windows: Int64
) -> Int64:
    """Return how many windows begin before each wait.

    A window with fewer collectives before it than the wait begins before the wait, and a window
    with more begins after it. If both have the same number, the launches decide. A window that
    begins with the operation that waits begins after the wait.
    """
    n_certainly_before = np.searchsorted(n_ready_of_windows, n_ready)
    n_possibly_before = np.searchsorted(n_ready_of_windows, n_ready, side="right")
    n_launched_before = np.searchsorted(launch_of_windows, launch)
    return np.clip(n_launched_before, n_certainly_before, n_possibly_before)


def _places_among_equals(n_ready: Int64, n_windows: Int64, launch: Int64, *, n_edges: int) -> Int64:
    """Return the place of each wait among the waits with the same `n_ready` and `n_windows`.

    Waits with the same two keys are in order of launch.
    """
    # The most important key of `lexsort` is the last one.
    order = np.lexsort((launch, n_windows, n_ready))
    # Each pair of the two keys is one number, because `n_windows` goes from 0 to `n_edges`.
    pair = n_ready * (n_edges + 1) + n_windows
    place = np.empty_like(order)
    place[order] = places_in_runs(pair[order])
    return place
