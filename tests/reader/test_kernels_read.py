"""Shapes of kernels, calls that block, the profiler's own work; and what a naive reader gets wrong: ids, nulls, times."""

import re

import pytest

import nsyspipe
from nsyspipe.errors import MissingColumnError
from nsyspipe.model import canonical
from nsyspipe.reader import operations as read_kernels_module
from nsyspipe.reader.calls import read_calls, read_overhead, read_strings
from nsyspipe.reader.facts import read_facts
from nsyspipe.reader.operations import read_operations
from nsyspipe.reader.report import open_report
from tests.build.tools import (
    STEADY,
    blank,
    codes,
    edit,
    figures,
    nullable,
    problem_of,
    refuse,
    run_of,
    shift,
)
from tests.build.trace import (
    DEFAULT,
    KERNEL,
    MEMCPY,
    NVTX,
    RUNTIME,
    STRINGS,
    TraceBuilder,
    steady_rank,
)
from tests.golden.words import figures as figures_of

SHAPE = ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ")
OVERHEAD = {
    "start": "INTEGER NOT NULL",
    "end": "INTEGER",
    "globalTid": "INTEGER",
    "nameId": "INTEGER",
}


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
    return [
        tuple(row[name] for name in ("start_ns", "end_ns", "call")) for row in found.to_pylist()
    ]


def with_calls(*calls):
    builder = TraceBuilder().kernel(0, 5, launch=0)
    for start, end, name in calls:
        builder.launch(start, api=name)
        builder.rows[RUNTIME][-1]["end"] = end
    return builder


def test_grid_and_block_are_packed_into_one_integer_each(tmp_path):
    path = with_shapes((3, 2, 1, 128, 4, 2), (1, 1, 1, 1, 1, 1)).write(tmp_path / "a.sqlite")
    one = 1 + 2**32 + 2**48, 1 + 2**11 + 2**22
    assert packed(path) == [(3 + 2 * 2**32 + 2**48, 128 + 4 * 2**11 + 2 * 2**22), one]


def test_the_largest_grids_and_blocks_keep_every_bit(
    tmp_path,
):
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
    monkeypatch.setattr(read_kernels_module, "_MAX_SHAPES", sampled)
    table = kernels(
        with_shapes(*((at, 1, 1, 32, 1, 1) for at in range(1, 8))).write(tmp_path / "a.sqlite")
    )
    known, blocks = (
        [one is not None for one in table[name].to_pylist()] for name in ("grid", "block")
    )
    assert known == blocks
    first = known.index(True)
    assert known == [first <= at < first + sampled for at in range(7)]
    assert abs(first - (7 - first - sampled)) <= 2  # as many before as after
    assert table["start_ns"].to_pylist() == [0, 10, 20, 30, 40, 50, 60]
    assert [grid & 0xFF for grid in table["grid"].drop_null().to_pylist()] == [*range(1, 8)][
        first : first + sampled
    ]


@pytest.mark.parametrize(
    "change",
    [
        "",
        f"DELETE FROM {KERNEL} WHERE start = 10",
        f"ALTER TABLE {KERNEL} DROP COLUMN demangledName",
    ],
)
def test_short_names_of_a_large_table_follow_from_demangled_names(tmp_path, monkeypatch, change):
    monkeypatch.setattr(read_kernels_module, "_MAX_SHAPES", 2)
    builder = TraceBuilder()
    for at, name in enumerate(
        names := ["gemm", "void ncclSend", "gemm", "ncclAllReduce", "void ncclSend"]
    ):
        builder.kernel(10 * at, 10 * at + 5, name, launch=10 * at)
        builder.rows[KERNEL][-1]["shortName"] = builder.string(name.removeprefix("void "))
    table = kernels(edit(builder.write(tmp_path / "a.sqlite"), *filter(None, [change])))
    expected = {
        10 * at: "nccl" in name
        for at, name in enumerate(names)
        if not ("DELETE" in change and at == 1)
    }
    assert (
        dict(zip(table["start_ns"].to_pylist(), table["is_comm"].to_pylist(), strict=True))
        == expected
    )


