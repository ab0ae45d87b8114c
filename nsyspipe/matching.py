"""Which communication operations of different ranks are the same collective."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nsyspipe.value_runs import run_starts

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Int64 = NDArray[np.int64]

__all__ = ["UNGROUPED", "match"]

UNGROUPED = -1


def match(group: Int64, rank: Int64, n_required: Int64) -> list[Int64]:
    """Match the k-th operation of a group on each of its ranks with the k-th on the others.

    Parameters
    ----------
    group
        Group of each operation (a communicator within one step), from 0; `UNGROUPED` is left out.
    rank
        Its rank. Operations of one rank stand in order of start.
    n_required
        By group: how many ranks must take part. A group with fewer, with counts that differ between
        ranks, or of a single rank, is not matched.

    Returns
    -------
    list of numpy.ndarray
        One matrix per number of ranks, smallest first: a row per collective (in order of group, then
        k), a column per rank in ascending order, holding indices of operations.

    Notes
    -----
    Cost O(n log n): one stable sort.
    """
    chosen = np.flatnonzero(group != UNGROUPED)
    if not chosen.size:
        return []
    n_ranks = int(rank.max()) + 1
    key = group[chosen] * n_ranks + rank[chosen]
    order = np.argsort(key, kind="stable")
    key, rows = key[order], chosen[order]

    # A cell is what one rank has of one group.
    cell_first = run_starts(key)
    cell_count = np.diff(cell_first, append=key.size)
    cell_group = key[cell_first] // n_ranks
    group_first = run_starts(cell_group)
    n_cells = np.diff(group_first, append=cell_group.size)
    fewest = np.minimum.reduceat(cell_count, group_first)
    most = np.maximum.reduceat(cell_count, group_first)
    required = n_required[cell_group[group_first]]
    is_matched = (fewest == most) & (n_cells == required) & (n_cells > 1)

    found = []
    for size in np.unique(n_cells[is_matched]).tolist():
        own = np.flatnonzero(is_matched & (n_cells == size))
        cells = group_first[own][:, np.newaxis] + np.arange(size)
        # Row k of a group's block takes the k-th operation of each of its cells.
        block = np.repeat(np.arange(own.size), fewest[own])
        begin = np.cumsum(fewest[own]) - fewest[own]
        k = np.arange(block.size) - begin[block]
        found.append(rows[cell_first[cells[block]] + k[:, np.newaxis]])
    return found
