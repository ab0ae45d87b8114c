"""The ranks of a run on one clock, with their collectives matched."""

import itertools
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from nsyspipe.analysis import collectives as matching
from nsyspipe.analysis.clock import ALIGNING, ClockOffset, clock_offsets
from nsyspipe.analysis.intervals import IntervalSet, union
from nsyspipe.analysis.process_groups import Doubt, do_times_refute_one_group
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
    ranks: tuple[Rank[ProcessDigest], ...]
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
    has_all_ranks: Flags
    # why nothing is matched: there are several process groups, and nothing names them
    doubt: Doubt | None = None

    def by_rank(self) -> Iterator[tuple[Rank[ProcessDigest], slice]]:
        """Yield each rank with the slice of `rows` that has its operations."""
        # Rows are in order of ranks. The rows of a rank end where those of the next rank begin. The
        # index behind the last rank gives the end of all rows.
        rank_indices = np.arange(len(self.ranks) + 1)
        first_rows = np.searchsorted(self.rows.rank, rank_indices)
        starts_and_ends = itertools.pairwise(first_rows.tolist())
        for rank, (start_row, end_row) in zip(self.ranks, starts_and_ends, strict=True):
            yield rank, slice(start_row, end_row)

    def waited(self, operations: Int64 | slice, waiting: matching.Waiting) -> IntervalSet:
        """Return when some operations of one rank wait for other ranks.

        A wait begins with the operation, so an operation that does not wait has an empty time.
        """
        starts_ns = self.rows.start_ns[operations]
        ends_ns = self.rows.end_ns[operations]
        wait_ns = waiting.column("wait_ns", operations)
        wait_ends_ns = matching.waited_until(starts_ns, ends_ns, wait_ns)
        has_waited = wait_ends_ns > starts_ns
        return union(starts_ns[has_waited], wait_ends_ns[has_waited])

    @property
    def has_comm_between(self) -> bool:
        """Whether much communication runs between steps, so that steps show only a part of it."""
        for rank in self.ranks:
            for report_problem in rank.report.problems:
                if report_problem.code == "comm-between-steps":
                    return True
        return False

    @property
    def is_matched(self) -> Flags:
        """Of each operation, whether it is matched with operations of other ranks of the run."""
        if self.waiting is None:
            return np.zeros(len(self.rows), np.bool_)
        return self.waiting.is_matched

    @property
    def is_known(self) -> Flags:
        """Of each operation, whether its wait time is known.

        Its wait time is known if it is matched, and if the run has all ranks of its communicator.
        """
        has_all_ranks = self.has_all_ranks[self.rows.communicator]
        return self.is_matched & has_all_ranks


class _DevicePart(Struct, frozen=True):
    """What identifies one capture of a rank."""

    argument: int
    process_id: int
    device_id: int | None


def align_captures(
    ranks: Ranks, n_reports: int, log: NcclLog | None, *, has_all: bool, is_aligned: bool
) -> tuple[list[Rank[ProcessDigest]], list[ClockOffset]]:
    """Put the captures of all ranks on one clock.

    In each capture of the run, the clocks of the ranks are compared by the collectives of that
    capture. Returns the ranks with aligned captures, and for each report the clock offset that was
    applied. The offset of a rank's first report has the largest error of all captures of the rank.
    Its later reports have no offset.
    """
    parts_of_ranks = [rank.parts for rank in ranks]
    capture_of_report = capture_numbers(parts_of_ranks)
    all_parts = itertools.chain.from_iterable(parts_of_ranks)
    # For each capture of each rank, that capture with aligned times.
    aligned_parts: dict[_DevicePart, Rank[ProcessDigest]] = {}
    offset_of_report = [_NO_OFFSET] * n_reports
    for parts_of_capture in parts_by_capture(all_parts, capture_of_report):
        capture = relate_ranks(
            parts_of_capture,
            n_reports,
            log,
            has_all=has_all,
            is_one_run=True,
            is_aligned=is_aligned,
        )
        for part in capture.ranks:
            aligned_parts[_identity(part)] = part
            argument = part.argument
            if capture.offsets is not None:
                offset_of_report[argument] = capture.offsets[argument]
    aligned_ranks = []
    applied_offsets = [_NO_OFFSET] * n_reports
    for rank in ranks:
        aligned_parts_of_rank = [aligned_parts[_identity(part)] for part in rank.parts]
        aligned_ranks.append(_with_aligned_parts(rank, aligned_parts_of_rank))
        applied_offsets[rank.argument] = _offset_of_rank(rank, offset_of_report)
    return aligned_ranks, applied_offsets


