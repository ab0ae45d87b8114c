"""Lines of Python of a run: built reports with a planted line, saved, left out and redacted."""

import json

import pyarrow.compute as pc
import pytest

import nsyspipe
from nsyspipe.findings.host_lines import (
    HOST_CALL,
    HOST_FUNCTION,
    HOST_LINE,
    LEFT_OUT,
    LINE_UNKNOWN,
    LOCK_HELD,
    LOCK_HELD_BY_OTHER,
    LOCK_WAIT,
    LOCK_WAIT_SHARE,
)
from nsyspipe.redact.redact import redact
from nsyspipe.report.export import document
from nsyspipe.report.html.run_page import run_page
from nsyspipe.report.markdown import markdown
from nsyspipe.store.write import save
from tests.build.python_samples import (
    BOOTSTRAP,
    HELD,
    LOCK_DOMAIN,
    SITE,
    lock_range,
    sample,
    with_domain,
)
from tests.build.tools import run_of
from tests.build.trace import TraceBuilder, steady_rank

VERSION = "3.20.3 2025.3.2"
SLOW = ("parse", "/home/secret/job/data/slow.py", 64)
MAIN = ("<module>", "/home/secret/job/main.py", 5)
TRAIN = ("<module>", "/home/secret/job/train.py", 60)
SPIN = ("spin", "/home/secret/job/spin.py", 52)
LINEAR = ("forward", f"{SITE}/torch/nn/modules/linear.py", 134)


def planted(rank=0, world_size=1) -> TraceBuilder:
    """Return `steady_rank` whose host is at slow.py:64 while the GPU idles, at train.py:60 else.

    In each step from 1000 i, the GPU works in [100, 350), and idles for its host in the rest.
    """
    builder = with_domain(steady_rank(rank, 6, world_size=world_size, version=VERSION))
    for step in range(6):
        at = 1000 * step
        for later in (400, 500, 600, 700):
            sample(builder, at + later, SLOW, TRAIN)
        for later in (110, 120, 130, 140, 150, 160):
            sample(builder, at + later, LINEAR, TRAIN)
    return builder


def rows(run, frame):
    table = run.host_lines()
    return table.filter(pc.equal(table["frame"], frame)).to_pylist()


def test_the_line_at_which_the_host_was_in_idle_time_comes_first(tmp_path):
    run = run_of(tmp_path, planted(), jobs=1)
    first, second = rows(run, "program")
    (n_steps,) = run.summary()["n_summary_steps"].to_pylist()
    assert (first["file"], first["line"]) == ("data/slow.py", 64)
    assert (first["n_samples"], first["n_idle_samples"]) == (4 * n_steps, 4 * n_steps)
    assert first["n_idle_steps"] == n_steps
    assert (second["file"], second["line"]) == ("train.py", 60)
    assert (second["n_samples"], second["n_idle_samples"]) == (6 * n_steps, 0)
    assert rows(run, "innermost")[1]["file"] == "torch/nn/modules/linear.py"


def test_every_column_of_a_line(tmp_path):
    # Four samples in each of the four summary steps, all while the host launches nothing.
    first, _ = rows(run_of(tmp_path, planted(), jobs=1), "program")
    counts = dict.fromkeys(("n_samples", "n_idle_samples", "n_launch_samples"), 4 * 4)
    counts |= dict.fromkeys(("n_idle_steps", "n_launch_steps"), 4)
    none = ("n_input_samples", "n_input_steps", "n_blocked_samples", "n_blocked_steps")
    assert first == {
        "rank": 0,
        "frame": "program",
        "file": "data/slow.py",
        "line": 64,
        "last_line": None,
        "mean_depth": None,
        "function": "parse",
        "after_file": None,
        "after_line": None,
        "after_function": None,
        "after_path": None,
        "path": "/home/secret/job/data/slow.py",
        **counts,
        **dict.fromkeys(none, 0),
    }


def spread() -> TraceBuilder:
    """Return `steady_rank` whose host is at three lines of one function while the GPU idles.

    Each step has a sample at each of slow.py:64, 65 and 66, and one in a function that line 66
    calls. train.py:60 called all of this, as main.py:5 called everything.
    """
    builder = with_domain(steady_rank(0, 6, world_size=1, version=VERSION))
    for step in range(6):
        at = 1000 * step
        for number, later in enumerate((400, 500, 600)):
            sample(builder, at + later, (*SLOW[:2], 64 + number), TRAIN, MAIN)
        sample(builder, at + 700, ("code", SLOW[1], 30), (*SLOW[:2], 66), TRAIN, MAIN)
        for later in (110, 120, 130, 140, 150, 160):
            sample(builder, at + later, LINEAR, (*TRAIN[:2], 61), MAIN)
    return builder


