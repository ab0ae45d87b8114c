"""What a step gains at most where launching takes hosts no time."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from nsyspipe.findings.model import Evidence
from nsyspipe.model.table import Float64


@dataclass(frozen=True)
class LaunchSaving:
    """A bound, and what it is the sum of on the rank that sets it."""

    saving_ns: float
    parts: Mapping[str, float]
    limit_rank: int | None  # that rank, if it is the same in all steps


def saving_without_launching(evidence: Evidence) -> LaunchSaving:
    """Return what a step gains at most where launching takes no time; the waiting of all ranks is known.

    Per step::

        max over ranks(wall) - max over ranks(max(wall - gone - made - slowed, compute - slowed))

    ``gone`` is the idle time for launches and until the device has started what was launched late, and of the idle time for
    input and in blocking calls as much as the host launches beside: it comes to what it waits for so much earlier. ``made`` is waiting for other ranks, as much as is gone of all of
    them together, since they come late in turn. ``slowed`` is by how much hidden waiting slows compute.
    """
    rank = evidence.steps["rank"].to_numpy()
    wall, compute, wait, exposed_wait = evidence.columns("wall_ns", "compute_ns", "wait_ns", "exposed_wait_ns")
    gone_by_cause = _gone_by_cause(evidence)
    gone = np.sum([*gone_by_cause.values()], axis=0)
    made = np.minimum(wait, evidence.of_other_ranks(gone))
    slowed = np.where(made > 0, evidence.slowed_ns(wait - exposed_wait, is_most=True), 0.0)
    left = np.maximum(wall - gone - made - slowed, compute - slowed)
    limit = evidence.rows_of_most(left)
    shown = {**gone_by_cause, "waiting": made, "slowed_by_waiting": slowed}
    shown["beside_compute"] = wall - left - gone - made - slowed
    parts = evidence.parts_of(limit, **shown)
    ranks = np.unique(rank[limit])
    limit_rank = int(ranks[0]) if ranks.size == 1 else None
    return LaunchSaving(evidence.saving_down_to(left), parts, limit_rank)


def _gone_by_cause(evidence: Evidence) -> dict[str, Float64]:
    """Return the idle time of each step that is gone where launching takes no time, by what the device idled for."""
    for_launch, pause, late_start = evidence.columns("idle_launch_ns", "idle_pause_ns", "idle_late_start_ns")
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
