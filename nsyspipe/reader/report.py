"""Open one report, read-only, see what its export version has, and select typed columns from it.

The names that nsys gives to tables are here; which of them a file has, it finds by looking.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
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
from nsyspipe.model.table import Int64
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
OS_RUNTIME = "OSRT_API"
CPU_SAMPLES = "COMPOSITE_EVENTS"
GPU_METRICS = "GPU_METRICS"
CUDA_CALL_CHAINS = "CUDA_CALLCHAINS"
PAYLOAD_ENUMS = "NVTX_PAYLOAD_ENUMS"

_READ = {
    *map(
        str.lower,
        (
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
            SYNCHRONIZATION,
            OS_RUNTIME,
            CPU_SAMPLES,
            GPU_METRICS,
            CUDA_CALL_CHAINS,
        ),
    )
}
# A file with none of these is no nsys export.
_SIGNS = (STRINGS, EXPORT_META, EXPORT_META_OLD, KERNEL, RUNTIME, NVTX, SESSION_START)

VERSIONED = re.compile(
    r"^(?P<table>.+)_V(?P<version>[0-9]{1,9})$"
)  # some exporters append a version to a table's name

NEWEST_TESTED = (3, 25)  # version of the export schema
# A damaged file can also hold a name that is no text.
_ENGINE_ERRORS = (
    sa.exc.DBAPIError,
    adbc_driver_manager.Error,
    pa.ArrowException,
    OSError,
    UnicodeDecodeError,
)
_MOST_TEXT = 4  # numbers take more room as text than in the file

# By kind of column its Arrow type, and the SQL of what it does not have.
_TYPES = {"int": pa.int64(), "text": pa.string(), "blob": pa.binary()}
_EMPTY = {"int": "NULL", "text": "''", "blob": "x''"}
# What a process takes, and each row more at its peak (measured at ten million kernels); the least
# that one takes in the file.
_LARGE = (KERNEL, MEMCPY, MEMSET, RUNTIME, NVTX)
_PROCESS_BYTES = 100 * 2**20
_ROW_BYTES = 70
_SMALLEST_ROW = 16
_SHORTER = "capture fewer steps, or analyze it where there is more memory"
_ZONE_ROWS = 4096
# globalTid = 8 bits hardware, 8 VM, 24 process, 24 thread; without the thread it is the globalPid.
_THREAD_BITS = _PID_BITS = 0xFFFFFF
_CHUNK_ROWS = 65_536
_Ids = TypeVar("_Ids", int, "Int64")
FileState: TypeAlias = tuple[
    int, int, int, int
]  # inode, bytes, when it was written and when changed, ns
Columns: TypeAlias = Mapping[
    str, str
]  # what is read, by column: its kind, nsys's name for it, or SQL

TIME_LIMIT = (
    2**61
)  # no clock reaches this (73 years), and no sum or difference of two such times overflows


def is_read(table: str) -> bool:
    """Tell whether a table of this name, in any case and of any version, is one that is read."""
    match = VERSIONED.match(table.upper())
    return table.lower() in _READ or (match is not None and match["table"].lower() in _READ)


def version_numbers(schema_version: str | None) -> tuple[int, int]:
    """Return the first two numbers of an export schema version; zeros for none."""
    match = re.match(r"(\d+)\.(\d+)", schema_version or "")
    return (int(match[1]), int(match[2])) if match else (0, 0)


@contextlib.contextmanager
def open_report(path: str | Path, checked: FileState | None = None) -> Iterator[Report]:
    """Open a report for reading and close it again; its file and folder stay as they were.

    What takes time to check is not checked again of a file whose state is still that of `checked`.

    Raises a `ReportNotFoundError`, `NotAReportError` or `DamagedReportError` if the file is
    missing, no SQLite, not nsys's, truncated, locked or being written.
    """
    path = Path(path)
    before, flags = check_file(path)
    with _translated(path):
        state = before.st_ino, before.st_size, before.st_mtime_ns, before.st_ctime_ns
        pages = None if state == checked else Pages(path)
        if pages is not None:
            pages.add([1])  # where the schema begins
        with connected(f"{path.absolute().as_uri()}?{flags}") as connection:
            yield Report(path, connection, pages, state)
    with _still_there(path):
        after = path.stat()
    if (after.st_size, after.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
        raise DamagedReportError(str(path), "changed during reading", fix=WAIT)


class Report:
    """One open report: what it has, and typed selections from it."""

    def __init__(
        self, path: Path, connection: sa.Connection, pages: Pages | None, state: FileState
    ) -> None:
        self.path = path
        self.state = state
        self._n_bytes = state[1]
        self._is_checked = pages is None
        self._connection = connection
        self._weighed: set[tuple[str, str]] = set()
        # The columns of each table, and the names of what looks like one.
        self.tables, self.views = plain_tables(path, connection, pages, is_read)
        if not any(self.physical(table) for table in _SIGNS):
            problem = "is an SQLite database that Nsight Systems did not export"
            tables = f"tables {', '.join(sorted(self.tables)[:5]) or '(none)'}"
            raise NotAReportError(
                str(path), problem, found=tables, fix="nsys export --type=sqlite REPORT.nsys-rep"
            )

    def physical(self, table: str) -> str | None:
        """Return the name under which a table exists (``_V3`` suffixes included), or None."""
        if table in self.tables:
            return table
        matches = [m for m in map(VERSIONED.match, self.tables) if m and m["table"] == table]
        return max(matches, key=lambda m: int(m["version"])).group() if matches else None

    def has(self, table: str, *columns: str) -> bool:
        """Tell whether the report has a table with all of these columns."""
        physical = self.physical(table)
        return physical is not None and {*columns} <= {*self.tables[physical]}

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
        """Select columns of a table that exists as Arrow, exactly typed, in their order; rows in any order.

        Kinds are ``int`` (int64, nulls kept), ``text`` and ``blob`` (null becomes empty). A column
        that the table lacks is all null (int) or empty. `derived` are SQL expressions of integers
        by name, which come last, `where` a condition.
        """
        self._weigh(
            table,
            [name for name, kind in columns.items() if kind != "int" and self.has(table, name)],
        )
        selected = {name: self._typed(table, name, kind) for name, kind in columns.items()} | {
            **(derived or {})
        }
        named = ", ".join(f"{sql} AS {quoted(name)}" for name, sql in selected.items())
        with _translated(self.path):
            result = fetch_arrow(self._connection, f"SELECT {named} {self._rows(table, where)}")
            arrays = [_pinned(result.column(name), columns.get(name, "int")) for name in selected]
        return pa.Table.from_arrays(arrays, names=list(selected))

    def _typed(self, table: str, name: str, kind: str) -> str:
        """Return the SQL of a column, which pins its type: the driver infers that from its first rows."""
        if not self.has(table, name):
            return _EMPTY[kind]
        if kind == "int":
            return quoted(name)
        value = f"coalesce({quoted(name)}, {_EMPTY[kind]})"
        return f"CAST({value} AS TEXT)" if kind == "text" else value

    def _rows(self, table: str, where: str | None = None) -> str:
        return f"FROM {quoted(self.physical(table) or table)} NOT INDEXED WHERE {where or 1}"

    def zones(
        self, table: str, least: pa.ChunkedArray, greatest: pa.ChunkedArray
    ) -> dict[str, Zones]:
        """Return a table with its zones, by two columns of all of its rows; nothing where some are missing, or one zone holds all."""
        if len(least) <= _ZONE_ROWS or self.has(table, "rowid"):
            return {}
        first, last = (self.number(table, f"{end}(rowid)") or 0 for end in ("min", "max"))
        if last - first + 1 != len(least):  # some were deleted, or dropped
            return {}
        edges = np.arange(0, len(least), _ZONE_ROWS)
        firsts = np.minimum.reduceat(filled(least, TIME_LIMIT), edges)
        return {
            table: Zones(first, firsts, np.maximum.reduceat(filled(greatest, -TIME_LIMIT), edges))
        }

    def few(self, table: str, columns: Columns, where: str | None = None) -> list[dict[str, Any]]:
        """Return the rows of a small table, as `select`; none where it, or one of the columns, is not there."""
        return (
            self.select(table, columns, where=where).to_pylist()
            if self.has(table, *columns)
            else []
        )

    def _weigh(self, table: str, names: list[str]) -> None:
        """Refuse texts that are longer, in all, than the file that holds them: rows that share pages."""
        if self._is_checked or not (
            new := [name for name in names if (table, name) not in self._weighed]
        ):
            return
        self._weighed.update((table, name) for name in new)
        n_bytes = (
            self.number(table, " + ".join(f"total(octet_length({quoted(name)}))" for name in new))
            or 0
        )
        if n_bytes > _MOST_TEXT * self._n_bytes:
            problem = f"is damaged ({self.physical(table)} claims more text than the file contains)"
            raise DamagedReportError(str(self.path), problem, fix=EXPORT_AGAIN)

    def has_rows(self, table: str) -> bool:
        """Tell whether a table exists and has rows."""
        return self.has(table) and self.number(table, "1") is not None

    def count(self, table: str, where: str | None = None) -> int:
        """Return how many rows of a table meet an SQL condition, or how many there are."""
        return self.number(table, "count(*)", where) or 0

    def refuse_what_cannot_fit(self, memory: int) -> None:
        """Raise `InputError` if the rows that are read need more memory, in bytes, than a machine has; 0 is not known.

        Rows are counted by their numbers, which costs nothing, and never more of them than the file
        has room for.
        """
        last_rows = (
            f"SELECT CAST(coalesce(max(rowid), 0) AS INTEGER) AS n {self._rows(table)}"
            for table in _LARGE
            if self.has(table)
        )
        statement = " UNION ALL ".join(last_rows)
        with _translated(self.path):
            last_rows_result = fetch_arrow(self._connection, statement) if statement else None
        numbers = sum(last_rows_result["n"].to_pylist()) if last_rows_result else 0
        needed = _PROCESS_BYTES + _ROW_BYTES * min(numbers, self._n_bytes // _SMALLEST_ROW)
        if memory and needed > memory:
            problem = (
                f"needs about {needed / 1e9:.1f} GB of memory, but this machine has only "
                f"{memory / 1e9:.1f} GB"
            )
            raise errors.InputError(str(self.path), problem, fix=_SHORTER)

    def number(self, table: str, sql: str, where: str | None = None) -> int | None:
        """Return the first of one column of integers that an SQL expression gives; None for none."""
        statement = f"SELECT CAST({sql} AS INTEGER) AS n {self._rows(table, where)} LIMIT 1"
        with _translated(self.path):
            number: int | None = next(
                iter(fetch_arrow(self._connection, statement)["n"].to_pylist()), None
            )
        return number


def _pinned(column: pa.ChunkedArray, kind: str) -> pa.ChunkedArray:
    """Return a column with its type, bytes that are not UTF-8 replaced: SQLite does not check, Arrow trusts, Python fails."""
    wanted = _TYPES[kind]
    if not len(column):
        return pa.chunked_array([], wanted)
    if kind != "text" or not pa.types.is_string(column.type):
        return column if column.type == wanted else column.cast(wanted)
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        texts = [value.decode("utf-8", "replace") for value in column.cast(pa.binary()).to_pylist()]
        return pa.chunked_array([pa.array(texts, pa.string())])
    return column


class Zones(Struct, frozen=True):
    """Where in a table values lie, by every so many rows in order: nsys makes no indexes, and a pass takes its time."""

    first_row: int  # number of the table's first row
    least: Int64
    greatest: Int64

    def condition(self, first: int, last: int) -> str:
        """Return the SQL condition of the rows among which all are that reach from at most `last` to at least `first`."""
        zones = np.flatnonzero((self.least <= last) & (self.greatest >= first))
        rows = self.first_row + zones[[0, -1]] * _ZONE_ROWS if zones.size else (0, -_ZONE_ROWS)
        return f"rowid BETWEEN {rows[0]} AND {rows[1] + _ZONE_ROWS - 1}"


def machine_memory() -> int:
    """Return the memory in bytes that this process could have if it were alone, swap included; 0 if the system does not say."""
    try:
        told = dict(
            line.split(":") for line in Path("/proc/meminfo").read_text("ascii").splitlines()
        )
        total, swap = (int(told[name].split()[0]) * 1024 for name in ("MemTotal", "SwapTotal"))
    except (OSError, ValueError, LookupError):
        return 0
    with contextlib.suppress(OSError, ValueError):  # no control group, or one without a limit
        total = min(total, int(Path("/sys/fs/cgroup/memory.max").read_text("ascii")))
    return total + swap


def process_of(global_tid: _Ids) -> _Ids:
    """Return the globalPid of each globalTid, or of one; exact for negative ids too."""
    return global_tid & ~_THREAD_BITS


def processes_of(threads: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the globalPid of each globalTid of a column."""
    first, last = (process_of(thread or 0) for thread in pc.min_max(threads).as_py().values())
    return (
        repeated(first, len(threads)) if first == last else pc.bit_wise_and(threads, ~_THREAD_BITS)
    )


