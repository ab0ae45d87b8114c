"""What becomes of each table that nsys exports, and the copy in the making: a new database beside a read-only one.

The list of tables and columns was compiled from 22 real exports of 2020 to 2026, up to schema
version 3.25.0.
"""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import sqlalchemy as sa

from nsyspipe.errors import OutputError
from nsyspipe.nsys.files import check_file
from nsyspipe.reader.metadata import host_of
from nsyspipe.reader.report import VERSIONED, Report, open_report
from nsyspipe.reader.tables import in_place_of_a_table, quoted

# Of each table the columns of whole numbers, which are copied where they are whole numbers; behind
# the first bar those that are copied value by value, after a look at each; behind the second those
# that are known and stay behind.
_KEPT = """
CUPTI_ACTIVITY_KIND_KERNEL: start end deviceId contextId streamId correlationId globalPid demangledName shortName launchType
    cacheConfig registersPerThread gridX gridY gridZ blockX blockY blockZ staticSharedMemory dynamicSharedMemory
    localMemoryPerThread localMemoryTotal gridId sharedMemoryExecuted graphNodeId sharedMemoryLimitConfig greenContextId
    graphId clusterX clusterY clusterZ
    | | mangledName qmdBulkReleaseDone qmdPreexitDone qmdLastCtaDone clusterSchedulingPolicy maxPotentialClusterSize
    maxActiveClusters sharedMemoryRequestedPercentage tensorSizeMinusOneElements
CUPTI_ACTIVITY_KIND_MEMCPY: start end deviceId contextId streamId correlationId globalPid bytes copyKind srcKind dstKind
    srcDeviceId srcContextId dstDeviceId dstContextId graphNodeId greenContextId copyCount
    | | deprecatedSrcId migrationCause virtualAddress name
CUPTI_ACTIVITY_KIND_MEMSET: start end deviceId contextId streamId correlationId globalPid bytes graphNodeId memKind
    greenContextId | | value
CUPTI_ACTIVITY_KIND_GRAPH_TRACE: start end deviceId contextId greenContextId streamId correlationId globalPid graphId
    graphExecId
CUPTI_ACTIVITY_KIND_RUNTIME: start end eventClass globalTid correlationId nameId returnValue | | callchainId name
CUPTI_ACTIVITY_KIND_SYNCHRONIZATION: start end deviceId contextId streamId correlationId globalPid syncType eventId
    greenContextId eventSyncId | | deprecatedSyncType
CUPTI_ACTIVITY_KIND_CUDA_EVENT: deviceId contextId streamId correlationId globalPid eventId greenContextId eventSyncId
    timestamp
PROFILER_OVERHEAD: start end globalTid correlationId overheadType | | nameId returnValue
TARGET_INFO_SESSION_START_TIME: utcEpochNs | | utcTime localTime systemClockNs
ANALYSIS_DETAILS: startTime | | globalVid duration stopTime
TARGET_INFO_CUDA_DEVICE: gpuId cudaId pid numMultiprocessors | | uuid
TARGET_INFO_GPU: vmId id deviceId cuDevice isDiscrete l2CacheSize totalMemory memoryBandwidth clockRate smCount computeMajor
    computeMinor smMajor smMinor | name
    | busLocation pwGpuId uuid luid chipName ctxswDevPath ctrlDevPath revision nodeMask constantMemory maxIPC
    maxRegistersPerBlock maxShmemPerBlock maxShmemPerBlockOptin maxShmemPerSm maxRegistersPerSm threadsPerWarp asyncEngines
    maxWarpsPerSm maxBlocksPerSm maxThreadsPerBlock maxBlockDimX maxBlockDimY maxBlockDimZ maxGridDimX maxGridDimY
    maxGridDimZ
NVTX_EVENTS: start end eventType rangeId category color globalTid endGlobalTid domainId | textId text binaryData
    | uint64Value int64Value doubleValue uint32Value int32Value floatValue jsonTextId jsonText
NVTX_PAYLOAD_SCHEMAS: domainId schemaId type flags numEntries payloadSize alignTo | | name
NVTX_PAYLOAD_SCHEMA_ENTRIES: domainId schemaId idx flags type arrayOrUnionDetail offset | name | description
NVTX_PAYLOAD_ENUMS: domainId schemaId size | | name numEntries
StringIds: | id value
META_DATA_EXPORT: | name value
EXPORT_META_DATA: | name value
META_DATA_CAPTURE: | name value
TARGET_INFO_SYSTEM_ENV: | name value | globalVid devStateName nameEnum
"""
# Tables that stay behind, by what they hold; a star stands for the rest of a name.
_DROPPED = """
process list: PROCESSES TARGET_INFO_PROCESS ThreadNames MPI_RANKS UCP_WORKERS
program output and files: ANALYSIS_FILE ProcessStreams OSRT_FILE_ACCESS_DESCRIPTORS OSRT_FILE_ACCESS_EVENTS
diagnostics: DIAGNOSTIC_EVENT
operating system calls, CPU samples and call chains: OSRT_API OSRT_CALLCHAINS CUDA_CALLCHAINS SAMPLING_CALLCHAINS
    COMPOSITE_EVENTS SCHED_EVENTS UnwindMethodType PERF_EVENT_CPU_METRIC_EVENT PERF_EVENT_CPU_RAW_EVENT PMU_EVENTS
    PMU_EVENT_COUNTERS PMU_EVENT_REQUESTS UNCORE_PMU_EVENTS UNCORE_PMU_EVENT_VALUES TARGET_INFO_PERF_METRIC
    TARGET_INFO_XMC_SPEC
network and its devices: NET_IB_* NET_NIC_METRIC NIC_ID_MAP TARGET_INFO_NETWORK_METRICS TARGET_INFO_NIC_INFO
names of the values of payloads: NVTX_PAYLOAD_ENUM_ENTRIES
GPU metrics, contexts and streams: GPU_METRICS TARGET_INFO_GPU_METRICS GPU_CONTEXT_SWITCH_EVENTS FECS_EVENTS
    TARGET_INFO_CUDA_GPU TARGET_INFO_CUDA_CONTEXT_INFO TARGET_INFO_CUDA_NULL_STREAM TARGET_INFO_CUDA_STREAM
    TARGET_INFO_NVTX_CUDA_*
calls of MPI, UCX, OpenACC, OpenMP, cuBLAS, cuDNN: CUBLAS_EVENTS CUDNN_EVENTS CUPTI_ACTIVITY_KIND_OPENACC_* MPI_COLLECTIVES_EVENTS
    MPI_COMMUNICATORS MPI_OTHER_EVENTS MPI_P2P_EVENTS MPI_START_WAIT_EVENTS OPENMP_EVENT_KIND_* UCP_EVENTS
    UCP_PROGRESS_EVENTS UCP_SUBMIT_EVENTS
memory and graph events of CUDA: CUDA_GPU_MEMORY_* CUDA_GRAPH_EVENTS CUDA_GRAPH_NODE_EVENTS CUDA_UM_*
    CUPTI_ACTIVITY_KIND_OVERHEAD
tables that nsys stats added: NvtxPushPopRanges DomainStrings MemcpyOperationStrings cudaAPIStats cudaKernelStats
    cudaMemoryOperationByteStats cudaMemoryOperationTimeStats estEnd me ms nvtxPushPopRangeStats osrtAPIStats
graphics, video and Windows: D3D11_* D3D12_* DX12_* ETW_* GENERIC_EVENT* GPU_MEMORY_* GPU_VIDEO_* KHR_* NVVIDEO_*
    NV_LOAD_BALANCE_* OPENGL_* SLI_* VULKAN_* WDDM_* DEMOTED_BYTES_EVENTS MEMORY_TRANSFER_EVENTS TARGET_INFO_WDDM_CONTEXTS
    TOTAL_BYTES_RESIDENT_IN_SEGMENT_EVENTS TRACE_PROCESS_EVENT_NVMEDIA
nsys's own names of constants: ENUM_*
"""
_CHUNK_ROWS = (
    50_000  # rows per statement: few enough that Ctrl-C and a progress bar need not wait long
)
_MARK = 0x6E7379AC  # SQLite's application_id of a copy, by which it may be replaced
_ENCODINGS = {
    2: "UTF-16le",
    3: "UTF-16be",
}  # by what the header of an SQLite file says of its texts
# SQLite's codes for faults of the file that is written: read-only, full, i/o errors of writing,
# flushing, resizing.
_WRITE_ERRORS = {8, 13, 778, 1034, 1546}

