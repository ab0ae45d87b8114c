"""Speed of what is done across ranks, beside one sort of as many numbers in the same process.

    pytest -m bench -n 0 -s tests/bench/test_matching_speed.py

Nothing here fails on a time: it prints figures. It does fail when clocks or collectives are not found.
"""

from __future__ import annotations

import time

import numpy as np
import pytest

from nsyspipe.analysis.clock import ALIGNING, clock_offsets
from nsyspipe.analysis.collectives import match, waiting
from nsyspipe.analysis.communication import CommKind
from nsyspipe.model.names import COLLECTIVES
from nsyspipe.run.collectives import ABSENT, CommRows, CrossRank, collectives_table
from tests.build.synthetic import clock_errors

pytestmark = pytest.mark.bench
N_RANKS, N_COLLECTIVES, SEED = 512, 2000, 7
# The first four of `COLLECTIVES` are the kinds of the generated rows.
KINDS = tuple(CommKind(name, "f32", "RING_LL") for name in COLLECTIVES[:4])


def generated_rows():
    """Return rows as `comm_rows` has them, by rank and start: all ranks arrive tens of us apart and end within 3 us."""
    rng = np.random.default_rng(SEED)
    kind = rng.integers(0, len(KINDS), N_COLLECTIVES)
    stream = (rng.random(N_COLLECTIVES) > 0.7).astype(np.int64)
    ready = 10_000_000_000 + np.cumsum(rng.integers(450_000, 800_000, N_COLLECTIVES))
    shape = N_RANKS, N_COLLECTIVES
    start = ready + np.minimum(rng.exponential(15_000, shape), 99_000).astype(np.int64)
    end = ready + 100_000 + rng.integers(20_000, 300_000, N_COLLECTIVES) + rng.integers(0, 3000, shape)
    error = clock_errors(N_RANKS, SEED)[:, None]
    rank, kind = np.repeat(np.arange(N_RANKS), N_COLLECTIVES), np.tile(kind, N_RANKS)
    unknown = np.full(rank.size, ABSENT)
    return CommRows(
        rank=rank,
        report=rank,
        step=np.tile(np.arange(N_COLLECTIVES) // 20, N_RANKS),
        in_step=np.ones(rank.size, np.bool_),
        start_ns=(start + error).ravel(),
        end_ns=(end + error).ravel(),
        kind=kind,
        kinds=KINDS,
        collective=kind,
        communicator=2 * kind + np.tile(stream, N_RANKS),
        communicators=tuple(f"{kind.collective}/{order}" for kind in KINDS for order in range(2)),
        seq_number=unknown,
        message_bytes=unknown,
        has_ids=False,
    )


def test_speed_of_matching_clocks_and_waiting(capsys):
    rows = generated_rows()
    numbers = np.random.default_rng(SEED).permutation(rows.start_ns)
    aligning = np.array([name in ALIGNING for name in COLLECTIVES])
    sort = min(_timed(lambda: np.sort(numbers))[0] for _ in range(3))

    def across(size=N_RANKS):
        group, required = rows.groups(size)
        matched = match(group, rows.rank, required)
        telling = [block[aligning[rows.collective[block[:, 0]]]] for block in matched]
        offsets = clock_offsets(telling, rows.end_ns, rows.report, size)
        errors = np.array([one.error_ns for one in offsets], np.int64)[rows.report]
        offset = np.array([one.offset_ns for one in offsets], np.int64)[rows.report]
        found = waiting(matched, rows.start_ns - offset, rows.end_ns - offset, errors)
        return offsets, found

    seconds, (offsets, found) = min((_timed(across) for _ in range(3)), key=lambda pair: pair[0])
    run = CrossRank((), tuple(offsets), rows, found, ())
    sizes = np.full(len(rows.communicators), N_RANKS)
    chosen = np.unique(rows.step)
    table_seconds, table = min(
        (_timed(lambda: collectives_table(run, range(N_RANKS), chosen, sizes)) for _ in range(2)),
        key=lambda pair: pair[0],
    )

    # Ends agree within 3 us, so clocks are known as well: up to what all have in common.
    assert found.is_matched.all()
    apart = np.array([one.offset_ns for one in offsets]) - clock_errors(N_RANKS, SEED)
    assert np.ptp(apart) < 3000
    assert table.num_rows == N_RANKS * N_COLLECTIVES
    with capsys.disabled():
        print(f"\n{N_RANKS} ranks x {N_COLLECTIVES} collectives: np.sort {sort:.3f} s")
        print(f"groups, match, clocks, waiting: {seconds:.2f} s = {seconds / sort:.1f} sorts")
        print(f"table of collectives: {table_seconds:.2f} s = {table_seconds / sort:.1f} sorts")


def _timed(action):
    begun = time.perf_counter()
    result = action()
    return time.perf_counter() - begun, result
