"""The copy of one report in the making: a new database beside a read-only one, tables of numbers, what was left behind."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import sqlalchemy as sa

from nsyspipe.errors import OutputError
from nsyspipe.nsys.files import check_file
from nsyspipe.redact.tables import CHECKED, NUMBERS, base_name, class_of, is_known, known_columns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from nsyspipe.reader.report import Report


# Rows per statement: few enough that Ctrl-C and a progress bar need not wait long.
_CHUNK_ROWS = 50_000
# Where the header of an SQLite file says how its texts are encoded.
_HEADER_BYTES, _ENCODING_AT = 100, slice(56, 60)
_ENCODINGS = {2: "UTF-16le", 3: "UTF-16be"}
# SQLite's codes for what goes wrong with the file that is written: read-only, full, and i/o errors of writing, of
# flushing, of changing the size.
_WRITE_ERRORS = {8, 13, 778, 1034, 1546}

_VIEWS = "views"
_UNKNOWN_TABLES, _UNKNOWN_COLUMNS = "unknown tables", "unknown columns"
# Classes whose every place is worth a word.
UNKNOWN = frozenset({_UNKNOWN_TABLES, _UNKNOWN_COLUMNS})
_HARDWARE = "serial numbers and places of hardware"
_HARDWARE_COLUMNS = {
    "busLocation", "chipName", "ctrlDevPath", "ctxswDevPath", "luid", "pwGpuId", "uuid",
}  # fmt: skip
_OTHER_COLUMNS = "columns that no answer needs"


@dataclass(frozen=True, order=True)
class Amount:
    """How much was left behind in one place: a class, a table or column, and the number of its rows or values."""

    kind: str
    place: str
    n: int
    unit: str


@dataclass
class Removed:
    """What was left behind so far, of one report or of several.

    Attributes
    ----------
    n_named
        Kept texts that still hold a name that was removed elsewhere.
    """

    n_named: int = 0
    _amounts: dict[tuple[str, str, str], int] = field(default_factory=dict)

    def add(self, kind: str, place: str, n: int, unit: str = "rows") -> None:
        """Count something; nothing is noted for zero."""
        if n:
            key = kind, place, unit
            self._amounts[key] = self._amounts.get(key, 0) + n

    def update(self, other: Removed) -> None:
        """Add what another one counted."""
        self.n_named += other.n_named
        for (kind, place, unit), n in other._amounts.items():
            self.add(kind, place, n, unit)

    def amounts(self) -> list[Amount]:
        """Return all amounts, sorted by class and place."""
        return sorted(
            Amount(kind, place, n, unit) for (kind, place, unit), n in self._amounts.items()
        )


class Checked(NamedTuple):
    """A column that is copied after a look at its values: its type, what stays by row, and SQL for all other rows."""

    kind: str
    values: Iterable[tuple[int, Any]]
    otherwise: str = "NULL"


@dataclass(frozen=True)
class Copying:
    """A report, the copy in the making with the report attached as ``source``, and what was left behind.

    Names of tables and columns come from the list of `tables`, or are quoted.

    Attributes
    ----------
    on_rows
        Called with the number of the last row of a table that was copied.
    """

    report: Report
    connection: sa.Connection
    removed: Removed = field(default_factory=Removed)
    on_rows: Callable[[int], None] = lambda _: None

    def tables(self, base: str) -> list[str]:
        """Return the tables of the report that are called so, with or without a version."""
        return [table for table in self.report.tables if base_name(table) == base]

    def columns(self, table: str, known: tuple[str, ...]) -> list[str]:
        """Return those of some columns that a table of the report has."""
        return [name for name in known if name in self.report.tables[table]]

    def run(self, statement: str) -> sa.CursorResult[Any]:
        """Run a statement."""
        return self.connection.exec_driver_sql(statement)

    def number(self, statement: str) -> int:
        """Return the one number that a statement returns; 0 for NULL."""
        return int(self.run(statement).scalar() or 0)

    def count(self, table: str, condition: str = "1", *, of: str = "source") -> int:
        """Return how many rows of a table of the report, or of the copy, meet a condition."""
        return self.number(f"SELECT count(*) FROM {of}.{quoted(table)} WHERE {condition}")  # noqa: S608

    def create(
        self, table: str, columns: Mapping[str, str], rows: Iterable[Sequence[Any]] = ()
    ) -> int:
        """Make a table of the copy, type by column, and return how many rows it got."""
        definitions = ", ".join(f"{quoted(name)} {kind}" for name, kind in columns.items())
        self.run(f"CREATE TABLE main.{quoted(table)} ({definitions})")
        return self._insert(f"main.{quoted(table)}", rows)

    def scratch(self, table: str, definition: str, rows: Iterable[Sequence[Any]] = ()) -> None:
        """Make a table in memory anew, and fill it."""
        self.run(f"DROP TABLE IF EXISTS temp.{table}")
        self.run(f"CREATE TEMP TABLE {table} ({definition})")
        self._insert(f"temp.{table}", rows)

    def _insert(self, table: str, rows: Iterable[Sequence[Any]]) -> int:
        found = [tuple(row) for row in rows]
        if found:
            marks = ", ".join("?" * len(found[0]))
            self.connection.exec_driver_sql(f"INSERT INTO {table} VALUES ({marks})", found)  # noqa: S608
        return len(found)

    def copy(self, table: str, checked: Mapping[str, Checked] | None = None) -> None:
        """Copy a table of the report: its columns of numbers, and those whose values were looked at."""
        columns = self.columns(table, NUMBERS[base_name(table)])
        kinds = dict.fromkeys(columns, "INTEGER")
        values = {name: number(name) for name in columns}
        joins = ""
        for name, column in (checked or {}).items():
            if name in self.report.tables[table]:
                self.scratch(f"of_{name}", "row INTEGER PRIMARY KEY, value", column.values)
                joins += f" LEFT JOIN temp.of_{name} ON of_{name}.row = t.rowid"
                kinds[name] = column.kind
                values[name] = (
                    f"CASE WHEN of_{name}.row IS NULL THEN {column.otherwise} ELSE of_{name}.value END"
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
            f"SELECT t.rowid, {', '.join(values.values())} FROM source.{quoted(table)} AS t {joins} "
            f"WHERE t.rowid > :last AND ({where}) ORDER BY t.rowid LIMIT {_CHUNK_ROWS}"
        )
        last = -(2**63)
        while self.connection.execute(sa.text(statement), {"last": last}).rowcount:
            last = self.number(f"SELECT max(rowid) FROM main.{quoted(table)}")  # noqa: S608
            self.on_rows(last)


def quoted(name: str) -> str:
    """Return a name as SQL takes it, whatever is in it."""
    return '"' + name.replace('"', '""') + '"'


def number(column: str) -> str:
    """Return the SQL of a column's value where that is a whole number: SQLite's columns take anything."""
    name = f"t.{quoted(column)}"
    return f"CASE typeof({name}) WHEN 'integer' THEN {name} END"


@contextlib.contextmanager
def opened(report: Path, copy: Path | None) -> Iterator[sa.Connection]:
    """Open a new database, in an empty file or in memory, with a report attached; what was written is complete at the end.

    Raises
    ------
    ReportNotFoundError, NotAReportError, DamagedReportError
        As `files.check_file` does.
    OutputError
        If the copy cannot be written.
    """
    _, flags = check_file(report)
    name = "file::memory:" if copy is None else copy.absolute().as_uri()
    url = sa.URL.create("sqlite+pysqlite", database=name, query={"uri": "true"})
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT", poolclass=sa.pool.NullPool)
    # Two databases that are open together must be of one encoding.
    with report.open("rb") as file:
        number_of = int.from_bytes(file.read(_HEADER_BYTES)[_ENCODING_AT], "big")
    encoding = _ENCODINGS.get(number_of, "UTF-8")
    try:
        with _written(copy), engine.connect() as connection:
            # The report's schema is not to be trusted. The copy has its final name only when it is whole: nothing is ever
            # to be rolled back.
            for setting in (
                "trusted_schema = OFF", "temp_store = MEMORY", f"main.encoding = '{encoding}'",
                "main.journal_mode = OFF", "main.synchronous = OFF", "main.secure_delete = ON",
            ):  # fmt: skip
                connection.exec_driver_sql(f"PRAGMA {setting}")
            source = f"{report.absolute().as_uri()}?{flags}"
            connection.exec_driver_sql("ATTACH ? AS source", (source,))
            connection.exec_driver_sql("BEGIN")
            yield connection
            connection.exec_driver_sql("COMMIT")
            connection.exec_driver_sql("DETACH source")
    finally:
        engine.dispose()


@contextlib.contextmanager
def _written(copy: Path | None) -> Iterator[None]:
    """Tell what goes wrong with the copy from what is wrong with the report."""
    try:
        yield
    except sa.exc.DBAPIError as error:
        code = getattr(error.orig, "sqlite_errorcode", 0)
        if copy is None or code not in _WRITE_ERRORS:
            raise
        problem = f"cannot be written ({error.orig})"
        raise OutputError(str(copy.parent), problem, fix="another disk or directory") from error


def copy_numbers(copying: Copying) -> None:
    """Copy the tables that hold nothing but numbers."""
    for base in NUMBERS:
        if base not in CHECKED:
            for table in copying.tables(base):
                copying.copy(table)


def count_left_behind(copying: Copying) -> None:
    """Count the tables and columns that stay behind as a whole."""
    for table in copying.report.views:
        copying.removed.add(_VIEWS, table, 1, "views")
    for table, columns in copying.report.tables.items():
        base = base_name(table)
        if not is_known(base):
            copying.removed.add(_UNKNOWN_TABLES, table, copying.count(table))
        elif kind := class_of(base):
            copying.removed.add(kind, base, copying.count(table))
        elif base in NUMBERS or not known_columns(base).issuperset(columns):
            _count_columns(copying, table, base)


def _count_columns(copying: Copying, table: str, base: str) -> None:
    copied = {*NUMBERS.get(base, ()), *CHECKED.get(base, ())}
    left = [name for name in copying.report.tables[table] if name not in copied]
    if not left:
        return
    counts = ", ".join(f"count({quoted(name)})" for name in left)
    found = copying.run(f"SELECT {counts} FROM source.{quoted(table)}").one()  # noqa: S608
    for name, n in zip(left, found, strict=True):
        if name not in known_columns(base):
            kind = _UNKNOWN_COLUMNS
        else:
            kind = _HARDWARE if name in _HARDWARE_COLUMNS else _OTHER_COLUMNS
        copying.removed.add(kind, f"{base}.{name}", int(n or 0), "values")
