"""Saved runs of version 1 of the definitions: they open, list and compare, but only figures that mean the same today.

`definitions_v1` was written by the last nsyspipe of version 1: a store of three runs and the
sidecar of one of them.
"""

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import nsyspipe
from nsyspipe.model.definitions import DEFINITIONS_VERSION, changed_columns, latest_of
from nsyspipe.model.schema import COLLECTIVES, RUN_TABLES, STEPS
from nsyspipe.report.html.dashboard_page import dashboard_runs
from nsyspipe.store.index import stored_runs
from nsyspipe.store.write import save
from tests.build.trace import steady_rank

SAVED = Path(__file__).parent / "definitions_v1"
STORE = SAVED / "store"
RUN_IDS = ("ddp", "ddp-4gpu-after", "ddp-4gpu-before")
UNCHANGED = {
    "step_time",
    "throughput",
    "idle",
    "idle_share",
    "idle_input",
    "idle_dependency",
    "idle_unknown",
}


def saved(store, run_id):
    return nsyspipe.load(store, run_id=run_id)


def with_column(store, table, run_id, name, value):
    path = store / table / f"run_id={run_id}" / "part-0.parquet"
    found = pq.read_table(path, partitioning=None)
    values = pa.array([value] * found.num_rows)
    if name in found.column_names:
        found = found.set_column(found.column_names.index(name), name, values)
    else:
        found = found.append_column(name, values)
    pq.write_table(found, path)


@pytest.fixture
def mixed(tmp_path):
    """Return a store in which the run `after` follows the definitions of today, and `before` those of version 1."""
    store = Path(shutil.copytree(STORE, tmp_path / "store"))
    with_column(store, "runs", "ddp-4gpu-after", "definitions_version", DEFINITIONS_VERSION)
    return store


@pytest.mark.parametrize("run_id", RUN_IDS)
def test_a_run_of_version_1_opens_with_every_table(run_id):
    run = saved(STORE, run_id)
    assert run.definitions_version == 1
    assert all(run.table(name).num_rows >= 0 for name in RUN_TABLES)
    assert run.headline


def test_a_store_of_version_1_is_listed():
    found = stored_runs(STORE)
    assert sorted(found.runs["run_id"].to_pylist()) == list(RUN_IDS)
    assert found.runs["definitions_version"].to_pylist() == [None] * 3
    assert found.unreadable == ()


def test_figures_of_a_run_of_version_1_are_as_they_were_saved():
    summary = saved(STORE, "ddp-4gpu-before").summary().to_pylist()[0]
    assert (summary["n_summary_steps"], summary["collectives_per_step"]) == (8, 1.0)
    path = STORE / "runs" / "run_id=ddp-4gpu-before" / "part-0.parquet"
    row = pq.read_table(path, partitioning=None).to_pylist()[0]
    # Older versions recorded nothing about the work of a step.
    later = {"tokens_per_s", "samples_per_s", "flops_per_s", "mfu"}
    assert {name for name in summary if name not in row} == later
    assert summary == {name: row.get(name) for name in summary}


def test_a_sidecar_of_version_1_is_read(tmp_path):
    for rank in (0, 1):
        steady_rank(rank).write(tmp_path / f"ddp_{rank}.sqlite")
    shutil.copy(SAVED / "ddp.capture.json", tmp_path)
    run = nsyspipe.load(tmp_path, jobs=1)
    told = json.loads((SAVED / "ddp.capture.json").read_text())
    capture = run.header.capture
    assert (capture.torch_version, capture.git_commit) == ("2.9.0", told["git_commit"])
    assert (capture.command, capture.environment) == (told["command"], told["environment"])
    assert capture == saved(STORE, "ddp").header.capture


def test_runs_of_one_version_are_compared_in_full():
    difference = nsyspipe.diff(saved(STORE, "ddp-4gpu-before"), saved(STORE, "ddp-4gpu-after"))
    assert "definitions" not in difference.comparability["check"].to_pylist()
    assert None not in difference.step_time_parts["delta_ns"].to_pylist()
    assert "collectives per step" in difference.changes["what"].to_pylist()


def test_across_versions_only_figures_that_mean_the_same_are_compared(mixed, worded):
    difference = nsyspipe.diff(saved(mixed, "ddp-4gpu-before"), saved(mixed, "ddp-4gpu-after"))
    rows = {row["metric"]: row for row in difference.metrics.to_pylist()}
    assert {name for name, row in rows.items() if row["delta"] is not None} == UNCHANGED
    worded(rows["exposed_comm"]["why"])
    assert rows["exposed_comm"]["verdict"] == "inconclusive"
    assert difference.verdict == "improvement"
    (check,) = [
        row for row in difference.comparability.to_pylist() if row["check"] == "definitions"
    ]
    assert (check["baseline"], check["candidate"], check["blocks"]) == ("1", "2", False)


