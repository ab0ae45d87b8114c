"""The operations of a run one by one, in a second reading: what to read of each report, who reads it, in order of rank."""

from __future__ import annotations

import contextlib
import itertools
from collections import deque
from concurrent.futures import BrokenExecutor, Executor, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nsyspipe.analysis.attribution import NEVER, by_process, launch_times
from nsyspipe.analysis.intervals import outermost
from nsyspipe.analysis.operations import (
    NO_SEQ,
    DeviceOperations,
    RankSteps,
    device_operations,
    events_table,
    overlapping_rows,
    phase_ranges_table,
)
from nsyspipe.analysis.phases import phase_codes, phase_ranges
from nsyspipe.analysis.step_families import Members, TextFamilies
from nsyspipe.analysis.steps import Windows, check_steps
from nsyspipe.reader.again import SecondReading, Wanted, read_again
from nsyspipe.run.collectives import numbered
from nsyspipe.run.workers import SerialExecutor, jobs_for, telling_shortage

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from concurrent.futures import Future

    from nsyspipe.model.options import Reading
    from nsyspipe.model.types import Flags, Int64
    from nsyspipe.run.assemble import RunTables
    from nsyspipe.run.cross_rank import CrossRank
    from nsyspipe.run.digest import ProcessDigest
    from nsyspipe.run.gather import Placed

    Result = tuple[int, pa.Table, pa.Table]


@dataclass(frozen=True)
class ReportTask:
    """One report's share of the work."""

    path: str
    reading: Reading
    family: str | None  # the run's step family; None when each rank's capture is one window
    wanted: Wanted
    ranks: tuple[RankSteps, ...]


def report_operations(task: ReportTask) -> list[tuple[int, pa.Table, pa.Table]]:
    """Return of each rank of one report its number, `schema.EVENTS` and `schema.PHASE_RANGES`, sorted by all columns.

    `InputError` if the report cannot be read any more, or has changed.
    """
    found = read_again(task.path, task.reading.comm_kernel, task.wanted)
    texts = found.ranges["text"].combine_chunks()
    texts = texts.dictionary if len(texts) else pa.array([], pa.string())
    named = TextFamilies.by_text(texts)
    step = task.reading.step
    families = TextFamilies.by_option(texts, step) if step else named
    codes = phase_codes(named, task.reading.phases)
    result = []
    for rank, operations, ranges in _by_rank(task.ranks, found):
        members = _members(rank, ranges, families, task.family)
        phases = phase_ranges(ranges, codes, members)
        events = events_table(task.path, rank, operations, phases, members)
        result.append((rank.rank, events, phase_ranges_table(rank, operations, phases)))
    return result


def _by_rank(
    ranks: Sequence[RankSteps], found: SecondReading
) -> Iterator[tuple[RankSteps, DeviceOperations, pa.Table]]:
    """Yield each rank's operations and ranges."""
    processes = sorted({rank.process_id for rank in ranks})
    parts = [by_process(table, processes) for table in (found.kernels, found.memcpys, found.memsets, found.ranges)]
    calls = found.launches
    launches = [None] * len(processes) if calls is None else by_process(calls, processes)
    place = {process: at for at, process in enumerate(processes)}
    for rank in ranks:
        at = place[rank.process_id]
        kernels, memcpys, memsets, ranges = (part[at] for part in parts)
        times = [launch_times(table, launches[at]) for table in (kernels, memcpys, memsets)]
        yield rank, device_operations(kernels, memcpys, memsets, times, found.names), ranges


def _members(rank: RankSteps, ranges: pa.Table, families: TextFamilies, family: str | None) -> Members:
    """Return the rank's step ranges, and the rows of those that were read this time."""
    rows = np.empty(0, np.int64)
    if family in families.names and rank.starts.size:
        text = ranges["text"].combine_chunks()
        code = families.of_text[text.indices.to_numpy()] if len(text) else rows
        starts, ends = ranges["start_ns"].to_numpy(), ranges["end_ns"].to_numpy()
        at = np.minimum(np.searchsorted(rank.starts, starts), rank.starts.size - 1)
        is_step = (rank.starts[at] == starts) & (rank.ends[at] == ends)
        is_step &= code == families.names.index(family)
        rows = np.flatnonzero(is_step & (ranges["thread_id"].to_numpy() == rank.thread_id))
        rows = rows[outermost(starts[rows], ends[rows])]  # of equal ones the one that was taken
    return Members(rank.thread_id, rows, rank.starts, rank.ends)