@pytest.mark.parametrize("column", ["gridX", "blockZ"])
def test_a_null_makes_the_shape_of_a_kernel_unknown(tmp_path, column):
    path = blank(with_shapes((3, 2, 1, 128, 4, 2)), "gridY", KERNEL).write(tmp_path / "a.sqlite")
    assert packed(path) == [(None, 128 + 4 * 2**11 + 2 * 2**22)]
    assert (
        kernels(edit(path, f"ALTER TABLE {KERNEL} DROP COLUMN {column}")).schema
        == canonical.KERNELS.arrow
    )
    assert packed(path) == [(None, None)]
    run = nsyspipe.load(tmp_path)
    assert (run.kernels()["n_kernels"].to_pylist(), run.kernels()["n_slowed"].to_pylist()) == (
        [1],
        [0],
    )


BLOCKING = {
    "cudaDeviceSynchronize_v3020": "cudaDeviceSynchronize",
    "cudaStreamSynchronize_ptsz_v7000": "cudaStreamSynchronize",
    "cudaStreamSynchronize_ptsz": "cudaStreamSynchronize",
    "cudaEventSynchronize": "cudaEventSynchronize",
    "cuMemcpyHtoD_v2_ptds": "cuMemcpyHtoD",
    "cuCtxSynchronize": "cuCtxSynchronize",
    "cudaMalloc_v3020": "cudaMalloc",
    "cudaFreeHost_v3020": "cudaFreeHost",
    "cudaHostAlloc_v3020": "cudaHostAlloc",
    "cudaMemcpy_ptds_v7000": "cudaMemcpy",
    "cuMemSetAccess": "cuMemSetAccess",
}
ENQUEUED = (
    "cudaMemcpyAsync_v3020",
    "cudaMemcpyAsync_ptsz_v7000",
    "cuMemcpyHtoDAsync_v2",
    "cudaMallocAsync_v11020",
    "cudaFreeAsync_v11020",
    "cudaMemsetAsync_v3020",
    "cudaLaunchKernel_v7000",
    "cudaStreamWaitEvent_v3020",
    "cudaEventRecord_v3020",
    "cudaStreamQuery_v3020",
)


def test_synchronizing_and_memory_calls_block_under_their_api_names(
    tmp_path,
):
    calls = [(100 * at, 100 * at + 20, name) for at, name in enumerate([*BLOCKING, *ENQUEUED])]
    found = blocking(with_calls(*calls).write(tmp_path / "a.sqlite"))
    assert found == [(start, end, BLOCKING[name]) for start, end, name in calls[: len(BLOCKING)]]


def test_blocking_calls_are_sorted_by_start_without_empty_ones(
    tmp_path,
):
    sync, alloc = "cudaDeviceSynchronize_v3020", "cudaMalloc_v3020"
    calls = (
        (40, 50, sync),
        (10, 30, alloc),
        (10, 20, sync),
        (60, 60, sync),
        (-5, 3, alloc),
        (15, None, alloc),
    )
    assert blocking(nullable(with_calls(*calls)).write(tmp_path / "a.sqlite")) == [
        (-5, 3, "cudaMalloc"),
        (10, 20, "cudaDeviceSynchronize"),
        (10, 30, "cudaMalloc"),
        (40, 50, "cudaDeviceSynchronize"),
    ]


@pytest.mark.parametrize("column", ["end", "nameId"])
def test_without_ends_or_names_of_calls_launch_and_blocked_time_is_null(tmp_path, column):
    builder = nullable(steady_rank(0, world_size=1))
    del builder.schema[RUNTIME][column]
    path = builder.write(tmp_path / "a_0.sqlite")
    assert blocking(path) is None
    row = nsyspipe.load(path).steps().to_pylist()[1]
    found = [
        row[f"idle_{cause}_ns"] for cause in ("input", "launch", "blocked", "dependency", "unknown")
    ]
    assert found == [100, None, None, 10, 0]


def test_without_the_table_of_names_no_call_blocks(tmp_path):
    assert (
        blocking(
            with_calls((10, 30, "cudaMalloc")).write(tmp_path / "a.sqlite", without=(STRINGS,))
        )
        == []
    )


