"""What a report says about its capture, and everything else of it that the analysis needs, in one pass over each table.

Reports embed the whole environment of the profiled program, secrets included: only the variables named here are read.
"""

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow.compute as pc

from nsyspipe.model import canonical
from nsyspipe.model.problems import NOT_RECORDED, Problem, Recorded, problem
from nsyspipe.model.table import Int64
from nsyspipe.reader import report as versions
from nsyspipe.reader.calls import Calls, Strings, read_calls, read_overhead, read_strings
from nsyspipe.reader.operations import SHAPE_COLUMNS, Operations, read_operations
from nsyspipe.reader.payload import Payloads, read_payloads
from nsyspipe.reader.ranges import Ranges, read_ranges
from nsyspipe.reader.report import FileState, Report, machine_memory, open_report

# A launcher's number of a rank, and how many it launched; in order of trust, after RANK and WORLD_SIZE.
LAUNCHER_SIZES = {
    "OMPI_COMM_WORLD_RANK": "OMPI_COMM_WORLD_SIZE", "PMI_RANK": "PMI_SIZE", "PMIX_RANK": "PMIX_SIZE",
    "SLURM_PROCID": "SLURM_NTASKS",
}  # fmt: skip
# What all ranks of a job share, and other jobs mostly do not; never shown, only compared.
JOB_VARIABLES = ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "MASTER_PORT")
RANK_VARIABLES = ("RANK", *LAUNCHER_SIZES, *LAUNCHER_SIZES.values(), "WORLD_SIZE", "LOCAL_RANK", "CUDA_VISIBLE_DEVICES")
NVTX_TRACED = "CAPTURE_EVENT_TYPE", "NvtxEvents"  # nsys's own row of what it traced
# Beginning of nsys's own rows of what it recorded of Python, as of PYTHON_BACKTRACE_SAMPLING_OPTIONS:COLLECT_SAMPLES.
PYTHON_BACKTRACES = "PYTHON_BACKTRACE", "true"
_ASSIGNMENT = re.compile(r'^(?P<name>\w+)="?(?P<value>[^"]*)"?$')
_COUNTED = (
    versions.KERNEL, versions.MEMCPY, versions.MEMSET, versions.GRAPH, versions.RUNTIME, versions.NVTX,
    versions.STRINGS, versions.OVERHEAD, versions.SYNCHRONIZATION, versions.OS_RUNTIME, versions.CPU_SAMPLES,
    versions.GPU_METRICS,
)  # fmt: skip


@dataclass(frozen=True)
class ReportFacts:
    """Facts that hold for a whole report; None is "not recorded"."""

    nsys_version: str | None = None
    schema_version: str | None = None
    session_start_utc_ns: int | None = None
    host: str | None = None
    variables: dict[str, str] = field(default_factory=dict)  # of those that are read, what was captured with one value
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

        CUDA counts the devices that the process sees: without the mapping table (3.17.1 on) a number names a GPU only if
        nothing hides or reorders them, or if all are alike.
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
    meta = {row["name"]: row["value"] for one in tables for row in report.few(one, texts)}
    of_devices = report.few(versions.CUDA_DEVICE, dict.fromkeys(("pid", "cudaId", "gpuId"), "int"))
    id_column = "id" if report.has(versions.GPU, "id") else "deviceId"  # the id column was renamed
    device_column = "cuDevice" if report.has(versions.GPU, "cuDevice") else id_column
    gpus = report.few(versions.GPU, {id_column: "int", device_column: "int", "name": "text"})
    starts = (row["utcEpochNs"] for row in report.few(versions.SESSION_START, {"utcEpochNs": "int"}))
    start: int | None = next((one for one in starts if one is not None), None)
    variables: dict[str, set[str]] = {}
    for _, name, value in variables_of(report, (*RANK_VARIABLES, *JOB_VARIABLES)):
        variables.setdefault(name, set()).add(value)
    return ReportFacts(
        nsys_version=meta.get("EXPORT_PRODUCT_VERSION"), schema_version=meta.get("EXPORT_SCHEMA_VERSION"),
        session_start_utc_ns=start if start is not None and abs(start) < versions.TIME_LIMIT else None,
        host=host_of(report), gpu_names={row[id_column]: row["name"] for row in gpus if row["name"]},
        gpu_of_device={row[device_column]: row[id_column] for row in gpus if row[device_column] is not None},
        variables={name: values.pop() for name, values in variables.items() if len(values) == 1},
        gpu_of_ordinal={(row["pid"], row["cudaId"]): row["gpuId"] for row in of_devices if row["gpuId"] is not None},
        exported_tables=(meta.get("EXPORT_PARAM_TABLES_TO_EXPORT") or "").strip(),
        tells_export=any(name.startswith("EXPORT_PARAM_") for name in meta),
        is_lazy=(meta.get("EXPORT_PARAM_LAZY") or "true").lower() != "false", file_state=report.state,
    )  # fmt: skip


