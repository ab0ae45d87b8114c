"""The digest of one rank, which is a process on one device.

It has windows of steps, phases, kernels and communication. A process without device activity has
only its host steps.
"""

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
    Gaps,
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
from nsyspipe.analysis.host_lines import HostLines, PythonThread, find_host_lines
from nsyspipe.analysis.intervals import IntervalSet, NarrowIntervals, union, union_of
from nsyspipe.analysis.kernels import WindowSums, comm_delays, kernels_table, matrix_times
from nsyspipe.analysis.launching import device_waits, host_times
from nsyspipe.analysis.memory_calls import (
    MEMORY_CALL_COLUMNS,
    count_memory_calls,
    exposed_memory_calls,
    host_periods,
)
from nsyspipe.analysis.phases import (
    NO_OTHER_THREADS,
    LaunchingThreads,
    PhaseRanges,
    Stretches,
    launched_in,
    launches_in_phase,
    phase_costs,
    phase_stretches,
    phases_of_launches,
)
from nsyspipe.analysis.python_lock import LockWaits, ProcessLock, find_lock_waits, waits_of_thread
from nsyspipe.analysis.steps import Candidate, Members, Windows, capture_window, step_windows
from nsyspipe.model.canonical import DTOD_KIND, GRAPH_NAME_ID
from nsyspipe.model.matrix_datatypes import MatrixTimes
from nsyspipe.model.names import PHASES, step_number
from nsyspipe.model.problems import Problem, Recorded, problem
from nsyspipe.model.table import Flags, Int64
from nsyspipe.model.typed_tables import (
    BlockingCallsOfReportTable,
    BlockingCopiesOfReportTable,
    LockRangesOfReportTable,
    MemoryCallsOfReportTable,
    PayloadsOfReportTable,
    PythonSamplesOfReportTable,
    RangesOfReportTable,
)
from nsyspipe.reader.metadata import Capture
from nsyspipe.reader.report import pid_of

# A larger error between the clocks of device and host is a problem.
MAX_UNREPORTED_CLOCK_ERROR_NS = 1_000_000
# As a share of a step. Metrics are doubtful if the error is larger.
MAX_SMALL_CLOCK_ERROR_SHARE = 0.1
# A larger share of launches between steps is a problem. Ranges of whole steps leave out 0 to 2%,
# such as an optimizer. Ranges of one pass, or of some of the steps, leave out 17 to 99%.
MAX_SHARE_BETWEEN_STEPS = 0.1
_HOST_TIMES = ("host_launch_ns", "host_input_ns", "host_lead_ns")
# What `_measure_idle` finds only if times of host and device can be compared, besides causes.
_COLUMNS_BY_HOST_TIMES = ("idle_late_start_ns", "exposed_late_comm_ns", "exposed_alloc_ns")
_Phases: TypeAlias = Mapping[str, PhaseRanges]
# Of windows, by name of the column. None if not known.
_Columns: TypeAlias = dict[str, Int64 | Flags | None]
# Of members, by name of the column. None if not known.
_PhaseCosts: TypeAlias = dict[str, Int64 | None]


class PythonEvents(Struct, frozen=True):
    """What is known of the Python threads of a process."""

    # `canonical.PYTHON_SAMPLES` of the main thread, and of the only other thread while it holds
    # Python's lock; None if there are none.
    samples: PythonSamplesOfReportTable | None = None
    samples_of_other_thread: PythonSamplesOfReportTable | None = None
    # who waits for Python's lock, or None if this or calls were not recorded
    lock: ProcessLock | None = None


class ProcessEvents(Struct, frozen=True):
    """One rank's share of a capture: what one process did, and what ran on one of its devices."""

    process_id: int
    # of the rank's device, while all other fields are of the process
    operations: ProcessOperations
    # `canonical.RANGES` of the process
    ranges: RangesOfReportTable
    has_launches: bool
    # `canonical.BLOCKING_CALLS` of the process, or None if not recorded
    blocking_calls: BlockingCallsOfReportTable | None
    # `canonical.PAYLOADS` of the process
    payloads: PayloadsOfReportTable
    # of the device against the host's
    clock: DeviceClock
    # If the process used several devices: the rank's device, all devices (the one with most
    # operations first), and the rank's rows of `collectives.messages_of`.
    device: RankDevice | None = None
    process_devices: tuple[int, ...] = ()
    messages: PayloadsOfReportTable | None = None
    # devices that are no rank, only for the first rank of the process
    strays: tuple[StrayDevice, ...] = ()
    # `canonical.BLOCKING_COPIES` of the rank, or None if not recorded
    blocking_copies: BlockingCopiesOfReportTable | None = None
    # as `launching.device_waits` returns them, or None if calls were not recorded
    device_waits: IntervalSet | None = None
    python: PythonEvents = PythonEvents()
    # `canonical.MEMORY_CALLS` of the process, or None if not recorded
    memory_calls: MemoryCallsOfReportTable | None = None


