"""Blocks in GitHub's Markdown, which one pastes into a pull request: how text is escaped, and whose file it is."""

import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from msgspec.structs import replace

from nsyspipe.errors import shortened
from nsyspipe.model.names import printable
from nsyspipe.report import blocks
from nsyspipe.report.files import head_of
from nsyspipe.run.run import Run
from nsyspipe.version import __version__

_LONGEST = 300
_LONGEST_NAME = 80
_LONGEST_TEXT = 600
_BREAK = "\N{ZERO WIDTH SPACE}"
# What GitHub makes mentions and links of after Markdown, despite a backslash: @name, #1, GH-1,
# http://, www., :name:.
_LINKED = re.compile(
    r"(?<=@)(?=\w)|(?<=#)(?=\d)|(?<=\bGH)(?=-\d)|(?<=:)(?=//)|(?<=\bwww)(?=\.)|(?<=:)(?=[\w+-]+:)",
    re.IGNORECASE,
)
_SYNTAX = re.compile(
    r"[\\`*\[\]~&<>|$\u200b]|(?<![^\W_])_|_(?![^\W_])"
)  # an _ between two letters is no emphasis
# A bar as an entity cannot end a cell, whoever counts the backslashes; two dollars would be a
# formula.
_INSTEAD = {
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
        --[a-z][\w-]*(?:=[\w,.:]*\w)?              # --trace=cuda,nvtx
        | \.?[a-z][\w.]*\([\w\ ,.="'-]*\)          # .to(device, non_blocking=True)
        | [a-z]\w*=[\w.:]*\w                       # NCCL_P2P_DISABLE=1
        | [a-z][\w-]*(?:_[\w-]*\w|\.[\w-]+\w)+     # bucket_cap_mb, torch.compile
    )""",
    re.ASCII | re.IGNORECASE | re.VERBOSE,
)
_MARKS_OF_CODE = re.compile(r"[_.=]|^--|\(\)$")


def escaped(text: str, longest: int = _LONGEST) -> str:
    """Return text that Markdown shows as it is, in one line; not for the start of a line."""
    broken = _LINKED.sub(_BREAK, shortened(printable(text), longest))
    return _SYNTAX.sub(lambda match: _INSTEAD.get(match[0], f"\\{match[0]}"), broken)


def prose(text: str, longest: int = _LONGEST_TEXT) -> str:
    """Return the same with what looks like an option, a call or a name of a program in code font."""
    text = shortened(printable(text), longest)
    parts = []
    at = 0
    for match in _CODE.finditer(text):
        if _MARKS_OF_CODE.search(match[0]):  # not the "rank(s)" of a sentence
            parts += [escaped(text[at : match.start()], longest), f"`{match[0]}`"]
            at = match.end()
    return "".join([*parts, escaped(text[at:], longest)])


def table(
    headings: Sequence[str], kinds: Sequence[str], rows: Iterable[Sequence[str]]
) -> list[str]:
    """Return the lines of a table whose cells are Markdown already; figures are never broken."""
    marks = ["--:" if kind == "number" else "---" for kind in kinds]
    spaces = ["\N{NO-BREAK SPACE}" if kind == "number" else " " for kind in kinds]
    cells = (
        [text.replace(" ", space) for text, space in zip(row, spaces, strict=True)] for row in rows
    )
    return [f"| {' | '.join(line)} |" for line in (headings, marks, *cells)]


def as_markdown(parts: Iterable[blocks.Block], head: Sequence[str], command: str) -> str:
    """Write blocks in GitHub's Markdown: the lines of comments that a bot looks for first, the command last."""
    texts = [head, *map(_lines, parts), [f"nsyspipe {__version__}: `{command}`"]]
    return "\n\n".join("\n".join(lines) for lines in texts if lines) + "\n"


def _lines(block: blocks.Block) -> list[str]:
    return _WRITTEN[type(block)](block)


def _title(block: blocks.Title) -> list[str]:
    return [
        (
            f"**{escaped(block.name, _LONGEST_TEXT)}**: "
            f"{', '.join(escaped(fact) for fact in block.facts)}"
        )
    ]


def _sentence(block: blocks.Sentence) -> list[str]:
    if "bold" in block.style:  # it may begin with a name
        return [f"**{escaped(block.text, _LONGEST_TEXT)}**"]
    return [prose(f"{block.text[:1].upper()}{block.text[1:]}")]


def _facts(block: blocks.Facts) -> list[str]:
    return [f"{block.about}: {', '.join(escaped(part, _LONGEST_NAME) for part in block.parts)}"]


def _troubles(block: blocks.Troubles) -> list[str]:
    rest = blocks.left_out(block.rows, block.n_shown)
    return [
        *(_trouble(*row) for row in block.rows[: block.n_shown]),
        *([f"- {prose(rest)}"] if rest else []),
    ]


def _tiles(block: blocks.Tiles) -> list[str]:
    names, texts = zip(*((tile.name, escaped(tile.text)) for tile in block.tiles), strict=True)
    return table(names, ["number"] * len(names), [texts])


def _table(block: blocks.Table) -> list[str]:
    if not block.rows and block.note:
        return [prose(f"{block.caption}: {block.note}")]
    kinds = [column.kind for column in block.columns]
    rows = [[*map(_cell, row, kinds)] for row in block.rows[: block.n_shown]]
    headings = [escaped(column.heading.replace("\n", " ")) for column in block.columns]
    below = [
        prose(text) for text in (blocks.left_out(block.rows, block.n_shown), block.note) if text
    ]
    return [*table(headings, kinds, rows), *(["", *below] if below else [])]


def _bars(block: blocks.Bars) -> list[str]:
    rows = [[escaped(row.label), escaped(row.time), escaped(row.percent)] for row in block.rows]
    notes = [prose(note) for note in block.notes]
    headings = [escaped(block.caption), "time", "share"]
    return [
        *table(headings, ["text", "number", "number"], rows),
        *(["", " ".join(notes)] if notes else []),
    ]


def _paragraph(block: blocks.Lines) -> list[str]:
    return [f"### {escaped(block.heading)}", "", *(f"- {_line(line)}" for line in block.lines)]


def _line(line: blocks.Line) -> str:
    text = f"**{prose(line.text)}**" if "bold" in line.style else prose(line.text)
    label = f"{line.label} " if line.label else ""
    tag = f" ({escaped(line.tag)})" if line.tag else ""
    return f"{label}{text}{tag}"


def _cell(cell: blocks.Cell, kind: str) -> str:
    if kind in {"number", "name"}:
        return escaped(blocks.words_of(cell), _LONGEST if kind == "number" else _LONGEST_NAME)
    return prose(blocks.words_of(cell))


def _trouble(severity: str, message: str, place: str, fix: str | None) -> str:
    where = f" ({escaped(place)})" if place else ""
    return f"- **{severity}**{where}: {prose(message.removesuffix('.'))}." + (
        f" Fix: {prose(fix)}." if fix else ""
    )


_WRITTEN: dict[type, Callable[[Any], list[str]]] = {
    blocks.Title: _title,
    blocks.Sentence: _sentence,
    blocks.Facts: _facts,
    blocks.Heading: lambda block: [f"### {escaped(block.text.removesuffix(':'))}"],
    blocks.Items: lambda block: [f"- {prose(text)}" for text in block.texts],
    blocks.Troubles: _troubles,
    blocks.Notes: lambda block: [prose(text) + "<br>" for text in block.texts],
    blocks.Tiles: _tiles,
    blocks.Table: _table,
    blocks.Bars: _bars,
    blocks.Lines: _paragraph,
    blocks.Commands: lambda block: [
        f"{block.label}: {', '.join(f'`{command}`' for command in block.commands)}"
    ],
}


def marker(command: str, key: str, value: str) -> list[str]:
    """Return the comments that a file begins with: one for a bot, and whose file it is, in a value that cannot end it."""
    text = quote(value, safe="", errors="surrogatepass").replace("--", "-%2D")
    return [f"<!-- nsyspipe:{command} -->", f"<!-- nsyspipe:{key}={text} -->"]


def marked_as(path: Path, command: str, key: str) -> str | None:
    """Return whose file it is, by `marker`; None of any other file. Reads only its head."""
    found = re.match(rf"<!-- nsyspipe:{command} -->\s+<!-- nsyspipe:{key}=(\S*) -->", head_of(path))
    return unquote(found[1], errors="surrogatepass") if found else None


def markdown(run: Run, top: int | None = None) -> str:
    """Return a run's summary in GitHub's Markdown: 60 lines at most without `top`, the same for the same run; `marker` comes first."""
    from nsyspipe.report.run import COMMENT, run_blocks  # noqa: PLC0415 - other subjects need no run's

    head = marker("analyze", "run_id", run.header.run_id)
    parts = run_blocks(run, replace(COMMENT, n_top=top))
    return as_markdown(parts, head, "nsyspipe analyze REPORTS --html report.html")


run_id_of_markdown = partial(marked_as, command="analyze", key="run_id")  # of a file of `markdown`