def _identity(part: Rank[ProcessDigest]) -> _DevicePart:
    process = part.process
    return _DevicePart(part.argument, process.process_id, process.device_id)


def _offset_of_rank(
    rank: Rank[ProcessDigest], offset_of_report: Sequence[ClockOffset]
) -> ClockOffset:
    """Return the offset of a rank's first capture, with the largest error of all its captures.

    The error is None if the error of any capture is not known.
    """
    errors_ns = [offset_of_report[part.argument].error_ns for part in rank.parts]
    known_errors_ns = [error_ns for error_ns in errors_ns if error_ns is not None]
    are_all_known = len(known_errors_ns) == len(errors_ns)
    max_error_ns = max(known_errors_ns) if are_all_known else None
    return replace(offset_of_report[rank.argument], error_ns=max_error_ns)


def _with_aligned_parts(
    rank: Rank[ProcessDigest], parts: Sequence[Rank[ProcessDigest]]
) -> Rank[ProcessDigest]:
    """Return a rank whose captures are `parts`, with the numbers that the rank has already."""
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
    # of each rank: the error of its clock, and the part of the run that the clock belongs to.
    # Collectives compare the clocks of one part. Clocks of different parts were never compared.
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
    has_all_ranks: Flags


class _Matches(Struct, frozen=True):
    """Matched collectives.

    Each block is a matrix with a row for each collective. A row has the operations that are the
    collective, one of each rank.
    """

    blocks: list[Int64]
    # of each operation, whether all ranks of its collective end it together
    is_aligning: Flags

    def of_aligning(self) -> list[Int64]:
        """Return only collectives that all their ranks end together."""
        return _chosen_collectives(self.blocks, self.is_aligning)


def _chosen_collectives(blocks: Iterable[Int64], is_chosen: Flags) -> list[Int64]:
    """Return the blocks with only the collectives whose operations are chosen.

    `is_chosen` has a flag for each operation, which is the same for all operations of a collective.
    """
    chosen_blocks = []
    for block in blocks:
        first_operation_of_collective = block[:, 0]
        is_collective_chosen = is_chosen[first_operation_of_collective]
        chosen_blocks.append(block[is_collective_chosen])
    return chosen_blocks


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
    which steps of different ranks are the same step. If it is not known, nothing is matched.
    `applied_offsets` are the clock offsets of all reports if their times were corrected before.
    Else the clocks are compared here.

    If ranks of a communicator are missing, wait times in this communicator are not known, because a
    missing rank may have come last. If a communicator has no name, it should hold all ranks of the
    run. If that is in doubt, its operations are not matched.
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
    if _do_times_contradict(aligned):
        # An unnamed communicator holds several groups of ranks. So all is done again with this
        # doubt, and without matching its operations.
        aligned = _align(run, known_doubt=Doubt.TIMES)
    waiting = _measure_waiting(aligned) if aligned.is_comparable else None
    corrected_ranks = _with_corrected_shifts(ranks, aligned.clocks)
    problems = tuple(_problems(run, aligned, waiting))
    communicators = aligned.communicators
    offsets = aligned.clocks.offsets_if_comparable
    return CrossRank(
        ranks=corrected_ranks,
        offsets=offsets,
        rows=aligned.rows,
        sizes=communicators.sizes,
        waiting=waiting,
        problems=problems,
        has_all_ranks=communicators.has_all_ranks,
        doubt=aligned.doubt,
    )


