"""What one process of a report comes down to: windows of its steps, phases, kernels, communication; without device activity its host steps."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from nsyspipe.analysis.attribution import Inputs, ProcessOperations, by_process
from nsyspipe.analysis.breakdown import (
    breakdown,
    device_time,
    grad_copies,
    idle_causes,
    idle_gaps,
    late_starts,
    phase_idle,
)
from nsyspipe.analysis.clock import AGREED, DeviceClock, device_clocks
from nsyspipe.analysis.collectives import CommOperations, comm_operations
from nsyspipe.analysis.intervals import IntervalSet, NarrowIntervals, union, union_of
from nsyspipe.analysis.kernels import WindowSums, comm_delays, kernels_table
from nsyspipe.analysis.launching import device_waits, host_times
from nsyspipe.analysis.phases import PhaseRanges, launched_in, phase_costs, phase_ranges, phases_of_launches
from nsyspipe.analysis.steps import Candidate, Members, Windows, capture_window, step_windows
from nsyspipe.model.canonical import DTOD_KIND, GRAPH_NAME_ID
from nsyspipe.model.names import PHASES, step_number
from nsyspipe.model.problems import Problem, Recorded, problem
from nsyspipe.model.table import Flags, Int64
from nsyspipe.reader.metadata import Capture
from nsyspipe.reader.report import pid_of

_LARGE_SPAN_NS = 1_000_000  # a larger error of figures that compare device and host is told
# Of launches: ranges of whole steps leave out 0 to 2 %, an optimizer perhaps; those of one pass, or of some of the steps, 17 to 99 %.
_MOST_BETWEEN = 0.1
_Phases: TypeAlias = Mapping[str, PhaseRanges]


@dataclass(frozen=True)
class ProcessEvents:
    """One process's share of a capture."""

    process_id: int
    operations: ProcessOperations
    ranges: pa.Table  # `canonical.RANGES` of the process
    has_launches: bool
    blocking_calls: pa.Table | None  # `canonical.BLOCKING_CALLS` of the process; None when not recorded
    payloads: pa.Table  # `canonical.PAYLOADS` of the process
    clocks: Mapping[int | None, DeviceClock]  # as `clock.device_clocks` gives them
    # As `launching.device_waits` finds them; None where calls were not recorded.
    device_waits: IntervalSet | None = None

    @property
    def clock(self) -> DeviceClock:
        """The clock of the device with most operations."""
        return self.clocks.get(self.operations.devices[0] if len(self.operations.devices) > 1 else None, AGREED)

    @property
    def offsets_of_kernels_ns(self) -> Int64 | None:
        """How much later the clock of each kernel's device is than the host's; None where all are as `clock` is."""
        offsets = {device: clock.offset_ns for device, clock in self.clocks.items()}
        if len(set(offsets.values())) <= 1:
            return None
        device_ids = self.operations.kernel_column("device_id")
        of_kernels = np.full(device_ids.size, self.clock.offset_ns)
        for device, offset in offsets.items():
            of_kernels[device_ids == device] = offset
        return of_kernels


def process_events(capture: Capture, operations: Mapping[int, ProcessOperations]) -> Iterator[ProcessEvents]:
    """Yield the events of each process whose operations `attribution.operations_by_process` has found, in that order."""
    calls = capture.calls
    tables = capture.ranges.table, capture.payloads.table, calls.blocking, calls.waits, calls.all
    shares = zip(operations.items(), *(by_process(table, [*operations]) for table in tables), strict=True)
    for (process_id, own), ranges, payloads, blocking, waits, own_calls in shares:
        has_launches = own.n_without_launch < max(own.n_launchable, 1)
        clocks = device_clocks(own, waits, own_calls)
        events = ProcessEvents(process_id, own, ranges, has_launches, blocking, payloads, clocks)
        if blocking is not None and own_calls is not None:
            awaited = device_waits(own, own_calls, blocking, waits, events.clock.offset_ns)
            events = replace(events, device_waits=awaited)
        yield events


@dataclass(frozen=True)
class ProcessSteps:
    """The steps of one process."""

    candidates: list[Candidate]
    members: Members
    backward: PhaseRanges | None  # where no range marks it; None where one does, or nothing shows it
    problems: tuple[Problem, ...]


