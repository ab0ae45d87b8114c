"""Everything that the analysis needs of a report, in one pass over each table."""

import re
from collections.abc import Iterable, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from msgspec.structs import replace

from nsyspipe.analysis.comm_calls import Called, find_called
from nsyspipe.model import canonical
from nsyspipe.model.problems import NOT_RECORDED, Problem, Recorded, problem
from nsyspipe.model.user_paths import AnyPath
from nsyspipe.reader.calls import Calls, Overhead, Strings, read_calls, read_overhead, read_strings
from nsyspipe.reader.facts import (
    LAUNCHER_SIZES,
    ReportFacts,
    read_facts,
)
from nsyspipe.reader.gpu_metrics import Counters, read_counters
from nsyspipe.reader.memory_calls import MemoryCalls, read_memory_calls
from nsyspipe.reader.operations import (
    SHAPE_COLUMNS,
    Operations,
    read_operations,
    with_communication,
)
from nsyspipe.reader.payload import Payloads, communicator_sizes, read_payloads
from nsyspipe.reader.python_lock import read_lock_ranges
from nsyspipe.reader.python_samples import PythonSamples, read_python_samples
from nsyspipe.reader.ranges import Ranges, read_ranges
from nsyspipe.reader.report import (
    CPU_SAMPLES,
    GPU_METRICS,
    GRAPH,
    KERNEL,
    MEMCPY,
    MEMSET,
    NEWEST_TESTED,
    NVTX,
    OS_RUNTIME,
    OVERHEAD,
    RUNTIME,
    STRINGS,
    SYNCHRONIZATION,
    Report,
    bounds_of,
    machine_memory,
    open_report,
    process_of,
    version_numbers,
)

# How the names of calls that launch kernels begin.
_LAUNCH_PREFIXES = ("cudaLaunch", "cuLaunch", "cudaGraphLaunch", "cuGraphLaunch")
_COUNTED_TABLES = (
    KERNEL,
    MEMCPY,
    MEMSET,
    GRAPH,
    RUNTIME,
    NVTX,
    STRINGS,
    OVERHEAD,
    SYNCHRONIZATION,
    OS_RUNTIME,
    CPU_SAMPLES,
    GPU_METRICS,
)


class Capture(Struct, frozen=True):
    """One report, read and closed again."""

    facts: ReportFacts
    operations: Operations
    # The operations that are communication because of the calls that launched them.
    called: Called
    calls: Calls
    # Those that allocate and free memory of GPUs.
    memory: MemoryCalls
    # The work of the profiler itself; None if it was not recorded.
    overhead: Overhead | None
    ranges: Ranges
    # What NVTX payloads of NCCL's calls contain.
    payloads: Payloads
    # At which lines of Python the threads were, and when they waited for Python's lock.
    python: PythonSamples
    # Which facts were recorded; a fact counts as recorded if there was nothing to record.
    recorded: Recorded
    # Hardware counters of GPUs.
    counters: Counters
    # The number of launches of each process that has CUDA calls or ranges, but no kernel, if other
    # processes have kernels.
    launches_without_kernels: dict[int, int]
    problems: tuple[Problem, ...]