class _UnalignedRun(Struct, frozen=True):
    """The arguments of `relate_ranks`."""

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
    """Find the communicator of each operation.

    NCCL's payload names it. Without payload, a communicator is one stream of a collective, and
    should hold all ranks. If that is in doubt, NCCL's log may name the communicators.
    """
    ranks = run.ranks
    steps_of_ranks = [rank.steps for rank in ranks]
    rows = comm_rows(ranks, steps_of_ranks)
    doubt = known_doubt or doubt_before_matching(rows, len(ranks))
    if doubt is None:
        return _Groups(rows, None, is_by_log=False)
    if run.log is not None and _share_clocks(ranks):
        pids = [rank.process.pid for rank in ranks]
        rows = named_by_log(rows, pids, run.log)
    # There is a doubt only without IDs from the payload. So these are from the log, and name all
    # communicators.
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
    """Measure how long the matched operations wait for each other."""
    rows = aligned.rows
    clocks = aligned.clocks
    return matching.measure_waiting(
        aligned.matches.blocks,
        rows.start_ns,
        rows.end_ns,
        rows.rank,
        error_ns_of_clock=clocks.errors_ns,
        part_of_clock=clocks.parts,
    )


def _with_corrected_shifts(ranks: Ranks, clocks: _Clocks) -> tuple[Rank[ProcessDigest], ...]:
    """Return the ranks with their shifts corrected by what remains of the clock offsets."""
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

    NCCL's payload gives the size. If no rank of the job is missing (`has_all`), a communicator
    without payload has as many ranks as use it. `has_doubt` says that communicators without a name
    may hold several groups of ranks. Then their size is not known.
    """
    n_ranks = len(ranks)
    recorded_sizes = _recorded_sizes(ranks)
    # 0 stands for a size that is not known.
    sizes_or_zero = [recorded_sizes.get(name, 0) for name in rows.communicators]
    recorded_size = np.array(sizes_or_zero, np.int64)
    n_users = rows.n_users(n_ranks)
    is_recorded = recorded_size != 0
    size_without_payload = n_users if has_all else np.zeros_like(n_users)
    known_size = np.where(is_recorded, recorded_size, size_without_payload)
    is_in_doubt = has_doubt & ~rows.is_named
    sizes = np.where(is_in_doubt, 0, known_size)
    is_size_known = sizes > 0
    are_all_ranks_here = is_size_known & (n_users >= sizes)
    return _Communicators(sizes, n_users, has_all_ranks=has_all | are_all_ranks_here)


def _recorded_sizes(ranks: Ranks) -> dict[str, int]:
    """Return the number of ranks of each communicator that NCCL's payload describes, by name."""
    sizes = {}
    for rank in ranks:
        for comm_id, n_ranks in rank.report.comm_sizes.items():
            sizes[communicator_name(comm_id)] = n_ranks
    return sizes


def _match(rows: CommRows, n_ranks: int, *, has_doubt: bool, is_aligned: bool) -> _Matches:
    """Find which operations of different ranks are one collective.

    `has_doubt` says that communicators without a name may hold several groups of ranks. Then their
    operations are not matched. Nothing is matched if it is not known which steps of different ranks
    are the same step (not `is_aligned`).
    """
    group_of_operation, n_required_of_group = rows.groups(n_ranks)
    if has_doubt:
        has_name = rows.is_named[rows.communicator]
        group_of_operation[~has_name] = matching.UNGROUPED
    blocks: list[Int64] = []
    if is_aligned:
        blocks = matching.match_collectives(group_of_operation, rows.rank, n_required_of_group)
    is_collective_aligning = np.array([name in ALIGNING for name in COLLECTIVES])
    return _Matches(blocks, is_collective_aligning[rows.collective])


