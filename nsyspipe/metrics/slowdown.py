"""How much slower the same kernel runs while communication is under way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nsyspipe.attribution import UNKNOWN

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Int64 = NDArray[np.int64]
    Hashes = NDArray[np.uint64]

__all__ = ["Slowdown", "kernel_slowdown"]

# Kernels are the same when their own name, grid and block are, and those of their neighbours: one
# grid serves matrices of different depth, and the place in the model tells them apart.
_NEIGHBOURS = (-3, -2, -1, 1, 2, 3)
_REACH = 3
# A kernel counts as under communication when this share of it is (in per cent), as free when none is.
_COVERED_PERCENT = 90
_ENOUGH = 3

_MIX_1, _MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_SHIFT_1, _SHIFT_2, _SHIFT_3 = np.uint64(30), np.uint64(27), np.uint64(31)


@dataclass(frozen=True)
class Slowdown:
    """Kernels that ran under communication and have equal ones that ran free.

    Attributes
    ----------
    kernel
        Index of each such kernel.
    covered_ns, free_ns
        Median duration of its equals, itself among them, under communication; and of those that ran free.
    """

    kernel: Int64
    covered_ns: Int64
    free_ns: Int64


def kernel_slowdown(
    name_id: Int64, grid: Int64, block: Int64, duration: Int64, covered: Int64
) -> Slowdown:
    """Compare equal kernels with and without communication beside them.

    Parameters
    ----------
    name_id, grid, block
        Identity of each compute kernel, in order of launch; `UNKNOWN` grids are not compared.
    duration, covered
        Its duration, and how much of that communication was under way, ns.

    Returns
    -------
    Slowdown
        One entry per kernel under communication of which there are at least three equal ones of
        either sort; medians of even numbers are floored.
    """
    own = _mixed(
        _mixed(_mixed(name_id.view(np.uint64)) ^ grid.view(np.uint64)) ^ block.view(np.uint64)
    )
    usable = (grid != UNKNOWN) & (duration > 0)
    is_covered = usable & (100 * covered >= _COVERED_PERCENT * duration)
    kept = np.flatnonzero(is_covered | (usable & (covered == 0)))
    if not kept.size or not is_covered.any():
        return Slowdown(*(np.empty(0, np.int64),) * 3)
    context = _in_context(own, kept)
    # Both sorts of one context stand side by side, each in order of duration.
    order = np.lexsort((duration[kept], is_covered[kept], context))
    rows = kept[order]
    under = is_covered[rows]
    is_first = np.ones(rows.size, np.bool_)
    is_first[1:] = (context[order][1:] != context[order][:-1]) | (under[1:] != under[:-1])
    first = np.flatnonzero(is_first)
    count = np.diff(first, append=rows.size)
    median = _medians(duration[rows], first, count)
    pairs = np.flatnonzero(
        (context[order][first][1:] == context[order][first][:-1])
        & (count[1:] >= _ENOUGH)
        & (count[:-1] >= _ENOUGH)
    )
    is_matched = np.zeros(first.size, np.bool_)
    is_matched[pairs + 1] = True
    sort = np.cumsum(is_first) - 1
    chosen = is_matched[sort]
    return Slowdown(rows[chosen], median[sort[chosen]], median[sort[chosen] - 1])


def _in_context(own: Hashes, rows: Int64) -> Hashes:
    """Combine the identity of some kernels with that of their neighbours in order of launch."""
    found = own[rows].copy()
    nobody = np.full(_REACH, _MIX_2)  # before the first and after the last kernel
    padded = np.concatenate((nobody, own, nobody))
    for place, offset in enumerate(_NEIGHBOURS, start=1):
        found ^= _mixed(padded[rows + (_REACH + offset)] + np.uint64(place))
    return found


def _medians(values: Int64, first: Int64, count: Int64) -> Int64:
    """Return the floored median of each run of sorted values."""
    low, high = values[first + (count - 1) // 2], values[first + count // 2]
    median: Int64 = low + (high - low) // 2
    return median


def _mixed(values: Hashes) -> Hashes:
    """Spread each number over all 64 bits (the finaliser of splitmix64)."""
    values = (values ^ (values >> _SHIFT_1)) * _MIX_1
    values = (values ^ (values >> _SHIFT_2)) * _MIX_2
    return values ^ (values >> _SHIFT_3)
