"""What is read of a report besides times: shapes of kernels, calls that block, the profiler's own work."""

from __future__ import annotations

import pytest

import nsyspipe
from nsyspipe.model import canonical
from nsyspipe.reader import operations as read_kernels_module
from nsyspipe.reader.calls import read_calls, read_overhead, read_strings
from nsyspipe.reader.metadata import read_facts
from nsyspipe.reader.operations import read_operations
from nsyspipe.reader.report import open_report
from tests.build.tools import blank, edit, nullable
from tests.build.trace import DEFAULT, KERNEL, MEMCPY, RUNTIME, STRINGS, TraceBuilder, steady_rank

SHAPE = ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ")
OVERHEAD = {"start": "INTEGER NOT NULL", "end": "INTEGER", "globalTid": "INTEGER", "nameId": "INTEGER"}  # fmt: skip


def with_shapes(*shapes):
    """Return a report of one kernel per shape (grid and block), one after the other."""
    builder = TraceBuilder()
    for at, shape in enumerate(shapes):
        builder.kernel(10 * at, 10 * at + 5, launch=10 * at)
        builder.rows[KERNEL][-1] |= dict(zip(SHAPE, shape, strict=True))
    return builder


def kernels(path):
    with open_report(path) as report:
        return read_operations(report, read_strings(report), None).kernels


def packed(path):
    table = kernels(path)
    return list(zip(table["grid"].to_pylist(), table["block"].to_pylist(), strict=True))


def blocking(path):
    """Return the blocking calls as (start, end, call); None when they cannot be read."""
    with open_report(path) as report:
        found = read_calls(report, read_strings(report)).blocking
    if found is None:
        return None
    assert found.schema == canonical.BLOCKING_CALLS.arrow
    assert set(found["process_id"].to_pylist()) <= {TraceBuilder().global_pid()}
    return [tuple(row.values())[1:] for row in found.to_pylist()]


def with_calls(*calls):
    """Return a report of a kernel and API calls (start, end, name)."""
    builder = TraceBuilder().kernel(0, 5, launch=0)
    for start, end, name in calls:
        builder.launch(start, api=name)
        builder.rows[RUNTIME][-1]["end"] = end
    return builder


def test_grid_and_block_are_packed_into_one_integer_each(tmp_path):
    path = with_shapes((3, 2, 1, 128, 4, 2), (1, 1, 1, 1, 1, 1)).write(tmp_path / "a.sqlite")
    one = 1 + 2**32 + 2**48, 1 + 2**11 + 2**22
    assert packed(path) == [(3 + 2 * 2**32 + 2**48, 128 + 4 * 2**11 + 2 * 2**22), one]


def test_the_largest_grids_and_blocks_keep_every_bit_and_shapes_that_differ_are_packed_apart(tmp_path):
    # CUDA allows grids of 2**31 - 1, 65535, 65535 and blocks of 1024, 1024, 64.
    largest = 2**31 - 1, 65535, 65535, 1024, 1024, 64
    ((grid, block),) = packed(with_shapes(largest).write(tmp_path / "a.sqlite"))
    bits = grid % 2**64  # gridZ reaches the sign
    assert (bits % 2**32, bits >> 32 & 0xFFFF, bits >> 48) == largest[:3]
    assert (block & 0x7FF, block >> 11 & 0x7FF, block >> 22) == largest[3:]
    shapes = [tuple(1 + (at == axis) for axis in range(6)) for at in range(7)]
    found = packed(with_shapes(*shapes).write(tmp_path / "a.sqlite"))
    assert len(set(found)) == 7
    assert len({grid for grid, _ in found}) == len({block for _, block in found}) == 4


@pytest.mark.parametrize("sampled", [7, 6, 3, 2, 1])
def test_of_a_large_table_the_middle_alone_has_shapes(tmp_path, monkeypatch, sampled):
    monkeypatch.setattr(read_kernels_module, "_MOST_SHAPES", sampled)
    path = with_shapes(*((at, 1, 1, 32, 1, 1) for at in range(1, 8))).write(tmp_path / "a.sqlite")
    table = kernels(path)
    known = [grid is not None for grid in table["grid"].to_pylist()]
    assert known == [block is not None for block in table["block"].to_pylist()]
    first = known.index(True)
    assert known == [first <= at < first + sampled for at in range(7)]
    assert abs(first - (7 - first - sampled)) <= 2  # as many before as after
    assert table["start_ns"].to_pylist() == [0, 10, 20, 30, 40, 50, 60]
    assert [grid & 0xFF for grid in table["grid"].drop_null().to_pylist()] == [*range(1, 8)][first : first + sampled]  # fmt: skip


