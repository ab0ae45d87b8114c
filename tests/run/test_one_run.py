"""Which reports can be one run, and which processes in them are its ranks."""

import json
import os
import shutil
import tracemalloc
from functools import partial
from pathlib import Path

import pytest
from rich.console import Console

import nsyspipe
from nsyspipe.errors import OptionError, RankConflictError
from nsyspipe.report.markdown import markdown
from nsyspipe.report.run import summary_text
from tests.build.tools import STEADY, bare, codes, figures, one_report, problem_of, run_of, shift
from tests.build.trace import TraceBuilder, schemas, steady_rank
from tests.conftest import SAMPLES
from tests.golden import words

SECOND = 1_000_000_000
SESSION = 10**18


def conflict(first, second, **options):
    """Return the error that two reports end with; it names both."""
    with pytest.raises(RankConflictError) as caught:
        nsyspipe.load([first, second], **options).steps()
    assert all(Path(path).name in caught.value.lines()[0] for path in (first, second))
    assert ("\n" in caught.value.lines()[0], caught.value.exit_code) == (False, 2)
    assert ("--rank-map" in caught.value.fix) == (Path(first).name != Path(second).name)
    return caught.value.lines()[0]


# Each writes the two reports of a case.
def copied_by(copy, folder):
    copy(bare(0).write(folder / "a.sqlite"), folder / "b.sqlite")


def two(first, second, folder):
    for name, build in zip("ab", (first, second), strict=True):
        build().write(folder / f"{name}.sqlite")


def two_hours_later():
    builder = steady_rank(1)
    builder.rows["TARGET_INFO_SESSION_START_TIME"][0]["utcEpochNs"] += 7200 * SECOND
    return builder


def job(variable, first, second, folder):
    """Write ranks that captured these values of a variable."""
    builders = [
        lambda: steady_rank(0).env(**{variable: first}),
        lambda: steady_rank(1).env(**{variable: second}),
    ]
    two(*builders, folder)


def captures(first, second, folder):
    """Write two reports, each with a sidecar of its own."""
    for name, rank, (own, content) in zip("ab", range(2), (first, second), strict=True):
        bare(rank).write(folder / f"{name}.sqlite")
        ranks = [{"rank": at, "report": name if at == rank else f"x_{at}"} for at in own]
        document = {"name": "ddp", "captured_at_utc": "2001-09-09T01:46:40Z", "ranks": ranks}
        (folder / f"{name}.capture.json").write_text(json.dumps(document | content))


LATER = {"captured_at_utc": "2001-09-09T02:46:40Z"}

# The same capture by two versions of nsys: other tables, other names, the same process and start.
EXPORTERS = [name for name in schemas() if name.startswith(("2.9.1", "3.24.7"))][::2]
CONFLICTS = {
    "jobs of torchrun": partial(job, "TORCHELASTIC_RUN_ID", "84b05915", "7f3a0c11"),
    "jobs of Slurm": partial(job, "SLURM_JOB_ID", "100", "101"),
    "ports": partial(job, "MASTER_PORT", "29500", "33433"),
    "names of captures": partial(captures, ([0], {"name": "before"}), ([1], {"name": "after"})),
    "world sizes of sidecars": partial(
        captures, ([0], {"world_size": 1}), ([1], {"world_size": 2})
    ),
    "two captures of a rank": partial(captures, ([0, 1], {}), ([1], LATER)),
    "a hard link": partial(copied_by, os.link),
    "a link": partial(copied_by, os.symlink),
    "a copy": partial(copied_by, shutil.copy),
    "two exports": partial(
        two, *(lambda name=name: steady_rank(0, version=name) for name in EXPORTERS)
    ),
    "one rank": partial(
        two, *(lambda at=at: bare(at).env(RANK=0, OMPI_COMM_WORLD_RANK=at) for at in (0, 1))
    ),
    "world sizes": partial(
        two, *(lambda at=at: steady_rank(at, world_size=2 + 2 * at) for at in (0, 1))
    ),
    "hours between": partial(two, lambda: steady_rank(0), two_hours_later),
}
# Which the user may decide: a rank map makes one run of them.
DECIDED = [
    "jobs of torchrun",
    "names of captures",
    "two captures of a rank",
    "a hard link",
    "hours between",
]


@pytest.mark.parametrize("name", CONFLICTS)
def test_reports_that_cannot_be_one_run_are_refused_and_both_named(tmp_path, name, worded):
    CONFLICTS[name](tmp_path)
    worded(conflict(tmp_path / "a.sqlite", tmp_path / "b.sqlite"))


