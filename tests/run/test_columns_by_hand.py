"""Every column of a built run in which one rank waits for the other, worked out by hand."""

import json

import pytest

from nsyspipe.report.export import document
from nsyspipe.report.formats import dumps
from tests.build.nccl_layouts import NCCL_2_21
from tests.build.tools import run_of
from tests.build.trace import TraceBuilder

NEW = "3.25.0 2026.2.1 mfu"
COMM, BYTES = "NCCL communicator ID", "Message size [bytes]"
SIZE = 2**20
COMM_START = (270, 310)  # of each rank, in a step


def rank_of(rank):
    """Return a rank of four steps of 1000 ns: compute [100, 300), an all-reduce, a copy [340, 350).

    The all-reduce ends at 330. Rank 0 enters it at 270 and waits for rank 1 up to 310.
    """
    builder = TraceBuilder(NEW, pid=1000 + rank).domain("NCCL", 1)
    builder.env(RANK=rank, WORLD_SIZE=2, LOCAL_RANK=rank).session(10**18).gpu().host("node0")
    builder.meta(EXPORT_SCHEMA_VERSION="3.25.0", EXPORT_PRODUCT_VERSION="mfu")
    for step in range(4):
        at = 1000 * step
        builder.range(at, at + 900, f"step {step}")
        builder.range(at + 5, at + 50, "forward").range(at + 60, at + 160, "backward")
        builder.kernel(at + 100, at + 200, launch=at + 10)
        builder.kernel(at + 200, at + 300, launch=at + 70, thread="autograd")
        sizes = {COMM: 7, BYTES: SIZE}
        builder.nccl_payload(
            at + 79, "ncclAllReduce", sizes, NCCL_2_21, end=at + 85, thread="autograd"
        )
        builder.nccl(at + COMM_START[rank], at + 330, launch=at + 80, thread="autograd")
        builder.copy(at + 340, at + 350, n_bytes=64, launch=at + 90, thread="autograd")
    return builder


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return run_of(tmp_path_factory.mktemp("waits"), rank_of(0), rank_of(1))


def row_of(table, **key):
    (row,) = [
        row for row in table.to_pylist() if all(row[name] == value for name, value in key.items())
    ]
    return {name: value for name, value in row.items() if name not in key}


# Of both ranks: what their communication does not change. Steps are launched every 1000 ns, and the
# next step's forward starts 90 ns behind its launch, the least latency. From 350 to 1100 nothing
# runs. Of those 750 ns the operation that ends them was not launched up to 1010, and to 1100 with
# the latency. From 900 to 1000 the thread is in no range and in no call.
OF_BOTH = {
    "start_ns": 1100,
    "end_ns": 2100,
    "wall_ns": 1000,
    "compute_ns": 200,
    "exposed_memory_ns": 10,
    "dtod_ns": 10,
    "dtod_bytes": 64,
    "n_dtod": 1,
    "exposed_dtod_ns": 10,
    "comm_on_compute_stream_ns": 0,
    "n_collectives": 1,
    "transfer_ns": 20,
    "message_bytes": SIZE,
    "idle_input_ns": 100,
    "idle_launch_ns": 650,
    "idle_blocked_ns": 0,
    "idle_unknown_ns": 0,
    "idle_between_steps_ns": 100,
    "idle_pause_ns": 0,
    "idle_blocked_by_copies_ns": 0,
    "idle_made_by_input_ns": 100,
    "idle_made_by_calls_ns": 0,
    "idle_made_by_copies_ns": 0,
    # No call allocates or frees memory of a GPU.
    "n_allocs": 0,
    "n_frees": 0,
    "n_failed_allocs": 0,
    "alloc_bytes": 0,
    "freed_bytes": 0,
    "alloc_host_ns": 0,
    "exposed_alloc_ns": 0,
    "idle_blocked_by_allocs_ns": 0,
    "idle_made_by_allocs_ns": 0,
    "n_blocking_copies": 0,
    "n_pageable_copies": 0,
    "blocking_copy_bytes": 0,
    "exposed_blocking_copy_ns": 0,
    "host_launch_ns": 1000,
    "host_input_ns": 100,
    "host_lead_ns": 90,
    "idle_late_start_ns": 0,
    "grad_copy_ns": 0,
    "exposed_grad_copy_ns": 0,
    "grad_copy_span_ns": 0,
    "grad_copy_bytes": 0,
    "n_grad_copies": 0,
    "comm_delay_ns": None,
    "overhead_ns": 0,
    "is_complete": True,
    "in_summary": True,
    "compute_share": 0.2,
    "exposed_memory_share": 0.01,
    "transfer_share": 0.02,
}
OF_RANK = [
    {
        "comm_ns": 60,  # [270, 330)
        "exposed_comm_ns": 30,  # [300, 330)
        "overlap_compute_ns": 30,
        "overlap_backward_ns": 30,
        "wait_ns": 40,  # [270, 310)
        "exposed_wait_ns": 10,  # [300, 310)
        "idle_ns": 760,
        "idle_dependency_ns": 10,  # before the copy
        "exposed_late_comm_ns": 30,  # all that is exposed started within 20 us of its launch
        "comm_share": 0.06,
        "exposed_comm_share": 0.03,
        "overlap_ratio": 0.5,
        "backward_overlap_ratio": 0.5,
        "idle_share": 0.76,
        "wait_share": 0.04,
    },
    {
        "comm_ns": 20,  # [310, 330)
        "exposed_comm_ns": 20,
        "overlap_compute_ns": 0,
        "overlap_backward_ns": 0,
        "wait_ns": 0,
        "exposed_wait_ns": 0,
        "idle_ns": 770,
        "idle_dependency_ns": 20,  # before the copy, and [300, 310) before the all-reduce
        "exposed_late_comm_ns": 20,
        "comm_share": 0.02,
        "exposed_comm_share": 0.02,
        "overlap_ratio": 0.0,
        "backward_overlap_ratio": 0.0,
        "idle_share": 0.77,
        "wait_share": 0.0,
    },
]
RATE = SIZE / 20 * 1e9  # bytes over transfer time


