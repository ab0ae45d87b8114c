"""The numbers in NCCL's payloads, found by the names that NCCL's releases gave them.

==========  ===========================================================================
NCCL 2.19   ``Message size [bytes]`` (``Bytes`` for broadcast, send and receive)
2.21 on     ``NCCL communicator ID`` before it; ``No. of ranks`` and ``Rank`` when a
            communicator is made
traced by   ``commHash``, ``seqNumber``, ``count``, ``dataType``
nsys itself
==========  ===========================================================================
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa
    from numpy.typing import NDArray

    from nsyspipe.read.payload_layouts import Layout

    Int64 = NDArray[np.int64]
    Flags = NDArray[np.bool_]

__all__ = ["HEADER", "Fields", "decode_fields", "fits_layout", "names_in"]

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
    """What each of some blobs holds.

    Attributes
    ----------
    is_decoded
        Whether the blob fits a layout.
    values
        By field: ``comm_id``, ``seq``, ``message_bytes``, ``count``, ``datatype``, ``n_ranks``,
        ``rank``; 64-bit ids as signed numbers.
    known
        By field: where its value is one.
    """

    is_decoded: Flags
    values: dict[str, Int64]
    known: dict[str, Flags]


def names_in(layout: Layout) -> dict[str, str]:
    """Return, for each field that a layout has as an integer, how the layout spells it."""
    found = {}
    for field, spellings in _SPELLINGS.items():
        for name in spellings:
            if "f" not in layout.fields.get(name, ("f", 0))[0]:
                found[field] = name
                break
    return found


def decode_fields(
    blobs: pa.ChunkedArray, domains: Int64, layouts: Mapping[tuple[int, int], Layout]
) -> Fields:
    """Decode the fields of all blobs, layout by layout.

    A blob fits a layout of its range's domain if it names its schema, and is as long as both say.

    Parameters
    ----------
    domains
        Domain of the range of each blob.
    layouts
        By domain and schema.
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


def _fill(
    fields: Fields, rows: Int64, data: NDArray[np.uint8], starts: Int64, layout: Layout
) -> None:
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
