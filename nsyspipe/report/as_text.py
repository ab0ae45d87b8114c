"""Blocks for the terminal: as wide as it is, in its colours."""

import io
import re
from collections.abc import Callable, Iterable, Sequence
from os.path import commonprefix
from typing import Any

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.constrain import Constrain
from rich.padding import Padding
from rich.table import Column, Table as Grid
from rich.text import Text

from nsyspipe.model.names import grouped, printable
from nsyspipe.report import blocks

MAX_WIDTH = 160  # of tables and bars
_LONGEST_LINE = 100  # of sentences: longer lines are hard to read
_WIDTH_IF_UNKNOWN = 80
SEVERITIES = {"error": "bold red", "warning": "yellow", "info": "dim"}
VERDICTS = {
    "improvement": "green",
    "regression": "bold red",
    "inconclusive": "yellow",
    "ok": "green",
    "warning": "yellow",
    "missing": "red",
    "unknown": "magenta",
    "yes": "green",
    "partly": "yellow",
    "no": "red",
}
_KINDS: dict[str, dict[str, Any]] = {
    "number": {"justify": "right", "no_wrap": True},
    "word": {"no_wrap": True},
    "name": {"no_wrap": True},
    "text": {"overflow": "fold"},
    "prose": {"overflow": "fold", "ratio": 1},
    "long": {"overflow": "fold", "ratio": 2},
}
CATEGORIES = {
    "compute": "blue",
    "exposed": "red",
    "idle": "bright_black",
    "copies": "yellow",
}  # of bars
_INDENT = "  "
_BAR = "#"
_LEAST_BAR = 8
_LONGEST_BAR = 80
# of cells that are cut or broken where they must be, whatever the width; between columns
_LEAST = 12
_GAP = 2
# Stands for the space between a number and its unit until lines are broken: none breaks there.
_NO_BREAK = "\ue000"
_BEFORE_UNIT = re.compile(r"(?<=\d) (?=(?:ns|us|ms|s|[kMGT]?B|[kMGT]?B/s|steps/s)\b)")
_TWO_TILES = 79  # so wide are two key figures beside each other


def as_text(parts: Iterable[blocks.Block], console: Console) -> str:
    """Write blocks for a console, at most `MAX_WIDTH` columns wide, without the spaces that fill lines up."""
    file = io.StringIO()
    stream = console.file
    if (
        console.width < 1
    ):  # COLUMNS=0, as where a terminal does not know its width: nothing would be printed
        console.width = _WIDTH_IF_UNKNOWN
    page = Group(*(_drawn(block, console.width) for block in parts))
    try:
        console.file = file  # a capture would write to the stream, which may take nothing
        console.print(page, width=MAX_WIDTH)
    finally:
        console.file = stream
    text = file.getvalue().replace(_NO_BREAK, " ")
    return "".join(f"{line.rstrip()}\n" for line in text.splitlines())


def _apart(content: RenderableType, *, is_close: bool = False) -> RenderableType:
    return content if is_close else Padding(content, (1, 0, 0, 0))


def _grid(*columns: Column, has_headings: bool = False) -> Grid:
    return Grid(
        *columns,
        box=None,
        show_header=has_headings,
        pad_edge=False,
        padding=(0, 2, 0, 0),
        header_style="dim",
    )


def _unbroken(text: str) -> str:
    """Return a text for sentences, in which no line ends between a number and its unit."""
    return _BEFORE_UNIT.sub(_NO_BREAK, printable(text))


def _sentence(text: RenderableType) -> RenderableType:
    return Constrain(text, _LONGEST_LINE)


def _dim(lines: Iterable[str]) -> RenderableType:
    return _sentence(Text("\n".join(map(_unbroken, lines)), style="dim"))


def _marked(rows: Iterable[tuple[str, str, str, str | None]]) -> Grid:
    table = _grid(Column(), Column(overflow="fold", ratio=1))
    for word, message, place, fix in rows:
        beside = (f" ({printable(place)})" if place else "") + (
            f"\nfix: {printable(fix)}" if fix else ""
        )
        severity = Text(word, style=SEVERITIES.get(word, SEVERITIES["error"]))
        table.add_row(severity, Text(printable(message)).append(beside, style="dim"))
    return table


def _drawn(block: blocks.Block, width: int) -> RenderableType:
    return _DRAWN[type(block)](block, width)


def _told(block: blocks.Sentence, _width: int) -> RenderableType:
    style = f"{block.style} {VERDICTS.get(block.verdict, '')}".strip()
    return _apart(_sentence(Text(_unbroken(block.text), style=style)), is_close=block.is_close)


