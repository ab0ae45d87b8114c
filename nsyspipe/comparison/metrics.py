"""A metric of each step of a run, and a row for each metric of two runs."""

from collections.abc import Mapping, Sequence
from itertools import chain
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
from nsyspipe.model.figures import GPU_RATES, JOB_RATES, METRICS, NEITHER, Figure
from nsyspipe.model.table import FLOAT, Column, Float64, Int64, TableSchema

METRIC_ROWS = TableSchema(
    name="difference_metrics",
    doc=(
        "One row per metric: medians or means over the steps used of both sides, and their "
        "difference."
    ),
    key=("metric",),
    columns=(
        text("metric", "name, as --metric takes it"),
        text("unit", "ns, 1/s, ratio, count, bytes, bytes/s, FLOP/s, token/s or sample/s"),
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
# Why a metric is missing -> columns that it needs, and that are null then.
_COLUMNS_BY_WHY = {
    "wait time needs several ranks on one clock, and all their collectives must match": (
        "wait_ns transfer_ns"
    ),
    "message sizes were not recorded (nsys export --include-blobs=true)": (
        "message_bytes bus_bytes"
    ),
    "a rank has no backward range or no launches": "overlap_backward_ns",
    "CUDA API calls were not recorded with names and ends": "idle_launch_ns idle_blocked_ns",
    "the tokens of a step are unknown (--tokens-per-step)": "tokens",
    "the samples of a step are unknown (--samples-per-step)": "samples",
    "the FLOPs of a step are unknown (--flops-per-step)": "flops",
    "the FLOPs of a step, or their peak, are unknown (--flops-per-step, --peak)": (
        "ideal_compute_ns slow_compute_ns"
    ),
    "kernels, copies or memsets were not recorded": (
        "idle_ns exposed_memory_ns idle_input_ns idle_dependency_ns idle_unknown_ns"
    ),
}
_WHY_BY_COLUMN = {
    column: why for why, columns in _COLUMNS_BY_WHY.items() for column in columns.split()
}
# Columns that are null if ranks communicate between their step ranges.
_COLUMNS_OF_WHOLE_STEPS = frozenset(
    {"wait_ns", "transfer_ns", "message_bytes", "bus_bytes", "overlap_backward_ns"}
)
OTHER_DEFINITIONS = f"saved with older definitions of this metric ({ANALYZE_AGAIN})"
LEFT_OUT = "step ranges leave out communication"
INCONCLUSIVE = "inconclusive"
NO_CHANGE = "no change"
# The first of these that a metric has is the verdict of several metrics. What is not certain is not
# yet an improvement.
_VERDICTS_BY_WEIGHT = ("regression", INCONCLUSIVE, "improvement", NO_CHANGE)


# --- values of steps ------------------------------------------------------------------------------
def per_step(table: StepTable, name: str) -> Float64 | str:
    """Return a metric of each summary step, in order of time, or in words why there is none.

    Times are the largest over ranks. Ratios are the sum over ranks of the numerator over that of
    the denominator. Counts and bytes are the mean over ranks. Steps in which the denominator of a
    ratio is 0 are left out. A capture without steps has one value of each ratio and rate, pooled
    over the capture. It has no other metrics.
    """
    figure = METRICS[name]
    why_no_steps = _why_no_steps(table, figure)
    if why_no_steps is not None:
        return why_no_steps
    if table.hides_idle and name.startswith("idle"):
        return "idle time inside CUDA graphs captured as a whole is visible in only one of the runs"
    if table.run.is_capture:
        return _pooled_value(table, figure)
    fraction = _fraction_of_steps(table, figure)
    if fraction is None:
        return _why_null(table, figure)
    is_defined = fraction.denominator != 0
    if not is_defined.any():
        return f"{figure.formula}: the denominator is 0 in all steps"
    values: Float64 = fraction.numerator[is_defined] / fraction.denominator[is_defined]
    return values


def _pooled_value(table: StepTable, figure: Figure) -> Float64 | str:
    """Return the one value of a capture without steps, or in words why there is none."""
    pooled = table.run.summary().column(figure.column)[0].as_py()
    if pooled is None:
        return _why_null(table, figure)
    return np.array([pooled], np.float64)


def _why_no_steps(table: StepTable, figure: Figure) -> str | None:
    """Return why a run lacks the steps that a metric needs; None if it lacks none.

    Of a capture without steps, a metric that is a ratio has one value for the whole capture.
    """
    if table.run.is_capture:
        _, denominator = figure.of_step
        is_ratio = denominator is not None
        return None if is_ratio else "a capture without steps"
    if table.n_steps:
        return None
    if table.run.header.n_ranks:
        return "no step was recorded on every rank"
    return "no GPU activity was recorded"


def _why_null(table: StepTable, figure: Figure) -> str:
    """Return why a column that a metric needs is null."""
    column, _ = figure.of_step
    codes = {row["code"] for row in table.run.problem_rows}
    if column in _COLUMNS_OF_WHOLE_STEPS and "comm-between-steps" in codes:
        return LEFT_OUT
    return _WHY_BY_COLUMN.get(column, "not recorded")


def is_outdated(figure: Figure, table: StepTable) -> bool:
    """Tell whether a metric means something else in a run that the table's run is compared with."""
    return not table.outdated_columns.isdisjoint(figure.of_step)


class _Fraction(NamedTuple):
    """A metric of each step, as two numbers."""

    numerator: Float64
    denominator: Float64


def _fraction_of_steps(table: StepTable, figure: Figure) -> _Fraction | None:
    """Return a metric of each step; None if a column that the metric needs is null."""
    # Names of columns, as `Figure.of_step` says. There may be no denominator.
    numerator, denominator = figure.of_step
    # The denominator is always the transfer time, so only the numerator is passed.
    if figure.unit == "bytes/s":
        return _rate_of_transfers(table, numerator)
    # The denominator is always the step time, so only the numerator is passed.
    if figure.column in JOB_RATES:
        return _rate_of_job(table, numerator)
    if denominator is not None:
        factor = _NS_PER_S if figure.column in GPU_RATES else 1.0
        return _ratio_of_sums(table, numerator, denominator, factor)
    return _value_over_ranks(table, figure, numerator)


def _value_over_ranks(table: StepTable, figure: Figure, column: str) -> _Fraction | None:
    """Return a column over ranks: of times the largest, of anything else the mean.

    A rate is one step over the largest time, per second. None if the column has a null.
    """
    values = table.matrix(column)
    if values is None:
        return None
    ones = np.ones(table.n_steps)
    if figure.unit not in {_TIME, _RATE}:
        n_ranks = float(len(values))
        means = values.sum(axis=0) / n_ranks
        return _Fraction(means, ones)
    largest_ns = values.max(axis=0).astype(np.float64)
    if figure.unit == _RATE:
        return _Fraction(_NS_PER_S * ones, largest_ns)
    return _Fraction(largest_ns, ones)


def _rate_of_job(table: StepTable, count: str) -> _Fraction | None:
    """Return a count of the whole job per second of the step time; None if the count is null."""
    counts = table.matrix(count)
    wall_ns = table.matrix("wall_ns")
    if counts is None or wall_ns is None:
        return None
    # Each rank has the count of the whole job, so that no sum over ranks is taken.
    count_of_step = counts.max(axis=0)
    step_time_ns = wall_ns.max(axis=0).astype(np.float64)
    return _Fraction(_NS_PER_S * count_of_step, step_time_ns)


def _ratio_of_sums(
    table: StepTable, numerator: str, denominator: str, factor: float = 1.0
) -> _Fraction | None:
    """Return a column over another one, both summed over ranks, times a factor.

    None if one of the columns has a null.
    """
    values = table.matrix(numerator)
    divisors = table.matrix(denominator)
    if values is None or divisors is None:
        return None
    return _Fraction(factor * _sum_of_ranks(values), _sum_of_ranks(divisors))


def _sum_of_ranks(matrix: Int64) -> Float64:
    # A sum of FLOPs may exceed 64 bits.
    sums: Float64 = matrix.sum(axis=0, dtype=np.float64)
    return sums


def _rate_of_transfers(table: StepTable, column: str) -> _Fraction | None:
    """Return bytes of the collectives of a step per second of their transfer time.

    None if one of them is not known.
    """
    n_bytes = table.transfers[column]
    transfer_ns = table.transfers["transfer_ns"]
    if n_bytes is None or transfer_ns is None:
        return None
    return _Fraction(_NS_PER_S * n_bytes, transfer_ns)


class CaptureValues(NamedTuple):
    """A metric of the captures of a side."""

    # An array of one value per step, for each capture that has the metric.
    values: list[Float64]
    # Why the first capture without the metric does not have it; None if all have it.
    why_lacking: str | None


def values_of_captures(captures: Sequence[StepTable], name: str = DEFAULT_METRIC) -> CaptureValues:
    """Return a metric of the steps of each capture of a side."""
    values = []
    why_lacking = None
    for capture in captures:
        is_old = is_outdated(METRICS[name], capture)
        values_or_why = OTHER_DEFINITIONS if is_old else per_step(capture, name)
        if not isinstance(values_or_why, str):
            values.append(values_or_why)
        elif why_lacking is None:
            why_lacking = values_or_why
    return CaptureValues(values, why_lacking)


def hidden_comm_ns(captures: Sequence[StepTable], statistic: str) -> float | None:
    """Return how long communication overlaps with compute per step, ns; None if it is not known.

    The value of a step is that of the rank with most overlap. Over steps it is the mean or median,
    as the statistic says, and over captures the mean. The overlap cannot be computed as all
    communication less exposed communication: in a step these two may be of different ranks.
    """
    centre_of = np.mean if statistic == MEAN else np.median
    centres_ns: list[float] = []
    for capture in captures:
        overlap_ns = capture.matrix("overlap_compute_ns")
        if overlap_ns is None:
            return None
        largest_of_step_ns = overlap_ns.max(axis=0)
        centres_ns.append(float(centre_of(largest_of_step_ns)))
    return sum(centres_ns) / len(centres_ns)


def evenness_of(captures: Sequence[StepTable]) -> list[Evenness]:
    """Return how even the step times are, for each capture in which this can be told."""
    step_times = values_of_captures(captures)
    return _known_evenness(step_times.values)


def _known_evenness(step_times_of_captures: Sequence[Float64]) -> list[Evenness]:
    evenness_of_captures = map(evenness, step_times_of_captures)
    return [known for known in evenness_of_captures if known is not None]


def statistic_of(*step_times_of_sides: Sequence[Float64]) -> str:
    """Return what times are judged on: the mean if steps of any capture are uneven, else median."""
    step_times_of_captures = [*chain.from_iterable(step_times_of_sides)]
    evenness_of_captures = _known_evenness(step_times_of_captures)
    is_any_uneven = any(evenness.is_uneven for evenness in evenness_of_captures)
    return MEAN if is_any_uneven else MEDIAN


# --- judgements -----------------------------------------------------------------------------------
class Rules(Struct, frozen=True):
    """What counts as a difference."""

    # The smallest |difference| that counts, as a ratio of the baseline.
    min_effect: float = DEFAULT_MIN_EFFECT
    # Of the intervals.
    confidence: float = DEFAULT_CONFIDENCE
    # Runs that are not comparable are judged, too.
    is_forced: bool = False


def judge(
    metric: Figure,
    sides: Sequence[Sequence[Float64]],
    rules: Rules,
    *,
    statistic: str,
    step_time_ns: float | None = None,
    names: tuple[str, str] = SIDES,
) -> Judgement:
    """Judge one metric of two sides, given the values of each capture in the order of steps.

    The minimum effect is a share of the baseline. If the baseline is 0, the minimum effect of a
    time is a share of the step time, and that of a ratio is a share of 1. The minimum effect of any
    other metric is then 0, so that every difference counts.
    """
    before, after = sides
    difference = difference_of_centres(
        before, after, confidence=rules.confidence, statistic=statistic, names=names
    )
    whole_by_unit = {_TIME: step_time_ns or 0.0, _RATIO: 1.0}
    whole_instead_of_zero = whole_by_unit.get(metric.unit, 0.0)
    # What the minimum effect is a share of.
    whole = abs(difference.baseline or 0.0) or whole_instead_of_zero
    return Judgement(difference, rules.min_effect * whole, metric.better)


def overall_verdict(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return one verdict for several rows of `METRIC_ROWS`.

    The verdict with most weight counts. Metrics without a better direction have no weight. If there
    are only such metrics, the verdict is "no change" if all of them have it, else "inconclusive".
    """
    weighed_verdicts = {row["verdict"] for row in rows if row["better"] != NEITHER}
    if not weighed_verdicts:
        is_unchanged = all(row["verdict"] == NO_CHANGE for row in rows)
        return NO_CHANGE if is_unchanged else INCONCLUSIVE
    return next(verdict for verdict in _VERDICTS_BY_WEIGHT if verdict in weighed_verdicts)


# --- one outlier ----------------------------------------------------------------------------------
class Outlier(NamedTuple):
    """The step without which the step time would not be inconclusive, and its verdict then."""

    side: str
    step: int
    ns: float
    # Of its capture.
    median_ns: float
    verdict: str


class _Capture(NamedTuple):
    """The step times of one capture, and where the capture is."""

    side_index: int
    index_in_side: int
    series: Series

    @property
    def largest_relative_distance(self) -> float:
        """Largest distance of a step from the median, over the median."""
        ratios = self.series.values / self.series.centre
        deviation_ratios = np.abs(ratios - 1)
        return float(deviation_ratios.max())


def find_outlier(
    *tables: Sequence[StepTable], rules: Rules, rows: Sequence[Mapping[str, Any]]
) -> Outlier | None:
    """Return the step that alone makes the step time inconclusive; None if there is none.

    `rows` are the judged rows of `METRIC_ROWS`. Only one step is tried: of all captures, the step
    furthest from the median of its capture. It has to be beyond 3 robust standard deviations. If
    several steps were left out one after the other, some of them would decide by chance. Nothing is
    tried if a capture would have too few steps without one of its steps.
    """
    if not _is_step_time_open(rows):
        return None
    values_of_sides = [values_of_captures(side).values for side in tables]
    captures = _long_captures(values_of_sides)
    n_captures = sum(map(len, tables))
    if len(captures) < n_captures:
        return None
    capture = max(captures, key=lambda capture: capture.largest_relative_distance)
    series = capture.series
    distances_ns = np.abs(series.values - series.centre)
    furthest_index = int(distances_ns.argmax())
    # A series cuts its deviations off at 3 robust standard deviations.
    is_cut_off = distances_ns[furthest_index] > abs(series.deviations[furthest_index])
    if not is_cut_off:
        return None
    # From here on, the values are without the step.
    values_of_side = values_of_sides[capture.side_index]
    values_of_side[capture.index_in_side] = np.delete(series.values, furthest_index)
    statistic = statistic_of(*values_of_sides)
    judgement = judge(METRICS[DEFAULT_METRIC], values_of_sides, rules, statistic=statistic)
    if judgement.verdict == INCONCLUSIVE:
        return None
    table = tables[capture.side_index][capture.index_in_side]
    return Outlier(
        side=SIDES[capture.side_index],
        step=int(table.steps[furthest_index]),
        ns=float(series.values[furthest_index]),
        median_ns=series.centre,
        verdict=judgement.verdict,
    )


def _is_step_time_open(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Tell whether the step time is judged, and is inconclusive although there is an interval."""
    for row in rows:
        if row["metric"] == DEFAULT_METRIC:
            return row["verdict"] == INCONCLUSIVE and row["ci_low"] is not None
    return False


def _long_captures(sides: Sequence[Sequence[Float64]]) -> list[_Capture]:
    """Return the captures that have enough steps even if one step is left out."""
    captures = []
    for side_index, side in enumerate(sides):
        for index_in_side, values in enumerate(side):
            n_steps_without_one = values.size - 1
            if n_steps_without_one >= MIN_STEPS:
                capture = _Capture(side_index, index_in_side, Series(values))
                captures.append(capture)
    return captures


# --- rows of metrics ------------------------------------------------------------------------------
class _StepTimes(Struct, frozen=True):
    """Step times of both sides, by which all times are measured."""

    # Of each side the captures, of each capture the steps.
    values: list[list[Float64]]
    # What times are judged on: `MEAN` or `MEDIAN`.
    statistic: str
    # Median over all steps of the baseline. None if it has none.
    baseline_ns: float | None


def _step_times_of(tables: Sequence[Sequence[StepTable]]) -> _StepTimes:
    """Return the step times of both sides, ns."""
    values_of_sides = [values_of_captures(side).values for side in tables]
    baseline = values_of_sides[0]
    median_ns = None
    if baseline:
        all_steps_ns = np.concatenate(baseline)
        median_ns = float(np.median(all_steps_ns))
    return _StepTimes(values_of_sides, statistic_of(*values_of_sides), median_ns)


def metric_rows(
    *tables: Sequence[StepTable], rules: Rules, blocked: str | None, settled: Sequence[str]
) -> pa.Table:
    """Return `METRIC_ROWS`: every metric of baseline and candidate, in the order of `METRICS`.

    `blocked` says why no verdict may be given although there are values. None if one may be given.
    `settled` names the metrics for which to find what would settle the verdict. The others are
    spared this search, because it takes a while.
    """
    step_times = _step_times_of(tables)
    blocked_columns = _blocked_columns(tables, blocked)
    rows = []
    for name, metric in METRICS.items():
        values_of_sides = [values_of_captures(side, name) for side in tables]
        row = _columns_of_metric(name, metric, rules) | _numbers_of_steps(values_of_sides)
        why_lacking = _why_lacking(values_of_sides)
        if why_lacking is not None:
            rows.append(row | _columns_without_verdict(why_lacking))
            continue
        values = [side.values for side in values_of_sides]
        judgement = _judge_metric(metric, values, step_times, rules)
        row |= _columns_of_judgement(metric, judgement, values, step_times)
        if name in settled:
            row |= _columns_to_settle(judgement)
        # If no verdict may be given, the blocked columns replace the verdict and its reason.
        row |= blocked_columns
        has_no_interval = judgement.difference.low is None
        # Without an interval, the reason of the judgement is told too. But if a capture has no
        # steps, the blocked columns tell that already.
        if blocked and has_no_interval and judgement.why and not _has_whole_capture(tables):
            row["why"] = f"{judgement.why}, {blocked}"
        rows.append(row)
    return METRIC_ROWS.from_rows(rows)


def _has_whole_capture(tables: Sequence[Sequence[StepTable]]) -> bool:
    """Tell whether a side has a capture without steps."""
    all_tables = chain.from_iterable(tables)
    return any(table.run.is_capture for table in all_tables)


def _blocked_columns(tables: Sequence[Sequence[StepTable]], blocked: str | None) -> dict[str, Any]:
    """Return columns that replace those of all metrics if no verdict may be given.

    The result is empty if a verdict may be given. A capture without steps blocks every verdict,
    because its metrics have no spread. Then its side has 0 steps, and the columns about steps and
    captures that would settle a verdict are null. `blocked` is any other reason, see `metric_rows`.
    """
    columns: dict[str, Any] = {}
    for name, side in zip(SIDES, tables, strict=True):
        if any(table.run.is_capture for table in side):
            columns[f"n_{name}"] = 0
    if _has_whole_capture(tables):
        unknown = ("statistic", "settle_steps", "settle_captures", "gate_steps", "gate_captures")
        columns |= dict.fromkeys(unknown)
        columns |= _columns_without_verdict("a capture without steps has no interval")
    elif blocked is not None:
        columns |= _columns_without_verdict(blocked)
    return columns


def _columns_without_verdict(why: str) -> dict[str, Any]:
    return {"verdict": INCONCLUSIVE, "no_regression": False, "why": why}


def _columns_of_metric(name: str, metric: Figure, rules: Rules) -> dict[str, Any]:
    columns: dict[str, Any] = {"metric": name, "unit": metric.unit, "better": metric.better}
    columns["confidence"] = rules.confidence
    # 100 * 0.07 is not exactly 7.
    columns["min_effect_pct"] = round(100 * rules.min_effect, 12)
    return columns


def _numbers_of_steps(values_of_sides: Sequence[CaptureValues]) -> dict[str, Any]:
    """Return the columns with the number of steps of each side that have a metric."""
    columns = {}
    for name, side in zip(SIDES, values_of_sides, strict=True):
        columns[f"n_{name}"] = sum(map(len, side.values))
    return columns


def _why_lacking(values_of_sides: Sequence[CaptureValues]) -> str | None:
    """Return which sides do not have a metric, and why; None if both have it."""
    before, after = values_of_sides
    if before.why_lacking is not None and before.why_lacking == after.why_lacking:
        return f"both sides: {before.why_lacking}"
    reasons = []
    for name, side in zip(SIDES, values_of_sides, strict=True):
        if side.why_lacking:
            reasons.append(f"{name}: {side.why_lacking}")
    return ", ".join(reasons) or None


def _judge_metric(
    metric: Figure, values: Sequence[Sequence[Float64]], step_times: _StepTimes, rules: Rules
) -> Judgement:
    """Judge a metric. The rate of steps is judged by the step time, so their verdicts agree."""
    if metric.unit == _RATE:
        step_time = METRICS[DEFAULT_METRIC]
        return _judge_metric(step_time, step_times.values, step_times, rules)
    statistic = step_times.statistic if metric.unit == _TIME else MEDIAN
    step_time_ns = step_times.baseline_ns
    return judge(metric, values, rules, statistic=statistic, step_time_ns=step_time_ns)


def _columns_of_judgement(
    metric: Figure,
    judgement: Judgement,
    values: Sequence[Sequence[Float64]],
    step_times: _StepTimes,
) -> dict[str, Any]:
    """Return the columns of a metric's difference, and of the medians and means of both sides."""
    columns = _columns_of_difference(judgement)
    if metric.unit != _RATE:
        return columns | _columns_of_centres(values)
    # The judgement of a rate is that of the step times, so all columns are times first.
    columns_of_times = columns | _columns_of_centres(step_times.values)
    return _as_rate(columns_of_times)


def _columns_of_difference(judgement: Judgement) -> dict[str, Any]:
    """Return the columns of both values, their difference with its interval, and the verdict."""
    difference = judgement.difference
    baseline = difference.baseline
    delta = difference.delta
    columns: dict[str, Any] = {"statistic": difference.statistic, "method": difference.method}
    columns |= {"baseline": baseline, "candidate": difference.candidate, "delta": delta}
    columns |= {"ci_low": difference.low, "ci_high": difference.high}
    columns["delta_pct"] = None
    if baseline and delta is not None:
        columns["delta_pct"] = 100 * delta / abs(baseline)
    columns["verdict"] = judgement.verdict
    columns["why"] = judgement.why
    columns["min_effect"] = judgement.min_effect
    columns["no_regression"] = judgement.is_worse_excluded
    return columns


def _columns_of_centres(sides: Sequence[Sequence[Float64]]) -> dict[str, Any]:
    """Return the columns with median and mean of both sides, as means over captures."""
    columns = {}
    for name, side in zip(SIDES, sides, strict=True):
        values_of_captures_with_steps = [values for values in side if values.size]
        medians = [np.median(values) for values in values_of_captures_with_steps]
        means = [np.mean(values) for values in values_of_captures_with_steps]
        columns[f"{name}_{MEDIAN}"] = float(np.mean(medians))
        columns[f"{name}_{MEAN}"] = float(np.mean(means))
    return columns


def _columns_to_settle(judgement: Judgement) -> dict[str, Any]:
    """Return the columns of how many steps or captures would settle the verdict, and the gate."""
    needed = judgement.estimate_needed()
    needed_for_gate = judgement.estimate_needed(one_sided=True)
    return {
        "settle_steps": needed.steps,
        "settle_captures": needed.captures,
        "gate_steps": needed_for_gate.steps,
        "gate_captures": needed_for_gate.captures,
    }


def _as_rate(times: Mapping[str, Any]) -> dict[str, Any]:
    """Return columns of the step time as steps/s. All other columns stay.

    The rates of a candidate c and a baseline b differ by 1/c - 1/b = -(c - b) / bc. So a difference
    of times is negated, and divided by bc. The minimum effect has no sign, and is only divided. The
    rates and their difference are unknown if b or c is unknown or 0.
    """
    baseline_ns = times["baseline"]
    candidate_ns = times["candidate"]
    if not baseline_ns or not candidate_ns:
        unknown = ("baseline", "candidate", "delta", "delta_pct", "ci_low", "ci_high")
        return {**times, **dict.fromkeys(unknown)}
    rate_per_ns = _NS_PER_S / (baseline_ns * candidate_ns)
    # Negated, the ends of the interval change places.
    ns_by_column = {"delta": times["delta"], "ci_low": times["ci_high"], "ci_high": times["ci_low"]}
    columns = dict(times)
    for name, ns in ns_by_column.items():
        columns[name] = None if ns is None else -ns * rate_per_ns
    for side in SIDES:
        for name in (side, f"{side}_{MEDIAN}", f"{side}_{MEAN}"):
            time_ns = times[name]
            columns[name] = _NS_PER_S / time_ns if time_ns else None
    delta_ns = times["delta"]
    # In percent of the baseline's rate 1/b, (1/c - 1/b) is -(c - b) / c.
    columns["delta_pct"] = None if delta_ns is None else -100 * delta_ns / candidate_ns
    columns["min_effect"] = times["min_effect"] * rate_per_ns
    return columns
