"""Which tables of a database hold their rows themselves, in pages that are theirs alone.

A report may come from anybody. Queries end, and rows fit into memory, because a table can hold no more than its
file: that is so of tables, but not of views, virtual tables, generated columns, long default values, and trees of
pages that meet again.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nsyspipe.errors import DamagedReportError, NotAReportError
from nsyspipe.read.file_check import EXPORT_AGAIN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

__all__ = [
    "COLUMNS",
    "ENTRIES",
    "Entry",
    "Pages",
    "check_columns",
    "in_place_of_a_table",
    "plain_tables",
]

# Of each table, index, view and trigger: type, name, first page, beginning of the statement that made it.
_LONGEST_NAME, _MOST_ENTRIES = 512, 20_000
ENTRIES = (
    f"SELECT coalesce(CAST(type AS TEXT), ''), coalesce(CAST(substr(name, 1, {_LONGEST_NAME + 1}) AS TEXT), ''), "  # noqa: S608
    "CAST(coalesce(rootpage, 0) AS INTEGER), "
    f"coalesce(CAST(substr(sql, 1, {3 * _LONGEST_NAME}) AS TEXT), '') FROM sqlite_master LIMIT {_MOST_ENTRIES + 1}"
)
# Of each column of a table: table, name, whether it computes, length of its default value.
_MOST_COLUMNS = 100_000
COLUMNS = (
    "SELECT m.name, c.name, c.hidden, coalesce(length(c.dflt_value), 0) "  # noqa: S608
    "FROM sqlite_master AS m JOIN pragma_table_xinfo(m.name) AS c "
    f"WHERE m.type = 'table' AND m.rootpage > 0 ORDER BY m.name, c.cid LIMIT {_MOST_COLUMNS + 1}"
)
_LONGEST_DEFAULT = 32

# As SQLite writes it down, whatever the user wrote.
_NAME = r"""(?:"(?P<a>(?:[^"]|"")*)"|\[(?P<b>[^\]]*)\]|`(?P<c>(?:[^`]|``)*)`|'(?P<d>(?:[^']|'')*)'|(?P<e>[^\s("'`\[\].,;/-]+))"""
_STATEMENT = re.compile(
    rf"CREATE (?P<what>TABLE|VIRTUAL TABLE|VIEW|UNIQUE INDEX|INDEX|TRIGGER) {_NAME}(?![\w.])"
)
_TYPES = {
    "TABLE": "table", "VIRTUAL TABLE": "table", "VIEW": "view", "INDEX": "index", "UNIQUE INDEX": "index",
    "TRIGGER": "trigger",
}  # fmt: skip
_INTERNAL = "sqlite_"


@dataclass(frozen=True)
class Entry:
    """A row of a database's schema, as `ENTRIES` selects it."""

    type: str
    name: str
    first_page: int
    statement: str


def plain_tables(
    path: Path, entries: Iterable[Entry], is_needed: Callable[[str], bool]
) -> frozenset[str]:
    """Return the names of the tables that hold their rows themselves.

    Parameters
    ----------
    is_needed
        Whether a table of that name is to be read: nothing else may stand in its place.

    Raises
    ------
    NotAReportError
        If a view or a virtual table does.
    DamagedReportError
        If the schema contradicts itself, as SQLite's own never does.
    """
    plain, seen = set(), set()
    for number, entry in enumerate(entries):
        made = _STATEMENT.match(entry.statement)
        is_odd = number >= _MOST_ENTRIES or len(entry.name) > _LONGEST_NAME
        if made is None:
            # SQLite makes indexes of its own, without a statement.
            is_odd |= bool(entry.statement) or entry.type != "index"
        else:
            is_odd |= _TYPES[made["what"]] != entry.type or _name_in(made) != entry.name
            is_odd |= made["what"] in {"VIEW", "VIRTUAL TABLE"} and entry.first_page != 0
        if entry.type in {"table", "view"}:
            is_odd |= entry.name.lower() in seen
            seen.add(entry.name.lower())
        if is_odd:
            problem = "has a schema that no SQLite writes"
            raise DamagedReportError(str(path), problem, fix=EXPORT_AGAIN)
        if made is None or entry.type not in {"table", "view"}:
            continue
        if made["what"] == "TABLE" and entry.first_page > 0:
            plain.add(entry.name)
        elif is_needed(entry.name):
            what = "view" if entry.type == "view" else "virtual table"
            raise in_place_of_a_table(path, entry.name, what)
    return frozenset(name for name in plain if not name.lower().startswith(_INTERNAL))