class _ProcessTables(Struct, frozen=True):
    """The rows of one process in the tables of a report."""

    ranges: RangesOfReportTable
    payloads: PayloadsOfReportTable
    blocking_calls: BlockingCallsOfReportTable | None
    blocking_copies: BlockingCopiesOfReportTable | None
    waits: pa.Table
    calls: pa.Table | None
    python_samples: PythonSamplesOfReportTable | None
    samples_of_other_thread: PythonSamplesOfReportTable | None
    lock_ranges: LockRangesOfReportTable | None
    memory_calls: MemoryCallsOfReportTable | None


def process_events(capture: Capture, shares: Mapping[int, ProcessShare]) -> Iterator[ProcessEvents]:
    """Yield the events of each rank, in the order of `shares`.

    `shares` has, by process ID, the operations of the whole process and of each of its ranks.
    """
    names = capture.operations.names
    tables_of_processes = _tables_of_processes(capture, [*shares])
    for process_id, process_tables in zip(shares, tables_of_processes, strict=True):
        share = shares[process_id]
        # Payloads are of the whole process. So those of several ranks must be told apart.
        has_several_ranks = len(share.ranks) > 1
        messages = (
            messages_of(share.whole, names, process_tables.payloads) if has_several_ranks else None
        )
        for rank_index, rank in enumerate(share.ranks):
            events = _events_of_rank(process_id, share, rank, process_tables, messages)
            if rank_index > 0:
                # Devices that are no rank are reported once, with the first rank.
                events = replace(events, strays=())
            yield events


def _tables_of_processes(capture: Capture, process_ids: Sequence[int]) -> Iterator[_ProcessTables]:
    """Yield the rows of each process in all tables of a report, in the order of `process_ids`."""
    calls = capture.calls
    recorded = capture.recorded
    has_copy_kinds = recorded.memcpy and recorded.kinds
    blocking_copies = calls.blocking_copies if has_copy_kinds else None
    python_samples = _recorded_samples(capture.python.samples)
    samples_of_other_thread = _recorded_samples(capture.python.samples_of_others)
    tables_of_report = {
        "ranges": capture.ranges.table,
        "payloads": capture.payloads.table,
        "blocking_calls": calls.blocking,
        "blocking_copies": blocking_copies,
        "waits": calls.waits,
        "calls": calls.all,
        "python_samples": python_samples,
        "samples_of_other_thread": samples_of_other_thread,
        "lock_ranges": capture.python.lock_ranges,
        "memory_calls": capture.memory.table,
    }
    # Of each table, the rows of each process.
    parts_of_tables = [by_process(table, process_ids) for table in tables_of_report.values()]
    for tables_of_process in zip(*parts_of_tables, strict=True):
        yield _ProcessTables(**dict(zip(tables_of_report, tables_of_process, strict=True)))


def _recorded_samples(samples: PythonSamplesOfReportTable) -> PythonSamplesOfReportTable | None:
    """Return the samples, None if there are none."""
    return samples if samples.num_rows else None


def _events_of_rank(
    process_id: int,
    share: ProcessShare,
    rank: RankOperations,
    process: _ProcessTables,
    messages: PayloadsOfReportTable | None,
) -> ProcessEvents:
    """Return the events of one rank of a process.

    `share` has the operations of the process, and `process` its tables. `messages` has a row for
    each communication operation of the process, of which the rank gets its own. `messages` is None
    if the process has one rank.
    """
    operations = rank.operations
    device = rank.device
    device_id = None if device is None else device.device_id
    clock = clock_of_device(operations, process.waits, process.calls, device_id)
    rank_messages = messages
    if messages is not None:
        is_message_of_rank = rank.is_of_rank[share.whole.is_comm]
        rank_messages = messages.filter(pa.array(is_message_of_rank))
    # A rank misses launches only if it has operations that need one, and none of them has one.
    n_launchable = operations.n_launchable
    has_launches = n_launchable == 0 or operations.n_without_launch < n_launchable
    blocking_copies = _copies_of_rank(process.blocking_copies, device)
    waits = _waits_of_rank(operations, process, clock)
    return ProcessEvents(
        process_id=process_id,
        operations=operations,
        has_launches=has_launches,
        blocking_copies=blocking_copies,
        clock=clock,
        device=device,
        process_devices=share.whole.devices,
        messages=rank_messages,
        strays=share.strays,
        device_waits=waits,
        **_fields_of_process(process),
    )


def _fields_of_process(process: _ProcessTables) -> dict[str, Any]:
    """Return the fields of `ProcessEvents` that are tables of a process, whatever its device."""
    return {
        "ranges": process.ranges,
        "blocking_calls": process.blocking_calls,
        "payloads": process.payloads,
        "python": _python_of_process(process),
        "memory_calls": process.memory_calls,
    }


def _python_of_process(process: _ProcessTables) -> PythonEvents:
    """Return what is known of Python.

    The lock is not known if calls were not recorded, or if no thread of the process ever holds or
    waits for it.
    """
    lock = None
    lock_ranges = process.lock_ranges
    if lock_ranges is not None and lock_ranges.num_rows and process.calls is not None:
        lock = ProcessLock(lock_ranges, process.calls)
    return PythonEvents(process.python_samples, process.samples_of_other_thread, lock)


