"""What each kernel costs, by phase and name: beside communication, without it, and slowed by it."""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nsyspipe.metrics.slowdown import kernel_slowdown
from nsyspipe.metrics.window_sums import window_sums

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nsyspipe.attribution import ProcessOperations
    from nsyspipe.intervals import IntervalSet
    from nsyspipe.metrics.window_sums import WindowSums
    from nsyspipe.steps import Windows

    Int64 = NDArray[np.int64]

__all__ = ["costliest", "kernel_costs"]

_IDENTITY = ("name_id", "grid", "block")


def kernel_costs(
    operations: ProcessOperations,
    label: Int64,
    phase: NDArray[np.int8],
    comm: IntervalSet,
    *,
    n_phases: int,
    windows: Windows,
) -> tuple[dict[str, Int64], WindowSums]:
    """Sum the kernels of one rank by phase and name.

    Parameters
    ----------
    label
        Code of each kernel's name, from 0; equal for names that are to be one.
    phase
        Phase of each kernel's launch, negative for none; `n_phases` are known.
    comm
        When communication was under way.

    Returns
    -------
    tuple
        The costs, and number and time of each row's kernels by the window that they start in.
        One row per (phase, label) that occurs, sorted so: ``phase`` (`n_phases` for none), ``label``,
        ``n_kernels``, ``total_ns``, ``min_ns``, ``max_ns``, ``overlapped_ns`` (the part of a compute
        kernel's time with communication under way; 0 for communication itself), and of kernels that
        ran under communication and have equal ones that did not: ``n_slowed``, ``slowed_ns`` and
        ``free_ns``, which are that number times either median.
    """
    duration = operations.kernel_end - operations.kernel_start
    covered_rows, covered = _covered(operations, comm)
    n_labels = int(label.max()) + 1 if label.size else 1
    first_of_phase = np.arange(n_phases + 1) * n_labels
    key: Int64 = label + first_of_phase[phase]  # no phase is -1, the last place
    size = (n_phases + 1) * n_labels
    kept = np.flatnonzero(np.bincount(key, minlength=size))
    n_rows, row_of_key = kept.size, np.zeros(size, np.int64)
    row_of_key[kept] = np.arange(n_rows)
    row = row_of_key[key]
    by_window, number, total = window_sums(operations.kernel_start, duration, row, n_rows, windows)
    shortest, longest = np.full(n_rows, np.iinfo(np.int64).max), np.zeros(n_rows, np.int64)
    overlapped = np.zeros(n_rows, np.int64)
    np.minimum.at(shortest, row, duration)
    np.maximum.at(longest, row, duration)
    np.add.at(overlapped, row[covered_rows], covered)
    costs = {
        "phase": kept // n_labels,
        "label": kept % n_labels,
        "n_kernels": number,
        "total_ns": total,
        "min_ns": shortest,
        "max_ns": longest,
        "overlapped_ns": overlapped,
        **_slowed(operations, (covered_rows, covered), duration, row=row, n_rows=n_rows),
    }
    return costs, by_window


def _covered(operations: ProcessOperations, comm: IntervalSet) -> tuple[Int64, Int64]:
    """Return which compute kernels run while communication does, in order, and for how long of their time."""
    if not len(comm):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    # Without communication between them, compute kernels mostly stand in order, which is cheap to look up.
    rows = np.flatnonzero(~operations.is_comm)
    starts, ends = operations.kernel_start[rows], operations.kernel_end[rows]
    before = comm.counts_up_to(starts)  # intervals that began by the kernel's start
    # Either the last of them is still under way, or another begins before the kernel ends.
    last_end = np.append(np.iinfo(np.int64).min, comm.ends)[before]
    next_start = np.append(comm.starts, np.iinfo(np.int64).max)[before]
    hit = np.flatnonzero((last_end > starts) | (next_start < ends))
    return rows[hit], comm.lengths(starts[hit], ends[hit])


def costliest(kernels: pa.Table, n_kept: int) -> pa.Table:
    """Keep of `schema.KERNEL_COSTS` the names with most time of each (rank, phase), in the table's order."""
    order = pc.sort_indices(
        kernels,
        [
            ("rank", "ascending"),
            ("phase", "ascending"),
            ("total_ns", "descending"),
            ("name", "ascending"),
        ],
    ).to_numpy()
    owner = list(zip(kernels["rank"].to_pylist(), kernels["phase"].to_pylist(), strict=True))
    kept, seen = [], collections.Counter[tuple[int, str | None]]()
    for row in order.tolist():
        seen[owner[row]] += 1
        if seen[owner[row]] <= n_kept:
            kept.append(row)
    return kernels.take(pa.array(sorted(kept), pa.int64()))


def _slowed(
    operations: ProcessOperations,
    covered: tuple[Int64, Int64],
    duration: Int64,
    *,
    row: Int64,
    n_rows: int,
) -> dict[str, Int64]:
    """Sum by row what equal kernels take under communication and without."""
    columns = {name: np.zeros(n_rows, np.int64) for name in ("n_slowed", "slowed_ns", "free_ns")}
    first, last = operations.sampled
    compute = np.flatnonzero(~operations.is_comm[first:last]) + first
    if not compute.size:
        return columns
    beside = np.zeros(last - first, np.int64)
    under, lengths = covered
    inside = slice(*np.searchsorted(under, (first, last)))
    beside[under[inside] - first] = lengths[inside]
    name_id, grid, block = (
        operations.kernel_column(name, first, last)[compute - first] for name in _IDENTITY
    )
    found = kernel_slowdown(
        name_id,
        grid,
        block,
        duration[compute],
        beside[compute - first],
    )
    at = row[compute[found.kernel]]
    np.add.at(columns["n_slowed"], at, 1)
    np.add.at(columns["slowed_ns"], at, found.covered_ns)
    np.add.at(columns["free_ns"], at, found.free_ns)
    return columns
