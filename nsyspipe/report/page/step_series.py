"""Steps over time: the slowest rank of each step and what its time goes to, for a chart and a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from nsyspipe.report.page.step_parts import parts_of
from nsyspipe.report.page.tables import Column, Table
from nsyspipe.units import ms_text, percent_text

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["MOST_COLUMNS", "step_rows", "step_series", "step_table"]

# More columns than that are narrower than a pixel or two.
MOST_COLUMNS = 400
_PARTS = ("compute", "hidden", "exposed", "copies", "idle")


def step_rows(steps: pa.Table, skipped: Sequence[int], n_ranks: int) -> list[dict[str, Any]]:
    """Return one row per step, in order of time: the slowest rank's row of `schema.STEPS`, the fastest rank, and a mark.

    Parameters
    ----------
    steps
        `schema.STEPS`.
    skipped
        Steps that the figures leave out on purpose.
    n_ranks
        Of the run.

    Returns
    -------
    list of dict
        The columns of the slowest rank (tie: the lowest), ``fastest_rank``, ``fastest_wall_ns``, ``begin_ns``, and
        ``mark``: ``""`` for a step in the figures, else ``skipped``, ``cut off`` or ``not on every rank``.
    """
    if not steps.num_rows:
        return []
    step, wall, rank, start = (
        np.asarray(steps[name].to_numpy()) for name in ("step", "wall_ns", "rank", "start_ns")
    )
    order = np.lexsort((rank, -wall, step))
    first = np.flatnonzero(np.diff(step[order], prepend=step[order[0]] - 1))
    last = np.append(first[1:], step.size) - 1
    on_ranks = np.diff(np.append(first, step.size))
    begins = np.minimum.reduceat(start[order], first)
    slowest = steps.take(pa.array(order[first])).to_pylist()
    rows = [
        {
            **row,
            "fastest_rank": int(rank[order[at]]),
            "fastest_wall_ns": int(wall[order[at]]),
            "begin_ns": int(begin),
            "mark": _mark(row, skipped, is_everywhere=n == n_ranks),
        }
        for row, at, n, begin in zip(slowest, last, on_ranks, begins, strict=True)
    ]
    return sorted(rows, key=lambda row: (row["begin_ns"], row["step"]))


def _mark(row: dict[str, Any], skipped: Sequence[int], *, is_everywhere: bool) -> str:
    if row["step"] in skipped:
        return "skipped"
    if row["in_summary"]:
        return ""
    return "cut off" if is_everywhere else "not on every rank"


def _reduced(rows: Sequence[dict[str, Any]]) -> tuple[list[dict[str, Any]], int]:
    """Return the slowest of each few steps that follow, as many as there are columns, and of how many."""
    per_column = max(-(-len(rows) // MOST_COLUMNS), 1)
    shown = [
        max(rows[at : at + per_column], key=lambda row: row["wall_ns"])
        for at in range(0, len(rows), per_column)
    ]
    return shown, per_column


def step_series(rows: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Return what the chart draws of `step_rows`; of more than `MOST_COLUMNS` the slowest of each few that follow.

    ``per_column`` says how many steps one column stands for.
    """
    if not rows:
        return None
    shown, per_column = _reduced(rows)
    parts = [parts_of(row) for row in shown]
    return {
        "per_column": per_column,
        "n_steps": len(rows),
        "step": [row["step"] for row in shown],
        "wall": [row["wall_ns"] for row in shown],
        "rank": [row["rank"] for row in shown],
        "fastest": [row["fastest_wall_ns"] for row in shown],
        "fastestRank": [row["fastest_rank"] for row in shown],
        "mark": [row["mark"] for row in shown],
        "parts": {name: [one[name] if one else None for one in parts] for name in _PARTS},
    }


def step_table(rows: Sequence[dict[str, Any]]) -> Table:
    """Return the same in words, reduced alike."""
    shown, per_column = _reduced(rows)
    columns = [
        Column("step"),
        Column("step time"),
        Column("slowest rank"),
        *(Column(name) for name in ("compute", "exposed communication", "exposed copies", "idle")),
        Column("waits for others"),
        Column("fastest rank"),
        Column("its time"),
        Column("in the figures", "text"),
    ]
    cells = [
        [
            str(row["step"]),
            ms_text(row["wall_ns"]),
            str(row["rank"]),
            *(
                percent_text(row[name])
                for name in ("compute_share", "exposed_comm_share", "exposed_memory_share", "idle_share", "wait_share")
            ),
            str(row["fastest_rank"]),
            ms_text(row["fastest_wall_ns"]),
            row["mark"] or "yes",
        ]
        for row in shown
    ]  # fmt: skip
    note = f"The slowest of each {per_column} steps; --json has all." if per_column > 1 else None
    return Table("Steps over time, shares of the slowest rank", columns, cells, note)
