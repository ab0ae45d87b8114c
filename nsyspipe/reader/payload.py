"""Communicator, size and number of NCCL calls, from the payloads of NCCL's NVTX ranges.

The report describes the layout of payloads in ``NVTX_PAYLOAD_SCHEMA_ENTRIES``. Offsets and types
come from there, never from constants, and have the meaning that is documented in NVTX's header
``nvToolsExtPayload.h``. Fields are found by the names that they have in releases of NCCL. Only
``nsys export --include-blobs=true`` exports payloads, and their layout is exported from schema
3.20.3 on. `payload_tables` reads the payloads that newer versions export as tables.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from numpy.typing import NDArray

from nsyspipe.analysis.attribution import filled
from nsyspipe.model.canonical import COMM_SIZES, PAYLOADS
from nsyspipe.model.names import bare_name
from nsyspipe.model.table import Flags, Int64
from nsyspipe.model.typed_tables import (
    CommCallsOfReportTable,
)
from nsyspipe.reader.calls import Strings
from nsyspipe.reader.host_copies import joint_codes, paired_codes
from nsyspipe.reader.payload_tables import (
    EVENT_ID,
    PayloadTable,
    find_payload_tables,
    is_linked,
    read_payload_tables,
)
from nsyspipe.reader.python_samples import condition_of_samples
from nsyspipe.reader.ranges import DOMAIN_ROW, names_of_rows, of_domains
from nsyspipe.reader.report import (
    NVTX,
    PAYLOAD_ENTRIES,
    PAYLOAD_ENUMS,
    PAYLOAD_SCHEMAS,
    TIME_LIMIT,
    Report,
    process_of,
)

# Domain and schema.
Key = tuple[int, int]
Row = Mapping[str, Any]
RowOfValues = dict[tuple[Any, ...], Row]

# The values of nvtxPayloadEntryType that are read, as numpy formats, little endian. The last two
# are size_t and an address.
_NUMBERS = {
    **dict(enumerate(("i1", "u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<i8", "<u8"), 1)),
    **dict(enumerate(("i1", "u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8"), 11)),
    19: "<f4",
    20: "<f8",
    22: "<u8",
    23: "<u8",
}
# Values of which only the size matters, by size in bytes: characters, raw bytes, other floats, long
# double, 128 bits, colors, scopes, ids of processes and threads, handles of strings, timestamps.
_BY_SIZE = {
    1: (25, 32),
    2: (26, 42, 50),
    4: (24, 27, 43, 52, 69, 71, 73),
    8: (44, 70, 72, 74, 80, *range(128, 256)),
    16: (21, 33, 34, 45),
}
_BYTES = {kind: size for size, kinds in _BY_SIZE.items() for kind in kinds}
# The bytes of a character of strings, by encoding.
_CHARACTER_BYTES = {75: 1, 76: 1, 77: 2, 78: 4}

# Flags of an entry, for pointers to other memory, and for arrays of a known or unknown length.
_POINTER = 1 << 1
_REFERENCE = 3 << 2
_ARRAY = 7 << 4
_FIXED_ARRAY = 1 << 4
_POINTER_BYTES = 8

# Columns of the tables that describe schemas, entries and enums.
_KEY_COLUMNS = ("domainId", "schemaId")
_SCHEMA_COLUMNS = (*_KEY_COLUMNS, "payloadSize")
_ENTRY_COLUMNS = (*_KEY_COLUMNS, "idx", "type", "offset", "name")

# nvtxPayloadSchemaType
_STATIC = 1
_UNIONS = (3, 4)
# Each blob starts with this header, which NVIDIA does not document. The first number seems to be
# the number of payloads, and is 1 in all known reports. The high word of the schema may be part of
# its id, or a flag. It is only compared for ids that need it.
HEADER = np.dtype(
    [
        ("n_payloads", "<u8"),
        ("schema", "<u4"),
        ("schema_high", "<u4"),
        ("n_payload", "<u8"),
        ("n_total", "<u8"),
    ]
)

# The spellings of each field, as `bare_name` returns them. The first one that a layout has is read.
FIELD_SPELLINGS = {
    "comm_id": ("ncclcommunicatorid", "communicatorid", "commhash", "commid", "ncclcommid"),
    "seq": ("seqnumber", "sequencenumber", "seq"),
    "message_bytes": ("messagesizebytes", "messagebytes", "bytes"),
    "count": ("count",),
    "datatype": ("datatype",),
    "n_ranks": ("noofranks", "nranks", "numberofranks", "numranks"),
    "rank": ("rank", "commrank", "myrank"),
    # The advanced NCCL trace gives the call, the scheduling and the work on the GPU one number.
    "operation": ("apiid", "operationid"),
    # NVIDIA documents that this number is the same on all ranks of a collective, and no such thing
    # of ``apiId``.
    "operation_id": ("operationid",),
}
# Hashes and counters, which may have any value. The other fields are counts, which are not
# negative.
_FIELDS_WITH_ANY_VALUE = {"comm_id", "seq", "operation", "operation_id"}
# Hashes that are not known yet if they are 0.
_UNKNOWN_IF_ZERO = {"comm_id", "operation_id"}
# By the number in ncclDataType_t: int8 uint8 int32 uint32 int64 uint64 float16 float32 float64
# bfloat16 float8e4m3 float8e5m2.
_DATATYPE_BYTES = np.array([1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1])
_MAX_INT64 = np.iinfo(np.int64).max
# The message size is a field, or follows from the number of elements.
_SIZE_FIELDS = ({"message_bytes"}, {"count", "datatype"})
_COLUMNS = ("comm_id", "seq", "operation_id", "message_bytes", "n_ranks", "rank")
# The layout of a payload that a table has.
_IN_A_TABLE = 0


class Layout(Struct, frozen=True):
    """One payload schema."""

    # Size of the payload, or, if not `is_exact`, the minimum that has all fields.
    n_bytes: int
    is_exact: bool
    # Numpy format and offset by `bare_name`. Entries that are not a single number, or whose offset
    # is unknown, are left out.
    fields: dict[str, tuple[str, int]]

    def dtype(self, names: Collection[str]) -> np.dtype[np.void]:
        """Return a numpy record type of some of the fields, `n_bytes` long."""
        fields = [self.fields[name] for name in names]
        formats, offsets = zip(*fields, strict=True)
        parts = {
            "names": list(names),
            "formats": formats,
            "offsets": offsets,
            "itemsize": self.n_bytes,
        }
        return np.dtype(parts)  # type: ignore[call-overload, no-any-return]


def read_layouts(report: Report) -> dict[Key, Layout]:
    """Read the layouts by (domain, schema).

    Processes may repeat the description of a schema. If they contradict each other, the schema has
    no layout.
    """
    if not report.has(PAYLOAD_SCHEMAS, *_SCHEMA_COLUMNS):
        return {}
    if not report.has(PAYLOAD_ENTRIES, *_ENTRY_COLUMNS):
        return {}
    schemas_by_key = _by_key(report, PAYLOAD_SCHEMAS, *_SCHEMA_COLUMNS, "type", "alignTo")
    entries_by_key = _by_key(
        report, PAYLOAD_ENTRIES, *_ENTRY_COLUMNS, "flags", "arrayOrUnionDetail"
    )
    enum_sizes = _enum_sizes(report)
    layouts = {}
    for key, schemas in schemas_by_key.items():
        rows = entries_by_key.get(key, [])
        entries = {row["idx"]: row for row in rows}
        is_repeated_entry = len(entries) < len(rows)
        schema = schemas[0]
        is_union = schema["type"] in _UNIONS
        if len(schemas) > 1 or is_repeated_entry or is_union:
            continue
        domain, _ = key
        enums = enum_sizes.get(domain, {})
        layouts[key] = _layout(schema, entries, enums)
    return layouts


def _enum_sizes(report: Report) -> dict[int, dict[int, int]]:
    """Return the size in bytes of each enum, by domain and id, without contradicting ones."""
    columns = (*_KEY_COLUMNS, "size")
    if not report.has(PAYLOAD_ENUMS, *columns):
        return {}
    sizes_by_domain: dict[int, dict[int, int]] = {}
    rows_by_key = _by_key(report, PAYLOAD_ENUMS, *columns)
    for (domain, enum), rows in rows_by_key.items():
        if len(rows) == 1:
            sizes = sizes_by_domain.setdefault(domain, {})
            sizes[enum] = rows[0]["size"]
    return sizes_by_domain


def _by_key(report: Report, table: str, *columns: str) -> dict[Key, list[Row]]:
    """Group the distinct rows by (domain, schema); nulls become zeros, as nsys means them."""
    kinds = {name: "text" if name == "name" else "int" for name in columns}
    distinct_rows: dict[Key, RowOfValues] = {}
    for row in report.select(table, kinds).to_pylist():
        filled_row = {name: value or 0 for name, value in row.items()}
        key = (filled_row["domainId"], filled_row["schemaId"])
        row_of_values = distinct_rows.setdefault(key, {})
        values = tuple(filled_row.values())
        row_of_values[values] = filled_row
    return {key: list(rows.values()) for key, rows in distinct_rows.items()}


def _layout(schema: Row, entries: Mapping[int, Row], enums: Mapping[int, int]) -> Layout:
    """Return the layout of a schema with the entries of these numbers."""
    pack = max(schema["alignTo"], 0)
    fields = place_entries(entries, pack=pack, enums=enums)
    end_of_field: dict[str, int] = {}
    for name, (code, offset) in fields.items():
        n_bytes_of_field = np.dtype(code).itemsize
        end_of_field[name] = offset + n_bytes_of_field
    n_bytes = schema["payloadSize"]
    is_exact = n_bytes > 0 and schema["type"] in {0, _STATIC}
    if not is_exact:
        n_bytes = max(end_of_field.values(), default=0)
    names_inside = [name for name, end in end_of_field.items() if end <= n_bytes]
    fields_inside = {name: fields[name] for name in names_inside}
    return Layout(n_bytes, is_exact, fields_inside)


def place_entries(
    entries: Mapping[int, Row], *, pack: int, enums: Mapping[int, int]
) -> dict[str, tuple[str, int]]:
    """Return format and offset of each number among the entries of a schema, by `bare_name`.

    An entry without an offset (0, and not the first) follows the entry before, at its natural
    alignment, or at that of a packed struct (`pack`, 0: none). After an entry of unknown size, the
    offset is unknown up to the next entry that has an offset. `enums` has the size in bytes of each
    enum by id.
    """
    fields: dict[str, tuple[str, int]] = {}
    # Offset of the next entry; None if it is unknown.
    offset: int | None = 0
    previous_index = -1
    for index, entry in sorted(entries.items()):
        shape = _shape(entry, enums)
        stated_offset = entry["offset"]
        is_next = index == previous_index + 1
        previous_index = index
        if stated_offset > 0:
            offset = stated_offset
        elif offset is None or stated_offset < 0 or not is_next:
            offset = None
        else:
            alignment = min(shape.alignment, pack) if pack else shape.alignment
            offset = _aligned(offset, alignment)
        if offset is None:
            continue
        if shape.code and entry["name"]:
            name = bare_name(entry["name"])
            fields.setdefault(name, (shape.code, offset))
        offset = offset + shape.n_bytes if shape.n_bytes else None
    return fields


def _aligned(offset: int, alignment: int) -> int:
    """Return the first multiple of an alignment that is not below an offset."""
    n_units = -(-offset // alignment)
    return n_units * alignment


class _Shape(NamedTuple):
    """How much room an entry takes, and how it is read."""

    # 0 if it is unknown.
    n_bytes: int
    alignment: int
    # Numpy format; None if the entry is not a single number.
    code: str | None = None


def _shape(entry: Row, enums: Mapping[int, int]) -> _Shape:
    """Return the shape of an entry. `enums` has the size in bytes of each enum by id."""
    kind = entry["type"]
    flags = entry["flags"]
    n_elements = max(entry["arrayOrUnionDetail"], 0)
    if flags & _POINTER:
        return _Shape(_POINTER_BYTES, _POINTER_BYTES)
    array_flags = flags & _ARRAY
    if flags & _REFERENCE or array_flags not in {0, _FIXED_ARRAY}:
        return _Shape(0, alignment=1)
    character_bytes = _CHARACTER_BYTES.get(kind)
    if character_bytes:
        return _Shape(character_bytes * n_elements, character_bytes)
    code = _NUMBERS.get(kind)
    enum_bytes = enums.get(kind)
    if code is None and enum_bytes in {1, 2, 4, 8}:
        code = f"<i{enum_bytes}"
    element_bytes = np.dtype(code).itemsize if code else _BYTES.get(kind, 0)
    alignment = element_bytes or 1
    if array_flags:
        return _Shape(element_bytes * n_elements, alignment)
    return _Shape(element_bytes, alignment, code)


class Fields(NamedTuple):
    """The decoded fields of some blobs."""

    # Position of the layout that a blob fits; -1 for none.
    layout: Int64
    # By field of `FIELD_SPELLINGS`. 64-bit ids are signed numbers.
    values: dict[str, Int64]
    # Where a value is valid.
    known: dict[str, Flags]


def names_in(layout: Layout) -> dict[str, str]:
    """Return the spelling of each field that a layout has as an integer."""
    integers = {name for name, (code, _) in layout.fields.items() if "f" not in code}
    spelling_of_field: dict[str, str] = {}
    for field, spellings in FIELD_SPELLINGS.items():
        existing = [spelling for spelling in spellings if spelling in integers]
        if existing:
            spelling_of_field[field] = existing[0]
    return spelling_of_field


def decode_fields(blobs: pa.ChunkedArray, domains: Int64, layouts: Mapping[Key, Layout]) -> Fields:
    """Decode the fields of all blobs that fit a layout of their domain.

    A blob fits a layout if its header has the layout's schema, and the sizes in header and layout
    agree with its length.
    """
    n_blobs = len(blobs)
    layout = np.full(n_blobs, -1)
    values = {name: np.zeros(n_blobs, np.int64) for name in FIELD_SPELLINGS}
    known = {name: np.zeros(n_blobs, np.bool_) for name in FIELD_SPELLINGS}
    fields = Fields(layout, values, known)
    first_row = 0
    for chunk in blobs.chunks:
        _decode_chunk(fields, chunk, first_row, domains, layouts)
        first_row += len(chunk)
    _derive_message_bytes(fields)
    return fields


def _decode_chunk(
    fields: Fields,
    chunk: pa.BinaryArray,
    first_row: int,
    domains: Int64,
    layouts: Mapping[Key, Layout],
) -> None:
    """Fill in the fields of one chunk of blobs, which begins at a row of all blobs."""
    lengths = pc.fill_null(pc.binary_length(chunk), 0)
    lengths = lengths.to_numpy()
    has_header = lengths >= HEADER.itemsize
    blobs = np.flatnonzero(has_header)
    if not blobs.size:
        return
    lengths = lengths[blobs].astype(np.int64)
    starts = _starts_of(chunk, blobs)
    data = np.frombuffer(chunk.buffers()[2], np.uint8)
    header = _records_at(data, starts, HEADER)
    rows = blobs + first_row
    for position, ((domain, schema), layout) in enumerate(layouts.items()):
        is_of_domain = domains[rows] == domain
        fits = is_of_domain & _fits(header, lengths, schema, layout)
        if fits.any():
            fields.layout[rows[fits]] = position
            payload_starts = starts[fits] + HEADER.itemsize
            _fill(fields, rows[fits], data, payload_starts, layout)


def _starts_of(chunk: pa.BinaryArray, blobs: Int64) -> Int64:
    """Return the position at which each of some blobs starts in the data of their chunk."""
    all_starts = np.frombuffer(chunk.buffers()[1], np.int32)
    starts: Int64 = all_starts[chunk.offset + blobs].astype(np.int64)
    return starts


def _records_at(
    data: NDArray[np.uint8], starts: Int64, dtype: np.dtype[np.void]
) -> NDArray[np.void]:
    """Return the record at each start; all at once, without an index for each byte."""
    windows = np.lib.stride_tricks.sliding_window_view(data, dtype.itemsize)
    record_bytes = np.ascontiguousarray(windows[starts])
    return record_bytes.view(dtype)[:, 0]


def _fits(header: NDArray[np.void], lengths: Int64, schema: int, layout: Layout) -> Flags:
    """Tell which blobs contain one payload of a schema.

    If the header may be of several payloads, the payload must fill the blob exactly.
    """
    n_payload = header["n_payload"]
    n_total = header["n_total"]
    is_of_schema = header["schema"] == schema & 0xFFFFFFFF
    schema_high = schema >> 32
    if schema_high:
        # nsys assigned this id.
        is_of_schema &= header["schema_high"] == schema_high & 0xFFFFFFFF
    has_size = n_payload == layout.n_bytes if layout.is_exact else n_payload >= layout.n_bytes
    n_bytes = lengths.astype(np.uint64)
    n_bytes_after_header = (lengths - HEADER.itemsize).astype(np.uint64)
    states_single_payload = header["n_payloads"] == 1
    is_single = states_single_payload & (n_total <= n_bytes)
    has_payload_to_end = n_payload == n_bytes_after_header
    is_full = has_payload_to_end & (n_total == n_bytes)
    is_inside = n_payload <= n_bytes_after_header
    fits: Flags = is_of_schema & has_size & is_inside
    fits &= is_single | is_full
    return fits


def _fill(
    fields: Fields, rows: Int64, data: NDArray[np.uint8], starts: Int64, layout: Layout
) -> None:
    """Fill in the fields of the blobs that fit one layout, whose payloads start at `starts`."""
    names = names_in(layout)
    if not names:
        return
    record_type = layout.dtype(names.values())
    records = _records_at(data, starts, record_type)
    for field, name in names.items():
        values = records[name].astype(np.int64)
        are_valid = _are_valid(field, values)
        fields.values[field][rows] = values
        fields.known[field][rows] = are_valid


def _are_valid(field: str, values: Int64) -> Flags:
    """Tell which values a field may have."""
    are_valid: Flags = values >= 0
    if field in _FIELDS_WITH_ANY_VALUE:
        are_valid = np.ones(values.size, np.bool_)
    if field in _UNKNOWN_IF_ZERO:
        are_valid = values != 0
    return are_valid


def _derive_message_bytes(fields: Fields) -> None:
    """Calculate the message size from count and datatype where a payload does not have it."""
    values = fields.values
    known = fields.known
    datatype = values["datatype"]
    count = values["count"]
    has_datatype = known["datatype"] & (datatype < _DATATYPE_BYTES.size)
    known_datatype = np.where(has_datatype, datatype, 0)
    element_bytes = _DATATYPE_BYTES[known_datatype]
    has_no_overflow = count <= _MAX_INT64 // element_bytes
    has_size_of_elements = has_datatype & known["count"] & has_no_overflow
    is_derived = has_size_of_elements & ~known["message_bytes"]
    message_bytes = count * element_bytes
    values["message_bytes"][is_derived] = message_bytes[is_derived]
    known["message_bytes"] |= is_derived


class Payloads(Struct, frozen=True):
    """The payloads of NCCL's ranges in one report."""

    # `canonical.PAYLOADS`
    table: pa.Table
    # `canonical.COMM_SIZES`
    comm_sizes: pa.Table
    # The rank of each process in its largest communicator, and the size of that communicator. A
    # process is left out if it has different ranks in communicators of this size.
    comm_ranks: dict[int, tuple[int, int]]
    # Payloads of NCCL that do not fit their description.
    n_undecoded: int
    # Why no payload has a message size: a key of `problems.SIZE_GAPS`.
    size_gap: str | None


