"""Findings of small built reports by what their communication serves; every number is worked out by hand. Times are ns."""

from __future__ import annotations

import pytest

from nsyspipe.findings.straggler import late_node
from nsyspipe.model import schema
from nsyspipe.report.words import verdict
from tests.build import nccl_layouts as nccl
from tests.build.tools import run_of
from tests.build.trace import TraceBuilder
from tests.findings.make import collective, findings

MIB = 2**20
N_STEPS = 5


def builder_of(rank):
    builder = TraceBuilder("3.25.0 2026.2.1 mfu", pid=1000 + rank).env(RANK=rank, WORLD_SIZE=2, LOCAL_RANK=rank)
    return builder.session(10**18).gpu().host("node0").domain("NCCL", 1)


def call(builder, api, launch, start, end, n_bytes, comm=16, **more):
    builder.nccl_payload(launch - 2, api, {nccl.COMM: comm, nccl.BYTES: n_bytes}, nccl.NCCL_2_21, end=launch - 1)
    builder.nccl(start, end, launch=launch, **more)


def accumulating(rank, syncs):
    """Return a rank that runs 3 micro-batches per step of 1000: 100 of compute each, then 60 + 40 of all-reduces where it syncs."""
    builder = builder_of(rank)
    for at in range(0, 1000 * N_STEPS, 1000):
        builder.range(at, at + 900, f"step {at // 1000}")
        for number in range(3):
            host, device = at + 10 + 30 * number, at + 100 + 300 * number
            builder.kernel(device, device + 100, launch=host)
            builder.range(host + 1, host + 28, "backward")
            if syncs[number]:
                call(builder, "ncclAllReduce", host + 5, device + 100, device + 160, 3 * MIB)
                call(builder, "ncclAllReduce", host + 10, device + 160, device + 200, MIB)
    return builder


@pytest.mark.parametrize(
    ("syncs", "saving"), [((1, 1, 1), 200), ((0, 0, 1), None), ((0, 1, 1), None)], ids=["each", "last", "some"]
)
def test_gradients_that_each_micro_batch_sends(tmp_path, syncs, saving):
    run = run_of(tmp_path, *(accumulating(rank, syncs) for rank in range(2)))
    found = findings(run).get("no-sync")
    assert (found and found["saving_ns_per_step"]) == saving
    if found:
        figures = {"n_backward_passes": 3, "messages_per_step": 6, "bytes_per_step": 12 * MIB}
        assert figures.items() <= found["evidence"].items()


def stage(rank, *, has_norm=False):
    """Return a stage of two, in steps of 1000.

    The first computes 200, sends at 300, has its gradient at 700, and computes 200; the other receives from 100 on and
    computes 380. With a norm of both, the second waits for the first with it, from 700 to 900.
    """
    builder = builder_of(rank)
    kernels = [[(100, 300), (700, 900)], [(310, 690)]][rank]
    pairs = [[("ncclSend", 300, 310), ("ncclRecv", 310, 700)], [("ncclRecv", 100, 310), ("ncclSend", 690, 700)]][rank]
    for at in range(0, 1000 * N_STEPS, 1000):
        builder.range(at, at + 950, f"step {at // 1000}").range(at + 40, at + 60, "backward")
        for number, (start, end) in enumerate(kernels):
            builder.kernel(at + start, at + end, launch=at + (10, 35)[rank] + 40 * number)
        for number, (name, start, end) in enumerate(pairs):
            call(builder, name, at + 20 + 30 * number, at + start, at + end, MIB, name="ncclDevKernel_SendRecv")
        if has_norm:
            call(builder, "ncclAllReduce", at + 80, at + (900, 700)[rank], at + 910, 8, comm=32, stream=23)
    return builder


@pytest.mark.parametrize("has_norm", [False, True])
def test_a_pipelines_bubble_is_its_own_and_nobodys_lateness(tmp_path, has_norm):
    run = run_of(tmp_path, *(stage(rank, has_norm=has_norm) for rank in range(2)))
    roles = {row["communicator"]: row["role"] for row in run.traffic().to_pylist()}
    assert roles == {"0x10": "pipeline"} | ({"0x20": "other"} if has_norm else {})
    # The first waits 690 - 310 for the gradient, the second 300 - 100 for its input.
    bubble = findings(run)["pipeline-bubble"]
    assert bubble["evidence"]["bubble_ns_per_step_by_rank"] == {"0": 380, "1": 200}
    # The first works 420, with 10 in which it sends and 10 in which it receives, and 10 for the norm.
    assert bubble["saving_ns_per_step"] == 1000 - (430 if has_norm else 420)
    assert "straggler" not in findings(run)
    assert {row["lateness_ns"] for row in run.stragglers().to_pylist()} == {0}
    launch = findings(run)["launch-bound"]
    assert launch["saving_ns_per_step"] is None
    assert launch["title"].endswith("perhaps in the pipeline's bubble")
    # 400 and 220 of 1000; with the norm 10 and 210 more, of which the second waits 200.
    shares = "(42 %) of step time, of it (29 %) waiting for other stages, (10 %) waiting for other ranks"
    shares = shares if has_norm else "(31 %) of step time, of it (29 %) waiting for other stages"
    (said,) = verdict(run).splitlines()
    assert said.replace("<0.001 ms ", "").startswith(f"Communication is {shares}, ")


# --- a host that the others wait for --------------------------------------------------------------
HOSTS = {0: "a", 1: "a", 2: "b", 3: "b"}
WORLD = [row for number in (1, 2) for row in collective(number, (0, 10, 100, 103), 400)]
# Rank 2 is late in its group, rank 3 is not in its own.
PAIRS = [
    row | {"rank": rank}
    for comm_id, ranks, starts in (("d0", (0, 2), (0, 100)), ("d1", (1, 3), (0, 0)))
    for rank, row in zip(ranks, collective(1, starts, 400, comm_id=comm_id), strict=True)
]


def late(rows, hosts=HOSTS, error=0):
    node = late_node(schema.COLLECTIVES.from_rows(rows), hosts, error)
    return node and (node.host, node.ranks, node.late_ns.tolist())


@pytest.mark.parametrize(("rows", "options", "expected"), [
    # The first of b comes at 100, the last of a at 10: 90 in each step, although no rank of b is 90 behind the other.
    (WORLD, {}, ("b", (2, 3), [90, 90])),
    (WORLD, {"error": 89}, ("b", (2, 3), [90, 90])),
    (WORLD, {"error": 90}, None),  # the clocks do not tell
    (WORLD, {"error": None}, None),
    (WORLD, {"hosts": {}}, None),
    (WORLD, {"hosts": dict.fromkeys(range(4), "a")}, None),
    (WORLD, {"hosts": {0: "a", 1: "a", 2: "b"}}, None),  # of one rank the host is not known
    # One rank of a host is no host, nor are ranks of which one is late.
    (WORLD, {"hosts": {0: "a", 1: "a", 2: "a", 3: "b"}}, None),
    (PAIRS, {}, None), (collective(1, (0, 10, 5, 100), 400), {}, None), ([], {}, None),
])  # fmt: skip
def test_a_node_is_late_where_all_its_ranks_are(rows, options, expected):
    assert late(rows, **options) == expected


def test_a_node_says_its_ranks():
    node = late_node(schema.COLLECTIVES.from_rows(WORLD), HOSTS, 0)
    assert node.text == "node b (ranks 2 to 3)"
