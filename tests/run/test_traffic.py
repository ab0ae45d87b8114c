"""What each communicator carries and costs, for a grid of ranks; and such a run on four nodes whose clocks are seconds apart."""

import itertools

import pytest

import nsyspipe
from nsyspipe.analysis.links import links, slowest
from nsyspipe.analysis.traffic import parallelism
from nsyspipe.reader.fabric import read_nccl_logs
from nsyspipe.report.difference import verdict_text
from tests.build import nccl_layouts as nccl
from tests.build.nccl_layouts import BYTES, COMM, RANK, RANKS
from tests.build.tools import codes, problem_of, run_of
from tests.build.trace import RUNTIME, TraceBuilder
from tests.golden.words import figures as figures_of

MIB = 2**20
NEW = "3.25.0 2026.2.1 mfu"


def grid_rank(
    rank,
    tensor=2,
    n_ranks=4,
    *,
    n_steps=5,
    has_payloads=True,
    node=0,
    clock_ns=0,
    late_ns=0,
    is_apart=False,
):
    """Return a rank of a grid of tensor x data ranks: groups of `tensor` neighbours, and of every `tensor`-th rank.

    In each step of 1000 it all-reduces 1 MiB in its tensor group twice in forward and twice in
    backward, each 20 long with nothing beside it, the last rank of the group 5 later than the
    first; and 4 MiB of gradients in its data group behind all of backward, 60 long, 40 of them
    beside a kernel, and shorter by how late the rank is for it.
    """
    builder = TraceBuilder(NEW, pid=1000 + rank)
    builder.env(RANK=rank, WORLD_SIZE=n_ranks, LOCAL_RANK=rank).session(
        10**18 + clock_ns
    ).gpu().host(f"node{node}")
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
            builder.nccl_payload(
                launch - 2, "ncclAllReduce", fields, nccl.NCCL_2_21, end=launch - 1
            )
        builder.nccl(start, end, launch=launch, stream=19 if group == "tensor" else 23)

    for at in range(0, 1000 * n_steps, 1000):
        builder.range(at, at + 900, f"step {at // 1000}").range(at + 50, at + 100, "backward")
        for begin, launch in ((100, 10), (140, 20), (300, 60), (340, 70)):
            builder.kernel(at + begin, at + begin + 20, launch=at + launch)
            reduce("tensor", at + launch + 5, at + begin + 20 + late, at + begin + 40, MIB)
        builder.kernel(at + 400, at + 440, launch=at + 80)
        reduce("data", at + 90, at + 400 + late_ns, at + 460, 4 * MIB)
        # The host waits for the device until it begins the next step.
        called = {"globalTid": builder.global_tid(), "correlationId": builder.launch(None)}
        name = builder.string("cudaStreamSynchronize_v3020")
        builder.add(RUNTIME, start=at + 95, end=at + 895, nameId=name, **called)
    return builder


def rows_of(run, rank):
    return [row for row in run.traffic().to_pylist() if row["rank"] == rank]


