"""Where each step's wall time goes: compute, exposed and hidden communication, copies; and why devices idle the rest of it."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from nsyspipe.analysis.attribution import NEVER, Inputs, ProcessOperations
from nsyspipe.analysis.intervals import EMPTY, IntervalSet, nonempty, run_starts, union, union_of
from nsyspipe.analysis.steps import Windows
from nsyspipe.model.canonical import DTOD_KIND
from nsyspipe.model.problems import Recorded
from nsyspipe.model.schema import IDLE_CAUSES
from nsyspipe.model.table import Flags, Int64

Phases = NDArray[np.int8] | NDArray[np.int32]
# Figure -> what it needs of `Recorded`.
_NEEDS = {
    **dict.fromkeys(("compute_ns", "comm_ns", "exposed_comm_ns", "overlap_compute_ns"), ("kernels", "names")),
    **dict.fromkeys(("overlap_backward_ns", "n_collectives"), ("kernels", "names")),
    **dict.fromkeys(("exposed_memory_ns", "idle_ns"), ("kernels", "memcpy", "memset")),
    **dict.fromkeys(("dtod_ns", "n_dtod"), ("memcpy", "kinds")),
    "dtod_bytes": ("memcpy", "kinds", "sizes"),
    "exposed_dtod_ns": ("kernels", "memcpy", "kinds"),
}  # fmt: skip
# Copies of gradients out of their buckets: a model's own copies stand between kernels, DDP copies a bucket's in one go.
_SHORTEST_RUN = 8
_LONGEST_LATENCY_NS = 20_000  # from the end of one to the start of the next: more is a wait for something else
PAUSE_NS = 2_000_000  # A host that launches one operation after the other never takes so long for the next one
_LONGEST_LAUNCH_NS = 20_000  # to reach an idle device: a larger least time means that it never was idle


@dataclass(frozen=True)
class DeviceTime:
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
    return DeviceTime(operations, windows, compute, communication, memory, communication.intersect(compute))


def breakdown(device: DeviceTime, backward: Flags | None, recorded: Recorded) -> dict[str, Int64 | None]:
    """Split each window of one rank into disjoint parts: columns of `schema.STEPS`, which has their formulas.

    Operations count in the window that they run in, whatever step they belong to. `backward` flags the kernels that were
    launched inside a backward range; None when the rank has no such range. Returns one int64 per window (ns, counts and
    bytes as named), None where not recorded: see `_NEEDS`.
    """
    operations, windows, comm = device.operations, device.windows, device.operations.is_comm
    dtod, n_dtod, dtod_bytes = _copies(operations, operations.copy_kind == DTOD_KIND, windows)
    times = (device.compute, device.comm, device.hidden, device.exposed(device.memory))
    compute, comm_ns, overlap, exposed_memory = map(windows.covered, times)
    wall, exposed = windows.ends - windows.starts, comm_ns - overlap
    columns: dict[str, Int64 | None] = {
        "wall_ns": wall, "compute_ns": compute, "comm_ns": comm_ns, "exposed_comm_ns": exposed,
        "exposed_memory_ns": exposed_memory, "idle_ns": wall - compute - exposed - exposed_memory,
        "dtod_ns": windows.covered(dtod), "dtod_bytes": dtod_bytes, "n_dtod": n_dtod,
        "exposed_dtod_ns": windows.covered(device.exposed(dtod)), "overlap_compute_ns": overlap,
        "overlap_backward_ns": None, "n_collectives": windows.slices(np.sort(operations.kernel_start[comm])).counts,
    }  # fmt: skip
    if backward is not None:
        kernels = backward & ~comm
        of_backward = union(operations.kernel_start[kernels], operations.kernel_end[kernels])
        columns["overlap_backward_ns"] = windows.covered(device.comm.intersect(of_backward))
    lacking = (name for name, facts in _NEEDS.items() if not all(getattr(recorded, fact) for fact in facts))
    return columns | dict.fromkeys(lacking)


def started_in(starts: Int64, values: Int64, windows: Windows) -> tuple[Int64, Int64]:
    """Return how many operations start in each window, and the sum of their values."""
    order = np.argsort(starts, kind="stable")
    found = windows.slices(starts[order])
    before = np.append(0, np.cumsum(values[order]))
    return found.counts, before[found.last] - before[found.first]


def _copies(operations: ProcessOperations, chosen: Flags, windows: Windows) -> tuple[IntervalSet, Int64, Int64]:
    starts = operations.copy_start[chosen]
    return union(starts, operations.copy_end[chosen]), *started_in(starts, operations.copy_bytes[chosen], windows)


def grad_copies(device: DeviceTime, in_backward: Flags | None, recorded: Recorded) -> dict[str, Int64 | None]:
    """Measure the copies between gradients and buckets in each window, by the formulas of `schema.STEPS`.

    `in_backward` flags the copies launched inside a backward range; None where the rank has none. What is launched in the
    same nanosecond as a copy comes after it. None where copies or their kinds were not recorded.
    """
    operations, windows, chosen = device.operations, device.windows, _in_runs(device.operations)
    if in_backward is not None:
        chosen &= in_backward
    covered, number, n_bytes = _copies(operations, chosen, windows)
    # The copies of each step, and the time that the device takes from one to the next.
    before, after = covered.ends[:-1], covered.starts[1:]
    is_apart = after - before > _LONGEST_LATENCY_NS
    is_apart |= np.searchsorted(windows.starts, before) != np.searchsorted(windows.starts, after, side="right")
    spans = IntervalSet(np.append(covered.starts[:1], after[is_apart]), np.append(before[is_apart], covered.ends[-1:]))
    columns: dict[str, Int64 | None] = {
        "grad_copy_ns": windows.covered(covered), "exposed_grad_copy_ns": windows.covered(device.exposed(covered)),
        "grad_copy_span_ns": windows.covered(spans), "grad_copy_bytes": n_bytes if recorded.sizes else None,
        "n_grad_copies": number,
    }  # fmt: skip
    return columns if recorded.kernels and recorded.memcpy and recorded.kinds else dict.fromkeys(columns)


def _in_runs(operations: ProcessOperations) -> Flags:
    """Tell which copies are DtoD and in a long run of such; copies without a launch never are."""
    launch, is_dtod = operations.copy_launch, operations.copy_kind == DTOD_KIND
    chosen = np.flatnonzero(is_dtod & (launch != NEVER))
    own = launch[chosen]
    others = operations.kernel_launch[: operations.n_launched], launch[~is_dtod]
    lengths = np.diff(run_starts(np.sum([np.searchsorted(one, own) for one in others], axis=0)), append=own.size)
    in_runs = np.zeros(launch.size, np.bool_)
    in_runs[chosen[np.repeat(lengths >= _SHORTEST_RUN, lengths)]] = True
    return in_runs


@dataclass(frozen=True)
class Gaps:
    """The gaps between operations of one rank, in order of time, report time, ns."""

    starts: Int64  # where the last operation before ended
    ends: Int64  # where the next one starts
    launch: Int64  # of what explains the gap, on the device's clock; `attribution.NEVER` where it has none
    # which operation that is: kernels in order of launch, then copies in order of launch. It is the one that ends the
    # gap; where that is a copy of unified memory, which nothing launches, the next to start that is none.
    operation: Int64
    latency_ns: int  # the shortest time from a launch to its kernel's start on this rank, from 0 to 20 us


def idle_gaps(operations: ProcessOperations, offset_ns: int = 0, of_kernels_ns: Int64 | None = None) -> Gaps:
    """Find all gaps; of operations that start together a kernel ends the gap, then the first launched.

    Launches are put on the device's clock, later than the host's by `offset_ns`, or by that of each kernel's own device.
    """
    starts = np.concatenate((operations.kernel_start, operations.copy_start))
    order = np.argsort(starts, kind="stable")  # nearly sorted, which makes this cheap
    starts = starts[order]
    reached = np.concatenate((operations.kernel_end, operations.copy_end))[order]
    np.maximum.accumulate(reached, out=reached)
    before = np.flatnonzero(starts[1:] > reached[:-1])
    began, ended = reached[before], starts[1:][before]
    del starts, reached  # each as long as the operations
    n_kernels, n, is_unified = operations.kernel_start.size, operations.n_launched, operations.is_unified
    ending = order[before + 1]
    if is_unified.any():
        place = np.flatnonzero(~np.append(np.zeros(n_kernels, np.bool_), is_unified)[order])
        later = np.searchsorted(place, before + 1)
        ending = np.where(later < place.size, order[np.append(place, 0)[later]], ending)
    del order
    launch = np.append(operations.kernel_launch, operations.copy_launch)[ending]
    offset: Int64 | int = offset_ns
    if of_kernels_ns is not None:
        offset = np.append(of_kernels_ns, np.full(operations.copy_start.size, offset_ns))[ending]
    np.add(launch, offset, out=launch, where=launch != NEVER)
    latencies = operations.kernel_start[:n] - operations.kernel_launch[:n]
    latencies -= offset_ns if of_kernels_ns is None else of_kernels_ns[:n]
    return Gaps(began, ended, launch, ending, min(max(int(latencies.min()), 0), _LONGEST_LAUNCH_NS) if n else 0)


def idle_causes(
    gaps: Gaps, windows: Windows, idle_ns: Int64 | None, inputs: Inputs, calls: pa.Table | None
) -> tuple[dict[str, Int64 | None], dict[str, Int64]]:
    """Split the idle time of each window by what held up the operation that ends each gap, by the formulas of `schema.STEPS`.

    All times are on the clock of the gaps. All causes are None where `idle_ns` is; blocked and launch without `calls`,
    `canonical.BLOCKING_CALLS` of the process, sorted by start.

    Returns `schema.IDLE_CAUSES`, ``idle_between_steps_ns`` and ``idle_pause_ns``, one int64 per window, ns; and
    ``idle_blocked_ns`` by the call that the host was blocked in, without those that have none.
    """
    columns: dict[str, Int64 | None] = dict.fromkeys((*IDLE_CAUSES, "idle_between_steps_ns", "idle_pause_ns"))
    if idle_ns is None:
        return columns, {}
    known = gaps.launch != NEVER
    starts, ends, launch = (own if known.all() else own[known] for own in (gaps.starts, gaps.ends, gaps.launch))
    ready = launch + gaps.latency_ns
    np.clip(ready, starts, ends, out=ready)
    late = nonempty(starts, ready)
    waiting = late.without(union_of(inputs.data, inputs.quiet))
    late_ns, waiting_ns = windows.covered(late), windows.covered(waiting)
    dependency_ns = windows.covered(IntervalSet(starts, ends)) - late_ns
    columns |= {
        "idle_input_ns": late_ns - waiting_ns, "idle_dependency_ns": dependency_ns,
        "idle_unknown_ns": idle_ns - late_ns - dependency_ns,
        "idle_between_steps_ns": windows.covered(late.intersect(inputs.quiet)),
    }  # fmt: skip
    if calls is None:
        return columns, {}
    blocked, call = _blocked(late, waiting, calls)
    blocked_ns, launching = windows.covered(blocked), waiting.without(blocked)
    pauses = launching[launching.ends - launching.starts >= PAUSE_NS]
    columns |= {"idle_launch_ns": waiting_ns - blocked_ns, "idle_blocked_ns": blocked_ns}
    return columns | {"idle_pause_ns": windows.covered(pauses)}, _by_call(blocked, call, calls, windows)


def late_starts(gaps: Gaps, windows: Windows) -> Int64:
    """Return how long the device takes to start what was launched late, beyond its shortest latency, ns in each window.

    That is idle time for dependency in gaps in which a launch came late: the device starts what is launched in time while it
    still works on what comes before.
    """
    known = gaps.launch != NEVER
    ready = gaps.launch[known] + gaps.latency_ns
    starts, ends = gaps.starts[known], gaps.ends[known]
    is_late = (ready > starts) & (ready < ends)
    return windows.covered(IntervalSet(ready[is_late], ends[is_late]))


def phase_idle(gaps: Gaps | IntervalSet, windows: Windows, phase: Phases, n_phases: int) -> list[Int64]:
    """Return for each phase the idle time of each window whose gaps an operation of that phase (negative: of none) ends."""
    return [windows.covered(IntervalSet(gaps.starts, gaps.ends)[phase == code]) for code in range(n_phases)]


def _blocked(late: IntervalSet, waiting: IntervalSet, calls: pa.Table) -> tuple[IntervalSet, Int64]:
    """Return the parts of the waiting time that calls explain, and the row of the call that explains each."""
    starts, ends = calls["start_ns"].to_numpy(), calls["end_ns"].to_numpy()
    until = np.maximum.accumulate(ends)
    blocking = nonempty(np.maximum(starts, np.append(starts[:1], until[:-1])), ends)
    if not len(blocking) or not len(waiting):
        return EMPTY, EMPTY.starts
    is_last = ends > np.append(ends[:1] - 1, until[:-1])
    last_to_return = np.maximum.accumulate(np.where(is_last, np.arange(ends.size), 0))
    # Each part of the waiting time lies in one late stretch. Without a call under way when that began, all that the host
    # launched behind the call had come earlier by as long as it lasted.
    began = late.starts[np.searchsorted(late.starts, waiting.starts, side="right") - 1]
    call = last_to_return[np.searchsorted(starts, began, side="right") - 1]
    earlier = np.where(blocking.contains(began), began + (ends - starts)[call], waiting.starts)
    gained = np.minimum(waiting.ends, np.maximum(waiting.starts, earlier))
    is_gained = gained > waiting.starts
    rest = nonempty(gained, waiting.ends).intersect(blocking)
    parts = np.append(waiting.starts[is_gained], rest.starts), np.append(gained[is_gained], rest.ends)
    explains = np.append(call[is_gained], last_to_return[np.searchsorted(starts, rest.starts, side="right") - 1])
    order = np.argsort(parts[0], kind="stable")
    return IntervalSet(parts[0][order], parts[1][order]), explains[order]


def _by_call(blocked: IntervalSet, call: Int64, calls: pa.Table, windows: Windows) -> dict[str, Int64]:
    if not len(blocked) or not len(windows):
        return {}
    names = calls["call"].take(pa.array(call)).combine_chunks().dictionary_encode()
    lengths = phase_idle(blocked, windows, names.indices.to_numpy(), len(names.dictionary))
    return {name: own for name, own in zip(names.dictionary.to_pylist(), lengths, strict=True) if own.any()}
