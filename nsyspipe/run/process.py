"""The digest of one rank, which is a process on one device.

It has windows of steps, phases, kernels and communication. A process without device activity has
only its host steps.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from nsyspipe.analysis.attribution import Inputs, ProcessOperations, by_process
from nsyspipe.analysis.breakdown import (
    DeviceTime,
    IdleCauses,
    blocking_copies,
    breakdown,
    comm_on_stream,
    compute_stream,
    device_time,
    exposed_by_late_launches,
    grad_copies,
    idle_causes,
    idle_gaps,
    late_starts,
    phase_idle,
)
from nsyspipe.analysis.clock import DeviceClock, clock_of_device
from nsyspipe.analysis.collectives import CommOperations, comm_operations, messages_of
from nsyspipe.analysis.devices import ProcessShare, RankDevice, RankOperations, StrayDevice
from nsyspipe.analysis.intervals import IntervalSet, NarrowIntervals, union, union_of
from nsyspipe.analysis.kernels import WindowSums, comm_delays, kernels_table
from nsyspipe.analysis.launching import device_waits, host_times
from nsyspipe.analysis.phases import (
    NO_OTHER_THREADS,
    LaunchingThreads,
    PhaseRanges,
    launched_in,
    launches_in_phase,
    phase_costs,
    phases_of_launches,
)
from nsyspipe.analysis.steps import Candidate, Members, Windows, capture_window, step_windows
from nsyspipe.model.canonical import DTOD_KIND, GRAPH_NAME_ID
from nsyspipe.model.names import PHASES, step_number
from nsyspipe.model.problems import Problem, Recorded, problem
from nsyspipe.model.table import Flags, Int64
from nsyspipe.reader.metadata import Capture
from nsyspipe.reader.report import pid_of

# A larger error between the clocks of device and host is a problem.
MAX_UNREPORTED_CLOCK_ERROR_NS = 1_000_000
# A larger share of launches between steps is a problem. Ranges of whole steps leave out 0 to 2%,
# such as an optimizer. Ranges of one pass, or of some of the steps, leave out 17 to 99%.
MAX_SHARE_BETWEEN_STEPS = 0.1
_HOST_TIMES = ("host_launch_ns", "host_input_ns", "host_lead_ns")
_Phases: TypeAlias = Mapping[str, PhaseRanges]


class ProcessEvents(Struct, frozen=True):
    """One rank's share of a capture: what one process did, and what ran on one of its devices."""

    process_id: int
    # of the rank's device, while all other fields are of the process
    operations: ProcessOperations
    # `canonical.RANGES` of the process
    ranges: pa.Table
    has_launches: bool
    # `canonical.BLOCKING_CALLS` of the process, or None if not recorded
    blocking_calls: pa.Table | None
    # `canonical.PAYLOADS` of the process
    payloads: pa.Table
    # of the device against the host's
    clock: DeviceClock
    # If the process used several devices: the rank's device, all devices (the one with most
    # operations first), and the rank's rows of `collectives.messages_of`.
    device: RankDevice | None = None
    process_devices: tuple[int, ...] = ()
    messages: pa.Table | None = None
    # devices that are no rank, only for the first rank of the process
    strays: tuple[StrayDevice, ...] = ()
    # `canonical.BLOCKING_COPIES` of the rank, or None if not recorded
    blocking_copies: pa.Table | None = None
    # as `launching.device_waits` returns them, or None if calls were not recorded
    device_waits: IntervalSet | None = None


class _ProcessTables(Struct, frozen=True):
    """The rows of one process in the tables of a report."""

    ranges: pa.Table
    payloads: pa.Table
    blocking_calls: pa.Table | None
    blocking_copies: pa.Table | None
    waits: pa.Table | None
    calls: pa.Table | None