# Classes whose every place is worth a word.
UNKNOWN = _UNKNOWN_TABLES, _UNKNOWN_COLUMNS = "unknown tables", "unknown columns"
_HARDWARE = "serial numbers and places of hardware"
_HARDWARE_COLUMNS = {
    "busLocation",
    "chipName",
    "ctrlDevPath",
    "ctxswDevPath",
    "luid",
    "pwGpuId",
    "uuid",
}
_OTHER_COLUMNS = "columns that no answer needs"


def _entries(text: str) -> dict[str, str]:
    lines = text.strip().replace("\n    ", " ").splitlines()
    return {name: rest for name, _, rest in (line.partition(":") for line in lines)}


_COLUMNS = {
    table: (*(tuple(part.split()) for part in columns.split("|")), (), ())[:3]
    for table, columns in _entries(_KEPT).items()
}
# Columns of whole numbers, and those that are copied after a look at each value, of the tables that
# have some.
NUMBERS = {table: columns[0] for table, columns in _COLUMNS.items() if columns[0]}
CHECKED = {table: columns[1] for table, columns in _COLUMNS.items() if columns[1]}
# All columns that are copied, or are known and stay behind.
KNOWN = {table: {name for part in columns for name in part} for table, columns in _COLUMNS.items()}
_CLASSES = {table: kind for kind, tables in _entries(_DROPPED).items() for table in tables.split()}


