"""What a replay runs: markers in order, each with its place in every rank's work, and the collectives between them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Int64 = NDArray[np.int64]
    Float = NDArray[np.float64]

__all__ = ["JOIN", "NOTHING", "READY", "WINDOW", "Program", "Slowing"]

WINDOW, READY, JOIN = range(3)


@dataclass(frozen=True)
class Slowing:
    """How work beside communication is slower.

    Attributes
    ----------
    ratio
        c: it takes 1 + c times as long.
    delay_ns
        And each of its operations begins so much later.
    """

    ratio: float = 0.0
    delay_ns: float = 0.0

    def scaled(self, factor: float) -> Slowing:
        """Return one of another strength."""
        return Slowing(factor * self.ratio, factor * self.delay_ns)

    def blended(self, other: Slowing, share: float) -> Slowing:
        """Return one that is so much of another."""
        return Slowing(
            self.ratio + share * (other.ratio - self.ratio),
            self.delay_ns + share * (other.delay_ns - self.delay_ns),
        )

    def total(self, work_ns: float, n_operations: float) -> float:
        """Return by how much so much work takes longer, as a share of it."""
        return self.ratio + self.delay_ns * n_operations / max(work_ns, 1.0)


NOTHING = Slowing()


@dataclass(frozen=True)
class Program:
    """Markers of all ranks in one order, and the collectives that they begin and wait for.

    Attributes
    ----------
    kind
        Of each marker: `WINDOW`, the start of a window; `READY`, from here on a collective may begin;
        `JOIN`, what follows waits for the end of a collective.
    which
        Window or collective of each marker.
    work
        Row per marker, column per rank: how far the rank's own work has come there, ns: time less what
        it stood still for collectives.
    beside
        Of that, how long communication was under way on that rank.
    begun, begun_beside
        How many operations the rank's main stream had begun there, and how many of them beside communication.
    step
        Per collective: place of its step among the windows.
    lag_ns
        Row per collective, column per rank: from when it could have begun to its start.
    transfer_ns
        Likewise: from the last rank's start to the own end.
    n_bytes
        Per collective: message bytes; NaN where not known.
    chain
        Per collective: number of its stream; those of one stream follow one another.
    is_gradient
        Per collective: one of the gradients' all-reduces.
    begin_ns
        Per rank: start of the first window, aligned.
    late_beside_ns, longer_beside
        Per collective that was not captured: how much later it begins, and by which share of it it is longer, when the
        rank works at its begin. Nothing of those that were: their lags and transfers hold it.
    """

    kind: Int64
    which: Int64
    work: Float
    beside: Float
    begun: Float
    begun_beside: Float
    step: Int64
    lag_ns: Float
    transfer_ns: Float
    n_bytes: Float
    chain: Int64
    is_gradient: NDArray[np.bool_]
    begin_ns: Float
    late_beside_ns: Float
    longer_beside: Float

    def free_work(self, slowing: Slowing) -> Float:
        """Return how far work had come at each marker had communication not slowed it."""
        lost = slowing.ratio * self.beside + slowing.delay_ns * self.begun_beside
        place = self.work - lost / (1 + slowing.ratio)
        return np.maximum.accumulate(place, axis=0)

    @property
    def n_ranks(self) -> int:
        """Ranks."""
        return int(self.begin_ns.size)

    @property
    def n_windows(self) -> int:
        """Windows."""
        return int(np.count_nonzero(self.kind == WINDOW)) - 1
