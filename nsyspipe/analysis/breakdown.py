"""Where each step's wall time goes: compute, exposed and hidden communication, copies; and why devices idle the rest of it."""

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
# Figure -> what it needs of `Recorded`.
_NEEDS = {
    **dict.fromkeys(
        ("compute_ns", "comm_ns", "exposed_comm_ns", "overlap_compute_ns"), ("kernels", "names")
    ),
    **dict.fromkeys(("overlap_backward_ns", "n_collectives"), ("kernels", "names")),
    **dict.fromkeys(("exposed_memory_ns", "idle_ns"), ("kernels", "memcpy", "memset")),
    **dict.fromkeys(("dtod_ns", "n_dtod"), ("memcpy", "kinds")),
    "dtod_bytes": ("memcpy", "kinds", "sizes"),
    "exposed_dtod_ns": ("kernels", "memcpy", "kinds"),
}
# Copies of gradients out of their buckets: a model's own copies stand between kernels, DDP copies a
# bucket's in one go.
_SHORTEST_RUN = 8
_LONGEST_LATENCY_NS = (
    20_000  # from the end of one to the start of the next: more is a wait for something else
)
# A host that launches one operation after the other never takes so long for the next one
PAUSE_NS = 2_000_000
_LONGEST_LAUNCH_NS = (
    20_000  # to reach an idle device: a larger least time means that it never was idle
)


class DeviceTime(Struct, frozen=True):
    """A rank's operations, its windows, and unions of the operations, report time, ns."""

    operations: ProcessOperations
    windows: Windows
    compute: IntervalSet  # C of the definitions
    comm: IntervalSet  # M
    memory: IntervalSet  # P: memcpys and memsets
    hidden: IntervalSet  # ``C n M``

    def exposed(self, covered: IntervalSet) -> IntervalSet:
        r"""Return ``X \ (C u M)``: the times beside neither compute nor communication."""
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
        operations, windows, compute, communication, memory, communication.intersect(compute)
    )


def breakdown(
    device: DeviceTime, backward: Flags | None, recorded: Recorded
) -> dict[str, Int64 | None]:
    """Split each window of one rank into disjoint parts: columns of `schema.STEPS`, which has their formulas.

    Operations count in the window that they run in, whatever step they belong to. `backward` flags
    the kernels that were launched inside a backward range; None when the rank has no such range.
    Returns one int64 per window (ns, counts and bytes as named), None where not recorded: see
    `_NEEDS`.
    """
    operations = device.operations
    windows = device.windows
    comm = device.operations.is_comm
    dtod, n_dtod, dtod_bytes = _copies(operations, operations.copy_kind == DTOD_KIND, windows)
    times = (device.compute, device.comm, device.hidden, device.exposed(device.memory))
    compute, comm_ns, overlap, exposed_memory = map(windows.covered, times)
    wall = windows.ends - windows.starts
    exposed = comm_ns - overlap
    columns: dict[str, Int64 | None] = {
        "wall_ns": wall,
        "compute_ns": compute,
        "comm_ns": comm_ns,
        "exposed_comm_ns": exposed,
        "exposed_memory_ns": exposed_memory,
        "idle_ns": wall - compute - exposed - exposed_memory,
        "dtod_ns": windows.covered(dtod),
        "dtod_bytes": dtod_bytes,
        "n_dtod": n_dtod,
        "exposed_dtod_ns": windows.covered(device.exposed(dtod)),
        "overlap_compute_ns": overlap,
        "overlap_backward_ns": None,
        "n_collectives": windows.slices(np.sort(operations.kernel_start[comm])).counts,
    }
    if backward is not None:
        kernels = backward & ~comm
        of_backward = union(operations.kernel_start[kernels], operations.kernel_end[kernels])
        columns["overlap_backward_ns"] = windows.covered(device.comm.intersect(of_backward))
    lacking = (
        name for name, facts in _NEEDS.items() if not all(getattr(recorded, fact) for fact in facts)
    )
    return columns | dict.fromkeys(lacking)


def compute_stream(operations: ProcessOperations, of_comm: Int64) -> int | None:
    """Return the stream that most compute kernels run on, of several the lowest; None without any, or where none is known.

    `of_comm` are the streams of the communication operations.
    """
    streams = pc.value_counts(operations.kernel_rows["stream_id"].drop_null())
    counts = dict(
        zip(streams.field("values").to_pylist(), streams.field("counts").to_pylist(), strict=True)
    )
    for stream, number in zip(
        *(column.tolist() for column in np.unique(of_comm, return_counts=True)), strict=True
    ):
        counts[stream] = counts.get(stream, 0) - number
    most = max(counts.values(), default=0)
    return min(stream for stream, number in counts.items() if number == most) if most > 0 else None


