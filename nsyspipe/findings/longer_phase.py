"""The phase in which a rank takes longer than the others."""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from nsyspipe.findings.lateness import mean_excess
from nsyspipe.findings.model import Evidence, fill_zero, select_rows
from nsyspipe.model.table import Int64
from nsyspipe.model.typed_tables import (
    PhasesTable,
    StepsTable,
)

# A phase is named if it has more than this part of what a rank takes longer.
MIN_PART_OF_PHASE = 0.6
# The time of a step that is in no phase.
_OUTSIDE = ""


class LongerPhase(Struct, frozen=True):
    """The phase that has most of what a rank takes longer than the others."""

    name: str
    excess_ns: float
    # Whether its device idles for more than half of that.
    is_idle: bool


class _Excess(NamedTuple):
    """How much longer a rank takes than the others, ns per step. Below 0 if it is faster."""

    # The time in no phase is that of `_OUTSIDE`.
    by_phase: dict[str, float]
    # The part for which the device idles while the host gets input.
    for_input: float
    # Whether it is time on the device, or time on the host.
    is_of_device: bool

    @property
    def min_named(self) -> float:
        """What a phase has to exceed to be named."""
        positive = (max(excess_ns, 0.0) for excess_ns in self.by_phase.values())
        return MIN_PART_OF_PHASE * sum(positive)


def find_longer_phase(evidence: Evidence, rank: int, numbers: Int64) -> LongerPhase | None:
    """Return the phase in which a rank takes most of the time that it takes longer than the others.

    Only the steps with some numbers count. None if no phase has most of that time, or if the phase
    is only where the device idles for what happened before.
    """
    in_steps = pc.field("step").isin(pa.array(numbers))
    phases = evidence.phases.filter(in_steps)
    steps = evidence.steps.filter(in_steps)
    excess = _measure_excess(phases, steps, rank)
    by_phase = excess.by_phase
    # Idle time for input may lie in forward, although the host was loading data. So it counts for
    # the data phase, and not for other phases.
    data_ns = by_phase.get("data")
    if data_ns is not None and excess.for_input > max(data_ns, excess.min_named):
        return LongerPhase("data", excess.for_input, is_idle=False)
    name = max(by_phase, key=by_phase.__getitem__, default=_OUTSIDE)
    excess_ns = by_phase.get(name, 0.0)
    if name != "data":
        excess_ns -= excess.for_input
    if name == _OUTSIDE or excess_ns <= excess.min_named:
        return None
    in_phase = select_rows(phases, "phase", name)
    is_of_rank = pc.equal(in_phase["rank"], rank)
    idle_ns = mean_excess(in_phase["idle_ns"], is_of_rank)
    is_idle = excess.is_of_device and 2 * idle_ns > excess_ns
    is_host_faster = mean_excess(in_phase["host_ns"], is_of_rank) < 0
    if is_idle and is_host_faster:
        # The host had fallen behind before this phase, so the phase is not the cause.
        return None
    return LongerPhase(name, excess_ns, is_idle)


def _measure_excess(phases: PhasesTable, steps: StepsTable, rank: int) -> _Excess:
    """Return how much longer a rank takes than the others, by phase.

    Time on the device counts. If it is not known of a phase, the time on the host counts instead.
    """
    device_ns = _device_time(phases)
    if device_ns.null_count:
        by_phase = _excess_by_phase(phases, phases["host_ns"], rank)
        return _Excess(by_phase, 0.0, is_of_device=False)
    by_phase = _excess_by_phase(phases, device_ns, rank)
    in_phases_ns = sum(by_phase.values())
    is_of_rank = pc.equal(steps["rank"], rank)
    exposed_ns = fill_zero(steps["exposed_comm_ns"])
    step_ns = pc.subtract(steps["wall_ns"], exposed_ns)
    by_phase[_OUTSIDE] = mean_excess(step_ns, is_of_rank) - in_phases_ns
    idle_input_ns = fill_zero(steps["idle_input_ns"])
    input_ns = mean_excess(idle_input_ns, is_of_rank)
    return _Excess(by_phase, max(input_ns, 0.0), is_of_device=True)


def _excess_by_phase(phases: PhasesTable, time_ns: pa.ChunkedArray, rank: int) -> dict[str, float]:
    """Return how much longer a rank takes than the others in each phase, in order of names."""
    is_of_rank = pc.equal(phases["rank"], rank)
    names = phases["phase"].unique().to_pylist()
    by_phase = {}
    for name in sorted(names):
        is_phase = pc.equal(phases["phase"], name)
        phase_ns = time_ns.filter(is_phase)
        by_phase[name] = mean_excess(phase_ns, is_of_rank.filter(is_phase))
    return by_phase


def _device_time(phases: PhasesTable) -> pa.ChunkedArray:
    """Return the time of each phase on the device, with idle time, without exposed communication.

    Null if it is not known.
    """
    exposed_ns = fill_zero(phases["exposed_comm_ns"])
    without_comm_ns = pc.subtract(phases["device_ns"], exposed_ns)
    return pc.add(without_comm_ns, phases["idle_ns"])
