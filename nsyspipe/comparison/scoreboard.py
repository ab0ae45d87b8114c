"""Several runs with their metrics, and their verdicts against the baseline and the peer."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from operator import itemgetter
from typing import Any, NamedTuple

import pyarrow as pa

from nsyspipe.analysis.summary import Evenness, divided
from nsyspipe.comparison.changes import (
    SIDES,
    StepTable,
    float_or_none,
    mean_of,
    mean_step_time,
    step_parts,
)
from nsyspipe.comparison.comparability import CHECKS_OF_RUNS, RUN_PROBLEMS, Check, check_comparable
from nsyspipe.comparison.facts import environment_of
from nsyspipe.comparison.gate import NOTHING_SET, GateSettings
from nsyspipe.comparison.metrics import (
    INCONCLUSIVE,
    NO_CHANGE,
    CaptureValues,
    Rules,
    evenness_of,
    is_outdated,
    judge,
    statistic_of,
    values_of_captures,
)
from nsyspipe.comparison.side import Side, run_ids_of
from nsyspipe.comparison.statistics import Judgement, ratio_of_means
from nsyspipe.errors import OptionError, rows_in_python
from nsyspipe.model.columns import count, flag, ns, per_s, ratio, text
from nsyspipe.model.figures import METRICS, shown
from nsyspipe.model.problems import problem
from nsyspipe.model.table import FLOAT, Column, TableSchema
from nsyspipe.nsys.command_words import NOT_SET, joined_environments
from nsyspipe.run.run import NamedTables
from nsyspipe.run.work import parted

_SHOWN_METRICS = shown("scoreboard table")
_FIGURE_COLUMNS = tuple(
    Column(figure.column, FLOAT, figure.unit, figure.meaning, nullable=True)
    for figure in _SHOWN_METRICS
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
        name: (metric.column, metric.is_most_first)
        for name, metric in METRICS.items()
        if metric.column in SCOREBOARD.names
    },
    "rank_steps": ("rank_steps_per_s", True),
    "speedup": ("speedup", True),
}
# Words of the problem of a run without metrics if it has no steps at all.
_PROBLEM_OF_CAPTURE = {
    "message": "the capture has no steps, so there is no step time to compare",
    "fix": "name the steps with --step REGEX",
}


def check_sort(name: str, option: str = "sort") -> str:
    """Return the name of `SORTS` for a name, or the name of a column, that a user gave.

    Raises
    ------
    OptionError
        If it is neither.
    """
    for sort, (column, _) in SORTS.items():
        if name in {sort, column}:
            return sort
    raise OptionError.no_such_name(f"{option} {name!r}", "is not a metric", name, SORTS)


def sorted_rows(rows: Sequence[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    """Return rows with the best first and nulls last; equal rows keep their order."""
    column, is_most_first = SORTS[name]
    known = [row for row in rows if row[column] is not None]
    unknown = [row for row in rows if row[column] is None]
    known.sort(key=itemgetter(column), reverse=is_most_first)
    return known + unknown


@dataclass(frozen=True)
class Kind:
    """Runs that can be compared with each other.

    They have the same world size, GPU model and ranks, and steps with the same work.
    """

    # The first of them that the user named: the others are measured against it.
    peer: str
    # All of them, in the order of the table.
    labels: tuple[str, ...]
    # The run with the largest speed-up of those that have an interval of it; None if none has.
    best: str | None
    # Runs with the step time of the best: unchanged, within the minimum effect.
    level_with: tuple[str, ...] = ()
    # Runs whose steps cannot tell whether they are slower than the best.
    not_told_from: tuple[str, ...] = ()


class _FoundingOrder(NamedTuple):
    """The order in which runs found kinds: those of which something is not known come last."""

    is_gpu_unknown: bool
    compute_ns: float
    run_ids: list[str]


def _founding_order(side: Side) -> _FoundingOrder:
    """Return the key that sorts a run among the others before kinds are founded."""
    busy_ns = side.work.busy_ns
    is_gpu_unknown = not all(capture.header.gpu_names for capture in side.runs)
    return _FoundingOrder(
        is_gpu_unknown=is_gpu_unknown,
        # An unknown compute time comes last.
        compute_ns=math.inf if busy_ns is None else busy_ns,
        run_ids=sorted(run_ids_of(side)),
    )


class _CheckAgainst(NamedTuple):
    """A check of a run, and the label of the run that it was compared with."""

    against: str
    check: Check


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
        rows = [self._row(side) for side in self.sides]
        if self.sort:
            rows = sorted_rows(rows, self.sort)
        return SCOREBOARD.from_rows(rows)

    def _row(self, side: Side) -> dict[str, Any]:
        """Return the row of a run: its facts and metrics, and how it stands against two others.

        These are the first run and the run's peer.
        """
        label = side.label
        peer = self._peers[label]
        row = self._facts_columns(side) | self._metric_columns(side)
        row |= self._time_columns(side)
        against_first = self._standing_columns(self.reference, label)
        if peer == self.reference:
            against_peer = against_first
        else:
            against_peer = self._standing_columns(peer, label)
        row |= against_first
        row["peer"] = peer
        for name, value in against_peer.items():
            row[f"peer_{name}"] = value
        evenness = self.evenness[label]
        row["is_uneven"] = any(capture.is_uneven for capture in evenness)
        return row

    # --- kinds ------------------------------------------------------------------------------------
    @cached_property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds of runs. They are in the order in which their first runs were given."""
        rows = self.table.to_pylist()
        kinds = []
        for peer in dict.fromkeys(self._peers.values()):
            rows_of_kind = [row for row in rows if row["peer"] == peer]
            kinds.append(self._kind_of(peer, rows_of_kind))
        return tuple(kinds)

    def _kind_of(self, peer: str, rows: Sequence[Mapping[str, Any]]) -> Kind:
        """Return the kind of the runs in some rows of the table, which have this peer."""
        labels = tuple(row["label"] for row in rows)
        rows_with_interval = [row for row in rows if row["peer_speedup_low"] is not None]
        if not rows_with_interval:
            return Kind(peer, labels, best=None)
        best = _fastest_run(rows_with_interval, peer)
        level_with = []
        not_told_from = []
        for label in labels:
            if self._is_copy(best, label):
                continue
            verdict = self._verdict(best, label)
            if verdict == NO_CHANGE:
                level_with.append(label)
            # Besides "inconclusive", this may be "improvement": the best run has the shortest mean,
            # but the other run may have a shorter median. So neither run is certainly better.
            elif verdict != "regression":
                not_told_from.append(label)
        return Kind(peer, labels, best, tuple(level_with), tuple(not_told_from))

    def _verdict(self, reference: str, label: str) -> str:
        """Return the verdict on a run against a reference, whether it may be given or not."""
        if self._why_not_judged(reference, label) is not None:
            return INCONCLUSIVE
        return self._judge(reference, label).verdict

    @cached_property
    def _peers(self) -> dict[str, str]:
        """The peer of each run, by label. A peer is the run of a kind that was given first.

        The labels are in the order in which the runs were given.
        """
        labels = [side.label for side in self.sides]
        if self.rules.is_forced:
            return dict.fromkeys(labels, self.reference)
        # The kind that a run joins may depend on the order of the runs. To have the same kinds for
        # every order that is given, the runs are sorted.
        sides_in_founding_order = sorted(self.sides, key=_founding_order)
        labels_in_founding_order = [side.label for side in sides_in_founding_order]
        peer_by_label: dict[str, str] = {}
        for kind in parted(labels_in_founding_order, self._is_comparable_with_all):
            first_given = min(kind, key=labels.index)
            peer_by_label |= dict.fromkeys(kind, first_given)
        return {label: peer_by_label[label] for label in labels}

    def _is_comparable_with_all(self, label: str, kind: Sequence[str]) -> bool:
        """Tell whether no check separates a run from a run of a kind."""
        for member in kind:
            checks = self._check_in_order(label, member)
            if any(check.separates_runs for check in checks):
                return False
        return True

    # --- checks -----------------------------------------------------------------------------------
    @cached_property
    def checks(self) -> pa.Table:
        """`CHECKS_OF_RUNS`: doubts about runs beside the first run, or beside their peer."""
        rows = []
        for label in self._peers:
            checks = self._checks_of_run(label)
            rows += [_row_of_check(label, against) for against in checks]
        return CHECKS_OF_RUNS.from_rows(rows)

    def _checks_of_run(self, label: str) -> list[_CheckAgainst]:
        """Return the checks that separate a run from the first run, and then doubts about its peer.

        A run may be of another kind than the first run although no check separates the two. Then a
        check separates the run from another run of the first run's kind. One such check is returned
        instead.
        """
        peer = self._peers[label]
        separating = [*self._separating_checks(self.reference, label)]
        is_of_other_kind = peer != self.reference
        if is_of_other_kind and not separating:
            checks_against_kind = self._separating_checks_of_kind(label)
            separating = [*islice(checks_against_kind, 1)]
        checks = self._check(peer, label)
        doubts = [check for check in checks if not check.separates_runs]
        return separating + [_CheckAgainst(peer, doubt) for doubt in doubts]

    def _separating_checks(self, reference: str, label: str) -> Iterator[_CheckAgainst]:
        """Yield the checks that separate a run from a reference."""
        for check in self._check(reference, label):
            if check.separates_runs:
                yield _CheckAgainst(reference, check)

    def _separating_checks_of_kind(self, label: str) -> Iterator[_CheckAgainst]:
        """Yield what separates a run from others that are of the same kind as the first run."""
        for member, peer in self._peers.items():
            if peer == self.reference:
                yield from self._separating_checks(member, label)

    def _check(self, reference: str, label: str) -> list[Check]:
        """Return the checks of two runs, or of the captures of one run."""
        labels = (reference, label)
        if labels not in self._known_checks:
            self._known_checks[labels] = self._find_checks(reference, label)
        return self._known_checks[labels]

    @cached_property
    def _known_checks(self) -> dict[tuple[str, str], list[Check]]:
        """The results of `_check`, by labels."""
        return {}

    def _find_checks(self, reference: str, label: str) -> list[Check]:
        """Return the checks of two runs, or of the captures of one run if both labels are equal.

        The checks of two runs include those of the captures of each run. So the captures of one run
        are checked only if there is no other run. Then each message is told once.
        """
        sides = {side.label: side for side in self.sides}
        if reference != label:
            return check_comparable(sides[reference], sides[label])
        side = sides[label]
        if len(sides) > 1 or len(side.runs) == 1:
            return []
        checks = check_comparable(side, side)
        by_message = {check.message: check for check in checks if check.separates_runs}
        return [*by_message.values()]

    def _check_in_order(self, label: str, other_label: str) -> list[Check]:
        """Return the checks of two runs, of which the first that was given is the baseline."""
        labels = [side.label for side in self.sides]
        first, second = sorted((label, other_label), key=labels.index)
        return self._check(first, second)

    def _is_copy(self, label: str, other_label: str) -> bool:
        """Tell whether two runs count as the same capture.

        With ``--force``, only a run and itself count as the same.
        """
        if label == other_label:
            return True
        checks = self._check_in_order(label, other_label)
        is_same = any(check.is_same for check in checks)
        return is_same and not self.rules.is_forced

    # --- environments and problems ----------------------------------------------------------------
    @cached_property
    def environments(self) -> pa.Table:
        """`ENVIRONMENTS`: training variables that differ between runs that recorded them."""
        environments = self._environments.items()
        recorded = {label: variables for label, variables in environments if variables is not None}
        rows = []
        all_names = set(chain(*recorded.values()))
        for name in sorted(all_names):
            values_of_runs = [variables.get(name, NOT_SET) for variables in recorded.values()]
            if len(set(values_of_runs)) > 1:
                for label, value in zip(recorded, values_of_runs, strict=True):
                    rows.append({"what": name, "label": label, "value": value})
        return ENVIRONMENTS.from_rows(rows)

    @property
    def without_environment(self) -> list[str]:
        """Labels of the runs whose environment was not recorded."""
        environments = self._environments.items()
        return [label for label, variables in environments if variables is None]

    @cached_property
    def _environments(self) -> dict[str, dict[str, str] | None]:
        """Training variables of each run, joined over captures; None if no capture has them."""
        return {side.label: _joined_environment(side) for side in self.sides}

    @property
    def problems(self) -> pa.Table:
        """`RUN_PROBLEMS`: the problems of the captures, and one of each run without metrics."""
        return RUN_PROBLEMS.from_rows(rows_in_python(self.problem_rows))

    @property
    def problem_rows(self) -> list[dict[str, Any]]:
        """The rows of `problems`, in the words of the commands."""
        rows = []
        for label, captures in self._tables.items():
            for capture in captures:
                place = {"label": label, "run_id": capture.run.header.run_id}
                rows += [place | row for row in _problems_of_capture(capture)]
        return rows

    # --- metrics ----------------------------------------------------------------------------------
    @cached_property
    def evenness(self) -> dict[str, list[Evenness]]:
        """How even the steps of each capture that has some are, by label of the run."""
        tables = self._tables.items()
        return {label: evenness_of(captures) for label, captures in tables}

    @cached_property
    def _tables(self) -> dict[str, list[StepTable]]:
        labels = [side.label for side in self.sides]
        runs = [side.runs for side in self.sides]
        tables = StepTable.of_sides(*runs)
        return dict(zip(labels, tables, strict=True))

    @cached_property
    def _step_times(self) -> dict[str, CaptureValues]:
        tables = self._tables.items()
        return {label: values_of_captures(captures) for label, captures in tables}

    def _why_not_judged(self, reference: str, label: str) -> str | None:
        """Return why the step times of two runs cannot be compared; None if they can be."""
        # One label if the run is the reference itself.
        distinct_labels = dict.fromkeys((reference, label))
        labels_without_steps = [
            name for name in distinct_labels if self._step_times[name].why_lacking is not None
        ]
        if labels_without_steps:
            return f"{' and '.join(labels_without_steps)}: no steps to compare"
        if label != reference and self._is_copy(reference, label):
            return f"the same capture as {reference}"
        return None

    def _judge(self, reference: str, label: str) -> Judgement:
        """Judge the step time of a run against a reference, as `nsyspipe.diff` does."""
        before = self._step_times[reference].values
        after = self._step_times[label].values
        step_time = METRICS["step_time"]
        statistic = statistic_of(before, after)
        names = (reference, label)
        return judge(step_time, (before, after), self.rules, statistic=statistic, names=names)

    def _standing_columns(self, reference: str, label: str) -> dict[str, Any]:
        """Return the columns with speed-up and verdict of a run against a reference.

        The speed-up is of mean step times. It is left out if a side lacks step times.
        """
        is_itself = label == reference
        columns: dict[str, Any] = {"verdict": REFERENCE if is_itself else INCONCLUSIVE}
        before = self._step_times[reference]
        after = self._step_times[label]
        if before.why_lacking is None and after.why_lacking is None:
            confidence = self.rules.confidence
            speedup = ratio_of_means(before.values, after.values, confidence=confidence)
            columns["speedup"] = speedup.ratio
            columns["speedup_low"] = speedup.low
            columns["speedup_high"] = speedup.high
        why = self._why_no_verdict(reference, label)
        if why is not None:
            columns["why"] = why
        elif not is_itself:
            judgement = self._judge(reference, label)
            columns |= _columns_of_judgement(judgement)
        return columns

    def _why_no_verdict(self, reference: str, label: str) -> str | None:
        """Return why there is no verdict on a run; None if there is one, or nothing to judge."""
        why = self._why_not_judged(reference, label)
        if why is not None or label == reference or self.rules.is_forced:
            return why
        reasons = []
        for separating in self._separating_checks(reference, label):
            # A message is what differs, and behind a colon the values.
            what_differs, _, _ = separating.check.message.partition(": ")
            reasons.append(what_differs)
        if not reasons:
            return None
        return f"not comparable: {', '.join(reasons)}"

    def _facts_columns(self, side: Side) -> dict[str, Any]:
        """Return what a run is of, by its first capture, and how many captures and steps it has."""
        header = side.runs[0].header
        captures = self._tables[side.label]
        columns: dict[str, Any] = {"label": side.label, "n_captures": len(side.runs)}
        columns["n_summary_steps"] = sum(capture.n_steps for capture in captures)
        columns["run_ids"] = " ".join(run_ids_of(side))
        columns["gpu_names"] = ", ".join(header.gpu_names)
        for name in ("world_size", "n_ranks", "n_processes"):
            columns[name] = getattr(header, name)
        return columns

    def _metric_columns(self, side: Side) -> dict[str, float | None]:
        """Return the metrics of the summary, as means over captures.

        A metric is None if it means something else in another run, and the idle share also if idle
        time is hidden in CUDA graphs.
        """
        captures = self._tables[side.label]
        summaries: list[Mapping[str, Any]] = [run.summary().to_pylist()[0] for run in side.runs]
        columns = {}
        for metric in _SHOWN_METRICS:
            mean = mean_of(summary[metric.column] for summary in summaries)
            is_of_other_definition = any(is_outdated(metric, capture) for capture in captures)
            columns[metric.column] = None if is_of_other_definition else mean
        if any(capture.hides_idle for capture in captures):
            columns["idle_share"] = None
        return columns

    def _time_columns(self, side: Side) -> dict[str, float | None]:
        """Return the throughput, the mean step time and its parts."""
        captures = self._tables[side.label]
        throughput = _throughput(side)
        header = side.runs[0].header
        n_ranks = header.n_job_ranks or header.n_ranks
        mean_ns = mean_step_time(captures)
        rank_steps_per_s = None if throughput is None else throughput * n_ranks
        columns = {
            "throughput_steps_per_s": throughput,
            "rank_steps_per_s": rank_steps_per_s,
            "mean_step_time_ns": float_or_none(mean_ns),
        }
        # The run is both sides here, because only its own parts are needed.
        parts, _ = step_parts(captures, captures)
        for part in parts.to_pylist():
            columns[f"{part['part']}_ns"] = part["baseline_ns"]
        return columns

    def __repr__(self) -> str:
        n_sides = len(self.sides)
        runs = "run" if n_sides == 1 else "runs"
        return f"<Scoreboard of {n_sides} {runs} against {self.reference!r}>"