def _find_clocks(run: _UnalignedRun, rows: CommRows, matches: _Matches) -> _Clocks:
    """Compare the clocks of reports by collectives that end at one time on all their ranks.

    If clock offsets were applied to the times before, these offsets are returned, and nothing of
    them remains to be subtracted.
    """
    ranks = run.ranks
    report_of_rank = [rank.argument for rank in ranks]
    if run.applied_offsets is None:
        report_of_operation = np.array(report_of_rank, np.int64)[rows.rank]
        offsets = clock_offsets(
            matches.of_aligning(),
            rows.end_ns,
            report_of_operation,
            run.n_reports,
            is_one_clock=_are_in_one_report(ranks),
        )
        remaining_ns = [offset.offset_ns for offset in offsets]
    else:
        offsets = list(run.applied_offsets)
        remaining_ns = [0] * run.n_reports
    offset_of_rank = [offsets[report] for report in report_of_rank]
    errors_ns = np.array([_error_ns(offset) for offset in offset_of_rank], np.int64)
    parts = np.array([offset.part for offset in offset_of_rank], np.int64)
    are_all_known = bool((errors_ns != _UNKNOWN_ERROR_NS).all())
    # The error between clocks of two parts is not known, because they were never compared.
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
    """Return the rows with the remaining clock offset of their rank subtracted from their times."""
    remaining_ns = [clocks.remaining_ns[rank.argument] for rank in ranks]
    offset_of_rank_ns = np.array(remaining_ns, np.int64)
    # The rank of a row is an index into `ranks`.
    offset_of_operation_ns = offset_of_rank_ns[rows.rank]
    start_ns = rows.start_ns - offset_of_operation_ns
    end_ns = rows.end_ns - offset_of_operation_ns
    return replace(rows, start_ns=start_ns, end_ns=end_ns)


def _are_in_one_report(ranks: Ranks) -> bool:
    arguments = {rank.argument for rank in ranks}
    return len(arguments) == 1


def _share_clocks(ranks: Ranks) -> bool:
    """Tell whether the ranks' times can be compared before any collective is matched."""
    return _are_in_one_report(ranks) or _have_session_starts(ranks)


def _have_session_starts(ranks: Ranks) -> bool:
    return all(rank.report.facts.session_start_utc_ns is not None for rank in ranks)


def _do_times_contradict(aligned: _AlignedRun) -> bool:
    """Tell whether aligned times contradict that a communicator without a name holds all ranks.

    Only collectives in which ranks wait for each other can show it. False if times cannot be
    compared, if communicators have names, or if they are in doubt already.
    """
    rows = aligned.rows
    is_doubt_known = aligned.doubt is not None
    if not aligned.is_comparable or is_doubt_known or rows.has_ids:
        return False
    is_collective_synchronizing = np.array([name in _SYNCHRONIZING for name in COLLECTIVES])
    is_synchronizing = is_collective_synchronizing[rows.collective]
    # A block has a row for each collective and a column for each of its ranks. Few ranks can hardly
    # hold several groups.
    large_blocks = [block for block in aligned.matches.blocks if block.shape[1] >= MIN_RANKS]
    blocks = _chosen_collectives(large_blocks, is_synchronizing)
    for communicator in range(len(rows.communicators)):
        is_in_communicator = rows.communicator == communicator
        blocks_of_communicator = _chosen_collectives(blocks, is_in_communicator)
        if do_times_refute_one_group(blocks_of_communicator, rows.start_ns, rows.end_ns):
            return True
    return False


def _problems(
    run: _UnalignedRun, aligned: _AlignedRun, waiting: matching.Waiting | None
) -> Iterator[Problem]:
    """Yield the problems of comparing the ranks of a run.

    One rank has none, and ranks without communication have none. `waiting` is None if times of
    ranks cannot be compared.
    """
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
    # A doubt is a problem already, and leaves operations unmatched.
    if waiting is not None and aligned.doubt is None:
        yield from _problems_of_lost(aligned, waiting, n_ranks=n_ranks, is_one_run=run.is_one_run)
        yield from _problems_of_early_ends(aligned, waiting)


