"""Rules about communication: what each says of a few plain rows, on both sides of its thresholds. Times are ns."""

import pytest

from nsyspipe.findings.communication import comm_bound, comm_slows_compute
from nsyspipe.findings.gradients import compress_gradients, single_bucket, too_many_buckets
from tests.findings.make import (
    NOT_JUDGED,
    case,
    collective,
    evidence,
    kernel,
    link,
    of,
    phase,
    step,
    steps,
    threshold,
    traffic,
    unmatched,
)

UNKNOWN_WAIT = {"wait_ns": None, "transfer_ns": None}


def exposing(*exposed, **more):
    return evidence([step(rank, exposed=own) for rank, own in enumerate(exposed)], **more)


# Exposed 100 and 200 of 1000: 150 per step. Waiting 20 and 0: without it 80 and 200. The phases
# launched 90 + 180 of it in backward and 10 + 0 in forward; 300 - 280 = 20 belongs to no phase.
PHASES = [
    *(phase("backward", 0, exposed_comm_ns=90), phase("forward", 0, exposed_comm_ns=10)),
    *(phase("optimizer", 0, exposed_comm_ns=0), phase("backward", 1, exposed_comm_ns=180)),
]
BOTH = evidence([step(0, exposed=100, hidden=50, wait=20), step(1, exposed=200)], phases=PHASES)
# 40 kernels take 120 instead of 100 each: c = 0.2. Of 60 hidden 60 x 0.26 / 1.26 at most.
SLOWED = evidence([step(exposed=100, hidden=60)], kernels=[kernel("gemm", 40, 4800, 4000)])
# Few of the kernels beside communication can be compared, 500 of 40500, by 2.4: of 90 hidden at
# most 90 x 0.8 / 1.8 = 40.
ALONE = [kernel("gemm", 40, 500, 147), kernel("other", 0, 0, 0) | {"overlapped_ns": 40_000}]
# 300 of 1000 exposed, 260 of it waiting for the other that is there.
WAITS = [step(0, exposed=300, wait=260), step(1, exposed=40)]
# In floating point 103 / 3 is more than 101 / 3 + 2 / 3.
THIRDS = [step(rank, wall=100, exposed=exposed) for rank, exposed in enumerate((50, 50, 3))]
OF_THIRDS = [phase("backward", 0, exposed_comm_ns=101), phase("forward", 1, exposed_comm_ns=2)]
SIDE_BY_SIDE = [phase(name, exposed_comm_ns=60) for name in ("backward", "forward")]

# 100 of 1000 exposed. On the stream that computes are 66 or 67 of the 100.
ON_STREAM = {
    own: evidence(steps(2, exposed=100, comm_on_compute_stream_ns=own)) for own in (66, 67)
}
_OF_MODEL = collective(1, (0, 0), 50) + collective(1, (0, 0), 50, kind="all_gather", seq=1)


def beside_gradients(of_gradients):
    """Return steps with 100 exposed, of which so much is gradients', the rest gathers of another kind."""
    others = 100 - of_gradients
    rows = traffic("data", "all_reduce", *[(of_gradients, 0)] * 2) + traffic(
        "other", "all_gather", *[(others, 0)] * 2
    )
    return evidence(steps(2, exposed=100), _OF_MODEL, traffic=rows)


