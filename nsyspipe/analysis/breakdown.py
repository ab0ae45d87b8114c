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
from nsyspipe.analysis.intervals import FOREVER, IntervalSet, nonempty, run_starts, union, union_of
from nsyspipe.analysis.steps import Windows
from nsyspipe.model.canonical import DTOD_KIND
from nsyspipe.model.problems import Recorded
from nsyspipe.model.schema import IDLE_CAUSES, IDLE_DETAILS
from nsyspipe.model.table import Flags, Int64

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
    comm = operations.is_comm
    compute = union(operations.kernel_start[~comm], operations.kernel_end[~comm])
    communication = union(operations.kernel_start[comm], operations.kernel_end[comm])
    memory = union(operations.copy_start, operations.copy_end)
    return DeviceTime(
        operations=operations,
        windows=windows,
        compute=compute,
        comm=communication,
        memory=memory,
        hidden=communication.intersect(compute),
    )


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
    exposed_memory_ns = windows.covered(device.exposed(device.memory))
    busy_ns = compute_ns + exposed_comm_ns + exposed_memory_ns
    is_comm = device.operations.is_comm
    comm_starts = np.sort(device.operations.kernel_start[is_comm])
    columns: dict[str, Int64 | None] = {
        "wall_ns": wall_ns,
        "compute_ns": compute_ns,
        "comm_ns": comm_ns,
        "exposed_comm_ns": exposed_comm_ns,
        "exposed_memory_ns": exposed_memory_ns,
        "idle_ns": wall_ns - busy_ns,
        **_device_to_device_copies(device),
        "overlap_compute_ns": overlap_ns,
        "overlap_backward_ns": None,
        "n_collectives": windows.slices(comm_starts).counts,
    }
    if backward is not None:
        columns["overlap_backward_ns"] = _overlap_of_backward(device, backward)
    not_recorded = [metric for metric, facts in _NEEDS.items() if not _is_recorded(recorded, facts)]
    return columns | dict.fromkeys(not_recorded)


def _is_recorded(recorded: Recorded, facts: Sequence[str]) -> bool:
    return all(getattr(recorded, fact) for fact in facts)


def _overlap_of_backward(device: DeviceTime, backward: Flags) -> Int64:
    """Return how long communication runs while compute of the backward pass runs, ns."""
    operations = device.operations
    kernels = backward & ~operations.is_comm
    compute = union(operations.kernel_start[kernels], operations.kernel_end[kernels])
    return device.windows.covered(device.comm.intersect(compute))


def _device_to_device_copies(device: DeviceTime) -> dict[str, Int64 | None]:
    is_dtod = device.operations.copy_kind == DTOD_KIND
    copies = _measure_copies(device.operations, is_dtod, device.windows)
    return {
        "dtod_ns": device.windows.covered(copies.times),
        "dtod_bytes": copies.n_bytes,
        "n_dtod": copies.number,
        "exposed_dtod_ns": device.windows.covered(device.exposed(copies.times)),
    }


def compute_stream(operations: ProcessOperations, comm_streams: Int64) -> int | None:
    """Return the stream that most compute kernels run on; of several streams the lowest.

    None if there are no compute kernels, or if no stream is known. `comm_streams` are the streams
    of the communication operations.
    """
    streams = pc.value_counts(operations.kernel_rows["stream_id"].drop_null())
    stream_ids = streams.field("values").to_pylist()
    n_kernels = streams.field("counts").to_pylist()
    counts: Counter[int] = Counter(dict(zip(stream_ids, n_kernels, strict=True)))
    comm_stream_ids, n_comm_kernels = np.unique(comm_streams, return_counts=True)
    n_comm_by_stream = zip(comm_stream_ids.tolist(), n_comm_kernels.tolist(), strict=True)
    counts.subtract(dict(n_comm_by_stream))
    most = max(counts.values(), default=0)
    if most <= 0:
        return None
    return min(stream for stream, number in counts.items() if number == most)


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
    rows = rows[comm_streams == stream] if stream is not None else rows[:0]
    rows = rows[rows < n_launched]
    launch = operations.kernel_launch[:n_launched]
    differs = launch[1:] != launch[:-1]
    differs_from_previous = np.append(True, differs)
    differs_from_next = np.append(differs, True)
    rows = rows[differs_from_previous[rows] & differs_from_next[rows]]
    return windows.covered(union(operations.kernel_start[rows], operations.kernel_end[rows]))


