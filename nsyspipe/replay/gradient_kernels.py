"""The kernels that scale each gradient into its bucket: they tell when it was ready."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nsyspipe.labels import PHASES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from nsyspipe.replay.timelines import RankTimeline

    Int64 = NDArray[np.int64]
    Float = NDArray[np.float64]
    Flags = NDArray[np.bool_]

__all__ = ["is_alike", "matched_in_order", "scaling_rows"]

_BACKWARD = PHASES.index("backward")
# Such kernels are as long as their gradients are large.
_LEAST_CORRELATION = 0.8
# A collective that is shorter than this share of the longest may be of something else, as the loss.
_LARGE = 0.02


def scaling_rows(timeline: RankTimeline, own: Int64) -> Int64:
    """Return the operations of the step like the one before its last large collective, up to it."""
    found = timeline.collectives
    lengths = (found.end - found.start)[own]
    large = own[lengths >= _LARGE * lengths.max()]
    last = large[np.argmax(found.launch[large])]
    launch = np.maximum.accumulate(timeline.launch) if timeline.launch.size else timeline.launch
    at = int(np.searchsorted(launch, found.launch[last])) - 1
    if at < 0:
        return np.empty(0, np.int64)
    # One functor has several kernels, for aligned and for other arrays: `kernel [functor]`.
    word = timeline.names[timeline.name[at]]
    is_alike = _named_like(
        timeline.names, word[word.find("[") :].lower() if "[" in word else word.lower()
    )
    chosen = is_alike[timeline.name[: at + 1]] & (timeline.step[: at + 1] == found.step[last])
    if found.phase[last] == _BACKWARD:
        chosen &= timeline.phase[: at + 1] == _BACKWARD
    return np.flatnonzero(chosen)


def _named_like(names: Sequence[str], word: str) -> Flags:
    return np.array([word in name.lower() for name in names], np.bool_)


def matched_in_order(lengths: Float, sizes: Float) -> Int64:
    """Return which of more kernels are those of the gradients, in order: as long as their sizes let expect.

    The sum of |log(length / expected)| is the least; expected is proportional to the size, by the largest ones, but
    for what makes the smallest gradient as long as the shortest kernel.

    Returns
    -------
    numpy.ndarray
        A place among the lengths for each size, ascending.
    """
    n, shortest = sizes.size, lengths.min()
    largest = max(n // 4, 1)
    per_byte = np.sort(lengths)[-largest:].sum() / np.sort(sizes)[-largest:].sum()
    base = max(shortest - sizes.min() * per_byte, 0.0)
    expected = np.log(base + sizes * per_byte)
    cost = np.abs(np.log(np.maximum(lengths, 1.0)) - expected[:, np.newaxis])
    best = cost[0]
    came_from = np.zeros(cost.shape, np.int64)
    places = np.arange(lengths.size)
    for at in range(1, n):
        # The least so far, and where it stands.
        least = np.minimum.accumulate(best)
        where = np.maximum.accumulate(np.where(best == least, places, 0))
        came_from[at, 1:] = where[:-1]
        best = np.concatenate(([np.inf], least[:-1])) + cost[at]
    chosen = [int(np.argmin(best))]
    for at in range(n - 1, 0, -1):
        chosen.append(int(came_from[at, chosen[-1]]))
    return np.array(chosen[::-1], np.int64)


def is_alike(lengths: Float, sizes: Float) -> bool:
    """Tell whether kernels are the longer the larger the gradients; of equal gradients nothing can be told."""
    if not np.ptp(sizes):
        return True
    return bool(np.ptp(lengths) and np.corrcoef(lengths, sizes)[0, 1] >= _LEAST_CORRELATION)
