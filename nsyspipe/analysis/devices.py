"""Which devices of a process are ranks, and what ran on each of them."""

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from msgspec.structs import replace

from nsyspipe.analysis.attribution import (
    UNKNOWN,
    ProcessOperations,
    by_process,
    filled,
    launch_times,
    operations_of,
)
from nsyspipe.model.table import Flags, Int64

# A device with less than one in so many of its process's kernels, and of their time, is a stray
# one: a context that a library opened, or the other end of peer copies.
ONE_IN_SO_MANY: Final = 100


class RankDevice(Struct, frozen=True):
    """The one device, of several that a process used, whose operations are a rank's."""

    device_id: int
    holds_unknown: bool  # whether operations whose device was not recorded count here

    def holds(self, device_ids: Int64) -> Flags:
        """Tell which operations are this device's, by their device ids (`UNKNOWN` for null)."""
        is_own: Flags = device_ids == self.device_id
        return is_own | (device_ids == UNKNOWN) if self.holds_unknown else is_own

    def rows_of(self, operations: pa.Table) -> pa.Table:
        """Return the rows of this device."""
        return operations.filter(pa.array(self.holds(filled(operations["device_id"]))))


class RankOperations(Struct, frozen=True):
    """The operations of one rank, and where among those of its process they stand."""

    operations: ProcessOperations
    device: RankDevice | None  # None where the process used one device
    is_of_rank: (
        Flags  # of the kernels of `ProcessShare.whole`, in its order: whether they are of this rank
    )


class StrayDevice(Struct, frozen=True):
    """A device that a process barely used: it is no rank."""

    device_id: int
    n_operations: int


class ProcessShare(Struct, frozen=True):
    """What one process ran, and how that is shared out among its ranks."""

    whole: ProcessOperations
    ranks: tuple[RankOperations, ...]  # in order of device id
    strays: tuple[StrayDevice, ...] = ()


def processes_with_operations(kernels: pa.Table, copies: pa.Table) -> list[int]:
    """Return the ids of the processes that have any operation on a device, in order."""
    of_tables = (pc.unique(table["process_id"]).to_numpy() for table in (kernels, copies))
    processes: list[int] = np.union1d(*of_tables).tolist()
    return processes


def operations_by_process(
    kernels: pa.Table, copies: pa.Table, calls: pa.Table | None
) -> dict[int, ProcessShare]:
    """Return the operations of each process that has any, in order of process id; `calls` as `launch_times` takes them."""
    tables = kernels, copies, calls
    processes = processes_with_operations(kernels, copies)
    shares = zip(processes, *(by_process(table, processes) for table in tables), strict=True)
    return {process: _share(*own) for process, *own in shares}


def _share(kernels: pa.Table, copies: pa.Table, calls: pa.Table | None) -> ProcessShare:
    kernel_launch, copy_launch = launch_times(calls, kernels, copies)
    whole = operations_of(kernels, kernel_launch, copies, copy_launch)
    if len(whole.devices) <= 1:
        return ProcessShare(
            whole, (RankOperations(whole, None, np.ones(whole.kernel_start.size, np.bool_)),)
        )
    kernel_device = whole.kernel_column("device_id")
    copy_device = filled(copies["device_id"])[np.argsort(copy_launch, kind="stable")]
    used = rank_devices(whole, kernel_device, copy_device)
    ranks = []
    for device in used:
        of_kernels = device.holds(kernel_device)
        of_copies = device.holds(copy_device)
        own = operations_on(whole, device.device_id, of_kernels, of_copies)
        ranks.append(RankOperations(own, device, of_kernels))
    numbers = {device.device_id for device in used}
    counts = {
        device: int(np.count_nonzero(kernel_device == device))
        for device in sorted({*whole.devices} - numbers)
    }
    strays = (
        StrayDevice(device, n + int(np.count_nonzero(copy_device == device)))
        for device, n in counts.items()
    )
    return ProcessShare(whole, tuple(ranks), tuple(strays))


def rank_devices(
    whole: ProcessOperations, kernel_device: Int64, copy_device: Int64
) -> list[RankDevice]:
    """Return the devices of a process that are ranks, in order; without any kernel, copies decide.

    Operations whose device was not recorded count on the device with most operations.
    """
    device = kernel_device
    length_ns = whole.kernel_end - whole.kernel_start
    if not device.size:
        device = copy_device
        length_ns = whole.copy_end - whole.copy_start
    used = [number for number in sorted(whole.devices) if _is_used(device == number, length_ns)]
    if not used:  # the devices of kernels were not recorded
        return [RankDevice(whole.devices[0], holds_unknown=True)]
    leading = next(number for number in whole.devices if number in used)
    return [RankDevice(number, holds_unknown=number == leading) for number in used]


def _is_used(is_own: Flags, length_ns: Int64) -> bool:
    n_own = int(np.count_nonzero(is_own))
    own_ns = int(length_ns[is_own].sum())
    is_often_used = ONE_IN_SO_MANY * n_own >= is_own.size
    is_long_used = ONE_IN_SO_MANY * own_ns >= int(length_ns.sum())
    return n_own > 0 and (is_often_used or is_long_used)


def operations_on(
    whole: ProcessOperations, device_id: int, kernels: Flags, copies: Flags
) -> ProcessOperations:
    """Return those kernels and copies of a process that are flagged, which ran on one device."""
    rows = (
        whole.kernel_rows
        if whole.kernel_order is None
        else whole.kernel_rows.take(pa.array(whole.kernel_order))
    )
    return replace(
        whole,
        kernel_start=whole.kernel_start[kernels],
        kernel_end=whole.kernel_end[kernels],
        kernel_launch=whole.kernel_launch[kernels],
        is_comm=whole.is_comm[kernels],
        copy_start=whole.copy_start[copies],
        copy_end=whole.copy_end[copies],
        copy_launch=whole.copy_launch[copies],
        copy_kind=whole.copy_kind[copies],
        copy_bytes=whole.copy_bytes[copies],
        n_launched=int(np.count_nonzero(kernels[: whole.n_launched])),
        devices=(device_id,),
        kernel_order=None,
        kernel_rows=rows.filter(pa.array(kernels)),
    )
