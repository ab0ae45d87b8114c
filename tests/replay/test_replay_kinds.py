"""The replay of other communication than DDP's: between layers, of experts, of shards; each time worked out by hand."""

import pytest

from nsyspipe.replay.answer import whatif
from tests.build.ddp_run import MS, US
from tests.build.make_replay import OVERHEAD, SINGLE, only, refusal
from tests.build.nccl_layouts import COMM_INIT, NCCL_2_21
from tests.build.trace import DEFAULT, TraceBuilder

pytestmark = pytest.mark.usefixtures("opened_once")

CALLS = ("AllReduce", "AllToAll", "AllGather", "ReduceScatter", "SendRecv")
KERNELS = {call: f"ncclDevKernel_{call}_RING_LL" for call in CALLS}
IN_LINE, BESIDE, OTHER = (
    7,
    19,
    24,
)  # the stream of the work, where a collective is in line with it, and others
N_BYTES = 1 << 24


def half(transfer):
    """Return what a collective takes over a link twice as fast."""
    return OVERHEAD + (transfer - OVERHEAD) / 2


def rank_of(rank, rows, length, *, n_ranks=2, communicator=None, backward=None, of_all=None):
    """Return a rank with steps of `length`, of (name or collective, begin, end in ms, stream), launched in that order.

    Row `backward` and those after it are launched in the backward pass, but for the last, the
    optimizer. With the number of a communicator, or of each stream's, NCCL tells of it: of two
    ranks, but for the number `of_all`.
    """
    numbers = (
        communicator
        if isinstance(communicator, dict)
        else dict.fromkeys((IN_LINE, BESIDE, OTHER), communicator)
    )
    builder = (
        TraceBuilder("3.25.0 2026.2.1 mfu" if communicator else DEFAULT, pid=1000 + rank)
        .session(10**18)
        .gpu()
    )
    builder.env(RANK=rank, WORLD_SIZE=n_ranks, LOCAL_RANK=rank)
    for number in {*numbers.values()} if communicator else ():
        n_members = n_ranks if number == of_all else 2
        members = {
            "NCCL communicator ID": number,
            "No. of ranks": n_members,
            "Rank": rank % n_members,
            "CUDA device": 0,
        }
        builder.domain("NCCL", 1).nccl_payload(
            -1000 * number, "ncclCommInitRankConfig", members, COMM_INIT
        )
    for step in range(6):
        host, device = 10 * MS * step, 1000 * MS + length * step
        builder.range(host, host + 9 * MS, f"step {step}")
        if backward is not None:
            builder.range(
                host + (backward + 1) * 10 * US - US, host + len(rows) * 10 * US - US, "backward"
            )
        for at, (name, begin, end, stream) in enumerate(rows):
            launch = host + (at + 1) * 10 * US
            times = device + int(begin * MS), device + int(end * MS)
            builder.kernel(*times, KERNELS.get(name, name), launch=launch, stream=stream)
            if communicator and name in KERNELS:
                fields = {"NCCL communicator ID": numbers[stream], "Message size [bytes]": N_BYTES}
                builder.nccl_payload(
                    launch - 100, f"nccl{name}", fields, NCCL_2_21, end=launch + 100
                )
    return builder


def layers(first=10, second=10, *, waits=(0, 0)):
    """Return the rows of a tensor-parallel rank: work, all-reduce of 4 ms, work, all-reduce of 4 ms, optimizer of 2 ms."""
    one = first + waits[0] + 4
    two = one + second + waits[1] + 4
    rows = [
        ("forward", 0, first, IN_LINE),
        ("AllReduce", first, one, IN_LINE),
        ("layer_backward", one, one + second, IN_LINE),
        ("AllReduce", one + second, two, IN_LINE),
        ("optimizer", two, two + 2, IN_LINE),
    ]
    return rows, (two + 2) * MS


def of_layers(written, *ranks):
    """Return a run of such ranks."""
    return written(*(rank_of(at, *one, backward=2) for at, one in enumerate(ranks)))


@pytest.fixture
def tensor(written):
    return of_layers(written, layers(), layers())


