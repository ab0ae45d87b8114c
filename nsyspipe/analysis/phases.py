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
from nsyspipe.analysis.breakdown import DeviceTime, exposed_comm, kernel_times
from nsyspipe.analysis.intervals import (
    EMPTY,
    IntervalSet,
    Slices,
    holders,
    nonempty,
    run_starts,
    sums_of,
    union,
    union_of,
)
from nsyspipe.analysis.steps import Members, TextFamilies
from nsyspipe.model.canonical import DTOD_KIND
from nsyspipe.model.names import PHASE_PATTERNS, PHASES, phase_of
from nsyspipe.model.table import Flags, Int64
from nsyspipe.model.typed_tables import (
    HostCallsOfReportTable,
    RangesOfReportTable,
)

NO_WINDOW = np.int64(-1)
NO_PHASE = -1
_DATA = PHASES.index("data")
# What launched an operation of a step that has a backward pass.
IN_FORWARD = 0
IN_BACKWARD = 1
BEHIND_BACKWARD = 2


def with_copies_behind(ranges: PhaseRanges, operations: ProcessOperations) -> PhaseRanges:
    """Extend ranges that end with a launch by the copies launched before the next kernel.

    Only device-to-device copies count. Backward passes that were found by their kernels end so. DDP
    copies gradients out of its buckets behind the last one.
    """
    launches = operations.kernel_launch[: operations.n_launched]
    launches = np.append(launches, NEVER)
    is_launched = operations.copy_launch != NEVER
    is_dtod = operations.copy_kind == DTOD_KIND
    copies = operations.copy_launch[is_dtod & is_launched]
    copies = np.sort(copies)
    next_place = np.searchsorted(launches, ranges.ends)
    next_launch = launches[next_place]
    n_copies_before = np.searchsorted(copies, next_launch)
    end_of_copy = np.append(-NEVER, copies + 1)
    last_copy_end = end_of_copy[n_copies_before]
    ends = np.maximum(ranges.ends, last_copy_end)
    return replace(ranges, ends=ends)


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
        first_places = slices.first[ranges]
        last_places = slices.last[ranges]
        inside = Slices(first_places, last_places)
        counts[ranges] += inside.counts
        starts_inside = inside.reduced(np.minimum, launched.start)
        ends_inside = inside.reduced(np.maximum, launched.end)
        np.minimum.at(first_start, ranges, starts_inside)
        np.maximum.at(last_end, ranges, ends_inside)
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
    n_members = members.starts.size
    member = np.unique(phase.member)
    pieces = _pieces_in_steps(phase, members)
    times = pieces.times
    launched = operations.kernels_launched_in(times.starts, times.ends)
    host_ns = sums_of(pieces.member, times.ends - times.starts, n_members)
    n_kernels = sums_of(pieces.member, launched.counts, n_members)
    costs: dict[str, Int64 | None] = {"member": member}
    costs["host_ns"] = host_ns[member]
    costs["n_kernels"] = n_kernels[member]
    on_device = _costs_on_device(device, belongs)
    on_device["idle_ns"] = idle_ns
    for name, values in on_device.items():
        # The last place is that of no step: a capture without steps is a window of no step.
        by_member = np.full(n_members + 1, NO_WINDOW)
        by_member[device.windows.member] = values
        costs[name] = by_member[member]
    if not member.size or not operations.n_launched:
        unknown = ("n_kernels", *on_device)
        costs |= dict.fromkeys(unknown)
    return costs


def _costs_on_device(device: DeviceTime, belongs: tuple[Flags, Flags]) -> dict[str, Int64]:
    """Return how long operations of a phase run on the device, ns by window."""
    operations = device.operations
    windows = device.windows
    kernels, copies = belongs
    compute = kernel_times(operations, kernels & ~operations.is_comm)
    comm = kernel_times(operations, kernels & operations.is_comm)
    memory = union(operations.copy_start[copies], operations.copy_end[copies])
    busy = union_of(compute, comm, memory)
    exposed = exposed_comm(comm, device.compute)
    costs = {}
    costs["compute_ns"] = windows.covered(compute)
    costs["comm_ns"] = windows.covered(comm)
    costs["device_ns"] = windows.covered(busy)
    costs["exposed_comm_ns"] = windows.covered(exposed)
    return costs


