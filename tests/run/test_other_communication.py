"""Communication that is not an NCCL kernel: copies that NCCL's calls launch, kernels of other libraries, generic names."""

import pyarrow.compute as pc
import pytest

from nsyspipe.run.doctor import examine
from nsyspipe.run.operations import run_operations
from tests.build.tools import codes, problem_of, run_of
from tests.build.trace import TraceBuilder, steady_rank
from tests.golden.words import figures as figures_of

PAYLOADS = "3.24.0 2025.5.2"
DTOD, PEER = 8, 10
STEP = 100_000


def gathering_rank(
    rank,
    *,
    kind=PEER,
    domain=1,
    text="ncclAllGather",
    world_size=2,
    n_steps=4,
    n_copies=2,
    device=0,
):
    """Return a rank that gathers by copies once a step: two of 10 us with 5 us between them, of which compute hides 4 us.

    Launched besides: a copy of a gradient (DtoD) outside of the call.
    """
    builder = TraceBuilder(pid=1000 + rank)
    builder.env(RANK=rank, WORLD_SIZE=world_size).session(1_000_000_000).gpu(rank)
    builder.domain("NCCL", 1)
    for step in range(n_steps):
        at = STEP * step
        builder.range(at, at + 90_000, f"step {step}")
        builder.kernel(at + 1_000, at + 24_000, launch=at + 100)
        builder.range(at + 200, at + 400, text, domain=domain)
        for copy in range(n_copies):
            start = at + 20_000 + 15_000 * copy
            builder.copy(
                start, start + 10_000, kind, 1000, launch=at + 210 + 50 * copy, device=device
            )
        builder.copy(at + 60_000, at + 61_000, DTOD, 64, launch=at + 500)
        builder.nccl(at + 70_000, at + 75_000, launch=at + 600)
    return builder


def step_of(run, name, step=1):
    table = run.steps()
    return set(table[name].filter(pc.equal(table["step"], step)).to_pylist())


@pytest.mark.parametrize("kind", [DTOD, PEER])
def test_copies_that_nccl_launches_are_communication(tmp_path, kind):
    run = run_of(tmp_path, gathering_rank(0, kind=kind), gathering_rank(1, kind=kind))
    # From 20 000 to 45 000, and the all-reduce; compute hides what ends at 24 000.
    assert step_of(run, "comm_ns") == {25_000 + 5_000}
    assert step_of(run, "exposed_comm_ns") == {21_000 + 5_000}
    assert step_of(run, "n_collectives") == {2}
    assert step_of(run, "idle_ns") == {STEP - 23_000 - 26_000 - 1_000}


def test_they_leave_the_copies(tmp_path):
    run = run_of(tmp_path, gathering_rank(0, kind=DTOD), gathering_rank(1, kind=DTOD))
    assert (step_of(run, "n_dtod"), step_of(run, "dtod_bytes"), step_of(run, "dtod_ns")) == (
        {1},
        {64},
        {1_000},
    )
    assert run.ranks["n_dtod"].to_pylist() == [4, 4]
    assert run.ranks["n_comm"].to_pylist() == [8, 8]


def test_they_are_matched_across_ranks(tmp_path):
    run = run_of(tmp_path, gathering_rank(0), gathering_rank(1))
    rows = run.collectives()
    gathers = rows.filter(pc.equal(rows["collective"], "all_gather"))
    assert gathers["n_ranks"].to_pylist() == [2] * 8
    assert set(pc.subtract(gathers["end_ns"], gathers["start_ns"]).to_pylist()) == {25_000}


def test_they_are_a_row_among_kernels_and_traffic(tmp_path):
    run = run_of(tmp_path, gathering_rank(0), gathering_rank(1))
    kernels = {
        row["name"]: row["n_kernels"] for row in run.kernels().to_pylist() if row["rank"] == 0
    }
    assert kernels["ncclAllGather [copies]"] == 4
    assert {row["collective"] for row in run.traffic().to_pylist()} == {"all_gather", "all_reduce"}


@pytest.mark.parametrize("steps", [None, (1, 1), (2, 3)])
def test_a_second_reading_finds_the_same_collectives(tmp_path, steps):
    run = run_of(tmp_path, gathering_rank(0), gathering_rank(1))
    for _, events, _ in run_operations(run._tables, run.reading, steps=steps):
        gathers = [row for row in events.to_pylist() if row["name"] == "ncclAllGather [copies]"]
        assert {(row["dur_ns"], row["bytes"], row["category"]) for row in gathers} == {
            (25_000, 2_000, "comm")
        }, events
        assert {row["stream_id"] for row in gathers} == {7}, events
        assert "memcpy PtoP" not in events["name"].to_pylist(), events


