"""Write `nsyspipe/model/typed_tables.py`: the columns of each declared table as types.

``python -m tests.write_table_types`` writes the file anew after a column was added or removed.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa

import nsyspipe
from nsyspipe.model import canonical, schema
from nsyspipe.model.table import Column, TableSchema
from tests.contract.density import MAX_COLUMNS

# Names in one type, so that no statement is large.
MAX_NAMES = 40
PATH = Path(nsyspipe.__file__).parent / "model" / "typed_tables.py"

HEAD = '''"""Tables with typed columns: a misspelt column fails the type checker.

`python -m tests.write_table_types` writes this file from `schema` and `canonical`. The types are
there for the type checker alone: at run time each table is a `pyarrow.Table`, and each row a
dictionary. Values of columns that may be null have the type ``Any``.
"""

# ruff: noqa: D101, D102 - the methods are those of pyarrow, and the columns those of `schema`
from collections.abc import Sequence
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Literal,
    Self,
    SupportsIndex,
    TypeAlias,
    TypedDict,
    TypeVar,
)

import pyarrow as pa

if TYPE_CHECKING:
    ColumnT = TypeVar("ColumnT", bound=str)
    RowT = TypeVar("RowT")

    class TypedTable(Generic[ColumnT, RowT]):
        """What this package uses of `pyarrow.Table`, for a table with known columns.

        Only `column` takes a name that is computed.
        """

        num_rows: int
        column_names: list[str]
        schema: pa.Schema
        columns: list[pa.ChunkedArray]
        nbytes: int

        def __len__(self) -> int: ...
        def __getitem__(self, column: ColumnT) -> pa.ChunkedArray: ...
        def column(self, name: str | int) -> pa.ChunkedArray: ...
        def select(self, names: Sequence[ColumnT]) -> Self: ...
        def drop_columns(self, names: ColumnT | Sequence[ColumnT]) -> Self: ...
        def filter(self, mask: object) -> Self: ...
        def take(self, rows: object) -> Self: ...
        def slice(self, offset: SupportsIndex = 0, length: SupportsIndex | None = None) -> Self: ...
        def sort_by(self, order: ColumnT | Sequence[tuple[ColumnT, str]]) -> Self: ...
        def group_by(
            self, keys: ColumnT | Sequence[ColumnT], *, use_threads: bool = True
        ) -> pa.TableGroupBy: ...
        def append_column(self, name: str | pa.Field, values: object) -> pa.Table: ...
        def add_column(self, place: int, name: str | pa.Field, values: object) -> pa.Table: ...
        def set_column(self, place: int, name: str | pa.Field, values: object) -> Self: ...
        def rename_columns(self, names: object) -> pa.Table: ...
        def combine_chunks(self) -> Self: ...
        def drop_null(self) -> Self: ...
        def field(self, column: str | int) -> pa.Field: ...
        def join(self, right: object, keys: object, join_type: str = ...) -> pa.Table: ...
        def unify_dictionaries(self) -> Self: ...
        def cast(self, schema: pa.Schema) -> Self: ...
        def equals(self, other: object) -> bool: ...
        def to_pylist(self) -> list[RowT]: ...
        def to_batches(self, max_chunksize: int | None = None) -> list[pa.RecordBatch]: ...
'''

_PYTHON_TYPES = {
    pa.int64(): "int",
    pa.float64(): "float",
    pa.string(): "str",
    pa.bool_(): "bool",
}


def declared_tables() -> dict[str, TableSchema]:
    """Return the tables of `schema` and `canonical` by the name of their constant."""
    tables: dict[str, TableSchema] = {}
    for module in (schema, canonical):
        for constant, value in vars(module).items():
            if isinstance(value, TableSchema) and constant.isupper():
                tables[_type_name(value.name)] = value
    return tables


def _type_name(table: str) -> str:
    """Return a name of a table as part of a class name: "host_steps" is "HostSteps"."""
    return "".join(word.capitalize() for word in table.split("_"))


def _python_type(column: Column) -> str:
    if column.nullable:
        return "Any"
    if pa.types.is_dictionary(column.type):
        return "str"
    return _PYTHON_TYPES.get(column.type, "Any")


def _names_of(name: str, columns: Sequence[str]) -> Iterator[str]:
    """Yield the type of the names of columns; many of them are in several types."""
    alias = f"    {name}Column"
    if len(columns) == 1:
        yield f'{alias}: TypeAlias = Literal["{columns[0]}"]'
        return
    if len(columns) <= MAX_NAMES:
        yield f"{alias}: TypeAlias = Literal["
        yield from (f'        "{column}",' for column in columns)
        yield "    ]"
        return
    parts = [columns[at : at + MAX_NAMES] for at in range(0, len(columns), MAX_NAMES)]
    for number, part in enumerate(parts):
        yield from _names_of(f"{name}{number}", part)
    aliases = ", ".join(f"{name}{number}Column" for number in range(len(parts)))
    yield f"{alias}: TypeAlias = Literal[{aliases}]"


def _types_of(name: str, table: TableSchema) -> Iterator[str]:
    """Yield the lines that the type checker reads of a table."""
    yield from _names_of(name, table.names)
    yield ""
    yield f"    class {name}Row(TypedDict):"
    yield from (f"        {column.name}: {_python_type(column)}" for column in table.columns)
    yield ""
    alias = f"    {name}Table: TypeAlias = TypedTable["
    types = f"{name}Column, {name}Row"
    if len(f"{alias}{types}]") <= MAX_COLUMNS:
        yield f"{alias}{types}]"
    else:
        yield from (alias, f"        {types}", "    ]")
    yield ""


def _values_of(name: str) -> Iterator[str]:
    """Yield the lines that Python runs for a table."""
    yield f"    {name}Table = pa.Table"
    yield f"    {name}Row = dict"
    yield f"    {name}Column = str"


def written() -> str:
    """Return the text of the file."""
    tables = declared_tables()
    lines = [HEAD]
    for name, table in tables.items():
        lines += _types_of(name, table)
    lines.append("else:")
    for name in tables:
        lines += _values_of(name)
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PATH.write_text(written(), encoding="utf-8")
