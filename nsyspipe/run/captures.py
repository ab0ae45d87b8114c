"""Several captures of the same processes, as nsys makes them with --capture-range-end=repeat.

Each process is one rank. Reports are captures of one process by host, process ID and times that do
not overlap. What a rank did in its captures is put side by side, on the clock of its first one.
What lies between two captures is in no step.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from nsyspipe.analysis.collectives import NO_MEMBER, CommOperations
from nsyspipe.analysis.host_lines import HostLines, HostLinesPart, join_host_lines
from nsyspipe.analysis.intervals import NarrowIntervals, union
from nsyspipe.analysis.kernels import WindowSums
from nsyspipe.analysis.phases import PhaseRanges, Stretches
from nsyspipe.analysis.python_lock import join_lock_waits
from nsyspipe.analysis.steps import Candidate
from nsyspipe.model.table import Int64
from nsyspipe.model.typed_tables import (
    KernelsTable,
)
from nsyspipe.reader.facts import LAUNCHER_SIZES
from nsyspipe.run.digests import P, Rank, ReportDigest
from nsyspipe.run.process import HostDigest, ProcessDigest

# Captures that are farther apart need more than their names to be of one process.
MAX_GAP_OF_CAPTURES_NS = 60 * 10**9
# Reports of one nsys differ by some ns in when it was started.
MAX_NSYS_START_ROUNDING_NS = 1_000
_TIMES = ("start_ns", "end_ns")
_TIMES_OF_MEMBERS = (*_TIMES, "device_start_ns", "device_end_ns")
_Ranks: TypeAlias = Sequence[Rank[ProcessDigest]]
_TimesByCall: TypeAlias = Mapping[str, Int64]


class _Part(NamedTuple):
    """The process in one capture, and its place behind the captures before."""

    process: ProcessDigest
    # Added to its times to get times on the clock of the first capture.
    clock_shift_ns: int
    # Number of members in the captures before.
    n_members_before: int


_Parts: TypeAlias = Sequence[_Part]


class _Span(NamedTuple):
    """The time of a report, aligned time."""

    first_ns: int
    last_ns: int


def captures_of_processes(parts: _Ranks, *, is_one_job: bool) -> list[list[Rank[ProcessDigest]]]:
    """Group the ranks of reports by the process that they are captures of.

    Each group is in order of time, and groups are in order of argument. `is_one_job` says that the
    reports themselves show that they are of one job.
    """
    indices_by_number: dict[_ProcessNumber, list[int]] = {}
    groups: list[list[int]] = []
    for index, part in enumerate(parts):
        if _has_host_and_time(part.report):
            indices = indices_by_number.setdefault(_process_number(part), [])
            indices.append(index)
        else:
            # Nothing shows which other captures are of the same process.
            groups.append([index])
    for indices in indices_by_number.values():
        groups += _split_by_process(parts, indices, is_one_job=is_one_job)
    groups_by_argument = sorted(groups, key=min)
    return [_chosen(parts, group) for group in groups_by_argument]


def _chosen(parts: _Ranks, indices: Iterable[int]) -> list[Rank[ProcessDigest]]:
    """Return the parts at some indices."""
    return [parts[index] for index in indices]


def _has_host_and_time(report: ReportDigest) -> bool:
    """Tell whether a report names its host and the time at which its session started."""
    facts = report.facts
    return facts.host is not None and facts.session_start_utc_ns is not None


def _split_by_process(
    parts: _Ranks, indices: Sequence[int], *, is_one_job: bool
) -> list[list[int]]:
    """Split parts with the same process number into processes.

    Several processes may have had that number, one after the other. `indices` are the indices of
    the parts with the number. Returns a list for each process: the indices of its captures, in
    order of time.
    """
    groups: list[list[int]] = []
    indices_by_time = sorted(indices, key=lambda index: parts[index].span)
    for index in indices_by_time:
        group_of_process = _find_group_of_process(parts, groups, index, is_one_job=is_one_job)
        if group_of_process is None:
            groups.append([index])
        else:
            group_of_process.append(index)
    return groups


def _find_group_of_process(
    parts: _Ranks, groups: Iterable[list[int]], index: int, *, is_one_job: bool
) -> list[int] | None:
    """Return the group with the captures of the process of the part at `index`.

    The part is the next capture of the process if it follows the last capture of the group. None if
    it follows no group.
    """
    for group in groups:
        last_capture = parts[group[-1]]
        if _is_next_capture(last_capture, parts[index], is_one_job=is_one_job):
            return group
    return None


def _is_next_capture(
    before: Rank[ProcessDigest], after: Rank[ProcessDigest], *, is_one_job: bool
) -> bool:
    """Tell whether `after` is a later capture of the process of `before`.

    Both have the same process number on the same host. That does not prove it, because containers
    on a host may give their processes the same numbers. So one more sign is needed: one job, one
    start of nsys, or step numbers that go on. Reports with one name, apart from its number, are a
    sign too if they are near in time or have the same RANK.
    """
    gap_ns = _gap_ns(before, after)
    do_overlap = gap_ns < 0
    are_in_one_report = before.argument == after.argument
    if do_overlap or are_in_one_report or _is_other_process(before, after):
        return False
    # One nsys starts its program once.
    if is_one_job or _are_by_one_nsys(before, after):
        return True
    if _do_step_numbers_go_on(before, after):
        return True
    have_one_name = _name_without_number(before.report) == _name_without_number(after.report)
    is_near = gap_ns <= MAX_GAP_OF_CAPTURES_NS
    return have_one_name and (is_near or _have_one_rank(before, after))


def _gap_ns(before: Rank[ProcessDigest], after: Rank[ProcessDigest]) -> int:
    """Return the time between two captures, which is negative if they overlap."""
    _, last_ns_before = before.span
    first_ns_after, _ = after.span
    return first_ns_after - last_ns_before


def _is_other_process(before: Rank[ProcessDigest], after: Rank[ProcessDigest]) -> bool:
    """Tell whether the rank or the communicators show that two reports are of two processes."""
    return _has_other_rank(before, after) or _has_other_communicators(before, after)


def _are_by_one_nsys(before: Rank[ProcessDigest], after: Rank[ProcessDigest]) -> bool:
    """Tell whether one start of nsys made both reports. False if the start was not recorded."""
    nsys_start_before_ns = before.report.facts.nsys_start_utc_ns
    nsys_start_after_ns = after.report.facts.nsys_start_utc_ns
    if nsys_start_before_ns is None or nsys_start_after_ns is None:
        return False
    difference_ns = abs(nsys_start_before_ns - nsys_start_after_ns)
    return difference_ns <= MAX_NSYS_START_ROUNDING_NS


def share_one_process_number(before: Rank[ProcessDigest], after: Rank[ProcessDigest]) -> bool:
    """Tell whether two ranks have one process number on one host, and run soon after each other.

    Such ranks are probably captures of one process, but nothing that was recorded shows it. If they
    were analyzed as two ranks of a run, every metric across ranks would be wrong.
    """
    if _process_number(before) != _process_number(after):
        return False
    if before.argument == after.argument:
        return False
    if not (_has_host_and_time(before.report) and _has_host_and_time(after.report)):
        return False
    if _is_other_process(before, after):
        return False
    gap_ns = _gap_ns(before, after)
    do_overlap = gap_ns < 0
    return not do_overlap and gap_ns <= MAX_GAP_OF_CAPTURES_NS


class _ProcessNumber(NamedTuple):
    """The number of a process on its host, and its device."""

    host: str | None
    pid: int
    device_id: int | None


def _process_number(part: Rank[ProcessDigest]) -> _ProcessNumber:
    process = part.process
    host = part.report.facts.host
    return _ProcessNumber(host, process.pid, process.device_id)


def _have_one_rank(before: Rank[ProcessDigest], after: Rank[ProcessDigest]) -> bool:
    """Tell whether both reports captured the same RANK."""
    rank_before = before.report.facts.number("RANK")
    rank_after = after.report.facts.number("RANK")
    return rank_before is not None and rank_before == rank_after


def _name_without_number(report: ReportDigest) -> str:
    """Return a report's name without its last number, which counts the captures of nsys."""
    return re.sub(r"\d+(\D*)$", r"#\1", report.file.source.stem)


