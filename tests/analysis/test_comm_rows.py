"""The communication of all ranks side by side, and the groups in which it is matched."""

from __future__ import annotations

from nsyspipe.analysis.collectives import UNGROUPED, match
from nsyspipe.analysis.communication import NO_MEMBER
from nsyspipe.model.names import COLLECTIVES
from nsyspipe.run.collectives import ABSENT, comm_rows
from tests.build.make import ints
from tests.build.make_comm import GATHER, SEND, SUM, op, rank


def side_by_side(*ranks, steps=(0, 1, 2)):
    return comm_rows(ranks, [ints(*steps)] * len(ranks))


def groups(*ranks, **more):
    """Return (group of each operation, ranks that each group needs)."""
    group, required = side_by_side(*ranks, **more).groups(len(ranks))
    return group.tolist(), required.tolist()


def matched(*ranks, **more):
    """Return the start times of each collective, rank by rank."""
    rows = side_by_side(*ranks, **more)
    group, required = rows.groups(len(ranks))
    return [rows.start_ns[one].tolist() for one in match(group, rows.rank, required)]


# --- columns --------------------------------------------------------------------------------------


def test_columns_stand_by_rank_and_start_on_the_clocks_that_sessions_started_by():
    rows = side_by_side(
        rank(op(5, kind=SEND), op(20, member=1, n_bytes=64), report=2, shift=1000),
        rank(op(7, kind=GATHER, member=NO_MEMBER, order=3), kinds=(GATHER,), report=0, shift=-7),
        steps=(10, 11),
    )
    assert len(rows) == 3
    assert (rows.rank.tolist(), rows.report.tolist()) == ([0, 0, 1], [2, 2, 0])
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
    return (
        op(0, kind=SEND, comm=comm, n_bytes=8, called=called),
        op(10, kind=SEND, comm=comm, n_bytes=4),
        op(20, comm=comm, n_bytes=2),
    )


def test_what_ran_as_sends_and_receives_is_named_by_what_was_called():
    rows = side_by_side(rank(*all_to_alls(5)), rank(*all_to_alls(5)))
    names = [rows.kinds[kind].collective for kind in rows.kind.tolist()]
    assert names == ["all_to_all", "send_recv", "all_reduce"] * 2
    assert [COLLECTIVES[one] for one in rows.collective.tolist()] == names
    assert rows.message_bytes.tolist() == [8, 4, 2] * 2


def test_where_calls_are_not_all_known_kernels_keep_their_names_so_that_ranks_match():
    unknown = (op(0, kind=SEND), op(10, kind=SEND), op(20))
    rows = side_by_side(rank(*all_to_alls(5)), rank(*unknown))
    names = [rows.kinds[kind].collective for kind in rows.kind.tolist()]
    assert names == ["send_recv", "send_recv", "all_reduce"] * 2
    assert rows.message_bytes.tolist() == [ABSENT, 4, 2, *[ABSENT] * 3]
    ((first, *rest),) = matched(rank(*all_to_alls(5)), rank(*unknown))
    assert sorted([first, *rest]) == [[0, 0], [10, 10], [20, 20]]


# --- communicators by order of first use ----------------------------------------------------------


def test_a_group_is_a_communicator_within_a_step_and_needs_all_ranks():
    both = (op(0), op(10, kind=GATHER), op(20), op(30, member=1))
    # all_reduce stands before all_gather, step 0 before step 1.
    assert groups(rank(*both), rank(*both)) == ([0, 2, 0, 1] * 2, [2, 2, 2])


def test_what_belongs_to_no_step_has_no_group():
    first = rank(op(0, member=NO_MEMBER), op(10), op(20, member=NO_MEMBER))
    assert groups(first, rank(op(12))) == ([UNGROUPED, 0, UNGROUPED, 0], [2])
    outside = rank(op(0, member=NO_MEMBER))
    assert groups(outside, outside) == ([UNGROUPED, UNGROUPED], [])


