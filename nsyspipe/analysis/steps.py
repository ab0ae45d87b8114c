"""Which NVTX ranges are the steps, each step's window on the device, and which steps a run's figures rest on."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from numbers import Integral

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from msgspec.structs import replace

from nsyspipe.analysis.attribution import NEVER, ProcessOperations
from nsyspipe.analysis.intervals import (
    IntervalSet,
    Slices,
    grouped_lengths,
    least_of,
    outermost,
    places_in_runs,
    sums_of,
)
from nsyspipe.errors import OptionError, short_repr
from nsyspipe.model.names import (
    DIGITS_PATTERN,
    SUFFIX_PATTERN,
    grouped,
    holds_steps,
    is_operator,
    is_part_of_step,
)
from nsyspipe.model.table import Flags, Int64

# Name of the family that --step makes of all ranges that match it. It holds a digit, as no
# normalised text does.
STEP_OPTION = "--step 1"
# name of the family of steps that no range marks: what a rank's launches repeat
REPETITION = "--step repetition 1"
_NOT_IN_FAMILY = -1
_MIN_MEMBERS = 2
FEW_STEPS = 3  # fewer say nothing of how steps vary


class TextFamilies(Struct, frozen=True):
    """The families of a report's range texts."""

    names: list[str]  # family names: normalised texts, or `STEP_OPTION` alone
    of_text: Int64  # family of each text of the ranges' dictionary; -1 for none
    is_named: bool = False  # by a user: then libraries' and operators' ranges are steps too

    @classmethod
    def by_text(cls, texts: pa.StringArray) -> TextFamilies:
        """Group texts by their normalised form."""
        encoded = normalise(texts).dictionary_encode()
        of_text = pc.fill_null(encoded.indices, _NOT_IN_FAMILY).to_numpy().astype(np.int64)
        return cls(encoded.dictionary.to_pylist(), of_text)

    @classmethod
    def by_option(cls, texts: pa.StringArray, pattern: re.Pattern[str]) -> TextFamilies:
        """Make one family of the texts that a pattern matches anywhere."""
        hits = [text is not None and pattern.search(text) is not None for text in texts.to_pylist()]
        return cls(
            [STEP_OPTION], np.where(np.asarray(hits, np.bool_), 0, _NOT_IN_FAMILY), is_named=True
        )


def normalise(texts: pa.StringArray) -> pa.StringArray:
    """Drop ``, seq = N`` and ``, op_id = N``, then write each run of digits as ``#``.

    >>> normalise(pa.array(["Batch 10", "aten::mm, seq = 7, op_id = 12"])).to_pylist()
    ['Batch #', 'aten::mm']
    """
    return pc.replace_substring_regex(
        pc.replace_substring_regex(texts, SUFFIX_PATTERN, ""), DIGITS_PATTERN, "#"
    )


def largest_families(
    ranges: pa.Table, families: TextFamilies, n_shown: int
) -> tuple[tuple[str, int], ...]:
    """Return the families with most time and their number of ranges, for messages."""
    family, _, starts, ends = _columns(ranges, families)
    totals = sums_of(family, ends - starts, len(families.names) + 1)  # no family is -1, the last
    counts = np.bincount(family[family != _NOT_IN_FAMILY], minlength=totals.size)
    largest = np.argsort(-totals[:-1], kind="stable")[:n_shown].tolist()
    return tuple((families.names[at], int(counts[at])) for at in largest if counts[at])


class Candidate(Struct, frozen=True):
    """One family on one rank."""

    name: str
    thread_id: int
    union_ns: (
        int  # union of its ranges on its best thread: the one with the largest (tie: the lowest id)
    )
    first_start_ns: int  # start of its first member, report time
    n_members: int  # ranges of that thread that do not start inside an earlier one
    n_launched_inside: int  # kernels launched inside the members
    n_launched: int  # kernels with a launch
    # whether its members are parts of a step, layers or micro-batches: several lie inside one other
    # range, and less than half of them launched a kernel of the optimizer that this rank has
    is_part: bool = False
    holders: tuple[
        str, ...
    ] = ()  # families of as much time and the same first start in whose members all of its lie

    @property
    def is_large(self) -> bool:
        """Whether there are several members, in which half of the kernels were launched; a rank without launches cannot object."""
        return self.n_members >= _MIN_MEMBERS and 2 * self.n_launched_inside >= self.n_launched

    @property
    def qualifies(self) -> bool:
        """Whether this rank accepts the family as its steps."""
        return self.is_large and not self.is_part


