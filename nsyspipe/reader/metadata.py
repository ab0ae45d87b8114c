"""Facts about a capture and everything else that the analysis needs, in one pass over each table.

Reports contain the whole environment of the profiled program, with its secrets. Only the variables
that are named here are read.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct, field
from msgspec.structs import replace

from nsyspipe.analysis.comm_calls import Called, find_called
from nsyspipe.model import canonical
from nsyspipe.model.problems import NOT_RECORDED, Problem, Recorded, problem
from nsyspipe.nsys.command_words import (
    TRACED,
    VARIABLES,
    VERSION,
    Mask,
    joined_environments,
    recorded_environment,
    shown_alone,
    shown_commands,
)
from nsyspipe.reader import report as versions
from nsyspipe.reader.calls import Calls, Overhead, Strings, read_calls, read_overhead, read_strings
from nsyspipe.reader.operations import (
    SHAPE_COLUMNS,
    Operations,
    read_operations,
    with_communication,
)
from nsyspipe.reader.payload import Payloads, communicator_sizes, read_payloads
from nsyspipe.reader.ranges import Ranges, read_ranges
from nsyspipe.reader.report import FileState, Report, machine_memory, open_report

# The variables of launchers for the rank and the number of ranks, the most reliable launcher first.
# RANK and WORLD_SIZE precede all of them.
LAUNCHER_SIZES = {
    "OMPI_COMM_WORLD_RANK": "OMPI_COMM_WORLD_SIZE",
    "PMI_RANK": "PMI_SIZE",
    "PMIX_RANK": "PMIX_SIZE",
    "SLURM_PROCID": "SLURM_NTASKS",
}
# Variables whose values all ranks of a job share, and other jobs usually do not. The values are
# compared, and never shown.
JOB_VARIABLES = ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "MASTER_PORT")
RANK_VARIABLES = (
    "RANK",
    *LAUNCHER_SIZES,
    *LAUNCHER_SIZES.values(),
    "WORLD_SIZE",
    "LOCAL_RANK",
    "CUDA_VISIBLE_DEVICES",
)
# How the names of calls that launch kernels begin.
_LAUNCH_PREFIXES = ("cudaLaunch", "cuLaunch", "cudaGraphLaunch", "cuGraphLaunch")
# Name and value of the row in which nsys records that it traced NVTX.
NVTX_TRACED = ("CAPTURE_EVENT_TYPE", "NvtxEvents")
_EVENT_TYPE = NVTX_TRACED[0]
_GRAPH_MODE = "CUDA_GRAPH_TRACE_OPTIONS:MODE"
CPU_TRACE = "COLLECT_CPU_TRACE"
# The CUDA version of a driver: 1000 times the major version plus 10 times the minor version.
_CUDA_NUMBER = re.compile(r"[0-9]{4,6}")
# The rows in which nsys records the commands that it started.
_COMMAND_ROWS = "name LIKE 'PROCESS%:COMMAND' OR name LIKE 'PROCESS%:ARGUMENT%'"
_COMMAND_ROW = re.compile(
    r"PROCESS_(?P<process>\d{1,6}):(?:COMMAND|ARGUMENT_(?P<argument>\d{1,6}))", re.ASCII
)
# The position of the first word of a command, before its arguments, which count from 0.
_PROGRAM = -1
_IS_VARIABLE = "name LIKE '%ENVIRONMENT_VARIABLE'"
_NAME_AND_VALUE = {"name": "text", "value": "text"}
# How the name of the row begins in which nsys records that it collected Python backtraces, for
# example PYTHON_BACKTRACE_SAMPLING_OPTIONS:COLLECT_SAMPLES, and its value.
PYTHON_BACKTRACES = ("PYTHON_BACKTRACE", "true")
_ASSIGNMENT = re.compile(r'^(?P<name>\w+)="?(?P<value>[^"]*)"?$')
_COUNTED_TABLES = (
    versions.KERNEL,
    versions.MEMCPY,
    versions.MEMSET,
    versions.GRAPH,
    versions.RUNTIME,
    versions.NVTX,
    versions.STRINGS,
    versions.OVERHEAD,
    versions.SYNCHRONIZATION,
    versions.OS_RUNTIME,
    versions.CPU_SAMPLES,
    versions.GPU_METRICS,
)


class ReportFacts(Struct, frozen=True):
    """Facts about a whole report; None is "not recorded"."""

    nsys_version: str | None = None
    schema_version: str | None = None
    session_start_utc_ns: int | None = None
    # When the nsys that captured was started. It is the same in all captures of one nsys.
    nsys_start_utc_ns: int | None = None
    host: str | None = None
    # The variables of ranks and jobs that have only one value in the report.
    variables: dict[str, str] = field(default_factory=dict)
    # The training variables of the program when it started, as they may be written down. None if
    # the report has no environment, or only the variables of the launcher, as redacted copies do.
    environment: dict[str, str] | None = None
    driver_versions: tuple[str, ...] = ()
    # The versions of CUDA that the driver supports.
    cuda_driver_versions: tuple[str, ...] = ()
    # Kinds of events, as nsys calls them.
    traced_events: tuple[str, ...] = ()
    # The commands of the captured programs, as they may be written down.
    commands: tuple[str, ...] = ()
    # How CUDA graphs were traced: ``graph`` or ``node``.
    cuda_graph_traces: tuple[str, ...] = ()
    is_cpu_sampled: bool | None = None
    # Whether CUDA API calls were recorded with backtraces.
    has_cuda_backtraces: bool | None = None
    # Models by GPU id.
    gpu_names: dict[int, str] = field(default_factory=dict)
    # GPU ids by pid and CUDA ordinal.
    gpu_of_ordinal: dict[tuple[int, int], int] = field(default_factory=dict)
    # GPU ids by CUDA ordinal of a process that sees all GPUs.
    gpu_of_device: dict[int, int] = field(default_factory=dict)
    # The tables that ``nsys export --tables`` was limited to; empty if it was not limited.
    exported_tables: str = ""
    # Whether the export left out tables without rows.
    is_lazy: bool = True
    # Whether the report has the settings of its export. Old reports do not.
    tells_export: bool = False
    # State of the file when it was read.
    file_state: FileState | None = None

    def leaves_out_empty(self, table: str) -> bool:
        """Tell whether the export leaves a table out if, and only if, the table has no rows."""
        return self.is_lazy and (not self.exported_tables or table in self.exported_tables)

    def number(self, variable: str) -> int | None:
        """Return a variable's value as a non-negative integer, or None."""
        value = self.variables.get(variable, "").strip()
        return int(value) if re.fullmatch(r"[0-9]{1,18}", value) else None

    def gpu_name(self, pid: int, device: int | None) -> str | None:
        """Return the model of a CUDA device of a process; None if it is not known.

        CUDA counts only the devices that the process sees. Reports before schema 3.17.1 have no
        table that maps them to GPUs. There the number identifies a GPU only if
        CUDA_VISIBLE_DEVICES is not set, or if all GPUs are of one model.
        """
        models = set(self.gpu_names.values())
        if len(models) == 1:
            return models.pop()
        if device is None:
            return None
        gpu = self.gpu_of_ordinal.get((pid, device))
        if gpu is None and "CUDA_VISIBLE_DEVICES" not in self.variables:
            gpu = self.gpu_of_device.get(device)
        return self.gpu_names.get(gpu) if gpu is not None else None