@dataclass(frozen=True)
class _Process:
    process_id: int
    candidates: tuple[Candidate, ...]  # every family of ranges on it, largest first
    # A row per step range: ``number`` (null: not exactly one integer in the text), host ``start_ns``, ``end_ns``, more
    members: pa.Table

    @property
    def pid(self) -> int:
        """The operating system's process id."""
        return pid_of(self.process_id)


@dataclass(frozen=True)
class ProcessDigest(_Process):
    """One rank; of members also the hull of what they launched, ``device_start_ns``, ``device_end_ns`` (null: nothing)."""

    device_id: int | None  # the device with most operations
    device_ids: tuple[int, ...]  # all of them, in order
    n_kernels: int | None
    n_comm: int | None
    n_dtod: int | None
    span: tuple[int, int]  # first start and last end of its operations, report time, ns
    has_launches: bool  # whether any operation has a launch
    comm: CommOperations  # its communication operations
    backward: PhaseRanges | None  # where no range marks it; None where one does, or nothing shows it
    # Per window ``member``, ``start_ns``, ``end_ns``, ``is_complete``, breakdown, ``graph_ns`` (of graphs captured as a whole)
    windows: pa.Table
    phases: pa.Table  # one row per (phase, member): ``phase``, ``member`` and the costs
    kernels: pa.Table  # one row per (phase, name): ``phase`` (null for none), ``name`` and the costs
    kernels_by_window: WindowSums  # number and time of each of those rows' kernels by the window that they start in
    blocked_ns_by_call: dict[str, Int64]  # idle time by the API call that blocked the host, one value per window
    hidden: NarrowIntervals  # when communication ran beside compute, report time


@dataclass(frozen=True)
class HostDigest(_Process):
    """One process without device activity; of members also ``is_complete`` and per phase ``<phase>_ns`` (null: none)."""

    device_id: None = None

    @property
    def span(self) -> tuple[int, int]:
        """First start and last end of its steps, report time, ns; asked only where there are any."""
        return pc.min(self.members["start_ns"]).as_py(), pc.max(self.members["end_ns"]).as_py()


def digest_process(
    events: ProcessEvents, steps: ProcessSteps, between: Inputs, capture: Capture, codes: Int64, *, is_one_window: bool
) -> tuple[ProcessDigest, list[Problem]]:
    """Reduce one process to its digest, and say what it lacks; `codes`: phases by text, `between`: what its host does between steps."""
    operations, recorded, members = events.operations, capture.recorded, steps.members
    windows = capture_window(operations) if is_one_window else step_windows(members, operations)
    phases = phase_ranges(events.ranges, codes, members)
    if steps.backward is not None:
        phases["backward"] = steps.backward
    has_comm = recorded.kernels and recorded.names
    has_copies = recorded.memcpy and recorded.kinds
    kernels = operations.kernel_launch, operations.kernel_start, operations.kernel_end
    copies = operations.copy_launch, operations.copy_start, operations.copy_end
    counts, firsts, lasts = launched_in(members.starts, members.ends, kernels, copies)
    launched = {"device_start_ns": firsts, "device_end_ns": lasts}
    launched = {name: pa.array(values, mask=counts == 0) for name, values in launched.items()}
    digest = ProcessDigest(
        events.process_id,
        tuple(steps.candidates),
        pa.table(member_columns(events.ranges, members) | launched),
        device_id=operations.devices[0] if operations.devices else None,
        device_ids=tuple(sorted(operations.devices)),
        n_kernels=operations.kernel_start.size if recorded.kernels else None,
        n_comm=int(np.count_nonzero(operations.is_comm)) if has_comm else None,
        n_dtod=int(np.count_nonzero(operations.copy_kind == DTOD_KIND)) if has_copies else None,
        span=operations.span,
        has_launches=events.has_launches,
        backward=steps.backward,
        **_measured(events, capture, windows, phases, members, between=between),
    )
    problems = [*steps.problems, *_problems(events, windows)]
    if is_one_window:
        return digest, problems
    if not members.starts.size:
        problems.append(problem("steps-missing-on-rank", process_id=events.process_id))
    elif n_without := members.starts.size - len(windows):
        problems.append(problem("step-without-window", process_id=events.process_id, n=n_without))
    edges = np.stack((members.starts, members.ends), axis=1).ravel()
    launches = operations.kernel_launch[: operations.n_launched]
    of_comm = launches[operations.is_comm[: launches.size]]
    # Of all, and of communication: how many are in a range, between it and the next, in the next, ...
    in_turn = [np.diff(np.searchsorted(one, edges)) for one in (launches, of_comm)]
    (_, share), (n_comm, share_of_comm) = ((n[1::2].sum(), n[1::2].sum() / max(n.sum(), 1)) for n in in_turn)
    if max(share, share_of_comm) > _MOST_BETWEEN:
        code = "comm-between-steps" if n_comm else "launches-between-steps"
        problems.append(problem(code, process_id=events.process_id, percent=f"{100 * share:.0f}", n_comm=n_comm))
    if not phases["backward"].starts.size and events.has_launches:
        length = (operations.kernel_end - operations.kernel_start)[: launches.size]
        _, own, n = np.unique(launches, return_inverse=True, return_counts=True)
        is_whole = operations.kernel_column("name_id")[: launches.size] == GRAPH_NAME_ID
        in_graphs = length[is_whole | (n[own] > 1)].sum()  # or several kernels of one launch
        code = "backward-in-graphs" if 2 * in_graphs > length.sum() else "no-backward"
        problems.append(problem(code, process_id=events.process_id))
    return digest, problems