def _fastest_run(rows: Sequence[Mapping[str, Any]], peer: str) -> str:
    """Return the run with the largest speed-up: of equal ones the peer, or else the first."""
    speedup = max(row["peer_speedup"] for row in rows)
    fastest: list[str] = [row["label"] for row in rows if row["peer_speedup"] == speedup]
    return peer if peer in fastest else fastest[0]


def _joined_environment(side: Side) -> dict[str, str] | None:
    """Return the training variables of a run, joined over captures; None if none has them."""
    matters = [environment_of(run) for run in side.runs]
    recorded = [matter.words if matter.is_known else None for matter in matters]
    return joined_environments(recorded)


def _throughput(side: Side) -> float | None:
    """Return the steps per second of a run; None if this is not known of a capture.

    For several captures, it is one step over the mean of their step times, as in the speed-up.
    """
    columns = [run.summary()["throughput_steps_per_s"] for run in side.runs]
    rates = [column[0].as_py() for column in columns]
    if len(rates) == 1:
        # The mean of one rate is this rate, or None if it is not a finite number.
        return mean_of(rates)
    mean_step_s = mean_of(divided(1, rate) for rate in rates)
    return divided(1, mean_step_s)


def _columns_of_judgement(judgement: Judgement) -> dict[str, Any]:
    """Return verdict, relative difference, and what would settle the verdict."""
    difference = judgement.difference
    baseline = difference.baseline
    needed = judgement.estimate_needed()
    columns: dict[str, Any] = {"verdict": judgement.verdict, "why": judgement.why}
    columns["statistic"] = difference.statistic
    columns["delta_ratio"] = divided(difference.delta, baseline)
    columns["delta_low_ratio"] = divided(difference.low, baseline)
    columns["delta_high_ratio"] = divided(difference.high, baseline)
    columns["settle_steps"] = needed.steps
    columns["settle_captures"] = needed.captures
    return columns


