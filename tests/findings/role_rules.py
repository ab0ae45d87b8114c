"""Rules about one kind of parallelism: what each says of a few plain rows, and that it is silent of all others. Times are ns."""

import pytest

from nsyspipe.findings import gradients, parallelism
from nsyspipe.findings.communication import comm_bound
from nsyspipe.findings.host import launch_bound
from nsyspipe.findings.model import Recording
from nsyspipe.findings.slow_link import slow_link
from nsyspipe.findings.straggler import straggler
from tests.findings.make import (
    NOT_JUDGED,
    case,
    collective,
    evidence,
    link,
    of,
    step,
    steps,
    threshold,
    traffic,
)

MB = 10**6
NOTHING_KNOWN = Recording()


def using(role, kind, *exposed_and_wait, hidden=0, **more):
    """Return two ranks, each with one collective of a role per step of 1000: so much of it exposed, and waiting."""
    given = exposed_and_wait or ((200, 0), (200, 0))
    rows = [
        step(rank, exposed=one, wait=wait, hidden=hidden) for rank, (one, wait) in enumerate(given)
    ]
    rows = [row | {"wait_ns": wait} for row, (_, wait) in zip(rows, given, strict=True)]
    # The one that comes last starts when the others have waited.
    starts = [max(wait for _, wait in given) - wait for _, wait in given]
    last = max(start + own for start, (own, _) in zip(starts, given, strict=True))
    return evidence(
        rows,
        collective(1, starts, last + hidden, kind=kind),
        traffic=traffic(role, kind, *given),
        **more,
    )


def mixed(*uses, **more):
    """Return a step of each of two ranks that all-reduces for these roles, in order: (role, length), all exposed."""
    total = sum(length for _, length in uses)
    met, carried, at = [], [], 0
    for number, (role, length) in enumerate(uses):
        met += collective(1, (at, at), at + length, seq=number, comm_id=f"{number:#x}")
        carried += traffic(role, "all_reduce", (length, 0), (length, 0), comm_id=f"{number:#x}")
        at += length
    return evidence(steps(2, exposed=total), met, traffic=carried, **more)


KINDS = {
    "data": "all_reduce",
    "tensor": "all_reduce",
    "sharded": "reduce_scatter",
    "expert": "all_to_all",
}
KINDS |= {"pipeline": "send_recv", "other": "all_gather"}
ANOTHER = {role: using(role, kind) for role, kind in KINDS.items()}


def silent(*roles):
    return [
        case(f"no {'or '.join(roles)}, but {role}", given)
        for role, given in ANOTHER.items()
        if role not in roles
    ]


def beside_hidden_gradients(beside_compute):
    """Return tensor parallelism, 300 exposed and so much beside compute, and gradients: beside compute 360 in all."""
    end = 300 + beside_compute
    met = collective(1, (0, 0), end, seq=0, comm_id="0x0", exposed_ns=300)
    met += collective(1, (end, end), 660, seq=1, comm_id="0x1", exposed_ns=0)
    exposed, hidden = (300, 0), (0, 0)
    carried = traffic("tensor", "all_reduce", exposed, exposed, comm_id="0x0")
    carried += traffic("data", "all_reduce", hidden, hidden, comm_id="0x1")
    return evidence(steps(2, exposed=300, hidden=360), met, traffic=carried)


