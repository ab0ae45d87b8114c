"""Rule ``comm-slows-compute``: the same kernels take longer while communication runs."""

from __future__ import annotations

import pyarrow.compute as pc

from nsyspipe.analysis.kernels import LEAST_COMPARED, MOST_USUAL, compared_share
from nsyspipe.findings.model import AT_MOST, Answer, Evidence, Finding, NotJudged

_LEAST_SLOWDOWN, _LEAST_SHARE, LEAST_OVERLAP_SHARE = 0.02, 0.0025, 0.02
LESS_HIDDEN = "capture a run whose communication is less hidden too, and compare their kernels: nsyspipe diff"
_SHOWN_KERNELS = 5


def comm_slows_compute(evidence: Evidence) -> Answer:
    """Fire when equal kernels take 2 % longer beside communication, and that costs 0.25 % of step time.

    With c = slowed / free - 1 over all kernels that can be compared, those covered in part too, saving: overlapped
    compute x c / (1 + c), and how much later kernels begin beside communication, both with 30 % more than measured, which is what
    the measure holds within, and c at most 1; the mean over steps of the rank with most. Not judged where they are under a quarter of the kernel time beside communication.
    """
    overlap = evidence.mean("overlap_compute_ns")
    if not evidence.has_comm or overlap is None or evidence.share(overlap) < LEAST_OVERLAP_SHARE:
        return None
    n_slowed = pc.sum(evidence.kernels["n_slowed"]).as_py() or 0
    slowdown = evidence.compared_slowdown_ratio
    if slowdown is None:
        return NotJudged(
            f"only {n_slowed} kernels under communication have equal ones without it",
            "capture more steps, and export with nsys 2021 or newer, which names grid and block",
        )
    share = compared_share(evidence.kernels)
    if share < LEAST_COMPARED:
        of_all = f"only {100 * share:.1f} % of the kernel time beside communication"
        return NotJudged(f"{of_all} has equal kernels without it", LESS_HIDDEN)
    lost = evidence.slowed_ns(slowdown, 1.0)
    if slowdown < _LEAST_SLOWDOWN or evidence.share(lost) < _LEAST_SHARE:
        return None
    beyond = ", by more than is usual" if slowdown > MOST_USUAL else ""
    return Finding(
        title=f"kernels run slower while communication is under way{beyond}",
        action="give NCCL fewer SMs (NCCL_MAX_CTAS), or shorten it",
        advice="give communication fewer SMs (NCCL_MAX_CTAS, or NCCL_MAX_NCHANNELS), or shorten it",
        saving_ns_per_step=evidence.slowed_ns(slowdown, AT_MOST),
        evidence={
            "slowdown_ratio": slowdown,
            "n_kernels_compared": n_slowed,
            **evidence.means("overlap_compute_ns", "comm_delay_ns"),
            "slowdown_ratio_by_kernel": _by_kernel(evidence),
        },
    )


def _by_kernel(evidence: Evidence) -> dict[str, float]:
    """Return the slowdown of the kernels that lose most by it."""
    sums = evidence.kernels.group_by("name", use_threads=False).aggregate([("slowed_ns", "sum"), ("free_ns", "sum")])
    rows = [(row["name"], row["slowed_ns_sum"], row["free_ns_sum"]) for row in sums.to_pylist() if row["free_ns_sum"]]
    rows.sort(key=lambda row: (row[2] - row[1], row[0]))
    return {name: slowed / free - 1 for name, slowed, free in rows[:_SHOWN_KERNELS]}
