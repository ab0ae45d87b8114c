"""A scoreboard for the terminal: who is fastest, the runs side by side, what their steps' time goes to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from nsyspipe.report.scoreboard_notes import doubts, notes, troubles
from nsyspipe.report.scoreboard_words import (
    headlines,
    kind_text,
    rows_by_kind,
    shown_figures,
    speedup_interval,
    speedup_text,
    step_texts,
    verdict_word,
)
from nsyspipe.report.text import MAX_WIDTH, rendered
from nsyspipe.units import percent_text
from nsyspipe.untrusted import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import Console, RenderableType

    from nsyspipe.scoreboard.board import Scoreboard

__all__ = ["scoreboard_text"]

_STYLES = {"improvement": "green", "regression": "bold red", "inconclusive": "yellow"}
_SEVERITIES = {"error": "bold red", "warning": "yellow"}
_GAP = 2
# So much of a label stays, whatever the width; more where there is room for all columns.
_LEAST_NAME, _SHOWN_TROUBLES = 12, 6


@dataclass(frozen=True)
class _Column:
    """A column: the higher `rank`, the sooner a narrow terminal goes without it."""

    heading: str
    cells: Sequence[Text]
    rank: int = 0
    is_word: bool = False

    @property
    def width(self) -> int:
        return max([len(line) for line in self.heading.split("\n")] + [one.cell_len for one in self.cells])  # fmt: skip


def scoreboard_text(board: Scoreboard, console: Console) -> str:
    """Return a scoreboard as text for a console, at most 100 columns wide."""
    return rendered(Group(*_sections(board, min(console.width, MAX_WIDTH))), console)


def _sections(board: Scoreboard, width: int) -> Iterable[RenderableType]:
    first, *others = headlines(board)
    yield Text(printable(first), style="bold")
    for sentence in others:
        yield Text(printable(sentence))
    kinds = rows_by_kind(board)
    rows = [row for _, own in kinds for row in own]
    heads = [kind_text(own) for _, own in kinds] if len(kinds) > 1 else []
    sizes = [len(own) for _, own in kinds]
    yield _padded(_grid(_results(board, rows), rows, width, heads, sizes))
    yield _padded(_grid(_figures(rows), rows, width, [], [len(rows)]))
    if said := doubts(board):
        yield _padded(_marked([("warning", one, None) for one in said]))
    if found := troubles(board):
        shown = [(severity, f"{message} ({runs})", fix) for severity, message, runs, fix in found]
        yield _padded(_marked(shown[:_SHOWN_TROUBLES]))
        if (more := len(shown) - _SHOWN_TROUBLES) > 0:
            yield Text(f"and {more} more problems; --json has all", style="dim")
    yield _padded(Text("\n".join(map(printable, notes(board))), style="dim"))


def _padded(content: RenderableType) -> Padding:
    return Padding(content, (1, 0, 0, 0))


def _results(board: Scoreboard, rows: Sequence[dict[str, Any]]) -> list[_Column]:
    times, rates = zip(*map(step_texts, rows), strict=True)
    sure = percent_text(board.rules.confidence, 0)
    found = [
        _plain("steps", [str(row["n_summary_steps"]) for row in rows], 5),
        _plain("step time", times),
        _plain("steps/s", [one.removesuffix(" steps/s") for one in rates], 3),
        _plain("speed-up", [speedup_text(row["peer_speedup"]) for row in rows]),
        _plain(f"{sure} interval", [speedup_interval(row) for row in rows], 2),
        _Column("verdict", [_verdict(row) for row in rows], is_word=True),
    ]
    if len(board.kinds) > 1:
        over = _plain("over the\nfirst", [speedup_text(row["speedup"]) for row in rows], 4)
        found.insert(-1, over)
    elif len({row["n_ranks"] for row in rows}) > 1:
        found.insert(0, _plain("ranks", [str(row["n_ranks"]) for row in rows], 1))
    return found


def _figures(rows: Sequence[dict[str, Any]]) -> list[_Column]:
    return [
        _plain(one.heading, [one.text(row[one.column]) for row in rows], rank)
        for rank, one in enumerate(shown_figures(rows))
    ]


def _plain(heading: str, cells: Iterable[str], rank: int = 0) -> _Column:
    return _Column(heading, [Text(one) for one in cells], rank)


def _verdict(row: dict[str, Any]) -> Text:
    word = verdict_word(row)
    return Text(word, style=_STYLES.get(word, ""))


def _grid(
    columns: Sequence[_Column],
    rows: Sequence[dict[str, Any]],
    width: int,
    heads: Sequence[str],
    sizes: Sequence[int],
) -> Table:
    """Return a table with a name before each row; what a narrow terminal has no room for is left out, never cut."""
    names = [printable(row["label"]) for row in rows]
    indent = 1 if heads else 0
    wanted = max(indent + max(map(len, names)), *map(len, heads), len("run"))
    least = min(wanted, max(_LEAST_NAME, width // 4))
    shown = list(columns)
    while len(shown) > 1 and _room(shown, width) < least:
        shown.remove(max(shown, key=lambda column: column.rank))
    longest = max(_room(shown, width), least)
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="dim")
    table.add_column("run", no_wrap=True, vertical="bottom")
    for column in shown:
        table.add_column(
            column.heading,
            justify="left" if column.is_word else "right",
            no_wrap=True,
            vertical="bottom",
        )
    at = 0
    for place, size in enumerate(sizes):
        if heads:
            table.add_row(Text(_cut(printable(heads[place]), longest), style="dim"))
        for row in range(at, at + size):
            name = Text(" " * indent + _cut(names[row], longest - indent))
            table.add_row(name, *(column.cells[row] for column in shown))
        at += size
    return table


def _room(columns: Sequence[_Column], width: int) -> int:
    return width - sum(column.width + _GAP for column in columns) - _GAP


def _cut(text: str, longest: int) -> str:
    """Cut in the middle: names of variants often differ at their ends."""
    if len(text) <= longest:
        return text
    kept = longest - 2
    return f"{text[: kept - kept // 2]}..{text[len(text) - kept // 2 :]}"


def _marked(rows: Iterable[tuple[str, str, str | None]]) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, _GAP, 0, 0))
    table.add_column()
    table.add_column(overflow="fold", ratio=1)
    for severity, message, fix in rows:
        text = Text(printable(message))
        if fix:
            text.append(f"\nfix: {printable(fix)}", style="dim")
        table.add_row(Text(severity, style=_SEVERITIES[severity]), text)
    return table