def process_events(capture: Capture, shares: Mapping[int, ProcessShare]) -> Iterator[ProcessEvents]:
    """Yield the events of each rank, in the order of `devices.operations_by_process`."""
    tables = _tables_of_processes(capture, [*shares])
    for (process_id, share), process in zip(shares.items(), tables, strict=True):
        messages = None
        if len(share.ranks) > 1:
            messages = messages_of(share.whole, capture.operations.names, process.payloads)
        for index, rank in enumerate(share.ranks):
            events = _events_of_rank(process_id, share, rank, process, messages)
            yield events if index == 0 else replace(events, strays=())


def _tables_of_processes(capture: Capture, process_ids: Sequence[int]) -> Iterator[_ProcessTables]:
    calls = capture.calls
    has_copy_kinds = capture.recorded.memcpy and capture.recorded.kinds
    tables = (
        capture.ranges.table,
        capture.payloads.table,
        calls.blocking,
        calls.blocking_copies if has_copy_kinds else None,
        calls.waits,
        calls.all,
    )
    by_table = [by_process(table, process_ids) for table in tables]
    return itertools.starmap(_ProcessTables, zip(*by_table, strict=True))


def _events_of_rank(
    process_id: int,
    share: ProcessShare,
    rank: RankOperations,
    process: _ProcessTables,
    messages: pa.Table | None,
) -> ProcessEvents:
    operations = rank.operations
    device_id = None if rank.device is None else rank.device.device_id
    clock = clock_of_device(operations, process.waits, process.calls, device_id)
    if messages is not None:
        is_of_rank = rank.is_of_rank[share.whole.is_comm]
        messages = messages.filter(pa.array(is_of_rank))
    waits = None
    if process.blocking_calls is not None and process.calls is not None:
        waits = device_waits(
            operations, process.calls, process.blocking_calls, process.waits, clock.offset_ns
        )
    return ProcessEvents(
        process_id=process_id,
        operations=operations,
        ranges=process.ranges,
        has_launches=operations.n_without_launch < max(operations.n_launchable, 1),
        blocking_calls=process.blocking_calls,
        blocking_copies=_copies_of_rank(process.blocking_copies, rank.device),
        payloads=process.payloads,
        clock=clock,
        device=rank.device,
        process_devices=share.whole.devices,
        messages=messages,
        strays=share.strays,
        device_waits=waits,
    )


def _copies_of_rank(copies: pa.Table | None, device: RankDevice | None) -> pa.Table | None:
    """Return the copies on a rank's device. If its process used one device, these are all."""
    if copies is None or device is None:
        return copies
    return copies.filter(pc.equal(copies["device_id"], device.device_id))


class ProcessSteps(Struct, frozen=True):
    """The steps of one process."""

    candidates: list[Candidate]
    members: Members
    # as `phases.phase_ranges` returns them
    phases: Mapping[str, PhaseRanges]
    # the other threads whose ranges are phases too
    other_threads: LaunchingThreads
    # the backward passes if no range marks them, or None if a range does or nothing shows them
    backward: PhaseRanges | None
    # the backward passes, by `backward` or by `phases`, with the ranges of one pass joined
    passes: PhaseRanges
    problems: tuple[Problem, ...]


class _Process(Struct, frozen=True):
    process_id: int
    # every family of ranges of the process, largest first
    candidates: tuple[Candidate, ...]
    # A row per step range: ``number`` (null if its text has not exactly one integer), host
    # ``start_ns`` and ``end_ns``, and more.
    members: pa.Table

    @property
    def pid(self) -> int:
        """The operating system's process id."""
        return pid_of(self.process_id)


