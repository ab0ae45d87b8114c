"""Runs without any device activity: the steps of their hosts, from reports to every output."""

import json
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

import nsyspipe
from nsyspipe.analysis.summary import host_figures
from nsyspipe.errors import DatasetError, OptionError, RankConflictError
from nsyspipe.model import schema
from nsyspipe.report.export import document
from nsyspipe.report.formats import dumps
from nsyspipe.report.html.run_page import run_page
from nsyspipe.report.markdown import markdown
from nsyspipe.report.run import summary_text
from nsyspipe.store.write import save
from tests.build.tools import codes, run_of
from tests.build.trace import TraceBuilder
from tests.markdown_page import Page

SESSION = 10**18


def host_rank(rank, *, env=True, n_steps=3, pid=None, builder=None):
    """Return a rank that only the host saw; rank 1 started its session 500 ns after rank 0.

    Step i is [1000 i, 1000 i + 300 + 100 rank); in it data [0, 50), forward [50, 150), backward
    [150, 250), and two optimizer ranges [250, 270) and [260, 290), which are 40 together.
    """
    builder = builder or TraceBuilder(pid=1000 + rank).session(SESSION + 500 * rank).host("node0")
    if env:
        builder.env(RANK=rank, WORLD_SIZE=2)
    for step in range(n_steps):
        at = 1000 * step
        builder.range(at, at + 300 + 100 * rank, f"step {step}", pid=pid)
        builder.range(at, at + 50, "data", pid=pid).range(at + 50, at + 150, "forward", pid=pid)
        builder.range(at + 150, at + 250, "backward", pid=pid)
        builder.range(at + 250, at + 270, "optimizer a", kind=60, pid=pid)
        builder.range(at + 260, at + 290, "optimizer b", kind=60, pid=pid)
    return builder


@pytest.fixture
def two(tmp_path):
    """Return the folder of a run of two ranks without devices."""
    for rank in range(2):
        host_rank(rank).write(tmp_path / f"cpu_{rank}.sqlite")
    return tmp_path


def column(run, name):
    return run.host_steps()[name].to_pylist()


def expected(rank, step):
    start, length = 1000 * step + 500 * rank, 300 + 100 * rank
    return {
        "rank": rank,
        "report": f"cpu_{rank}.sqlite",
        "pid": 1000 + rank,
        "step": step,
        "host_start_ns": start,
        "host_end_ns": start + length,
        "host_ns": length,
        "data_ns": 50,
        "forward_ns": 100,
        "backward_ns": 100,
        "optimizer_ns": 40,
        "is_complete": True,
    }


def test_each_step_of_each_rank_is_a_row_with_its_phases_on_one_clock(two):
    run = nsyspipe.load(two)
    assert run.host_steps().to_pylist() == [
        expected(rank, step) for rank in range(2) for step in range(3)
    ]
    assert run.host_steps().schema.equals(schema.HOST_STEPS.arrow, check_metadata=True)
    assert run.step_family == "step #"


def test_a_capture_that_traced_no_gpu_lacks_none(two):
    ranks = [{"rank": rank, "report": f"cpu_{rank}", "pid": 1000 + rank} for rank in range(2)]
    said = {"name": "cpu", "captured_at_utc": "2001-09-09T01:46:40Z", "ranks": ranks}
    for trace, found in (
        (["nvtx", "osrt"], [("captured-without-gpu", "info", None)]),
        (["cuda", "nvtx"], [("no-gpu-activity", "error", f"cpu_{rank}.sqlite") for rank in (0, 1)]),
    ):
        (two / "cpu.capture.json").write_text(json.dumps(said | {"trace": trace}))
        problems = nsyspipe.load(two).problems.to_pylist()
        assert [(row["code"], row["severity"], row["report"]) for row in problems] == found, trace


def test_a_phase_that_a_step_lacks_is_0_and_one_never_recorded_is_null(tmp_path, worded):
    builder = (
        TraceBuilder().range(0, 100, "step 1").range(10, 30, "forward").range(200, 310, "step 2")
    )
    run = run_of(tmp_path, builder.range(400, None, "step 3").range(410, 450, "forward"))
    assert column(run, "host_ns") == [100, 110, 51]  # 1 ns after the last event, 450
    assert (column(run, "is_complete"), column(run, "forward_ns")) == (
        [True, True, False],
        [20, 0, 40],
    )
    assert column(run, "data_ns") == column(run, "backward_ns") == [None] * 3
    (figures,) = host_figures(run.host_steps())
    assert (figures.n_steps, figures.median_ns) == (2, 105)  # without the open one
    worded(text_of(run))


