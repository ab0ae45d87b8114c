"""The single operations of a run, in a second reading of its reports.

This decides what to read of each report, who reads it, and yields results in order of rank.
"""

import contextlib
import itertools
from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from nsyspipe.analysis.attribution import NEVER, by_process, launch_times
from nsyspipe.analysis.intervals import outermost
from nsyspipe.analysis.operations import (
    RankSteps,
    device_operations,
    event_table,
    overlapping_rows,
    phase_ranges_table,
)
from nsyspipe.analysis.phases import phase_codes, phase_ranges
from nsyspipe.analysis.steps import Members, TextFamilies, Windows, check_steps
from nsyspipe.model.options import Reading
from nsyspipe.model.schema import OfRank
from nsyspipe.model.table import Flags, Int64
from nsyspipe.model.typed_tables import (
    RangesOfReportTable,
)
from nsyspipe.model.user_paths import ReportFile
from nsyspipe.reader.operations import Wanted, read_again
from nsyspipe.run.assemble import RunTables
from nsyspipe.run.collectives import places_in_steps
from nsyspipe.run.digests import Rank
from nsyspipe.run.gather import text_families, texts_of
from nsyspipe.run.process import ProcessDigest
from nsyspipe.run.workers import SerialExecutor, jobs_for, size_of, telling_shortage

# A span without time, which does not change the hull with another span.
_EMPTY_SPAN = (NEVER, -NEVER)
_ALL_STEPS = (-NEVER, NEVER)
# How many reports of a whole capture, or of some steps, wait for their turn. All operations of a
# report are large. Those of some steps are small.
_N_WHOLE_AHEAD = 1
_N_PARTS_AHEAD = 8
# All operations of a report take 4.2 times its bytes (measured). `jobs_for` reckons with half.
_MEMORY_WEIGHT_OF_WHOLE = 2
# An executor that was passed has this many workers unless the user says otherwise.
_DEFAULT_JOBS = 4


class ReportTask(Struct, frozen=True):
    """What a second reading of one report reads and returns."""

    file: ReportFile
    reading: Reading
    # The step family of the run, None if the capture of each rank is one window.
    family: str | None
    wanted: Wanted
    ranks: tuple[RankSteps, ...]


class _ProcessTables(NamedTuple):
    """The tables of one process, as `reader.operations.read_again` returns them."""

    kernels: pa.Table
    memcpys: pa.Table
    memsets: pa.Table
    ranges: RangesOfReportTable
    # None if calls were not recorded.
    launches: pa.Table | None


class _TextMeanings(NamedTuple):
    """What the texts of a report's ranges mean."""

    families: TextFamilies
    # Of each text, the phase as `phases.phase_codes` returns it.
    phase_of_text: Int64
    # The text of each kernel name ID.
    kernel_names: Mapping[int, str]


def report_operations(task: ReportTask) -> list[OfRank]:
    """Return the number of each rank of one report, with `schema.EVENTS` and `schema.PHASE_RANGES`.

    The tables are sorted by all columns.
    """
    reading = task.reading
    wanted = read_again(task.file, reading.comm_kernel, task.wanted)
    # The tables are in the order of the fields of `_ProcessTables`.
    tables = (wanted.kernels, wanted.memcpys, wanted.memsets, wanted.ranges, wanted.launches)
    families_by_text, step_families = text_families(wanted.ranges, reading)
    phase_of_text = phase_codes(families_by_text, reading.phases, texts_of(wanted.ranges))
    meanings = _TextMeanings(step_families, phase_of_text, wanted.kernel_names)
    process_ids = {rank.process_id for rank in task.ranks}
    tables_of_process = _tables_by_process(tables, process_ids)
    operations_of_ranks = []
    for rank in task.ranks:
        process_tables = tables_of_process[rank.process_id]
        operations_of_ranks.append(_operations_of_rank(task, rank, process_tables, meanings))
    return operations_of_ranks