def overhead(path):
    with open_report(path) as report:
        found = read_overhead(report, read_facts(report))
    return (
        None if found is None else [*zip(found.starts.tolist(), found.ends.tolist(), strict=True)]
    )


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
def test_the_profilers_work_is_unknown_if_the_export_may_lack_it(tmp_path, version, meta, is_known):
    path = steady_rank(0, world_size=1, version=version).meta(**meta).write(tmp_path / "a_0.sqlite")
    assert overhead(path) == ([] if is_known else None)
    assert set(nsyspipe.load(path).steps()["overhead_ns"].to_pylist()) == {0 if is_known else None}


def test_the_profilers_work_is_read_and_measured_for_each_step(tmp_path):
    path = with_overhead((500, 700), (100, 100), (300, None), (90, 80), (-5, 2)).write(
        tmp_path / "a_0.sqlite"
    )
    assert sorted(overhead(path)) == [(-5, 2), (500, 700)]
    # Windows [100, 1100), [1100, 2100), ...: 1 ns before, two that overlap, one over an edge.
    spans = (99, 101), (500, 600), (550, 700), (1000, 1300)
    run = nsyspipe.load(with_overhead(*spans).write(path))
    assert run.steps()["overhead_ns"].to_pylist() == [1 + 200 + 100, 200, 0, 0]
    # Without rows the profiler did nothing.
    path = edit(
        with_overhead().write(path), "CREATE TABLE PROFILER_OVERHEAD (start INTEGER, end INTEGER)"
    )
    assert (overhead(path), set(nsyspipe.load(path).steps()["overhead_ns"].to_pylist())) == (
        [],
        {0},
    )


def test_the_profilers_work_counts_in_the_process_that_it_held_up(tmp_path):
    builder = with_overhead((500, 700), (800, 900))
    path = builder.write(tmp_path / "a_0.sqlite")
    edit(
        path,
        (
            f"UPDATE PROFILER_OVERHEAD SET globalTid = {builder.global_tid('main', 4711)} WHERE "
            "start = 500"
        ),
    )
    assert nsyspipe.load(path).steps()["overhead_ns"].to_pylist() == [100, 0, 0, 0]
    edit(
        path,
        f"UPDATE PROFILER_OVERHEAD SET globalTid = {builder.global_tid('main')} WHERE start = 500",
    )
    assert nsyspipe.load(path).steps()["overhead_ns"].to_pylist() == [300, 0, 0, 0]


@pytest.mark.parametrize(
    ("rows", "sampled"),
    [
        ({}, None),
        ({"PROCESS_0:COLLECT_CPU_TRACE": "false"}, False),
        ({"PROCESS_0:COLLECT_CPU_TRACE": "false", "PROCESS_1:COLLECT_CPU_TRACE": "true"}, True),
    ],
)
def test_whether_the_cpu_was_sampled_is_read_where_nsys_says_it(tmp_path, rows, sampled):
    path = steady_rank(0, world_size=1).write(tmp_path / "a_0.sqlite")
    edit(
        path,
        *[
            f"INSERT INTO META_DATA_CAPTURE (name, value) VALUES ('{name}', '{value}')"
            for name, value in rows.items()
        ],
    )
    with open_report(path) as report:
        facts = read_facts(report)
    assert (facts.is_cpu_sampled, facts.has_cuda_backtraces) == (sampled, False)


def waits(builder, path):
    """Return the calls that waited as (start, end, device, stream, whether for all, end of the copy)."""
    with open_report(builder.write(path)) as report:
        found = read_calls(report, read_strings(report)).waits
    assert found.schema == canonical.HOST_WAITS.arrow
    return [tuple(row.values())[2:] for row in found.to_pylist()]


def called(builder, start, name, number, *, pid=None, end=None):
    return builder.add(
        RUNTIME,
        start=start,
        end=start + 20 if end is None else end,
        globalTid=builder.global_tid(pid=pid),
        correlationId=number,
        nameId=builder.string(f"{name}_v3020"),
    )


