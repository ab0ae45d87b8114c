"""Gaps of the device, and copies."""

from __future__ import annotations

import numpy as np
import pytest

from nsyspipe.analysis.attribution import NEVER
from nsyspipe.analysis.breakdown import device_time, grad_copies, idle_gaps
from nsyspipe.model.problems import Recorded
from tests.build.make import comm, compute, dtod, htod, listed, memset, operations, unified, windows

COLUMNS = ("grad_copy_ns", "exposed_grad_copy_ns", "grad_copy_span_ns", "grad_copy_bytes", "n_grad_copies")


def gaps(*ops):
    """Return (start, end, launch of what ends it; None without one) of each gap."""
    found = idle_gaps(operations(*ops))
    assert found.starts.size == found.starts.size
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
    assert gaps(comm(0, 35, 1), compute(10, 15, 2), compute(30, 33, 3), compute(45, 50, 4)) == [(35, 45, 4)]


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
    assert gaps(compute(far, far + 1, -5), compute(far + 3, far + 4, far)) == [(far + 1, far + 3, far)]


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
    assert gaps(compute(0, 10, 1), compute(20, 25, 9), comm(20, 22, 4), compute(20, 21)) == [(10, 20, 4)]


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


def columns(*ops, in_backward=None, recorded=None, spans=((0, 1000),)):
    """Return the figures of some windows; the flags are of the copies in order of launch."""
    made = operations(*ops)
    flags = None if in_backward is None else np.array(in_backward, np.bool_)
    device = device_time(made)
    found = grad_copies(made, windows(*spans), device, flags, recorded or Recorded())
    assert tuple(found) == COLUMNS
    return listed(found)


def number(*ops, **options):
    return columns(*ops, **options)["n_grad_copies"][0]


def run(n_copies, first=1, *, step=1, n_bytes=100):
    """Return DtoD copies launched one after the other: of 2 ns each, at 10 times their launch."""
    launches = range(first, first + n_copies * step, step)
    return [dtod(10 * at, 10 * at + 2, at, n_bytes) for at in launches]


# --- which copies --------------------------------------------------------------------------


@pytest.mark.parametrize(("n_copies", "found"), [(7, 0), (8, 8), (9, 9)])
def test_eight_copies_launched_one_after_the_other_are_a_run(n_copies, found):
    assert number(*run(n_copies)) == found


def test_a_kernel_between_two_launches_breaks_a_run():
    copies = run(16, step=2)  # launched at 1, 3, ... 31
    assert number(*copies, compute(500, 501, 14)) == 9  # the first 7 are too few
    assert number(*copies, comm(500, 501, 16)) == 8 + 8
    assert number(*copies, compute(500, 501, 0), compute(600, 601, 32)) == 16
    # 16 copies in parts of 6, 4 and 6.
    assert number(*copies, compute(500, 501, 12), comm(600, 601, 20)) == 0


def test_kernels_are_asked_for_their_launch_and_not_for_when_they_run():
    assert number(*run(8), compute(31, 39, 0)) == 8
    assert number(*run(8), compute(31, 39)) == 8  # launched by nobody


def test_another_kind_of_copy_breaks_a_run():
    for other in htod, memset:
        copies = run(16, step=2)
        assert number(*copies, other(500, 501, 14)) == 9
        assert number(*copies, other(500, 501, 16)) == 16
        assert number(*copies, other(500, 501, 12), other(600, 601, 20)) == 0


def test_what_is_launched_in_the_same_nanosecond_comes_after_the_copies():
    # After the 7th of 15 copies: [1, 7] and [8, 15]; at the first or the last it breaks nothing.
    for other in compute, htod:
        assert [number(*run(15), other(500, 501, at)) for at in (1, 7, 8, 15)] == [14, 8, 8, 15]


def test_copies_of_other_kinds_are_no_run_however_many():
    assert number(*(htod(10 * at, 10 * at + 2, at) for at in range(9))) == 0
    assert number(*(memset(10 * at, 10 * at + 2, at) for at in range(9))) == 0


def test_copies_without_a_launch_are_in_no_run():
    assert number(*(dtod(10 * at, 10 * at + 2) for at in range(9))) == 0
    assert number(*run(7), dtod(300, 302)) == 0
    assert number(*run(8), dtod(300, 302)) == 8


def test_rows_in_any_order_are_the_same_run():
    assert number(*reversed(run(8)), compute(900, 901, 0)) == 8


def test_copies_launched_outside_of_backward_ranges_do_not_count():
    assert number(*run(8), in_backward=[True] * 8) == 8
    assert number(*run(8), in_backward=[False] * 8) == 0
    # The run is one whatever the ranges; what of it lies in one counts.
    assert number(*run(8), in_backward=[True] * 3 + [False] * 5) == 3


def test_without_copies_there_are_no_gradient_copies():
    expected = {name: [0] for name in COLUMNS}
    assert columns(compute(0, 10, 1)) == expected
    assert columns(compute(0, 10, 1), in_backward=[]) == expected


# --- what they cost ------------------------------------------------------------------------


def test_their_time_is_a_union_and_their_bytes_a_sum():
    # Copies [10, 12), [20, 22), ... [80, 82); one more [11, 13) overlaps the first.
    found = columns(*run(8), dtod(11, 13, 9, 50))
    assert found == {
        "grad_copy_ns": [17], "exposed_grad_copy_ns": [17], "grad_copy_span_ns": [72], "grad_copy_bytes": [850], "n_grad_copies": [9],
    }  # fmt: skip


def test_what_lies_beside_neither_compute_nor_communication_is_exposed():
    # Of 16 ns compute hides [10, 12) and [20, 21), communication [20, 22) and [30, 31).
    found = columns(*run(8), compute(5, 21), comm(20, 31))
    assert found["exposed_grad_copy_ns"] == [16 - 2 - 2 - 1]
    # Another copy beside them hides nothing.
    assert columns(*run(8), htod(0, 100))["exposed_grad_copy_ns"] == [16]


def test_time_is_clipped_to_windows_and_copies_count_where_they_start():
    # [0, 41) has the four first ones less 1 ns of the fourth, [41, 60) its rest and the fifth, which ends at 52:
    # the gap after that is between two windows' copies.
    found = columns(*run(8), spans=[(0, 41), (41, 60), (60, 80)])
    assert found == {
        "grad_copy_ns": [7, 3, 4],
        "exposed_grad_copy_ns": [7, 3, 4],
        "grad_copy_span_ns": [31, 11, 20],
        "grad_copy_bytes": [400, 100, 200],
        "n_grad_copies": [4, 1, 2],
    }


def test_the_gaps_between_them_count_up_to_20_us():
    # [0, 100) ... [140 000, 140 100): 19 900 apart, but one of 20 001 after the fourth.
    starts = [place * 20_000 + (101 if place > 3 else 0) for place in range(8)]
    copies = [dtod(start, start + 100, place, 1) for place, start in enumerate(starts)]
    found = columns(*copies, spans=[(0, 200_000)])
    assert found["grad_copy_span_ns"] == [2 * (3 * 20_000 + 100)]


# --- what was not recorded -----------------------------------------------------------------


@pytest.mark.parametrize("fact", ["kernels", "memcpy", "kinds"])
def test_without_kernels_copies_or_their_kinds_nothing_is_known(fact):
    found = columns(*run(8), recorded=Recorded(**{fact: False}))
    assert found == dict.fromkeys(COLUMNS)


def test_without_sizes_bytes_alone_are_unknown():
    found = columns(*run(8), recorded=Recorded(sizes=False))
    assert found == columns(*run(8)) | {"grad_copy_bytes": None}
