"""Rules about idle devices, copies of gradients and the profiler: what each says of a few plain rows. Times are ns."""

from msgspec.structs import replace

from nsyspipe.findings.gradients import ddp_single_gpu, grad_copy
from nsyspipe.findings.host import (
    input_bound,
    launch_bound,
    pageable_copy,
    sync_bound,
)
from nsyspipe.findings.model import Recording
from nsyspipe.findings.profiler import profiler_overhead
from nsyspipe.model.schema import IDLE_CAUSES
from tests.findings.make import (
    FIRES,
    NOT_JUDGED,
    case,
    collective,
    evidence,
    kernel,
    of,
    phase,
    step,
    steps,
    threshold,
)

DATA = [phase("data"), phase("forward")]


def idle(cause, *by_rank, calls=None, phases=DATA, **more):
    """Return ranks that idle so long for a cause; the others wait for the one that idles most."""
    most = max(own or 0 for own in by_rank)
    given = enumerate(zip(by_rank, [most - (own or 0) for own in by_rank], strict=True))
    rows = [
        step(rank, **{cause: own}, exposed=wait, wait=wait, **more) for rank, (own, wait) in given
    ]
    return evidence(rows, phases=phases, blocked_ns_by_call=calls or {})


def per_step(**causes):
    figures = {f"{name}_per_step": causes.get(name, 0) for name in IDLE_CAUSES}
    return {"idle_ns_per_step": sum(figures.values())} | figures


# With 30 of input and 50 of launches.
MADE_BY_INPUT = {
    "idle_launch_ns": 50,
    "idle_made_by_input_ns": 60,
    "idle_made_by_copies_ns": 10,
    "exposed_blocking_copy_ns": 5,
}
INPUT, LAUNCH, BLOCKED = "idle_input_ns", "idle_launch_ns", "idle_blocked_ns"
# In step 1 rank 0 idles 200 and rank 1 waits, in step 2 the other way round.
IN_TURN = [
    *(step(0, 1, idle_input_ns=200), step(1, 1, exposed=200, wait=200)),
    *(step(0, 2, exposed=200, wait=200), step(1, 2, idle_input_ns=200)),
]
# 1000 - 300 - 100 of rank 0, 1000 - 100 - 250 of rank 1, and 700 - 60 of rank 2: the step takes
# 650.
OWN_INPUT = [
    step(0, idle_input_ns=300, exposed=200, wait=200),
    step(1, idle_input_ns=100, exposed=250, wait=250),
    step(2, idle_input_ns=60, wall=700),
]
INPUT_BOUND = of(
    input_bound,
    case("the data phase", idle(INPUT, 300, idle_launch_ns=50, idle_blocked_ns=10), saving=300),
    *threshold("2 % of step time", idle(INPUT, 20), idle(INPUT, 19)),
    *(
        case(
            f"who is waited for, {by_rank}",
            idle(INPUT, *by_rank),
            saving=max(by_rank),
            rank=by_rank.index(max(by_rank)),
        )
        for by_rank in ((0, 20, 500), (20, 300), (0, 0, 0, 900), (40, 0, 40))
    ),
    # Rank 0 idles 300 for input, and still waits 100 for rank 1, which computes.
    case(
        "who waits longer", evidence([step(0, idle_input_ns=300, exposed=100, wait=100), step(1)])
    ),
    case("in turn", evidence(IN_TURN), saving=200),
    # Rank 0 waits for nobody; rank 1 waits 150: no rank gets faster than its own work.
    case(
        "own work",
        evidence([step(0, idle_input_ns=300), step(1, idle_input_ns=100, exposed=150, wait=150)]),
        saving=250,
    ),
    case(
        "waiting not known: the middle rank, and the one with most",
        evidence(
            [step(rank, idle_input_ns=own, wait_ns=None) for rank, own in enumerate((0, 20, 500))]
        ),
        saving=500,
        rank=None,
    ),
    # Rank 0 computes 250 more than rank 1, which waits 300: 50 of them for that input.
    case(
        "waiting that another cause made",
        evidence([step(0, idle_input_ns=50), step(1, exposed=300, wait=300)]),
        saving=50,
    ),
    case("no rank waits for its own input", evidence(OWN_INPUT), saving=350),
    case(
        "ranks are missing",
        evidence(
            [step(0, idle_input_ns=300), step(1, idle_input_ns=100, exposed=200, wait=200)],
            world_size=3,
        ),
        saving=300,
    ),
    *(
        case(
            f"{between} between steps",
            idle(INPUT, 300, idle_between_steps_ns=between),
            saving=300,
            idle_between_steps_ns_per_step=between,
        )
        for between in (200, 150, 0)
    ),
    case("launches are late", evidence(steps(1, idle_launch_ns=500))),
    case("what loading and its copies make", idle(INPUT, 30, **MADE_BY_INPUT), saving=75),
    case(
        "no more idle time than there is",
        idle(INPUT, 30, **MADE_BY_INPUT | {"idle_launch_ns": 20}),
        saving=55,
    ),
    case(
        "what they make, no waiting known, on the worst rank",
        evidence(
            [
                step(0, idle_input_ns=60, wait_ns=None),
                step(1, idle_input_ns=30, wait_ns=None, **MADE_BY_INPUT),
            ]
        ),
        saving=75,
        saving_ns_per_step_by_part={"idle": 70.0, "copies": 5.0},
    ),
)

