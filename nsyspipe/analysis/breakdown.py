"""Where each step's wall time goes: compute, exposed and hidden communication, copies, idle.

What exposed communication means stands here: `breakdown` splits each window exactly. The copies between gradients and
buckets are measured here too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nsyspipe.analysis.attribution import NEVER
from nsyspipe.analysis.intervals import IntervalSet, union
from nsyspipe.model.canonical import DTOD_KIND

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nsyspipe.analysis.attribution import ProcessOperations
    from nsyspipe.analysis.steps import Windows
    from nsyspipe.model.problems import Recorded
    from nsyspipe.model.types import Int64


# When a rank's devices compute, communicate and copy: the unions that every figure is measured on.


@dataclass(frozen=True)
class DeviceTime:
    """Unions of a rank's operations, report time, ns."""

    # C, M and P of the definitions: compute kernels, communication kernels, memcpys and memsets
    compute: IntervalSet
    comm: IntervalSet
    memory: IntervalSet
    hidden: IntervalSet  # ``C n M``

    def exposed(self, covered: IntervalSet) -> IntervalSet:
        r"""Return ``X \ (C u M)``: the times beside neither compute nor communication."""
        return covered.without(self.compute).without(self.comm)


def device_time(operations: ProcessOperations) -> DeviceTime:
    """Merge the operations of one rank by category."""
    comm = operations.is_comm
    compute = union(operations.kernel_start[~comm], operations.kernel_end[~comm])
    communication = union(operations.kernel_start[comm], operations.kernel_end[comm])
    memory = union(operations.copy_start, operations.copy_end)
    return DeviceTime(compute, communication, memory, communication.intersect(compute))


