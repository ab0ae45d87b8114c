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
    """Extend each range by the device-to-device copies launched behind it, before the next kernel.

    This is for backward passes that were found by their kernels, so that each ends with the launch
    of its last kernel. Behind that, DDP copies gradients out of its buckets.
    """
    kernel_launch = operations.kernel_launch[: operations.n_launched]
    # The last element is for ranges that no kernel follows.
    kernel_launch = np.append(kernel_launch, NEVER)
    is_launched = operations.copy_launch != NEVER
    is_dtod = operations.copy_kind == DTOD_KIND
    copy_launch = operations.copy_launch[is_dtod & is_launched]
    copy_launch = np.sort(copy_launch)
    next_kernel = np.searchsorted(kernel_launch, ranges.ends)
    next_launch = kernel_launch[next_kernel]
    n_copies_before = np.searchsorted(copy_launch, next_launch)
    # Ranges are half-open. So a range that ends 1 ns behind a launch still holds the launch. The
    # first element is for ranges before all copies.
    end_behind_copy = np.append(-NEVER, copy_launch + 1)
    end_behind_last_copy = end_behind_copy[n_copies_before]
    ends = np.maximum(ranges.ends, end_behind_last_copy)
    return replace(ranges, ends=ends)


class Operations(NamedTuple):
    """Kernels or copies, in order of launch."""

    launch: Int64
    start: Int64
    end: Int64


class Launched(NamedTuple):
    """The operations that each host range launched: a value per range."""

    counts: Int64
    first_start: Int64  # `NEVER` if the range launched none
    last_end: Int64  # `-NEVER` if the range launched none


def launched_in(starts: Int64, ends: Int64, *operations: tuple[Int64, Int64, Int64]) -> Launched:
    """Return how many operations each host range launched, their first start and last end.

    `starts` and `ends` are those of the ranges. Each of `operations` has the columns of an
    `Operations`.
    """
    counts = np.zeros(starts.size, np.int64)
    first_start = np.full(starts.size, NEVER)
    last_end = np.full(starts.size, -NEVER)
    for columns in operations:
        launched = Operations(*columns)
        slices = Slices.within(launched.launch, starts, ends)
        ranges = np.flatnonzero(slices.counts)
        # `reduced` takes no empty slices.
        nonempty_slices = Slices(slices.first[ranges], slices.last[ranges])
        counts[ranges] += nonempty_slices.counts
        first_starts = nonempty_slices.reduced(np.minimum, launched.start)
        last_ends = nonempty_slices.reduced(np.maximum, launched.end)
        np.minimum.at(first_start, ranges, first_starts)
        np.maximum.at(last_end, ranges, last_ends)
    return Launched(counts, first_start, last_end)


def phase_costs(
    phase: PhaseRanges,
    members: Members,
    device: DeviceTime,
    *,
    kernels: Flags,
    copies: Flags,
    idle_ns: Int64,
) -> dict[str, Int64 | None]:
    """Measure one phase of one rank: a row for each step that has the phase.

    Returns columns by name. ``member`` is the index of the step range, and the others are those of
    `schema.PHASES`. The columns about kernels and the device are None if no step has the phase, or
    if no launch is known. A step without a window has -1 in the columns about the device.

    `kernels` and `copies` flag the operations of the device that were launched in the phase.
    `idle_ns` is that of the phase, as `breakdown.phase_idle` returns it.
    """
    operations = device.operations
    n_members = members.starts.size
    members_with_phase = np.unique(phase.member)
    pieces = _pieces_in_steps(phase, members)
    times = pieces.times
    launched = operations.kernels_launched_in(times.starts, times.ends)
    host_ns_of_member = sums_of(pieces.member, times.ends - times.starts, n_members)
    n_kernels_of_member = sums_of(pieces.member, launched.counts, n_members)
    costs: dict[str, Int64 | None] = {"member": members_with_phase}
    costs["host_ns"] = host_ns_of_member[members_with_phase]
    costs["n_kernels"] = n_kernels_of_member[members_with_phase]
    on_device = _costs_on_device(device, kernels, copies)
    on_device["idle_ns"] = idle_ns
    for name, value_of_window in on_device.items():
        # The last element is for the window of a capture without steps, whose member is -1.
        value_of_member = np.full(n_members + 1, NO_WINDOW)
        value_of_member[device.windows.member] = value_of_window
        costs[name] = value_of_member[members_with_phase]
    if not members_with_phase.size or not operations.n_launched:
        unknown = ("n_kernels", *on_device)
        costs |= dict.fromkeys(unknown)
    return costs


