"""CUDA graphs that were captured as a whole: what may have run inside them is null, and not compared."""

from __future__ import annotations

import nsyspipe
from nsyspipe.comparison.changes import has_whole_graphs
from tests.build.trace import TraceBuilder

MS = 1_000_000
HIDDEN = ("exposed_memory_ns", "dtod_ns", "dtod_bytes", "n_dtod", "grad_copy_ns", "n_grad_copies")


def test_copies_are_null_in_the_steps_that_hold_a_graph_and_only_there(tmp_path):
    # Steps of 20 ms: the first two are a graph of 10 ms, the others a kernel as long, a copy of 1 ms after each.
    builder = TraceBuilder(pid=1000).session(10**18).gpu().env(RANK=0, WORLD_SIZE=1)
    for step in range(6):
        at = (1 + 20 * step) * MS
        builder.range(at - 1000, at + 18 * MS, f"step {step}")
        builder.kernel(at, at + MS, launch=at - 500)
        work = builder.graph if step < 2 else builder.kernel
        work(at + MS, at + 10 * MS, launch=at - 400)
        builder.copy(at + 10 * MS, at + 11 * MS, launch=at - 300)
    builder.write(tmp_path / "graphs_0.sqlite")
    run = nsyspipe.load(str(tmp_path / "graphs_0.sqlite"))
    assert has_whole_graphs(run)
    rows = run.steps().to_pylist()
    assert all(row[name] is None for row in rows[:2] for name in HIDDEN)
    assert [row["n_dtod"] for row in rows[2:]] == [1] * 4
    assert [row["exposed_memory_ns"] for row in rows[2:]] == [MS] * 4
    assert all(row["idle_ns"] is not None for row in rows)
    assert run.ranks["n_dtod"].to_pylist() == [None]
    assert run.ranks["n_comm"].to_pylist() == [0]  # one rank alone has nobody to talk to


def six_steps(path, *, is_whole):
    """Steps of 20 ms, 10 ms of it kernels or a graph that has a gap of 2 ms inside."""
    builder = TraceBuilder(pid=1000).session(10**18).gpu().env(RANK=0, WORLD_SIZE=1)
    for step in range(6):
        at = (1 + 20 * step) * MS
        builder.range(at - 1000, at + 18 * MS, f"step {step}")
        builder.kernel(at, at + MS, launch=at - 500)
        if is_whole:
            builder.graph(at + MS, at + 10 * MS, launch=at - 400)
        else:
            builder.kernel(at + MS, at + 4 * MS, launch=at - 400)
            builder.kernel(at + 6 * MS, at + 10 * MS, launch=at - 300)
    builder.write(path)
    return nsyspipe.load(str(path))


def test_idle_time_beside_whole_graphs_is_not_judged_against_one_that_is_seen(tmp_path):
    whole = six_steps(tmp_path / "whole_0.sqlite", is_whole=True)
    nodes = six_steps(tmp_path / "nodes_0.sqlite", is_whole=False)
    found = nsyspipe.diff(whole, nodes)
    rows = {row["metric"]: row for row in found.metrics.to_pylist()}
    for name in ("idle", "idle_launch", "idle_share"):
        assert (rows[name]["baseline"], rows[name]["verdict"]) == (None, "inconclusive")
        assert rows[name]["why"].startswith("baseline: idle time inside CUDA graphs")
    assert rows["step_time"]["verdict"] == "no change"
    idle = next(row for row in found.step_time_parts.to_pylist() if row["part"] == "idle")
    assert (idle["baseline_ns"], idle["candidate_ns"], idle["delta_ns"]) == (None, 12 * MS, None)
    assert all(row["candidate_ns"] is None for row in found.idle_causes.to_pylist())
    board = nsyspipe.compare([whole, nodes]).table.to_pylist()
    assert [row["idle_share"] for row in board] == [None, 0.6]
    assert [row["idle_ns"] for row in board] == [None, 12 * MS]
    again = nsyspipe.diff(whole, whole).metrics.to_pylist()
    assert next(row for row in again if row["metric"] == "idle")["verdict"] == "no change"
