"""Metrics of a run and of each rank, how even its steps are, and what steps cost on hosts."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby, islice, pairwise
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from nsyspipe.analysis.clock import floor_median
from nsyspipe.analysis.intervals import run_starts
from nsyspipe.model import schema
from nsyspipe.model.figures import GPU_RATES, JOB_RATES, MEANS, RATES, RATIOS
from nsyspipe.model.names import PHASES
from nsyspipe.model.table import Flags, Float64, Int64
from nsyspipe.model.typed_tables import (
    CollectivesTable,
    HostStepsTable,
    PhasesTable,
    RanksTable,
    StepsTable,
    StragglersTable,
)

_NS_PER_S = 1e9
_NO_TIMES = np.empty(0, np.int64)
_Sums = Mapping[str, float | None]
_FRACTIONS = RATIOS | GPU_RATES
_RATIO_PARTS = [column for parts in _FRACTIONS.values() for column in parts]
# Columns of steps and of collectives that are summed.
_STEP_COLUMNS = tuple(dict.fromkeys([*MEANS.values(), *_RATIO_PARTS]))
_COLLECTIVE_COLUMNS = ("transfer_ns", *dict.fromkeys(RATES.values()))
_NO_SUMS: _Sums = dict.fromkeys((*_STEP_COLUMNS, *_COLLECTIVE_COLUMNS))
# Steps are near the median, and the median is near the mean, if they differ by at most this share.
_NEAR_SHARE = 0.1
# If fewer steps than this share are near the median, the steps are uneven.
_MIN_SHARE_NEAR_MEDIAN = 0.5
# The gap between two levels of steps, as a multiple of the spread inside the levels. It may be
# smaller if the longer steps come regularly.
_MIN_GAP_IN_SPREADS = 4.0
_MIN_REGULAR_GAP_IN_SPREADS = 2.5
_MIN_STEPS_OF_LEVEL = 2
# A smaller share of a step is chance: median steps of equal processes differ by 1 or 2 %.
MUCH_RATIO = 0.05
# Loading of data takes longer than this.
_MIN_BETWEEN_NS = 10_000
# One step can dominate a mean of at least so many steps.
_MIN_STEPS_TO_DOMINATE = 3
# It does if it alone adds this share to the mean.
_MIN_DOMINATING_SHARE = 0.2


def with_ratios(
    columns: Mapping[str, pa.Array | pa.ChunkedArray],
) -> dict[str, pa.Array | pa.ChunkedArray]:
    """Add the ratios of each row. Null if the numerator is null, or if the denominator is 0."""
    ratios = {}
    for name, (above, below) in RATIOS.items():
        numerator = pc.cast(columns[above], pa.float64(), safe=False)
        denominator = pc.cast(columns[below], pa.float64(), safe=False)
        is_zero = pc.equal(denominator, 0.0)
        nonzero = pc.if_else(is_zero, None, denominator)
        ratios[name] = pc.divide(numerator, nonzero)
    return {**columns, **ratios}


def step_times(steps: StepsTable) -> Int64:
    """Return the longest window of each step over ranks, ns, in the order in which steps began."""
    needed_columns = steps.select(["step", "wall_ns", "start_ns"])
    by_step = needed_columns.group_by("step", use_threads=False)
    longest = by_step.aggregate([("wall_ns", "max"), ("start_ns", "min")])
    longest = longest.sort_by("start_ns_min")
    times: Int64 = longest["wall_ns_max"].to_numpy()
    return times


def means_of_slowest(steps: StepsTable, columns: Sequence[str]) -> dict[str, float | None]:
    """Return means of columns over all steps, with the values of the slowest rank of each step.

    The slowest rank has the longest window; of equal ranks it is the lowest. A mean is None if the
    column is null in one of its rows, or if there are no steps.
    """
    rank = steps["rank"].to_numpy()
    step = steps["step"].to_numpy()
    wall_ns = steps["wall_ns"].to_numpy()
    # By step, then the longest first, then by rank: the last key of `lexsort` sorts first.
    slowest_first = np.lexsort((rank, -wall_ns, step))
    first_of_step = run_starts(step[slowest_first])
    slowest = steps.take(slowest_first[first_of_step])
    means = {}
    for name in columns:
        mean = pc.mean(slowest.column(name), skip_nulls=False)
        means[name] = mean.as_py()
    return means


def summary(
    steps: StepsTable, collectives: CollectivesTable, *, is_capture: bool = False
) -> pa.Table:
    """Return the metrics of the run over its summary steps: `schema.SUMMARY`, one row.

    A metric is null if there are no summary steps, or if one of its parts is null. With
    `is_capture`, the rows of `steps` are captures without steps. Then there are 0 steps, and the
    metrics per step are null.
    """
    chosen = _chosen(steps)
    transferring = _transferring(collectives)
    step_sums = {name: _sum(chosen.column(name)) for name in _STEP_COLUMNS}
    collective_sums = {name: _sum(transferring[name]) for name in _COLLECTIVE_COLUMNS}
    n_steps = 0 if is_capture else pc.count_distinct(steps["step"]).as_py()
    # A window is a row: what a rank has of a step.
    n_windows = None if is_capture else chosen.num_rows
    times = _NO_TIMES if is_capture else step_times(chosen)
    total_ns = int(times.sum())
    throughput = divided(_NS_PER_S * times.size, total_ns)
    median = _median(times)
    row = {"n_steps": n_steps, "n_summary_steps": times.size, "step_time_ns": median}
    row["throughput_steps_per_s"] = throughput
    for name, (count, _) in JOB_RATES.items():
        row[name] = _rate_of_job(chosen.column(count), throughput)
    row |= _metrics_of_steps(step_sums, n_windows)
    row |= _rates(collective_sums)
    return schema.SUMMARY.from_rows([row])


def _chosen(steps: StepsTable) -> StepsTable:
    """Return the summary steps, with FLOPs as floats, because the sum may exceed 64 bits."""
    chosen = steps.filter(steps["in_summary"])
    place = chosen.column_names.index("flops")
    flops = pc.cast(chosen["flops"], pa.float64(), safe=False)
    return chosen.set_column(place, "flops", flops)


def _rate_of_job(counts: pa.ChunkedArray, steps_per_s: float | None) -> float | None:
    """Return the rate of a count that is the same in every step; None if it is not known."""
    largest = pc.max(counts, skip_nulls=False).as_py()
    if largest is None or steps_per_s is None:
        return None
    return float(largest * steps_per_s)


def telling_ranks(
    figures: pa.Table, stragglers: StragglersTable, captures: pa.Table | None, max_ranks: int
) -> list[int]:
    """Return at most `max_ranks` ranks that tell most about a run, sorted.

    If there are more ranks, about two thirds of the result are extremes: the most waited for, the
    slowest, the most exposed and the fastest. The others are evenly spaced.

    `figures` is `schema.RANK_SUMMARY`. Its step times tell the slowest. In a run without steps, the
    lengths of the `captures` do, which are rows of `schema.STEPS`. `captures` is None if the run
    has steps.
    """
    ranks: list[int] = figures["rank"].to_pylist()
    n_ranks = len(ranks)
    if n_ranks <= max_ranks:
        return ranks
    late = _by_rank(stragglers, "lateness_ns")
    exposed = _by_rank(figures, "exposed_comm_share")
    if captures is None:
        lengths = _by_rank(figures, "step_time_ns")
    else:
        lengths = _by_rank(captures, "wall_ns")
    most_waited_for = _sort_ranks(ranks, late, sign=-1)
    slowest = _sort_ranks(ranks, lengths, sign=-1)
    most_exposed = _sort_ranks(ranks, exposed, sign=-1)
    fastest = _sort_ranks(ranks, lengths, sign=1)
    by_extremity = zip(most_waited_for, slowest, most_exposed, fastest, strict=True)
    # A sixth of the result for each of the four kinds of extremes, so two thirds for all four.
    n_of_each = max_ranks // 6 + 1
    extremes = chain.from_iterable(islice(by_extremity, n_of_each))
    evenly_spaced = [ranks[number * n_ranks // max_ranks] for number in range(max_ranks)]
    # Each rank once, the most important first. All ranks follow, to fill the result.
    by_importance = dict.fromkeys(chain(extremes, evenly_spaced, ranks))
    return sorted(islice(by_importance, max_ranks))


def _by_rank(table: pa.Table, name: str) -> dict[int, float | None]:
    ranks = table["rank"].to_pylist()
    values = table[name].to_pylist()
    return dict(zip(ranks, values, strict=True))


def _sort_ranks(
    ranks: Sequence[int], values: Mapping[int, float | None], *, sign: int
) -> list[int]:
    """Return the ranks by value: the smallest first if `sign` is 1, the largest first if it is -1.

    Equal ranks are in order of number. A value that is not known counts as 0.
    """

    def key(rank: int) -> tuple[float, int]:
        value = values.get(rank) or 0
        return sign * value, rank

    return sorted(ranks, key=key)


def rank_summary(
    steps: StepsTable, collectives: CollectivesTable, ranks: RanksTable, *, is_capture: bool = False
) -> pa.Table:
    """Return the metrics of each rank over its summary steps: `schema.RANK_SUMMARY`.

    The rows are sorted by rank. Metrics are computed as in `summary`, which explains `is_capture`.
    """
    chosen = _chosen(steps)
    chosen = chosen.sort_by("rank")
    transferring = _transferring(collectives)
    step_sums = _sums_by_rank(chosen, _STEP_COLUMNS)
    collective_sums = _sums_by_rank(transferring, _COLLECTIVE_COLUMNS)
    wall_times = _wall_times_by_rank(chosen)
    rows = []
    for rank in ranks["rank"].to_pylist():
        wall_ns = wall_times.get(rank, _NO_TIMES)
        n_steps = None if is_capture else wall_ns.size
        median = _median(wall_ns) if n_steps else None
        row = {"rank": rank, "step_time_ns": median}
        row |= _metrics_of_steps(step_sums.get(rank, _NO_SUMS), n_steps)
        row |= _rates(collective_sums.get(rank, _NO_SUMS))
        rows.append(row)
    return schema.RANK_SUMMARY.from_rows(rows)


def _wall_times_by_rank(steps: StepsTable) -> dict[int, Int64]:
    """Return the windows of each rank, ns. The steps are sorted by rank."""
    ranks = steps["rank"].to_numpy()
    wall_ns = steps["wall_ns"].to_numpy()
    if not ranks.size:
        # `split` would make one part of nothing.
        return {}
    begins = run_starts(ranks)
    different_ranks = ranks[begins].tolist()
    walls_ns = np.split(wall_ns, begins[1:])
    return dict(zip(different_ranks, walls_ns, strict=True))


def _sums_by_rank(table: pa.Table, names: Sequence[str]) -> dict[int, _Sums]:
    rows = sums_by(table, ["rank"], names)
    return {row["rank"]: row for row in rows}


def _median(values: Int64) -> float | None:
    if not values.size:
        return None
    return float(np.median(values))


def phase_summary(phases: PhasesTable) -> pa.Table:
    """Return the mean times of each phase over summary steps: `schema.PHASE_SUMMARY`.

    They are sorted by phase. A mean is null if a value is.
    """
    rows = []
    for sums in sums_by(phases, ["phase"], schema.PHASE_TIMES):
        row = {"phase": sums["phase"]}
        for name in schema.PHASE_TIMES:
            row[f"{name}_per_step"] = divided(sums[name], sums["n"])
        rows.append(row)
    return schema.PHASE_SUMMARY.from_rows(rows)


def is_dominated(times: Sequence[int]) -> bool:
    """Tell whether one of three or more times dominates their mean.

    It does if its excess over the second longest time makes up more than a fifth of the mean. That
    is the same share of the sum.
    """
    if len(times) < _MIN_STEPS_TO_DOMINATE:
        return False
    *_, second_longest, longest = sorted(times)
    excess = longest - second_longest
    return excess > _MIN_DOMINATING_SHARE * sum(times)


def host_medians(phases: PhasesTable) -> dict[str, dict[int, float]]:
    """Return the median host time of each rank, ns, of some phases.

    These are the phases in which one step dominates the mean of a rank. A step that blocks the host
    once tells nothing about the other steps. `phases` are rows of `schema.PHASES` of the steps that
    count.
    """
    medians = {}
    for phase, times_by_rank in _host_times(phases).items():
        if any(map(is_dominated, times_by_rank.values())):
            medians[phase] = _medians(times_by_rank)
    return medians


def _medians(times_by_rank: Mapping[int, Sequence[int]]) -> dict[int, float]:
    medians = {}
    for rank, times in times_by_rank.items():
        medians[rank] = float(np.median(times))
    return medians


def _host_times(phases: pa.Table) -> dict[str, dict[int, list[int]]]:
    """Return the known host times of each phase by rank, ns."""
    times_by_phase: dict[str, dict[int, list[int]]] = {}
    columns = phases.select(["phase", "rank", "host_ns"])
    for row in columns.to_pylist():
        host_ns = row["host_ns"]
        if host_ns is None:
            continue
        times_by_rank = times_by_phase.setdefault(row["phase"], {})
        times = times_by_rank.setdefault(row["rank"], [])
        times.append(host_ns)
    return times_by_phase


def _metrics_of_steps(sums: _Sums, n_windows: int | None) -> dict[str, float | None]:
    """Return ratios, rates of GPUs and means per window, from sums over some windows."""
    metrics = {}
    for name, (above, below) in RATIOS.items():
        metrics[name] = divided(sums[above], sums[below])
    for name, (above, below) in GPU_RATES.items():
        per_ns = divided(sums[above], sums[below])
        metrics[name] = None if per_ns is None else _NS_PER_S * per_ns
    for name, column in MEANS.items():
        metrics[name] = divided(sums[column], n_windows)
    return metrics


def _transferring(collectives: pa.Table) -> pa.Table:
    has_transfer = pc.is_valid(collectives["transfer_ns"])
    is_chosen = pc.and_(collectives["in_summary"], has_transfer)
    columns = collectives.select(["rank", *_COLLECTIVE_COLUMNS])
    return columns.filter(is_chosen)


def _rates(sums: _Sums) -> dict[str, float | None]:
    """Return what collectives moved, per second of transfer."""
    rates = {}
    for name, column in RATES.items():
        total = sums[column]
        total_per_s = None if total is None else _NS_PER_S * total
        rates[name] = divided(total_per_s, sums["transfer_ns"])
    return rates


def sums_by(table: pa.Table, keys: Sequence[str], names: Sequence[str]) -> list[dict[str, Any]]:
    """Sum columns by keys, and count rows (``n``); sorted by keys. A sum is null if a part is."""
    strict = pc.ScalarAggregateOptions(skip_nulls=False)
    aggregations: list[Any] = [(name, "sum", strict) for name in names]
    aggregations.append(([], "count_all"))
    needed_columns = table.select([*keys, *names])
    groups = needed_columns.group_by(keys, use_threads=False)
    sums = groups.aggregate(aggregations)
    sums = sums.rename_columns([*keys, *names, "n"])
    sums = sums.sort_by([(key, "ascending") for key in keys])
    rows: list[dict[str, Any]] = sums.to_pylist()
    return rows


def _sum(column: pa.ChunkedArray) -> float | None:
    total: float | None = pc.sum(column, skip_nulls=False, min_count=1).as_py()
    return total


def divided(above: float | None, below: float | None) -> float | None:
    """Return a ratio. None if a part is None, or if the denominator is 0."""
    if above is None or not below:
        return None
    return above / below


@dataclass(frozen=True)
class Evenness:
    """How alike the steps of a run are, in the unit of the values."""

    n_steps: int
    mean: float
    median: float
    # |mean - median| > 10 % of the mean, or fewer than half of the steps within 10 % of the median.
    is_uneven: bool
    # Whether no step is within 10 % of the median. The JSON output has this name.
    is_median_nobodys: bool
    # Steps within 10 % of the median.
    n_near: int
    # Medians of shorter and longer steps, if steps are of two kinds.
    levels: tuple[float, float] | None = None
    # How many steps are longer. None without levels.
    n_long: int | None = None
    # The distance between steps of the rarer kind. None if they come irregularly.
    period: int | None = None


def evenness(values: Float64) -> Evenness | None:
    """Judge the steps of one capture, in step order; None without a step.

    Steps of two kinds, shorter and longer ones, have two levels. If the rarer kind does not come
    regularly, a wider gap is needed between the levels.
    """
    if not values.size:
        return None
    without_levels = _evenness_without_levels(values)
    is_long = levels_of(values)
    if is_long is None:
        return without_levels
    period = period_of(is_long)
    if period is None and levels_of(values, min_gap_in_spreads=_MIN_GAP_IN_SPREADS) is None:
        return without_levels
    short_median = float(np.median(values[~is_long]))
    long_median = float(np.median(values[is_long]))
    n_long = int(is_long.sum())
    levels = (short_median, long_median)
    return replace(without_levels, levels=levels, n_long=n_long, period=period)


def _evenness_without_levels(values: Float64) -> Evenness:
    """Judge by how many steps are near the median, and by how far the mean is from the median."""
    n_steps = int(values.size)
    mean = float(values.mean())
    median = float(np.median(values))
    distance = np.abs(values - median)
    is_near = distance <= _NEAR_SHARE * abs(median)
    n_near = int(is_near.sum())
    share_near = float(is_near.mean())
    are_few_near = share_near < _MIN_SHARE_NEAR_MEDIAN
    is_mean_far = abs(mean - median) > _NEAR_SHARE * abs(mean)
    is_uneven = is_mean_far or are_few_near
    return Evenness(
        n_steps=n_steps,
        mean=mean,
        median=median,
        is_uneven=is_uneven,
        is_median_nobodys=n_near == 0,
        n_near=n_near,
    )


def levels_of(
    values: Float64, min_gap_in_spreads: float = _MIN_REGULAR_GAP_IN_SPREADS
) -> Flags | None:
    """Return which steps are of the longer kind; None if there are not two kinds.

    The widest gap between sorted values divides the kinds. It must be more than
    `min_gap_in_spreads` times the spread inside the kinds, which is a standard deviation.
    """
    sorted_values = np.sort(values)
    n_values = sorted_values.size
    if n_values < 2 * _MIN_STEPS_OF_LEVEL:
        return None
    gaps = np.diff(sorted_values)
    # Below gap i are i + 1 values. Only gaps that leave each kind enough steps are possible.
    first_possible = _MIN_STEPS_OF_LEVEL - 1
    end_of_possible = n_values - _MIN_STEPS_OF_LEVEL
    widest = first_possible + int(np.argmax(gaps[first_possible:end_of_possible]))
    n_low = widest + 1
    low = sorted_values[:n_low]
    high = sorted_values[n_low:]
    # The mean square of the distances, each from the mean of its kind.
    squares_of_low = low.var() * low.size
    squares_of_high = high.var() * high.size
    spread = np.sqrt((squares_of_low + squares_of_high) / n_values)
    gap = float(high[0] - low[-1])
    is_gap_wide = gap > min_gap_in_spreads * spread
    is_long: Flags = values >= high[0]
    return is_long if is_gap_wide else None


def period_of(is_long: Flags) -> int | None:
    """Return the distance from each step of the rarer kind to the next such step.

    None if the distances differ, or if they are 1. Also None if another such step would fit in
    before the first or after the last. `is_long` has a flag per step.
    """
    n_long = int(is_long.sum())
    are_long_rarer = 2 * n_long <= is_long.size
    is_rarer = is_long if are_long_rarer else ~is_long
    places = np.flatnonzero(is_rarer)
    distances = np.unique(np.diff(places)).tolist()
    if len(distances) != 1:
        return None
    period: int = distances[0]
    fits_before_first = places[0] >= period
    fits_after_last = places[-1] + period < is_long.size
    is_interrupted = fits_before_first or fits_after_last
    return period if period > 1 and not is_interrupted else None


class HostFigures(Struct, frozen=True):
    """The steps of one process whose range was closed. Medians are floored."""

    rank: int | None
    report: str
    pid: int
    # Whether its report has no other process with steps.
    is_alone: bool
    # Steps with an end, and steps whose range was never closed.
    n_steps: int
    n_open: int
    # Of `host_ns`. None without a closed step, as all of the following.
    median_ns: int | None
    # The longest step; of equal steps the lowest number.
    slowest_step: int | None
    slowest_ns: int | None
    # Median of each phase. None if the process has no such phase.
    phase_ns: Mapping[str, int | None]
    # Median time in no phase. None if the process has no phase.
    other_ns: int | None
    # Median time from the end of a step to the start of the next. None with fewer than two steps.
    between_ns: int | None


def host_figures(host_steps: HostStepsTable) -> list[HostFigures]:
    """Reduce `schema.HOST_STEPS` to one entry per process, in the order of the table."""
    process_of = itemgetter("rank", "report", "pid")
    processes = groupby(host_steps.to_pylist(), key=process_of)
    groups = [list(rows) for _, rows in processes]
    n_processes = Counter(rows[0]["report"] for rows in groups)
    figures = []
    for rows in groups:
        report = rows[0]["report"]
        process = _of_process(rows, is_alone=n_processes[report] == 1)
        figures.append(process)
    return figures


def fastest_and_slowest(figures: Sequence[HostFigures]) -> tuple[HostFigures, HostFigures] | None:
    """Return the processes with the lowest and the highest median step.

    None unless these differ by `MUCH_RATIO`.
    """
    pair = _least_and_most(figures, lambda process: process.median_ns)
    if pair is None:
        return None
    fastest, slowest = pair
    is_much = _differ_much(fastest.median_ns, slowest.median_ns, process=fastest)
    return pair if is_much else None


def uneven_backward(figures: Sequence[HostFigures]) -> tuple[HostFigures, HostFigures] | None:
    """Return the processes with the least and the most time in backward, if these differ much.

    Ranks communicate in backward, so they wait for each other there. The rank that the others wait
    for has the shortest backward.

    None if the times differ by less than `MUCH_RATIO` of a step, or if a time is not known. Also
    None if the steps of the processes differ much.
    """
    if fastest_and_slowest(figures):
        return None
    # All other processes have no step whose end is known.
    with_steps = [process for process in figures if process.median_ns is not None]
    if any(_backward_ns(process) is None for process in with_steps):
        return None
    pair = _least_and_most(with_steps, _backward_ns)
    if pair is None:
        return None
    least, most = pair
    is_much = _differ_much(_backward_ns(least), _backward_ns(most), process=most)
    return pair if is_much else None


def _backward_ns(process: HostFigures) -> int | None:
    return process.phase_ns["backward"]


def _least_and_most(
    figures: Sequence[HostFigures], value_of: Callable[[HostFigures], int | None]
) -> tuple[HostFigures, HostFigures] | None:
    """Return the processes with the least and the most of a value; of equal processes the first."""
    known = []
    for process in figures:
        value = value_of(process)
        if value is not None:
            known.append((value, process))
    if not known:
        return None
    _, least = min(known, key=itemgetter(0))
    _, most = max(known, key=itemgetter(0))
    return least, most


def _differ_much(least_ns: int | None, most_ns: int | None, *, process: HostFigures) -> bool:
    """Tell whether two times differ by `MUCH_RATIO` of the median step of a process."""
    if least_ns is None or most_ns is None:
        return False
    difference_ns = most_ns - least_ns
    min_difference_ns = MUCH_RATIO * (process.median_ns or 0)
    return difference_ns > 0 and difference_ns >= min_difference_ns


def longest_between(figures: Sequence[HostFigures]) -> HostFigures | None:
    """Return the process with most time between its steps; of equal processes the first.

    None if that time is less than `MUCH_RATIO` of a step, or less than 10 us, or not known.
    """
    with_steps = [process for process in figures if process.median_ns is not None]
    pair = _least_and_most(with_steps, lambda process: process.between_ns)
    if pair is None:
        return None
    _, longest = pair
    # The time between steps of this process is known.
    is_long = (longest.between_ns or 0) >= _MIN_BETWEEN_NS
    is_much = _differ_much(0, longest.between_ns, process=longest)
    return longest if is_long and is_much else None


def _of_process(rows: Sequence[Mapping[str, Any]], *, is_alone: bool) -> HostFigures:
    """Return the figures of one process; `rows` are its steps, in order.

    Only closed steps have a length. The range of an open step has no end in the capture.
    """
    first_row = rows[0]
    closed = [row for row in rows if row["is_complete"]]
    n_steps = len(closed)
    n_open = len(rows) - n_steps
    median_ns = _median_of(closed, "host_ns")
    slowest: Mapping[str, Any] = max(closed, key=_length_then_lowest_number, default={})
    slowest_step = slowest.get("step")
    slowest_ns = slowest.get("host_ns")
    phase_ns = {phase: _median_of(closed, f"{phase}_ns") for phase in PHASES}
    times_in_no_phase = [_time_in_no_phase(row) for row in closed]
    other_ns = _floored_median(times_in_no_phase)
    between_ns = _floored_median(_times_between(rows))
    return HostFigures(
        rank=first_row["rank"],
        report=first_row["report"],
        pid=first_row["pid"],
        is_alone=is_alone,
        n_steps=n_steps,
        n_open=n_open,
        median_ns=median_ns,
        slowest_step=slowest_step,
        slowest_ns=slowest_ns,
        phase_ns=phase_ns,
        other_ns=other_ns,
        between_ns=between_ns,
    )


def _length_then_lowest_number(step: Mapping[str, Any]) -> tuple[int, int]:
    """Return a key that is largest for the longest step; of equal steps for the lowest number."""
    return step["host_ns"], -step["step"]


def _median_of(steps: Sequence[Mapping[str, Any]], name: str) -> int | None:
    values = [step[name] for step in steps]
    return _floored_median(values)


def _times_between(steps: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return the time from the end of each closed step to the start of the next step, ns."""
    between = []
    for step, following in pairwise(steps):
        if step["is_complete"]:
            time_ns = following["host_start_ns"] - step["host_end_ns"]
            between.append(time_ns)
    return between


def _time_in_no_phase(step: Mapping[str, Any]) -> int | None:
    """Return the host time of a step that is in no phase, ns; None if it has no phase."""
    times = [step[f"{phase}_ns"] for phase in PHASES]
    known = [time_ns for time_ns in times if time_ns is not None]
    if not known:
        return None
    in_no_phase_ns: int = step["host_ns"] - sum(known)
    return in_no_phase_ns


def _floored_median(values: Sequence[int | None]) -> int | None:
    """Return the median, the mean of two middle values floored.

    None if a value is None, or without values.
    """
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return None
    known.sort()
    return int(floor_median(np.array(known)))
