"""What the ranks of a generated run launch, and when it runs: see `synthetic`.

A chunk is one phase of one step. It ends with a collective, for which the host then waits: so every
chunk begins with all ranks together, and within it each rank falls behind by delays of its own. What
all ranks share is drawn from the run's seed, a rank's delays from the run's and the rank's. So each
rank knows when the others arrive, and a collective ends on all of them after the last has arrived.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Int64 = NDArray[np.int64]
    Flags = NDArray[np.bool_]

_RUN = 7
FORWARD, BACKWARD, OPTIMIZER = range(3)
COMPUTE, COMM, COPY, SYNC = range(4)
COMPUTE_STREAM, COPY_STREAM, COMM_STREAMS = 7, 14, (20, 24)
_LAYER = np.array([20, 40, 10])
_NAMES_OF_PHASE = ((0, 16), (16, 48), (48, 52))
N_COMPUTE_NAMES, N_COMM_NAMES = 52, 4
_COMM_EVERY = np.array([25, 9, 25])
_LAUNCHES_PER_OP = 5
_SLOWER_UNDER_COMM = 0.1
_BEGIN = 10_000_000_000
_APART = 10**11  # chunks are first laid out so far apart that one queue serves all, unmixed


class Program(NamedTuple):
    """The launches of every rank, in order: an array each. `name` is 0 for what has none."""

    step: Int64
    phase: Int64
    kind: Int64
    name: Int64
    stream: Int64
    layer: Int64
    op: Int64

    @property
    def chunk(self) -> Int64:
        return self.step * 3 + self.phase


class Times(NamedTuple):
    """API calls and operations of one rank; `loading` is its time of data loading before each step."""

    called: Int64
    returned: Int64
    start: Int64
    end: Int64
    loading: Int64


class _Shared(NamedTuple):
    """What all ranks have in common, chunks apart: API calls, queued work, arrivals without lag."""

    called: Int64
    returned: Int64
    begin: Int64
    slot: Int64
    arrival: Int64
    transfer: Int64
    work: Int64
    loading: Int64


class _Lag(NamedTuple):
    """How a rank lags: at the start of each chunk; fallen behind by then, and by each collective."""

    first: Int64
    before: Int64
    fallen: Int64

    def at(self, chunk: Int64, fallen: NDArray[np.number]) -> Int64:
        return fallen.astype(np.int64) - self.before[chunk] + self.first[chunk]


def clock_errors(n_ranks: int, seed: int = _RUN) -> Int64:
    """Return by how much each rank's clock is off, after what its report says about it."""
    rng = np.random.default_rng([seed, 1])
    return rng.integers(100_000, 400_000, n_ranks) * rng.choice([-1, 1], n_ranks)


def queued(ready: Int64, length: Int64) -> Int64:
    """Return starts on one stream: each when it is ready and the one before has ended."""
    before = np.cumsum(length) - length
    return before + np.maximum.accumulate(ready - before)


