"""The steps as a program of markers, and its simulation on all ranks, for several settings."""

from typing import NamedTuple, cast

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from nsyspipe.analysis.kernels import Slowing
from nsyspipe.model.table import Flags, Float64, Int64

# The kinds of markers: a window starts, a collective may start, work waits for a collective.
WINDOW = 0
READY = 1
JOIN = 2
# The rows of `StepProgram.progress`.
WORK_NS = 0
CONCURRENT_WORK_NS = 1
N_STARTED = 2
N_STARTED_CONCURRENTLY = 3

# A window of work cannot hold operations that are shorter on average.
_MIN_OPERATION_NS = 1_000.0
NO_SLOWING = Slowing()


class StepProgram(Struct, frozen=True):
    """The steps of all ranks as a sequence of markers, and the collectives of the steps.

    All markers stand in one order, which holds for every rank. Times are ns, with a column per
    rank.
    """

    # By marker: `WINDOW`, `READY` or `JOIN`.
    kind: Int64
    # By marker: the window or the collective that the marker belongs to.
    subject: Int64
    # By marker and rank: whether the rank passes the marker. Ranks may wait for a collective at
    # different places, and each place is a `JOIN` of its own.
    is_passed: Flags
    # Shape (4, markers, ranks): how far each rank has come. The rows are the work in ns (time
    # without waiting for collectives), the part of it during communication, the number of
    # operations that the main stream started, and how many of them started during communication.
    progress: Float64
    # By collective: the place of the step among the windows.
    step: Int64
    # By collective and rank: from the moment when the collective could have started to its start.
    lag_ns: Float64
    # By collective and rank: from the start of the last rank to the end on this rank.
    transfer_ns: Float64
    # By collective: NaN where the message size is not known.
    n_bytes: Float64
    # By collective: the collectives of one chain run one after the other.
    chain: Int64
    # By collective: whether it is an all-reduce of gradients.
    is_gradient: Flags
    # By collective: the parallelism of its communicator.
    role: NDArray[np.object_]
    # By collective and rank: ranks with the same number take part in the same collective.
    group: Int64
    # By rank: the start of the first window, aligned.
    begin_ns: Float64
    # By collective: how much later it starts if its rank works then. It is 0 for a captured
    # collective, because the captured lag contains the delay.
    late_during_work_ns: Float64
    # By collective: the share by which its transfer is longer if a rank works when it starts. It
    # is 0 for a captured collective.
    longer_during_work: Float64

    def free_work(self, slowing: Slowing) -> Float64:
        """Return the work until each marker on each rank, as if communication had not slowed it.

        The result is in ns. Concurrent work took its free time x (1 + ratio), plus a delay for each
        operation that started during communication. So the time that it lost was
        ``(ratio x concurrent + delays) / (1 + ratio)``.
        """
        work, concurrent_work, _, n_started_concurrently = self.progress
        ratio_ns = slowing.ratio * concurrent_work
        delays_ns = slowing.delay_ns * n_started_concurrently
        lost_ns = (ratio_ns + delays_ns) / (1 + slowing.ratio)
        free_work = work - lost_ns
        # The work until a marker is never less than that until the marker before, even if the
        # delays between the two markers exceed the time between them.
        return np.maximum.accumulate(free_work, axis=0)

    @property
    def n_ranks(self) -> int:
        """The number of simulated ranks."""
        return int(self.begin_ns.size)


def largest_of_group(group: Int64, values: Float64) -> Float64:
    """Return for each rank the largest value among the ranks of its group.

    Ranks are the last axis of `values`. The number of a rank's group is in `group`. If there is
    only one group, the result has one value for all ranks.
    """
    is_one_group = (group == group[0]).all()
    if is_one_group:
        return cast("Float64", values.max(axis=-1, keepdims=True))
    largest = np.empty_like(values)
    for number in np.unique(group).tolist():
        is_member = group == number
        member_values = values[..., is_member]
        largest[..., is_member] = member_values.max(axis=-1, keepdims=True)
    return largest


class SimulationSetting(Struct, frozen=True):
    """How much communication slows work down, before in the capture and after in the simulation.

    If there are no transfer times, they are the captured ones.
    """

    before: Slowing = NO_SLOWING
    after: Slowing = NO_SLOWING
    transfer_ns: Float64 | None = None

    def transfer(self, program: StepProgram) -> Float64:
        """Return the transfer times of a program's collectives."""
        return program.transfer_ns if self.transfer_ns is None else self.transfer_ns


