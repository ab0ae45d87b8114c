"""The gradients of each step: how large, when ready, and which go into one bucket."""

from typing import NamedTuple, cast

import numpy as np
from msgspec import Struct

from nsyspipe.analysis.intervals import run_starts
from nsyspipe.model.names import PHASES
from nsyspipe.model.table import Float64, Int64
from nsyspipe.replay.program import CapturedSteps, RankMarkers
from nsyspipe.replay.timelines import BEFORE_ALL_NS, RankTimeline

MIB = 1 << 20
_BACKWARD = PHASES.index("backward")
_LEAST_CORRELATION = 0.8  # such kernels are as long as their gradients are large
# a collective that is shorter than this share of the longest may be of something else, as the loss
_LARGE = 0.02
_MOST_COPIES = 20_000
_EVEN_PARTS = 512
_FEWEST = 2  # one copy alone may be of anything
_FEW_KERNELS = 4
_MOST_EXTRA = 3  # the model may use the same kernel for other things too


def _scaling_rows(timeline: RankTimeline, own: Int64) -> Int64:
    """Return the operations of the step like the one before its last large collective, up to it: a gradient's each."""
    found = timeline.collectives
    lengths = (found.end - found.start)[own]
    large = own[lengths >= _LARGE * lengths.max()]
    last = large[np.argmax(found.launch[large])]
    at = int(np.searchsorted(timeline.latest_launch, found.launch[last])) - 1
    if at < 0:
        return np.empty(0, np.int64)
    span = slice(
        int(np.searchsorted(np.maximum.accumulate(timeline.step), found.step[last])), at + 1
    )
    # One functor has several kernels, for aligned and for other arrays: `kernel [functor]`.
    word = timeline.names[timeline.name[at]]
    word = word[max(word.find("["), 0) :].lower()
    is_like = np.array([word in name.lower() for name in timeline.names], np.bool_)
    chosen = is_like[timeline.name[span]] & (timeline.step[span] == found.step[last])
    if found.phase[last] == _BACKWARD:
        chosen &= timeline.phase[span] == _BACKWARD
    return np.flatnonzero(chosen) + span.start


