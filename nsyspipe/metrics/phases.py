"""What each phase of each step costs on the host and on the device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nsyspipe.intervals import IntervalSet, union

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nsyspipe.attribution import ProcessOperations
    from nsyspipe.families import Members
    from nsyspipe.phases import PhaseRanges
    from nsyspipe.steps import Windows

    Int64 = NDArray[np.int64]

__all__ = ["NO_WINDOW", "phase_costs"]

NO_WINDOW = np.int64(-1)


def phase_costs(
    phase: PhaseRanges, members: Members, operations: ProcessOperations, windows: Windows
) -> dict[str, Int64 | None]:
    """Measure one phase of one rank, for every step that has it.

    Returns
    -------
    dict
        ``member``: index of the step range. ``host_ns``: union of the phase's ranges in it.
        ``n_kernels``: kernels launched in those ranges. ``compute_ns``, ``comm_ns``: union of the
        phase's kernels (of all steps) clipped to the step's window. Without launches the last three
        are None; where the step has no window the last two are -1.
    """
    member = np.unique(phase.member)
    pieces = IntervalSet(members.starts, members.ends).intersect(union(phase.starts, phase.ends))
    owner = np.searchsorted(members.starts, pieces.starts, side="right") - 1
    costs: dict[str, Int64 | None] = {
        "member": member,
        "host_ns": _sum_by(owner, pieces.ends - pieces.starts, members.starts.size)[member],
        **dict.fromkeys(("n_kernels", "compute_ns", "comm_ns")),
    }
    if not member.size or not operations.n_launched:
        return costs
    launched = operations.kernels_launched_in(pieces.starts, pieces.ends)
    costs["n_kernels"] = _sum_by(owner, launched.counts, members.starts.size)[member]
    belongs = launched.mask(operations.kernel_start.size)
    for name, kernels in (("compute_ns", ~operations.is_comm), ("comm_ns", operations.is_comm)):
        chosen = belongs & kernels
        covered = union(operations.kernel_start[chosen], operations.kernel_end[chosen])
        by_member = np.full(members.starts.size, NO_WINDOW)
        by_member[windows.member] = covered.lengths(windows.starts, windows.ends)
        costs[name] = by_member[member]
    return costs


def _sum_by(owner: Int64, values: Int64, size: int) -> Int64:
    sums = np.zeros(size, np.int64)
    np.add.at(sums, owner, values)
    return sums
