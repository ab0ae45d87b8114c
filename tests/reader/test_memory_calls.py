"""Calls that allocate, free or map memory of a GPU: which calls they are, whether they failed, and their sizes."""

import pytest

from nsyspipe.model import canonical
from nsyspipe.reader.calls import read_calls, read_strings
from nsyspipe.reader.memory_calls import read_memory_calls
from nsyspipe.reader.report import open_report
from tests.build.tools import nullable
from tests.build.trace import RUNTIME, STRINGS, TraceBuilder

USAGE = "CUDA_GPU_MEMORY_USAGE_EVENTS"
ALLOCATING = {
    "cudaMalloc_v3020",
    "cudaMalloc",
    "cudaMallocPitch_v3020",
    "cudaMalloc3D_ptsz_v7000",
    "cudaMallocManaged_v6000",
    "cuMemAlloc_v2",
    "cuMemCreate",
}
FREEING = {"cudaFree_v3020", "cudaFreeArray_v3020", "cuMemFree_v2", "cuMemRelease"}
MAPPING = {"cuMemMap", "cuMemSetAccess", "cuMemUnmap"}
# Of pools, of the host, and calls that manage no memory.
OTHERS = {
    "cudaMallocAsync_v11020",
    "cudaMallocFromPoolAsync_v11020",
    "cudaFreeAsync_v11020",
    "cuMemAllocAsync",
    "cuMemFreeAsync",
    "cudaMallocHost_v3020",
    "cudaFreeHost_v3020",
    "cudaHostAlloc_v3020",
    "cuMemAllocHost_v2",
    "cuMemFreeHost",
    "cuMemAddressReserve",
    "cudaMemGetInfo_v3020",
    "cuMemcpyHtoD_v2",
    "cuMemsetD32_v2",
    "cudaLaunchKernel_v7000",
}


def read(builder, tmp_path, **options):
    with open_report(builder.write(tmp_path / "a.sqlite", **options)) as report:
        return read_memory_calls(report, read_strings(report))


def rows(builder, tmp_path):
    """Return the calls as (start, is an allocation, is a free, has failed, bytes)."""
    names = ("start_ns", "is_alloc", "is_free", "is_failed", "bytes")
    table = read(builder, tmp_path).table
    return [tuple(row[name] for name in names) for row in table.to_pylist()]


def test_the_table_has_its_declared_columns(tmp_path):
    found = read(TraceBuilder().memory_call(10, 20), tmp_path)
    assert found.table.schema == canonical.MEMORY_CALLS.arrow


@pytest.mark.parametrize("api", sorted(ALLOCATING))
def test_calls_that_allocate(tmp_path, api):
    found = rows(TraceBuilder().memory_call(10, 20, api), tmp_path)
    assert found == [(10, True, False, False, None)]


@pytest.mark.parametrize("api", sorted(FREEING))
def test_calls_that_free(tmp_path, api):
    found = rows(TraceBuilder().memory_call(10, 20, api), tmp_path)
    assert found == [(10, False, True, False, None)]


@pytest.mark.parametrize("api", sorted(MAPPING))
def test_calls_that_map_neither_allocate_nor_free(tmp_path, api):
    found = rows(TraceBuilder().memory_call(10, 20, api), tmp_path)
    assert found == [(10, False, False, False, None)]


@pytest.mark.parametrize("api", sorted(OTHERS))
def test_calls_of_pools_and_of_host_memory_do_not_count(tmp_path, api):
    assert rows(TraceBuilder().memory_call(10, 20, api), tmp_path) == []


def test_blocking_calls_that_manage_memory_are_flagged(tmp_path):
    builder = TraceBuilder().memory_call(10, 20).memory_call(30, 40, "cudaMallocHost_v3020")
    with open_report(builder.write(tmp_path / "a.sqlite")) as report:
        calls = read_calls(report, read_strings(report)).blocking
    assert calls["call"].to_pylist() == ["cudaMalloc", "cudaMallocHost"]
    assert calls["is_of_memory"].to_pylist() == [True, False]


def test_calls_are_in_order_of_start(tmp_path):
    builder = TraceBuilder().memory_call(30, 40, "cudaFree_v3020").memory_call(10, 20)
    assert [row[0] for row in rows(builder, tmp_path)] == [10, 30]


# 2 is cudaErrorMemoryAllocation.
@pytest.mark.parametrize(("result", "is_failed"), [(0, False), (2, True), (None, None)])
def test_a_result_tells_whether_a_call_failed(tmp_path, result, is_failed):
    builder = nullable(TraceBuilder().memory_call(10, 20, result=result))
    assert [row[3] for row in rows(builder, tmp_path)] == [is_failed]


