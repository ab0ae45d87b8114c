"""What NCCL says of its own calls: communicator, size and number, from the payloads of its NVTX ranges.

How payloads lie in memory the report itself describes: offsets and types come from
``NVTX_PAYLOAD_SCHEMA_ENTRIES``, never from constants, and mean what NVTX's header
``nvToolsExtPayload.h`` says. The numbers are found by the names that NCCL's releases gave them. The
blobs are there only after ``nsys export --include-blobs=true``, and nsys describes them from schema
3.20.3 on.
"""

from collections.abc import Collection, Mapping
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
from nsyspipe.reader import report as versions
from nsyspipe.reader.calls import Strings
from nsyspipe.reader.ranges import DOMAIN_ROW, names_of_rows, of_domains
from nsyspipe.reader.report import TIME_LIMIT, Report, process_of

Key = tuple[int, int]
Row = Mapping[str, Any]

# nvtxPayloadEntryType: those that are read, as numpy formats, little endian.
_NUMBERS = {
    **dict(enumerate(("i1", "u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<i8", "<u8"), 1)),
    **dict(enumerate(("i1", "u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8"), 11)),
    19: "<f4",
    20: "<f8",
    22: "<u8",
    23: "<u8",  # of these the last are size_t and an address
}
# Those of which only the size matters, by it: characters, raw bytes, other floats, long double,
# 128 bits, colours, scopes, ids of processes and threads, handles of strings, timestamps.
_BY_SIZE = {
    1: (25, 32),
    2: (26, 42, 50),
    4: (24, 27, 43, 52, 69, 71, 73),
    8: (44, 70, 72, 74, 80, *range(128, 256)),
    16: (21, 33, 34, 45),
}
_BYTES = {kind: size for size, kinds in _BY_SIZE.items() for kind in kinds}
_CHARACTER_BYTES = {75: 1, 76: 1, 77: 2, 78: 4}  # strings, by encoding

# Flags of an entry; pointers to what lies elsewhere, and arrays of one known length or of none.
_POINTER = 1 << 1
_REFERENCE = 3 << 2
_ARRAY = 7 << 4
_FIXED_ARRAY = 1 << 4
_POINTER_BYTES = 8

# nvtxPayloadSchemaType
_STATIC = 1
_UNIONS = (3, 4)
# Each blob starts with this, which NVIDIA does not document. The first number is 1 in all that were
# seen: so many payloads, it seems. Whether the schema's high word is of its id or a flag is
# unknown: it counts only for ids that need it.
HEADER = np.dtype(
    [
        ("n_payloads", "<u8"),
        ("schema", "<u4"),
        ("schema_high", "<u4"),
        ("n_payload", "<u8"),
        ("n_total", "<u8"),
    ]
)

# The spellings of each field, as `bare_name` gives them; the first that a layout has is read.
_SPELLINGS = {
    "comm_id": ("ncclcommunicatorid", "communicatorid", "commhash", "commid", "ncclcommid"),
    "seq": ("seqnumber", "sequencenumber", "seq"),
    "message_bytes": ("messagesizebytes", "messagebytes", "bytes"),
    "count": ("count",),
    "datatype": ("datatype",),
    "n_ranks": ("noofranks", "nranks", "numberofranks", "numranks"),
    "rank": ("rank", "commrank", "myrank"),
}
_ANY_BITS = {
    "comm_id",
    "seq",
}  # hash-like or free-running; all others are counts, so a negative one is no value
# Of ncclDataType_t: int8 uint8 int32 uint32 int64 uint64 float16 float32 float64 bfloat16
# float8e4m3 float8e5m2.
_DATATYPE_BYTES = np.array([1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1])
_LARGEST = np.iinfo(np.int64).max
_SIZE_FIELDS = (
    {"message_bytes"},
    {"count", "datatype"},
)  # told as it is, or by a number of elements
_COLUMNS = ("comm_id", "seq", "message_bytes", "n_ranks", "rank")


