"""A scoreboard's figures as tables of its page, and how each is defined."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nsyspipe.report.page.tables import Column, Table
from nsyspipe.report.scoreboard_words import (
    rows_by_kind,
    shown_figures,
    speedup_interval,
    speedup_text,
    step_texts,
    verdict_word,
)
from nsyspipe.scoreboard.tables import SCOREBOARD
from nsyspipe.units import absent, ms_text, percent_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nsyspipe.scoreboard.board import Scoreboard

__all__ = ["formulas", "parts_table", "runs_table"]

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