def base_name(table: str) -> str:
    """Return a table's name without the version that some exporters append."""
    found = VERSIONED.match(table)
    return found["table"] if found and not is_known(table) else table


def is_known(table: str) -> bool:
    """Tell whether it is settled what becomes of a table of this name."""
    return table in _COLUMNS or class_of(table) is not None


def class_of(table: str) -> str | None:
    """Return the class of a table that stays behind as a whole; None for any other."""
    families = (
        kind for name, kind in _CLASSES.items() if name[-1] == "*" and table.startswith(name[:-1])
    )
    return _CLASSES.get(table) or next(families, None)


def look_at(path: Path) -> tuple[str | None, dict[str, int]]:
    """Return a report's host, None when it does not say, and the rows of its unknown tables, before anything is written.

    InputError if it is missing, damaged, no nsys export, or shows another table's rows under a name
    that is nsys's.
    """
    with open_report(path) as report:
        for table in sorted(report.views):
            if base_name(table) in _COLUMNS:
                raise in_place_of_a_table(path, table, "view")
        unknown = [table for table in report.tables if not is_known(base_name(table))]
        return host_of(report), {table: n for table in unknown if (n := report.count(table))}


class Amount(NamedTuple):
    """How much was left behind in one place, a table or column."""

    kind: str
    place: str
    n: int
    unit: str


@dataclass
class Removed:
    """What was left behind so far, of one report or of several; and how many kept texts still hold a name that was."""

    n_named: int = 0
    _numbers: Counter[tuple[str, str, str]] = field(default_factory=Counter)

    def add(self, kind: str, place: str, n: int, unit: str = "rows") -> None:
        """Count something."""
        self._numbers[kind, place, unit] += n

    def amounts(self) -> list[Amount]:
        """Return all amounts but zeros, sorted by class and place."""
        return sorted(
            Amount(kind, place, n, unit) for (kind, place, unit), n in self._numbers.items() if n
        )


