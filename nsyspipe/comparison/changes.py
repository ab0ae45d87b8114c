"""Parts of the step time, which sum to it exactly, and kernels by phase and name."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

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
_KNOWN_CAUSES = tuple(name for name in IDLE_CAUSES if name != "idle_unknown_ns")
# Times below the limit are rounded to a thousandth of a nanosecond, as a power of two, so that sums
# are exact as floats too. Longer times are rounded to whole nanoseconds.
_FINE_UNIT = Fraction(1, 1024)
_MAX_FINE_NS = 2**42
# A smaller change of a kernel, as a share of the step time, is not worth a line.
MIN_KERNEL_CHANGE_SHARE_OF_STEP = 0.001
_MAX_TOP_KERNELS = 10

Means = dict[str, Fraction | None]
Number = TypeVar("Number", float, Fraction)


# --- parts of the step ----------------------------------------------------------------------------
def step_parts(
    baseline: Sequence[StepTable], candidate: Sequence[StepTable]
) -> tuple[pa.Table, pa.Table]:
    """Return `STEP_TIME_PARTS` and `IDLE_CAUSE_PARTS`.

    Times are multiples of 1/1024 ns, or of 1 ns if they are long, and sum exactly.
    """
    means = [_means_of_side(side) for side in (baseline, candidate)]
    parts = [_round_parts(side) for side in means]
    causes = _round_idle_causes(means, parts)
    part_rows = [{"part": name, **_cells(parts, name)} for name in PARTS]
    cause_rows = []
    for name in (*_KNOWN_CAUSES, _OTHER):
        word = name.removeprefix("idle_").removesuffix("_ns")
        cells = _cells(causes, name)
        cause_rows.append({"cause": word, **cells})
    return STEP_TIME_PARTS.from_rows(part_rows), IDLE_CAUSE_PARTS.from_rows(cause_rows)


def _means_of_side(side: Sequence[StepTable]) -> Means:
    names = ("wall", *PARTS, *IDLE_CAUSES)
    return {name: _mean(side, name) for name in names}


def _round_parts(means: Means) -> Means:
    """Round the parts so that they sum to the step time, if all of them are known."""
    whole = means["wall"]
    parts = {name: means[name] for name in PARTS}
    known_parts = _without_none(parts)
    if whole is None or len(known_parts) < len(PARTS):
        return {name: _rounded_or_none(part) for name, part in parts.items()}
    unit = _unit(whole)
    rounded_whole = _rounded(whole, unit)
    return apportioned(rounded_whole, known_parts, unit)


def _without_none(means: Means) -> dict[str, Fraction]:
    return {name: mean for name, mean in means.items() if mean is not None}


def _round_idle_causes(means: Sequence[Means], parts: Sequence[Means]) -> list[Means]:
    """Round the causes of idle time of both sides so that they sum to the part idle.

    Causes that only one side recorded are part of the other causes. Without idle time of both sides
    nothing is known of its causes.
    """
    unknown: Means = dict.fromkeys((*_KNOWN_CAUSES, _OTHER))
    if any(side["idle"] is None for side in means):
        return [unknown for _ in means]
    before, after = means
    known_on_both = _without_none(before).keys() & _without_none(after).keys()
    known = [name for name in _KNOWN_CAUSES if name in known_on_both]
    causes = []
    for side_means, side_parts in zip(means, parts, strict=True):
        side_causes = _round_causes_of_side(side_means, side_parts, known)
        causes.append(unknown | side_causes)
    return causes


def _round_causes_of_side(means: Means, parts: Means, known: Sequence[str]) -> Means:
    idle = means["idle"]
    total = parts["idle"]
    if idle is None or total is None:
        return {}
    causes = {name: means[name] or Fraction(0) for name in known}
    causes[_OTHER] = idle - sum(causes.values())
    unit = _unit(means["wall"])
    return apportioned(total, causes, unit)


def _cells(sides: Sequence[Means], name: str) -> dict[str, float | None]:
    before, after = (side[name] for side in sides)
    delta = None
    if before is not None and after is not None:
        delta = after - before
    cells = {"baseline_ns": before, "candidate_ns": after, "delta_ns": delta}
    return {column: float_or_none(value) for column, value in cells.items()}


def float_or_none(value: Fraction | None) -> float | None:
    """Return an exact value as a float, and None as None."""
    return None if value is None else float(value)


def mean_of(values: Iterable[Number | None]) -> Number | None:
    """Return the mean; None if a value is None, or is not finite as in a damaged run."""
    numbers = list(values)
    recorded = [number for number in numbers if number is not None]
    known = [number for number in recorded if math.isfinite(number)]
    if not known or len(known) < len(numbers):
        return None
    total = sum(known[1:], known[0])
    return total / len(known)


def mean_step_time(side: Sequence[StepTable]) -> Fraction | None:
    """Return a side's mean step time as the parts sum to it, ns; None without steps."""
    wall = _mean(side, "wall")
    if wall is None:
        return None
    return _rounded(wall, _unit(wall))