def test_every_column_of_a_function_and_a_call(tmp_path):
    run = run_of(tmp_path, spread(), jobs=1)
    (parse,) = (row for row in rows(run, "function") if row["function"] == "parse")
    assert (parse["line"], parse["last_line"]) == (64, 66)
    # One of four samples has a function further inside.
    assert parse["mean_depth"] == 0.25
    assert (parse["n_samples"], parse["n_launch_samples"], parse["n_launch_steps"]) == (16, 16, 4)
    (call,) = (row for row in rows(run, "call") if row["line"] == 60)
    assert (call["file"], call["last_line"], call["mean_depth"]) == ("train.py", None, 1.25)
    assert (call["n_samples"], call["n_launch_samples"], call["n_launch_steps"]) == (16, 16, 4)


def test_without_a_main_line_the_function_and_its_call_are_named(tmp_path):
    run = run_of(tmp_path, spread(), jobs=1)
    figures = {row["id"]: json.loads(row["evidence"]) for row in run.finding_rows}["launch-bound"]
    assert not {HOST_LINE, LINE_UNKNOWN} & figures.keys()
    counts = {"n_samples": 16, "n_of_samples": 16, "n_steps": 4, "n_of_steps": 4}
    parse = {"file": "data/slow.py", "line": 64, "last_line": 66, "function": "parse"}
    assert figures[HOST_FUNCTION] == parse | counts
    call = {"file": "train.py", "line": 60, "function": "<module>"}
    assert figures[HOST_CALL] == call | counts


def test_every_column_of_the_lines_in_the_timeline(tmp_path):
    # The period of most samples is 10, so each later sample is alone, and holds for one period.
    run = run_of(tmp_path, planted(), jobs=1)
    table = run.line_bars()
    (step,) = table["step"].unique().to_pylist()
    (at,) = [row["start_ns"] - 100 for row in run.steps().to_pylist() if row["step"] == step]
    slow = {"frame": "program", "file": "data/slow.py", "line": 64, "function": "parse"}
    train = {"frame": "program", "file": "train.py", "line": 60, "function": "<module>"}
    assert table.to_pylist() == [
        {
            "step": step,
            "rank": 0,
            "start_ns": at + start,
            "end_ns": at + end,
            **line,
            "n_samples": n_samples,
        }
        for start, end, line, n_samples in (
            (110, 170, train, 6),
            (400, 410, slow, 1),
            (500, 510, slow, 1),
            (600, 610, slow, 1),
            (700, 710, slow, 1),
        )
    ]


def test_a_line_outside_of_the_program_is_the_innermost_of_all(tmp_path):
    builder = with_domain(steady_rank(0, 6, version=VERSION))
    for at in range(1000, 6000, 50):
        sample(builder, at, LINEAR)
    found = run_of(tmp_path, builder, jobs=1).line_bars().to_pylist()
    assert {(row["frame"], row["file"]) for row in found} == {
        ("innermost", "torch/nn/modules/linear.py")
    }


def test_a_saved_run_has_the_lines_of_its_timeline(tmp_path):
    run = run_of(tmp_path, planted(), jobs=1)
    save(run, tmp_path / "store")
    saved = nsyspipe.load(tmp_path / "store")
    assert saved.line_bars() == run.line_bars()
    step = run.line_bars()["step"][0].as_py()
    assert saved.line_bars(step) == run.line_bars(step)
    assert run.line_bars(step - 1).num_rows == 5
    assert saved.line_bars(step - 1).num_rows == 0


def test_a_finding_names_the_line(tmp_path):
    run = run_of(tmp_path, planted(), jobs=1)
    lines = {}
    for row in run.finding_rows:
        lines[row["id"]] = json.loads(row["evidence"]).get("host_line")
    line = lines["launch-bound"]
    (n_steps,) = run.summary()["n_summary_steps"].to_pylist()
    assert (line["file"], line["line"], line["function"]) == ("data/slow.py", 64, "parse")
    assert (line["n_samples"], line["n_of_samples"]) == (4 * n_steps, 4 * n_steps)
    assert (line["n_steps"], line["n_of_steps"]) == (n_steps, n_steps)


OPTIMIZER = ("train", "/home/secret/job/loop/train.py", 91)
CALL_OF_FORWARD = (*OPTIMIZER[:2], 84)
FORWARD = ("classify", "/home/secret/job/net.py", 21)


