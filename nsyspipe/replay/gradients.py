"""The gradients of each step: their sizes, when they are ready, and their buckets."""

from typing import NamedTuple, cast

import numpy as np
from msgspec import Struct

from nsyspipe.analysis.intervals import run_starts
from nsyspipe.model.names import PHASES
from nsyspipe.model.table import Flags, Float64, Int64
from nsyspipe.replay.program import CapturedSteps, RankMarkers
from nsyspipe.replay.timelines import BEFORE_ALL_NS, RankTimeline, durations_ns

MIB = 1 << 20
_BACKWARD = PHASES.index("backward")
# Kernels belong to gradients if their durations follow the gradient sizes as closely as this.
_MIN_CORRELATION = 0.8
# A shorter collective, as a share of the longest one, may be of something else, such as the loss.
_MIN_SHARE_OF_LONGEST = 0.02
_MAX_COPIES = 20_000
# If nothing shows when gradients are ready, a step has about so many equal ones.
_N_EVEN_PARTS = 512
# A single copy may be of anything.
_MIN_COPIES = 2
_MIN_KERNELS_PER_BUCKET = 4
# The model may use the same kernel for other things too: this often per gradient at most.
_MAX_KERNELS_PER_GRADIENT = 3
# The least weight of a kernel, as a share of the longest kernel.
_MIN_KERNEL_WEIGHT = 0.02
_EMPTY = np.empty(0, np.int64)


def _scaling_rows(timeline: RankTimeline, all_reduces: Int64) -> Int64:
    """Return the places of the operations that scale the gradients of a step, one per gradient.

    The last operation that was launched before the last large all-reduce of the step scales a
    gradient. So does every earlier operation of the step that applies the same functor. If the
    all-reduce was launched in backward, only operations in backward count. The places are in order
    of start. There are none if no operation was launched before the all-reduce.
    """
    comm = timeline.collectives
    # A short all-reduce may be of something else, such as the loss.
    lengths_ns = comm.end[all_reduces] - comm.start[all_reduces]
    min_large_ns = _MIN_SHARE_OF_LONGEST * lengths_ns.max()
    large = all_reduces[lengths_ns >= min_large_ns]
    last_large = large[np.argmax(comm.launch[large])]
    step = comm.step[last_large]
    last_launch = comm.launch[last_large]
    n_launched = int(np.searchsorted(timeline.latest_launch, last_launch))
    if n_launched == 0:
        return _EMPTY
    latest_step = np.maximum.accumulate(timeline.step)
    first_of_step = int(np.searchsorted(latest_step, step))
    # From the begin of the step to the all-reduce.
    span = slice(first_of_step, n_launched)
    code_of_last_name = timeline.name[n_launched - 1]
    has_same_functor = _have_same_functor(timeline.names, timeline.names[code_of_last_name])
    is_scaling = has_same_functor[timeline.name[span]] & (timeline.step[span] == step)
    if comm.phase[last_large] == _BACKWARD:
        is_scaling &= timeline.phase[span] == _BACKWARD
    return np.flatnonzero(is_scaling) + first_of_step


def _have_same_functor(names: tuple[str, ...], name: str) -> Flags:
    """Tell which names are of kernels that apply the same functor as the kernel of one name.

    A functor has several kernels, for aligned and for other arrays. Their names are
    ``kernel [functor]``. In a name without a functor, the whole name counts.
    """
    # Without a bracket, the place is -1.
    begin = max(name.find("["), 0)
    functor = name[begin:].lower()
    flags = [functor in candidate.lower() for candidate in names]
    return np.array(flags, np.bool_)


