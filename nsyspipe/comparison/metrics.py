"""The figures of a step that two runs are compared by, and a row for each: both medians or means, and what they mean.

A row has the difference, its interval and a verdict; several rows have one verdict together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from nsyspipe.analysis.summary import RATIOS, evenness
from nsyspipe.comparison.decision import (
    is_opposed,
    is_worse_excluded,
    least_effect,
    settled_by,
    verdict,
)
from nsyspipe.comparison.statistics import MEAN, MEDIAN, difference_of_centres
from nsyspipe.comparison.tables import METRIC_ROWS
from nsyspipe.model.schema import IDLE_CAUSES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa

    from nsyspipe.comparison.changes import StepTable
    from nsyspipe.comparison.decision import Better
    from nsyspipe.comparison.statistics import Difference
    from nsyspipe.model.types import Float64


# The figures of a step that two runs are compared by, and which way each is better.


LOWER: Final = "lower"
HIGHER: Final = "higher"
NEITHER: Final = "neither"
DEFAULT_METRIC = "step_time"

_NS_PER_S = 1e9
_NOT_RECORDED = "not recorded"
_NO_STEPS = "there is no step with a window on every rank"
_NO_GPU = "no GPU activity was recorded"
_CAPTURE = "a capture without steps"
_IN_GRAPHS = (
    "idle time inside CUDA graphs that were captured as a whole is not seen, and the other run's is"
)


@dataclass(frozen=True)
class Metric:
    """One figure of a step.

    Attributes
    ----------
    unit
        ns, 1/s, ratio, count, bytes or bytes/s.
    better
        `LOWER`, `HIGHER`, or `NEITHER`: a change of it is no news by itself.
    formula
        How the ranks of a step make one figure.
    lacking
        Why there is none, where a column that it needs is null.
    """

    name: str
    unit: str
    better: Better
    formula: str
    lacking: str = _NOT_RECORDED


_LACKING = {
    "wait": "waiting is known only where all collectives of a step match across ranks on one clock, and not of one rank",
    "bytes": "message sizes were not recorded (nsys export --include-blobs=true)",
    "backward": "a rank without a backward range, or without launches",
    "idle": "kernels, copies or memsets were not recorded",
    "calls": "API calls were not recorded with names and ends",
}
_WHY = {
    "wait_ns": _LACKING["wait"],
    "transfer_ns": _LACKING["wait"],
    "message_bytes": _LACKING["bytes"],
    "bus_bytes": _LACKING["bytes"],
    "overlap_backward_ns": _LACKING["backward"],
    "idle_launch_ns": _LACKING["calls"],
    "idle_blocked_ns": _LACKING["calls"],
    **dict.fromkeys(
        (
            "idle_ns",
            "exposed_memory_ns",
            "idle_input_ns",
            "idle_dependency_ns",
            "idle_unknown_ns",
        ),
        _LACKING["idle"],
    ),
}

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
_RATES = {"algbw": "message_bytes", "busbw": "bus_bytes"}


def _time(name: str, column: str, better: Better) -> Metric:
    why = _WHY.get(column, _NOT_RECORDED)
    return Metric(name, "ns", better, f"largest {column} over ranks", why)


def _ratio(name: str) -> Metric:
    above, below = RATIOS[name]
    formula = f"sum of {above} / sum of {below} over ranks"
    return Metric(name, "ratio", _RATIO_BETTER.get(name, NEITHER), formula, _WHY.get(above, _NOT_RECORDED))  # fmt: skip


_ALL = (
    Metric(DEFAULT_METRIC, "ns", LOWER, "largest wall_ns over ranks"),
    Metric("throughput", "1/s", HIGHER, "1e9 / step_time"),
    *(_time(name, *facts) for name, facts in _TIMES.items()),
    *map(_ratio, RATIOS),
    *(
        Metric(name, unit, NEITHER, f"mean of {column} over ranks", _WHY.get(column, _NOT_RECORDED))
        for name, (column, unit) in _MEANS.items()
    ),
    *(
        Metric(
            name,
            "bytes/s",
            HIGHER,
            f"sum of {column} / sum of transfer_ns over matched collectives",
            _WHY[column],
        )
        for name, column in _RATES.items()
    ),
)
METRICS: dict[str, Metric] = {metric.name: metric for metric in _ALL}


def per_step(table: StepTable, name: str) -> Float64 | str:
    """Return a metric's figure of each summary step, in order of time; in words why there is none.

    Times are the largest over ranks, ratios the sum over ranks of the numerator by that of the denominator, counts
    and bytes the mean over ranks. Steps in which a ratio's denominator is 0 are left out. A capture without steps has
    one value of each ratio and rate, pooled over it, and nothing else.
    """
    if table.run.is_capture:
        return _of_capture(table, name)
    if not table.n_steps:
        return _NO_STEPS if table.run.header.n_ranks else _NO_GPU
    metric = METRICS[name]
    if table.hides_idle and name.startswith("idle"):
        return _IN_GRAPHS
    found = _values(table, name)
    if found is None:
        return metric.lacking
    above, below = found
    is_defined = below != 0
    if not is_defined.any():
        return f"{metric.formula}: the denominator is 0 in all steps"
    figures: Float64 = above[is_defined] / below[is_defined]
    return figures


_POOLED = {**{name: name for name in RATIOS}, **{name: f"{name}_bytes_per_s" for name in _RATES}}


def _of_capture(table: StepTable, name: str) -> Float64 | str:
    """Return the pooled figure of a capture without steps; in words why it has none."""
    if name not in _POOLED:
        return _CAPTURE
    if table.hides_idle and name.startswith("idle"):
        return _IN_GRAPHS
    found = table.run.summary()[_POOLED[name]][0].as_py()
    return METRICS[name].lacking if found is None else np.array([found], np.float64)


def _values(table: StepTable, name: str) -> tuple[Float64, Float64] | None:
    """Return numerator and denominator of each step; None where something was not recorded."""
    ones = np.ones(table.n_steps)
    if name == "throughput":
        wall = table.matrix("wall_ns")
        return None if wall is None else (_NS_PER_S * ones, wall.max(axis=0).astype(np.float64))
    if name in RATIOS:
        above, below = (table.matrix(column) for column in RATIOS[name])
        if above is None or below is None:
            return None
        return above.sum(axis=0).astype(np.float64), below.sum(axis=0).astype(np.float64)
    if name in _MEANS:
        counts = table.matrix(_MEANS[name][0])
        return None if counts is None else (counts.sum(axis=0) / float(len(counts)), ones)
    if name in _RATES:
        sums, transfer = table.transfers[_RATES[name]], table.transfers["transfer_ns"]
        return None if sums is None or transfer is None else (_NS_PER_S * sums, transfer)
    times = table.matrix("wall_ns" if name == DEFAULT_METRIC else _TIMES[name][0])
    return None if times is None else (times.max(axis=0).astype(np.float64), ones)


INCONCLUSIVE, NO_CHANGE = "inconclusive", "no change"
# The first of these that a metric has is the verdict of several: what nobody can tell is not yet an improvement.
_FIRST = ("regression", INCONCLUSIVE, "improvement", NO_CHANGE)
_TIME_METRICS, _RATE, _RATIO = "ns", "1/s", "ratio"


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
    of_zero = {_TIME_METRICS: min_effect * (step_time or 0.0), _RATIO: min_effect}.get(
        metric.unit, 0.0
    )
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
        `tables.METRIC_ROWS`, in the order of `METRICS`.
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
            statistic=statistic if of.unit == _TIME_METRICS else MEDIAN,
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
