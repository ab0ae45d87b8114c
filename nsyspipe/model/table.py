"""The declaration of a table: grain, key, and type, unit, meaning and source of each column."""

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
# Texts that repeat, as a dictionary. pandas reads `run_id=` in the name of a directory as one, and
# the column in the file must have the same type.
WORD = pa.dictionary(pa.int32(), TEXT)

_INTEGER_TYPES = (pa.int8(), pa.int16(), pa.int32(), INT)


class Column(Struct, frozen=True):
    """One column: Arrow type, unit, meaning, and the part of a report that it comes from."""

    name: str
    type: pa.DataType
    unit: str
    doc: str
    source: str = ""
    nullable: bool = False

    @property
    def metadata(self) -> dict[str, str]:
        """What the Arrow field says of the column besides its type."""
        return {"doc": self.doc, "unit": self.unit, "source": self.source}


@dataclass(frozen=True)
class TableSchema:
    """A named table: what a row is, the columns that it is sorted by, and all its columns."""

    name: str
    doc: str
    key: tuple[str, ...]
    columns: tuple[Column, ...]
    arrow: pa.Schema = field(init=False, repr=False)
    _empty: pa.Table = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        version = str(SCHEMA_VERSION)
        metadata = {"table": self.name, "doc": self.doc, "schema_version": version}
        fields = [_arrow_field(column) for column in self.columns]
        arrow = pa.schema(fields, metadata=metadata)
        object.__setattr__(self, "arrow", arrow)
        object.__setattr__(self, "_empty", arrow.empty_table())

    @property
    def names(self) -> list[str]:
        """Column names in order."""
        return [column.name for column in self.columns]

    def empty(self) -> pa.Table:
        """Return the table without rows."""
        return self._empty

    def table(self, columns: Mapping[str, object]) -> pa.Table:
        """Build the table from arrays or lists by column name; every column must be given."""
        arrays = []
        for column in self.columns:
            values = columns[column.name]
            arrays.append(_as_arrow(values, column.type))
        return pa.Table.from_arrays(arrays, schema=self.arrow)

    def from_rows(self, rows: Sequence[Mapping[str, object]]) -> pa.Table:
        """Build the table from a few row mappings; a missing key is null."""
        if not rows:
            return self._empty
        return pa.Table.from_pylist(list(rows), schema=self.arrow)


def _arrow_field(column: Column) -> pa.Field:
    return pa.field(column.name, column.type, column.nullable, column.metadata)


def _as_arrow(values: object, arrow_type: pa.DataType) -> pa.Array | pa.ChunkedArray:
    """Return values as an Arrow array of a type."""
    if not isinstance(values, pa.Array | pa.ChunkedArray):
        return pa.array(values, arrow_type)
    # A cast costs time even if the type is the same.
    if values.type == arrow_type:
        return values
    return values.cast(arrow_type)


@dataclass(frozen=True)
class DescribedTable(TableSchema):
    """A table that users get, with a line for the list of all tables."""

    summary: str


def conform(table: pa.Table, schema: TableSchema) -> pa.Table:
    """Return a table with the order, types and metadata of its schema.

    Arrow drops metadata when it computes.
    """
    columns = table.select(schema.names)
    # A cast costs time even if the types are the same.
    if columns.schema.equals(schema.arrow):
        return pa.Table.from_arrays(columns.columns, schema=schema.arrow)
    return columns.cast(schema.arrow)


def with_values(table: pa.Table, name: str, values: object) -> pa.Table:
    """Return a table with other values, of the same type, in a column that it has."""
    place = table.schema.get_field_index(name)
    field = table.schema.field(place)
    return table.set_column(place, field, _as_arrow(values, field.type))


def narrowed(column: pa.ChunkedArray) -> pa.ChunkedArray | pa.Array:
    """Return a column of int64 in the narrowest type that holds its values.

    A column without a value takes no memory: its type is null.
    """
    value_range = pc.min_max(column).as_py()
    smallest = value_range["min"]
    largest = value_range["max"]
    if smallest is None:
        return pa.nulls(len(column))
    # A signed type has one more negative number than positive ones. So a negative number takes as
    # many bits as the positive number one below its magnitude: -128 as many as 127.
    number_with_most_bits = max(largest, -1 - smallest)
    # One more bit is for the sign.
    n_bits = number_with_most_bits.bit_length() + 1
    narrowest = next(integer for integer in _INTEGER_TYPES if integer.bit_width >= n_bits)
    return column.cast(narrowest)
