"""Several captures of the same processes, as nsys makes them with --capture-range-end=repeat: each process is one rank.

Reports tell it by host, process ID and times that do not overlap. What a rank did in its captures
is put side by side, on the clock of its first one; what lies between two captures is in no step.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

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
from nsyspipe.reader.metadata import LAUNCHER_SIZES
from nsyspipe.run.process import HostDigest, ProcessDigest

if TYPE_CHECKING:
    from nsyspipe.run.digests import P, Rank, ReportDigest

_ONE_RUN_NS = 60 * 10**9  # captures farther apart need more than their names to be of one process
MAX_NSYS_START_ROUNDING_NS = 1_000  # reports of one nsys differ by some ns in when it was started
_TIMES_OF_MEMBERS = ("start_ns", "end_ns", "device_start_ns", "device_end_ns")
_Ranks: TypeAlias = "Sequence[Rank[ProcessDigest]]"
_Shifted: TypeAlias = Sequence[
    tuple[ProcessDigest, int, int]
]  # a capture's, how much later it is, members before it


def captures_of_processes(parts: _Ranks, *, is_one_job: bool) -> list[list[Rank[ProcessDigest]]]:
    """Group the processes of reports by what they are captures of, each group in order of time, groups in order of argument.

    `is_one_job`: the reports say themselves that they are of one job.
    """
    same: dict[object, list[int]] = {}
    for at, part in enumerate(parts):
        facts = part.report.facts
        is_told = facts.host is not None and facts.session_start_utc_ns is not None
        same.setdefault(
            (facts.host, part.process.pid, part.process.device_id) if is_told else at, []
        ).append(at)
    groups: list[list[int]] = []
    for alike in same.values():
        of_alike: list[list[int]] = []
        for at in sorted(alike, key=lambda at: parts[at].span):
            begun = (
                own
                for own in of_alike
                if _is_next_capture(parts[own[-1]], parts[at], is_one_job=is_one_job)
            )
            group = next(begun, None)
            if group is None:
                of_alike.append([at])
            else:
                group.append(at)
        groups += of_alike
    return [[parts[at] for at in group] for group in sorted(groups, key=min)]


def _is_next_capture(
    before: Rank[ProcessDigest], after: Rank[ProcessDigest], *, is_one_job: bool
) -> bool:
    """Tell whether two reports of processes with one number on one host are captures of one process.

    Captures of one nsys are, whatever they are called: nsys starts the process once. Where that was
    not recorded, other programs, in containers, may have that number too. Then they are no job,
    number their steps alike, and are called by other names or ran long after each other.
    """
    gap_ns = after.span[0] - before.span[1]
    is_other = _has_other_rank(before, after) or _has_other_communicators(before, after)
    if gap_ns < 0 or before.argument == after.argument or is_other:
        return False
    if _are_by_one_nsys(before, after):
        return True
    are_alike = _name(before.report) == _name(after.report)
    is_near = gap_ns <= _ONE_RUN_NS or _have_one_rank(before, after)
    return is_one_job or _do_numbers_go_on(before, after) or (are_alike and is_near)


def _are_by_one_nsys(before: Rank[ProcessDigest], after: Rank[ProcessDigest]) -> bool:
    """Tell whether one nsys made both reports."""
    one, other = (part.report.facts.nsys_start_utc_ns for part in (before, after))
    return one is not None and other is not None and abs(one - other) <= MAX_NSYS_START_ROUNDING_NS


def share_one_process_number(before: Rank[ProcessDigest], after: Rank[ProcessDigest]) -> bool:
    """Tell whether two ranks are soon after each other on one device of a process with one number on one host.

    Most probably these are captures of one process that nothing recorded shows to be. As two ranks
    of a run they would make every figure across ranks wrong.
    """
    keys = [
        (part.report.facts.host, part.process.pid, part.process.device_id)
        for part in (before, after)
    ]
    are_timed = all(part.report.facts.session_start_utc_ns is not None for part in (before, after))
    if (
        keys[0] != keys[1]
        or keys[0][0] is None
        or not are_timed
        or before.argument == after.argument
    ):
        return False
    if _has_other_rank(before, after) or _has_other_communicators(before, after):
        return False
    return 0 <= after.span[0] - before.span[1] <= _ONE_RUN_NS


def _have_one_rank(before: Rank[ProcessDigest], after: Rank[ProcessDigest]) -> bool:
    """Tell whether both reports captured the same RANK."""
    numbers = {part.report.facts.number("RANK") for part in (before, after)}
    return len(numbers) == 1 and None not in numbers


def _name(report: ReportDigest) -> str:
    """Return a report's name without its last number: nsys counts the captures there."""
    return re.sub(r"\d+(\D*)$", r"#\1", files.source_of(Path(report.path)).stem)


