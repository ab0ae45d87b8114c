"""Collectives across ranks: their groups and matching, waiting, sizes and bandwidths, and the tables of them."""

import numpy as np
import pytest

from nsyspipe.analysis import collectives as module
from nsyspipe.analysis.clock import ClockOffset
from nsyspipe.analysis.collectives import (
    NO_MEMBER,
    NOBODY,
    UNGROUPED,
    match_collectives,
    measure_waiting,
)
from nsyspipe.analysis.traffic import held_up_by_step
from nsyspipe.model import schema
from nsyspipe.model.names import COLLECTIVES
from nsyspipe.run.collectives import ABSENT, CrossRank, collectives_table, comm_rows, step_bytes
from tests.build.make import ints
from tests.build.make_comm import GATHER, SEND, SUM, op, rank


@pytest.mark.parametrize(
    ("rows", "required", "expected"),
    [
        # The k-th operation of each rank is the same collective.
        ([*[(0, 0)] * 3, *[(0, 1)] * 3], (2,), [[[0, 3], [1, 4], [2, 5]]]),
        # Columns are ranks in ascending order, whichever stands first; rows of ranks may alternate.
        ([(0, 2), (0, 1), (0, 0)], (3,), [[[2, 1, 0]]]),
        ([(0, 1), (0, 0), (0, 1), (0, 0)], (2,), [[[1, 0], [3, 2]]]),
        # Each group by itself, in order of group and then of place: order between groups does not
        # count.
        ([(0, 0), (1, 0), (0, 0), (1, 1), (0, 1), (0, 1)], (2, 2), [[[0, 4], [2, 5], [1, 3]]]),
        # Both ranks have three operations: (2, 1) of groups 0 and 1 on rank 0, (1, 2) on rank 1.
        ([(0, 0), (0, 0), (1, 0), (0, 1), (1, 1), (1, 1)], (2, 2), []),
        # Only group 1 has counts that differ.
        ([(0, 0), (1, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1)], (2, 2, 2), [[[0, 4], [3, 6]]]),
        # Rank 1 lacks group 0.
        ([(0, 0), (0, 2), (1, 0), (1, 1), (1, 2)], (3, 3), [[[2, 3, 4]]]),
        # Subgroups of ranks (0, 2) and (1, 3) need only their own.
        ([(0, 0), (1, 1), (0, 2), (1, 3)], (2, 2), [[[0, 2], [1, 3]]]),
        # Group 0 is of four ranks, group 1 of ranks 0 and 1, group 2 of ranks 1, 2 and 3: the
        # smallest come first.
        (
            [
                (0, 0),
                (1, 0),
                (1, 0),
                (0, 1),
                (1, 1),
                (2, 1),
                (1, 1),
                (0, 2),
                (2, 2),
                (0, 3),
                (2, 3),
            ],
            (4, 2, 3),
            [[[1, 4], [2, 6]], [[5, 8, 10]], [[0, 3, 7, 9]]],
        ),
        # A group of one rank has nobody to wait for, and what belongs to no group is left out.
        ([(0, 0), (0, 0), (1, 0), (1, 1)], (1, 2), [[[2, 3]]]),
        (
            [(UNGROUPED, 0), (0, 0), (0, 1), (UNGROUPED, 1), (0, 1), (0, 0)],
            (2,),
            [[[1, 2], [5, 4]]],
        ),
        ([(UNGROUPED, 0), (UNGROUPED, 1)], (), []),
        ([], (), []),
    ],
)
def test_which_operations_are_one_collective(rows, required, expected):
    """Operations are (group, rank); rows of the result are collectives, columns ranks."""
    group, rank = (ints(*(row[at] for row in rows)) for at in range(2))
    assert [block.tolist() for block in match_collectives(group, rank, ints(*required))] == expected


WAITING = (
    "n_ranks",
    "first_start_ns",
    "last_start_ns",
    "arrival_skew_ns",
    "wait_ns",
    "transfer_ns",
    "late_by_ns",
    "held_up_ns",
    "is_significant",
    "is_late_significant",
)