def in_place_of_a_table(path: Path, name: str, what: str) -> NotAReportError:
    """Return the error for something else than a table where one is to be read."""
    problem = f"{name} is no table but a {what}, and what it shows is not known"
    return NotAReportError(str(path), problem, fix="nsys export --type=sqlite")


def _name_in(made: re.Match[str]) -> str:
    quoted = {"a": '"', "b": "", "c": "`", "d": "'", "e": ""}
    for group, mark in quoted.items():
        if (found := made[group]) is not None:
            return found.replace(2 * mark, mark) if mark else found
    return ""


def check_columns(
    path: Path, columns: Iterable[tuple[str, str, int, int]], is_needed: Callable[[str], bool]
) -> None:
    """Refuse columns that hold no values of their own.

    Parameters
    ----------
    columns
        Table, name, what `COLUMNS` says of computing, and the length of the default value.

    Raises
    ------
    NotAReportError
        If a column of a table that is to be read computes its values, or has a default that fills rows with text.
    DamagedReportError
        If there are more columns than any export has.
    """
    for number, (table, name, hidden, default) in enumerate(columns):
        if number >= _MOST_COLUMNS:
            raise DamagedReportError(str(path), "has too many columns", fix=EXPORT_AGAIN)
        if not is_needed(table) or not (hidden or default > _LONGEST_DEFAULT):
            continue
        why = "computes its values" if hidden else "has a default value"
        problem = f"{table}.{name} {why}, as no column of an nsys export does"
        raise NotAReportError(str(path), problem, fix="nsys export --type=sqlite")


class Pages:
    """The pages of a database that were seen: each may belong to one tree, and to one place in it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with path.open("rb", buffering=0) as file:
            header = file.read(100)
        size = int.from_bytes(header[16:18], "big")
        self._size = 65536 if size == 1 else size
        self._seen = bytearray(path.stat().st_size // self._size + 1 if self._size else 1)

    def add(self, roots: Iterable[int]) -> None:
        """Follow trees from their first pages down.

        Raises
        ------
        DamagedReportError
            If two ways lead to one page: a query could go round for ever.

        Notes
        -----
        Of most pages one byte is read, the kind; what else is wrong with them, SQLite finds itself.
        """
        with self._path.open("rb", buffering=0) as file:
            read, size, at_end = file.read, self._size, len(self._seen)
            level = self._new(roots)
            while level:
                children: list[int] = []
                for page in level:
                    if not 0 < page < at_end:
                        continue
                    start = 100 if page == 1 else 0
                    file.seek((page - 1) * size + start)
                    if read(1) not in {b"\x02", b"\x05"}:
                        continue
                    file.seek((page - 1) * size)
                    children += _children(read(size), start)
                level = self._new(children)

    def _new(self, pages: Iterable[int]) -> list[int]:
        found = []
        for page in pages:
            if 0 < page < len(self._seen):
                if self._seen[page]:
                    problem = f"is damaged: page {page} has two places in it"
                    raise DamagedReportError(str(self._path), problem, fix=EXPORT_AGAIN)
                self._seen[page] = 1
                found.append(page)
        return found


def _children(page: bytes, start: int) -> list[int]:
    """Return the pages below one that has some."""
    if len(page) < start + 12:
        return []
    n_cells, last = (
        struct.unpack_from(">H", page, start + 3)[0],
        struct.unpack_from(">I", page, start + 8)[0],
    )
    n_cells = min(n_cells, (len(page) - start - 12) // 2)
    cells = struct.unpack_from(f">{n_cells}H", page, start + 12)
    return [struct.unpack_from(">I", page, at)[0] for at in cells if at + 4 <= len(page)] + [last]
