"""NVTX rows and the string table: of ranges the texts, of all others the numbers, of names only those that are read."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from nsyspipe.reader import report as versions
from nsyspipe.reader.calls import Strings, read_strings
from nsyspipe.reader.operations import process_of_thread
from nsyspipe.reader.payload_layouts import read_layouts
from nsyspipe.redact.copy import number, quoted
from nsyspipe.redact.tables import NUMBERS
from nsyspipe.redact.values import MARK, PAYLOADS, packed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsyspipe.redact.copy import Copying


_NAMES = "NVTX names of threads, marks, categories and domains"

# NVTX_EVENTS.eventType
_THREAD_NAME, _DOMAIN = 39, 75
_RANGE = "t.eventType IN (59, 60)"
_RANGES = {59, 60}
_NCCL, _NCCL_PREFIX = "NCCL", "nccl"
_READ_DOMAINS = {_NCCL, "MPI"}
_MPI_RANK = re.compile(r"MPI Rank [0-9]{1,18}")
_REDACTED = "redacted"  # says that there was a name, which matters


class _Row(NamedTuple):
    """A row that needs a look; its text, whether it stands in the row or in the strings."""

    row: int
    kind: int | None
    thread: int | None
    domain: int
    string: int | None
    inline: str
    text: str | None
    blob: bytes

    def kept(self) -> tuple[int, str | None, int | None]:
        """Return the row's name as it stands there."""
        return (self.row, self.inline, None) if self.inline else (self.row, None, self.string)


def copy_ranges(copying: Copying) -> None:
    """Copy the NVTX rows.

    A row that is neither a range nor names a thread or domain that is read keeps only its numbers. A row with a
    payload says whether it had a name, since that tells whose payload it is.
    """
    for table in copying.tables(versions.NVTX):
        columns = copying.columns(table, NUMBERS[versions.NVTX])
        texts = copying.columns(table, ("textId", "text", "binaryData"))
        kinds = dict.fromkeys(columns, "INTEGER")
        values = {name: number(name) for name in columns}
        joins = _prepare(copying, table)
        for name, kind, plain in (
            ("textId", "INTEGER", number("textId")),
            ("text", "TEXT", "CASE typeof(t.text) WHEN 'text' THEN t.text END"),
        ):
            if name in texts:
                kinds[name] = kind
                of_range = f"WHEN {_RANGE} THEN {plain}" if "eventType" in columns else ""
                values[name] = f"CASE WHEN n.row IS NOT NULL THEN n.{name} {of_range} END"
        if "binaryData" in texts:
            kinds["binaryData"], values["binaryData"] = "BLOB", "p.blob"
        if kinds:
            copying.database.create(table, kinds)
            copying.database.fill(table, values, joins=joins, on_row=copying.on_rows)
            _count(copying, table, texts)


def _prepare(copying: Copying, table: str) -> str:
    """Put names and payloads of rows that need a look beside them, and return how they are joined."""
    rows = _rows(copying, table) if copying.report.has(table, "eventType", "globalTid") else []
    with_blob = [row for row in rows if row.blob]
    blobs = pa.chunked_array([pa.array([row.blob for row in with_blob], pa.binary())])
    owned = _are_nccls(rows)
    domains = np.array([row.domain for row in with_blob], np.int64)
    anew = packed(blobs, domains, read_layouts(copying.report))
    payloads = {
        row.row: blob if row.row in owned else MARK
        for row, blob in zip(with_blob, anew, strict=True)
    }
    copying.removed.add(
        PAYLOADS, f"{table}.binaryData", list(payloads.values()).count(MARK), "values"
    )
    names = [
        _name(row, is_nccls=row.row in owned)
        for row in rows
        if row.kind not in _RANGES  # whose texts stay
    ]
    copying.database.run("DROP TABLE IF EXISTS temp.named")
    copying.database.scratch("named", "row INTEGER PRIMARY KEY, text TEXT, textId INTEGER", names)
    copying.database.run("DROP TABLE IF EXISTS temp.payload")
    copying.database.scratch("payload", "row INTEGER PRIMARY KEY, blob BLOB", payloads.items())
    return "LEFT JOIN temp.named AS n ON n.row = t.rowid LEFT JOIN temp.payload AS p ON p.row = t.rowid"


def _rows(copying: Copying, table: str) -> list[_Row]:
    report = copying.report
    kinds = dict.fromkeys(("eventType", "globalTid", "domainId", "textId"), "int")
    kinds |= {"text": "text", "binaryData": "blob"}
    where = f"eventType IN ({_THREAD_NAME}, {_DOMAIN})"
    if report.has(table, "binaryData"):
        where += " OR binaryData IS NOT NULL"
    found = report.select(table, kinds, derived={"row": "rowid"}, where=where)
    strings = read_strings(report) if found.num_rows else None
    return [
        _Row(
            row["row"], row["eventType"], row["globalTid"], row["domainId"] or 0, row["textId"], row["text"],
            row["text"] or text, row["binaryData"],
        )
        for row, text in zip(found.to_pylist(), _texts(strings, found), strict=True)
    ]  # fmt: skip


def _texts(strings: Strings | None, found: pa.Table) -> Sequence[str | None]:
    if strings is None:
        return []
    ids = found["textId"].fill_null(-1).to_numpy()
    texts: list[str | None] = strings.lookup(ids).to_pylist()
    return texts


def _are_nccls(rows: Sequence[_Row]) -> set[int]:
    """Return the rows whose payload `payload` takes for NCCL's, or looks at since nothing names its owner."""
    owners: dict[tuple[int, int], set[str]] = {}
    for row in rows:
        if row.kind == _DOMAIN and row.thread is not None and row.text is not None:
            key = process_of_thread(row.thread), row.domain
            owners.setdefault(key, set()).add(row.text)
    found = set()
    for row in rows:
        if row.thread is None or not row.blob:
            continue
        names = owners.get((process_of_thread(row.thread), row.domain), set())
        says_so = (row.text or "").lower().startswith(_NCCL_PREFIX) or _NCCL in names
        if says_so or (row.text is None and not names):
            found.add(row.row)
    return found


def _name(row: _Row, *, is_nccls: bool) -> tuple[int, str | None, int | None]:
    """Return what stays of a row's name: row, text, id of a string."""
    text = row.text or ""
    if row.kind == _DOMAIN and row.text is not None:
        return row.kept() if text in _READ_DOMAINS else (row.row, _REDACTED, None)
    if row.kind == _THREAD_NAME and _MPI_RANK.fullmatch(text):
        return row.kept()
    if is_nccls and text.lower().startswith(_NCCL_PREFIX):
        return row.kept()
    return row.row, _REDACTED if row.blob and row.text is not None else None, None


def _count(copying: Copying, table: str, texts: Sequence[str]) -> None:
    """Count the names that stayed behind."""
    named = [name for name in texts if name != "binaryData"]
    if named:
        condition = " OR ".join(f"{name} IS NOT NULL" for name in named)
        before = copying.count(table, condition)
        after = copying.database.number(
            f"SELECT count(*) FROM main.{quoted(table)} WHERE ({condition}) "  # noqa: S608
            + (f"AND text IS NOT '{_REDACTED}'" if "text" in named else "")
        )
        copying.removed.add(_NAMES, f"{table}.text", before - after, "values")


# The string table: names of kernels and NVTX ranges, and those of CUDA's calls that look like one.


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
