"""Cells that show a difference beside zero: a bar to it, its interval, and how much would be no change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from nsyspipe.report.page.tables import Column

__all__ = ["Cell", "DeltaCell", "DeltaTable", "Judged", "Scale"]

# Ends of a scale, so that ticks are numbers that one reads at a glance.
_NICE = (1, 2, 5, 10, 20, 50, 100)


@dataclass(frozen=True, slots=True)
class Judged:
    """A verdict, and why it is none where it is none."""

    verdict: str
    why: str | None = None
    kind = "judged"


@dataclass(frozen=True, slots=True)
class DeltaCell:
    """A difference as shares of a track whose middle is zero: -1 is its left end, 1 its right one; other cells have words.

    Attributes
    ----------
    at
        Where the difference is; None draws nothing.
    low, high
        Ends of its interval; None without one.
    band
        From here on, either way, it is more than no change; None leaves it out.
    """

    at: float | None = None
    low: float | None = None
    high: float | None = None
    band: float | None = None
    kind = "delta"

    @property
    def bar(self) -> tuple[float, float]:
        """Left end and width of the bar from zero, per cent of the track."""
        return _place(min(self.at or 0, 0), max(self.at or 0, 0))

    @property
    def whisker(self) -> tuple[float, float] | None:
        """Left end and width of the interval."""
        return None if self.low is None or self.high is None else _place(self.low, self.high)

    @property
    def no_change(self) -> tuple[float, float] | None:
        """Left end and width of the band."""
        return None if self.band is None else _place(-self.band, self.band)

    @property
    def beyond(self) -> str | None:
        """``left`` or ``right`` where the difference lies outside of the track."""
        if self.at is None or abs(self.at) <= 1:
            return None
        return "right" if self.at > 0 else "left"


Cell = str | DeltaCell | Judged


@dataclass(frozen=True, slots=True)
class Scale:
    """How far a column's tracks reach to either side of zero."""

    limit: float

    @classmethod
    def around(cls, held: Iterable[float], others: Iterable[float]) -> Scale:
        """Return the smallest of a few round ends that holds what it must and half of the others; else the largest.

        All of them would be too many: what changed tenfold would leave no room to see the rest.
        """
        sizes = sorted(map(abs, others))
        most = max([*map(abs, held), *sizes[: (len(sizes) + 1) // 2]], default=0)
        return cls(next((one for one in _NICE if most <= one), _NICE[-1]))

    def share(self, value: float | None) -> float | None:
        """Return where a value lies, as a share of the limit."""
        return None if value is None else value / self.limit


@dataclass(frozen=True, slots=True)
class DeltaTable:
    """A table as `tables.Table`, whose cells may be of this module too.

    Attributes
    ----------
    strong
        Numbers of the rows to point out.
    note
        Stands below.
    """

    caption: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    strong: frozenset[int] = frozenset()
    note: str | None = None

    @staticmethod
    def verdict_of(row: Sequence[Cell]) -> str | None:
        """Return the verdict that a row has a cell of."""
        return next((cell.verdict for cell in row if isinstance(cell, Judged)), None)


def _place(low: float, high: float) -> tuple[float, float]:
    left, right = (50 * (1 + min(max(one, -1), 1)) for one in (low, high))
    return left, right - left
