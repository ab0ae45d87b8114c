"""What is copied of texts and payloads: facts, names of ranges, strings, and NCCL's numbers.

Each value is checked against the form that its place has. Texts of ranges are copied, of other NVTX
rows only numbers.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nsyspipe.analysis.attribution import filled
from nsyspipe.model.names import bare_name
from nsyspipe.model.table import Int64
from nsyspipe.reader import report as versions
from nsyspipe.reader.calls import read_strings
from nsyspipe.reader.facts import (
    CPU_TRACE,
    NVTX_TRACED,
    PYTHON_BACKTRACES,
    RANK_VARIABLES,
    host_of,
    names_table,
    read_capture_rows,
    records_python_backtraces,
    samples_cpu,
    traces_nvtx,
    variables_of,
)
from nsyspipe.reader.gpu_metrics import counter_of
from nsyspipe.reader.payload import (
    FIELD_SPELLINGS,
    HEADER,
    Layout,
    decode_fields,
    names_in,
    ownership,
    read_layouts,
)
from nsyspipe.reader.payload_tables import EVENT_ID, find_payload_tables
from nsyspipe.reader.ranges import DOMAIN_ROW, THREAD_NAME_ROW, names_of_rows
from nsyspipe.reader.report import Report
from nsyspipe.reader.tables import quoted
from nsyspipe.redact.copy import (
    CHECKED,
    HARDWARE,
    NUMBERS,
    Checked,
    Copying,
    NewNames,
    number,
)

_FORM = "values of an unexpected form"
_DEVICES = "CUDA_VISIBLE_DEVICES"
_PRIVATE = {"HOME", "HOSTNAME", "LOGNAME", "USER", "USERNAME"}
# Shorter names are found in texts by chance.
_MIN_NAME_CHARS = 3
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
    r"(?:[A-Z]{1,3}[0-9]{1,4}[A-Z]{0,2}"
    r"(?:-(?:SXM[0-9]?|PCI[Ee]|NVL|[0-9]{1,4}[A-Z]{0,2}|[0-9]{1,4}GB)){0,3}"
    r"|[0-9]{3,4}(?:[A-Z]{1,2})?|V|X|Xp|Z|RTX|Thor|Orin)"
    r"(?: "
    r"(?:Ti|SUPER|Super|Ada|Blackwell|Generation|Laptop|Max-Q|GPU|PCIe|NVL|SXM[0-9]?|HBM[0-9]e?|D"
    r"|with|Design"
    r"|Server|Workstation|Max-Q|Edition|MIG|[0-9]{1,4}[Gg][Bb]|[0-9]g\.[0-9]{1,3}gb)){0,6}"
)


def copy_facts(copying: Copying, new_names: NewNames) -> None:
    """Copy versions, ranks and GPU models, and the new names of the host and the GPUs."""
    for base in (versions.EXPORT_META, versions.EXPORT_META_OLD):
        for table in copying.tables(base):
            _copy_rows(copying, table, "settings of the export", _export_rows(copying, table))
    for table in copying.tables(versions.CAPTURE_META):
        rows = _variable_rows(copying.report, table)
        _copy_rows(copying, table, "environment and settings of the capture", rows)
    host_rows = [] if new_names.host is None else [("Hostname", new_names.host)]
    for table in copying.tables(versions.SYSTEM_ENV):
        _copy_rows(copying, table, "host and system", host_rows)
    for table in copying.tables(versions.GPU):
        _copy_gpus(copying, table, new_names)


def _copy_gpus(copying: Copying, table: str, new_names: NewNames) -> None:
    """Copy a table of GPUs.

    The UUID and the place on the bus of each GPU are replaced. The new ones only show which GPUs of
    several reports are the same.
    """
    checked = {"name": Checked("TEXT", _model_names(copying, table))}
    for column, new_texts in (("uuid", new_names.uuids), ("busLocation", new_names.bus_locations)):
        rows = [(row, new_texts.get(text)) for row, text in _texts(copying, table, column)]
        # An empty text has no new one.
        n_replaced = sum(new_text is not None for _, new_text in rows)
        copying.removed.add(HARDWARE, f"{table}.{column}", n_replaced, "values")
        checked[column] = Checked("TEXT", rows)
    copying.copy(table, checked)


def copy_counters(copying: Copying) -> None:
    """Copy the names and the samples of those GPU metrics that analysis reads."""
    conditions = []
    for table in copying.tables(versions.GPU_METRIC_NAMES, "metricId", "metricName"):
        rows = _texts(copying, table, "metricName")
        names_read = [(row, name) for row, name in rows if counter_of(name)]
        checked = {"metricName": Checked("TEXT", names_read)}
        # In SQL, `of_metricName` has the checked names. Rows without a checked name are left out.
        copying.copy(table, checked, where="of_metricName.row IS NOT NULL")
        _count_rows_removed(copying, table)
        metric_ids = f"SELECT metricId FROM main.{quoted(table)}"  # noqa: S608
        conditions.append(f"t.metricId IN ({metric_ids})")
    # False, which is 0 in SQL, without a table of names. Then no sample is copied.
    is_read = " OR ".join(conditions) or "0"
    for table in copying.tables(versions.GPU_METRICS, "metricId"):
        copying.copy(table, where=is_read)
        _count_rows_removed(copying, table)


def _count_rows_removed(copying: Copying, table: str) -> None:
    """Count the GPU metrics in a table that were not copied."""
    n_removed = copying.count(table) - copying.count(table, schema="main")
    copying.removed.add("GPU metrics that no answer needs", table, n_removed)


def _copy_rows(copying: Copying, table: str, kind: str, rows: Iterable[tuple[str, str]]) -> None:
    """Make a table of the copy with some rows of name and value, and count the other rows.

    `kind` is what these hold.
    """
    n_copied = 0
    if copying.report.has(table, "name", "value"):
        n_copied = copying.create(table, {"name": "TEXT", "value": "TEXT"}, rows)
    copying.removed.add(kind, table, copying.count(table) - n_copied)


def _export_rows(copying: Copying, table: str) -> Iterator[tuple[str, str]]:
    """Yield name and value of each setting of the export that is copied.

    A version of an unexpected form is counted as removed.
    """
    names = [f"'{name}'" for name in (*_VERSIONS, _TABLES, _LAZY)]
    condition = f"name IN ({', '.join(names)})"
    for row in copying.report.few(table, {"name": "text", "value": "text"}, condition):
        name = row["name"]
        value = row["value"]
        if name == _LAZY:
            # To the reader of reports, any other value means true.
            is_lazy = value.lower() != "false"
            yield name, str(is_lazy).lower()
        elif name == _TABLES:
            yield name, _table_list(value.strip())
        elif _VERSION.fullmatch(value):
            yield name, value
        else:
            copying.removed.add(_FORM, f"{table}.value", 1, "values")


def _table_list(value: str) -> str:
    """Return those tables of a list of exported tables that are copied.

    The result is empty only if the list was empty, because an empty list stands for all tables.
    """
    copied_tables = [table for table in {**NUMBERS, **CHECKED} if names_table(value, table)]
    if value and not copied_tables:
        # No table has this name.
        return "-"
    return ",".join(copied_tables)


def _variable_rows(report: Report, table: str) -> Iterator[tuple[str, str]]:
    """Yield name and value of the rows about a capture that are copied.

    The rows tell what was recorded (NVTX, Python backtraces, CPU samples), or have a variable of a
    rank. A value of an unexpected form is replaced by a mark. Different values of a variable get
    different marks.
    """
    capture = read_capture_rows(report)
    if traces_nvtx(capture):
        yield NVTX_TRACED
    if records_python_backtraces(capture):
        yield PYTHON_BACKTRACES
    is_sampled = samples_cpu(capture)
    if is_sampled is not None:
        yield CPU_TRACE, str(is_sampled).lower()
    mark_of_value: dict[tuple[str, str], str] = {}
    for row_name, name, value in variables_of(report, RANK_VARIABLES, table):
        form = _INTEGERS if name == _DEVICES else _INTEGER
        new_value = value
        if form.fullmatch(value) is None:
            new_value = mark_of_value.setdefault((name, value), f"?{len(mark_of_value)}")
        has_form = _ENVIRONMENT_ROW.fullmatch(row_name) is not None
        new_row_name = row_name if has_form else "ENVIRONMENT_VARIABLE"
        yield new_row_name, f'{name}="{new_value}"'


def _texts(copying: Copying, table: str, column: str) -> Iterable[tuple[int, str]]:
    """Return row numbers and texts of a column of a table. Nulls are empty."""
    rows = copying.report.select(table, {column: "text"}, derived={"row": "rowid"})
    numbers = rows["row"].to_pylist()
    texts = rows[column].to_pylist()
    return zip(numbers, texts, strict=True)


def _model_names(copying: Copying, table: str) -> Iterator[tuple[int, str]]:
    """Yield row number and model of each GPU.

    A name that does not look like a model is replaced by a mark. Equal names have equal marks.
    """
    mark_of_name: dict[str, str] = {}
    for row, name in _texts(copying, table, "name"):
        if not name or _MODEL.fullmatch(name):
            yield row, name
            continue
        copying.removed.add(_FORM, f"{table}.name", 1, "values")
        mark = mark_of_name.setdefault(name, f"unknown model {len(mark_of_name)}")
        yield row, mark


# The payloads of NCCL, made again from the numbers that analysis reads, with zeros between them.

# Stands for a payload that analysis only counts.
MARK = b"\x00"
PAYLOADS = "payloads of NVTX ranges"
_MAX_64_BITS = 2**64 - 1


def packed(
    blobs: pa.ChunkedArray, domains: Int64, layouts: Mapping[tuple[int, int], Layout]
) -> list[bytes]:
    """Return each blob with only the numbers that are read; `MARK` for a blob that fits no layout.

    `domains` has the NVTX domain of each blob, and `layouts` the layouts by domain and schema.
    """
    schemas = [schema for _, schema in layouts]
    layouts_in_order = [*layouts.values()]
    layout_of_blob = decode_fields(blobs, domains, layouts).layout.tolist()
    packed_blobs = []
    for blob, position in zip(blobs.to_pylist(), layout_of_blob, strict=True):
        packed_blob = MARK
        fits_layout = position >= 0
        if fits_layout:
            packed_blob = _packed(blob, schemas[position], layouts_in_order[position])
        packed_blobs.append(packed_blob)
    return packed_blobs


def _packed(blob: bytes, schema: int, layout: Layout) -> bytes:
    """Return a blob with a new header, the numbers that are read, and zeros between them."""
    payload = blob[HEADER.itemsize :]
    new_payload = bytearray(layout.n_bytes)
    for name in names_in(layout).values():
        number_format, start = layout.fields[name]
        end = start + np.dtype(number_format).itemsize
        new_payload[start:end] = payload[start:end]
    unsigned_schema = schema & _MAX_64_BITS
    schema_high, schema_low = divmod(unsigned_schema, 2**32)
    n_blob_bytes = HEADER.itemsize + layout.n_bytes
    # One payload, in the order of the fields of `HEADER`.
    header_values = (1, schema_low, schema_high, layout.n_bytes, n_blob_bytes)
    header = np.array([header_values], HEADER)
    return header.tobytes() + new_payload


def copy_layouts(copying: Copying) -> None:
    """Copy the layouts of payloads; names of fields that are not read become numbers."""
    for table in copying.tables(versions.PAYLOAD_ENTRIES):
        names = _entry_names(copying, table)
        copying.copy(table, {"name": Checked("TEXT", names)})


def copy_payload_tables(copying: Copying) -> None:
    """Copy the tables of NCCL's payloads, with only the fields that are read.

    Each field gets the first of its known spellings as its name.
    """
    report = copying.report
    for table in find_payload_tables(report, read_strings(report), FIELD_SPELLINGS):
        sql_of_column = {EVENT_ID: number(EVENT_ID)}
        for field, column in table.columns.items():
            new_column = FIELD_SPELLINGS[field][0]
            sql_of_column[new_column] = number(column)
        copying.create(table.name, dict.fromkeys(sql_of_column, "INTEGER"))
        copying.fill(table.name, sql_of_column)
        copying.copied.add(table.name)


def _entry_names(copying: Copying, table: str) -> Iterator[tuple[int, str]]:
    """Yield row number and new name of each entry of a layout.

    A field that is read keeps its bare name, which has no capitals and punctuation. Any other field
    gets a number for a name. The places of fields depend on which names are equal. So equal names
    stay equal, and different spellings of a bare name get different numbers of underscores at the
    end.
    """
    # For each bare name its spellings, with the number of underscores that each gets.
    spellings_by_bare_name: dict[str, dict[str, int]] = {}
    number_of_bare_name: dict[str, int] = {}
    for row, name in _texts(copying, table, "name"):
        if not name:
            continue
        bare = bare_name(name)
        new_name = bare
        if not _is_field_read(bare):
            field_number = number_of_bare_name.setdefault(bare, len(number_of_bare_name))
            new_name = f"field{field_number}"
        # If only the spelling changes, nothing is lost.
        is_replaced = new_name != bare
        copying.removed.add(PAYLOADS, f"{table}.name", int(is_replaced), "values")
        underscores_of_spelling = spellings_by_bare_name.setdefault(bare, {})
        n_underscores = underscores_of_spelling.setdefault(name, len(underscores_of_spelling))
        yield row, new_name + "_" * n_underscores


def _is_field_read(name: str) -> bool:
    """Tell whether analysis would read an integer field of this bare name."""
    layout_with_only_field = Layout(0, is_exact=True, fields={name: ("<u8", 0)})
    return bool(names_in(layout_with_only_field))


# NVTX rows, of which only the names that are read are copied.

_NCCL_PREFIX = "nccl"
_READ_DOMAINS = {"NCCL", "MPI"}
_MPI_RANK = re.compile(r"MPI Rank [0-9]{1,18}")
# Shows that there was a name, which matters.
_REDACTED = "redacted"
# Values of `eventType`: ranges of push and pop, and of start and end.
_RANGE_ROWS = (59, 60)
_IF_RANGE = "CASE WHEN t.eventType IN (59, 60) THEN {} END"
_TEXT = "CASE typeof(t.text) WHEN 'text' THEN t.text END"


class _Name(NamedTuple):
    """What is copied of the name of a row; both are None if it has none, or a private one."""

    row: int
    text: str | None = None
    string_id: int | None = None


class _CheckedRows(NamedTuple):
    """What is copied of the names and payloads of NVTX rows."""

    # Of rows that are not ranges.
    names: list[_Name]
    # By row number, of rows with a payload.
    payloads: dict[int, bytes]


def copy_ranges(copying: Copying) -> None:
    """Copy the NVTX rows, with the texts of ranges and the names that analysis reads.

    A row with a payload and a name keeps the name, or gets a word in its place. It must not lose
    the name, because analysis takes a payload without a name for one of NCCL.
    """
    for table in copying.tables(versions.NVTX):
        names, payloads = _check_rows(copying, table)
        # MARK stands for a payload that is not copied.
        n_payloads_left_out = [*payloads.values()].count(MARK)
        copying.removed.add(PAYLOADS, f"{table}.binaryData", n_payloads_left_out, "values")
        # Names of ranges are copied as they are, other names only if they were checked.
        has_ranges = copying.report.has(table, "eventType")
        string_id_of_range = _IF_RANGE.format(number("textId")) if has_ranges else "NULL"
        text_of_range = _IF_RANGE.format(_TEXT) if has_ranges else "NULL"
        string_ids = [(name.row, name.string_id) for name in names]
        texts = [(name.row, name.text) for name in names]
        checked = {"textId": Checked("INTEGER", string_ids, string_id_of_range)}
        checked["text"] = Checked("TEXT", texts, text_of_range)
        checked["binaryData"] = Checked("BLOB", payloads.items())
        copying.copy(table, checked)
        kind = "NVTX names of threads, marks, categories and domains"
        n_removed = _n_names_removed(copying, table)
        copying.removed.add(kind, f"{table}.text", n_removed, "values")


def _n_names_removed(copying: Copying, table: str) -> int:
    """Return how many rows of a copied table lost their names.

    A row lost its name if it has a name in the report, and none or `_REDACTED` in the copy.
    """
    existing_columns = copying.report.tables[table]
    columns = [name for name in ("textId", "text") if name in existing_columns]
    if not columns:
        return 0
    has_name = " OR ".join(f"{name} IS NOT NULL" for name in columns)
    keeps_name = f"({has_name})"
    if "text" in columns:
        # In SQL, IS NOT also holds for NULL.
        keeps_name += f" AND text IS NOT '{_REDACTED}'"
    n_names = copying.count(table, has_name)
    n_names_kept = copying.count(table, keeps_name, schema="main")
    return n_names - n_names_kept


def _check_rows(copying: Copying, table: str) -> _CheckedRows:
    """Decide what is copied of the names and payloads of NVTX rows.

    Payloads of NCCL are packed. All others become a mark.
    """
    report = copying.report
    if not report.has(table, "eventType", "globalTid"):
        return _CheckedRows([], {})
    rows = _read_rows(report, table)
    is_domain = pc.equal(rows["eventType"], DOMAIN_ROW)
    has_thread = pc.is_valid(rows["globalTid"])
    domains = rows.filter(pc.and_kleene(is_domain, has_thread))
    payload_bytes = pc.binary_length(rows["binaryData"])
    rows_with_payload = rows.filter(pc.greater(payload_bytes, 0))
    nccl_payloads = _pack_nccl_payloads(report, rows_with_payload, domains)
    marks = dict.fromkeys(rows_with_payload["row"].to_pylist(), MARK)
    names = []
    for row in _rows_besides_ranges(rows).to_pylist():
        is_nccls = row["row"] in nccl_payloads
        names.append(_check_name(row, is_nccls=is_nccls))
    # In a union of dicts, the right one prevails.
    return _CheckedRows(names, marks | nccl_payloads)


def _rows_besides_ranges(rows: pa.Table) -> pa.Table:
    """Return the rows that are not known to be ranges."""
    is_range = pc.is_in(rows["eventType"], pa.array(_RANGE_ROWS))
    is_known_range = pc.fill_null(is_range, fill_value=False)
    return rows.filter(pc.invert(is_known_range))


def _pack_nccl_payloads(
    report: Report, rows_with_payload: pa.Table, domains: pa.Table
) -> dict[int, bytes]:
    """Return the new payloads of the rows whose payload is NCCL's, or may be, by row number.

    `domains` are the rows that name domains. Only rows with a thread have payloads of NCCL.
    """
    rows = rows_with_payload.filter(pc.is_valid(rows_with_payload["globalTid"]))
    is_nccls, may_be_nccls = ownership(rows, domains)
    nccl_rows = rows.filter(pa.array(is_nccls | may_be_nccls))
    domain_ids = filled(nccl_rows["domainId"], 0)
    layouts = read_layouts(report)
    new_payloads = packed(nccl_rows["binaryData"], domain_ids, layouts)
    return dict(zip(nccl_rows["row"].to_pylist(), new_payloads, strict=True))


def _read_rows(report: Report, table: str) -> pa.Table:
    """Read the rows that name threads and domains, and the rows with a payload.

    The column ``inline`` has the text in the row itself. The column ``text`` has the text of the
    row wherever nsys has it: in the row, or among the strings. ``row`` is the number of the row.
    """
    kinds = dict.fromkeys(("eventType", "globalTid", "domainId", "textId"), "int")
    kinds |= {"text": "text", "binaryData": "blob"}
    where = f"eventType IN ({THREAD_NAME_ROW}, {DOMAIN_ROW})"
    if report.has(table, "binaryData"):
        where += " OR binaryData IS NOT NULL"
    rows = report.select(table, kinds, derived={"row": "rowid"}, where=where)
    texts = names_of_rows(rows, read_strings(report)).cast(pa.string())
    column_names = ["inline" if name == "text" else name for name in rows.column_names]
    rows = rows.rename_columns(column_names)
    return rows.append_column("text", pa.chunked_array([texts]))


def _check_name(row: Mapping[str, Any], *, is_nccls: bool) -> _Name:
    """Decide what is copied of the name of a row; `is_nccls` is whether its payload is NCCL's.

    A name that analysis reads is copied as it is: as a text, or as the id of a string. Any other
    name is not copied. In rows of domains and rows with a payload, a word replaces it, because
    analysis asks whether these rows have a name.
    """
    row_number = row["row"]
    if _is_name_read(row, is_nccls=is_nccls):
        inline_text = row["inline"] or None
        string_id = None if inline_text else row["textId"]
        return _Name(row_number, inline_text, string_id)
    is_domain = row["eventType"] == DOMAIN_ROW
    has_payload = bool(row["binaryData"])
    has_name = row["text"] is not None
    needs_word = has_name and (is_domain or has_payload)
    return _Name(row_number, text=_REDACTED if needs_word else None)


def _is_name_read(row: Mapping[str, Any], *, is_nccls: bool) -> bool:
    """Tell whether analysis reads the name of a row; `is_nccls` is whether its payload is NCCL's.

    Analysis reads three kinds of names: domains of NCCL and MPI, threads that are ranks of MPI, and
    calls of NCCL, which have its payloads.
    """
    kind = row["eventType"]
    text = row["text"] or ""
    if kind == DOMAIN_ROW:
        return text in _READ_DOMAINS
    if kind == THREAD_NAME_ROW and _MPI_RANK.fullmatch(text):
        return True
    return is_nccls and text.lower().startswith(_NCCL_PREFIX)


# The string table: names of kernels and NVTX ranges, and those of CUDA's calls that look like one.

# The columns with the ids of strings: names, which are copied whatever they are, and calls.
_NAMES_OF = (
    ("named_by", versions.KERNEL, "shortName"),
    ("named_by", versions.KERNEL, "demangledName"),
    ("named_by", versions.NVTX, "textId"),
    ("called_by", versions.RUNTIME, "nameId"),
)
# cudaLaunchKernel_v7000, cuMemcpyAsync_v2_ptsz
_LETTERS = "t.value NOT GLOB '*[^A-Za-z0-9_]*' AND length(t.value) <= 128"
_CALL = f"(t.value GLOB 'cuda[A-Z]*' OR t.value GLOB 'cu[A-Z]*') AND {_LETTERS}"
_IS_REFERRED_TO = (
    "typeof(t.id) = 'integer' AND (t.id IN (SELECT id FROM temp.named_by) "  # noqa: S608
    f"OR (t.id IN (SELECT id FROM temp.called_by) AND {_CALL}))"
)


def copy_strings(copying: Copying) -> None:
    """Copy the strings that the rows of the copy refer to. Of several with one id, copy the first.

    All other tables must be copied before.
    """
    key = {"id": "INTEGER PRIMARY KEY"}
    # The ids of names, and the ids of calls, in the rows of the copy. `_IS_REFERRED_TO` reads both.
    copying.create("named_by", key, schema="temp")
    copying.create("called_by", key, schema="temp")
    for table_of_ids, base, column in _NAMES_OF:
        for table in copying.tables(base, column):
            rows = f"FROM main.{quoted(table)} WHERE {column} IS NOT NULL"
            copying.run(f"INSERT OR IGNORE INTO temp.{table_of_ids} SELECT {column} {rows}")
    for table in copying.tables(versions.STRINGS):
        n_copied = 0
        if copying.report.has(table, "id", "value"):
            copying.create("first_of", key | {"row": "INTEGER"}, schema="temp")
            strings = f"source.{quoted(table)} AS t WHERE {_IS_REFERRED_TO} ORDER BY t.rowid"
            rows_in_order = f"SELECT t.id, t.rowid FROM {strings}"  # noqa: S608
            # The first row of an id is inserted, and all later ones are ignored.
            copying.run(f"INSERT OR IGNORE INTO temp.first_of {rows_in_order}")
            copying.create(table, {"id": "INTEGER", "value": "TEXT"})
            values = {"id": number("id"), "value": "t.value"}
            where = "t.rowid IN (SELECT row FROM temp.first_of) AND typeof(t.value) = 'text'"
            copying.fill(table, values, where=where)
            n_copied = copying.count(table, schema="main")
        n_removed = copying.count(table) - n_copied
        kind = "strings that no kernel, range or CUDA call is named by"
        copying.removed.add(kind, table, n_removed)


def count_named(copying: Copying) -> None:
    """Count the texts of a complete copy that name the host, the user or the home directory."""
    private_names = _private_names(copying.report)
    if not private_names:
        return
    # A long name may begin with a short one.
    longest_first = sorted(private_names, key=len, reverse=True)
    any_name = "|".join(map(re.escape, longest_first))
    pattern = re.compile(rf"(?<!\w)(?:{any_name})(?!\w)", re.IGNORECASE)
    for base, column in ((versions.STRINGS, "value"), (versions.NVTX, "text")):
        for table in copying.tables(base, column):
            rows = f"FROM main.{quoted(table)} WHERE typeof({column}) = 'text'"
            for text in copying.run(f"SELECT {column} {rows}").scalars():
                if pattern.search(text):
                    copying.removed.n_named += 1


def _private_names(report: Report) -> set[str]:
    """Return the names of the host, the user and the home directory.

    Very short names are left out, and so are the user root and its home.
    """
    names = {host_of(report) or ""}
    for _, _, value in variables_of(report, _PRIVATE):
        names.add(value.rstrip("/"))
    names -= {"root", "/root"}
    return {name for name in names if len(name) >= _MIN_NAME_CHARS}
