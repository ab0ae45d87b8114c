"""What one process comes down to: candidates for steps, windows, phases; without device activity its host steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nsyspipe.analysis.attribution import distinct, operations_of
from nsyspipe.analysis.communication import CommOperations, comm_operations
from nsyspipe.analysis.intervals import grouped_lengths
from nsyspipe.analysis.phases import PhaseRanges, launched_in, phase_ranges
from nsyspipe.analysis.step_families import Candidate, Members, TextFamilies, candidates, members_of
from nsyspipe.analysis.steps import Windows, capture_window, step_windows
from nsyspipe.model import canonical
from nsyspipe.model.canonical import DTOD_KIND
from nsyspipe.model.names import PHASES, step_number
from nsyspipe.model.problems import Problem, problem
from nsyspipe.reader.operations import pid_of
from nsyspipe.run.process import Measured, measure

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nsyspipe.analysis.phases import BetweenSteps
    from nsyspipe.model.types import Int64
    from nsyspipe.run.process import ProcessEvents, ReportContext


# A larger error of figures that compare device and host is told.
_LARGE_SPAN_NS = 1_000_000
_NS_PER_US = 1_000
_NO_MEMBERS = Members(0, *(np.empty(0, np.int64),) * 3)


@dataclass(frozen=True)
class ProcessDigest(Measured):
    """One process with device activity, that is, one rank."""

    process_id: int
    # device_id, device_ids: the device with most operations, and all of them in order
    device_id: int | None
    device_ids: tuple[int, ...]
    n_kernels: int | None
    n_comm: int | None
    n_dtod: int | None
    span: tuple[int, int]  # first start and last end of its operations, report time, ns
    candidates: tuple[Candidate, ...]  # every family of ranges on it, largest first
    has_launches: bool  # whether any operation has a launch
    # One row per step range: ``number`` (null: not exactly one integer in the text), its host ``start_ns`` and
    # ``end_ns``, and the hull of what was launched in it, ``device_start_ns`` and ``device_end_ns`` (null: nothing)
    members: pa.Table
    comm: CommOperations  # its communication operations

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
    """Reduce one process to its digest, and say what it lacks.

    Without a step family the capture is one window; a family that this process lacks gives no window.
    """
    operations, recorded = events.operations, context.recorded
    windows = capture_window(operations) if family is None else step_windows(members, operations)
    phases = phase_ranges(events.ranges, context.codes, members)
    has_comm = recorded.kernels and recorded.names
    has_copies = recorded.memcpy and recorded.kinds
    digest = ProcessDigest(
        **vars(measure(events, context, windows, phases, members, between=between)),
        process_id=events.process_id,
        device_id=events.devices[0] if events.devices else None,
        device_ids=tuple(sorted(events.devices)),
        n_kernels=operations.kernel_start.size if recorded.kernels else None,
        n_comm=int(np.count_nonzero(operations.is_comm)) if has_comm else None,
        n_dtod=int(np.count_nonzero(operations.copy_kind == DTOD_KIND)) if has_copies else None,
        span=operations.span,
        candidates=tuple(found),
        has_launches=events.has_launches,
        members=_members_table(events, members),
        comm=comm_operations(
            operations, context.names, members, windows, payloads=events.payloads, is_one_window=family is None
        ),
    )
    return digest, _problems(events, members, windows, phases, family)


def step_members(events: ProcessEvents, families: TextFamilies, found: list[Candidate], family: str | None) -> Members:
    """Return the step ranges of a process in the chosen family; none where it lacks the family."""
    candidate = next((one for one in found if one.name == family), None)
    return _NO_MEMBERS if candidate is None else members_of(events.ranges, families, candidate)


def _members_table(events: ProcessEvents, members: Members) -> pa.Table:
    texts = events.ranges["text"].take(pa.array(members.rows)).to_pylist()
    operations = events.operations
    counts, starts, ends = launched_in(
        members.starts,
        members.ends,
        (operations.kernel_launch, operations.kernel_start, operations.kernel_end),
        (operations.copy_launch, operations.copy_start, operations.copy_end),
    )
    nothing = counts == 0
    return pa.table(
        {
            "number": pa.array([step_number(text) for text in texts], pa.int64()),
            "start_ns": members.starts,
            "end_ns": members.ends,
            "device_start_ns": pa.array(starts, mask=nothing),
            "device_end_ns": pa.array(ends, mask=nothing),
        }
    )


def _problems(
    events: ProcessEvents, members: Members, windows: Windows, phases: Mapping[str, PhaseRanges], family: str | None
) -> list[Problem]:
    operations, process = events.operations, events.process_id
    n_missing, total = operations.n_without_launch, operations.n_launchable
    found = []
    for device, clock in events.clocks.items():
        which = "the device" if device is None else f"device {device}"
        if clock.offset_ns:
            us = f"{clock.offset_ns / _NS_PER_US:+,.0f}"
            found.append(problem("device-clock-apart", process_id=process, device=which, us=us))
        if clock.span_ns is not None and clock.span_ns > _LARGE_SPAN_NS:
            us = f"{clock.span_ns / _NS_PER_US:,.0f}"
            found.append(problem("device-clock-uncertain", process_id=process, device=which, us=us))
    if not events.has_launches:
        found.append(problem("no-launches", process_id=process, n=total))
    elif n_missing:
        found.append(problem("launch-missing", process_id=process, n=n_missing, total=total))
    if family is None:
        return found
    if not members.starts.size:
        found.append(problem("steps-missing-on-rank", process_id=process))
    elif members.starts.size > len(windows):
        found.append(problem("step-without-window", process_id=process, n=members.starts.size - len(windows)))
    if not phases["backward"].starts.size and events.has_launches:
        found.append(problem("no-backward", process_id=process))
    return found


# What a process without device activity comes down to: its step ranges and the phases in them, on the host.


@dataclass(frozen=True)
class HostDigest:
    """One process with ranges of its own and without device activity."""

    process_id: int
    candidates: tuple[Candidate, ...]  # every family of ranges on it, largest first
    # One row per step range: ``number`` (null: not exactly one integer in the text), ``start_ns`` and ``end_ns`` in
    # report time, ``is_complete``, and for each phase ``<phase>_ns`` (null: none of it on this process)
    members: pa.Table

    @property
    def pid(self) -> int:
        """The operating system's process id."""
        return pid_of(self.process_id)

    @property
    def device_id(self) -> None:
        """There is no device."""

    @property
    def span(self) -> tuple[int, int]:
        """First start and last end of its steps, report time, ns; asked only where there are any."""
        bounds = pc.min_max(self.members["start_ns"]), pc.min_max(self.members["end_ns"])
        return bounds[0]["min"].as_py(), bounds[1]["max"].as_py()


