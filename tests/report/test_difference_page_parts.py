"""What the page of a difference draws: the waterfall, both timelines, and differences beside zero; times are ns."""

from __future__ import annotations

import pytest

from nsyspipe.api import diff
from nsyspipe.comparison.difference import Side
from nsyspipe.report.html.difference_charts import (
    DeltaCell,
    DeltaTable,
    Judged,
    Scale,
    timelines,
    waterfall,
    waterfall_table,
)
from nsyspipe.report.html.difference_page import (
    change_table,
    figure_table,
    formula_table,
    kernel_table,
    provenance_table,
)
from tests.build.plain_steps import plain_rank, plain_run

MS = 10**6


def steps(compute, comm=20, n=12):
    return [((compute + number % 3) * MS, comm * MS, 4 * MS, 6 * MS) for number in range(n)]


@pytest.fixture(scope="module")
def change(tmp_path_factory):
    """Return what 30 ms less of compute and 10 ms less of communication change in steps of 130, 131, 132 ms."""
    folder = tmp_path_factory.mktemp("runs")
    slow = plain_run(folder / "slow", [steps(90), steps(100)])
    fast = plain_run(folder / "fast", [steps(70, 10), steps(60, 10)], kernel="sgemm")
    return diff(slow, Side("new", (fast,)))


def test_a_waterfall_leads_from_one_mean_to_the_other(change):
    found = waterfall(change)
    bars = [(bar["name"], bar["start"] / MS, bar["end"] / MS, bar["delta"]) for bar in found["bars"]]  # fmt: skip
    # Idle time follows the copy, and the cause of it does not matter here.
    assert bars[:4] == [
        ("baseline", 0, 131, None),
        ("compute", 131, 101, -30 * MS),
        ("exposed comm", 101, 91, -10 * MS),
        ("exposed copies", 91, 91, 0),
    ]
    assert {(start, end, delta) for name, start, end, delta in bars[4:-1]} == {(91, 91, 0)}
    assert {name.partition(":")[0] for name, *_ in bars[4:-1]} == {"idle"}
    assert bars[-1] == ("candidate", 0, 91, None)


def test_the_axis_is_whole_unless_changes_would_be_too_small(change, tmp_path):
    # 40 of 131 ms are more than a quarter.
    assert waterfall(change)["from"] == 0
    before = plain_run(tmp_path / "a", [steps(100)])
    after = plain_run(tmp_path / "b", [steps(96)])
    # 131 and 127 ms: two less than the lowest, on a whole millisecond.
    assert waterfall(diff(before, after))["from"] == 125 * MS
    assert waterfall(diff(before, before))["from"] == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "after"),
    [("ddp-2gpu-straggler", "ddp-2gpu-bucket100"), ("ddp-4gpu-shm", "ddp-4gpu"), ("ddp-4gpu-shm", "ddp-4gpu-shm-bucket100")],
)  # fmt: skip
def test_the_bars_of_real_runs_join_without_a_gap(before, after, real):
    found = diff(*(str(real / f"{name}_[0-9].sqlite") for name in (before, after)))
    first, *parts, last = waterfall(found)["bars"]
    assert (first["end"], None, last["end"] - first["end"]) == (found.mean_step_time[0], None, found.mean_step_time[2])  # fmt: skip
    ends = [first["end"], *(bar["end"] for bar in parts)]
    assert [bar["start"] for bar in parts] == ends[:-1]
    assert ends[-1] == last["end"]
    assert sum(bar["delta"] for bar in parts) == found.mean_step_time[2]


