"""Every metric on one process, as tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nsyspipe.device_time import device_time
from nsyspipe.gaps import idle_gaps
from nsyspipe.intervals import union
from nsyspipe.kernel_names import kernels_table
from nsyspipe.labels import PHASES
from nsyspipe.metrics.breakdown import breakdown
from nsyspipe.metrics.copies import grad_copies
from nsyspipe.metrics.idle import idle_causes, phase_idle
from nsyspipe.metrics.phases import NO_WINDOW, phase_costs
from nsyspipe.metrics.slowdown import comm_delays
from nsyspipe.phases import PhaseRanges, phases_of_launches
from nsyspipe.schema import GRAPH_NAME_ID

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from nsyspipe.attribution import ProcessOperations
    from nsyspipe.families import Members
    from nsyspipe.intervals import IntervalSet
    from nsyspipe.metrics.window_sums import WindowSums
    from nsyspipe.phases import BetweenSteps
    from nsyspipe.process_events import ProcessEvents, ReportContext
    from nsyspipe.recorded import Recorded
    from nsyspipe.steps import Windows

    Int64 = NDArray[np.int64]
    Flags = NDArray[np.bool_]

__all__ = ["Measured", "measure"]


@dataclass(frozen=True)
class Measured:
    """The tables of one process.

    Attributes
    ----------
    windows
        One row per window: ``member``, ``start_ns``, ``end_ns``, ``is_complete``, the breakdown, and ``graph_ns``, how
        long CUDA graphs that were captured as a whole run in it.
    phases
        One row per (phase, member): ``phase``, ``member`` and the costs.
    kernels
        One row per (phase, name): ``phase`` (null for none), ``name`` and the costs.
    kernels_by_window
        Number and time of each of those rows' kernels by the window that they start in.
    blocked_ns_by_call
        Idle time by the API call that the host was blocked in, one value per window.
    hidden
        When communication ran beside compute, report time.
    """

    windows: pa.Table
    phases: pa.Table
    kernels: pa.Table
    kernels_by_window: WindowSums
    blocked_ns_by_call: dict[str, Int64]
    hidden: IntervalSet


def measure(
    events: ProcessEvents,
    context: ReportContext,
    windows: Windows,
    phases: Mapping[str, PhaseRanges],
    members: Members,
    *,
    between: BetweenSteps,
) -> Measured:
    """Apply every metric to one process.

    Parameters
    ----------
    members
        Its step ranges, to which phases belong.
    between
        What its host does between them.
    """
    operations, recorded = events.operations, context.recorded
    device = device_time(operations)
    kernel_phase = phases_of_launches(phases, operations.kernel_launch)
    copy_phase = phases_of_launches(phases, operations.copy_launch)
    backward = _in_backward(phases, kernel_phase) if operations.n_launched else None
    parts = breakdown(operations, windows, backward, recorded, device)
    offset = events.clock.offset_ns
    gaps = idle_gaps(operations, offset, events.offsets_of_kernels_ns)
    causes = idle_causes(
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
    parts |= causes.columns | copies | {"idle_between_steps_ns": causes.between_steps_ns}
    is_known = recorded.kernels and recorded.names
    parts["comm_delay_ns"] = comm_delays(operations, device.comm, windows) if is_known else None
    parts["graph_ns"] = _graphs_ns(operations, windows)
    parts["overhead_ns"] = (
        None if overhead is None else overhead.lengths(windows.starts, windows.ends)
    )
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
        causes.blocked_ns_by_call,
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
        **{
            name: pa.nulls(len(windows), pa.int64()) if part is None else part
            for name, part in parts.items()
        },
    }
    return pa.table({name: pa.array(values) for name, values in columns.items()})


def _phases_table(names: list[str], costs: list[dict[str, Int64 | None]]) -> pa.Table:
    tables = []
    for phase, columns in zip(names, costs, strict=True):
        n_rows = columns["member"].size  # type: ignore[union-attr]  # always given
        arrays = {
            name: pa.nulls(n_rows, pa.int64())
            if one is None
            else pa.array(one, mask=one == NO_WINDOW)
            for name, one in columns.items()
        }
        tables.append(pa.table({"phase": pa.array([phase] * n_rows, pa.string()), **arrays}))
    return pa.concat_tables(tables)