def _waits_of_rank(
    operations: ProcessOperations, process: _ProcessTables, clock: DeviceClock
) -> IntervalSet | None:
    """Return the times in which the host waits for the rank's device.

    None if calls were not recorded.
    """
    calls = process.calls
    blocking_calls = process.blocking_calls
    if calls is None or blocking_calls is None:
        return None
    return device_waits(operations, calls, blocking_calls, process.waits, clock.offset_ns)


def _copies_of_rank(
    copies: BlockingCopiesOfReportTable | None, device: RankDevice | None
) -> BlockingCopiesOfReportTable | None:
    """Return the copies of a process that are on a rank's device.

    `device` is None if the process used one device, and then all copies are on it.
    """
    if copies is None or device is None:
        return copies
    is_on_device = pc.equal(copies["device_id"], device.device_id)
    return copies.filter(is_on_device)


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
    # of the kernels in complete steps
    matrix_times: MatrixTimes
    # number and time of the kernels of each of those rows, by the window that they start in
    kernels_by_window: WindowSums
    # idle time by the API call that blocked the host, one value per window
    blocked_ns_by_call: dict[str, Int64]
    # the part of it that is of blocking copies from the host
    of_copies_ns_by_call: dict[str, Int64]
    # when communication ran while compute ran, report time
    overlap: NarrowIntervals
    # when the phases run on the device, report time
    stretches: Stretches
    # the other threads whose ranges are phases too
    other_threads: LaunchingThreads = NO_OTHER_THREADS
    # where the main thread was, or None if no sample is in a window
    host_lines: HostLines | None = None
    # waits for Python's lock, or None if not recorded
    lock_waits: LockWaits | None = None
    # Where the only other Python thread was meanwhile. None if no sample shows it, or if other
    # threads hold the lock too.
    holder_lines: HostLines | None = None


_NO_KERNEL_LAUNCHED = "no kernel was launched in these ranges"
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
        first_start_ns = pc.min(self.members["start_ns"])
        last_end_ns = pc.max(self.members["end_ns"])
        return first_start_ns.as_py(), last_end_ns.as_py()


def digest_process(
    events: ProcessEvents,
    steps: ProcessSteps,
    inputs_between: Inputs,
    capture: Capture,
    *,
    is_one_window: bool,
) -> tuple[ProcessDigest, list[Problem]]:
    """Reduce one rank to its digest. Returns the digest, and problems that say what it lacks.

    `inputs_between` is when the host gets input between the rank's steps. `is_one_window` says that
    the whole capture is the only window. Then there are no problems of steps.
    """
    operations = events.operations
    members = steps.members
    windows = capture_window(operations) if is_one_window else step_windows(members, operations)
    phases = dict(steps.phases)
    if steps.backward is not None:
        phases["backward"] = steps.backward
    work = _RankWork.of(events, capture, windows, steps, phases)
    measures = _measure_rank(work, inputs_between)
    digest = ProcessDigest(
        candidates=tuple(steps.candidates),
        members=_members_table(events, members),
        backward=steps.backward,
        other_threads=steps.other_threads,
        **_describe_rank(events, capture.recorded),
        **measures,
    )
    problems = list(steps.problems)
    problems += _problems_of_events(events, windows)
    if not is_one_window:
        problems += _problems_of_steps(events, members, windows, phases)
    problems_with_device = [replace(each, device_id=digest.device_id) for each in problems]
    return digest, problems_with_device


def _describe_rank(events: ProcessEvents, recorded: Recorded) -> dict[str, Any]:
    """Return the fields of `ProcessDigest` that do not depend on steps."""
    operations = events.operations
    device_id = operations.devices[0] if operations.devices else None
    return {
        "process_id": events.process_id,
        "device_id": device_id,
        "device_ids": events.process_devices,
        "device": events.device,
        "span": operations.span,
        "has_launches": events.has_launches,
        **_count_operations(operations, recorded),
    }


def _count_operations(operations: ProcessOperations, recorded: Recorded) -> dict[str, int | None]:
    """Return the fields of `ProcessDigest` that are counts, None for what was not recorded."""
    has_kernels = recorded.kernels
    has_named_kernels = has_kernels and recorded.names
    has_copy_kinds = recorded.memcpy and recorded.kinds
    n_comm = int(np.count_nonzero(operations.is_comm))
    n_dtod = int(np.count_nonzero(operations.copy_kind == DTOD_KIND))
    return {
        "n_kernels": operations.kernel_start.size if has_kernels else None,
        "n_comm": n_comm if has_named_kernels else None,
        "n_dtod": n_dtod if has_copy_kinds else None,
    }