class Started(Struct, frozen=True):
    """The operations that start in each window."""

    number: Int64
    total: Int64  # the sum of some value of theirs


def started_in(starts: Int64, values: Int64, windows: Windows) -> Started:
    """Return how many operations start in each window, and the sum of their values."""
    order = np.argsort(starts, kind="stable")
    slices = windows.slices(starts[order])
    total_before = np.append(0, np.cumsum(values[order]))
    total = total_before[slices.last] - total_before[slices.first]
    return Started(slices.counts, total)


class _Copies(Struct, frozen=True):
    """Some copies of a rank: when they run, and number and bytes by window."""

    times: IntervalSet
    number: Int64
    n_bytes: Int64


def _measure_copies(operations: ProcessOperations, chosen: Flags, windows: Windows) -> _Copies:
    starts = operations.copy_start[chosen]
    times = union(starts, operations.copy_end[chosen])
    started = started_in(starts, operations.copy_bytes[chosen], windows)
    return _Copies(times=times, number=started.number, n_bytes=started.total)


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
    columns: dict[str, Int64 | None] = {
        "grad_copy_ns": windows.covered(copies.times),
        "exposed_grad_copy_ns": windows.covered(exposed),
        "grad_copy_span_ns": windows.covered(spans),
        "grad_copy_bytes": copies.n_bytes,
        "n_grad_copies": copies.number,
    }
    if not recorded.sizes:
        columns["grad_copy_bytes"] = None
    is_recorded = recorded.kernels and recorded.memcpy and recorded.kinds
    return columns if is_recorded else dict.fromkeys(columns)


def _join_over_latencies(copies: IntervalSet, windows: Windows) -> IntervalSet:
    """Return the copies of each step with the time that the device takes from one to the next."""
    gap_starts = copies.ends[:-1]
    gap_ends = copies.starts[1:]
    window_before = np.searchsorted(windows.starts, gap_starts)
    window_after = np.searchsorted(windows.starts, gap_ends, side="right")
    is_apart = gap_ends - gap_starts > _MAX_COPY_LATENCY_NS
    is_apart |= window_before != window_after
    starts = np.append(copies.starts[:1], gap_ends[is_apart])
    ends = np.append(gap_starts[is_apart], copies.ends[-1:])
    return IntervalSet(starts, ends)


def blocking_copies(
    device: DeviceTime, copies: pa.Table | None, recorded: Recorded
) -> dict[str, Int64 | None]:
    """Measure the copies from the host that block it, in each window.

    `copies` are `canonical.BLOCKING_COPIES`. The columns are None if not recorded.
    """
    names = (
        "n_blocking_copies",
        "n_pageable_copies",
        "blocking_copy_bytes",
        "exposed_blocking_copy_ns",
    )
    if copies is None:
        return dict.fromkeys(names)
    starts = copies["start_ns"].to_numpy()
    windows = device.windows
    times = union(starts, copies["end_ns"].to_numpy())
    exposed_ns = windows.covered(device.exposed(times)) if recorded.kernels else None
    started = started_in(starts, filled(copies["bytes"], 0), windows)
    is_pageable = filled(pc.cast(copies["is_pageable"], pa.int64()), 0)
    n_pageable = started_in(starts, is_pageable, windows).total
    # A sum is not known if a part is not.
    is_pageable_known = copies["is_pageable"].null_count == 0
    are_bytes_known = copies["bytes"].null_count == 0
    return {
        "n_blocking_copies": started.number,
        "n_pageable_copies": n_pageable if is_pageable_known else None,
        "blocking_copy_bytes": started.total if are_bytes_known else None,
        "exposed_blocking_copy_ns": exposed_ns,
    }


