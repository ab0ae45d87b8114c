"""Which operations of different ranks are one collective, and what it says: arrivals, waiting, transfer, bandwidth."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nsyspipe.analysis.intervals import least_of, run_starts, sums_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsyspipe.model.table import Flags, Float64, Int64


UNGROUPED = -1


def match(group: Int64, rank: Int64, n_required: Int64) -> list[Int64]:
    """Match the k-th operation of a group on each of its ranks with the k-th on the others, as the same collective.

    A group (a communicator within one step) with fewer ranks than `n_required` of it, with counts that differ between ranks,
    or of a single rank, is not matched; `UNGROUPED` is left out. Operations of one rank stand in order of start. Returns one
    matrix per number of ranks, smallest first: a row per collective (in order of group, then k), a column per rank in
    ascending order, holding indices of operations. Cost O(n log n): one stable sort.
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

    matched = []
    for size in np.unique(n_cells[is_matched]).tolist():
        own = np.flatnonzero(is_matched & (n_cells == size))
        cells = group_first[own][:, np.newaxis] + np.arange(size)
        # Row k of a group's block takes the k-th operation of each of its cells.
        block = np.repeat(np.arange(own.size), fewest[own])
        begin = np.cumsum(fewest[own]) - fewest[own]
        k = np.arange(block.size) - begin[block]
        matched.append(rows[cell_first[cells[block]] + k[:, np.newaxis]])
    return matched


PER_RANK = ("all_gather", "reduce_scatter", "all_to_all")  # NCCL reports one rank's part of these


def whole_message(collective: str, reported_bytes: Int64, n_ranks: Int64) -> Int64:
    """Return the size of the whole array that a collective moves, as nccl-tests counts; `n_ranks` is the communicator's."""
    return reported_bytes * n_ranks if collective in PER_RANK else reported_bytes


def bus_factor(collective: str, n_ranks: Float64) -> Float64:
    """Return busbw / algbw: 2(n-1)/n for all_reduce, (n-1)/n for gather, scatter, all-to-all, else 1."""
    part = (n_ranks - 1) / n_ranks
    if collective == "all_reduce":
        return 2 * part
    return part if collective in PER_RANK else np.ones_like(part)


NOBODY = -1


@dataclass(frozen=True)
class Waiting:
    """One value per communication operation, aligned time; zero where it is not matched."""

    is_matched: Flags  # whether the operation has its counterparts on the other ranks
    collective_id: Int64  # number of its collective; -1 unmatched
    n_ranks: Int64  # ranks that take part
    first_start_ns: Int64  # when the first and the last rank arrived
    last_start_ns: Int64
    arrival_skew_ns: Int64  # the other columns are as `schema.COLLECTIVES` has them
    wait_ns: Int64
    transfer_ns: Int64
    late_by_ns: Int64
    held_up_ns: Int64
    is_significant: Flags  # of ranks that tie the largest clock error counts
    is_late_significant: Flags


def waiting(matched: Sequence[Int64], starts: Int64, ends: Int64, clock_error: Int64) -> Waiting:
    """Measure matched collectives, one per row of `matched`: times are aligned, `clock_error` is of each operation's report, ns."""
    columns: dict[str, Any] = {
        one.name: np.zeros(starts.size, np.bool_ if one.name.startswith("is_") else np.int64) for one in fields(Waiting)
    }
    columns["collective_id"][:] = NOBODY
    n_before = 0
    for rows in matched:
        own_start, own_end = starts[rows], ends[rows]
        ordered = np.sort(own_start, axis=1)
        first, second_last, last = (ordered[:, [at]] for at in (0, -2, -1))
        # The clock error of the rank that arrived then; of several the largest.
        first_error, second_error, last_error = (
            np.where(own_start == time, clock_error[rows], 0).max(axis=1, keepdims=True)
            for time in (first, second_last, last)
        )
        is_last, late_by, wait = own_start == last, last - second_last, last - own_start
        is_skewed = last - first > np.maximum(first_error, last_error)
        values = {
            "is_matched": True, "collective_id": n_before + np.arange(len(rows))[:, np.newaxis], "n_ranks": rows.shape[1],
            "first_start_ns": first, "last_start_ns": last, "arrival_skew_ns": last - first, "wait_ns": wait,
            "transfer_ns": np.maximum(own_end - last, 0), "late_by_ns": np.where(is_last, late_by, 0),
            "is_significant": is_skewed,
            "is_late_significant": is_last & (late_by > np.maximum(second_error, last_error)),
        }  # fmt: skip
        for name, value in values.items():
            columns[name][rows] = value
        n_before += len(rows)
        waited = waited_until(own_start, own_end, wait) - own_start
        first_of_last = rows[np.arange(len(rows)), is_last.argmax(axis=1)]
        columns["held_up_ns"][first_of_last] = np.where(is_skewed[:, 0], waited.max(axis=1), 0)
    return Waiting(**columns)


def waited_until(starts: Int64, ends: Int64, wait_ns: Int64) -> Int64:
    """Return until when an operation waits, from its start on: ``min(last start, own end)``, which is what waiting is."""
    until: Int64 = np.minimum(ends, starts + wait_ns)
    return until


def held_up_by_step(collectives: pa.Table, steps: pa.Table) -> pa.Table:
    """Sum by step and rank how long others waited for it, the largest wait of each collective; of `schema.COLLECTIVES`.

    Operations of pairs (send_recv) are left out: a stage of a pipeline waits by design. Collectives of several
    communicators may be waited for at once, so a step counts at most its own time, shared out in proportion.

    Returns ``step``, ``rank``, ``is_alone`` (whether it was the only one to come last) and ``held_up_ns`` above 0, sorted.
    """
    in_pairs = pc.equal(collectives["collective"].cast(pa.string()), "send_recv")
    counts = pc.and_not(pc.greater(collectives["held_up_ns"], 0), in_pairs)  # a null does not
    rows = collectives.select(["step", "rank", "late_by_ns", "held_up_ns"]).filter(counts)
    rows = rows.append_column("is_alone", pc.greater(rows["late_by_ns"], 0))
    keys = ["step", "rank", "is_alone"]
    sums = rows.group_by(keys).aggregate([("held_up_ns", "sum")]).sort_by([(key, "ascending") for key in keys])
    held_up = sums["held_up_ns_sum"].to_numpy()
    numbers, step = np.unique(sums["step"].to_numpy(), return_inverse=True)
    total = sums_of(step, held_up, numbers.size)
    own = steps.filter(pc.is_in(steps["step"], value_set=pa.array(numbers)))
    most = least_of(np.searchsorted(numbers, own["step"].to_numpy()), own["wall_ns"].to_numpy(), numbers.size)
    ratio = np.minimum(most / np.maximum(total, 1), 1.0)
    shared = np.where((total > most)[step], (held_up * ratio[step]).astype(np.int64), held_up)
    return pa.table({**{key: sums[key] for key in keys}, "held_up_ns": shared})
