"""The ranks of a run on one clock, their communication side by side, and what matched collectives say of each step."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.compute as pc

from nsyspipe.analysis.clock import ALIGNING, ClockOffset, clock_offsets
from nsyspipe.analysis.collectives import UNGROUPED, Waiting, match, waited_until, waiting
from nsyspipe.analysis.communication import NO_MEMBER, CommKind
from nsyspipe.analysis.intervals import union
from nsyspipe.model.names import COLLECTIVES
from nsyspipe.model.problems import Problem, problem

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from nsyspipe.model.types import Int64
    from nsyspipe.run.digest import ProcessDigest
    from nsyspipe.run.gather import Placed


# What stands for null: no size, and no id that NCCL makes, is that low.
ABSENT = np.iinfo(np.int64).min


@dataclass(frozen=True)
class CommRows:
    """Columns of equal length, ordered by (rank, start)."""

    rank: Int64  # place of the rank among the run's ranks in ascending order
    report: Int64  # place of its report among the arguments
    step: Int64  # step number; meaningless where `in_step` is false
    in_step: NDArray[np.bool_]
    # start_ns, end_ns: on the clocks that sessions started by
    start_ns: Int64
    end_ns: Int64
    # Index into `kinds`. What NCCL runs as sends and receives is there as what was called, if all calls are known.
    kind: Int64
    kinds: tuple[CommKind, ...]
    collective: Int64  # index into `names.COLLECTIVES`
    communicator: Int64  # index into `communicators`, the names of the run's communicators
    communicators: tuple[str, ...]
    # seq_number, message_bytes: from NCCL's payload, `ABSENT` where there is none; bytes as NCCL reports them
    seq_number: Int64
    message_bytes: Int64
    has_ids: bool  # whether communicators are NCCL's own rather than orders of first use

    def __len__(self) -> int:
        return int(self.rank.size)

    def groups(self, n_ranks: int) -> tuple[Int64, Int64]:
        """Return each operation's group for `collectives.match`, and how many ranks each group needs.

        A group is a communicator within a step, and a sequence number where NCCL gave one to all.
        A communicator that is only an order of first use needs all ranks, NCCL's own the ranks that use it.
        """
        group = np.full(len(self), UNGROUPED)
        chosen = self.in_step
        if not chosen.any():
            return group, np.empty(0, np.int64)
        columns = [self.communicator[chosen], self.step[chosen]]
        if self.has_ids and (self.seq_number[chosen] != ABSENT).all():
            # NCCL counts the calls of each kind by themselves.
            columns += [self.collective[chosen], self.seq_number[chosen]]
        code, width = np.zeros(columns[0].size, np.int64), 1
        for column in columns:
            own, n_values = _dense(column)
            code, width = _dense(code * n_values + own)
        group[chosen] = code
        users = np.full(len(self.communicators), n_ranks)
        if self.has_ids:
            pairs = np.unique(self.communicator * n_ranks + self.rank) // n_ranks
            users = np.bincount(pairs, minlength=users.size)
        n_required = np.zeros(width, np.int64)
        n_required[code] = users[columns[0]]
        return group, n_required


def _dense(values: Int64) -> tuple[Int64, int]:
    """Return a number from 0 for each distinct value, with holes where that is cheap, and the first not used."""
    lowest = int(values.min())
    width = int(values.max()) - lowest + 1
    if width <= 2 * values.size:
        return values - lowest, width
    distinct, index = np.unique(values, return_inverse=True)
    return index, distinct.size


def comm_rows(placed: Sequence[Placed[ProcessDigest]], step_numbers: Sequence[Int64]) -> CommRows:
    """Put the communication of all ranks, in ascending order, side by side, with the step number of each member."""
    tables = [one.process.comm.table for one in placed]
    sizes = [table.num_rows for table in tables]
    kinds = tuple(dict.fromkeys(kind for one in placed for kind in one.process.comm.kinds))
    member = _column(tables, "member")
    kind = _joined(
        np.array([kinds.index(kind) for kind in one.process.comm.kinds], np.int64)[table["kind"].to_numpy()]
        for one, table in zip(placed, tables, strict=True)
        if table.num_rows
    )
    shift = np.repeat([one.shift_ns for one in placed], sizes).astype(np.int64)
    codes = np.array([COLLECTIVES.index(one.collective) for one in kinds], np.int64)
    collective = codes[kind] if kinds else kind
    comm_id, in_step = _column(tables, "comm_id"), member != NO_MEMBER
    has_ids = bool(in_step.any() and (comm_id[in_step] != ABSENT).all())
    names, communicator = _by_id(comm_id) if has_ids else _by_order(collective, _column(tables, "stream_order"))
    message_bytes, called = _column(tables, "message_bytes"), _column(tables, "called")
    if (called != ABSENT).any():
        if has_ids:
            kinds, kind = _as_called(kinds, kind, called)
            collective = np.where(called != ABSENT, called, collective)
        else:  # of sends and receives that is not the size
            message_bytes = np.where(called != ABSENT, ABSENT, message_bytes)
    return CommRows(
        rank=np.repeat(np.arange(len(placed)), sizes),
        report=np.repeat([one.argument for one in placed], sizes).astype(np.int64),
        step=_joined(
            np.append(numbers, 0)[table["member"].to_numpy()]  # the last place is that of no member
            for numbers, table in zip(step_numbers, tables, strict=True)
        ),
        in_step=in_step,
        start_ns=_column(tables, "start_ns") + shift,
        end_ns=_column(tables, "end_ns") + shift,
        kind=kind,
        kinds=kinds,
        collective=collective,
        communicator=communicator,
        communicators=names,
        seq_number=_column(tables, "seq_number"),
        message_bytes=message_bytes,
        has_ids=has_ids,
    )


def _as_called(kinds: tuple[CommKind, ...], kind: Int64, called: Int64) -> tuple[tuple[CommKind, ...], Int64]:
    """Put what was called in the place of the sends and receives that it ran as."""
    pairs, index = np.unique(kind * (len(COLLECTIVES) + 1) + called.clip(-1) + 1, return_inverse=True)
    named = [
        replace(kinds[at], collective=COLLECTIVES[told - 1]) if told else kinds[at]
        for at, told in (divmod(one, len(COLLECTIVES) + 1) for one in pairs.tolist())
    ]
    known = tuple(dict.fromkeys(named))
    return known, np.array([known.index(one) for one in named], np.int64)[index]


def _column(tables: Sequence[pa.Table], name: str) -> Int64:
    return _joined(pc.fill_null(table[name], ABSENT).to_numpy() for table in tables)


def _joined(arrays: object) -> Int64:
    found = list(arrays)  # type: ignore[call-overload]  # any iterable of arrays
    return np.concatenate(found) if found else np.empty(0, np.int64)


def _by_id(comm_id: Int64) -> tuple[tuple[str, ...], Int64]:
    ids, index = np.unique(comm_id, return_inverse=True)
    return tuple(map(communicator_name, ids.tolist())), index


def communicator_name(number: int) -> str:
    """Return NCCL's 64-bit hash of a communicator as it logs it."""
    return f"{number & (2**64 - 1):#x}"