def simulate(
    program: StepProgram, settings: list[SimulationSetting], unpack_ns: Float64 | None = None
) -> Float64:
    """Return when each window starts on each rank, and when the last window ends, in aligned ns.

    The shape is (settings, windows + 1, ranks). The markers are simulated in their order:

    - A rank can start a collective if its work has come to the collective's `READY` and the
      previous collective of the chain has ended. It starts ``lag_ns`` later.
    - The collective ends ``transfer_ns`` after the last of its ranks has started it.
    - At a `JOIN` the work of a rank waits for the end of the collective, and `unpack_ns` longer.
    - Work takes longer while a collective is active on its rank, also while that collective waits
      for other ranks. The operations between two markers are spread evenly over the work.
    """
    simulation = _Simulation(program, settings, unpack_ns)
    kinds = program.kind.tolist()
    subjects = program.subject.tolist()
    markers = zip(kinds, subjects, strict=True)
    for marker, (kind, subject) in enumerate(markers):
        simulation.work_until(marker)
        if kind == READY:
            simulation.start_collective(marker, subject)
        elif kind == JOIN:
            simulation.wait_for_collective(marker, subject)
        else:
            simulation.start_window(subject)
    return simulation.edges


class _Simulation:
    """The state of a simulation: the time of each rank, and the ends of the collectives.

    Arrays are by setting and rank. Collectives and chains have an axis before these two. Markers
    and windows have an axis between them.
    """

    def __init__(
        self,
        program: StepProgram,
        settings: list[SimulationSetting],
        unpack_ns: Float64 | None,
    ) -> None:
        n_collectives = program.step.size
        last_chain = int(program.chain.max(initial=0))
        n_edges = np.count_nonzero(program.kind == WINDOW)
        shape = (len(settings), program.n_ranks)
        self._program = program
        self._pieces = _work_between(program, settings)
        work_ns = self._pieces.work_ns
        # By marker: whether there is work before it, in any setting and on any rank.
        work_of_markers = work_ns.swapaxes(0, 1)
        self._has_work = [bool(work.any()) for work in work_of_markers]
        self._work_until_join = _work_until_join(program, work_ns)
        transfers = [setting.transfer(program) for setting in settings]
        self._transfer_ns = np.stack(transfers)
        self._unpack_ns = np.zeros(n_collectives) if unpack_ns is None else unpack_ns
        # By collective: whether work on its ranks changes its start or its transfer time.
        is_late_during_work = program.late_during_work_ns > 0
        is_longer_during_work = program.longer_during_work > 0
        self._depends_on_work = is_late_during_work | is_longer_during_work
        is_slowed = self._pieces.slowdown > 1
        self._active = _ActiveCollectives(n_collectives, shape, is_slowing=bool(is_slowed.any()))
        begin_ns = np.broadcast_to(program.begin_ns, shape)
        self._now = begin_ns.copy()
        self._ends = np.empty((n_collectives, *shape))
        # By chain: the end of its latest collective. Nothing delays its first collective.
        self._chain_ends = np.full((last_chain + 1, *shape), -np.inf)
        self.edges = np.empty((len(settings), n_edges, program.n_ranks))

    def work_until(self, marker: int) -> None:
        """Do the work between the previous marker and this one."""
        if self._has_work[marker]:
            work_ns = self._pieces.work_ns[:, marker]
            slowdown = self._pieces.slowdown[:, marker]
            self._now = self._active.advance(self._now, work_ns, slowdown)

    def start_window(self, window: int) -> None:
        """Note when the window starts."""
        self.edges[:, window] = self._now

    def start_collective(self, marker: int, collective: int) -> None:
        """Start a collective on all of its ranks, as soon as the chain is free."""
        program = self._program
        chain = program.chain[collective]
        group = program.group[collective]
        chain_end = self._chain_ends[chain]
        could_start = np.maximum(chain_end, self._now)
        start = could_start + program.lag_ns[collective]
        transfer_ns = self._transfer_ns[:, collective]
        if self._depends_on_work[collective]:
            # A rank works until its next `JOIN`.
            work_until_join = self._work_until_join[:, marker]
            is_working = start < self._now + work_until_join
            late_ns = program.late_during_work_ns[collective]
            late_if_working_ns = np.where(is_working, late_ns, 0.0)
            start = start + late_if_working_ns
            # 1 if any rank of the group works, else 0.
            any_working = largest_of_group(group, is_working.astype(np.float64))
            longer_share = program.longer_during_work[collective] * any_working
            transfer_ns = transfer_ns * (1 + longer_share)
        last_start_ns = largest_of_group(group, start)
        # Clocks may be aligned inexactly, but a rank cannot end before it has started.
        end = np.maximum(last_start_ns + transfer_ns, start)
        self._chain_ends[chain] = end
        self._ends[collective] = end
        self._active.add(start, end)

    def wait_for_collective(self, marker: int, collective: int) -> None:
        """Let the work of the ranks that pass this marker wait for the end of a collective."""
        end = self._ends[collective] + self._unpack_ns[collective]
        is_waiting = self._program.is_passed[marker]
        goes_on = np.maximum(self._now, end)
        self._now = np.where(is_waiting, goes_on, self._now)


