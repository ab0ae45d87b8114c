"""A scoreboard as text for the terminal, as JSON, CSV and Markdown: who is fastest, then the runs side by side."""

from __future__ import annotations

import csv
import hashlib
import io
import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.text import Text

from nsyspipe.model.table import SCHEMA_VERSION
from nsyspipe.model.text import printable
from nsyspipe.report.as_text import MAX_WIDTH, VERDICTS, apart, dim, grid, marked, rendered
from nsyspipe.report.document import dumps
from nsyspipe.report.files import Format, identity_of_page, json_of
from nsyspipe.report.markdown import escaped, marked_as, marker, prose, table, trouble_line
from nsyspipe.report.scoreboard_words import (
    doubts,
    headlines,
    kind_text,
    notes,
    rows_by_kind,
    shown_figures,
    speedup_interval,
    speedup_text,
    step_texts,
    troubles,
    verdict_word,
)
from nsyspipe.report.units import percent_text
from nsyspipe.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from rich.console import Console, RenderableType
    from rich.table import Table

    from nsyspipe.comparison.scoreboard import Scoreboard


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
    yield apart(_grid(_results(board, rows), rows, width, heads, sizes))
    yield apart(_grid(_figures(rows), rows, width, [], [len(rows)]))
    if said := doubts(board):
        yield apart(marked(("warning", one, "", None) for one in said))
    if found := troubles(board):
        yield apart(marked(found[:_SHOWN_TROUBLES]))
        if (more := len(found) - _SHOWN_TROUBLES) > 0:
            yield Text(f"and {more} more problems; --json has all", style="dim")
    yield apart(dim(notes(board)))


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
    return Text(word, style=VERDICTS.get(word, ""))


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
    table = grid()
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


# What a spreadsheet takes for a formula at the start of a cell.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_LARGEST_FILE = 2**26


def scoreboard_document(board: Scoreboard) -> dict[str, Any]:
    """Return the document as plain Python values, in a fixed order; ``captures`` are the run ids of a run."""
    captures = {side.label: [run.header.run_id for run in side.runs] for side in board.sides}
    rows = board.table.to_pylist()
    return {
        "schema_version": SCHEMA_VERSION,
        "tool_version": __version__,
        "reference": board.reference,
        "sort": board.sort,
        "min_effect_pct": round(100 * board.rules.min_effect, 12),
        "confidence": board.rules.confidence,
        "is_forced": board.rules.is_forced,
        "settings_file": board.rules.settings_file,
        "runs": [
            {key: value for key, value in row.items() if key != "run_ids"} | {"captures": captures[row["label"]]}
            for row in rows
        ],
        "kinds": [
            asdict(kind)
            | {
                "labels": list(kind.labels),
                "level_with": list(kind.level_with),
                "not_told_from": list(kind.not_told_from),
            }
            for kind in board.kinds
        ],
        "comparability": board.checks.to_pylist(),
        "problems": board.problems.to_pylist(),
    }


def scoreboard_document_text(board: Scoreboard) -> str:
    """Return the document as JSON."""
    return dumps(scoreboard_document(board))


