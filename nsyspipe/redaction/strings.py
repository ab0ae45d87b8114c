"""The string table: names of kernels and NVTX ranges, and those of CUDA's calls that look like one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsyspipe.read import versions
from nsyspipe.redaction.copying import number
from nsyspipe.redaction.database import quoted

if TYPE_CHECKING:
    import re

    from nsyspipe.redaction.copying import Copying

__all__ = ["copy_strings", "count_named"]

_KIND = "strings that no kernel, range or CUDA call is named by"
# Where ids of names stand whose texts stay, whatever they are.
_NAMED = (
    (versions.KERNEL, "shortName"),
    (versions.KERNEL, "demangledName"),
    (versions.NVTX, "textId"),
)
_CALLED = (versions.RUNTIME, "nameId")
# cudaLaunchKernel_v7000, cuMemcpyAsync_v2_ptsz
_LONGEST_CALL = 128
_CALL = (
    "(t.value GLOB 'cuda[A-Z]*' OR t.value GLOB 'cu[A-Z]*') AND t.value NOT GLOB '*[^A-Za-z0-9_]*' "
    f"AND length(t.value) <= {_LONGEST_CALL}"
)


def copy_strings(copying: Copying) -> None:
    """Copy the strings that the rows of the copy refer to; all other tables must be there already."""
    copying.database.scratch("named_by", "id INTEGER PRIMARY KEY")
    copying.database.scratch("called_by", "id INTEGER PRIMARY KEY")
    for base, column in _NAMED:
        _collect(copying, "named_by", base, column)
    _collect(copying, "called_by", *_CALLED)
    for table in copying.tables(versions.STRINGS):
        columns = copying.columns(table, ("id", "value"))
        if len(columns) == 2:  # noqa: PLR2004 - else no id has a text
            _copy(copying, table)
        copying.removed.add(
            _KIND,
            table,
            copying.count(table)
            - copying.database.number(f"SELECT count(*) FROM main.{quoted(table)}"),  # noqa: S608
        )


def count_named(copying: Copying, names: re.Pattern[str] | None) -> None:
    """Count the kept texts that hold a name which was removed elsewhere; the copy must be whole."""
    if names is None:
        return
    for base, column in ((versions.STRINGS, "value"), (versions.NVTX, "text")):
        for table in copying.tables(base):
            if copying.columns(table, (column,)):
                texts = copying.database.texts(table, column)
                copying.removed.n_named += sum(names.search(text) is not None for text in texts)


def _collect(copying: Copying, target: str, base: str, column: str) -> None:
    for table in copying.tables(base):
        if copying.columns(table, (column,)):
            copying.database.run(
                f"INSERT OR IGNORE INTO temp.{target} SELECT {quoted(column)} FROM main.{quoted(table)} "  # noqa: S608
                f"WHERE {quoted(column)} IS NOT NULL"
            )


def _copy(copying: Copying, table: str) -> None:
    """Copy one table of strings; where an id is there twice, only the first row counts."""
    copying.database.run("DROP TABLE IF EXISTS temp.first_of")
    copying.database.scratch("first_of", "id INTEGER PRIMARY KEY, row INTEGER")
    copying.database.run(
        "INSERT OR IGNORE INTO temp.first_of "  # noqa: S608
        f"SELECT t.id, t.rowid FROM source.{quoted(table)} AS t WHERE typeof(t.id) = 'integer' "
        "AND (t.id IN (SELECT id FROM temp.named_by) "
        f"OR (t.id IN (SELECT id FROM temp.called_by) AND {_CALL})) ORDER BY t.rowid"
    )
    copying.database.create(table, {"id": "INTEGER", "value": "TEXT"})
    copying.database.fill(
        table,
        {"id": number("id"), "value": "t.value"},
        where="t.rowid IN (SELECT row FROM temp.first_of) AND typeof(t.value) = 'text'",
        on_row=copying.on_rows,
    )
