"""The reference of tables and columns, for the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from nsyspipe.report.text import rendered

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsyspipe.schema import TableSchema

__all__ = ["schema_text"]


def schema_text(schemas: Sequence[TableSchema], console: Console) -> str:
    """Return each table's grain, key and columns as text for a console."""
    legend = Text("A type that ends in ? may be null: not recorded.", style="dim")
    return rendered(Group(*map(_section, schemas), legend), console)


def _section(schema: TableSchema) -> Group:
    key = f" Sorted by {', '.join(schema.key)}." if schema.key else ""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for heading in ("column", "type", "unit"):
        table.add_column(heading, no_wrap=True)
    table.add_column("meaning", ratio=2, overflow="fold")
    table.add_column("source", ratio=1, overflow="fold")
    for column in schema.columns:
        kind = f"{column.type}{'?' if column.nullable else ''}"
        table.add_row(*map(Text, (column.name, kind, column.unit, column.doc, column.source)))
    title = Text(schema.name, style="bold")
    return Group(title, Text(schema.doc + key), Padding(table, (1, 0, 1, 0)))
