"""Kernels that appeared, vanished or changed."""

from __future__ import annotations

from itertools import permutations

import pyarrow.parquet as pq
import pytest

import nsyspipe
from nsyspipe.analysis import kernels as window_sums
from nsyspipe.comparison.changes import StepTable, kernel_changes, top_kernels
from nsyspipe.comparison.comparability import check_comparable
from nsyspipe.comparison.difference import Side
from nsyspipe.store.write import save
from tests.store.store_tools import places, unlisted

# Windows: [1000, 1600) skipped, then three of 1200, then one that is cut off.
STEPS = [(1000, 100, 40, 60)] * 3
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


def tables(*runs):
    return [StepTable(run) for run in runs]


def rows(before, after, min_effect=0.02):
    found = kernel_changes(before, after, min_effect=min_effect).to_pylist()
    return {(row["phase"], row["name"]): row for row in found}


@pytest.fixture
def run_with(made):
    """Return a function that makes a run of one rank with kernels (start, end, name, launch) besides those of its steps."""

    def make(*kernels):
        def with_kernels(builder):
            for start, end, name, launch in kernels:
                builder.kernel(start, end, name, launch=launch)

        return made(STEPS, edit=with_kernels)

    return make


@pytest.fixture(scope="module")
def run(made):
    return made(STEPS, STEPS)


def as_saved_before(run, folder):
    """Return a run as a store holds it that an older nsyspipe wrote: without what kernels take in summary steps."""
    save(run, folder)
    run_id = run.header.run_id
    path = places(unlisted(folder, run_id), run_id)["kernels"]
    kept = pq.read_table(path, partitioning=None).drop_columns(["n_in_summary", "in_summary_ns"])
    pq.write_table(kept, path)
    return nsyspipe.load(folder)


def warnings(before, after):
    checks = check_comparable(Side("a", (before,)), Side("b", (after,)))
    return {check.check: check for check in checks}


def test_a_run_has_the_same_kernels_as_itself_and_none_without_steps_of_figures(run):
    found = kernel_changes(tables(run), tables(run), min_effect=0.02)
    assert set(found["status"].to_pylist()) == {"same"}
    assert set(found["delta_ns_per_step"].to_pylist()) == {0.0}
    assert top_kernels(found).num_rows == 0
    empty = StepTable(run)
    vars(empty)["rows"] = StepTable(run).rows.slice(0, 0)
    assert kernel_changes(tables(run), [empty], min_effect=0.02).num_rows == 0


def test_what_starts_in_summary_steps_counts_and_nothing_else(made):
    # The skipped step has 500 and 50, the one that is cut off 100 and 10.
    run = made(STEPS, [(1300, 100, 0, 0)] * 3)
    found = rows(tables(run), tables(run))
    for name, ns in (("gemm", 1150), (NCCL, 100)):
        row = found["backward", name]
        assert row["baseline_ns_per_step"] == row["baseline_mean_ns"] == ns
        assert row["baseline_n_per_step"] == 1


def test_a_kernel_counts_where_it_starts_with_all_of_its_duration(run_with):
    # Windows begin at 1600, 2800, 4000 and, cut off, 5200.
    early, over = (1599, 2000, "early", 1500), (2799, 2900, "over", 2700)
    run = run_with(early, over, (3000, 3000, "empty", 2900), (5199, 9000, "late", 5100))
    found = {key[1]: row for key, row in rows(tables(run), tables(run)).items()}
    costs = {name: row["baseline_ns_per_step"] for name, row in found.items()}
    assert costs == {"gemm": 1000, NCCL: 100, "over": 101 / 3, "empty": 0, "late": 3801 / 3}
    # Of no length it is there.
    row = found["empty"]
    assert (row["status"], row["baseline_n_per_step"], row["baseline_mean_ns"]) == ("same", 1 / 3, 0)


@pytest.mark.parametrize(
    "kernel",
    [(100, 600, "other", 50), (1100, 1200, "other", 995), (5210, 5220, "other", 5195)],
    ids=["before-the-first-step", "in-the-skipped-step", "in-the-cut-off-step"],
)
def test_what_runs_outside_of_the_summary_steps_does_not_appear(made, run_with, kernel):
    before, after = tables(made(STEPS)), tables(run_with(kernel))
    assert "other" in after[0].run.kernels()["name"].to_pylist()
    found = rows(before, after)
    assert {key[1]: row["status"] for key, row in found.items()} == {"gemm": "same", NCCL: "same"}
    # As compute of the same steps says.
    assert found["backward", "gemm"]["delta_ns_per_step"] == 0
    # What ran there on the other side inside of them vanished.
    found = rows(tables(run_with((3000, 3030, "other", 2900))), after)
    row = next(row for key, row in found.items() if key[1] == "other")
    assert (row["status"], row["delta_ns_per_step"]) == ("vanished", -10)


@pytest.mark.parametrize("is_old", [False, True], ids=["counted", "estimated"])
def test_without_communication_in_the_summary_steps_it_vanished(run, made, tmp_path, is_old):
    # There still is some in the skipped and in the cut-off step.
    before, after = run, made(*[[(1000, 0, 40, 60)] * 3] * 2)
    if is_old:
        before = as_saved_before(before, tmp_path / "before")
        after = as_saved_before(after, tmp_path / "after")
    row = rows(tables(before), tables(after))["backward", NCCL]
    assert (row["status"], row["candidate_ns_per_step"], row["candidate_n_per_step"]) == ("vanished", 0.0, 0.0)
    assert row["delta_ns_per_step"] == -row["baseline_ns_per_step"] == pytest.approx(-100)
    assert row["candidate_mean_ns"] is None