# Rank 1, which waits, pauses.
OTHERS_PAUSE = [
    step(0, idle_launch_ns=100, idle_pause_ns=0),
    step(1, exposed=100, wait=100, idle_launch_ns=50, idle_pause_ns=50, compute_ns=850),
]
# Rank 1 waits least in two of three steps and idles for nothing in them; 600 of rank 0 in the third
# are all there is.
EACH_OTHER = [
    step(
        rank,
        number,
        wait=wait[rank],
        exposed=wait[rank],
        idle_launch_ns=600 * (rank == 0 and number == 3),
    )
    for number, wait in enumerate([(300, 200), (300, 200), (200, 300)], start=1)
    for rank in range(2)
]
# Process groups are not known: rank 0 idles, and any communication of the others may be waiting for
# it.
WAIT_NOT_KNOWN = dict.fromkeys(["wait_ns", "exposed_wait_ns", "transfer_ns"])


def in_unknown_groups(*idle_and_exposed):
    """Return ranks by their idle time and exposed communication, of process groups that are not known."""
    rows = [
        step(rank, idle_launch_ns=own, exposed=comm, host_launch_ns=500)
        for rank, (own, comm) in enumerate(idle_and_exposed)
    ]
    return evidence([row | WAIT_NOT_KNOWN for row in rows], phases=DATA, are_groups_known=False)


def of_hosts(*launch_ns, idle_ns):
    """Return steps of 1000 of hosts that launch for so long; a rank idles so in each step, and waits 600 where it does not."""
    rows = [
        step(
            rank,
            number,
            **{LAUNCH: own},
            host_launch_ns=launch_ns[rank],
            exposed=0 if own else 600,
            wait=0 if own else 600,
        )
        for rank, of_rank in enumerate(idle_ns)
        for number, own in enumerate(of_rank, start=1)
    ]
    return evidence(rows, phases=DATA)


def with_optimizer(functor):
    kernels = [kernel(f"multi_tensor_apply_kernel [{functor}]", 0, 0, 0)]
    return evidence([step(idle_launch_ns=250)], phases=DATA, kernels=kernels)


