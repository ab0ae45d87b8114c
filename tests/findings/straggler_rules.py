"""Rule straggler: ranks hold the others up, step after step. Times are ns, steps are of 1000."""

from nsyspipe.findings.straggler import straggler
from tests.findings.make import (
    NOT_JUDGED,
    case,
    collective,
    evidence,
    of,
    phase,
    step,
    steps,
    threshold,
    unmatched,
)


def run(*late, n_ranks=2, phases=(), **more):
    """Return a run where rank 1 starts the all-reduce of each step so many ns after all others; negative: before rank 0."""
    numbers = range(1, len(late) + 1)
    starts = [[max(-by, 0), max(by, 0), *(0 for _ in range(n_ranks - 2))] for by in late]
    rows = [
        row for number in numbers for row in collective(number, starts[number - 1], 500, **more)
    ]
    return evidence(steps(n_ranks, *numbers, exposed=300), rows, phases=phases)


def each_step(n_ranks, n_steps, *collectives, exposed=800):
    """Return steps that all hold the same collectives: (starts, end)."""
    numbers, rows = range(1, n_steps + 1), []
    for seq, (starts, end) in enumerate(collectives):
        rows += [row for number in numbers for row in collective(number, starts, end, seq=seq)]
    return evidence(steps(n_ranks, *numbers, exposed=exposed), rows)


# It takes 30 longer in forward on the host.
LONGER = [phase("forward", rank, 1, host_ns=100 + 30 * rank) for rank in range(2)]
LONGER += [phase("backward", rank, 1, host_ns=200 + 5 * rank) for rank in range(2)]
LEAVES = collective(
    1, (0, 100), 400
)  # rank 0 leaves at 60 (a broadcast) although rank 1 comes at 100: it waited 60
LEAVES[1]["held_up_ns"] = 60
TWO_COMMUNICATORS = collective(1, (0, 700), 900) + collective(1, (0, 700), 900, seq=1, comm_id="b")
# Tensor groups of 0 and 1, 2 and 3, 4 and 5, 6 and 7, data groups of 0, 2, 4, 6 and 1, 3, 5, 7, all
# from 0 on. First rank 1 comes 100 late and rank 2 60, side by side; then 0 and 1 bring their 100
# to the data groups, where 2 and 3 wait 40 and all others 100; then each tensor group waits 50 for
# its odd rank. Without that all were done 100 + 50 earlier; the longest waits are 100 + 60 + 2 x
# 100 + 4 x 50.
GRID = evidence(
    steps(8, exposed=700),
    [
        row | {"rank": ranks[row["rank"]]}
        for ranks, starts, end in [
            ((0, 1), (0, 100), 110),
            ((2, 3), (60, 0), 70),
            ((4, 5), (0, 0), 10),
            ((6, 7), (0, 0), 10),
            ((0, 2, 4, 6), (120, 80, 20, 20), 130),
            ((1, 3, 5, 7), (120, 80, 20, 20), 130),
            *((pair, (200, 250), 260) for pair in ((0, 1), (2, 3), (4, 5), (6, 7))),
        ]
        for row in collective(1, starts, end, comm_id=f"0x{ranks}")
    ],
)
IN_GRID = {"1": 250.0, "2": 60.0, "3": 50.0, "5": 50.0, "7": 50.0}
# Rank 1 comes 100 late to its tensor group, so that rank 0 comes 100 late to its data group with
# rank 2.
PASSED_ON = evidence(
    steps(4, 1, 2, 3, exposed=500),
    [
        row | {"rank": ranks[row["rank"]]}
        for number in (1, 2, 3)
        for ranks, starts, end in [
            ((0, 1), (0, 100), 110),
            ((2, 3), (0, 0), 10),
            ((0, 2), (120, 20), 130),
        ]
        for at in [1000 * number]
        for row in collective(
            number, [at + start for start in starts], at + end, comm_id=f"0x{ranks}"
        )
    ],
)
RARELY = [row for number in (4, 8, 12) for row in collective(number, (0, 200), 500)]
IN_TURN = [
    row
    for late in range(4)
    for row in collective(late + 1, [100 * (rank == late) for rank in range(5)], 500)
]
LAST = 1_048_575
FAR = [
    row | {"rank": rank} for row, rank in zip(collective(1, (0, 100), 500), (0, LAST), strict=True)
]
OF_FAR = [phase("optimizer", 0, host_ns=0), phase("optimizer", LAST, host_ns=9)]

