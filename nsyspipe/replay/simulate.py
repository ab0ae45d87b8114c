"""Run the markers of all ranks, with several settings side by side; and by how much communication slows other work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.compute as pc

from nsyspipe.analysis.intervals import union
from nsyspipe.analysis.slowdown import compared_share
from nsyspipe.replay.program import JOIN, NOTHING, READY, WINDOW, Slowing

if TYPE_CHECKING:
    import pyarrow as pa

    from nsyspipe.model.types import Float64
    from nsyspipe.replay.program import Captured, Program, RankMarkers
    from nsyspipe.replay.timelines import RankTimeline


# An operation takes this long at least.
_SHORTEST_NS = 1_000.0


@dataclass(frozen=True)
class Setting:
    """One way to run the markers; all times ns.

    Attributes
    ----------
    before, after
        By how much communication slows work beside it, in the capture and in the replay.
    transfer_ns
        Per collective and rank; None keeps the captured ones.
    """

    before: Slowing = NOTHING
    after: Slowing = NOTHING
    transfer_ns: Float64 | None = None


def simulate(
    program: Program, settings: list[Setting], unpack_ns: Float64 | None = None
) -> Float64:
    """Return when each window starts on each rank, and the last one ends.

    In the order of the markers: a collective begins on a rank when the rank's work has come to its `READY` and
    the collective before it on that stream has ended, ``lag_ns`` later; it ends ``transfer_ns`` after its last
    start over ranks; work stands still at a `JOIN` until its collective has ended. While communication is under
    way on a rank (from its own start on), its work takes 1 + c times as long, and each operation a delay more; the
    operations between two markers are spread evenly over the work between them.

    Parameters
    ----------
    settings
        Run side by side.
    unpack_ns
        Per collective: how long after its end its result can be used; None for 0.

    Returns
    -------
    numpy.ndarray
        Shape (settings, windows + 1, ranks), aligned ns.

    Notes
    -----
    Cost: a few numpy calls per marker, whatever the number of ranks and settings.
    """
    ahead, slow = _work_between(program, settings)
    n_collectives = program.step.size
    shape = len(settings), program.n_ranks
    transfer = np.stack([_or(one.transfer_ns, program.transfer_ns) for one in settings])
    unpack = np.zeros(n_collectives) if unpack_ns is None else unpack_ns
    run = _Beside(n_collectives, shape, is_free=not (slow > 1).any())
    now = np.broadcast_to(program.begin_ns, shape).copy()
    ends = np.empty((n_collectives, *shape))
    free_at = np.full((int(program.chain.max(initial=0)) + 1, *shape), -np.inf)
    until = _work_until_join(program, ahead)
    moves = [bool(one.any()) for one in ahead.swapaxes(0, 1)]
    may_change = (program.late_beside_ns > 0) | (program.longer_beside > 0)
    edges = np.empty((len(settings), program.n_windows + 1, program.n_ranks))
    for at, (kind, which) in enumerate(
        zip(program.kind.tolist(), program.which.tolist(), strict=True)
    ):
        if moves[at]:
            now = run.advance(now, ahead[:, at], slow[:, at])
        if kind == READY:
            chain = program.chain[which]
            start = np.maximum(free_at[chain], now) + program.lag_ns[which]
            length = transfer[:, which]
            if may_change[which]:
                works = start < now + until[:, at]
                start = start + np.where(works, program.late_beside_ns[which], 0.0)
                length = length * (
                    1 + program.longer_beside[which] * works.any(axis=1)[:, np.newaxis]
                )
            # A rank cannot be done before it has begun, whatever clocks say.
            end = np.maximum(start.max(axis=1, keepdims=True) + length, start)
            free_at[chain] = ends[which] = end
            run.add(start, end)
        elif kind == JOIN:
            now = np.maximum(now, ends[which] + unpack[which])
        else:
            edges[:, which] = now
    return edges


def _or(given: Float64 | None, other: Float64) -> Float64:
    return other if given is None else given


def _work_between(program: Program, settings: list[Setting]) -> tuple[Float64, Float64]:
    """Return the work from each marker to the next, without what communication had slowed it by, and how much longer it takes beside communication."""
    first = int(np.flatnonzero(program.kind == WINDOW)[0])
    n_begun = np.diff(program.begun, axis=0, prepend=program.begun[:1])
    works, slows = [], []
    for one in settings:
        place = program.free_work(one.before)
        place = np.maximum(
            place - place[first], 0.0
        )  # what lies before the first window is not run
        work = np.diff(place, axis=0, prepend=0.0)
        density = n_begun / np.maximum(work, _SHORTEST_NS * np.maximum(n_begun, 1.0))
        works.append(work)
        slows.append(np.maximum(1 + one.after.ratio + one.after.delay_ns * density, 1.0))
    return np.stack(works), np.stack(slows)


def _work_until_join(program: Program, ahead: Float64) -> Float64:
    """Return the work from each marker to the next that waits for a collective, or to the end."""
    place = np.cumsum(ahead, axis=1)
    at = np.arange(program.kind.size)
    is_join = np.append(program.kind == JOIN, True)
    following = np.append(at, at.size - 1)[
        np.minimum.accumulate(np.where(is_join, np.append(at, at.size), at.size)[::-1])[::-1]
    ]
    found: Float64 = place[:, following[:-1]] - place
    return found


class _Beside:
    """Lets work go on, slower while a collective is under way on its rank."""

    def __init__(self, n_collectives: int, shape: tuple[int, int], *, is_free: bool) -> None:
        self._size = shape[0] * shape[1]
        # A row per collective and one that never begins, all settings and ranks side by side.
        self._starts = np.full((n_collectives + 1, *shape), np.inf)
        self._ends = np.full((n_collectives + 1, *shape), np.inf)
        self._n = 0
        # Place of the first that may still be under way.
        self._next = np.arange(self._size, dtype=np.int64).reshape(shape)
        self._is_free = is_free

    def add(self, start: Float64, end: Float64) -> None:
        """Tell of a collective; on each rank in order of start."""
        self._starts[self._n], self._ends[self._n] = start, end
        self._n += 1

    def advance(self, now: Float64, work: Float64, slow: Float64) -> Float64:
        """Return when that much more work is done, which takes `slow` times as long beside communication."""
        if self._is_free:
            return now + work
        left = work
        while True:
            start, end = self._starts.take(self._next), self._ends.take(self._next)
            alone = np.minimum(np.maximum(start - now, 0.0), left)
            now, left = now + alone, left - alone
            slowed = np.minimum(np.maximum(end - now, 0.0) / slow, left)
            # Before its start nothing is under way: then nothing was left either.
            slowed *= now >= start
            now, left = now + slowed * slow, left - slowed
            is_over = left > 0
            if not is_over.any():
                return now
            self._next += is_over * self._size


# By how much communication slows the work beside it: as measured in the capture, and what is seen elsewhere.


_ENOUGH_GAPS = 100
# What is longer is a pause and no launch to launch.
_LONGEST_GAP_NS = 100_000


@dataclass(frozen=True)
class Compared:
    """The kernels beside communication that have equal ones without it (`analysis.slowdown`), of all ranks.

    Attributes
    ----------
    slowdown
        c of them together; None where there are none.
    share
        Their share of all kernel time beside communication.
    """

    slowdown: float | None
    share: float


@dataclass(frozen=True)
class Contention:
    """What the capture says of work beside communication.

    Attributes
    ----------
    compared
        Kernels with equal ones without communication.
    delay_ns
        How much later an operation begins after the one before it than without communication; None where too few did.
    free_gap_ns
        That time without communication.
    covered_share
        Share of all work that was beside communication.
    covered_ns, n_covered
        That work, and the operations that it began.
    """

    compared: Compared
    delay_ns: float | None
    free_gap_ns: float
    covered_share: float
    covered_ns: float
    n_covered: float


def compared_kernels(kernels: pa.Table) -> Compared:
    """Return what `schema.KERNEL_COSTS` says of all kernels together, the same that the finding says."""
    slowed, free = (pc.sum(kernels[name]).as_py() or 0 for name in ("slowed_ns", "free_ns"))
    return Compared(slowed / free - 1, compared_share(kernels)) if free else Compared(None, 0.0)


def measured_contention(captured: Captured, compared: Compared) -> Contention:
    """Add to the compared kernels how much later operations begin beside communication.

    Of operations of the main stream that were launched before the one before them ended and that wait for no
    collective: mean time since that end, beside communication less without.
    """
    pairs = list(zip(captured.timelines, captured.ranks, strict=True))
    gaps = [_gaps(*one) for one in pairs]
    free, beside = (np.concatenate([one[at] for one in gaps]) for at in (0, 1))
    work, covered, _, n_covered = (
        sum(one) for one in zip(*(_worked(*one) for one in pairs), strict=True)
    )
    is_enough = min(free.size, beside.size) >= _ENOUGH_GAPS
    return Contention(
        compared=compared,
        delay_ns=float(beside.mean() - free.mean()) if is_enough else None,
        free_gap_ns=float(free.mean()) if free.size else 0.0,
        covered_share=covered / max(work, 1.0),
        covered_ns=covered,
        n_covered=n_covered,
    )


def _worked(rank: RankTimeline, markers: RankMarkers) -> tuple[float, float, float, float]:
    """Return work, and how much of it beside communication, from the rank's first operation to its last."""
    if not rank.start.size:
        return 0.0, 0.0, 0.0, 0.0
    edges = markers.places(np.array([rank.start[0], rank.end.max()]))
    work, covered, begun, begun_beside = (float(one[1] - one[0]) for one in edges)
    return work, covered, begun, begun_beside


def _gaps(rank: RankTimeline, markers: RankMarkers) -> tuple[Float64, Float64]:
    """Return the times between operations of the main stream, without communication and beside it."""
    if rank.start.size <= 1:
        return np.empty(0), np.empty(0)
    busy = union(rank.collectives.start, rank.collectives.end)
    before = np.maximum.accumulate(rank.end)[:-1]
    start = rank.start[1:]
    gap = start - before
    waits = np.zeros(rank.start.size + 1, np.bool_)
    waits[markers.join] = True
    own = (rank.launch[1:] < before) & (gap >= 0) & (gap < _LONGEST_GAP_NS) & ~waits[1:-1]
    covered = busy.lengths(before - 1, start)
    length = gap + 1
    is_free, is_beside = own & (covered == 0), own & (covered == length)
    return gap[is_free].astype(np.float64), gap[is_beside].astype(np.float64)
