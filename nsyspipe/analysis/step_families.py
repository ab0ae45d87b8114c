"""Find which NVTX ranges are the steps: texts that differ only in digits form a family, one family wins.

A family qualifies when on every rank it has at least two members and at least half of the rank's
kernels were launched inside them. Of those the one with most time on its best threads wins. Never
steps: ranges of libraries and of operators, and the layers or micro-batches of one step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nsyspipe.analysis.intervals import Slices, grouped_lengths, outermost
from nsyspipe.model.names import DIGITS_PATTERN, SUFFIX_PATTERN, holds_steps, is_operator

if TYPE_CHECKING:
    import re
    from collections.abc import Sequence

    from nsyspipe.analysis.attribution import ProcessOperations
    from nsyspipe.model.types import Int64


# Name of the family that --step makes of all ranges that match it. It holds a digit, so that no
# normalised text equals it.
STEP_OPTION = "--step 1"
_NOT_IN_FAMILY = -1
_MIN_MEMBERS = 2


@dataclass(frozen=True)
class TextFamilies:
    """The families of a report's range texts."""

    names: list[str]  # family names: normalised texts, or `STEP_OPTION` alone
    of_text: Int64  # family of each text of the ranges' dictionary; -1 for none
    # whether a user named it: then libraries' and operators' ranges are steps too
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
        hits = [text is not None and pattern.search(text) is not None for text in texts.to_pylist()]
        of_text = np.where(np.asarray(hits, np.bool_), 0, _NOT_IN_FAMILY).astype(np.int64)
        return cls([STEP_OPTION], of_text, is_named=True)


def normalise(texts: pa.StringArray) -> pa.StringArray:
    """Drop ``, seq = N`` and ``, op_id = N``, then write each run of digits as ``#``.

    Examples
    --------
    >>> normalise(pa.array(["Batch 10", "aten::mm, seq = 7, op_id = 12"])).to_pylist()
    ['Batch #', 'aten::mm']
    """
    bare = pc.replace_substring_regex(texts, SUFFIX_PATTERN, "")
    return pc.replace_substring_regex(bare, DIGITS_PATTERN, "#")


def largest_families(ranges: pa.Table, families: TextFamilies, n_shown: int) -> tuple[tuple[str, int], ...]:
    """Return the families with most time and their number of ranges, for messages."""
    family, _, starts, ends = _columns(ranges, families)
    known = family != _NOT_IN_FAMILY
    family, starts, ends = family[known], starts[known], ends[known]
    totals = np.zeros(len(families.names), np.int64)
    np.add.at(totals, family, ends - starts)
    counts = np.bincount(family, minlength=totals.size)
    largest = np.argsort(-totals, kind="stable")[:n_shown].tolist()
    return tuple((families.names[at], int(counts[at])) for at in largest if counts[at])


@dataclass(frozen=True)
class Candidate:
    """One family on one rank."""

    name: str
    thread_id: int
    # union of its ranges on its best thread: the one with the largest (tie: the lowest id)
    union_ns: int
    first_start_ns: int  # start of its first member, report time
    n_members: int  # ranges of that thread that do not start inside an earlier one
    # kernels launched inside the members; kernels with a launch
    n_launched_inside: int
    n_launched: int
    # whether its members are parts of a step, layers or micro-batches: several lie inside one other range, and less
    # than half of them launched a kernel of the optimizer that this rank has
    is_part: bool = False
    # families of as much time and with the same first start in whose members all of its members lie
    holders: tuple[str, ...] = ()

    @property
    def is_large(self) -> bool:
        """Whether there are several members, in which half of the kernels were launched; a rank without launches cannot object."""
        enough = 2 * self.n_launched_inside >= self.n_launched
        return self.n_members >= _MIN_MEMBERS and enough

    @property
    def qualifies(self) -> bool:
        """Whether this rank accepts the family as its steps."""
        return self.is_large and not self.is_part


