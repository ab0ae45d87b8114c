"""The timeline of one step: its bars as the chart draws them, in ns from the step's first start."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nsyspipe.schema import LANES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Int64 = NDArray[np.int64]

__all__ = ["MOST_BARS", "SHOWN_RANKS", "timeline_data"]

# Drawn at once; a button shows the others.
SHOWN_RANKS = 8
# More of them take longer to draw than to understand, and each costs some 25 bytes.
MOST_BARS = 24_000
_NONE = -1


def timeline_data(
    timeline: pa.Table, steps: pa.Table, first: Sequence[int], others: Sequence[int]
) -> dict[str, Any] | None:
    """Return the bars of the representative step.

    Parameters
    ----------
    timeline, steps
        `schema.TIMELINE` and `schema.STEPS`.
    first
        Ranks that are drawn at once, however many bars they have.
    others
        Ranks that a button shows; of them as many as `MOST_BARS` allow.

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
