"""A figure of each step of a run, and a row for each figure of two runs: both medians or means, and what they mean."""

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from msgspec import Struct

from nsyspipe.analysis.summary import Evenness, evenness
from nsyspipe.comparison.changes import SIDES, StepTable
from nsyspipe.comparison.gate import DEFAULT_CONFIDENCE, DEFAULT_MIN_EFFECT
from nsyspipe.comparison.series import MIN_STEPS, Series
from nsyspipe.comparison.statistics import MEAN, MEDIAN, Judgement, difference_of_centres
from nsyspipe.model.columns import count, flag, percent, ratio, text
from nsyspipe.model.definitions import ANALYZE_AGAIN
from nsyspipe.model.figures import METRICS, NEITHER, Figure
from nsyspipe.model.table import FLOAT, Column, Float64, TableSchema

METRIC_ROWS = TableSchema(
    name="difference_metrics",
    doc=(
        "One row per metric: medians or means over the steps used of both sides, and their "
        "difference."
    ),
    key=("metric",),
    columns=(
        text("metric", "name, as --metric takes it"),
        text("unit", "ns, 1/s, ratio, count, bytes or bytes/s"),
        text("better", "lower, higher, or neither"),
        text(
            "statistic", "median, or mean for times if the steps of a run are uneven", nullable=True
        ),
        Column(
            "baseline",
            FLOAT,
            "the metric's",
            "value of the baseline over the steps used (for several captures: mean of their "
            "values)",
            nullable=True,
        ),
        Column(
            "candidate",
            FLOAT,
            "the metric's",
            "value of the candidate over the steps used (for several captures: mean of their "
            "values)",
            nullable=True,
        ),
        Column("delta", FLOAT, "the metric's", "candidate - baseline", nullable=True),
        percent("delta_pct", "100 x delta / baseline, null if the baseline is 0", nullable=True),
        Column(
            "ci_low",
            FLOAT,
            "the metric's",
            "lower end of the confidence interval of delta, null without an interval",
            nullable=True,
        ),
        Column(
            "ci_high",
            FLOAT,
            "the metric's",
            "upper end of the confidence interval of delta",
            nullable=True,
        ),
        ratio("confidence", "confidence of the interval"),
        count("n_baseline", "steps used of the baseline that have this metric"),
        count("n_candidate", "steps used of the candidate that have this metric"),
        text("method", "how the interval was made", nullable=True),
        text(
            "verdict",
            "improvement, regression, no change, or inconclusive. For metrics without a better "
            "direction: change",
        ),
        text("why", "what is missing, or why the verdict is inconclusive", nullable=True),
        Column(
            "baseline_median",
            FLOAT,
            "the metric's",
            "median over summary steps of the baseline",
            nullable=True,
        ),
        Column(
            "baseline_mean",
            FLOAT,
            "the metric's",
            "mean over summary steps of the baseline",
            nullable=True,
        ),
        Column(
            "candidate_median",
            FLOAT,
            "the metric's",
            "median over summary steps of the candidate",
            nullable=True,
        ),
        Column(
            "candidate_mean",
            FLOAT,
            "the metric's",
            "mean over summary steps of the candidate",
            nullable=True,
        ),
        Column(
            "min_effect",
            FLOAT,
            "the metric's",
            "minimum effect: smallest difference that matters",
            nullable=True,
        ),
        percent("min_effect_pct", "minimum effect in percent of the baseline"),
        flag(
            "no_regression",
            "whether the worse end of the interval is below the minimum effect, so that --fail-on "
            "regression passes",
        ),
        count(
            "settle_steps",
            "approximate number of steps per capture that would settle the verdict of a judged "
            "metric, null if decided or if no number would",
            nullable=True,
        ),
        count(
            "settle_captures",
            "approximate number of captures per side that would settle the verdict",
            nullable=True,
        ),
        count("gate_steps", "as settle_steps, for --fail-on regression", nullable=True),
        count("gate_captures", "as settle_captures, for --fail-on regression", nullable=True),
    ),
)

DEFAULT_METRIC = "step_time"

