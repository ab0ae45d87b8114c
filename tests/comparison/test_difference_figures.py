"""The figures of a step that runs are compared by, the parts of its time, and kernels that appeared, vanished or changed."""

from fractions import Fraction
from itertools import permutations
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import nsyspipe
from nsyspipe.analysis import kernels as window_sums
from nsyspipe.comparison.changes import (
    StepTable,
    apportioned,
    kernel_changes,
    mean_step_time,
    step_parts,
    top_kernels,
)
from nsyspipe.comparison.comparability import check_comparable
from nsyspipe.comparison.difference import RunDifference
from nsyspipe.comparison.metrics import hidden_comm_ns, per_step
from nsyspipe.comparison.side import Side
from nsyspipe.errors import DatasetError
from nsyspipe.store.write import save
from tests.comparison.conftest import STEPS, payload_run
from tests.store.store_tools import places, unlisted

ZERO = [
    (100, 10, 4, 6),
    (100, 20, 4, 6),
    (100, 30, 4, 6),
]  # two ranks, three steps: (compute, comm, copy, idle)
ONE = [(90, 10, 4, 36), (90, 20, 4, 6), (90, 40, 4, 6)]


@pytest.fixture(scope="module")
def table(made):
    return StepTable(made(ZERO, ONE))


def figures(table, name):
    found = per_step(table, name)
    return found if isinstance(found, str) else found.tolist()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("step_time", [140, 130, 140]),  # rank 1, rank 0, and of equal ones either
        ("compute", [100, 100, 100]),
        ("exposed_comm", [10, 20, 40]),
        ("exposed_memory", [4, 4, 4]),
        ("idle", [36, 6, 6]),
        ("dtod", [4, 4, 4]),
        # one over the longest window; ratios are pooled over the ranks of a step; walls of the
        # first step: 120 and 140
        ("throughput", [1e9 / 140, 1e9 / 130, 1e9 / 140]),
        ("comm_share", [20 / 260, 40 / 250, 70 / 280]),
        ("idle_share", [42 / 260, 12 / 250, 12 / 280]),
        ("overlap_ratio", [0, 0, 0]),
        # counts and bytes are means over ranks
        ("collectives", [1, 1, 1]),
        ("dtod_bytes", [32, 32, 32]),
    ],
)
def test_a_figure_of_a_step_is_made_of_its_ranks(table, name, expected):
    assert figures(table, name) == pytest.approx(expected)


def test_unrecorded_figures_are_named_and_summaries_share_their_steps(table, worded):
    assert all(
        "include-blobs" in figures(table, name) for name in ("message_bytes", "busbw", "algbw")
    )
    summary = table.run.summary().to_pylist()[0]
    assert table.n_steps == summary["n_summary_steps"] == 3
    assert summary["step_time_ns"] == 140
    broken = StepTable(table.run)
    vars(broken)["rows"] = table.rows.slice(1)  # as of a damaged store
    with pytest.raises(DatasetError) as caught:
        figures(broken, "step_time")
    worded(caught.value.problem)


def overlapping(*ranks):
    """Return a capture with so much communication beside compute, by rank and step; nothing: it is not known."""
    return SimpleNamespace(
        matrix={"overlap_compute_ns": np.array(ranks) if ranks else None}.__getitem__
    )


@pytest.mark.parametrize(
    ("captures", "median", "mean"),
    [
        # The rank with most of it in each step: 5, 8 and 9 ns
        ([overlapping([5, 1, 9], [3, 8, 2])], 8, 22 / 3),
        ([overlapping([5, 1, 9], [3, 8, 2]), overlapping([4, 4, 1])], 6, (22 / 3 + 3) / 2),
        ([overlapping([5, 1, 9]), overlapping()], None, None),
    ],
)
def test_communication_beside_compute_is_of_the_rank_with_most_of_it(captures, median, mean):
    assert hidden_comm_ns(captures, "median") == median
    assert hidden_comm_ns(captures, "mean") == (None if mean is None else pytest.approx(mean))


def test_steps_without_a_denominator_are_left_out_of_a_ratio(made):
    table = StepTable(made(*[[(100, 10, 0, 0), (100, 0, 0, 0), (100, 30, 0, 0)]] * 2))
    assert figures(table, "overlap_ratio") == [0, 0]
    assert figures(table, "comm_share") == pytest.approx([10 / 110, 0, 30 / 130])
    # The first and the last step have communication; those of the figures have none.
    table = StepTable(made(*[[(100, 0, 0, 1)] * 3] * 2))
    assert "denominator is 0" in figures(table, "overlap_ratio")