class _WorkPieces(NamedTuple):
    """The work from the previous marker to each marker, by setting, marker and rank."""

    # Without the slowdown by communication.
    work_ns: Float64
    # How many times as long the work takes while communication is active.
    slowdown: Float64


def _work_between(program: StepProgram, settings: list[SimulationSetting]) -> _WorkPieces:
    """Return the work between the markers, for each setting.

    Work before the first window is not simulated, so it is 0.
    """
    window_markers = np.flatnonzero(program.kind == WINDOW)
    first_window = window_markers[0]
    n_started_until = program.progress[N_STARTED]
    n_started = np.diff(n_started_until, axis=0, prepend=n_started_until[:1])
    # For the number of operations per ns, work counts as at least so long. Otherwise many
    # operations in hardly any work would mean a slowdown without limit.
    min_work_ns = _MIN_OPERATION_NS * np.maximum(n_started, 1.0)
    works = []
    slowdowns = []
    for setting in settings:
        free_work = program.free_work(setting.before)
        free_work_in_windows = free_work - free_work[first_window]
        work_until = np.maximum(free_work_in_windows, 0.0)
        work = np.diff(work_until, axis=0, prepend=0.0)
        operations_per_ns = n_started / np.maximum(work, min_work_ns)
        delay_ratio = setting.after.delay_ns * operations_per_ns
        slowdown = 1 + setting.after.ratio + delay_ratio
        works.append(work)
        slowdowns.append(np.maximum(slowdown, 1.0))
    return _WorkPieces(np.stack(works), np.stack(slowdowns))


def _work_until_join(program: StepProgram, work_ns: Float64) -> Float64:
    """Return the work from each marker to the rank's next `JOIN`, or to the last marker, ns.

    The axes are settings, markers and ranks.
    """
    n_markers = program.kind.size
    markers = np.arange(n_markers)[:, np.newaxis]
    is_join_marker = program.kind == JOIN
    is_join_of_rank = is_join_marker[:, np.newaxis] & program.is_passed
    # By marker and rank: the marker itself if it is a `JOIN` of the rank, else the last marker.
    join_or_last = np.where(is_join_of_rank, markers, markers[-1])
    # The next `JOIN` is the lowest from the marker on, so the minimum runs from the last marker.
    next_join_backwards = np.minimum.accumulate(join_or_last[::-1])
    next_join = next_join_backwards[::-1]
    work_until_marker = np.cumsum(work_ns, axis=1)
    next_join_of_settings = next_join[np.newaxis]
    work_until_next_join = np.take_along_axis(work_until_marker, next_join_of_settings, axis=1)
    return work_until_next_join - work_until_marker


class _ActiveCollectives:
    """The collectives that slow down the work on their ranks while they are active."""

    def __init__(self, n_collectives: int, shape: tuple[int, int], *, is_slowing: bool) -> None:
        self._is_slowing = is_slowing
        self._n_collectives = 0
        # A row per collective, and a last row of a collective that never starts. Settings and
        # ranks stand side by side in a row.
        row_shape = (n_collectives + 1, *shape)
        self._starts = np.full(row_shape, np.inf)
        self._ends = np.full(row_shape, np.inf)
        n_settings, n_ranks = shape
        self._row_size = n_settings * n_ranks
        # By setting and rank: the place, in all rows, of the first collective that may still be
        # active.
        self._next = np.arange(self._row_size).reshape(shape)

    def add(self, start: Float64, end: Float64) -> None:
        """Add a collective. Each rank adds its collectives in order of their start."""
        self._starts[self._n_collectives] = start
        self._ends[self._n_collectives] = end
        self._n_collectives += 1

    def advance(self, now: Float64, work: Float64, slowdown: Float64) -> Float64:
        """Return the time when the work is done, which is slower while collectives are active.

        Each round first does the work before the next collective starts, without a slowdown. Then
        it does the slowed work until that collective ends.
        """
        if not self._is_slowing:
            return now + work
        remaining = work
        while True:
            start = self._starts.take(self._next)
            end = self._ends.take(self._next)
            ns_until_start = np.maximum(start - now, 0.0)
            free_work = np.minimum(ns_until_start, remaining)
            now = now + free_work
            remaining = remaining - free_work
            ns_until_end = np.maximum(end - now, 0.0)
            work_until_end = np.minimum(ns_until_end / slowdown, remaining)
            # If the collective has not started yet, all of the work is done before.
            has_started = now >= start
            slowed_work = np.where(has_started, work_until_end, 0.0)
            now = now + slowed_work * slowdown
            remaining = remaining - slowed_work
            # Work that is left is after the end of the collective.
            is_collective_over = remaining > 0
            if not is_collective_over.any():
                return now
            # The same setting and rank stand one row further for the next collective.
            self._next += np.where(is_collective_over, self._row_size, 0)
