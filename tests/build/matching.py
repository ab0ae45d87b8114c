"""Make the collectives of many ranks as columns, without reports: what has to be matched across ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tests.build.synthetic_times import clock_errors, queued

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Int64 = NDArray[np.int64]

_PER_STEP = 20
_N_KINDS, _N_STREAMS = 4, 2


def collective_rows(n_ranks: int, n_collectives: int, seed: int) -> dict[str, Int64]:
    """Return one row per rank and collective, rank by rank, in order of launch (not of start).

    All ranks have the same collectives in each step, arrive tens of us apart and end together within
    3 us. Columns: `rank`, `step`, `collective` (code from 0), `stream_order` (0 for the stream that
    the collective was first used on, 1 for the other), `start_ns`, `end_ns`. Times are on each rank's
    own clock, which is `clock_errors(n_ranks, seed)` ahead.
    """
    rng = np.random.default_rng(seed)
    collective = rng.integers(0, _N_KINDS, n_collectives)
    stream = (rng.random(n_collectives) > 0.7).astype(np.int64)
    _, first, kind = np.unique(collective, return_index=True, return_inverse=True)
    ready = 10_000_000_000 + np.cumsum(rng.integers(50_000, 400_000, n_collectives))
    transfer = rng.integers(20_000, 300_000, n_collectives)

    start = ready + rng.exponential(15_000, (n_ranks, n_collectives)).astype(np.int64)
    end = rng.integers(0, 3000, (n_ranks, n_collectives))
    latest = start.max(axis=0)
    for one in range(_N_STREAMS):
        on = np.flatnonzero(stream == one)
        end[:, on] += queued(latest[on], transfer[on]) + transfer[on]
        start[:, on[1:]] = np.maximum(start[:, on[1:]], end[:, on[:-1]])
    error = clock_errors(n_ranks, seed)[:, None]
    return {
        "rank": np.repeat(np.arange(n_ranks), n_collectives),
        "step": np.tile(np.arange(n_collectives) // _PER_STEP, n_ranks),
        "collective": np.tile(collective, n_ranks),
        "stream_order": np.tile(stream ^ stream[first][kind], n_ranks),
        "start_ns": (start + error).ravel(),
        "end_ns": (end + error).ravel(),
    }