def _members_table(events: ProcessEvents, members: Members) -> pa.Table:
    """Return the step ranges of a rank, with the hull of what each launched on the device.

    The hull is from the first start to the last end of these operations. It is null if the step
    launched nothing.
    """
    operations = events.operations
    kernels = operations.kernel_launch, operations.kernel_start, operations.kernel_end
    copies = operations.copy_launch, operations.copy_start, operations.copy_end
    n_launched, first_starts, last_ends = launched_in(members.starts, members.ends, kernels, copies)
    has_launched_nothing = n_launched == 0
    columns = member_columns(events.ranges, members)
    columns["device_start_ns"] = pa.array(first_starts, mask=has_launched_nothing)
    columns["device_end_ns"] = pa.array(last_ends, mask=has_launched_nothing)
    return pa.table(columns)


def _launches_of_kernels(operations: ProcessOperations) -> Int64:
    """Return the time of the launch of each kernel that has one. The other kernels are last."""
    return operations.kernel_launch[: operations.n_launched]


def _launched_kernels(operations: ProcessOperations, members: Members) -> Int64:
    """Return how many kernels were launched in each step range."""
    launches = np.sort(_launches_of_kernels(operations))
    # Launches before each start, and before each end.
    n_before_start = np.searchsorted(launches, members.starts)
    n_before_end = np.searchsorted(launches, members.ends)
    return n_before_end - n_before_start


def _problems_of_steps(
    events: ProcessEvents, members: Members, windows: Windows, phases: _Phases
) -> Iterator[Problem]:
    """Yield the problems of steps without window, launches between steps, and no backward pass."""
    yield from _problems_of_windows(events, members, windows)
    yield from _problems_between_steps(events, members)
    has_backward = phases["backward"].starts.size > 0
    if events.has_launches and not has_backward:
        is_in_graphs = _runs_mostly_in_graphs(events.operations)
        code = "backward-in-graphs" if is_in_graphs else "no-backward"
        yield problem(code, process_id=events.process_id)


def _problems_of_windows(
    events: ProcessEvents, members: Members, windows: Windows
) -> Iterator[Problem]:
    """Yield the problem that a rank has no steps, or that some of its steps have no window."""
    process_id = events.process_id
    n_members = members.starts.size
    if not n_members:
        yield problem("steps-missing-on-rank", process_id=process_id)
        return
    all_members = np.arange(n_members)
    members_without_window = np.setdiff1d(all_members, windows.member)
    n_without_window = members_without_window.size
    if n_without_window:
        n_kernels_of_member = _launched_kernels(events.operations, members)
        is_any_kernel_launched = n_kernels_of_member[members_without_window].any()
        why = _NO_KERNEL_LATER if is_any_kernel_launched else _NO_KERNEL_LAUNCHED
        yield problem("step-without-window", process_id=process_id, n=n_without_window, why=why)


class _LaunchesBetween(Struct, frozen=True):
    """The launches of a rank that are between two of its steps."""

    n_launches: np.int64
    # of all launches from the first step to the last
    share: float


def _count_launches_between(launches: Int64, members: Members) -> _LaunchesBetween:
    """Count the sorted launches between the end of a step range and the start of the next."""
    n_before_start = np.searchsorted(launches, members.starts)
    n_before_end = np.searchsorted(launches, members.ends)
    n_between = (n_before_start[1:] - n_before_end[:-1]).sum()
    n_in_steps = (n_before_end - n_before_start).sum()
    n_all = n_between + n_in_steps
    # Without launches, 0 / 1 is the share 0.
    share = n_between / max(n_all, 1)
    return _LaunchesBetween(n_between, share)


def _problems_between_steps(events: ProcessEvents, members: Members) -> Iterator[Problem]:
    """Yield the problem that many kernels, or many communication kernels, are between steps.

    The problem has the share of all kernels, even if only that of communication is large.
    """
    operations = events.operations
    launches = _launches_of_kernels(operations)
    is_comm = operations.is_comm[: launches.size]
    all_between = _count_launches_between(launches, members)
    comm_between = _count_launches_between(launches[is_comm], members)
    larger_share = max(all_between.share, comm_between.share)
    if larger_share > MAX_SHARE_BETWEEN_STEPS:
        n_comm = comm_between.n_launches
        code = "comm-between-steps" if n_comm else "launches-between-steps"
        percent = f"{100 * all_between.share:.0f}"
        yield problem(code, process_id=events.process_id, percent=percent, n_comm=n_comm)


def _runs_mostly_in_graphs(operations: ProcessOperations) -> bool:
    """Tell whether CUDA graphs have more than half of the time of launched kernels."""
    launches = _launches_of_kernels(operations)
    n_launched = launches.size
    starts_ns = operations.kernel_start[:n_launched]
    ends_ns = operations.kernel_end[:n_launched]
    durations_ns = ends_ns - starts_ns
    _, launch_of_kernel, n_kernels_of_launch = np.unique(
        launches, return_inverse=True, return_counts=True
    )
    name_ids = operations.kernel_column("name_id")[:n_launched]
    is_whole_graph = name_ids == GRAPH_NAME_ID
    # One launch starts several kernels only if it launches a graph.
    is_kernel_of_graph = n_kernels_of_launch[launch_of_kernel] > 1
    is_in_graph = is_whole_graph | is_kernel_of_graph
    in_graphs_ns = durations_ns[is_in_graph].sum()
    outside_ns = durations_ns.sum() - in_graphs_ns
    return bool(in_graphs_ns > outside_ns)


