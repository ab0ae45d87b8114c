"""Collectives on a run's page, medians over steps: by order, by size, as a table; and which of many ranks are drawn."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nsyspipe.report.blocks import Field, Table, of, table_of
from nsyspipe.report.units import absent, bandwidth_text, bytes_text, ms_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from nsyspipe.model.types import Int64


# So many ranks have a column of their own in the table.
_RANK_COLUMNS = 8


def by_order(medians: Medians) -> dict[str, Any] | None:
    """Return what the chart of collectives in order draws; None without any."""
    rows = medians.rows
    if not rows:
        return None
    return {
        "seq": [row["seq"] for row in rows],
        "collective": [row["collective"] for row in rows],
        "transfer": [row["transfer"] for row in rows],
        "duration": [row["duration"] for row in rows],
        "ranks": medians.ranks,
        "wait": [[row["wait"].get(rank) for rank in medians.ranks] for row in rows],
    }


def by_size(medians: Medians) -> dict[str, Any] | None:
    """Return message size against bus bandwidth; None where no size is known."""
    rows = [row for row in medians.rows if row["bytes"] and row["busbw"]]
    if not rows:
        return None
    return {name: [row[name] for row in rows] for name in ("seq", "collective", "bytes", "busbw", "transfer")}  # fmt: skip


def collective_note(medians: Medians) -> str:
    """Return what the figures are medians over, what is left out, and what could not be matched."""
    over = f"Medians over {medians.n_used} of {medians.n_steps} steps of the figures"
    if medians.n_used == medians.n_steps:
        over = f"Medians over the {medians.n_steps} steps of the figures" if medians.n_steps > 1 else "The one step of the figures"  # fmt: skip
    shown = len(medians.rows)
    left_out = f"; the {shown} longest of {medians.n_all} collectives" if shown < medians.n_all else ""
    return f"{over}{left_out}{_matched_note(medians)}."


def _matched_note(medians: Medians) -> str:
    """Return which of those steps transfer and waits are medians over; nothing where it is all of them."""
    if medians.n_complete == medians.n_used:
        return ""
    if not medians.n_matched:
        return "; transfer and waiting are not known, as none could be matched across ranks"
    if medians.n_complete == medians.n_matched:
        return f"; transfer and waiting: the {medians.n_matched} that could be matched"
    return f"; transfer and waiting: the {medians.n_matched} of which some could be matched"


def collective_table(medians: Medians) -> Table:
    """Return the collectives in words: of few ranks the wait of each, of many the longest."""

    def wait_of(rank: int) -> Callable[[Mapping[str, Any]], str]:
        return lambda row: ms_text(row["wait"].get(rank))

    ranks = medians.ranks if len(medians.ranks) <= _RANK_COLUMNS else []
    has_bytes = any(row["bytes"] for row in medians.rows)
    sizes = [
        Field("message", of("bytes", bytes_text)),
        Field("bus bandwidth", of("busbw", bandwidth_text)),
    ]
    fields = [
        Field("place", of("seq")),
        Field("collective", of("collective"), "text"),
        Field("duration", of("duration", ms_text)),
        Field("transfer", of("transfer", ms_text)),
        Field("longest wait", lambda row: ms_text(_longest(row["wait"])[0])),
        Field("waiting rank", lambda row: absent if (rank := _longest(row["wait"])[1]) is None else str(rank)),
        *(Field(f"rank {rank} waits", wait_of(rank)) for rank in ranks),
        *(sizes if has_bytes else []),
    ]  # fmt: skip
    note = collective_note(medians)
    return table_of("Collectives in the order of a step", medians.rows, fields, note)


def _longest(waits: dict[int, float | None]) -> tuple[float | None, int | None]:
    known = [(wait, -rank) for rank, wait in waits.items() if wait is not None]
    if not known:
        return None, None
    wait, rank = max(known)
    return wait, -rank if wait else None


# Columns of a chart; a step may have thousands of collectives, most of them short.
MOST_COLLECTIVES = 240
# Medians need no more rows than this; of longer runs steps are taken evenly.
_MOST_ROWS = 400_000
_COLUMNS = (
    "step", "seq", "rank", "start_ns", "end_ns", "wait_ns", "transfer_ns", "is_matched", "message_bytes",
    "busbw_bytes_per_s",
)  # fmt: skip


@dataclass(frozen=True)
class Medians:
    """One row per collective of a step that is drawn, in order."""

    # ``seq``, ``collective``, ``duration`` (ns, median over ranks and steps), ``transfer`` (the same; None unless
    # matched), ``wait`` (by rank, median over steps), ``bytes``, ``busbw``
    rows: list[dict[str, Any]]
    ranks: list[int]
    n_all: int  # collectives of a step, with those left out
    # summary steps, and those that the medians are taken over
    n_steps: int
    n_used: int
    # of the latter those in which any, and in which every operation is matched: transfer and waits rest on them
    n_matched: int
    n_complete: int


def collective_medians(collectives: pa.Table) -> Medians:
    """Return the collectives of summary steps; of more than `MOST_COLLECTIVES` those that take most time."""
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
        for at in _longest_kinds(sorted_rows, firsts, lengths)
    ]
    return rows, len(firsts)


def _longest_kinds(rows: pa.Table, firsts: list[int], lengths: Int64) -> list[int]:
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


def chosen_ranks(rank_summary: pa.Table, stragglers: pa.Table, most: int) -> list[int]:
    """Return the ranks that tell most about a run: all if they are few.

    Returns
    -------
    list of int
        Sorted. Of many in turn the most waited for, the slowest, the most exposed and the fastest, then those
        that lie evenly between.
    """
    rows = rank_summary.to_pylist()
    ranks = [row["rank"] for row in rows]
    if len(ranks) <= most:
        return ranks
    late = {row["rank"]: row["lateness_ns"] for row in stragglers.to_pylist()}
    orders = (
        _order(rows, lambda row: -(late.get(row["rank"]) or 0)),
        _order(rows, lambda row: -(row["step_time_ns"] or 0)),
        _order(rows, lambda row: -(row["exposed_comm_share"] or 0)),
        _order(rows, lambda row: row["step_time_ns"] or 0),
    )
    extremes = chain.from_iterable(zip_longest(*(order[: most // 6 + 1] for order in orders)))
    evenly = [ranks[at * len(ranks) // most] for at in range(most)]
    return sorted(list(dict.fromkeys(chain(extremes, evenly, ranks)))[:most])


def _order(rows: Sequence[dict[str, Any]], by: Callable[[dict[str, Any]], float]) -> list[int]:
    return [row["rank"] for row in sorted(rows, key=lambda row: (by(row), row["rank"]))]


def left_out_note(n_drawn: int, n_all: int) -> str:
    """Return which ranks are drawn, for a caption; nothing if all are."""
    if n_drawn == n_all:
        return ""
    return (
        f"{n_drawn} of {n_all} ranks: the most waited for, the slowest, the most exposed, the fastest, "
        "and some between."
    )
