"""The page of a scoreboard: who is fastest, where each run's step time goes, and how sure that is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nsyspipe.comparison.tables import SCOREBOARD
from nsyspipe.report.html.page import Column, Page, Table, render
from nsyspipe.report.scoreboard import identity_of
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
from nsyspipe.report.units import absent, ms_text, percent_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nsyspipe.comparison.scoreboard import Scoreboard


# A scoreboard's figures as tables of its page, and how each is defined.


_PARTS = (
    ("compute", "compute_ns"),
    ("exposed communication", "exposed_comm_ns"),
    ("exposed copies", "exposed_memory_ns"),
    ("idle", "idle_ns"),
)
_DEFINED = (
    "step_time_ns", "throughput_steps_per_s", "rank_steps_per_s", "speedup", "peer", "peer_speedup", "verdict",
    "mean_step_time_ns", "comm_share", "exposed_comm_share", "overlap_ratio", "backward_overlap_ratio", "wait_share",
    "dtod_ns_per_step", "message_bytes_per_step",
)  # fmt: skip


def runs_table(board: Scoreboard) -> Table:
    """Return all runs with their figures, in the order of the chart."""
    rows = [row for _, own in rows_by_kind(board) for row in own]
    figures = shown_figures(rows)
    docs = {column.name: column.doc for column in SCOREBOARD.columns}
    has_kinds = len(board.kinds) > 1
    over = [Column("over the first", hint=docs["speedup"])] if has_kinds else []
    columns = [
        Column("run", "text"),
        Column("ranks"),
        Column("steps", hint="steps the figures rest on"),
        Column("step time", hint=docs["step_time_ns"]),
        Column("throughput", hint=docs["throughput_steps_per_s"]),
        Column("speed-up", hint=docs["peer_speedup"]),
        Column("interval"),
        *over,
        Column("verdict", "text", hint=docs["peer_verdict"]),
        *(Column(one.heading.replace("\n", " "), hint=docs[one.column]) for one in figures),
    ]  # fmt: skip
    cells = [
        [
            row["label"],
            str(row["world_size"] or row["n_ranks"]),
            str(row["n_summary_steps"]),
            *step_texts(row),
            speedup_text(row["peer_speedup"]),
            speedup_interval(row),
            *([speedup_text(row["speedup"])] if has_kinds else []),
            verdict_word(row),
            *(one.text(row[one.column]) for one in figures),
        ]
        for row in rows
    ]
    return Table("Runs and their figures", columns, cells)


def parts_table(board: Scoreboard) -> Table:
    """Return what the bars show."""
    columns = [Column("run", "text"), Column("mean step time"), *(Column(name) for name, _ in _PARTS)]  # fmt: skip
    rows = [row for _, own in rows_by_kind(board) for row in own]
    cells = [
        [row["label"], ms_text(row["mean_step_time_ns"]), *(_part(row, name) for _, name in _PARTS)]
        for row in rows
    ]
    return Table("Where each run's mean step time goes", columns, cells)


def formulas() -> list[tuple[str, str]]:
    """Return the main columns with their formulas, as the API's table has them."""
    docs = {column.name: column.doc for column in SCOREBOARD.columns}
    return [(name, docs[name]) for name in _DEFINED]


def _part(row: Mapping[str, Any], name: str) -> str:
    time, whole = row[name], row["mean_step_time_ns"]
    return absent if time is None or not whole else f"{ms_text(time)} ({percent_text(time / whole)})"  # fmt: skip


# The meta element by which the page of the same runs is known: a hash of their ids.
RUNS = "nsyspipe-compare"

_BOARD_PARTS = {"compute": "compute_ns", "exposed": "exposed_comm_ns", "copies": "exposed_memory_ns", "idle": "idle_ns"}  # fmt: skip
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
    parts = {name: row[column] for name, column in _BOARD_PARTS.items()}
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
