"""The page of a difference: what it draws, whose it is, what it says, and that no name in it is more than text."""

import html
import re

import pytest

import nsyspipe
from nsyspipe.api import diff
from nsyspipe.comparison.side import Side
from nsyspipe.report import difference as said
from nsyspipe.report.blocks import Table, Word
from nsyspipe.report.export import document
from nsyspipe.report.html import difference_page as drawn
from nsyspipe.report.html.page import run_id_of_page
from nsyspipe.report.html.run_page import run_page
from nsyspipe.report.markdown import markdown
from nsyspipe.store.write import save
from tests.build.hostile import HOSTILE, hostile_log, write_hostile_run
from tests.build.plain_steps import MS, plain_run, steps, write_run


@pytest.fixture(scope="module")
def change(tmp_path_factory):
    """Return what 30 ms less of compute and 10 ms less of communication change in steps of 130, 131, 132 ms."""
    folder = tmp_path_factory.mktemp("change")
    slow = plain_run(folder / "slow", [steps(90), steps(100)])
    fast = plain_run(folder / "fast", [steps(70, comm=10), steps(60, comm=10)], kernel="sgemm")
    return diff(slow, Side("new", (fast,)))


def words(text):
    text = re.sub(r"<(script|style)\b.*?</\1>", "", text, flags=re.DOTALL)
    return " ".join(
        html.unescape(re.sub(r"<[^>]*>", " ", text)).replace("\N{RIGHTWARDS ARROW}", "->").split()
    )


def written(folder, text):
    path = folder / "page.html"
    path.write_text(text, encoding="utf-8")
    return path


def table_of(difference, caption):
    tables = (block for block in said.difference_blocks(difference) if isinstance(block, Table))
    return next(table for table in tables if table.caption == caption)


@pytest.mark.slow
def test_what_got_worse_is_no_alarm_where_the_verdict_rests_on_something_else(change, tmp_path):
    # 30 ms less of compute, and 14 ms more of idle time.
    slow = plain_run(tmp_path / "slow", [steps(100)] * 2)
    idle = diff(
        slow,
        plain_run(
            tmp_path / "idle", [[(*one[:3], 20 * MS) for one in steps(70)]] * 2, start=2 * 10**18
        ),
    )
    worse = diff(idle.candidate.runs[0], slow)
    rows = [table_of(one, said.METRICS).rows for one in (idle, worse)]
    told = [{(row[0], row[-1].text, row[-1].is_plain) for row in of_one} for of_one in rows]
    assert {("step time", "improvement", False), ("idle", "regression", True)} <= told[0]
    assert {("step time", "regression", False), ("compute", "regression", False)} <= told[1]
    page = drawn.difference_page(idle)
    assert [
        f'class="word" data-word="{word}"' in page for word in ("improvement", "regression")
    ] == [True, False]


def identity_of_page(path, difference):
    return said.difference_formats(difference)["html"].identity_of(path)


@pytest.mark.slow
def test_it_says_what_the_terminal_does_how_sure_that_is_and_whose_it_is(faster, tmp_path):
    page = drawn.difference_page(faster)
    assert '<h1 data-verdict="improvement">' in page
    for part in (said.verdict_text(faster), *said.notes(faster)):
        assert part.partition(",")[0] in words(page), part
    path = written(tmp_path, page)
    assert (identity_of_page(path, faster), run_id_of_page(path)) == (
        said.identity_of(faster),
        None,
    )
    assert identity_of_page(written(tmp_path, run_page(faster.baseline.runs[0])), faster) is None


@pytest.mark.slow
def test_reports_and_the_runs_saved_from_them_give_the_same_page(faster, board_runs, tmp_path):
    for name in ("slow", "fast"):
        save(board_runs[name], tmp_path / name)
    assert drawn.difference_page(
        diff(tmp_path / "slow", tmp_path / "fast")
    ) == drawn.difference_page(faster)


@pytest.mark.slow
def test_names_of_traces_are_only_text(tmp_path, board_runs):
    label = "</title><script>window.attacked=9</script>"
    log, run_id = hostile_log(tmp_path / "nccl.log"), "\"><script>alert('id')</script>\n"
    hostile = nsyspipe.load(write_hostile_run(tmp_path), nccl_log=log, run_id=run_id, jobs=1)
    found = diff(Side(label, (board_runs["slow"],)), Side(f"{label} too", (hostile,)), force=True)
    text = drawn.difference_page(found)
    assert text.count("<script") == 2 + text.count('<script type="application/json"')
    markup = text.replace(text[text.rindex("<script>") :], "")
    assert not [name for name in (*HOSTILE[:4], label) if "<" in name and name in markup]
    assert label in words(text)
    assert identity_of_page(written(tmp_path, text), found) == said.identity_of(found)


@pytest.mark.slow
def test_of_a_run_each_page_and_document_says_that_it_is_uneven(tmp_path):
    in_turn = [
        ((102 if number % 2 else 1370) * MS, 20 * MS, 4 * MS, 6 * MS) for number in range(14)
    ]
    run = plain_run(tmp_path / "before", [in_turn] * 2)
    for text in (words(run_page(run)), markdown(run)):
        assert "132.0 ms and 1400 ms" in text, text
    assert document(run)["evenness"]["period"] == 2


def test_a_waterfall_leads_from_one_mean_to_the_other(change):
    found = drawn.waterfall(change)
    bars = [
        (bar["name"], bar["start"] / MS, bar["end"] / MS, bar["delta"]) for bar in found["bars"]
    ]
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


