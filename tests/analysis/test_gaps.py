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


def test_times_far_from_0_stay_exact():
    far = 2**60 + 1
    assert gaps(compute(far, far + 1, -5), compute(far + 3, far + 4, far)) == [(far + 1, far + 3, far)]


# --- what ends them ------------------------------------------------------------------------


def test_operations_are_counted_kernels_first_each_kind_in_order_of_launch():
    # Kernels by launch: [20, 30) at 3, [0, 5) at 4; copies: [40, 45) at 1, [50, 55) at 2.
    assert endings(
        dtod(50, 55, 2), compute(0, 5, 4), htod(40, 45, 1), comm(20, 30, 3)
    ) == [0, 2, 3]  # fmt: skip


def test_a_gap_that_unified_memory_ends_is_explained_by_what_is_launched_next():
    ops = (compute(0, 10, 1), unified(20, 25), unified(30, 32), memset(40, 42, 33), compute(50, 60, 5))
    # The gaps before the copies that nothing launches wait for the memset, as the one before itself.
    assert gaps(*ops) == [(10, 20, 33), (25, 30, 33), (32, 40, 33), (42, 50, 5)]
    # Kernels first: 0 and 1; copies in order of launch: the memset is 2.
    assert endings(*ops) == [2, 2, 2, 1]


def test_an_operation_whose_launch_was_not_recorded_explains_nothing_though_another_follows():
    assert gaps(compute(0, 10, 1), unified(20, 25), dtod(30, 40), compute(50, 60, 5)) == [
        (10, 20, None),
        (25, 30, None),
        (40, 50, 5),
    ]


@pytest.mark.parametrize(
    ("ops", "expected"),
    [
        ((comm(40, 50, 7), compute(0, 10, 1), memset(60, 70, 8)), [(10, 40, 7), (50, 60, 8)]),
        ((compute(0, 10, 1), comm(10, 20, 2), compute(15, 30, 3), dtod(18, 40, 4)), []),
        # The other stream is busy until 35.
        ((comm(0, 35, 1), compute(10, 15, 2), compute(30, 33, 3), compute(45, 50, 4)), [(35, 45, 4)]),
        # An operation of no length parts a gap in two.
        ((compute(0, 10, 1), compute(14, 14, 2), compute(20, 30, 3)), [(10, 14, 2), (14, 20, 3)]),
        # Of operations that start together a kernel ends the gap, of kernels the first launched.
        ((compute(0, 10, 1), dtod(20, 25, 2), compute(20, 22, 9)), [(10, 20, 9)]),
        ((compute(0, 10, 1), compute(20, 25, 9), comm(20, 22, 4), compute(20, 21)), [(10, 20, 4)]),
        ((compute(0, 10, 1), compute(20, 30), dtod(40, 50)), [(10, 20, None), (30, 40, None)]),
        ((compute(0, 10, 1), unified(20, 25), dtod(20, 22, 9)), [(10, 20, 9)]),
        ((compute(0, 10, 1), unified(20, 25)), [(10, 20, None)]),
    ],
)
def test_where_gaps_are_and_what_ends_them(ops, expected):
    assert gaps(*ops) == expected


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


def test_a_kernel_between_two_launches_breaks_a_run():
    copies = run(16, step=2)  # launched at 1, 3, ... 31
    assert number(*copies, compute(500, 501, 14)) == 9  # the first 7 are too few
    assert number(*copies, comm(500, 501, 16)) == 8 + 8
    assert number(*copies, compute(500, 501, 0), compute(600, 601, 32)) == 16
    # 16 copies in parts of 6, 4 and 6.
    assert number(*copies, compute(500, 501, 12), comm(600, 601, 20)) == 0


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


def test_copies_launched_outside_of_backward_ranges_do_not_count():
    assert number(*run(8), in_backward=[True] * 8) == 8
    assert number(*run(8), in_backward=[False] * 8) == 0
    # The run is one whatever the ranges; what of it lies in one counts.
    assert number(*run(8), in_backward=[True] * 3 + [False] * 5) == 3


# --- what they cost ------------------------------------------------------------------------


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
