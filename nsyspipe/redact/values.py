"""What stays of texts and payloads: facts of the capture, names of ranges, strings, NCCL's numbers packed anew.

Each is checked against the form of its place. Of ranges the texts stay, of all other NVTX rows the numbers.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from nsyspipe.reader import report as versions
from nsyspipe.reader.calls import read_strings
from nsyspipe.reader.metadata import LAUNCHER_SIZES
from nsyspipe.reader.operations import process_of_thread
from nsyspipe.reader.payload import HEADER, decode_fields, fits_layout, names_in
from nsyspipe.reader.payload_layouts import Layout, bare_name, read_layouts
from nsyspipe.redact.copy import CHECKED, NUMBERS, Checked, number, quoted

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from nsyspipe.reader.report import Report
    from nsyspipe.redact.copy import Copying

    Key = tuple[int, int]


_ENVIRONMENT = "environment and settings of the capture"
_EXPORT = "settings of the export"
_SYSTEM = "host and system"
_FORM = "values of an unexpected form"

_DEVICES = "CUDA_VISIBLE_DEVICES"
_VARIABLES = {
    *LAUNCHER_SIZES,
    *LAUNCHER_SIZES.values(),
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    _DEVICES,
}
_PRIVATE = {"HOME", "HOSTNAME", "LOGNAME", "USER", "USERNAME"}
_SHORTEST_NAME = 3
# As `metadata` takes them apart.
_ASSIGNMENT = re.compile(r'^(?P<name>\w+)="?(?P<value>[^"]*)"?$')
_ENVIRONMENT_ROW = re.compile(r"PROCESS_[0-9]{1,9}:ENVIRONMENT_VARIABLE")
_INTEGER = re.compile(r" ?[0-9]{1,9} ?")
_INTEGERS = re.compile(r"(?:[0-9]{1,3}(?:,[0-9]{1,3}){0,63})?")

_VERSION = re.compile(r"[0-9]{1,6}(?:\.[0-9]{1,8}){0,5}(?:-[0-9]{1,16}v[0-9]{1,3})?")
_TABLES, _LAZY = "EXPORT_PARAM_TABLES_TO_EXPORT", "EXPORT_PARAM_LAZY"
_VERSIONS = ("EXPORT_PRODUCT_VERSION", "EXPORT_SCHEMA_VERSION")

# "NVIDIA A100-SXM4-80GB", "Tesla V100-SXM2-16GB", "NVIDIA RTX 6000 Ada Generation", "NVIDIA H200 MIG 1g.18gb".
_MODEL = re.compile(
    r"(?:(?:NVIDIA|Tesla|Quadro|GeForce|TITAN|GRID) )?(?:(?:Tesla|Quadro|GeForce|TITAN|GRID|RTX|GTX|PRO) ){0,3}"
    r"(?:[A-Z]{1,3}[0-9]{1,4}[A-Z]{0,2}(?:-(?:SXM[0-9]?|PCI[Ee]|NVL|[0-9]{1,4}[A-Z]{0,2}|[0-9]{1,4}GB)){0,3}"
    r"|[0-9]{3,4}(?:[A-Z]{1,2})?|V|X|Xp|Z|RTX|Thor|Orin)"
    r"(?: (?:Ti|SUPER|Super|Ada|Blackwell|Generation|Laptop|Max-Q|GPU|PCIe|NVL|SXM[0-9]?|HBM[0-9]e?|D|with|Design"
    r"|Server|Workstation|Max-Q|Edition|MIG|[0-9]{1,4}[Gg][Bb]|[0-9]g\.[0-9]{1,3}gb)){0,6}"
)


def copy_facts(copying: Copying, host: str | None) -> None:
    """Copy versions, ranks, GPU models, and put another name for the host."""
    for base in (versions.EXPORT_META, versions.EXPORT_META_OLD):
        for table in copying.tables(base):
            _copy_rows(copying, table, _EXPORT, _export_rows(copying, table))
    for table in copying.tables(versions.CAPTURE_META):
        _copy_rows(copying, table, _ENVIRONMENT, _variable_rows(copying.report, table))
    for table in copying.tables(versions.SYSTEM_ENV):
        rows = [] if host is None else [("Hostname", host)]
        _copy_rows(copying, table, _SYSTEM, rows)
    for table in copying.tables(versions.GPU):
        copying.copy(table, {"name": Checked("TEXT", _model_names(copying, table))})


def host_of(report: Report) -> str | None:
    """Return the report's host as `metadata` finds it."""
    rows = _named_values(report, versions.SYSTEM_ENV, "name = 'Hostname'")
    return next((value for _, value in rows), None)


