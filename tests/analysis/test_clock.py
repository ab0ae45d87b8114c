"""Clocks of ranks: offsets told by collectives, matching, and waiting."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
import pytest

from nsyspipe.analysis.clock import ClockOffset, clock_offsets, floor_median
from nsyspipe.analysis.collectives import NOBODY, UNGROUPED, match, waiting
from tests.build.make import ints

NONE = ClockOffset(0, None)


def offsets(*collectives: tuple[int, ...], reports: tuple[int, ...] | None = None):
    """Return (offset, error) of each report; a collective is its end on each rank, rank i being of `reports[i]`."""
    reports = tuple(range(len(collectives[0]))) if reports is None else reports
    blocks: list[Any] = []
    ends: list[int] = []
    owner: list[int] = []
    for one in collectives:
        blocks.append(np.arange(len(ends), len(ends) + len(one))[np.newaxis, :])
        ends += one
        owner += reports[: len(one)]
    found = clock_offsets(blocks, ints(*ends), ints(*owner), max(reports) + 1)
    return [(one.offset_ns, one.error_ns) for one in found]


# --- the floored median ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "median"),
    [
        ([5], 5),
        ([1, 2, 9], 2),
        ([1, 2], 1),  # 1.5
        ([1, 3], 2),
        ([-2, -1], -2),  # -1.5
        ([-1, 0], -1),  # -0.5
        ([0, 4, 5, 5], 4),  # 4.5
        ([2**62, 2**62 + 1], 2**62),  # their sum is no int64
        ([-(2**61), 2**61], 0),
    ],
)
def test_the_median_of_an_even_number_is_floored(values, median):
    assert floor_median(ints(*values)) == median


# --- offsets --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("deviation", "error"), [(0, 0), (1, 1), (2, 3), (3, 4), (10, 15), (1000, 1483), (10**9, 1_482_600_000)]
)
def test_the_error_is_the_spread_of_the_differences_to_the_nearest_ns(deviation, error):
    # Differences of rank 2: 10^10 less the deviation, 10^10, 10^10 and more; x 1.4826.
    at = 10**10
    found = offsets((0, 0, at - deviation), (0, 0, at), (0, 0, at + deviation))
    assert found == [(0, 0), (0, 0), (at, error)]


@pytest.mark.parametrize(("offset", "applied"), [(4, 0), (5, 5), (-4, 0), (-5, -5)])
def test_an_offset_is_applied_only_where_it_exceeds_its_error(offset, applied):
    # Deviations 3, 0, 3 (rank 1 stays the median, as the other two lie beside it): error round(4.4478) = 4.
    low, high = offset - 3, offset + 3
    ends = [(-second, 0, second) for second in (low, offset, high)]
    assert offsets(*ends) == [(-applied, 4), (0, 0), (applied, 4)]


FOUR = (0, 1, 2, 100), (10, 11, 12, 150), (20, 21, 22, 120)
FAR = 2**61 + 1  # a float would lose the 1


@pytest.mark.parametrize(
    ("ends", "reports", "expected"),
    [
        # Rank 1 is the median end; ranks 0 and 2 differ from it by -40, -40, -40 and +100, +100, +100.
        ([(960, 1000, 1100), (1960, 2000, 2100), (2960, 3000, 3100)], None, [(-40, 0), (0, 0), (100, 0)]),
        # Of rank 2: 10, 11, 20, 30: floor(15.5) = 15; deviations 5, 4, 5, 15: median 5, x 1.4826 = 7.413.
        ([(0, 0, 10), (0, 0, 11), (0, 0, 20), (0, 0, 30)], None, [(0, 0), (0, 0), (15, 7)]),
        # Fewer than three differences tell nothing.
        ([(0, 90)], None, [(0, None)] * 2),
        ([(0, 90), (100, 190)], None, [(0, None)] * 2),
        ([(0, 90), (100, 190), (200, 290)], None, [(-45, 0), (45, 0)]),
        # Ranks 0, 1, 2 are report 0: -1, 0, 1 of the first collective are three differences, as its median end is
        # floor(1.5) = 1. Rank 3 is report 1: 99 alone is too few, and so is 139 with it; with 99 deviations are 0, 40, 0.
        (FOUR[:1], (0, 0, 0, 1), [(0, 1), (0, None)]),
        (FOUR[:2], (0, 0, 0, 1), [(0, 1), (0, None)]),
        (FOUR, (0, 0, 0, 1), [(0, 1), (99, 0)]),
        ([(FAR + k, FAR + k + 7, FAR + k + 9) for k in range(3)], None, [(-7, 0), (0, 0), (2, 0)]),
    ],
)
def test_the_offset_is_the_median_difference_from_the_median_end(ends, reports, expected):
    assert offsets(*ends, reports=reports) == expected


def test_without_any_collective_nothing_is_known():
    assert clock_offsets([], ints(), ints(), 2) == [NONE, NONE]


@pytest.mark.parametrize("n_reports", [1, 2])
def test_on_one_clock_nothing_is_off_whatever_the_ends_say(n_reports):
    exact = [ClockOffset(0, 0)] * n_reports
    matched = [np.array([[0, 1], [2, 3], [4, 5]])]
    ends, report = ints(0, 90, 100, 120, 200, 290), np.zeros(6, np.int64)
    assert clock_offsets(matched, ends, report, n_reports, is_one_clock=True) == exact
    assert clock_offsets([], ints(), ints(), n_reports, is_one_clock=True) == exact


def matched(*rows: tuple[int, int], required: tuple[int, ...]):
    """Match operations given as (group, rank); rows of the result are collectives, columns ranks."""
    group, rank = ints(*(row[0] for row in rows)), ints(*(row[1] for row in rows))
    return [block.tolist() for block in match(group, rank, ints(*required))]


def test_the_kth_operation_of_each_rank_is_the_same_collective():
    found = matched((0, 0), (0, 0), (0, 0), (0, 1), (0, 1), (0, 1), required=(2,))
    assert found == [[[0, 3], [1, 4], [2, 5]]]


@pytest.mark.parametrize(
    ("rows", "required", "expected"),
    [
        # Columns are ranks in ascending order, whichever stands first; rows of ranks may alternate.
        ([(0, 2), (0, 1), (0, 0)], (3,), [[[2, 1, 0]]]),
        ([(0, 1), (0, 0), (0, 1), (0, 0)], (2,), [[[1, 0], [3, 2]]]),
        # Each group by itself, in order of group and then of place: order between groups does not count.
        ([(0, 0), (1, 0), (0, 0), (1, 1), (0, 1), (0, 1)], (2, 2), [[[0, 4], [2, 5], [1, 3]]]),
        # Both ranks have three operations: (2, 1) of groups 0 and 1 on rank 0, (1, 2) on rank 1.
        ([(0, 0), (0, 0), (1, 0), (0, 1), (1, 1), (1, 1)], (2, 2), []),
        # Rank 1 lacks group 0.
        ([(0, 0), (0, 2), (1, 0), (1, 1), (1, 2)], (3, 3), [[[2, 3, 4]]]),
        # Subgroups of ranks (0, 2) and (1, 3) need only their own.
        ([(0, 0), (1, 1), (0, 2), (1, 3)], (2, 2), [[[0, 2], [1, 3]]]),
        ([], (), []),
    ],
)
def test_which_operations_are_one_collective(rows, required, expected):
    assert matched(*rows, required=required) == expected


def test_a_group_whose_counts_differ_is_not_matched_and_others_keep_theirs():
    # Group 1 has two operations on rank 0 and one on rank 1.
    found = matched((0, 0), (1, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1), required=(2, 2, 2))
    assert found == [[[0, 4], [3, 6]]]


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


NUMBERS = (
    "collective_id", "n_ranks", "first_start_ns", "last_start_ns", "arrival_skew_ns", "wait_ns", "transfer_ns",
    "late_by_ns",
)  # fmt: skip
FLAGS = ("is_matched", "is_significant", "is_late_significant")


def measure(blocks, starts, ends, error=None):
    """Return everything as lists; clocks are exact unless told."""
    error = [0] * len(starts) if error is None else error
    matched = [np.array(block, np.int64) for block in blocks]
    found = asdict(waiting(matched, ints(*starts), ints(*ends), ints(*error)))
    return {name: one.tolist() for name, one in found.items()}


def test_two_ranks_wait_for_the_later_one():
    # Arrivals at 100 and 140, both done at 200.
    assert measure([[[0, 1]]], (100, 140), (200, 200)) == {
        "is_matched": [True, True],
        "collective_id": [0, 0],
        "n_ranks": [2, 2],
        "first_start_ns": [100, 100],
        "last_start_ns": [140, 140],
        "arrival_skew_ns": [40, 40],
        "wait_ns": [40, 0],
        "transfer_ns": [60, 60],
        "late_by_ns": [0, 40],
        "held_up_ns": [0, 40],
        "is_significant": [True, True],
        "is_late_significant": [False, True],
    }


@pytest.mark.parametrize(
    ("starts", "ends", "expected"),
    [
        # Lateness counts from the second-last, skew from the first.
        (
            (10, 90, 40, 70),
            (100, 101, 102, 103),
            {"arrival_skew_ns": [80] * 4, "wait_ns": [80, 0, 50, 20], "transfer_ns": [10, 11, 12, 13]}
            | {"late_by_ns": [0, 20, 0, 0], "held_up_ns": [0, 80, 0, 0]},
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
        ((10, 10), (30, 31), {"arrival_skew_ns": [0, 0], "transfer_ns": [20, 21], "is_significant": [False] * 2}),
        # Rank 0 ends at 130, 10 before rank 1 arrives; rank 2 ends just then.
        (
            (100, 140, 110),
            (130, 200, 140),
            {"transfer_ns": [0, 60, 0], "wait_ns": [40, 0, 30], "held_up_ns": [0, 30, 0]},
        ),
    ],
)
def test_what_one_collective_says(starts, ends, expected):
    found = measure([[[*range(len(starts))]]], starts, ends)
    assert {name: found[name] for name in expected} == expected


def test_several_blocks_number_their_collectives_one_after_the_other():
    # A collective of operations 4 and 0, two of (1, 5, 3) and (2, 6, 7); operation 8 is not matched.
    starts = (10, 20, 30, 25, 12, 21, 31, 36, 99)
    ends = (40, 50, 60, 50, 40, 50, 60, 60, 100)
    found = measure([[[4, 0]], [[1, 5, 3], [2, 6, 7]]], starts, ends)
    assert {name: found[name] for name in NUMBERS} == {
        "collective_id": [0, 1, 2, 1, 0, 1, 2, 2, NOBODY],
        "n_ranks": [2, 3, 3, 3, 2, 3, 3, 3, 0],
        "first_start_ns": [10, 20, 30, 20, 10, 20, 30, 30, 0],
        "last_start_ns": [12, 25, 36, 25, 12, 25, 36, 36, 0],
        "arrival_skew_ns": [2, 5, 6, 5, 2, 5, 6, 6, 0],
        "wait_ns": [2, 5, 6, 0, 0, 4, 5, 0, 0],
        "transfer_ns": [28, 25, 24, 25, 28, 25, 24, 24, 0],
        "late_by_ns": [0, 0, 0, 4, 2, 0, 0, 5, 0],
    }
    assert found["is_matched"] == [True] * 8 + [False]


@pytest.mark.parametrize(
    ("error", "significant", "late_significant"),
    [
        # Arrivals 100, 130, 160: skew 60 of ranks 0 and 2, lateness 30 of ranks 2 and 1.
        ((0, 0, 0), True, True),
        ((59, 29, 29), True, True),
        ((60, 0, 0), False, True),  # equal is not more
        ((0, 30, 0), True, False),
        ((0, 1000, 0), True, False),  # rank 1 has no part in the skew
        ((1000, 0, 0), False, True),  # nor rank 0 in the lateness
        ((0, 0, 30), True, False),
        ((0, 0, 60), False, False),
        ((2**62, 2**62, 2**62), False, False),
    ],
)
def test_a_skew_must_exceed_the_larger_error_of_the_two_ranks_concerned(error, significant, late_significant):
    found = measure([[[0, 1, 2]]], (100, 130, 160), (200, 200, 200), error)
    assert found["is_significant"] == [significant] * 3
    assert found["is_late_significant"] == [False, False, late_significant]


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2)])
@pytest.mark.parametrize(("skew", "is_significant"), [(50, False), (51, True)])
def test_of_ranks_that_tie_the_larger_error_counts_whatever_their_numbers(order, skew, is_significant):
    # Two ranks arrive first, with errors 5 and 50, then the last. As second-last they tie as well.
    error = np.array([5, 50, 0])[list(order)]
    found = measure([[[0, 1, 2]]], (100, 100, 100 + skew), (200, 200, 200), error)
    assert found["is_significant"] == [is_significant] * 3
    assert found["is_late_significant"] == [False, False, is_significant]
    # And two that arrive last.
    found = measure([[[0, 1, 2]]], (100 + skew, 100 + skew, 100), (200, 200, 200), error)
    assert found["is_significant"] == [is_significant] * 3


def test_times_far_from_zero_are_exact():
    at = 2**62
    found = measure([[[0, 1]]], (at + 1, at + 4), (at + 9, at + 8))
    assert (found["wait_ns"], found["transfer_ns"]) == ([3, 0], [5, 4])


def test_nothing_matched_is_nothing_known():
    found = measure([], (10, 20), (30, 30))
    assert {name: found[name] for name in FLAGS} == {name: [False, False] for name in FLAGS}
    assert found["collective_id"] == [NOBODY, NOBODY]
    assert measure([], (), ())["wait_ns"] == []
