"""The events of one process of a report, and every metric on them, as tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nsyspipe.analysis.attribution import ProcessOperations, operations_of
from nsyspipe.analysis.breakdown import (
    breakdown,
    device_time,
    grad_copies,
    idle_causes,
    idle_gaps,
    phase_idle,
)
from nsyspipe.analysis.clock import AGREED, device_clocks
from nsyspipe.analysis.intervals import union
from nsyspipe.analysis.kernels import comm_delays, kernels_table
from nsyspipe.analysis.phases import NO_WINDOW, PhaseRanges, phase_costs, phases_of_launches
from nsyspipe.model.canonical import GRAPH_NAME_ID
from nsyspipe.model.names import PHASES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from nsyspipe.analysis.clock import DeviceClock
    from nsyspipe.analysis.intervals import IntervalSet
    from nsyspipe.analysis.kernels import WindowSums
    from nsyspipe.analysis.phases import BetweenSteps
    from nsyspipe.analysis.steps import Members, TextFamilies, Windows
    from nsyspipe.model.problems import Recorded
    from nsyspipe.model.types import Flags, Int64


@dataclass(frozen=True)
class Measured:
    """The tables of one process."""

    # One row per window: ``member``, ``start_ns``, ``end_ns``, ``is_complete``, the breakdown, and ``graph_ns``, how
    # long CUDA graphs that were captured as a whole run in it
    windows: pa.Table
    phases: pa.Table  # one row per (phase, member): ``phase``, ``member`` and the costs
    # One row per (phase, name): ``phase`` (null for none), ``name`` and the costs
    kernels: pa.Table
    # Number and time of each of those rows' kernels by the window that they start in
    kernels_by_window: WindowSums
    # Idle time by the API call that the host was blocked in, one value per window
    blocked_ns_by_call: dict[str, Int64]
    hidden: IntervalSet  # when communication ran beside compute, report time


def measure(
    events: ProcessEvents,
    context: ReportContext,
    windows: Windows,
    phases: Mapping[str, PhaseRanges],
    members: Members,
    *,
    between: BetweenSteps,
) -> Measured:
    """Apply every metric to one process: its step ranges, to which phases belong, and what its host does between them."""
    operations, recorded = events.operations, context.recorded
    device = device_time(operations)
    kernel_phase = phases_of_launches(phases, operations.kernel_launch)
    copy_phase = phases_of_launches(phases, operations.copy_launch)
    backward = _in_backward(phases, kernel_phase) if operations.n_launched else None
    parts = breakdown(operations, windows, backward, recorded, device)
    offset = events.clock.offset_ns
    gaps = idle_gaps(operations, offset, events.offsets_of_kernels_ns)
    causes, blocked_ns_by_call = idle_causes(
        gaps,
        windows,
        parts["idle_ns"],
        between.with_data(phases["data"]).shifted(offset),
        _shifted(events.blocking_calls, offset),
        between=between.quiet.shifted(offset),
    )
    in_backward = _in_backward(phases, copy_phase)
    copies = grad_copies(operations, windows, device, in_backward, recorded)
    overhead = context.overhead
    parts |= causes | copies
    is_known = recorded.kernels and recorded.names
    parts["comm_delay_ns"] = comm_delays(operations, device.comm, windows) if is_known else None
    parts["graph_ns"] = _graphs_ns(operations, windows)
    parts["overhead_ns"] = None if overhead is None else overhead.lengths(windows.starts, windows.ends)
    idle = phase_idle(
        gaps,
        windows,
        np.concatenate((kernel_phase, copy_phase))[gaps.operation],
        len(PHASES),
    )
    costs = [
        phase_costs(
            ranges,
            members,
            operations,
            windows,
            belongs=(kernel_phase == code, copy_phase == code),
            device=device,
            idle_ns=own,
        )
        for code, (ranges, own) in enumerate(zip(phases.values(), idle, strict=True))
    ]
    for name in _unrecorded(recorded):
        for one in costs:
            one[name] = None
    return Measured(
        _windows_table(windows, parts),
        _phases_table(list(phases), costs),
        *kernels_table(operations, context.names, kernel_phase, device.comm, windows),
        blocked_ns_by_call,
        device.hidden,
    )


def _graphs_ns(operations: ProcessOperations, windows: Windows) -> Int64:
    """Return how long CUDA graphs that were captured as a whole run in each window."""
    own = operations.kernel_column("name_id") == GRAPH_NAME_ID
    found = union(operations.kernel_start[own], operations.kernel_end[own])
    return found.lengths(windows.starts, windows.ends)


def _shifted(calls: pa.Table | None, by_ns: int) -> pa.Table | None:
    """Return calls later by so much."""
    if calls is None or not by_ns:
        return calls
    for name in ("start_ns", "end_ns"):
        place = calls.column_names.index(name)
        calls = calls.set_column(place, name, pc.add(calls[name], by_ns))
    return calls


def _unrecorded(recorded: Recorded) -> list[str]:
    """Return the figures of phases that cannot be told from what the report holds."""
    found = []
    if not recorded.names:
        found += ["compute_ns", "comm_ns", "exposed_comm_ns"]
    if not (recorded.memcpy and recorded.memset):
        found += ["device_ns", "idle_ns"]
    return found


def _in_backward(phases: Mapping[str, PhaseRanges], phase: NDArray[np.int8]) -> Flags | None:
    """Flag what was launched inside backward ranges; None without such ranges."""
    if not phases["backward"].starts.size:
        return None
    found: Flags = phase == PHASES.index("backward")
    return found


def _windows_table(windows: Windows, parts: Mapping[str, Int64 | None]) -> pa.Table:
    columns = {
        "member": windows.member,
        "start_ns": windows.starts,
        "end_ns": windows.ends,
        "is_complete": windows.is_complete,
        **{name: pa.nulls(len(windows), pa.int64()) if part is None else part for name, part in parts.items()},
    }
    return pa.table({name: pa.array(values) for name, values in columns.items()})


def _phases_table(names: list[str], costs: list[dict[str, Int64 | None]]) -> pa.Table:
    tables = []
    for phase, columns in zip(names, costs, strict=True):
        n_rows = columns["member"].size  # type: ignore[union-attr]  # always given
        arrays = {
            name: pa.nulls(n_rows, pa.int64()) if one is None else pa.array(one, mask=one == NO_WINDOW)
            for name, one in columns.items()
        }
        tables.append(pa.table({"phase": pa.array([phase] * n_rows, pa.string()), **arrays}))
    return pa.concat_tables(tables)


# The events of one process of a report.


@dataclass(frozen=True)
class ProcessEvents:
    """One process's share of a capture."""

    process_id: int
    operations: ProcessOperations
    ranges: pa.Table  # `canonical.RANGES` of the process
    devices: tuple[int, ...]  # operations by device, the device with most first (tie: the lowest)
    has_launches: bool
    # `canonical.BLOCKING_CALLS` of the process; None when not recorded
    blocking_calls: pa.Table | None
    payloads: pa.Table  # `canonical.PAYLOADS` of the process
    clocks: Mapping[int | None, DeviceClock]  # as `clock.device_clocks` gives them

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
        kernel_launch: Int64,
        copy_launch: Int64,
        *,
        kernels: pa.Table,
        copies: pa.Table,
        ranges: pa.Table,
        blocking_calls: pa.Table | None,
        payloads: pa.Table,
        waits: pa.Table,
        calls: pa.Table | None,
    ) -> ProcessEvents:
        """Collect the events of one process from its share of each canonical table.

        Launch times are those that `attribution.launch_times` gives; `waits` and `calls` are `canonical.HOST_WAITS` and
        `canonical.HOST_CALLS`.
        """
        devices = pc.value_counts(
            pa.chunked_array(kernels["device_id"].chunks + copies["device_id"].chunks, pa.int64())
        )
        counts = {row["values"]: row["counts"] for row in devices.to_pylist() if row["values"] is not None}
        operations = operations_of(kernels, kernel_launch, copies, copy_launch)
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
    """What the processes of one report share."""

    families: TextFamilies  # the families of the ranges' texts
    codes: Int64  # `phases.phase_codes` of the ranges' dictionary
    names: Mapping[int, str]  # text of each kernel name id
    recorded: Recorded
    overhead: IntervalSet | None  # when the profiler did its own work; None when not recorded