def read_payloads(
    report: Report, strings: Strings, python_domains: Sequence[tuple[int, int]] = ()
) -> Payloads:
    """Read and decode the payloads of NCCL's ranges, in one pass over the NVTX rows of a report.

    A range without a name and domain counts as NCCL's if its payload has what NCCL reports of a
    call. The payloads of samples of Python are left out, which are in domains of their own: they
    may be many times as large, and have a limit of their own.
    """
    samples = condition_of_samples(report, python_domains)
    layouts = read_layouts(report)
    tables = find_payload_tables(report, strings, FIELD_SPELLINGS)
    described_fields = [names_in(layout).keys() for layout in layouts.values()]
    described_fields += [table.columns.keys() for table in tables]
    if not any(described_fields) or not _has_payloads(report, tables):
        return _no_payloads(report, samples)
    rows = _read_rows(report, strings, samples, has_tables=bool(tables))
    events = _rows_with_payload(rows)
    domain_ids = filled(events["domainId"], 0)
    fields = decode_fields(events["binaryData"], domain_ids, layouts)
    _fill_from_tables(fields, report, tables, events)
    domains = rows.filter(pc.equal(rows["eventType"], DOMAIN_ROW))
    is_nccls, may_be_nccls = ownership(events, domains)
    table = _table(events, fields, _are_of_calls(fields, is_nccls, may_be_nccls))
    size_gap = None
    if table["message_bytes"].null_count == table.num_rows:
        size_gap = _size_gap(events.num_rows, described_fields)
    return Payloads(
        table=table,
        comm_sizes=_comm_sizes(table),
        comm_ranks=_comm_ranks(table),
        n_undecoded=_n_undecoded(fields, is_nccls | may_be_nccls),
        size_gap=size_gap,
    )


