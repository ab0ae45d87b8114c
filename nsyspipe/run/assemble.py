"""From the digests of all reports to the tables of one run: what was not seen becomes null, and a problem that says so."""

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from msgspec.structs import replace

from nsyspipe.analysis.collectives import CommOperations
from nsyspipe.analysis.intervals import run_starts
from nsyspipe.analysis.kernels import WindowSums
from nsyspipe.analysis.steps import FEW_STEPS, Selection, select_steps, step_numbers
from nsyspipe.analysis.summary import step_times, with_ratios
from nsyspipe.model import schema
from nsyspipe.model.names import grouped
from nsyspipe.model.problems import SEVERITIES, SIZE_GAPS, Problem, problem
from nsyspipe.model.side_files import NcclLog
from nsyspipe.model.table import Flags, Int64, TableSchema, conform
from nsyspipe.nsys.find_reports import display_names
from nsyspipe.run import collectives as comm
from nsyspipe.run.captures import capture_of_windows, joined_ranks, step_ordinals, with_steps
from nsyspipe.run.gather import Gathered, P, Rank, Ranks, ReportDigest, place, place_hosts
from nsyspipe.run.process import HostDigest, ProcessDigest
from nsyspipe.run.ranks import (
    JobSize,
    Numbering,
    is_surely_one_run,
    job_size,
    number_ranks,
    ranks_table,
    told_world_size,
)
from nsyspipe.run.sidecars import RunSidecars
from nsyspipe.run.unrecorded import MissingRanks, problems_of

_DERIVED = {
    "in_summary",
    "wait_ns",
    "exposed_wait_ns",
    "transfer_ns",
    "message_bytes",
    *schema.FIGURES_OF_RANKS,
}
_COLUMNS = tuple(column for column in schema.STEPS.columns if column.name not in _DERIVED)
_WINDOWS = TableSchema("windows", "Steps before selection.", schema.STEPS.key, _COLUMNS)
# What communication that was not seen makes unknown: it may have counted as compute.
_HIDDEN_OF_PHASES = ("compute_ns", "comm_ns", "exposed_comm_ns")
_HIDDEN = (
    *_HIDDEN_OF_PHASES,
    "exposed_late_comm_ns",
    "comm_on_compute_stream_ns",
    "overlap_compute_ns",
    "overlap_backward_ns",
    "n_collectives",
    "comm_delay_ns",
)
# What copies inside CUDA graphs that were captured as a whole make unknown.
_DTOD = "exposed_memory_ns", "dtod_ns", "dtod_bytes", "n_dtod", "exposed_dtod_ns"
_GRAD_COPIES = (
    "grad_copy_ns",
    "exposed_grad_copy_ns",
    "grad_copy_span_ns",
    "grad_copy_bytes",
    "n_grad_copies",
)
# What a second reading needs of windows, and the table of collectives.
_KEPT = ("member", "start_ns", "end_ns", "is_complete", "graph_ns")
_NOTHING = pa.table({})
_MERGED: dict[str, Any] = {
    "phases": _NOTHING,
    "kernels": _NOTHING,
    "comm": CommOperations((), _NOTHING),
    "kernels_by_window": WindowSums(0, *(np.empty(0, np.int64),) * 3, ()),  # type: ignore[arg-type]  # which has no sums
}
_IN_SUMMARY = "n_in_summary", "in_summary_ns", "overlapped_in_summary_ns"
_SHOWN = 8
_MOST_MISSING = 1000  # ranks that are looked at by number
_PLURALS = {"rank": "ranks", "process": "processes"}
# The slowest rank of each step takes so much more than any rank in the mean: worth a line, or a
# warning.
_IN_TURN = 0.01
_MUCH_IN_TURN = 0.05