@pytest.mark.parametrize("name", ["a hard link", "hours between"])
def test_reports_that_cannot_be_one_run_are_refused_whichever_comes_first(tmp_path, name, worded):
    CONFLICTS[name](tmp_path)
    worded(conflict(tmp_path / "b.sqlite", tmp_path / "a.sqlite"))


@pytest.mark.parametrize("name", DECIDED)
def test_a_rank_map_makes_one_run_of_reports_that_differ(tmp_path, name):
    CONFLICTS[name](tmp_path)
    run = nsyspipe.load(tmp_path, rank_map="a.sqlite=0,b.sqlite=1")
    assert [figures(run, rank=rank) for rank in range(2)] == [STEADY] * 2
    # Two captures make none of the run.
    assert (run.header.capture is None) == (name != "two captures of a rank")


def test_nodes_of_one_capture_and_copies_of_its_sidecar_are_one_run(tmp_path):
    # Nodes begin at different times and list their own ranks; a copy may lie beside the other
    # report.
    captures(([0], {"world_size": 2}), ([1], {"world_size": 2} | LATER), tmp_path)
    assert nsyspipe.load(tmp_path).ranks.num_rows == 2
    for folder, rank in ((tmp_path / "here", 0), (tmp_path / "there", 1)):
        folder.mkdir()
        bare(rank).write(folder / f"ddp_{rank}.sqlite")
        ranks = [{"rank": at, "report": f"ddp_{at}", "pid": 1000 + at} for at in range(2)]
        (folder / "ddp.capture.json").write_text(json.dumps({"name": "ddp", "ranks": ranks}))
    assert (
        nsyspipe.load([tmp_path / "here", tmp_path / "there"]).ranks["rank_source"].to_pylist()
        == ["sidecar"] * 2
    )


def two_ranks():
    return [
        TraceBuilder(pid=1000 + rank).session(SESSION).gpu().env(RANK=rank, WORLD_SIZE=2)
        for rank in (0, 1)
    ]


def strangers(folder, **environment):
    """Write two ranks that have no collective in common: one reduces, the other gathers."""
    for rank, (name, builder) in enumerate(
        zip(("AllReduce", "AllGather"), two_ranks(), strict=True)
    ):
        builder.env(MASTER_PORT=29500, **environment)
        for at in range(0, 4000, 1000):
            builder.range(at, at + 600, f"step {at // 1000}").kernel(
                at + 100, at + 500, launch=at + 10
            )
            builder.nccl(at + 500, at + 700, launch=at + 20, name=f"ncclDevKernel_{name}_f32_RING")
        builder.write(folder / f"x_{rank}.sqlite")
    return nsyspipe.load(folder)


@pytest.mark.slow
def test_ranks_without_a_common_collective_may_be_of_different_runs(tmp_path, worded):
    run = strangers(tmp_path, TORCHELASTIC_RUN_ID="none")  # the default id of torchrun says nothing
    first = run.problems.to_pylist()[0]
    assert (first["code"], first["severity"]) == ("different-runs", "error")
    assert "8" in words.figures(first["message"])  # 2 ranks, 4 steps
    worded(first["message"], "different runs")
    assert "unmatched-collectives" not in codes(run)
    checks = {
        row["check"]: row["blocks"]
        for row in nsyspipe.diff(run, strangers(tmp_path)).comparability.to_pylist()
    }
    assert checks["mixed-runs"]
    worded(run.verdict, "verdict")
    caution = run.verdict.partition(".")[0]
    for text in (summary_text(run, Console(width=100)), markdown(run)):
        assert caution in text, text
    run = strangers(
        tmp_path, SLURM_JOB_ID=7
    )  # ranks that captured one job's id are of one run, whatever matches
    assert "8" in words.figures(problem_of(run, "unmatched-collectives")["message"])
    assert "different-runs" not in codes(run)
    assert caution not in summary_text(run, Console(width=100))


@pytest.mark.slow
def test_ranks_of_two_sample_runs_are_not_one_run(worded):
    run = nsyspipe.load([SAMPLES / f"ddp-4gpu-{name}.sqlite" for name in ("before_0", "after_1")])
    with pytest.raises(RankConflictError) as caught:
        run.summary()
    assert "43.8" in words.figures(caught.value.problem)
    worded(caught.value.problem.replace(str(SAMPLES), "SAMPLES"))


def test_one_file_given_twice_is_refused(tmp_path, monkeypatch):
    path = bare(0).write(tmp_path / "a.sqlite")
    monkeypatch.chdir(tmp_path)
    for again in (path, "a.sqlite"):
        conflict(path, again)