def _costs_on_device(device: DeviceTime, kernels: Flags, copies: Flags) -> dict[str, Int64]:
    """Return how long the flagged kernels and copies run on the device, ns by window."""
    operations = device.operations
    windows = device.windows
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
    """Return the times of a phase, cut at the begin and end of each step."""
    steps = IntervalSet(members.starts, members.ends)
    times_of_phase = union(phase.starts, phase.ends)
    times = steps.intersect(times_of_phase)
    # Each time is in the last step that has begun.
    n_begun = np.searchsorted(members.starts, times.starts, side="right")
    return _Pieces(times, n_begun - 1)


def launches_in_phase(
    phase: PhaseRanges, members: Members, copies: pa.Table | None
) -> Int64 | None:
    """Return for each step that has a phase how many of some copies were launched in the phase.

    Steps are in ascending order. None without `copies`.
    """
    if copies is None:
        return None
    pieces = _pieces_in_steps(phase, members)
    launches = np.sort(copies["launch_ns"].to_numpy())
    slices = Slices.within(launches, pieces.times.starts, pieces.times.ends)
    n_members = members.starts.size
    counts = sums_of(pieces.member, slices.counts, n_members)
    members_with_phase = np.unique(phase.member)
    return counts[members_with_phase]


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
    """Find when the host loads data, and when it is quiet, between one step range and the next.

    `codes` are the phases of the texts of `ranges`. A range that holds a whole step, such as an
    epoch, does not count. `calls` are `canonical.HOST_CALLS`. Without them, no time is known to be
    quiet.

    The host is quiet outside of ranges and CUDA calls. Of each gap between step ranges, only the
    longest quiet time counts.

    Steps that follow each other at once have no gap, or a short one. The host may get its data
    inside the range then, before the first launch. So the longest quiet time from the last launch
    before the start of a step to the first launch after counts, too. It has to take
    `breakdown.PAUSE_NS`. It does not count if ranges of the thread mark the loading of data.
    """
    starts = ranges["start_ns"].to_numpy()
    ends = ranges["end_ns"].to_numpy()
    is_of_loop = _are_of_loop(ranges, members)
    is_data = _codes_of_ranges(ranges, codes) == _DATA
    is_data &= is_of_loop
    # From the end of each step range to the start of the next.
    gaps = nonempty(members.ends[:-1], members.starts[1:])
    loading = union(starts[is_data], ends[is_data]).intersect(gaps)
    is_loading_marked = bool(is_data.any())
    launch_gaps = EMPTY if is_loading_marked else _launch_gaps_around_starts(members, operations)
    has_gaps = len(gaps) > 0 or len(launch_gaps) > 0
    if calls is None or not has_gaps:
        return Inputs(loading, quiet=EMPTY)
    in_ranges = union(starts[is_of_loop], ends[is_of_loop])
    busy = union_of(in_ranges, _call_times(calls, members.thread_id))
    quiet = _longest_of_each(gaps, gaps.without(busy))
    pauses = _longest_of_each(launch_gaps, launch_gaps.without(busy))
    lengths_ns = pauses.ends - pauses.starts
    is_long = lengths_ns >= breakdown.PAUSE_NS
    return Inputs(loading, quiet=union_of(quiet, pauses[is_long]))


def _call_times(calls: HostCallsOfReportTable, thread_id: int) -> IntervalSet:
    """Return the times in which a thread is in a CUDA call."""
    is_on_thread = pc.equal(calls["thread_id"], thread_id)
    calls = calls.select(["start_ns", "end_ns"]).filter(is_on_thread)
    starts = calls["start_ns"].to_numpy()
    ends = calls["end_ns"].to_numpy()
    return union(starts, ends)