def member_columns(ranges: RangesOfReportTable, members: Members) -> dict[str, Any]:
    """Return the columns that every digest has of its members: ``number`` and host times.

    If the members are step ranges, the number is the one in the text of the range. Else they are
    units of a launch pattern, which have no rows in `ranges`, and are counted from 0.
    """
    n_members = members.starts.size
    are_ranges = members.rows.size == n_members
    if are_ranges:
        rows = pa.array(members.rows)
        texts = ranges["text"].take(rows)
        step_numbers = [step_number(text) for text in texts.to_pylist()]
        numbers = pa.array(step_numbers, pa.int64())
    else:
        numbers = pa.array(np.arange(n_members))
    return {"number": numbers, "start_ns": members.starts, "end_ns": members.ends}


def _are_clocks_comparable(clock: DeviceClock, windows: Windows) -> bool:
    """Tell whether times of device and host can be compared.

    They can unless the error between the clocks is known, large, and at least as long as the median
    window.
    """
    # The clocks differ by a value in a span, so the length of the span is the error.
    error_ns = clock.span_ns
    if error_ns is None or error_ns <= MAX_UNREPORTED_CLOCK_ERROR_NS:
        return True
    if not len(windows):
        return True
    durations_ns = windows.ends - windows.starts
    return bool(error_ns < np.median(durations_ns))


def _problems_of_events(events: ProcessEvents, windows: Windows) -> Iterator[Problem]:
    """Yield the problems of the clock, of missing launches, and of stray devices.

    A stray device is one that the process used so little that it is no rank.
    """
    yield from _problems_of_clock(events, windows)
    process_id = events.process_id
    for stray in events.strays:
        device_id = stray.device_id
        yield problem("stray-device", process_id=process_id, device=device_id, n=stray.n_operations)
    n_missing = events.operations.n_without_launch
    n_launchable = events.operations.n_launchable
    if not events.has_launches:
        yield problem("no-launches", process_id=process_id, n=n_launchable)
    elif n_missing:
        yield problem("launch-missing", process_id=process_id, n=n_missing, total=n_launchable)


def _problems_of_clock(events: ProcessEvents, windows: Windows) -> Iterator[Problem]:
    """Yield that the clock of a device was corrected, and that its error is large."""
    clock = events.clock
    # The clocks differ by a value in a span, so the length of the span is the error.
    error_ns = clock.span_ns
    # A process with one device needs no number of it.
    device = "the GPU" if events.device is None else f"GPU {events.device.device_id}"
    facts: dict[str, Any] = {"device": device, "process_id": events.process_id}
    if clock.offset_ns:
        offset_ms = f"{clock.offset_ns / 1e6:+,.3f}"
        yield problem("device-clock-apart", **facts, ms=offset_ms)
    if error_ns is not None and error_ns > MAX_UNREPORTED_CLOCK_ERROR_NS:
        is_comparable = _are_clocks_comparable(clock, windows)
        code = "device-clock-uncertain" if is_comparable else "device-clock-unknown"
        error_ms = f"{error_ns / 1e6:,.3f}"
        is_small = is_comparable and _is_small_clock_error(error_ns, windows)
        severity = "info" if is_small else "warning"
        yield problem(code, severity=severity, **facts, ms=error_ms)


def _is_small_clock_error(error_ns: int, windows: Windows) -> bool:
    """Tell whether the error between the clocks is a small part of the median window."""
    if not len(windows):
        return False
    durations_ns = windows.ends - windows.starts
    return bool(error_ns < MAX_SMALL_CLOCK_ERROR_SHARE * np.median(durations_ns))


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
        """Return what measures start from, with device times and the phase of each operation."""
        operations = events.operations
        device = device_time(operations, windows)
        kernel_phase = phases_of_launches(phases, operations.kernel_launch)
        copy_phase = phases_of_launches(phases, operations.copy_launch)
        return cls(
            events=events,
            capture=capture,
            windows=windows,
            steps=steps,
            phases=phases,
            device=device,
            kernel_phase=kernel_phase,
            copy_phase=copy_phase,
        )

    @property
    def operations(self) -> ProcessOperations:
        """The operations of the rank's device."""
        return self.events.operations

    @property
    def offset_ns(self) -> int:
        """What is added to times of the host to get times of the device."""
        return self.events.clock.offset_ns

    @property
    def has_named_kernels(self) -> bool:
        """Whether kernels and their names were recorded."""
        recorded = self.capture.recorded
        return recorded.kernels and recorded.names

    def in_backward(self, phase: NDArray[np.int8]) -> Flags | None:
        """Return which operations, by their phase, are in backward, or None without backward."""
        backward = self.phases["backward"]
        if not backward.starts.size:
            return None
        is_in_backward: Flags = phase == PHASES.index("backward")
        return is_in_backward


