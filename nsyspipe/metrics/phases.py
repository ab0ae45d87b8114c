"""What each phase of each step costs on the host and on the device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nsyspipe.intervals import IntervalSet, union

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nsyspipe.attribution import ProcessOperations
    from nsyspipe.device_time import DeviceTime
    from nsyspipe.families import Members
    from nsyspipe.phases import PhaseRanges
    from nsyspipe.steps import Windows

    Int64 = NDArray[np.int64]
    Flags = NDArray[np.bool_]

__all__ = ["NO_WINDOW", "phase_costs"]

NO_WINDOW = np.int64(-1)
_MEASURED = ("compute_ns", "comm_ns", "device_ns", "exposed_comm_ns", "idle_ns")


def phase_costs(
    phase: PhaseRanges,
    members: Members,
    operations: ProcessOperations,
    windows: Windows,
    *,
    belongs: tuple[Flags, Flags],
    device: DeviceTime,
    idle_ns: Int64,
) -> dict[str, Int64 | None]:
    r"""Measure one phase of one rank, for every step that has it.

    Parameters
    ----------
    belongs
        Flag per kernel and per copy: launched in the phase.
    device
        The unions of the rank's operations.
    idle_ns
        Idle time of each window that the phase's operations end, as `idle.phase_idle` gives it.

    Returns
    -------
    dict
        ``member``: index of the step range. ``host_ns``: union of the phase's ranges in it.
        ``n_kernels``: kernels launched in those ranges. ``compute_ns``, ``comm_ns``, ``device_ns``:
        union of the phase's kernels of either sort, and of all its operations, clipped to the step's
        window; ``exposed_comm_ns``: of its communication the part beside no compute of any phase;
        ``idle_ns``. Without launches all from ``n_kernels`` on are None; where the step has no
        window all after it are -1.
    """
    member = np.unique(phase.member)
    pieces = IntervalSet(members.starts, members.ends).intersect(union(phase.starts, phase.ends))
    owner = np.searchsorted(members.starts, pieces.starts, side="right") - 1
    costs: dict[str, Int64 | None] = {
        "member": member,
        "host_ns": _sum_by(owner, pieces.ends - pieces.starts, members.starts.size)[member],
        **dict.fromkeys(("n_kernels", *_MEASURED)),
    }
    if not member.size or not operations.n_launched:
        return costs
    launched = operations.kernels_launched_in(pieces.starts, pieces.ends)
    costs["n_kernels"] = _sum_by(owner, launched.counts, members.starts.size)[member]
    compute, comm, copies = _of_phase(operations, belongs)
    hidden = comm.intersect(device.compute)
    for name, covered in (
        ("compute_ns", compute),
        ("comm_ns", comm),
        ("device_ns", _merged(compute, comm, copies)),
    ):
        costs[name] = covered.lengths(windows.starts, windows.ends)
    costs["exposed_comm_ns"] = costs["comm_ns"] - hidden.lengths(windows.starts, windows.ends)  # type: ignore[operator]  # just set
    costs["idle_ns"] = idle_ns
    for name in _MEASURED:
        by_member = np.full(members.starts.size, NO_WINDOW)
        by_member[windows.member] = costs[name]  # type: ignore[assignment]  # all were set above
        costs[name] = by_member[member]
    return costs


def _of_phase(
    operations: ProcessOperations, belongs: tuple[Flags, Flags]
) -> tuple[IntervalSet, IntervalSet, IntervalSet]:
    """Return when a phase's compute, communication and copies run."""
    rows, copies = (np.flatnonzero(flags) for flags in belongs)
    is_comm = operations.is_comm[rows]
    compute, comm = (
        union(operations.kernel_start[own], operations.kernel_end[own])
        for own in (rows[~is_comm], rows[is_comm])
    )
    return compute, comm, union(operations.copy_start[copies], operations.copy_end[copies])


def _merged(*sets: IntervalSet) -> IntervalSet:
    some = [one for one in sets if len(one)]
    if len(some) == 1:
        return some[0]
    return union(
        np.concatenate([one.starts for one in sets]), np.concatenate([one.ends for one in sets])
    )


def _sum_by(owner: Int64, values: Int64, size: int) -> Int64:
    sums = np.zeros(size, np.int64)
    np.add.at(sums, owner, values)
    return sums
