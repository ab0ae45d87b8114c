"""The ranks of a run on one clock, with their collectives matched."""

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from nsyspipe.analysis import collectives as matching
from nsyspipe.analysis.clock import ALIGNING, ClockOffset, clock_offsets
from nsyspipe.analysis.intervals import IntervalSet, union
from nsyspipe.analysis.process_groups import Doubt, is_contradicted_by_times
from nsyspipe.model.names import COLLECTIVES
from nsyspipe.model.problems import OR_LOG, Problem, problem
from nsyspipe.model.side_files import NcclLog
from nsyspipe.model.table import Flags, Int64
from nsyspipe.run.captures import capture_numbers, joined
from nsyspipe.run.comm_rows import CommRows, comm_rows, communicator_name
from nsyspipe.run.digests import Rank, Ranks
from nsyspipe.run.process import ProcessDigest
from nsyspipe.run.process_groups import MIN_RANKS, doubt_before_matching, named_by_log

# Stands for a clock error that is not known. No delay exceeds it.
_UNKNOWN_ERROR_NS = 2**62
_NO_OFFSET = ClockOffset(0, None)


class CrossRank(Struct, frozen=True):
    """A run's ranks on one clock, and its communication operations on it."""

    # the ranks in ascending order, with their shifts corrected by the clock offsets
    placed: tuple[Rank[ProcessDigest], ...]
    # one per report, or None if some reports cannot be compared with others
    offsets: tuple[ClockOffset, ...] | None
    # all communication operations, times aligned
    rows: CommRows
    # number of ranks of each communicator, 0 if it is not known
    sizes: Int64
    # what matched operations show, or None for one rank, or without a common clock
    waiting: matching.Waiting | None
    problems: tuple[Problem, ...]
    # Of each communicator, whether the run has all its ranks. Else a missing rank may have come
    # last.
    is_whole: Flags
    # why nothing is matched: there are several process groups, and nothing names them
    doubt: Doubt | None = None

    def by_rank(self) -> Iterator[tuple[Rank[ProcessDigest], slice]]:
        """Yield each rank with the place of its operations in `rows`."""
        edges = np.searchsorted(self.rows.rank, np.arange(len(self.placed) + 1)).tolist()
        return zip(self.placed, itertools.starmap(slice, itertools.pairwise(edges)), strict=True)

    def waited(self, operations: Int64 | slice, waiting: matching.Waiting) -> IntervalSet:
        """Return when some operations of one rank wait for other ranks."""
        starts = self.rows.start_ns[operations]
        ends = self.rows.end_ns[operations]
        wait_ns = waiting.column("wait_ns", operations)
        wait_ends = matching.waited_until(starts, ends, wait_ns)
        has_waited = wait_ends > starts
        return union(starts[has_waited], wait_ends[has_waited])

    @property
    def has_comm_between(self) -> bool:
        """Whether much communication runs between steps, so that steps show only a part of it."""
        return any(
            report_problem.code == "comm-between-steps"
            for rank in self.placed
            for report_problem in rank.report.problems
        )

    @property
    def is_matched(self) -> Flags:
        """Which operations are matched, among the ranks of the run."""
        if self.waiting is None:
            return np.zeros(len(self.rows), np.bool_)
        return self.waiting.is_matched

    @property
    def is_known(self) -> Flags:
        """Of which operations the wait is known: matched ones, if no rank of theirs is missing."""
        return self.is_matched & self.is_whole[self.rows.communicator]


class _DevicePart(Struct, frozen=True):
    """What identifies one capture of a rank."""

    argument: int
    process_id: int
    device_id: int | None


