"""Several captures of the same processes, as nsys makes them with --capture-range-end=repeat.

Each process is one rank. Reports are captures of one process by host, process ID and times that do
not overlap. What a rank did in its captures is put side by side, on the clock of its first one.
What lies between two captures is in no step.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from nsyspipe.analysis.collectives import NO_MEMBER, CommKind, CommOperations
from nsyspipe.analysis.intervals import NarrowIntervals, union
from nsyspipe.analysis.kernels import WindowSums
from nsyspipe.analysis.phases import PhaseRanges
from nsyspipe.analysis.steps import Candidate
from nsyspipe.model.table import Int64
from nsyspipe.nsys import find_reports as files
from nsyspipe.reader.facts import LAUNCHER_SIZES
from nsyspipe.run.digests import P, Rank, ReportDigest
from nsyspipe.run.process import HostDigest, ProcessDigest

# Captures that are farther apart need more than their names to be of one process.
MAX_GAP_OF_CAPTURES_NS = 60 * 10**9
# Reports of one nsys differ by some ns in when it was started.
MAX_NSYS_START_ROUNDING_NS = 1_000
_TIMES_OF_MEMBERS = ("start_ns", "end_ns", "device_start_ns", "device_end_ns")
_Ranks: TypeAlias = Sequence[Rank[ProcessDigest]]


class _Part(NamedTuple):
    """The process of one capture, and what it is put behind."""

    process: ProcessDigest
    # how much later its clock starts than that of the first capture
    later_ns: int
    # members of the captures before it
    n_members_before: int


_Parts: TypeAlias = Sequence[_Part]


def captures_of_processes(parts: _Ranks, *, is_one_job: bool) -> list[list[Rank[ProcessDigest]]]:
    """Group the ranks of reports by the process that they are captures of.

    Each group is in order of time, and groups are in order of argument. `is_one_job` says that the
    reports themselves show that they are of one job.
    """
    alike: dict[object, list[int]] = {}
    for index, part in enumerate(parts):
        facts = part.report.facts
        has_host_and_time = facts.host is not None and facts.session_start_utc_ns is not None
        number = _process_number(part) if has_host_and_time else index
        alike.setdefault(number, []).append(index)
    groups: list[list[int]] = []
    for indices in alike.values():
        groups += _split_by_process(parts, indices, is_one_job=is_one_job)
    in_order = sorted(groups, key=min)
    return [list(map(parts.__getitem__, group)) for group in in_order]


def _split_by_process(
    parts: _Ranks, indices: Sequence[int], *, is_one_job: bool
) -> list[list[int]]:
    """Group parts with one process number by the process that they are captures of."""
    groups: list[list[int]] = []
    for index in sorted(indices, key=lambda index: parts[index].span):
        for group in groups:
            if _is_next_capture(parts[group[-1]], parts[index], is_one_job=is_one_job):
                group.append(index)
                break
        else:
            groups.append([index])
    return groups


def _is_next_capture(
    before: Rank[ProcessDigest], after: Rank[ProcessDigest], *, is_one_job: bool
) -> bool:
    """Tell whether two reports of processes with one number on one host are of one process.

    They are if one nsys made both, whatever their names are: nsys starts the process once. If that
    was not recorded, programs in different containers may have the same number. Such programs are
    no job, number their steps alike, and have different names or ran long after each other.
    """
    gap_ns = after.span[0] - before.span[1]
    is_other = _has_other_rank(before, after) or _has_other_communicators(before, after)
    if gap_ns < 0 or before.argument == after.argument or is_other:
        return False
    if _are_by_one_nsys(before, after):
        return True
    are_alike = _name(before.report) == _name(after.report)
    is_near = gap_ns <= MAX_GAP_OF_CAPTURES_NS or _have_one_rank(before, after)
    return is_one_job or _do_numbers_go_on(before, after) or (are_alike and is_near)


def _are_by_one_nsys(before: Rank[ProcessDigest], after: Rank[ProcessDigest]) -> bool:
    """Tell whether one nsys made both reports."""
    first_ns = before.report.facts.nsys_start_utc_ns
    second_ns = after.report.facts.nsys_start_utc_ns
    if first_ns is None or second_ns is None:
        return False
    return abs(first_ns - second_ns) <= MAX_NSYS_START_ROUNDING_NS


def share_one_process_number(before: Rank[ProcessDigest], after: Rank[ProcessDigest]) -> bool:
    """Tell whether two ranks have one process number on one host, and run soon after each other.

    They are probably captures of one process, but nothing that was recorded shows it. As two ranks
    of a run they would make every metric across ranks wrong.
    """
    if _process_number(before) != _process_number(after) or before.argument == after.argument:
        return False
    facts = before.report.facts, after.report.facts
    has_times = all(each.session_start_utc_ns is not None for each in facts)
    if before.report.facts.host is None or not has_times:
        return False
    if _has_other_rank(before, after) or _has_other_communicators(before, after):
        return False
    return 0 <= after.span[0] - before.span[1] <= MAX_GAP_OF_CAPTURES_NS


class _ProcessNumber(NamedTuple):
    """The number of a process on its host, and its device."""

    host: str | None
    pid: int
    device_id: int | None


def _process_number(part: Rank[ProcessDigest]) -> _ProcessNumber:
    return _ProcessNumber(part.report.facts.host, part.process.pid, part.process.device_id)


def _have_one_rank(before: Rank[ProcessDigest], after: Rank[ProcessDigest]) -> bool:
    """Tell whether both reports captured the same RANK."""
    numbers = {part.report.facts.number("RANK") for part in (before, after)}
    return len(numbers) == 1 and None not in numbers


def _name(report: ReportDigest) -> str:
    """Return a report's name without its last number, which counts the captures of nsys."""
    return re.sub(r"\d+(\D*)$", r"#\1", files.source_of(Path(report.path)).stem)