def _codes_of_ranges(ranges: RangesOfReportTable, codes: Int64) -> Int64:
    """Return the phase of each range. `codes` are the phases of the texts in the dictionary."""
    texts = ranges["text"].combine_chunks()
    text_of_range = texts.indices.to_numpy()
    code_of_range: Int64 = codes[text_of_range]
    return code_of_range


def _are_of_loop(ranges: RangesOfReportTable, members: Members) -> Flags:
    """Tell which ranges are on the thread of the steps and hold no whole step."""
    starts = ranges["start_ns"].to_numpy()
    ends = ranges["end_ns"].to_numpy()
    thread_id = ranges["thread_id"].to_numpy()
    # Steps are in order. A range holds a step if the first step that begins in the range ends
    # there, too. This step has the number `n_begun_before`.
    n_begun_before = np.searchsorted(members.starts, starts, side="left")
    n_ended_up_to_end = np.searchsorted(members.ends, ends, side="right")
    holds_step: Flags = n_ended_up_to_end > n_begun_before
    is_on_thread: Flags = thread_id == members.thread_id
    return is_on_thread & ~holds_step


def _launch_gaps_around_starts(members: Members, operations: ProcessOperations) -> IntervalSet:
    """Return the time from the last launch before each step start to the first launch behind it.

    Only steps count that follow the step before at once.
    """
    launches = operations.kernel_launch[: operations.n_launched]
    next_starts = members.starts[1:]
    pauses_ns = next_starts - members.ends[:-1]
    follows_at_once = pauses_ns < breakdown.PAUSE_NS
    n_before_starts = np.searchsorted(launches, next_starts[follows_at_once])
    # Several steps without a launch have the same gap.
    n_launched_before = np.unique(n_before_starts)
    has_launch_before = n_launched_before > 0
    has_launch_behind = n_launched_before < launches.size
    launch_behind = n_launched_before[has_launch_before & has_launch_behind]
    starts = launches[launch_behind - 1]
    ends = launches[launch_behind]
    return nonempty(starts, ends)


def _longest_of_each(intervals: IntervalSet, parts: IntervalSet) -> IntervalSet:
    """Return the longest part of each interval that has one; of equal parts the first."""
    n_begun = np.searchsorted(intervals.starts, parts.starts, side="right")
    interval_of_part = n_begun - 1
    lengths = parts.ends - parts.starts
    longest_first = np.lexsort((parts.starts, -lengths, interval_of_part))
    first_of_interval = run_starts(interval_of_part[longest_first])
    return parts[longest_first[first_of_interval]]


def phase_codes(
    families: TextFamilies, patterns: Mapping[str, re.Pattern[str]], texts: pa.StringArray
) -> Int64:
    """Return the phase of each text, as an index into `names.PHASES`, `NO_PHASE` for none.

    `patterns` are by phase. They are matched with the name of the family of a text, which is the
    normalised text. A pattern of a user may name digits, which normalised texts do not have. So
    such a pattern is matched with the texts, too. If several phases match, the first in
    `names.PHASES` counts.
    """
    phases = [phase_of(name, patterns) for name in families.names]
    codes_of_families = [PHASES.index(phase) if phase else NO_PHASE for phase in phases]
    # A text of no family has the family -1, which reads the last element.
    codes_of_families.append(NO_PHASE)
    code_of_family = np.array(codes_of_families)
    code_of_text = code_of_family[families.of_text]
    for code, phase in enumerate(PHASES):
        pattern = patterns[phase]
        is_of_user = pattern.pattern != PHASE_PATTERNS[phase]
        if not is_of_user:
            continue
        # Texts with this phase or an earlier one keep their phase.
        has_later_or_no_phase = (code_of_text > code) | (code_of_text == NO_PHASE)
        for place in np.flatnonzero(has_later_or_no_phase).tolist():
            text = texts[place].as_py() or ""
            if pattern.search(text):
                code_of_text[place] = code
    return code_of_text


