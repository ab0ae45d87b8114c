"""How much slower the same kernel runs while communication is under way: the one measure of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nsyspipe.analysis.attribution import NEVER, UNKNOWN
from nsyspipe.analysis.intervals import run_starts

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from nsyspipe.analysis.attribution import ProcessOperations
    from nsyspipe.analysis.intervals import IntervalSet
    from nsyspipe.analysis.steps import Windows
    from nsyspipe.model.types import Int64

    Hashes = NDArray[np.uint64]


# Kernels that were compared may stand for the others from this share of the time beside communication on.
LEAST_COMPARED = 0.25
# More is seldom seen of all kernels together: such a figure may be of something else.
MOST_USUAL = 0.5
# Of a large report so many kernels are compared.
_SAMPLE = 50_000

# What is measured of a slowdown holds within this.
MEASURED_WITHIN = 0.3

# Without a measure: what was seen over host memory (about 30 GB/s) and over NVLink (about 300), between them by the
# logarithm, and within how much of it that holds.
NARROW_LINK, WIDE_LINK = 30e9, 300e9
ASSUMED_NARROW, ASSUMED_WIDE, ASSUMED_WITHIN = 0.03, 0.5, 0.6

# Gaps between kernels say something from so many on; what is longer is a pause and no launch to launch.
_ENOUGH_GAPS, _LONGEST_GAP_NS = 100, 100_000

# Kernels are the same when their own name, grid and block are, and those of their neighbours: one
# grid serves matrices of different depth, and the place in the model tells them apart.
_NEIGHBOURS = (-3, -2, -1, 1, 2, 3)
_REACH = 3
_ENOUGH = 3
# Equal ones differ by little; where the middle three quarters do not, one name and grid stand for several shapes.
_LARGEST_SPREAD = 0.5

_MIX_1, _MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_SHIFT_1, _SHIFT_2, _SHIFT_3 = np.uint64(30), np.uint64(27), np.uint64(31)


def link_width(bytes_per_s: float) -> float:
    """Return where a link is between a narrow one (0) and a wide one (1), by the logarithm; beyond them as they are."""
    width = math.log(bytes_per_s / NARROW_LINK) / math.log(WIDE_LINK / NARROW_LINK)
    return min(max(width, 0.0), 1.0)


def most_assumed(bytes_per_s: float | None) -> float:
    """Return the largest slowdown of compute beside communication that is assumed over a link; of one not known, a wide one's."""
    width = 1.0 if bytes_per_s is None else link_width(bytes_per_s)
    return (1 + ASSUMED_WITHIN) * (ASSUMED_NARROW + width * (ASSUMED_WIDE - ASSUMED_NARROW))


@dataclass(frozen=True)
class Slowdown:
    """Kernels that ran beside communication, all or in part, and have equal ones that ran free."""

    kernel: Int64  # index of each such kernel
    covered_ns: Int64  # how much of it was beside communication
    # what that part would have taken free: covered - (duration - median of the free equals), from 0 on
    free_ns: Int64