def apportioned(
    total: Fraction, parts: Mapping[str, Fraction], unit: Fraction
) -> dict[str, Fraction | None]:
    """Round parts to multiples of a unit so that they sum to a total, by largest remainders.

    Of equal remainders the first is rounded up.
    """
    in_units = {name: part / unit for name, part in parts.items()}
    floors = {name: math.floor(n_units) for name, n_units in in_units.items()}
    by_remainder = sorted(parts, key=lambda name: floors[name] - in_units[name])
    n_units_of_total = int(total / unit)
    n_left = n_units_of_total - sum(floors.values())
    for name in by_remainder[:n_left]:
        floors[name] += 1
    return {name: floor * unit for name, floor in floors.items()}


def _mean(side: Sequence[StepTable], name: str) -> Fraction | None:
    return mean_of(table.mean_of_slowest(name) for table in side)


def _unit(whole: Fraction | None) -> Fraction:
    """Return the unit that a time, and its parts, are rounded to."""
    is_fine = whole is None or whole < _MAX_FINE_NS
    return _FINE_UNIT if is_fine else Fraction(1)


def _rounded(value: Fraction, unit: Fraction) -> Fraction:
    n_units = round(value / unit)
    return n_units * unit


def _rounded_or_none(value: Fraction | None) -> Fraction | None:
    return None if value is None else _rounded(value, _FINE_UNIT)


