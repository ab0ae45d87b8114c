"""A run's figures and each rank's, whether one number can stand for its steps, and what steps cost on their hosts."""

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
_SUMMED = tuple(
    dict.fromkeys([*MEANS.values(), *(name for pair in RATIOS.values() for name in pair)])
)
_TRANSFERRED = ("transfer_ns", *dict.fromkeys(RATES.values()))
_NO_SUMS: _Sums = dict.fromkeys((*_SUMMED, *_TRANSFERRED))
_NEAR = 0.1
_HALF = 0.5
# between two levels, times the spread within; fewer where they come regularly
_GAP = 4.0
_REGULAR_GAP = 2.5
_LEAST_OF_A_LEVEL = 2
MUCH_RATIO = (
    0.05  # A smaller part of a step is chance: median steps of equal processes differ by 1 or 2 %
)
_LEAST_BETWEEN_NS = 10_000  # less is no loading
# One step dominates a mean of at least so many if it alone adds such a share to it.
_LEAST_TO_DOMINATE = 3
_DOMINATING_SHARE = 0.2


def with_ratios(
    columns: Mapping[str, pa.Array | pa.ChunkedArray],
) -> dict[str, pa.Array | pa.ChunkedArray]:
    """Add each row's ratios; null where the numerator is, or where the denominator is 0."""
    ratios = {}
    for name, (above, below) in RATIOS.items():
        denominator = pc.cast(columns[below], pa.float64(), safe=False)
        nonzero = pc.if_else(pc.equal(denominator, 0.0), None, denominator)
        ratios[name] = pc.divide(pc.cast(columns[above], pa.float64(), safe=False), nonzero)
    return {**columns, **ratios}


def step_times(steps: pa.Table) -> Int64:
    """Return each step's largest window over ranks, ns, in the order in which the steps began."""
    longest = steps.group_by("step", use_threads=False).aggregate(
        [("wall_ns", "max"), ("start_ns", "min")]
    )
    times: Int64 = longest.sort_by("start_ns_min")["wall_ns_max"].to_numpy()
    return times


def means_of_slowest(steps: pa.Table, columns: Sequence[str]) -> dict[str, float | None]:
    """Return means over steps of columns of each step's slowest rank: the one with the longest window, of equal ones the lowest.

    None where the column is null in one of those rows, or without steps.
    """
    rank, step, wall = (steps[name].to_numpy() for name in ("rank", "step", "wall_ns"))
    order = np.lexsort((rank, -wall, step))
    slowest = steps.take(pa.array(order[run_starts(step[order])]))
    return {name: pc.mean(slowest[name], skip_nulls=False).as_py() for name in columns}


def summary(steps: pa.Table, collectives: pa.Table, *, is_capture: bool = False) -> pa.Table:
    """Return the run's figures over its summary steps: `schema.SUMMARY`, one row.

    A figure is null without summary steps, or where one of its parts is null. Of captures without
    steps (`is_capture`) there are 0 steps, and what is of a step is null.
    """
    chosen = steps.filter(steps["in_summary"])
    sent = _transferring(collectives)
    per_step = step_times(chosen.slice(0, 0 if is_capture else None))
    row = {
        "n_steps": 0 if is_capture else pc.count_distinct(steps["step"]).as_py(),
        "n_summary_steps": per_step.size,
        "step_time_ns": float(np.median(per_step)) if per_step.size else None,
        "throughput_steps_per_s": _NS_PER_S * per_step.size / total
        if (total := int(per_step.sum()))
        else None,
        **_figures(
            {name: _sum(chosen[name]) for name in _SUMMED}, None if is_capture else chosen.num_rows
        ),
        **_rates({name: _sum(sent[name]) for name in _TRANSFERRED}),
    }
    return schema.SUMMARY.from_rows([row])