def _tables_by_process(
    tables: Iterable[pa.Table | None], process_ids: Collection[int]
) -> dict[int, _ProcessTables]:
    """Return the part of each table that belongs to each process, by the ID of the process."""
    ordered_ids = sorted(process_ids)
    # Of each table, its parts in the order of the processes.
    parts_of_tables = [by_process(table, ordered_ids) for table in tables]
    tables_of_process = {}
    for process_id, *process_parts in zip(ordered_ids, *parts_of_tables, strict=True):
        tables_of_process[process_id] = _ProcessTables(*process_parts)
    return tables_of_process


def _operations_of_rank(
    task: ReportTask, rank: RankSteps, tables: _ProcessTables, meanings: _TextMeanings
) -> OfRank:
    """Return the number, the operations and the phases of one rank, by the tables of its process.

    If the process used several devices, only operations on the rank's device are returned.
    """
    kernels, memcpys, memsets = _tables_of_device(rank, tables)
    launches = launch_times(tables.launches, kernels, memcpys, memsets)
    operations = device_operations(kernels, memcpys, memsets, launches, meanings.kernel_names)
    members = _members(rank, tables.ranges, meanings.families, task.family)
    phases = phase_ranges(tables.ranges, meanings.phase_of_text, members, rank.others)
    if rank.backward is not None:
        # No range marks the backward pass, but the first reading found it.
        phases["backward"] = rank.backward
    events = event_table(str(task.file), rank, operations, phases, members)
    ranges = phase_ranges_table(rank, operations, phases)
    return rank.rank, events, ranges


class _DeviceTables(NamedTuple):
    """The operations on one device."""

    kernels: pa.Table
    memcpys: pa.Table
    memsets: pa.Table


def _tables_of_device(rank: RankSteps, tables: _ProcessTables) -> _DeviceTables:
    """Return the operations of a process on the rank's device."""
    if rank.device is None:
        # The process used one device.
        return _DeviceTables(tables.kernels, tables.memcpys, tables.memsets)
    rows_of = rank.device.rows_of
    return _DeviceTables(rows_of(tables.kernels), rows_of(tables.memcpys), rows_of(tables.memsets))


def _members(
    rank: RankSteps, ranges: RangesOfReportTable, families: TextFamilies, family: str | None
) -> Members:
    """Return the steps of the first reading, with their rows in the ranges that were read again.

    Units of a launch pattern have no such rows.
    """
    if family in families.names and rank.starts.size and ranges.num_rows:
        step_rows = _rows_of_steps(rank, ranges, families, family)
    else:
        step_rows = np.empty(0, np.int64)
    return Members(rank.thread_id, step_rows, rank.starts, rank.ends)


def _rows_of_steps(
    rank: RankSteps, ranges: RangesOfReportTable, families: TextFamilies, family: str
) -> Int64:
    """Return which rows of `ranges` are the step ranges of a rank."""
    starts = ranges["start_ns"].to_numpy()
    ends = ranges["end_ns"].to_numpy()
    text_of_range = ranges["text"].combine_chunks().indices.to_numpy()
    family_of_range = families.of_text[text_of_range]
    is_of_family = family_of_range == families.names.index(family)
    is_on_thread = ranges["thread_id"].to_numpy() == rank.thread_id
    may_be_step = is_of_family & is_on_thread & _are_at_steps(rank, starts, ends)
    candidate_rows = np.flatnonzero(may_be_step)
    # If several ranges have the same times, this picks the range that the first reading took.
    picks = outermost(starts[candidate_rows], ends[candidate_rows])
    return candidate_rows[picks]


def _are_at_steps(rank: RankSteps, starts: Int64, ends: Int64) -> Flags:
    """Tell which ranges have the start and the end of a step range. There must be steps."""
    # The first step that does not start before the range.
    next_step = np.searchsorted(rank.starts, starts)
    # A range behind the start of the last step is compared with the last step, from which it
    # differs.
    last_step = rank.starts.size - 1
    compared_step = np.minimum(next_step, last_step)
    has_start: Flags = rank.starts[compared_step] == starts
    has_end: Flags = rank.ends[compared_step] == ends
    return has_start & has_end


class _RankPart(NamedTuple):
    """One capture of a rank, and what the second reading is to return of it."""

    rank: Rank[ProcessDigest]
    steps: RankSteps


