"""The operations of a run one by one, in a second reading: what to read of each report, who reads it, in order of rank."""

import contextlib
import itertools
from collections import Counter, deque
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace

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
from nsyspipe.reader.operations import Wanted, read_again
from nsyspipe.run.assemble import RunTables
from nsyspipe.run.collectives import places_in_steps
from nsyspipe.run.digests import Rank
from nsyspipe.run.gather import text_families, texts_of
from nsyspipe.run.process import ProcessDigest
from nsyspipe.run.workers import SerialExecutor, jobs_for, place_for, size_of, telling_shortage

_NOTHING = (NEVER, -NEVER)  # holds no time, and leaves the hull with another span as that is


class ReportTask(Struct, frozen=True):
    """One report's share of the work."""

    path: str
    reading: Reading
    family: str | None  # the run's step family; None when each rank's capture is one window
    wanted: Wanted
    ranks: tuple[RankSteps, ...]


def report_operations(task: ReportTask) -> list[OfRank]:
    """Return of each rank of one report its number, `schema.EVENTS` and `schema.PHASE_RANGES`, sorted by all columns."""
    names, tables = read_again(task.path, task.reading.comm_kernel, task.wanted)
    *_, all_ranges, _ = tables
    named, families = text_families(all_ranges, task.reading)
    codes = phase_codes(named, task.reading.phases, texts_of(all_ranges))
    processes = sorted({rank.process_id for rank in task.ranks})
    parts = [
        [None] * len(processes) if table is None else by_process(table, processes)
        for table in tables
    ]
    results = []
    for rank in task.ranks:
        *operations_of_process, ranges, launches = (
            part[processes.index(rank.process_id)] for part in parts
        )
        of_rank = operations_of_process
        device = rank.device
        if device is not None:
            of_rank = [device.rows_of(table) for table in operations_of_process]
        kernels, memcpys, memsets = of_rank
        times = launch_times(launches, kernels, memcpys, memsets)
        operations = device_operations(kernels, memcpys, memsets, times, names)
        members = _members(rank, ranges, families, task.family)
        phases = phase_ranges(ranges, codes, members, rank.others)
        if rank.backward is not None:
            phases["backward"] = rank.backward
        events = event_table(task.path, rank, operations, phases, members)
        results.append((rank.rank, events, phase_ranges_table(rank, operations, phases)))
    return results


def _members(
    rank: RankSteps, ranges: pa.Table, families: TextFamilies, family: str | None
) -> Members:
    rows = np.empty(0, np.int64)
    if family in families.names and rank.starts.size and ranges.num_rows:
        code = families.of_text[ranges["text"].combine_chunks().indices.to_numpy()]
        starts, ends, thread = (
            ranges[name].to_numpy() for name in ("start_ns", "end_ns", "thread_id")
        )
        at = np.minimum(np.searchsorted(rank.starts, starts), rank.starts.size - 1)
        is_step = (rank.starts[at] == starts) & (rank.ends[at] == ends) & (thread == rank.thread_id)
        rows = np.flatnonzero(is_step & (code == families.names.index(family)))
        rows = rows[outermost(starts[rows], ends[rows])]  # of equal ones the one that was taken
    return Members(rank.thread_id, rows, rank.starts, rank.ends)


def run_operations(
    tables: RunTables,
    reading: Reading,
    ranks: Collection[int] | None = None,
    *,
    steps: tuple[int, int] | int | None = None,
    jobs: int | None = None,
    executor: Executor | None = None,
) -> Iterator[OfRank]:
    """Read the reports of a run, or of some ranks, again: in order of rank its number, `schema.EVENTS` and `schema.PHASE_RANGES`.

    Of some steps: of each rank the operations that run, or begin, between the first start and the
    last end of its windows of these steps, whatever step they belong to, and the phases of these
    steps; none without such a window.
    """
    if steps is not None:
        steps = check_steps(tables.steps, steps)
    seqs = places_in_steps(tables.across)
    rows = tables.across.rows
    of_reports: dict[int, list[tuple[Rank[ProcessDigest], RankSteps]]] = {}
    for rank, own in tables.across.by_rank():
        if ranks is None or rank.number in ranks:
            for part, of_part in _parts(rank, rows.start_ns[own]):
                times = rows.start_ns[own][of_part], rows.end_ns[own][of_part]
                asked = _rank_steps(part, times, seqs[own][of_part], steps)
                of_reports.setdefault(part.argument, []).append((part, asked))
    return _in_order(
        [_task(of_report, reading) for of_report in of_reports.values()], jobs, executor
    )


def _parts(rank: Rank[ProcessDigest], starts: Int64) -> Iterator[tuple[Rank[ProcessDigest], slice]]:
    """Yield each capture of a rank with which of its communication operations, of which these are the starts, are in it."""
    edges = np.searchsorted(starts, [part.span[0] for part in rank.parts[1:]]).tolist()
    return zip(
        rank.parts,
        itertools.starmap(slice, itertools.pairwise([0, *edges, starts.size])),
        strict=True,
    )


def _in_order(
    tasks: Sequence[ReportTask], jobs: int | None, executor: Executor | None
) -> Iterator[OfRank]:
    """Run the tasks, few ahead of the one that is waited for, and yield what they return in order of rank."""
    ready: dict[int, list[OfRank]] = {}  # of each capture
    n_captures = Counter(rank.rank for task in tasks for rank in task.ranks)
    waiting: deque[Future[list[OfRank]]] = deque()
    left = iter(tasks)
    with _running(tasks, jobs, executor) as (running, n_ahead), telling_shortage():
        try:
            for number in sorted(n_captures):
                while len(ready.get(number, ())) < n_captures[number]:
                    while len(waiting) < n_ahead and (task := next(left, None)):
                        task = replace(task, path=place_for(running, task.path))
                        waiting.append(running.submit(report_operations, task))
                    for result in waiting.popleft().result():
                        ready.setdefault(result[0], []).append(result)
                yield _joined_captures(ready.pop(number))
        finally:
            for future in waiting:
                future.cancel()


