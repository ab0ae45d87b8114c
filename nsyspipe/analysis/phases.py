"""Which host ranges are phases of which step, what a host does between steps, and what each phase costs on host and device."""

from __future__ import annotations

import re
from collections.abc import Mapping

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
IN_FORWARD, IN_BACKWARD, BEHIND_BACKWARD = range(
    3
)  # what launched an operation of a step that has a backward pass


def with_copies_behind(ranges: PhaseRanges, operations: ProcessOperations) -> PhaseRanges:
    """Let ranges that end with the launch of a kernel hold the device-to-device copies launched before the next kernel.

    Backward passes that only kernels tell of end so: DDP copies gradients out of its buckets behind
    the last one.
    """
    launches = np.append(operations.kernel_launch[: operations.n_launched], NEVER)
    copies = operations.copy_launch
    copies = np.sort(copies[(operations.copy_kind == DTOD_KIND) & (copies != NEVER)])
    number = np.searchsorted(copies, launches[np.searchsorted(launches, ranges.ends)])
    return replace(ranges, ends=np.maximum(ranges.ends, np.append(-NEVER, copies + 1)[number]))


def launched_in(
    starts: Int64, ends: Int64, *operations: tuple[Int64, Int64, Int64]
) -> tuple[Int64, Int64, Int64]:
    """Return how many operations (sorted launch, start, end) each host range launched, their first start and last end."""
    counts = np.zeros(starts.size, np.int64)
    first = np.full(starts.size, NEVER)
    last = -first
    for launch, begin, finish in operations:
        slices = Slices.within(launch, starts, ends)
        some = np.flatnonzero(slices.counts)
        own = Slices(slices.first[some], slices.last[some])
        counts[some] += own.counts
        first[some] = np.minimum(first[some], own.reduced(np.minimum, begin))
        last[some] = np.maximum(last[some], own.reduced(np.maximum, finish))
    return counts, first, last


def phase_costs(
    phase: PhaseRanges,
    members: Members,
    device: DeviceTime,
    belongs: tuple[Flags, Flags],
    idle_ns: Int64,
) -> dict[str, Int64 | None]:
    """Measure one phase of one rank, for every step that has it.

    ``member`` is the index of the step range, all else as in `schema.PHASES`. Without launches all
    from ``n_kernels`` on are None; where the step has no window all after it are -1. `belongs`
    flags kernels and copies that were launched in the phase, `idle_ns` is as `breakdown.phase_idle`
    gives it.
    """
    operations = device.operations
    windows = device.windows
    member = np.unique(phase.member)
    pieces = IntervalSet(members.starts, members.ends).intersect(union(phase.starts, phase.ends))
    owner = np.searchsorted(members.starts, pieces.starts, side="right") - 1
    kernels, copies = belongs
    parts = kernels & ~operations.is_comm, kernels & operations.is_comm
    compute, comm = (
        union(operations.kernel_start[part], operations.kernel_end[part]) for part in parts
    )
    memory = union(operations.copy_start[copies], operations.copy_end[copies])
    measured = {
        "compute_ns": windows.covered(compute),
        "comm_ns": windows.covered(comm),
        "device_ns": windows.covered(union_of(compute, comm, memory)),
        "exposed_comm_ns": windows.covered(exposed_comm(comm, device.compute)),
        "idle_ns": idle_ns,
    }
    n_launched = operations.kernels_launched_in(pieces.starts, pieces.ends).counts
    costs: dict[str, Int64 | None] = {
        "member": member,
        "host_ns": sums_of(owner, pieces.ends - pieces.starts, members.starts.size)[member],
        "n_kernels": sums_of(owner, n_launched, members.starts.size)[member],
    }
    for name, values in measured.items():
        by_member = np.full(
            members.starts.size + 1, NO_WINDOW
        )  # a capture without steps is a window of no member
        by_member[windows.member] = values
        costs[name] = by_member[member]
    if not member.size or not operations.n_launched:
        costs |= dict.fromkeys(("n_kernels", *measured))
    return costs


def launches_in_phase(
    phase: PhaseRanges, members: Members, copies: pa.Table | None
) -> Int64 | None:
    """Return how many of some copies each step launched in a phase, for every step that has it; None of None."""
    if copies is None:
        return None
    pieces = IntervalSet(members.starts, members.ends).intersect(union(phase.starts, phase.ends))
    owner = np.searchsorted(members.starts, pieces.starts, side="right") - 1
    counts = Slices.within(
        np.sort(copies["launch_ns"].to_numpy()), pieces.starts, pieces.ends
    ).counts
    return sums_of(owner, counts, members.starts.size)[np.unique(phase.member)]


