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

# nvtxPayloadSchemaType. A static schema has payloads of one size.
_NOT_STATED = 0
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

    Processes may repeat the description of a schema. A schema whose descriptions contradict each
    other has no layout. Unions have none either, because their entries share their bytes.
    """
    if not report.has(PAYLOAD_SCHEMAS, *_SCHEMA_COLUMNS):
        return {}
    if not report.has(PAYLOAD_ENTRIES, *_ENTRY_COLUMNS):
        return {}
    schemas_by_key = _by_key(report, PAYLOAD_SCHEMAS, *_SCHEMA_COLUMNS, "type", "alignTo")
    entries_by_key = _by_key(
        report, PAYLOAD_ENTRIES, *_ENTRY_COLUMNS, "flags", "arrayOrUnionDetail"
    )
    enum_sizes_by_domain = _enum_sizes_by_domain(report)
    layouts = {}
    for key, distinct_schemas in schemas_by_key.items():
        distinct_entries = entries_by_key.get(key, [])
        entry_of_index = {entry["idx"]: entry for entry in distinct_entries}
        # Different schemas contradict each other, and so do different entries with one index.
        has_one_entry_per_index = len(entry_of_index) == len(distinct_entries)
        is_consistent = len(distinct_schemas) == 1 and has_one_entry_per_index
        schema = distinct_schemas[0]
        if not is_consistent or schema["type"] in _UNIONS:
            continue
        domain, _ = key
        enum_sizes = enum_sizes_by_domain.get(domain, {})
        layouts[key] = _layout(schema, entry_of_index, enum_sizes)
    return layouts


def _enum_sizes_by_domain(report: Report) -> dict[int, dict[int, int]]:
    """Return the size in bytes of each enum by its id, for each domain.

    An enum with contradicting sizes is left out.
    """
    columns = (*_KEY_COLUMNS, "size")
    if not report.has(PAYLOAD_ENUMS, *columns):
        return {}
    sizes_by_domain: dict[int, dict[int, int]] = {}
    rows_by_key = _by_key(report, PAYLOAD_ENUMS, *columns)
    # The column `schemaId` of this table has the id of the enum.
    for (domain, enum), distinct_rows in rows_by_key.items():
        if len(distinct_rows) == 1:
            size_of_enum = sizes_by_domain.setdefault(domain, {})
            size_of_enum[enum] = distinct_rows[0]["size"]
    return sizes_by_domain


def _by_key(report: Report, table: str, *columns: str) -> dict[Key, list[Row]]:
    """Return the distinct rows of a table for each (domain, schema).

    Null numbers become zeros, because nsys writes null for 0.
    """
    kinds = {name: "text" if name == "name" else "int" for name in columns}
    # The values of a row are the key of the row in the inner dict. So only one of equal rows stays.
    row_of_values_by_key: dict[Key, RowOfValues] = {}
    for row in report.select(table, kinds).to_pylist():
        filled_row = {name: 0 if value is None else value for name, value in row.items()}
        key = (filled_row["domainId"], filled_row["schemaId"])
        row_of_values = row_of_values_by_key.setdefault(key, {})
        values = tuple(filled_row.values())
        row_of_values[values] = filled_row
    return {key: list(rows.values()) for key, rows in row_of_values_by_key.items()}


def _layout(schema: Row, entry_of_index: Mapping[int, Row], enums: Mapping[int, int]) -> Layout:
    """Return the layout of a schema with some entries. `enums` has the bytes of each enum by id.

    Fields that reach beyond the end of the payload are left out.
    """
    # A negative alignment is damaged, and counts as none.
    pack = max(schema["alignTo"], 0)
    fields = place_entries(entry_of_index, pack=pack, enums=enums)
    end_of_field: dict[str, int] = {}
    for name, (number_format, offset) in fields.items():
        n_bytes_of_field = np.dtype(number_format).itemsize
        end_of_field[name] = offset + n_bytes_of_field
    stated_bytes = schema["payloadSize"]
    is_exact = stated_bytes > 0 and schema["type"] in {_NOT_STATED, _STATIC}
    # Without an exact size, a payload must at least have room for all fields.
    n_bytes = stated_bytes if is_exact else max(end_of_field.values(), default=0)
    fields_inside = {name: fields[name] for name, end in end_of_field.items() if end <= n_bytes}
    return Layout(n_bytes, is_exact, fields_inside)


def place_entries(
    entries: Mapping[int, Row], *, pack: int, enums: Mapping[int, int]
) -> dict[str, tuple[str, int]]:
    """Return format and offset of each number among the entries of a schema, by `bare_name`.

    `entries` has the entries by index. Entries that are not a number, or whose offset is not
    known, are left out. An offset of 0 means that the entry follows the entry with the index
    before. Then the entry begins at the next multiple of its alignment. In a packed struct, no
    alignment is larger than `pack` bytes (0 for a struct that is not packed). The offset is not
    known after an entry of unknown size, or after a missing index. `enums` has the size in bytes
    of each enum by id.
    """
    fields: dict[str, tuple[str, int]] = {}
    # The first index is 0, and the first entry begins at 0.
    next_index = 0
    # Where the entry before ends; None if that is not known.
    end_of_previous: int | None = 0
    for index, entry in sorted(entries.items()):
        if index != next_index:
            # The entry before is missing.
            end_of_previous = None
        next_index = index + 1
        shape = _shape(entry, enums)
        alignment = min(shape.alignment, pack) if pack else shape.alignment
        offset = _offset(entry["offset"], end_of_previous, alignment=alignment)
        # The size is 0 if it is not known.
        end_of_previous = offset + shape.n_bytes if offset is not None and shape.n_bytes else None
        if offset is not None and shape.number_format and entry["name"]:
            name = bare_name(entry["name"])
            fields.setdefault(name, (shape.number_format, offset))
    return fields


def _offset(stated_offset: int, end_of_previous: int | None, *, alignment: int) -> int | None:
    """Return where an entry begins; None if that is not known. A stated 0 means "not stated"."""
    if stated_offset > 0:
        return stated_offset
    if stated_offset < 0 or end_of_previous is None:
        return None
    return _aligned(end_of_previous, alignment)


def _aligned(offset: int, alignment: int) -> int:
    """Return the first multiple of an alignment that is not below an offset."""
    n_bytes_to_next_multiple = -offset % alignment
    return offset + n_bytes_to_next_multiple


class _Shape(NamedTuple):
    """How much room an entry takes, and how it is read."""

    # 0 if it is unknown.
    n_bytes: int
    # In bytes.
    alignment: int
    # Numpy's format of the number; None if the entry is not a single number.
    number_format: str | None = None


def _shape(entry: Row, enums: Mapping[int, int]) -> _Shape:
    """Return the shape of an entry. `enums` has the size in bytes of each enum by id.

    Pointers, strings and arrays take room, but are not read as numbers.
    """
    kind = entry["type"]
    flags = entry["flags"]
    n_elements = max(entry["arrayOrUnionDetail"], 0)
    if flags & _POINTER:
        return _Shape(n_bytes=_POINTER_BYTES, alignment=_POINTER_BYTES)
    array_flags = flags & _ARRAY
    is_fixed_array = array_flags == _FIXED_ARRAY
    has_unknown_length = array_flags != 0 and not is_fixed_array
    if flags & _REFERENCE or has_unknown_length:
        return _Shape(n_bytes=0, alignment=1)
    character_bytes = _CHARACTER_BYTES.get(kind)
    if character_bytes:
        return _Shape(n_bytes=character_bytes * n_elements, alignment=character_bytes)
    number_format = _number_format(kind, enums)
    if number_format is None:
        # 0 if the size of this type is not known.
        element_bytes = _BYTES.get(kind, 0)
    else:
        element_bytes = np.dtype(number_format).itemsize
    # An element of unknown size needs no alignment.
    alignment = element_bytes or 1
    if is_fixed_array:
        return _Shape(n_bytes=element_bytes * n_elements, alignment=alignment)
    return _Shape(element_bytes, alignment, number_format)


def _number_format(kind: int, enums: Mapping[int, int]) -> str | None:
    """Return numpy's format of a type of numbers or an enum; None for another type."""
    enum_bytes = enums.get(kind)
    is_enum = kind not in _NUMBERS and enum_bytes in {1, 2, 4, 8}
    return f"<i{enum_bytes}" if is_enum else _NUMBERS.get(kind)