class _MeasuredWindows(Struct, frozen=True):
    """What the windows of one rank show."""

    # by name of the column
    columns: _Columns
    causes: IdleCauses
    # the idle time of each phase, by its index in `names.PHASES`
    idle_ns_by_phase: list[Int64]
    lock_waits: LockWaits | None


def _measure_rank(work: _RankWork, inputs_between: Inputs) -> dict[str, Any]:
    """Return the fields of `ProcessDigest` that are measured.

    `inputs_between` is when the host gets input between steps.
    """
    operations = work.operations
    windows = work.windows
    is_comm = operations.is_comm
    # The stream of each communication kernel.
    comm_streams = operations.kernel_column("stream_id")[is_comm]
    compute_stream_id = None
    if work.has_named_kernels:
        compute_stream_id = compute_stream(operations, comm_streams)
    measured = _measure_windows(work, inputs_between)
    columns_of_comm_and_graphs = _measure_comm_and_graphs(work, comm_streams, compute_stream_id)
    columns = measured.columns | columns_of_comm_and_graphs
    costs_by_phase = _measure_phases(work, measured.idle_ns_by_phase)
    comm = _list_comm_operations(work)
    windows_table = _windows_table(columns, len(windows))
    phases = _phases_table(costs_by_phase, work.capture.recorded)
    stretches = phase_stretches(operations, work.kernel_phase, work.steps.members)
    return {
        "compute_stream_id": compute_stream_id,
        "comm": comm,
        "windows": windows_table,
        "phases": phases,
        "blocked_ns_by_call": measured.causes.by_call,
        "of_copies_ns_by_call": measured.causes.of_copies_by_call,
        "overlap": NarrowIntervals.of(work.device.hidden),
        "stretches": stretches,
        **_measure_kernels(work),
        **_measure_python(work, measured),
    }


def _measure_kernels(work: _RankWork) -> dict[str, Any]:
    """Return the fields of `ProcessDigest` that are sums of kernels."""
    operations = work.operations
    names = work.capture.operations.names
    kernels, kernels_by_window = kernels_table(
        operations, names, work.kernel_phase, work.device.comm, work.windows
    )
    return {
        "kernels": kernels,
        "kernels_by_window": kernels_by_window,
        "matrix_times": matrix_times(operations, names, work.windows),
    }


def _measure_python(work: _RankWork, measured: _MeasuredWindows) -> dict[str, Any]:
    """Return the fields of `ProcessDigest` that are of Python."""
    return {
        "host_lines": _find_host_lines(work, measured.causes),
        "lock_waits": measured.lock_waits,
        "holder_lines": _find_holder_lines(work, measured),
    }


def _find_host_lines(work: _RankWork, causes: IdleCauses) -> HostLines | None:
    """Return the samples of the main thread in the windows, None if there are none."""
    samples = work.events.python.samples
    if samples is None:
        return None
    thread = _thread_of(work, samples)
    host_lines = find_host_lines(thread, work.windows, causes.times, work.offset_ns)
    return host_lines if host_lines.window.size else None


def _find_holder_lines(work: _RankWork, measured: _MeasuredWindows) -> HostLines | None:
    """Return where the only other Python thread was while the launching thread waited for the lock.

    Only samples in idle time of the windows count. None if there are none, or if several threads
    hold the lock.
    """
    samples = work.events.python.samples_of_other_thread
    waits = measured.lock_waits
    if samples is None or waits is None or not waits.has_one_holder:
        return None
    # Waits are on the clock of the device, and samples on that of the host.
    device_times_ns = samples["time_ns"].to_numpy() + work.offset_ns
    is_during_wait = waits.times.contains(device_times_ns)
    samples_during_waits = samples.filter(pa.array(is_during_wait))
    other_thread = _thread_of(work, samples_during_waits)
    idle_times_of_causes = measured.causes.times
    holder_lines = find_host_lines(other_thread, work.windows, idle_times_of_causes, work.offset_ns)
    return holder_lines if holder_lines.window.size else None


def _thread_of(work: _RankWork, samples: PythonSamplesOfReportTable) -> PythonThread:
    """Return a Python thread by its samples, with the lines and frames that samples refer to."""
    python = work.capture.python
    return PythonThread(samples, python.lines, python.frames)


def _list_comm_operations(work: _RankWork) -> CommOperations:
    """Return the communication operations of a rank."""
    names = work.capture.operations.names
    events = work.events
    return comm_operations(
        work.device,
        names,
        work.steps.members,
        events.payloads,
        work.steps.passes,
        messages=events.messages,
    )


def _windows_table(columns: _Columns, n_windows: int) -> pa.Table:
    """Return the columns of windows as a table, with null for what is not known."""
    unknown = pa.nulls(n_windows, pa.int64())
    arrays = {}
    for name, values in columns.items():
        if values is None:
            arrays[name] = unknown
        elif name in MEMORY_CALL_COLUMNS:
            # A negative number of calls stands for a window in which it is not known.
            arrays[name] = pa.array(values, mask=values < 0)
        else:
            arrays[name] = pa.array(values)
    return pa.table(arrays)


