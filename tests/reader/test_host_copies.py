"""Copies between host and device that block the host, and the calls that made them or waited for them."""

import numpy as np
import pytest

from nsyspipe.analysis.breakdown import blocking_copies, device_time
from nsyspipe.model import canonical
from nsyspipe.model.problems import Recorded
from nsyspipe.reader import host_copies
from nsyspipe.reader.calls import read_calls, read_strings
from nsyspipe.reader.report import open_report
from tests.build.make import compute, listed, operations, windows
from tests.build.tools import nullable
from tests.build.trace import MEMCPY, RUNTIME, TraceBuilder

HTOD, DTOH = 1, 2
PAGEABLE, PINNED, DEVICE = 0, 1, 2
SYNC = "cudaStreamSynchronize_v3020"


def copy(builder, at, memory, *, kind=HTOD, api="cudaMemcpyAsync_v3020", thread="main", lasts=10):
    """Add a copy of 64 bytes that runs from 5 to 25 after its call began, between the device and some memory of the host."""
    builder.copy(at + 5, at + 25, kind, 64, launch=at, thread=thread)
    ends = (memory, DEVICE) if kind == HTOD else (DEVICE, memory)
    builder.rows[MEMCPY][-1].update(zip(("srcKind", "dstKind"), ends, strict=True))
    builder.rows[RUNTIME][-1].update(end=at + lasts, nameId=builder.string(api))
    return builder


def call(builder, at, api=SYNC, *, thread="main", lasts=20):
    builder.launch(at, api=api, thread=thread)
    builder.rows[RUNTIME][-1]["end"] = at + lasts
    return builder


def read(builder, tmp_path, **options):
    with open_report(nullable(builder).write(tmp_path / "a.sqlite", **options)) as report:
        return read_calls(report, read_strings(report))


def copies(builder, tmp_path):
    """Return launch and kind of memory of each blocking copy."""
    found = read(builder, tmp_path).blocking_copies
    assert found.schema == canonical.BLOCKING_COPIES.arrow
    return [(row["launch_ns"], row["is_pageable"]) for row in found.to_pylist()]


def calls(builder, tmp_path):
    """Return start, name and flag of each blocking call."""
    rows = read(builder, tmp_path).blocking.to_pylist()
    return [(row["start_ns"], row["call"], row["is_of_copy"]) for row in rows]


def test_a_copy_out_of_pageable_memory_blocks_whatever_its_call_is_named(tmp_path):
    builder = copy(TraceBuilder(), 100, PAGEABLE)
    assert copies(builder, tmp_path) == [(100, True)]
    assert calls(builder, tmp_path) == [(100, "cudaMemcpyAsync", True)]


def test_a_blocking_copy_has_times_and_bytes_of_the_device(tmp_path):
    (row,) = read(copy(TraceBuilder(), 100, PAGEABLE), tmp_path).blocking_copies.to_pylist()
    assert (row["start_ns"], row["end_ns"], row["bytes"]) == (105, 125, 64)


def test_a_copy_out_of_pinned_memory_that_nothing_waits_for_does_not_block(tmp_path):
    builder = copy(TraceBuilder(), 100, PINNED)
    assert (copies(builder, tmp_path), calls(builder, tmp_path)) == ([], [])


def test_a_copy_by_a_call_without_async_in_its_name_blocks(tmp_path):
    builder = copy(TraceBuilder(), 100, PINNED, api="cudaMemcpy_v3020")
    assert copies(builder, tmp_path) == [(100, False)]
    assert calls(builder, tmp_path) == [(100, "cudaMemcpy", True)]


def test_a_copy_that_the_next_call_of_its_thread_waits_for_blocks(tmp_path):
    builder = call(copy(TraceBuilder(), 100, PINNED), 111)
    assert copies(builder, tmp_path) == [(100, False)]
    assert calls(builder, tmp_path) == [(111, "cudaStreamSynchronize", True)]


@pytest.mark.parametrize("thread", ["main", "autograd"])
def test_a_call_of_the_same_thread_in_between_ends_the_wait(tmp_path, thread):
    builder = call(
        copy(TraceBuilder(), 100, PINNED), 105, "cudaLaunchKernel_v7000", thread=thread, lasts=1
    )
    call(builder, 111)
    is_other = thread == "autograd"
    assert copies(builder, tmp_path) == [(100, False)] * is_other
    assert calls(builder, tmp_path) == [(111, "cudaStreamSynchronize", is_other)]


