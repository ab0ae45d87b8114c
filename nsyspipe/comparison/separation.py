"""Steps of two sides that do not overlap at all: when this alone shows a difference.

A t interval of a few correlated steps is wide, because neighbours may be almost equal. If every
step of one side takes longer than every step of the other, the order of the steps is evidence by
itself. The interval is then the widest one of Mann and Whitney's test: it reaches from the smallest
to the largest difference between a step of one side and a step of the other (L. Moses 1965, M.
Hollander and D. Wolfe: Nonparametric statistical methods). Independent steps are separated by
chance in 2 / C(10, 5) = 0.8 % of pairs of five steps a side. Correlated steps are separated more
often. `_MIN_GAP_IN_RANGES` keeps that below 2.5 % a side for a correlation of 0.6
(tests/comparison/test_gate_simulation.py).
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from nsyspipe.analysis.summary import levels_of
from nsyspipe.comparison.series import Captures
from nsyspipe.model.table import Float64

MIN_STEPS_OF_SIDE = 5
MAX_CONFIDENCE = 0.95
# Two levels count as seen if the gap between them is this many times the spread within them. A
# smaller gap comes by chance.
MIN_GAP_OF_LEVELS_IN_SPREADS = 4.0
# Number of steps of the side with fewer -> the least gap between the sides, as a multiple of the
# wider side's range. With more steps, any gap is enough.
_MIN_GAP_IN_RANGES = {5: 0.5, 6: 0.25, 7: 0.25}


class Separation(Struct, frozen=True):
    """Two sides without a common value.

    The ends are the smallest and the largest difference of two steps, candidate less baseline.
    """

    low: float
    high: float

    @property
    def gap(self) -> float:
        """The smallest difference of two steps, above 0."""
        return min(abs(self.low), abs(self.high))

    @property
    def largest(self) -> float:
        """The largest difference of two steps."""
        return max(abs(self.low), abs(self.high))


def separation_of(baseline: Captures, candidate: Captures, confidence: float) -> Separation | None:
    """Return how far two sides are apart, if their steps do not overlap and this is evidence.

    None if steps overlap, if a side has fewer than 5 steps, or if the confidence is above 95 %.
    None too if the gap between the sides is small for so few steps, or smaller than the gap between
    two levels of the steps of a capture.
    """
    fewest_steps = min(baseline.n, candidate.n)
    if fewest_steps < MIN_STEPS_OF_SIDE or confidence > MAX_CONFIDENCE:
        return None
    before = _all_steps(baseline)
    after = _all_steps(candidate)
    lowest_difference = after.min() - before.max()
    highest_difference = after.max() - before.min()
    separation = Separation(low=float(lowest_difference), high=float(highest_difference))
    # If differences have both signs, the steps overlap.
    if separation.low <= 0 <= separation.high:
        return None
    wider_range = float(max(np.ptp(before), np.ptp(after)))
    min_gap = _MIN_GAP_IN_RANGES.get(fewest_steps, 0.0) * wider_range
    level_switch = max(_largest_level_switch(baseline), _largest_level_switch(candidate))
    if separation.gap < max(min_gap, level_switch):
        return None
    return separation


def _all_steps(side: Captures) -> Float64:
    """Return the steps of all captures of a side in one array."""
    captures = [series.values for series in side.series]
    return np.concatenate(captures)


def _largest_level_switch(side: Captures) -> float:
    """Return the largest distance between two levels of a capture's steps; 0 without any."""
    switches = [0.0]
    for series in side.series:
        is_long = levels_of(series.values, MIN_GAP_OF_LEVELS_IN_SPREADS)
        if is_long is not None:
            longer_level = np.median(series.values[is_long])
            shorter_level = np.median(series.values[~is_long])
            switches.append(float(longer_level - shorter_level))
    return max(switches)