COMM_BOUND = of(
    comm_bound,
    # Rank 1 has most of it: 200, where rank 0 has 80 and of its 50 hidden 50 x 0.8 / 1.8 at most.
    case("all that hiding it could save", BOTH, saving=200),
    *threshold("5 % of step time", exposing(50, 50), exposing(50, 49)),
    case("no phases", exposing(400), exposed_comm_ns_per_step_by_phase={"no phase": 400}),
    case(
        "no rounding error",
        evidence(THIRDS, phases=OF_THIRDS),
        exposed_comm_ns_per_step_by_phase={"backward": 101 / 3, "forward": 2 / 3},
    ),
    # Two collectives of 60 side by side, launched by two phases: exposed once, 60 in each.
    case("two streams", exposing(60, phases=SIDE_BY_SIDE), saving=60),
    # Gradient accumulation: 200 of 1000 in one step of four is 50 per step.
    case(
        "steps without communication count",
        evidence([step(0, number, exposed=200 * (number == 4)) for number in range(1, 5)]),
        saving=50,
    ),
    case("hidden", evidence(steps(2, hidden=900))),
    case("waiting not known", evidence([step(exposed=300, **UNKNOWN_WAIT)]), saving=300),
    case("waiting is not its business", evidence(WAITS)),  # 40 of 1000
    # A third rank may be later than both.
    case("ranks are missing", evidence(WAITS, world_size=3), saving=300),
    case("what it slows down goes too", SLOWED, saving=pytest.approx(100 + 60 * 0.26 / 1.26)),
    case(
        "a slowdown is assumed", evidence([step(exposed=100, hidden=90)], kernels=ALONE), saving=140
    ),
    # The only step is the capture's first: of 200 exposed 150 are waiting, and 50 are 5 % of 1000.
    case("profilers that start apart", evidence(steps(2, 0, exposed=200, wait=150)), saving=50),
    case("profilers further apart", evidence(steps(2, 0, exposed=200, wait=151))),
    case("two thirds on compute's stream", ON_STREAM[67], comm_on_compute_stream_ns_per_step=67),
    case("less on compute's stream", ON_STREAM[66], comm_on_compute_stream_ns_per_step=66),
    case("half of it gradients", beside_gradients(50), exposed_comm_ns_per_step_by_role=None),
    case(
        "less than half of it gradients",
        beside_gradients(49),
        exposed_comm_ns_per_step_by_role={"data": 49.0, "other": 51.0},
    ),
)


def slowing(*kernels, hidden=220):
    return evidence(steps(2, hidden=hidden), kernels=kernels)


# Rank 0 waits for rank 1, whose kernels begin later too.
LATER = [
    step(0, hidden=226, exposed=100, wait=100, comm_delay_ns=10),
    step(1, hidden=226, comm_delay_ns=20),
]
# Rank 0 waits for rank 1, which has half as much communication beside compute.
WAITS_BESIDE = [step(0, hidden=226, exposed=500, wait=500), step(1, hidden=113)]
OF_RANKS = (kernel("gemm", 10, 150, 100, rank=rank) for rank in range(2))


def beside_waits(wait):
    """Return ranks that wait so much of 100 exposed and 100 hidden, without an equal kernel elsewhere."""
    return evidence(steps(2, exposed=100, hidden=100, wait=wait))


MIXED = (*OF_RANKS, kernel("norm", 30, 800, 800), kernel("alone", 0, 0, 0))
SEVEN = [kernel(f"k{number}", 10, 1000 + 100 * number, 1000) for number in range(1, 8)]
TWICE = [kernel("gemm", 50, 2000, 1000)]
COMM_SLOWS_COMPUTE = of(
    comm_slows_compute,
    # 1100 under communication for 1000 without it: c = 0.1, at most 0.13. Of 226 overlapped 226 x
    # 0.13 / 1.13 = 26 are lost.
    case("what kernels are slower", slowing(*MIXED, hidden=226), saving=26),
    case(
        "what begins later, on the rank with most",
        evidence(LATER, kernels=[kernel("gemm", 30, 1100, 1000)]),
        saving=26 + 1.3 * 20,
    ),
    # Rank 1 sets the pace: 113 x 0.13 / 1.13 of its own; nothing makes up for what rank 0 is slowed
    # by, since it waits.
    case(
        "on a rank that only waits",
        evidence(WAITS_BESIDE, kernels=[kernel("gemm", 30, 1100, 1000)]),
        saving=13,
        overlap_compute_at_most_ns_per_step=113.0,
        saving_ns_per_step_by_part={"slowed_compute": pytest.approx(13)},
    ),
    case(
        *("five by what they lose", slowing(*SEVEN)),
        slowdown_ratio_by_kernel={
            f"k{number}": pytest.approx(number / 10) for number in (7, 6, 5, 4, 3)
        },
    ),
    *(  # slowed by, hidden: of 1000 it must cost 0.25 %, and 2 % must be hidden
        pair
        for fires, silent in [
            ((1020, 220), (1019, 220)),
            ((1100, 28), (1100, 27)),
            ((1200, 20), (1200, 19)),
        ]
        for pair in threshold(
            f"{fires[0] - 1000} of 1000, {fires[1]} hidden",
            slowing(kernel("gemm", 30, fires[0], 1000), hidden=fires[1]),
            slowing(kernel("gemm", 30, silent[0], 1000), hidden=silent[1]),
        )
    ),
    case("faster", slowing(kernel("gemm", 30, 900, 1000))),
    case("30 kernels", slowing(kernel("gemm", 30, 1100, 1000)), fires=True),
    case("29 kernels", slowing(kernel("gemm", 29, 1100, 1000)), NOT_JUDGED),
    case("no equal kernels", slowing(kernel("gemm", 0, 0, 0)), NOT_JUDGED),
    case("no kernels", slowing(), NOT_JUDGED),
    case("no communication", evidence(steps(2), kernels=TWICE)),
    case("none hidden", evidence(steps(2, exposed=500), kernels=TWICE)),
)

