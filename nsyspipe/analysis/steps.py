"""Finds the NVTX ranges that are steps, their windows on the device, and the summary steps."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from numbers import Integral
from typing import Any, NamedTuple

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
    run_starts,
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
from nsyspipe.model.typed_tables import (
    RangesOfReportTable,
)

# Name of the family that --step makes of all ranges that match it. It has a digit, which no
# normalised text has.
STEP_OPTION = "--step 1"
# Name of the family of steps that no range marks: the launches of a rank repeat.
REPETITION = "--step repetition 1"
_NOT_IN_FAMILY = -1
_MIN_MEMBERS = 2
# With fewer steps nothing is known about how steps vary.
FEW_STEPS = 3


class TextFamilies(Struct, frozen=True):
    """The families of a report's range texts."""

    # Normalised texts, or `STEP_OPTION` alone.
    names: list[str]
    # Family of each text of the ranges' dictionary; -1 for none.
    of_text: Int64
    # Whether a user named the family. Then ranges of libraries and operators can be steps too.
    is_named: bool = False

    @classmethod
    def by_text(cls, texts: pa.StringArray) -> TextFamilies:
        """Group texts by their normalised form."""
        encoded = normalise(texts).dictionary_encode()
        codes = pc.fill_null(encoded.indices, _NOT_IN_FAMILY)
        of_text = codes.to_numpy().astype(np.int64)
        names = encoded.dictionary.to_pylist()
        return cls(names, of_text)

    @classmethod
    def by_option(cls, texts: pa.StringArray, pattern: re.Pattern[str]) -> TextFamilies:
        """Make one family of the texts that a pattern matches anywhere."""
        is_match = np.zeros(len(texts), np.bool_)
        for place, text in enumerate(texts.to_pylist()):
            if text is not None and pattern.search(text):
                is_match[place] = True
        of_text = np.where(is_match, 0, _NOT_IN_FAMILY)
        return cls([STEP_OPTION], of_text, is_named=True)


def normalise(texts: pa.StringArray) -> pa.StringArray:
    """Drop ``, seq = N`` and ``, op_id = N``, then write each run of digits as ``#``.

    >>> normalise(pa.array(["Batch 10", "aten::mm, seq = 7, op_id = 12"])).to_pylist()
    ['Batch #', 'aten::mm']
    """
    without_suffixes = pc.replace_substring_regex(texts, SUFFIX_PATTERN, "")
    return pc.replace_substring_regex(without_suffixes, DIGITS_PATTERN, "#")


def largest_families(
    ranges: RangesOfReportTable, families: TextFamilies, n_shown: int
) -> tuple[tuple[str, int], ...]:
    """Return names and numbers of ranges of the families with most time, at most `n_shown`.

    The family with most time is first. Messages to the user show the names.
    """
    all_ranges = _read_ranges(ranges, families)
    family_of_range = all_ranges.family
    n_families = len(families.names)
    lengths = all_ranges.ends - all_ranges.starts
    # Ranges of no family are -1, which adds to the last sum.
    sums_ns = sums_of(family_of_range, lengths, n_families + 1)
    totals_ns = sums_ns[:-1]
    is_in_family = family_of_range != _NOT_IN_FAMILY
    families_of_ranges = family_of_range[is_in_family]
    n_ranges_of_family = np.bincount(families_of_ranges, minlength=n_families)
    largest_first = np.argsort(-totals_ns, kind="stable")
    largest = []
    for family in largest_first[:n_shown].tolist():
        n_ranges = int(n_ranges_of_family[family])
        if n_ranges:
            name = families.names[family]
            largest.append((name, n_ranges))
    return tuple(largest)


class _Ranges(Struct, frozen=True):
    """NVTX ranges as columns."""

    family: Int64  # `_NOT_IN_FAMILY` for none
    thread: Int64
    starts: Int64
    ends: Int64

    def take(self, rows: Int64) -> _Ranges:
        family = self.family[rows]
        thread = self.thread[rows]
        starts = self.starts[rows]
        ends = self.ends[rows]
        return _Ranges(family, thread, starts, ends)


def _read_ranges(ranges: RangesOfReportTable, families: TextFamilies) -> _Ranges:
    """Return all ranges. Those of libraries are in no family, unless a user named the family."""
    text = ranges["text"].combine_chunks()
    family = families.of_text[text.indices.to_numpy()]
    if not families.is_named:
        is_library = ranges["is_library"].to_numpy()
        family = np.where(is_library, _NOT_IN_FAMILY, family)
    thread = ranges["thread_id"].to_numpy()
    starts = ranges["start_ns"].to_numpy()
    ends = ranges["end_ns"].to_numpy()
    return _Ranges(family, thread, starts, ends)