class PhaseRanges(Struct, frozen=True):
    """The ranges of one phase of one rank: in order of start, none inside another."""

    member: Int64  # index of the step range that holds each
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

    Steps that leave no room for it, as those that end with the optimizer's, have it between the
    launches of kernels around the next one's start, if it takes `breakdown.PAUSE_NS`. Without
    `canonical.HOST_CALLS` nothing is known to be quiet. A range that holds a whole step (an epoch)
    does not count.
    """
    launches = operations.kernel_launch[: operations.n_launched]
    gaps = nonempty(members.ends[:-1], members.starts[1:])
    starts = ranges["start_ns"].to_numpy()
    ends = ranges["end_ns"].to_numpy()
    first = np.searchsorted(members.starts, starts, side="left")
    last = np.searchsorted(members.ends, ends, side="right")
    own = (ranges["thread_id"].to_numpy() == members.thread_id) & (last <= first)
    is_data = own & (
        codes[ranges["text"].combine_chunks().indices.to_numpy()] == PHASES.index("data")
    )
    data = union(starts[is_data], ends[is_data]).intersect(gaps)
    narrow = members.starts[1:][members.starts[1:] - members.ends[:-1] < breakdown.PAUSE_NS]
    behind = np.unique(np.searchsorted(launches, narrow))
    behind = behind[(behind > 0) & (behind < launches.size)]
    around = nonempty(launches[behind - 1], launches[behind])
    if calls is None or not (len(gaps) or len(around)):
        return Inputs(data, EMPTY)
    called = calls.select(["start_ns", "end_ns"]).filter(
        pc.equal(calls["thread_id"], members.thread_id)
    )
    busy = union_of(
        union(starts[own], ends[own]), union(*(column.to_numpy() for column in called.columns))
    )
    quiet = _longest_of_each(around, around.without(busy))
    is_pause = quiet.ends - quiet.starts >= breakdown.PAUSE_NS
    return Inputs(data, union_of(_longest_of_each(gaps, gaps.without(busy)), quiet[is_pause]))


def _longest_of_each(intervals: IntervalSet, parts: IntervalSet) -> IntervalSet:
    owner = np.searchsorted(intervals.starts, parts.starts, side="right") - 1
    order = np.lexsort((parts.starts, parts.starts - parts.ends, owner))
    return parts[order[np.flatnonzero(np.diff(owner[order], prepend=-1))]]


def phase_codes(
    families: TextFamilies, patterns: Mapping[str, re.Pattern[str]], texts: pa.StringArray
) -> Int64:
    """Return the phase of each of the families' texts, as an index into `names.PHASES`; -1 for none.

    It is that of the normalised text. A user's own pattern may name digits, which are not in that:
    it sees the texts too.
    """
    named = [phase_of(name, patterns) for name in families.names]
    of_families = [PHASES.index(phase) if phase else NO_PHASE for phase in named]
    codes = np.array([*of_families, NO_PHASE])[families.of_text]  # no family is -1, the last
    for code, phase in enumerate(PHASES):
        if patterns[phase].pattern == PHASE_PATTERNS[phase]:
            continue
        is_later = (codes == NO_PHASE) | (codes > code)  # the first phase of a text counts
        for place in np.flatnonzero(is_later).tolist():
            if patterns[phase].search(texts[place].as_py() or ""):
                codes[place] = code
    return codes


class LaunchingThreads(Struct, frozen=True):
    """The threads, other than that of the steps, which launch kernels of a step: mostly autograd's. A pair per row."""

    member: Int64  # index of the step range
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
    """Return which other threads launch kernels of which step, of the host start and the thread of each kernel's launch."""
    member = holders(members.starts, members.ends, launches)
    is_other = (member >= 0) & (threads != members.thread_id)
    pairs = np.unique(np.stack((member[is_other], threads[is_other])), axis=1)
    return LaunchingThreads(pairs[0], pairs[1])


def backward_passes(
    backward: PhaseRanges, members: Members, launches: Int64, threads: Int64
) -> PhaseRanges:
    """Join ranges of a step's backward pass, one per layer, between which the thread of the steps launches nothing."""
    if not backward.starts.size:
        return backward
    own = np.sort(launches[threads == members.thread_id])
    begun = np.searchsorted(own, backward.starts[1:]) > np.searchsorted(own, backward.ends[:-1])
    first = np.append(True, begun | (backward.member[1:] != backward.member[:-1]))
    firsts = np.flatnonzero(first)
    return PhaseRanges(
        backward.member[firsts], backward.starts[firsts], np.maximum.reduceat(backward.ends, firsts)
    )


