"""Which reports can be one run, and which processes in them are its ranks."""

from __future__ import annotations

import os
import shutil
import tracemalloc

import pytest

import nsyspipe
from nsyspipe.errors import RankConflictError
from tests.build.trace import schemas, steady_rank
from tests.integration.tools import STEADY, codes, figures, one_report, problem_of, shift

SECOND = 1_000_000_000


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


CONFLICTS = [
    same_file,
    symbolic_link,
    copied_file,
    exported_twice,
    same_rank,
    two_world_sizes,
    two_hours_apart,
]


@pytest.mark.parametrize("make", CONFLICTS)
@pytest.mark.parametrize("swap", [False, True])
def test_reports_that_cannot_be_one_run_are_refused_and_both_named(tmp_path, make, swap):
    says = make(tmp_path)
    pair = [tmp_path / "a.sqlite", tmp_path / "b.sqlite"]
    assert says in conflict(*(reversed(pair) if swap else pair))


@pytest.mark.parametrize("make", CONFLICTS)
def test_with_a_rank_map_the_user_has_decided(tmp_path, make):
    make(tmp_path)
    run = nsyspipe.load(tmp_path, rank_map="a.sqlite=0,b.sqlite=1")
    assert [figures(run, rank=rank) for rank in range(2)] == [STEADY] * 2


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
        shift(steady_rank(rank, world_size=3), rank * 50 * SECOND).write(
            tmp_path / f"a_{rank}.sqlite"
        )
    assert nsyspipe.load(tmp_path).ranks.num_rows == 3
    conflict(tmp_path / "a_0.sqlite", tmp_path / "a_2.sqlite")


def test_equal_ranks_of_other_variables_are_no_conflict(tmp_path):
    for rank in range(2):
        without_environment(rank).env(SLURM_PROCID=0, PMI_RANK=0).write(
            tmp_path / f"a_{rank}.sqlite"
        )
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
        {"rank": rank, "pid": 1000 + rank, "rank_source": "order", "local_rank": None}
        for rank in range(3)
    ]
    assert [figures(run, rank=rank) for rank in range(3)] == [STEADY] * 3


def test_mpis_names_tell_the_processes_of_one_report_apart(tmp_path):
    builder = one_report(steady_rank(0), steady_rank(1))
    builder.range(0, None, "MPI Rank 1", kind=39, pid=1000).range(
        0, None, "MPI Rank 0", kind=39, pid=1001
    )
    run = nsyspipe.load(builder.write(tmp_path / "a.sqlite"))
    assert run.ranks["pid"].to_pylist() == [1001, 1000]


def test_a_rank_map_names_a_process_of_a_report_by_pid(tmp_path):
    path = one_report(steady_rank(0), steady_rank(1)).write(tmp_path / "a.sqlite")
    run = nsyspipe.load(path, rank_map="a.sqlite:1000=6,a.sqlite:1001=2")
    assert run.ranks.select(["rank", "pid"]).to_pylist() == [
        {"rank": 2, "pid": 1001},
        {"rank": 6, "pid": 1000},
    ]


def test_a_process_on_two_devices_is_one_rank_over_their_union(tmp_path):
    builder = steady_rank(0)
    for step in range(4):
        # On device 1: [150, 250) runs beside device 0's kernels, [400, 450) runs alone.
        builder.kernel(1000 * step + 150, 1000 * step + 250, launch=1000 * step + 11, device=1)
        builder.kernel(1000 * step + 400, 1000 * step + 450, launch=1000 * step + 12, device=1)
    run = nsyspipe.load(builder.write(tmp_path / "a_0.sqlite"))
    assert run.ranks.select(["device_id", "device_ids"]).to_pylist() == [
        {"device_id": 0, "device_ids": "0,1"}
    ]
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
    tracemalloc.start()
    try:
        row = problem_of(nsyspipe.load(path), "ranks-missing")
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