def test_a_second_reading_has_collectives_that_began_before_the_step(tmp_path):
    # The second copy runs in the next step's window, the first one does not.
    ranks = []
    for rank in range(2):
        builder = TraceBuilder(pid=1000 + rank).env(RANK=rank, WORLD_SIZE=2).session(1_000_000_000)
        for step in range(4):
            at = STEP * step
            builder.range(at, at + 90_000, f"step {step}").kernel(
                at + 1_000, at + 2_000, launch=at + 100
            )
            builder.range(at + 200, at + 400, "ncclAllGather", domain=1)
            builder.copy(at + 80_000, at + 81_000, PEER, launch=at + 210)
            builder.copy(at + 110_000, at + 111_000, PEER, launch=at + 220)
            builder.nccl(at + 70_000, at + 75_000, launch=at + 600)
        ranks.append(builder)
    run = run_of(tmp_path, *ranks)
    for _, events, _ in run_operations(run._tables, run.reading, steps=(2, 2)):
        gathers = [row for row in events.to_pylist() if row["collective"] == "all_gather"]
        assert [(row["step"], row["dur_ns"]) for row in gathers] == [(1, 31_000), (2, 31_000)], (
            events
        )


def test_where_the_size_of_communicators_is_not_known_that_is_said(tmp_path):
    run = run_of(tmp_path, gathering_rank(0, kind=DTOD), gathering_rank(1, kind=DTOD))
    assert "copies-of-unknown-communicators" in codes(run)
    assert "copies-of-unknown-communicators" not in codes(
        run_of(tmp_path, gathering_rank(0), gathering_rank(1))
    )


def test_ordinary_copies_of_gradients_remain_memory(tmp_path):
    run = run_of(tmp_path, steady_rank(0), steady_rank(1))
    assert step_of(run, "n_dtod") == {1}
    assert not run._gathered.digests[0].called.launches.num_rows


def test_a_job_of_one_rank_only_copies(tmp_path):
    run = run_of(tmp_path, gathering_rank(0, kind=DTOD, world_size=1))
    assert step_of(run, "n_dtod") == {3}
    assert step_of(run, "comm_ns") == {5_000}


def test_a_range_of_another_name_launches_copies(tmp_path):
    ranks = [gathering_rank(rank, text="gather the batch", domain=0) for rank in range(2)]
    run = run_of(tmp_path, *ranks)
    assert step_of(run, "comm_ns") == {5_000}
    assert step_of(run, "exposed_memory_ns") == {6_000 + 10_000 + 1_000}


def test_copies_of_symmetric_memory_are_communication(tmp_path):
    text = "symm_mem::_low_contention_all_gather, op_id = 7"
    run = run_of(
        tmp_path, *(gathering_rank(rank, kind=DTOD, text=text, domain=0) for rank in range(2))
    )
    assert step_of(run, "comm_ns") == {30_000}
    assert "low_contention_all_gather [copies]" in run.kernels()["name"].to_pylist()


def test_where_no_kernel_communicates_copies_do(tmp_path):
    ranks = [gathering_rank(rank) for rank in range(2)]
    for builder in ranks:
        for row in builder.rows["CUPTI_ACTIVITY_KIND_KERNEL"]:
            row["shortName"] = row["demangledName"] = builder.string("gemm")
    run = run_of(tmp_path, *ranks)
    assert "no-comm-kernels" not in codes(run)
    assert step_of(run, "n_collectives") == {1}


def test_doctor_counts_collectives_of_copies_apart_from_kernels(tmp_path, worded):
    gathering_rank(0).write(tmp_path / "a_0.sqlite")
    gathering_rank(1).write(tmp_path / "a_1.sqlite")
    found = examine([tmp_path / "a_0.sqlite", tmp_path / "a_1.sqlite"])
    (capability,) = [one for one in found.capabilities if one.name == "compute_and_comm"]
    assert figures_of(capability.found) == {"16", "8"}
    worded(capability.found)


def library_rank(rank, name, *, with_nccl=True):
    builder = TraceBuilder(pid=1000 + rank).env(RANK=rank, WORLD_SIZE=2).session(1_000_000_000)
    for step in range(4):
        at = STEP * step
        builder.range(at, at + 90_000, f"step {step}").kernel(
            at + 1_000, at + 20_000, launch=at + 100
        )
        builder.kernel(at + 20_000, at + 50_000, name, launch=at + 200, stream=9)
        if with_nccl:
            builder.nccl(at + 60_000, at + 65_000, launch=at + 300)
    return builder


@pytest.mark.parametrize(
    ("name", "collective"),
    [("deep_ep::internode::dispatch", "all_to_all"), ("two_shot_all_reduce_kernel", "all_reduce")],
)
def test_kernels_of_another_library_are_communication_beside_nccls(tmp_path, name, collective):
    run = run_of(tmp_path, library_rank(0, name), library_rank(1, name))
    assert step_of(run, "comm_ns") == {30_000 + 5_000}
    assert step_of(run, "compute_ns") == {19_000}
    assert collective in run.collectives()["collective"].to_pylist()
    assert "uncounted-communication" not in codes(run)


