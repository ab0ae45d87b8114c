"""A scoreboard for a pull request or a report: who is fastest, one table, what to know of it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from nsyspipe import __version__
from nsyspipe.report.markdown_text import escaped, prose, table
from nsyspipe.report.scoreboard_document import identity_of
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
from nsyspipe.report.written import head_of
from nsyspipe.units import percent_text

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from nsyspipe.scoreboard.board import Scoreboard

__all__ = ["MARKER", "identity_of_markdown", "scoreboard_markdown"]

# The first line, whatever the runs: a bot looks for the comment that begins with it.
MARKER = "<!-- nsyspipe:compare -->"
_RUNS_MARKER = re.compile(re.escape(MARKER) + r"\s+<!-- nsyspipe:runs=([0-9a-f]{64}) -->")
_LONGEST_NAME, _SHOWN_TROUBLES = 60, 8


def scoreboard_markdown(board: Scoreboard) -> str:
    """Return a scoreboard in GitHub's Markdown: the same for the same runs.

    The first line is `MARKER`, the second a comment with a hash of the runs' ids; neither is shown.
    """
    kinds = rows_by_kind(board)
    first, *others = headlines(board)
    blocks = [
        [MARKER, f"<!-- nsyspipe:runs={identity_of(board)} -->"],
        [f"**{escaped(first)}**"],
        *([escaped(sentence)] for sentence in others),
    ]
    for _, rows in kinds:
        heading = [f"### {escaped(kind_text(rows))}"] if len(kinds) > 1 else []
        blocks += [heading, _results(board, rows)]
    blocks.append(_figures([row for _, rows in kinds for row in rows]))
    blocks.append([f"- **warning**: {escaped(one)}" for one in doubts(board)])
    blocks.append(_troubles(board))
    blocks.append([prose(note) + "<br>" for note in notes(board)])
    blocks.append([f"nsyspipe {__version__}: `nsyspipe compare RUN RUN ...`"])
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def identity_of_markdown(path: Path) -> str | None:
    """Return the identity of the runs of a file of `scoreboard_markdown`; None if it is no such file."""
    found = _RUNS_MARKER.match(head_of(path))
    return found[1] if found else None


def _results(board: Scoreboard, rows: Sequence[dict[str, Any]]) -> list[str]:
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


def _figures(rows: Sequence[dict[str, Any]]) -> list[str]:
    figures = shown_figures(rows)
    headings = [one.heading.replace("\n", " ") for one in figures]
    cells = [
        [escaped(row["label"], _LONGEST_NAME), *(one.text(row[one.column]) for one in figures)]
        for row in rows
    ]
    return table(["run", *headings], cells)


def _troubles(board: Scoreboard) -> list[str]:
    found = troubles(board)
    lines = [
        f"- **{severity}** ({escaped(runs)}): {prose(message)}." + (f" Fix: {prose(fix)}." if fix else "")
        for severity, message, runs, fix in found[:_SHOWN_TROUBLES]
    ]  # fmt: skip
    more = len(found) - _SHOWN_TROUBLES
    return lines + ([f"- and {more} more (`--json` has all)"] if more > 0 else [])
