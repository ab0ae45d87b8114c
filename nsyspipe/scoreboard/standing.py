"""How a run stands against another: how much faster, whether that is noise, and what speaks against asking."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nsyspipe.difference.comparability import check_comparable
from nsyspipe.difference.figures import DEFAULT_METRIC, METRICS
from nsyspipe.difference.metric_rows import judged, statistic_of
from nsyspipe.statistics import ratio_of_means, settled_by

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from nsyspipe.difference.comparability import Check
    from nsyspipe.difference.metric_rows import Judgement
    from nsyspipe.scoreboard.entrant import Entrant
    from nsyspipe.statistics import Settled

    Float64 = NDArray[np.float64]

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
    statistic
        ``median`` or ``mean``: what the verdict is of.
    settled
        What would settle an inconclusive one.
    """

    speedup: float | None
    low: float | None
    high: float | None
    verdict: str
    why: str | None
    checks: tuple[Check, ...]
    statistic: str | None = None
    settled: Settled | None = None

    @property
    def blocking(self) -> list[str]:
        """Names of the checks that make the runs not comparable."""
        return [check.check for check in self.checks if check.blocks]


def standing(reference: Entrant, run: Entrant, rules: Rules) -> Standing:
    """Measure a run against a reference.

    The speed-up is of throughput, hence of means; the verdict is that of `nsyspipe.diff` on the metric step_time: of
    medians, which one stalled step does not move, and of means where the steps of either run are uneven.
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
    found = _judged(before, after, rules, names)
    blocking = [check.check for check in checks if check.blocks]
    if blocking and not rules.is_forced:
        why = f"not comparable: {', '.join(blocking)}"
        return Standing(speed.ratio, speed.low, speed.high, INCONCLUSIVE, why, checks)
    settled = None
    if found.verdict == INCONCLUSIVE:
        better = METRICS[DEFAULT_METRIC].better
        settled = settled_by(found.difference, least=found.least, better=better)
    return Standing(
        speed.ratio,
        speed.low,
        speed.high,
        found.verdict,
        found.why,
        checks,
        found.difference.statistic,
        settled,
    )


def _judged(
    before: Sequence[Float64],
    after: Sequence[Float64],
    rules: Rules,
    names: tuple[str, str] = ("best", "run"),
) -> Judgement:
    return judged(
        METRICS[DEFAULT_METRIC],
        (before, after),
        min_effect=rules.min_effect,
        confidence=rules.confidence,
        statistic=statistic_of(before, after),
        names=names,
    )


def is_slower(run: Entrant, best: Entrant, rules: Rules) -> bool:
    """Tell whether a run's step time is larger than that of the best, and not by noise or less than counts."""
    before, after = best.step_times, run.step_times
    if isinstance(before, str) or isinstance(after, str):
        return False
    return _judged(before, after, rules).verdict == "regression"