# --- steps as matrices ----------------------------------------------------------------------------
class StepTable(Struct, frozen=True, dict=True):
    """The summary steps of a run as matrices: a row per rank, a column per step by time."""

    run: Run
    # Idle time is null: this run has CUDA graphs that were captured as a whole, and the gaps inside
    # these were not seen, but other runs do not.
    hides_idle: bool = False
    # Null columns: they mean something else in a run that this one is compared with.
    outdated_columns: frozenset[str] = frozenset()

    @classmethod
    def of_sides(cls, *sides: Sequence[Run]) -> tuple[list[StepTable], ...]:
        """Return the captures of sides that are compared with each other, side by side."""
        runs = [run for side in sides for run in side]
        has_graphs = {has_whole_graphs(run) for run in runs}
        is_mixed = len(has_graphs) > 1
        latest = latest_of(run.definitions_version for run in runs)

        def table_of(run: Run) -> StepTable:
            outdated_columns = changed_columns(run.definitions_version, latest)
            hides_idle = is_mixed and has_whole_graphs(run)
            return cls(run, hides_idle=hides_idle, outdated_columns=outdated_columns)

        tables = [list(map(table_of, side)) for side in sides]
        return tuple(tables)

    @cached_property
    def rows(self) -> pa.Table:
        """`schema.STEPS` of the summary steps, by rank and in order of time.

        Numbers of steps need not ascend with time.
        """
        rows = self.run.breakdown()
        rows = rows.sort_by(
            [("rank", "ascending"), ("start_ns", "ascending"), ("step", "ascending")]
        )
        return rows.combine_chunks()

    @property
    def ranks(self) -> list[int]:
        """The ranks, ascending: the matrices' rows."""
        ranks = self.rows["rank"].unique()
        return sorted(ranks.to_pylist())

    @property
    def n_steps(self) -> int:
        """How many summary steps there are; none in a capture without steps."""
        return 0 if self.run.is_capture else len(self.steps)

    @cached_property
    def steps(self) -> Int64:
        """The numbers of the summary steps, in order of time: the matrices' columns."""
        step = self.rows["step"].to_numpy()
        n_ranks = len(self.ranks)
        n_steps = step.size // max(n_ranks, 1)
        steps: Int64 = step[:n_steps]
        steps_of_all_ranks = np.tile(steps, n_ranks)
        if not np.array_equal(step, steps_of_all_ranks):
            what = "has metrics of steps that some ranks do not have"
            raise DatasetError(self.run.header.run_id, what, fix="analyze the reports again")
        return steps

    def matrix(self, column: str) -> Int64 | None:
        """Return a column of integers as ranks x steps; None without steps, or if one is null."""
        is_hidden = self.hides_idle and column.startswith("idle_")
        if is_hidden or column in self.outdated_columns:
            return None
        values = self.rows[column]
        if values.null_count or not self.n_steps:
            return None
        matrix: Int64 = values.to_numpy().reshape(-1, self.n_steps)
        return matrix

    @cached_property
    def slowest(self) -> Int64:
        """For each step the row of the rank with the largest window (tie: the lowest rank)."""
        wall = self.matrix("wall_ns")
        if wall is None:
            return np.empty(0, np.int64)
        slowest: Int64 = np.argmax(wall, axis=0)
        return slowest

    def mean_of_slowest(self, name: str) -> Fraction | None:
        """Return the exact mean of a part, or a cause of idle time, on the slowest ranks, ns."""
        column = name if name in IDLE_CAUSES else f"{name}_ns"
        values = self.matrix(column)
        if values is None:
            return None
        every_step = np.arange(self.n_steps)
        on_slowest = values[self.slowest, every_step]
        # Python's integers do not overflow.
        total = sum(on_slowest.tolist())
        return Fraction(total, self.n_steps)

    @cached_property
    def transfers(self) -> dict[str, Float64 | None]:
        """Sums per step over matched collectives: transfer time, message bytes and bus bytes.

        A sum is None if it is null for a collective.
        """
        collectives = self.run.collectives()
        is_matched = pc.is_valid(collectives["transfer_ns"])
        is_used = pc.and_(collectives["in_summary"], is_matched)
        rows = collectives.filter(is_used)
        steps = rows["step"].to_numpy()
        columns = self._columns_of_steps(steps)
        names = ("transfer_ns", "message_bytes", "bus_bytes")
        sums: dict[str, Float64 | None] = dict.fromkeys(names)
        for name in {*sums} - self.outdated_columns:
            values = rows.column(name)
            if rows.num_rows and not values.null_count:
                sums_of_steps = np.bincount(columns, values.to_numpy(), self.n_steps)
                sums[name] = sums_of_steps.astype(np.float64)
        return sums

    def _columns_of_steps(self, steps: Int64) -> Int64:
        """Return the columns of the matrices for numbers of steps."""
        by_number = np.argsort(self.steps)
        positions = np.searchsorted(self.steps[by_number], steps)
        columns: Int64 = by_number[positions]
        return columns


# --- kernels --------------------------------------------------------------------------------------
class KernelKey(NamedTuple):
    """What kernels are compared by."""

    phase: str | None
    name: str


class KernelCost(NamedTuple):
    """Time and number of launches of a kernel, per rank and step."""

    ns: float
    n_launches: float

    @property
    def mean_ns(self) -> float | None:
        """Mean duration; None without a launch."""
        if not self.n_launches:
            return None
        return self.ns / self.n_launches


_NO_COST = KernelCost(0.0, 0.0)