def test_bus_bandwidth_is_pooled_over_the_collectives_of_a_step(tmp_path):
    table = StepTable(payload_run(tmp_path / "run", 4096))
    # 60 ns on both ranks at once: 4096 bytes / 60 ns, times 2 (n - 1) / n = 1.
    assert figures(table, "message_bytes") == [4096] * 4
    assert figures(table, "busbw") == pytest.approx([4096 / 60 * 1e9] * 4)


def test_a_run_of_one_rank_has_no_wait(made, worded):
    table = StepTable(made(ZERO))
    worded(figures(table, "wait"), "one rank")
    empty = StepTable(table.run)
    vars(empty)["rows"] = table.rows.slice(0, 0)
    assert empty.n_steps == 0
    worded(figures(empty, "step_time"), "no common step")
    assert empty.matrix("wall_ns") is None


# The parts of the difference in step time sum to it, exactly.
def parts(before, after):
    rows = step_parts(before, after)[0].to_pylist()
    return {row["part"]: (row["baseline_ns"], row["candidate_ns"], row["delta_ns"]) for row in rows}


@pytest.fixture
def table_of(made):
    return lambda *ranks: StepTable(made(*ranks))


def test_parts_are_those_of_the_slowest_rank_of_each_step(table_of):
    # Slowest: rank 1 (140), rank 0 (130), and of two equal ones (140) the lower: rank 0.
    before, after = table_of(ZERO, ONE), table_of([(100, 10, 0, 10)] * 3, [(90, 10, 0, 10)] * 3)
    found = parts([before], [after])
    assert (
        abs(found.pop("compute")[0] - 290 / 3) < 1 / 1024
    )  # of compute the mean is 290 / 3, in 1/1024 ns
    assert found == {
        "exposed_comm": (20, 10, -10),
        "exposed_memory": (4, 0, -4),
        "idle": (16, 10, -6),
    }


def test_thirds_of_a_nanosecond_sum_exactly_as_floats_and_causes_to_idle(table_of):
    before = table_of([(101, 7, 1, 30), (103, 8, 1, 41), (100, 9, 2, 11)])
    after = table_of([(90, 17, 0, 31), (91, 3, 1, 5), (93, 8, 2, 2)])
    steps, causes = (one.to_pylist() for one in step_parts([before], [after]))
    means = [float(mean_step_time([one])) for one in (before, after)]
    assert abs(means[0] - 414 / 3) < 1 / 1024
    totals = dict(
        zip(("baseline_ns", "candidate_ns", "delta_ns"), [*means, means[1] - means[0]], strict=True)
    )
    for column, total in totals.items():
        assert sum(row[column] for row in steps) == total, column
        assert sum(row[column] or 0 for row in causes) == steps[-1][column], column
    assert [row["cause"] for row in causes] == ["input", "launch", "blocked", "dependency", "other"]
    # Several captures count alike, whatever their length.
    short, long = table_of([(100, 0, 0, 0)] * 2), table_of([(200, 0, 0, 0)] * 6)
    assert float(mean_step_time([short, long])) == 150


def test_parts_of_a_side_that_lacks_one_are_null_and_the_others_are_said(table_of):
    whole, lacking = (table_of([(100, 10, 4, 6)] * 3) for _ in range(2))
    at = whole.rows.column_names.index("idle_ns")
    vars(lacking)["rows"] = whole.rows.set_column(
        at, "idle_ns", pa.nulls(whole.rows.num_rows, pa.int64())
    )
    found = parts([whole], [lacking])
    assert found["idle"] == (6, None, None)
    assert found["compute"] == (100, 100, 0)


def test_rounding_gives_the_rest_to_the_largest_remainders_then_to_the_first():
    third = Fraction(1, 3)
    found = apportioned(
        Fraction(2), {"a": third, "b": 2 * third, "c": third, "d": 2 * third}, Fraction(1)
    )
    assert found == {"a": 0, "b": 1, "c": 0, "d": 1}
    found = apportioned(Fraction(1), {"a": third, "b": third, "c": third}, Fraction(1))
    assert found == {"a": 1, "b": 0, "c": 0}


# Kernels.
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