def _are_in_runs(operations: ProcessOperations) -> Flags:
    """Tell which copies are DtoD and in a long run of such; copies without a launch never are.

    An operation that is launched in the same nanosecond as a copy comes after it.
    """
    launch = operations.copy_launch
    is_dtod = operations.copy_kind == DTOD_KIND
    copies = np.flatnonzero(is_dtod & (launch != NEVER))
    copy_launch = launch[copies]
    kernel_launch = operations.kernel_launch[: operations.n_launched]
    # A run ends with the next launch of anything else.
    n_before = np.searchsorted(kernel_launch, copy_launch)
    n_before += np.searchsorted(launch[~is_dtod], copy_launch)
    lengths = np.diff(run_starts(n_before), append=copy_launch.size)
    is_in_long_run = np.repeat(lengths >= _MIN_COPIES_OF_BUCKET, lengths)
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
    starts = np.concatenate((operations.kernel_start, operations.copy_start))
    # Starts are nearly sorted, which makes this cheap.
    order = np.argsort(starts, kind="stable")
    starts = starts[order]
    reached = np.concatenate((operations.kernel_end, operations.copy_end))[order]
    np.maximum.accumulate(reached, out=reached)
    last_before = np.flatnonzero(starts[1:] > reached[:-1])
    gap_starts = reached[last_before]
    gap_ends = starts[1:][last_before]
    # Both are as long as the operations.
    del starts, reached
    operation = _explaining_operations(operations, order, last_before + 1)
    del order
    launch = np.append(operations.kernel_launch, operations.copy_launch)[operation]
    np.add(launch, offset_ns, out=launch, where=launch != NEVER)
    return Gaps(
        starts=gap_starts,
        ends=gap_ends,
        launch=launch,
        operation=operation,
        latency_ns=_launch_latency(operations, offset_ns),
    )


def _explaining_operations(operations: ProcessOperations, order: Int64, places: Int64) -> Int64:
    """Return the operations at some places of an order, or the next that is not unified memory.

    If no such operation follows, it is the one at the place.
    """
    at_place = order[places]
    is_unified = operations.is_unified
    if not is_unified.any():
        return at_place
    is_unified = np.append(np.zeros(operations.kernel_start.size, np.bool_), is_unified)
    launchable = np.flatnonzero(~is_unified[order])
    following = np.searchsorted(launchable, places)
    next_launchable = order[np.append(launchable, 0)[following]]
    return np.where(following < launchable.size, next_launchable, at_place)


def _launch_latency(operations: ProcessOperations, offset_ns: int) -> int:
    n_launched = operations.n_launched
    if not n_launched:
        return 0
    latencies = operations.kernel_start[:n_launched] - operations.kernel_launch[:n_launched]
    latencies -= offset_ns
    return min(max(int(latencies.min()), 0), _MAX_LAUNCH_LATENCY_NS)


class IdleCauses(Struct, frozen=True):
    """Why one rank idles, ns per window."""

    # `schema.IDLE_CAUSES` and `schema.IDLE_DETAILS`. None if not known.
    columns: dict[str, Int64 | None]
    # ``idle_blocked_ns`` by the call that explains it, without calls that explain nothing. The
    # second has the part of blocking copies.
    by_call: dict[str, Int64]
    of_copies_by_call: dict[str, Int64]


def idle_causes(
    gaps: Gaps, windows: Windows, idle_ns: Int64 | None, inputs: Inputs, calls: pa.Table | None
) -> IdleCauses:
    """Split the idle time of each window by what held up the operation that ends each gap.

    `schema.STEPS` has the formulas. All times are on the clock of the gaps. All causes are None if
    `idle_ns` is None. `calls` are `canonical.BLOCKING_CALLS` of the process, sorted by start.
    Without them, the causes that need calls are None.
    """
    columns: dict[str, Int64 | None] = dict.fromkeys((*IDLE_CAUSES, *IDLE_DETAILS))
    if idle_ns is None:
        return IdleCauses(columns, {}, {})
    input_times = union_of(inputs.data, inputs.quiet)
    late = _find_late_time(gaps, input_times)
    late_ns = windows.covered(late.times)
    waiting_ns = windows.covered(late.waiting)
    dependency_ns = windows.covered(late.known_gaps) - late_ns
    made_by_input = made_by(late.gaps, input_times.starts, input_times.ends)
    columns |= {
        "idle_input_ns": late_ns - waiting_ns,
        "idle_dependency_ns": dependency_ns,
        "idle_unknown_ns": idle_ns - late_ns - dependency_ns,
        "idle_between_steps_ns": windows.covered(late.times.intersect(inputs.quiet)),
        "idle_made_by_input_ns": windows.covered(made_by_input),
    }
    if calls is None:
        return IdleCauses(columns, {}, {})
    blocked = blocked_time(late.times, late.waiting, calls)
    blocked_by_copies = blocked.of_calls(calls["is_of_copy"].to_numpy())
    blocked_ns = windows.covered(blocked.times)
    columns["idle_launch_ns"] = waiting_ns - blocked_ns
    columns["idle_blocked_ns"] = blocked_ns
    columns["idle_blocked_by_copies_ns"] = windows.covered(blocked_by_copies.times)
    launching = late.waiting.without(blocked.times)
    pauses = launching[launching.ends - launching.starts >= PAUSE_NS]
    columns["idle_pause_ns"] = windows.covered(pauses)
    columns |= _made_by_calls(late.gaps, calls, windows)
    return IdleCauses(
        columns=columns,
        by_call=_by_call(blocked, calls, windows),
        of_copies_by_call=_by_call(blocked_by_copies, calls, windows),
    )


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
    is_known = gaps.launch != NEVER
    known_gaps = IntervalSet(gaps.starts, gaps.ends)
    launch = gaps.launch
    if not is_known.all():
        known_gaps = known_gaps[is_known]
        launch = launch[is_known]
    ready = launch + gaps.latency_ns
    np.clip(ready, known_gaps.starts, known_gaps.ends, out=ready)
    times = nonempty(known_gaps.starts, ready)
    return _LateTime(
        known_gaps=known_gaps,
        gaps=known_gaps[ready > known_gaps.starts],
        times=times,
        waiting=times.without(input_times),
    )