def read_facts(report: Report) -> ReportFacts:
    """Read the facts of a report; facts that its version does not have are None or empty."""
    settings = _export_settings(report)
    session_start_utc_ns = _session_start_utc_ns(report)
    gpus = _read_gpus(report)
    drivers, cuda_drivers = driver_versions_of(report)
    traced_events, cuda_graph_traces = traced_by(report)
    exported_tables = settings.get("EXPORT_PARAM_TABLES_TO_EXPORT") or ""
    tells_export = any(name.startswith("EXPORT_PARAM_") for name in settings)
    is_lazy = (settings.get("EXPORT_PARAM_LAZY") or "true").lower() != "false"
    facts = ReportFacts(
        driver_versions=drivers,
        cuda_driver_versions=cuda_drivers,
        traced_events=traced_events,
        cuda_graph_traces=cuda_graph_traces,
        commands=tuple(commands_of(report)),
        nsys_version=settings.get("EXPORT_PRODUCT_VERSION"),
        schema_version=settings.get("EXPORT_SCHEMA_VERSION"),
        session_start_utc_ns=session_start_utc_ns,
        gpu_names=gpus.names,
        gpu_of_device=gpus.id_of_device,
        exported_tables=exported_tables.strip(),
        tells_export=tells_export,
        is_lazy=is_lazy,
        file_state=report.state,
    )
    return replace(
        facts,
        nsys_start_utc_ns=_nsys_start_utc_ns(report, session_start_utc_ns),
        host=host_of(report),
        variables=_rank_variables(report),
        gpu_of_ordinal=_gpu_of_ordinal(report),
        environment=read_environment(report),
        is_cpu_sampled=samples_cpu(report),
        has_cuda_backtraces=_has_cuda_backtraces(report, facts),
    )