def matched_in_order(lengths: Float64, sizes: Float64) -> Int64:
    """Return the place of the kernel of each gradient, if there are more kernels than gradients.

    Both are in order of time. Of all choices of kernels in that order, the result is the one with
    the least sum of costs, see `_matching_cost`. Dynamic programming finds it.
    """
    cost = _matching_cost(lengths, sizes)
    n_gradients, n_kernels = cost.shape
    # By kernel: the least total cost up to the current gradient, if that gradient has this kernel.
    total_cost = cost[0]
    # By gradient and kernel: the kernel of the previous gradient, if the gradient has this kernel.
    kernel_before = np.zeros(cost.shape, np.int64)
    kernels = np.arange(n_kernels)
    for gradient in range(1, n_gradients):
        least_so_far = np.minimum.accumulate(total_cost)
        is_least = total_cost == least_so_far
        # By kernel: the latest kernel up to this one that has the least cost so far.
        kernel_if_least = np.where(is_least, kernels, 0)
        kernel_of_least = np.maximum.accumulate(kernel_if_least)
        # The kernel of a gradient comes after that of the previous gradient.
        kernel_before[gradient, 1:] = kernel_of_least[:-1]
        cost_before = np.append(np.inf, least_so_far[:-1])
        total_cost = cost_before + cost[gradient]
    # Go back from the kernel of the last gradient.
    kernel = int(np.argmin(total_cost))
    last_first = [kernel]
    for gradient in range(n_gradients - 1, 0, -1):
        kernel = int(kernel_before[gradient, kernel])
        last_first.append(kernel)
    return np.array(last_first[::-1], np.int64)


