"""NCCL's payloads, packed anew: the numbers that analysis reads, and nothing between or behind them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nsyspipe.read import versions
from nsyspipe.read.payload_fields import HEADER, decode_fields, fits_layout, names_in
from nsyspipe.read.payload_layouts import Layout, bare_name
from nsyspipe.redaction.copying import number
from nsyspipe.redaction.tables import NUMBERS

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa
    from numpy.typing import NDArray

    from nsyspipe.redaction.copying import Copying

    Key = tuple[int, int]

__all__ = ["MARK", "PAYLOADS", "copy_layouts", "packed"]

# Stands for a payload that analysis only counts.
MARK = b"\x00"

_LOW = 0xFFFFFFFF
PAYLOADS = "payloads of NVTX ranges"


def packed(
    blobs: pa.ChunkedArray, domains: NDArray[np.int64], layouts: Mapping[Key, Layout]
) -> list[bytes]:
    """Return each blob with the numbers that `payload_fields` finds in it; a mark for one that fits no layout.

    Parameters
    ----------
    domains
        Domain of the range of each blob.
    """
    decoded = decode_fields(blobs, domains, layouts).is_decoded.tolist()
    by_low: dict[Key, list[tuple[int, Layout]]] = {}
    for (domain, schema), layout in layouts.items():
        by_low.setdefault((domain, schema & _LOW), []).append((schema, layout))
    return [
        _packed(blob, domain, by_low) if fits else MARK
        for blob, domain, fits in zip(blobs.to_pylist(), domains.tolist(), decoded, strict=True)
    ]


def _packed(blob: bytes, domain: int, layouts: Mapping[Key, list[tuple[int, Layout]]]) -> bytes:
    header = np.frombuffer(blob, HEADER, count=1)
    length = np.array([len(blob)])
    for schema, layout in reversed(layouts.get((domain, int(header["schema"][0])), [])):
        if not fits_layout(header, length, schema, layout)[0]:
            continue
        payload = bytearray(layout.n_bytes)
        source = blob[HEADER.itemsize :]
        for name in names_in(layout).values():
            n_bytes = layout.dtype([name])[name].itemsize
            at = layout.fields[name][1]
            payload[at : at + n_bytes] = source[at : at + n_bytes]
        n_total = HEADER.itemsize + layout.n_bytes
        anew = 1, schema & _LOW, schema >> 32 & _LOW, layout.n_bytes, n_total
        return np.array([anew], HEADER).tobytes() + payload
    return MARK


def copy_layouts(copying: Copying) -> None:
    """Copy how payloads lie in memory, with the names of the numbers that are read; other names become numbers."""
    for table in copying.tables(versions.PAYLOAD_ENTRIES):
        columns = copying.columns(table, NUMBERS[versions.PAYLOAD_ENTRIES])
        kinds = dict.fromkeys(columns, "INTEGER")
        values = {name: number(name) for name in columns}
        joins = ""
        if copying.columns(table, ("name",)):
            copying.database.run("DROP TABLE IF EXISTS temp.entry")
            rows = _entry_names(copying, table)
            copying.database.scratch("entry", "row INTEGER PRIMARY KEY, name TEXT", rows)
            kinds["name"], values["name"] = "TEXT", "e.name"
            joins = "LEFT JOIN temp.entry AS e ON e.row = t.rowid"
        if kinds:
            copying.database.create(table, kinds)
            copying.database.fill(table, values, joins=joins)


def _entry_names(copying: Copying, table: str) -> list[tuple[int, str]]:
    """Return each entry's name by row.

    Names that are equal stay so, also those that are equal but for case and punctuation: placing the
    entries depends on it.
    """
    found = copying.report.select(table, {"name": "text"}, derived={"row": "rowid"})
    spellings: dict[str, dict[str, int]] = {}
    numbers: dict[str, int] = {}
    rows = []
    for row, name in zip(found["row"].to_pylist(), found["name"].to_pylist(), strict=True):
        if not name:
            continue
        bare = bare_name(name)
        mine = spellings.setdefault(bare, {})
        known = bare if _is_read(bare) else f"field{numbers.setdefault(bare, len(numbers))}"
        rows.append((row, known + "_" * mine.setdefault(name, len(mine))))
        copying.removed.add(PAYLOADS, f"{table}.name", int(known != bare), "values")
    return rows


def _is_read(bare: str) -> bool:
    """Tell whether a field of this name is one that is read."""
    return bool(names_in(Layout(0, is_exact=True, fields={bare: ("<u8", 0)})))
