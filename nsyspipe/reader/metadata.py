"""What a report says about its capture, and everything else of it that the analysis needs, in one pass over each table.

Reports embed the whole environment of the profiled program, secrets included. Only the variables
named here are selected from it, and nothing else of it reaches an output.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pyarrow.compute as pc

from nsyspipe.model import canonical
from nsyspipe.model.problems import NOT_RECORDED, Problem, Recorded, problem
from nsyspipe.reader import report as versions
from nsyspipe.reader.calls import Strings, read_calls, read_overhead, read_strings
from nsyspipe.reader.operations import Operations, read_operations
from nsyspipe.reader.payload import Payloads, read_payloads
from nsyspipe.reader.ranges import Ranges, read_ranges
from nsyspipe.reader.report import Report, open_report

if TYPE_CHECKING:
    import pyarrow as pa

    from nsyspipe.model.types import Int64


# A launcher's number of a rank, and how many it launched; in order of trust, after RANK and WORLD_SIZE.
LAUNCHER_SIZES = {
    "OMPI_COMM_WORLD_RANK": "OMPI_COMM_WORLD_SIZE",
    "PMI_RANK": "PMI_SIZE",
    "PMIX_RANK": "PMIX_SIZE",
    "SLURM_PROCID": "SLURM_NTASKS",
}
# What all ranks of a job share, and other jobs mostly do not; never shown, only compared.
JOB_VARIABLES = ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "MASTER_PORT")
_VARIABLES = (
    "RANK",
    *LAUNCHER_SIZES,
    *LAUNCHER_SIZES.values(),
    *JOB_VARIABLES,
    "WORLD_SIZE",
    "LOCAL_RANK",
    "CUDA_VISIBLE_DEVICES",
)
# No session starts later (73 years after 1970), and differences of two starts do not overflow.
_LATEST_START = 2**61
_ASSIGNMENT = re.compile(r'^(?P<name>\w+)="?(?P<value>[^"]*)"?$')


@dataclass(frozen=True)
class ReportFacts:
    """Facts that hold for a whole report; None is "not recorded".

    Attributes
    ----------
    variables
        Values of the allow-listed environment variables; one that was captured with two values is left out.
    gpu_names
        Model by GPU id, and the id of each CUDA ordinal by (pid, ordinal) and by ordinal alone.
    exported_tables
        What ``nsys export --tables`` was limited to; empty when it was not.
    is_lazy
        Whether the export left out tables without events.
    tells_export
        Whether the report says how it was exported at all; old exports do not.
    """

    nsys_version: str | None = None
    schema_version: str | None = None
    session_start_utc_ns: int | None = None
    host: str | None = None
    variables: dict[str, str] = field(default_factory=dict)
    gpu_names: dict[int, str] = field(default_factory=dict)
    gpu_of_ordinal: dict[tuple[int, int], int] = field(default_factory=dict)
    gpu_of_device: dict[int, int] = field(default_factory=dict)
    exported_tables: str = ""
    is_lazy: bool = True
    tells_export: bool = False

    def leaves_out_empty(self, table: str) -> bool:
        """Tell whether the export, by how it was made, leaves a table out exactly when it has no rows."""
        return self.is_lazy and (not self.exported_tables or table in self.exported_tables)

    def holds_all(self, table: str, *, is_there: bool) -> bool:
        """Tell whether the export surely holds all that nsys recorded for a table, which it has or not."""
        is_limited = bool(self.exported_tables) and table not in self.exported_tables
        return self.tells_export and not is_limited and (self.is_lazy or is_there)

    def number(self, variable: str) -> int | None:
        """Return a variable's value as a non-negative integer, or None."""
        value = self.variables.get(variable, "").strip()
        return int(value) if re.fullmatch(r"[0-9]{1,18}", value) else None

    def gpu_name(self, pid: int, device: int | None) -> str | None:
        """Return the model of a CUDA device of a process; None when the report cannot tell.

        A CUDA ordinal counts the devices that the process sees, so without the mapping table
        (3.17.1 on) it names a GPU only if nothing hides or reorders them, or if all are alike.
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
    meta = _export_meta(report)
    names, of_device = _gpus(report)
    return ReportFacts(
        nsys_version=meta.get("EXPORT_PRODUCT_VERSION"),
        schema_version=meta.get("EXPORT_SCHEMA_VERSION"),
        session_start_utc_ns=_session_start(report),
        host=_host(report),
        variables=_variables(report),
        gpu_names=names,
        gpu_of_ordinal=_ordinals(report),
        gpu_of_device=of_device,
        exported_tables=(meta.get("EXPORT_PARAM_TABLES_TO_EXPORT") or "").strip(),
        tells_export=any(name.startswith("EXPORT_PARAM_") for name in meta),
        is_lazy=(meta.get("EXPORT_PARAM_LAZY") or "true").lower() != "false",
    )


def _export_meta(report: Report) -> dict[str, str]:
    table = report.catalog.export_meta
    if table is None or not report.has(table, "name", "value"):
        return {}
    found = report.select(table, {"name": "text", "value": "text"})
    return dict(zip(found["name"].to_pylist(), found["value"].to_pylist(), strict=True))


def _session_start(report: Report) -> int | None:
    if not report.has(versions.SESSION_START, "utcEpochNs"):
        return None
    found = report.select(versions.SESSION_START, {"utcEpochNs": "int"})["utcEpochNs"].drop_null()
    start = int(found[0].as_py()) if len(found) else None
    return start if start is not None and abs(start) < _LATEST_START else None


def _host(report: Report) -> str | None:
    if not report.has(versions.SYSTEM_ENV, "name", "value"):
        return None
    found = report.select(versions.SYSTEM_ENV, {"value": "text"}, where="name = 'Hostname'")[
        "value"
    ].to_pylist()
    return found[0] if found else None


def _variables(report: Report) -> dict[str, str]:
    if not report.has(versions.CAPTURE_META, "name", "value"):
        return {}
    wanted = " OR ".join(f"value LIKE '{name}=%'" for name in _VARIABLES)
    where = f"name LIKE '%ENVIRONMENT_VARIABLE' AND ({wanted})"
    found: dict[str, set[str]] = {}
    for text in report.select(versions.CAPTURE_META, {"value": "text"}, where=where)[
        "value"
    ].to_pylist():
        # LIKE takes _ for any letter and ignores case, so compare the name again.
        if (match := _ASSIGNMENT.match(text)) and match["name"] in _VARIABLES:
            found.setdefault(match["name"], set()).add(match["value"])
    return {name: values.pop() for name, values in found.items() if len(values) == 1}


def _gpus(report: Report) -> tuple[dict[int, str], dict[int, int]]:
    """Return model by GPU id, and GPU id by CUDA device number; the id column was renamed."""
    id_column = report.catalog.first(versions.GPU, "id", "deviceId")
    if id_column is None or not report.has(versions.GPU, "name"):
        return {}, {}
    device_column = report.catalog.first(versions.GPU, "cuDevice", id_column) or id_column
    columns = {id_column: "int", device_column: "int", "name": "text"}
    rows = report.select(versions.GPU, columns).to_pylist()
    names = {row[id_column]: row["name"] for row in rows if row["name"]}
    return names, {
        row[device_column]: row[id_column] for row in rows if row[device_column] is not None
    }


def _ordinals(report: Report) -> dict[tuple[int, int], int]:
    columns = ("pid", "cudaId", "gpuId")
    if not report.has(versions.CUDA_DEVICE, *columns):
        return {}
    rows = report.select(versions.CUDA_DEVICE, dict.fromkeys(columns, "int")).to_pylist()
    return {(row["pid"], row["cudaId"]): row["gpuId"] for row in rows if row["gpuId"] is not None}


# Everything that one report holds for the analysis, in one pass over each table.


@dataclass(frozen=True)
class Capture:
    """One report, read and closed again.

    Attributes
    ----------
    launches
        `canonical.LAUNCHES`; None when API calls were not recorded.
    calls
        `canonical.HOST_CALLS`; None where launches are.
    waits
        `canonical.HOST_WAITS`.
    blocking_calls
        `canonical.BLOCKING_CALLS`; None when calls have no end or no name.
    overhead
        Starts and ends of the profiler's own work, report time, ns; None when not recorded.
    payloads
        What NCCL's calls say of themselves.
    recorded
        Which facts the report lacks although there was something to record.
    """

    facts: ReportFacts
    operations: Operations
    launches: pa.Table | None
    calls: pa.Table | None
    waits: pa.Table
    blocking_calls: pa.Table | None
    overhead: tuple[Int64, Int64] | None
    ranges: Ranges
    payloads: Payloads
    recorded: Recorded
    problems: tuple[Problem, ...]

    def without_events(self) -> Capture:
        """Return the same without operations and launches, which hold most of its memory."""
        empty = replace(
            self.operations, kernels=canonical.KERNELS.empty(), copies=canonical.COPIES.empty()
        )
        return replace(self, operations=empty, launches=None, calls=None)


def read_capture(path: str, comm_kernel: re.Pattern[str] | None) -> Capture:
    """Read one report.

    Raises
    ------
    InputError
        If it is missing, damaged, no nsys export, or lacks a column that every answer needs.
    """
    with open_report(path) as report:
        facts = read_facts(report)
        strings = read_strings(report)
        calls = read_calls(report, strings)
        operations = read_operations(report, strings, comm_kernel)
        overhead = read_overhead(report, facts)
        ends = [
            operations.kernels["end_ns"],
            operations.copies["end_ns"],
        ]
        ranges = read_ranges(report, strings, ends)
        payloads = read_payloads(report, strings)
        recorded = _recorded(report, facts, strings, operations)
        no_memset = _holds_memsets(report, facts) and not report.has_rows(versions.MEMSET)
        n_memset_calls = _n_calls(report, strings, ("Memset",)) if no_memset else 0
    problems = [
        problem("untested-version", version=facts.schema_version)
        if versions.is_newer_than_tested(facts.schema_version)
        else None,
        None if ranges.is_recorded else problem("no-nvtx"),
        *(
            None if getattr(recorded, fact) else problem(code)
            for fact, code in NOT_RECORDED.items()
        ),
        problem("dropped-operations", n=operations.n_dropped) if operations.n_dropped else None,
        problem("dropped-ranges", n=ranges.n_dropped) if ranges.n_dropped else None,
        problem("memset-calls-only", n=n_memset_calls) if n_memset_calls else None,
        problem("undecoded-payload", n=payloads.n_undecoded) if payloads.n_undecoded else None,
    ]
    return Capture(
        facts=facts,
        operations=operations,
        launches=calls.launches,
        calls=calls.all,
        waits=calls.waits,
        blocking_calls=calls.blocking,
        overhead=overhead,
        ranges=ranges,
        payloads=payloads,
        recorded=recorded,
        problems=tuple(one for one in problems if one is not None),
    )


def _recorded(
    report: Report, facts: ReportFacts, strings: Strings, operations: Operations
) -> Recorded:
    copies = operations.copies
    dtod_bytes = copies["bytes"].filter(pc.equal(copies["copy_kind"], canonical.DTOD_KIND))

    def is_there(table: str, *calls: str) -> bool:
        return report.has_rows(table) or not _was_recordable(report, facts, strings, table, calls)

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
    return facts.holds_all(versions.MEMSET, is_there=report.has(versions.MEMSET))


def _was_recordable(
    report: Report, facts: ReportFacts, strings: Strings, table: str, calls: tuple[str, ...]
) -> bool:
    """Tell whether a table that is absent or empty had something to record.

    Exports are lazy: a table without rows is left out, so absence alone means "none happened". It
    means "not recorded" when the program called the API that makes such rows, or when the export
    was limited to other tables. A table that is there without rows means "none happened" but for
    such calls.
    """
    if not report.has(table) and not facts.leaves_out_empty(table):
        return True
    return _n_calls(report, strings, calls) > 0


def _n_calls(report: Report, strings: Strings, calls: tuple[str, ...]) -> int:
    """Count the API calls whose names begin so."""
    prefixes = [f"{api}{call}" for api in ("cu", "cuda") for call in calls]
    names = ", ".join(map(str, strings.ids_beginning(*prefixes).tolist()))
    if not names or not report.has(versions.RUNTIME, "nameId"):
        return 0
    return report.count(versions.RUNTIME, f"nameId IN ({names})")