_NS_PER_S = 1e9
_TIME = "ns"
_RATE = "1/s"
_RATIO = "ratio"
# Why there is no figure where a column that it needs is null.
_WHY = {
    column: why
    for why, columns in (
        (
            "wait time needs several ranks on one clock, and all their collectives must match",
            "wait_ns transfer_ns",
        ),
        (
            "message sizes were not recorded (nsys export --include-blobs=true)",
            "message_bytes bus_bytes",
        ),
        ("a rank has no backward range or no launches", "overlap_backward_ns"),
        ("CUDA API calls were not recorded with names and ends", "idle_launch_ns idle_blocked_ns"),
        (
            "kernels, copies or memsets were not recorded",
            "idle_ns exposed_memory_ns idle_input_ns idle_dependency_ns idle_unknown_ns",
        ),
    )
    for column in columns.split()
}
# What is null where ranks communicate between their step ranges, and why in words.
_OF_WHOLE_STEPS = {"wait_ns", "transfer_ns", "message_bytes", "bus_bytes", "overlap_backward_ns"}
OTHER_DEFINITIONS = f"saved with older definitions of this metric ({ANALYZE_AGAIN})"
LEFT_OUT = "step ranges leave out communication"
INCONCLUSIVE = "inconclusive"
NO_CHANGE = "no change"
# The first of these that a metric has is the verdict of several: what nobody can tell is not yet an
# improvement.
_FIRST = ("regression", INCONCLUSIVE, "improvement", NO_CHANGE)


def per_step(table: StepTable, name: str) -> Float64 | str:
    """Return a metric's figure of each summary step, in order of time; in words why there is none.

    Times are the largest over ranks, ratios the sum over ranks of the numerator by that of the
    denominator, counts and bytes the mean over ranks. Steps in which a ratio's denominator is 0 are
    left out. A capture without steps has one value of each ratio and rate, pooled over it, and
    nothing else.
    """
    figure = METRICS[name]
    is_capture = table.run.is_capture
    above, below = figure.of_step
    is_left_out = above in _OF_WHOLE_STEPS and "comm-between-steps" in [
        row["code"] for row in table.run.problem_rows
    ]
    lacking = LEFT_OUT if is_left_out else _WHY.get(above, "not recorded")
    if is_capture and below is None:
        return "a capture without steps"
    if not (is_capture or table.n_steps):
        has_gpu = table.run.header.n_ranks
        return "no step was recorded on every rank" if has_gpu else "no GPU activity was recorded"
    if table.hides_idle and name.startswith("idle"):
        return "idle time inside CUDA graphs captured as a whole is visible in only one of the runs"
    if is_capture:
        pooled = table.run.summary()[figure.column][0].as_py()
        return lacking if pooled is None else np.array([pooled], np.float64)
    fraction = _fraction(table, figure)
    if fraction is None:
        return lacking
    is_defined = fraction[1] != 0
    ratio: Float64 = fraction[0][is_defined] / fraction[1][is_defined]
    return ratio if ratio.size else f"{figure.formula}: the denominator is 0 in all steps"


def is_outdated(figure: Figure, table: StepTable) -> bool:
    """Tell whether a figure means something else in a run that the table's run is compared with."""
    return not table.outdated_columns.isdisjoint(figure.of_step)


def _fraction(table: StepTable, figure: Figure) -> tuple[Float64, Float64] | None:
    above, below = figure.of_step
    if figure.unit == "bytes/s":
        sums = table.transfers[above]
        transfer = table.transfers["transfer_ns"]
        return None if sums is None or transfer is None else (_NS_PER_S * sums, transfer)
    over, under = (table.matrix(column) for column in (above, below or above))
    if over is None or under is None:
        return None
    if below:
        return over.sum(axis=0).astype(np.float64), under.sum(axis=0).astype(np.float64)
    ones = np.ones(table.n_steps)
    if figure.unit not in {_TIME, _RATE}:
        return over.sum(axis=0) / float(len(over)), ones
    largest = over.max(axis=0).astype(np.float64)
    return (_NS_PER_S * ones, largest) if figure.unit == _RATE else (largest, ones)


def of_captures(
    tables: Sequence[StepTable], name: str = DEFAULT_METRIC
) -> tuple[list[Float64], str | None]:
    """Return a metric's figures of each capture of a side that has any, and in words why the first without has none."""
    figures = [
        OTHER_DEFINITIONS if is_outdated(METRICS[name], table) else per_step(table, name)
        for table in tables
    ]
    why = next((figure for figure in figures if isinstance(figure, str)), None)
    return [figure for figure in figures if not isinstance(figure, str)], why


def hidden_comm_ns(captures: Sequence[StepTable], statistic: str) -> float | None:
    """Return how long communication runs beside compute, measured as a time of `METRIC_ROWS`; None where it is not known.

    Of a step it is that of the rank with most of it. Communication less exposed communication is
    not: each of them may be of another rank.
    """
    centre = np.mean if statistic == MEAN else np.median
    centres: list[float] = []
    for capture in captures:
        overlap = capture.matrix("overlap_compute_ns")
        if overlap is None:
            return None
        centres.append(float(centre(overlap.max(axis=0))))
    return sum(centres) / len(centres)


