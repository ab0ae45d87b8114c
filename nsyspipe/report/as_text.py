"""Draws blocks in a terminal, in its width and colours."""

import io
import re
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from os.path import commonprefix
from typing import Any, NamedTuple

from rich.align import VerticalAlignMethod
from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.constrain import Constrain
from rich.padding import Padding
from rich.table import Column, Table as Grid
from rich.text import Text

from nsyspipe.model.names import grouped, printable
from nsyspipe.report import blocks

# Of tables and bars.
MAX_WIDTH = 160
# Of sentences, because longer lines are hard to read.
_MAX_SENTENCE_WIDTH = 100
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
# Of bars.
CATEGORIES = {
    "compute": "blue",
    "exposed": "red",
    "idle": "bright_black",
    "copies": "yellow",
}
_INDENT = "  "
_BAR = "#"
_MIN_BAR_WIDTH = 8
_MAX_BAR_WIDTH = 80
# Cells that can be cut or broken are at least this wide.
_MIN_CELL_WIDTH = 12
# Between columns.
_GAP = 2
# Stands for the middle of a name that is cut.
_DOTS = ".."
_NAMES_NOTE = f"Long names are shortened: letters are left out at {_DOTS} and sometimes at the end."
# Stands for the space between a number and its unit until lines are broken, so that none breaks
# there.
_NO_BREAK = "\ue000"
_BEFORE_UNIT = re.compile(r"(?<=\d) (?=(?:ns|us|ms|s|[kMGT]?B|[kMGT]?B/s|steps/s)\b)")
# From this width on, two key figures stand side by side.
_MIN_WIDTH_FOR_TWO_TILES = 79


# Kinds of columns whose cells are never cut or broken.
_UNCUT_KINDS = {"number", "word"}


class ColumnLayout(NamedTuple):
    """Which columns of a table are shown."""

    # The numbers of the columns.
    shown: list[int]
    # Of the columns of names, which can be cut.
    name_widths: dict[int, int]


def as_text(parts: Iterable[blocks.Block], console: Console) -> str:
    """Write blocks for a console, at most `MAX_WIDTH` columns wide, without trailing spaces."""
    # COLUMNS is 0 if a terminal does not know its width. Then rich would print nothing.
    if console.width < 1:
        console.width = _WIDTH_IF_UNKNOWN
    drawn_blocks = [_drawn(block, console.width) for block in parts]
    page = Group(*drawn_blocks)
    written = io.StringIO()
    stream = console.file
    try:
        # `Console.capture` would write to the stream too, which may be closed. So the console gets
        # another file for a moment.
        console.file = written
        console.print(page, width=MAX_WIDTH)
    finally:
        console.file = stream
    text = written.getvalue().replace(_NO_BREAK, " ")
    lines = [line.rstrip() for line in text.splitlines()]
    return "".join(f"{line}\n" for line in lines)


def _apart(content: RenderableType, *, is_close: bool = False) -> RenderableType:
    """Return content with an empty line above it, unless it is close to what comes before."""
    if is_close:
        return content
    empty_line_above = (1, 0, 0, 0)
    return Padding(content, empty_line_above)


def _grid(*columns: Column, has_headings: bool = False) -> Grid:
    # Above, right, below and left of a cell.
    padding = (0, _GAP, 0, 0)
    return Grid(
        *columns,
        box=None,
        show_header=has_headings,
        pad_edge=False,
        padding=padding,
        header_style="dim",
    )


def _unbroken(text: str) -> str:
    """Return a text for sentences, in which no line ends between a number and its unit."""
    return _BEFORE_UNIT.sub(_NO_BREAK, printable(text))


def _sentence(text: RenderableType) -> RenderableType:
    return Constrain(text, _MAX_SENTENCE_WIDTH)


def _dim(lines: Iterable[str]) -> RenderableType:
    text = "\n".join(map(_unbroken, lines))
    return _sentence(Text(text, style="dim"))


