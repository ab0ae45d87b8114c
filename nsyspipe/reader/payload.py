"""What NCCL says of its own calls: communicator, size and number, from the payloads of its NVTX ranges.

The numbers are found by the names that NCCL's releases gave them. The blobs are there only after
``nsys export --include-blobs=true``, and nsys describes them from schema 3.20.3 on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nsyspipe.model.canonical import COMM_SIZES, PAYLOADS
from nsyspipe.reader import report as versions
from nsyspipe.reader.calls import read_strings
from nsyspipe.reader.operations import TIME_LIMIT, process_of
from nsyspipe.reader.payload_layouts import Layout, read_layouts
from nsyspipe.reader.report import as_int

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from numpy.typing import NDArray

    from nsyspipe.model.types import Flags, Int64
    from nsyspipe.reader.calls import Strings
    from nsyspipe.reader.report import Report


# Each blob starts with this. NVIDIA does not document it. The first number is 1 in all that were seen, whatever
# their domain: so many payloads, it seems. Whether the high word of the schema belongs to its id or is a flag is
# unknown, so that it counts only for ids that need it.
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
# Hash-like or free-running: any 64 bits. All others are counts, so a negative one is no value.
_ANY_BITS = {"comm_id", "seq"}

# Element sizes of ncclDataType_t: int8 uint8 int32 uint32 int64 uint64 float16 float32 float64
# bfloat16 float8e4m3 float8e5m2.
_DATATYPE_BYTES = np.array([1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1])
_LARGEST = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Fields:
    """What each of some blobs holds."""

    is_decoded: Flags  # whether the blob fits a layout
    # By field: ``comm_id``, ``seq``, ``message_bytes``, ``count``, ``datatype``, ``n_ranks``, ``rank``; 64-bit ids as
    # signed numbers
    values: dict[str, Int64]
    known: dict[str, Flags]  # by field: where its value is one


def names_in(layout: Layout) -> dict[str, str]:
    """Return, for each field that a layout has as an integer, how the layout spells it."""
    found = {}
    for field, spellings in _SPELLINGS.items():
        for name in spellings:
            if "f" not in layout.fields.get(name, ("f", 0))[0]:
                found[field] = name
                break
    return found


def decode_fields(blobs: pa.ChunkedArray, domains: Int64, layouts: Mapping[tuple[int, int], Layout]) -> Fields:
    """Decode the fields of all blobs, by the layouts of each domain and schema.

    A blob fits a layout of its range's domain if it names its schema, and is as long as both say.
    """
    fields = Fields(
        np.zeros(len(blobs), np.bool_),
        {name: np.zeros(len(blobs), np.int64) for name in _SPELLINGS},
        {name: np.zeros(len(blobs), np.bool_) for name in _SPELLINGS},
    )
    for data, starts, lengths, rows in _pieces(blobs):
        header = _windows(data, starts, HEADER)
        for key, layout in layouts.items():
            mine = (domains[rows] == key[0]) & fits_layout(header, lengths, key[1], layout)
            if mine.any():
                _fill(fields, rows[mine], data, starts[mine] + HEADER.itemsize, layout)
    _multiply(fields)
    return fields


def _pieces(blobs: pa.ChunkedArray) -> Iterator[tuple[NDArray[np.uint8], Int64, Int64, Int64]]:
    """Yield the bytes of each chunk, and of its blobs with a header: first byte, length, row."""
    at = 0
    for chunk in blobs.chunks:
        lengths = pc.fill_null(pc.binary_length(chunk), 0).to_numpy().astype(np.int64)
        rows = np.flatnonzero(lengths >= HEADER.itemsize)
        if rows.size:
            _, offsets, data = chunk.buffers()
            starts = np.frombuffer(offsets, np.int32)[chunk.offset : chunk.offset + len(chunk)]
            own = starts[rows].astype(np.int64)
            yield np.frombuffer(data, np.uint8), own, lengths[rows], rows + at
        at += len(chunk)


def _windows(data: NDArray[np.uint8], starts: Int64, dtype: np.dtype[np.void]) -> NDArray[np.void]:
    """Return the record at each start; all at once, without an index per byte."""
    windows = np.lib.stride_tricks.sliding_window_view(data, dtype.itemsize)
    return np.ascontiguousarray(windows[starts]).view(dtype)[:, 0]


def fits_layout(header: NDArray[np.void], lengths: Int64, schema: int, layout: Layout) -> Flags:
    """Tell which blobs hold one payload of a schema.

    Where the header may say that there are several, only one that fills the blob to the byte counts.
    """
    n_payload, n_total = header["n_payload"], header["n_total"]
    mine = header["schema"] == schema & 0xFFFFFFFF
    if schema >> 32:  # an id that the tool gave
        mine &= header["schema_high"] == schema >> 32 & 0xFFFFFFFF
    mine &= n_payload == layout.n_bytes if layout.is_exact else n_payload >= layout.n_bytes
    size, room = (lengths - one for one in (0, HEADER.itemsize))
    is_one = (header["n_payloads"] == 1) & (n_total <= size.astype(np.uint64))
    is_full = (n_payload == room.astype(np.uint64)) & (n_total == size.astype(np.uint64))
    fits: Flags = mine & (n_payload <= room.astype(np.uint64)) & (is_one | is_full)
    return fits


def _fill(fields: Fields, rows: Int64, data: NDArray[np.uint8], starts: Int64, layout: Layout) -> None:
    fields.is_decoded[rows] = True
    names = names_in(layout)
    if not names:
        return
    records = _windows(data, starts, layout.dtype(names.values()))
    for field, name in names.items():
        values = records[name].astype(np.int64)
        fields.values[field][rows] = values
        fields.known[field][rows] = True if field in _ANY_BITS else values >= 0
    if "comm_id" in names:
        fields.known["comm_id"][rows] = fields.values["comm_id"][rows] != 0


def _multiply(fields: Fields) -> None:
    """Derive the message size from count and datatype where a payload has no size."""
    datatype, count = fields.values["datatype"], fields.values["count"]
    is_valid = fields.known["datatype"] & (datatype < _DATATYPE_BYTES.size)
    size = _DATATYPE_BYTES[np.where(is_valid, datatype, 0)]
    is_valid &= fields.known["count"] & ~fields.known["message_bytes"] & (count <= _LARGEST // size)
    fields.values["message_bytes"][is_valid] = (count * size)[is_valid]
    fields.known["message_bytes"] |= is_valid


_DOMAIN_ROW = 75  # NVTX_EVENTS.eventType
_DOMAIN, _PREFIX = "NCCL", "nccl"
_ABSENT = -1
# A size is told as it is, or by a number of elements.
_SIZE_FIELDS = ({"message_bytes"}, {"count", "datatype"})
_COLUMNS = ("comm_id", "seq", "message_bytes", "n_ranks", "rank")


@dataclass(frozen=True)
class CommRank:
    """A process's rank in its largest communicator, and that communicator's size."""

    rank: int
    n_ranks: int


@dataclass(frozen=True)
class Payloads:
    """The payloads of NCCL's ranges in one report."""

    table: pa.Table  # `canonical.PAYLOADS`
    comm_sizes: pa.Table  # `canonical.COMM_SIZES`
    # Rank and size by process. A process may be in several communicators: the largest tells its rank, unless two of
    # that size disagree.
    comm_ranks: dict[int, CommRank]
    n_undecoded: int  # payloads of NCCL that do not fit their description
    # Why no payload says how many bytes are sent: a key of `problems.SIZE_GAPS`; None where one does
    size_gap: str | None


