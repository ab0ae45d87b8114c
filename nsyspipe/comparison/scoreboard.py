"""Which of N runs is best: each with its figures, how it stands against the first and its peer, and which can be compared."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import islice
from operator import itemgetter
from typing import Any

import pyarrow as pa

from nsyspipe.analysis.summary import Evenness, divided
from nsyspipe.comparison.changes import SIDES, StepTable, mean_of, mean_step_time, step_parts
from nsyspipe.comparison.comparability import CHECKS_OF_RUNS, RUN_PROBLEMS, Check, check_comparable
from nsyspipe.comparison.facts import environment_of
from nsyspipe.comparison.gate import NOTHING_SET, GateSettings
from nsyspipe.comparison.metrics import (
    INCONCLUSIVE,
    NO_CHANGE,
    Rules,
    evenness_of,
    is_outdated,
    judged,
    of_captures,
    statistic_of,
)
from nsyspipe.comparison.sides import Side
from nsyspipe.comparison.statistics import Judgement, ratio_of_means
from nsyspipe.errors import OptionError, rows_in_python
from nsyspipe.model.columns import count, flag, ns, per_s, ratio, text
from nsyspipe.model.figures import METRICS, shown
from nsyspipe.model.problems import problem
from nsyspipe.model.table import FLOAT, Column, Float64, TableSchema
from nsyspipe.nsys.command_words import NOT_SET, joined_environments
from nsyspipe.run.run import NamedTables
from nsyspipe.run.work import parted

_FIGURE_COLUMNS = tuple(
    Column(figure.column, FLOAT, figure.unit, figure.meaning, nullable=True)
    for figure in shown("scoreboard table")
)

SCOREBOARD = TableSchema(
    name="scoreboard",
    doc="One row per run, in the order given or sorted. The first run is the baseline.",
    key=("label",),
    columns=(
        text("label", "name of the run, unique"),
        text("run_ids", "run IDs of its captures, separated by spaces"),
        count("n_captures", "number of its captures"),
        count("world_size", "ranks of the job, null if not recorded", nullable=True),
        count("n_ranks", "ranks with a report"),
        count(
            "n_processes",
            "processes of the ranks, fewer if some processes have several GPUs, null if not "
            "recorded",
            nullable=True,
        ),
        text("gpu_names", "GPU models, separated by commas, empty if not recorded"),
        count("n_summary_steps", "steps used, of all captures"),
        *_FIGURE_COLUMNS,
        per_s(
            "throughput_steps_per_s",
            "1 / mean step time (for several captures: of the mean of their means)",
            nullable=True,
        ),
        per_s(
            "rank_steps_per_s",
            "throughput x ranks, which is samples/s divided by the batch size of a rank if ranks "
            "share no batch",
            nullable=True,
        ),
        ratio(
            "speedup", "mean step time of the first run / mean step time of this run", nullable=True
        ),
        ratio(
            "speedup_low",
            "lower end of its confidence interval, null with too few steps",
            nullable=True,
        ),
        ratio("speedup_high", "upper end of its confidence interval", nullable=True),
        text(
            "verdict",
            "verdict on step time against the first run: reference, improvement, regression, no "
            "change or inconclusive",
        ),
        text("why", "why the verdict is inconclusive", nullable=True),
        text(
            "peer",
            "the first run of its group. Runs of a group have the same world size, GPU model, "
            "ranks, model-parallel size and, if known, work per step",
        ),
        ratio(
            "peer_speedup", "mean step time of the peer / mean step time of this run", nullable=True
        ),
        ratio(
            "peer_speedup_low",
            "lower end of its confidence interval, null with too few steps",
            nullable=True,
        ),
        ratio("peer_speedup_high", "upper end of its confidence interval", nullable=True),
        text(
            "peer_verdict",
            "verdict on step time against the peer, reference if the run is the peer",
        ),
        text("peer_why", "why this verdict is inconclusive", nullable=True),
        text(
            "peer_statistic",
            "statistic of this verdict: median, or mean if steps are uneven",
            nullable=True,
        ),
        ratio(
            "peer_delta_ratio",
            "(this run - the peer) / the peer, for this statistic of the step time",
            nullable=True,
        ),
        ratio(
            "peer_delta_low_ratio",
            "lower end of its confidence interval, null with too few steps",
            nullable=True,
        ),
        ratio("peer_delta_high_ratio", "upper end of its confidence interval", nullable=True),
        count(
            "peer_settle_steps",
            "approximate number of steps per capture that would settle the verdict, null if "
            "decided or if no number would",
            nullable=True,
        ),
        count(
            "peer_settle_captures",
            "approximate number of captures of each run that would settle the verdict",
            nullable=True,
        ),
        flag("is_uneven", "whether mean and median differ much, or few steps are near the median"),
        ns(
            "mean_step_time_ns",
            "mean over the steps used, of the slowest rank. The parts sum to it",
            arrow_type=FLOAT,
            nullable=True,
        ),
        ns(
            "compute_ns",
            "compute part of the mean step time, on the slowest rank",
            arrow_type=FLOAT,
            nullable=True,
        ),
        ns(
            "exposed_comm_ns",
            "exposed communication part of the mean step time",
            arrow_type=FLOAT,
            nullable=True,
        ),
        ns(
            "exposed_memory_ns",
            "exposed copies part of the mean step time",
            arrow_type=FLOAT,
            nullable=True,
        ),
        ns("idle_ns", "idle part of the mean step time", arrow_type=FLOAT, nullable=True),
    ),
)

ENVIRONMENTS = TableSchema(
    name="scoreboard_environments",
    doc=(
        "One row per training variable that differs between runs, and per run with a recorded "
        "environment."
    ),
    key=("what", "label"),
    columns=(
        text("what", "the variable"),
        text("label", "name of the run"),
        text(
            "value",
            "its value, several values if captures or processes differ, 'not set' if the run does "
            "not set it",
        ),
    ),
)

REFERENCE = "reference"

# What a scoreboard can be sorted by -> column of `SCOREBOARD`, and whether the most comes first.
SORTS = {
    **{
        name: (one.column, one.is_most_first)
        for name, one in METRICS.items()
        if one.column in SCOREBOARD.names
    },
    "rank_steps": ("rank_steps_per_s", True),
    "speedup": ("speedup", True),
}
_OF_CAPTURE = {  # a run without metrics that has no steps at all
    "message": "the capture has no steps, so there is no step time to compare",
    "fix": "name the steps with --step REGEX",
}


def check_sort(name: str, option: str = "sort") -> str:
    """Return a name of `SORTS` for what a user gives: that, or the name of its column; else an `OptionError`."""
    for sort, (column, _) in SORTS.items():
        if name in {sort, column}:
            return sort
    raise OptionError.no_such_name(f"{option} {name!r}", "is not a metric", name, SORTS)


def sorted_rows(rows: Sequence[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    """Return rows with the best first, nulls last, equal ones in the order given."""
    column, is_most_first = SORTS[name]
    known = sorted(
        (row for row in rows if row[column] is not None),
        key=itemgetter(column),
        reverse=is_most_first,
    )
    return known + [row for row in rows if row[column] is None]


@dataclass(frozen=True)
class Kind:
    """Runs that can be compared with each other: one world size, one GPU model, the same ranks, steps of the same work."""

    peer: str  # the first of them that was given: what the others are measured against
    labels: tuple[str, ...]  # all of them, in the order of the table
    best: (
        str | None
    )  # the one with the largest speed-up of those that have an interval of it; None if none has
    level_with: tuple[
        str, ...
    ] = ()  # those whose step time is the best's: no change, by what counts
    not_told_from: tuple[
        str, ...
    ] = ()  # those of which these steps cannot say whether they are slower than the best


def _founding(run: Side) -> tuple[bool, float, list[str]]:
    """Return what kinds are found in the order of: what is not known comes last."""
    compute = run.work.busy_ns
    is_unknown = not all(capture.header.gpu_names for capture in run.runs)
    return (
        is_unknown,
        math.inf if compute is None else compute,
        sorted(capture.header.run_id for capture in run.runs),
    )


@dataclass(frozen=True)
class Scoreboard(NamedTables):
    """Runs side by side, as tables.

    Attributes
    ----------
    sides
        The runs in the order given, each one or several captures; the first is the reference.
    rules
        What counts as a change, and how sure the intervals are.
    sort
        What the table is sorted by, a name of `SORTS`; None keeps the order given.
    settings
        Who set the rules, of a command; nothing: a caller from Python.
    """

    _TABLES = ("table", "checks", "environments", "problems")

    sides: tuple[Side, ...]
    rules: Rules
    sort: str | None = None
    settings: GateSettings = NOTHING_SET

    @property
    def reference(self) -> str:
        """Label of the run that the speed-ups are over: the first that was given."""
        return self.sides[0].label

    @cached_property
    def table(self) -> pa.Table:
        """`SCOREBOARD`: one row per run, in the order given or with the best first."""
        rows = []
        for side in self.sides:
            label = side.label
            peer = self._peers[side.label]
            first = self._standing(self.reference, label)
            against = first if peer == self.reference else self._standing(peer, label)
            is_uneven = any(one.is_uneven for one in self.evenness[label])
            own = {
                "peer": peer,
                **{f"peer_{name}": value for name, value in against.items()},
                "is_uneven": is_uneven,
            }
            rows.append(self._figures(side) | first | own)
        return SCOREBOARD.from_rows(sorted_rows(rows, self.sort) if self.sort else rows)

    @cached_property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds of runs, in the order of their first that was given; of equal speed-ups the peer is the best."""
        rows = self.table.to_pylist()
        kinds = []
        for peer in dict.fromkeys(self._peers.values()):
            of_kind = [row for row in rows if row["peer"] == peer]
            labels = tuple(row["label"] for row in of_kind)
            decided = [row for row in of_kind if row["peer_speedup_low"] is not None]
            fastest = max(
                decided,
                key=lambda row: (row["peer_speedup"], row["label"] == row["peer"]),
                default=None,
            )
            best = fastest and fastest["label"]
            beside = {
                label: self._judged(best, label)
                for label in labels
                if best and not self._is_copy(best, label)
            }
            verdicts = {
                label: INCONCLUSIVE if isinstance(one, str) else one.verdict
                for label, one in beside.items()
            }
            level = tuple(label for label, verdict in verdicts.items() if verdict == NO_CHANGE)
            # A median that is shorter than that of the run with the shortest mean says nothing for
            # sure either.
            open_ones = tuple(
                label for label, said in verdicts.items() if said not in {NO_CHANGE, "regression"}
            )
            kinds.append(Kind(peer, labels, best, level, open_ones))
        return tuple(kinds)

    @cached_property
    def checks(self) -> pa.Table:
        """`CHECKS_OF_RUNS`: why runs are not comparable with the first, or only with doubt with their peer."""
        rows = []
        of_first = [label for label, peer in self._peers.items() if peer == self.reference]
        for label, peer in self._peers.items():
            checks = [
                (self.reference, check)
                for check in self._checked(self.reference, label)
                if check.parts
            ]
            if not checks and peer != self.reference:  # another of the first's kind parts it
                parting = (
                    (one, check)
                    for one in of_first
                    for check in self._checked(one, label)
                    if check.parts
                )
                checks = [*islice(parting, 1)]
            checks += [(peer, check) for check in self._checked(peer, label) if not check.parts]
            for against, check in checks:
                before, (what, sides, _) = check.baseline, check.message.partition(": baseline ")
                now = check.candidate.replace(f"the {SIDES[0]}'s", f"{against}'s")
                of_sides = (
                    f"{against} {before}, {label} {now}" if label != against else f"{label} {now}"
                )
                row = (
                    label,
                    against,
                    check.check,
                    check.blocks,
                    before,
                    now,
                    f"{what}: {of_sides}" if sides else what,
                )
                rows.append(dict(zip(CHECKS_OF_RUNS.names, row, strict=True)))
        return CHECKS_OF_RUNS.from_rows(rows)

    @cached_property
    def environments(self) -> pa.Table:
        """`ENVIRONMENTS`: training variables that differ between the runs that recorded their environment."""
        recorded = {label: own for label, own in self._environments.items() if own is not None}
        rows = []
        for what in sorted(set().union(*recorded.values())):
            values = {label: own.get(what, NOT_SET) for label, own in recorded.items()}
            if len({*values.values()}) > 1:
                rows += [
                    {"what": what, "label": label, "value": value}
                    for label, value in values.items()
                ]
        return ENVIRONMENTS.from_rows(rows)

    @property
    def without_environment(self) -> list[str]:
        """The runs whose environment was not recorded, by their labels."""
        return [label for label, own in self._environments.items() if own is None]

    @cached_property
    def _environments(self) -> dict[str, dict[str, str] | None]:
        """By run its training variables, those of its captures joined; None where no capture recorded them."""
        found: dict[str, dict[str, str] | None] = {}
        for side in self.sides:
            matters = [environment_of(run) for run in side.runs]
            found[side.label] = joined_environments(
                dict(one.words) if one.is_known else None for one in matters
            )
        return found

    @property
    def problems(self) -> pa.Table:
        """`RUN_PROBLEMS`: the problems of each run's captures, and one of each run without metrics."""
        return RUN_PROBLEMS.from_rows(rows_in_python(self.problem_rows))

    @property
    def problem_rows(self) -> list[dict[str, Any]]:
        """The same in the words of the commands."""
        rows = []
        for label, tables in self._tables.items():
            for side in tables:
                where = {"label": label, "run_id": side.run.header.run_id}
                if not side.n_steps:
                    rows.append(
                        where
                        | problem("no-figures").row
                        | (_OF_CAPTURE if side.run.is_capture else {})
                    )
                if side.outdated_columns:
                    rows.append(where | problem("older-definitions").row)
                rows += [where | row for row in side.run.problem_rows]
        return rows

    @cached_property
    def evenness(self) -> dict[str, list[Evenness]]:
        """How even the steps of each capture that has some are, by label of the run."""
        return {label: evenness_of(tables) for label, tables in self._tables.items()}

    @cached_property
    def _tables(self) -> dict[str, list[StepTable]]:
        tables = StepTable.of_sides(*(side.runs for side in self.sides))
        return {side.label: own for side, own in zip(self.sides, tables, strict=True)}

    @cached_property
    def _step_times(self) -> dict[str, list[Float64] | str]:
        step_times = {label: of_captures(tables) for label, tables in self._tables.items()}
        return {label: why or times for label, (times, why) in step_times.items()}

    @cached_property
    def _checked(self) -> Callable[[str, str], list[Check]]:
        sides = {side.label: side for side in self.sides}

        def checked(one: str, other: str) -> list[Check]:
            if one != other:
                return check_comparable(sides[one], sides[other])
            # Captures of one run are told of beside the others; of the only one, once.
            is_told = len(sides) > 1 or len(sides[one].runs) == 1
            own = [] if is_told else check_comparable(sides[one], sides[one])
            return [*{check.message: check for check in own if check.parts}.values()]

        return cache(checked)

    def _checked_once(self, run: str, other: str) -> list[Check]:
        """Return the same whichever of them was given first: what does not depend on that."""
        return self._checked(*sorted((run, other), key=[*self._tables].index))

    @cached_property
    def _peers(self) -> dict[str, str]:
        """Of each run the first that was given of its kind, all of which can be compared with each other."""
        given = [*self._tables]
        if self.rules.is_forced:
            return dict.fromkeys(given, self.reference)
        in_order = [side.label for side in sorted(self.sides, key=_founding)]
        kinds = parted(
            in_order,
            lambda run, kind: (
                not any(check.parts for one in kind for check in self._checked_once(run, one))
            ),
        )
        peers = {label: min(kind, key=given.index) for kind in kinds for label in kind}
        return {label: peers[label] for label in given}

    def _standing(self, reference: str, run: str) -> dict[str, Any]:
        """Measure a run against a reference: the speed-up is of means, the verdict that of `nsyspipe.diff` on step_time."""
        is_itself = run == reference
        blocking = [
            check.message.partition(": ")[0]
            for check in self._checked(reference, run)
            if check.parts
        ]
        columns: dict[str, Any] = {"verdict": REFERENCE if is_itself else INCONCLUSIVE}
        judgement = self._judged(reference, run)
        before = self._step_times[reference]
        after = self._step_times[run]
        if not (isinstance(before, str) or isinstance(after, str)):
            speed = ratio_of_means(before, after, confidence=self.rules.confidence)
            columns |= dict(zip(("speedup", "speedup_low", "speedup_high"), speed, strict=True))
        if isinstance(judgement, str):
            columns["why"] = judgement
        elif is_itself:
            return columns
        elif blocking and not self.rules.is_forced:
            columns["why"] = f"not comparable: {', '.join(blocking)}"
        else:
            delta = judgement.difference
            columns |= {
                "verdict": judgement.verdict,
                "why": judgement.why,
                "statistic": delta.statistic,
            }
            ends = {
                "delta_ratio": delta.delta,
                "delta_low_ratio": delta.low,
                "delta_high_ratio": delta.high,
            }
            columns |= {name: divided(value, delta.baseline) for name, value in ends.items()}
            columns["settle_steps"], columns["settle_captures"] = judgement.settled()
        return columns

    def _judged(self, reference: str, run: str) -> Judgement | str:
        before = self._step_times[reference]
        after = self._step_times[run]
        if isinstance(before, str) or isinstance(after, str):
            lacking = [
                label for label in (reference, run) if isinstance(self._step_times[label], str)
            ]
            return f"{' and '.join(dict.fromkeys(lacking))}: no steps to compare"
        if run != reference and self._is_copy(reference, run):
            return f"the same capture as {reference}"
        sides = (before, after)
        statistic = statistic_of(before, after)
        return judged(
            METRICS["step_time"], sides, self.rules, statistic=statistic, names=(reference, run)
        )

    def _is_copy(self, run: str, other: str) -> bool:
        is_same = any(check.is_same for check in self._checked_once(run, other))
        return run == other or (is_same and not self.rules.is_forced)

    def _figures(self, side: Side) -> dict[str, Any]:
        header = side.runs[0].header
        tables = self._tables[side.label]
        summaries: list[Mapping[str, Any]] = [run.summary().to_pylist()[0] for run in side.runs]
        # Of rates it is the mean of their times that the speed-up compares.
        rates = [row["throughput_steps_per_s"] for row in summaries]
        throughput = (
            mean_of(rates)
            if len(rates) == 1
            else divided(1, mean_of(divided(1, rate) for rate in rates))
        )
        mean, (parts, _) = mean_step_time(tables), step_parts(tables, tables)
        return {
            "label": side.label,
            "run_ids": " ".join(run.header.run_id for run in side.runs),
            "n_captures": len(side.runs),
            "world_size": header.world_size,
            "n_ranks": header.n_ranks,
            "n_processes": header.n_processes,
            "gpu_names": ", ".join(header.gpu_names),
            "n_summary_steps": sum(table.n_steps for table in tables),
            **{
                one.column: mean_of(row[one.column] for row in summaries)
                for one in shown("scoreboard table")
            },
            **({"idle_share": None} if any(table.hides_idle for table in tables) else {}),
            **{
                one.column: None
                for one in shown("scoreboard table")
                if any(is_outdated(one, table) for table in tables)
            },
            "throughput_steps_per_s": throughput,
            "rank_steps_per_s": None
            if throughput is None
            else throughput * (header.n_job_ranks or header.n_ranks),
            "mean_step_time_ns": None if mean is None else float(mean),
            **{f"{part['part']}_ns": part["baseline_ns"] for part in parts.to_pylist()},
        }

    def __repr__(self) -> str:
        return (
            f"<Scoreboard of {len(self.sides)} run{'s'[: len(self.sides) != 1]} against "
            f"{self.reference!r}>"
        )