SHM = [link("shm", "SHM/direct/direct")]


def compressible(length, exposed=None, *, links=SHM, **more):
    """Return a run of two ranks whose all-reduce takes `length`, of which `exposed` (all, unless told) is exposed."""
    shown = length if exposed is None else exposed
    return evidence(
        steps(2, exposed=shown, hidden=length - shown),
        collective(1, (0, 0), length, **more),
        links=links,
    )


def over_shm(rows, met):
    return evidence(rows, met, links=SHM)


NARROW_AND_LOSS = collective(1, (0, 0), 280, datatype="bf16") + collective(
    1, (300, 300), 320, seq=1
)
WIDE_AND_NARROW = collective(1, (0, 0), 200) + collective(
    1, (300, 300), 500, datatype="bf16", seq=1
)
SHARDED_AND_NORM = collective(1, (0, 0), 280, kind="reduce_scatter") + collective(
    1, (300, 300), 500, seq=1
)
ALL = collective(1, (0, 0), 300)
COMPRESS_GRADIENTS = of(
    compress_gradients,
    # bf16 halves it, PowerSGD leaves next to nothing.
    case("all that is exposed", compressible(300), saving=300),
    # 350 hidden, by how much is not known: 0.8 at most.
    case("what is hidden slows", compressible(500, 150), saving=150 + 350 * 0.8 / 1.8),
    *threshold("a tenth of step time", compressible(100), compressible(99)),
    case("f64", compressible(300, datatype="f64"), fires=True),
    case("bf16", compressible(300, datatype="bf16")),
    case("type not known", compressible(300, datatype=None)),
    case("a wide loss", over_shm(steps(2, exposed=300), NARROW_AND_LOSS)),
    case("what is narrow stays", over_shm(steps(2, exposed=400), WIDE_AND_NARROW), saving=200),
    case("the norm of shards", over_shm(steps(2, exposed=480), SHARDED_AND_NORM)),
    # Rank 0 waits 250 of its 300 for rank 1: 50 transfer.
    case(
        "waiting does not shrink",
        over_shm(
            [step(0, exposed=300, wait=250), step(1, exposed=50)], collective(1, (0, 250), 300)
        ),
    ),
    case(
        "waiting not known",
        over_shm(steps(2, exposed=300, **UNKNOWN_WAIT), unmatched(ALL)),
        saving=300,
    ),
    case("a fast link", compressible(300, links=[link("nvlink", "P2P/CUMEM", "NV18")])),
    case("hidden", compressible(300, 50)),
    case("all-gathers", compressible(300, kind="all_gather")),
    case("one rank", over_shm([step(exposed=300)], collective(1, (0,), 300))),
    *(
        case(f"links {links}", compressible(300, links=links), NOT_JUDGED)
        for links in (None, [], [link("unknown")])
    ),
    case("little over an unknown link", compressible(90, links=None)),
)

# Rank 0 starts its all-reduce at 500, rank 1 at 520, both end at 800: exposed 300 and 280, waiting
# 20 and 0. So 290 are exposed per step, 10 of them waiting, which nothing hides, 280 transfer.
ROWS = [step(0, exposed=300, wait=20), step(1, exposed=280)]
ONE = collective(1, (500, 520), 800)


def backward(*compute):
    return [phase("backward", rank, compute_ns=own) for rank, own in enumerate(compute)]


def beside(*others):
    """Return a step whose large all-reduce takes 285, and others after it: 285 of 300 are 95 %, of 301 less."""
    rows = collective(1, (0,), 285)
    for seq, length in enumerate(others, start=1):
        rows += collective(1, (400 * seq,), 400 * seq + length, seq=seq)
    return evidence([step(exposed=285 + sum(others))], rows)


def hiding(hidden):
    return evidence([step(exposed=300, hidden=hidden)], collective(1, (0,), 300 + hidden))


