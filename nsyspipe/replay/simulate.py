"""The steps as a program of markers, and its run: all ranks, with several settings side by side."""

from typing import cast

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from nsyspipe.analysis.kernels import Slowing
from nsyspipe.model.table import Flags, Float64, Int64

WINDOW, READY, JOIN = range(3)
_SHORTEST_NS = 1_000.0  # an operation takes this long at least
NOTHING = Slowing()


class Program(Struct, frozen=True):
    """Markers of all ranks in one order, and the collectives that they begin and wait for; times ns, a column per rank."""

    # Of each marker: `WINDOW`, the start of a window; `READY`, from here on a collective may begin;
    # `JOIN`, what follows waits for the end of a collective. And which window or collective.
    kind: Int64
    which: Int64
    # by marker and rank: whether the rank comes by; others may wait for a collective elsewhere
    passes: Flags
    # Shape (4, markers, ranks), how far each rank has come: its own work (time less standing still
    # for collectives), how long of it communication was under way, how many operations its main
    # stream began, and how many of them beside it.
    places: Float64
    # Of each collective: the place of its step among the windows; from when it could have begun to
    # its start; from the last rank's start to the own end; message bytes, NaN where not known; the
    # number of its chain, in which one follows the other; whether it is one of the gradients'
    # all-reduces; the role of its communicator; and, a column per rank, the number of the
    # collective that the rank takes part in there: those with the same one wait for each other.
    step: Int64
    lag_ns: Float64
    transfer_ns: Float64
    n_bytes: Float64
    chain: Int64
    is_gradient: Flags
    role: NDArray[np.object_]
    group: Int64
    begin_ns: Float64  # start of the first window, aligned
    # Of each collective that was not captured: how much later it begins, and by which share of it
    # it is longer, when the rank works at its begin. Nothing of those that were: their lags and
    # transfers hold it.
    late_beside_ns: Float64
    longer_beside: Float64

    def free_work(self, slowing: Slowing) -> Float64:
        """Return how far work had come at each marker had communication not slowed it."""
        work, beside, _, begun_beside = self.places
        lost = slowing.ratio * beside + slowing.delay_ns * begun_beside
        return np.maximum.accumulate(work - lost / (1 + slowing.ratio), axis=0)

    @property
    def n_ranks(self) -> int:
        """Ranks."""
        return int(self.begin_ns.size)


def last_start(group: Int64, start: Float64) -> Float64:
    """Return the last start over the ranks of a collective, those of one group, of starts in the last axis, for each of them."""
    if (group == group[0]).all():
        return cast("Float64", start.max(axis=-1, keepdims=True))
    last = np.empty_like(start)
    for one in np.unique(group).tolist():
        last[..., group == one] = start[..., group == one].max(axis=-1, keepdims=True)
    return last


class Setting(Struct, frozen=True):
    """By how much communication slows work in the capture and in the replay; other transfers than the captured ones."""

    before: Slowing = NOTHING
    after: Slowing = NOTHING
    transfer_ns: Float64 | None = None

    def transfer(self, program: Program) -> Float64:
        """Return the transfers of a program's collectives."""
        return program.transfer_ns if self.transfer_ns is None else self.transfer_ns


def simulate(
    program: Program, settings: list[Setting], unpack_ns: Float64 | None = None
) -> Float64:
    """Return when each window starts on each rank, and the last ends: (settings, windows + 1, ranks), aligned ns.

    In the order of the markers: a collective begins on a rank when the rank's work has come to its
    `READY` and the collective before it in its chain has ended, ``lag_ns`` later; it ends
    ``transfer_ns`` after its last start over its ranks; work stands still at a `JOIN` until its
    collective has ended, and `unpack_ns` longer. While communication is under way on a rank (from
    its own start on), its work takes 1 + c times as long, and each operation a delay more; the
    operations between two markers are spread evenly over the work between them.
    """
    ahead, slow = _work_between(program, settings)
    n_collectives = program.step.size
    shape = len(settings), program.n_ranks
    transfer = np.stack([setting.transfer(program) for setting in settings])
    unpack = np.zeros(n_collectives) if unpack_ns is None else unpack_ns
    run = _Beside(n_collectives, shape, is_free=not (slow > 1).any())
    now = np.broadcast_to(program.begin_ns, shape).copy()
    ends = np.empty((n_collectives, *shape))
    free_at = np.full((int(program.chain.max(initial=0)) + 1, *shape), -np.inf)
    # The work from each marker to the next that waits for a collective, or to the end.
    place = np.cumsum(ahead, axis=1)
    rows = np.arange(program.kind.size)[:, np.newaxis]
    waits = np.where((program.kind == JOIN)[:, np.newaxis] & program.passes, rows, rows[-1])
    until = (
        np.take_along_axis(place, np.minimum.accumulate(waits[::-1])[::-1][np.newaxis], axis=1)
        - place
    )
    moves = [bool(one.any()) for one in ahead.swapaxes(0, 1)]
    may_change = (program.late_beside_ns > 0) | (program.longer_beside > 0)
    edges = np.empty((len(settings), np.count_nonzero(program.kind == WINDOW), program.n_ranks))
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
                longer = program.longer_beside[which] * last_start(
                    program.group[which], works.astype(np.float64)
                )
                length = length * (1 + longer)
            # A rank cannot be done before it has begun, whatever clocks say.
            end = np.maximum(last_start(program.group[which], start) + length, start)
            free_at[chain] = ends[which] = end
            run.add(start, end)
        elif kind == JOIN:
            now = np.where(program.passes[at], np.maximum(now, ends[which] + unpack[which]), now)
        else:
            edges[:, which] = now
    return edges


def _work_between(program: Program, settings: list[Setting]) -> tuple[Float64, Float64]:
    """Return the work up to each marker, without what communication slowed it by, and how much longer it takes beside it."""
    first = int(np.flatnonzero(program.kind == WINDOW)[0])
    begun = program.places[2]
    n_begun = np.diff(begun, axis=0, prepend=begun[:1])
    works = []
    slows = []
    for setting in settings:
        place = program.free_work(setting.before)
        place = np.maximum(place - place[first], 0.0)  # what lies before the first is not run
        work = np.diff(place, axis=0, prepend=0.0)
        density = n_begun / np.maximum(work, _SHORTEST_NS * np.maximum(n_begun, 1.0))
        works.append(work)
        slows.append(np.maximum(1 + setting.after.ratio + setting.after.delay_ns * density, 1.0))
    return np.stack(works), np.stack(slows)


class _Beside:
    """Lets work go on, slower while a collective is under way on its rank."""

    def __init__(self, n_collectives: int, shape: tuple[int, int], *, is_free: bool) -> None:
        self._size = shape[0] * shape[1]
        # A row per collective and one that never begins, all settings and ranks side by side.
        self._starts, self._ends = np.full((2, n_collectives + 1, *shape), np.inf)
        self._n = 0
        self._next = np.arange(self._size).reshape(
            shape
        )  # place of the first that may still be under way
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
            start = self._starts.take(self._next)
            end = self._ends.take(self._next)
            alone = np.minimum(np.maximum(start - now, 0.0), left)
            now = now + alone
            left = left - alone
            slowed = np.minimum(np.maximum(end - now, 0.0) / slow, left)
            slowed *= (
                now >= start
            )  # before its start nothing is under way: then nothing was left either
            now = now + slowed * slow
            left = left - slowed
            is_over = left > 0
            if not is_over.any():
                return now
            self._next += is_over * self._size
