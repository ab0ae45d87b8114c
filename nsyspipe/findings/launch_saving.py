"""What a step gains at most where launching takes hosts no time."""

from collections.abc import Mapping

import numpy as np
from msgspec import Struct

from nsyspipe.findings.model import Evidence
from nsyspipe.model.table import Float64


class LaunchSaving(Struct, frozen=True):
    """A bound, and what it is the sum of on the rank that sets it."""

    saving_ns: float
    parts: Mapping[str, float]
    limit_rank: int | None  # that rank, if it is the same in all steps


def saving_without_launching(evidence: Evidence) -> LaunchSaving:
    """Return what a step gains at most where launching takes no time.

    Per step::

        max over ranks(wall) - max over ranks(max(wall - gone - made - hideable - slowed, compute -
        slowed))

    ``gone`` is the idle time for launches and until the device has started what was launched late,
    and of the idle time for input and in blocking calls as much as the host launches beside: it
    comes to what it waits for so much earlier. ``made`` is waiting for other ranks, as much as is
    gone of all of them together, since they come late in turn. ``hideable`` is transfer that late
    launches expose: it may then run beside compute. ``slowed`` is by how much hidden waiting slows
    compute. Where it is not known which ranks wait for which, all communication may be waiting.
    """
    rank = evidence.steps["rank"].to_numpy()
    wall, compute = evidence.columns("wall_ns", "compute_ns")
    wait, hidden_wait = _possible_waiting(evidence)
    gone_by_cause = _gone_by_cause(evidence)
    gone = np.sum([*gone_by_cause.values()], axis=0)
    made = np.minimum(wait, evidence.sum_of_other_ranks(gone))
    slowed = np.where(made > 0, evidence.slowed_ns(hidden_wait, is_most=True), 0.0)
    hideable = _hideable_transfer(evidence, made)
    shortened = wall - gone - made - hideable - slowed
    left = np.maximum(shortened, compute - slowed)
    limit = evidence.rows_of_largest(left)
    possible = "" if evidence.are_groups_known else "possible_"
    shown = {**gone_by_cause, f"{possible}waiting": made, f"slowed_by_{possible}waiting": slowed}
    shown |= {"exposed_by_late_launches": hideable, "beside_compute": shortened - left}
    parts = evidence.mean_parts(limit, **shown)
    ranks = np.unique(rank[limit])
    limit_rank = int(ranks[0]) if ranks.size == 1 else None
    return LaunchSaving(evidence.saving_down_to(left), parts, limit_rank)


def _possible_waiting(evidence: Evidence) -> tuple[Float64, Float64]:
    """Return how long each rank waits for others in each step, and how much of that compute hides; else at most."""
    if not evidence.are_groups_known:
        comm, hidden = evidence.columns("comm_ns", "overlap_compute_ns")
        return comm, hidden
    wait, exposed_wait = evidence.columns("wait_ns", "exposed_wait_ns")
    return wait, wait - exposed_wait


def _hideable_transfer(evidence: Evidence, made: Float64) -> Float64:
    """Return how much transfer late launches expose in each step, beside the waiting that others' `made`.

    Where waiting is not known, all communication that does not go with `made` counts.
    """
    late, exposed, exposed_wait, overlap = evidence.columns(
        "exposed_late_comm_ns", "exposed_comm_ns", "exposed_wait_ns", "overlap_compute_ns"
    )
    waiting = exposed_wait if evidence.are_groups_known else np.maximum(made - overlap, 0)
    return np.minimum(late, exposed - waiting)


def _gone_by_cause(evidence: Evidence) -> dict[str, Float64]:
    """Return the idle time of each step that is gone where launching takes no time, by what the device idled for."""
    for_launch, pause, late_start = evidence.columns(
        "idle_launch_ns", "idle_pause_ns", "idle_late_start_ns"
    )
    if evidence.is_pipeline:  # what else a stage idles for may stand in the bubble
        return {"idle_for_launches": for_launch - pause, "idle_at_late_start": late_start}
    for_input, blocked, launch, getting_input = evidence.columns(
        "idle_input_ns", "idle_blocked_ns", "host_launch_ns", "host_input_ns"
    )
    launched_beside = np.maximum(launch - getting_input - for_launch, 0)
    return {
        "idle_for_launches": for_launch,
        "idle_at_late_start": late_start,
        "idle_for_input_and_calls": np.minimum(for_input + blocked, launched_beside),
    }