def names_of(report: Report) -> re.Pattern[str] | None:
    """Return what finds the host's name, the user's and the home directory in a text; None where nothing names them.

    Names of one or two letters and root's are no names that could be found.
    """
    found = {host_of(report) or ""}
    where = "name LIKE '%ENVIRONMENT_VARIABLE'"
    for _, text in _named_values(report, versions.CAPTURE_META, where):
        made = _ASSIGNMENT.match(text)
        if made and made["name"] in _PRIVATE:
            found.add(made["value"].rstrip("/"))
    names = {one for one in found if len(one) >= _SHORTEST_NAME and one not in {"root", "/root"}}
    if not names:
        return None
    words = "|".join(map(re.escape, sorted(names, key=len, reverse=True)))
    return re.compile(rf"(?<!\w)(?:{words})(?!\w)", re.IGNORECASE)


def _copy_rows(copying: Copying, table: str, kind: str, rows: Iterable[tuple[str, str]]) -> None:
    copied = 0
    if copying.report.has(table, "name", "value"):  # else no row says anything
        copied = copying.create(table, {"name": "TEXT", "value": "TEXT"}, rows)
    copying.removed.add(kind, table, copying.count(table) - copied)


def _named_values(report: Report, table: str, where: str) -> Iterable[tuple[str, str]]:
    if not report.has(table, "name", "value"):
        return ()
    found = report.select(table, {"name": "text", "value": "text"}, where=where)
    return zip(found["name"].to_pylist(), found["value"].to_pylist(), strict=True)


def _export_rows(copying: Copying, table: str) -> list[tuple[str, str]]:
    rows = []
    names = ", ".join(f"'{name}'" for name in (*_VERSIONS, _TABLES, _LAZY))
    for name, value in _named_values(copying.report, table, f"name IN ({names})"):
        if name == _LAZY:
            rows.append((name, "false" if value.lower() == "false" else "true"))
        elif name == _TABLES:
            rows.append((name, _table_list(value.strip())))
        elif _VERSION.fullmatch(value):
            rows.append((name, value))
        else:
            copying.removed.add(_FORM, f"{table}.value", 1, "values")
    return rows


def _table_list(value: str) -> str:
    """Return those of nsyspipe's tables that a list of tables names, in a list that is empty only if that was."""
    known = [table for table in {**NUMBERS, **CHECKED} if table in value]
    return ",".join(known) or ("-" if value else "")


def _variable_rows(report: Report, table: str) -> list[tuple[str, str]]:
    """Return the variables that name ranks and devices.

    A value of another form becomes a mark, one for each value: variables that contradict each other
    must go on doing so.
    """
    rows = []
    marks: dict[tuple[str, str], str] = {}
    wanted = " OR ".join(f"value LIKE '{name}=%'" for name in sorted(_VARIABLES))
    where = f"name LIKE '%ENVIRONMENT_VARIABLE' AND ({wanted})"
    for row, text in _named_values(report, table, where):
        match = _ASSIGNMENT.match(text)
        if not match or match["name"] not in _VARIABLES:
            continue
        name, value = match["name"], match["value"]
        form = _INTEGERS if name == _DEVICES else _INTEGER
        if not form.fullmatch(value):
            value = marks.setdefault((name, value), f"?{len(marks)}")
        place = row if _ENVIRONMENT_ROW.fullmatch(row) else "ENVIRONMENT_VARIABLE"
        rows.append((place, f'{name}="{value}"'))
    return rows


def _names(copying: Copying, table: str) -> Iterable[tuple[int, str]]:
    """Return a table's names by row."""
    found = copying.report.select(table, {"name": "text"}, derived={"row": "rowid"})
    return zip(found["row"].to_pylist(), found["name"].to_pylist(), strict=True)


def _model_names(copying: Copying, table: str) -> list[tuple[int, str]]:
    """Return each GPU's model by row; names of another form become marks, so that two models stay two."""
    marks: dict[str, str] = {}
    rows = []
    for row, name in _names(copying, table):
        is_model = not name or _MODEL.fullmatch(name)
        if not is_model:
            copying.removed.add(_FORM, f"{table}.name", 1, "values")
        rows.append((row, name if is_model else marks.setdefault(name, f"unknown model {len(marks)}")))
    return rows