def align_captures(
    ranks: Ranks, n_reports: int, log: NcclLog | None, *, has_all: bool, is_aligned: bool
) -> tuple[list[Rank[ProcessDigest]], list[ClockOffset]]:
    """Put the captures of each rank on one clock, by the collectives of each capture of the run.

    Returns the ranks, and the offset that was applied to the first report of each rank. Its error
    is the largest of the rank's captures.
    """
    numbers = capture_numbers([rank.parts for rank in ranks])
    aligned: dict[_DevicePart, Rank[ProcessDigest]] = {}
    offsets = [_NO_OFFSET] * n_reports
    for capture in sorted(set(numbers.values())):
        across = cross_rank(
            _parts_of_capture(ranks, numbers, capture),
            n_reports,
            log,
            has_all=has_all,
            is_one_run=True,
            is_aligned=is_aligned,
        )
        aligned |= {_identity(part): part for part in across.placed}
        if across.offsets is not None:
            for part in across.placed:
                offsets[part.argument] = across.offsets[part.argument]
    aligned_ranks = []
    applied_offsets = [_NO_OFFSET] * n_reports
    for rank in ranks:
        parts = [aligned[_identity(part)] for part in rank.parts]
        applied_offsets[rank.argument] = _offset_of_rank(
            [offsets[part.argument] for part in parts], offsets[rank.argument]
        )
        aligned_ranks.append(_with_aligned_parts(rank, parts))
    return aligned_ranks, applied_offsets


def _parts_of_capture(
    ranks: Ranks, numbers: dict[int, int], capture: int
) -> list[Rank[ProcessDigest]]:
    return [part for rank in ranks for part in rank.parts if numbers[part.argument] == capture]


def _identity(part: Rank[ProcessDigest]) -> _DevicePart:
    return _DevicePart(part.argument, part.process.process_id, part.process.device_id)


def _offset_of_rank(offsets: Sequence[ClockOffset], first: ClockOffset) -> ClockOffset:
    """Return the offset of a rank's first capture, with the largest error of its captures."""
    known_errors = [offset.error_ns for offset in offsets if offset.error_ns is not None]
    are_all_known = len(known_errors) == len(offsets)
    return replace(first, error_ns=max(known_errors) if are_all_known else None)


def _with_aligned_parts(
    rank: Rank[ProcessDigest], parts: Sequence[Rank[ProcessDigest]]
) -> Rank[ProcessDigest]:
    aligned = joined(parts) if rank.captures else parts[0]
    return replace(
        aligned, number=rank.number, process_number=rank.process_number, steps=rank.steps
    )


class _Clocks(Struct, frozen=True):
    """The clocks of a run's reports, as far as they can be compared."""

    # of each report: what was or will be subtracted from its times, and the error
    offsets: list[ClockOffset]
    # of each report: what remains to be subtracted
    remaining_ns: list[int]
    # of each rank
    errors_ns: Int64
    parts: Int64
    # whether the error is known between any two ranks
    has_all_errors: bool
    # whether times of different ranks can be compared, by session starts or by collectives
    is_common: bool

    @property
    def offsets_if_comparable(self) -> tuple[ClockOffset, ...] | None:
        """Return the offsets, or None if some reports cannot be compared with others."""
        parts = {offset.part for offset in self.offsets if offset.error_ns is not None}
        return None if len(parts) > 1 else tuple(self.offsets)


class _Communicators(Struct, frozen=True):
    """The communicators of a run, by their index in `CommRows.communicators`."""

    # number of ranks of each, 0 if it is not known
    sizes: Int64
    # number of the run's ranks that use each
    n_users: Int64
    # whether the run has all ranks of each
    is_whole: Flags


class _Matches(Struct, frozen=True):
    """Matched collectives: in each block, a row of operations for each collective."""

    blocks: list[Int64]
    # of each operation, whether all ranks of its collective end it together
    is_aligning: Flags

    def of_aligning(self) -> list[Int64]:
        """Return only collectives that all their ranks end together."""
        return [block[self.is_aligning[block[:, 0]]] for block in self.blocks]