def kernel_changes(
    baseline: Sequence[StepTable], candidate: Sequence[StepTable], *, min_effect: float
) -> pa.Table:
    """Return `KERNEL_CHANGES`.

    Time and number are ``in_summary_ns`` and ``n_in_summary`` of `schema.KERNEL_COSTS`, summed over
    ranks, / (ranks x summary steps), as means over a side's captures. If a capture does not have a
    kernel, the kernel took no time there. The status is ``same`` if the time changed by less than
    `min_effect` of the shorter time and less than a thousandth of the shortest step time.

    There are no rows if a capture has no summary steps, or no times of kernels. There are none
    either if only some captures recorded CUDA graphs as a whole: the kernels inside these were not
    seen.
    """
    captures = (*baseline, *candidate)
    has_graphs = {has_whole_graphs(capture.run) for capture in captures}
    if len(has_graphs) > 1 or not all(map(_has_kernel_times, captures)):
        return KERNEL_CHANGES.empty()
    before = _kernel_costs(baseline)
    after = _kernel_costs(candidate)
    max_same_ns = little_ns(captures)
    rows = []
    for key in {*before, *after}:
        old = before.get(key)
        new = after.get(key)
        status = _status_of_kernel(old, new, min_effect, max_same_ns)
        row = _kernel_row(key, old or _NO_COST, new or _NO_COST, status)
        rows.append(row)
    rows.sort(key=_largest_change_first)
    return KERNEL_CHANGES.from_rows(rows)


class _KernelOrder(NamedTuple):
    """What the rows of kernels are sorted by."""

    negative_size: float
    phase: str
    name: str


def _largest_change_first(row: Mapping[str, Any]) -> _KernelOrder:
    size = abs(row["delta_ns_per_step"])
    return _KernelOrder(-size, row["phase"] or "", row["name"])


def _has_kernel_times(capture: StepTable) -> bool:
    if not capture.n_steps:
        return False
    times = capture.run.kernels()["in_summary_ns"]
    return not times.null_count


def _status_of_kernel(
    old: KernelCost | None, new: KernelCost | None, min_effect: float, max_same_ns: float
) -> str:
    if old is None:
        return "appeared"
    if new is None:
        return "vanished"
    shorter_ns = min(old.ns, new.ns)
    max_change_ns = min(min_effect * shorter_ns, max_same_ns)
    change_ns = abs(new.ns - old.ns)
    return "same" if change_ns <= max_change_ns else "changed"


def _kernel_row(key: KernelKey, old: KernelCost, new: KernelCost, status: str) -> dict[str, Any]:
    row = {**key._asdict(), "status": status}
    row["delta_ns_per_step"] = new.ns - old.ns
    row |= _columns_of_side("baseline", old)
    row |= _columns_of_side("candidate", new)
    return row


def _columns_of_side(side: str, cost: KernelCost) -> dict[str, float | None]:
    return {
        f"{side}_ns_per_step": cost.ns,
        f"{side}_n_per_step": cost.n_launches,
        f"{side}_mean_ns": cost.mean_ns,
    }


def little_ns(captures: Iterable[StepTable]) -> float:
    """Return the change of a kernel that is not worth a line, ns per rank and step."""
    mean_step_times = []
    for capture in captures:
        wall_ns = capture.matrix("wall_ns")
        if wall_ns is not None:
            step_times = wall_ns.max(axis=0)
            mean_step_times.append(float(step_times.mean()))
    return MIN_KERNEL_CHANGE_SHARE_OF_STEP * min(mean_step_times, default=0.0)


def top_kernels(kernels: pa.Table, little_ns: float) -> pa.Table:
    """Keep the ten largest differences of those that are worth a line, in their order."""
    sizes = pc.abs(kernels["delta_ns_per_step"])
    is_large = pc.greater(sizes, little_ns)
    return kernels.filter(is_large).slice(0, _MAX_TOP_KERNELS)


def _kernel_costs(side: Sequence[StepTable]) -> dict[KernelKey, KernelCost]:
    """Return the costs of the kernels that run in summary steps, as means over captures."""
    costs: dict[KernelKey, KernelCost] = {}
    for capture in side:
        n_rank_steps = len(capture.ranks) * capture.n_steps * len(side)
        kernels = capture.run.kernels()
        by_key = kernels.group_by(["phase", "name"], use_threads=False)
        sums = by_key.aggregate([("in_summary_ns", "sum"), ("n_in_summary", "sum")])
        for row in sums.to_pylist():
            n_launches = row["n_in_summary_sum"]
            if n_launches:
                key = KernelKey(row["phase"], row["name"])
                so_far = costs.get(key, _NO_COST)
                ns = so_far.ns + row["in_summary_ns_sum"] / n_rank_steps
                n_so_far = so_far.n_launches + n_launches / n_rank_steps
                costs[key] = KernelCost(ns, n_so_far)
    return costs
