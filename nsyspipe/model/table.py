"""What a table is: its grain, its key, and for each column type, unit, formula and source; and how one is written down."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from numpy.typing import NDArray

Int64 = NDArray[np.int64]
Int32 = NDArray[np.int32]
Float64 = NDArray[np.float64]
Flags = NDArray[np.bool_]

SCHEMA_VERSION = 1

INT = pa.int64()
FLOAT = pa.float64()
TEXT = pa.string()
FLAG = pa.bool_()

_NARROW = pa.int8(), pa.int16(), pa.int32(), INT
# `word` is a dictionary, since that is what pandas makes of a directory's `run_id=`: the two must
# agree.
_TYPES = {"float": FLOAT, "text": TEXT, "word": pa.dictionary(pa.int32(), TEXT)}
_BY_UNIT = {
    **dict.fromkeys(("ns", "id", "count", "bytes", "enum"), INT),
    **dict.fromkeys(("ratio", "bytes/s", "1/s"), FLOAT),
    **dict.fromkeys(("text", "json"), TEXT),
    "flag": FLAG,
    "time": pa.timestamp("us", tz="UTC"),
}


class Column(Struct, frozen=True):
    """One column: Arrow type, unit, what it means, and where it comes from."""

    name: str
    type: pa.DataType
    unit: str
    doc: str
    source: str = ""
    nullable: bool = False


@dataclass(frozen=True)
class TableSchema:
    """A named table: its grain, its sort key and its columns."""

    name: str
    doc: str
    key: tuple[str, ...]
    columns: tuple[Column, ...]
    arrow: pa.Schema = field(init=False, repr=False)
    _empty: pa.Table = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        metadata = {"table": self.name, "doc": self.doc, "schema_version": str(SCHEMA_VERSION)}
        fields = [
            pa.field(
                column.name,
                column.type,
                column.nullable,
                {"doc": column.doc, "unit": column.unit, "source": column.source},
            )
            for column in self.columns
        ]
        object.__setattr__(self, "arrow", pa.schema(fields, metadata=metadata))
        object.__setattr__(self, "_empty", self.arrow.empty_table())

    @property
    def names(self) -> list[str]:
        """Column names in order."""
        return [column.name for column in self.columns]

    def empty(self) -> pa.Table:
        """Return the table without rows."""
        return self._empty

    def table(self, columns: Mapping[str, object]) -> pa.Table:
        """Build the table from arrays or lists by column name; every column must be given."""
        arrays = [_typed(columns[column.name], column.type) for column in self.columns]
        return pa.Table.from_arrays(arrays, schema=self.arrow)

    def from_rows(self, rows: Sequence[Mapping[str, object]]) -> pa.Table:
        """Build the table from a few row mappings; a missing key is null."""
        return pa.Table.from_pylist(list(rows), schema=self.arrow)


def _typed(values: object, kind: pa.DataType) -> pa.Array | pa.ChunkedArray:
    """Return the values as an Arrow array of a type. A cast costs time even if the type is the same."""
    if not isinstance(values, pa.Array | pa.ChunkedArray):
        return pa.array(values, kind)
    return values if values.type == kind else values.cast(kind)


def conform(table: pa.Table, schema: TableSchema) -> pa.Table:
    """Cast and order a table's columns to its declared schema (Arrow computations drop metadata)."""
    return table.select(schema.names).cast(schema.arrow)


def narrowed(column: pa.ChunkedArray) -> pa.ChunkedArray | pa.Array:
    """Return a column of int64 in the narrowest type that holds its values; of nulls alone in one that takes no memory."""
    least, most = (one.as_py() for one in pc.min_max(column).values())
    n_bits = 0 if least is None else max(most, ~least).bit_length() + 1
    return (
        column.cast(next(kind for kind in _NARROW if kind.bit_width >= n_bits))
        if n_bits
        else pa.nulls(len(column))
    )


def table(text: str) -> TableSchema:
    r"""Read a table as it is written down: its name and key and what a row is, then a line per column.

    Those have name, kind, meaning, and the source behind ``<-``. A kind is a unit that implies its
    type, or ``TYPE:UNIT`` (``_`` for a space); with ``?`` the column may be null. A line that is
    indented by eight spaces goes on the one before.

    >>> table("steps by rank, start_ns: One row per step.\n wall_ns ns end - start <- derived").key
    ('rank', 'start_ns')
    """
    head, *lines = filter(str.strip, text.replace("\n" + 8 * " ", " ").splitlines())
    title, _, doc = head.strip().partition(": ")
    name, _, key = title.partition(" by ")
    return TableSchema(name, doc, tuple(key.split(", ")) if key else (), tuple(map(_column, lines)))


def _column(line: str) -> Column:
    name, kind, meaning = line.split(maxsplit=2)
    doc, _, source = meaning.partition(" <- ")
    typed, _, unit = kind.removesuffix("?").rpartition(":")
    arrow = _TYPES[typed] if typed else _BY_UNIT[unit]
    return Column(name, arrow, unit.replace("_", " "), doc, source, nullable=kind.endswith("?"))