def cross_rank(
    ranks: Ranks,
    n_reports: int,
    log: NcclLog | None = None,
    *,
    has_all: bool,
    is_one_run: bool,
    is_aligned: bool,
    applied_offsets: Sequence[ClockOffset] | None = None,
) -> CrossRank:
    """Put the ranks of a run, in ascending order, on one clock and match their collectives.

    `has_all` says that nothing shows more ranks of the job. `is_aligned` says that it is known
    which steps of different ranks are the same step, without which nothing is matched.
    `applied_offsets` are the clock offsets of reports whose times were corrected before.

    If ranks of a communicator are missing, it is not known who waits for whom in it: a missing
    rank may have come last. The same holds for a communicator without a name if there is a doubt
    that it holds all ranks. Its operations are not matched.
    """
    run = _UnalignedRun(
        ranks=ranks,
        n_reports=n_reports,
        log=log,
        has_all=has_all,
        is_one_run=is_one_run,
        is_aligned=is_aligned,
        applied_offsets=applied_offsets,
    )
    aligned = _align(run, _find_groups(run, known_doubt=None))
    may_be_contradicted = aligned.is_comparable and aligned.doubt is None
    if may_be_contradicted and _is_contradicted(aligned.rows, aligned.matches.blocks):
        aligned = _align(run, _find_groups(run, known_doubt=Doubt.TIMES))
    waiting = _measure_waiting(aligned) if aligned.is_comparable else None
    return CrossRank(
        placed=_with_corrected_shifts(ranks, aligned.clocks),
        offsets=aligned.clocks.offsets_if_comparable,
        rows=aligned.rows,
        sizes=aligned.communicators.sizes,
        waiting=waiting,
        problems=tuple(_problems(run, aligned, waiting)),
        is_whole=aligned.communicators.is_whole,
        doubt=aligned.doubt,
    )


class _UnalignedRun(Struct, frozen=True):
    """The arguments of `cross_rank`."""

    ranks: Ranks
    n_reports: int
    log: NcclLog | None
    has_all: bool
    is_one_run: bool
    is_aligned: bool
    applied_offsets: Sequence[ClockOffset] | None


class _Groups(Struct, frozen=True):
    """Operations with the communicators that they may be matched in."""

    rows: CommRows
    # Why communicators without a name may not hold all ranks.
    doubt: Doubt | None
    # Whether the log names all communicators, so that there is no doubt any more.
    is_by_log: bool


class _AlignedRun(Struct, frozen=True):
    """A run on one clock, with its collectives matched."""

    # With aligned times.
    rows: CommRows
    doubt: Doubt | None
    is_by_log: bool
    communicators: _Communicators
    matches: _Matches
    clocks: _Clocks
    # Whether the times of different ranks can be compared in matched collectives.
    is_comparable: bool


def _find_groups(run: _UnalignedRun, known_doubt: Doubt | None) -> _Groups:
    """Find which communicators operations belong to, by NCCL's payload, or the log if in doubt."""
    ranks = run.ranks
    rows = comm_rows(ranks, [rank.steps for rank in ranks])
    doubt = known_doubt or doubt_before_matching(rows, len(ranks))
    if doubt is None:
        return _Groups(rows, doubt, is_by_log=False)
    if run.log is not None and _share_clocks(ranks):
        rows = named_by_log(rows, [rank.process.pid for rank in ranks], run.log)
    is_by_log = rows.has_ids
    return _Groups(rows, None if is_by_log else doubt, is_by_log)


def _align(run: _UnalignedRun, groups: _Groups) -> _AlignedRun:
    """Match the collectives of a run, and put its ranks on one clock by them."""
    ranks = run.ranks
    has_doubt = groups.doubt is not None
    matches = _match(groups.rows, len(ranks), has_doubt=has_doubt, is_aligned=run.is_aligned)
    clocks = _find_clocks(run, groups.rows, matches)
    return _AlignedRun(
        rows=_on_one_clock(ranks, groups.rows, clocks),
        doubt=groups.doubt,
        is_by_log=groups.is_by_log,
        communicators=_communicators(ranks, groups.rows, has_all=run.has_all, has_doubt=has_doubt),
        matches=matches,
        clocks=clocks,
        is_comparable=len(ranks) > 1 and clocks.is_common and run.is_aligned,
    )


def _measure_waiting(aligned: _AlignedRun) -> matching.Waiting:
    rows = aligned.rows
    clocks = aligned.clocks
    return matching.measure_waiting(
        aligned.matches.blocks,
        rows.start_ns,
        rows.end_ns,
        rows.rank,
        (clocks.errors_ns, clocks.parts),
    )


