"""A scoreboard's table, its order, how a run stands against another, and which runs can be compared at all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nsyspipe.comparison.comparability import check_comparable
from nsyspipe.comparison.decision import settled_by
from nsyspipe.comparison.metrics import DEFAULT_METRIC, METRICS, judged, statistic_of
from nsyspipe.comparison.statistics import ratio_of_means
from nsyspipe.errors import OptionError
from nsyspipe.model.table import FLAG, FLOAT, INT, TEXT, Column, TableSchema

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nsyspipe.comparison.comparability import Check
    from nsyspipe.comparison.decision import Settled
    from nsyspipe.comparison.metrics import Judgement
    from nsyspipe.comparison.scoreboard import Entrant
    from nsyspipe.model.types import Float64


# By what a scoreboard can be sorted, and which way is better.


# Name -> column of `SCOREBOARD`, and whether more of it is better.
SORTS = {
    "step_time": ("step_time_ns", False),
    "throughput": ("throughput_steps_per_s", True),
    "rank_steps": ("rank_steps_per_s", True),
    "speedup": ("speedup", True),
    "comm_share": ("comm_share", False),
    "exposed_comm_share": ("exposed_comm_share", False),
    "overlap_ratio": ("overlap_ratio", True),
    "backward_overlap_ratio": ("backward_overlap_ratio", True),
    "compute_share": ("compute_share", True),
    "exposed_memory_share": ("exposed_memory_share", False),
    "idle_share": ("idle_share", False),
    "wait_share": ("wait_share", False),
    "dtod": ("dtod_ns_per_step", False),
    "dtod_bytes": ("dtod_bytes_per_step", False),
    "collectives": ("collectives_per_step", False),
    "message_bytes": ("message_bytes_per_step", False),
    "busbw": ("busbw_bytes_per_s", True),
    "compute": ("compute_ns", False),
    "exposed_comm": ("exposed_comm_ns", False),
    "exposed_memory": ("exposed_memory_ns", False),
    "idle": ("idle_ns", False),
}


def check_sort(name: str, option: str = "sort") -> str:
    """Return a name of `SORTS` for what a user gives: that, or the name of its column.

    Raises
    ------
    OptionError
        If it is neither.
    """
    if name in SORTS:
        return name
    for one, (column, _) in SORTS.items():
        if column == name:
            return one
    raise OptionError.no_such_name(f"{option} {name!r}", "there is no such metric", name, SORTS)


def sorted_rows(rows: Sequence[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    """Return rows with the best first, nulls last, equal ones in the order given."""
    column, is_more_better = SORTS[name]
    known = [row for row in rows if row[column] is not None]
    known.sort(key=lambda row: -row[column] if is_more_better else row[column])
    return known + [row for row in rows if row[column] is None]


# How a run stands against another: how much faster, whether that is noise, and what speaks against asking.


REFERENCE, INCONCLUSIVE = "reference", "inconclusive"


@dataclass(frozen=True)
class Rules:
    """What counts.

    Attributes
    ----------
    min_effect
        Smallest |difference| of step times that counts, as a ratio of the reference.
    confidence
        Of the intervals.
    is_forced
        Whether runs that are not comparable are judged.
    settings_file
        The file that says so; None: options or defaults do.
    """

    min_effect: float
    confidence: float
    is_forced: bool = False
    settings_file: str | None = None


@dataclass(frozen=True)
class Standing:
    """A run against a reference.

    Attributes
    ----------
    speedup, low, high
        Mean step time of the reference over the run's, and its interval; None where not known.
    verdict
        Of the step time, as in a difference of the two; ``reference`` of a run against itself.
    why
        Why it is inconclusive; None if it is not.
    checks
        What makes the comparison doubtful or impossible.
    statistic
        ``median`` or ``mean``: what the verdict is of.
    settled
        What would settle an inconclusive one.
    """

    speedup: float | None
    low: float | None
    high: float | None
    verdict: str
    why: str | None
    checks: tuple[Check, ...]
    statistic: str | None = None
    settled: Settled | None = None

    @property
    def blocking(self) -> list[str]:
        """Names of the checks that make the runs not comparable."""
        return [check.check for check in self.checks if check.blocks]


def standing(reference: Entrant, run: Entrant, rules: Rules) -> Standing:
    """Measure a run against a reference.

    The speed-up is of throughput, hence of means; the verdict is that of `nsyspipe.diff` on the metric step_time: of
    medians, which one stalled step does not move, and of means where the steps of either run are uneven.
    """
    checks = () if run is reference else tuple(check_comparable(reference.side, run.side))
    before, after = reference.step_times, run.step_times
    if isinstance(before, str) or isinstance(after, str):
        lacking = [one.label for one in (reference, run) if isinstance(one.step_times, str)]
        named = " and ".join(dict.fromkeys(lacking))
        said = REFERENCE if run is reference else INCONCLUSIVE
        return Standing(None, None, None, said, f"{named}: no steps to compare", checks)
    speed = ratio_of_means(before, after, confidence=rules.confidence)
    if run is reference:
        exact = None if speed.low is None else 1.0  # nothing of it is left to chance
        return Standing(speed.ratio, exact, exact, REFERENCE, None, checks)
    names = reference.label, run.label
    found = _judged(before, after, rules, names)
    blocking = [check.check for check in checks if check.blocks]
    if blocking and not rules.is_forced:
        why = f"not comparable: {', '.join(blocking)}"
        return Standing(speed.ratio, speed.low, speed.high, INCONCLUSIVE, why, checks)
    settled = None
    if found.verdict == INCONCLUSIVE:
        better = METRICS[DEFAULT_METRIC].better
        settled = settled_by(found.difference, least=found.least, better=better)
    return Standing(
        speed.ratio,
        speed.low,
        speed.high,
        found.verdict,
        found.why,
        checks,
        found.difference.statistic,
        settled,
    )


def _judged(
    before: Sequence[Float64],
    after: Sequence[Float64],
    rules: Rules,
    names: tuple[str, str] = ("best", "run"),
) -> Judgement:
    return judged(
        METRICS[DEFAULT_METRIC],
        (before, after),
        min_effect=rules.min_effect,
        confidence=rules.confidence,
        statistic=statistic_of(before, after),
        names=names,
    )


def verdict_beside(best: Entrant, run: Entrant, rules: Rules) -> str:
    """Return the verdict of a run's step time against that of the best; inconclusive where either has no steps."""
    before, after = best.step_times, run.step_times
    if isinstance(before, str) or isinstance(after, str):
        return INCONCLUSIVE
    return _judged(before, after, rules).verdict


