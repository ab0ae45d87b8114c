"""Two sides, all their differences, the verdict, and the gate."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Any, Self

import pyarrow as pa

from nsyspipe.analysis.summary import Evenness
from nsyspipe.comparison.causes import Cause, MeanStepTime, PartDelta, cause_of, opposed_parts
from nsyspipe.comparison.changes import (
    SIDES,
    StepTable,
    float_or_none,
    kernel_changes,
    mean_step_time,
    negligible_kernel_change_ns,
    step_parts,
    top_kernels,
)
from nsyspipe.comparison.comparability import (
    COMPARABILITY,
    SIDE_PROBLEMS,
    UNLIKE,
    check_comparable,
    check_definitions,
    check_order,
)
from nsyspipe.comparison.gate import NOTHING_SET, GateSettings, check_can_fail
from nsyspipe.comparison.metrics import (
    INCONCLUSIVE,
    Outlier,
    Rules,
    evenness_of,
    find_outlier,
    hidden_comm_ns,
    metric_rows,
    overall_verdict,
)
from nsyspipe.comparison.side import Side
from nsyspipe.comparison.surroundings import Surroundings, surroundings
from nsyspipe.errors import rows_in_python
from nsyspipe.run.run import NamedTables

# The end of a fix that names the command that is running.
_FIX_BY_DIFF = ": nsyspipe diff"
# Promised to users: they are part of the contract.
_EXIT_CODES = {"passed": 0, "failed": 3, "undecided": 4}
# What the gate fails on -> the verdicts that fail.
_FAILING_VERDICTS = {
    "regression": ("regression",),
    "any-change": ("regression", "improvement", "change"),
}


@dataclass(frozen=True, repr=False)
class Gate(NamedTables):
    """Whether a difference passes. Only a gate that passed is true.

    `verdict` says it in a sentence, with the metrics and the minimum effect.

    Attributes
    ----------
    fail_on
        ``regression`` or ``any-change``.
    outcome
        ``passed``, ``failed`` or ``undecided``.
    judged, failed, undecided
        Rows of `METRIC_ROWS`: those judged, those that failed, those that are not certain.
    """

    fail_on: str
    outcome: str
    judged: tuple[Mapping[str, Any], ...]
    failed: tuple[Mapping[str, Any], ...]
    undecided: tuple[Mapping[str, Any], ...]

    @classmethod
    def of(cls, rows: Sequence[Mapping[str, Any]], fail_on: str) -> Self:
        """Judge the metrics that a verdict rests on.

        With ``regression`` it fails if a metric got worse, and passes if the worse end of each
        interval is below the minimum effect. With ``any-change``, for a change of the code that
        should change nothing, it fails if a metric changed in any direction, and passes if none
        did.

        Raises
        ------
        OptionError
            If `fail_on` is none of these, or if it is ``regression`` for a metric without a better
            direction.
        """
        better_by_metric = {row["metric"]: row["better"] for row in rows}
        check_can_fail(fail_on, better_by_metric)
        failing_verdicts = _FAILING_VERDICTS[fail_on]
        failed = [row for row in rows if row["verdict"] in failing_verdicts]
        undecided = [row for row in rows if _is_undecided(row, fail_on)]
        if failed:
            outcome = "failed"
        elif undecided:
            outcome = "undecided"
        else:
            outcome = "passed"
        return cls(fail_on, outcome, tuple(rows), tuple(failed), tuple(undecided))

    @property
    def exit_code(self) -> int:
        """Exit code of ``nsyspipe diff --fail-on``: 0 passed, 3 failed, 4 undecided."""
        return _EXIT_CODES[self.outcome]

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the judged metrics."""
        return tuple(row["metric"] for row in self.judged)

    @property
    def min_effect_pct(self) -> float:
        """The minimum effect in percent of the baseline."""
        return float(self.judged[0]["min_effect_pct"])

    def __bool__(self) -> bool:
        return self.outcome == "passed"

    def __repr__(self) -> str:
        return f"<Gate {self.outcome}>"


def _is_undecided(row: Mapping[str, Any], fail_on: str) -> bool:
    """Tell whether a metric is inconclusive, and may be what the gate fails on."""
    if row["verdict"] != INCONCLUSIVE:
        return False
    return not (fail_on == "regression" and row.get("no_regression"))


