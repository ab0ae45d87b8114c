"""The ranks of a run on one clock, with their collectives matched."""

import itertools
from collections.abc import Iterable, Iterator, Sequence

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
from nsyspipe.run.captures import capture_numbers, joined, parts_by_capture
from nsyspipe.run.comm_rows import (
    CommRows,
    comm_rows,
    communicator_name,
    find_operation_numbers,
)
from nsyspipe.run.digests import Rank, Ranks
from nsyspipe.run.process import ProcessDigest
from nsyspipe.run.process_groups import MIN_RANKS, doubt_before_matching, named_by_log

# Stands for a clock error that is not known. No delay exceeds it.
_UNKNOWN_ERROR_NS = 2**62
_NO_OFFSET = ClockOffset(0, None)
# In these collectives ranks wait for each other.
_SYNCHRONIZING = frozenset((*ALIGNING, "send_recv"))


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
        places = np.arange(len(self.placed) + 1)
        edges = np.searchsorted(self.rows.rank, places)
        edges_of_ranks = itertools.pairwise(edges.tolist())
        for rank, edges_of_rank in zip(self.placed, edges_of_ranks, strict=True):
            yield rank, slice(*edges_of_rank)

    def waited(self, operations: Int64 | slice, waiting: matching.Waiting) -> IntervalSet:
        """Return when some operations of one rank wait for other ranks."""
        starts_ns = self.rows.start_ns[operations]
        ends_ns = self.rows.end_ns[operations]
        wait_ns = waiting.column("wait_ns", operations)
        wait_ends_ns = matching.waited_until(starts_ns, ends_ns, wait_ns)
        has_waited = wait_ends_ns > starts_ns
        return union(starts_ns[has_waited], wait_ends_ns[has_waited])

    @property
    def has_comm_between(self) -> bool:
        """Whether much communication runs between steps, so that steps show only a part of it."""
        for rank in self.placed:
            for report_problem in rank.report.problems:
                if report_problem.code == "comm-between-steps":
                    return True
        return False

    @property
    def is_matched(self) -> Flags:
        """Which operations are matched, among the ranks of the run."""
        if self.waiting is None:
            return np.zeros(len(self.rows), np.bool_)
        return self.waiting.is_matched

    @property
    def is_known(self) -> Flags:
        """Of which operations the wait is known: matched ones, if no rank of theirs is missing."""
        communicator_is_whole = self.is_whole[self.rows.communicator]
        return self.is_matched & communicator_is_whole


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
    parts_of_ranks = [rank.parts for rank in ranks]
    numbers = capture_numbers(parts_of_ranks)
    all_parts = itertools.chain.from_iterable(parts_of_ranks)
    aligned_parts: dict[_DevicePart, Rank[ProcessDigest]] = {}
    offsets = [_NO_OFFSET] * n_reports
    for parts in parts_by_capture(all_parts, numbers):
        joint = relate_ranks(
            parts,
            n_reports,
            log,
            has_all=has_all,
            is_one_run=True,
            is_aligned=is_aligned,
        )
        for part in joint.placed:
            aligned_parts[_identity(part)] = part
            argument = part.argument
            if joint.offsets is not None:
                offsets[argument] = joint.offsets[argument]
    aligned_ranks = []
    applied_offsets = [_NO_OFFSET] * n_reports
    for rank in ranks:
        aligned_parts_of_rank = [aligned_parts[_identity(part)] for part in rank.parts]
        aligned_ranks.append(_with_aligned_parts(rank, aligned_parts_of_rank))
        applied_offsets[rank.argument] = _offset_of_rank(rank, offsets)
    return aligned_ranks, applied_offsets


def _identity(part: Rank[ProcessDigest]) -> _DevicePart:
    process = part.process
    return _DevicePart(part.argument, process.process_id, process.device_id)


