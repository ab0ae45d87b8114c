"""The two sides of a difference: each one or several captures of the same configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nsyspipe.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nsyspipe.run import Run

__all__ = ["Side", "check_captures"]


@dataclass(frozen=True)
class Side:
    """One side: a name, and its captures.

    Attributes
    ----------
    label
        What it is called.
    runs
        Captures of the same configuration, at least one.
    shown_as
        What to call it in words, where the label does not tell it from others.
    """

    label: str
    runs: tuple[Run, ...]
    shown_as: str | None = None

    @property
    def name(self) -> str:
        """What to call it in words."""
        return self.label if self.shown_as is None else self.shown_as

    def __post_init__(self) -> None:
        if not self.runs:
            raise OptionError(self.label, "has no run", fix="at least one capture on each side")


def check_captures(side: Side) -> None:
    """Refuse one capture that counts twice, since its spread between captures would be nothing.

    Raises
    ------
    OptionError
        If two runs of the side have one id.
    """
    twice = _first_double(run.header.run_id for run in side.runs)
    if twice is not None:
        raise OptionError(
            side.label, f"has the capture {twice} twice", fix="name each capture of a side once"
        )


def _first_double(values: Iterable[str]) -> str | None:
    seen: set[str] = set()
    for value in values:
        if value in seen:
            return value
        seen.add(value)
    return None
