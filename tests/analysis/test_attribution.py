"""Launch times by correlation id, the order of operations, slices of it."""

import numpy as np
import pyarrow as pa
import pytest
from msgspec.structs import asdict

from nsyspipe.analysis.attribution import (
    NEVER,
    UNKNOWN,
    are_among,
    by_process,
    launch_times,
    rows_by_process,
)
from nsyspipe.analysis.intervals import Slices
from nsyspipe.model import canonical
from tests.build.make import comm, compute, dtod, htod, ints, memset, operations


def launches(*rows):
    """Build `canonical.LAUNCHES` from (process, start, correlation id)."""
    names = ("process_id", "start_ns", "correlation_id")
    return canonical.LAUNCHES.table(
        {name: [row[at] for row in rows] for at, name in enumerate(names)}
    )


@pytest.mark.parametrize("split", [by_process, rows_by_process])
def test_each_process_has_its_rows_in_order_and_an_empty_table_without_rows(split):
    table = launches((7, 50, 1), (3, 20, 2), (7, 10, 3), (9, 5, 4))
    starts = [rows["start_ns"].to_pylist() for rows in split(table, [3, 5, 7])]
    assert starts == [[20], [], [50, 10]]
    assert split(table, []) == []


def test_without_a_table_each_process_has_none():
    assert by_process(None, [3, 5]) == [None, None]


def called(ops):
    """Build `canonical.COPIES` of which only process and correlation id matter."""
    columns = dict.fromkeys(canonical.COPIES.names, [0] * len(ops))
    columns |= {
        "process_id": [process for process, _ in ops],
        "correlation_id": [one for _, one in ops],
    }
    return canonical.COPIES.table(columns)


@pytest.mark.parametrize(
    ("ops", "calls", "times"),
    [
        # An operation is launched by the call with its correlation id.
        (
            [(1, 10), (1, 12), (1, 11), (1, 10)],
            launches((1, 50, 11), (1, 40, 12), (1, 60, 10)),
            [60, 40, 50, 60],
        ),
        # Of several calls with one id the earliest is the launch.
        (
            [(1, 11), (1, 12)],
            launches((1, 50, 11), (1, 30, 11), (1, 40, 11), (1, 20, 12)),
            [30, 20],
        ),
        # What nothing called has no launch: below, between and above the ids that were called.
        (
            [(1, 10), (1, 12), (1, 14), (1, 13)],
            launches((1, 50, 11), (1, 60, 13)),
            [None, None, None, 60],
        ),
        # Nor has one without an id, even if 0 was called.
        ([(1, None), (1, 0), (1, 1)], launches((1, 50, 0), (1, 60, 1)), [None, 50, 60]),
        # Without calls or without their table.
        ([(1, 11), (1, 12)], None, [None, None]),
        ([(1, 11), (1, None)], launches(), [None, None]),
        # Ids so sparse that a table of them would be too long.
        *(
            (
                [(1, far), (1, 7), (1, -far), (1, far + 1), (1, -far - 1), (1, None), (1, 8)],
                launches((1, 50, far), (1, 30, -far), (1, 20, far), (1, 60, 7)),
                [20, 60, 30, None, None, None, None],
            )
            for far in (1000, 2**62)
        ),
        # The farthest ids, asked for among dense calls, and called.
        (
            [(1, 2**63 - 1), (1, -(2**63)), (1, 2)],
            launches((1, 50, 1), (1, 60, 2)),
            [None, None, 60],
        ),
        (
            [(1, -(2**63)), (1, 2**63 - 1), (1, 0)],
            launches((1, 50, 2**63 - 1), (1, 60, -(2**63))),
            [60, 50, None],
        ),
    ],
)
def test_the_launch_of_each_operation(ops, calls, times):
    assert launch_times(calls, called(ops))[0].tolist() == [
        NEVER if time is None else time for time in times
    ]