class Fields(NamedTuple):
    """The decoded fields of some blobs."""

    # Position of the layout that a blob fits; -1 for none.
    layout: Int64
    # By field of `FIELD_SPELLINGS`. 64-bit ids are signed numbers.
    values: dict[str, Int64]
    # Where a value is valid.
    known: dict[str, Flags]


def names_in(layout: Layout) -> dict[str, str]:
    """Return how a layout spells each field of `FIELD_SPELLINGS` that it has as an integer."""
    formats = layout.fields.items()
    # Formats of floats have an f: ``<f4``.
    names_of_integers = {name for name, (number_format, _) in formats if "f" not in number_format}
    spelling_of_field: dict[str, str] = {}
    for field, spellings in FIELD_SPELLINGS.items():
        existing = [spelling for spelling in spellings if spelling in names_of_integers]
        if existing:
            spelling_of_field[field] = existing[0]
    return spelling_of_field


def decode_fields(blobs: pa.ChunkedArray, domains: Int64, layouts: Mapping[Key, Layout]) -> Fields:
    """Decode the fields of all blobs that fit a layout of their domain.

    `domains` has the domain of each blob, and `layouts` the layouts by (domain, schema). A blob
    fits a layout if its header names the layout's schema, and its length agrees with the sizes in
    its header and in the layout.
    """
    n_blobs = len(blobs)
    # No blob fits a layout yet.
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
    """Fill in the fields of one chunk of blobs.

    `fields` and `domains` have a value for each blob of all chunks. Those of this chunk begin at
    the position `first_row`.
    """
    lengths_in_chunk = pc.fill_null(pc.binary_length(chunk), 0).to_numpy()
    has_header = lengths_in_chunk >= HEADER.itemsize
    # The blobs with a header, by their position in the chunk. All arrays below are of these.
    place_in_chunk = np.flatnonzero(has_header)
    if not place_in_chunk.size:
        return
    lengths = lengths_in_chunk[place_in_chunk].astype(np.int64)
    starts = _starts_of(chunk, place_in_chunk)
    # An Arrow array of binary values has the buffers validity, starts and bytes.
    data = np.frombuffer(chunk.buffers()[2], np.uint8)
    headers = _records_at(data, starts, HEADER)
    rows = first_row + place_in_chunk
    for layout_position, ((domain, schema), layout) in enumerate(layouts.items()):
        is_of_domain = domains[rows] == domain
        fits = is_of_domain & _fits(headers, lengths, schema, layout)
        if fits.any():
            fields.layout[rows[fits]] = layout_position
            payload_starts = starts[fits] + HEADER.itemsize
            _fill(fields, rows[fits], data, payload_starts, layout)