class _Pieces(NamedTuple):
    """The times of a phase inside steps, and the step of each."""

    times: IntervalSet
    member: Int64


def _pieces_in_steps(phase: PhaseRanges, members: Members) -> _Pieces:
    steps = IntervalSet(members.starts, members.ends)
    times_of_phase = union(phase.starts, phase.ends)
    times = steps.intersect(times_of_phase)
    n_begun = np.searchsorted(members.starts, times.starts, side="right")
    member = n_begun - 1
    return _Pieces(times, member)


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
    slices = Slices.within(launches, pieces.times.starts, pieces.times.ends)
    n_members = members.starts.size
    counts = sums_of(pieces.member, slices.counts, n_members)
    return counts[np.unique(phase.member)]


class PhaseRanges(Struct, frozen=True):
    """The ranges of one phase of one rank: in order of start, none inside another."""

    # Index of the step range that holds each.
    member: Int64
    starts: Int64
    ends: Int64


def between_steps(
    ranges: RangesOfReportTable,
    codes: Int64,
    members: Members,
    calls: pa.Table | None,
    operations: ProcessOperations,
) -> Inputs:
    """Find what the host does after the end of a step range and before the start of the next.

    Some step ranges leave no room for that, for example ranges that end with the optimizer. Then
    the time between the launches of kernels around the start of the next step counts, if it takes
    `breakdown.PAUSE_NS` and no range of the thread shows when it loads data. Without
    `canonical.HOST_CALLS`, no time is known to be quiet. A range that holds a whole step (an epoch)
    does not count.
    """
    starts = ranges["start_ns"].to_numpy()
    ends = ranges["end_ns"].to_numpy()
    is_of_loop = _are_of_loop(ranges, members)
    is_data = _codes_of_ranges(ranges, codes) == _DATA
    is_data &= is_of_loop
    data = union(starts[is_data], ends[is_data])
    gaps = nonempty(members.ends[:-1], members.starts[1:])
    data = data.intersect(gaps)
    is_loading_marked = bool(is_data.any())
    launch_gaps = EMPTY if is_loading_marked else _launch_gaps_around_starts(members, operations)
    has_gaps = len(gaps) > 0 or len(launch_gaps) > 0
    if calls is None or not has_gaps:
        return Inputs(data, EMPTY)
    in_ranges = union(starts[is_of_loop], ends[is_of_loop])
    busy = union_of(in_ranges, _call_times(calls, members.thread_id))
    quiet = _longest_of_each(gaps, gaps.without(busy))
    pauses = _longest_of_each(launch_gaps, launch_gaps.without(busy))
    lengths_ns = pauses.ends - pauses.starts
    is_long = lengths_ns >= breakdown.PAUSE_NS
    return Inputs(data, union_of(quiet, pauses[is_long]))


def _call_times(calls: HostCallsOfReportTable, thread_id: int) -> IntervalSet:
    """Return the times in which a thread is in a CUDA call."""
    is_on_thread = pc.equal(calls["thread_id"], thread_id)
    calls = calls.select(["start_ns", "end_ns"]).filter(is_on_thread)
    starts = calls["start_ns"].to_numpy()
    ends = calls["end_ns"].to_numpy()
    return union(starts, ends)


def _codes_of_ranges(ranges: RangesOfReportTable, codes: Int64) -> Int64:
    """Return the phase of each range, by the phases of the texts in the dictionary."""
    texts = ranges["text"].combine_chunks()
    code_of_range: Int64 = codes[texts.indices.to_numpy()]
    return code_of_range


def _are_of_loop(ranges: RangesOfReportTable, members: Members) -> Flags:
    """Tell which ranges are of the thread of the steps and hold no step."""
    starts = ranges["start_ns"].to_numpy()
    ends = ranges["end_ns"].to_numpy()
    thread_id = ranges["thread_id"].to_numpy()
    first_member = np.searchsorted(members.starts, starts, side="left")
    end_member = np.searchsorted(members.ends, ends, side="right")
    is_on_thread: Flags = thread_id == members.thread_id
    holds_no_step: Flags = end_member <= first_member
    return is_on_thread & holds_no_step


