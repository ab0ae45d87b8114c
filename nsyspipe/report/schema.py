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


_HEADINGS = ("column", "type", "unit", "meaning", "source")
_KINDS = ("word", "word", "word", "long", "prose")
_LEGEND = (
    "A type that ends in `?` may be null: not recorded. Intervals are half-open; `|X|` is the total length of a union of "
    "intervals, `\\` is without, `n` the intersection, `u` the union. In a dataset (`nsyspipe analyze --out`) every table "
    "begins with the column `run_id`, and `runs` has the figures of `summary`."
)
# No word of an answer is cut in a reference.
_UNCUT = 10_000


def schema_blocks(schemas: Sequence[TableSchema]) -> Iterator[Block]:
    """Yield each table's grain, key and columns."""
    columns = [Column(heading, kind) for heading, kind in zip(_HEADINGS, _KINDS, strict=True)]
    for at, schema in enumerate(schemas):
        key = f" Sorted by {', '.join(schema.key)}." if schema.key else ""
        yield Sentence(schema.name, "bold", is_close=not at)
        yield Sentence(schema.doc + key)
        rows = [[one.name, _type(one), one.unit, one.doc, one.source] for one in schema.columns]
        yield Table(f"Columns of {schema.name}", columns, rows)
    yield Sentence("A type that ends in ? may be null: not recorded.", "dim", is_close=False)


def _type(column: TableColumn) -> str:
    return f"{column.type}{'?' if column.nullable else ''}"


def schema_markdown(schemas: Sequence[TableSchema]) -> str:
    """Return each table's grain, key and columns; several tables have a title and a list of them.

    A table has the anchor ``#steps``, a column ``#steps.wall_ns``.
    """
    parts: list[list[str]] = []
    if len(schemas) > 1:
        grains = ((schema.name, schema.doc.split(". ", maxsplit=1)[0].rstrip(".")) for schema in schemas)
        parts += [
            ["# Tables and columns"],
            [f"Schema version {SCHEMA_VERSION}, as `nsyspipe schema --markdown` writes it."],
            [_LEGEND],
            [f"- [{name}](#{name}): {prose(grain, _UNCUT)}" for name, grain in grains],
        ]
    for schema in schemas:
        key = ", ".join(f"`{name}`" for name in schema.key)
        rows = [
            [
                f'<a id="{schema.name}.{column.name}"></a>`{column.name}`',
                escaped(_type(column)),
                escaped(column.unit),
                prose(column.doc, _UNCUT),
                prose(column.source, _UNCUT),
            ]
            for column in schema.columns
        ]
        grain = prose(schema.doc, _UNCUT) + (f" Sorted by {key}." if key else "")
        parts += [[f"## {schema.name}"], [grain], table(_HEADINGS, rows, n_words=5)]
    return "\n\n".join("\n".join(part) for part in parts) + "\n"
