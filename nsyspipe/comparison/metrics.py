"""The figures of a step that two runs are compared by, and a row for each: both medians or means, and what they mean.

A row has the difference, its interval and a verdict; several rows have one verdict together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from nsyspipe.analysis.summary import RATIOS, evenness
from nsyspipe.comparison.statistics import (
    MEAN,
    MEDIAN,
    Judgement,
    Settled,
    difference_of_centres,
)
from nsyspipe.comparison.tables import METRIC_ROWS
from nsyspipe.model.schema import IDLE_CAUSES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa

    from nsyspipe.analysis.summary import Evenness
    from nsyspipe.comparison.changes import StepTable
    from nsyspipe.comparison.statistics import Better
    from nsyspipe.model.types import Float64


# The figures of a step that two runs are compared by, and which way each is better.


LOWER: Final = "lower"
HIGHER: Final = "higher"
NEITHER: Final = "neither"
DEFAULT_METRIC = "step_time"

_NS_PER_S = 1e9
_TIME, _RATE, _RATIO, _BANDWIDTH = "ns", "1/s", "ratio", "bytes/s"
_NO_STEPS = "there is no step with a window on every rank"
_NO_GPU = "no GPU activity was recorded"
_CAPTURE = "a capture without steps"
_IN_GRAPHS = "idle time inside CUDA graphs that were captured as a whole is not seen, and the other run's is"
# Why there is no figure where a column is null.
_WHY = {
    **dict.fromkeys(
        ("wait_ns", "transfer_ns"),
        "waiting is known only where all collectives of a step match across ranks on one clock, and not of one rank",
    ),
    **dict.fromkeys(
        ("message_bytes", "bus_bytes"),
        "message sizes were not recorded (nsys export --include-blobs=true)",
    ),
    "overlap_backward_ns": "a rank without a backward range, or without launches",
    **dict.fromkeys(
        ("idle_launch_ns", "idle_blocked_ns"),
        "API calls were not recorded with names and ends",
    ),
    **dict.fromkeys(
        ("idle_ns", "exposed_memory_ns", "idle_input_ns", "idle_dependency_ns", "idle_unknown_ns"),
        "kernels, copies or memsets were not recorded",
    ),
}


@dataclass(frozen=True)
class Metric:
    """One figure of a step: how its ranks make one, of a column of `schema.STEPS` or of matched collectives.

    With `below`, a denominator, it is a ratio. If neither is `better`, a change of it is no news by itself.
    """

    name: str
    unit: str
    better: Better
    formula: str
    column: str
    below: str | None = None

    @property
    def lacking(self) -> str:
        """Why there is none, where a column that it needs is null."""
        return _WHY.get(self.column, "not recorded")


# Name -> column of `schema.STEPS`, which way is better. Communication may take longer when it hides better.
_TIMES: dict[str, tuple[str, Better]] = {
    "compute": ("compute_ns", LOWER),
    "comm": ("comm_ns", NEITHER),
    "exposed_comm": ("exposed_comm_ns", LOWER),
    "exposed_memory": ("exposed_memory_ns", LOWER),
    "idle": ("idle_ns", LOWER),
    "dtod": ("dtod_ns", LOWER),
    "wait": ("wait_ns", LOWER),
    "transfer": ("transfer_ns", NEITHER),
    **{name.removesuffix("_ns"): (name, LOWER) for name in IDLE_CAUSES},
}
# Shares of compute and of all communication change whenever anything else does.
_RATIO_BETTER: dict[str, Better] = {
    "exposed_comm_share": LOWER,
    "overlap_ratio": HIGHER,
    "backward_overlap_ratio": HIGHER,
    "idle_share": LOWER,
    "exposed_memory_share": LOWER,
    "wait_share": LOWER,
}
_MEANS = {
    "collectives": ("n_collectives", "count"),
    "message_bytes": ("message_bytes", "bytes"),
    "dtod_bytes": ("dtod_bytes", "bytes"),
}

_ALL = (
    Metric(DEFAULT_METRIC, _TIME, LOWER, "largest wall_ns over ranks", "wall_ns"),
    Metric("throughput", _RATE, HIGHER, "1e9 / step_time", "wall_ns"),
    *(
        Metric(name, _TIME, better, f"largest {column} over ranks", column)
        for name, (column, better) in _TIMES.items()
    ),
    *(
        Metric(name, _RATIO, _RATIO_BETTER.get(name, NEITHER), f"sum of {above} / sum of {below} over ranks", above, below)
        for name, (above, below) in RATIOS.items()
    ),
    *(
        Metric(name, unit, NEITHER, f"mean of {column} over ranks", column)
        for name, (column, unit) in _MEANS.items()
    ),
    *(
        Metric(name, _BANDWIDTH, HIGHER, f"sum of {column} / sum of transfer_ns over matched collectives", column, "transfer_ns")
        for name, column in (("algbw", "message_bytes"), ("busbw", "bus_bytes"))
    ),
)  # fmt: skip
METRICS: dict[str, Metric] = {metric.name: metric for metric in _ALL}


def per_step(table: StepTable, name: str) -> Float64 | str:
    """Return a metric's figure of each summary step, in order of time; in words why there is none.

    Times are the largest over ranks, ratios the sum over ranks of the numerator by that of the denominator, counts
    and bytes the mean over ranks. Steps in which a ratio's denominator is 0 are left out. A capture without steps has
    one value of each ratio and rate, pooled over it, and nothing else.
    """
    metric = METRICS[name]
    if table.run.is_capture and metric.below is None:
        return _CAPTURE
    if not (table.run.is_capture or table.n_steps):
        return _NO_STEPS if table.run.header.n_ranks else _NO_GPU
    if table.hides_idle and name.startswith("idle"):
        return _IN_GRAPHS
    if table.run.is_capture:
        column = name if metric.unit == _RATIO else f"{name}_bytes_per_s"
        pooled = table.run.summary()[column][0].as_py()
        return metric.lacking if pooled is None else np.array([pooled], np.float64)
    above, below = _values(table, metric) or (None, None)
    if above is None or below is None:
        return metric.lacking
    is_defined = below != 0
    undefined = f"{metric.formula}: the denominator is 0 in all steps"
    return above[is_defined] / below[is_defined] if is_defined.any() else undefined


def _values(table: StepTable, metric: Metric) -> tuple[Float64, Float64] | None:
    """Return numerator and denominator of each step; None where something was not recorded."""
    if metric.unit == _BANDWIDTH:
        sums, transfer = table.transfers[metric.column], table.transfers["transfer_ns"]
        return None if sums is None or transfer is None else (_NS_PER_S * sums, transfer)
    above = table.matrix(metric.column)
    below = None if metric.below is None else table.matrix(metric.below)
    if above is None or (metric.below and below is None):
        return None
    ones = np.ones(table.n_steps)
    if below is not None:
        return above.sum(axis=0).astype(np.float64), below.sum(axis=0).astype(np.float64)
    if metric.unit not in {_TIME, _RATE}:
        return above.sum(axis=0) / float(len(above)), ones
    largest = above.max(axis=0).astype(np.float64)
    return (_NS_PER_S * ones, largest) if metric.unit == _RATE else (largest, ones)


INCONCLUSIVE, NO_CHANGE = "inconclusive", "no change"
# The first of these that a metric has is the verdict of several: what nobody can tell is not yet an improvement.
_FIRST = ("regression", INCONCLUSIVE, "improvement", NO_CHANGE)
_SIDES = ("baseline", "candidate")


def evenness_of(tables: Sequence[StepTable]) -> list[Evenness]:
    """Return how even the step times of each capture are; of those that have any."""
    times = [per_step(table, DEFAULT_METRIC) for table in tables]
    found = [evenness(values) for values in times if not isinstance(values, str)]
    return [one for one in found if one is not None]


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
    names: tuple[str, str] = _SIDES,
) -> Judgement:
    """Judge one figure of two sides, each capture's values in the order of steps.

    Where the baseline has none of it, a time is measured by its step time (ns), a share in points, and of anything else
    all counts.
    """
    found = difference_of_centres(*sides, confidence=confidence, statistic=statistic, names=names)
    of_zero = {_TIME: min_effect * (step_time or 0.0), _RATIO: min_effect}.get(metric.unit, 0.0)
    least = min_effect * abs(found.baseline) if found.baseline else of_zero
    return Judgement(found, least, metric.better)


def metric_rows(
    *tables: Sequence[StepTable],
    min_effect: float,
    confidence: float,
    blocked: str | None,
    settled: Sequence[str] = (),
) -> pa.Table:
    """Return `tables.METRIC_ROWS`: every figure of baseline and candidate, in the order of `METRICS`.

    `blocked` says why no verdict may be given although there are figures. What would settle a figure is worked out for
    those named in `settled`: that takes a while.
    """
    times = [[per_step(table, DEFAULT_METRIC) for table in side] for side in tables]
    known = [[one for one in side if not isinstance(one, str)] for side in times]
    statistic = statistic_of(*known)
    step_time = float(np.median(np.concatenate(known[0]))) if known[0] else None
    has_capture = [any(table.run.is_capture for table in side) for side in tables]
    # Figures of a capture are of no step, and have no spread.
    captures = [f"n_{side}" for side, has in zip(_SIDES, has_capture, strict=True) if has]
    unsaid = {}
    if captures:
        hints = ("statistic", "settle_steps", "settle_captures", "gate_steps", "gate_captures")
        unsaid = dict.fromkeys(captures, 0) | dict.fromkeys(hints)
        blocked = "a capture without steps has no interval"
    if blocked is not None:
        unsaid |= {"verdict": INCONCLUSIVE, "no_regression": False, "why": blocked}
    rows = []
    for name, metric in METRICS.items():
        sides: list[Any] = [[per_step(table, name) for table in side] for side in tables]
        numbers = [sum(len(one) for one in side if not isinstance(one, str)) for side in sides]
        row: dict[str, Any] = {
            "metric": name,
            "unit": metric.unit,
            "better": metric.better,
            "n_baseline": numbers[0],
            "n_candidate": numbers[1],
            "confidence": confidence,
            "min_effect_pct": round(100 * min_effect, 12),
            "no_regression": False,
        }
        lacking = [next((one for one in side if isinstance(one, str)), None) for side in sides]
        if any(lacking):
            rows.append(row | {"verdict": INCONCLUSIVE, "why": _why_null(lacking)})
            continue
        # Of steps/s the reverse: step time is judged, so that they never differ.
        of, values = (METRICS[DEFAULT_METRIC], known) if metric.unit == _RATE else (metric, sides)
        found = judged(
            of,
            values,
            min_effect=min_effect,
            confidence=confidence,
            statistic=statistic if of.unit == _TIME else MEDIAN,
            step_time=step_time,
        )
        figures = _figures(found, values, is_asked=name in settled)
        rows.append(row | (_as_rate(figures) if of is not metric else figures) | unsaid)
    return METRIC_ROWS.from_rows(rows)


def overall_verdict(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return one verdict for several rows: regression, inconclusive, improvement or no change, the first there is.

    What is neither better lower nor higher does not enter. Of such alone it is inconclusive, unless none changed.
    """
    found = {row["verdict"] for row in rows if row["better"] != NEITHER}
    if not found:
        return NO_CHANGE if all(row["verdict"] == NO_CHANGE for row in rows) else INCONCLUSIVE
    return next(one for one in _FIRST if one in found)