# Nobody says what a step works on, and nothing counts what the links carry.
NO_WORK = dict.fromkeys(
    ("tokens", "samples", "flops", "ideal_compute_ns", "slow_compute_ns", "mfu")
)
NO_RATES = {"flops_per_s": None, "mfu": None}
NOT_RECORDED = ("counted_bytes_per_s", "counted_link", "counted_ratio")
NOT_COUNTED = dict.fromkeys((*NOT_RECORDED, "nccl_algorithm", "nccl_protocol"))


@pytest.mark.parametrize("rank", [0, 1])
def test_every_column_of_a_step(run, rank):
    assert row_of(run.steps(), rank=rank, step=1) == OF_BOTH | OF_RANK[rank] | NO_WORK


@pytest.mark.parametrize("rank", [0, 1])
def test_every_column_of_a_ranks_summary(run, rank):
    steps = OF_BOTH | OF_RANK[rank]
    means = {
        f"idle_{cause}_ns_per_step": steps[f"idle_{cause}_ns"]
        for cause in ("input", "launch", "blocked", "dependency", "unknown")
    }
    shares = {name: value for name, value in steps.items() if name.endswith(("_share", "_ratio"))}
    assert row_of(run.rank_summary(), rank=rank) == {
        "step_time_ns": 1000.0,
        **NO_RATES,
        **shares,
        "dtod_ns_per_step": 10.0,
        "dtod_bytes_per_step": 64.0,
        "collectives_per_step": 1.0,
        **means,
        "message_bytes_per_step": float(SIZE),
        "algbw_bytes_per_s": pytest.approx(RATE, rel=1e-12),
        "busbw_bytes_per_s": pytest.approx(RATE, rel=1e-12),
    }


def test_every_column_of_the_summary(run):
    # Shares are pooled: sums over both ranks and both steps.
    assert row_of(run.summary()) == {
        **NO_RATES,
        "tokens_per_s": None,
        "samples_per_s": None,
        "n_steps": 4,
        "n_summary_steps": 2,
        "step_time_ns": 1000.0,
        "throughput_steps_per_s": 1e6,
        "comm_share": 0.04,  # 60 and 20 of 2000
        "exposed_comm_share": 0.025,  # 30 and 20
        "overlap_ratio": 0.375,  # 30 of 80
        "backward_overlap_ratio": 0.375,
        "idle_share": 0.765,  # 760 and 770
        "compute_share": 0.2,
        "exposed_memory_share": 0.01,
        "wait_share": 0.02,  # 40 of 2000
        "transfer_share": 0.02,
        "dtod_ns_per_step": 10.0,
        "dtod_bytes_per_step": 64.0,
        "collectives_per_step": 1.0,
        "idle_input_ns_per_step": 100.0,
        "idle_launch_ns_per_step": 650.0,
        "idle_blocked_ns_per_step": 0.0,
        "idle_dependency_ns_per_step": 15.0,  # 10 and 20
        "idle_unknown_ns_per_step": 0.0,
        "message_bytes_per_step": float(SIZE),
        "algbw_bytes_per_s": pytest.approx(RATE, rel=1e-12),
        "busbw_bytes_per_s": pytest.approx(RATE, rel=1e-12),
    }