def evenness_of(tables: Sequence[StepTable]) -> list[Evenness]:
    """Return how even the step times of each capture are; of those that have any."""
    return [even for values in of_captures(tables)[0] if (even := evenness(values)) is not None]


def statistic_of(*step_times: Sequence[Float64]) -> str:
    """Return what times are judged on: the mean where any capture's steps are uneven, else the median."""
    captures = (evenness(values) for side in step_times for values in side)
    return MEAN if any(even is not None and even.is_uneven for even in captures) else MEDIAN


class Rules(Struct, frozen=True):
    """What counts as a difference."""

    min_effect: float = DEFAULT_MIN_EFFECT  # the smallest |difference|, as a ratio of the reference
    confidence: float = DEFAULT_CONFIDENCE  # of the intervals
    is_forced: bool = False  # runs that are not comparable are judged, too


def judged(
    metric: Figure,
    sides: Sequence[Sequence[Float64]],
    rules: Rules,
    *,
    statistic: str,
    step_time: float | None = None,
    names: tuple[str, str] = SIDES,
) -> Judgement:
    """Judge one figure of two sides, each capture's values in the order of steps.

    Where the baseline has none of it, a time is measured by its step time (ns), a share in points,
    and of anything else all counts.
    """
    difference = difference_of_centres(
        *sides, confidence=rules.confidence, statistic=statistic, names=names
    )
    of_zero = {_TIME: step_time or 0.0, _RATIO: 1.0}.get(metric.unit, 0.0)
    least = rules.min_effect * (abs(difference.baseline) if difference.baseline else of_zero)
    return Judgement(difference, least, metric.better)


class Outlier(NamedTuple):
    """The step without which the step time would not be inconclusive, and what it would be."""

    side: str
    step: int
    ns: float
    median_ns: float  # of its capture
    verdict: str


def outlier(
    *tables: Sequence[StepTable], rules: Rules, rows: Sequence[Mapping[str, Any]]
) -> Outlier | None:
    """Return the step furthest from its capture's median if it alone makes the step time of judged rows inconclusive; else None.

    That is asked of one step of both sides, beyond 3 robust standard deviations of its capture: of
    ever more that are left out some would decide by chance.
    """
    of_step_time = [row for row in rows if row["metric"] == DEFAULT_METRIC]
    if (
        not of_step_time
        or of_step_time[0]["verdict"] != INCONCLUSIVE
        or of_step_time[0]["ci_low"] is None
    ):
        return None
    sides = [of_captures(side)[0] for side in tables]
    long = [
        (at, n, Series(own))
        for at, side in enumerate(sides)
        for n, own in enumerate(side)
        if own.size > MIN_STEPS
    ]
    if len(long) < sum(map(len, tables)):
        return None
    at, number, series = max(
        long, key=lambda one: float(np.abs(one[2].values / one[2].centre - 1).max())
    )
    apart = series.values - series.centre
    furthest = int(np.abs(apart).argmax())
    if not abs(apart[furthest]) > abs(series.deviations[furthest]):
        return None
    sides[at][number] = np.delete(series.values, furthest)
    judgement = judged(METRICS[DEFAULT_METRIC], sides, rules, statistic=statistic_of(*sides))
    if judgement.verdict == INCONCLUSIVE:
        return None
    step = int(tables[at][number].steps[furthest])
    return Outlier(
        SIDES[at], step, float(series.values[furthest]), series.centre, judgement.verdict
    )