class Candidate(Struct, frozen=True):
    """One family on one rank."""

    name: str
    # The thread on which the union of its ranges is largest; of equal threads the lowest ID.
    thread_id: int
    # Length of the union of its ranges on that thread.
    union_ns: int
    # Start of its first member, report time.
    first_start_ns: int
    # Members are the ranges of that thread that do not start inside an earlier one.
    n_members: int
    # Kernels launched inside the members, and all kernels with a launch.
    n_launched_inside: int
    n_launched: int
    # Whether its members are parts of a step: layers or micro-batches. Then several are inside one
    # other range, and less than half of them launched a kernel of the optimizer that the rank has.
    is_part: bool = False
    # Families of as much time and the same first start, whose members contain all of its members.
    holders: tuple[str, ...] = ()

    @property
    def is_large(self) -> bool:
        """Whether there are several members, which launched at least half of the kernels.

        On a rank without launches, several members are enough.
        """
        has_most_launches = 2 * self.n_launched_inside >= self.n_launched
        return self.n_members >= _MIN_MEMBERS and has_most_launches

    @property
    def qualifies(self) -> bool:
        """Whether this rank accepts the family as its steps."""
        return self.is_large and not self.is_part


class Members(Struct, frozen=True):
    """The step ranges of one rank: disjoint, in order of start."""

    thread_id: int
    # Rows in the table of ranges of the process.
    rows: Int64
    starts: Int64
    ends: Int64


class _Measured(NamedTuple):
    """A family on one rank, and its members."""

    candidate: Candidate
    members: IntervalSet


def candidates(
    ranges: RangesOfReportTable,
    families: TextFamilies,
    operations: ProcessOperations,
    optimizer_launches: Int64 | None = None,
) -> list[Candidate]:
    """Measure every family on one rank that may be its steps. The largest union comes first.

    Of equal unions, the families are in order of name. `optimizer_launches` are the launches of
    known optimizers, sorted. None if no optimizer is known.
    """
    all_ranges = _read_ranges(ranges, families)
    possible = _find_possible_steps(all_ranges, families)
    if not possible.family.size:
        return []
    measured_families = []
    for family in _choose_threads(possible):
        members = _find_outermost(possible, family.rows)
        name = families.names[family.code]
        candidate = _measure_family(name, family, members, operations)
        may_be_part = candidate.is_large and not families.is_named
        if may_be_part and optimizer_launches is not None:
            do_few_update = _do_few_update(members, optimizer_launches)
            is_part = do_few_update and _lie_in_other_ranges(members, family, all_ranges)
            candidate = replace(candidate, is_part=is_part)
        measured_families.append(_Measured(candidate, members))
    # Holders are found when all families are measured.
    with_holders = []
    for measured in measured_families:
        holders = _find_holders(measured, measured_families)
        with_holders.append(replace(measured.candidate, holders=holders))
    return sorted(with_holders, key=_largest_then_name)


def _largest_then_name(candidate: Candidate) -> tuple[int, str]:
    """Return the key by which candidates are sorted: the largest union first, then by name."""
    return -candidate.union_ns, candidate.name


def _find_possible_steps(ranges: _Ranges, families: TextFamilies) -> _Ranges:
    """Return the ranges of families that can be steps."""
    can_be_steps = [families.is_named or not is_operator(name) for name in families.names]
    # Ranges of no family are -1, which reads the last flag.
    is_possible_family = np.array([*can_be_steps, False])
    is_possible = is_possible_family[ranges.family]
    return ranges.take(np.flatnonzero(is_possible))


def _find_outermost(ranges: _Ranges, rows: Int64) -> IntervalSet:
    """Return the ranges of some rows that do not start inside an earlier one."""
    starts = ranges.starts[rows]
    ends = ranges.ends[rows]
    outer = outermost(starts, ends)
    return IntervalSet(starts[outer], ends[outer])