ACCUMULATING = [step(0, number, exposed=300 * (number == 4)) for number in range(1, 5)]
NORM_BESIDE = collective(1, (0,), 250, kind="all_gather") + collective(1, (400,), 450)
SINGLE_BUCKET = of(
    single_bucket,
    case("what backward could hide", evidence(ROWS, ONE, phases=backward(600, 600)), saving=280),
    # Where backward is not known, any compute might hide: 700 and 720, more than there is to hide.
    *(
        case(what, evidence(ROWS, ONE, phases=phases), saving=saving)
        for what, phases, saving in [
            ("short backward", backward(200, 100), 150),
            ("one rank's not known", backward(200, None), 200),
            ("not known", backward(None, None), 280),
            ("not marked", [phase("forward", compute_ns=50)], 280),
            ("no phases", [], 280),
        ]
    ),
    case(
        "all compute is the bound",
        evidence([step(exposed=600)], collective(1, (0,), 600)),
        saving=400,
    ),
    *threshold("a tenth hidden", hiding(33), hiding(34)),  # 9.9 % of 333, 10.2 % of 334
    *threshold(
        "1 % of step time",
        *(evidence([step(exposed=own)], collective(1, (0,), own)) for own in (10, 9)),
    ),
    # The loss is averaged once per step: 295 of 300 are waiting for the other rank, 5 transfer.
    case(
        "a loss that waits",
        evidence(
            [step(0, exposed=300, wait=295), step(1, exposed=5)], collective(1, (500, 795), 800)
        ),
    ),
    *threshold("a loss and a norm, and one more", beside(5, 5), beside(5, 5, 5)),
    *threshold("95 %", beside(15), beside(16)),
    case("FSDP with a norm", evidence([step(exposed=300)], NORM_BESIDE)),
    case("in one step of four", evidence(ACCUMULATING, collective(4, (0,), 300)), saving=75),
    case(
        "waiting not known",
        evidence([one | UNKNOWN_WAIT | {"exposed_wait_ns": None} for one in ROWS], ONE),
        saving=290,
    ),
    case("of no step", exposing(300)),
    case("no compute to hide it", evidence([one | {"compute_ns": 0} for one in ROWS], ONE)),
)

WALL, FLOOR, PLENTY = 10_000_000, 100_000, 3_000_000


def all_reduces(n, transfer=FLOOR, *, first=0, **more):
    starts = [200_000 * at for at in range(n)]
    return [
        row
        for at, t in enumerate(starts)
        for row in collective(1, (t, t), t + transfer, seq=first + at, **more)
    ]


def buckets(rows, *numbers, exposed=PLENTY):
    return evidence(steps(2, *numbers, wall=WALL, exposed=exposed), rows)


AT_LIMITS = buckets(all_reduces(20, message_bytes=4_000_000), exposed=WALL // 100)
TOO_MANY_BUCKETS = of(
    too_many_buckets,
    # 20 of 100 us are 2 ms, 3 ms are exposed. The rows of two ranks are counted per rank.
    case("what they leave exposed", buckets(all_reduces(20)), saving=2_000_000),
    case("no more than is exposed", buckets(all_reduces(20), exposed=300_000), saving=300_000),
    case("all thresholds at once", AT_LIMITS, median_message_bytes=4_000_000),
    case("19 of them", buckets(all_reduces(19))),
    case("longer than the floor", buckets(all_reduces(20, FLOOR + 1))),
    case("over 4 MB each", buckets(all_reduces(20, message_bytes=4_000_001))),
    case("less than 1 %", buckets(all_reduces(20), exposed=WALL // 100 - 1)),
    case("10 per step", buckets(all_reduces(20), 1, 2)),
    case("all-gathers", buckets(all_reduces(20, kind="all_gather"))),
    case("one rank", evidence(steps(1, wall=WALL, exposed=PLENTY), all_reduces(20)[::2])),
    case(
        "a few large ones",
        buckets(all_reduces(30, 40_000) + all_reduces(5, 180_000, first=30)),
        saving=35 * 40_000,
    ),
    # Hybrid sharding: per layer a reduce-scatter within the host, an all-reduce across hosts.
    case(
        "sharded training",
        buckets(all_reduces(24) + all_reduces(24, first=24, kind="reduce_scatter")),
    ),
    case("not matched", buckets(unmatched(all_reduces(20))), NOT_JUDGED),
    case("19 not matched", buckets(unmatched(all_reduces(19)))),
    case("no communication", buckets([], exposed=0)),
)

CASES = COMM_BOUND + COMM_SLOWS_COMPUTE + COMPRESS_GRADIENTS + SINGLE_BUCKET + TOO_MANY_BUCKETS