def kernel_slowdown(name_id: Int64, grid: Int64, block: Int64, duration: Int64, covered: Int64) -> Slowdown:
    """Compare kernels beside communication with equal ones that ran free, of which there must be three that agree.

    What a kernel takes longer than its free equals, it lost while communication was under way: of two kernels of
    100 us, one takes 110 beside communication, the other 105, half of it beside communication; both lost 10 %.
    The slowdown of any of them together is c = sum of covered / sum of free - 1. Medians of even numbers are floored.

    Compute kernels stand in order of launch; `UNKNOWN` grids are not compared. `covered` is how much of each `duration`
    communication was under way, ns.
    """
    own = _mixed(_mixed(_mixed(name_id.view(np.uint64)) ^ grid.view(np.uint64)) ^ block.view(np.uint64))
    usable = np.flatnonzero((grid != UNKNOWN) & (duration > 0))
    is_beside = covered[usable] > 0
    free, beside = usable[~is_beside], usable[is_beside]
    if not free.size or not beside.size:
        return Slowdown(*(np.empty(0, np.int64),) * 3)
    context = _in_context(own, free)
    order = np.lexsort((duration[free], context))
    context = context[order]
    first = run_starts(context.view(np.int64))
    count = np.diff(first, append=context.size)
    lengths = duration[free][order]
    median = _medians(lengths, first, count)
    spread = lengths[first + count * 7 // 8] - lengths[first + count // 8]
    is_known = (count >= _ENOUGH) & (spread <= _LARGEST_SPREAD * median)
    known, median = context[first][is_known], median[is_known]
    if not known.size:
        return Slowdown(*(np.empty(0, np.int64),) * 3)
    wanted = _in_context(own, beside)
    at = np.minimum(np.searchsorted(known, wanted), known.size - 1)
    chosen = known[at] == wanted
    kernel, equal = beside[chosen], median[at[chosen]]
    return Slowdown(kernel, covered[kernel], np.maximum(covered[kernel] - (duration[kernel] - equal), 0))


def comm_delays(operations: ProcessOperations, comm: IntervalSet, windows: Windows) -> Int64 | None:
    """Return by window how much later operations begin beside communication than without, all together, ns, 0 or more.

    The operations, but communication, that begin beside it x (mean gap before those of the window - mean gap without
    communication). Gaps are the times from the end of what ran before to the start of compute kernels that were launched
    before that end, so that nothing but the device is waited for, of up to 100 us, which leaves out most waits for a
    collective. 0 without communication, None where fewer than 100 gaps are beside it or without it.
    """
    if not len(comm):
        return np.zeros(len(windows), np.int64)
    compute = ~operations.is_comm
    n_kernels = int(np.count_nonzero(compute))
    start = np.concatenate((operations.kernel_start[compute], operations.copy_start))
    end = np.concatenate((operations.kernel_end[compute], operations.copy_end))
    order = np.argsort(start, kind="stable")
    before = np.maximum.accumulate(end[order])[:-1]
    row, start = order[1:], start[order][1:]
    launch = np.concatenate((operations.kernel_launch[compute], operations.copy_launch))[row]
    gap = start - before
    covered = comm.lengths(before - 1, start)  # by 1 ns longer, so that no gap is empty
    own = (row < n_kernels) & (launch != NEVER) & (launch < before)
    own &= (gap >= 0) & (gap < _LONGEST_GAP_NS)
    free, beside = own & (covered == 0), own & (covered == gap + 1)
    if min(np.count_nonzero(free), np.count_nonzero(beside)) < _ENOUGH_GAPS:
        return None
    begun = start[comm.lengths(start, start + 1) > 0]
    sums = np.append(0, np.cumsum(gap[beside]))
    chosen = windows.slices(start[beside])
    number = chosen.counts
    means = (sums[chosen.last] - sums[chosen.first]) / np.maximum(number, 1)
    late = np.where(number > 0, np.maximum(means - gap[free].mean(), 0.0), 0.0)
    found: Int64 = np.rint(late * windows.slices(begun).counts).astype(np.int64)
    return found


def compared_share(kernels: pa.Table) -> float:
    """Return how much of the kernel time beside communication was compared, of `schema.KERNEL_COSTS`; 1 at most.

    Of a rank with more kernels than are compared, what was is taken for a sample of all.
    """
    sums = kernels.group_by("rank").aggregate([("slowed_ns", "sum"), ("overlapped_ns", "sum"), ("n_kernels", "sum")])
    found = beside = 0.0
    for row in sums.to_pylist():
        found += row["slowed_ns_sum"] * max(row["n_kernels_sum"] / _SAMPLE, 1.0)
        beside += row["overlapped_ns_sum"]
    return min(found / beside, 1.0) if beside else 0.0


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
