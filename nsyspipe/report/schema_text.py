"""The reference of tables and columns, for the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from nsyspipe.report.text import MAX_WIDTH

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from nsyspipe.schema import TableSchema

__all__ = ["print_schema"]


def print_schema(schemas: Sequence[TableSchema], console: Console) -> None:
    """Print each table's grain, key and columns."""
    console.width = min(console.width, MAX_WIDTH)
    for schema in schemas:
        console.print(Text(schema.name, style="bold"))
        key = f" Sorted by {', '.join(schema.key)}." if schema.key else ""
        console.print(Text(schema.doc + key))
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
        for heading in ("column", "type", "unit", "meaning", "source"):
            wide = heading == "meaning"
            table.add_column(
                heading,
                overflow="fold",
                ratio=1 if wide else None,
                no_wrap=heading in ("column", "type"),
            )
        for column in schema.columns:
            null = "?" if column.nullable else ""
            table.add_row(
                *map(
                    Text,
                    (column.name, f"{column.type}{null}", column.unit, column.doc, column.source),
                )
            )
        console.print(Padding(table, (1, 0, 1, 0)))
    console.print(Text("A type that ends in ? may be null: not recorded.", style="dim"))
