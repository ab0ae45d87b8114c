"""By how much communication slows the work beside it: measured on equal operations with and without it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nsyspipe.intervals import union
from nsyspipe.value_runs import run_starts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from nsyspipe.replay.markers import Captured
    from nsyspipe.replay.timelines import RankTimeline

    Int64 = NDArray[np.int64]
    Float = NDArray[np.float64]
    Flags = NDArray[np.bool_]

__all__ = ["Contention", "measured_contention"]

# An operation is compared with those whose neighbours, this far to either side, have the same names.
_REACH = 3
_COVERED = 0.9
_ENOUGH, _ENOUGH_OPERATIONS = 3, 100
# Equal ones differ by little; where they do not, one name stands for several shapes.
_LARGEST_SPREAD = 0.5
# What is longer is a pause and no launch to launch.
_LONGEST_PITCH_NS = 20_000_000


@dataclass(frozen=True)
class Contention:
    """How much longer the same work takes beside communication.

    Attributes
    ----------
    slowdown
        c: such work takes 1 + c times as long.
    covered_share
        Share of all work that was beside communication.
    """

    slowdown: float
    covered_share: float


def measured_contention(captured: Captured) -> Contention | None:
    """Compare the pitch (start to next start) of equal operations beside communication and free of it.

    Equal are operations whose name and that of three neighbours on either side are the same, where the free ones
    agree among themselves; c = sum of pitches beside communication / sum of their equals' free medians - 1, at least 0.

    Returns
    -------
    Contention or None
        None with fewer than 100 operations to compare.
    """
    parts = [_of_rank(one) for one in captured.timelines]
    words = sorted({name for one in captured.timelines for name in one.names})
    context = np.concatenate(
        [
            _contexts(one, words)[part.rows]
            for one, part in zip(captured.timelines, parts, strict=True)
        ]
    )
    pitch = np.concatenate([part.pitch for part in parts])
    covered = np.concatenate([part.covered for part in parts])
    share = float(covered.sum() / max(pitch.sum(), 1.0))
    is_covered, is_free = covered >= _COVERED * pitch, covered == 0
    kept = np.flatnonzero(is_covered | is_free)
    order = kept[np.lexsort((pitch[kept], is_covered[kept], context[kept]))]
    measured, expected = _compared(context[order], is_covered[order], pitch[order])
    if measured.size < _ENOUGH_OPERATIONS:
        return None
    return Contention(
        slowdown=max(float(measured.sum() / expected.sum()) - 1, 0.0),
        covered_share=share,
    )


def _compared(context: Int64, under: Flags, pitch: Float) -> tuple[Float, Float]:
    """Return the pitch of each operation beside communication that has free equals, and theirs; sorted rows."""
    first = run_starts(2 * context + under)
    if first.size <= 1:
        return np.empty(0), np.empty(0)
    count = np.diff(first, append=context.size)
    middle, low, high = (pitch[first + count * part // 8] for part in (4, 1, 7))
    agree = (high - low) <= _LARGEST_SPREAD * middle
    is_pair = (context[first][1:] == context[first][:-1]) & agree[:-1]
    is_pair &= (count[1:] >= _ENOUGH) & (count[:-1] >= _ENOUGH)
    pairs = np.flatnonzero(is_pair)
    chosen = np.zeros(first.size, np.bool_)
    chosen[pairs + 1] = True
    free = np.zeros(first.size)
    free[pairs + 1] = middle[pairs]
    rows = np.repeat(chosen, count)
    return pitch[rows], np.repeat(free, count)[rows]


@dataclass(frozen=True)
class _Part:
    rows: Int64
    pitch: Float
    covered: Float


def _of_rank(rank: RankTimeline) -> _Part:
    busy = union(rank.collectives.start, rank.collectives.end)
    start, following = rank.start[:-1], rank.start[1:]
    pitch = following - start
    # A launch that came late, or a wait for something, is not the operation's own.
    own = (rank.launch[1:] < start) & (pitch > 0) & (pitch < _LONGEST_PITCH_NS)
    rows = np.flatnonzero(own)
    covered = busy.lengths(start[rows], following[rows])
    return _Part(rows, pitch[rows].astype(np.float64), covered.astype(np.float64))


def _contexts(rank: RankTimeline, words: Sequence[str]) -> Int64:
    """Return one number per name with its neighbours' names, the same on all ranks."""
    place = {word: at for at, word in enumerate(words, start=1)}
    names = np.array([place[name] for name in rank.names], np.uint64)[rank.name]
    padded = np.concatenate((np.zeros(_REACH, np.uint64), names, np.zeros(_REACH, np.uint64)))
    found = np.zeros(names.size, np.uint64)
    for offset in range(2 * _REACH + 1):
        # Odd multiplier of a linear congruential generator (Knuth); wraps around on purpose.
        found = found * np.uint64(6364136223846793005) + padded[offset : offset + names.size]
    # One bit is left for the sort beside it.
    return (found >> np.uint64(2)).astype(np.int64)