class Layout(Struct, frozen=True):
    """One payload schema."""

    n_bytes: int  # size of the payload; if not `is_exact`, the least that holds all fields
    is_exact: bool
    # Numpy format and offset by `bare_name`; entries that are no single number, or whose place is
    # unknown, are left out
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
    """Read the layouts by (domain, schema); where processes that repeat one contradict each other, there is none."""
    key = ("domainId", "schemaId")
    schema = (*key, "payloadSize")
    entry = (*key, "idx", "type", "offset", "name")
    enum = (*key, "size")
    if not report.has(versions.PAYLOAD_SCHEMAS, *schema) or not report.has(
        versions.PAYLOAD_ENTRIES, *entry
    ):
        return {}
    entries = _by_key(report, versions.PAYLOAD_ENTRIES, *entry, "flags", "arrayOrUnionDetail")
    enums = (
        _by_key(report, versions.PAYLOAD_ENUMS, *enum)
        if report.has(versions.PAYLOAD_ENUMS, *enum)
        else {}
    )
    layouts = {}
    for (domain, number), schemas in _by_key(
        report, versions.PAYLOAD_SCHEMAS, *schema, "type", "alignTo"
    ).items():
        rows = entries.get((domain, number), [])
        described = {row["idx"]: row for row in rows}
        if len(schemas) == 1 and len(described) == len(rows) and schemas[0]["type"] not in _UNIONS:
            sizes = {
                of: one[0]["size"]
                for (where, of), one in enums.items()
                if where == domain and len(one) == 1
            }
            layouts[domain, number] = _layout(schemas[0], described, sizes)
    return layouts


def _by_key(report: Report, table: str, *columns: str) -> dict[Key, list[Row]]:
    """Group rows by (domain, schema), each distinct row once; a zero may be stored as null."""
    kinds = {name: "text" if name == "name" else "int" for name in columns}
    found: dict[Key, dict[tuple[Any, ...], Row]] = {}
    for row in report.select(table, kinds).to_pylist():
        full = {name: value or 0 for name, value in row.items()}
        found.setdefault((full["domainId"], full["schemaId"]), {})[tuple(full.values())] = full
    return {key: list(distinct.values()) for key, distinct in found.items()}


def _layout(schema: Row, described: Mapping[int, Row], enums: Mapping[int, int]) -> Layout:
    fields = place_entries(described, pack=max(schema["alignTo"], 0), enums=enums)
    ends = {name: at + np.dtype(code).itemsize for name, (code, at) in fields.items()}
    is_exact = schema["payloadSize"] > 0 and schema["type"] in {0, _STATIC}
    n_bytes = schema["payloadSize"] if is_exact else max(ends.values(), default=0)
    return Layout(
        n_bytes, is_exact, {name: field for name, field in fields.items() if ends[name] <= n_bytes}
    )


