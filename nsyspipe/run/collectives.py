"""The ranks of a run on one clock, their communication side by side, what matched collectives say of steps and ranks; and the tables of it."""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from msgspec.structs import replace

from nsyspipe.analysis import collectives as matching
from nsyspipe.analysis.clock import ALIGNING, ClockOffset, clock_offsets
from nsyspipe.analysis.collectives import NO_MEMBER, CommKind
from nsyspipe.analysis.intervals import (
    BLOCK,
    IntervalSet,
    places_in_runs,
    run_starts,
    sums_of,
    union,
)
from nsyspipe.analysis.operations import NO_SEQ
from nsyspipe.analysis.process_groups import Doubt, is_contradicted_by_times
from nsyspipe.analysis.traffic import held_up_by_step, own_lateness
from nsyspipe.model import schema
from nsyspipe.model.names import COLLECTIVES
from nsyspipe.model.problems import OR_LOG, Problem, problem
from nsyspipe.model.side_files import NcclLog
from nsyspipe.model.table import FLOAT, INT, Flags, Float64, Int32, Int64, conform
from nsyspipe.run.captures import capture_numbers, joined
from nsyspipe.run.gather import Rank, Ranks
from nsyspipe.run.process import ProcessDigest
from nsyspipe.run.process_groups import MIN_RANKS, doubt_before_matching, named_by_log

ABSENT = np.iinfo(
    np.int64
).min  # what stands for null: no size, and no id that NCCL makes, is that low
NONE = -1  # of what is counted from 0
_NOT_KNOWN_NS = 2**62  # a clock's error: nothing exceeds it
# What is known of matched operations.
_NEEDED = (
    "n_ranks",
    "arrival_skew_ns",
    "wait_ns",
    "transfer_ns",
    "late_by_ns",
    "held_up_ns",
    "is_late_significant",
)
_OF_STRAGGLERS = ("step", "rank", "collective", "comm_id", "wait_ns", "late_by_ns", "held_up_ns")


class CommRows(Struct, frozen=True):
    """Columns of equal length, ordered by (rank, start)."""

    rank: Int32  # place of the rank among the run's ranks in ascending order
    step: Int64  # step number; meaningless where `in_step` is false
    in_step: Flags
    start_ns: Int64  # on the clocks that sessions started by, as end_ns
    end_ns: Int64
    # index into `kinds`, where sends and receives that NCCL made are what was called, if that is
    # known
    kind: Int32
    kinds: tuple[CommKind, ...]
    communicator: Int32  # index into `communicators`, the names of the run's communicators
    communicators: tuple[str, ...]
    seq_number: Int64  # from NCCL's payload, `ABSENT` where there is none
    message_bytes: Int64  # as NCCL reports them, `ABSENT` as well
    # the pass of the step that launched it, as `phases.IN_FORWARD` and so on; else `NONE`
    launched_in: Int32
    micro_batch: Int32  # which backward pass of the step launched it, from 0; else `NONE`
    n_before: (
        Int32  # compute kernels that its step launched before it, `NONE` where that is not known
    )
    has_ids: bool  # whether communicators are NCCL's own rather than orders of first use
    is_named: Flags  # of each communicator, whether NCCL's payload or log names it
    is_by_log: bool = (
        False  # whether the log names some: it names the calls of one collective at a time
    )

    @property
    def collective(self) -> Int32:
        """Index of each operation's collective in `names.COLLECTIVES`."""
        return np.array(
            [*(COLLECTIVES.index(kind.collective) for kind in self.kinds), 0], np.int32
        )[self.kind]

    def __len__(self) -> int:
        return int(self.rank.size)

    def n_users(self, n_ranks: int) -> Int64:
        """Return how many of the run's ranks use each communicator."""
        pairs = np.unique(self.communicator.astype(np.int64) * n_ranks + self.rank) // max(
            n_ranks, 1
        )
        return np.bincount(pairs, minlength=len(self.communicators))

    def groups(self, n_ranks: int) -> tuple[Int64, Int64]:
        """Return each operation's group for `collectives.match_collectives`, and how many ranks each group needs."""
        group = np.full(len(self), matching.UNGROUPED)
        chosen = self.in_step
        if not chosen.any():
            return group, np.empty(0, np.int64)
        columns: list[Int64] = [self.communicator[chosen].astype(np.int64), self.step[chosen]]
        if self.has_ids and (self.seq_number[chosen] != ABSENT).all():
            # NCCL counts the calls of each kind by themselves.
            columns += [self.collective[chosen].astype(np.int64), self.seq_number[chosen]]
        elif self.is_by_log:
            columns.append(self.collective[chosen].astype(np.int64))
        code = np.zeros(columns[0].size, np.int64)
        width = 1
        for column in columns:
            dense, n_values = _dense(column)
            code, width = _dense(code * n_values + dense)
        group[chosen] = code
        # One that is only an order of first use needs all ranks, NCCL's own the ranks that use it.
        users = np.where(self.is_named, self.n_users(n_ranks), n_ranks)
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