def _has_other_rank(before: Rank[ProcessDigest], after: Rank[ProcessDigest]) -> bool:
    """Tell whether a launcher gave two processes, each alone in its report, different ranks."""
    if not (before.is_alone and after.is_alone):
        return False
    numbers = [
        [part.report.facts.number(name) for name in ("RANK", *LAUNCHER_SIZES)]
        for part in (before, after)
    ]
    return any(None not in pair and pair[0] != pair[1] for pair in zip(*numbers, strict=True))


def _do_numbers_go_on(before: Rank[ProcessDigest], after: Rank[ProcessDigest]) -> bool:
    """Tell whether the steps of one are numbered in their ranges behind all steps of the other."""
    last, first = (part.process.members["number"] for part in (before, after))
    if not len(last) or not len(first) or last.null_count or first.null_count:
        return False
    return bool(pc.max(last).as_py() < pc.min(first).as_py())


def _has_other_communicators(before: Rank[ProcessDigest], after: Rank[ProcessDigest]) -> bool:
    """Tell whether NCCL names communicators in both, and none in both."""
    own = [_communicators(part.process) for part in (before, after)]
    return all(own) and own[0].isdisjoint(own[1])


def _communicators(process: ProcessDigest) -> set[int]:
    table = process.comm.narrow
    # Of a run that is read, its operations are in the run's tables.
    return {*table["comm_id"].drop_null().to_pylist()} if "comm_id" in table.column_names else set()