NO_IDLE = dict.fromkeys(["idle_ns", "exposed_memory_ns", *IDLE_CAUSES])
LAUNCH_BOUND = of(
    launch_bound,
    case("want of launches", idle(LAUNCH, 250, idle_dependency_ns=30), saving=250),
    *(
        case(
            f"pauses of {pause}",
            idle(LAUNCH, 250, idle_pause_ns=pause),
            saving=250,
            idle_pause_ns_per_step=pause,
        )
        for pause in (125, 63, 62, None)
    ),
    # What is fused already is not advised.
    *(
        case(f"an optimizer of {functor}", with_optimizer(functor), saving=250)
        for functor in (
            "FusedAdamMathFunctor",
            "FusedSgdMathFunctor",
            "BinaryOpListAlphaFunctor",
            "AdamFunctor",
        )
    ),
    case("pauses of another rank", evidence(OTHERS_PAUSE, phases=DATA), saving=100, rank=0),
    *threshold("2 % of step time", idle(LAUNCH, 20), idle(LAUNCH, 19)),
    *(
        case(f"who is waited for, {by_rank}", idle(LAUNCH, *by_rank), saving=900)
        for by_rank in ((20, 900), (900, 0, 20), (0, 900), (900, 0, 0))
    ),
    case("each waits for the other", evidence(EACH_OTHER, phases=DATA), rank=0),
    case(
        "of several hosts the one",
        evidence(
            [step(0, exposed=900, wait=900), step(1, **{LAUNCH: 900})],
            phases=DATA,
            n_hosts=2,
            hosts={0: "a", 1: "b"},
        ),
        rank=1,
    ),
    case(
        "all idle alike",
        idle(LAUNCH, 300, 290),
        rank=0,
        saving_ns_per_step_by_part={"idle_for_launches": 300.0},
    ),
    # Left are 1000 - 600 - 50, 1000 - 50 - 600 and 1000 - 650, what the other two idle together.
    case(
        "of unknown groups each rank that idles",
        in_unknown_groups((600, 100), (50, 900), (0, 700)),
        saving=650,
        n_steps_idle_for_launches_by_rank={"0": 1, "1": 1},
        slower_ranks=[],
    ),
    # Rank 1 launches in 30 more than rank 0, of steps of 1000: 3 %.
    case(
        "a slower host, for which others wait",
        of_hosts(870, 900, idle_ns=([0] * 4, [600] * 4)),
        slower_ranks=[1],
    ),
    case(
        "a host hardly slower",
        of_hosts(871, 900, idle_ns=([0] * 4, [600] * 4)),
        slower_ranks=[],
        n_steps_idle_for_launches_by_rank={"1": 4},
        host_launch_ns_per_step_by_rank={"0": 871.0, "1": 900.0},
    ),
    case(
        "the fastest host idles",
        of_hosts(900, 930, idle_ns=([600] * 4, [0] * 4)),
        slower_ranks=[],
        n_steps_idle_for_launches_by_rank={"0": 4},
    ),
    case(
        "the fastest host idles, but devices work longer",
        of_hosts(300, 330, idle_ns=([600] * 4, [0] * 4)),
        slower_ranks=[],
        n_steps_idle_for_launches_by_rank={"0": 4},
    ),
    case(
        "in turn, and one host is slower",
        of_hosts(900, 930, idle_ns=([600, 600, 600, 0], [0, 0, 0, 600])),
        slower_ranks=[1],
        n_steps_idle_for_launches_by_rank={"0": 3, "1": 1},
    ),
    # A rank counts that idles for 20 in a quarter of the steps.
    case(
        "one in a quarter of the steps",
        of_hosts(900, 930, idle_ns=([20, 0, 0, 0], [600] * 4)),
        n_steps_idle_for_launches_by_rank={"0": 1, "1": 4},
    ),
    case(
        "one in a quarter of the steps, not quite",
        of_hosts(900, 930, idle_ns=([19, 0, 0, 0], [600] * 4)),
        n_steps_idle_for_launches_by_rank={"1": 4},
    ),
    case(
        "launch times not known",
        of_hosts(None, None, idle_ns=([0] * 4, [600] * 4)),
        slower_ranks=None,
        rank=1,
    ),
    # Left are 1000 - 600 and 1000 - 100: rank 1 communicates too little to have waited longer.
    case(
        "of unknown groups no more than communication",
        in_unknown_groups((600, 0), (0, 100), (0, 700)),
        saving=100,
    ),
    *threshold(
        "of unknown groups 2 % of a rank's own step",
        in_unknown_groups((0, 900), (20, 0), (0, 900)),
        in_unknown_groups((0, 900), (19, 0), (0, 900)),
    ),
    case("no phases, no pauses", idle(LAUNCH, 250, phases=[]), saving=250),
    case("no phases", idle(LAUNCH, 250, phases=[], idle_pause_ns=63), idle_pause_ns_per_step=63),
    case(
        "no data phase",
        idle(LAUNCH, 250, phases=[phase("forward")], idle_pause_ns=125),
        idle_pause_ns_per_step=125,
    ),
    *(
        case(f"idle for {cause}", idle(LAUNCH, 0, **{f"idle_{cause}_ns": 300}))
        for cause in ("input", "blocked", "dependency")
    ),
    case("1.9 % of unknown cause", idle(LAUNCH, 300, idle_unknown_ns=19), FIRES),
    case("2 % of unknown cause", idle(LAUNCH, 300, idle_unknown_ns=20), NOT_JUDGED),
    *(
        case(f"{missing} not known", evidence([step(**{missing: None})]), NOT_JUDGED)
        for missing in (LAUNCH, "idle_unknown_ns")
    ),
    # 25 % of the step idles before operations without a launch; input-bound fires nevertheless.
    case(
        "what is missing is named",
        evidence([step(idle_input_ns=300, idle_unknown_ns=250)]),
        NOT_JUDGED,
    ),
    case("no copies", evidence(steps(2, **NO_IDLE)), NOT_JUDGED),
    case("not on one rank", idle(LAUNCH, 300, None), NOT_JUDGED),
)