class RunTables(Struct, frozen=True):
    """The tables of one run, by their names in `schema`, and how its steps were selected."""

    ranks: pa.Table
    steps: pa.Table
    phases: pa.Table
    collectives: pa.Table  # as `collectives.collective_figures` returns them
    stragglers: pa.Table
    kernels: pa.Table  # `schema.KERNEL_COSTS`
    idle_calls: pa.Table
    host_steps: pa.Table
    problems: tuple[Problem, ...]
    selection: Selection
    world_size: int | None  # what the launcher counts, as `ranks.JobSize` has it
    n_job_ranks: int | None  # the ranks of the job, likewise
    n_processes: int  # that the ranks are of
    across: (
        comm.CrossRank
    )  # the ranks in the order of the table, on one clock, with their communication
    gathered: Gathered  # less what is in these tables, as are its digests in `across`
    is_capture: bool  # whether the ranks have no steps: the one row of each is its capture


def merge(
    gathered: Gathered,
    rank_map: Mapping[str, int] | None,
    skip: int | None,
    log: NcclLog | None,
    there: frozenset[int],
) -> RunTables:
    """Join the digests of a run's reports; NCCL's log tells the world's size when nothing else does.

    Where only some of the reports are read, the ranks of all are `there`.
    """
    digests = gathered.digests
    sidecars = gathered.sidecars
    names = display_names([Path(digest.path) for digest in digests])
    is_one_run = is_surely_one_run(digests, sidecars)
    placed = joined_ranks(place(digests), is_one_job=is_one_run)
    hosts = [] if placed else place_hosts(digests)
    numbering = number_ranks(digests, placed or hosts, rank_map, sidecars)
    job = job_size(gathered, placed or hosts, numbering, log=log, there=there)
    is_capture = bool(placed) and gathered.why_no_steps is not None
    numbered = _numbered(placed, numbering, is_capture=is_capture)
    has_all = job.has_all(len(numbered))
    clocks = None
    if any(rank.captures for rank in numbered):
        numbered, clocks = comm.align_captures(
            numbered, len(digests), log, has_all=has_all, is_aligned=gathered.is_aligned
        )
    across = comm.cross_rank(
        numbered,
        len(digests),
        log,
        has_all=has_all,
        is_one_run=is_one_run,
        is_aligned=gathered.is_aligned,
        clocks=clocks,
    )
    ranks = across.placed
    in_order = [rank.number for rank in ranks]
    of_ranks = [_WINDOWS.table(_rank_columns(rank, rank.process.windows)) for rank in ranks]
    windows = pa.concat_tables([_WINDOWS.empty(), *of_ranks]).combine_chunks()
    graphs = [rank.process.windows["graph_ns"].to_numpy() > 0 for rank in ranks]
    is_graph = np.concatenate([np.zeros(0, np.bool_), *graphs])
    # A CUDA graph may hold communication where several ranks run, or NCCL or MPI is in use.
    may_hide = (
        len(ranks) > 1
        or (job.n_ranks or 1) > 1
        or any(digest.has_communication for digest in digests)
    )
    # A run of several ranks without any communication kernel has some under names that are not
    # known.
    is_unnamed = not is_graph.any() and _lacks_comm(ranks, job.n_ranks)
    hidden = np.ones(is_graph.size, np.bool_) if is_unnamed else is_graph & may_hide
    windows = _without(_without(windows, _HIDDEN, hidden), (*_DTOD, *_GRAD_COPIES), is_graph)
    windows = _without(
        windows,
        ("overlap_backward_ns", *_GRAD_COPIES),
        np.full(is_graph.size, across.has_comm_between),
    )
    step = windows["step"].to_numpy()
    start = windows["start_ns"].to_numpy()
    is_complete = np.asarray(windows["is_complete"], np.bool_)
    capture = capture_of_windows(ranks)
    selection = select_steps(step, start, is_complete, len(ranks), skip, capture=capture)
    steps = _steps(windows, across, selection)
    collectives = comm.collective_figures(across, in_order, selection.steps)
    phases = _joined(
        (schema.PHASES.table(_rank_columns(rank, rank.process.phases)) for rank in ranks),
        schema.PHASES,
    )
    is_whole = bool(across.is_whole.all()) and not across.has_comm_between and across.doubt is None
    is_hidden = bool((hidden & steps["in_summary"].to_numpy()).any())
    numbered_hosts = _numbered(hosts, numbering)
    is_numbered = numbering.source != "order"
    host_steps = (
        _host_steps(numbered_host, names[numbered_host.argument], is_numbered=is_numbered)
        for numbered_host in numbered_hosts
    )
    told_size = told_world_size(digests, sidecars)
    n_processes = numbering.n_processes
    is_more = told_size is not None and n_processes > told_size
    kept = replace(gathered, digests=tuple(map(_without_merged, digests)))
    left = tuple(_rank_without_merged(rank, kept.digests) for rank in ranks)
    return RunTables(
        ranks=ranks_table(across, numbering.source, names, sidecars, is_comm_in_graphs=may_hide),
        steps=steps,
        phases=_without_comm_of_phases(phases, windows, hidden),
        collectives=collectives,
        stragglers=comm.stragglers_table(
            collectives, steps, in_order, is_capture=is_capture, is_whole=is_whole
        ),
        kernels=_joined((_kernels(rank, selection) for rank in ranks), schema.KERNEL_COSTS),
        idle_calls=schema.IDLE_CALLS.empty()
        if is_capture
        else _idle_calls(ranks, steps, selection),
        host_steps=_joined(host_steps, schema.HOST_STEPS),
        problems=(
            *_of_reports(gathered, names, ranks, is_hidden=is_hidden),
            *(
                numbering.problems if is_numbered or not hosts else ()
            ),  # hosts without numbers are no ranks
            *across.problems,
            *_of_captures(ranks),
            *_of_ranks(ranks, numbering, job, sidecars, there),
            *(_of_unrecorded(digests, names, numbering, job) if placed else ()),
            *(
                [problem("more-ranks-than-world", n=n_processes, world_size=told_size)]
                if is_more
                else []
            ),
            *sidecars.problems,
            *_of_messages(across, digests),
            *_of_steps(steps, in_order, selection, gathered.why_no_steps, capture),
        ),
        selection=selection,
        world_size=job.world_size,
        n_job_ranks=job.n_ranks,
        n_processes=n_processes if placed else 0,
        across=replace(across, placed=left),
        gathered=kept,
        is_capture=is_capture,
    )


