"""SQLite through Arrow, and which tables of a database hold their rows themselves, in pages that are theirs alone.

A report may come from anybody. Queries end, and rows fit into memory, because a table can hold no
more than its file; but views, virtual tables, generated columns, long default values, and trees of
pages that meet again can.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO, Literal

import adbc_driver_manager
import adbc_driver_sqlite
import numpy as np
import pyarrow as pa
import sqlalchemy as sa
from adbc_driver_sqlite import StatementOptions
from numpy.typing import NDArray
from sqlalchemy.dialects import registry
from sqlalchemy.dialects.sqlite.base import SQLiteDialect
from sqlalchemy.pool import NullPool

from nsyspipe.errors import DamagedReportError, NotAReportError
from nsyspipe.nsys.files import EXPORT_AGAIN

# Arrow loads pandas on its first conversion, and loses a Ctrl-C that comes meanwhile: now, not
# while a report is read.
pa.array(np.empty(0))

# What a file says of itself is not believed: its schema calls no functions, and pages are looked at
# before they are used.
_DISTRUST = ("PRAGMA trusted_schema = OFF", "PRAGMA cell_size_check = ON")
_BATCH_ROWS = {StatementOptions.BATCH_ROWS.value: "16384"}
_LEAST_ROWS_COPIED = 256
_ENGINE_VERSION = (
    3,
    40,
    0,
)  # what SQLAlchemy may assume of the engine; ADBC 1.13 bundles SQLite 3.53
# Of each table, index, view and trigger: kind, name, first page, beginning of the statement that
# made it.
_LONGEST_NAME = 512
_MOST_ENTRIES = 20_000
_ENTRIES = (
    "SELECT coalesce(CAST(type AS TEXT), ''), "  # noqa: S608 - numbers of our own
    f"coalesce(CAST(substr(name, 1, {_LONGEST_NAME + 1}) AS TEXT), ''), "
    "CAST(coalesce(rootpage, 0) AS INTEGER), "
    f"coalesce(CAST(substr(sql, 1, {3 * _LONGEST_NAME}) AS TEXT), '') FROM sqlite_master LIMIT "
    f"{_MOST_ENTRIES + 1}"
)
# Of each column of a table: table, name, whether it computes, length of its default value.
_MOST_COLUMNS = 100_000
_COLUMNS = (
    "SELECT m.name, c.name, c.hidden, coalesce(length(c.dflt_value), 0) "  # noqa: S608
    "FROM sqlite_master AS m JOIN pragma_table_xinfo(m.name) AS c "
    f"WHERE m.type = 'table' AND m.rootpage > 0 ORDER BY m.name, c.cid LIMIT {_MOST_COLUMNS + 1}"
)
_LONGEST_DEFAULT = 32

# As SQLite writes it down, whatever the user wrote.
_NAME = r"""(?P<name>"(?:[^"]|"")*"|\[[^\]]*\]|`(?:[^`]|``)*`|'(?:[^']|'')*'|[^\s("'`\[\].,;/-]+)"""
_STATEMENT = re.compile(
    rf"CREATE (?P<what>TABLE|VIRTUAL TABLE|VIEW|UNIQUE INDEX|INDEX|TRIGGER) {_NAME}(?![\w.])"
)
_INTERNAL = "sqlite_"

# Page 1 begins with the file's header; of the four kinds of a tree's pages these have pages below
# them.
_FILE_HEADER = 100
_INNER = (0x02, 0x05)
# What lies between two pages is read with them if it is less than this; no more is read at once
# than that.
_FAR_BYTES = 65_536
_MOST_AT_ONCE = 1_048_576


class _Connection(adbc_driver_manager.AdbcConnection):
    """ADBC's connection as SQLAlchemy asks for one; ADBC's own DB-API loses a Ctrl-C that comes as a statement ends."""

    def __init__(self, uri: str) -> None:
        self._database = adbc_driver_sqlite.connect(uri)
        super().__init__(self._database)

    def cursor(self) -> _Cursor:
        return _Cursor(self)

    def close(self) -> None:
        with contextlib.suppress(
            RuntimeError
        ):  # Ctrl-C may leave a statement open, which ends with what holds it
            super().close()
            self._database.close()


class _Cursor:
    """One statement and its whole result, as columns."""

    rowcount = -1  # nothing is written

    def __init__(self, connection: _Connection) -> None:
        self._connection = connection
        self.table = pa.table({})

    @property
    def description(self) -> list[tuple[Any, ...]] | None:
        return [(name, *[None] * 6) for name in self.table.column_names] or None

    def execute(self, sql: str, _parameters: object = None) -> None:
        with adbc_driver_manager.AdbcStatement(self._connection) as statement:
            statement.set_options(**_BATCH_ROWS)
            statement.set_sql_query(sql)
            stream, _ = statement.execute_query()
            with pa.RecordBatchReader.from_stream(stream) as reader:
                self.table = pa.Table.from_batches(map(_apart, reader), reader.schema)

    def close(self) -> None:
        pass