def test_tensor_and_data_groups_of_a_grid_are_kept_apart(tmp_path):
    run = run_of(tmp_path, *map(grid_rank, range(4)))
    assert [
        (row["communicator"], row["role"], row["ranks"], row["n_ranks"])
        for row in rows_of(run, None)
    ] == [
        ("0x10", "tensor", "0,1", 2),
        ("0x11", "tensor", "2,3", 2),
        ("0x40", "data", "0,2", 2),
        ("0x41", "data", "1,3", 2),
    ]
    assert parallelism(run.traffic()) == ["data", "tensor"]
    for rank in range(4):
        tensor, data = rows_of(run, rank)
        own = 20 - 5 * (rank % 2)
        times = ("calls", "bytes", "comm_ns", "exposed_ns", "hidden_ns", "wait_ns", "bubble_ns")
        assert [tensor[f"{name}_per_step"] for name in times] == [
            4,
            4 * MIB,
            4 * own,
            4 * own,
            0,
            0 if rank % 2 else 20,
            None,
        ], rank
        assert [data[f"{name}_per_step"] for name in times] == [1, 4 * MIB, 60, 20, 40, 0, None], (
            rank
        )
        assert tensor["algbw_bytes_per_s"] == pytest.approx(MIB / 15e-9), (
            rank
        )  # of each the last arrives 15 before its end
        assert tensor["busbw_bytes_per_s"] == pytest.approx(MIB / 15e-9), rank
        assert data["algbw_bytes_per_s"] == pytest.approx(4 * MIB / 60e-9), rank
    of_all = rows_of(run, None)[0]
    assert (of_all["comm_ns_per_step"], of_all["wait_ns_per_step"]) == (
        70,
        10,
    )  # means of 80 and 60, of 20 and 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("step", "n_more", "n_comm", "percent"),
    [
        ("^step", 1, 0, None),  # kernels that each step launches behind its range: 4 of 54
        ("^step", 3, 0, "19%"),  # 12 of 62
        ("^backward$", 0, 8, "35%"),  # 4 of each step but the first: 16 of 46
        ("^step [024]$", 0, 10, "40%"),  # all 10 of steps 1 and 3, of 50
    ],
)
def test_what_parts_of_steps_leave_out_is_said_and_what_that_hides_is_null(
    tmp_path, step, n_more, n_comm, percent, worded
):
    builders = [grid_rank(rank) for rank in range(4)]
    for builder, at, number in itertools.product(builders, range(0, 5000, 1000), range(n_more)):
        builder.kernel(at + 700 + number, at + 701 + number, launch=at + 950 + number)
    run = run_of(tmp_path, *builders, step=step)
    said = {row["code"]: row["message"] for row in run.problem_rows if "-between-" in row["code"]}
    assert [*said] == (
        [] if percent is None else ["comm-between-steps" if n_comm else "launches-between-steps"]
    )
    for text in said.values():
        assert percent in text, text
        assert n_comm == 0 or str(n_comm) in figures_of(text), text
        worded(text, "problem")
    (figures,), (tensor, *_) = run.summary().to_pylist(), rows_of(run, None)
    assert figures["collectives_per_step"] == (10 if "024" in step else 5)
    known = [
        figures[name] for name in ("message_bytes_per_step", "wait_share", "backward_overlap_ratio")
    ]
    known += [tensor[f"{name}_per_step"] for name in ("calls", "bytes", "wait_ns")]
    # In the mean of ranks 10 of 1000 are waited, and 40 of 130 hidden.
    assert known == (
        [None] * 6 if n_comm else [8 * MIB, 0.01, pytest.approx(40 / 130), 4, 4 * MIB, 10]
    )
    assert (None in run.stragglers()["lateness_ns"].to_pylist()) == (n_comm > 0)
    # A difference gives that reason too, and what mends it.
    worded(verdict_text(nsyspipe.diff(run, run, metrics="wait", force=True)), "difference")


def test_without_payloads_a_communicator_is_a_stream_and_all_ranks(tmp_path):
    run = run_of(tmp_path, *(grid_rank(rank, has_payloads=False) for rank in range(4)))
    named = [
        (row["communicator"], row["role"], row["ranks"], row["bytes_per_step"])
        for row in rows_of(run, None)
    ]
    assert named == [
        ("all_reduce/0", "tensor", "0,1,2,3", None),
        ("all_reduce/1", "data", "0,1,2,3", None),
    ]


@pytest.mark.parametrize(
    ("asked", "has_payloads", "tensor", "data"),
    [
        ("0-1", True, ((20, 0), MIB / 15e-9), ((None, None), None)),
        ("0,2", True, ((None, None), None), ((0, 0), 4 * MIB / 60e-9)),
        # Streams are of all ranks, as far as anybody can tell.
        ("0-1", False, ((None, None), None), ((None, None), None)),
    ],
)
def test_of_some_ranks_only_communicators_read_whole_say_who_waits(
    tmp_path, asked, has_payloads, tensor, data
):
    for rank in range(4):
        grid_rank(rank, has_payloads=has_payloads).write(tmp_path / f"x_{rank}.sqlite")
    run, whole = nsyspipe.load(tmp_path, ranks=asked), nsyspipe.load(tmp_path)
    first, second = (rows_of(run, rank) for rank in run.ranks["rank"].to_pylist())
    for place, (waits, bandwidth) in enumerate((tensor, data)):
        rows = first[place], second[place]
        assert tuple(row["wait_ns_per_step"] for row in rows) == waits, place
        assert [row["algbw_bytes_per_s"] for row in rows] == pytest.approx([bandwidth] * 2), place
        # What a rank did itself it did, whoever else is read.
        own = "calls_per_step", "bytes_per_step", "comm_ns_per_step", "exposed_ns_per_step", "role"
        assert all(
            row[name] == rows_of(whole, row["rank"])[place][name] for row in rows for name in own
        ), place
    # A step has one of either, and who is late may be so for one that was not read.
    unknown = (
        run.steps()["wait_ns"],
        run.steps()["transfer_ns"],
        *run.stragglers().drop_columns("rank").columns,
    )
    assert all(column.null_count == len(column) for column in unknown)
    row = problem_of(run, "ranks-not-read")
    assert row["severity"] == "info"
    assert "--ranks" in row["fix"]
    assert "unmatched-collectives" not in codes(run)