def capture_numbers(groups: Sequence[Sequence[Rank[P]]]) -> dict[int, int]:
    """Return of each report, by argument, which capture of the run it is, from 0: reports that overlap in time are one.

    Where those of different captures overlap, the k-th reports of all processes are the k-th
    capture.
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
    if all(len({numbers[part.argument] for part in group}) == len(group) for group in groups):
        return numbers
    return {part.argument: at for group in groups for at, part in enumerate(group)}


def joined(captures: _Ranks) -> Rank[ProcessDigest]:
    """Return the one rank of several captures of a process, in order of time: as its first, on whose clock all times are."""
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
    """Return the ranks of a run: those captured once as they are, those captured several times joined."""
    groups = captures_of_processes(parts, is_one_job=is_one_job)
    return [group[0] if len(group) == 1 else joined(group) for group in groups]


def step_ordinals(groups: Sequence[Sequence[Rank[P]]]) -> list[Int64]:
    """Return an ordinal for each step range of each rank, of its captures in order: the k-th of one capture is one on all ranks."""
    captures = capture_numbers(groups) if any(len(group) > 1 for group in groups) else {}
    most: dict[int, int] = {}
    for part in itertools.chain.from_iterable(groups):
        number = captures.get(part.argument, 0)
        most[number] = max(most.get(number, 0), part.process.members.num_rows)
    first = dict(
        zip(sorted(most), _sums_before([most[number] for number in sorted(most)]), strict=True)
    )

    def ordinals(part: Rank[P]) -> Int64:
        return first[captures.get(part.argument, 0)] + np.arange(part.process.members.num_rows)

    return [np.concatenate([ordinals(part) for part in group]) for group in groups]


def with_steps(rank: Rank[P], number: int, process_number: int, steps: Int64) -> Rank[P]:
    """Return a rank with its number, that of its process and those of its steps. Its captures get them too."""
    edges = np.cumsum([_n_places(part.process) for part in rank.captures])[:-1]
    own = zip(rank.captures, np.split(steps, edges), strict=True) if rank.captures else ()
    captures = tuple(
        replace(part, number=number, process_number=process_number, steps=steps_of_part)
        for part, steps_of_part in own
    )
    return replace(
        rank, number=number, process_number=process_number, steps=steps, captures=captures
    )


def capture_of_windows(ranks: _Ranks) -> Int64:
    """Return which capture of the run each window of the ranks is of, in order of rank and time."""
    captures = (
        capture_numbers([rank.parts for rank in ranks])
        if any(rank.captures for rank in ranks)
        else {}
    )
    parts = [part for rank in ranks for part in rank.parts]
    numbers = np.array([captures.get(part.argument, 0) for part in parts], np.int64)
    return np.repeat(numbers, [part.process.windows.num_rows for part in parts])


def _joined_report(reports: Sequence[ReportDigest]) -> ReportDigest:
    def all_of(field: str) -> dict[int, Any]:
        return {
            key: value
            for report in reversed(reports)
            for key, value in getattr(report, field).items()
        }

    return replace(
        reports[0],
        mpi_ranks=all_of("mpi_ranks"),
        comm_ranks=all_of("comm_ranks"),
        comm_sizes=all_of("comm_sizes"),
        n_graphs=sum(report.n_graphs for report in reports),
        has_communication=any(report.has_communication for report in reports),
        problems=tuple(itertools.chain.from_iterable(report.problems for report in reports)),
    )


def _joined_process(processes: Sequence[ProcessDigest], later_ns: Sequence[int]) -> ProcessDigest:
    """Put what each process digest holds behind what those before it hold, each later by so much."""
    members_before = _sums_before([_n_places(process) for process in processes])
    windows_before = _sums_before([process.windows.num_rows for process in processes])
    shifted = list(zip(processes, later_ns, members_before, strict=True))
    kernels, by_window = _joined_kernels(processes, windows_before)
    spans = [(one.span[0] + later, one.span[1] + later) for one, later, _ in shifted]
    return replace(
        processes[0],
        candidates=candidates_of(processes),
        members=_concatenated(
            _later(one.members, later, _TIMES_OF_MEMBERS) for one, later, _ in shifted
        ),
        device_ids=tuple(
            sorted({number for process in processes for number in process.device_ids})
        ),
        n_kernels=_sum(process.n_kernels for process in processes),
        n_comm=_sum(process.n_comm for process in processes),
        n_dtod=_sum(process.n_dtod for process in processes),
        span=(min(first for first, _ in spans), max(last for _, last in spans)),
        has_launches=any(process.has_launches for process in processes),
        comm=_joined_comm(shifted),
        backward=_joined_backward(shifted),
        windows=_concatenated(
            _behind(_later(one.windows, later, ("start_ns", "end_ns")), before)
            for one, later, before in shifted
        ),
        phases=_concatenated(_behind(one.phases, before) for one, _, before in shifted),
        kernels=kernels,
        kernels_by_window=by_window,
        blocked_ns_by_call=_joined_calls(processes, "blocked_ns_by_call"),
        of_copies_ns_by_call=_joined_calls(processes, "of_copies_ns_by_call"),
        hidden=_joined_hidden(shifted),
    )


def candidates_of(processes: Sequence[ProcessDigest]) -> tuple[Candidate, ...]:
    """Return each family that all captures of a process have, as if they were one capture."""
    if len(processes) == 1:
        return processes[0].candidates
    by_name = [
        {candidate.name: candidate for candidate in process.candidates} for process in processes
    ]
    shared = [name for name in by_name[0] if all(name in own for own in by_name)]
    of_families = ([own[name] for own in by_name] for name in shared)
    return tuple(
        replace(
            own[0],
            union_ns=sum(one.union_ns for one in own),
            n_members=sum(one.n_members for one in own),
            n_launched_inside=sum(one.n_launched_inside for one in own),
            n_launched=sum(one.n_launched for one in own),
            is_part=all(one.is_part for one in own),
        )
        for own in of_families
    )


def _n_places(process: ProcessDigest | HostDigest) -> int:
    """Return how many members there are for windows and operations to count: a capture without steps has one of no range."""
    n_members: int = process.members.num_rows
    if n_members or not isinstance(process, ProcessDigest):
        return n_members
    return int(process.windows.num_rows)


def _sums_before(counts: Sequence[int]) -> list[int]:
    return [0, *itertools.accumulate(counts)][: len(counts)]


def _sum(counts: Iterable[int | None]) -> int | None:
    known = list(counts)
    return None if None in known else sum(one for one in known if one is not None)


def _concatenated(tables: Iterable[pa.Table]) -> pa.Table:
    return pa.concat_tables(tables, promote_options="permissive").combine_chunks()


def _later(table: pa.Table, by_ns: int, names: Sequence[str]) -> pa.Table:
    for name in names:
        later = pc.add(table[name].cast(pa.int64()), by_ns)
        table = table.set_column(table.schema.get_field_index(name), name, later)
    return table


def _behind(table: pa.Table, n_before: int) -> pa.Table:
    """Return a table whose column ``member`` counts behind some others."""
    member = pc.add(table["member"], n_before)
    return table.set_column(table.schema.get_field_index("member"), "member", member)


def _joined_comm(shifted: _Shifted) -> CommOperations:
    kinds: dict[CommKind, int] = {}
    tables = []
    for process, later, n_before in shifted:
        numbers = np.array(
            [kinds.setdefault(kind, len(kinds)) for kind in process.comm.kinds], np.int64
        )
        table = _later(process.comm.table, later, ("start_ns", "end_ns"))
        member = table["member"].to_numpy()
        columns = {
            "member": np.where(member == NO_MEMBER, NO_MEMBER, member + n_before),
            "kind": np.append(numbers, 0)[table["kind"].to_numpy()],
        }
        for name, values in columns.items():
            table = table.set_column(table.schema.get_field_index(name), name, pa.array(values))
        tables.append(table)
    return CommOperations.of(
        kinds, pa.concat_tables(tables, promote_options="permissive").combine_chunks()
    )


def _joined_backward(shifted: _Shifted) -> PhaseRanges | None:
    known = [
        (one.backward, later, n_before)
        for one, later, n_before in shifted
        if one.backward is not None
    ]
    if not known:
        return None
    return PhaseRanges(
        np.concatenate([one.member + n_before for one, _, n_before in known]),
        np.concatenate([one.starts + later for one, later, _ in known]),
        np.concatenate([one.ends + later for one, later, _ in known]),
    )


def _joined_hidden(shifted: _Shifted) -> NarrowIntervals:
    intervals = [one.hidden.shifted(later) for one, later, _ in shifted]
    starts, ends = (
        np.concatenate([getattr(interval, name) for interval in intervals])
        for name in ("starts", "ends")
    )
    return NarrowIntervals.of(union(starts, ends))


def _joined_calls(processes: Sequence[ProcessDigest], field: str) -> dict[str, Int64]:
    """Put the times by API call of each capture's windows behind those of the captures before it."""
    by_process: list[dict[str, Int64]] = [getattr(process, field) for process in processes]
    nothing = [np.zeros(process.windows.num_rows, np.int64) for process in processes]
    pairs = list(zip(by_process, nothing, strict=True))
    calls = dict.fromkeys(call for times in by_process for call in times)
    return {
        call: np.concatenate([times.get(call, zero) for times, zero in pairs]) for call in calls
    }


