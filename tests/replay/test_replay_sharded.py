"""Sharded runs: two collectives on two streams, gathered parameters and scattered gradients."""

from __future__ import annotations

import pytest

import nsyspipe
from nsyspipe.replay.answer import whatif
from tests.build.ddp_run import MS, US
from tests.build.make_replay import only, refusal
from tests.build.nccl_layouts import COMM_INIT, NCCL_2_21
from tests.build.trace import TraceBuilder


@pytest.fixture
def sharded(tmp_path):
    for rank in range(2):
        sharded_rank(rank).write(tmp_path / f"sharded_{rank}.sqlite")
    return nsyspipe.load(str(tmp_path / "sharded_*.sqlite"))


def test_perfect_overlap_is_its_work_and_no_limit_is_told(sharded):
    # 2 ms gather, 10 ms work, 3 ms scatter, 1 ms work.
    found = whatif(sharded, perfect_overlap=True)
    assert found.step_time_ns == 16 * MS
    assert found.limit_step_time_ns is None  # by how much communication slows the work is not known
    assert only(found).step_time_ns == pytest.approx(11 * MS, abs=US)


def test_a_faster_link_is_answered(sharded):
    # Twice the bandwidth: half of 5 ms less 2 x 30 us, and those.
    own = sharded.summary()["busbw_bytes_per_s"][0].as_py()
    found = only(whatif(sharded, bandwidth=2 * own))
    assert found.step_time_ns == pytest.approx(11 * MS + 60 * US + 2470 * US, abs=2 * US)


def test_a_slower_link_is_not(sharded):
    own = sharded.summary()["busbw_bytes_per_s"][0].as_py()
    assert "only faster links can be answered" in refusal(whatif(sharded, bandwidth=own / 2))


def test_there_are_no_buckets(sharded):
    assert "there are no buckets" in refusal(whatif(sharded, bucket_mb=25))


def sharded_rank(rank):
    """Return a rank that gathers (2 ms), works (10), scatters (3), works (1), in steps of 16 ms."""
    builder = TraceBuilder("3.25.0 2026.2.1 mfu", pid=1000 + rank).domain("NCCL", 1)
    builder.env(RANK=rank, WORLD_SIZE=2, LOCAL_RANK=rank).session(10**18).gpu()
    init = {"NCCL communicator ID": 5, "No. of ranks": 2, "Rank": rank, "CUDA device": 0}
    builder.nccl_payload(-1000, "ncclCommInitRankConfig", init, COMM_INIT)
    for step in range(5):
        host, at = step * 10 * MS, 1000 * MS + step * 16 * MS
        builder.range(host, host + 9 * MS, f"step {step}")
        for number, (call, begin, end) in enumerate((("AllGather", 0, 2), ("ReduceScatter", 12, 15))):
            launch = host + (1 + 2 * number) * 1000
            name = f"ncclDevKernel_{call}_RING_LL"
            builder.nccl(at + begin * MS, at + end * MS, launch=launch, stream=24 + number, name=name)
            fields = {"NCCL communicator ID": 5, "Message size [bytes]": 1 << 20}
            builder.nccl_payload(launch - 100, f"nccl{call}", fields, NCCL_2_21, end=launch + 100)
        builder.kernel(at + 2 * MS, at + 12 * MS, "work", launch=host + 2000)
        builder.kernel(at + 15 * MS, at + 16 * MS, "optimizer", launch=host + 4000)
    return builder
