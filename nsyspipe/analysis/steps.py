"""Which steps a run's figures rest on, and each step's window on the device: up to the start of the next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.compute as pc

from nsyspipe.analysis.attribution import NEVER
from nsyspipe.analysis.intervals import Slices
from nsyspipe.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from nsyspipe.analysis.attribution import ProcessOperations
    from nsyspipe.analysis.intervals import IntervalSet
    from nsyspipe.analysis.step_families import Members
    from nsyspipe.model.types import Flags, Int64


# Which steps a run's figures rest on.


@dataclass(frozen=True)
class Selection:
    """The summary steps of a run, in order of time."""

    steps: Int64
    skipped: Int64  # complete steps that were dropped at the start
    is_fallback: bool  # true when no step is complete on every rank, so that cut-off steps are used


def select_steps(
    step: Int64, starts: Int64, is_complete: NDArray[np.bool_], n_ranks: int, skip_first: int | None
) -> Selection:
    """Choose the steps that are complete on every rank, less the skipped; if none is, all that every rank has, none skipped.

    There is one value per (rank, step) with a window. `skip_first` is how many complete steps to drop at the start; None
    drops the first (it holds the ranks' different profiler starts) when another one remains.

    Raises
    ------
    OptionError
        If nothing would be left.
    """
    numbers, index = np.unique(step, return_inverse=True)
    first_start = np.full(numbers.size, np.iinfo(np.int64).max)
    np.minimum.at(first_start, index, starts)
    order = np.lexsort((numbers, first_start))
    n_windows = np.bincount(index, minlength=numbers.size)
    n_complete = np.bincount(index[is_complete], minlength=numbers.size)
    complete = numbers[order][n_complete[order] == n_ranks]
    if not complete.size:
        return Selection(numbers[order][n_windows[order] == n_ranks], complete, is_fallback=True)
    n_skipped = min(1, complete.size - 1) if skip_first is None else skip_first
    if n_skipped >= complete.size:
        raise OptionError(
            f"--skip-first {n_skipped}",
            f"leaves no step: {complete.size} are complete on every rank",
            fix=f"--skip-first {complete.size - 1}, or capture more steps",
        )
    return Selection(complete[n_skipped:], complete[:n_skipped], is_fallback=False)


def check_steps(all_steps: pa.Table, wanted: tuple[int, int]) -> None:
    """Raise an OptionError, with the steps that there are, unless some rank has one of those wanted, first to last."""
    first, last = wanted
    numbers = all_steps["step"].to_numpy()
    if ((numbers >= first) & (numbers <= last)).any():
        return
    known = (int(numbers.min()), int(numbers.max())) if numbers.size else None
    raise OptionError(
        f"steps {first}:{last}",
        "no rank has such a step",
        found=f"steps {known[0]} to {known[1]}" if known else "no steps at all",
        fix=f"--perfetto-steps {known[0]}:{known[1]}" if known else None,
    )


@dataclass(frozen=True)
class Windows:
    """The step windows of one rank: they tile time, neither overlapping nor leaving a gap."""

    member: Int64  # index of each window's step range among the rank's members
    # report time, ns
    starts: Int64
    ends: Int64
    # false for the last window, and for a first one whose step began before the capture
    is_complete: Flags

    def __len__(self) -> int:
        return int(self.starts.size)

    def covered(self, times: IntervalSet) -> Int64:
        """Return how much of each window some times cover, ns."""
        return times.lengths(self.starts, self.ends)

    def slices(self, times: Int64) -> Slices:
        """Return which of some sorted times lie in each window."""
        return Slices.within(times, self.starts, self.ends)


def step_numbers(in_texts: Sequence[pa.ChunkedArray]) -> list[Int64]:
    """Return each rank's step numbers by member: the text's one integer if that works on every rank, else order."""
    if all(not one.null_count and len(pc.unique(one)) == len(one) for one in in_texts):
        return [one.to_numpy() for one in in_texts]
    return [np.arange(len(one)) for one in in_texts]


def capture_window(operations: ProcessOperations) -> Windows:
    """Return the whole capture of a rank as one window, for a run without steps."""
    first, last = operations.span
    return Windows(np.array([0]), np.array([first]), np.array([last]), np.array([False]))


def step_windows(members: Members, operations: ProcessOperations) -> Windows:
    """Turn step ranges of the host into windows of the device.

    A window starts at the start of the first compute or comm kernel launched inside its range, by
    any thread, and ends where the next window starts; the last ends with the last operation
    launched inside its range. A range without kernels, or whose first kernel does not start after
    the start of the window before it, has none. On a rank without any launch the ranges' own host
    times are the windows.
    """
    if not members.starts.size:
        return _windows(np.empty(0, np.int64), np.empty(0, np.int64), 0)
    if not operations.n_launched and not (operations.copy_launch != NEVER).any():
        return _windows(np.arange(members.starts.size), members.starts, int(members.ends[-1]))
    inside = operations.kernels_launched_in(members.starts, members.ends)
    with_kernels = np.flatnonzero(inside.counts)
    if not with_kernels.size:
        return _windows(with_kernels, with_kernels, 0)
    slices = Slices(inside.first[with_kernels], inside.last[with_kernels])
    first_start = slices.minimum(operations.kernel_start[: operations.n_launched])
    later = np.ones(first_start.size, np.bool_)
    later[1:] = first_start[1:] > np.maximum.accumulate(first_start)[:-1]
    member, starts = with_kernels[later], first_start[later]
    return _windows(member, starts, _last_end(members, int(member[-1]), operations, inside))


def _last_end(members: Members, last: int, operations: ProcessOperations, inside: Slices) -> int:
    """Return the end of the last operation of any kind that belongs to a step range."""
    end = int(operations.kernel_end[inside.first[last] : inside.last[last]].max())
    first_copy, last_copy = np.searchsorted(operations.copy_launch, (members.starts[last], members.ends[last]))
    if last_copy > first_copy:
        end = max(end, int(operations.copy_end[first_copy:last_copy].max()))
    return end


def _windows(member: Int64, starts: Int64, last_end: int) -> Windows:
    ends = np.append(starts[1:], last_end)[: starts.size]
    is_complete = np.ones(starts.size, np.bool_)
    is_complete[-1:] = False
    is_complete[:1] &= member[:1] == 0
    return Windows(member, starts, ends, is_complete)
