"""Units of launches as steps of several ranks: which of them are one step, and backward by the ranges of operators."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from nsyspipe.analysis.repeated_steps import aligned_numbers, backward_of_operators
from nsyspipe.analysis.steps import Members
from tests.build.make_comm import SEND, op, rank

# When five steps of a program begin: never evenly.
STARTS = (0, 1000, 2300, 3100, 4600, 5500)


def of_rank(begins, *, late=0, first=0, ids=False, shift=0):
    """Return a rank whose units begin so; its all-reduce ends 700 behind, `late` by its clock, and is the first-th and on."""
    ops = [
        op(start + 690 + late, member=at, comm=5 if ids else None, seq=at + first if ids else None)
        for at, start in enumerate(begins)
    ]
    return rank(*ops).process.comm, pa.table({"start_ns": np.array(begins) + late}), shift


@pytest.mark.parametrize(("ranks", "numbers"), [
    pytest.param([of_rank(STARTS), of_rank(STARTS)], [0, 0], id="alike"),
    pytest.param([of_rank(STARTS), of_rank(STARTS[1:])], [-1, 0], id="one step apart"),
    pytest.param([of_rank(STARTS[2:]), of_rank(STARTS[:-1])], [0, -2], id="two steps apart"),
    # By their ends alone the clocks' difference would hide which is which.
    pytest.param([of_rank(STARTS), of_rank(STARTS[1:], late=-1050)], [-1, 0], id="clocks apart by a step"),
    pytest.param([of_rank(STARTS[1:]), of_rank(STARTS, shift=17)], [0, -1], id="a constant between the clocks"),
    pytest.param([of_rank(STARTS, ids=True), of_rank(STARTS, ids=True, first=1, late=-1000)], [-1, 0],
                 id="NCCL's numbers"),
])  # fmt: skip
def test_units_with_the_same_collectives_are_one_step_and_0_is_the_first_that_all_have(ranks, numbers):
    aligned, is_sure = aligned_numbers(ranks)
    assert ([int(one[0]) for one in aligned], is_sure) == (numbers, True)
    assert all((np.diff(one) == 1).all() for one in aligned)


def test_of_steps_alike_to_the_ns_the_clock_decides_and_where_that_is_between_two_nothing_does():
    even = tuple(range(0, 6000, 1000))
    for late, answer in ((300, ([0, 0], True)), (500, ([0, 0], False))):
        aligned, is_sure = aligned_numbers([of_rank(even), of_rank(even, late=late)])
        assert ([int(one[0]) for one in aligned], is_sure) == answer


def sender(begins):
    """Return a rank that shares no collective with others."""
    comm = rank(*(op(start, kind=SEND, member=at) for at, start in enumerate(begins))).process.comm
    return comm, pa.table({"start_ns": np.array(begins) + 40}), 0


@pytest.mark.parametrize(("of_first", "of_other", "numbers"), [(0, 1, [-1, 0]), (1, 0, [0, -1]), (2, 0, [0, -2])])
def test_ranks_without_a_common_collective_are_aligned_by_when_they_begin(of_first, of_other, numbers):
    aligned, is_sure = aligned_numbers([of_rank(STARTS[of_first:]), sender(STARTS[of_other:])])
    assert ([int(one[0]) for one in aligned], is_sure) == (numbers, True)


def test_ranks_of_different_communicators_are_aligned_over_a_third_one_that_is_in_both():
    def named(*ids, first, late):
        ops = [
            op(start + 690 + late, member=at, comm=comm, seq=at + first)
            for at, start in enumerate(STARTS[first:]) for comm in ids
        ]  # fmt: skip
        return rank(*ops).process.comm, pa.table({"start_ns": np.array(STARTS[first:]) + late}), 0

    # By the clock the second would be a step later; nothing but the third knows better.
    ranks = [named(5, first=0, late=0), named(6, first=1, late=-1100), named(5, 6, first=0, late=0)]
    aligned, is_sure = aligned_numbers(ranks)
    assert ([int(one[0]) for one in aligned], is_sure) == ([-1, 0, -1], True)
    assert [int(one[0]) for one in aligned_numbers(ranks[:2])[0]] == [0, 0]


def test_operators_of_autograds_engine_say_when_backward_runs():
    texts = [
        "autograd::engine::evaluate_function: AddmmBackward0, seq = 3", "AddmmBackward0, seq = 3", "aten::mm, seq = 9",
        "NllLossBackward, op_id = 4", "mine",
    ]  # fmt: skip
    ranges = pa.table(
        {
            "text": pa.array(texts).dictionary_encode(),
            "start_ns": [100, 110, 10, 1150, 0],
            "end_ns": [200, 190, 90, 1250, 3000],
        }
    )
    members = Members(1, np.array([4]), np.array([0, 1000]), np.array([1000, 1200]))
    found = backward_of_operators(ranges, members)
    assert [one.tolist() for one in (found.member, found.starts, found.ends)] == [[0, 1], [100, 1150], [200, 1200]]
    assert backward_of_operators(ranges.slice(2, 1), members) is None