# Runs that can be compared with each other, and which of them is best.


@dataclass(frozen=True)
class Kind:
    """Runs that can be compared with each other: one world size, one GPU model, the same ranks.

    Attributes
    ----------
    peer
        The first of them that was given: what the others are measured against.
    labels
        All of them, in the order of the table.
    best
        The one with the largest speed-up of those that have an interval of it; None if none has.
    level_with
        Those whose step time is the best's: no change, by what counts.
    not_told_from
        Those of which these steps cannot say whether they are slower than the best.
    """

    peer: str
    labels: tuple[str, ...]
    best: str | None
    level_with: tuple[str, ...]
    not_told_from: tuple[str, ...]


def kind_of(
    peer: str, rows: Sequence[Mapping[str, Any]], runs: Mapping[str, Entrant], rules: Rules
) -> Kind:
    """Return the kind of a peer: its best run, those level with it, and those that steps cannot tell from it.

    Of equal speed-ups the peer is the best, then the first in the table.

    Parameters
    ----------
    rows
        Of `SCOREBOARD`, all of this peer.
    runs
        By label.
    """
    labels = tuple(row["label"] for row in rows)
    decided = [row for row in rows if row["peer_speedup_low"] is not None]
    if not decided:
        return Kind(peer, labels, None, (), ())
    best = max(decided, key=lambda row: (row["peer_speedup"], row["label"] == peer))["label"]
    found = {one: verdict_beside(runs[best], runs[one], rules) for one in labels if one != best}
    level = tuple(one for one, verdict in found.items() if verdict == "no change")
    # A median that is shorter than that of the run with the shortest mean says nothing for sure either.
    open_ones = (
        one for one, verdict in found.items() if verdict not in {"no change", "regression"}
    )
    return Kind(peer, labels, best, level, tuple(open_ones))


# Figures that a run's summary has; of several captures of a run the mean of theirs.
SUMMARY_FIGURES = {
    "step_time_ns": ("ns", "slowest rank, median over summary steps"),
    "comm_share": ("ratio", "communication, hidden or not, of step time, pooled over ranks"),
    "exposed_comm_share": ("ratio", "communication beside no compute, of step time"),
    "overlap_ratio": ("ratio", "of communication, under compute"),
    "backward_overlap_ratio": ("ratio", "of communication, under compute of the backward pass"),
    "compute_share": ("ratio", "compute of step time"),
    "exposed_memory_share": ("ratio", "copies and memsets beside neither, of step time"),
    "idle_share": ("ratio", "of step time, the device does nothing"),
    "wait_share": ("ratio", "of step time, waiting for other ranks inside communication"),
    "dtod_ns_per_step": ("ns", "device-to-device copies, mean per rank and step"),
    "dtod_bytes_per_step": ("bytes", "the same in bytes"),
    "collectives_per_step": ("count", "mean per rank and step"),
    "message_bytes_per_step": ("bytes", "bytes of all collectives, mean per rank and step"),
    "busbw_bytes_per_s": ("bytes/s", "bus bytes over transfer time"),
}