def _starts_of(chunk: pa.BinaryArray, place_in_chunk: Int64) -> Int64:
    """Return the byte of a chunk's data at which each blob with one of some places starts."""
    # The chunk may be a slice, whose first blob is the blob `offset` of the buffers.
    starts_in_buffer = np.frombuffer(chunk.buffers()[1], np.int32)
    starts: Int64 = starts_in_buffer[chunk.offset + place_in_chunk].astype(np.int64)
    return starts


def _records_at(
    data: NDArray[np.uint8], starts: Int64, dtype: np.dtype[np.void]
) -> NDArray[np.void]:
    """Return the record that begins at each of some positions of the data, in their order.

    All records are copied at once, without an index for each byte.
    """
    # Window n is a view of the bytes of the record that would begin at byte n.
    windows = np.lib.stride_tricks.sliding_window_view(data, dtype.itemsize)
    record_bytes = np.ascontiguousarray(windows[starts])
    return record_bytes.view(dtype)[:, 0]


def _fits(headers: NDArray[np.void], lengths: Int64, schema: int, layout: Layout) -> Flags:
    """Tell which blobs contain exactly one payload of a schema.

    `headers` and `lengths` have the header and the number of bytes of each blob. If a header does
    not state a single payload, the payload must fill the blob exactly.
    """
    # A header has the two halves of the id of the schema apart.
    lower_half = schema & 0xFFFFFFFF
    upper_half = (schema >> 32) & 0xFFFFFFFF
    is_of_schema = headers["schema"] == lower_half
    if upper_half:
        # nsys assigned this id, which differs from others in this half only.
        is_of_schema &= headers["schema_high"] == upper_half
    payload_bytes = headers["n_payload"]
    if layout.is_exact:
        has_size = payload_bytes == layout.n_bytes
    else:
        has_size = payload_bytes >= layout.n_bytes
    # Unsigned like the numbers of the header, so that large ones are compared exactly.
    blob_bytes = lengths.astype(np.uint64)
    bytes_after_header = (lengths - HEADER.itemsize).astype(np.uint64)
    stated_blob_bytes = headers["n_total"]
    is_inside = (payload_bytes <= bytes_after_header) & (stated_blob_bytes <= blob_bytes)
    fills_blob = (payload_bytes == bytes_after_header) & (stated_blob_bytes == blob_bytes)
    states_single_payload = headers["n_payloads"] == 1
    fits: Flags = is_of_schema & has_size & is_inside
    fits &= states_single_payload | fills_blob
    return fits


