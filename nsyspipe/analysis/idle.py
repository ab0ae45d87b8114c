"""When a rank's devices do nothing, and why: each gap is explained by the launch of the operation that ends it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from nsyspipe.analysis.attribution import NEVER
from nsyspipe.analysis.intervals import EMPTY, IntervalSet, union
from nsyspipe.model.step_tables import IDLE_CAUSES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nsyspipe.analysis.attribution import ProcessOperations
    from nsyspipe.analysis.steps import Windows
    from nsyspipe.model.types import Int64


# When a rank's devices do nothing, and which operation ends each such gap.


# A host that launches one operation after the other never takes so long for the next one.
PAUSE_NS = 2_000_000
# No launch takes longer to reach an idle device: a larger least time means that it never was idle.
_LONGEST_LATENCY_NS = 20_000


@dataclass(frozen=True)
class Gaps:
    """The gaps between operations of one rank, in order of time, report time, ns.

    Attributes
    ----------
    starts, ends
        Where the last operation before ended, and where the next one starts.
    launch
        Launch of the operation that explains the gap, on the device's clock; `attribution.NEVER` where it has none.
    operation
        Which operation that is: kernels in order of launch, then copies in order of launch. It is the one that ends
        the gap; where that is a copy of unified memory, which nothing launches, the next to start that is none.
    latency_ns
        The shortest time from a launch to the start of its kernel on this rank; at least 0, at most 20 us.
    """

    starts: Int64
    ends: Int64
    launch: Int64
    operation: Int64
    latency_ns: int

    def __len__(self) -> int:
        return int(self.starts.size)


def idle_gaps(
    operations: ProcessOperations, offset_ns: int = 0, of_kernels_ns: Int64 | None = None
) -> Gaps:
    """Find all gaps; of operations that start together a kernel ends the gap, then the first launched.

    Parameters
    ----------
    offset_ns
        How much later the device's clock is than the host's: launches are put on the device's clock.
    of_kernels_ns
        The same of each kernel's own device, where a process uses several.
    """
    starts = np.concatenate((operations.kernel_start, operations.copy_start))
    ends = np.concatenate((operations.kernel_end, operations.copy_end))
    order = np.argsort(starts, kind="stable")  # nearly sorted, which makes this cheap
    starts = starts[order]
    reached = np.maximum.accumulate(ends[order])
    before = np.flatnonzero(starts[1:] > reached[:-1])
    n_kernels = operations.kernel_start.size
    ending = order[_launchable_from(before + 1, order, operations)]
    is_kernel = ending < n_kernels
    launch = np.empty(ending.size, np.int64)
    launch[is_kernel] = operations.kernel_launch[ending[is_kernel]]
    launch[~is_kernel] = operations.copy_launch[ending[~is_kernel] - n_kernels]
    offset = np.full(ending.size, offset_ns)
    if of_kernels_ns is not None:
        offset[is_kernel] = of_kernels_ns[ending[is_kernel]]
    launch = np.where(launch == NEVER, NEVER, launch + offset)
    latency = _latency(operations, offset_ns if of_kernels_ns is None else of_kernels_ns)
    return Gaps(reached[before], starts[before + 1], launch, ending, latency)


def _launchable_from(places: Int64, order: Int64, operations: ProcessOperations) -> Int64:
    """Return the first place from each on that holds an operation which something launched; itself where none does."""
    is_unified = np.concatenate(
        (np.zeros(operations.kernel_start.size, np.bool_), operations.is_unified)
    )[order]
    if not is_unified.any():
        return places
    launchable = np.append(np.flatnonzero(~is_unified), order.size)
    found = launchable[np.searchsorted(launchable, places)]
    return np.where(found < order.size, found, places)


def _latency(operations: ProcessOperations, offset_ns: int | Int64) -> int:
    n_launched = operations.n_launched
    if not n_launched:
        return 0
    times = operations.kernel_start[:n_launched] - operations.kernel_launch[:n_launched]
    own = offset_ns if isinstance(offset_ns, int) else offset_ns[:n_launched]
    return min(max(int((times - own).min()), 0), _LONGEST_LATENCY_NS)


@dataclass(frozen=True)
class IdleCauses:
    """The idle time of each window by cause.

    Attributes
    ----------
    columns
        `schema.IDLE_CAUSES`, one int64 per window, ns; they sum to ``idle_ns`` exactly. None where not recorded.
    blocked_ns_by_call
        ``idle_blocked_ns`` by the API call that the host was blocked in; calls without any are left out.
    between_steps_ns
        Of ``idle_input_ns`` the part between two steps; None where that is.
    pause_ns
        Of ``idle_launch_ns`` the part in stretches of `PAUSE_NS` and more; None where that is.
    """

    columns: dict[str, Int64 | None]
    blocked_ns_by_call: dict[str, Int64]
    between_steps_ns: Int64 | None = None
    pause_ns: Int64 | None = None


def idle_causes(
    gaps: Gaps,
    windows: Windows,
    idle_ns: Int64 | None,
    data: IntervalSet,
    calls: pa.Table | None,
    *,
    between: IntervalSet = EMPTY,
) -> IdleCauses:
    r"""Split the idle time of each window by what held up the operation that ends each gap.

    A gap ``[g0, g1)`` is ended by an operation launched at ``L``; ``R = min(max(L + latency, g0), g1)``
    is when it could have started, latency being the rank's shortest time from launch to start::

        late       = [g0, R)            the operation was not there yet
        input      = |late n D|                     D = host ranges of the data phase, and when the host was
                                                    between two steps, in no range and no call
        blocked    = |late \ D| if a blocking call was under way at g0, else |(late \ D) n S|
                                                    S = synchronising and memory calls of the host
        launch     = |late \ D| - blocked           the host was busy with anything else
        dependency = g1 - R             launched in time: it waited for an event of another stream,
                                        or for the device to start it
        unknown    = idle - all of these            gaps that an operation without a launch ends

    Parameters
    ----------
    idle_ns
        Idle time of each window; None makes all causes None.
    data
        Host ranges of the data phase, on the clock of the gaps, as all times of the host.
    calls
        `schema.BLOCKING_CALLS` of the process, sorted by start; None makes blocked and launch None.
    between
        When the host was between two steps, in no range and no call: probably in the data loader. None of it
        in `data`.
    """
    if idle_ns is None:
        return IdleCauses(dict.fromkeys(IDLE_CAUSES), {})
    known = gaps.launch != NEVER
    starts, ends = gaps.starts[known], gaps.ends[known]
    ready = np.clip(gaps.launch[known] + gaps.latency_ns, starts, ends)
    late = _nonempty(starts, ready)
    inputs = union(np.append(data.starts, between.starts), np.append(data.ends, between.ends))
    waiting = late.intersect(inputs.complement())

    def in_windows(covered: IntervalSet) -> Int64:
        return covered.lengths(windows.starts, windows.ends)

    late_ns, waiting_ns = in_windows(late), in_windows(waiting)
    dependency_ns = in_windows(_nonempty(ready, ends))
    blocked_ns: Int64 | None = None
    pause_ns: Int64 | None = None
    by_call: dict[str, Int64] = {}
    if calls is not None:
        blocked, since = _blocked(late, waiting, calls)
        blocked_ns = in_windows(blocked)
        by_call = _by_call(blocked, since, calls, windows)
        launching = waiting.intersect(blocked.complement())
        is_pause = launching.ends - launching.starts >= PAUSE_NS
        pause_ns = in_windows(IntervalSet(launching.starts[is_pause], launching.ends[is_pause]))
    columns = {
        "idle_input_ns": late_ns - waiting_ns,
        "idle_launch_ns": None if blocked_ns is None else waiting_ns - blocked_ns,
        "idle_blocked_ns": blocked_ns,
        "idle_dependency_ns": dependency_ns,
        "idle_unknown_ns": idle_ns - late_ns - dependency_ns,
    }
    return IdleCauses(columns, by_call, in_windows(late.intersect(between)), pause_ns)


def phase_idle(gaps: Gaps, windows: Windows, phase: NDArray[np.int8], n_phases: int) -> list[Int64]:
    """Return for each phase the idle time of each window whose gaps an operation of that phase ends.

    Parameters
    ----------
    phase
        Phase of the operation that ends each gap, negative for none.
    """
    found = []
    for code in range(n_phases):
        own = phase == code
        gone = IntervalSet(gaps.starts[own], gaps.ends[own])
        found.append(gone.lengths(windows.starts, windows.ends))
    return found


def _nonempty(starts: Int64, ends: Int64) -> IntervalSet:
    kept = ends > starts
    return IntervalSet(starts[kept], ends[kept])


def _blocked(late: IntervalSet, waiting: IntervalSet, calls: pa.Table) -> tuple[IntervalSet, Int64]:
    """Return the parts of the waiting time that calls explain, and a time at which the call was under way."""
    blocking = _one_after_another(calls)
    if not len(blocking) or not len(waiting):
        return EMPTY, EMPTY.starts
    # Each part of the waiting time lies in one late stretch, and belongs to whatever began that.
    owner = np.searchsorted(late.starts, waiting.starts, side="right") - 1
    began = late.starts[owner]
    whole = blocking.contains(began)
    rest = IntervalSet(waiting.starts[~whole], waiting.ends[~whole]).intersect(blocking)
    starts = np.concatenate((waiting.starts[whole], rest.starts))
    ends = np.concatenate((waiting.ends[whole], rest.ends))
    since = np.concatenate((began[whole], rest.starts))
    order = np.argsort(starts, kind="stable")
    return IntervalSet(starts[order], ends[order]), since[order]


def _one_after_another(calls: pa.Table) -> IntervalSet:
    """Return when any call was under way, cut where one ends and a later one goes on."""
    starts, ends = calls["start_ns"].to_numpy(), calls["end_ns"].to_numpy()
    fresh = starts.copy()
    fresh[1:] = np.maximum(starts[1:], np.maximum.accumulate(ends)[:-1])
    return _nonempty(fresh, ends)


def _by_call(
    blocked: IntervalSet, since: Int64, calls: pa.Table, windows: Windows
) -> dict[str, Int64]:
    """Split the blocked time of each window by the call that lasted longest of those under way."""
    if not len(blocked) or not len(windows):
        return {}
    starts, ends = calls["start_ns"].to_numpy(), calls["end_ns"].to_numpy()
    call = _longest_so_far(ends)[np.searchsorted(starts, since, side="right") - 1]
    names = calls["call"].take(pa.array(call)).combine_chunks().dictionary_encode()
    codes = names.indices.to_numpy()
    found = {}
    for code, name in enumerate(names.dictionary.to_pylist()):  # a few, whatever the trace
        own = codes == code
        lengths = IntervalSet(blocked.starts[own], blocked.ends[own]).lengths(
            windows.starts, windows.ends
        )
        if lengths.any():
            found[name] = lengths
    return found


def _longest_so_far(ends: Int64) -> Int64:
    """Return for each place the index of the largest end up to it (the first of equal ones)."""
    reached = np.maximum.accumulate(ends)
    is_new = np.ones(ends.size, np.bool_)
    is_new[1:] = ends[1:] > reached[:-1]
    return np.maximum.accumulate(np.where(is_new, np.arange(ends.size), 0))
