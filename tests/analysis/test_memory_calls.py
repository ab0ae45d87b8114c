"""How many calls each step has that allocate and free memory of a GPU, how long they take, and when the GPU idles meanwhile."""

import pyarrow as pa
import pytest

from nsyspipe.analysis.breakdown import device_time
from nsyspipe.analysis.memory_calls import (
    MEMORY_CALL_COLUMNS,
    count_memory_calls,
    exposed_memory_calls,
    host_periods,
)
from nsyspipe.model import canonical
from tests.build.make import PROCESS, compute, listed, members, operations, windows


def call(start, end, *, kind="alloc", failed=False, n_bytes=None):
    return {
        "process_id": PROCESS,
        "start_ns": start,
        "end_ns": end,
        "is_alloc": kind == "alloc",
        "is_free": kind == "free",
        "is_failed": failed,
        "bytes": n_bytes,
    }


def table(*calls):
    return canonical.MEMORY_CALLS.from_rows(list(calls))


# Steps at [0, 40) and [50, 90) of the host, whose windows on the device are [10, 60) and [60, 95).
STEPS = members((0, 40), (50, 90))
WINDOWS = windows((10, 60), (60, 95))


def counted(*calls, steps=STEPS, spans=WINDOWS):
    return listed(count_memory_calls(table(*calls), host_periods(steps, spans)))


def test_a_call_between_two_ranges_counts_to_the_earlier_step():
    found = counted(call(0, 3), call(39, 41), call(49, 50), call(50, 51))
    assert found["n_allocs"] == [3, 1]


def test_calls_before_the_first_step_and_after_the_last_count_nowhere():
    assert counted(call(-1, 3), call(90, 91))["n_allocs"] == [0, 0]


# The second of three ranges launched no kernel, so it has no window.
def test_calls_of_a_range_without_window_count_to_the_step_before():
    steps = members((0, 10), (20, 30), (40, 50))
    spans = windows((5, 45), (45, 60))
    spans = type(spans)(pa.array([0, 2]).to_numpy(), spans.starts, spans.ends, spans.is_complete)
    assert counted(call(25, 26), call(45, 46), steps=steps, spans=spans)["n_allocs"] == [1, 1]


def test_all_calls_of_a_capture_without_steps_count():
    found = counted(call(-50, -40), call(500, 501), steps=members(), spans=windows((10, 60)))
    assert found["n_allocs"] == [2]


def test_allocations_frees_and_failures_are_counted_apart():
    found = counted(
        call(1, 2), call(3, 4, failed=True), call(5, 6, kind="free"), call(7, 8, kind="map")
    )
    assert [found[name][0] for name in ("n_allocs", "n_frees", "n_failed_allocs")] == [2, 1, 1]


def test_failures_are_not_known_if_one_result_is_not():
    found = counted(call(1, 2, failed=None), call(3, 4, failed=True), call(51, 52))
    assert found["n_failed_allocs"] == [-1, 0]


def test_the_result_of_a_free_does_not_matter():
    assert counted(call(1, 2, kind="free", failed=None))["n_failed_allocs"] == [0, 0]


def test_bytes_are_summed_for_allocations_and_frees_apart():
    found = counted(
        call(1, 2, n_bytes=5), call(3, 4, n_bytes=7), call(5, 6, kind="free", n_bytes=3)
    )
    assert (found["alloc_bytes"], found["freed_bytes"]) == ([12, 0], [3, 0])


def test_bytes_are_not_known_if_one_size_is_not():
    found = counted(call(1, 2, n_bytes=5), call(3, 4), call(51, 52, kind="free"))
    assert (found["alloc_bytes"], found["freed_bytes"]) == ([-1, 0], [0, -1])


def test_a_failed_allocation_allocates_nothing():
    assert counted(call(1, 2, n_bytes=5), call(3, 4, failed=True))["alloc_bytes"] == [5, 0]


# [1, 5) and [3, 8) are 7 together, and [38, 52) is 12 until the next step starts, then 2.
def test_time_in_calls_is_counted_once_and_split_at_the_next_step():
    found = counted(call(1, 5), call(3, 8, kind="free"), call(38, 52, kind="map"))
    assert found["alloc_host_ns"] == [7 + 12, 2]


def test_without_calls_there_are_true_zeros():
    assert counted() == {name: [0, 0] for name in MEMORY_CALL_COLUMNS}


def test_nothing_is_known_if_calls_were_not_recorded():
    found = count_memory_calls(None, host_periods(STEPS, WINDOWS))
    assert found == dict.fromkeys(MEMORY_CALL_COLUMNS)


def test_a_rank_without_windows_has_no_counts():
    assert counted(call(1, 2), steps=STEPS, spans=windows())["n_allocs"] == []


# The device works in [10, 20) and [30, 40). Of [15, 35) it idles in [20, 30).
DEVICE = device_time(operations(compute(10, 20, 0), compute(30, 40, 1)), windows((10, 40)))


def exposed(*calls, offset_ns=0):
    return exposed_memory_calls(table(*calls), DEVICE, offset_ns).tolist()


@pytest.mark.parametrize(
    ("calls", "exposed_ns"),
    [
        ([call(15, 35)], 10),
        ([call(22, 25)], 3),
        ([call(22, 25), call(24, 28, kind="free")], 6),
        ([call(11, 19)], 0),
        ([call(50, 60)], 0),
    ],
)
def test_a_call_is_exposed_while_the_device_runs_nothing(calls, exposed_ns):
    assert exposed(*calls) == [exposed_ns]


# On the clock of the device the call is in [15, 25).
def test_calls_are_compared_on_the_clock_of_the_device():
    assert exposed(call(5, 15), offset_ns=10) == [5]


def test_exposure_is_not_known_without_calls():
    assert exposed_memory_calls(None, DEVICE, 0) is None