def _without_merged(digest: ReportDigest) -> ReportDigest:
    """Return a digest without what is in the tables of the run, most of what it holds."""
    return replace(digest, processes=tuple(map(_process_without_merged, digest.processes)))


def _process_without_merged(process: ProcessDigest) -> ProcessDigest:
    return replace(process, windows=process.windows.select(_KEPT), **_MERGED)


def _rank_without_merged(
    rank: Rank[ProcessDigest], kept: Sequence[ReportDigest]
) -> Rank[ProcessDigest]:
    """Return a rank as far as a second reading, and the table of collectives, need it; `kept` are the digests of reports."""
    report = kept[rank.argument]
    if not rank.captures:
        key = rank.process.process_id, rank.process.device_id
        processes = {
            (process.process_id, process.device_id): process for process in report.processes
        }
        return replace(rank, report=report, process=processes[key])
    captures = tuple(_rank_without_merged(part, kept) for part in rank.captures)
    report = replace(rank.report, processes=report.processes)
    return replace(
        rank, report=report, process=_process_without_merged(rank.process), captures=captures
    )


def _numbered(
    ranks: Sequence[Rank[P]], numbering: Numbering, *, is_capture: bool = False
) -> list[Rank[P]]:
    if is_capture:
        # The window of each capture has a number of its own: 0 where there is one.
        steps = [np.arange(len(rank.parts)) for rank in ranks]
    else:
        ordinals = step_ordinals([rank.parts for rank in ranks])
        steps = step_numbers([rank.process.members["number"] for rank in ranks], ordinals)
    numbered = [
        with_steps(rank, number, process_number, steps_of_rank)
        for rank, number, process_number, steps_of_rank in zip(
            ranks, numbering.numbers, numbering.process_numbers, steps, strict=False
        )
    ]
    return sorted(numbered, key=lambda rank: rank.number)


