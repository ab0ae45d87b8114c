"""When the devices of a rank do nothing, and which operation ends each such gap."""

from __future__ import annotations

import pytest

from nsyspipe.analysis.attribution import NEVER
from nsyspipe.analysis.breakdown import idle_gaps
from tests.build.make import comm, compute, dtod, htod, memset, operations, unified


def gaps(*ops):
    """Return (start, end, launch of what ends it; None without one) of each gap."""
    found = idle_gaps(operations(*ops))
    assert len(found) == found.starts.size
    launches = [None if one == NEVER else one for one in found.launch.tolist()]
    return list(zip(found.starts.tolist(), found.ends.tolist(), launches, strict=True))


def endings(*ops):
    """Return which operation ends each gap: kernels in order of launch, then copies."""
    return idle_gaps(operations(*ops)).operation.tolist()


def latency(*ops):
    return idle_gaps(operations(*ops)).latency_ns


# --- where gaps are ------------------------------------------------------------------------


def test_a_gap_lies_between_the_last_end_and_the_next_start_whatever_the_rows_order():
    assert gaps(
        comm(40, 50, 7), compute(0, 10, 1), memset(60, 70, 8), dtod(20, 30, 2)
    ) == [(10, 20, 2), (30, 40, 7), (50, 60, 8)]  # fmt: skip


def test_operations_that_touch_or_overlap_leave_no_gap():
    assert gaps(compute(0, 10, 1), comm(10, 20, 2), compute(15, 30, 3), dtod(18, 40, 4)) == []


def test_a_long_operation_hides_the_gaps_of_those_that_run_beside_it():
    # Between [10, 15) and [30, 40) the other stream is busy until 35.
    assert gaps(comm(0, 35, 1), compute(10, 15, 2), compute(30, 33, 3), compute(45, 50, 4)) == [
        (35, 45, 4)
    ]


def test_nothing_before_the_first_and_after_the_last_operation_is_a_gap():
    assert gaps(compute(100, 110, 5)) == []
    assert gaps(dtod(100, 110)) == []


def test_an_operation_of_no_length_parts_a_gap_in_two():
    assert gaps(compute(0, 10, 1), compute(14, 14, 2), compute(20, 30, 3)) == [
        (10, 14, 2),
        (14, 20, 3),
    ]
    assert gaps(compute(0, 10, 1), compute(10, 10, 2), compute(20, 30, 3)) == [(10, 20, 3)]


def test_times_far_from_0_stay_exact():
    far = 2**60 + 1
    assert gaps(compute(far, far + 1, -5), compute(far + 3, far + 4, far)) == [
        (far + 1, far + 3, far)
    ]


# --- what ends them ------------------------------------------------------------------------


def test_operations_are_counted_kernels_first_each_kind_in_order_of_launch():
    # Kernels by launch: [20, 30) at 3, [0, 5) at 4; copies: [40, 45) at 1, [50, 55) at 2.
    assert endings(
        dtod(50, 55, 2), compute(0, 5, 4), htod(40, 45, 1), comm(20, 30, 3)
    ) == [0, 2, 3]  # fmt: skip


def test_of_operations_that_start_together_a_kernel_ends_the_gap_though_a_copy_was_launched_first():
    ops = compute(0, 10, 1), dtod(20, 25, 2), compute(20, 22, 9)
    assert (gaps(*ops), endings(*ops)) == ([(10, 20, 9)], [1])


def test_of_kernels_that_start_together_the_first_launched_ends_the_gap():
    assert gaps(compute(0, 10, 1), compute(20, 25, 9), comm(20, 22, 4), compute(20, 21)) == [
        (10, 20, 4)
    ]


def test_a_gap_that_an_operation_without_a_launch_ends_says_so():
    assert gaps(compute(0, 10, 1), compute(20, 30), dtod(40, 50), compute(60, 70, 5)) == [
        (10, 20, None),
        (30, 40, None),
        (50, 60, 5),
    ]


def test_a_gap_that_unified_memory_ends_is_explained_by_what_is_launched_next():
    ops = (
        compute(0, 10, 1),
        unified(20, 25),
        unified(30, 32),
        memset(40, 42, 33),
        compute(50, 60, 5),
    )
    # The gaps before the copies that nothing launches wait for the memset, as the one before itself.
    assert gaps(*ops) == [(10, 20, 33), (25, 30, 33), (32, 40, 33), (42, 50, 5)]
    # Kernels first: 0 and 1; copies in order of launch: the memset is 2.
    assert endings(*ops) == [2, 2, 2, 1]


def test_of_what_starts_with_unified_memory_the_launched_one_explains_the_gap():
    assert gaps(compute(0, 10, 1), unified(20, 25), dtod(20, 22, 9)) == [(10, 20, 9)]


def test_an_operation_whose_launch_was_not_recorded_explains_nothing_though_another_follows():
    assert gaps(compute(0, 10, 1), unified(20, 25), dtod(30, 40), compute(50, 60, 5)) == [
        (10, 20, None),
        (25, 30, None),
        (40, 50, 5),
    ]


def test_unified_memory_at_the_end_has_no_explanation():
    assert gaps(compute(0, 10, 1), unified(20, 25)) == [(10, 20, None)]


# --- latency -------------------------------------------------------------------------------


def test_the_latency_is_the_shortest_time_from_a_launch_to_the_start_of_its_kernel():
    # 90, 7 and 30; a copy's 1 does not count, nor does a kernel without a launch.
    ops = compute(100, 110, 10), comm(57, 60, 50), compute(40, 50, 10), dtod(21, 30, 20)
    assert latency(*ops, compute(5, 6)) == 7


@pytest.mark.parametrize(("waited", "expected"), [(20_000, 20_000), (20_001, 20_000), (0, 0), (-3, 0)])  # fmt: skip
def test_no_latency_is_negative_or_longer_than_a_launch_can_take(waited, expected):
    # Where even the shortest is long, the device never was idle; a kernel that starts before its
    # launch has two clocks.
    assert latency(compute(100_000, 100_001, 100_000 - waited)) == expected


def test_without_launched_kernels_the_latency_is_0():
    assert latency(compute(10, 20)) == 0
    assert latency(dtod(10, 20, 5), compute(30, 40)) == 0
