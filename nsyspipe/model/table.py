"""What a table is: its grain, its key, and for each column type, unit, formula and source."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


SCHEMA_VERSION = 1

INT, FLOAT, TEXT, FLAG = pa.int64(), pa.float64(), pa.string(), pa.bool_()


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


# Columns that several tables share, and short ways to declare the common sorts.


RANK = Column(
    "rank",
    INT,
    "id",
    "global rank",
    "the first of rank map, environment, NCCL payload, MPI thread name, file name, order that numbers every rank",
)
STEP = Column(
    "step", INT, "id", "step number, the same on every rank", "NVTX range text, or its ordinal"
)


def ns(name: str, doc: str, *, source: str = "", nullable: bool = False) -> Column:
    """Declare a column of nanoseconds."""
    return Column(name, INT, "ns", doc, source, nullable)


def count(name: str, doc: str, source: str = "", *, nullable: bool = False) -> Column:
    """Declare a column of numbers of things."""
    return Column(name, INT, "count", doc, source, nullable)


def ratio(name: str, doc: str) -> Column:
    """Declare a derived ratio; null where its denominator is 0 or its numerator null."""
    return Column(name, FLOAT, "ratio", doc, "derived", nullable=True)
