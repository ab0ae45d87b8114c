"""Which of N runs is best: each with its figures, how it stands against the first and its peer, and which can be compared."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from nsyspipe.comparison.changes import StepTable, mean_step_time, step_parts
from nsyspipe.comparison.comparability import check_comparable
from nsyspipe.comparison.metrics import (
    DEFAULT_METRIC,
    INCONCLUSIVE,
    METRICS,
    NO_CHANGE,
    evenness_of,
    judged,
    per_step,
    statistic_of,
)
from nsyspipe.comparison.statistics import Settled, ratio_of_means
from nsyspipe.comparison.tables import (
    CHECKS_OF_RUNS,
    PROBLEMS_OF_RUNS,
    SCOREBOARD,
    SUMMARY_FIGURES,
)
from nsyspipe.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import pyarrow as pa

    from nsyspipe.analysis.summary import Evenness
    from nsyspipe.comparison.comparability import Check
    from nsyspipe.comparison.difference import Side
    from nsyspipe.comparison.statistics import Judgement
    from nsyspipe.model.types import Float64


# By what a scoreboard can be sorted, and which way is better.


# Name -> column of `tables.SCOREBOARD`, and whether more of it is better.
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
    """Return a name of `SORTS` for what a user gives: that, or the name of its column; else an `OptionError`."""
    for one, (column, _) in SORTS.items():
        if name in {one, column}:
            return one
    raise OptionError.no_such_name(f"{option} {name!r}", "there is no such metric", name, SORTS)


def sorted_rows(rows: Sequence[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    """Return rows with the best first, nulls last, equal ones in the order given."""
    column, is_more_better = SORTS[name]
    known = [row for row in rows if row[column] is not None]
    known.sort(key=lambda row: -row[column] if is_more_better else row[column])
    return known + [row for row in rows if row[column] is None]


# One run of a scoreboard: its captures, and the figures of them together.


@dataclass(frozen=True, eq=False)
class Entrant:
    """A run that is compared with others: a `Side`, and what a row of `tables.SCOREBOARD` says of it alone.

    `tables` has its captures, as `StepTable.of_sides` gives them.
    """

    side: Side
    tables: Sequence[StepTable]

    @property
    def label(self) -> str:
        """What to call it."""
        return self.side.label

    @cached_property
    def step_times(self) -> list[Float64] | str:
        """Each capture's step times in order of time, ns; in words why one has none."""
        found = []
        for table in self.tables:
            values = per_step(table, DEFAULT_METRIC)
            if isinstance(values, str):
                return values
            found.append(values)
        return found

    @property
    def evenness(self) -> list[Evenness]:
        """How even the steps of each capture are; of those that have any."""
        return [] if isinstance(self.step_times, str) else evenness_of(self.tables)

    def figures(self) -> dict[str, Any]:
        """Return the run's own figures: of several captures the mean, null where one of them has none."""
        runs = self.side.runs
        header = runs[0].header
        summaries = [run.summary().to_pylist()[0] for run in runs]
        own = {name: _mean(row[name] for row in summaries) for name in SUMMARY_FIGURES}
        if any(table.hides_idle for table in self.tables):
            own["idle_share"] = None
        # Of rates it is the mean of their times that the speed-up compares.
        rates = [row["throughput_steps_per_s"] for row in summaries]
        throughput = _mean(rates) if len(rates) == 1 else _inverse(_mean(map(_inverse, rates)))
        n_ranks = header.world_size or header.n_ranks
        return {
            "label": self.label,
            "run_ids": " ".join(run.header.run_id for run in runs),
            "n_captures": len(runs),
            "world_size": header.world_size,
            "n_ranks": header.n_ranks,
            "gpu_names": ", ".join(header.gpu_names),
            "n_summary_steps": sum(table.n_steps for table in self.tables),
            **own,
            "throughput_steps_per_s": throughput,
            "rank_steps_per_s": None if throughput is None else throughput * n_ranks,
            **self._parts(),
        }

    def problems(self) -> list[dict[str, Any]]:
        """Return rows of `tables.PROBLEMS_OF_RUNS`: those of the captures, and one of each without figures."""
        found = []
        for run, table in zip(self.side.runs, self.tables, strict=True):
            where = {"label": self.label, "run_id": run.header.run_id}
            if not table.n_steps:
                found.append(where | _WITHOUT_FIGURES | (_CAPTURE if run.is_capture else {}))
            found += [where | row for row in run.problems.to_pylist()]
        return found

    def _parts(self) -> dict[str, float | None]:
        """Return the mean step time and the parts that sum to it, as a difference of two runs has them."""
        parts, _ = step_parts(self.tables, self.tables)
        times = zip(parts["part"].to_pylist(), parts["baseline_ns"].to_pylist(), strict=True)
        mean = mean_step_time(self.tables)
        return {
            "mean_step_time_ns": None if mean is None else float(mean),
            **{f"{name}_ns": time for name, time in times},
        }


