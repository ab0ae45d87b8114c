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

    The letters are those of the formulas in `schema.STEPS`.
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
    """Split the time of each window of one rank into disjoint parts.

    Returns columns of `schema.STEPS` by name, which has their formulas. A column has a value per
    window. It is None if the metric was not recorded: see `_NEEDS`. Operations count in the window
    that they run in, whatever step they belong to. `backward` flags the kernels that were launched
    inside a backward range. It is None if the rank has no such range.
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
    """Tell whether all of some facts were recorded, which are names of fields of `Recorded`."""
    return all(getattr(recorded, fact) for fact in facts)


def _overlap_of_backward(device: DeviceTime, backward: Flags) -> Int64:
    """Return how long any communication runs during compute of the backward pass, ns by window."""
    is_backward_compute = backward & ~device.operations.is_comm
    backward_compute = kernel_times(device.operations, is_backward_compute)
    overlap = device.comm.intersect(backward_compute)
    return device.windows.covered(overlap)


def _device_to_device_copies(device: DeviceTime) -> dict[str, Int64 | None]:
    """Return the columns of copies from device to device, a value per window."""
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
    """Return the ID of the stream that most compute kernels run on; of several the lowest.

    None if there are no compute kernels, or if no stream is known. `comm_streams` are the streams
    of the communication operations.
    """
    # A compute kernel is a kernel that does not communicate.
    stream_of_kernel = operations.kernel_rows["stream_id"].drop_null()
    counts_of_streams = pc.value_counts(stream_of_kernel)
    stream_ids = counts_of_streams.field("values").to_pylist()
    n_kernels = counts_of_streams.field("counts").to_pylist()
    n_kernels_of_stream = dict(zip(stream_ids, n_kernels, strict=True))
    comm_stream_ids, n_comm_kernels = np.unique(comm_streams, return_counts=True)
    n_comm_of_stream = zip(comm_stream_ids.tolist(), n_comm_kernels.tolist(), strict=True)
    n_compute_of_stream: Counter[int] = Counter(n_kernels_of_stream)
    n_compute_of_stream.subtract(dict(n_comm_of_stream))
    most = max(n_compute_of_stream.values(), default=0)
    if most <= 0:
        # All kernels with a known stream communicate.
        return None
    streams_of_most = [stream for stream, n in n_compute_of_stream.items() if n == most]
    return min(streams_of_most)


def comm_on_stream(
    operations: ProcessOperations, comm_streams: Int64, stream: int | None, windows: Windows
) -> Int64 | None:
    """Return how long communication is under way on a stream in each window, ns.

    `comm_streams` are the streams of the communication operations. The result is 0 without a
    stream.

    Kernels of a CUDA graph share a launch. Their recorded stream is that of the graph, and they may
    run at the same time. So they do not count. If no launch is known, nothing shows which kernels
    are of graphs. So the result is None, unless there are no kernels.
    """
    n_launched = operations.n_launched
    if not n_launched and operations.kernel_start.size:
        return None
    if stream is None:
        return np.zeros(len(windows), np.int64)
    comm_kernels = np.flatnonzero(operations.is_comm)
    is_on_stream = comm_streams == stream
    # Kernels are in order of launch, those without a known launch last.
    is_launched = comm_kernels < n_launched
    kernels = comm_kernels[is_on_stream & is_launched]
    launch = operations.kernel_launch[:n_launched]
    differs = launch[1:] != launch[:-1]
    # The first kernel has no previous one, and the last has no next.
    differs_from_previous = np.append(True, differs)
    differs_from_next = np.append(differs, True)
    is_only_kernel_of_launch = differs_from_previous[kernels] & differs_from_next[kernels]
    times = kernel_times(operations, kernels[is_only_kernel_of_launch])
    return windows.covered(times)


class Started(Struct, frozen=True):
    """The operations that start in each window."""

    number: Int64
    total: Int64  # the sum of some value of theirs


def started_in(starts: Int64, values: Int64, windows: Windows) -> Started:
    """Return how many operations start in each window, and the sum of their values.

    `starts` and `values` have one element per operation, in any order.
    """
    by_start = np.argsort(starts, kind="stable")
    slices = windows.slices(starts[by_start])
    total_before_place = np.append(0, np.cumsum(values[by_start]))
    total = total_before_place[slices.last]
    total -= total_before_place[slices.first]
    return Started(slices.counts, total)


class _Copies(Struct, frozen=True):
    """Some copies of a rank."""

    times: IntervalSet
    # Of the copies that start in each window.
    number: Int64
    n_bytes: Int64


def _measure_copies(operations: ProcessOperations, chosen: Flags, windows: Windows) -> _Copies:
    """Return the times of the chosen copies, and their number and bytes in each window."""
    starts = operations.copy_start[chosen]
    ends = operations.copy_end[chosen]
    n_bytes = operations.copy_bytes[chosen]
    started = started_in(starts, n_bytes, windows)
    times = union(starts, ends)
    return _Copies(times, started.number, started.total)


def grad_copies(
    device: DeviceTime, in_backward: Flags | None, recorded: Recorded
) -> dict[str, Int64 | None]:
    """Measure the copies between gradients and the buckets of DDP, in each window.

    Returns columns of `schema.STEPS` by name, which has their formulas. All are None if kernels,
    copies or the kinds of copies were not recorded. `in_backward` flags the copies launched inside
    a backward range. It is None if the rank has no such range. Then all long runs of copies count.
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
        "grad_copy_bytes": copies.n_bytes if recorded.sizes else None,
        "n_grad_copies": copies.number,
    }
    if not _is_recorded(recorded, ("kernels", "memcpy", "kinds")):
        return dict.fromkeys(columns)
    return columns


