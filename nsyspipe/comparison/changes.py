"""Where a difference comes from: parts of the step time, which sum to it exactly, and kernels by phase and name."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from nsyspipe.errors import DatasetError
from nsyspipe.model.columns import count, ns, text
from nsyspipe.model.definitions import changed_columns, latest_of
from nsyspipe.model.schema import IDLE_CAUSES
from nsyspipe.model.table import FLOAT, Float64, Int64, TableSchema
from nsyspipe.run.run import Run
from nsyspipe.run.work import has_whole_graphs

STEP_TIME_PARTS = TableSchema(
    name="difference_step_time_parts",
    doc=(
        "One row per part of the step on the slowest rank of each step (tie: the lowest): they "
        "sum to the mean step time exactly, in every column."
    ),
    key=("part",),
    columns=(
        text("part", "compute, exposed_comm, exposed_memory, idle"),
        ns(
            "baseline_ns",
            "mean over summary steps, of the baseline",
            arrow_type=FLOAT,
            nullable=True,
        ),
        ns(
            "candidate_ns",
            "mean over summary steps, of the candidate",
            arrow_type=FLOAT,
            nullable=True,
        ),
        ns("delta_ns", "candidate - baseline", arrow_type=FLOAT, nullable=True),
    ),
)

IDLE_CAUSE_PARTS = TableSchema(
    name="difference_idle_causes",
    doc="One row per cause of idle time on the same ranks: they sum to the part idle exactly.",
    key=("cause",),
    columns=(
        text(
            "cause",
            "input, launch, blocked, dependency, or other (causes that only one side recorded)",
        ),
        ns(
            "baseline_ns",
            "mean over the steps used of the baseline, null if a side did not record the cause",
            arrow_type=FLOAT,
            nullable=True,
        ),
        ns(
            "candidate_ns",
            "mean over the steps used of the candidate, null if a side did not record the cause",
            arrow_type=FLOAT,
            nullable=True,
        ),
        ns("delta_ns", "candidate - baseline", arrow_type=FLOAT, nullable=True),
    ),
)

KERNEL_CHANGES = TableSchema(
    name="difference_kernels",
    doc=(
        "One row per (phase, normalized name) that either side runs in a summary step, the "
        "largest |delta| first."
    ),
    key=("delta_ns_per_step", "phase", "name"),
    columns=(
        text("phase", "phase that launched the kernel, null outside of all phases", nullable=True),
        text("name", "as in kernels"),
        text(
            "status",
            "appeared, vanished, changed, or same: at most the minimum effect and 0.1% of the step",
        ),
        ns(
            "baseline_ns_per_step",
            "time per rank and step, of kernels that start in the window of the step, of the "
            "baseline",
            arrow_type=FLOAT,
            nullable=True,
        ),
        ns(
            "candidate_ns_per_step",
            "time per rank and step, of kernels that start in the window of the step, of the "
            "candidate",
            arrow_type=FLOAT,
            nullable=True,
        ),
        ns("delta_ns_per_step", "candidate - baseline", arrow_type=FLOAT, nullable=True),
        count(
            "baseline_n_per_step",
            "launches per rank and step of the baseline, 0 if none",
            arrow_type=FLOAT,
            nullable=True,
        ),
        count(
            "candidate_n_per_step",
            "launches per rank and step of the candidate, 0 if none",
            arrow_type=FLOAT,
            nullable=True,
        ),
        ns(
            "baseline_mean_ns",
            "mean duration in the baseline, null if it does not run there",
            arrow_type=FLOAT,
            nullable=True,
        ),
        ns(
            "candidate_mean_ns",
            "mean duration in the candidate, null if it does not run there",
            arrow_type=FLOAT,
            nullable=True,
        ),
    ),
)

SIDES = ("baseline", "candidate")
PARTS = ("compute", "exposed_comm", "exposed_memory", "idle")
_OTHER = "other"
_UNKNOWN = "idle_unknown_ns"
# A thousandth of a nanosecond, as a power of two: sums of such numbers are exact as floats, too.
# Above, whole ones.
_FINE = Fraction(1, 1024)
_FINE_UP_TO = 2**42

Means = dict[str, Fraction | None]
Number = TypeVar("Number", float, Fraction)
_LITTLE = 0.001  # of the step time: a change that is worth a line, however long the kernel is
Costs = dict[
    tuple[str | None, str], tuple[float, float]
]  # by phase and name: time and number per rank and step


def step_parts(
    baseline: Sequence[StepTable], candidate: Sequence[StepTable]
) -> tuple[pa.Table, pa.Table]:
    """Return `STEP_TIME_PARTS` and `IDLE_CAUSE_PARTS`, in 1/1024 ns or whole ones, apportioned so that they sum exactly."""
    sides = [
        {name: _mean(side, name) for name in ("wall", *PARTS, *IDLE_CAUSES)}
        for side in (baseline, candidate)
    ]
    shown = [_shown(means) for means in sides]
    causes = [name for name in IDLE_CAUSES if name != _UNKNOWN]
    known = [name for name in causes if all(means[name] is not None for means in sides)]
    split: list[Means] = [dict.fromkeys((*causes, _OTHER)) for _ in sides]
    if all(means["idle"] is not None for means in sides):
        for means, cells, own in zip(sides, shown, split, strict=True):
            idle = means["idle"]
            total = cells["idle"]
            if idle is not None and total is not None:
                exact = {name: means[name] or Fraction(0) for name in known}
                exact[_OTHER] = idle - sum(exact.values())
                own.update(apportioned(total, exact, _unit(means["wall"])))
    words = {name: name.removeprefix("idle_").removesuffix("_ns") for name in (*causes, _OTHER)}
    parts = [{"part": name, **_cells(shown, name)} for name in PARTS]
    by_cause = [{"cause": word, **_cells(split, name)} for name, word in words.items()]
    return STEP_TIME_PARTS.from_rows(parts), IDLE_CAUSE_PARTS.from_rows(by_cause)


def _cells(sides: Sequence[Means], name: str) -> dict[str, float | None]:
    before, after = (side[name] for side in sides)
    delta = None if before is None or after is None else after - before
    cells = {"baseline_ns": before, "candidate_ns": after, "delta_ns": delta}
    return {column: None if value is None else float(value) for column, value in cells.items()}


def mean_of(values: Iterable[Number | None]) -> Number | None:
    """Return the mean; None if any value is, or is no number, as of a damaged run."""
    found = list(values)
    known = [value for value in found if value is not None and math.isfinite(value)]
    return sum(known[1:], known[0]) / len(known) if known and len(known) == len(found) else None


def mean_step_time(side: Sequence[StepTable]) -> Fraction | None:
    """Return a side's mean step time as the parts sum to it, ns; None without steps."""
    wall = _mean(side, "wall")
    return None if wall is None else _rounded(wall, _unit(wall))