class Checked(NamedTuple):
    """A column that is copied after a look at its values: its type, what stays by row, and SQL for all other rows."""

    kind: str
    values: Iterable[tuple[int, Any]]
    otherwise: str = "NULL"


@dataclass(frozen=True)
class Copying:
    """A report, the copy in the making with the report attached as ``source``, and what was left behind."""

    # In SQL, names of tables and columns come from the list above, or are quoted.

    report: Report
    connection: sa.Connection
    on_rows: Callable[[], None]  # called while a table is copied
    removed: Removed

    def tables(self, base: str, *columns: str) -> list[str]:
        """Return the tables of the report that are called so, with or without a version, and have some columns."""
        tables = self.report.tables.items()
        return [
            table for table, there in tables if base_name(table) == base and {*columns} <= {*there}
        ]

    def run(self, statement: str) -> sa.CursorResult[Any]:
        """Run a statement."""
        return self.connection.exec_driver_sql(statement)

    def count(self, table: str, condition: str = "1", *, of: str = "source") -> int:
        """Return how many rows of a table of the report, or of the copy, meet a condition."""
        return int(
            self.run(f"SELECT count(*) FROM {of}.{quoted(table)} WHERE {condition}").scalar_one()  # noqa: S608
        )

    def create(
        self,
        table: str,
        columns: Mapping[str, str],
        rows: Iterable[tuple[Any, ...]] = (),
        *,
        of: str = "main",
    ) -> int:
        """Make a table of the copy, or anew in memory (``temp``): type by column; return how many rows it got."""
        name = f"{of}.{quoted(table)}"
        self.run(f"DROP TABLE IF EXISTS {name}")
        self.run(
            f"CREATE TABLE {name} "
            f"({', '.join(f'{quoted(column)} {kind}' for column, kind in columns.items())})"
        )
        filled = list(rows)
        if filled:
            places = ", ".join("?" * len(columns))
            self.connection.exec_driver_sql(f"INSERT INTO {name} VALUES ({places})", filled)  # noqa: S608
        return len(filled)

    def copy(self, table: str, checked: Mapping[str, Checked] | None = None) -> None:
        """Copy a table of the report: its columns of numbers, and those whose values were looked at."""
        columns = [name for name in NUMBERS[base_name(table)] if name in self.report.tables[table]]
        kinds = dict.fromkeys(columns, "INTEGER")
        values = {name: number(name) for name in columns}
        joins = ""
        for name, column in (checked or {}).items():
            if name in self.report.tables[table]:
                self.create(
                    f"of_{name}",
                    {"row": "INTEGER PRIMARY KEY", "value": ""},
                    column.values,
                    of="temp",
                )
                joins += f" LEFT JOIN temp.of_{name} ON of_{name}.row = t.rowid"
                kinds[name] = column.kind
                values[name] = (
                    f"CASE WHEN of_{name}.row IS NULL THEN {column.otherwise} ELSE "
                    f"of_{name}.value END"
                )
        if kinds:
            self.create(table, kinds)
            self.fill(table, values, joins=joins)

    def fill(
        self, table: str, values: Mapping[str, str], *, joins: str = "", where: str = "1"
    ) -> None:
        """Fill a table of the copy from the report's, called ``t``, by SQL per column; rows keep order and numbers."""
        statement = (
            f"INSERT INTO main.{quoted(table)} (rowid, {', '.join(map(quoted, values))}) "  # noqa: S608 - quoted, from our list
            f"SELECT t.rowid, {', '.join(values.values())} FROM source.{quoted(table)} AS t "
            f"{joins} "
            f"WHERE t.rowid > :last AND ({where}) ORDER BY t.rowid LIMIT {_CHUNK_ROWS}"
        )
        last = -(2**63)
        while self.connection.execute(sa.text(statement), {"last": last}).rowcount:
            last = self.run(f"SELECT max(rowid) FROM main.{quoted(table)}").scalar_one()  # noqa: S608
            self.on_rows()