def _joined_kernels(
    processes: Sequence[ProcessDigest], windows_before: Sequence[int]
) -> tuple[pa.Table, WindowSums]:
    """Sum up the kernels of each (phase, name) over captures, with a row of the window sums for each."""
    rows = [process.kernels.select(["phase", "name"]).to_pylist() for process in processes]
    keys = [[(row["phase"], row["name"]) for row in own] for own in rows]
    ordered = sorted(
        {*itertools.chain.from_iterable(keys)},
        key=lambda key: (key[0] is None, key[0] or "", key[1]),
    )
    place = {key: at for at, key in enumerate(ordered)}
    row_of = [np.array([place[key] for key in own], np.int64) for own in keys]
    columns: dict[str, Any] = {
        "phase": pa.array([phase for phase, _ in ordered], pa.string()),
        "name": pa.array([name for _, name in ordered], pa.string()),
    }
    for name in processes[0].kernels.column_names:
        if name not in columns:
            columns[name] = _reduced(
                name,
                [process.kernels[name].to_numpy() for process in processes],
                row_of,
                len(ordered),
            )
    sums = [process.kernels_by_window for process in processes]
    groups_before = _sums_before([one.edges.size - 1 for one in sums])
    edges = [one.edges[:-1] + before for one, before in zip(sums, windows_before, strict=True)]
    n_windows = windows_before[-1] + processes[-1].windows.num_rows
    by_window = WindowSums(
        n_rows=len(ordered),
        edges=np.append(np.concatenate(edges), n_windows),
        group=np.concatenate(
            [one.group + before for one, before in zip(sums, groups_before, strict=True)]
        ),
        row=np.concatenate([rows[one.row] for one, rows in zip(sums, row_of, strict=True)]).astype(
            np.int32
        ),
        sums=tuple(np.concatenate(own) for own in zip(*(one.sums for one in sums), strict=True)),
    )
    return pa.table(columns), by_window


def _reduced(name: str, values: Sequence[Int64], row_of: Sequence[Int64], n_rows: int) -> Int64:
    """Return the sum, or of ``min_ns`` and ``max_ns`` the extreme, of each row over captures."""
    reduce: Callable[..., None] = {"min_ns": np.minimum.at, "max_ns": np.maximum.at}.get(
        name, np.add.at
    )
    reduced = np.full(n_rows, np.iinfo(np.int64).max if name == "min_ns" else 0)
    for own, rows in zip(values, row_of, strict=True):
        reduce(reduced, rows, own)
    return reduced