def _fill(
    fields: Fields, rows: Int64, data: NDArray[np.uint8], starts: Int64, layout: Layout
) -> None:
    """Fill in the fields of the blobs in some rows, which fit one layout.

    `starts` has, for each of these blobs, the byte of `data` at which its payload begins.
    """
    spelling_of_field = names_in(layout)
    if not spelling_of_field:
        return
    record_type = layout.dtype(spelling_of_field.values())
    records = _records_at(data, starts, record_type)
    for field, spelling in spelling_of_field.items():
        values = records[spelling].astype(np.int64)
        fields.values[field][rows] = values
        fields.known[field][rows] = _are_valid(field, values)


def _are_valid(field: str, values: Int64) -> Flags:
    """Tell which values of a field are known and possible."""
    are_valid: Flags
    if field in _UNKNOWN_IF_ZERO:
        are_valid = values != 0
    elif field in _FIELDS_WITH_ANY_VALUE:
        are_valid = np.ones(values.size, np.bool_)
    else:
        are_valid = values >= 0
    return are_valid


def _derive_message_bytes(fields: Fields) -> None:
    """Calculate the message size of payloads that have a count and a datatype, but no size."""
    values = fields.values
    known = fields.known
    datatype = values["datatype"]
    count = values["count"]
    has_datatype = known["datatype"] & (datatype < _DATATYPE_BYTES.size)
    # Datatype 0 stands in for an unknown datatype. The sizes that follow from it are not used.
    datatype_or_zero = np.where(has_datatype, datatype, 0)
    element_bytes = _DATATYPE_BYTES[datatype_or_zero]
    fits_into_int64 = count <= _MAX_INT64 // element_bytes
    has_size_of_elements = has_datatype & known["count"] & fits_into_int64
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
    call. `python_domains` are the domains of samples of Python. These samples are left out, because
    their payloads may be many times as large, and have a limit of their own.
    """
    samples = condition_of_samples(report, python_domains)
    layouts = read_layouts(report)
    tables = find_payload_tables(report, strings, FIELD_SPELLINGS)
    # The fields that a payload of each layout, and of each table, has.
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
    is_of_call = _are_of_calls(fields, is_nccls, may_be_nccls)
    table = _table(events, fields, is_of_call)
    size_gap = None
    # If no payload has a message size, the reason is looked for.
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
    """Fill in the fields of events that have a payload in a table.

    Events with a binary payload that was decoded already keep its fields.
    """
    if not tables:
        return
    fields_of_tables = read_payload_tables(report, tables, events, FIELD_SPELLINGS)
    has_no_layout = fields.layout < 0
    rows = np.flatnonzero(fields_of_tables.is_described & has_no_layout)
    fields.layout[rows] = _IN_A_TABLE
    for field, values_of_events in fields_of_tables.values.items():
        values = values_of_events[rows]
        is_known = fields_of_tables.known[field][rows]
        fields.values[field][rows] = values
        fields.known[field][rows] = is_known & _are_valid(field, values)
    _derive_message_bytes(fields)


def _n_undecoded(fields: Fields, may_be_nccls: Flags) -> int:
    """Return how many of the payloads that are, or may be, NCCL's fit no layout."""
    has_no_layout = fields.layout < 0
    n_undecoded = np.count_nonzero(may_be_nccls & has_no_layout)
    return int(n_undecoded)


