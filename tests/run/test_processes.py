"""Reports that hold more, or other things, than one process with kernels: several processes, graphs, nothing."""

from __future__ import annotations

import pytest

import nsyspipe
from nsyspipe.report.export import document, dumps
from nsyspipe.report.words import verdict
from tests.build.tools import STEADY, codes, figures, one_report, problem_of, shift
from tests.build.trace import GRAPH, KERNEL, MEMCPY, RUNTIME, TraceBuilder, steady_rank


def load(builder, tmp_path):
    return nsyspipe.load(builder.write(tmp_path / "a_0.sqlite"))


def test_equal_correlation_ids_of_two_processes_are_kept_apart(tmp_path):
    # Everything of the second process happens 137 ns later. With the first one's launches its steps
    # would move by one.
    first, second = steady_rank(0), shift(steady_rank(1), 137)
    assert [row["correlationId"] for row in first.rows[KERNEL]] == [row["correlationId"] for row in second.rows[KERNEL]]
    run = load(one_report(first, second), tmp_path)
    assert figures(run, rank=0) == STEADY
    assert figures(run, rank=1) == STEADY
    starts = {(row["rank"], row["step"]): row["start_ns"] for row in run.steps().to_pylist()}
    assert [starts[0, 1], starts[1, 1]] == [1100, 1237]


def test_a_call_of_a_process_without_gpu_work_launches_nothing(tmp_path):
    builder = steady_rank(0)
    calls = [
        row | {"globalTid": builder.global_tid(pid=77), "start": row["start"] - 1000} for row in builder.rows[RUNTIME]
    ]
    builder.rows[RUNTIME] += calls
    run = load(builder, tmp_path)
    assert figures(run) == STEADY
    assert run.ranks["pid"].to_pylist() == [1000]


def test_of_several_calls_with_one_correlation_id_the_earliest_is_the_launch(tmp_path):
    builder = steady_rank(0)
    builder.rows[RUNTIME] = [row | {"start": row["start"] + 1000} for row in builder.rows[RUNTIME]] + builder.rows[
        RUNTIME
    ]
    run = load(builder, tmp_path)
    assert figures(run) == STEADY
    assert run.steps()["step"].to_pylist() == [0, 1, 2, 3]


# --- CUDA graphs --------------------------------------------------------------------------------


UNSEEN = dict.fromkeys(
    ("compute_ns", "comm_ns", "exposed_comm_ns", "overlap_compute_ns", "overlap_backward_ns", "n_collectives",
     "exposed_memory_ns", "dtod_ns", "exposed_dtod_ns", "n_dtod", "dtod_bytes"),
)  # fmt: skip


@pytest.mark.parametrize("world_size", [1, 2])
def test_what_communicates_inside_whole_graphs_is_not_known(tmp_path, world_size):
    # Of one rank too, since NCCL's kernels are there.
    builder = steady_rank(0, world_size=world_size)
    for step in range(4):
        builder.graph(1000 * step + 400, 1000 * step + 500, launch=1000 * step + 95)
    run = load(builder, tmp_path)
    assert figures(run) == STEADY | UNSEEN | {"idle_ns": 660}
    assert run.ranks["n_kernels"].to_pylist() == [16]
    row = problem_of(run, "comm-in-graphs")
    assert row["severity"] == "error"
    assert row["message"].startswith("4 CUDA graphs")
    assert "--cuda-graph-trace=node" in row["fix"]
    summary = run.summary().to_pylist()[0]
    unknown = ("comm_share", "exposed_comm_share", "compute_share", "wait_share", "overlap_ratio")
    assert [summary[name] for name in unknown] == [None] * len(unknown)
    assert summary["step_time_ns"] == 1000
    text = verdict(summary, 1, problems=run.problems.to_pylist())
    assert text.startswith("Communication is not known: CUDA graphs were captured as a whole")


def test_only_steps_that_hold_a_whole_graph_lose_their_communication(tmp_path):
    run = load(steady_rank(0).graph(2400, 2500, launch=2095), tmp_path)
    assert run.steps()["comm_ns"].to_pylist() == [60, 60, None, 60]


def test_graphs_of_one_rank_that_never_communicates_count_as_compute(tmp_path):
    builder = TraceBuilder().env(RANK=0, WORLD_SIZE=1)
    for at in range(0, 4000, 1000):
        builder.range(at, at + 900, f"step {at}").kernel(at + 100, at + 200, launch=at + 10)
        builder.graph(at + 400, at + 500, launch=at + 95)
    run = load(builder, tmp_path)
    assert run.summary()["compute_share"].to_pylist() == [0.2]
    assert run.summary()["comm_share"].to_pylist() == [0]
    assert problem_of(run, "graphs-as-a-whole")["severity"] == "warning"


