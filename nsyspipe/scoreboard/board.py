"""Which of N runs is best: the table that an optimization study ends with."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from nsyspipe.difference.step_table import StepTable
from nsyspipe.scoreboard.entrant import Entrant
from nsyspipe.scoreboard.kinds import Kind, kind_of
from nsyspipe.scoreboard.ranking import sorted_rows
from nsyspipe.scoreboard.standing import Rules, Standing, standing
from nsyspipe.scoreboard.tables import CHECKS_OF_RUNS, PROBLEMS_OF_RUNS, SCOREBOARD

if TYPE_CHECKING:
    import pyarrow as pa

    from nsyspipe.difference.comparability import Check
    from nsyspipe.difference.sides import Side
    from nsyspipe.statistics import Evenness

__all__ = ["Scoreboard"]


@dataclass(frozen=True)
class Scoreboard:
    """Runs side by side: tables with the schemas of `nsyspipe.scoreboard.tables`.

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
        """`tables.SCOREBOARD`: one row per run, in the order given or with the best first."""
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
        """`tables.CHECKS_OF_RUNS`: why runs are not comparable with the first, or only with doubt with their peer."""
        rows = []
        for run in self._entrants:
            peer = self._peers[run.label]
            rows += [_check(run, self._entrants[0], one) for one in self._of_first[run.label].checks if one.blocks]  # fmt: skip
            rows += [_check(run, peer, one) for one in self._of_peer[run.label].checks if not one.blocks]  # fmt: skip
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