def member_columns(ranges: pa.Table, members: Members) -> dict[str, Any]:
    """Return the columns that every digest has of its members."""
    if members.rows.size == members.starts.size:
        texts = ranges["text"].take(pa.array(members.rows)).to_pylist()
        numbers = pa.array([step_number(text) for text in texts], pa.int64())
    else:  # found by repetition
        numbers = pa.array(np.arange(members.starts.size))
    return {"number": numbers, "start_ns": members.starts, "end_ns": members.ends}


def _is_known(clock: DeviceClock, windows: Windows) -> bool:
    """Tell whether the error of figures that compare device and host is not told, or less than the median window."""
    span_ns = clock.span_ns or 0
    return span_ns <= _LARGE_SPAN_NS or not len(windows) or bool(span_ns < np.median(windows.ends - windows.starts))


def _problems(events: ProcessEvents, windows: Windows) -> Iterator[Problem]:
    process = events.process_id
    for number, clock in events.clocks.items():
        what: dict[str, Any] = {"device": "the device" if number is None else f"device {number}", "process_id": process}
        if clock.offset_ns:
            yield problem("device-clock-apart", **what, ms=f"{clock.offset_ns / 1e6:+,.3f}")
        if clock.span_ns is not None and clock.span_ns > _LARGE_SPAN_NS:
            code = "device-clock-uncertain" if _is_known(clock, windows) else "device-clock-unknown"
            yield problem(code, **what, ms=f"{clock.span_ns / 1e6:,.3f}")
    n_missing, total = events.operations.n_without_launch, events.operations.n_launchable
    if not events.has_launches:
        yield problem("no-launches", process_id=process, n=total)
    elif n_missing:
        yield problem("launch-missing", process_id=process, n=n_missing, total=total)