def apportioned(
    total: Fraction, parts: Mapping[str, Fraction], unit: Fraction
) -> dict[str, Fraction | None]:
    """Round parts to multiples of a unit so that they sum to a total, by largest remainders; of equal ones the first."""
    floors = {name: part // unit for name, part in parts.items()}
    n_left = int(total / unit) - sum(floors.values())
    for name in sorted(parts, key=lambda name: floors[name] - parts[name] / unit)[:n_left]:
        floors[name] += 1
    return {name: floor * unit for name, floor in floors.items()}


def _shown(means: Means) -> Means:
    """Return what is shown of the parts: null, or summing to the step time."""
    whole = means["wall"]
    parts = {name: part for name in PARTS if (part := means[name]) is not None}
    if whole is None or len(parts) < len(PARTS):
        return {
            name: None if part is None else _rounded(part, _FINE) for name, part in means.items()
        }
    unit = _unit(whole)
    return {**apportioned(_rounded(whole, unit), parts, unit)}


def _mean(side: Sequence[StepTable], name: str) -> Fraction | None:
    return mean_of(table.mean_of_slowest(name) for table in side)


def _unit(whole: Fraction | None) -> Fraction:
    return _FINE if whole is None or whole < _FINE_UP_TO else Fraction(1)


def _rounded(value: Fraction, unit: Fraction) -> Fraction:
    return round(value / unit) * unit


class StepTable(Struct, frozen=True, dict=True):
    """The figures' steps of a run as matrices: a row per rank, each of which has every one, a column per step in order of time."""

    run: Run
    # idle time is null: gaps inside CUDA graphs as a whole, which not all have, are unseen
    hides_idle: bool = False
    outdated_columns: frozenset[str] = (
        frozenset()
    )  # null: they mean something else in a run that this one is compared with

    @classmethod
    def of_sides(cls, *sides: Sequence[Run]) -> tuple[list[StepTable], ...]:
        """Return the captures of each side that is compared with the others."""
        runs = [run for side in sides for run in side]
        is_mixed = len({has_whole_graphs(run) for run in runs}) > 1
        latest = latest_of(run.definitions_version for run in runs)

        def compared(run: Run) -> StepTable:
            outdated = changed_columns(run.definitions_version, latest)
            return cls(
                run, hides_idle=is_mixed and has_whole_graphs(run), outdated_columns=outdated
            )

        return tuple([compared(run) for run in side] for side in sides)

    @cached_property
    def rows(self) -> pa.Table:
        """`schema.STEPS` of the summary steps, by rank and in order of time: numbers need not ascend with it."""
        by_time = [(name, "ascending") for name in ("rank", "start_ns", "step")]
        return self.run.breakdown().sort_by(by_time).combine_chunks()

    @property
    def ranks(self) -> list[int]:
        """The ranks, ascending: the matrices' rows."""
        return sorted(self.rows["rank"].unique().to_pylist())

    @property
    def n_steps(self) -> int:
        """How many summary steps there are; none in a capture without steps."""
        return 0 if self.run.is_capture else len(self.steps)

    @cached_property
    def steps(self) -> Int64:
        """The numbers of the summary steps, in order of time: the matrices' columns."""
        step = self.rows["step"].to_numpy()
        n_ranks = len(self.ranks)
        steps: Int64 = step[: step.size // max(n_ranks, 1)]
        if not np.array_equal(step, np.tile(steps, n_ranks)):
            what = "has metrics of steps that some ranks do not have"
            raise DatasetError(self.run.header.run_id, what, fix="analyze the reports again")
        return steps

    def matrix(self, column: str) -> Int64 | None:
        """Return a column of integers as ranks x steps; None where any of it is null, or without steps."""
        if column in self.outdated_columns:
            return None
        values = self.rows[column]
        if (
            (self.hides_idle and column.startswith("idle_"))
            or values.null_count
            or not self.n_steps
        ):
            return None
        matrix: Int64 = values.to_numpy().reshape(-1, self.n_steps)
        return matrix

    @cached_property
    def slowest(self) -> Int64:
        """For each step the row of the rank with the largest window (tie: the lowest rank)."""
        wall = self.matrix("wall_ns")
        return np.empty(0, np.int64) if wall is None else np.argmax(wall, axis=0)

    def mean_of_slowest(self, name: str) -> Fraction | None:
        """Return the mean over steps of a part of the step, or a cause of idle time, on the slowest rank, exactly."""
        values = self.matrix(name if name in IDLE_CAUSES else f"{name}_ns")
        if values is None:
            return None
        own = values[self.slowest, np.arange(self.n_steps)].tolist()
        return Fraction(sum(own), self.n_steps)  # of Python's integers: no overflow

    @cached_property
    def transfers(self) -> dict[str, Float64 | None]:
        """Sums per step over matched collectives: transfer time, message bytes, bus bytes; None where one is null."""
        rows = self.run.collectives()
        rows = rows.filter(pc.and_(rows["in_summary"], pc.is_valid(rows["transfer_ns"])))
        at = np.argsort(self.steps)[np.searchsorted(np.sort(self.steps), rows["step"].to_numpy())]
        sums: dict[str, Float64 | None] = dict.fromkeys(
            ("transfer_ns", "message_bytes", "bus_bytes")
        )
        for name in {*sums} - self.outdated_columns:
            if rows.num_rows and not rows[name].null_count:
                sums[name] = np.bincount(at, rows[name].to_numpy(), self.n_steps).astype(np.float64)
        return sums


def kernel_changes(
    baseline: Sequence[StepTable], candidate: Sequence[StepTable], *, min_effect: float
) -> pa.Table:
    """Return `KERNEL_CHANGES`, with `min_effect` of the lesser time and a thousandth of the least step time as the limits of ``same``.

    Time and number are ``in_summary_ns`` and ``n_in_summary`` of `schema.KERNEL_COSTS`, summed over
    ranks, / (ranks x summary steps), the mean over a side's captures; where a capture lacks a
    kernel, it took no time there. There are no rows where those are null or a side has no summary
    steps, nor where captures of CUDA graphs as a whole stand beside others: kernels inside those
    were not seen.
    """
    tables = (*baseline, *candidate)
    is_counted = all(
        table.n_steps and not table.run.kernels()["in_summary_ns"].null_count for table in tables
    )
    if not is_counted or len({has_whole_graphs(table.run) for table in tables}) > 1:
        return KERNEL_CHANGES.empty()
    before, after = (_side_costs(side) for side in (baseline, candidate))
    little = little_ns(tables)
    rows: list[dict[str, Any]] = []
    for key in {*before, *after}:
        (old, n_old), (new, n_new) = before.get(key, (0.0, 0.0)), after.get(key, (0.0, 0.0))
        status = "same" if abs(new - old) <= min(min_effect * min(old, new), little) else "changed"
        if key not in before or key not in after:
            status = "vanished" if key in before else "appeared"
        means = (ns / n if n else None for ns, n in ((old, n_old), (new, n_new)))
        row = (*key, status, old, new, new - old, n_old, n_new, *means)
        rows.append(dict(zip(KERNEL_CHANGES.names, row, strict=True)))
    rows.sort(key=lambda row: (-abs(row["delta_ns_per_step"]), row["phase"] or "", row["name"]))
    return KERNEL_CHANGES.from_rows(rows)


def little_ns(tables: Iterable[StepTable]) -> float:
    """Return the change of a kernel that is worth no line, per rank and step: a thousandth of the least step time."""
    walls = (table.matrix("wall_ns") for table in tables)
    return _LITTLE * min(
        (float(wall.max(axis=0).mean()) for wall in walls if wall is not None), default=0.0
    )


def top_kernels(kernels: pa.Table, little_ns: float) -> pa.Table:
    """Keep the ten largest differences of those above a little, in their order: no other is larger than any of them."""
    sizes = pc.abs(kernels["delta_ns_per_step"])
    return kernels.filter(pc.greater(sizes, little_ns)).slice(0, 10)


def _side_costs(side: Sequence[StepTable]) -> Costs:
    costs: Costs = {}
    for capture in side:
        n_rows = len(capture.ranks) * capture.n_steps * len(side)
        kernels = capture.run.kernels().group_by(["phase", "name"], use_threads=False)
        for row in kernels.aggregate(
            [("in_summary_ns", "sum"), ("n_in_summary", "sum")]
        ).to_pylist():
            n = row["n_in_summary_sum"]
            if n:
                key = row["phase"], row["name"]
                before_ns, before_n = costs.get(key, (0.0, 0.0))
                costs[key] = before_ns + row["in_summary_ns_sum"] / n_rows, before_n + n / n_rows
    return costs