def host_of(report: Report) -> str | None:
    """Return the name of the host that was captured."""
    rows = report.few(versions.SYSTEM_ENV, {"name": "text", "value": "text"}, "name = 'Hostname'")
    return next((row["value"] for row in rows), None)


def traces_nvtx(report: Report) -> bool:
    """Tell whether nsys says that it traced NVTX, if only to find no range."""
    where = "name = '{}' AND value = '{}'".format(*NVTX_TRACED)
    return bool(report.few(versions.CAPTURE_META, {"name": "text", "value": "text"}, where))


def records_python_backtraces(report: Report) -> bool:
    """Tell whether nsys says that it recorded backtraces of Python."""
    rows = report.few(versions.CAPTURE_META, {"name": "text", "value": "text"}, f"name LIKE '{PYTHON_BACKTRACES[0]}%'")
    return any(row["value"].lower() == PYTHON_BACKTRACES[1] for row in rows)


def variables_of(
    report: Report, names: Collection[str], table: str = versions.CAPTURE_META
) -> Iterator[tuple[str, str, str]]:
    """Yield those of some environment variables that were captured: what their rows are called, name and value."""
    wanted = " OR ".join(f"value LIKE '{name}=%'" for name in names)
    where = f"name LIKE '%ENVIRONMENT_VARIABLE' AND ({wanted})"
    for row in report.few(table, {"name": "text", "value": "text"}, where):
        # LIKE takes _ for any letter and ignores case, so compare the name again.
        if (made := _ASSIGNMENT.match(row["value"])) and made["name"] in names:
            yield row["name"], made["name"], made["value"]


@dataclass(frozen=True)
class Capture:
    """One report, read and closed again."""

    facts: ReportFacts
    operations: Operations
    calls: Calls
    overhead: tuple[Int64, Int64] | None  # starts and ends of the profiler's own work; None when not recorded
    ranges: Ranges
    payloads: Payloads  # what NCCL's calls say of themselves
    recorded: Recorded  # which facts the report lacks although there was something to record
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
        ranges = read_ranges(report, strings, [operations.kernels["end_ns"], operations.copies["end_ns"]])
        payloads = read_payloads(report, strings)
        recorded = _recorded(report, facts, strings, operations)
        no_memset = _holds_memsets(report, facts) and not report.has_rows(versions.MEMSET)
        lacks_nvtx = "no-nvtx-ranges" if traces_nvtx(report) and facts.leaves_out_empty(versions.NVTX) else "no-nvtx"
        has_backtraces = {
            "cuda-backtraces": report.has_rows(versions.CUDA_CALL_CHAINS),
            "python-backtraces": records_python_backtraces(report),
        }
        n_memset_calls = _n_calls(report, strings, ("Memset",)) if no_memset else 0
    is_untested = versions.version_numbers(facts.schema_version) > versions.NEWEST_TESTED
    numbers = {
        "dropped-operations": operations.n_dropped, "dropped-ranges": ranges.n_dropped,
        "memset-calls-only": n_memset_calls, "undecoded-payload": payloads.n_undecoded,
    }  # fmt: skip
    problems = (
        *([problem("untested-version", version=facts.schema_version)] if is_untested else []),
        *([] if ranges.is_recorded else [problem(lacks_nvtx)]),
        *(problem(code) for code, is_recorded in has_backtraces.items() if is_recorded),
        *(problem(code) for fact, code in NOT_RECORDED.items() if not getattr(recorded, fact)),
        *(problem(code, n=n) for code, n in numbers.items() if n),
    )
    return Capture(facts, operations, calls, overhead, ranges, payloads, recorded, problems)


def _recorded(report: Report, facts: ReportFacts, strings: Strings, operations: Operations) -> Recorded:
    copies = operations.copies
    dtod_bytes = copies["bytes"].filter(pc.equal(copies["copy_kind"], canonical.DTOD_KIND))

    def is_there(table: str, *calls: str) -> bool:
        """Tell whether a table holds what happened: rows, or none since nothing called what makes them."""
        if report.has_rows(table):
            return True
        return (report.has(table) or facts.leaves_out_empty(table)) and not _n_calls(report, strings, calls)

    return Recorded(
        kernels=operations.n_graphs > 0 or is_there(versions.KERNEL, "LaunchKernel", "GraphLaunch"),
        names=operations.has_names,
        memcpy=is_there(versions.MEMCPY, "Memcpy"),
        # Where nothing was left out, calls without any operation set no memory of a device at that time.
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


@dataclass(frozen=True)
class Counts:
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
        n_calls, is_node = rows[versions.RUNTIME], report.has(versions.KERNEL, "graphNodeId")
        return Counts(
            rows=rows,
            n_launches=n_calls * report.has(versions.RUNTIME, "start", "globalTid", "correlationId"),
            n_timed_calls=n_calls * report.has(versions.RUNTIME, "start", "end", "globalTid", "nameId"),
            n_graph_kernels=report.count(versions.KERNEL, "graphNodeId != 0") if is_node else 0,
            has_shapes=report.has(versions.KERNEL, *SHAPE_COLUMNS),
        )
