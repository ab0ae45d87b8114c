"""Generated runs are what the benchmarks take them for: their collectives match and end together."""

from collections import Counter, defaultdict
from itertools import pairwise

import pytest

from tests.build.synthetic import clock_errors, generate
from tests.build.tools import query

N_RANKS, N_KERNELS, N_STEPS = 2, 2000, 4
COLLECTIVES = """
    SELECT n.text, s.value, k.streamId, k.start + e.utcEpochNs, k.end + e.utcEpochNs
    FROM CUPTI_ACTIVITY_KIND_KERNEL k
    JOIN CUPTI_ACTIVITY_KIND_RUNTIME r USING (correlationId)
    JOIN NVTX_EVENTS n ON n.text LIKE 'step %' AND r.start BETWEEN n.start AND n.end
    JOIN StringIds s ON s.id = k.demangledName AND s.value LIKE 'nccl%'
    JOIN TARGET_INFO_SESSION_START_TIME e
    ORDER BY k.start
"""


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    folder = tmp_path_factory.mktemp("synthetic")
    return [
        generate(folder / f"synthetic_{rank}.sqlite", N_KERNELS, N_STEPS, rank, N_RANKS)
        for rank in range(N_RANKS)
    ]


def collectives(path, error):
    """Return start and end by (step, name, stream) in order, on one clock for all ranks."""
    found = defaultdict(list)
    for step, name, stream, start, end in query(path, COLLECTIVES):
        found[step, name, stream].append((start - error, end - error))
    return found


def test_every_rank_has_the_same_collectives_in_each_step(paths):
    first, second = (Counter(row[:3] for row in sorted(query(path, COLLECTIVES))) for path in paths)
    assert first == second
    assert {step for step, _, _ in first} == {f"step {i}" for i in range(N_STEPS)}
    assert 0.06 < first.total() / N_KERNELS < 0.10


def test_collectives_end_together_after_the_last_rank_has_arrived(paths):
    errors = clock_errors(N_RANKS).tolist()
    assert abs(errors[0] - errors[1]) > 100_000  # clocks disagree by more than the ends
    first, second = (collectives(path, error) for path, error in zip(paths, errors, strict=True))
    pairs = [pair for key in first for pair in zip(first[key], second[key], strict=True)]
    assert max(abs(one[1] - other[1]) for one, other in pairs) < 20_000
    assert all(max(one[0], other[0]) < min(one[1], other[1]) for one, other in pairs)
    assert len({one[0] - other[0] for one, other in pairs}) > len(pairs) // 2


def test_synthetic_kernels_start_after_their_launch_in_order(paths):
    times = query(
        paths[1],
        "SELECT r.start, r.end, k.start, k.end FROM CUPTI_ACTIVITY_KIND_KERNEL k "
        "JOIN CUPTI_ACTIVITY_KIND_RUNTIME r USING (correlationId) ORDER BY k.rowid",
    )
    assert len(times) == N_KERNELS
    assert all(before[1] <= after[0] for before, after in pairwise(times))
    assert all(called < returned < start < end for called, returned, start, end in times)
    # A stream runs one kernel at a time.
    times = query(
        paths[0],
        "SELECT streamId, start, end FROM CUPTI_ACTIVITY_KIND_KERNEL ORDER BY streamId, start",
    )
    assert all(before[2] <= after[1] for before, after in pairwise(times) if before[0] == after[0])