def test_a_rank_whose_only_kernels_are_graphs_has_windows(tmp_path):
    builder = TraceBuilder()
    for step in range(3):
        at = 1000 * step
        builder.range(at, at + 900, f"step {step}").graph(at + 100, at + 400, launch=at + 10)
    run = load(builder, tmp_path)
    assert run.steps().select(["start_ns", "end_ns", "compute_ns"]).to_pylist() == [
        {"start_ns": 100, "end_ns": 1100, "compute_ns": 300},
        {"start_ns": 1100, "end_ns": 2100, "compute_ns": 300},
        {"start_ns": 2100, "end_ns": 2400, "compute_ns": 300},
    ]


def test_kernels_of_a_graph_captured_by_node_share_the_launch(tmp_path):
    builder = TraceBuilder(version="3.24.0 2025.5.2")
    for step in range(3):
        at = 1000 * step
        builder.range(at, at + 900, f"step {step}")
        call = builder.launch(at + 10, api="cudaGraphLaunch_v10000")
        for node in range(3):
            builder.kernel(at + 100 + 100 * node, at + 150 + 100 * node)
            builder.rows[KERNEL][-1] |= {"correlationId": call, "graphNodeId": node + 1}
    run = load(builder, tmp_path)
    assert run.steps()["compute_ns"].to_pylist() == [150, 150, 150]
    assert run.steps()["wall_ns"].to_pylist() == [1000, 1000, 250]
    assert not {"graphs-as-a-whole", "launch-missing"} & set(codes(run))


# --- nothing on the device ----------------------------------------------------------------------


def idle_process(pid=1000):
    builder = TraceBuilder(pid=pid).gpu()
    for step in range(3):
        builder.range(1000 * step, 1000 * step + 900, f"step {step}").launch(1000 * step + 5, api="cudaMalloc_v3020")
    return builder


@pytest.mark.parametrize("lazy", [True, False])
def test_a_report_without_gpu_activity_is_an_answer(tmp_path, lazy):
    run = nsyspipe.load(idle_process().write(tmp_path / "a_0.sqlite", lazy=lazy))
    summary = run.summary().to_pylist()[0]
    assert run.ranks.num_rows == run.steps().num_rows == run.phases().num_rows == 0
    assert (summary["n_steps"], summary["n_summary_steps"]) == (0, 0)
    assert {summary[name] for name in summary if not name.startswith("n_")} == {None}
    assert verdict(summary, 0).startswith("No GPU activity was recorded")
    row = problem_of(run, "no-gpu-activity")
    assert (row["severity"], row["report"]) == ("error", "a_0.sqlite")
    dumps(document(run))


def test_a_report_without_gpu_activity_beside_others_is_named(tmp_path):
    steady_rank(0).write(tmp_path / "a_0.sqlite")
    idle_process().write(tmp_path / "a_1.sqlite")
    run = nsyspipe.load(tmp_path)
    assert figures(run) == STEADY
    assert run.ranks["report"].to_pylist() == ["a_0.sqlite"]
    assert problem_of(run, "no-gpu-activity")["report"] == "a_1.sqlite"
    assert (run.host_steps().num_rows, document(run)["host_steps"]) == (0, [])


def test_a_step_option_asks_nothing_of_a_report_without_gpu_activity(tmp_path):
    run = nsyspipe.load(idle_process().write(tmp_path / "a.sqlite"), step="nothing")
    assert codes(run) == ["no-gpu-activity"]


def test_a_process_that_only_copies_is_a_rank(tmp_path):
    builder = TraceBuilder()
    for step in range(3):
        builder.range(1000 * step, 1000 * step + 900, f"step {step}")
        builder.copy(1000 * step + 100, 1000 * step + 150, n_bytes=7, launch=1000 * step + 10)
    run = load(builder, tmp_path)
    # A step starts with a kernel, so the capture [100, 2150) is one window.
    row = run.steps().to_pylist()[0]
    assert (row["step"], row["start_ns"], row["end_ns"], row["is_complete"]) == (0, 100, 2150, False)
    assert (row["dtod_ns"], row["n_dtod"], row["dtod_bytes"]) == (150, 3, 21)
    assert (row["exposed_memory_ns"], row["idle_ns"]) == (150, 1900)
    assert "no-steps" in codes(run)


def test_tables_of_operations_that_are_there_and_empty_are_no_activity(tmp_path):
    builder = idle_process()
    for table in (KERNEL, MEMCPY, GRAPH):
        builder.rows[table] = []
    assert load(builder, tmp_path).ranks.num_rows == 0