def _measure_family(
    name: str, family: _FamilyOnThread, members: IntervalSet, operations: ProcessOperations
) -> Candidate:
    first_start_ns = int(members.starts[0])
    n_launched_inside = _count_launched(operations, members)
    return Candidate(
        name=name,
        thread_id=family.thread_id,
        union_ns=family.union_ns,
        first_start_ns=first_start_ns,
        n_members=len(members),
        n_launched_inside=n_launched_inside,
        n_launched=operations.n_launched,
    )


class _FamilyOnThread(Struct, frozen=True):
    """The ranges of one family on the thread on which they have most time."""

    code: int
    thread_id: int
    union_ns: int
    rows: Int64


def _choose_threads(ranges: _Ranges) -> list[_FamilyOnThread]:
    """Return the thread of each family with the largest union; of equal threads the lowest ID."""
    on_threads = _measure_threads(ranges)
    # This keeps the order of thread IDs of equal unions.
    on_threads.sort(key=lambda on_thread: on_thread.union_ns, reverse=True)
    best_of_family: dict[int, _FamilyOnThread] = {}
    for on_thread in on_threads:
        # The first thread of a family stays.
        best_of_family.setdefault(on_thread.code, on_thread)
    return list(best_of_family.values())


def _measure_threads(ranges: _Ranges) -> list[_FamilyOnThread]:
    """Measure each family on each of its threads, in order of family, then thread ID."""
    thread_ids, thread_of_range = np.unique(ranges.thread, return_inverse=True)
    # A group is a family on a thread, and has a key of both.
    key_of_range = ranges.family * thread_ids.size
    key_of_range += thread_of_range
    key_of_group, group_of_range = np.unique(key_of_range, return_inverse=True)
    unions_ns = grouped_lengths(group_of_range, ranges.starts, ranges.ends, key_of_group.size)
    rows_by_group = np.argsort(group_of_range, kind="stable")
    first_of_group = run_starts(group_of_range[rows_by_group])
    rows_of_groups = np.split(rows_by_group, first_of_group[1:])
    family_of_group, thread_of_group = np.divmod(key_of_group, thread_ids.size)
    families = family_of_group.tolist()
    threads = thread_ids[thread_of_group].tolist()
    groups = zip(families, threads, unions_ns.tolist(), rows_of_groups, strict=True)
    return [_FamilyOnThread(*fields) for fields in groups]


def _count_launched(operations: ProcessOperations, ranges: IntervalSet) -> int:
    launched = operations.kernels_launched_in(ranges.starts, ranges.ends)
    return int(launched.counts.sum())


def _do_few_update(members: IntervalSet, optimizer_launches: Int64) -> bool:
    """Tell whether less than half of the members launched a kernel of the optimizer."""
    updates = Slices.within(optimizer_launches, members.starts, members.ends)
    n_with_update = int(np.count_nonzero(updates.counts))
    return 2 * n_with_update < len(members)


def _lie_in_other_ranges(
    members: IntervalSet, family: _FamilyOnThread, all_ranges: _Ranges
) -> bool:
    """Tell whether several members lie in one range of another family on their thread."""
    is_other = all_ranges.thread == family.thread_id
    is_other &= all_ranges.family != family.code
    starts = all_ranges.starts[is_other]
    ends = all_ranges.ends[is_other]
    # Members are disjoint and in order. Of the members that end no later than a range, those that
    # begin before the range are not inside.
    n_members_ended_by_end = np.searchsorted(members.ends, ends, side="right")
    n_members_begun_before = np.searchsorted(members.starts, starts)
    n_members_inside = n_members_ended_by_end - n_members_begun_before
    holds_several = n_members_inside >= _MIN_MEMBERS
    return bool(holds_several.any())


def _find_holders(measured: _Measured, measured_families: Sequence[_Measured]) -> tuple[str, ...]:
    """Return the names of the holders of a family.

    A holder is another family with as much time, which begins at the same time. Each member of the
    family lies in a member of its holder, while the reverse is not so. Only large families have
    holders, and only large families are holders.
    """
    candidate, members = measured
    if not candidate.is_large:
        return ()
    holders = []
    for holder, members_of_holder in measured_families:
        if not holder.is_large or not _have_same_extent(holder, candidate):
            continue
        is_inside = _lie_in(members, members_of_holder)
        if is_inside and not _lie_in(members_of_holder, members):
            holders.append(holder.name)
    return tuple(holders)


def _have_same_extent(holder: Candidate, candidate: Candidate) -> bool:
    """Tell whether two families have as much time, and begin at the same time."""
    is_as_long = holder.union_ns == candidate.union_ns
    return is_as_long and holder.first_start_ns == candidate.first_start_ns


