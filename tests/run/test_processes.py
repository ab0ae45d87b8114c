"""Reports that hold more, or other things, than one process with kernels: several processes, graphs, nothing."""

import json

import pytest

import nsyspipe
from nsyspipe.report.export import document
from nsyspipe.report.formats import dumps
from nsyspipe.report.html.run_page import run_page
from nsyspipe.report.verdict import verdict
from nsyspipe.run.work import has_whole_graphs
from tests.build.tools import (
    STEADY,
    codes,
    figures,
    nullable,
    one_report,
    problem_of,
    run_of,
    shift,
)
from tests.build.trace import KERNEL, RUNTIME, TraceBuilder, steady_rank
from tests.golden.words import figures as numbers_of

MS = 1_000_000


def alone():
    return TraceBuilder().session(10**18).gpu().env(RANK=0, WORLD_SIZE=1)


def test_equal_correlation_ids_of_two_processes_are_kept_apart(tmp_path):
    # Everything of the second process happens 137 ns later. With the first one's launches its steps
    # would move by one.
    first, second = steady_rank(0), shift(steady_rank(1), 137)
    assert [row["correlationId"] for row in first.rows[KERNEL]] == [
        row["correlationId"] for row in second.rows[KERNEL]
    ]
    run = run_of(tmp_path, one_report(first, second))
    assert [figures(run, rank=rank) for rank in (0, 1)] == [STEADY] * 2
    starts = {(row["rank"], row["step"]): row["start_ns"] for row in run.steps().to_pylist()}
    assert [starts[0, 1], starts[1, 1]] == [1100, 1237]


def test_the_earliest_of_several_calls_with_one_id_launches(tmp_path):
    builder = steady_rank(0)
    calls = builder.rows[RUNTIME]
    elsewhere = [
        row | {"globalTid": builder.global_tid(pid=77), "start": row["start"] - 1000}
        for row in calls
    ]
    builder.rows[RUNTIME] = (
        [row | {"start": row["start"] + 1000} for row in calls] + calls + elsewhere
    )
    run = run_of(tmp_path, builder)
    assert (figures(run), run.steps()["step"].to_pylist()) == (STEADY, [0, 1, 2, 3])
    assert run.ranks["pid"].to_pylist() == [1000]


@pytest.mark.parametrize("world_size", [1, 2])
def test_what_communicates_inside_whole_graphs_is_not_known(tmp_path, world_size, worded):
    # Of one rank too, since NCCL's kernels are there.
    builder = steady_rank(0, world_size=world_size)
    for step in range(4):
        builder.graph(1000 * step + 400, 1000 * step + 500, launch=1000 * step + 95)
    run = run_of(tmp_path, builder)
    assert figures(run) == dict.fromkeys(STEADY) | {"wall_ns": 1000, "idle_ns": 660}
    assert run.ranks["n_kernels"].to_pylist() == [16]
    row = problem_of(run, "comm-in-graphs")
    assert row["severity"] == "error"
    assert "4" in numbers_of(row["message"])
    assert "--cuda-graph-trace=node" in row["fix"]
    summary = run.summary().to_pylist()[0]
    unknown = ("comm_share", "exposed_comm_share", "compute_share", "wait_share", "overlap_ratio")
    assert [summary[name] for name in unknown] == [None] * len(unknown)
    assert summary["step_time_ns"] == 1000
    worded(verdict(run))


def test_only_steps_that_hold_a_whole_graph_lose_their_communication(tmp_path):
    run = run_of(tmp_path, steady_rank(0).graph(2400, 2500, launch=2095))
    assert run.steps()["comm_ns"].to_pylist() == [60, 60, None, 60]


def test_graphs_of_one_rank_that_never_communicates_count_as_compute(tmp_path):
    builder = alone()
    for at in range(0, 4000, 1000):
        builder.range(at, at + 900, f"step {at}").kernel(at + 100, at + 200, launch=at + 10)
        builder.graph(at + 400, at + 500, launch=at + 95)
    run = run_of(tmp_path, builder)
    shares = {"compute_share": 0.2, "comm_share": 0}
    assert run.summary().select([*shares]).to_pylist() == [shares]
    assert problem_of(run, "graphs-as-a-whole")["severity"] == "warning"


def test_a_rank_whose_only_kernels_are_graphs_has_windows(tmp_path):
    builder = TraceBuilder()
    for at in range(0, 3000, 1000):
        builder.range(at, at + 900, f"step {at // 1000}").graph(at + 100, at + 400, launch=at + 10)
    rows = (
        run_of(tmp_path, builder).steps().select(["start_ns", "end_ns", "compute_ns"]).to_pylist()
    )
    assert [tuple(row.values()) for row in rows] == [
        (100, 1100, 300),
        (1100, 2100, 300),
        (2100, 2400, 300),
    ]