def _matching_cost(lengths: Float64, sizes: Float64) -> Float64:
    """Return |log(length / expected length)| for each gradient (row) and each kernel (column).

    The expected length of a gradient's kernel is a constant plus a time per byte. For the time per
    byte, the largest quarter of the gradients is taken to have the longest kernels. The constant
    makes the shortest expected length at least as long as the shortest kernel.
    """
    n_largest = max(sizes.size // 4, 1)
    largest_lengths = np.sort(lengths)[-n_largest:]
    largest_sizes = np.sort(sizes)[-n_largest:]
    ns_per_byte = largest_lengths.sum() / largest_sizes.sum()
    smallest_ns = sizes.min() * ns_per_byte
    constant_ns = max(lengths.min() - smallest_ns, 0.0)
    expected_ns = constant_ns + sizes * ns_per_byte
    expected_log = np.log(expected_ns)
    # A kernel of 0 ns counts as 1 ns, because 0 has no logarithm.
    length_log = np.log(np.maximum(lengths, 1.0))
    differences = length_log - expected_log[:, np.newaxis]
    cost: Float64 = np.abs(differences)
    return cost


def is_alike(lengths: Float64, sizes: Float64) -> bool:
    """Tell whether kernels are longer for larger gradients.

    True for gradients of one size, which cannot show the contrary.
    """
    are_sizes_equal = np.ptp(sizes) == 0
    if are_sizes_equal:
        return True
    are_lengths_equal = np.ptp(lengths) == 0
    if are_lengths_equal:
        return False
    correlation = np.corrcoef(lengths, sizes)[0, 1]
    return bool(correlation >= _MIN_CORRELATION)


class GradientCopies(NamedTuple):
    """The copies from the buckets to the gradients in one step of one rank."""

    # The places of the copies among the rank's operations.
    rows: Int64
    # By copy. If a kernel copies, its size follows from its duration.
    n_bytes: Float64


def gradient_copies(captured: CapturedSteps, step: int, rank: int) -> GradientCopies:
    """Find the copies of DDP without bucket view: from buckets to gradients.

    After each burst of all-reduces, the copies stand in sequence. The first of them waits for a
    collective of the burst. A burst is the all-reduces of one backward pass, see
    `CapturedSteps.burst`.
    """
    timeline = captured.timelines[rank]
    all_reduces = captured.gradients_by_step[step]
    joins = captured.ranks[rank].join[all_reduces]
    burst = captured.burst[all_reduces]
    first_of_bursts = run_starts(burst)
    joins_of_bursts = np.split(joins, first_of_bursts[1:])
    rows_of_bursts = [_copies_after(timeline, burst_joins) for burst_joins in joins_of_bursts]
    rows = np.unique(np.concatenate(rows_of_bursts))
    lengths_ns = durations_ns(timeline, rows)
    # A kernel that copies has no recorded size. It is taken to copy as fast as the memcpys.
    is_memcpy = timeline.is_copy[rows]
    recorded_bytes = timeline.n_bytes[rows].astype(np.float64)
    memcpys_ns = lengths_ns[is_memcpy].sum()
    bytes_per_ns = recorded_bytes[is_memcpy].sum() / max(memcpys_ns, 1.0)
    n_bytes = np.where(is_memcpy, recorded_bytes, lengths_ns * bytes_per_ns)
    return GradientCopies(rows, n_bytes)


def rows_of_early_passes(captured: CapturedSteps, step: int, rank: int) -> Int64:
    """Return the operations that scale and copy gradients in all passes of a step but the last.

    The result has their places among the rank's operations. It has the scaling operations of a pass
    only if there are as many as memcpys in the pass.
    """
    timeline = captured.timelines[rank]
    all_reduces = captured.gradients_by_step[step]
    join = captured.ranks[rank].join
    rows = [_EMPTY]
    # The all-reduces of a pass are one burst.
    burst = captured.burst[all_reduces]
    bursts = np.unique(burst).tolist()
    for early_burst in bursts[:-1]:
        all_reduces_of_pass = all_reduces[burst == early_burst]
        copies = _copies_after(timeline, join[all_reduces_of_pass])
        rows.append(copies)
        scaling = _scaling_rows_of_pass(timeline, all_reduces_of_pass)
        n_memcpys = np.count_nonzero(timeline.is_copy[copies])
        if scaling.size == n_memcpys:
            rows.append(scaling)
    return np.unique(np.concatenate(rows))


def _scaling_rows_of_pass(timeline: RankTimeline, all_reduces: Int64) -> Int64:
    """Return the operations that scale the gradients of one pass, not those of passes before it."""
    scaling = _scaling_rows(timeline, all_reduces)
    launch = timeline.collectives.launch
    first = all_reduces[0]
    # The collective before the pass, of whatever kind, was launched before the pass scales.
    launch_before = launch[first - 1] if first > 0 else BEFORE_ALL_NS
    is_in_pass = timeline.launch[scaling] > launch_before
    return scaling[is_in_pass]


def _copies_after(timeline: RankTimeline, joins: Int64) -> Int64:
    """Return the places of the copies after one burst of all-reduces, which stand in sequence.

    `joins` are the operations that wait for the collectives of the burst. The sequence begins with
    the first memcpy among these operations, and ends before the next operation that is no copy. It
    is empty if no memcpy waits.
    """
    # Without a waiting operation, the join is the number of operations.
    waiting = joins[joins < timeline.start.size]
    waiting_copies = waiting[timeline.is_copy[waiting]]
    if not waiting_copies.size:
        return _EMPTY
    first = int(waiting_copies.min())
    end_of_copies = int(timeline.end_of_copies[first])
    end = min(first + _MAX_COPIES, end_of_copies)
    return np.arange(first, end)


class Gradients(Struct, frozen=True):
    """The gradients of one step on all ranks, in order of their buckets."""

    n_bytes: Float64
    # A row per gradient, a column per rank: when it was ready, aligned ns.
    ready: Float64
    # Whether the capture shows the sizes and times. If not, they are estimated from the buckets.
    is_exact: bool


def gradients_of(
    captured: CapturedSteps, step: int, n_bytes: float | None, skew: float | None = None
) -> Gradients | None:
    """Return the gradients of a step. Return None if their sizes are not known.

    Without bucket view, DDP scales each gradient into its bucket with one kernel when the gradient
    is ready. After the collectives, DDP copies the gradients out in the same order. The gradients
    come from the first of these that the capture allows:

    1. The scaling kernels and the copies, if each copy has a kernel that is longer for larger
       copies. The ends of the kernels show when gradients were ready.
    2. The scaling kernels alone. Their durations divide the size of each bucket.
    3. Equal gradients that become ready evenly. This is the only way with a skew.

    Parameters
    ----------
    step
        The place among the windows.
    n_bytes
        The size of all gradients. If None, it is the message size, or the size of the copies.
    skew
        If given, each bucket has this share of its bytes ready at its end (negative: at its begin),
        and the rest evenly. By default, the times are the most likely ones.
    """
    all_reduces = captured.gradients_by_step[step]
    if not all_reduces.size:
        return None
    ranks = range(captured.program.n_ranks)
    copies = [gradient_copies(captured, step, rank) for rank in ranks]
    # All ranks have the same gradients.
    copied_bytes = copies[0].n_bytes
    if skew is None:
        ready = _ready_by_scaling(captured, all_reduces, copies, copied_bytes)
        if ready is not None:
            scale = 1.0 if n_bytes is None else n_bytes / copied_bytes.sum()
            return Gradients(copied_bytes * scale, ready, is_exact=True)
    bucket_bytes = _bucket_bytes(captured, all_reduces, copied_bytes, n_bytes)
    if bucket_bytes is None:
        return None
    if skew is not None:
        return _spread_evenly(captured, all_reduces, bucket_bytes, skew)
    by_kernels = _gradients_by_kernels(captured, all_reduces, bucket_bytes)
    return by_kernels or _spread_evenly(captured, all_reduces, bucket_bytes, skew=0.0)


def _ready_by_scaling(
    captured: CapturedSteps, all_reduces: Int64, copies: list[GradientCopies], sizes: Float64
) -> Float64 | None:
    """Return when each gradient (row) was ready on each rank (column).

    That is the end of the kernel that scales the gradient. Return None if on any rank, there are no
    scaling kernels that fit the gradients, or not one copy per gradient.
    """
    min_copies = max(all_reduces.size, _MIN_COPIES)
    if sizes.size < min_copies or (sizes <= 0).any():
        return None
    max_kernels = _MAX_KERNELS_PER_GRADIENT * sizes.size
    columns = []
    ranks = zip(captured.timelines, copies, strict=True)
    for timeline, rank_copies in ranks:
        rows = _scaling_rows(timeline, all_reduces)
        has_enough_kernels = sizes.size <= rows.size <= max_kernels
        if not has_enough_kernels or rank_copies.rows.size != sizes.size:
            return None
        if rows.size > sizes.size:
            matched = matched_in_order(durations_ns(timeline, rows), sizes)
            rows = rows[matched]
        if not is_alike(durations_ns(timeline, rows), sizes):
            return None
        ready = timeline.end[rows].astype(np.float64)
        columns.append(ready)
    return np.stack(columns, axis=1)


def _bucket_bytes(
    captured: CapturedSteps, all_reduces: Int64, copied: Float64, total_bytes: float | None
) -> Float64 | None:
    """Return the size of each captured bucket. Return None if nothing shows the sizes.

    `copied` are the sizes of the copied gradients. `total_bytes` is the size of all gradients, if
    the user gives it.
    """
    program = captured.program
    recorded = program.n_bytes[all_reduces]
    recorded_total = recorded.sum()
    # A size that was not recorded is NaN. Then the sum is NaN too, and not above 0.
    if recorded_total > 0:
        return recorded if total_bytes is None else recorded * (total_bytes / recorded_total)
    if total_bytes is None:
        known_bytes = _sum_of_copies(copied, n_buckets=all_reduces.size)
    else:
        known_bytes = total_bytes
    if known_bytes is None:
        return None
    # Without message sizes, the bytes of a bucket are in proportion to its transfer time.
    mean_transfer_ns = program.transfer_ns[all_reduces].mean(axis=1)
    transfer_ns = np.maximum(mean_transfer_ns, 1.0)
    bytes_per_ns = known_bytes / transfer_ns.sum()
    return cast("Float64", transfer_ns * bytes_per_ns)


def _sum_of_copies(copied: Float64, n_buckets: int) -> float | None:
    """Return the bytes of the copies of a step. None if they are too few to be of all gradients.

    `copied` has the bytes of each copy. If a size is not known, so is the sum.
    """
    min_copies = max(n_buckets, _MIN_COPIES)
    n_bytes = float(copied.sum())
    # A sum of NaN is not above 0.
    return n_bytes if copied.size >= min_copies and n_bytes > 0 else None


def _gradients_by_kernels(
    captured: CapturedSteps, all_reduces: Int64, bucket_bytes: Float64
) -> Gradients | None:
    """Return a gradient for each kernel that scales gradients.

    The size of a gradient follows from the duration of its kernel on the first rank. Return None if
    there are few such kernels, if a bucket has none, or if ranks have different numbers of kernels.
    """
    columns: list[Int64] = []
    sizes = np.empty(0)
    n_buckets = all_reduces.size
    min_kernels = _MIN_KERNELS_PER_BUCKET * n_buckets
    for timeline in captured.timelines:
        rows = _scaling_rows(timeline, all_reduces)
        bucket_launch = timeline.collectives.launch[all_reduces]
        # A kernel belongs to the first bucket that was launched after it. A kernel that was
        # launched after the last bucket gets the number of buckets, and fits no bucket.
        bucket_of_kernel = np.searchsorted(bucket_launch, timeline.launch[rows])
        n_kernels_of_buckets = np.bincount(bucket_of_kernel, minlength=n_buckets)
        fits_buckets = n_kernels_of_buckets.size == n_buckets
        has_all_buckets = fits_buckets and n_kernels_of_buckets.min() >= 1
        if not has_all_buckets or rows.size < min_kernels:
            return None
        is_first_rank = not columns
        if is_first_rank:
            lengths_ns = durations_ns(timeline, rows)
            sizes = _sizes_by_durations(lengths_ns, bucket_of_kernel, bucket_bytes)
        elif rows.size != sizes.size:
            return None
        columns.append(timeline.end[rows])
    ready = np.stack(columns, axis=1)
    return Gradients(sizes, ready.astype(np.float64), is_exact=False)


def _sizes_by_durations(lengths: Float64, bucket: Int64, bucket_bytes: Float64) -> Float64:
    """Divide the size of each bucket among its kernels, and return the size of each kernel.

    The weight of a kernel is the time by which it exceeds the shortest kernel, which does almost
    nothing. `bucket` is the bucket of each kernel.
    """
    min_weight = _MIN_KERNEL_WEIGHT * lengths.max()
    beyond_shortest_ns = lengths - lengths.min()
    weights = np.maximum(beyond_shortest_ns, min_weight)
    bucket_weights = np.bincount(bucket, weights=weights, minlength=bucket_bytes.size)
    bytes_of_bucket = bucket_bytes[bucket]
    weight_of_bucket = bucket_weights[bucket]
    sizes: Float64 = bytes_of_bucket * weights / weight_of_bucket
    return sizes


def _spread_evenly(
    captured: CapturedSteps, all_reduces: Int64, bucket_bytes: Float64, skew: float
) -> Gradients:
    """Return equal gradients in each bucket, which become ready evenly over the bucket's time.

    The time of a bucket goes from when the previous bucket was ready to when this bucket was ready.
    That of the first bucket goes from the begin of the backward pass. For `skew`, see
    `gradients_of`.
    """
    n_parts = _n_even_parts(bucket_bytes)
    shares = _ready_shares(n_parts, skew)
    columns = []
    ranks = zip(captured.timelines, captured.ranks, strict=True)
    for timeline, markers in ranks:
        bucket_ready = markers.ready[all_reduces].astype(np.float64)
        begin = _begin_of_pass(timeline, markers, all_reduces)
        edges = np.append(begin, bucket_ready)
        begin_of_part = np.repeat(edges[:-1], n_parts)
        duration_of_part = np.repeat(np.diff(edges), n_parts)
        ready_of_part = begin_of_part + duration_of_part * shares
        columns.append(ready_of_part)
    sizes = np.repeat(bucket_bytes / n_parts, n_parts)
    ready = np.stack(columns, axis=1)
    return Gradients(sizes, ready, is_exact=False)


def _n_even_parts(bucket_bytes: Float64) -> Int64:
    """Return the number of equal parts that each bucket is divided into."""
    bucket_shares = bucket_bytes / bucket_bytes.sum()
    rounded_parts = np.round(_N_EVEN_PARTS * bucket_shares)
    n_parts: Int64 = np.maximum(rounded_parts.astype(np.int64), 1)
    return n_parts


def _ready_shares(n_parts: Int64, skew: float) -> Float64:
    """Return when each part of each bucket is ready, as a share of the bucket's time.

    The parts of a bucket are equal. A positive skew is the share of parts that are ready only at
    the end of the bucket's time. A negative skew, without its sign, is the share of parts that are
    ready at the begin already. The rest becomes ready evenly over the time.
    """
    # Without a skew, the parts are ready one after the other, and the last one at the end.
    shares_of_buckets = [np.arange(1, n + 1) / n for n in n_parts.tolist()]
    even_shares = np.concatenate(shares_of_buckets)
    share_at_begin = max(-skew, 0.0)
    share_of_rest = 1 - abs(skew)
    # The rest is stretched over the time from 0 to 1. The parts at the begin fall below 0, and the
    # parts at the end above 1.
    stretched_shares = (even_shares - share_at_begin) / share_of_rest
    shares: Float64 = np.clip(stretched_shares, 0.0, 1.0)
    return shares


def _begin_of_pass(timeline: RankTimeline, markers: RankMarkers, all_reduces: Int64) -> float:
    """Return when the backward pass of a step begins, at the latest when the first bucket is ready.

    If no phase marks backward, it begins after a third of the time from the first operation of the
    step to the last bucket, since backward takes twice as long as forward.
    """
    ready = markers.ready[all_reduces]
    first_ready = float(ready[0])
    last_ready = float(ready.max())
    step = timeline.collectives.step[all_reduces[0]]
    is_in_step = timeline.step == step
    is_backward = is_in_step & (timeline.phase == _BACKWARD)
    backward = np.flatnonzero(is_backward & timeline.is_compute)
    if backward.size:
        backward_start = float(timeline.start[backward[0]])
        return min(backward_start, first_ready)
    is_launched = timeline.launch != BEFORE_ALL_NS
    launched = np.flatnonzero(is_in_step & is_launched)
    if not launched.size:
        return first_ready
    begin_of_step = float(timeline.start[launched[0]])
    forward_ns = (last_ready - begin_of_step) / 3
    return min(begin_of_step + forward_ns, first_ready)


def bucket_ends(n_bytes: Float64, cap_mib: float) -> Int64:
    """Return the last gradient of each bucket by the rule of DDP.

    A bucket is closed by the gradient that fills it. Gradients are in the order in which they are
    ready, and `n_bytes` has their sizes. The cap is ``bucket_cap_mb``, which DDP counts in MiB.
    """
    bytes_until = np.cumsum(n_bytes)
    last_of_all = bytes_until.size - 1
    bytes_in_buckets = 0.0
    first_gradient = 0
    ends: list[int] = []
    while bytes_in_buckets < bytes_until[-1]:
        # Half a byte less, because a sum of floats may be below a cap that is met exactly.
        bytes_until_full = bytes_in_buckets + cap_mib * MIB - 0.5
        filling_gradient = int(np.searchsorted(bytes_until, bytes_until_full))
        # A bucket has at least one gradient, and the last bucket need not be full.
        last_gradient = min(max(filling_gradient, first_gradient), last_of_all)
        ends.append(last_gradient)
        bytes_in_buckets = bytes_until[last_gradient]
        first_gradient = last_gradient + 1
    return np.array(ends, np.int64)
