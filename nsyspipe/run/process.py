"""What one rank of a report, a process on one device, comes down to: windows of its steps, phases, kernels, communication; without device activity its host steps."""

from collections.abc import Iterator, Mapping
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
from nsyspipe.analysis.devices import ProcessShare, RankDevice, StrayDevice
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

_LARGE_SPAN_NS = 1_000_000  # a larger error of figures that compare device and host is told
# Of launches: ranges of whole steps leave out 0 to 2 %, an optimizer perhaps; those of one pass, or
# of some of the steps, 17 to 99 %.
_MOST_BETWEEN = 0.1
_Phases: TypeAlias = Mapping[str, PhaseRanges]


class ProcessEvents(Struct, frozen=True):
    """One rank's share of a capture: what one process did, and what ran on one of its devices."""

    process_id: int
    operations: ProcessOperations  # of the rank's device; all else is of the process
    ranges: pa.Table  # `canonical.RANGES` of the process
    has_launches: bool
    blocking_calls: (
        pa.Table | None
    )  # `canonical.BLOCKING_CALLS` of the process; None when not recorded
    payloads: pa.Table  # `canonical.PAYLOADS` of the process
    clock: DeviceClock  # of the device against the host's
    # Where the process used several devices: which one is the rank's, all of them, the one with
    # most operations first, and its rows of `collectives.messages_of`
    device: RankDevice | None = None
    process_devices: tuple[int, ...] = ()
    messages: pa.Table | None = None
    strays: tuple[
        StrayDevice, ...
    ] = ()  # devices that are no rank; told by the first rank of the process
    blocking_copies: pa.Table | None = (
        None  # `canonical.BLOCKING_COPIES` of the rank; None when not recorded
    )
    device_waits: IntervalSet | None = (
        None  # as `launching.device_waits` finds them; None where calls were not recorded
    )


def process_events(capture: Capture, shares: Mapping[int, ProcessShare]) -> Iterator[ProcessEvents]:
    """Yield the events of each rank: of the processes that `devices.operations_by_process` has found, in that order."""
    calls = capture.calls
    copies = calls.blocking_copies if capture.recorded.memcpy and capture.recorded.kinds else None
    tables = (
        capture.ranges.table,
        capture.payloads.table,
        calls.blocking,
        copies,
        calls.waits,
        calls.all,
    )
    of_processes = zip(
        shares.items(), *(by_process(table, [*shares]) for table in tables), strict=True
    )
    for (
        process_id,
        share,
    ), ranges, payloads, blocking, own_copies, waits, own_calls in of_processes:
        is_shared = len(share.ranks) > 1
        messages = (
            messages_of(share.whole, capture.operations.names, payloads) if is_shared else None
        )
        for at, rank in enumerate(share.ranks):
            own = rank.operations
            of_rank = pa.array(rank.is_of_rank[share.whole.is_comm])
            events = ProcessEvents(
                process_id=process_id,
                operations=own,
                ranges=ranges,
                has_launches=own.n_without_launch < max(own.n_launchable, 1),
                blocking_calls=blocking,
                blocking_copies=_copies_of_rank(own_copies, rank.device),
                payloads=payloads,
                clock=clock_of_device(own, waits, own_calls, rank.device and rank.device.device_id),
                device=rank.device,
                process_devices=share.whole.devices,
                messages=messages.filter(of_rank) if messages is not None else None,
                strays=share.strays if at == 0 else (),
            )
            if blocking is not None and own_calls is not None:
                awaited = device_waits(own, own_calls, blocking, waits, events.clock.offset_ns)
                events = replace(events, device_waits=awaited)
            yield events


def _copies_of_rank(copies: pa.Table | None, device: RankDevice | None) -> pa.Table | None:
    """Return the copies of a process that are of its rank on one device; all of them where it used one device."""
    if copies is None or device is None:
        return copies
    return copies.filter(pc.equal(copies["device_id"], device.device_id))


class ProcessSteps(Struct, frozen=True):
    """The steps of one process."""

    candidates: list[Candidate]
    members: Members
    phases: Mapping[str, PhaseRanges]  # as `phases.phase_ranges` finds them
    others: LaunchingThreads  # whose ranges are phases too
    backward: (
        PhaseRanges | None
    )  # where no range marks it; None where one does, or nothing shows it
    # the backward passes: `backward`, else those of `phases`, ranges of one pass joined
    passes: PhaseRanges
    problems: tuple[Problem, ...]