def _export_settings(report: Report) -> dict[str, str]:
    """Return what nsys recorded about the export, by name."""
    settings: dict[str, str] = {}
    for table in (versions.EXPORT_META_OLD, versions.EXPORT_META):
        for row in report.few(table, _NAME_AND_VALUE):
            settings[row["name"]] = row["value"]
    return settings


class _Gpus(NamedTuple):
    """The GPUs of a report."""

    # Models by GPU id.
    names: dict[int, str]
    # GPU ids by CUDA ordinal.
    id_of_device: dict[int, int]


def _read_gpus(report: Report) -> _Gpus:
    # The columns have other names in other versions.
    id_column = "id" if report.has(versions.GPU, "id") else "deviceId"
    device_column = "cuDevice" if report.has(versions.GPU, "cuDevice") else id_column
    columns = {id_column: "int", device_column: "int", "name": "text"}
    rows = report.few(versions.GPU, columns)
    names = {row[id_column]: row["name"] for row in rows if row["name"]}
    has_device = [row for row in rows if row[device_column] is not None]
    return _Gpus(names, {row[device_column]: row[id_column] for row in has_device})


def _gpu_of_ordinal(report: Report) -> dict[tuple[int, int], int]:
    """Return the GPU id of each pid and CUDA ordinal."""
    columns = dict.fromkeys(("pid", "cudaId", "gpuId"), "int")
    rows = report.few(versions.CUDA_DEVICE, columns)
    return {(row["pid"], row["cudaId"]): row["gpuId"] for row in rows if row["gpuId"] is not None}


def _session_start_utc_ns(report: Report) -> int | None:
    rows = report.few(versions.SESSION_START, {"utcEpochNs": "int"})
    starts = (row["utcEpochNs"] for row in rows)
    start: int | None = next((start for start in starts if start is not None), None)
    return start if start is not None and abs(start) < versions.TIME_LIMIT else None


def _rank_variables(report: Report) -> dict[str, str]:
    """Return the variables of ranks and jobs that have only one value in the report."""
    values_by_name: dict[str, set[str]] = {}
    for variable in variables_of(report, (*RANK_VARIABLES, *JOB_VARIABLES)):
        values_by_name.setdefault(variable.name, set()).add(variable.value)
    return {name: values.pop() for name, values in values_by_name.items() if len(values) == 1}


def _nsys_start_utc_ns(report: Report, session_start_utc_ns: int | None) -> int | None:
    """Return when the nsys that captured was started.

    The report has the time between that start and the start of its own capture.
    """
    rows = report.few(versions.CAPTURE_TIMES, {"startTime": "int"})
    delay_ns: int | None = next((row["startTime"] for row in rows), None)
    if session_start_utc_ns is None or delay_ns is None or abs(delay_ns) >= versions.TIME_LIMIT:
        return None
    return session_start_utc_ns - delay_ns