CALLS = {"cudaStreamSynchronize": 175.0, "cudaMemcpy": 30.0}  # as sorted, mean of both ranks
NINE = {f"cudaFree{number}": 100 - number for number in range(9)}
SYNC_BOUND = of(
    sync_bound,
    case("the call that blocked longest", idle(BLOCKED, 200, 210, calls=CALLS), saving=210),
    *threshold("2 % of step time", idle(BLOCKED, 20), idle(BLOCKED, 19)),
    case("of three ranks", idle(BLOCKED, 20, 500, 600), saving=600),
    case(
        "five calls",
        idle(BLOCKED, 300, calls=NINE),
        idle_ns_per_step_by_call=dict([*NINE.items()][:5]),
    ),
    *(
        case(
            f"allocations among {calls}",
            idle(BLOCKED, 300, calls=calls),
            idle_ns_per_step_by_call=calls,
        )
        for calls in (
            {"cudaStreamSynchronize": 200, "cudaMalloc": 100},
            {"cudaFree": 300},
            {"cudaStreamSynchronize": 200, "cudaMallocHost": 100},
            {},
        )
    ),
    case("no names", idle(BLOCKED, 300), idle_ns_per_step_by_call={}),
    *threshold(
        "2 % beside what copies explain",
        *(idle(BLOCKED, 100, idle_blocked_by_copies_ns=of_copies) for of_copies in (80, 81)),
    ),
    case(
        "input that comes later too",
        idle(BLOCKED, 30, idle_input_ns=100, idle_made_by_calls_ns=90),
        saving=90,
    ),
    case("a long name", idle(BLOCKED, 300, calls={"cudaMalloc" + "x" * 500: 300}), saving=300),
)

