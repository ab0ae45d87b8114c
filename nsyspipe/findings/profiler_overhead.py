"""Rule ``profiler-overhead``: the capture itself changes what it measures."""

from __future__ import annotations

import numpy as np

from nsyspipe.findings.model import Answer, Evidence, Finding

NEEDS = ("overhead_ns",)

_DISTORTED = 1.5
_LEAST_SHARE = 0.01


def profiler_overhead(evidence: Evidence) -> Answer:
    """Fire when the first step takes 1.5 times the median, or the profiler's own work overlaps 1 % of the figures' steps.

    The first step must be the longest too: where few steps have communication, it may just be one of
    them. Saving: that overlap per step; none when only the first step is distorted.
    """
    overhead = evidence.mean("overhead_ns") or 0.0
    ratio, is_longest = _first_step(evidence)
    is_skipped = bool(evidence.skipped_steps)
    is_busy = evidence.share(overhead) >= _LEAST_SHARE
    is_distorted = ratio is not None and ratio >= _DISTORTED and is_longest
    if not (is_busy or is_distorted):
        return None
    left_out = ", and is left out of the figures" if is_skipped else ""
    title = "the profiler was busy during the steps"
    if not is_busy:
        title = f"the first step is distorted by the start of the capture{left_out}"
    return Finding(
        title=title,
        action="read with care: the capture distorts what it measures",
        advice="trace less (--trace=cuda,nvtx, no --sample, no --cudabacktrace), start the capture some steps before the "
        "ones that count, and keep it short",
        saving_ns_per_step=overhead if is_busy else None,
        evidence={
            "overhead_ns_per_step": evidence.mean("overhead_ns"),
            "first_step_to_median_ratio": ratio,
            "first_step_is_skipped": is_skipped,
        },
    )


def _first_step(evidence: Evidence) -> tuple[float | None, bool]:
    """Return the first complete step over the median of the figures' steps, and whether it is longer than each."""
    chosen = evidence.steps["step"].unique().to_pylist()
    first = (*evidence.skipped_steps, *chosen)[0]
    walls: dict[int, int] = {}
    for row in evidence.all_steps.select(["step", "wall_ns"]).to_pylist():
        walls[row["step"]] = max(walls.get(row["step"], 0), row["wall_ns"])
    others = [walls[step] for step in chosen if step != first]
    median = float(np.median(others)) if others else 0.0
    return (walls[first] / median, walls[first] > max(others)) if median else (None, False)