def host_of(report: Report) -> str | None:
    """Return the name of the host that was captured."""
    rows = report.few(versions.SYSTEM_ENV, _NAME_AND_VALUE, "name = 'Hostname'")
    return next((row["value"] for row in rows), None)


def driver_versions_of(report: Report) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the versions of the driver, and the versions of CUDA that the driver supports.

    Values that do not look like versions are left out.
    """
    where = "name IN ('NvDriverVersion', 'CudaDriverVersion')"
    rows = report.few(versions.SYSTEM_ENV, _NAME_AND_VALUE, where)
    drivers = [row["value"] for row in rows if row["name"] == "NvDriverVersion"]
    cuda_texts = [row["value"] for row in rows if row["name"] == "CudaDriverVersion"]
    cuda_numbers = [int(text) for text in cuda_texts if _CUDA_NUMBER.fullmatch(text or "")]
    cuda_versions = [f"{number // 1000}.{number % 1000 // 10}" for number in cuda_numbers]
    return tuple(shown_alone(drivers, VERSION)), tuple(shown_alone(cuda_versions, VERSION))


def traced_by(report: Report) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the kinds of events that nsys traced, and the ways in which it traced CUDA graphs."""
    where = f"name = '{_EVENT_TYPE}' OR name LIKE '%{_GRAPH_MODE}'"
    rows = report.few(versions.CAPTURE_META, _NAME_AND_VALUE, where)
    events = [row["value"] for row in rows if row["name"] == _EVENT_TYPE]
    # Redacted copies have NVTX only, whatever was traced.
    if set(events) == {NVTX_TRACED[1]}:
        events = []
    graph_modes = [(row["value"] or "").lower() for row in rows if row["name"] != _EVENT_TYPE]
    return tuple(shown_alone(events, TRACED)), tuple(shown_alone(graph_modes, TRACED))


def samples_cpu(report: Report) -> bool | None:
    """Tell whether nsys took CPU samples of any process; None if it was not recorded."""
    where = f"name LIKE '%{CPU_TRACE}'"
    rows = report.few(versions.CAPTURE_META, _NAME_AND_VALUE, where)
    values = {(row["value"] or "").lower() for row in rows}
    return "true" in values if values & {"true", "false"} else None


def _has_cuda_backtraces(report: Report, facts: ReportFacts) -> bool | None:
    """Tell whether CUDA API calls were recorded with backtraces.

    None if the export may have left out the backtraces.
    """
    table = versions.CUDA_CALL_CHAINS
    if report.has_rows(table):
        return True
    is_exported = report.has(table) or facts.leaves_out_empty(table)
    return False if is_exported else None


def commands_of(report: Report) -> list[str]:
    """Return the commands of the programs that nsys started, as they may be written down.

    Words that are not known to be harmless are masked, for example secrets and paths. Commands that
    are masked completely are left out.
    """
    # For each process its words by position.
    words_by_process: dict[str, dict[int, str]] = {}
    for row in report.few(versions.CAPTURE_META, _NAME_AND_VALUE, _COMMAND_ROWS):
        match = _COMMAND_ROW.fullmatch(row["name"] or "")
        if match is not None:
            position = _PROGRAM if match["argument"] is None else int(match["argument"])
            words_by_process.setdefault(match["process"], {})[position] = row["value"] or ""
    commands = [words for words in words_by_process.values() if words.get(_PROGRAM)]
    return shown_commands(map(_in_order, commands))


def _in_order(words: Mapping[int, str]) -> list[str]:
    """Return words in the order of their positions."""
    return [word for _, word in sorted(words.items())]


def traces_nvtx(report: Report) -> bool:
    """Tell whether nsys recorded that it traced NVTX, even if there was no range."""
    where = "name = '{}' AND value = '{}'".format(*NVTX_TRACED)
    return bool(report.few(versions.CAPTURE_META, _NAME_AND_VALUE, where))