def read_capture(
    path: AnyPath, comm_kernel: re.Pattern[str] | None, *, with_lines: bool = True
) -> Capture:
    """Read one report. Samples of Python are read only `with_lines`.

    Raises `InputError` if the report is missing, damaged, not an nsys export, or lacks tables that
    all answers need.
    """
    with open_report(path) as report:
        report.refuse_what_cannot_fit(machine_memory())
        facts = read_facts(report)
        strings = read_strings(report)
        calls = read_calls(report, strings)
        memory = read_memory_calls(report, strings)
        operations = read_operations(report, strings, comm_kernel)
        ranges = read_ranges(report, strings, _operation_ends(operations))
        payloads = read_payloads(report, strings, ranges.python_domains)
        overhead = read_overhead(report, facts)
        python = _read_python(report, strings, ranges, with_lines=with_lines)
        recorded = _recorded(report, facts, strings, operations)
        without_kernels = _launches_without_kernels(report, strings, calls, ranges, operations)
        problems = _problems_of_recording(facts, ranges)
        called = _called(facts, operations, calls, ranges, payloads)
        operations, called = with_communication(report, operations, called)
        counters = read_counters(report, facts)
        problems += _problems_of_memsets(report, facts, strings)
    problems += _problems_of_absence(recorded)
    problems += counters.problems
    problems += _problems_of_counts(_dropped(operations, ranges))
    problems += _problems_of_counts(_unassigned(payloads, called))
    problems += python.problems
    return Capture(
        facts=facts,
        operations=operations,
        called=called,
        calls=calls,
        memory=memory,
        overhead=overhead,
        ranges=ranges,
        payloads=payloads,
        python=python,
        recorded=recorded,
        counters=counters,
        launches_without_kernels=without_kernels,
        problems=tuple(problems),
    )


def _read_python(
    report: Report, strings: Strings, ranges: Ranges, *, with_lines: bool
) -> PythonSamples:
    """Read waits for Python's lock, and the samples of Python unless lines are to be left out."""
    lock_ranges = read_lock_ranges(report, strings, ranges)
    python = PythonSamples()
    if with_lines:
        python = read_python_samples(report, strings, ranges.python_domains)
    return replace(python, lock_ranges=lock_ranges)


def _dropped(operations: Operations, ranges: Ranges) -> dict[str, int]:
    """Return how many rows were left out, by the code of the problem."""
    return {"dropped-operations": operations.n_dropped, "dropped-ranges": ranges.n_dropped}


def _unassigned(payloads: Payloads, called: Called) -> dict[str, int]:
    """Return how many payloads and copies were not assigned, or only by an assumption.

    The keys are the codes of the problems.
    """
    return {
        "undecoded-payload": payloads.n_undecoded,
        "copies-of-unknown-communicators": called.n_assumed,
        "copies-in-nccl-calls": called.n_left,
    }


def _operation_ends(operations: Operations) -> list[pa.ChunkedArray]:
    return [operations.kernels["end_ns"], operations.copies["end_ns"]]


def _problems_of_recording(facts: ReportFacts, ranges: Ranges) -> list[Problem]:
    """Return the problems with the version of a report, its NVTX ranges and backtraces."""
    problems = []
    if version_numbers(facts.schema_version) > NEWEST_TESTED:
        problems.append(problem("untested-version", version=facts.schema_version))
    if not ranges.is_recorded:
        # The table of NVTX is missing. nsys may have traced NVTX, and the export may have left out
        # the table because it is empty.
        was_traced = facts.traces_nvtx and facts.leaves_out_empty(NVTX)
        code = "no-nvtx-ranges" if was_traced else "no-nvtx"
        problems.append(problem(code))
    if facts.has_cuda_backtraces:
        problems.append(problem("cuda-backtraces"))
    if facts.records_python_backtraces:
        problems.append(problem("python-backtraces"))
    return problems


def _problems_of_absence(recorded: Recorded) -> list[Problem]:
    """Return a problem for each fact that was not recorded."""
    problems: list[Problem] = []
    for fact, code in NOT_RECORDED.items():
        is_recorded = getattr(recorded, fact)
        if not is_recorded:
            problems.append(problem(code))
    return problems


def _problems_of_memsets(report: Report, facts: ReportFacts, strings: Strings) -> list[Problem]:
    """Return the problem that there are calls to set memory, but no memsets; none otherwise."""
    n_calls = _n_memset_calls(report, facts, strings)
    return _problems_of_counts({"memset-calls-only": n_calls})


def _problems_of_counts(counts: Mapping[str, int]) -> list[Problem]:
    return [problem(code, n=n) for code, n in counts.items() if n]


