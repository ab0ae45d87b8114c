"""Step windows on the device, from step ranges of the host."""

from __future__ import annotations

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


def test_copies_do_not_start_a_window():
    found = windows(THREE, htod(5, 8, 1), compute(20, 30, 10), memset(101, 102, 101), compute(120, 130, 110))
    assert found == [(0, 20, 120, True), (1, 120, 130, False)]


def test_the_last_window_ends_with_the_last_operation_that_belongs_to_it():
    found = windows(
        THREE,
        compute(20, 30, 10),
        compute(220, 290, 210),
        compute(230, 280, 220),  # ends before the other
        compute(400, 450, 300),  # launched after the last step
        compute(460, 470),  # no launch
    )
    assert found == [(0, 20, 220, True), (2, 220, 290, False)]


def test_copies_and_memsets_extend_the_last_window():
    kernels = compute(20, 30, 10), compute(120, 150, 110)
    assert windows(THREE, *kernels, dtod(140, 170, 199)) == [
        (0, 20, 120, True),
        (1, 120, 170, False),
    ]
    assert windows(THREE, *kernels, memset(140, 180, 100))[-1] == (1, 120, 180, False)


def test_copies_that_do_not_belong_to_the_last_step_do_not_extend_it():
    kernels = compute(20, 30, 10), compute(120, 150, 110)
    strangers = dtod(140, 160, 99), dtod(150, 170, 200), dtod(160, 180)
    assert windows(THREE, *kernels, *strangers) == [(0, 20, 120, True), (1, 120, 150, False)]


def test_a_first_window_is_incomplete_when_earlier_members_have_no_kernels():
    found = windows(THREE, dtod(5, 8, 10), compute(120, 130, 110), compute(220, 230, 210))
    assert found == [(1, 120, 220, False), (2, 220, 230, False)]


def test_a_step_without_kernels_counts_in_the_window_before_it_which_stays_complete():
    found = windows(THREE, compute(20, 30, 10), dtod(110, 115, 110), compute(220, 230, 210))
    assert found == [(0, 20, 220, True), (2, 220, 230, False)]


def test_a_step_whose_first_kernel_does_not_start_later_has_no_window():
    same = windows(THREE, compute(20, 30, 10), compute(20, 90, 110), compute(220, 230, 210))
    earlier = windows(THREE, compute(20, 30, 10), compute(19, 90, 110), compute(220, 230, 210))
    assert same == earlier == [(0, 20, 220, True), (2, 220, 230, False)]


def test_what_a_first_kernel_must_start_after_is_the_last_window_not_the_last_step():
    four = members((0, 10), (10, 20), (20, 30), (30, 40))
    # Step 1 starts before step 0 and has no window; step 2 starts after step 1, yet before window 0.
    found = windows(four, compute(50, 60, 5), compute(30, 40, 15), compute(45, 55, 25), compute(70, 80, 35))
    assert found == [(0, 50, 70, True), (3, 70, 80, False)]


def test_the_last_window_ends_with_its_own_operations_when_later_steps_have_no_window():
    # Step 2's kernel starts before window 1, so the last window is step 1's and ends with its kernel.
    found = windows(THREE, compute(20, 30, 10), compute(120, 150, 110), compute(100, 500, 210))
    assert found == [(0, 20, 120, True), (1, 120, 150, False)]


def test_work_between_two_steps_counts_in_the_earlier_window():
    apart = members((0, 50), (100, 150))
    found = windows(apart, compute(20, 30, 10), compute(60, 90, 60), compute(120, 130, 110))
    assert found == [(0, 20, 120, True), (1, 120, 130, False)]


def test_a_single_step_is_a_cut_off_window():
    assert windows(members((0, 100)), compute(20, 30, 10), comm(25, 60, 20)) == [(0, 20, 60, False)]


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


def test_operations_without_a_launch_do_not_shape_the_windows_of_others():
    found = windows(THREE, compute(1, 5), compute(20, 30, 10), comm(110, 119), compute(120, 130, 110))
    assert found == [(0, 20, 120, True), (1, 120, 130, False)]


def test_kernels_launched_outside_all_steps_give_no_windows():
    assert windows(members((0, 10), (20, 30)), compute(20, 60, 10), compute(60, 70, 35)) == []


def test_no_steps_give_no_windows():
    assert windows(members(), compute(20, 60, 10)) == []
    assert windows(members(), compute(20, 60)) == []


def test_a_capture_is_one_cut_off_window_from_first_start_to_last_end():
    ops = operations(compute(20, 60, 10), comm(50, 55), dtod(5, 9), memset(58, 70))
    assert rows(capture_window(ops)) == [(0, 5, 70, False)]