def records_python_backtraces(report: Report) -> bool:
    """Tell whether nsys recorded backtraces of Python."""
    prefix, enabled = PYTHON_BACKTRACES
    rows = report.few(versions.CAPTURE_META, _NAME_AND_VALUE, f"name LIKE '{prefix}%'")
    return any(row["value"].lower() == enabled for row in rows)


class CapturedVariable(NamedTuple):
    """An environment variable that a report captured."""

    # The name of the row that has the variable.
    row: str
    name: str
    value: str


def variables_of(
    report: Report, names: Collection[str], table: str = versions.CAPTURE_META
) -> Iterator[CapturedVariable]:
    """Yield the environment variables with some names that were captured."""
    conditions = " OR ".join(f"value LIKE '{name}=%'" for name in names)
    where = f"{_IS_VARIABLE} AND ({conditions})"
    for row in report.few(table, _NAME_AND_VALUE, where):
        match = _ASSIGNMENT.match(row["value"])
        # LIKE takes _ for any letter and ignores case, so the name is compared again.
        if match and match["name"] in names:
            yield CapturedVariable(row["name"], match["name"], match["value"])


def read_environment(report: Report) -> dict[str, str] | None:
    """Return the training variables that a report captured, as they may be written down.

    None if the environment was not captured as a whole, which is when there are only variables of
    launchers.
    """
    table = versions.CAPTURE_META
    if not report.has(table, *_NAME_AND_VALUE):
        return None
    is_launchers = " OR ".join(f"value LIKE '{name}=%'" for name in RANK_VARIABLES)
    if not report.count(table, f"{_IS_VARIABLE} AND NOT ({is_launchers})"):
        return None
    is_for_training = " OR ".join(f"value LIKE '{name}=%'" for name in VARIABLES)
    environments: dict[str, dict[str, str]] = {}
    for row in report.few(table, _NAME_AND_VALUE, f"{_IS_VARIABLE} AND ({is_for_training})"):
        name, _, value = row["value"].partition("=")
        is_quoted = len(value) > 1 and value[0] == value[-1] == '"'
        environment = environments.setdefault(row["name"], {})
        environment[name] = value[1:-1] if is_quoted else value
    recorded = [recorded_environment(variables, Mask()) for variables in environments.values()]
    return joined_environments(recorded) or {}


class Capture(Struct, frozen=True):
    """One report, read and closed again."""

    facts: ReportFacts
    operations: Operations
    # The operations that are communication because of the calls that launched them.
    called: Called
    calls: Calls
    # The work of the profiler itself; None if it was not recorded.
    overhead: Overhead | None
    ranges: Ranges
    # What NVTX payloads of NCCL's calls contain.
    payloads: Payloads
    # Which facts were recorded; a fact counts as recorded if there was nothing to record.
    recorded: Recorded
    # The number of launches of each process that has CUDA calls or ranges, but no kernel, if other
    # processes have kernels.
    launches_without_kernels: dict[int, int]
    problems: tuple[Problem, ...]


def read_capture(path: str, comm_kernel: re.Pattern[str] | None) -> Capture:
    """Read one report.

    Raises `InputError` if the report is missing, damaged, not an nsys export, or lacks tables that
    all answers need.
    """
    with open_report(path) as report:
        report.refuse_what_cannot_fit(machine_memory())
        facts = read_facts(report)
        strings = read_strings(report)
        calls = read_calls(report, strings)
        operations = read_operations(report, strings, comm_kernel)
        overhead = read_overhead(report, facts)
        operation_ends = [operations.kernels["end_ns"], operations.copies["end_ns"]]
        ranges = read_ranges(report, strings, operation_ends)
        payloads = read_payloads(report, strings)
        recorded = _recorded(report, facts, strings, operations)
        without_kernels = _launches_without_kernels(report, strings, calls, ranges, operations)
        problems = _problems_of_recording(report, facts, ranges)
        n_memset_calls = _n_memset_calls(report, facts, strings)
        called = _called(facts, operations, calls, ranges, payloads)
        operations, called = with_communication(report, operations, called)
    problems += _problems_of_absence(recorded)
    counts = {
        "dropped-operations": operations.n_dropped,
        "dropped-ranges": ranges.n_dropped,
        "memset-calls-only": n_memset_calls,
        "undecoded-payload": payloads.n_undecoded,
        "copies-of-unknown-communicators": called.n_assumed,
        "copies-in-nccl-calls": called.n_left,
    }
    problems += _problems_of_counts(counts)
    return Capture(
        facts=facts,
        operations=operations,
        called=called,
        calls=calls,
        overhead=overhead,
        ranges=ranges,
        payloads=payloads,
        recorded=recorded,
        launches_without_kernels=without_kernels,
        problems=tuple(problems),
    )


