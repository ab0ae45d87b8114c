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
    """Return the mean step and its parts; None without steps.

    Each part has its mean over the slowest rank of each step, which the first screen shows, and
    its mean over all ranks, which shares of `summary` are made from. ``slowest_on_average_ns`` is
    the longest mean step of a single rank. It is shorter than the mean over the slowest rank of
    each step if that rank changes.
    """
    rows = run.breakdown()
    if run.is_capture or not rows.num_rows:
        return None
    columns = ["wall_ns", *(figure.column for figure in STEP_PARTS)]
    slowest_ns = means_of_slowest(rows, columns)
    mean_ns = {name: pc.mean(rows.column(name), skip_nulls=False).as_py() for name in columns}
    parts = []
    for figure in STEP_PARTS:
        slowest_part_ns = slowest_ns[figure.column]
        mean_part_ns = mean_ns[figure.column]
        part = {
            "part": figure.name,
            "slowest_of_each_step_ns": slowest_part_ns,
            "slowest_of_each_step_share": divided(slowest_part_ns, slowest_ns["wall_ns"]),
            "all_ranks_ns": mean_part_ns,
            "all_ranks_share": divided(mean_part_ns, mean_ns["wall_ns"]),
        }
        parts.append(part)
    return {
        "slowest_of_each_step_ns": slowest_ns["wall_ns"],
        "slowest_on_average_ns": _longest_mean_ns(rows),
        "all_ranks_ns": mean_ns["wall_ns"],
        "lower_bounds": [_IDLE] if unseen_idle(run) else [],
        "parts": parts,
    }


def _longest_mean_ns(steps: StepsTable) -> float | None:
    """Return the mean step of the rank with the longest one."""
    by_rank = steps.group_by("rank", use_threads=False)
    means_ns = by_rank.aggregate([("wall_ns", "mean")])["wall_ns_mean"]
    return pc.max(means_ns).as_py()  # type: ignore[no-any-return]


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
    return {
        "id": change.finding.id,
        "action": change.finding.action,
        "known": change.known,
        "saving_ns_per_step": change.saving_ns,
        "saved_share": change.saved_share,
        "step_time_ns": change.step_ns,
        "step_time_low_ns": change.low_ns,
        "step_time_high_ns": change.high_ns,
    }