def _has_other_rank(before: Rank[ProcessDigest], after: Rank[ProcessDigest]) -> bool:
    """Tell whether a launcher gave two processes, each alone in its report, different ranks."""
    if not (before.is_alone and after.is_alone):
        return False
    for name in ("RANK", *LAUNCHER_SIZES):
        first = before.report.facts.number(name)
        second = after.report.facts.number(name)
        if first is not None and second is not None and first != second:
            return True
    return False


def _do_numbers_go_on(before: Rank[ProcessDigest], after: Rank[ProcessDigest]) -> bool:
    """Tell whether the ranges of the later steps have higher numbers than all earlier ones."""
    numbers_before = before.process.members["number"]
    numbers_after = after.process.members["number"]
    if not len(numbers_before) or not len(numbers_after):
        return False
    if numbers_before.null_count or numbers_after.null_count:
        return False
    return bool(pc.max(numbers_before).as_py() < pc.min(numbers_after).as_py())


def _has_other_communicators(before: Rank[ProcessDigest], after: Rank[ProcessDigest]) -> bool:
    """Tell whether NCCL names communicators in both reports, and none of them is in both."""
    communicators_before = _communicators(before.process)
    communicators_after = _communicators(after.process)
    has_both = bool(communicators_before and communicators_after)
    return has_both and communicators_before.isdisjoint(communicators_after)


def _communicators(process: ProcessDigest) -> set[int]:
    table = process.comm.narrow
    # Once a run is read, its operations are in the run's tables instead.
    if "comm_id" not in table.column_names:
        return set()
    return set(table["comm_id"].drop_null().to_pylist())


def capture_numbers(groups: Sequence[Sequence[Rank[P]]]) -> dict[int, int]:
    """Return which capture of the run each report is, from 0, by argument.

    Reports that overlap in time are one capture. If reports of one process would then be in one
    capture, the k-th reports of all processes are the k-th capture.
    """
    spans: dict[int, tuple[int, int]] = {}
    for part in itertools.chain.from_iterable(groups):
        first, last = spans.get(part.argument, part.span)
        spans[part.argument] = (min(first, part.span[0]), max(last, part.span[1]))
    numbers: dict[int, int] = {}
    number = -1
    until = None
    for argument, (first, last) in sorted(spans.items(), key=lambda item: item[1]):
        if until is None or first >= until:
            number += 1
        until = last if until is None else max(until, last)
        numbers[argument] = number
    if all(_have_different_numbers(group, numbers) for group in groups):
        return numbers
    return {part.argument: index for group in groups for index, part in enumerate(group)}


def _have_different_numbers(group: Sequence[Rank[P]], numbers: Mapping[int, int]) -> bool:
    """Tell whether no two reports of one process have the same number."""
    return len({numbers[part.argument] for part in group}) == len(group)


def joined(captures: _Ranks) -> Rank[ProcessDigest]:
    """Return one rank for several captures of a process, in order of time.

    All times are on the clock of the first capture.
    """
    first = captures[0]
    later_ns = [part.shift_ns - first.shift_ns for part in captures]
    return replace(
        first,
        report=_joined_report([part.report for part in captures]),
        process=_joined_process([part.process for part in captures], later_ns),
        is_alone=all(part.is_alone for part in captures),
        captures=tuple(captures),
    )


