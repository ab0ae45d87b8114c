"""What stays of texts and payloads: facts of the capture, names of ranges, strings, NCCL's numbers packed anew.

Each is checked against the form of its place. Of ranges the texts stay, of all other NVTX rows the
numbers.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nsyspipe.analysis.attribution import filled
from nsyspipe.model.names import bare_name
from nsyspipe.model.table import Int64
from nsyspipe.reader import report as versions
from nsyspipe.reader.calls import read_strings
from nsyspipe.reader.metadata import (
    CPU_TRACE,
    NVTX_TRACED,
    PYTHON_BACKTRACES,
    RANK_VARIABLES,
    host_of,
    records_python_backtraces,
    samples_cpu,
    traces_nvtx,
    variables_of,
)
from nsyspipe.reader.payload import HEADER, Layout, decode_fields, names_in, ownership, read_layouts
from nsyspipe.reader.ranges import DOMAIN_ROW, THREAD_NAME_ROW, names_of_rows
from nsyspipe.reader.report import Report
from nsyspipe.reader.tables import quoted
from nsyspipe.redact.copy import CHECKED, NUMBERS, Checked, Copying, number

_FORM = "values of an unexpected form"
_DEVICES = "CUDA_VISIBLE_DEVICES"
_PRIVATE = {"HOME", "HOSTNAME", "LOGNAME", "USER", "USERNAME"}
_SHORTEST_NAME = 3
_ENVIRONMENT_ROW = re.compile(r"PROCESS_[0-9]{1,9}:ENVIRONMENT_VARIABLE")
_INTEGER = re.compile(r" ?[0-9]{1,9} ?")
_INTEGERS = re.compile(r"(?:[0-9]{1,3}(?:,[0-9]{1,3}){0,63})?")
_VERSION = re.compile(r"[0-9]{1,6}(?:\.[0-9]{1,8}){0,5}(?:-[0-9]{1,16}v[0-9]{1,3})?")
_TABLES = "EXPORT_PARAM_TABLES_TO_EXPORT"
_LAZY = "EXPORT_PARAM_LAZY"
_VERSIONS = ("EXPORT_PRODUCT_VERSION", "EXPORT_SCHEMA_VERSION")

# "NVIDIA A100-SXM4-80GB", "Tesla V100-SXM2-16GB", "NVIDIA RTX 6000 Ada Generation", "NVIDIA H200
# MIG 1g.18gb".
_MODEL = re.compile(
    r"(?:(?:NVIDIA|Tesla|Quadro|GeForce|TITAN|GRID) "
    r")?(?:(?:Tesla|Quadro|GeForce|TITAN|GRID|RTX|GTX|PRO) ){0,3}"
    r"(?:[A-Z]{1,3}[0-9]{1,4}[A-Z]{0,2}(?:-(?:SXM[0-9]?|PCI[Ee]|NVL|[0-9]{1,4}[A-Z]{0,2}|[0-9]{1,4}GB)){0,3}"
    r"|[0-9]{3,4}(?:[A-Z]{1,2})?|V|X|Xp|Z|RTX|Thor|Orin)"
    r"(?: "
    r"(?:Ti|SUPER|Super|Ada|Blackwell|Generation|Laptop|Max-Q|GPU|PCIe|NVL|SXM[0-9]?|HBM[0-9]e?|D|with|Design"
    r"|Server|Workstation|Max-Q|Edition|MIG|[0-9]{1,4}[Gg][Bb]|[0-9]g\.[0-9]{1,3}gb)){0,6}"
)


def copy_facts(copying: Copying, host: str | None) -> None:
    """Copy versions, ranks, GPU models, and put another name for the host."""
    for base in (versions.EXPORT_META, versions.EXPORT_META_OLD):
        for table in copying.tables(base):
            _copy_rows(copying, table, "settings of the export", _export_rows(copying, table))
    for table in copying.tables(versions.CAPTURE_META):
        _copy_rows(
            copying,
            table,
            "environment and settings of the capture",
            _variable_rows(copying.report, table),
        )
    for table in copying.tables(versions.SYSTEM_ENV):
        _copy_rows(copying, table, "host and system", [] if host is None else [("Hostname", host)])
    for table in copying.tables(versions.GPU):
        copying.copy(table, {"name": Checked("TEXT", _model_names(copying, table))})


def _copy_rows(copying: Copying, table: str, kind: str, rows: Iterable[tuple[str, str]]) -> None:
    says_anything = copying.report.has(table, "name", "value")
    copied = copying.create(table, {"name": "TEXT", "value": "TEXT"}, rows) if says_anything else 0
    copying.removed.add(kind, table, copying.count(table) - copied)


def _export_rows(copying: Copying, table: str) -> Iterator[tuple[str, str]]:
    names = ", ".join(f"'{name}'" for name in (*_VERSIONS, _TABLES, _LAZY))
    for row in copying.report.few(table, {"name": "text", "value": "text"}, f"name IN ({names})"):
        name = row["name"]
        value = row["value"]
        if name == _LAZY:
            yield name, "false" if value.lower() == "false" else "true"
        elif name == _TABLES:
            yield name, _table_list(value.strip())
        elif _VERSION.fullmatch(value):
            yield name, value
        else:
            copying.removed.add(_FORM, f"{table}.value", 1, "values")


def _table_list(value: str) -> str:
    """Return those of nsyspipe's tables that a list of tables names, in a list that is empty only if that was."""
    return ",".join(table for table in {**NUMBERS, **CHECKED} if table in value) or (
        "-" if value else ""
    )


