"""Collectives in the order of a step: how long each transfers, and who waits in it; medians over steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Int64 = NDArray[np.int64]

__all__ = ["MOST_COLLECTIVES", "Medians", "collective_medians"]

# Columns of a chart; a step may have thousands of collectives, most of them short.
MOST_COLLECTIVES = 240
# Medians need no more rows than this; of longer runs steps are taken evenly.
_MOST_ROWS = 400_000
_COLUMNS = (
    "step",
    "seq",
    "rank",
    "start_ns",
    "end_ns",
    "wait_ns",
    "transfer_ns",
    "is_matched",
    "message_bytes",
    "busbw_bytes_per_s",
)


@dataclass(frozen=True)
class Medians:
    """One row per collective of a step that is drawn, in order.

    Attributes
    ----------
    rows
        ``seq``, ``collective``, ``duration`` (ns, median over ranks and steps), ``transfer`` (the same; None unless
        matched), ``wait`` (by rank, median over steps), ``bytes``, ``busbw``.
    n_all
        Collectives of a step, with those left out.
    n_steps, n_used
        Summary steps, and those that the medians are taken over.
    n_matched, n_complete
        Of the latter those in which any, and in which every operation is matched: transfer and waits rest on them.
    """

    rows: list[dict[str, Any]]
    ranks: list[int]
    n_all: int
    n_steps: int
    n_used: int
    n_matched: int
    n_complete: int


def collective_medians(collectives: pa.Table) -> Medians:
    """Return the collectives of summary steps; of more than `MOST_COLLECTIVES` those that take most time.

    Parameters
    ----------
    collectives
        `schema.COLLECTIVES`.
    """
    table = collectives.filter(collectives["in_summary"])
    steps = table["step"].unique().to_pylist()
    n_used = len(steps)
    if table.num_rows > _MOST_ROWS:
        n_used = max(len(steps) * _MOST_ROWS // table.num_rows, 1)
        used = [steps[at * len(steps) // n_used] for at in range(n_used)]
        table = table.filter(pc.is_in(table["step"], pa.array(used, pa.int64())))
    matched = set(table["step"].filter(table["is_matched"]).unique().to_pylist())
    unmatched = set(table["step"].filter(pc.invert(table["is_matched"])).unique().to_pylist())
    rows, n_all = _rows(table) if table.num_rows else ([], 0)
    return Medians(
        rows=rows,
        ranks=sorted(table["rank"].unique().to_pylist()),
        n_all=n_all,
        n_steps=len(steps),
        n_used=n_used,
        n_matched=len(matched),
        n_complete=len(matched - unmatched),
    )


def _rows(table: pa.Table) -> tuple[list[dict[str, Any]], int]:
    """Return one row per (place in the step, collective), and how many there are with those left out.

    The same place may hold another kind of collective in another step.
    """
    kinds = table["collective"].combine_chunks().dictionary_encode()
    kind = kinds.indices.to_numpy(zero_copy_only=False)
    seq, rank = (table[name].to_numpy() for name in ("seq", "rank"))
    order = np.lexsort((rank, kind, seq))
    sorted_rows = table.select(_COLUMNS).take(pa.array(order))
    firsts = _firsts(seq[order], kind[order])
    lengths = np.diff([*firsts, order.size])
    rows = [
        {
            "collective": kinds.dictionary[int(kind[order[firsts[at]]])].as_py(),
            "seq": int(seq[order[firsts[at]]]),
            **_medians(sorted_rows.slice(firsts[at], int(lengths[at]))),
        }
        for at in _longest(sorted_rows, firsts, lengths)
    ]
    return rows, len(firsts)


def _longest(rows: pa.Table, firsts: list[int], lengths: Int64) -> list[int]:
    """Return the groups with the longest mean duration, in their order: medians of all would take long."""
    duration = rows["end_ns"].to_numpy() - rows["start_ns"].to_numpy()
    mean = np.add.reduceat(duration, firsts) / lengths
    kept = np.argsort(-mean, kind="stable")[:MOST_COLLECTIVES]
    return sorted(int(at) for at in kept)


def _firsts(*columns: Int64) -> list[int]:
    changes = np.zeros(columns[0].size, np.bool_)
    changes[0] = True
    for column in columns:
        changes[1:] |= column[1:] != column[:-1]
    return [int(at) for at in np.flatnonzero(changes)]


def _medians(rows: pa.Table) -> dict[str, Any]:
    """Return the medians of one collective; its rows are sorted by rank."""
    rank = rows["rank"].to_numpy()
    duration = rows["end_ns"].to_numpy() - rows["start_ns"].to_numpy()
    firsts = _firsts(rank)
    lasts = [*firsts[1:], rank.size]
    wait = rows["wait_ns"].combine_chunks()
    return {
        "duration": float(np.median(duration)),
        "wait": {int(rank[a]): _median(wait[a:b]) for a, b in zip(firsts, lasts, strict=True)},
        "transfer": _median(rows["transfer_ns"].combine_chunks()),
        "bytes": _median(rows["message_bytes"].combine_chunks()),
        "busbw": _median(rows["busbw_bytes_per_s"].combine_chunks()),
    }


def _median(values: pa.Array) -> float | None:
    """Return the median of what is known; None if nothing is."""
    known = values.drop_null()
    return float(np.median(known.to_numpy())) if len(known) else None
