"""Payloads of NCCL's ranges, laid out as several of its releases do, packed without nsyspipe."""

import struct
from dataclasses import dataclass
from typing import Any, NamedTuple

INT, UINT, INT32, UINT32, UINT64, SIZE = 5, 6, 15, 16, 18, 22  # nvtxPayloadEntryType
# By type: how `struct` writes it.
CODES = {
    **dict(enumerate("bBhHiIqQqQ", 1)),
    **dict(enumerate("bBhHiIqQ", 11)),
    19: "f",
    20: "d",
    22: "Q",
    23: "Q",
}
REDUCTION = 2**24 + 24  # an enum of NCCL's own


class Entry(NamedTuple):
    """One field: where it lies, and whether its description says so."""

    name: str | None
    kind: int
    at: int
    is_stated: bool = True
    flags: int | None = None
    detail: int | None = None

    def row(self) -> dict[str, Any]:
        """Return the description as nsys exports it: 0 as null."""
        offset = self.at if self.is_stated and self.at else None
        return {
            "type": self.kind,
            "name": self.name,
            "offset": offset,
            "flags": self.flags,
            "arrayOrUnionDetail": self.detail,
        }


@dataclass(frozen=True)
class PayloadLayout:
    """A payload schema; `size` is its real size, stated or not."""

    schema: int
    size: int
    entries: tuple[Entry, ...]
    is_stated: bool = True
    align: int | None = None
    type: int = 1

    def rows(self, domain: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        key = {"domainId": domain, "schemaId": self.schema}
        size = self.size if self.is_stated else None
        schema = {"type": self.type, "numEntries": len(self.entries), "payloadSize": size}
        entries = [{**key, "idx": n, **entry.row()} for n, entry in enumerate(self.entries)]
        return {**key, **schema, "alignTo": self.align}, entries

    def pack(self, fields: dict[str, int]) -> bytes:
        """Return the payload; what is not given is 0xEE."""
        payload = bytearray(b"\xee" * self.size)
        places = {entry.name: entry for entry in self.entries}
        for name, value in fields.items():
            struct.pack_into(f"<{CODES[places[name].kind]}", payload, places[name].at, value)
        return bytes(payload)


def blob(layout: PayloadLayout, fields: dict[str, int]) -> bytes:
    """Return what nsys stores: its header, which does not name the domain, then the payload."""
    payload = layout.pack(fields)
    low, high = layout.schema % 2**32, layout.schema >> 32
    return struct.pack("<QIIQQ", 1, low, high, len(payload), 32 + len(payload)) + payload


COMM, BYTES, RANKS, RANK = "NCCL communicator ID", "Message size [bytes]", "No. of ranks", "Rank"
# ncclAllReduce of 2.19: no communicator, and a size of 0 for the payload as a whole.
_SUMMED = Entry(BYTES, SIZE, 0), Entry("Reduction operation", REDUCTION, 8)
NCCL_2_19 = PayloadLayout(2**24 + 5, 16, _SUMMED, is_stated=False)
# ncclSend and ncclBroadcast of 2.19 say it in another way.
NCCL_2_19_SEND = PayloadLayout(
    2**24 + 9, 16, (Entry("Bytes", SIZE, 0), Entry("Peer rank", INT, 8)), is_stated=False
)
# ncclAllReduce from 2.21 on, as nsys 2025.3 exported it of a real run.
NCCL_2_21 = PayloadLayout(
    2**24 + 6,
    24,
    (Entry(COMM, UINT64, 0), Entry(BYTES, SIZE, 8), Entry("Reduction operation", REDUCTION, 16)),
)
# ncclCommInitRankConfig of the same.
COMM_INIT = PayloadLayout(
    2**24 + 11,
    24,
    (
        Entry(COMM, UINT64, 0),
        Entry(RANKS, INT, 8),
        Entry(RANK, INT, 12),
        Entry("CUDA device", INT, 16),
    ),
)
# As it might say it in another release.
SWAPPED_INIT = PayloadLayout(
    2**24 + 12, 24, (Entry(COMM, UINT64, 0), Entry(RANK, INT, 8), Entry(RANKS, INT, 16))
)
# What --trace=nccl is documented to record, in another order, with paddings.
_NEW = {
    "commHash": (UINT64, 16),
    "dataType": (INT32, 4),
    "count": (SIZE, 24),
    "seqNumber": (UINT32, 36),
    "commRank": (INT, 40),
    "nRanks": (INT, 44),
}
NCCL_2_28 = PayloadLayout(
    2**24 + 40, 48, tuple(Entry(name, *place) for name, place in _NEW.items())
)
# Offsets left to the reader.
_BARE = {
    "my-rank": (INT, 0),
    "NCCL Communicator Id": (UINT64, 8),
    "n_ranks": (UINT, 16),
    "message size (bytes)": (SIZE, 24),
}
_FOLLOWING = tuple(Entry(name, *place, is_stated=False) for name, place in _BARE.items())
IMPLICIT = PayloadLayout(2**24 + 50, 32, _FOLLOWING, is_stated=False)