def _marked(rows: Iterable[tuple[str, str, str, str | None]]) -> Grid:
    """Return problems in two columns: their severity, and all else.

    `rows` have the severity, the message, the place and the fix of each problem.
    """
    message_column = Column(overflow="fold", ratio=1)
    table = _grid(Column(), message_column)
    for severity, message, place, fix in rows:
        place_text = f" ({printable(place)})" if place else ""
        fix_text = f"\nfix: {printable(fix)}" if fix else ""
        # Runs that are "not comparable" look like an error.
        style = SEVERITIES.get(severity, SEVERITIES["error"])
        text = Text(printable(message))
        text.append(f"{place_text}{fix_text}", style="dim")
        table.add_row(Text(severity, style=style), text)
    return table


def _drawn(block: blocks.Block, width: int) -> RenderableType:
    return _DRAWN[type(block)](block, width)


def _sentence_block(block: blocks.Sentence, _width: int) -> RenderableType:
    color = VERDICTS.get(block.verdict, "")
    style = f"{block.style} {color}".strip()
    text = Text(_unbroken(block.text), style=style)
    return _apart(_sentence(text), is_close=block.is_close)


def _facts(block: blocks.Facts, _width: int) -> RenderableType:
    about = f"{block.about}: " if block.is_of_several else ""
    facts = " | ".join(block.parts)
    return _dim([f"{about}{facts}"])


def _heading(block: blocks.Heading, _width: int) -> RenderableType:
    text = Text(printable(block.text), style=block.style)
    return _apart(text)


def _items(block: blocks.Items, _width: int) -> RenderableType:
    texts = map(_unbroken, block.texts)
    items = [Text(f"- {text}") for text in texts]
    return Group(*map(_sentence, items))


def _troubles(block: blocks.Troubles, _width: int) -> RenderableType:
    rows = block.rows[: block.n_shown]
    parts = [_sentence(_marked(rows))]
    left_out = blocks.left_out(block.rows, block.n_shown)
    if left_out:
        parts.append(_dim([left_out]))
    return _apart(Group(*parts), is_close=block.is_close)


def _title(block: blocks.Title, _width: int) -> Text:
    text = Text(printable(block.name), style="bold")
    if block.facts:
        facts = ", ".join(map(printable, block.facts))
        text.append(f"   {facts}", style="not bold")
    return text


def _bars(block: blocks.Bars, width: int) -> RenderableType:
    """Draw a line for each part: label, time, percentage, and a bar as long as its share.

    The bar of 100 % takes the room that the texts leave. Narrow terminals have no bars.
    """
    label_width = _widest(row.label for row in block.rows)
    time_width = _widest(row.time for row in block.rows)
    percent_width = _widest(row.percent for row in block.rows)
    # A gap follows each of the three texts.
    text_width = len(_INDENT) + label_width + time_width + percent_width + 3 * _GAP
    bar_width = min(width - text_width, _MAX_BAR_WIDTH)
    lines = [Text(printable(block.caption))]
    for row in block.rows:
        label = row.label.ljust(label_width)
        time = row.time.rjust(time_width)
        percent = row.percent.rjust(percent_width)
        line = Text(f"{_INDENT}{label}  {time}  {percent}  ")
        if bar_width >= _MIN_BAR_WIDTH:
            _append_bar(line, row, bar_width)
        lines.append(line)
    indent = (0, 0, 0, len(_INDENT))
    notes = [Padding(Text(printable(note)), indent) for note in block.notes]
    return Group(*lines, *notes)


def _append_bar(line: Text, row: blocks.BarRow, width: int) -> None:
    """Append a bar to a line. The bar of 100 % has the full width."""
    bar_length = round(row.share * width)
    color = CATEGORIES.get(row.category, "")
    line.append(_BAR * bar_length, style=color)


def _widest(texts: Iterable[str]) -> int:
    """Return the width of the widest of some texts. 0 without texts."""
    return max(map(cell_len, texts), default=0)


def _lines(block: blocks.Lines, width: int) -> RenderableType:
    """Write lines below a heading, indented.

    A line that is too long goes on below its own text, not below its label.
    """
    heading = Text(printable(block.heading), style="bold")
    drawn: list[RenderableType] = [heading]
    room = width - len(_INDENT)
    for line in block.lines:
        label = f"{line.label} " if line.label else ""
        text = _text_with_tag(line, room)
        # One row of two columns: the label, and the text.
        grid = Grid(
            Column(no_wrap=True),
            Column(overflow="fold"),
            box=None,
            show_header=False,
            pad_edge=False,
            padding=0,
        )
        styled_text = Text(text, style=line.style)
        grid.add_row(f"{_INDENT}{label}", styled_text)
        drawn.append(grid)
    return Constrain(Group(*drawn), width)


