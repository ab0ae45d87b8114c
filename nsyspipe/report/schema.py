"""The reference of tables and columns, for the terminal and as Markdown with anchors."""

from collections.abc import Iterator, Sequence
from functools import partial

from nsyspipe.model.figures import definition_of
from nsyspipe.model.table import SCHEMA_VERSION, Column, DescribedTable, TableSchema
from nsyspipe.report.blocks import Block, Cell, Field, Sentence, Table
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
# No word is cut off in a reference.
_prose = partial(prose, longest=10_000)


def list_blocks(schemas: Sequence[DescribedTable]) -> Iterator[Block]:
    """Yield a line for each table, and the commands that print its columns."""
    columns = [Field("table", kind="word"), Field("columns"), Field("contents", kind="prose")]
    rows: list[list[Cell]] = []
    for schema in schemas:
        n_columns = len(schema.columns)
        rows.append([schema.name, str(n_columns), schema.summary])
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
    for number, schema in enumerate(schemas):
        # Only the first table is close to the text above.
        is_first = number == 0
        yield Sentence(schema.name, "bold", is_close=is_first)
        key = ", ".join(schema.key)
        order = f" Sorted by {key}." if key else ""
        yield Sentence(f"{schema.doc}{order}")
        rows = [_column_row(schema, column) for column in schema.columns]
        yield Table(f"Columns of {schema.name}", columns, rows)
    legend = "A type that ends in ? may be null, which means not recorded."
    yield Sentence(legend, "dim", is_close=False)


def _column_row(schema: TableSchema, column: Column) -> list[Cell]:
    """Return the name of a column, its type with its unit, and its meaning with its source."""
    type_text = _type(column)
    type_and_unit = f"{type_text}, {column.unit}" if column.unit else type_text
    source = f" ({column.source})" if column.source else ""
    meaning = meaning_of(schema, column)
    return [column.name, type_and_unit, f"{meaning}{source}"]


def meaning_of(schema: TableSchema, column: Column) -> str:
    """Return what a column means: the definition of a figure, and then the declaration.

    If the column is not a figure, return only the declaration. A declaration that begins in lower
    case, or with a symbol, is a formula.
    """
    definition = definition_of(schema.name, column.name)
    if definition is None:
        return column.doc
    is_formula = not column.doc[:1].isupper()
    prefix = "Formula: " if is_formula else ""
    return f"{definition} {prefix}{column.doc}"


def _type(column: Column) -> str:
    """Return the type of a column. It ends in ``?`` if the column may be null."""
    # A dictionary is a way to store texts, so the type of its values is shown.
    type_of_values = getattr(column.type, "value_type", column.type)
    mark = "?" if column.nullable else ""
    return f"{type_of_values}{mark}"


def schema_markdown(schemas: Sequence[TableSchema]) -> str:
    """Return each table's grain, key and columns in Markdown.

    Tables and columns have anchors (``#steps``, ``#steps.wall_ns``). Several tables have a list of
    their names first.
    """
    parts: list[str] = []
    if len(schemas) > 1:
        about = f"Schema version {SCHEMA_VERSION}, as `nsyspipe schema --markdown` writes it."
        links = "\n".join(_link(schema) for schema in schemas)
        parts += ["# Tables and columns", about, _LEGEND, links]
    for schema in schemas:
        names = [f"`{name}`" for name in schema.key]
        key = ", ".join(names)
        order = f" Sorted by {key}." if schema.key else ""
        grain = _prose(schema.doc)
        rows = [_markdown_row(schema, column) for column in schema.columns]
        lines = table(_HEADINGS, _KINDS, rows)
        parts.append(f"## {schema.name}")
        parts.append(f"{grain}{order}")
        parts.append("\n".join(lines))
    text = "\n\n".join(parts)
    return f"{text}\n"


def _link(schema: TableSchema) -> str:
    """Return an entry of the list of tables: a link, and the first sentence about the table."""
    sentence, _, _ = schema.doc.partition(". ")
    grain = _prose(sentence.rstrip("."))
    return f"- [{schema.name}](#{schema.name}): {grain}"


def _markdown_row(schema: TableSchema, column: Column) -> list[str]:
    """Return the cells of a column in the order of `_HEADINGS`."""
    anchor_id = f"{schema.name}.{column.name}"
    name = f'<a id="{anchor_id}"></a>`{column.name}`'
    type_text = escaped(_type(column))
    meaning = _prose(meaning_of(schema, column))
    unit = escaped(column.unit)
    return [name, type_text, unit, meaning, _prose(column.source)]