def _problems_of_recording(report: Report, facts: ReportFacts, ranges: Ranges) -> list[Problem]:
    """Return the problems with the version of a report, its NVTX ranges and backtraces."""
    problems = []
    if versions.version_numbers(facts.schema_version) > versions.NEWEST_TESTED:
        problems.append(problem("untested-version", version=facts.schema_version))
    if not ranges.is_recorded:
        was_traced = traces_nvtx(report) and facts.leaves_out_empty(versions.NVTX)
        problems.append(problem("no-nvtx-ranges" if was_traced else "no-nvtx"))
    if facts.has_cuda_backtraces:
        problems.append(problem("cuda-backtraces"))
    if records_python_backtraces(report):
        problems.append(problem("python-backtraces"))
    return problems


def _problems_of_absence(recorded: Recorded) -> list[Problem]:
    return [problem(code) for fact, code in NOT_RECORDED.items() if not getattr(recorded, fact)]


def _problems_of_counts(counts: Mapping[str, int]) -> list[Problem]:
    return [problem(code, n=n) for code, n in counts.items() if n]


def _n_memset_calls(report: Report, facts: ReportFacts, strings: Strings) -> int:
    """Return how many calls set memory, if the report has no memset although none was left out."""
    if not _holds_memsets(report, facts) or report.has_rows(versions.MEMSET):
        return 0
    return _n_calls(report, strings, ("Memset",))


def _launches_without_kernels(
    report: Report, strings: Strings, calls: Calls, ranges: Ranges, operations: Operations
) -> dict[int, int]:
    """Count the launches of each process without kernels; empty if no process has a kernel."""
    with_kernels = _distinct(operations.kernels["process_id"])
    active = _distinct(ranges.table["process_id"])
    if calls.all is not None:
        active |= _distinct(calls.all["process_id"])
    without_kernels = active - with_kernels
    if not (without_kernels and with_kernels):
        return {}
    n_launches = _launches_by_process(report, strings)
    return {process: n_launches.get(process, 0) for process in without_kernels}


def _launches_by_process(report: Report, strings: Strings) -> dict[int, int]:
    """Count the calls of each process that launch kernels or graphs."""
    names = ", ".join(map(str, strings.ids_beginning(*_LAUNCH_PREFIXES).tolist()))
    if not names or not report.has(versions.RUNTIME, "globalTid", "nameId"):
        return {}
    calls = report.select(
        versions.RUNTIME, {"globalTid": "int"}, where=f"nameId IN ({names})"
    ).drop_null()
    process_of_call = versions.process_of(calls["globalTid"].to_numpy())
    processes, counts = np.unique(process_of_call, return_counts=True)
    return dict(zip(processes.tolist(), counts.tolist(), strict=True))


def _distinct(process_ids: pa.ChunkedArray) -> set[int]:
    """Return the distinct values of a column, fast if there is only one, as in most reports."""
    bounds = pc.min_max(process_ids).as_py()
    if bounds["min"] == bounds["max"]:
        return {bounds["min"]} - {None}
    return set(pc.unique(process_ids).to_pylist()) - {None}