def test_kernels_of_a_graph_captured_by_node_share_the_launch(tmp_path):
    builder = TraceBuilder(version="3.24.0 2025.5.2")
    for at in range(0, 3000, 1000):
        builder.range(at, at + 900, f"step {at // 1000}")
        call = builder.launch(at + 10, api="cudaGraphLaunch_v10000")
        for node in range(3):
            builder.kernel(at + 100 + 100 * node, at + 150 + 100 * node)
            builder.rows[KERNEL][-1] |= {"correlationId": call, "graphNodeId": node + 1}
    run = run_of(tmp_path, builder)
    rows = run.steps().select(["compute_ns", "wall_ns"]).to_pylist()
    assert [tuple(row.values()) for row in rows] == [(150, 1000), (150, 1000), (150, 250)]
    assert not {"graphs-as-a-whole", "launch-missing"} & set(codes(run))


def test_copies_are_null_in_the_steps_that_hold_a_graph_and_only_there(tmp_path):
    # Steps of 20 ms: the first two are a graph of 10 ms, the others a kernel as long, a copy of 1
    # ms after each.
    builder = alone()
    for step in range(6):
        at = (1 + 20 * step) * MS
        builder.range(at - 1000, at + 18 * MS, f"step {step}").kernel(at, at + MS, launch=at - 500)
        (builder.graph if step < 2 else builder.kernel)(at + MS, at + 10 * MS, launch=at - 400)
        builder.copy(at + 10 * MS, at + 11 * MS, launch=at - 300)
    run = run_of(tmp_path, builder)
    assert has_whole_graphs(run)
    rows = run.steps().to_pylist()
    hidden = (
        "exposed_memory_ns",
        "dtod_ns",
        "dtod_bytes",
        "n_dtod",
        "grad_copy_ns",
        "n_grad_copies",
    )
    assert all(row[name] is None for row in rows[:2] for name in hidden)
    assert [(row["n_dtod"], row["exposed_memory_ns"]) for row in rows[2:]] == [(1, MS)] * 4
    assert all(row["idle_ns"] is not None for row in rows)
    # One rank alone has nobody to talk to.
    assert run.ranks.select(["n_dtod", "n_comm"]).to_pylist() == [{"n_dtod": None, "n_comm": 0}]


def six_steps(path, *, is_whole):
    """Steps of 20 ms, 10 ms of it kernels or a graph that has a gap of 2 ms inside."""
    builder = alone()
    for step in range(6):
        at = (1 + 20 * step) * MS
        builder.range(at - 1000, at + 18 * MS, f"step {step}").kernel(at, at + MS, launch=at - 500)
        if is_whole:
            builder.graph(at + MS, at + 10 * MS, launch=at - 400)
        else:
            builder.kernel(at + MS, at + 4 * MS, launch=at - 400).kernel(
                at + 6 * MS, at + 10 * MS, launch=at - 300
            )
    return nsyspipe.load(builder.write(path))


def test_idle_time_beside_whole_graphs_is_not_judged_against_one_that_is_seen(tmp_path, worded):
    whole = six_steps(tmp_path / "whole_0.sqlite", is_whole=True)
    nodes = six_steps(tmp_path / "nodes_0.sqlite", is_whole=False)
    found = nsyspipe.diff(whole, nodes)
    rows = {row["metric"]: row for row in found.metrics.to_pylist()}
    for name in ("idle", "idle_launch", "idle_share"):
        assert (rows[name]["baseline"], rows[name]["verdict"]) == (None, "inconclusive"), name
        worded(rows[name]["why"], name)
    assert rows["step_time"]["verdict"] == "no change"
    idle = next(row for row in found.step_time_parts.to_pylist() if row["part"] == "idle")
    assert (idle["baseline_ns"], idle["candidate_ns"], idle["delta_ns"]) == (None, 12 * MS, None)
    assert all(row["candidate_ns"] is None for row in found.idle_causes.to_pylist())
    board = nsyspipe.compare([whole, nodes]).table.to_pylist()
    assert [(row["idle_share"], row["idle_ns"]) for row in board] == [(None, None), (0.6, 12 * MS)]
    again = nsyspipe.diff(whole, whole, force=True).metrics.to_pylist()
    assert next(row for row in again if row["metric"] == "idle")["verdict"] == "no change"


def idle_process():
    builder = TraceBuilder().gpu()
    for at in range(0, 3000, 1000):
        builder.range(at, at + 900, f"step {at // 1000}").launch(at + 5, api="cudaMalloc_v3020")
    return builder


@pytest.mark.parametrize("lazy", [True, False])  # without tables of operations, and with empty ones
def test_a_report_without_gpu_activity_is_an_answer(tmp_path, lazy, worded):
    run = run_of(tmp_path, idle_process(), lazy=lazy)
    summary = run.summary().to_pylist()[0]
    assert run.ranks.num_rows == run.steps().num_rows == run.phases().num_rows == 0
    assert (summary["n_steps"], summary["n_summary_steps"]) == (0, 0)
    assert {summary[name] for name in summary if not name.startswith("n_")} == {None}
    worded(verdict(run))
    row = problem_of(run, "no-gpu-activity")
    assert (row["severity"], row["report"]) == ("error", "a_0.sqlite")
    dumps(document(run))
    # A step option asks nothing of it.
    assert codes(nsyspipe.load(tmp_path, step="nothing")) == ["no-gpu-activity"]


