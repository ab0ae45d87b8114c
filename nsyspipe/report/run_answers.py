"""The answers of the first screen of a run as values: the mean step, and what to change first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc

from nsyspipe.analysis.summary import divided, means_of_slowest
from nsyspipe.report.overview import Recommendation, recommendations_of
from nsyspipe.report.units import STEP_PARTS
from nsyspipe.report.words import unseen_idle

if TYPE_CHECKING:
    from nsyspipe.model.typed_tables import StepsTable
    from nsyspipe.run.run import Run

# The metric that is a lower bound if a part of it is not visible.
_IDLE = "idle"


def mean_step_document(run: Run) -> dict[str, Any] | None:
    """Return the mean step and its parts. None without steps.

    The step and each part have two means, ns. One is over the slowest rank of each step, and the
    first screen shows this mean. The other is over all ranks, and shares of `summary` are made from
    it.

    ``slowest_on_average_ns`` is the longest mean step of a single rank. If different ranks are
    slowest in different steps, it is shorter than ``slowest_of_each_step_ns``.
    """
    # A row per step in use and rank.
    steps = run.breakdown()
    if run.is_capture or not steps.num_rows:
        return None
    columns = ["wall_ns", *(figure.column for figure in STEP_PARTS)]
    mean_of_slowest_ns = means_of_slowest(steps, columns)
    mean_of_all_ns = {
        name: pc.mean(steps.column(name), skip_nulls=False).as_py() for name in columns
    }
    slowest_step_ns = mean_of_slowest_ns["wall_ns"]
    all_step_ns = mean_of_all_ns["wall_ns"]
    parts = []
    for figure in STEP_PARTS:
        slowest_part_ns = mean_of_slowest_ns[figure.column]
        all_part_ns = mean_of_all_ns[figure.column]
        part = {
            "part": figure.name,
            "slowest_of_each_step_ns": slowest_part_ns,
            "slowest_of_each_step_share": divided(slowest_part_ns, slowest_step_ns),
            "all_ranks_ns": all_part_ns,
            "all_ranks_share": divided(all_part_ns, all_step_ns),
        }
        parts.append(part)
    return {
        "slowest_of_each_step_ns": slowest_step_ns,
        "slowest_on_average_ns": _longest_mean_ns(steps),
        "all_ranks_ns": all_step_ns,
        # Parts whose true time is longer than the mean, because some of it is not visible.
        "lower_bounds": [_IDLE] if unseen_idle(run) else [],
        "parts": parts,
    }


def _longest_mean_ns(steps: StepsTable) -> float | None:
    """Return the longest mean step of a single rank."""
    by_rank = steps.group_by("rank", use_threads=False)
    mean_of_rank_ns = by_rank.aggregate([("wall_ns", "mean")])["wall_ns_mean"]
    return pc.max(mean_of_rank_ns).as_py()  # type: ignore[no-any-return]


def recommendations_document(run: Run) -> dict[str, Any]:
    """Return what to change, in the order of the first screen.

    ``first`` is None if no change saves a visible part of the step.
    """
    recommendations = recommendations_of(run)
    first = recommendations.first
    return {
        "first": None if first is None else _row(first),
        "alternatives": [_row(change) for change in recommendations.alternatives],
        "within_noise": [_row(change) for change in recommendations.within_noise],
        "little": [_row(change) for change in recommendations.little],
    }


def _row(change: Recommendation) -> dict[str, Any]:
    """Return a recommendation as values. ``known`` says how its saving is known."""
    return {
        "id": change.finding.id,
        "action": change.finding.action,
        "known": change.saving_kind,
        "saving_ns_per_step": change.saving_ns,
        "saved_share": change.saved_share,
        "step_time_ns": change.step_ns,
        "step_time_low_ns": change.low_ns,
        "step_time_high_ns": change.high_ns,
    }