class ProcessDigest(_Process, frozen=True):
    """One rank.

    Its members also have the hull of what they launched: ``device_start_ns`` and ``device_end_ns``,
    null if they launched nothing.
    """

    # the rank's device
    device_id: int | None
    # all devices of the process, the one with most operations first
    device_ids: tuple[int, ...]
    # which operations of the process are the rank's, or None if it used one device
    device: RankDevice | None
    # the stream that most compute kernels run on
    compute_stream_id: int | None
    n_kernels: int | None
    n_comm: int | None
    n_dtod: int | None
    # first start and last end of its operations, report time, ns
    span: tuple[int, int]
    # whether any operation has a launch
    has_launches: bool
    # its communication operations
    comm: CommOperations
    # as in `ProcessSteps`
    backward: PhaseRanges | None
    # Per window ``member``, ``start_ns``, ``end_ns``, ``is_complete``, the breakdown, and
    # ``graph_ns`` of graphs that were captured as a whole.
    windows: pa.Table
    # one row per (phase, member): ``phase``, ``member`` and the costs
    phases: pa.Table
    # one row per (phase, name): ``phase`` (null for none), ``name`` and the costs
    kernels: pa.Table
    # number and time of the kernels of each of those rows, by the window that they start in
    kernels_by_window: WindowSums
    # idle time by the API call that blocked the host, one value per window
    blocked_ns_by_call: dict[str, Int64]
    # the part of it that is of blocking copies from the host
    of_copies_ns_by_call: dict[str, Int64]
    # when communication ran while compute ran, report time
    hidden: NarrowIntervals
    # the other threads whose ranges are phases too
    other_threads: LaunchingThreads = NO_OTHER_THREADS


_NO_KERNEL_LATER = "no kernel launched in these ranges starts later than the preceding step"


class HostDigest(_Process, frozen=True):
    """One process without device activity.

    Its members also have ``is_complete``, and ``<phase>_ns`` per phase, null without ranges of it.
    """

    device_id: None = None
    device_ids: tuple[int, ...] = ()

    @property
    def span(self) -> tuple[int, int]:
        """First start and last end of its steps, report time, ns. There must be steps."""
        first_start_ns = pc.min(self.members["start_ns"]).as_py()
        last_end_ns = pc.max(self.members["end_ns"]).as_py()
        return first_start_ns, last_end_ns


def digest_process(
    events: ProcessEvents,
    steps: ProcessSteps,
    between: Inputs,
    capture: Capture,
    *,
    is_one_window: bool,
) -> tuple[ProcessDigest, list[Problem]]:
    """Reduce one rank to its digest, and say what it lacks.

    `between` is what its host does between steps.
    """
    operations = events.operations
    recorded = capture.recorded
    windows = (
        capture_window(operations) if is_one_window else step_windows(steps.members, operations)
    )
    phases = dict(steps.phases)
    if steps.backward is not None:
        phases["backward"] = steps.backward
    has_names = recorded.kernels and recorded.names
    has_copy_kinds = recorded.memcpy and recorded.kinds
    n_comm = int(np.count_nonzero(operations.is_comm))
    n_dtod = int(np.count_nonzero(operations.copy_kind == DTOD_KIND))
    measures = _measure_rank(_RankWork.of(events, capture, windows, steps, phases), between)
    digest = ProcessDigest(
        process_id=events.process_id,
        candidates=tuple(steps.candidates),
        members=_members_table(events, steps.members),
        device_id=operations.devices[0] if operations.devices else None,
        device_ids=events.process_devices,
        device=events.device,
        n_kernels=operations.kernel_start.size if recorded.kernels else None,
        n_comm=n_comm if has_names else None,
        n_dtod=n_dtod if has_copy_kinds else None,
        span=operations.span,
        has_launches=events.has_launches,
        backward=steps.backward,
        other_threads=steps.other_threads,
        **measures,
    )
    problems = [*steps.problems, *_problems_of_events(events, windows)]
    if not is_one_window:
        problems += _problems_of_steps(events, steps.members, windows, phases)
    return digest, [replace(rank_problem, device_id=digest.device_id) for rank_problem in problems]


def _members_table(events: ProcessEvents, members: Members) -> pa.Table:
    """Return the step ranges of a rank, with the hull of what each launched on the device."""
    operations = events.operations
    kernels = operations.kernel_launch, operations.kernel_start, operations.kernel_end
    copies = operations.copy_launch, operations.copy_start, operations.copy_end
    counts, first_starts, last_ends = launched_in(members.starts, members.ends, kernels, copies)
    has_launched_nothing = counts == 0
    columns = member_columns(events.ranges, members)
    columns["device_start_ns"] = pa.array(first_starts, mask=has_launched_nothing)
    columns["device_end_ns"] = pa.array(last_ends, mask=has_launched_nothing)
    return pa.table(columns)


