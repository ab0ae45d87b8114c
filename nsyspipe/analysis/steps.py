"""Finds the NVTX ranges that are steps, their windows on the device, and the summary steps."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import chain
from numbers import Integral
from typing import NamedTuple

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
        of_text = pc.fill_null(encoded.indices, _NOT_IN_FAMILY).to_numpy().astype(np.int64)
        return cls(encoded.dictionary.to_pylist(), of_text)

    @classmethod
    def by_option(cls, texts: pa.StringArray, pattern: re.Pattern[str]) -> TextFamilies:
        """Make one family of the texts that a pattern matches anywhere."""
        is_match = [
            text is not None and pattern.search(text) is not None for text in texts.to_pylist()
        ]
        of_text = np.where(np.asarray(is_match, np.bool_), 0, _NOT_IN_FAMILY)
        return cls([STEP_OPTION], of_text, is_named=True)


def normalise(texts: pa.StringArray) -> pa.StringArray:
    """Drop ``, seq = N`` and ``, op_id = N``, then write each run of digits as ``#``.

    >>> normalise(pa.array(["Batch 10", "aten::mm, seq = 7, op_id = 12"])).to_pylist()
    ['Batch #', 'aten::mm']
    """
    without_suffixes = pc.replace_substring_regex(texts, SUFFIX_PATTERN, "")
    return pc.replace_substring_regex(without_suffixes, DIGITS_PATTERN, "#")


def largest_families(
    ranges: pa.Table, families: TextFamilies, n_shown: int
) -> tuple[tuple[str, int], ...]:
    """Return the families with most time and their number of ranges, for messages."""
    all_ranges = _read_ranges(ranges, families)
    family = all_ranges.family
    lengths = all_ranges.ends - all_ranges.starts
    # The last total is that of ranges of no family, which are -1.
    totals = sums_of(family, lengths, len(families.names) + 1)
    counts = np.bincount(family[family != _NOT_IN_FAMILY], minlength=totals.size)
    largest = np.argsort(-totals[:-1], kind="stable")[:n_shown].tolist()
    return tuple((families.names[code], int(counts[code])) for code in largest if counts[code])


class _Ranges(Struct, frozen=True):
    """NVTX ranges as columns."""

    family: Int64  # `_NOT_IN_FAMILY` for none
    thread: Int64
    starts: Int64
    ends: Int64

    def take(self, rows: Int64) -> _Ranges:
        return _Ranges(self.family[rows], self.thread[rows], self.starts[rows], self.ends[rows])


def _read_ranges(ranges: pa.Table, families: TextFamilies) -> _Ranges:
    family = families.of_text[ranges["text"].combine_chunks().indices.to_numpy()]
    if not families.is_named:
        family = np.where(ranges["is_library"].to_numpy(), _NOT_IN_FAMILY, family)
    return _Ranges(
        family=family,
        thread=ranges["thread_id"].to_numpy(),
        starts=ranges["start_ns"].to_numpy(),
        ends=ranges["end_ns"].to_numpy(),
    )


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
        """Whether there are several members, in which half of the kernels were launched.

        A rank without launches cannot object.
        """
        return self.n_members >= _MIN_MEMBERS and 2 * self.n_launched_inside >= self.n_launched

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


def candidates(
    ranges: pa.Table,
    families: TextFamilies,
    operations: ProcessOperations,
    optimizer_launches: Int64 | None = None,
) -> list[Candidate]:
    """Measure every family on one rank: largest union first, ties by name.

    `optimizer_launches` are the launches of known optimizers, sorted.
    """
    all_ranges = _read_ranges(ranges, families)
    can_be_steps = [families.is_named or not is_operator(name) for name in families.names]
    # The last flag is that of ranges of no family, which are -1.
    is_possible = np.array([*can_be_steps, False])[all_ranges.family]
    possible = all_ranges.take(np.flatnonzero(is_possible))
    if not possible.family.size:
        return []
    measured: list[tuple[Candidate, IntervalSet]] = []
    for family in _choose_threads(possible):
        starts = possible.starts[family.rows]
        ends = possible.ends[family.rows]
        outer = outermost(starts, ends)
        members = IntervalSet(starts[outer], ends[outer])
        candidate = Candidate(
            name=families.names[family.code],
            thread_id=family.thread_id,
            union_ns=family.union_ns,
            first_start_ns=int(members.starts[0]),
            n_members=len(members),
            n_launched_inside=_count_launched(operations, members),
            n_launched=operations.n_launched,
        )
        if candidate.is_large and optimizer_launches is not None and not families.is_named:
            do_few_update = _do_few_update(members, optimizer_launches)
            is_part = do_few_update and _lie_in_other_ranges(members, family, all_ranges)
            candidate = replace(candidate, is_part=is_part)
        measured.append((candidate, members))
    with_holders = [
        replace(candidate, holders=_find_holders(candidate, members, measured))
        for candidate, members in measured
    ]
    return sorted(with_holders, key=lambda candidate: (-candidate.union_ns, candidate.name))


class _FamilyOnThread(Struct, frozen=True):
    """The ranges of one family on the thread on which they have most time."""

    code: int
    thread_id: int
    union_ns: int
    rows: Int64


def _choose_threads(ranges: _Ranges) -> list[_FamilyOnThread]:
    """Return the thread of each family with the largest union; of equal threads the lowest ID."""
    threads, thread = np.unique(ranges.thread, return_inverse=True)
    keys, group = np.unique(ranges.family * threads.size + thread, return_inverse=True)
    unions = grouped_lengths(group, ranges.starts, ranges.ends, keys.size)
    order = np.argsort(group, kind="stable")
    edges = np.searchsorted(group[order], np.arange(keys.size + 1))
    best: dict[int, _FamilyOnThread] = {}
    for index in np.lexsort((keys, -unions)).tolist():
        code, thread_index = divmod(int(keys[index]), threads.size)
        if code not in best:
            best[code] = _FamilyOnThread(
                code=code,
                thread_id=int(threads[thread_index]),
                union_ns=int(unions[index]),
                rows=order[edges[index] : edges[index + 1]],
            )
    return list(best.values())


def _count_launched(operations: ProcessOperations, ranges: IntervalSet) -> int:
    return int(operations.kernels_launched_in(ranges.starts, ranges.ends).counts.sum())


def _do_few_update(members: IntervalSet, optimizer_launches: Int64) -> bool:
    """Tell whether less than half of the members launched a kernel of the optimizer."""
    n_updates = Slices.within(optimizer_launches, members.starts, members.ends).counts
    return 2 * int(np.count_nonzero(n_updates)) < len(members)


def _lie_in_other_ranges(
    members: IntervalSet, family: _FamilyOnThread, all_ranges: _Ranges
) -> bool:
    """Tell whether several members lie in one range of another family on their thread."""
    is_on_thread = all_ranges.thread == family.thread_id
    is_other = is_on_thread & (all_ranges.family != family.code)
    n_inside = np.searchsorted(members.ends, all_ranges.ends[is_other], side="right")
    n_inside -= np.searchsorted(members.starts, all_ranges.starts[is_other])
    return bool((n_inside >= _MIN_MEMBERS).any())


def _find_holders(
    candidate: Candidate,
    members: IntervalSet,
    measured: Sequence[tuple[Candidate, IntervalSet]],
) -> tuple[str, ...]:
    """Return the families whose members contain all members of a candidate, but not the reverse.

    They have as much time as the candidate, and begin at the same time.
    """
    if not candidate.is_large:
        return ()
    extent = candidate.union_ns, candidate.first_start_ns
    holders = []
    for holder, outer in measured:
        if not holder.is_large or (holder.union_ns, holder.first_start_ns) != extent:
            continue
        if _lie_in(members, outer) and not _lie_in(outer, members):
            holders.append(holder.name)
    return tuple(holders)


def _lie_in(inner: IntervalSet, outer: IntervalSet) -> bool:
    place = np.searchsorted(outer.starts, inner.starts, side="right") - 1
    is_inside = (place >= 0) & (inner.ends <= outer.ends[np.maximum(place, 0)])
    return bool(is_inside.all())


def choose(ranks: Sequence[Sequence[Candidate]], shifts: Sequence[int]) -> str | None:
    """Choose the step family of a run, or None if no family qualifies on every rank.

    If --step matches a range on any rank, its family is chosen. `shifts` turn report times into
    aligned times, ns. They only matter if families have the same time.
    """
    if any(candidate.name == STEP_OPTION for rank in ranks for candidate in rank):
        return STEP_OPTION
    by_name = [_qualified_by_name(rank) for rank in ranks]
    names = set.intersection(*map(set, by_name)) if by_name else set()
    family = _choose_ranges(by_name, names - {REPETITION}, shifts)
    # Launches repeat if no range marks steps, or if only backward passes have ranges.
    is_repetition_better = family is None or is_part_of_step(family)
    return REPETITION if REPETITION in names and is_repetition_better else family


def _qualified_by_name(candidates: Sequence[Candidate]) -> dict[str, Candidate]:
    return {candidate.name: candidate for candidate in candidates if candidate.qualifies}


def _choose_ranges(
    by_name: Sequence[Mapping[str, Candidate]], names: set[str], shifts: Sequence[int]
) -> str | None:
    """Choose among families of ranges that qualify on every rank."""
    preferences = {}
    for name in names:
        preferences[name] = _prefer([rank[name] for rank in by_name], shifts)
    best = min(names, key=lambda name: (preferences[name], name), default=None)
    # Of equal families choose the one that holds all ranges of the others on every rank.
    while best is not None:
        holders = names.intersection(*(rank[best].holders for rank in by_name))
        equal = [name for name in holders if preferences[name] == preferences[best]]
        if not equal:
            break
        best = min(equal)
    return best


class _Preference(NamedTuple):
    """What a family is chosen by: the smallest is chosen."""

    holds_steps: bool
    negative_union_ns: int
    first_start_ns: int


def _prefer(candidates: Sequence[Candidate], shifts: Sequence[int]) -> _Preference:
    """Return the preference of a family, from its candidates on several processes."""
    first_starts = [
        candidate.first_start_ns + shift
        for candidate, shift in zip(candidates, shifts, strict=True)
    ]
    return _Preference(
        holds_steps=holds_steps(candidates[0].name),
        negative_union_ns=-sum(candidate.union_ns for candidate in candidates),
        first_start_ns=min(first_starts),
    )


class _HostPreference(NamedTuple):
    """What a family is chosen by in a run without device activity: the smallest is chosen."""

    holds_steps: bool
    negative_reports: int
    negative_union_ns: int
    first_start_ns: int
    name: str


def choose_host(
    reports: Sequence[Sequence[Sequence[Candidate]]], shifts: Sequence[int]
) -> str | None:
    """Choose the step family of a run without device activity, or None if no family qualifies.

    The family that qualifies in most reports is chosen, since ranks cannot be distinguished from
    other processes. Of several such families `choose` decides.
    """
    in_reports = [
        (candidate, number)
        for number, report in enumerate(reports)
        for candidate in chain.from_iterable(report)
    ]
    by_name = grouped(
        (candidate.name, (candidate, number))
        for candidate, number in in_reports
        if candidate.qualifies or candidate.name == STEP_OPTION
    )

    def preference(name: str) -> _HostPreference:
        candidates = [candidate for candidate, _ in by_name[name]]
        numbers = [number for _, number in by_name[name]]
        preferred = _prefer(candidates, [shifts[number] for number in numbers])
        return _HostPreference(
            holds_steps=preferred.holds_steps,
            negative_reports=-len(set(numbers)),
            negative_union_ns=preferred.negative_union_ns,
            first_start_ns=preferred.first_start_ns,
            name=name,
        )

    return min(by_name, key=preference, default=None)


def members_of(ranges: pa.Table, families: TextFamilies, candidate: Candidate) -> Members:
    """Return the step ranges of one rank in the chosen family, on its best thread."""
    all_ranges = _read_ranges(ranges, families)
    is_of_family = all_ranges.family == families.names.index(candidate.name)
    rows = np.flatnonzero(is_of_family & (all_ranges.thread == candidate.thread_id))
    rows = rows[outermost(all_ranges.starts[rows], all_ranges.ends[rows])]
    return Members(candidate.thread_id, rows, all_ranges.starts[rows], all_ranges.ends[rows])


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
    """Return the step numbers of each rank by member.

    They are the integers in the texts if all ranks have one in each text, all different. Otherwise
    they are the ordinals.
    """
    if all(
        not numbers.null_count and len(pc.unique(numbers)) == len(numbers) for numbers in in_texts
    ):
        return [numbers.to_numpy() for numbers in in_texts]
    return list(ordinals)


def capture_window(operations: ProcessOperations) -> Windows:
    """Return the whole capture of a rank as one window, for a run without steps."""
    first, last = operations.span
    return Windows(np.array([0]), np.array([first]), np.array([last]), np.array([False]))


def step_windows(members: Members, operations: ProcessOperations) -> Windows:
    """Turn step ranges of the host into windows of the device.

    A window starts with the first compute or communication kernel that any thread launched inside
    the range, and ends where the next window starts. The last window ends with the last operation
    launched inside its range. A range has no window if it launched no kernel, or if its first
    kernel does not start after the previous window starts. If no launch is known, the ranges are
    the windows.
    """
    if not operations.n_launched and not (operations.copy_launch != NEVER).any():
        all_members = np.arange(members.starts.size)
        return _tile(all_members, members.starts, int(members.ends.max(initial=-NEVER)))
    inside = operations.kernels_launched_in(members.starts, members.ends)
    with_kernels = np.flatnonzero(inside.counts)
    if not with_kernels.size:
        return _tile(with_kernels, with_kernels, 0)
    slices = Slices(inside.first[with_kernels], inside.last[with_kernels])
    first_start = slices.reduced(np.minimum, operations.kernel_start[: operations.n_launched])
    is_later = np.append(True, first_start[1:] > np.maximum.accumulate(first_start)[:-1])
    member = with_kernels[is_later]
    last_member = int(member[-1])
    last_kernels = slice(inside.first[last_member], inside.last[last_member])
    last_kernel_end = int(operations.kernel_end[last_kernels].max())
    last_range = members.starts[last_member], members.ends[last_member]
    last_copies = slice(*np.searchsorted(operations.copy_launch, last_range))
    last_end = int(operations.copy_end[last_copies].max(initial=last_kernel_end))
    return _tile(member, first_start[is_later], last_end)


def _tile(member: Int64, starts: Int64, last_end: int) -> Windows:
    """Return windows that each end where the next starts."""
    ends = np.append(starts[1:], last_end)[: starts.size]
    place = np.arange(starts.size)
    has_begun = (place > 0) | (member == 0)
    has_ended = place < starts.size - 1
    return Windows(member, starts, ends, has_ended & has_begun)


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

    `step`, `starts` and `is_complete` have a value per rank and step with a window. `capture` is
    the number of the capture if processes were captured several times. `skip_first` is how many
    complete steps to drop at the start of each capture (`OptionError` if none is left). None drops
    the first step of each capture if any other remains, because the ranks started their profilers
    at different times in it.
    """
    numbers, index = np.unique(step, return_inverse=True)
    order = np.lexsort((numbers, least_of(index, starts, numbers.size)))
    in_order = numbers[order]
    n_complete = np.bincount(index[is_complete], minlength=numbers.size)[order]
    complete = in_order[n_complete == n_ranks]
    if not complete.size:
        n_windows = np.bincount(index, minlength=numbers.size)[order]
        return Selection(in_order[n_windows == n_ranks], complete, is_fallback=True)
    place = np.arange(complete.size)
    if capture is not None:
        # A step is of one capture. Complete steps are in order of time, and so are captures.
        captures = least_of(index, capture, numbers.size)[np.searchsorted(numbers, complete)]
        place = places_in_runs(captures)
    n_most = int(place.max()) + 1
    n_skipped = min(1, n_most - 1) if skip_first is None else skip_first
    if n_skipped >= n_most:
        raise _all_steps_skipped(n_skipped, n_most, is_one_capture=complete.size == n_most)
    is_used = place >= n_skipped
    return Selection(complete[is_used], complete[~is_used], is_fallback=False)


