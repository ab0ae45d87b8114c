"""Arrivals, skew, waiting and transfer of matched collectives."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pytest

from nsyspipe.analysis.collectives import NOBODY, waiting
from tests.build.make import ints

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


def test_lateness_counts_from_the_second_last_and_skew_from_the_first():
    # Arrivals 10, 90, 40, 70: the last is 90, the second-last 70, the first 10.
    found = measure([[[0, 1, 2, 3]]], (10, 90, 40, 70), (100, 101, 102, 103))
    assert found["arrival_skew_ns"] == [80] * 4
    assert found["wait_ns"] == [80, 0, 50, 20]
    assert found["transfer_ns"] == [10, 11, 12, 13]
    assert found["late_by_ns"] == [0, 20, 0, 0]
    assert found["held_up_ns"] == [0, 80, 0, 0]
    assert found["is_late_significant"] == [False, True, False, False]


def test_a_tie_for_the_last_place_counts_for_nobody():
    found = measure([[[0, 1, 2]]], (10, 50, 50), (100, 100, 100))
    assert found["late_by_ns"] == [0, 0, 0]
    assert found["held_up_ns"] == [0, 40, 0]  # the lowest of those that came last
    assert found["is_late_significant"] == [False] * 3
    assert found["wait_ns"] == [40, 0, 0]
    assert found["is_significant"] == [True] * 3


def test_ranks_that_arrive_together_wait_for_nobody():
    found = measure([[[0, 1]]], (10, 10), (30, 31))
    assert (found["arrival_skew_ns"], found["wait_ns"], found["late_by_ns"]) == ([0, 0],) * 3
    assert found["transfer_ns"] == [20, 21]
    assert found["is_significant"] == [False, False]


def test_an_operation_that_ends_before_the_last_arrives_transfers_0_and_is_counted():
    # Rank 0 ends at 130, 10 before rank 1 arrives; rank 2 ends just then, which is no fault.
    found = measure([[[0, 1, 2]]], (100, 140, 110), (130, 200, 140))
    assert found["transfer_ns"] == [0, 60, 0]
    assert found["wait_ns"] == [40, 0, 30]  # last start less own start, whatever the end


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
def test_a_skew_must_exceed_the_larger_error_of_the_two_ranks_concerned(
    error, significant, late_significant
):
    found = measure([[[0, 1, 2]]], (100, 130, 160), (200, 200, 200), error)
    assert found["is_significant"] == [significant] * 3
    assert found["is_late_significant"] == [False, False, late_significant]


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2)])
@pytest.mark.parametrize(("skew", "is_significant"), [(50, False), (51, True)])
def test_of_ranks_that_tie_the_larger_error_counts_whatever_their_numbers(
    order, skew, is_significant
):
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
