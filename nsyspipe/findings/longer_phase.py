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
    ns_by_phase: dict[str, float]
    # The part for which the device idles while the host gets input. Not below 0.
    input_ns: float
    # Whether phases are measured on the device, or on the host.
    is_of_device: bool

    @property
    def min_named_ns(self) -> float:
        """What a phase has to exceed to be named."""
        positive = (max(excess_ns, 0.0) for excess_ns in self.ns_by_phase.values())
        return MIN_PART_OF_PHASE * sum(positive)


def find_longer_phase(evidence: Evidence, rank: int, numbers: Int64) -> LongerPhase | None:
    """Return the phase that has most of the time by which a rank is slower than the others.

    Only the steps with these `numbers` count. None if no phase has most of that time, or if the
    device only idles in this phase because its host had fallen behind before.
    """
    in_steps = pc.field("step").isin(pa.array(numbers))
    phases = evidence.phases.filter(in_steps)
    steps = evidence.steps.filter(in_steps)
    excess = _measure_excess(phases, steps, rank)
    ns_by_phase = excess.ns_by_phase
    # Idle time for input may lie in forward, although the host was loading data. So it counts for
    # the data phase, and not for other phases.
    data_ns = ns_by_phase.get("data")
    if data_ns is not None and excess.input_ns > max(data_ns, excess.min_named_ns):
        return LongerPhase("data", excess.input_ns, is_idle=False)
    name = max(ns_by_phase, key=ns_by_phase.__getitem__, default=_OUTSIDE)
    excess_ns = ns_by_phase.get(name, 0.0)
    if name != "data":
        excess_ns -= excess.input_ns
    if name == _OUTSIDE or excess_ns <= excess.min_named_ns:
        return None
    in_phase = select_rows(phases, "phase", name)
    is_of_rank = pc.equal(in_phase["rank"], rank)
    longer_idle_ns = mean_excess(in_phase["idle_ns"], is_of_rank)
    longer_host_ns = mean_excess(in_phase["host_ns"], is_of_rank)
    # More than half of the excess is idle time. Without times of the device, that is not known.
    is_idle = excess.is_of_device and 2 * longer_idle_ns > excess_ns
    if is_idle and longer_host_ns < 0:
        # The host is faster in this phase, so it had fallen behind before.
        return None
    return LongerPhase(name, excess_ns, is_idle)


def _measure_excess(phases: PhasesTable, steps: StepsTable, rank: int) -> _Excess:
    """Return how much longer a rank takes than the others, by phase.

    Time on the device counts. If that is not known of some row of `phases`, the time on the host
    counts instead, and time outside of phases and for input is not measured.
    """
    device_ns = _device_time(phases)
    if device_ns.null_count:
        host_ns_by_phase = _excess_by_phase(phases, phases["host_ns"], rank)
        return _Excess(host_ns_by_phase, input_ns=0.0, is_of_device=False)
    ns_by_phase = _excess_by_phase(phases, device_ns, rank)
    is_of_rank = pc.equal(steps["rank"], rank)
    # Times of phases have no exposed communication, so that of the step has none either.
    exposed_ns = fill_zero(steps["exposed_comm_ns"])
    step_ns = pc.subtract(steps["wall_ns"], exposed_ns)
    longer_step_ns = mean_excess(step_ns, is_of_rank)
    ns_by_phase[_OUTSIDE] = longer_step_ns - sum(ns_by_phase.values())
    idle_input_ns = fill_zero(steps["idle_input_ns"])
    longer_input_ns = mean_excess(idle_input_ns, is_of_rank)
    return _Excess(ns_by_phase, input_ns=max(longer_input_ns, 0.0), is_of_device=True)


def _excess_by_phase(phases: PhasesTable, time_ns: pa.ChunkedArray, rank: int) -> dict[str, float]:
    """Return how much longer a rank takes than the others in each phase, in order of names."""
    is_of_rank = pc.equal(phases["rank"], rank)
    names = phases["phase"].unique().to_pylist()
    ns_by_phase = {}
    for name in sorted(names):
        is_phase = pc.equal(phases["phase"], name)
        phase_ns = time_ns.filter(is_phase)
        ns_by_phase[name] = mean_excess(phase_ns, is_of_rank.filter(is_phase))
    return ns_by_phase


def _device_time(phases: PhasesTable) -> pa.ChunkedArray:
    """Return the time of each phase on the device, with idle time, without exposed communication.

    Null if it is not known.
    """
    exposed_ns = fill_zero(phases["exposed_comm_ns"])
    without_comm_ns = pc.subtract(phases["device_ns"], exposed_ns)
    return pc.add(without_comm_ns, phases["idle_ns"])