@pytest.mark.parametrize("column", ["gridX", "blockZ"])
def test_without_a_column_of_the_shape_there_are_none_and_a_null_makes_its_shape_unknown(tmp_path, column):
    path = blank(with_shapes((3, 2, 1, 128, 4, 2)), "gridY", KERNEL).write(tmp_path / "a.sqlite")
    assert packed(path) == [(None, 128 + 4 * 2**11 + 2 * 2**22)]
    assert kernels(edit(path, f"ALTER TABLE {KERNEL} DROP COLUMN {column}")).schema == canonical.KERNELS.arrow
    assert packed(path) == [(None, None)]
    run = nsyspipe.load(tmp_path)
    assert (run.kernels()["n_kernels"].to_pylist(), run.kernels()["n_slowed"].to_pylist()) == ([1], [0])


BLOCKING = {
    "cudaDeviceSynchronize_v3020": "cudaDeviceSynchronize", "cudaStreamSynchronize_ptsz_v7000": "cudaStreamSynchronize",
    "cudaStreamSynchronize_ptsz": "cudaStreamSynchronize", "cudaEventSynchronize": "cudaEventSynchronize",
    "cuMemcpyHtoD_v2_ptds": "cuMemcpyHtoD", "cuCtxSynchronize": "cuCtxSynchronize", "cudaMalloc_v3020": "cudaMalloc",
    "cudaFreeHost_v3020": "cudaFreeHost", "cudaHostAlloc_v3020": "cudaHostAlloc", "cudaMemcpy_ptds_v7000": "cudaMemcpy",
    "cuMemSetAccess": "cuMemSetAccess",
}  # fmt: skip
ENQUEUED = (
    "cudaMemcpyAsync_v3020", "cudaMemcpyAsync_ptsz_v7000", "cuMemcpyHtoDAsync_v2", "cudaMallocAsync_v11020",
    "cudaFreeAsync_v11020", "cudaMemsetAsync_v3020", "cudaLaunchKernel_v7000", "cudaStreamWaitEvent_v3020",
    "cudaEventRecord_v3020", "cudaStreamQuery_v3020",
)  # fmt: skip


def test_synchronising_and_memory_calls_block_under_the_name_of_the_api_and_those_that_only_enqueue_do_not(tmp_path):
    calls = [(100 * at, 100 * at + 20, name) for at, name in enumerate([*BLOCKING, *ENQUEUED])]
    found = blocking(with_calls(*calls).write(tmp_path / "a.sqlite"))
    assert found == [(start, end, BLOCKING[name]) for start, end, name in calls[: len(BLOCKING)]]


def test_blocking_calls_are_sorted_by_start_and_those_of_no_length_or_without_an_end_left_out(tmp_path):
    sync, alloc = "cudaDeviceSynchronize_v3020", "cudaMalloc_v3020"
    calls = (40, 50, sync), (10, 30, alloc), (10, 20, sync), (60, 60, sync), (-5, 3, alloc), (15, None, alloc)
    assert blocking(nullable(with_calls(*calls)).write(tmp_path / "a.sqlite")) == [
        (-5, 3, "cudaMalloc"), (10, 20, "cudaDeviceSynchronize"), (10, 30, "cudaMalloc"),
        (40, 50, "cudaDeviceSynchronize"),
    ]  # fmt: skip


@pytest.mark.parametrize("column", ["end", "nameId"])
def test_without_ends_or_names_of_calls_launch_and_blocked_time_is_null(tmp_path, column):
    builder = nullable(steady_rank(0, world_size=1))
    del builder.schema[RUNTIME][column]
    path = builder.write(tmp_path / "a_0.sqlite")
    assert blocking(path) is None
    row = nsyspipe.load(path).steps().to_pylist()[1]
    found = [row[f"idle_{cause}_ns"] for cause in ("input", "launch", "blocked", "dependency", "unknown")]  # fmt: skip
    assert found == [100, None, None, 10, 0]


def test_without_the_table_of_names_no_call_blocks(tmp_path):
    assert blocking(with_calls((10, 30, "cudaMalloc")).write(tmp_path / "a.sqlite", without=(STRINGS,))) == []


def overhead(path):
    with open_report(path) as report:
        found = read_overhead(report, read_facts(report))
    return None if found is None else list(zip(*(one.tolist() for one in found), strict=True))


def with_overhead(*spans):
    builder = steady_rank(0, world_size=1)
    builder.schema = builder.schema | {"PROFILER_OVERHEAD": OVERHEAD}
    for start, end in spans:
        builder.add("PROFILER_OVERHEAD", start=start, end=end)
    return builder