def test_texts_without_one_number_are_counted_in_order(
    tmp_path,
):
    builder = TraceBuilder().range(0, 50, "epoch 1 step 7").range(100, 150, "epoch 1 step 9")
    assert column(run_of(tmp_path, builder), "step") == [0, 1]
    second = host_rank(1)
    del second.rows["TARGET_INFO_SESSION_START_TIME"]
    assert column(run_of(tmp_path, host_rank(0), second), "host_start_ns") == [0, 1000, 2000] * 2


def test_all_reports_take_one_family_of_ranges(tmp_path):
    first = host_rank(0).range(-5, 1950, "outer 0").range(1995, 3950, "outer 2000")
    run = run_of(tmp_path, first, host_rank(1), executor=ThreadPoolExecutor(1))
    assert nsyspipe.load(tmp_path / "a_0.sqlite").step_family == "outer #"
    assert (run.step_family, column(run, "step")) == ("step #", [0, 1, 2] * 2)


def test_a_family_named_like_an_epoch_wins_only_alone(tmp_path):
    run = run_of(tmp_path, host_rank(0).range(-10, 1400, "epoch 0").range(1500, 2900, "epoch 1"))
    assert run.step_family == "step #"
    run = nsyspipe.load(tmp_path, step="^step 2$")
    assert (column(run, "step"), run.step_family) == ([2], "^step 2$")  # one range is enough


# A step option that matches nothing; one range alone, which makes no family; no ranges.
@pytest.mark.parametrize(
    ("build", "step"),
    [
        (host_rank, "nothing"),
        (lambda _: TraceBuilder().range(0, 9, "step 1"), None),
        (lambda _: TraceBuilder().env(RANK=0), None),
    ],
    ids=["a pattern of nothing", "one range", "no range"],
)
def test_without_steps_there_is_nothing_to_show(tmp_path, build, step, worded):
    run = run_of(tmp_path, build(0), step=step)
    assert (run.host_steps().num_rows, "no-gpu-activity" in codes(run)) == (0, True)
    worded(run.verdict)
    assert run.verdict.partition(".")[0] in text_of(run).splitlines()[1]


def test_a_process_without_the_steps_is_no_row_and_objects_to_nothing(tmp_path):
    # A worker of the data loader; RANK is that of the only process with steps.
    run = run_of(
        tmp_path, host_rank(0).range(0, 20, "load 0", pid=77).range(500, 520, "load 500", pid=77)
    )
    assert (column(run, "pid"), column(run, "rank")) == ([1000] * 3, [0] * 3)


@pytest.mark.parametrize(
    ("names", "env", "options", "ranks"),
    [
        ("xy", True, {}, [0, 1]),
        (("x_3", "x_5"), False, {}, [3, 5]),
        ("xy", False, {}, [None, None]),
        (("x_3", "x_5"), True, {"rank_map": {"x_3": 1, "x_5": 0}}, [1, 0]),
        (("x_3", "y"), False, {}, [None, None]),
    ],
)
def test_ranks_are_numbered_by_the_sources_of_ranks_but_never_by_order(
    tmp_path, names, env, options, ranks
):
    for rank, name in enumerate(names):
        host_rank(rank, env=env).write(tmp_path / f"{name}.sqlite")
    run = nsyspipe.load(tmp_path, **options)
    found = dict(zip(column(run, "pid"), column(run, "rank"), strict=True))
    assert [found[1000], found[1001]] == ranks
    assert column(run, "rank") == [
        rank for rank in sorted(ranks, key=lambda one: one or 0) for _ in range(3)
    ]
    assert codes(run) == [
        "no-gpu-activity",
        *(["rank-map-differs"] if options else []),
    ]  # RANK was captured too


def test_two_processes_of_one_report_are_told_by_pid_where_ranks_are_not_known(tmp_path, worded):
    builder = host_rank(0, env=False)
    host_rank(1, env=False, builder=builder, pid=1001)
    run = nsyspipe.load(builder.env(RANK=0).write(tmp_path / "node_0.sqlite"))
    assert (column(run, "rank"), column(run, "pid")) == ([None] * 6, [1000] * 3 + [1001] * 3)
    text = text_of(run)
    assert "node_0:1001" in text
    assert "--rank-map" in text
    worded(text)


