"""SQLite through Arrow, and checks that tables hold their rows themselves, in pages of their own.

A report may come from anybody. Queries end, and rows fit into memory, because a table cannot have
more data than its file. That does not hold for views, virtual tables, generated columns, long
default values, and trees that share pages.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Container, Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO, Literal, NamedTuple

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
from nsyspipe.model.user_paths import AnyPath
from nsyspipe.nsys.files import EXPORT_AGAIN

# Arrow loads pandas on its first conversion, and loses a Ctrl-C during that time. This conversion
# makes it do so now, not while a report is read.
pa.array(np.empty(0))

# The file is not trusted: its schema must not call functions, and pages are checked before use.
_DISTRUST = ("PRAGMA trusted_schema = OFF", "PRAGMA cell_size_check = ON")
_BATCH_ROWS = {StatementOptions.BATCH_ROWS.value: "16384"}
_MIN_ROWS_COPIED = 256
# The version that SQLAlchemy may assume; ADBC 1.13 bundles SQLite 3.53.
_ENGINE_VERSION = (3, 40, 0)
_MAX_NAME_CHARS = 512
_MAX_ENTRIES = 20_000
# Kind, name, first page and the beginning of the SQL of each table, index, view and trigger.
_ENTRIES = (
    "SELECT coalesce(CAST(type AS TEXT), ''), "  # noqa: S608 - numbers of our own
    f"coalesce(CAST(substr(name, 1, {_MAX_NAME_CHARS + 1}) AS TEXT), ''), "
    "CAST(coalesce(rootpage, 0) AS INTEGER), "
    f"coalesce(CAST(substr(sql, 1, {3 * _MAX_NAME_CHARS}) AS TEXT), '') FROM sqlite_master LIMIT "
    f"{_MAX_ENTRIES + 1}"
)
_MAX_COLUMNS = 100_000
# Table, name, whether its values are computed, and length of its default value, of each column.
_COLUMNS = (
    "SELECT m.name, c.name, c.hidden, coalesce(length(c.dflt_value), 0) "  # noqa: S608
    "FROM sqlite_master AS m JOIN pragma_table_xinfo(m.name) AS c "
    f"WHERE m.type = 'table' AND m.rootpage > 0 ORDER BY m.name, c.cid LIMIT {_MAX_COLUMNS + 1}"
)
_MAX_DEFAULT_CHARS = 32

# Statements as SQLite stores them, whatever the user wrote.
_NAME = r"""(?P<name>"(?:[^"]|"")*"|\[[^\]]*\]|`(?:[^`]|``)*`|'(?:[^']|'')*'|[^\s("'`\[\].,;/-]+)"""
_STATEMENT = re.compile(
    rf"CREATE (?P<what>TABLE|VIRTUAL TABLE|VIEW|UNIQUE INDEX|INDEX|TRIGGER) {_NAME}(?![\w.])"
)
_INTERNAL = "sqlite_"

# Page 1 begins with the header of the file.
_FILE_HEADER = 100
# A page with pages below it has a header, and after it the places of its cells.
_PAGE_HEADER = 12
# The kinds of pages that have pages below them in a tree.
_INNER = (0x02, 0x05)
# Pages with a smaller gap between them are read at once, up to a number of bytes.
_MAX_GAP_BYTES = 65_536
_MAX_BYTES_AT_ONCE = 1_048_576


class _Connection(adbc_driver_manager.AdbcConnection):
    """A connection of ADBC for SQLAlchemy.

    The DB-API of ADBC is not used, because it loses a Ctrl-C at the end of a statement.
    """

    def __init__(self, uri: str) -> None:
        self._database = adbc_driver_sqlite.connect(uri)
        super().__init__(self._database)

    def cursor(self) -> _Cursor:
        return _Cursor(self)

    def close(self) -> None:
        # Ctrl-C may leave a statement open, which is closed when its owner is deleted.
        with contextlib.suppress(RuntimeError):
            super().close()
            self._database.close()


class _Cursor:
    """A statement and its complete result, as columns."""

    # Nothing is written.
    rowcount = -1

    def __init__(self, connection: _Connection) -> None:
        self._connection = connection
        self.table = pa.table({})

    @property
    def description(self) -> list[tuple[Any, ...]] | None:
        unknown = [None] * 6
        return [(name, *unknown) for name in self.table.column_names] or None

    def execute(self, sql: str, _parameters: object = None) -> None:
        with adbc_driver_manager.AdbcStatement(self._connection) as statement:
            statement.set_options(**_BATCH_ROWS)
            statement.set_sql_query(sql)
            stream, _ = statement.execute_query()
            with pa.RecordBatchReader.from_stream(stream) as reader:
                batches = map(_with_own_columns, reader)
                self.table = pa.Table.from_batches(batches, reader.schema)

    def close(self) -> None:
        pass