def test_ids_in_several_chunks_keep_their_order():
    chunked = pa.concat_tables([called([(1, 11), (1, None)]), called([(1, 12)])])
    calls = pa.concat_tables([launches((1, 60, 12)), launches((1, 50, 11))])
    times = launch_times(calls, chunked, called([]), called([(1, 12), (1, 11)]))
    assert [one.tolist() for one in times] == [[50, NEVER, 60], [], [60, 50]]


def test_operations_are_in_order_of_launch_and_unlaunched_ones_come_last():
    kernels = (
        compute(10, 11),
        comm(20, 21, 7),
        compute(30, 31, 3),
        compute(40, 41, 7),
        comm(50, 51, -5),
    )
    ops = operations(
        *kernels, dtod(60, 62, n_bytes=6), memset(70, 72, 9, n_bytes=7), htod(80, 82, 2, n_bytes=8)
    )
    assert {
        name: value.tolist() for name, value in asdict(ops).items() if isinstance(value, np.ndarray)
    } == {
        "kernel_start": [50, 30, 20, 40, 10],
        "kernel_end": [51, 31, 21, 41, 11],
        "kernel_launch": [-5, 3, 7, 7, NEVER],
        "is_comm": [True, False, True, False, False],
        "copy_start": [80, 70, 60],
        "copy_end": [82, 72, 62],
        "copy_launch": [2, 9, NEVER],
        "copy_kind": [1, 0, 8],
        "copy_bytes": [8, 7, 6],
        "kernel_order": [4, 2, 1, 3, 0],
    }
    assert (ops.n_launched, ops.n_without_launch, ops.n_launchable) == (4, 2, 8)
    assert ops.span == (10, 82)


def test_optional_columns_follow_the_order_of_launch_and_have_a_null_mask():
    second = compute(0, 1, 9, name_id=4, grid=-(2**63) + 1, stream_id=0)
    ops = operations(second, comm(1, 2, 3, name_id=5, device_id=2), dtod(2, 3, 1))
    names = ("name_id", "grid", "block", "device_id", "stream_id")
    assert {name: ops.kernel_column(name).tolist() for name in names} == {
        "name_id": [5, 4],
        "grid": [UNKNOWN, UNKNOWN + 1],
        "block": [UNKNOWN, UNKNOWN],
        "device_id": [2, UNKNOWN],
        "stream_id": [UNKNOWN, 0],
    }


def test_kernels_in_order_of_launch_keep_their_rows():
    ops = operations(compute(9, 10, 1, name_id=7), compute(0, 1, 1, name_id=6), compute(0, 1))
    assert ops.kernel_order is None
    assert ops.kernel_column("name_id").tolist() == [7, 6, UNKNOWN]
    # An unknown kind is neither memset nor device to device.
    ops = operations(htod(0, 1)._replace(copy_kind=None), memset(2, 3, 4))
    assert (ops.copy_kind.tolist(), ops.kernel_start.tolist(), ops.n_launched) == ([0, -1], [], 0)


def test_slices_reduce_their_rows_whether_they_touch_overlap_or_leave_gaps():
    slices = Slices(ints(0, 2, 1, 4, 5), ints(2, 3, 4, 6, 6))
    assert slices.reduced(np.minimum, ints(9, 4, 7, -1, 8, 6)).tolist() == [4, 7, -1, 6, 6]
    assert slices.counts.tolist() == [2, 1, 3, 2, 1]


# Three rows have room for a table of 3 * 16 bytes: 48 ids, from 0 to 47.
@pytest.mark.parametrize("last", [47, 48, UNKNOWN])
def test_wanted_ids_are_found_close_together_and_far_apart(last):
    found = are_among(np.array([last], np.int64), np.array([0, last], np.int64))
    assert found.tolist() == [True]
    assert are_among(np.array([1], np.int64), np.array([0, last], np.int64)).tolist() == [False]


def test_nothing_is_among_no_wanted_ids():
    assert are_among(np.array([1, 2], np.int64), np.array([], np.int64)).tolist() == [False, False]
