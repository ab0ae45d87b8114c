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

# A part of the step, or a cause of idle time -> its mean over steps, ns. None if it is not known.
Means = dict[str, Fraction | None]
Number = TypeVar("Number", float, Fraction)


# --- parts of the step ----------------------------------------------------------------------------
def step_parts(
    baseline: Sequence[StepTable], candidate: Sequence[StepTable]
) -> tuple[pa.Table, pa.Table]:
    """Return `STEP_TIME_PARTS` and `IDLE_CAUSE_PARTS`.

    Times are multiples of 1/1024 ns, or of 1 ns if they are long, and sum exactly.
    """
    means_of_sides = [_means_of_side(side) for side in (baseline, candidate)]
    parts_of_sides = [_round_parts(means) for means in means_of_sides]
    causes_of_sides = _round_idle_causes(means_of_sides, parts_of_sides)
    part_rows = [{"part": name, **_cells(parts_of_sides, name)} for name in PARTS]
    cause_rows = []
    for name in (*_KNOWN_CAUSES, _OTHER):
        # The words of the column `idle_launch_ns` are "launch".
        word = name.removeprefix("idle_").removesuffix("_ns")
        cells = _cells(causes_of_sides, name)
        cause_rows.append({"cause": word, **cells})
    return STEP_TIME_PARTS.from_rows(part_rows), IDLE_CAUSE_PARTS.from_rows(cause_rows)


def _means_of_side(side: Sequence[StepTable]) -> Means:
    names = ("wall", *PARTS, *IDLE_CAUSES)
    return {name: _mean(side, name) for name in names}


def _round_parts(means: Means) -> Means:
    """Return the rounded parts of a side, which sum to its rounded step time.

    If the step time or a part is not known, the known parts are rounded one by one.
    """
    step_time = means["wall"]
    parts = {name: means[name] for name in PARTS}
    known_parts = _without_none(parts)
    if step_time is None or len(known_parts) < len(PARTS):
        return {name: _rounded_or_none(part) for name, part in parts.items()}
    unit = _unit(step_time)
    rounded_step_time = _rounded(step_time, unit)
    return apportioned(rounded_step_time, known_parts, unit)


def _without_none(means: Means) -> dict[str, Fraction]:
    return {name: mean for name, mean in means.items() if mean is not None}


def _round_idle_causes(
    means_of_sides: Sequence[Means], parts_of_sides: Sequence[Means]
) -> list[Means]:
    """Return for each side the rounded causes of idle time, which sum to its rounded idle part.

    A cause that only one side recorded is None, and its time is in the other causes. If a side has
    no idle part, all causes of both sides are None.
    """
    unknown: Means = dict.fromkeys((*_KNOWN_CAUSES, _OTHER))
    before, after = means_of_sides
    if before["idle"] is None or after["idle"] is None:
        return [unknown, unknown]
    known_on_both = _without_none(before).keys() & _without_none(after).keys()
    names_on_both = [name for name in _KNOWN_CAUSES if name in known_on_both]
    causes_of_sides = []
    for means, rounded_parts in zip(means_of_sides, parts_of_sides, strict=True):
        causes = _round_causes_of_side(means, rounded_parts, names_on_both)
        causes_of_sides.append(unknown | causes)
    return causes_of_sides


def _round_causes_of_side(
    means: Means, rounded_parts: Means, names_on_both: Sequence[str]
) -> Means:
    """Return the rounded causes of idle time of a side, which sum to its rounded idle part.

    `names_on_both` are the causes that both sides recorded. All other causes are one. `means` has
    the exact parts and causes. The result is empty if the side has no idle part.
    """
    idle = means["idle"]
    rounded_idle = rounded_parts["idle"]
    if idle is None or rounded_idle is None:
        return {}
    causes = {name: means[name] or Fraction(0) for name in names_on_both}
    causes[_OTHER] = idle - sum(causes.values())
    unit = _unit(means["wall"])
    return apportioned(rounded_idle, causes, unit)


def _cells(sides: Sequence[Means], name: str) -> dict[str, float | None]:
    """Return the columns of a part: both sides and their difference, None if not known."""
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
    """Return the mean, of the type of the values; None without values.

    None too if a value is None, or is not finite as in a damaged run.
    """
    numbers = list(values)
    recorded = [number for number in numbers if number is not None]
    known = [number for number in recorded if math.isfinite(number)]
    if not known or len(known) < len(numbers):
        return None
    # The sum starts at a value instead of the integer 0, so that it has the type of the values.
    total = sum(known[1:], known[0])
    return total / len(known)