class LaunchingThreads(Struct, frozen=True):
    """Pairs of a step and a thread, other than that of the steps, that launches its kernels.

    Mostly these are threads of autograd.
    """

    # Index of the step range.
    member: Int64
    thread_id: Int64

    def has(self, member: Int64, thread_id: Int64) -> Flags:
        """Tell for each pair of a step and a thread whether the thread launches in the step."""
        n_launching = self.member.size
        all_threads = np.concatenate((self.thread_id, thread_id))
        all_members = np.concatenate((self.member, member))
        threads, number_of_thread = np.unique(all_threads, return_inverse=True)
        # A step and a thread in one number. Both sides are numbered together, so that equal pairs
        # have equal numbers.
        pairs = all_members * threads.size + number_of_thread
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
    """Return which threads launch kernels of which step, other than the thread of the steps.

    `launches` and `threads` are the time and the thread of the launch of each kernel.
    """
    member = holders(members.starts, members.ends, launches)
    is_in_step = member >= 0
    is_other_thread = threads != members.thread_id
    is_chosen = is_in_step & is_other_thread
    pair_of_kernel = np.stack((member[is_chosen], threads[is_chosen]))
    member_of_pair, thread_of_pair = np.unique(pair_of_kernel, axis=1)
    return LaunchingThreads(member_of_pair, thread_of_pair)


def backward_passes(
    backward: PhaseRanges, members: Members, launches: Int64, threads: Int64
) -> PhaseRanges:
    """Join the ranges of one backward pass, which may have one range per layer.

    Two ranges of one step are joined if the thread of the steps launches nothing between them.
    `launches` and `threads` are the time and the thread of the launch of each kernel.
    """
    if not backward.starts.size:
        return backward
    is_of_loop = threads == members.thread_id
    launches_of_loop = np.sort(launches[is_of_loop])
    next_starts = backward.starts[1:]
    previous_ends = backward.ends[:-1]
    n_launches_before_start = np.searchsorted(launches_of_loop, next_starts)
    n_launches_before_end = np.searchsorted(launches_of_loop, previous_ends)
    has_launch_between = n_launches_before_start > n_launches_before_end
    is_of_other_step = np.diff(backward.member) != 0
    begins_pass = np.append(True, has_launch_between | is_of_other_step)
    first_range = np.flatnonzero(begins_pass)
    member = backward.member[first_range]
    starts = backward.starts[first_range]
    ends = np.maximum.reduceat(backward.ends, first_range)
    return PhaseRanges(member, starts, ends)


def phase_ranges(
    ranges: RangesOfReportTable,
    codes: Int64,
    members: Members,
    others: LaunchingThreads = NO_OTHER_THREADS,
) -> dict[str, PhaseRanges]:
    """Find the phase ranges of one rank, by phase in the order of `names.PHASES`.

    `codes` are the phases of the texts of `ranges`. Every phase has an entry, which may be empty.
    The ranges are inside a step range, on its thread or on one of the `others` that launch its
    kernels. Two kinds of ranges are left out: those without a phase, and those that contain a range
    of another phase on their thread (for example a ``train_batch`` around everything). Of nested
    ranges of one phase the outermost counts.
    """
    host = _host_ranges(ranges, codes, members)
    is_eligible = _are_eligible(host, members, others)
    is_eligible &= ~ranges["is_library"].to_numpy()
    # The step ranges themselves are no phases.
    is_eligible[members.rows] = False
    eligible_rows = np.flatnonzero(is_eligible)
    threads = host.thread_id[eligible_rows]
    for thread in np.unique(threads):
        rows_of_thread = eligible_rows[threads == thread]
        starts = host.starts[rows_of_thread]
        ends = host.ends[rows_of_thread]
        contains_other = _contain_other_phase(host.code[rows_of_thread], starts, ends)
        is_eligible[rows_of_thread[contains_other]] = False
    chosen_rows = np.flatnonzero(is_eligible)
    code_of_chosen = host.code[chosen_rows]
    ranges_by_phase = {}
    for code, phase in enumerate(PHASES):
        is_of_phase = code_of_chosen == code
        ranges_by_phase[phase] = _outermost_ranges(host, chosen_rows[is_of_phase])
    return ranges_by_phase


