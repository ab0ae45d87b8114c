"""The first screen as values: means of the step over ranks, and what to change first."""

import pytest

import nsyspipe
from nsyspipe.report.export import document
from tests.build.plain_steps import plain_run, write_run

# Two steps of each rank: compute, communication, copy, idle, ns. The slowest rank of the first step
# is rank 1 (110 ns), that of the second is rank 0 (120 ns).
STEPS_OF_RANK_0 = [(60, 20, 10, 10), (80, 20, 10, 10)]
STEPS_OF_RANK_1 = [(70, 20, 10, 10), (50, 20, 10, 20)]


@pytest.fixture(scope="module")
def mean_step(tmp_path_factory):
    run = plain_run(tmp_path_factory.mktemp("uneven"), [STEPS_OF_RANK_0, STEPS_OF_RANK_1])
    return document(run)["mean_step"]


def test_the_mean_step_is_that_of_the_slowest_rank_of_each_step(mean_step):
    assert mean_step["slowest_of_each_step_ns"] == (110 + 120) / 2


def test_a_rank_that_is_slowest_on_average_has_a_shorter_mean(mean_step):
    assert mean_step["slowest_on_average_ns"] == (100 + 120) / 2


def test_the_mean_over_all_ranks_counts_every_window(mean_step):
    assert mean_step["all_ranks_ns"] == (100 + 120 + 110 + 100) / 4


@pytest.mark.parametrize(
    ("name", "slowest_ns", "all_ns"),
    [
        ("compute", (70 + 80) / 2, (60 + 80 + 70 + 50) / 4),
        ("exposed_comm", 20, 20),
        ("exposed_memory", 10, 10),
        ("idle", 10, (10 + 10 + 10 + 20) / 4),
    ],
)
def test_a_part_has_its_share_of_both_means(mean_step, name, slowest_ns, all_ns):
    (part,) = [part for part in mean_step["parts"] if part["part"] == name]
    assert (part["slowest_of_each_step_ns"], part["all_ranks_ns"]) == (slowest_ns, all_ns)
    assert part["slowest_of_each_step_share"] == pytest.approx(slowest_ns / 115)
    assert part["all_ranks_share"] == pytest.approx(all_ns / 107.5)


def test_a_capture_without_steps_has_no_mean_step(tmp_path):
    folder = write_run(tmp_path / "run", [STEPS_OF_RANK_0])
    assert document(nsyspipe.load(folder, step="none", jobs=1))["mean_step"] is None


def test_a_run_in_which_nothing_can_be_saved_has_no_first_change(tmp_path):
    run = plain_run(tmp_path / "run", [[(1000, 0, 0, 0)] * 4])
    assert document(run)["recommendations"]["first"] is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "first", "known"),
    [
        # Its exposed communication is the first finding, but no change by itself.
        ("2gpu-gpt-b25-shm-bf16hook", "comm-slows-compute", "bounded"),
        ("ddp-4gpu-shm", "single-bucket", "estimated"),
    ],
)
def test_the_first_change_is_that_of_the_first_screen(runs, name, first, known):
    row = document(runs(name))["recommendations"]["first"]
    assert (row["id"], row["known"]) == (first, known)


@pytest.mark.slow
def test_a_saving_that_only_an_unrecorded_interconnect_gives_is_conditional(runs):
    rows = document(runs("ddp-4gpu-shm"))["recommendations"]["alternatives"]
    assert {row["id"]: row["known"] for row in rows}["slow-link"] == "conditional"


@pytest.mark.slow
def test_idle_time_is_a_lower_bound_where_graphs_hide_it(runs):
    hidden, visible = (
        document(runs(name))["mean_step"]["lower_bounds"] for name in ("2gpu-graph", "ddp-4gpu-shm")
    )
    assert (hidden, visible) == (["idle"], [])
