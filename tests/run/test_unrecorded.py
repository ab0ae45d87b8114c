"""Processes that launch work or have ranges, but of which no kernel was recorded."""

import pytest

import nsyspipe
from tests.build.tools import codes
from tests.build.trace import TraceBuilder
from tests.golden.words import figures as figures_of

CODE = "processes-without-kernels"


def report(n_recorded=2, *, launching=(), stepping=(), ranging=(), env=None):
    """Return one report of several processes from 1000 on; the others launch, have steps or have ranges, without kernels."""
    builder = TraceBuilder().session(10**18).gpu().env(**(env or {}))
    pids = range(1000, 1000 + n_recorded)
    for step in range(5):
        at = 1000 * step
        for pid in pids:
            builder.range(at, at + 900, f"step {step}", pid=pid)
            builder.kernel(at + 100, at + 300, launch=at + 10, pid=pid)
            builder.nccl(at + 300, at + 600, launch=at + 30, pid=pid)
        for pid in launching:
            builder.launch(at + 10, pid=pid)
        for pid in stepping:
            builder.range(at, at + 900, f"step {step}", pid=pid)
        for pid in ranging:
            builder.range(at, at + 100, "load a batch", pid=pid)
    return builder


def rows_of(tmp_path, builder, **options):
    run = nsyspipe.load(builder.write(tmp_path / "a.sqlite"), jobs=1, **options)
    rows = [row for row in run.problems.to_pylist() if row["code"] == CODE]
    return run, [(row["severity"], row["message"].partition(":")[0]) for row in rows]


def test_a_process_that_launched_is_named_and_nobody_waits_for_a_known_time(tmp_path, worded):
    run, rows = rows_of(tmp_path, report(launching=(1007,)))
    ((severity, message),) = rows
    assert severity == "warning"
    assert figures_of(message) == {"1007", "5"}
    worded(message)
    assert (run.header.n_ranks, run.header.world_size, run.header.n_job_ranks) == (2, None, 3)
    assert run.breakdown()["wait_ns"].null_count == run.breakdown().num_rows


def test_without_such_a_process_waiting_is_known(tmp_path):
    run, rows = rows_of(tmp_path, report())
    assert (rows, run.breakdown()["wait_ns"].null_count, run.header.n_job_ranks) == ([], 0, None)


def test_a_process_with_the_steps_of_the_run_is_a_rank(tmp_path, worded):
    run, rows = rows_of(tmp_path, report(stepping=(1008,), ranging=(1009,)))
    assert [severity for severity, _ in rows] == ["warning", "info"]
    assert [figures_of(message) for _, message in rows] == [{"1008", "5"}, {"1009", "5"}]
    worded(message for _, message in rows)
    assert run.header.n_processes_without_kernels == 1


def test_ranges_alone_make_no_time_unknown(tmp_path):
    run, _ = rows_of(tmp_path, report(ranging=(1009,)))
    assert (run.breakdown()["wait_ns"].null_count, run.header.n_job_ranks) == (0, None)


@pytest.mark.parametrize(
    ("size", "launching", "ranks"),
    [
        pytest.param(3, (1007,), {"2"}, id="one of one"),
        pytest.param(4, (1007, 1008), {"2", "3"}, id="two of two"),
        pytest.param(4, (1007,), {"2", "3"}, id="one of two"),
    ],
)
def test_the_ranks_that_they_stand_for_are_named(tmp_path, size, launching, ranks, worded):
    builder = report(launching=launching, env={"WORLD_SIZE": size})
    run, rows = rows_of(tmp_path, builder, rank_map={"a:1000": 0, "a:1001": 1})
    assert "ranks-missing" in codes(run)
    assert ranks <= figures_of(rows[0][1])
    worded(rows[0][1])


def test_by_order_only_how_many_ranks_they_stand_for_is_known(tmp_path, worded):
    _, rows = rows_of(tmp_path, report(launching=(1007,), env={"WORLD_SIZE": 4}))
    assert {"1", "4"} <= figures_of(rows[0][1])
    worded(rows[0][1])


def test_mpi_tells_which_rank_a_process_without_kernels_is(tmp_path, worded):
    builder = report(launching=(1007,), env={"WORLD_SIZE": 3})
    for rank, pid in enumerate((1000, 1007, 1001)):
        builder.range(0, None, f"MPI Rank {rank}", kind=39, pid=pid)
    run, rows = rows_of(tmp_path, builder)
    assert run.ranks["rank"].to_pylist() == [0, 2]
    assert "1" in figures_of(rows[0][1])
    worded(rows[0][1])


def test_what_calls_cuda_without_a_launch_is_nobody(tmp_path):
    builder = report()
    builder.launch(50, pid=1007, api="cuModuleGetLoadingMode")
    assert rows_of(tmp_path, builder)[1] == []