def read_payloads(report: Report, strings: Strings | None = None) -> Payloads:
    """Read and decode the payloads of NCCL's ranges, in one pass over the report's NVTX rows.

    A range is NCCL's if its text or its domain says so; one without a text, in a domain that has no name, is if it can
    be decoded into what NCCL reports. There are none in an export without blobs or without their description.
    """
    layouts = read_layouts(report)
    is_described = any(names_in(layout) for layout in layouts.values())
    if not is_described or not report.has(versions.NVTX, "binaryData", "globalTid", "start"):
        lacking = "not-described" if _has_payloads(report) else "no-payloads"
        return Payloads(PAYLOADS.empty(), COMM_SIZES.empty(), {}, 0, lacking)
    kinds = dict.fromkeys(("eventType", "globalTid", "domainId", "start", "end", "textId"), "int")
    kinds |= {"text": "text", "binaryData": "blob"}
    where = f"binaryData IS NOT NULL OR eventType = {_DOMAIN_ROW}"
    rows = report.select(versions.NVTX, kinds, where=where)
    rows = rows.append_column("call", _calls(rows, strings or read_strings(report)))
    has_blob = pc.greater(pc.binary_length(rows["binaryData"]), 0)
    found = rows.filter(pc.and_(has_blob, pc.is_valid(rows["globalTid"])))
    fields = decode_fields(found["binaryData"], as_int(found["domainId"], 0), layouts)
    says_nccl, may_be = _ownership(found, rows.filter(pc.equal(rows["eventType"], _DOMAIN_ROW)))
    is_known = np.logical_or.reduce([fields.known[name] for name in _COLUMNS])
    is_call = fields.known["comm_id"] | fields.known["message_bytes"]
    kept = is_known & (says_nccl | (may_be & is_call))
    n_undecoded = int(np.count_nonzero((says_nccl | may_be) & ~fields.is_decoded))
    table = _table(found, fields, kept)
    gap = _size_gap(table, layouts.values(), has_payloads=found.num_rows > 0)
    return Payloads(table, _comm_sizes(table), _comm_ranks(table), n_undecoded, gap)