def comm_on_stream(
    operations: ProcessOperations, of_comm: Int64, stream: int | None, windows: Windows
) -> Int64 | None:
    """Return by window how long communication is under way on a stream, ns; None where nothing says what launched it.

    Kernels of a CUDA graph share a launch. The stream that nsys gives them is the graph's, and they
    may run beside each other: they do not count.
    """
    n = operations.n_launched
    if not n and operations.kernel_start.size:
        return None
    rows = np.flatnonzero(operations.is_comm)
    rows = rows[of_comm == stream] if stream is not None else rows[:0]
    rows = rows[rows < n]
    launch = np.concatenate(([NEVER], operations.kernel_launch[:n], [NEVER]))
    rows = rows[(launch[rows] != launch[rows + 1]) & (launch[rows + 2] != launch[rows + 1])]
    return windows.covered(union(operations.kernel_start[rows], operations.kernel_end[rows]))


def started_in(starts: Int64, values: Int64, windows: Windows) -> tuple[Int64, Int64]:
    """Return how many operations start in each window, and the sum of their values."""
    order = np.argsort(starts, kind="stable")
    found = windows.slices(starts[order])
    before = np.append(0, np.cumsum(values[order]))
    return found.counts, before[found.last] - before[found.first]


def _copies(
    operations: ProcessOperations, chosen: Flags, windows: Windows
) -> tuple[IntervalSet, Int64, Int64]:
    starts = operations.copy_start[chosen]
    return union(starts, operations.copy_end[chosen]), *started_in(
        starts, operations.copy_bytes[chosen], windows
    )


def grad_copies(
    device: DeviceTime, in_backward: Flags | None, recorded: Recorded
) -> dict[str, Int64 | None]:
    """Measure the copies between gradients and buckets in each window, by the formulas of `schema.STEPS`.

    `in_backward` flags the copies launched inside a backward range; None where the rank has none.
    What is launched in the same nanosecond as a copy comes after it. None where copies or their
    kinds were not recorded.
    """
    operations = device.operations
    windows = device.windows
    chosen = _in_runs(device.operations)
    if in_backward is not None:
        chosen &= in_backward
    covered, number, n_bytes = _copies(operations, chosen, windows)
    # The copies of each step, and the time that the device takes from one to the next.
    before = covered.ends[:-1]
    after = covered.starts[1:]
    is_apart = after - before > _LONGEST_LATENCY_NS
    is_apart |= np.searchsorted(windows.starts, before) != np.searchsorted(
        windows.starts, after, side="right"
    )
    spans = IntervalSet(
        np.append(covered.starts[:1], after[is_apart]),
        np.append(before[is_apart], covered.ends[-1:]),
    )
    columns: dict[str, Int64 | None] = {
        "grad_copy_ns": windows.covered(covered),
        "exposed_grad_copy_ns": windows.covered(device.exposed(covered)),
        "grad_copy_span_ns": windows.covered(spans),
        "grad_copy_bytes": n_bytes if recorded.sizes else None,
        "n_grad_copies": number,
    }
    return (
        columns
        if recorded.kernels and recorded.memcpy and recorded.kinds
        else dict.fromkeys(columns)
    )


def blocking_copies(
    device: DeviceTime, copies: pa.Table | None, recorded: Recorded
) -> dict[str, Int64 | None]:
    """Measure the copies from the host that block it in each window: `canonical.BLOCKING_COPIES`; None where not recorded."""
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
    n_copies, n_bytes = started_in(starts, filled(copies["bytes"], 0), windows)
    _, n_pageable = started_in(
        starts, filled(pc.cast(copies["is_pageable"], pa.int64()), 0), windows
    )
    return {
        "n_blocking_copies": n_copies,
        "n_pageable_copies": None if copies["is_pageable"].null_count else n_pageable,
        "blocking_copy_bytes": None if copies["bytes"].null_count else n_bytes,
        "exposed_blocking_copy_ns": windows.covered(device.exposed(times))
        if recorded.kernels
        else None,
    }


def _in_runs(operations: ProcessOperations) -> Flags:
    """Tell which copies are DtoD and in a long run of such; copies without a launch never are."""
    launch = operations.copy_launch
    is_dtod = operations.copy_kind == DTOD_KIND
    chosen = np.flatnonzero(is_dtod & (launch != NEVER))
    own = launch[chosen]
    others = operations.kernel_launch[: operations.n_launched], launch[~is_dtod]
    lengths = np.diff(
        run_starts(np.sum([np.searchsorted(one, own) for one in others], axis=0)), append=own.size
    )
    in_runs = np.zeros(launch.size, np.bool_)
    in_runs[chosen[np.repeat(lengths >= _SHORTEST_RUN, lengths)]] = True
    return in_runs