@dataclass(frozen=True)
class Members:
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
    """Measure every family on one rank: largest union first, ties by name.

    `optimizer_launches` is when the kernels that update the weights were launched, sorted; None without any that is known.
    """
    family, thread, starts, ends = _columns(ranges, families)
    every = thread, starts, ends, family
    known = family != _NOT_IN_FAMILY
    if not families.is_named:
        can_be = np.array([not is_operator(name) for name in families.names], np.bool_)
        known &= can_be[family] if can_be.size else known
    family, thread, starts, ends = family[known], thread[known], starts[known], ends[known]
    if not family.size:
        return []
    threads, thread_index = np.unique(thread, return_inverse=True)
    keys, group = np.unique(family * threads.size + thread_index, return_inverse=True)
    unions = grouped_lengths(group, starts, ends, keys.size)
    launched = operations.kernels_launched_in(starts, ends).counts

    best: dict[int, int] = {}
    for index in np.lexsort((keys, -unions)).tolist():
        best.setdefault(int(keys[index]) // threads.size, index)
    order = np.argsort(group, kind="stable")
    edges = np.searchsorted(group[order], np.arange(keys.size + 1))
    found: list[Candidate] = []
    spans: list[tuple[Int64, Int64]] = []
    for code, index in best.items():
        rows = order[edges[index] : edges[index + 1]]
        start, end = starts[rows], ends[rows]
        # Ranges that overlap nowhere are all members; else pick.
        if int((end - start).sum()) != int(unions[index]) or not (end > start).all():
            rows = rows[outermost(start, end)]
        rows = rows[np.lexsort((-ends[rows], starts[rows]))]
        one = Candidate(
            name=families.names[code],
            thread_id=int(threads[int(keys[index]) % threads.size]),
            union_ns=int(unions[index]),
            first_start_ns=int(starts[rows[0]]),
            n_members=rows.size,
            n_launched_inside=int(launched[rows].sum()),
            n_launched=operations.n_launched,
        )
        spans.append((starts[rows], ends[rows]))
        is_part = (
            one.is_large
            and optimizer_launches is not None
            and not families.is_named
            and _are_parts(*spans[-1], _others(every, one.thread_id, code), optimizer_launches)
        )
        found.append(replace(one, is_part=is_part))
    held = zip(found, _holders(found, spans), strict=True)
    found = [replace(one, holders=own) if own else one for one, own in held]
    return sorted(found, key=lambda one: (-one.union_ns, one.name))


def _others(every: tuple[Int64, Int64, Int64, Int64], thread_id: int, code: int) -> tuple[Int64, Int64]:
    """Return starts and ends of the ranges of a thread that are of another family."""
    thread, starts, ends, family = every
    other = (thread == thread_id) & (family != code)
    return starts[other], ends[other]


def _are_parts(starts: Int64, ends: Int64, others: tuple[Int64, Int64], optimizer_launches: Int64) -> bool:
    """Tell whether several members lie inside one other range, and less than half of them update weights."""
    n_updates = Slices.within(optimizer_launches, starts, ends).counts
    if 2 * int(np.count_nonzero(n_updates)) >= starts.size:
        return False
    inside = np.searchsorted(ends, others[1], side="right") - np.searchsorted(starts, others[0])
    return bool((inside >= _MIN_MEMBERS).any())


def _holders(found: Sequence[Candidate], spans: Sequence[tuple[Int64, Int64]]) -> list[tuple[str, ...]]:
    """Return for each family those as long, and begun at the same time, that its members lie in but not the reverse."""
    alike: dict[tuple[int, int], list[int]] = {}
    for at, one in enumerate(found):
        if one.is_large:
            alike.setdefault((one.union_ns, one.first_start_ns), []).append(at)
    holders: list[tuple[str, ...]] = [()] * len(found)
    for group in alike.values():
        for at in group:
            holders[at] = tuple(
                found[other].name
                for other in group
                if other != at and _lie_in(spans[at], spans[other]) and not _lie_in(spans[other], spans[at])
            )
    return holders


def _lie_in(inner: tuple[Int64, Int64], outer: tuple[Int64, Int64]) -> bool:
    """Tell whether each of some disjoint spans lies in one of others."""
    at = np.searchsorted(outer[0], inner[0], side="right") - 1
    return bool(((at >= 0) & (inner[1] <= outer[1][np.maximum(at, 0)])).all())


def choose(ranks: Sequence[Sequence[Candidate]], shifts: Sequence[int]) -> str | None:
    """Choose the step family of a run, or None when no family qualifies on every rank.

    What --step matches on any rank needs no vote. `shifts` turn each rank's report time into aligned time, ns; only ties
    look at it.
    """
    if any(one.name == STEP_OPTION for rank in ranks for one in rank):
        return STEP_OPTION
    if not ranks:
        return None
    by_name = [{one.name: one for one in rank if one.qualifies} for rank in ranks]
    shared = set(by_name[0]).intersection(*by_name[1:])
    if not shared:
        return None

    def preference(name: str) -> tuple[bool, int, int, str]:
        union = sum(rank[name].union_ns for rank in by_name)
        first = min(rank[name].first_start_ns + shift for rank, shift in zip(by_name, shifts, strict=True))
        return holds_steps(name), -union, first, name

    best = min(shared, key=preference)
    # Of equal ones the family that holds all ranges of the others on every rank.
    while held_by := shared.intersection(*(rank[best].holders for rank in by_name)):
        if not (tied := [one for one in held_by if preference(one)[:3] == preference(best)[:3]]):
            break
        best = min(tied)
    return best


def choose_host(reports: Sequence[Sequence[Sequence[Candidate]]], shifts: Sequence[int]) -> str | None:
    """Choose the step family of a run without device activity, or None when none qualifies anywhere.

    Nothing tells a rank from other processes here, so a family need not qualify on all of them: the one that
    qualifies in most reports wins, of several `choose` would take the same. What --step matches needs no vote.
    There are candidates of each process of each report, and a shift per report.
    """
    found: dict[str, list[tuple[int, Candidate]]] = {}
    for at, report in enumerate(reports):
        for one in (one for process in report for one in process):
            if one.qualifies or one.name == STEP_OPTION:
                found.setdefault(one.name, []).append((at, one))

    def preference(name: str) -> tuple[bool, int, int, int, str]:
        own = found[name]
        union = sum(one.union_ns for _, one in own)
        first = min(one.first_start_ns + shifts[at] for at, one in own)
        return holds_steps(name), -len({at for at, _ in own}), -union, first, name

    return min(found, key=preference, default=None)


def members_of(ranges: pa.Table, families: TextFamilies, candidate: Candidate) -> Members:
    """Return the step ranges of one rank in the chosen family, on its best thread."""
    family, thread, starts, ends = _columns(ranges, families)
    rows = np.flatnonzero((family == families.names.index(candidate.name)) & (thread == candidate.thread_id))
    rows = rows[outermost(starts[rows], ends[rows])]
    return Members(candidate.thread_id, rows, starts[rows], ends[rows])


def _columns(ranges: pa.Table, families: TextFamilies) -> tuple[Int64, Int64, Int64, Int64]:
    text = ranges["text"].combine_chunks()
    family = families.of_text[text.indices.to_numpy()] if len(text) else np.empty(0, np.int64)
    if len(text) and not families.is_named:
        family = np.where(ranges["is_library"].to_numpy(), _NOT_IN_FAMILY, family)
    return (
        family,
        ranges["thread_id"].to_numpy(),
        ranges["start_ns"].to_numpy(),
        ranges["end_ns"].to_numpy(),
    )
