"""Message sizes and bandwidths as nccl-tests defines them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Int64 = NDArray[np.int64]

__all__ = ["PER_RANK", "bus_factor", "whole_message"]

# NCCL reports one rank's part of these.
PER_RANK = ("all_gather", "reduce_scatter", "all_to_all")


def whole_message(collective: str, reported_bytes: Int64, n_ranks: Int64) -> Int64:
    """Return the size of the whole array that a collective moves, as nccl-tests counts.

    NCCL reports the part of one rank for all_gather, reduce_scatter and all_to_all.

    Parameters
    ----------
    reported_bytes
        As NCCL's payload says.
    n_ranks
        Size of the communicator.
    """
    return reported_bytes * n_ranks if collective in PER_RANK else reported_bytes


def bus_factor(collective: str, n_ranks: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return busbw / algbw: 2(n-1)/n for all_reduce, (n-1)/n for gather, scatter, all-to-all, else 1."""
    part = (n_ranks - 1) / n_ranks
    if collective == "all_reduce":
        return 2 * part
    return part if collective in PER_RANK else np.ones_like(part)
