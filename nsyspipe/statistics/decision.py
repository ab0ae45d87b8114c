"""What a difference means: a regression, an improvement, no change, or nothing that can be said."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from nsyspipe.statistics.series import MIN_STEPS

if TYPE_CHECKING:
    from nsyspipe.statistics.difference import Difference

__all__ = ["Better", "Verdict", "is_large", "verdict", "why_inconclusive"]

Verdict = Literal["regression", "improvement", "change", "no change", "inconclusive"]
Better = Literal["lower", "higher", "neither"]


def verdict(difference: Difference, *, min_effect: float, better: Better = "lower") -> Verdict:
    """Judge a difference.

    Parameters
    ----------
    difference
        Of `difference_of_medians`.
    min_effect
        What counts, as a ratio of the baseline: 0.02 is 2 %. Of a baseline of 0 anything else counts.
    better
        Which direction is an improvement; with "neither" a difference is a "change".

    Returns
    -------
    str
        "regression", "improvement" or "change" if the interval excludes 0 and |delta| is at least
        `min_effect` of the baseline; "inconclusive" if `why_inconclusive` has a reason; else "no change".
    """
    if why_inconclusive(difference, min_effect=min_effect) is not None:
        return "inconclusive"
    delta, low, high = difference.delta, difference.low, difference.high
    if delta is None or low is None or high is None:
        return "inconclusive"
    if low <= 0 <= high or not is_large(difference, min_effect=min_effect):
        return "no change"
    if better == "neither":
        return "change"
    return "improvement" if (delta < 0) == (better == "lower") else "regression"


def why_inconclusive(difference: Difference, *, min_effect: float) -> str | None:
    """Say in words why nothing can be decided; None if it can.

    Too few steps never decide. Too few for their autocorrelation do where the answer does not hang
    on it: all of the interval is within `min_effect`, or the difference found is less than that.
    """
    low, high, base = difference.low, difference.high, difference.baseline
    if difference.undecided is not None or low is None or high is None or base is None:
        return difference.undecided or "no steps"
    if difference.doubt is None or max(-low, high) < min_effect * abs(base):
        return None
    is_worth_few = difference.effective_steps is None or difference.effective_steps < MIN_STEPS
    if is_worth_few or is_large(difference, min_effect=min_effect):
        return difference.doubt
    return None


def is_large(difference: Difference, *, min_effect: float) -> bool:
    """Whether |delta| is at least `min_effect` of the baseline, and not 0; False without a delta."""
    if not difference.delta or difference.baseline is None:
        return False
    return abs(difference.delta) >= min_effect * abs(difference.baseline)