def test_a_run_saved_before_kernels_were_counted_is_estimated_and_says_so(run, tmp_path):
    # Compute of the windows: 500 (skipped), 3 x 1000, 100 (cut off): 3600 in all, 1000 per summary
    # step. The kernel takes all of it: 3600 x 1000 / 3600. There are 5 of them: 5 x 1000 / 3600.
    old = as_saved_before(run, tmp_path / "store")
    assert old.kernels().schema.equals(run.kernels().schema, check_metadata=True)
    found = rows(tables(old), tables(run))
    row = found["backward", "gemm"]
    assert row["baseline_ns_per_step"] == pytest.approx(1000)
    assert row["baseline_n_per_step"] == pytest.approx(5 / 3.6)
    assert row["candidate_n_per_step"] == 1
    # Of communication 50 + 3 x 100 + 10; there is one in every step.
    assert found["backward", NCCL]["baseline_ns_per_step"] == pytest.approx(100)
    assert found["backward", NCCL]["baseline_n_per_step"] == pytest.approx(1)
    note = warnings(old, run)["kernel-times"]
    assert not note.blocks
    assert (note.baseline, note.candidate) == ("estimated from the whole capture", "counted")
    assert "kernel-times" not in warnings(run, run)


@pytest.mark.parametrize(("n_skipped", "is_known"), [(1, True), (2, True), (3, False), (4, True)])
def test_windows_that_share_a_sum_are_unknown_where_a_part_of_them_counts(made, monkeypatch, n_skipped, is_known):
    # Twelve windows, eight groups: two windows alone at either end, those between in pairs.
    monkeypatch.setattr(window_sums, "_MOST_SUMS", 1)
    run = made(STEPS[:1] * 10, load={"skip_first": n_skipped})
    kernels = run.kernels()
    expected = [(11 - n_skipped) * ns for ns in (1000, 100)] if is_known else [None, None]
    assert kernels["in_summary_ns"].to_pylist() == expected
    assert kernels["n_in_summary"].null_count == (0 if is_known else 2)
    assert ("kernel-times" in warnings(run, run)) == (not is_known)
    row = rows(tables(run), tables(run))["backward", "gemm"]
    assert row["baseline_ns_per_step"] == pytest.approx(1000)


def test_kernels_appear_and_vanish_by_name_and_phase(run, made):
    found = rows(tables(run), tables(made(STEPS, STEPS, kernel="conv")))
    gone, new = found["backward", "gemm"], found["backward", "conv"]
    assert (gone["status"], gone["candidate_ns_per_step"], gone["candidate_mean_ns"]) == ("vanished", 0.0, None)
    assert (new["status"], new["baseline_n_per_step"]) == ("appeared", 0.0)
    assert new["delta_ns_per_step"] == -gone["delta_ns_per_step"] == 1000

    def all_forward(builder):
        for row in builder.rows["NVTX_EVENTS"]:
            if row["textId"] == builder.string("backward"):
                row["textId"] = builder.string("forward")

    found = rows(tables(made(STEPS)), tables(made(STEPS, edit=all_forward)))
    assert [found[phase, "gemm"]["status"] for phase in ("backward", "forward")] == ["vanished", "appeared"]


@pytest.mark.parametrize(
    ("before", "after", "status"),
    [
        # 1 % is under the minimum effect, but 10 ns are more than a thousandth of the step of 1200 ns; 1 ns is less.
        *((STEPS, [(compute, 100, 40, 60)] * 3, status) for compute, status in ((1010, "changed"), (1001, "same"))),
        (STEPS, [(1030, 100, 40, 60)] * 3, "changed"),
        # 203 ns are under 0.1 % of the step; they are over 2 % of 10 000 and under 2 % of 10 203.
        ([(10_000, 100, 0, 300_000)] * 3, [(10_203, 100, 0, 500_000)] * 3, "changed"),
    ],
)
def test_little_change_is_none_unless_the_step_feels_it_whichever_side_comes_first(made, before, after, status):
    there, back = (rows(tables(one), tables(other)) for one, other in permutations((made(before), made(after))))
    for key, row in there.items():
        assert row["status"] == back[key]["status"] == ("same" if key[1] == NCCL else status)
        assert row["delta_ns_per_step"] == -back[key]["delta_ns_per_step"]


def test_the_largest_difference_stands_first_and_ten_are_kept(run_with):
    # Inside the second step of the figures, whose window begins at 1600 + 1200.
    starts = range(2800, 2800 + 14 * 50, 50)
    before, after = (
        run_with(*((start, start + scale * (n + 1) // 10, f"k{n:02d}", 2795) for n, start in enumerate(starts)))
        for scale in (10, 12)
    )
    found = kernel_changes(tables(before), tables(after), min_effect=0.02)
    apart = [abs(delta) for delta in found["delta_ns_per_step"].to_pylist()]
    assert apart == sorted(apart, reverse=True)
    assert top_kernels(found).num_rows == 10
