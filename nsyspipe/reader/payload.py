"""Communicator, size and number of NCCL calls, from the payloads of NCCL's NVTX ranges.

The report describes the layout of payloads in ``NVTX_PAYLOAD_SCHEMA_ENTRIES``. Offsets and types
come from there, never from constants, and have the meaning that is documented in NVTX's header
``nvToolsExtPayload.h``. Fields are found by the names that they have in releases of NCCL. Only
``nsys export --include-blobs=true`` exports payloads, and their layout is exported from schema
3.20.3 on.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from numpy.typing import NDArray

from nsyspipe.analysis.attribution import filled
from nsyspipe.model.canonical import COMM_SIZES, PAYLOADS
from nsyspipe.model.names import bare_name, grouped
from nsyspipe.model.table import Flags, Int64
from nsyspipe.reader.calls import Strings
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
_SPELLINGS = {
    "comm_id": ("ncclcommunicatorid", "communicatorid", "commhash", "commid", "ncclcommid"),
    "seq": ("seqnumber", "sequencenumber", "seq"),
    "message_bytes": ("messagesizebytes", "messagebytes", "bytes"),
    "count": ("count",),
    "datatype": ("datatype",),
    "n_ranks": ("noofranks", "nranks", "numberofranks", "numranks"),
    "rank": ("rank", "commrank", "myrank"),
}
# Hashes and counters, which may have any value. The other fields are counts, which are not
# negative.
_FIELDS_WITH_ANY_VALUE = {"comm_id", "seq"}
# By the number in ncclDataType_t: int8 uint8 int32 uint32 int64 uint64 float16 float32 float64
# bfloat16 float8e4m3 float8e5m2.
_DATATYPE_BYTES = np.array([1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1])
_MAX_INT64 = np.iinfo(np.int64).max
# The message size is a field, or follows from the number of elements.
_SIZE_FIELDS = ({"message_bytes"}, {"count", "datatype"})
_COLUMNS = ("comm_id", "seq", "message_bytes", "n_ranks", "rank")


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
        formats, offsets = zip(*(self.fields[name] for name in names), strict=True)
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
    key = ("domainId", "schemaId")
    schema_columns = (*key, "payloadSize")
    entry_columns = (*key, "idx", "type", "offset", "name")
    if not report.has(PAYLOAD_SCHEMAS, *schema_columns):
        return {}
    if not report.has(PAYLOAD_ENTRIES, *entry_columns):
        return {}
    all_schemas = _by_key(report, PAYLOAD_SCHEMAS, *schema_columns, "type", "alignTo")
    all_entries = _by_key(report, PAYLOAD_ENTRIES, *entry_columns, "flags", "arrayOrUnionDetail")
    enum_sizes = _enum_sizes(report)
    layouts = {}
    for (domain, schema_id), schemas in all_schemas.items():
        rows = all_entries.get((domain, schema_id), [])
        entries = {row["idx"]: row for row in rows}
        is_consistent = len(schemas) == 1 and len(entries) == len(rows)
        if is_consistent and schemas[0]["type"] not in _UNIONS:
            enums = enum_sizes.get(domain, {})
            layouts[domain, schema_id] = _layout(schemas[0], entries, enums)
    return layouts


def _enum_sizes(report: Report) -> dict[int, dict[int, int]]:
    """Return the size in bytes of each enum, by domain and id, without contradicting ones."""
    columns = ("domainId", "schemaId", "size")
    if not report.has(PAYLOAD_ENUMS, *columns):
        return {}
    sizes: dict[int, dict[int, int]] = {}
    for (domain, enum), rows in _by_key(report, PAYLOAD_ENUMS, *columns).items():
        if len(rows) == 1:
            sizes.setdefault(domain, {})[enum] = rows[0]["size"]
    return sizes


def _by_key(report: Report, table: str, *columns: str) -> dict[Key, list[Row]]:
    """Group the distinct rows by (domain, schema); nulls become zeros, as nsys means them."""
    kinds = {name: "text" if name == "name" else "int" for name in columns}
    distinct_rows: dict[Key, dict[tuple[Any, ...], Row]] = {}
    for row in report.select(table, kinds).to_pylist():
        filled_row = {name: value or 0 for name, value in row.items()}
        rows = distinct_rows.setdefault((filled_row["domainId"], filled_row["schemaId"]), {})
        rows[tuple(filled_row.values())] = filled_row
    return {key: list(rows.values()) for key, rows in distinct_rows.items()}


def _layout(schema: Row, entries: Mapping[int, Row], enums: Mapping[int, int]) -> Layout:
    fields = place_entries(entries, pack=max(schema["alignTo"], 0), enums=enums)
    ends = {name: offset + np.dtype(code).itemsize for name, (code, offset) in fields.items()}
    is_exact = schema["payloadSize"] > 0 and schema["type"] in {0, _STATIC}
    n_bytes = schema["payloadSize"] if is_exact else max(ends.values(), default=0)
    fields_inside = {name: field for name, field in fields.items() if ends[name] <= n_bytes}
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
        if entry["offset"] > 0:
            offset = entry["offset"]
        elif offset is None or entry["offset"] < 0 or index != previous_index + 1:
            offset = None
        else:
            alignment = min(shape.alignment, pack) if pack else shape.alignment
            offset = -(-offset // alignment) * alignment
        previous_index = index
        if offset is not None:
            if shape.code and entry["name"]:
                fields.setdefault(bare_name(entry["name"]), (shape.code, offset))
            offset = offset + shape.n_bytes if shape.n_bytes else None
    return fields


class _Shape(NamedTuple):
    """How much room an entry takes, and how it is read."""

    # 0 if it is unknown.
    n_bytes: int
    alignment: int
    # Numpy format; None if the entry is not a single number.
    code: str | None = None


def _shape(entry: Row, enums: Mapping[int, int]) -> _Shape:
    kind = entry["type"]
    flags = entry["flags"]
    n_elements = max(entry["arrayOrUnionDetail"], 0)
    if flags & _POINTER:
        return _Shape(_POINTER_BYTES, _POINTER_BYTES)
    is_array = flags & _ARRAY
    if flags & _REFERENCE or is_array not in {0, _FIXED_ARRAY}:
        return _Shape(0, alignment=1)
    character_bytes = _CHARACTER_BYTES.get(kind)
    if character_bytes:
        return _Shape(character_bytes * n_elements, character_bytes)
    code = _NUMBERS.get(kind)
    if code is None and enums.get(kind) in {1, 2, 4, 8}:
        code = f"<i{enums[kind]}"
    n_bytes = np.dtype(code).itemsize if code else _BYTES.get(kind, 0)
    if is_array:
        return _Shape(n_bytes * n_elements, n_bytes or 1)
    return _Shape(n_bytes, n_bytes or 1, code)


class Fields(NamedTuple):
    """The decoded fields of some blobs."""

    # Position of the layout that a blob fits; -1 for none.
    layout: Int64
    # By field of `_SPELLINGS`. 64-bit ids are signed numbers.
    values: dict[str, Int64]
    # Where a value is valid.
    known: dict[str, Flags]


def names_in(layout: Layout) -> dict[str, str]:
    """Return the spelling of each field that a layout has as an integer."""
    integers = {name for name, (code, _) in layout.fields.items() if "f" not in code}
    names = {}
    for field, spellings in _SPELLINGS.items():
        existing = [spelling for spelling in spellings if spelling in integers]
        if existing:
            names[field] = existing[0]
    return names


def decode_fields(blobs: pa.ChunkedArray, domains: Int64, layouts: Mapping[Key, Layout]) -> Fields:
    """Decode the fields of all blobs that fit a layout of their domain.

    A blob fits a layout if its header has the layout's schema, and the sizes in header and layout
    agree with its length.
    """
    n = len(blobs)
    fields = Fields(
        layout=np.full(n, -1),
        values={name: np.zeros(n, np.int64) for name in _SPELLINGS},
        known={name: np.zeros(n, np.bool_) for name in _SPELLINGS},
    )
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
    lengths = pc.fill_null(pc.binary_length(chunk), 0).to_numpy().astype(np.int64)
    # Blobs that are long enough for a header.
    blobs = np.flatnonzero(lengths >= HEADER.itemsize)
    if not blobs.size:
        return
    _, offsets, buffer = chunk.buffers()
    data = np.frombuffer(buffer, np.uint8)
    starts = np.frombuffer(offsets, np.int32)[chunk.offset + blobs].astype(np.int64)
    header = _records_at(data, starts, HEADER)
    rows = blobs + first_row
    for position, ((domain, schema), layout) in enumerate(layouts.items()):
        fits = (domains[rows] == domain) & _fits(header, lengths[blobs], schema, layout)
        if fits.any():
            fields.layout[rows[fits]] = position
            _fill(fields, rows[fits], data, starts[fits] + HEADER.itemsize, layout)


def _records_at(
    data: NDArray[np.uint8], starts: Int64, dtype: np.dtype[np.void]
) -> NDArray[np.void]:
    """Return the record at each start; all at once, without an index for each byte."""
    windows = np.lib.stride_tricks.sliding_window_view(data, dtype.itemsize)
    return np.ascontiguousarray(windows[starts]).view(dtype)[:, 0]


def _fits(header: NDArray[np.void], lengths: Int64, schema: int, layout: Layout) -> Flags:
    """Tell which blobs contain one payload of a schema.

    If the header may be of several payloads, the payload must fill the blob exactly.
    """
    n_payload = header["n_payload"]
    n_total = header["n_total"]
    is_of_schema = header["schema"] == schema & 0xFFFFFFFF
    if schema >> 32:
        # nsys assigned this id.
        is_of_schema &= header["schema_high"] == schema >> 32 & 0xFFFFFFFF
    has_size = n_payload == layout.n_bytes if layout.is_exact else n_payload >= layout.n_bytes
    n_bytes = lengths.astype(np.uint64)
    n_bytes_after_header = (lengths - HEADER.itemsize).astype(np.uint64)
    is_single = (header["n_payloads"] == 1) & (n_total <= n_bytes)
    is_full = (n_payload == n_bytes_after_header) & (n_total == n_bytes)
    is_inside = n_payload <= n_bytes_after_header
    fits: Flags = is_of_schema & has_size & is_inside & (is_single | is_full)
    return fits


def _fill(
    fields: Fields, rows: Int64, data: NDArray[np.uint8], starts: Int64, layout: Layout
) -> None:
    """Fill in the fields of the blobs that fit one layout, whose payloads start at `starts`."""
    names = names_in(layout)
    if not names:
        return
    records = _records_at(data, starts, layout.dtype(names.values()))
    for field, name in names.items():
        values = records[name].astype(np.int64)
        fields.values[field][rows] = values
        fields.known[field][rows] = _are_valid(field, values)


def _are_valid(field: str, values: Int64) -> Flags:
    """Tell which values a field may have."""
    are_valid: Flags = values >= 0
    if field in _FIELDS_WITH_ANY_VALUE:
        are_valid = np.ones(values.size, np.bool_)
    if field == "comm_id":
        are_valid = values != 0
    return are_valid


def _derive_message_bytes(fields: Fields) -> None:
    """Calculate the message size from count and datatype where a payload does not have it."""
    datatype = fields.values["datatype"]
    count = fields.values["count"]
    is_valid = fields.known["datatype"] & (datatype < _DATATYPE_BYTES.size)
    element_bytes = _DATATYPE_BYTES[np.where(is_valid, datatype, 0)]
    has_no_overflow = count <= _MAX_INT64 // element_bytes
    is_valid &= fields.known["count"] & ~fields.known["message_bytes"] & has_no_overflow
    fields.values["message_bytes"][is_valid] = (count * element_bytes)[is_valid]
    fields.known["message_bytes"] |= is_valid


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


def read_payloads(report: Report, strings: Strings) -> Payloads:
    """Read and decode the payloads of NCCL's ranges, in one pass over the NVTX rows of a report.

    A range without a name and domain counts as NCCL's if its payload has what NCCL reports of a
    call.
    """
    layouts = read_layouts(report)
    fields_of_layouts = [names_in(layout).keys() for layout in layouts.values()]
    if not any(fields_of_layouts):
        return _no_payloads(report)
    if not report.has(NVTX, "binaryData", "globalTid", "start"):
        return _no_payloads(report)
    rows = _read_rows(report, strings)
    blobs = _rows_with_payload(rows)
    fields = decode_fields(blobs["binaryData"], filled(blobs["domainId"], 0), layouts)
    domains = rows.filter(pc.equal(rows["eventType"], DOMAIN_ROW))
    is_nccls, may_be_nccls = ownership(blobs, domains)
    has_value = np.logical_or.reduce([fields.known[name] for name in _COLUMNS])
    is_call = fields.known["comm_id"] | fields.known["message_bytes"]
    table = _table(blobs, fields, has_value & (is_nccls | (may_be_nccls & is_call)))
    is_undecoded = (is_nccls | may_be_nccls) & (fields.layout < 0)
    has_sizes = table["message_bytes"].null_count < table.num_rows
    return Payloads(
        table=table,
        comm_sizes=_comm_sizes(table),
        comm_ranks=_comm_ranks(table),
        n_undecoded=int(np.count_nonzero(is_undecoded)),
        size_gap=None if has_sizes else _size_gap(blobs.num_rows, fields_of_layouts),
    )


def _rows_with_payload(rows: pa.Table) -> pa.Table:
    has_payload = pc.greater(pc.binary_length(rows["binaryData"]), 0)
    return rows.filter(pc.and_(has_payload, pc.is_valid(rows["globalTid"])))


def _no_payloads(report: Report) -> Payloads:
    """Return the result for a report whose payloads cannot be decoded."""
    has_payloads = False
    if report.has(NVTX, "binaryData"):
        has_payloads = report.count(NVTX, 'length("binaryData") > 0') > 0
    return Payloads(
        table=PAYLOADS.empty(),
        comm_sizes=COMM_SIZES.empty(),
        comm_ranks={},
        n_undecoded=0,
        size_gap="not-described" if has_payloads else "no-payloads",
    )


def _read_rows(report: Report, strings: Strings) -> pa.Table:
    """Read the NVTX rows with a payload, and those of domains; ``text`` has the whole name."""
    kinds = dict.fromkeys(("eventType", "globalTid", "domainId", "start", "end", "textId"), "int")
    kinds |= {"text": "text", "binaryData": "blob"}
    where = f"binaryData IS NOT NULL OR eventType = {DOMAIN_ROW}"
    rows = report.select(NVTX, kinds, where=where)
    texts = pa.chunked_array([names_of_rows(rows, strings).cast(pa.string())])
    return rows.set_column(rows.schema.get_field_index("text"), "text", texts)


def _size_gap(n_blobs: int, fields_of_layouts: Iterable[Collection[str]]) -> str:
    """Return why no payload has a message size."""
    if n_blobs:
        return "not-described"
    is_described = any(
        needed.issubset(fields) for fields in fields_of_layouts for needed in _SIZE_FIELDS
    )
    return "not-exported" if is_described else "no-payloads"


def communicator_sizes(payloads: Payloads, comm_calls: pa.Table) -> Int64:
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
    size_of_comm = {
        (row["process_id"], row["comm_id"]): row["n_ranks"]
        for row in payloads.comm_sizes.to_pylist()
    }
    comms, comm = np.unique(filled(table["comm_id"], 0), return_inverse=True)
    processes, process = np.unique(table["process_id"].to_numpy(), return_inverse=True)
    pairs, pair = np.unique(process * comms.size + comm, return_inverse=True)
    keys = zip(
        processes[pairs // comms.size].tolist(), comms[pairs % comms.size].tolist(), strict=True
    )
    comm_sizes = np.array([size_of_comm.get(key, 0) for key in keys], np.int64)[pair]
    n_ranks = filled(table["n_ranks"], 0)
    return np.where(n_ranks > 0, n_ranks, comm_sizes)


def _payloads_of_calls(table: pa.Table, comm_calls: pa.Table) -> Int64:
    """Return the row of the payload of each call; -1 for none.

    A payload belongs to the range that the same thread opened at the same time.
    """
    thread = _joint_codes(table["thread_id"], comm_calls["thread_id"])
    start = _joint_codes(table["start_ns"], comm_calls["start_ns"])
    key = thread * (int(start.max()) + 1) + start
    key_of_payload = key[: table.num_rows]
    key_of_call = key[table.num_rows :]
    order = np.argsort(key_of_payload, kind="stable")
    place = np.searchsorted(key_of_payload[order], key_of_call)
    row = order[np.minimum(place, table.num_rows - 1)]
    return np.where(key_of_payload[row] == key_of_call, row, -1)


def _joint_codes(first: pa.ChunkedArray, second: pa.ChunkedArray) -> Int64:
    """Return a code for each value of one column, followed by those of another column."""
    values = np.concatenate((first.to_numpy(), second.to_numpy()))
    codes: Int64 = np.unique(values, return_inverse=True)[1]
    return codes


def ownership(rows: pa.Table, domains: pa.Table) -> tuple[Flags, Flags]:
    """Tell which rows are NCCL's by text or domain, and which may be because they have neither."""
    begins_nccl = pc.starts_with(rows["text"], "nccl", ignore_case=True)
    has_nccl_text = pc.fill_null(begins_nccl, fill_value=False).to_numpy()
    is_nccls: Flags = has_nccl_text | of_domains(rows, domains, "NCCL".__eq__)
    has_no_text = pc.is_null(rows["text"]).to_numpy()
    may_be_nccls = has_no_text & ~of_domains(rows, domains, lambda _: True) & ~is_nccls
    return is_nccls, may_be_nccls