def as_saved_before(run, folder):  # without what kernels take in summary steps
    save(run, folder)
    run_id = run.header.run_id
    path = places(unlisted(folder, run_id), run_id)["kernels"]
    saved = pq.read_table(path, partitioning=None)
    pq.write_table(
        saved.drop_columns([name for name in saved.column_names if "in_summary" in name]), path
    )
    return nsyspipe.load(folder)


def warnings(before, after):
    return {
        check.check: check for check in check_comparable(Side("a", (before,)), Side("b", (after,)))
    }


def test_a_run_has_the_same_kernels_as_itself(run):
    found = kernel_changes(tables(run), tables(run), min_effect=0.02)
    assert set(found["status"].to_pylist()) == {"same"}
    assert set(found["delta_ns_per_step"].to_pylist()) == {0.0}
    assert top_kernels(found, 0.0).num_rows == 0
    empty = StepTable(run)
    vars(empty)["rows"] = StepTable(run).rows.slice(0, 0)
    assert kernel_changes(tables(run), [empty], min_effect=0.02).num_rows == 0


def test_what_starts_in_summary_steps_counts_and_nothing_else(made):
    # The skipped step has 500 and 50, the one that is cut off 100 and 10.
    run = made(STEPS, [(1300, 100, 0, 0)] * 3)
    found = rows(tables(run), tables(run))
    for name, ns in (("gemm", 1150), (NCCL, 100)):
        row = found["backward", name]
        assert row["baseline_ns_per_step"] == row["baseline_mean_ns"] == ns, name
        assert row["baseline_n_per_step"] == 1, name


def test_a_kernel_counts_where_it_starts_with_all_of_its_duration(run_with):
    # Windows begin at 1600, 2800, 4000 and, cut off, 5200.
    early, over = (1599, 2000, "early", 1500), (2799, 2900, "over", 2700)
    run = run_with(early, over, (3000, 3000, "empty", 2900), (5199, 9000, "late", 5100))
    found = {key[1]: row for key, row in rows(tables(run), tables(run)).items()}
    costs = {name: row["baseline_ns_per_step"] for name, row in found.items()}
    assert costs == {"gemm": 1000, NCCL: 100, "over": 101 / 3, "empty": 0, "late": 3801 / 3}
    row = found["empty"]  # of no length it is there
    assert (row["status"], row["baseline_n_per_step"], row["baseline_mean_ns"]) == (
        "same",
        1 / 3,
        0,
    )


# Before the first step, in the skipped one, in the one that is cut off.
@pytest.mark.parametrize(
    "kernel", [(100, 600, "other", 50), (1100, 1200, "other", 995), (5210, 5220, "other", 5195)]
)
def test_what_runs_outside_of_the_summary_steps_does_not_appear(made, run_with, kernel):
    before, after = tables(made(STEPS)), tables(run_with(kernel))
    assert "other" in after[0].run.kernels()["name"].to_pylist()
    found = rows(before, after)
    assert {key[1]: row["status"] for key, row in found.items()} == {"gemm": "same", NCCL: "same"}
    assert found["backward", "gemm"]["delta_ns_per_step"] == 0  # as compute of the same steps says
    # What ran there on the other side inside of them vanished.
    found = rows(tables(run_with((3000, 3030, "other", 2900))), after)
    row = next(row for key, row in found.items() if key[1] == "other")
    assert (row["status"], row["delta_ns_per_step"]) == ("vanished", -10)


def test_without_communication_in_the_summary_steps_it_vanished(run, made):
    # There still is some in the skipped and in the cut-off step.
    before, after = run, made(*[[(1000, 0, 40, 60)] * 3] * 2)
    row = rows(tables(before), tables(after))["backward", NCCL]
    assert (row["status"], row["candidate_ns_per_step"], row["candidate_n_per_step"]) == (
        "vanished",
        0.0,
        0.0,
    )
    assert row["delta_ns_per_step"] == -row["baseline_ns_per_step"] == pytest.approx(-100)
    assert row["candidate_mean_ns"] is None


def test_a_run_saved_before_kernels_were_counted_has_no_rows_and_says_so(run, tmp_path):
    old = as_saved_before(run, tmp_path / "store")
    assert old.kernels().schema.equals(run.kernels().schema, check_metadata=True)
    assert rows(tables(old), tables(run)) == {}
    note = warnings(old, run)["kernel-times"]
    assert (note.blocks, note.baseline, note.candidate) == (False, "not recorded", "counted")
    assert "kernel-times" not in warnings(run, run)