class _HostRanges(NamedTuple):
    """Ranges on host threads."""

    code: Int64  # index into `names.PHASES`, or `NO_PHASE`
    thread_id: Int64
    starts: Int64
    ends: Int64
    member: Int64  # the last step that has begun when the range begins; -1 before the first step


def _host_ranges(ranges: RangesOfReportTable, codes: Int64, members: Members) -> _HostRanges:
    """Return all ranges, each with its phase and the last step that has begun before or with it.

    A phase is an index into `PHASES`, called code. `codes` has the phase of each text of a range.
    """
    starts = ranges["start_ns"].to_numpy()
    n_begun = np.searchsorted(members.starts, starts, side="right")
    return _HostRanges(
        code=_codes_of_ranges(ranges, codes),
        thread_id=ranges["thread_id"].to_numpy(),
        starts=starts,
        ends=ranges["end_ns"].to_numpy(),
        member=n_begun - 1,
    )


def _are_eligible(host: _HostRanges, members: Members, others: LaunchingThreads) -> Flags:
    """Tell which ranges are named like a phase, and are in a step on a thread that counts."""
    is_eligible: Flags = host.thread_id == members.thread_id
    if others.member.size:
        is_eligible |= others.has(host.member, host.thread_id)
    # A range before the first step reads the last element, but never is eligible.
    end_of_member = np.append(members.ends, 0)
    is_eligible &= host.code != NO_PHASE
    is_eligible &= host.member >= 0
    is_eligible &= host.ends <= end_of_member[host.member]
    return is_eligible


def _outermost_ranges(host: _HostRanges, rows: Int64) -> PhaseRanges:
    """Return the ranges of some rows, without those inside another of them, in order of start."""
    # Of ranges that start together, the longest first. So a range comes before all inside it.
    by_start = np.lexsort((-host.ends[rows], host.starts[rows]))
    rows_by_start = rows[by_start]
    ends = host.ends[rows_by_start]
    latest_end = np.maximum.accumulate(ends)
    is_outer = np.ones(rows.size, np.bool_)
    # A range that ends after all earlier ones is inside none of them.
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
    is_chosen = phase[:n_launched] != NO_PHASE
    is_chosen &= ~operations.is_comm[:n_launched]
    kernels = np.flatnonzero(is_chosen)
    member = holders(members.starts, members.ends, operations.kernel_launch[kernels])
    is_in_step = member >= 0
    kernels = kernels[is_in_step]
    member = member[is_in_step]
    phase_of_kernel = phase[kernels].astype(np.int64)
    # A stretch is a run of kernels, in order of launch, of one step and one phase.
    key_of_kernel = member * len(PHASES) + phase_of_kernel
    first_kernel = run_starts(key_of_kernel)
    if not first_kernel.size:
        return NO_STRETCHES
    starts = np.minimum.reduceat(operations.kernel_start[kernels], first_kernel)
    ends = np.maximum.reduceat(operations.kernel_end[kernels], first_kernel)
    by_start = np.argsort(starts, kind="stable")
    sorted_starts = starts[by_start]
    # A stretch ends when the next begins. Nothing cuts the last one.
    cut_ends = np.minimum(ends[by_start], np.append(sorted_starts[1:], NEVER))
    is_nonempty = cut_ends > sorted_starts
    first_of_stretch = first_kernel[by_start[is_nonempty]]
    return Stretches(
        member=member[first_of_stretch],
        phase=phase_of_kernel[first_of_stretch],
        starts=sorted_starts[is_nonempty],
        ends=cut_ends[is_nonempty],
    )


