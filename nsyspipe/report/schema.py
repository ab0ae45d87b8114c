"""The reference of tables and columns, for the terminal and as Markdown that the README can link into."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.padding import Padding
from rich.text import Text

from nsyspipe.model.table import SCHEMA_VERSION
from nsyspipe.report.as_text import grid, rendered
from nsyspipe.report.markdown import escaped, prose, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsyspipe.model.table import Column, TableSchema


def schema_text(schemas: Sequence[TableSchema], console: Console) -> str:
    """Return each table's grain, key and columns as text for a console."""
    legend = Text("A type that ends in ? may be null: not recorded.", style="dim")
    return rendered(Group(*map(_section, schemas), legend), console)


def _section(schema: TableSchema) -> Group:
    key = f" Sorted by {', '.join(schema.key)}." if schema.key else ""
    table = grid()
    for heading in ("column", "type", "unit"):
        table.add_column(heading, no_wrap=True)
    table.add_column("meaning", ratio=2, overflow="fold")
    table.add_column("source", ratio=1, overflow="fold")
    for column in schema.columns:
        kind = f"{column.type}{'?' if column.nullable else ''}"
        table.add_row(*map(Text, (column.name, kind, column.unit, column.doc, column.source)))
    title = Text(schema.name, style="bold")
    return Group(title, Text(schema.doc + key), Padding(table, (1, 0, 1, 0)))


_HEADINGS = ("column", "type", "unit", "meaning", "source")
_LEGEND = (
    "A type that ends in `?` may be null: not recorded. Intervals are half-open; `|X|` is the total length of a union of "
    "intervals, `\\` is without, `n` the intersection, `u` the union. In a dataset (`nsyspipe analyze --out`) every table "
    "begins with the column `run_id`, and `runs` has the figures of `summary`."
)
# No word of an answer is cut in a reference.
_UNCUT = 10_000


def schema_markdown(schemas: Sequence[TableSchema]) -> str:
    """Return each table's grain, key and columns; several tables have a title and a list of them.

    A table has the anchor ``#steps``, a column ``#steps.wall_ns``.
    """
    blocks = [] if len(schemas) == 1 else _introduction(schemas)
    for schema in schemas:
        blocks += _markdown_section(schema)
    return "\n\n".join("\n".join(block) for block in blocks) + "\n"


def _introduction(schemas: Sequence[TableSchema]) -> list[list[str]]:
    listed = [
        f"- [{schema.name}](#{schema.name}): {prose(_first_sentence(schema.doc), _UNCUT)}"
        for schema in schemas
    ]
    return [
        ["# Tables and columns"],
        [f"Schema version {SCHEMA_VERSION}, as `nsyspipe schema --markdown` writes it."],
        [_LEGEND],
        listed,
    ]


def _first_sentence(doc: str) -> str:
    """Return the grain of a table: what one row is."""
    return doc.split(". ", maxsplit=1)[0].rstrip(".")


def _markdown_section(schema: TableSchema) -> list[list[str]]:
    key = ", ".join(f"`{name}`" for name in schema.key)
    return [
        [f"## {schema.name}"],
        [prose(schema.doc, _UNCUT) + (f" Sorted by {key}." if key else "")],
        table(_HEADINGS, [_row(schema.name, column) for column in schema.columns], n_words=5),
    ]


def _row(table_name: str, column: Column) -> list[str]:
    kind = f"{column.type}{'?' if column.nullable else ''}"
    return [
        f'<a id="{table_name}.{column.name}"></a>`{column.name}`',
        escaped(kind),
        escaped(column.unit),
        prose(column.doc, _UNCUT),
        prose(column.source, _UNCUT),
    ]
