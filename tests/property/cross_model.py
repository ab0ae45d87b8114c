"""What a run across ranks comes down to: step ranges and kernels of each rank, on the clock of its report."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Kernel:
    """A kernel of one rank, on its report's clock; compute has no collective."""

    start: int
    end: int
    launch: int | None
    collective: str | None = None
    stream: int = 0


@dataclass(frozen=True)
class Rank:
    """Step ranges are (number, start, end) in order of time."""

    report: int
    steps: tuple[tuple[int, int, int], ...]
    kernels: tuple[Kernel, ...]


@dataclass(frozen=True)
class Run:
    """Ranks by number; for each report the session's start, None where it is not recorded."""

    ranks: tuple[Rank, ...]
    sessions: tuple[int | None, ...]


def moved(rank: Rank, by: int) -> Rank:
    """Return the rank as a clock that is ahead by so much would have it."""
    return replace(
        rank,
        steps=tuple((number, start + by, end + by) for number, start, end in rank.steps),
        kernels=tuple(
            replace(k, start=k.start + by, end=k.end + by, launch=None if k.launch is None else k.launch + by)
            for k in rank.kernels
        ),
    )