@pytest.mark.parametrize(
    ("bandwidth", "expected"),
    [
        ("2x", 22 * MS + 2 * half(4 * MS)),
        ("tensor=2x", 22 * MS + 2 * half(4 * MS)),
        ("tensor=0.5x", 22 * MS + 16 * MS),
    ],
)
def test_layers_wait_for_all_of_their_communication(tensor, bandwidth, expected):
    found = whatif(tensor, bandwidth=bandwidth)
    assert only(found).step_time_ns == pytest.approx(expected, abs=US)
    assert (found.identity_error_pct, found.limit_step_time_ns) == (0.0, 22 * MS)


NOT_OF_LAYERS = {
    "buckets": {"bucket_mb": 25},
    "a datatype": {"gradient_dtype": "bf16"},
    "copies": {"no_grad_copy": True},
    "synchronisation": {"no_sync": True},
    "prefetching": {"prefetch": True},
    "bandwidth of gradients": {"bandwidth": "data=2x"},
    "a bandwidth for unknown bytes": {"bandwidth": "300GB/s"},
}


@pytest.mark.parametrize("changes", NOT_OF_LAYERS.values(), ids=NOT_OF_LAYERS)
def test_what_only_gradients_or_shards_have_is_refused_for_layers(tensor, changes, worded):
    worded(refusal(whatif(tensor, **changes)))


def test_a_link_scales_the_transfer_and_not_the_waiting(written):
    """Rank 1 comes 5 ms later to the first all-reduce, for which rank 0 waits, and no later on a faster link."""
    run = of_layers(written, layers(waits=(5, 0)), layers(first=15))
    assert only(whatif(run, bandwidth="2x")).step_time_ns == pytest.approx(
        27 * MS + 2 * half(4 * MS), abs=US
    )
    assert only(whatif(run, no_wait=True)).step_time_ns == pytest.approx(30 * MS, abs=US)