@pytest.mark.parametrize("pause", [60, 61])
def test_a_minute_without_any_activity_parts_two_runs(tmp_path, pause):
    # Rank 0 works from 100 to 3350; rank 1's first kernel comes `pause` seconds after that.
    builder = shift(steady_rank(1), 3250 + pause * SECOND)
    builder.rows["TARGET_INFO_SESSION_START_TIME"][0]["utcEpochNs"] -= 1  # as rank 0's
    run = run_of(tmp_path, steady_rank(0), builder)
    if pause <= 60:
        assert run.ranks.num_rows == 2
    else:
        assert "61" in words.figures(conflict(tmp_path / "a_0.sqlite", tmp_path / "a_1.sqlite"))


@pytest.mark.parametrize(
    ("name", "host", "pause", "is_one"),
    [
        ("b", "node0", 11, False),
        ("b", "node0", 9, True),
        ("a", "node0", 11, True),
        ("b", "node1", 11, True),
    ],
)
def test_reports_with_two_names_are_one_run_only_if_they_overlap(
    tmp_path, name, host, pause, is_one, worded
):
    builder = shift(steady_rank(1), pause * SECOND)
    next(row for row in builder.rows["TARGET_INFO_SYSTEM_ENV"] if row["name"] == "Hostname")[
        "value"
    ] = host
    builder.rows["TARGET_INFO_SESSION_START_TIME"][0]["utcEpochNs"] -= 1  # as rank 0's
    paths = (
        steady_rank(0).write(tmp_path / "a_0.sqlite"),
        builder.write(tmp_path / f"{name}_1.sqlite"),
    )
    if is_one:
        assert nsyspipe.load(paths).ranks.num_rows == 2
    else:
        with pytest.raises(RankConflictError) as caught:
            nsyspipe.load(paths).steps()
        assert "11" in words.figures(caught.value.problem)
        worded(caught.value.lines())


def test_reports_with_one_job_id_are_one_run(
    tmp_path,
):
    builders = steady_rank(0), shift(steady_rank(1), 10 * SECOND)
    builders[1].rows["TARGET_INFO_SESSION_START_TIME"][0]["utcEpochNs"] -= 1  # as rank 0's
    paths = [
        one.env(SLURM_JOB_ID=7).write(tmp_path / f"rank{at}_x.sqlite")
        for at, one in enumerate(builders)
    ]
    assert nsyspipe.load(paths).ranks.num_rows == 2


def test_a_rank_that_works_in_between_joins_two_others(tmp_path):
    builders = (shift(steady_rank(rank, world_size=3), rank * 50 * SECOND) for rank in range(3))
    assert run_of(tmp_path, *builders).ranks.num_rows == 3
    conflict(tmp_path / "a_0.sqlite", tmp_path / "a_2.sqlite")


def test_equal_ranks_of_other_variables_are_no_conflict(tmp_path):
    builders = [
        shift(bare(rank).env(SLURM_PROCID=0, PMI_RANK=0), rank * 3600 * SECOND) for rank in range(2)
    ]
    run = run_of(tmp_path, *builders, without=("TARGET_INFO_SESSION_START_TIME",))
    assert run.ranks["rank_source"].to_pylist() == ["file_name"] * 2


def test_several_processes_of_one_report_are_several_ranks(tmp_path):
    # The environment is the launcher's: what it says of a rank holds for none of them.
    builder = one_report(steady_rank(0), shift(steady_rank(1), 50), shift(steady_rank(2), 90))
    run = nsyspipe.load(builder.write(tmp_path / "node_5.sqlite"))
    assert run.ranks.select(["rank", "pid", "rank_source", "local_rank"]).to_pylist() == [
        {"rank": rank, "pid": 1000 + rank, "rank_source": "order", "local_rank": None}
        for rank in range(3)
    ]
    assert [figures(run, rank=rank) for rank in range(3)] == [STEADY] * 3


def test_mpis_names_or_a_rank_map_tell_the_processes_of_one_report_apart(tmp_path, worded):
    builder = one_report(steady_rank(0), steady_rank(1))
    builder.range(0, None, "MPI Rank 1", kind=39, pid=1000).range(
        0, None, "MPI Rank 0", kind=39, pid=1001
    )
    path = builder.write(tmp_path / "a.sqlite")
    assert nsyspipe.load(path).ranks["pid"].to_pylist() == [1001, 1000]
    run = nsyspipe.load(path, rank_map="a.sqlite:1000=0,a.sqlite:1001=1")
    assert run.ranks.select(["rank", "pid"]).to_pylist() == [
        {"rank": 0, "pid": 1000},
        {"rank": 1, "pid": 1001},
    ]
    with pytest.raises(OptionError) as caught:
        _ = nsyspipe.load(path, rank_map="a.sqlite:1000=0,a.sqlite:1001=5").ranks
    worded(str(caught.value))