def planted_holds() -> TraceBuilder:
    """Return `planted` without lines in idle time: the main thread holds Python's lock then.

    In each step it is at train.py:91 while the GPU works. Later it lets go of the lock at net.py:21,
    which train.py:84 calls.
    """
    builder = with_domain(steady_rank(0, 6, world_size=1, version=VERSION))
    for step in range(6):
        at = 1000 * step
        sample(builder, at + 160, LINEAR, OPTIMIZER, MAIN)
        for later in (400, 500, 600):
            sample(builder, at + later, LINEAR, FORWARD, CALL_OF_FORWARD, MAIN, state=HELD)
    return builder


def test_a_hold_has_the_lines_of_the_function_that_both_samples_share(tmp_path):
    run = run_of(tmp_path, planted_holds(), jobs=1)
    (hold,) = rows(run, "let_go")
    assert (hold["file"], hold["line"], hold["function"]) == ("loop/train.py", 84, "train")
    assert (hold["after_file"], hold["after_line"]) == ("loop/train.py", 91)
    assert hold["after_function"] == "train"
    # Three samples in each of the four summary steps.
    assert (hold["n_samples"], hold["n_launch_samples"], hold["n_launch_steps"]) == (12, 12, 4)


def test_a_finding_says_between_which_lines_the_lock_was_held(tmp_path):
    run = run_of(tmp_path, planted_holds(), jobs=1)
    figures = {row["id"]: json.loads(row["evidence"]) for row in run.finding_rows}["launch-bound"]
    assert not {HOST_LINE, HOST_FUNCTION, HOST_CALL} & figures.keys()
    train = {"file": "loop/train.py", "line": 84, "function": "train"}
    before = {"after_file": "loop/train.py", "after_line": 91, "after_function": "train"}
    assert figures[LOCK_HELD] == train | before | {"n_samples": 12, "n_of_samples": 12}


def test_lines_between_which_the_lock_was_held_can_be_left_out(tmp_path):
    run = run_of(tmp_path, planted_holds(), jobs=1, lines=False)
    assert run.host_lines().num_rows == 0
    assert "train.py" not in json.dumps(document(run))


def planted_lock() -> TraceBuilder:
    """Return `planted` whose main thread waits for the lock in [400, 600) of each step.

    Another thread holds it, and is at spin.py:52 when it lets go.
    """
    builder = planted().domain("GIL Trace", LOCK_DOMAIN)
    for step in range(6):
        at = 1000 * step
        lock_range(builder, "main", at + 400, at + 600, waits=True)
        lock_range(builder, "worker", at + 380, at + 600, waits=False)
        for later in (450, 550):
            sample(builder, at + later, SPIN, BOOTSTRAP, category=2, state=HELD)
        sample(builder, at + 650, SPIN, BOOTSTRAP, category=2, state=HELD)
    return builder


def test_a_finding_says_who_holds_the_lock_and_for_how_long(tmp_path):
    run = run_of(tmp_path, planted_lock(), jobs=1)
    (n_steps,) = run.summary()["n_summary_steps"].to_pylist()
    (holder,) = rows(run, "lock_holder")
    assert (holder["file"], holder["line"]) == ("spin.py", 52)
    assert (holder["n_samples"], holder["n_launch_samples"]) == (2 * n_steps, 2 * n_steps)
    figures = {row["id"]: json.loads(row["evidence"]) for row in run.finding_rows}["launch-bound"]
    (idle_ns,) = set(run.breakdown()["idle_launch_ns"].to_pylist())
    assert figures[LOCK_WAIT] == 200
    assert figures[LOCK_WAIT_SHARE] == 200 / idle_ns
    # The other thread has no sample in time, so each of its samples follows one at the same line.
    held = figures[LOCK_HELD_BY_OTHER]
    assert (held["after_file"], held["after_line"]) == ("spin.py", 52)
    assert (held["file"], held["line"]) == ("spin.py", 52)


def test_waits_for_the_lock_are_no_lines_and_are_not_left_out(tmp_path):
    run = run_of(tmp_path, planted_lock(), jobs=1, lines=False)
    figures = {row["id"]: json.loads(row["evidence"]) for row in run.finding_rows}["launch-bound"]
    assert (figures[LINE_UNKNOWN], figures[LOCK_WAIT]) == (LEFT_OUT, 200)
    assert LOCK_HELD_BY_OTHER not in figures


