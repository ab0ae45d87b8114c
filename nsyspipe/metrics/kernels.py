"""What each kernel costs, by phase and name: beside communication, without it, and slowed by it."""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nsyspipe.attribution import UNKNOWN
from nsyspipe.metrics.slowdown import kernel_slowdown

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nsyspipe.attribution import ProcessOperations
    from nsyspipe.intervals import IntervalSet

    Int64 = NDArray[np.int64]

__all__ = ["costliest", "kernel_costs"]


def kernel_costs(
    operations: ProcessOperations,
    label: Int64,
    phase: NDArray[np.int8],
    comm: IntervalSet,
    n_phases: int,
) -> dict[str, Int64]:
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
    dict
        One row per (phase, label) that occurs, sorted so: ``phase`` (`n_phases` for none), ``label``,
        ``n_kernels``, ``total_ns``, ``min_ns``, ``max_ns``, ``overlapped_ns`` (the part of a compute
        kernel's time with communication under way; 0 for communication itself), and of kernels that
        ran under communication and have equal ones that did not: ``n_slowed``, ``slowed_ns`` and
        ``free_ns``, which are that number times either median.
    """
    duration = operations.kernel_end - operations.kernel_start
    overlapped = comm.lengths(operations.kernel_start, operations.kernel_end)
    overlapped[operations.is_comm] = 0
    n_labels = int(label.max()) + 1 if label.size else 1
    phase_code = np.where(phase < 0, n_phases, phase)
    key = phase_code * np.int64(n_labels) + label
    # A radix sort, if the keys are short enough.
    short = key.astype(np.uint16) if (n_phases + 1) * n_labels <= 2**16 else key
    order = np.argsort(short, kind="stable")
    sorted_key = key[order]
    is_first = np.ones(key.size, np.bool_)
    is_first[1:] = sorted_key[1:] != sorted_key[:-1]
    first = np.flatnonzero(is_first)
    keys, lengths = sorted_key[first], duration[order]
    columns = {
        "phase": keys // n_labels,
        "label": keys % n_labels,
        "n_kernels": np.diff(first, append=key.size),
        "total_ns": np.add.reduceat(lengths, first) if key.size else lengths,
        "min_ns": np.minimum.reduceat(lengths, first) if key.size else lengths,
        "max_ns": np.maximum.reduceat(lengths, first) if key.size else lengths,
        "overlapped_ns": np.add.reduceat(overlapped[order], first) if key.size else lengths,
    }
    return columns | _slowed(operations, duration, overlapped, key, keys)


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
    operations: ProcessOperations, duration: Int64, overlapped: Int64, key: Int64, keys: Int64
) -> dict[str, Int64]:
    compute = np.flatnonzero(~operations.is_comm)
    grid = operations.kernel_column("grid")
    compute = _around(compute, grid[compute] != UNKNOWN)
    found = kernel_slowdown(
        operations.kernel_column("name_id")[compute],
        grid[compute],
        operations.kernel_column("block")[compute],
        duration[compute],
        overlapped[compute],
    )
    row = np.searchsorted(keys, key[compute[found.kernel]])
    columns = {}
    for name, values in (
        ("n_slowed", np.ones(row.size, np.int64)),
        ("slowed_ns", found.covered_ns),
        ("free_ns", found.free_ns),
    ):
        columns[name] = np.zeros(keys.size, np.int64)
        np.add.at(columns[name], row, values)
    return columns


def _around(rows: Int64, is_sampled: NDArray[np.bool_]) -> Int64:
    """Return the part of some rows that holds all sampled ones."""
    sampled = np.flatnonzero(is_sampled)
    return rows[sampled[0] : sampled[-1] + 1] if sampled.size else rows[:0]
