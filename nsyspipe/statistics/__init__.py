"""Is a difference between two runs real: intervals and verdicts over per-step values, numpy only, no runs, no units."""

from __future__ import annotations

from nsyspipe.statistics.decision import (
    Better,
    Settled,
    Verdict,
    is_worse_excluded,
    least_effect,
    settled_by,
    verdict,
)
from nsyspipe.statistics.difference import MEAN, MEDIAN, Difference, difference_of_centres
from nsyspipe.statistics.evenness import Evenness, evenness
from nsyspipe.statistics.series import MIN_STEPS
from nsyspipe.statistics.speedup import Speedup, ratio_of_means

__all__ = [
    "MEAN",
    "MEDIAN",
    "MIN_STEPS",
    "Better",
    "Difference",
    "Evenness",
    "Settled",
    "Speedup",
    "Verdict",
    "difference_of_centres",
    "evenness",
    "is_worse_excluded",
    "least_effect",
    "ratio_of_means",
    "settled_by",
    "verdict",
]