def mean_step_time(side: Sequence[StepTable]) -> Fraction | None:
    """Return a side's mean step time, rounded to what its parts sum to, ns; None without steps."""
    step_time = _mean(side, "wall")
    if step_time is None:
        return None
    return _rounded(step_time, _unit(step_time))


def apportioned(
    total: Fraction, parts: Mapping[str, Fraction], unit: Fraction
) -> dict[str, Fraction | None]:
    """Return parts that are rounded to multiples of a unit so that they sum to a total.

    The total is such a multiple itself. All parts are rounded down. Then the parts with the largest
    remainders get one unit more, until the sum is reached. Of equal remainders the first counts.
    """
    n_units_of_parts = {name: part / unit for name, part in parts.items()}
    n_whole_units = {name: math.floor(n_units) for name, n_units in n_units_of_parts.items()}

    def remainder_of(name: str) -> Fraction:
        return n_units_of_parts[name] - n_whole_units[name]

    # Stable although reversed: names with equal remainders stay in their order.
    largest_remainder_first = sorted(parts, key=remainder_of, reverse=True)
    n_units_of_total = int(total / unit)
    n_missing_units = n_units_of_total - sum(n_whole_units.values())
    for name in largest_remainder_first[:n_missing_units]:
        n_whole_units[name] += 1
    return {name: n_units * unit for name, n_units in n_whole_units.items()}


def _mean(side: Sequence[StepTable], name: str) -> Fraction | None:
    """Return the mean of a part over a side's captures; None if a capture does not have it."""
    return mean_of(table.mean_of_slowest(name) for table in side)


def _unit(step_time: Fraction | None) -> Fraction:
    """Return the unit that a step time and its parts are rounded to, ns; the fine one for None."""
    is_fine = step_time is None or step_time < _MAX_FINE_NS
    return _FINE_UNIT if is_fine else Fraction(1)


def _rounded(value: Fraction, unit: Fraction) -> Fraction:
    """Return the nearest multiple of a unit."""
    n_units = round(value / unit)
    return n_units * unit


def _rounded_or_none(value: Fraction | None) -> Fraction | None:
    """Return a time in fine units, and None as None."""
    return None if value is None else _rounded(value, _FINE_UNIT)