def _has_payloads(report: Report, tables: Collection[PayloadTable]) -> bool:
    """Tell whether the export may have payloads, as bytes or in tables."""
    if not report.has(NVTX, "globalTid", "start"):
        return False
    return bool(tables) or report.has(NVTX, "binaryData")


def _fill_from_tables(
    fields: Fields, report: Report, tables: Collection[PayloadTable], events: pa.Table
) -> None:
    """Fill in the fields of the events whose binary payload was not decoded from tables."""
    if not tables:
        return
    of_tables = read_payload_tables(report, tables, events, FIELD_SPELLINGS)
    has_no_layout = fields.layout < 0
    rows = np.flatnonzero(of_tables.is_described & has_no_layout)
    fields.layout[rows] = _IN_A_TABLE
    for field, values in of_tables.values.items():
        chosen = values[rows]
        is_known = of_tables.known[field][rows]
        fields.values[field][rows] = chosen
        fields.known[field][rows] = is_known & _are_valid(field, chosen)
    _derive_message_bytes(fields)


def _n_undecoded(fields: Fields, may_be_nccls: Flags) -> int:
    """Return the number of payloads of NCCL that fit no layout."""
    has_no_layout = fields.layout < 0
    n_undecoded = np.count_nonzero(may_be_nccls & has_no_layout)
    return int(n_undecoded)