def _lie_in(inner: IntervalSet, outer: IntervalSet) -> bool:
    """Tell whether each inner interval lies in one of the outer intervals."""
    n_outer_begun = np.searchsorted(outer.starts, inner.starts, side="right")
    is_inside = n_outer_begun > 0
    # An inner interval before all outer ones is not inside, so any outer one will do for it.
    last_outer_begun = np.maximum(n_outer_begun - 1, 0)
    is_inside &= inner.ends <= outer.ends[last_outer_begun]
    return bool(is_inside.all())


def choose(ranks: Sequence[Sequence[Candidate]], shifts: Sequence[int]) -> str | None:
    """Choose the step family of a run, or None if no family qualifies on every rank.

    `ranks` are the candidates of each rank. If --step matches a range on any rank, the family of
    that option is chosen. `shifts` turn the report times of each rank into aligned times, ns.
    Shifts only matter if families have the same time.
    """
    all_candidates = chain.from_iterable(ranks)
    if any(candidate.name == STEP_OPTION for candidate in all_candidates):
        return STEP_OPTION
    by_name_of_ranks = [_qualified_by_name(rank) for rank in ranks]
    names = _names_on_all_ranks(by_name_of_ranks)
    names_of_ranges = names - {REPETITION}
    family = _choose_ranges(by_name_of_ranks, names_of_ranges, shifts)
    # The repetition of launches is only chosen if no range marks whole steps.
    is_repetition_better = family is None or is_part_of_step(family)
    if REPETITION in names and is_repetition_better:
        return REPETITION
    return family


def _names_on_all_ranks(by_name_of_ranks: Sequence[Mapping[str, Candidate]]) -> set[str]:
    """Return the names that every rank has; none without ranks."""
    if not by_name_of_ranks:
        return set()
    names_of_ranks = map(set, by_name_of_ranks)
    return set.intersection(*names_of_ranks)


def _qualified_by_name(candidates: Sequence[Candidate]) -> dict[str, Candidate]:
    return {candidate.name: candidate for candidate in candidates if candidate.qualifies}


def _choose_ranges(
    by_name_of_ranks: Sequence[Mapping[str, Candidate]], names: set[str], shifts: Sequence[int]
) -> str | None:
    """Choose among families of ranges that qualify on every rank; None without any.

    `names` are those of the families. The family with the smallest preference is chosen. If several
    families have the same preference, one of them may hold another: its ranges contain those of the
    other on every rank. Then the family that no other one holds is chosen.
    """
    preferences = {}
    for name in names:
        on_ranks = [by_name[name] for by_name in by_name_of_ranks]
        preferences[name] = _prefer(on_ranks, shifts)
    best = min(names, key=lambda name: (preferences[name], name), default=None)
    while best is not None:
        holders_on_ranks = [by_name[best].holders for by_name in by_name_of_ranks]
        holders_on_all = names.intersection(*holders_on_ranks)
        preference = preferences[best]
        equal_holders = [name for name in holders_on_all if preferences[name] == preference]
        if not equal_holders:
            break
        # The holder may have a holder itself.
        best = min(equal_holders)
    return best


class _Preference(NamedTuple):
    """What a family is chosen by: the smallest is chosen."""

    holds_steps: bool
    negative_union_ns: int
    first_start_ns: int


def _prefer(candidates: Sequence[Candidate], shifts: Sequence[int]) -> _Preference:
    """Return the preference of a family, from its candidates on several processes."""
    is_name_of_step = holds_steps(candidates[0].name)
    union_ns = 0
    first_starts = []
    for candidate, shift in zip(candidates, shifts, strict=True):
        union_ns += candidate.union_ns
        first_start_ns = candidate.first_start_ns + shift
        first_starts.append(first_start_ns)
    return _Preference(is_name_of_step, -union_ns, min(first_starts))


class _HostPreference(NamedTuple):
    """What a family is chosen by in a run without device activity: the smallest is chosen."""

    holds_steps: bool
    negative_reports: int
    negative_union_ns: int
    first_start_ns: int
    name: str


class _InReport(NamedTuple):
    """A family of a process, and the number of its report."""

    candidate: Candidate
    number: int


