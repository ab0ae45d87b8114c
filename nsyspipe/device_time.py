"""When a rank's devices compute, communicate and copy: the unions that every figure is measured on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nsyspipe.intervals import IntervalSet, union

if TYPE_CHECKING:
    from nsyspipe.attribution import ProcessOperations

__all__ = ["DeviceTime", "device_time"]


@dataclass(frozen=True)
class DeviceTime:
    """Unions of a rank's operations, report time, ns.

    Attributes
    ----------
    compute, comm, memory
        C, M and P of the definitions: compute kernels, communication kernels, memcpys and memsets.
    hidden
        ``C n M``.
    """

    compute: IntervalSet
    comm: IntervalSet
    memory: IntervalSet
    hidden: IntervalSet

    def exposed(self, covered: IntervalSet) -> tuple[IntervalSet, ...]:
        r"""Return sets whose lengths, the first and last less the two others, sum to ``|X \ (C u M)|``."""
        return (
            covered,
            covered.intersect(self.compute),
            covered.intersect(self.comm),
            covered.intersect(self.hidden),
        )


def device_time(operations: ProcessOperations) -> DeviceTime:
    """Merge the operations of one rank by category."""
    comm = operations.is_comm
    compute_set = union(operations.kernel_start[~comm], operations.kernel_end[~comm])
    comm_set = union(operations.kernel_start[comm], operations.kernel_end[comm])
    memory_set = union(operations.copy_start, operations.copy_end)
    return DeviceTime(compute_set, comm_set, memory_set, comm_set.intersect(compute_set))
