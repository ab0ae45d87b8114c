"""Which operations are the same collective: the k-th of a group on each of its ranks."""

from __future__ import annotations

import pytest

from nsyspipe.analysis.collectives import UNGROUPED, match
from tests.build.make import ints


def matched(*rows: tuple[int, int], required: tuple[int, ...]):
    """Match operations given as (group, rank); rows of the result are collectives, columns ranks."""
    group, rank = ints(*(row[0] for row in rows)), ints(*(row[1] for row in rows))
    return [block.tolist() for block in match(group, rank, ints(*required))]


def test_the_kth_operation_of_each_rank_is_the_same_collective():
    found = matched((0, 0), (0, 0), (0, 0), (0, 1), (0, 1), (0, 1), required=(2,))
    assert found == [[[0, 3], [1, 4], [2, 5]]]


@pytest.mark.parametrize("n_ranks", [2, 3, 512])
def test_columns_are_ranks_in_ascending_order(n_ranks):
    # The highest rank's operation stands first.
    found = matched(*((0, rank) for rank in reversed(range(n_ranks))), required=(n_ranks,))
    assert found == [[list(reversed(range(n_ranks)))]]


def test_rows_of_ranks_may_alternate():
    found = matched((0, 1), (0, 0), (0, 1), (0, 0), required=(2,))
    assert found == [[[1, 0], [3, 2]]]


def test_groups_are_matched_each_by_itself():
    # Rank 0 has groups 0 1 0, rank 1 has 1 0 0: order between groups does not count.
    found = matched((0, 0), (1, 0), (0, 0), (1, 1), (0, 1), (0, 1), required=(2, 2))
    assert found == [[[0, 4], [2, 5], [1, 3]]]


def test_collectives_stand_in_order_of_group_and_then_of_place():
    found = matched((7, 0), (7, 0), (2, 0), (7, 1), (7, 1), (2, 1), required=(2,) * 8)
    assert found == [[[2, 5], [0, 3], [1, 4]]]


def test_a_group_whose_counts_differ_is_not_matched_and_others_keep_theirs():
    # Group 1 has two operations on rank 0 and one on rank 1.
    found = matched((0, 0), (1, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1), required=(2, 2, 2))
    assert found == [[[0, 4], [3, 6]]]


def test_equal_totals_do_not_hide_a_shift_between_groups():
    # Both ranks have three operations: (2, 1) of groups 0 and 1 on rank 0, (1, 2) on rank 1.
    assert matched((0, 0), (0, 0), (1, 0), (0, 1), (1, 1), (1, 1), required=(2, 2)) == []


@pytest.mark.parametrize("absent", [0, 1, 2])
def test_a_group_that_a_rank_lacks_is_not_matched(absent):
    present = [rank for rank in range(3) if rank != absent]
    rows = [(0, rank) for rank in present] + [(1, rank) for rank in range(3)]
    assert matched(*rows, required=(3, 3)) == [[[2, 3, 4]]]


def test_a_subgroup_needs_only_its_own_ranks():
    # Groups 0 and 1 are of ranks (0, 2) and (1, 3).
    found = matched((0, 0), (1, 1), (0, 2), (1, 3), required=(2, 2))
    assert found == [[[0, 2], [1, 3]]]


def test_groups_of_different_sizes_come_in_matrices_smallest_first():
    # Group 0 is of four ranks, group 1 of ranks 0 and 1, group 2 of ranks 1, 2 and 3.
    found = matched(
        (0, 0), (1, 0), (1, 0),
        (0, 1), (1, 1), (2, 1), (1, 1),
        (0, 2), (2, 2),
        (0, 3), (2, 3),
        required=(4, 2, 3),
    )  # fmt: skip
    assert found == [[[1, 4], [2, 6]], [[5, 8, 10]], [[0, 3, 7, 9]]]


def test_a_group_of_one_rank_has_nobody_to_wait_for():
    assert matched((0, 0), (0, 0), (1, 0), (1, 1), required=(1, 2)) == [[[2, 3]]]


def test_what_belongs_to_no_group_is_left_out():
    found = matched((UNGROUPED, 0), (0, 0), (0, 1), (UNGROUPED, 1), (0, 1), (0, 0), required=(2,))
    assert found == [[[1, 2], [5, 4]]]
    assert matched((UNGROUPED, 0), (UNGROUPED, 1), required=()) == []


def test_nothing_gives_nothing():
    assert matched(required=()) == []
