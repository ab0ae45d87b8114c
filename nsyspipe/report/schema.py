"""The reference of tables and columns, for the terminal and as Markdown that the README can link into."""

from collections.abc import Iterator, Sequence
from functools import partial

from nsyspipe.model.figures import definition_of
from nsyspipe.model.table import SCHEMA_VERSION, Column, DescribedTable, TableSchema
from nsyspipe.report.blocks import Block, Field, Sentence, Table
from nsyspipe.report.markdown import escaped, prose, table

_HEADINGS = ("column", "type", "unit", "meaning", "source")
_KINDS = ("word", "word", "word", "long", "prose")
_LEGEND = (
    "A type that ends in `?` may be null, which means not recorded. Intervals are half-open. "
    "`|X|` is the total length of a "
    "union of intervals, `\\` is the difference, `n` the intersection, and `u` the union. In a "
    "run store (`nsyspipe analyze "
    "--out`) every table begins with the column `run_id`, and `runs` has the columns of `summary`."
)
_prose = partial(prose, longest=10_000)  # no word is cut in a reference


def list_blocks(schemas: Sequence[DescribedTable]) -> Iterator[Block]:
    """Yield a line for each table, and the commands that print its columns."""
    columns = [
        Field("table", kind="word"),
        Field("columns"),
        Field("contents", kind="prose"),
    ]
    rows = [[schema.name, str(len(schema.columns)), schema.summary] for schema in schemas]
    yield Table("Tables", columns, rows, is_close=True)
    yield Sentence(
        "To print the columns of a table, use nsyspipe schema TABLE, for example nsyspipe schema "
        "steps. -v prints the columns of all tables.",
        is_close=False,
    )


def schema_blocks(schemas: Sequence[TableSchema]) -> Iterator[Block]:
    """Yield each table's grain, key and columns."""
    columns = [
        Field("column", kind="word"),
        Field("type, unit", kind="word"),
        Field("meaning (source)", kind="prose"),
    ]
    for at, schema in enumerate(schemas):
        yield Sentence(schema.name, "bold", is_close=not at)
        yield Sentence(schema.doc + (f" Sorted by {', '.join(schema.key)}." if schema.key else ""))
        kinds = (", ".join(filter(None, [_type(column), column.unit])) for column in schema.columns)
        meanings = (
            meaning_of(schema, column) + (f" ({column.source})" if column.source else "")
            for column in schema.columns
        )
        rows = [
            [one.name, *of_one]
            for one, *of_one in zip(schema.columns, kinds, meanings, strict=True)
        ]
        yield Table(f"Columns of {schema.name}", columns, rows)
    yield Sentence(
        "A type that ends in ? may be null, which means not recorded.", "dim", is_close=False
    )


def meaning_of(schema: TableSchema, column: Column) -> str:
    """Return what a column means: the definition of its figure if the column is one, then its declaration.

    A declaration that begins in lower case, or with a symbol, is a formula.
    """
    definition = definition_of(schema.name, column.name)
    if definition is None:
        return column.doc
    is_formula = not column.doc[:1].isupper()
    return f"{definition} {'Formula: ' if is_formula else ''}{column.doc}"


def _type(column: Column) -> str:
    of_values = getattr(
        column.type, "value_type", column.type
    )  # a dictionary is a way to write texts
    return f"{of_values}{'?' if column.nullable else ''}"


def schema_markdown(schemas: Sequence[TableSchema]) -> str:
    """Return each table's grain, key and columns, with anchors (``#steps``, ``#steps.wall_ns``); of several a list first."""
    parts: list[str] = []
    if len(schemas) > 1:
        grains = (
            (schema.name, schema.doc.split(". ", maxsplit=1)[0].rstrip(".")) for schema in schemas
        )
        about = f"Schema version {SCHEMA_VERSION}, as `nsyspipe schema --markdown` writes it."
        names = "\n".join(f"- [{name}](#{name}): {_prose(grain)}" for name, grain in grains)
        parts += ["# Tables and columns", about, _LEGEND, names]
    for schema in schemas:
        key = ", ".join(f"`{name}`" for name in schema.key)
        anchors = [
            f'<a id="{schema.name}.{column.name}"></a>`{column.name}`' for column in schema.columns
        ]
        rows = [
            [
                anchor,
                escaped(_type(column)),
                escaped(column.unit),
                _prose(meaning_of(schema, column)),
                _prose(column.source),
            ]
            for anchor, column in zip(anchors, schema.columns, strict=True)
        ]
        grain = _prose(schema.doc) + (f" Sorted by {key}." if key else "")
        parts += [f"## {schema.name}", grain, "\n".join(table(_HEADINGS, _KINDS, rows))]
    return "\n\n".join(parts) + "\n"
