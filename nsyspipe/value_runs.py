"""Runs of equal values in a column: where each begins, and the place of each row in its run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Int64 = NDArray[np.int64]

__all__ = ["places_in_runs", "run_starts"]


def run_starts(values: Int64) -> Int64:
    """Return the index at which each run of equal values begins."""
    begins = np.ones(values.size, np.bool_)
    begins[1:] = values[1:] != values[:-1]
    return np.flatnonzero(begins)


def places_in_runs(values: Int64) -> Int64:
    """Return the place of each value in its run of equal ones, from 0."""
    first = run_starts(values)
    return np.arange(values.size) - np.repeat(first, np.diff(first, append=values.size))