def _join_over_latencies(copies: IntervalSet, windows: Windows) -> IntervalSet:
    """Return the times of the copies, without the short gaps between copies of one window.

    A short gap is what the device takes from one copy to the next.
    """
    gap_starts = copies.ends[:-1]
    gap_ends = copies.starts[1:]
    # A window that starts with the gap, in it, or at its end, parts the copies.
    n_windows_before = np.searchsorted(windows.starts, gap_starts)
    n_windows_after = np.searchsorted(windows.starts, gap_ends, side="right")
    gap_ns = gap_ends - gap_starts
    is_kept = gap_ns > _MAX_COPY_LATENCY_NS
    is_kept |= n_windows_before != n_windows_after
    first_start = copies.starts[:1]
    last_end = copies.ends[-1:]
    starts = np.append(first_start, gap_ends[is_kept])
    ends = np.append(gap_starts[is_kept], last_end)
    return IntervalSet(starts, ends)


def blocking_copies(
    device: DeviceTime, copies: BlockingCopiesOfReportTable | None, recorded: Recorded
) -> dict[str, Int64 | None]:
    """Measure the copies that block the host, in each window.

    `copies` are `canonical.BLOCKING_COPIES`, None if not recorded. Returns columns of
    `schema.STEPS` by name. A column is None if something that it needs was not recorded.
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
    # A sum is known only if all its parts are.
    if not copies["bytes"].null_count:
        columns["blocking_copy_bytes"] = started.total
    is_pageable = copies["is_pageable"]
    if not is_pageable.null_count:
        # 1 for a pageable copy, so that the sum is their number.
        ones = is_pageable.cast(pa.int64()).to_numpy()
        pageable = started_in(starts, ones, windows)
        columns["n_pageable_copies"] = pageable.total
    return columns


def _are_in_runs(operations: ProcessOperations) -> Flags:
    """Tell which copies are from device to device, and in a long run of such copies.

    The copies of a run are launched without another operation between. An operation that is
    launched in the same nanosecond as a copy comes after the copy. Copies whose launch is not known
    are in no run.
    """
    launch = operations.copy_launch
    is_dtod = operations.copy_kind == DTOD_KIND
    has_launch = launch != NEVER
    copies = np.flatnonzero(is_dtod & has_launch)
    copy_launch = launch[copies]
    kernel_launch = operations.kernel_launch[: operations.n_launched]
    # How many kernels and other copies were launched before each copy. Two copies have the same
    # number if nothing was launched between them. So equal numbers are a run.
    n_others_before = np.searchsorted(kernel_launch, copy_launch)
    n_others_before += np.searchsorted(launch[~is_dtod], copy_launch)
    first = run_starts(n_others_before)
    lengths = np.diff(first, append=copy_launch.size)
    is_long = lengths >= _MIN_COPIES_OF_BUCKET
    is_in_long_run = np.repeat(is_long, lengths)
    is_chosen = np.zeros(launch.size, np.bool_)
    is_chosen[copies[is_in_long_run]] = True
    return is_chosen


class Gaps(Struct, frozen=True):
    """The gaps between operations of one rank, in order of time; report time, ns."""

    # Where the last operation before the gap ended, and where the next one starts.
    starts: Int64
    ends: Int64
    # When the operation that explains the gap was launched, on the clock of the device;
    # `attribution.NEVER` if it has no launch.
    launch: Int64
    # The operation that explains the gap. Operations are numbered: first the kernels in order of
    # launch, then the copies in order of launch. The operation that ends the gap explains it. But
    # nothing launches a copy of unified memory. If such a copy ends the gap, the next operation
    # that is no such copy explains it.
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
    by_start = np.argsort(starts, kind="stable")
    starts = starts[by_start]
    latest_end = np.append(operations.kernel_end, operations.copy_end)[by_start]
    np.maximum.accumulate(latest_end, out=latest_end)
    is_gap = starts[1:] > latest_end[:-1]
    place_before_gap = np.flatnonzero(is_gap)
    place_behind_gap = place_before_gap + 1
    gap_starts = latest_end[place_before_gap]
    gap_ends = starts[place_behind_gap]
    # These arrays are large, so free their memory before the next ones are made.
    del starts, latest_end, is_gap
    operation = _explaining_operations(operations, by_start, place_behind_gap)
    del by_start
    launch = np.append(operations.kernel_launch, operations.copy_launch)[operation]
    is_known = launch != NEVER
    launch[is_known] += offset_ns
    latency_ns = _launch_latency(operations, offset_ns)
    return Gaps(gap_starts, gap_ends, launch, operation, latency_ns)


def _explaining_operations(operations: ProcessOperations, by_start: Int64, places: Int64) -> Int64:
    """Return for each place the operation that explains the gap before the place.

    It is the operation at the place. But nothing launches copies of unified memory. If such a copy
    is at the place, the next other operation explains the gap. If only such copies follow, the copy
    at the place does. `by_start` are all operations in order of start.
    """
    operation_at_place = by_start[places]
    is_unified_copy = operations.is_unified
    if not is_unified_copy.any():
        return operation_at_place
    n_kernels = operations.kernel_start.size
    all_kernels = np.ones(n_kernels, np.bool_)
    is_launchable = np.append(all_kernels, ~is_unified_copy)
    launchable_places = np.flatnonzero(is_launchable[by_start])
    n_launchable_before = np.searchsorted(launchable_places, places)
    has_next = n_launchable_before < launchable_places.size
    # Any place will do for those without a next one.
    next_place = np.append(launchable_places, 0)[n_launchable_before]
    return np.where(has_next, by_start[next_place], operation_at_place)


def _launch_latency(operations: ProcessOperations, offset_ns: int) -> int:
    """Return the shortest time from a launch to the start of its kernel, from 0 to 20 us."""
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
    # ``idle_blocked_ns`` by the name of the call that explains it. Calls that explain nothing are
    # left out.
    by_call: dict[str, Int64]
    # The part of ``by_call`` that blocking copies explain.
    of_copies_by_call: dict[str, Int64]
    # When the device idles for its host. None if not known.
    times: HostIdleTime | None = None


def idle_causes(
    gaps: Gaps, windows: Windows, idle_ns: Int64 | None, inputs: Inputs, calls: pa.Table | None
) -> IdleCauses:
    """Split the idle time of each window by what held up the operation that ends each gap.

    `schema.STEPS` has the formulas. All times are on the clock of the gaps. All causes are None if
    `idle_ns` is None. `calls` are `canonical.BLOCKING_CALLS` of the process, sorted by start.
    Without calls, the causes that need calls are None.

    Late time is the part of a gap before the operation that ends the gap could start. It is split
    into input and waiting. The rest of a gap is dependency. Idle time that is in no gap, or in a
    gap whose launch is not known, has an unknown cause.
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
    """Split the time in which the device waits for its host; columns by name, ns by window.

    In this time, the host is blocked or launches. A long time of launching is also a pause.
    """
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
    """Return the part of each gap before the operation that explains the gap could start.

    Gaps whose launch is not known have no such part.
    """
    is_known = gaps.launch != NEVER
    # There are many gaps, and a slice copies none.
    chosen = slice(None) if is_known.all() else is_known
    starts = gaps.starts[chosen]
    ends = gaps.ends[chosen]
    # When the operation could start. Only times inside its gap count.
    ready = gaps.launch[chosen] + gaps.latency_ns
    np.clip(ready, starts, ends, out=ready)
    known_gaps = IntervalSet(starts, ends)
    late_gaps = known_gaps[ready > starts]
    times = nonempty(starts, ready)
    waiting = times.without(input_times)
    return _LateTime(known_gaps, late_gaps, times, waiting)