COPIED = {
    "n_blocking_copies": 2,
    "n_pageable_copies": 2,
    "blocking_copy_bytes": 4096,
    "exposed_blocking_copy_ns": 30,
    "idle_made_by_copies_ns": 50,
    "idle_blocked_ns": 60,
}
NO_IDLE_BY_COPIES = {"idle_made_by_copies_ns": 0}
OF_PHASES = [phase("data", n_blocking_copies=3), phase("forward", n_blocking_copies=0)]
PAGEABLE_COPY = of(
    pageable_copy,
    case(
        "idle time and the copies",
        evidence([step(**COPIED)]),
        saving=80,
        n_blocking_copies_per_step=2.0,
        saving_ns_per_step_by_part={"idle": 50.0, "copies": 30.0},
    ),
    case(
        "pinned memory",
        evidence([step(**COPIED | {"n_pageable_copies": 0})]),
        saving=80,
        n_pageable_copies_per_step=0,
    ),
    case(
        "an unknown kind of memory",
        evidence([step(**COPIED | {"n_pageable_copies": None})]),
        saving=80,
        n_pageable_copies_per_step=None,
    ),
    *threshold(
        "a thousandth of step time",
        *(
            evidence(
                [step(**COPIED | NO_IDLE_BY_COPIES | {"exposed_blocking_copy_ns": ns}, wall=2000)]
            )
            for ns in (2, 1)
        ),
    ),
    case(
        "by phase",
        evidence([step(**COPIED)], phases=OF_PHASES),
        n_blocking_copies_per_step_by_phase={"data": 3.0},
    ),
    case(
        "another rank waits for it",
        evidence([step(0, **COPIED), step(1, exposed=80, wait=80)]),
        saving=80,
    ),
    case("no copies", evidence([step(idle_made_by_copies_ns=50, idle_blocked_ns=60)])),
    case("copies not recorded", evidence([step(**COPIED | {"n_blocking_copies": None})])),
    case(
        "idle time not known",
        evidence([step(**COPIED | {"idle_made_by_copies_ns": None})]),
        NOT_JUDGED,
    ),
)

LONG, ONE = 100_000, collective(1, (500, 500), 800)
DDP = {"exposed_grad_copy_ns": 40, "grad_copy_ns": 60, "grad_copy_bytes": 4000, "n_grad_copies": 8}


def copying(exposed, met=ONE, *, copied=None, **more):
    figures = {
        "exposed_grad_copy_ns": exposed,
        "grad_copy_ns": copied or exposed,
        "n_grad_copies": 8,
    }
    figures |= {"grad_copy_bytes": 16_000_000, "grad_copy_span_ns": copied or exposed} | more
    return evidence([step(rank, wall=LONG, exposed=300, **figures) for rank in range(2)], met)