# Holds no time, and leaves the hull with another span as that is.
_NOTHING = (NEVER, -NEVER)
_HELD_FOR_OTHERS = 4
# All operations of a report take 4.2 times its bytes (measured), twice of what `parallel.jobs_for` reckons with.
_WEIGHT_OF_ALL = 2


def run_operations(
    tables: RunTables,
    reading: Reading,
    *,
    steps: tuple[int, int] | None = None,
    jobs: int | None = None,
    executor: Executor | None = None,
) -> Iterator[Result]:
    """Read the reports of a run again: in order of rank its number, `schema.EVENTS` and `schema.PHASE_RANGES`.

    Of some steps: of each rank the operations that run, or begin, between the first start and the last end of its
    windows of these steps, whatever step they belong to, and the phases of these steps. A rank without such a window
    has no operations. At most one result more than there are jobs is held, besides those of a report whose ranks are
    not all next in turn. An executor that was shut down since the first reading is replaced by threads, which hand
    results over without a copy.

    Raises
    ------
    OptionError
        At once, if no rank has such a step.
    InputError
        While it is consumed, if a report cannot be read any more or has changed.
    """
    if steps is not None:
        check_steps(tables.steps, steps)
    tasks = _tasks(tables, reading, steps)
    return _in_order(tasks, jobs, executor)


def _in_order(tasks: Sequence[ReportTask], jobs: int | None, executor: Executor | None) -> Iterator[Result]:
    """Run the tasks, few ahead of the one that is waited for, and yield what they return in order of rank."""
    ready: dict[int, Result] = {}
    waiting: deque[Future[list[Result]]] = deque()
    left = iter(tasks)
    with _running(tasks, jobs, executor) as (running, n_ahead), telling_shortage():
        try:
            for rank in sorted(one.rank for task in tasks for one in task.ranks):
                while rank not in ready:
                    while len(waiting) < n_ahead and (task := next(left, None)):
                        waiting.append(running.submit(report_operations, task))
                    ready |= {result[0]: result for result in waiting.popleft().result()}
                yield ready.pop(rank)
        finally:
            for future in waiting:
                future.cancel()


@contextlib.contextmanager
def _running(
    tasks: Sequence[ReportTask], jobs: int | None, executor: Executor | None
) -> Iterator[tuple[Executor, int]]:
    """Yield an executor, and how many tasks to have submitted: one is waited for while the others run."""
    if executor is not None and _takes_work(executor):
        yield executor, (jobs or _HELD_FOR_OTHERS) + 1
        return
    weight = _WEIGHT_OF_ALL if any(task.wanted.span is None for task in tasks) else 1
    paths = [Path(task.path) for task in tasks]
    n_jobs = jobs_for([weight * path.stat().st_size for path in paths if path.exists()], jobs)
    if n_jobs == 1:
        yield SerialExecutor(), 1
        return
    # Most of the time goes by in SQLite, Arrow and numpy, which let other threads run.
    with ThreadPoolExecutor(n_jobs) as threads:
        yield threads, n_jobs + 1


def _takes_work(executor: Executor) -> bool:
    try:
        executor.submit(int).result()
    except BrokenExecutor:
        return True  # it died at its work, which whoever waits for that work says
    except RuntimeError:
        return False
    return True


def _tasks(tables: RunTables, reading: Reading, steps: tuple[int, int] | None) -> list[ReportTask]:
    """Return the work on each report that holds a rank, in order of its lowest rank."""
    across, numbers = tables.across, tables.ranks["rank"].to_pylist()
    found: dict[int, list[tuple[Placed[ProcessDigest], RankSteps]]] = {}
    rows = zip(across.placed, numbers, tables.step_numbers, _seqs(across), strict=True)
    for placed, rank, own_numbers, seqs in rows:
        own = _rank_steps(placed, rank, own_numbers, seqs, steps)
        found.setdefault(placed.argument, []).append((placed, own))
    return [_task(ranks, reading) for ranks in found.values()]