def test_a_report_without_gpu_activity_beside_others_is_named(tmp_path):
    run = run_of(tmp_path, steady_rank(0), idle_process())
    assert (figures(run), run.ranks["report"].to_pylist()) == (STEADY, ["a_0.sqlite"])
    assert problem_of(run, "no-gpu-activity")["report"] == "a_1.sqlite"
    found = (
        run.host_steps().num_rows,
        document(run)["host_steps"],
        'id="host-steps"' in run_page(run),
    )
    assert found == (0, [], False)


def test_a_process_that_only_copies_is_a_rank(tmp_path):
    builder = TraceBuilder()
    for at in range(0, 3000, 1000):
        builder.range(at, at + 900, f"step {at // 1000}").copy(
            at + 100, at + 150, n_bytes=7, launch=at + 10
        )
    run = run_of(tmp_path, builder)
    # A step starts with a kernel, so the capture [100, 2150) is one window; it is used although it
    # is not complete.
    expected = {
        "step": 0,
        "start_ns": 100,
        "end_ns": 2150,
        "is_complete": False,
        "dtod_ns": 150,
        "n_dtod": 3,
        "dtod_bytes": 21,
        "exposed_memory_ns": 150,
        "idle_ns": 1900,
        "in_summary": True,
    }
    assert run.steps().select([*expected]).to_pylist() == [expected]
    assert (run.step_family, "no-steps" in codes(run)) == (None, True)


# --- idle -----------------------------------------------------------------------------------------
SYNC, ALLOC = "cudaDeviceSynchronize", "cudaMalloc"


def rank(number, *blocked, world_size=2):
    """Return a rank whose step i, from 1000 i on, idles in the given (call, ns) of `blocked`, launched 10 before.

    Each step: kernel [0, 100), a call from 90 on that blocks until its time after 100, launch,
    kernel 10 later.
    """
    builder = (
        TraceBuilder(pid=1000 + number)
        .env(RANK=number, WORLD_SIZE=world_size)
        .session(10**18)
        .gpu()
    )
    for step, (call, ns) in enumerate(blocked):
        at = 1000 * step
        builder.range(at - 10, at + 900, f"step {step}").kernel(at, at + 100, launch=at - 10)
        builder.launch(at + 90, api=f"{call}_v3020")
        builder.rows[RUNTIME][-1]["end"] = at + 100 + ns
        builder.kernel(at + 110 + ns, at + 1000, launch=at + 100 + ns)
    return builder


def calls(run):
    rows = run.idle_calls().to_pylist()
    assert {row["of_copies_ns_per_step"] for row in rows} <= {0}
    return [(row["call"], row["blocked_ns_per_step"]) for row in rows]


def test_only_steps_of_the_figures_count_as_a_mean_over_ranks_and_steps(tmp_path):
    # Step 0 is skipped, step 3 cut off. Each gap is 10 longer than the call: the launch's latency.
    first = rank(0, (ALLOC, 500), (SYNC, 100), (SYNC, 200), (ALLOC, 700))
    run = run_of(tmp_path, first, rank(1, (ALLOC, 500), (SYNC, 50), (ALLOC, 90), (ALLOC, 700)))
    assert calls(run) == [(SYNC, (110 + 210 + 60) / 4), (ALLOC, 100 / 4)]
    expected = {"n_summary_steps": 2, "idle_blocked_ns_per_step": sum(ns for _, ns in calls(run))}
    assert run.summary().select([*expected]).to_pylist() == [expected]
    (found,) = [row for row in run.findings().to_pylist() if row["id"] == "sync-bound"]
    assert SYNC in found["title"]
    assert json.loads(found["evidence"])["idle_ns_per_step_by_call"] == dict(calls(run))
    assert found["saving_ns_per_step"] == (110 + 210) / 2  # of the rank with most
    assert document(run)["idle_calls"][0] == {
        "call": SYNC,
        "blocked_ns_per_step": 95,
        "of_copies_ns_per_step": 0,
    }


def test_calls_with_equal_time_are_sorted_by_name(
    tmp_path,
):
    builder = rank(0, *((call, 90) for call in (ALLOC, ALLOC, SYNC, SYNC)), world_size=1)
    assert calls(run_of(tmp_path, builder)) == [(SYNC, 50), (ALLOC, 50)]
    assert calls(nsyspipe.load(tmp_path, skip_first=0)) == [(ALLOC, 200 / 3), (SYNC, 100 / 3)]


@pytest.mark.parametrize("unknown", [0, 1])
def test_without_the_ends_of_calls_on_one_rank_there_are_no_rows(tmp_path, unknown):
    builders = [rank(number, *[(SYNC, 100)] * 4) for number in range(2)]
    nullable(builders[unknown])
    del builders[unknown].schema[RUNTIME]["end"]
    run = run_of(tmp_path, *builders)
    assert (run.summary()["idle_blocked_ns_per_step"].to_pylist(), calls(run)) == ([None], [])


def test_a_run_without_ranks_has_no_rows(tmp_path):
    run = run_of(tmp_path, TraceBuilder().range(0, 1, "x"))
    assert run.idle_calls().num_rows == 0
    assert run.to_pandas("idle_calls").shape == (0, 3)
