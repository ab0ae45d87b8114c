"""Which reports can be one run, and which processes in them are its ranks."""

from __future__ import annotations

import json
import os
import shutil
import tracemalloc

import pytest
from rich.console import Console

import nsyspipe
from nsyspipe.errors import RankConflictError
from nsyspipe.report.markdown import markdown
from nsyspipe.report.run import summary_text
from tests.build.tools import STEADY, codes, figures, one_report, problem_of, shift
from tests.build.trace import TraceBuilder, schemas, steady_rank
from tests.conftest import SAMPLES

SECOND = 1_000_000_000
SESSION = 10**18


def without_environment(rank):
    builder = steady_rank(rank)
    builder.rows.pop("META_DATA_CAPTURE")
    return builder


def conflict(first, second, **options):
    """Return the error that two reports end with; it names both."""
    with pytest.raises(RankConflictError) as caught:
        nsyspipe.load([first, second], **options).steps()
    assert str(first) in str(caught.value)
    assert str(second) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2
    assert "--rank-map" in caught.value.fix
    return str(caught.value)


# --- reports that cannot be one run ---------------------------------------------------------------


def same_file(folder):
    one = without_environment(0).write(folder / "a.sqlite")
    os.link(one, folder / "b.sqlite")
    return "same report twice"


def symbolic_link(folder):
    (folder / "b.sqlite").symlink_to(without_environment(0).write(folder / "a.sqlite"))
    return "same report twice"


def copied_file(folder):
    shutil.copy(without_environment(0).write(folder / "a.sqlite"), folder / "b.sqlite")
    return "same report twice"


def exported_twice(folder):
    # The same capture by two versions of nsys: other tables, other names, the same process and start.
    old, new = [name for name in schemas() if name.startswith(("2.9.1", "3.24.7"))][::2]
    steady_rank(0, version=old).write(folder / "a.sqlite")
    steady_rank(0, version=new).write(folder / "b.sqlite")
    return "same report twice"


def same_rank(folder):
    steady_rank(0).write(folder / "a.sqlite")
    builder = without_environment(1).env(RANK=0, OMPI_COMM_WORLD_RANK=1)
    builder.write(folder / "b.sqlite")
    return "captured RANK"


def two_world_sizes(folder):
    steady_rank(0, world_size=2).write(folder / "a.sqlite")
    steady_rank(1, world_size=4).write(folder / "b.sqlite")
    return "WORLD_SIZE"


def two_hours_apart(folder):
    steady_rank(0).write(folder / "a.sqlite")
    builder = steady_rank(1)
    builder.rows["TARGET_INFO_SESSION_START_TIME"][0]["utcEpochNs"] += 7200 * SECOND
    builder.write(folder / "b.sqlite")
    return "apart"


def job(variable, *values):
    """Return a case whose ranks captured these values of a variable."""

    def make(folder):
        for name, value, rank in zip("ab", values, range(2), strict=True):
            steady_rank(rank).env(**{variable: value}).write(folder / f"{name}.sqlite")
        return f"captured {variable} differs"

    make.__name__ = variable.lower()
    return make


def captures(says, first, second):
    """Return a case of two reports, each with a sidecar of its own; `says` is in the error."""

    def make(folder):
        for name, rank, (own, content) in zip("ab", range(2), (first, second), strict=True):
            without_environment(rank).write(folder / f"{name}.sqlite")
            ranks = [{"rank": at, "report": name if at == rank else f"x_{at}"} for at in own]
            document = {"name": "ddp", "captured_at_utc": "2001-09-09T01:46:40Z", "ranks": ranks}
            (folder / f"{name}.capture.json").write_text(json.dumps(document | content))
        return says

    make.__name__ = says.replace(" ", "_")
    return make


LATER = {"captured_at_utc": "2001-09-09T02:46:40Z"}

CONFLICTS = [
    job("TORCHELASTIC_RUN_ID", "84b05915", "7f3a0c11"),
    job("SLURM_JOB_ID", "100", "101"),
    job("MASTER_PORT", "29500", "33433"),
    captures("sidecars name two captures", ([0], {"name": "before"}), ([1], {"name": "after"})),
    captures("sidecars say two world sizes", ([0], {"world_size": 1}), ([1], {"world_size": 2})),
    captures("two captures, each with a rank 1", ([0, 1], {}), ([1], LATER)),
    same_file,
    symbolic_link,
    copied_file,
    exported_twice,
    same_rank,
    two_world_sizes,
    two_hours_apart,
]