class _Process(Struct, frozen=True):
    process_id: int
    candidates: tuple[Candidate, ...]  # every family of ranges on it, largest first
    # A row per step range: ``number`` (null: not exactly one integer in the text), host
    # ``start_ns``, ``end_ns``, more
    members: pa.Table

    @property
    def pid(self) -> int:
        """The operating system's process id."""
        return pid_of(self.process_id)


class ProcessDigest(_Process, frozen=True):
    """One rank; of members also the hull of what they launched, ``device_start_ns``, ``device_end_ns`` (null: nothing)."""

    device_id: int | None  # the rank's device
    device_ids: tuple[int, ...]  # all of the process, the one with most operations first
    device: (
        RankDevice | None
    )  # which operations of the process are the rank's; None where it used one device
    compute_stream_id: int | None  # the stream that most compute kernels run on
    n_kernels: int | None
    n_comm: int | None
    n_dtod: int | None
    span: tuple[int, int]  # first start and last end of its operations, report time, ns
    has_launches: bool  # whether any operation has a launch
    comm: CommOperations  # its communication operations
    backward: (
        PhaseRanges | None
    )  # where no range marks it; None where one does, or nothing shows it
    # Per window ``member``, ``start_ns``, ``end_ns``, ``is_complete``, breakdown, ``graph_ns`` (of
    # graphs captured as a whole)
    windows: pa.Table
    phases: pa.Table  # one row per (phase, member): ``phase``, ``member`` and the costs
    kernels: (
        pa.Table
    )  # one row per (phase, name): ``phase`` (null for none), ``name`` and the costs
    # number and time of each of those rows' kernels by the window that they start in
    kernels_by_window: WindowSums
    blocked_ns_by_call: dict[
        str, Int64
    ]  # idle time by the API call that blocked the host, one value per window
    of_copies_ns_by_call: dict[
        str, Int64
    ]  # the part of it that is of blocking copies from the host
    hidden: NarrowIntervals  # when communication ran beside compute, report time
    others: LaunchingThreads = (
        NO_OTHER_THREADS  # the threads besides that of the steps whose ranges are phases too
    )


_NO_KERNEL_LATER = "no kernel launched in these ranges starts later than the preceding step"


class HostDigest(_Process, frozen=True):
    """One process without device activity; of members also ``is_complete`` and per phase ``<phase>_ns`` (null: none)."""

    device_id: None = None
    device_ids: tuple[int, ...] = ()

    @property
    def span(self) -> tuple[int, int]:
        """First start and last end of its steps, report time, ns; asked only where there are any."""
        return pc.min(self.members["start_ns"]).as_py(), pc.max(self.members["end_ns"]).as_py()


def digest_process(
    events: ProcessEvents,
    steps: ProcessSteps,
    between: Inputs,
    capture: Capture,
    *,
    is_one_window: bool,
) -> tuple[ProcessDigest, list[Problem]]:
    """Reduce one process to its digest, and say what it lacks; `between`: what its host does between steps."""
    operations = events.operations
    recorded = capture.recorded
    members = steps.members
    windows = capture_window(operations) if is_one_window else step_windows(members, operations)
    phases = dict(steps.phases)
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
        device_ids=events.process_devices,
        device=events.device,
        n_kernels=operations.kernel_start.size if recorded.kernels else None,
        n_comm=int(np.count_nonzero(operations.is_comm)) if has_comm else None,
        n_dtod=int(np.count_nonzero(operations.copy_kind == DTOD_KIND)) if has_copies else None,
        span=operations.span,
        has_launches=events.has_launches,
        backward=steps.backward,
        others=steps.others,
        **_measured(events, capture, windows, phases, steps, between=between),
    )
    problems = [*steps.problems, *_problems(events, windows)]
    if not is_one_window:
        problems += _problems_of_steps(events, members, windows, phases)
    return digest, [replace(one, device_id=digest.device_id) for one in problems]


def _launched_kernels(operations: ProcessOperations, members: Members) -> Int64:
    """Return how many kernels were launched in each step range."""
    launches = np.sort(operations.kernel_launch[: operations.n_launched])
    return np.searchsorted(launches, members.ends) - np.searchsorted(launches, members.starts)