def test_what_a_side_did_not_record_is_not_split(tmp_path):
    builder = plain_rank(0, steps(90), world_size=1)
    bare = builder.write(tmp_path / "bare.sqlite", without=("CUPTI_ACTIVITY_KIND_MEMCPY",))
    found = diff(bare, plain_run(tmp_path / "whole", [steps(70)]), force=True)
    bars = waterfall(found)["bars"]
    # Without copies neither they nor idle time are known; both make 10 ms on either side, so they change by 0.
    assert [bar["name"] for bar in bars] == ["baseline", "compute", "exposed comm", "not split", "candidate"]  # fmt: skip
    assert (bars[-2]["baseline"], bars[-2]["delta"]) == (None, 0)
    assert bars[-2]["start"] == bars[-3]["end"]
    assert bars[-2]["end"] == bars[-1]["end"]
    rows = {row[0]: row[3:] for row in waterfall_table(found).rows}
    assert rows["exposed copies"] == rows["idle"] == ["-", "-"]


def test_the_table_of_parts_is_exact_and_sums(change):
    rows = waterfall_table(change).rows
    assert rows[0] == ["compute", "101.0 ms", "71.00 ms", "-30.00 ms", "-30 000 000 ns"]
    assert rows[2][3:] == ["0 ms", "0 ns"]
    assert rows[-1] == ["mean step time", "131.0 ms", "91.00 ms", "-40.00 ms", "-40 000 000 ns"]  # fmt: skip


def test_both_timelines_begin_at_zero_on_the_slowest_rank(change):
    found = timelines(change)
    # The slowest is rank 1 of the baseline and rank 0 of the candidate; of equal steps of 131 and 91 ms
    # the first is step 2, after the one left out and one of 130 and 90.
    slow, fast = found.data["ranks"]
    assert (slow["rank"], fast["rank"]) == ("1 of the baseline", "0 of the candidate")
    assert [one["window"][0] for one in (slow, fast)] == [0, 0]
    assert found.data["end"] == slow["window"][1]
    lanes = [one["lanes"] for one in (slow, fast)]
    assert [lane["compute"]["start"] for lane in lanes] == [[0], [0]]
    assert [lane["compute"]["length"] for lane in lanes] == [[101 * MS], [71 * MS]]
    assert [lane["comm"]["start"] for lane in lanes] == [[101 * MS], [71 * MS]]
    names = [found.data["names"][lane["compute"]["name"][0]] for lane in lanes]
    assert names == ["gemm", "sgemm"]
    assert found.missing == []


def test_the_titles_say_side_time_step_rank_and_label(change):
    step = change.baseline.runs[0].timeline()["step"][0].as_py()
    first, second = timelines(change).data["titles"]
    label = change.baseline.label
    wall = timelines(change).data["ranks"][0]["window"][1] / MS
    assert first == f"baseline: {wall:.1f} ms, step {step} on rank 1, {label}"
    assert second.startswith("candidate: ")
    assert second.endswith("on rank 0, new")


def test_the_table_of_timelines_has_a_row_per_side(change):
    table = timelines(change).table
    assert [column.heading for column in table.columns[:4]] == ["side", "step number", "rank", "step, from and to"]  # fmt: skip
    assert [row[0] for row in table.rows] == ["baseline", "candidate"]
    assert [row[2] for row in table.rows] == ["1", "0"]
    assert table.rows[0][3].startswith("0 ms")


def test_figures_show_where_their_difference_lies(change):
    table = figure_table(change)
    name, relative, cell, judged, *rest = table.rows[0]
    assert (name, relative, judged) == ("step time", "-30.5 %", Judged("improvement"))
    assert rest[:3] == ["131.0 ms", "91.00 ms", "-40.00 ms"]
    assert rest[-1] == "12"
    # -40 of 131 is -30.53 %, on a scale to 50 %, as 20 is too little.
    assert table.columns[2].heading == "-50 to +50 %"
    assert cell.at == pytest.approx(-40 / 131 / 0.5)
    assert cell.low <= cell.at <= cell.high < 0
    assert cell.band == pytest.approx(0.02 / 0.5)
    assert table.strong == {0}
    assert len(table.rows) == change.metrics.num_rows