def _rank_columns(rank: Rank[ProcessDigest], table: pa.Table) -> dict[str, Any]:
    columns = {name: table[name] for name in table.column_names}
    columns["rank"] = np.full(table.num_rows, rank.number)
    if "member" in columns:
        member = columns.pop("member").to_numpy()
        columns["step"] = rank.steps[member] if member.size else np.empty(0, np.int64)
    if "start_ns" in columns:
        columns |= {name: pc.add(table[name], rank.shift_ns) for name in ("start_ns", "end_ns")}
    return columns


def _joined(tables: Iterable[pa.Table], of: TableSchema) -> pa.Table:
    return conform(
        pa.concat_tables([of.empty(), *tables]).sort_by([(name, "ascending") for name in of.key]),
        of,
    )


def _host_steps(rank: Rank[HostDigest], report: str, *, is_numbered: bool) -> pa.Table:
    members = rank.process.members
    columns = {name: members[name] for name in members.column_names} | {
        "rank": [rank.number if is_numbered else None] * members.num_rows,
        "report": [report] * members.num_rows,
        "pid": [rank.process.pid] * members.num_rows,
        "step": rank.steps,
        "host_start_ns": pc.add(members["start_ns"], rank.shift_ns),
        "host_end_ns": pc.add(members["end_ns"], rank.shift_ns),
        "host_ns": pc.subtract(members["end_ns"], members["start_ns"]),
    }
    return schema.HOST_STEPS.table(columns)


def _without(table: pa.Table, names: Iterable[str], hidden: Flags) -> pa.Table:
    for name in names if hidden.any() else ():
        at = table.column_names.index(name)
        table = table.set_column(at, table.field(at), pc.if_else(hidden, None, table[name]))
    return table


def _without_comm_of_phases(phases: pa.Table, windows: pa.Table, hidden: Flags) -> pa.Table:
    """Make null what phases say of communication in the steps where some may not have been seen."""
    if not hidden.any() or not phases.num_rows:
        return phases
    width = max(pc.max(windows["step"]).as_py(), pc.max(phases["step"]).as_py()) + 1
    tables = phases, windows.filter(pa.array(hidden))
    keys = [table["rank"].to_numpy() * width + table["step"].to_numpy() for table in tables]
    return _without(phases, _HIDDEN_OF_PHASES, np.isin(*keys))


def _steps(windows: pa.Table, across: comm.CrossRank, selection: Selection) -> pa.Table:
    counts = [rank.process.windows.num_rows for rank in across.placed]
    place = np.repeat(np.arange(len(counts)), counts)
    step = windows["step"].to_numpy()
    starts, ends = (windows[name].to_numpy() for name in ("start_ns", "end_ns"))
    waits, exposed_waits, is_known = comm.step_waits(across, place, step, starts, ends)
    # What a rank waits for may be inside another's graphs.
    is_known &= ~np.isin(step, step[pc.is_null(windows["comm_ns"]).to_numpy()])
    n_bytes, is_sized = comm.step_bytes(across, place, step)
    has_comm = pc.and_(pc.is_valid(windows["comm_ns"]), not across.has_comm_between)
    columns = {name: windows[name] for name in windows.column_names}
    columns["wait_ns"] = pc.if_else(has_comm, pa.array(waits, mask=~is_known), None)
    columns["exposed_wait_ns"] = pc.if_else(has_comm, pa.array(exposed_waits, mask=~is_known), None)
    columns["transfer_ns"] = pc.subtract(windows["comm_ns"], columns["wait_ns"])
    columns["message_bytes"] = pc.if_else(has_comm, pa.array(n_bytes, mask=~is_sized), None)
    columns["in_summary"] = pc.is_in(
        windows["step"], value_set=pa.array(selection.steps, pa.int64())
    )
    return schema.STEPS.table(with_ratios(columns))