@pytest.mark.parametrize(
    ("version", "meta", "is_known"),
    [
        ("2.9.1 2022.1.3", {}, True),  # a lazy export leaves out what has no rows
        ("3.25.0 2026.2.1 mfu", {"EXPORT_PARAM_LAZY": "true"}, True),
        ("(none) martisu", {}, False),
        (DEFAULT, {"EXPORT_PARAM_LAZY": "false"}, False),
        (DEFAULT, {"EXPORT_PARAM_TABLES_TO_EXPORT": KERNEL}, False),
        (DEFAULT, {"EXPORT_PARAM_TABLES_TO_EXPORT": f"{KERNEL},PROFILER_OVERHEAD"}, True),
    ],
)
def test_without_the_table_the_profilers_work_is_unknown_if_the_export_may_lack_it(tmp_path, version, meta, is_known):
    path = steady_rank(0, world_size=1, version=version).meta(**meta).write(tmp_path / "a_0.sqlite")
    assert overhead(path) == ([] if is_known else None)
    assert set(nsyspipe.load(path).steps()["overhead_ns"].to_pylist()) == {0 if is_known else None}


def test_the_profilers_work_is_read_where_it_took_time_and_a_step_says_how_long_that_is(tmp_path):
    path = with_overhead((500, 700), (100, 100), (300, None), (90, 80), (-5, 2)).write(tmp_path / "a_0.sqlite")
    assert sorted(overhead(path)) == [(-5, 2), (500, 700)]
    # Windows [100, 1100), [1100, 2100), ...: 1 ns before, two that overlap, one over an edge.
    spans = (99, 101), (500, 600), (550, 700), (1000, 1300)
    run = nsyspipe.load(with_overhead(*spans).write(path))
    assert run.steps()["overhead_ns"].to_pylist() == [1 + 200 + 100, 200, 0, 0]
    # Without rows the profiler did nothing.
    path = edit(with_overhead().write(path), "CREATE TABLE PROFILER_OVERHEAD (start INTEGER, end INTEGER)")
    assert (overhead(path), set(nsyspipe.load(path).steps()["overhead_ns"].to_pylist())) == ([], {0})


def waits(builder, path):
    """Return the calls that waited as (start, end, device, stream, whether for all, end of the copy)."""
    with open_report(builder.write(path)) as report:
        found = read_calls(report, read_strings(report)).waits
    assert found.schema == canonical.HOST_WAITS.arrow
    return [tuple(row.values())[2:] for row in found.to_pylist()]


def called(builder, start, name, number, *, pid=None, end=None):
    return builder.add(
        RUNTIME, start=start, end=start + 20 if end is None else end, globalTid=builder.global_tid(pid=pid),
        correlationId=number, nameId=builder.string(f"{name}_v3020"),
    )  # fmt: skip


def test_a_call_waits_for_its_copy_into_pageable_memory_and_of_several_for_the_last(tmp_path):
    builder = TraceBuilder().kernel(0, 5, launch=0)
    copies = [  # start of the call, its name, id, kind of copy, of memory, ends of its copies
        (10, "cudaMemcpyAsync", 50, 2, 0, (28, 25)), (40, "cudaMemcpyAsync", 51, 2, 1, (58,)),
        (70, "cudaMemcpy", 52, 2, 1, (88,)), (100, "cudaMemcpy", 53, 1, 0, (118,)),
    ]  # fmt: skip
    for start, name, number, kind, memory, ends in copies:
        called(builder, start, name, number)
        for end in ends:
            builder.add(
                MEMCPY, start=start, end=end, deviceId=3, streamId=7, correlationId=number, globalPid=builder.global_pid(),
                bytes=1, copyKind=kind, dstKind=memory,
            )  # fmt: skip
    called(builder, 11, "cudaMemcpy", 50, pid=2000)  # of another process
    called(builder, 130, "cudaMemcpy", 52, end=130)
    assert waits(builder, tmp_path / "a.sqlite") == [
        (10, 30, 3, None, False, 28), (70, 90, 3, None, False, 88),
    ]  # fmt: skip


def test_a_call_waits_for_the_stream_that_the_report_names(tmp_path):
    builder = TraceBuilder().kernel(0, 5, launch=0)
    table = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
    columns = ("start", "end", "deviceId", "streamId", "correlationId", "globalPid")
    builder.schema = builder.schema | {table: dict.fromkeys(columns, "INTEGER")}
    names = ["cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaStreamSynchronize"]
    for number, name in enumerate(names):
        called(builder, 100 * number, name, number + 60)
    for number, stream in ((60, 9), (60, 7), (61, 0xFFFFFFFF)):
        builder.add(
            table, start=0, end=1, deviceId=0, streamId=stream, correlationId=number, globalPid=builder.global_pid(),
        )  # fmt: skip
    assert waits(builder, tmp_path / "a.sqlite") == [
        (0, 20, 0, 7, False, None), (100, 120, 0, None, True, None), (200, 220, None, None, False, None),
    ]  # fmt: skip