def _facts(block: blocks.Facts, _width: int) -> RenderableType:
    about = f"{block.about}: " if block.is_of_several else ""
    return _dim([about + " | ".join(block.parts)])


def _heading(block: blocks.Heading, _width: int) -> RenderableType:
    return _apart(Text(printable(block.text), style=block.style))


def _items(block: blocks.Items, _width: int) -> RenderableType:
    return Group(*(_sentence(Text(f"- {_unbroken(text)}")) for text in block.texts))


def _troubles(block: blocks.Troubles, _width: int) -> RenderableType:
    below = blocks.left_out(block.rows, block.n_shown)
    parts = [_sentence(_marked(block.rows[: block.n_shown])), *([_dim([below])] if below else [])]
    return _apart(Group(*parts), is_close=block.is_close)


def _title(block: blocks.Title, _width: int) -> Text:
    facts = ", ".join(map(printable, block.facts))
    return Text(printable(block.name), style="bold").append(
        f"   {facts}" if facts else "", style="not bold"
    )


def _bars(block: blocks.Bars, width: int) -> RenderableType:
    """Draw bars as long as shares, of which 100 % take the room that labels and figures leave."""
    label_width = max((cell_len(row.label) for row in block.rows), default=0)
    time_width = max((cell_len(row.time) for row in block.rows), default=0)
    percent_width = max((cell_len(row.percent) for row in block.rows), default=0)
    room = min(
        width - (len(_INDENT) + label_width + time_width + percent_width + 3 * _GAP), _LONGEST_BAR
    )
    lines = [Text(printable(block.caption))]
    for row in block.rows:
        figures = (
            f"{row.label:<{label_width}}  {row.time:>{time_width}}  {row.percent:>{percent_width}}"
        )
        bar = _BAR * round(row.share * room) if room >= _LEAST_BAR else ""
        lines.append(
            Text(f"{_INDENT}{figures}  ").append(bar, style=CATEGORIES.get(row.category, ""))
        )
    notes = (Padding(Text(printable(note)), (0, 0, 0, len(_INDENT))) for note in block.notes)
    return Group(*lines, *notes)


def _lines(block: blocks.Lines, width: int) -> RenderableType:
    """Write lines below a heading, indented; what goes on in the next line begins below the text."""
    drawn: list[RenderableType] = [Text(printable(block.heading), style="bold")]
    for line in block.lines:
        label = f"{line.label} " if line.label else ""
        text = printable(line.text)
        room = width - len(_INDENT)
        tag = f"[{line.tag}]" if line.tag else ""
        fits = tag and cell_len(f"{text} {tag}") <= room
        if fits:
            text += f"{tag:>{room - cell_len(text)}}"
        elif tag:
            text += f" {tag}"
        grid = Grid(
            Column(no_wrap=True),
            Column(overflow="fold"),
            box=None,
            show_header=False,
            pad_edge=False,
            padding=0,
        )
        grid.add_row(f"{_INDENT}{label}", Text(text, style=line.style))
        drawn.append(grid)
    return Constrain(Group(*drawn), width)


def _commands(block: blocks.Commands, _width: int) -> RenderableType:
    head = f"{block.label}: "
    return _apart(
        Text(
            "\n".join(
                (head if not at else " " * len(head)) + line
                for at, line in enumerate(block.commands)
            )
        )
    )


def _tiles(tiles: Sequence[blocks.Tile], n_beside: int) -> Grid:
    table = _grid(
        *(
            column
            for _ in range(n_beside)
            for column in (Column(style="dim"), Column(justify="right"))
        )
    )
    for at in range(0, len(tiles), n_beside):
        table.add_row(
            *(cell for tile in tiles[at : at + n_beside] for cell in (tile.name, tile.text))
        )
    return table


