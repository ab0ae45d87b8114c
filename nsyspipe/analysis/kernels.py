"""What each kernel costs, by phase and name, over all and in each step: beside communication, without it, slowed by it."""

from __future__ import annotations

import collections
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nsyspipe.analysis.attribution import UNKNOWN
from nsyspipe.analysis.slowdown import kernel_slowdown
from nsyspipe.model.canonical import GRAPH_NAME_ID
from nsyspipe.model.names import PHASES, kernel_label

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from nsyspipe.analysis.attribution import ProcessOperations
    from nsyspipe.analysis.intervals import IntervalSet
    from nsyspipe.analysis.steps import Windows
    from nsyspipe.model.types import Flags, Int32, Int64


# What kernels of each name take in each window, kept small: which windows count is known only across ranks.


# Sums kept of one rank, 20 bytes each. Above it, windows in the middle share theirs.
_MOST_SUMS = 2**18
_LEAST_GROUPS = 8


@dataclass(frozen=True)
class WindowSums:
    """Sums by (group of windows, row), only those that are not 0."""

    # how many there are
    n_windows: int
    n_rows: int
    first_window: Int64  # first window of each group; mostly each window is a group
    # one value per sum
    group: Int32
    row: Int32
    n_kernels: Int32
    total_ns: Int64

    def over(self, is_chosen: Flags) -> tuple[Int64, Int64, Flags]:
        """Return number and total duration by row over some windows, and whether only a part of a row's group is chosen."""
        n_chosen = np.diff(np.append(0, np.cumsum(is_chosen))[self._edges])
        is_whole = n_chosen == np.diff(self._edges)
        number, total = np.zeros((2, self.n_rows), np.int64)
        counts = is_whole[self.group]
        np.add.at(number, self.row[counts], self.n_kernels[counts])
        np.add.at(total, self.row[counts], self.total_ns[counts])
        is_unknown = np.zeros(self.n_rows, np.bool_)
        is_unknown[self.row[((n_chosen > 0) & ~is_whole)[self.group]]] = True
        return number, total, is_unknown

    @property
    def _edges(self) -> Int64:
        return np.append(self.first_window, self.n_windows)


def window_sums(
    starts: Int64, durations: Int64, row: Int64, n_rows: int, windows: Windows
) -> tuple[WindowSums, Int64, Int64]:
    """Sum kernels by row in each window that they start in, and over all: number and total duration, wherever they start.

    A kernel counts in the window that holds its start, as `n_collectives` does, with its whole duration. At most 2^18 sums
    are kept. With more windows times rows, the windows at either end, where steps are skipped or cut off, have their own
    sums still, those between share theirs in runs of equal length.
    """
    first = _group_starts(len(windows), n_rows)
    edges = np.append(windows.starts[first], windows.ends[-1:])
    # The place before the first edge and the one after the last are outside of all windows.
    cell = np.searchsorted(edges, starts, side="right")
    cell *= n_rows
    cell += row
    size = (edges.size + 1) * n_rows
    number, total = np.bincount(cell, minlength=size), np.zeros(size, np.int64)
    np.add.at(total, cell, durations)
    inside = slice(n_rows, n_rows * (first.size + 1))
    kept = np.flatnonzero(number[inside])
    found = WindowSums(
        n_windows=len(windows),
        n_rows=n_rows,
        first_window=first,
        group=(kept // max(n_rows, 1)).astype(np.int32),
        row=(kept % max(n_rows, 1)).astype(np.int32),
        n_kernels=number[inside][kept].astype(np.int32),
        total_ns=total[inside][kept],
    )
    by_row = (-1, n_rows) if n_rows else (1, 0)
    return found, number.reshape(by_row).sum(axis=0), total.reshape(by_row).sum(axis=0)


def _group_starts(n_windows: int, n_rows: int) -> Int64:
    """Return the first window of each group."""
    most = max(_MOST_SUMS // max(n_rows, 1), _LEAST_GROUPS)
    if n_windows <= most:
        return np.arange(n_windows)
    at_edge = most // 4
    size = -(-(n_windows - 2 * at_edge) // (most - 2 * at_edge))
    return np.concatenate(
        (
            np.arange(at_edge),
            np.arange(at_edge, n_windows - at_edge, size),
            np.arange(n_windows - at_edge, n_windows),
        )
    )


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
    """Sum the kernels of one rank by phase and name, and by the window that they start in.

    One row per (phase, label) that occurs, sorted so: ``phase`` (`n_phases` for none), ``label``, ``n_kernels``,
    ``total_ns``, ``min_ns``, ``max_ns``, ``overlapped_ns`` (the part of a compute kernel's time with communication under
    way; 0 for communication itself), and of kernels that ran under communication and have equal ones that did not:
    ``n_slowed``, ``slowed_ns`` and ``free_ns``.
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
    name_id, grid, block = (operations.kernel_column(name, first, last)[compute - first] for name in _IDENTITY)
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


# Kernels by normalised name and phase, as a table.


_GRAPH, _NAMELESS = "CUDA graph", "(no name)"
# Ids are looked up in a table up to this size, above it by bisection.
_LARGEST_TABLE = 2**22


def kernels_table(
    operations: ProcessOperations,
    names: Mapping[int, str],
    phase: NDArray[np.int8],
    comm: IntervalSet,
    windows: Windows,
) -> tuple[pa.Table, WindowSums]:
    """Return `kernel_costs` with words: ``phase`` (null for none) and ``name``."""
    labels, label = kernel_labels(operations.kernel_column("name_id"), names)
    costs, by_window = kernel_costs(operations, label, phase, comm, n_phases=len(PHASES), windows=windows)
    words = pa.array([*PHASES, None], pa.string())
    table = pa.table(
        {
            "phase": words.take(pa.array(costs.pop("phase"))),
            "name": pa.array(labels, pa.string()).take(pa.array(costs.pop("label"))),
            **{name: pa.array(values) for name, values in costs.items()},
        }
    )
    return table, by_window


def kernel_labels(name_ids: Int64, names: Mapping[int, str]) -> tuple[list[str], Int64]:
    """Return the labels in order of the alphabet, and which one each kernel has."""
    by_id = {number: kernel_label(text) for number, text in names.items()}
    by_id[GRAPH_NAME_ID] = _GRAPH
    labels = sorted({*by_id.values(), _NAMELESS})
    codes = {text: code for code, text in enumerate(labels)}
    ids = np.array([UNKNOWN, *sorted(by_id)], np.int64)
    code = np.array([codes[_NAMELESS], *(codes[by_id[number]] for number in sorted(by_id))])
    if 0 <= ids[-1] < _LARGEST_TABLE and ids[1] == GRAPH_NAME_ID:
        table = np.full(int(ids[-1]) + 3, codes[_NAMELESS])
        table[ids[1:]] = code[1:]  # a graph's -1 is the last place; the one before is nobody's
        nobody = ids[-1] + 1
        inside = (name_ids >= GRAPH_NAME_ID) & (name_ids <= ids[-1])
        return labels, table[name_ids if inside.all() else np.where(inside, name_ids, nobody)]
    at = np.searchsorted(ids, name_ids, side="right") - 1
    return labels, np.where(ids[at] == name_ids, code[at], codes[_NAMELESS])