def metric_rows(
    *tables: Sequence[StepTable], rules: Rules, blocked: str | None, settled: Sequence[str]
) -> pa.Table:
    """Return `METRIC_ROWS`: every figure of baseline and candidate, in the order of `METRICS`.

    `blocked` says why no verdict may be given although there are figures. What would settle a
    figure is worked out for those named in `settled`: that takes a while.
    """
    known = [of_captures(side)[0] for side in tables]
    statistic = statistic_of(*known)
    step_time = float(np.median(np.concatenate(known[0]))) if known[0] else None
    # Figures of a capture are of no step, and have no spread.
    captures = [
        side
        for side, own in zip(SIDES, tables, strict=True)
        if any(table.run.is_capture for table in own)
    ]
    unsaid: dict[str, Any] = {}
    if captures:
        hints = ("statistic", "settle_steps", "settle_captures", "gate_steps", "gate_captures")
        unsaid = dict.fromkeys((f"n_{side}" for side in captures), 0) | dict.fromkeys(hints)
        blocked = "a capture without steps has no interval"
    if blocked is not None:
        unsaid |= {"verdict": INCONCLUSIVE, "no_regression": False, "why": blocked}
    rows = []
    for name, metric in METRICS.items():
        sides, lacking = zip(*(of_captures(side, name) for side in tables), strict=True)
        row: dict[str, Any] = {
            "metric": name,
            "unit": metric.unit,
            "better": metric.better,
            "confidence": rules.confidence,
            "min_effect_pct": round(100 * rules.min_effect, 12),
            **{f"n_{side}": sum(map(len, own)) for side, own in zip(SIDES, sides, strict=True)},
        }
        if any(lacking):
            words = [f"{side}: {why}" for side, why in zip(SIDES, lacking, strict=True) if why]
            why = f"both sides: {lacking[0]}" if lacking[0] == lacking[1] else ", ".join(words)
            rows.append(row | {"verdict": INCONCLUSIVE, "no_regression": False, "why": why})
            continue
        # Of steps/s the reverse: step time is judged, so that they never differ.
        of, values = (METRICS[DEFAULT_METRIC], known) if metric.unit == _RATE else (metric, sides)
        own = statistic if of.unit == _TIME else MEDIAN
        judgement = judged(of, values, rules, statistic=own, step_time=step_time)
        figures = _figures(judgement, values, is_asked=name in settled)
        rows.append(row | (_as_rate(figures) if of is not metric else figures) | unsaid)
        if blocked and judgement.difference.low is None and judgement.why and not captures:
            rows[-1]["why"] = f"{judgement.why}, {blocked}"
    return METRIC_ROWS.from_rows(rows)


def overall_verdict(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return one verdict for several rows, as `RunDifference.verdict` tells it."""
    verdicts = {row["verdict"] for row in rows if row["better"] != NEITHER}
    if not verdicts:
        return NO_CHANGE if all(row["verdict"] == NO_CHANGE for row in rows) else INCONCLUSIVE
    return next(verdict for verdict in _FIRST if verdict in verdicts)


def _figures(
    judgement: Judgement, sides: Sequence[Sequence[Float64]], *, is_asked: bool
) -> dict[str, Any]:
    difference = judgement.difference
    base = difference.baseline
    delta = difference.delta
    row = {
        "statistic": difference.statistic,
        "baseline": base,
        "candidate": difference.candidate,
        "delta": delta,
        "delta_pct": 100 * delta / abs(base) if base and delta is not None else None,
        "ci_low": difference.low,
        "ci_high": difference.high,
        "method": difference.method,
        "verdict": judgement.verdict,
        "why": judgement.why,
        "min_effect": judgement.least,
        "no_regression": judgement.is_worse_excluded,
    }
    centres: tuple[tuple[str, Any], ...] = ((MEDIAN, np.median), (MEAN, np.mean))
    for (name, side), (statistic, centre) in product(zip(SIDES, sides, strict=True), centres):
        row[f"{name}_{statistic}"] = float(
            np.mean([centre(values) for values in side if values.size])
        )
    if is_asked:
        row["settle_steps"], row["settle_captures"] = judgement.settled()
        row["gate_steps"], row["gate_captures"] = judgement.settled(one_sided=True)
    return row


def _as_rate(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures of step time as steps/s: 1/c - 1/b = -(c - b) / bc, and so its interval and what counts."""
    base = row["baseline"]
    candidate = row["candidate"]
    if not base or not candidate:
        return {
            **row,
            **dict.fromkeys(("baseline", "candidate", "delta", "delta_pct", "ci_low", "ci_high")),
        }
    per_ns = _NS_PER_S / (base * candidate)
    ends = {"delta": row["delta"], "ci_low": row["ci_high"], "ci_high": row["ci_low"]}
    flipped = {name: None if value is None else -value * per_ns for name, value in ends.items()}
    centres = [name for side in SIDES for name in (side, f"{side}_{MEDIAN}", f"{side}_{MEAN}")]
    rates = {name: _NS_PER_S / row[name] if row[name] else None for name in centres}
    relative = None if row["delta"] is None else -100 * row["delta"] / candidate
    return {
        **row,
        **flipped,
        **rates,
        "delta_pct": relative,
        "min_effect": row["min_effect"] * per_ns,
    }
