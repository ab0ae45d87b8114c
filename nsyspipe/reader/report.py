"""Open one report, read-only, see what its export version has, and select typed columns from it.

The names that nsys gives to tables are here; which of them a file has, it finds by looking.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import adbc_driver_manager
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa
from msgspec import Struct

from nsyspipe import errors
from nsyspipe.analysis.attribution import filled
from nsyspipe.errors import (
    DamagedReportError,
    MissingColumnError,
    NotAReportError,
    ReportNotFoundError,
)
from nsyspipe.model.table import Flags, Int64
from nsyspipe.model.user_paths import AnyPath
from nsyspipe.nsys.files import BEING_WRITTEN, EXPORT_AGAIN, WAIT, check_file, readable
from nsyspipe.reader.tables import Pages, connected, fetch_arrow, plain_tables, quoted

KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
MEMCPY = "CUPTI_ACTIVITY_KIND_MEMCPY"
MEMSET = "CUPTI_ACTIVITY_KIND_MEMSET"
GRAPH = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
SYNCHRONIZATION = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
NVTX = "NVTX_EVENTS"
STRINGS = "StringIds"
EXPORT_META = "META_DATA_EXPORT"
EXPORT_META_OLD = "EXPORT_META_DATA"
CAPTURE_META = "META_DATA_CAPTURE"
SESSION_START = "TARGET_INFO_SESSION_START_TIME"
CAPTURE_TIMES = "ANALYSIS_DETAILS"
GPU = "TARGET_INFO_GPU"
CUDA_DEVICE = "TARGET_INFO_CUDA_DEVICE"
SYSTEM_ENV = "TARGET_INFO_SYSTEM_ENV"
OVERHEAD = "PROFILER_OVERHEAD"
PAYLOAD_SCHEMAS = "NVTX_PAYLOAD_SCHEMAS"
PAYLOAD_ENTRIES = "NVTX_PAYLOAD_SCHEMA_ENTRIES"
DIAGNOSTICS = "DIAGNOSTIC_EVENT"
OS_RUNTIME = "OSRT_API"
CPU_SAMPLES = "COMPOSITE_EVENTS"
GPU_METRICS = "GPU_METRICS"
GPU_METRIC_NAMES = "TARGET_INFO_GPU_METRICS"
CUDA_CALL_CHAINS = "CUDA_CALLCHAINS"
MEMORY_USAGE = "CUDA_GPU_MEMORY_USAGE_EVENTS"
PAYLOAD_ENUMS = "NVTX_PAYLOAD_ENUMS"
# What ``nsys export --dynamic-tables=all`` adds: payloads as tables, the events that have one, and
# the names that fields had before they became names of columns.
PAYLOAD_LINKS = "NVTX_EVENTS_PAYLOAD_SCHEMAS"
PAYLOAD_NAMES = "NVTX_EXPORT_TRANSLATION"
PAYLOAD_TABLE_PREFIX = "DYNAMIC_NVTXPAYLOAD_DATATYPE_"

_TABLES_READ = (
    KERNEL,
    MEMCPY,
    MEMSET,
    GRAPH,
    RUNTIME,
    NVTX,
    STRINGS,
    EXPORT_META,
    EXPORT_META_OLD,
    CAPTURE_META,
    SESSION_START,
    GPU,
    CUDA_DEVICE,
    SYSTEM_ENV,
    OVERHEAD,
    PAYLOAD_SCHEMAS,
    PAYLOAD_ENTRIES,
    PAYLOAD_ENUMS,
    PAYLOAD_LINKS,
    PAYLOAD_NAMES,
    DIAGNOSTICS,
    SYNCHRONIZATION,
    OS_RUNTIME,
    CPU_SAMPLES,
    GPU_METRICS,
    GPU_METRIC_NAMES,
    CUDA_CALL_CHAINS,
    MEMORY_USAGE,
)
_READ = {table.lower() for table in _TABLES_READ}
# A file without any of these is not an nsys export.
_SIGNS = (STRINGS, EXPORT_META, EXPORT_META_OLD, KERNEL, RUNTIME, NVTX, SESSION_START)

# Some exporters append a version to the name of a table.
VERSIONED = re.compile(r"^(?P<table>.+)_V(?P<version>[0-9]{1,9})$")

# Version of the export schema.
NEWEST_TESTED = (3, 25)
# A damaged file can also have a name that is not text.
_ENGINE_ERRORS = (
    sa.exc.DBAPIError,
    adbc_driver_manager.Error,
    pa.ArrowException,
    OSError,
    UnicodeDecodeError,
)
# Numbers take more bytes as text than in the file, but not this many times as many.
_MAX_TEXT_RATIO = 4

# The Arrow type of each kind of column, and the SQL of a column that the table lacks.
_TYPES = {"int": pa.int64(), "text": pa.string(), "blob": pa.binary()}
_EMPTY = {"int": "NULL", "text": "''", "blob": "x''"}
# What a process takes, and what each row adds at its peak (measured with ten million kernels). A
# row takes at least the last number of bytes in the file.
_LARGE = (KERNEL, MEMCPY, MEMSET, RUNTIME, NVTX)
_PROCESS_BYTES = 100 * 2**20
_ROW_BYTES = 70
_MIN_ROW_BYTES_IN_FILE = 16
_SHORTER = "capture fewer steps, or analyze it where there is more memory"
_ZONE_ROWS = 4096
# globalTid = 8 bits hardware, 8 VM, 24 process, 24 thread. Without the thread it is the globalPid.
_THREAD_BITS = _PID_BITS = 0xFFFFFF
_CHUNK_ROWS = 65_536
_Ids = TypeVar("_Ids", int, "Int64")
# Inode, bytes, and the times of the last write and of the last change, in ns.
FileState: TypeAlias = tuple[int, int, int, int]
# What is read, by column: its kind, nsys's name for it, or SQL.
Columns: TypeAlias = Mapping[str, str]

# No clock reaches this (73 years), and no sum or difference of two such times overflows.
TIME_LIMIT = 2**61


def are_possible(starts: Int64, ends: Int64) -> Flags:
    """Tell which intervals do not end before they start, and are at times that a clock reaches."""
    is_in_order = starts <= ends
    is_in_limits = (starts > -TIME_LIMIT) & (ends < TIME_LIMIT)
    possible: Flags = is_in_order & is_in_limits
    return possible


def is_read(table: str) -> bool:
    """Tell whether a table of this name, in any case and of any version, is one that is read."""
    if table.lower() in _READ or table.upper().startswith(PAYLOAD_TABLE_PREFIX):
        return True
    versioned = VERSIONED.match(table.upper())
    return versioned is not None and versioned["table"].lower() in _READ


def version_numbers(schema_version: str | None) -> tuple[int, int]:
    """Return the first two numbers of an export schema version; zeros for none."""
    match = re.match(r"(\d+)\.(\d+)", schema_version or "")
    if match is None:
        return 0, 0
    return int(match[1]), int(match[2])


@contextlib.contextmanager
def open_report(path: AnyPath, checked: FileState | None = None) -> Iterator[Report]:
    """Open a report for reading and close it again. Its file and directory stay as they were.

    `checked` is the state of the file when it was read before. If the file still has this state,
    slow checks are not made again.

    Raises a `ReportNotFoundError` if the file is missing, a `NotAReportError` if it is not SQLite
    or not nsys's, and a `DamagedReportError` if it is truncated, locked or being written.
    """
    before, flags = check_file(path)
    with _translated(path):
        state = (before.st_ino, before.st_size, before.st_mtime_ns, before.st_ctime_ns)
        # The check of pages is slow.
        pages = None if state == checked else Pages(path)
        if pages is not None:
            # The schema begins in the first page.
            pages.add([1])
        file_uri = Path(path).absolute().as_uri()
        with connected(f"{file_uri}?{flags}") as connection:
            yield Report(path, connection, pages, state)
    with _still_there(path):
        after = Path(path).stat()
    if (after.st_size, after.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
        raise DamagedReportError(str(path), "changed during reading", fix=WAIT)


class Report:
    """One open report: what it has, and typed selections from it."""

    def __init__(
        self, path: AnyPath, connection: sa.Connection, pages: Pages | None, state: FileState
    ) -> None:
        self.path = path
        self.state = state
        self._n_bytes = state[1]
        self._is_checked = pages is None
        self._connection = connection
        self._length_checked: set[tuple[str, str]] = set()
        # The columns of each table, and the names of views and virtual tables.
        self.tables, self.views = plain_tables(path, connection, pages, is_read)
        if not any(self.physical(table) for table in _SIGNS):
            problem = "is an SQLite database that Nsight Systems did not export"
            first_tables = ", ".join(sorted(self.tables)[:5])
            shown = f"tables {first_tables or '(none)'}"
            fix = "nsys export --type=sqlite REPORT.nsys-rep"
            raise NotAReportError(str(path), problem, found=shown, fix=fix)

    def physical(self, table: str) -> str | None:
        """Return the name under which a table exists, or None.

        This is its plain name, or that of its newest version, for example with the suffix ``_V3``.
        """
        if table in self.tables:
            return table
        versioned_names = filter(None, map(VERSIONED.match, self.tables))
        versions = [match for match in versioned_names if match["table"] == table]
        newest = max(versions, key=lambda match: int(match["version"]), default=None)
        return None if newest is None else newest.group()

    def has(self, table: str, *columns: str) -> bool:
        """Tell whether the report has a table with all of these columns."""
        physical = self.physical(table)
        if physical is None:
            return False
        existing_columns = self.tables[physical]
        return set(columns).issubset(existing_columns)

    def require(self, table: str, *columns: str) -> None:
        """Raise `MissingColumnError` unless a table has all of these columns."""
        for column in columns:
            if not self.has(table, column):
                problem = f"lacks the required column {column} of table {table}"
                raise MissingColumnError(str(self.path), problem, fix=EXPORT_AGAIN)

    def select(
        self,
        table: str,
        columns: Columns,
        *,
        derived: Columns | None = None,
        where: str | None = None,
    ) -> pa.Table:
        """Select columns of an existing table as Arrow, exactly typed, with rows in any order.

        `columns` has the kind of each column: ``int`` (int64, with nulls), ``text`` or ``blob``.
        Texts and blobs have no nulls: they are empty instead. A column that the table lacks is all
        null, or all empty. `derived` are SQL expressions of integers by name, whose columns come
        last. `where` is an SQL condition.
        """
        texts_and_blobs = [name for name, kind in columns.items() if kind != "int"]
        self._check_lengths(table, texts_and_blobs)
        expressions: dict[str, str] = {}
        for name, kind in columns.items():
            expressions[name] = self._typed(table, name, kind)
        expressions.update(derived or {})
        selected = (f"{sql} AS {quoted(name)}" for name, sql in expressions.items())
        statement = f"SELECT {', '.join(selected)} {self._rows(table, where)}"
        arrays: list[pa.ChunkedArray] = []
        with _translated(self.path):
            result = fetch_arrow(self._connection, statement)
            for name in expressions:
                kind = columns.get(name, "int")
                arrays.append(_pinned(result.column(name), kind))
        return pa.Table.from_arrays(arrays, names=list(expressions))

    def _typed(self, table: str, name: str, kind: str) -> str:
        """Return the SQL of a column of some kind.

        The SQL fixes the type of a text. Otherwise the driver would infer it from the first rows.
        """
        if not self.has(table, name):
            # Null for an integer.
            return _EMPTY[kind]
        if kind == "int":
            return quoted(name)
        value = f"coalesce({quoted(name)}, {_EMPTY[kind]})"
        return f"CAST({value} AS TEXT)" if kind == "text" else value

    def _rows(self, table: str, where: str | None = None) -> str:
        """Return the SQL for the rows of a table that meet a condition, or for all of them."""
        name = self.physical(table) or table
        return f"FROM {quoted(name)} NOT INDEXED WHERE {where or 1}"

    def zones(
        self, table: str, least: pa.ChunkedArray, greatest: pa.ChunkedArray
    ) -> dict[str, Zones]:
        """Return the zones of a large table, in a dict with the name of the table as its only key.

        `least` and `greatest` have the bounds of each row, for example its start and end. The
        result is empty if these columns lack rows of the table, if SQL cannot name the numbers of
        rows, or if one zone would hold all rows.
        """
        n_rows = len(least)
        # A column of this name hides the numbers of the rows.
        hides_row_numbers = self.has(table, "rowid")
        if n_rows <= _ZONE_ROWS or hides_row_numbers:
            return {}
        first_row = self.number(table, "min(rowid)") or 0
        last_row = self.number(table, "max(rowid)") or 0
        # Some rows may have been deleted from the table, or dropped after reading. Then the
        # position of a row does not tell its number.
        has_all_rows = last_row - first_row + 1 == n_rows
        if not has_all_rows:
            return {}
        first_of_zones = np.arange(0, n_rows, _ZONE_ROWS)
        # The limits stand in for missing values, because they do not change the bounds of a zone.
        least_of_zones = np.minimum.reduceat(filled(least, TIME_LIMIT), first_of_zones)
        greatest_of_zones = np.maximum.reduceat(filled(greatest, -TIME_LIMIT), first_of_zones)
        return {table: Zones(first_row, least_of_zones, greatest_of_zones)}

    def few(self, table: str, columns: Columns, where: str | None = None) -> list[dict[str, Any]]:
        """Return the rows of a small table, as `select`. Empty if it, or a column, is missing."""
        if not self.has(table, *columns):
            return []
        selected = self.select(table, columns, where=where)
        rows: list[dict[str, Any]] = selected.to_pylist()
        return rows

    def _check_lengths(self, table: str, names: Iterable[str]) -> None:
        """Raise `DamagedReportError` if columns have more bytes of text than the file can hold.

        In such a file, rows share pages, and reading them could fill the memory. Each column is
        checked once. A file that was checked in an earlier reading is not checked again.
        """
        if self._is_checked:
            return
        existing = [(table, name) for name in names if self.has(table, name)]
        unchecked = [column for column in existing if column not in self._length_checked]
        if not unchecked:
            return
        self._length_checked.update(unchecked)
        lengths = [f"total(octet_length({quoted(name)}))" for _, name in unchecked]
        n_text_bytes = self.number(table, " + ".join(lengths)) or 0
        if n_text_bytes > _MAX_TEXT_RATIO * self._n_bytes:
            problem = f"is damaged ({self.physical(table)} claims more text than the file contains)"
            raise DamagedReportError(str(self.path), problem, fix=EXPORT_AGAIN)

    def has_rows(self, table: str) -> bool:
        """Tell whether a table exists and has rows."""
        return self.has(table) and self.number(table, "1") is not None

    def count(self, table: str, where: str | None = None) -> int:
        """Return how many rows of a table meet an SQL condition. Without one, count all rows."""
        return self.number(table, "count(*)", where) or 0

    def refuse_what_cannot_fit(self, memory: int) -> None:
        """Raise `InputError` if the rows that are read need more memory than there is.

        `memory` is in bytes, and 0 if it is not known. The number of the last row stands in for
        the number of rows, because counting takes long. A damaged table may claim more rows than
        the file has room for. Then the rows that have room count.
        """
        n_rows_in_file = self._n_bytes // _MIN_ROW_BYTES_IN_FILE
        n_rows = min(self._n_claimed_rows(), n_rows_in_file)
        needed_bytes = _PROCESS_BYTES + _ROW_BYTES * n_rows
        is_memory_known = memory > 0
        if is_memory_known and needed_bytes > memory:
            needed_gb = needed_bytes / 1e9
            memory_gb = memory / 1e9
            problem = (
                f"needs about {needed_gb:.1f} GB of memory, but this machine has only "
                f"{memory_gb:.1f} GB"
            )
            raise errors.InputError(str(self.path), problem, fix=_SHORTER)

    def _n_claimed_rows(self) -> int:
        """Return how many rows the large tables have together, or more.

        This is the sum of the numbers of their last rows.
        """
        last_row = "CAST(coalesce(max(rowid), 0) AS INTEGER)"
        tables = filter(self.has, _LARGE)
        queries = [f"SELECT {last_row} AS n {self._rows(table)}" for table in tables]
        if not queries:
            return 0
        with _translated(self.path):
            last_rows = fetch_arrow(self._connection, " UNION ALL ".join(queries))
        return sum(last_rows["n"].to_pylist())

    def number(self, table: str, sql: str, where: str | None = None) -> int | None:
        """Return the integer of an SQL expression in the first row, None if there is no row.

        An aggregate, for example ``max(start)``, has one row for the whole table.
        """
        statement = f"SELECT CAST({sql} AS INTEGER) AS n {self._rows(table, where)} LIMIT 1"
        with _translated(self.path):
            result = fetch_arrow(self._connection, statement)
            numbers: list[int | None] = result["n"].to_pylist()
        return numbers[0] if numbers else None


def _pinned(column: pa.ChunkedArray, kind: str) -> pa.ChunkedArray:
    """Return a column with the type of its kind, and with bytes that are not UTF-8 replaced.

    SQLite and Arrow do not check that texts are UTF-8, and Python would fail at other bytes.
    """
    column_type = _TYPES[kind]
    if not len(column):
        return pa.chunked_array([], column_type)
    if column.type != column_type:
        # A text always has this type, because its SQL says so.
        return column.cast(column_type)
    if kind != "text":
        return column
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        values = column.cast(pa.binary()).to_pylist()
        texts = [value.decode("utf-8", "replace") for value in values]
        return pa.chunked_array([pa.array(texts, pa.string())])
    return column


class Zones(Struct, frozen=True):
    """Where values are in a table, by zones of `_ZONE_ROWS` successive rows.

    nsys makes no indexes, and reading the whole table takes long.
    """

    # The number of the first row of the table.
    first_row: int
    # The bounds of the values of each zone.
    least: Int64
    greatest: Int64

    def condition(self, first: int, last: int) -> str:
        """Return an SQL condition for all rows that touch the values `first` to `last`.

        Other rows meet the condition too, because it selects whole zones: the first zone that
        touches the values, the last such zone, and all zones between them.
        """
        touches_values = (self.least <= last) & (self.greatest >= first)
        zones = np.flatnonzero(touches_values)
        if not zones.size:
            # No row meets this condition.
            return "rowid BETWEEN 0 AND -1"
        first_zone = int(zones[0])
        end_of_zones = int(zones[-1]) + 1
        first_row = self.first_row + first_zone * _ZONE_ROWS
        last_row = self.first_row + end_of_zones * _ZONE_ROWS - 1
        return f"rowid BETWEEN {first_row} AND {last_row}"


def machine_memory() -> int:
    """Return how many bytes of memory and swap this process could have if no other one ran.

    0 if the system does not say.
    """
    try:
        lines = Path("/proc/meminfo").read_text("ascii").splitlines()
        size_of_name = dict(line.split(":") for line in lines)
        memory_bytes = _n_bytes_of(size_of_name["MemTotal"])
        swap_bytes = _n_bytes_of(size_of_name["SwapTotal"])
    except (OSError, ValueError, LookupError):
        return 0
    # There may be no control group, or one without a limit.
    with contextlib.suppress(OSError, ValueError):
        limit_bytes = int(Path("/sys/fs/cgroup/memory.max").read_text("ascii"))
        memory_bytes = min(memory_bytes, limit_bytes)
    return memory_bytes + swap_bytes


def _n_bytes_of(size: str) -> int:
    """Return a size in bytes that the system states in KiB, for example ``123 kB``."""
    n_kib, *_ = size.split()
    return int(n_kib) * 1024


def process_of(global_tid: _Ids) -> _Ids:
    """Return the globalPid of each globalTid, or of a single one. IDs may be negative."""
    return global_tid & ~_THREAD_BITS


def bounds_of(column: pa.ChunkedArray) -> tuple[Any, Any]:
    """Return the least and the greatest value of a column; two nulls if it has no value."""
    bounds = pc.min_max(column).as_py()
    return bounds["min"], bounds["max"]


def processes_of(threads: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the globalPid of each globalTid of a column without nulls."""
    # Both are None without any thread.
    least_thread, greatest_thread = bounds_of(threads)
    least_process = process_of(least_thread or 0)
    greatest_process = process_of(greatest_thread or 0)
    # The threads of a process have consecutive numbers, so that no other process is between them.
    has_one_process = least_process == greatest_process
    if has_one_process:
        return repeated(least_process, len(threads))
    return pc.bit_wise_and(threads, ~_THREAD_BITS)


