"""The problems of one run: what its reports lack, and what that makes unknown."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from nsyspipe.analysis.intervals import run_starts
from nsyspipe.analysis.steps import FEW_STEPS, Selection
from nsyspipe.analysis.summary import step_times
from nsyspipe.model import schema
from nsyspipe.model.problems import SEVERITIES, SIZE_GAPS, Problem, problem
from nsyspipe.model.table import Int64
from nsyspipe.model.typed_tables import (
    StepsTable,
)
from nsyspipe.run import collectives as comm
from nsyspipe.run.digests import Ranks, ReportDigest
from nsyspipe.run.numbered_run import NumberedRun
from nsyspipe.run.ranks import recorded_world_size
from nsyspipe.run.sidecars import RunSidecars
from nsyspipe.run.unrecorded import MissingRanks, problems_of

# Process and device to rank number, of one report.
_RankNumbers: TypeAlias = dict[tuple[int | None, int | None], int]

MAX_LISTED_NUMBERS = 8
# Only so many ranks without kernels are named by their number.
MAX_NAMED_MISSING_RANKS = 1000
_PLURALS = {"rank": "ranks", "process": "processes"}
# If the slowest rank differs from step to step, the largest step times sum to more than those of
# any rank. A larger share than this is worth a note, or a warning.
MIN_CHANGING_SHARE_FOR_NOTE = 0.01
MIN_CHANGING_SHARE_FOR_WARNING = 0.05


class SelectedSteps(Struct, frozen=True):
    """The steps of a run, and which of them count."""

    # `schema.STEPS`
    table: pa.Table
    selection: Selection
    # The capture of the run that each step belongs to.
    capture: Int64
    # Whether communication that was not recorded may have run in summary steps.
    may_hide_comm: bool


def problems_of_run(
    run: NumberedRun, cross_rank: comm.CrossRank, steps: SelectedSteps
) -> tuple[Problem, ...]:
    """Return all problems of a run, in order of their stage."""
    ranks = cross_rank.ranks
    gathered = run.gathered
    problems = [*_problems_of_reports(run, ranks, may_hide_comm=steps.may_hide_comm)]
    # Hosts that nothing numbers need not be ranks, so their order is no problem.
    are_unnumbered_hosts = bool(run.hosts) and not run.is_numbered
    if not are_unnumbered_hosts:
        problems += run.numbering.problems
    problems += cross_rank.problems
    problems += _problems_of_captures(ranks)
    problems += _problems_of_ranks(run, ranks)
    problems += _problems_of_unrecorded_processes(run)
    problems += _problems_of_world_size(run)
    problems += gathered.sidecars.problems
    problems += _problems_of_message_sizes(cross_rank, gathered.digests)
    problems += _problems_of_steps(ranks, steps, gathered.why_no_steps)
    problems += _problems_of_allocs(ranks, steps.table)
    return tuple(problems)


def lacks_communication(ranks: Ranks, n_job_ranks: int | None) -> bool:
    """Tell whether a job of several ranks has no communication kernel that nsyspipe knows."""
    has_several_ranks = max(len(ranks), n_job_ranks or 0) > 1
    # Without the names of kernels, it is not known how many communicate.
    are_all_without = all(rank.process.n_comm == 0 for rank in ranks)
    return bool(ranks) and has_several_ranks and are_all_without


def _problems_of_reports(
    run: NumberedRun, ranks: Ranks, *, may_hide_comm: bool
) -> Iterator[Problem]:
    """Yield the problems of each report, with its name and, if known, the rank.

    A report without GPU activity has one problem: that it was captured without a GPU, or else that
    it has no GPU activity. The latter is an error if no report has any.
    """
    digests = run.gathered.digests
    numbers = _numbers_by_report(ranks)
    for argument, digest in enumerate(digests):
        name = run.report_names[argument]
        if not ranks and run.gathered.sidecars.is_without_gpu(argument):
            yield problem("captured-without-gpu")
        elif not digest.processes:
            severity = None if ranks else "error"
            yield problem("no-gpu-activity", severity=severity).at(report=name)
        else:
            rank_numbers = numbers.get(argument, {})
            yield from _problems_of_report(digest, name, rank_numbers, may_hide_comm=may_hide_comm)
            if digest.facts.session_start_utc_ns is None and len(digests) > 1:
                yield problem("no-session-start").at(report=name)


def _numbers_by_report(ranks: Ranks) -> dict[int, _RankNumbers]:
    """Return the numbers of the ranks of each report, by its argument.

    In a report, a rank has its process ID and its device as the key.
    """
    numbers: dict[int, _RankNumbers] = {}
    for rank in ranks:
        for part in rank.parts:
            key = part.process.process_id, part.process.device_id
            numbers.setdefault(part.argument, {})[key] = rank.number
    return numbers


def _problems_of_report(
    digest: ReportDigest, name: str, rank_numbers: _RankNumbers, *, may_hide_comm: bool
) -> Iterator[Problem]:
    """Yield the problems of one report with the report's name and the rank.

    `rank_numbers` has the number of each rank of the report, by process and device. A problem of
    the whole report has a rank only if the report has one rank. `may_hide_comm` says that CUDA
    graphs may hide communication of the run.
    """
    has_one_rank = len(rank_numbers) == 1
    only_rank = next(iter(rank_numbers.values())) if has_one_rank else None
    for report_problem in digest.problems:
        key = report_problem.process_id, report_problem.device_id
        rank_number = rank_numbers.get(key, only_rank)
        yield report_problem.at(report=name, rank=rank_number)
    if digest.n_graphs:
        code = "comm-in-graphs" if may_hide_comm else "graphs-as-a-whole"
        yield problem(code, n=digest.n_graphs).at(report=name, rank=only_rank)


def _problems_of_captures(ranks: Ranks) -> Iterator[Problem]:
    """Yield how many ranks were captured several times, and how often: ``2`` or ``2 to 3``."""
    n_captures_of_ranks = [len(rank.captures) for rank in ranks if rank.captures]
    if n_captures_of_ranks:
        fewest = min(n_captures_of_ranks)
        most = max(n_captures_of_ranks)
        times = str(most) if fewest == most else f"{fewest} to {most}"
        yield problem("captured-several-times", n=len(n_captures_of_ranks), times=times)


def _problems_of_ranks(run: NumberedRun, ranks: Ranks) -> Iterator[Problem]:
    """Yield ranks without a GPU model, a run without communication, and missing ranks of the job.

    The world size shows which ranks are missing. Without a world size, NCCL may show how many ranks
    are missing.
    """
    numbering = run.numbering
    job = run.job
    for rank in ranks:
        process = rank.process
        gpu_name = rank.report.facts.gpu_name(process.pid, process.device_id)
        if gpu_name is None:
            yield problem("no-gpu-name", rank=rank.number)
    has_graphs = any(rank.report.n_graphs for rank in ranks)
    if lacks_communication(ranks, job.n_ranks) and not has_graphs:
        yield problem("no-comm-kernels", n=len(ranks))
    if job.world_size is not None:
        yield from _problems_of_absent_ranks(run, ranks, job.world_size)
    elif numbering.has_shared_processes and job.n_ranks is not None and job.n_ranks > len(ranks):
        n_missing = job.n_ranks - len(ranks)
        yield problem(
            "ranks-missing",
            n=n_missing,
            world_size=job.n_ranks,
            noun="ranks",
            missing="according to NCCL's communicator",
        )


class _AbsentRanks(Struct, frozen=True):
    """The ranks of a job, or its processes, that a run does not have, by number."""

    # In reports that are not read.
    unread: list[int]
    # Left out of the capture on purpose.
    not_captured: list[int]
    # All that are in the run, or in one of the lists above. All others of the job are missing.
    accounted: frozenset[int]
    n_missing: int


def _problems_of_absent_ranks(run: NumberedRun, ranks: Ranks, world_size: int) -> Iterator[Problem]:
    """Yield which ranks of the job are not in the run, and why.

    If some process has several ranks, these are numbers of processes instead.
    """
    if not ranks:
        return
    noun = "process" if run.numbering.has_shared_processes else "rank"
    sidecars = run.gathered.sidecars
    present = {rank.process_number for rank in ranks}
    absent = _find_absent_ranks(present, world_size, sidecars, run.ranks_of_all_reports)
    words: dict[str, Any] = {"world_size": world_size, "noun": _PLURALS[noun]}
    n_unread = len(absent.unread)
    if n_unread:
        listed = _name_numbers(absent.unread, n_unread, noun)
        yield problem("ranks-not-read", n=n_unread, missing=listed, **words)
    if absent.n_missing:
        missing = (number for number in range(world_size) if number not in absent.accounted)
        listed = _name_numbers(missing, absent.n_missing, noun)
        listed += _name_unread_files(sidecars, absent.accounted)
        yield problem("ranks-missing", n=absent.n_missing, missing=listed, **words)
    n_not_captured = len(absent.not_captured)
    if n_not_captured:
        listed = _name_numbers(absent.not_captured, n_not_captured, noun)
        yield problem("ranks-not-captured", n=n_not_captured, missing=listed, **words)


def _find_absent_ranks(
    present: set[int],
    world_size: int,
    sidecars: RunSidecars,
    ranks_of_all_reports: frozenset[int],
) -> _AbsentRanks:
    """Find the ranks of the job that are not in the run, and why. `present` are those in the run.

    If the sidecar has neither a report nor a problem of a rank, the rank was left out of the
    capture on purpose.
    """
    with_report = present | ranks_of_all_reports
    left_out = {
        entry.rank for entry in sidecars.ranks if entry.report is None and entry.problem is None
    }
    not_captured = sorted(rank for rank in left_out - with_report if rank < world_size)
    accounted = with_report.union(not_captured)
    n_accounted_in_job = sum(rank < world_size for rank in accounted)
    return _AbsentRanks(
        unread=sorted(ranks_of_all_reports - present),
        not_captured=not_captured,
        accounted=frozenset(accounted),
        n_missing=world_size - n_accounted_in_job,
    )


def _name_unread_files(sidecars: RunSidecars, accounted: frozenset[int]) -> str:
    """Return the names of reports that sidecars have for missing ranks, as the end of a sentence.

    Empty if sidecars have none.
    """
    missing_entries = [entry for entry in sidecars.ranks if entry.rank not in accounted]
    reports = {entry.report for entry in missing_entries if entry.report}
    if not reports:
        return ""
    listed = sorted(reports)[:MAX_LISTED_NUMBERS]
    return f", captured as {', '.join(listed)}"


def _problems_of_unrecorded_processes(run: NumberedRun) -> Iterator[Problem]:
    """Yield the processes without kernels of each report, and the ranks that they may be."""
    if not run.ranks:
        return
    missing_ranks = MissingRanks(run.job.world_size, _first_missing_numbers(run))
    for digest, name in zip(run.gathered.digests, run.report_names, strict=True):
        for process_problem in problems_of(digest.unrecorded, missing_ranks):
            yield process_problem.at(report=name)


def _first_missing_numbers(run: NumberedRun) -> list[int] | None:
    """Return the first numbers of the job that no process of the run has, None if not known.

    Not all are returned, because a hostile report may have a huge world size.
    """
    world_size = run.job.world_size
    if world_size is None or not run.is_numbered:
        return None
    present = set(run.numbering.process_numbers)
    missing = (number for number in range(world_size) if number not in present)
    return list(itertools.islice(missing, MAX_NAMED_MISSING_RANKS))


def _problems_of_world_size(run: NumberedRun) -> Iterator[Problem]:
    """Yield the problem that the run has more processes than the recorded world size."""
    recorded_size = recorded_world_size(run.gathered.digests, run.gathered.sidecars)
    n_processes = run.numbering.n_processes
    if recorded_size is not None and n_processes > recorded_size:
        yield problem("more-ranks-than-world", n=n_processes, world_size=recorded_size)


def _problems_of_message_sizes(
    cross_rank: comm.CrossRank, digests: Sequence[ReportDigest]
) -> Iterator[Problem]:
    """Yield that operations in steps have no message size, and why if none has one."""
    is_single_rank = len(cross_rank.ranks) <= 1
    if is_single_rank:
        # A single rank sends nothing.
        return
    in_steps = np.flatnonzero(cross_rank.rows.in_step)
    n_operations = in_steps.size
    message_bytes = comm.message_sizes(cross_rank, in_steps).message_bytes
    is_absent = message_bytes == comm.ABSENT
    n_absent = int(np.count_nonzero(is_absent))
    if not n_absent:
        return
    if n_absent < n_operations:
        yield problem("few-message-sizes", n=n_absent, total=n_operations)
        return
    gaps_of_reports = {digest.size_gap for digest in digests}
    # `SIZE_GAPS` has the most important gap first.
    gap = next((gap for gap in SIZE_GAPS if gap in gaps_of_reports), None)
    if gap is None:
        # NCCL reports sizes, but none of them belongs to a kernel.
        why = "no NCCL payload matches a communication kernel"
        how = "capture whole steps on every rank, with CUDA API calls (--trace=cuda,nvtx)"
    else:
        why, how = SIZE_GAPS[gap]
    yield problem("no-message-size", why=why, how=how)


def _problems_of_steps(
    ranks: Ranks, steps: SelectedSteps, why_no_steps: str | None
) -> Iterator[Problem]:
    """Yield that there are no steps, or what is doubtful about the steps and their selection."""
    if not ranks:
        return
    if why_no_steps is not None:
        yield problem("no-steps", why=why_no_steps)
        return
    rank_numbers = [rank.number for rank in ranks]
    for ranks_without, step_numbers in _find_missing_steps(steps.table, rank_numbers).items():
        listed_steps = _list_numbers(step_numbers, len(step_numbers))
        listed_ranks = _list_numbers(ranks_without, len(ranks_without))
        yield problem("step-missing", step=listed_steps, missing=listed_ranks)
    yield from _problems_of_selection(steps, n_ranks=len(ranks))
    yield from _problems_of_slowest_rank(steps.table)


def _problems_of_selection(steps: SelectedSteps, n_ranks: int) -> Iterator[Problem]:
    """Yield why summary steps are few, or are not what a reader expects.

    Only the most severe of these cases is a problem.
    """
    n_steps = steps.selection.steps.size
    if not n_steps:
        yield problem("no-common-step")
    elif steps.selection.is_fallback:
        yield problem("no-complete-step")
        if n_steps == 1:
            yield problem("few-steps", n=1)
    elif n_ranks > 1 and _counts_start_of_capture(steps):
        yield problem("capture-start-in-figures")
    elif n_steps < FEW_STEPS:
        yield problem("few-steps", n=n_steps)


def _problems_of_allocs(ranks: Ranks, steps: StepsTable) -> Iterator[Problem]:
    """Yield the problem that summary steps allocate memory whose size is not known.

    The problem has the number of these steps. There is none if each report has memory events.
    """
    have_all_sizes = all(part.report.has_memory_sizes for rank in ranks for part in rank.parts)
    if have_all_sizes:
        return
    n_calls = pc.add(steps["n_allocs"], steps["n_frees"])
    has_calls = pc.greater(n_calls, 0)
    is_in_summary = steps["in_summary"]
    n_steps = pc.sum(has_calls.filter(is_in_summary)).as_py()
    if n_steps:
        n_all_steps = pc.sum(is_in_summary).as_py()
        yield problem("alloc-sizes-unrecorded", n=n_steps, total=n_all_steps)


def _problems_of_slowest_rank(steps: StepsTable) -> Iterator[Problem]:
    """Yield the problem that the slowest rank changes from step to step.

    Then the times of the slowest rank of each step have a larger sum than the steps of any single
    rank. The problem has the share by which that sum is larger.
    """
    needed_columns = steps.select(["rank", "step", "start_ns", "wall_ns"])
    summary_steps = needed_columns.filter(steps["in_summary"])
    by_rank = summary_steps.group_by("rank", use_threads=False)
    sums_of_ranks = by_rank.aggregate([("wall_ns", "sum")])["wall_ns_sum"]
    largest_sum_of_rank_ns = pc.max(sums_of_ranks).as_py()
    if not largest_sum_of_rank_ns:
        # There are no summary steps.
        return
    sum_of_slowest_ns = int(step_times(summary_steps).sum())
    changing_share = sum_of_slowest_ns / largest_sum_of_rank_ns - 1
    if changing_share > MIN_CHANGING_SHARE_FOR_NOTE:
        severity = "warning" if changing_share > MIN_CHANGING_SHARE_FOR_WARNING else None
        percent = f"{100 * changing_share:.1f}"
        yield problem("slowest-rank-changes", severity=severity, percent=percent)


def _counts_start_of_capture(steps: SelectedSteps) -> bool:
    """Tell whether the first step of a capture is a summary step."""
    start_ns = steps.table["start_ns"].to_numpy()
    in_summary = steps.table["in_summary"].to_numpy()
    # By capture, then by time, so that the first row of each capture is its first step.
    order = np.lexsort((start_ns, steps.capture))
    capture_of_ordered = steps.capture[order]
    first_steps = order[run_starts(capture_of_ordered)]
    return bool(in_summary[first_steps].any())


def _find_missing_steps(
    steps: StepsTable, ranks: Sequence[int]
) -> dict[tuple[int, ...], list[int]]:
    """Return the numbers of steps that some ranks do not have. The keys are these ranks."""
    rank = steps["rank"].to_numpy()
    step = steps["step"].to_numpy()
    step_numbers, n_ranks_of_step = np.unique(step, return_counts=True)
    incomplete_steps = step_numbers[n_ranks_of_step < len(ranks)]
    steps_by_ranks: dict[tuple[int, ...], list[int]] = {}
    for number in incomplete_steps.tolist():
        ranks_with_step = rank[step == number]
        ranks_without = tuple(np.setdiff1d(ranks, ranks_with_step).tolist())
        steps_by_ranks.setdefault(ranks_without, []).append(number)
    return steps_by_ranks


def _name_numbers(numbers: Iterable[int], n_numbers: int, noun: str) -> str:
    """List numbers with their noun: ``ranks 0, 1``."""
    noun_of_number = _PLURALS[noun] if n_numbers > 1 else noun
    return f"{noun_of_number} {_list_numbers(numbers, n_numbers)}"


def _list_numbers(numbers: Iterable[int], n_numbers: int) -> str:
    """List the first of some ascending numbers, and say how many more there are.

    The numbers that are not listed are never made, because a world size may be any number.
    """
    first_numbers = itertools.islice(numbers, MAX_LISTED_NUMBERS)
    listed = ", ".join(map(str, first_numbers))
    n_more = n_numbers - MAX_LISTED_NUMBERS
    return f"{listed} and {n_more} more" if n_more > 0 else listed


def problems_table(problems: Iterable[Problem]) -> pa.Table:
    """Return `schema.PROBLEMS`, the most severe first, each problem once."""
    most_severe_first = sorted(set(problems), key=_severity_order)
    return schema.PROBLEMS.from_rows([run_problem.row for run_problem in most_severe_first])


def _severity_order(run_problem: Problem) -> tuple[object, ...]:
    """Return the key by which problems are sorted. A problem without a rank comes first."""
    severity = SEVERITIES.index(run_problem.severity)
    rank = -1 if run_problem.rank is None else run_problem.rank
    report = run_problem.report or ""
    return severity, run_problem.code, rank, report, run_problem.message