def comm_rows(ranks: Ranks, step_numbers: Sequence[Int64]) -> CommRows:
    """Put the communication of all ranks, in ascending order, side by side, with the step number of each member."""
    tables = [rank.process.comm.narrow for rank in ranks]
    counts = [table.num_rows for table in tables]

    def joined(parts: Iterable[Int64], kind: type[np.int32 | np.int64] = np.int64) -> Any:  # noqa: ANN401 - an array
        return np.concatenate([np.empty(0, kind), *parts], dtype=kind, casting="same_kind")

    def values(table: pa.Table, name: str, absent: int = ABSENT) -> Int64:
        return pc.fill_null(table[name].cast(pa.int64()), absent).to_numpy()  # type: ignore[no-any-return]

    def column(name: str, absent: int = ABSENT, kind: type[np.int32 | np.int64] = np.int64) -> Any:  # noqa: ANN401 - an array
        if all(pa.types.is_null(table[name].type) for table in tables):
            return np.broadcast_to(kind(absent), sum(counts))
        return joined((values(table, name, absent) for table in tables), kind)

    shift_ns = np.repeat(np.array([rank.shift_ns for rank in ranks], np.int64), counts)
    kinds = tuple(dict.fromkeys(kind for rank in ranks for kind in rank.process.comm.kinds))
    number = {kind: at for at, kind in enumerate(kinds)}
    codes = (np.array([*map(number.get, rank.process.comm.kinds), 0]) for rank in ranks)
    kind = joined(
        (own[values(table, "kind")] for own, table in zip(codes, tables, strict=True)), np.int32
    )
    in_step = column("member") != NO_MEMBER
    comm_id = column("comm_id")
    has_ids = bool(in_step.any() and (comm_id[in_step] != ABSENT).all())
    if has_ids:
        ids, communicator = np.unique(comm_id, return_inverse=True)
        names = tuple(map(_communicator_name, ids.tolist()))
    else:  # by kind and order of first use
        order = column("stream_order")
        width = int(order.max(initial=0)) + 1
        collective = np.array([*(COLLECTIVES.index(one.collective) for one in kinds), 0])[kind]
        pairs, communicator = np.unique(collective * width + order, return_inverse=True)
        names = tuple(f"{COLLECTIVES[code // width]}/{code % width}" for code in pairs.tolist())
    message_bytes = column("message_bytes")
    called = column("called")
    is_called = called != ABSENT
    if is_called.any() and has_ids:
        kinds, kind = _as_called(kinds, kind, called)
    elif is_called.any():  # of sends and receives that is not the size
        message_bytes = np.where(is_called, ABSENT, message_bytes)
    return CommRows(
        rank=np.repeat(np.arange(len(ranks), dtype=np.int32), counts),
        step=joined(
            np.append(numbers, 0)[values(table, "member")]  # the last place is that of no member
            for numbers, table in zip(step_numbers, tables, strict=True)
        ),
        in_step=in_step,
        start_ns=column("start_ns") + shift_ns,
        end_ns=column("end_ns") + shift_ns,
        kind=kind,
        kinds=kinds,
        communicator=communicator.astype(np.int32),
        communicators=names,
        seq_number=column("seq_number"),
        message_bytes=message_bytes,
        has_ids=has_ids,
        is_named=np.full(len(names), has_ids),
        **{
            name: column(name, NONE, np.int32)
            for name in ("launched_in", "micro_batch", "n_before")
        },
    )


