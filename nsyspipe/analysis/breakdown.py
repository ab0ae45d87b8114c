"""Where the wall time of each step goes, and why devices idle in the rest of it."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from numpy.typing import NDArray

from nsyspipe.analysis.attribution import NEVER, Inputs, ProcessOperations, filled
from nsyspipe.analysis.blocked import ExplainedTime, blocked_time, made_by
from nsyspipe.analysis.host_lines import HostIdleTime
from nsyspipe.analysis.intervals import FOREVER, IntervalSet, nonempty, run_starts, union, union_of
from nsyspipe.analysis.steps import Windows
from nsyspipe.model.canonical import DTOD_KIND
from nsyspipe.model.problems import Recorded
from nsyspipe.model.schema import IDLE_CAUSES, IDLE_DETAILS
from nsyspipe.model.table import Flags, Int64
from nsyspipe.model.typed_tables import (
    BlockingCallsOfReportTable,
    BlockingCopiesOfReportTable,
)

Phases = NDArray[np.int8] | NDArray[np.int32]
# The compute and communication of a step, from kernels and their names.
_METRICS_OF_KERNELS = (
    "compute_ns",
    "comm_ns",
    "exposed_comm_ns",
    "overlap_compute_ns",
    "overlap_backward_ns",
    "n_collectives",
)
# Metric -> the fields of `Recorded` that it needs.
_NEEDS = {
    **dict.fromkeys(_METRICS_OF_KERNELS, ("kernels", "names")),
    **dict.fromkeys(("exposed_memory_ns", "idle_ns"), ("kernels", "memcpy", "memset")),
    **dict.fromkeys(("dtod_ns", "n_dtod"), ("memcpy", "kinds")),
    "dtod_bytes": ("memcpy", "kinds", "sizes"),
    "exposed_dtod_ns": ("kernels", "memcpy", "kinds"),
}
# DDP copies the gradients of a bucket in one go. Copies of the model itself stand between kernels,
# so fewer copies in a row are not copies of gradients.
_MIN_COPIES_OF_BUCKET = 8
# A longer time from the end of a copy to the start of the next is a wait for something else.
_MAX_COPY_LATENCY_NS = 20_000
# A host that launches one operation after the other never takes this long for the next one.
PAUSE_NS = 2_000_000
# What a launch takes to reach an idle device. If the shortest time is longer, the device was never
# idle.
_MAX_LAUNCH_LATENCY_NS = 20_000


class DeviceTime(Struct, frozen=True):
    """The operations of a rank, its windows, and unions of the operations; report time, ns.

    The letters are those of the definitions.
    """

    operations: ProcessOperations
    windows: Windows
    compute: IntervalSet  # C
    comm: IntervalSet  # M
    memory: IntervalSet  # P: memcpys and memsets
    hidden: IntervalSet  # ``C n M``

    def exposed(self, covered: IntervalSet) -> IntervalSet:
        r"""Return ``X \ (C u M)``: the times without compute and communication."""
        return covered.without(self.compute).without(self.comm)


def exposed_comm(comm: IntervalSet, compute: IntervalSet) -> IntervalSet:
    r"""Return ``M \ C``: the times of communication that no compute hides."""
    return comm.without(compute)


def device_time(operations: ProcessOperations, windows: Windows) -> DeviceTime:
    """Merge the operations of one rank by category."""
    is_comm = operations.is_comm
    compute = kernel_times(operations, ~is_comm)
    communication = kernel_times(operations, is_comm)
    memory = union(operations.copy_start, operations.copy_end)
    hidden = communication.intersect(compute)
    return DeviceTime(
        operations=operations,
        windows=windows,
        compute=compute,
        comm=communication,
        memory=memory,
        hidden=hidden,
    )


def kernel_times(operations: ProcessOperations, chosen: Flags | Int64) -> IntervalSet:
    """Return when any of the chosen kernels runs."""
    starts = operations.kernel_start[chosen]
    ends = operations.kernel_end[chosen]
    return union(starts, ends)


def breakdown(
    device: DeviceTime, backward: Flags | None, recorded: Recorded
) -> dict[str, Int64 | None]:
    """Split each window of one rank into disjoint parts: columns of `schema.STEPS`.

    The schema has their formulas. Operations count in the window that they run in, whatever step
    they belong to. `backward` flags the kernels that were launched inside a backward range. It is
    None if the rank has no such range. Returns one int64 per window, in ns or counts or bytes, or
    None if a metric was not recorded: see `_NEEDS`.
    """
    windows = device.windows
    wall_ns = windows.ends - windows.starts
    compute_ns = windows.covered(device.compute)
    comm_ns = windows.covered(device.comm)
    overlap_ns = windows.covered(device.hidden)
    exposed_comm_ns = comm_ns - overlap_ns
    exposed_memory = device.exposed(device.memory)
    exposed_memory_ns = windows.covered(exposed_memory)
    idle_ns = wall_ns - compute_ns
    idle_ns -= exposed_comm_ns
    idle_ns -= exposed_memory_ns
    columns: dict[str, Int64 | None] = {
        "wall_ns": wall_ns,
        "compute_ns": compute_ns,
        "comm_ns": comm_ns,
        "exposed_comm_ns": exposed_comm_ns,
        "exposed_memory_ns": exposed_memory_ns,
        "idle_ns": idle_ns,
        **_device_to_device_copies(device),
        "overlap_compute_ns": overlap_ns,
        "overlap_backward_ns": None,
        "n_collectives": _count_comm_starts(device),
    }
    if backward is not None:
        columns["overlap_backward_ns"] = _overlap_of_backward(device, backward)
    for metric, facts in _NEEDS.items():
        if not _is_recorded(recorded, facts):
            columns[metric] = None
    return columns


def _count_comm_starts(device: DeviceTime) -> Int64:
    """Return how many communication kernels start in each window."""
    is_comm = device.operations.is_comm
    starts = device.operations.kernel_start[is_comm]
    starts.sort()
    return device.windows.slices(starts).counts


def _is_recorded(recorded: Recorded, facts: Sequence[str]) -> bool:
    return all(getattr(recorded, fact) for fact in facts)


def _overlap_of_backward(device: DeviceTime, backward: Flags) -> Int64:
    """Return how long communication runs while compute of the backward pass runs, ns."""
    is_chosen = ~device.operations.is_comm
    is_chosen &= backward
    compute = kernel_times(device.operations, is_chosen)
    overlap = device.comm.intersect(compute)
    return device.windows.covered(overlap)


def _device_to_device_copies(device: DeviceTime) -> dict[str, Int64 | None]:
    windows = device.windows
    is_dtod = device.operations.copy_kind == DTOD_KIND
    copies = _measure_copies(device.operations, is_dtod, windows)
    exposed = device.exposed(copies.times)
    return {
        "dtod_ns": windows.covered(copies.times),
        "dtod_bytes": copies.n_bytes,
        "n_dtod": copies.number,
        "exposed_dtod_ns": windows.covered(exposed),
    }


def compute_stream(operations: ProcessOperations, comm_streams: Int64) -> int | None:
    """Return the stream that most compute kernels run on; of several streams the lowest.

    None if there are no compute kernels, or if no stream is known. `comm_streams` are the streams
    of the communication operations.
    """
    all_streams = operations.kernel_rows["stream_id"].drop_null()
    streams = pc.value_counts(all_streams)
    stream_ids = streams.field("values").to_pylist()
    n_kernels = streams.field("counts").to_pylist()
    n_by_stream = dict(zip(stream_ids, n_kernels, strict=True))
    counts: Counter[int] = Counter(n_by_stream)
    comm_stream_ids, n_comm_kernels = np.unique(comm_streams, return_counts=True)
    n_comm_by_stream = zip(comm_stream_ids.tolist(), n_comm_kernels.tolist(), strict=True)
    counts.subtract(dict(n_comm_by_stream))
    most = max(counts.values(), default=0)
    if most <= 0:
        return None
    streams_of_most = [stream for stream, number in counts.items() if number == most]
    return min(streams_of_most)


def comm_on_stream(
    operations: ProcessOperations, comm_streams: Int64, stream: int | None, windows: Windows
) -> Int64 | None:
    """Return how long communication is under way on a stream in each window, ns.

    None if no launch of a kernel is known. Kernels of a CUDA graph share a launch. Their recorded
    stream is that of the graph, and they may run at the same time, so they do not count.
    """
    n_launched = operations.n_launched
    if not n_launched and operations.kernel_start.size:
        return None
    rows = np.flatnonzero(operations.is_comm)
    is_on_stream = np.zeros(rows.size, np.bool_)
    if stream is not None:
        is_on_stream = comm_streams == stream
    rows = rows[is_on_stream]
    rows = rows[rows < n_launched]
    launch = operations.kernel_launch[:n_launched]
    differs = launch[1:] != launch[:-1]
    differs_from_previous = np.append(True, differs)
    differs_from_next = np.append(differs, True)
    is_only_kernel = differs_from_previous[rows] & differs_from_next[rows]
    times = kernel_times(operations, rows[is_only_kernel])
    return windows.covered(times)


class Started(Struct, frozen=True):
    """The operations that start in each window."""

    number: Int64
    total: Int64  # the sum of some value of theirs


def started_in(starts: Int64, values: Int64, windows: Windows) -> Started:
    """Return how many operations start in each window, and the sum of their values."""
    order = np.argsort(starts, kind="stable")
    slices = windows.slices(starts[order])
    total_before = np.append(0, np.cumsum(values[order]))
    total = total_before[slices.last]
    total -= total_before[slices.first]
    return Started(slices.counts, total)


class _Copies(Struct, frozen=True):
    """Some copies of a rank: when they run, and number and bytes by window."""

    times: IntervalSet
    number: Int64
    n_bytes: Int64


def _measure_copies(operations: ProcessOperations, chosen: Flags, windows: Windows) -> _Copies:
    starts = operations.copy_start[chosen]
    ends = operations.copy_end[chosen]
    n_bytes = operations.copy_bytes[chosen]
    started = started_in(starts, n_bytes, windows)
    times = union(starts, ends)
    return _Copies(times, started.number, started.total)


def grad_copies(
    device: DeviceTime, in_backward: Flags | None, recorded: Recorded
) -> dict[str, Int64 | None]:
    """Measure the copies between gradients and buckets in each window.

    The columns and their formulas are those of `schema.STEPS`. They are None if copies or their
    kinds were not recorded. `in_backward` flags the copies launched inside a backward range. It is
    None if the rank has no such range.
    """
    windows = device.windows
    is_gradient = _are_in_runs(device.operations)
    if in_backward is not None:
        is_gradient &= in_backward
    copies = _measure_copies(device.operations, is_gradient, windows)
    spans = _join_over_latencies(copies.times, windows)
    exposed = device.exposed(copies.times)
    exposed_ns = windows.covered(exposed)
    span_ns = windows.covered(spans)
    columns: dict[str, Int64 | None] = {
        "grad_copy_ns": windows.covered(copies.times),
        "exposed_grad_copy_ns": exposed_ns,
        "grad_copy_span_ns": span_ns,
        "grad_copy_bytes": copies.n_bytes,
        "n_grad_copies": copies.number,
    }
    if not recorded.sizes:
        columns["grad_copy_bytes"] = None
    if not _is_recorded(recorded, ("kernels", "memcpy", "kinds")):
        return dict.fromkeys(columns)
    return columns


def _join_over_latencies(copies: IntervalSet, windows: Windows) -> IntervalSet:
    """Return the copies of each step with the time that the device takes from one to the next."""
    gap_starts = copies.ends[:-1]
    gap_ends = copies.starts[1:]
    window_before = np.searchsorted(windows.starts, gap_starts)
    window_after = np.searchsorted(windows.starts, gap_ends, side="right")
    gap_ns = gap_ends - gap_starts
    is_apart = gap_ns > _MAX_COPY_LATENCY_NS
    is_apart |= window_before != window_after
    first_start = copies.starts[:1]
    last_end = copies.ends[-1:]
    starts = np.append(first_start, gap_ends[is_apart])
    ends = np.append(gap_starts[is_apart], last_end)
    return IntervalSet(starts, ends)


def blocking_copies(
    device: DeviceTime, copies: BlockingCopiesOfReportTable | None, recorded: Recorded
) -> dict[str, Int64 | None]:
    """Measure the copies from the host that block it, in each window.

    `copies` are `canonical.BLOCKING_COPIES`. The columns are None if not recorded.
    """
    columns: dict[str, Int64 | None] = {
        "n_blocking_copies": None,
        "n_pageable_copies": None,
        "blocking_copy_bytes": None,
        "exposed_blocking_copy_ns": None,
    }
    if copies is None:
        return columns
    windows = device.windows
    starts = copies["start_ns"].to_numpy()
    ends = copies["end_ns"].to_numpy()
    if recorded.kernels:
        exposed = device.exposed(union(starts, ends))
        columns["exposed_blocking_copy_ns"] = windows.covered(exposed)
    n_bytes = filled(copies["bytes"], 0)
    started = started_in(starts, n_bytes, windows)
    columns["n_blocking_copies"] = started.number
    # A sum is not known if a part is not.
    if not copies["bytes"].null_count:
        columns["blocking_copy_bytes"] = started.total
    is_pageable = copies["is_pageable"]
    if not is_pageable.null_count:
        numbers = is_pageable.cast(pa.int64()).to_numpy()
        pageable = started_in(starts, numbers, windows)
        columns["n_pageable_copies"] = pageable.total
    return columns


def _are_in_runs(operations: ProcessOperations) -> Flags:
    """Tell which copies are DtoD and in a long run of such; copies without a launch never are.

    An operation that is launched in the same nanosecond as a copy comes after it.
    """
    launch = operations.copy_launch
    is_dtod = operations.copy_kind == DTOD_KIND
    has_launch = launch != NEVER
    copies = np.flatnonzero(is_dtod & has_launch)
    copy_launch = launch[copies]
    kernel_launch = operations.kernel_launch[: operations.n_launched]
    # A run ends with the next launch of anything else.
    n_before = np.searchsorted(kernel_launch, copy_launch)
    n_before += np.searchsorted(launch[~is_dtod], copy_launch)
    first = run_starts(n_before)
    lengths = np.diff(first, append=copy_launch.size)
    is_long = lengths >= _MIN_COPIES_OF_BUCKET
    is_in_long_run = np.repeat(is_long, lengths)
    is_in_run = np.zeros(launch.size, np.bool_)
    is_in_run[copies[is_in_long_run]] = True
    return is_in_run


class Gaps(Struct, frozen=True):
    """The gaps between operations of one rank, in order of time; report time, ns."""

    # Where the last operation before the gap ended, and where the next one starts.
    starts: Int64
    ends: Int64
    # When the operation that explains the gap was launched, on the clock of the device;
    # `attribution.NEVER` if it has no launch.
    launch: Int64
    # The operation that explains the gap: kernels in order of launch, then copies in order of
    # launch. It is the one that ends the gap. If that is a copy of unified memory, which nothing
    # launches, it is the next operation that is not.
    operation: Int64
    # The shortest time from a launch to the start of its kernel on this rank, from 0 to 20 us.
    latency_ns: int


def idle_gaps(operations: ProcessOperations, offset_ns: int = 0) -> Gaps:
    """Find all gaps between operations.

    If operations start together, a kernel ends the gap, and of kernels the first launched. Launches
    are put on the clock of the device, which is later than that of the host by `offset_ns`.
    """
    starts = np.append(operations.kernel_start, operations.copy_start)
    # Starts are nearly sorted, which makes this cheap.
    order = np.argsort(starts, kind="stable")
    starts = starts[order]
    reached = np.append(operations.kernel_end, operations.copy_end)[order]
    np.maximum.accumulate(reached, out=reached)
    is_gap = starts[1:] > reached[:-1]
    last_before = np.flatnonzero(is_gap)
    first_behind = last_before + 1
    gap_starts = reached[last_before]
    gap_ends = starts[first_behind]
    # They are as long as the operations.
    del starts, reached, is_gap
    operation = _explaining_operations(operations, order, first_behind)
    del order
    launch = np.append(operations.kernel_launch, operations.copy_launch)[operation]
    is_known = launch != NEVER
    launch[is_known] += offset_ns
    latency_ns = _launch_latency(operations, offset_ns)
    return Gaps(gap_starts, gap_ends, launch, operation, latency_ns)


def _explaining_operations(operations: ProcessOperations, order: Int64, places: Int64) -> Int64:
    """Return the operations at some places of an order, or the next that is not unified memory.

    If no such operation follows, it is the one at the place.
    """
    at_place = order[places]
    is_unified_copy = operations.is_unified
    if not is_unified_copy.any():
        return at_place
    n_kernels = operations.kernel_start.size
    is_launchable_kernel = np.ones(n_kernels, np.bool_)
    is_launchable = np.append(is_launchable_kernel, ~is_unified_copy)
    launchable = np.flatnonzero(is_launchable[order])
    following = np.searchsorted(launchable, places)
    next_place = np.append(launchable, 0)[following]
    has_next = following < launchable.size
    return np.where(has_next, order[next_place], at_place)


def _launch_latency(operations: ProcessOperations, offset_ns: int) -> int:
    n_launched = operations.n_launched
    if not n_launched:
        return 0
    starts = operations.kernel_start[:n_launched]
    latencies = starts - operations.kernel_launch[:n_launched]
    shortest_ns = int(latencies.min()) - offset_ns
    return min(max(shortest_ns, 0), _MAX_LAUNCH_LATENCY_NS)


class IdleCauses(Struct, frozen=True):
    """Why one rank idles, ns per window."""

    # `schema.IDLE_CAUSES` and `schema.IDLE_DETAILS`. None if not known.
    columns: dict[str, Int64 | None]
    # ``idle_blocked_ns`` by the call that explains it, without calls that explain nothing. The
    # second has the part of blocking copies.
    by_call: dict[str, Int64]
    of_copies_by_call: dict[str, Int64]
    # When the device idles for its host. None if not known.
    times: HostIdleTime | None = None


def idle_causes(
    gaps: Gaps, windows: Windows, idle_ns: Int64 | None, inputs: Inputs, calls: pa.Table | None
) -> IdleCauses:
    """Split the idle time of each window by what held up the operation that ends each gap.

    `schema.STEPS` has the formulas. All times are on the clock of the gaps. All causes are None if
    `idle_ns` is None. `calls` are `canonical.BLOCKING_CALLS` of the process, sorted by start.
    Without them, the causes that need calls are None.
    """
    names = (*IDLE_CAUSES, *IDLE_DETAILS)
    columns: dict[str, Int64 | None] = dict.fromkeys(names)
    if idle_ns is None:
        return IdleCauses(columns, {}, {})
    input_times = union_of(inputs.data, inputs.quiet)
    late = _find_late_time(gaps, input_times)
    late_ns = windows.covered(late.times)
    waiting_ns = windows.covered(late.waiting)
    dependency_ns = windows.covered(late.known_gaps) - late_ns
    made_by_input = made_by(late.gaps, input_times.starts, input_times.ends)
    columns["idle_input_ns"] = late_ns - waiting_ns
    columns["idle_dependency_ns"] = dependency_ns
    columns["idle_unknown_ns"] = idle_ns - late_ns - dependency_ns
    columns["idle_between_steps_ns"] = windows.covered(late.times.intersect(inputs.quiet))
    columns["idle_made_by_input_ns"] = windows.covered(made_by_input)
    if calls is None:
        return IdleCauses(columns, {}, {}, HostIdleTime(late.times))
    blocked = blocked_time(late.times, late.waiting, calls)
    is_of_copy = calls["is_of_copy"].to_numpy()
    blocked_by_copies = blocked.of_calls(is_of_copy)
    columns |= _split_waiting(late.waiting, blocked, windows)
    columns["idle_blocked_by_copies_ns"] = windows.covered(blocked_by_copies.times)
    columns |= _made_by_calls(late.gaps, calls, windows)
    columns |= _caused_by_allocs(late.gaps, blocked, calls, windows)
    by_call = _by_call(blocked, calls, windows)
    of_copies_by_call = _by_call(blocked_by_copies, calls, windows)
    times = HostIdleTime.of(late.times, late.waiting, blocked.times)
    return IdleCauses(columns, by_call, of_copies_by_call, times)


def _split_waiting(
    waiting: IntervalSet, blocked: ExplainedTime, windows: Windows
) -> dict[str, Int64 | None]:
    """Return how long the device waits while the host is blocked, and while it is not, ns."""
    waiting_ns = windows.covered(waiting)
    blocked_ns = windows.covered(blocked.times)
    launching = waiting.without(blocked.times)
    lengths_ns = launching.ends - launching.starts
    is_pause = lengths_ns >= PAUSE_NS
    pauses = launching[is_pause]
    return {
        "idle_launch_ns": waiting_ns - blocked_ns,
        "idle_blocked_ns": blocked_ns,
        "idle_pause_ns": windows.covered(pauses),
    }


class _LateTime(Struct, frozen=True):
    """When a device idles because its next operation was launched late."""

    known_gaps: IntervalSet  # whose launch is known
    # The gaps that a late launch ends, as a whole: an earlier launch may shorten all of such a gap.
    gaps: IntervalSet
    # The part of the gaps before the launched operation could start.
    times: IntervalSet
    # The part of the times in which the host was not getting input.
    waiting: IntervalSet


def _find_late_time(gaps: Gaps, input_times: IntervalSet) -> _LateTime:
    known_gaps = IntervalSet(gaps.starts, gaps.ends)
    launch = gaps.launch
    is_known = launch != NEVER
    if not is_known.all():
        known_gaps = known_gaps[is_known]
        launch = launch[is_known]
    starts = known_gaps.starts
    ready = launch + gaps.latency_ns
    np.clip(ready, starts, known_gaps.ends, out=ready)
    late_gaps = known_gaps[ready > starts]
    times = nonempty(starts, ready)
    waiting = times.without(input_times)
    return _LateTime(known_gaps, late_gaps, times, waiting)


def _made_by_calls(
    late_gaps: IntervalSet, calls: BlockingCallsOfReportTable, windows: Windows
) -> dict[str, Int64 | None]:
    """Return how long the late gaps are that blocking calls, and blocking copies, explain, ns."""
    starts = calls["start_ns"].to_numpy()
    ends = calls["end_ns"].to_numpy()
    is_of_copy = calls["is_of_copy"].to_numpy()
    is_of_call = ~is_of_copy
    call_starts = starts[is_of_call]
    copy_starts = starts[is_of_copy]
    made_by_calls = made_by(late_gaps, call_starts, ends[is_of_call])
    made_by_copies = made_by(late_gaps, copy_starts, ends[is_of_copy])
    return {
        "idle_made_by_calls_ns": windows.covered(made_by_calls),
        "idle_made_by_copies_ns": windows.covered(made_by_copies),
    }


def _caused_by_allocs(
    late_gaps: IntervalSet, blocked: ExplainedTime, calls: pa.Table, windows: Windows
) -> dict[str, Int64 | None]:
    """Return the blocked time, and the late gaps, that calls managing memory explain, ns."""
    is_of_memory = calls["is_of_memory"].to_numpy()
    blocked_by_allocs = blocked.of_calls(is_of_memory)
    memory_calls = calls.filter(calls["is_of_memory"])
    starts = memory_calls["start_ns"].to_numpy()
    ends = memory_calls["end_ns"].to_numpy()
    made_by_allocs = made_by(late_gaps, starts, ends)
    return {
        "idle_blocked_by_allocs_ns": windows.covered(blocked_by_allocs.times),
        "idle_made_by_allocs_ns": windows.covered(made_by_allocs),
    }


def late_starts(gaps: Gaps, windows: Windows) -> Int64:
    """Return how long the device takes to start late launched operations, ns in each window.

    This does not count the shortest latency. It is idle time for dependency, in gaps that end with
    a late launch. A device prepares operations that are launched in time while it still works.
    """
    is_known = gaps.launch != NEVER
    ready = gaps.launch[is_known] + gaps.latency_ns
    starts = gaps.starts[is_known]
    ends = gaps.ends[is_known]
    is_late = ready > starts
    is_late &= ready < ends
    late_times = IntervalSet(ready[is_late], ends[is_late])
    return windows.covered(late_times)


def exposed_by_late_launches(device: DeviceTime, latency_ns: int, offset_ns: int) -> Int64:
    """Return how much of the exposed communication of each window late launches expose, ns.

    If launched in time, it could have run at the same time as compute. It has two parts:
    communication that started as soon as it was launched, and communication until the next compute
    kernel was launched, plus the shortest latency of the rank. Launches are put on the clock of the
    device, which is later than that of the host by `offset_ns`.
    """
    operations = device.operations
    n_launched = operations.n_launched
    start = operations.kernel_start[:n_launched]
    launch = operations.kernel_launch[:n_launched] + offset_ns
    is_late_comm = start - launch <= _MAX_LAUNCH_LATENCY_NS
    is_late_comm &= operations.is_comm[:n_launched]
    late_comm = kernel_times(operations, np.flatnonzero(is_late_comm))
    until_launch = _until_next_compute_is_launched(device, launch + latency_ns)
    late = union_of(late_comm, until_launch)
    exposed = exposed_comm(device.comm, device.compute)
    exposed_by_late = exposed.intersect(late)
    return device.windows.covered(exposed_by_late)


def _until_next_compute_is_launched(device: DeviceTime, ready: Int64) -> IntervalSet:
    """Return when no compute runs because the kernel that starts next is not ready.

    `ready` is of each launched kernel when it can start.
    """
    is_compute = ~device.operations.is_comm[: ready.size]
    rows = np.flatnonzero(is_compute)
    starts = device.operations.kernel_start[rows]
    # If compute kernels start together, the first launched ends the time without compute.
    first_starts, first_rows = np.unique(starts, return_index=True)
    next_compute = device.compute.starts[1:]
    place = np.searchsorted(first_starts, next_compute)
    start_at_place = np.append(first_starts, FOREVER)[place]
    is_launched = start_at_place == next_compute
    previous_end = device.compute.ends[:-1]
    without_compute = IntervalSet(previous_end, next_compute)[is_launched]
    first_row = first_rows[place[is_launched]]
    ready_in_time = ready[rows[first_row]]
    np.clip(ready_in_time, without_compute.starts, without_compute.ends, out=ready_in_time)
    return nonempty(without_compute.starts, ready_in_time)


def phase_idle(
    gaps: Gaps | IntervalSet, windows: Windows, phase: Phases, n_phases: int
) -> list[Int64]:
    """Return for each phase the idle time in gaps that its operations end, ns per window.

    `phase` is of the operation that ends each gap, negative for none.
    """
    times = IntervalSet(gaps.starts, gaps.ends)
    idle_ns = []
    for code in range(n_phases):
        times_of_phase = times[phase == code]
        idle_ns.append(windows.covered(times_of_phase))
    return idle_ns


def _by_call(blocked: ExplainedTime, calls: pa.Table, windows: Windows) -> dict[str, Int64]:
    """Return the explained time of each window by the name of the call, ns, without zeros."""
    if not len(blocked.times) or not len(windows):
        return {}
    call = pa.array(blocked.call)
    call_names = calls["call"].take(call).combine_chunks().dictionary_encode()
    codes = call_names.indices.to_numpy()
    names = call_names.dictionary.to_pylist()
    lengths = phase_idle(blocked.times, windows, codes, len(names))
    lengths_by_call = zip(names, lengths, strict=True)
    return {name: length_ns for name, length_ns in lengths_by_call if length_ns.any()}