_WITHOUT_FIGURES: dict[str, Any] = {
    "code": "no-figures",
    "severity": "warning",
    "message": "no step has a window on every rank: the run has no figures to compare",
    "fix": "see the other problems of this run",
}
_CAPTURE = {
    "message": "a capture without steps: there is no step time to compare",
    "fix": "name the steps with --step REGEX",
}


def _mean(values: Iterable[float | None]) -> float | None:
    """Return the mean; None if any value is, or is no number, as of a damaged run; of one value itself, exactly."""
    found = list(values)
    known = [value for value in found if value is not None and math.isfinite(value)]
    if not found or len(known) < len(found):
        return None
    return known[0] if len(known) == 1 else sum(known) / len(known)


def _inverse(value: float | None) -> float | None:
    return 1 / value if value else None


# How a run stands against another: how much faster, whether that is noise, and what speaks against asking.


REFERENCE = "reference"


@dataclass(frozen=True)
class Rules:
    """What counts: the smallest |difference| of step times, as a ratio of the reference, and the intervals' confidence.

    `is_forced` judges runs that are not comparable; `settings_file` says so, if not options or defaults do.
    """

    min_effect: float
    confidence: float
    is_forced: bool = False
    settings_file: str | None = None


@dataclass(frozen=True)
class Standing:
    """A run against a reference: columns of `tables.SCOREBOARD`, and what makes the comparison doubtful or impossible."""

    reference: Entrant
    run: Entrant
    checks: Sequence[Check]
    columns: Mapping[str, Any]

    @property
    def is_blocked(self) -> bool:
        """Whether a check makes the runs not comparable."""
        return any(check.blocks for check in self.checks)

    def check_rows(self, *, blocks: bool) -> list[dict[str, object]]:
        """Return rows of `tables.CHECKS_OF_RUNS`: of the checks that block, or of the others."""
        one, other = self.reference.label, self.run.label
        return [
            {
                "label": other,
                "against": one,
                "check": check.check,
                "blocks": blocks,
                "reference_value": check.baseline,
                "value": check.candidate,
                "message": f"{check.message.partition(': baseline ')[0]}: {one} {check.baseline}, {other} {check.candidate}",
            }
            for check in self.checks if check.blocks == blocks
        ]  # fmt: skip


def standing(reference: Entrant, run: Entrant, rules: Rules) -> Standing:
    """Measure a run against a reference.

    The speed-up is of throughput, hence of means; the verdict is that of `nsyspipe.diff` on the metric step_time: of
    medians, which one stalled step does not move, and of means where the steps of either run are uneven.
    """
    is_itself = run is reference
    checks = [] if is_itself else check_comparable(reference.side, run.side)
    found: dict[str, Any] = {"verdict": REFERENCE if is_itself else INCONCLUSIVE}
    before, after = reference.step_times, run.step_times
    blocking = [check.check for check in checks if check.blocks]
    judgement = _judged(reference, run, rules)
    if not (isinstance(before, str) or isinstance(after, str)):
        speed = ratio_of_means(before, after, confidence=rules.confidence)
        found |= {"speedup": speed.ratio, "speedup_low": speed.low, "speedup_high": speed.high}
    if isinstance(judgement, str):
        found["why"] = judgement
    elif blocking and not rules.is_forced:
        found["why"] = f"not comparable: {', '.join(blocking)}"
    elif not is_itself:
        is_open = judgement.verdict == INCONCLUSIVE
        settled = judgement.settled() if is_open else Settled()
        found |= {
            "verdict": judgement.verdict,
            "why": judgement.why,
            "statistic": judgement.difference.statistic,
            "settle_steps": settled.steps,
            "settle_captures": settled.captures,
        }
    return Standing(reference, run, checks, found)


def _judged(reference: Entrant, run: Entrant, rules: Rules) -> Judgement | str:
    """Judge a run's step time against another's; in words why that cannot be done."""
    before, after = reference.step_times, run.step_times
    if isinstance(before, str) or isinstance(after, str):
        lacking = [one.label for one in (reference, run) if isinstance(one.step_times, str)]
        return f"{' and '.join(dict.fromkeys(lacking))}: no steps to compare"
    return judged(
        METRICS[DEFAULT_METRIC],
        (before, after),
        min_effect=rules.min_effect,
        confidence=rules.confidence,
        statistic=statistic_of(before, after),
        names=(reference.label, run.label),
    )


# Runs that can be compared with each other, and which of them is best.


