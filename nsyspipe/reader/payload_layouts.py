"""How NVTX payloads lie in memory, as the report itself describes them.

Offsets and types come from ``NVTX_PAYLOAD_SCHEMA_ENTRIES``, never from constants: they change with
the release of the library that wrote the payload. The meaning of types, flags and offsets is that
of NVTX's header ``nvToolsExtPayload.h``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from nsyspipe.reader import report as versions

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from nsyspipe.reader.report import Report

    Key = tuple[int, int]
    Row = Mapping[str, Any]


# nvtxPayloadEntryType: those that are read, as numpy formats, little endian.
_NUMBERS = {
    **dict(enumerate(("i1", "u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<i8", "<u8"), 1)),
    **dict(enumerate(("i1", "u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8"), 11)),
    19: "<f4",
    20: "<f8",
    22: "<u8",  # size_t
    23: "<u8",  # an address
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
_POINTER, _REFERENCE, _ARRAY, _FIXED_ARRAY = 1 << 1, 3 << 2, 7 << 4, 1 << 4
_POINTER_BYTES = 8

_STATIC, _UNIONS = 1, (3, 4)  # nvtxPayloadSchemaType


@dataclass(frozen=True)
class Layout:
    """One payload schema."""

    n_bytes: int  # size of the payload; if not `is_exact`, the least that holds all fields
    is_exact: bool
    # Numpy format and offset by `bare_name`. Entries that are no single number, or whose place is unknown, are left
    # out.
    fields: dict[str, tuple[str, int]]

    def dtype(self, names: Iterable[str]) -> np.dtype[np.void]:
        """Return a numpy record type of some of the fields, `n_bytes` long."""
        chosen = list(names)
        formats, offsets = zip(*(self.fields[name] for name in chosen), strict=True)
        parts = {"names": chosen, "formats": formats, "offsets": offsets, "itemsize": self.n_bytes}
        return np.dtype(parts)  # type: ignore[call-overload, no-any-return]


def bare_name(name: str) -> str:
    """Return a field's name without case, spacing and punctuation.

    Examples
    --------
    >>> bare_name("Message size [bytes]")
    'messagesizebytes'
    """
    return "".join(filter(str.isalnum, name)).lower()


def read_layouts(report: Report) -> dict[tuple[int, int], Layout]:
    """Read the layouts by (domain, schema).

    One process describes each schema once, so several processes repeat it; where they contradict
    each other (domain ids are per process), nothing tells whose a payload is, and it has no layout.
    """
    needed, names = (
        ("domainId", "schemaId", "payloadSize"),
        ("domainId", "schemaId", "idx", "type", "offset"),
    )
    if not report.has(versions.PAYLOAD_SCHEMAS, *needed) or not report.has(versions.PAYLOAD_ENTRIES, *names, "name"):
        return {}
    kinds = dict.fromkeys((*needed, "type", "alignTo"), "int")
    schemas = _by_key(report.select(versions.PAYLOAD_SCHEMAS, kinds).to_pylist())
    kinds = dict.fromkeys((*names, "flags", "arrayOrUnionDetail"), "int") | {"name": "text"}
    entries = _by_key(report.select(versions.PAYLOAD_ENTRIES, kinds).to_pylist())
    columns = dict.fromkeys(("domainId", "schemaId", "size"), "int")
    sizes = _by_key(report.few(versions.PAYLOAD_ENUMS, columns))
    enums = {key: rows[0]["size"] for key, rows in sizes.items() if len(rows) == 1}
    layouts = {}
    for key, rows in schemas.items():
        described = {row["idx"]: row for row in entries.get(key, [])}
        is_ambiguous = len(rows) > 1 or len(described) < len(entries.get(key, []))
        if not is_ambiguous and rows[0]["type"] not in _UNIONS:
            own_enums = {schema: size for (domain, schema), size in enums.items() if domain == key[0]}
            layouts[key] = _layout(rows[0], described, own_enums)
    return layouts


def _by_key(rows: list[dict[str, Any]]) -> dict[Key, list[Row]]:
    """Group rows by (domain, schema), each distinct row once; a zero may be stored as null."""
    found: dict[Key, dict[tuple[Any, ...], Row]] = {}
    for row in rows:
        full = {name: value or 0 for name, value in row.items()}
        key = full["domainId"], full["schemaId"]
        found.setdefault(key, {})[tuple(full.values())] = full
    return {key: list(distinct.values()) for key, distinct in found.items()}


def _layout(schema: Row, described: Mapping[int, Row], enums: Mapping[int, int]) -> Layout:
    fields = place_entries(described, pack=max(schema["alignTo"], 0), enums=enums)
    ends = {name: at + np.dtype(code).itemsize for name, (code, at) in fields.items()}
    is_exact = schema["payloadSize"] > 0 and schema["type"] in {0, _STATIC}
    n_bytes = schema["payloadSize"] if is_exact else max(ends.values(), default=0)
    inside = {name: field for name, field in fields.items() if ends[name] <= n_bytes}
    return Layout(n_bytes, is_exact, inside)


def place_entries(
    entries: Mapping[int, Row], *, pack: int = 0, enums: Mapping[int, int] | None = None
) -> dict[str, tuple[str, int]]:
    """Return format and offset of each number among a schema's entries, by `bare_name`.

    An entry that states no offset (0, and not the first) follows the one before at its natural
    alignment. Behind an entry of unknown size that place is unknown, up to the next stated offset.

    Parameters
    ----------
    entries
        By index from 0: ``type``, ``flags``, ``arrayOrUnionDetail``, ``name``, ``offset``.
    pack
        The largest alignment of a packed struct; 0 for natural alignment.
    enums
        Size in bytes of each enum by its id.
    """
    fields: dict[str, tuple[str, int]] = {}
    end: int | None = 0
    previous = -1
    for index in sorted(entries):
        entry = entries[index]
        size, alignment, code = _shape(entry, enums or {})
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
    kind, flags, detail = entry["type"], entry["flags"], max(entry["arrayOrUnionDetail"], 0)
    if flags & _POINTER:
        return _POINTER_BYTES, _POINTER_BYTES, None
    is_array = flags & _ARRAY
    if flags & _REFERENCE or is_array not in {0, _FIXED_ARRAY}:
        return 0, 1, None
    if character := _CHARACTER_BYTES.get(kind):
        return character * detail, character, None
    code = _NUMBERS.get(kind) or (f"<i{enums[kind]}" if enums.get(kind) in {1, 2, 4, 8} else None)
    size = np.dtype(code).itemsize if code else _BYTES.get(kind, 0)
    if is_array:
        return size * detail, size or 1, None
    return size, size or 1, code
