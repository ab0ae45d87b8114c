"""One row per figure: both medians or means, their difference, its interval, and what that means."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from nsyspipe.difference.figures import DEFAULT_METRIC, METRICS, NEITHER, per_step
from nsyspipe.difference.tables import METRIC_ROWS
from nsyspipe.statistics import (
    MEAN,
    MEDIAN,
    difference_of_centres,
    evenness,
    is_worse_excluded,
    least_effect,
    settled_by,
    verdict,
)
from nsyspipe.statistics.decision import is_opposed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from nsyspipe.difference.figures import Metric
    from nsyspipe.difference.step_table import StepTable
    from nsyspipe.statistics import Difference

    Float64 = NDArray[np.float64]

__all__ = [
    "INCONCLUSIVE",
    "NO_CHANGE",
    "Judgement",
    "judged",
    "metric_rows",
    "overall_verdict",
    "statistic_of",
]

INCONCLUSIVE, NO_CHANGE = "inconclusive", "no change"
# The first of these that a metric has is the verdict of several: what nobody can tell is not yet an improvement.
_FIRST = ("regression", INCONCLUSIVE, "improvement", NO_CHANGE)
_NS_PER_S = 1e9
_TIMES, _RATE, _RATIO = "ns", "1/s", "ratio"


@dataclass(frozen=True)
class Judgement:
    """A difference and what it means; `least` is the smallest one that counts, in the figure's unit."""

    difference: Difference
    least: float
    verdict: str
    why: str | None


def statistic_of(*step_times: Sequence[Float64]) -> str:
    """Return what times are judged on: the mean where any capture's steps are uneven, else the median."""
    found = (evenness(values) for side in step_times for values in side)
    return MEAN if any(one is not None and one.is_uneven for one in found) else MEDIAN


def judged(
    metric: Metric,
    sides: Sequence[Sequence[Float64]],
    *,
    min_effect: float,
    confidence: float,
    statistic: str,
    step_time: float | None = None,
    names: tuple[str, str] = ("baseline", "candidate"),
) -> Judgement:
    """Judge one figure of two sides, each capture's values in the order of steps.

    Parameters
    ----------
    statistic
        ``median`` or ``mean``.
    step_time
        Of the baseline, ns: what a time is measured by where the baseline has none of it. A share is measured in
        points there, and of anything else all counts.
    """
    found = difference_of_centres(*sides, confidence=confidence, statistic=statistic, names=names)
    of_zero = {_TIMES: min_effect * (step_time or 0.0), _RATIO: min_effect}.get(metric.unit, 0.0)
    least = least_effect(found, min_effect=min_effect, of_zero=of_zero)
    said = verdict(found, least=least, better=metric.better)
    why = found.undecided
    if said == INCONCLUSIVE and why is None:
        is_against = is_opposed(found, least=least)
        why = (
            "mean and median differ in sign"
            if is_against
            else "the interval holds changes that count and such that do not"
        )
    return Judgement(found, least, said, why)


def metric_rows(
    baseline: Sequence[StepTable],
    candidate: Sequence[StepTable],
    *,
    min_effect: float,
    confidence: float,
    blocked: str | None,
    settled: Sequence[str] = (),
) -> pa.Table:
    """Compare every figure of two sides, each capture's steps in the order of time.

    Parameters
    ----------
    blocked
        Why no verdict may be given although there are figures; None when it may.
    settled
        Names of the figures for which it is worked out what would settle them: that takes a while.

    Returns
    -------
    pyarrow.Table
        `tables.METRIC_ROWS`, in the order of `figures.METRICS`.
    """
    tables = (baseline, candidate)
    times = [[per_step(table, DEFAULT_METRIC) for table in side] for side in tables]
    known = [[one for one in side if not isinstance(one, str)] for side in times]
    statistic = statistic_of(*known)
    step_time = float(np.median(np.concatenate(known[0]))) if known[0] else None
    rows = []
    for name, metric in METRICS.items():
        row: dict[str, Any] = {"metric": name, "unit": metric.unit, "better": metric.better}
        sides: list[Any] = [[per_step(table, name) for table in side] for side in tables]
        numbers = [sum(len(one) for one in side if not isinstance(one, str)) for side in sides]
        row |= {"n_baseline": numbers[0], "n_candidate": numbers[1], "confidence": confidence}
        row |= {"min_effect_pct": round(100 * min_effect, 12), "no_regression": False}
        lacking = [next((one for one in side if isinstance(one, str)), None) for side in sides]
        if any(lacking):
            rows.append(row | {"verdict": INCONCLUSIVE, "why": _why_null(lacking)})
            continue
        is_rate = (
            metric.unit == _RATE
        )  # of step time the reverse: that is judged, so that they never differ
        of, values = (METRICS[DEFAULT_METRIC], known) if is_rate else (metric, sides)
        found = judged(
            of,
            values,
            min_effect=min_effect,
            confidence=confidence,
            statistic=statistic if of.unit == _TIMES else MEDIAN,
            step_time=step_time,
        )
        figures = _figures(found, values, of, is_asked=name in settled)
        row |= _as_rate(figures) if is_rate else figures
        if blocked is not None:
            row |= {"verdict": INCONCLUSIVE, "why": blocked, "no_regression": False}
            row |= dict.fromkeys(("settle_steps", "settle_captures", "gate_steps", "gate_captures"))
        rows.append(row | _of_captures(row, baseline, candidate))
    return METRIC_ROWS.from_rows(rows)