@pytest.mark.slow
def test_groups_of_ranks_wait_for_their_own_alone(written):
    """Of two groups one is late by 5 ms at the first all-reduce, the other at the second: each loses 5 ms, not 10."""
    ranks = enumerate(
        (layers(waits=(5, 0)), layers(first=15), layers(waits=(0, 5)), layers(second=15))
    )
    run = written(
        *(rank_of(at, *one, n_ranks=4, communicator=5 + at // 2, backward=2) for at, one in ranks)
    )
    assert {row["ranks"] for row in run.traffic().to_pylist()} == {"0,1", "2,3"}
    found = whatif(run, bandwidth="2x")
    assert only(found).step_time_ns == pytest.approx(27 * MS + 2 * half(4 * MS), abs=US)
    assert (found.identity_error_pct, found.limit_step_time_ns) == (0.0, 27 * MS)
    own = N_BYTES / 0.004  # 16 MiB of two ranks in 4 ms
    assert only(whatif(run, bandwidth=2 * own)).step_time_ns == pytest.approx(
        only(found).step_time_ns, abs=US
    )


# Beside tensor groups 0-1 and 2-3 data groups 0-2 and 1-3 reduce gradients for 6 ms; rank 3 is late
# by 5 ms.
def of_both(rank):
    late, waits = (5 if rank == 3 else 0), (5 if rank == 2 else 0)
    one = 14 + late + waits
    rows = [
        ("forward", 0, 10 + late, IN_LINE),
        ("AllReduce", 10 + late, one, IN_LINE),
        ("layer_backward", one, one + 10, IN_LINE),
        ("AllReduce", one + 10, one + 14, IN_LINE),
        ("AllReduce", one + 14, 39, BESIDE),
        ("optimizer", 39, 41, IN_LINE),
    ]
    numbers = {IN_LINE: 5 + rank // 2, BESIDE: 7 + rank % 2}
    return rank_of(rank, rows, 41 * MS, n_ranks=4, communicator=numbers, backward=2)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"bandwidth": "tensor=2x"}, 33 * MS + 2 * half(4 * MS)),
        ({"bandwidth": "data=2x"}, 35 * MS + half(6 * MS)),
        ({"bandwidth": "2x"}, 27 * MS + 2 * half(4 * MS) + half(6 * MS)),
        ({"no_wait": True}, 36 * MS),
    ],
)
def test_a_late_rank_holds_up_its_own_groups_and_those_theirs(written, changes, expected):
    run = written(*map(of_both, range(4)))
    roles = {(row["ranks"], row["role"]) for row in run.traffic().to_pylist()}
    assert roles == {("0,1", "tensor"), ("2,3", "tensor"), ("0,2", "data"), ("1,3", "data")}
    found = whatif(run, **changes)
    assert only(found).step_time_ns == pytest.approx(expected, abs=2 * US)
    assert found.identity_error_pct < 0.01


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"bandwidth": "tensor=2x"}, 24 * MS + 2 * half(4 * MS)),
        ({"bandwidth": "data=2x"}, 30 * MS + half(2 * MS)),
    ],
)
def test_groups_of_two_ranks_stand_beside_one_of_all(written, changes, expected):
    """Tensor groups 0-1 and 2-3 wait twice for 4 ms in layers, then all four ranks reduce gradients for 2 ms."""
    rows = [
        ("forward", 0, 10, IN_LINE),
        ("AllReduce", 10, 14, IN_LINE),
        ("layer_backward", 14, 24, IN_LINE),
        ("AllReduce", 24, 28, IN_LINE),
        ("AllReduce", 28, 30, OTHER),
        ("optimizer", 30, 32, IN_LINE),
    ]
    numbers = ({IN_LINE: 5 + rank // 2, OTHER: 9} for rank in range(4))
    more = {"n_ranks": 4, "backward": 2, "of_all": 9}
    run = written(
        *(
            rank_of(rank, rows, 32 * MS, communicator=own, **more)
            for rank, own in enumerate(numbers)
        )
    )
    roles = {(row["ranks"], row["role"]) for row in run.traffic().to_pylist()}
    assert roles == {("0,1", "tensor"), ("2,3", "tensor"), ("0,1,2,3", "data")}
    assert only(whatif(run, **changes)).step_time_ns == pytest.approx(expected, abs=2 * US)


def test_ranks_that_launch_in_different_orders_are_refused(written, worded):
    rows = [("AllReduce", 2, 4, BESIDE), ("AllReduce", 2, 5, OTHER)]
    ranks = (
        [("forward", 0, 2, IN_LINE), *order, ("optimizer", 5, 6, IN_LINE)]
        for order in (rows, rows[::-1])
    )
    numbers = {IN_LINE: 5, BESIDE: 6, OTHER: 7}
    run = written(*(rank_of(at, one, 6 * MS, communicator=numbers) for at, one in enumerate(ranks)))
    worded(refusal(whatif(run)))


# Two exchanges of 2 ms, in line; gradients are reduced for 10 ms beside 5 ms of work and the second
# exchange.
EXPERTS = [
    ("forward", 0, 5, IN_LINE),
    ("AllToAll", 5, 7, IN_LINE),
    ("layer_backward", 7, 12, IN_LINE),
    ("AllReduce", 12, 22, BESIDE),
    ("layer_backward", 12, 17, IN_LINE),
    ("AllToAll", 17, 19, IN_LINE),
    ("optimizer", 22, 24, IN_LINE),
]


@pytest.mark.parametrize(
    ("bandwidth", "expected"),
    [
        # The second exchange is beside the gradients, whose end is what counts.
        ("expert=2x", 10 * MS + half(2 * MS) + 10 * MS + 2 * MS),
        # Gradients are there by 17.015 ms, before the second exchange ends.
        ("data=2x", 21 * MS),
        ("2x", 17 * MS + 2 * half(2 * MS)),
    ],
)
def test_experts_and_gradients_are_scaled_apart(written, worded, bandwidth, expected):
    found = whatif(
        written(*(rank_of(rank, EXPERTS, 24 * MS, backward=2) for rank in range(2))),
        bandwidth=bandwidth,
    )
    assert only(found).step_time_ns == pytest.approx(expected, abs=2 * US)
    assert found.identity_error_pct < 0.01
    worded(only(found).label)


# Parameters are gathered (2 ms) when the layer before has ended; gradients scattered (2 ms) before
# the optimizer.
SHARDS = [
    ("AllGather", 0, 2, OTHER),
    ("forward", 2, 5, IN_LINE),
    ("AllGather", 5, 7, OTHER),
    ("layer", 7, 10, IN_LINE),
    ("ReduceScatter", 10, 12, BESIDE),
    ("optimizer", 12, 13, IN_LINE),
]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"bandwidth": "2x"}, 7 * MS + 3 * half(2 * MS)),
        ({"bandwidth": "sharded=2x"}, 7 * MS + 3 * half(2 * MS)),
        # The second gather begins when the first has ended, beside the first layer.
        ({"prefetch": True}, 11 * MS),
        # It ends at 4.03 ms, before the layer does.
        ({"prefetch": True, "bandwidth": "2x"}, 7 * MS + 2 * half(2 * MS)),
    ],
)
def test_shards_gathered_earlier_and_faster(written, changes, expected):
    run = written(*(rank_of(rank, SHARDS, 13 * MS) for rank in range(2)))
    found = whatif(run, **changes)
    assert only(found).step_time_ns == pytest.approx(expected, abs=US)
    assert found.identity_error_pct < 0.01
    assert "prefetch" in {one.id for one in whatif(run).scenarios}