class _CommTimes(NamedTuple):
    """When the communication operations of a rank run, and the place of each in its step."""

    starts_ns: Int64
    ends_ns: Int64
    seqs: Int64

    def take(self, rows: slice | Int64) -> "_CommTimes":
        """Return some of the operations."""
        starts_ns = self.starts_ns[rows]
        ends_ns = self.ends_ns[rows]
        return _CommTimes(starts_ns, ends_ns, self.seqs[rows])

    def in_report_time(self, shift_ns: int) -> "_CommTimes":
        """Turn aligned times into times of the report."""
        starts_ns = self.starts_ns - shift_ns
        ends_ns = self.ends_ns - shift_ns
        return _CommTimes(starts_ns, ends_ns, self.seqs)


def run_operations(
    tables: RunTables,
    reading: Reading,
    ranks: Collection[int] | None = None,
    *,
    steps: tuple[int, int] | int | None = None,
    jobs: int | None = None,
    executor: Executor | None = None,
) -> Iterator[OfRank]:
    """Read the reports of a run, or of some ranks, again.

    Yields the number of each rank, in ascending order, with `schema.EVENTS` and
    `schema.PHASE_RANGES`.

    If `steps` is passed, the operations of a rank are those that run or begin during its windows of
    these steps: from the start of the first window to the end of the last. The operations may
    belong to other steps too. The phase ranges are those of the chosen steps. A rank without such a
    window has no rows.
    """
    first_and_last_step = None if steps is None else check_steps(tables.steps, steps)
    cross_rank = tables.cross_rank
    seqs = places_in_steps(cross_rank)
    all_times = _CommTimes(cross_rank.rows.start_ns, cross_rank.rows.end_ns, seqs)
    parts_of_report: dict[int, list[_RankPart]] = {}
    for rank, rows_of_rank in cross_rank.by_rank():
        if ranks is not None and rank.number not in ranks:
            continue
        times_of_rank = all_times.take(rows_of_rank)
        for capture, times in _split_by_capture(rank, times_of_rank):
            rank_steps = _rank_steps(capture, times, first_and_last_step)
            part = _RankPart(capture, rank_steps)
            parts_of_report.setdefault(capture.argument, []).append(part)
    tasks = [_task(parts, reading) for parts in parts_of_report.values()]
    return _in_order(tasks, jobs, executor)


def _split_by_capture(
    rank: Rank[ProcessDigest], times: _CommTimes
) -> Iterator[tuple[Rank[ProcessDigest], _CommTimes]]:
    """Yield each capture of a rank with the times of its communication operations.

    `times` has the operations of all captures, in order of start.
    """
    later_starts_ns = []
    for capture in rank.parts[1:]:
        start_ns, _ = capture.span
        later_starts_ns.append(start_ns)
    first_rows_of_later = np.searchsorted(times.starts_ns, later_starts_ns).tolist()
    # The rows of a capture lie between two edges, of which the last is the number of all rows.
    edges = [0, *first_rows_of_later, times.starts_ns.size]
    for capture, (start_row, end_row) in zip(rank.parts, itertools.pairwise(edges), strict=True):
        yield capture, times.take(slice(start_row, end_row))


def _in_order(
    tasks: Sequence[ReportTask], jobs: int | None, executor: Executor | None
) -> Iterator[OfRank]:
    """Run the tasks, a few at once, and yield their results in order of rank.

    A result is kept until the results of all lower ranks have been yielded.
    """
    # By rank number, the captures that have been read and not yielded yet.
    ready: defaultdict[int, list[OfRank]] = defaultdict(list)
    captured_ranks = itertools.chain.from_iterable(task.ranks for task in tasks)
    n_captures_of_rank = Counter(rank.rank for rank in captured_ranks)
    submitted: deque[Future[list[OfRank]]] = deque()
    remaining_tasks = iter(tasks)
    with _running(tasks, jobs, executor) as (running, max_submitted), telling_shortage():
        try:
            for number in sorted(n_captures_of_rank):
                while len(ready[number]) < n_captures_of_rank[number]:
                    n_free = max_submitted - len(submitted)
                    for task in itertools.islice(remaining_tasks, n_free):
                        submitted.append(_submit(task, running))
                    # This waits for the task that was submitted first.
                    for operations in submitted.popleft().result():
                        rank_number, _, _ = operations
                        ready[rank_number].append(operations)
                yield _joined_captures(ready.pop(number))
        finally:
            # The caller has stopped, or a task has failed. Nobody needs the other results.
            for future in submitted:
                future.cancel()