def _kernels(rank: Rank[ProcessDigest], selection: Selection) -> pa.Table:
    kernels = rank.process.kernels
    in_summary, is_unknown = rank.process.kernels_by_window.over(_in_summary(rank, selection))
    slowed, free = (
        pc.cast(kernels[name], pa.float64(), safe=False) for name in ("slowed_ns", "free_ns")
    )
    columns = _rank_columns(rank, kernels) | {
        "mean_ns": pc.divide(kernels["total_ns"], kernels["n_kernels"]),
        "not_overlapped_ns": pc.subtract(kernels["total_ns"], kernels["overlapped_ns"]),
        "slowdown_ratio": pc.if_else(
            pc.greater(kernels["free_ns"], 0), pc.subtract(pc.divide(slowed, free), 1), None
        ),
        **{
            name: pa.array(sums, mask=is_unknown)
            for name, sums in zip(_IN_SUMMARY, in_summary, strict=True)
        },
    }
    return schema.KERNEL_COSTS.table(columns)


def _in_summary(rank: Rank[ProcessDigest], selection: Selection) -> Flags:
    return np.isin(rank.steps[rank.process.windows["member"].to_numpy()], selection.steps)


def _idle_calls(ranks: Ranks, steps: pa.Table, selection: Selection) -> pa.Table:
    chosen = steps.filter(steps["in_summary"])
    if not chosen.num_rows or chosen["idle_blocked_ns"].null_count:
        return schema.IDLE_CALLS.empty()
    totals: Counter[str] = Counter()
    of_copies: Counter[str] = Counter()
    for rank in ranks:
        counts = _in_summary(rank, selection)
        totals.update(
            {call: int(ns[counts].sum()) for call, ns in rank.process.blocked_ns_by_call.items()}
        )
        of_copies.update(
            {call: int(ns[counts].sum()) for call, ns in rank.process.of_copies_ns_by_call.items()}
        )
    ordered = sorted((-total, call) for call, total in totals.items() if total)
    n_rows = chosen.num_rows
    rows = [
        {
            "call": call,
            "blocked_ns_per_step": -total / n_rows,
            "of_copies_ns_per_step": of_copies[call] / n_rows,
        }
        for total, call in ordered
    ]
    return schema.IDLE_CALLS.from_rows(rows)


def _of_reports(
    gathered: Gathered, names: Sequence[str], ranks: Ranks, *, is_hidden: bool
) -> Iterator[Problem]:
    """Place the reports' own problems; `is_hidden`: in the figures' steps communication may have run that was not seen."""
    numbers: dict[int, dict[tuple[int | None, int | None], int]] = {}
    for rank in ranks:
        for part in rank.parts:
            key = part.process.process_id, part.process.device_id
            numbers.setdefault(part.argument, {})[key] = rank.number
    for argument, (digest, name) in enumerate(zip(gathered.digests, names, strict=True)):
        if not ranks and gathered.sidecars.is_without_gpu(argument):
            yield problem("captured-without-gpu")
            continue
        if not digest.processes:
            yield problem("no-gpu-activity", severity=None if ranks else "error").at(report=name)
            continue
        number_of = numbers.get(argument, {})
        only = next(iter(number_of.values())) if len(number_of) == 1 else None
        for one in digest.problems:
            yield one.at(report=name, rank=number_of.get((one.process_id, one.device_id), only))
        if digest.n_graphs:
            code = "comm-in-graphs" if is_hidden else "graphs-as-a-whole"
            yield problem(code, n=digest.n_graphs).at(report=name, rank=only)
        if digest.facts.session_start_utc_ns is None and len(gathered.digests) > 1:
            yield problem("no-session-start").at(report=name)