def phases_of_launches(phases: Mapping[str, PhaseRanges], launches: Int64) -> NDArray[np.int8]:
    """Return for each launch the phase whose range contains it; of several phases the first.

    The launches are sorted. A phase is an index into `phases`, and `NO_PHASE` is none.
    """
    phase_of_launch = np.full(launches.size, NO_PHASE, np.int8)
    # The last phase first, so that earlier phases overwrite later ones.
    last_phase_first = reversed([*enumerate(phases.values())])
    for code, ranges in last_phase_first:
        inside = Slices.within(launches, ranges.starts, ranges.ends)
        firsts = inside.first.tolist()
        lasts = inside.last.tolist()
        for first, last in zip(firsts, lasts, strict=True):
            phase_of_launch[first:last] = code
    return phase_of_launch


def _contain_other_phase(code: Int64, starts: Int64, ends: Int64) -> Flags:
    """Tell which ranges contain a range of another phase. `code` is the phase of each range.

    A range contains another one that starts no earlier and ends no later. So look for the earliest
    end of those that start no earlier.
    """
    contains_other = np.zeros(code.size, np.bool_)
    for phase in np.unique(code):
        is_of_phase = code == phase
        # The others are the ranges of all other phases.
        other_starts = starts[~is_of_phase]
        other_ends = ends[~is_of_phase]
        by_start = np.argsort(other_starts, kind="stable")
        # The earliest end of the others from each place on, so accumulated from the last place.
        last_first = other_ends[by_start][::-1]
        earliest_end = np.minimum.accumulate(last_first)[::-1]
        # The appended element is for ranges that all others start before.
        earliest_end = np.append(earliest_end, NEVER)
        first_other = np.searchsorted(other_starts[by_start], starts[is_of_phase])
        contains_other[is_of_phase] = earliest_end[first_other] <= ends[is_of_phase]
    return contains_other


def launching_passes(
    member: Int64, launch: Int64, backward: PhaseRanges | None
) -> tuple[Int64, Int64]:
    """Return the pass that launched each operation, and the number of its backward range.

    `member` and `launch` are the step and the launch of each operation. An operation is launched
    in one of these passes:

    - `IN_BACKWARD`: inside a backward range.
    - `IN_FORWARD`: before the last backward range of the step. Forward of a second micro-batch
      comes after backward of the first.
    - `BEHIND_BACKWARD`: after the last backward range of the step.
    - -1, not known: without a step, a launch, or a backward range of the step.

    The number counts the backward ranges of the step from 0. It is -1 if the pass is another.
    """
    unknown = np.full(launch.size, -1)
    if backward is None or not backward.starts.size:
        return unknown, unknown
    # Launches outside of all ranges get -1, which reads any range. Their number is left out below.
    backward_range = holders(backward.starts, backward.ends, launch)
    member_of_range = backward.member[backward_range]
    first_range_of_member = np.searchsorted(backward.member, member_of_range)
    number_in_step = backward_range - first_range_of_member
    is_inside = backward_range >= 0
    last_start = _last_backward_starts(member, backward)
    pass_outside = np.where(launch < last_start, IN_FORWARD, BEHIND_BACKWARD)
    launching_pass = np.where(is_inside, IN_BACKWARD, pass_outside)
    is_in_step = member >= 0
    is_launched = launch != NEVER
    has_backward = last_start != -NEVER
    is_known = is_in_step & is_launched & has_backward
    known_pass = np.where(is_known, launching_pass, unknown)
    known_number = np.where(is_known & is_inside, number_in_step, unknown)
    return known_pass, known_number


def _last_backward_starts(member: Int64, backward: PhaseRanges) -> Int64:
    """Return the start of the last backward range of the step of each operation.

    It is ``-NEVER`` if the step has no backward range, and any time if the operation has no step.
    """
    last_member_of_operations = int(member.max(initial=0))
    last_member_of_ranges = int(backward.member.max())
    n_members = max(last_member_of_operations, last_member_of_ranges) + 1
    last_start_of_member = np.full(n_members, -NEVER)
    # Ranges are in order of start, so the last one of a step overwrites the others.
    last_start_of_member[backward.member] = backward.starts
    # Operations without a step have -1, which reads the last step.
    return last_start_of_member[member]
