"""Before and after: the two sides, everything that differs between them, and whether it is noise."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from nsyspipe.analysis.summary import evenness
from nsyspipe.comparison.changes import StepTable, kernel_changes, mean_step_time, step_parts
from nsyspipe.comparison.comparability import check_comparable
from nsyspipe.comparison.gate import DEFAULT_CONFIDENCE, DEFAULT_MIN_EFFECT
from nsyspipe.comparison.metrics import DEFAULT_METRIC, metric_rows, overall_verdict, per_step
from nsyspipe.comparison.surroundings import surroundings
from nsyspipe.comparison.tables import COMPARABILITY, PROBLEMS_OF_SIDES
from nsyspipe.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa

    from nsyspipe.analysis.summary import Evenness
    from nsyspipe.run.run import Run


# The two sides of a difference: each one or several captures of the same configuration.


@dataclass(frozen=True)
class Side:
    """One side: a name, and its captures.

    Attributes
    ----------
    label
        What it is called.
    runs
        Captures of the same configuration, at least one.
    shown_as
        What to call it in words, where the label does not tell it from others.
    """

    label: str
    runs: tuple[Run, ...]
    shown_as: str | None = None

    @property
    def name(self) -> str:
        """What to call it in words."""
        return self.label if self.shown_as is None else self.shown_as

    def __post_init__(self) -> None:
        if not self.runs:
            raise OptionError(self.label, "has no run", fix="at least one capture on each side")


def check_captures(side: Side) -> None:
    """Refuse one capture that counts twice, since its spread between captures would be nothing.

    Raises
    ------
    OptionError
        If two runs of the side have one id.
    """
    twice = _first_double(run.header.run_id for run in side.runs)
    if twice is not None:
        raise OptionError(
            side.label, f"has the capture {twice} twice", fix="name each capture of a side once"
        )


def _first_double(values: Iterable[str]) -> str | None:
    seen: set[str] = set()
    for value in values:
        if value in seen:
            return value
        seen.add(value)
    return None


@dataclass(frozen=True)
class RunDifference:
    """What changed from a baseline to a candidate: tables with the schemas of `nsyspipe.comparison.tables`.

    Every difference is candidate - baseline: swapping the sides negates each exactly, and a run differs from
    itself by exactly 0.

    Attributes
    ----------
    baseline, candidate
        The sides, each one or several captures.
    min_effect
        Smallest |delta| / baseline that counts, as a ratio.
    confidence
        Of the intervals.
    judged
        The metrics that the verdict rests on.
    is_forced
        Whether verdicts are given although the runs are not comparable.
    """

    baseline: Side
    candidate: Side
    min_effect: float = DEFAULT_MIN_EFFECT
    confidence: float = DEFAULT_CONFIDENCE
    judged: tuple[str, ...] = (DEFAULT_METRIC,)
    is_forced: bool = False

    @cached_property
    def comparability(self) -> pa.Table:
        """`tables.COMPARABILITY`: what makes the comparison doubtful or impossible, the latter first."""
        found = check_comparable(self.baseline, self.candidate)
        return COMPARABILITY.from_rows([check.row() for check in found])

    @property
    def is_comparable(self) -> bool:
        """Whether nothing blocks: equal world size, GPU model, and no rank missing on one side only."""
        return not any(self.comparability["blocks"].to_pylist())

    @property
    def has_spread_between_captures(self) -> bool:
        """Whether a side has several captures, so that what differs between captures is in the intervals."""
        return len(self.baseline.runs) > 1 or len(self.candidate.runs) > 1

    @property
    def has_capture_without_steps(self) -> bool:
        """Whether a side is a capture without steps: then only shares and bandwidths of it are compared."""
        return any(run.is_capture for run in (*self.baseline.runs, *self.candidate.runs))

    @cached_property
    def metrics(self) -> pa.Table:
        """`tables.METRIC_ROWS`: per figure of a step both medians, delta, its interval, n and verdict."""
        blocking = [row["check"] for row in self.comparability.to_pylist() if row["blocks"]]
        is_blocked = blocking and not self.is_forced
        return metric_rows(
            *self._tables,
            min_effect=self.min_effect,
            confidence=self.confidence,
            blocked=f"not comparable: {', '.join(blocking)}" if is_blocked else None,
            settled=() if is_blocked else self.judged,
        )

    @property
    def statistic(self) -> str:
        """What times are judged on: ``mean`` where the steps of either run are uneven, else ``median``."""
        found = next(row for row in self.metrics.to_pylist() if row["metric"] == DEFAULT_METRIC)
        return found["statistic"] or "median"

    @cached_property
    def evenness(self) -> tuple[list[Evenness], list[Evenness]]:
        """How even the step times of each capture of baseline and candidate are; of those that have any."""
        before, after = (
            [found for table in side if (found := _evenness(table))] for side in self._tables
        )
        return before, after

    @cached_property
    def step_time_parts(self) -> pa.Table:
        """`tables.STEP_TIME_PARTS`: compute, exposed comm, exposed memory, idle; they sum to `mean_step_time` exactly."""
        return self._parts[0]

    @cached_property
    def idle_causes(self) -> pa.Table:
        """`tables.IDLE_CAUSE_PARTS`: the part idle by cause, summing to it exactly."""
        return self._parts[1]

    @cached_property
    def mean_step_time(self) -> tuple[float | None, float | None, float | None]:
        """Mean step time of baseline and candidate and their difference, ns; None without steps."""
        before, after = map(mean_step_time, self._tables)
        return (
            None if before is None else float(before),
            None if after is None else float(after),
            None if before is None or after is None else float(after - before),
        )

    @cached_property
    def kernels(self) -> pa.Table:
        """`tables.KERNEL_CHANGES`: every kernel of either side, the largest |delta| per step first."""
        return kernel_changes(*self._tables, min_effect=self.min_effect)

    @cached_property
    def changes(self) -> pa.Table:
        """`tables.CHANGES`: collectives, copies, stragglers, link, versions and capture, where they differ."""
        return surroundings(self.baseline, self.candidate, self._tables)

    @cached_property
    def problems(self) -> pa.Table:
        """`tables.PROBLEMS_OF_SIDES`: the problems of each side's captures."""
        rows = [
            {"side": name, "run_id": run.header.run_id, **row}
            for name, side in (("baseline", self.baseline), ("candidate", self.candidate))
            for run in side.runs
            for row in run.problems.to_pylist()
        ]
        return PROBLEMS_OF_SIDES.from_rows(rows)

    @property
    def judged_rows(self) -> list[dict[str, Any]]:
        """The rows of `metrics` that the verdict rests on, in the order in which they were named."""
        rows = {row["metric"]: row for row in self.metrics.to_pylist()}
        return [rows[name] for name in self.judged]

    @property
    def verdict(self) -> str:
        """Of the judged metrics the first of: regression, inconclusive, improvement, no change.

        Those that are neither better lower nor higher do not enter; if all are such, and one changed, it is
        inconclusive: nothing says whether that is better.
        """
        return overall_verdict(self.judged_rows)

    @cached_property
    def _tables(self) -> tuple[list[StepTable], list[StepTable]]:
        before, after = StepTable.of_sides(self.baseline.runs, self.candidate.runs)
        return before, after

    @cached_property
    def _parts(self) -> tuple[pa.Table, pa.Table]:
        return step_parts(*self._tables)

    def __repr__(self) -> str:
        return f"<RunDifference {self.baseline.name!r} -> {self.candidate.name!r}: {self.verdict}>"


def _evenness(table: StepTable) -> Evenness | None:
    values = per_step(table, DEFAULT_METRIC)
    return None if isinstance(values, str) else evenness(values)