def _measure_windows(work: _RankWork, inputs_between: Inputs) -> _MeasuredWindows:
    """Return the breakdown of each window, the causes of its idle time, and host times.

    `inputs_between` is when the host gets input between steps.
    """
    device = work.device
    windows = work.windows
    recorded = work.capture.recorded
    has_launches = bool(work.operations.n_launched)
    is_kernel_in_backward = work.in_backward(work.kernel_phase) if has_launches else None
    measures = breakdown(device, is_kernel_in_backward, recorded)
    is_exposed_comm_known = measures["exposed_comm_ns"] is not None
    inputs = _inputs_of_host(work, inputs_between)
    measured_idle = _measure_idle(work, measures["idle_ns"], inputs)
    causes = measured_idle.causes
    measures |= causes.columns
    if not (is_exposed_comm_known and has_launches):
        # It is a part of the exposed communication, and needs the times of launches.
        measures["exposed_late_comm_ns"] = None
    is_copy_in_backward = work.in_backward(work.copy_phase)
    measures |= grad_copies(device, is_copy_in_backward, recorded)
    measures |= blocking_copies(device, work.events.blocking_copies, recorded)
    measures |= _host_times(work, inputs)
    periods = host_periods(work.steps.members, windows)
    measures |= count_memory_calls(work.events.memory_calls, periods)
    columns: _Columns = {
        "member": windows.member,
        "start_ns": windows.starts,
        "end_ns": windows.ends,
        "is_complete": windows.is_complete,
        **measures,
    }
    return _MeasuredWindows(
        columns, causes, measured_idle.idle_ns_by_phase, measured_idle.lock_waits
    )


def _inputs_of_host(work: _RankWork, inputs_between: Inputs) -> Inputs:
    """Return when the host was getting input: in ranges of the data phase, or in quiet times.

    Ranges of the data phase are in steps or between steps. Quiet times are only between steps. In a
    quiet time, the thread is in no range, in no call, and does not wait for Python's lock.
    `inputs_between` has both of them between steps, as far as ranges and calls show.
    """
    lock = work.events.python.lock
    if lock is None:
        quiet = inputs_between.quiet
    else:
        waits = waits_of_thread(lock, work.steps.members.thread_id)
        quiet = inputs_between.quiet.without(waits)
    data_phase = work.phases["data"]
    data_in_steps = union(data_phase.starts, data_phase.ends)
    data = union_of(data_in_steps, inputs_between.data)
    return Inputs(data=data, quiet=quiet)


def _measure_comm_and_graphs(
    work: _RankWork, comm_streams: Int64, compute_stream_id: int | None
) -> dict[str, Int64 | None]:
    """Return columns of windows for communication, CUDA graphs and the overhead of nsys.

    The columns of communication are its time on the compute stream, and its delays. They are None
    if kernels have no names. `comm_streams` has the stream of each communication kernel.
    """
    operations = work.operations
    windows = work.windows
    is_graph = operations.kernel_column("name_id") == GRAPH_NAME_ID
    graph_starts = operations.kernel_start[is_graph]
    graph_ends = operations.kernel_end[is_graph]
    graph_ns = windows.covered(union(graph_starts, graph_ends))
    if work.has_named_kernels:
        on_compute_stream_ns = comm_on_stream(operations, comm_streams, compute_stream_id, windows)
        delay_ns = comm_delays(operations, work.device.comm, windows)
    else:
        on_compute_stream_ns = None
        delay_ns = None
    overhead = work.capture.overhead
    if overhead is None:
        overhead_ns = None
    else:
        starts, ends = overhead.of_process(work.events.process_id)
        overhead_ns = windows.covered(union(starts, ends))
    return {
        "comm_on_compute_stream_ns": on_compute_stream_ns,
        "comm_delay_ns": delay_ns,
        "graph_ns": graph_ns,
        "overhead_ns": overhead_ns,
    }


def _measure_phases(work: _RankWork, idle_ns_by_phase: Sequence[Int64]) -> dict[str, _PhaseCosts]:
    """Return the columns of costs of each phase, with a value per member."""
    members = work.steps.members
    copies = work.events.blocking_copies
    costs_by_phase = {}
    # `work.phases` is in the order of `PHASES`. Kernels and copies have the index of their phase.
    for phase_index, phase in enumerate(work.phases):
        ranges = work.phases[phase]
        columns = phase_costs(
            ranges,
            members,
            work.device,
            kernels=work.kernel_phase == phase_index,
            copies=work.copy_phase == phase_index,
            idle_ns=idle_ns_by_phase[phase_index],
        )
        columns["n_blocking_copies"] = launches_in_phase(ranges, members, copies)
        costs_by_phase[phase] = columns
    return costs_by_phase


def _host_times(work: _RankWork, inputs: Inputs) -> dict[str, Int64 | None]:
    """Return how long the host launches, gets input and runs ahead, as columns of `schema.STEPS`.

    The columns are None without launches, or if names and ends of calls were not recorded.
    """
    events = work.events
    if events.device_waits is None or not events.operations.n_launched:
        return dict.fromkeys(_HOST_TIMES)
    all_inputs = union_of(inputs.data, inputs.quiet)
    times = host_times(
        events.operations,
        work.steps.members,
        work.windows,
        waits=events.device_waits,
        inputs=all_inputs,
        offset_ns=work.offset_ns,
    )
    columns = times.launch_ns, times.input_ns, times.lead_ns
    return dict(zip(_HOST_TIMES, columns, strict=True))