def test_reports_of_two_runs_and_a_map_without_a_report_with_steps_are_refused(
    two, tmp_path, worded
):
    with pytest.raises(OptionError, match="cpu_1") as refused:
        nsyspipe.load(two, rank_map={"cpu_0": 1}).host_steps()
    worded(refused.value.lines(), "a map")
    (folder := tmp_path / "both").mkdir()
    builders = (host_rank(0, builder=TraceBuilder(pid=pid)) for pid in (0, 1))
    with pytest.raises(RankConflictError) as conflict:
        run_of(folder, *builders).host_steps()
    worded(conflict.value.lines(), "two runs")


def text_of(run, width=100):
    return summary_text(run, Console(width=width, force_terminal=False))


def test_each_output_begins_with_the_verdict_and_has_a_row_per_rank(two, pinned):
    run = nsyspipe.load(two, run_id="cpu-run")
    found = json.loads(dumps(document(run)))
    assert (found["host_steps"][4], found["steps"], found["ranks"]) == (expected(1, 1), [], [])
    page = run_page(run)
    # The page has its headline, which has no period, above the table.
    headline = page.index(f">{run.verdict.removesuffix('.')}</h")
    assert headline < page.index('id="host-steps"')
    # All steps of a rank take the same; rank 1 takes 400 - 300 ns longer, of 300.
    texts = "\n---\n".join((text_of(run), text_of(run, 60), markdown(run)))
    pinned("run/host-steps.txt", texts.replace(nsyspipe.__version__, "VERSION"))


def test_the_text_fits_the_terminal(tmp_path, worded):
    for rank in range(2):
        host_rank(rank).write(
            tmp_path / f"a-rather-long-name-of-a-study-on-two-hosts_{rank}.sqlite"
        )
    run = nsyspipe.load(tmp_path)
    for width in (40, 60, 80, 100, 200):
        text = text_of(run, width)
        assert max(map(len, text.splitlines())) <= width, width
        assert "backward" in text, width  # where ranks wait for each other
        worded(text, f"{width} columns")


def test_hostile_names_of_reports_and_steps_stay_text(tmp_path):
    builder = TraceBuilder()
    for at in range(3):
        builder.range(100 * at, 100 * at + 50, f"<b>step</b> \x1b[31m{at}")
    run = nsyspipe.load(builder.write(tmp_path / "<i>|x`_0.sqlite"))
    page = Page(markdown(run))
    assert (run.host_steps().num_rows, "\x1b" in text_of(run), "<i>" in run_page(run)) == (
        3,
        False,
        False,
    )
    assert ([line for line in page.html if "nsyspipe:" not in line], page.tables[0][1][1]) == (
        [],
        "<i>|x`_0",
    )


def test_captures_of_one_second_have_ids_of_their_own(tmp_path):
    assert (
        len(
            {run_of(tmp_path, host_rank(0, n_steps=n_steps)).header.run_id for n_steps in (3, 4, 3)}
        )
        == 2
    )


def test_a_saved_run_has_the_same_host_steps(two, tmp_path, worded):
    saved = tmp_path / "store"
    save(before := nsyspipe.load(two, run_id="cpu-run"), saved)
    after = nsyspipe.load(saved)
    assert after.host_steps() == before.host_steps()
    assert (document(after), text_of(after)) == (document(before), text_of(before))
    assert after.to_pandas("host_steps")["host_ns"].tolist() == [300] * 3 + [400] * 3
    again = nsyspipe.load(saved)
    (saved / "host_steps" / "run_id=cpu-run" / "part-0.parquet").unlink()
    with pytest.raises(DatasetError) as missing:
        again.host_steps()
    worded(missing.value.problem)
    path = saved / "runs" / "run_id=cpu-run" / "part-0.parquet"
    table = pq.read_table(path, partitioning=None)
    details = json.loads(table["details"][0].as_py())
    del details["n_host_steps"], details["files"]
    at = table.schema.get_field_index("details")
    pq.write_table(
        table.set_column(at, table.schema.field(at), pa.array([json.dumps(details)])), path
    )
    again = nsyspipe.load(saved)
    assert (again.host_steps(), document(again)["host_steps"]) == (schema.HOST_STEPS.empty(), [])
