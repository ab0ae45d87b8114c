"""Tables as a page shows them: headings, and cells that are already words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Bar", "Cell", "Column", "Table", "bars"]


@dataclass(frozen=True, slots=True)
class Column:
    """A heading, and what kind of cells stand under it.

    Attributes
    ----------
    kind
        ``number``: right-aligned, digits below digits. ``text``: words. ``name``: a name from a trace, in a fixed
        width, which may break anywhere.
    hint
        What the column means, where the heading is not enough.
    """

    heading: str
    kind: str = "number"
    hint: str | None = None


@dataclass(frozen=True, slots=True)
class Bar:
    """A figure with a bar behind it.

    Attributes
    ----------
    share
        Length of the bar, of the longest in its column: 0 to 1.
    category
        Of the palette, as in `tokens.css`.
    """

    text: str
    share: float
    category: str


Cell = str | Bar


@dataclass(frozen=True, slots=True)
class Table:
    """Columns and rows of cells.

    Attributes
    ----------
    note
        Stands below: which rows were left out, and where all are.
    """

    caption: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    note: str | None = None


def bars(values: Sequence[float | None], texts: Sequence[str], category: str) -> list[Cell]:
    """Return a column of figures with bars, the longest as long as the column; none where the figure is null or 0."""
    most = max((value for value in values if value), default=0)
    return [
        Bar(text, max(value / most, 0.0), category) if value else text
        for value, text in zip(values, texts, strict=True)
    ]