def _seqs(across: CrossRank) -> list[Int64]:
    """Return for each rank the place in its step of each communication operation."""
    rows = across.rows
    seq = np.where(rows.in_step, numbered(rows, across.waiting), NO_SEQ)
    edges = np.searchsorted(rows.rank, np.arange(len(across.placed) + 1)).tolist()
    return [seq[first:last] for first, last in itertools.pairwise(edges)]


def _rank_steps(
    placed: Placed[ProcessDigest], rank: int, numbers: Int64, seqs: Int64, steps: tuple[int, int] | None
) -> RankSteps:
    process, family = placed.process, placed.report.family
    columns = ("member", "start_ns", "end_ns", "is_complete")
    windows = Windows(*(process.windows[name].to_numpy() for name in columns))
    starts, ends = (process.members[name].to_numpy() for name in ("start_ns", "end_ns"))
    span = None if steps is None else _hull(windows, _between(numbers[windows.member], steps))
    comm = process.comm.table
    comm_starts, comm_ends = (comm[name].to_numpy() for name in ("start_ns", "end_ns"))
    if span is not None:
        rows = overlapping_rows(comm_starts, comm_ends, span)
        comm_starts, comm_ends, seqs = comm_starts[rows], comm_ends[rows], seqs[rows]
    threads = [one.thread_id for one in process.candidates if one.name == family]
    return RankSteps(
        rank=rank,
        process_id=process.process_id,
        shift_ns=placed.shift_ns,
        has_launches=process.has_launches,
        is_one_window=family is None,
        thread_id=threads[0] if threads else 0,
        starts=starts,
        ends=ends,
        numbers=numbers,
        windows=windows,
        is_chosen=_between(numbers[: starts.size], steps),
        span=span,
        comm_starts=comm_starts,
        comm_ends=comm_ends,
        seqs=seqs,
    )


def _between(numbers: Int64, steps: tuple[int, int] | None) -> Flags:
    if steps is None:
        return np.ones(numbers.size, np.bool_)
    return (numbers >= steps[0]) & (numbers <= steps[1])


def _hull(windows: Windows, chosen: Flags) -> tuple[int, int]:
    if not chosen.any():
        return _NOTHING
    return int(windows.starts[chosen].min()), int(windows.ends[chosen].max())


def _task(ranks: Sequence[tuple[Placed[ProcessDigest], RankSteps]], reading: Reading) -> ReportTask:
    report = ranks[0][0].report
    steps = [one for _, one in ranks]
    starts, ends, chosen = (
        np.concatenate([getattr(one, name) for one in steps]) for name in ("starts", "ends", "is_chosen")
    )
    host = (int(starts[chosen].min()), int(ends[chosen].max())) if chosen.any() else None
    wanted = Wanted(
        span=_device_span(ranks),
        steps=(starts, ends),
        host_span=host,
        threads=tuple(sorted({one.thread_id for one in steps if one.starts.size})),
        name_column=report.name_column,
        open_end_ns=report.open_end_ns,
    )
    return ReportTask(report.path, reading, report.family, wanted, tuple(steps))


def _device_span(ranks: Sequence[tuple[Placed[ProcessDigest], RankSteps]]) -> tuple[int, int] | None:
    """Return the hull of what is asked for and of what was launched in the steps asked for; None for all."""
    spans = []
    for placed, one in ranks:
        if one.span is None:
            return None
        members = placed.process.members.filter(one.is_chosen)
        first = pc.min(members["device_start_ns"]).as_py()
        last = pc.max(members["device_end_ns"]).as_py()
        # The last may begin where it ends.
        spans += [one.span, _NOTHING if first is None else (first, last + 1)]
    return min(first for first, _ in spans), max(last for _, last in spans)