def _problems_of_groups_and_clocks(aligned: _AlignedRun, *, has_log: bool) -> Iterator[Problem]:
    """Yield that process groups have no names or only those of the log, and what clocks lack."""
    doubt = aligned.doubt
    clocks = aligned.clocks
    if doubt is not None:
        yield problem_of_groups(aligned.rows, doubt, has_log=has_log)
    elif aligned.is_by_log:
        yield problem("groups-by-log")
    # Unmatched collectives cannot compare clocks. So with a doubt, the error of the clocks is
    # unknown for that reason, which is a problem already.
    is_error_unexplained = not clocks.has_all_errors and doubt is None
    if not clocks.is_common:
        yield problem("no-common-clock")
    elif is_error_unexplained:
        yield problem("clock-error-unknown")


def problem_of_groups(rows: CommRows, doubt: Doubt, *, has_log: bool) -> Problem:
    """Return the problem that process groups have no names.

    The fix ends with asking for NCCL's log. If the log was passed (`has_log`), this end is left
    out.
    """
    which = "some collectives" if rows.is_named.any() else "collectives"
    not_named = problem("groups-not-named", which=which, reason=doubt.value)
    if not has_log:
        return not_named
    fix = not_named.fix or ""
    return replace(not_named, fix=fix.removesuffix(OR_LOG))


def _problems_of_lost(
    aligned: _AlignedRun, waiting: matching.Waiting, *, n_ranks: int, is_one_run: bool
) -> Iterator[Problem]:
    """Yield the problem that some operations are not matched, with the number of these operations.

    An operation counts if it should have counterparts on other ranks. It should if the run has all
    ranks of its communicator, or at least two of them.
    """
    rows = aligned.rows
    communicators = aligned.communicators
    has_several_users = communicators.n_users > 1
    is_communicator_shared = communicators.has_all_ranks | has_several_users
    should_be_matched = rows.in_step & is_communicator_shared[rows.communicator]
    is_lost = should_be_matched & ~waiting.is_matched
    n_lost = int(np.count_nonzero(is_lost))
    if not n_lost:
        return
    # Reports of different runs have no matches. But a rank without recorded communication prevents
    # all matches too, even in one run.
    ranks_with_comm = np.unique(rows.rank[rows.in_step])
    have_all_comm = ranks_with_comm.size == n_ranks
    is_nothing_matched = not aligned.matches.blocks
    may_be_different_runs = have_all_comm and is_nothing_matched and not is_one_run
    code = "different-runs" if may_be_different_runs else "unmatched-collectives"
    n_in_steps = int(np.count_nonzero(rows.in_step))
    yield problem(code, n=n_lost, total=n_in_steps)


def _problems_of_early_ends(aligned: _AlignedRun, waiting: matching.Waiting) -> Iterator[Problem]:
    """Yield the problem that some operations end before the last rank arrives.

    The problem has the number of these operations. If NCCL names the communicators, the operations
    are matched right, and only clocks can be wrong. Else they may be matched wrong.
    """
    rows = aligned.rows
    ends_before_last_starts = rows.end_ns < waiting.column("last_start_ns")
    # A send, or the root of a broadcast, may end before its receiver arrives, because NCCL buffers
    # what it sends. So only collectives that all ranks end together show a wrong clock.
    is_aligning = waiting.is_matched & aligned.matches.is_aligning
    n_early = int(np.count_nonzero(is_aligning & ends_before_last_starts))
    if n_early:
        are_matches_sure = rows.has_ids
        code = "clocks-put-last-behind-end" if are_matches_sure else "ended-before-last-arrived"
        yield problem(code, n=n_early)
