"""A run's figures and each rank's: pooled ratios, step time, means per step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nsyspipe.model import schema

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray


# Ratio -> numerator, denominator; all columns of `schema.STEPS`.
RATIOS = {
    "comm_share": ("comm_ns", "wall_ns"),
    "exposed_comm_share": ("exposed_comm_ns", "wall_ns"),
    "overlap_ratio": ("overlap_compute_ns", "comm_ns"),
    "backward_overlap_ratio": ("overlap_backward_ns", "comm_ns"),
    "idle_share": ("idle_ns", "wall_ns"),
    "compute_share": ("compute_ns", "wall_ns"),
    "exposed_memory_share": ("exposed_memory_ns", "wall_ns"),
    "wait_share": ("wait_ns", "wall_ns"),
    "transfer_share": ("transfer_ns", "wall_ns"),
}

# Mean per (rank, step) -> column.
MEANS = {
    "dtod_ns_per_step": "dtod_ns",
    "dtod_bytes_per_step": "dtod_bytes",
    "collectives_per_step": "n_collectives",
    **{f"{name}_per_step": name for name in schema.IDLE_CAUSES},
    "message_bytes_per_step": "message_bytes",
}

# Rate over transfer time -> column of `schema.COLLECTIVES`.
RATES = {"algbw_bytes_per_s": "message_bytes", "busbw_bytes_per_s": "bus_bytes"}

_NS_PER_S = 1e9


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


def step_times(steps: pa.Table) -> NDArray[np.int64]:
    """Return each step's largest window over ranks, ns, in the order in which the steps began."""
    found = steps.group_by("step").aggregate([("wall_ns", "max"), ("start_ns", "min")])
    times: NDArray[np.int64] = found.sort_by("start_ns_min")["wall_ns_max"].to_numpy()
    return times


def summary(steps: pa.Table, collectives: pa.Table, *, is_capture: bool = False) -> pa.Table:
    """Return the run's figures over its summary steps.

    ``step_time`` takes for each summary step the largest window over ranks, and the median of those;
    throughput is 1 over their mean. Ratios are pooled: the sum of numerators over all ranks and
    summary steps divided by the sum of denominators. ``..._per_step`` is a mean over (rank, step).
    Bandwidths are the sum of bytes over matched collectives of summary steps divided by the sum of
    their transfer times.

    Parameters
    ----------
    steps, collectives
        `schema.STEPS` and `schema.COLLECTIVES`.
    is_capture
        Whether the rows are captures without steps: then there are 0 steps, and what is of a step is null.

    Returns
    -------
    pyarrow.Table
        `schema.SUMMARY`, one row; a figure is null without summary steps, or where one of its parts is null.
    """
    chosen = steps.filter(steps["in_summary"])
    of_steps = chosen.slice(0, 0) if is_capture else chosen
    per_step = step_times(of_steps)
    row = {
        "n_steps": 0 if is_capture else pc.count_distinct(steps["step"]).as_py(),
        "n_summary_steps": per_step.size,
        "step_time_ns": float(np.median(per_step)) if per_step.size else None,
        "throughput_steps_per_s": _NS_PER_S * per_step.size / total
        if (total := int(per_step.sum()))
        else None,
        **_figures(chosen, is_capture=is_capture),
        **_rates(_transferring(collectives)),
    }
    return schema.SUMMARY.from_rows([row])


def rank_summary(
    steps: pa.Table, collectives: pa.Table, ranks: pa.Table, *, is_capture: bool = False
) -> pa.Table:
    """Return each rank's figures over its summary steps, as `summary`: `schema.RANK_SUMMARY`, sorted by rank."""
    chosen = steps.filter(steps["in_summary"])
    transferring = _transferring(collectives)
    rows = []
    for rank in ranks["rank"].to_pylist():
        own = chosen.filter(pc.equal(chosen["rank"], rank))
        wall = own["wall_ns"].to_numpy()
        step_time = float(np.median(wall)) if wall.size and not is_capture else None
        rates = _rates(transferring.filter(pc.equal(transferring["rank"], rank)))
        rows.append(
            {
                "rank": rank,
                "step_time_ns": step_time,
                **_figures(own, is_capture=is_capture),
                **rates,
            }
        )
    return schema.RANK_SUMMARY.from_rows(rows)


def phase_summary(phases: pa.Table) -> pa.Table:
    """Return the mean times of each phase: `schema.PHASE_SUMMARY`, sorted by phase; null where any is.

    Parameters
    ----------
    phases
        `schema.PHASES` of the summary steps.
    """
    rows = []
    for phase in sorted(phases["phase"].unique().to_pylist()):
        own = phases.filter(pc.equal(phases["phase"], phase))
        means = {
            f"{name}_per_step": _divide(_sum(own[name]), own.num_rows)
            for name in schema.PHASE_TIMES
        }
        rows.append({"phase": phase, **means})
    return schema.PHASE_SUMMARY.from_rows(rows)


def _figures(chosen: pa.Table, *, is_capture: bool) -> dict[str, float | None]:
    sums = {name: _sum(chosen[name]) for pair in RATIOS.values() for name in pair}
    means = {name: _sum(chosen[column]) for name, column in MEANS.items()}
    return {
        **{name: _divide(sums[above], sums[below]) for name, (above, below) in RATIOS.items()},
        **{
            name: None if is_capture else _divide(total, chosen.num_rows)
            for name, total in means.items()
        },
    }


def _transferring(collectives: pa.Table) -> pa.Table:
    chosen = pc.and_(collectives["in_summary"], collectives["is_matched"])
    return collectives.select(["rank", "transfer_ns", *RATES.values()]).filter(chosen)


def _rates(collectives: pa.Table) -> dict[str, float | None]:
    transfer = _sum(collectives["transfer_ns"])
    sums = {name: _sum(collectives[column]) for name, column in RATES.items()}
    return {
        name: _NS_PER_S * total / transfer if total is not None and transfer else None
        for name, total in sums.items()
    }


def _sum(column: pa.ChunkedArray) -> float | None:
    """Sum a column exactly; null if any part is, or without rows."""
    return pc.sum(column, skip_nulls=False, min_count=1).as_py()  # type: ignore[no-any-return]


def _divide(above: float | None, below: float | None) -> float | None:
    return above / below if above is not None and below else None
