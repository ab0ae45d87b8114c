"""What real exports hold that a naive reader gets wrong: huge ids, nulls, rows without times, odd names."""

from __future__ import annotations

import pytest

import nsyspipe
from nsyspipe.errors import MissingColumnError
from tests.build.tools import STEADY, blank, codes, edit, figures, nullable, problem_of, shift
from tests.build.trace import KERNEL, MEMCPY, NVTX, RUNTIME, STRINGS, TraceBuilder, steady_rank


def load(builder, tmp_path):
    return nsyspipe.load(builder.write(tmp_path / "a_0.sqlite"))


@pytest.mark.parametrize("base", [1 << 48, 1 << 56, (1 << 62) + (3 << 48), -(1 << 62), -(1 << 63)])
def test_thread_ids_of_any_sign_stay_apart_and_keep_the_pid(tmp_path, base):
    builder = TraceBuilder(base=base)
    for step in range(4):
        at = 1000 * step
        # The threads' ids differ by one. If they became one thread, the ranges that start earlier
        # would be the members, and the steps would be 10, 11, ...
        builder.range(at - 100, at + 300, f"step {step + 10}", thread="autograd")
        builder.range(at, at + 900, f"step {step}")
        builder.kernel(at + 100, at + 200, launch=at + 310)
    run = load(builder, tmp_path)
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
    run = load(nullable(builder), tmp_path)
    assert figures(run) == STEADY
    # The kernel without a launch lies in step 2's window.
    assert figures(run, step=2) == STEADY | {"compute_ns": 220, "idle_ns": 740}
    assert problem_of(run, "launch-missing")["message"].startswith("1 of 17 operations")


@pytest.mark.parametrize("by", [2**60 + 1, -(2**60) - 1])
def test_times_stay_exact_when_a_null_end_is_among_them(tmp_path, by):
    builder = shift(steady_rank(0).range(2990, None, "mark", kind=34), by)
    run = load(builder, tmp_path)
    assert figures(run) == STEADY
    assert run.steps()["start_ns"].to_pylist() == [at + by for at in (100, 1100, 2100, 3100)]


@pytest.mark.parametrize("negative", [False, True])
def test_a_process_is_found_by_its_threads_where_no_operation_names_it(tmp_path, negative):
    builder = steady_rank(0)
    if negative:
        for table in (RUNTIME, NVTX):
            for row in builder.rows[table]:
                row["globalTid"] -= 1 << 63
    run = load(blank(builder, "globalPid", KERNEL, MEMCPY), tmp_path)
    assert figures(run) == STEADY
    assert run.ranks["pid"].to_pylist() == [1000]


@pytest.mark.parametrize("columns", [["greenContextId", "streamId", "contextId", "demangledName"], ["shortName"]])
def test_columns_without_any_value_change_nothing_and_devices_that_were_not_recorded_are_null(tmp_path, columns):
    builder = steady_rank(0)
    for column in [*columns, "deviceId"]:
        blank(builder, column, KERNEL, MEMCPY)
    run = load(builder, tmp_path)
    assert figures(run) == STEADY
    assert run.ranks.select(["device_id", "device_ids"]).to_pylist() == [{"device_id": None, "device_ids": ""}]


@pytest.mark.parametrize("column_is_there", [True, False])
def test_without_any_correlation_id_steps_are_the_ranges_own_times(tmp_path, column_is_there):
    path = blank(steady_rank(0), "correlationId", KERNEL, MEMCPY).write(tmp_path / "a_0.sqlite")
    if not column_is_there:
        for table in (KERNEL, MEMCPY):
            edit(path, f"ALTER TABLE {table} DROP COLUMN correlationId")
    run = nsyspipe.load(path)
    # Windows [1000 i, 1000 (i + 1)), the last one ends with its range; who launched what is unknown.
    assert run.steps()["start_ns"].to_pylist() == [0, 1000, 2000, 3000]
    assert run.steps()["end_ns"].to_pylist() == [1000, 2000, 3000, 3900]
    assert run.steps()["is_complete"].to_pylist() == [True, True, True, False]
    assert figures(run) == STEADY | {"overlap_backward_ns": None}
    assert problem_of(run, "no-launches")["severity"] == "warning"


@pytest.mark.parametrize(("start", "end"), [(1500, 1400), (None, 1400), (1300, None), (None, None)])
def test_operations_without_a_valid_time_are_left_out_and_counted(tmp_path, start, end):
    builder = steady_rank(0).kernel(0, 0, launch=1020).copy(0, 0, launch=1020).memset(0, 0, launch=1020)
    for row in (builder.rows[table][-1] for table in builder.rows if table.startswith("CUPTI")):
        if "nameId" not in row:
            row["start"], row["end"] = start, end
    run = load(nullable(builder), tmp_path)
    assert figures(run) == STEADY
    assert problem_of(run, "dropped-operations")["message"].startswith("3 device operations")
    assert run.ranks["n_kernels"].to_pylist() == [12]


@pytest.mark.parametrize("columns", [["start"], ["end"], ["shortName", "demangledName"]])
def test_kernels_without_a_column_that_every_answer_needs_are_a_clear_error(tmp_path, columns):
    path = steady_rank(0).write(tmp_path / "a_0.sqlite")
    edit(path, *(f'ALTER TABLE {KERNEL} DROP COLUMN "{name}"' for name in columns))
    with pytest.raises(MissingColumnError) as caught:
        nsyspipe.load(path).steps()
    assert str(path) in str(caught.value)
    assert f"{KERNEL} has no column {columns[0]}" in str(caught.value)
    assert "nsys export" in caught.value.fix


@pytest.mark.parametrize("name", ["shortName", "demangledName"])
def test_one_of_the_two_names_of_a_kernel_is_enough(tmp_path, name):
    path = steady_rank(0).write(tmp_path / "a_0.sqlite")
    run = nsyspipe.load(edit(path, f"ALTER TABLE {KERNEL} DROP COLUMN {name}"))
    assert figures(run) == STEADY
    assert "no-comm-kernels" not in codes(run)


def test_tables_may_carry_a_version_in_their_names(tmp_path):
    path = steady_rank(0).write(tmp_path / "a_0.sqlite")
    tables = (KERNEL, MEMCPY, RUNTIME, NVTX, STRINGS, "TARGET_INFO_GPU")
    run = nsyspipe.load(edit(path, *(f"ALTER TABLE {table} RENAME TO {table}_V2" for table in tables)))
    assert figures(run) == STEADY
    assert run.ranks["gpu_name"].to_pylist() == ["NVIDIA H200"]


def test_any_file_name_is_opened_as_it_is(tmp_path):
    names = ["a#b?c=1.sqlite", "a%20b.sqlite", "a b&mode=rwc.sqlite", "\N{SNOWMAN}.sqlite"]
    for name in names:
        assert figures(nsyspipe.load(steady_rank(0).write(tmp_path / name))) == STEADY
    assert {one.name for one in tmp_path.iterdir()} == {*names}
