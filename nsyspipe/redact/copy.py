"""Which tables and columns of nsys are copied, and how: from a read-only report to a new database.

The list of tables and columns was compiled from 22 real exports of 2020 to 2026, up to schema
version 3.25.0. The tables and columns of 3.28.1 are from NVIDIA's documentation.
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
from nsyspipe.reader.facts import host_of
from nsyspipe.reader.report import (
    GPU,
    GPU_METRICS,
    PAYLOAD_TABLE_PREFIX,
    VERSIONED,
    Report,
    open_report,
)
from nsyspipe.reader.tables import in_place_of_a_table, quoted


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


class _Columns(NamedTuple):
    """What becomes of the columns of a table that is copied."""

    # Copied where the value is a whole number.
    numbers: tuple[str, ...] = ()
    # Copied value by value, after a check of each.
    checked: tuple[str, ...] = ()
    # Known, and not copied.
    left_behind: tuple[str, ...] = ()

    @property
    def known(self) -> set[str]:
        """All of them."""
        return {*self.numbers, *self.checked, *self.left_behind}


# What becomes of the columns of each table that is copied.
_COLUMNS = {
    "CUPTI_ACTIVITY_KIND_KERNEL": _Columns(
        numbers=_names(
            "start end deviceId contextId streamId correlationId globalPid demangledName shortName "
            "launchType cacheConfig registersPerThread gridX gridY gridZ blockX blockY blockZ "
            "staticSharedMemory dynamicSharedMemory localMemoryPerThread localMemoryTotal gridId "
            "sharedMemoryExecuted graphNodeId sharedMemoryLimitConfig greenContextId graphId "
            "clusterX clusterY clusterZ"
        ),
        left_behind=_names(
            "mangledName qmdBulkReleaseDone qmdPreexitDone qmdLastCtaDone clusterSchedulingPolicy "
            "maxPotentialClusterSize maxActiveClusters sharedMemoryRequestedPercentage "
            "tensorSizeMinusOneElements"
        ),
    ),
    "CUPTI_ACTIVITY_KIND_MEMCPY": _Columns(
        numbers=_names(
            "start end deviceId contextId streamId correlationId globalPid bytes copyKind srcKind "
            "dstKind srcDeviceId srcContextId dstDeviceId dstContextId graphNodeId greenContextId "
            "copyCount"
        ),
        left_behind=_names("deprecatedSrcId migrationCause virtualAddress name"),
    ),
    "CUPTI_ACTIVITY_KIND_MEMSET": _Columns(
        numbers=_names(
            "start end deviceId contextId streamId correlationId globalPid bytes graphNodeId "
            "memKind greenContextId"
        ),
        left_behind=_names("value"),
    ),
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": _Columns(
        numbers=_names(
            "start end deviceId contextId greenContextId streamId correlationId globalPid graphId "
            "graphExecId"
        ),
    ),
    "CUPTI_ACTIVITY_KIND_RUNTIME": _Columns(
        numbers=_names("start end eventClass globalTid correlationId nameId returnValue"),
        left_behind=_names("callchainId name"),
    ),
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": _Columns(
        numbers=_names(
            "start end deviceId contextId streamId correlationId globalPid syncType eventId "
            "greenContextId eventSyncId"
        ),
        left_behind=_names("deprecatedSyncType"),
    ),
    "CUPTI_ACTIVITY_KIND_CUDA_EVENT": _Columns(
        numbers=_names(
            "deviceId contextId streamId correlationId globalPid eventId greenContextId "
            "eventSyncId timestamp"
        ),
    ),
    "PROFILER_OVERHEAD": _Columns(
        numbers=_names("start end globalTid correlationId overheadType"),
        left_behind=_names("nameId returnValue"),
    ),
    "CUDA_GPU_MEMORY_USAGE_EVENTS": _Columns(
        numbers=_names(
            "start globalPid deviceId contextId bytes memKind memoryOperationType correlationId "
            "streamId"
        ),
        left_behind=_names(
            "address pc name localMemoryPoolAddress localMemoryPoolReleaseThreshold "
            "localMemoryPoolSize localMemoryPoolUtilizedSize importedMemoryPoolAddress "
            "importedMemoryPoolProcessId"
        ),
    ),
    "TARGET_INFO_SESSION_START_TIME": _Columns(
        numbers=_names("utcEpochNs"),
        left_behind=_names("utcTime localTime systemClockNs sessionStartCntVctNs"),
    ),
    "ANALYSIS_DETAILS": _Columns(
        numbers=_names("startTime"),
        left_behind=_names("globalVid duration stopTime"),
    ),
    "TARGET_INFO_CUDA_DEVICE": _Columns(
        numbers=_names("gpuId cudaId pid numMultiprocessors"),
        left_behind=_names("uuid"),
    ),
    "TARGET_INFO_GPU": _Columns(
        numbers=_names(
            "vmId id deviceId cuDevice isDiscrete l2CacheSize totalMemory memoryBandwidth "
            "clockRate smCount computeMajor computeMinor smMajor smMinor"
        ),
        checked=_names("name uuid busLocation"),
        left_behind=_names(
            "pwGpuId luid chipName ctxswDevPath ctrlDevPath revision nodeMask constantMemory "
            "maxIPC maxRegistersPerBlock maxShmemPerBlock maxShmemPerBlockOptin maxShmemPerSm "
            "maxRegistersPerSm threadsPerWarp asyncEngines maxWarpsPerSm "
            "maxBlocksPerSm maxThreadsPerBlock maxBlockDimX maxBlockDimY maxBlockDimZ maxGridDimX "
            "maxGridDimY maxGridDimZ numaNodeId"
        ),
    ),
    "GPU_METRICS": _Columns(
        numbers=_names("timestamp typeId metricId value"),
        left_behind=_names("rawTimestamp"),
    ),
    "TARGET_INFO_GPU_METRICS": _Columns(
        numbers=_names("typeId metricId"),
        checked=_names("metricName"),
        left_behind=_names("sourceId typeName"),
    ),
    "NVTX_EVENTS": _Columns(
        numbers=_names(
            "start end eventType rangeId category color globalTid endGlobalTid domainId eventId"
        ),
        checked=_names("textId text binaryData"),
        left_behind=_names(
            "uint64Value int64Value doubleValue uint32Value int32Value floatValue jsonTextId "
            "jsonText"
        ),
    ),
    "NVTX_EVENTS_PAYLOAD_SCHEMAS": _Columns(
        numbers=_names("eventId globalPid domainId payloadSchemaID"),
    ),
    "NVTX_PAYLOAD_SCHEMAS": _Columns(
        numbers=_names("domainId schemaId type flags numEntries payloadSize alignTo"),
        left_behind=_names("name"),
    ),
    "NVTX_PAYLOAD_SCHEMA_ENTRIES": _Columns(
        numbers=_names("domainId schemaId idx flags type arrayOrUnionDetail offset"),
        checked=_names("name"),
        left_behind=_names("description"),
    ),
    "NVTX_PAYLOAD_ENUMS": _Columns(
        numbers=_names("domainId schemaId size"),
        left_behind=_names("name numEntries"),
    ),
    "StringIds": _Columns(
        checked=_names("id value"),
    ),
    "META_DATA_EXPORT": _Columns(
        checked=_names("name value"),
    ),
    "EXPORT_META_DATA": _Columns(
        checked=_names("name value"),
    ),
    "META_DATA_CAPTURE": _Columns(
        checked=_names("name value"),
    ),
    "TARGET_INFO_SYSTEM_ENV": _Columns(
        checked=_names("name value"),
        left_behind=_names("globalVid devStateName nameEnum"),
    ),
}
# Tables that are not copied, by what they hold. A star stands for the rest of a name.
_LEFT_BEHIND = {
    "process list": _names("PROCESSES TARGET_INFO_PROCESS ThreadNames MPI_RANKS UCP_WORKERS"),
    "program output and files": _names(
        "ANALYSIS_FILE ProcessStreams OSRT_FILE_ACCESS_DESCRIPTORS OSRT_FILE_ACCESS_EVENTS"
    ),
    "diagnostics": _names("DIAGNOSTIC_EVENT"),
    "operating system calls, CPU samples and call chains": _names(
        "OSRT_API OSRT_CALLCHAINS CUDA_CALLCHAINS SAMPLING_CALLCHAINS COMPOSITE_EVENTS "
        "SCHED_EVENTS UnwindMethodType PERF_EVENT_CPU_METRIC_EVENT PERF_EVENT_CPU_RAW_EVENT "
        "PMU_EVENTS PMU_EVENT_COUNTERS PMU_EVENT_REQUESTS UNCORE_PMU_EVENTS "
        "UNCORE_PMU_EVENT_VALUES TARGET_INFO_PERF_METRIC TARGET_INFO_XMC_SPEC OSRT_ARGUMENTS "
        "PERF_EVENT_SOC_OR_CPU_* SYSCALL SYSCALL_CALLCHAINS BANDWIDTH_USAGE_* "
        "TARGET_INFO_COMPONENT"
    ),
    "network and its devices": _names(
        "NET_IB_* NET_NIC_METRIC NIC_ID_MAP TARGET_INFO_NETWORK_METRICS TARGET_INFO_NIC_INFO"
    ),
    "names of the values of payloads": _names("NVTX_PAYLOAD_ENUM_ENTRIES"),
    "payloads of other libraries, and names in payloads": _names(
        "DYNAMIC_NVTXPAYLOAD_DATATYPE_* NVTX_EXPORT_TRANSLATION NVTX_PAYLOAD_SCHEMA_RELATIONS "
        "NVTX_SCOPES NVTXT_EVENTS NVTXT_META_EVENTS"
    ),
    "contexts and streams of GPUs, and metrics of others": _names(
        "GPU_CONTEXT_SWITCH_EVENTS FECS_EVENTS TARGET_INFO_CUDA_GPU "
        "TARGET_INFO_CUDA_CONTEXT_INFO TARGET_INFO_CUDA_NULL_STREAM "
        "TARGET_INFO_CUDA_STREAM TARGET_INFO_NVTX_CUDA_* SOC_METRICS TARGET_INFO_SOC_METRICS "
        "CUPTI_ACTIVITY_KIND_BLOCK_* CUPTI_ACTIVITY_KIND_WARP_*"
    ),
    "calls of MPI, UCX, OpenACC, OpenMP, cuBLAS, cuDNN": _names(
        "CUBLAS_EVENTS CUDNN_EVENTS CUPTI_ACTIVITY_KIND_OPENACC_* MPI_COLLECTIVES_EVENTS "
        "MPI_COMMUNICATORS MPI_OTHER_EVENTS MPI_P2P_EVENTS MPI_START_WAIT_EVENTS "
        "OPENMP_EVENT_KIND_* UCP_EVENTS UCP_PROGRESS_EVENTS UCP_SUBMIT_EVENTS"
    ),
    "memory and graph events of CUDA": _names(
        "CUDA_GPU_MEMORY_POOL_EVENTS CUDA_GRAPH_EVENTS CUDA_GRAPH_NODE_EVENTS CUDA_UM_* "
        "CUPTI_ACTIVITY_KIND_OVERHEAD CUPTI_ACTIVITY_KIND_JIT CUDA_HOST_CALLBACK "
        "CUPTI_ACTIVITY_KIND_MEM_DECOMPRESS CUPTI_ACTIVITY_KIND_GRAPH_HOST_NODE_AND_HOST_LAUNCH"
    ),
    "tables that nsys stats added": _names(
        "NvtxPushPopRanges DomainStrings MemcpyOperationStrings cudaAPIStats cudaKernelStats "
        "cudaMemoryOperationByteStats cudaMemoryOperationTimeStats estEnd me ms "
        "nvtxPushPopRangeStats osrtAPIStats"
    ),
    "graphics, video and Windows": _names(
        "D3D11_* D3D12_* DX12_* ETW_* GENERIC_EVENT* GPU_MEMORY_* GPU_VIDEO_* KHR_* NVVIDEO_* "
        "NV_LOAD_BALANCE_* OPENGL_* SLI_* VULKAN_* WDDM_* DEMOTED_BYTES_EVENTS "
        "MEMORY_TRANSFER_EVENTS TARGET_INFO_WDDM_CONTEXTS TOTAL_BYTES_RESIDENT_IN_SEGMENT_EVENTS "
        "TRACE_PROCESS_EVENT_NVMEDIA TEGRA_INTERNAL_API_CALLS"
    ),
    "nsys's own names of constants": _names("ENUM_*"),
}
# Rows per statement: so few that Ctrl-C and a progress bar need not wait long.
_CHUNK_ROWS = 50_000
# SQLite's application_id of a copy, which identifies files that may be replaced.
_MARK = 0x6E7379AC
# The report's schema is not trusted. The copy needs no journal, because it gets its final name only
# if it is complete.
_SETTINGS_OF_COPY = (
    "trusted_schema = OFF",
    "temp_store = MEMORY",
    "main.journal_mode = OFF",
    "main.synchronous = OFF",
    "main.secure_delete = ON",
    f"main.application_id = {_MARK}",
)
# The encoding of texts by the number in the header of an SQLite file; others are UTF-8.
_ENCODINGS = {2: "UTF-16le", 3: "UTF-16be"}
# SQLite's codes for errors of the file that is written: read-only, full, and i/o errors of writing,
# flushing and resizing.
_WRITE_ERRORS = {8, 13, 778, 1034, 1546}

_UNKNOWN_TABLES = "unknown tables"
_UNKNOWN_COLUMNS = "unknown columns"
# Categories that are listed item by item.
UNKNOWN = (_UNKNOWN_TABLES, _UNKNOWN_COLUMNS)
HARDWARE = "serial numbers and places of hardware"
_HARDWARE_COLUMNS = {"chipName", "ctrlDevPath", "ctxswDevPath", "luid", "pwGpuId", "uuid"}
_OTHER_COLUMNS = "columns that no answer needs"


# The columns of whole numbers, and those whose values are checked, of the tables that have some.
NUMBERS = {table: columns.numbers for table, columns in _COLUMNS.items() if columns.numbers}
CHECKED = {table: columns.checked for table, columns in _COLUMNS.items() if columns.checked}
# Tables of numbers of which only some rows are copied.
CHOSEN = frozenset({GPU_METRICS})
# All columns that are copied, or are known and left behind.
KNOWN = {table: columns.known for table, columns in _COLUMNS.items()}
_CLASSES = {table: kind for kind, tables in _LEFT_BEHIND.items() for table in tables}


def base_name(table: str) -> str:
    """Return a table's name without the version that some exporters append.

    All tables of payloads have one base name, because nsys makes their names of numbers and fields.
    """
    if table.startswith(PAYLOAD_TABLE_PREFIX):
        return f"{PAYLOAD_TABLE_PREFIX}*"
    match = VERSIONED.match(table)
    # A known name may look as if it ended with a version.
    has_version = match is not None and not is_known(table)
    return match["table"] if match and has_version else table


def is_known(table: str) -> bool:
    """Tell whether a table of this name is one that nsyspipe copies or leaves behind."""
    return table in _COLUMNS or class_of(table) is not None


def class_of(table: str) -> str | None:
    """Return what a table holds that is left behind as a whole; None for other tables."""
    if table in _CLASSES:
        return _CLASSES[table]
    for name, kind in _CLASSES.items():
        # A star stands for the rest of a name.
        is_pattern = name.endswith("*")
        if is_pattern and table.startswith(name.removesuffix("*")):
            return kind
    return None


class Contents(NamedTuple):
    """What one needs to know of a report before it is copied."""

    # None if it was not recorded.
    host: str | None
    # Number of rows of the tables that are not known and have rows.
    unknown_tables: dict[str, int]
    # Of the GPUs.
    uuids: list[str]
    bus_locations: list[str]


class NewNames(NamedTuple):
    """What replaces private names in a copy."""

    # None if the report names no host.
    host: str | None
    # New names by UUID and by place on the bus. All copies of a redaction have the same.
    uuids: Mapping[str, str]
    bus_locations: Mapping[str, str]


def look_at(path: Path) -> Contents:
    """Look at a report before it is copied.

    Raises InputError if the report is missing, damaged, not an nsys export, or has a view with the
    name of a table of nsys.
    """
    with open_report(path) as report:
        for view in sorted(report.views):
            if base_name(view) in _COLUMNS:
                raise in_place_of_a_table(path, view, "view")
        unknown = [table for table in report.tables if not is_known(base_name(table))]
        rows_of_unknown = {table: report.count(table) for table in unknown}
        unknown_with_rows = {table: n_rows for table, n_rows in rows_of_unknown.items() if n_rows}
        uuids = _texts_of_gpus(report, "uuid")
        bus_locations = _texts_of_gpus(report, "busLocation")
        return Contents(host_of(report), unknown_with_rows, uuids, bus_locations)


def _texts_of_gpus(report: Report, column: str) -> list[str]:
    """Return the texts in a column of the table of GPUs."""
    rows = report.few(GPU, {column: "text"})
    return [row[column] for row in rows if row[column]]


class Amount(NamedTuple):
    """How much was left behind in one place, a table or column."""

    kind: str
    place: str
    n: int
    unit: str


@dataclass
class Removed:
    """What was left behind so far, of one or more reports."""

    # Number of copied texts that have a private name in them.
    n_named: int = 0
    _numbers: Counter[tuple[str, str, str]] = field(default_factory=Counter)

    def add(self, kind: str, place: str, n: int, unit: str = "rows") -> None:
        """Count something."""
        self._numbers[kind, place, unit] += n

    def amounts(self) -> list[Amount]:
        """Return all amounts but zeros, sorted by class and place."""
        amounts = []
        for (kind, place, unit), n in self._numbers.items():
            if n:
                amounts.append(Amount(kind, place, n, unit))
        return sorted(amounts)


class Checked(NamedTuple):
    """A column that is copied after a check of its values."""

    # SQL type of the column.
    kind: str
    # Row numbers and new values.
    values: Iterable[tuple[int, Any]]
    # SQL expression for the rows that have no new value.
    otherwise: str = "NULL"


@dataclass(frozen=True)
class Copying:
    """A report and its unfinished copy.

    In SQL, names of tables and columns come from the lists in this module, or are quoted.
    """

    report: Report
    # To the copy, with the report attached as ``source``.
    connection: sa.Connection
    # Called while a table is copied.
    on_rows: Callable[[], None]
    removed: Removed
    # Tables that were copied, although others of their class are left behind.
    copied: set[str] = field(default_factory=set)

    def tables(self, base: str, *columns: str) -> list[str]:
        """Return the tables of the report with this name, in any version, and these columns."""
        tables = []
        for table, existing_columns in self.report.tables.items():
            has_columns = {*columns}.issubset(existing_columns)
            if has_columns and base_name(table) == base:
                tables.append(table)
        return tables

    def run(self, statement: str) -> sa.CursorResult[Any]:
        """Run a statement."""
        return self.connection.exec_driver_sql(statement)

    def count(self, table: str, condition: str = "1", *, schema: str = "source") -> int:
        """Return how many rows of a table of the report, or the copy, meet a condition."""
        statement = f"SELECT count(*) FROM {schema}.{quoted(table)} WHERE {condition}"  # noqa: S608
        return int(self.run(statement).scalar_one())

    def create(
        self,
        table: str,
        columns: Mapping[str, str],
        rows: Iterable[tuple[Any, ...]] = (),
        *,
        schema: str = "main",
    ) -> int:
        """Create a table of the copy, or in memory (``temp``), and return its number of rows.

        `columns` has the SQL type of each column. An existing table is replaced.
        """
        name = f"{schema}.{quoted(table)}"
        definitions = [f"{quoted(column)} {kind}" for column, kind in columns.items()]
        self.run(f"DROP TABLE IF EXISTS {name}")
        self.run(f"CREATE TABLE {name} ({', '.join(definitions)})")
        all_rows = list(rows)
        if all_rows:
            placeholders = ", ".join("?" * len(columns))
            statement = f"INSERT INTO {name} VALUES ({placeholders})"  # noqa: S608
            self.connection.exec_driver_sql(statement, all_rows)
        return len(all_rows)

    def copy(
        self, table: str, checked: Mapping[str, Checked] | None = None, *, where: str = "1"
    ) -> None:
        """Copy the columns of numbers of a table, and those whose values were checked.

        `checked` has the new values by column. In SQL they are the table ``of_COLUMN``, and the
        table of the report is ``t``. `where` is the condition for the rows that are copied.
        """
        existing_columns = self.report.tables[table]
        numbers = [name for name in NUMBERS[base_name(table)] if name in existing_columns]
        sql_types = dict.fromkeys(numbers, "INTEGER")
        expressions = {name: number(name) for name in numbers}
        joins = ""
        for name, column in (checked or {}).items():
            if name in existing_columns:
                new_values = f"of_{name}"
                columns_of_values = {"row": "INTEGER PRIMARY KEY", "value": ""}
                self.create(new_values, columns_of_values, column.values, schema="temp")
                joins += f" LEFT JOIN temp.{new_values} ON {new_values}.row = t.rowid"
                sql_types[name] = column.kind
                # A new value may be NULL, so the row tells whether there is one.
                has_value = f"{new_values}.row IS NOT NULL"
                expressions[name] = (
                    f"CASE WHEN {has_value} THEN {new_values}.value ELSE {column.otherwise} END"
                )
        if sql_types:
            self.create(table, sql_types)
            self.fill(table, expressions, joins=joins, where=where)

    def fill(
        self, table: str, values: Mapping[str, str], *, joins: str = "", where: str = "1"
    ) -> None:
        """Fill a table of the copy from that of the report, which SQL calls ``t``.

        `values` has an SQL expression for each column. Rows keep their order and numbers. They are
        copied in chunks, each of which begins after the last row of the chunk before.
        """
        name = quoted(table)
        columns = ", ".join(map(quoted, values))
        expressions = ", ".join(values.values())
        source = f"source.{name} AS t {joins}"
        condition = f"t.rowid > :last AND ({where}) ORDER BY t.rowid LIMIT {_CHUNK_ROWS}"
        next_rows = f"SELECT t.rowid, {expressions} FROM {source} WHERE {condition}"  # noqa: S608
        statement = sa.text(f"INSERT INTO main.{name} (rowid, {columns}) {next_rows}")
        last_row_statement = f"SELECT max(rowid) FROM main.{name}"  # noqa: S608
        # The least number that a row can have.
        last_row = -(2**63)
        while self.connection.execute(statement, {"last": last_row}).rowcount:
            last_row = self.run(last_row_statement).scalar_one()
            self.on_rows()


def is_copy(path: Path) -> bool:
    """Tell whether a file is a redacted copy; OSError if it cannot be read."""
    header = _header_of(path)
    application_id = header[68:72]
    return application_id == _MARK.to_bytes(4, "big")


def _header_of(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(100)


def number(column: str) -> str:
    """Return the SQL of a column's value if it is a whole number, else null.

    SQLite's columns accept values of any type.
    """
    name = f"t.{quoted(column)}"
    return f"CASE typeof({name}) WHEN 'integer' THEN {name} END"


@contextlib.contextmanager
def opened(report: Path, copy: Path) -> Iterator[sa.Connection]:
    """Open a new database in an empty file, with a report attached as ``source``.

    The database is complete when the context ends without an error. Raises what `files.check_file`
    does, and OutputError if the copy cannot be written.
    """
    _, flags = check_file(report)
    copy_uri = copy.absolute().as_uri()
    report_uri = report.absolute().as_uri()
    url = sa.URL.create("sqlite+pysqlite", database=copy_uri, query={"uri": "true"})
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT", poolclass=sa.pool.NullPool)
    # Two databases that are open together must be of one encoding.
    header = _header_of(report)
    encoding_number = int.from_bytes(header[56:60], "big")
    encoding = _ENCODINGS.get(encoding_number, "UTF-8")
    settings = [*_SETTINGS_OF_COPY, f"main.encoding = '{encoding}'"]
    try:
        with engine.connect() as connection:
            for setting in settings:
                connection.exec_driver_sql(f"PRAGMA {setting}")
            source = f"{report_uri}?{flags}"
            connection.exec_driver_sql("ATTACH ? AS source", (source,))
            connection.exec_driver_sql("BEGIN")
            yield connection
            connection.exec_driver_sql("COMMIT")
            connection.exec_driver_sql("DETACH source")
    except sa.exc.DBAPIError as error:
        code = getattr(error.orig, "sqlite_errorcode", 0)
        if code not in _WRITE_ERRORS:
            # The cause is the report, not the copy.
            raise
        problem = f"cannot be written ({error.orig})"
        raise OutputError(str(copy.parent), problem, fix="another disk or directory") from error
    finally:
        engine.dispose()


def count_left_behind(copying: Copying) -> None:
    """Count the views and tables that are left behind as a whole, and columns of other tables."""
    for table in copying.report.views:
        copying.removed.add("views", table, 1, "views")
    for table in copying.report.tables:
        base = base_name(table)
        class_left_behind = class_of(base)
        if table in copying.copied:
            continue
        if not is_known(base):
            copying.removed.add(_UNKNOWN_TABLES, table, copying.count(table))
        elif class_left_behind is not None:
            copying.removed.add(class_left_behind, base, copying.count(table))
        else:
            _count_columns_left_behind(copying, table)


def _count_columns_left_behind(copying: Copying, table: str) -> None:
    """Count the values in those columns of a table that are left behind.

    A table without columns of numbers is copied value by value, and what is left behind of it is
    counted there. Here its columns count only if one of them is unknown.
    """
    base = base_name(table)
    columns = copying.report.tables[table]
    are_all_known = KNOWN[base].issuperset(columns)
    if are_all_known and base not in NUMBERS:
        return
    numbers = NUMBERS.get(base, ())
    checked = CHECKED.get(base, ())
    copied = {*numbers, *checked}
    left_behind = [name for name in columns if name not in copied]
    counts = [f"count({quoted(name)})" for name in left_behind]
    # A query needs a column, even if nothing was left behind.
    expressions = ", ".join(["count(*)", *counts])
    result = copying.run(f"SELECT {expressions} FROM source.{quoted(table)}")  # noqa: S608
    row_of_counts: list[int] = [*result.one()]
    n_values = row_of_counts[1:]
    for name, n_values_of_column in zip(left_behind, n_values, strict=True):
        if name not in KNOWN[base]:
            kind = _UNKNOWN_COLUMNS
        elif name in _HARDWARE_COLUMNS:
            kind = HARDWARE
        else:
            kind = _OTHER_COLUMNS
        copying.removed.add(kind, f"{base}.{name}", n_values_of_column, "values")
