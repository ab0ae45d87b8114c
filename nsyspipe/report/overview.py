"""What the first screen of a run says, decided before it is worded: where a step goes, what to change first, what was checked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, get_args

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from nsyspipe.analysis.summary import means_of_slowest
from nsyspipe.findings.judge import BUBBLE, EXPOSURE, OF_HOSTS, STRAGGLER, rule_names
from nsyspipe.model.figures import Figure
from nsyspipe.model.problems import MIXED_RUNS, SkippedCheck
from nsyspipe.report.findings import LITTLE, Finding, findings_of, is_little
from nsyspipe.report.units import STEP_PARTS
from nsyspipe.report.words import mean_step_ns
from nsyspipe.run.run import Run

# How much is known of what a recommendation saves: a simulation estimates it, a simulation
# estimates it if an interconnect that was not recorded is there, only an upper bound is known, or
# nothing is.
Known = Literal["estimated", "conditional", "bounded", "unbounded"]
ESTIMATED, CONDITIONAL, BOUNDED, UNBOUNDED = get_args(Known)
MUCH_OF_STEP = (
    0.02  # ranks differ if a part of their step differs by more than this share of the step
)
SHOWN_ABOVE = {"few-steps"}  # problems that the headline shows in other words


class StepPart(Struct, frozen=True):
    """A part of the step: mean over steps of the slowest rank of each step."""

    figure: Figure
    ns: float
    share: float  # of the step time


class StepTime(Struct, frozen=True):
    """How long a step is, and where it goes: parts sum to it."""

    mean_ns: float
    parts: tuple[StepPart, ...]  # the longest first; none where one is not known
    n_used: int
    n_captured: int


class Recommendation(Struct, frozen=True):
    """What to change, and what a step takes then."""

    finding: Finding
    known: Known
    saving_ns: float | None  # as estimated, else at most; None where nothing is known
    step_ns: float | None  # the step time less that
    low_ns: float | None = None  # ends of the estimate's range
    high_ns: float | None = None
    is_clear: bool = True  # not where the range includes the captured step time

    @property
    def saved_share(self) -> float | None:
        """What is saved as a share of the captured step time."""
        if self.saving_ns is None or self.step_ns is None:
            return None
        return self.saving_ns / (self.saving_ns + self.step_ns)


class Recommendations(Struct, frozen=True):
    """Everything that was found, by how it is shown."""

    first: Recommendation | None  # None where nothing saves a visible part of the step
    alternatives: tuple[
        Recommendation, ...
    ]  # those with the lowest step time first, then those with upper bounds only
    within_noise: tuple[Recommendation, ...]
    little: tuple[Recommendation, ...]  # those that save nothing visible of the step
    exposure: Recommendation | None  # what all communication costs, which is no change by itself

    @property
    def shown(self) -> tuple[Recommendation, ...]:
        """The ones that have a number on the screen, in its order."""
        return (*([self.first] if self.first else []), *self.alternatives)


class Checks(Struct, frozen=True):
    """What was checked: rules that found nothing, and rules that could not be judged."""

    passed: tuple[str, ...]
    skipped: tuple[SkippedCheck, ...]

    @property
    def skipped_rules(self) -> tuple[str, ...]:
        """All rules that could not be judged."""
        return tuple(rule for check in self.skipped for rule in check.rules)


class RankSpread(Struct, frozen=True):
    """By how much ranks differ in a part of their step, the most of all parts."""

    figure: Figure
    ns: float
    share: float  # of the step

    @property
    def is_visible(self) -> bool:
        """Whether ranks differ so much that a table shows them."""
        return self.share > MUCH_OF_STEP


def step_time_of(run: Run) -> StepTime | None:
    """Return the mean step time of a run and its parts; None without steps that count."""
    (summary,) = run.summary().to_pylist()
    rows = run.breakdown()
    if not rows.num_rows:
        return None
    means = means_of_slowest(rows, ["wall_ns", *(figure.column for figure in STEP_PARTS)])
    whole = means["wall_ns"]
    if not whole:
        return None
    lengths = {figure: means[figure.column] for figure in STEP_PARTS}
    parts = [StepPart(figure, ns, ns / whole) for figure, ns in lengths.items() if ns is not None]
    if len(parts) < len(STEP_PARTS):
        parts = []
    parts.sort(key=lambda part: -part.ns)
    return StepTime(whole, tuple(parts), summary["n_summary_steps"], summary["n_steps"])


def rank_spread(run: Run) -> RankSpread | None:
    """Return by how much ranks differ most in a part of their mean step; None for one rank, or without a known part."""
    rows = run.breakdown()
    whole = pc.mean(rows["wall_ns"]).as_py()
    if run.header.n_ranks < 2 or not whole:  # noqa: PLR2004 - two ranks can differ
        return None
    columns = {figure.column: figure for figure in STEP_PARTS if not rows[figure.column].null_count}
    means = rows.group_by("rank").aggregate([(name, "mean") for name in columns])
    spreads = {name: _spread(means[f"{name}_mean"]) for name in columns}
    if not spreads:
        return None
    widest = max(spreads, key=spreads.__getitem__)
    return RankSpread(columns[widest], spreads[widest], spreads[widest] / whole)


def _spread(values: pa.ChunkedArray) -> float:
    ends = pc.min_max(values).as_py()
    return float(ends["max"] - ends["min"])


def recommendations_of(run: Run) -> Recommendations:
    """Return what was found, sorted into what to change first, alternatives, and what saves nothing visible."""
    (summary,) = run.summary().to_pylist()
    findings = findings_of(run)
    step_ns = mean_step_ns(summary)
    judged = [_recommendation(finding, step_ns) for finding in findings]
    return sort_recommendations(judged, is_all_little=is_little(findings))


def sort_recommendations(
    found: Sequence[Recommendation], *, is_all_little: bool
) -> Recommendations:
    """Sort what was found, in the order of `findings.judge.in_order`, by how it is shown.

    The first with a bound comes first: a cause stands before its consequence. Alternatives go by
    the number that is shown.
    """
    exposure = next((one for one in found if one.finding.id == EXPOSURE), None)
    if is_all_little:
        settings = tuple(one for one in found if one.known == UNBOUNDED)
        little = tuple(one for one in found if one.known != UNBOUNDED)
        return Recommendations(None, settings, (), little, exposure)
    # Exposed communication is no change by itself: it stands for one only where nothing else
    # lessens it.
    changes = [one for one in found if one is not exposure]
    is_only_exposure = exposure is not None and not any(_saves(change) for change in changes)
    candidates = [exposure, *changes] if exposure is not None and is_only_exposure else changes
    noise = tuple(candidate for candidate in candidates if not candidate.is_clear)
    clear = [candidate for candidate in candidates if candidate.is_clear]
    first = next((one for one in clear if one.known != UNBOUNDED), None)
    rest = sorted((one for one in clear if one is not first), key=_place)
    little = tuple(one for one in rest if one.saved_share is not None and one.saved_share < LITTLE)
    alternatives = tuple(one for one in rest if one not in little)
    return Recommendations(first, alternatives, noise, little, exposure)


def _saves(change: Recommendation) -> bool:
    return change.known != UNBOUNDED and change.is_clear


def _place(change: Recommendation) -> tuple[bool, bool, float]:
    is_estimate = change.known in {ESTIMATED, CONDITIONAL}
    return change.known == UNBOUNDED, not is_estimate, change.step_ns or 0.0


def _recommendation(finding: Finding, step_ns: float | None) -> Recommendation:
    """Return what a finding's advice saves: as a simulation estimates it, else at most."""
    if finding.expected_ns is not None and step_ns and not finding.is_limit:
        known: Known = CONDITIONAL if finding.is_conditional else ESTIMATED
        predicted_ns = step_ns - finding.expected_ns
        low_ns, high_ns = _range_of_mean(finding, predicted_ns)
        is_outside = low_ns is None or high_ns is None or not low_ns <= step_ns <= high_ns
        is_clear = finding.is_clear and is_outside and finding.expected_ns > 0
        return Recommendation(
            finding, known, finding.expected_ns, predicted_ns, low_ns, high_ns, is_clear
        )
    if finding.saving_ns and step_ns:
        saving_ns = min(finding.saving_ns, step_ns)
        known = (
            CONDITIONAL if finding.is_conditional and finding.expected_ns is not None else BOUNDED
        )
        return Recommendation(finding, known, saving_ns, step_ns - saving_ns)
    return Recommendation(finding, UNBOUNDED, None, None)


