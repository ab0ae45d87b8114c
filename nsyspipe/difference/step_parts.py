"""The parts of the difference in step time: on the slowest rank of each step, summing exactly."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from nsyspipe.difference.tables import IDLE_CAUSE_PARTS, STEP_TIME_PARTS
from nsyspipe.schema import IDLE_CAUSES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa

    from nsyspipe.difference.step_table import StepTable

__all__ = ["PARTS", "apportioned", "mean_step_time", "step_parts"]

PARTS = ("compute", "exposed_comm", "exposed_memory", "idle")
_OTHER = "other"
_UNKNOWN = "idle_unknown_ns"
# A thousandth of a nanosecond, as a power of two: sums of such numbers are exact as floats, too.
_FINE, _COARSE = Fraction(1, 1024), Fraction(1)
_FINE_UP_TO = 2**42

Means = dict[str, Fraction | None]


def step_parts(
    baseline: Sequence[StepTable], candidate: Sequence[StepTable]
) -> tuple[pa.Table, pa.Table]:
    """Split the mean step time of both sides, and the difference, into compute, exposed comm, exposed memory, idle.

    Each is the mean over summary steps of that part on the step's slowest rank (tie: the lowest); of several captures
    the mean of their means. Means are given in 1/1024 ns, rounded so that parts sum to the mean step
    time of their side and causes to idle, exactly, as do the differences.

    Returns
    -------
    tuple
        `tables.STEP_TIME_PARTS` and `tables.IDLE_CAUSE_PARTS`: idle by cause, where what has no cause on both sides
        is ``other``. Null where a side did not record what a part needs.
    """
    sides = [_side_means(side) for side in (baseline, candidate)]
    shown = [_cells(means, ("wall",), PARTS) for means in sides]
    causes = [one for one in IDLE_CAUSES if one != _UNKNOWN]
    known = [one for one in causes if all(means[one] is not None for means in sides)]
    split = []
    for means, cells in zip(sides, shown, strict=True):
        idle, total = means["idle"], cells["idle"]
        if idle is None or total is None or None in (one["idle"] for one in sides):
            split.append(dict.fromkeys((*causes, _OTHER)))
            continue
        parts = {one: means[one] or Fraction(0) for one in known}
        parts[_OTHER] = idle - sum(parts.values())
        split.append(dict.fromkeys(causes) | apportioned(total, parts, _unit(means["wall"])))
    names = {one: one.removeprefix("idle_").removesuffix("_ns") for one in causes}
    return (
        STEP_TIME_PARTS.from_rows([_row("part", name, shown) for name in PARTS]),
        IDLE_CAUSE_PARTS.from_rows(
            [_row("cause", key, split, names.get(key, key)) for key in (*causes, _OTHER)]
        ),
    )


def mean_step_time(side: Sequence[StepTable]) -> Fraction | None:
    """Return a side's mean step time as the parts sum to it, ns; None without steps."""
    wall = _side_means(side)["wall"]
    return None if wall is None else _rounded(wall, _unit(wall))


def apportioned(
    total: Fraction, parts: Mapping[str, Fraction], unit: Fraction
) -> dict[str, Fraction | None]:
    """Round parts to multiples of a unit so that they sum to a total, which is one, by largest remainders.

    Of equal remainders the first part gets more.
    """
    floors = {name: part // unit for name, part in parts.items()}
    n_left = int(total / unit) - sum(floors.values())
    by_remainder = sorted(parts, key=lambda name: floors[name] - parts[name] / unit)
    for name in by_remainder[:n_left]:
        floors[name] += 1
    return {name: floor * unit for name, floor in floors.items()}


def _cells(means: Means, total: tuple[str], names: Sequence[str]) -> dict[str, Fraction | None]:
    """Return what is shown of the parts: null, or summing to the total."""
    whole = means[total[0]]
    parts = {name: part for name in names if (part := means[name]) is not None}
    if whole is None or len(parts) < len(names):
        return {name: None if part is None else _rounded(part, _FINE) for name, part in means.items()}  # fmt: skip
    unit = _unit(whole)
    return apportioned(_rounded(whole, unit), parts, unit)


def _side_means(side: Sequence[StepTable]) -> Means:
    captures = [_means(table) for table in side]
    found: Means = {}
    for name in captures[0]:
        values = [capture[name] for capture in captures]
        known = [value for value in values if value is not None]
        found[name] = sum(known, Fraction(0)) / len(known) if len(known) == len(values) else None
    return found


def _means(table: StepTable) -> Means:
    """Return the means over steps of each part on the slowest rank, exactly."""
    columns = {"wall": "wall_ns", **{name: f"{name}_ns" for name in PARTS}}
    columns |= {name: name for name in IDLE_CAUSES}
    found: Means = {}
    for name, column in columns.items():
        values = table.matrix(column)
        if values is None:
            found[name] = None
            continue
        own = values[table.slowest, np.arange(table.n_steps)]
        found[name] = Fraction(
            sum(own.tolist()), table.n_steps
        )  # of Python's integers: no overflow
    return found


def _unit(whole: Fraction | None) -> Fraction:
    return _FINE if whole is None or whole < _FINE_UP_TO else _COARSE


def _rounded(value: Fraction, unit: Fraction) -> Fraction:
    return round(value / unit) * unit


def _row(
    key: str, name: str, sides: Sequence[Mapping[str, Fraction | None]], shown: str | None = None
) -> dict[str, object]:
    before, after = (side[name] for side in sides)
    delta = None if before is None or after is None else after - before
    cells = {"baseline_ns": before, "candidate_ns": after, "delta_ns": delta}
    return {key: shown or name} | {
        column: None if value is None else float(value) for column, value in cells.items()
    }