def _has_other_rank(before: Rank[ProcessDigest], after: Rank[ProcessDigest]) -> bool:
    """Tell whether a launcher gave two processes, each alone in its report, different ranks."""
    if not (before.is_alone and after.is_alone):
        return False
    facts_before = before.report.facts
    facts_after = after.report.facts
    for name in ("RANK", *LAUNCHER_SIZES):
        first = facts_before.number(name)
        second = facts_after.number(name)
        are_known = first is not None and second is not None
        if are_known and first != second:
            return True
    return False


def _do_step_numbers_go_on(before: Rank[ProcessDigest], after: Rank[ProcessDigest]) -> bool:
    """Tell whether all steps of `after` have higher numbers than all steps of `before`.

    False if one of them has no steps, or a step without a number.
    """
    numbers_before = before.process.members["number"]
    numbers_after = after.process.members["number"]
    if not len(numbers_before) or not len(numbers_after):
        return False
    if numbers_before.null_count or numbers_after.null_count:
        return False
    highest_before: int = pc.max(numbers_before).as_py()
    lowest_after: int = pc.min(numbers_after).as_py()
    return highest_before < lowest_after


def _has_other_communicators(before: Rank[ProcessDigest], after: Rank[ProcessDigest]) -> bool:
    """Tell whether NCCL names communicators in both reports, and none of them is in both."""
    communicators_before = _communicators(before.process)
    communicators_after = _communicators(after.process)
    has_both = bool(communicators_before and communicators_after)
    return has_both and communicators_before.isdisjoint(communicators_after)