def repeated(value: int | None, n_rows: int) -> pa.ChunkedArray:
    """Return a column of one value in all rows.

    It takes little memory, because all its chunks share one array.
    """
    kind = pa.bool_() if isinstance(value, bool) else pa.int64()
    chunk = pa.repeat(pa.scalar(value, kind), min(n_rows, _CHUNK_ROWS))
    n_whole_chunks, n_rest_rows = divmod(n_rows, _CHUNK_ROWS)
    chunks = [chunk] * n_whole_chunks
    chunks.append(chunk[:n_rest_rows])
    return pa.chunked_array(chunks, kind)


def pid_of(global_pid: int) -> int:
    """Return the process ID of the operating system. A globalPid may be negative."""
    return (global_pid >> 24) & _PID_BITS


def main_thread_of(global_pid: int) -> int:
    """Return the globalTid of the first thread of a process, which has the same number."""
    return global_pid | pid_of(global_pid)


@contextlib.contextmanager
def _translated(path: AnyPath) -> Iterator[None]:
    """Turn errors of the database engine into errors of nsyspipe.

    The new error names the cause: too little memory, a file that was deleted or is locked, or what
    the file contains.
    """
    try:
        yield
    except _ENGINE_ERRORS as error:
        shortage_error = errors.shortage(error)
        if shortage_error is not None:
            raise shortage_error from error
        # This raises the error for a file that cannot be opened any more.
        with _still_there(path), Path(path).open("rb"):
            pass
        text = str(getattr(error, "orig", None) or error)
        if "locked" in text or "busy" in text.lower():
            problem = f"is locked by another program and {BEING_WRITTEN}"
            raise DamagedReportError(str(path), problem, fix=WAIT) from error
        if isinstance(error, pa.ArrowException):
            # The message quotes the value, which may be a secret.
            detail = "a column holds a value that is not of its type"
        else:
            first_line = text.splitlines()[0] if text else type(error).__name__
            detail = first_line[:160]
        problem = f"cannot be read as an nsys export ({detail})"
        raise DamagedReportError(str(path), problem, fix=EXPORT_AGAIN) from error


@contextlib.contextmanager
def _still_there(path: AnyPath) -> Iterator[None]:
    """Turn errors of the file system into those of a file that could be read before."""
    try:
        with readable(path):
            yield
    except ReportNotFoundError as error:
        problem = "was deleted during reading"
        fix = "copy the report back, then start again"
        raise DamagedReportError(str(path), problem, fix=fix) from error
