"""The events of one process of a report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nsyspipe.attribution import ProcessOperations, operations_of
from nsyspipe.device_clock import AGREED, device_clocks

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from nsyspipe.device_clock import DeviceClock
    from nsyspipe.families import TextFamilies
    from nsyspipe.intervals import IntervalSet
    from nsyspipe.recorded import Recorded

    Int64 = NDArray[np.int64]

__all__ = ["ProcessEvents", "ReportContext"]


@dataclass(frozen=True)
class ProcessEvents:
    """One process's share of a capture.

    Attributes
    ----------
    ranges
        `schema.RANGES` of the process.
    devices
        Operations by device, the device with most first (tie: the lowest).
    blocking_calls
        `schema.BLOCKING_CALLS` of the process; None when not recorded.
    payloads
        `schema.PAYLOADS` of the process.
    clocks
        As `device_clock.device_clocks` gives them.
    """

    process_id: int
    operations: ProcessOperations
    ranges: pa.Table
    devices: tuple[int, ...]
    has_launches: bool
    blocking_calls: pa.Table | None
    payloads: pa.Table
    clocks: Mapping[int | None, DeviceClock]

    @property
    def clock(self) -> DeviceClock:
        """The clock of the device with most operations."""
        return self.clocks.get(self.devices[0] if len(self.devices) > 1 else None, AGREED)

    @property
    def offsets_of_kernels_ns(self) -> Int64 | None:
        """How much later the clock of each kernel's device is than the host's; None where all are as `clock` is."""
        offsets = {device: one.offset_ns for device, one in self.clocks.items()}
        if len(set(offsets.values())) <= 1:
            return None
        device = self.operations.kernel_column("device_id")
        found = np.full(device.size, self.clock.offset_ns)
        for number, offset in offsets.items():
            found[device == number] = offset
        return found

    @classmethod
    def of(
        cls,
        process_id: int,
        kernels: pa.Table,
        copies: pa.Table,
        launch: tuple[Int64, Int64],
        *,
        ranges: pa.Table,
        blocking_calls: pa.Table | None,
        payloads: pa.Table,
        waits: pa.Table,
        calls: pa.Table | None,
    ) -> ProcessEvents:
        """Collect the events of one process.

        Parameters
        ----------
        kernels, copies
            `schema.KERNELS` and `schema.COPIES` of the process.
        launch
            Their launch times, as `attribution.launch_times` gives them.
        waits, calls
            `schema.HOST_WAITS` and `schema.HOST_CALLS` of the process.
        """
        devices = pc.value_counts(
            pa.chunked_array(kernels["device_id"].chunks + copies["device_id"].chunks, pa.int64())
        )
        counts = {
            row["values"]: row["counts"] for row in devices.to_pylist() if row["values"] is not None
        }
        operations = operations_of(kernels, launch[0], copies, launch[1])
        used = tuple(sorted(counts, key=lambda device: (-counts[device], device)))
        return cls(
            process_id,
            operations,
            ranges,
            used,
            operations.n_without_launch < max(operations.n_launchable, 1),
            blocking_calls,
            payloads,
            device_clocks(operations, used, waits, calls),
        )


@dataclass(frozen=True)
class ReportContext:
    """What the processes of one report share.

    Attributes
    ----------
    families
        The families of the ranges' texts.
    codes
        `phases.phase_codes` of the ranges' dictionary.
    names
        Text of each kernel name id.
    overhead
        When the profiler did its own work; None when not recorded.
    """

    families: TextFamilies
    codes: Int64
    names: Mapping[int, str]
    recorded: Recorded
    overhead: IntervalSet | None