def _communicators(process: ProcessDigest) -> set[int]:
    """Return the IDs of the communicators that NCCL names in the operations of a process."""
    table = process.comm.narrow
    # The operations of a finished run are in the run's tables, and so not in its digests.
    if "comm_id" not in table.column_names:
        return set()
    comm_ids = table["comm_id"].drop_null()
    return set(comm_ids.to_pylist())


def capture_numbers(groups: Sequence[Sequence[Rank[P]]]) -> dict[int, int]:
    """Return which capture of the run each report belongs to, as a number by argument.

    A capture of the run has at most one report of each process. `groups` has the parts of each
    process in order of time. Reports that overlap in time are of one capture, and captures count
    from 0. If that puts two reports of one process in one capture, the k-th report of each process
    is part of the k-th capture instead.
    """
    parts = itertools.chain.from_iterable(groups)
    numbers_by_overlap = _numbers_by_overlap(_spans_of_reports(parts))
    if all(_have_different_numbers(group, numbers_by_overlap) for group in groups):
        return numbers_by_overlap
    numbers_by_order: dict[int, int] = {}
    for group in groups:
        for number, part in enumerate(group):
            numbers_by_order[part.argument] = number
    return numbers_by_order


def parts_by_capture(parts: Iterable[Rank[P]], numbers: Mapping[int, int]) -> list[list[Rank[P]]]:
    """Return the parts of each capture of the run, in order of captures.

    `numbers` has the number of each report's capture, as `capture_numbers` returns it. If it is
    empty, all parts are of one capture.
    """
    parts_of_captures: dict[int, list[Rank[P]]] = {}
    for part in parts:
        number = numbers.get(part.argument, 0)
        parts_of_capture = parts_of_captures.setdefault(number, [])
        parts_of_capture.append(part)
    return [parts_of_captures[number] for number in sorted(parts_of_captures)]


def _spans_of_reports(parts: Iterable[Rank[P]]) -> dict[int, _Span]:
    """Return the time of all processes of each report, by argument."""
    spans: dict[int, _Span] = {}
    for part in parts:
        span = _Span(*part.span)
        # The first part of a report is its span so far.
        span_so_far = spans.get(part.argument, span)
        first_ns = min(span_so_far.first_ns, span.first_ns)
        last_ns = max(span_so_far.last_ns, span.last_ns)
        spans[part.argument] = _Span(first_ns, last_ns)
    return spans


def _numbers_by_overlap(spans: Mapping[int, _Span]) -> dict[int, int]:
    """Return a number for each report, from 0 in order of time, by argument.

    Reports that overlap have the same number.
    """
    numbers: dict[int, int] = {}
    number = 0
    # The latest end of the reports that have the current number so far.
    latest_end_ns: int | None = None
    arguments_by_time = sorted(spans, key=spans.__getitem__)
    for argument in arguments_by_time:
        span = spans[argument]
        if latest_end_ns is None:
            latest_end_ns = span.last_ns
        elif span.first_ns >= latest_end_ns:
            number += 1
            latest_end_ns = span.last_ns
        else:
            latest_end_ns = max(latest_end_ns, span.last_ns)
        numbers[argument] = number
    return numbers


def _have_different_numbers(group: Sequence[Rank[P]], numbers: Mapping[int, int]) -> bool:
    """Tell whether no two reports of one process have the same number."""
    numbers_of_group = {numbers[part.argument] for part in group}
    return len(numbers_of_group) == len(group)


