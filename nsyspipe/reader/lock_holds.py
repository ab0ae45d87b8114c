"""Between which two lines a thread held Python's lock (GIL) while samples of it were due.

A sample that is due while the thread holds the lock is taken late, when the thread lets go of the
lock. It shows where the thread was then. That may be a later line than the one that held the lock.
The sample before shows a line that ran earlier. What held the lock ran between both.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from nsyspipe.model.table import Flags, Int64

_NO_LINE = -1
_NO_SAMPLE = -1
_NO_INTS = np.empty(0, np.int64)
# Times are rounded to this.
_ROUNDING_NS = 1


class ThreadSamples(Struct, frozen=True):
    """The samples of some threads, in any order. Each array has a value for each sample."""

    # A number from 0 for each thread.
    thread: Int64
    times: Int64
    is_late: Flags
    # The innermost line of the program, otherwise the innermost line of all.
    shown_line: Int64


class Stacks(Struct, frozen=True):
    """The frames of the user's program, innermost first, sample by sample."""

    # The line of each frame.
    line: Int64
    # Of each sample: the position of its innermost frame among all frames, and its number of them.
    first: Int64
    number: Int64


class HoldEnds(Struct, frozen=True):
    """Between which lines the thread of each late sample held the lock.

    Both are -1 for a sample that was taken in time. `after` is -1 too if the thread has no sample
    before.
    """

    after: Int64
    let_go: Int64


def find_hold_ends(samples: ThreadSamples, stacks: Stacks) -> HoldEnds:
    """Return the line of the last sample before the lock was held, and the line of letting go.

    The line is that of the outermost frame in which the two stacks differ. Mostly, it is a line of
    a function that both stacks share. If they have no such frame, the line is that of the innermost
    frame that they share. Without frames of the program, it is the line that a sample shows.
    """
    n_samples = samples.times.size
    if not n_samples:
        return HoldEnds(_NO_INTS, _NO_INTS)
    holds = _find_holds(samples)
    # What follows is found for the first sample of each time that the lock was held.
    starts = np.unique(holds.first_sample[samples.is_late])
    befores = holds.sample_before[starts]
    has_before = befores != _NO_SAMPLE
    after = np.full(n_samples, _NO_LINE)
    after[starts] = np.where(has_before, samples.shown_line[befores], _NO_LINE)
    let_go = np.full(n_samples, _NO_LINE)
    let_go[starts] = samples.shown_line[starts]
    have_frames = (stacks.number[starts] > 0) & (stacks.number[befores] > 0)
    is_compared = has_before & have_frames
    compared = starts[is_compared]
    compared_before = befores[is_compared]
    depth = _depths_of_difference(stacks, compared, compared_before)
    after[compared] = _lines_at(stacks, compared_before, depth)
    let_go[compared] = _lines_at(stacks, compared, depth)
    first_sample = holds.first_sample
    return HoldEnds(
        after=np.where(samples.is_late, after[first_sample], _NO_LINE),
        let_go=np.where(samples.is_late, let_go[first_sample], _NO_LINE),
    )


class _Holds(Struct, frozen=True):
    """Of each sample: the first sample of the same time that the lock was held, and one before.

    A sample that was taken in time is its own first sample. If a thread has no sample before, this
    is -1.
    """

    first_sample: Int64
    sample_before: Int64


def _find_holds(samples: ThreadSamples) -> _Holds:
    """Tell which late samples are of the same time that their thread held the lock."""
    # numpy sorts by the last key first.
    order = np.lexsort((samples.times, samples.thread))
    # From here on, samples are in order of thread and time.
    thread = samples.thread[order]
    has_sample_before = np.append(False, thread[1:] == thread[:-1])
    follows = _follow_in_hold(samples, order, has_sample_before)
    position = np.arange(order.size)
    first_position = np.maximum.accumulate(np.where(follows, 0, position))
    before = np.where(has_sample_before, order[position - 1], _NO_SAMPLE)
    # In the order of the samples themselves again.
    first_sample = np.empty(order.size, np.int64)
    first_sample[order] = order[first_position]
    sample_before = np.empty(order.size, np.int64)
    sample_before[order] = before[first_position]
    return _Holds(first_sample, sample_before)


def _follow_in_hold(samples: ThreadSamples, order: Int64, has_sample_before: Flags) -> Flags:
    """Tell for samples in order whether each is of the same time of holding as the one before.

    When a thread lets go of the lock, nsys takes all samples that were due meanwhile at once. Their
    times are exactly one period apart. Samples that waited for nothing are a bit further apart. The
    period is the distance that occurs most often.
    """
    is_late = samples.is_late[order]
    line = samples.shown_line[order]
    # The first sample of all has no sample before, and is compared with the last one.
    is_same_place = line == np.roll(line, 1)
    may_follow = has_sample_before & is_late & np.roll(is_late, 1) & is_same_place
    times = samples.times[order]
    distance_ns = times - np.roll(times, 1)
    period_ns = _most_frequent(distance_ns[may_follow])
    is_period_apart = np.abs(distance_ns - period_ns) <= _ROUNDING_NS
    follows: Flags = may_follow & is_period_apart
    return follows


def _most_frequent(values: Int64) -> int:
    """Return the value that occurs most often, the lowest of several; 0 without values."""
    if not values.size:
        return 0
    distinct_values, counts = np.unique(values, return_counts=True)
    return int(distinct_values[counts.argmax()])


def _depths_of_difference(stacks: Stacks, samples: Int64, samples_before: Int64) -> Int64:
    """Return the outermost frame in which each sample differs from the sample before.

    Frames count from the outermost, which is 0. All samples have frames. If the frames of one
    sample are the outer frames of the other, the last of them is returned.
    """
    n_compared = np.minimum(stacks.number[samples], stacks.number[samples_before])
    if not n_compared.size:
        return n_compared
    # From here on, most arrays have a value for each pair of frames.
    pair = np.repeat(np.arange(n_compared.size), n_compared)
    first_of_pair = np.cumsum(n_compared) - n_compared
    depth = np.arange(pair.size) - first_of_pair[pair]
    line = _lines_at(stacks, samples[pair], depth)
    line_before = _lines_at(stacks, samples_before[pair], depth)
    last_depth = n_compared[pair] - 1
    depth_if_different = np.where(line == line_before, last_depth, depth)
    depths: Int64 = np.minimum.reduceat(depth_if_different, first_of_pair)
    return depths


def _lines_at(stacks: Stacks, samples: Int64, depth: Int64) -> Int64:
    """Return the line of one frame of each sample. Frames count from the outermost, which is 0."""
    outermost = stacks.first[samples] + stacks.number[samples] - 1
    lines: Int64 = stacks.line[outermost - depth]
    return lines