def _are_of_calls(fields: Fields, is_nccls: Flags, may_be_nccls: Flags) -> Flags:
    """Tell which payloads have values of a call of NCCL."""
    known = fields.known
    are_known = [known[name] for name in _COLUMNS]
    has_value: Flags = np.logical_or.reduce(are_known)
    describes_call = known["comm_id"] | known["message_bytes"]
    is_of_nccl = is_nccls | (may_be_nccls & describes_call)
    return has_value & is_of_nccl


def _rows_with_payload(rows: pa.Table) -> pa.Table:
    """Return the rows with a binary payload, or a payload in a table, on a thread."""
    n_bytes = pc.binary_length(rows["binaryData"])
    has_payload = pc.greater(n_bytes, 0)
    if EVENT_ID in rows.column_names:
        has_payload = pc.or_(has_payload, pc.equal(rows["is_linked"], 1))
    has_thread = pc.is_valid(rows["globalTid"])
    return rows.filter(pc.and_(has_payload, has_thread))


def _no_payloads(report: Report, samples: str | None) -> Payloads:
    """Return the result for a report whose payloads cannot be decoded."""
    has_payloads = False
    if report.has(NVTX, "binaryData"):
        condition = _unless_sample('length("binaryData") > 0', samples)
        has_payloads = report.count(NVTX, condition) > 0
    size_gap = "not-described" if has_payloads else "no-payloads"
    no_payloads = PAYLOADS.empty()
    no_sizes = COMM_SIZES.empty()
    return Payloads(no_payloads, no_sizes, comm_ranks={}, n_undecoded=0, size_gap=size_gap)