def _text_with_tag(line: blocks.Line, room: int) -> str:
    """Return the text of a line and its tag, at the right edge if there is room for both."""
    text = printable(line.text)
    if not line.tag:
        return text
    tag = f"[{line.tag}]"
    if cell_len(f"{text} {tag}") > room:
        return f"{text} {tag}"
    tag_width = room - cell_len(text)
    return f"{text}{tag:>{tag_width}}"


def _commands(block: blocks.Commands, width: int) -> RenderableType:
    head = f"{block.label}: "
    # The commands begin in the same column, one below the other.
    new_line = "\n" + " " * len(head)
    room = width - len(head)
    commands = [_pasteable(command, room, new_line) for command in block.commands]
    text = head + new_line.join(commands)
    # No line is wrapped. A shell would run both halves of a pasted command one after the other.
    return _apart(Text(text, no_wrap=True, overflow="ignore"))


def _pasteable(command: str, width: int, new_line: str) -> str:
    """Return a command that a shell takes as one when it is pasted.

    If the command is too long, its last option has a line of its own, after a backslash.
    `new_line` ends a line, and indents the next one.
    """
    fits = len(command) <= width
    start, dashes, last_option = command.rpartition(" --")
    has_option = bool(dashes)
    if fits or not has_option:
        return command
    return f"{start} \\{new_line}    --{last_option}"


def _tiles(tiles: Sequence[blocks.Tile], n_in_row: int) -> Grid:
    """Return tiles in rows. Each tile has two columns: its name and its figure."""
    table = _grid()
    for _ in range(n_in_row):
        table.add_column(style="dim")
        table.add_column(justify="right")
    for first in range(0, len(tiles), n_in_row):
        cells: list[str] = []
        for tile in tiles[first : first + n_in_row]:
            cells += [tile.name, tile.text]
        table.add_row(*cells)
    return table


def _table(block: blocks.Table, width: int) -> RenderableType:
    """Return a table with the columns that fit the width, and notes about what is not shown.

    A table without rows is its note alone.
    """
    if not block.rows and block.note:
        return _dim([f"{block.caption}: {block.note}"])
    shown_rows = block.rows[: block.n_shown]
    rows = [list(map(_cell, row)) for row in shown_rows]
    column_numbers = range(len(block.columns))
    widths = [_column_width(block, rows, number) for number in column_numbers]
    layout = _column_layout(block.columns, widths, width)
    rows_note = blocks.left_out(block.rows, block.n_shown)
    columns_note = _hidden_columns_note(block, widths, layout)
    names_note = _cut_names_note(widths, layout)
    notes = [note for note in (rows_note, block.note, names_note, columns_note) if note]
    grid = _table_grid(block, rows, layout)
    return Group(grid, _dim(notes)) if notes else grid


def _table_grid(block: blocks.Table, rows: Sequence[Sequence[Text]], layout: ColumnLayout) -> Grid:
    """Return the columns that are shown, with names cut to their widths.

    The names are cut in `rows` too.
    """
    grid = _grid(has_headings=block.has_headings)
    headings = [column.heading for column in block.columns]
    has_two_lines = any("\n" in heading for heading in headings)
    vertical: VerticalAlignMethod = "bottom" if has_two_lines else "top"
    for number in layout.shown:
        column = block.columns[number]
        style = _style_of(column)
        grid.add_column(column.heading, vertical=vertical, **style)
    for number, name_width in layout.name_widths.items():
        names = [row[number] for row in rows]
        _cut_in_place(names, name_width)
    for row in rows:
        shown_cells = [row[number] for number in layout.shown]
        grid.add_row(*shown_cells)
    return grid


def _column_width(block: blocks.Table, rows: Sequence[Sequence[Text]], number: int) -> int:
    """Return the width of a column in which no line is broken."""
    texts = [row[number].plain for row in rows]
    texts.append(block.columns[number].heading)
    lines = chain.from_iterable(text.split("\n") for text in texts)
    return _widest(lines)


