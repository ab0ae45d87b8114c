"""What a step gains at most where no rank comes late."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nsyspipe.analysis.intervals import places_in_runs, run_starts
from nsyspipe.analysis.traffic import held_up_by_step
from nsyspipe.findings.model import Evidence
from nsyspipe.model.table import Float64


def saving_of_all(evidence: Evidence, collectives: pa.Table) -> dict[str, float]:
    """Return what all late ranks together can give at most, by part; `collectives` as `own_lateness` returns them."""
    held_up = held_up_by_step(evidence.collectives, evidence.steps)
    return limited_saving(
        evidence, _delay_parts(collectives, held_up, evidence), has_bubble=evidence.is_pipeline
    )


def limited_saving(
    evidence: Evidence, delays: Mapping[str, float], *, has_bubble: bool
) -> dict[str, float]:
    """Return what late ranks can give at most, by part; `delays` are what their delays can give, by part.

    That is their delays, or step time less the shortest window without its exposed waiting if that
    is more (but in pipelines, since a step is as long as its longest window). It is at most what
    lies above the work of the rank that computes least, and above the launch time of the fastest
    host.
    """
    names = ("wall_ns", "compute_ns", "idle_ns", "exposed_comm_ns", "exposed_wait_ns")
    wall, compute, idle, exposed, exposed_wait = evidence.columns(*names)
    shortest = evidence.rows_of_largest(exposed_wait - wall)
    of_window = {} if has_bubble else evidence.mean_parts(shortest, exposed_wait=exposed_wait)
    above_compute = evidence.mean_parts(
        evidence.rows_of_largest(-compute),
        exposed_wait=exposed_wait,
        slowed_by_waiting=_slowed_by_hidden_waits(evidence),
        idle=idle,
        exposed_transfer=exposed - exposed_wait,
        exposed_copies=wall - compute - exposed - idle,
    )
    above_launching = {"above_launching": float(evidence.above_launching_ns.mean())}
    most = max({**delays}, of_window, key=_total)
    return min(most, above_compute, above_launching, key=_total)


def _total(parts: Mapping[str, float]) -> float:
    return sum(parts.values())


def _above_compute_ns(evidence: Evidence) -> Float64:
    """Return how much longer each step is than the least compute of a rank, without what hidden waiting slowed."""
    wall, compute = evidence.columns("wall_ns", "compute_ns")
    least = evidence.rows_of_largest(-compute)
    return evidence.largest(wall) - compute[least] + _slowed_by_hidden_waits(evidence)[least]


def _slowed_by_hidden_waits(evidence: Evidence) -> Float64:
    wait, exposed_wait, hidden = evidence.columns(
        "wait_ns", "exposed_wait_ns", "overlap_compute_ns"
    )
    return evidence.slowed_ns(np.minimum(wait - exposed_wait, hidden), is_most=True)


def _delay_parts(late: pa.Table, held_up: pa.Table, evidence: Evidence) -> dict[str, float]:
    """Return by how much a step is longer for ranks that come late, by part, the mean over steps.

    Of each step the most of a rank, no more than what is waited for in all. Less what no rank
    saves, since it computes or its host launches meanwhile.
    """
    delays = _delays_ns(late, held_up, evidence)
    beside_compute = np.minimum(delays, _above_compute_ns(evidence))
    left = np.minimum(beside_compute, evidence.above_launching_ns)
    parts = {
        "left_for_compute": beside_compute - delays,
        "left_for_launching": left - beside_compute,
    }
    return {"delays": float(delays.mean())} | {
        name: mean for name, ns in parts.items() if (mean := float(ns.mean()))
    }


def _delays_ns(late: pa.Table, held_up: pa.Table, evidence: Evidence) -> Float64:
    """Return for each step the most that a rank is delayed, no more than what is waited for in all."""
    numbers = np.unique(evidence.steps["step"].to_numpy())
    waited, delays = np.zeros((2, numbers.size))
    np.add.at(
        waited,
        np.searchsorted(numbers, held_up["step"].to_numpy()),
        held_up["held_up_ns"].to_numpy(),
    )
    rows = late.filter(pc.is_valid(late["wait_ns"]))
    comm = (
        pc.fill_null(rows["comm_id"].cast(pa.string()), "")
        .combine_chunks()
        .dictionary_encode()
        .indices.to_numpy()
    )
    names = ("step", "rank", "start_ns", "end_ns", "wait_ns", "held_up_ns")
    step, rank, start, end, wait, held_up = (rows[name].to_numpy() for name in names)
    order = np.lexsort((comm, start + wait, step))  # by when the last of the ranks comes
    keys = np.stack((step, comm, start + wait))[:, order]
    is_first = np.append(True, (np.diff(keys, axis=1) != 0).any(axis=0))[: order.size]
    collective = np.cumsum(is_first) - 1
    first = np.flatnonzero(is_first)
    held_up = np.add.reduceat(held_up[order], first)[collective] if order.size else held_up
    place = places_in_runs(keys[0, first])[collective]  # in its step
    steps, row = np.unique(keys[0], return_inverse=True)
    ranks, column = np.unique(rank[order], return_inverse=True)
    start, until = start[order], np.minimum(start + wait, end)[order]
    delay, waited_until = np.zeros((2, steps.size, ranks.size), np.int64)
    turn = np.argsort(place, kind="stable")
    # In turn, a collective delays its ranks by the most of what each was delayed by before and
    # waits in it: groups that wait side by side for different ranks count once, and so does a rank
    # for which several groups wait.
    for own in np.split(turn, run_starts(place[turn])[1:]):
        at = row[own], column[own]
        waits = np.maximum(until[own] - np.maximum(start[own], waited_until[at]), 0)
        begins = run_starts(collective[own])
        most = (
            np.maximum.reduceat(delay[at] + np.minimum(waits, held_up[own]), begins)
            if own.size
            else waits
        )
        delay[at] = np.repeat(most, np.diff(begins, append=own.size))
        waited_until[at] = np.maximum(waited_until[at], until[own])
    delays[np.searchsorted(numbers, steps)] = delay.max(axis=1, initial=0)
    return np.minimum(delays, waited)
