"""A capture without steps: its shares and totals are known, and nothing of a step is."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

import nsyspipe
from nsyspipe.report.export import document_text
from nsyspipe.report.html.run_page import run_page
from nsyspipe.report.markdown import markdown
from nsyspipe.report.run import summary_text
from tests.build.trace import NVTX, TraceBuilder, steady_rank

OF_A_STEP = ("step_time_ns", "throughput_steps_per_s")


def without_ranges(folder):
    for rank in range(2):
        steady_rank(rank).write(folder / f"r_{rank}.sqlite", without=(NVTX,))
    return nsyspipe.load(folder)


def by_option(folder):
    for rank in range(2):
        steady_rank(rank).write(folder / f"r_{rank}.sqlite")
    return nsyspipe.load(folder, step="none")


@pytest.mark.parametrize("captured", [without_ranges, by_option])
def test_shares_are_pooled_over_the_capture_and_what_is_of_a_step_is_null(tmp_path, captured):
    run = captured(tmp_path)
    found = json.loads(document_text(run))
    assert found["run"]["steps_from"] == "capture"
    steps = [(row["rank"], row["step"], row["is_complete"], row["in_summary"]) for row in found["steps"]]  # fmt: skip
    assert steps == [(0, 0, False, True), (1, 0, False, True)]
    summary = found["summary"]
    assert (summary["n_steps"], summary["n_summary_steps"]) == (0, 0)
    # Four times 200 ns of compute and 60 of communication, from 100 to 3350.
    assert summary["compute_share"] == 800 / 3250
    assert summary["comm_share"] == 240 / 3250
    assert summary["wait_share"] == 0
    assert [name for name in summary if summary[name] is not None and (name in OF_A_STEP or name.endswith("_per_step"))] == []  # fmt: skip
    assert [row["lateness_ns"] for row in found["stragglers"]] == [None, None]
    assert found["findings"] == []
    assert "no-steps" in [row["code"] for row in found["problems"]]


def test_every_output_calls_it_a_capture(tmp_path):
    run = by_option(tmp_path)
    text = summary_text(run, Console(width=100, file=io.StringIO()))
    sentence = text.split("\n\n")[0]
    assert "of the capture" in sentence
    assert "a capture without steps" in sentence
    assert "step time" not in sentence
    assert "a capture without steps" in markdown(run)
    page = run_page(run)
    assert "Where the time of the capture goes" in page
    assert "Step 0" not in page


def test_a_capture_cannot_be_replayed(tmp_path):
    answer = nsyspipe.whatif(by_option(tmp_path))
    assert {one.refused for one in answer.scenarios} == {
        "the run has no steps, it is a capture as a whole: name the steps with --step REGEX"
    }


def test_two_captures_compare_their_shares_without_an_interval(tmp_path):
    run = by_option(tmp_path)
    rows = {row["metric"]: row for row in nsyspipe.diff(run, run).metrics.to_pylist()}
    share, time = rows["idle_share"], rows["step_time"]
    assert (share["baseline"], share["delta"]) == (run.summary()["idle_share"][0].as_py(), 0)
    assert (share["ci_low"], share["n_baseline"], share["verdict"]) == (None, 0, "inconclusive")
    assert (time["baseline"], time["verdict"], time["why"]) == (
        None, "inconclusive", "both: a capture without steps",
    )  # fmt: skip


def test_a_capture_and_steps_cannot_be_compared(tmp_path):
    capture = by_option(tmp_path)
    found = nsyspipe.diff(capture, nsyspipe.load(tmp_path))
    assert not found.is_comparable
    assert "steps-from" in found.comparability["check"].to_pylist()
    row = nsyspipe.compare([capture]).table.to_pylist()[0]
    assert (row["n_summary_steps"], row["step_time_ns"], row["comm_share"]) == (0, None, 240 / 3250)


# --- what else reports say of their ranks and operations --------------------------------------------


def launched(folder, *environments):
    for number, environment in enumerate(environments):
        builder = TraceBuilder(pid=1000 + number).env(**environment).session(10**18 + number)
        builder.kernel(0, 9, launch=0).write(folder / f"{'xyz'[number]}.sqlite")
    return nsyspipe.load(folder)


@pytest.mark.parametrize(
    ("rank", "size", "source"),
    [
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "env:OMPI_COMM_WORLD_RANK"),
        ("PMI_RANK", "PMI_SIZE", "env:PMI_RANK"),
        ("PMIX_RANK", "PMIX_SIZE", "env:PMIX_RANK"),
        ("SLURM_PROCID", "SLURM_NTASKS", "env:SLURM_PROCID"),
    ],
)
def test_a_launchers_number_comes_with_its_own_size(tmp_path, rank, size, source):
    run = launched(tmp_path, {rank: 6, size: 8})
    assert run.ranks["rank_source"].to_pylist() == [source]
    assert (run.header.n_ranks, run.header.world_size) == (1, 8)
    assert "ranks-missing" in run.problems["code"].to_pylist()


def test_variables_that_contradict_each_other_are_sources_of_their_own(tmp_path):
    each = {"SLURM_PROCID": 0, "SLURM_NTASKS": 1, "OMPI_COMM_WORLD_SIZE": 8}
    run = launched(tmp_path, each | {"OMPI_COMM_WORLD_RANK": 6}, each | {"OMPI_COMM_WORLD_RANK": 2})
    assert run.ranks["rank"].to_pylist() == [2, 6]
    assert run.header.world_size == 8


def test_a_size_of_another_source_or_without_room_for_the_ranks_is_none(tmp_path):
    run = launched(tmp_path, {"SLURM_PROCID": 3, "SLURM_NTASKS": 1})
    assert (run.ranks["rank"].to_pylist(), run.header.world_size) == ([3], None)
    run = launched(tmp_path, {"OMPI_COMM_WORLD_RANK": 3, "SLURM_NTASKS": 8})
    assert run.header.world_size is None


def test_copies_of_unified_memory_lack_no_launch(tmp_path):
    builder = TraceBuilder().env(RANK=0, WORLD_SIZE=1).kernel(0, 9, launch=0)
    for kind in (11, 12, 13, 14):
        builder.copy(10 * kind, 10 * kind + 5, kind)
    codes = nsyspipe.load(builder.write(tmp_path / "a.sqlite")).problems["code"].to_pylist()
    assert "launch-missing" not in codes
    builder.copy(200, 205, 1)
    run = nsyspipe.load(builder.write(tmp_path / "a.sqlite"))
    (row,) = [one for one in run.problems.to_pylist() if one["code"] == "launch-missing"]
    assert row["message"].startswith("1 of 2 operations")


@pytest.mark.parametrize("is_told", [True, False])
def test_memsets_without_an_operation_are_none_if_the_export_says_that_it_is_whole(tmp_path, is_told):
    builder = TraceBuilder().env(RANK=0, WORLD_SIZE=1).kernel(0, 9, launch=0)
    builder.launch(3, api="cudaMemsetAsync_v3020")
    if is_told:
        builder.meta(EXPORT_PARAM_LAZY="true", EXPORT_PARAM_TABLES_TO_EXPORT="")
    run = nsyspipe.load(builder.write(tmp_path / "a.sqlite"))
    assert run.summary()["idle_share"].to_pylist() == [0.0 if is_told else None]
    codes = run.problems["code"].to_pylist()
    assert ("memset-calls-only" in codes, "no-memset" in codes) == (is_told, not is_told)
