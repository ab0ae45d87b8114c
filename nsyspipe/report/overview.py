"""What the first screen of a run says, decided before it is worded.

Where the time of a step goes, what to change first, which rank is late, and what was checked.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Literal, get_args

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from nsyspipe.analysis.summary import means_of_slowest
from nsyspipe.findings.judge import BUBBLE, EXPOSURE, OF_HOSTS, STRAGGLER, rule_names
from nsyspipe.model.figures import Figure
from nsyspipe.model.problems import MIXED_RUNS, SkippedCheck
from nsyspipe.report.findings import LITTLE_SHARE_OF_STEP, Finding, findings_of, is_little
from nsyspipe.report.units import STEP_PARTS
from nsyspipe.report.words import is_clear, mean_step_ns
from nsyspipe.run.run import Run

# How the saving of a recommendation is known:
# - estimated: by a simulation.
# - conditional: by a simulation, for an interconnect that was not recorded.
# - bounded: only an upper bound is known.
# - unbounded: nothing is known.
SavingKind = Literal["estimated", "conditional", "bounded", "unbounded"]
ESTIMATED, CONDITIONAL, BOUNDED, UNBOUNDED = get_args(SavingKind)
# Ranks differ if a part of their step differs by more than this share of the step.
MAX_BALANCED_SHARE_OF_STEP = 0.02
# Codes of problems that the headline shows in other words.
SHOWN_ABOVE = {"few-steps"}


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
    saving_kind: SavingKind
    # The estimate, or else the upper bound. None if neither is known.
    saving_ns: float | None
    # The captured step time less the saving.
    step_ns: float | None
    # The ends of the range of an estimated step time. None for an upper bound.
    low_ns: float | None = None
    high_ns: float | None = None
    # False for an estimate that does not clearly save time.
    is_clear: bool = True

    @property
    def saved_share(self) -> float | None:
        """What is saved as a share of the captured step time."""
        step_ns = self.step_ns
        saving_ns = self.saving_ns
        if saving_ns is None or step_ns is None:
            return None
        return saving_ns / (saving_ns + step_ns)


class Recommendations(Struct, frozen=True):
    """Everything that was found, by how it is shown."""

    first: Recommendation | None  # None where nothing saves a visible part of the step
    # The lowest step time first, then those with an upper bound only.
    alternatives: tuple[Recommendation, ...]
    within_noise: tuple[Recommendation, ...]
    little: tuple[Recommendation, ...]  # those that save nothing visible of the step
    exposure: Recommendation | None  # what all communication costs, which is no change by itself

    @property
    def shown(self) -> tuple[Recommendation, ...]:
        """The recommendations that have a number on the screen, in its order."""
        if self.first is None:
            return self.alternatives
        return (self.first, *self.alternatives)


class Checks(Struct, frozen=True):
    """What was checked: rules that found nothing, and rules that could not be judged."""

    passed: tuple[str, ...]
    skipped: tuple[SkippedCheck, ...]

    @property
    def skipped_rules(self) -> tuple[str, ...]:
        """All rules that could not be judged."""
        rules = chain.from_iterable(check.rules for check in self.skipped)
        return tuple(rules)


class RankSpread(Struct, frozen=True):
    """By how much ranks differ in a part of their step, the most of all parts."""

    figure: Figure
    ns: float
    share: float  # of the step

    @property
    def is_visible(self) -> bool:
        """Whether ranks differ so much that a table shows them."""
        return self.share > MAX_BALANCED_SHARE_OF_STEP


class RankDelay(Struct, frozen=True):
    """How long the other ranks wait for a rank."""

    rank: int
    delay_ns: float  # mean per step


class Straggler(Struct, frozen=True):
    """The only rank that the other ranks wait for."""

    rank: int
    delay_ns: float  # mean per step
    # How late the rank was when the first step began. None if not known.
    late_at_start_ns: int | None


def step_time_of(run: Run) -> StepTime | None:
    """Return the mean step time of a run and its parts. None without steps in use.

    Times are means over the slowest rank of each step. If one part is not known, there are no
    parts.
    """
    (summary,) = run.summary().to_pylist()
    # A row per step in use and rank.
    steps = run.breakdown()
    if not steps.num_rows:
        return None
    columns = [figure.column for figure in STEP_PARTS]
    mean_of_column_ns = means_of_slowest(steps, ["wall_ns", *columns])
    step_ns = mean_of_column_ns["wall_ns"]
    if not step_ns:
        # Nothing is a share of a step without a length.
        return None
    known_parts = []
    for figure in STEP_PARTS:
        part_ns = mean_of_column_ns[figure.column]
        if part_ns is not None:
            known_parts.append(StepPart(figure, part_ns, part_ns / step_ns))
    are_all_known = len(known_parts) == len(STEP_PARTS)
    parts = known_parts if are_all_known else []
    longest_first = sorted(parts, key=lambda part: part.ns, reverse=True)
    return StepTime(
        mean_ns=step_ns,
        parts=tuple(longest_first),
        n_used=summary["n_summary_steps"],
        n_captured=summary["n_steps"],
    )


def rank_spread(run: Run) -> RankSpread | None:
    """Return the part of the mean step in which ranks differ most.

    None for a single rank, without steps, and if no part is known in all steps.
    """
    # A row per step in use and rank.
    steps = run.breakdown()
    mean_step_ns = pc.mean(steps["wall_ns"]).as_py()
    if run.header.n_ranks < 2 or not mean_step_ns:  # noqa: PLR2004 - two ranks can differ
        return None
    figure_of_column = {figure.column: figure for figure in STEP_PARTS}
    known_columns = [name for name in figure_of_column if not steps.column(name).null_count]
    means_of_ranks = steps.group_by("rank").aggregate([(name, "mean") for name in known_columns])
    spread_of_column_ns = {name: _spread(means_of_ranks[f"{name}_mean"]) for name in known_columns}
    if not spread_of_column_ns:
        return None
    widest = max(spread_of_column_ns, key=spread_of_column_ns.__getitem__)
    spread_ns = spread_of_column_ns[widest]
    return RankSpread(figure_of_column[widest], spread_ns, spread_ns / mean_step_ns)


def _spread(values: pa.ChunkedArray) -> float:
    """Return the difference between the largest and the smallest value."""
    ends = pc.min_max(values).as_py()
    return float(ends["max"] - ends["min"])


def do_waits_differ(run: Run) -> bool:
    """Tell whether ranks visibly differ in wait time. False if it is not known in all steps."""
    steps = run.breakdown()
    mean_step_ns = pc.mean(steps["wall_ns"]).as_py()
    if not mean_step_ns or steps["wait_ns"].null_count:
        return False
    means_of_ranks = steps.group_by("rank").aggregate([("wait_ns", "mean")])
    max_spread_ns: float = MAX_BALANCED_SHARE_OF_STEP * mean_step_ns
    return _spread(means_of_ranks["wait_ns_mean"]) > max_spread_ns


def do_ranks_differ(run: Run) -> bool:
    """Tell whether the first screen has a table of ranks: they differ visibly, or one is late."""
    spread = rank_spread(run)
    if spread is None:
        return False
    return spread.is_visible or has_straggler(run)


def has_straggler(run: Run) -> bool:
    """Tell whether nsyspipe reports a rank that the other ranks wait for."""
    ids = {row["id"] for row in run.finding_rows}
    return STRAGGLER in ids


def rank_delays(run: Run) -> list[RankDelay]:
    """Return how long the other ranks wait for each rank, as a mean per step.

    Ranks for which that is not known are left out.
    """
    (summary,) = run.summary().to_pylist()
    n_steps = summary["n_summary_steps"]
    if not n_steps:
        return []
    delays = []
    for row in run.stragglers().to_pylist():
        delay_in_all_steps_ns = row["lateness_ns"]
        if delay_in_all_steps_ns is not None:
            delay = RankDelay(row["rank"], delay_in_all_steps_ns / n_steps)
            delays.append(delay)
    return delays


def latest_rank(run: Run) -> RankDelay | None:
    """Return the rank with the largest straggler delay.

    None for a single rank, and if delays are not known.
    """
    delays = rank_delays(run)
    if len(delays) < 2:  # noqa: PLR2004 - two ranks can wait for each other
        return None
    return max(delays, key=lambda delay: delay.delay_ns)


def only_straggler(run: Run) -> Straggler | None:
    """Return the only rank that the other ranks wait for.

    None if the ranks wait for no rank or for several ranks. None as well if no finding is about a
    late rank.
    """
    delays = [delay for delay in rank_delays(run) if delay.delay_ns]
    if len(delays) != 1 or not has_straggler(run):
        return None
    (delay,) = delays
    finding = next(row for row in run.finding_rows if row["id"] == STRAGGLER)
    evidence = json.loads(finding["evidence"])
    # The evidence of a finding about another rank says nothing of the rank of the delay.
    is_about_rank = evidence.get("rank") == delay.rank
    late_at_start_ns = evidence.get("late_before_first_step_ns") if is_about_rank else None
    return Straggler(delay.rank, delay.delay_ns, late_at_start_ns)


def recommendations_of(run: Run) -> Recommendations:
    """Return what nsyspipe found, sorted by how it is shown."""
    (summary,) = run.summary().to_pylist()
    findings = findings_of(run)
    step_ns = mean_step_ns(summary)
    recommendations = [_recommendation(finding, step_ns) for finding in findings]
    return sort_recommendations(recommendations, is_all_little=is_little(findings))


def sort_recommendations(
    recommendations: Sequence[Recommendation], *, is_all_little: bool
) -> Recommendations:
    """Sort recommendations by how they are shown.

    `recommendations` are in the order of `findings.judge.in_order`, where a cause comes before its
    consequence. The first one that clearly saves time is shown first. Alternatives are sorted by
    the step time that is shown.

    If `is_all_little`, all known savings are too small to be shown first. Then only recommendations
    without a known saving are alternatives.
    """
    # The finding about all exposed communication.
    exposures = (change for change in recommendations if change.finding.id == EXPOSURE)
    exposure = next(exposures, None)
    if is_all_little:
        with_saving, without_saving = _split(recommendations, _has_known_saving)
        return Recommendations(
            first=None,
            alternatives=tuple(without_saving),
            within_noise=(),
            little=tuple(with_saving),
            exposure=exposure,
        )
    candidates = _candidates(recommendations, exposure)
    clear, within_noise = _split(candidates, lambda change: change.is_clear)
    first = next(filter(_has_known_saving, clear), None)
    remaining = [change for change in clear if change is not first]
    sorted_remaining = sorted(remaining, key=_order_of_alternatives)
    little, alternatives = _split(sorted_remaining, _saves_little)
    return Recommendations(
        first=first,
        alternatives=tuple(alternatives),
        within_noise=tuple(within_noise),
        little=tuple(little),
        exposure=exposure,
    )


def _candidates(
    recommendations: Sequence[Recommendation], exposure: Recommendation | None
) -> list[Recommendation]:
    """Return what can be recommended.

    The finding about exposed communication (`exposure`) is not a change by itself. It is the first
    candidate if no change clearly saves time. Otherwise, it is left out.
    """
    changes = [change for change in recommendations if change is not exposure]
    if exposure is None:
        return changes
    changes_with_saving = filter(_has_known_saving, changes)
    has_clear_saving = any(change.is_clear for change in changes_with_saving)
    return changes if has_clear_saving else [exposure, *changes]


def _split(
    changes: Iterable[Recommendation], condition: Callable[[Recommendation], bool]
) -> tuple[list[Recommendation], list[Recommendation]]:
    """Return the recommendations that meet a condition, and then the rest."""
    meeting: list[Recommendation] = []
    rest: list[Recommendation] = []
    for change in changes:
        part = meeting if condition(change) else rest
        part.append(change)
    return meeting, rest


def _has_known_saving(change: Recommendation) -> bool:
    """Tell whether an estimate or an upper bound of the saving is known."""
    return bool(change.saving_kind != UNBOUNDED)


def _saves_little(change: Recommendation) -> bool:
    share = change.saved_share
    return share is not None and share < LITTLE_SHARE_OF_STEP


def _order_of_alternatives(change: Recommendation) -> tuple[int, float]:
    """Return a sort key: estimates, then upper bounds, then unknown savings, each by step time."""
    if change.saving_kind in {ESTIMATED, CONDITIONAL}:
        group = 0
    elif change.saving_kind == BOUNDED:
        group = 1
    else:
        group = 2
    return group, change.step_ns or 0.0


def _recommendation(finding: Finding, step_ns: float | None) -> Recommendation:
    """Return what the advice of a finding saves.

    That is the estimate of a simulation, or else the upper bound. Without either, the saving is not
    known. `step_ns` is the captured mean step time.
    """
    estimate = finding.estimate
    bound_ns = finding.bound.saving_ns
    # A limit is what perfect overlap would save. The advice alone may save less.
    saving_of_advice_ns = None if estimate.is_limit else estimate.saving_ns
    if step_ns and saving_of_advice_ns is not None:
        return _estimated(finding, saving_of_advice_ns, step_ns)
    if step_ns and bound_ns:
        return _bounded(finding, bound_ns, step_ns)
    return Recommendation(finding, UNBOUNDED, saving_ns=None, step_ns=None)


def _estimated(finding: Finding, expected_ns: float, step_ns: float) -> Recommendation:
    """Return what a change saves by a simulation. `step_ns` is the captured mean step time.

    The saving is clear if the captured step is outside the predicted range, both for the median
    step and for the mean step. A range that is not known raises no doubt.
    """
    predicted_ns = step_ns - expected_ns
    low_ns, high_ns = _range_of_mean(finding, predicted_ns)
    has_range = low_ns is not None and high_ns is not None
    is_median_clear = finding.estimate.is_clear
    is_mean_clear = not has_range or is_clear(step_ns, low_ns, high_ns)
    is_saving = expected_ns > 0
    saving_kind = CONDITIONAL if finding.is_conditional else ESTIMATED
    return Recommendation(
        finding,
        saving_kind,
        saving_ns=expected_ns,
        step_ns=predicted_ns,
        low_ns=low_ns,
        high_ns=high_ns,
        is_clear=is_saving and is_median_clear and is_mean_clear,
    )


def _bounded(finding: Finding, bound_ns: float, step_ns: float) -> Recommendation:
    """Return what a change saves at most, which is never more than the captured step."""
    # Only a saving that was simulated is of the kind `CONDITIONAL`.
    has_estimate = finding.estimate.saving_ns is not None
    has_condition = finding.is_conditional and has_estimate
    saving_kind = CONDITIONAL if has_condition else BOUNDED
    saving_ns = min(bound_ns, step_ns)
    remaining_ns = step_ns - saving_ns
    return Recommendation(finding, saving_kind, saving_ns=saving_ns, step_ns=remaining_ns)


def _range_of_mean(finding: Finding, predicted_ns: float) -> tuple[float | None, float | None]:
    """Return the low and the high end of the predicted mean step. Both are None if not known.

    The simulation gives the range of the median step. The range of the mean step is as wide in
    proportion.
    """
    simulated = finding.estimate.step
    if simulated is None or not simulated.likely_ns:
        return None, None
    low_ns = predicted_ns * simulated.low_ns / simulated.likely_ns
    high_ns = predicted_ns * simulated.high_ns / simulated.likely_ns
    return low_ns, high_ns


def outranked_by(
    first: Recommendation, alternatives: Iterable[Recommendation]
) -> list[Recommendation]:
    """Return alternatives that could save more than the first recommendation, the most first."""
    first_saving_ns = _saved_ns(first)
    larger = [change for change in alternatives if _saved_ns(change) > first_saving_ns]
    return sorted(larger, key=_saved_ns, reverse=True)


def _saved_ns(change: Recommendation) -> float:
    return change.saving_ns or 0.0


def is_cause_of(first: Recommendation, consequence: Recommendation) -> bool:
    """Tell whether the first recommendation is about the cause of another finding."""
    is_about_host = first.finding.id in OF_HOSTS
    return is_about_host and consequence.finding.id in {STRAGGLER, BUBBLE}


def checks_of(run: Run) -> Checks:
    """Return which rules found nothing, and which could not be judged."""
    not_passed = {row["id"] for row in run.finding_rows}
    for check in run.skipped_checks:
        not_passed.update(check.rules)
    passed = [rule for rule in rule_names() if rule not in not_passed]
    return Checks(tuple(passed), run.skipped_checks)


def is_of_mixed_runs(run: Run) -> bool:
    """Tell whether the reports may be of different runs."""
    codes = {row["code"] for row in run.problem_rows}
    return not MIXED_RUNS.isdisjoint(codes)