def _launched_kernels(operations: ProcessOperations, members: Members) -> Int64:
    """Return how many kernels were launched in each step range."""
    launches = np.sort(operations.kernel_launch[: operations.n_launched])
    return np.searchsorted(launches, members.ends) - np.searchsorted(launches, members.starts)


def _problems_of_steps(
    events: ProcessEvents, members: Members, windows: Windows, phases: _Phases
) -> Iterator[Problem]:
    """Yield steps without window, launches outside of steps, and a backward pass not seen."""
    yield from _problems_of_windows(events, members, windows)
    yield from _problems_between_steps(events, members)
    if not phases["backward"].starts.size and events.has_launches:
        is_in_graphs = _runs_mostly_in_graphs(events.operations)
        code = "backward-in-graphs" if is_in_graphs else "no-backward"
        yield problem(code, process_id=events.process_id)


def _problems_of_windows(
    events: ProcessEvents, members: Members, windows: Windows
) -> Iterator[Problem]:
    n_members = members.starts.size
    if not n_members:
        yield problem("steps-missing-on-rank", process_id=events.process_id)
        return
    without_window = np.setdiff1d(np.arange(n_members), windows.member)
    if without_window.size:
        n_kernels = _launched_kernels(events.operations, members)[without_window]
        why = _NO_KERNEL_LATER if n_kernels.any() else "no kernel was launched in these ranges"
        yield problem(
            "step-without-window", process_id=events.process_id, n=without_window.size, why=why
        )


class _LaunchesBetween(Struct, frozen=True):
    """The launches of a rank that are between two of its steps."""

    n_launches: np.int64
    # of all launches from the first step to the last
    share: float


def _count_launches_between(launches: Int64, members: Members) -> _LaunchesBetween:
    # The edges alternate: every second stretch, from the second on, is between two ranges.
    edges = np.stack((members.starts, members.ends), axis=1).ravel()
    n_by_stretch = np.diff(np.searchsorted(launches, edges))
    n_between = n_by_stretch[1::2].sum()
    return _LaunchesBetween(n_between, n_between / max(n_by_stretch.sum(), 1))


def _problems_between_steps(events: ProcessEvents, members: Members) -> Iterator[Problem]:
    operations = events.operations
    launches = operations.kernel_launch[: operations.n_launched]
    comm_launches = launches[operations.is_comm[: launches.size]]
    between = _count_launches_between(launches, members)
    comm_between = _count_launches_between(comm_launches, members)
    if max(between.share, comm_between.share) > MAX_SHARE_BETWEEN_STEPS:
        n_comm = comm_between.n_launches
        code = "comm-between-steps" if n_comm else "launches-between-steps"
        percent = f"{100 * between.share:.0f}"
        yield problem(code, process_id=events.process_id, percent=percent, n_comm=n_comm)


def _runs_mostly_in_graphs(operations: ProcessOperations) -> bool:
    """Tell whether CUDA graphs have more than half of the time of launched kernels."""
    launches = operations.kernel_launch[: operations.n_launched]
    durations_ns = (operations.kernel_end - operations.kernel_start)[: launches.size]
    _, launch_of_kernel, n_kernels = np.unique(launches, return_inverse=True, return_counts=True)
    is_whole_graph = operations.kernel_column("name_id")[: launches.size] == GRAPH_NAME_ID
    # A launch of several kernels is also that of a graph.
    is_in_graph = is_whole_graph | (n_kernels[launch_of_kernel] > 1)
    return bool(2 * durations_ns[is_in_graph].sum() > durations_ns.sum())


def member_columns(ranges: pa.Table, members: Members) -> dict[str, Any]:
    """Return the columns that every digest has of its members."""
    if members.rows.size == members.starts.size:
        texts = ranges["text"].take(pa.array(members.rows)).to_pylist()
        numbers = pa.array([step_number(text) for text in texts], pa.int64())
    else:
        # Members that a launch pattern shows have no ranges.
        numbers = pa.array(np.arange(members.starts.size))
    return {"number": numbers, "start_ns": members.starts, "end_ns": members.ends}


