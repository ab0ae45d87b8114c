"""What kernels of each name take in each window, kept small: which windows count is known only across ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nsyspipe.steps import Windows

    Int64 = NDArray[np.int64]
    Int32 = NDArray[np.int32]
    Flags = NDArray[np.bool_]

__all__ = ["InWindows", "WindowSums", "window_sums"]

# Sums kept of one rank, 20 bytes each. Above it, windows in the middle share theirs.
_MOST_SUMS = 2**18
_LEAST_GROUPS = 8


@dataclass(frozen=True)
class InWindows:
    """Number and total duration by row, and which rows are not known exactly."""

    n_kernels: Int64
    total_ns: Int64
    is_unknown: Flags


@dataclass(frozen=True)
class WindowSums:
    """Sums by (group of windows, row), only those that are not 0.

    Attributes
    ----------
    n_windows, n_rows
        How many there are.
    first_window
        First window of each group; mostly each window is a group.
    group, row, n_kernels, total_ns
        One value per sum.
    """

    n_windows: int
    n_rows: int
    first_window: Int64
    group: Int32
    row: Int32
    n_kernels: Int32
    total_ns: Int64

    def over(self, is_chosen: Flags) -> InWindows:
        """Return the sums over some windows; unknown for rows in a group of which only a part is chosen.

        Parameters
        ----------
        is_chosen
            Flag per window.
        """
        n_chosen = np.diff(np.append(0, np.cumsum(is_chosen))[self._edges])
        is_whole = n_chosen == np.diff(self._edges)
        number, total = np.zeros((2, self.n_rows), np.int64)
        counts = is_whole[self.group]
        np.add.at(number, self.row[counts], self.n_kernels[counts])
        np.add.at(total, self.row[counts], self.total_ns[counts])
        is_unknown = np.zeros(self.n_rows, np.bool_)
        is_unknown[self.row[((n_chosen > 0) & ~is_whole)[self.group]]] = True
        return InWindows(number, total, is_unknown)

    @property
    def _edges(self) -> Int64:
        return np.append(self.first_window, self.n_windows)


def window_sums(
    starts: Int64, durations: Int64, row: Int64, n_rows: int, windows: Windows
) -> tuple[WindowSums, Int64, Int64]:
    """Sum kernels by row in each window that they start in, and over all.

    A kernel counts in the window that holds its start, as `n_collectives` does, with its whole duration.

    Parameters
    ----------
    row
        What each kernel is summed into, below `n_rows`.

    Returns
    -------
    tuple
        The sums by window; number and total duration by row, wherever the kernels start.

    Notes
    -----
    At most 2^18 sums are kept. With more windows times rows, the windows at either end, where steps are
    skipped or cut off, have their own sums still, those between share theirs in runs of equal length.
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