def _problems_of_steps(
    events: ProcessEvents, members: Members, windows: Windows, phases: _Phases
) -> Iterator[Problem]:
    """Say which steps have no window, and what of the rank lies outside of its steps or shows no backward pass."""
    operations = events.operations
    if not members.starts.size:
        yield problem("steps-missing-on-rank", process_id=events.process_id)
    elif (without := np.setdiff1d(np.arange(members.starts.size), windows.member)).size:
        n_kernels = _launched_kernels(operations, members)[without]
        why = _NO_KERNEL_LATER if n_kernels.any() else "no kernel was launched in these ranges"
        yield problem("step-without-window", process_id=events.process_id, n=without.size, why=why)
    edges = np.stack((members.starts, members.ends), axis=1).ravel()
    launches = operations.kernel_launch[: operations.n_launched]
    of_comm = launches[operations.is_comm[: launches.size]]
    # Of all, and of communication: how many are in a range, between it and the next, in the next,
    # ...
    in_turn = [np.diff(np.searchsorted(one, edges)) for one in (launches, of_comm)]
    (_, share), (n_comm, share_of_comm) = (
        (n[1::2].sum(), n[1::2].sum() / max(n.sum(), 1)) for n in in_turn
    )
    if max(share, share_of_comm) > _MOST_BETWEEN:
        code = "comm-between-steps" if n_comm else "launches-between-steps"
        yield problem(
            code, process_id=events.process_id, percent=f"{100 * share:.0f}", n_comm=n_comm
        )
    if not phases["backward"].starts.size and events.has_launches:
        length = (operations.kernel_end - operations.kernel_start)[: launches.size]
        _, own, n = np.unique(launches, return_inverse=True, return_counts=True)
        is_whole = operations.kernel_column("name_id")[: launches.size] == GRAPH_NAME_ID
        in_graphs = length[is_whole | (n[own] > 1)].sum()  # or several kernels of one launch
        code = "backward-in-graphs" if 2 * in_graphs > length.sum() else "no-backward"
        yield problem(code, process_id=events.process_id)


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
    return (
        span_ns <= _LARGE_SPAN_NS
        or not len(windows)
        or bool(span_ns < np.median(windows.ends - windows.starts))
    )


def _problems(events: ProcessEvents, windows: Windows) -> Iterator[Problem]:
    process = events.process_id
    clock = events.clock
    device = "the device" if events.device is None else f"device {events.device.device_id}"
    what: dict[str, Any] = {"device": device, "process_id": process}
    if clock.offset_ns:
        yield problem("device-clock-apart", **what, ms=f"{clock.offset_ns / 1e6:+,.3f}")
    if clock.span_ns is not None and clock.span_ns > _LARGE_SPAN_NS:
        code = "device-clock-uncertain" if _is_known(clock, windows) else "device-clock-unknown"
        yield problem(code, **what, ms=f"{clock.span_ns / 1e6:,.3f}")
    for stray in events.strays:
        yield problem(
            "stray-device", process_id=process, device=stray.device_id, n=stray.n_operations
        )
    n_missing = events.operations.n_without_launch
    total = events.operations.n_launchable
    if not events.has_launches:
        yield problem("no-launches", process_id=process, n=total)
    elif n_missing:
        yield problem("launch-missing", process_id=process, n=n_missing, total=total)