LATE = of(
    straggler,
    # 50, 40, 40, 70: 200 over four steps.
    case("with its phase", run(50, 40, 40, 70, phases=LONGER), saving=50),
    # The second bucket is waited for by 90 as well; the largest delay of the step is 100.
    case(
        "what the others wait in each",
        each_step(2, 1, ((0, 100), 400), ((400, 490), 800)),
        saving=190,
    ),
    case("nobody waits longer than its own", evidence(steps(2, exposed=400), LEAVES), saving=60),
    # It waits 700 in both at once.
    case("for two at once", evidence(steps(2, exposed=900), TWO_COMMUNICATORS), saving=700),
    # Rank 0 only passes on what it waited for rank 1.
    case("of a grid", GRID, saving=150, held_up_ns_per_step_by_rank=IN_GRID),
    case(
        "who passes a delay on is not named",
        PASSED_ON,
        saving=100,
        held_up_ns_per_step_by_rank={"1": 100.0},
    ),
    # Rank 1 computes 900 where rank 0 computes 300 and waits for 600.
    case(
        "what it computes more",
        evidence(
            [step(0, exposed=700, wait=600), step(1, exposed=100)], collective(1, (300, 900), 1000)
        ),
        saving=600,
    ),
    # Rank 1 is late by 90 in three of four steps, rank 0 by 80 in one: 350 / 4.
    case("in turn", run(90, -80, 90, 90), saving=87.5),
    # Of four ranks one comes 100 late, and once it is mended the others wait for the one before it:
    # a quarter of that.
    case(
        "one behind the last",
        each_step(4, 3, ((0, 25, 0, 100), 300), exposed=300),
        saving=100,
        late_behind_ns_per_step_by_rank={"1": 25.0},
    ),
    case(
        "one hardly behind",
        each_step(4, 3, ((0, 24, 0, 100), 300), exposed=300),
        rank=3,
        late_behind_ns_per_step_by_rank=None,
    ),
    # Rank 1 comes 100 late to the first collective, rank 0 120 late to the second.
    case(
        "both in one step",
        each_step(2, 3, ((0, 100), 300), ((520, 400), 700), exposed=700),
        saving=220,
    ),
    case(
        "many",
        evidence(steps(5, 1, 2, 3, 4, exposed=500), IN_TURN),
        held_up_ns_per_step_by_rank={str(rank): 25.0 for rank in range(4)},
    ),
    # Gradient accumulation: ranks meet in 3 of 12 steps: 600 / 12.
    case("they rarely meet", evidence(steps(2, *range(1, 13), exposed=300), RARELY), saving=50),
    # Ranks 1 and 2 start 400 and 440 after rank 0, which waits 440.
    # Rank 1 begins the first step 60 later than the other, which waits 50, 100 and 150 for it.
    case(
        "late before the first step",
        evidence(
            [
                step(0, 1, exposed=300),
                step(1, 1, exposed=300, start_ns=1060),
                *steps(2, 2, 3, exposed=300),
            ],
            [row for number in (1, 2, 3) for row in collective(number, (0, 50 * number), 500)],
        ),
        late_before_first_step_ns=60,
    ),
    # The other waits 50, 25 and 25 for it: 100 in all.
    *(
        case(
            f"late before the first step by {begins} of 100",
            evidence(
                [
                    step(0, 1, exposed=300),
                    step(1, 1, exposed=300, start_ns=1000 + begins),
                    *steps(2, 2, 3, exposed=300),
                ],
                [
                    row
                    for number, late in ((1, 50), (2, 25), (3, 25))
                    for row in collective(number, (0, late), 500)
                ],
            ),
            late_before_first_step_ns=begins,
        )
        for begins in (95, 94)
    ),
    case("whoever comes between", each_step(3, 3, ((0, 400, 440), 800)), saving=440, rank=2),
    case(
        "a world of many",
        evidence([step(rank, exposed=300) for rank in (0, LAST)], FAR, phases=OF_FAR),
        rank=LAST,
    ),
    *threshold("3 % of three steps", run(30, 30, 30), run(30, 30, 29)),
    *threshold("10 % of two steps", run(100, 100), run(100, 99)),
    *threshold("10 % of one step", run(100), run(99)),
    *threshold("1 % of most steps", run(10, 10, 10, 90), run(10, 9, 9, 92)),
    *threshold("most steps", run(60, 60, 60, 0), run(60, 60, 0, 0)),
    case("one step only", run(900, 0, 0, 0)),
    case("stages that send", run(500, 500, 500, 500, kind="send_recv")),
    case("within clock error", run(50, 50, 50, 50, is_late_significant=False)),
    case("one rank", evidence(steps(1, exposed=300), collective(1, (0,), 300))),
    case("together", run(0, 0, 0)),
    case(
        "not matched",
        evidence(steps(2, exposed=300, wait_ns=None), unmatched(collective(1, (0, 100), 500))),
        NOT_JUDGED,
    ),
    case(
        "the capture's start alone",
        evidence(steps(2, 0, exposed=900), collective(0, (0, 900), 1000)),
        NOT_JUDGED,
    ),
)