# 50 of 1000 are 5 %. Rank 0 waits 150 of its 200 for rank 1, whose 50 are all transfer: 50 on
# either.
WAITING = (200, 150), (50, 0)
TENSOR_COMM = of(
    parallelism.tensor_comm,
    case(
        "all that is exposed",
        using("tensor", "all_reduce"),
        saving=200,
        exposed_ns_per_step=200,
        calls_per_step=1,
    ),
    case("sequence parallel already", using("tensor", "reduce_scatter"), saving=200),
    case(
        "waiting is not its business",
        using("tensor", "all_reduce", *WAITING),
        saving=50,
        exposed_ns_per_step=125,
    ),
    *threshold(
        "5 % of step time", *(using("tensor", "all_reduce", (own, 0), (own, 0)) for own in (50, 49))
    ),
    # Of 360 hidden at most 0.8 / 1.8.
    case(
        "what it slows down",
        using("tensor", "all_reduce", (100, 0), (100, 0), hidden=360),
        saving=100 + 160,
    ),
    # At most 0.8 / 1.8 of what runs beside tensor parallelism itself.
    *(
        case(
            f"{hidden} of the compute beside communication is its own",
            beside_hidden_gradients(hidden),
            saving=300 + slowed,
            assumed_slowdown_ratio=assumed,
            saving_ns_per_step_by_part={
                "exposed_transfer": 300.0,
                "slowed_compute": pytest.approx(slowed),
            },
        )
        for hidden, slowed, assumed in ((0, 0, None), (90, 40, 0.8), (360, 160, 0.8))
    ),
    # 300 of tensor parallelism and 100 of gradients, all exposed: 300 can go.
    case("beside gradients", mixed(("tensor", 300), ("data", 100)), saving=300),
    case("mostly hidden", mixed(("tensor", 40), ("data", 300))),
    *silent("tensor"),
)

GATHER, SCATTER = ("sharded", "all_gather"), ("sharded", "reduce_scatter")
SHARD_PREFETCH = of(
    parallelism.shard_prefetch,
    case("what is exposed", using(*GATHER), saving=200),
    *threshold("5 % of step time", *(using(*GATHER, (own, 0), (own, 0)) for own in (50, 49))),
    case("waiting for a late rank", using(*GATHER, (200, 160), (40, 0))),
    *silent("sharded"),
    case("reduce-scatters", using(*SCATTER)),
    case("tensor's all-gathers", using("tensor", "all_gather")),
)


def gathered(*micro_batches, lasting=100):
    """Return a step with all-gathers, one after the other, by the backward pass that launched each; None: forward."""
    met = []
    for seq, number in enumerate(micro_batches):
        at = seq * lasting
        met += collective(1, (at, at), at + lasting, kind="all_gather", seq=seq, micro_batch=number)
    total = lasting * len(micro_batches)
    cost = (total, 0)
    return evidence(
        steps(2, exposed=total), met, traffic=traffic(*GATHER, cost, cost, calls=len(micro_batches))
    )


SHARD_REGATHER = of(
    parallelism.shard_regather,
    # Two of three again in backward, as fully_shard does it: the last unit's stay.
    case(
        "again in backward", gathered(None, None, None, 0, 0), saving=200, backward_calls_per_step=2
    ),
    case("in each micro-batch", gathered(None, None, 0, None, None, 1), saving=200),
    *threshold(
        "a quarter of them", gathered(None, None, None, 0), gathered(None, None, None, None, 0)
    ),
    case("only in forward", gathered(None, None, None)),
    case("hardly exposed", gathered(None, 0, lasting=24)),
    *silent("sharded"),
)


def shards(n, n_bytes=MB, *, role="sharded"):
    """Return so many collectives of 100 us, 200 us apart, in steps of 10 ms."""
    met = []
    for seq in range(n):
        kind, at = ("all_gather", "reduce_scatter")[seq % 2], 200_000 * seq
        met += collective(
            1, (at, at), at + 100_000, kind=kind, seq=seq, comm_id="0x1", message_bytes=n_bytes
        )
    cost = (n * 50_000, 0)
    kinds = "all_gather", "reduce_scatter"
    carried = [
        row for kind in kinds for row in traffic(role, kind, cost, cost, comm_id="0x1", calls=n / 2)
    ]
    return evidence(steps(2, wall=10 * MB, exposed=n * 100_000), met, traffic=carried)


SMALL_SHARDS = of(
    parallelism.small_shards,
    # 20 of 100 us.
    case("their latency", shards(20), saving=2 * MB, calls_per_step=20, median_message_bytes=MB),
    case("19 of them", shards(19)),
    case("over 4 MB each", shards(20, 4 * MB + 1)),
    case("of sizes not known", shards(20, None), NOT_JUDGED),
    case("tensor's", shards(20, role="tensor")),
    *silent("sharded"),
)