def _has_payloads(report: Report) -> bool:
    return report.has(versions.NVTX, "binaryData") and bool(report.count(versions.NVTX, 'length("binaryData") > 0'))


def _size_gap(table: pa.Table, layouts: Iterable[Layout], *, has_payloads: bool) -> str | None:
    """Tell what a size lacks: the payloads of ranges are needed, and the layout that explains them."""
    if table["message_bytes"].null_count < table.num_rows:
        return None
    if has_payloads:
        return "not-described"
    fields = [names_in(layout).keys() for layout in layouts]
    is_described = any(needed <= names for names in fields for needed in _SIZE_FIELDS)
    return "not-exported" if is_described else "no-payloads"


def _calls(rows: pa.Table, strings: Strings) -> pa.ChunkedArray:
    """Return the text of each row, from ``text`` (inline) or ``textId``; null without either."""
    ids, index = np.unique(as_int(rows["textId"], _ABSENT), return_inverse=True)
    by_id = strings.lookup(ids).take(pa.array(index))
    is_inline = pc.not_equal(rows["text"], "")
    texts = pc.if_else(is_inline, rows["text"], pa.chunked_array([by_id]))
    return pc.dictionary_encode(texts.cast(pa.string()))


def _ownership(found: pa.Table, domains: pa.Table) -> tuple[Flags, Flags]:
    """Tell which rows are NCCL's by text or domain, and which have neither; domain ids are per process."""
    is_nameless = pc.is_null(found["call"]).to_numpy()
    texts = found["call"].cast(pa.string())
    starts = pc.starts_with(texts, _PREFIX, ignore_case=True)
    says_nccl: Flags = pc.fill_null(starts, fill_value=False).to_numpy()
    processes = process_of(found["globalTid"].to_numpy())
    domain_ids = as_int(found["domainId"], 0)
    named = domains.select(["globalTid", "domainId", "call"]).drop_null()
    owners = process_of(named["globalTid"].to_numpy())
    for owner, domain, name in zip(owners, *(named[n].to_pylist() for n in named.column_names[1:]), strict=True):
        inside = (processes == owner) & (domain_ids == domain)
        says_nccl = says_nccl | inside if name == _DOMAIN else says_nccl
        is_nameless = is_nameless & ~inside
    return says_nccl, is_nameless & ~says_nccl


def _table(found: pa.Table, fields: Fields, kept: Flags) -> pa.Table:
    starts, threads = as_int(found["start"], TIME_LIMIT), found["globalTid"].to_numpy()
    kept = kept & (starts > -TIME_LIMIT) & (starts < TIME_LIMIT)
    ends = as_int(found["end"], TIME_LIMIT)
    rows = np.flatnonzero(kept)
    rows = rows[np.lexsort((threads[rows], starts[rows], process_of(threads)[rows]))]
    columns = {name: pa.array(fields.values[name][rows], mask=~fields.known[name][rows]) for name in _COLUMNS}
    is_open = (ends < starts) | (ends >= TIME_LIMIT)
    return PAYLOADS.table(
        {
            "process_id": process_of(threads[rows]),
            "thread_id": threads[rows],
            "start_ns": starts[rows],
            "end_ns": pa.array(ends[rows], mask=is_open[rows]),
            "call": found["call"].take(pa.array(rows)),
            **columns,
        }
    )


def _comm_sizes(table: pa.Table) -> pa.Table:
    pairs = table.select(COMM_SIZES.names).drop_null()
    pairs = pairs.filter(pc.greater(pairs["n_ranks"], 0)).group_by(COMM_SIZES.names).aggregate([])
    keys = COMM_SIZES.names[:2]
    sizes = pairs.group_by(keys).aggregate([("n_ranks", "min"), ("n_ranks", "count")])
    sizes = sizes.filter(pc.equal(sizes["n_ranks_count"], 1)).sort_by([(key, "ascending") for key in keys])
    return COMM_SIZES.table({**{key: sizes[key] for key in keys}, "n_ranks": sizes["n_ranks_min"]})


def _comm_ranks(table: pa.Table) -> dict[int, CommRank]:
    names = ["process_id", "n_ranks", "rank"]
    seen: dict[int, set[tuple[int, int]]] = {}
    for row in table.select(names).drop_null().group_by(names).aggregate([]).to_pylist():
        seen.setdefault(row["process_id"], set()).add((row["n_ranks"], row["rank"]))
    ranks = {}
    for process, pairs in seen.items():
        n_ranks = max(size for size, _ in pairs)
        own = [rank for size, rank in pairs if size == n_ranks]
        if len(own) == 1 and 0 <= own[0] < n_ranks:
            ranks[process] = CommRank(own[0], n_ranks)
    return ranks