class Members(Struct, frozen=True):
    """The step ranges of one rank: disjoint, in order of start."""

    thread_id: int
    rows: Int64  # their rows in the ranges table of the process
    starts: Int64
    ends: Int64


def candidates(
    ranges: pa.Table,
    families: TextFamilies,
    operations: ProcessOperations,
    optimizer_launches: Int64 | None = None,
) -> list[Candidate]:
    """Measure every family on one rank: largest union first, ties by name; launches of known optimizers are sorted."""
    of_all, thread_of_all, starts_of_all, ends_of_all = _columns(ranges, families)
    can_be = np.array(
        [families.is_named or not is_operator(name) for name in families.names] + [False]
    )
    rows = np.flatnonzero(can_be[of_all])  # no family is -1, the last
    if not rows.size:
        return []
    family = of_all[rows]
    starts = starts_of_all[rows]
    ends = ends_of_all[rows]
    threads, thread = np.unique(thread_of_all[rows], return_inverse=True)
    keys, group = np.unique(family * threads.size + thread, return_inverse=True)
    unions = grouped_lengths(group, starts, ends, keys.size)
    launched = operations.kernels_launched_in(starts, ends).counts
    best: dict[int, int] = {}
    for index in np.lexsort((keys, -unions)).tolist():
        best.setdefault(int(keys[index]) // threads.size, index)
    order = np.argsort(group, kind="stable")
    edges = np.searchsorted(group[order], np.arange(keys.size + 1))
    measured: list[tuple[Candidate, IntervalSet]] = []
    for code, index in best.items():
        own = order[edges[index] : edges[index + 1]]
        own = own[outermost(starts[own], ends[own])]
        span = IntervalSet(starts[own], ends[own])
        candidate = Candidate(
            name=families.names[code],
            thread_id=int(threads[int(keys[index]) % threads.size]),
            union_ns=int(unions[index]),
            first_start_ns=int(span.starts[0]),
            n_members=own.size,
            n_launched_inside=int(launched[own].sum()),
            n_launched=operations.n_launched,
        )
        if candidate.is_large and optimizer_launches is not None and not families.is_named:
            n_updates = Slices.within(optimizer_launches, span.starts, span.ends).counts
            other = (thread_of_all == candidate.thread_id) & (of_all != code)
            inside = np.searchsorted(span.ends, ends_of_all[other], side="right")
            inside -= np.searchsorted(span.starts, starts_of_all[other])
            do_few_update = 2 * int(np.count_nonzero(n_updates)) < len(span)
            candidate = replace(
                candidate, is_part=do_few_update and bool((inside >= _MIN_MEMBERS).any())
            )
        measured.append((candidate, span))
    held = [replace(one, holders=_holders(one, span, measured)) for one, span in measured]
    return sorted(held, key=lambda one: (-one.union_ns, one.name))


def _holders(
    one: Candidate, own: IntervalSet, measured: Sequence[tuple[Candidate, IntervalSet]]
) -> tuple[str, ...]:
    """Return the families as long, and begun at the same time, that a family's members lie in but not the reverse."""
    return tuple(
        other.name
        for other, span in measured
        if one.is_large and other.is_large and other is not one
        if (other.union_ns, other.first_start_ns) == (one.union_ns, one.first_start_ns)
        if _lie_in(own, span) and not _lie_in(span, own)
    )


def _lie_in(inner: IntervalSet, outer: IntervalSet) -> bool:
    at = np.searchsorted(outer.starts, inner.starts, side="right") - 1
    return bool(((at >= 0) & (inner.ends <= outer.ends[np.maximum(at, 0)])).all())


def choose(ranks: Sequence[Sequence[Candidate]], shifts: Sequence[int]) -> str | None:
    """Choose the step family of a run, or None when no family qualifies on every rank.

    What --step matches on any rank needs no vote. `shifts` turn report times into aligned times,
    ns; only ties look at it.
    """
    if any(one.name == STEP_OPTION for rank in ranks for one in rank):
        return STEP_OPTION
    by_name = [{one.name: one for one in rank if one.qualifies} for rank in ranks]
    shared = set.intersection(*map(set, by_name)) if by_name else set()
    repeats = REPETITION in shared
    shared = shared - {REPETITION}
    worth = {
        name: _worth(zip((rank[name] for rank in by_name), shifts, strict=True)) for name in shared
    }
    best = min(shared, key=lambda name: (worth[name], name), default=None)
    # Of equal ones the family that holds all ranges of the others on every rank.
    while best is not None and (
        held_by := shared.intersection(*(rank[best].holders for rank in by_name))
    ):
        tied = [name for name in held_by if worth[name] == worth[best]]
        if not tied:
            break
        best = min(tied)
    # What has no range, repeats; so does what has ranges of its backward passes only.
    return REPETITION if repeats and (best is None or is_part_of_step(best)) else best


def _worth(candidates: Iterable[tuple[Candidate, int]]) -> tuple[bool, int, int]:
    """Return what a family, of processes that have it with their shifts, is chosen by: the least wins."""
    own = list(candidates)
    first = min(one.first_start_ns + shift for one, shift in own)
    return holds_steps(own[0][0].name), -sum(one.union_ns for one, _ in own), first


def choose_host(
    reports: Sequence[Sequence[Sequence[Candidate]]], shifts: Sequence[int]
) -> str | None:
    """Choose the step family of a run without device activity, or None when none qualifies anywhere.

    The one that qualifies in most reports wins (nothing tells ranks from other processes), of
    several what `choose` takes.
    """
    every = (
        (one, at) for at, report in enumerate(reports) for process in report for one in process
    )
    reports_of = grouped(
        (one.name, (one, at)) for one, at in every if one.qualifies or one.name == STEP_OPTION
    )

    def preference(name: str) -> tuple[bool, int, int, int, str]:
        own = reports_of[name]
        holds, union, first = _worth((one, shifts[at]) for one, at in own)
        return holds, -len({at for _, at in own}), union, first, name

    return min(reports_of, key=preference, default=None)


def members_of(ranges: pa.Table, families: TextFamilies, candidate: Candidate) -> Members:
    """Return the step ranges of one rank in the chosen family, on its best thread."""
    family, thread, starts, ends = _columns(ranges, families)
    rows = np.flatnonzero(
        (family == families.names.index(candidate.name)) & (thread == candidate.thread_id)
    )
    rows = rows[outermost(starts[rows], ends[rows])]
    return Members(candidate.thread_id, rows, starts[rows], ends[rows])


def _columns(ranges: pa.Table, families: TextFamilies) -> tuple[Int64, Int64, Int64, Int64]:
    family = families.of_text[ranges["text"].combine_chunks().indices.to_numpy()]
    if not families.is_named:
        family = np.where(ranges["is_library"].to_numpy(), _NOT_IN_FAMILY, family)
    return family, *(ranges[name].to_numpy() for name in ("thread_id", "start_ns", "end_ns"))


class Windows(Struct, frozen=True):
    """The step windows of one rank: they tile time, neither overlapping nor leaving a gap."""

    member: Int64  # index of each window's step range among the rank's members
    starts: Int64  # report time, ns, as is the next
    ends: Int64
    is_complete: (
        Flags  # false for the last window, and for a first one whose step began before the capture
    )

    def __len__(self) -> int:
        return int(self.starts.size)

    def covered(self, times: IntervalSet) -> Int64:
        """Return how much of each window some times cover, ns."""
        return times.lengths(self.starts, self.ends)

    def slices(self, times: Int64) -> Slices:
        """Return which of some sorted times lie in each window."""
        return Slices.within(times, self.starts, self.ends)


def step_numbers(in_texts: Sequence[pa.ChunkedArray], ordinals: Sequence[Int64]) -> list[Int64]:
    """Return each rank's step numbers by member: the text's one integer if that works on every rank, else the ordinals."""
    if all(not text.null_count and len(pc.unique(text)) == len(text) for text in in_texts):
        return [text.to_numpy() for text in in_texts]
    return list(ordinals)


def capture_window(operations: ProcessOperations) -> Windows:
    """Return the whole capture of a rank as one window, for a run without steps."""
    first, last = operations.span
    return Windows(np.array([0]), np.array([first]), np.array([last]), np.array([False]))


def step_windows(members: Members, operations: ProcessOperations) -> Windows:
    """Turn step ranges of the host into windows of the device.

    A window starts with the first compute or comm kernel launched inside its range, by any thread,
    and ends where the next starts; the last ends with the last operation launched inside its range.
    A range without kernels, or whose first kernel does not start after the start of the window
    before it, has none. Without any launch the ranges are the windows.
    """
    if not operations.n_launched and not (operations.copy_launch != NEVER).any():
        return _windows(
            np.arange(members.starts.size), members.starts, int(members.ends.max(initial=-NEVER))
        )
    inside = operations.kernels_launched_in(members.starts, members.ends)
    with_kernels = np.flatnonzero(inside.counts)
    if not with_kernels.size:
        return _windows(with_kernels, with_kernels, 0)
    slices = Slices(inside.first[with_kernels], inside.last[with_kernels])
    first_start = slices.reduced(np.minimum, operations.kernel_start[: operations.n_launched])
    later = np.append(True, first_start[1:] > np.maximum.accumulate(first_start)[:-1])
    member = with_kernels[later]
    starts = first_start[later]
    last = int(member[-1])
    last_end = int(operations.kernel_end[inside.first[last] : inside.last[last]].max())
    first_copy, last_copy = np.searchsorted(
        operations.copy_launch, (members.starts[last], members.ends[last])
    )
    return _windows(
        member, starts, int(operations.copy_end[first_copy:last_copy].max(initial=last_end))
    )


def _windows(member: Int64, starts: Int64, last_end: int) -> Windows:
    ends = np.append(starts[1:], last_end)[: starts.size]
    place = np.arange(starts.size)
    return Windows(member, starts, ends, (place < starts.size - 1) & ((place > 0) | (member == 0)))


class Selection(Struct, frozen=True):
    """The summary steps of a run, in order of time."""

    steps: Int64
    skipped: Int64  # complete steps that were dropped at the start
    is_fallback: bool  # true when no step is complete on every rank, so that cut-off steps are used


def select_steps(
    step: Int64,
    starts: Int64,
    is_complete: Flags,
    n_ranks: int,
    skip_first: int | None,
    *,
    capture: Int64 | None = None,
) -> Selection:
    """Choose the steps that are complete on every rank, less the skipped; if none is, all that every rank has, none skipped.

    One value per (rank, step) with a window; `capture` is its number where processes were captured
    several times. `skip_first` is how many complete steps to drop at the start of each capture
    (`OptionError` if none is left); None drops the first of each, which holds the ranks' different
    profiler starts, if any other remains.
    """
    numbers, index = np.unique(step, return_inverse=True)
    order = np.lexsort((numbers, least_of(index, starts, numbers.size)))
    n_windows = np.bincount(index, minlength=numbers.size)
    complete = numbers[order][
        np.bincount(index[is_complete], minlength=numbers.size)[order] == n_ranks
    ]
    if not complete.size:
        return Selection(numbers[order][n_windows[order] == n_ranks], complete, is_fallback=True)
    place = np.arange(complete.size)
    if capture is not None:
        # A step is of one capture; complete steps are in order of time, and so are captures.
        captures = least_of(index, capture, numbers.size)[np.searchsorted(numbers, complete)]
        place = places_in_runs(captures)
    n_most = int(place.max()) + 1  # complete steps of the capture that has most
    n_skipped = min(1, n_most - 1) if skip_first is None else skip_first
    if n_skipped >= n_most:
        fix = f"--skip-first {n_most - 1}, or capture more steps"
        where = (
            "are complete on every rank"
            if complete.size == n_most
            else "of a capture are complete on every rank"
        )
        raise OptionError(
            f"--skip-first {n_skipped}", f"leaves no step ({n_most} {where})", fix=fix
        )
    return Selection(complete[place >= n_skipped], complete[place < n_skipped], is_fallback=False)


def check_steps(all_steps: pa.Table, wanted: object) -> tuple[int, int]:
    """Return the first and the last step of a pair, or of one number; an OptionError, with the steps that there are, for none."""
    ends = tuple(wanted) if isinstance(wanted, tuple | list) else (wanted, wanted)
    numbers = all_steps["step"].to_numpy()
    is_whole = all(isinstance(end, Integral) for end in ends) and bool not in map(type, ends)
    if len(ends) != len(("first", "last")) or not is_whole:
        needed = "a step's number, or the first and the last of several"
        raise OptionError.of_kind("steps", wanted, needed, "steps=(3, 5)")
    first, last = map(int, ends)
    lowest, highest = (numbers.min(), numbers.max()) if numbers.size else (0, -1)
    has_any = ((numbers >= first) & (numbers <= last)).any()
    if has_any and lowest <= first and last <= highest:
        return first, last
    shown_first = short_repr(first)
    shown_last = short_repr(last)
    if first > last:
        in_order = f"--perfetto-steps {shown_last}:{shown_first}"
        raise OptionError(
            f"steps {shown_first}:{shown_last}", "end before they begin", fix=in_order
        )
    given = f"steps {shown_first}:{shown_last}" if first < last else f"step {shown_first}"
    found = "no steps at all"
    fix = None
    if numbers.size:
        found = f"steps {lowest} to {highest}"
        there = (max(first, lowest), min(last, highest)) if has_any else (lowest, highest)
        fix = "use one of these" if first == last else f"--perfetto-steps {there[0]}:{there[1]}"
    problem = "no rank has some of these" if has_any else "no rank has such a step"
    raise OptionError(given, problem, found=found, fix=fix)