def _figures(found: Judgement, sides: Sequence[Sequence[Float64]], *, is_asked: bool) -> dict[str, Any]:
    one = found.difference
    base, delta = one.baseline, one.delta
    is_open = is_asked and found.verdict == INCONCLUSIVE
    settled = found.settled() if is_open else Settled()
    is_gate_open = is_open and not found.is_worse_excluded
    gated = found.settled(one_sided=True) if is_gate_open else Settled()
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
        **{
            f"{name}_{said}": _centre(side, said)
            for name, side in zip(_SIDES, sides, strict=True) for said in (MEDIAN, MEAN)
        },
        "min_effect": found.least,
        "no_regression": found.is_worse_excluded,
        "settle_steps": settled.steps,
        "settle_captures": settled.captures,
        "gate_steps": gated.steps,
        "gate_captures": gated.captures,
    }  # fmt: skip


def _as_rate(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures of step time as steps/s: 1/c - 1/b = -(c - b) / bc, and so its interval and what counts."""
    base, candidate = row["baseline"], row["candidate"]
    if not base or not candidate:
        unknown = ("baseline", "candidate", "delta", "delta_pct", "ci_low", "ci_high")
        return {**row, **dict.fromkeys(unknown)}
    per_ns = _NS_PER_S / (base * candidate)
    flipped = {
        name: None if row[of] is None else -row[of] * per_ns
        for name, of in (("delta", "delta"), ("ci_low", "ci_high"), ("ci_high", "ci_low"))
    }
    rates = {
        name: _NS_PER_S / row[name] if row[name] else None
        for side in _SIDES for name in (side, f"{side}_{MEDIAN}", f"{side}_{MEAN}")
    }  # fmt: skip
    relative = None if row["delta"] is None else -100 * row["delta"] / candidate
    least = {"min_effect": row["min_effect"] * per_ns}
    return {**row, **flipped, **rates, "delta_pct": relative, **least}


def _centre(side: Sequence[Float64], said: str) -> float:
    """Return the mean of the captures' means or medians."""
    centre = np.mean if said == MEAN else np.median
    return float(np.mean([float(centre(values)) for values in side if values.size]))


def _why_null(lacking: Sequence[str | None]) -> str:
    """Say which side lacks what."""
    if lacking[0] == lacking[1]:
        return f"both: {lacking[0]}"
    named = zip(_SIDES, lacking, strict=True)
    return "; ".join(f"{side}: {why}" for side, why in named if why)
