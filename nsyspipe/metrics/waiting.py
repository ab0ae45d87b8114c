"""Waiting told apart from transferring: arrivals, skew and transfer of matched collectives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Int64 = NDArray[np.int64]
    Flags = NDArray[np.bool_]

__all__ = ["NOBODY", "Waiting", "waiting"]

NOBODY = -1


@dataclass(frozen=True)
class Waiting:
    """One value per communication operation, aligned time; zero where it is not matched.

    Attributes
    ----------
    is_matched
        Whether the operation has its counterparts on the other ranks.
    collective_id
        Number of its collective; -1 unmatched.
    n_ranks
        Ranks that take part.
    first_start_ns, last_start_ns
        When the first and the last rank arrived.
    arrival_skew_ns
        last start - first start.
    wait_ns
        last start - own start.
    transfer_ns
        own end - last start, at least 0.
    late_by_ns
        For the rank that arrived last (alone): last start - second-last start; else 0.
    is_significant
        The skew exceeds the larger clock error of the first and the last rank.
    is_late_significant
        The same of ``late_by_ns`` and the errors of the last rank and the second-last.
    n_negative
        Operations that ended before the last rank arrived: their transfer counts as 0.
    """

    is_matched: Flags
    collective_id: Int64
    n_ranks: Int64
    first_start_ns: Int64
    last_start_ns: Int64
    arrival_skew_ns: Int64
    wait_ns: Int64
    transfer_ns: Int64
    late_by_ns: Int64
    is_significant: Flags
    is_late_significant: Flags
    n_negative: int


def waiting(matched: Sequence[Int64], starts: Int64, ends: Int64, clock_error: Int64) -> Waiting:
    """Measure matched collectives.

    Parameters
    ----------
    matched
        Matrices of operations, one collective per row, one column per rank.
    starts, ends
        Of each operation, aligned time, ns.
    clock_error
        Of the clock of each operation's report, ns.
    """
    n_rows = starts.size
    columns = {name: np.zeros(n_rows, np.int64) for name in _COLUMNS}
    is_matched, significant, late_significant = (np.zeros(n_rows, np.bool_) for _ in range(3))
    collective_id = np.full(n_rows, NOBODY)
    n_before = 0
    for rows in matched:
        own_start = starts[rows]
        order = np.argsort(own_start, axis=1, kind="stable")
        first, last = _at(own_start, order, 0), _at(own_start, order, -1)
        skew = last - first
        late_by = last - _at(own_start, order, -2)
        error = clock_error[rows]
        last_error = _at(error, order, -1)
        is_last = np.zeros(rows.shape, np.bool_)
        np.put_along_axis(is_last, order[:, -1:], (late_by > 0)[:, np.newaxis], axis=1)
        transfer = ends[rows] - last[:, np.newaxis]

        is_matched[rows] = True
        collective_id[rows] = n_before + np.arange(len(rows))[:, np.newaxis]
        n_before += len(rows)
        columns["n_ranks"][rows] = rows.shape[1]
        columns["first_start_ns"][rows] = first[:, np.newaxis]
        columns["last_start_ns"][rows] = last[:, np.newaxis]
        columns["arrival_skew_ns"][rows] = skew[:, np.newaxis]
        columns["wait_ns"][rows] = last[:, np.newaxis] - own_start
        columns["transfer_ns"][rows] = transfer
        columns["late_by_ns"][rows] = np.where(is_last, late_by[:, np.newaxis], 0)
        of_skew = np.maximum(_at(error, order, 0), last_error)
        significant[rows] = (skew > of_skew)[:, np.newaxis]
        of_late = np.maximum(_at(error, order, -2), last_error)
        late_significant[rows] = is_last & (late_by > of_late)[:, np.newaxis]
    negative = columns["transfer_ns"] < 0
    columns["transfer_ns"][negative] = 0
    return Waiting(
        is_matched=is_matched,
        collective_id=collective_id,
        is_significant=significant,
        is_late_significant=late_significant,
        n_negative=int(np.count_nonzero(negative)),
        **columns,
    )


_COLUMNS = (
    "n_ranks",
    "first_start_ns",
    "last_start_ns",
    "arrival_skew_ns",
    "wait_ns",
    "transfer_ns",
    "late_by_ns",
)


def _at(values: Int64, order: Int64, place: int) -> Int64:
    """Return for each collective the value of the rank that arrived at a place in the order."""
    found: Int64 = np.take_along_axis(values, order[:, place, np.newaxis], axis=1)[:, 0]
    return found
