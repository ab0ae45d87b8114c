"""A reason to doubt a comparison, and what is told of both sides for it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from nsyspipe.difference.sides import Side
    from nsyspipe.run import Run

__all__ = ["UNKNOWN", "Check", "check", "differing", "said"]

UNKNOWN = "not recorded"


@dataclass(frozen=True)
class Check:
    """One reason for doubt: a row of `tables.COMPARABILITY`."""

    check: str
    blocks: bool
    baseline: str
    candidate: str
    message: str

    def row(self) -> dict[str, object]:
        """Return it as a row."""
        return asdict(self)


def differing(
    name: str,
    what: str,
    baseline: Side,
    candidate: Side,
    told: Callable[[Run], str],
    *,
    blocks: bool = True,
) -> Iterator[Check]:
    """Yield a check if what is told of the captures is not the same of all."""
    values = {told(run) for run in (*baseline.runs, *candidate.runs)}
    if len(values) == 1:
        return
    both = [said(side, told) for side in (baseline, candidate)]
    yield check(name, what, both, blocks=blocks)


def check(
    name: str, what: str, sides: Sequence[str], *, blocks: bool = False, after: str = ""
) -> Check:
    """Return a check whose message has both sides in it."""
    before, now = sides
    return Check(name, blocks, before, now, f"{what}: baseline {before}, candidate {now}{after}")


def said(side: Side, told: Callable[[Run], str]) -> str:
    """Return what is told of a side's captures, each once."""
    return " | ".join(dict.fromkeys(told(run) for run in side.runs))