def _are_of_calls(fields: Fields, is_nccls: Flags, may_be_nccls: Flags) -> Flags:
    """Tell which payloads have a value that describes a call of NCCL.

    A payload that is surely NCCL's (`is_nccls`) may have any value. One that only may be NCCL's
    must have a communicator or a message size.
    """
    known = fields.known
    known_by_column = [known[name] for name in _COLUMNS]
    has_any_value: Flags = np.logical_or.reduce(known_by_column)
    describes_call = known["comm_id"] | known["message_bytes"]
    is_of_nccl = is_nccls | (may_be_nccls & describes_call)
    return has_any_value & is_of_nccl


def _rows_with_payload(rows: pa.Table) -> pa.Table:
    """Return the rows that have a thread, and a payload as bytes or in a table."""
    n_bytes = pc.binary_length(rows["binaryData"])
    has_payload = pc.greater(n_bytes, 0)
    # The column is only there if payloads are in tables.
    if EVENT_ID in rows.column_names:
        has_payload = pc.or_(has_payload, pc.equal(rows["is_linked"], 1))
    has_thread = pc.is_valid(rows["globalTid"])
    return rows.filter(pc.and_(has_payload, has_thread))


def _no_payloads(report: Report, samples: str | None) -> Payloads:
    """Return the result for a report whose payloads cannot be decoded.

    `samples` is the SQL condition for samples of Python, whose payloads do not count here.
    """
    has_payloads = False
    if report.has(NVTX, "binaryData"):
        condition = _unless_sample('length("binaryData") > 0', samples)
        has_payloads = report.count(NVTX, condition) > 0
    size_gap = "not-described" if has_payloads else "no-payloads"
    no_payloads = PAYLOADS.empty()
    no_sizes = COMM_SIZES.empty()
    return Payloads(no_payloads, no_sizes, comm_ranks={}, n_undecoded=0, size_gap=size_gap)


def _unless_sample(condition: str, samples: str | None) -> str:
    """Return an SQL condition for rows that meet a condition and are no samples of Python.

    `samples` is the condition for samples; None if the report has none.
    """
    if samples is None:
        return condition
    # A row for which SQL cannot decide (null) is no sample.
    return f"({condition} AND NOT coalesce({samples}, 0))"


