"""One report on its way into its copy: tables of numbers, and what stays behind of every table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nsyspipe.redaction.database import quoted
from nsyspipe.redaction.tables import (
    CHECKED,
    NUMBERS,
    base_name,
    class_of,
    is_known,
    known_columns,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from nsyspipe.read.report import Report
    from nsyspipe.redaction.database import Database
    from nsyspipe.redaction.removed import Removed

__all__ = ["UNKNOWN", "Copying", "copy_numbers", "count_left_behind", "number"]

_VIEWS = "views"
_UNKNOWN_TABLES, _UNKNOWN_COLUMNS = "unknown tables", "unknown columns"
# Classes whose every place is worth a word.
UNKNOWN = frozenset({_UNKNOWN_TABLES, _UNKNOWN_COLUMNS})
_HARDWARE = "serial numbers and places of hardware"
_HARDWARE_COLUMNS = {
    "busLocation", "chipName", "ctrlDevPath", "ctxswDevPath", "luid", "pwGpuId", "uuid",
}  # fmt: skip
_OTHER_COLUMNS = "columns that no answer needs"


@dataclass(frozen=True)
class Copying:
    """A report, its copy, and what was left behind.

    Attributes
    ----------
    on_rows
        Called with how many rows of the report's tables were copied so far.
    """

    report: Report
    database: Database
    removed: Removed
    on_rows: Callable[[int], None]

    def tables(self, base: str) -> list[str]:
        """Return the tables of the report that are called so, with or without a version."""
        return [table for table in self.report.tables if base_name(table) == base]

    def columns(self, table: str, known: tuple[str, ...]) -> list[str]:
        """Return those of some columns that a table of the report has."""
        return [name for name in known if name in self.report.tables[table]]

    def count(self, table: str, condition: str = "1") -> int:
        """Return how many rows of a table of the report meet a condition."""
        return self.database.number(
            f"SELECT count(*) FROM source.{quoted(table)} WHERE {condition}"  # noqa: S608
        )


def number(column: str) -> str:
    """Return the SQL of a column's value where that is a whole number: SQLite's columns take anything."""
    name = f"t.{quoted(column)}"
    return f"CASE typeof({name}) WHEN 'integer' THEN {name} END"


def copy_numbers(copying: Copying) -> None:
    """Copy the tables that hold nothing but numbers."""
    for base, known in NUMBERS.items():
        if base in CHECKED:
            continue
        for table in copying.tables(base):
            columns = copying.columns(table, known)
            if columns:
                copying.database.create(table, dict.fromkeys(columns, "INTEGER"))
                values = {name: number(name) for name in columns}
                copying.database.fill(table, values, on_row=copying.on_rows)


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
    found = copying.database.numbers(f"SELECT {counts} FROM source.{quoted(table)}")  # noqa: S608
    for name, n in zip(left, found, strict=True):
        if name not in known_columns(base):
            kind = _UNKNOWN_COLUMNS
        else:
            kind = _HARDWARE if name in _HARDWARE_COLUMNS else _OTHER_COLUMNS
        copying.removed.add(kind, f"{base}.{name}", n, "values")