@dataclass(frozen=True)
class RunDifference(NamedTables):
    """What changed from a baseline to a candidate, as tables.

    Every difference is candidate - baseline: swapping the sides negates each exactly, and a run
    differs from itself by exactly 0. `verdict` is a word, `headline` a sentence.

    Attributes
    ----------
    baseline, candidate
        The two sides.
    rules
        What counts, and how sure the intervals are.
    judged
        The metrics that the verdict and the gate rest on.
    fail_on
        What its gate fails on; None: nothing was asked.
    settings
        Which options of a command, or which file, set all this; nothing for a caller from Python.
    """

    _TABLES = (
        "metrics",
        "step_time_parts",
        "idle_causes",
        "kernels",
        "changes",
        "facts",
        "comparability",
        "problems",
    )

    baseline: Side
    candidate: Side
    rules: Rules = field(default_factory=Rules)
    judged: tuple[str, ...] = ("step_time",)
    fail_on: str | None = None
    settings: GateSettings = NOTHING_SET

    @cached_property
    def gate(self) -> Gate | None:
        """Whether the difference passes; None if no gate was asked for."""
        if self.fail_on is None:
            return None
        return Gate.of(self.judged_rows, self.fail_on)

    @cached_property
    def comparability(self) -> pa.Table:
        """`COMPARABILITY`: what makes the comparison impossible, then what makes it doubtful."""
        sides = self._sides
        checks = check_comparable(*sides)
        checks += check_definitions(*sides)
        checks += check_order(*sides)
        rows = [check._asdict() for check in checks]
        return COMPARABILITY.from_rows(rows)

    @property
    def _sides(self) -> tuple[Side, Side]:
        return (self.baseline, self.candidate)

    @property
    def is_comparable(self) -> bool:
        """Whether nothing blocks the comparison.

        Sides have equal world size, GPU model, model-parallel size and work, and no rank is missing
        on one side only.
        """
        return not any(self.comparability["blocks"].to_pylist())

    @property
    def has_spread_between_captures(self) -> bool:
        """Whether a side has several captures, so that intervals include their spread."""
        return any(len(side.runs) > 1 for side in self._sides)

    @property
    def has_capture_without_steps(self) -> bool:
        """Whether a side is a capture without steps: only shares and bandwidths are compared."""
        all_runs = (*self.baseline.runs, *self.candidate.runs)
        return any(run.is_capture for run in all_runs)

    @cached_property
    def metrics(self) -> pa.Table:
        """`METRIC_ROWS`: of each metric both medians or means, delta, its interval and verdict."""
        blocked = self._why_blocked()
        checks = self.comparability["check"].to_pylist()
        can_be_settled = blocked is None and UNLIKE not in checks
        settled = self.judged if can_be_settled else ()
        return metric_rows(*self._tables, rules=self.rules, blocked=blocked, settled=settled)

    def _why_blocked(self) -> str | None:
        """Return why no verdict may be given; None if one may be, or is forced."""
        rows = self.comparability.to_pylist()
        messages = [row["message"] for row in rows if row["blocks"]]
        if not messages or self.rules.is_forced:
            return None
        reasons = [message.partition(": ")[0] for message in messages]
        return f"not comparable: {', '.join(reasons)}"

    @cached_property
    def outlier(self) -> Outlier | None:
        """The one step without which a judged step time would not be inconclusive; else None."""
        if not self.is_comparable and not self.rules.is_forced:
            return None
        return find_outlier(*self._tables, rules=self.rules, rows=self.judged_rows)

    @cached_property
    def cause(self) -> Cause | None:
        """Where most of a step time that got better or worse comes from; None if it did not.

        A number may be the cause if it changed by a tenth or more, and in the right direction: more
        bytes, copies or delay, or less bandwidth, make a part longer. Kernels are a cause if those
        that only one side runs make up half of the change of compute. There is none for sides that
        are not comparable, even if they were compared by force: what makes them so may be the
        cause.
        """
        return cause_of(self)

    @cached_property
    def opposed_parts(self) -> tuple[PartDelta, ...]:
        """The part, or cause of idle time, that changed most against the step time, ns.

        If the step time did not get better or worse, those that changed most in each direction.
        Nothing below 2 % of the step, and nothing of sides that are not comparable.
        """
        return opposed_parts(self)

    @property
    def statistic(self) -> str:
        """What times are judged on: ``mean`` if the steps of a run are uneven, else ``median``."""
        metrics = self.metrics
        row = metrics["metric"].index("step_time").as_py()
        statistic: str | None = metrics["statistic"][row].as_py()
        return statistic or "median"

    @cached_property
    def hidden_comm_ns(self) -> tuple[float, float] | None:
        """Overlapped communication of both sides, of the rank with most of it; None if unknown."""
        statistic = self.statistic
        before_ns, after_ns = (hidden_comm_ns(side, statistic) for side in self._tables)
        if before_ns is None or after_ns is None:
            return None
        return before_ns, after_ns

    @cached_property
    def evenness(self) -> list[list[Evenness]]:
        """How even the step times of the captures of both sides are; of those that have any."""
        return list(map(evenness_of, self._tables))

    @cached_property
    def _parts(self) -> tuple[pa.Table, pa.Table]:
        return step_parts(*self._tables)

    @property
    def step_time_parts(self) -> pa.Table:
        """`STEP_TIME_PARTS`: the parts of the step, which sum to `mean_step_time` exactly."""
        return self._parts[0]

    @property
    def idle_causes(self) -> pa.Table:
        """`IDLE_CAUSE_PARTS`: the causes of the part idle, which sum to it exactly."""
        return self._parts[1]

    @cached_property
    def mean_step_time(self) -> MeanStepTime:
        """Mean step time of baseline and candidate and their difference, ns; None without steps."""
        means = [mean_step_time(side) for side in self._tables]
        before_ns, after_ns = map(float_or_none, means)
        delta_ns = None
        if before_ns is not None and after_ns is not None:
            delta_ns = after_ns - before_ns
        return MeanStepTime(before_ns, after_ns, delta_ns)

    @cached_property
    def kernels(self) -> pa.Table:
        """`KERNEL_CHANGES`: all kernels of both sides, the largest |delta| per step first."""
        return kernel_changes(*self._tables, min_effect=self.rules.min_effect)

    @cached_property
    def top_kernels(self) -> pa.Table:
        """The first ten of `kernels` that change by more than 0.1 % of the shorter step time."""
        captures = chain.from_iterable(self._tables)
        return top_kernels(self.kernels, negligible_kernel_change_ns(captures))

    @cached_property
    def _surroundings(self) -> Surroundings:
        return surroundings(*self._tables)

    @cached_property
    def changes(self) -> pa.Table:
        """`CHANGES`: facts that differ, of collectives, copies, stragglers, link and capture."""
        return self._surroundings.changes

    @property
    def facts(self) -> pa.Table:
        """`FACTS`: which facts both sides recorded, which are the same, and what records others."""
        return self._surroundings.facts

    @property
    def problems(self) -> pa.Table:
        """`SIDE_PROBLEMS`: the problems of each capture; doubts about both are `comparability`."""
        return SIDE_PROBLEMS.from_rows(rows_in_python(self.problem_rows))

    @property
    def problem_rows(self) -> list[dict[str, Any]]:
        """The rows of `problems`, in the words of the commands."""
        rows = []
        for name, side in zip(SIDES, self._sides, strict=True):
            for run in side.runs:
                place = {"side": name, "run_id": run.header.run_id}
                for problem_row in run.problem_rows:
                    fix = _fix_of(problem_row)
                    rows.append(place | problem_row | {"fix": fix})
        return rows

    @property
    def judged_rows(self) -> list[dict[str, Any]]:
        """The rows of `metrics` that the verdict is based on, in the order of their names."""
        rows = {row["metric"]: row for row in self.metrics.to_pylist()}
        return [rows[name] for name in self.judged]

    @property
    def verdict(self) -> str:
        """The first of regression, inconclusive, improvement and no change that a metric has.

        Metrics that are neither better lower nor higher do not count. If all are such metrics, and
        one changed, the verdict is inconclusive, because nobody knows whether this is better.
        """
        return overall_verdict(self.judged_rows)

    @cached_property
    def _tables(self) -> tuple[list[StepTable], ...]:
        return StepTable.of_sides(self.baseline.runs, self.candidate.runs)

    def __repr__(self) -> str:
        sides = f"{self.baseline.name!r} -> {self.candidate.name!r}"
        return f"<RunDifference {sides}: {self.verdict}>"


def _fix_of(problem_row: Mapping[str, Any]) -> str | None:
    """Return how to fix a problem, without `nsyspipe diff` itself."""
    fix: str | None = problem_row["fix"]
    return fix and fix.removesuffix(_FIX_BY_DIFF)