def test_without_the_column_of_results_it_is_not_known_whether_calls_failed(tmp_path):
    builder = nullable(TraceBuilder().memory_call(10, 20))
    del builder.schema[RUNTIME]["returnValue"]
    assert [row[3] for row in rows(builder, tmp_path)] == [None]


def test_events_have_the_sizes(tmp_path):
    builder = TraceBuilder().memory_call(10, 20, n_bytes=2 << 20)
    builder.memory_call(30, 40, "cudaFree_v3020", n_bytes=512)
    assert [row[4] for row in rows(builder, tmp_path)] == [2 << 20, 512]


def test_only_the_call_that_has_an_event_has_a_size(tmp_path):
    builder = TraceBuilder().memory_call(10, 20, n_bytes=64).memory_call(30, 40)
    assert [row[4] for row in rows(builder, tmp_path)] == [64, None]


def test_an_event_of_another_process_with_the_same_id_is_not_of_the_call(tmp_path):
    builder = TraceBuilder().memory_call(10, 20)
    event = {"correlationId": builder.correlation, "globalPid": builder.global_pid(2000)}
    builder.add(USAGE, start=20, bytes=64, memKind=2, memoryOperationType=0, **event)
    assert [row[4] for row in rows(builder, tmp_path)] == [None]


# Kind 1 is pinned memory of the host, kind 5 the static memory of the program.
@pytest.mark.parametrize(("kind", "n_bytes"), [(2, 64), (3, 64), (4, 64), (1, None), (5, None)])
def test_only_memory_of_the_gpu_has_a_size(tmp_path, kind, n_bytes):
    builder = TraceBuilder().memory_call(10, 20, n_bytes=64)
    builder.rows[USAGE][-1]["memKind"] = kind
    assert [row[4] for row in rows(builder, tmp_path)] == [n_bytes]


@pytest.mark.parametrize("n_bytes", [-1, 2**42 + 1, 2**63 - 1])
def test_an_impossible_size_is_not_known(tmp_path, n_bytes):
    builder = TraceBuilder().memory_call(10, 20, n_bytes=n_bytes)
    assert [row[4] for row in rows(builder, tmp_path)] == [None]


def test_the_largest_possible_size_is_known(tmp_path):
    builder = TraceBuilder().memory_call(10, 20, n_bytes=2**42)
    assert [row[4] for row in rows(builder, tmp_path)] == [2**42]


@pytest.mark.parametrize("times", [(-(2**62), 0), (0, 2**62), (20, 10), (10, None)])
def test_calls_at_impossible_times_are_left_out(tmp_path, times):
    builder = TraceBuilder().memory_call(30, 40)
    builder.memory_call(*times)
    assert [row[0] for row in rows(nullable(builder), tmp_path)] == [30]


def test_sizes_of_a_report_with_events_are_recorded(tmp_path):
    assert read(TraceBuilder().memory_call(10, 20, n_bytes=64), tmp_path).has_sizes


def test_sizes_of_a_report_without_events_are_not_recorded(tmp_path):
    assert not read(TraceBuilder().memory_call(10, 20), tmp_path).has_sizes


def test_a_report_with_other_calls_alone_has_no_such_call(tmp_path):
    builder = TraceBuilder().kernel(10, 20, launch=5)
    assert rows(builder, tmp_path) == []


def test_without_calls_nothing_is_known(tmp_path):
    assert read(TraceBuilder().kernel(10, 20), tmp_path).table is None


@pytest.mark.parametrize("column", ["end", "nameId", "globalTid"])
def test_without_names_ends_or_threads_nothing_is_known(tmp_path, column):
    builder = nullable(TraceBuilder().memory_call(10, 20).kernel(10, 20))
    del builder.schema[RUNTIME][column]
    assert read(builder, tmp_path).table is None


def test_without_the_table_of_names_nothing_is_known(tmp_path):
    builder = TraceBuilder().memory_call(10, 20).kernel(10, 20)
    assert read(builder, tmp_path, without=(STRINGS,)).table is None


def test_sizes_that_are_not_numbers_are_not_known(tmp_path):
    builder = TraceBuilder().memory_call(10, 20, n_bytes=64)
    builder.schema = builder.schema | {USAGE: builder.schema[USAGE] | {"bytes": "TEXT"}}
    builder.rows[USAGE][-1]["bytes"] = "many"
    assert [row[4] for row in rows(builder, tmp_path)] == [None]