def _as_called(
    kinds: tuple[CommKind, ...], kind: Int32, called: Int64
) -> tuple[tuple[CommKind, ...], Int32]:
    """Put what was called in the place of the sends and receives that it ran as."""
    width = len(COLLECTIVES) + 1
    pairs, index = np.unique(
        kind.astype(np.int64) * width + called.clip(-1) + 1, return_inverse=True
    )
    named = [kinds[pair // width] for pair in pairs.tolist()]
    for at, code in enumerate((pairs % width).tolist()):
        named[at] = replace(named[at], collective=COLLECTIVES[code - 1]) if code else named[at]
    known = tuple(dict.fromkeys(named))
    return known, np.array([known.index(one) for one in named], np.int32)[index]


def _communicator_name(number: int) -> str:
    return f"{number & (2**64 - 1):#x}"


class CrossRank(Struct, frozen=True):
    """A run's ranks on one clock, and its communication operations on it."""

    placed: tuple[
        Rank[ProcessDigest], ...
    ]  # the ranks in ascending order, shifts corrected by the clock offsets
    offsets: (
        tuple[ClockOffset, ...] | None
    )  # one per report; None where some meet no others, whose are not known
    rows: CommRows  # all communication operations, times aligned
    sizes: Int64  # ranks of each communicator, 0 where that is not known
    waiting: (
        matching.Waiting | None
    )  # what matched operations say; None for one rank, or without a common clock
    problems: tuple[Problem, ...]
    # of each communicator, whether none of its ranks is missing: else one that is may have come
    # last
    is_whole: Flags
    doubt: Doubt | None = (
        None  # why nothing is matched: the process groups are not named, and are several
    )

    def by_rank(self) -> Iterator[tuple[Rank[ProcessDigest], slice]]:
        """Yield each rank with which of `rows` are its."""
        edges = np.searchsorted(self.rows.rank, np.arange(len(self.placed) + 1)).tolist()
        return zip(self.placed, itertools.starmap(slice, itertools.pairwise(edges)), strict=True)

    def waited(self, of: Int64 | slice, waiting: matching.Waiting) -> IntervalSet:
        """Return when some operations of one rank wait for others."""
        begun = self.rows.start_ns[of]
        ends = self.rows.end_ns[of]
        until = matching.waited_until(begun, ends, waiting.column("wait_ns", of))
        return union(begun[until > begun], until[until > begun])

    @property
    def has_comm_between(self) -> bool:
        """Whether ranks communicate between their steps so much that what is known of collectives in them is a part."""
        return any(
            one.code == "comm-between-steps" for rank in self.placed for one in rank.report.problems
        )

    @property
    def is_matched(self) -> Flags:
        """Which operations are matched, among the ranks that are here."""
        return (
            np.zeros(len(self.rows), np.bool_) if self.waiting is None else self.waiting.is_matched
        )

    @property
    def is_known(self) -> Flags:
        """Of which operations it is known who waits: those that are matched, in communicators that are here whole."""
        return self.is_matched & self.is_whole[self.rows.communicator]


def align_captures(
    ranks: Ranks, n_reports: int, log: NcclLog | None, *, has_all: bool, is_aligned: bool
) -> tuple[list[Rank[ProcessDigest]], list[ClockOffset]]:
    """Put the captures of each rank on one clock, by the collectives of each capture of the run.

    Returned are the ranks, and of the first report of each the offset that was applied to it; the
    error is the largest of the captures.
    """
    numbers = capture_numbers([rank.parts for rank in ranks])
    aligned: dict[tuple[int, int, int | None], Rank[ProcessDigest]] = {}
    offsets = [ClockOffset(0, None)] * n_reports
    for capture in sorted(set(numbers.values())):
        parts = [part for rank in ranks for part in rank.parts if numbers[part.argument] == capture]
        across = cross_rank(
            parts, n_reports, log, has_all=has_all, is_one_run=True, is_aligned=is_aligned
        )
        for part in across.placed:
            aligned[_capture_of_device(part)] = part
            if across.offsets is not None:
                offsets[part.argument] = across.offsets[part.argument]
    placed = []
    clocks = [ClockOffset(0, None)] * n_reports
    for rank in ranks:
        parts = [aligned[_capture_of_device(part)] for part in rank.parts]
        errors = [offsets[part.argument].error_ns for part in parts]
        error_ns = None if None in errors else max(error for error in errors if error is not None)
        clocks[rank.argument] = replace(offsets[rank.argument], error_ns=error_ns)
        one = joined(parts) if rank.captures else parts[0]
        placed.append(
            replace(one, number=rank.number, process_number=rank.process_number, steps=rank.steps)
        )
    return placed, clocks


def _capture_of_device(part: Rank[ProcessDigest]) -> tuple[int, int, int | None]:
    """Return the report, process and device of one capture of a rank."""
    return part.argument, part.process.process_id, part.process.device_id


def cross_rank(
    ranks: Ranks,
    n_reports: int,
    log: NcclLog | None = None,
    doubt: Doubt | None = None,
    *,
    has_all: bool,
    is_one_run: bool,
    is_aligned: bool,
    clocks: Sequence[ClockOffset] | None = None,
) -> CrossRank:
    """Put the ranks of a run, in ascending order, on one clock and match their collectives, if their steps are aligned.

    `has_all`: nothing says that the job had other ranks. `clocks` are the offsets of reports that
    have been applied already.

    Where ranks of a communicator are missing, who waits for whom in it is not known: they may have
    come last. Nor is it known in any that nothing names if there is a `doubt` that each holds all
    ranks: these are not matched.
    """
    rows = comm_rows(ranks, [rank.steps for rank in ranks])
    doubt = doubt or doubt_before_matching(rows, len(ranks))
    if doubt is not None and log is not None and _share_clocks(ranks):
        rows = named_by_log(rows, [rank.process.pid for rank in ranks], log)
    is_by_log = doubt is not None and rows.has_ids
    doubt = None if is_by_log else doubt
    # How many ranks a communicator has NCCL's payload says, else those that use it where none of
    # the world is missing.
    told = {
        _communicator_name(id_): n for rank in ranks for id_, n in rank.report.comm_sizes.items()
    }
    sizes = np.array([told.get(name, 0) for name in rows.communicators], np.int64)
    n_users = rows.n_users(len(ranks))
    sizes = np.where((sizes == 0) & has_all, n_users, sizes)
    sizes = np.where(rows.is_named | (doubt is None), sizes, 0)
    is_whole = has_all | ((sizes > 0) & (n_users >= sizes))
    group, n_required = rows.groups(len(ranks))
    if doubt is not None:
        group[~rows.is_named[rows.communicator]] = matching.UNGROUPED
    matched = matching.match_collectives(group, rows.rank, n_required) if is_aligned else []
    aligning = np.array([name in ALIGNING for name in COLLECTIVES])[rows.collective]
    blocks = [block[aligning[block[:, 0]]] for block in matched]
    reports = np.array([rank.argument for rank in ranks], np.int64)
    is_one = np.unique(reports).size == 1
    if clocks is None:
        offsets = clock_offsets(
            blocks, rows.end_ns, reports[rows.rank], n_reports, is_one_clock=is_one
        )
        applied_ns = [one.offset_ns for one in offsets]
    else:
        offsets = list(clocks)
        applied_ns = [0] * n_reports
    of_ranks = [offsets[argument] for argument in reports]
    offset = np.array([applied_ns[argument] for argument in reports], np.int64)[rows.rank]
    rows = replace(rows, start_ns=rows.start_ns - offset, end_ns=rows.end_ns - offset)
    errors = np.array(
        [_NOT_KNOWN_NS if one.error_ns is None else one.error_ns for one in of_ranks], np.int64
    )
    parts = np.array([one.part for one in of_ranks], np.int64)
    has_all_errors = np.unique(parts).size == 1 and (errors != _NOT_KNOWN_NS).all()
    # Times of different ranks can be compared by session starts, or by collectives.
    has_clock = has_all_errors or all(
        rank.report.facts.session_start_utc_ns is not None for rank in ranks
    )
    known = None
    problems = []
    has_comm = len(ranks) > 1 and any(rank.process.n_comm for rank in ranks)
    if has_comm and not is_aligned:
        problems.append(problem("steps-not-aligned"))
    elif has_comm:
        problems += _of_groups(rows, doubt, is_by_log=is_by_log, has_log=log is not None)
        problems += _of_clocks(doubt, has_clock=has_clock, has_all_errors=bool(has_all_errors))
    if len(ranks) > 1 and has_clock and is_aligned:
        known = matching.measure_waiting(
            matched, rows.start_ns, rows.end_ns, rows.rank, (errors, parts)
        )
        is_early = known.is_matched & aligning & (rows.end_ns < known.column("last_start_ns"))
        if doubt is None and _is_contradicted(rows, matched):
            return cross_rank(
                ranks,
                n_reports,
                log,
                Doubt.TIMES,
                has_all=has_all,
                is_one_run=is_one_run,
                is_aligned=True,
                clocks=clocks,
            )
        is_lost = rows.in_step & ~known.is_matched & (is_whole | (n_users > 1))[rows.communicator]
        # Of a rank whose kernels or names were not recorded nobody knows what it would match.
        has_each_rank = np.unique(rows.rank[rows.in_step]).size == len(ranks)
        may_differ = has_each_rank and not (is_one_run or matched)
        problems += (
            _mismatches(rows, is_lost, is_early, may_differ=may_differ) if doubt is None else ()
        )
    placed = (replace(rank, shift_ns=rank.shift_ns - applied_ns[rank.argument]) for rank in ranks)
    of_reports = (
        None
        if len({one.part for one in offsets if one.error_ns is not None}) > 1
        else tuple(offsets)
    )
    return CrossRank(
        tuple(placed), of_reports, rows, sizes, known, tuple(problems), is_whole, doubt
    )


def _of_groups(
    rows: CommRows, doubt: Doubt | None, *, is_by_log: bool, has_log: bool
) -> Iterator[Problem]:
    if doubt is not None:
        which = "some collectives" if rows.is_named.any() else "collectives"
        found = problem("groups-not-named", which=which, reason=doubt.value)
        yield replace(found, fix=(found.fix or "").removesuffix(OR_LOG)) if has_log else found
    elif is_by_log:
        yield problem("groups-by-log")


def _of_clocks(doubt: Doubt | None, *, has_clock: bool, has_all_errors: bool) -> Iterator[Problem]:
    if not has_clock:
        yield problem("no-common-clock")
    elif not has_all_errors and doubt is None:  # else which collectives ranks share is not known
        yield problem("clock-error-unknown")


def _share_clocks(ranks: Ranks) -> bool:
    """Tell whether the ranks' times can be compared before any collective is matched."""
    is_one_report = len({rank.argument for rank in ranks}) == 1
    return is_one_report or all(
        rank.report.facts.session_start_utc_ns is not None for rank in ranks
    )


def _is_contradicted(rows: CommRows, matched: Sequence[Int64]) -> bool:
    """Tell whether times, aligned, contradict that a communicator that nothing names holds all ranks."""
    if rows.has_ids:
        return False
    synchronizing = np.array([name in (*ALIGNING, "send_recv") for name in COLLECTIVES])[
        rows.collective
    ]
    blocks = [block[synchronizing[block[:, 0]]] for block in matched if block.shape[1] >= MIN_RANKS]
    by_communicator = [
        [block[rows.communicator[block[:, 0]] == number] for block in blocks]
        for number in range(len(rows.communicators) if blocks else 0)
    ]
    return any(is_contradicted_by_times(own, rows.start_ns, rows.end_ns) for own in by_communicator)


def _mismatches(
    rows: CommRows, is_lost: Flags, is_early: Flags, *, may_differ: bool
) -> Iterator[Problem]:
    n_unmatched = int(np.count_nonzero(is_lost))
    if n_unmatched:
        code = "different-runs" if may_differ else "unmatched-collectives"
        yield problem(code, n=n_unmatched, total=int(np.count_nonzero(rows.in_step)))
    # A send, or a broadcast's root, may end before its receiver comes: NCCL has room for what it
    # sends.
    n_early = int(np.count_nonzero(is_early))
    if n_early:
        yield problem(
            "clocks-put-last-behind-end" if rows.has_ids else "ended-before-last-arrived", n=n_early
        )


def step_waits(
    across: CrossRank, rank: Int64, step: Int64, starts: Int64, ends: Int64
) -> tuple[Int64, Int64, Flags]:
    """Return each step's waiting time, the part of it beside no compute, ns, and whether they are known.

    The union of ``[own start, min(last start, own end))`` over the rank's matched operations,
    clipped to the window; not known where an operation of the step is unmatched. Per window: place
    of the rank, step number, aligned times.
    """
    rows = across.rows
    waits, exposed = np.zeros((2, rank.size), np.int64)
    if across.waiting is None:
        return waits, exposed, np.zeros(rank.size, np.bool_)
    width = len(across.placed)
    for place, (one, own) in enumerate(across.by_rank()):
        windows = slice(*np.searchsorted(rank, (place, place + 1)))
        covered = across.waited(own, across.waiting)
        waits[windows] = covered.lengths(starts[windows], ends[windows])
        beside = covered.intersect(one.process.hidden.shifted(one.shift_ns))
        exposed[windows] = waits[windows] - beside.lengths(starts[windows], ends[windows])
    unknown = rows.in_step & ~across.is_known
    bad = np.unique(rows.step[unknown] * width + rows.rank[unknown])
    return waits, exposed, ~np.isin(step * width + rank, bad)


def step_bytes(across: CrossRank, rank: Int64, step: Int64) -> tuple[Int64, Flags]:
    """Return the bytes of the messages that belong to each (rank, step), and whether all of them are known."""
    rows = across.rows
    width = len(across.placed)
    n_bytes = message_sizes(across, own := np.flatnonzero(rows.in_step))[0]
    at = pc.index_in(
        pa.array(rows.step[own] * width + rows.rank[own]), value_set=pa.array(step * width + rank)
    )
    place = pc.fill_null(at, rank.size).to_numpy()  # behind the last: of no window
    is_known = n_bytes != ABSENT
    totals = sums_of(place[is_known], n_bytes[is_known], rank.size + 1)
    return totals[:-1], np.bincount(place[~is_known], minlength=rank.size + 1)[:-1] == 0


def message_sizes(across: CrossRank, of: Int64) -> tuple[Int64, Float64, Flags]:
    """Return the whole message of some operations (`ABSENT`: not known), its bus bytes, and whether those are known."""
    rows = across.rows
    known = (reported := rows.message_bytes[of]) != ABSENT
    message = np.full(of.size, ABSENT)
    bus = np.zeros(of.size)
    if not known.any():
        return message, bus, known
    n_ranks = across.sizes[rows.communicator[of]]
    collective = rows.collective[of]
    for code, name in enumerate(COLLECTIVES):
        own = known & (collective == code)
        whole = matching.whole_message(name, reported[own], n_ranks[own])
        message[own] = np.where((n_ranks[own] == 0) & (name in matching.PER_RANK), ABSENT, whole)
        bus[own] = whole * matching.bus_factor(name, np.maximum(n_ranks[own], 1).astype(np.float64))
    return message, bus, known & (message != ABSENT) & (n_ranks > 0)


def collectives_table(across: CrossRank, ranks: Sequence[int], summary_steps: Int64) -> pa.Table:
    """Return `schema.COLLECTIVES`, made of so many rows at a time that little is made on the way."""
    rows = across.rows
    exposed, is_graph = _exposed_times(across)
    chosen = np.flatnonzero(rows.in_step)
    seq = places_in_steps(across)
    whole = chosen[np.lexsort((rows.rank[chosen], seq[chosen], rows.step[chosen]))]
    nulls = _shared_nulls(whole.size)
    parts = []
    del chosen
    for at in range(0, whole.size, BLOCK):
        order = whole[at : at + BLOCK]
        columns = _columns(across, order, ranks, summary_steps) | {
            "seq": seq[order],
            "algorithm": _words(rows.kind[order], [kind.algorithm for kind in rows.kinds]),
            "exposed_ns": pa.array(exposed[order], mask=is_graph[order]),
            **_waiting_columns(across, order, ("is_significant",)),
        }
        seconds = pc.divide(pc.cast(columns["transfer_ns"], pa.float64(), safe=False), 1e9)
        seconds = pc.if_else(pc.equal(seconds, 0.0), None, seconds)  # nothing was transferred
        for name, n_bytes in {
            "algbw_bytes_per_s": "message_bytes",
            "busbw_bytes_per_s": "bus_bytes",
        }.items():
            columns[name] = pc.divide(pc.cast(columns[n_bytes], pa.float64(), safe=False), seconds)
        parts.append(_sharing_nulls(conform(pa.table(columns), schema.COLLECTIVES), nulls))
    return pa.concat_tables([schema.COLLECTIVES.empty(), *parts])


def _exposed_times(across: CrossRank) -> tuple[Int64, Flags]:
    """Return the time of each operation beside no compute, and whether graphs of its rank hide what is beside it."""
    rows = across.rows
    exposed = rows.end_ns - rows.start_ns
    is_graph = np.zeros(len(rows), np.bool_)
    for rank, own in across.by_rank():
        exposed[own] -= rank.process.hidden.shifted(rank.shift_ns).lengths(
            rows.start_ns[own], rows.end_ns[own]
        )
        is_graph[own] = bool(rank.process.windows["graph_ns"].to_numpy().any())
    return exposed, is_graph


def _shared_nulls(n_rows: int) -> dict[pa.DataType, pa.Array]:
    return {kind: pa.nulls(BLOCK, kind) for kind in (INT, FLOAT)} if n_rows > BLOCK else {}


def _sharing_nulls(table: pa.Table, nulls: Mapping[pa.DataType, pa.Array]) -> pa.Table:
    for at, field in enumerate(table.schema):
        if field.type in nulls and table[at].null_count == table.num_rows:
            chunks = [
                nulls[field.type][: one.num_rows] for one in table.select([at]).to_batches(BLOCK)
            ]
            table = table.set_column(at, field, pa.chunked_array(chunks, field.type))
    return table


def collective_figures(across: CrossRank, ranks: Sequence[int], summary_steps: Int64) -> pa.Table:
    """Return those columns of `collectives_table` that figures and rules need, of summary steps, sorted by (rank, start).

    Exposed times are null where all ranks meet in one communicator: they tell who passes on what he
    waited for in another.
    """
    order = np.flatnonzero(across.rows.in_step & np.isin(across.rows.step, summary_steps))
    columns = _columns(across, order, ranks, summary_steps)
    columns["exposed_ns"] = pa.nulls(order.size, pa.int64())
    if len(across.rows.communicators) > 1:
        exposed, is_graph = _exposed_times(across)
        columns["exposed_ns"] = pa.array(exposed[order], mask=is_graph[order])
    return _sharing_nulls(pa.table(columns), _shared_nulls(order.size))


def _columns(
    across: CrossRank, order: Int64, ranks: Sequence[int], summary_steps: Int64
) -> dict[str, Any]:
    rows = across.rows
    matched = (
        np.full(order.size, matching.NOBODY)
        if across.waiting is None
        else across.waiting.collective_id[order]
    )
    message, bus, is_sized = message_sizes(across, order)
    return {
        "step": rows.step[order],
        "rank": np.asarray(ranks, np.int64)[rows.rank[order]],
        "collective": _words(rows.kind[order], [kind.collective for kind in rows.kinds]),
        "datatype": _words(rows.kind[order], [kind.datatype for kind in rows.kinds]),
        "comm_id": _words(rows.communicator[order], rows.communicators),
        "micro_batch": pa.array(
            rows.micro_batch[order], pa.int64(), mask=rows.micro_batch[order] == NONE
        ),
        "start_ns": rows.start_ns[order],
        "end_ns": rows.end_ns[order],
        "is_matched": matched != matching.NOBODY,
        "in_summary": np.isin(rows.step[order], summary_steps),
        **_waiting_columns(across, order, _NEEDED),
        "message_bytes": pa.array(message, mask=message == ABSENT),
        "bus_bytes": pa.array(bus, mask=~is_sized),
    }


def _words(codes: Int32, words: Sequence[str | None]) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(words, pa.string()))


def _waiting_columns(across: CrossRank, order: Int64, names: Sequence[str]) -> dict[str, pa.Array]:
    known = across.waiting
    if known is None:
        return {
            name: pa.nulls(order.size, pa.bool_() if name.startswith("is_") else pa.int64())
            for name in names
        }
    is_unknown = (known.collective_id[order] == matching.NOBODY) | ~across.is_whole[
        across.rows.communicator[order]
    ]
    return {name: pa.array(known.column(name, order), mask=is_unknown) for name in names}


def places_in_steps(across: CrossRank) -> Int64:
    """Return the place of each collective in its step, in order of first start, `NO_SEQ` of one in no step; unmatched ones of a rank come after."""
    rows = across.rows
    known = across.waiting
    seq = np.full(len(rows), NO_SEQ)
    steps = n_matched = np.empty(0, np.int64)
    matched = np.flatnonzero(across.is_matched & rows.in_step)
    if known is not None:
        collective = known.collective_id[matched]
        numbers, first = np.unique(collective, return_index=True)
        step = rows.step[matched[first]]
        place = np.zeros(known.first_start_ns.size, np.int64)
        order = np.lexsort((known.first_start_ns[numbers], step))
        place[numbers[order]] = places_in_runs(step[order])
        seq[matched] = place[collective]
        steps, n_matched = np.unique(step, return_counts=True)
    rest = np.flatnonzero(~across.is_matched & rows.in_step)
    order = rest[np.lexsort((rows.start_ns[rest], rows.rank[rest], rows.step[rest]))]
    seq[order] = places_in_runs(
        rows.step[order] * (int(rows.rank.max(initial=0)) + 1) + rows.rank[order]
    )
    at = pc.index_in(pa.array(rows.step[order]), value_set=pa.array(steps))
    seq[order] += np.append(n_matched, 0)[pc.fill_null(at, steps.size).to_numpy()]
    return seq


def stragglers_table(
    collectives: pa.Table,
    steps: pa.Table,
    ranks: Sequence[int],
    *,
    is_capture: bool,
    is_whole: bool = True,
) -> pa.Table:
    """Return `schema.STRAGGLERS` over the summary steps.

    Null where nothing could be matched, where ranks are missing, and where only stages of a
    pipeline meet: who is late is not told from those. Lateness is also null without steps. Without
    any communication in these steps figures are 0.
    """
    chosen = collectives.select(_OF_STRAGGLERS).filter(
        pc.and_(collectives["in_summary"], collectives["is_matched"])
    )
    in_figures = steps.filter(steps["in_summary"])
    # Where every waiting time is known and nothing matched, there was no communication.
    is_silent = (
        not chosen.num_rows and in_figures.num_rows > 0 and not in_figures["wait_ns"].null_count
    )
    chosen = own_lateness(chosen)
    # Then nobody came late, whatever is not known of the collectives of other steps.
    is_known = is_silent or (is_whole and chosen.num_rows > 0)
    rank = chosen["rank"].to_numpy()
    step = chosen["step"].to_numpy()
    late_by = pc.fill_null(chosen["late_by_ns"], 0).to_numpy()
    late = np.flatnonzero(late_by)
    order = late[np.lexsort((late, -late_by[late], step[late]))]
    largest = order[
        run_starts(step[order])
    ]  # the largest delay of each step (of equal ones the first)
    of_all = pc.ScalarAggregateOptions(skip_nulls=False)
    sums = in_figures.group_by("rank", use_threads=False).aggregate([("wait_ns", "sum", of_all)])
    waits = dict(zip(sums["rank"].to_pylist(), sums["wait_ns_sum"].to_pylist(), strict=True))
    held_up = held_up_by_step(chosen, steps).filter(pc.field("is_alone"))
    place = np.searchsorted(ranks, rank)
    n_ranks = len(ranks)
    figures = {
        "n_arrived_last": np.bincount(place[late], minlength=n_ranks),
        "wait_caused_ns": sums_of(place[late], late_by[late], n_ranks),
        "lateness_ns": pa.nulls(n_ranks)
        if is_capture
        else sums_of(place[largest], late_by[largest], n_ranks),
        "held_up_ns": sums_of(
            np.searchsorted(ranks, held_up["rank"]), held_up["held_up_ns"].to_numpy(), n_ranks
        ),
    }
    figures = figures if is_known else dict.fromkeys(figures, pa.nulls(n_ranks))
    return schema.STRAGGLERS.table({"rank": ranks, "wait_ns": [*map(waits.get, ranks)], **figures})