def matched_in_order(lengths: Float64, sizes: Float64) -> Int64:
    """Return which of more kernels are the gradients', as places in order: the sum of |log(length / expected)| is the least.

    Expected is proportional to the size, by the largest, but for what makes the smallest as long as
    the shortest kernel.
    """
    n = sizes.size
    shortest = lengths.min()
    largest = max(n // 4, 1)
    per_byte = np.sort(lengths)[-largest:].sum() / np.sort(sizes)[-largest:].sum()
    expected = np.log(max(shortest - sizes.min() * per_byte, 0.0) + sizes * per_byte)
    cost = np.abs(np.log(np.maximum(lengths, 1.0)) - expected[:, np.newaxis])
    best = cost[0]
    came_from = np.zeros(cost.shape, np.int64)
    places = np.arange(lengths.size)
    for at in range(1, n):
        least = np.minimum.accumulate(
            best
        )  # so far; where it stands is the place that it came from
        came_from[at, 1:] = np.maximum.accumulate(np.where(best == least, places, 0))[:-1]
        best = np.concatenate(([np.inf], least[:-1])) + cost[at]
    chosen = [int(np.argmin(best))]
    for at in range(n - 1, 0, -1):
        chosen.append(int(came_from[at, chosen[-1]]))
    return np.array(chosen[::-1], np.int64)


def is_alike(lengths: Float64, sizes: Float64) -> bool:
    """Tell whether kernels are the longer the larger the gradients; of equal gradients nothing can be told."""
    if not np.ptp(sizes):
        return True
    return bool(np.ptp(lengths) and np.corrcoef(lengths, sizes)[0, 1] >= _LEAST_CORRELATION)


class GradientCopies(NamedTuple):
    """The copies of one step and rank from the buckets to the gradients."""

    rows: Int64  # places among the rank's operations
    n_bytes: Float64  # of a copy that is a kernel, what its length says


def gradient_copies(captured: CapturedSteps, step: int, rank: int) -> GradientCopies:
    """Find the copies, in a row, of DDP without bucket view, from the first that waits for a collective of each burst on."""
    timeline = captured.timelines[rank]
    own = captured.gradients_by_step[step]
    of_bursts = np.split(captured.ranks[rank].join[own], run_starts(captured.burst[own])[1:])
    rows = np.unique(np.concatenate([_row(timeline, joins) for joins in of_bursts]))
    is_copy = timeline.is_copy[rows]
    lengths = (timeline.end - timeline.start)[rows].astype(np.float64)
    n_bytes = timeline.n_bytes[rows].astype(np.float64)
    per_ns = n_bytes[is_copy].sum() / max(lengths[is_copy].sum(), 1.0)
    return GradientCopies(rows, np.where(is_copy, n_bytes, lengths * per_ns))


def bucket_rows(captured: CapturedSteps, step: int, rank: int) -> Int64:
    """Return what scales gradients into buckets and copies them out in all passes of a step but the last: one of each, or none."""
    timeline = captured.timelines[rank]
    own = captured.gradients_by_step[step]
    rows = [np.empty(0, np.int64)]
    for one in np.unique(captured.burst[own]).tolist()[:-1]:
        of_pass = own[captured.burst[own] == one]
        copies = _row(timeline, captured.ranks[rank].join[of_pass])
        # All since the collective before the first of the pass.
        before = timeline.collectives.launch[of_pass[0] - 1] if of_pass[0] else BEFORE_ALL_NS
        scaling = _scaling_rows(timeline, of_pass)
        scaling = scaling[timeline.launch[scaling] > before]
        rows += (
            [copies, scaling]
            if scaling.size == np.count_nonzero(timeline.is_copy[copies])
            else [copies]
        )
    return np.unique(np.concatenate(rows))


def _row(timeline: RankTimeline, joins: Int64) -> Int64:
    """Return the copies in a row that follow the waits for one burst; none where there are kernels alone."""
    waiting = joins[joins < timeline.start.size]
    waiting = waiting[timeline.is_copy[waiting]]
    if not waiting.size:
        return np.empty(0, np.int64)
    first = int(waiting.min())
    return np.arange(first, min(first + _MOST_COPIES, int(timeline.end_of_copies[first])))


class Gradients(Struct, frozen=True):
    """The gradients of one step on all ranks, in order of their buckets."""

    n_bytes: Float64
    ready: Float64  # row per gradient, column per rank: when it was ready, aligned ns
    # whether sizes and times were seen; else the bytes of each bucket are taken to become ready
    # evenly
    is_exact: bool


def gradients_of(
    captured: CapturedSteps, step: int, n_bytes: float | None, skew: float | None = None
) -> Gradients | None:
    """Return the gradients of a step, by its place among the windows; None if their bytes are not known.

    The bytes are `n_bytes`; None: those of NCCL's payload, or of the copies. Without bucket view
    each gradient is copied out of its bucket after the collectives, in bucket order, and scaled
    into it when it is ready by one kernel: as many kernels of that name in the backward pass as
    there are copies, longer for larger ones, are the ready times. Else `skew` is the share of each
    bucket's bytes ready at its end (negative: at its begin), the rest evenly; None: likeliest.
    """
    own = captured.gradients_by_step[step]
    if not own.size:
        return None
    copies = [gradient_copies(captured, step, rank) for rank in range(captured.program.n_ranks)]
    sizes = copies[0].n_bytes
    if skew is None and (exact := _scaled(captured, own, copies, sizes)) is not None:
        return Gradients(
            sizes * (1.0 if n_bytes is None else n_bytes / sizes.sum()), exact, is_exact=True
        )
    per_bucket = _bucket_bytes(captured, own, sizes, n_bytes)
    if per_bucket is None:
        return None
    likely = _by_kernels(captured, own, per_bucket) if skew is None else None
    return likely or _spread_evenly(captured, own, per_bucket, skew or 0.0)


def _scaled(
    captured: CapturedSteps, own: Int64, copies: list[GradientCopies], sizes: Float64
) -> Float64 | None:
    """Return when each gradient was ready on each rank, by the kernels that scaled them; None if they are not found."""
    if sizes.size < max(own.size, _FEWEST) or (sizes <= 0).any():
        return None
    columns = []
    for timeline, one in zip(captured.timelines, copies, strict=True):
        rows = _scaling_rows(timeline, own)
        if not sizes.size <= rows.size <= _MOST_EXTRA * sizes.size or one.rows.size != sizes.size:
            return None
        lengths = (timeline.end - timeline.start)[rows].astype(np.float64)
        if rows.size > sizes.size:
            chosen = matched_in_order(lengths, sizes)
            rows = rows[chosen]
            lengths = lengths[chosen]
        if not is_alike(lengths, sizes):
            return None
        columns.append(timeline.end[rows].astype(np.float64))
    return np.stack(columns, axis=1)


def _bucket_bytes(
    captured: CapturedSteps, own: Int64, copied: Float64, total_bytes: float | None
) -> Float64 | None:
    """Return the bytes of each captured bucket; None where nothing says them, or says that there are none."""
    program = captured.program
    known = program.n_bytes[own]
    shares = np.maximum(program.transfer_ns[own].mean(axis=1), 1.0)
    if known.sum() > 0:  # not of what holds a NaN
        return known if total_bytes is None else known * (total_bytes / known.sum())
    if total_bytes is None:
        if copied.size < max(own.size, _FEWEST) or not copied.sum() > 0:
            return None
        total_bytes = float(copied.sum())
    return cast("Float64", shares * (total_bytes / shares.sum()))


def _by_kernels(captured: CapturedSteps, own: Int64, per_bucket: Float64) -> Gradients | None:
    """Take the kernels that scale gradients for the gradients, as large as they are long; None where there are few."""
    columns: list[Int64] = []
    sizes = np.empty(0)
    for timeline in captured.timelines:
        rows = _scaling_rows(timeline, own)
        bucket = np.searchsorted(timeline.collectives.launch[own], timeline.launch[rows])
        counts = np.bincount(bucket, minlength=own.size)
        if counts.size > own.size or counts.min() < 1 or rows.size < _FEW_KERNELS * own.size:
            return None
        if not columns:
            lengths = (timeline.end - timeline.start)[rows].astype(np.float64)
            # The shortest say how long a kernel takes that does next to nothing.
            weights = np.maximum(lengths - lengths.min(), 0.02 * lengths.max())
            sizes = (
                per_bucket[bucket]
                * weights
                / np.bincount(bucket, weights=weights, minlength=own.size)[bucket]
            )
        elif rows.size != sizes.size:
            return None
        columns.append(timeline.end[rows])
    return Gradients(sizes, np.stack(columns, axis=1).astype(np.float64), is_exact=False)


def _spread_evenly(
    captured: CapturedSteps, own: Int64, per_bucket: Float64, skew: float
) -> Gradients:
    """Let the bytes of each bucket become ready evenly from the bucket before on; of the first, from its pass's begin."""
    counts = np.maximum(np.round(_EVEN_PARTS * (per_bucket / per_bucket.sum())).astype(np.int64), 1)
    # When each of a bucket's equal parts is ready, as shares of the time that the bucket has.
    even = np.concatenate([np.arange(1, n + 1) / n for n in counts.tolist()])
    shares = np.clip((even + min(skew, 0.0)) / (1 - abs(skew)), 0.0, 1.0)
    columns = []
    for timeline, markers in zip(captured.timelines, captured.ranks, strict=True):
        edges = np.append(
            _begin_of_pass(timeline, markers, own), markers.ready[own].astype(np.float64)
        )
        columns.append(np.repeat(edges[:-1], counts) + np.repeat(np.diff(edges), counts) * shares)
    return Gradients(
        np.repeat(per_bucket / counts, counts), np.stack(columns, axis=1), is_exact=False
    )


def _begin_of_pass(timeline: RankTimeline, markers: RankMarkers, own: Int64) -> float:
    """Return when the backward pass began; not marked: a third into the step, since backward takes twice forward."""
    step = timeline.step == timeline.collectives.step[own[0]]
    first_ready = float(markers.ready[own[0]])
    backward = np.flatnonzero(step & (timeline.phase == _BACKWARD) & timeline.is_compute)
    if backward.size:
        return min(float(timeline.start[backward[0]]), first_ready)
    rows = np.flatnonzero(step & (timeline.launch != BEFORE_ALL_NS))
    if not rows.size:
        return first_ready
    begin = float(timeline.start[rows[0]])
    return min(begin + (float(markers.ready[own].max()) - begin) / 3, first_ready)


def bucket_ends(n_bytes: Float64, cap_mib: float) -> Int64:
    """Return the last gradient of each bucket by DDP's rule: a bucket is closed by the one that fills it up.

    Gradients come in the order in which they are ready; the cap is ``bucket_cap_mb``, which DDP
    counts in MiB.
    """
    reached = np.cumsum(n_bytes)
    before = 0.0
    ends: list[int] = []
    while before < reached[-1]:
        # Half a byte: sums of floats may fall short of a cap that is met exactly.
        at = int(np.searchsorted(reached, before + cap_mib * MIB - 0.5))
        at = min(max(at, ends[-1] + 1 if ends else 0), reached.size - 1)
        ends.append(at)
        before = reached[at]
    return np.array(ends, np.int64)
