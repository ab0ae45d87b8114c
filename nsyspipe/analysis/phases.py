"""Phases of steps: their host ranges, their cost, and what a host does between steps."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from nsyspipe.analysis import breakdown
from nsyspipe.analysis.attribution import NEVER, Inputs, ProcessOperations
from nsyspipe.analysis.breakdown import DeviceTime, exposed_comm
from nsyspipe.analysis.intervals import (
    EMPTY,
    IntervalSet,
    Slices,
    holders,
    nonempty,
    sums_of,
    union,
    union_of,
)
from nsyspipe.analysis.steps import Members, TextFamilies
from nsyspipe.model.canonical import DTOD_KIND
from nsyspipe.model.names import PHASE_PATTERNS, PHASES, phase_of
from nsyspipe.model.table import Flags, Int64

NO_WINDOW = np.int64(-1)
NO_PHASE = -1
# What launched an operation of a step that has a backward pass.
IN_FORWARD = 0
IN_BACKWARD = 1
BEHIND_BACKWARD = 2


def with_copies_behind(ranges: PhaseRanges, operations: ProcessOperations) -> PhaseRanges:
    """Extend ranges that end with a launch by the copies launched before the next kernel.

    Only device-to-device copies count. Backward passes that were found by their kernels end so. DDP
    copies gradients out of its buckets behind the last one.
    """
    launches = np.append(operations.kernel_launch[: operations.n_launched], NEVER)
    is_launched = operations.copy_launch != NEVER
    is_dtod = operations.copy_kind == DTOD_KIND
    copies = np.sort(operations.copy_launch[is_dtod & is_launched])
    next_launch = launches[np.searchsorted(launches, ranges.ends)]
    n_copies_before = np.searchsorted(copies, next_launch)
    last_copy_end = np.append(-NEVER, copies + 1)[n_copies_before]
    return replace(ranges, ends=np.maximum(ranges.ends, last_copy_end))


class Operations(NamedTuple):
    """Kernels or copies, in order of launch."""

    launch: Int64
    start: Int64
    end: Int64


class Launched(NamedTuple):
    """The operations that each host range launched."""

    counts: Int64
    first_start: Int64
    last_end: Int64


def launched_in(starts: Int64, ends: Int64, *operations: tuple[Int64, Int64, Int64]) -> Launched:
    """Return how many operations each host range launched, their first start and last end.

    The columns of operations are those of `Operations`.
    """
    counts = np.zeros(starts.size, np.int64)
    first_start = np.full(starts.size, NEVER)
    last_end = -first_start
    for columns in operations:
        launched = Operations(*columns)
        slices = Slices.within(launched.launch, starts, ends)
        ranges = np.flatnonzero(slices.counts)
        inside = Slices(slices.first[ranges], slices.last[ranges])
        counts[ranges] += inside.counts
        first = inside.reduced(np.minimum, launched.start)
        last = inside.reduced(np.maximum, launched.end)
        first_start[ranges] = np.minimum(first_start[ranges], first)
        last_end[ranges] = np.maximum(last_end[ranges], last)
    return Launched(counts, first_start, last_end)


def phase_costs(
    phase: PhaseRanges,
    members: Members,
    device: DeviceTime,
    belongs: tuple[Flags, Flags],
    idle_ns: Int64,
) -> dict[str, Int64 | None]:
    """Measure one phase of one rank, for every step that has it.

    ``member`` is the index of the step range. All other columns are as in `schema.PHASES`. Without
    launches, ``n_kernels`` and all after it are None. If the step has no window, all columns after
    ``n_kernels`` are -1. `belongs` flags kernels and copies that were launched in the phase.
    `idle_ns` is as `breakdown.phase_idle` returns it.
    """
    operations = device.operations
    windows = device.windows
    n_members = members.starts.size
    member = np.unique(phase.member)
    pieces = _pieces_in_steps(phase, members)
    n_launched = operations.kernels_launched_in(pieces.times.starts, pieces.times.ends).counts
    host_ns = sums_of(pieces.member, pieces.times.ends - pieces.times.starts, n_members)
    n_kernels = sums_of(pieces.member, n_launched, n_members)
    costs: dict[str, Int64 | None] = {
        "member": member,
        "host_ns": host_ns[member],
        "n_kernels": n_kernels[member],
    }
    on_device = _costs_on_device(device, belongs) | {"idle_ns": idle_ns}
    for name, values in on_device.items():
        # The last place is that of no step: a capture without steps is a window of no step.
        by_member = np.full(n_members + 1, NO_WINDOW)
        by_member[windows.member] = values
        costs[name] = by_member[member]
    if not member.size or not operations.n_launched:
        costs |= dict.fromkeys(("n_kernels", *on_device))
    return costs


def _costs_on_device(device: DeviceTime, belongs: tuple[Flags, Flags]) -> dict[str, Int64]:
    """Return how long operations of a phase run on the device, ns by window."""
    operations = device.operations
    windows = device.windows
    kernels, copies = belongs
    is_compute = kernels & ~operations.is_comm
    is_comm = kernels & operations.is_comm
    compute = union(operations.kernel_start[is_compute], operations.kernel_end[is_compute])
    comm = union(operations.kernel_start[is_comm], operations.kernel_end[is_comm])
    memory = union(operations.copy_start[copies], operations.copy_end[copies])
    return {
        "compute_ns": windows.covered(compute),
        "comm_ns": windows.covered(comm),
        "device_ns": windows.covered(union_of(compute, comm, memory)),
        "exposed_comm_ns": windows.covered(exposed_comm(comm, device.compute)),
    }


class _Pieces(NamedTuple):
    """The times of a phase inside steps, and the step of each."""

    times: IntervalSet
    member: Int64


def _pieces_in_steps(phase: PhaseRanges, members: Members) -> _Pieces:
    steps = IntervalSet(members.starts, members.ends)
    times = steps.intersect(union(phase.starts, phase.ends))
    return _Pieces(times, np.searchsorted(members.starts, times.starts, side="right") - 1)


def launches_in_phase(
    phase: PhaseRanges, members: Members, copies: pa.Table | None
) -> Int64 | None:
    """Return how many of some copies each step launched in a phase, for every step that has it.

    None without `copies`.
    """
    if copies is None:
        return None
    pieces = _pieces_in_steps(phase, members)
    launches = np.sort(copies["launch_ns"].to_numpy())
    counts = Slices.within(launches, pieces.times.starts, pieces.times.ends).counts
    return sums_of(pieces.member, counts, members.starts.size)[np.unique(phase.member)]


class PhaseRanges(Struct, frozen=True):
    """The ranges of one phase of one rank: in order of start, none inside another."""

    # Index of the step range that holds each.
    member: Int64
    starts: Int64
    ends: Int64


def between_steps(
    ranges: pa.Table,
    codes: Int64,
    members: Members,
    calls: pa.Table | None,
    operations: ProcessOperations,
) -> Inputs:
    """Find what the host does after the end of a step range and before the start of the next.

    Some step ranges leave no room for that, for example ranges that end with the optimizer. Then
    the time between the launches of kernels around the start of the next step counts, if it takes
    `breakdown.PAUSE_NS`. Without `canonical.HOST_CALLS`, no time is known to be quiet. A range that
    holds a whole step (an epoch) does not count.
    """
    starts = ranges["start_ns"].to_numpy()
    ends = ranges["end_ns"].to_numpy()
    is_of_loop = _are_of_loop(ranges, members)
    code = codes[ranges["text"].combine_chunks().indices.to_numpy()]
    is_data = is_of_loop & (code == PHASES.index("data"))
    gaps = nonempty(members.ends[:-1], members.starts[1:])
    data = union(starts[is_data], ends[is_data]).intersect(gaps)
    launch_gaps = _launch_gaps_around_starts(members, operations)
    if calls is None or not (len(gaps) or len(launch_gaps)):
        return Inputs(data, EMPTY)
    calls_of_loop = calls.filter(pc.equal(calls["thread_id"], members.thread_id))
    called = union(calls_of_loop["start_ns"].to_numpy(), calls_of_loop["end_ns"].to_numpy())
    busy = union_of(union(starts[is_of_loop], ends[is_of_loop]), called)
    quiet_in_launch_gaps = _longest_of_each(launch_gaps, launch_gaps.without(busy))
    lengths = quiet_in_launch_gaps.ends - quiet_in_launch_gaps.starts
    pauses = quiet_in_launch_gaps[lengths >= breakdown.PAUSE_NS]
    quiet_in_gaps = _longest_of_each(gaps, gaps.without(busy))
    return Inputs(data, union_of(quiet_in_gaps, pauses))


def _are_of_loop(ranges: pa.Table, members: Members) -> Flags:
    """Tell which ranges are of the thread of the steps and hold no step."""
    first_member = np.searchsorted(members.starts, ranges["start_ns"].to_numpy(), side="left")
    end_member = np.searchsorted(members.ends, ranges["end_ns"].to_numpy(), side="right")
    is_on_thread: Flags = ranges["thread_id"].to_numpy() == members.thread_id
    holds_no_step: Flags = end_member <= first_member
    return is_on_thread & holds_no_step


def _launch_gaps_around_starts(members: Members, operations: ProcessOperations) -> IntervalSet:
    """Return the times between launches around the start of steps that follow others at once."""
    launches = operations.kernel_launch[: operations.n_launched]
    is_close = members.starts[1:] - members.ends[:-1] < breakdown.PAUSE_NS
    next_launch = np.unique(np.searchsorted(launches, members.starts[1:][is_close]))
    next_launch = next_launch[(next_launch > 0) & (next_launch < launches.size)]
    return nonempty(launches[next_launch - 1], launches[next_launch])


def _longest_of_each(intervals: IntervalSet, parts: IntervalSet) -> IntervalSet:
    owner = np.searchsorted(intervals.starts, parts.starts, side="right") - 1
    order = np.lexsort((parts.starts, parts.starts - parts.ends, owner))
    return parts[order[np.flatnonzero(np.diff(owner[order], prepend=-1))]]


def phase_codes(
    families: TextFamilies, patterns: Mapping[str, re.Pattern[str]], texts: pa.StringArray
) -> Int64:
    """Return the phase of each text of the families, as an index into `names.PHASES`; -1 for none.

    It is the phase of the normalised text. A pattern of a user may name digits, which normalised
    texts do not have. So it is matched with the texts too.
    """
    phases = [phase_of(name, patterns) for name in families.names]
    code_of_family = [PHASES.index(phase) if phase else NO_PHASE for phase in phases]
    # The last code is that of no family, which is -1.
    codes = np.array([*code_of_family, NO_PHASE])[families.of_text]
    for code, phase in enumerate(PHASES):
        if patterns[phase].pattern == PHASE_PATTERNS[phase]:
            continue
        # The first phase of a text counts.
        is_later = (codes == NO_PHASE) | (codes > code)
        for place in np.flatnonzero(is_later).tolist():
            if patterns[phase].search(texts[place].as_py() or ""):
                codes[place] = code
    return codes


class LaunchingThreads(Struct, frozen=True):
    """Pairs of a step and a thread, other than that of the steps, that launches its kernels.

    Mostly these are threads of autograd.
    """

    # Index of the step range.
    member: Int64
    thread_id: Int64

    def has(self, member: Int64, thread_id: Int64) -> Flags:
        """Tell of each pair whether that thread launches kernels of that step."""
        threads, number = np.unique(
            np.concatenate((self.thread_id, thread_id)), return_inverse=True
        )
        pair = np.concatenate((self.member, member)) * threads.size + number
        return np.isin(pair[self.member.size :], pair[: self.member.size])


NO_OTHER_THREADS = LaunchingThreads(np.empty(0, np.int64), np.empty(0, np.int64))


def has_phases_elsewhere(ranges: pa.Table, codes: Int64, members: Members) -> bool:
    """Tell whether ranges of another thread than that of the steps are named like a phase."""
    code = codes[ranges["text"].combine_chunks().indices.to_numpy()]
    return bool(((code != NO_PHASE) & (ranges["thread_id"].to_numpy() != members.thread_id)).any())


def launching_threads(members: Members, launches: Int64, threads: Int64) -> LaunchingThreads:
    """Return which other threads launch kernels of which step.

    `launches` and `threads` are of the launch of each kernel.
    """
    member = holders(members.starts, members.ends, launches)
    is_other = (member >= 0) & (threads != members.thread_id)
    pairs = np.unique(np.stack((member[is_other], threads[is_other])), axis=1)
    return LaunchingThreads(pairs[0], pairs[1])


def backward_passes(
    backward: PhaseRanges, members: Members, launches: Int64, threads: Int64
) -> PhaseRanges:
    """Join ranges of the backward pass of a step, which may have one per layer.

    Two ranges are joined if the thread of the steps launches nothing between them.
    """
    if not backward.starts.size:
        return backward
    launches_of_loop = np.sort(launches[threads == members.thread_id])
    n_before_start = np.searchsorted(launches_of_loop, backward.starts[1:])
    n_before_end = np.searchsorted(launches_of_loop, backward.ends[:-1])
    is_other_step = backward.member[1:] != backward.member[:-1]
    is_first = np.append(True, (n_before_start > n_before_end) | is_other_step)
    first = np.flatnonzero(is_first)
    ends = np.maximum.reduceat(backward.ends, first)
    return PhaseRanges(backward.member[first], backward.starts[first], ends)


def phase_ranges(
    ranges: pa.Table, codes: Int64, members: Members, others: LaunchingThreads = NO_OTHER_THREADS
) -> dict[str, PhaseRanges]:
    """Find the phase ranges of one rank, by phase in the order of `names.PHASES`.

    Every phase has an entry, which may be empty. The ranges are inside a step range, on its thread
    or on one of the `others` that launch its kernels. A range without a phase is ignored. So is a
    range that contains a range of another phase on its thread (for example a ``train_batch`` around
    everything). Of nested ranges of one phase the outermost counts.
    """
    code = codes[ranges["text"].combine_chunks().indices.to_numpy()]
    starts = ranges["start_ns"].to_numpy()
    ends = ranges["end_ns"].to_numpy()
    thread_id = ranges["thread_id"].to_numpy()
    member = np.searchsorted(members.starts, starts, side="right") - 1
    is_eligible = thread_id == members.thread_id
    if others.member.size:
        is_eligible |= others.has(member, thread_id)
    is_eligible &= (code != NO_PHASE) & (member >= 0)
    is_eligible &= ~ranges["is_library"].to_numpy()
    is_eligible &= ends <= np.append(members.ends, 0)[member]
    is_eligible[members.rows] = False
    rows = np.flatnonzero(is_eligible)
    for thread in np.unique(thread_id[rows]):
        of_thread = rows[thread_id[rows] == thread]
        is_ignored = _contains_other(code[of_thread], starts[of_thread], ends[of_thread])
        is_eligible[of_thread[is_ignored]] = False
    rows = np.flatnonzero(is_eligible)
    by_phase = {}
    for index, phase in enumerate(PHASES):
        chosen = rows[code[rows] == index]
        outer = chosen[_outermost_places(starts[chosen], ends[chosen])]
        by_phase[phase] = PhaseRanges(member[outer], starts[outer], ends[outer])
    return by_phase


def _outermost_places(starts: Int64, ends: Int64) -> Int64:
    """Return the places of ranges that no other range contains, in order of start."""
    order: Int64 = np.lexsort((-ends, starts))
    ends = ends[order]
    is_outer: Flags = np.append(True, ends[1:] > np.maximum.accumulate(ends)[:-1])
    outermost: Int64 = order[is_outer[: order.size]]
    return outermost


def phases_of_launches(phases: Mapping[str, PhaseRanges], launches: Int64) -> NDArray[np.int8]:
    """Return the first phase whose range contains each of some sorted launches.

    The result are indices into `names.PHASES`, -1 for none.
    """
    phase = np.full(launches.size, NO_PHASE, np.int8)
    for code, ranges in reversed([*enumerate(phases.values())]):
        inside = Slices.within(launches, ranges.starts, ranges.ends)
        for first, last in zip(inside.first.tolist(), inside.last.tolist(), strict=True):
            phase[first:last] = code
    return phase


def _contains_other(code: Int64, starts: Int64, ends: Int64) -> Flags:
    """Tell which ranges contain a range of another phase."""
    contains = np.zeros(code.size, np.bool_)
    for phase in np.unique(code):
        is_of_phase = code == phase
        other_starts = starts[~is_of_phase]
        order = np.argsort(other_starts, kind="stable")
        other_starts = other_starts[order]
        other_ends = ends[~is_of_phase][order]
        # The earliest end of all others that start at or after each place.
        earliest_end = np.minimum.accumulate(other_ends[::-1])[::-1]
        earliest_end = np.append(earliest_end, np.iinfo(np.int64).max)
        place = np.searchsorted(other_starts, starts[is_of_phase])
        contains[is_of_phase] = earliest_end[place] <= ends[is_of_phase]
    return contains


def launching_passes(
    member: Int64, launch: Int64, backward: PhaseRanges | None
) -> tuple[Int64, Int64]:
    """Return the pass that launched each operation, and which backward range of its step did.

    Both are -1 for none. The pass is `IN_BACKWARD`, `IN_FORWARD` before the last backward range of
    the step, or `BEHIND_BACKWARD`. Forward of a second micro-batch comes after backward of the
    first.
    """
    unknown = np.full(launch.size, -1)
    if backward is None or not backward.starts.size:
        return unknown, unknown
    holder = holders(backward.starts, backward.ends, launch)
    is_inside = holder >= 0
    n_members = max(int(member.max(initial=0)), int(backward.member.max())) + 1
    last_start_of_member = np.full(n_members, -NEVER)
    # Ranges are in order of start, so the last one stays.
    last_start_of_member[backward.member] = backward.starts
    last_start = last_start_of_member[np.maximum(member, 0)]
    is_known = (member >= 0) & (launch != NEVER) & (last_start != -NEVER)
    outside = np.where(launch < last_start, IN_FORWARD, BEHIND_BACKWARD)
    launched_in = np.where(is_known, np.where(is_inside, IN_BACKWARD, outside), unknown)
    place_in_step = holder - np.searchsorted(backward.member, backward.member[holder])
    return launched_in, np.where(is_known & is_inside, place_in_step, unknown)
