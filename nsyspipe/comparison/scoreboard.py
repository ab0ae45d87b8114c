"""Which of N runs is best: each as an entrant with its figures, and the table that an optimization study ends with."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from nsyspipe.analysis.summary import evenness
from nsyspipe.comparison.changes import StepTable, mean_step_time, step_parts
from nsyspipe.comparison.metrics import DEFAULT_METRIC, per_step
from nsyspipe.comparison.ranking import (
    CHECKS_OF_RUNS,
    PROBLEMS_OF_RUNS,
    SCOREBOARD,
    SUMMARY_FIGURES,
    Kind,
    Rules,
    Standing,
    kind_of,
    sorted_rows,
    standing,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from nsyspipe.analysis.summary import Evenness
    from nsyspipe.comparison.comparability import Check
    from nsyspipe.comparison.difference import Side


# One run of a scoreboard: its captures, and the figures of them together.


_NO_FIGURES = "no-figures"


@dataclass(frozen=True, eq=False)
class Entrant:
    """A run that is compared with others: a `Side`, and what a row of `ranking.SCOREBOARD` says of it alone.

    `tables` has its captures, as `StepTable.of_sides` gives them.
    """

    side: Side
    tables: Sequence[StepTable]

    @property
    def label(self) -> str:
        """What to call it."""
        return self.side.label

    @cached_property
    def step_times(self) -> list[NDArray[np.float64]] | str:
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
        times = self.step_times
        found = [] if isinstance(times, str) else list(map(evenness, times))
        return [one for one in found if one is not None]

    @property
    def n_steps(self) -> int:
        """Summary steps of all captures together."""
        return sum(table.n_steps for table in self.tables)

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
            "n_summary_steps": self.n_steps,
            **own,
            "throughput_steps_per_s": throughput,
            "rank_steps_per_s": None if throughput is None else throughput * n_ranks,
            **self._parts(),
        }

    def problems(self) -> list[dict[str, Any]]:
        """Return rows of `ranking.PROBLEMS_OF_RUNS`: those of the captures, and one of each without figures."""
        found = []
        for run, table in zip(self.side.runs, self.tables, strict=True):
            where = {"label": self.label, "run_id": run.header.run_id}
            if not table.n_steps:
                why = _CAPTURE if run.is_capture else {}
                found.append(where | _WITHOUT_FIGURES | why)
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
    "code": _NO_FIGURES,
    "severity": "warning",
    "report": None,
    "rank": None,
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


@dataclass(frozen=True)
class Scoreboard:
    """Runs side by side: tables with the schemas of `nsyspipe.comparison.ranking`.

    Attributes
    ----------
    sides
        The runs in the order given, each one or several captures; the first is the reference.
    rules
        What counts as a difference.
    sort
        What the table is sorted by, a name of `ranking.SORTS`; None keeps the order given.
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
        """`ranking.SCOREBOARD`: one row per run, in the order given or with the best first."""
        rows = [self._row(run) for run in self._entrants]
        return SCOREBOARD.from_rows(sorted_rows(rows, self.sort) if self.sort else rows)

    @cached_property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds of runs that can be compared with each other, in the order of their first that was given."""
        peers = dict.fromkeys(self._peers[one.label].label for one in self._entrants)
        rows = self.table.to_pylist()
        runs = {run.label: run for run in self._entrants}
        return tuple(
            kind_of(peer, [row for row in rows if row["peer"] == peer], runs, self.rules)
            for peer in peers
        )

    @cached_property
    def checks(self) -> pa.Table:
        """`ranking.CHECKS_OF_RUNS`: why runs are not comparable with the first, or only with doubt with their peer."""
        rows = []
        for run in self._entrants:
            peer = self._peers[run.label]
            rows += [_check(run, self._entrants[0], one) for one in self._of_first[run.label].checks if one.blocks]  # fmt: skip
            rows += [_check(run, peer, one) for one in self._of_peer[run.label].checks if not one.blocks]  # fmt: skip
        return CHECKS_OF_RUNS.from_rows(rows)

    @cached_property
    def problems(self) -> pa.Table:
        """`ranking.PROBLEMS_OF_RUNS`: the problems of each run's captures."""
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
    def _of_first(self) -> dict[str, Standing]:
        first = self._entrants[0]
        return {run.label: standing(first, run, self.rules) for run in self._entrants}

    @cached_property
    def _peers(self) -> dict[str, Entrant]:
        """For each run the first that was given of those that it can be compared with."""
        return {label: peer for label, (peer, _) in self._matched.items()}

    @property
    def _of_peer(self) -> dict[str, Standing]:
        return {label: found for label, (_, found) in self._matched.items()}

    @cached_property
    def _matched(self) -> dict[str, tuple[Entrant, Standing]]:
        first = self._entrants[0]
        others: list[Entrant] = []
        found: dict[str, tuple[Entrant, Standing]] = {}
        for run in self._entrants:
            against = self._of_first[run.label]
            if self.rules.is_forced or not against.blocking:
                found[run.label] = (first, against)
                continue
            standings = ((one, standing(one, run, self.rules)) for one in [*others, run])
            peer, own = next((one, own) for one, own in standings if not own.blocking)
            if peer is run:
                others.append(run)
            found[run.label] = (peer, own)
        return found

    def _row(self, run: Entrant) -> dict[str, Any]:
        first, peer = self._of_first[run.label], self._of_peer[run.label]
        return {
            **run.figures(),
            "speedup": first.speedup,
            "speedup_low": first.low,
            "speedup_high": first.high,
            "verdict": first.verdict,
            "why": first.why,
            "peer": self._peers[run.label].label,
            "peer_speedup": peer.speedup,
            "peer_speedup_low": peer.low,
            "peer_speedup_high": peer.high,
            "peer_verdict": peer.verdict,
            "peer_why": peer.why,
            "peer_statistic": peer.statistic,
            "peer_settle_steps": peer.settled.steps if peer.settled else None,
            "peer_settle_captures": peer.settled.captures if peer.settled else None,
            "is_uneven": any(one.is_uneven for one in run.evenness),
        }

    def __repr__(self) -> str:
        return f"<Scoreboard of {len(self.sides)} runs against {self.reference!r}>"


def _check(run: Entrant, against: Entrant, one: Check) -> dict[str, object]:
    what = one.message.partition(": baseline ")[0]
    return {
        "label": run.label,
        "against": against.label,
        "check": one.check,
        "blocks": one.blocks,
        "reference_value": one.baseline,
        "value": one.candidate,
        "message": f"{what}: {against.label} {one.baseline}, {run.label} {one.candidate}",
    }