def _of_captures(ranks: Ranks) -> Iterator[Problem]:
    counts = [len(rank.captures) for rank in ranks if rank.captures]
    if counts:
        times = " to ".join(map(str, sorted({min(counts), max(counts)})))
        yield problem("captured-several-times", n=len(counts), times=times)


def _of_ranks(
    ranks: Ranks, numbering: Numbering, job: JobSize, sidecars: RunSidecars, there: frozenset[int]
) -> Iterator[Problem]:
    for rank in ranks:
        if rank.report.facts.gpu_name(rank.process.pid, rank.process.device_id) is None:
            yield problem("no-gpu-name", rank=rank.number)
    if _lacks_comm(ranks, job.n_ranks) and not any(rank.report.n_graphs for rank in ranks):
        yield problem("no-comm-kernels", n=len(ranks))
    if ranks and job.world_size is not None:
        noun = "process" if numbering.has_shared_processes else "rank"
        yield from _of_missing(
            {rank.process_number for rank in ranks}, noun, job.world_size, sidecars, there
        )
    if numbering.has_shared_processes and job.world_size is None and not job.has_all(len(ranks)):
        n_missing = (job.n_ranks or 0) - len(ranks)
        words: dict[str, Any] = {"noun": "ranks", "missing": "according to NCCL's communicator"}
        yield problem("ranks-missing", n=n_missing, world_size=job.n_ranks, **words)


def _of_unrecorded(
    digests: Sequence[ReportDigest], names: Sequence[str], numbering: Numbering, job: JobSize
) -> Iterator[Problem]:
    """Name the processes without kernels, report by report, and the ranks of the world size that they stand for."""
    numbers = None
    if job.world_size is not None and numbering.source != "order":
        present = set(numbering.process_numbers)
        numbers = [
            *itertools.islice(
                (at for at in range(job.world_size) if at not in present), _MOST_MISSING
            )
        ]
    missing = MissingRanks(job.world_size, numbers)
    for digest, name in zip(digests, names, strict=True):
        yield from (one.at(report=name) for one in problems_of(digest.unrecorded, missing))


def _of_missing(
    present: set[int], noun: str, size: int, sidecars: RunSidecars, there: frozenset[int]
) -> Iterator[Problem]:
    """Say which numbers of the job, of ranks or of processes that have several, are not present, and why."""
    words: dict[str, Any] = {"world_size": size, "noun": _PLURALS[noun]}
    unread = sorted(there - present)
    if unread:
        yield problem(
            "ranks-not-read", n=len(unread), missing=_ranks(unread, len(unread), noun), **words
        )
        present = present.union(unread)
    # Left out of the capture on purpose.
    without = {rank.rank for rank in sidecars.ranks if rank.report is None and rank.problem is None}
    left_out = sorted(number for number in without - present if number < size)
    known = present.union(left_out)
    n_missing = size - sum(number < size for number in known)
    if n_missing:
        missing = _ranks((number for number in range(size) if number not in known), n_missing, noun)
        files = sorted(
            {rank.report for rank in sidecars.ranks if rank.report and rank.rank not in known}
        )
        if files:
            missing += f", captured as {', '.join(files[:_SHOWN])}"
        yield problem("ranks-missing", n=n_missing, missing=missing, **words)
    n = len(left_out)
    if n:
        yield problem("ranks-not-captured", n=n, missing=_ranks(left_out, n, noun), **words)


def _lacks_comm(ranks: Ranks, size: int | None) -> bool:
    is_several = len(ranks) > 1 or (size or 0) > 1
    return bool(ranks) and is_several and all(rank.process.n_comm == 0 for rank in ranks)