def _range_of_mean(finding: Finding, predicted_ns: float) -> tuple[float | None, float | None]:
    """Return the range of the predicted mean step: the simulation has that of the median, which is as wide in proportion."""
    if finding.replayed is None or not finding.replayed[0]:
        return None, None
    median_ns, low_ns, high_ns = finding.replayed
    return predicted_ns * low_ns / median_ns, predicted_ns * high_ns / median_ns


def outranked_by(first: Recommendation, others: Iterable[Recommendation]) -> list[Recommendation]:
    """Return the alternatives that could save more than the first recommendation, the most first."""
    more = [one for one in others if (one.saving_ns or 0.0) > (first.saving_ns or 0.0)]
    return sorted(more, key=lambda one: -(one.saving_ns or 0.0))


def is_cause_of(first: Recommendation, consequence: Recommendation) -> bool:
    """Tell whether the first recommendation is about the cause of another finding."""
    return first.finding.id in OF_HOSTS and consequence.finding.id in {STRAGGLER, BUBBLE}


def checks_of(run: Run) -> Checks:
    """Return which rules found nothing, and which could not be judged."""
    fired = {row["id"] for row in run.finding_rows}
    silent = fired.union(*(check.rules for check in run.skipped_checks))
    return Checks(tuple(rule for rule in rule_names() if rule not in silent), run.skipped_checks)


def is_of_mixed_runs(run: Run) -> bool:
    """Tell whether the reports may be of different runs."""
    return not MIXED_RUNS.isdisjoint(row["code"] for row in run.problem_rows)
