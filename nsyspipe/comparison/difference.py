"""Before and after: the two sides, everything that differs between them, whether it is noise, and whether a gate lets it pass."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, count, islice
from pathlib import Path
from typing import Any, Self

import pyarrow as pa

from nsyspipe.analysis.summary import Evenness
from nsyspipe.comparison.changes import (
    SIDES,
    StepTable,
    kernel_changes,
    little_ns,
    mean_step_time,
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
    hidden_comm_ns,
    metric_rows,
    outlier,
    overall_verdict,
)
from nsyspipe.comparison.sides import Side
from nsyspipe.comparison.surroundings import (
    Cause,
    Surroundings,
    cause_of,
    opposed_parts,
    surroundings,
)
from nsyspipe.errors import rows_in_python
from nsyspipe.run.run import NamedTables, Run

_THIS = ": nsyspipe diff"  # a fix that this is itself
_EXIT_CODES = {"passed": 0, "failed": 3, "undecided": 4}  # of the contract
_FAILING = {"regression": ("regression",), "any-change": ("regression", "improvement", "change")}


def told_apart(sides: Sequence[Side]) -> list[Side]:
    """Return sides with names of their own: of equal ones those that nobody gave become directories, else get run ids or numbers."""
    names = [side.name for side in sides]
    for name in [name for name, n in Counter(names).items() if n > 1]:
        alike = [at for at, one in enumerate(names) if one == name]
        free = [at for at in alike if sides[at].runs[0].given_label is None] or alike
        runs = [sides[at].runs[0] for at in free]
        taken = {one for at, one in enumerate(names) if at not in free}
        numbers = (
            one for one in chain([name], (f"{name} ({n})" for n in count(2))) if one not in taken
        )
        ways = (
            *_directories(runs),
            [f"{name} ({run.header.run_id})" for run in runs],
            [*islice(numbers, len(runs))],
        )
        for at, own in zip(
            free, next(own for own in ways if len({*own} - taken) == len(runs)), strict=True
        ):
            names[at] = own
    named = zip(sides, names, strict=True)
    return [side if side.name == name else replace(side, shown_as=name) for side, name in named]


def _directories(runs: Sequence[Run]) -> list[list[str]]:
    places = [
        (path if path.is_dir() else path.parent).parts
        for path in (run.inputs[0].absolute() for run in runs)
    ]
    return [
        [str(Path(*place[-n:])) for place in places] for n in range(1, 1 + max(map(len, places)))
    ]


@dataclass(frozen=True, repr=False)
class Gate(NamedTables):
    """Whether a difference passes. Only one that passed is true.

    `verdict` says it in a sentence, with the metrics and from where on a change of them counts.

    Attributes
    ----------
    fail_on
        ``regression`` or ``any-change``.
    outcome
        ``passed``, ``failed`` or ``undecided``.
    judged, failed, undecided
        Rows of `METRIC_ROWS`: those judged, those that failed, those that nobody can be sure of.
    """

    fail_on: str
    outcome: str
    judged: tuple[Mapping[str, Any], ...]
    failed: tuple[Mapping[str, Any], ...]
    undecided: tuple[Mapping[str, Any], ...]

    @classmethod
    def of(cls, rows: Sequence[Mapping[str, Any]], fail_on: str) -> Self:
        """Judge the metrics that a verdict rests on.

        Of ``regression`` it fails where something got worse, and passes where the worse end of each
        interval lies below what counts; of ``any-change``, as after a change that should change
        nothing, where something changed either way, and where nothing did. An `OptionError` if it
        is neither, or ``regression`` for a metric that is neither better lower nor higher.
        """
        check_can_fail(fail_on, {row["metric"]: row["better"] for row in rows})
        failed = tuple(row for row in rows if row["verdict"] in _FAILING[fail_on])
        unsure = (row for row in rows if row["verdict"] == INCONCLUSIVE)
        undecided = tuple(
            row for row in unsure if not (fail_on == "regression" and row.get("no_regression"))
        )
        outcome = "failed" if failed else "undecided" if undecided else "passed"
        return cls(fail_on, outcome, tuple(rows), failed, undecided)

    @property
    def exit_code(self) -> int:
        """That of ``nsyspipe diff --fail-on``: 0 passed, 3 failed, 4 undecided."""
        return _EXIT_CODES[self.outcome]

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the judged metrics."""
        return tuple(row["metric"] for row in self.judged)

    @property
    def min_effect_pct(self) -> float:
        """From where on a change of them counts, per cent of the baseline."""
        return float(self.judged[0]["min_effect_pct"])

    def __bool__(self) -> bool:
        return self.outcome == "passed"

    def __repr__(self) -> str:
        return f"<Gate {self.outcome}>"


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
        Who set all that, of a command; nothing: a caller from Python.
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
        """Whether it passes, by what it was asked to fail on; None if that is nothing."""
        return None if self.fail_on is None else Gate.of(self.judged_rows, self.fail_on)

    @cached_property
    def comparability(self) -> pa.Table:
        """`COMPARABILITY`: what makes the comparison doubtful or impossible, the latter first."""
        sides = self.baseline, self.candidate
        checks = [*check_comparable(*sides), *check_definitions(*sides), *check_order(*sides)]
        return COMPARABILITY.from_rows([check._asdict() for check in checks])

    @property
    def is_comparable(self) -> bool:
        """Whether nothing blocks: equal world size, GPU model, ranks per batch and work, and no rank missing on one side only."""
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
        """`METRIC_ROWS`: per figure of a step both medians, delta, its interval, n and verdict."""
        why = [
            row["message"].partition(": ")[0]
            for row in self.comparability.to_pylist()
            if row["blocks"]
        ]
        blocked = f"not comparable: {', '.join(why)}" if why and not self.rules.is_forced else None
        is_open = blocked is None and UNLIKE not in self.comparability["check"].to_pylist()
        return metric_rows(
            *self._tables, rules=self.rules, blocked=blocked, settled=self.judged if is_open else ()
        )

    @cached_property
    def outlier(self) -> Outlier | None:
        """The one step that makes a judged step time inconclusive, against what would otherwise be decided; else None."""
        may_decide = self.is_comparable or self.rules.is_forced
        return (
            outlier(*self._tables, rules=self.rules, rows=self.judged_rows) if may_decide else None
        )

    @cached_property
    def cause(self) -> Cause | None:
        """Where most of a step time that got better or worse comes from; None if it did not, or steps may do other work.

        What a number may be the cause of goes its way, and by a tenth: more bytes, copies or
        lateness, or less bandwidth, make a part longer. Kernels are a cause if those that only one
        side runs make up half of the change of compute. By force between sides that are not
        comparable there is none: what makes them so may be it.
        """
        return cause_of(self)

    @cached_property
    def opposed_parts(self) -> tuple[tuple[str, float], ...]:
        """The part, or cause of idling, that changed most against the step time, ns; where that is not decided those that did most each way.

        Nothing of less than 2 % of the step, nor of sides that are not comparable.
        """
        return opposed_parts(self)

    @property
    def statistic(self) -> str:
        """What times are judged on: ``mean`` where the steps of either run are uneven, else ``median``."""
        statistic: str | None = self.metrics["statistic"][
            self.metrics["metric"].index("step_time").as_py()
        ].as_py()
        return statistic or "median"

    @cached_property
    def hidden_comm_ns(self) -> tuple[float, float] | None:
        """Communication beside compute of baseline and candidate, of the rank with most of it; None where not known."""
        before, after = (hidden_comm_ns(side, self.statistic) for side in self._tables)
        return None if before is None or after is None else (before, after)

    @cached_property
    def evenness(self) -> list[list[Evenness]]:
        """How even the step times of each capture of baseline and candidate are; of those that have any."""
        return list(map(evenness_of, self._tables))

    @cached_property
    def _parts(self) -> tuple[pa.Table, pa.Table]:
        return step_parts(*self._tables)

    @property
    def step_time_parts(self) -> pa.Table:
        """`STEP_TIME_PARTS`: compute, exposed comm, exposed memory, idle; they sum to `mean_step_time` exactly."""
        return self._parts[0]

    @property
    def idle_causes(self) -> pa.Table:
        """`IDLE_CAUSE_PARTS`: the part idle by cause, summing to it exactly."""
        return self._parts[1]

    @cached_property
    def mean_step_time(self) -> tuple[float | None, float | None, float | None]:
        """Mean step time of baseline and candidate and their difference, ns; None without steps."""
        before, after = (
            None if (mean := mean_step_time(side)) is None else float(mean) for side in self._tables
        )
        return before, after, None if before is None or after is None else after - before

    @cached_property
    def kernels(self) -> pa.Table:
        """`KERNEL_CHANGES`: every kernel of either side, the largest |delta| per step first."""
        return kernel_changes(*self._tables, min_effect=self.rules.min_effect)

    @cached_property
    def top_kernels(self) -> pa.Table:
        """The first rows of `kernels`, ten at most: those that change by more than 0.1 % of the lesser step time."""
        return top_kernels(self.kernels, little_ns(chain.from_iterable(self._tables)))

    @cached_property
    def _surroundings(self) -> Surroundings:
        return surroundings(*self._tables)

    @cached_property
    def changes(self) -> pa.Table:
        """`CHANGES`: collectives, copies, stragglers, link, versions and capture, where they differ."""
        return self._surroundings.changes

    @property
    def facts(self) -> pa.Table:
        """`FACTS`: which of these both sides recorded, and are the same; what records the others."""
        return self._surroundings.facts

    @property
    def problems(self) -> pa.Table:
        """`SIDE_PROBLEMS`: the problems of each capture by itself; what the two sides make doubtful together is `comparability`."""
        return SIDE_PROBLEMS.from_rows(rows_in_python(self.problem_rows))

    @property
    def problem_rows(self) -> list[dict[str, Any]]:
        """The same in the words of the commands."""
        return [
            {
                "side": name,
                "run_id": run.header.run_id,
                **row,
                "fix": row["fix"] and row["fix"].removesuffix(_THIS),
            }
            for name, side in zip(SIDES, (self.baseline, self.candidate), strict=True)
            for run in side.runs
            for row in run.problem_rows
        ]

    @property
    def judged_rows(self) -> list[dict[str, Any]]:
        """The rows of `metrics` that the verdict rests on, in the order in which they were named."""
        rows = {row["metric"]: row for row in self.metrics.to_pylist()}
        return [rows[name] for name in self.judged]

    @property
    def verdict(self) -> str:
        """Of the judged metrics the first of: regression, inconclusive, improvement, no change.

        Those that are neither better lower nor higher do not enter; if all are such, and one
        changed, it is inconclusive: nothing says whether that is better.
        """
        return overall_verdict(self.judged_rows)

    @cached_property
    def _tables(self) -> tuple[list[StepTable], ...]:
        return StepTable.of_sides(self.baseline.runs, self.candidate.runs)

    def __repr__(self) -> str:
        return f"<RunDifference {self.baseline.name!r} -> {self.candidate.name!r}: {self.verdict}>"
