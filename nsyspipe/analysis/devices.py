"""Which devices of a process are ranks, and what ran on each of them."""

from collections.abc import Iterable
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
    rows_by_process,
)
from nsyspipe.model.table import Flags, Int64
from nsyspipe.model.typed_tables import (
    CopiesOfReportTable,
    KernelsOfReportTable,
)

# A device is a stray one if it has less than one in so many of the kernels of its process, and of
# their time. A library may have opened a context on it, or it is the other end of peer copies.
ONE_IN_SO_MANY: Final = 100
# Columns of `ProcessOperations`.
_KERNEL_COLUMNS: Final = ("kernel_start", "kernel_end", "kernel_launch", "is_comm")
_COPY_COLUMNS: Final = ("copy_start", "copy_end", "copy_launch", "copy_kind", "copy_bytes")


class RankDevice(Struct, frozen=True):
    """The device of a rank, if its process used several devices."""

    device_id: int
    # Whether operations whose device was not recorded count here.
    holds_unknown: bool

    def holds(self, device_ids: Int64) -> Flags:
        """Tell which operations are this device's, by their device ids (`UNKNOWN` for null)."""
        is_of_device: Flags = device_ids == self.device_id
        if not self.holds_unknown:
            return is_of_device
        is_unknown: Flags = device_ids == UNKNOWN
        return is_of_device | is_unknown

    def rows_of(self, operations: pa.Table) -> pa.Table:
        """Return the rows of this device."""
        device_ids = filled(operations["device_id"])
        is_of_device = self.holds(device_ids)
        return operations.filter(is_of_device)


class RankOperations(Struct, frozen=True):
    """The operations of one rank, and where among those of its process they stand."""

    operations: ProcessOperations
    # None if the process used one device.
    device: RankDevice | None
    # Of the kernels of `ProcessShare.whole`, in its order: whether they are of this rank.
    is_of_rank: Flags


class StrayDevice(Struct, frozen=True):
    """A device that a process barely used: it is no rank."""

    device_id: int
    n_operations: int


class ProcessShare(Struct, frozen=True):
    """What one process ran, and how that is shared out among its ranks."""

    whole: ProcessOperations
    # In order of device ID.
    ranks: tuple[RankOperations, ...]
    strays: tuple[StrayDevice, ...] = ()


def processes_with_operations(
    kernels: KernelsOfReportTable, copies: CopiesOfReportTable
) -> list[int]:
    """Return the ids of the processes that have any operation on a device, in order."""
    of_kernels = pc.unique(kernels["process_id"]).to_numpy()
    of_copies = pc.unique(copies["process_id"]).to_numpy()
    processes: list[int] = np.union1d(of_kernels, of_copies).tolist()
    return processes


def operations_by_process(
    kernels: pa.Table, copies: pa.Table, calls: pa.Table | None
) -> dict[int, ProcessShare]:
    """Return the operations of each process that has any, in order of process ID.

    `calls` are as `launch_times` takes them.
    """
    processes = processes_with_operations(kernels, copies)
    kernel_tables = rows_by_process(kernels, processes)
    copy_tables = rows_by_process(copies, processes)
    call_tables = by_process(calls, processes)
    tables = zip(kernel_tables, copy_tables, call_tables, strict=True)
    shares = {}
    for process, tables_of_process in zip(processes, tables, strict=True):
        shares[process] = _share(*tables_of_process)
    return shares


