"""Where each rank's and each step's time goes, and one step's timeline, on a run's page: as charts and as tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nsyspipe.model.schema import LANES
from nsyspipe.report.blocks import Field, Table, of, table_of
from nsyspipe.report.host_steps import LOOP
from nsyspipe.report.units import absent, ms_text, percent_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from nsyspipe.model.types import Int64


SHOWN_RANKS = 12
_SUMMED = (
    "wall_ns", "compute_ns", "overlap_compute_ns", "exposed_comm_ns", "exposed_memory_ns", "idle_ns",
    "comm_ns", "wait_ns", "transfer_ns",
)  # fmt: skip


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


def rank_parts(steps: pa.Table, ranks: Sequence[int], *, is_capture: bool = False) -> dict[str, Any] | None:
    """Return what the chart draws of these ranks: sums over summary steps in ns, to be divided by their number.

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

    def mean(name: str) -> Callable[[Mapping[str, Any]], str]:
        return lambda row: _mean(row[name], n)

    def part(name: str) -> Callable[[Mapping[str, Any]], str]:
        def cell(row: Mapping[str, Any]) -> str:
            time = (parts_of(row) or {}).get(name)
            return f"{_mean(time, n)} ({_share(time, row['wall_ns'])})"

        return cell

    fields = [
        Field("rank", of("rank")),
        Field("capture" if is_capture else "step", mean("wall_ns")),
        *(Field(heading, part(name), hint=hint) for heading, name, hint in _COLUMNS),
        Field("communication in all", mean("comm_ns")),
        Field("of it waiting", mean("wait_ns")),
        Field("of it transfer", mean("transfer_ns")),
    ]
    title = "Where the time of the capture goes" if is_capture else "Where each step's time goes"
    return table_of(f"{title}, per rank", rows, fields)


def _mean(total: int | None, n: int) -> str:
    return ms_text(None if total is None else total / n)


def _share(part: int | None, whole: int) -> str:
    return percent_text(None if part is None or not whole else part / whole)


# More columns than that are narrower than a pixel or two.
MOST_COLUMNS = 400
_PARTS = ("compute", "hidden", "exposed", "copies", "idle")


def step_rows(steps: pa.Table, skipped: Sequence[int], n_ranks: int) -> list[dict[str, Any]]:
    """Return one row per step, in order of time: the slowest rank's row of `schema.STEPS`, the fastest rank, and a mark.

    Returns
    -------
    list of dict
        The columns of the slowest rank (tie: the lowest), ``fastest_rank``, ``fastest_wall_ns``, ``begin_ns``, and
        ``mark``: ``""`` for a step in the figures, else ``skipped``, ``cut off`` or ``not on every rank``.
    """
    if not steps.num_rows:
        return []
    step, wall, rank, start = (np.asarray(steps[name].to_numpy()) for name in ("step", "wall_ns", "rank", "start_ns"))
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
    shown = [max(rows[at : at + per_column], key=lambda row: row["wall_ns"]) for at in range(0, len(rows), per_column)]
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
    fields = [
        Field("step", of("step")),
        Field("step time", of("wall_ns", ms_text)),
        Field("slowest rank", of("rank")),
        Field("compute", of("compute_share", percent_text)),
        Field("exposed communication", of("exposed_comm_share", percent_text)),
        Field("exposed copies", of("exposed_memory_share", percent_text)),
        Field("idle", of("idle_share", percent_text)),
        Field("waits for others", of("wait_share", percent_text)),
        Field("fastest rank", of("fastest_rank")),
        Field("its time", of("fastest_wall_ns", ms_text)),
        Field("in the figures", lambda row: row["mark"] or "yes", "text"),
    ]
    note = f"The slowest of each {per_column} steps; --json has all." if per_column > 1 else None
    return table_of("Steps over time, shares of the slowest rank", shown, fields, note)


# Drawn at once; a button shows the others.
TIMELINE_RANKS = 8
# More of them take longer to draw than to understand, and each costs some 25 bytes.
MOST_BARS = 24_000
_NONE = -1


def timeline_data(
    timeline: pa.Table, steps: pa.Table, first: Sequence[int], others: Sequence[int]
) -> dict[str, Any] | None:
    """Return the bars of the representative step.

    Returns
    -------
    dict or None
        ``step``, ``end`` (ns), ``names``, and ``ranks``: sorted, each with its window and by lane the columns
        ``start``, ``length``, ``name`` (index, -1 for none) and, unless they say nothing, ``busy`` (= length), ``n``
        (= 1), ``seq`` (-1 for none), ``exposed`` and, where it is known, ``wait`` (both of ``comm``). Start and length
        are what is drawn, gaps between joined operations with it; ``busy``, ``exposed`` and ``wait`` are exact. None
        without a timeline.
    """
    table = timeline
    if not table.num_rows:
        return None
    step = table["step"][0].as_py()
    windows = _windows(steps, step)
    origin = min(start for start, _ in windows.values())
    counts = {row["values"]: row["counts"] for row in pc.value_counts(table["rank"]).to_pylist()}
    kept = _that_fit(counts, first, others)
    table = table.filter(pc.is_in(table["rank"], pa.array(kept, pa.int64())))
    names = table["name"].combine_chunks().dictionary_encode()
    table = table.set_column(table.column_names.index("name"), "name", names.indices)
    return {
        "step": step,
        "end": max(end for _, end in windows.values()) - origin,
        "n_ranks": len(counts),
        "n_shown": len(set(first) & set(kept)),
        "names": names.dictionary.to_pylist(),
        "ranks": [
            {
                "rank": rank,
                "isFirst": rank in first,
                "window": [time - origin for time in windows[rank]],
                "lanes": _lanes(table.filter(pc.equal(table["rank"], rank)), origin),
            }
            for rank in kept
        ],
    }