# NCCL's payloads, packed anew: the numbers that analysis reads, and nothing between or behind them.

# Stands for a payload that analysis only counts.
MARK = b"\x00"

_LOW = 0xFFFFFFFF
PAYLOADS = "payloads of NVTX ranges"


def packed(blobs: pa.ChunkedArray, domains: NDArray[np.int64], layouts: Mapping[Key, Layout]) -> list[bytes]:
    """Return each blob, of a range of a domain, with the numbers that are read of it; a mark for one that fits no layout."""
    decoded = decode_fields(blobs, domains, layouts).is_decoded.tolist()
    by_low: dict[Key, list[tuple[int, Layout]]] = {}
    for (domain, schema), layout in layouts.items():
        by_low.setdefault((domain, schema & _LOW), []).append((schema, layout))
    return [
        _packed(blob, domain, by_low) if fits else MARK
        for blob, domain, fits in zip(blobs.to_pylist(), domains.tolist(), decoded, strict=True)
    ]


def _packed(blob: bytes, domain: int, layouts: Mapping[Key, list[tuple[int, Layout]]]) -> bytes:
    header = np.frombuffer(blob, HEADER, count=1)
    length = np.array([len(blob)])
    for schema, layout in reversed(layouts.get((domain, int(header["schema"][0])), [])):
        if not fits_layout(header, length, schema, layout)[0]:
            continue
        payload = bytearray(layout.n_bytes)
        source = blob[HEADER.itemsize :]
        for name in names_in(layout).values():
            n_bytes = layout.dtype([name])[name].itemsize
            at = layout.fields[name][1]
            payload[at : at + n_bytes] = source[at : at + n_bytes]
        n_total = HEADER.itemsize + layout.n_bytes
        anew = 1, schema & _LOW, schema >> 32 & _LOW, layout.n_bytes, n_total
        return np.array([anew], HEADER).tobytes() + payload
    return MARK


def copy_layouts(copying: Copying) -> None:
    """Copy how payloads lie in memory, with the names of the numbers that are read; other names become numbers."""
    for table in copying.tables(versions.PAYLOAD_ENTRIES):
        copying.copy(table, {"name": Checked("TEXT", _entry_names(copying, table))})


def _entry_names(copying: Copying, table: str) -> list[tuple[int, str]]:
    """Return each entry's name by row.

    Names that are equal stay so, also those that are equal but for case and punctuation: placing the
    entries depends on it.
    """
    spellings: dict[str, dict[str, int]] = {}
    numbers: dict[str, int] = {}
    rows = []
    for row, name in _names(copying, table):
        if not name:
            continue
        bare = bare_name(name)
        mine = spellings.setdefault(bare, {})
        is_read = names_in(Layout(0, is_exact=True, fields={bare: ("<u8", 0)}))
        known = bare if is_read else f"field{numbers.setdefault(bare, len(numbers))}"
        rows.append((row, known + "_" * mine.setdefault(name, len(mine))))
        copying.removed.add(PAYLOADS, f"{table}.name", int(known != bare), "values")
    return rows


# NVTX rows: of names only those that are read.

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
        of_range = "CASE WHEN t.eventType IN (59, 60) THEN {} END" if has(table, "eventType") else "NULL"
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
    return {row.row: blob if row.row in owned else MARK for row, blob in zip(rows, anew, strict=True)}


def _rows(copying: Copying, table: str) -> list[_Row]:
    report = copying.report
    kinds = dict.fromkeys(("eventType", "globalTid", "domainId", "textId"), "int")
    kinds |= {"text": "text", "binaryData": "blob"}
    where = f"eventType IN ({_THREAD_NAME}, {_DOMAIN})"
    if report.has(table, "binaryData"):
        where += " OR binaryData IS NOT NULL"
    found = report.select(table, kinds, derived={"row": "rowid"}, where=where)
    ids = found["textId"].fill_null(-1).to_numpy()
    texts = read_strings(report).lookup(ids).to_pylist() if found.num_rows else []
    return [
        _Row(
            row["row"], row["eventType"], row["globalTid"], row["domainId"] or 0, row["textId"], row["text"],
            row["text"] or text, row["binaryData"],
        )
        for row, text in zip(found.to_pylist(), texts, strict=True)
    ]  # fmt: skip


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