# 900 on rank 1 in step 2 alone.
UNEVEN = [
    step(rank, number, wall=LONG, **DDP | {"grad_copy_bytes": 16_000_000})
    | dict.fromkeys(("exposed_grad_copy_ns", "grad_copy_span_ns"), 900 * ((rank, number) == (1, 2)))
    for rank in range(2)
    for number in (1, 2)
]
GRAD_COPY = of(
    grad_copy,
    case(
        "the copies and the gaps between them",
        copying(400, copied=900, grad_copy_span_ns=990),
        saving=990,
    ),
    *threshold("a thousandth of step time", copying(100), copying(99)),
    case("the mean of steps", evidence(UNEVEN, ONE), saving=450),
    *threshold("less than 16 MB", *(copying(ns, grad_copy_bytes=15_999_999) for ns in (500, 499))),
    case("sizes not recorded", copying(100, grad_copy_bytes=None), grad_copy_bytes_per_step=None),
    case("no collectives", copying(5000, [])),
    case("no all-reduce", copying(5000, collective(1, (500, 500), 800, kind="broadcast"))),
    case(
        "sharded", copying(5000, ONE + collective(1, (900, 900), 990, kind="reduce_scatter", seq=1))
    ),
    case("copies not recorded", copying(None)),
    case("all hidden", copying(0, copied=5000)),
)
DDP_SINGLE_GPU = of(
    ddp_single_gpu,
    case("a world of one", evidence([step(**DDP, idle_launch_ns=25)]), saving=65),
    case(
        "partly in pauses of the host",
        evidence([step(**DDP, idle_launch_ns=25, idle_pause_ns=20)]),
        saving=45,
    ),
    case("hidden copies", evidence([step(**DDP | {"exposed_grad_copy_ns": 0})]), saving=0),
    # Inside backward only DDP copies that many tensors in a row; elsewhere it may be an average of
    # weights.
    case(
        "unknown size, backward marked", evidence([step(**DDP)], world_size=None), world_size=None
    ),
    case("unknown size", evidence([step(**DDP, overlap_backward_ns=None)], world_size=None)),
    case("one, nothing marked", evidence([step(**DDP, overlap_backward_ns=None)]), FIRES),
    case("one report of four", evidence([step(**DDP)], world_size=4)),
    case("two ranks", evidence(steps(2, **DDP))),
    case("it communicates", evidence([step(exposed=30, **DDP)])),
    case("no copies", evidence([step()])),
    case("copies not recorded", evidence([step(**dict.fromkeys(DDP))]), NOT_JUDGED),
    case(
        "copies not recorded, of an unknown world",
        evidence([step(**dict.fromkeys(DDP))], world_size=None),
        NOT_JUDGED,
    ),
    case(
        "copies not recorded, one report of two",
        evidence([step(**dict.fromkeys(DDP))], world_size=2),
    ),
)


def capture(first, *others, skipped=True, **figures):
    """Return steps 0, 1, ... of these lengths; the first is left out of the figures unless told."""
    walls = enumerate((first, *others))
    rows = [
        step(0, number, wall=wall, in_summary=not (skipped and number == 0), **figures)
        for number, wall in walls
    ]
    return evidence(rows, skipped_steps=(0,) if skipped else ())


def started(wait, overhead):
    """Return a first step of 220, 110 more than the others, of which so much is the capture's start."""
    first = step(0, 0, wall=220, in_summary=False, wait=wait, exposed=wait, overhead_ns=overhead)
    return evidence(
        [first, *(step(0, number, wall=110) for number in range(1, 4))], skipped_steps=(0,)
    )


OF_TWO_RANKS = [step(rank, 0, wall=100 + 300 * rank, in_summary=False) for rank in range(2)]
OF_TWO_RANKS += [step(rank, 1, wall=200) for rank in range(2)]


def of_ranks(*firsts):
    """Return ranks with a first step of these lengths, left out, and two of 100."""
    first = [step(rank, 0, wall=wall, in_summary=False) for rank, wall in enumerate(firsts)]
    return [
        *first,
        *(step(rank, number, wall=100) for rank in range(len(firsts)) for number in (1, 2)),
    ]


THREE_LEFT_OUT = [
    step(0, number, wall=500 - 100 * number, in_summary=number > 2) for number in range(5)
]
# What the profiler did in the step left out is no matter.
BUSY = [
    step(0, number, overhead_ns=ns, in_summary=number > 0, idle_launch_ns=100)
    for number, ns in enumerate((900, 30, 50))
]


def busy(*work, recording=None, **figures):
    """Return ranks of which the profiler works so long in a step, in which each idles 20 for its host unless told."""
    told = {"idle_launch_ns": 20} | figures
    rows = [step(rank, overhead_ns=ns, **told) for rank, ns in enumerate(work)]
    return evidence(rows, **({"recording": recording} if recording else {}))