def place_entries(
    entries: Mapping[int, Row], *, pack: int, enums: Mapping[int, int]
) -> dict[str, tuple[str, int]]:
    """Return format and offset of each number among a schema's entries, by `bare_name`.

    An entry that states no offset (0, and not the first) follows the one before at its natural
    alignment, or at that of a packed struct (0: none). Behind an entry of unknown size that place
    is unknown, up to the next stated offset. Enums come with their size in bytes by id.
    """
    fields: dict[str, tuple[str, int]] = {}
    end: int | None = 0
    previous = -1
    for index, entry in sorted(entries.items()):
        size, alignment, code = _shape(entry, enums)
        if entry["offset"] > 0:
            end = entry["offset"]
        elif end is None or entry["offset"] < 0 or index != previous + 1:
            end = None
        else:
            alignment = min(alignment, pack) if pack else alignment
            end = -(-end // alignment) * alignment
        previous = index
        if end is not None:
            if code and entry["name"]:
                fields.setdefault(bare_name(entry["name"]), (code, end))
            end = end + size if size else None
    return fields


def _shape(entry: Row, enums: Mapping[int, int]) -> tuple[int, int, str | None]:
    """Return an entry's size (0: unknown), its alignment, and its format if it is a single number."""
    kind = entry["type"]
    flags = entry["flags"]
    detail = max(entry["arrayOrUnionDetail"], 0)
    if flags & _POINTER:
        return _POINTER_BYTES, _POINTER_BYTES, None
    is_array = flags & _ARRAY
    if flags & _REFERENCE or is_array not in {0, _FIXED_ARRAY}:
        return 0, 1, None
    character = _CHARACTER_BYTES.get(kind)
    if character:
        return character * detail, character, None
    code = _NUMBERS.get(kind) or (f"<i{enums[kind]}" if enums.get(kind) in {1, 2, 4, 8} else None)
    size = np.dtype(code).itemsize if code else _BYTES.get(kind, 0)
    if is_array:
        return size * detail, size or 1, None
    return size, size or 1, code


class Fields(NamedTuple):
    """What each of some blobs holds."""

    layout: Int64  # position, among the layouts, of that which the blob fits; -1 for none
    values: dict[str, Int64]  # by field, as `_SPELLINGS` has them; 64-bit ids as signed numbers
    known: dict[str, Flags]  # where its value is one


def names_in(layout: Layout) -> dict[str, str]:
    """Return, for each field that a layout has as an integer, how the layout spells it."""
    integers = {name for name, (code, _) in layout.fields.items() if "f" not in code}
    found = {
        field: next(filter(integers.__contains__, names), None)
        for field, names in _SPELLINGS.items()
    }
    return {field: name for field, name in found.items() if name is not None}


def decode_fields(blobs: pa.ChunkedArray, domains: Int64, layouts: Mapping[Key, Layout]) -> Fields:
    """Decode the fields of all blobs that fit a layout of their domain: they name its schema, and are as long as both say."""
    n = len(blobs)
    values = {name: np.zeros(n, np.int64) for name in _SPELLINGS}
    fields = Fields(np.full(n, -1), values, {name: np.zeros(n, np.bool_) for name in _SPELLINGS})
    first = 0
    for chunk in blobs.chunks:
        lengths = pc.fill_null(pc.binary_length(chunk), 0).to_numpy().astype(np.int64)
        own = np.flatnonzero(lengths >= HEADER.itemsize)
        if own.size:
            _, offsets, buffer = chunk.buffers()
            data = np.frombuffer(buffer, np.uint8)
            starts = np.frombuffer(offsets, np.int32)[chunk.offset + own].astype(np.int64)
            header = _windows(data, starts, HEADER)
            rows = own + first
            for at, ((domain, schema), layout) in enumerate(layouts.items()):
                mine = (domains[rows] == domain) & _fits(header, lengths[own], schema, layout)
                if mine.any():
                    fields.layout[rows[mine]] = at
                    _fill(fields, rows[mine], data, starts[mine] + HEADER.itemsize, layout)
        first += len(chunk)
    _multiply(fields)
    return fields


def _windows(data: NDArray[np.uint8], starts: Int64, dtype: np.dtype[np.void]) -> NDArray[np.void]:
    """Return the record at each start; all at once, without an index per byte."""
    windows = np.lib.stride_tricks.sliding_window_view(data, dtype.itemsize)
    return np.ascontiguousarray(windows[starts]).view(dtype)[:, 0]


def _fits(header: NDArray[np.void], lengths: Int64, schema: int, layout: Layout) -> Flags:
    """Tell which blobs hold one payload of a schema; where the header may say several, it must fill the blob to the byte."""
    n_payload = header["n_payload"]
    n_total = header["n_total"]
    mine = header["schema"] == schema & 0xFFFFFFFF
    if schema >> 32:  # an id that the tool gave
        mine &= header["schema_high"] == schema >> 32 & 0xFFFFFFFF
    mine &= n_payload == layout.n_bytes if layout.is_exact else n_payload >= layout.n_bytes
    size, room = (lengths - one for one in (0, HEADER.itemsize))
    is_one = (header["n_payloads"] == 1) & (n_total <= size.astype(np.uint64))
    is_full = (n_payload == room.astype(np.uint64)) & (n_total == size.astype(np.uint64))
    fits: Flags = mine & (n_payload <= room.astype(np.uint64)) & (is_one | is_full)
    return fits


def _fill(
    fields: Fields, rows: Int64, data: NDArray[np.uint8], starts: Int64, layout: Layout
) -> None:
    names = names_in(layout)
    if not names:
        return
    records = _windows(data, starts, layout.dtype(names.values()))
    for field, name in names.items():
        values = records[name].astype(np.int64)
        fields.values[field][rows] = values
        is_any = values != 0 if field == "comm_id" else True
        fields.known[field][rows] = is_any if field in _ANY_BITS else values >= 0


def _multiply(fields: Fields) -> None:
    datatype = fields.values["datatype"]
    count = fields.values["count"]
    is_valid = fields.known["datatype"] & (datatype < _DATATYPE_BYTES.size)
    size = _DATATYPE_BYTES[np.where(is_valid, datatype, 0)]
    is_valid &= fields.known["count"] & ~fields.known["message_bytes"] & (count <= _LARGEST // size)
    fields.values["message_bytes"][is_valid] = (count * size)[is_valid]
    fields.known["message_bytes"] |= is_valid


class Payloads(Struct, frozen=True):
    """The payloads of NCCL's ranges in one report."""

    table: pa.Table  # `canonical.PAYLOADS`
    comm_sizes: pa.Table  # `canonical.COMM_SIZES`
    # By process its rank in its largest communicator, and that one's size, unless two of that size
    # disagree
    comm_ranks: dict[int, tuple[int, int]]
    n_undecoded: int  # payloads of NCCL that do not fit their description
    size_gap: (
        str | None
    )  # why no payload says how many bytes are sent: a key of `problems.SIZE_GAPS`


def read_payloads(report: Report, strings: Strings) -> Payloads:
    """Read and decode the payloads of NCCL's ranges, in one pass over the report's NVTX rows.

    A range that is not said to be NCCL's, but may be, is if it can be decoded into what NCCL
    reports.
    """
    layouts = read_layouts(report)
    names = [names_in(layout).keys() for layout in layouts.values()]
    if not any(names) or not report.has(versions.NVTX, "binaryData", "globalTid", "start"):
        is_there = report.has(versions.NVTX, "binaryData")
        has_payloads = is_there and report.count(versions.NVTX, 'length("binaryData") > 0') > 0
        return Payloads(
            PAYLOADS.empty(),
            COMM_SIZES.empty(),
            {},
            0,
            "not-described" if has_payloads else "no-payloads",
        )
    kinds = dict.fromkeys(("eventType", "globalTid", "domainId", "start", "end", "textId"), "int")
    kinds |= {"text": "text", "binaryData": "blob"}
    rows = report.select(
        versions.NVTX, kinds, where=f"binaryData IS NOT NULL OR eventType = {DOMAIN_ROW}"
    )
    texts = pa.chunked_array([names_of_rows(rows, strings).cast(pa.string())])
    rows = rows.set_column(rows.schema.get_field_index("text"), "text", texts)
    found = rows.filter(
        pc.and_(pc.greater(pc.binary_length(rows["binaryData"]), 0), pc.is_valid(rows["globalTid"]))
    )
    fields = decode_fields(found["binaryData"], filled(found["domainId"], 0), layouts)
    says_nccl, may_be = ownership(found, rows.filter(pc.equal(rows["eventType"], DOMAIN_ROW)))
    is_known = np.logical_or.reduce([fields.known[name] for name in _COLUMNS])
    is_call = fields.known["comm_id"] | fields.known["message_bytes"]
    n_undecoded = int(np.count_nonzero((says_nccl | may_be) & (fields.layout < 0)))
    table = _table(found, fields, is_known & (says_nccl | (may_be & is_call)))
    gap = None
    if table["message_bytes"].null_count == table.num_rows:
        is_described = any(needed <= one for one in names for needed in _SIZE_FIELDS)
        gap = (
            "not-described" if found.num_rows else "not-exported" if is_described else "no-payloads"
        )
    return Payloads(table, _comm_sizes(table), _comm_ranks(table), n_undecoded, gap)


def communicator_sizes(payloads: Payloads, comm_calls: pa.Table) -> Int64:
    """Return the number of ranks of the communicator of each of `canonical.COMM_CALLS`; 0 where no payload says it."""
    sizes = np.zeros(comm_calls.num_rows, np.int64)
    if not payloads.table.num_rows:
        return sizes
    table = payloads.table
    of_comm = {
        (row["process_id"], row["comm_id"]): row["n_ranks"]
        for row in payloads.comm_sizes.to_pylist()
    }
    comms, comm = np.unique(filled(table["comm_id"], 0), return_inverse=True)
    processes, process = np.unique(table["process_id"].to_numpy(), return_inverse=True)
    pairs, pair = np.unique(process * comms.size + comm, return_inverse=True)
    keys = (
        (int(processes[one // comms.size]), int(comms[one % comms.size])) for one in pairs.tolist()
    )
    told = np.array([of_comm.get(key, 0) for key in keys], np.int64)[pair]
    n_ranks = filled(table["n_ranks"], 0)
    told = np.where(n_ranks > 0, n_ranks, told)
    # A payload is that of the range that its thread opened at that time.
    codes = [
        np.unique(
            np.concatenate((table[name].to_numpy(), comm_calls[name].to_numpy())),
            return_inverse=True,
        )[1]
        for name in ("thread_id", "start_ns")
    ]
    place = codes[0] * (int(codes[1].max()) + 1) + codes[1]
    known = place[: told.size]
    asked = place[told.size :]
    order = np.argsort(known, kind="stable")
    at = np.minimum(np.searchsorted(known[order], asked), told.size - 1)
    is_there = known[order][at] == asked
    sizes[is_there] = told[order][at][is_there]
    return sizes


def ownership(rows: pa.Table, domains: pa.Table) -> tuple[Flags, Flags]:
    """Tell which rows are NCCL's by their text or domain, and which may be: neither has a name."""
    starts = pc.starts_with(rows["text"], "nccl", ignore_case=True)
    says_nccl: Flags = pc.fill_null(starts, fill_value=False).to_numpy() | of_domains(
        rows, domains, "NCCL".__eq__
    )
    is_nameless = pc.is_null(rows["text"]).to_numpy() & ~of_domains(rows, domains, lambda _: True)
    return says_nccl, is_nameless & ~says_nccl


def _table(found: pa.Table, fields: Fields, kept: Flags) -> pa.Table:
    starts = filled(found["start"], TIME_LIMIT)
    ends = filled(found["end"], TIME_LIMIT)
    threads = found["globalTid"].to_numpy()
    rows = np.flatnonzero(kept & (starts > -TIME_LIMIT) & (starts < TIME_LIMIT))
    rows = rows[np.lexsort((threads[rows], starts[rows], process_of(threads)[rows]))]
    columns = {
        name: pa.array(fields.values[name][rows], mask=~fields.known[name][rows])
        for name in _COLUMNS
    }
    is_open = (ends < starts) | (ends >= TIME_LIMIT)
    columns |= {
        "process_id": process_of(threads[rows]),
        "thread_id": threads[rows],
        "start_ns": starts[rows],
    }
    columns["end_ns"] = pa.array(ends[rows], mask=is_open[rows])
    return PAYLOADS.table(
        columns | {"call": pc.dictionary_encode(found["text"].take(pa.array(rows)))}
    )


def _comm_sizes(table: pa.Table) -> pa.Table:
    pairs = table.select(COMM_SIZES.names).drop_null()
    pairs = (
        pairs.filter(pc.greater(pairs["n_ranks"], 0))
        .group_by(COMM_SIZES.names, use_threads=False)
        .aggregate([])
    )
    keys = COMM_SIZES.names[:2]
    sizes = pairs.group_by(keys, use_threads=False).aggregate(
        [("n_ranks", "min"), ("n_ranks", "count")]
    )
    sizes = sizes.filter(pc.equal(sizes["n_ranks_count"], 1)).sort_by(
        [(key, "ascending") for key in keys]
    )
    return COMM_SIZES.table({**{key: sizes[key] for key in keys}, "n_ranks": sizes["n_ranks_min"]})


def _comm_ranks(table: pa.Table) -> dict[int, tuple[int, int]]:
    names = ["process_id", "n_ranks", "rank"]
    rows = (
        table.select(names).drop_null().group_by(names, use_threads=False).aggregate([]).to_pylist()
    )
    seen = grouped((row["process_id"], (row["n_ranks"], row["rank"])) for row in rows)
    ranks = {}
    for process, pairs in seen.items():
        n_ranks = max(size for size, _ in pairs)
        own = [rank for size, rank in pairs if size == n_ranks]
        if len(own) == 1 and 0 <= own[0] < n_ranks:
            ranks[process] = own[0], n_ranks
    return ranks