def stages(*bubbles, comm_id="0x1", recording=NOTHING_KNOWN, **idle):
    """Return stages that wait so long for each other in steps of 1000; the rest is compute and idle time, by its causes."""
    rows = [step(rank, exposed=own, wait=own, **idle) for rank, own in enumerate(bubbles)]
    met = collective(1, [0] * len(bubbles), max(bubbles) + 1, kind="send_recv", comm_id=comm_id)
    costs = [(own, own) for own in bubbles]
    carried = traffic("pipeline", "send_recv", *costs, comm_id=comm_id)
    return evidence(rows, met, traffic=carried, recording=recording)


UNKNOWN_SENDS = case("sends of equal ranks", using("other", "send_recv"), NOT_JUDGED)
PIPELINE_BUBBLE = of(
    parallelism.pipeline_bubble,
    # Rank 1 works 800 of 1000, rank 0 700: no step can be shorter than 800.
    case(
        "the stage with most work sets the pace",
        stages(300, 200),
        saving=200,
        bubble_ns_per_step=250,
        bubble_share=0.25,
    ),
    case("idle time may stand in it", stages(300, 200, idle_blocked_ns=100), saving=300),
    # More micro-batches would be more to launch.
    case("not what hosts take to launch", stages(300, 200, idle_launch_ns=100), saving=200),
    case("but their pauses", stages(300, 200, idle_launch_ns=100, idle_pause_ns=60), saving=260),
    # No schedule launches the step in less than 801; the stages work for 700 and 800.
    case(
        "no more than lies above launching",
        stages(300, 200, host_launch_ns=801),
        saving=199,
        is_launch_bound=True,
        saving_ns_per_step_by_part={"waiting": 200.0, "left_for_launching": -1.0},
        fastest_launch_ns_per_step=801.0,
        step_time_ns_per_step=1000.0,
    ),
    case(
        "launching takes as long as work",
        stages(300, 200, host_launch_ns=800),
        saving=200,
        is_launch_bound=None,
        saving_ns_per_step_by_part={"waiting": 200.0},
    ),
    *threshold("5 % of step time", stages(50, 50), stages(50, 49)),
    # Two pipelines of two stages: each rank is in one.
    case(
        "per rank",
        evidence(
            [step(rank, exposed=200, wait=200) for rank in range(4)],
            [],
            traffic=[
                row | {"rank": row["rank"] + 2 * at}
                for at in range(2)
                for row in traffic(
                    "pipeline", "send_recv", (200, 200), (200, 200), comm_id=f"{at + 1:#x}"
                )
            ],
        ),
        bubble_ns_per_step=200,
        saving=200,
    ),
    case("calls not known", stages(300, 200, comm_id="send_recv/0"), NOT_JUDGED),
    case(
        "waiting not known",
        evidence(
            steps(2, exposed=300),
            traffic=traffic("pipeline", "send_recv", (300, None), (300, None), comm_id="0x1"),
        ),
        NOT_JUDGED,
    ),
    UNKNOWN_SENDS,
    *silent("pipeline"),
)

EXPERT_COMM = of(
    parallelism.expert_comm,
    case("what is exposed", using("expert", "all_to_all"), saving=200),
    *threshold(
        "5 % of step time", *(using("expert", "all_to_all", (own, 0), (own, 0)) for own in (50, 49))
    ),
    UNKNOWN_SENDS,
    *silent("expert"),
)


def passes(*sizes, kind="all_reduce", role="data", n_steps=3, length=100):
    met = []
    for number in range(1, n_steps + 1):
        at, seq = 0, 0
        for micro_batch, of_pass in enumerate(sizes):
            for size in of_pass:
                more = {
                    "kind": kind,
                    "seq": seq,
                    "micro_batch": micro_batch,
                    "message_bytes": size and size * MB,
                }
                met += collective(number, (at, at), at + length, **more)
                at, seq = at + length, seq + 1
    total = length * sum(map(len, sizes))
    rows = steps(2, *range(1, n_steps + 1), exposed=total)
    return evidence(rows, met, traffic=traffic(role, kind, (total, 0), (total, 0)))


