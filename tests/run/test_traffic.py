"""What each communicator carries and costs, by the parallelism that it serves: worked out for a grid of ranks."""

from __future__ import annotations

import pytest

import nsyspipe
from nsyspipe.analysis.traffic import parallelism
from tests.build import nccl_layouts as nccl
from tests.build.nccl_layouts import BYTES, COMM, RANK, RANKS
from tests.build.tools import run_of
from tests.build.trace import TraceBuilder

MIB = 2**20
NEW = "3.25.0 2026.2.1 mfu"


def grid_rank(
    rank, tensor=2, n_ranks=4, *, n_steps=5, has_payloads=True, node=0, clock_ns=0, late_ns=0, is_apart=False
):
    """Return a rank of a grid of tensor x data ranks: groups of `tensor` neighbours, and of every `tensor`-th rank.

    In each step of 1000 it all-reduces 1 MiB in its tensor group twice in forward and twice in backward, each 20 long with
    nothing beside it, the last rank of the group 5 later than the first; and 4 MiB of gradients in its data group behind
    all of backward, 60 long, 40 of them beside a kernel, and shorter by how late the rank is for it.
    """
    builder = TraceBuilder(NEW, pid=1000 + rank)
    builder.env(RANK=rank, WORLD_SIZE=n_ranks, LOCAL_RANK=rank).session(10**18 + clock_ns).gpu().host(f"node{node}")
    groups = {"tensor": 16 + rank // tensor, "data": 64 + rank % tensor}
    if is_apart:  # gradients stay inside the node
        groups["data"] = 64 + node
    sizes = {"tensor": tensor, "data": n_ranks // tensor}
    places = {"tensor": rank % tensor, "data": rank // tensor}
    if has_payloads:
        builder.domain("NCCL", 1)
        for name, number in groups.items():
            fields = {COMM: number, RANKS: sizes[name], RANK: places[name]}
            builder.nccl_payload(-100 + number, "ncclCommInitRankConfig", fields, nccl.COMM_INIT)
    late = 5 * places["tensor"] // (tensor - 1)

    def reduce(group, launch, start, end, n_bytes):
        if has_payloads:
            fields = {COMM: groups[group], BYTES: n_bytes}
            builder.nccl_payload(launch - 2, "ncclAllReduce", fields, nccl.NCCL_2_21, end=launch - 1)
        builder.nccl(start, end, launch=launch, stream=19 if group == "tensor" else 23)

    for at in range(0, 1000 * n_steps, 1000):
        builder.range(at, at + 900, f"step {at // 1000}").range(at + 50, at + 100, "backward")
        for begin, launch in ((100, 10), (140, 20), (300, 60), (340, 70)):
            builder.kernel(at + begin, at + begin + 20, launch=at + launch)
            reduce("tensor", at + launch + 5, at + begin + 20 + late, at + begin + 40, MIB)
        builder.kernel(at + 400, at + 440, launch=at + 80)
        reduce("data", at + 90, at + 400 + late_ns, at + 460, 4 * MIB)
    return builder


def rows_of(run, rank):
    return [row for row in run.traffic().to_pylist() if row["rank"] == rank]


def test_tensor_and_data_groups_of_a_grid_are_kept_apart(tmp_path):
    run = run_of(tmp_path, *map(grid_rank, range(4)))
    named = [(row["communicator"], row["role"], row["ranks"], row["n_ranks"]) for row in rows_of(run, None)]
    assert named == [
        ("0x10", "tensor", "0,1", 2), ("0x11", "tensor", "2,3", 2), ("0x40", "data", "0,2", 2), ("0x41", "data", "1,3", 2)
    ]  # fmt: skip
    assert parallelism(run.traffic()) == ["data", "tensor"]
    for rank in range(4):
        tensor, data = rows_of(run, rank)
        own = 20 - 5 * (rank % 2)
        times = ("calls", "bytes", "comm_ns", "exposed_ns", "hidden_ns", "wait_ns", "bubble_ns")
        assert [tensor[f"{name}_per_step"] for name in times] == [
            4, 4 * MIB, 4 * own, 4 * own, 0, 0 if rank % 2 else 20, None
        ]  # fmt: skip
        assert [data[f"{name}_per_step"] for name in times] == [1, 4 * MIB, 60, 20, 40, 0, None]
        # Of each the last arrives 15 before its end.
        assert tensor["algbw_bytes_per_s"] == pytest.approx(MIB / 15e-9)
        assert tensor["busbw_bytes_per_s"] == pytest.approx(MIB / 15e-9)
        assert data["algbw_bytes_per_s"] == pytest.approx(4 * MIB / 60e-9)
    of_all = rows_of(run, None)[0]
    assert (of_all["comm_ns_per_step"], of_all["wait_ns_per_step"]) == (70, 10)  # means of 80 and 60, of 20 and 0


def test_without_payloads_a_communicator_is_a_stream_and_all_ranks(tmp_path):
    run = run_of(tmp_path, *(grid_rank(rank, has_payloads=False) for rank in range(4)))
    named = [(row["communicator"], row["role"], row["ranks"], row["bytes_per_step"]) for row in rows_of(run, None)]
    assert named == [("all_reduce/0", "tensor", "0,1,2,3", None), ("all_reduce/1", "data", "0,1,2,3", None)]


def test_rows_of_a_rank_without_overlap_sum_to_its_communication(tmp_path):
    run = run_of(tmp_path, *map(grid_rank, range(4)))
    steps = run.breakdown().to_pylist()
    for rank in range(4):
        own = [row for row in steps if row["rank"] == rank]
        for name in ("comm_ns", "exposed_comm_ns"):
            traffic = f"{name.replace('_comm', '')}_per_step"
            assert sum(row[traffic] for row in rows_of(run, rank)) == sum(row[name] for row in own) / len(own)


@pytest.mark.slow
def test_64_ranks_are_8_tensor_groups_and_8_data_groups(tmp_path):
    run = run_of(tmp_path, *(grid_rank(rank, 8, 64, n_steps=3) for rank in range(64)))
    there = [(row["role"], row["ranks"]) for row in rows_of(run, None)]
    assert there[:8] == [("tensor", ",".join(map(str, range(8 * group, 8 * group + 8)))) for group in range(8)]
    assert there[8:] == [("data", ",".join(map(str, range(group, 64, 8)))) for group in range(8)]
    assert {row["n_ranks"] for row in rows_of(run, None)} == {8}


@pytest.mark.parametrize(("capture", "expected"), [
    ("ddp-2gpu-bucket100", {"all_reduce": "data"}),
    ("fsdp-4gpu", {"all_gather": "sharded", "reduce_scatter": "sharded"}),
])  # fmt: skip
def test_real_runs_have_the_roles_of_their_programs(real, capture, expected):
    run = nsyspipe.load(real / f"{capture}_*.sqlite")
    assert {row["collective"]: row["role"] for row in rows_of(run, None)} == expected