def joined(captures: _Ranks) -> Rank[ProcessDigest]:
    """Return one rank for several captures of a process, in order of time.

    All times are on the clock of the first capture.
    """
    first = captures[0]
    # Added to the times of each capture to get times on the clock of the first.
    clock_shifts_ns = [part.shift_ns - first.shift_ns for part in captures]
    report = _joined_report([part.report for part in captures])
    process = _joined_process([part.process for part in captures], clock_shifts_ns)
    is_alone = all(part.is_alone for part in captures)
    return replace(
        first,
        report=report,
        process=process,
        is_alone=is_alone,
        captures=tuple(captures),
    )


def joined_ranks(parts: _Ranks, *, is_one_job: bool) -> list[Rank[ProcessDigest]]:
    """Return the ranks of a run. Those that were captured several times are joined."""
    ranks = []
    for group in captures_of_processes(parts, is_one_job=is_one_job):
        rank = joined(group) if len(group) > 1 else group[0]
        ranks.append(rank)
    return ranks


def step_ordinals(groups: Sequence[Sequence[Rank[P]]]) -> list[Int64]:
    """Return an ordinal for each step range of each rank, for all captures of the rank.

    `groups` has the captures of each rank. The k-th step of a capture has the same ordinal on all
    ranks, and ordinals go on from capture to capture.
    """
    capture_of_report = _capture_of_report(groups)
    first_ordinals = _first_ordinals(groups, capture_of_report)

    def ordinals(part: Rank[P]) -> Int64:
        capture = capture_of_report[part.argument]
        n_steps = part.process.members.num_rows
        return first_ordinals[capture] + np.arange(n_steps)

    ordinals_of_ranks = []
    for group in groups:
        ordinals_of_parts = [ordinals(part) for part in group]
        ordinals_of_ranks.append(np.concatenate(ordinals_of_parts))
    return ordinals_of_ranks


def _capture_of_report(groups: Sequence[Sequence[Rank[P]]]) -> dict[int, int]:
    """Return the number of each report's capture, by argument.

    `groups` has the captures of each rank. If no rank has several, all reports are of capture 0.
    """
    if any(len(group) > 1 for group in groups):
        return capture_numbers(groups)
    parts = itertools.chain.from_iterable(groups)
    return {part.argument: 0 for part in parts}


def _first_ordinals(
    groups: Sequence[Sequence[Rank[P]]], capture_of_report: Mapping[int, int]
) -> dict[int, int]:
    """Return the ordinal of the first step of each capture, by the capture's number.

    A capture has as many ordinals as the process with the most steps in it.
    """
    max_n_steps: Counter[int] = Counter()
    for part in itertools.chain.from_iterable(groups):
        capture = capture_of_report[part.argument]
        n_steps = part.process.members.num_rows
        max_n_steps[capture] = max(max_n_steps[capture], n_steps)
    captures = sorted(max_n_steps)
    n_steps_before = _sums_before([max_n_steps[capture] for capture in captures])
    return dict(zip(captures, n_steps_before, strict=True))


def with_steps(rank: Rank[P], number: int, process_number: int, steps: Int64) -> Rank[P]:
    """Return a rank with its rank number, the number of its process, and its step numbers.

    `steps` are the step numbers. Each capture of the rank gets the rank number, the process number
    and the numbers of its own steps.
    """
    numbered = replace(rank, number=number, process_number=process_number, steps=steps)
    if not rank.captures:
        return numbered
    n_members_of_captures = [_count_members(part.process) for part in rank.captures]
    n_members_up_to_end = np.cumsum(n_members_of_captures)
    # `split` needs no end of the last capture.
    steps_of_captures = np.split(steps, n_members_up_to_end[:-1])
    captures: list[Rank[P]] = []
    for part, part_steps in zip(rank.captures, steps_of_captures, strict=True):
        captures.append(with_steps(part, number, process_number, part_steps))
    return replace(numbered, captures=tuple(captures))


def capture_of_windows(ranks: _Ranks) -> Int64:
    """Return for each window of all ranks the number of the capture that it belongs to.

    Windows are in order of rank and time.
    """
    parts_of_ranks = [rank.parts for rank in ranks]
    capture_of_report = _capture_of_report(parts_of_ranks)
    capture_of_part = []
    n_windows_of_part = []
    for part in itertools.chain.from_iterable(parts_of_ranks):
        capture_of_part.append(capture_of_report[part.argument])
        n_windows_of_part.append(part.process.windows.num_rows)
    return np.repeat(np.array(capture_of_part, np.int64), n_windows_of_part)