def test_without_waits_for_the_lock_they_are_null(tmp_path):
    run = run_of(tmp_path, planted(), jobs=1)
    figures = {row["id"]: json.loads(row["evidence"]) for row in run.finding_rows}["launch-bound"]
    assert figures[LOCK_WAIT] is None
    assert LOCK_HELD_BY_OTHER not in figures


def test_holding_the_lock_does_not_hide_that_the_host_gets_input(tmp_path):
    # Between two ranges of steps the host is in no range, so it may get input.
    builder = steady_rank(0, 6, world_size=1, version=VERSION)
    before = run_of(tmp_path, builder, jobs=1).breakdown()["idle_input_ns"].to_pylist()
    assert min(before) > 0
    builder.domain("GIL Trace", LOCK_DOMAIN)
    lock_range(builder, "main", -400, 7000, waits=False)
    after = run_of(tmp_path, builder, jobs=1).breakdown()["idle_input_ns"].to_pylist()
    assert after == before


def test_a_host_that_waits_for_the_lock_gets_no_input(tmp_path):
    builder = steady_rank(0, 6, world_size=1, version=VERSION).domain("GIL Trace", LOCK_DOMAIN)
    for step in range(6):
        lock_range(builder, "main", 1000 * step + 890, 1000 * step + 1001, waits=True)
    steps = run_of(tmp_path, builder, jobs=1).breakdown()
    assert set(steps["idle_input_ns"].to_pylist()) == {0}


def test_only_the_json_of_reports_has_whole_paths(tmp_path):
    run = run_of(tmp_path, planted_holds(), jobs=1)
    lines = document(run)["host_lines"]
    assert {row["after_path"] for row in lines} == {None, OPTIMIZER[1]}
    assert {row["path"] for row in lines if row["frame"] == "let_go"} == {OPTIMIZER[1]}
    save(run, tmp_path / "store")
    for path in (tmp_path / "store").rglob("*"):
        assert path.is_dir() or b"secret" not in path.read_bytes()
    saved = nsyspipe.load(tmp_path / "store")
    paths_of_lines = ["path", "after_path"]
    without_paths = run.host_lines().drop_columns(paths_of_lines)
    assert saved.host_lines().drop_columns(paths_of_lines) == without_paths
    for column in paths_of_lines:
        assert saved.host_lines()[column].null_count == saved.host_lines().num_rows


@pytest.mark.slow
def test_the_page_and_the_lists_have_the_lines_with_their_texts_escaped(tmp_path):
    builder = planted()
    script = ("<script>", "/home/secret/job/<b>.py", 9)
    for step in range(6):
        sample(builder, 1000 * step + 800, script)
    run = run_of(tmp_path, builder, jobs=1)
    page = run_page(run).replace("<wbr>", "")
    assert "data/slow.py:64" in page
    assert "<b>.py" not in page
    assert "secret" not in page
    n_without_lists = markdown(run).count("data/slow.py:64")
    assert markdown(run, top=3).count("data/slow.py:64") == n_without_lists + 1


def test_lines_can_be_left_out(tmp_path):
    run = run_of(tmp_path, planted(), jobs=1, lines=False)
    assert run.host_lines().num_rows == 0
    assert "slow.py" not in json.dumps(document(run))


def test_a_finding_says_that_lines_were_left_out_on_request(tmp_path):
    run = run_of(tmp_path, planted(), jobs=1, lines=False)
    save(run, tmp_path / "store")
    for known in (run, nsyspipe.load(tmp_path / "store")):
        reasons = {}
        for row in known.finding_rows:
            reasons[row["id"]] = json.loads(row["evidence"]).get("host_line_unknown")
        assert reasons["launch-bound"] == LEFT_OUT


def test_a_redacted_copy_has_no_path_and_no_function(tmp_path):
    path = planted_holds().write(tmp_path / "a_0.sqlite")
    copy = tmp_path / "copy.sqlite"
    redact(str(path), copy)
    content = copy.read_bytes()
    assert not [
        word for word in (b"secret", b"net.py", b"linear.py", b"classify") if word in content
    ]
    assert nsyspipe.load(copy, jobs=1).host_lines().num_rows == 0


def test_a_report_without_samples_has_no_lines(tmp_path):
    assert run_of(tmp_path, steady_rank(0, world_size=1), jobs=1).host_lines().num_rows == 0


def test_lines_of_several_ranks_are_apart(tmp_path):
    run = run_of(tmp_path, planted(0, 2), planted(1, 2), jobs=1)
    by_rank = [row["rank"] for row in rows(run, "program")]
    assert by_rank == [0, 0, 1, 1]
