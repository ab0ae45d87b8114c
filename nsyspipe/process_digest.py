"""What one process of one report comes down to: its candidates for steps, its windows, its phases."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from nsyspipe.comm_operations import CommOperations, comm_operations
from nsyspipe.families import Candidate, Members, TextFamilies, members_of
from nsyspipe.labels import step_number
from nsyspipe.launched import launched_in
from nsyspipe.measuring import measure
from nsyspipe.phases import PhaseRanges, phase_ranges
from nsyspipe.problems import Problem, problem
from nsyspipe.read.rows import pid_of
from nsyspipe.schema import DTOD_KIND
from nsyspipe.steps import Windows, capture_window, step_windows

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from nsyspipe.intervals import IntervalSet
    from nsyspipe.metrics.window_sums import WindowSums
    from nsyspipe.phases import BetweenSteps
    from nsyspipe.process_events import ProcessEvents, ReportContext

    Int64 = NDArray[np.int64]
    Flags = NDArray[np.bool_]

__all__ = ["ProcessDigest", "digest_process", "step_members"]

# A larger error of figures that compare device and host is told.
_LARGE_SPAN_NS = 1_000_000
_NS_PER_US = 1_000
_NO_MEMBERS = Members(0, *(np.empty(0, np.int64),) * 3)


@dataclass(frozen=True)
class ProcessDigest:
    """One process with device activity, that is, one rank.

    Attributes
    ----------
    device_id, device_ids
        The device with most operations, and all of them in order.
    span
        First start and last end of its operations, report time, ns.
    candidates
        Every family of ranges on it, largest first.
    has_launches
        Whether any operation has a launch.
    members
        One row per step range: ``number`` (null: not exactly one integer in the text), its host ``start_ns`` and
        ``end_ns``, and the hull of what was launched in it, ``device_start_ns`` and ``device_end_ns`` (null: nothing).
    windows
        One row per window: ``member``, ``start_ns``, ``end_ns``, ``is_complete`` and the breakdown.
    phases
        One row per (phase, member): ``phase``, ``member`` and the costs.
    comm
        Its communication operations.
    kernels
        One row per (phase, name): ``phase`` (null for none), ``name`` and the costs.
    kernels_by_window
        Number and time of each of those rows' kernels by the window that they start in.
    blocked_ns_by_call
        Idle time by the API call that the host was blocked in, one value per window.
    hidden
        When communication ran beside compute, report time.
    """

    process_id: int
    device_id: int | None
    device_ids: tuple[int, ...]
    n_kernels: int | None
    n_comm: int | None
    n_dtod: int | None
    span: tuple[int, int]
    candidates: tuple[Candidate, ...]
    has_launches: bool
    members: pa.Table
    windows: pa.Table
    phases: pa.Table
    comm: CommOperations
    kernels: pa.Table
    kernels_by_window: WindowSums
    blocked_ns_by_call: dict[str, Int64]
    hidden: IntervalSet

    @property
    def pid(self) -> int:
        """The operating system's process id."""
        return pid_of(self.process_id)


def digest_process(
    events: ProcessEvents,
    context: ReportContext,
    found: list[Candidate],
    members: Members,
    between: BetweenSteps,
    *,
    family: str | None,
) -> tuple[ProcessDigest, list[Problem]]:
    """Reduce one process to its digest.

    Parameters
    ----------
    found
        The process's candidates.
    members, between
        Its step ranges, and what its host does between them.
    family
        The step family; None makes the capture one window. A family that this process lacks gives no window.
    """
    operations, recorded = events.operations, context.recorded
    windows = capture_window(operations) if family is None else step_windows(members, operations)
    phases = phase_ranges(events.ranges, context.codes, members)
    has_comm = recorded.kernels and recorded.names
    measured = measure(events, context, windows, phases, members, between=between)
    digest = ProcessDigest(
        process_id=events.process_id,
        device_id=events.devices[0] if events.devices else None,
        device_ids=tuple(sorted(events.devices)),
        n_kernels=operations.kernel_start.size if recorded.kernels else None,
        n_comm=int(np.count_nonzero(operations.is_comm)) if has_comm else None,
        n_dtod=int(np.count_nonzero(operations.copy_kind == DTOD_KIND))
        if recorded.memcpy and recorded.kinds
        else None,
        span=operations.span,
        candidates=tuple(found),
        has_launches=events.has_launches,
        members=_members_table(events, members),
        windows=measured.windows,
        phases=measured.phases,
        comm=comm_operations(
            operations,
            context.names,
            members,
            windows,
            payloads=events.payloads,
            is_one_window=family is None,
        ),
        kernels=measured.kernels,
        kernels_by_window=measured.kernels_by_window,
        blocked_ns_by_call=measured.blocked_ns_by_call,
        hidden=measured.hidden,
    )
    return digest, _problems(events, members, windows, phases, family)


def step_members(
    events: ProcessEvents, families: TextFamilies, found: list[Candidate], family: str | None
) -> Members:
    """Return the step ranges of a process in the chosen family; none where it lacks the family."""
    candidate = next((one for one in found if one.name == family), None)
    return _NO_MEMBERS if candidate is None else members_of(events.ranges, families, candidate)


def _members_table(events: ProcessEvents, members: Members) -> pa.Table:
    texts = events.ranges["text"].take(pa.array(members.rows)).to_pylist()
    operations = events.operations
    launched = launched_in(
        members.starts,
        members.ends,
        (operations.kernel_launch, operations.kernel_start, operations.kernel_end),
        (operations.copy_launch, operations.copy_start, operations.copy_end),
    )
    nothing = launched.counts == 0
    return pa.table(
        {
            "number": pa.array([step_number(text) for text in texts], pa.int64()),
            "start_ns": members.starts,
            "end_ns": members.ends,
            "device_start_ns": pa.array(launched.starts, mask=nothing),
            "device_end_ns": pa.array(launched.ends, mask=nothing),
        }
    )


def _problems(
    events: ProcessEvents,
    members: Members,
    windows: Windows,
    phases: Mapping[str, PhaseRanges],
    family: str | None,
) -> list[Problem]:
    operations, process = events.operations, events.process_id
    n_missing, total = operations.n_without_launch, operations.n_launchable
    found = [
        problem(
            "device-clock-apart",
            process_id=process,
            device=_named(device),
            us=f"{clock.offset_ns / _NS_PER_US:+,.0f}",
        )
        for device, clock in events.clocks.items()
        if clock.offset_ns
    ]
    found += [
        problem(
            "device-clock-uncertain",
            process_id=process,
            device=_named(device),
            us=f"{clock.span_ns / _NS_PER_US:,.0f}",
        )
        for device, clock in events.clocks.items()
        if clock.span_ns is not None and clock.span_ns > _LARGE_SPAN_NS
    ]
    if not events.has_launches:
        found.append(problem("no-launches", process_id=process, n=total))
    elif n_missing:
        found.append(problem("launch-missing", process_id=process, n=n_missing, total=total))
    if family is None:
        return found
    if not members.starts.size:
        found.append(problem("steps-missing-on-rank", process_id=process))
    elif members.starts.size > len(windows):
        found.append(
            problem("step-without-window", process_id=process, n=members.starts.size - len(windows))
        )
    if not phases["backward"].starts.size and events.has_launches:
        found.append(problem("no-backward", process_id=process))
    return found


def _named(device: int | None) -> str:
    return "the device" if device is None else f"device {device}"
