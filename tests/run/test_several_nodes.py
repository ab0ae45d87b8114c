"""A run of four nodes of eight ranks, tensor groups in each and data groups across, whose clocks are apart by up to seconds."""

from __future__ import annotations

import pytest

from nsyspipe.analysis.links import links, slowest
from nsyspipe.reader.fabric import read_nccl_logs
from tests.build.tools import codes, run_of
from tests.run.test_traffic import grid_rank, rows_of

MS = 10**6
# How much later each node's clock says it is. Of each data group, which has a rank of each node, the median is that of the
# middle two, floored: those of 0 and 3 ms.
CLOCKS, MEDIAN = (0, 3 * MS, -250 * MS, 2000 * MS), 1_500_000
N_NODES, N_LOCAL = 4, 8
LATE_NODE, LATE_NS = 2, 30
STEPS = 3  # summary steps of five: the first is skipped, the last has no end


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Build the run; node 2 comes 30 late for each all-reduce of gradients, with all its ranks."""
    ranks = [
        grid_rank(
            rank, N_LOCAL, N_NODES * N_LOCAL, node=node, clock_ns=CLOCKS[node], late_ns=LATE_NS * (node == LATE_NODE)
        )
        for node in range(N_NODES)
        for rank in range(N_LOCAL * node, N_LOCAL * (node + 1))
    ]
    return run_of(tmp_path_factory.mktemp("nodes"), *ranks)


def test_clocks_of_nodes_are_recovered_although_most_collectives_stay_inside_one(run):
    found = [(row["host"], row["clock_offset_ns"], row["clock_error_ns"]) for row in run.ranks.to_pylist()]
    assert found == [(f"node{node}", CLOCKS[node] - MEDIAN, 0) for node in range(N_NODES) for _ in range(N_LOCAL)]
    assert not {"clock-error-unknown", "no-common-clock", "ended-before-last-arrived"} & set(codes(run))


def test_roles_and_waiting_are_as_built(run):
    named = [(row["role"], row["ranks"]) for row in rows_of(run, None)]
    tensor = [",".join(map(str, range(8 * node, 8 * node + 8))) for node in range(N_NODES)]
    data = [",".join(map(str, range(local, 32, 8))) for local in range(N_LOCAL)]
    assert named == [("tensor", ranks) for ranks in tensor] + [("data", ranks) for ranks in data]
    for rank in range(N_NODES * N_LOCAL):
        in_tensor, in_data = rows_of(run, rank)
        # The last of a tensor group arrives 5 late, the others floor(5 k / 7), in each of 4 calls.
        assert in_tensor["wait_ns_per_step"] == 4 * (5 - 5 * (rank % N_LOCAL) // 7)
        assert in_data["wait_ns_per_step"] == (0 if rank // N_LOCAL == LATE_NODE else LATE_NS)


def test_the_last_ranks_are_those_of_the_late_node(run):
    for row in run.stragglers().to_pylist():
        node, local = divmod(row["rank"], N_LOCAL)
        # Rank 7 of each tensor group comes 1 behind the sixth, in 4 calls of each step.
        in_data, in_tensor = node == LATE_NODE, local == N_LOCAL - 1
        assert row["n_arrived_last"] == STEPS * (in_data + 4 * in_tensor)
        assert row["wait_caused_ns"] == STEPS * (LATE_NS * in_data + 4 * in_tensor)


def test_the_late_node_is_named_with_all_its_ranks(run):
    (row,) = [row for row in run.findings().to_pylist() if row["id"] == "straggler"]
    assert row["title"].startswith("the others wait for node node2 (ranks 16 to 23), all of it late alike")
    assert row["saving_ns_per_step"] == LATE_NS


def test_clocks_of_nodes_that_never_meet_are_not_known(tmp_path):
    ranks = (grid_rank(rank, node=rank // 2, clock_ns=CLOCKS[rank // 2], is_apart=True) for rank in range(4))
    run = run_of(tmp_path, *ranks)
    assert {(row["clock_offset_ns"], row["clock_error_ns"]) for row in run.ranks.to_pylist()} == {(None, None)}
    assert "clock-error-unknown" in codes(run)
    # Within a node waiting is as it was: the last of a tensor group comes 5 late to each of 4.
    assert {(row["rank"] % 2, row["wait_ns"]) for row in run.steps().to_pylist()} == {(0, 20), (1, 0)}


def test_links_between_hosts_stand_beside_those_within(tmp_path):
    # What tensor parallelism connects is within a host, and larger.
    of_comms = (("0x9", 8, [("node0", at) for at in range(8)]), ("0x1", 4, [(f"node{at}", 0) for at in (0, 0, 1, 1)]))
    lines = []
    for comm_id, n_ranks, seats in of_comms:
        for rank, (host, gpu) in enumerate(seats):
            head = f"{host}:{100 + rank}:{100 + rank} [{gpu}] NCCL INFO"
            made = (
                f"{head} ncclCommInitRankConfig comm 0xa{comm_id[2:]}{rank} rank {rank} nranks {n_ranks} cudaDev {gpu}"
            )
            lines += [f"{made} commId {comm_id} - Init {what}" for what in ("START", "COMPLETE")]
            after = (rank + 1) % n_ranks
            # Each rank of the larger hangs below the one before; of the world 2 hangs below 0, and 3 below 2.
            parent = rank - 1 if n_ranks == 8 or rank != 2 else 0
            lines.append(f"{head} Trees [0] -1/-1/-1->{rank}->{parent}")
            if rank == 0:
                lines.append(f"{head} Channel 00/01 : {' '.join(map(str, range(n_ranks)))}")
            is_inside = seats[after][0] == host
            way = "P2P/CUMEM" if is_inside else "NET/IB/0/GDRDMA"
            lines += [
                f"{head} Channel 00/0 : {rank}[{gpu}] -> {after}[{seats[after][1]}]{'' if is_inside else ' [send]'} via {way}"
            ]
    path = tmp_path / "nccl.log"
    path.write_text("\n".join(lines) + "\n")
    table, _ = links(read_nccl_logs([path]), None)
    columns = ("from_rank", "to_rank", "kind", "transport", "algorithms")
    # How NCCL goes from 0 to 2 and back no line says.
    assert [tuple(row[name] for name in columns) for row in table.to_pylist()] == [
        (0, 1, "p2p", "P2P/CUMEM", "ring, tree"), (0, 2, "unknown", None, "tree"), (1, 2, "net", "NET/IB/0/GDRDMA", "ring"),
        (2, 0, "unknown", None, "tree"), (2, 3, "p2p", "P2P/CUMEM", "ring, tree"), (3, 0, "net", "NET/IB/0/GDRDMA", "ring"),
    ]  # fmt: skip
    worst = slowest(table)
    assert (worst.text, worst.edges) == ("network (NET/IB/0/GDRDMA)", "2 of 6 edges, rank 1 to 2 first, 2 not known")
