"""From the digests of all reports to the tables of one run.

What was not recorded becomes null, with a problem that says so.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from msgspec.structs import replace

from nsyspipe.analysis.collectives import CommOperations
from nsyspipe.analysis.kernels import WindowSums
from nsyspipe.analysis.steps import Selection, select_steps
from nsyspipe.analysis.summary import with_ratios
from nsyspipe.analysis.work import RankWork, work_columns
from nsyspipe.model import schema
from nsyspipe.model.problems import Problem
from nsyspipe.model.side_files import NcclLog
from nsyspipe.model.table import Flags, Int64, TableSchema, conform
from nsyspipe.model.typed_tables import (
    CollectivesTable,
    CountersTable,
    HostLinesTable,
    HostStepsTable,
    IdleCallsTable,
    KernelsTable,
    PhasesTable,
    RanksTable,
    StepsTable,
    StragglersTable,
)
from nsyspipe.model.work import NOTHING_ASKED, AskedWork
from nsyspipe.reader.gpu_metrics import NO_COUNTERS
from nsyspipe.run import collectives as comm
from nsyspipe.run.captures import capture_of_windows
from nsyspipe.run.counters import CountedRanks, counted_ranks, counters_table
from nsyspipe.run.digests import Rank, Ranks, ReportDigest, are_windows_in
from nsyspipe.run.gather import Gathered
from nsyspipe.run.host_lines import host_lines_table, lock_waits_of_ranks
from nsyspipe.run.numbered_run import NumberedRun, number_run
from nsyspipe.run.process import HostDigest, ProcessDigest
from nsyspipe.run.ranks import ranks_table
from nsyspipe.run.run_problems import SelectedSteps, lacks_communication, problems_of_run
from nsyspipe.run.step_work import RunWork, with_problems_of_steps, work_of_run
from nsyspipe.run.timeline_lanes import SampledRanks, sampled_ranks

# Columns of steps that the windows of one process do not have.
_NOT_IN_WINDOWS = {
    "in_summary",
    "wait_ns",
    "exposed_wait_ns",
    "transfer_ns",
    "message_bytes",
    "tokens",
    "samples",
    "flops",
    "ideal_compute_ns",
    "slow_compute_ns",
    *schema.FIGURES_OF_RANKS,
}
_WINDOW_COLUMNS = tuple(
    column for column in schema.STEPS.columns if column.name not in _NOT_IN_WINDOWS
)
_WINDOWS = TableSchema("windows", "Steps before selection.", schema.STEPS.key, _WINDOW_COLUMNS)
# Columns that are unknown if communication was not recorded: it may have counted as compute.
_PHASE_COLUMNS_OF_COMM = ("compute_ns", "comm_ns", "exposed_comm_ns")
_COLUMNS_OF_COMM = (
    *_PHASE_COLUMNS_OF_COMM,
    "exposed_late_comm_ns",
    "comm_on_compute_stream_ns",
    "overlap_compute_ns",
    "overlap_backward_ns",
    "n_collectives",
    "comm_delay_ns",
)
# Columns that are unknown if copies ran inside CUDA graphs that were captured as a whole.
_COLUMNS_OF_DTOD = ("exposed_memory_ns", "dtod_ns", "dtod_bytes", "n_dtod", "exposed_dtod_ns")
_COLUMNS_OF_GRAD_COPIES = (
    "grad_copy_ns",
    "exposed_grad_copy_ns",
    "grad_copy_span_ns",
    "grad_copy_bytes",
    "n_grad_copies",
)
_COLUMNS_OF_COPIES = (*_COLUMNS_OF_DTOD, *_COLUMNS_OF_GRAD_COPIES)
# Columns that are unknown if much communication runs between steps.
_COLUMNS_OF_BACKWARD_PASS = ("overlap_backward_ns", *_COLUMNS_OF_GRAD_COPIES)
# Columns of windows that a second reading and the table of collectives need.
_WINDOW_COLUMNS_AFTER_MERGE = ("member", "start_ns", "end_ns", "is_complete", "graph_ns")
_EMPTY_TABLE = pa.table({})
_NO_NUMBERS = np.empty(0, np.int64)
# The fields of a process digest that are emptied, because the tables of the run hold them.
_EMPTY_PROCESS_FIELDS: dict[str, Any] = {
    "phases": _EMPTY_TABLE,
    "kernels": _EMPTY_TABLE,
    "comm": CommOperations((), _EMPTY_TABLE),
    "host_lines": None,
    "lock_waits": None,
    "holder_lines": None,
    "kernels_by_window": WindowSums(
        n_rows=0,
        edges=_NO_NUMBERS,
        group=_NO_NUMBERS,  # type: ignore[arg-type]  # no groups
        row=_NO_NUMBERS,  # type: ignore[arg-type]  # no rows
        sums=(),
    ),
}
_SUMMARY_COLUMNS_OF_KERNELS = ("n_in_summary", "in_summary_ns", "overlapped_in_summary_ns")


class RunTables(Struct, frozen=True):
    """The tables of one run, by their names in `schema`, and how its steps were selected."""

    ranks: RanksTable
    steps: StepsTable
    phases: PhasesTable
    # as `collectives.collective_figures` returns them
    collectives: CollectivesTable
    stragglers: StragglersTable
    # `schema.KERNEL_COSTS`
    kernels: pa.Table
    idle_calls: IdleCallsTable
    host_lines: HostLinesTable
    # as `host_lines.lock_waits_of_ranks` returns them
    lock_waits: Mapping[int, Mapping[str, float]]
    host_steps: HostStepsTable
    counters: CountersTable
    problems: tuple[Problem, ...]
    selection: Selection
    # the number of processes that the launcher counts, as in `ranks.JobSize`
    world_size: int | None
    # the number of ranks of the job, as in `ranks.JobSize`
    n_job_ranks: int | None
    # the number of processes that have the ranks
    n_processes: int
    # the ranks in the order of the table, on one clock, with their communication
    cross_rank: comm.CrossRank
    # The digests without what is in these tables. So are the digests in `cross_rank`.
    gathered: Gathered
    # the hardware counters of the ranks, and the samples of their main threads
    counted: CountedRanks
    sampled: SampledRanks
    # whether the ranks have no steps: the one row of each rank is its capture
    is_capture: bool


def merge(
    gathered: Gathered,
    rank_map: Mapping[str, int] | None,
    skip: int | None,
    log: NcclLog | None,
    ranks_of_all_reports: frozenset[int],
    *,
    work: AskedWork = NOTHING_ASKED,
) -> RunTables:
    """Join the digests of a run's reports to its tables.

    NCCL's log gives the world size if nothing else does. If only some of the reports are read,
    `ranks_of_all_reports` has the rank numbers of all. `skip` is how many warm-up steps the user
    skips. `work` is what a step works on, as far as the user says it. The result keeps only the
    parts of the digests that no table holds, so that the memory of the others can be freed.
    """
    run = number_run(gathered, rank_map, log, ranks_of_all_reports)
    cross_rank = _match_on_one_clock(run, log)
    ranks = cross_rank.ranks
    unseen = _find_unseen_work(run, ranks)
    windows = _make_windows(ranks, unseen, has_comm_between=cross_rank.has_comm_between)
    work_of_steps = _work_per_step(run, ranks, work)
    steps = _select_steps(windows, cross_rank, unseen, skip, work_of_steps.ranks)
    run_work = with_problems_of_steps(work_of_steps, steps.table)
    tables = _tables_of_steps(run, cross_rank, steps)
    tables["ranks"] = _ranks_table(
        run, cross_rank, run_work, is_comm_in_graphs=unseen.may_graphs_communicate
    )
    tables["phases"] = _phases_table(ranks, windows, unseen.hides_comm)
    tables["host_steps"] = _host_steps_table(run)
    counted = counted_ranks(gathered.digests, ranks)
    tables["counters"] = counters_table(counted, ranks, steps.table)
    # Without ranks, the numbers are of hosts, which count as no processes here.
    n_processes = run.numbering.n_processes if run.ranks else 0
    remaining_digests = tuple(map(_without_merged, gathered.digests))
    remaining_cross_rank = _cross_rank_without_merged(cross_rank, remaining_digests)
    problems_of_tables = (*counted.problems, *run_work.problems)
    remaining_gathered = replace(gathered, digests=remaining_digests)
    return RunTables(
        **tables,
        problems=(*problems_of_run(run, cross_rank, steps), *problems_of_tables),
        selection=steps.selection,
        world_size=run.job.world_size,
        n_job_ranks=run.job.n_ranks,
        n_processes=n_processes,
        cross_rank=remaining_cross_rank,
        gathered=remaining_gathered,
        counted=counted,
        sampled=sampled_ranks(ranks),
        is_capture=run.is_capture,
    )


def _work_per_step(run: NumberedRun, ranks: Ranks, asked: AskedWork) -> RunWork:
    """Return what steps of each rank work on. Nothing is known of a capture without steps."""
    if run.is_capture:
        nothing_known = tuple(RankWork() for _ in ranks)
        return RunWork(nothing_known)
    return work_of_run(ranks, run.gathered.sidecars, asked)


def _tables_of_steps(
    run: NumberedRun, cross_rank: comm.CrossRank, steps: SelectedSteps
) -> dict[str, Any]:
    """Return the tables that depend on the choice of summary steps, by field of `RunTables`."""
    ranks = cross_rank.ranks
    is_capture = run.is_capture
    summary_steps = steps.selection.steps
    rank_numbers = [rank.number for rank in ranks]
    collectives = comm.collective_figures(cross_rank, rank_numbers, summary_steps)
    is_comm_in_steps = not cross_rank.has_comm_between
    are_all_ranks_here = bool(cross_rank.has_all_ranks.all())
    # Without all communication, a rank that was not matched may be the one that others wait for.
    has_all_comm = are_all_ranks_here and is_comm_in_steps and cross_rank.doubt is None
    stragglers = comm.stragglers_table(
        collectives, steps.table, rank_numbers, is_capture=is_capture, has_all_comm=has_all_comm
    )
    tables: dict[str, Any] = {"steps": steps.table, "collectives": collectives}
    tables["stragglers"] = stragglers
    tables["kernels"] = _kernels_table(ranks, steps.selection)
    tables["idle_calls"] = _idle_calls_table(ranks, steps, is_capture=is_capture)
    tables["host_lines"] = host_lines_table(ranks, summary_steps, is_capture=is_capture)
    tables["lock_waits"] = lock_waits_of_ranks(ranks, summary_steps)
    return tables


def _ranks_table(
    run: NumberedRun, cross_rank: comm.CrossRank, work: RunWork, *, is_comm_in_graphs: bool
) -> pa.Table:
    """Return `schema.RANKS`."""
    return ranks_table(
        cross_rank,
        run.numbering.source,
        run.report_names,
        run.gathered.sidecars,
        works=work.ranks,
        is_comm_in_graphs=is_comm_in_graphs,
    )


def _match_on_one_clock(run: NumberedRun, log: NcclLog | None) -> comm.CrossRank:
    """Put the ranks on one clock, and match their collectives.

    If ranks were captured several times, the captures of each rank are put on one clock first.
    """
    ranks = run.ranks
    n_reports = len(run.gathered.digests)
    is_aligned = run.gathered.is_aligned
    applied_offsets = None
    if any(rank.captures for rank in ranks):
        ranks, applied_offsets = comm.align_captures(
            ranks, n_reports, log, has_all=run.has_all_ranks, is_aligned=is_aligned
        )
    return comm.relate_ranks(
        ranks,
        n_reports,
        log,
        has_all=run.has_all_ranks,
        is_one_run=run.is_one_run,
        is_aligned=is_aligned,
        applied_offsets=applied_offsets,
    )


class _UnseenWork(Struct, frozen=True):
    """Windows of a run in which work may have run that was not recorded."""

    # Of each window, whether a CUDA graph that was captured as a whole ran in it.
    has_graph: Flags
    # Of each window, whether communication may have run in it that was not recorded.
    hides_comm: Flags
    # Whether a CUDA graph of this run may hold communication.
    may_graphs_communicate: bool


def _find_unseen_work(run: NumberedRun, ranks: Ranks) -> _UnseenWork:
    """Find the windows in which work may have run that was not recorded."""
    n_job_ranks = run.job.n_ranks
    windows_of_ranks = [rank.process.windows for rank in ranks]
    graph_ns_of_ranks = [windows["graph_ns"].to_numpy() for windows in windows_of_ranks]
    # `_NO_NUMBERS` is for a run without ranks.
    graph_ns_of_window = np.concatenate([_NO_NUMBERS, *graph_ns_of_ranks])
    has_graph = graph_ns_of_window > 0
    # A CUDA graph may hold communication if several ranks run, or if NCCL or MPI is in use.
    has_several_ranks = len(ranks) > 1 or (n_job_ranks or 0) > 1
    uses_comm = any(digest.has_communication for digest in run.gathered.digests)
    may_graphs_communicate = has_several_ranks or uses_comm
    if lacks_communication(ranks, n_job_ranks) and not has_graph.any():
        # A job of several ranks communicates. Here, it must do so with kernels whose names nsyspipe
        # does not know. They may be in every window.
        hides_comm = np.ones(has_graph.size, np.bool_)
    else:
        hides_comm = has_graph & may_graphs_communicate
    return _UnseenWork(has_graph, hides_comm, may_graphs_communicate)


def _make_windows(ranks: Ranks, unseen: _UnseenWork, *, has_comm_between: bool) -> pa.Table:
    """Return the windows of all ranks, one rank after the other.

    A figure is null if work that was not recorded could change it. With much communication between
    steps (`has_comm_between`), figures of the backward pass are null in all windows.
    """
    columns_of_ranks = [_rank_columns(rank, rank.process.windows) for rank in ranks]
    tables = map(_WINDOWS.table, columns_of_ranks)
    windows = pa.concat_tables([_WINDOWS.empty(), *tables])
    windows = windows.combine_chunks()
    windows = _with_nulls(windows, _COLUMNS_OF_COMM, unseen.hides_comm)
    windows = _with_nulls(windows, _COLUMNS_OF_COPIES, unseen.has_graph)
    if not has_comm_between:
        return windows
    all_windows = np.ones(windows.num_rows, np.bool_)
    return _with_nulls(windows, _COLUMNS_OF_BACKWARD_PASS, all_windows)


def _select_steps(
    windows: StepsTable,
    cross_rank: comm.CrossRank,
    unseen: _UnseenWork,
    skip: int | None,
    works: Sequence[RankWork],
) -> SelectedSteps:
    """Choose the summary steps, and make the table of steps.

    `works` has what a step of each rank works on.
    """
    n_ranks = len(cross_rank.ranks)
    capture_of_window = capture_of_windows(cross_rank.ranks)
    step_of_window = windows["step"].to_numpy()
    start_ns = windows["start_ns"].to_numpy()
    is_complete = np.asarray(windows["is_complete"], np.bool_)
    selection = select_steps(
        step_of_window, start_ns, is_complete, n_ranks, skip, capture=capture_of_window
    )
    steps = _steps_table(windows, cross_rank, selection, works)
    hides_comm_in_summary = unseen.hides_comm & steps["in_summary"].to_numpy()
    may_hide_comm = bool(hides_comm_in_summary.any())
    return SelectedSteps(steps, selection, capture_of_window, may_hide_comm)


def _without_merged(digest: ReportDigest) -> ReportDigest:
    """Return a digest without what the tables of the run hold, which is most of the digest."""
    processes = tuple(map(_process_without_merged, digest.processes))
    return replace(digest, processes=processes, counters=NO_COUNTERS)


def _process_without_merged(process: ProcessDigest) -> ProcessDigest:
    """Return the digest of a process without what the tables of the run hold."""
    windows = process.windows.select(_WINDOW_COLUMNS_AFTER_MERGE)
    return replace(process, windows=windows, **_EMPTY_PROCESS_FIELDS)


def _identity(process: ProcessDigest) -> tuple[int, int | None]:
    return process.process_id, process.device_id


def _rank_without_merged(
    rank: Rank[ProcessDigest], digests: Sequence[ReportDigest]
) -> Rank[ProcessDigest]:
    """Return a rank with only what a second reading and the table of collectives need.

    `digests` are the digests of all reports, already without what the tables of the run hold.
    """
    remaining_digest = digests[rank.argument]
    was_captured_once = not rank.captures
    if was_captured_once:
        # The digest of the report has this process already, and so without a second copy.
        processes = {_identity(process): process for process in remaining_digest.processes}
        process = processes[_identity(rank.process)]
        return replace(rank, report=remaining_digest, process=process)
    # A process that was joined from several captures is in no digest of a report.
    report = replace(rank.report, processes=remaining_digest.processes)
    process = _process_without_merged(rank.process)
    captures = tuple(_rank_without_merged(part, digests) for part in rank.captures)
    return replace(rank, report=report, process=process, captures=captures)


def _rank_columns(rank: Rank[ProcessDigest], table: pa.Table) -> dict[str, Any]:
    """Return the columns of a table of one rank, as the table of all ranks has them.

    The rank's number is added, members become step numbers, and times become aligned times.
    """
    columns = _columns_of(table)
    columns["rank"] = np.full(table.num_rows, rank.number)
    if "member" in columns:
        member_of_row = columns.pop("member").to_numpy()
        columns["step"] = rank.steps[member_of_row]
    for name in ("start_ns", "end_ns"):
        if name in columns:
            columns[name] = pc.add(table[name], rank.shift_ns)
    return columns


def _cross_rank_without_merged(
    cross_rank: comm.CrossRank, digests: Sequence[ReportDigest]
) -> comm.CrossRank:
    ranks = tuple(_rank_without_merged(rank, digests) for rank in cross_rank.ranks)
    return replace(cross_rank, ranks=ranks)


def _columns_of(table: pa.Table) -> dict[str, Any]:
    return {name: table[name] for name in table.column_names}


def _join(tables: Iterable[pa.Table], table_schema: TableSchema) -> pa.Table:
    """Join tables of one schema, and sort the rows by its key. No table gives an empty table."""
    joined = pa.concat_tables([table_schema.empty(), *tables])
    sort_keys = [(name, "ascending") for name in table_schema.key]
    ordered = joined.sort_by(sort_keys)
    return conform(ordered, table_schema)


def _host_steps_table(run: NumberedRun) -> pa.Table:
    """Return `schema.HOST_STEPS`: the steps of processes without GPU activity."""
    tables = []
    for host in run.hosts:
        report = run.report_names[host.argument]
        tables.append(_steps_of_host(host, report, is_numbered=run.is_numbered))
    return _join(tables, schema.HOST_STEPS)


def _steps_of_host(host: Rank[HostDigest], report: str, *, is_numbered: bool) -> pa.Table:
    """Return `schema.HOST_STEPS` of one process. Its rank is null if nothing numbers the hosts."""
    members = host.process.members
    n_steps = members.num_rows
    start_ns = members["start_ns"]
    end_ns = members["end_ns"]
    number = host.number if is_numbered else None
    columns = _columns_of(members)
    columns["rank"] = [number] * n_steps
    columns["report"] = [report] * n_steps
    columns["pid"] = [host.process.pid] * n_steps
    columns["step"] = host.steps
    columns["host_start_ns"] = pc.add(start_ns, host.shift_ns)
    columns["host_end_ns"] = pc.add(end_ns, host.shift_ns)
    columns["host_ns"] = pc.subtract(end_ns, start_ns)
    return schema.HOST_STEPS.table(columns)


def _with_nulls(table: pa.Table, names: Iterable[str], is_unknown: Flags) -> pa.Table:
    """Return a table with null in the columns `names`, in the rows where `is_unknown` is true."""
    if not is_unknown.any():
        return table
    for name in names:
        position = table.column_names.index(name)
        known_or_null = pc.if_else(is_unknown, None, table[name])
        table = table.set_column(position, table.field(position), known_or_null)
    return table


def _phases_table(ranks: Ranks, windows: pa.Table, hides_comm: Flags) -> pa.Table:
    """Return `schema.PHASES`, with null for communication that may not be recorded.

    `hides_comm` says of each window whether communication in it may not be recorded. A phase is a
    part of the window of its rank and step.
    """
    columns_of_ranks = (_rank_columns(rank, rank.process.phases) for rank in ranks)
    tables = map(schema.PHASES.table, columns_of_ranks)
    phases = _join(tables, schema.PHASES)
    if not hides_comm.any() or not phases.num_rows:
        return phases
    last_step_of_windows = pc.max(windows["step"]).as_py()
    last_step_of_phases = pc.max(phases["step"]).as_py()
    # All step numbers are below this, so that each pair of rank and step gets another number.
    step_limit = max(last_step_of_windows, last_step_of_phases) + 1
    windows_that_hide = windows.filter(pa.array(hides_comm))
    rank_steps_that_hide = _number_rank_steps(windows_that_hide, step_limit)
    rank_step_of_phase = _number_rank_steps(phases, step_limit)
    is_unknown = np.isin(rank_step_of_phase, rank_steps_that_hide)
    return _with_nulls(phases, _PHASE_COLUMNS_OF_COMM, is_unknown)


def _number_rank_steps(table: pa.Table, step_limit: int) -> Int64:
    """Return a number for the pair of rank and step of each row. Equal pairs have one number.

    All step numbers must be below `step_limit`.
    """
    rank: Int64 = table["rank"].to_numpy()
    step: Int64 = table["step"].to_numpy()
    return rank * step_limit + step


def _steps_table(
    windows: StepsTable,
    cross_rank: comm.CrossRank,
    selection: Selection,
    works: Sequence[RankWork],
) -> pa.Table:
    """Return `schema.STEPS`: the windows, with what only several ranks together show.

    `works` has what a step of each rank works on. Wait times and message sizes are null if they are
    not known, or if the window does not have all communication of its step.
    """
    rank_of_window = _ranks_of_windows(cross_rank.ranks)
    step_of_window = windows["step"].to_numpy()
    starts = windows["start_ns"].to_numpy()
    ends = windows["end_ns"].to_numpy()
    waits = comm.step_waits(cross_rank, rank_of_window, step_of_window, starts=starts, ends=ends)
    is_comm_known = pc.is_valid(windows["comm_ns"])
    # A rank may wait for an operation inside a graph of another rank. So the wait is unknown on
    # all ranks of a step if communication is unknown on one of them.
    steps_with_unknown_comm = step_of_window[~is_comm_known.to_numpy()]
    is_wait_unknown = ~waits.is_known | np.isin(step_of_window, steps_with_unknown_comm)
    message_bytes, is_size_known = comm.step_bytes(cross_rank, rank_of_window, step_of_window)
    # Communication between steps belongs to a step, but is in no window.
    has_all_comm = pc.and_(is_comm_known, not cross_rank.has_comm_between)

    def null_if_unknown(values: Int64, is_unknown: Flags) -> pa.Array:
        return pc.if_else(has_all_comm, pa.array(values, mask=is_unknown), None)

    wait_ns = null_if_unknown(waits.wait_ns, is_wait_unknown)
    columns = _columns_of(windows)
    columns["wait_ns"] = wait_ns
    columns["exposed_wait_ns"] = null_if_unknown(waits.exposed_wait_ns, is_wait_unknown)
    columns["transfer_ns"] = pc.subtract(windows["comm_ns"], wait_ns)
    columns["message_bytes"] = null_if_unknown(message_bytes, ~is_size_known)
    columns |= work_columns(works, rank_of_window, columns)
    summary_steps = pa.array(selection.steps, pa.int64())
    columns["in_summary"] = pc.is_in(windows["step"], value_set=summary_steps)
    return schema.STEPS.table(with_ratios(columns))


def _ranks_of_windows(ranks: Ranks) -> Int64:
    """Return the index in `ranks` of the rank of each window, for all windows of the run."""
    n_windows_of_rank = [rank.process.windows.num_rows for rank in ranks]
    rank_indices = np.arange(len(ranks))
    return np.repeat(rank_indices, n_windows_of_rank)


def _kernels_table(ranks: Ranks, selection: Selection) -> pa.Table:
    """Return `schema.KERNEL_COSTS` of all ranks."""
    tables = (_kernels_of_rank(rank, selection) for rank in ranks)
    return _join(tables, schema.KERNEL_COSTS)


def _kernels_of_rank(rank: Rank[ProcessDigest], selection: Selection) -> pa.Table:
    """Return the kernels of one rank by phase and name.

    They have sums over the whole capture, and sums over the summary steps.
    """
    kernels = rank.process.kernels
    is_window_in_summary = are_windows_in(rank, selection.steps)
    sums, is_unknown = rank.process.kernels_by_window.over(is_window_in_summary)
    total_ns = kernels["total_ns"]
    columns = _rank_columns(rank, kernels)
    columns["mean_ns"] = pc.divide(total_ns, kernels["n_kernels"])
    columns["not_overlapped_ns"] = pc.subtract(total_ns, kernels["overlapped_ns"])
    columns["slowdown_ratio"] = _slowdown_ratios(kernels)
    for name, values in zip(_SUMMARY_COLUMNS_OF_KERNELS, sums, strict=True):
        columns[name] = pa.array(values, mask=is_unknown)
    return schema.KERNEL_COSTS.table(columns)


def _slowdown_ratios(kernels: KernelsTable) -> pa.ChunkedArray:
    """Return how much longer kernels run during communication, null if they never run alone.

    0.25 means 25 % longer. ``slowed_ns`` is the time of kernels during communication. ``free_ns``
    is the time that equal kernels take without communication.
    """
    slowed_ns = comm.as_floats(kernels["slowed_ns"])
    free_ns = comm.as_floats(kernels["free_ns"])
    has_free_time = pc.greater(free_ns, 0)
    ratio = pc.divide(slowed_ns, free_ns)
    slowdown = pc.subtract(ratio, 1)
    return pc.if_else(has_free_time, slowdown, None)


def _idle_calls_table(ranks: Ranks, steps: SelectedSteps, *, is_capture: bool) -> pa.Table:
    """Return `schema.IDLE_CALLS`: the calls that idle GPUs wait for, the longest first.

    Times are means over the summary steps of all ranks. A part of a call's time may be that of
    blocking copies from the host. The table is empty if one of the summary steps does not show how
    long its GPU waited.
    """
    blocked_ns = steps.table["idle_blocked_ns"].filter(steps.table["in_summary"])
    n_steps = len(blocked_ns)
    is_a_step_unknown = blocked_ns.null_count > 0
    if is_capture or not n_steps or is_a_step_unknown:
        return schema.IDLE_CALLS.empty()
    total_ns: Counter[str] = Counter()
    of_copies_ns: Counter[str] = Counter()
    for rank in ranks:
        process = rank.process
        is_counted = are_windows_in(rank, steps.selection.steps)
        total_ns.update(_sum_by_call(process.blocked_ns_by_call, is_counted))
        of_copies_ns.update(_sum_by_call(process.of_copies_ns_by_call, is_counted))
    blocking_calls = [call for call in total_ns if total_ns[call]]

    def longest_then_alphabetical(call: str) -> tuple[int, str]:
        return -total_ns[call], call

    longest_first = sorted(blocking_calls, key=longest_then_alphabetical)
    columns: dict[str, Any] = {"call": longest_first}
    columns["blocked_ns_per_step"] = [total_ns[call] / n_steps for call in longest_first]
    columns["of_copies_ns_per_step"] = [of_copies_ns[call] / n_steps for call in longest_first]
    return schema.IDLE_CALLS.table(columns)


def _sum_by_call(ns_by_call: Mapping[str, Int64], is_counted: Flags) -> dict[str, int]:
    """Return the time of each call in the windows that are counted."""
    counted_ns = {}
    for call, ns_of_windows in ns_by_call.items():
        sum_ns = ns_of_windows[is_counted].sum()
        counted_ns[call] = int(sum_ns)
    return counted_ns