def spent_in_data(*known):
    """Return a run of three ranks that spend 10, 90 and 30 in data, by the first of the measures that are known."""
    spent = enumerate((10, 90, 30))
    phases = [
        phase("data", rank, 1, **dict.fromkeys(known, 0) | {known[0]: own}) for rank, own in spent
    ]
    return run(100, n_ranks=3, phases=phases)


def on_device(idle_input=0, **spent):
    """Return a run in which rank 1 spends so much of each phase idle; rank 0 spends 10 in each."""
    phases = [
        phase(name, rank, 1, host_ns=1000 * (name == "backward"), device_ns=0, idle_ns=own)
        for name, late in spent.items()
        for rank, own in enumerate((10, late))
    ]
    wait = sum(spent.values())
    rows = [step(0, exposed=wait, wait=wait), step(1, idle_input_ns=idle_input)]
    return evidence(rows, collective(1, (0, wait), 900), phases=phases)


BLAMED = of(
    straggler,
    # Rank 1 against the mean of ranks 0 and 2: 90 - (10 + 30) / 2.
    *(
        case(f"longer by {known}", spent_in_data(*known), phase="data", phase_excess_ns_per_step=70)
        for known in (("host_ns",), ("device_ns", "idle_ns"), ("idle_ns", "device_ns"))
    ),
    *(
        case(what, run(100, phases=phases), rank=1, phase=None)
        for what, phases in {
            "phases not marked": [],
            "a phase of it alone": [phase("forward", 1, 1, host_ns=500)],
            "a shorter phase": [phase("forward", rank, 1, host_ns=500 - rank) for rank in range(2)],
            "in another step": [phase("forward", rank, 2, host_ns=500 * rank) for rank in range(2)],
        }.items()
    ),
    # More than 60 % of what is longer, by one measure.
    case("most in forward", on_device(forward=200, backward=30), phase="forward"),
    case("half of it in forward", on_device(forward=130, backward=120), phase=None),
    case("it was loading data", on_device(180, forward=200, data=20), phase="data"),
    case("half of it loading data", on_device(90, forward=200, data=20), phase=None),
)


def parts(first, second):
    """Return a run in which rank 1 comes so late to the first collective of each step, and rank 0 to the second."""
    return each_step(2, 3, ((0, first), 300), ((500 + second, 500), 750), exposed=700)


def behind_hosts(*launch_ns, compute_ns=(400, 400), by=100):
    """Return three steps of 1000 whose ranks launch for so long and compute less; rank 1 comes late, the other waits."""
    rows = []
    for number in (1, 2, 3):
        waiting = step(0, number, exposed=600, wait=600)
        late = step(1, number, idle_launch_ns=600)
        for rank, row in enumerate((waiting, late)):
            rows.append(row | {"host_launch_ns": launch_ns[rank], "compute_ns": compute_ns[rank]})
    return evidence(rows, [row for number in (1, 2, 3) for row in collective(number, (0, by), 500)])


def late_in_turn(*launch_ns, compute_ns=(400, 400, 400), late_in_each):
    """Return launch-bound steps of 1000, in each of which the ranks given come 100 late; rank 2 never does."""
    numbers, rows = range(1, len(late_in_each) + 1), []
    for number in numbers:
        for rank in range(3):
            row = step(rank, number, exposed=600, wait=600)
            rows.append(row | {"host_launch_ns": launch_ns[rank], "compute_ns": compute_ns[rank]})
    met = [
        row
        for number in numbers
        for seq, late in enumerate(late_in_each[number - 1])
        for row in collective(
            number,
            [300 * seq + 100 * (rank == late) for rank in range(3)],
            300 * seq + 200,
            seq=seq,
        )
    ]
    return evidence(rows, met)


def beside_compute(launch_ns):
    """Return three steps of 1000 in which rank 0 waits 100 for rank 1 beside compute, and hosts launch for so long."""
    known = {"hidden": 300, "compute_ns": 400, "host_launch_ns": launch_ns}
    rows = [
        step(rank, number, wait=100 * (rank == 0), **known)
        for number in (1, 2, 3)
        for rank in range(2)
    ]
    return evidence(
        rows, [row for number in (1, 2, 3) for row in collective(number, (0, 100), 500)]
    )