def _by_order(collective: Int64, order: Int64) -> tuple[tuple[str, ...], Int64]:
    width = int(order.max()) + 1 if order.size else 1
    codes, index = np.unique(collective * width + order, return_inverse=True)
    names = (f"{COLLECTIVES[code // width]}/{code % width}" for code in codes.tolist())
    return tuple(names), index


# Across ranks: one clock, matched collectives, and what they say about each step.


# Stands for an error that is not known: nothing exceeds it.
_UNKNOWN_ERROR = 2**62
_SEND_RECV = COLLECTIVES.index("send_recv")


@dataclass(frozen=True)
class CrossRank:
    """A run's ranks on one clock, and its communication operations on it."""

    # The ranks in ascending order, with their shifts corrected by the clock offsets
    placed: tuple[Placed[ProcessDigest], ...]
    offsets: tuple[ClockOffset, ...]  # one per report
    rows: CommRows  # all communication operations, times aligned
    # What matched operations say; None in a run of one rank, or without a common clock
    waiting: Waiting | None
    problems: tuple[Problem, ...]


def cross_rank(
    placed: Sequence[Placed[ProcessDigest]], step_numbers: Sequence[Int64], n_reports: int, *, is_one_run: bool = True
) -> CrossRank:
    """Put the ranks of a run, in ascending order, on one clock and match their collectives.

    Unless the reports are certainly of one run, collectives of which none matches speak against it.
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
        placed=tuple(replace(one, shift_ns=one.shift_ns - offsets[one.argument].offset_ns) for one in placed),
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
    told = {communicator_name(number): size for one in across.placed for number, size in one.report.comm_sizes.items()}
    return np.array(
        [told.get(name, size) for name, size in zip(rows.communicators, sizes.tolist(), strict=True)], np.int64
    )


def step_waits(
    across: CrossRank, rank: Int64, step: Int64, starts: Int64, ends: Int64
) -> tuple[Int64, Int64, NDArray[np.bool_]]:
    """Return each step's waiting time, the part of it beside no compute, ns, and whether they are known.

    The union of ``[own start, min(last start, own end))`` over the rank's matched operations, clipped to the window;
    not known where an operation of the step is unmatched. One value per window: place of the rank, step number, aligned
    times; windows of a rank stand together.
    """
    rows, found = across.rows, across.waiting
    if found is None:
        return *(np.zeros(rank.size, np.int64),) * 2, np.zeros(rank.size, np.bool_)
    until = waited_until(rows.start_ns, rows.end_ns, found.wait_ns)
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


def _has_common_clock(placed: Sequence[Placed[ProcessDigest]], offsets: Sequence[ClockOffset]) -> bool:
    """Tell whether times of different ranks can be compared: by session starts, or by collectives."""
    used = {one.argument for one in placed}
    return all(one.report.facts.session_start_utc_ns is not None for one in placed) or all(
        offsets[argument].error_ns is not None for argument in used
    )


def _clock_problems(placed: Sequence[Placed[ProcessDigest]], offsets: Sequence[ClockOffset]) -> list[Problem]:
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
    is_early = found.is_matched & (rows.end_ns < found.last_start_ns) & (rows.collective != _SEND_RECV)
    if n_early := int(np.count_nonzero(is_early)):
        problems.append(problem("ended-before-last-arrived", n=n_early))
    return problems
