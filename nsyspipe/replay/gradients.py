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
    """Return the operations that scale the gradients of a step, one per gradient.

    They are those like the last operation before the last large all-reduce of the step.
    """
    comm = timeline.collectives
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
    first = int(np.searchsorted(latest_step, step))
    span = slice(first, n_launched)
    last_name = timeline.names[timeline.name[n_launched - 1]]
    is_like_name = _are_like(timeline.names, last_name)
    is_like = is_like_name[timeline.name[span]]
    is_scaling = is_like & (timeline.step[span] == step)
    if comm.phase[last_large] == _BACKWARD:
        is_scaling &= timeline.phase[span] == _BACKWARD
    return np.flatnonzero(is_scaling) + first


def _are_like(names: tuple[str, ...], name: str) -> Flags:
    """Tell which kernels apply the same functor.

    A functor has several kernels, for aligned and for other arrays. Their names are
    ``kernel [functor]``.
    """
    begin = max(name.find("["), 0)
    functor = name[begin:].lower()
    flags = [functor in candidate.lower() for candidate in names]
    return np.array(flags, np.bool_)


def matched_in_order(lengths: Float64, sizes: Float64) -> Int64:
    """Return which kernels belong to the gradients, if there are more kernels than gradients.

    The kernels are in the order of the gradients, and the sum of |log(length / expected length)| is
    the least possible. Return their places.
    """
    cost = _matching_cost(lengths, sizes)
    n_gradients, n_kernels = cost.shape
    # The least cost of the gradients so far, if the kernel at each place is that of the last one.
    total_cost = cost[0]
    previous_place = np.zeros(cost.shape, np.int64)
    places = np.arange(n_kernels)
    for gradient in range(1, n_gradients):
        least_so_far = np.minimum.accumulate(total_cost)
        is_least = total_cost == least_so_far
        least_places = np.where(is_least, places, 0)
        place_of_least = np.maximum.accumulate(least_places)
        previous_place[gradient, 1:] = place_of_least[:-1]
        cost_before = np.append(np.inf, least_so_far[:-1])
        total_cost = cost_before + cost[gradient]
    last_place = int(np.argmin(total_cost))
    matched = [last_place]
    for gradient in range(n_gradients - 1, 0, -1):
        place = previous_place[gradient, matched[-1]]
        matched.append(int(place))
    return np.array(matched[::-1], np.int64)


