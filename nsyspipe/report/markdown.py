"""Blocks in Markdown of GitHub, for pull requests.

Text is escaped, and comments at the start of a file tell of which run it is.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from msgspec.structs import replace

from nsyspipe.errors import shortened
from nsyspipe.model.names import printable
from nsyspipe.report import blocks
from nsyspipe.report.files import head_of
from nsyspipe.report.units import upper_first
from nsyspipe.run.run import Run
from nsyspipe.version import __version__

# More characters are cut off: of a text in a cell, of a name, and of a sentence.
_MAX_CELL_CHARACTERS = 300
_MAX_NAME_CHARACTERS = 80
_MAX_SENTENCE_CHARACTERS = 600
# Stands between characters that GitHub would turn into a link.
_BREAK = "\N{ZERO WIDTH SPACE}"
# What GitHub makes mentions and links of after Markdown, despite a backslash: @name, #1, GH-1,
# http://, www., :name:.
_LINKED = re.compile(
    r"(?<=@)(?=\w)|(?<=#)(?=\d)|(?<=\bGH)(?=-\d)|(?<=:)(?=//)|(?<=\bwww)(?=\.)|(?<=:)(?=[\w+-]+:)",
    re.IGNORECASE,
)
# Characters with a meaning in Markdown. An underscore between two letters has none.
_SYNTAX = re.compile(r"[\\`*\[\]~&<>|$\u200b]|(?<![^\W_])_|_(?![^\W_])")
# Characters for which a backslash is not enough. A bar would end a cell in some readers of
# Markdown, and two dollars enclose a formula.
_ENTITIES = {
    "&": "&amp;",
    "<": "&lt;",
    ">": "&gt;",
    "|": "&#124;",
    "$": "<span>$</span>",
    _BREAK: "&#8203;",
}
# Options, calls, settings and names as programs have them; no character that could end a code span
# or a cell.
_CODE = re.compile(
    r"""(?<![\w./)-])(?:
        --[a-z][\w-]*(?:=[\w,.:-]*\w)?             # --trace=cuda,python-gil
        | \.?[a-z][\w.]*\([\w\ ,.="'-]*\)          # .to(device, non_blocking=True)
        | [a-z]\w*=[\w.:]*\w                       # NCCL_P2P_DISABLE=1
        | [a-z][\w-]*(?:_[\w-]*\w|\.[\w-]+\w)+     # bucket_cap_mb, torch.compile
    )""",
    re.ASCII | re.IGNORECASE | re.VERBOSE,
)
# What code has and words of a sentence, such as "rank(s)", do not have.
_MARKS_OF_CODE = re.compile(r"[_.=]|^--|\(\)$")


def escaped(text: str, longest: int = _MAX_CELL_CHARACTERS) -> str:
    """Return text that Markdown shows unchanged, in one line.

    Longer text is cut off. The text must not be at the start of a line.
    """
    cut_text = shortened(printable(text), longest)
    unlinked = _LINKED.sub(_BREAK, cut_text)
    return _SYNTAX.sub(_escaped_character, unlinked)


def _escaped_character(character: re.Match[str]) -> str:
    letter = character[0]
    return _ENTITIES.get(letter, f"\\{letter}")


def prose(text: str, longest: int = _MAX_SENTENCE_CHARACTERS) -> str:
    """Return escaped text with options, calls and names of a program in a code font."""
    cut_text = shortened(printable(text), longest)
    parts = []
    end_of_last_code = 0
    for match in _CODE.finditer(cut_text):
        code = match[0]
        # A word of a sentence may look like code, but has no mark of code.
        if _MARKS_OF_CODE.search(code):
            words_before = cut_text[end_of_last_code : match.start()]
            parts.append(escaped(words_before, longest))
            parts.append(f"`{code}`")
            end_of_last_code = match.end()
    words_after = cut_text[end_of_last_code:]
    parts.append(escaped(words_after, longest))
    return "".join(parts)


def table(
    headings: Sequence[str], kinds: Sequence[str], rows: Iterable[Sequence[str]]
) -> list[str]:
    """Return the lines of a table whose cells are Markdown already.

    Columns of the kind ``number`` are at the right, and their cells are never broken.
    """
    marks = ["--:" if kind == "number" else "---" for kind in kinds]
    spaces = ["\N{NO-BREAK SPACE}" if kind == "number" else " " for kind in kinds]
    lines = [_table_line(headings), _table_line(marks)]
    for row in rows:
        texts_and_spaces = zip(row, spaces, strict=True)
        cells = [text.replace(" ", space) for text, space in texts_and_spaces]
        lines.append(_table_line(cells))
    return lines


def _table_line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def as_markdown(parts: Iterable[blocks.Block], head: Sequence[str], command: str) -> str:
    """Return blocks in Markdown of GitHub.

    `head` are the first lines. They are comments, by which a bot finds the text again. The last
    line has the `command`.
    """
    foot = f"nsyspipe {__version__}: `{command}`"
    paragraphs = [[*head], *map(_lines, parts), [foot]]
    texts = ["\n".join(lines) for lines in paragraphs if lines]
    text = "\n\n".join(texts)
    return f"{text}\n"


def _lines(block: blocks.Block) -> list[str]:
    return _LINES_OF_BLOCK[type(block)](block)


def _title(block: blocks.Title) -> list[str]:
    name = escaped(block.name, _MAX_SENTENCE_CHARACTERS)
    facts = [escaped(fact) for fact in block.facts]
    return [f"**{name}**: {', '.join(facts)}"]


def _sentence(block: blocks.Sentence) -> list[str]:
    # A bold sentence may begin with a name, whose first letter stays.
    if "bold" in block.style:
        return [f"**{escaped(block.text, _MAX_SENTENCE_CHARACTERS)}**"]
    return [prose(upper_first(block.text))]


def _facts(block: blocks.Facts) -> list[str]:
    parts = [escaped(part, _MAX_NAME_CHARACTERS) for part in block.parts]
    facts = ", ".join(parts)
    return [f"{block.about}: {facts}"]


def _troubles(block: blocks.Troubles) -> list[str]:
    """Return an item for each problem, and how many more there are."""
    rows = block.rows[: block.n_shown]
    lines = [_trouble(severity, message, place, fix) for severity, message, place, fix in rows]
    remaining = blocks.left_out(block.rows, block.n_shown)
    if remaining:
        lines.append(f"- {prose(remaining)}")
    return lines


def _tiles(block: blocks.Tiles) -> list[str]:
    """Return the tiles as a table with one row."""
    names = [tile.name for tile in block.tiles]
    texts = [escaped(tile.text) for tile in block.tiles]
    kinds = ["number"] * len(names)
    return table(names, kinds, [texts])


def _table(block: blocks.Table) -> list[str]:
    """Return a table with its notes below. A table without rows is only its note."""
    if not block.rows and block.note:
        return [prose(f"{block.caption}: {block.note}")]
    kinds = [column.kind for column in block.columns]
    headings = [column.heading.replace("\n", " ") for column in block.columns]
    shown_rows = block.rows[: block.n_shown]
    rows = [list(map(_cell, row, kinds)) for row in shown_rows]
    lines = table([*map(escaped, headings)], kinds, rows)
    remaining = blocks.left_out(block.rows, block.n_shown)
    notes = filter(None, (remaining, block.note))
    paragraphs = [*map(prose, notes)]
    if paragraphs:
        lines += ["", *paragraphs]
    return lines


def _bars(block: blocks.Bars) -> list[str]:
    """Return a table with a row for each bar, because Markdown has no bars."""
    rows: list[list[str]] = []
    for row in block.rows:
        label = escaped(row.label)
        time = escaped(row.time)
        rows.append([label, time, escaped(row.percent)])
    headings = [escaped(block.caption), "time", "share"]
    lines = table(headings, ["text", "number", "number"], rows)
    if block.notes:
        notes = " ".join(map(prose, block.notes))
        lines += ["", notes]
    return lines


def _paragraph(block: blocks.Lines) -> list[str]:
    lines = [f"- {_line(line)}" for line in block.lines]
    heading = escaped(block.heading)
    return [f"### {heading}", "", *lines]


def _line(line: blocks.Line) -> str:
    """Return a line of a paragraph: its label, its text, and its tag in brackets."""
    plain_text = prose(line.text)
    text = f"**{plain_text}**" if "bold" in line.style else plain_text
    label = f"{line.label} " if line.label else ""
    tag = f" ({escaped(line.tag)})" if line.tag else ""
    return f"{label}{text}{tag}"


def _cell(cell: blocks.Cell, kind: str) -> str:
    """Return a cell in Markdown. `kind` is the kind of its column, see `blocks.Field`."""
    text = blocks.words_of(cell)
    if kind == "number":
        return escaped(text)
    is_name = kind == "name"
    return escaped(text, _MAX_NAME_CHARACTERS) if is_name else prose(text)


def _trouble(severity: str, message: str, place: str, fix: str | None) -> str:
    """Return a problem as an item: severity, place, message and fix."""
    place_text = f" ({escaped(place)})" if place else ""
    fix_text = f" Fix: {prose(fix)}." if fix else ""
    sentence = prose(message.removesuffix("."))
    return f"- **{severity}**{place_text}: {sentence}.{fix_text}"


def _heading(block: blocks.Heading) -> list[str]:
    heading = block.text.removesuffix(":")
    return [f"### {escaped(heading)}"]


def _items(block: blocks.Items) -> list[str]:
    return [f"- {prose(text)}" for text in block.texts]


def _notes(block: blocks.Notes) -> list[str]:
    return [f"{prose(text)}<br>" for text in block.texts]


def _commands(block: blocks.Commands) -> list[str]:
    commands = [f"`{command}`" for command in block.commands]
    listed_commands = ", ".join(commands)
    return [f"{block.label}: {listed_commands}"]


_LINES_OF_BLOCK: dict[type, Callable[[Any], list[str]]] = {
    blocks.Title: _title,
    blocks.Sentence: _sentence,
    blocks.Facts: _facts,
    blocks.Heading: _heading,
    blocks.Items: _items,
    blocks.Troubles: _troubles,
    blocks.Notes: _notes,
    blocks.Tiles: _tiles,
    blocks.Table: _table,
    blocks.Bars: _bars,
    blocks.Lines: _paragraph,
    blocks.Commands: _commands,
}


def marker(command: str, key: str, value: str) -> list[str]:
    """Return the comments that a file starts with: one for a bot, and one that tells its run.

    No value can end its comment.
    """
    quoted = quote(value, safe="", errors="surrogatepass")
    # Two hyphens would end the comment.
    text = quoted.replace("--", "-%2D")
    return [f"<!-- nsyspipe:{command} -->", f"<!-- nsyspipe:{key}={text} -->"]


def marked_as(path: Path, command: str, key: str) -> str | None:
    """Return the value in the comments of `marker`. None for any other file."""
    comments = rf"<!-- nsyspipe:{command} -->\s+<!-- nsyspipe:{key}=(\S*) -->"
    match = re.match(comments, head_of(path))
    return unquote(match[1], errors="surrogatepass") if match else None


def markdown(run: Run, top: int | None = None) -> str:
    """Return the summary of a run in Markdown of GitHub, always the same for the same run.

    It has up to 60 lines, and more with `top`, the number of rows in the tables of costs.
    """
    from nsyspipe.report.run import COMMENT, run_blocks  # noqa: PLC0415 - only a run needs it

    head = marker("analyze", "run_id", run.header.run_id)
    parts = run_blocks(run, replace(COMMENT, n_top=top))
    return as_markdown(parts, head, "nsyspipe analyze REPORTS --html report.html")


def run_id_of_markdown(path: Path) -> str | None:
    """Return the ID of the run of a file of `markdown`. None for any other file."""
    return marked_as(path, "analyze", "run_id")