def _joined_report(reports: Sequence[ReportDigest]) -> ReportDigest:
    """Return the report of a rank with several captures, with what all of them have.

    If several reports have a value for one key, the value of the first report counts.
    """
    mpi_ranks: dict[int, int] = {}
    comm_ranks: dict[int, tuple[int, int]] = {}
    comm_sizes: dict[int, int] = {}
    for report in reports:
        # The right side of | has priority, so values of earlier reports stay.
        mpi_ranks = report.mpi_ranks | mpi_ranks
        comm_ranks = report.comm_ranks | comm_ranks
        comm_sizes = report.comm_sizes | comm_sizes
    n_graphs = sum(report.n_graphs for report in reports)
    has_communication = any(report.has_communication for report in reports)
    problems = itertools.chain.from_iterable(report.problems for report in reports)
    return replace(
        reports[0],
        mpi_ranks=mpi_ranks,
        comm_ranks=comm_ranks,
        comm_sizes=comm_sizes,
        n_graphs=n_graphs,
        has_communication=has_communication,
        problems=tuple(problems),
    )


def _joined_process(
    processes: Sequence[ProcessDigest], clock_shifts_ns: Sequence[int]
) -> ProcessDigest:
    """Return one digest for several captures of a process, with their rows in order of time.

    `clock_shifts_ns` is added to the times of each capture to get times on the first clock.
    """
    n_members_before = _sums_before([_count_members(process) for process in processes])
    n_windows_before = _sums_before([process.windows.num_rows for process in processes])
    # In the order of the fields of `_Part`.
    parts = list(map(_Part, processes, clock_shifts_ns, n_members_before))
    members = _joined_members(parts)
    comm = _joined_comm(parts)
    backward = _joined_backward(parts)
    windows = _joined_windows(parts)
    phases = _joined_phases(parts)
    kernels = _joined_kernels(processes, n_windows_before)
    blocked_ns_by_call = _joined_calls(processes, "blocked_ns_by_call")
    of_copies_ns_by_call = _joined_calls(processes, "of_copies_ns_by_call")
    python_fields = _joined_python(processes, n_windows_before, clock_shifts_ns)
    first_with_counts = replace(_with_joined_counts(processes), **python_fields)
    return replace(
        first_with_counts,
        candidates=candidates_of(processes),
        members=members,
        span=_joined_span(parts),
        comm=comm,
        backward=backward,
        windows=windows,
        phases=phases,
        kernels=kernels.table,
        kernels_by_window=kernels.by_window,
        blocked_ns_by_call=blocked_ns_by_call,
        of_copies_ns_by_call=of_copies_ns_by_call,
        **_joined_intervals(parts),
    )


def _joined_python(
    processes: Sequence[ProcessDigest],
    n_windows_before: Sequence[int],
    clock_shifts_ns: Sequence[int],
) -> dict[str, Any]:
    """Return the fields of a digest that are of Python."""
    host_lines = [process.host_lines for process in processes]
    holder_lines = [process.holder_lines for process in processes]
    lock_waits = [process.lock_waits for process in processes]
    return {
        "host_lines": _joined_host_lines(host_lines, n_windows_before, clock_shifts_ns),
        "holder_lines": _joined_host_lines(holder_lines, n_windows_before, clock_shifts_ns),
        "lock_waits": join_lock_waits(lock_waits),
    }


def _joined_host_lines(
    samples_of_captures: Sequence[HostLines | None],
    n_windows_before: Sequence[int],
    clock_shifts_ns: Sequence[int],
) -> HostLines | None:
    """Return the samples of all captures, None if no capture has any."""
    parts = []
    for capture, samples in enumerate(samples_of_captures):
        if samples is None:
            continue
        part = HostLinesPart(
            samples, windows_before=n_windows_before[capture], later_ns=clock_shifts_ns[capture]
        )
        parts.append(part)
    if not parts:
        return None
    return join_host_lines(parts)


def _with_joined_counts(processes: Sequence[ProcessDigest]) -> ProcessDigest:
    """Return the first digest with the counts and devices of all."""
    device_ids: set[int] = set()
    for process in processes:
        device_ids.update(process.device_ids)
    n_kernels = _sum(process.n_kernels for process in processes)
    n_comm = _sum(process.n_comm for process in processes)
    n_dtod = _sum(process.n_dtod for process in processes)
    has_launches = any(process.has_launches for process in processes)
    return replace(
        processes[0],
        device_ids=tuple(sorted(device_ids)),
        n_kernels=n_kernels,
        n_comm=n_comm,
        n_dtod=n_dtod,
        has_launches=has_launches,
    )