def phase_ranges(
    ranges: pa.Table, codes: Int64, members: Members, others: LaunchingThreads = NO_OTHER_THREADS
) -> dict[str, PhaseRanges]:
    """Find the phase ranges of one rank, by phase in `names.PHASES` order; every phase has an entry, maybe empty.

    They lie inside a step range, on its thread or on one of the `others` that launch its kernels. A
    range without a phase, or one that contains a range of another phase on its thread (a
    ``train_batch`` around everything), is transparent; of nested ranges of one phase the outermost
    counts.
    """
    code = codes[ranges["text"].combine_chunks().indices.to_numpy()]
    starts, ends, thread_id = (
        ranges[name].to_numpy() for name in ("start_ns", "end_ns", "thread_id")
    )
    member = np.searchsorted(members.starts, starts, side="right") - 1
    is_on_thread = thread_id == members.thread_id
    if others.member.size:
        is_on_thread |= others.has(member, thread_id)
    eligible = (code != NO_PHASE) & (member >= 0) & is_on_thread
    eligible &= ~ranges["is_library"].to_numpy()
    eligible &= ends <= np.append(members.ends, 0)[member]
    eligible[members.rows] = False
    rows = np.flatnonzero(eligible)
    is_transparent = np.zeros(rows.size, np.bool_)
    for thread in np.unique(thread_id[rows]):
        of_thread = thread_id[rows] == thread
        own = rows[of_thread]
        is_transparent[of_thread] = _contains_other(code[own], starts[own], ends[own])
    rows = rows[~is_transparent]
    found = {}
    for index, phase in enumerate(PHASES):
        own = rows[code[rows] == index]
        own = own[np.lexsort((-ends[own], starts[own]))]
        outer = own[
            np.append(True, ends[own][1:] > np.maximum.accumulate(ends[own])[:-1])[: own.size]
        ]
        found[phase] = PhaseRanges(member[outer], starts[outer], ends[outer])
    return found


def phases_of_launches(phases: Mapping[str, PhaseRanges], launches: Int64) -> NDArray[np.int8]:
    """Return the first phase whose range contains each of sorted launches, as an index into `names.PHASES`; -1 for none."""
    phase = np.full(launches.size, NO_PHASE, np.int8)
    for code, ranges in reversed([*enumerate(phases.values())]):
        inside = Slices.within(launches, ranges.starts, ranges.ends)
        for first, last in zip(inside.first.tolist(), inside.last.tolist(), strict=True):
            phase[first:last] = code
    return phase


def _contains_other(code: Int64, starts: Int64, ends: Int64) -> Flags:
    contains = np.zeros(code.size, np.bool_)
    for phase in np.unique(code):
        own = code == phase
        other = code != phase
        order = np.argsort(starts[other], kind="stable")
        other_starts = starts[other][order]
        other_ends = ends[other][order]
        # The earliest end among all others that start at or after a given place.
        earliest_end = np.append(
            np.minimum.accumulate(other_ends[::-1])[::-1], np.iinfo(np.int64).max
        )
        contains[own] = earliest_end[np.searchsorted(other_starts, starts[own])] <= ends[own]
    return contains


def launching_passes(
    member: Int64, launch: Int64, backward: PhaseRanges | None
) -> tuple[Int64, Int64]:
    """Return the pass that launched each operation, and which of its step's backward ranges did; -1 for none.

    Backward, forward before the last of its step's, or behind: forward of a second micro-batch
    comes after backward of the first.
    """
    passes = np.full(launch.size, -1)
    if backward is None or not backward.starts.size:
        return passes, passes
    at = holders(backward.starts, backward.ends, launch)
    inside = at >= 0
    last_start = np.full(max(int(member.max(initial=0)), int(backward.member.max())) + 1, -NEVER)
    last_start[backward.member] = backward.starts  # in order of start
    known = (member >= 0) & (launch != NEVER) & (last_start[np.maximum(member, 0)] != -NEVER)
    outside = np.where(launch < last_start[np.maximum(member, 0)], IN_FORWARD, BEHIND_BACKWARD)
    number = at - np.searchsorted(backward.member, backward.member[at])
    return np.where(known, np.where(inside, IN_BACKWARD, outside), passes), np.where(
        known & inside, number, passes
    )