def _launch_gaps_around_starts(members: Members, operations: ProcessOperations) -> IntervalSet:
    """Return the times between launches around the start of steps that follow others at once."""
    launches = operations.kernel_launch[: operations.n_launched]
    next_starts = members.starts[1:]
    pauses_ns = next_starts - members.ends[:-1]
    is_close = pauses_ns < breakdown.PAUSE_NS
    next_launch = np.searchsorted(launches, next_starts[is_close])
    next_launch = np.unique(next_launch)
    has_launch_before = next_launch > 0
    has_launch_behind = next_launch < launches.size
    next_launch = next_launch[has_launch_before & has_launch_behind]
    starts = launches[next_launch - 1]
    ends = launches[next_launch]
    return nonempty(starts, ends)


def _longest_of_each(intervals: IntervalSet, parts: IntervalSet) -> IntervalSet:
    n_begun = np.searchsorted(intervals.starts, parts.starts, side="right")
    owner = n_begun - 1
    lengths = parts.ends - parts.starts
    order = np.lexsort((parts.starts, -lengths, owner))
    parts = parts[order]
    first = run_starts(owner[order])
    return parts[first]


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
    code_of_family.append(NO_PHASE)
    codes = np.array(code_of_family)[families.of_text]
    for code, phase in enumerate(PHASES):
        pattern = patterns[phase]
        if pattern.pattern == PHASE_PATTERNS[phase]:
            continue
        # The first phase of a text counts.
        is_later = (codes == NO_PHASE) | (codes > code)
        for place in np.flatnonzero(is_later).tolist():
            text = texts[place].as_py() or ""
            if pattern.search(text):
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
        n_launching = self.member.size
        all_threads = np.concatenate((self.thread_id, thread_id))
        all_members = np.concatenate((self.member, member))
        threads, number = np.unique(all_threads, return_inverse=True)
        pairs = all_members * threads.size + number
        launching_pairs = pairs[:n_launching]
        asked_pairs = pairs[n_launching:]
        return np.isin(asked_pairs, launching_pairs)


NO_OTHER_THREADS = LaunchingThreads(np.empty(0, np.int64), np.empty(0, np.int64))


def has_phases_elsewhere(ranges: RangesOfReportTable, codes: Int64, members: Members) -> bool:
    """Tell whether ranges of another thread than that of the steps are named like a phase."""
    thread_id = ranges["thread_id"].to_numpy()
    is_phase = _codes_of_ranges(ranges, codes) != NO_PHASE
    is_elsewhere = thread_id != members.thread_id
    is_phase_elsewhere = is_phase & is_elsewhere
    return bool(is_phase_elsewhere.any())


def launching_threads(members: Members, launches: Int64, threads: Int64) -> LaunchingThreads:
    """Return which other threads launch kernels of which step.

    `launches` and `threads` are of the launch of each kernel.
    """
    member = holders(members.starts, members.ends, launches)
    is_in_step = member >= 0
    is_other_thread = threads != members.thread_id
    is_chosen = is_in_step & is_other_thread
    columns = np.stack((member[is_chosen], threads[is_chosen]))
    member_of_pair, thread_of_pair = np.unique(columns, axis=1)
    return LaunchingThreads(member_of_pair, thread_of_pair)


def backward_passes(
    backward: PhaseRanges, members: Members, launches: Int64, threads: Int64
) -> PhaseRanges:
    """Join ranges of the backward pass of a step, which may have one per layer.

    Two ranges are joined if the thread of the steps launches nothing between them.
    """
    if not backward.starts.size:
        return backward
    is_of_loop = threads == members.thread_id
    launches_of_loop = np.sort(launches[is_of_loop])
    next_starts = backward.starts[1:]
    ends = backward.ends[:-1]
    n_before_start = np.searchsorted(launches_of_loop, next_starts)
    n_before_end = np.searchsorted(launches_of_loop, ends)
    has_launch_between = n_before_start > n_before_end
    is_new_step = np.diff(backward.member) != 0
    begins_pass = has_launch_between | is_new_step
    first = np.flatnonzero(np.append(True, begins_pass))
    member = backward.member[first]
    first_starts = backward.starts[first]
    last_ends = np.maximum.reduceat(backward.ends, first)
    return PhaseRanges(member, first_starts, last_ends)