@pytest.mark.parametrize("rank", [0, 1])
def test_every_column_of_a_collective(run, rank):
    found = row_of(run.collectives(), rank=rank, step=1)
    assert found.pop("comm_id").endswith("7")
    is_last = rank == 1
    assert found == {
        **NOT_COUNTED,
        "seq": 0,
        "collective": "all_reduce",
        "datatype": "f32",
        "algorithm": "RING_LL",
        "start_ns": 1000 + COMM_START[rank],
        "end_ns": 1330,
        "exposed_ns": OF_RANK[rank]["exposed_comm_ns"],
        "is_matched": True,
        "in_summary": True,
        "n_ranks": 2,
        "arrival_skew_ns": 40,
        "wait_ns": 0 if is_last else 40,
        "transfer_ns": 20,
        "late_by_ns": 40 if is_last else 0,
        "held_up_ns": 40 if is_last else 0,
        "is_significant": True,
        "is_late_significant": is_last,
        "message_bytes": SIZE,
        "bus_bytes": float(SIZE),  # 2 (n - 1) / n of two ranks is 1
        "algbw_bytes_per_s": pytest.approx(RATE, rel=1e-12),
        "busbw_bytes_per_s": pytest.approx(RATE, rel=1e-12),
    }


@pytest.mark.parametrize(("rank", "n", "caused_ns", "wait_ns"), [(0, 0, 0, 80), (1, 2, 80, 0)])
def test_every_column_of_a_straggler(run, rank, n, caused_ns, wait_ns):
    # In two steps.
    assert row_of(run.stragglers(), rank=rank) == {
        "n_arrived_last": n,
        "wait_caused_ns": caused_ns,
        "lateness_ns": caused_ns,
        "held_up_ns": caused_ns,
        "wait_ns": wait_ns,
    }


@pytest.mark.parametrize(
    ("rank", "comm_ns", "exposed_ns", "wait_ns"),
    [(0, 60.0, 30.0, 40.0), (1, 20.0, 20.0, 0.0), (None, 40.0, 25.0, 20.0)],
)
def test_every_column_of_the_traffic(run, rank, comm_ns, exposed_ns, wait_ns):
    found = row_of(run.traffic(), rank=rank)
    assert found.pop("communicator").endswith("7")
    assert found == {
        "collective": "all_reduce",
        "role": "data",
        "n_ranks": 2,
        "ranks": "0,1",
        "calls_per_step": 1.0,
        "bytes_per_step": float(SIZE),
        "comm_ns_per_step": comm_ns,
        "exposed_ns_per_step": exposed_ns,
        "exposed_part_ns_per_step": exposed_ns,
        "hidden_ns_per_step": comm_ns - exposed_ns,
        "wait_ns_per_step": wait_ns,
        "bubble_ns_per_step": None,
        "algbw_bytes_per_s": pytest.approx(RATE, rel=1e-12),
        "busbw_bytes_per_s": pytest.approx(RATE, rel=1e-12),
    }


def test_every_column_of_the_kernels_of_a_phase(run):
    found = row_of(run.kernels(), rank=0, phase="backward", name="gemm")
    # Four of 100 ns, 30 of each while the all-reduce runs; two start in a summary step.
    assert found == {
        "n_kernels": 4,
        "total_ns": 400,
        "mean_ns": 100,
        "min_ns": 100,
        "max_ns": 100,
        "overlapped_ns": 120,
        "not_overlapped_ns": 280,
        "n_slowed": 0,
        "slowed_ns": 0,
        "free_ns": 0,
        "slowdown_ratio": None,
        "n_in_summary": 2,
        "in_summary_ns": 200,
        "overlapped_in_summary_ns": 60,
    }


def test_every_column_of_the_summary_of_a_phase(run):
    (found,) = [
        row for row in json.loads(dumps(document(run)))["phases"] if row["phase"] == "backward"
    ]
    # On the device rank 0 has [200, 330) and the copy, and rank 1 10 ns less.
    assert found == {
        "phase": "backward",
        "host_ns_per_step": 100.0,
        "compute_ns_per_step": 100.0,
        "comm_ns_per_step": 40.0,
        "exposed_comm_ns_per_step": 25.0,
        "device_ns_per_step": 135.0,
        "idle_ns_per_step": 15.0,
    }


@pytest.mark.parametrize(("launched", "late_start_ns"), [(250, 160), (105, 0)])
def test_a_start_is_late_in_a_gap_that_ends_with_a_late_launch(tmp_path, launched, late_start_ns):
    # The gap is [200, 500), and the least latency is 90. What was launched at 250 could start at
    # 340, 160 before it did. What was launched at 105 could start at 195, before the gap.
    builder = TraceBuilder(pid=1).env(RANK=0, WORLD_SIZE=1)
    for at in (0, 1000, 2000, 3000):
        builder.range(at, at + 900, f"step {at}").kernel(at + 100, at + 200, launch=at + 10)
        builder.kernel(at + 500, at + 600, launch=at + launched)
    found = row_of(run_of(tmp_path, builder).steps(), rank=0, step=1000)
    assert found["idle_late_start_ns"] == late_start_ns