def test_thousands_of_rows_list_the_ranks_of_a_communicator_in_one_text(tmp_path):
    listed = run_of(
        tmp_path, *(grid_rank(rank, 2, 4, has_payloads=False) for rank in range(4))
    ).traffic()["ranks"]
    assert len({chunk.buffers()[2].address for chunk in listed.chunks}) == 1 < listed.num_chunks


def test_rows_of_a_rank_without_overlap_sum_to_its_communication(tmp_path):
    run = run_of(tmp_path, *map(grid_rank, range(4)))
    steps = run.breakdown().to_pylist()
    for rank in range(4):
        own = [row for row in steps if row["rank"] == rank]
        for name in ("comm_ns", "exposed_comm_ns"):
            traffic = f"{name.replace('_comm', '')}_per_step"
            assert sum(row[traffic] for row in rows_of(run, rank)) == sum(
                row[name] for row in own
            ) / len(own), name


@pytest.mark.slow
def test_64_ranks_are_8_tensor_groups_and_8_data_groups(tmp_path):
    run = run_of(tmp_path, *(grid_rank(rank, 8, 64, n_steps=3) for rank in range(64)))
    there = [(row["role"], row["ranks"]) for row in rows_of(run, None)]
    assert there[:8] == [
        ("tensor", ",".join(map(str, range(8 * group, 8 * group + 8)))) for group in range(8)
    ]
    assert there[8:] == [("data", ",".join(map(str, range(group, 64, 8)))) for group in range(8)]
    assert {row["n_ranks"] for row in rows_of(run, None)} == {8}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("capture", "expected"),
    [
        ("ddp-2gpu-bucket100", {"all_reduce": "data"}),
        ("fsdp-4gpu", {"all_gather": "sharded", "reduce_scatter": "sharded"}),
    ],
)
def test_real_runs_have_the_roles_of_their_programs(real, capture, expected):
    run = nsyspipe.load(real / f"{capture}_*.sqlite")
    assert {row["collective"]: row["role"] for row in rows_of(run, None)} == expected