def _made_by_calls(
    late_gaps: IntervalSet, calls: BlockingCallsOfReportTable, windows: Windows
) -> dict[str, Int64 | None]:
    """Return the length of the late gaps that calls of copies, and all other calls, explain.

    A late gap ends with an operation that was launched late. Lengths are in ns by window.
    """
    starts = calls["start_ns"].to_numpy()
    ends = calls["end_ns"].to_numpy()
    is_of_copy = calls["is_of_copy"].to_numpy()
    is_other = ~is_of_copy
    made_by_calls = made_by(late_gaps, starts[is_other], ends[is_other])
    made_by_copies = made_by(late_gaps, starts[is_of_copy], ends[is_of_copy])
    return {
        "idle_made_by_calls_ns": windows.covered(made_by_calls),
        "idle_made_by_copies_ns": windows.covered(made_by_copies),
    }


def _caused_by_allocs(
    late_gaps: IntervalSet, blocked: ExplainedTime, calls: pa.Table, windows: Windows
) -> dict[str, Int64 | None]:
    """Return the blocked time, and the length of the late gaps, that calls for memory explain.

    Both are in ns by window. These calls allocate and free memory.
    """
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

    An operation is ready when the shortest latency of the rank has passed since its launch. The
    time lasts from then to the start, and is a part of the idle time for dependency. An operation
    that is ready before the gap has no such time, since the device prepares the operation while it
    still works.
    """
    is_known = gaps.launch != NEVER
    ready = gaps.launch[is_known] + gaps.latency_ns
    starts = gaps.starts[is_known]
    ends = gaps.ends[is_known]
    is_ready_in_gap = ready > starts
    is_ready_in_gap &= ready < ends
    times_to_start = IntervalSet(ready[is_ready_in_gap], ends[is_ready_in_gap])
    return windows.covered(times_to_start)


def exposed_by_late_launches(device: DeviceTime, latency_ns: int, offset_ns: int) -> Int64:
    """Return how much of the exposed communication of each window late launches expose, ns.

    With launches in time, compute could have hidden this communication, which has two parts:

    - Communication that started at most 20 us after its launch. It did not have to wait for the
      device, so with an earlier launch it would have started earlier.
    - Communication at a time at which the next compute kernel was not ready. With an earlier launch
      of that kernel, compute would have run at that time.

    `latency_ns` is the shortest time of the rank from a launch to the start of its kernel. Launches
    are put on the clock of the device, which is later than that of the host by `offset_ns`.
    """
    operations = device.operations
    n_launched = operations.n_launched
    start = operations.kernel_start[:n_launched]
    launch = operations.kernel_launch[:n_launched] + offset_ns
    starts_at_once = start - launch <= _MAX_LAUNCH_LATENCY_NS
    is_late_comm = starts_at_once & operations.is_comm[:n_launched]
    late_comm = kernel_times(operations, np.flatnonzero(is_late_comm))
    before_ready = _before_next_compute_is_ready(device, launch + latency_ns)
    late = union_of(late_comm, before_ready)
    exposed = exposed_comm(device.comm, device.compute)
    exposed_by_late = exposed.intersect(late)
    return device.windows.covered(exposed_by_late)


def _before_next_compute_is_ready(device: DeviceTime, ready: Int64) -> IntervalSet:
    """Return when no compute runs because the compute kernel that starts next is not ready.

    `ready` is the time from which each kernel with a known launch can start. If the launch of the
    next kernel is not known, the time before the kernel is left out. If kernels start together, the
    first launched is the next kernel.
    """
    is_compute = ~device.operations.is_comm[: ready.size]
    compute_kernels = np.flatnonzero(is_compute)
    starts = device.operations.kernel_start[compute_kernels]
    # Compute kernels are in order of launch, so the first index is that of the first launched.
    distinct_starts, first_with_start = np.unique(starts, return_index=True)
    # No compute runs from the end of each stretch of compute to the start of the next.
    previous_end = device.compute.ends[:-1]
    next_start = device.compute.starts[1:]
    place = np.searchsorted(distinct_starts, next_start)
    # The appended element is for times behind all starts.
    start_at_place = np.append(distinct_starts, FOREVER)[place]
    # Whether a kernel with a known launch starts then.
    is_launch_known = start_at_place == next_start
    without_compute = IntervalSet(previous_end, next_start)[is_launch_known]
    next_kernel = compute_kernels[first_with_start[place[is_launch_known]]]
    # A kernel that was ready before the time without compute explains nothing of the time.
    until = np.clip(ready[next_kernel], without_compute.starts, without_compute.ends)
    return nonempty(without_compute.starts, until)


def phase_idle(
    gaps: Gaps | IntervalSet, windows: Windows, phase: Phases, n_phases: int
) -> list[Int64]:
    """Return for each phase the length of the gaps that end with an operation of the phase.

    The lengths are in ns per window. `phase` has a value per gap: the phase of the operation that
    ends the gap, negative for none.
    """
    times = IntervalSet(gaps.starts, gaps.ends)
    idle_ns = []
    for code in range(n_phases):
        times_of_phase = times[phase == code]
        idle_ns.append(windows.covered(times_of_phase))
    return idle_ns


def _by_call(blocked: ExplainedTime, calls: pa.Table, windows: Windows) -> dict[str, Int64]:
    """Return the explained time of each window, ns, by the name of the call that explains it.

    Names that explain nothing in any window are left out.
    """
    if not len(blocked.times) or not len(windows):
        return {}
    call = pa.array(blocked.call)
    call_names = calls["call"].take(call).combine_chunks().dictionary_encode()
    name_of_time = call_names.indices.to_numpy()
    names = call_names.dictionary.to_pylist()
    # A name is treated like a phase here.
    lengths = phase_idle(blocked.times, windows, name_of_time, len(names))
    lengths_by_name = zip(names, lengths, strict=True)
    return {name: length_ns for name, length_ns in lengths_by_name if length_ns.any()}