def test_without_ids_a_subgroup_cannot_be_told_from_a_rank_that_lacks_its_part():
    # Ranks 0 and 1 gather, rank 2 does not: all_reduce of all three is matched, the gather is not.
    two, one = rank(op(0), op(20, kind=GATHER)), rank(op(5))
    assert matched(two, two, one) == [[[0, 0, 5]]]


# --- NCCL's communicators and sequence numbers ----------------------------------------------------

WORLD, LEFT, RIGHT = 7, -1, 9


def test_nccls_own_communicators_are_named_by_their_hash():
    rows = side_by_side(rank(op(0, comm=-1), op(10, comm=255)), rank(op(0, comm=1 - 2**63)))
    assert rows.has_ids
    names = [rows.communicators[one] for one in rows.communicator.tolist()]
    assert names == ["0xffffffffffffffff", "0xff", "0x8000000000000001"]


def test_a_subgroup_with_ids_needs_the_ranks_that_use_it():
    first = rank(op(0, comm=WORLD), op(10, comm=LEFT))
    second = rank(op(1, comm=WORLD), op(11, comm=LEFT))
    third = rank(op(2, comm=WORLD), op(12, comm=RIGHT))
    fourth = rank(op(3, comm=WORLD), op(13, comm=RIGHT))
    # Pairs first; in order of id -1, 7, 9.
    assert matched(first, second, third, fourth) == [[[10, 11], [12, 13]], [[0, 1, 2, 3]]]


def test_a_rank_that_uses_a_communicator_elsewhere_is_missed_in_the_step_that_lacks_it():
    # Rank 2 is of the communicator, as step 1 shows, but step 0 lacks its part.
    full, part = [op(0, comm=WORLD), op(20, comm=WORLD, member=1)], [op(21, comm=WORLD, member=1)]
    assert matched(rank(*full), rank(*full), rank(*part)) == [[[20, 20, 21]]]


def test_one_communicator_of_ids_may_hold_several_collectives():
    both = op(0, comm=WORLD), op(10, comm=WORLD, kind=GATHER, order=4), op(20, comm=WORLD)
    assert matched(rank(*both), rank(*both)) == [[[0, 0], [10, 10], [20, 20]]]


def test_sequence_numbers_match_what_counting_cannot():
    # Rank 1 lacks number 3: by place alone none of the step could be matched.
    full = rank(*(op(10 * seq, comm=WORLD, seq=seq) for seq in (3, 4, 5)))
    part = rank(*(op(10 * seq, comm=WORLD, seq=seq) for seq in (4, 5)))
    assert matched(full, part) == [[[40, 40], [50, 50]]]


def test_a_sequence_number_counts_within_its_communicator():
    both = op(0, comm=LEFT, seq=1), op(10, comm=RIGHT, seq=1), op(20, comm=LEFT, seq=2)
    assert matched(rank(*both), rank(*both)) == [[[0, 0], [20, 20], [10, 10]]]


def test_where_one_operation_lacks_its_sequence_number_all_are_matched_by_place():
    first = rank(op(0, comm=WORLD, seq=8), op(10, comm=WORLD))
    second = rank(op(1, comm=WORLD, seq=8), op(11, comm=WORLD, seq=9))
    assert matched(first, second) == [[[0, 1], [10, 11]]]


def test_where_one_operation_lacks_its_communicator_none_counts():
    # By order of first use there is one communicator, of all ranks.
    first = rank(op(0, comm=LEFT), op(10, comm=RIGHT))
    second = rank(op(1, comm=LEFT), op(11))
    assert not side_by_side(first, second).has_ids
    assert matched(first, second) == [[[0, 1], [10, 11]]]


def test_operations_outside_steps_need_no_id():
    first = rank(op(0, comm=LEFT), op(10, member=NO_MEMBER))
    assert side_by_side(first, first).has_ids
    assert matched(first, first) == [[[0, 0]]]
