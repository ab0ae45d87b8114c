"""The page of a difference: what it draws, whose it is, what it says, and that no name in it is more than text."""

from __future__ import annotations

import html
import json
import re

import pytest

import nsyspipe
from nsyspipe.api import diff
from nsyspipe.comparison.difference import Side
from nsyspipe.report.blocks import Table, Word
from nsyspipe.report.difference import (
    CHANGES,
    KERNELS,
    METRICS,
    PARTS,
    difference_blocks,
    difference_formats,
    identity_of,
    verdict_text,
)
from nsyspipe.report.export import document
from nsyspipe.report.html.difference_page import (
    _timeline_charts,
    _waterfall_chart,
    difference_page,
    figure_table,
    formula_table,
    kernel_table,
    provenance_table,
    scale_around,
    waterfall,
)
from nsyspipe.report.html.page import Chart, run_id_of_page
from nsyspipe.report.html.run_page import run_page
from nsyspipe.report.markdown import markdown
from nsyspipe.store.write import save
from tests.build.hostile import HOSTILE, hostile_log, write_hostile_run
from tests.build.plain_steps import plain_rank, plain_run
from tests.build.trace import TraceBuilder

MS = 10**6


def steps(compute, comm=20, n=12):
    return [((compute + number % 3) * MS, comm * MS, 4 * MS, 6 * MS) for number in range(n)]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Return two ranks with steps of 130, 131 and 132 ms, the same 30 ms shorter, and three ranks of those."""
    folder = tmp_path_factory.mktemp("runs")
    return {
        "slow": plain_run(folder / "slow", [steps(100)] * 2),
        "fast": plain_run(folder / "fast", [steps(70)] * 2, start=2 * 10**18),
        "again": plain_run(folder / "again", [steps(71)] * 2, start=3 * 10**18),
        "wide": plain_run(folder / "wide", [steps(70)] * 3, start=4 * 10**18),
    }


@pytest.fixture(scope="module")
def change(tmp_path_factory):
    """Return what 30 ms less of compute and 10 ms less of communication change in steps of 130, 131, 132 ms."""
    folder = tmp_path_factory.mktemp("change")
    slow = plain_run(folder / "slow", [steps(90), steps(100)])
    fast = plain_run(folder / "fast", [steps(70, 10), steps(60, 10)], kernel="sgemm")
    return diff(slow, Side("new", (fast,)))


@pytest.fixture
def faster(runs):
    return diff(runs["slow"], runs["fast"])


def words(text):
    """Return what a page shows: without its head, scripts and tags."""
    text = re.sub(r"<(script|style)\b.*?</\1>", "", text, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", text)).split())


def data(text, name):
    found = re.search(rf'<script type="application/json" id="data-{name}">(.*?)</script>', text)
    return json.loads(found[1])


def written(folder, text):
    path = folder / "page.html"
    path.write_text(text, encoding="utf-8")
    return path


def table_of(difference, caption):
    return next(
        block for block in difference_blocks(difference) if isinstance(block, Table) and block.caption == caption
    )


def test_several_captures_of_a_side_are_all_in_it(runs):
    found = diff(Side("base", (runs["slow"],)), Side("new", (runs["fast"], runs["again"])))
    text = words(difference_page(found))
    assert "spread between captures is not in the interval" not in text
    for heading in ("baseline base", "candidate new, capture 1 of 2", "candidate new, capture 2 of 2"):  # fmt: skip
        assert heading in text
    for name in ("slow", "fast", "again"):
        assert runs[name].header.run_id in text


def identity_of_page(path, difference):
    return difference_formats(difference)["html"].identity_of(path)


def test_it_says_what_the_terminal_does_how_sure_that_is_and_whose_it_is(faster, tmp_path):
    page = difference_page(faster)
    assert '<h1 data-verdict="improvement">' in page
    for part in (verdict_text(faster), "median of 12 steps", "spread between captures is not in the interval"):
        assert part in words(page)
    path = written(tmp_path, page)
    assert identity_of_page(path, faster) == identity_of(faster)
    assert run_id_of_page(path) is None
    assert identity_of_page(written(tmp_path, run_page(faster.baseline.runs[0])), faster) is None


def test_reports_and_the_runs_saved_from_them_give_the_same_page(faster, runs, tmp_path):
    for name in ("slow", "fast"):
        save(runs[name], tmp_path / name)
    saved = diff(tmp_path / "slow", tmp_path / "fast")
    assert difference_page(saved) == difference_page(faster)


def test_names_of_traces_are_only_text(tmp_path, runs):
    label = "</title><script>window.attacked=9</script>"
    hostile = nsyspipe.load(
        write_hostile_run(tmp_path),
        nccl_log=hostile_log(tmp_path / "nccl.log"),
        run_id="\"><script>alert('id')</script>\n",
        jobs=1,
    )
    found = diff(Side(label, (runs["slow"],)), Side(label, (hostile,)), force=True)
    text = difference_page(found)
    assert text.count("<script") == 2 + text.count('<script type="application/json"')
    for name in (*HOSTILE[:4], label):
        if "<" in name:
            assert name not in text.replace(text[text.rindex("<script>") :], "")
    assert label in words(text)
    assert identity_of_page(written(tmp_path, text), found) == identity_of(found)


def test_a_run_that_knows_nothing_of_the_device_still_has_a_page(tmp_path, runs):
    builder = TraceBuilder(pid=1).env(RANK=0, WORLD_SIZE=1).session(10**18)
    for step in range(4):
        builder.range(1000 * step, 1000 * step + 900, f"step {step}")
    empty = nsyspipe.load(builder.write(tmp_path / "host.sqlite"), jobs=1)
    text = difference_page(diff(runs["slow"], empty))
    shown = words(text)
    assert "Inconclusive: no step time" in shown
    assert "a side has no step with a window on every rank" in shown
    assert "There is no timeline of the candidate" in shown
    assert "There is no timeline of the baseline" not in shown
    assert "not known: a side has no step to count kernels by" in shown
    assert len(data(text, "timelines")["ranks"]) == 1
    nothing = difference_page(diff(empty, Side("other", (empty,))))
    assert 'id="data-timelines"' not in nothing
    assert 'id="data-waterfall"' not in nothing


def test_where_means_are_judged_the_page_speaks_of_means_and_each_run_says_that_it_is_uneven(tmp_path):
    """Steps of 132 and 1400 ms in turn against even ones of 146: no sentence is of medians where the verdict is not."""
    uneven = [((102 if number % 2 else 1370) * MS, 20 * MS, 4 * MS, 6 * MS) for number in range(14)]
    before = plain_run(tmp_path / "before", [uneven] * 2)
    after = plain_run(tmp_path / "after", [steps(116, 14)] * 2, start=2 * 10**18)
    shown = words(difference_page(diff(before, after)))
    for part in ("mean of 14 steps", "step time, mean", "times are judged on means, since steps are uneven", "132.0 ms and 1400 ms in turn"):  # fmt: skip
        assert part in shown
    assert "The verdict above is about medians" not in shown
    assert "132.0 ms and 1400 ms in turn" in words(run_page(before))
    assert "132.0 ms and 1400 ms in turn" in markdown(before)
    assert document(before)["evenness"]["period"] == 2
    assert document(after)["evenness"]["is_uneven"] is False


def chart_of(difference):
    return next(block for block in _timeline_charts(difference) if isinstance(block, Chart))


def figures(difference):
    return figure_table(difference, table_of(difference, METRICS))


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
    rows = {row[0]: row[3:] for row in _waterfall_chart(found, table_of(found, PARTS)).table.rows}
    assert rows["exposed copies"] == rows["idle"] == ["-", "-"]


def test_the_table_of_parts_is_exact_and_sums(change):
    rows = _waterfall_chart(change, table_of(change, PARTS)).table.rows
    assert rows[0] == ["compute", "101.0 ms", "71.00 ms", "-30.00 ms", "-30 000 000 ns"]
    assert rows[2][3:] == ["0 ms", "0 ns"]
    assert rows[-1] == ["mean step time", "131.0 ms", "91.00 ms", "-40.00 ms", "-40 000 000 ns"]  # fmt: skip


def test_both_timelines_begin_at_zero_on_the_slowest_rank(change):
    (found,) = _timeline_charts(change)
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


def test_the_titles_say_side_time_step_rank_and_label(change):
    step = change.baseline.runs[0].timeline()["step"][0].as_py()
    first, second = chart_of(change).data["titles"]
    label = change.baseline.label
    wall = chart_of(change).data["ranks"][0]["window"][1] / MS
    assert first == f"baseline: {wall:.1f} ms, step {step} on rank 1, {label}"
    assert second.startswith("candidate: ")
    assert second.endswith("on rank 0, new")


def test_the_table_of_timelines_has_a_row_per_side(change):
    table = chart_of(change).table
    assert [column.heading for column in table.columns[:4]] == ["side", "step number", "rank", "step, from and to"]  # fmt: skip
    assert [row[0] for row in table.rows] == ["baseline", "candidate"]
    assert [row[2] for row in table.rows] == ["1", "0"]
    assert table.rows[0][3].startswith("0 ms")


def test_figures_show_where_their_difference_lies(change):
    table = figures(change)
    *words_of, sure, track, verdict, n_steps = table.rows[0]
    assert words_of == ["step time", "131.0 ms", "91.00 ms", "-40.00 ms", "-30.5"]
    assert (" .. " in sure, verdict, n_steps) == (True, Word("improvement"), "12")
    # -40 of 131 is -30.53 %, on a scale to 50 %, as 20 is too little.
    assert table.columns[6].heading == "-50 to +50 %"
    assert track.at == pytest.approx(-40 / 131 / 0.5)
    assert track.low <= track.at <= track.high < 0
    assert track.band == pytest.approx(0.02 / 0.5)
    assert table.strong == {0}
    assert len(table.rows) == change.metrics.num_rows


def test_ratios_lie_in_points(change):
    row = next(row for row in figures(change).rows if row[0] == "exposed comm share")
    # Pooled: both ranks' communication by their steps of 121 and 131, 91 and 81 ms.
    before, after = 40 / 252, 20 / 172
    assert row[3:5] == [f"{100 * (after - before):.1f} points", "-"]
    assert row[6].at == pytest.approx((after - before) / 0.5)


def test_judged_figures_come_first(change):
    table = figures(diff(change.baseline, change.candidate, metrics=["idle", "exposed_comm"]))
    assert [row[0] for row in table.rows[:3]] == ["exposed comm", "idle", "step time"]
    assert table.strong == {0, 1}


def test_a_reason_that_most_figures_share_is_told_once(tmp_path):
    runs = [plain_run(tmp_path / name, [steps(90, n=2)]) for name in "ab"]
    table = figures(diff(*runs))
    assert table.rows[0][-2] == Word("inconclusive")
    assert table.note.endswith("needs 3.")
    assert any(row[-2].why for row in table.rows)


def test_kernels_are_drawn_with_their_sign(change):
    rows = {row[0]: row for row in kernel_table(change, table_of(change, KERNELS)).rows}
    # Of rank 0 and 1 the mean: 91 and 101 ms.
    assert (rows["gemm"][3], rows["gemm"][6], rows["sgemm"][6]) == ("-96.00 ms", "vanished", "appeared")
    assert (rows["gemm"][4].at < 0, rows["sgemm"][4].at > 0) == (True, True)
    assert max(abs(row[4].at) for row in rows.values()) == 1


def test_what_else_changed_is_told_of_both_sides(change, tmp_path):
    fewer = plain_run(tmp_path / "fewer", [steps(70, n=11)] * 2)
    found = diff(change.baseline, fewer)
    assert table_of(found, CHANGES).rows[0] == ["summary steps", "12", "11", ""]
    assert "steps summary steps 12 11" in words(difference_page(found))


def test_provenance_names_both_sides(change):
    table = provenance_table(change)
    assert [column.heading for column in table.columns[1:]] == [f"baseline {change.baseline.label}", "candidate new"]  # fmt: skip
    assert table.rows[0] == ["run id", *(side.runs[0].header.run_id for side in (change.baseline, change.candidate))]  # fmt: skip


def test_every_figure_has_a_formula(change):
    names = [row[1] for row in formula_table().rows]
    assert names == change.metrics["metric"].to_pylist()


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
    assert scale_around(held, others) == limit
