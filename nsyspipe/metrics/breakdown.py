"""Where each step's wall time goes: a partition that sums exactly."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nsyspipe.device_time import DeviceTime, device_time
from nsyspipe.intervals import IntervalSet, union
from nsyspipe.schema import DTOD_KIND

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nsyspipe.attribution import ProcessOperations
    from nsyspipe.recorded import Recorded
    from nsyspipe.steps import Windows

    Int64 = NDArray[np.int64]

__all__ = ["breakdown", "started_in"]


def breakdown(
    operations: ProcessOperations,
    windows: Windows,
    backward: NDArray[np.bool_] | None,
    recorded: Recorded,
    device: DeviceTime | None = None,
) -> dict[str, Int64 | None]:
    r"""Split each window of one rank into disjoint parts.

    C, M, P are the unions of compute, comm and memory operations, clipped to the window whatever
    step they belong to; D the device-to-device copies of P, B the backward kernels of C::

        compute        = |C|                    overlap_compute  = |M n C|
        comm           = |M|                    overlap_backward = |M n B|
        exposed_comm   = |M \ C|                dtod             = |D|
        exposed_memory = |P \ (C u M)|          exposed_dtod     = |D \ (C u M)|
        idle           = wall - |C u M u P|

    Parameters
    ----------
    operations
        Device operations of the rank, report time, ns.
    windows
        Disjoint windows of the rank, in order.
    backward
        Flag per kernel: launched inside a backward range. None when the rank has no such range.
    recorded
        Figures that need a lacking fact are null: all of compute and comm without kernels or their
        names, DtoD copies without memcpys or their kinds, memory and idle without any of them.
    device
        The unions of the operations, when the caller has them already.

    Returns
    -------
    dict
        Columns of `schema.STEPS`, one int64 per window (ns, counts and bytes as named), None where
        nothing was recorded. Exactly:
        ``compute + exposed_comm + exposed_memory + idle = wall`` and
        ``exposed_comm + overlap_compute = comm``.

    Notes
    -----
    Cost O(n log n): one union of the compute kernels, all else is measured on the few.
    """
    device = device or device_time(operations)
    comm = operations.is_comm
    is_dtod = operations.copy_kind == DTOD_KIND

    def in_windows(covered: IntervalSet) -> Int64:
        return covered.lengths(windows.starts, windows.ends)

    def exposed(covered: IntervalSet) -> Int64:
        whole, under_compute, under_comm, under_both = map(in_windows, device.exposed(covered))
        return whole - under_compute - under_comm + under_both

    dtod_set = union(operations.copy_start[is_dtod], operations.copy_end[is_dtod])
    wall = windows.ends - windows.starts
    compute, comm_ns = in_windows(device.compute), in_windows(device.comm)
    overlap, exposed_memory = in_windows(device.hidden), exposed(device.memory)
    columns: dict[str, Int64 | None] = {
        "wall_ns": wall,
        "compute_ns": compute,
        "comm_ns": comm_ns,
        "exposed_comm_ns": comm_ns - overlap,
        "exposed_memory_ns": exposed_memory,
        "idle_ns": wall - compute - (comm_ns - overlap) - exposed_memory,
        "dtod_ns": in_windows(dtod_set),
        **_dtod_started(operations, is_dtod, windows),
        "exposed_dtod_ns": exposed(dtod_set),
        "overlap_compute_ns": overlap,
        "overlap_backward_ns": None,
        "n_collectives": _count_started(np.sort(operations.kernel_start[comm]), windows),
    }
    if backward is not None:
        kernels = backward & ~comm
        backward_set = union(operations.kernel_start[kernels], operations.kernel_end[kernels])
        columns["overlap_backward_ns"] = in_windows(device.comm.intersect(backward_set))
    for name in _unrecorded(recorded):
        columns[name] = None
    return columns


_NEED_COMM = (
    "compute_ns",
    "comm_ns",
    "exposed_comm_ns",
    "overlap_compute_ns",
    "overlap_backward_ns",
    "n_collectives",
)
_NEED_DTOD = ("dtod_ns", "dtod_bytes", "n_dtod", "exposed_dtod_ns")


def _unrecorded(recorded: Recorded) -> set[str]:
    """Return the figures that cannot be told from what the report holds."""
    names: set[str] = set()
    if not (recorded.kernels and recorded.names):
        names |= set(_NEED_COMM)
    if not recorded.kernels:
        names |= {"exposed_memory_ns", "idle_ns", "exposed_dtod_ns"}
    if not (recorded.memcpy and recorded.kinds):
        names |= set(_NEED_DTOD)
    if not recorded.sizes:
        names |= {"dtod_bytes"}
    if not (recorded.memcpy and recorded.memset):
        names |= {"exposed_memory_ns", "idle_ns"}
    return names


def _dtod_started(
    operations: ProcessOperations, is_dtod: NDArray[np.bool_], windows: Windows
) -> dict[str, Int64 | None]:
    found = started_in(operations.copy_start[is_dtod], operations.copy_bytes[is_dtod], windows)
    return {"dtod_bytes": found[1], "n_dtod": found[0]}


def started_in(starts: Int64, n_bytes: Int64, windows: Windows) -> tuple[Int64, Int64]:
    """Return number and bytes of the copies that start in each window."""
    order = np.argsort(starts, kind="stable")
    starts = starts[order]
    before = np.concatenate(([0], np.cumsum(n_bytes[order])))
    first, last = np.searchsorted(starts, windows.starts), np.searchsorted(starts, windows.ends)
    return last - first, before[last] - before[first]


def _count_started(sorted_starts: Int64, windows: Windows) -> Int64:
    return np.searchsorted(sorted_starts, windows.ends) - np.searchsorted(
        sorted_starts, windows.starts
    )
