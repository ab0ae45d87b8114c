"""Which launch an operation came from, and which host ranges that launch lies in.

PyTorch launches the backward pass from the autograd thread, so an operation belongs to the range
that contains its launch in time, whatever thread of the process made it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Int64 = NDArray[np.int64]
    Flags = NDArray[np.bool_]

__all__ = ["NEVER", "ProcessOperations", "Slices", "launch_times", "operations_of"]

# The launch time of an operation without a launch: after all others.
NEVER = np.iinfo(np.int64).max

# A correlation id's slot is looked up in a table unless ids are so sparse that it would be this
# many times longer than the rows.
_SPARSE = 8


@dataclass(frozen=True)
class ProcessOperations:
    """The device operations of one process, as numpy columns; kernels and copies each in order of launch.

    Attributes
    ----------
    kernel_start, kernel_end, kernel_launch, is_comm
        Compute and comm operations; those without a launch come last, with `NEVER`.
    copy_start, copy_end, copy_launch, copy_kind, copy_bytes
        Memcpys and memsets; an unknown kind is -1, unknown bytes are 0.
    n_launched
        Kernels with a launch.
    """

    kernel_start: Int64
    kernel_end: Int64
    kernel_launch: Int64
    is_comm: Flags
    copy_start: Int64
    copy_end: Int64
    copy_launch: Int64
    copy_kind: Int64
    copy_bytes: Int64
    n_launched: int

    @property
    def n_without_launch(self) -> int:
        """Operations of any kind without a launch."""
        n_copies = int(np.count_nonzero(self.copy_launch == NEVER))
        return self.kernel_start.size - self.n_launched + n_copies

    @property
    def n_operations(self) -> int:
        """Operations of any kind."""
        return self.kernel_start.size + self.copy_start.size

    @property
    def span(self) -> tuple[int, int]:
        """First start and last end of any operation, report time."""
        starts = [int(a.min()) for a in (self.kernel_start, self.copy_start) if a.size]
        ends = [int(a.max()) for a in (self.kernel_end, self.copy_end) if a.size]
        return min(starts), max(ends)

    def kernels_launched_in(self, starts: Int64, ends: Int64) -> Slices:
        """Return, for each host range, the slice of kernels that it launched."""
        launches = self.kernel_launch[: self.n_launched]
        return Slices(np.searchsorted(launches, starts), np.searchsorted(launches, ends))


@dataclass(frozen=True)
class Slices:
    """Slices ``[first, last)`` of a sorted column, one per range."""

    first: Int64
    last: Int64

    @property
    def counts(self) -> Int64:
        """Number of elements of each slice."""
        return self.last - self.first

    def mask(self, size: int) -> Flags:
        """Return a flag per element: whether it lies in any slice."""
        steps = np.zeros(size + 1, np.int32)
        np.add.at(steps, self.first, 1)
        np.add.at(steps, self.last, -1)
        return np.cumsum(steps[:-1], out=steps[:-1]) > 0

    def minimum(self, values: Int64) -> Int64:
        """Return the smallest value of each slice; no slice may be empty."""
        padded = np.append(values, NEVER)
        edges = np.stack((self.first, self.last), axis=1).ravel()
        return np.minimum.reduceat(padded, edges)[::2]


def launch_times(process: Int64, correlation: pa.ChunkedArray, launches: pa.Table | None) -> Int64:
    """Return the host start of each operation's launch; `NEVER` where there is none.

    An operation's launch is the API call of the same process with the same correlation id (it is
    unique per process only); of several the earliest.

    Parameters
    ----------
    process, correlation
        Process and correlation id (null: none) of each operation.
    launches
        `schema.LAUNCHES`, or None when API calls were not recorded.
    """
    found = np.full(process.size, NEVER)
    if launches is None or not launches.num_rows or not process.size:
        return found
    has_id = (
        pc.is_valid(correlation).to_numpy()
        if correlation.null_count
        else np.ones(process.size, np.bool_)
    )
    ids = (pc.fill_null(correlation, 0) if correlation.null_count else correlation).to_numpy()
    caller = launches["process_id"].to_numpy()
    times, calls = launches["start_ns"].to_numpy(), launches["correlation_id"].to_numpy()
    if (process == process[0]).all() and (caller == process[0]).all():
        found = _join(ids, calls, times)
    else:
        for one in np.unique(process):
            mine, theirs = process == one, caller == one
            found[mine] = _join(ids[mine], calls[theirs], times[theirs])
    return np.where(has_id, found, NEVER) if correlation.null_count else found


def _join(ids: Int64, calls: Int64, times: Int64) -> Int64:
    """Return the earliest time of each id among the calls, `NEVER` where it is missing."""
    if not calls.size:
        return np.full(ids.size, NEVER)
    lowest, highest = int(calls.min()), int(calls.max())
    if highest - lowest >= _SPARSE * (calls.size + ids.size):
        return _join_sparse(ids, calls, times)
    slots = calls - lowest
    table = np.full(highest - lowest + 1, NEVER)
    table[slots] = times
    if (table[slots] != times).any():  # an id called more than once
        np.minimum.at(table, slots, times)
    inside = (ids >= lowest) & (ids <= highest)
    if inside.all():
        return table[ids - lowest]
    return np.where(inside, table[np.where(inside, ids - lowest, 0)], NEVER)


def _join_sparse(ids: Int64, calls: Int64, times: Int64) -> Int64:
    order = np.lexsort((times, calls))
    calls, times = calls[order], times[order]
    at = np.minimum(np.searchsorted(calls, ids), calls.size - 1)
    return np.where(calls[at] == ids, times[at], NEVER)


def operations_of(
    kernels: pa.Table, kernel_launch: Int64, copies: pa.Table, copy_launch: Int64
) -> ProcessOperations:
    """Bring one process's operations into order of launch.

    Parameters
    ----------
    kernels, copies
        `schema.KERNELS` and `schema.COPIES` of one process.
    kernel_launch, copy_launch
        Their launch times, as `launch_times` gives them.
    """
    order = np.argsort(kernel_launch, kind="stable")
    launch = kernel_launch[order]
    copy_order = np.argsort(copy_launch, kind="stable")
    return ProcessOperations(
        kernel_start=kernels["start_ns"].to_numpy()[order],
        kernel_end=kernels["end_ns"].to_numpy()[order],
        kernel_launch=launch,
        is_comm=kernels["is_comm"].to_numpy()[order],
        copy_start=copies["start_ns"].to_numpy()[copy_order],
        copy_end=copies["end_ns"].to_numpy()[copy_order],
        copy_launch=copy_launch[copy_order],
        copy_kind=pc.fill_null(copies["copy_kind"], -1).to_numpy()[copy_order],
        copy_bytes=pc.fill_null(copies["bytes"], 0).to_numpy()[copy_order],
        n_launched=int(np.searchsorted(launch, NEVER)),
    )