def repeated(value: int | None, n_rows: int) -> pa.ChunkedArray:
    """Return a column of one value, whose chunks are one and the same array."""
    kind = pa.bool_() if isinstance(value, bool) else pa.int64()
    chunk = pa.repeat(pa.scalar(value, kind), min(n_rows, _CHUNK_ROWS))
    whole, rest = divmod(n_rows, _CHUNK_ROWS)
    return pa.chunked_array([*[chunk] * whole, chunk[:rest]], kind)


def pid_of(global_pid: int) -> int:
    """Return the operating system's process id; right for negative ids too."""
    return (global_pid >> 24) & _PID_BITS


def main_thread_of(global_pid: int) -> int:
    """Return the globalTid of a process's first thread, which has its number."""
    return global_pid | pid_of(global_pid)


@contextlib.contextmanager
def _translated(path: Path) -> Iterator[None]:
    try:
        yield
    except _ENGINE_ERRORS as error:
        told = errors.shortage(error)
        if told is not None:
            raise told from error
        with _still_there(path), path.open("rb"):
            pass  # it can be opened: what is wrong is in it
        text = str(getattr(error, "orig", None) or error)
        if "locked" in text or "busy" in text.lower():
            problem = f"is locked by another program and {BEING_WRITTEN}"
            raise DamagedReportError(str(path), problem, fix=WAIT) from error
        detail = text.splitlines()[0][:160] if text else type(error).__name__
        if isinstance(error, pa.ArrowException):  # its words quote the value: maybe a secret
            detail = "a column holds a value that is not of its type"
        raise DamagedReportError(
            str(path), f"cannot be read as an nsys export ({detail})", fix=EXPORT_AGAIN
        ) from error


@contextlib.contextmanager
def _still_there(path: Path) -> Iterator[None]:
    try:
        with readable(path):
            yield
    except ReportNotFoundError as error:
        problem = "was deleted during reading"
        fix = "copy the report back, then start again"
        raise DamagedReportError(str(path), problem, fix=fix) from error