def test_across_versions_parts_are_null_on_the_older_side_alone(mixed):
    difference = nsyspipe.diff(saved(mixed, "ddp-4gpu-before"), saved(mixed, "ddp-4gpu-after"))
    rows = {row["part"]: row for row in difference.step_time_parts.to_pylist()}
    known = {part for part, row in rows.items() if row["delta_ns"] is not None}
    assert known == {"idle"}
    assert all(row["candidate_ns"] is not None for row in rows.values())
    topics = set(difference.changes["topic"].to_pylist())
    assert topics.isdisjoint({"collectives", "copies", "stragglers"})


def test_a_gate_on_a_figure_of_other_definitions_cannot_decide(mixed):
    sides = saved(mixed, "ddp-4gpu-before"), saved(mixed, "ddp-4gpu-after")
    difference = nsyspipe.diff(*sides, metrics=["exposed_comm"], fail_on="regression")
    assert difference.gate.exit_code == 4


def test_a_rank_of_several_devices_blocks_a_comparison_across_versions(mixed):
    with_column(mixed, "ranks", "ddp-4gpu-before", "device_ids", "0, 1")
    forget_digests(mixed, "ddp-4gpu-before")
    difference = nsyspipe.diff(saved(mixed, "ddp-4gpu-before"), saved(mixed, "ddp-4gpu-after"))
    blocking = [row["check"] for row in difference.comparability.to_pylist() if row["blocks"]]
    assert blocking == ["definitions-of-ranks"]
    assert difference.verdict == "inconclusive"


def test_definitions_of_a_later_nsyspipe_block_a_comparison_with_others(mixed):
    with_column(mixed, "runs", "ddp-4gpu-after", "definitions_version", DEFINITIONS_VERSION + 1)
    difference = nsyspipe.diff(saved(mixed, "ddp-4gpu-before"), saved(mixed, "ddp-4gpu-after"))
    assert not difference.is_comparable


def test_a_scoreboard_leaves_out_what_an_older_run_measured_otherwise(mixed, worded):
    board = nsyspipe.compare(saved(mixed, "ddp-4gpu-before"), saved(mixed, "ddp-4gpu-after"))
    before, after = board.table.to_pylist()
    assert (before["comm_share"], before["compute_ns"], before["message_bytes_per_step"]) == (
        None,
        None,
        None,
    )
    assert None not in (
        after["comm_share"],
        after["compute_ns"],
        before["idle_share"],
        before["step_time_ns"],
    )
    (row,) = [row for row in board.problem_rows if row["code"] == "older-definitions"]
    assert row["label"] == "before"
    worded(row["fix"])


def test_a_dashboard_draws_no_line_from_one_definition_to_another(mixed):
    rows = {run["row"]["run_id"]: run["row"] for run in dashboard_runs(stored_runs(mixed), {})}
    before, after = rows["ddp-4gpu-before"], rows["ddp-4gpu-after"]
    assert (before["comm_share"], before["is_outdated"], after["is_outdated"]) == (
        None,
        True,
        False,
    )
    assert None not in (before["step_time_ns"], before["idle_share"], after["comm_share"])
    of_one_version = [run["row"] for run in dashboard_runs(stored_runs(STORE), {})]
    assert not any(row["is_outdated"] or row["comm_share"] is None for row in of_one_version)


def test_changed_columns_are_columns_and_none_within_a_version():
    names = {column.name for column in (*STEPS.columns, *COLLECTIVES.columns)}
    changed = changed_columns(1, DEFINITIONS_VERSION)
    assert changed <= names
    assert changed.isdisjoint({"wall_ns", "idle_ns", "idle_input_ns"})
    assert changed_columns(2, 2) == changed_columns(1, 1) == frozenset()
    assert latest_of([1, 2]) == 2


def test_a_run_is_saved_with_the_version_of_its_definitions(runs, tmp_path):
    save(runs[0], tmp_path)
    (row,) = stored_runs(tmp_path).runs.to_pylist()
    assert row["definitions_version"] == DEFINITIONS_VERSION


def forget_digests(store, run_id):
    path = store / "runs" / f"run_id={run_id}" / "part-0.parquet"
    details = json.loads(pq.read_table(path, partitioning=None)["details"][0].as_py())
    del details["files"]
    with_column(store, "runs", run_id, "details", json.dumps(details))