def breakdown(
    operations: ProcessOperations,
    windows: Windows,
    backward: NDArray[np.bool_] | None,
    recorded: Recorded,
    device: DeviceTime | None = None,
) -> dict[str, Int64 | None]:
    r"""Split each window of one rank into disjoint parts.

    C, M, P are the unions of compute, comm and memory operations, clipped to the window whatever
    step they belong to; D the device-to-device copies of P, B the backward kernels of C::

        compute        = |C|                    overlap_compute  = |M n C|
        comm           = |M|                    overlap_backward = |M n B|
        exposed_comm   = |M \ C|                dtod             = |D|
        exposed_memory = |P \ (C u M)|          exposed_dtod     = |D \ (C u M)|
        idle           = wall - |C u M u P|

    Exactly: ``compute + exposed_comm + exposed_memory + idle = wall`` and ``exposed_comm + overlap_compute = comm``.

    Parameters
    ----------
    operations, windows
        Of the rank, report time, ns; windows are disjoint and in order.
    backward
        Flag per kernel: launched inside a backward range. None when the rank has no such range.
    recorded
        Figures that need a lacking fact are null: see `_NEEDS`.
    device
        The unions of the operations, when the caller has them already.

    Returns
    -------
    dict
        Columns of `schema.STEPS`, one int64 per window (ns, counts and bytes as named), None where not recorded.
    """
    device = device or device_time(operations)
    comm = operations.is_comm
    is_dtod = operations.copy_kind == DTOD_KIND
    dtod = union(operations.copy_start[is_dtod], operations.copy_end[is_dtod])
    n_dtod, dtod_bytes = started_in(
        operations.copy_start[is_dtod], operations.copy_bytes[is_dtod], windows
    )
    wall = windows.ends - windows.starts
    compute, comm_ns, overlap, exposed_memory = map(
        windows.covered,
        (device.compute, device.comm, device.hidden, device.exposed(device.memory)),
    )
    columns: dict[str, Int64 | None] = {
        "wall_ns": wall,
        "compute_ns": compute,
        "comm_ns": comm_ns,
        "exposed_comm_ns": comm_ns - overlap,
        "exposed_memory_ns": exposed_memory,
        "idle_ns": wall - compute - (comm_ns - overlap) - exposed_memory,
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
        backward_set = union(operations.kernel_start[kernels], operations.kernel_end[kernels])
        columns["overlap_backward_ns"] = windows.covered(device.comm.intersect(backward_set))
    for name, facts in _NEEDS.items():
        if not all(getattr(recorded, fact) for fact in facts):
            columns[name] = None
    return columns


# What each figure needs of `Recorded`.
_NEEDS = {
    **dict.fromkeys(
        ("compute_ns", "comm_ns", "exposed_comm_ns", "overlap_compute_ns", "overlap_backward_ns", "n_collectives"),
        ("kernels", "names"),
    ),
    **dict.fromkeys(("exposed_memory_ns", "idle_ns"), ("kernels", "memcpy", "memset")),
    **dict.fromkeys(("dtod_ns", "n_dtod"), ("memcpy", "kinds")),
    "dtod_bytes": ("memcpy", "kinds", "sizes"),
    "exposed_dtod_ns": ("kernels", "memcpy", "kinds"),
}  # fmt: skip


def started_in(starts: Int64, n_bytes: Int64, windows: Windows) -> tuple[Int64, Int64]:
    """Return number and bytes of the copies that start in each window."""
    order = np.argsort(starts, kind="stable")
    found = windows.slices(starts[order])
    before = np.concatenate(([0], np.cumsum(n_bytes[order])))
    return found.counts, before[found.last] - before[found.first]


# Copies of gradients out of their buckets: DtoD copies that are launched one right after the other.


GRAD_COPY_COLUMNS = (
    "grad_copy_ns",
    "exposed_grad_copy_ns",
    "grad_copy_span_ns",
    "grad_copy_bytes",
    "n_grad_copies",
)

# A model's own copies stand between kernels; DDP copies a bucket's gradients in one go.
_SHORTEST_RUN = 8
# From the end of one to the start of the next: more is a wait for something else.
_LONGEST_LATENCY_NS = 20_000


def grad_copies(
    operations: ProcessOperations,
    windows: Windows,
    device: DeviceTime,
    in_backward: NDArray[np.bool_] | None,
    recorded: Recorded,
) -> dict[str, Int64 | None]:
    """Measure the copies between gradients and buckets in each window.

    They are DtoD copies in runs of at least eight, launched with nothing else between them, inside
    a backward range where the rank has any. What is launched in the same nanosecond comes after.

    Returns `GRAD_COPY_COLUMNS`, one int64 per window: union, the part beside neither compute nor comm, the union with the
    gaps of up to 20 us between two of one window, bytes and number of those that start in it. None where copies or their
    kinds were not recorded.
    """
    if not (recorded.kernels and recorded.memcpy and recorded.kinds):
        return dict.fromkeys(GRAD_COPY_COLUMNS)
    chosen = _in_runs(operations)
    if in_backward is not None:
        chosen &= in_backward
    starts, ends = operations.copy_start[chosen], operations.copy_end[chosen]
    covered = union(starts, ends)
    number, n_bytes = started_in(starts, operations.copy_bytes[chosen], windows)
    return {
        "grad_copy_ns": windows.covered(covered),
        "exposed_grad_copy_ns": windows.covered(device.exposed(covered)),
        "grad_copy_span_ns": windows.covered(_spans(covered, windows.starts)),
        "grad_copy_bytes": n_bytes if recorded.sizes else None,
        "n_grad_copies": number,
    }


def _spans(closed: IntervalSet, steps: Int64) -> IntervalSet:
    """Merge the copies of each step, and the time that the device takes from one to the next."""
    short = closed.starts[1:] - closed.ends[:-1] <= _LONGEST_LATENCY_NS
    step = np.searchsorted(steps, closed.ends[:-1], side="left")
    short &= step == np.searchsorted(steps, closed.starts[1:], side="right")
    begins, stops = np.append(True, ~short), np.append(~short, True)
    return IntervalSet(closed.starts[begins[: len(closed)]], closed.ends[stops[: len(closed)]])


def _in_runs(operations: ProcessOperations) -> NDArray[np.bool_]:
    """Tell which copies are DtoD and in a long run of such; copies without a launch never are."""
    launch, is_dtod = operations.copy_launch, operations.copy_kind == DTOD_KIND
    chosen = np.flatnonzero(is_dtod & (launch != NEVER))
    own = launch[chosen]
    others = operations.kernel_launch[: operations.n_launched], launch[~is_dtod]
    n_before = np.sum([np.searchsorted(one, own) for one in others], axis=0)
    begins = np.ones(own.size, np.bool_)
    begins[1:] = n_before[1:] != n_before[:-1]
    run = np.cumsum(begins) - 1
    is_long = np.bincount(run, minlength=1)[run] >= _SHORTEST_RUN
    found = np.zeros(launch.size, np.bool_)
    found[chosen[is_long]] = True
    return found