def _submit(task: ReportTask, running: Executor) -> Future[list[OfRank]]:
    return running.submit(report_operations, task)


def _joined_captures(captures: Sequence[OfRank]) -> OfRank:
    """Return what a rank did in all of its captures, which come in order of time."""
    if len(captures) == 1:
        return captures[0]
    numbers, events, ranges = zip(*captures, strict=True)
    all_events = pa.concat_tables(events).unify_dictionaries()
    all_ranges = pa.concat_tables(ranges).unify_dictionaries()
    return numbers[0], all_events, all_ranges


@contextlib.contextmanager
def _running(
    tasks: Sequence[ReportTask], jobs: int | None, executor: Executor | None
) -> Iterator[tuple[Executor, int]]:
    """Yield the executor that runs the tasks, and how many tasks may be submitted at once.

    It is the executor of the caller, if there is an open one. Else threads of this process run the
    tasks. Some more tasks are submitted than can run at once, so that no worker waits for the next.
    """
    if executor is not None and _takes_work(executor):
        n_workers = jobs or _DEFAULT_JOBS
        n_waiting = 1
        yield executor, n_workers + n_waiting
        return
    # Without a span, all operations of a report are read.
    reads_whole_report = any(task.wanted.span is None for task in tasks)
    weight = _MEMORY_WEIGHT_OF_WHOLE if reads_whole_report else 1
    weighted_sizes = [weight * size_of(task.file) for task in tasks]
    n_jobs = jobs_for(weighted_sizes, jobs)
    if n_jobs == 1:
        yield SerialExecutor(), 1
        return
    n_ahead = _N_WHOLE_AHEAD if reads_whole_report else _N_PARTS_AHEAD
    # SQLite, Arrow and numpy, which take most of the time, let other threads run.
    with ThreadPoolExecutor(n_jobs) as threads:
        yield threads, n_jobs + n_ahead


def _takes_work(executor: Executor) -> bool:
    """Tell whether an executor still takes calls, by the call of a function without effect."""
    try:
        executor.submit(int).result()
    except BrokenExecutor:
        # A worker died. The tasks are submitted all the same, and raise the error for that.
        return True
    except RuntimeError:
        # The executor was shut down.
        return False
    return True


def _rank_steps(
    capture: Rank[ProcessDigest], times: _CommTimes, steps: tuple[int, int] | None
) -> RankSteps:
    """Return what the first reading found about a capture of a rank.

    `times` are those of its communication operations, in aligned time. `steps` are the first and
    the last wanted step, or None if all steps are wanted. Only communication in the time of the
    wanted steps is returned.
    """
    members = capture.process.members
    starts_ns = members["start_ns"].to_numpy()
    ends_ns = members["end_ns"].to_numpy()
    n_ranges = starts_ns.size
    numbers = capture.steps
    windows = _windows(capture.process.windows)
    times_in_report = times.in_report_time(capture.shift_ns)
    if steps is None:
        span = None
        wanted_times = times_in_report
    else:
        step_of_window = numbers[windows.member]
        is_chosen_window = _are_between(step_of_window, steps)
        span = _hull(windows.starts, windows.ends, is_chosen_window)
        wanted_rows = overlapping_rows(times_in_report.starts_ns, times_in_report.ends_ns, span)
        wanted_times = times_in_report.take(wanted_rows)
    # A capture without steps has one number, but no step range.
    is_chosen = _are_between(numbers[:n_ranges], steps)
    thread_id = _thread_of_steps(capture)
    return RankSteps(
        **_facts_of_process(capture.process),
        rank=capture.number,
        shift_ns=capture.shift_ns,
        thread_id=thread_id,
        starts=starts_ns,
        ends=ends_ns,
        numbers=numbers,
        windows=windows,
        is_chosen=is_chosen,
        span=span,
        comm_starts=wanted_times.starts_ns,
        comm_ends=wanted_times.ends_ns,
        seqs=wanted_times.seqs,
    )