class _MeasuredIdle(Struct, frozen=True):
    """Why one rank idles, and in which phases."""

    causes: IdleCauses
    # by the index of the phase in `names.PHASES`
    idle_ns_by_phase: list[Int64]
    lock_waits: LockWaits | None


def _measure_idle(work: _RankWork, idle_ns: Int64 | None, inputs: Inputs) -> _MeasuredIdle:
    """Return the causes of idle time, and the idle time of each phase.

    `idle_ns` is the idle time of each window, and `inputs` are on the clock of the host. The causes
    are unknown if the clocks of device and host cannot be compared.
    """
    events = work.events
    windows = work.windows
    offset_ns = work.offset_ns
    # There are many gaps, which are freed when this function returns.
    gaps = idle_gaps(events.operations, offset_ns)
    idle_ns_by_phase = _idle_by_phase(work, gaps)
    known_idle_ns = idle_ns if _are_clocks_comparable(events.clock, windows) else None
    device_inputs = _shift_inputs(inputs, offset_ns)
    blocking_calls = _shift_calls(events.blocking_calls, offset_ns)
    causes = idle_causes(gaps, windows, known_idle_ns, device_inputs, blocking_calls)
    # The columns that follow need the times of launches and calls on the clock of the device.
    if known_idle_ns is None:
        more_columns: dict[str, Int64 | None] = dict.fromkeys(_COLUMNS_BY_HOST_TIMES)
    else:
        more_columns = {
            "idle_late_start_ns": late_starts(gaps, windows),
            "exposed_late_comm_ns": exposed_by_late_launches(
                work.device, gaps.latency_ns, offset_ns
            ),
            "exposed_alloc_ns": exposed_memory_calls(events.memory_calls, work.device, offset_ns),
        }
    columns = causes.columns | more_columns
    lock_waits = _lock_waits(work, gaps, causes)
    return _MeasuredIdle(replace(causes, columns=columns), idle_ns_by_phase, lock_waits)


def _idle_by_phase(work: _RankWork, gaps: Gaps) -> list[Int64]:
    """Return for each phase the idle time of each window, ns.

    A gap is idle time of the phase in which the operation that explains the gap was launched.
    """
    # Operations are the kernels, then the copies.
    phase_of_operation = np.append(work.kernel_phase, work.copy_phase)
    phase_of_gap = phase_of_operation[gaps.operation]
    return phase_idle(gaps, work.windows, phase_of_gap, len(PHASES))


def _lock_waits(work: _RankWork, gaps: Gaps, causes: IdleCauses) -> LockWaits | None:
    """Return when the device idles because of Python's lock; None if that is not known."""
    lock = work.events.python.lock
    if lock is None:
        return None
    return find_lock_waits(gaps, work.windows, causes.times, lock, work.offset_ns)


def _shift_inputs(inputs: Inputs, offset_ns: int) -> Inputs:
    """Return when the host was getting input, on the clock of the device."""
    data = inputs.data.shifted(offset_ns)
    quiet = inputs.quiet.shifted(offset_ns)
    return Inputs(data, quiet)


def _shift_calls(calls: pa.Table | None, offset_ns: int) -> pa.Table | None:
    """Return calls with their times on the clock of the device.

    `offset_ns` is added to times of the host to get times of the device.
    """
    if calls is None or not offset_ns:
        return calls
    for name in ("start_ns", "end_ns"):
        place = calls.column_names.index(name)
        shifted_ns = pc.add(calls[name], offset_ns)
        calls = calls.set_column(place, name, shifted_ns)
    return calls


def _phases_table(costs: Mapping[str, _PhaseCosts], recorded: Recorded) -> pa.Table:
    """Return the costs of phases as a table, with a row per (phase, member).

    A cost is null if it was not recorded, or if the step has no window to measure it in.
    """
    unrecorded: set[str] = set()
    if not recorded.names:
        unrecorded |= {"compute_ns", "comm_ns", "exposed_comm_ns"}
    if not (recorded.memcpy and recorded.memset):
        unrecorded |= {"device_ns", "idle_ns"}
    tables = []
    for phase, columns in costs.items():
        n_rows = columns["member"].size  # type: ignore[union-attr]  # always given
        unknown = pa.nulls(n_rows, pa.int64())
        arrays = {"phase": pa.repeat(phase, n_rows)}
        for name, values in columns.items():
            if values is None or name in unrecorded:
                arrays[name] = unknown
            else:
                # A negative value stands for a step without window.
                has_no_window = values < 0
                arrays[name] = pa.array(values, mask=has_no_window)
        tables.append(pa.table(arrays))
    # One chunk takes less memory than many chunks of few rows.
    return pa.concat_tables(tables).combine_chunks()