def _style_of(column: blocks.Field) -> dict[str, Any]:
    # Sentences of a limited width are dim, because they explain the other columns.
    is_remark = column.kind == "prose" and column.most
    remark_style = {"overflow": "fold", "style": "dim"}
    style = remark_style if is_remark else _KINDS[column.kind]
    return style | {"min_width": column.least, "max_width": column.most}


def _cut_in_place(cells: Sequence[Text], width: int) -> None:
    """Cut the names in cells of one column to a width. The cells themselves are changed."""
    texts = [cell.plain for cell in cells]
    names = _cut_names(texts, width)
    for cell, name in zip(cells, names, strict=True):
        cell.plain = name


def _hidden_columns_note(
    block: blocks.Table, widths: Sequence[int], layout: ColumnLayout
) -> str | None:
    """Return which columns are not shown, and what shows them. None if all are shown."""
    n_columns = len(block.columns)
    hidden = [number for number in range(n_columns) if number not in layout.shown]
    if not hidden:
        return None
    layout_in_widest_terminal = _column_layout(block.columns, widths, MAX_WIDTH)
    does_a_terminal_show_all = len(layout_in_widest_terminal.shown) == n_columns
    how = "A wider terminal shows" if does_a_terminal_show_all else "--markdown - shows"
    headings = [block.columns[number].heading.replace("\n", " ") for number in hidden]
    # Each name once. A column without a heading has no name.
    distinct_names = dict.fromkeys(heading for heading in headings if heading)
    names = ", ".join(distinct_names)
    return f"{how} more columns: {names}."


def _cut_names_note(widths: Sequence[int], layout: ColumnLayout) -> str | None:
    """Return how names are cut, and what shows them. None if all names are shown in full."""
    are_cut = any(name_width < widths[number] for number, name_width in layout.name_widths.items())
    return _NAMES_NOTE if are_cut else None


def _column_layout(
    columns: Sequence[blocks.Field], widths: Sequence[int], width: int
) -> ColumnLayout:
    """Return which columns a terminal of `width` has room for, and how wide columns of names are.

    `widths` are the widths of the columns if nothing is cut. If there is not enough room, names are
    cut: first in the leftmost column of names, and then in the next ones. Figures and words are
    never cut.
    """
    min_widths = list(map(_min_width, columns, widths))
    shown = _shown_columns(columns, min_widths, width)
    wanted_name_widths = {}
    for number in shown:
        column = columns[number]
        if column.kind == "name":
            uncut_width = widths[number]
            wanted_name_widths[number] = min(uncut_width, column.most or uncut_width)
    shown_widths = [wanted_name_widths.get(number, min_widths[number]) for number in shown]
    # Negative if there is room for more.
    n_chars_over = _total_width(shown_widths) - width
    name_widths = {}
    for number, wanted_width in wanted_name_widths.items():
        n_chars_to_cut = max(n_chars_over, 0)
        name_width = max(wanted_width - n_chars_to_cut, min_widths[number])
        n_chars_over -= wanted_width - name_width
        name_widths[number] = name_width
    return ColumnLayout(shown, name_widths)


def _min_width(column: blocks.Field, cell_width: int) -> int:
    """Return how wide a column has to be at least, from the width of its widest cell."""
    if column.kind in _UNCUT_KINDS:
        return cell_width
    heading_widths = map(len, column.heading.split("\n"))
    least = max(_MIN_CELL_WIDTH, *heading_widths)
    return min(cell_width, least)


def _total_width(widths: Sequence[int]) -> int:
    """Return the width of columns with the gaps between them."""
    n_gaps = len(widths) - 1
    return sum(widths) + _GAP * n_gaps


def _shown_columns(
    columns: Sequence[blocks.Field], min_widths: Sequence[int], width: int
) -> list[int]:
    """Return the numbers of the columns that a terminal has room for.

    Columns for wider terminals (`Field.from_width`) are left out. While the others are too wide,
    more are left out: first those for the widest terminals. Then, from the right, columns that
    cannot be cut are left out one by one. One column always remains.
    """

    def is_too_wide(numbers: Sequence[int]) -> bool:
        widths = [min_widths[number] for number in numbers]
        return _total_width(widths) > width

    from_widths = [column.from_width for column in columns]
    shown = [number for number, from_width in enumerate(from_widths) if from_width <= width]
    while is_too_wide(shown):
        largest_from_width = max(from_widths[number] for number in shown)
        are_all_for_any_terminal = largest_from_width == 0
        if are_all_for_any_terminal:
            break
        shown = [number for number in shown if from_widths[number] < largest_from_width]
    while is_too_wide(shown) and len(shown) > 1:
        shown.remove(_rightmost_uncut(columns, shown))
    return shown