def _windows(table: pa.Table) -> Windows:
    """Return the windows in the table of a process digest."""
    member = table["member"].to_numpy()
    starts = table["start_ns"].to_numpy()
    ends = table["end_ns"].to_numpy()
    is_complete = table["is_complete"].to_numpy()
    return Windows(member, starts, ends, is_complete)


def _facts_of_process(process: ProcessDigest) -> dict[str, Any]:
    """Return the fields of `RankSteps` that are fields of the process digest too."""
    facts: dict[str, Any] = {"process_id": process.process_id, "device": process.device}
    facts["has_launches"] = process.has_launches
    facts["backward"] = process.backward
    facts["others"] = process.other_threads
    return facts


def _thread_of_steps(capture: Rank[ProcessDigest]) -> int:
    """Return the thread of the step ranges, 0 if there is none."""
    for candidate in capture.process.candidates:
        if candidate.name == capture.report.family:
            return candidate.thread_id
    return 0


def _are_between(numbers: Int64, steps: tuple[int, int] | None) -> Flags:
    """Tell which step numbers are from the first to the last of `steps`, all if it is None."""
    first, last = steps or _ALL_STEPS
    return (numbers >= first) & (numbers <= last)


def _hull(starts: Int64, ends: Int64, is_chosen: Flags) -> tuple[int, int]:
    """Return the first start and the last end of the chosen intervals.

    If no interval is chosen, returns `_EMPTY_SPAN`, in which no time lies.
    """
    if not is_chosen.any():
        return _EMPTY_SPAN
    first = starts[is_chosen].min()
    last = ends[is_chosen].max()
    return int(first), int(last)


def _task(parts: Sequence[_RankPart], reading: Reading) -> ReportTask:
    """Return the task of one report. `parts` are all parts of ranks that are in the report."""
    report = parts[0].rank.report
    steps_of_ranks = tuple(part.steps for part in parts)
    starts = np.concatenate([steps.starts for steps in steps_of_ranks])
    ends = np.concatenate([steps.ends for steps in steps_of_ranks])
    is_chosen = np.concatenate([steps.is_chosen for steps in steps_of_ranks])
    # The time of the wanted step ranges on the host.
    host_span = _hull(starts, ends, is_chosen) if is_chosen.any() else None
    device_span = _device_span(parts)
    threads: set[int] = set()
    for steps in steps_of_ranks:
        has_step_ranges = steps.starts.size > 0
        if has_step_ranges:
            threads.update(steps.threads)
    wanted = Wanted(
        span=device_span,
        steps=(starts, ends),
        host_span=host_span,
        threads=tuple(sorted(threads)),
        name_column=report.name_column,
        open_end_ns=report.open_end_ns,
        zones=report.zones,
        called=report.called,
        file_state=report.facts.file_state,
    )
    return ReportTask(report.file, reading, report.family, wanted, steps_of_ranks)


def _device_span(parts: Sequence[_RankPart]) -> tuple[int, int] | None:
    """Return the device time of one report to read, None for all of it.

    The time covers the wanted operations, and the operations that the wanted steps launched.
    """
    all_steps = [part.steps for part in parts]
    spans = [steps.span for steps in all_steps if steps.span is not None]
    if not spans:
        return None
    starts_ns = [start_ns for start_ns, _ in spans]
    ends_ns = [end_ns for _, end_ns in spans]
    for part in parts:
        members = part.rank.process.members.filter(part.steps.is_chosen)
        starts_ns += members["device_start_ns"].drop_null().to_pylist()
        device_ends_ns = members["device_end_ns"].drop_null()
        # The last operation may take no time, and would begin at the end of the span, outside it.
        ends_ns += pc.add(device_ends_ns, 1).to_pylist()
    # All parts are of one report.
    launches_of_copies = parts[0].rank.report.called.launches
    if launches_of_copies.num_rows:
        # A collective that is made of copies needs all its copies, or it would be too short.
        for steps in all_steps:
            if steps.comm_starts.size:
                starts_ns.append(int(steps.comm_starts.min()))
                ends_ns.append(int(steps.comm_ends.max()))
    return min(starts_ns), max(ends_ns)
