"""Real reports: both identities on every row, windows that tile, and figures counted another way."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from itertools import pairwise

import pytest

import nsyspipe
from nsyspipe.report.export import document, dumps
from tests.build.trace import steady_rank
from tests.pairs import reports

# Capture -> ranks, collectives per step, DtoD copies and bytes per step: no step differs on any rank.
GROUPS = {
    "baseline": (1, 0, 72, 471_859_200),
    "ddp-1gpu": (1, 0, 368, 1_698_000_800),
    "ddp-2gpu": (2, 1, 368, 1_698_000_800),
    "ddp-2gpu-straggler": (2, 11, 368, 1_698_000_800),
    "ddp-2gpu-bucket100": (2, 11, 72, 471_859_200),
    "ddp-2gpu-bucket100-nsys2025": (2, 11, 72, 471_859_200),
    "ddp-4gpu": (4, 1, 368, 1_698_000_800),
    "ddp-4gpu-shm": (4, 1, 368, 1_698_000_800),
    "ddp-4gpu-shm-bucket100": (4, 11, 72, 471_859_200),
    "ddp-4gpu-shm-powersgd": (4, 3, 567, 2_925_645_536),
    "ddp-4gpu-onefile": (4, 11, 368, 1_698_000_800),
    "fsdp-4gpu": (4, 74, 72, 3_774_873_600),
}
# Of other programs: their steps are named otherwise, or not all of them do the same.
OTHERS = tuple(
    f"2gpu-{name}"
    for name in (
        "fsdp2", "gpt-accum", "gpt-accum-shm", "gpt-b25", "gpt-b25-shm", "gpt-b25-shm-bf16hook", "gpt-one-shm",
        "graph", "graph-node", "moe", "pp", "tp",
    )
)  # fmt: skip
N_RANKS = {name: counts[0] for name, counts in GROUPS.items()} | dict.fromkeys(OTHERS, 2)


# One of each kind; what holds of the others is tried with the slow tests.
QUICK = {
    "baseline", "ddp-2gpu-straggler", "ddp-2gpu-bucket100-nsys2025", "ddp-4gpu-onefile", "ddp-4gpu-shm-powersgd",
    "fsdp-4gpu", "2gpu-graph", "2gpu-graph-node", "2gpu-pp",
}  # fmt: skip


def each(names):
    return [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in names]


def query(path, statement):
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        return database.execute(statement).fetchall()


def test_every_real_report_is_in_one_of_the_groups(real):
    assert {path for name in N_RANKS for path in reports(name, real)} == set(real.iterdir())


# What whole graphs hold is not told apart: comm and compute are null there.
@pytest.mark.parametrize("name", each(name for name in N_RANKS if name != "2gpu-graph"))
def test_the_parts_of_every_step_sum_to_its_wall_time(runs, name):
    rows = runs(name).steps().to_pylist()
    assert len(rows) >= 3 * N_RANKS[name]
    for row in rows:
        parts = row["compute_ns"] + row["exposed_comm_ns"] + row["exposed_memory_ns"] + row["idle_ns"]
        assert parts == row["wall_ns"] == row["end_ns"] - row["start_ns"]
        assert row["exposed_comm_ns"] + row["overlap_compute_ns"] == row["comm_ns"]
        assert min(row["compute_ns"], row["exposed_comm_ns"], row["exposed_memory_ns"], row["idle_ns"]) >= 0
        assert 0 <= (row["overlap_backward_ns"] or 0) <= row["overlap_compute_ns"]
        assert 0 <= row["exposed_dtod_ns"] <= min(row["dtod_ns"], row["exposed_memory_ns"])


@pytest.mark.parametrize("name", each(N_RANKS))
def test_the_windows_of_every_rank_tile_time(runs, name):
    steps = runs(name).steps().to_pylist()
    for rank in range(N_RANKS[name]):
        own = [row for row in steps if row["rank"] == rank]
        assert all(before["end_ns"] == after["start_ns"] for before, after in pairwise(own))
        assert [row["step"] for row in own] == sorted({row["step"] for row in own})
        assert [row["is_complete"] for row in own] == [True] * (len(own) - 1) + [False]


@pytest.mark.parametrize("name", each(GROUPS))
def test_every_step_makes_the_same_collectives_and_copies(runs, name):
    n_ranks, *counts = GROUPS[name]
    run = runs(name)
    assert run.ranks["rank"].to_pylist() == list(range(n_ranks))
    assert run.step_family == "Batch #"
    found = {(row["n_collectives"], row["n_dtod"], row["dtod_bytes"]) for row in run.steps().to_pylist()}
    assert found == {tuple(counts)}


@pytest.mark.parametrize("name", each(GROUPS))
def test_operations_are_as_many_as_sqlite_counts(runs, real, name):
    counted = []
    for path in reports(name, real):
        counted += query(
            path,
            "SELECT count(*), sum(value LIKE 'nccl%') FROM CUPTI_ACTIVITY_KIND_KERNEL "
            "JOIN StringIds ON id = shortName GROUP BY globalPid ORDER BY deviceId",
        )
    ranks = runs(name).ranks
    assert list(zip(ranks["n_kernels"].to_pylist(), ranks["n_comm"].to_pylist(), strict=True)) == counted


@pytest.mark.parametrize("name", each(GROUPS))
def test_a_step_starts_with_the_first_kernel_that_any_thread_launched_in_it(runs, real, name):
    run = runs(name)
    starts = {(row["rank"], row["step"]): row["start_ns"] for row in run.steps().to_pylist()}
    shifts = run.ranks["clock_shift_ns"].to_pylist()
    reports = run.ranks["report"].to_pylist()
    pids = run.ranks["pid"].to_pylist()
    for rank, (shift, report, pid) in enumerate(zip(shifts, reports, pids, strict=True)):
        found = query(
            real / report,
            "SELECT CAST(substr(coalesce(n.text, s.value), 7) AS INTEGER) AS step, min(k.start) "
            "FROM NVTX_EVENTS n LEFT JOIN StringIds s ON s.id = n.textId "
            "JOIN CUPTI_ACTIVITY_KIND_RUNTIME r ON r.start >= n.start AND r.start < n.end "
            "AND r.globalTid / 16777216 = n.globalTid / 16777216 "
            "JOIN CUPTI_ACTIVITY_KIND_KERNEL k ON k.correlationId = r.correlationId "
            "AND k.globalPid / 16777216 = r.globalTid / 16777216 "
            f"WHERE coalesce(n.text, s.value) LIKE 'Batch %' AND (n.globalTid / 16777216) % 16777216 = {pid} "
            "GROUP BY step",
        )
        assert len(found) >= 3
        assert {step: start + shift for step, start in found} == {
            step: start for (owner, step), start in starts.items() if owner == rank
        }


def test_two_exporters_give_one_document(runs):
    old, new = (document(runs(f"ddp-2gpu-bucket100{suffix}")) for suffix in ("", "-nsys2025"))
    assert old["run"].pop("nsys_versions") != new["run"].pop("nsys_versions")
    assert old["run"].pop("export_schema_versions") != new["run"].pop("export_schema_versions")
    for found in (old, new):
        del found["run"]["reports"], found["run"]["label"]
        for row in (*found["ranks"], *found["problems"]):
            del row["report"]
        for row in found["problems"]:  # what an exporter left out differs, and so does the fix
            if row["code"] == "no-message-size":
                del row["message"], row["fix"]
    assert dumps(old) == dumps(new)
    assert old["run"]["run_id"]


@pytest.mark.parametrize("name", each(name for name in GROUPS if GROUPS[name][0] > 1))
def test_ranks_of_one_run_overlap_in_aligned_time(runs, name):
    steps = runs(name).breakdown().to_pylist()
    for step in {row["step"] for row in steps}:
        own = [row for row in steps if row["step"] == step]
        assert len(own) == GROUPS[name][0]
        assert max(row["start_ns"] for row in own) < min(row["end_ns"] for row in own)


def test_no_value_of_the_environment_but_the_allowed_reaches_the_document(tmp_path):
    builder = steady_rank(0).env(AWS_SECRET="hunter2", HOME="/home/hunter2", RANK_TOKEN="hunter2", XRANK="hunter2")
    # The exporter writes the environment into StringIds as well.
    builder.string('AWS_SECRET="hunter2"')
    builder.add("META_DATA_CAPTURE", name="PROCESS_0:COMMAND_LINE", value="train --token hunter2")
    builder.add("META_DATA_CAPTURE", name="PROCESS_0:ENVIRONMENT_VARIABLE", value='LOCALXRANK="hunter2"')
    run = nsyspipe.load(builder.write(tmp_path / "a.sqlite"))
    text = dumps(document(run))
    assert json.loads(text)["ranks"][0]["rank_source"] == "env:RANK"
    assert "hunter2" not in text
    assert "AWS" not in text
    for table in ("ranks", "problems", "steps", "phases", "summary"):
        assert "hunter2" not in str(run.to_pandas(table).to_dict())
    with pytest.raises(nsyspipe.NsyspipeError) as caught:
        nsyspipe.load(tmp_path / "a.sqlite", step="nothing").steps()
    assert "hunter2" not in "\n".join(caught.value.lines())
