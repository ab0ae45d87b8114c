"""The figures of a step that two runs are compared by, and which way each is better."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from nsyspipe.metrics.summary import RATIOS
from nsyspipe.schema import IDLE_CAUSES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nsyspipe.difference.step_table import StepTable
    from nsyspipe.statistics import Better

    Float64 = NDArray[np.float64]

__all__ = ["DEFAULT_METRIC", "HIGHER", "LOWER", "METRICS", "NEITHER", "Metric", "per_step"]

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