@pytest.mark.slow
def test_the_axis_is_whole_unless_changes_would_be_too_small(change, tmp_path):
    assert drawn.waterfall(change)["from"] == 0  # 40 of 131 ms are more than a quarter
    before, after = (plain_run(tmp_path / str(compute), [steps(compute)]) for compute in (100, 96))
    # 131 and 127 ms: two less than the lowest, on a whole millisecond.
    assert drawn.waterfall(diff(before, after))["from"] == 125 * MS
    assert drawn.waterfall(diff(before, before))["from"] == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("ddp-2gpu-straggler", "ddp-2gpu-bucket100"),
        ("ddp-4gpu-shm", "ddp-4gpu"),
        ("ddp-4gpu-shm", "ddp-4gpu-shm-bucket100"),
    ],
)
def test_the_bars_of_real_runs_join_without_a_gap(before, after, real):
    found = diff(*(str(real / f"{name}_[0-9].sqlite") for name in (before, after)))
    first, *parts, last = drawn.waterfall(found)["bars"]
    assert (first["end"], None, last["end"] - first["end"]) == (
        found.mean_step_time[0],
        None,
        found.mean_step_time[2],
    )
    assert [*(bar["start"] for bar in parts), last["end"]] == [
        first["end"],
        *(bar["end"] for bar in parts),
    ]
    assert sum(bar["delta"] for bar in parts) == found.mean_step_time[2]


def test_both_timelines_begin_at_zero_on_the_slowest_rank(change):
    (found,) = drawn._timeline_charts(change)
    # The slowest is rank 1 of the baseline and rank 0 of the candidate; of equal steps of 131 and
    # 91 ms the first is step 2, after the one left out and one of 130 and 90.
    slow, fast = found.data["ranks"]
    assert (slow["rank"], fast["rank"]) == ("1 of the baseline", "0 of the candidate")
    assert [one["window"][0] for one in (slow, fast)] == [0, 0]
    assert found.data["end"] == slow["window"][1]
    lanes = [one["lanes"] for one in (slow, fast)]
    spans = [(lane["compute"]["start"], lane["compute"]["length"]) for lane in lanes]
    assert spans == [([0], [101 * MS]), ([0], [71 * MS])]
    assert [lane["comm"]["start"] for lane in lanes] == [[101 * MS], [71 * MS]]
    assert [found.data["names"][lane["compute"]["name"][0]] for lane in lanes] == ["gemm", "sgemm"]


def test_figures_show_where_their_difference_lies(change):
    table = drawn.figure_table(change, table_of(change, said.METRICS))
    *_, track, verdict, n_steps = table.rows[0]
    assert (table.rows[0][0], verdict, n_steps) == ("step time", Word("improvement"), "12")
    # -40 of 131 is -30.53 %, on a scale to 50 %, as 20 is too little.
    assert table.columns[6].kind == "track"
    assert track.at == pytest.approx(-40 / 131 / 0.5)
    assert track.low <= track.at <= track.high < 0
    assert track.band == pytest.approx(0.02 / 0.5)
    assert table.strong == {0}
    assert len(table.rows) == change.metrics.num_rows
    # Ratios lie in points. Pooled: both ranks' communication by their steps of 121 and 131, 91 and
    # 81 ms.
    metrics = [row["metric"] for row in said.metric_rows(change)[0]]
    row = table.rows[metrics.index("exposed_comm_share")]
    before, after = 40 / 252, 20 / 172
    assert row[6].at == pytest.approx((after - before) / 0.5)
    # Judged ones come first.
    judged = diff(change.baseline, change.candidate, metrics=["idle", "exposed_comm"])
    table = drawn.figure_table(judged, table_of(judged, said.METRICS))
    assert [row["metric"] for row in said.metric_rows(judged)[0][:3]] == [
        "exposed_comm",
        "idle",
        "step_time",
    ]
    assert table.strong == {0, 1}


def test_key_figures_of_a_capture_without_steps_name_no_steps(tmp_path, worded):
    before, after = (
        nsyspipe.load(write_run(tmp_path / str(compute), [steps(compute)]), step="none", jobs=1)
        for compute in (100, 70)
    )
    found = diff(before, after, metrics=["exposed_comm_share"])
    (row,) = found.judged_rows
    assert row["n_baseline"] == row["n_candidate"] == 0
    worded([tile.meaning for tile in drawn._tiles(row)])


def test_kernels_are_drawn_with_their_sign(change):
    rows = {row[0]: row for row in drawn.kernel_table(change, table_of(change, said.KERNELS)).rows}
    # Of rank 0 and 1 the mean: 91 and 101 ms.
    assert (rows["gemm"][3], rows["gemm"][6], rows["sgemm"][6]) == (
        "-96.00 ms",
        "vanished",
        "appeared",
    )
    assert (rows["gemm"][4].at < 0, rows["sgemm"][4].at > 0) == (True, True)
    assert max(abs(row[4].at) for row in rows.values()) == 1


def test_a_scale_holds_what_it_must_and_half_of_the_rest():
    assert [drawn.scale_around(held, []) for held in ([], [1], [1.01], [2000])] == [1, 1, 2, 100]
    # Of the others the smaller half.
    assert [drawn.scale_around([12], others) for others in ([3, 900], [3, 40, 900])] == [20, 50]