def _offset_of_rank(rank: Rank[ProcessDigest], offsets: Sequence[ClockOffset]) -> ClockOffset:
    """Return the offset of a rank's first capture, with the largest error of its captures.

    `offsets` are of each report.
    """
    errors_ns = [offsets[part.argument].error_ns for part in rank.parts]
    known_errors_ns = [error_ns for error_ns in errors_ns if error_ns is not None]
    are_all_known = len(known_errors_ns) == len(errors_ns)
    max_error_ns = max(known_errors_ns) if are_all_known else None
    return replace(offsets[rank.argument], error_ns=max_error_ns)


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
        compared = [offset for offset in self.offsets if offset.error_ns is not None]
        parts = {offset.part for offset in compared}
        if len(parts) > 1:
            return None
        return tuple(self.offsets)


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
        return _chosen_collectives(self.blocks, self.is_aligning)


def _chosen_collectives(blocks: Iterable[Int64], is_chosen: Flags) -> list[Int64]:
    """Return the blocks with only the collectives whose operations are chosen."""
    chosen = []
    for block in blocks:
        first_operation = block[:, 0]
        chosen.append(block[is_chosen[first_operation]])
    return chosen


def relate_ranks(
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
    aligned = _align(run, known_doubt=None)
    if _is_contradicted(aligned):
        aligned = _align(run, known_doubt=Doubt.TIMES)
    waiting = _measure_waiting(aligned) if aligned.is_comparable else None
    placed = _with_corrected_shifts(ranks, aligned.clocks)
    problems = tuple(_problems(run, aligned, waiting))
    communicators = aligned.communicators
    offsets = aligned.clocks.offsets_if_comparable
    return CrossRank(
        placed=placed,
        offsets=offsets,
        rows=aligned.rows,
        sizes=communicators.sizes,
        waiting=waiting,
        problems=problems,
        is_whole=communicators.is_whole,
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
    steps_of_ranks = [rank.steps for rank in ranks]
    rows = comm_rows(ranks, steps_of_ranks)
    doubt = known_doubt or doubt_before_matching(rows, len(ranks))
    if doubt is None:
        return _Groups(rows, doubt, is_by_log=False)
    if run.log is not None and _share_clocks(ranks):
        pids = [rank.process.pid for rank in ranks]
        rows = named_by_log(rows, pids, run.log)
    if rows.has_ids:
        return _Groups(rows, None, is_by_log=True)
    return _Groups(rows, doubt, is_by_log=False)


def _align(run: _UnalignedRun, known_doubt: Doubt | None) -> _AlignedRun:
    """Match the collectives of a run, and put its ranks on one clock by them."""
    ranks = run.ranks
    groups = _find_groups(run, known_doubt)
    has_doubt = groups.doubt is not None
    rows = groups.rows
    matches = _match(rows, len(ranks), has_doubt=has_doubt, is_aligned=run.is_aligned)
    clocks = _find_clocks(run, rows, matches)
    communicators = _communicators(ranks, rows, has_all=run.has_all, has_doubt=has_doubt)
    has_several_ranks = len(ranks) > 1
    is_comparable = has_several_ranks and clocks.is_common and run.is_aligned
    return _AlignedRun(
        rows=_on_one_clock(ranks, rows, clocks),
        doubt=groups.doubt,
        is_by_log=groups.is_by_log,
        communicators=communicators,
        matches=matches,
        clocks=clocks,
        is_comparable=is_comparable,
    )


def _measure_waiting(aligned: _AlignedRun) -> matching.Waiting:
    rows = aligned.rows
    clocks = aligned.clocks
    errors_and_parts = clocks.errors_ns, clocks.parts
    blocks = aligned.matches.blocks
    return matching.measure_waiting(blocks, rows.start_ns, rows.end_ns, rows.rank, errors_and_parts)


def _with_corrected_shifts(ranks: Ranks, clocks: _Clocks) -> tuple[Rank[ProcessDigest], ...]:
    corrected = []
    for rank in ranks:
        remaining_ns = clocks.remaining_ns[rank.argument]
        shift_ns = rank.shift_ns - remaining_ns
        corrected.append(replace(rank, shift_ns=shift_ns))
    return tuple(corrected)


def _communicators(
    ranks: Ranks, rows: CommRows, *, has_all: bool, has_doubt: bool
) -> _Communicators:
    """Return how many ranks each communicator has, and whether the run has all of them.

    NCCL's payload gives the size. Without it, the size is the number of ranks that use the
    communicator, if no rank of the job is missing.
    """
    n_ranks = len(ranks)
    recorded_sizes = _recorded_sizes(ranks)
    size_of_each = [recorded_sizes.get(name, 0) for name in rows.communicators]
    sizes = np.array(size_of_each, np.int64)
    n_users = rows.n_users(n_ranks)
    if has_all:
        sizes = np.where(sizes == 0, n_users, sizes)
    if has_doubt:
        sizes = np.where(rows.is_named, sizes, 0)
    is_size_known = sizes > 0
    has_all_users = is_size_known & (n_users >= sizes)
    return _Communicators(sizes, n_users, is_whole=has_all | has_all_users)


def _recorded_sizes(ranks: Ranks) -> dict[str, int]:
    """Return the number of ranks of each communicator that NCCL's payload describes, by name."""
    sizes = {}
    for rank in ranks:
        for comm_id, n_ranks in rank.report.comm_sizes.items():
            sizes[communicator_name(comm_id)] = n_ranks
    return sizes


def _match(rows: CommRows, n_ranks: int, *, has_doubt: bool, is_aligned: bool) -> _Matches:
    """Match the operations of all ranks that are one collective."""
    group, n_required = rows.groups(n_ranks)
    if has_doubt:
        is_named = rows.is_named[rows.communicator]
        group[~is_named] = matching.UNGROUPED
    blocks = []
    if is_aligned:
        blocks = matching.match_collectives(group, rows.rank, n_required)
    is_aligning = np.array([name in ALIGNING for name in COLLECTIVES])
    return _Matches(blocks, is_aligning[rows.collective])


def _find_clocks(run: _UnalignedRun, rows: CommRows, matches: _Matches) -> _Clocks:
    """Compare the clocks of reports, by collectives that all their ranks end together."""
    ranks = run.ranks
    arguments = [rank.argument for rank in ranks]
    if run.applied_offsets is None:
        report_of_rank = np.array(arguments, np.int64)
        offsets = clock_offsets(
            matches.of_aligning(),
            rows.end_ns,
            report_of_rank[rows.rank],
            run.n_reports,
            is_one_clock=_are_in_one_report(ranks),
        )
        remaining_ns = [offset.offset_ns for offset in offsets]
    else:
        offsets = list(run.applied_offsets)
        remaining_ns = [0] * run.n_reports
    rank_offsets = [offsets[argument] for argument in arguments]
    errors_ns = np.array([_error_ns(offset) for offset in rank_offsets], np.int64)
    parts = np.array([offset.part for offset in rank_offsets], np.int64)
    are_all_known = bool((errors_ns != _UNKNOWN_ERROR_NS).all())
    n_parts = np.unique(parts).size
    has_all_errors = are_all_known and n_parts == 1
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
    remaining_ns = [clocks.remaining_ns[rank.argument] for rank in ranks]
    offset_of_rank_ns = np.array(remaining_ns, np.int64)
    offset_ns = offset_of_rank_ns[rows.rank]
    start_ns = rows.start_ns - offset_ns
    end_ns = rows.end_ns - offset_ns
    return replace(rows, start_ns=start_ns, end_ns=end_ns)


def _are_in_one_report(ranks: Ranks) -> bool:
    arguments = {rank.argument for rank in ranks}
    return len(arguments) == 1


def _share_clocks(ranks: Ranks) -> bool:
    """Tell whether the ranks' times can be compared before any collective is matched."""
    return _are_in_one_report(ranks) or _have_session_starts(ranks)


def _have_session_starts(ranks: Ranks) -> bool:
    return all(rank.report.facts.session_start_utc_ns is not None for rank in ranks)


def _is_contradicted(aligned: _AlignedRun) -> bool:
    """Tell whether aligned times contradict that a communicator without a name holds all ranks."""
    rows = aligned.rows
    is_in_question = aligned.is_comparable and aligned.doubt is None
    if not is_in_question or rows.has_ids:
        return False
    is_synchronizing = np.array([name in _SYNCHRONIZING for name in COLLECTIVES])
    blocks = aligned.matches.blocks
    blocks_of_ranks = [block for block in blocks if block.shape[1] >= MIN_RANKS]
    is_chosen = is_synchronizing[rows.collective]
    chosen = _chosen_collectives(blocks_of_ranks, is_chosen)
    if not chosen:
        return False
    communicators = [rows.communicator[block[:, 0]] for block in chosen]
    n_communicators = len(rows.communicators)
    for communicator in range(n_communicators):
        in_communicator = []
        for block, communicator_of_collective in zip(chosen, communicators, strict=True):
            in_communicator.append(block[communicator_of_collective == communicator])
        if is_contradicted_by_times(in_communicator, rows.start_ns, rows.end_ns):
            return True
    return False


def _problems(
    run: _UnalignedRun, aligned: _AlignedRun, waiting: matching.Waiting | None
) -> Iterator[Problem]:
    """Yield what keeps the ranks of a run from being compared."""
    n_ranks = len(run.ranks)
    has_comm = any(rank.process.n_comm for rank in run.ranks)
    if n_ranks > 1 and has_comm:
        if run.is_aligned:
            yield from _problems_of_groups_and_clocks(aligned, has_log=run.log is not None)
        else:
            yield problem("steps-not-aligned")
        n_contradicted = find_operation_numbers(aligned.rows).n_contradicted
        if n_contradicted:
            yield problem("operation-ids-contradict", n=n_contradicted)
    if waiting is not None and aligned.doubt is None:
        yield from _problems_of_lost(aligned, waiting, n_ranks=n_ranks, is_one_run=run.is_one_run)
        yield from _problems_of_early_ends(aligned, waiting)


def _problems_of_groups_and_clocks(aligned: _AlignedRun, *, has_log: bool) -> Iterator[Problem]:
    doubt = aligned.doubt
    clocks = aligned.clocks
    if doubt is not None:
        yield problem_of_groups(aligned.rows, doubt, has_log=has_log)
    elif aligned.is_by_log:
        yield problem("groups-by-log")
    if not clocks.is_common:
        yield problem("no-common-clock")
    elif not clocks.has_all_errors and doubt is None:
        # With a doubt it is not known which collectives ranks share.
        yield problem("clock-error-unknown")


def problem_of_groups(rows: CommRows, doubt: Doubt, *, has_log: bool) -> Problem:
    """Return that process groups have no names, with a fix that does not ask for a log again."""
    which = "some collectives" if rows.is_named.any() else "collectives"
    not_named = problem("groups-not-named", which=which, reason=doubt.value)
    if not has_log:
        return not_named
    fix = not_named.fix or ""
    return replace(not_named, fix=fix.removesuffix(OR_LOG))


def _problems_of_lost(
    aligned: _AlignedRun, waiting: matching.Waiting, *, n_ranks: int, is_one_run: bool
) -> Iterator[Problem]:
    """Yield how many operations have no counterparts on other ranks."""
    rows = aligned.rows
    communicators = aligned.communicators
    has_several_users = communicators.n_users > 1
    has_counterparts = (communicators.is_whole | has_several_users)[rows.communicator]
    is_lost = rows.in_step & has_counterparts & ~waiting.is_matched
    n_lost = int(np.count_nonzero(is_lost))
    if n_lost:
        # A rank whose kernels or names were not recorded may match nothing in the same run.
        ranks_in_steps = rows.rank[rows.in_step]
        ranks_with_comm = np.unique(ranks_in_steps)
        has_each_rank = ranks_with_comm.size == n_ranks
        matches_nothing = not aligned.matches.blocks
        may_be_different_runs = has_each_rank and matches_nothing and not is_one_run
        code = "different-runs" if may_be_different_runs else "unmatched-collectives"
        n_in_steps = int(np.count_nonzero(rows.in_step))
        yield problem(code, n=n_lost, total=n_in_steps)


def _problems_of_early_ends(aligned: _AlignedRun, waiting: matching.Waiting) -> Iterator[Problem]:
    """Yield how many operations end before the last rank arrives."""
    rows = aligned.rows
    # A send, or the root of a broadcast, may end before its receiver arrives, because NCCL buffers
    # what it sends. Only collectives that all ranks end together show a wrong clock.
    is_before_last = rows.end_ns < waiting.column("last_start_ns")
    is_aligning = waiting.is_matched & aligned.matches.is_aligning
    n_early = int(np.count_nonzero(is_aligning & is_before_last))
    if n_early:
        code = "clocks-put-last-behind-end" if rows.has_ids else "ended-before-last-arrived"
        yield problem(code, n=n_early)
