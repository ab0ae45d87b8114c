"""Is a difference between two runs real: intervals and verdicts over per-step values, numpy only, no runs, no units."""

from __future__ import annotations

from nsyspipe.statistics.decision import Better, Verdict, verdict, why_inconclusive
from nsyspipe.statistics.difference import Difference, difference_of_medians
from nsyspipe.statistics.series import MIN_STEPS
from nsyspipe.statistics.speedup import Speedup, ratio_of_means

__all__ = [
    "MIN_STEPS",
    "Better",
    "Difference",
    "Speedup",
    "Verdict",
    "difference_of_medians",
    "ratio_of_means",
    "verdict",
    "why_inconclusive",
]
