"""Find which NVTX ranges are the steps: texts that differ only in digits form a family, one family wins.

A family qualifies when on every rank it has at least two members and at least half of the rank's
kernels were launched inside them. Of those the one with most time on its best threads wins.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nsyspipe.intervals import grouped_lengths, outermost
from nsyspipe.labels import DIGITS_PATTERN, SUFFIX_PATTERN, is_epoch

if TYPE_CHECKING:
    import re
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from nsyspipe.attribution import ProcessOperations

    Int64 = NDArray[np.int64]

__all__ = [
    "STEP_OPTION",
    "Candidate",
    "Members",
    "TextFamilies",
    "candidates",
    "choose",
    "choose_host",
    "largest_families",
    "members_of",
]

# Name of the family that --step makes of all ranges that match it. It holds a digit, so that no
# normalised text equals it.
STEP_OPTION = "--step 1"
_NOT_IN_FAMILY = -1
_MIN_MEMBERS = 2


@dataclass(frozen=True)
class TextFamilies:
    """The families of a report's range texts.

    Attributes
    ----------
    names
        Family names: normalised texts, or `STEP_OPTION` alone.
    of_text
        Family of each text of the ranges' dictionary; -1 for none.
    """

    names: list[str]
    of_text: Int64

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
            [STEP_OPTION], np.where(np.asarray(hits, np.bool_), 0, _NOT_IN_FAMILY).astype(np.int64)
        )


def normalise(texts: pa.StringArray) -> pa.StringArray:
    """Drop ``, seq = N`` and ``, op_id = N``, then write each run of digits as ``#``.

    Examples
    --------
    >>> normalise(pa.array(["Batch 10", "aten::mm, seq = 7, op_id = 12"])).to_pylist()
    ['Batch #', 'aten::mm']
    """
    bare = pc.replace_substring_regex(texts, SUFFIX_PATTERN, "")
    return pc.replace_substring_regex(bare, DIGITS_PATTERN, "#")


def largest_families(
    ranges: pa.Table, families: TextFamilies, n_shown: int
) -> tuple[tuple[str, int], ...]:
    """Return the families with most time and their number of ranges, for messages.

    Parameters
    ----------
    ranges
        `schema.RANGES` of a report.
    families
        Its texts by their normalised form.
    """
    family, _, starts, ends = _columns(ranges, families)
    totals = np.zeros(len(families.names), np.int64)
    np.add.at(totals, family, ends - starts)
    counts = np.bincount(family, minlength=totals.size)
    largest = np.argsort(-totals, kind="stable")[:n_shown].tolist()
    return tuple((families.names[at], int(counts[at])) for at in largest if counts[at])


@dataclass(frozen=True)
class Candidate:
    """One family on one rank.

    Attributes
    ----------
    union_ns
        Union of its ranges on its best thread: the one with the largest (tie: the lowest id).
    first_start_ns
        Start of its first member, report time.
    n_members
        Ranges of that thread that do not start inside an earlier one.
    n_launched_inside, n_launched
        Kernels launched inside the members; kernels with a launch.
    """

    name: str
    thread_id: int
    union_ns: int
    first_start_ns: int
    n_members: int
    n_launched_inside: int
    n_launched: int

    @property
    def qualifies(self) -> bool:
        """Whether this rank accepts the family as its steps; a rank without launches cannot object."""
        enough = 2 * self.n_launched_inside >= self.n_launched
        return self.n_members >= _MIN_MEMBERS and enough


@dataclass(frozen=True)
class Members:
    """The step ranges of one rank: disjoint, in order of start.

    Attributes
    ----------
    rows
        Their rows in the ranges table of the process.
    """

    thread_id: int
    rows: Int64
    starts: Int64
    ends: Int64


def candidates(
    ranges: pa.Table, families: TextFamilies, operations: ProcessOperations
) -> list[Candidate]:
    """Measure every family on one rank.

    Parameters
    ----------
    ranges
        `schema.RANGES` of one process.

    Returns
    -------
    list of Candidate
        Largest union first; ties by name.
    """
    family, thread, starts, ends = _columns(ranges, families)
    known = family != _NOT_IN_FAMILY
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
    found = []
    for code, index in best.items():
        rows = order[edges[index] : edges[index + 1]]
        start, end = starts[rows], ends[rows]
        # Ranges that overlap nowhere are all members; else pick.
        if int((end - start).sum()) != int(unions[index]) or not (end > start).all():
            rows = rows[outermost(start, end)]
        found.append(
            Candidate(
                name=families.names[code],
                thread_id=int(threads[int(keys[index]) % threads.size]),
                union_ns=int(unions[index]),
                first_start_ns=int(starts[rows].min()),
                n_members=rows.size,
                n_launched_inside=int(launched[rows].sum()),
                n_launched=operations.n_launched,
            )
        )
    return sorted(found, key=lambda one: (-one.union_ns, one.name))


def choose(ranks: Sequence[Sequence[Candidate]], shifts: Sequence[int]) -> str | None:
    """Choose the step family of a run, or None when no family qualifies on every rank.

    What --step matches on any rank needs no vote.

    Parameters
    ----------
    ranks
        The candidates of each rank.
    shifts
        What turns each rank's report time into aligned time, ns; only ties look at it.
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
        first = min(
            rank[name].first_start_ns + shift for rank, shift in zip(by_name, shifts, strict=True)
        )
        return is_epoch(name), -union, first, name

    return min(shared, key=preference)


def choose_host(
    reports: Sequence[Sequence[Sequence[Candidate]]], shifts: Sequence[int]
) -> str | None:
    """Choose the step family of a run without device activity, or None when none qualifies anywhere.

    Nothing tells a rank from other processes here, so a family need not qualify on all of them: the one that
    qualifies in most reports wins, of several `choose` would take the same. What --step matches needs no vote.

    Parameters
    ----------
    reports
        The candidates of each process of each report.
    shifts
        As in `choose`, one per report.
    """
    where: dict[str, set[int]] = {}
    union: dict[str, int] = {}
    first: dict[str, int] = {}
    for at, (report, shift) in enumerate(zip(reports, shifts, strict=True)):
        for one in (one for process in report for one in process):
            if not (one.qualifies or one.name == STEP_OPTION):
                continue
            where.setdefault(one.name, set()).add(at)
            union[one.name] = union.get(one.name, 0) + one.union_ns
            start = one.first_start_ns + shift
            first[one.name] = min(first.get(one.name, start), start)

    def preference(name: str) -> tuple[bool, int, int, int, str]:
        return is_epoch(name), -len(where[name]), -union[name], first[name], name

    return min(where, key=preference, default=None)


def members_of(ranges: pa.Table, families: TextFamilies, candidate: Candidate) -> Members:
    """Return the step ranges of one rank in the chosen family, on its best thread."""
    family, thread, starts, ends = _columns(ranges, families)
    rows = np.flatnonzero(
        (family == families.names.index(candidate.name)) & (thread == candidate.thread_id)
    )
    rows = rows[outermost(starts[rows], ends[rows])]
    return Members(candidate.thread_id, rows, starts[rows], ends[rows])


def _columns(ranges: pa.Table, families: TextFamilies) -> tuple[Int64, Int64, Int64, Int64]:
    text = ranges["text"].combine_chunks()
    family = families.of_text[text.indices.to_numpy()] if len(text) else np.empty(0, np.int64)
    return (
        family,
        ranges["thread_id"].to_numpy(),
        ranges["start_ns"].to_numpy(),
        ranges["end_ns"].to_numpy(),
    )
