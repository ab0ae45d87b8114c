"""Across ranks: one clock, matched collectives, and what they say about each step."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from nsyspipe.classify import COLLECTIVES
from nsyspipe.clock import ALIGNING, ClockOffset, clock_offsets
from nsyspipe.comm_rows import CommRows, comm_rows, communicator_name
from nsyspipe.intervals import union
from nsyspipe.matching import match
from nsyspipe.metrics.waiting import Waiting, waiting
from nsyspipe.problems import Problem, problem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from nsyspipe.placing import PlacedProcess

    Int64 = NDArray[np.int64]

__all__ = ["CrossRank", "communicator_sizes", "cross_rank", "step_waits"]

# Stands for an error that is not known: nothing exceeds it.
_UNKNOWN_ERROR = 2**62
_SEND_RECV = COLLECTIVES.index("send_recv")


@dataclass(frozen=True)
class CrossRank:
    """A run's ranks on one clock, and its communication operations on it.

    Attributes
    ----------
    placed
        The ranks in ascending order, with their shifts corrected by the clock offsets.
    offsets
        One per report.
    rows
        All communication operations, times aligned.
    waiting
        What matched operations say; None in a run of one rank, or without a common clock.
    """

    placed: tuple[PlacedProcess, ...]
    offsets: tuple[ClockOffset, ...]
    rows: CommRows
    waiting: Waiting | None
    problems: tuple[Problem, ...]


def cross_rank(
    placed: Sequence[PlacedProcess],
    step_numbers: Sequence[Int64],
    n_reports: int,
    *,
    is_one_run: bool = True,
) -> CrossRank:
    """Put the ranks of a run on one clock and match their collectives.

    Parameters
    ----------
    placed
        The ranks in ascending order, on the clocks that sessions started by.
    step_numbers
        For each rank the step number of each member.
    is_one_run
        Whether it is certain that the reports are of one run; if not, collectives of which none matches speak against
        it.
    """
    rows = comm_rows(placed, step_numbers)
    group, n_required = rows.groups(len(placed))
    matched = match(group, rows.rank, n_required)
    aligning = np.array([name in ALIGNING for name in COLLECTIVES])
    blocks = [block[aligning[rows.collective[block[:, 0]]]] for block in matched]
    is_one_clock = len({one.argument for one in placed}) == 1
    offsets = clock_offsets(blocks, rows.end_ns, rows.report, n_reports, is_one_clock=is_one_clock)
    offset = np.array([one.offset_ns for one in offsets], np.int64)[rows.report]
    rows = replace(rows, start_ns=rows.start_ns - offset, end_ns=rows.end_ns - offset)
    errors = [_UNKNOWN_ERROR if one.error_ns is None else one.error_ns for one in offsets]
    found, problems = None, _clock_problems(placed, offsets)
    if len(placed) > 1 and _has_common_clock(placed, offsets):
        error = np.array(errors, np.int64)[rows.report]
        found = waiting(matched, rows.start_ns, rows.end_ns, error)
        problems += _matching_problems(rows, found, may_differ=not (is_one_run or matched))
    return CrossRank(
        placed=tuple(
            replace(one, shift_ns=one.shift_ns - offsets[one.argument].offset_ns) for one in placed
        ),
        offsets=tuple(offsets),
        rows=rows,
        waiting=found,
        problems=tuple(problems),
    )


def communicator_sizes(across: CrossRank, world_size: int | None) -> Int64:
    """Return the number of ranks of each communicator; 0 where it is not known.

    It is what NCCL's payload says; else the ranks seen using it, when no rank of the world is missing.
    """
    rows, n_ranks = across.rows, len(across.placed)
    sizes = np.zeros(len(rows.communicators), np.int64)
    if world_size is None or world_size <= n_ranks:
        pairs = np.unique(rows.communicator * n_ranks + rows.rank) // max(n_ranks, 1)
        sizes = np.bincount(pairs, minlength=sizes.size)
    told = {
        communicator_name(number): size
        for one in across.placed
        for number, size in one.report.comm_sizes.items()
    }
    return np.array(
        [
            told.get(name, size)
            for name, size in zip(rows.communicators, sizes.tolist(), strict=True)
        ],
        np.int64,
    )


def step_waits(
    across: CrossRank, rank: Int64, step: Int64, starts: Int64, ends: Int64
) -> tuple[Int64, Int64, NDArray[np.bool_]]:
    """Return each step's waiting time, the part of it beside no compute, ns, and whether they are known.

    The union of ``[own start, min(last start, own end))`` over the rank's matched operations, clipped
    to the window; not known where an operation of the step is unmatched.

    Parameters
    ----------
    rank, step, starts, ends
        One value per window: place of the rank, step number, aligned times; windows of a rank stand
        together.
    """
    rows, found = across.rows, across.waiting
    if found is None:
        return *(np.zeros(rank.size, np.int64),) * 2, np.zeros(rank.size, np.bool_)
    until = np.minimum(found.last_start_ns, rows.end_ns)
    is_wait = found.is_matched & (until > rows.start_ns)
    edges = np.searchsorted(rows.rank, np.arange(len(across.placed) + 1))
    waits, exposed = np.zeros(rank.size, np.int64), np.zeros(rank.size, np.int64)
    for place in np.unique(rank).tolist():
        own = np.flatnonzero(is_wait[edges[place] : edges[place + 1]]) + edges[place]
        windows = rank == place
        covered = union(rows.start_ns[own], until[own])
        waits[windows] = covered.lengths(starts[windows], ends[windows])
        one = across.placed[place]
        beside = covered.intersect(one.process.hidden.shifted(one.shift_ns))
        exposed[windows] = waits[windows] - beside.lengths(starts[windows], ends[windows])
    unmatched = rows.in_step & ~found.is_matched
    width = len(across.placed)
    bad = np.unique(rows.step[unmatched] * width + rows.rank[unmatched])
    return waits, exposed, ~np.isin(step * width + rank, bad)


def _has_common_clock(placed: Sequence[PlacedProcess], offsets: Sequence[ClockOffset]) -> bool:
    """Tell whether times of different ranks can be compared: by session starts, or by collectives."""
    used = {one.argument for one in placed}
    return all(one.report.facts.session_start_utc_ns is not None for one in placed) or all(
        offsets[argument].error_ns is not None for argument in used
    )


def _clock_problems(
    placed: Sequence[PlacedProcess], offsets: Sequence[ClockOffset]
) -> list[Problem]:
    if len(placed) < 2 or not any(one.process.n_comm for one in placed):  # noqa: PLR2004 - two make a comparison
        return []
    if not _has_common_clock(placed, offsets):
        return [problem("no-common-clock")]
    if any(offsets[one.argument].error_ns is None for one in placed):
        return [problem("clock-error-unknown")]
    return []


def _matching_problems(rows: CommRows, found: Waiting, *, may_differ: bool) -> list[Problem]:
    problems = []
    if n_unmatched := int(np.count_nonzero(rows.in_step & ~found.is_matched)):
        total = int(np.count_nonzero(rows.in_step))
        if may_differ and np.unique(rows.rank[rows.in_step]).size > 1:
            problems.append(problem("different-runs", total=total))
        else:
            problems.append(problem("unmatched-collectives", n=n_unmatched, total=total))
    # A send may end before its receiver comes: NCCL has room for what it sends.
    is_early = (
        found.is_matched & (rows.end_ns < found.last_start_ns) & (rows.collective != _SEND_RECV)
    )
    if n_early := int(np.count_nonzero(is_early)):
        problems.append(problem("ended-before-last-arrived", n=n_early))
    return problems
