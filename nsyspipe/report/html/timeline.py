"""One step's timeline on a page: its bars, rank by rank and lane by lane, and the same as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nsyspipe.model.schema import LANES
from nsyspipe.report.blocks import Field, Table, of, table_of
from nsyspipe.report.run import LOOP
from nsyspipe.report.units import absent, ms_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from nsyspipe.model.table import Int64


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
    if not timeline.num_rows:
        return None
    step = timeline["step"][0].as_py()
    rows = steps.filter(pc.equal(steps["step"], step)).select(["rank", "start_ns", "end_ns"])
    windows = {row["rank"]: (row["start_ns"], row["end_ns"]) for row in rows.to_pylist()}
    origin = min(start for start, _ in windows.values())
    counts = {row["values"]: row["counts"] for row in pc.value_counts(timeline["rank"]).to_pylist()}
    kept = _that_fit(counts, first, others)
    table = timeline.filter(pc.is_in(timeline["rank"], pa.array(kept, pa.int64())))
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


def _that_fit(counts: dict[int, int], first: Sequence[int], others: Sequence[int]) -> list[int]:
    kept = [rank for rank in first if rank in counts]
    room = MOST_BARS - sum(counts[rank] for rank in kept)
    for rank in (rank for rank in others if rank not in first):
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
    found = {"start": (start - origin).tolist(), "length": (end - start).tolist(), "name": _ints(rows, "name").tolist()}
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
