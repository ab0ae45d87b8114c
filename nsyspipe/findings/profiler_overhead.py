"""Rule ``profiler-overhead``: the capture itself changes what it measures."""

from __future__ import annotations

import numpy as np

from nsyspipe.findings.model import Answer, Evidence, Finding

NEEDS = ("overhead_ns",)

_DISTORTED, _LEAST_SHARE = 1.5, 0.01


def profiler_overhead(evidence: Evidence) -> Answer:
    """Fire when the first step takes 1.5 times the median, or the profiler's own work overlaps 1 % of the figures' steps.

    The first step must be the longest too. Saving: that overlap per step; none when only the first step is distorted.
    """
    overhead = evidence.mean("overhead_ns") or 0.0
    ratio, is_longest, is_explained = _first_step(evidence)
    is_skipped = bool(evidence.skipped_steps)
    is_busy = evidence.share(overhead) >= _LEAST_SHARE
    is_distorted = ratio is not None and ratio >= _DISTORTED and is_longest
    if not (is_busy or is_distorted):
        return None
    left_out = ", and is left out of the figures" if is_skipped else ""
    title, action = "the profiler was busy during the steps", "read with care: the capture distorts what it measures"
    if not is_busy and is_explained:
        title = f"the first step is distorted by the start of the capture{left_out}"
        action = "nothing: only the first step is distorted, and left out" if is_skipped else action
    elif not is_busy:
        title = f"the first step takes {ratio:.2g} times the others{left_out}"
        action = "read with care: the first step is unlike the others"
    return Finding(
        title=title,
        action=action,
        advice="trace less (--trace=cuda,nvtx, no --sample, no --cudabacktrace), start the capture some steps before the "
        "ones that count, and keep it short",
        saving_ns_per_step=overhead if is_busy else None,
        evidence=evidence.means("overhead_ns")
        | {"first_step_to_median_ratio": ratio, "first_step_is_skipped": is_skipped},
    )


def _first_step(evidence: Evidence) -> tuple[float | None, bool, bool]:
    """Return the first step over the median of the figures' steps, whether it is longer than each, and whether the capture's start is half of that."""
    chosen = evidence.steps["step"].unique().to_pylist()
    first = (*evidence.skipped_steps, *chosen)[0]
    walls: dict[int, int] = {}
    at_start = 0
    for row in evidence.all_steps.select(["step", "wall_ns", "wait_ns", "overhead_ns"]).to_pylist():
        walls[row["step"]] = max(walls.get(row["step"], 0), row["wall_ns"])
        if row["step"] == first:
            at_start = max(at_start, (row["wait_ns"] or 0) + (row["overhead_ns"] or 0))
    others = [walls[step] for step in chosen if step != first]
    median = float(np.median(others or [0]))
    if not median:
        return None, False, False
    return walls[first] / median, walls[first] > max(others), 2 * at_start >= walls[first] - median