NO_SYNC = of(
    gradients.no_sync,
    # Two of 100 in each of three passes: those of the first two could go.
    case(
        "in every pass",
        passes((25, 5), (25, 5), (25, 5)),
        saving=400,
        n_backward_passes=3,
        messages_per_step=6,
        bytes_per_step=90 * MB,
    ),
    case("a loss in the last", passes((25,), (25, 0.000004)), saving=100),
    case("sharded", passes((25,), (25,), kind="reduce_scatter", role="sharded"), saving=100),
    *threshold("1 % of step time", *(passes((25,), (25,), length=own) for own in (10, 9))),
    case("in the last alone", passes((), (), (25, 5))),
    case("one pass", passes((25, 5))),
    case("not in the first", passes((), (25,), (25,))),
    case("parts of one backward", passes((25, 25), (25, 5))),
    case("two models", passes((25, 5), (8,))),
    case("sizes not known", passes((None,), (None,)), NOT_JUDGED),
    case(
        "sizes not known, as many",
        passes((None, None), (None, None)),
        saving=200,
        messages_per_step=4,
        bytes_per_step=None,
    ),
    case("sizes not known, not as many", passes((None, None), (None,))),
    case("sizes not known, one pass", passes((None, None))),
    case("layers' all-reduces", passes((25,), (25,), role="tensor")),
    *silent("data", "sharded"),
)


def across(hosts, own=100, *, role="data", kind="all_reduce"):
    met = collective(1, [0] * len(hosts), own, kind=kind)
    costs = [(own, 0)] * len(hosts)
    named = {rank: host for rank, host in enumerate(hosts) if host}
    rows = steps(len(hosts), exposed=own)
    return evidence(
        rows, met, traffic=traffic(role, kind, *costs), hosts=named, n_hosts=len(set(hosts))
    )


FLAT_ALL_REDUCE = of(
    gradients.flat_all_reduce,
    case(
        "two hosts of two",
        across("aabb"),
        saving=100,
        n_hosts=2,
        n_ranks=4,
    ),
    *threshold("5 % of step time", across("aabb", 50), across("aabb", 49)),
    case("one host", across("aaaa")),
    case("a rank per host", across("abcd")),
    case("hosts not known", across(["a", "a", None, None])),
    case("shards across hosts", across("aabb", role="sharded", kind="reduce_scatter")),
    *silent("data"),
)