def telling_ranks(
    figures: pa.Table, stragglers: pa.Table, whole: pa.Table | None, most: int
) -> list[int]:
    """Return the ranks that tell most about a run, sorted: all if they are few, else those with the extremes, and some between.

    The most waited for, the slowest (by `whole`, rows of `schema.STEPS`, of a capture without
    steps), the most exposed, the fastest. `figures` is `schema.RANK_SUMMARY`.
    """
    ranks = figures["rank"].to_pylist()
    if len(ranks) <= most:
        return ranks  # type: ignore[no-any-return]
    length = (figures, "step_time_ns") if whole is None else (whole, "wall_ns")
    lengths, late, exposed = (
        dict(zip(table["rank"].to_pylist(), table[name].to_pylist(), strict=True))
        for table, name in (length, (stragglers, "lateness_ns"), (figures, "exposed_comm_share"))
    )
    keys = ((late, -1), (lengths, -1), (exposed, -1), (lengths, 1))
    orders = [
        sorted(ranks, key=lambda rank: (sign * (of.get(rank) or 0), rank)) for of, sign in keys
    ]
    extremes = chain.from_iterable(zip(*(order[: most // 6 + 1] for order in orders), strict=True))
    evenly = [ranks[at * len(ranks) // most] for at in range(most)]
    return sorted(list(dict.fromkeys(chain(extremes, evenly, ranks)))[:most])


def rank_summary(
    steps: pa.Table, collectives: pa.Table, ranks: pa.Table, *, is_capture: bool = False
) -> pa.Table:
    """Return each rank's figures over its summary steps, as `summary`: `schema.RANK_SUMMARY`, sorted by rank."""
    chosen = steps.filter(steps["in_summary"]).sort_by("rank")
    tables = (chosen, _SUMMED), (_transferring(collectives), _TRANSFERRED)
    sums, of_collectives = (
        {row["rank"]: row for row in sums_by(table, ["rank"], names)} for table, names in tables
    )
    begins = run_starts(chosen["rank"].to_numpy())
    numbers = chosen["rank"].to_numpy()[begins].tolist()
    walls = np.split(chosen["wall_ns"].to_numpy(), begins[1:])
    wall_of = dict(zip(numbers, walls, strict=False))
    rows = []
    for rank in ranks["rank"].to_pylist():
        wall = wall_of.get(rank, np.empty(0, np.int64))
        n_steps = None if is_capture else wall.size
        step_time = float(np.median(wall)) if n_steps else None
        figures = _figures(sums.get(rank, _NO_SUMS), n_steps) | _rates(
            of_collectives.get(rank, _NO_SUMS)
        )
        rows.append({"rank": rank, "step_time_ns": step_time, **figures})
    return schema.RANK_SUMMARY.from_rows(rows)


def phase_summary(phases: pa.Table) -> pa.Table:
    """Return the mean times of each phase, of summary steps: `schema.PHASE_SUMMARY`, sorted by phase; null where any is."""
    rows = [
        {"phase": row["phase"]}
        | {f"{name}_per_step": divided(row[name], row["n"]) for name in schema.PHASE_TIMES}
        for row in sums_by(phases, ["phase"], schema.PHASE_TIMES)
    ]
    return schema.PHASE_SUMMARY.from_rows(rows)


def is_dominated(times: Sequence[int]) -> bool:
    """Tell whether one of three or more times alone makes a fifth of their mean, beyond what the second longest makes."""
    if len(times) < _LEAST_TO_DOMINATE:
        return False
    *_, second, longest = sorted(times)
    return longest - second > _DOMINATING_SHARE * sum(times)


def host_medians(phases: pa.Table) -> dict[str, dict[int, float]]:
    """Return, of the phases in which one step dominates a rank's mean, the median host time of each rank, ns.

    `phases` are rows of `schema.PHASES` of the steps that count. One block of the host says nothing
    of the other steps.
    """
    times: dict[str, dict[int, list[int]]] = {}
    for row in phases.select(["phase", "rank", "host_ns"]).to_pylist():
        if row["host_ns"] is not None:
            times.setdefault(row["phase"], {}).setdefault(row["rank"], []).append(row["host_ns"])
    return {
        phase: {rank: float(np.median(own)) for rank, own in of_ranks.items()}
        for phase, of_ranks in times.items()
        if any(is_dominated(own) for own in of_ranks.values())
    }


def _figures(sums: _Sums, n_rows: int | None) -> dict[str, float | None]:
    return {
        **{name: divided(sums[above], sums[below]) for name, (above, below) in RATIOS.items()},
        **{name: divided(sums[column], n_rows) for name, column in MEANS.items()},
    }


def _transferring(collectives: pa.Table) -> pa.Table:
    chosen = pc.and_(collectives["in_summary"], pc.is_valid(collectives["transfer_ns"]))
    return collectives.select(["rank", *_TRANSFERRED]).filter(chosen)


def _rates(sums: _Sums) -> dict[str, float | None]:
    totals = {
        name: None if (sent := sums[of]) is None else _NS_PER_S * sent for name, of in RATES.items()
    }
    return {name: divided(total, sums["transfer_ns"]) for name, total in totals.items()}


def sums_by(table: pa.Table, keys: Sequence[str], names: Sequence[str]) -> list[dict[str, Any]]:
    """Sum columns by keys, null where a part is, and count rows (``n``); sorted by keys."""
    strict = pc.ScalarAggregateOptions(skip_nulls=False)
    columns: list[Any] = [*((name, "sum", strict) for name in names), ([], "count_all")]
    sums = (
        table.group_by(keys, use_threads=False)
        .aggregate(columns)
        .rename_columns([*keys, *names, "n"])
    )
    return sums.sort_by([(key, "ascending") for key in keys]).to_pylist()  # type: ignore[no-any-return]


def _sum(column: pa.ChunkedArray) -> float | None:
    return pc.sum(column, skip_nulls=False, min_count=1).as_py()  # type: ignore[no-any-return]


def divided(above: float | None, below: float | None) -> float | None:
    """Return a ratio; None where a part is, or without a denominator."""
    return above / below if above is not None and below else None


@dataclass(frozen=True)
class Evenness:
    """How alike a run's steps are, in the unit of the values."""

    n_steps: int
    mean: float
    median: float
    # |mean - median| > 10 % of the mean, or fewer than half of the steps within 10 % of the median
    is_uneven: bool
    is_median_nobodys: bool  # whether no step is within 10 % of the median
    n_near: int  # steps within 10 % of the median
    levels: tuple[float, float] | None = (
        None  # medians of shorter and longer steps, where they are of two kinds
    )
    n_long: int | None = None  # how many are longer; None without levels
    period: int | None = (
        None  # every so many steps comes one of the rarer kind; None where they come irregularly
    )


def evenness(values: Float64) -> Evenness | None:
    """Judge the steps of one capture, in step order; None without a step."""
    if not values.size:
        return None
    mean = float(values.mean())
    median = float(np.median(values))
    near = np.abs(values - median) <= _NEAR * abs(median)
    is_uneven = abs(mean - median) > _NEAR * abs(mean) or float(near.mean()) < _HALF
    even = Evenness(
        int(values.size), mean, median, is_uneven, not bool(near.any()), int(near.sum())
    )
    is_long = levels_of(values)
    if is_long is None or (
        (period := period_of(is_long)) is None and levels_of(values, _GAP) is None
    ):
        return even
    levels = float(np.median(values[~is_long])), float(np.median(values[is_long]))
    return replace(even, levels=levels, n_long=int(is_long.sum()), period=period)


def levels_of(values: Float64, times: float = _REGULAR_GAP) -> Flags | None:
    """Return which steps are of the longer kind; None where there are not two."""
    ordered = np.sort(values)
    if ordered.size < 2 * _LEAST_OF_A_LEVEL:
        return None
    apart = np.diff(ordered)[_LEAST_OF_A_LEVEL - 1 : ordered.size - _LEAST_OF_A_LEVEL]
    at = int(np.argmax(apart)) + _LEAST_OF_A_LEVEL
    low = ordered[:at]
    high = ordered[at:]
    spread = np.sqrt((low.var() * low.size + high.var() * high.size) / ordered.size)
    is_long: Flags = values >= high[0]
    return is_long if float(high[0] - low[-1]) > times * spread else None


def period_of(is_long: Flags) -> int | None:
    """Return the distance of the steps of the rarer kind if it is always the same, from end to end."""
    at = np.flatnonzero(is_long if 2 * int(is_long.sum()) <= is_long.size else ~is_long)
    period, *others = np.unique(np.diff(at)).tolist() or [0]
    is_whole = period > 1 and not others and at[0] < period and at[-1] + period >= is_long.size
    return period if is_whole else None


class HostFigures(Struct, frozen=True):
    """The steps of one process, over those whose range was closed."""

    rank: int | None
    report: str
    pid: int
    is_alone: bool  # whether its report holds no other process with steps
    n_steps: int  # with an end
    n_open: int  # those whose range was never closed
    median_ns: (
        int | None
    )  # of `host_ns`, floored; None without a closed step, as all of the following
    slowest_step: int | None  # the longest (tie: the lowest number)
    slowest_ns: int | None
    phase_ns: Mapping[str, int | None]  # median by phase; None where the process has none of it
    other_ns: (
        int | None
    )  # median of what is in no phase; None where the process has no phase at all
    between_ns: (
        int | None
    )  # median from the end of a step to the start of the next; None with fewer than two


def host_figures(host_steps: pa.Table) -> list[HostFigures]:
    """Reduce `schema.HOST_STEPS` to one entry per process, in the order of the table."""
    groups = [
        list(own)
        for _, own in groupby(host_steps.to_pylist(), key=itemgetter("rank", "report", "pid"))
    ]
    per_report = Counter(group[0]["report"] for group in groups)
    return [_of_process(group, is_alone=per_report[group[0]["report"]] == 1) for group in groups]


def fastest_and_slowest(figures: Sequence[HostFigures]) -> tuple[HostFigures, HostFigures] | None:
    """Return the processes with the lowest and the highest median; None unless these differ by `MUCH_RATIO`."""
    return _apart(figures, lambda one: one.median_ns)


def uneven_backward(figures: Sequence[HostFigures]) -> tuple[HostFigures, HostFigures] | None:
    """Return the processes with the least and the most backward, `MUCH_RATIO` of a step apart, of steps of equal length.

    Ranks wait for each other in backward, where they communicate: who is waited for has the
    shortest.
    """
    closed = [figure for figure in figures if figure.median_ns is not None]
    if fastest_and_slowest(figures) or any(one.phase_ns["backward"] is None for one in closed):
        return None
    return _apart(closed, lambda one: one.phase_ns["backward"], of_most=True)


def _apart(
    figures: Sequence[HostFigures],
    value: Callable[[HostFigures], int | None],
    *,
    of_most: bool = False,
) -> tuple[HostFigures, HostFigures] | None:
    """Return those with the least and the most (of equal ones the first), if that is `MUCH_RATIO` of a median apart."""
    known = [(own, figure) for figure in figures if (own := value(figure)) is not None]
    if not known:
        return None
    (low, least), (high, most) = min(known, key=itemgetter(0)), max(known, key=itemgetter(0))
    is_much = high - low >= MUCH_RATIO * ((most if of_most else least).median_ns or 0)
    return (least, most) if high > low and is_much else None


def longest_between(figures: Sequence[HostFigures]) -> HostFigures | None:
    """Return the process with most time between its steps; None where that is less than `MUCH_RATIO` of a step, or 10 us."""
    known = [
        figure
        for figure in figures
        if figure.between_ns is not None and figure.median_ns is not None
    ]
    most = max(known, key=lambda one: one.between_ns or 0, default=None)  # of equal ones the first
    is_long = most and (most.between_ns or 0) >= max(
        MUCH_RATIO * (most.median_ns or 0), _LEAST_BETWEEN_NS
    )
    return most if is_long else None


def _of_process(rows: Sequence[Mapping[str, Any]], *, is_alone: bool) -> HostFigures:
    closed = [row for row in rows if row["is_complete"]]
    slowest = max(closed, key=lambda row: (row["host_ns"], -row["step"]), default=None)
    parts = [
        [row[f"{phase}_ns"] for phase in PHASES if row[f"{phase}_ns"] is not None] for row in closed
    ]
    others = [
        row["host_ns"] - sum(own) if own else None for row, own in zip(closed, parts, strict=True)
    ]
    steps = ((before, after) for before, after in pairwise(rows) if before["is_complete"])
    return HostFigures(
        **{name: rows[0][name] for name in ("rank", "report", "pid")},
        is_alone=is_alone,
        n_steps=len(closed),
        n_open=len(rows) - len(closed),
        median_ns=_floored_median([row["host_ns"] for row in closed]),
        slowest_step=slowest["step"] if slowest else None,
        slowest_ns=slowest["host_ns"] if slowest else None,
        phase_ns={
            phase: _floored_median([row[f"{phase}_ns"] for row in closed]) for phase in PHASES
        },
        other_ns=_floored_median(others),
        between_ns=_floored_median(
            [after["host_start_ns"] - before["host_end_ns"] for before, after in steps]
        ),
    )


def _floored_median(values: Sequence[int | None]) -> int | None:
    known = sorted(value for value in values if value is not None)
    return int(floor_median(np.array(known))) if known and len(known) == len(values) else None