def is_copy(path: Path) -> bool:
    """Tell whether a file is a copy that was made here; OSError if it cannot be read."""
    with path.open("rb") as file:
        return file.read(100)[68:72] == _MARK.to_bytes(4, "big")


def number(column: str) -> str:
    """Return the SQL of a column's value where that is a whole number: SQLite's columns take anything."""
    name = f"t.{quoted(column)}"
    return f"CASE typeof({name}) WHEN 'integer' THEN {name} END"


@contextlib.contextmanager
def opened(report: Path, copy: Path) -> Iterator[sa.Connection]:
    """Open a new database, in an empty file, with a report attached; what was written is complete at the end.

    Raises what `files.check_file` does, and OutputError if the copy cannot be written.
    """
    _, flags = check_file(report)
    url = sa.URL.create("sqlite+pysqlite", database=copy.absolute().as_uri(), query={"uri": "true"})
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT", poolclass=sa.pool.NullPool)
    # Two databases that are open together must be of one encoding.
    with report.open("rb") as file:
        encoding = _ENCODINGS.get(int.from_bytes(file.read(100)[56:60], "big"), "UTF-8")
    try:
        with engine.connect() as connection:
            # The report's schema is not to be trusted. Only a whole copy gets its final name:
            # nothing is rolled back.
            for setting in (
                "trusted_schema = OFF",
                "temp_store = MEMORY",
                f"main.encoding = '{encoding}'",
                "main.journal_mode = OFF",
                "main.synchronous = OFF",
                "main.secure_delete = ON",
                f"main.application_id = {_MARK}",
            ):
                connection.exec_driver_sql(f"PRAGMA {setting}")
            connection.exec_driver_sql(
                "ATTACH ? AS source", (f"{report.absolute().as_uri()}?{flags}",)
            )
            connection.exec_driver_sql("BEGIN")
            yield connection
            connection.exec_driver_sql("COMMIT")
            connection.exec_driver_sql("DETACH source")
    except sa.exc.DBAPIError as error:
        if getattr(error.orig, "sqlite_errorcode", 0) not in _WRITE_ERRORS:
            raise  # it is the report that is wrong
        problem = f"cannot be written ({error.orig})"
        raise OutputError(str(copy.parent), problem, fix="another disk or directory") from error
    finally:
        engine.dispose()


def count_left_behind(copying: Copying) -> None:
    """Count the tables and columns that stay behind as a whole."""
    for table in copying.report.views:
        copying.removed.add("views", table, 1, "views")
    for table, columns in copying.report.tables.items():
        base = base_name(table)
        known = KNOWN.get(base, set())
        if not is_known(base):
            copying.removed.add(_UNKNOWN_TABLES, table, copying.count(table))
        elif kind := class_of(base):
            copying.removed.add(kind, base, copying.count(table))
        elif base in NUMBERS or not known.issuperset(columns):
            copied = {*NUMBERS.get(base, ()), *CHECKED.get(base, ())}
            left = [name for name in columns if name not in copied]
            counts = ", ".join(["count(*)", *(f"count({quoted(name)})" for name in left)])
            numbers: list[int] = [
                *copying.run(f"SELECT {counts} FROM source.{quoted(table)}").one()  # noqa: S608
            ]
            for name, n in zip(left, numbers[1:], strict=True):
                kind = _HARDWARE if name in _HARDWARE_COLUMNS else _OTHER_COLUMNS
                copying.removed.add(
                    kind if name in known else _UNKNOWN_COLUMNS, f"{base}.{name}", n, "values"
                )