def _joined_captures(captures: Sequence[OfRank]) -> OfRank:
    """Return what a rank did in all of its captures, which come in order of time."""
    if len(captures) == 1:
        return captures[0]
    (number, *_), *_ = captures
    events, ranges = (
        pa.concat_tables([capture[at] for capture in captures]).unify_dictionaries()
        for at in (1, 2)
    )
    return number, events, ranges


@contextlib.contextmanager
def _running(
    tasks: Sequence[ReportTask], jobs: int | None, executor: Executor | None
) -> Iterator[tuple[Executor, int]]:
    if executor is not None and _takes_work(executor):
        yield executor, (jobs or 4) + 1
        return
    # All operations of a report take 4.2 times its bytes (measured), twice of what `jobs_for`
    # reckons with.
    is_whole = any(task.wanted.span is None for task in tasks)
    weight, n_ahead = (2, 1) if is_whole else (1, 8)  # of some steps results are small
    n_jobs = jobs_for([weight * size_of(Path(task.path)) for task in tasks], jobs)
    if n_jobs == 1:
        yield SerialExecutor(), 1
        return
    # Most of the time goes by in SQLite, Arrow and numpy, which let other threads run.
    with ThreadPoolExecutor(n_jobs) as threads:
        yield threads, n_jobs + n_ahead


def _takes_work(executor: Executor) -> bool:
    try:
        executor.submit(int).result()
    except BrokenExecutor:
        return True  # it died at its work, which whoever waits for that work says
    except RuntimeError:
        return False
    return True


def _rank_steps(
    rank: Rank[ProcessDigest],
    times: tuple[Int64, Int64],
    seqs: Int64,
    steps: tuple[int, int] | None,
) -> RankSteps:
    """Return what the first reading says of a rank; of each communication operation aligned `times`, and its place in its step."""
    process = rank.process
    family = rank.report.family
    windows = Windows(
        *(
            process.windows[name].to_numpy()
            for name in ("member", "start_ns", "end_ns", "is_complete")
        )
    )
    starts, ends = (process.members[name].to_numpy() for name in ("start_ns", "end_ns"))
    comm_starts, comm_ends = (column - rank.shift_ns for column in times)
    comm = {"comm_starts": comm_starts, "comm_ends": comm_ends, "seqs": seqs}
    span = (
        None
        if steps is None
        else _hull(windows.starts, windows.ends, _between(rank.steps[windows.member], steps))
    )
    if span is not None:
        rows = overlapping_rows(comm_starts, comm_ends, span)
        comm = {name: column[rows] for name, column in comm.items()}
    return RankSteps(
        rank=rank.number,
        process_id=process.process_id,
        device=process.device,
        shift_ns=rank.shift_ns,
        has_launches=process.has_launches,
        thread_id=next(
            (candidate.thread_id for candidate in process.candidates if candidate.name == family), 0
        ),
        starts=starts,
        ends=ends,
        numbers=rank.steps,
        backward=process.backward,
        others=process.other_threads,
        windows=windows,
        is_chosen=_between(rank.steps[: starts.size], steps),
        span=span,
        **comm,
    )


def _between(numbers: Int64, steps: tuple[int, int] | None) -> Flags:
    first, last = steps or (-NEVER, NEVER)
    return (numbers >= first) & (numbers <= last)


def _hull(starts: Int64, ends: Int64, chosen: Flags) -> tuple[int, int]:
    return (int(starts[chosen].min()), int(ends[chosen].max())) if chosen.any() else _NOTHING


def _task(ranks: Sequence[tuple[Rank[ProcessDigest], RankSteps]], reading: Reading) -> ReportTask:
    report = ranks[0][0].report
    steps = tuple(one for _, one in ranks)
    parts = zip(*((step.starts, step.ends, step.is_chosen) for step in steps), strict=True)
    starts, ends, chosen = map(np.concatenate, parts)
    # The hull of what is asked for, and of what was launched in the steps asked for; without steps,
    # all is.
    spans = [step.span for step in steps if step.span is not None]
    launched = pa.concat_tables(rank.process.members.filter(one.is_chosen) for rank, one in ranks)
    firsts = [first for first, _ in spans] + launched["device_start_ns"].drop_null().to_pylist()
    # The last may begin where it ends.
    lasts = [last for _, last in spans] + [
        end + 1 for end in launched["device_end_ns"].drop_null().to_pylist()
    ]
    if report.called.launches.num_rows:
        # Of a collective that is made of copies all are read, or it would be shorter than it was.
        firsts += [int(one.comm_starts.min()) for _, one in ranks if one.comm_starts.size]
        lasts += [int(one.comm_ends.max()) for _, one in ranks if one.comm_ends.size]
    wanted = Wanted(
        span=(min(firsts), max(lasts)) if spans else None,
        steps=(starts, ends),
        host_span=_hull(starts, ends, chosen) if chosen.any() else None,
        threads=tuple(
            sorted({thread for step in steps if step.starts.size for thread in step.threads})
        ),
        name_column=report.name_column,
        open_end_ns=report.open_end_ns,
        zones=report.zones,
        called=report.called,
        file_state=report.facts.file_state,
    )
    return ReportTask(report.path, reading, report.family, wanted, steps)