def test_shards_are_not_asked_over_a_slower_link(written, worded):
    run = written(*(rank_of(rank, SHARDS, 13 * MS) for rank in range(2)))
    worded(refusal(whatif(run, bandwidth="0.5x")))


@pytest.mark.parametrize("communicator", [5, None])
def test_what_one_communicator_does_on_two_streams_is_one_after_the_other(written, communicator):
    """Gradients are there at 12 ms, and wait for the gather that is under way; twice as fast it holds nothing up."""
    rows = [
        ("AllGather", 0, 2, OTHER),
        ("forward", 2, 10, IN_LINE),
        ("AllGather", 10, 14, OTHER),
        ("layer", 10, 12, IN_LINE),
        ("ReduceScatter", 14, 16, BESIDE),
        ("optimizer", 16, 17, IN_LINE),
    ]
    run = written(*(rank_of(rank, rows, 17 * MS, communicator=communicator) for rank in range(2)))
    expected = 9 * MS + 2 * half(2 * MS) + half(4 * MS)
    assert only(whatif(run, bandwidth="2x")).step_time_ns == pytest.approx(expected, abs=US)


def test_a_wait_that_one_rank_shows_is_that_of_the_other(written):
    """Rank 1 is 5 ms late to the first gather, the end of which it need not wait for: that the layer does rank 0 shows."""
    shown = [(name, begin and begin + 5, end + 5, stream) for name, begin, end, stream in SHARDS]
    late = [
        ("loader", 0, 4.99, IN_LINE),
        ("AllGather", 5, 7, OTHER),
        ("tail", 4.99, 7, IN_LINE),
        *shown[1:],
    ]
    early = [
        ("loader", 0, 0.01, IN_LINE),
        ("AllGather", 0.01, 7, OTHER),
        ("tail", 0.01, 0.02, IN_LINE),
        *shown[1:],
    ]
    found = whatif(
        written(*(rank_of(at, rows, 18 * MS) for at, rows in enumerate((early, late)))),
        no_wait=True,
    )
    assert found.identity_error_pct < 0.01


