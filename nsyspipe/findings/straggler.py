"""Rule ``straggler``: one rank makes the others wait."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nsyspipe.findings.model import Finding, NotJudged

if TYPE_CHECKING:
    from nsyspipe.findings.model import Answer, Evidence

__all__ = ["straggler"]

ID = "straggler"
_LEAST_SHARE = 0.03
# Of a step or two only a large delay is no chance.
_FEW_STEPS, _LEAST_SHARE_OF_FEW = 3, 0.1
_PHASE_FIGURES = ("host_ns", "device_ns", "idle_ns")


def straggler(evidence: Evidence) -> Answer:
    """Fire when one rank alone holds up most steps with collectives, beyond clock error, for 3 % of step time.

    Of fewer than 3 such steps, for 10 %. Saving: its ``lateness_ns`` per step, over all steps.
    """
    if evidence.n_ranks == 1 or not evidence.has_comm:
        return None
    rows = [row for row in evidence.stragglers.to_pylist() if row["lateness_ns"] is not None]
    if not rows:
        return NotJudged(ID, "waiting is not known", "see the problems about clocks and matching")
    if evidence.is_capture_start_only:
        return NotJudged(
            ID,
            "the only step of the figures holds the capture's start, which ranks reach at different times",
            "capture 3 steps or more, each in an NVTX range",
        )
    worst = max(rows, key=lambda row: (row["lateness_ns"], -row["rank"]))
    n_steps = evidence.summary["n_summary_steps"]
    saving = worst["lateness_ns"] / n_steps
    if evidence.share(saving) < _LEAST_SHARE:
        return None
    # Under no_sync() ranks do not meet in every step.
    met = evidence.collectives["step"].filter(pc.is_valid(evidence.collectives["late_by_ns"]))
    n_meeting = pc.count_distinct(met).as_py()
    least = _LEAST_SHARE if n_meeting >= _FEW_STEPS else _LEAST_SHARE_OF_FEW
    held_up = _steps_held_up(evidence, worst["rank"])
    if evidence.share(saving) < least or 2 * held_up.size <= n_meeting:
        return None
    phase, excess = _longer_phase(evidence, worst["rank"], held_up)
    where = f", mostly in {phase}" if phase else ""
    return Finding(
        id=ID,
        title=f"the others wait for rank {worst['rank']}{where}",
        action=f"rank {worst['rank']} makes the others wait{where}",
        advice=_ADVICE.get(
            phase or "",
            "compare what this rank does in those steps: its data, its host, its GPU's clocks",
        ),
        saving_ns_per_step=saving,
        evidence={
            "rank": worst["rank"],
            "phase": phase,
            "phase_excess_ns_per_step": excess,
            "lateness_ns_per_step": saving,
            "n_steps_held_up": int(held_up.size),
            "n_steps_with_collectives": n_meeting,
            "n_arrived_last": worst["n_arrived_last"],
            "wait_caused_ns": worst["wait_caused_ns"],
        },
    )


_ADVICE = {
    "data": "balance the data of this rank: batch lengths, its shard's storage, DataLoader(num_workers=...)",
    "forward": "look for what only this rank does in forward: longer sequences, logging, a slower host or GPU",
    "backward": "look for what only this rank does in backward: longer sequences, hooks, a slower GPU",
    "optimizer": "look for what only this rank does around the optimizer: checkpoints, metrics, uneven shards",
}


def _steps_held_up(evidence: Evidence, rank: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return the steps whose largest delay is this rank's, and more than clock error."""
    collectives = evidence.collectives.select(["step", "rank", "late_by_ns", "is_late_significant"])
    is_late = pc.fill_null(pc.greater(collectives["late_by_ns"], 0), fill_value=False)
    rows = collectives.filter(is_late)
    largest = rows.group_by("step").aggregate([("late_by_ns", "max")])
    by_step = dict(
        zip(largest["step"].to_pylist(), largest["late_by_ns_max"].to_pylist(), strict=True)
    )
    own = rows.filter(pc.and_(pc.equal(rows["rank"], rank), rows["is_late_significant"]))
    pairs = zip(own["step"].to_pylist(), own["late_by_ns"].to_pylist(), strict=True)
    return np.unique(np.array([step for step, late in pairs if late == by_step[step]], np.int64))


def _longer_phase(
    evidence: Evidence, rank: int, steps: np.ndarray[tuple[int], np.dtype[np.int64]]
) -> tuple[str | None, float | None]:
    """Return the phase that took longer on this rank than on the others in those steps, and by how much.

    Looked at on the host, on the device, and as idle time; the largest excess counts.
    """
    chosen = evidence.phases.filter(pc.is_in(evidence.phases["step"], value_set=pa.array(steps)))
    chosen = chosen.append_column("is_own", pc.equal(chosen["rank"], rank))
    means = chosen.group_by(["phase", "is_own"]).aggregate(
        [(name, "mean") for name in _PHASE_FIGURES]
    )
    by_owner = {(row["phase"], row["is_own"]): row for row in means.to_pylist()}
    excess = {}
    for phase in sorted({phase for phase, _ in by_owner}):
        own, others = by_owner.get((phase, True)), by_owner.get((phase, False))
        for name in (f"{name}_mean" for name in _PHASE_FIGURES):
            if own and others and own[name] is not None and others[name] is not None:
                excess[phase, name] = own[name] - others[name]
    if not excess:
        return None, None
    (phase, _), largest = max(excess.items(), key=lambda pair: pair[1])
    return (phase, largest) if largest > 0 else (None, None)