def _with_corrected_shifts(ranks: Ranks, clocks: _Clocks) -> tuple[Rank[ProcessDigest], ...]:
    corrected = []
    for rank in ranks:
        shift_ns = rank.shift_ns - clocks.remaining_ns[rank.argument]
        corrected.append(replace(rank, shift_ns=shift_ns))
    return tuple(corrected)


def _communicators(
    ranks: Ranks, rows: CommRows, *, has_all: bool, has_doubt: bool
) -> _Communicators:
    """Return how many ranks each communicator has, and whether the run has all of them.

    NCCL's payload gives the size. Without it, the size is the number of ranks that use the
    communicator, if no rank of the job is missing.
    """
    recorded_sizes = {
        communicator_name(comm_id): n_ranks
        for rank in ranks
        for comm_id, n_ranks in rank.report.comm_sizes.items()
    }
    sizes = np.array([recorded_sizes.get(name, 0) for name in rows.communicators], np.int64)
    n_users = rows.n_users(len(ranks))
    if has_all:
        sizes = np.where(sizes == 0, n_users, sizes)
    if has_doubt:
        sizes = np.where(rows.is_named, sizes, 0)
    is_whole = has_all | ((sizes > 0) & (n_users >= sizes))
    return _Communicators(sizes, n_users, is_whole)


def _match(rows: CommRows, n_ranks: int, *, has_doubt: bool, is_aligned: bool) -> _Matches:
    """Match the operations of all ranks that are one collective."""
    group, n_required = rows.groups(n_ranks)
    if has_doubt:
        group[~rows.is_named[rows.communicator]] = matching.UNGROUPED
    blocks = matching.match_collectives(group, rows.rank, n_required) if is_aligned else []
    is_aligning = np.array([name in ALIGNING for name in COLLECTIVES])
    return _Matches(blocks, is_aligning[rows.collective])


def _find_clocks(run: _UnalignedRun, rows: CommRows, matches: _Matches) -> _Clocks:
    """Compare the clocks of reports, by collectives that all their ranks end together."""
    ranks = run.ranks
    arguments = np.array([rank.argument for rank in ranks], np.int64)
    is_one_report = np.unique(arguments).size == 1
    if run.applied_offsets is None:
        offsets = clock_offsets(
            matches.of_aligning(),
            rows.end_ns,
            arguments[rows.rank],
            run.n_reports,
            is_one_clock=is_one_report,
        )
        remaining_ns = [offset.offset_ns for offset in offsets]
    else:
        offsets = list(run.applied_offsets)
        remaining_ns = [0] * run.n_reports
    rank_offsets = [offsets[argument] for argument in arguments]
    errors_ns = np.array([_error_ns(offset) for offset in rank_offsets], np.int64)
    parts = np.array([offset.part for offset in rank_offsets], np.int64)
    has_all_errors = np.unique(parts).size == 1 and bool((errors_ns != _UNKNOWN_ERROR_NS).all())
    return _Clocks(
        offsets=offsets,
        remaining_ns=remaining_ns,
        errors_ns=errors_ns,
        parts=parts,
        has_all_errors=has_all_errors,
        is_common=has_all_errors or _have_session_starts(ranks),
    )


def _error_ns(offset: ClockOffset) -> int:
    return _UNKNOWN_ERROR_NS if offset.error_ns is None else offset.error_ns


def _on_one_clock(ranks: Ranks, rows: CommRows, clocks: _Clocks) -> CommRows:
    offset_of_rank = np.array([clocks.remaining_ns[rank.argument] for rank in ranks], np.int64)
    offset_ns = offset_of_rank[rows.rank]
    return replace(rows, start_ns=rows.start_ns - offset_ns, end_ns=rows.end_ns - offset_ns)


def _share_clocks(ranks: Ranks) -> bool:
    """Tell whether the ranks' times can be compared before any collective is matched."""
    is_one_report = len({rank.argument for rank in ranks}) == 1
    return is_one_report or _have_session_starts(ranks)