def measure(blocks, starts, ends, error=None, part=None):
    """Return everything as lists; clocks are exact and compared unless told."""
    error, part = ([0] * len(starts) if one is None else one for one in (error, part))
    matched = [np.array(block, np.int64) for block in blocks]
    found = measure_waiting(
        matched,
        ints(*starts),
        ints(*ends),
        np.arange(len(starts)),
        error_ns_of_clock=ints(*error),
        part_of_clock=ints(*part),
    )
    return {name: found.column(name).tolist() for name in WAITING} | {
        name: getattr(found, name).tolist() for name in ("is_matched", "collective_id")
    }


FAR = 2**62


@pytest.mark.parametrize(
    ("starts", "ends", "expected"),
    [
        # The one that arrives first waits for the later one.
        (
            (100, 140),
            (200, 200),
            {
                "is_matched": [True] * 2,
                "collective_id": [0, 0],
                "n_ranks": [2, 2],
                "arrival_skew_ns": [40, 40],
                "first_start_ns": [100, 100],
                "last_start_ns": [140, 140],
                "wait_ns": [40, 0],
                "transfer_ns": [60, 60],
                "late_by_ns": [0, 40],
                "held_up_ns": [0, 40],
                "is_significant": [True] * 2,
                "is_late_significant": [False, True],
            },
        ),
        # Lateness counts from the second-last, skew from the first.
        (
            (10, 90, 40, 70),
            (100, 101, 102, 103),
            {
                "arrival_skew_ns": [80] * 4,
                "wait_ns": [80, 0, 50, 20],
                "transfer_ns": [10, 11, 12, 13],
                "late_by_ns": [0, 20, 0, 0],
                "held_up_ns": [0, 80, 0, 0],
            },
        ),
        # A tie for the last place counts for nobody; it holds the others up by the lowest rank.
        (
            (10, 50, 50),
            (100, 100, 100),
            {
                "late_by_ns": [0] * 3,
                "held_up_ns": [0, 40, 0],
                "is_late_significant": [False] * 3,
                "wait_ns": [40, 0, 0],
            },
        ),
        (
            (10, 10),
            (30, 31),
            {"arrival_skew_ns": [0, 0], "transfer_ns": [20, 21], "is_significant": [False] * 2},
        ),
        # Rank 0 ends at 130, 10 before rank 1 arrives; rank 2 ends just then.
        (
            (100, 140, 110),
            (130, 200, 140),
            {"transfer_ns": [0, 60, 0], "wait_ns": [40, 0, 30], "held_up_ns": [0, 30, 0]},
        ),
        # Times far from 0 are exact.
        ((FAR + 1, FAR + 4), (FAR + 9, FAR + 8), {"wait_ns": [3, 0], "transfer_ns": [5, 4]}),
    ],
)
def test_what_one_collective_says(starts, ends, expected):
    found = measure([[[*range(len(starts))]]], starts, ends)
    assert {name: found[name] for name in expected} == expected