def test_ratios_lie_in_points(change):
    row = next(row for row in figure_table(change).rows if row[0] == "exposed comm share")
    # Pooled: both ranks' communication by their steps of 121 and 131, 91 and 81 ms.
    before, after = 40 / 252, 20 / 172
    assert row[1] == f"{100 * (after - before):.1f} points"
    assert row[2].at == pytest.approx((after - before) / 0.5)


def test_judged_figures_come_first(change):
    both = diff(change.baseline, change.candidate, metrics=["idle", "exposed_comm"])
    table = figure_table(both)
    assert [row[0] for row in table.rows[:3]] == ["exposed comm", "idle", "step time"]
    assert table.strong == {0, 1}


def test_a_reason_that_most_figures_share_is_told_once(tmp_path):
    runs = [plain_run(tmp_path / name, [steps(90, n=2)]) for name in "ab"]
    table = figure_table(diff(*runs))
    assert table.rows[0][3] == Judged("inconclusive")
    assert table.note.endswith("needs 3.")
    assert any(row[3].why for row in table.rows)


def test_kernels_are_drawn_with_their_sign(change):
    rows = {row[0]: row for row in kernel_table(change).rows}
    assert (rows["gemm"][2].at < 0, rows["sgemm"][2].at > 0) == (True, True)
    assert (rows["gemm"][6], rows["sgemm"][6]) == ("vanished", "appeared")
    # Of rank 0 and 1 the mean: 91 and 101 ms.
    assert rows["gemm"][1] == "-96.00 ms"
    assert max(abs(row[2].at) for row in rows.values()) == 1


def test_what_else_changed_is_told_of_both_sides(change, tmp_path):
    fewer = plain_run(tmp_path / "fewer", [steps(70, n=11)] * 2)
    first, *_ = change_table(diff(change.baseline, fewer)).rows
    assert first == ["steps", "summary steps", "12", "11", ""]


def test_provenance_names_both_sides(change):
    table = provenance_table(change)
    assert [column.heading for column in table.columns[1:]] == [f"baseline {change.baseline.label}", "candidate new"]  # fmt: skip
    assert table.rows[0] == ["run id", *(side.runs[0].header.run_id for side in (change.baseline, change.candidate))]  # fmt: skip


def test_nothing_changed_around_a_run_and_itself(change):
    same = diff(change.baseline, change.baseline)
    assert change_table(same) is None
    assert kernel_table(same) is None


def test_every_figure_has_a_formula(change):
    names = [row[1] for row in formula_table().rows]
    assert names == change.metrics["metric"].to_pylist()


def test_bars_and_intervals_are_placed_around_the_middle():
    cell = DeltaCell(0.5, 0.25, 0.75, 0.1)
    assert cell.bar == (50, 25)
    assert cell.whisker == (62.5, 25)
    assert cell.no_change == pytest.approx((45, 10))
    assert cell.beyond is None
    assert DeltaCell(-0.5).bar == (25, 25)
    assert DeltaCell(-0.5).whisker is None


def test_what_lies_outside_of_the_track_is_cut_and_marked():
    assert DeltaCell(3.0, 0.5, 7.0).whisker == (75, 25)
    assert (DeltaCell(3.0).bar, DeltaCell(3.0).beyond) == ((50, 50), "right")
    assert (DeltaCell(-3.0).bar, DeltaCell(-3.0).beyond) == ((0, 50), "left")
    assert DeltaCell(1.0).beyond is None


@pytest.mark.parametrize(
    ("held", "others", "limit"),
    [
        ([], [], 1),
        ([1], [], 1),
        ([1.01], [], 2),
        ([12], [3, 900], 20),  # of the others the smaller half
        ([12], [3, 40, 900], 50),
        ([2000], [], 100),
    ],
)
def test_a_scale_holds_what_it_must_and_half_of_the_rest(held, others, limit):
    assert Scale.around(held, others) == Scale(limit)


def test_a_row_has_the_verdict_of_its_cell():
    assert DeltaTable.verdict_of(["a", DeltaCell(1), Judged("change")]) == "change"
    assert DeltaTable.verdict_of(["a"]) is None
