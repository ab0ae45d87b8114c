"""Kernels that appeared, vanished or changed."""

from __future__ import annotations

import pytest

from nsyspipe.difference.kernel_changes import kernel_changes, top_kernels
from nsyspipe.difference.step_table import StepTable
from tests.build.plain_steps import plain_rank, plain_run

import nsyspipe  # isort: skip

STEPS = [(1000, 100, 40, 60)] * 3


def tables(*runs):
    return [StepTable(run) for run in runs]


def rows(before, after, min_effect=0.02):
    found = kernel_changes(before, after, min_effect=min_effect).to_pylist()
    return {(row["phase"], row["name"]): row for row in found}


def test_a_run_has_the_same_kernels_as_itself(tmp_path):
    run = plain_run(tmp_path / "a", [STEPS, STEPS])
    found = kernel_changes(tables(run), tables(run), min_effect=0.02)
    assert set(found["status"].to_pylist()) == {"same"}
    assert set(found["delta_ns_per_step"].to_pylist()) == {0.0}
    assert top_kernels(found).num_rows == 0


def test_totals_are_brought_to_one_summary_step(tmp_path):
    # Compute of the windows: 500 (skipped), 3 x 1000, 100 (cut off): 3600 in all, 1000 per summary
    # step. The kernel takes all of it: 3600 x 1000 / 3600. There are 5 of them: 5 x 1000 / 3600.
    run = plain_run(tmp_path / "a", [STEPS, STEPS])
    found = rows(tables(run), tables(run))["backward", "gemm"]
    assert found["baseline_ns_per_step"] == pytest.approx(1000)
    assert found["baseline_n_per_step"] == pytest.approx(5 / 3.6)
    assert found["baseline_mean_ns"] == 3600 / 5
    # Of communication 50 + 3 x 100 + 10; there is one in every step.
    comm = rows(tables(run), tables(run))["backward", "ncclDevKernel_AllReduce_Sum_f32_RING_LL"]
    assert comm["baseline_ns_per_step"] == pytest.approx(100)
    assert comm["baseline_n_per_step"] == pytest.approx(1)


def test_kernels_appear_and_vanish_by_name(tmp_path):
    before = plain_run(tmp_path / "a", [STEPS, STEPS])
    after = plain_run(tmp_path / "b", [STEPS, STEPS], kernel="conv")
    found = rows(tables(before), tables(after))
    gone, new = found["backward", "gemm"], found["backward", "conv"]
    assert (gone["status"], gone["candidate_ns_per_step"], gone["candidate_mean_ns"]) == (
        "vanished",
        0.0,
        None,
    )
    assert (new["status"], new["baseline_n_per_step"]) == ("appeared", 0.0)
    assert new["delta_ns_per_step"] == -gone["delta_ns_per_step"] == pytest.approx(1000)


def test_one_kernel_in_another_phase_is_another(tmp_path):
    before = plain_run(tmp_path / "a", [STEPS])
    folder = tmp_path / "b"
    folder.mkdir()
    builder = plain_rank(0, STEPS, world_size=1)
    for row in builder.rows["NVTX_EVENTS"]:
        if row["textId"] == builder.string("backward"):
            row["textId"] = builder.string("forward")
    builder.write(folder / "run_0.sqlite")
    found = rows(tables(before), tables(nsyspipe.load(folder, jobs=1)))
    assert found["backward", "gemm"]["status"] == "vanished"
    assert found["forward", "gemm"]["status"] == "appeared"


@pytest.mark.parametrize(
    ("compute", "status"),
    [(1010, "changed"), (1001, "same"), (1030, "changed")],
    # 1 % is under the minimum effect, but 10 ns are more than a thousandth of the step of 1200 ns; 1 ns is less.
)
def test_little_change_is_none_unless_the_step_feels_it(tmp_path, compute, status):
    before = plain_run(tmp_path / "a", [STEPS])
    after = plain_run(tmp_path / "b", [[(compute, 100, 40, 60)] * 3])
    assert rows(tables(before), tables(after))["backward", "gemm"]["status"] == status


def test_the_largest_difference_stands_first_and_ten_are_kept(tmp_path):
    folders = [tmp_path / name for name in "ab"]
    for folder, scale in zip(folders, (10, 12), strict=True):
        folder.mkdir()
        builder = plain_rank(0, STEPS, world_size=1)
        for number in range(14):
            # Inside the second step of the figures, whose window begins at 1600 + 1200.
            start = 2800 + 50 * number
            builder.kernel(start, start + scale * (number + 1) // 10, f"k{number:02d}", launch=2795)
        builder.write(folder / "run_0.sqlite")
    before, after = (tables(nsyspipe.load(folder, jobs=1)) for folder in folders)
    found = kernel_changes(before, after, min_effect=0.02)
    apart = [abs(delta) for delta in found["delta_ns_per_step"].to_pylist()]
    assert apart == sorted(apart, reverse=True)
    assert top_kernels(found).num_rows == 10


def test_a_side_without_steps_of_figures_has_no_kernels_to_compare(tmp_path):
    table = tables(plain_run(tmp_path / "a", [STEPS]))
    empty = StepTable(table[0].run)
    vars(empty)["rows"] = table[0].rows.slice(0, 0)
    assert kernel_changes(table, [empty], min_effect=0.02).num_rows == 0
