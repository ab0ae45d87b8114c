"""The blocks of an output: sentences, tables, lists, bars.

Each format draws the same blocks in its own way.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from nsyspipe.report.units import absent, in_one_unit, ms_text, percent_text

Block: TypeAlias = (
    "Sentence | Facts | Heading | Items | Troubles | Notes | Table | Tiles | Title | Bars | Lines "
    "| Commands"
)
Cell: TypeAlias = "str | Bar | Word | Track"


class Sentence(Struct, frozen=True):
    """A sentence. On the terminal, it has a style."""

    text: str
    style: str = ""
    # Whether the terminal shows no empty line above it.
    is_close: bool = True
    # The word whose colour it has.
    verdict: str = ""


class Facts(Struct, frozen=True):
    """What a subject is, in a line of parts.

    `about` begins the line in Markdown. If the subject is one of several, it does in all formats.
    """

    parts: Sequence[str]
    about: str
    is_of_several: bool = False


class Title(Struct, frozen=True):
    """What a subject is called, and what it is, in one line."""

    name: str
    facts: Sequence[str]


class BarRow(Struct, frozen=True):
    """A part of a whole: its time and share in words, and a bar as long as the share."""

    label: str
    time: str
    percent: str
    share: float
    # Of the palette.
    category: str


class Bars(Struct, frozen=True):
    """Parts of a whole, a bar each, and sentences below them."""

    caption: str
    rows: Sequence[BarRow]
    notes: Sequence[str] = ()


class Line(Struct, frozen=True):
    """A line of a paragraph.

    It may begin with a label (``Why``) and end with a tag in brackets.
    """

    text: str
    label: str = ""
    tag: str = ""
    style: str = ""


class Lines(Struct, frozen=True):
    """Lines below a heading."""

    heading: str
    lines: Sequence[Line]


class Commands(Struct, frozen=True):
    """What to type next."""

    label: str
    commands: Sequence[str]


class Heading(Struct, frozen=True):
    """What the next table or list is about."""

    text: str
    style: str = ""


class Items(Struct, frozen=True):
    """A list."""

    texts: Sequence[str]


class Troubles(Struct, frozen=True):
    """Problems: severity, message, place, and fix. On a page they are a section unless close."""

    rows: Sequence[tuple[str, str, str, str | None]]
    # Pages show all.
    n_shown: int | None = None
    is_close: bool = False


class Notes(Struct, frozen=True):
    """Sentences that say how to read all above."""

    texts: Sequence[str]


class Field(Struct, frozen=True):
    """A column: its heading, what it shows of a row, and the kind of its cells."""

    heading: str
    cell: Callable[[Any], Cell] = str
    # ``number``: right-aligned. ``text``: words. ``word``: a word that is never broken. ``prose``:
    # sentences, which take the room that is left. ``long``: sentences that take twice as much.
    # ``name``: a name from a trace. A terminal cuts it in the middle, and on a page it may break
    # anywhere. ``track``: a drawing on a page.
    kind: str = "number"
    # What the column means, if the heading is not enough.
    hint: str | None = None
    # The narrowest terminal that shows it. If cells are wide, columns for the widest terminals are
    # hidden first. A column with 0 stays.
    from_width: int = 0
    # The limits of its width on a terminal.
    most: int | None = None
    least: int | None = None
    # Of quantities, if the heading has it.
    unit: str = ""
    # Columns with the same text have the same decimals.
    decimals_of: str = ""


class Bar(Struct, frozen=True):
    """A figure, on a page with a bar behind it.

    `share` is its share of the longest bar of the column, and `category` is one of the palette.
    """

    text: str
    share: float
    category: str


class Word(Struct, frozen=True):
    """A verdict or status, which has its own colour. A page also shows the reason."""

    text: str
    why: str | None = None
    # Without its colour.
    is_plain: bool = False


class Track(Struct, frozen=True):
    """On a page, a difference on a track from -1 to 1, beyond which the drawing is cut off."""

    # The difference.
    at: float | None = None
    # The ends of its interval.
    low: float | None = None
    high: float | None = None
    # A smaller difference in either direction counts as no change.
    band: float | None = None
    text = ""


class Table(Struct, frozen=True):
    """Columns and rows of cells. The `note` below them also says why there are no rows."""

    caption: str
    columns: Sequence[Field]
    rows: Sequence[Sequence[Cell]]
    note: str | None = None
    has_headings: bool = True
    is_close: bool = False
    # Of the rows. Pages show all.
    n_shown: int | None = None
    # The rows that a page emphasizes.
    strong: frozenset[int] = frozenset()


class Tile(Struct, frozen=True):
    """One key figure as words."""

    name: str
    value: str
    unit: str
    meaning: str
    # ``not recorded``, or a dash if nothing could be recorded. Then `meaning` says why.
    missing: str | None = None
    # Of the palette.
    category: str | None = None
    # The time of a share, with which `meaning` begins.
    time: str = ""
    # What the name means here, if the definition of the metric does not fit.
    hint: str = ""

    @property
    def text(self) -> str:
        """The figure with its unit. The time of a share comes first."""
        figure = f"{self.value} {self.unit}".strip()
        texts = filter(None, [self.time, figure])
        return ", ".join(texts)


class Tiles(Struct, frozen=True):
    """Key figures. They are large on a page, and one row in Markdown."""

    tiles: Sequence[Tile]


def left_out(rows: Sequence[object], n_shown: int | None) -> str | None:
    """Return how many rows are not shown, and where they are. None if all are shown."""
    if n_shown is None:
        return None
    n_more = len(rows) - n_shown
    return f"and {n_more} more (--json has all)" if n_more > 0 else None


def of(name: str, write: Callable[[Any], str] = str) -> Callable[[Mapping[str, Any]], str]:
    """Return what writes one value of a row, or a dash if it was not recorded."""

    def value_text(row: Mapping[str, Any]) -> str:
        value = row[name]
        is_missing = value in (None, "")
        return absent if is_missing else write(value)

    return value_text


def barred(
    rows: Sequence[Any],
    heading: str,
    value: Callable[[Any], float | None],
    category: str,
    hint: str | None = None,
    *,
    write: Callable[[float | None], str] = ms_text,
    unit: str = "",
) -> Field:
    """Return a column of figures with bars. A figure that is null or 0 has no bar.

    `value` returns the figure of a row, and `write` writes it. A bar as wide as the column stands
    for the largest figure. If `write` is `percent_text`, the figures are ratios, and such a bar
    stands for 100 %.
    """
    are_ratios = write is percent_text
    figures = [value(row) or 0.0 for row in rows]
    full_width = 1.0 if are_ratios else max(figures, default=0.0)

    def cell(row: Any) -> Cell:  # noqa: ANN401 - any row
        figure = value(row)
        if not figure:
            return write(figure)
        # A negative figure has no bar.
        share_of_width = max(figure / full_width, 0.0)
        return Bar(write(figure), share_of_width, category)

    return Field(heading, cell, hint=hint, unit=unit)


def table_of(
    caption: str,
    rows: Sequence[Any],
    fields: Sequence[Field],
    note: str | None = None,
    **layout: Any,  # noqa: ANN401 - of `Table`
) -> Table:
    """Return a table with a row for each of `rows`, as the fields show it.

    The times of a column have one unit. So have the times of neighboring columns with the same
    `decimals_of`.
    """
    columns: list[list[Cell]] = []
    for fields_with_one_unit in _groups_with_one_unit(fields):
        columns += _columns_in_one_unit(fields_with_one_unit, rows)
    cell_rows = list(map(list, zip(*columns, strict=True)))
    return Table(caption, fields, cell_rows, note, **layout)


def _columns_in_one_unit(fields: Sequence[Field], rows: Sequence[Any]) -> Iterator[list[Cell]]:
    """Yield the cells of each column. The quantities of all these columns have one unit."""
    n_rows = len(rows)
    # The cells of the first column, then those of the next one.
    cells = [field.cell(row) for field in fields for row in rows]
    texts = in_one_unit(list(map(words_of, cells)), fields[0].unit)
    cells_in_one_unit = list(map(_with_text, cells, texts))
    for number in range(len(fields)):
        start = number * n_rows
        end = start + n_rows
        yield cells_in_one_unit[start:end]


def _groups_with_one_unit(fields: Sequence[Field]) -> Iterator[list[Field]]:
    """Yield neighboring columns with the same `decimals_of` together, and others one by one."""

    def group_key(numbered_field: tuple[int, Field]) -> str | int:
        number, field = numbered_field
        # No other column has the same number, so a column without `decimals_of` stays alone.
        return field.decimals_of or number

    for _, group in groupby(enumerate(fields), group_key):
        yield [field for _, field in group]


def _with_text(cell: Cell, text: str) -> Cell:
    """Return a cell with another text. Verdicts and drawings stay."""
    if isinstance(cell, Bar):
        return replace(cell, text=text)
    return text if isinstance(cell, str) else cell


def with_column(table: Table, number: int, column: Field, cells: Sequence[Cell]) -> Table:
    """Return a table with one more column, which gets this number."""
    columns = [*table.columns]
    columns.insert(number, column)
    rows = []
    for row, cell in zip(table.rows, cells, strict=True):
        longer_row = [*row]
        longer_row.insert(number, cell)
        rows.append(longer_row)
    return replace(table, columns=columns, rows=rows)


def words_of(cell: Cell) -> str:
    """Return what a cell says."""
    return cell if isinstance(cell, str) else cell.text