def joined_ranks(parts: _Ranks, *, is_one_job: bool) -> list[Rank[ProcessDigest]]:
    """Return the ranks of a run. Those that were captured several times are joined."""
    groups = captures_of_processes(parts, is_one_job=is_one_job)
    return [group[0] if len(group) == 1 else joined(group) for group in groups]


def step_ordinals(groups: Sequence[Sequence[Rank[P]]]) -> list[Int64]:
    """Return an ordinal for each step range of each rank, through its captures.

    The k-th step of a capture has the same ordinal on all ranks.
    """
    captures = capture_numbers(groups) if any(len(group) > 1 for group in groups) else {}
    n_steps: dict[int, int] = {}
    for part in itertools.chain.from_iterable(groups):
        capture = captures.get(part.argument, 0)
        n_steps[capture] = max(n_steps.get(capture, 0), part.process.members.num_rows)
    in_order = sorted(n_steps)
    n_before = _sums_before([n_steps[capture] for capture in in_order])
    first_ordinal = dict(zip(in_order, n_before, strict=True))

    def ordinals(part: Rank[P]) -> Int64:
        first = first_ordinal[captures.get(part.argument, 0)]
        return first + np.arange(part.process.members.num_rows)

    return [np.concatenate(list(map(ordinals, group))) for group in groups]


def with_steps(rank: Rank[P], number: int, process_number: int, steps: Int64) -> Rank[P]:
    """Return a rank with its number, that of its process and those of its steps.

    Its captures get them too.
    """
    captures: list[Rank[P]] = []
    if rank.captures:
        edges = np.cumsum([_n_places(part.process) for part in rank.captures])[:-1]
        for part, part_steps in zip(rank.captures, np.split(steps, edges), strict=True):
            numbered = replace(part, number=number, process_number=process_number, steps=part_steps)
            captures.append(numbered)
    return replace(
        rank,
        number=number,
        process_number=process_number,
        steps=steps,
        captures=tuple(captures),
    )


def capture_of_windows(ranks: _Ranks) -> Int64:
    """Return which capture of the run each window belongs to, in order of rank and time."""
    captures = {}
    if any(rank.captures for rank in ranks):
        captures = capture_numbers([rank.parts for rank in ranks])
    parts = [part for rank in ranks for part in rank.parts]
    numbers = np.array([captures.get(part.argument, 0) for part in parts], np.int64)
    return np.repeat(numbers, [part.process.windows.num_rows for part in parts])


def _joined_report(reports: Sequence[ReportDigest]) -> ReportDigest:
    """Return the report of a rank with several captures, with what all of them have."""
    mpi_ranks: dict[int, int] = {}
    comm_ranks: dict[int, tuple[int, int]] = {}
    comm_sizes: dict[int, int] = {}
    # The first report that has a value counts.
    for report in reversed(reports):
        mpi_ranks |= report.mpi_ranks
        comm_ranks |= report.comm_ranks
        comm_sizes |= report.comm_sizes
    return replace(
        reports[0],
        mpi_ranks=mpi_ranks,
        comm_ranks=comm_ranks,
        comm_sizes=comm_sizes,
        n_graphs=sum(report.n_graphs for report in reports),
        has_communication=any(report.has_communication for report in reports),
        problems=tuple(itertools.chain.from_iterable(report.problems for report in reports)),
    )


def _joined_process(processes: Sequence[ProcessDigest], later_ns: Sequence[int]) -> ProcessDigest:
    """Put what each process digest holds behind what those before it hold.

    `later_ns` says how much later the clock of each starts.
    """
    members_before = _sums_before([_n_places(process) for process in processes])
    windows_before = _sums_before([process.windows.num_rows for process in processes])
    parts = list(map(_Part, processes, later_ns, members_before))
    kernels, by_window = _joined_kernels(processes, windows_before)
    device_ids = {device_id for process in processes for device_id in process.device_ids}
    members = (_later(part.process.members, part.later_ns, _TIMES_OF_MEMBERS) for part in parts)
    phases = (_behind(part.process.phases, part.n_members_before) for part in parts)
    return replace(
        processes[0],
        candidates=candidates_of(processes),
        members=_concatenated(members),
        device_ids=tuple(sorted(device_ids)),
        n_kernels=_sum(process.n_kernels for process in processes),
        n_comm=_sum(process.n_comm for process in processes),
        n_dtod=_sum(process.n_dtod for process in processes),
        span=_joined_span(parts),
        has_launches=any(process.has_launches for process in processes),
        comm=_joined_comm(parts),
        backward=_joined_backward(parts),
        windows=_joined_windows(parts),
        phases=_concatenated(phases),
        kernels=kernels,
        kernels_by_window=by_window,
        blocked_ns_by_call=_joined_calls(processes, "blocked_ns_by_call"),
        of_copies_ns_by_call=_joined_calls(processes, "of_copies_ns_by_call"),
        hidden=_joined_hidden(parts),
    )