def test_several_blocks_number_their_collectives_one_after_the_other():
    # A collective of operations 4 and 0, two of (1, 5, 3) and (2, 6, 7); operation 8 is not
    # matched.
    starts = (10, 20, 30, 25, 12, 21, 31, 36, 99)
    found = measure(
        [[[4, 0]], [[1, 5, 3], [2, 6, 7]]], starts, (40, 50, 60, 50, 40, 50, 60, 60, 100)
    )
    expected = {
        "collective_id": [0, 1, 2, 1, 0, 1, 2, 2, NOBODY],
        "n_ranks": [2, 3, 3, 3, 2, 3, 3, 3, 0],
        "first_start_ns": [10, 20, 30, 20, 10, 20, 30, 30, 0],
        "last_start_ns": [12, 25, 36, 25, 12, 25, 36, 36, 0],
        "arrival_skew_ns": [2, 5, 6, 5, 2, 5, 6, 6, 0],
        "wait_ns": [2, 5, 6, 0, 0, 4, 5, 0, 0],
        "transfer_ns": [28, 25, 24, 25, 28, 25, 24, 24, 0],
        "late_by_ns": [0, 0, 0, 4, 2, 0, 0, 5, 0],
        "is_matched": [True] * 8 + [False],
    }
    assert {name: found[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("error", "part", "significant", "late_significant"),
    [
        # Arrivals 100, 130, 160: skew 60 of ranks 0 and 2, lateness 30 of ranks 2 and 1.
        ((0, 0, 0), None, True, True),
        ((59, 29, 29), None, True, True),
        ((60, 0, 0), None, False, True),  # equal is not more
        ((0, 30, 0), None, True, False),
        ((0, 1000, 0), None, True, False),  # rank 1 has no part in the skew
        ((1000, 0, 0), None, False, True),  # nor rank 0 in the lateness
        ((0, 0, 30), None, True, False),
        ((0, 0, 60), None, False, False),
        ((2**62, 2**62, 2**62), None, False, False),
        # Nothing compares the clock of rank 0 with those of ranks 1 and 2, or that of rank 1 with
        # the others.
        ((0, 0, 0), (0, 1, 1), False, True),
        ((0, 0, 0), (0, 1, 0), True, False),
    ],
)
def test_a_skew_must_exceed_the_larger_error_of_the_two_ranks_concerned(
    error, part, significant, late_significant
):
    found = measure([[[0, 1, 2]]], (100, 130, 160), (200, 200, 200), error, part)
    assert found["is_significant"] == [significant] * 3
    assert found["is_late_significant"] == [False, False, late_significant]


def test_nothing_matched_is_nothing_known():
    found = measure([], (10, 20), (30, 30))
    flags = found["is_matched"], found["is_significant"], found["is_late_significant"]
    assert (flags, found["collective_id"]) == (([False, False],) * 3, [NOBODY, NOBODY])
    assert measure([], (), ())["wait_ns"] == []


@pytest.mark.parametrize(
    ("late", "walls", "expected"),
    [
        # Pairs wait by design; what nobody was held up by, or whose wait is not known, is nothing.
        # Not alone: others came as late.
        (
            [
                (1, 0, "all_reduce", 5, 30),
                (1, 0, "all_gather", 1, 1),
                (1, 0, "all_reduce", 0, 7),
                (1, 1, "all_reduce", 0, 1),
                (1, 1, "send_recv", 9, 50),
                (1, 1, "all_reduce", 9, 0),
                (1, 1, "all_reduce", 9, None),
            ],
            {1: (39, 100)},
            [(1, 0, False, 7), (1, 0, True, 31), (1, 1, False, 1)],
        ),
        # Of 200 the step counts its own time, of its shortest rank.
        (
            [
                (1, 0, "all_reduce", 5, 80),
                (1, 1, "all_gather", 5, 120),
                (2, 1, "all_gather", 5, 99),
            ],
            {1: (100, 150), 2: (99, 99)},
            [(1, 0, True, 40), (1, 1, True, 60), (2, 1, True, 99)],
        ),
    ],
)
def test_how_long_a_rank_held_up_others_in_each_step(late, walls, expected):
    keys = ("step", "rank", "collective", "late_by_ns", "held_up_ns")
    collectives = schema.COLLECTIVES.from_rows([dict(zip(keys, row, strict=True)) for row in late])
    rows = [
        {"step": at, "rank": n, "wall_ns": wall}
        for at, own in walls.items()
        for n, wall in enumerate(own)
    ]
    found = held_up_by_step(collectives, schema.STEPS.from_rows(rows)).to_pylist()
    assert [tuple(row.values()) for row in found] == expected


PER_RANK = ("all_gather", "reduce_scatter", "all_to_all")
WHOLE = ("all_reduce", "broadcast", "reduce", "send_recv", "other")


@pytest.mark.parametrize("collective", [*PER_RANK, *WHOLE])
def test_bus_bandwidth_is_algorithm_bandwidth_times_the_nccl_tests_factor(
    collective,
):
    # NCCL reports the part of one rank where each has a part: 100 bytes of 4 ranks, 7 of 2.
    found = module.whole_message(collective, ints(100, 7, 0), ints(4, 2, 8)).tolist()
    assert found == ([400, 14, 0] if collective in PER_RANK else [100, 7, 0])
    # 2 (n - 1) / n of 1, 2, 4, 8 ranks, (n - 1) / n, or 1.
    factors = {
        "all_reduce": [0, 1, 1.5, 1.75],
        **{name: [0, 0.5, 0.75, 0.875] for name in PER_RANK},
    }
    assert module.bus_factor(collective, np.array([1.0, 2, 4, 8])).tolist() == factors.get(
        collective, [1] * 4
    )


def across_of(*ranks, sizes=None):
    rows = comm_rows(ranks, [ints(0, 1)] * len(ranks))
    group, required = rows.groups(len(ranks))
    clocks = np.zeros((2, len(ranks)), np.int64)
    found = measure_waiting(
        match_collectives(group, rows.rank, required),
        rows.start_ns,
        rows.end_ns,
        rows.rank,
        error_ns_of_clock=clocks[0],
        part_of_clock=clocks[1],
    )
    sizes = np.full(len(rows.communicators), 2) if sizes is None else ints(*sizes)
    has_all_ranks = np.ones(len(rows.communicators), np.bool_)
    return CrossRank(tuple(ranks), (ClockOffset(0, 0),), rows, sizes, found, (), has_all_ranks)


GATHERS, SUM_50 = rank(op(0, kind=GATHER, n_bytes=100)), rank(op(0, n_bytes=50))
UNSIZED, BOTH = (
    rank(op(0), op(20, n_bytes=0)),
    rank(op(0, n_bytes=100), op(20, kind=GATHER, n_bytes=100)),
)
NO_BANDWIDTH, EXACT = (None,) * 4, 2**53 + 1


@pytest.mark.parametrize(
    ("ranks", "sizes", "expected"),
    [
        # [0, 10) and [2, 12): the last arrives at 2, so transfers are 8 and 10 ns: 100 and 80 bytes
        # a ns; 2 (n - 1) / n = 1.
        (
            (rank(op(0, n_bytes=800)), rank(op(2, n_bytes=800))),
            (2,),
            [(0, 800, 800.0, 1e11, 1e11), (1, 800, 800.0, 8e10, 8e10)],
        ),
        # 100 bytes of each of 4 ranks (two of them present) in 10 ns, three quarters of it over the
        # bus.
        ((GATHERS, GATHERS), (4,), [(number, 400, 300.0, 4e10, 3e10) for number in range(2)]),
        # Without the size of the communicator there is none of the bus; all_gather/0 stands before,
        # but starts later.
        (
            (BOTH, BOTH),
            (0, 0),
            [
                *((number, 100, None, 1e10, None) for number in range(2)),
                (0, *NO_BANDWIDTH),
                (1, *NO_BANDWIDTH),
            ],
        ),
        # A message of unknown size has no bandwidth, an empty one has 0.
        (
            (UNSIZED, UNSIZED),
            (2,),
            [
                (0, *NO_BANDWIDTH),
                (1, *NO_BANDWIDTH),
                *((number, 0, 0.0, 0.0, 0.0) for number in range(2)),
            ],
        ),
        # Rank 0 is done at 10, just when rank 1 arrives: nothing is left to transfer.
        (
            (SUM_50, rank(op(10, n_bytes=50))),
            (2,),
            [(0, 50, 50.0, None, None), (1, 50, 50.0, 5e9, 5e9)],
        ),
        # What is not matched has its message.
        ((SUM_50, rank()), (2,), [(0, 50, 50.0, None, None)]),
        # Sends count what NCCL says of each rank.
        (
            (rank(op(0, kind=SEND, n_bytes=30)), rank(op(0, kind=SEND, n_bytes=40))),
            (2,),
            [(0, 30, 30.0, 3e9, 3e9), (1, 40, 40.0, 4e9, 4e9)],
        ),
        # Beyond what a float holds.
        (
            (rank(op(0, n_bytes=EXACT)),) * 2,
            (2,),
            [(at, EXACT, 2.0**53, 2**53 * 1e8, 2**53 * 1e8) for at in range(2)],
        ),
    ],
)
def test_bandwidth_is_the_message_over_the_transfer_without_the_wait(ranks, sizes, expected):
    across = across_of(*ranks, sizes=sizes)
    table = collectives_table(across, range(len(across.ranks)), ints(0)).to_pylist()
    names = ("rank", "message_bytes", "bus_bytes", "algbw_bytes_per_s", "busbw_bytes_per_s")
    assert [tuple(row[name] for name in names) for row in table] == expected


# Step 0: 10, and 20 gathered of 2 ranks; step 1: 5. What belongs to no step counts nowhere.
FIRST_STEP = op(0, n_bytes=10), op(20, kind=GATHER, n_bytes=20)
STEPS = rank(*FIRST_STEP, op(40, member=1, n_bytes=5), op(60, member=-1, n_bytes=1000))
TWO_STEPS = rank(op(0, n_bytes=10), op(20, member=1, n_bytes=7))


@pytest.mark.parametrize(
    ("ranks", "rank_of", "step_of", "expected"),
    [
        ((STEPS, STEPS), (1, 0, 0, 1), (0, 0, 1, 1), [50, 50, 5, 5]),
        # One unknown message makes a step unknown; one without any has 0.
        (
            (rank(op(0, n_bytes=10), op(20)), rank(op(0, n_bytes=10))),
            (0, 0, 1, 1),
            (0, 1, 0, 1),
            [None, 0, 10, 0],
        ),
        # Step 0 has a window on rank 1 only, and step 1 on rank 0 only.
        ((TWO_STEPS, TWO_STEPS), (1, 0), (0, 1), [10, 7]),
        ((TWO_STEPS, TWO_STEPS), (), (), []),
    ],
)
def test_bytes_of_a_step_are_those_of_the_operations_that_belong_to_it(
    ranks, rank_of, step_of, expected
):
    found, known = step_bytes(across_of(*ranks), ints(*rank_of), ints(*step_of))
    assert [
        n if is_known else None for n, is_known in zip(found.tolist(), known.tolist(), strict=True)
    ] == expected


def side_by_side(*ranks, steps=(0, 1, 2)):
    return comm_rows(ranks, [ints(*steps)] * len(ranks))


def groups(*ranks, **more):
    """Return (group of each operation, ranks that each group needs)."""
    group, required = side_by_side(*ranks, **more).groups(len(ranks))
    return group.tolist(), required.tolist()


def matched(*ranks, **more):
    rows = side_by_side(*ranks, **more)
    group, required = rows.groups(len(ranks))
    return [rows.start_ns[one].tolist() for one in match_collectives(group, rows.rank, required)]


def test_columns_are_sorted_by_rank_and_start_on_session_clocks():
    rows = side_by_side(
        rank(op(5, kind=SEND), op(20, member=1, n_bytes=64), report=2, shift=1000),
        rank(op(7, kind=GATHER, member=NO_MEMBER, order=3), kinds=(GATHER,), report=0, shift=-7),
        steps=(10, 11),
    )
    assert (len(rows), rows.rank.tolist()) == (3, [0, 0, 1])
    assert (rows.start_ns.tolist(), rows.end_ns.tolist()) == ([1005, 1020, 0], [1015, 1030, 10])
    assert rows.in_step.tolist() == [True, True, False]
    assert rows.step[rows.in_step].tolist() == [10, 11]
    assert [rows.kinds[kind] for kind in rows.kind.tolist()] == [SEND, SUM, GATHER]
    names = [rows.communicators[one] for one in rows.communicator.tolist()]
    assert names == ["send_recv/0", "all_reduce/0", "all_gather/3"]
    assert rows.message_bytes.tolist() == [ABSENT, 64, ABSENT]
    assert rows.seq_number.tolist() == [ABSENT] * 3
    assert not rows.has_ids


def all_to_alls(comm):
    called = COLLECTIVES.index("all_to_all")
    sends = (
        op(0, kind=SEND, comm=comm, n_bytes=8, called=called),
        op(10, kind=SEND, comm=comm, n_bytes=4),
    )
    return *sends, op(20, comm=comm, n_bytes=2)


def test_what_ran_as_sends_and_receives_is_named_by_what_was_called():
    rows = side_by_side(rank(*all_to_alls(5)), rank(*all_to_alls(5)))
    names = [rows.kinds[kind].collective for kind in rows.kind.tolist()]
    assert names == ["all_to_all", "send_recv", "all_reduce"] * 2
    assert [COLLECTIVES[one] for one in rows.collective.tolist()] == names
    assert rows.message_bytes.tolist() == [8, 4, 2] * 2


def test_kernels_keep_their_names_if_not_all_calls_are_known():
    unknown = (op(0, kind=SEND), op(10, kind=SEND), op(20))
    rows = side_by_side(rank(*all_to_alls(5)), rank(*unknown))
    assert [rows.kinds[kind].collective for kind in rows.kind.tolist()] == [
        "send_recv",
        "send_recv",
        "all_reduce",
    ] * 2
    assert rows.message_bytes.tolist() == [ABSENT, 4, 2, *[ABSENT] * 3]
    ((first, *rest),) = matched(rank(*all_to_alls(5)), rank(*unknown))
    assert sorted([first, *rest]) == [[0, 0], [10, 10], [20, 20]]


USES, OUTSIDE = (
    rank(op(0), op(10, kind=GATHER), op(20), op(30, member=1)),
    rank(op(0, member=NO_MEMBER)),
)


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        # A communicator within a step, which needs all ranks: all_reduce before all_gather, step 0
        # before step 1.
        ((USES, USES), ([0, 2, 0, 1] * 2, [2, 2, 2])),
        # What belongs to no step has none.
        (
            (rank(op(0, member=NO_MEMBER), op(10), op(20, member=NO_MEMBER)), rank(op(12))),
            ([UNGROUPED, 0, UNGROUPED, 0], [2]),
        ),
        ((OUTSIDE, OUTSIDE), ([UNGROUPED, UNGROUPED], [])),
    ],
)
def test_without_ids_groups_are_communicators_by_order_of_first_use(ranks, expected):
    assert groups(*ranks) == expected