def test_a_wait_of_another_thread_is_not_for_the_copy(tmp_path):
    builder = call(copy(TraceBuilder(), 100, PINNED), 111, thread="autograd")
    assert copies(builder, tmp_path) == []


@pytest.mark.parametrize(("n_between", "is_waited_for"), [(3, True), (4, False)])
def test_among_many_calls_of_other_threads_the_next_one_is_not_looked_for(
    monkeypatch, tmp_path, n_between, is_waited_for
):
    monkeypatch.setattr(host_copies, "_MOST_BETWEEN", 3)
    builder = copy(TraceBuilder(), 100, PINNED)
    for number in range(n_between):
        call(builder, 101 + number, "cudaEventQuery_v3020", thread="autograd", lasts=1)
    assert bool(copies(call(builder, 111), tmp_path)) == is_waited_for


def test_calls_need_not_stand_in_order_of_their_start(tmp_path):
    builder = call(copy(TraceBuilder(), 100, PINNED), 111)
    call(builder, 105, "cudaLaunchKernel_v7000", lasts=1)
    assert copies(builder, tmp_path) == []


def test_a_copy_to_pageable_memory_blocks_but_is_none_from_the_host(tmp_path):
    builder = call(copy(TraceBuilder(), 100, PAGEABLE, kind=DTOH), 111)
    assert copies(builder, tmp_path) == []
    assert calls(builder, tmp_path) == [
        (100, "cudaMemcpyAsync", False),
        (111, "cudaStreamSynchronize", False),
    ]


def test_a_copy_whose_kind_of_memory_is_not_known_is_known_by_its_wait(tmp_path):
    builder = call(copy(TraceBuilder(), 100, None), 111)
    copy(builder, 200, None)
    assert copies(builder, tmp_path) == [(100, None)]


def test_a_call_of_another_process_made_no_copy_of_this_one(tmp_path):
    builder = copy(TraceBuilder(), 100, PAGEABLE)
    builder.rows[RUNTIME][-1]["globalTid"] = builder.global_tid(pid=77)
    assert copies(builder, tmp_path) == []


def test_copies_without_their_kinds_are_not_told(tmp_path):
    builder = copy(TraceBuilder(), 100, PAGEABLE)
    del nullable(builder).schema[MEMCPY]["copyKind"]
    assert read(builder, tmp_path).blocking_copies is None


def test_a_report_without_copies_has_no_blocking_ones(tmp_path):
    assert read(TraceBuilder().kernel(0, 5, launch=0), tmp_path).blocking_copies.num_rows == 0


def test_blocking_copies_count_in_the_window_in_which_they_start():
    rows = [(90, 120, 1, True), (100, 130, 2, False)]
    table = canonical.BLOCKING_COPIES.table(
        {
            "process_id": [1, 1],
            "start_ns": [row[0] for row in rows],
            "end_ns": [row[1] for row in rows],
            "launch_ns": [0, 0],
            "device_id": [0, 0],
            "bytes": [row[2] for row in rows],
            "is_pageable": [row[3] for row in rows],
        }
    )
    device = device_time(operations(compute(95, 110, 0)), windows((0, 100), (100, 200)))
    assert listed(blocking_copies(device, table, Recorded())) == {
        "n_blocking_copies": [1, 1],
        "n_pageable_copies": [1, 0],
        "blocking_copy_bytes": [1, 2],
        "exposed_blocking_copy_ns": [5, 20],  # [90, 95), and [110, 130)
    }


def test_blocking_copies_that_were_not_recorded_are_null():
    device = device_time(operations(compute(0, 5, 0)), windows((0, 100)))
    assert set(blocking_copies(device, None, Recorded()).values()) == {None}
    empty = blocking_copies(device, canonical.BLOCKING_COPIES.empty(), Recorded(kernels=False))
    assert (empty["n_blocking_copies"].tolist(), empty["exposed_blocking_copy_ns"]) == ([0], None)
    assert np.array_equal(empty["blocking_copy_bytes"], [0])