def _variable_rows(report: Report, table: str) -> Iterator[tuple[str, str]]:
    """Yield what was recorded (NVTX, Python's backtraces, samples of CPUs), and what names ranks and devices.

    A value of another form is copied as a mark, so that two stay two.
    """
    if traces_nvtx(report):
        yield NVTX_TRACED
    if records_python_backtraces(report):
        yield PYTHON_BACKTRACES
    is_sampled = samples_cpu(report)
    if is_sampled is not None:
        yield CPU_TRACE, str(is_sampled).lower()
    marks: dict[tuple[str, str], str] = {}
    for row, name, value in variables_of(report, RANK_VARIABLES, table):
        if not (_INTEGERS if name == _DEVICES else _INTEGER).fullmatch(value):
            value = marks.setdefault((name, value), f"?{len(marks)}")  # noqa: PLW2901
        yield (
            row if _ENVIRONMENT_ROW.fullmatch(row) else "ENVIRONMENT_VARIABLE",
            f'{name}="{value}"',
        )


def _names(copying: Copying, table: str) -> Iterable[tuple[int, str]]:
    found = copying.report.select(table, {"name": "text"}, derived={"row": "rowid"})
    return zip(found["row"].to_pylist(), found["name"].to_pylist(), strict=True)


def _model_names(copying: Copying, table: str) -> Iterator[tuple[int, str]]:
    """Yield each GPU's model by row; names of another form become marks, so that two models stay two."""
    marks: dict[str, str] = {}
    for row, name in _names(copying, table):
        is_model = not name or _MODEL.fullmatch(name) is not None
        copying.removed.add(_FORM, f"{table}.name", not is_model, "values")
        yield row, name if is_model else marks.setdefault(name, f"unknown model {len(marks)}")


# NCCL's payloads, packed anew: the numbers that analysis reads, and nothing between or behind them.

MARK = b"\x00"  # stands for a payload that analysis only counts
PAYLOADS = "payloads of NVTX ranges"


def packed(
    blobs: pa.ChunkedArray, domains: Int64, layouts: Mapping[tuple[int, int], Layout]
) -> list[bytes]:
    """Return each blob, of a range of a domain, with the numbers that are read of it; a mark for one that fits no layout."""
    of_layout = [(schema, layout) for (_, schema), layout in layouts.items()]
    fits = zip(
        blobs.to_pylist(), decode_fields(blobs, domains, layouts).layout.tolist(), strict=True
    )
    return [_packed(blob, *of_layout[at]) if at >= 0 else MARK for blob, at in fits]


def _packed(blob: bytes, schema: int, layout: Layout) -> bytes:
    payload = bytearray(layout.n_bytes)
    source = blob[HEADER.itemsize :]
    for name in names_in(layout).values():
        code, at = layout.fields[name]
        end = at + np.dtype(code).itemsize
        payload[at:end] = source[at:end]
    high, low = divmod(schema & 2**64 - 1, 2**32)
    return (
        np.array(
            [(1, low, high, layout.n_bytes, HEADER.itemsize + layout.n_bytes)], HEADER
        ).tobytes()
        + payload
    )


def copy_layouts(copying: Copying) -> None:
    """Copy how payloads lie in memory, with the names of the numbers that are read; other names become numbers."""
    for table in copying.tables(versions.PAYLOAD_ENTRIES):
        copying.copy(table, {"name": Checked("TEXT", _entry_names(copying, table))})