# Rank 0 waits for each gather of 4 ms, copies between; rank 1 comes 3 ms late to each, and waits
# for the second alone.
WAITING_ELSEWHERE = (
    [
        ("forward", 0, 5, IN_LINE),
        ("AllGather", 5, 12, BESIDE),
        ("copy", 5, 5.5, IN_LINE),
        ("copy", 5.5, 6, IN_LINE),
        ("layer", 12, 17, IN_LINE),
        ("AllGather", 17, 24, BESIDE),
        ("layer", 24, 27, IN_LINE),
        ("ReduceScatter", 27, 29, BESIDE),
        ("optimizer", 29, 31, IN_LINE),
    ],
    [
        ("forward", 0, 8, IN_LINE),
        ("AllGather", 8, 12, BESIDE),
        ("other", 8, 20, IN_LINE),
        ("AllGather", 20, 24, BESIDE),
        ("layer", 24, 27, IN_LINE),
        ("ReduceScatter", 27, 29, BESIDE),
        ("optimizer", 29, 31, IN_LINE),
    ],
)


def test_each_rank_waits_at_its_own_place_of_the_order(written):
    """The third operation after its first gather is what waits on rank 0, and comes after the second gather on rank 1."""
    found = whatif(
        written(*(rank_of(at, rows, 31 * MS) for at, rows in enumerate(WAITING_ELSEWHERE))),
        bandwidth="2x",
    )
    assert found.identity_error_pct < 0.01
    # Rank 1 works for 20 ms before the second gather, both for 5 after it.
    assert only(found).step_time_ns == pytest.approx(25 * MS + half(4 * MS) + half(2 * MS), abs=US)


def test_steps_that_begin_with_what_waits_for_the_step_before_are_refused(written, worded):
    """The first gather of a step begins when the last scatter of the one before has ended, 1 ms after all that it waits for."""
    rows = [("AllGather", 0, 2, OTHER), ("forward", 2, 5, IN_LINE), ("AllGather", 3, 7, OTHER)]
    ends = [("layer", 7.5, 9, IN_LINE), ("ReduceScatter", 9, 10, BESIDE)]
    shown = [
        *rows,
        ("copy", 5, 5.4, IN_LINE),
        ("copy", 5.4, 5.5, IN_LINE),
        ("layer", 7, 9, IN_LINE),
        ends[1],
    ]
    run = written(*(rank_of(at, one, 10 * MS) for at, one in enumerate((shown, [*rows, *ends]))))
    worded(refusal(whatif(run)))


@pytest.mark.slow
def test_gradients_of_an_accumulation_are_sent_once(ask, worded):
    run = SINGLE.changed(n_micro_batches=3)
    found = ask(run, no_sync=True)
    # Of three times 80 ms of all-reduce one is left, as of four kernels that scale gradients and
    # four copies of 0.1 ms.
    assert only(found).step_time_ns == pytest.approx(
        found.step_time_ns - 160 * MS - 1600 * US, abs=US
    )
    assert {one.id for one in ask(run).scenarios} >= {"no-sync"}
    worded(refusal(ask(SINGLE, no_sync=True)))
    assert "no-sync" not in {one.id for one in ask(SINGLE).scenarios}


def with_one_launch(rows, length):
    """Return a rank whose operations are launched at once, as the nodes of a graph."""
    builders = [rank_of(rank, rows, length) for rank in range(2)]
    for builder in builders:
        for row in builder.rows["CUPTI_ACTIVITY_KIND_RUNTIME"]:
            row["start"] = row["start"] // (10 * MS) * 10 * MS + US
    return builders


@pytest.mark.slow
def test_nodes_of_a_graph_are_in_line_or_refused(written, tmp_path, worded):
    found = whatif(written(*with_one_launch(*layers())), bandwidth="2x")
    assert only(found).step_time_ns == pytest.approx(22 * MS + 2 * half(4 * MS), abs=US)
    worded(refusal(whatif(written(*with_one_launch(EXPERTS, 24 * MS)))))


def test_a_pipeline_is_refused_and_what_may_be_one(written, worded):
    rows = [
        ("forward", 0, 5, IN_LINE),
        ("SendRecv", 5, 6, BESIDE),
        ("backward_layer", 6, 9, IN_LINE),
    ]
    given = ([rank_of(rank, rows[rank * skip :], 9 * MS) for rank in range(2)] for skip in (0, 1))
    for case, ranks in zip(("equal ranks", "stages"), given, strict=True):
        worded(refusal(whatif(written(*ranks))), case)