def _unless_sample(condition: str, samples: str | None) -> str:
    """Return an SQL condition that no sample of Python meets."""
    if samples is None:
        return condition
    return f"({condition} AND NOT coalesce({samples}, 0))"


def _read_rows(
    report: Report, strings: Strings, samples: str | None, *, has_tables: bool
) -> pa.Table:
    """Read the NVTX rows with a payload, and those of domains; ``text`` has the whole name.

    If payloads are in tables, ``is_linked`` tells which rows refer to one.
    """
    numbers = ("eventType", "globalTid", "domainId", "start", "end", "textId")
    kinds = dict.fromkeys(numbers, "int")
    kinds |= {"text": "text", "binaryData": "blob"}
    conditions = [f"eventType = {DOMAIN_ROW}"]
    if report.has(NVTX, "binaryData"):
        conditions.append(_unless_sample("binaryData IS NOT NULL", samples))
    derived: dict[str, str] = {}
    if has_tables:
        kinds[EVENT_ID] = "int"
        condition = is_linked(report)
        conditions.append(condition)
        derived["is_linked"] = condition
    where = " OR ".join(conditions)
    rows = report.select(NVTX, kinds, derived=derived, where=where)
    names = names_of_rows(rows, strings).cast(pa.string())
    texts = pa.chunked_array([names])
    text_column = rows.schema.get_field_index("text")
    return rows.set_column(text_column, "text", texts)


