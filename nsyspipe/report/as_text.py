"""Blocks for the terminal: as wide as it is, in its colours."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from nsyspipe.model.text import printable
from nsyspipe.report.blocks import Facts, Heading, Items, Sentence, Table, Troubles, Word, words_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nsyspipe.report.blocks import Block, Cell, Column

MAX_WIDTH = 100
SEVERITIES = {"error": "bold red", "warning": "yellow", "info": "dim"}
VERDICTS = {
    "improvement": "green", "regression": "bold red", "inconclusive": "yellow",
    "ok": "green", "warning": "yellow", "missing": "red", "unknown": "magenta",
    "yes": "green", "partly": "yellow", "no": "red",
}  # fmt: skip
_KINDS: dict[str, dict[str, Any]] = {
    "number": {"justify": "right", "no_wrap": True},
    "word": {"no_wrap": True},
    "text": {"overflow": "fold"},
    "name": {"overflow": "fold"},
    "prose": {"overflow": "fold", "ratio": 1},
    "long": {"overflow": "fold", "ratio": 2},
}


def as_text(blocks: Iterable[Block], console: Console) -> str:
    """Write blocks for a console, at most `MAX_WIDTH` columns wide."""
    return rendered(Group(*(_drawn(block, console.width) for block in blocks)), console)


def rendered(content: RenderableType, console: Console) -> str:
    """Render for a console's width and colours, without the spaces that fill lines up."""
    page = Console(
        file=io.StringIO(),
        width=min(console.width, MAX_WIDTH),
        force_terminal=console.is_terminal,
        color_system=console.color_system,  # type: ignore[arg-type]  # one of the names it takes
        no_color=console.no_color,
        legacy_windows=False,
    )
    page.print(content)
    text: str = page.file.getvalue()  # type: ignore[attr-defined]
    return "".join(f"{line.rstrip()}\n" for line in text.splitlines())


def apart(content: RenderableType) -> Padding:
    """Put an empty line above."""
    return Padding(content, (1, 0, 0, 0))


def grid(*, has_headings: bool = True) -> Grid:
    """Return a table without lines."""
    return Grid(box=None, show_header=has_headings, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")


def dim(lines: Iterable[str]) -> Text:
    """Return lines that stand back."""
    return Text("\n".join(map(printable, lines)), style="dim")


def marked(rows: Iterable[tuple[str, str, str, str | None]]) -> Grid:
    """Return what is wrong in two columns: severity, and message with where and fix."""
    table = grid(has_headings=False)
    table.add_column()
    table.add_column(overflow="fold", ratio=1)
    for word, message, place, fix in rows:
        text = Text(printable(message))
        if place:
            text.append(f" ({printable(place)})", style="dim")
        if fix:
            text.append(f"\nfix: {printable(fix)}", style="dim")
        table.add_row(Text(word, style=SEVERITIES.get(word, SEVERITIES["error"])), text)
    return table


def _drawn(block: Block, width: int) -> RenderableType:
    match block:
        case Sentence():
            text = Text(printable(block.text), style=block.style)
            return text if block.is_close else apart(text)
        case Facts():
            return dim([" | ".join(block.parts)])
        case Heading():
            return apart(Text(printable(block.text), style=block.style))
        case Items():
            return Group(*(Text(f"- {printable(text)}") for text in block.texts))
        case Troubles():
            return apart(Group(*(_trouble(*row, block.indent) for row in block.rows)))
        case Table():
            table = _table(block, width)
            return table if block.is_close else apart(table)


def _trouble(severity: str, message: str, place: str, fix: str | None, indent: str) -> Text:
    text = Text(f"{severity}: ", style=SEVERITIES[severity])
    text.append(printable(f"{message} ({place})" if place else message), style="default")
    return text.append(f"\n{indent}fix: {fix}", style="dim") if fix else text


def _table(block: Table, width: int) -> RenderableType:
    shown = [at for at, column in enumerate(block.columns) if width >= column.from_width]
    table = grid(has_headings=block.has_headings)
    for at in shown:
        column = block.columns[at]
        table.add_column(column.heading, min_width=column.least, max_width=column.most, **_kind(column))
    for row in block.rows:
        table.add_row(*(_cell(row[at]) for at in shown))
    return Group(table, dim([block.note])) if block.note else table


def _kind(column: Column) -> dict[str, Any]:
    # Sentences of a limited width stand back: they explain the others.
    return {"overflow": "fold", "style": "dim"} if column.kind == "prose" and column.most else _KINDS[column.kind]  # fmt: skip


def _cell(cell: Cell) -> Text:
    style = cell.style if isinstance(cell, Word) else ""
    return Text(printable(words_of(cell)), style=style)