def _made_by_calls(
    late_gaps: IntervalSet, calls: pa.Table, windows: Windows
) -> dict[str, Int64 | None]:
    """Return how long the late gaps are that blocking calls, and blocking copies, explain, ns."""
    starts = calls["start_ns"].to_numpy()
    ends = calls["end_ns"].to_numpy()
    is_of_copy = calls["is_of_copy"].to_numpy()
    made_by_calls = made_by(late_gaps, starts[~is_of_copy], ends[~is_of_copy])
    made_by_copies = made_by(late_gaps, starts[is_of_copy], ends[is_of_copy])
    return {
        "idle_made_by_calls_ns": windows.covered(made_by_calls),
        "idle_made_by_copies_ns": windows.covered(made_by_copies),
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
    is_late = (ready > starts) & (ready < ends)
    return windows.covered(IntervalSet(ready[is_late], ends[is_late]))


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
    end = operations.kernel_end[:n_launched]
    launch = operations.kernel_launch[:n_launched] + offset_ns
    is_late = start - launch <= _MAX_LAUNCH_LATENCY_NS
    is_late_comm = operations.is_comm[:n_launched] & is_late
    late_comm = union(start[is_late_comm], end[is_late_comm])
    until_launch = _until_next_compute_is_launched(device, launch + latency_ns)
    exposed = exposed_comm(device.comm, device.compute)
    return device.windows.covered(exposed.intersect(union_of(late_comm, until_launch)))


def _until_next_compute_is_launched(device: DeviceTime, ready: Int64) -> IntervalSet:
    """Return when no compute runs because the kernel that starts next is not ready.

    `ready` is of each launched kernel when it can start.
    """
    rows = np.flatnonzero(~device.operations.is_comm[: ready.size])
    starts = device.operations.kernel_start[rows]
    # If compute kernels start together, the first launched ends the time without compute.
    first_starts, first_rows = np.unique(starts, return_index=True)
    next_compute = device.compute.starts[1:]
    place = np.searchsorted(first_starts, next_compute)
    is_launched = np.append(first_starts, FOREVER)[place] == next_compute
    without_compute = IntervalSet(device.compute.ends[:-1], next_compute)[is_launched]
    next_kernel = rows[first_rows[place[is_launched]]]
    ready_in_time = np.clip(ready[next_kernel], without_compute.starts, without_compute.ends)
    return nonempty(without_compute.starts, ready_in_time)


def phase_idle(
    gaps: Gaps | IntervalSet, windows: Windows, phase: Phases, n_phases: int
) -> list[Int64]:
    """Return for each phase the idle time in gaps that its operations end, ns per window.

    `phase` is of the operation that ends each gap, negative for none.
    """
    return [
        windows.covered(IntervalSet(gaps.starts, gaps.ends)[phase == code])
        for code in range(n_phases)
    ]


def _by_call(blocked: ExplainedTime, calls: pa.Table, windows: Windows) -> dict[str, Int64]:
    """Return the explained time of each window by the name of the call, ns, without zeros."""
    if not len(blocked.times) or not len(windows):
        return {}
    call_names = calls["call"].take(pa.array(blocked.call)).combine_chunks().dictionary_encode()
    names = call_names.dictionary.to_pylist()
    lengths = phase_idle(blocked.times, windows, call_names.indices.to_numpy(), len(names))
    lengths_by_call = zip(names, lengths, strict=True)
    return {name: length_ns for name, length_ns in lengths_by_call if length_ns.any()}
