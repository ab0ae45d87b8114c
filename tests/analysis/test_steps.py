"""Step windows on the device, from step ranges of the host."""

from __future__ import annotations

import pytest

from nsyspipe.analysis.steps import capture_window, step_windows
from tests.build.make import comm, compute, dtod, htod, members, memset, operations

THREE = members((0, 100), (100, 200), (200, 300))


def rows(windows):
    """Return (member, start, end, is_complete) of each window."""
    columns = (windows.member, windows.starts, windows.ends, windows.is_complete)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def windows(step_ranges, *ops):
    return rows(step_windows(step_ranges, operations(*ops)))


def test_windows_tile_time_from_first_kernel_to_first_kernel():
    found = windows(
        THREE,
        compute(20, 60, 10),
        compute(60, 90, 99),
        comm(120, 150, 100),  # a launch at the start belongs; so step 1 begins with comm
        compute(310, 380, 250),  # the device lags behind the host
    )
    assert found == [(0, 20, 120, True), (1, 120, 310, True), (2, 310, 380, False)]


def test_a_window_starts_with_the_kernel_that_starts_first_not_the_one_launched_first():
    found = windows(THREE, compute(50, 60, 5), comm(30, 40, 20), compute(170, 180, 110), compute(130, 150, 190))
    assert found == [(0, 30, 130, True), (1, 130, 180, False)]


def test_times_above_what_a_float_holds_stay_exact():
    far = 2**60
    found = windows(
        members((far, far + 3), (far + 3, far + 6)), compute(far + 1, far + 2, far), compute(far + 7, far + 9, far + 3)
    )
    assert found == [(0, far + 1, far + 7, True), (1, far + 7, far + 9, False)]


def test_without_any_launch_the_host_times_are_the_windows():
    apart = members((0, 90), (100, 190))
    found = windows(apart, compute(20, 60), comm(500, 900), dtod(10, 20))
    assert found == [(0, 0, 100, True), (1, 100, 190, False)]


def test_where_only_copies_have_launches_there_are_no_windows():
    assert windows(THREE, compute(20, 60), dtod(10, 20, 5)) == []


def test_no_steps_give_no_windows():
    assert windows(members(), compute(20, 60, 10)) == []
    assert windows(members(), compute(20, 60)) == []


def test_a_capture_is_one_cut_off_window_from_first_start_to_last_end():
    ops = operations(compute(20, 60, 10), comm(50, 55), dtod(5, 9), memset(58, 70))
    assert rows(capture_window(ops)) == [(0, 5, 70, False)]


APART, KERNELS = members((0, 50), (100, 150)), (compute(20, 30, 10), compute(120, 150, 110))
FOUR = members((0, 10), (10, 20), (20, 30), (30, 40))
FIRST_TWO, FIRST_AND_THIRD = [(0, 20, 120, True), (1, 120, 150, False)], [(0, 20, 220, True), (2, 220, 230, False)]
LAST = compute(220, 230, 210)


@pytest.mark.parametrize(
    ("step_ranges", "ops", "expected"),
    [
        # Copies start no window; those that belong to the last one extend it, strangers do not.
        (THREE, (htod(5, 8, 1), memset(101, 102, 101), *KERNELS), FIRST_TWO),
        (THREE, (*KERNELS, dtod(140, 170, 199)), [(0, 20, 120, True), (1, 120, 170, False)]),
        (THREE, (*KERNELS, dtod(140, 160, 99), dtod(150, 170, 200), dtod(160, 180)), FIRST_TWO),
        # Of kernels only those launched in the last step do, and the one that ends last.
        (
            THREE,
            (
                compute(20, 30, 10),
                compute(220, 290, 210),
                compute(230, 280, 220),
                compute(400, 450, 300),
                compute(460, 470),
            ),
            [(0, 20, 220, True), (2, 220, 290, False)],
        ),
        # A step without kernels counts in the window before it; the first one without makes the next incomplete.
        (THREE, (compute(20, 30, 10), dtod(110, 115, 110), LAST), FIRST_AND_THIRD),
        (THREE, (dtod(5, 8, 10), compute(120, 130, 110), LAST), [(1, 120, 220, False), (2, 220, 230, False)]),
        # A step whose first kernel starts with or before the window before it has none; its kernels end none.
        (THREE, (compute(20, 30, 10), compute(20, 90, 110), LAST), FIRST_AND_THIRD),
        (THREE, (compute(20, 30, 10), compute(19, 90, 110), LAST), FIRST_AND_THIRD),
        (THREE, (*KERNELS, compute(100, 500, 210)), FIRST_TWO),
        # Step 2 starts after step 1, yet before window 0.
        (
            FOUR,
            (compute(50, 60, 5), compute(30, 40, 15), compute(45, 55, 25), compute(70, 80, 35)),
            [(0, 50, 70, True), (3, 70, 80, False)],
        ),
        # Work between two steps counts in the earlier window.
        (APART, (compute(60, 90, 60), *KERNELS), FIRST_TWO),
        (members((0, 100)), (compute(20, 30, 10), comm(25, 60, 20)), [(0, 20, 60, False)]),
        # What has no launch, or one outside of all steps, shapes no window.
        (THREE, (compute(1, 5), comm(110, 119), *KERNELS), FIRST_TWO),
        (members((0, 10), (20, 30)), (compute(20, 60, 10), compute(60, 70, 35)), []),
    ],
)
def test_windows_follow_the_kernels_that_steps_launch(step_ranges, ops, expected):
    assert windows(step_ranges, *ops) == expected