@pytest.mark.parametrize("make", CONFLICTS)
def test_reports_that_cannot_be_one_run_are_refused_and_both_named(tmp_path, make):
    says = make(tmp_path)
    pair = [tmp_path / "a.sqlite", tmp_path / "b.sqlite"]
    assert says in conflict(*pair)
    if make in {same_file, two_hours_apart}:  # whichever comes first
        assert says in conflict(*reversed(pair))


@pytest.mark.parametrize("make", [CONFLICTS[0], CONFLICTS[3], CONFLICTS[5], same_file, two_hours_apart])
def test_with_a_rank_map_the_user_has_decided(tmp_path, make):
    make(tmp_path)
    run = nsyspipe.load(tmp_path, rank_map="a.sqlite=0,b.sqlite=1")
    assert [figures(run, rank=rank) for rank in range(2)] == [STEADY] * 2
    assert (run.header.capture is None) == (make is not CONFLICTS[5])  # two captures make none of the run


def test_nodes_of_one_capture_and_copies_of_its_sidecar_are_one_run(tmp_path):
    # Nodes begin at different times and list their own ranks; a copy may lie beside the other report.
    captures("", ([0], {"world_size": 2}), ([1], {"world_size": 2} | LATER))(tmp_path)
    assert nsyspipe.load(tmp_path).ranks.num_rows == 2
    for folder, rank in ((tmp_path / "here", 0), (tmp_path / "there", 1)):
        folder.mkdir()
        without_environment(rank).write(folder / f"ddp_{rank}.sqlite")
        ranks = [{"rank": at, "report": f"ddp_{at}", "pid": 1000 + at} for at in range(2)]
        (folder / "ddp.capture.json").write_text(json.dumps({"name": "ddp", "ranks": ranks}))
    run = nsyspipe.load([tmp_path / "here", tmp_path / "there"])
    assert run.ranks["rank_source"].to_pylist() == ["sidecar"] * 2


# --- reports that may be of different runs --------------------------------------------------------


def strangers(folder, **environment):
    """Write two ranks that have no collective in common: one reduces, the other gathers."""
    for rank, name in enumerate(("AllReduce", "AllGather")):
        builder = TraceBuilder(pid=1000 + rank).session(SESSION + rank)
        builder.env(RANK=rank, WORLD_SIZE=2, MASTER_PORT=29500, **environment)
        for at in range(0, 4000, 1000):
            builder.range(at, at + 600, f"step {at // 1000}")
            builder.kernel(at + 100, at + 500, launch=at + 10, name="gemm")
            builder.nccl(at + 500, at + 700, launch=at + 20, name=f"ncclDevKernel_{name}_f32_RING")
        builder.write(folder / f"x_{rank}.sqlite")
    return nsyspipe.load(folder)


def test_ranks_without_any_common_collective_may_be_of_different_runs_which_comes_first(tmp_path):
    run = strangers(tmp_path)
    first = run.problems.to_pylist()[0]
    assert (first["code"], first["severity"]) == ("different-runs", "error")
    assert first["message"].startswith("none of the 8 communication operations")  # 2 ranks, 4 steps
    assert "unmatched-collectives" not in codes(run)
    assert "\nCaution: the reports may be of different runs" in summary_text(run, Console(width=100))
    assert "Caution: the reports may be of different runs" in markdown(run)


def test_ranks_that_captured_one_job_id_are_of_one_run_whatever_matches(tmp_path):
    run = strangers(tmp_path, SLURM_JOB_ID=7)
    assert "different-runs" not in codes(run)
    assert problem_of(run, "unmatched-collectives")["message"].startswith("8 of 8")
    assert "Caution" not in summary_text(run, Console(width=100))


def test_the_default_id_of_torchrun_says_nothing(tmp_path):
    assert "different-runs" in codes(strangers(tmp_path, TORCHELASTIC_RUN_ID="none"))


def test_more_processes_than_the_job_had_ranks_are_an_error_row(tmp_path):
    for rank in range(3):
        builder = without_environment(rank).env(WORLD_SIZE=2)
        builder.write(tmp_path / f"x_{rank}.sqlite")
    row = problem_of(nsyspipe.load(tmp_path), "more-ranks-than-world")
    assert row["severity"] == "error"
    assert row["message"].startswith("3 processes, but the job had 2 ranks")