def _measured(
    events: ProcessEvents,
    capture: Capture,
    windows: Windows,
    phases: _Phases,
    steps: ProcessSteps,
    *,
    between: Inputs,
) -> dict[str, Any]:
    operations = events.operations
    recorded = capture.recorded
    names = capture.operations.names
    device = device_time(operations, windows)
    offset = events.clock.offset_ns
    kernel_phase = phases_of_launches(phases, operations.kernel_launch)
    copy_phase = phases_of_launches(phases, operations.copy_launch)
    parts = breakdown(
        device, _in_backward(phases, kernel_phase) if operations.n_launched else None, recorded
    )
    data = union_of(union(phases["data"].starts, phases["data"].ends), between.data)
    inputs = Inputs(data.shifted(offset), between.quiet.shifted(offset))
    all_phases = np.append(kernel_phase, copy_phase)
    causes, idle = _idle(events, device, parts["idle_ns"], inputs, all_phases)
    if parts["exposed_comm_ns"] is None or not operations.n_launched:
        causes.columns["exposed_late_comm_ns"] = None
    parts |= causes.columns | grad_copies(device, _in_backward(phases, copy_phase), recorded)
    parts |= blocking_copies(device, events.blocking_copies, recorded)
    parts |= _host_times(events, steps.members, windows, union_of(data, between.quiet))
    is_graph = operations.kernel_column("name_id") == GRAPH_NAME_ID
    graphs = union(operations.kernel_start[is_graph], operations.kernel_end[is_graph])
    is_known = recorded.kernels and recorded.names
    of_comm = operations.kernel_column("stream_id")[operations.is_comm]
    stream = compute_stream(operations, of_comm) if is_known else None
    overhead = (
        None if capture.overhead is None else union(*capture.overhead.of_process(events.process_id))
    )
    parts |= {
        "comm_on_compute_stream_ns": comm_on_stream(operations, of_comm, stream, windows)
        if is_known
        else None,
        "comm_delay_ns": comm_delays(operations, device.comm, windows) if is_known else None,
        "graph_ns": windows.covered(graphs),
        "overhead_ns": None if overhead is None else windows.covered(overhead),
    }
    costs = {}
    for code, (name, own) in enumerate(phases.items()):
        costs[name] = phase_costs(
            own, steps.members, device, (kernel_phase == code, copy_phase == code), idle[code]
        )
        costs[name]["n_blocking_copies"] = launches_in_phase(
            own, steps.members, events.blocking_copies
        )
    kernels, by_window = kernels_table(operations, names, kernel_phase, device.comm, windows)
    columns: dict[str, Int64 | Flags | None] = {
        "member": windows.member,
        "start_ns": windows.starts,
    }
    columns |= {"end_ns": windows.ends, "is_complete": windows.is_complete, **parts}
    unknown = pa.nulls(len(windows), pa.int64())
    return {
        "compute_stream_id": stream,
        "comm": comm_operations(
            device, names, steps.members, events.payloads, steps.passes, messages=events.messages
        ),
        "windows": pa.table(
            {name: unknown if part is None else pa.array(part) for name, part in columns.items()}
        ),
        "phases": _phases_table(costs, recorded),
        "kernels": kernels,
        "kernels_by_window": by_window,
        "blocked_ns_by_call": causes.by_call,
        "of_copies_ns_by_call": causes.of_copies_by_call,
        "hidden": NarrowIntervals.of(device.hidden),
    }


def _host_times(
    events: ProcessEvents, members: Members, windows: Windows, inputs: IntervalSet
) -> dict[str, Int64 | None]:
    """Return the host's times as columns of `schema.STEPS`; None without launches, or without the calls' names and ends."""
    if events.device_waits is None or not events.operations.n_launched:
        return dict.fromkeys(("host_launch_ns", "host_input_ns", "host_lead_ns"))
    waits = events.device_waits
    offset_ns = events.clock.offset_ns
    times = host_times(
        events.operations, members, windows, waits=waits, inputs=inputs, offset_ns=offset_ns
    )
    return {
        "host_launch_ns": times.launch_ns,
        "host_input_ns": times.input_ns,
        "host_lead_ns": times.lead_ns,
    }


def _idle(
    events: ProcessEvents,
    device: DeviceTime,
    idle_ns: Int64 | None,
    inputs: Inputs,
    phase: NDArray[np.int8],
) -> tuple[IdleCauses, list[Int64]]:
    """Return what `idle_causes` (nothing where clocks are not known) and `phase_idle` say, by the phase of each operation; the many gaps go."""
    windows = device.windows
    offset = events.clock.offset_ns
    blocking = events.blocking_calls
    gaps = idle_gaps(events.operations, offset)
    if blocking is not None and offset:
        for name in ("start_ns", "end_ns"):
            blocking = blocking.set_column(
                blocking.column_names.index(name), name, pc.add(blocking[name], offset)
            )
    by_phase = phase_idle(gaps, windows, phase[gaps.operation], len(PHASES))
    told = idle_ns if _is_known(events.clock, windows) else None
    causes = idle_causes(gaps, windows, told, inputs, blocking)
    late_start_ns = exposed_late_comm_ns = None
    if told is not None:
        late_start_ns = late_starts(gaps, windows)
        exposed_late_comm_ns = exposed_by_late_launches(device, gaps.latency_ns, offset)
    by_launches = {
        "idle_late_start_ns": late_start_ns,
        "exposed_late_comm_ns": exposed_late_comm_ns,
    }
    causes = replace(causes, columns=causes.columns | by_launches)
    return causes, by_phase


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