MS = 10**6
# How much later each node's clock says it is. Of each data group, which has a rank of each node,
# the median is that of the middle two, floored: those of 0 and 3 ms.
CLOCKS, MEDIAN = (0, 3 * MS, -250 * MS, 2000 * MS), 1_500_000
N_NODES, N_LOCAL = 4, 8
LATE_NODE, LATE_NS = 2, 30
STEPS = 3  # summary steps of five: the first is skipped, the last has no end


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Build the run; node 2 comes 30 late for each all-reduce of gradients, with all its ranks."""
    ranks = [
        grid_rank(
            rank,
            N_LOCAL,
            N_NODES * N_LOCAL,
            node=node,
            clock_ns=CLOCKS[node],
            late_ns=LATE_NS * (node == LATE_NODE),
        )
        for node in range(N_NODES)
        for rank in range(N_LOCAL * node, N_LOCAL * (node + 1))
    ]
    return run_of(tmp_path_factory.mktemp("nodes"), *ranks)


@pytest.mark.slow
def test_clocks_of_nodes_are_recovered_from_few_common_collectives(run):
    found = [
        (row["host"], row["clock_offset_ns"], row["clock_error_ns"])
        for row in run.ranks.to_pylist()
    ]
    assert found == [
        (f"node{node}", CLOCKS[node] - MEDIAN, 0) for node in range(N_NODES) for _ in range(N_LOCAL)
    ]
    assert not {"clock-error-unknown", "no-common-clock", "ended-before-last-arrived"} & set(
        codes(run)
    )


@pytest.mark.slow
def test_roles_and_waiting_are_as_built(run):
    named = [(row["role"], row["ranks"]) for row in rows_of(run, None)]
    tensor = [",".join(map(str, range(8 * node, 8 * node + 8))) for node in range(N_NODES)]
    data = [",".join(map(str, range(local, 32, 8))) for local in range(N_LOCAL)]
    assert named == [("tensor", ranks) for ranks in tensor] + [("data", ranks) for ranks in data]
    for rank in range(N_NODES * N_LOCAL):
        in_tensor, in_data = rows_of(run, rank)
        # The last of a tensor group arrives 5 late, the others floor(5 k / 7), in each of 4 calls.
        assert in_tensor["wait_ns_per_step"] == 4 * (5 - 5 * (rank % N_LOCAL) // 7), rank
        assert in_data["wait_ns_per_step"] == (0 if rank // N_LOCAL == LATE_NODE else LATE_NS), rank


@pytest.mark.slow
def test_the_last_ranks_are_those_of_the_late_node(run):
    for row in run.stragglers().to_pylist():
        node, local = divmod(row["rank"], N_LOCAL)
        # Rank 7 of each tensor group comes 1 behind the sixth, in 4 calls of each step.
        in_data, in_tensor = node == LATE_NODE, local == N_LOCAL - 1
        assert row["n_arrived_last"] == STEPS * (in_data + 4 * in_tensor), row
        assert row["wait_caused_ns"] == STEPS * (LATE_NS * in_data + 4 * in_tensor), row


@pytest.mark.slow
def test_the_late_node_is_named_with_all_its_ranks(run, worded):
    (row,) = [row for row in run.findings().to_pylist() if row["id"] == "straggler"]
    assert {"16", "23"} <= figures_of(row["title"])
    worded(row["title"])
    assert row["saving_ns_per_step"] == LATE_NS


def test_clocks_of_nodes_that_never_meet_are_not_known(tmp_path):
    ranks = (
        grid_rank(rank, node=rank // 2, clock_ns=CLOCKS[rank // 2], is_apart=True)
        for rank in range(4)
    )
    run = run_of(tmp_path, *ranks)
    assert {(row["clock_offset_ns"], row["clock_error_ns"]) for row in run.ranks.to_pylist()} == {
        (None, None)
    }
    assert "clock-error-unknown" in codes(run)
    # Within a node waiting is as it was: the last of a tensor group comes 5 late to each of 4.
    assert {(row["rank"] % 2, row["wait_ns"]) for row in run.steps().to_pylist()} == {
        (0, 20),
        (1, 0),
    }


def test_links_between_hosts_stand_beside_those_within(tmp_path):
    # What tensor parallelism connects is within a host, and larger.
    of_comms = (
        ("0x9", 8, [("node0", at) for at in range(8)]),
        ("0x1", 4, [(f"node{at}", 0) for at in (0, 0, 1, 1)]),
    )
    lines = []
    for comm_id, n_ranks, seats in of_comms:
        for rank, (host, gpu) in enumerate(seats):
            head = f"{host}:{100 + rank}:{100 + rank} [{gpu}] NCCL INFO"
            member = f"comm 0xa{comm_id[2:]}{rank} rank {rank} nranks {n_ranks} cudaDev {gpu}"
            made = f"{head} ncclCommInitRankConfig {member}"
            lines += [f"{made} commId {comm_id} - Init {what}" for what in ("START", "COMPLETE")]
            after = (rank + 1) % n_ranks
            # Each rank of the larger hangs below the one before; of the world 2 hangs below 0, and
            # 3 below 2.
            parent = rank - 1 if n_ranks == 8 or rank != 2 else 0
            lines.append(f"{head} Trees [0] -1/-1/-1->{rank}->{parent}")
            if rank == 0:
                lines.append(f"{head} Channel 00/01 : {' '.join(map(str, range(n_ranks)))}")
            is_inside = seats[after][0] == host
            way = "P2P/CUMEM" if is_inside else "NET/IB/0/GDRDMA"
            edge = f"{rank}[{gpu}] -> {after}[{seats[after][1]}]{'' if is_inside else ' [send]'}"
            lines.append(f"{head} Channel 00/0 : {edge} via {way}")
    path = tmp_path / "nccl.log"
    path.write_text("\n".join(lines) + "\n")
    table, _ = links(read_nccl_logs([path]), None)
    columns = ("from_rank", "to_rank", "kind", "transport", "algorithms")
    # How NCCL goes from 0 to 2 and back no line says.
    assert [tuple(row[name] for name in columns) for row in table.to_pylist()] == [
        (0, 1, "p2p", "P2P/CUMEM", "ring, tree"),
        (0, 2, "unknown", None, "tree"),
        (1, 2, "net", "NET/IB/0/GDRDMA", "ring"),
        (2, 0, "unknown", None, "tree"),
        (2, 3, "p2p", "P2P/CUMEM", "ring, tree"),
        (3, 0, "net", "NET/IB/0/GDRDMA", "ring"),
    ]
    worst = slowest(table)
    assert (worst.text, worst.edges) == (
        "network (NET/IB/0/GDRDMA)",
        "2 of 6 connections, rank 1 to 2 first, 2 not known",
    )


def test_who_is_late_is_not_known_where_only_stages_meet(real):
    run = nsyspipe.load(f"{real}/2gpu-pp_*.sqlite")
    delays = run.stragglers().select(
        ["n_arrived_last", "wait_caused_ns", "lateness_ns", "held_up_ns"]
    )
    assert {value for row in delays.to_pylist() for value in row.values()} == {None}
    assert run.stragglers()["wait_ns"].null_count == 0