def _measured(
    events: ProcessEvents, capture: Capture, windows: Windows, phases: _Phases, members: Members, *, between: Inputs
) -> dict[str, Any]:
    operations, recorded, names = events.operations, capture.recorded, capture.operations.names
    device, offset = device_time(operations, windows), events.clock.offset_ns
    kernel_phase = phases_of_launches(phases, operations.kernel_launch)
    copy_phase = phases_of_launches(phases, operations.copy_launch)
    parts = breakdown(device, _in_backward(phases, kernel_phase) if operations.n_launched else None, recorded)
    data = union_of(union(phases["data"].starts, phases["data"].ends), between.data)
    inputs = Inputs(data.shifted(offset), between.quiet.shifted(offset))
    all_phases = np.append(kernel_phase, copy_phase)
    causes, blocked_ns_by_call, idle = _idle(events, windows, parts["idle_ns"], inputs, all_phases)
    parts |= causes | grad_copies(device, _in_backward(phases, copy_phase), recorded)
    parts |= _host_times(events, members, windows, union_of(data, between.quiet))
    is_graph = operations.kernel_column("name_id") == GRAPH_NAME_ID
    graphs = union(operations.kernel_start[is_graph], operations.kernel_end[is_graph])
    is_known = recorded.kernels and recorded.names
    parts |= {
        "comm_delay_ns": comm_delays(operations, device.comm, windows) if is_known else None,
        "graph_ns": windows.covered(graphs),
        "overhead_ns": None if capture.overhead is None else windows.covered(union(*capture.overhead)),
    }
    costs = {}
    for code, (name, own) in enumerate(phases.items()):
        costs[name] = phase_costs(own, members, device, (kernel_phase == code, copy_phase == code), idle[code])
    kernels, by_window = kernels_table(operations, names, kernel_phase, device.comm, windows)
    columns: dict[str, Int64 | Flags | None] = {"member": windows.member, "start_ns": windows.starts}
    columns |= {"end_ns": windows.ends, "is_complete": windows.is_complete, **parts}
    unknown = pa.nulls(len(windows), pa.int64())
    return {
        "comm": comm_operations(device, names, members, events.payloads, phases["backward"]),
        "windows": pa.table({name: unknown if part is None else pa.array(part) for name, part in columns.items()}),
        "phases": _phases_table(costs, recorded),
        "kernels": kernels,
        "kernels_by_window": by_window,
        "blocked_ns_by_call": blocked_ns_by_call,
        "hidden": NarrowIntervals.of(device.hidden),
    }


def _host_times(
    events: ProcessEvents, members: Members, windows: Windows, inputs: IntervalSet
) -> dict[str, Int64 | None]:
    """Return the host's times as columns of `schema.STEPS`; None without launches, or without the calls' names and ends."""
    if events.device_waits is None or not events.operations.n_launched:
        return dict.fromkeys(("host_launch_ns", "host_input_ns", "host_lead_ns"))
    waits, offset_ns = events.device_waits, events.clock.offset_ns
    times = host_times(events.operations, members, windows, waits=waits, inputs=inputs, offset_ns=offset_ns)
    return {"host_launch_ns": times.launch_ns, "host_input_ns": times.input_ns, "host_lead_ns": times.lead_ns}


def _idle(
    events: ProcessEvents, windows: Windows, idle_ns: Int64 | None, inputs: Inputs, phase: NDArray[np.int8]
) -> tuple[dict[str, Int64 | None], dict[str, Int64], list[Int64]]:
    """Return what `idle_causes` (nothing where clocks are not known) and `phase_idle` say, by the phase of each operation; the many gaps go."""
    offset, blocking = events.clock.offset_ns, events.blocking_calls
    gaps = idle_gaps(events.operations, offset, events.offsets_of_kernels_ns)
    if blocking is not None and offset:
        for name in ("start_ns", "end_ns"):
            blocking = blocking.set_column(blocking.column_names.index(name), name, pc.add(blocking[name], offset))
    by_phase = phase_idle(gaps, windows, phase[gaps.operation], len(PHASES))
    told = idle_ns if all(_is_known(clock, windows) for clock in events.clocks.values()) else None
    causes, by_call = idle_causes(gaps, windows, told, inputs, blocking)
    causes["idle_late_start_ns"] = None if told is None else late_starts(gaps, windows)
    return causes, by_call, by_phase


def _in_backward(phases: _Phases, phase: NDArray[np.int8]) -> Flags | None:
    return (phase == PHASES.index("backward")) if phases["backward"].starts.size else None


def _phases_table(costs: Mapping[str, Mapping[str, Int64 | None]], recorded: Recorded) -> pa.Table:
    unrecorded = [] if recorded.names else ["compute_ns", "comm_ns", "exposed_comm_ns"]
    if not (recorded.memcpy and recorded.memset):
        unrecorded += ["device_ns", "idle_ns"]
    tables = []
    for phase, columns in costs.items():
        n_rows = columns["member"].size  # type: ignore[union-attr]  # always given
        arrays = {
            name: pa.nulls(n_rows, pa.int64())
            if values is None or name in unrecorded
            else pa.array(values, mask=values < 0)  # the step has no window
            for name, values in columns.items()
        }
        tables.append(pa.table({"phase": pa.array([phase] * n_rows, pa.string()), **arrays}))
    return pa.concat_tables(tables).combine_chunks()  # a chunk takes more memory than its few rows