def _of_messages(across: comm.CrossRank, digests: Sequence[ReportDigest]) -> Iterator[Problem]:
    own = np.flatnonzero(across.rows.in_step)
    n_absent = int(np.count_nonzero(comm.message_sizes(across, own)[0] == comm.ABSENT))
    if len(across.placed) < 2 or not n_absent:  # noqa: PLR2004 - one rank sends nothing
        return
    if n_absent < own.size:
        yield problem("few-message-sizes", n=n_absent, total=own.size)
        return
    gaps = {digest.size_gap for digest in digests}
    # Sizes may be there, of which none belongs to a kernel.
    without_kernel = (
        "no NCCL payload matches a communication kernel",
        "capture whole steps on every rank, with CUDA API calls (--trace=cuda,nvtx)",
    )
    why, how = next((pair for gap, pair in SIZE_GAPS.items() if gap in gaps), without_kernel)
    yield problem("no-message-size", why=why, how=how)


def _of_steps(
    steps: pa.Table, ranks: Sequence[int], selection: Selection, why: str | None, capture: Int64
) -> Iterator[Problem]:
    if not ranks:
        return
    if why is not None:
        yield problem("no-steps", why=why)
        return
    for missing, numbers in _missing(steps, ranks).items():
        yield problem(
            "step-missing",
            step=_shown(numbers, len(numbers)),
            missing=_shown(missing, len(missing)),
        )
    n_steps = selection.steps.size
    if not n_steps:
        yield problem("no-common-step")
    elif selection.is_fallback:
        yield problem("no-complete-step")
        if n_steps == 1:
            yield problem("few-steps", n=1)
    elif len(ranks) > 1 and _has_start_of_capture(steps, capture):
        yield problem("capture-start-in-figures")
    elif n_steps < FEW_STEPS:
        yield problem("few-steps", n=n_steps)
    # By what share the largest windows of the figures' steps sum to more than any rank's windows.
    counted = steps.filter(steps["in_summary"])
    longest = pc.max(
        counted.group_by("rank", use_threads=False).aggregate([("wall_ns", "sum")])["wall_ns_sum"]
    ).as_py()
    above = int(step_times(counted).sum()) / longest - 1 if longest else 0.0
    if above > _IN_TURN:
        severity = "warning" if above > _MUCH_IN_TURN else None
        yield problem("slowest-rank-changes", severity=severity, percent=f"{100 * above:.1f}")


def _has_start_of_capture(steps: pa.Table, capture: Int64) -> bool:
    """Tell whether the first step of a capture counts in the figures."""
    order = np.lexsort((steps["start_ns"].to_numpy(), capture))
    first = order[run_starts(capture[order])]
    return bool(steps["in_summary"].to_numpy()[first].any())


def _missing(table: pa.Table, ranks: Sequence[int]) -> dict[tuple[int, ...], list[int]]:
    rank = table["rank"].to_numpy()
    step = table["step"].to_numpy()
    numbers, counts = np.unique(step, return_counts=True)
    lacking = numbers[counts < len(ranks)].tolist()
    return grouped(
        (tuple(np.setdiff1d(ranks, rank[step == number]).tolist()), number) for number in lacking
    )


def _ranks(numbers: Iterable[int], n_numbers: int, noun: str = "rank") -> str:
    return f"{_PLURALS[noun] if n_numbers > 1 else noun} {_shown(numbers, n_numbers)}"


def _shown(numbers: Iterable[int], n_numbers: int) -> str:
    """List the first of some ascending numbers, and say how many more there are; the rest is not made."""
    listed = ", ".join(map(str, itertools.islice(numbers, _SHOWN)))
    return f"{listed} and {n_numbers - _SHOWN} more" if n_numbers > _SHOWN else listed


def problems_table(problems: Iterable[Problem]) -> pa.Table:
    """Return `schema.PROBLEMS`, the gravest first; equal ones once."""

    def order(one: Problem) -> tuple[object, ...]:
        rank = -1 if one.rank is None else one.rank
        return SEVERITIES.index(one.severity), one.code, rank, one.report or "", one.message

    rows = [one.row for one in sorted(set(problems), key=order)]
    return schema.PROBLEMS.from_rows(rows)