def _windows(steps: pa.Table, step: int) -> dict[int, tuple[int, int]]:
    rows = steps.filter(pc.equal(steps["step"], step)).select(["rank", "start_ns", "end_ns"])
    return {row["rank"]: (row["start_ns"], row["end_ns"]) for row in rows.to_pylist()}


def _that_fit(counts: dict[int, int], first: Sequence[int], others: Sequence[int]) -> list[int]:
    kept = [rank for rank in first if rank in counts]
    room = MOST_BARS - sum(counts[rank] for rank in kept)
    for rank in others:
        room -= counts.get(rank, 0)
        if room < 0:
            break
        if rank in counts:
            kept.append(rank)
    return sorted(kept)


def _lanes(table: pa.Table, origin: int) -> dict[str, dict[str, list[int]]]:
    lanes = {lane: table.filter(pc.equal(table["lane"], lane)) for lane in LANES}
    return {lane: _bars(rows, origin) for lane, rows in lanes.items() if rows.num_rows}


def _bars(rows: pa.Table, origin: int) -> dict[str, list[int]]:
    start, end = _ints(rows, "start_ns"), _ints(rows, "end_ns")
    found = {
        "start": (start - origin).tolist(),
        "length": (end - start).tolist(),
        "name": _ints(rows, "name").tolist(),
    }
    # Mostly bars are single operations, which need no more words.
    busy, n, seq = (_ints(rows, name) for name in ("busy_ns", "n_operations", "seq"))
    if (busy != end - start).any():
        found["busy"] = busy.tolist()
    if (n != 1).any():
        found["n"] = n.tolist()
    if (seq != _NONE).any():
        found["seq"] = seq.tolist()
    # Both are known of all bars of a lane, or of none.
    for name in ("exposed", "wait"):
        if not (column := rows[f"{name}_ns"]).null_count:
            found[name] = column.to_pylist()
    return found


def _ints(rows: pa.Table, name: str) -> Int64:
    """Return a column of integers; -1 for null."""
    column = pc.fill_null(rows[name].combine_chunks().cast(pa.int64()), _NONE)
    return np.asarray(column.to_numpy(zero_copy_only=False), np.int64)


# Heading, lane, and the column of `steps` that is null where the lane was not recorded.
_BUSY = (
    ("compute, busy", "compute", "compute_ns"),
    ("communication, busy", "comm", "comm_ns"),
    ("exposed of it", "exposed", "exposed_comm_ns"),
    ("waiting in it", "wait", "wait_ns"),
    ("copies, busy", "memory", "exposed_memory_ns"),
)


def timeline_table(timeline: pa.Table, steps: pa.Table, *, is_capture: bool = False) -> Table:
    """Return per rank when its window begins and ends, how long its lanes are busy, and when its phases run.

    Returns
    -------
    Table
        Times count from the first rank's start. What was not recorded, or is not known, is a dash. A phase that runs
        several times is shown from its first start to its last end.
    """
    of_step = steps.filter(pc.equal(steps["step"], timeline["step"][0]))
    origin = pc.min(of_step["start_ns"]).as_py()
    busy, spans = _by_lane(timeline), _spans(timeline)
    phases = [phase for phase in LOOP if any(phase in found for found in spans.values())]
    whole = "capture" if is_capture else "step"

    def lane_time(lane: str, known: str) -> Callable[[Mapping[str, Any]], str]:
        return lambda row: absent if row[known] is None else ms_text(busy.get((row["rank"], lane), 0))

    def phase_span(phase: str) -> Callable[[Mapping[str, Any]], str]:
        def cell(row: Mapping[str, Any]) -> str:
            found = spans.get(row["rank"], {}).get(phase)
            return _span(*found, origin) if found else absent

        return cell

    fields = [
        Field("rank", of("rank")),
        Field(f"{whole}, from and to", lambda row: _span(row["start_ns"], row["end_ns"], origin)),
        *(Field(heading, lane_time(lane, known)) for heading, lane, known in _BUSY),
        *(Field(f"{phase}, from and to", phase_span(phase)) for phase in phases),
    ]
    return table_of(f"Timeline of the {whole}, per rank", of_step.to_pylist(), fields)


def _by_lane(timeline: pa.Table) -> dict[tuple[int, str], int]:
    summed = timeline.group_by(["rank", "lane"]).aggregate([("busy_ns", "sum")]).to_pylist()
    return {(row["rank"], row["lane"]): row["busy_ns_sum"] for row in summed}


def _spans(timeline: pa.Table) -> dict[int, dict[str, tuple[int, int]]]:
    rows = timeline.filter(pc.equal(timeline["lane"], "phase"))
    found = rows.group_by(["rank", "name"]).aggregate([("start_ns", "min"), ("end_ns", "max")])
    spans: dict[int, dict[str, tuple[int, int]]] = {}
    for row in found.to_pylist():
        spans.setdefault(row["rank"], {})[row["name"]] = (row["start_ns_min"], row["end_ns_max"])
    return spans


def _span(start: int, end: int, origin: int) -> str:
    return f"{ms_text(start - origin)} \N{EN DASH} {ms_text(end - origin)}"