def _have_session_starts(ranks: Ranks) -> bool:
    return all(rank.report.facts.session_start_utc_ns is not None for rank in ranks)


def _is_contradicted(rows: CommRows, blocks: Sequence[Int64]) -> bool:
    """Tell whether aligned times contradict that a communicator without a name holds all ranks."""
    if rows.has_ids:
        return False
    is_synchronizing = np.array([name in (*ALIGNING, "send_recv") for name in COLLECTIVES])
    operation_synchronizes = is_synchronizing[rows.collective]
    chosen = [
        block[operation_synchronizes[block[:, 0]]]
        for block in blocks
        if block.shape[1] >= MIN_RANKS
    ]
    if not chosen:
        return False
    for communicator in range(len(rows.communicators)):
        in_communicator = [
            block[rows.communicator[block[:, 0]] == communicator] for block in chosen
        ]
        if is_contradicted_by_times(in_communicator, rows.start_ns, rows.end_ns):
            return True
    return False


def _problems(
    run: _UnalignedRun, aligned: _AlignedRun, waiting: matching.Waiting | None
) -> Iterator[Problem]:
    """Yield what keeps the ranks of a run from being compared."""
    n_ranks = len(run.ranks)
    if n_ranks > 1 and any(rank.process.n_comm for rank in run.ranks):
        if run.is_aligned:
            yield from _problems_of_groups_and_clocks(aligned, has_log=run.log is not None)
        else:
            yield problem("steps-not-aligned")
    if waiting is not None and aligned.doubt is None:
        yield from _problems_of_matches(
            aligned, waiting, n_ranks=n_ranks, is_one_run=run.is_one_run
        )


def _problems_of_groups_and_clocks(aligned: _AlignedRun, *, has_log: bool) -> Iterator[Problem]:
    doubt = aligned.doubt
    if doubt is not None:
        yield problem_of_groups(aligned.rows, doubt, has_log=has_log)
    elif aligned.is_by_log:
        yield problem("groups-by-log")
    if not aligned.clocks.is_common:
        yield problem("no-common-clock")
    elif not aligned.clocks.has_all_errors and doubt is None:
        # With a doubt it is not known which collectives ranks share.
        yield problem("clock-error-unknown")


def problem_of_groups(rows: CommRows, doubt: Doubt, *, has_log: bool) -> Problem:
    """Return that process groups have no names, with a fix that does not ask for a log again."""
    which = "some collectives" if rows.is_named.any() else "collectives"
    not_named = problem("groups-not-named", which=which, reason=doubt.value)
    if not has_log:
        return not_named
    return replace(not_named, fix=(not_named.fix or "").removesuffix(OR_LOG))


def _problems_of_matches(
    aligned: _AlignedRun, waiting: matching.Waiting, *, n_ranks: int, is_one_run: bool
) -> Iterator[Problem]:
    """Yield how many operations have no counterparts, or end before the last rank arrives."""
    rows = aligned.rows
    communicators = aligned.communicators
    matches = aligned.matches
    has_counterparts = communicators.is_whole | (communicators.n_users > 1)
    is_lost = rows.in_step & ~waiting.is_matched & has_counterparts[rows.communicator]
    n_lost = int(np.count_nonzero(is_lost))
    if n_lost:
        # A rank whose kernels or names were not recorded may match nothing in the same run.
        has_each_rank = np.unique(rows.rank[rows.in_step]).size == n_ranks
        may_be_different_runs = has_each_rank and not (is_one_run or matches.blocks)
        code = "different-runs" if may_be_different_runs else "unmatched-collectives"
        yield problem(code, n=n_lost, total=int(np.count_nonzero(rows.in_step)))
    # A send, or the root of a broadcast, may end before its receiver arrives, because NCCL buffers
    # what it sends. Only collectives that all ranks end together show a wrong clock.
    is_before_last = rows.end_ns < waiting.column("last_start_ns")
    n_early = int(np.count_nonzero(waiting.is_matched & matches.is_aligning & is_before_last))
    if n_early:
        code = "clocks-put-last-behind-end" if rows.has_ids else "ended-before-last-arrived"
        yield problem(code, n=n_early)