def _size_gap(n_blobs: int, fields_of_layouts: Iterable[Collection[str]]) -> str:
    """Return why no payload has a message size."""
    if n_blobs:
        return "not-described"
    is_described = any(map(_describes_size, fields_of_layouts))
    return "not-exported" if is_described else "no-payloads"


def _describes_size(fields: Collection[str]) -> bool:
    return any(needed.issubset(fields) for needed in _SIZE_FIELDS)


def communicator_sizes(payloads: Payloads, comm_calls: CommCallsOfReportTable) -> Int64:
    """Return the number of ranks of the communicator of each call of `canonical.COMM_CALLS`.

    It is 0 if no payload has it.
    """
    sizes = np.zeros(comm_calls.num_rows, np.int64)
    if not payloads.table.num_rows:
        return sizes
    payload_sizes = _sizes_of_payloads(payloads)
    payload_rows = _payloads_of_calls(payloads.table, comm_calls)
    has_payload = payload_rows >= 0
    sizes[has_payload] = payload_sizes[payload_rows[has_payload]]
    return sizes


def _sizes_of_payloads(payloads: Payloads) -> Int64:
    """Return the number of ranks of the communicator of each payload; 0 if it is not known.

    A payload without this number may have a communicator whose size another payload has.
    """
    table = payloads.table
    comm_ids = filled(table["comm_id"], 0)
    comms, comm = np.unique(comm_ids, return_inverse=True)
    process_ids = table["process_id"].to_numpy()
    processes, process = np.unique(process_ids, return_inverse=True)
    n_comms = comms.size
    pairs, pair = np.unique(process * n_comms + comm, return_inverse=True)
    process_of_pair = processes[pairs // n_comms]
    comm_of_pair = comms[pairs % n_comms]
    sizes_of_pairs = _known_sizes(payloads.comm_sizes, process_of_pair, comm_of_pair)
    known_sizes = sizes_of_pairs[pair]
    n_ranks = filled(table["n_ranks"], 0)
    return np.where(n_ranks > 0, n_ranks, known_sizes)


def _known_sizes(comm_sizes: pa.Table, process_ids: Int64, comm_ids: Int64) -> Int64:
    """Return the number of ranks of each process and communicator; 0 if it is not known.

    `comm_sizes` is `canonical.COMM_SIZES`.
    """
    size_of_comm: dict[tuple[int, int], int] = {}
    for row in comm_sizes.to_pylist():
        comm = (row["process_id"], row["comm_id"])
        size_of_comm[comm] = row["n_ranks"]
    comms = zip(process_ids.tolist(), comm_ids.tolist(), strict=True)
    sizes = [size_of_comm.get(comm, 0) for comm in comms]
    return np.array(sizes, np.int64)


def _payloads_of_calls(table: pa.Table, comm_calls: CommCallsOfReportTable) -> Int64:
    """Return the row of the payload of each call; -1 for none.

    A payload belongs to the range that the same thread opened at the same time.
    """
    n_payloads = table.num_rows
    thread = _codes_of_column("thread_id", table, comm_calls)
    start = _codes_of_column("start_ns", table, comm_calls)
    key = paired_codes(thread, start)
    key_of_payload = key[:n_payloads]
    key_of_call = key[n_payloads:]
    order = np.argsort(key_of_payload, kind="stable")
    place = np.searchsorted(key_of_payload[order], key_of_call)
    place = np.minimum(place, n_payloads - 1)
    row = order[place]
    has_key = key_of_payload[row] == key_of_call
    return np.where(has_key, row, -1)


def _codes_of_column(name: str, table: pa.Table, second_table: pa.Table) -> Int64:
    """Return the joint codes of a column that two tables have."""
    values = table[name].to_numpy()
    second_values = second_table[name].to_numpy()
    return joint_codes(values, second_values)


def ownership(rows: pa.Table, domains: pa.Table) -> tuple[Flags, Flags]:
    """Tell which rows are NCCL's by text or domain, and which may be because they have neither."""
    begins_nccl = pc.starts_with(rows["text"], "nccl", ignore_case=True)
    has_nccl_text = pc.fill_null(begins_nccl, fill_value=False).to_numpy()
    is_nccls: Flags = has_nccl_text | of_domains(rows, domains, "NCCL".__eq__)
    has_no_text = pc.is_null(rows["text"]).to_numpy()
    has_domain = of_domains(rows, domains, lambda _: True)
    may_be_nccls = has_no_text & ~has_domain & ~is_nccls
    return is_nccls, may_be_nccls


def _table(blobs: pa.Table, fields: Fields, is_chosen: Flags) -> pa.Table:
    """Return the chosen rows as `canonical.PAYLOADS`, sorted by process, start and thread."""
    starts = filled(blobs["start"], TIME_LIMIT)
    is_possible = (starts > -TIME_LIMIT) & (starts < TIME_LIMIT)
    rows = np.flatnonzero(is_chosen & is_possible)
    threads = blobs["globalTid"].to_numpy()
    processes = process_of(threads)
    sort_keys = (threads[rows], starts[rows], processes[rows])
    rows = rows[np.lexsort(sort_keys)]
    rows = rows[_begin_operations(blobs, fields, rows)]
    starts = starts[rows]
    ends = filled(blobs["end"], TIME_LIMIT)[rows]
    is_open = (ends < starts) | (ends >= TIME_LIMIT)
    texts = blobs["text"].take(pa.array(rows))
    columns = {
        "process_id": processes[rows],
        "thread_id": threads[rows],
        "start_ns": starts,
        "end_ns": pa.array(ends, mask=is_open),
        "call": pc.dictionary_encode(texts),
    }
    for name in _COLUMNS:
        values = fields.values[name][rows]
        is_known = fields.known[name][rows]
        columns[name] = pa.array(values, mask=~is_known)
    return PAYLOADS.table(columns)


def _begin_operations(blobs: pa.Table, fields: Fields, rows: Int64) -> Flags:
    """Tell which rows, in order of time, are the first of their operation, which is the call.

    The advanced NCCL trace may have several ranges of one name for an operation, which would count
    as several calls. Rows without a number of their operation are all first.
    """
    known_operation = fields.known["operation"][rows]
    operation = fields.values["operation"][rows]
    has_operation = known_operation & (operation != 0)
    if not has_operation.any():
        return np.ones(rows.size, np.bool_)
    process = process_of(blobs["globalTid"].to_numpy()[rows])
    texts = blobs["text"].take(pa.array(rows)).combine_chunks()
    text = pc.fill_null(pc.dictionary_encode(texts).indices, -1).to_numpy()
    comm = fields.values["comm_id"][rows]
    numbered = np.flatnonzero(has_operation)
    # The ranks of one process may share the number.
    rank = np.where(fields.known["rank"], fields.values["rank"], -1)[rows]
    keys = np.stack([process, text, comm, operation, rank])[:, numbered]
    _, first = np.unique(keys, axis=1, return_index=True)
    is_first: Flags = ~has_operation
    is_first[numbered[first]] = True
    return is_first


def _comm_sizes(table: pa.Table) -> pa.Table:
    """Return the communicators whose payloads agree on their number of ranks."""
    rows = table.select(COMM_SIZES.names).drop_null()
    has_size = pc.greater(rows["n_ranks"], 0)
    groups = rows.filter(has_size).group_by(COMM_SIZES.names, use_threads=False)
    distinct_rows = groups.aggregate([])
    keys = ["process_id", "comm_id"]
    comms = distinct_rows.group_by(keys, use_threads=False)
    sizes = comms.aggregate([("n_ranks", "min"), ("n_ranks", "count")])
    has_only_size = pc.equal(sizes["n_ranks_count"], 1)
    sizes = sizes.filter(has_only_size)
    sizes = sizes.sort_by([(key, "ascending") for key in keys])
    columns = {key: sizes[key] for key in keys}
    columns["n_ranks"] = sizes["n_ranks_min"]
    return COMM_SIZES.table(columns)


def _comm_ranks(table: pa.Table) -> dict[int, tuple[int, int]]:
    """Return the rank of each process in its largest communicator, and the size of that one."""
    names = ["process_id", "n_ranks", "rank"]
    rows = table.select(names).drop_null()
    rows = rows.group_by(names, use_threads=False).aggregate([])
    ranks_by_comm: dict[tuple[int, int], list[int]] = {}
    largest: dict[int, int] = {}
    columns = [rows[name].to_pylist() for name in names]
    for process, n_ranks, rank in zip(*columns, strict=True):
        ranks = ranks_by_comm.setdefault((process, n_ranks), [])
        ranks.append(rank)
        largest_known = largest.get(process, n_ranks)
        largest[process] = max(n_ranks, largest_known)
    comm_ranks = {}
    for process, n_ranks in largest.items():
        ranks = ranks_by_comm[process, n_ranks]
        if len(ranks) == 1 and 0 <= ranks[0] < n_ranks:
            comm_ranks[process] = (ranks[0], n_ranks)
    return comm_ranks
