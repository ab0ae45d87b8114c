"""The page of a scoreboard: who is fastest, where each run's step time goes, and how sure that is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nsyspipe.report.page.scoreboard_tables import formulas, parts_table, runs_table
from nsyspipe.report.page.shell import Page, render
from nsyspipe.report.scoreboard_document import identity_of
from nsyspipe.report.scoreboard_notes import doubts, notes, troubles
from nsyspipe.report.scoreboard_words import headlines, kind_text, rows_by_kind, verdict_word

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nsyspipe.scoreboard.board import Scoreboard

__all__ = ["RUNS", "scoreboard_page"]

# The meta element by which the page of the same runs is known: a hash of their ids.
RUNS = "nsyspipe-compare"

_PARTS = {"compute": "compute_ns", "exposed": "exposed_comm_ns", "copies": "exposed_memory_ns", "idle": "idle_ns"}  # fmt: skip
_ROW_HEIGHT, _FRAME_HEIGHT = 30, 62


def scoreboard_page(board: Scoreboard) -> str:
    """Return a scoreboard as one HTML file: complete, offline, the same bytes for the same runs.

    Returns
    -------
    str
        HTML, to be written as UTF-8.
    """
    drawn = _drawn(board)
    found, doubtful = troubles(board), doubts(board)
    first, *others = headlines(board)
    has_troubles = bool(found or doubtful)
    sections = [("time", "Time and speed"), ("runs", "Runs")]
    if has_troubles:
        sections.append(("problems", "Problems"))
    kinds = [kind_text(rows) for _, rows in rows_by_kind(board)]
    context = {
        "sections": [*sections, ("reading", "How to read it")],
        "headline": first,
        "others": others,
        "facts": [_count(len(board.sides)), *(kinds if len(kinds) == 1 else []), f"the first, {board.reference}, is the reference"],
        "height": _FRAME_HEIGHT + _ROW_HEIGHT * len(drawn["rows"]),
        "parts_table": parts_table(board),
        "runs_table": runs_table(board),
        "doubts": doubtful,
        "troubles": found,
        "has_troubles": has_troubles,
        "notes": notes(board),
        "formulas": formulas(),
    }  # fmt: skip
    return render(
        Page(
            template="scoreboard.html.j2",
            title=f"{_count(len(board.sides))} against {board.reference}: nsyspipe compare",
            identity=(RUNS, identity_of(board)),
            context=context,
            data={"scoreboard": drawn},
            scripts=("scoreboard.js",),
            styles=("scoreboard.css",),
        )
    )


def _count(n: int) -> str:
    return f"{n} run{'' if n == 1 else 's'}"


def _drawn(board: Scoreboard) -> dict[str, Any]:
    """Return what the chart draws, from top to bottom: runs, and above each kind of several a heading."""
    rows: list[dict[str, Any]] = []
    kinds = rows_by_kind(board)
    for kind, own in kinds:
        if len(kinds) > 1:
            rows.append({"heading": kind_text(own)})
        rows += [_row(row, is_best=row["label"] == kind.best and len(own) > 1) for row in own]
    over = f"over {board.reference}" if len(kinds) == 1 else "over the first of its kind"
    return {"rows": rows, "over": over}


def _row(row: Mapping[str, Any], *, is_best: bool) -> dict[str, Any]:
    parts = {name: row[column] for name, column in _PARTS.items()}
    return {
        "label": row["label"],
        "wall": row["mean_step_time_ns"],
        "parts": None if None in parts.values() else parts,
        "speedup": row["peer_speedup"],
        "low": row["peer_speedup_low"],
        "high": row["peer_speedup_high"],
        "peer": row["peer"],
        "verdict": verdict_word(row),
        "why": row["peer_why"],
        "n_steps": row["n_summary_steps"],
        "is_best": is_best,
    }
