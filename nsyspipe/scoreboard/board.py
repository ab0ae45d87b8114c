"""Which of N runs is best: the table that an optimization study ends with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from nsyspipe.difference.sides import AnySide, Side, as_side, check_captures
from nsyspipe.difference.step_table import StepTable
from nsyspipe.difference.thresholds import (
    DEFAULT_CONFIDENCE,
    DEFAULT_MIN_EFFECT_PCT,
    check_confidence,
    effect_ratio,
)
from nsyspipe.errors import OptionError
from nsyspipe.scoreboard.entrant import Entrant
from nsyspipe.scoreboard.kinds import Kind, kind_of
from nsyspipe.scoreboard.ranking import check_sort, sorted_rows
from nsyspipe.scoreboard.standing import Rules, Standing, standing
from nsyspipe.scoreboard.tables import CHECKS_OF_RUNS, PROBLEMS_OF_RUNS, SCOREBOARD

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa

    from nsyspipe.difference.comparability import Check
    from nsyspipe.statistics import Evenness

__all__ = ["Scoreboard", "compare"]


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


def compare(
    runs: Iterable[AnySide] | Mapping[str, AnySide],
    *,
    sort: str | None = None,
    min_effect_pct: float | str = DEFAULT_MIN_EFFECT_PCT,
    confidence: float = DEFAULT_CONFIDENCE,
    force: bool = False,
    settings_file: str | None = None,
    min_effect: object = None,
) -> Scoreboard:
    """Set runs side by side: which is fastest, by how much, and what their steps' time goes to.

    speed-up = mean step time of the first run / mean step time of this one, over summary steps, with an interval at
    `confidence`; it compares steps/s, whatever a step processes. The verdict is that of `nsyspipe.diff` on step_time
    against the first: ``inconclusive`` with too few steps, and where world size, GPU model or ranks differ. Such runs
    are also measured against their ``peer``, the first of their own kind.

    Parameters
    ----------
    runs
        In any number, the reference first: each a `Side` (several captures of one configuration), a `nsyspipe.Run`,
        or what `nsyspipe.load` takes. As a mapping, labels are its keys.
    sort
        Metric that the table is sorted by, the best first and nulls last; None keeps the order given.
    min_effect_pct
        Smallest relative difference of step times that counts, per cent from 0: 2 and "2%" are the same.
    confidence
        Of the intervals, above 0.5 and below 1.
    force
        Give verdicts although world size, GPU model or ranks differ.
    settings_file
        The file that the thresholds come from, which outputs name.
    min_effect
        Refused: a ratio once, which per cent could be taken for.

    Returns
    -------
    Scoreboard
        With the Arrow tables ``table``, ``checks`` and ``problems``, and ``kinds``; null means "not recorded".

    Raises
    ------
    OptionError
        If there is no run, a metric is not known, a number is out of range, or a run has one capture twice.
    InputError
        If a path names no run, or a run cannot be read.

    Examples
    --------
    >>> board = nsyspipe.compare({"ddp": "ddp_*.sqlite", "bucket25": "bucket25_*.sqlite"})  # doctest: +SKIP
    >>> board.table.select(["label", "speedup", "verdict"]).to_pylist()[1]  # doctest: +SKIP
    {'label': 'bucket25', 'speedup': 1.12, 'verdict': 'improvement'}
    """
    least = effect_ratio(min_effect_pct, min_effect)
    check_confidence(confidence, f"confidence={confidence!r}", "confidence=0.95")
    if sort is not None:
        sort = check_sort(sort)
    sides = _sides(runs)
    if not sides:
        raise OptionError("compare", "has no run", fix="one run at least, the reference first")
    for side in sides:
        check_captures(side)
    return Scoreboard(sides, Rules(least, confidence, force, settings_file), sort)


def _sides(runs: Iterable[AnySide] | Mapping[str, AnySide]) -> tuple[Side, ...]:
    """Return sides whose labels differ: of equal ones the later get a number."""
    if isinstance(runs, Mapping):
        found = [Side(label, as_side(run).runs) for label, run in runs.items()]
    elif isinstance(runs, str):
        raise OptionError(repr(runs), "is one run, not a list of them", fix="compare([RUN, RUN])")
    else:
        found = [as_side(run) for run in runs]
    taken: set[str] = set()
    named = []
    for side in found:
        label, number = side.label, 2
        while label in taken:
            label, number = f"{side.label} ({number})", number + 1
        taken.add(label)
        named.append(Side(label, side.runs))
    return tuple(named)


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
