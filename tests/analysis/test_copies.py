"""Copies of gradients out of their buckets: which copies they are, and what they cost."""

from __future__ import annotations

import numpy as np
import pytest

from nsyspipe.analysis.breakdown import GRAD_COPY_COLUMNS, device_time, grad_copies
from nsyspipe.model.problems import Recorded
from tests.build.make import comm, compute, dtod, htod, listed, memset, operations, windows


def columns(*ops, in_backward=None, recorded=None, spans=((0, 1000),)):
    """Return the figures of some windows; the flags are of the copies in order of launch."""
    made = operations(*ops)
    flags = None if in_backward is None else np.array(in_backward, np.bool_)
    device = device_time(made)
    found = grad_copies(made, windows(*spans), device, flags, recorded or Recorded())
    assert tuple(found) == GRAD_COPY_COLUMNS
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
    expected = {name: [0] for name in GRAD_COPY_COLUMNS}
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
    assert found == dict.fromkeys(GRAD_COPY_COLUMNS)


def test_without_sizes_bytes_alone_are_unknown():
    found = columns(*run(8), recorded=Recorded(sizes=False))
    assert found == columns(*run(8)) | {"grad_copy_bytes": None}
