"""Step windows on the device, from step ranges of the host."""

from __future__ import annotations

from nsyspipe.analysis.steps import capture_window, step_windows
from tests.build.make import comm, compute, dtod, members, memset, operations

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
        members((far, far + 3), (far + 3, far + 6)),
        compute(far + 1, far + 2, far),
        compute(far + 7, far + 9, far + 3),
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