def _joined_span(parts: _Parts) -> tuple[int, int]:
    starts_ns = [part.process.span[0] + part.later_ns for part in parts]
    ends_ns = [part.process.span[1] + part.later_ns for part in parts]
    return min(starts_ns), max(ends_ns)


def _joined_windows(parts: _Parts) -> pa.Table:
    windows = []
    for part in parts:
        shifted = _later(part.process.windows, part.later_ns, ("start_ns", "end_ns"))
        windows.append(_behind(shifted, part.n_members_before))
    return _concatenated(windows)


def candidates_of(processes: Sequence[ProcessDigest]) -> tuple[Candidate, ...]:
    """Return each family that all captures of a process have, as if they were one capture."""
    if len(processes) == 1:
        return processes[0].candidates
    # The candidates of each name, one of each process.
    by_name: dict[str, dict[int, Candidate]] = {}
    for place, process in enumerate(processes):
        for candidate in process.candidates:
            by_name.setdefault(candidate.name, {})[place] = candidate
    of_all_captures = [
        list(same.values()) for same in by_name.values() if len(same) == len(processes)
    ]
    return tuple(map(_joined_candidate, of_all_captures))


def _joined_candidate(candidates: Sequence[Candidate]) -> Candidate:
    """Return one candidate for a family in all captures of a process."""
    return replace(
        candidates[0],
        union_ns=sum(candidate.union_ns for candidate in candidates),
        n_members=sum(candidate.n_members for candidate in candidates),
        n_launched_inside=sum(candidate.n_launched_inside for candidate in candidates),
        n_launched=sum(candidate.n_launched for candidate in candidates),
        is_part=all(candidate.is_part for candidate in candidates),
    )


def _n_places(process: ProcessDigest | HostDigest) -> int:
    """Return how many members windows and operations count.

    A capture without steps is one window, which has a member without a range.
    """
    n_members: int = process.members.num_rows
    if n_members or not isinstance(process, ProcessDigest):
        return n_members
    return int(process.windows.num_rows)


def _sums_before(counts: Sequence[int]) -> list[int]:
    return [0, *itertools.accumulate(counts)][: len(counts)]


def _sum(counts: Iterable[int | None]) -> int | None:
    total = 0
    for count in counts:
        if count is None:
            return None
        total += count
    return total


def _concatenated(tables: Iterable[pa.Table]) -> pa.Table:
    return pa.concat_tables(tables, promote_options="permissive").combine_chunks()


def _later(table: pa.Table, by_ns: int, names: Sequence[str]) -> pa.Table:
    """Return a table with some times later."""
    for name in names:
        later = pc.add(table[name].cast(pa.int64()), by_ns)
        table = table.set_column(table.schema.get_field_index(name), name, later)
    return table


def _behind(table: pa.Table, n_before: int) -> pa.Table:
    """Return a table whose column ``member`` counts on from a number of members."""
    member = pc.add(table["member"], n_before)
    return table.set_column(table.schema.get_field_index("member"), "member", member)


def _joined_comm(parts: _Parts) -> CommOperations:
    index_of: dict[CommKind, int] = {}
    tables = []
    for part in parts:
        comm = part.process.comm
        for kind in comm.kinds:
            index_of.setdefault(kind, len(index_of))
        kind_index = np.array([*map(index_of.__getitem__, comm.kinds), 0], np.int64)
        table = _later(comm.table, part.later_ns, ("start_ns", "end_ns"))
        member = table["member"].to_numpy()
        shifted_member = np.where(member == NO_MEMBER, NO_MEMBER, member + part.n_members_before)
        columns = {"member": shifted_member, "kind": kind_index[table["kind"].to_numpy()]}
        for name, values in columns.items():
            table = table.set_column(table.schema.get_field_index(name), name, pa.array(values))
        tables.append(table)
    return CommOperations.of(index_of, _concatenated(tables))


def _joined_backward(parts: _Parts) -> PhaseRanges | None:
    members = []
    starts = []
    ends = []
    for part in parts:
        backward = part.process.backward
        if backward is not None:
            members.append(backward.member + part.n_members_before)
            starts.append(backward.starts + part.later_ns)
            ends.append(backward.ends + part.later_ns)
    if not members:
        return None
    return PhaseRanges(np.concatenate(members), np.concatenate(starts), np.concatenate(ends))