def _joined_span(parts: _Parts) -> tuple[int, int]:
    """Return the first start and the last end of all captures, on the clock of the first."""
    starts_ns = []
    ends_ns = []
    for part in parts:
        start_ns, end_ns = part.process.span
        starts_ns.append(start_ns + part.clock_shift_ns)
        ends_ns.append(end_ns + part.clock_shift_ns)
    return min(starts_ns), max(ends_ns)


def _joined_members(parts: _Parts) -> pa.Table:
    """Return the members of all captures, on the clock of the first capture."""
    members = []
    for part in parts:
        shifted = _shifted(part.process.members, part.clock_shift_ns, _TIMES_OF_MEMBERS)
        members.append(shifted)
    return _concatenated(members)


def _joined_phases(parts: _Parts) -> pa.Table:
    phases = (_renumbered(part.process.phases, part.n_members_before) for part in parts)
    return _concatenated(phases)


def _joined_windows(parts: _Parts) -> pa.Table:
    """Return the windows of all captures, on the clock of the first capture."""
    windows = []
    for part in parts:
        shifted = _shifted(part.process.windows, part.clock_shift_ns, _TIMES)
        windows.append(_renumbered(shifted, part.n_members_before))
    return _concatenated(windows)


def candidates_of(processes: Sequence[ProcessDigest]) -> tuple[Candidate, ...]:
    """Return the families that all captures of a process have, joined as if it had one capture.

    `processes` are the captures.
    """
    if len(processes) == 1:
        return processes[0].candidates
    # By name, then by the index of the capture.
    candidates_of_name: dict[str, dict[int, Candidate]] = {}
    for capture_index, process in enumerate(processes):
        for candidate in process.candidates:
            candidate_of_capture = candidates_of_name.setdefault(candidate.name, {})
            candidate_of_capture[capture_index] = candidate
    joined_candidates = []
    for candidate_of_capture in candidates_of_name.values():
        is_in_all_captures = len(candidate_of_capture) == len(processes)
        if is_in_all_captures:
            joined_candidates.append(_joined_candidate([*candidate_of_capture.values()]))
    return tuple(joined_candidates)


def _joined_candidate(candidates: Sequence[Candidate]) -> Candidate:
    """Return one candidate for a family in all captures of a process, with the sums of all.

    The family is a part of steps only if it is one in every capture.
    """
    union_ns = sum(candidate.union_ns for candidate in candidates)
    n_members = sum(candidate.n_members for candidate in candidates)
    n_launched_inside = sum(candidate.n_launched_inside for candidate in candidates)
    n_launched = sum(candidate.n_launched for candidate in candidates)
    is_part = all(candidate.is_part for candidate in candidates)
    return replace(
        candidates[0],
        union_ns=union_ns,
        n_members=n_members,
        n_launched_inside=n_launched_inside,
        n_launched=n_launched,
        is_part=is_part,
    )


def _count_members(process: ProcessDigest | HostDigest) -> int:
    """Return the number of members to which windows and operations of a process refer.

    A capture without steps is one window, whose member 0 has no row in the table of members.
    """
    n_members: int = process.members.num_rows
    if n_members or not isinstance(process, ProcessDigest):
        return n_members
    return int(process.windows.num_rows)


def _sums_before(counts: Sequence[int]) -> list[int]:
    """Return the sum of all counts before each count."""
    sums = []
    total = 0
    for count in counts:
        sums.append(total)
        total += count
    return sums


def _sum(counts: Iterable[int | None]) -> int | None:
    """Return the sum of some counts, None if one of them is not known."""
    total = 0
    for count in counts:
        if count is None:
            return None
        total += count
    return total


def _concatenated(tables: Iterable[pa.Table]) -> pa.Table:
    return pa.concat_tables(tables, promote_options="permissive").combine_chunks()


def _shifted(table: pa.Table, clock_shift_ns: int, names: Sequence[str]) -> pa.Table:
    """Return a table in which `clock_shift_ns` is added to the times in the columns `names`."""
    for name in names:
        times_ns = table[name].cast(pa.int64())
        table = _with_column(table, name, pc.add(times_ns, clock_shift_ns))
    return table


def _renumbered(table: pa.Table, n_members_before: int) -> pa.Table:
    """Return a table of one capture whose members are counted over all captures."""
    member = pc.add(table["member"], n_members_before)
    return _with_column(table, "member", member)


def _with_column(table: pa.Table, name: str, values: pa.Array | pa.ChunkedArray) -> pa.Table:
    """Return a table with other values in a column that it has."""
    place = table.schema.get_field_index(name)
    return table.set_column(place, name, values)


