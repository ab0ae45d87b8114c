"""Units of launches as steps of several ranks: which of them are one step, and backward by the ranges of operators."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pyarrow as pa
import pytest

from nsyspipe.analysis.alignment import agreement, n_common, n_shared
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


# --- how alike two sequences are ------------------------------------------------------------------
def longest_common(one, other):
    """Return the length of the longest common subsequence, by its recurrence."""
    row = [0] * (len(one) + 1)
    for item in other:
        before = row
        row = [0]
        for at, own in enumerate(one):
            row.append(before[at] + 1 if own == item else max(row[at], before[at + 1]))
    return row[-1]


def changed(sequence, roll, n_changes):
    """Return a sequence with so many items left out, and as many put in."""
    left = np.delete(sequence, roll.choice(sequence.size, n_changes, replace=False))
    return np.insert(left, np.sort(roll.choice(left.size, n_changes)), roll.integers(0, 9, n_changes))


@pytest.mark.parametrize("seed", range(20))
def test_what_is_common_is_the_longest_common_subsequence(seed):
    roll = np.random.default_rng(seed)
    one, other = (roll.integers(0, 5, size) for size in roll.integers(0, 60, 2))
    expected = longest_common(one, other)
    assert n_common(one, other, 60) == expected
    assert expected <= n_shared(one, other) <= min(one.size, other.size)


@pytest.mark.parametrize("seed", range(5))
def test_across_several_blocks_of_rows_a_band_as_wide_as_the_changes_is_enough(seed):
    roll = np.random.default_rng(seed)
    one = roll.integers(0, 9, 2600)
    other = changed(one, roll, 40)
    whole = n_common(one, other, 2600)
    assert n_common(one, other, 80) == whole >= 2560
    assert agreement(one, other, 0.95) == (whole / 2600, slice(0, 0))


@pytest.mark.parametrize("at", [0, 30, 100])
def test_a_block_that_only_one_has_is_left_out_at_either_end_or_where_all_else_is_equal(at):
    unit = np.arange(100)
    longer = np.insert(unit, at, np.full(40, 500))
    assert agreement(unit, longer, 0.9) == (1.0, slice(at, at + 40))
    noisy = longer.copy()
    noisy[np.flatnonzero(longer != 500)[[20, 60]]] = 900
    assert agreement(unit, noisy, 0.9) == ((0.98, slice(at, at + 40)) if at != 30 else (0.0, slice(0, 0)))


def test_sequences_of_other_items_are_not_aligned_at_all():
    assert agreement(np.arange(50), np.arange(100, 150), 0.9) == (0.0, slice(0, 0))


def test_alignment_of_long_units_holds_a_band_and_not_a_row_per_item():
    roll = np.random.default_rng(1)
    one = roll.permutation(20_000)
    other = changed(one, roll, 200)
    tracemalloc.start()
    assert n_common(one, other, 1000) >= 19_800
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # A number of 20 000 bits for each of as many items would be 50 MB.
    assert peak < 8_000_000
