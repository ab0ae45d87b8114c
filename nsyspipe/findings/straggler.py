"""Rule ``straggler``: ranks make the others wait."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nsyspipe.analysis.collectives import held_up_by_step
from nsyspipe.findings.model import OF_COMM, Answer, Evidence, Finding, NotJudged
from nsyspipe.model.names import listed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nsyspipe.model.table import Int64

NEEDS = OF_COMM

_LEAST_SHARE = 0.03
# Of a step or two only a large delay is no chance.
_FEW_STEPS, _LEAST_SHARE_OF_FEW = 3, 0.1
# Delays below these shares, of step time and of all delays, name nobody; nor does a title name more than so many.
_NOTICEABLE, _LEAST_PART, _MOST_NAMED = 0.01, 0.1, 3
_LEAST_BEHIND = 0.25  # of all delays: who comes so late behind the last makes the others wait once these are mended
# From this share of what a rank takes longer on, it is mostly one phase's; what no phase has is `_OUTSIDE`.
_MOSTLY, _OUTSIDE = 0.6, ""
_ADVICE = {
    "data": "balance the data of this rank: batch lengths, its shard's storage, DataLoader(num_workers=...)",
    "forward": "look for what only this rank does in forward: longer sequences, logging, a slower host or GPU",
    "backward": "look for what only this rank does in backward: longer sequences, hooks, a slower GPU",
    "optimizer": "look for what only this rank does around the optimizer: checkpoints, metrics, uneven shards",
}
_COMPARE = "compare what this rank does in those steps: its data, its host, its GPU's clocks"
_COMPARE_ALL = (
    "compare what these ranks do in the steps that each holds up: their data (batch lengths), their hosts, "
    "their GPUs' clocks"
)


def straggler(evidence: Evidence) -> Answer:
    """Fire when ranks come late, beyond clock error, by 3 % of step time, and by 1 % in most steps with collectives.

    By that much at the largest single delay of each step, whoever caused it; of fewer than 3 such steps, by 10 %. Saving:
    of all late ranks together, ``held_up_ns`` of `schema.COLLECTIVES` summed by step and averaged over all steps: per
    collective the longest wait in it, pairs (send_recv) apart; at most `Evidence.beside_compute_ns`. Named is each rank
    whose own part is 1 % of step time and 10 % of it.
    """
    if evidence.n_ranks == 1 or not evidence.has_comm:
        return None
    rows = {row["rank"]: row for row in evidence.stragglers.to_pylist() if row["lateness_ns"] is not None}
    if not rows:
        return NotJudged("waiting is not known", "see the problems about clocks and matching")
    starts = evidence.all_steps["start_ns"]
    began = evidence.all_steps.filter(pc.equal(starts, pc.min(starts)))["step"]
    if set(evidence.steps["step"].to_pylist()) == set(began.to_pylist()):
        return NotJudged(
            "the only step of the figures holds the capture's start, which ranks reach at different times",
            "capture 3 steps or more, each in an NVTX range",
        )
    n_meeting = len(evidence.collectives.filter(pc.is_valid(evidence.collectives["late_by_ns"]))["step"].unique())
    if not _is_often_late(evidence, n_meeting):
        return None
    held_up = held_up_by_step(evidence.collectives, evidence.steps)
    n_steps = evidence.summary["n_summary_steps"]
    saving = (pc.sum(held_up["held_up_ns"]).as_py() or 0) / n_steps if n_steps else 0.0
    noticeable = _NOTICEABLE * (evidence.mean("wall_ns") or 0.0)
    alone = held_up.filter(held_up["is_alone"])
    long = alone.filter(pc.greater_equal(alone["held_up_ns"], noticeable))
    steps_of = {rank: long.filter(pc.equal(long["rank"], rank))["step"].to_numpy() for rank in rows}
    parts = _per_step(alone, "held_up_ns", n_steps)
    named = [rank for rank, part in parts.items() if part >= max(noticeable, _LEAST_PART * saving)]
    named = named or list(parts)[:1]
    if not named:
        return None
    worst = named[0]
    least = max(noticeable, _LEAST_BEHIND * saving)
    behind = {rank: ns for rank, ns in _behind(evidence, n_steps).items() if ns >= least and rank not in named}
    phase, excess = _longer_phase(evidence, worst, steps_of[worst])
    where = f", mostly in {phase}" if phase and len(named) == 1 and not behind else ""
    title, action = _words({rank: parts[rank] for rank in named}, behind, steps_of, saving, n_meeting)
    return Finding(
        title=title + where,
        action=action + where,
        advice=_COMPARE_ALL if len([*named, *behind]) > 1 else _ADVICE.get(phase or "", _COMPARE),
        saving_ns_per_step=min(saving, evidence.beside_compute_ns),
        evidence={
            "rank": worst,
            "phase": phase,
            "phase_excess_ns_per_step": excess,
            "held_up_ns_per_step_by_rank": {str(rank): parts[rank] for rank in named},
            **({"late_behind_ns_per_step_by_rank": {str(rank): ns for rank, ns in behind.items()}} if behind else {}),
            "n_steps_held_up_by_rank": {str(rank): int(steps_of[rank].size) for rank in named},
            "lateness_ns_per_step": rows[worst]["lateness_ns"] / n_steps,
            "n_steps_held_up": int(steps_of[worst].size),
            "n_steps_with_collectives": n_meeting,
            "n_arrived_last": rows[worst]["n_arrived_last"],
            "wait_caused_ns": rows[worst]["wait_caused_ns"],
        },
    )


def _is_often_late(evidence: Evidence, n_meeting: int) -> bool:
    """Tell whether the largest single delay of a step is large enough, and often enough of the steps in which ranks meet."""
    rows = _but_pairs(evidence)
    rows = rows.filter(rows["is_late_significant"])
    largest = rows.group_by("step", use_threads=False).aggregate([("late_by_ns", "max")])["late_by_ns_max"].to_numpy()
    wall = evidence.mean("wall_ns") or 0.0
    least = _LEAST_SHARE if n_meeting >= _FEW_STEPS else _LEAST_SHARE_OF_FEW
    n_steps = evidence.summary["n_summary_steps"]
    is_large = n_steps and largest.sum() >= least * wall * n_steps
    return bool(is_large and 2 * np.count_nonzero(largest >= _NOTICEABLE * wall) > n_meeting)


def _words(
    parts: Mapping[int, float], behind: Mapping[int, float], steps_of: Mapping[int, Int64], saving: float, n_steps: int
) -> tuple[str, str]:
    """Name the ranks, in a title and in an action; in the title of several each one's part and how often."""
    names = [*parts, *behind]
    who = f"ranks {listed(names)} make" if len(names) > 1 else f"rank {names[0]} makes"
    if len(names) > _MOST_NAMED:
        who = f"{len(names)} ranks {'' if behind else 'in turn '}make"
    shares = [
        f"{rank} ({100 * part / saving:.0f} % of it, in {steps_of[rank].size} of {n_steps} steps)"
        for rank, part in parts.items()
    ]
    awaited = f"ranks {listed(shares)}" if len(parts) > 1 else f"rank {names[0]}"
    then = f", and then for {', '.join(map(str, behind))}" if behind else ""
    return f"the others wait for {awaited}{then}", f"{who} the others wait"