def choose_host(
    reports: Sequence[Sequence[Sequence[Candidate]]], shifts: Sequence[int]
) -> str | None:
    """Choose the step family of a run without device activity, or None if no family qualifies.

    `reports` has the candidates of each process of each report. `shifts` turn the report times of
    each report into aligned times, ns.

    Ranks cannot be distinguished from other processes here. So a family does not have to qualify on
    every rank. A family whose name is that of a step comes first, and then the family that
    qualifies in most reports. `_HostPreference` has the full order.
    """
    by_name = grouped(_accepted(reports))
    preferences = []
    for name, in_reports in by_name.items():
        preferences.append(_prefer_host(name, in_reports, shifts))
    best = min(preferences, default=None)
    return None if best is None else best.name


def _accepted(reports: Sequence[Sequence[Sequence[Candidate]]]) -> Iterator[tuple[str, _InReport]]:
    """Yield the families that qualify, or that a user named, with their names."""
    for number, report in enumerate(reports):
        for candidate in chain.from_iterable(report):
            name = candidate.name
            if candidate.qualifies or name == STEP_OPTION:
                yield name, _InReport(candidate, number)


def _prefer_host(
    name: str, in_reports: Sequence[_InReport], shifts: Sequence[int]
) -> _HostPreference:
    """Return the preference of a family in a run without device activity.

    `shifts` have a value per report.
    """
    candidates = [in_report.candidate for in_report in in_reports]
    numbers = [in_report.number for in_report in in_reports]
    shifts_of_candidates = [shifts[number] for number in numbers]
    preferred = _prefer(candidates, shifts_of_candidates)
    n_reports = len(set(numbers))
    return _HostPreference(
        holds_steps=preferred.holds_steps,
        negative_reports=-n_reports,
        negative_union_ns=preferred.negative_union_ns,
        first_start_ns=preferred.first_start_ns,
        name=name,
    )


def members_of(
    ranges: RangesOfReportTable, families: TextFamilies, candidate: Candidate
) -> Members:
    """Return the step ranges of one rank in the chosen family, on its best thread."""
    all_ranges = _read_ranges(ranges, families)
    thread_id = candidate.thread_id
    family = families.names.index(candidate.name)
    is_member = all_ranges.family == family
    is_member &= all_ranges.thread == thread_id
    rows = np.flatnonzero(is_member)
    starts = all_ranges.starts[rows]
    ends = all_ranges.ends[rows]
    outer = outermost(starts, ends)
    return Members(thread_id, rows[outer], starts[outer], ends[outer])


class Windows(Struct, frozen=True):
    """The step windows of one rank: they tile time, without overlap and without gaps."""

    # Index of the step range of each window among the members of the rank.
    member: Int64
    # Report time, ns.
    starts: Int64
    ends: Int64
    # False for the last window, and for a first one whose step began before the capture.
    is_complete: Flags

    def __len__(self) -> int:
        return int(self.starts.size)

    def covered(self, times: IntervalSet) -> Int64:
        """Return how much of each window some times cover, ns."""
        return times.lengths(self.starts, self.ends)

    def slices(self, times: Int64) -> Slices:
        """Return which of some sorted times lie in each window."""
        return Slices.within(times, self.starts, self.ends)


def step_numbers(in_texts: Sequence[pa.ChunkedArray], ordinals: Sequence[Int64]) -> list[Int64]:
    """Return the step numbers of each rank, one per member.

    `in_texts` are the integers in the texts of each rank. They are the step numbers if each text of
    each rank has one, and all of a rank are different. Otherwise the ordinals are the step numbers.
    """
    if all(_are_different_numbers(numbers) for numbers in in_texts):
        return [numbers.to_numpy() for numbers in in_texts]
    return list(ordinals)


def _are_different_numbers(numbers: pa.ChunkedArray) -> bool:
    """Tell whether each text has a number, all different."""
    if numbers.null_count:
        return False
    n_different = len(pc.unique(numbers))
    return n_different == len(numbers)


def capture_window(operations: ProcessOperations) -> Windows:
    """Return the whole capture of a rank as one window, for a run without steps."""
    first, last = operations.span
    member = np.array([0])
    starts = np.array([first])
    ends = np.array([last])
    is_complete = np.array([False])
    return Windows(member, starts, ends, is_complete)