def _are_clocks_comparable(clock: DeviceClock, windows: Windows) -> bool:
    """Tell whether the error between device and host is small, or less than the median window."""
    error_ns = clock.span_ns or 0
    if error_ns <= MAX_UNREPORTED_CLOCK_ERROR_NS or not len(windows):
        return True
    return bool(error_ns < np.median(windows.ends - windows.starts))


def _problems_of_events(events: ProcessEvents, windows: Windows) -> Iterator[Problem]:
    """Yield clocks that are apart, devices that are no rank, and launches that are missing."""
    yield from _problems_of_clock(events, windows)
    process_id = events.process_id
    for stray in events.strays:
        yield problem(
            "stray-device", process_id=process_id, device=stray.device_id, n=stray.n_operations
        )
    n_missing = events.operations.n_without_launch
    total = events.operations.n_launchable
    if not events.has_launches:
        yield problem("no-launches", process_id=process_id, n=total)
    elif n_missing:
        yield problem("launch-missing", process_id=process_id, n=n_missing, total=total)


def _problems_of_clock(events: ProcessEvents, windows: Windows) -> Iterator[Problem]:
    clock = events.clock
    error_ns = clock.span_ns
    device = "the device" if events.device is None else f"device {events.device.device_id}"
    facts: dict[str, Any] = {"device": device, "process_id": events.process_id}
    if clock.offset_ns:
        yield problem("device-clock-apart", **facts, ms=f"{clock.offset_ns / 1e6:+,.3f}")
    if error_ns is not None and error_ns > MAX_UNREPORTED_CLOCK_ERROR_NS:
        is_comparable = _are_clocks_comparable(clock, windows)
        code = "device-clock-uncertain" if is_comparable else "device-clock-unknown"
        yield problem(code, **facts, ms=f"{error_ns / 1e6:,.3f}")


class _RankWork(Struct, frozen=True):
    """What the measures of one rank start from."""

    events: ProcessEvents
    capture: Capture
    windows: Windows
    steps: ProcessSteps
    # the phases of the steps, with backward passes that no range marks
    phases: _Phases
    device: DeviceTime
    # the phase of each kernel and of each copy, as an index into `names.PHASES`
    kernel_phase: NDArray[np.int8]
    copy_phase: NDArray[np.int8]

    @classmethod
    def of(
        cls,
        events: ProcessEvents,
        capture: Capture,
        windows: Windows,
        steps: ProcessSteps,
        phases: _Phases,
    ) -> "_RankWork":
        operations = events.operations
        return cls(
            events=events,
            capture=capture,
            windows=windows,
            steps=steps,
            phases=phases,
            device=device_time(operations, windows),
            kernel_phase=phases_of_launches(phases, operations.kernel_launch),
            copy_phase=phases_of_launches(phases, operations.copy_launch),
        )

    @property
    def operations(self) -> ProcessOperations:
        """The operations of the rank's device."""
        return self.events.operations

    @property
    def has_named_kernels(self) -> bool:
        """Whether kernels and their names were recorded."""
        return self.capture.recorded.kernels and self.capture.recorded.names

    def in_backward(self, phase: NDArray[np.int8]) -> Flags | None:
        """Return which operations, by their phase, are in backward, or None without backward."""
        if not self.phases["backward"].starts.size:
            return None
        is_in_backward: Flags = phase == PHASES.index("backward")
        return is_in_backward


class _MeasuredWindows(Struct, frozen=True):
    """What the windows of one rank show."""

    # by name of the column
    columns: dict[str, Int64 | Flags | None]
    causes: IdleCauses
    # the idle time of each phase, by its index in `names.PHASES`
    idle_ns_by_phase: list[Int64]