def _joined_comm(parts: _Parts) -> CommOperations:
    """Return the communication operations of all captures.

    A row of each table has its kind as an index into a list of kinds. All captures get one list.
    """
    kinds_of_parts = [part.process.comm.kinds for part in parts]
    all_kinds = list(dict.fromkeys(itertools.chain.from_iterable(kinds_of_parts)))
    index_of_kind = {kind: index for index, kind in enumerate(all_kinds)}
    tables = []
    for part in parts:
        comm = part.process.comm
        indices = [index_of_kind[kind] for kind in comm.kinds]
        # Of each kind of the capture, its index in `all_kinds`.
        index_in_all_kinds = np.array(indices, np.int64)
        table = _shifted(comm.table, part.clock_shift_ns, _TIMES)
        kind = table["kind"].to_numpy()
        member = table["member"].to_numpy()
        # An operation outside of steps stays without a member.
        is_in_step = member != NO_MEMBER
        joined_member = np.where(is_in_step, member + part.n_members_before, NO_MEMBER)
        table = _with_column(table, "member", pa.array(joined_member))
        table = _with_column(table, "kind", pa.array(index_in_all_kinds[kind]))
        tables.append(table)
    return CommOperations.of(all_kinds, _concatenated(tables))


def _joined_backward(parts: _Parts) -> PhaseRanges | None:
    """Return the backward passes of all captures, None if no capture has any."""
    members = []
    starts_ns = []
    ends_ns = []
    for part in parts:
        backward = part.process.backward
        if backward is None:
            continue
        members.append(backward.member + part.n_members_before)
        starts_ns.append(backward.starts + part.clock_shift_ns)
        ends_ns.append(backward.ends + part.clock_shift_ns)
    if not members:
        return None
    return PhaseRanges(np.concatenate(members), np.concatenate(starts_ns), np.concatenate(ends_ns))


def _joined_intervals(parts: _Parts) -> dict[str, Any]:
    """Return the fields of `ProcessDigest` that are intervals."""
    return {"overlap": _joined_overlap(parts), "stretches": _joined_stretches(parts)}


def _joined_overlap(parts: _Parts) -> NarrowIntervals:
    """Return when communication overlaps with compute in any capture."""
    starts_ns = []
    ends_ns = []
    for part in parts:
        intervals = part.process.overlap.shifted(part.clock_shift_ns)
        starts_ns.append(intervals.starts)
        ends_ns.append(intervals.ends)
    overlap = union(np.concatenate(starts_ns), np.concatenate(ends_ns))
    return NarrowIntervals.of(overlap)


def _joined_stretches(parts: _Parts) -> Stretches:
    members = []
    phases = []
    starts_ns = []
    ends_ns = []
    for part in parts:
        stretches = part.process.stretches
        members.append(stretches.member + part.n_members_before)
        phases.append(stretches.phase)
        starts_ns.append(stretches.starts + part.clock_shift_ns)
        ends_ns.append(stretches.ends + part.clock_shift_ns)
    return Stretches(
        member=np.concatenate(members),
        phase=np.concatenate(phases),
        starts=np.concatenate(starts_ns),
        ends=np.concatenate(ends_ns),
    )


def _joined_calls(processes: Sequence[ProcessDigest], field: str) -> dict[str, Int64]:
    """Return a time of each API call for each window of all captures.

    `field` is the field of `ProcessDigest` that has these times. A capture without the call has
    times of 0.
    """
    times_of_processes: list[_TimesByCall] = []
    zeros_of_processes = []
    for process in processes:
        times_of_processes.append(getattr(process, field))
        zeros_of_processes.append(np.zeros(process.windows.num_rows, np.int64))
    calls = dict.fromkeys(itertools.chain.from_iterable(times_of_processes))
    joined_times = {}
    for call in calls:
        times_ns = []
        for times_by_call, zeros in zip(times_of_processes, zeros_of_processes, strict=True):
            times_ns.append(times_by_call.get(call, zeros))
        joined_times[call] = np.concatenate(times_ns)
    return joined_times


class _Kernels(NamedTuple):
    """The kernels of a rank, a row per (phase, name), and their sums by window."""

    table: pa.Table
    by_window: WindowSums