def _behind(evidence: Evidence, n_steps: int) -> dict[int, float]:
    """Return how much later than the first ranks come that are not the last, of each step the most; the latest first."""
    rows = _but_pairs(evidence)
    rows = rows.filter(pc.greater(rows["wait_ns"], 0))  # the last is told of already
    rows = rows.append_column("late_ns", pc.subtract(rows["arrival_skew_ns"], rows["wait_ns"]))
    by_step = rows.group_by(["rank", "step"], use_threads=False).aggregate([("late_ns", "max")])
    return _per_step(by_step, "late_ns_max", n_steps)


def _but_pairs(evidence: Evidence) -> pa.Table:
    rows = evidence.collectives
    columns = ["step", "rank", "wait_ns", "arrival_skew_ns", "late_by_ns", "is_late_significant"]
    return rows.filter(pc.not_equal(rows["collective"].cast(pa.string()), "send_recv")).select(columns)


def _per_step(rows: pa.Table, column: str, n_steps: int) -> dict[int, float]:
    """Sum a column by rank, and return that per step, the largest first."""
    totals = rows.group_by("rank", use_threads=False).aggregate([(column, "sum")]).to_pylist()
    totals.sort(key=lambda row: (-row[f"{column}_sum"], row["rank"]))
    return {row["rank"]: row[f"{column}_sum"] / n_steps for row in totals}


def _longer_phase(evidence: Evidence, rank: int, steps: Int64) -> tuple[str | None, float | None]:
    """Return the phase in which this rank took longer than the others in those steps, and by how much.

    One measure for all phases: time on the device beside exposed communication, and idle time; on the host where a
    rank's is not known. None where no phase has more than 60 % of what was longer, in phases and outside of them.
    """
    phases, windows = (
        table.filter(pc.is_in(table["step"], value_set=pa.array(steps))) for table in (evidence.phases, evidence.steps)
    )
    spent = pc.add(pc.subtract(phases["device_ns"], pc.fill_null(phases["exposed_comm_ns"], 0)), phases["idle_ns"])
    is_device = not spent.null_count
    if not is_device:
        spent = phases["host_ns"]
    excess = {}
    for phase in sorted(phases["phase"].unique().to_pylist()):
        of_phase = pc.equal(phases["phase"], phase)
        excess[phase] = _excess(spent.filter(of_phase), pc.equal(phases["rank"], rank).filter(of_phase))
    input_ns = 0.0
    if is_device:
        spent = pc.subtract(windows["wall_ns"], pc.fill_null(windows["exposed_comm_ns"], 0))
        is_own = pc.equal(windows["rank"], rank)
        excess[_OUTSIDE] = _excess(spent, is_own) - sum(excess.values())
        input_ns = max(_excess(pc.fill_null(windows["idle_input_ns"], 0), is_own), 0.0)
    longer = sum(max(one, 0.0) for one in excess.values())
    # What ends a gap may be forward's although the host was loading data: that is no time of forward.
    if "data" in excess and input_ns > max(excess["data"], _MOSTLY * longer):
        return "data", input_ns
    phase = max(excess, key=excess.__getitem__, default=_OUTSIDE)
    own = excess.get(phase, 0.0) - (0.0 if phase == "data" else input_ns)
    return (phase, own) if phase != _OUTSIDE and own > _MOSTLY * longer else (None, None)


def _excess(spent: pa.ChunkedArray, is_own: pa.ChunkedArray) -> float:
    """Return how much more a rank spent than the others in the mean; 0 where either has no rows."""
    own, others = (pc.mean(spent.filter(rows)).as_py() for rows in (is_own, pc.invert(is_own)))
    return 0.0 if own is None or others is None else own - others
