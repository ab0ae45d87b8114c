"""What a subject says, as blocks: sentences, tables, lists. Each format writes the same blocks in its own way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nsyspipe.report.units import absent, ms_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence; on the terminal with a style, and with an empty line above unless it is close to what stands there."""

    text: str
    style: str = ""
    is_close: bool = True


@dataclass(frozen=True, slots=True)
class Facts:
    """What a subject is, in a line of parts; `about` begins it where another text may not."""

    parts: Sequence[str]
    about: str


@dataclass(frozen=True, slots=True)
class Heading:
    """What the next table or list is about."""

    text: str
    style: str = ""


@dataclass(frozen=True, slots=True)
class Items:
    """A list."""

    texts: Sequence[str]


@dataclass(frozen=True, slots=True)
class Troubles:
    """What is wrong: severity, message, where, and what would mend it; `indent` of the last on the terminal."""

    rows: Sequence[tuple[str, str, str, str | None]]
    indent: str = ""


@dataclass(frozen=True, slots=True)
class Column:
    """A heading, and what kind of cells stand under it."""

    heading: str
    # ``number``: right-aligned, digits below digits. ``text``: words, ``word``: one that is never broken, ``prose``:
    # sentences, which take what room there is, ``long`` twice of it. ``name``: a name from a trace, which may break
    # anywhere. ``track``: a drawing on a page.
    kind: str = "number"
    hint: str | None = None  # what the column means, where the heading is not enough
    from_width: int = 0  # how wide a terminal has room for it
    # its width there
    least: int | None = None
    most: int | None = None


@dataclass(frozen=True, slots=True)
class Bar:
    """A figure with a bar behind it on a page: its `share` of the longest in its column, its `category` of the palette."""

    text: str
    share: float
    category: str


@dataclass(frozen=True, slots=True)
class Word:
    """A word with a colour of its own on the terminal."""

    text: str
    style: str


Cell = str | Bar | Word


@dataclass(frozen=True, slots=True)
class Table:
    """Columns and rows of cells; `note` stands below: which rows were left out, and where all are.

    On the terminal a table without headings, or one close to what stands above it, saves lines.
    """

    caption: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    note: str | None = None
    has_headings: bool = True
    is_close: bool = False


Block = Sentence | Facts | Heading | Items | Troubles | Table


def bars(values: Sequence[float | None], texts: Sequence[str], category: str) -> list[Cell]:
    """Return a column of figures with bars, the longest as long as the column; none where the figure is null or 0."""
    most = max((value for value in values if value), default=0)
    return [
        Bar(text, max(value / most, 0.0), category) if value else text
        for value, text in zip(values, texts, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class Field:
    """A column by what it shows of a row: heading, cell, and what `Column` has."""

    heading: str
    cell: Callable[[Any], Cell]
    kind: str = "number"
    hint: str | None = None


def of(name: str, write: Callable[[Any], str] = str) -> Callable[[Mapping[str, Any]], str]:
    """Return what writes one value of a row; a dash where it was not recorded."""
    return lambda row: absent if row[name] in (None, "") else write(row[name])


def barred(
    rows: Sequence[Any], heading: str, value: Callable[[Any], float | None], category: str, hint: str | None = None,
    *, write: Callable[[float | None], str] = ms_text,
) -> Field:  # fmt: skip
    """Return a column of figures with bars, the longest as long as the column."""
    most = max((found for row in rows if (found := value(row))), default=0)

    def cell(row: Any) -> Cell:  # noqa: ANN401 - any row
        found = value(row)
        return Bar(write(found), max(found / most, 0.0), category) if found else write(found)

    return Field(heading, cell, hint=hint)


def table_of(caption: str, rows: Sequence[Any], fields: Sequence[Field], note: str | None = None) -> Table:
    """Return a table of rows by what each column shows of them."""
    columns = [Column(one.heading, one.kind, one.hint) for one in fields]
    return Table(caption, columns, [[one.cell(row) for one in fields] for row in rows], note)


def words_of(cell: Cell) -> str:
    """Return what a cell says."""
    return cell if isinstance(cell, str) else cell.text