def phase_ranges(
    ranges: RangesOfReportTable,
    codes: Int64,
    members: Members,
    others: LaunchingThreads = NO_OTHER_THREADS,
) -> dict[str, PhaseRanges]:
    """Find the phase ranges of one rank, by phase in the order of `names.PHASES`.

    Every phase has an entry, which may be empty. The ranges are inside a step range, on its thread
    or on one of the `others` that launch its kernels. A range without a phase is ignored. So is a
    range that contains a range of another phase on its thread (for example a ``train_batch`` around
    everything). Of nested ranges of one phase the outermost counts.
    """
    host = _host_ranges(ranges, codes, members)
    is_eligible = _are_eligible(host, members, others)
    is_eligible &= ~ranges["is_library"].to_numpy()
    is_eligible[members.rows] = False
    rows = np.flatnonzero(is_eligible)
    threads = host.thread_id[rows]
    for thread in np.unique(threads):
        of_thread = rows[threads == thread]
        starts = host.starts[of_thread]
        ends = host.ends[of_thread]
        is_ignored = _contains_other(host.code[of_thread], starts, ends)
        is_eligible[of_thread[is_ignored]] = False
    rows = np.flatnonzero(is_eligible)
    code_of_row = host.code[rows]
    by_phase = {}
    for code, phase in enumerate(PHASES):
        is_of_phase = code_of_row == code
        by_phase[phase] = _outermost_ranges(host, rows[is_of_phase])
    return by_phase


class _HostRanges(NamedTuple):
    """Ranges on host threads, the phase of each, and the last step that begins before."""

    code: Int64
    thread_id: Int64
    starts: Int64
    ends: Int64
    member: Int64  # -1 before the first step


def _host_ranges(ranges: RangesOfReportTable, codes: Int64, members: Members) -> _HostRanges:
    code = _codes_of_ranges(ranges, codes)
    thread_id = ranges["thread_id"].to_numpy()
    starts = ranges["start_ns"].to_numpy()
    ends = ranges["end_ns"].to_numpy()
    n_begun = np.searchsorted(members.starts, starts, side="right")
    return _HostRanges(code, thread_id, starts, ends, n_begun - 1)


def _are_eligible(host: _HostRanges, members: Members, others: LaunchingThreads) -> Flags:
    """Tell which ranges are named like a phase, and are in a step on a thread that counts."""
    is_eligible: Flags = host.thread_id == members.thread_id
    if others.member.size:
        is_eligible |= others.has(host.member, host.thread_id)
    # The last place is that of no step.
    end_of_member = np.append(members.ends, 0)
    is_eligible &= host.code != NO_PHASE
    is_eligible &= host.member >= 0
    is_eligible &= host.ends <= end_of_member[host.member]
    return is_eligible


def _outermost_ranges(host: _HostRanges, rows: Int64) -> PhaseRanges:
    """Return the ranges of some rows that none of these contains, in order of start."""
    order = np.lexsort((-host.ends[rows], host.starts[rows]))
    rows_by_start = rows[order]
    ends = host.ends[rows_by_start]
    latest_end = np.maximum.accumulate(ends)
    is_outer = np.ones(rows.size, np.bool_)
    is_outer[1:] = ends[1:] > latest_end[:-1]
    outer_rows = rows_by_start[is_outer]
    return PhaseRanges(host.member[outer_rows], host.starts[outer_rows], host.ends[outer_rows])


class Stretches(Struct, frozen=True):
    """When the compute kernels of a phase run: disjoint intervals of one GPU, ns."""

    # Index of the step range.
    member: Int64
    # Index into `names.PHASES`.
    phase: Int64
    starts: Int64
    ends: Int64


_NO_NUMBERS = np.empty(0, np.int64)
NO_STRETCHES = Stretches(_NO_NUMBERS, _NO_NUMBERS, _NO_NUMBERS, _NO_NUMBERS)