def _n_memset_calls(report: Report, facts: ReportFacts, strings: Strings) -> int:
    """Return how many calls set memory in a report that surely had no memset; else 0."""
    if not _holds_memsets(report, facts) or report.has_rows(MEMSET):
        return 0
    return _n_calls(report, strings, ("Memset",))


def _launches_without_kernels(
    report: Report, strings: Strings, calls: Calls, ranges: Ranges, operations: Operations
) -> dict[int, int]:
    """Count the launches of each process that has CUDA calls or ranges, but no kernel.

    The result is empty if no process has a kernel, because then kernels were not recorded at all.
    """
    with_kernels = _distinct(operations.kernels["process_id"])
    with_calls_or_ranges = _distinct(ranges.table["process_id"])
    if calls.all is not None:
        with_calls_or_ranges |= _distinct(calls.all["process_id"])
    without_kernels = with_calls_or_ranges - with_kernels
    if not with_kernels or not without_kernels:
        return {}
    n_launches_of_process = _launches_by_process(report, strings)
    return {process: n_launches_of_process.get(process, 0) for process in without_kernels}


def _launches_by_process(report: Report, strings: Strings) -> dict[int, int]:
    """Count the calls of each process that launch kernels or graphs."""
    where = _where_named(strings, _LAUNCH_PREFIXES)
    if where is None or not report.has(RUNTIME, "globalTid", "nameId"):
        return {}
    launches = report.select(RUNTIME, {"globalTid": "int"}, where=where)
    threads = launches["globalTid"].drop_null().to_numpy()
    processes, counts = np.unique(process_of(threads), return_counts=True)
    counts_by_process = zip(processes.tolist(), counts.tolist(), strict=True)
    return dict(counts_by_process)


def _where_named(strings: Strings, prefixes: Iterable[str]) -> str | None:
    """Return the SQL condition for calls whose names begin with one of some prefixes.

    None if the report has no such name.
    """
    name_ids = strings.ids_beginning(*prefixes).tolist()
    if not name_ids:
        return None
    ids = ", ".join(map(str, name_ids))
    return f"nameId IN ({ids})"


def _distinct(process_ids: pa.ChunkedArray) -> set[int]:
    """Return the distinct values of a column without nulls.

    This is fast if there is only one value, as in most reports.
    """
    least, greatest = bounds_of(process_ids)
    # Both are null in a column without values.
    has_one_value = least == greatest
    distinct_ids = {least} if has_one_value else set(pc.unique(process_ids).to_pylist())
    return distinct_ids - {None}


def _called(
    facts: ReportFacts, operations: Operations, calls: Calls, ranges: Ranges, payloads: Payloads
) -> Called:
    """Return the operations that are communication because of the calls that launched them.

    There are none if no range is a call that communicates.
    """
    comm_calls = ranges.comm_calls
    if not comm_calls.num_rows:
        return Called()
    n_ranks = communicator_sizes(payloads, comm_calls)
    has_several_ranks = _has_several_ranks(facts, operations)
    return find_called(
        operations.kernels,
        operations.copies,
        operations.names,
        host_calls=calls.all,
        comm_calls=comm_calls,
        n_ranks=n_ranks,
        has_job_several_ranks=has_several_ranks,
    )


def _has_several_ranks(facts: ReportFacts, operations: Operations) -> bool | None:
    """Tell whether the job has several ranks; None if the report does not show it.

    The first launcher that set the number of ranks decides.
    """
    for variable in ("WORLD_SIZE", *LAUNCHER_SIZES.values()):
        n_ranks = facts.number(variable)
        if n_ranks is not None:
            return n_ranks > 1
    kernels = operations.kernels
    # A communicator of one rank launches no kernel. So a kernel shows that there are several ranks.
    if pc.any(kernels["is_comm"]).as_py():
        return True
    n_processes = pc.count_distinct(kernels["process_id"]).as_py()
    # The other ranks of a single process may have reports of their own.
    return True if n_processes > 1 else None


