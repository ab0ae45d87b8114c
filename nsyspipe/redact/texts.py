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
from nsyspipe.redact.copy import Checked, number, quoted
from nsyspipe.redact.values import MARK, PAYLOADS, packed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsyspipe.redact.copy import Copying


_NAMES = "NVTX names of threads, marks, categories and domains"

# NVTX_EVENTS.eventType
_THREAD_NAME, _DOMAIN = 39, 75
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
        has = copying.report.has
        rows = _rows(copying, table) if has(table, "eventType", "globalTid") else []
        owned = _are_nccls(rows)
        payloads = _payloads(copying, [row for row in rows if row.blob], owned)
        n_marks = list(payloads.values()).count(MARK)
        copying.removed.add(PAYLOADS, f"{table}.binaryData", n_marks, "values")
        # Texts of ranges stay.
        names = [_name(row, is_nccls=row.row in owned) for row in rows if row.kind not in _RANGES]
        of_range = (
            "CASE WHEN t.eventType IN (59, 60) THEN {} END" if has(table, "eventType") else "NULL"
        )
        text = of_range.format("CASE typeof(t.text) WHEN 'text' THEN t.text END")
        copying.copy(
            table,
            {
                "textId": Checked(
                    "INTEGER",
                    [(row, one) for row, _, one in names],
                    of_range.format(number("textId")),
                ),
                "text": Checked("TEXT", [(row, one) for row, one, _ in names], text),
                "binaryData": Checked("BLOB", payloads.items()),
            },
        )
        _count(copying, table)


def _payloads(copying: Copying, rows: Sequence[_Row], owned: set[int]) -> dict[int, bytes]:
    """Return what stays of each payload by row."""
    blobs = pa.chunked_array([pa.array([row.blob for row in rows], pa.binary())])
    domains = np.array([row.domain for row in rows], np.int64)
    anew = packed(blobs, domains, read_layouts(copying.report))
    return {
        row.row: blob if row.row in owned else MARK for row, blob in zip(rows, anew, strict=True)
    }


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


def _count(copying: Copying, table: str) -> None:
    """Count the names that stayed behind."""
    named = copying.columns(table, ("textId", "text"))
    if named:
        condition = f"({' OR '.join(f'{name} IS NOT NULL' for name in named)})"
        before = copying.count(table, condition)
        if "text" in named:
            condition += f" AND text IS NOT '{_REDACTED}'"
        after = copying.count(table, condition, of="main")
        copying.removed.add(_NAMES, f"{table}.text", before - after, "values")


# The string table: names of kernels and NVTX ranges, and those of CUDA's calls that look like one.


_KIND = "strings that no kernel, range or CUDA call is named by"
# Where ids of names stand whose texts stay, whatever they are, and where those of calls.
_NAMES_OF = (
    ("named_by", versions.KERNEL, "shortName"),
    ("named_by", versions.KERNEL, "demangledName"),
    ("named_by", versions.NVTX, "textId"),
    ("called_by", versions.RUNTIME, "nameId"),
)
# cudaLaunchKernel_v7000, cuMemcpyAsync_v2_ptsz
_LONGEST_CALL = 128
_CALL = (
    "(t.value GLOB 'cuda[A-Z]*' OR t.value GLOB 'cu[A-Z]*') AND t.value NOT GLOB '*[^A-Za-z0-9_]*' "
    f"AND length(t.value) <= {_LONGEST_CALL}"
)


def copy_strings(copying: Copying) -> None:
    """Copy the strings that the rows of the copy refer to; all other tables must be there already.

    Where an id is there twice, only the first row counts.
    """
    copying.scratch("named_by", "id INTEGER PRIMARY KEY")
    copying.scratch("called_by", "id INTEGER PRIMARY KEY")
    for target, base, column in _NAMES_OF:
        for table in copying.tables(base):
            if copying.columns(table, (column,)):
                copying.run(
                    f"INSERT OR IGNORE INTO temp.{target} SELECT {column} FROM main.{quoted(table)} "  # noqa: S608
                    f"WHERE {column} IS NOT NULL"
                )
    for table in copying.tables(versions.STRINGS):
        n_kept = 0
        if copying.report.has(table, "id", "value"):  # else no id has a text
            copying.scratch("first_of", "id INTEGER PRIMARY KEY, row INTEGER")
            copying.run(
                "INSERT OR IGNORE INTO temp.first_of "  # noqa: S608
                f"SELECT t.id, t.rowid FROM source.{quoted(table)} AS t WHERE typeof(t.id) = 'integer' "
                "AND (t.id IN (SELECT id FROM temp.named_by) "
                f"OR (t.id IN (SELECT id FROM temp.called_by) AND {_CALL})) ORDER BY t.rowid"
            )
            copying.create(table, {"id": "INTEGER", "value": "TEXT"})
            where = "t.rowid IN (SELECT row FROM temp.first_of) AND typeof(t.value) = 'text'"
            copying.fill(table, {"id": number("id"), "value": "t.value"}, where=where)
            n_kept = copying.count(table, of="main")
        copying.removed.add(_KIND, table, copying.count(table) - n_kept)


def count_named(copying: Copying, names: re.Pattern[str] | None) -> None:
    """Count the kept texts that hold a name which was removed elsewhere; the copy must be whole."""
    if names is None:
        return
    for base, column in ((versions.STRINGS, "value"), (versions.NVTX, "text")):
        for table in copying.tables(base):
            if copying.columns(table, (column,)):
                texts = copying.run(
                    f"SELECT {column} FROM main.{quoted(table)} WHERE typeof({column}) = 'text'"  # noqa: S608
                ).scalars()
                copying.removed.n_named += sum(names.search(text) is not None for text in texts)