def test_a_call_waits_for_its_last_copy_into_pageable_memory(tmp_path):
    builder = TraceBuilder().kernel(0, 5, launch=0)
    copies = [  # start of the call, its name, id, kind of copy, of memory, ends of its copies
        (10, "cudaMemcpyAsync", 50, 2, 0, (28, 25)),
        (40, "cudaMemcpyAsync", 51, 2, 1, (58,)),
        (70, "cudaMemcpy", 52, 2, 1, (88,)),
        (100, "cudaMemcpy", 53, 1, 0, (118,)),
    ]
    for start, name, number, kind, memory, ends in copies:
        called(builder, start, name, number)
        row = {
            "start": start,
            "deviceId": 3,
            "streamId": 7,
            "correlationId": number,
            "globalPid": builder.global_pid(),
        }
        for end in ends:
            builder.add(MEMCPY, **row, end=end, bytes=1, copyKind=kind, dstKind=memory)
    called(builder, 11, "cudaMemcpy", 50, pid=2000)  # of another process
    called(builder, 130, "cudaMemcpy", 52, end=130)
    assert waits(builder, tmp_path / "a.sqlite") == [
        (10, 30, 3, None, False, 28),
        (70, 90, 3, None, False, 88),
    ]


def test_a_call_waits_for_the_stream_that_the_report_names(tmp_path):
    builder = TraceBuilder().kernel(0, 5, launch=0)
    table = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
    columns = ("start", "end", "deviceId", "streamId", "correlationId", "globalPid")
    builder.schema = builder.schema | {table: dict.fromkeys(columns, "INTEGER")}
    for number, name in enumerate(
        ["cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaStreamSynchronize"]
    ):
        called(builder, 100 * number, name, number + 60)
    for number, stream in ((60, 9), (60, 7), (61, 0xFFFFFFFF)):
        builder.add(
            table,
            **dict(zip(columns, (0, 1, 0, stream, number, builder.global_pid()), strict=True)),
        )
    assert waits(builder, tmp_path / "a.sqlite") == [
        (0, 20, 0, 7, False, None),
        (100, 120, 0, None, True, None),
        (200, 220, None, None, False, None),
    ]


@pytest.mark.parametrize("base", [1 << 48, 1 << 56, (1 << 62) + (3 << 48), -(1 << 62), -(1 << 63)])
def test_thread_ids_of_any_sign_stay_apart_and_keep_the_pid(tmp_path, base):
    builder = TraceBuilder(base=base)
    for step in range(4):
        at = 1000 * step
        # The threads' ids differ by one: as one thread they would have the steps 10, 11, ...
        builder.range(at - 100, at + 300, f"step {step + 10}", thread="autograd").range(
            at, at + 900, f"step {step}"
        )
        builder.kernel(at + 100, at + 200, launch=at + 310)
    run = run_of(tmp_path, builder)
    assert run.steps()["step"].to_pylist() == [0, 1, 2, 3]
    assert run.ranks["pid"].to_pylist() == [1000]


@pytest.mark.parametrize("first", [0, 2**53 - 1, 2**62, -(2**62)])
def test_correlation_ids_join_exactly_beside_a_null_one(tmp_path, first):
    builder = steady_rank(0)
    for table in (KERNEL, MEMCPY, RUNTIME):
        for row in builder.rows[table]:
            row["correlationId"] += first
    builder.kernel(2700, 2720)
    builder.rows[KERNEL][-1]["correlationId"] = None
    run = run_of(tmp_path, nullable(builder))
    assert figures(run) == STEADY
    # The kernel without a launch lies in step 2's window.
    assert figures(run, step=2) == STEADY | {"compute_ns": 220, "idle_ns": 740}
    assert re.match(r"1 of 17\b", problem_of(run, "launch-missing")["message"])


@pytest.mark.parametrize("by", [2**60 + 1, -(2**60) - 1])
def test_times_stay_exact_when_a_null_end_is_among_them(tmp_path, by):
    run = run_of(tmp_path, shift(steady_rank(0).range(2990, None, "mark", kind=34), by))
    assert figures(run) == STEADY
    assert run.steps()["start_ns"].to_pylist() == [at + by for at in (100, 1100, 2100, 3100)]


@pytest.mark.parametrize("negative", [False, True])
def test_a_process_is_found_by_its_threads_where_no_operation_names_it(tmp_path, negative):
    builder = steady_rank(0)
    if negative:
        for table in (RUNTIME, NVTX):
            for row in builder.rows[table]:
                row["globalTid"] -= 1 << 63
    run = run_of(tmp_path, blank(builder, "globalPid", KERNEL, MEMCPY))
    assert (figures(run), run.ranks["pid"].to_pylist()) == (STEADY, [1000])