# --- steps as matrices ----------------------------------------------------------------------------
class StepTable(Struct, frozen=True, dict=True):
    """The summary steps of a run as matrices: a row per rank, a column per step by time."""

    run: Run
    # Whether idle time counts as null. So it does if this run has CUDA graphs that were captured as
    # a whole, and another run has none: the gaps inside such graphs were not seen.
    hides_idle: bool = False
    # Columns that count as null, because they mean something else in a newer run that this one is
    # compared with.
    outdated_columns: frozenset[str] = frozenset()

    @classmethod
    def of_sides(cls, *sides: Sequence[Run]) -> tuple[list[StepTable], ...]:
        """Return for each side the tables of its captures.

        Captures of all sides are compared with each other. What not all of them recorded alike
        counts as null, see `hides_idle` and `outdated_columns`.
        """
        runs = [run for side in sides for run in side]
        runs_with_graphs = [run for run in runs if has_whole_graphs(run)]
        have_only_some_graphs = 0 < len(runs_with_graphs) < len(runs)
        latest_version = latest_of(run.definitions_version for run in runs)

        def table_of(run: Run) -> StepTable:
            outdated_columns = changed_columns(run.definitions_version, latest_version)
            hides_idle = have_only_some_graphs and has_whole_graphs(run)
            return cls(run, hides_idle=hides_idle, outdated_columns=outdated_columns)

        tables = [list(map(table_of, side)) for side in sides]
        return tuple(tables)

    @cached_property
    def rows(self) -> pa.Table:
        """`schema.STEPS` of the summary steps, by rank and in order of time.

        Numbers of steps need not ascend with time, so the starts decide.
        """
        breakdown = self.run.breakdown()
        rows = breakdown.sort_by(
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
        """The numbers of the summary steps, in order of time: the matrices' columns.

        A DatasetError if not all ranks have the same steps.
        """
        step_of_row = self.rows["step"].to_numpy()
        n_ranks = len(self.ranks)
        if not n_ranks:
            return np.empty(0, np.int64)
        # The rows are sorted by rank, so those of the first rank come first.
        n_steps = step_of_row.size // n_ranks
        steps: Int64 = step_of_row[:n_steps]
        steps_of_all_ranks = np.tile(steps, n_ranks)
        if not np.array_equal(step_of_row, steps_of_all_ranks):
            what = "has metrics of steps that some ranks do not have"
            raise DatasetError(self.run.header.run_id, what, fix="analyze the reports again")
        return steps

    def matrix(self, column: str) -> Int64 | None:
        """Return a column of integers as ranks x steps; None without steps.

        None too if a value is null, or if the column counts as null in this comparison.
        """
        is_hidden = self.hides_idle and column.startswith("idle_")
        if is_hidden or column in self.outdated_columns:
            return None
        values = self.rows[column]
        if values.null_count or not self.n_steps:
            return None
        matrix: Int64 = values.to_numpy().reshape(-1, self.n_steps)
        return matrix

    @cached_property
    def slowest_row_of_step(self) -> Int64:
        """For each step the matrix row of the rank with the largest window; empty without steps.

        If windows are equally long, it is the row of the lowest rank.
        """
        wall_ns = self.matrix("wall_ns")
        if wall_ns is None:
            return np.empty(0, np.int64)
        # Of equal values argmax returns the first, and the rows ascend by rank.
        slowest_row_of_step: Int64 = np.argmax(wall_ns, axis=0)
        return slowest_row_of_step

    def mean_of_slowest(self, name: str) -> Fraction | None:
        """Return the exact mean over steps of a part, or a cause of idle time, ns.

        Of each step the value of the slowest rank counts. None if the column has no matrix.
        """
        column = name if name in IDLE_CAUSES else f"{name}_ns"
        values = self.matrix(column)
        if values is None:
            return None
        every_step = np.arange(self.n_steps)
        value_of_step = values[self.slowest_row_of_step, every_step]
        # Python's integers do not overflow, as a sum in 64 bits may.
        total = sum(value_of_step.tolist())
        return Fraction(total, self.n_steps)

    @cached_property
    def transfers(self) -> dict[str, Float64 | None]:
        """Transfer time, message bytes and bus bytes of each step, in the order of steps.

        They are sums over the matched collectives of the summary steps. A sum is None without such
        collectives, if the column is null for one of them, or if the column counts as null
        (`outdated_columns`).
        """
        collectives = self.run.collectives()
        # Only matched collectives have a transfer time.
        is_matched = pc.is_valid(collectives["transfer_ns"])
        is_used = pc.and_(collectives["in_summary"], is_matched)
        used_collectives = collectives.filter(is_used)
        step_of_collective = used_collectives["step"].to_numpy()
        index_of_step = self._indices_of_steps(step_of_collective)
        names = ("transfer_ns", "message_bytes", "bus_bytes")
        sums: dict[str, Float64 | None] = dict.fromkeys(names)
        for name in {*names} - self.outdated_columns:
            values = used_collectives.column(name)
            if used_collectives.num_rows and not values.null_count:
                sums_of_steps = np.bincount(index_of_step, values.to_numpy(), self.n_steps)
                sums[name] = sums_of_steps.astype(np.float64)
        return sums

    def _indices_of_steps(self, numbers: Int64) -> Int64:
        """Return for each number of a step the index of this step in `steps`.

        Numbers need not ascend in `steps`, so they are looked up in a sorted copy.
        """
        index_in_steps = np.argsort(self.steps)
        sorted_numbers = self.steps[index_in_steps]
        index_in_sorted = np.searchsorted(sorted_numbers, numbers)
        indices: Int64 = index_in_steps[index_in_sorted]
        return indices


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
    n_captures_with_graphs = sum(has_whole_graphs(capture.run) for capture in captures)
    have_only_some_graphs = 0 < n_captures_with_graphs < len(captures)
    if have_only_some_graphs or not all(map(_has_kernel_times, captures)):
        return KERNEL_CHANGES.empty()
    costs_before = _kernel_costs(baseline)
    costs_after = _kernel_costs(candidate)
    max_same_ns = negligible_kernel_change_ns(captures)
    rows = []
    for key in {*costs_before, *costs_after}:
        before = costs_before.get(key)
        after = costs_after.get(key)
        status = _status_of_kernel(before, after, min_effect, max_same_ns)
        row = _kernel_row(key, before or _NO_COST, after or _NO_COST, status)
        rows.append(row)
    rows.sort(key=_largest_change_first)
    return KERNEL_CHANGES.from_rows(rows)


class _KernelOrder(NamedTuple):
    """What the rows of kernels are sorted by."""

    # Less than 0, so that the largest change comes first in an ascending sort.
    negative_change_ns: float
    phase: str
    name: str


def _largest_change_first(row: Mapping[str, Any]) -> _KernelOrder:
    change_ns = abs(row["delta_ns_per_step"])
    return _KernelOrder(-change_ns, row["phase"] or "", row["name"])


def _has_kernel_times(capture: StepTable) -> bool:
    """Tell whether a capture has summary steps, and the time of every kernel in them."""
    if not capture.n_steps:
        return False
    times = capture.run.kernels()["in_summary_ns"]
    return not times.null_count


def _status_of_kernel(
    before: KernelCost | None, after: KernelCost | None, min_effect: float, max_same_ns: float
) -> str:
    """Return the status of a kernel in `KERNEL_CHANGES`.

    A side that does not run the kernel has None as cost. The kernel is the same if its time changed
    by at most the share `min_effect` of the shorter time, and by at most `max_same_ns`.
    """
    if before is None:
        return "appeared"
    if after is None:
        return "vanished"
    shorter_ns = min(before.ns, after.ns)
    max_change_ns = min(min_effect * shorter_ns, max_same_ns)
    change_ns = abs(after.ns - before.ns)
    return "same" if change_ns <= max_change_ns else "changed"


def _kernel_row(
    key: KernelKey, before: KernelCost, after: KernelCost, status: str
) -> dict[str, Any]:
    row = {**key._asdict(), "status": status}
    row["delta_ns_per_step"] = after.ns - before.ns
    row |= _columns_of_side("baseline", before)
    row |= _columns_of_side("candidate", after)
    return row


def _columns_of_side(side: str, cost: KernelCost) -> dict[str, float | None]:
    return {
        f"{side}_ns_per_step": cost.ns,
        f"{side}_n_per_step": cost.n_launches,
        f"{side}_mean_ns": cost.mean_ns,
    }


def negligible_kernel_change_ns(captures: Iterable[StepTable]) -> float:
    """Return the largest change of a kernel's time that is not worth a line, ns per rank and step.

    It is a share of the shortest mean step time of a capture; 0 if no capture has steps.
    """
    mean_step_times_ns = []
    for capture in captures:
        wall_ns = capture.matrix("wall_ns")
        if wall_ns is not None:
            step_times_ns = wall_ns.max(axis=0)
            mean_step_times_ns.append(float(step_times_ns.mean()))
    return MIN_KERNEL_CHANGE_SHARE_OF_STEP * min(mean_step_times_ns, default=0.0)


def top_kernels(kernels: pa.Table, negligible_ns: float) -> pa.Table:
    """Return the first ten of `KERNEL_CHANGES` that are worth a line, the largest change first."""
    changes_ns = pc.abs(kernels["delta_ns_per_step"])
    is_worth_line = pc.greater(changes_ns, negligible_ns)
    return kernels.filter(is_worth_line).slice(0, _MAX_TOP_KERNELS)


def _kernel_costs(side: Sequence[StepTable]) -> dict[KernelKey, KernelCost]:
    """Return the costs of the kernels that run in summary steps, as means over captures.

    A capture without a kernel counts as one in which the kernel costs nothing.
    """
    costs: dict[KernelKey, KernelCost] = {}
    for capture in side:
        n_rank_steps = len(capture.ranks) * capture.n_steps
        # A capture's mean is over ranks and steps. The mean over captures is the sum of these means
        # over the number of captures.
        divisor = n_rank_steps * len(side)
        kernels = capture.run.kernels()
        by_key = kernels.group_by(["phase", "name"], use_threads=False)
        sums = by_key.aggregate([("in_summary_ns", "sum"), ("n_in_summary", "sum")])
        for row in sums.to_pylist():
            n_launches = row["n_in_summary_sum"]
            if n_launches:
                key = KernelKey(row["phase"], row["name"])
                so_far = costs.get(key, _NO_COST)
                ns_per_step = so_far.ns + row["in_summary_ns_sum"] / divisor
                n_per_step = so_far.n_launches + n_launches / divisor
                costs[key] = KernelCost(ns_per_step, n_per_step)
    return costs
