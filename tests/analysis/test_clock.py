"""How far the clocks of reports are apart: medians of ends, their spread, and when they are applied."""

from __future__ import annotations

import numpy as np
import pytest

from nsyspipe.analysis.clock import ClockOffset, clock_offsets, floor_median
from tests.build.make import ints

NONE = ClockOffset(0, None)


def offsets(*collectives: tuple[int, ...], reports: tuple[int, ...] | None = None, n_reports=None):
    """Return (offset, error) of each report; a collective is its end on each rank, rank i being of `reports[i]`."""
    reports = tuple(range(len(collectives[0]))) if reports is None else reports
    blocks, ends, owner = [], [], []
    for one in collectives:
        blocks.append(np.arange(len(ends), len(ends) + len(one))[np.newaxis, :])
        ends += one
        owner += reports[: len(one)]
    found = clock_offsets(blocks, ints(*ends), ints(*owner), n_reports or max(reports) + 1)
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


def test_the_median_is_that_of_the_last_axis():
    assert floor_median(np.array([[1, 2], [4, 6]])).tolist() == [1, 5]


# --- offsets --------------------------------------------------------------------------------------


def test_the_offset_is_the_median_difference_from_the_median_end():
    # Rank 1 is the median end; ranks 0 and 2 differ from it by -40, -40, -40 and +100, +100, +100.
    found = offsets((960, 1000, 1100), (1960, 2000, 2100), (2960, 3000, 3100))
    assert found == [(-40, 0), (0, 0), (100, 0)]


def test_two_ranks_share_the_difference_between_them():
    # Ends 10 apart: the median lies 5 from both.
    assert offsets((100, 110), (200, 210), (300, 310)) == [(-5, 0), (5, 0)]
    # 5 apart: the median end is floored to 2 after the first.
    assert offsets((100, 105), (200, 205), (300, 305)) == [(-2, 0), (3, 0)]


def test_the_median_end_of_four_ranks_lies_between_the_middle_two():
    # The median end of 0, 10, 31, 90 is floor(20.5) = 20.
    assert offsets(*[(0, 10, 31, 90)] * 3) == [(-20, 0), (-10, 0), (11, 0), (70, 0)]


def test_the_median_of_an_even_number_of_differences_is_floored():
    # Of rank 2: 10, 11, 20, 30: floor(15.5) = 15; deviations 5, 4, 5, 15: median 5, x 1.4826 = 7.413.
    found = offsets((0, 0, 10), (0, 0, 11), (0, 0, 20), (0, 0, 30))
    assert found == [(0, 0), (0, 0), (15, 7)]


@pytest.mark.parametrize(
    ("deviation", "error"),
    [(0, 0), (1, 1), (2, 3), (3, 4), (10, 15), (1000, 1483), (10**9, 1_482_600_000)],
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


def test_fewer_than_three_differences_tell_nothing():
    assert offsets((0, 90)) == [(0, None)] * 2
    assert offsets((0, 90), (100, 190)) == [(0, None)] * 2
    assert offsets((0, 90), (100, 190), (200, 290)) == [(-45, 0), (45, 0)]


def test_a_report_of_several_ranks_has_one_offset_from_all_its_differences():
    # Ranks 0, 1, 2 are report 0, rank 3 is report 1; the median end of (0, 1, 2, 100) is floor(1.5) = 1.
    # Report 0: -1, 0, 1 of one collective are three differences. Report 1: 99 alone is too few.
    assert offsets((0, 1, 2, 100), reports=(0, 0, 0, 1)) == [(0, 1), (0, None)]
    # A second collective, (10, 11, 12, 150): report 0 has -1, 0, 1, -1, 0, 1: floor(0) and MAD 1.
    found = offsets((0, 1, 2, 100), (10, 11, 12, 150), reports=(0, 0, 0, 1))
    assert found == [(0, 1), (0, None)]
    # A third: report 1 has 99, 139, 99: 99, and deviations 0, 40, 0.
    third = (20, 21, 22, 120)
    found = offsets((0, 1, 2, 100), (10, 11, 12, 150), third, reports=(0, 0, 0, 1))
    assert found == [(0, 1), (99, 0)]


def test_collectives_of_different_sizes_count_alike():
    # Of ranks 0, 1: -5, 5 twice; of all three, (0, 10, 40): -10, 0, 30.
    found = offsets((100, 110), (200, 210), (0, 10, 40), reports=(0, 1, 2))
    # Report 0: -5, -5, -10; report 1: 5, 5, 0; report 2: 30 alone.
    assert found == [(-5, 0), (5, 0), (0, None)]


def test_a_report_without_matched_collectives_stays_where_it_is():
    assert offsets((0, 20), (100, 120), (200, 220), n_reports=3) == [(-10, 0), (10, 0), (0, None)]


def test_without_any_collective_nothing_is_known():
    assert clock_offsets([], ints(), ints(), 2) == [NONE, NONE]


@pytest.mark.parametrize("n_reports", [1, 2])
def test_on_one_clock_nothing_is_off_whatever_the_ends_say(n_reports):
    exact = [ClockOffset(0, 0)] * n_reports
    matched = [np.array([[0, 1], [2, 3], [4, 5]])]
    ends, report = ints(0, 90, 100, 120, 200, 290), np.zeros(6, np.int64)
    assert clock_offsets(matched, ends, report, n_reports, is_one_clock=True) == exact
    assert clock_offsets([], ints(), ints(), n_reports, is_one_clock=True) == exact


def test_ends_far_from_zero_are_exact():
    at = 2**61 + 1  # a float would lose the 1
    assert offsets(*[(at + k, at + k + 7, at + k + 9) for k in range(3)]) == [
        (-7, 0),
        (0, 0),
        (2, 0),
    ]
