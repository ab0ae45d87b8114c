"""One row per figure: both medians, their difference, its interval, and what that means."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nsyspipe.difference.figures import METRICS, NEITHER, per_step
from nsyspipe.difference.tables import METRIC_ROWS
from nsyspipe.statistics import difference_of_medians, verdict, why_inconclusive

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa

    from nsyspipe.difference.step_table import StepTable
    from nsyspipe.statistics import Better

__all__ = ["INCONCLUSIVE", "NO_CHANGE", "metric_rows", "overall_verdict"]

INCONCLUSIVE, NO_CHANGE = "inconclusive", "no change"
# The first of these that a metric has is the verdict of several: what nobody can tell is not yet an improvement.
_FIRST = ("regression", INCONCLUSIVE, "improvement", NO_CHANGE)


def metric_rows(
    baseline: Sequence[StepTable],
    candidate: Sequence[StepTable],
    *,
    min_effect: float,
    confidence: float,
    blocked: str | None,
) -> pa.Table:
    """Compare every figure of two sides, each capture's steps in the order of time.

    Parameters
    ----------
    blocked
        Why no verdict may be given although there are figures; None when it may.

    Returns
    -------
    pyarrow.Table
        `tables.METRIC_ROWS`, in the order of `figures.METRICS`.
    """
    rows = []
    for name, metric in METRICS.items():
        row: dict[str, Any] = {"metric": name, "unit": metric.unit, "better": metric.better}
        sides = [[per_step(table, name) for table in side] for side in (baseline, candidate)]
        row |= _figures(sides, metric.better, min_effect, confidence, blocked)
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
    return dict.fromkeys(captures, 0) | {"verdict": INCONCLUSIVE} | said


def overall_verdict(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return one verdict for several rows: regression, inconclusive, improvement or no change, the first there is.

    What is neither better lower nor higher does not enter. Of such alone it is inconclusive, unless none changed.
    """
    found = {row["verdict"] for row in rows if row["better"] != NEITHER}
    if not found:
        return NO_CHANGE if all(row["verdict"] == NO_CHANGE for row in rows) else INCONCLUSIVE
    return next(one for one in _FIRST if one in found)


def _figures(
    sides: list[Any], better: Better, min_effect: float, confidence: float, blocked: str | None
) -> dict[str, Any]:
    numbers = [sum(len(one) for one in side if not isinstance(one, str)) for side in sides]
    counted = {"n_baseline": numbers[0], "n_candidate": numbers[1], "confidence": confidence}
    lacking = [next((one for one in side if isinstance(one, str)), None) for side in sides]
    if any(lacking):
        return counted | {"verdict": INCONCLUSIVE, "why": _why_null(lacking)}
    found = difference_of_medians(*sides, confidence=confidence)
    base, delta = found.baseline, found.delta
    judged = verdict(found, min_effect=min_effect, better=better)
    return counted | {
        "baseline": found.baseline,
        "candidate": found.candidate,
        "delta": found.delta,
        "delta_pct": 100 * delta / abs(base) if base and delta is not None else None,
        "ci_low": found.low,
        "ci_high": found.high,
        "method": found.method,
        "verdict": judged if blocked is None else INCONCLUSIVE,
        "why": blocked or why_inconclusive(found, min_effect=min_effect),
    }


def _why_null(lacking: Sequence[str | None]) -> str:
    """Say which side lacks what."""
    if lacking[0] == lacking[1]:
        return f"both: {lacking[0]}"
    named = zip(("baseline", "candidate"), lacking, strict=True)
    return "; ".join(f"{side}: {why}" for side, why in named if why)