def _of_captures(
    row: Mapping[str, Any], baseline: Sequence[StepTable], candidate: Sequence[StepTable]
) -> dict[str, Any]:
    """Return what to say instead where a side is a capture without steps: its figures are of no step, and have no spread."""
    sides = {"n_baseline": baseline, "n_candidate": candidate}
    captures = [name for name, side in sides.items() if any(table.run.is_capture for table in side)]
    if not captures:
        return {}
    said = {} if row.get("baseline") is None else {"why": "a capture without steps has no interval"}
    hints = dict.fromkeys(
        ("settle_steps", "settle_captures", "gate_steps", "gate_captures", "statistic")
    )
    return (
        dict.fromkeys(captures, 0)
        | hints
        | {"verdict": INCONCLUSIVE, "no_regression": False}
        | said
    )


def overall_verdict(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return one verdict for several rows: regression, inconclusive, improvement or no change, the first there is.

    What is neither better lower nor higher does not enter. Of such alone it is inconclusive, unless none changed.
    """
    found = {row["verdict"] for row in rows if row["better"] != NEITHER}
    if not found:
        return NO_CHANGE if all(row["verdict"] == NO_CHANGE for row in rows) else INCONCLUSIVE
    return next(one for one in _FIRST if one in found)


def _figures(
    found: Judgement,
    sides: Sequence[Sequence[Float64]],
    metric: Metric,
    *,
    is_asked: bool,
) -> dict[str, Any]:
    one, least, better = found.difference, found.least, metric.better
    base, delta = one.baseline, one.delta
    both = {
        f"{name}_{said}": _centre(side, said)
        for name, side in zip(("baseline", "candidate"), sides, strict=True)
        for said in (MEDIAN, MEAN)
    }
    passes = is_worse_excluded(one, least=least, better=better)
    is_open = is_asked and found.verdict == INCONCLUSIVE
    settled = settled_by(one, least=least, better=better) if is_open else None
    gated = (
        settled_by(one, least=least, better=better, one_sided=True)
        if is_open and not passes
        else None
    )
    return {
        "statistic": one.statistic,
        "baseline": base,
        "candidate": one.candidate,
        "delta": delta,
        "delta_pct": 100 * delta / abs(base) if base and delta is not None else None,
        "ci_low": one.low,
        "ci_high": one.high,
        "method": one.method,
        "verdict": found.verdict,
        "why": found.why,
        **both,
        "min_effect": least,
        "no_regression": passes,
        "settle_steps": settled.steps if settled else None,
        "settle_captures": settled.captures if settled else None,
        "gate_steps": gated.steps if gated else None,
        "gate_captures": gated.captures if gated else None,
    }


def _as_rate(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures of step time as steps/s: 1/c - 1/b = -(c - b) / bc, and so its interval and what counts."""
    base, candidate = row["baseline"], row["candidate"]
    if not base or not candidate:
        return dict(row) | dict.fromkeys(
            ("baseline", "candidate", "delta", "delta_pct", "ci_low", "ci_high")
        )
    per_ns = _NS_PER_S / (base * candidate)
    flipped = {
        name: None if row[of] is None else -row[of] * per_ns
        for name, of in (("delta", "delta"), ("ci_low", "ci_high"), ("ci_high", "ci_low"))
    }
    rates = {
        f"{name}{said}": _NS_PER_S / row[f"{name}{said}"] if row[f"{name}{said}"] else None
        for name in ("baseline", "candidate") for said in ("", f"_{MEDIAN}", f"_{MEAN}")
    }  # fmt: skip
    relative = None if row["delta"] is None else -100 * row["delta"] / candidate
    return (
        dict(row)
        | flipped
        | rates
        | {"delta_pct": relative, "min_effect": row["min_effect"] * per_ns}
    )


def _centre(side: Sequence[Float64], said: str) -> float:
    """Return the mean of the captures' means or medians."""
    centre = np.mean if said == MEAN else np.median
    return float(np.mean([float(centre(values)) for values in side if values.size]))


def _why_null(lacking: Sequence[str | None]) -> str:
    """Say which side lacks what."""
    if lacking[0] == lacking[1]:
        return f"both: {lacking[0]}"
    named = zip(("baseline", "candidate"), lacking, strict=True)
    return "; ".join(f"{side}: {why}" for side, why in named if why)
