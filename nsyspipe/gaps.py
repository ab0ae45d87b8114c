"""When a rank's devices do nothing, and which operation ends each such gap."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nsyspipe.attribution import NEVER

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nsyspipe.attribution import ProcessOperations

    Int64 = NDArray[np.int64]

__all__ = ["Gaps", "idle_gaps"]

# No launch takes longer to reach an idle device: a larger least time means that it never was idle.
_LONGEST_LATENCY_NS = 20_000


@dataclass(frozen=True)
class Gaps:
    """The gaps between operations of one rank, in order of time, report time, ns.

    Attributes
    ----------
    starts, ends
        Where the last operation before ended, and where the next one starts.
    launch
        Launch of the operation that explains the gap, on the device's clock; `attribution.NEVER` where it has none.
    operation
        Which operation that is: kernels in order of launch, then copies in order of launch. It is the one that ends
        the gap; where that is a copy of unified memory, which nothing launches, the next to start that is none.
    latency_ns
        The shortest time from a launch to the start of its kernel on this rank; at least 0, at most 20 us.
    """

    starts: Int64
    ends: Int64
    launch: Int64
    operation: Int64
    latency_ns: int

    def __len__(self) -> int:
        return int(self.starts.size)


def idle_gaps(
    operations: ProcessOperations, offset_ns: int = 0, of_kernels_ns: Int64 | None = None
) -> Gaps:
    """Find all gaps; of operations that start together a kernel ends the gap, then the first launched.

    Parameters
    ----------
    offset_ns
        How much later the device's clock is than the host's: launches are put on the device's clock.
    of_kernels_ns
        The same of each kernel's own device, where a process uses several.
    """
    starts = np.concatenate((operations.kernel_start, operations.copy_start))
    ends = np.concatenate((operations.kernel_end, operations.copy_end))
    order = np.argsort(starts, kind="stable")  # nearly sorted, which makes this cheap
    starts = starts[order]
    reached = np.maximum.accumulate(ends[order])
    before = np.flatnonzero(starts[1:] > reached[:-1])
    n_kernels = operations.kernel_start.size
    ending = order[_launchable_from(before + 1, order, operations)]
    is_kernel = ending < n_kernels
    launch = np.empty(ending.size, np.int64)
    launch[is_kernel] = operations.kernel_launch[ending[is_kernel]]
    launch[~is_kernel] = operations.copy_launch[ending[~is_kernel] - n_kernels]
    offset = np.full(ending.size, offset_ns)
    if of_kernels_ns is not None:
        offset[is_kernel] = of_kernels_ns[ending[is_kernel]]
    launch = np.where(launch == NEVER, NEVER, launch + offset)
    latency = _latency(operations, offset_ns if of_kernels_ns is None else of_kernels_ns)
    return Gaps(reached[before], starts[before + 1], launch, ending, latency)


def _launchable_from(places: Int64, order: Int64, operations: ProcessOperations) -> Int64:
    """Return the first place from each on that holds an operation which something launched; itself where none does."""
    is_unified = np.concatenate(
        (np.zeros(operations.kernel_start.size, np.bool_), operations.is_unified)
    )[order]
    if not is_unified.any():
        return places
    launchable = np.append(np.flatnonzero(~is_unified), order.size)
    found = launchable[np.searchsorted(launchable, places)]
    return np.where(found < order.size, found, places)


def _latency(operations: ProcessOperations, offset_ns: int | Int64) -> int:
    n_launched = operations.n_launched
    if not n_launched:
        return 0
    times = operations.kernel_start[:n_launched] - operations.kernel_launch[:n_launched]
    own = offset_ns if isinstance(offset_ns, int) else offset_ns[:n_launched]
    return min(max(int((times - own).min()), 0), _LONGEST_LATENCY_NS)