def program(n_kernels: int, n_steps: int) -> Program:
    """Return what a run launches: layers of the same kernels, and collectives among them."""
    rng = np.random.default_rng(_RUN)
    number = np.arange(n_kernels)
    step = number * n_steps // n_kernels
    edge = np.searchsorted(step, np.arange(n_steps + 1))
    share = n_kernels // n_steps
    is_late = edge[step + 1] - number <= share * 7 // 100
    is_early = number - edge[step] < share * 33 // 100
    phase = np.select([is_late, is_early], [OPTIMIZER, FORWARD], BACKWARD)
    place, left = _places(step * 3 + phase)

    every = _COMM_EVERY[phase]
    drawn = rng.random(n_kernels)[number - place % every]
    is_comm = place % every == every // 2 + (drawn * (every // 2)).astype(np.int64)
    is_comm = (is_comm & (left >= 4)) | (left == 0)
    comm_name = N_COMPUTE_NAMES + rng.integers(0, N_COMM_NAMES, n_kernels)
    comm_stream = np.array(COMM_STREAMS)[(rng.random(n_kernels) > 0.7).astype(np.int64)]

    position = np.cumsum(~is_comm) - ~is_comm
    position -= position[number - place]
    table = np.array([rng.integers(*names, _LAYER.max()) for names in _NAMES_OF_PHASE])
    compute_name = table[phase, position % _LAYER[phase]]

    with_copy = (number % 20 == 19) & (left > 0)
    row = np.repeat(number, 1 + with_copy + (left == 0))
    is_kernel = np.diff(row, prepend=-1) > 0
    kind = np.where(is_comm, COMM, COMPUTE)[row]
    kind[~is_kernel] = np.where(with_copy, COPY, SYNC)[row[~is_kernel]]
    return Program(
        step=step[row],
        phase=phase[row],
        kind=kind,
        name=np.where(is_kernel, np.where(is_comm, comm_name, compute_name)[row] + 1, 0),
        stream=np.select([kind == COMM, kind == COMPUTE], [comm_stream[row], COMPUTE_STREAM], COPY_STREAM),
        layer=(position // _LAYER[phase])[row],
        op=(position // _LAUNCHES_PER_OP)[row],
    )


def _places(group: Int64) -> tuple[Int64, Int64]:
    """Return how many of its group stand before each, and after it."""
    number = np.arange(group.size)
    first = np.searchsorted(group, group)
    return number - first, np.searchsorted(group, group, side="right") - 1 - number


def rank_times(run: Program, rank: int, n_ranks: int, copy_length: Int64) -> Times:
    """Return when everything of one rank happens, on a clock without error."""
    shared, chunk, own = _shared(run), run.chunk, np.random.default_rng([_RUN, 4, rank])
    compute, comm, copy, sync = (np.flatnonzero(run.kind == kind) for kind in range(4))
    lag, latest = _lags(rank, n_ranks, chunk[comm], shared.loading > 0)
    start, end = np.zeros(chunk.size, np.int64), np.zeros(chunk.size, np.int64)

    over = np.zeros(comm.size, np.int64)
    start[comm] = shared.arrival + lag.at(chunk[comm], lag.fallen[1:])
    for stream in COMM_STREAMS:
        on = np.flatnonzero(run.stream[comm] == stream)
        length = shared.transfer[on]
        over[on] = queued((shared.arrival + latest)[on], length) + length
        end[comm[on]] = over[on] + own.integers(0, 3000, on.size)
        start[comm[on[1:]]] = np.maximum(start[comm[on[1:]]], end[comm[on[:-1]]])

    # What a rank falls behind between two collectives is spread over its kernels there.
    nodes, done = np.append(0, shared.work[comm]), shared.work[compute]
    start[compute] = shared.begin
    start[compute] += lag.at(chunk[compute], np.interp(done - shared.slot, nodes, lag.fallen))
    end[compute] = shared.begin + shared.slot
    end[compute] += lag.at(chunk[compute], np.interp(done, nodes, lag.fallen))

    first_comm = np.searchsorted(chunk[comm], np.arange(sync.size))
    length = np.maximum.reduceat(over, first_comm) + 8000 - np.arange(sync.size) * _APART
    shift = (_BEGIN + np.cumsum(length) - length - np.arange(sync.size) * _APART)[chunk]
    start += shift
    end += shift
    end[compute] = start[compute] + _shorter(own, start, end, compute, comm)

    called = shared.called + shift + lag.first[chunk]
    returned = shared.returned + shift + lag.first[chunk] + own.integers(0, 400, chunk.size)
    last_end = np.maximum.reduceat(end[comm], first_comm)
    returned[sync] = np.maximum(last_end, called[sync]) + own.integers(1500, 5000, sync.size)
    start[copy] = queued(returned[copy] + own.integers(4000, 12000, copy.size), copy_length[copy])
    end[copy] = start[copy] + copy_length[copy]
    loading = np.where(shared.loading > 0, shared.loading + lag.first[::3], 0)
    return Times(called, returned, start, end, loading)


def _lags(rank: int, n_ranks: int, chunk: Int64, is_loading: Flags) -> tuple[_Lag, Int64]:
    """Return how one rank lags behind, and the lag of the last rank at each collective."""
    first_comm = np.searchsorted(chunk, np.arange(3 * is_loading.size))
    latest = np.zeros(chunk.size, np.int64)
    for one in range(n_ranks):
        rng = np.random.default_rng([_RUN, 3, one])
        first = rng.integers(0, 5000, first_comm.size)
        first[::3] += rng.integers(0, 50_000, is_loading.size) * is_loading
        delay = rng.exponential(400, chunk.size).astype(np.int64)
        delay += rng.integers(30_000, 120_000, chunk.size) * (rng.random(chunk.size) < 1 / 3000)
        fallen = np.append(0, np.cumsum(delay))
        lag = _Lag(first, fallen[first_comm], fallen)
        latest = np.maximum(latest, lag.at(chunk, fallen[1:]))
        if one == rank:
            own = lag
    return own, latest


def _shared(run: Program) -> _Shared:
    rng = np.random.default_rng([_RUN, 2])
    chunk, size = run.chunk, run.step.size
    n_steps = int(run.step[-1]) + 1
    loading = rng.integers(100_000, 400_000, n_steps) * (rng.random(n_steps) < 0.125)
    length, pause = rng.integers(2500, 6000, size), rng.integers(500, 3000, size)
    first = np.flatnonzero(np.diff(chunk, prepend=-1))
    pause[first] += rng.integers(15_000, 50_000, first.size)
    pause[first] += np.where(chunk[first] % 3 == 0, loading[chunk[first] // 3], 0)
    returned = np.cumsum(length + pause)
    since = np.append(0, returned)[first]
    returned += chunk * _APART - np.repeat(since, np.diff(np.append(first, size)))
    ready = returned + rng.integers(4000, 12000, size)

    typical = np.clip(rng.lognormal(9.2, 0.7, N_COMPUTE_NAMES), 2500, 90_000)
    typical = np.append(typical, [5500, 6500, 7500, 9000])
    needed = typical[run.name - 1] * rng.lognormal(0, 0.05, size)
    needed[np.flatnonzero(run.kind == SYNC) - 1] *= 8
    is_compute, is_comm = run.kind == COMPUTE, run.kind == COMM
    slot = (needed[is_compute] * (1 + _SLOWER_UNDER_COMM)).astype(np.int64)
    begin = queued(ready[is_compute], slot)
    done, work = np.zeros(size, np.int64), np.zeros(size, np.int64)
    done[is_compute], work[is_compute] = begin + slot, slot
    arrival = np.maximum(ready, np.maximum.accumulate(done))[is_comm] + 1500
    transfer = np.maximum(needed[is_comm].astype(np.int64), 5000)
    work = np.cumsum(work)
    return _Shared(returned - length, returned, begin, slot, arrival, transfer, work, loading)


def _shorter(own: np.random.Generator, start: Int64, end: Int64, compute: Int64, comm: Int64) -> Int64:
    """Return how long compute kernels take of the time reserved for them: all of it under communication."""
    begin, close = start[comm], end[comm]
    order = np.argsort(begin)
    begin, close = begin[order], np.maximum.accumulate(close[order])
    is_new = np.append(True, begin[1:] > close[:-1])
    is_last = np.append(is_new[1:], True)
    edges = np.column_stack([begin[is_new], close[is_last]])
    covered = np.cumsum(edges[:, 1] - edges[:, 0])
    so_far = np.column_stack([np.append(0, covered[:-1]), covered]).ravel()
    under = np.interp(end[compute], edges.ravel(), so_far)
    under -= np.interp(start[compute], edges.ravel(), so_far)
    length = end[compute] - start[compute]
    reached = (length + _SLOWER_UNDER_COMM * under) / (1 + _SLOWER_UNDER_COMM)
    return (reached * (1 - 0.03 * own.random(compute.size))).astype(np.int64)
