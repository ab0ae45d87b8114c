"""What a report says about its capture, and everything else of it that the analysis needs, in one pass over each table.

Reports embed the whole environment of the profiled program, secrets included: only the variables
named here are read.
"""

import re
from collections.abc import Collection, Iterator
from pathlib import Path

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

# A launcher's number of a rank, and how many it launched; in order of trust, after RANK and
# WORLD_SIZE.
LAUNCHER_SIZES = {
    "OMPI_COMM_WORLD_RANK": "OMPI_COMM_WORLD_SIZE",
    "PMI_RANK": "PMI_SIZE",
    "PMIX_RANK": "PMIX_SIZE",
    "SLURM_PROCID": "SLURM_NTASKS",
}
# What all ranks of a job share, and other jobs mostly do not; never shown, only compared.
JOB_VARIABLES = ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "MASTER_PORT")
RANK_VARIABLES = (
    "RANK",
    *LAUNCHER_SIZES,
    *LAUNCHER_SIZES.values(),
    "WORLD_SIZE",
    "LOCAL_RANK",
    "CUDA_VISIBLE_DEVICES",
)
_LAUNCHING = (
    "cudaLaunch",
    "cuLaunch",
    "cudaGraphLaunch",
    "cuGraphLaunch",
)  # beginnings of the calls that launch kernels
NVTX_TRACED = "CAPTURE_EVENT_TYPE", "NvtxEvents"  # nsys's own row of what it traced
_EVENT_TYPE = NVTX_TRACED[0]
_GRAPH_MODE = "CUDA_GRAPH_TRACE_OPTIONS:MODE"
CPU_TRACE = "COLLECT_CPU_TRACE"
_CUDA_NUMBER = re.compile(
    r"[0-9]{4,6}"
)  # of a driver: 1000 times the major version and 10 times the minor one
# Beginnings of nsys's own rows of what it was told to start, and the whole of them.
_COMMAND_ROWS = "name LIKE 'PROCESS%:COMMAND' OR name LIKE 'PROCESS%:ARGUMENT%'"
_COMMAND_ROW = re.compile(
    r"PROCESS_(?P<process>\d{1,6}):(?:COMMAND|ARGUMENT_(?P<argument>\d{1,6}))", re.ASCII
)
_PROGRAM = -1  # stands for the place of a command's first word
_OF_ENVIRONMENT = "name LIKE '%ENVIRONMENT_VARIABLE'"
# Beginning of nsys's own rows of what it recorded of Python, as of
# PYTHON_BACKTRACE_SAMPLING_OPTIONS:COLLECT_SAMPLES.
PYTHON_BACKTRACES = "PYTHON_BACKTRACE", "true"
_ASSIGNMENT = re.compile(r'^(?P<name>\w+)="?(?P<value>[^"]*)"?$')
_COUNTED = (
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
    """Facts that hold for a whole report; None is "not recorded"."""

    nsys_version: str | None = None
    schema_version: str | None = None
    session_start_utc_ns: int | None = None
    # When the nsys that captured was started. It is the same in all captures of one nsys.
    nsys_start_utc_ns: int | None = None
    host: str | None = None
    variables: dict[str, str] = field(
        default_factory=dict
    )  # of those that are read, what was captured with one value
    # Training variables of the program when it started, as they may be written down; None where
    # only those of the launcher, which copies without an environment keep, or none at all were
    # recorded.
    environment: dict[str, str] | None = None
    driver_versions: tuple[str, ...] = ()
    cuda_driver_versions: tuple[str, ...] = ()  # of CUDA that the driver supports
    traced_events: tuple[str, ...] = ()  # kinds of events, as nsys calls them
    commands: tuple[
        str, ...
    ] = ()  # of the programs that were captured, as they may be written down
    cuda_graph_traces: tuple[str, ...] = ()  # how CUDA graphs were traced: ``graph`` or ``node``
    is_cpu_sampled: bool | None = None  # whether nsys sampled what the CPUs run
    has_cuda_backtraces: bool | None = None  # of CUDA API calls
    # Model by GPU id, and the id of each CUDA ordinal by (pid, ordinal) and by ordinal alone
    gpu_names: dict[int, str] = field(default_factory=dict)
    gpu_of_ordinal: dict[tuple[int, int], int] = field(default_factory=dict)
    gpu_of_device: dict[int, int] = field(default_factory=dict)
    exported_tables: str = ""  # what ``nsys export --tables`` was limited to; empty when it was not
    is_lazy: bool = True  # whether the export left out tables without events
    tells_export: bool = False  # whether the report says how it was exported; old ones do not
    file_state: FileState | None = None  # of the file when it was read

    def leaves_out_empty(self, table: str) -> bool:
        """Tell whether the export, by how it was made, leaves a table out exactly when it has no rows."""
        return self.is_lazy and (not self.exported_tables or table in self.exported_tables)

    def number(self, variable: str) -> int | None:
        """Return a variable's value as a non-negative integer, or None."""
        value = self.variables.get(variable, "").strip()
        return int(value) if re.fullmatch(r"[0-9]{1,18}", value) else None

    def gpu_name(self, pid: int, device: int | None) -> str | None:
        """Return the model of a CUDA device of a process; None when the report cannot tell.

        CUDA counts the devices that the process sees: without the mapping table (3.17.1 on) a
        number names a GPU only if nothing hides or reorders them, or if all are alike.
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
    """Read a report's facts; whatever its version does not have stays None or empty."""
    texts = {"name": "text", "value": "text"}
    tables = versions.EXPORT_META_OLD, versions.EXPORT_META
    meta = {row["name"]: row["value"] for table in tables for row in report.few(table, texts)}
    of_devices = report.few(versions.CUDA_DEVICE, dict.fromkeys(("pid", "cudaId", "gpuId"), "int"))
    id_column = "id" if report.has(versions.GPU, "id") else "deviceId"  # the id column was renamed
    device_column = "cuDevice" if report.has(versions.GPU, "cuDevice") else id_column
    gpus = report.few(versions.GPU, {id_column: "int", device_column: "int", "name": "text"})
    starts = (
        row["utcEpochNs"] for row in report.few(versions.SESSION_START, {"utcEpochNs": "int"})
    )
    start: int | None = next((one for one in starts if one is not None), None)
    session_start_utc_ns = start if start is not None and abs(start) < versions.TIME_LIMIT else None
    variables: dict[str, set[str]] = {}
    for _, name, value in variables_of(report, (*RANK_VARIABLES, *JOB_VARIABLES)):
        variables.setdefault(name, set()).add(value)
    drivers, cuda_drivers = driver_versions_of(report)
    traced_events, cuda_graph_traces = traced_by(report)
    facts = ReportFacts(
        driver_versions=drivers,
        cuda_driver_versions=cuda_drivers,
        traced_events=traced_events,
        cuda_graph_traces=cuda_graph_traces,
        commands=tuple(commands_of(report)),
        nsys_version=meta.get("EXPORT_PRODUCT_VERSION"),
        schema_version=meta.get("EXPORT_SCHEMA_VERSION"),
        session_start_utc_ns=session_start_utc_ns,
        nsys_start_utc_ns=_nsys_start_utc_ns(report, session_start_utc_ns),
        host=host_of(report),
        gpu_names={row[id_column]: row["name"] for row in gpus if row["name"]},
        gpu_of_device={
            row[device_column]: row[id_column] for row in gpus if row[device_column] is not None
        },
        variables={name: values.pop() for name, values in variables.items() if len(values) == 1},
        gpu_of_ordinal={
            (row["pid"], row["cudaId"]): row["gpuId"]
            for row in of_devices
            if row["gpuId"] is not None
        },
        environment=read_environment(report),
        exported_tables=(meta.get("EXPORT_PARAM_TABLES_TO_EXPORT") or "").strip(),
        tells_export=any(name.startswith("EXPORT_PARAM_") for name in meta),
        is_lazy=(meta.get("EXPORT_PARAM_LAZY") or "true").lower() != "false",
        file_state=report.state,
        is_cpu_sampled=samples_cpu(report),
    )
    return replace(facts, has_cuda_backtraces=_has_cuda_backtraces(report, facts))


def _nsys_start_utc_ns(report: Report, session_start_utc_ns: int | None) -> int | None:
    """Return when the nsys that captured was started: a report says how long after that its own capture began."""
    rows = report.few(versions.CAPTURE_TIMES, {"startTime": "int"})
    began_after_ns: int | None = next((row["startTime"] for row in rows), None)
    if (
        session_start_utc_ns is None
        or began_after_ns is None
        or abs(began_after_ns) >= versions.TIME_LIMIT
    ):
        return None
    return session_start_utc_ns - began_after_ns


def host_of(report: Report) -> str | None:
    """Return the name of the host that was captured."""
    rows = report.few(versions.SYSTEM_ENV, {"name": "text", "value": "text"}, "name = 'Hostname'")
    return next((row["value"] for row in rows), None)


def driver_versions_of(report: Report) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the versions of the driver, and of CUDA that it supports; none where they are not there or look otherwise."""
    where = "name IN ('NvDriverVersion', 'CudaDriverVersion')"
    rows = report.few(versions.SYSTEM_ENV, {"name": "text", "value": "text"}, where)
    drivers = [row["value"] for row in rows if row["name"] == "NvDriverVersion"]
    numbers = [row["value"] for row in rows if row["name"] == "CudaDriverVersion" and row["value"]]
    of_cuda = [
        f"{int(n) // 1000}.{int(n) % 1000 // 10}" for n in numbers if _CUDA_NUMBER.fullmatch(n)
    ]
    return tuple(shown_alone(drivers, VERSION)), tuple(shown_alone(of_cuda, VERSION))


def traced_by(report: Report) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return which kinds of events nsys says that it traced, and how CUDA graphs."""
    where = f"name = '{_EVENT_TYPE}' OR name LIKE '%{_GRAPH_MODE}'"
    rows = report.few(versions.CAPTURE_META, {"name": "text", "value": "text"}, where)
    events = [row["value"] for row in rows if row["name"] == _EVENT_TYPE]
    if set(events) == {NVTX_TRACED[1]}:  # all that redacted copies keep of them
        events = []
    graphs = [(row["value"] or "").lower() for row in rows if row["name"] != _EVENT_TYPE]
    return tuple(shown_alone(events, TRACED)), tuple(shown_alone(graphs, TRACED))


def samples_cpu(report: Report) -> bool | None:
    """Tell whether nsys says that it sampled what the CPUs run, of any process; None where it does not say."""
    where = f"name LIKE '%{CPU_TRACE}'"
    rows = report.few(versions.CAPTURE_META, {"name": "text", "value": "text"}, where)
    said = {(row["value"] or "").lower() for row in rows}
    return "true" in said if said & {"true", "false"} else None


def _has_cuda_backtraces(report: Report, facts: ReportFacts) -> bool | None:
    """Tell whether CUDA API calls were recorded with backtraces; None where the export may lack them."""
    if report.has_rows(versions.CUDA_CALL_CHAINS):
        return True
    is_seen = report.has(versions.CUDA_CALL_CHAINS) or facts.leaves_out_empty(
        versions.CUDA_CALL_CHAINS
    )
    return False if is_seen else None


def commands_of(report: Report) -> list[str]:
    """Return the commands of the programs that nsys started, as they may be written down; none that would hide all.

    What is not known to be harmless, secrets and paths among it, is masked before it goes anywhere.
    """
    words_of: dict[str, dict[int, str]] = {}
    for row in report.few(versions.CAPTURE_META, {"name": "text", "value": "text"}, _COMMAND_ROWS):
        made = _COMMAND_ROW.fullmatch(row["name"] or "")
        if made is not None:
            place = _PROGRAM if made["argument"] is None else int(made["argument"])
            words_of.setdefault(made["process"], {})[place] = row["value"] or ""
    commands = (
        [words[at] for at in sorted(words)] for words in words_of.values() if words.get(_PROGRAM)
    )
    return shown_commands(commands)


def traces_nvtx(report: Report) -> bool:
    """Tell whether nsys says that it traced NVTX, if only to find no range."""
    where = "name = '{}' AND value = '{}'".format(*NVTX_TRACED)
    return bool(report.few(versions.CAPTURE_META, {"name": "text", "value": "text"}, where))


def records_python_backtraces(report: Report) -> bool:
    """Tell whether nsys says that it recorded backtraces of Python."""
    rows = report.few(
        versions.CAPTURE_META,
        {"name": "text", "value": "text"},
        f"name LIKE '{PYTHON_BACKTRACES[0]}%'",
    )
    return any(row["value"].lower() == PYTHON_BACKTRACES[1] for row in rows)


def variables_of(
    report: Report, names: Collection[str], table: str = versions.CAPTURE_META
) -> Iterator[tuple[str, str, str]]:
    """Yield those of some environment variables that were captured: what their rows are called, name and value."""
    wanted = " OR ".join(f"value LIKE '{name}=%'" for name in names)
    where = f"{_OF_ENVIRONMENT} AND ({wanted})"
    for row in report.few(table, {"name": "text", "value": "text"}, where):
        # LIKE takes _ for any letter and ignores case, so compare the name again.
        made = _ASSIGNMENT.match(row["value"])
        if made and made["name"] in names:
            yield row["name"], made["name"], made["value"]


def read_environment(report: Report) -> dict[str, str] | None:
    """Return the training variables that a report captured, as they may be written down.

    None where the environment was not captured as a whole: a program's own has other variables than
    those of launchers.
    """
    table = versions.CAPTURE_META
    columns = {"name": "text", "value": "text"}
    of_launchers = " OR ".join(f"value LIKE '{name}=%'" for name in RANK_VARIABLES)
    if not report.has(table, *columns) or not report.count(
        table, f"{_OF_ENVIRONMENT} AND NOT ({of_launchers})"
    ):
        return None
    wanted = " OR ".join(f"value LIKE '{name}=%'" for name in VARIABLES)
    by_process: dict[str, dict[str, str]] = {}
    for row in report.few(table, columns, f"{_OF_ENVIRONMENT} AND ({wanted})"):
        name, _, value = row["value"].partition("=")
        is_quoted = len(value) > 1 and value[0] == value[-1] == '"'
        by_process.setdefault(row["name"], {})[name] = value[1:-1] if is_quoted else value
    return (
        joined_environments(recorded_environment(own, Mask()) for own in by_process.values()) or {}
    )


class Capture(Struct, frozen=True):
    """One report, read and closed again."""

    facts: ReportFacts
    operations: Operations
    called: Called  # what of them is communication by the calls that launched it
    calls: Calls
    overhead: Overhead | None  # the profiler's own work; None when not recorded
    ranges: Ranges
    payloads: Payloads  # what NCCL's calls say of themselves
    recorded: Recorded  # which facts the report lacks although there was something to record
    # Of each process that called CUDA or has ranges, and of which there is no kernel, though there
    # are kernels of others: how many kernels and graphs it launched
    launches_without_kernels: dict[int, int]
    problems: tuple[Problem, ...]


def read_capture(path: str, comm_kernel: re.Pattern[str] | None) -> Capture:
    """Read one report; `InputError` if it is missing, damaged, no nsys export, or lacks what every answer needs."""
    with open_report(path) as report:
        report.refuse_what_cannot_fit(machine_memory())
        facts = read_facts(report)
        strings = read_strings(report)
        calls = read_calls(report, strings)
        operations = read_operations(report, strings, comm_kernel)
        overhead = read_overhead(report, facts)
        ranges = read_ranges(
            report, strings, [operations.kernels["end_ns"], operations.copies["end_ns"]]
        )
        payloads = read_payloads(report, strings)
        recorded = _recorded(report, facts, strings, operations)
        no_memset = _holds_memsets(report, facts) and not report.has_rows(versions.MEMSET)
        lacks_nvtx = (
            "no-nvtx-ranges"
            if traces_nvtx(report) and facts.leaves_out_empty(versions.NVTX)
            else "no-nvtx"
        )
        without_kernels = _launches_without_kernels(report, strings, calls, ranges, operations)
        has_backtraces = {
            "cuda-backtraces": bool(facts.has_cuda_backtraces),
            "python-backtraces": records_python_backtraces(report),
        }
        n_memset_calls = _n_calls(report, strings, ("Memset",)) if no_memset else 0
        called = _called(facts, operations, calls, ranges, payloads)
        operations, called = with_communication(report, operations, called)
    is_untested = versions.version_numbers(facts.schema_version) > versions.NEWEST_TESTED
    numbers = {
        "dropped-operations": operations.n_dropped,
        "dropped-ranges": ranges.n_dropped,
        "memset-calls-only": n_memset_calls,
        "undecoded-payload": payloads.n_undecoded,
        "copies-of-unknown-communicators": called.n_assumed,
        "copies-in-nccl-calls": called.n_left,
    }
    problems = (
        *([problem("untested-version", version=facts.schema_version)] if is_untested else []),
        *([] if ranges.is_recorded else [problem(lacks_nvtx)]),
        *(problem(code) for code, is_recorded in has_backtraces.items() if is_recorded),
        *(problem(code) for fact, code in NOT_RECORDED.items() if not getattr(recorded, fact)),
        *(problem(code, n=n) for code, n in numbers.items() if n),
    )
    return Capture(
        facts,
        operations,
        called,
        calls,
        overhead,
        ranges,
        payloads,
        recorded,
        without_kernels,
        problems,
    )


def _launches_without_kernels(
    report: Report, strings: Strings, calls: Calls, ranges: Ranges, operations: Operations
) -> dict[int, int]:
    """Count the launches of each process of which there is no kernel; nothing where the report has no kernel at all."""
    with_kernels = _distinct(operations.kernels["process_id"])
    active = _distinct(ranges.table["process_id"])
    if calls.all is not None:
        active |= _distinct(calls.all["process_id"])
    silent = active - with_kernels
    if not (silent and with_kernels):
        return {}
    counts = dict.fromkeys(silent, 0)
    names = ", ".join(map(str, strings.ids_beginning(*_LAUNCHING).tolist()))
    if names and report.has(versions.RUNTIME, "globalTid", "nameId"):
        found = report.select(
            versions.RUNTIME, {"globalTid": "int"}, where=f"nameId IN ({names})"
        ).drop_null()
        processes, numbers = np.unique(
            versions.process_of(found["globalTid"].to_numpy()), return_counts=True
        )
        launched = dict(zip(processes.tolist(), numbers.tolist(), strict=True))
        counts = {process: launched.get(process, 0) for process in silent}
    return counts


def _distinct(process_ids: pa.ChunkedArray) -> set[int]:
    """Return the distinct values of a column, which most often has one."""
    bounds = pc.min_max(process_ids).as_py()
    if bounds["min"] == bounds["max"]:
        return {bounds["min"]} - {None}
    return set(pc.unique(process_ids).to_pylist()) - {None}


def _called(
    facts: ReportFacts, operations: Operations, calls: Calls, ranges: Ranges, payloads: Payloads
) -> Called:
    """Return what is communication because of the calls that launched it."""
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
    """Tell whether the job has several ranks, as far as one report says; None where it does not."""
    sizes = (facts.number(name) for name in ("WORLD_SIZE", *LAUNCHER_SIZES.values()))
    size = next((size for size in sizes if size is not None), None)
    if size is not None:
        return size > 1
    # A communicator of one rank launches no kernel.
    has_several = (
        pc.any(operations.kernels["is_comm"]).as_py()
        or pc.count_distinct(operations.kernels["process_id"]).as_py() > 1
    )
    return True if has_several else None


def _recorded(
    report: Report, facts: ReportFacts, strings: Strings, operations: Operations
) -> Recorded:
    copies = operations.copies
    dtod_bytes = copies["bytes"].filter(pc.equal(copies["copy_kind"], canonical.DTOD_KIND))

    def is_there(table: str, *calls: str) -> bool:
        """Tell whether a table holds what happened: rows, or none since nothing called what makes them."""
        if report.has_rows(table):
            return True
        return (report.has(table) or facts.leaves_out_empty(table)) and not _n_calls(
            report, strings, calls
        )

    return Recorded(
        kernels=operations.n_graphs > 0 or is_there(versions.KERNEL, "LaunchKernel", "GraphLaunch"),
        names=operations.has_names,
        memcpy=is_there(versions.MEMCPY, "Memcpy"),
        # Where nothing was left out, calls without any operation set no memory of a device at that
        # time.
        memset=_holds_memsets(report, facts) or is_there(versions.MEMSET, "Memset"),
        kinds=not copies["copy_kind"].null_count,
        sizes=not dtod_bytes.null_count,
    )


def _holds_memsets(report: Report, facts: ReportFacts) -> bool:
    """Tell whether the export surely holds all memsets that nsys recorded, if any."""
    is_limited = bool(facts.exported_tables) and versions.MEMSET not in facts.exported_tables
    return facts.tells_export and not is_limited and (facts.is_lazy or report.has(versions.MEMSET))


def _n_calls(report: Report, strings: Strings, calls: tuple[str, ...]) -> int:
    prefixes = [f"{api}{call}" for api in ("cu", "cuda") for call in calls]
    names = ", ".join(map(str, strings.ids_beginning(*prefixes).tolist()))
    if not names or not report.has(versions.RUNTIME, "nameId"):
        return 0
    return report.count(versions.RUNTIME, f"nameId IN ({names})")


class Counts(Struct, frozen=True):
    """What one report holds."""

    rows: dict[str, int]  # rows by table; 0 for a table that is absent
    n_launches: int  # calls that have all that ties them to what they launched
    n_timed_calls: int  # calls with a name and an end
    n_graph_kernels: int  # kernels of CUDA graphs that were captured node by node
    has_shapes: bool  # whether kernels have their grid and block


def read_counts(path: str | Path) -> Counts:
    """Count what a report holds; `InputError` if it is missing, damaged, or no nsys export."""
    with open_report(path) as report:
        rows = {table: report.count(table) if report.has(table) else 0 for table in _COUNTED}
        n_calls = rows[versions.RUNTIME]
        is_node = report.has(versions.KERNEL, "graphNodeId")
        return Counts(
            rows=rows,
            n_launches=n_calls
            * report.has(versions.RUNTIME, "start", "globalTid", "correlationId"),
            n_timed_calls=n_calls
            * report.has(versions.RUNTIME, "start", "end", "globalTid", "nameId"),
            n_graph_kernels=report.count(versions.KERNEL, "graphNodeId != 0") if is_node else 0,
            has_shapes=report.has(versions.KERNEL, *SHAPE_COLUMNS),
        )