@pytest.mark.parametrize("with_nccl", [True, False])
def test_what_only_looks_like_communication_is_named_also_beside_nccl(tmp_path, with_nccl):
    ranks = [library_rank(rank, "mine::fast_all_reduce", with_nccl=with_nccl) for rank in range(2)]
    problem = problem_of(run_of(tmp_path, *ranks[:1]), "uncounted-communication")
    assert problem["severity"] == "warning"
    assert "mine::fast_all_reduce" in problem["message"]
    assert "--comm-kernel 'mine::fast_all_reduce'" in problem["fix"]


def test_the_option_makes_it_count(tmp_path):
    ranks = [library_rank(rank, "mine::fast_all_reduce") for rank in range(2)]
    run = run_of(tmp_path, *ranks, comm_kernel="mine::fast_all_reduce")
    assert "uncounted-communication" not in codes(run)
    assert step_of(run, "comm_ns") == {35_000}


def test_a_generic_kernel_takes_the_collective_of_its_call(tmp_path):
    ranks = []
    for rank in range(2):
        builder = (
            TraceBuilder(pid=1000 + rank)
            .env(RANK=rank, WORLD_SIZE=2)
            .session(1_000_000_000)
            .domain("NCCL", 1)
        )
        for step in range(4):
            at = STEP * step
            builder.range(at, at + 90_000, f"step {step}").kernel(
                at + 1_000, at + 20_000, launch=at + 100
            )
            builder.range(at + 200, at + 400, "ncclReduceScatter", domain=1)
            builder.nccl(
                at + 20_000 + 1000 * rank,
                at + 50_000,
                launch=at + 210,
                name="ncclDevKernel_Generic_4",
            )
        ranks.append(builder)
    run = run_of(tmp_path, *ranks)
    assert set(run.collectives()["collective"].to_pylist()) == {"reduce_scatter"}
    assert "clock-error-unknown" not in codes(run)
    for _, events, _ in run_operations(run._tables, run.reading):
        assert {row["collective"] for row in events.to_pylist() if row["category"] == "comm"} == {
            "reduce_scatter"
        }, events


def serial_rank(rank, *, stream=7, thread="main"):
    """Return a rank that alternates compute and an all-to-all on stream 7, or another."""
    builder = TraceBuilder(pid=1000 + rank).env(RANK=rank, WORLD_SIZE=2).session(1_000_000_000)
    for step in range(4):
        at = STEP * step
        builder.range(at, at + 90_000, f"step {step}")
        for number in range(3):
            begin = at + 1_000 + 20_000 * number
            builder.kernel(begin, begin + 10_000, launch=at + 100 + 10 * number)
            builder.nccl(
                begin + 10_000, begin + 20_000, launch=at + 105 + 10 * number, stream=stream
            )
    return builder


def test_communication_on_the_compute_stream_is_measured(tmp_path):
    run = run_of(tmp_path, serial_rank(0), serial_rank(1))
    assert step_of(run, "comm_on_compute_stream_ns") == {30_000}
    assert run.ranks["compute_stream_id"].to_pylist() == [7, 7]


def test_communication_on_a_stream_of_its_own_is_not(tmp_path):
    run = run_of(tmp_path, serial_rank(0, stream=19), serial_rank(1, stream=19))
    assert step_of(run, "comm_on_compute_stream_ns") == {0}
    assert run.ranks["compute_stream_id"].to_pylist() == [7, 7]


def test_kernels_of_one_graph_launch_may_overlap_and_do_not_count(tmp_path):
    ranks = [serial_rank(0), serial_rank(1)]
    for builder in ranks:
        # All kernels of a step come from its first call, as the nodes of a graph do.
        kernels = builder.rows["CUPTI_ACTIVITY_KIND_KERNEL"]
        for at, row in enumerate(kernels):
            row["correlationId"] = kernels[at - at % 6]["correlationId"]
    run = run_of(tmp_path, *ranks)
    assert step_of(run, "comm_on_compute_stream_ns") == {0}


def test_parts_of_exposed_time_sum_to_it(tmp_path):
    ranks = [serial_rank(0), serial_rank(1)]
    for builder in ranks:
        for step in range(4):  # beside the first all-reduce of each step, for 6 us
            at = STEP * step
            builder.nccl(
                at + 13_000,
                at + 19_000,
                launch=at + 106,
                stream=23,
                name="ncclDevKernel_AllGather_RING_LL",
            )
    run = run_of(tmp_path, *ranks)
    rows = [row for row in run.traffic().to_pylist() if row["rank"] == 0]
    assert {row["collective"]: row["exposed_ns_per_step"] for row in rows} == {
        "all_gather": 6_000,
        "all_reduce": 30_000,
    }
    parts = {row["collective"]: row["exposed_part_ns_per_step"] for row in rows}
    assert parts == {"all_gather": 3_000, "all_reduce": 27_000}
    assert step_of(run, "exposed_comm_ns") == {30_000}