def step_windows(members: Members, operations: ProcessOperations) -> Windows:
    """Turn step ranges of the host into windows of the device.

    A window starts with the first compute or communication kernel that any thread launched inside
    the range, and ends where the next window starts. The last window ends with the last operation
    launched inside its range. A range has no window if it launched no kernel, or if its first
    kernel does not start after the previous window starts. If no launch is known, the ranges are
    the windows.
    """
    has_launched_copy = (operations.copy_launch != NEVER).any()
    if not operations.n_launched and not has_launched_copy:
        all_members = np.arange(members.starts.size)
        last_end = int(members.ends.max(initial=-NEVER))
        return _tile(all_members, members.starts, last_end)
    inside = operations.kernels_launched_in(members.starts, members.ends)
    members_with_kernels = np.flatnonzero(inside.counts)
    if not members_with_kernels.size:
        no_windows = np.empty(0, np.int64)
        return _tile(no_windows, no_windows, 0)
    first = inside.first[members_with_kernels]
    last = inside.last[members_with_kernels]
    kernel_starts = operations.kernel_start[: operations.n_launched]
    first_start = Slices(first, last).reduced(np.minimum, kernel_starts)
    latest_start = np.maximum.accumulate(first_start)
    is_after_all_before = first_start[1:] > latest_start[:-1]
    has_window = np.append(True, is_after_all_before)
    member = members_with_kernels[has_window]
    last_member = int(member[-1])
    last_end = _last_end(operations, members, last_member)
    return _tile(member, first_start[has_window], last_end)


def _last_end(operations: ProcessOperations, members: Members, member: int) -> int:
    """Return the end of the last operation launched inside a range that launched kernels."""
    begin = members.starts[member]
    end = members.ends[member]
    first_kernel, last_kernel = np.searchsorted(operations.kernel_launch, [begin, end])
    kernel_ends = operations.kernel_end[first_kernel:last_kernel]
    first_copy, last_copy = np.searchsorted(operations.copy_launch, [begin, end])
    copy_ends = operations.copy_end[first_copy:last_copy]
    last_kernel_end = kernel_ends.max()
    return int(copy_ends.max(initial=last_kernel_end))


def _tile(member: Int64, starts: Int64, last_end: int) -> Windows:
    """Return windows that each end where the next starts. The last one ends at `last_end`.

    `member` is the index of the step range of each window. The last window is not complete, since
    nothing shows that its step has ended. The first window is not complete if step ranges before
    its own have no window. They launched no kernel, so the capture of kernels may have begun inside
    the range of the first window.
    """
    n_windows = starts.size
    # Without windows there is no end either.
    ends = np.append(starts[1:], last_end)[:n_windows]
    place = np.arange(n_windows)
    is_first = place == 0
    is_last = place == n_windows - 1
    is_begin_captured = ~is_first | (member == 0)
    is_complete = is_begin_captured & ~is_last
    return Windows(member, starts, ends, is_complete)


class Selection(Struct, frozen=True):
    """The summary steps of a run, in order of time."""

    steps: Int64
    # Complete steps that were dropped at the start.
    skipped: Int64
    # Whether cut-off steps are used because no step is complete on every rank.
    is_fallback: bool


def select_steps(
    step: Int64,
    starts: Int64,
    is_complete: Flags,
    n_ranks: int,
    skip_first: int | None,
    *,
    capture: Int64 | None = None,
) -> Selection:
    """Choose the steps that are complete on every rank, without the skipped ones.

    If no step is complete on every rank, all steps that every rank has are chosen, and none is
    skipped.

    `step`, `starts` and `is_complete` have a value per window, which is what a rank has of a step.
    If processes were captured several times, `capture` is the number of the capture of each window.

    `skip_first` is how many complete steps to drop at the start of each capture. Raises an
    `OptionError` if no step is left then. If `skip_first` is None, the first step of each capture
    is dropped, because the ranks started their profilers at different times in that step. But no
    step is dropped if each capture has only one.
    """
    unsorted_numbers, step_of_window = np.unique(step, return_inverse=True)
    n_steps = unsorted_numbers.size
    first_start = least_of(step_of_window, starts, n_steps)
    by_time = np.lexsort((unsorted_numbers, first_start))
    numbers = unsorted_numbers[by_time]
    n_complete_windows = np.bincount(step_of_window[is_complete], minlength=n_steps)
    is_complete_on_all = n_complete_windows[by_time] == n_ranks
    complete = numbers[is_complete_on_all]
    if not complete.size:
        n_windows = np.bincount(step_of_window, minlength=n_steps)
        is_on_all = n_windows[by_time] == n_ranks
        return Selection(numbers[is_on_all], complete, is_fallback=True)
    place_in_capture = np.arange(complete.size)
    if capture is not None:
        # All windows of a step are of one capture, so any of them will do.
        capture_of_step = least_of(step_of_window, capture, n_steps)[by_time]
        # Steps are in order of time, so those of a capture follow each other.
        place_in_capture = places_in_runs(capture_of_step[is_complete_on_all])
    return _skip_steps(complete, place_in_capture, skip_first)