def _read_rows(
    report: Report, strings: Strings, samples: str | None, *, has_tables: bool
) -> pa.Table:
    """Read the NVTX rows with a payload, and those that name domains, but no samples of Python.

    The column ``text`` has the name of each row, wherever the report keeps it. If payloads are in
    tables, the column ``is_linked`` tells which rows refer to one. `samples` is the SQL condition
    for samples of Python.
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
        linked_condition = is_linked(report)
        conditions.append(linked_condition)
        derived["is_linked"] = linked_condition
    where = " OR ".join(conditions)
    rows = report.select(NVTX, kinds, derived=derived, where=where)
    names = names_of_rows(rows, strings).cast(pa.string())
    texts = pa.chunked_array([names])
    text_column = rows.schema.get_field_index("text")
    return rows.set_column(text_column, "text", texts)


def _size_gap(n_payloads: int, fields_of_layouts: Iterable[Collection[str]]) -> str:
    """Return why no payload has a message size: a key of `problems.SIZE_GAPS`."""
    if n_payloads:
        return "not-described"
    is_described = any(map(_describes_size, fields_of_layouts))
    return "not-exported" if is_described else "no-payloads"


def _describes_size(fields: Collection[str]) -> bool:
    return any(needed.issubset(fields) for needed in _SIZE_FIELDS)


def communicator_sizes(payloads: Payloads, comm_calls: CommCallsOfReportTable) -> Int64:
    """Return the number of ranks of the communicator of each call of `canonical.COMM_CALLS`.

    The number is 0 if no payload of the call has it.
    """
    size_of_call = np.zeros(comm_calls.num_rows, np.int64)
    if not payloads.table.num_rows:
        return size_of_call
    size_of_payload = _sizes_of_payloads(payloads)
    payload_of_call = _payloads_of_calls(payloads.table, comm_calls)
    has_payload = payload_of_call >= 0
    size_of_call[has_payload] = size_of_payload[payload_of_call[has_payload]]
    return size_of_call


def _sizes_of_payloads(payloads: Payloads) -> Int64:
    """Return the number of ranks of the communicator of each payload; 0 if it is not known.

    A payload that does not state the number has that of another payload of its process and
    communicator.
    """
    table = payloads.table
    comm_ids = filled(table["comm_id"], 0)
    distinct_comms, comm_of_payload = np.unique(comm_ids, return_inverse=True)
    process_ids = table["process_id"].to_numpy()
    distinct_processes, process_of_payload = np.unique(process_ids, return_inverse=True)
    # Each pair of process and communicator gets a number, so that its size is looked up only once.
    # The pair is a pair of positions among the distinct processes and communicators.
    n_comms = distinct_comms.size
    number_of_payload = process_of_payload * n_comms + comm_of_payload
    pair_numbers, pair_of_payload = np.unique(number_of_payload, return_inverse=True)
    process_of_pair = distinct_processes[pair_numbers // n_comms]
    comm_of_pair = distinct_comms[pair_numbers % n_comms]
    size_of_pair = _known_sizes(payloads.comm_sizes, process_of_pair, comm_of_pair)
    stated_sizes = filled(table["n_ranks"], 0)
    return np.where(stated_sizes > 0, stated_sizes, size_of_pair[pair_of_payload])


def _known_sizes(comm_sizes: pa.Table, process_ids: Int64, comm_ids: Int64) -> Int64:
    """Return the number of ranks for each pair of a process and a communicator; 0 if not known.

    The pairs stand in two arrays of equal length. `comm_sizes` is `canonical.COMM_SIZES`.
    """
    size_of_comm: dict[tuple[int, int], int] = {}
    for row in comm_sizes.to_pylist():
        comm = (row["process_id"], row["comm_id"])
        size_of_comm[comm] = row["n_ranks"]
    comms = zip(process_ids.tolist(), comm_ids.tolist(), strict=True)
    sizes = [size_of_comm.get(comm, 0) for comm in comms]
    return np.array(sizes, np.int64)


def _payloads_of_calls(payload_table: pa.Table, comm_calls: CommCallsOfReportTable) -> Int64:
    """Return the row of the payload of each call in `canonical.PAYLOADS`; -1 for none.

    The payload of a call is the first whose range the same thread opened at the same time.
    """
    n_payloads = payload_table.num_rows
    # The codes of the payloads come first, then those of the calls.
    thread_codes = _codes_of_column("thread_id", payload_table, comm_calls)
    start_codes = _codes_of_column("start_ns", payload_table, comm_calls)
    keys = paired_codes(thread_codes, start_codes)
    key_of_payload = keys[:n_payloads]
    key_of_call = keys[n_payloads:]
    payloads_by_key = np.argsort(key_of_payload, kind="stable")
    place_of_call = np.searchsorted(key_of_payload[payloads_by_key], key_of_call)
    # A key above all keys of payloads gets the last payload, whose key differs.
    place_of_call = np.minimum(place_of_call, n_payloads - 1)
    payload_of_call = payloads_by_key[place_of_call]
    has_payload = key_of_payload[payload_of_call] == key_of_call
    return np.where(has_payload, payload_of_call, -1)


def _codes_of_column(name: str, table: pa.Table, second_table: pa.Table) -> Int64:
    """Return a code for each value of a column of two tables: those of the first, then the second.

    Equal values have equal codes.
    """
    values = table[name].to_numpy()
    second_values = second_table[name].to_numpy()
    return joint_codes(values, second_values)


def ownership(rows: pa.Table, domains: pa.Table) -> tuple[Flags, Flags]:
    """Tell which rows are NCCL's, and which other rows may be.

    A row is NCCL's by its text or its domain. A row without text and domain may be NCCL's.
    """
    begins_nccl = pc.starts_with(rows["text"], "nccl", ignore_case=True)
    has_nccl_text = pc.fill_null(begins_nccl, fill_value=False).to_numpy()
    is_nccls: Flags = has_nccl_text | of_domains(rows, domains, "NCCL".__eq__)
    has_no_text = pc.is_null(rows["text"]).to_numpy()
    has_any_domain = of_domains(rows, domains, lambda _: True)
    may_be_nccls = has_no_text & ~has_any_domain & ~is_nccls
    return is_nccls, may_be_nccls


def _table(events: pa.Table, fields: Fields, is_chosen: Flags) -> pa.Table:
    """Return chosen events as `canonical.PAYLOADS`, sorted by process, start and thread.

    Events at impossible times are left out. Of the events of one operation, the first stays.
    `fields` and `is_chosen` have a row for each event.
    """
    # An event without a start is left out, because it gets an impossible one.
    start_of_event = filled(events["start"], TIME_LIMIT)
    is_possible = (start_of_event > -TIME_LIMIT) & (start_of_event < TIME_LIMIT)
    chosen_rows = np.flatnonzero(is_chosen & is_possible)
    thread_of_event = events["globalTid"].to_numpy()
    process_of_event = process_of(thread_of_event)
    # numpy sorts by the last key first.
    sort_keys = (
        thread_of_event[chosen_rows],
        start_of_event[chosen_rows],
        process_of_event[chosen_rows],
    )
    sorted_rows = chosen_rows[np.lexsort(sort_keys)]
    rows = sorted_rows[_begin_operations(events, fields, sorted_rows)]
    starts = start_of_event[rows]
    ends = filled(events["end"], TIME_LIMIT)[rows]
    is_end_unknown = (ends < starts) | (ends >= TIME_LIMIT)
    columns = {
        "process_id": process_of_event[rows],
        "thread_id": thread_of_event[rows],
        "start_ns": starts,
        "end_ns": pa.array(ends, mask=is_end_unknown),
        "call": pc.dictionary_encode(events["text"].take(pa.array(rows))),
    }
    for name in _COLUMNS:
        values = fields.values[name][rows]
        is_known = fields.known[name][rows]
        columns[name] = pa.array(values, mask=~is_known)
    return PAYLOADS.table(columns)


def _begin_operations(events: pa.Table, fields: Fields, rows: Int64) -> Flags:
    """Tell which of some rows, in order of time, are the first events of their operations.

    The first event is the call. The advanced NCCL trace may have several events with one text for
    one operation, which would count as several calls. An event without a number of its operation
    always counts as the first.
    """
    has_known_number = fields.known["operation"][rows]
    operation = fields.values["operation"][rows]
    has_operation = has_known_number & (operation != 0)
    if not has_operation.any():
        return np.ones(rows.size, np.bool_)
    process = process_of(events["globalTid"].to_numpy()[rows])
    texts = events["text"].take(pa.array(rows)).combine_chunks()
    # The code of each text, -1 for no text.
    text_code = pc.fill_null(pc.dictionary_encode(texts).indices, -1).to_numpy()
    comm = fields.values["comm_id"][rows]
    # The ranks of one process may use the same number for operations of their own.
    rank_or_none = np.where(fields.known["rank"], fields.values["rank"], -1)
    rank = rank_or_none[rows]
    # Events of one operation have equal keys.
    keys = np.stack([process, text_code, comm, operation, rank])
    places_with_operation = np.flatnonzero(has_operation)
    # The index of the first of equal keys, which is the earliest event.
    _, first_of_key = np.unique(keys[:, places_with_operation], axis=1, return_index=True)
    is_first: Flags = ~has_operation
    is_first[places_with_operation[first_of_key]] = True
    return is_first


def _comm_sizes(payload_table: pa.Table) -> pa.Table:
    """Return `canonical.COMM_SIZES`: the communicators with one size in all their payloads."""
    rows = payload_table.select(COMM_SIZES.names).drop_null()
    has_size = pc.greater(rows["n_ranks"], 0)
    equal_rows = rows.filter(has_size).group_by(COMM_SIZES.names, use_threads=False)
    distinct_rows = equal_rows.aggregate([])
    keys = ["process_id", "comm_id"]
    rows_of_comms = distinct_rows.group_by(keys, use_threads=False)
    # Rows are distinct, so a communicator has as many rows here as it has sizes.
    comms = rows_of_comms.aggregate([("n_ranks", "min"), ("n_ranks", "count")])
    has_one_size = pc.equal(comms["n_ranks_count"], 1)
    comms = comms.filter(has_one_size)
    comms = comms.sort_by([(key, "ascending") for key in keys])
    columns = {key: comms[key] for key in keys}
    columns["n_ranks"] = comms["n_ranks_min"]
    return COMM_SIZES.table(columns)


def _comm_ranks(payload_table: pa.Table) -> dict[int, tuple[int, int]]:
    """Return, for each process, its rank in its largest communicator and the size of the latter.

    A process is left out if it has several ranks in communicators of this largest size, or a rank
    that is not below the size.
    """
    names = ["process_id", "n_ranks", "rank"]
    rows = payload_table.select(names).drop_null()
    distinct_rows = rows.group_by(names, use_threads=False).aggregate([])
    ranks_by_size: dict[tuple[int, int], list[int]] = {}
    largest_size: dict[int, int] = {}
    columns = [distinct_rows[name].to_pylist() for name in names]
    for process, n_ranks, rank in zip(*columns, strict=True):
        ranks = ranks_by_size.setdefault((process, n_ranks), [])
        ranks.append(rank)
        largest_so_far = largest_size.get(process, n_ranks)
        largest_size[process] = max(n_ranks, largest_so_far)
    rank_and_size: dict[int, tuple[int, int]] = {}
    for process, n_ranks in largest_size.items():
        ranks = ranks_by_size[process, n_ranks]
        if len(ranks) == 1 and 0 <= ranks[0] < n_ranks:
            rank_and_size[process] = (ranks[0], n_ranks)
    return rank_and_size