def _called(
    facts: ReportFacts, operations: Operations, calls: Calls, ranges: Ranges, payloads: Payloads
) -> Called:
    """Return the operations that are communication because of the calls that launched them."""
    if not ranges.comm_calls.num_rows:
        return Called()
    return find_called(
        operations.kernels,
        operations.copies,
        operations.names,
        host_calls=calls.all,
        comm_calls=ranges.comm_calls,
        n_ranks=communicator_sizes(payloads, ranges.comm_calls),
        are_several=_are_several(facts, operations),
    )


def _are_several(facts: ReportFacts, operations: Operations) -> bool | None:
    """Tell whether the job has several ranks; None if the report does not show it."""
    for name in ("WORLD_SIZE", *LAUNCHER_SIZES.values()):
        n_ranks = facts.number(name)
        if n_ranks is not None:
            return n_ranks > 1
    # A communicator of one rank launches no kernel.
    has_several = (
        pc.any(operations.kernels["is_comm"]).as_py()
        or pc.count_distinct(operations.kernels["process_id"]).as_py() > 1
    )
    return True if has_several else None


def _recorded(
    report: Report, facts: ReportFacts, strings: Strings, operations: Operations
) -> Recorded:
    """Return which facts about operations the report has."""
    copies = operations.copies
    dtod_bytes = copies["bytes"].filter(pc.equal(copies["copy_kind"], canonical.DTOD_KIND))

    def is_complete(table: str, *calls: str) -> bool:
        """Tell whether a table has rows, or has none because nothing called what makes them."""
        if report.has_rows(table):
            return True
        if not report.has(table) and not facts.leaves_out_empty(table):
            return False
        return not _n_calls(report, strings, calls)

    has_graphs = operations.n_graphs > 0
    # If nothing was left out, memset calls without a memset did not set memory of a device at that
    # time.
    has_memsets = _holds_memsets(report, facts) or is_complete(versions.MEMSET, "Memset")
    return Recorded(
        kernels=has_graphs or is_complete(versions.KERNEL, "LaunchKernel", "GraphLaunch"),
        names=operations.has_names,
        memcpy=is_complete(versions.MEMCPY, "Memcpy"),
        memset=has_memsets,
        kinds=not copies["copy_kind"].null_count,
        sizes=not dtod_bytes.null_count,
    )


def _holds_memsets(report: Report, facts: ReportFacts) -> bool:
    """Tell whether the export has all memsets that nsys recorded, if any."""
    is_limited = bool(facts.exported_tables) and versions.MEMSET not in facts.exported_tables
    return facts.tells_export and not is_limited and (facts.is_lazy or report.has(versions.MEMSET))


def _n_calls(report: Report, strings: Strings, calls: tuple[str, ...]) -> int:
    """Return how many calls have names that begin so, in the driver or the runtime API."""
    prefixes = [f"{api}{call}" for api in ("cu", "cuda") for call in calls]
    names = ", ".join(map(str, strings.ids_beginning(*prefixes).tolist()))
    if not names or not report.has(versions.RUNTIME, "nameId"):
        return 0
    return report.count(versions.RUNTIME, f"nameId IN ({names})")


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


def read_counts(path: str | Path) -> Counts:
    """Count the rows of a report; `InputError` if it is missing, damaged, or not an nsys export."""
    with open_report(path) as report:
        rows = {table: report.count(table) if report.has(table) else 0 for table in _COUNTED_TABLES}
        n_calls = rows[versions.RUNTIME]
        has_launches = report.has(versions.RUNTIME, "start", "globalTid", "correlationId")
        has_times = report.has(versions.RUNTIME, "start", "end", "globalTid", "nameId")
        n_graph_kernels = 0
        if report.has(versions.KERNEL, "graphNodeId"):
            n_graph_kernels = report.count(versions.KERNEL, "graphNodeId != 0")
        return Counts(
            rows=rows,
            n_launches=n_calls if has_launches else 0,
            n_timed_calls=n_calls if has_times else 0,
            n_graph_kernels=n_graph_kernels,
            has_shapes=report.has(versions.KERNEL, *SHAPE_COLUMNS),
        )
