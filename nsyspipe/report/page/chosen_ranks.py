"""Which ranks to draw where there are too many for the eye."""

from __future__ import annotations

from itertools import chain, zip_longest
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa

__all__ = ["chosen_ranks", "left_out_note"]


def chosen_ranks(rank_summary: pa.Table, stragglers: pa.Table, most: int) -> list[int]:
    """Return the ranks that tell most about a run: all if they are few.

    Parameters
    ----------
    rank_summary, stragglers
        `schema.RANK_SUMMARY` and `schema.STRAGGLERS`.
    most
        How many at most.

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