def _matching_cost(lengths: Float64, sizes: Float64) -> Float64:
    """Return |log(length / expected length)| for each gradient (row) and each kernel (column).

    The expected length is proportional to the size, by the largest gradients and kernels. A
    constant makes that of the smallest gradient at least as long as the shortest kernel.
    """
    n_largest = max(sizes.size // 4, 1)
    largest_lengths = np.sort(lengths)[-n_largest:]
    largest_sizes = np.sort(sizes)[-n_largest:]
    ns_per_byte = largest_lengths.sum() / largest_sizes.sum()
    smallest_ns = sizes.min() * ns_per_byte
    constant_ns = max(lengths.min() - smallest_ns, 0.0)
    expected_ns = constant_ns + sizes * ns_per_byte
    expected_log = np.log(expected_ns)
    length_log = np.log(np.maximum(lengths, 1.0))
    differences = length_log - expected_log[:, np.newaxis]
    cost: Float64 = np.abs(differences)
    return cost


def is_alike(lengths: Float64, sizes: Float64) -> bool:
    """Tell whether kernels are longer for larger gradients. Equal gradients do not tell."""
    if not np.ptp(sizes):
        return True
    if not np.ptp(lengths):
        return False
    correlation = np.corrcoef(lengths, sizes)[0, 1]
    return bool(correlation >= _MIN_CORRELATION)


class GradientCopies(NamedTuple):
    """The copies from the buckets to the gradients in one step of one rank."""

    # Places among the rank's operations.
    rows: Int64
    # If a kernel copies, the size follows from its duration.
    n_bytes: Float64


def gradient_copies(captured: CapturedSteps, step: int, rank: int) -> GradientCopies:
    """Find the copies of DDP without bucket view.

    They are in sequence, from the first copy that waits for a collective of each burst.
    """
    timeline = captured.timelines[rank]
    all_reduces = captured.gradients_by_step[step]
    joins = captured.ranks[rank].join[all_reduces]
    burst = captured.burst[all_reduces]
    first_of_bursts = run_starts(burst)
    joins_of_bursts = np.split(joins, first_of_bursts[1:])
    rows_of_bursts = [_copies_after(timeline, burst_joins) for burst_joins in joins_of_bursts]
    rows = np.unique(np.concatenate(rows_of_bursts))
    is_copy = timeline.is_copy[rows]
    lengths_ns = durations_ns(timeline, rows)
    recorded_bytes = timeline.n_bytes[rows].astype(np.float64)
    copy_ns = max(lengths_ns[is_copy].sum(), 1.0)
    bytes_per_ns = recorded_bytes[is_copy].sum() / copy_ns
    n_bytes = np.where(is_copy, recorded_bytes, lengths_ns * bytes_per_ns)
    return GradientCopies(rows, n_bytes)


def bucket_rows(captured: CapturedSteps, step: int, rank: int) -> Int64:
    """Return the operations that scale and copy gradients in all passes of a step but the last.

    Scaling operations count only if there is one per copy.
    """
    timeline = captured.timelines[rank]
    all_reduces = captured.gradients_by_step[step]
    join = captured.ranks[rank].join
    launch = timeline.collectives.launch
    rows = [_EMPTY]
    burst = captured.burst[all_reduces]
    bursts = np.unique(burst).tolist()
    for early_burst in bursts[:-1]:
        of_pass = all_reduces[burst == early_burst]
        copies = _copies_after(timeline, join[of_pass])
        rows.append(copies)
        scaling = _scaling_rows(timeline, of_pass)
        first = of_pass[0]
        launch_before = launch[first - 1] if first else BEFORE_ALL_NS
        is_in_pass = timeline.launch[scaling] > launch_before
        scaling = scaling[is_in_pass]
        n_copies = np.count_nonzero(timeline.is_copy[copies])
        if scaling.size == n_copies:
            rows.append(scaling)
    return np.unique(np.concatenate(rows))


def _copies_after(timeline: RankTimeline, joins: Int64) -> Int64:
    """Return the sequence of copies that follows the waits for one burst.

    It begins with a memcpy, and is empty if only kernels wait.
    """
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

    Without bucket view, DDP scales each gradient into its bucket with one kernel when it is ready,
    and copies it out after the collectives, in the same order. If there are as many kernels of one
    name as copies, and they are longer for larger copies, they show when gradients were ready.

    Parameters
    ----------
    step
        The place among the windows.
    n_bytes
        The size of all gradients. By default, it is the message size, or the size of the copies.
    skew
        If given, each bucket has this share of its bytes ready at its end (negative: at its begin),
        and the rest evenly. By default, the times are the most likely ones.
    """
    all_reduces = captured.gradients_by_step[step]
    if not all_reduces.size:
        return None
    ranks = range(captured.program.n_ranks)
    copies = [gradient_copies(captured, step, rank) for rank in ranks]
    sizes = copies[0].n_bytes
    if skew is None:
        ready = _ready_by_scaling(captured, all_reduces, copies, sizes)
        if ready is not None:
            scale = 1.0 if n_bytes is None else n_bytes / sizes.sum()
            return Gradients(sizes * scale, ready, is_exact=True)
    bucket_bytes = _bucket_bytes(captured, all_reduces, sizes, n_bytes)
    if bucket_bytes is None:
        return None
    if skew is not None:
        return _spread_evenly(captured, all_reduces, bucket_bytes, skew)
    by_kernels = _gradients_by_kernels(captured, all_reduces, bucket_bytes)
    return by_kernels or _spread_evenly(captured, all_reduces, bucket_bytes, skew=0.0)


def _ready_by_scaling(
    captured: CapturedSteps, all_reduces: Int64, copies: list[GradientCopies], sizes: Float64
) -> Float64 | None:
    """Return when each gradient was ready on each rank, by the end of the kernel that scales it.

    Return None if the kernels do not belong to the gradients.
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
    """Return the size of each captured bucket. Return None if nothing shows it, or if it is 0."""
    program = captured.program
    recorded = program.n_bytes[all_reduces]
    # A size that was not recorded is NaN, and so is the sum.
    recorded_total = recorded.sum()
    if recorded_total > 0:
        return recorded if total_bytes is None else recorded * (total_bytes / recorded_total)
    if total_bytes is None:
        min_copies = max(all_reduces.size, _MIN_COPIES)
        copied_bytes = float(copied.sum())
        if copied.size < min_copies or not copied_bytes > 0:
            return None
        total_bytes = copied_bytes
    mean_transfer_ns = program.transfer_ns[all_reduces].mean(axis=1)
    transfer_ns = np.maximum(mean_transfer_ns, 1.0)
    bytes_per_ns = total_bytes / transfer_ns.sum()
    return cast("Float64", transfer_ns * bytes_per_ns)


def _gradients_by_kernels(
    captured: CapturedSteps, all_reduces: Int64, bucket_bytes: Float64
) -> Gradients | None:
    """Return a gradient for each kernel that scales gradients. Return None if there are few.

    The size of a gradient follows from the duration of its kernel on the first rank.
    """
    columns: list[Int64] = []
    sizes = np.empty(0)
    n_buckets = all_reduces.size
    min_kernels = _MIN_KERNELS_PER_BUCKET * n_buckets
    for timeline in captured.timelines:
        rows = _scaling_rows(timeline, all_reduces)
        bucket_launch = timeline.collectives.launch[all_reduces]
        bucket = np.searchsorted(bucket_launch, timeline.launch[rows])
        n_kernels = np.bincount(bucket, minlength=n_buckets)
        has_all_buckets = n_kernels.size <= n_buckets and n_kernels.min() >= 1
        if not has_all_buckets or rows.size < min_kernels:
            return None
        if not columns:
            lengths_ns = durations_ns(timeline, rows)
            sizes = _sizes_by_durations(lengths_ns, bucket, bucket_bytes)
        elif rows.size != sizes.size:
            return None
        columns.append(timeline.end[rows])
    ready = np.stack(columns, axis=1)
    return Gradients(sizes, ready.astype(np.float64), is_exact=False)


def _sizes_by_durations(lengths: Float64, bucket: Int64, bucket_bytes: Float64) -> Float64:
    """Divide the size of each bucket among its kernels by their duration.

    The shortest kernel shows how long a kernel takes that does almost nothing.
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
    """Let the bytes of each bucket become ready evenly, from the previous bucket on.

    Those of the first bucket become ready from the beginning of the backward pass.
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
    """Return when each of a bucket's equal parts is ready, as a share of the bucket's time."""
    shares_of_buckets = [np.arange(1, n + 1) / n for n in n_parts.tolist()]
    even_shares = np.concatenate(shares_of_buckets)
    moved_shares = even_shares + min(skew, 0.0)
    skewed_shares = moved_shares / (1 - abs(skew))
    shares: Float64 = np.clip(skewed_shares, 0.0, 1.0)
    return shares


def _begin_of_pass(timeline: RankTimeline, markers: RankMarkers, all_reduces: Int64) -> float:
    """Return when the backward pass begins.

    If no phase marks it, it begins a third into the step, since backward takes twice as long as
    forward.
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
    begin = float(timeline.start[launched[0]])
    return min(begin + (last_ready - begin) / 3, first_ready)


def bucket_ends(n_bytes: Float64, cap_mib: float) -> Int64:
    """Return the last gradient of each bucket by the rule of DDP.

    A bucket is closed by the gradient that fills it. Gradients are in the order in which they are
    ready. The cap is ``bucket_cap_mb``, which DDP counts in MiB.
    """
    bytes_until = np.cumsum(n_bytes)
    bytes_in_buckets = 0.0
    ends: list[int] = []
    while bytes_in_buckets < bytes_until[-1]:
        # Half a byte less, because a sum of floats may be below a cap that is met exactly.
        full = bytes_in_buckets + cap_mib * MIB - 0.5
        last_gradient = int(np.searchsorted(bytes_until, full))
        next_gradient = ends[-1] + 1 if ends else 0
        last_gradient = min(max(last_gradient, next_gradient), bytes_until.size - 1)
        ends.append(last_gradient)
        bytes_in_buckets = bytes_until[last_gradient]
    return np.array(ends, np.int64)