def _all_steps_skipped(n_skipped: int, n_most: int, *, is_one_capture: bool) -> OptionError:
    """Return the error if no step is left; `n_most` steps are complete in the longest capture."""
    place = "are complete on every rank"
    if not is_one_capture:
        place = "of a capture are complete on every rank"
    return OptionError(
        f"--skip-first {n_skipped}",
        f"leaves no step ({n_most} {place})",
        fix=f"--skip-first {n_most - 1}, or capture more steps",
    )


def check_steps(all_steps: pa.Table, wanted: object) -> tuple[int, int]:
    """Return the first and the last step of a pair of step numbers, or of one number.

    Raises an `OptionError` with the steps of the table if it lacks some of them.
    """
    first, last = _parse_steps(wanted)
    numbers = all_steps["step"].to_numpy()
    # Without steps, the highest number is below the lowest.
    lowest = 0
    highest = -1
    if numbers.size:
        lowest = numbers.min()
        highest = numbers.max()
    has_any = bool(((numbers >= first) & (numbers <= last)).any())
    if has_any and lowest <= first and last <= highest:
        return first, last
    if first > last:
        raise OptionError(
            f"steps {short_repr(first)}:{short_repr(last)}",
            "end before they begin",
            fix=f"--perfetto-steps {short_repr(last)}:{short_repr(first)}",
        )
    is_one = first == last
    subject = f"step {short_repr(first)}"
    if not is_one:
        subject = f"steps {short_repr(first)}:{short_repr(last)}"
    problem = "no rank has some of these" if has_any else "no rank has such a step"
    if not numbers.size:
        raise OptionError(subject, problem, found="no steps at all")
    nearest_first = max(first, lowest) if has_any else lowest
    nearest_last = min(last, highest) if has_any else highest
    fix = "use one of these" if is_one else f"--perfetto-steps {nearest_first}:{nearest_last}"
    raise OptionError(subject, problem, found=f"steps {lowest} to {highest}", fix=fix)


def _parse_steps(wanted: object) -> tuple[int, int]:
    """Return two step numbers of a pair, or of one number."""
    ends = tuple(wanted) if isinstance(wanted, tuple | list) else (wanted, wanted)
    are_numbers = all(isinstance(end, Integral) and not isinstance(end, bool) for end in ends)
    if len(ends) != len(("first", "last")) or not are_numbers:
        needed = "a step's number, or the first and the last of several"
        raise OptionError.of_kind("steps", wanted, needed, "steps=(3, 5)")
    first, last = map(int, ends)
    return first, last
