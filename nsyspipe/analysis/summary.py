"""Metrics of a run and of each rank, how even its steps are, and what steps cost on hosts."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby, pairwise
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from nsyspipe.analysis.clock import floor_median
from nsyspipe.analysis.intervals import run_starts
from nsyspipe.model import schema
from nsyspipe.model.figures import MEANS, RATES, RATIOS
from nsyspipe.model.names import PHASES
from nsyspipe.model.table import Flags, Float64, Int64

_NS_PER_S = 1e9
_Sums = Mapping[str, float | None]
_RATIO_PARTS = [column for parts in RATIOS.values() for column in parts]
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
        nonzero = pc.if_else(pc.equal(denominator, 0.0), None, denominator)
        ratios[name] = pc.divide(numerator, nonzero)
    return {**columns, **ratios}


def step_times(steps: pa.Table) -> Int64:
    """Return the longest window of each step over ranks, ns, in the order in which steps began."""
    by_step = steps.group_by("step", use_threads=False)
    longest = by_step.aggregate([("wall_ns", "max"), ("start_ns", "min")])
    times: Int64 = longest.sort_by("start_ns_min")["wall_ns_max"].to_numpy()
    return times


def means_of_slowest(steps: pa.Table, columns: Sequence[str]) -> dict[str, float | None]:
    """Return means of columns over the slowest rank of each step.

    That is the rank with the longest window; of equal ranks the lowest. A mean is None if the
    column is null in one of those rows, or if there are no steps.
    """
    rank = steps["rank"].to_numpy()
    step = steps["step"].to_numpy()
    wall_ns = steps["wall_ns"].to_numpy()
    order = np.lexsort((rank, -wall_ns, step))
    slowest = steps.take(pa.array(order[run_starts(step[order])]))
    return {name: pc.mean(slowest[name], skip_nulls=False).as_py() for name in columns}


def summary(steps: pa.Table, collectives: pa.Table, *, is_capture: bool = False) -> pa.Table:
    """Return the metrics of the run over its summary steps: `schema.SUMMARY`, one row.

    A metric is null if there are no summary steps, or if one of its parts is null. A capture
    without steps (`is_capture`) has 0 steps, and its metrics per step are null.
    """
    chosen = steps.filter(steps["in_summary"])
    transferring = _transferring(collectives)
    times = step_times(chosen.slice(0, 0 if is_capture else None))
    total_ns = int(times.sum())
    step_sums = {name: _sum(chosen[name]) for name in _STEP_COLUMNS}
    collective_sums = {name: _sum(transferring[name]) for name in _COLLECTIVE_COLUMNS}
    row = {
        "n_steps": 0 if is_capture else pc.count_distinct(steps["step"]).as_py(),
        "n_summary_steps": times.size,
        "step_time_ns": _median(times),
        "throughput_steps_per_s": divided(_NS_PER_S * times.size, total_ns),
        **_metrics_of_steps(step_sums, None if is_capture else chosen.num_rows),
        **_rates(collective_sums),
    }
    return schema.SUMMARY.from_rows([row])


def telling_ranks(
    figures: pa.Table, stragglers: pa.Table, whole: pa.Table | None, most: int
) -> list[int]:
    """Return at most so many ranks that tell most about a run, sorted: all if they are few.

    Otherwise these are ranks with extremes and some between: the most waited for, the slowest, the
    most exposed and the fastest. `figures` is `schema.RANK_SUMMARY`. In a capture without steps,
    `whole` has the rows of `schema.STEPS` that tell the slowest.
    """
    ranks: list[int] = figures["rank"].to_pylist()
    if len(ranks) <= most:
        return ranks
    late = _by_rank(stragglers, "lateness_ns")
    exposed = _by_rank(figures, "exposed_comm_share")
    lengths = _by_rank(figures, "step_time_ns") if whole is None else _by_rank(whole, "wall_ns")
    orders = [
        _sort_ranks(ranks, late, sign=-1),
        _sort_ranks(ranks, lengths, sign=-1),
        _sort_ranks(ranks, exposed, sign=-1),
        _sort_ranks(ranks, lengths, sign=1),
    ]
    # About two thirds of the ranks are extremes.
    n_extremes = most // 6 + 1
    extremes = chain.from_iterable(zip(*(order[:n_extremes] for order in orders), strict=True))
    evenly_spaced = [ranks[number * len(ranks) // most] for number in range(most)]
    return sorted(list(dict.fromkeys(chain(extremes, evenly_spaced, ranks)))[:most])


def _by_rank(table: pa.Table, name: str) -> dict[int, float | None]:
    return dict(zip(table["rank"].to_pylist(), table[name].to_pylist(), strict=True))


def _sort_ranks(
    ranks: Sequence[int], values: Mapping[int, float | None], *, sign: int
) -> list[int]:
    return sorted(ranks, key=lambda rank: (sign * (values.get(rank) or 0), rank))


def rank_summary(
    steps: pa.Table, collectives: pa.Table, ranks: pa.Table, *, is_capture: bool = False
) -> pa.Table:
    """Return the metrics of each rank over its summary steps: `schema.RANK_SUMMARY`.

    They are sorted by rank, and computed as in `summary`.
    """
    chosen = steps.filter(steps["in_summary"]).sort_by("rank")
    step_sums = _sums_by_rank(chosen, _STEP_COLUMNS)
    collective_sums = _sums_by_rank(_transferring(collectives), _COLLECTIVE_COLUMNS)
    begins = run_starts(chosen["rank"].to_numpy())
    numbers = chosen["rank"].to_numpy()[begins].tolist()
    walls_ns = np.split(chosen["wall_ns"].to_numpy(), begins[1:])
    walls_by_rank = dict(zip(numbers, walls_ns, strict=False))
    rows = []
    for rank in ranks["rank"].to_pylist():
        wall_ns = walls_by_rank.get(rank, np.empty(0, np.int64))
        n_steps = None if is_capture else wall_ns.size
        row = {"rank": rank, "step_time_ns": _median(wall_ns) if n_steps else None}
        row |= _metrics_of_steps(step_sums.get(rank, _NO_SUMS), n_steps)
        row |= _rates(collective_sums.get(rank, _NO_SUMS))
        rows.append(row)
    return schema.RANK_SUMMARY.from_rows(rows)


def _sums_by_rank(table: pa.Table, names: Sequence[str]) -> dict[int, _Sums]:
    return {row["rank"]: row for row in sums_by(table, ["rank"], names)}


def _median(values: Int64) -> float | None:
    return float(np.median(values)) if values.size else None


def phase_summary(phases: pa.Table) -> pa.Table:
    """Return the mean times of each phase over summary steps: `schema.PHASE_SUMMARY`.

    They are sorted by phase. A mean is null if a value is.
    """
    rows = []
    for sums in sums_by(phases, ["phase"], schema.PHASE_TIMES):
        means = {f"{name}_per_step": divided(sums[name], sums["n"]) for name in schema.PHASE_TIMES}
        rows.append({"phase": sums["phase"], **means})
    return schema.PHASE_SUMMARY.from_rows(rows)


def is_dominated(times: Sequence[int]) -> bool:
    """Tell whether one of three or more times makes a fifth of their mean by itself.

    What counts is how much longer it is than the second longest.
    """
    if len(times) < _MIN_STEPS_TO_DOMINATE:
        return False
    *_, second, longest = sorted(times)
    return longest - second > _MIN_DOMINATING_SHARE * sum(times)


def host_medians(phases: pa.Table) -> dict[str, dict[int, float]]:
    """Return the median host time of each rank in phases whose mean one step dominates, ns.

    A step that blocks the host once tells nothing about the other steps. `phases` are rows of
    `schema.PHASES` of the steps that count.
    """
    times_by_phase: dict[str, dict[int, list[int]]] = {}
    for row in phases.select(["phase", "rank", "host_ns"]).to_pylist():
        if row["host_ns"] is not None:
            times_by_rank = times_by_phase.setdefault(row["phase"], {})
            times_by_rank.setdefault(row["rank"], []).append(row["host_ns"])
    medians = {}
    for phase, times_by_rank in times_by_phase.items():
        if any(is_dominated(times) for times in times_by_rank.values()):
            medians[phase] = {
                rank: float(np.median(times)) for rank, times in times_by_rank.items()
            }
    return medians


def _metrics_of_steps(sums: _Sums, n_rows: int | None) -> dict[str, float | None]:
    ratios = {name: divided(sums[above], sums[below]) for name, (above, below) in RATIOS.items()}
    means = {name: divided(sums[column], n_rows) for name, column in MEANS.items()}
    return ratios | means


def _transferring(collectives: pa.Table) -> pa.Table:
    chosen = pc.and_(collectives["in_summary"], pc.is_valid(collectives["transfer_ns"]))
    return collectives.select(["rank", *_COLLECTIVE_COLUMNS]).filter(chosen)


def _rates(sums: _Sums) -> dict[str, float | None]:
    rates = {}
    for name, column in RATES.items():
        total = sums[column]
        total_per_s = None if total is None else _NS_PER_S * total
        rates[name] = divided(total_per_s, sums["transfer_ns"])
    return rates


def sums_by(table: pa.Table, keys: Sequence[str], names: Sequence[str]) -> list[dict[str, Any]]:
    """Sum columns by keys, and count rows (``n``); sorted by keys. A sum is null if a part is."""
    strict = pc.ScalarAggregateOptions(skip_nulls=False)
    columns: list[Any] = [*((name, "sum", strict) for name in names), ([], "count_all")]
    sums = table.group_by(keys, use_threads=False).aggregate(columns)
    sums = sums.rename_columns([*keys, *names, "n"])
    rows: list[dict[str, Any]] = sums.sort_by([(key, "ascending") for key in keys]).to_pylist()
    return rows


def _sum(column: pa.ChunkedArray) -> float | None:
    total: float | None = pc.sum(column, skip_nulls=False, min_count=1).as_py()
    return total


def divided(above: float | None, below: float | None) -> float | None:
    """Return a ratio. None if a part is None, or if the denominator is 0."""
    return above / below if above is not None and below else None


@dataclass(frozen=True)
class Evenness:
    """How alike the steps of a run are, in the unit of the values."""

    n_steps: int
    mean: float
    median: float
    # |mean - median| > 10 % of the mean, or fewer than half of the steps within 10 % of the median.
    is_uneven: bool
    # Whether no step is within 10 % of the median.
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
    """Judge the steps of one capture, in step order; None without a step."""
    if not values.size:
        return None
    mean = float(values.mean())
    median = float(np.median(values))
    is_near = np.abs(values - median) <= _NEAR_SHARE * abs(median)
    is_mean_far = abs(mean - median) > _NEAR_SHARE * abs(mean)
    even = Evenness(
        n_steps=int(values.size),
        mean=mean,
        median=median,
        is_uneven=is_mean_far or float(is_near.mean()) < _MIN_SHARE_NEAR_MEDIAN,
        is_median_nobodys=not bool(is_near.any()),
        n_near=int(is_near.sum()),
    )
    is_long = levels_of(values)
    if is_long is None:
        return even
    period = period_of(is_long)
    if period is None and levels_of(values, _MIN_GAP_IN_SPREADS) is None:
        return even
    levels = float(np.median(values[~is_long])), float(np.median(values[is_long]))
    return replace(even, levels=levels, n_long=int(is_long.sum()), period=period)


def levels_of(values: Float64, times: float = _MIN_REGULAR_GAP_IN_SPREADS) -> Flags | None:
    """Return which steps are of the longer kind; None if there are not two kinds.

    The gap between the kinds must exceed the spread inside them so many times.
    """
    ordered = np.sort(values)
    if ordered.size < 2 * _MIN_STEPS_OF_LEVEL:
        return None
    gaps = np.diff(ordered)[_MIN_STEPS_OF_LEVEL - 1 : ordered.size - _MIN_STEPS_OF_LEVEL]
    n_low = int(np.argmax(gaps)) + _MIN_STEPS_OF_LEVEL
    low = ordered[:n_low]
    high = ordered[n_low:]
    spread = np.sqrt((low.var() * low.size + high.var() * high.size) / ordered.size)
    is_long: Flags = values >= high[0]
    return is_long if float(high[0] - low[-1]) > times * spread else None


def period_of(is_long: Flags) -> int | None:
    """Return the distance of steps of the rarer kind, if the whole capture has the same."""
    are_long_rarer = 2 * int(is_long.sum()) <= is_long.size
    places = np.flatnonzero(is_long if are_long_rarer else ~is_long)
    distances = np.unique(np.diff(places)).tolist()
    if len(distances) != 1:
        return None
    period: int = distances[0]
    is_from_begin = places[0] < period
    is_to_end = places[-1] + period >= is_long.size
    return period if period > 1 and is_from_begin and is_to_end else None


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


def host_figures(host_steps: pa.Table) -> list[HostFigures]:
    """Reduce `schema.HOST_STEPS` to one entry per process, in the order of the table."""
    processes = groupby(host_steps.to_pylist(), key=itemgetter("rank", "report", "pid"))
    groups = [list(rows) for _, rows in processes]
    n_processes = Counter(rows[0]["report"] for rows in groups)
    return [_of_process(rows, is_alone=n_processes[rows[0]["report"]] == 1) for rows in groups]


def fastest_and_slowest(figures: Sequence[HostFigures]) -> tuple[HostFigures, HostFigures] | None:
    """Return the processes with the lowest and the highest median step.

    None unless these differ by `MUCH_RATIO`.
    """
    pair = _least_and_most(figures, lambda process: process.median_ns)
    return pair if pair and _differ_much(pair[0].median_ns, pair[1].median_ns, pair[0]) else None


def uneven_backward(figures: Sequence[HostFigures]) -> tuple[HostFigures, HostFigures] | None:
    """Return the processes with the least and the most backward, if their steps are equally long.

    None unless these differ by `MUCH_RATIO` of a step. Ranks communicate in backward, so they wait
    for each other there. The rank that the others wait for has the shortest backward.
    """
    closed = [process for process in figures if process.median_ns is not None]
    if fastest_and_slowest(figures):
        return None
    if any(process.phase_ns["backward"] is None for process in closed):
        return None
    pair = _least_and_most(closed, lambda process: process.phase_ns["backward"])
    if pair is None:
        return None
    least, most = pair
    is_much = _differ_much(least.phase_ns["backward"], most.phase_ns["backward"], most)
    return pair if is_much else None


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


def _differ_much(least_ns: int | None, most_ns: int | None, process: HostFigures) -> bool:
    """Tell whether two times differ by `MUCH_RATIO` of the median step of a process."""
    if least_ns is None or most_ns is None:
        return False
    is_much = most_ns - least_ns >= MUCH_RATIO * (process.median_ns or 0)
    return most_ns > least_ns and is_much


def longest_between(figures: Sequence[HostFigures]) -> HostFigures | None:
    """Return the process with most time between its steps; of equal processes the first.

    None if that time is less than `MUCH_RATIO` of a step, or less than 10 us.
    """
    known = [
        process
        for process in figures
        if process.between_ns is not None and process.median_ns is not None
    ]
    longest = max(known, key=lambda process: process.between_ns or 0, default=None)
    if longest is None:
        return None
    min_between_ns = max(MUCH_RATIO * (longest.median_ns or 0), _MIN_BETWEEN_NS)
    return longest if (longest.between_ns or 0) >= min_between_ns else None


def _of_process(rows: Sequence[Mapping[str, Any]], *, is_alone: bool) -> HostFigures:
    closed = [row for row in rows if row["is_complete"]]
    slowest = max(closed, key=lambda row: (row["host_ns"], -row["step"]), default=None)
    between = [
        following["host_start_ns"] - row["host_end_ns"]
        for row, following in pairwise(rows)
        if row["is_complete"]
    ]
    phase_ns = {}
    for phase in PHASES:
        phase_ns[phase] = _floored_median([row[f"{phase}_ns"] for row in closed])
    return HostFigures(
        rank=rows[0]["rank"],
        report=rows[0]["report"],
        pid=rows[0]["pid"],
        is_alone=is_alone,
        n_steps=len(closed),
        n_open=len(rows) - len(closed),
        median_ns=_floored_median([row["host_ns"] for row in closed]),
        slowest_step=slowest["step"] if slowest else None,
        slowest_ns=slowest["host_ns"] if slowest else None,
        phase_ns=phase_ns,
        other_ns=_floored_median([_time_in_no_phase(row) for row in closed]),
        between_ns=_floored_median(between),
    )


def _time_in_no_phase(step: Mapping[str, Any]) -> int | None:
    """Return the host time of a step that is in no phase, ns; None if it has no phase."""
    times = [step[f"{phase}_ns"] for phase in PHASES]
    known = [time_ns for time_ns in times if time_ns is not None]
    return step["host_ns"] - sum(known) if known else None


def _floored_median(values: Sequence[int | None]) -> int | None:
    """Return the median; None if a value is None, or without values."""
    known = sorted(value for value in values if value is not None)
    if not known or len(known) < len(values):
        return None
    return int(floor_median(np.array(known)))