OF_TENSOR, OF_EXPERTS = using("tensor", "all_reduce"), using("expert", "all_to_all")
UNKNOWN = using("other", "all_reduce")
LATE = [step(0, exposed=300, wait=200, idle_launch_ns=0), step(1, exposed=100, idle_launch_ns=200)]
WAITS = collective(1, (100, 300), 400)
IN_LATE = {role: traffic(role, "all_reduce", (300, 200), (100, 0)) for role in ("tensor", "data")}
BESIDE_LATE = traffic("other", "all_gather", (0, 0), (0, 0), comm_id="0x9")
OF_LATE = {
    role: evidence(LATE, WAITS, traffic=rows + BESIDE_LATE) for role, rows in IN_LATE.items()
}
OF_TENSOR_ALONE = evidence(LATE, WAITS, traffic=IN_LATE["tensor"])
SHM = [link("shm", "SHM/direct/direct")]
PIPED = stages(300, 300, idle_launch_ns=100)
PAUSING = stages(300, 300, idle_launch_ns=100, idle_pause_ns=60)
# The stage that waits least idles, while the other waits for it.
WAITS_LEAST = evidence(
    [step(0, exposed=500, wait=500), step(1, exposed=50, wait=50, idle_launch_ns=300)],
    traffic=traffic("pipeline", "send_recv", (500, 500), (50, 50), comm_id="0x1"),
)
NORM = collective(1, (0, 400), 500, comm_id="0x2", seq=1)
STAGES_AND_NORM = evidence(
    [step(0, exposed=500, wait=400), step(1, exposed=100)],
    collective(1, (0, 0), 10, kind="send_recv", comm_id="0x1") + NORM,
    traffic=traffic("pipeline", "send_recv", (10, 0), (10, 0), comm_id="0x1")
    + traffic("other", "all_reduce", (490, 400), (90, 0), comm_id="0x2", n_bytes=4),
)
ROLES_OF_OTHERS = [
    *of(
        comm_bound,
        case(
            "of tensor parallelism", OF_TENSOR, exposed_comm_ns_per_step_by_role={"tensor": 200.0}
        ),
        case("of experts", OF_EXPERTS, exposed_comm_ns_per_step_by_role={"expert": 200.0}),
        case("of gradients", using("data", "all_reduce"), exposed_comm_ns_per_step_by_role=None),
        # 133 of 200 are less than two thirds of them.
        case(
            "of two roles",
            mixed(("tensor", 133), ("data", 67)),
            exposed_comm_ns_per_step_by_role={"data": 67.0, "tensor": 133.0},
        ),
        case(
            "two thirds of one",
            mixed(("tensor", 134), ("data", 66)),
            exposed_comm_ns_per_step_by_role={"data": 66.0, "tensor": 134.0},
        ),
    ),
    *of(
        slow_link,
        case(
            "carries layers' traffic",
            using("tensor", "all_reduce", links=SHM),
            link_kind="shm",
            saving=200,
        ),
        case(
            "carries gradients", using("data", "all_reduce", links=SHM), link_kind="shm", saving=200
        ),
    ),
    *of(
        straggler,
        *(
            case(what, given, rank=1, launched_late_ns_per_step=200.0)
            for what, given in {
                "in layers": OF_LATE["tensor"],
                "in layers, where all of it is": OF_TENSOR_ALONE,
                "of gradients": OF_LATE["data"],
            }.items()
        ),
        # The norm of all stages meets when the last of them is done.
        case("a norm of all stages", STAGES_AND_NORM),
        case(
            "calls not known",
            evidence(LATE, collective(1, (0, 0), 10, kind="send_recv") + WAITS),
            NOT_JUDGED,
        ),
    ),
    *of(
        launch_bound,
        case("others wait in layers", OF_LATE["tensor"], rank=1),
        # Of the 300 that each waits, 100 are what the other's launches can have made.
        case("in a pipeline", PIPED, saving=200, bubble_ns_per_step=300),
        case("mostly pauses in a pipeline", PAUSING, saving=None),
        case(
            "of the stage that waits least",
            WAITS_LEAST,
            saving=300,
            rank=1,
            judged_idle_launch_ns_per_step=300,
        ),
    ),
    *of(
        gradients.single_bucket,
        case("layers'", OF_TENSOR),
        case("whose is not known", UNKNOWN, NOT_JUDGED),
    ),
    *of(
        gradients.too_many_buckets,
        *(
            case(
                f"{role}'s",
                evidence(
                    steps(2, wall=10 * MB, exposed=3 * MB),
                    [
                        row
                        for at in range(20)
                        for row in collective(1, (at, at), at + 50_000, seq=at)
                    ],
                    traffic=traffic(role, "all_reduce", (3 * MB, 0), (3 * MB, 0)),
                ),
                expected,
            )
            for role, expected in [("tensor", None), ("other", NOT_JUDGED)]
        ),
    ),
    *of(
        gradients.compress_gradients,
        case("layers'", using("tensor", "all_reduce", links=SHM)),
        case("whose is not known", using("other", "all_reduce", links=SHM), NOT_JUDGED),
        case(
            "a small one",
            evidence(
                steps(2, exposed=300),
                collective(1, (0, 0), 300),
                links=SHM,
                traffic=traffic("other", "all_reduce", (300, 0), (300, 0), n_bytes=4),
            ),
        ),
    ),
    *of(
        gradients.grad_copy,
        *(
            case(
                f"{role}'s",
                evidence(
                    [
                        step(rank, exposed_grad_copy_ns=50, grad_copy_bytes=16 * MB)
                        for rank in range(2)
                    ],
                    collective(1, (0, 0), 9),
                    traffic=traffic(role, "all_reduce", (9, 0), (9, 0)),
                ),
                expected,
            )
            for role, expected in [("tensor", None), ("other", NOT_JUDGED)]
        ),
    ),
]

CASES = [
    *(
        *TENSOR_COMM,
        *SHARD_PREFETCH,
        *SHARD_REGATHER,
        *SMALL_SHARDS,
        *PIPELINE_BUBBLE,
        *EXPERT_COMM,
        *NO_SYNC,
    ),
    *(*FLAT_ALL_REDUCE, *ROLES_OF_OTHERS),
]