@pytest.mark.slow
def test_a_rank_of_one_sample_run_and_a_rank_of_the_other_are_not_taken_for_a_run():
    run = nsyspipe.load([SAMPLES / f"ddp-4gpu-{name}.sqlite" for name in ("before_0", "after_1")])
    assert run.problems["code"].to_pylist()[0] == "different-runs"


def test_one_file_given_twice_is_refused(tmp_path, monkeypatch):
    path = without_environment(0).write(tmp_path / "a.sqlite")
    conflict(path, path)
    monkeypatch.chdir(tmp_path)
    conflict(path, "a.sqlite")


@pytest.mark.parametrize("pause", [59, 60, 61])
def test_a_minute_without_any_activity_parts_two_runs(tmp_path, pause):
    # Rank 0 works from 100 to 3350; rank 1's first kernel comes `pause` seconds after that.
    steady_rank(0).write(tmp_path / "a.sqlite")
    builder = shift(steady_rank(1), 3250 + pause * SECOND)
    builder.rows["TARGET_INFO_SESSION_START_TIME"][0]["utcEpochNs"] -= 1  # as rank 0's
    builder.write(tmp_path / "b.sqlite")
    if pause <= 60:
        assert nsyspipe.load(tmp_path).ranks.num_rows == 2
    else:
        assert "61 s apart" in conflict(tmp_path / "a.sqlite", tmp_path / "b.sqlite")


def test_a_rank_that_works_in_between_joins_two_others(tmp_path):
    for rank in range(3):
        shift(steady_rank(rank, world_size=3), rank * 50 * SECOND).write(tmp_path / f"a_{rank}.sqlite")
    assert nsyspipe.load(tmp_path).ranks.num_rows == 3
    conflict(tmp_path / "a_0.sqlite", tmp_path / "a_2.sqlite")


def test_equal_ranks_of_other_variables_are_no_conflict(tmp_path):
    for rank in range(2):
        without_environment(rank).env(SLURM_PROCID=0, PMI_RANK=0).write(tmp_path / f"a_{rank}.sqlite")
    assert nsyspipe.load(tmp_path).ranks["rank_source"].to_pylist() == ["file_name"] * 2


def test_reports_without_a_common_clock_cannot_be_too_far_apart(tmp_path):
    for rank in range(2):
        builder = shift(steady_rank(rank), rank * 3600 * SECOND)
        builder.write(tmp_path / f"a_{rank}.sqlite", without=("TARGET_INFO_SESSION_START_TIME",))
    assert nsyspipe.load(tmp_path).ranks.num_rows == 2


# --- several processes, several devices, some ranks -----------------------------------------------


def test_several_processes_of_one_report_are_several_ranks(tmp_path):
    # The environment is the launcher's: what it says of a rank holds for none of them.
    builder = one_report(steady_rank(0), shift(steady_rank(1), 50), shift(steady_rank(2), 90))
    run = nsyspipe.load(builder.write(tmp_path / "node_5.sqlite"))
    assert run.ranks.select(["rank", "pid", "rank_source", "local_rank"]).to_pylist() == [
        {"rank": rank, "pid": 1000 + rank, "rank_source": "order", "local_rank": None} for rank in range(3)
    ]
    assert [figures(run, rank=rank) for rank in range(3)] == [STEADY] * 3


def test_mpis_names_tell_the_processes_of_one_report_apart(tmp_path):
    builder = one_report(steady_rank(0), steady_rank(1))
    builder.range(0, None, "MPI Rank 1", kind=39, pid=1000).range(0, None, "MPI Rank 0", kind=39, pid=1001)
    run = nsyspipe.load(builder.write(tmp_path / "a.sqlite"))
    assert run.ranks["pid"].to_pylist() == [1001, 1000]


def test_a_rank_map_names_a_process_of_a_report_by_pid(tmp_path):
    path = one_report(steady_rank(0), steady_rank(1)).write(tmp_path / "a.sqlite")
    run = nsyspipe.load(path, rank_map="a.sqlite:1000=6,a.sqlite:1001=2")
    assert run.ranks.select(["rank", "pid"]).to_pylist() == [{"rank": 2, "pid": 1001}, {"rank": 6, "pid": 1000}]