def _joined_kernels(
    processes: Sequence[ProcessDigest], n_windows_before: Sequence[int]
) -> _Kernels:
    """Return the kernels of each (phase, name) over all captures, with their sums by window.

    `n_windows_before` has the number of windows before those of each capture.
    """
    keys_of_processes = [_kernel_keys(process.kernels) for process in processes]
    all_keys = set(itertools.chain.from_iterable(keys_of_processes))
    ordered_keys = sorted(all_keys, key=_order_of_kernel)
    n_rows = len(ordered_keys)
    # For each row of each capture, the joined row into which it goes.
    joined_row_of_row = [_indices_of(keys, ordered_keys) for keys in keys_of_processes]
    columns: dict[str, Any] = {
        "phase": pa.array([key.phase for key in ordered_keys], pa.string()),
        "name": pa.array([key.name for key in ordered_keys], pa.string()),
    }
    for name in processes[0].kernels.column_names:
        if name not in columns:
            values = [process.kernels[name].to_numpy() for process in processes]
            columns[name] = _reduced(name, values, joined_row_of_row, n_rows)
    edges = _joined_edges(processes, n_windows_before)
    sums = [process.kernels_by_window for process in processes]
    by_window = _joined_window_sums(sums, joined_row_of_row, n_rows=n_rows, edges=edges)
    return _Kernels(pa.table(columns), by_window)


def _joined_edges(processes: Sequence[ProcessDigest], n_windows_before: Sequence[int]) -> Int64:
    """Return the edges between the groups of windows of all captures.

    An edge is the number of windows before it. The last edge of each capture is left out, because
    it is the first edge of the next capture. Only the last capture keeps it.
    """
    edges = []
    for process, n_before in zip(processes, n_windows_before, strict=True):
        edges_without_last = process.kernels_by_window.edges[:-1]
        edges.append(edges_without_last + n_before)
    n_windows = n_windows_before[-1] + processes[-1].windows.num_rows
    return np.hstack([*edges, n_windows])


def _order_of_kernel(key: _KernelKey) -> tuple[bool, _KernelKey]:
    """Return the key by which kernels are sorted: by phase, then by name.

    Kernels of no phase are last, because False comes before True.
    """
    has_no_phase = key.phase is None
    return has_no_phase, _KernelKey(key.phase or "", key.name)


class _KernelKey(NamedTuple):
    """A kernel in one phase."""

    phase: str | None
    name: str


def _indices_of(keys: Iterable[_KernelKey], ordered_keys: Sequence[_KernelKey]) -> Int64:
    """Return the index of each key in `ordered_keys`."""
    index_of_key = {key: index for index, key in enumerate(ordered_keys)}
    return np.array([index_of_key[key] for key in keys], np.int64)


def _kernel_keys(kernels: KernelsTable) -> list[_KernelKey]:
    phases = kernels["phase"].to_pylist()
    names = kernels["name"].to_pylist()
    return list(map(_KernelKey, phases, names))


def _joined_window_sums(
    sums_of_captures: Sequence[WindowSums],
    joined_row_of_row: Sequence[Int64],
    *,
    n_rows: int,
    edges: Int64,
) -> WindowSums:
    """Return the sums of all captures, one capture after the other.

    `joined_row_of_row` has, for each row of each capture, the joined row into which it goes.
    `n_rows` is the number of joined rows, and `edges` are the edges of the joined groups.
    """
    groups = []
    rows = []
    n_groups_before = 0
    for capture, joined_row in zip(sums_of_captures, joined_row_of_row, strict=True):
        groups.append(capture.group + n_groups_before)
        rows.append(joined_row[capture.row])
        # A group lies between two edges.
        n_groups = capture.edges.size - 1
        n_groups_before += n_groups
    # For each kind of sum, its values in each capture.
    columns = zip(*(capture.sums for capture in sums_of_captures), strict=True)
    row = np.concatenate(rows).astype(np.int32)
    return WindowSums(
        n_rows=n_rows,
        edges=edges,
        group=np.concatenate(groups),
        row=row,
        sums=tuple(map(np.concatenate, columns)),
    )


def _reduced(
    name: str, values: Sequence[Int64], joined_row_of_row: Sequence[Int64], n_rows: int
) -> Int64:
    """Return a column of kernels over all captures, with a value for each joined row.

    The value is the minimum for ``min_ns``, the maximum for ``max_ns``, and the sum for any other
    column. `joined_row_of_row` has, for each value of each capture, the joined row into which it
    goes.
    """
    extremes = {"min_ns": np.minimum.at, "max_ns": np.maximum.at}
    reduce: Callable[..., None] = extremes.get(name, np.add.at)
    # No value is negative, so a maximum may start from 0 like a sum.
    initial_value = np.iinfo(np.int64).max if name == "min_ns" else 0
    reduced = np.full(n_rows, initial_value)
    for capture_values, joined_row in zip(values, joined_row_of_row, strict=True):
        reduce(reduced, joined_row, capture_values)
    return reduced