def _recorded(
    report: Report, facts: ReportFacts, strings: Strings, operations: Operations
) -> Recorded:
    """Return which facts about operations the report has."""
    copies = operations.copies
    copy_kinds = copies["copy_kind"]
    is_dtod = pc.equal(copy_kinds, canonical.DTOD_KIND)
    dtod_bytes = copies["bytes"].filter(is_dtod)

    def is_recorded(table: str, *calls: str) -> bool:
        """Tell whether nsys recorded the operations of a table, as far as the report shows.

        `calls` are the beginnings of the names of calls that make such operations.
        """
        if report.has_rows(table):
            return True
        is_surely_empty = report.has(table) or facts.leaves_out_empty(table)
        if not is_surely_empty:
            # The export may have left the operations out.
            return False
        # Calls that made no operation show that nsys did not record operations.
        return _n_calls(report, strings, calls) == 0

    # Unlike other calls, a call to set memory may make no memset. Therefore these calls show
    # nothing if the export surely has all memsets.
    has_memsets = _holds_memsets(report, facts) or is_recorded(MEMSET, "Memset")
    has_graphs = operations.n_graphs > 0
    has_kernels = has_graphs or is_recorded(KERNEL, "LaunchKernel", "GraphLaunch")
    has_copies = is_recorded(MEMCPY, "Memcpy")
    has_all_kinds = copy_kinds.null_count == 0
    has_all_sizes = dtod_bytes.null_count == 0
    return Recorded(
        kernels=has_kernels,
        names=operations.has_names,
        memcpy=has_copies,
        memset=has_memsets,
        kinds=has_all_kinds,
        sizes=has_all_sizes,
    )


def _holds_memsets(report: Report, facts: ReportFacts) -> bool:
    """Tell whether the export surely has all memsets that nsys recorded, which may be none."""
    if not facts.exports(MEMSET) or not facts.tells_export:
        return False
    # A lazy export has no table without rows.
    return facts.is_lazy or report.has(MEMSET)


def _n_calls(report: Report, strings: Strings, beginnings: tuple[str, ...]) -> int:
    """Return how many calls of the driver API and the runtime API have names of some kinds.

    `beginnings` are beginnings of names without the prefix of the API: ``Memcpy``.
    """
    prefixes = [f"{api}{beginning}" for api in ("cu", "cuda") for beginning in beginnings]
    where = _where_named(strings, prefixes)
    if where is None or not report.has(RUNTIME, "nameId"):
        return 0
    return report.count(RUNTIME, where)


class Counts(Struct, frozen=True):
    """Numbers of rows of one report."""

    # By table; 0 for a table that the report does not have.
    rows: dict[str, int]
    # Calls with all columns that connect them to the operations that they launched.
    n_launches: int
    # Calls with a name and an end.
    n_timed_calls: int
    # Kernels of CUDA graphs that were captured node by node.
    n_graph_kernels: int
    # Whether kernels have their grid and block.
    has_shapes: bool


def read_counts(path: AnyPath) -> Counts:
    """Count the rows of a report; `InputError` if it is missing, damaged, or not an nsys export."""
    with open_report(path) as report:
        n_rows = dict.fromkeys(_COUNTED_TABLES, 0)
        for table in filter(report.has, _COUNTED_TABLES):
            n_rows[table] = report.count(table)
        n_calls = n_rows[RUNTIME]
        has_launches = report.has(RUNTIME, "start", "globalTid", "correlationId")
        has_times = report.has(RUNTIME, "start", "end", "globalTid", "nameId")
        n_graph_kernels = 0
        if report.has(KERNEL, "graphNodeId"):
            n_graph_kernels = report.count(KERNEL, "graphNodeId != 0")
        has_shapes = report.has(KERNEL, *SHAPE_COLUMNS)
        return Counts(
            rows=n_rows,
            n_launches=n_calls if has_launches else 0,
            n_timed_calls=n_calls if has_times else 0,
            n_graph_kernels=n_graph_kernels,
            has_shapes=has_shapes,
        )