class Gaps(Struct, frozen=True):
    """The gaps between operations of one rank, in order of time, report time, ns."""

    starts: Int64  # where the last operation before ended
    ends: Int64  # where the next one starts
    # of what explains the gap, on the device's clock; `attribution.NEVER` where it has none
    launch: Int64
    # which operation that is: kernels in order of launch, then copies in order of launch. It is the
    # one that ends the gap; where that is a copy of unified memory, which nothing launches, the
    # next to start that is none.
    operation: Int64
    latency_ns: (
        int  # the shortest time from a launch to its kernel's start on this rank, from 0 to 20 us
    )


def idle_gaps(operations: ProcessOperations, offset_ns: int = 0) -> Gaps:
    """Find all gaps; of operations that start together a kernel ends the gap, then the first launched.

    Launches are put on the device's clock, later than the host's by `offset_ns`.
    """
    starts = np.concatenate((operations.kernel_start, operations.copy_start))
    order = np.argsort(starts, kind="stable")  # nearly sorted, which makes this cheap
    starts = starts[order]
    reached = np.concatenate((operations.kernel_end, operations.copy_end))[order]
    np.maximum.accumulate(reached, out=reached)
    before = np.flatnonzero(starts[1:] > reached[:-1])
    began = reached[before]
    ended = starts[1:][before]
    del starts, reached  # each as long as the operations
    n_kernels = operations.kernel_start.size
    n = operations.n_launched
    is_unified = operations.is_unified
    ending = order[before + 1]
    if is_unified.any():
        place = np.flatnonzero(~np.append(np.zeros(n_kernels, np.bool_), is_unified)[order])
        later = np.searchsorted(place, before + 1)
        ending = np.where(later < place.size, order[np.append(place, 0)[later]], ending)
    del order
    launch = np.append(operations.kernel_launch, operations.copy_launch)[ending]
    np.add(launch, offset_ns, out=launch, where=launch != NEVER)
    latencies = operations.kernel_start[:n] - operations.kernel_launch[:n]
    latencies -= offset_ns
    return Gaps(
        began,
        ended,
        launch,
        ending,
        min(max(int(latencies.min()), 0), _LONGEST_LAUNCH_NS) if n else 0,
    )


class IdleCauses(Struct, frozen=True):
    """Why one rank idles, ns per window."""

    # `schema.IDLE_CAUSES`, `schema.IDLE_DETAILS`; None where not known
    columns: dict[str, Int64 | None]
    # ``idle_blocked_ns`` by the call that explains it, without those that explain nothing; and the
    # part of blocking copies
    by_call: dict[str, Int64]
    of_copies_by_call: dict[str, Int64]


def idle_causes(
    gaps: Gaps, windows: Windows, idle_ns: Int64 | None, inputs: Inputs, calls: pa.Table | None
) -> IdleCauses:
    """Split the idle time of each window by what held up the operation that ends each gap, by the formulas of `schema.STEPS`.

    All times are on the clock of the gaps. All causes are None where `idle_ns` is; those that rest
    on calls without `calls`, `canonical.BLOCKING_CALLS` of the process, sorted by start.
    """
    columns: dict[str, Int64 | None] = dict.fromkeys((*IDLE_CAUSES, *IDLE_DETAILS))
    if idle_ns is None:
        return IdleCauses(columns, {}, {})
    known = gaps.launch != NEVER
    starts, ends, launch = (
        own if known.all() else own[known] for own in (gaps.starts, gaps.ends, gaps.launch)
    )
    ready = launch + gaps.latency_ns
    np.clip(ready, starts, ends, out=ready)
    late = nonempty(starts, ready)
    input_times = union_of(inputs.data, inputs.quiet)
    waiting = late.without(input_times)
    late_ns = windows.covered(late)
    waiting_ns = windows.covered(waiting)
    dependency_ns = windows.covered(IntervalSet(starts, ends)) - late_ns
    # Whole gaps that a late launch ends: with an earlier launch the rest of such a gap may go too.
    late_gaps = IntervalSet(starts, ends)[ready > starts]
    columns |= {
        "idle_input_ns": late_ns - waiting_ns,
        "idle_dependency_ns": dependency_ns,
        "idle_unknown_ns": idle_ns - late_ns - dependency_ns,
        "idle_between_steps_ns": windows.covered(late.intersect(inputs.quiet)),
        "idle_made_by_input_ns": windows.covered(
            made_by(late_gaps, input_times.starts, input_times.ends)
        ),
    }
    if calls is None:
        return IdleCauses(columns, {}, {})
    blocked = blocked_time(late, waiting, calls)
    blocked_ns = windows.covered(blocked.times)
    launching = waiting.without(blocked.times)
    pauses = launching[launching.ends - launching.starts >= PAUSE_NS]
    is_of_copy = calls["is_of_copy"].to_numpy()
    of_copies = blocked.of_calls(is_of_copy)
    call_starts = calls["start_ns"].to_numpy()
    call_ends = calls["end_ns"].to_numpy()
    made_by_calls, made_by_copies = (
        made_by(late_gaps, call_starts[own], call_ends[own]) for own in (~is_of_copy, is_of_copy)
    )
    columns |= {
        "idle_launch_ns": waiting_ns - blocked_ns,
        "idle_blocked_ns": blocked_ns,
        "idle_pause_ns": windows.covered(pauses),
        "idle_blocked_by_copies_ns": windows.covered(of_copies.times),
        "idle_made_by_calls_ns": windows.covered(made_by_calls),
        "idle_made_by_copies_ns": windows.covered(made_by_copies),
    }
    return IdleCauses(
        columns, _by_call(blocked, calls, windows), _by_call(of_copies, calls, windows)
    )