def _table(block: blocks.Table, width: int) -> RenderableType:
    if not block.rows and block.note:
        return _dim([f"{block.caption}: {block.note}"])
    rows = [[_cell(cell) for cell in row] for row in block.rows[: block.n_shown]]
    cells = [
        [Text(column.heading), *(row[at] for row in rows)]
        for at, column in enumerate(block.columns)
    ]
    widths = [
        max(cell_len(line) for cell in column for line in cell.plain.split("\n"))
        for column in cells
    ]
    shown, narrow = _fitting(block.columns, widths, width)
    table = _grid(has_headings=block.has_headings)
    is_broken = any("\n" in column.heading for column in block.columns)
    for at in shown:
        column = block.columns[at]
        # Sentences of a limited width stand back: they explain the others.
        is_aside = column.kind == "prose" and column.most
        kind = {"overflow": "fold", "style": "dim"} if is_aside else _KINDS[column.kind]
        kind = kind | {"min_width": column.least, "max_width": column.most}
        table.add_column(column.heading, vertical="bottom" if is_broken else "top", **kind)
    for at, longest in narrow.items():
        for row, text in zip(rows, _cut([row[at].plain for row in rows], longest), strict=True):
            row[at].plain = text
    for row in rows:
        table.add_row(*(row[at] for at in shown))
    below = [blocks.left_out(block.rows, block.n_shown), block.note]
    gone = dict.fromkeys(
        one.heading.replace("\n", " ") for at, one in enumerate(block.columns) if at not in shown
    )
    if gone:
        is_width_enough = len(_fitting(block.columns, widths, MAX_WIDTH)[0]) == len(block.columns)
        how = "A wider terminal shows" if is_width_enough else "--markdown - shows"
        below.append(f"{how} more columns: {', '.join(filter(None, gone))}.")
    lines = [line for line in below if line]
    return Group(table, _dim(lines)) if lines else table


def _fitting(
    columns: Sequence[blocks.Field], widths: Sequence[int], width: int
) -> tuple[list[int], dict[int, int]]:
    """Return which columns a terminal has room for, and how wide names may be: figures and words are never cut."""
    least = []
    wanted = []
    for column, size in zip(columns, widths, strict=True):
        wanted.append(min(size, column.most or size) if column.kind == "name" else size)
        flexible = min(size, max(_LEAST, *map(len, column.heading.split("\n"))))
        least.append(size if column.kind in {"number", "word"} else flexible)
    shown = [at for at, column in enumerate(columns) if column.from_width <= width]
    while sum(least[at] + _GAP for at in shown) - _GAP > width and any(
        columns[at].from_width for at in shown
    ):
        most = max(columns[at].from_width for at in shown)
        shown = [at for at in shown if columns[at].from_width < most]
    while (
        sum(least[at] + _GAP for at in shown) - _GAP > width and len(shown) > 1
    ):  # rather none of a column than a part
        whole = [at for at in shown[1:] if columns[at].kind in {"number", "word"}] or shown
        shown.remove(whole[-1])
    names = [at for at in shown if columns[at].kind == "name"]
    spare = width + _GAP - sum((wanted if at in names else least)[at] + _GAP for at in shown)
    narrow = {}
    for at in names:
        narrow[at] = max(wanted[at] + min(spare, 0), least[at])
        spare += wanted[at] - narrow[at]
    return shown, narrow


def _cut(names: Sequence[str], longest: int) -> list[str]:
    """Cut names in the middle, as they often differ at their ends; those that do not, before where they differ."""
    tail = (longest - 2) // 2
    head = longest - 2 - tail

    def cut(name: str, until: int) -> str:
        return name if len(name) <= longest else f"{name[:head]}..{name[:until][-tail:]}"

    alike = grouped((cut(name, len(name)), name) for name in {*names})
    # Up to the letter by which no other is left that it could be.
    until = {
        name: max(
            [
                head + tail,
                *(len(commonprefix([name, other])) + 1 for other in same if other != name),  # noqa: RUF071
            ]
        )
        for same in alike.values()
        if len(same) > 1
        for name in same
    }
    return [cut(name, until.get(name, len(name))) for name in names]


def _cell(cell: blocks.Cell) -> Text:
    style = (
        VERDICTS.get(cell.text, "") if isinstance(cell, blocks.Word) and not cell.is_plain else ""
    )
    return Text(printable(blocks.words_of(cell)), style=style)


_DRAWN: dict[type, Callable[[Any, int], RenderableType]] = {
    blocks.Title: _title,
    blocks.Sentence: _told,
    blocks.Facts: _facts,
    blocks.Heading: _heading,
    blocks.Items: _items,
    blocks.Troubles: _troubles,
    blocks.Notes: lambda block, _: _apart(_dim(block.texts)),
    blocks.Tiles: lambda block, width: _apart(_tiles(block.tiles, 2 if width >= _TWO_TILES else 1)),
    blocks.Bars: lambda block, width: _apart(_bars(block, min(width, MAX_WIDTH))),
    blocks.Lines: lambda block, width: _apart(_lines(block, min(width, _LONGEST_LINE))),
    blocks.Commands: _commands,
    blocks.Table: lambda block, width: _apart(
        _table(block, min(width, MAX_WIDTH)), is_close=block.is_close
    ),
}