IN_PARALLEL = busy(10, 15, exposed=100, wait=12)
CUDA_AND_NVTX = ("Cuda", "NvtxEvents")
ALL_OFF = Recording(CUDA_AND_NVTX, is_cpu_sampled=False, has_backtraces=False)
PROFILER_OVERHEAD = of(
    profiler_overhead,
    # The median of 100, 100, 120, 120 is 110.
    case(
        "twice the others",
        capture(220, 100, 120, 100, 120),
        first_step_is_skipped=True,
        first_step_to_median_ratio=2,
    ),
    case(
        "a first step that counts, not against itself",
        capture(300, 100, 100, skipped=False),
        first_step_is_skipped=False,
        first_step_to_median_ratio=3,
    ),
    # Half of the 110 more are the capture's start, or not quite.
    *(
        case(f"start of {wait} + {overhead}", started(wait, overhead), first_step_to_median_ratio=2)
        for wait, overhead in ((55, 0), (25, 30), (54, 0))
    ),
    *threshold("half as long again", *(capture(ns, 100, 100, 100) for ns in (150, 149))),
    # Gradient accumulation: every third step communicates and takes twice as long.
    case("like some others", capture(200, 100, 100, 200, 100, 100)),
    case(
        "the slowest rank", evidence(OF_TWO_RANKS, skipped_steps=(0,)), first_step_to_median_ratio=2
    ),
    case(
        "one rank of two",
        evidence(OF_TWO_RANKS, skipped_steps=(0,)),
        first_step_to_median_ratio_by_rank={"1": 2.0},
    ),
    *(
        case(
            f"of three ranks a first step of {walls}",
            evidence(of_ranks(*walls), skipped_steps=(0,)),
            first_step_to_median_ratio_by_rank=ratios,
        )
        for walls, ratios in [
            ((300, 150, 149), {"0": 3.0, "1": 1.5}),
            ((150, 300, 149), {"0": 1.5, "1": 3.0}),
            ((300, 149, 149), {"0": 3.0}),
            ((300, 150, 150), {"0": 3.0, "1": 1.5, "2": 1.5}),
            ((300, 300, 300), {"0": 3.0, "1": 3.0, "2": 3.0}),
        ]
    ),
    case(
        "several left out",
        evidence(THREE_LEFT_OUT, skipped_steps=(0, 1, 2)),
        first_step_to_median_ratio=500 / 150,
    ),
    *threshold("1 % of own work", *(capture(1000, 1000, overhead_ns=ns) for ns in (10, 9))),
    case("own work", evidence(BUSY, skipped_steps=(0,)), saving=40),
    # Rank 0 is left with 1000 - 10 - 12, rank 1 with 1000 - 15 - 10: of that work 22 at most goes
    # off the step.
    case(
        "work of ranks in parallel",
        IN_PARALLEL,
        saving=22,
        saving_ns_per_step_by_part={"overhead": 10.0, "waiting": 12.0},
    ),
    case(
        "no more than idles for the host",
        busy(30, idle_launch_ns=8, idle_dependency_ns=90),
        saving=8,
    ),
    case("no device idles for it", busy(30, idle_launch_ns=0, idle_dependency_ns=90), saving=None),
    case("idle time not known", busy(30, idle_ns=None), saving=30),
    case(
        "waiting not known: all communication may be it",
        busy(10, 15, exposed=100, wait_ns=None),
        saving=25,
    ),
    *threshold("1 % in the mean of ranks", busy(20, 0), busy(19, 0)),
    *(
        case(f"advice where {recording}", busy(30, recording=recording), FIRES)
        for recording in (
            Recording(),
            ALL_OFF,
            replace(ALL_OFF, events=("Cuda", "NvtxEvents", "OSRuntime")),
            replace(ALL_OFF, is_cpu_sampled=True),
            replace(ALL_OFF, has_backtraces=True),
        )
    ),
    case("one step", capture(500, skipped=False)),
    case("one step, two ranks", evidence(steps(2))),
)

CASES = (
    INPUT_BOUND
    + LAUNCH_BOUND
    + SYNC_BOUND
    + PAGEABLE_COPY
    + GRAD_COPY
    + DDP_SINGLE_GPU
    + PROFILER_OVERHEAD
)