def late_starts(gaps: Gaps, windows: Windows) -> Int64:
    """Return how long the device takes to start what was launched late, beyond its shortest latency, ns in each window.

    That is idle time for dependency in gaps in which a launch came late: the device starts what is
    launched in time while it still works on what comes before.
    """
    known = gaps.launch != NEVER
    ready = gaps.launch[known] + gaps.latency_ns
    starts = gaps.starts[known]
    ends = gaps.ends[known]
    is_late = (ready > starts) & (ready < ends)
    return windows.covered(IntervalSet(ready[is_late], ends[is_late]))


def exposed_by_late_launches(device: DeviceTime, latency_ns: int, offset_ns: int) -> Int64:
    """Return how much of each window's exposed communication late launches expose, ns.

    Launched in time it could have run beside compute. That is communication that started as soon as
    it was launched, and communication until the launch of the compute kernel that starts next, and
    the rank's shortest latency after that. Launches are put on the device's clock, later than the
    host's by `offset_ns`.
    """
    operations = device.operations
    n = operations.n_launched
    is_comm = operations.is_comm[: operations.n_launched]
    start = operations.kernel_start[:n]
    end = operations.kernel_end[:n]
    launch = operations.kernel_launch[:n] + offset_ns
    is_late_comm = is_comm & (start - launch <= _LONGEST_LAUNCH_NS)
    late_comm = union(start[is_late_comm], end[is_late_comm])
    until_launch = _until_next_compute_is_launched(device, launch + latency_ns)
    exposed = exposed_comm(device.comm, device.compute)
    return device.windows.covered(exposed.intersect(union_of(late_comm, until_launch)))


def _until_next_compute_is_launched(device: DeviceTime, ready: Int64) -> IntervalSet:
    """Return when no compute runs because the kernel that starts next is not `ready`: of each launched kernel when it is."""
    rows = np.flatnonzero(~device.operations.is_comm[: ready.size])
    starts = device.operations.kernel_start[rows]
    # Of compute that starts together the first launched ends the time without compute.
    first, order = np.unique(starts, return_index=True)
    place = np.searchsorted(first, device.compute.starts[1:])
    is_launched = np.append(first, FOREVER)[place] == device.compute.starts[1:]
    without = IntervalSet(device.compute.ends[:-1], device.compute.starts[1:])[is_launched]
    return nonempty(
        without.starts,
        np.clip(ready[rows[order[place[is_launched]]]], without.starts, without.ends),
    )


def phase_idle(
    gaps: Gaps | IntervalSet, windows: Windows, phase: Phases, n_phases: int
) -> list[Int64]:
    """Return for each phase the idle time of each window whose gaps an operation of that phase (negative: of none) ends."""
    return [
        windows.covered(IntervalSet(gaps.starts, gaps.ends)[phase == code])
        for code in range(n_phases)
    ]


def _by_call(blocked: ExplainedTime, calls: pa.Table, windows: Windows) -> dict[str, Int64]:
    if not len(blocked.times) or not len(windows):
        return {}
    names = calls["call"].take(pa.array(blocked.call)).combine_chunks().dictionary_encode()
    lengths = phase_idle(blocked.times, windows, names.indices.to_numpy(), len(names.dictionary))
    return {
        name: own
        for name, own in zip(names.dictionary.to_pylist(), lengths, strict=True)
        if own.any()
    }