def test_a_process_on_two_devices_is_one_rank_over_their_union(tmp_path):
    builder = steady_rank(0)
    for step in range(4):
        # On device 1: [150, 250) runs beside device 0's kernels, [400, 450) runs alone.
        builder.kernel(1000 * step + 150, 1000 * step + 250, launch=1000 * step + 11, device=1)
        builder.kernel(1000 * step + 400, 1000 * step + 450, launch=1000 * step + 12, device=1)
    run = nsyspipe.load(builder.write(tmp_path / "a_0.sqlite"))
    assert run.ranks.select(["device_id", "device_ids"]).to_pylist() == [{"device_id": 0, "device_ids": "0,1"}]
    assert figures(run) == STEADY | {"compute_ns": 250, "idle_ns": 710}


# --- the size of the world ----------------------------------------------------------------------


def test_ranks_that_are_not_among_the_reports_are_a_problem(tmp_path):
    for rank in (1, 2):
        steady_rank(rank, world_size=4).write(tmp_path / f"a{rank}.sqlite")
    run = nsyspipe.load(tmp_path)
    row = problem_of(run, "ranks-missing")
    assert row["severity"] == "warning"
    assert "2 of 4 ranks" in row["message"]
    assert "(0, 3)" in row["message"]
    assert run.header.world_size == 4


def test_a_rank_beyond_the_world_does_not_stand_in_for_one_that_is_missing(tmp_path):
    for rank in (0, 2):
        steady_rank(rank, world_size=2).write(tmp_path / f"a_{rank}.sqlite")
    row = problem_of(nsyspipe.load(tmp_path), "ranks-missing")
    assert "1 of 2 ranks" in row["message"]
    assert "(1)" in row["message"]


def test_a_world_of_any_size_costs_no_memory(tmp_path):
    path = steady_rank(0, world_size=1_000_000).write(tmp_path / "a_0.sqlite")
    run = nsyspipe.load(path)
    _ = run._gathered  # which does not know how large the world is
    tracemalloc.start()
    try:
        row = problem_of(run, "ranks-missing")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert "999999 of 1000000 ranks" in row["message"]
    assert peak < 10_000_000


def test_a_complete_world_has_no_ranks_missing(steady):
    assert "ranks-missing" not in codes(nsyspipe.load(steady))


def test_without_a_captured_size_the_world_is_not_known(tmp_path):
    run = nsyspipe.load(without_environment(0).write(tmp_path / "x_3.sqlite"))
    assert run.header.world_size is None
    assert "ranks-missing" not in codes(run)


def test_one_range_called_step_is_said_to_be_one_and_may_be_asked_for(tmp_path):
    for rank in (0, 1):
        builder = TraceBuilder(pid=1000 + rank).session(10**18).gpu().env(RANK=rank, WORLD_SIZE=2)
        builder.range(0, 100, "step").range(10, 50, "backward")
        builder.kernel(5, 60, launch=1).nccl(60, 80, launch=20).write(tmp_path / f"one_{rank}.sqlite")
    run = nsyspipe.load(tmp_path, jobs=1)
    row = problem_of(run, "no-steps")
    assert "there is one range 'step' on every rank" in row["message"]
    assert "--step '^step$'" in row["message"]
    asked = nsyspipe.load(tmp_path, step="^step$", jobs=1)
    assert asked.summary()["n_summary_steps"].to_pylist() == [1]
    assert problem_of(asked, "few-steps")["message"].startswith("steps in the figures: 1, too few")


def test_ranks_that_are_slowest_in_turn_are_said_to_be(tmp_path):
    # Windows of 100 and 120 in turn: the largest of each step is 120, and each rank takes 110 in the mean.
    for rank in (0, 1):
        builder = TraceBuilder(pid=1000 + rank).session(10**18).gpu().env(RANK=rank, WORLD_SIZE=2)
        at = 10
        for step in range(9):
            length = 120 if step % 2 == rank else 100
            builder.range(at - 5, at + 90, f"step {step}").kernel(at, at + 80, launch=at - 2)
            at += length
        builder.write(tmp_path / f"turn_{rank}.sqlite")
    run = nsyspipe.load(tmp_path, jobs=1)
    # Of steps 1 to 7 four are longer on rank 1: 780 in all, where the largest sum to 840.
    assert run.summary()["throughput_steps_per_s"].to_pylist() == [1e9 / 120]
    assert "in the mean 7.7 % more" in problem_of(run, "slowest-rank-changes")["message"]