def _text(name: str, doc: str, *, nullable: bool = False) -> Column:
    return Column(name, TEXT, "text", doc, nullable=nullable)


def _number(name: str, unit: str, doc: str) -> Column:
    return Column(name, FLOAT, unit, doc, nullable=True)


def _count(name: str, doc: str, *, nullable: bool = False) -> Column:
    return Column(name, INT, "count", doc, nullable=nullable)


def _speedup(prefix: str, over: str) -> tuple[Column, ...]:
    return (
        _number(f"{prefix}speedup", "ratio", f"mean step time of {over} / mean step time of this run: in steps/s"),
        _number(f"{prefix}speedup_low", "ratio", "lower end of its interval; null with too few steps"),
        _number(f"{prefix}speedup_high", "ratio", "upper end of it"),
    )  # fmt: skip


SCOREBOARD = TableSchema(
    "scoreboard",
    "One row per run, in the order given or sorted. The first that was given is the reference.",
    ("label",),
    (
        _text("label", "name of the run, unique"),
        _text("run_ids", "its captures, with a space between"),
        _count("n_captures", "captures of it"),
        _count("world_size", "ranks of the job; null when not recorded", nullable=True),
        _count("n_ranks", "ranks with a report"),
        _text("gpu_names", "GPU models, with commas between; empty when not recorded"),
        _count("n_summary_steps", "steps the figures rest on, of all captures"),
        *(_number(name, unit, doc) for name, (unit, doc) in SUMMARY_FIGURES.items()),
        _number("throughput_steps_per_s", "1/s", "1 / mean step time; of several captures of the mean of their means"),
        _number("rank_steps_per_s", "1/s", "throughput x ranks: samples/s over the batch of a rank"),
        *_speedup("", "the first"),
        _text("verdict", "of step time against the first: reference, improvement, regression, no change or inconclusive"),
        _text("why", "why it is inconclusive", nullable=True),
        _text("peer", "the first run that can be compared with this one: the same world size, GPU model and ranks"),
        *_speedup("peer_", "the peer"),
        _text("peer_verdict", "of step time against the peer; reference where that is the run itself"),
        _text("peer_why", "why that is inconclusive", nullable=True),
        _text("peer_statistic", "median, or mean where steps are uneven: what that verdict is of", nullable=True),
        _count("peer_settle_steps", "about so many steps per capture would settle it; null: decided, or no number would", nullable=True),
        _count("peer_settle_captures", "or so many captures of each run, each of as many steps", nullable=True),
        Column("is_uneven", FLAG, "flag", "mean and median of its steps are far apart, or few steps are near the median"),
        _number("mean_step_time_ns", "ns", "mean over summary steps of the slowest rank: what the parts sum to"),
        _number("compute_ns", "ns", "part of the mean step time on its slowest rank"),
        _number("exposed_comm_ns", "ns", "part of it"),
        _number("exposed_memory_ns", "ns", "part of it"),
        _number("idle_ns", "ns", "part of it"),
    ),
)  # fmt: skip

CHECKS_OF_RUNS = TableSchema(
    "scoreboard_checks",
    "One row per reason to doubt a comparison: those that block are against the first, the others against the peer.",
    ("label", "check"),
    (
        _text("label", "the run"),
        _text("against", "what it was compared with"),
        _text("check", "stable name"),
        Column("blocks", FLAG, "flag", "no verdict without --force"),
        _text("reference_value", "what was found there"),
        _text("value", "what was found of the run"),
        _text("message", "both in one sentence"),
    ),
)

PROBLEMS_OF_RUNS = TableSchema(
    "scoreboard_problems",
    "The problems of the runs, as each says them.",
    ("label",),
    (
        _text("label", "the run"),
        _text("run_id", "its capture"),
        _text("code", "as in problems; no-figures: no step has a window on every rank"),
        _text("severity", "error, warning, info"),
        _text("report", "where", nullable=True),
        Column("rank", INT, "id", "where", nullable=True),
        _text("message", "what"),
        _text("fix", "what mends it", nullable=True),
    ),
)
