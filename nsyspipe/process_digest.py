"""What one process of one report comes down to: its candidates for steps, its windows, its phases."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nsyspipe.attribution import ProcessOperations, operations_of
from nsyspipe.families import Candidate, Members, TextFamilies, members_of
from nsyspipe.labels import step_number
from nsyspipe.metrics.breakdown import breakdown
from nsyspipe.metrics.phases import NO_WINDOW, phase_costs
from nsyspipe.phases import PhaseRanges, phase_ranges
from nsyspipe.problems import Problem, problem
from nsyspipe.read.events import pid_of
from nsyspipe.schema import DTOD_KIND
from nsyspipe.steps import Windows, capture_window, step_windows

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from nsyspipe.recorded import Recorded

    Int64 = NDArray[np.int64]

__all__ = ["ProcessDigest", "ProcessEvents", "digest_process"]

_NO_MEMBERS = Members(0, *(np.empty(0, np.int64),) * 3)


@dataclass(frozen=True)
class ProcessEvents:
    """One process's share of a capture.

    Attributes
    ----------
    ranges
        `schema.RANGES` of the process.
    devices
        Operations by device, the device with most first (tie: the lowest).
    """

    process_id: int
    operations: ProcessOperations
    ranges: pa.Table
    devices: tuple[int, ...]
    has_launches: bool

    @classmethod
    def of(
        cls,
        process_id: int,
        kernels: pa.Table,
        copies: pa.Table,
        launch: tuple[Int64, Int64],
        ranges: pa.Table,
    ) -> ProcessEvents:
        """Collect the events of one process.

        Parameters
        ----------
        kernels, copies
            `schema.KERNELS` and `schema.COPIES` of the process.
        launch
            Their launch times, as `attribution.launch_times` gives them.
        """
        devices = pc.value_counts(
            pa.chunked_array(kernels["device_id"].chunks + copies["device_id"].chunks, pa.int64())
        )
        counts = {
            row["values"]: row["counts"] for row in devices.to_pylist() if row["values"] is not None
        }
        operations = operations_of(kernels, launch[0], copies, launch[1])
        return cls(
            process_id,
            operations,
            ranges,
            tuple(sorted(counts, key=lambda device: (-counts[device], device))),
            operations.n_without_launch < operations.n_operations,
        )


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
    members
        One row per step range: ``number`` (null: not exactly one integer in the text).
    windows
        One row per window: ``member``, ``start_ns``, ``end_ns``, ``is_complete`` and the breakdown.
    phases
        One row per (phase, member): ``phase``, ``member`` and the costs.
    """

    process_id: int
    device_id: int | None
    device_ids: tuple[int, ...]
    n_kernels: int | None
    n_comm: int | None
    n_dtod: int | None
    span: tuple[int, int]
    candidates: tuple[Candidate, ...]
    members: pa.Table
    windows: pa.Table
    phases: pa.Table

    @property
    def pid(self) -> int:
        """The operating system's process id."""
        return pid_of(self.process_id)


def digest_process(
    events: ProcessEvents,
    families: TextFamilies,
    found: list[Candidate],
    *,
    family: str | None,
    codes: Int64,
    recorded: Recorded,
) -> tuple[ProcessDigest, list[Problem]]:
    """Reduce one process to its digest.

    Parameters
    ----------
    found
        The process's candidates.
    family
        The step family; None makes the capture one window. A family that this process lacks gives no window.
    codes
        `phases.phase_codes` of the ranges' dictionary.
    """
    operations = events.operations
    members = _members(events, families, found, family)
    windows = capture_window(operations) if family is None else step_windows(members, operations)
    phases = phase_ranges(events.ranges, codes, members)
    backward = _backward(phases, operations)
    parts = breakdown(operations, windows, backward, recorded)
    has_comm = recorded.kernels and recorded.names
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
        members=_members_table(events.ranges, members),
        windows=_windows_table(windows, parts),
        phases=_phases_table(phases, members, operations, windows),
    )
    return digest, _problems(events, members, windows, backward, family)


def _members(
    events: ProcessEvents, families: TextFamilies, found: list[Candidate], family: str | None
) -> Members:
    candidate = next((one for one in found if one.name == family), None)
    return _NO_MEMBERS if candidate is None else members_of(events.ranges, families, candidate)


def _backward(
    phases: Mapping[str, PhaseRanges], operations: ProcessOperations
) -> NDArray[np.bool_] | None:
    """Flag the kernels launched inside backward ranges; None without such ranges or without launches."""
    ranges = phases["backward"]
    if not ranges.starts.size or not operations.n_launched:
        return None
    return operations.kernels_launched_in(ranges.starts, ranges.ends).mask(
        operations.kernel_start.size
    )


def _members_table(ranges: pa.Table, members: Members) -> pa.Table:
    texts = ranges["text"].take(pa.array(members.rows)).to_pylist()
    return pa.table({"number": pa.array([step_number(text) for text in texts], pa.int64())})


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


def _phases_table(
    phases: Mapping[str, PhaseRanges],
    members: Members,
    operations: ProcessOperations,
    windows: Windows,
) -> pa.Table:
    tables = []
    for phase, ranges in phases.items():
        costs = phase_costs(ranges, members, operations, windows)
        n_rows = costs["member"].size  # type: ignore[union-attr]  # always given
        columns = {
            name: pa.nulls(n_rows, pa.int64())
            if one is None
            else pa.array(one, mask=one == NO_WINDOW)
            for name, one in costs.items()
        }
        tables.append(pa.table({"phase": pa.array([phase] * n_rows, pa.string()), **columns}))
    return pa.concat_tables(tables)


def _problems(
    events: ProcessEvents,
    members: Members,
    windows: Windows,
    backward: NDArray[np.bool_] | None,
    family: str | None,
) -> list[Problem]:
    operations, process = events.operations, events.process_id
    n_missing, total = operations.n_without_launch, operations.n_operations
    found = []
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
    if backward is None and events.has_launches:
        found.append(problem("no-backward", process_id=process))
    return found