def _joined_hidden(parts: _Parts) -> NarrowIntervals:
    intervals = [part.process.hidden.shifted(part.later_ns) for part in parts]
    starts = np.concatenate([interval.starts for interval in intervals])
    ends = np.concatenate([interval.ends for interval in intervals])
    return NarrowIntervals.of(union(starts, ends))


def _joined_calls(processes: Sequence[ProcessDigest], field: str) -> dict[str, Int64]:
    """Put the times by API call of each capture behind those of the captures before it."""
    times_of_processes: list[dict[str, Int64]] = [getattr(process, field) for process in processes]
    nothing = [np.zeros(process.windows.num_rows, np.int64) for process in processes]
    calls = dict.fromkeys(itertools.chain.from_iterable(times_of_processes))
    joined_times = {}
    for call in calls:
        times = [
            times_by_call.get(call, zeros)
            for times_by_call, zeros in zip(times_of_processes, nothing, strict=True)
        ]
        joined_times[call] = np.concatenate(times)
    return joined_times


def _joined_kernels(
    processes: Sequence[ProcessDigest], windows_before: Sequence[int]
) -> tuple[pa.Table, WindowSums]:
    """Sum up the kernels of each (phase, name) over captures, with their sums by window."""
    keys_of_processes = [_kernel_keys(process.kernels) for process in processes]
    ordered = sorted(
        set(itertools.chain.from_iterable(keys_of_processes)),
        # Kernels of no phase are last.
        key=lambda key: (key.phase is None, key.phase or "", key.name),
    )
    rows = [_places_of(keys, ordered) for keys in keys_of_processes]
    columns: dict[str, Any] = {
        "phase": pa.array([key.phase for key in ordered], pa.string()),
        "name": pa.array([key.name for key in ordered], pa.string()),
    }
    for name in processes[0].kernels.column_names:
        if name not in columns:
            values = [process.kernels[name].to_numpy() for process in processes]
            columns[name] = _reduced(name, values, rows, len(ordered))
    sums = [process.kernels_by_window for process in processes]
    edges: list[Any] = [
        part.edges[:-1] + n_before for part, n_before in zip(sums, windows_before, strict=True)
    ]
    edges.append(windows_before[-1] + processes[-1].windows.num_rows)
    by_window = _joined_window_sums(sums, rows, n_rows=len(ordered), edges=edges)
    return pa.table(columns), by_window


class _KernelKey(NamedTuple):
    """A kernel in one phase."""

    phase: str | None
    name: str


def _places_of(keys: Iterable[_KernelKey], ordered: Sequence[_KernelKey]) -> Int64:
    """Return the place of each key among all keys."""
    place_of_key = {key: place for place, key in enumerate(ordered)}
    return np.array([place_of_key[key] for key in keys], np.int64)


def _kernel_keys(kernels: pa.Table) -> list[_KernelKey]:
    return list(map(_KernelKey, kernels["phase"].to_pylist(), kernels["name"].to_pylist()))


def _joined_window_sums(
    sums: Sequence[WindowSums], rows: Sequence[Int64], *, n_rows: int, edges: Sequence[Any]
) -> WindowSums:
    """Put the sums of each capture behind those of the captures before.

    `rows` are the new rows of each capture's rows, `edges` the new edges of its groups.
    """
    groups_before = _sums_before([part.edges.size - 1 for part in sums])
    groups = [part.group + n_before for part, n_before in zip(sums, groups_before, strict=True)]
    new_rows = [new_row[part.row] for part, new_row in zip(sums, rows, strict=True)]
    columns = zip(*(part.sums for part in sums), strict=True)
    return WindowSums(
        n_rows=n_rows,
        edges=np.hstack(edges),
        group=np.concatenate(groups),
        row=np.concatenate(new_rows).astype(np.int32),
        sums=tuple(map(np.concatenate, columns)),
    )


def _reduced(name: str, values: Sequence[Int64], rows: Sequence[Int64], n_rows: int) -> Int64:
    """Return the sum of each row over captures, or the extreme for ``min_ns`` and ``max_ns``."""
    extremes = {"min_ns": np.minimum.at, "max_ns": np.maximum.at}
    reduce: Callable[..., None] = extremes.get(name, np.add.at)
    reduced = np.full(n_rows, np.iinfo(np.int64).max if name == "min_ns" else 0)
    for capture_values, capture_rows in zip(values, rows, strict=True):
        reduce(reduced, capture_rows, capture_values)
    return reduced