def _problems_of_capture(capture: StepTable) -> Iterator[dict[str, Any]]:
    """Yield rows of the problems of a capture.

    That the capture has no metrics, or has metrics by older definitions, comes first.
    """
    if not capture.n_steps:
        words = _PROBLEM_OF_CAPTURE if capture.run.is_capture else {}
        yield problem("no-figures").row | words
    if capture.outdated_columns:
        yield problem("older-definitions").row
    yield from capture.run.problem_rows


def _row_of_check(label: str, against: _CheckAgainst) -> dict[str, Any]:
    """Return a row of `CHECKS_OF_RUNS`, with labels in the place of baseline and candidate.

    The message of a check is "WHAT: baseline VALUE, candidate VALUE", or has no values.
    """
    reference, check = against
    # The value of the candidate may name the baseline, as in "kernels that the baseline also runs".
    value = check.candidate.replace(f"the {SIDES[0]}", reference)
    is_of_one_run = label == reference
    if is_of_one_run:
        values_text = f"{label} {value}"
    else:
        values_text = f"{reference} {check.baseline}, {label} {value}"
    what, separator, _ = check.message.partition(": baseline ")
    has_values = bool(separator)
    message = f"{what}: {values_text}" if has_values else what
    return {
        "label": label,
        "against": reference,
        "check": check.check,
        "blocks": check.blocks,
        "reference_value": check.baseline,
        "value": value,
        "message": message,
    }