def _skip_steps(complete: Int64, place_in_capture: Int64, skip_first: int | None) -> Selection:
    """Drop the first `skip_first` complete steps of each capture; see `select_steps` for None.

    `place_in_capture` is the place of each step among the complete steps of its capture.
    """
    # Of the capture with most steps.
    n_steps_of_longest = int(place_in_capture.max()) + 1
    if skip_first is not None:
        n_skipped = skip_first
    elif n_steps_of_longest > 1:
        n_skipped = 1
    else:
        n_skipped = 0
    if n_skipped >= n_steps_of_longest:
        is_one_capture = complete.size == n_steps_of_longest
        raise _all_steps_skipped(n_skipped, n_steps_of_longest, is_one_capture=is_one_capture)
    is_used = place_in_capture >= n_skipped
    skipped = complete[~is_used]
    return Selection(complete[is_used], skipped, is_fallback=False)


def _all_steps_skipped(n_skipped: int, n_complete: int, *, is_one_capture: bool) -> OptionError:
    """Return the error if no step is left; `n_complete` are complete in the longest capture."""
    of_capture = "" if is_one_capture else " of a capture"
    return OptionError(
        f"--skip-first {n_skipped}",
        f"leaves no step ({n_complete}{of_capture} are complete on every rank)",
        fix=f"--skip-first {n_complete - 1}, or capture more steps",
    )


def check_steps(all_steps: pa.Table, wanted: object) -> tuple[int, int]:
    """Return the first and the last of the wanted steps, which are a pair of numbers or one number.

    Raises an `OptionError` if the wanted steps go beyond those of the table, or if the table has no
    wanted step.
    """
    first, last = _parse_steps(wanted)
    if first > last:
        raise _reversed_steps_error(first, last)
    subject = _words_of_steps(first, last)
    numbers = all_steps["step"].to_numpy()
    if not numbers.size:
        raise OptionError(subject, "no rank has such a step", found="no steps at all")
    lowest = numbers.min()
    highest = numbers.max()
    is_wanted = numbers >= first
    is_wanted &= numbers <= last
    has_any = bool(is_wanted.any())
    is_within_table = lowest <= first and last <= highest
    if has_any and is_within_table:
        return first, last
    if has_any:
        problem = "no rank has some of these"
        # The part of the wanted steps that the table has.
        possible_steps = f"{max(first, lowest)}:{min(last, highest)}"
    else:
        problem = "no rank has such a step"
        possible_steps = f"{lowest}:{highest}"
    is_one_step = first == last
    fix = "use one of these" if is_one_step else f"--perfetto-steps {possible_steps}"
    raise OptionError(subject, problem, found=f"steps {lowest} to {highest}", fix=fix)


def _reversed_steps_error(first: int, last: int) -> OptionError:
    """Return the error for wanted steps whose first number is larger than the last."""
    first_text = short_repr(first)
    last_text = short_repr(last)
    subject = f"steps {first_text}:{last_text}"
    fix = f"--perfetto-steps {last_text}:{first_text}"
    return OptionError(subject, "end before they begin", fix=fix)


def _words_of_steps(first: int, last: int) -> str:
    first_text = short_repr(first)
    if first == last:
        return f"step {first_text}"
    return f"steps {first_text}:{short_repr(last)}"


def _parse_steps(wanted: object) -> tuple[int, int]:
    """Return the first and the last step of a pair of numbers; of one number, the number twice."""
    ends: tuple[Any, ...] = tuple(wanted) if isinstance(wanted, tuple | list) else (wanted, wanted)
    is_pair = len(ends) == 2  # noqa: PLR2004 - the first and the last step
    are_numbers = all(_is_integer(end) for end in ends)
    if not is_pair or not are_numbers:
        needed = "a step's number, or the first and the last of several"
        raise OptionError.of_kind("steps", wanted, needed, "steps=(3, 5)")
    first, last = map(int, ends)
    return first, last


def _is_integer(value: object) -> bool:
    if isinstance(value, bool):
        return False
    return isinstance(value, Integral)