def release_memory() -> None:
    """Return freed memory to the system, because the driver and numpy leave holes in malloc's."""
    pa.system_memory_pool().release_unused()
    pa.default_memory_pool().release_unused()


def _with_own_columns(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a copy of a batch, in which each column can be freed by itself.

    The columns of a batch of the driver can only be freed together. A batch of few rows is returned
    as it is, because it has too little memory to be worth a copy.
    """
    if batch.num_rows < _MIN_ROWS_COPIED:
        return batch
    copies: list[pa.Array] = []
    for column in batch.columns:
        # Arrow copies an array when it is joined with another.
        no_rows = column[:0]
        copies.append(pa.concat_arrays([column, no_rows]))
    return pa.RecordBatch.from_arrays(copies, schema=batch.schema)


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
        """Pass on the URI as it is."""
        return [url.database or ""], {}

    def _get_server_version_info(
        self,
        connection: sa.Connection,  # noqa: ARG002
    ) -> tuple[int, ...]:
        return _ENGINE_VERSION

    def do_rollback(self, dbapi_connection: Any) -> None:  # noqa: ANN401, D102
        pass

    def get_isolation_level(
        self,
        dbapi_connection: Any,  # noqa: ANN401, ARG002
    ) -> Literal["SERIALIZABLE"]:
        """Return the only level of SQLite that matters to a reader."""
        return "SERIALIZABLE"


@contextlib.contextmanager
def connected(uri: str) -> Iterator[sa.Connection]:
    """Open an SQLite URI for this context. After it, no connection keeps the file open."""
    registry.register("sqlite.adbc", __name__, AdbcSqliteDialect.__name__)
    url = sa.URL.create("sqlite+adbc", database=uri)
    engine = sa.create_engine(url, poolclass=NullPool)
    try:
        with engine.connect() as connection:
            for pragma in _DISTRUST:
                fetch_arrow(connection, pragma)
            yield connection
    finally:
        engine.dispose()


def fetch_arrow(connection: sa.Connection, statement: str) -> pa.Table:
    """Execute a statement and return its result as an Arrow table; Ctrl-C waits for it.

    The driver's own cursor executes it: a result of SQLAlchemy takes longer than a small query.
    """
    cursor: Any = connection.connection.cursor()
    cursor.execute(statement)
    return cursor.table


def fetch_rows(connection: sa.Connection, statement: str) -> list[tuple[Any, ...]]:
    """Execute a statement with few rows, and return them."""
    table = fetch_arrow(connection, statement)
    columns = [column.to_pylist() for column in table.columns]
    return list(zip(*columns, strict=True))


def quoted(name: str) -> str:
    """Return a name in quotation marks for SQL, whatever characters it has."""
    return '"' + name.replace('"', '""') + '"'


def plain_tables(
    path: AnyPath, connection: sa.Connection, pages: Pages | None, is_needed: Callable[[str], bool]
) -> tuple[dict[str, list[str]], frozenset[str]]:
    """Return the columns of each plain table, and the names of views and virtual tables.

    A plain table holds its rows itself. `pages` follows the pages of all tables, and is None if
    that was done before. Raises `NotAReportError` if a table that `is_needed` is not plain, or has
    a column whose values are not in its rows. Raises `DamagedReportError` if the schema contradicts
    itself, which schemas of SQLite never do, or if tables share a page.
    """
    entries = [_Entry(*row) for row in fetch_rows(connection, _ENTRIES)]
    names_of_tables = _plain_names(path, entries, is_needed)
    if pages is not None:
        pages.add(entry.first_page for entry in entries if entry.first_page)
    columns = _read_columns(path, connection)
    needed_names = {entry.name for entry in entries if is_needed(entry.name)}
    for column in columns:
        if column.table in needed_names:
            _refuse_computed(path, column)
    selectable_names = {entry.name for entry in entries if entry.is_table_or_view}
    names_of_views = filter(_is_not_internal, selectable_names - names_of_tables)
    return _names_of_columns(columns, names_of_tables), frozenset(names_of_views)


def _names_of_columns(columns: Iterable[_Column], tables: Container[str]) -> dict[str, list[str]]:
    """Return the columns of some tables that hold values."""
    names_of_table: dict[str, list[str]] = {}
    for column in columns:
        if column.table in tables and not column.is_computed:
            names = names_of_table.setdefault(column.table, [])
            names.append(column.name)
    return names_of_table


class _Column(NamedTuple):
    """A column of a table."""

    table: str
    name: str
    is_computed: bool
    n_default_chars: int


def _read_columns(path: AnyPath, connection: sa.Connection) -> list[_Column]:
    columns = [_Column(*row) for row in fetch_rows(connection, _COLUMNS)]
    if len(columns) > _MAX_COLUMNS:
        raise DamagedReportError(str(path), "has too many columns", fix=EXPORT_AGAIN)
    return columns


def _refuse_computed(path: AnyPath, column: _Column) -> None:
    """Raise `NotAReportError` if rows may lack the values of a column.

    Such values are computed, or are a long default value that all rows share.
    """
    if not column.is_computed and column.n_default_chars <= _MAX_DEFAULT_CHARS:
        return
    why = "computes its values" if column.is_computed else "has a default value"
    problem = f"column {column.table}.{column.name} {why}, which no nsys export has"
    raise NotAReportError(str(path), problem, fix="nsys export --type=sqlite")


def _is_not_internal(name: str) -> bool:
    return not name.startswith(_INTERNAL)


class _Entry(NamedTuple):
    """An entry of the schema: a table, index, view or trigger."""

    kind: str
    name: str
    first_page: int
    # The beginning of the SQL; empty for indexes that SQLite makes by itself.
    statement: str

    @property
    def is_table_or_view(self) -> bool:
        """Whether SQL can select from it."""
        return self.kind in {"table", "view"}

    @property
    def holds_rows(self) -> bool:
        """Whether it is a table with its own pages, not a view or a virtual table."""
        match = _STATEMENT.match(self.statement)
        is_table = match is not None and match["what"] == "TABLE"
        return is_table and self.first_page > 0


def _plain_names(
    path: AnyPath, entries: Iterable[_Entry], is_needed: Callable[[str], bool]
) -> set[str]:
    """Return the names of the plain tables, without SQLite's own.

    Raises the errors of `plain_tables` about entries of the schema.
    """
    names_of_tables = set()
    # In small letters, because SQL ignores the case of names.
    names_so_far = set()
    for n_entries_before, entry in enumerate(entries):
        is_repeated = entry.is_table_or_view and entry.name.lower() in names_so_far
        is_beyond_limit = n_entries_before >= _MAX_ENTRIES
        if is_beyond_limit or is_repeated or _is_contradictory(entry):
            problem = "has a schema that no SQLite writes"
            raise DamagedReportError(str(path), problem, fix=EXPORT_AGAIN)
        if not entry.is_table_or_view:
            continue
        names_so_far.add(entry.name.lower())
        if entry.holds_rows:
            names_of_tables.add(entry.name)
        elif is_needed(entry.name):
            kind = "view" if entry.kind == "view" else "virtual table"
            raise in_place_of_a_table(path, entry.name, kind)
    return {name for name in names_of_tables if not name.lower().startswith(_INTERNAL)}


def _is_contradictory(entry: _Entry) -> bool:
    """Tell whether the SQL of an entry contradicts its kind, name or first page."""
    if len(entry.name) > _MAX_NAME_CHARS:
        return True
    match = _STATEMENT.match(entry.statement)
    if match is None:
        # SQLite makes some indexes by itself, without a statement.
        is_automatic_index = entry.kind == "index" and not entry.statement
        return not is_automatic_index
    # What the statement creates: ``TABLE``, ``VIRTUAL TABLE``, ``UNIQUE INDEX`` and so on. The last
    # word is the kind.
    created = match["what"]
    *_, kind = created.split()
    if kind.lower() != entry.kind:
        return True
    if _unquoted(match["name"]) != entry.name:
        return True
    has_no_pages = created in {"VIEW", "VIRTUAL TABLE"}
    return has_no_pages and entry.first_page != 0


def _unquoted(word: str) -> str:
    """Return a name of SQL without quotation marks around it.

    A mark that is doubled inside stands for one.
    """
    if word[0] not in "\"['`":
        return word
    # Of a name in brackets, this is the closing one.
    mark = word[-1]
    return word[1:-1].replace(2 * mark, mark)


def in_place_of_a_table(path: AnyPath, name: str, what: str) -> NotAReportError:
    """Return the error for a view or virtual table with the name of a table that is read."""
    problem = f"{name} is a {what}, not a table"
    return NotAReportError(str(path), problem, fix="nsys export --type=sqlite")


class Pages:
    """The pages of a database that were seen; each may be at only one place of one tree."""

    def __init__(self, path: AnyPath) -> None:
        self._path = path
        with Path(path).open("rb", buffering=0) as file:
            header = file.read(100)
        stated_size = int.from_bytes(header[16:18], "big")
        # 65536 does not fit into the two bytes of this field, so 1 stands for it.
        self._page_bytes = 65536 if stated_size == 1 else stated_size
        n_bytes = Path(path).stat().st_size
        n_pages = n_bytes // self._page_bytes if self._page_bytes else 0
        # Pages count from 1.
        self._is_seen = np.zeros(n_pages + 1, np.bool_)

    def add(self, roots: Iterable[int]) -> None:
        """Follow trees of pages down from their roots, one level after the other.

        Raises `DamagedReportError` if a page is reached twice, because a query might not end then.
        """
        with Path(self._path).open("rb", buffering=0) as file:
            # `_note` raises the error. The pages of a level are in ascending order.
            level = self._note(np.array(list(roots), np.int64))
            while level.size:
                runs = _runs(level, self._page_bytes)
                kinds = np.concatenate([self._kinds(file, run) for run in runs])
                has_children = np.isin(kinds, _INNER)
                no_pages = np.empty(0, np.int64)
                children = [self._children(file, page) for page in level[has_children].tolist()]
                level = self._note(np.concatenate([no_pages, *children]))

    def _kinds(self, file: BinaryIO, pages: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Return the kinds of ascending pages that are close together.

        The kind of a page is the first byte of its header; 0 if the file ends before it. All pages
        are read at once.
        """
        start_of_run = int(pages[0] - 1) * self._page_bytes
        # Counted from the start of the first of these pages.
        places_of_kinds = (pages - pages[0]) * self._page_bytes
        # In page 1 of the file, the header of the file comes first.
        places_of_kinds[pages == 1] += _FILE_HEADER
        n_bytes = int(places_of_kinds[-1]) + 1
        file.seek(start_of_run)
        data = np.frombuffer(file.read(n_bytes), np.uint8)
        kinds = np.zeros(pages.size, np.uint8)
        is_inside = places_of_kinds < data.size
        kinds[is_inside] = data[places_of_kinds[is_inside]]
        return kinds

    def _children(self, file: BinaryIO, number: int) -> NDArray[np.int64]:
        """Return the numbers of the pages below a page.

        A page has a header, then the places of its cells, then the cells. The bytes 3 and 4 of the
        header have the number of cells, and the bytes 8 to 11 the last child. The place of a cell
        has two bytes, and counts from the start of the page. A cell begins with the number of a
        child, in four bytes. All numbers have their high byte first.
        """
        file.seek((number - 1) * self._page_bytes)
        page = np.frombuffer(file.read(self._page_bytes), np.uint8)
        start_of_header = _FILE_HEADER if number == 1 else 0
        end_of_header = start_of_header + _PAGE_HEADER
        if page.size < end_of_header:
            return np.empty(0, np.int64)
        header = page[start_of_header:end_of_header]
        n_stated_cells = int(header[3]) << 8 | int(header[4])
        # A damaged page may state more cells than it has room for.
        n_places_with_room = (page.size - end_of_header) // 2
        n_cells = min(n_stated_cells, n_places_with_room)
        end_of_places = end_of_header + 2 * n_cells
        places_of_cells = page[end_of_header:end_of_places].view(">u2").astype(np.int64)
        is_inside = places_of_cells + 4 <= page.size
        place_of_last_child = start_of_header + 8
        places_of_children = np.append(places_of_cells[is_inside], place_of_last_child)
        # A row for each child, with the places of its four bytes.
        places_of_bytes = places_of_children[:, np.newaxis] + np.arange(4)
        children = page[places_of_bytes].view(">u4")[:, 0]
        return children.astype(np.int64)

    def _note(self, pages: NDArray[np.int64]) -> NDArray[np.int64]:
        """Note that pages were seen, and return those that the file has, in ascending order.

        Raises `DamagedReportError` if one of them was seen before, or is there twice.
        """
        exists = (pages > 0) & (pages < self._is_seen.size)
        existing = np.sort(pages[exists])
        # Equal pages are neighbors now. No page has the number 0, with which the first is compared.
        is_same_as_before = np.diff(existing, prepend=0) == 0
        repeated = existing[self._is_seen[existing] | is_same_as_before]
        if repeated.size:
            problem = f"is damaged (page {repeated[0]} is used twice)"
            raise DamagedReportError(str(self._path), problem, fix=EXPORT_AGAIN)
        self._is_seen[existing] = True
        return existing


def _runs(pages: NDArray[np.int64], page_bytes: int) -> list[NDArray[np.int64]]:
    """Split ascending pages into runs, each of which is read at once.

    A run ends where the next page is far away, or when it has as many pages as fit into the limit.
    """
    bytes_to_next_page = np.diff(pages) * page_bytes
    is_next_far = bytes_to_next_page > _MAX_GAP_BYTES
    first_after_gap = np.flatnonzero(is_next_far) + 1
    max_pages = max(_MAX_BYTES_AT_ONCE // page_bytes, 1)
    runs: list[NDArray[np.int64]] = []
    for close_pages in np.split(pages, first_after_gap):
        starts = range(0, close_pages.size, max_pages)
        runs += [close_pages[start : start + max_pages] for start in starts]
    return runs
