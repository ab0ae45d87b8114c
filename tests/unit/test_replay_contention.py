"""The slowdown beside communication, measured on kernels that are known to be slower by a fifth."""

from __future__ import annotations

import pytest

import nsyspipe
from nsyspipe.replay.ask import whatif
from nsyspipe.replay.contention import Contention
from nsyspipe.replay.ranges import slowdowns
from tests.build.trace import TraceBuilder

US, MS = 1_000, 1_000_000
KERNELS = 200


def rank_with(rank, factor, *, other_shape=1.0, n_steps=5):
    """Return a rank with 200 equal kernels of 10 us before and 200 beside an all-reduce, the latter `factor` as long.

    With `other_shape` every second group of ten free kernels takes that much longer: one name, two shapes.
    """
    builder = TraceBuilder(pid=1000 + rank)
    builder.env(RANK=rank, WORLD_SIZE=2, LOCAL_RANK=rank).session(10**18).gpu()
    at = 1000 * MS
    for step in range(n_steps):
        host = step * 3 * MS
        builder.range(host, host + 2 * MS, f"step {step}")
        launch = host
        for kernel in range(KERNELS):
            length = int(10 * US * (other_shape if kernel // 10 % 2 else 1.0))
            launch += US
            builder.kernel(at, at + length, "layer", launch=launch)
            at += length
        begin = at
        launch += US
        comm_launch = launch
        for _ in range(KERNELS):
            launch += US
            builder.kernel(at, at + int(10 * US * factor), "layer", launch=launch)
            at += int(10 * US * factor)
        builder.nccl(begin, at + 100 * US, launch=comm_launch)
        builder.kernel(at + 100 * US, at + 200 * US, "optimizer", launch=launch + US)
        at += 200 * US
    return builder


@pytest.fixture
def measured(tmp_path):
    def measure(**options):
        for rank in range(2):
            rank_with(rank, **options).write(tmp_path / f"run_{rank}.sqlite")
        found = whatif(nsyspipe.load(str(tmp_path / "run_*.sqlite")), no_wait=True)
        return found, next(one for one in found.scenarios[0].assumptions if "work beside" in one)

    return measure


def test_a_fifth_is_measured_and_taken_out_of_the_limit(measured):
    found, words = measured(factor=1.2)
    assert words == "work beside communication takes 20 % longer (14 to 26 %, measured here)"
    # 400 kernels of 10 us and the optimizer of 100: what there is without communication.
    assert found.limit_step_time_ns == pytest.approx(400 * 10 * US + 100 * US, rel=0.002)


def test_no_slowdown_is_measured_as_none(measured):
    assert measured(factor=1.0)[1].startswith("work beside communication takes 0 % longer")


def test_faster_beside_communication_is_no_slowdown(measured):
    assert measured(factor=0.9)[1].startswith("work beside communication takes 0 % longer")


def test_a_name_that_stands_for_two_shapes_is_not_compared(measured):
    words = measured(factor=1.2, other_shape=3.0)[1]
    assert words.endswith("assumed)")


@pytest.mark.parametrize("captured", [20e9, 100e9, 330e9])
def test_beyond_a_wide_link_a_faster_one_slows_no_more(captured):
    measured = Contention(slowdown=0.4, covered_share=0.5)
    found = [
        slowdowns(measured, 20 * US, captured, target).pairs for target in (300e9, 600e9, 2e12)
    ]
    assert found[0] == found[1] == found[2]
