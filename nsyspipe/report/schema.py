"""The reference of tables and columns, for the terminal and as Markdown that the README can link into."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsyspipe.model.table import SCHEMA_VERSION
from nsyspipe.report.blocks import Column, Sentence, Table
from nsyspipe.report.markdown import escaped, prose, table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from nsyspipe.model.table import Column as TableColumn, TableSchema
    from nsyspipe.report.blocks import Block


def schema_blocks(schemas: Sequence[TableSchema]) -> Iterator[Block]:
    """Yield each table's grain, key and columns."""
    columns = [*(Column(name, "word") for name in _HEADINGS[:3]), Column(_HEADINGS[3], "long"), Column(_HEADINGS[4], "prose")]  # fmt: skip
    for at, schema in enumerate(schemas):
        key = f" Sorted by {', '.join(schema.key)}." if schema.key else ""
        yield Sentence(schema.name, "bold", is_close=not at)
        yield Sentence(schema.doc + key)
        rows = [[one.name, _type(one), one.unit, one.doc, one.source] for one in schema.columns]
        yield Table(f"Columns of {schema.name}", columns, rows)
    yield Sentence("A type that ends in ? may be null: not recorded.", "dim", is_close=False)


def _type(column: TableColumn) -> str:
    return f"{column.type}{'?' if column.nullable else ''}"


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
    listed = [f"- [{schema.name}](#{schema.name}): {prose(_first_sentence(schema.doc), _UNCUT)}" for schema in schemas]
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


def _row(table_name: str, column: TableColumn) -> list[str]:
    return [
        f'<a id="{table_name}.{column.name}"></a>`{column.name}`',
        escaped(_type(column)),
        escaped(column.unit),
        prose(column.doc, _UNCUT),
        prose(column.source, _UNCUT),
    ]