@pytest.mark.parametrize(
    "columns", [["greenContextId", "streamId", "contextId", "demangledName"], ["shortName"]]
)
def test_columns_without_values_change_nothing(tmp_path, columns):
    builder = steady_rank(0)
    for column in [*columns, "deviceId"]:
        blank(builder, column, KERNEL, MEMCPY)
    run = run_of(tmp_path, builder)
    assert figures(run) == STEADY
    assert run.ranks.select(["device_id", "device_ids"]).to_pylist() == [
        {"device_id": None, "device_ids": ""}
    ]


@pytest.mark.parametrize("column_is_there", [True, False])
def test_without_any_correlation_id_steps_are_the_ranges_own_times(tmp_path, column_is_there):
    path = blank(steady_rank(0), "correlationId", KERNEL, MEMCPY).write(tmp_path / "a_0.sqlite")
    if not column_is_there:
        for table in (KERNEL, MEMCPY):
            edit(path, f"ALTER TABLE {table} DROP COLUMN correlationId")
    run = nsyspipe.load(path)
    # Windows [1000 i, 1000 (i + 1)), the last one ends with its range; who launched what is
    # unknown.
    found = [run.steps()[name].to_pylist() for name in ("start_ns", "end_ns", "is_complete")]
    assert found == [[0, 1000, 2000, 3000], [1000, 2000, 3000, 3900], [True, True, True, False]]
    assert figures(run) == STEADY | {"overlap_backward_ns": None}
    assert problem_of(run, "no-launches")["severity"] == "warning"


@pytest.mark.parametrize(("start", "end"), [(1500, 1400), (None, 1400), (1300, None), (None, None)])
def test_operations_without_a_valid_time_are_left_out_and_counted(tmp_path, start, end, worded):
    builder = (
        steady_rank(0).kernel(0, 0, launch=1020).copy(0, 0, launch=1020).memset(0, 0, launch=1020)
    )
    for row in (builder.rows[table][-1] for table in builder.rows if table.startswith("CUPTI")):
        if "nameId" not in row:
            row["start"], row["end"] = start, end
    run = run_of(tmp_path, nullable(builder))
    assert figures(run) == STEADY
    message = problem_of(run, "dropped-operations")["message"]
    assert figures_of(message) == {"3"}
    worded(message)
    assert run.ranks["n_kernels"].to_pylist() == [12]


@pytest.mark.parametrize(
    "columns", [["start"], ["end"], ["shortName", "demangledName"]], ids=["start", "end", "names"]
)
def test_kernels_without_a_column_that_every_answer_needs_are_a_clear_error(
    tmp_path, columns, worded
):
    path = steady_rank(0).write(tmp_path / "a_0.sqlite")
    edit(path, *(f'ALTER TABLE {KERNEL} DROP COLUMN "{name}"' for name in columns))
    error = refuse(MissingColumnError, path)
    assert error.subject == str(path)
    assert KERNEL in error.problem
    assert columns[0] in error.problem
    worded(error.lines())


VERSIONED = [
    f"{table} RENAME TO {table}_V2"
    for table in (KERNEL, MEMCPY, RUNTIME, NVTX, STRINGS, "TARGET_INFO_GPU")
]


@pytest.mark.parametrize(
    "changes",
    [[f"{KERNEL} DROP COLUMN shortName"], [f"{KERNEL} DROP COLUMN demangledName"], VERSIONED],
)
def test_one_of_the_two_names_of_a_kernel_is_enough(tmp_path, changes):
    path = steady_rank(0).write(tmp_path / "a_0.sqlite")
    run = nsyspipe.load(edit(path, *(f"ALTER TABLE {change}" for change in changes)))
    assert figures(run) == STEADY
    assert ("no-comm-kernels" in codes(run), run.ranks["gpu_name"].to_pylist()) == (
        False,
        ["NVIDIA H200"],
    )


def test_any_file_name_is_opened_as_it_is(tmp_path):
    names = ["a#b?c=1.sqlite", "a%20b.sqlite", "a b&mode=rwc.sqlite", "\N{SNOWMAN}.sqlite"]
    for name in names:
        assert figures(nsyspipe.load(steady_rank(0).write(tmp_path / name))) == STEADY, name
    assert {one.name for one in tmp_path.iterdir()} == {*names}