def _measure_rank(work: _RankWork, between: Inputs) -> dict[str, Any]:
    """Return the fields of `ProcessDigest` that are measured."""
    names = work.capture.operations.names
    members = work.steps.members
    windows = work.windows
    comm_streams = work.operations.kernel_column("stream_id")[work.operations.is_comm]
    stream = compute_stream(work.operations, comm_streams) if work.has_named_kernels else None
    measured = _measure_windows(work, between)
    columns = measured.columns.copy()
    columns.update(_measure_comm_and_graphs(work, comm_streams, stream))
    costs = _measure_phases(work, measured.idle_ns_by_phase)
    kernels, by_window = kernels_table(
        work.operations, names, work.kernel_phase, work.device.comm, windows
    )
    unknown = pa.nulls(len(windows), pa.int64())
    arrays = {
        name: unknown if values is None else pa.array(values) for name, values in columns.items()
    }
    comm = comm_operations(
        work.device,
        names,
        members,
        work.events.payloads,
        work.steps.passes,
        messages=work.events.messages,
    )
    return {
        "compute_stream_id": stream,
        "comm": comm,
        "windows": pa.table(arrays),
        "phases": _phases_table(costs, work.capture.recorded),
        "kernels": kernels,
        "kernels_by_window": by_window,
        "blocked_ns_by_call": measured.causes.by_call,
        "of_copies_ns_by_call": measured.causes.of_copies_by_call,
        "hidden": NarrowIntervals.of(work.device.hidden),
    }


def _measure_windows(work: _RankWork, between: Inputs) -> _MeasuredWindows:
    """Return the breakdown of each window, the causes of its idle time, and host times."""
    device = work.device
    windows = work.windows
    recorded = work.capture.recorded
    offset_ns = work.events.clock.offset_ns
    has_launches = bool(work.operations.n_launched)
    kernels_in_backward = work.in_backward(work.kernel_phase) if has_launches else None
    columns = breakdown(device, kernels_in_backward, recorded)
    data_phase = work.phases["data"]
    data = union_of(union(data_phase.starts, data_phase.ends), between.data)
    inputs = Inputs(data.shifted(offset_ns), between.quiet.shifted(offset_ns))
    causes, idle_ns_by_phase = _measure_idle(work, columns["idle_ns"], inputs)
    if columns["exposed_comm_ns"] is None or not has_launches:
        causes.columns["exposed_late_comm_ns"] = None
    columns |= causes.columns
    columns |= grad_copies(device, work.in_backward(work.copy_phase), recorded)
    columns |= blocking_copies(device, work.events.blocking_copies, recorded)
    columns |= _host_times(work, union_of(data, between.quiet))
    all_columns: dict[str, Int64 | Flags | None] = {
        "member": windows.member,
        "start_ns": windows.starts,
        "end_ns": windows.ends,
        "is_complete": windows.is_complete,
        **columns,
    }
    return _MeasuredWindows(all_columns, causes, idle_ns_by_phase)


def _measure_comm_and_graphs(
    work: _RankWork, comm_streams: Int64, stream: int | None
) -> dict[str, Int64 | None]:
    """Return communication on the compute stream and its delays, CUDA graphs and nsys' overhead.

    `comm_streams` are the streams of communication kernels, `stream` is the compute stream.
    """
    operations = work.operations
    windows = work.windows
    is_graph = operations.kernel_column("name_id") == GRAPH_NAME_ID
    graphs = union(operations.kernel_start[is_graph], operations.kernel_end[is_graph])
    on_compute_stream_ns = delay_ns = overhead_ns = None
    if work.has_named_kernels:
        on_compute_stream_ns = comm_on_stream(operations, comm_streams, stream, windows)
        delay_ns = comm_delays(operations, work.device.comm, windows)
    if work.capture.overhead is not None:
        overhead = union(*work.capture.overhead.of_process(work.events.process_id))
        overhead_ns = windows.covered(overhead)
    return {
        "comm_on_compute_stream_ns": on_compute_stream_ns,
        "comm_delay_ns": delay_ns,
        "graph_ns": windows.covered(graphs),
        "overhead_ns": overhead_ns,
    }