@pytest.mark.parametrize(
    ("present", "world_size", "missing"),
    [
        pytest.param((1, 2), 4, {"2", "4", "0", "3"}, id="two"),
        # A rank beyond the world does not stand in for one that is missing.
        pytest.param((0, 2), 2, {"1", "2"}, id="one"),
    ],
)
def test_ranks_that_are_not_among_the_reports_are_a_problem(
    tmp_path, present, world_size, missing, worded
):
    run = run_of(tmp_path, *(steady_rank(rank, world_size=world_size) for rank in present))
    row = problem_of(run, "ranks-missing")
    # How many, of how many, and which.
    assert missing <= words.figures(row["message"])
    worded(row["message"])
    assert (row["severity"], run.header.world_size) == ("warning", world_size)


@pytest.mark.parametrize(
    ("stems", "options", "size"),
    [
        (("x_0", "x_3"), {}, 4),
        (("x_2", "x_5"), {}, None),
        (("x_1", "x_2"), {}, None),
        (("x_0", "x_1"), {}, None),  # a %p has gaps too
        (("a", "b"), {"rank_map": "a=1,b=3"}, 4),
        (("a", "b"), {}, None),
    ],
)
def test_gaps_in_the_numbers_prove_that_ranks_are_missing(tmp_path, stems, options, size):
    for at, stem in enumerate(stems):
        bare(at).write(tmp_path / f"{stem}.sqlite")
    run = nsyspipe.load(tmp_path, **options)
    assert (run.header.world_size, "ranks-missing" in codes(run)) == (size, size is not None)
    assert (run.summary()["wait_share"][0].as_py() is None) == (size is not None)


def test_more_processes_than_the_job_had_ranks_are_an_error_row(tmp_path, worded):
    row = problem_of(
        run_of(tmp_path, *(bare(rank).env(WORLD_SIZE=2) for rank in range(3))),
        "more-ranks-than-world",
    )
    assert row["severity"] == "error"
    assert {"3", "2"} <= words.figures(row["message"])
    worded(row["message"])


def test_a_world_of_any_size_costs_no_memory(tmp_path):
    run = nsyspipe.load(steady_rank(0, world_size=1_000_000).write(tmp_path / "a_0.sqlite"))
    _ = run._gathered  # which does not know how large the world is
    tracemalloc.start()
    try:
        row = problem_of(run, "ranks-missing")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert {"999999", "1000000"} <= words.figures(row["message"])
    assert peak < 10_000_000


def test_a_complete_world_has_no_missing_ranks(steady, tmp_path):
    assert "ranks-missing" not in codes(nsyspipe.load(steady))
    run = nsyspipe.load(bare(0).write(tmp_path / "x_3.sqlite"))
    assert (run.header.world_size, "ranks-missing" in codes(run)) == (None, False)


@pytest.mark.slow
def test_one_range_called_step_is_said_to_be_one_and_may_be_asked_for(tmp_path, worded):
    builders = two_ranks()
    for builder in builders:
        builder.range(0, 100, "step").range(10, 50, "backward").kernel(5, 60, launch=1).nccl(
            60, 80, launch=20
        )
    message = problem_of(run_of(tmp_path, *builders), "no-steps")["message"]
    assert "--step '^step$'" in message
    worded(message, "no steps")
    asked = nsyspipe.load(tmp_path, step="^step$")
    assert asked.summary()["n_summary_steps"].to_pylist() == [1]
    worded(problem_of(asked, "few-steps")["message"], "one step")


def test_ranks_that_are_slowest_in_turn_are_said_to_be(tmp_path, worded):
    # Windows of 100 and 120 in turn: the largest of each step is 120, and each rank takes 110 in
    # the mean.
    builders = two_ranks()
    for rank, builder in enumerate(builders):
        at = 10
        for step in range(9):
            length = 120 if step % 2 == rank else 100
            builder.range(at - 5, at + 90, f"step {step}").kernel(at, at + 80, launch=at - 2)
            at += length
    run = run_of(tmp_path, *builders)
    # Of steps 1 to 7 four are longer on rank 1: 780 in all, where the largest sum to 840.
    assert run.summary()["throughput_steps_per_s"].to_pylist() == [1e9 / 120]
    message = problem_of(run, "slowest-rank-changes")["message"]
    assert "7.7" in words.figures(message)
    worded(message)