def idle_for_launches(idle_ns):
    """Return three steps in which rank 1 comes 100 late, and idles so long for launches."""
    rows = [
        row
        for n in (1, 2, 3)
        for row in (step(0, n, exposed=300), step(1, n, exposed=200, idle_launch_ns=idle_ns))
    ]
    return evidence(
        rows, [row for number in (1, 2, 3) for row in collective(number, (0, 100), 500)]
    )


HOSTS = of(
    straggler,
    # A tenth of all delays, 200 a step; both are noticeable.
    case("10 % of all delays", parts(180, 20), held_up_ns_per_step_by_rank={"1": 180.0, "0": 20.0}),
    case("10 % of all delays, not quite", parts(181, 19), held_up_ns_per_step_by_rank={"1": 181.0}),
    # A step of 1000 is no shorter than the fastest host launches it.
    case(
        "above launching",
        evidence(
            [
                step(rank, number, exposed=300, host_launch_ns=960 + rank)
                for number in (1, 2, 3)
                for rank in range(2)
            ],
            [row for number in (1, 2, 3) for row in collective(number, (0, 70), 500)],
        ),
        saving=40,
    ),
    case(
        "3 % slower to launch",
        behind_hosts(900, 930),
        saving=100,
        rank=1,
        is_launch_bound=True,
        host_launch_ns_per_step_by_rank={"0": 900.0, "1": 930.0},
    ),
    case("3 % slower to launch, not quite", behind_hosts(900, 929), NOT_JUDGED),
    case("3 % slower to compute", behind_hosts(900, 900, compute_ns=(370, 400)), rank=1),
    case(
        "3 % slower to compute, not quite",
        behind_hosts(900, 900, compute_ns=(371, 400)),
        NOT_JUDGED,
    ),
    # The devices work 400: launching in as much decides nothing.
    case("launching takes as long as work", behind_hosts(400, 400), rank=1, is_launch_bound=None),
    case("launching takes longer than work", behind_hosts(401, 401), NOT_JUDGED),
    # Rank 0 is no slower, but alone holds up the third step; not so where rank 1 holds up each.
    case(
        "no slower in a step of its own",
        late_in_turn(900, 930, 900, late_in_each=[[1], [1], [0]]),
        held_up_steps_by_rank={"1": ["1-2"], "0": ["3"]},
        n_steps_held_up_by_rank={"1": 2, "0": 1},
        rank=1,
        no_slower_ranks=[0],
    ),
    case(
        "no slower in another's steps",
        late_in_turn(900, 930, 900, late_in_each=[[1], [1], [1, 0]]),
        held_up_steps_by_rank={"1": ["1-3"]},
    ),
    case(
        "a slow host",
        late_in_turn(900, 930, 900, late_in_each=[[1]] * 3),
        rank=1,
        is_launch_bound=True,
    ),
    case(
        "a host hardly slower",
        late_in_turn(880, 930, 901, late_in_each=[[1]] * 3),
        rank=1,
        is_launch_bound=True,
    ),
    case(
        "a slow host that computes more",
        late_in_turn(900, 930, 900, compute_ns=(400, 430, 400), late_in_each=[[1]] * 3),
        rank=1,
        is_launch_bound=True,
    ),
    case(
        "one slow host of two",
        late_in_turn(900, 930, 900, late_in_each=[[1], [1], [0]]),
        no_slower_ranks=[0],
    ),
    # Both are slower: 30 and 60 above rank 2 and the mean of the others.
    case(
        "a slow host and a slow device",
        late_in_turn(900, 960, 900, compute_ns=(430, 400, 400), late_in_each=[[1], [1], [0]]),
        no_slower_ranks=None,
    ),
    # The fastest host launches 950 of 1000: of delays of 100 half stay.
    case(
        "what hosts launch is no delay",
        beside_compute(launch_ns=950),
        saving=50,
        saving_ns_per_step_by_part={"delays": 100.0, "left_for_launching": -50.0},
        fastest_launch_ns_per_step=950.0,
        step_time_ns_per_step=1000.0,
    ),
    case("60 % idle for launches", idle_for_launches(60), launched_late_ns_per_step=60.0),
    case(
        "60 % idle for launches, not quite", idle_for_launches(59), launched_late_ns_per_step=None
    ),
    # 120 of 200 longer in forward, then 121 of 201.
    case("60 % in forward", on_device(forward=130, backward=70), phase=None),
    case("more than 60 % in forward", on_device(forward=131, backward=70), phase="forward"),
)

CASES = LATE + BLAMED + HOSTS