def scoreboard_csv(board: Scoreboard) -> str:
    """Return the table as CSV: one row per run, the columns of `tables.SCOREBOARD`, nothing where null.

    A name that a spreadsheet would take for a formula begins with an apostrophe.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(board.table.column_names)
    for row in board.table.to_pylist():
        writer.writerow([_cell(value) for value in row.values()])
    return text.getvalue()


def identity_of(board: Scoreboard) -> str:
    """Return what tells scoreboards apart, as a hash: the run ids of their runs, in whatever order."""
    return _hashed([run.header.run_id for run in side.runs] for side in board.sides)


def identity_of_document(path: Path) -> str | None:
    """Return the same of a JSON document; None for any other file."""
    found = json_of(path)
    try:
        captures = [row["captures"] for row in found["runs"]]
        return _hashed(captures) if found["reference"] else None
    except (KeyError, TypeError):
        return None


def identity_of_csv(path: Path, board: Scoreboard) -> str | None:
    """Return the identity of a board if a CSV file is of the same runs; None if it is not."""
    try:
        if path.stat().st_size > _LARGEST_FILE:
            return None
        rows = list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"))))
    except (OSError, ValueError, csv.Error):
        return None
    ours = sorted(_cell(ids) for ids in board.table["run_ids"].to_pylist())
    there = sorted(str(row.get("run_ids")) for row in rows)
    return identity_of(board) if there == ours else None


def _cell(value: object) -> str:
    if isinstance(value, str):
        text = printable(value)
        return f"'{text}" if text.startswith(_FORMULA) else text
    return "" if value is None else str(value)


def _hashed(captures: Iterable[Iterable[str]]) -> str:
    ids = sorted(sorted(map(str, one)) for one in captures)
    return hashlib.sha256(json.dumps(ids).encode()).hexdigest()


# The meta element by which the page of the same runs is known: a hash of their ids.
RUNS = "nsyspipe-compare"
_LONGEST_NAME, _MARKDOWN_TROUBLES = 60, 8


def scoreboard_markdown(board: Scoreboard) -> str:
    """Return a scoreboard in GitHub's Markdown: the same for the same runs.

    The first lines are comments, which are not shown: `marker`.
    """
    kinds = rows_by_kind(board)
    first, *others = headlines(board)
    blocks = [
        marker("compare", "runs", identity_of(board)),
        [f"**{escaped(first)}**"],
        *([escaped(sentence)] for sentence in others),
    ]
    for _, rows in kinds:
        heading = [f"### {escaped(kind_text(rows))}"] if len(kinds) > 1 else []
        blocks += [heading, _markdown_results(board, rows)]
    blocks.append(_markdown_figures([row for _, rows in kinds for row in rows]))
    blocks.append([f"- **warning**: {escaped(one)}" for one in doubts(board)])
    blocks.append(_troubles(board))
    blocks.append([prose(note) + "<br>" for note in notes(board)])
    blocks.append([f"nsyspipe {__version__}: `nsyspipe compare RUN RUN ...`"])
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def scoreboard_formats(board: Scoreboard) -> dict[str, Format]:
    """Return how a scoreboard is written in each format, and how a file of it says which runs it is of."""

    def page() -> str:
        from nsyspipe.report.html.scoreboard_page import scoreboard_page

        return scoreboard_page(board)

    return {
        "json": Format(lambda: scoreboard_document_text(board), identity_of_document),
        "markdown": Format(lambda: scoreboard_markdown(board), identity_of_markdown),
        "csv": Format(lambda: scoreboard_csv(board), lambda path: identity_of_csv(path, board)),
        "html": Format(page, lambda path: identity_of_page(path, RUNS)),
    }


def identity_of_markdown(path: Path) -> str | None:
    """Return the identity of the runs of a file of `scoreboard_markdown`; None if it is no such file."""
    return marked_as(path, "compare", "runs")


def _markdown_results(board: Scoreboard, rows: Sequence[dict[str, Any]]) -> list[str]:
    has_over = len(board.kinds) > 1
    over = [f"over {escaped(board.reference, _LONGEST_NAME)}"] if has_over else []
    sure = percent_text(board.rules.confidence, 0)
    cells = [
        [
            escaped(row["label"], _LONGEST_NAME),
            *([] if has_over else [str(row["world_size"] or row["n_ranks"])]),
            str(row["n_summary_steps"]),
            *step_texts(row),
            speedup_text(row["peer_speedup"]),
            speedup_interval(row),
            *([speedup_text(row["speedup"])] if has_over else []),
            verdict_word(row),
        ]
        for row in rows
    ]
    headings = ["run", *([] if has_over else ["ranks"]), "steps", "step time", "throughput", "speed-up"]  # fmt: skip
    return table([*headings, f"{sure} interval", *over, "verdict"], cells, n_words=1)


def _markdown_figures(rows: Sequence[dict[str, Any]]) -> list[str]:
    figures = shown_figures(rows)
    headings = [one.heading.replace("\n", " ") for one in figures]
    cells = [[escaped(row["label"], _LONGEST_NAME), *(one.text(row[one.column]) for one in figures)] for row in rows]
    return table(["run", *headings], cells)


def _troubles(board: Scoreboard) -> list[str]:
    found = troubles(board)
    lines = [trouble_line(*one) for one in found[:_MARKDOWN_TROUBLES]]
    more = len(found) - _MARKDOWN_TROUBLES
    return lines + ([f"- and {more} more (`--json` has all)"] if more > 0 else [])