def _entry_names(copying: Copying, table: str) -> Iterator[tuple[int, str]]:
    """Yield each entry's name by row; equal ones stay so, also but for case and punctuation: their places depend on it."""
    spellings: dict[str, dict[str, int]] = {}
    numbers: dict[str, int] = {}
    for row, name in filter(itemgetter(1), _names(copying, table)):
        bare = bare_name(name)
        mine = spellings.setdefault(bare, {})
        is_read = names_in(Layout(0, is_exact=True, fields={bare: ("<u8", 0)}))
        known = bare if is_read else f"field{numbers.setdefault(bare, len(numbers))}"
        copying.removed.add(PAYLOADS, f"{table}.name", int(known != bare), "values")
        yield row, known + "_" * mine.setdefault(name, len(mine))


# NVTX rows: of names only those that are read.

_NCCL_PREFIX = "nccl"
_READ_DOMAINS = {"NCCL", "MPI"}
_MPI_RANK = re.compile(r"MPI Rank [0-9]{1,18}")
_REDACTED = "redacted"  # says that there was a name, which matters
_OF_RANGE = "CASE WHEN t.eventType IN (59, 60) THEN {} END"


def copy_ranges(copying: Copying) -> None:
    """Copy the NVTX rows: texts of ranges stay, and of other names those of threads and domains that are read.

    A row with a payload says whether it had a name, since that tells whose payload it is.
    """
    for table in copying.tables(versions.NVTX):
        names, payloads = _looked_at(copying, table)
        copying.removed.add(
            PAYLOADS, f"{table}.binaryData", list(payloads.values()).count(MARK), "values"
        )
        of_range = _OF_RANGE if copying.report.has(table, "eventType") else "NULL"
        text = of_range.format("CASE typeof(t.text) WHEN 'text' THEN t.text END")
        checked = {
            "textId": Checked(
                "INTEGER", [(row, one) for row, _, one in names], of_range.format(number("textId"))
            ),
            "text": Checked("TEXT", [(row, one) for row, one, _ in names], text),
            "binaryData": Checked("BLOB", payloads.items()),
        }
        copying.copy(table, checked)
        named = [name for name in ("textId", "text") if name in copying.report.tables[table]]
        has_name = " OR ".join(f"{name} IS NOT NULL" for name in named)
        left = f"({has_name})" + (f" AND text IS NOT '{_REDACTED}'" if "text" in named else "")
        n_removed = (
            copying.count(table, has_name) - copying.count(table, left, of="main") if named else 0
        )
        kind = "NVTX names of threads, marks, categories and domains"
        copying.removed.add(kind, f"{table}.text", n_removed, "values")


def _looked_at(
    copying: Copying, table: str
) -> tuple[list[tuple[int, str | None, int | None]], dict[int, bytes]]:
    """Return what stays of names (row, text, id of a string) and, by row, of payloads that are, or may be, NCCL's."""
    report = copying.report
    if not report.has(table, "eventType", "globalTid"):
        return [], {}
    kinds = dict.fromkeys(("eventType", "globalTid", "domainId", "textId"), "int")
    kinds |= {"text": "text", "binaryData": "blob"}
    where = f"eventType IN ({THREAD_NAME_ROW}, {DOMAIN_ROW})"
    where += " OR binaryData IS NOT NULL" if report.has(table, "binaryData") else ""
    found = report.select(table, kinds, derived={"row": "rowid"}, where=where)
    texts = names_of_rows(found, read_strings(report)).cast(pa.string())
    found = found.rename_columns(
        [{"text": "inline"}.get(name, name) for name in found.column_names]
    )
    found = found.append_column("text", pa.chunked_array([texts]))
    blobs = found.filter(pc.greater(pc.binary_length(found["binaryData"]), 0))
    payloads = dict.fromkeys(blobs["row"].to_pylist(), MARK)
    blobs = blobs.filter(pc.is_valid(blobs["globalTid"]))
    domains = found.filter(pc.equal(found["eventType"], DOMAIN_ROW))
    says_nccl, may_be = ownership(blobs, domains.filter(pc.is_valid(domains["globalTid"])))
    blobs = blobs.filter(pa.array(says_nccl | may_be))
    owned = set(blobs["row"].to_pylist())
    anew = packed(blobs["binaryData"], filled(blobs["domainId"], 0), read_layouts(report))
    payloads |= dict(zip(blobs["row"].to_pylist(), anew, strict=True))
    others = found.filter(
        pc.invert(pc.fill_null(pc.is_in(found["eventType"], pa.array([59, 60])), fill_value=False))
    )
    return [_name(row, is_nccls=row["row"] in owned) for row in others.to_pylist()], payloads