WORLD, LEFT, RIGHT = 7, -1, 9


def uses(*ops):
    """Return a rank of operations (start, communicator, more)."""
    return rank(*(op(start, comm=comm, **(more[0] if more else {})) for start, comm, *more in ops))


SEVERAL = uses((0, WORLD), (10, WORLD, {"kind": GATHER, "order": 4}), (20, WORLD))
NUMBERED = uses((0, LEFT, {"seq": 1}), (10, RIGHT, {"seq": 1}), (20, LEFT, {"seq": 2}))
FULL, PART = uses((0, WORLD), (20, WORLD, {"member": 1})), uses((21, WORLD, {"member": 1}))
SOME_OUTSIDE = uses((0, LEFT), (10, None, {"member": NO_MEMBER}))
SKIPPING = [
    uses(*((10 * seq, WORLD, {"seq": seq}) for seq in numbers)) for numbers in ((3, 4, 5), (4, 5))
]


@pytest.mark.parametrize(
    ("ranks", "has_ids", "expected"),
    [
        # Without ids a subgroup cannot be told from a rank that lacks its part: the gather of two
        # is not matched.
        ((*[rank(op(0), op(20, kind=GATHER))] * 2, rank(op(5))), False, [[[0, 0, 5]]]),
        # With ids it needs the ranks that use it: pairs first, in order of id -1, 7, 9.
        (
            [uses((at, WORLD), (10 + at, LEFT if at < 2 else RIGHT)) for at in range(4)],
            True,
            [[[10, 11], [12, 13]], [[0, 1, 2, 3]]],
        ),
        # Rank 2 is of the communicator, as step 1 shows, but step 0 lacks its part.
        ((FULL, FULL, PART), True, [[[20, 20, 21]]]),
        # One communicator may hold several collectives.
        ((SEVERAL, SEVERAL), True, [[[0, 0], [10, 10], [20, 20]]]),
        # Sequence numbers match what counting cannot (rank 1 lacks number 3), each within its
        # communicator.
        (SKIPPING, True, [[[40, 40], [50, 50]]]),
        ((NUMBERED, NUMBERED), True, [[[0, 0], [20, 20], [10, 10]]]),
        # Where one lacks its number all are matched by place, where one lacks its communicator none
        # counts.
        (
            (
                uses((0, WORLD, {"seq": 8}), (10, WORLD)),
                uses((1, WORLD, {"seq": 8}), (11, WORLD, {"seq": 9})),
            ),
            True,
            [[[0, 1], [10, 11]]],
        ),
        ((uses((0, LEFT), (10, RIGHT)), uses((1, LEFT), (11, None))), False, [[[0, 1], [10, 11]]]),
        # Outside of steps none is needed.
        ((SOME_OUTSIDE, SOME_OUTSIDE), True, [[[0, 0]]]),
    ],
)
def test_communicators_and_sequence_numbers_of_nccl_match_where_all_have_them(
    ranks, has_ids, expected
):
    assert (side_by_side(*ranks).has_ids, matched(*ranks)) == (has_ids, expected)


def test_nccls_own_communicators_are_named_by_their_hash():
    rows = side_by_side(rank(op(0, comm=-1), op(10, comm=255)), rank(op(0, comm=1 - 2**63)))
    assert rows.has_ids
    names = [rows.communicators[one] for one in rows.communicator.tolist()]
    assert names == ["0xffffffffffffffff", "0xff", "0x8000000000000001"]