def _measure_phases(
    work: _RankWork, idle_ns_by_phase: Sequence[Int64]
) -> dict[str, dict[str, Int64 | None]]:
    """Return the costs of each phase, a value per member."""
    members = work.steps.members
    costs = {}
    for code, (name, ranges) in enumerate(work.phases.items()):
        in_phase = work.kernel_phase == code, work.copy_phase == code
        costs[name] = phase_costs(ranges, members, work.device, in_phase, idle_ns_by_phase[code])
        n_copies = launches_in_phase(ranges, members, work.events.blocking_copies)
        costs[name]["n_blocking_copies"] = n_copies
    return costs


def _host_times(work: _RankWork, inputs: IntervalSet) -> dict[str, Int64 | None]:
    """Return the host's times as columns of `schema.STEPS`.

    They are None without launches, or if names and ends of calls were not recorded.
    """
    events = work.events
    if events.device_waits is None or not events.operations.n_launched:
        return dict.fromkeys(_HOST_TIMES)
    times = host_times(
        events.operations,
        work.steps.members,
        work.windows,
        waits=events.device_waits,
        inputs=inputs,
        offset_ns=events.clock.offset_ns,
    )
    return dict(zip(_HOST_TIMES, (times.launch_ns, times.input_ns, times.lead_ns), strict=True))


def _measure_idle(
    work: _RankWork, idle_ns: Int64 | None, inputs: Inputs
) -> tuple[IdleCauses, list[Int64]]:
    """Return the causes of idle time, and the idle time of each phase.

    The causes are unknown if the clocks of device and host cannot be compared. The many gaps that
    this needs are not kept.
    """
    events = work.events
    windows = work.windows
    offset_ns = events.clock.offset_ns
    gaps = idle_gaps(events.operations, offset_ns)
    blocking_calls = _shift_calls(events.blocking_calls, offset_ns)
    phase_of_operation = np.append(work.kernel_phase, work.copy_phase)
    by_phase = phase_idle(gaps, windows, phase_of_operation[gaps.operation], len(PHASES))
    known_idle_ns = idle_ns if _are_clocks_comparable(events.clock, windows) else None
    causes = idle_causes(gaps, windows, known_idle_ns, inputs, blocking_calls)
    late_start_ns = exposed_late_comm_ns = None
    if known_idle_ns is not None:
        late_start_ns = late_starts(gaps, windows)
        exposed_late_comm_ns = exposed_by_late_launches(work.device, gaps.latency_ns, offset_ns)
    by_launches = {
        "idle_late_start_ns": late_start_ns,
        "exposed_late_comm_ns": exposed_late_comm_ns,
    }
    return replace(causes, columns=causes.columns | by_launches), by_phase


def _shift_calls(calls: pa.Table | None, offset_ns: int) -> pa.Table | None:
    """Return calls in the time of the device."""
    if calls is None or not offset_ns:
        return calls
    for name in ("start_ns", "end_ns"):
        shifted = pc.add(calls[name], offset_ns)
        calls = calls.set_column(calls.column_names.index(name), name, shifted)
    return calls


def _phases_table(costs: Mapping[str, Mapping[str, Int64 | None]], recorded: Recorded) -> pa.Table:
    """Return a row per (phase, member), with null for what was not recorded."""
    unrecorded = [] if recorded.names else ["compute_ns", "comm_ns", "exposed_comm_ns"]
    if not (recorded.memcpy and recorded.memset):
        unrecorded += ["device_ns", "idle_ns"]
    tables = []
    for phase, columns in costs.items():
        n_rows = columns["member"].size  # type: ignore[union-attr]  # always given
        arrays = {"phase": pa.array([phase] * n_rows, pa.string())}
        for name, values in columns.items():
            if values is None or name in unrecorded:
                arrays[name] = pa.nulls(n_rows, pa.int64())
            else:
                # A negative value stands for a step without window.
                arrays[name] = pa.array(values, mask=values < 0)
        tables.append(pa.table(arrays))
    # One chunk takes less memory than many chunks of few rows.
    return pa.concat_tables(tables).combine_chunks()
