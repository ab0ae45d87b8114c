"""What a table is: its grain, its key, and for each column type, unit, formula and source; and how one is written down."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


# Arrays by what they hold.
Int64 = NDArray[np.int64]
Int32 = NDArray[np.int32]
Float64 = NDArray[np.float64]
Flags = NDArray[np.bool_]

SCHEMA_VERSION = 1

INT, FLOAT, TEXT, FLAG = pa.int64(), pa.float64(), pa.string(), pa.bool_()

# `word` is a dictionary, since that is what pandas makes of a directory's `run_id=`: the two must agree.
_TYPES = {"float": FLOAT, "text": TEXT, "word": pa.dictionary(pa.int32(), TEXT)}
# The type that goes without saying with a unit.
_BY_UNIT = {
    **dict.fromkeys(("ns", "id", "count", "bytes", "enum"), INT),
    **dict.fromkeys(("ratio", "bytes/s", "1/s"), FLOAT),
    **dict.fromkeys(("text", "json"), TEXT),
    "flag": FLAG,
    "time": pa.timestamp("us", tz="UTC"),
}


@dataclass(frozen=True, slots=True)
class Column:
    """One column: Arrow type, unit, what it means, and where it comes from."""

    name: str
    type: pa.DataType
    unit: str
    doc: str
    source: str = ""
    nullable: bool = False

    def to_field(self) -> pa.Field:
        """Return the Arrow field, with doc, unit and source as its metadata."""
        metadata = {"doc": self.doc, "unit": self.unit, "source": self.source}
        return pa.field(self.name, self.type, nullable=self.nullable, metadata=metadata)


@dataclass(frozen=True)
class TableSchema:
    """A named table: its grain, its sort key and its columns."""

    name: str
    doc: str
    key: tuple[str, ...]
    columns: tuple[Column, ...]
    arrow: pa.Schema = field(init=False, repr=False)

    def __post_init__(self) -> None:
        metadata = {"table": self.name, "doc": self.doc, "schema_version": str(SCHEMA_VERSION)}
        arrow = pa.schema([column.to_field() for column in self.columns], metadata=metadata)
        object.__setattr__(self, "arrow", arrow)

    @property
    def names(self) -> list[str]:
        """Column names in order."""
        return [column.name for column in self.columns]

    def empty(self) -> pa.Table:
        """Return the table without rows."""
        return self.arrow.empty_table()

    def table(self, columns: Mapping[str, object]) -> pa.Table:
        """Build the table from arrays or lists by column name; every column must be given."""
        arrays = [_as_arrow(columns[f.name], f.type) for f in self.arrow]
        return pa.Table.from_arrays(arrays, schema=self.arrow)

    def from_rows(self, rows: Sequence[Mapping[str, object]]) -> pa.Table:
        """Build the table from a few row mappings; a missing key is null."""
        return pa.Table.from_pylist(list(rows), schema=self.arrow)


def _as_arrow(values: object, wanted: pa.DataType) -> pa.Array | pa.ChunkedArray:
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values if values.type == wanted else values.cast(wanted)
    return pa.array(values, wanted)


def conform(table: pa.Table, schema: TableSchema) -> pa.Table:
    """Cast and order a table's columns to its declared schema (Arrow computations drop metadata)."""
    return table.select(schema.names).cast(schema.arrow)


def table(text: str) -> TableSchema:
    r"""Read a table as it is written down: its name and key, what a row is, an empty line, then its `columns`.

    Examples
    --------
    >>> table("steps by rank, start_ns: One row per step.\n\n wall_ns ns end - start <- derived").key
    ('rank', 'start_ns')
    """
    head, _, body = text.partition("\n\n")
    title, _, doc = " ".join(head.split()).partition(": ")
    name, _, key = title.partition(" by ")
    return TableSchema(name, doc, tuple(key.split(", ")) if key else (), columns(body))


def columns(text: str) -> tuple[Column, ...]:
    """Read columns, one per line: name, kind, meaning, and its source behind ``<-``.

    A kind is a unit that implies its type, or ``TYPE:UNIT`` (``_`` for a space); with ``?`` the column may be null. A line
    that is indented by eight spaces goes on the one before.
    """
    lines = text.replace("\n" + 8 * " ", " ").splitlines()
    return tuple(_column(line) for line in lines if line.strip())


def _column(line: str) -> Column:
    name, kind, meaning = line.split(maxsplit=2)
    doc, _, source = meaning.partition(" <- ")
    typed, _, unit = kind.removesuffix("?").rpartition(":")
    arrow = _TYPES[typed] if typed else _BY_UNIT[unit]
    return Column(name, arrow, unit.replace("_", " "), doc, source, nullable=kind.endswith("?"))