def host_candidates(ranges: pa.Table, families: TextFamilies) -> dict[int, tuple[pa.Table, list[Candidate]]]:
    """Return the ranges and families of each process of a report without device activity that has any."""
    never = np.empty(0, np.int64)
    nothing = operations_of(canonical.KERNELS.empty(), never, canonical.COPIES.empty(), never)
    found = {}
    for process in sorted(distinct(ranges["process_id"]).tolist()):
        own = ranges.filter(pc.equal(ranges["process_id"], process))
        if measured := candidates(own, families, nothing):
            found[process] = own, measured
    return found


def digest_hosts(
    found: Mapping[int, tuple[pa.Table, list[Candidate]]],
    families: TextFamilies,
    codes: Int64,
    family: str | None,
    open_end_ns: int | None,
) -> tuple[HostDigest, ...]:
    """Reduce each process of `host_candidates` to its digest; one that lacks the step family has no members.

    `codes` are `phases.phase_codes` of the ranges' dictionary; ranges that were never closed got `open_end_ns`.
    """
    digests = []
    for process, (ranges, own) in found.items():
        candidate = next((one for one in own if one.name == family), None)
        members = _NO_HOST_MEMBERS if candidate is None else _members(ranges, families, codes, candidate, open_end_ns)
        digests.append(HostDigest(process, tuple(own), members))
    return tuple(digests)


_NO_HOST_MEMBERS = pa.table(
    {
        name: pa.array([], pa.bool_() if name == "is_complete" else pa.int64())
        for name in ("number", "start_ns", "end_ns", "is_complete", *(f"{phase}_ns" for phase in PHASES))
    }
)


def _members(
    ranges: pa.Table, families: TextFamilies, codes: Int64, candidate: Candidate, open_end_ns: int | None
) -> pa.Table:
    members = members_of(ranges, families, candidate)
    texts = ranges["text"].take(pa.array(members.rows)).to_pylist()
    n_members = members.starts.size
    phases = {
        f"{phase}_ns": pa.array(grouped_lengths(one.member, one.starts, one.ends, n_members))
        if one.starts.size
        else pa.nulls(n_members, pa.int64())
        for phase, one in phase_ranges(ranges, codes, members).items()
    }
    # Such an end lies behind all that were recorded.
    never_closed = members.ends == open_end_ns if open_end_ns is not None else np.zeros(n_members)
    return pa.table(
        {
            "number": pa.array([step_number(text) for text in texts], pa.int64()),
            "start_ns": members.starts,
            "end_ns": members.ends,
            "is_complete": pa.array(~np.asarray(never_closed, np.bool_)),
            **phases,
        }
    )
