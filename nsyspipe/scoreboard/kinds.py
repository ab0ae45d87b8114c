"""Runs that can be compared with each other, and which of them is best."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nsyspipe.scoreboard.standing import Rules, is_slower

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nsyspipe.scoreboard.entrant import Entrant

__all__ = ["Kind", "kind_of"]


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
        Those that the best cannot be told from, by the verdict of their step times.
    """

    peer: str
    labels: tuple[str, ...]
    best: str | None
    level_with: tuple[str, ...]


def kind_of(
    peer: str, rows: Sequence[Mapping[str, Any]], runs: Mapping[str, Entrant], rules: Rules
) -> Kind:
    """Return the kind of a peer: its best run, and those that steps cannot tell from it.

    Of equal speed-ups the peer is the best, then the first in the table.

    Parameters
    ----------
    rows
        Of `tables.SCOREBOARD`, all of this peer.
    runs
        By label.
    """
    labels = tuple(row["label"] for row in rows)
    decided = [row for row in rows if row["peer_speedup_low"] is not None]
    if not decided:
        return Kind(peer, labels, None, ())
    best = max(decided, key=lambda row: (row["peer_speedup"], row["label"] == peer))["label"]
    others = (row["label"] for row in decided if row["label"] != best)
    return Kind(
        peer,
        labels,
        best,
        tuple(one for one in others if not is_slower(runs[one], runs[best], rules)),
    )