def _name(row: Mapping[str, Any], *, is_nccls: bool) -> tuple[int, str | None, int | None]:
    kind = row["eventType"]
    text = row["text"]
    is_kept = kind == THREAD_NAME_ROW and _MPI_RANK.fullmatch(text or "")
    is_kept = is_kept or (is_nccls and (text or "").lower().startswith(_NCCL_PREFIX))
    if kind == DOMAIN_ROW and text is not None:
        is_kept = text in _READ_DOMAINS
    if is_kept:
        return (row["row"], row["inline"] or None, None if row["inline"] else row["textId"])
    is_told = text is not None and (kind == DOMAIN_ROW or row["binaryData"])
    return row["row"], _REDACTED if is_told else None, None


# The string table: names of kernels and NVTX ranges, and those of CUDA's calls that look like one.

# Where ids of names stand whose texts stay, whatever they are, and where those of calls.
_NAMES_OF = (
    ("named_by", versions.KERNEL, "shortName"),
    ("named_by", versions.KERNEL, "demangledName"),
    ("named_by", versions.NVTX, "textId"),
    ("called_by", versions.RUNTIME, "nameId"),
)
# cudaLaunchKernel_v7000, cuMemcpyAsync_v2_ptsz
_LETTERS = "t.value NOT GLOB '*[^A-Za-z0-9_]*' AND length(t.value) <= 128"
_CALL = f"(t.value GLOB 'cuda[A-Z]*' OR t.value GLOB 'cu[A-Z]*') AND {_LETTERS}"


def copy_strings(copying: Copying) -> None:
    """Copy the strings that the rows of the copy, which is else whole, refer to; of rows of one id the first."""
    key = {"id": "INTEGER PRIMARY KEY"}
    copying.create("named_by", key, of="temp")
    copying.create("called_by", key, of="temp")
    for target, base, column in _NAMES_OF:
        for table in copying.tables(base, column):
            ids = f"SELECT {column} FROM main.{quoted(table)} WHERE {column} IS NOT NULL"  # noqa: S608
            copying.run(f"INSERT OR IGNORE INTO temp.{target} {ids}")
    for table in copying.tables(versions.STRINGS):
        n_kept = 0
        if copying.report.has(table, "id", "value"):  # else no id has a text
            copying.create("first_of", key | {"row": "INTEGER"}, of="temp")
            copying.run(
                "INSERT OR IGNORE INTO temp.first_of "  # noqa: S608
                f"SELECT t.id, t.rowid FROM source.{quoted(table)} AS t WHERE typeof(t.id) = "
                "'integer' "
                "AND (t.id IN (SELECT id FROM temp.named_by) "
                f"OR (t.id IN (SELECT id FROM temp.called_by) AND {_CALL})) ORDER BY t.rowid"
            )
            copying.create(table, {"id": "INTEGER", "value": "TEXT"})
            where = "t.rowid IN (SELECT row FROM temp.first_of) AND typeof(t.value) = 'text'"
            copying.fill(table, {"id": number("id"), "value": "t.value"}, where=where)
            n_kept = copying.count(table, of="main")
        kind = "strings that no kernel, range or CUDA call is named by"
        copying.removed.add(kind, table, copying.count(table) - n_kept)


def count_named(copying: Copying) -> None:
    """Count the texts of a whole copy that name the host, the user or the home; very short names and root's do not count."""
    report = copying.report
    named = {host_of(report) or ""} | {
        value.rstrip("/") for _, _, value in variables_of(report, _PRIVATE)
    }
    named = {one for one in named if len(one) >= _SHORTEST_NAME and one not in {"root", "/root"}}
    words = "|".join(map(re.escape, sorted(named, key=len, reverse=True)))
    names = re.compile(rf"(?<!\w)(?:{words})(?!\w)", re.IGNORECASE)
    for base, column in ((versions.STRINGS, "value"), (versions.NVTX, "text")) if named else ():
        for table in copying.tables(base, column):
            texts = f"SELECT {column} FROM main.{quoted(table)} WHERE typeof({column}) = 'text'"  # noqa: S608
            copying.removed.n_named += sum(
                names.search(text) is not None for text in copying.run(texts).scalars()
            )