@dataclass(frozen=True)
class Kind:
    """Runs that can be compared with each other: one world size, one GPU model, the same ranks."""

    peer: str  # the first of them that was given: what the others are measured against
    labels: tuple[str, ...]  # all of them, in the order of the table
    # the one with the largest speed-up of those that have an interval of it; None if none has
    best: str | None
    level_with: tuple[str, ...]  # those whose step time is the best's: no change, by what counts
    # those of which these steps cannot say whether they are slower than the best
    not_told_from: tuple[str, ...]


@dataclass(frozen=True)
class Scoreboard:
    """Runs side by side: tables with the schemas of `nsyspipe.comparison.tables`.

    Attributes
    ----------
    sides
        The runs in the order given, each one or several captures; the first is the reference.
    rules
        What counts as a difference.
    sort
        What the table is sorted by, a name of `SORTS`; None keeps the order given.
    """

    sides: tuple[Side, ...]
    rules: Rules
    sort: str | None = None

    @property
    def reference(self) -> str:
        """Label of the run that the speed-ups are over: the first that was given."""
        return self.sides[0].label

    @cached_property
    def table(self) -> pa.Table:
        """`tables.SCOREBOARD`: one row per run, in the order given or with the best first."""
        rows = [
            {
                **first.run.figures(),
                **first.columns,
                "peer": peer.reference.label,
                **{f"peer_{name}": value for name, value in peer.columns.items()},
                "is_uneven": any(one.is_uneven for one in first.run.evenness),
            }
            for first, peer in self._standings
        ]
        return SCOREBOARD.from_rows(sorted_rows(rows, self.sort) if self.sort else rows)

    @cached_property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds of runs that can be compared with each other, in the order of their first that was given."""
        peers = dict.fromkeys(peer.reference.label for _, peer in self._standings)
        rows = self.table.to_pylist()
        return tuple(self._kind(peer, [row for row in rows if row["peer"] == peer]) for peer in peers)  # fmt: skip

    def _kind(self, peer: str, rows: Sequence[Mapping[str, Any]]) -> Kind:
        """Return the kind of a peer; of equal speed-ups the peer is the best, then the first in the table."""
        labels = tuple(row["label"] for row in rows)
        decided = [row for row in rows if row["peer_speedup_low"] is not None]
        if not decided:
            return Kind(peer, labels, None, (), ())
        best = max(decided, key=lambda row: (row["peer_speedup"], row["label"] == peer))["label"]
        runs = {run.label: run for run in self._entrants}
        beside = {one: _judged(runs[best], runs[one], self.rules) for one in labels if one != best}
        found = {label: INCONCLUSIVE if isinstance(one, str) else one.verdict for label, one in beside.items()}
        level = tuple(one for one, verdict in found.items() if verdict == NO_CHANGE)
        # A median that is shorter than that of the run with the shortest mean says nothing for sure either.
        is_told = {NO_CHANGE, "regression"}
        open_ones = tuple(one for one, verdict in found.items() if verdict not in is_told)
        return Kind(peer, labels, best, level, open_ones)

    @cached_property
    def checks(self) -> pa.Table:
        """`tables.CHECKS_OF_RUNS`: why runs are not comparable with the first, or only with doubt with their peer."""
        rows = []
        for first, peer in self._standings:
            rows += first.check_rows(blocks=True) + peer.check_rows(blocks=False)
        return CHECKS_OF_RUNS.from_rows(rows)

    @cached_property
    def problems(self) -> pa.Table:
        """`tables.PROBLEMS_OF_RUNS`: the problems of each run's captures."""
        return PROBLEMS_OF_RUNS.from_rows([row for run in self._entrants for row in run.problems()])

    @cached_property
    def evenness(self) -> dict[str, list[Evenness]]:
        """How even the steps of each capture are, by label of the run."""
        return {run.label: run.evenness for run in self._entrants}

    @cached_property
    def _entrants(self) -> tuple[Entrant, ...]:
        tables = StepTable.of_sides(*(side.runs for side in self.sides))
        return tuple(map(Entrant, self.sides, tables))

    @cached_property
    def _standings(self) -> list[tuple[Standing, Standing]]:
        """Each run against the first, and against its peer: the first that was given of those it can be compared with."""
        first = self._entrants[0]
        others: list[Entrant] = []
        found = []
        for run in self._entrants:
            against = peer = standing(first, run, self.rules)
            if against.is_blocked and not self.rules.is_forced:
                standings = (standing(one, run, self.rules) for one in [*others, run])
                peer = next(one for one in standings if not one.is_blocked)
                if peer.reference is run:
                    others.append(run)
            found.append((against, peer))
        return found

    def __repr__(self) -> str:
        return f"<Scoreboard of {len(self.sides)} runs against {self.reference!r}>"