def phase_stretches(
    operations: ProcessOperations, phase: NDArray[np.int8], members: Members
) -> Stretches:
    """Return when the phases of steps run on a GPU, in order of time.

    A stretch lasts from the first to the last compute kernel that one phase launches without a
    kernel of another phase between. It ends at the latest when the next stretch begins.
    """
    n_launched = operations.n_launched
    if not members.starts.size or not n_launched:
        return NO_STRETCHES
    is_comm = operations.is_comm[:n_launched]
    is_chosen = (phase[:n_launched] != NO_PHASE) & ~is_comm
    kernels = np.flatnonzero(is_chosen)
    member = holders(members.starts, members.ends, operations.kernel_launch[kernels])
    is_in_step = member >= 0
    kernels = kernels[is_in_step]
    member = member[is_in_step]
    phase_of_kernel = phase[kernels].astype(np.int64)
    first = run_starts(member * len(PHASES) + phase_of_kernel)
    if not first.size:
        return NO_STRETCHES
    starts = np.minimum.reduceat(operations.kernel_start[kernels], first)
    ends = np.maximum.reduceat(operations.kernel_end[kernels], first)
    order = np.argsort(starts, kind="stable")
    starts = starts[order]
    ends = ends[order]
    ends[:-1] = np.minimum(ends[:-1], starts[1:])
    is_empty = starts >= ends
    chosen = order[~is_empty]
    rows = first[chosen]
    return Stretches(member[rows], phase_of_kernel[rows], starts[~is_empty], ends[~is_empty])


def phases_of_launches(phases: Mapping[str, PhaseRanges], launches: Int64) -> NDArray[np.int8]:
    """Return the first phase whose range contains each of some sorted launches.

    The result are indices into `names.PHASES`, -1 for none.
    """
    phase = np.full(launches.size, NO_PHASE, np.int8)
    codes = [*enumerate(phases.values())]
    for code, ranges in reversed(codes):
        inside = Slices.within(launches, ranges.starts, ranges.ends)
        firsts = inside.first.tolist()
        lasts = inside.last.tolist()
        for first, last in zip(firsts, lasts, strict=True):
            phase[first:last] = code
    return phase


def _contains_other(code: Int64, starts: Int64, ends: Int64) -> Flags:
    """Tell which ranges contain a range of another phase."""
    contains = np.zeros(code.size, np.bool_)
    for phase in np.unique(code):
        is_of_phase = code == phase
        other_starts = starts[~is_of_phase]
        other_ends = ends[~is_of_phase]
        order = np.argsort(other_starts, kind="stable")
        # The earliest end of all others that start at or after each place.
        ends_from_last = other_ends[order][::-1]
        earliest_from_last = np.minimum.accumulate(ends_from_last)
        earliest_end = np.append(earliest_from_last[::-1], NEVER)
        place = np.searchsorted(other_starts[order], starts[is_of_phase])
        earliest_end_inside = earliest_end[place]
        contains[is_of_phase] = earliest_end_inside <= ends[is_of_phase]
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
    last_start = _last_backward_starts(member, backward)
    is_in_step = member >= 0
    is_launched = launch != NEVER
    has_backward = last_start != -NEVER
    is_known = is_in_step & is_launched & has_backward
    is_inside = holder >= 0
    outside = np.where(launch < last_start, IN_FORWARD, BEHIND_BACKWARD)
    launching_pass = np.where(is_inside, IN_BACKWARD, outside)
    member_of_holder = backward.member[holder]
    place_in_step = holder - np.searchsorted(backward.member, member_of_holder)
    is_in_backward = is_known & is_inside
    launched_in = np.where(is_known, launching_pass, unknown)
    backward_range = np.where(is_in_backward, place_in_step, unknown)
    return launched_in, backward_range


def _last_backward_starts(member: Int64, backward: PhaseRanges) -> Int64:
    """Return the start of the last backward range of the step of each operation.

    It is ``-NEVER`` if the step has no backward range.
    """
    last_member = int(member.max(initial=0))
    last_member = max(last_member, int(backward.member.max()))
    last_start_of_member = np.full(last_member + 1, -NEVER)
    # Ranges are in order of start, so the last one stays.
    last_start_of_member[backward.member] = backward.starts
    known_member = np.maximum(member, 0)
    return last_start_of_member[known_member]