def release_memory() -> None:
    """Give the system back what was freed: the driver and numpy leave holes in what malloc holds."""
    pa.system_memory_pool().release_unused()
    pa.default_memory_pool().release_unused()


def _apart(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Copy a batch: the driver's columns are freed together, when the last is, and these each by itself.

    A batch of few rows is returned as it is, because it holds too little memory to be worth a copy.
    """
    if batch.num_rows < _LEAST_ROWS_COPIED:
        return batch
    columns = [pa.concat_arrays([column, column[:0]]) for column in batch.columns]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


class AdbcSqliteDialect(SQLiteDialect):
    """``sqlite+adbc``: SQLite through Arrow Database Connectivity, for reading."""

    driver = "adbc"
    supports_statement_cache = True

    @classmethod
    def import_dbapi(cls) -> ModuleType:
        """Return what SQLAlchemy asks of a driver's module."""
        module = ModuleType("nsyspipe_adbc")
        error = adbc_driver_manager.Error
        version = _ENGINE_VERSION
        module.__dict__.update(
            connect=_Connection, Error=error, paramstyle="qmark", sqlite_version_info=version
        )
        return module

    def create_connect_args(self, url: sa.URL) -> tuple[list[str], dict[str, Any]]:
        """Hand the URI over as it is."""
        return [url.database or ""], {}

    def _get_server_version_info(self, connection: sa.Connection) -> tuple[int, ...]:  # noqa: ARG002
        return _ENGINE_VERSION

    def do_rollback(self, dbapi_connection: Any) -> None:  # noqa: ANN401, D102
        pass

    def get_isolation_level(self, dbapi_connection: Any) -> Literal["SERIALIZABLE"]:  # noqa: ANN401, ARG002
        """SQLite's only level that matters to a reader."""
        return "SERIALIZABLE"


@contextlib.contextmanager
def connected(uri: str) -> Iterator[sa.Connection]:
    """Open an SQLite URI, and close it: no connection is kept, which would hold the file."""
    registry.register("sqlite.adbc", __name__, AdbcSqliteDialect.__name__)
    engine = sa.create_engine(sa.URL.create("sqlite+adbc", database=uri), poolclass=NullPool)
    try:
        with engine.connect() as connection:
            for pragma in _DISTRUST:
                connection.exec_driver_sql(pragma).close()
            yield connection
    finally:
        engine.dispose()


def fetch_arrow(connection: sa.Connection, statement: str) -> pa.Table:
    """Execute a statement and return its result as an Arrow table, without making a Python row; Ctrl-C waits for it."""
    result = connection.exec_driver_sql(statement)
    cursor: Any = result.cursor
    result.close()
    return cursor.table


def fetch_rows(connection: sa.Connection, statement: str) -> list[tuple[Any, ...]]:
    """Execute a statement with few rows, and return them."""
    return list(
        zip(
            *(column.to_pylist() for column in fetch_arrow(connection, statement).columns),
            strict=True,
        )
    )


def quoted(name: str) -> str:
    """Return a name as SQL takes it, whatever is in it."""
    return '"' + name.replace('"', '""') + '"'


def plain_tables(
    path: Path, connection: sa.Connection, pages: Pages | None, is_needed: Callable[[str], bool]
) -> tuple[dict[str, list[str]], frozenset[str]]:
    """Return the columns of the tables that hold their rows themselves, and the names of what else looks like one.

    `NotAReportError` if what stands in the place of one that `is_needed`, or of a column of it,
    holds no values of its own; `DamagedReportError` if the schema contradicts itself, as SQLite's
    own never does.
    """
    entries = fetch_rows(connection, _ENTRIES)
    plain = _plain_names(path, entries, is_needed)
    if pages is not None:
        pages.add(first_page for _, _, first_page, _ in entries if first_page)
    needed = {name for _, name, *_ in entries if is_needed(name)}
    columns: dict[str, list[str]] = {}
    for number, (table, name, hidden, default) in enumerate(fetch_rows(connection, _COLUMNS)):
        if number >= _MOST_COLUMNS:
            raise DamagedReportError(str(path), "has too many columns", fix=EXPORT_AGAIN)
        if table in needed and (hidden or default > _LONGEST_DEFAULT):
            why = "computes its values" if hidden else "has a default value"
            problem = f"column {table}.{name} {why}, which no nsys export has"
            raise NotAReportError(str(path), problem, fix="nsys export --type=sqlite")
        if table in plain and not hidden:
            columns.setdefault(table, []).append(name)
    others = {name for kind, name, *_ in entries if kind in {"table", "view"}} - plain
    return columns, frozenset(one for one in others if not one.startswith(_INTERNAL))


def _plain_names(
    path: Path, entries: Iterable[tuple[Any, ...]], is_needed: Callable[[str], bool]
) -> set[str]:
    plain = set()
    seen = set()
    for number, (kind, name, first_page, statement) in enumerate(entries):
        made = _STATEMENT.match(statement)
        is_odd = number >= _MOST_ENTRIES or len(name) > _LONGEST_NAME
        if made is None:
            is_odd |= (
                bool(statement) or kind != "index"
            )  # SQLite makes indexes of its own, without a statement
        else:
            word = made["name"]  # in quotation marks, of which those inside are doubled
            unquoted = word[1:-1].replace(2 * word[-1], word[-1]) if word[0] in "\"['`" else word
            is_odd |= made["what"].split()[-1].lower() != kind or unquoted != name
            is_odd |= made["what"] in {"VIEW", "VIRTUAL TABLE"} and first_page != 0
        if kind in {"table", "view"}:
            is_odd |= name.lower() in seen
            seen.add(name.lower())
        if is_odd:
            raise DamagedReportError(
                str(path), "has a schema that no SQLite writes", fix=EXPORT_AGAIN
            )
        if made is None or kind not in {"table", "view"}:
            continue
        if made["what"] == "TABLE" and first_page > 0:
            plain.add(name)
        elif is_needed(name):
            raise in_place_of_a_table(path, name, "view" if kind == "view" else "virtual table")
    return {name for name in plain if not name.lower().startswith(_INTERNAL)}


def in_place_of_a_table(path: Path, name: str, what: str) -> NotAReportError:
    """Return the error for something else than a table where one is to be read."""
    problem = f"{name} is a {what}, not a table"
    return NotAReportError(str(path), problem, fix="nsys export --type=sqlite")


class Pages:
    """The pages of a database that were seen: each may belong to one tree, and to one place in it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with path.open("rb", buffering=0) as file:
            header = file.read(100)
        size = int.from_bytes(header[16:18], "big")
        self._size = 65536 if size == 1 else size
        self._seen = np.zeros(path.stat().st_size // self._size + 1 if self._size else 1, np.bool_)

    def add(self, roots: Iterable[int]) -> None:
        """Follow trees from their first pages down; `DamagedReportError` if two ways lead to one page: a query might not end."""
        with self._path.open("rb", buffering=0) as file:
            level = self._new(np.array(list(roots), np.int64))
            while level.size:
                kinds = np.concatenate([self._kinds(file, run) for run in _runs(level, self._size)])
                children = [
                    self._children(file, page) for page in level[np.isin(kinds, _INNER)].tolist()
                ]
                level = self._new(np.concatenate([np.empty(0, np.int64), *children]))

    def _kinds(self, file: BinaryIO, pages: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Return the kinds of pages that lie close together, in ascending order; 0 behind the end of the file."""
        places = (pages - pages[0]) * self._size
        places[pages == 1] += _FILE_HEADER
        file.seek(int(pages[0] - 1) * self._size)
        read = np.frombuffer(file.read(int(places[-1]) + 1), np.uint8)
        found = np.zeros(pages.size, np.uint8)
        is_there = places < read.size
        found[is_there] = read[places[is_there]]
        return found

    def _children(self, file: BinaryIO, number: int) -> NDArray[np.int64]:
        file.seek((number - 1) * self._size)
        page = np.frombuffer(file.read(self._size), np.uint8)
        start = _FILE_HEADER if number == 1 else 0
        if page.size < start + 12:
            return np.empty(0, np.int64)
        n_cells = min(
            int(page[start + 3]) << 8 | int(page[start + 4]), (page.size - start - 12) // 2
        )
        cells = page[start + 12 : start + 12 + 2 * n_cells].view(">u2").astype(np.int64)
        places = np.append(cells[cells + 4 <= page.size], start + 8)
        return page[places[:, np.newaxis] + np.arange(4)].view(">u4")[:, 0].astype(np.int64)

    def _new(self, pages: NDArray[np.int64]) -> NDArray[np.int64]:
        """Note pages, and return those that the file has, in ascending order."""
        found = np.sort(pages[(pages > 0) & (pages < self._seen.size)])
        again = found[self._seen[found] | (np.diff(found, prepend=0) == 0)]
        if again.size:
            problem = f"is damaged (page {again[0]} is used twice)"
            raise DamagedReportError(str(self._path), problem, fix=EXPORT_AGAIN)
        self._seen[found] = True
        return found


def _runs(pages: NDArray[np.int64], size: int) -> list[NDArray[np.int64]]:
    """Cut pages in ascending order where the next is far, so that each part is read at once."""
    parts = np.split(pages, np.flatnonzero(np.diff(pages) * size > _FAR_BYTES) + 1)
    most = max(_MOST_AT_ONCE // size, 1)
    return [part[at : at + most] for part in parts for at in range(0, part.size, most)]