def _rightmost_uncut(columns: Sequence[blocks.Field], shown: Sequence[int]) -> int:
    """Return the rightmost column that cannot be cut, without the first column.

    If there is none, return the rightmost of all.
    """
    uncut = [number for number in shown[1:] if columns[number].kind in _UNCUT_KINDS]
    candidates = uncut or shown
    return candidates[-1]


def _cut_names(names: Sequence[str], width: int) -> list[str]:
    """Cut names in the middle, ``head..tail``, because names often differ at their ends.

    If several names would be cut to the same text, each of them gets another tail: the letters up
    to the one that distinguishes it from the other names.
    """
    names_of_text = grouped((_cut_name(name, width), name) for name in {*names})
    text_of_name = {}
    for text, same_text_names in names_of_text.items():
        for name in same_text_names:
            if len(same_text_names) == 1:
                text_of_name[name] = text
            else:
                end_of_tail = _n_distinguishing_letters(name, same_text_names)
                text_of_name[name] = _cut_name(name, width, end_of_tail)
    return [text_of_name[name] for name in names]


def _cut_name(name: str, width: int, end_of_tail: int | None = None) -> str:
    """Return a name that is cut to ``head..tail`` if it is wider than `width`.

    The tail ends after the first `end_of_tail` letters of the name, by default after all of them.
    """
    if len(name) <= width:
        return name
    n_letters = width - len(_DOTS)
    n_tail = n_letters // 2
    n_head = n_letters - n_tail
    head = name[:n_head]
    if end_of_tail is None:
        up_to_end = name
    else:
        # A tail that ends earlier would overlap with the head.
        min_end = n_head + n_tail
        up_to_end = name[: max(end_of_tail, min_end)]
    tail = up_to_end[-n_tail:]
    return f"{head}{_DOTS}{tail}"


def _n_distinguishing_letters(name: str, names: Iterable[str]) -> int:
    """Return how many letters from the start of a name distinguish it from all other names.

    That is one more than the longest start that it shares with another name, or 0 without others.
    """
    rivals = [rival for rival in names if rival != name]
    if not rivals:
        return 0
    n_shared = [len(commonprefix([name, rival])) for rival in rivals]  # noqa: RUF071 - not paths
    return max(n_shared) + 1


def _cell(cell: blocks.Cell) -> Text:
    text = blocks.words_of(cell)
    has_color = isinstance(cell, blocks.Word) and not cell.is_plain
    style = VERDICTS.get(text, "") if has_color else ""
    return Text(printable(text), style=style)


def _notes(block: blocks.Notes, _width: int) -> RenderableType:
    return _apart(_dim(block.texts))


def _tiles_block(block: blocks.Tiles, width: int) -> RenderableType:
    n_in_row = 2 if width >= _MIN_WIDTH_FOR_TWO_TILES else 1
    return _apart(_tiles(block.tiles, n_in_row))


def _bars_block(block: blocks.Bars, width: int) -> RenderableType:
    bars_width = min(width, MAX_WIDTH)
    return _apart(_bars(block, bars_width))


def _lines_block(block: blocks.Lines, width: int) -> RenderableType:
    lines_width = min(width, _MAX_SENTENCE_WIDTH)
    return _apart(_lines(block, lines_width))


def _table_block(block: blocks.Table, width: int) -> RenderableType:
    table = _table(block, min(width, MAX_WIDTH))
    return _apart(table, is_close=block.is_close)


_DRAWN: dict[type, Callable[[Any, int], RenderableType]] = {
    blocks.Title: _title,
    blocks.Sentence: _sentence_block,
    blocks.Facts: _facts,
    blocks.Heading: _heading,
    blocks.Items: _items,
    blocks.Troubles: _troubles,
    blocks.Notes: _notes,
    blocks.Tiles: _tiles_block,
    blocks.Bars: _bars_block,
    blocks.Lines: _lines_block,
    blocks.Commands: _commands,
    blocks.Table: _table_block,
}
