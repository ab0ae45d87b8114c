"""Where each step's time goes: per rank the mean of the parts that sum to its wall time, for a chart and a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc

from nsyspipe.report.page.tables import Column, Table
from nsyspipe.units import ms_text, percent_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa

__all__ = ["SHOWN_RANKS", "parts_of", "rank_parts", "rank_parts_table"]

SHOWN_RANKS = 12
_SUMMED = (
    "wall_ns",
    "compute_ns",
    "overlap_compute_ns",
    "exposed_comm_ns",
    "exposed_memory_ns",
    "idle_ns",
    "comm_ns",
    "wait_ns",
    "transfer_ns",
)


def parts_of(row: Mapping[str, Any]) -> dict[str, int] | None:
    """Split a wall time exactly: compute alone, compute with communication beside it, exposed comm, copies, idle.

    None where one of them was not recorded, since a bar of the others would say that it was nothing.
    """
    compute, hidden = row["compute_ns"], row["overlap_compute_ns"]
    exposed, copies, idle = row["exposed_comm_ns"], row["exposed_memory_ns"], row["idle_ns"]
    if None in {compute, hidden, exposed, copies, idle}:
        return None
    return {
        "compute": compute - hidden,
        "hidden": hidden,
        "exposed": exposed,
        "copies": copies,
        "idle": idle,
    }


def _sums(steps: pa.Table) -> tuple[list[dict[str, Any]], int]:
    """Return per rank the sums over summary steps, and how many steps those are."""
    options = pc.ScalarAggregateOptions(skip_nulls=False, min_count=1)
    summed = steps.group_by("rank").aggregate([(name, "sum", options) for name in _SUMMED])
    names = [name.removesuffix("_sum") for name in summed.column_names]
    rows = summed.rename_columns(names).sort_by("rank").to_pylist()
    n_steps = pc.count_distinct(steps["step"]).as_py()
    return rows, n_steps


def rank_parts(
    steps: pa.Table, ranks: Sequence[int], *, is_capture: bool = False
) -> dict[str, Any] | None:
    """Return what the chart draws of these ranks: sums over summary steps in ns, to be divided by their number.

    Parameters
    ----------
    steps
        `schema.STEPS` of the summary steps.

    Returns
    -------
    dict or None
        ``n_steps``, ``whole`` (what a bar is of), and ``ranks``: ``wall``, ``parts`` (see `parts_of`), ``comm``, ``wait``, ``transfer``. None
        without summary steps.
    """
    rows, n_steps = _sums(steps)
    rows = [row for row in rows if row["rank"] in set(ranks)]
    if not rows:
        return None
    return {
        "n_steps": n_steps,
        "whole": "capture" if is_capture else "step",
        "ranks": [
            {
                "rank": row["rank"],
                "wall": row["wall_ns"],
                "parts": parts_of(row),
                "comm": row["comm_ns"],
                "wait": row["wait_ns"],
                "transfer": row["transfer_ns"],
            }
            for row in rows
        ],
    }


_COLUMNS = (
    ("compute alone", "compute", "compute without communication under way"),
    ("hides communication", "hidden", "compute with communication under way"),
    ("exposed communication", "exposed", "communication beside no compute"),
    ("exposed copies", "copies", "copies beside neither"),
    ("idle", "idle", "nothing runs"),
)


def rank_parts_table(steps: pa.Table, *, is_capture: bool = False) -> Table:
    """Return the same of all ranks in words."""
    rows, n = _sums(steps)
    cells = []
    for row in rows:
        parts = parts_of(row) or {}
        times = [parts.get(name) for _, name, _ in _COLUMNS]
        cells.append(
            [
                str(row["rank"]),
                _mean(row["wall_ns"], n),
                *(f"{_mean(time, n)} ({_share(time, row['wall_ns'])})" for time in times),
                _mean(row["comm_ns"], n),
                _mean(row["wait_ns"], n),
                _mean(row["transfer_ns"], n),
            ]
        )
    columns = [
        Column("rank"),
        Column("capture" if is_capture else "step"),
        *(Column(heading, hint=hint) for heading, _, hint in _COLUMNS),
        Column("communication in all"),
        Column("of it waiting"),
        Column("of it transfer"),
    ]
    title = "Where the time of the capture goes" if is_capture else "Where each step's time goes"
    return Table(f"{title}, per rank", columns, cells)


def _mean(total: int | None, n: int) -> str:
    return ms_text(None if total is None else total / n)


def _share(part: int | None, whole: int) -> str:
    return percent_text(None if part is None or not whole else part / whole)
