"""How long the host of a rank takes to launch a step, without waiting for its device."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from nsyspipe.analysis.attribution import NEVER, ProcessOperations
from nsyspipe.analysis.intervals import IntervalSet, Slices, least_of, union, union_of
from nsyspipe.analysis.steps import FEW_STEPS, Members, Windows
from nsyspipe.model.table import Flags, Float64, Int64
from nsyspipe.model.typed_tables import (
    HostCallsOfReportTable,
    StepsTable,
)

# CUDA accepts about a thousand operations that have not run yet. A launch beyond that returns when
# one of them has run. Launches that did not wait took at most 70 us in captures of eight jobs;
# those above 100 us began behind 590 and more.
MIN_WAITING_LAUNCH_NS = 100_000
MIN_QUEUED_OPERATIONS = 256
# A host is slower than the others if it takes so much longer to launch a step on average, of step
# time.
MIN_SLOWER_SHARE = 0.03
# A step lacks launches on a rank whose device idles for so much of the mean step because they come
# late.
MIN_LATE_LAUNCH_SHARE = 0.02
# A rank is named beside others if it lacks launches in so many of the steps.
MIN_LATE_STEPS_SHARE = 0.25


class HostTimes(Struct, frozen=True):
    """The time of the host for each window of one rank, ns."""

    launch_ns: Int64
    # The part of it in which the host got the next batch.
    input_ns: Int64
    # How long before the start of the window its first kernel was launched.
    lead_ns: Int64


def device_waits(
    operations: ProcessOperations,
    calls: pa.Table,
    blocking: pa.Table,
    waits: pa.Table,
    offset_ns: int,
) -> IntervalSet:
    """Return when the host of a process launched nothing because it waited for the device.

    The result has the times of calls that wait, on the clock of the host. Such a call synchronises,
    or allocates, frees or copies memory, or is a launch that found the queue of the device full. If
    another thread launched something during a call, the call did not keep the process from
    launching. So it does not count.

    `calls` are `canonical.HOST_CALLS`, `blocking` are `canonical.BLOCKING_CALLS`, and `waits` are
    `canonical.HOST_WAITS` of the process. The clock of the device is later than that of the host by
    `offset_ns`.
    """
    launches = _sorted_launches(operations)
    tables = (blocking, waits)
    starts = np.concatenate([table["start_ns"].to_numpy() for table in tables])
    ends = np.concatenate([table["end_ns"].to_numpy() for table in tables])
    # A launch at the start is that of the call itself. So it is counted on both sides.
    n_launched_up_to_start = np.searchsorted(launches, starts, side="right")
    n_launched_before_end = np.searchsorted(launches, ends)
    has_no_other_launch = n_launched_before_end == n_launched_up_to_start
    is_counted = has_no_other_launch & (ends > starts)
    in_calls = union(starts[is_counted], ends[is_counted])
    in_full_queue = _launches_into_full_queue(operations, launches, calls, offset_ns)
    return union_of(in_calls, in_full_queue)


def _sorted_launches(operations: ProcessOperations) -> Int64:
    """Return the known launches of kernels and copies, sorted."""
    kernels = operations.kernel_launch[: operations.n_launched]
    launches = np.append(kernels, operations.copy_launch)
    launches = launches[launches != NEVER]
    # These are two sorted runs, which a stable sort merges.
    return np.sort(launches, kind="stable")


def _launches_into_full_queue(
    operations: ProcessOperations, launches: Int64, calls: HostCallsOfReportTable, offset_ns: int
) -> IntervalSet:
    """Return the times of launches that took long while many operations were queued."""
    starts = calls["start_ns"].to_numpy()
    ends = calls["end_ns"].to_numpy()
    is_long = ends - starts >= MIN_WAITING_LAUNCH_NS
    starts = starts[is_long]
    ends = ends[is_long]
    ends_on_host_clock = _sorted_ends(operations) - offset_ns
    n_launched_before = np.searchsorted(launches, starts)
    n_launched_up_to_start = np.searchsorted(launches, starts, side="right")
    n_finished = np.searchsorted(ends_on_host_clock, starts, side="right")
    n_queued = n_launched_before - n_finished
    # A call is a launch if an operation has the start of the call as its launch.
    is_launch = n_launched_up_to_start > n_launched_before
    is_queue_full = n_queued >= MIN_QUEUED_OPERATIONS
    is_waiting: Flags = is_launch & is_queue_full
    return union(starts[is_waiting], ends[is_waiting])


def _sorted_ends(operations: ProcessOperations) -> Int64:
    """Return the ends of operations with a launch, on the clock of the device."""
    is_launched = operations.copy_launch != NEVER
    kernel_ends = operations.kernel_end[: operations.n_launched]
    copy_ends = operations.copy_end[is_launched]
    ends = np.append(kernel_ends, copy_ends)
    # They are nearly sorted already.
    ends.sort(kind="stable")
    return ends


def host_times(
    operations: ProcessOperations,
    members: Members,
    windows: Windows,
    *,
    waits: IntervalSet,
    inputs: IntervalSet,
    offset_ns: int,
) -> HostTimes:
    """Measure the time of the host for each window. All are 0 if no launch is known.

    The time begins with the launch of the first kernel of the window. It ends with the launch of
    the first kernel of the next window, or with the last launch of the last window. `waits` are as
    `device_waits` finds them, and are no part of the time. `inputs` are when the host got the next
    batch, which is a part of the time. Both are report times on the clock of the host. The windows
    are on the clock of the device, which is later by `offset_ns`.
    """
    kernel_launch = operations.kernel_launch[: operations.n_launched]
    if not len(windows) or not kernel_launch.size:
        zeros = np.zeros(len(windows), np.int64)
        return HostTimes(launch_ns=zeros, input_ns=zeros, lead_ns=zeros)
    launches = _bounding_launches(kernel_launch, members, windows)
    begins = launches.first_of_windows
    ends = np.append(begins[1:], launches.last)
    # No time is negative, even if launches are not in order of windows.
    ends = np.maximum(ends, begins)
    waited_ns = waits.lengths(begins, ends)
    launch_ns = ends - begins - waited_ns
    getting_input = inputs.without(waits)
    input_ns = getting_input.lengths(begins, ends)
    window_starts = windows.starts - offset_ns
    lead_ns = np.maximum(window_starts - begins, 0)
    return HostTimes(launch_ns, input_ns, lead_ns)


class _Launches(NamedTuple):
    """The first launch of each window, and the last launch of the last window."""

    first_of_windows: Int64
    last: np.int64


def _bounding_launches(kernel_launch: Int64, members: Members, windows: Windows) -> _Launches:
    """Return the first launch of each window, and the last launch of the last window.

    The launches of a window are those inside its step range. `kernel_launch` is sorted, and not
    empty. If a step range has no launch, the next launch behind the range stands in for the first
    one. If there is none behind it, the last launch of all does.
    """
    is_whole_capture = members.starts.size < len(windows)
    if is_whole_capture:
        # A capture without steps has one window, to which no step range belongs.
        return _Launches(kernel_launch[:1], kernel_launch[-1])
    starts = members.starts[windows.member]
    ends = members.ends[windows.member]
    launched = Slices.within(kernel_launch, starts, ends)
    # A step range behind all launches has no first launch.
    first_kernel = np.minimum(launched.first, kernel_launch.size - 1)
    # `last` is the place behind the last launch. It is 0 if the last range is before all launches.
    last_kernel = max(launched.last[-1] - 1, 0)
    return _Launches(kernel_launch[first_kernel], kernel_launch[last_kernel])


def fastest_launch_times(steps: StepsTable, *, is_input_free: bool = False) -> Float64:
    """Return the launch time of the fastest host for each step of `schema.STEPS`, ns.

    The steps are in ascending order. Over many steps, a run cannot be faster than its fastest host,
    however evenly the ranks work. A few steps can be faster, by the lead of the host: how long
    before the start of a step its first kernel was launched. So with less than `FEW_STEPS` steps,
    the lead is subtracted. With `is_input_free`, the time to get input is subtracted too. All
    results are 0 if one of these times is not known.
    """
    numbers, step_of_row = np.unique(steps["step"].to_numpy(), return_inverse=True)
    is_few = numbers.size < FEW_STEPS
    needed = ["host_launch_ns"]
    if is_input_free:
        needed.append("host_input_ns")
    if is_few:
        needed.append("host_lead_ns")
    if any(steps.column(name).null_count for name in needed):
        return np.zeros(numbers.size)
    launch_ns = steps["host_launch_ns"].to_numpy()
    if is_input_free:
        launch_ns = launch_ns - steps["host_input_ns"].to_numpy()
    if is_few:
        # The lead may be longer than the launching.
        lead_ns = steps["host_lead_ns"].to_numpy()
        launch_ns = np.maximum(launch_ns - lead_ns, 0)
    fastest_ns = least_of(step_of_row, launch_ns, numbers.size)
    return fastest_ns.astype(np.float64)


def longest_work_times(steps: StepsTable) -> Float64:
    """Return for each step of `schema.STEPS` how long its busiest device works, ns.

    The steps are in ascending order. Work is the window without idle time and exposed waiting. Time
    that is not known to be idle or waiting counts as work.
    """
    numbers, step_of_row = np.unique(steps["step"].to_numpy(), return_inverse=True)
    wall_ns = pc.fill_null(steps["wall_ns"], 0).to_numpy()
    idle_ns = pc.fill_null(steps["idle_ns"], 0).to_numpy()
    wait_ns = pc.fill_null(steps["exposed_wait_ns"], 0).to_numpy()
    # The most work is the least negative work.
    negative_work_ns = idle_ns + wait_ns - wall_ns
    least_ns = least_of(step_of_row, negative_work_ns, numbers.size)
    return -least_ns.astype(np.float64)


def slower_hosts(steps: StepsTable) -> list[int] | None:
    """Return the ranks whose hosts take longer to launch a step than other hosts on average.

    `steps` are rows of `schema.STEPS`; see `MIN_SLOWER_SHARE`. None if a launch time is not known,
    or if no host launched anything.
    """
    if steps["host_launch_ns"].null_count:
        return None
    has_launch_time = pc.greater(steps["host_launch_ns"], 0)
    if not pc.any(has_launch_time).as_py():
        return None
    rank = steps["rank"].to_numpy()
    launch_ns = steps["host_launch_ns"].to_numpy()
    wall_ns = steps["wall_ns"].to_numpy()
    min_difference_ns = MIN_SLOWER_SHARE * wall_ns.mean()
    slower = []
    for number in np.unique(rank).tolist():
        is_of_rank = rank == number
        if is_of_rank.all():
            # There is no other host.
            continue
        mean_ns = launch_ns[is_of_rank].mean()
        mean_of_others_ns = launch_ns[~is_of_rank].mean()
        if mean_ns - mean_of_others_ns >= min_difference_ns:
            slower.append(number)
    return slower


def steps_with_late_launches(
    steps: StepsTable, columns: Sequence[str] = ("idle_launch_ns",)
) -> dict[int, Int64]:
    """Return for each rank the steps in which its device idles because launches come late.

    `steps` are rows of `schema.STEPS`. `columns` are those of the idle time that counts. The sum of
    these columns has to reach `MIN_LATE_LAUNCH_SHARE` of the mean step.
    """
    rank = steps["rank"].to_numpy()
    step = steps["step"].to_numpy()
    wall_ns = steps["wall_ns"].to_numpy()
    if not wall_ns.size:
        return {}
    idle_times = [pc.fill_null(steps.column(name), 0).to_numpy() for name in columns]
    late_ns = np.sum(idle_times, axis=0)
    is_late = late_ns >= MIN_LATE_LAUNCH_SHARE * wall_ns.mean()
    late_steps = {}
    for number in np.unique(rank).tolist():
        is_of_rank = rank == number
        late_steps[number] = step[is_late & is_of_rank]
    return late_steps


def ranks_with_late_launches(
    steps: StepsTable, columns: Sequence[str] = ("idle_launch_ns",)
) -> dict[int, int]:
    """Return the number of `steps_with_late_launches` of each rank that has many.

    See `MIN_LATE_STEPS_SHARE`.
    """
    n_steps = pc.count_distinct(steps["step"]).as_py()
    min_late_steps = MIN_LATE_STEPS_SHARE * n_steps
    n_late_steps = {}
    for rank, numbers in steps_with_late_launches(steps, columns).items():
        if numbers.size >= min_late_steps:
            n_late_steps[rank] = int(numbers.size)
    return n_late_steps