def _share(kernels: pa.Table, copies: CopiesOfReportTable, calls: pa.Table | None) -> ProcessShare:
    """Share the operations of a process out among its devices. Each used device is a rank."""
    kernel_launch, copy_launch = launch_times(calls, kernels, copies)
    whole = operations_of(kernels, kernel_launch, copies, copy_launch)
    if len(whole.devices) <= 1:
        is_of_rank = np.ones(whole.kernel_start.size, np.bool_)
        rank = RankOperations(whole, None, is_of_rank)
        return ProcessShare(whole, (rank,))
    kernel_device = whole.kernel_column("device_id")
    # Into order of launch, which the copies of `whole` have.
    copy_order = np.argsort(copy_launch, kind="stable")
    copy_device = filled(copies["device_id"])[copy_order]
    ranks = []
    stray_ids = set(whole.devices)
    for device in rank_devices(whole, kernel_device, copy_device):
        is_kernel = device.holds(kernel_device)
        is_copy = device.holds(copy_device)
        operations = operations_on(whole, device.device_id, is_kernel, is_copy)
        ranks.append(RankOperations(operations, device, is_kernel))
        stray_ids.discard(device.device_id)
    strays = _stray_devices(stray_ids, np.append(kernel_device, copy_device))
    return ProcessShare(whole, tuple(ranks), strays)


def _stray_devices(stray_ids: Iterable[int], device: Int64) -> tuple[StrayDevice, ...]:
    """Return the devices that are no ranks, with their number of operations."""
    strays = []
    for device_id in sorted(stray_ids):
        n_operations = int(np.count_nonzero(device == device_id))
        stray = StrayDevice(device_id, n_operations)
        strays.append(stray)
    return tuple(strays)


def rank_devices(
    whole: ProcessOperations, kernel_device: Int64, copy_device: Int64
) -> list[RankDevice]:
    """Return the devices of a process that are ranks, in order of device ID.

    Kernels decide which devices are ranks. Without kernels, copies do. Operations whose device was
    not recorded belong to the rank with most operations.
    """
    if kernel_device.size:
        device = kernel_device
        length_ns = whole.kernel_end - whole.kernel_start
    else:
        device = copy_device
        length_ns = whole.copy_end - whole.copy_start
    used = []
    for device_id in sorted(whole.devices):
        is_of_device = device == device_id
        if _is_used(is_of_device, length_ns):
            used.append(device_id)
    if not used:
        # The devices of kernels were not recorded.
        return [RankDevice(whole.devices[0], holds_unknown=True)]
    # The devices of a process are in order of use.
    most_used = next(device_id for device_id in whole.devices if device_id in used)
    return [RankDevice(device_id, holds_unknown=device_id == most_used) for device_id in used]


def _is_used(is_of_device: Flags, length_ns: Int64) -> bool:
    """Tell whether a device has enough of the operations of its process, or of their time.

    Both parameters have a value per operation of the process.
    """
    n_operations = int(np.count_nonzero(is_of_device))
    device_ns = int(length_ns[is_of_device].sum())
    process_ns = int(length_ns.sum())
    is_often_used = ONE_IN_SO_MANY * n_operations >= is_of_device.size
    is_long_used = ONE_IN_SO_MANY * device_ns >= process_ns
    return n_operations > 0 and (is_often_used or is_long_used)


def operations_on(
    whole: ProcessOperations, device_id: int, kernels: Flags, copies: Flags
) -> ProcessOperations:
    """Return the flagged kernels and copies of a process, which ran on one device.

    `kernels` and `copies` have a flag per operation, in order of launch.
    """
    # All other columns are in order of launch already.
    rows_by_launch = whole.kernel_rows
    if whole.kernel_order is not None:
        rows_by_launch = rows_by_launch.take(whole.kernel_order)
    is_launched_and_chosen = kernels[: whole.n_launched]
    n_launched = int(np.count_nonzero(is_launched_and_chosen))
    kernel_columns = {name: getattr(whole, name)[kernels] for name in _KERNEL_COLUMNS}
    copy_columns = {name: getattr(whole, name)[copies] for name in _COPY_COLUMNS}
    return replace(
        whole,
        **kernel_columns,
        **copy_columns,
        n_launched=n_launched,
        devices=(device_id,),
        kernel_order=None,
        kernel_rows=rows_by_launch.filter(kernels),
    )
