"""NCCL's own NVTX payloads, decoded by the layout that the report itself describes.

Offsets and types come from ``NVTX_PAYLOAD_SCHEMA_ENTRIES``, never from constants: they change with
the NCCL release. The blobs are there only after ``nsys export --include-blobs=true``.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nsyspipe.read import versions
from nsyspipe.read.events import process_of_thread

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from nsyspipe.read.report import Report

__all__ = ["CommRank", "Layout", "decode", "read_comm_ranks", "read_layouts"]

# NVTX payload entry types (nvtxPayloadEntryType) as numpy formats, little endian.
_FORMATS = {
    1: "i1",
    2: "u1",
    3: "<i2",
    4: "<u2",
    5: "<i4",
    6: "<u4",
    7: "<i8",
    8: "<u8",
    9: "<i8",
    10: "<u8",
    11: "i1",
    12: "u1",
    13: "<i2",
    14: "<u2",
    15: "<i4",
    16: "<u4",
    17: "<i8",
    18: "<u8",
    19: "<f4",
    20: "<f8",
    22: "<u8",
    23: "<u8",
}

# Each blob starts with: domain u32, flags u32, schema u32, flags u32, payload size u64, total size u64.
_HEADER = struct.Struct("<IIIIQQ")

_RANK_FIELD, _SIZE_FIELD = "Rank", "No. of ranks"


@dataclass(frozen=True)
class Layout:
    """How one payload schema lies in memory: numpy format and offset by field name."""

    n_bytes: int
    fields: dict[str, tuple[str, int]]

    def dtype(self, names: Iterable[str]) -> np.dtype[np.void]:
        """Return a numpy record type of some of the fields."""
        chosen = list(names)
        return np.dtype(
            {
                "names": chosen,
                "formats": [self.fields[name][0] for name in chosen],
                "offsets": [self.fields[name][1] for name in chosen],
                "itemsize": self.n_bytes,
            }
        )


@dataclass(frozen=True)
class CommRank:
    """A process's rank in its largest communicator, and that communicator's size."""

    rank: int
    n_ranks: int


def read_layouts(report: Report) -> dict[tuple[int, int], Layout]:
    """Read the layouts by (domain, schema); fields of unknown type are left out."""
    if not report.has(versions.PAYLOAD_SCHEMAS, "domainId", "schemaId", "payloadSize"):
        return {}
    if not report.has(
        versions.PAYLOAD_ENTRIES, "domainId", "schemaId", "idx", "type", "name", "offset"
    ):
        return {}
    schemas = report.select(
        versions.PAYLOAD_SCHEMAS, dict.fromkeys(("domainId", "schemaId", "payloadSize"), "int")
    )
    columns = dict.fromkeys(("domainId", "schemaId", "idx", "type", "offset"), "int")
    columns |= {"name": "text"}
    entries = report.select(versions.PAYLOAD_ENTRIES, columns).to_pylist()
    layouts = {
        (row["domainId"], row["schemaId"]): Layout(row["payloadSize"], {})
        for row in schemas.to_pylist()
        if row["payloadSize"]
    }
    for entry in entries:
        layout = layouts.get((entry["domainId"], entry["schemaId"]))
        code = _FORMATS.get(entry["type"])
        offset = max(entry["offset"] or 0, 0)  # a zero may be stored as null
        if layout and code and entry["name"] and offset + np.dtype(code).itemsize <= layout.n_bytes:
            layout.fields[entry["name"]] = (code, offset)
    return layouts


def decode(
    blobs: list[bytes], layouts: dict[tuple[int, int], Layout], names: tuple[str, ...]
) -> list[NDArray[np.void] | None]:
    """Decode some fields of each blob; None where a blob's schema lacks one of them or does not fit it.

    Returns
    -------
    list
        Per blob a record with the fields `names`.
    """
    decoded: list[NDArray[np.void] | None] = []
    for blob in blobs:
        layout = _layout_of(blob, layouts)
        if layout is None or not layout.fields.keys() >= set(names):
            decoded.append(None)
            continue
        decoded.append(np.frombuffer(blob, layout.dtype(names), count=1, offset=_HEADER.size)[0])
    return decoded


def read_comm_ranks(report: Report) -> tuple[dict[int, CommRank], int]:
    """Read each process's rank from the payloads of communicator creation.

    A process may be in several communicators: the largest tells its rank, unless two of that size
    disagree. Returned with the number of payloads that do not fit their description.
    """
    layouts = read_layouts(report)
    naming = {
        key for key, layout in layouts.items() if _has_integers(layout, _RANK_FIELD, _SIZE_FIELD)
    }
    if not naming or not report.has(versions.NVTX, "binaryData", "globalTid"):
        return {}, 0
    found = report.select(
        versions.NVTX, {"globalTid": "int", "binaryData": "blob"}, where="length(binaryData) > 0"
    )
    blobs = found["binaryData"].to_pylist()
    records = decode(blobs, {key: layouts[key] for key in naming}, (_SIZE_FIELD, _RANK_FIELD))
    seen: dict[int, set[tuple[int, int]]] = {}
    for thread, record in zip(found["globalTid"].to_pylist(), records, strict=True):
        if record is not None and thread is not None:
            seen.setdefault(process_of_thread(thread), set()).add(
                (int(record[_SIZE_FIELD]), int(record[_RANK_FIELD]))
            )
    ranks = {}
    for process, pairs in seen.items():
        n_ranks = max(size for size, _ in pairs)
        own = [rank for size, rank in pairs if size == n_ranks]
        if len(own) == 1 and 0 <= own[0] < n_ranks:
            ranks[process] = CommRank(own[0], n_ranks)
    return ranks, sum(_layout_of(blob, layouts) is None for blob in blobs)


def _has_integers(layout: Layout, *names: str) -> bool:
    return all(layout.fields.get(name, ("<f8", 0))[0].lstrip("<")[0] in "iu" for name in names)


def _layout_of(blob: bytes, layouts: dict[tuple[int, int], Layout]) -> Layout | None:
    if len(blob) < _HEADER.size:
        return None
    domain, _, schema, _, n_payload, n_total = _HEADER.unpack_from(blob)
    layout = layouts.get((domain, schema))
    fits = (
        layout is not None and n_payload == layout.n_bytes and len(blob) >= _HEADER.size + n_payload
    )
    return layout if fits and n_total <= len(blob) else None