@pytest.mark.parametrize(("n_skipped", "is_known"), [(1, True), (2, True), (3, False), (4, True)])
def test_windows_that_share_a_sum_are_unknown_where_a_part_of_them_counts(
    made, monkeypatch, n_skipped, is_known
):
    # Twelve windows, eight groups: two windows alone at either end, those between in pairs.
    monkeypatch.setattr(window_sums, "_MOST_SUMS", 1)
    run = made(STEPS[:1] * 10, load={"skip_first": n_skipped})
    kernels = run.kernels()
    expected = [(11 - n_skipped) * ns for ns in (1000, 100)] if is_known else [None, None]
    assert kernels["in_summary_ns"].to_pylist() == expected
    assert kernels["n_in_summary"].null_count == (0 if is_known else 2)
    assert ("kernel-times" in warnings(run, run)) == (not is_known)
    assert bool(rows(tables(run), tables(run))) == is_known


def test_kernels_appear_and_vanish_by_name_and_phase(run, made):
    found = rows(tables(run), tables(made(STEPS, STEPS, kernel="conv")))
    gone, new = found["backward", "gemm"], found["backward", "conv"]
    assert (gone["status"], gone["candidate_ns_per_step"], gone["candidate_mean_ns"]) == (
        "vanished",
        0.0,
        None,
    )
    assert (new["status"], new["baseline_n_per_step"]) == ("appeared", 0.0)
    assert new["delta_ns_per_step"] == -gone["delta_ns_per_step"] == 1000

    def all_forward(builder):
        for row in builder.rows["NVTX_EVENTS"]:
            if row["textId"] == builder.string("backward"):
                row["textId"] = builder.string("forward")

    found = rows(tables(made(STEPS)), tables(made(STEPS, edit=all_forward)))
    assert [found[phase, "gemm"]["status"] for phase in ("backward", "forward")] == [
        "vanished",
        "appeared",
    ]


@pytest.mark.parametrize(
    ("before", "after", "status"),
    [
        # 1 % is under the minimum effect, but 10 ns are more than a thousandth of the step of 1200
        # ns; 1 ns is less.
        *(
            (STEPS, [(compute, 100, 40, 60)] * 3, status)
            for compute, status in ((1010, "changed"), (1001, "same"))
        ),
        (STEPS, [(1030, 100, 40, 60)] * 3, "changed"),
        # 203 ns are under 0.1 % of the step; they are over 2 % of 10 000 and under 2 % of 10 203.
        ([(10_000, 100, 0, 300_000)] * 3, [(10_203, 100, 0, 500_000)] * 3, "changed"),
    ],
)
def test_a_small_change_counts_only_if_the_step_time_shows_it(made, before, after, status):
    there, back = (
        rows(tables(one), tables(other)) for one, other in permutations((made(before), made(after)))
    )
    for key, row in there.items():
        assert row["status"] == back[key]["status"] == ("same" if key[1] == NCCL else status), key
        assert row["delta_ns_per_step"] == -back[key]["delta_ns_per_step"], key


def test_the_largest_difference_stands_first_and_ten_are_kept(run_with):
    # Inside the second step of the figures, whose window begins at 1600 + 1200.
    starts = range(2800, 2800 + 14 * 50, 50)
    before, after = (
        run_with(
            *(
                (start, start + scale * (n + 1) // 10, f"k{n:02d}", 2795)
                for n, start in enumerate(starts)
            )
        )
        for scale in (10, 12)
    )
    found = kernel_changes(tables(before), tables(after), min_effect=0.02)
    apart = [abs(delta) for delta in found["delta_ns_per_step"].to_pylist()]
    assert apart == sorted(apart, reverse=True)
    assert top_kernels(found, 0.0).num_rows == 10


@pytest.mark.parametrize(("by", "is_listed"), [(13, True), (12, False)])
def test_a_kernel_is_listed_for_its_time_however_long_it_is(made, by, is_listed):
    """The lesser step is 12 000 ns, of which 0.1 % are 12, and 13 ns are 0.12 % of the kernel's 11 000."""
    before, after = made([(11_000, 100, 40, 860)] * 3), made([(11_000 + by, 100, 40, 860)] * 3)
    listed = RunDifference(Side("a", (before,)), Side("b", (after,))).top_kernels
    assert listed["delta_ns_per_step"].to_pylist() == [float(by)] * is_listed
