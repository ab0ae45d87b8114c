"""What a redaction left behind, counted by class and place."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Amount", "Removed"]


@dataclass(frozen=True, order=True)
class Amount:
    """How much was left behind in one place.

    Attributes
    ----------
    kind
        The class: what it was.
    place
        A table, or a column of one.
    unit
        What `n` counts: rows or values.
    """

    kind: str
    place: str
    n: int
    unit: str


@dataclass
class Removed:
    """What was left behind so far, of one report or of several.

    Attributes
    ----------
    n_named
        Kept texts that still hold a name that was removed elsewhere.
    """

    n_named: int = 0
    _amounts: dict[tuple[str, str, str], int] = field(default_factory=dict)

    def add(self, kind: str, place: str, n: int, unit: str = "rows") -> None:
        """Count something; nothing is noted for zero."""
        if n:
            key = kind, place, unit
            self._amounts[key] = self._amounts.get(key, 0) + n

    def update(self, other: Removed) -> None:
        """Add what another one counted."""
        self.n_named += other.n_named
        for (kind, place, unit), n in other._amounts.items():
            self.add(kind, place, n, unit)

    def amounts(self) -> list[Amount]:
        """Return all amounts, sorted by class and place."""
        return sorted(
            Amount(kind, place, n, unit) for (kind, place, unit), n in self._amounts.items()
        )
