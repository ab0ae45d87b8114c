"""What a replay runs: markers in order, each with its place in every rank's work, and the collectives between them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Int64 = NDArray[np.int64]
    Float = NDArray[np.float64]

__all__ = ["JOIN", "READY", "WINDOW", "Program"]

WINDOW, READY, JOIN = range(3)


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
    """

    kind: Int64
    which: Int64
    work: Float
    beside: Float
    step: Int64
    lag_ns: Float
    transfer_ns: Float
    n_bytes: Float
    chain: Int64
    is_gradient: NDArray[np.bool_]
    begin_ns: Float

    @property
    def n_ranks(self) -> int:
        """Ranks."""
        return int(self.begin_ns.size)

    @property
    def n_windows(self) -> int:
        """Windows."""
        return int(np.count_nonzero(self.kind == WINDOW)) - 1
