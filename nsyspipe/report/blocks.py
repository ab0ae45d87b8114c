"""Answers as blocks: sentences, tables, lists. Each format writes the same blocks its own way."""

from collections.abc import Callable, Mapping, Sequence
from itertools import chain, groupby, islice
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
    """A sentence; on the terminal with a style, and with an empty line above unless it is close."""

    text: str
    style: str = ""
    is_close: bool = True
    verdict: str = ""  # a word whose colour it has


class Facts(Struct, frozen=True):
    """What a subject is, in a line of parts.

    `about` begins the line in Markdown; if the subject is one of several, in all formats.
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
    category: str  # of the palette


class Bars(Struct, frozen=True):
    """Parts of a whole, a bar each, and sentences below them."""

    caption: str
    rows: Sequence[BarRow]
    notes: Sequence[str] = ()


class Line(Struct, frozen=True):
    """A line of a paragraph, which may begin with a label (``Why``) and end with a tag in brackets."""

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
    """Problems: severity, message, where, and fix. On a page they are a section unless close."""

    rows: Sequence[tuple[str, str, str, str | None]]
    n_shown: int | None = None  # but on pages
    is_close: bool = False


class Notes(Struct, frozen=True):
    """Sentences that say how to read all above."""

    texts: Sequence[str]


class Field(Struct, frozen=True):
    """A column: a heading, what it shows of a row, and what kind of cells stand under it."""

    heading: str
    cell: Callable[[Any], Cell] = str
    # ``number``: right-aligned, digits below digits. ``text``: words, ``word``: one that is never
    # broken, ``prose``: sentences, which take what room there is, ``long`` twice of it. ``name``: a
    # name from a trace, cut in the middle where a terminal has no room for it; on a page it may
    # break anywhere. ``track``: a drawing on a page.
    kind: str = "number"
    hint: str | None = None  # what the column means, where the heading is not enough
    # how wide a terminal has room for it; where cells are wide, the column that needs most goes
    # first. 0 never goes
    from_width: int = 0
    most: int | None = None  # its width there
    least: int | None = None
    unit: str = ""  # of quantities, where the heading says it
    decimals_of: str = ""  # what columns that are written alike have in common


class Bar(Struct, frozen=True):
    """A figure, on a page with a bar behind it.

    `share` is its share of the longest bar of the column, and `category` is one of the palette.
    """

    text: str
    share: float
    category: str


class Word(Struct, frozen=True):
    """A verdict or status, which has a colour of its own; a page says why too."""

    text: str
    why: str | None = None
    is_plain: bool = False  # without its colour


class Track(Struct, frozen=True):
    """On a page, a difference on a track from -1 to 1, beyond which the drawing is cut off."""

    at: float | None = None  # where the difference is
    low: float | None = None  # ends of its interval
    high: float | None = None
    band: float | None = None  # from here on, either way, it is more than no change
    text = ""


class Table(Struct, frozen=True):
    """Columns and rows of cells; `note` stands below, or says why there are no rows."""

    caption: str
    columns: Sequence[Field]
    rows: Sequence[Sequence[Cell]]
    note: str | None = None
    has_headings: bool = True
    is_close: bool = False
    n_shown: int | None = None  # rows; pages have all
    strong: frozenset[int] = frozenset()  # rows that a page points out


class Tile(Struct, frozen=True):
    """One key figure as words."""

    name: str
    value: str
    unit: str
    meaning: str
    missing: str | None = (
        None  # ``not recorded``, or a dash where nothing could be; `meaning` then says why
    )
    category: str | None = None  # of the palette
    time: str = ""  # of a share the time that it is, which `meaning` begins with
    hint: str = ""  # what the name means here, if the vocabulary's definition does not fit

    @property
    def text(self) -> str:
        """The figure with its unit, of a share the time first."""
        return ", ".join(filter(None, [self.time, f"{self.value} {self.unit}".strip()]))


class Tiles(Struct, frozen=True):
    """Key figures: large on a page, two in a row on the terminal, one row in Markdown."""

    tiles: Sequence[Tile]


def left_out(rows: Sequence[object], n_shown: int | None) -> str | None:
    """Return how many rows are not shown, and where they are; None if all are."""
    more = 0 if n_shown is None else len(rows) - n_shown
    return f"and {more} more (--json has all)" if more > 0 else None


def of(name: str, write: Callable[[Any], str] = str) -> Callable[[Mapping[str, Any]], str]:
    """Return what writes one value of a row; a dash where it was not recorded."""
    return lambda row: absent if row[name] in (None, "") else write(row[name])


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
    """Return a column of figures with bars; a figure that is null or 0 has none.

    The longest bar is as long as the column; of ratios that would be 100 %.
    """
    most = 1 if write is percent_text else max((value(row) or 0 for row in rows), default=0)

    def cell(row: Any) -> Cell:  # noqa: ANN401 - any row
        figure = value(row)
        return Bar(write(figure), max(figure / most, 0.0), category) if figure else write(figure)

    return Field(heading, cell, hint=hint, unit=unit)


def table_of(
    caption: str,
    rows: Sequence[Any],
    fields: Sequence[Field],
    note: str | None = None,
    **layout: Any,  # noqa: ANN401 - of `Table`
) -> Table:
    """Return a table of rows, by what each column shows of them.

    The times of a column, or of columns that are written alike, have one unit.
    """
    columns = [list(map(field.cell, rows)) for field in fields]
    for _, group in groupby(
        range(len(fields)), lambda number: fields[number].decimals_of or number
    ):
        numbers = [*group]
        cells = [*chain.from_iterable(columns[number] for number in numbers)]
        texts = in_one_unit([*map(words_of, cells)], fields[numbers[0]].unit)
        worded = map(_with_text, cells, texts)
        for number in numbers:
            columns[number] = [*islice(worded, len(rows))]
    cell_rows = list(map(list, zip(*columns, strict=True)))
    return Table(caption, fields, cell_rows, note, **layout)


def _with_text(cell: Cell, text: str) -> Cell:
    """Return a cell with another text; verdicts and drawings stay as they are."""
    if isinstance(cell, Bar):
        return replace(cell, text=text)
    return text if isinstance(cell, str) else cell


def with_column(table: Table, number: int, column: Field, cells: Sequence[Cell]) -> Table:
    """Return a table with one more column, which gets this number."""
    columns = [*table.columns]
    columns.insert(number, column)
    rows = [
        [*row[:number], cell, *row[number:]] for row, cell in zip(table.rows, cells, strict=True)
    ]
    return replace(table, columns=columns, rows=rows)


def words_of(cell: Cell) -> str:
    """Return what a cell says."""
    return cell if isinstance(cell, str) else cell.text