def _table(blobs: pa.Table, fields: Fields, is_chosen: Flags) -> pa.Table:
    """Return the chosen rows as `canonical.PAYLOADS`, sorted by process, start and thread."""
    starts = filled(blobs["start"], TIME_LIMIT)
    ends = filled(blobs["end"], TIME_LIMIT)
    threads = blobs["globalTid"].to_numpy()
    rows = np.flatnonzero(is_chosen & (starts > -TIME_LIMIT) & (starts < TIME_LIMIT))
    rows = rows[np.lexsort((threads[rows], starts[rows], process_of(threads)[rows]))]
    is_open = (ends < starts) | (ends >= TIME_LIMIT)
    columns = {
        name: pa.array(fields.values[name][rows], mask=~fields.known[name][rows])
        for name in _COLUMNS
    }
    columns["process_id"] = process_of(threads[rows])
    columns["thread_id"] = threads[rows]
    columns["start_ns"] = starts[rows]
    columns["end_ns"] = pa.array(ends[rows], mask=is_open[rows])
    columns["call"] = pc.dictionary_encode(blobs["text"].take(pa.array(rows)))
    return PAYLOADS.table(columns)


def _comm_sizes(table: pa.Table) -> pa.Table:
    """Return the communicators whose payloads agree on their number of ranks."""
    rows = table.select(COMM_SIZES.names).drop_null()
    rows = rows.filter(pc.greater(rows["n_ranks"], 0))
    distinct_rows = rows.group_by(COMM_SIZES.names, use_threads=False).aggregate([])
    keys = COMM_SIZES.names[:2]
    sizes = distinct_rows.group_by(keys, use_threads=False).aggregate(
        [("n_ranks", "min"), ("n_ranks", "count")]
    )
    sizes = sizes.filter(pc.equal(sizes["n_ranks_count"], 1))
    sizes = sizes.sort_by([(key, "ascending") for key in keys])
    return COMM_SIZES.table({**{key: sizes[key] for key in keys}, "n_ranks": sizes["n_ranks_min"]})


def _comm_ranks(table: pa.Table) -> dict[int, tuple[int, int]]:
    """Return the rank of each process in its largest communicator, and the size of that one."""
    names = ["process_id", "n_ranks", "rank"]
    rows = table.select(names).drop_null().group_by(names, use_threads=False).aggregate([])
    sizes_and_ranks = grouped(
        (row["process_id"], (row["n_ranks"], row["rank"])) for row in rows.to_pylist()
    )
    comm_ranks = {}
    for process, pairs in sizes_and_ranks.items():
        n_ranks = max(size for size, _ in pairs)
        ranks = [rank for size, rank in pairs if size == n_ranks]
        if len(ranks) == 1 and 0 <= ranks[0] < n_ranks:
            comm_ranks[process] = (ranks[0], n_ranks)
    return comm_ranks
