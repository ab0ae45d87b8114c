"""How a run stands against another: how much faster, whether that is noise, and what speaks against asking."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nsyspipe.difference.comparability import check_comparable
from nsyspipe.statistics import difference_of_medians, ratio_of_means, verdict, why_inconclusive

if TYPE_CHECKING:
    from nsyspipe.difference.comparability import Check
    from nsyspipe.scoreboard.entrant import Entrant

__all__ = ["INCONCLUSIVE", "REFERENCE", "Rules", "Standing", "is_slower", "standing"]

REFERENCE, INCONCLUSIVE = "reference", "inconclusive"


@dataclass(frozen=True)
class Rules:
    """What counts.

    Attributes
    ----------
    min_effect
        Smallest |difference| of step times that counts, as a ratio of the reference.
    confidence
        Of the intervals.
    is_forced
        Whether runs that are not comparable are judged.
    settings_file
        The file that says so; None: options or defaults do.
    """

    min_effect: float
    confidence: float
    is_forced: bool = False
    settings_file: str | None = None


@dataclass(frozen=True)
class Standing:
    """A run against a reference.

    Attributes
    ----------
    speedup, low, high
        Mean step time of the reference over the run's, and its interval; None where not known.
    verdict
        Of the step time, as in a difference of the two; ``reference`` of a run against itself.
    why
        Why it is inconclusive; None if it is not.
    checks
        What makes the comparison doubtful or impossible.
    """

    speedup: float | None
    low: float | None
    high: float | None
    verdict: str
    why: str | None
    checks: tuple[Check, ...]

    @property
    def blocking(self) -> list[str]:
        """Names of the checks that make the runs not comparable."""
        return [check.check for check in self.checks if check.blocks]


def standing(reference: Entrant, run: Entrant, rules: Rules) -> Standing:
    """Measure a run against a reference.

    The speed-up is of throughput, hence of means; the verdict is that of `nsyspipe.diff` on the metric step_time,
    hence of medians, which one stalled step does not move.
    """
    checks = () if run is reference else tuple(check_comparable(reference.side, run.side))
    before, after = reference.step_times, run.step_times
    if isinstance(before, str) or isinstance(after, str):
        lacking = [one.label for one in (reference, run) if isinstance(one.step_times, str)]
        named = " and ".join(dict.fromkeys(lacking))
        said = REFERENCE if run is reference else INCONCLUSIVE
        return Standing(None, None, None, said, f"{named}: no steps to compare", checks)
    speed = ratio_of_means(before, after, confidence=rules.confidence)
    if run is reference:
        exact = None if speed.low is None else 1.0  # nothing of it is left to chance
        return Standing(speed.ratio, exact, exact, REFERENCE, None, checks)
    names = reference.label, run.label
    found = difference_of_medians(before, after, confidence=rules.confidence, names=names)
    blocking = [check.check for check in checks if check.blocks]
    if blocking and not rules.is_forced:
        why = f"not comparable: {', '.join(blocking)}"
        return Standing(speed.ratio, speed.low, speed.high, INCONCLUSIVE, why, checks)
    return Standing(
        speed.ratio,
        speed.low,
        speed.high,
        verdict(found, min_effect=rules.min_effect),
        why_inconclusive(found, min_effect=rules.min_effect),
        checks,
    )


def is_slower(run: Entrant, best: Entrant, rules: Rules) -> bool:
    """Tell whether a run's step time is larger than that of the best, and not by noise or less than counts."""
    before, after = best.step_times, run.step_times
    if isinstance(before, str) or isinstance(after, str):
        return False
    found = difference_of_medians(before, after, confidence=rules.confidence)
    return verdict(found, min_effect=rules.min_effect) == "regression"
